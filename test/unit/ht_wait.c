/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits of high throughput: which rank one names that others may hold up, and which sign it gives
 * them; and that the end of a warp's stage does not wait once more for copies that are stuck.
 */
#include <cuda_runtime_api.h>
#include <endian.h>
#include <stddef.h>
#include "device/mlx5/mlx5_layout.h"
#include "ht_wait.h"
#include "support/check.h"

#define RANKS 4
#define DEPTH 64
#define SIGNAL_ADDR 0x300000000ull
#define NOBODY 0u
#define WAITS UINT64_C(0x7fffffff)
#define BY(sign) (UINT64_C(5) << 32 | (sign)) /* in this epoch */

/* What a rank has in memory, of ranks that can all be stored to. */
struct place {
	uint64_t before[RANKS];
	uint64_t words[RANKS];
	uint32_t left[RANKS]; /* ep_ht_left_at() */
	uint64_t progress[RANKS];
	struct ep_signature_slot signatures[EP_SIGNATURE_SLOTS][RANKS];
};

struct memory {
	struct place heap[RANKS];
	struct ep_record records[EP_RECORDS];
	struct ep_dev_state state;
	uint32_t scratch[EP_HT_COUNTERS];
	uint32_t over;
};

#define STEP UINT64_C(0x100000000)

/* That, and what a kernel of rank 0 is given. */
static struct memory *memory_make(struct ht_wait_args *a, uint64_t step, uint64_t timeout_ns)
{
	struct memory *m;

	memset(a, 0, sizeof(*a));
	NEED_CUDA(cudaMallocHost((void **)&m, sizeof(*m)));
	memset(m, 0, sizeof(*m));
	for (uint32_t r = 0; r < RANKS; r++) {
		a->c.g.heap[r] = (unsigned char *)&m->heap[r];
		m->heap[0].progress[r] = step;
	}
	a->c.g.own = a->c.g.heap[0];
	a->c.areas.sign_off = offsetof(struct place, words);
	a->c.g.progress_off = offsetof(struct place, progress);
	a->c.g.signature_off = offsetof(struct place, signatures);
	a->c.g.nranks = RANKS;
	a->c.g.timeout_ns = timeout_ns;
	a->c.g.records = m->records;
	a->c.g.state = &m->state;
	a->c.h.scratch = m->scratch;
	a->over = &m->over;
	return m;
}

/* A look of rank 0, which waits for rank 1, and what follows from it. */
struct look {
	const char *name;
	uint64_t step;  /* that rank 1 has started */
	uint64_t own;   /* sign of rank 0, */
	uint64_t peer;  /* and of rank 1 */
	double waited;  /* seconds, of the timeout of 1 s */
	uint32_t names; /* NOBODY: the wait goes on */
	uint64_t gives; /* what rank 3 finds of rank 0; 0: nothing */
};

static const struct look looks[] = {
	{ "the peer is silent", 5, 0, 0, 5, 1, BY(1) },
	{ "half of the time is over", 5, 0, 0, 0.7, NOBODY, BY(WAITS) },
	{ "less than half is over", 5, 0, 0, 0.4, NOBODY, 0 },
	{ "the sign has been given", 5, BY(WAITS), 0, 0.7, NOBODY, 0 },
	{ "the peer is silent, a sign has been given", 5, BY(WAITS), 0, 5, 1, BY(1) },
	{ "the sign is of another operation", 5, BY(WAITS) - STEP, 0, 0.7, NOBODY, BY(WAITS) },
	{ "the peer waits", 5, 0, BY(WAITS), 1.7, NOBODY, BY(WAITS) },
	{ "the peer waits in the operation before", 4, 0, BY(WAITS) - STEP, 1.9, NOBODY,
	  BY(WAITS) },
	{ "the peer waited in the operation before", 5, 0, BY(WAITS) - STEP, 1.7, 1, BY(1) },
	{ "the peer waits for ever", 5, 0, BY(WAITS), 5, 1, BY(1) },
	{ "the peer has given one up", 5, 0, BY(2), 0.1, 2, BY(2) },
	{ "the same, a sign has been given", 5, BY(WAITS), BY(2), 0.7, 2, BY(2) },
	{ "the peer has given one up in the operation before", 4, 0, BY(2) - STEP, 0.1, 2, BY(2) },
	{ "the peer has given one up long ago", 5, 0, BY(2) - STEP, 0.1, NOBODY, 0 },
	{ "the peer has given this rank up", 5, 0, BY(0), 0.1, 1, BY(1) },
	{ "this rank has given one up", 5, BY(3), BY(2), 0.7, 2, 0 },
};

static void look_at(const struct look *look)
{
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 }, .blockDim = { 32, 1, 1 } };
	struct ht_wait_args a;
	void *list[] = { &a };
	struct memory *m = memory_make(&a, look->step, 1000000000);

	check_context("%s", look->name);
	m->heap[0].words[0] = look->own;
	m->heap[0].words[1] = look->peer;
	a.waited_ns = (uint64_t)(look->waited * 1e9);
	a.expired = look->waited > 1;
	a.peer = 1;
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ht_wait_kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	CHECK_INT(m->over, look->names != NOBODY);
	CHECK_INT(m->records[EP_RECORD_FATAL].peer, look->names);
	CHECK_INT(m->heap[3].words[0], look->gives);
	CHECK_INT(m->heap[0].words[0], look->gives ? look->gives : look->own);
	CHECK_INT(m->scratch[EP_HT_SIGN_LOCK], 0);
	NEED_CUDA(cudaFreeHost(m));
}

/*
 * The group has failed before, for that cause, by rank 2: a wait ends, and gives a sign if rank 2
 * did not come.
 */
static void failed(uint32_t cause, uint64_t gives)
{
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 }, .blockDim = { 32, 1, 1 } };
	struct ht_wait_args a;
	void *list[] = { &a };
	struct memory *m = memory_make(&a, 5, 1000000000);

	check_context("the group has failed, cause %u", cause);
	m->state.aborted = 1;
	m->state.record_lock[EP_RECORD_FATAL] = 1;
	m->records[EP_RECORD_FATAL].valid = cause != 0;
	m->records[EP_RECORD_FATAL].cause = cause;
	m->records[EP_RECORD_FATAL].peer = 2;
	a.waited_ns = 100000000;
	a.peer = 1;
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ht_wait_kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	CHECK_INT(m->over, 1);
	CHECK_INT(m->heap[3].words[0], gives);
	NEED_CUDA(cudaFreeHost(m));
}

/* Rank 2 is on another node. */
struct far {
	struct ep_dev_remote remote;
	struct ep_mlx5_qp qp[RANKS];
	struct ep_remote_link links[RANKS];
	struct ep_mlx5_region local[EP_MLX5_REGIONS], there[EP_MLX5_REGIONS];
	struct ep_mlx5_wqe sq[DEPTH];
	struct ep_mlx5_cqe cqe;
	struct ep_mlx5_error error;
	uint64_t index;
	uint32_t stop, down[RANKS];
};

static struct far *far_make(struct ht_wait_args *a)
{
	struct far *f;

	NEED_CUDA(cudaMallocHost((void **)&f, sizeof(*f)));
	memset(f, 0, sizeof(*f));
	memset(&f->cqe, 0xff, sizeof(f->cqe));
	f->remote.queues = 1; /* the control queue */
	f->remote.qps = f->qp;
	f->remote.links = f->links;
	f->remote.down = f->down;
	f->there[EP_MLX5_REGION_SIGNAL].addr = SIGNAL_ADDR;
	f->qp[2] = (struct ep_mlx5_qp){
		.sq = f->sq,
		.cqe = &f->cqe,
		.db = &f->index,
		.local = f->local,
		.remote = f->there,
		.record = &f->error,
		.stop = &f->stop,
		.depth = DEPTH,
		.handover = EP_MLX5_HANDOVER_INDEX,
		.signal = EP_MLX5_SIGNAL_WRITE,
	};
	a->c.g.heap[2] = NULL;
	a->c.g.remote = &f->remote;
	return f;
}

/*
 * Half of the time is over, and rank 2's control queue has been left in epoch `left`: the sign is posted
 * `posts` times, by the wait, or where the queue is left behind it.
 */
static void far_sign(const char *name, uint32_t left, uint32_t leaves, uint64_t posts)
{
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 }, .blockDim = { 32, 1, 1 } };
	struct ht_wait_args a;
	void *list[] = { &a };
	struct memory *m = memory_make(&a, 5, 1000000000);
	struct far *f = far_make(&a);

	check_context("another node: %s", name);
	m->heap[0].left[2] = left;
	a.waited_ns = 700000000;
	a.peer = 1;
	a.leaves = leaves;
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ht_wait_kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	CHECK_INT(m->heap[3].words[0], BY(WAITS));
	CHECK_INT(m->heap[0].left[2], leaves ? 5 : left);
	CHECK_INT(f->index, posts);
	if (f->index) {
		CHECK_INT((uint64_t)be32toh(f->sq[0].w[4]) << 32 | be32toh(f->sq[0].w[5]),
			  SIGNAL_ADDR + a.c.areas.sign_off);
		CHECK_INT((uint64_t)f->sq[0].w[10] << 32 | f->sq[0].w[9], BY(WAITS));
	}
	NEED_CUDA(cudaFreeHost(f));
	NEED_CUDA(cudaFreeHost(m));
}

/* This rank's own warp is lost: eight times the timeout. */
#define OWN_NS 100000000u

static void own(void)
{
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 }, .blockDim = { 32, 1, 1 } };
	struct ht_wait_args a;
	void *list[] = { &a };
	struct memory *m = memory_make(&a, 5, OWN_NS);
	double start;

	start = check_now();
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ht_own_kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	CHECK_INT(m->over, 1);
	CHECK_INT(m->records[EP_RECORD_FATAL].peer, 0);
	CHECK_INT(m->heap[3].words[0], BY(0));
	CHECK(check_now() - start >= 8 * OWN_NS * 1e-9 && check_now() - start < 11 * OWN_NS * 1e-9,
	      "%.2f s", check_now() - start);
	NEED_CUDA(cudaFreeHost(m));
}

#define STUCK_NS 400000000u

static void stuck(void)
{
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 },
				      .blockDim = { 32, 1, 1 },
				      .dynamicSmemBytes =
					      ep_ht_stage_bytes(1, HT_STUCK_SLOTS, 128) };
	struct ht_wait_args a;
	void *list[] = { &a };
	struct {
		struct ep_record records[EP_RECORDS];
		struct ep_dev_state state;
		uint32_t come;
	} * memory;
	double start;

	memset(&a, 0, sizeof(a));
	NEED_CUDA(cudaMallocHost((void **)&memory, sizeof(*memory)));
	memset(memory, 0, sizeof(*memory));
	a.c.g.nranks = RANKS;
	a.c.g.timeout_ns = STUCK_NS;
	a.c.g.records = memory->records;
	a.c.g.state = &memory->state;
	a.peer = 2;
	a.over = &memory->come;
	memory->come = 1;
	start = check_now();
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ht_stuck_kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	CHECK_INT(memory->come, 0);
	CHECK_INT(memory->records[EP_RECORD_FATAL].peer, 2);
	CHECK(check_now() - start >= STUCK_NS * 1e-9 && check_now() - start < 2 * STUCK_NS * 1e-9,
	      "%.2f s", check_now() - start);
	NEED_CUDA(cudaFreeHost(memory));
}

int main(void)
{
	for (size_t i = 0; i < sizeof(looks) / sizeof(looks[0]); i++) {
		look_at(&looks[i]);
	}
	far_sign("its queue is left", 5, 0, 1);
	far_sign("its queue is in use", 4, 0, 0);
	far_sign("its queue is in use, and is left", 4, 2, 1);
	failed(0, 0);
	failed(EP_CAUSE_TIMEOUT, BY(2));
	failed(EP_CAUSE_RDMA, BY(2));
	failed(EP_CAUSE_MISMATCH, 0);
	check_context("this rank's own warp");
	own();
	check_context("stuck");
	stuck();
	return check_end();
}
