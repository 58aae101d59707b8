/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks that disagree: in a field of the group's config (refused on all ranks by name), or in what
 * they pass or do: an error of every rank within two seconds, that names the field with both
 * values. With ranks of several nodes, and with masks, too.
 *
 *     mismatch [mask]
 */
#include "support/bench.h"
#include "support/victim.h"

#define RANKS 3
#define TIMEOUT_MS 16000.0

/* Modes in which ranks must agree in a field. */
enum {
	LOW = 1,
	HIGH = 2
};

/*
 * What one rank has otherwise, and what the reason says: the field, its value there and on the
 * others; NULL: it may differ. (All fields and variables, without ranks: test/unit/agreement.c.)
 */
#define FIELDS(M)                                                                                  \
	M(experts, LOW | HIGH, c->num_experts *= 2, "num_experts", "24", "12")                     \
	M(tokens, LOW | HIGH, c->max_dispatch_tokens_per_rank++, "max_dispatch_tokens_per_rank",   \
	  "5", "4")                                                                                \
	M(bytes, LOW | HIGH, c->max_token_bytes += 16, "max_token_bytes", "144", "128")            \
	M(buffer, LOW, c->rdma_buffer_size = 64 << 20, "rdma_buffer_size", "67108864", "AUTO")     \
	M(masks, LOW, c->enable_mask = 1, "enable_mask", "1", "0")                                 \
	M(topk, LOW | HIGH, c->num_topk = 2, "num_topk", "2", "3")                                 \
	M(zero_copy, LOW | HIGH, c->zero_copy = NCCL_EP_ZERO_COPY_OFF, "zero_copy", "OFF", "AUTO") \
	M(algorithm, LOW, c->algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT, "algorithm",                \
	  "HIGH_THROUGHPUT", "LOW_LATENCY")                                                        \
	M(algorithm_low, HIGH, c->algorithm = NCCL_EP_ALGO_LOW_LATENCY, "algorithm",               \
	  "LOW_LATENCY", "HIGH_THROUGHPUT")                                                        \
	M(overflow, HIGH, c->overflow_policy = NCCL_EP_OVERFLOW_DROP, "overflow_policy", "DROP",   \
	  "TRAP")                                                                                  \
	M(recv, HIGH, c->max_recv_tokens_per_rank++, "max_recv_tokens_per_rank", "65", "64")       \
	M(eager, HIGH, c->max_recv_tokens_per_rank = NCCL_EP_AUTO, "max_recv_tokens_per_rank",     \
	  "AUTO", "64")                                                                            \
	M(sms, LOW, c->max_num_sms = 5, NULL, NULL, NULL)                                          \
	M(timeout, LOW, c->timeout_ns += 1000000000, NULL, NULL, NULL)                             \
	M(channels, LOW, c->num_channels = 7; c->num_qp_per_rank = 9;                              \
	  c->max_recv_tokens_per_rank = 100;                                                       \
	  c->overflow_policy = NCCL_EP_OVERFLOW_DROP, NULL, NULL, NULL)

#define CHANGE(name_, modes_, code_, field_, odd_, its_)                                           \
	static void name_(ncclEpGroupConfig_t *c)                                                  \
	{                                                                                          \
		code_;                                                                             \
	}
#define ROW(name_, modes_, code_, field_, odd_, its_) { #name_, modes_, name_, field_, odd_, its_ },

FIELDS(CHANGE)

static const struct field {
	const char *name;
	int modes;
	void (*change)(ncclEpGroupConfig_t *c);
	const char *field, *odd, *its;
} fields[] = { FIELDS(ROW) };

/* A group in whose config one rank has a field otherwise. */
static void config(struct world *w, const struct field *f, int mode, int odd)
{
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 64, 4, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclEpGroup_t group = NULL;
	struct bench b;
	char want[200];

	check_context("rank %d differs in %s, mode %d", odd, f->name, mode);
	config.num_topk = 3;
	if (mode == HIGH) {
		config.algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT;
		config.max_recv_tokens_per_rank = 64;
	}
	if (w->rank == odd) {
		f->change(&config);
	}
	if (!f->field) {
		NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
		bench_open(&b, w, group, &p, 0);
		bench_pair(&b);
		bench_close(&b);
		OK(ncclEpGroupDestroy(group));
		return;
	}
	snprintf(want, sizeof(want), "config->%s is %s on rank 0 but %s on rank %d: ", f->field,
		 odd ? f->its : f->odd, odd ? f->odd : f->its, odd ? odd : 1);
	CHECK_REASON(ncclEpCreateGroup(&group, w->comm, &config), ncclInvalidArgument, want);
	CHECK(!group);
}

static void configs(struct world *w)
{
	struct oracle_problem p = bench_problem(w->nranks, 12, 3, 64, 4, ORACLE_EXPERT_MAJOR);

	for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]) * RANKS; i++) {
		const struct field *f = &fields[i / RANKS];

		for (int mode = LOW; mode <= HIGH; mode++) {
			if (f->modes & mode) {
				config(w, f, mode, (int)(i % RANKS));
			}
		}
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

/* What one rank passes wrongly to a call for which the group's memory has to grow. */
enum mistake {
	NO_HANDLE,
	WRONG_LAYOUT,
	WRONG_CONFIG,
	SMALL_MEMORY, /* ncclEpInitHandle alone */
	WRONG_INFO,   /* ncclEpCreateHandle alone, and so the next one */
	NO_IDS,
	MISTAKES
};

#define GROWN_TOPK 11

static ncclResult_t init(ncclEpGroup_t group, ncclEpHandle_t *handle, int mistake)
{
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;
	ncclEpTensor_t mem = NCCL_EP_TENSOR_INIT;
	size_t bytes = 16;
	char byte;

	config.magic += mistake == WRONG_CONFIG;
	mem.ndim = 1;
	mem.datatype = ncclUint8;
	mem.sizes = &bytes;
	mem.data = (void *)((uintptr_t)&byte & ~(uintptr_t)15);
	return ncclEpInitHandle(mistake == NO_HANDLE ? NULL : handle, group,
				mistake == WRONG_LAYOUT ? NCCL_EP_LAYOUT_FLAT
							: NCCL_EP_LAYOUT_EXPERT_MAJOR,
				&config, GROWN_TOPK, mistake == SMALL_MEMORY ? &mem : NULL);
}

static ncclResult_t create(ncclEpGroup_t group, ncclEpHandle_t *handle, int mistake,
			   cudaStream_t stream)
{
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	ncclEpTensor_t ids = NCCL_EP_TENSOR_INIT;
	size_t sizes[2] = { mistake == NO_IDS, GROWN_TOPK };

	config.magic += mistake == WRONG_CONFIG;
	info.magic++;
	ids.ndim = 2;
	ids.datatype = ncclInt32;
	ids.sizes = sizes;
	return ncclEpCreateHandle(mistake == NO_HANDLE ? NULL : handle, group,
				  mistake == WRONG_LAYOUT ? NCCL_EP_LAYOUT_FLAT
							  : NCCL_EP_LAYOUT_EXPERT_MAJOR,
				  &ids, mistake == WRONG_INFO ? &info : NULL, &config, stream);
}

/* One rank's mistake is the failure of all at once, and nothing has grown. */
static void grow_wrongly(struct world *w, ncclEpGroup_t group)
{
	for (int i = 0; i < 2 * MISTAKES * RANKS; i++) {
		int mistake = i / RANKS % MISTAKES, odd = i % RANKS, mine;
		bool creates = i >= MISTAKES * RANKS;
		ncclEpHandle_t handle = NULL;
		double start = world_now();
		char part[32];

		if (creates ? mistake == SMALL_MEMORY : mistake > SMALL_MEMORY) {
			continue;
		}
		check_context("rank %d makes mistake %d to %s a handle, rank %d", odd, mistake,
			      creates ? "create" : "init", w->rank);
		mine = w->rank == odd ? mistake : MISTAKES;
		snprintf(part, sizeof(part), "failed on rank %d: ", odd);
		CHECK_REASON(creates ? create(group, &handle, mine, w->stream)
				     : init(group, &handle, mine),
			     w->rank == odd ? ncclInvalidArgument : ncclRemoteError,
			     w->rank == odd ? "" : part);
		CHECK(!handle && world_now() - start < 1.8);
	}
}

/*
 * The group's memory has to grow for a handle: its top-k is compared first. The group goes on with
 * what it has.
 */
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
	grow_wrongly(w, group);
	bench_open(&b, w, group, &p, 0);
	bench_pair(&b);
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
}

static uint32_t flags; /* of the groups for operations */

/* What the odd rank does otherwise. */
enum other {
	HIDDEN,
	LAYOUT,
	TOPK,
	TYPE,
	RECIPE,
	ROUNDED,
	MADE,
	SCALES_TYPE,
	SCALES,
	SEND_DISPATCH,
	COMBINE_TYPE,
	COMBINE_HIDDEN,
	COMBINE_RECIPE,
	SEND_COMBINE,
	NO_ROWS,
	ORDER,
	HANDLE,
	COMPLETES,
	COMPLETE_CALL,
	EXTRA,
	MISSING,
	OTHERS
};

static const struct {
	const char *name;
	const char *field;
	const char *odd; /* the field there, */
	const char *its; /* and on the other ranks */
} others[OTHERS] = {
	[HIDDEN] = { "hidden", "the number of elements per token", "128", "256" },
	[LAYOUT] = { "layout", "the handle's layout", "RANK_MAJOR", "EXPERT_MAJOR" },
	[TOPK] = { "top-k", "the handle's num_topk", "2", "3" },
	[TYPE] = { "type", "the type of tokens", "fp16", "bf16" },
	[RECIPE] = { "recipe", "config->quant_recipe", "DS_FP8E3M4", "NONE" },
	[ROUNDED] = { "rounded scales", "config->quant_recipe", "DS_FP8E3M4 with round_scales",
		      "DS_FP8E3M4" },
	[MADE] = { "what is made", "config->quant_recipe", "MXFP8", "DS_FP8E3M4" },
	[SCALES_TYPE] = { "type of scales", "the type of inputs->scales", "uint8", "e4m3" },
	[SCALES] = { "number of scales", "the number of scales per token", "4", "8" },
	[SEND_DISPATCH] = { "send_only", "the call", "send_only dispatch", "dispatch" },
	[COMBINE_TYPE] = { "type to combine", "the type of tokens", "fp16", "bf16" },
	[COMBINE_HIDDEN] = { "hidden to combine", "the number of elements per token", "128",
			     "256" },
	[COMBINE_RECIPE] = { "recipe to combine", "config->quant_recipe", "NVFP4", "NONE" },
	[SEND_COMBINE] = { "send_only combine", "the call", "send_only combine", "combine" },
	[NO_ROWS] = { "type to combine, without rows", "the type of tokens", "fp16", "bf16" },
	[ORDER] = { "combine for dispatch", "the call", "combine", "dispatch" },
	[HANDLE] = { "handle", "the number of the handle's last dispatch", "2", "1" },
	[COMPLETES] = { "order of completions", "the number of the send_only operation", "2", "1" },
	[COMPLETE_CALL] = { "completion for dispatch", "the call", "Complete of a dispatch",
			    "dispatch" },
	[EXTRA] = { "an extra", NULL, NULL, NULL },
	[MISSING] = { "one less", NULL, NULL, NULL },
};

/* Odd from the beginning on. */
static void spoil_problem(struct oracle_problem *p, enum other other, bool odd)
{
	if (other == SCALES_TYPE || other == SCALES) {
		p->quant = ORACLE_QUANT_FORWARD;
		p->hidden = 1024;
	}
	p->quant = other == ROUNDED || other == MADE ? ORACLE_QUANT_FP8 : p->quant;
	p->drop_ppm = other == NO_ROWS ? 1000000 : 0;
	if (!odd) {
		return;
	}
	p->hidden = other == HIDDEN ? 128 : p->hidden;
	p->layout = other == LAYOUT ? ORACLE_RANK_MAJOR : p->layout;
	p->topk = other == TOPK ? 2 : p->topk;
	p->dtype = other == TYPE ? ORACLE_FP16 : p->dtype;
	p->quant = other == RECIPE ? ORACLE_QUANT_FP8
		   : other == MADE ? ORACLE_QUANT_MXFP8
				   : p->quant;
	p->pow2_scales = other == ROUNDED;
}

/* On all ranks: as many scales as the odd rank will have of its type. */
static void prepare(struct bench *b, enum other other)
{
	if (other == SCALES_TYPE) {
		b->in_scales.t.datatype = b->out_scales.t.datatype = ncclFloat8e4m3;
		b->in_scales.sizes[1] *= 4;
		b->out_scales.sizes[2] *= 4;
	}
}

/* Odd in the operation alone. */
static void spoil(struct bench *b, enum other other)
{
	if (other == SCALES_TYPE) {
		b->in_scales.t.datatype = b->out_scales.t.datatype = ncclUint8;
	} else if (other == SCALES) {
		b->in_scales.sizes[1] /= 2;
		b->out_scales.sizes[2] /= 2;
	} else if (other == COMBINE_HIDDEN) {
		b->combine_in.sizes[2] /= 2;
		b->combine_out.sizes[1] /= 2;
	} else if (other == COMBINE_TYPE || other == NO_ROWS) {
		b->combine_in.t.datatype = b->combine_out.t.datatype = ncclFloat16;
	} else if (other == COMBINE_RECIPE) {
		b->p.combine_quant = ORACLE_COMBINE_NVFP4;
	}
}

static void send_both(struct bench *b, struct bench *second, bool odd)
{
	cudaStream_t stream = b->w->stream;

	OK(bench_send_dispatch(b, stream));
	OK(bench_send_dispatch(second, stream));
	OK(ncclEpComplete(odd ? second->handle : b->handle, NULL, stream));
	(void)bench_dispatch(odd ? second : b, stream); /* which tells those that were too early */
}

/*
 * The first operation in which ranks differ may be known when the next one is called: that one may
 * fail for it.
 */
static void operate(struct bench *b, struct bench *second, enum other other, bool odd)
{
	cudaStream_t stream = b->w->stream;

	switch (other) {
	case COMPLETES:
		send_both(b, second, odd);
		return;
	case COMPLETE_CALL:
		OK(bench_send_dispatch(b, stream));
		OK(odd ? ncclEpComplete(b->handle, NULL, stream) : bench_dispatch(second, stream));
		(void)bench_dispatch(second,
				     stream); /* all rows were there: for who was too early */
		return;
	case SEND_DISPATCH:
		OK(odd ? bench_send_dispatch(b, stream) : bench_dispatch(b, stream));
		(void)ncclEpComplete(b->handle, NULL, stream); /* others have nothing pending */
		return;
	case MISSING:
		OK(odd ? ncclSuccess : bench_dispatch(b, stream));
		return;
	case HANDLE:
		OK(bench_dispatch(b, stream));
		OK(bench_dispatch(second, stream));
		OK(bench_combine(odd ? second : b, stream));
		return;
	default:
		break;
	}
	prepare(b, other);
	if (odd && other < SEND_DISPATCH) {
		spoil(b, other);
	}
	OK(bench_dispatch(b, stream));
	if (odd) {
		spoil(b, other);
	}
	if (other == ORDER) {
		OK(odd ? bench_combine(b, stream) : bench_dispatch(b, stream));
	} else if (other == EXTRA) {
		OK(odd ? bench_dispatch(b, stream) : ncclSuccess);
	} else if (other == SEND_COMBINE && odd) {
		OK(bench_send_combine(b, stream));
		(void)ncclEpComplete(b->handle, NULL, stream);
	} else if (other > SEND_DISPATCH) {
		OK(bench_combine(b, stream));
	}
	if (other == NO_ROWS) { /* who started first had nothing to compare with */
		(void)bench_dispatch(b, stream);
	}
}

/* Field, both values, and who has which. */
static void check_named(struct world *w, const char *text, enum other other, int odd)
{
	char want[200];

	if (w->rank != odd) {
		snprintf(want, sizeof(want), "%s is %s on rank %d, %s on rank %d;",
			 others[other].field, others[other].odd, odd, others[other].its, w->rank);
		CHECK_HAS(text, want);
		snprintf(want, sizeof(want), "rank %d (pid ", odd);
		CHECK_HAS(text, want);
	} else {
		snprintf(want, sizeof(want), "%s is %s on rank ", others[other].field,
			 others[other].its);
		CHECK_HAS(text, want);
		snprintf(want, sizeof(want), ", %s on rank %d;", others[other].odd, odd);
		CHECK_HAS(text, want);
	}
}

static void operations(struct world *w, enum other other, int odd_rank)
{
	bool odd = w->rank == odd_rank, late = other == EXTRA || other == MISSING;
	struct oracle_problem alike = bench_problem(w->nranks, 12, 3, 256, 4, ORACLE_EXPERT_MAJOR);
	struct oracle_problem p = alike;
	ncclEpGroupConfig_t config;
	ncclResult_t code = ncclSuccess;
	struct bench b, second;
	const char *text = "";
	ncclEpGroup_t group;
	char timeout[64];
	double start;

	check_context("rank %d differs in %s, lines %s", odd_rank, others[other].name,
		      getenv("NCCL_EP_LL_LINES"));
	spoil_problem(&alike, other, false);
	spoil_problem(&p, other, odd);
	config = bench_group_config(&alike, flags);
	config.max_token_bytes = 1280;
	config.timeout_ns = (uint64_t)(TIMEOUT_MS * 1e6);
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	bench_open(&b, w, group, &p, flags);
	bench_open(&second, w, group, &p, flags);
	bench_expert_work(&b);
	OK(bench_update(&b, w->stream));
	OK(bench_update(&second, w->stream));
	world_meet(w);
	start = world_now();
	operate(&b, &second, other, odd);
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	OK(ncclEpExtGetLastError(group, &code, &text));
	if ((other == MISSING && odd) || (other == EXTRA && !odd)) {
		CHECK_INT(code, ncclSuccess); /* has nothing to complain about */
	} else {
		CHECK_INT(code, ncclRemoteError);
		CHECK(strlen(text) > 20 && !strchr(text, '\n'), "%s", text);
		if (!late) {
			check_named(w, text, other, odd_rank);
		} else if (other == MISSING) {
			snprintf(timeout, sizeof(timeout), "; timeout %.0f ms): ", TIMEOUT_MS);
			CHECK(victim_named(text, odd_rank), "\"%s\"", text);
			CHECK_HAS(text, timeout);
			CHECK_HAS(text, "; not started yet by rank ");
		}
	}
	/* waits may take a second beyond the timeout; the rest is for a busy machine */
	CHECK(world_now() - start <= (late ? TIMEOUT_MS / 1e3 : 0) + 1.8, "%.1f s",
	      world_now() - start);
	bench_close(&second);
	bench_close(&b);
	OK(ncclEpGroupDestroy(group));
}

static void run(struct world *w, void *arg)
{
	const char *node = getenv("NCCL_EP_NODE_SIZE");

	if (!node && !flags) {
		configs(w);
	}
	if (!flags) {
		grow(w);
	}
	/* with masks, who does not come is left out */
	for (int i = 0; i < (flags ? EXTRA : OTHERS); i++) {
		for (int odd = 0; odd < (i < EXTRA ? RANKS : 1); odd++) {
			operations(w, (enum other)i, odd);
		}
	}
}

int main(int argc, char **argv)
{
	bool nodes = getenv("NCCL_EP_NODE_SIZE") != NULL;

	flags = argc > 1 && !strcmp(argv[1], "mask") ? BENCH_MASK : 0;
	for (int lines = 0; lines <= (nodes ? 0 : 1); lines++) {
		setenv("NCCL_EP_LL_LINES", lines ? "1" : "0", 1);
		world_run(world_size(RANKS), run, NULL);
	}
	return check_end();
}
