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
	struct bench a, b, c; /* c: of given_up alone */
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
 * The graph with the send half is never launched, and the handle's memory names bank 0 and step 0.
 * The graph with the receive half is.
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

/* The graph with the receive half is launched twice. The tokens are another's by then. */
static void received_again(struct scene *s)
{
	cudaGraphExec_t receive;

	bench_poison(&s->a);
	OK(bench_send_dispatch(&s->a, s->w->stream));
	NEED_CUDA(cudaMemsetAsync(s->a.in_tokens.t.data, 0xee, s->a.in_tokens.bytes, s->w->stream));
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
	CHECK(sequence(s).next != bank); /* peers may still have to leave it */
	bench_pair(&s->b);
	OK_SYNC(bench_dispatch(&s->b, s->w->stream), s->w->stream);
	CHECK_INT(sequence(s).next, bank); /* two banks take turns */
	OK_SYNC(bench_send_dispatch(&s->b, s->w->stream), s->w->stream);
	CHECK_INT(sequence(s).busy, 1u << bank);
	CHECK_INT(bank_of(&s->b), bank);
	launch(s, receive);
	CHECK_INT(sequence(s).busy, 1u << bank); /* still held */
	expect_failed(s, "the send_only operation before it did not");
	NEED_CUDA(cudaGraphExecDestroy(receive));
}

/*
 * Two banks have taken turns for days, and the third one was freed too many steps ago to compare:
 * it is free.
 */
static void rested(struct scene *s)
{
	size_t bytes = EP_GROUP_MAX_BLOCKS * sizeof(struct ep_dev_seq);
	struct ep_dev_seq *seq = malloc(bytes);

	NEED(seq);
	bench_pair(&s->a);
	NEED_CUDA(cudaMemcpy(seq, s->group->seq, bytes, cudaMemcpyDeviceToHost));
	for (uint32_t i = 0; i < EP_GROUP_MAX_BLOCKS; i++) {
		CHECK_INT(seq[i].freed[2], 0);
		seq[i].freed[2] = seq[i].step + (1u << 31) - 8; /* less than 2^32 steps ago */
	}
	NEED_CUDA(cudaMemcpy(s->group->seq, seq, bytes, cudaMemcpyHostToDevice));
	free(seq);
	OK(bench_send_dispatch(&s->a, s->w->stream));
	OK(bench_dispatch(&s->b, s->w->stream));
	OK_SYNC(bench_send_dispatch(&s->b, s->w->stream), s->w->stream);
	CHECK_INT(bank_of(&s->b), 2);
	OK(ncclEpComplete(s->b.handle, NULL, s->w->stream));
	OK_SYNC(ncclEpComplete(s->a.handle, NULL, s->w->stream), s->w->stream);
	CHECK_INT(bench_masked(s->w, s->group), 0);
	CHECK_LAST(s->group, ncclSuccess, "");
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

/*
 * The dispatch that ran was of fewer tokens: of the others, memory does not say who returns them.
 */
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
	rested,
	never_dispatched,
	never_dispatched_split,
	dispatched_by_another,
	dispatched_fewer,
	dispatched_before_clean,
};

static void run(struct world *w, void *arg)
{
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 256, 20, ORACLE_EXPERT_MAJOR);
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

static int main_halves(int argc, char **argv)
{
	world_run(world_size(2), run, NULL);
	return check_end();
}

/*
 * given_up: captured halves whose graphs run never, once or often. A capture that is given up
 * behind a send half takes no bank and holds up no call, on all ranks or on one. Halves pair inside
 * a capture, or across graphs in the order of their launches; ncclEpComplete outside of captures
 * finds out whether a graph has sent.
 */

#define ROUNDS 4 /* more than a group has banks */

static void give_up_send(struct scene *s, struct bench *b)
{
	world_capture(s->w->stream);
	OK(bench_send_dispatch(b, s->w->stream));
	world_capture_drop(s->w->stream);
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

/*
 * The send half runs, and its ncclEpComplete is captured and given up: called again, it receives.
 */
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
 * The graph with the receive half alone runs, as the group's first step: the rank refuses it at
 * once, and blames no peer for it.
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

static void (*const given_up_acts[])(struct scene *s) = {
	refused_first, by_all,           by_one, combine_by_all,   destroyed,  completed_unsent,
	together,      received_eagerly, apart,  receive_given_up, pushed_out, growth,
};

static void given_up_run(struct world *w, void *arg)
{
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 256, 4, ORACLE_EXPERT_MAJOR);
	struct oracle_problem q = bench_problem(w->nranks, 12, 2, 128, 4, ORACLE_RANK_MAJOR);

	for (size_t i = 0; i < sizeof(given_up_acts) / sizeof(given_up_acts[0]); i++) {
		struct scene s = { .w = w };

		check_context("act %zu", i);
		s.group = bench_group_bounded(w->comm, &p, BENCH_MASK, TIMEOUT_MS);
		bench_open(&s.a, w, s.group, &p, BENCH_OWN_MEM);
		bench_open(&s.b, w, s.group, &q, 0);
		bench_open(&s.c, w, s.group, &p, 0);
		OK(bench_update(&s.a, w->stream));
		OK(bench_update(&s.b, w->stream));
		OK(bench_update(&s.c, w->stream));
		given_up_acts[i](&s);
		world_meet(w);
		bench_close(&s.a);
		bench_close(&s.b);
		bench_end(&s.c);
	}
}

static int main_given_up(int argc, char **argv)
{
	world_run(world_size(2), given_up_run, NULL);
	return check_end();
}

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "halves", main_halves },
		{ "given_up", main_given_up },
	};

	return check_cases(argc, argv, cases, sizeof(cases) / sizeof(*cases));
}
