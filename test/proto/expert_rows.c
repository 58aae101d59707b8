/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ncclEpExtAddExpertRows: counts of a routing are those of its ids, step by step, by a graph too,
 * in both modes; ids that are no experts are left out; and handles without a routing are refused,
 * or add nothing.
 */
#include "support/bench.h"
#include "support/ht_bench.h"

#define EXPERTS 12
#define TOPK 4
#define TOKENS 20
#define STEPS 3

struct counts {
	uint64_t *device;
	uint64_t want[EXPERTS];
};

static void open_counts(struct counts *c, struct world *w)
{
	memset(c, 0, sizeof(*c));
	NEED_CUDA(cudaMalloc((void **)&c->device, (EXPERTS + 1) * 8));
	NEED_CUDA(cudaMemsetAsync(c->device, 0, (EXPERTS + 1) * 8, w->stream));
}

/* `once`: an expert that a token names again has one row. */
static void expect_ids(struct counts *c, const void *device, bool wide, uint32_t tokens, bool once)
{
	int64_t ids[TOKENS * TOPK];
	int32_t narrow[TOKENS * TOPK];
	size_t n = (size_t)tokens * TOPK;

	NEED_CUDA(cudaMemcpy(wide ? (void *)ids : narrow, device, n * (wide ? 8 : 4),
			     cudaMemcpyDeviceToHost));
	for (size_t i = 0; i < n; i++) {
		int64_t id = wide ? ids[i] : narrow[i];
		bool again = false;

		for (size_t j = i / TOPK * TOPK; j < i; j++) {
			again |= (wide ? ids[j] : narrow[j]) == id;
		}
		if (id >= 0 && id < EXPERTS && !(once && again)) {
			c->want[id]++;
		}
	}
}

static void check_counts(const struct counts *c, struct world *w)
{
	uint64_t got[EXPERTS + 1];

	NEED_CUDA(cudaMemcpyAsync(got, c->device, sizeof(got), cudaMemcpyDeviceToHost, w->stream));
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	for (int e = 0; e < EXPERTS; e++) {
		check_context("expert %d", e);
		CHECK_INT(got[e], c->want[e]);
	}
	CHECK_INT(got[EXPERTS], 0);
}

static void low_latency(struct world *w, uint32_t flags)
{
	struct oracle_problem p =
		bench_problem(w->nranks, EXPERTS, TOPK, 64, TOKENS, ORACLE_EXPERT_MAJOR);
	cudaGraphExec_t graph;
	struct counts c;
	struct bench b;

	open_counts(&c, w);
	bench_open(&b, w, bench_group(w, &p, flags), &p, flags);
	CHECK_REASON(ncclEpExtAddExpertRows(b.handle, c.device, w->stream), ncclInvalidArgument,
		     "has no routing");
	for (uint64_t step = 0; step < STEPS; step++) {
		bench_load(&b, 100 + step);
		OK(bench_update(&b, w->stream));
		OK(ncclEpExtAddExpertRows(b.handle, c.device, w->stream));
		expect_ids(&c, b.ids.t.data, flags & BENCH_IDS64, b.tokens, false);
		check_counts(&c, w);
		bench_dispatch_checked(&b);
	}
	world_capture(w->stream);
	OK(ncclEpExtAddExpertRows(b.handle, c.device, w->stream));
	graph = world_captured(w->stream);
	for (int i = 0; i < 2; i++) {
		NEED_CUDA(cudaGraphLaunch(graph, w->stream));
		expect_ids(&c, b.ids.t.data, flags & BENCH_IDS64, b.tokens, false);
	}
	check_counts(&c, w);
	NEED_CUDA(cudaGraphExecDestroy(graph));
	CHECK_REASON(ncclEpExtAddExpertRows(b.handle, NULL, w->stream), ncclInvalidArgument,
		     "ncclEpExtAddExpertRows: rows is NULL");
	CHECK_REASON(ncclEpExtAddExpertRows(b.handle, (uint64_t *)((char *)c.device + 4),
					    w->stream),
		     ncclInvalidArgument, "aligned to 8 bytes");
	bench_end(&b);
	NEED_CUDA(cudaFree(c.device));
}

static const int64_t twice[TOPK] = { 5, 5, 0, -7 };

/* Negative ids, ids that are too large, and an expert twice; nothing is dispatched with them. */
static void odd_ids(struct world *w)
{
	static const int64_t odd[TOPK] = { -1, EXPERTS, INT64_MIN, INT64_C(1) << 32 };
	struct oracle_problem p =
		bench_problem(w->nranks, EXPERTS, TOPK, 64, TOKENS, ORACLE_EXPERT_MAJOR);
	struct counts c;
	struct bench b;

	open_counts(&c, w);
	bench_open(&b, w, bench_group(w, &p, BENCH_IDS64), &p, BENCH_IDS64);
	NEED_CUDA(cudaMemcpy(b.ids.t.data, odd, sizeof(odd), cudaMemcpyHostToDevice));
	NEED_CUDA(cudaMemcpy((char *)b.ids.t.data + sizeof(odd), twice, sizeof(twice),
			     cudaMemcpyHostToDevice));
	OK(bench_update(&b, w->stream));
	OK(ncclEpExtAddExpertRows(b.handle, c.device, w->stream));
	expect_ids(&c, b.ids.t.data, true, b.tokens, false);
	CHECK(c.want[5] >= 2);
	check_counts(&c, w);
	bench_end(&b);
	NEED_CUDA(cudaFree(c.device));
}

static void high_throughput(struct world *w, bool em)
{
	struct oracle_ht h = { .expert_major = em };
	struct counts c;
	struct ht_bench b;

	h.p = (struct oracle_problem){ .seed = 11,
				       .nranks = (uint32_t)w->nranks,
				       .experts = EXPERTS,
				       .topk = TOPK,
				       .hidden = 64,
				       .tokens = TOKENS,
				       .max_tokens = TOKENS,
				       .dtype = ORACLE_BF16 };
	h.limit = (uint32_t)w->nranks * TOKENS * TOPK;
	open_counts(&c, w);
	ht_open(&b, w, ht_group(w, &h, HT_OWN_MEM | HT_IDS64, 60000), &h, HT_OWN_MEM | HT_IDS64);
	NEED_CUDA(cudaMemsetAsync(b.mem.t.data, 0, b.mem.t.sizes[0], w->stream));
	OK(ncclEpExtAddExpertRows(b.handle, c.device, w->stream)); /* the memory has no routing */
	check_counts(&c, w);
	for (uint64_t step = 0; step < STEPS; step++) {
		ht_load(&b, 100 + step, step == 1 ? TOKENS / 2 : TOKENS);
		if (step == 2) {
			NEED_CUDA(cudaMemcpy(b.ids.t.data, twice, sizeof(twice),
					     cudaMemcpyHostToDevice));
		}
		OK(ht_update(&b, w->stream));
		OK(ncclEpExtAddExpertRows(b.handle, c.device, w->stream));
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		expect_ids(&c, b.ids.t.data, true, b.tokens, true);
		check_counts(&c, w);
	}
	ht_end(&b);
	NEED_CUDA(cudaFree(c.device));
}

static void run(struct world *w, void *arg)
{
	low_latency(w, 0);
	low_latency(w, BENCH_IDS64);
	odd_ids(w);
	high_throughput(w, false);
	high_throughput(w, true);
}

int main(void)
{
	world_run(world_size(3), run, NULL);
	return check_end();
}
