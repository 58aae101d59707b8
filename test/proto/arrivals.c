/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatches that count arrivals, on random shapes and routings: while a dispatch runs, a thread
 * polls the counts, and compares the rows of an expert with the oracle when the count says that all
 * are there.
 *
 *     arrivals KIND SEED COUNT [RANKS]
 *
 * KIND: em, forward or crowd of support/ht_bench.h; or parts: rows are stored in five parts.
 */
#include <pthread.h>
#include <unistd.h>
#include "support/bench.h"
#include "support/ht_bench.h"

struct poller {
	struct ht_bench *b;
	const ncclEpExtArrivals_t *arrivals;
	bool backward;
	uint32_t complete;
	bool failed;
	uint32_t over; /* the dispatch is: one look more */
	pthread_t thread;
};

static const ncclEpExtArrival_t *expert_of(const ncclEpExtArrivals_t *arrivals, uint32_t e)
{
	return arrivals->expert + e;
}

static uint32_t acquire(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* The rows of an expert, as they lie in the device's memory now. */
static void check_expert(const struct poller *p, const ncclEpExtArrival_t *expert)
{
	struct ht_bench *b = p->b;
	const struct oracle_ht_table *t = b->tables[b->w->rank];
	size_t first = expert->first, row = oracle_input_bytes(&b->h.p);
	struct oracle_ht_output out = { .tokens = (uint8_t *)b->out_tokens.data + first * row };
	struct oracle_verdict verdict = { 0 };

	if (b->h.p.quant != ORACLE_QUANT_NONE) {
		out.scales =
			(uint8_t *)b->out_scales.data + first * 4 * oracle_scale_words(&b->h.p);
	}
	if (!p->backward) {
		out.weights = (float *)b->out_weights.data + first;
	}
	oracle_ht_check_rows(&b->h, t, first, expert->rows, &out, &verdict);
	CHECK(!verdict.wrong, "%llu wrong while the dispatch runs, first:\n%s",
	      (unsigned long long)verdict.wrong, verdict.text);
}

static void *poll_all(void *arg)
{
	struct poller *p = arg;
	uint32_t experts = p->arrivals->experts;
	bool *seen = calloc(experts, sizeof(*seen)), over = false;

	NEED(seen);
	while (p->complete < experts && !p->failed && !over) {
		over = acquire(&p->over);
		p->failed = acquire(&p->arrivals->failed) != 0;
		for (uint32_t e = 0; e < experts; e++) {
			const ncclEpExtArrival_t *expert = expert_of(p->arrivals, e);

			if (!seen[e] && acquire(&expert->missing) == 0) {
				check_expert(p, expert);
				seen[e] = true;
				p->complete++;
			}
		}
		usleep(10); /* a wait, so that the clock may go on */
	}
	free(seen);
	return NULL;
}

static void poll_begin(struct poller *p, struct ht_bench *b, const ncclEpExtArrivals_t *arrivals,
		       bool backward)
{
	*p = (struct poller){ .b = b, .arrivals = arrivals, .backward = backward };
	NEED(pthread_create(&p->thread, NULL, poll_all, p) == 0);
}

/* The dispatch is over: all experts are complete, or it has failed. */
static void poll_end(struct poller *p, bool fails)
{
	__atomic_store_n(&p->over, 1, __ATOMIC_RELEASE);
	NEED(pthread_join(p->thread, NULL) == 0);
	CHECK_INT(p->failed, fails);
	CHECK(fails || p->complete == p->arrivals->experts, "%u experts are complete", p->complete);
}

/* What the call leaves before the dispatch: all that the routing brings is missing. */
static void check_armed(const struct ht_bench *b, const ncclEpExtArrivals_t *arrivals)
{
	const struct oracle_ht_table *t = b->tables[b->w->rank];

	CHECK_INT(arrivals->failed, 0);
	CHECK_INT(arrivals->experts, t->nlocal);
	for (uint32_t e = 0; e < t->nlocal; e++) {
		const ncclEpExtArrival_t *expert = expert_of(arrivals, e);
		uint64_t rows = 0;

		for (int64_t i = t->offsets[e]; i < t->offsets[e] + t->counters[e]; i++) {
			rows += t->rows[i].kind == ORACLE_HT_ROW;
		}
		CHECK_INT(expert->rows, rows);
		CHECK_INT(expert->missing, rows);
		CHECK(!rows || expert->first == t->offsets[e], "expert %u begins at %u", e,
		      expert->first);
	}
}

struct early {
	struct ht_bench b;
	ncclEpExtArrivals_t *arrivals;
	size_t bytes;
};

static void start(struct early *y, cudaStream_t stream)
{
	NEED_OK(ncclEpExtStartArrivals(y->b.handle, y->arrivals, &y->bytes, stream));
}

/* A dispatch with a poller beside it, and the combine of its rows. */
static void early_pair(struct early *y, bool backward)
{
	struct ht_bench *b = &y->b;
	cudaStream_t stream = b->w->stream;
	struct poller p;

	start(y, stream);
	NEED_CUDA(cudaStreamSynchronize(stream));
	check_armed(b, y->arrivals);
	poll_begin(&p, b, y->arrivals, backward);
	NEED_SYNC(ht_dispatch(b, backward, stream), stream);
	poll_end(&p, false);
	ht_check_dispatch(b, backward);
	if (b->h.p.quant == ORACLE_QUANT_NONE) {
		ht_expert_work(b);
		NEED_SYNC(ht_combine(b, backward, stream), stream);
		ht_check_combine(b, backward);
	}
	world_meet(b->w);
	ht_poison(b);
	world_meet(b->w);
}

/* Both directions, and between them a dispatch that counts nothing. */
static void early_step(struct early *y)
{
	struct ht_bench *b = &y->b;

	ht_poison(b);
	NEED_SYNC(ht_update(b, b->w->stream), b->w->stream);
	early_pair(y, false);
	NEED_SYNC(ht_dispatch(b, true, b->w->stream), b->w->stream);
	ht_check_dispatch(b, true);
	for (uint32_t e = 0; e < y->arrivals->experts; e++) {
		CHECK_INT(expert_of(y->arrivals, e)->missing, 0);
	}
	world_meet(b->w);
	ht_poison(b);
	world_meet(b->w);
	early_pair(y, true);
}

static void early_open(struct early *y, struct world *w, ncclEpGroup_t group,
		       const struct oracle_ht *h, uint32_t flags)
{
	ht_open(&y->b, w, group, h, flags);
	NEED_OK(ncclEpUpdateHandle(y->b.handle, &y->b.ids.t, NULL, w->stream));
	NEED_OK(ncclEpExtStartArrivals(y->b.handle, NULL, &y->bytes, w->stream));
	NEED_CUDA(cudaMalloc((void **)&y->arrivals, y->bytes));
}

static void early_end(struct early *y)
{
	NEED_CUDA(cudaFree(y->arrivals));
	ht_end(&y->b);
}

static void run_case(struct world *w, void *arg)
{
	const struct ht_case *c = arg;
	struct early y = { 0 };

	ht_case_context(c, w);
	early_open(&y, w, ht_case_group(c, w), &c->h, c->flags & ~(uint32_t)HT_WINDOW);
	early_step(&y);
	ht_load(&y.b, c->seed + 5000000, c->second);
	early_step(&y);
	early_end(&y);
}

static int main_arrivals(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "em";
	uint64_t seed = world_number(argc > 2 ? argv[2] : NULL, 1);
	uint64_t count = world_number(argc > 3 ? argv[3] : NULL, 10);
	int ranks = (int)world_number(argc > 4 ? argv[4] : NULL, 0);
	bool parts = !strcmp(kind, "parts");

	for (uint64_t i = seed; i < seed + count; i++) {
		uint64_t s = i * 31 + 5;
		int nranks = world_size(1 + (int)world_draw(&s, 5));
		struct ht_case c;

		nranks = ranks ? ranks : nranks;
		c = ht_case_draw(nranks, parts ? "em" : kind, i);
		c.h.expert_major = 1;
		c.h.limit = 0;
		if (parts) {
			c.h.p.dtype = ORACLE_FP32;
			c.h.p.hidden = 15000;
			c.h.p.max_tokens = c.h.p.tokens = c.second = 9;
		}
		world_run(nranks, run_case, &c);
		oracle_routing_free(&c.h.p.routing);
	}
	return check_end();
}

/*
 * Dispatches with arrivals in graphs: update, start, dispatch and combine are captured once, and
 * replayed with other routings in the same buffers.
 *
 *     arrivals_graphs SEED ROUNDS
 */

static const uint64_t *given; /* seed and rounds */

static struct oracle_ht problem_of(int nranks)
{
	struct oracle_ht h = { .expert_major = 1, .alignment = 4 };

	h.p = (struct oracle_problem){ .seed = 1,
				       .nranks = (uint32_t)nranks,
				       .experts = 4 * (uint32_t)nranks,
				       .topk = 3,
				       .hidden = 1160,
				       .tokens = 20,
				       .max_tokens = 33,
				       .drop_ppm = 100000,
				       .dtype = ORACLE_BF16 };
	h.limit = (uint32_t)nranks * 33 * 3 + 16;
	return h;
}

/* Until the replay sets them, the counts say that all is missing, and that nothing comes. */
static void disarm(const struct early *y)
{
	uint32_t experts = y->b.h.p.experts / y->b.h.p.nranks;
	ncclEpExtArrival_t none = { .missing = UINT32_MAX };
	ncclEpExtArrivals_t head = { .experts = experts };

	NEED_CUDA(cudaMemcpy(y->arrivals, &head, sizeof(head), cudaMemcpyDefault));
	for (uint32_t e = 0; e < experts; e++) {
		NEED_CUDA(cudaMemcpy(y->arrivals->expert + e, &none, sizeof(none),
				     cudaMemcpyDefault));
	}
}

static void replay(struct early *y, cudaGraphExec_t graph, uint64_t seed)
{
	struct ht_bench *b = &y->b;
	struct poller p;

	ht_load(b, seed, 20);
	ht_poison(b);
	ht_expert_work(b);
	disarm(y);
	poll_begin(&p, b, y->arrivals, false);
	NEED_CUDA(cudaGraphLaunch(graph, b->w->stream));
	NEED_CUDA(cudaStreamSynchronize(b->w->stream));
	poll_end(&p, false);
	ht_check_counters(b);
	ht_check_dispatch(b, false);
	ht_check_combine(b, false);
}

static void run_graphs(struct world *w, void *arg)
{
	struct oracle_ht h = problem_of(w->nranks);
	cudaGraphExec_t graph;
	struct early y = { 0 };

	check_context("rank %d", w->rank);
	early_open(&y, w, ht_group(w, &h, 0, 60000), &h, HT_IDS64);
	world_capture(w->stream);
	NEED_OK(ht_update(&y.b, w->stream));
	start(&y, w->stream);
	NEED_OK(ht_dispatch(&y.b, false, w->stream));
	NEED_OK(ht_combine(&y.b, false, w->stream));
	graph = world_captured(w->stream);
	for (uint64_t i = 0; i < given[1]; i++) {
		check_context("round %llu, rank %d", (unsigned long long)i, w->rank);
		replay(&y, graph, given[0] + i);
		if (i % 2) { /* eager calls between replays */
			early_step(&y);
		}
	}
	NEED_CUDA(cudaGraphExecDestroy(graph));
	early_end(&y);
}

static int main_graphs(int argc, char **argv)
{
	uint64_t numbers[2] = { world_number(argc > 1 ? argv[1] : NULL, 1),
				world_number(argc > 2 ? argv[2] : NULL, 4) };

	given = numbers;
	world_run(world_size(3), run_graphs, NULL);
	return check_end();
}

/* What is refused, by name; and dispatches that fail say so to those who poll. */

static void refused(struct world *w, const struct oracle_ht *h, ncclEpGroup_t group,
		    ncclResult_t code, const char *why)
{
	struct early y = { 0 };

	ht_open(&y.b, w, group, h, 0);
	NEED_SYNC(ht_update(&y.b, w->stream), w->stream);
	CHECK_REASON(ncclEpExtStartArrivals(y.b.handle, NULL, &y.bytes, w->stream), code, why);
	ht_end(&y.b);
}

static void refuse_kinds(struct world *w)
{
	struct oracle_problem p =
		bench_problem(w->nranks, 4 * (uint32_t)w->nranks, 2, 64, 5, ORACLE_EXPERT_MAJOR);
	struct oracle_ht h = problem_of(w->nranks);
	struct bench low;
	size_t bytes = 0;

	h.expert_major = 0;
	h.alignment = 0;
	refused(w, &h, ht_group(w, &h, 0, 60000), ncclInvalidArgument,
		"needs an expert-major handle, this one is FLAT");
	h = problem_of(w->nranks);
	h.drop = 1;
	refused(w, &h, ht_group(w, &h, 0, 60000), ncclInvalidUsage, "overflow_policy is DROP");
	bench_open(&low, w, bench_group(w, &p, 0), &p, 0);
	CHECK_REASON(ncclEpExtStartArrivals(low.handle, NULL, &bytes, w->stream), ncclInvalidUsage,
		     "low latency");
	bench_end(&low);
}

/* Mistakes in the call leave the handle as it was: its next dispatch is an ordinary one. */
static void refuse_arguments(struct world *w)
{
	struct oracle_ht h = problem_of(w->nranks);
	struct early y = { 0 };
	ncclEpExtArrivals_t *beside;
	size_t less;

	ht_open(&y.b, w, ht_group(w, &h, 0, 60000), &h, 0);
	CHECK_REASON(ncclEpExtStartArrivals(y.b.handle, NULL, &y.bytes, w->stream),
		     ncclInvalidArgument, "has no routing");
	NEED_SYNC(ht_update(&y.b, w->stream), w->stream);
	CHECK_REASON(ncclEpExtStartArrivals(y.b.handle, NULL, NULL, w->stream), ncclInvalidArgument,
		     "bytes is NULL");
	NEED_OK(ncclEpExtStartArrivals(y.b.handle, NULL, &y.bytes, w->stream));
	NEED_CUDA(cudaMalloc((void **)&y.arrivals, y.bytes + 256));
	less = y.bytes - 1;
	CHECK_REASON(ncclEpExtStartArrivals(y.b.handle, y.arrivals, &less, w->stream),
		     ncclInvalidArgument, "call it with arrivals NULL for that number");
	beside = (void *)((char *)y.arrivals + 16);
	CHECK_REASON(ncclEpExtStartArrivals(y.b.handle, beside, &y.bytes, w->stream),
		     ncclInvalidArgument, "it must be aligned to 256 bytes");
	ht_poison(&y.b);
	NEED_SYNC(ht_dispatch(&y.b, false, w->stream), w->stream);
	ht_check_dispatch(&y.b, false);
	ht_poison(&y.b);
	start(&y, w->stream); /* a new routing forgets it */
	NEED_SYNC(ht_update(&y.b, w->stream), w->stream);
	NEED_SYNC(ht_dispatch(&y.b, false, w->stream), w->stream);
	ht_check_dispatch(&y.b, false);
	early_end(&y);
}

/*
 * Calls that launch nothing, since the stream is another device's, leave the counts to the dispatch
 * after them.
 */
static void refuse_launches(struct world *w)
{
	struct oracle_ht h = problem_of(w->nranks);
	cudaStream_t astray;
	struct early y = { 0 };
	struct poller p;
	int devices = 0;

	NEED_CUDA(cudaGetDeviceCount(&devices));
	if (devices == 1) {
		return; /* ranks share it */
	}
	NEED_CUDA(cudaSetDevice((w->device + 1) % devices));
	NEED_CUDA(cudaStreamCreateWithFlags(&astray, cudaStreamNonBlocking));
	NEED_CUDA(cudaSetDevice(w->device));
	early_open(&y, w, ht_group(w, &h, 0, 60000), &h, 0);
	ht_poison(&y.b);
	start(&y, w->stream);
	CHECK_REASON(ht_update(&y.b, astray), ncclInvalidUsage, "launching UpdateHandle");
	CHECK_REASON(ht_dispatch(&y.b, false, astray), ncclInvalidUsage,
		     "launching dispatch with arrivals");
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	check_armed(&y.b, y.arrivals);
	poll_begin(&p, &y.b, y.arrivals, false);
	NEED_SYNC(ht_dispatch(&y.b, false, w->stream), w->stream);
	poll_end(&p, false);
	ht_check_dispatch(&y.b, false);
	early_end(&y);
	NEED_CUDA(cudaStreamDestroy(astray));
}

/* Nor does it take from the call before its capture the dispatch for which that was made. */
static void lend_captured(struct world *w, struct early *y)
{
	ncclEpExtArrivals_t *before = y->arrivals;
	struct poller p;

	ht_poison(&y->b);
	start(y, w->stream);
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	NEED_CUDA(cudaMalloc((void **)&y->arrivals, y->bytes));
	for (int dispatches = 0; dispatches < 2; dispatches++) {
		world_capture(w->stream);
		start(y, w->stream);
		if (dispatches) {
			NEED_OK(ht_dispatch(&y->b, false, w->stream));
		}
		world_capture_drop(w->stream);
	}
	NEED_CUDA(cudaFree(y->arrivals));
	y->arrivals = before;
	poll_begin(&p, &y->b, y->arrivals, false);
	NEED_SYNC(ht_dispatch(&y->b, false, w->stream), w->stream);
	poll_end(&p, false);
	ht_check_dispatch(&y->b, false);
}

/* In a capture, too, a new routing forgets the call. */
static void forget_rerouted(struct world *w, struct early *y)
{
	cudaGraphExec_t graph;

	ht_poison(&y->b);
	world_capture(w->stream);
	start(y, w->stream);
	NEED_OK(ht_update(&y->b, w->stream));
	NEED_OK(ht_dispatch(&y->b, false, w->stream));
	graph = world_captured(w->stream);
	NEED_CUDA(cudaGraphLaunch(graph, w->stream));
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	ht_check_dispatch(&y->b, false);
	CHECK_LAST(y->b.group, ncclSuccess, "");
	NEED_CUDA(cudaGraphExecDestroy(graph));
}

/* A call that was captured concerns no dispatch outside of its capture, which is abandoned. */
static void forget_captured(struct world *w)
{
	struct oracle_ht h = problem_of(w->nranks);
	struct early y = { 0 };

	early_open(&y, w, ht_group(w, &h, 0, 60000), &h, 0);
	NEED_CUDA(cudaMemset(y.arrivals, 0, y.bytes));
	NEED_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
	ht_poison(&y.b);
	world_capture(w->stream);
	start(&y, w->stream);
	world_capture_drop(w->stream);
	NEED_SYNC(ht_dispatch(&y.b, false, w->stream), w->stream);
	ht_check_dispatch(&y.b, false);
	CHECK_LAST(y.b.group, ncclSuccess, "");
	world_meet(w);
	early_step(&y);
	lend_captured(w, &y);
	forget_rerouted(w, &y);
	early_end(&y);
}

/* A dispatch that fails as `fails` says, on all ranks, and a poller beside it. */
static void fail_all(struct world *w, struct early *y, const char *why)
{
	struct poller p;
	ncclResult_t code;
	const char *text;

	poll_begin(&p, &y->b, y->arrivals, false);
	NEED_OK(ht_dispatch(&y->b, false, w->stream));
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	poll_end(&p, true);
	OK(ncclEpExtGetLastError(y->b.group, &code, &text));
	CHECK(code != ncclSuccess && strstr(text, why), "\"%s\" is not in \"%s\"", why, text);
}

/* Rank 0 counts arrivals, the others do not. */
static void fail_unlike(struct world *w)
{
	struct oracle_ht h = problem_of(w->nranks);
	struct early y = { 0 };
	ncclResult_t code;
	const char *text;

	early_open(&y, w, ht_group(w, &h, 0, 2000), &h, 0);
	if (w->rank == 0) {
		start(&y, w->stream);
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		fail_all(w, &y, "config->pass_direction is FWD");
	} else {
		NEED_OK(ht_dispatch(&y.b, false, w->stream));
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		OK(ncclEpExtGetLastError(y.b.group, &code, &text));
		CHECK(strstr(text, "FWD with arrivals on rank 0"), "%s", text);
	}
	early_end(&y);
}

/* The routing in memory of the caller becomes another handle's between the two calls. */
static void fail_rerouted(struct world *w)
{
	struct oracle_ht h = problem_of(w->nranks);
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;
	struct early y = { 0 };
	ncclEpHandle_t other;

	config.dispatch_output_per_expert_alignment = h.alignment;
	early_open(&y, w, ht_group(w, &h, 0, 2000), &h, HT_OWN_MEM);
	start(&y, w->stream);
	NEED_OK(ncclEpInitHandle(&other, y.b.group, NCCL_EP_LAYOUT_EXPERT_MAJOR, &config,
				 (int)h.p.topk, &y.b.mem.t));
	NEED_OK(ncclEpUpdateHandle(other, &y.b.ids.t, NULL, w->stream));
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	fail_all(w, &y, "is not the one that ncclEpExtStartArrivals has found");
	OK(ncclEpHandleDestroy(other));
	early_end(&y);
}

/* Memory of the caller has no routing: who waits learns that at once. */
static void fail_unrouted(struct world *w)
{
	struct oracle_ht h = problem_of(w->nranks);
	struct early y = { 0 };

	ht_open(&y.b, w, ht_group(w, &h, 0, 2000), &h, HT_OWN_MEM);
	NEED_OK(ncclEpExtStartArrivals(y.b.handle, NULL, &y.bytes, w->stream));
	NEED_CUDA(cudaMalloc((void **)&y.arrivals, y.bytes));
	start(&y, w->stream);
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	CHECK_INT(y.arrivals->failed, 1);
	early_end(&y);
}

/* The last rank does not dispatch: the others' dispatches end within three timeouts and 1 s. */
static void fail_absent(struct world *w)
{
	struct oracle_ht h = problem_of(w->nranks);
	struct early y = { 0 };
	double begin;

	early_open(&y, w, ht_group(w, &h, 0, 2000), &h, 0);
	start(&y, w->stream);
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	begin = world_now();
	if (w->rank < w->nranks - 1) {
		fail_all(w, &y, "");
		CHECK(world_now() - begin < 3 * 2.0 + 1);
	}
	world_meet(w);
	early_end(&y);
}

static void run_refused(struct world *w, void *arg)
{
	check_context("rank %d", w->rank);
	refuse_kinds(w);
	refuse_arguments(w);
	refuse_launches(w);
	forget_captured(w);
	fail_unlike(w);
	fail_rerouted(w);
	fail_unrouted(w);
	fail_absent(w);
}

static int main_refused(int argc, char **argv)
{
	world_run(world_size(3), run_refused, NULL);
	return check_end();
}

static void run_nodes(struct world *w, void *arg)
{
	struct oracle_ht h = problem_of(w->nranks);

	check_context("rank %d", w->rank);
	refused(w, &h, ht_group(w, &h, 0, 60000), ncclInvalidUsage,
		"needs all ranks in one NVLink domain");
}

/* Ranks of several nodes. */
static int main_nodes(int argc, char **argv)
{
	world_run(world_size(3), run_nodes, NULL);
	return check_end();
}

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "arrivals", main_arrivals },
		{ "arrivals_graphs", main_graphs },
		{ "arrivals_refused", main_refused },
		{ "net_arrivals", main_nodes },
	};

	return check_cases(argc, argv, cases, sizeof(cases) / sizeof(*cases));
}
