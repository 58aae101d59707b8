/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue pair may fail unseen: its completion lies in GPU memory, or none was written. NICs can be asked,
 * but a question (QUERY_QP) is a command to the firmware, of some hundred microseconds, for which it has to
 * fetch the context of a queue pair that may be busy. So it is asked only about queues with work that has not
 * completed a round after it was handed over, and again after two rounds, four and so on, as long as
 * nothing changes: the last work of a queue may ask for no completion.
 *
 * Positions are those of the NIC, modulo 2^16. A queue that moves faster than its positions come round in
 * a second may be taken to be late, which costs a question.
 */
#include "device/mlx5/wqe.h"
#include "gda/failure.h"
#include "gda/late.h"
#include "gda/queue_memory.h"

#define EP_GDA_READ_NS 50000000ull /* bound for the copy of the table from the GPU */
#define EP_GDA_PATIENCE 6u /* logarithm of the longest time between two questions, in rounds */

/* The table of queues as kernels have left it. False: the GPU does not give it, or has no queues any more. */
static bool ep_gda_table_read(struct ep_gda *g)
{
	if (ep_context_ended(&g->context)) {
		return false;
	}
	if (cudaMemcpyAsync(g->shadow, g->qps, ep_gda_table_bytes(g), cudaMemcpyDeviceToHost,
			    g->stream) != cudaSuccess) {
		(void)cudaGetLastError();
		return false;
	}
	return ep_gda_synchronize(g, EP_GDA_READ_NS);
}

/* Behind the last WQE that was handed over. */
static uint16_t ep_gda_handed(const struct ep_gda_queue *queue)
{
	if (ep_gda_handover_index(queue->gda->mode)) {
		return (uint16_t)__atomic_load_n(queue->word, __ATOMIC_ACQUIRE);
	}
	return queue->dbr ? (uint16_t)ep_be32(__atomic_load_n(&queue->dbr->send, __ATOMIC_ACQUIRE))
			  : (uint16_t)queue->shadow->rung;
}

/* Whether what was handed over a round ago has not completed, or has failed. */
static bool ep_gda_late(struct ep_gda_queue *queue, int flags)
{
	uint16_t done = 0, left;
	struct ep_mlx5_cqe cqe;

	if (!queue->cqe && !(flags & EP_GDA_INSPECT_GPU)) {
		done = (uint16_t)queue->shadow->done; /* as far as a kernel has looked */
	} else if (!ep_gda_cqe_read(queue, &cqe)) {
		return true;
	} else if (cqe.op_own >> 4 == EP_MLX5_CQE_REQ) {
		done = (uint16_t)((cqe.wqe_counter >> 8 | cqe.wqe_counter << 8) + 1);
	} else if (cqe.op_own >> 4 != EP_MLX5_CQE_INVALID) {
		return true;
	}
	left = (uint16_t)(queue->handed - done);
	return left && left <= queue->gda->depth;
}

static void ep_gda_late_mark_one(struct ep_gda_queue *queue, bool known, uint64_t now)
{
	bool over = __atomic_load_n(&queue->failed, __ATOMIC_RELAXED) &&
		    !__atomic_load_n(&queue->vague, __ATOMIC_RELAXED);
	bool late = !known || ep_gda_late(queue, EP_GDA_INSPECT_MEMORY);

	if (over || !late) {
		queue->due = false;
		queue->patience = 0;
	} else if (!queue->patience || now >= queue->ask_at) {
		queue->due = true;
		queue->ask_at = now + (EP_GDA_ROUND_NS << queue->patience);
		queue->patience += queue->patience < EP_GDA_PATIENCE;
	}
	if (known) {
		queue->handed = ep_gda_handed(queue);
	}
}

void ep_gda_late_mark(struct ep_gda *g, uint64_t now)
{
	bool known = g->mode != EP_GDA_GPU || ep_gda_table_read(g);

	for (uint32_t i = 0; i < g->nqueues; i++) {
		ep_gda_late_mark_one(&g->queue[i], known, now);
	}
}

void ep_gda_late_ask(struct ep_gda *g)
{
	int flags = EP_GDA_INSPECT_NIC | (g->mode == EP_GDA_GPU ? EP_GDA_INSPECT_GPU : 0);
	uint64_t start = ep_now_ns(), now = start;

	for (uint32_t i = 0; i < g->nqueues && now - start < EP_GDA_ASK_NS; i++) {
		struct ep_gda_queue *q = &g->queue[g->next_query++ % g->nqueues];

		if (!q->due) {
			continue;
		}
		q->due = false;
		now = ep_now_ns();
		/* A completion that no kernel has looked at is found without a question. */
		if (g->mode == EP_GDA_GPU && !ep_gda_late(q, flags)) {
			q->patience = 0;
			continue;
		}
		ep_gda_inspect(q, flags);
	}
}
