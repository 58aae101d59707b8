/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Halves of operations that do not run in turn, and combines without their dispatch, because graphs
 * with one of them were launched too often or never. The host cannot see it. The kernel must end in
 * an error that says so, not in an access to a bank that nobody chose or that another operation
 * holds, nor use handle memory that nobody filled; all can be destroyed then, and the GPU and the
 * communicator are as good as before.
 */
#include "ep/ep.h"
#include "support/bench.h"
#include "support/victim.h"

#define TIMEOUT_MS 16000.0

struct scene {
	struct world *w;
	ncclEpGroup_t group;
	struct bench a, b;
};

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

/* The group has failed, and says why. */
static void expect_failed(struct scene *s, const char *part)
{
	int error = 0;

	OK(ncclEpGetAsyncError(s->group, &error));
	CHECK_INT(error, 1);
	CHECK_REASON(bench_update(&s->b, s->w->stream), ncclInvalidUsage, part);
}

static uint32_t bank_of(const struct bench *b)
{
	struct ep_dev_pending pending; /* handle memory begins with it */

	NEED_CUDA(cudaMemcpy(&pending, b->mem.t.data, sizeof(pending), cudaMemcpyDeviceToHost));
	return pending.bank;
}

static struct ep_dev_seq sequence(const struct scene *s)
{
	struct ep_dev_seq seq;

	NEED_CUDA(cudaMemcpy(&seq, s->group->seq, sizeof(seq), cudaMemcpyDeviceToHost));
	return seq;
}

/*
 * The graph with the send half is never launched, and the handle's memory names bank 0 and step 0. The graph
 * with the receive half is.
 */
static void never_sent(struct scene *s)
{
	cudaGraphExec_t send = capture_send(s, &s->a), receive = capture_receive(s, &s->a);

	NEED_CUDA(cudaMemset(s->a.mem.t.data, 0, s->a.mem.bytes));
	NEED_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
	launch(s, receive);
	expect_failed(s, "the send_only operation before it did not");
	NEED_CUDA(cudaGraphExecDestroy(receive));
	NEED_CUDA(cudaGraphExecDestroy(send));
}

/* It is launched until every bank holds an operation that nobody receives, and once more. */
static void sent_again(struct scene *s)
{
	cudaGraphExec_t send = capture_send(s, &s->a);

	for (uint32_t i = 1; i <= EP_GROUP_BANKS; i++) {
		launch(s, send);
		CHECK_INT(sequence(s).busy, (1u << i) - 1);
		CHECK_LAST(s->group, ncclSuccess, "");
	}
	launch(s, send);
	expect_failed(s, "has not been completed");
	NEED_CUDA(cudaGraphExecDestroy(send));
}

/* The same, and what comes after is whole. */
static void sent_before_whole(struct scene *s)
{
	cudaGraphExec_t send = capture_send(s, &s->a);

	for (uint32_t i = 0; i < EP_GROUP_BANKS; i++) {
		launch(s, send);
	}
	OK_SYNC(bench_dispatch(&s->b, s->w->stream), s->w->stream);
	expect_failed(s, "has not been completed");
	NEED_CUDA(cudaGraphExecDestroy(send));
}

/* The graph with the receive half is launched twice. */
static void received_again(struct scene *s)
{
	cudaGraphExec_t receive;

	bench_poison(&s->a);
	OK(bench_send_dispatch(&s->a, s->w->stream));
	receive = capture_receive(s, &s->a);
	launch(s, receive);
	bench_check_dispatch(&s->a);
	CHECK_LAST(s->group, ncclSuccess, "");
	launch(s, receive);
	expect_failed(s, "the send_only operation before it did not");
	bench_check_dispatch(&s->a); /* not written again */
	NEED_CUDA(cudaGraphExecDestroy(receive));
}

/* The second time another handle's operation holds the bank: it is not taken from it. */
static void received_taken(struct scene *s)
{
	cudaGraphExec_t receive;
	uint32_t bank;

	OK(bench_send_dispatch(&s->a, s->w->stream));
	receive = capture_receive(s, &s->a);
	launch(s, receive);
	bank = bank_of(&s->a);
	bench_pair(&s->b); /* two operations, in the banks that were freed before */
	CHECK_INT(sequence(s).next, bank);
	OK_SYNC(bench_send_dispatch(&s->b, s->w->stream), s->w->stream);
	CHECK_INT(sequence(s).busy, 1u << bank);
	CHECK_INT(bank_of(&s->b), bank);
	launch(s, receive);
	CHECK_INT(sequence(s).busy, 1u << bank); /* still held */
	expect_failed(s, "the send_only operation before it did not");
	NEED_CUDA(cudaGraphExecDestroy(receive));
}

static cudaGraphExec_t capture_dispatch(struct scene *s, struct bench *b)
{
	world_capture(s->w->stream);
	OK(bench_dispatch(b, s->w->stream));
	return world_captured(s->w->stream);
}

/* The graph with the dispatch is never launched, and handle memory is full of anything. */
static void never_dispatched(struct scene *s)
{
	cudaGraphExec_t dispatch = capture_dispatch(s, &s->a);
	uint64_t tokens = 4711, rows = 4711;

	CHECK_REASON(ncclEpExtNumRecvTokens(s->a.handle, &tokens, &rows, s->w->stream),
		     ncclInvalidUsage, "launch the graph");
	CHECK(tokens == 4711 && rows == 4711);
	bench_expert_work(&s->a);
	OK_SYNC(bench_combine(&s->a, s->w->stream), s->w->stream);
	expect_failed(s, "last dispatch did not run");
	NEED_CUDA(cudaGraphExecDestroy(dispatch));
}

/* The same in two halves. */
static void never_dispatched_split(struct scene *s)
{
	cudaGraphExec_t dispatch = capture_dispatch(s, &s->a);
	ncclResult_t result;

	OK(bench_send_combine(&s->a, s->w->stream));
	result = ncclEpComplete(s->a.handle, NULL, s->w->stream); /* may know of it by then */
	CHECK(result == ncclSuccess || result == ncclInvalidUsage);
	NEED_CUDA(cudaStreamSynchronize(s->w->stream));
	expect_failed(s, "last dispatch did not run");
	NEED_CUDA(cudaGraphExecDestroy(dispatch));
}

/* The memory is that of another handle, which was destroyed after its dispatch. */
static void dispatched_by_another(struct scene *s)
{
	struct bench before, after;
	cudaGraphExec_t dispatch;

	bench_open(&before, s->w, s->group, &s->a.p, 0);
	bench_pair(&before);
	bench_close(&before);
	bench_open(&after, s->w, s->group, &s->a.p, 0);
	OK(bench_update(&after, s->w->stream));
	dispatch = capture_dispatch(s, &after);
	CHECK_REASON(ncclEpExtNumRecvTokens(after.handle, NULL, NULL, s->w->stream),
		     ncclInvalidUsage, "launch the graph");
	OK_SYNC(bench_combine(&after, s->w->stream), s->w->stream);
	expect_failed(s, "last dispatch did not run");
	NEED_CUDA(cudaGraphExecDestroy(dispatch));
	bench_close(&after);
}

/* The dispatch that ran was of fewer tokens: of the others, memory does not say who returns them. */
static void dispatched_fewer(struct scene *s)
{
	uint64_t before = 0, tokens = 0;
	cudaGraphExec_t dispatch;

	bench_load_tokens(&s->a, 5, 1);
	bench_pair(&s->a);
	OK(ncclEpExtNumRecvTokens(s->a.handle, &before, NULL, s->w->stream));
	bench_load_tokens(&s->a, 6, s->a.p.max_tokens);
	OK(bench_update(&s->a, s->w->stream));
	dispatch = capture_dispatch(s, &s->a);
	OK(ncclEpExtNumRecvTokens(s->a.handle, &tokens, NULL, s->w->stream));
	CHECK_INT(tokens, before); /* of the dispatch that has run */
	OK_SYNC(bench_combine(&s->a, s->w->stream), s->w->stream);
	expect_failed(s, "another number of tokens");
	NEED_CUDA(cudaGraphExecDestroy(dispatch));
}

/* Ranks forget what they dispatched when they call MaskClean: one of them may have been away. */
static void dispatched_before_clean(struct scene *s)
{
	cudaGraphExec_t combine;

	bench_pair(&s->a);
	bench_dispatch_checked(&s->b);
	world_capture(s->w->stream);
	OK(bench_combine(&s->b, s->w->stream));
	combine = world_captured(s->w->stream);
	launch(s, combine);
	bench_check_combine(&s->b);
	OK(ncclEpMaskClean(s->group, s->w->stream));
	CHECK_REASON(bench_combine(&s->a, s->w->stream), ncclInvalidUsage, "ncclEpMaskClean");
	bench_pair_of(&s->a, 7);
	bench_poison(&s->b);
	OK(bench_dispatch(&s->b, s->w->stream));
	launch(s, combine); /* of a new dispatch it is good again */
	bench_check_combine(&s->b);
	OK(ncclEpMaskClean(s->group, s->w->stream));
	launch(s, combine);
	expect_failed(s, "ncclEpMaskClean ran since");
	NEED_CUDA(cudaGraphExecDestroy(combine));
}

static void (*const acts[])(struct scene *s) = {
	never_sent,
	sent_again,
	sent_before_whole,
	received_again,
	received_taken,
	never_dispatched,
	never_dispatched_split,
	dispatched_by_another,
	dispatched_fewer,
	dispatched_before_clean,
};

static void run(struct world *w, void *arg)
{
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 256, 4, ORACLE_EXPERT_MAJOR);
	size_t n = sizeof(acts) / sizeof(acts[0]);

	for (size_t i = 0; i <= n; i++) {
		struct scene s = { .w = w };

		check_context("act %zu", i);
		s.group = bench_group_bounded(w->comm, &p, BENCH_MASK, TIMEOUT_MS);
		bench_open(&s.a, w, s.group, &p, BENCH_OWN_MEM);
		bench_open(&s.b, w, s.group, &p, BENCH_OWN_MEM);
		OK(bench_update(&s.a, w->stream));
		OK(bench_update(&s.b, w->stream));
		if (i < n) {
			acts[i](&s);
		} else {
			bench_pair(&s.a);
		}
		world_meet(w);
		bench_close(&s.a);
		bench_end(&s.b);
	}
}

int main(void)
{
	world_run(world_size(2), run, NULL);
	return check_end();
}
