/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs of all ranks are connected at once. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/idle.h"
#include "core/log.h"
#include "gda/state.h"

#define EP_RUNS_DIGIT 15u

void ep_gda_runs_begin(struct ep_gda_writer *writer, unsigned char *at, bool ascending)
{
	*writer = (struct ep_gda_writer){ .at = at, .ascending = ascending };
}

static void ep_runs_rest(struct ep_gda_writer *writer, uint32_t v)
{
	if (v < EP_RUNS_DIGIT) {
		return;
	}
	for (v -= EP_RUNS_DIGIT; v > 0x7f; v >>= 7) {
		*writer->at++ = (unsigned char)(v | 0x80);
	}
	*writer->at++ = (unsigned char)v;
}

static uint32_t ep_runs_digit(uint32_t v)
{
	return v < EP_RUNS_DIGIT ? v : EP_RUNS_DIGIT;
}

static void ep_runs_flush(struct ep_gda_writer *writer)
{
	uint32_t step = writer->value - (writer->ascending ? writer->base : 0);

	if (!writer->count) {
		return;
	}
	*writer->at++ =
		(unsigned char)(ep_runs_digit(step) << 4 | ep_runs_digit(writer->count - 1));
	ep_runs_rest(writer, step);
	ep_runs_rest(writer, writer->count - 1);
	writer->base = writer->value + writer->count;
	writer->count = 0;
}

void ep_gda_runs_put(struct ep_gda_writer *writer, uint32_t word)
{
	if (writer->count && word == writer->value + (writer->ascending ? writer->count : 0)) {
		writer->count++;
		return;
	}
	ep_runs_flush(writer);
	writer->value = word;
	writer->count = 1;
}

void ep_gda_runs_end(struct ep_gda_writer *writer)
{
	ep_runs_flush(writer);
	writer->base = 0;
}

void ep_gda_runs_open(struct ep_gda_reader *reader, const unsigned char *at, uint32_t bytes,
		      bool ascending)
{
	*reader = (struct ep_gda_reader){ .at = at, .end = at + bytes, .ascending = ascending };
}

void ep_gda_runs_again(struct ep_gda_reader *reader)
{
	reader->base = 0;
}

/* *v is a digit, and becomes what it stands for. */
static bool ep_runs_take(struct ep_gda_reader *reader, uint32_t *v)
{
	uint64_t rest = 0;

	if (*v < EP_RUNS_DIGIT) {
		return true;
	}
	for (unsigned int shift = 0; shift < 35 && reader->at < reader->end; shift += 7) {
		unsigned char byte = *reader->at++;

		rest |= (uint64_t)(byte & 0x7f) << shift;
		if (!(byte & 0x80)) {
			*v += (uint32_t)rest;
			return rest <= UINT32_MAX - EP_RUNS_DIGIT;
		}
	}
	return false;
}

bool ep_gda_runs_next(struct ep_gda_reader *reader, uint32_t *value, uint32_t *count)
{
	uint32_t step, more;

	if (reader->at == reader->end) {
		return false;
	}
	step = *reader->at >> 4;
	more = *reader->at++ & 0xf;
	if (!ep_runs_take(reader, &step) || !ep_runs_take(reader, &more) || more == UINT32_MAX) {
		return false;
	}
	*value = step + (reader->ascending ? reader->base : 0);
	*count = more + 1;
	reader->base = *value + *count;
	return true;
}

/*
 * Connects queue i of this rank to a peer with queue i of the peer to this rank. Queue i is on NIC i
 * modulo their number, of either side.
 *
 * All ranks receive the lists of all, so they are kept short: queue pairs of a NIC have ascending numbers
 * in the order of their peers (ep_gda_sort), so a list need not hold which number is whose, and
 * numbers that follow each other, as firmware gives them out, are one run (state.h).
 */

#define EP_GDA_THREADS 4
#define EP_GDA_QUEUES_PER_THREAD 16

struct ep_gda_handshake {
	struct ep_verdict verdict;
	uint32_t queues;
	uint32_t node; /* its first rank */
	uint32_t nnics;
	struct ep_nic_end end[EP_GDA_MAX_NICS];
	struct ep_ece ece[EP_GDA_MAX_NICS];
};

_Static_assert(sizeof(struct ep_gda_handshake) <= EP_BOOT_BYTES, "ep_gda_handshake");

static const char ep_gda_what[] = "connecting queue pairs";

/* ---- many queues at once ---- */

struct ep_gda_work {
	struct ep_gda *gda;
	bool (*fn)(struct ep_gda_queue *queue, void *arg, struct ep_reason *why);
	void *arg;
	uint32_t next;
	uint32_t failed;
	pthread_mutex_t lock;
	struct ep_reason *why; /* the first failure's */
};

static void *ep_gda_work_some(void *arg)
{
	struct ep_gda_work *w = arg;

	while (!__atomic_load_n(&w->failed, __ATOMIC_RELAXED)) {
		uint32_t i = __atomic_fetch_add(&w->next, 1, __ATOMIC_RELAXED);
		struct ep_reason why = { "" };

		if (i >= w->gda->nqueues) {
			break;
		}
		if (!w->fn(&w->gda->queue[i], w->arg, &why)) {
			pthread_mutex_lock(&w->lock);
			if (!w->failed) {
				*w->why = why;
			}
			__atomic_store_n(&w->failed, 1, __ATOMIC_RELAXED);
			pthread_mutex_unlock(&w->lock);
		}
	}
	return NULL;
}

bool ep_gda_each(struct ep_gda *g,
		 bool (*fn)(struct ep_gda_queue *queue, void *arg, struct ep_reason *why),
		 void *arg, struct ep_reason *why)
{
	struct ep_gda_work work = { .gda = g, .fn = fn, .arg = arg, .why = why };
	uint32_t n = g->nqueues / EP_GDA_QUEUES_PER_THREAD, started = 0;
	pthread_t thread[EP_GDA_THREADS - 1];

	pthread_mutex_init(&work.lock, NULL);
	while (started < EP_GDA_THREADS - 1 && started < n &&
	       ep_thread_start(&thread[started], ep_gda_work_some, &work) == 0) {
		started++;
	}
	ep_gda_work_some(&work);
	for (uint32_t i = 0; i < started; i++) {
		pthread_join(thread[i], NULL);
	}
	pthread_mutex_destroy(&work.lock);
	return !work.failed;
}

/* ---- agreement ---- */

/* Refuses what no NIC of the other end can have: memory is indexed and shifted by it. */
static ncclResult_t ep_gda_end_check(const struct ep_gda_handshake *handshake, int rank)
{
	static const char next[] = "do all ranks use the same library?";

	if (handshake->nnics > EP_GDA_MAX_NICS) {
		return ep_fail(ncclInvalidUsage, "%s: rank %d lists %u NICs, the limit is %d; %s",
			       ep_gda_what, rank, handshake->nnics, EP_GDA_MAX_NICS, next);
	}
	for (uint32_t i = 0; i < handshake->nnics; i++) {
		const struct ep_nic_end *end = &handshake->end[i];

		if (!memchr(end->name, '\0', sizeof(end->name))) {
			return ep_fail(ncclInvalidUsage,
				       "%s: rank %d gives NIC %u a name of more than %zu bytes; %s",
				       ep_gda_what, rank, i, sizeof(end->name) - 1, next);
		}
		if (end->mtu < IBV_MTU_256 || end->mtu > IBV_MTU_4096 || end->roce > 2) {
			return ep_fail(ncclInvalidUsage,
				       "%s: rank %d gives %s MTU code %u (possible are %d..%d) and "
				       "RoCE version %u (0..2); %s",
				       ep_gda_what, rank, end->name, end->mtu, IBV_MTU_256,
				       IBV_MTU_4096, end->roce, next);
		}
	}
	return ncclSuccess;
}

static ncclResult_t ep_gda_handshake_check(const struct ep_gda_handshake *all, int n)
{
	for (int r = 0; r < n; r++) {
		if (all[r].queues != all[0].queues) {
			return ep_fail(
				ncclInvalidUsage,
				"%s: rank %d asks for %u queues per peer, rank 0 for %u: set "
				"the same on all ranks",
				ep_gda_what, r, all[r].queues, all[0].queues);
		}
		EP_CHECK(ep_gda_end_check(&all[r], r));
	}
	return ncclSuccess;
}

/* ---- the exchange ---- */

/*
 * Of two ranks one gets what the other can beyond the standard, and answers with what both can.
 * Returns whether this rank does: each does so for half of its peers.
 */
static bool ep_gda_answers(const struct ep_gda_queue *queue)
{
	int rank = queue->gda->rank;

	return (rank < queue->peer) == ((rank + queue->peer) % 2 == 1);
}

static bool ep_gda_connect_one(struct ep_gda_queue *queue, const struct ep_gda_handshake *all,
			       struct ep_reason *why)
{
	const struct ep_gda_handshake *peer = &all[queue->peer];
	const struct ep_nic_end *end;
	struct ep_reason inner = { "" };

	if (!queue->remote_qpn || !peer->nnics) {
		return ep_reason_set(why, "rank %d (%s) does not connect with this rank",
				     queue->peer, queue->gda->host[queue->peer]);
	}
	queue->remote_nic = (int)(queue->index % peer->nnics);
	end = &peer->end[queue->remote_nic];
	queue->mtu = (uint32_t)ep_min_u64(queue->nic->base.end.mtu, end->mtu);
	queue->atomics = queue->nic->base.atomics;
	queue->ece_agreed = !ep_gda_answers(queue);
	if (!queue->ece_agreed) {
		queue->ece =
			ep_rc_ece_received(&queue->nic->ece, &peer->ece[queue->remote_nic]).options;
	}
	if (ep_nic_path_check(&queue->nic->base.end, end, &inner) &&
	    ep_gda_queue_connect(queue, end, &inner)) {
		return true;
	}
	return ep_reason_set(why, "%s:%d with rank %d (%s) %s:%u: %.200s", queue->nic->base.name,
			     queue->nic->base.port, queue->peer, queue->gda->host[queue->peer],
			     end->name, end->port, inner.text);
}

static bool ep_gda_connect_first(struct ep_gda_queue *queue, void *arg, struct ep_reason *why)
{
	return !ep_gda_answers(queue) || ep_gda_connect_one(queue, arg, why);
}

static bool ep_gda_connect_second(struct ep_gda_queue *queue, void *arg, struct ep_reason *why)
{
	return ep_gda_answers(queue) || ep_gda_connect_one(queue, arg, why);
}

/* (the peer skips the NIC's own word, which makes long runs of those that both have) */
static uint32_t ep_gda_put_ece(const struct ep_gda_queue *queue)
{
	return ep_gda_answers(queue) ? queue->ece : queue->nic->ece.options;
}

static void ep_gda_get_ece(struct ep_gda_queue *queue, uint32_t word)
{
	if (!ep_gda_answers(queue)) {
		queue->ece = word;
	}
}

static uint32_t ep_gda_put_qpn(const struct ep_gda_queue *queue)
{
	return queue->qpn;
}

static void ep_gda_get_qpn(struct ep_gda_queue *queue, uint32_t qpn)
{
	queue->remote_qpn = qpn;
}

#define EP_GDA_LIST_TIER 0x3u
#define EP_GDA_LIST_ATOMICS 0x4u

static uint32_t ep_gda_put_order(const struct ep_gda_queue *queue)
{
	return queue->tier | (queue->atomics ? EP_GDA_LIST_ATOMICS : 0);
}

/*
 * It is the responder that places data out of order, and the requester that holds atomics back: a
 * connection is as weak as the weaker end. A requester that itself is in order holds nothing back,
 * whatever its responder does, and fences atomics only against what fetches: signals have to be
 * writes then, behind the strongest fence.
 */
static void ep_gda_get_order(struct ep_gda_queue *queue, uint32_t word)
{
	uint32_t theirs = (uint32_t)ep_min_u64(word & EP_GDA_LIST_TIER, EP_MLX5_TIER_OOO_ALL);

	if (theirs != queue->tier) {
		EP_INFO(EP_LOG_NET,
			"RDMA with rank %d (%s), queue %u: data is placed in tier %u here, in tier "
			"%u there",
			queue->peer, queue->gda->host[queue->peer], queue->index, queue->tier,
			theirs);
		queue->atomics = queue->atomics && queue->tier != EP_MLX5_TIER_IBTA;
		queue->tier = queue->tier == EP_MLX5_TIER_IBTA
				      ? EP_MLX5_TIER_OOO_ALL
				      : (uint32_t)ep_max_u64(queue->tier, theirs);
	}
	queue->atomics = queue->atomics && word & EP_GDA_LIST_ATOMICS;
}

/* ---- lists of all queues ---- */

/* Lists that this rank sends and receives, in the order of g->queue. */
struct ep_gda_lists {
	struct ep_gda *g; /* NULL: no queues */
	struct ep_boot *boot;
	const struct ep_gda_handshake *handshake; /* of all ranks */
	uint32_t queues;                          /* per peer */
	uint32_t *size, *below; /* [nranks] by node: its ranks, those of them before this rank */
	unsigned char *text;    /* this rank's list */
};

static bool ep_gda_lists_open(struct ep_gda_lists *lists, struct ep_gda *g, struct ep_boot *boot,
			      uint32_t queues)
{
	size_t n = (size_t)boot->nranks;

	*lists = (struct ep_gda_lists){ .g = g, .boot = boot, .queues = queues };
	lists->size = calloc(n, sizeof(*lists->size));
	lists->below = calloc(n, sizeof(*lists->below));
	lists->text = malloc(ep_max_u64(EP_GDA_RUNS_BYTES(g ? g->nqueues : 0), 1));
	return lists->size && lists->below && lists->text;
}

static void ep_gda_lists_close(struct ep_gda_lists *lists)
{
	free(lists->size);
	free(lists->below);
	free(lists->text);
}

/* A node goes by the number of its first rank. */
static uint32_t ep_gda_node(const struct ep_gda *g)
{
	uint32_t r = 0;

	while (g && g->remote[r]) {
		r++;
	}
	return r;
}

/* Finds the node of each rank: all ranks find the same, and whether it is what they meant themselves. */
static ncclResult_t ep_gda_lists_nodes(struct ep_gda_lists *lists, ncclResult_t *mine)
{
	const struct ep_gda_handshake *own = &lists->handshake[lists->boot->rank];

	for (int r = 0; r < lists->boot->nranks; r++) {
		uint32_t node = lists->handshake[r].node;

		if (node > (uint32_t)r || lists->handshake[node].node != node) {
			return ep_fail(
				ncclInvalidUsage,
				"%s: the node of rank %d begins with rank %u by its own list, which "
				"has another one; do all ranks use the same library?",
				ep_gda_what, r, node);
		}
		lists->size[node]++;
		lists->below[node] += r < lists->boot->rank;
		if (*mine == ncclSuccess &&
		    (lists->g && lists->g->remote[r]) != (node != own->node)) {
			*mine = ep_fail(ncclInvalidUsage,
					"%s: ranks %d and %d do not agree whether they are of one "
					"node",
					ep_gda_what, lists->boot->rank, r);
		}
	}
	return ncclSuccess;
}

/* Of each peer's `queues`, those that a rank with `nnics` NICs has on NIC n. */
static uint32_t ep_gda_share(uint32_t queues, uint32_t nnics, uint32_t n)
{
	return queues / nnics + (n < queues % nnics);
}

static uint32_t ep_gda_write_list(const struct ep_gda *g, unsigned char *text, bool ascending,
				  uint32_t (*put)(const struct ep_gda_queue *queue))
{
	struct ep_gda_writer w;

	ep_gda_runs_begin(&w, text, ascending);
	for (int n = 0; n < g->nnics; n++) {
		const struct ep_gda_nic *nic = &g->nic[n];

		for (uint32_t i = 0; i < nic->queues; i++) {
			ep_gda_runs_put(&w, put(&g->queue[nic->first + i]));
		}
		ep_gda_runs_end(&w);
	}
	return (uint32_t)(w.at - text);
}

/* The queue with a peer; `seat` is the peer's place among the remote ones. */
static struct ep_gda_queue *ep_gda_queue_at(struct ep_gda *g, uint32_t seat, uint32_t index)
{
	uint32_t nnics = (uint32_t)g->nnics, n = index % nnics;

	return &g->queue[g->nic[n].first + seat * ep_gda_share(g->queues, nnics, n) +
			 index / nnics];
}

/*
 * Reads in a peer's list the words for the queues with this rank; the peer's queues of a NIC are in
 * the order of its own peers. False: the list is not as long as it should be.
 */
static bool ep_gda_read_list(const struct ep_gda_lists *lists, int peer, uint32_t seat,
			     struct ep_gda_reader *list,
			     void (*get)(struct ep_gda_queue *queue, uint32_t word))
{
	uint32_t node = lists->handshake[peer].node, nnics = lists->handshake[peer].nnics;
	uint32_t peers = (uint32_t)lists->boot->nranks - lists->size[node];
	uint32_t own = (uint32_t)lists->boot->rank - lists->below[node];

	for (uint32_t n = 0; n < nnics; n++) {
		uint32_t share = ep_gda_share(lists->queues, nnics, n), from = own * share;
		uint32_t at = 0, word, count;

		ep_gda_runs_again(list);
		for (; at < peers * share; at += count) {
			if (!ep_gda_runs_next(list, &word, &count) || count > peers * share - at) {
				return false;
			}
			for (uint32_t i = at; i < at + count; i++) {
				if (i < from || i >= from + share) {
					continue;
				}
				get(ep_gda_queue_at(lists->g, seat, n + nnics * (i - from)),
				    list->ascending ? word + (i - at) : word);
			}
		}
	}
	return list->at == list->end;
}

/* Exchanges a word with the other end of each queue. */
static ncclResult_t ep_gda_exchange(struct ep_gda_lists *lists, bool ascending,
				    uint32_t (*put)(const struct ep_gda_queue *queuehe_queue),
				    void (*get)(struct ep_gda_queue *queuehe_queue, uint32_t word),
				    ncclResult_t *mine)
{
	uint32_t limit = EP_GDA_RUNS_BYTES((uint32_t)lists->boot->nranks * lists->queues);
	uint32_t bytes = lists->g ? ep_gda_write_list(lists->g, lists->text, ascending, put) : 0,
		 seat = 0;
	struct ep_boot_texts all;

	EP_CHECK(ep_boot_texts(lists->boot, lists->text, bytes, limit, &all, ep_gda_what, mine));
	for (int p = 0; lists->g && *mine == ncclSuccess && p < lists->boot->nranks; p++) {
		struct ep_gda_reader list;

		if (!lists->g->remote[p]) {
			continue;
		}
		ep_gda_runs_open(&list, all.text + (size_t)p * all.stride, all.bytes[p], ascending);
		if (!ep_gda_read_list(lists, p, seat++, &list, get)) {
			*mine = ep_fail(ncclRemoteError,
					"%s: rank %d (%s) lists other queues than it should "
					"have; do all ranks use the same library?",
					ep_gda_what, p, lists->g->host[p]);
		}
	}
	free(all.text);
	return ncclSuccess;
}

/* ---- all of it ---- */

static void ep_gda_handshake_fill(const struct ep_gda *g, uint32_t queues, ncclResult_t mine,
				  struct ep_gda_handshake *handshake)
{
	memset(handshake, 0, sizeof(*handshake));
	handshake->verdict = ep_verdict_make(mine);
	handshake->queues = queues;
	handshake->node = ep_gda_node(g);
	handshake->nnics = g ? (uint32_t)g->nnics : 0;
	for (uint32_t i = 0; i < handshake->nnics; i++) {
		handshake->end[i] = g->nic[i].base.end;
		handshake->end[i].psn = g->psn;
		handshake->ece[i] = g->nic[i].ece;
	}
}

ncclResult_t ep_gda_connect(struct ep_gda *g, struct ep_boot *boot, uint32_t queues,
			    ncclResult_t *mine)
{
	struct ep_gda_handshake handshake, *all = calloc((size_t)boot->nranks, sizeof(*all));
	struct ep_reason why = { "" };
	struct ep_gda_lists lists;
	ncclResult_t result;

	if ((!ep_gda_lists_open(&lists, g, boot, queues) || !all) && *mine == ncclSuccess) {
		*mine = ep_fail(ncclSystemError, "%s: out of host memory", ep_gda_what);
	}
	ep_gda_handshake_fill(g, queues, *mine, &handshake);
	EP_CHECK_GOTO(ep_boot_verdicts(boot, &handshake, all, sizeof(handshake), ep_gda_what), out);
	lists.handshake = all;
	EP_CHECK_GOTO(ep_gda_handshake_check(all, boot->nranks), out);
	EP_CHECK_GOTO(ep_gda_lists_nodes(&lists, mine), out);
	EP_CHECK_GOTO(ep_gda_exchange(&lists, true, ep_gda_put_qpn, ep_gda_get_qpn, mine), out);
	if (g && *mine == ncclSuccess && !ep_gda_each(g, ep_gda_connect_first, all, &why)) {
		*mine = ep_fail(ncclSystemError, "%s: %s", ep_gda_what, why.text);
	}
	EP_CHECK_GOTO(ep_gda_exchange(&lists, false, ep_gda_put_ece, ep_gda_get_ece, mine), out);
	if (g && *mine == ncclSuccess && !ep_gda_each(g, ep_gda_connect_second, all, &why)) {
		*mine = ep_fail(ncclSystemError, "%s: %s", ep_gda_what, why.text);
	}
	EP_CHECK_GOTO(ep_gda_exchange(&lists, false, ep_gda_put_order, ep_gda_get_order, mine),
		      out);
out:
	ep_gda_lists_close(&lists);
	free(all);
	return result;
}
