/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ranks tell each other, so that queue i of this rank to a peer is connected with queue i of
 * the peer to this rank. Queue i is on NIC i modulo their number, of either side.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/idle.h"
#include "core/log.h"
#include "gda/connect.h"

#define EP_GDA_THREADS 4
#define EP_GDA_QUEUES_PER_THREAD 16
#define EP_GDA_WORDS (EP_BOOT_BYTES / 4) /* of a round */

struct ep_gda_hello {
	struct ep_verdict verdict;
	uint32_t queues;
	uint32_t nnics;
	struct ep_nic_end end[EP_GDA_MAX_NICS];
};

_Static_assert(sizeof(struct ep_gda_hello) <= EP_BOOT_BYTES, "ep_gda_hello");

static const char ep_gda_what[] = "connecting queue pairs";

/* ---- many queues at once ---- */

struct ep_gda_work {
	struct ep_gda *gda;
	bool (*fn)(struct ep_gda_queue *q, void *arg, struct ep_reason *why);
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
		 bool (*fn)(struct ep_gda_queue *q, void *arg, struct ep_reason *why), void *arg,
		 struct ep_reason *why)
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

/* What cannot be, whichever NIC the other end has: memory is indexed and shifted by it. */
static ncclResult_t ep_gda_end_check(const struct ep_gda_hello *hello, int rank)
{
	static const char next[] = "do all ranks use the same library?";

	if (hello->nnics > EP_GDA_MAX_NICS) {
		return ep_fail(ncclInvalidUsage,
			       "%s: rank %d speaks of %u NICs, the limit is %d; %s", ep_gda_what,
			       rank, hello->nnics, EP_GDA_MAX_NICS, next);
	}
	for (uint32_t i = 0; i < hello->nnics; i++) {
		const struct ep_nic_end *end = &hello->end[i];

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

static ncclResult_t ep_gda_hello_check(const struct ep_gda_hello *all, int n)
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

static bool ep_gda_connect_one(struct ep_gda_queue *q, void *arg, struct ep_reason *why)
{
	const struct ep_gda_hello *all = arg;
	const struct ep_gda_hello *peer = &all[q->peer];
	const struct ep_nic_end *end;
	struct ep_reason inner = { "" };

	if (!q->remote_qpn || !peer->nnics) {
		return ep_reason_set(why, "rank %d (%s) does not connect with this rank", q->peer,
				     q->gda->host[q->peer]);
	}
	q->remote_nic = (int)(q->index % peer->nnics);
	end = &peer->end[q->remote_nic];
	q->mtu = (uint32_t)ep_min_u64(q->nic->base.end.mtu, end->mtu);
	q->atomics = q->nic->base.atomics;
	if (ep_nic_path_check(&q->nic->base.end, end, &inner) &&
	    ep_gda_queue_connect(q, end, &inner)) {
		return true;
	}
	return ep_reason_set(why, "%s:%d with rank %d (%s) %s:%u: %.200s", q->nic->base.name,
			     q->nic->base.port, q->peer, q->gda->host[q->peer], end->name,
			     end->port, inner.text);
}

/* Memory of an exchange of a word per queue, made before the first rank waits for another. */
struct ep_gda_words {
	uint32_t queues;
	uint32_t *mine; /* [nranks][queues] */
	uint32_t *all;  /* [nranks][EP_GDA_WORDS], a round */
};

/* Tells the other end of each queue a word and hears its, in rounds. */
static ncclResult_t ep_gda_exchange(struct ep_gda *g, struct ep_boot *boot, struct ep_gda_words *w,
				    uint32_t (*say)(const struct ep_gda_queue *q),
				    void (*hear)(struct ep_gda_queue *q, uint32_t word))
{
	uint32_t total = (uint32_t)boot->nranks * w->queues;

	for (uint32_t i = 0; g && i < g->nqueues; i++) {
		const struct ep_gda_queue *q = &g->queue[i];

		w->mine[(uint32_t)q->peer * w->queues + q->index] = say(q);
	}
	for (uint32_t at = 0; at < total; at += EP_GDA_WORDS) {
		uint32_t n = (uint32_t)ep_min_u64(total - at, EP_GDA_WORDS);

		EP_CHECK(ep_boot_allgather(boot, w->mine + at, w->all, 4 * n, ep_gda_what));
		for (uint32_t i = 0; g && i < g->nqueues; i++) {
			struct ep_gda_queue *q = &g->queue[i];
			uint32_t slot = (uint32_t)g->rank * w->queues + q->index;

			if (slot >= at && slot < at + n) {
				hear(q, w->all[(uint32_t)q->peer * n + slot - at]);
			}
		}
	}
	return ncclSuccess;
}

static uint32_t ep_gda_say_qpn(const struct ep_gda_queue *q)
{
	return q->qpn;
}

static void ep_gda_hear_qpn(struct ep_gda_queue *q, uint32_t qpn)
{
	q->remote_qpn = qpn;
}

#define EP_GDA_SAY_TIER 0x3u
#define EP_GDA_SAY_ATOMICS 0x4u

static uint32_t ep_gda_say_order(const struct ep_gda_queue *q)
{
	return q->tier | (q->atomics ? EP_GDA_SAY_ATOMICS : 0);
}

/*
 * It is the responder that places data out of order, and the requester that holds atomics back: a
 * connection is as weak as the weaker end. A requester that itself is in order holds nothing back,
 * whatever its responder does, and fences atomics only against what fetches: signals have to be
 * writes then, behind the strongest fence.
 */
static void ep_gda_hear_order(struct ep_gda_queue *q, uint32_t word)
{
	uint32_t theirs = (uint32_t)ep_min_u64(word & EP_GDA_SAY_TIER, EP_MLX5_TIER_OOO_ALL);

	if (theirs != q->tier) {
		EP_INFO(EP_LOG_NET,
			"RDMA with rank %d (%s), queue %u: data is placed in tier %u here, in tier "
			"%u there",
			q->peer, q->gda->host[q->peer], q->index, q->tier, theirs);
		q->atomics = q->atomics && q->tier != EP_MLX5_TIER_IBTA;
		q->tier = q->tier == EP_MLX5_TIER_IBTA ? EP_MLX5_TIER_OOO_ALL
						       : (uint32_t)ep_max_u64(q->tier, theirs);
	}
	q->atomics = q->atomics && word & EP_GDA_SAY_ATOMICS;
}

static void ep_gda_greet(const struct ep_gda *g, uint32_t queues, ncclResult_t mine,
			 struct ep_gda_hello *hello)
{
	memset(hello, 0, sizeof(*hello));
	hello->verdict = ep_verdict_make(mine);
	hello->queues = queues;
	hello->nnics = g ? (uint32_t)g->nnics : 0;
	for (uint32_t i = 0; i < hello->nnics; i++) {
		hello->end[i] = g->nic[i].base.end;
		hello->end[i].psn = g->psn;
	}
}

ncclResult_t ep_gda_connect(struct ep_gda *g, struct ep_boot *boot, uint32_t queues,
			    ncclResult_t *mine)
{
	size_t n = (size_t)boot->nranks;
	struct ep_gda_words words = { .queues = queues,
				      .mine = calloc(ep_max_u64(n * queues, 1), 4),
				      .all = calloc(n * EP_GDA_WORDS, 4) };
	struct ep_gda_hello hello, *all = calloc(n, sizeof(*all));
	struct ep_reason why = { "" };
	ncclResult_t result;

	if ((!words.mine || !words.all || !all) && *mine == ncclSuccess) {
		*mine = ep_fail(ncclSystemError, "%s: out of host memory", ep_gda_what);
	}
	ep_gda_greet(g, queues, *mine, &hello);
	EP_CHECK_GOTO(ep_boot_allgather(boot, &hello, all, sizeof(hello), ep_gda_what), out);
	if (!all) {
		result = *mine;
		goto out;
	}
	EP_CHECK_GOTO(ep_verdict_check(boot, all, sizeof(hello), ep_gda_what), out);
	EP_CHECK_GOTO(ep_gda_hello_check(all, boot->nranks), out);
	EP_CHECK_GOTO(ep_gda_exchange(g, boot, &words, ep_gda_say_qpn, ep_gda_hear_qpn), out);
	if (g && !ep_gda_each(g, ep_gda_connect_one, all, &why)) {
		*mine = ep_fail(ncclSystemError, "%s: %s", ep_gda_what, why.text);
	}
	EP_CHECK_GOTO(ep_gda_exchange(g, boot, &words, ep_gda_say_order, ep_gda_hear_order), out);
out:
	free(all);
	free(words.all);
	free(words.mine);
	return result;
}
