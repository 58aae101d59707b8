/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread behind EP_MLX5_HANDOVER_INDEX: kernels write WQEs to queues in host memory and then
 * the index behind the last one. CPU_DB: the thread rings the doorbell. CPU_PROXY: it reads the
 * WQEs as commands, posts them by plain verbs, and writes completions where the NIC would.
 *
 * A kernel uses the slot of a WQE again once it has seen a completion at or behind it, as with a
 * NIC. Until then the WQE stays as it is, so that inline data is sent from there.
 */
#include <errno.h>
#include <string.h>
#include <time.h>
#include "core/cuda.h"
#include "device/mlx5/wqe.h"
#include "gda/state.h"

#define EP_GDA_BATCH 16

/* ---- waiting ---- */

/*
 * Sleeps for longer, the longer the thread has been idle; at first not at all. It does not call
 * sched_yield(): Linux 6.18 takes a whole slice from the caller, and four calls took 28 ms beside a
 * dozen threads that wake up often.
 */
static void gda_pause(uint64_t idle_ns)
{
	struct timespec nap = { 0, 20000 };

	if (idle_ns < 100000) {
		return;
	}
	if (idle_ns > 1000000000) {
		nap.tv_nsec = 1000000;
	} else if (idle_ns > 5000000) {
		nap.tv_nsec = 200000;
	}
	nanosleep(&nap, NULL);
}

/* ---- CPU_DB ---- */

static void store_fence(void)
{
#if defined(__x86_64__)
	__asm__ volatile("sfence" ::: "memory");
#elif defined(__aarch64__)
	__asm__ volatile("dsb st" ::: "memory");
#else
	__sync_synchronize();
#endif
}

/* Rings the queue's doorbell for all work below `next`. */
static void ring(struct ep_gda_queue *queue, uint64_t next)
{
	__atomic_store_n(&queue->dbr->send, ep_mlx5_dbr_value(next), __ATOMIC_RELEASE);
	store_fence();
	__atomic_store_n((uint64_t *)queue->nic->uar->reg_addr,
			 ep_mlx5_doorbell_value(next, queue->qpn), __ATOMIC_RELAXED);
	store_fence(); /* the register may be mapped write-combining */
	queue->posted = next;
}

/* ---- CPU_PROXY ---- */

/* Writes a completion as a NIC would write it, the last word last. */
static void complete(struct ep_gda_queue *queue, uint64_t index, uint8_t opcode, uint8_t wqe_op,
		     uint8_t syndrome, uint8_t vendor)
{
	const uint8_t bytes[4] = { (uint8_t)(index >> 8), (uint8_t)index, 0,
				   (uint8_t)(opcode << 4) };
	uint32_t word;

	queue->cqe->u.error.hw_syndrome = 0;
	queue->cqe->u.error.hw_syndrome_type = 0;
	queue->cqe->u.error.vendor_syndrome = vendor;
	queue->cqe->u.error.syndrome = syndrome;
	queue->cqe->opcode_qpn = ep_be32((uint32_t)wqe_op << 24 | queue->qpn);
	memcpy(&word, bytes, sizeof(word));
	__atomic_store_n((uint32_t *)((unsigned char *)queue->cqe + EP_MLX5_CQE_DONE_AT), word,
			 __ATOMIC_RELEASE);
}

/* Writes an error completion and reports the failure, the first time. */
static void proxy_fail(struct ep_gda_queue *queue, uint64_t index, uint8_t syndrome, uint8_t vendor,
		       const char *note)
{
	struct ep_gda_cause cause = { .status = EP_MLX5_ERR_CQE,
				      .syndrome = syndrome,
				      .vendor = vendor,
				      .index_known = true,
				      .index = (uint16_t)index };

	if (queue->broken) {
		return; /* flushed: the first cause stays */
	}
	queue->broken = true;
	/* Another thread may see the completion first, and reports it with the note. */
	__atomic_store_n(&queue->note, note, __ATOMIC_RELAXED);
	complete(queue, index, EP_MLX5_CQE_REQ_ERR, 0, syndrome, vendor);
	ep_gda_fail_queue(queue, &cause);
}

/* Fails a queue for a reason that the NIC does not know. The NIC stops what it has under way. */
static void proxy_refuse(struct ep_gda_queue *queue, const char *note)
{
	ep_gda_verbs_halt(queue); /* kernels rely on it once they see the error */
	proxy_fail(queue, queue->posted, EP_MLX5_SYND_LOCAL_QP_OP, 0, note);
}

/*
 * Ends a failed queue, of which the thread posts no more. Once the NIC has completed all of its
 * work, the rest is flushed, as an mlx5 NIC does by itself: kernels wait for that.
 */
static void proxy_end(struct ep_gda_queue *queue)
{
	bool halted = __atomic_load_n(&queue->halted, __ATOMIC_ACQUIRE);

	if (!queue->broken &&
	    (queue->posted == queue->completed || (queue->nic->cq_lost && halted))) {
		queue->broken = true;
		complete(queue, queue->posted, EP_MLX5_CQE_REQ_ERR, 0, EP_MLX5_SYND_FLUSHED, 0);
	}
}

static uint64_t be64(const uint32_t *w)
{
	return (uint64_t)ep_be32(w[0]) << 32 | ep_be32(w[1]);
}

/*
 * Fills in the local memory of a WQE: its data segment at word `at`, or the bytes that it carries.
 */
static void decode_local(const struct ep_gda_queue *queue, const struct ep_mlx5_wqe *wqe,
			 uint32_t at, struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	uint32_t count = ep_be32(wqe->w[at]);

	wr->sg_list = sge;
	wr->num_sge = 1;
	if (count & EP_MLX5_INLINE) {
		sge->addr = (uintptr_t)&wqe->w[at + 1];
		sge->length = count & ~EP_MLX5_INLINE;
		sge->lkey = queue->nic->queue_memory.mr->lkey;
	} else {
		sge->addr = be64(&wqe->w[at + 2]);
		sge->length = count;
		sge->lkey = ep_be32(wqe->w[at + 1]);
	}
}

/*
 * Returns whether the NIC shall report a work request even if the kernel does not ask for it. Only
 * completions give back room in the verbs queue, which may be smaller than the kernel's. One more
 * completion does kernels no harm.
 */
static bool must_signal(const struct ep_gda_queue *queue, uint64_t index)
{
	return !queue->atomics || (index + 1) % ep_max_u64(queue->max_wr / 4, 1) == 0;
}

/*
 * Returns whether a WRITE has to wait until all earlier work has completed. It announces earlier
 * WRITEs, where neither the order of placement nor an atomic does so, and the fence of verbs waits
 * for READs and atomics only.
 */
static bool must_wait(const struct ep_gda_queue *queue, uint64_t index)
{
	const struct ep_mlx5_wqe *wqe = &queue->sq[index & (queue->gda->depth - 1)];

	return (wqe->w[2] >> 24 & 0xe0) == EP_MLX5_FM_STRONG && index != queue->completed;
}

/* Turns a WQE into a work request. Returns NULL, or the reason why it cannot. */
static const char *decode(const struct ep_gda_queue *queue, uint64_t index, struct ibv_send_wr *wr,
			  struct ibv_sge *sge)
{
	const struct ep_mlx5_wqe *wqe = &queue->sq[index & (queue->gda->depth - 1)];
	uint32_t first = ep_be32(wqe->w[0]), second = ep_be32(wqe->w[1]), ds = second & 0x3f;
	uint32_t flags = wqe->w[2] >> 24;

	if ((first >> 8 & 0xffff) != (index & 0xffff) || second >> 8 != queue->qpn || !ds ||
	    ds > 4) {
		return "a kernel rang for a work request that it did not write";
	}
	memset(wr, 0, sizeof(*wr));
	wr->wr_id = (uint64_t)(queue - queue->gda->queue) << 32 | (uint32_t)index;
	wr->send_flags =
		(flags & EP_MLX5_CE_ALWAYS || must_signal(queue, index) ? IBV_SEND_SIGNALED : 0) |
		(flags & 0xe0 && queue->nic->base.fences ? IBV_SEND_FENCE : 0);
	wr->wr.rdma.remote_addr = be64(&wqe->w[4]);
	wr->wr.rdma.rkey = ep_be32(wqe->w[6]);
	switch (first & 0xff) {
	case EP_MLX5_OP_NOP:
		/* Verbs have no NOP: an empty WRITE comes nearest. */
		wr->opcode = IBV_WR_RDMA_WRITE;
		wr->wr.rdma.remote_addr =
			queue->gda->regions[ep_gda_remote_regions(queue->peer, queue->remote_nic)]
				.addr;
		wr->wr.rdma.rkey =
			queue->gda->regions[ep_gda_remote_regions(queue->peer, queue->remote_nic)]
				.rkey;
		return NULL;
	case EP_MLX5_OP_WRITE:
		wr->opcode = IBV_WR_RDMA_WRITE;
		if (ds > 2) {
			decode_local(queue, wqe, 8, wr, sge);
		}
		return NULL;
	case EP_MLX5_OP_FETCH_ADD:
		wr->opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		wr->wr.atomic.remote_addr = be64(&wqe->w[4]);
		wr->wr.atomic.rkey = ep_be32(wqe->w[6]);
		wr->wr.atomic.compare_add = be64(&wqe->w[8]);
		decode_local(queue, wqe, 12, wr, sge);
		return NULL;
	default:
		return "a kernel posted a work request of an unknown kind";
	}
}

/* Posts the next few WQEs below `next`. Returns false if there is no room now. */
static bool post_some(struct ep_gda_queue *queue, uint64_t next)
{
	struct ibv_send_wr wr[EP_GDA_BATCH], *bad = NULL;
	struct ibv_sge sge[EP_GDA_BATCH];
	struct ep_gda_nic *nic = queue->nic;
	const char *note = NULL;
	uint32_t n = 0, posted;
	int error;

	while (n < EP_GDA_BATCH && queue->posted + n < next && nic->cq_used + n < nic->cq_depth &&
	       queue->posted + n - queue->completed < queue->max_wr &&
	       !must_wait(queue, queue->posted + n)) {
		note = decode(queue, queue->posted + n, &wr[n], &sge[n]);
		if (note) {
			break;
		}
		wr[n].next = NULL;
		if (n) {
			wr[n - 1].next = &wr[n];
		}
		n++;
	}
	posted = n;
	if (n) {
		error = ibv_post_send(queue->verbs, wr, &bad);
		if (error) {
			posted = bad ? (uint32_t)(bad - wr) : 0;
			note = NULL;
		}
		nic->cq_used += posted;
		queue->posted += posted;
		if (error && error != ENOMEM && error != -ENOMEM) {
			proxy_refuse(queue, "ibv_post_send refuses a work request");
			return true;
		}
	}
	if (note) {
		proxy_refuse(queue, note);
		return true;
	}
	return posted != 0;
}

/* Handles completions of a NIC. Returns whether there were any. */
static bool poll_nic(struct ep_gda *g, struct ep_gda_nic *nic)
{
	struct ibv_wc wc[EP_GDA_BATCH];
	int n = nic->cq_lost ? 0 : ibv_poll_cq(nic->cq, EP_GDA_BATCH, wc);

	if (n < 0) {
		nic->cq_lost = true;
		ep_gda_fail_port(nic, g, "ibv_poll_cq fails: see the kernel's log");
	}
	for (int i = 0; i < n; i++) {
		struct ep_gda_queue *q = &g->queue[wc[i].wr_id >> 32];
		uint32_t behind = (uint32_t)wc[i].wr_id + 1 - (uint32_t)q->completed;
		uint64_t index = q->completed + behind - 1;

		q->completed += behind;
		nic->cq_used -= behind;
		if (wc[i].status == IBV_WC_SUCCESS) {
			/* An error stays in place, because kernels may not have seen it yet. */
			if (!q->broken && !__atomic_load_n(&q->failed, __ATOMIC_RELAXED)) {
				complete(q, index, EP_MLX5_CQE_REQ, 0, 0, 0);
			}
		} else {
			proxy_fail(q, index, ep_syndrome_of_status(wc[i].status),
				   (uint8_t)wc[i].vendor_err, NULL);
		}
	}
	return n > 0;
}

/* ---- the thread ---- */

/* Looks at each queue and each NIC once. Returns whether there was work. */
static bool proxy_turn(struct ep_gda *g)
{
	bool busy = false;

	for (uint32_t i = 0; i < g->nqueues; i++) {
		struct ep_gda_queue *q = &g->queue[i];
		uint64_t next = __atomic_load_n(q->word, __ATOMIC_ACQUIRE);

		if (g->mode == EP_GDA_CPU_PROXY &&
		    (__atomic_load_n(&q->failed, __ATOMIC_RELAXED) || q->nic->cq_lost)) {
			proxy_end(q);
		} else if (next == q->posted || q->broken) {
			continue;
		} else if (g->mode == EP_GDA_CPU_DB) {
			ring(q, next); /* the NIC flushes what comes after a failure */
			busy = true;
		} else {
			busy |= post_some(q, next);
		}
	}
	for (int n = 0; g->mode == EP_GDA_CPU_PROXY && n < g->nnics; n++) {
		busy |= poll_nic(g, &g->nic[n]);
	}
	return busy;
}

static void *proxy_main(void *arg)
{
	struct ep_gda *g = arg;
	uint64_t last = ep_now_ns();

	while (!__atomic_load_n(&g->stop, __ATOMIC_RELAXED)) {
		if (proxy_turn(g)) {
			last = ep_now_ns();
		} else {
			gda_pause(ep_now_ns() - last);
		}
	}
	return NULL;
}

bool ep_gda_proxy_start(struct ep_gda *g, struct ep_reason *why)
{
	char text[EP_THREAD_ERROR_TEXT];
	int error;

	if (!ep_gda_handover_index(g->mode)) {
		return true;
	}
	error = ep_thread_start(&g->proxy, proxy_main, g);
	if (error) {
		return ep_reason_set(why, "no thread to post RDMA from: %s",
				     ep_thread_error_print(error, text));
	}
	g->posting = true;
	return true;
}

void ep_gda_proxy_stop(struct ep_gda *g)
{
	if (g->posting) {
		__atomic_store_n(&g->stop, 1, __ATOMIC_RELAXED);
		pthread_join(g->proxy, NULL);
		g->posting = false;
	}
}
