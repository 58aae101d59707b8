/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captured halves whose graphs run never, once or often. A capture that is given up behind a send half takes
 * no bank and holds up no call, on all ranks or on one. Halves pair inside a capture, or across graphs in the
 * order of their launches; ncclEpComplete outside of captures finds out whether a graph has sent.
 */
#include "ep/ep.h"
#include "support/bench.h"
#include "support/victim.h"

#define TIMEOUT_MS 16000.0
#define ROUNDS 4 /* more than a group has banks */

struct scene {
	struct world *w;
	ncclEpGroup_t group;
	struct bench a, b, c;
};

static void give_up_send(struct scene *s, struct bench *b)
{
	world_capture(s->w->stream);
	OK(bench_send_dispatch(b, s->w->stream));
	world_capture_drop(s->w->stream);
}

static cudaGraphExec_t capture_send(struct scene *s, struct bench *b)
{
	world_capture(s->w->stream);
	OK(bench_send_dispatch(b, s->w->stream));
	return world_captured(s->w->stream);
}

static cudaGraphExec_t capture_receive(struct scene *s, struct bench *b)
{
	world_capture(s->w->stream);
	OK(ncclEpComplete(b->handle, NULL, s->w->stream));
	return world_captured(s->w->stream);
}

static void launch(struct scene *s, cudaGraphExec_t graph)
{
	NEED_CUDA(cudaGraphLaunch(graph, s->w->stream));
	NEED_CUDA(cudaStreamSynchronize(s->w->stream));
}

static void load(struct bench *b, uint64_t seed)
{
	bench_load(b, seed);
	bench_poison(b);
	NEED_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
}

static uint32_t busy(const struct scene *s)
{
	struct ep_dev_seq seq;

	NEED_CUDA(cudaMemcpy(&seq, s->group->seq, sizeof(seq), cudaMemcpyDeviceToHost));
	return seq.busy & ~ep_seq_busy(s->group->config.shape.banks);
}

/* Two halves are sent and received, which takes two banks, and whole operations work. */
static void expect_free(struct scene *s)
{
	CHECK_INT(busy(s), 0);
	load(&s->a, 71);
	load(&s->b, 72);
	OK(bench_send_dispatch(&s->a, s->w->stream));
	OK(bench_send_dispatch(&s->b, s->w->stream));
	OK(ncclEpComplete(s->a.handle, NULL, s->w->stream));
	OK_SYNC(ncclEpComplete(s->b.handle, NULL, s->w->stream), s->w->stream);
	bench_check_dispatch(&s->a);
	bench_check_dispatch(&s->b);
	bench_pair_of(&s->a, 73);
	bench_pair_of(&s->b, 74);
}

/* On all ranks: of both handles, again and again. */
static void by_all(struct scene *s)
{
	for (int i = 0; i < ROUNDS; i++) {
		give_up_send(s, &s->a);
		give_up_send(s, &s->b);
		OK(bench_update(&s->b, s->w->stream));
	}
	OK(ncclEpMaskClean(s->group, s->w->stream));
	expect_free(s);
}

/* On the last rank alone, which then does what the others do. */
static void by_one(struct scene *s)
{
	cudaGraphExec_t send;

	for (int i = 0; i < ROUNDS; i++) {
		if (s->w->rank == s->w->nranks - 1) {
			give_up_send(s, &s->a);
			give_up_send(s, &s->b);
		}
		bench_pair_of(&s->b, 10 + (uint64_t)i);
	}
	world_capture(s->w->stream);
	OK(bench_send_dispatch(&s->a, s->w->stream));
	if (s->w->rank == s->w->nranks - 1) {
		world_capture_drop(s->w->stream);
		world_capture(s->w->stream);
		OK(bench_send_dispatch(&s->a, s->w->stream));
	}
	OK(ncclEpComplete(s->a.handle, NULL, s->w->stream));
	send = world_captured(s->w->stream);
	load(&s->a, 15);
	launch(s, send);
	bench_check_dispatch(&s->a);
	NEED_CUDA(cudaGraphExecDestroy(send));
	expect_free(s);
}

/* A send half of a combine is no other. */
static void combine_by_all(struct scene *s)
{
	bench_dispatch_checked(&s->a);
	for (int i = 0; i < ROUNDS; i++) {
		world_capture(s->w->stream);
		OK(bench_send_combine(&s->a, s->w->stream));
		world_capture_drop(s->w->stream);
	}
	OK_SYNC(bench_combine(&s->a, s->w->stream), s->w->stream);
	bench_check_combine(&s->a);
	expect_free(s);
}

/* The handle can be destroyed, and others go on. */
static void destroyed(struct scene *s)
{
	for (int i = 0; i < ROUNDS; i++) {
		struct bench b;

		bench_open(&b, s->w, s->group, &s->a.p, 0);
		OK(bench_update(&b, s->w->stream));
		give_up_send(s, &b);
		bench_close(&b); /* CHECKs that HandleDestroy succeeds */
	}
	expect_free(s);
}

/* ncclEpComplete is not needed then, and does no harm: nothing was sent, and the group lives. */
static void completed_unsent(struct scene *s)
{
	give_up_send(s, &s->a);
	CHECK_REASON(ncclEpComplete(s->a.handle, NULL, s->w->stream), ncclInvalidUsage,
		     "no graph has run it");
	load(&s->a, 21);
	OK_SYNC(bench_dispatch(&s->a, s->w->stream), s->w->stream);
	bench_check_dispatch(&s->a);
	OK(ncclEpComplete(s->a.handle, NULL, s->w->stream)); /* nothing is pending */
	CHECK_LAST(s->group, ncclInvalidUsage, "no graph has run it");
	bench_pair_of(&s->a, 22);
	bench_pair_of(&s->b, 23);
	CHECK_INT(busy(s), 0);
}

/* Both halves in one graph, which runs more often than the group has banks. */
static void together(struct scene *s)
{
	cudaGraphExec_t graph;

	world_capture(s->w->stream);
	OK(bench_send_dispatch(&s->a, s->w->stream));
	CHECK_REASON(bench_dispatch(&s->a, s->w->stream), ncclInvalidUsage, "in this capture");
	CHECK_REASON(bench_update(&s->a, s->w->stream), ncclInvalidUsage, "in this capture");
	OK(bench_send_dispatch(&s->b, s->w->stream));
	CHECK_REASON(bench_send_dispatch(&s->c, s->w->stream), ncclInvalidUsage, "2 send_only");
	if (s->group->config.shape.banks == EP_GROUP_REMOTE_BANKS) {
		CHECK_REASON(bench_dispatch(&s->c, s->w->stream), ncclInvalidUsage, "2 send_only");
	}
	OK(ncclEpComplete(s->a.handle, NULL, s->w->stream));
	OK(ncclEpComplete(s->a.handle, NULL, s->w->stream)); /* nothing is pending here */
	OK(ncclEpComplete(s->b.handle, NULL, s->w->stream));
	graph = world_captured(s->w->stream);
	for (uint64_t i = 0; i < ROUNDS; i++) {
		load(&s->a, 30 + i);
		load(&s->b, 40 + i);
		launch(s, graph);
		bench_check_dispatch(&s->a);
		bench_check_dispatch(&s->b);
	}
	NEED_CUDA(cudaGraphExecDestroy(graph));
	bench_expert_work(&s->a);
	OK_SYNC(bench_combine(&s->a, s->w->stream), s->w->stream);
	bench_check_combine(&s->a);
	expect_free(s);
}

/* The graph with the send half runs again and again, and ncclEpComplete is called behind it. */
static void received_eagerly(struct scene *s)
{
	cudaGraphExec_t send = capture_send(s, &s->a);

	for (uint64_t i = 0; i < ROUNDS; i++) {
		load(&s->a, 50 + i);
		NEED_CUDA(cudaGraphLaunch(send, s->w->stream));
		OK_SYNC(ncclEpComplete(s->a.handle, NULL, s->w->stream), s->w->stream);
		bench_check_dispatch(&s->a);
		CHECK_INT(busy(s), 0);
		CHECK_REASON(ncclEpComplete(s->a.handle, NULL, s->w->stream), ncclInvalidUsage,
			     "no graph has run it");
	}
	NEED_CUDA(cudaGraphExecDestroy(send));
	bench_pair_of(&s->a, 60);
	bench_pair_of(&s->b, 61);
}

/* A graph for each half. The second one is captured once in vain. */
static void apart(struct scene *s)
{
	cudaGraphExec_t send = capture_send(s, &s->a), receive;

	world_capture(s->w->stream);
	OK(ncclEpComplete(s->a.handle, NULL, s->w->stream));
	world_capture_drop(s->w->stream);
	receive = capture_receive(s, &s->a);
	for (uint64_t i = 0; i < ROUNDS; i++) {
		load(&s->a, 50 + i);
		launch(s, send);
		CHECK(busy(s) != 0);
		launch(s, receive);
		bench_check_dispatch(&s->a);
		bench_pair_of(&s->b, 60 + i);
	}
	OK(ncclEpComplete(s->a.handle, NULL, s->w->stream)); /* it has been received */
	NEED_CUDA(cudaGraphExecDestroy(receive));
	NEED_CUDA(cudaGraphExecDestroy(send));
	expect_free(s);
}

/* The send half runs, and its ncclEpComplete is captured and given up: called again, it receives. */
static void receive_given_up(struct scene *s)
{
	for (uint64_t i = 0; i < ROUNDS; i++) {
		load(&s->a, 50 + i);
		OK(bench_send_dispatch(&s->a, s->w->stream));
		world_capture(s->w->stream);
		OK(ncclEpComplete(s->a.handle, NULL, s->w->stream));
		world_capture_drop(s->w->stream);
		OK_SYNC(ncclEpComplete(s->a.handle, NULL, s->w->stream), s->w->stream);
		bench_check_dispatch(&s->a);
		CHECK_INT(busy(s), 0);
	}
	expect_free(s);
}

/* What the handle does outside of the capture puts the send half in it behind. */
static void pushed_out(struct scene *s)
{
	cudaStream_t other;

	load(&s->a, 50);
	NEED_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
	world_capture(s->w->stream);
	OK(bench_send_dispatch(&s->a, s->w->stream));
	OK_SYNC(bench_dispatch(&s->a, other), other);
	CHECK_REASON(ncclEpComplete(s->a.handle, NULL, s->w->stream), ncclInvalidUsage,
		     "outside of it");
	world_capture_drop(s->w->stream);
	NEED_CUDA(cudaStreamDestroy(other));
	bench_check_dispatch(&s->a);
	bench_pair_of(&s->a, 60);
	expect_free(s);
}

/* The buffer grows where halves were only captured, and not while a graph has sent one. */
static void growth(struct scene *s)
{
	struct oracle_problem p = bench_problem(s->w->nranks, 48, 4, 256, 200, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	struct scene own = { .w = s->w };
	struct oracle_problem wide = p;
	ncclEpHandle_t refused = NULL;
	cudaGraphExec_t send;

	wide.topk = 30;
	config.num_topk = 0;
	NEED_OK(ncclEpCreateGroup(&own.group, s->w->comm, &config));
	bench_open(&own.a, s->w, own.group, &p, 0);
	bench_load_tokens(&own.a, 5, 20);
	OK(bench_update(&own.a, s->w->stream));
	bench_poison(&own.a);
	send = capture_send(&own, &own.a);
	launch(&own, send);
	CHECK_REASON(ncclEpInitHandle(&refused, own.group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 30,
				      NULL),
		     ncclInvalidUsage, "its receive half has not run");
	OK_SYNC(ncclEpComplete(own.a.handle, NULL, s->w->stream), s->w->stream);
	bench_check_dispatch(&own.a);
	NEED_CUDA(cudaGraphExecDestroy(send));
	give_up_send(&own, &own.a);
	bench_open(&own.b, s->w, own.group, &wide, 0);
	OK(ncclEpComplete(own.a.handle, NULL, s->w->stream)); /* what was captured is void */
	bench_load_tokens(&own.b, 6, 10);
	bench_pair(&own.b);
	bench_pair(&own.a);
	bench_close(&own.b);
	bench_end(&own.a);
}

/*
 * The graph with the receive half alone runs, as the group's first step: the rank refuses it at once, and
 * blames no peer for it.
 */
static void refused_first(struct scene *s)
{
	cudaGraphExec_t send = capture_send(s, &s->a), receive = capture_receive(s, &s->a);
	double start = world_now();

	launch(s, receive);
	CHECK((world_now() - start) * 1e3 < TIMEOUT_MS / 8);
	CHECK_INT(bench_masked(s->w, s->group), 0);
	CHECK_REASON(bench_update(&s->b, s->w->stream), ncclInvalidUsage,
		     "the send_only operation before it did not");
	NEED_CUDA(cudaGraphExecDestroy(receive));
	NEED_CUDA(cudaGraphExecDestroy(send));
}

static void (*const acts[])(struct scene *s) = {
	refused_first, by_all,           by_one, combine_by_all,   destroyed,  completed_unsent,
	together,      received_eagerly, apart,  receive_given_up, pushed_out, growth,
};

static void run(struct world *w, void *arg)
{
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 256, 4, ORACLE_EXPERT_MAJOR);
	struct oracle_problem q = bench_problem(w->nranks, 12, 2, 128, 4, ORACLE_RANK_MAJOR);

	for (size_t i = 0; i < sizeof(acts) / sizeof(acts[0]); i++) {
		struct scene s = { .w = w };

		check_context("act %zu", i);
		s.group = bench_group_bounded(w->comm, &p, BENCH_MASK, TIMEOUT_MS);
		bench_open(&s.a, w, s.group, &p, BENCH_OWN_MEM);
		bench_open(&s.b, w, s.group, &q, 0);
		bench_open(&s.c, w, s.group, &p, 0);
		OK(bench_update(&s.a, w->stream));
		OK(bench_update(&s.b, w->stream));
		OK(bench_update(&s.c, w->stream));
		acts[i](&s);
		world_meet(w);
		bench_close(&s.a);
		bench_close(&s.b);
		bench_end(&s.c);
	}
}

int main(void)
{
	world_run(world_size(2), run, NULL);
	return check_end();
}
