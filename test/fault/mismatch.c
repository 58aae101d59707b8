// SPDX-License-Identifier: Apache-2.0
/*
 * Ranks that disagree: in a field of the group's config (refused on all ranks by name), or in what
 * they do (an error that says so, on every rank, in time).
 */
#include "support/bench.h"
#include "support/victim.h"

#define RANKS 3
#define TIMEOUT_MS (2000 * victim_scale())

typedef void (*mutate_fn)(ncclEpGroupConfig_t *c);

#define MUTATE(name_, code_)                                                                       \
	static void name_(ncclEpGroupConfig_t *c)                                                  \
	{                                                                                          \
		code_;                                                                             \
	}

MUTATE(experts, c->num_experts *= 2)
MUTATE(tokens, c->max_dispatch_tokens_per_rank++)
MUTATE(bytes, c->max_token_bytes += 16)
MUTATE(buffer, c->rdma_buffer_size = 64 << 20)
MUTATE(masks, c->enable_mask = 1)
MUTATE(topk, c->num_topk = 2)
MUTATE(zero_copy, c->zero_copy = NCCL_EP_ZERO_COPY_OFF)
/* these may differ */
MUTATE(sms, c->max_num_sms = 5)
MUTATE(timeout, c->timeout_ns += 1000000000)
MUTATE(channels, c->num_channels = 7; c->num_qp_per_rank = 9; c->max_recv_tokens_per_rank = 100)

static const struct {
	mutate_fn mutate;
	const char *part; /* NULL: allowed */
} fields[] = {
	{ experts, "num_experts" },
	{ tokens, "max_dispatch_tokens_per_rank" },
	{ bytes, "max_token_bytes" },
	{ buffer, "rdma_buffer_size" },
	{ masks, "enable_mask" },
	{ topk, "num_topk" },
	{ zero_copy, "zero_copy" },
	{ sms, NULL },
	{ timeout, NULL },
	{ channels, NULL },
};

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
			fields[i / RANKS].mutate(&config);
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

/* What rank 1 does differently from the others. */
static void operations(struct world *w, enum other other)
{
	bool odd = w->rank == 1;
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 256, 4, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclResult_t code = ncclSuccess;
	const char *text = "";
	ncclEpGroup_t group;
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
		if (other == MISSING) {
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
	for (int i = 0; i < OTHERS; i++) {
		operations(w, (enum other)i);
	}
}

int main(void)
{
	setenv("NCCL_EP_LL_THREADS", "64", 0);
	for (int lines = 0; lines <= 1; lines++) {
		setenv("NCCL_EP_LL_LINES", lines ? "1" : "0", 1);
		world_run(world_size(RANKS), run, NULL);
	}
	return check_end();
}
