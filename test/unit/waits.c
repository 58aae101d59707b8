/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A wait for a peer that has masked this rank ends, because the peer sends nothing more; but what
 * it sent before must still be found. A wait for a remote peer ends when the host has given up the
 * connection, and looks seldom whether it has; a row of it that its word has overtaken gets some
 * time. And what a wait learns of another one, on another SM.
 */
#include <cuda_runtime_api.h>
#include <endian.h>
#include <stddef.h>
#include "device/simt/wait_site.h"
#include "support/check.h"
#include "waits.h"
#include "device/mlx5/mlx5_layout.h"

#define QUEUES 3

struct heap {
	uint64_t progress[4];
	struct ep_signature_slot signatures[EP_SIGNATURE_SLOTS][4];
};

/* All that the kernel reads and writes, and what it left. */
struct memory {
	struct ep_dev_remote remote;
	struct ep_remote_link links[3 * QUEUES];
	uint32_t down[3];
	struct heap heap, there[2]; /* this rank's; of ranks that it may give a sign */
	uint64_t mask[EP_MASK_BYTES(4) / 8];
	uint64_t word;
	struct ep_dev_state state;
	struct ep_record records[EP_RECORDS];
	uint32_t async_error;
	struct waits_result out;
};

/*
 * No rank is remote. Rank 1 is, and there is a rank 2; the host has given up the connection with
 * one.
 */
#define NEAR (-1)
#define REMOTE 0

static struct memory *memory_new(struct waits_args *args, uint32_t nranks)
{
	struct memory *m;

	NEED_CUDA(cudaMallocHost((void **)&m, sizeof(*m)));
	memset(m, 0, sizeof(*m));
	args->g.nranks = nranks;
	args->g.mask_enabled = 1;
	args->g.timeout_ns = args->g.timeout_ns ? args->g.timeout_ns : UINT64_C(20000000000);
	args->g.mask = (int32_t *)m->mask;
	args->g.state = &m->state;
	args->g.records = m->records;
	args->g.async_error = &m->async_error;
	args->g.own = (unsigned char *)&m->heap;
	args->g.signature_off = sizeof(m->heap.progress);
	for (uint32_t r = 0; r < nranks; r++) {
		args->g.mask[r] = 1;
		args->g.heap[r] = args->g.own;
	}
	args->word = &m->word;
	args->out = &m->out;
	return m;
}

static struct memory run_with(void (*kernel)(void), struct waits_args args, struct memory *m)
{
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 }, .blockDim = { 32, 1, 1 } };
	void *list[] = { &args };
	struct memory left;

	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	left = *m;
	NEED_CUDA(cudaFreeHost(m));
	return left;
}

/* where: NEAR, REMOTE, or the rank whose connection is down. */
static struct memory run(void (*kernel)(void), struct waits_args args, uint64_t progress, int where)
{
	struct memory *m = memory_new(&args, where == NEAR ? 2 : 3);

	m->heap.progress[1] = progress;
	ep_mask_stood(args.g.mask, args.g.nranks)[1] = (uint32_t)progress;
	if (where != NEAR) {
		args.g.heap[1] = args.g.heap[2] = NULL; /* remote */
		args.g.remote = &m->remote;
		m->remote.queues = QUEUES;
		m->remote.links = m->links;
		m->remote.down = m->down;
		m->down[where] = where != REMOTE;
	}
	return run_with(kernel, args, m);
}

static struct memory wait_with(struct waits_args args, uint64_t progress, int where)
{
	return run(waits_kernel, args, progress, where);
}

static struct memory wait_of(uint32_t arrives, uint64_t progress)
{
	return wait_with((struct waits_args){ .arrives = arrives }, progress, NEAR);
}

static bool masked_is(const struct memory *m, int rank)
{
	return !((const int32_t *)m->mask)[rank];
}

/*
 * A bank that step 4 used is free when the peer has started step 5. A peer that has not is waited
 * for, and given up after the timeout.
 */
static void test_bank(void)
{
	struct waits_args args = { .g.timeout_ns = 1000000000 };
	struct memory m;

	for (uint32_t step = 3; step <= 6; step++) {
		check_context("the peer has started step %u", step);
		m = run(bank_kernel, args, ep_progress_word(step, 0, 0), NEAR);
		CHECK_INT(m.out.gave_up, step <= 4);
		CHECK_INT(masked_is(&m, 1), step <= 4);
	}
}

static void test_down(void)
{
	struct waits_args args = { .arrives = 100, .checks = 200 };
	struct memory m;

	check_context("the connection with another rank is down");
	m = wait_with(args, ep_progress_word(5, 0, 0), 2);
	CHECK_INT(m.out.gave_up, 0);
	CHECK_INT(m.out.polls, args.arrives);
	CHECK(m.out.checks >= args.checks && m.out.checks <= m.out.ns / 16384 + 2);
	CHECK(m.links[2].down && !m.links[1].down);
	check_context("the connection with the rank that is waited for is down");
	m = wait_with(args, ep_progress_word(5, 0, 0), 1);
	CHECK_INT(m.out.gave_up, 1);
	CHECK_INT(masked_is(&m, 1), 1);
	CHECK_INT(m.records[EP_RECORD_MASKED].cause, EP_CAUSE_RDMA);
	CHECK(m.links[1].down && !m.links[2].down);
}

/* The wait ended at its second look, because rank 1 has masked this rank, `lead` steps ahead. */
static void expect_excluded_at_once(const struct memory *m, uint32_t lead)
{
	CHECK_INT(m->out.gave_up, 1);
	CHECK_INT(m->out.polls, 128);
	CHECK_INT(m->records[EP_RECORD_MASKED].cause, EP_CAUSE_EXCLUDED);
	CHECK_INT(m->records[EP_RECORD_MASKED].value, lead);
}

/* It ended some time after `least_ns`, and other waits do not take it for one that lasted T. */
static void expect_excluded_after(const struct memory *m, uint64_t least_ns, uint64_t most_ns)
{
	CHECK_INT(m->out.gave_up, 1);
	CHECK(m->out.ns >= least_ns && m->out.ns <= most_ns);
	CHECK_INT(masked_is(m, 1), 1);
	CHECK_INT(m->records[EP_RECORD_MASKED].cause, EP_CAUSE_EXCLUDED);
	CHECK_INT(m->state.in_vain, 0);
}

static void test_overtaken(void)
{
	uint64_t later = ep_progress_word(6, 0, 1), same = ep_progress_word(5, 0, 1);
	uint64_t ms = 1000000;
	struct waits_args args = { .g.timeout_ns = 8000 * ms };
	struct memory m;

	check_context("a remote peer's word has overtaken its row");
	args.arrives = 300; /* behind the second look, and before an eighth of the timeout */
	m = wait_with(args, later, REMOTE);
	CHECK_INT(m.out.gave_up, 0);
	CHECK_INT(m.out.polls, 300);
	CHECK_INT(masked_is(&m, 1), 0);
	check_context("the same in the second half of a split operation");
	args.step = 6;
	m = wait_with(args, later, REMOTE);
	CHECK_INT(m.out.gave_up, 0);
	CHECK_INT(m.out.polls, 300);
	args.arrives = args.step = 0;
	check_context("the row never comes");
	m = wait_with(args, later, REMOTE);
	expect_excluded_after(&m, 1000 * ms, 5000 * ms);
	CHECK_INT(m.records[EP_RECORD_MASKED].value, 1);
	check_context("it never comes, and the group would wait for ever");
	args.g.timeout_ns = UINT64_C(1) << 62;
	m = wait_with(args, later, REMOTE);
	expect_excluded_after(&m, 4000 * ms, 20000 * ms);
	args.g.timeout_ns = 8000 * ms;
	check_context("the peer has not sent: it masked this rank before");
	m = wait_with(args, same, REMOTE);
	expect_excluded_at_once(&m, 0);
	check_context("it goes on meanwhile");
	args.masks = 100;
	m = wait_with(args, same, REMOTE);
	expect_excluded_at_once(&m, 1);
	args.masks = 0;
	check_context("counts are not overtaken");
	args.site = EP_WAIT_DISPATCH_COUNT;
	m = wait_with(args, later, REMOTE);
	expect_excluded_at_once(&m, 1);
	args.site = 0;
	check_context("the connection is given up meanwhile");
	m = wait_with(args, later, 1);
	CHECK_INT(m.out.gave_up, 1);
	CHECK_INT(m.records[EP_RECORD_MASKED].cause, EP_CAUSE_RDMA);
	CHECK_INT(m.records[EP_RECORD_MASKED].value, 0);
}

/* A wait of this rank, in step 5, for rank 1. */
struct view {
	const char *who;
	uint32_t step;    /* of rank 1, */
	uint32_t sign;    /* of its last sign, 0: it has given none; */
	uint32_t rest;    /* and of ranks 2 and 3 */
	bool plain;       /* without masks */
	uint32_t granted; /* GRACE_UNIT_NS beyond the timeout */
	bool far;         /* rank 1 is on another node */
};

#define GRACE_UNIT_NS                                                                              \
	62500000u      /* an eighth of the longest one without a sign; the timeout is longer */
#define GRACE_LONG 16u /* or more */

static const struct view views[] = {
	{ "it has not started the step", 4, 0, 5, false, 8, false },
	{ "it has", 5, 0, 5, false, 4, false },
	{ "it has started a later step", 6, 0, 5, false, 2, false },
	{ "it has given a sign long ago", 5, 5, 5, false, 4, false },
	{ "others are behind it", 4, 0, 3, false, 8, false },
	{ "others are where it is", 4, 0, 4, false, 8, false },
	{ "others are a step ahead", 4, 0, 6, false, 4, false },
	{ "others are two steps ahead", 4, 0, 7, false, 2, false },
	{ "it is far, others are behind it", 4, 0, 3, false, 8, true },
	{ "it is far, has started the step, and others have not", 5, 0, 3, false, 4, true },
	{ "without masks others are behind it", 4, 0, 3, true, GRACE_LONG, false },
	{ "without masks it is far, others are behind it", 4, 0, 3, true, GRACE_LONG, true },
	{ "without masks others are where it is", 4, 0, 4, true, 8, false },
};

static struct memory look_beyond(const struct view *view, uint64_t beyond_ns)
{
	struct waits_args args = { .step = 5, .g.timeout_ns = 2000000000, .beyond_ns = beyond_ns };
	struct memory *m = memory_new(&args, 4);

	args.g.mask_enabled = !view->plain;
	if (view->far) {
		args.g.heap[1] = NULL;
		args.g.remote = &m->remote;
		m->remote.links = m->links;
		m->remote.down = m->down;
	}
	m->heap.progress[0] = ep_progress_word(5, 0, 0);
	m->heap.progress[1] = ep_progress_word(view->step, 0, 0);
	m->heap.progress[2] = m->heap.progress[3] = ep_progress_word(view->rest, 0, 0);
	m->heap.signatures[view->sign % EP_SIGNATURE_SLOTS][1].sign = UINT64_C(1) << 32 |
								      view->sign;
	return run_with(grace_kernel, args, m);
}

/* With masks what is granted to a rank follows from how far it and others have come. */
static void test_grace(void)
{
	for (size_t i = 0; i < sizeof(views) / sizeof(views[0]); i++) {
		struct memory m = { 0 };
		uint32_t units = 0;

		check_context("%s", views[i].who);
		for (; units < GRACE_LONG && !m.out.gave_up; units++) {
			m = look_beyond(&views[i],
					units * (uint64_t)GRACE_UNIT_NS + GRACE_UNIT_NS / 2);
		}
		CHECK_INT(units - m.out.gave_up, views[i].granted);
		CHECK_INT(masked_is(&m, 1), m.out.gave_up && !views[i].plain);
	}
}

/* A wait begins in step 5, in which another one was in vain. Rank 1 is in step 4. */
static void test_turn(void)
{
	static const struct {
		const char *who;
		uint32_t stood, sign;
		bool since; /* the wait counts from where the other one began */
	} turns[] = { { "it was there half a timeout ago", 4, 0, true },
		      { "it has come there since", 3, 0, false },
		      { "it has given a sign there", 4, 4, false },
		      { "it has given one before", 4, 3, true } };

	for (size_t i = 0; i < sizeof(turns) / sizeof(turns[0]); i++) {
		struct waits_args args = { .step = 5,
					   .g.timeout_ns = 2000000000,
					   .vain_ns = 2600000000 };
		struct memory *at = memory_new(&args, 4), m;

		check_context("%s", turns[i].who);
		at->heap.progress[1] = ep_progress_word(4, 0, 0);
		at->heap.signatures[turns[i].sign][1].sign = UINT64_C(1) << 32 | turns[i].sign;
		ep_mask_stood(args.g.mask, 4)[1] = turns[i].stood;
		m = run_with(grace_kernel, args, at);
		CHECK_INT(m.out.gave_up, 0);
		CHECK_INT(m.out.ns > args.g.timeout_ns, turns[i].since);
	}
}

/*
 * A peer takes its next step, and later gives a sign: the wait counts from there. A rank whose
 * waits last gives a sign to active ranks each half of the timeout, and four at most.
 */
static void test_moves(void)
{
	uint64_t ms = 1000000;
	struct waits_args args = {
		.step = 5, .g.timeout_ns = 1000 * ms, .moves_ns = 900 * ms, .signs_ns = 1700 * ms
	};
	struct memory *at = memory_new(&args, 4), m;

	check_context("the peer comes late, and is lost then");
	at->heap.progress[0] = ep_progress_word(5, 0, 0);
	at->heap.progress[1] = ep_progress_word(4, 0, 0);
	args.g.heap[2] = (unsigned char *)&at->there[0];
	args.g.heap[3] = (unsigned char *)&at->there[1];
	args.g.mask[3] = 0;
	m = run_with(moves_kernel, args, at);
	CHECK_INT(m.out.gave_up, 1);
	CHECK(m.out.ns >= 2950 * ms && m.out.ns < 3400 * ms, "%.3f s", (double)m.out.ns / 1e9);
	CHECK(m.out.signed_ns >= 500 * ms && m.out.signed_ns < 700 * ms, "%.3f s",
	      (double)m.out.signed_ns / 1e9);
	CHECK_INT(m.there[0].signatures[5][0].sign, UINT64_C(4) << 32 | 5);
	CHECK_INT(m.there[1].signatures[5][0].sign, 0);
}

static int main_waits(int argc, char **argv)
{
	uint64_t masked = ep_progress_word(6, 0, 1);
	struct memory m;

	check_context("the word came before the peer masked this rank");
	for (uint32_t polls = 60; polls < 70; polls++) { /* 64: between a poll and the look */
		m = wait_of(polls, masked);
		CHECK_INT(m.out.gave_up, 0);
		CHECK_INT(m.out.polls, polls);
		CHECK_INT(m.out.word, 7);
		CHECK_INT(masked_is(&m, 1), 0);
		CHECK_INT(m.async_error, 0);
	}
	check_context("the peer masks this rank after so many polls that they fill their bits");
	m = wait_with(
		(struct waits_args){ .polled = (1u << 24) - 128, .masks = 100, .arrives = 130 },
		ep_progress_word(6, 0, 0), NEAR);
	CHECK_INT(m.out.gave_up, 0);
	CHECK_INT(m.out.polls, 130);
	CHECK_INT(masked_is(&m, 1), 0);
	check_context("another wait was in vain, by a clock that is ahead of this one's");
	m = wait_with((struct waits_args){ .ahead = 2000, .arrives = 600 },
		      ep_progress_word(5, 0, 0), NEAR);
	CHECK_INT(m.out.gave_up, 0);
	CHECK_INT(m.out.polls, 600);
	check_context("it never comes");
	m = wait_of(0, masked);
	CHECK_INT(m.out.gave_up, 1);
	CHECK_INT(m.out.polls, 128); /* the second look */
	CHECK_INT(masked_is(&m, 1), 1);
	CHECK_INT(m.async_error, 1);
	CHECK_INT(m.records[EP_RECORD_MASKED].cause, EP_CAUSE_EXCLUDED);
	CHECK_INT(m.records[EP_RECORD_MASKED].value, 1);
	test_bank();
	test_down();
	test_overtaken();
	test_grace();
	test_moves();
	test_turn();
	return check_end();
}

/*
 * Waits of high throughput: which rank one names that others may hold up, and which sign it gives
 * them; and that the end of a warp's stage does not wait once more for copies that are stuck.
 */

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
	uint32_t left[RANKS]; /* left_at() */
	uint64_t progress[RANKS];
	struct ep_signature_slot signatures[EP_SIGNATURE_SLOTS][RANKS];
};

struct ht_memory {
	struct place heap[RANKS];
	struct ep_record records[EP_RECORDS];
	struct ep_dev_state state;
	uint32_t scratch[EP_HT_COUNTERS];
	uint32_t over;
};

#define STEP UINT64_C(0x100000000)

/* That, and what a kernel of rank 0 is given. */
static struct ht_memory *memory_make(struct ht_wait_args *a, uint64_t step, uint64_t timeout_ns)
{
	struct ht_memory *m;

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
	struct ht_memory *m = memory_make(&a, look->step, 1000000000);

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
	struct ht_memory *m = memory_make(&a, 5, 1000000000);

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

/* Ranks from `first` on are on another node. */
struct far {
	struct ep_dev_remote remote;
	struct ep_mlx5_qp qp[RANKS];
	struct ep_remote_link links[RANKS];
	struct ep_mlx5_region local[EP_MLX5_REGIONS], there[EP_MLX5_REGIONS];
	struct ep_mlx5_wqe sq[RANKS][DEPTH];
	struct ep_mlx5_cqe cqe[RANKS];
	struct ep_mlx5_error error;
	uint64_t index[RANKS]; /* WQEs that were posted to the rank */
	uint32_t stop, down[RANKS];
};

static struct far *far_make(struct ep_dev_group *g, uint32_t first, uint32_t ranks)
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
	for (uint32_t r = first; r < first + ranks; r++) {
		f->qp[r] = (struct ep_mlx5_qp){
			.sq = f->sq[r],
			.cqe = &f->cqe[r],
			.db = &f->index[r],
			.local = f->local,
			.remote = f->there,
			.record = &f->error,
			.stop = &f->stop,
			.depth = DEPTH,
			.handover = EP_MLX5_HANDOVER_INDEX,
			.signal = EP_MLX5_SIGNAL_WRITE,
		};
		g->heap[r] = NULL;
	}
	g->remote = &f->remote;
	return f;
}

/* Is the n-th WQE to rank r a WRITE of that word to `off` in its heap? */
static void expect_word(const struct far *f, uint32_t r, uint64_t n, uint64_t off, uint64_t word)
{
	const uint32_t *w = f->sq[r][n].w;

	CHECK_INT(be32toh(w[0]), n << 8 | EP_MLX5_OP_WRITE);
	CHECK_INT((uint64_t)be32toh(w[4]) << 32 | be32toh(w[5]), SIGNAL_ADDR + off);
	CHECK_INT((uint64_t)w[10] << 32 | w[9], word);
}

/*
 * Half of the time is over, and rank 2's control queue has been left in epoch `left`: the sign is
 * posted `posts` times, by the wait, or where the queue is left behind it.
 */
static void far_sign(const char *name, uint32_t left, uint32_t leaves, uint64_t posts)
{
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 }, .blockDim = { 32, 1, 1 } };
	struct ht_wait_args a;
	void *list[] = { &a };
	struct ht_memory *m = memory_make(&a, 5, 1000000000);
	struct far *f = far_make(&a.c.g, 2, 1);

	check_context("another node: %s", name);
	m->heap[0].left[2] = left;
	a.waited_ns = 700000000;
	a.peer = 1;
	a.leaves = leaves;
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ht_wait_kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	CHECK_INT(m->heap[3].words[0], BY(WAITS));
	CHECK_INT(m->heap[0].left[2], leaves ? 5 : left);
	CHECK_INT(f->index[2], posts);
	if (f->index[2]) {
		expect_word(f, 2, 0, a.c.areas.sign_off, BY(WAITS));
	}
	NEED_CUDA(cudaFreeHost(f));
	NEED_CUDA(cudaFreeHost(m));
}

/*
 * Signs of low latency to ranks of another node, 2 and 3. Rank 0 waits for rank 1 of its node in
 * step 5.
 */
struct signs {
	struct waits_args args;
	struct memory *m;
	struct far *f;
};

static struct signs signs_make(void)
{
	struct signs s = { .args = { .step = 5, .g.timeout_ns = 1000000000 } };

	s.m = memory_new(&s.args, 4);
	s.m->heap.progress[1] = ep_progress_word(5, 0, 0);
	s.args.g.heap[1] = (unsigned char *)&s.m->there[0];
	s.f = far_make(&s.args.g, 2, 2);
	for (uint32_t r = 2; r < 4; r++) {
		s.f->links[r].left = s.f->links[r].left_here = 5;
	}
	return s;
}

static void signs_free(struct signs *s)
{
	NEED_CUDA(cudaFreeHost(s->f));
	NEED_CUDA(cudaFreeHost(s->m));
}

/* A block looks when waits of the step have lasted so many halves of the timeout, and a little. */
static void signs_look(struct signs *s, uint32_t block, uint32_t halves)
{
	cudaLaunchConfig_t config = { .gridDim = { 2, 1, 1 }, .blockDim = { 32, 1, 1 } };
	void *list[] = { &s->args };

	s->args.block = block;
	s->args.waited_ns = halves * UINT64_C(500000000) + 50000000;
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)signs_kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	CHECK_INT(s->m->out.gave_up, 0);
}

/* The signs that rank 1 has, and WQEs that were posted to ranks 2 and 3. */
static void signs_are(const struct signs *s, uint64_t near, uint64_t two, uint64_t three)
{
	CHECK_INT(s->m->there[0].signatures[5][0].sign, near ? near << 32 | 5 : 0);
	CHECK_INT(s->f->index[2], two);
	CHECK_INT(s->f->index[3], three);
}

static void signs_posted_word(const struct signs *s, uint32_t r, uint64_t index, uint64_t n)
{
	expect_word(s->f, r, index,
		    offsetof(struct heap, signatures) +
			    ep_signature_slot_off(s->args.g.nranks, 5, 0) +
			    offsetof(struct ep_signature_slot, sign),
		    n << 32 | 5);
}

static int main_signs(int argc, char **argv)
{
	struct signs s = signs_make();

	check_context("one after the other");
	signs_look(&s, 1, 0);
	signs_are(&s, 0, 0, 0);
	signs_look(&s, 1, 1);
	signs_are(&s, 1, 1, 1);
	signs_posted_word(&s, 2, 0, 1);
	signs_posted_word(&s, 3, 0, 1);
	signs_look(&s, 1, 1); /* it is not posted again, */
	signs_look(&s, 0, 1); /* and not by others */
	signs_are(&s, 1, 1, 1);
	signs_look(&s, 0, 2);
	signs_are(&s, 2, 2, 2);
	signs_posted_word(&s, 3, 1, 2);
	signs_look(&s, 1, 3);
	signs_look(&s, 1, 4);
	signs_look(&s, 1, 9);
	signs_are(&s, 4, 4, 4);
	signs_free(&s);

	check_context("queues are in use");
	s = signs_make();
	s.f->links[3].left = 4;
	signs_look(&s, 1, 1);
	signs_are(&s, 1, 1, 0);
	signs_look(&s, 0, 1); /* its owner's block has it now */
	signs_are(&s, 1, 1, 1);
	signs_posted_word(&s, 3, 0, 1);
	s.f->links[2].left = s.f->links[2].left_here = 4;
	signs_look(&s, 0, 2);
	signs_are(&s, 2, 1, 1);
	s.f->links[2].left_here = 5;
	signs_look(&s, 1, 2);
	signs_are(&s, 2, 1, 1);
	signs_look(&s, 0, 2);
	signs_are(&s, 2, 2, 2);
	signs_posted_word(&s, 2, 1, 2);
	signs_free(&s);

	check_context("a rank is masked");
	s = signs_make();
	s.args.g.mask[2] = 0;
	signs_look(&s, 1, 1);
	signs_are(&s, 1, 0, 1);
	signs_free(&s);

	check_context("a queue is full");
	s = signs_make();
	s.f->qp[2].reserved = s.f->qp[2].rung = DEPTH;
	signs_look(&s, 1, 1);
	signs_are(&s, 1, 0, 1);
	signs_free(&s);

	check_context("a queue has failed");
	s = signs_make();
	s.f->qp[2].error = EP_MLX5_ERR_CQE;
	signs_look(&s, 1, 1);
	signs_are(&s, 1, 0, 1);
	signs_free(&s);

	check_context("another wait is posting");
	s = signs_make();
	s.m->state.posting = 1;
	signs_look(&s, 1, 1);
	signs_are(&s, 1, 0, 0);
	s.m->state.posting = 0;
	signs_look(&s, 1, 1);
	signs_are(&s, 1, 1, 1);
	signs_free(&s);

	check_context("without masks");
	s = signs_make();
	s.args.g.mask_enabled = 0;
	signs_look(&s, 1, 1);
	signs_are(&s, 0, 0, 0);
	signs_free(&s);
	return check_end();
}

/* This rank's own warp is lost: eight times the timeout. */
#define OWN_NS 100000000u

static void own(void)
{
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 }, .blockDim = { 32, 1, 1 } };
	struct ht_wait_args a;
	void *list[] = { &a };
	struct ht_memory *m = memory_make(&a, 5, OWN_NS);
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
	} * ht_memory;
	double start;

	memset(&a, 0, sizeof(a));
	NEED_CUDA(cudaMallocHost((void **)&ht_memory, sizeof(*ht_memory)));
	memset(ht_memory, 0, sizeof(*ht_memory));
	a.c.g.nranks = RANKS;
	a.c.g.timeout_ns = STUCK_NS;
	a.c.g.records = ht_memory->records;
	a.c.g.state = &ht_memory->state;
	a.peer = 2;
	a.over = &ht_memory->come;
	ht_memory->come = 1;
	start = check_now();
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ht_stuck_kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	CHECK_INT(ht_memory->come, 0);
	CHECK_INT(ht_memory->records[EP_RECORD_FATAL].peer, 2);
	CHECK(check_now() - start >= STUCK_NS * 1e-9 && check_now() - start < 2 * STUCK_NS * 1e-9,
	      "%.2f s", check_now() - start);
	NEED_CUDA(cudaFreeHost(ht_memory));
}

static int main_ht_wait(int argc, char **argv)
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

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "waits", main_waits },
		{ "ht_wait", main_ht_wait },
		{ "signs", main_signs },
	};

	return check_cases(argc, argv, cases, sizeof(cases) / sizeof(*cases));
}
