/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connects the queue pairs of all ranks: queue i of this rank to a peer with queue i of the peer to
 * this rank. Queue i is on NIC i modulo the number of NICs, on either side.
 *
 * A rank's list has a word for each queue, in the order of peers, and all ranks receive all lists.
 * The place of a word in a list says which queue it belongs to.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/cuda.h"
#include "core/log.h"
#include "gda/state.h"

#define EP_GDA_THREADS 4
#define EP_GDA_QUEUES_PER_THREAD 16

struct handshake {
	struct ep_verdict verdict;
	uint32_t queues;
	uint32_t node; /* its first rank */
	uint32_t nnics;
	struct ep_nic_end end[EP_GDA_MAX_NICS];
	struct ep_ece ece[EP_GDA_MAX_NICS];
};

_Static_assert(sizeof(struct handshake) <= EP_BOOT_BYTES, "handshake");

static const char what[] = "connecting queue pairs";

/* ---- many queues at once ---- */

struct work {
	struct ep_gda *gda;
	bool (*fn)(struct ep_gda_queue *queue, void *arg, struct ep_reason *why);
	void *arg;
	uint32_t next;
	uint32_t failed;
	pthread_mutex_t lock;
	struct ep_reason *why; /* the first failure's */
};

/* Takes queues in turn until all are done or one has failed. */
static void *work_some(void *arg)
{
	struct work *w = arg;

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
	struct work work = { .gda = g, .fn = fn, .arg = arg, .why = why };
	uint32_t n = g->nqueues / EP_GDA_QUEUES_PER_THREAD, started = 0;
	pthread_t thread[EP_GDA_THREADS - 1];

	pthread_mutex_init(&work.lock, NULL);
	while (started < EP_GDA_THREADS - 1 && started < n &&
	       ep_thread_start(&thread[started], work_some, &work) == 0) {
		started++;
	}
	work_some(&work);
	for (uint32_t i = 0; i < started; i++) {
		pthread_join(thread[i], NULL);
	}
	pthread_mutex_destroy(&work.lock);
	return !work.failed;
}

/* ---- agreement ---- */

/* Returns an error for values that no NIC of a peer can have: they index and shift memory here. */
static ncclResult_t end_check(const struct handshake *handshake, int rank)
{
	static const char next[] = "do all ranks use the same library?";

	if (handshake->nnics > EP_GDA_MAX_NICS) {
		return ep_fail(ncclInvalidUsage, "%s: rank %d lists %u NICs, the limit is %d; %s",
			       what, rank, handshake->nnics, EP_GDA_MAX_NICS, next);
	}
	for (uint32_t i = 0; i < handshake->nnics; i++) {
		const struct ep_nic_end *end = &handshake->end[i];

		if (!memchr(end->name, '\0', sizeof(end->name))) {
			return ep_fail(ncclInvalidUsage,
				       "%s: rank %d gives NIC %u a name of more than %zu bytes; %s",
				       what, rank, i, sizeof(end->name) - 1, next);
		}
		if (end->mtu < IBV_MTU_256 || end->mtu > IBV_MTU_4096 || end->roce > 2) {
			return ep_fail(ncclInvalidUsage,
				       "%s: rank %d gives %s MTU code %u (possible are %d..%d) and "
				       "RoCE version %u (0..2); %s",
				       what, rank, end->name, end->mtu, IBV_MTU_256, IBV_MTU_4096,
				       end->roce, next);
		}
	}
	return ncclSuccess;
}

/* Returns an error if ranks ask for different numbers of queues, or send impossible values. */
static ncclResult_t handshake_check(const struct handshake *all, int n)
{
	for (int r = 0; r < n; r++) {
		if (all[r].queues != all[0].queues) {
			return ep_fail(
				ncclInvalidUsage,
				"%s: rank %d asks for %u queues per peer, rank 0 for %u: set "
				"the same on all ranks",
				what, r, all[r].queues, all[0].queues);
		}
		EP_CHECK(end_check(&all[r], r));
	}
	return ncclSuccess;
}

/* ---- the exchange ---- */

/*
 * Returns whether this rank answers its peer. Of two ranks one receives the other's extensions
 * (ECE) and answers with those of both. Each rank answers half of its peers.
 */
static bool answers(const struct ep_gda_queue *queue)
{
	int rank = queue->gda->rank;

	return (rank < queue->peer) == ((rank + queue->peer) % 2 == 1);
}

/* Connects a queue with its peer. Returns false, with *why, on failure. */
static bool connect_one(struct ep_gda_queue *queue, const struct handshake *all,
			struct ep_reason *why)
{
	const struct handshake *peer = &all[queue->peer];
	const struct ep_nic_end *end;
	struct ep_reason inner = { "" };

	if (!queue->remote_qpn || !peer->nnics) {
		return ep_reason_set(why, "rank %d (%s) has no queue pair for this rank",
				     queue->peer, queue->gda->host[queue->peer]);
	}
	queue->remote_nic = (int)(queue->index % peer->nnics);
	end = &peer->end[queue->remote_nic];
	queue->mtu = (uint32_t)ep_min_u64(queue->nic->base.end.mtu, end->mtu);
	queue->atomics = queue->nic->base.atomics;
	queue->ece_agreed = !answers(queue);
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

static bool connect_first(struct ep_gda_queue *queue, void *arg, struct ep_reason *why)
{
	return !answers(queue) || connect_one(queue, arg, why);
}

static bool connect_second(struct ep_gda_queue *queue, void *arg, struct ep_reason *why)
{
	return answers(queue) || connect_one(queue, arg, why);
}

static uint32_t put_ece(const struct ep_gda_queue *queue)
{
	return answers(queue) ? queue->ece : queue->nic->ece.options;
}

static void get_ece(struct ep_gda_queue *queue, uint32_t word)
{
	if (!answers(queue)) {
		queue->ece = word;
	}
}

static uint32_t put_qpn(const struct ep_gda_queue *queue)
{
	return queue->qpn;
}

static void get_qpn(struct ep_gda_queue *queue, uint32_t qpn)
{
	queue->remote_qpn = qpn;
}

#define EP_GDA_LIST_TIER 0x3u
#define EP_GDA_LIST_ATOMICS 0x4u

static uint32_t put_order(const struct ep_gda_queue *queue)
{
	return queue->tier | (queue->atomics ? EP_GDA_LIST_ATOMICS : 0);
}

/*
 * Reduces the queue's order to the weaker one of both ends. The responder places data out of order,
 * and the requester holds atomics back. A requester whose own order is strict holds no atomics
 * back, whatever its responder does, and its fence covers only what fetches. Signals are then
 * writes behind the strongest fence.
 */
static void get_order(struct ep_gda_queue *queue, uint32_t word)
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

#define EP_GDA_WORDS (EP_BOOT_BYTES / sizeof(uint32_t)) /* of a list, that one exchange brings */

/* How long the lists are, and where this rank's words are in those of its peers. */
struct lists {
	struct ep_gda *g; /* NULL: no queues */
	struct ep_boot *boot;
	const struct handshake *handshake; /* of all ranks */
	uint32_t queues;                   /* per peer */
	uint32_t *size, *below; /* [nranks] by node: its ranks, those of them before this rank */
	uint32_t longest;       /* words in the longest list of any rank */
};

/* Returns the number of this rank's node: that of its first rank. */
static uint32_t gda_node(const struct ep_gda *g)
{
	uint32_t r = 0;

	while (g && g->remote[r]) {
		r++;
	}
	return r;
}

/*
 * Finds the node of each rank, and so the length of the lists. All ranks find the same. *mine
 * becomes an error if this rank's own view of nodes differs.
 */
static ncclResult_t lists_nodes(struct lists *lists, ncclResult_t *mine)
{
	const struct handshake *own = &lists->handshake[lists->boot->rank];
	uint32_t nranks = (uint32_t)lists->boot->nranks;

	for (int r = 0; r < lists->boot->nranks; r++) {
		uint32_t node = lists->handshake[r].node;

		if (node > (uint32_t)r || lists->handshake[node].node != node) {
			return ep_fail(
				ncclInvalidUsage,
				"%s: rank %d puts itself on the node of rank %u, which is on another "
				"one; do all ranks use the same library?",
				what, r, node);
		}
		lists->size[node]++;
		lists->below[node] += r < lists->boot->rank;
		if (*mine == ncclSuccess &&
		    (lists->g && lists->g->remote[r]) != (node != own->node)) {
			*mine = ep_fail(ncclInvalidUsage,
					"%s: ranks %d and %d disagree whether they are on one "
					"node",
					what, lists->boot->rank, r);
		}
	}
	for (uint32_t r = 0; r < nranks; r++) {
		if (lists->size[r]) {
			lists->longest = (uint32_t)ep_max_u64(
				lists->longest, (nranks - lists->size[r]) * lists->queues);
		}
	}
	return ncclSuccess;
}

/* Returns the queue that a word of this rank's own list belongs to. */
static struct ep_gda_queue *queue_at(struct ep_gda *g, uint32_t word)
{
	uint32_t seat = word / g->queues, index = word % g->queues;
	uint32_t nnics = (uint32_t)g->nnics, n = index % nnics;
	uint32_t share = g->queues / nnics + (n < g->queues % nnics);

	return &g->queue[g->nic[n].first + seat * share + index / nnics];
}

/* Exchanges a word with the other end of each queue. */
static ncclResult_t exchange(struct lists *lists, uint32_t (*put)(const struct ep_gda_queue *queue),
			     void (*get)(struct ep_gda_queue *queue, uint32_t word),
			     const ncclResult_t *mine)
{
	struct ep_gda *g = *mine == ncclSuccess ? lists->g : NULL;
	const uint32_t *all = lists->boot->all;

	for (uint32_t at = 0; at < lists->longest; at += EP_GDA_WORDS) {
		uint32_t words = (uint32_t)ep_min_u64(lists->longest - at, EP_GDA_WORDS), seat = 0;
		uint32_t own[EP_GDA_WORDS] = { 0 };

		for (uint32_t i = 0; g && i < words && at + i < g->nqueues; i++) {
			own[i] = put(queue_at(g, at + i));
		}
		EP_CHECK(ep_boot_allgather(lists->boot, own, lists->boot->all, words * sizeof(*own),
					   what));
		for (uint32_t p = 0; g && p < (uint32_t)g->nranks; p++) {
			uint32_t node = lists->handshake[p].node;
			uint32_t from = ((uint32_t)g->rank - lists->below[node]) * g->queues;

			if (!g->remote[p]) {
				continue;
			}
			for (uint32_t i = 0; i < g->queues; i++) {
				if (from + i >= at && from + i < at + words) {
					get(queue_at(g, seat * g->queues + i),
					    all[p * words + from + i - at]);
				}
			}
			seat++;
		}
	}
	return ncclSuccess;
}

/* ---- all of it ---- */

static void handshake_fill(const struct ep_gda *g, uint32_t queues, ncclResult_t mine,
			   struct handshake *handshake)
{
	memset(handshake, 0, sizeof(*handshake));
	handshake->verdict = ep_verdict_make(mine);
	handshake->queues = queues;
	handshake->node = gda_node(g);
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
	size_t n = (size_t)boot->nranks;
	struct handshake handshake, *all = calloc(n, sizeof(*all));
	struct lists lists = { .g = g, .boot = boot, .handshake = all, .queues = queues };
	struct ep_reason why = { "" };
	ncclResult_t result;

	lists.size = calloc(n, sizeof(*lists.size));
	lists.below = calloc(n, sizeof(*lists.below));
	if ((!lists.size || !lists.below || !all) && *mine == ncclSuccess) {
		*mine = ep_fail(ncclSystemError, "%s: out of host memory", what);
	}
	handshake_fill(g, queues, *mine, &handshake);
	EP_CHECK_GOTO(ep_boot_verdicts(boot, &handshake, all, sizeof(handshake), what), out);
	EP_CHECK_GOTO(handshake_check(all, boot->nranks), out);
	EP_CHECK_GOTO(lists_nodes(&lists, mine), out);
	EP_CHECK_GOTO(exchange(&lists, put_qpn, get_qpn, mine), out);
	if (g && *mine == ncclSuccess && !ep_gda_each(g, connect_first, all, &why)) {
		*mine = ep_fail(ncclSystemError, "%s: %s", what, why.text);
	}
	EP_CHECK_GOTO(exchange(&lists, put_ece, get_ece, mine), out);
	if (g && *mine == ncclSuccess && !ep_gda_each(g, connect_second, all, &why)) {
		*mine = ep_fail(ncclSystemError, "%s: %s", what, why.text);
	}
	EP_CHECK_GOTO(exchange(&lists, put_order, get_order, mine), out);
out:
	free(lists.below);
	free(lists.size);
	free(all);
	return result;
}
