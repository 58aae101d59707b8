// SPDX-License-Identifier: Apache-2.0
/*
 * Direct dispatch: rows that senders store into receivers' windows. Which dispatches are direct, what
 * zero_copy asks for, late and lost ranks, graphs, ranks that disagree.
 *
 *     direct modes|late|lost|graphs|disagree|old|far|many
 */
#include <unistd.h>
#include "support/bench.h"

#define RANKS 3
#define WINDOW BENCH_WINDOW

static const struct oracle_problem problem = {
	.nranks = RANKS,
	.experts = 2 * RANKS,
	.topk = 4,
	.hidden = 720, /* three quads, and some padding of the last one where scales follow */
	.tokens = 12,
	.max_tokens = 13,
	.layout = ORACLE_RANK_MAJOR,
	.dtype = ORACLE_BF16,
	.seed = 7,
};

struct mode {
	const char *name;
	ncclEpZeroCopyMode_t zero_copy;
	enum oracle_layout layout;
	enum oracle_quant quant;
	uint32_t flags;
	const char *bytes; /* NCCL_EP_LL_DIRECT_BYTES */
	bool direct;
	const char *refused; /* NULL: not */
};

#define RM ORACLE_RANK_MAJOR
#define AUTO ((ncclEpZeroCopyMode_t)NCCL_EP_AUTO)
#define OFF NCCL_EP_ZERO_COPY_OFF
#define ON NCCL_EP_ZERO_COPY_ON
#define NONE ORACLE_QUANT_NONE
#define FWD ORACLE_QUANT_FORWARD

static const struct mode modes[] = {
	{ "auto", AUTO, RM, NONE, WINDOW, "0", true, NULL },
	{ "auto and data", AUTO, RM, NONE, WINDOW | BENCH_DATA, "0", true, NULL },
	{ "auto by halves", AUTO, RM, NONE, WINDOW | BENCH_PENDING, "18720", true, NULL },
	{ "auto, little", AUTO, RM, NONE, WINDOW, "18721", false, NULL },
	{ "auto, never", AUTO, RM, NONE, WINDOW, "-1", false, NULL },
	{ "auto, no window", AUTO, RM, NONE, 0, "0", false, NULL },
	{ "auto, scales", AUTO, RM, FWD, WINDOW | BENCH_DATA, "0", true, NULL },
	{ "auto, one of two", AUTO, RM, FWD, WINDOW | BENCH_NO_SCALES, "0", false, NULL },
	{ "auto, experts", AUTO, ORACLE_EXPERT_MAJOR, NONE, WINDOW, "0", false, NULL },
	{ "auto, fp8", AUTO, RM, ORACLE_QUANT_FP8, WINDOW, "0", false, NULL },
	{ "off", OFF, RM, NONE, WINDOW, "0", false, NULL },
	{ "on", ON, RM, NONE, WINDOW, "-1", true, NULL },
	{ "on, scales", ON, RM, FWD, WINDOW, "-1", true, NULL },
	{ "on, one of two", ON, RM, FWD, WINDOW | BENCH_NO_SCALES, "0", false, NULL },
	{ "on, no window", ON, RM, NONE, 0, "0", false, "since it has no window: register" },
	{ "on, none of two", ON, RM, FWD, 0, "0", false,
	  "since it has no window; nor to outputs->scales, since it has no window" },
	{ "on, experts", ON, ORACLE_EXPERT_MAJOR, NONE, WINDOW, "0", false,
	  "zero_copy ON: only rank-major" },
	{ "on, fp8", ON, RM, ORACLE_QUANT_FP8, WINDOW, "0", false,
	  "zero_copy ON: only rank-major" },
};

/* Across nodes. */
static const struct mode far[] = {
	{ "auto, far", AUTO, RM, NONE, WINDOW | BENCH_DATA, "0", false, NULL },
	{ "on, far", ON, RM, NONE, WINDOW, "0", false, "whose ranks are all of one node" },
};

static struct oracle_problem problem_of(const struct mode *m)
{
	struct oracle_problem p = problem;

	p.nranks = (uint32_t)world_size(RANKS);
	p.experts = 2 * p.nranks;
	p.layout = m->layout;
	p.quant = m->quant;
	if (m->quant == ORACLE_QUANT_FP8) {
		p.hidden = 768;
	}
	return p;
}

static ncclEpGroup_t group_of(struct world *w, const struct mode *m, double timeout_ms)
{
	struct oracle_problem p = problem_of(m);
	ncclEpGroupConfig_t config = bench_group_config(&p, m->flags);
	ncclEpGroup_t group = NULL;

	world_setenv(w, "NCCL_EP_LL_DIRECT_BYTES", m->bytes);
	config.zero_copy = m->zero_copy;
	config.max_num_sms = 3;
	config.timeout_ns = (uint64_t)(timeout_ms * 1e6);
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	return group;
}

/* Only the send halves run: what lies in the output then has come directly. */
static bool sent_directly(struct bench *b)
{
	bool direct;

	bench_poison(b);
	NEED_OK(bench_update(b, b->w->stream));
	NEED_OK(bench_send_dispatch(b, b->w->stream));
	NEED_CUDA(cudaStreamSynchronize(b->w->stream));
	world_meet(b->w);
	direct = bench_touched(b);
	world_meet(b->w);
	NEED_OK(ncclEpComplete(b->handle, NULL, b->w->stream));
	NEED_CUDA(cudaStreamSynchronize(b->w->stream));
	bench_check_dispatch(b);
	return direct;
}

static void run_mode(struct world *w, void *arg)
{
	const struct mode *m = arg;
	struct oracle_problem p = problem_of(m);
	ncclEpGroup_t group = group_of(w, m, 60000);
	struct bench b;

	check_context("%s", m->name);
	bench_open(&b, w, group, &p, m->flags);
	if (m->refused) {
		NEED_OK(bench_update(&b, w->stream));
		CHECK_REASON(bench_dispatch(&b, w->stream), ncclInvalidArgument, m->refused);
	} else {
		CHECK_INT(sent_directly(&b), m->direct);
		for (uint64_t i = 0; i < 4; i++) { /* all banks, and nobody waits in between */
			bench_load_tokens(&b, 50 + i, i == 2 ? 1 : p.tokens);
			bench_pair(&b);
		}
	}
	CHECK_LAST(group, m->refused ? ncclInvalidArgument : ncclSuccess, "");
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
}

/* A tensor that its window does not hold, or data elsewhere: rows come by way of the heap. */
static void run_unusable(struct world *w, void *arg)
{
	struct mode m = { "", AUTO, RM, NONE, WINDOW | BENCH_DATA, "0", false, NULL };
	struct oracle_problem p = problem_of(&m);
	struct bench b;

	for (uint32_t i = 0; i < 6; i++) {
		ncclEpGroup_t group;

		check_context("unusable %u", i);
		m.zero_copy = i % 2 ? ON : AUTO;
		group = group_of(w, &m, 60000);
		bench_open(&b, w, group, &p, m.flags);
		b.out_tokens.t.win_offset = i / 2 == 0 ? 4096 : i / 2 == 1 ? 32 : UINT64_MAX - 15;
		if (i % 2) {
			NEED_OK(bench_update(&b, w->stream));
			CHECK_REASON(bench_dispatch(&b, w->stream), ncclInvalidArgument,
				     i / 2 == 1 ? "its data is not at win_offset"
						: "the window does not hold all of it");
		} else {
			CHECK(!sent_directly(&b));
		}
		bench_close(&b);
		OK(ncclEpGroupDestroy(group));
	}
}

/* By window alone such a tensor is nowhere, whether rows would come directly or not. */
static void run_alone(struct world *w, void *arg)
{
	struct mode m = { "", AUTO, RM, NONE, WINDOW, "-1", false, NULL };
	static const uint64_t offsets[] = { 4096, UINT64_MAX - 15 };
	struct oracle_problem p = problem_of(&m);
	ncclEpGroup_t group = group_of(w, &m, 60000);
	struct bench b;
	ncclEpTensor_t good;

	check_context("window alone");
	bench_open(&b, w, group, &p, m.flags);
	NEED_OK(bench_update(&b, w->stream));
	good = b.out_tokens.t;
	for (int i = 0; i < 2; i++) {
		b.out_tokens.t.win_offset = offsets[i];
		CHECK_REASON(bench_dispatch(&b, w->stream), ncclInvalidArgument,
			     "do not lie in its window");
		b.out_tokens.t = good;
	}
	b.out_tokens.t.win_hdl = (ncclWindow_t)&b;
	CHECK_REASON(bench_dispatch(&b, w->stream), ncclInvalidArgument, "knows no window");
	b.out_tokens.t = good;
	bench_pair(&b);
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
}

/* More windows than a group remembers, and handles that come again. */
static void run_windows(struct world *w, void *arg)
{
	struct mode m = { "", ON, RM, NONE, WINDOW, "0", true, NULL };
	struct oracle_problem p = problem_of(&m);
	ncclEpGroup_t group = group_of(w, &m, 60000);
	struct bench b[10];

	check_context("many windows");
	for (int round = 0; round < 2; round++) {
		for (int i = 0; i < 10; i++) {
			bench_open(&b[i], w, group, &p, m.flags);
			CHECK(sent_directly(&b[i]));
		}
		for (int i = 0; i < 10; i += 3) {
			CHECK(sent_directly(&b[i]));
		}
		world_meet(w);
		for (int i = 0; i < 10; i++) {
			bench_close(&b[i]);
		}
	}
	OK(ncclEpGroupDestroy(group));
}

/* What the last dispatch brought stays until its reader starts the next one. */
static void run_late(struct world *w, void *arg)
{
	struct mode m = { "", ON, RM, NONE, WINDOW, "0", true, NULL };
	struct oracle_problem p = problem_of(&m);
	ncclEpGroup_t group = group_of(w, &m, 60000);
	struct bench b;

	bench_open(&b, w, group, &p, m.flags);
	for (int late = 0; late < w->nranks; late++) {
		check_context("rank %d is late", late);
		bench_load(&b, 100 + (uint64_t)late);
		bench_dispatch_checked(&b);
		if (w->rank == late) {
			world_meet(w);
			usleep(100000); /* the others have sent long ago, if nothing holds them */
			bench_check_dispatch(&b);
			bench_poison(&b);
			usleep(20000);
			CHECK(!bench_touched(&b));
			bench_load(&b, 200 + (uint64_t)late);
		} else {
			bench_load(&b, 200 + (uint64_t)late);
			bench_poison(&b);
			world_meet(w);
		}
		NEED_OK(bench_update(&b, w->stream));
		NEED_OK(bench_dispatch(&b, w->stream));
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		bench_check_dispatch(&b);
		NEED_OK(bench_combine(&b, w->stream));
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		bench_check_combine(&b);
		world_meet(w);
	}
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
}

/* A rank that has been given up does not store to those who went on without it. */
static void run_lost(struct world *w, void *arg)
{
	struct mode m = { "", ON, RM, NONE, WINDOW | BENCH_MASK, "0", true, NULL };
	struct oracle_problem p = problem_of(&m);
	ncclEpGroup_t group = group_of(w, &m, 700);
	int lost = w->nranks - 1;
	struct bench b;

	check_context("rank %d is lost", lost);
	bench_open(&b, w, group, &p, m.flags);
	bench_pair(&b);
	world_meet(w);
	if (w->rank != lost) {
		b.p.absent = UINT64_C(1) << lost;
		for (uint64_t i = 0; i < 2; i++) {
			bench_load(&b, 70 + i);
			bench_dispatch_checked(&b);
			CHECK_INT(bench_masked(w, group), b.p.absent);
		}
		bench_poison(&b);
		world_meet(w);
		world_meet(w);
		CHECK(!bench_touched(&b));
	} else {
		world_meet(w);
		bench_load(&b, 70);
		bench_poison(&b);
		NEED_OK(bench_update(&b, w->stream));
		NEED_OK(bench_dispatch(&b, w->stream));
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		CHECK_INT(bench_masked(w, group), (UINT64_C(1) << lost) - 1);
		world_meet(w);
	}
	world_meet(w);
	OK(ncclEpMaskClean(group, w->stream));
	OK(ncclEpErrorClear(group));
	b.p.absent = 0;
	world_meet(w);
	bench_pair_of(&b, 80);
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
}

/* A captured pair, replayed with other inputs, between pairs that are not. */
static void run_graphs(struct world *w, void *arg)
{
	struct mode m = { "", ON, RM, FWD, WINDOW | BENCH_PENDING, "0", true, NULL };
	struct oracle_problem p = problem_of(&m);
	ncclEpGroup_t group = group_of(w, &m, 60000);
	cudaGraphExec_t exec;
	cudaGraph_t graph;
	struct bench b;

	bench_open(&b, w, group, &p, m.flags);
	NEED_OK(bench_update(&b, w->stream));
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	NEED_CUDA(cudaStreamBeginCapture(w->stream, cudaStreamCaptureModeThreadLocal));
	NEED_OK(bench_dispatch(&b, w->stream));
	NEED_OK(bench_combine(&b, w->stream));
	NEED_CUDA(cudaStreamEndCapture(w->stream, &graph));
	NEED_CUDA(cudaGraphInstantiate(&exec, graph, 0));
	for (uint64_t i = 0; i < 8; i++) {
		check_context("replay %d", (int)i);
		if (i % 3 == 1) {
			bench_pair_of(&b, 300 + i);
			continue;
		}
		bench_load(&b, 300 + i);
		bench_expert_work(&b);
		bench_poison(&b);
		NEED_CUDA(cudaGraphLaunch(exec, w->stream));
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		bench_check_dispatch(&b);
		bench_check_combine(&b);
	}
	NEED_CUDA(cudaGraphExecDestroy(exec));
	NEED_CUDA(cudaGraphDestroy(graph));
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
}

enum odd {
	ODD_NONE, /* no window */
	ODD_TOKENS,
	ODD_SCALES
};

static const enum odd odds[] = { ODD_TOKENS, ODD_NONE, ODD_SCALES };

/* Rank 0 has an output elsewhere than the others, or no window. */
static void run_disagree(struct world *w, void *arg)
{
	enum odd odd = *(const enum odd *)arg;
	bool offset = odd != ODD_NONE;
	struct mode m = { "", AUTO, RM, FWD, WINDOW | BENCH_DATA, "0", true, NULL };
	struct oracle_problem p = problem_of(&m);
	const char *named = offset ? "the same win_offset of the same window"
				   : "or only one has windows for its outputs";
	struct bench_tensor *moved;
	ncclEpGroup_t group = group_of(w, &m, 2000);
	const char *text = "";
	ncclResult_t code;
	struct bench b;

	check_context("ranks disagree, %d", (int)odd);
	bench_open(&b, w, group, &p, m.flags);
	NEED_OK(bench_update(&b, w->stream));
	moved = odd == ODD_SCALES ? &b.out_scales : &b.out_tokens;
	if (w->rank == 0 && offset) {
		moved->t.win_offset -= 64;
		moved->t.data = (char *)moved->t.data - 64;
	} else if (w->rank == 0) {
		b.out_tokens.t.win_hdl = NULL;
	}
	NEED_OK(bench_dispatch(&b, w->stream));
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	CHECK_RESULT(bench_update(&b, w->stream), ncclRemoteError);
	/* who finds it first may end its operation before it has told the others */
	(void)ncclEpExtGetLastError(group, &code, &text);
	world_raise(w, (int)odd, strstr(text, named) ? 2 : 1);
	world_meet(w);
	if (world_look(w, (int)odd, w->rank) == 1) {
		CHECK_HAS(text, "look for that rank's own error");
		CHECK(world_look(w, (int)odd, 0) == 2 || world_look(w, (int)odd, 1) == 2 ||
		      world_look(w, (int)odd, 2) == 2);
	}
	if (w->rank == 0 && offset) {
		moved->t.data = (char *)moved->t.data + 64;
	}
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
}

/* One more rank than a kernel has room for the tensors of. */
static void run_many(struct world *w, void *arg)
{
	struct oracle_problem p = bench_problem(w->nranks, (uint32_t)w->nranks, 2, 64, 1, RM);
	ncclEpGroupConfig_t config = bench_group_config(&p, WINDOW);
	ncclEpGroup_t group = NULL;
	struct bench b;

	config.zero_copy = ON;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	bench_open(&b, w, group, &p, WINDOW);
	NEED_OK(bench_update(&b, w->stream));
	CHECK_REASON(bench_dispatch(&b, w->stream), ncclInvalidArgument, "at most 72 ranks");
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
}

/* An NCCL that does not tell where windows are. */
static void run_old(struct world *w, void *arg)
{
	struct mode m = { "", AUTO, RM, NONE, WINDOW | BENCH_DATA, "0", false, NULL };
	struct oracle_problem p = problem_of(&m);
	ncclEpGroup_t group = group_of(w, &m, 60000);
	struct bench b;

	bench_open(&b, w, group, &p, m.flags);
	CHECK(!sent_directly(&b));
	b.flags &= ~(uint32_t)BENCH_DATA;
	CHECK_REASON(bench_dispatch(&b, w->stream), ncclInvalidUsage, "use NCCL 2.29 or later");
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
	m.zero_copy = ON;
	group = group_of(w, &m, 60000);
	bench_open(&b, w, group, &p, m.flags);
	NEED_OK(bench_update(&b, w->stream));
	CHECK_REASON(bench_dispatch(&b, w->stream), ncclInvalidArgument,
		     "NCCL 2.29.2 and later do");
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
}

int main(int argc, char **argv)
{
	const char *what = argc == 2 ? argv[1] : "";
	int ranks = world_size(RANKS);

	if (!strcmp(what, "modes")) {
		for (size_t i = 0; i < sizeof(modes) / sizeof(modes[0]); i++) {
			world_run(ranks, run_mode, (void *)&modes[i]);
		}
		world_run(ranks, run_unusable, NULL);
		world_run(ranks, run_alone, NULL);
		world_run(ranks, run_windows, NULL);
	} else if (!strcmp(what, "late")) {
		world_run(ranks, run_late, NULL);
	} else if (!strcmp(what, "lost")) {
		world_run(ranks, run_lost, NULL);
	} else if (!strcmp(what, "graphs")) {
		world_run(ranks, run_graphs, NULL);
	} else if (!strcmp(what, "disagree")) {
		for (size_t i = 0; i < sizeof(odds) / sizeof(odds[0]); i++) {
			world_run(ranks, run_disagree, (void *)&odds[i]);
		}
	} else if (!strcmp(what, "old")) {
		world_run(ranks, run_old, NULL);
	} else if (!strcmp(what, "far")) {
		for (size_t i = 0; i < sizeof(far) / sizeof(far[0]); i++) {
			world_run(ranks, run_mode, (void *)&far[i]);
		}
	} else if (!strcmp(what, "many")) {
		world_run(73, run_many, NULL);
	} else {
		fprintf(stderr, "usage: direct modes|late|lost|graphs|disagree|old|far|many\n");
		return 2;
	}
	return check_end();
}
