/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Steady state: no call of the data path allocates, synchronises, copies or talks to NCCL; an
 * operation is one ordinary launch, which may start while the kernel before it ends. It has at most
 * max_num_sms blocks, or as many as it has of its own, or as many as NCCL_EP_OVERLAP leaves it; new
 * handles come from the pool. In high throughput kernels are told which warps only send.
 */
#include "device/ht/ht_layout.h"
#include "support/bench.h"
#include "support/ht_bench.h"
#include "support/watch.h"

#define PAIRS 3

static void nothing_but_launches(uint64_t launches, uint32_t most_blocks)
{
	for (int i = 0; i < WATCH_CALLS; i++) {
		CHECK(watch.calls[i] == (i == WATCH_LAUNCH ? launches : 0), "%llu calls of %s",
		      (unsigned long long)watch.calls[i], watch_name(i));
	}
	CHECK_INT(watch.attributes, 0);
	CHECK_INT(watch.early, launches);
	CHECK(watch.most_blocks <= most_blocks);
	CHECK(launches == 0 || watch.most_blocks > 0);
}

static void operations(struct bench *b, uint32_t sms)
{
	cudaStream_t stream = b->w->stream;

	watch_start();
	for (int i = 0; i < PAIRS; i++) {
		OK(bench_update(b, stream));
	}
	nothing_but_launches(0, sms);
	watch_start();
	for (int i = 0; i < PAIRS; i++) {
		OK(bench_dispatch(b, stream));
		OK(bench_combine(b, stream));
	}
	nothing_but_launches(2 * PAIRS, sms);
	watch_start();
	for (int i = 0; i < PAIRS; i++) {
		OK(bench_send_dispatch(b, stream));
		OK(ncclEpComplete(b->handle, NULL, stream));
		OK(bench_send_combine(b, stream));
		OK(ncclEpComplete(b->handle, NULL, stream));
	}
	nothing_but_launches(4 * PAIRS, sms);
}

/* A handle per layer and step, as some callers do it. */
static void handles(struct bench *b)
{
	ncclEpLayout_t layout = (ncclEpLayout_t)b->p.layout;
	ncclEpHandle_t h[3];

	for (int time = 0; time < 3; time++) {
		if (time == 1) { /* the first time fills the pool */
			watch_start();
		}
		for (int i = 0; i < 3; i++) {
			OK(ncclEpCreateHandle(h + i, b->group, layout, &b->ids.t, NULL, NULL,
					      b->w->stream));
		}
		for (int i = 0; i < 3; i++) {
			OK(ncclEpHandleDestroy(h[i]));
		}
	}
	nothing_but_launches(0, 0);
}

/* The group's config with budgets that differ, on each rank otherwise. */
static void set_budgets(ncclEpGroupConfig_t *config, const struct world *w)
{
	config->max_num_sms = 2;
	config->dispatch_num_sms = 3 + (uint32_t)w->rank % 2;
	config->combine_num_sms = 6 - (uint32_t)w->rank % 2;
}

/* With and without lines, without which a dispatch announces how combine will cut rows. */
static void low_budgets(struct world *w)
{
	for (int i = 0; i < 4; i++) {
		struct oracle_problem p =
			bench_problem(w->nranks, 12, 3, 1024, 4 + 40 * (uint32_t)(i / 2),
				      i % 2 ? ORACLE_RANK_MAJOR : ORACLE_EXPERT_MAJOR);
		ncclEpGroupConfig_t config = bench_group_config(&p, 0);
		ncclEpGroup_t group;
		struct bench b;

		check_context("low latency with budgets, case %d, rank %d", i, w->rank);
		set_budgets(&config, w);
		NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
		bench_open(&b, w, group, &p, 0);
		bench_pair(&b);
		watch_start();
		OK(bench_dispatch(&b, w->stream));
		CHECK_INT(watch.most_blocks, config.dispatch_num_sms);
		watch_start();
		OK(bench_combine(&b, w->stream));
		CHECK_INT(watch.most_blocks, config.combine_num_sms);
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		bench_pair(&b);
		CHECK_LAST(group, ncclSuccess, "");
		bench_end(&b);
	}
}

static void high_budgets(struct world *w)
{
	for (int i = 0; i < 2; i++) {
		struct oracle_ht h = { .p = bench_problem(w->nranks, 12, 3, 256, 100,
							  ORACLE_EXPERT_MAJOR),
				       .expert_major = i };
		ncclEpGroupConfig_t config = ht_group_config(&h, 0);
		ncclEpGroup_t group;
		struct ht_bench b;

		check_context("high throughput with budgets, layout %d, rank %d", i, w->rank);
		set_budgets(&config, w);
		NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
		ht_open(&b, w, group, &h, 0);
		watch_start();
		OK(ht_update(&b, w->stream));
		CHECK_INT(watch.most_blocks, config.max_num_sms);
		watch_start();
		OK(ht_dispatch(&b, false, w->stream));
		CHECK_INT(watch.most_blocks, config.dispatch_num_sms);
		watch_start();
		OK(ht_combine(&b, false, w->stream));
		CHECK_INT(watch.most_blocks, config.combine_num_sms);
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		ht_step(&b);
		CHECK_LAST(group, ncclSuccess, "");
		ht_end(&b);
	}
}

/* In a stream, and in a capture, whose edges then say the same. */
static void check_early(struct bench *b, bool early)
{
	cudaGraph_t graph;

	watch_start();
	bench_pair(b);
	CHECK_INT(watch.early, early ? watch.calls[WATCH_LAUNCH] : 0);
	CHECK_INT(watch.attributes, 0);
	watch_start();
	NEED_CUDA(cudaStreamBeginCapture(b->w->stream, cudaStreamCaptureModeThreadLocal));
	OK(bench_dispatch(b, b->w->stream));
	OK(bench_combine(b, b->w->stream));
	NEED_CUDA(cudaStreamEndCapture(b->w->stream, &graph));
	CHECK_INT(watch.calls[WATCH_LAUNCH], 2);
	CHECK_INT(watch.early, early ? 2 : 0);
	CHECK_INT(watch.attributes, 0);
	NEED_CUDA(cudaGraphDestroy(graph));
}

/*
 * Drivers before CUDA 12.3 capture no kernels that start early; with NCCL_EP_EARLY_START=0 none
 * starts early.
 */
static void drivers(struct world *w, bool wanted)
{
	for (int i = 0; i < 2; i++) {
		struct oracle_problem p =
			bench_problem(w->nranks, 12, 2, 256, 4, ORACLE_EXPERT_MAJOR);
		ncclEpGroupConfig_t config = bench_group_config(&p, 0);
		ncclEpGroup_t group;
		struct bench b;

		check_context("driver %d, early start %d, rank %d", i, wanted, w->rank);
		watch_start();
		watch.driver = i ? 12030 : 12020;
		NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
		bench_open(&b, w, group, &p, 0);
		check_early(&b, i && wanted);
		bench_end(&b);
	}
}

static void run_budgets(struct world *w, void *arg)
{
	(void)arg;
	drivers(w, true);
	low_budgets(w);
	high_budgets(w);
}

static void run_late(struct world *w, void *arg)
{
	(void)arg;
	drivers(w, false);
}

/* AUTO is four fifths of the device's 64 SMs, and with NCCL_EP_OVERLAP what its layout has then. */
static void run_automatic(struct world *w, void *arg)
{
	const bool *overlap = arg;

	for (int i = 0; i < 2; i++) {
		struct oracle_ht h = { .p = bench_problem(w->nranks, 4, 2, 256, 40,
							  ORACLE_EXPERT_MAJOR),
				       .expert_major = i };
		ncclEpGroupConfig_t config = ht_group_config(&h, 0);
		uint32_t blocks = !*overlap ? 51 : i ? 40 : 20;
		ncclEpGroup_t group;
		struct ht_bench b;

		check_context("overlap %d, layout %d, rank %d", *overlap, i, w->rank);
		config.max_num_sms = NCCL_EP_AUTO;
		NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
		ht_open(&b, w, group, &h, 0);
		OK(ht_update(&b, w->stream));
		watch_start();
		OK(ht_dispatch(&b, false, w->stream));
		CHECK_INT(watch.most_blocks, blocks);
		watch_start();
		OK(ht_combine(&b, false, w->stream));
		CHECK_INT(watch.most_blocks, blocks);
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		ht_step(&b);
		CHECK_LAST(group, ncclSuccess, "");
		ht_end(&b);
	}
}

/* Of the thread's last launch. */
static __thread struct {
	uint32_t blocks, warps, quads;
} senders;

static void see_dispatch(const void *args)
{
	const struct ep_ht_dispatch_args *a = args;

	senders.blocks = a->send_blocks;
	senders.warps = a->send_warps;
	senders.quads = a->lines.quads;
}

static void see_combine(const void *args)
{
	const struct ep_ht_combine_args *a = args;

	senders.blocks = a->send_blocks;
	senders.warps = a->send_warps;
	senders.quads = a->lines.quads;
}

static void check_senders(uint32_t launch_blocks, uint32_t blocks, uint32_t warps)
{
	CHECK_INT(watch.most_blocks, launch_blocks);
	CHECK_INT(senders.blocks, blocks);
	CHECK_INT(senders.warps, warps);
}

/*
 * Kernels are told which warps only send: as many as NCCL_EP_HT_SEND_WARPS says, but none where
 * rows go through windows, also if gradients of weights do not. There dispatch has fewer blocks.
 */
static void run_senders(struct world *w, void *arg)
{
	(void)arg;
	for (int i = 0; i < 4; i++) {
		struct oracle_ht h = { .p = bench_problem(w->nranks, 4, 2, 3584, 40,
							  ORACLE_EXPERT_MAJOR) };
		uint32_t flags = i / 2 ? HT_WINDOW | HT_ON | 3 * HT_FOR_MORE : 0;
		uint32_t blocks = i / 2 ? 0 : 24, warps = i / 2 ? 0 : 3;
		ncclEpGroupConfig_t config = ht_group_config(&h, flags);
		ncclEpGroup_t group;
		struct ht_bench b;

		check_context("%s, %s, rank %d", i / 2 ? "windows" : "rings",
			      i % 2 ? "backward" : "forward", w->rank);
		config.max_num_sms = 24;
		NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
		ht_open(&b, w, group, &h, flags);
		OK(ht_update(&b, w->stream));
		watch_start();
		watch.launched = see_dispatch;
		OK(ht_dispatch(&b, i % 2, w->stream));
		check_senders(i / 2 ? 14 : 24, blocks, warps);
		watch_start();
		watch.launched = see_combine;
		OK(ht_combine(&b, i % 2, w->stream));
		check_senders(24, blocks, warps);
		watch_start();
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		CHECK_LAST(group, ncclSuccess, "");
		ht_end(&b);
	}
}

static void run(struct world *w, void *arg)
{
	static const uint32_t sms[] = { 2, 5, 0 };
	int device_sms = 0;

	NEED_CUDA(cudaDeviceGetAttribute(&device_sms, cudaDevAttrMultiProcessorCount, w->device));
	for (int i = 0; i < 6; i++) {
		enum oracle_layout layout = i % 2 ? ORACLE_RANK_MAJOR : ORACLE_EXPERT_MAJOR;
		struct oracle_problem p = bench_problem(w->nranks, 12, 3, 64, 8, layout);
		ncclEpGroupConfig_t config = bench_group_config(&p, 0);
		ncclEpGroup_t group;
		struct bench b;

		check_context("max_num_sms %u, layout %d", sms[i / 2], (int)layout);
		config.max_num_sms = sms[i / 2];
		NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
		bench_open(&b, w, group, &p, 0);
		bench_pair(&b);
		operations(&b, sms[i / 2] ? sms[i / 2] : (uint32_t)device_sms);
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		bench_pair(&b);
		handles(&b);
		CHECK_LAST(group, ncclSuccess, "");
		bench_end(&b);
	}
}

/* NCCL_EP_LL_LINES=1: rows travel as lines where two SMs would be too few for so many. */
static void run_lines(struct world *w, void *arg)
{
	bool asked = *(bool *)arg;
	struct oracle_ht h = { .p = bench_problem(w->nranks, 4, 2, 256, 300, ORACLE_RANK_MAJOR) };
	ncclEpGroup_t group = ht_group(w, &h, 0, 60000);
	struct ht_bench b;

	check_context("lines %s, rank %d", asked ? "asked for" : "left to the library", w->rank);
	ht_open(&b, w, group, &h, 0);
	OK(ht_update(&b, w->stream));
	watch_start();
	watch.launched = see_dispatch;
	OK(ht_dispatch(&b, false, w->stream));
	CHECK_INT(senders.quads, asked ? 2 : 0);
	watch_start();
	watch.launched = see_combine;
	OK(ht_combine(&b, false, w->stream));
	CHECK_INT(senders.quads, asked ? 2 : 0);
	watch_start();
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	CHECK_LAST(group, ncclSuccess, "");
	ht_end(&b);
}

int main(void)
{
	long before = watch_live();

	world_run(3, run, NULL);
	for (int lines = 0; lines <= 1; lines++) {
		setenv("NCCL_EP_LL_LINES", lines ? "1" : "0", 1);
		world_run(3, run_budgets, NULL);
	}
	setenv("NCCL_EP_EARLY_START", "0", 1);
	world_run(2, run_late, NULL);
	unsetenv("NCCL_EP_EARLY_START");
	setenv("VC_SMS", "64", 1);
	for (int i = 0; i <= 1; i++) {
		bool overlap = i != 0;

		setenv("NCCL_EP_OVERLAP", overlap ? "1" : "0", 1);
		world_run(2, run_automatic, &overlap);
	}
	unsetenv("NCCL_EP_OVERLAP");
	setenv("NCCL_EP_LL_LINES", "0", 1);
	setenv("NCCL_EP_HT_SEND_WARPS", "3", 1);
	world_run(2, run_senders, NULL);
	for (int i = 0; i <= 1; i++) {
		bool asked = i != 0;

		setenv("NCCL_EP_LL_LINES", asked ? "1" : "-1", 1);
		world_run(2, run_lines, &asked);
	}
	CHECK_INT(watch_live(), before);
	return check_end();
}
