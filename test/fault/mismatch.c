// SPDX-License-Identifier: Apache-2.0
/*
 * Ranks that disagree: in a field of the group's config (refused on all ranks by name), or in what
 * they do (an error that says so, on every rank, in time).
 */
#include "support/bench.h"
#include "support/victim.h"

#define RANKS 3
#define TIMEOUT_MS 16000.0

/* What one rank has otherwise, and what the reason names; NULL: that may differ. */
#define FIELDS(M)                                                                                  \
	M(experts, c->num_experts *= 2, "num_experts")                                             \
	M(tokens, c->max_dispatch_tokens_per_rank++, "max_dispatch_tokens_per_rank")               \
	M(bytes, c->max_token_bytes += 16, "max_token_bytes")                                      \
	M(buffer, c->rdma_buffer_size = 64 << 20, "rdma_buffer_size")                              \
	M(masks, c->enable_mask = 1, "enable_mask")                                                \
	M(topk, c->num_topk = 2, "num_topk")                                                       \
	M(zero_copy, c->zero_copy = NCCL_EP_ZERO_COPY_OFF, "zero_copy")                            \
	M(sms, c->max_num_sms = 5, NULL)                                                           \
	M(timeout, c->timeout_ns += 1000000000, NULL)                                              \
	M(channels, c->num_channels = 7; c->num_qp_per_rank = 9;                                   \
	  c->max_recv_tokens_per_rank = 100, NULL)

#define CHANGE(name_, code_, part_)                                                                \
	static void name_(ncclEpGroupConfig_t *c)                                                  \
	{                                                                                          \
		code_;                                                                             \
	}
#define ROW(name_, code_, part_) { name_, part_ },

FIELDS(CHANGE)

static const struct {
	void (*change)(ncclEpGroupConfig_t *c);
	const char *part;
} fields[] = { FIELDS(ROW) };

static void configs(struct world *w)
{
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 64, 4, ORACLE_EXPERT_MAJOR);

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]) * RANKS; i++) {
		int odd = (int)(i % RANKS);
		ncclEpGroupConfig_t config = bench_group_config(&p, 0);
		const char *part = fields[i / RANKS].part;
		ncclEpGroup_t group = NULL;
		struct bench b;

		check_context("rank %d differs in field %d", odd, (int)i / RANKS);
		if (w->rank == odd) {
			fields[i / RANKS].change(&config);
		}
		if (part) {
			CHECK_REASON(ncclEpCreateGroup(&group, w->comm, &config),
				     ncclInvalidArgument, part);
			CHECK(!group);
			continue;
		}
		NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
		bench_open(&b, w, group, &p, 0);
		bench_pair(&b);
		bench_close(&b);
		OK(ncclEpGroupDestroy(group));
	}
	for (int i = 0; i < 3 * RANKS; i++) {
		ncclEpGroupConfig_t config = bench_group_config(&p, 0);
		bool odd = w->rank == i % RANKS;
		ncclEpGroup_t group = NULL;
		char name[32];

		check_context("rank %d has no config, or no group, %d", i % RANKS, i / RANKS);
		snprintf(name, sizeof(name), "rank %d: ", i % RANKS);
		config.magic += odd && i / RANKS == 1;
		CHECK_REASON(ncclEpCreateGroup(odd && i / RANKS == 2 ? NULL : &group, w->comm,
					       odd && i / RANKS == 0 ? NULL : &config),
			     odd ? ncclInvalidArgument : ncclRemoteError, odd ? "" : name);
		CHECK(!group);
	}
	/* one rank's mistake is everybody's failure, with its reason */
	for (int odd = 0; odd < RANKS; odd++) {
		ncclEpGroupConfig_t config = bench_group_config(&p, 0);
		ncclEpGroup_t group = NULL;

		check_context("rank %d has an impossible config", odd);
		if (w->rank == odd) {
			config.max_num_sms = 99999;
		}
		CHECK_REASON(ncclEpCreateGroup(&group, w->comm, &config),
			     w->rank == odd ? ncclInvalidUsage : ncclRemoteError, "max_num_sms");
		CHECK(!group);
	}
}

/* The group's memory has to grow for a handle: its top-k is compared first. The group goes on with what it has. */
static void grow(struct world *w)
{
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 64, 4, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclEpHandle_t handle = NULL;
	ncclEpGroup_t group;
	struct bench b;

	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	for (int odd = 0; odd < RANKS; odd++) {
		int topk = w->rank == odd ? 10 : 11;
		double start = world_now();
		char want[100];

		check_context("rank %d makes a handle of another top-k", odd);
		snprintf(want, sizeof(want),
			 "num_topk is %d on rank 0 but %d on rank %d: ", odd ? 11 : 10,
			 odd ? 10 : 11, odd ? odd : 1);
		CHECK_REASON(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL,
					      topk, NULL),
			     ncclInvalidArgument, want);
		CHECK(!handle && world_now() - start < 1.8);
	}
	bench_open(&b, w, group, &p, 0);
	bench_pair(&b);
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
}

enum other {
	HIDDEN,
	LAYOUT,
	TOPK,
	EXTRA,
	MISSING,
	ORDER,
	OTHERS
};

static const char *const other_names[OTHERS] = { "hidden",   "layout",   "top-k",
						 "an extra", "one less", "combine for dispatch" };

/* What is said of it: by the others, and by rank 1. */
static const char *const other_texts[OTHERS][2] = {
	[HIDDEN] = { "its rows have 1 pieces of 480 bytes, and ours 2",
		     "its rows have 2 pieces of 480 bytes, and ours 1" },
	[LAYOUT] = { "its layout is RANK_MAJOR, and ours EXPERT_MAJOR",
		     "its layout is EXPERT_MAJOR, and ours RANK_MAJOR" },
	[TOPK] = { "its handle's num_topk is 2, and ours 3",
		   "its handle's num_topk is 3, and ours 2" },
};

/* What rank 1 does differently from the others. */
static void operations(struct world *w, enum other other)
{
	bool odd = w->rank == 1;
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 256, 4, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclResult_t code = ncclSuccess;
	const char *text = "";
	ncclEpGroup_t group;
	char timeout[64];
	double start;
	struct bench b;

	check_context("rank 1 differs in %s", other_names[other]);
	config.timeout_ns = (uint64_t)(TIMEOUT_MS * 1e6);
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	if (odd && other == HIDDEN) {
		p.hidden = 8;
	} else if (odd && other == LAYOUT) {
		p.layout = ORACLE_RANK_MAJOR;
	} else if (odd && other == TOPK) {
		p.topk = 2;
	}
	bench_open(&b, w, group, &p, 0);
	bench_expert_work(&b);
	OK(bench_update(&b, w->stream));
	world_meet(w);
	start = world_now();
	if (other == ORDER) {
		/* all have dispatched once; then one combines and the others dispatch */
		OK(bench_dispatch(&b, w->stream));
		OK(odd ? bench_combine(&b, w->stream) : bench_dispatch(&b, w->stream));
	} else {
		if (!odd || other != MISSING) {
			OK(bench_dispatch(&b, w->stream));
		}
		if (odd && other == EXTRA) {
			OK(bench_dispatch(&b, w->stream));
		}
	}
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	OK(ncclEpExtGetLastError(group, &code, &text));
	if ((other == MISSING && odd) || (other == EXTRA && !odd)) {
		CHECK_INT(code, ncclSuccess); /* has nothing to complain about */
	} else {
		CHECK_INT(code, ncclRemoteError);
		CHECK(strlen(text) > 20 && !strchr(text, '\n'));
		CHECK(odd || victim_named(text, 1), "\"%s\" does not name rank 1", text);
		if (other_texts[other][odd] && !strstr(text, "token counts")) {
			CHECK_HAS(text, other_texts[other][odd]);
		}
		if (other == MISSING) {
			snprintf(timeout, sizeof(timeout), "; timeout %.0f ms): ", TIMEOUT_MS);
			CHECK_HAS(text, " waited for rank 1 (");
			CHECK_HAS(text, timeout);
			CHECK_HAS(text, "; not started yet by rank 1;");
		}
	}
	/* waits may take a second beyond the timeout; the rest is for a busy machine */
	CHECK(world_now() - start <= TIMEOUT_MS / 1e3 + 1.8, "%.1f s", world_now() - start);
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
}

static void run(struct world *w, void *arg)
{
	configs(w);
	grow(w);
	for (int i = 0; i < OTHERS; i++) {
		operations(w, (enum other)i);
	}
}

int main(void)
{
	for (int lines = 0; lines <= 1; lines++) {
		setenv("NCCL_EP_LL_LINES", lines ? "1" : "0", 1);
		world_run(world_size(RANKS), run, NULL);
	}
	return check_end();
}
