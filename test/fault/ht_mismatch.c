/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: ranks that disagree, handle memory without the routing that an operation is for,
 * tensors with too few rows, rows beyond the limit. An error on every rank, within two seconds,
 * that names the field with both values. With ranks of several nodes, too, where it does not matter
 * which tensors lie in windows, and combine has one recipe.
 */
#include "support/ht_bench.h"
#include "support/victim.h"

#define RANKS 3
#define TIMEOUT_MS 12000.0

enum at {
	AT_UPDATE, /* the call that is different */
	AT_DISPATCH,
	AT_COMBINE
};

/* Where `field` is NULL: all ranks' errors say `odd`. */
struct other {
	const char *name;
	enum at at;
	bool em;
	bool own; /* handle_mem of the caller */
	bool windows;
	const char *field;
	const char *odd;      /* the field on the odd rank, */
	const char *its;      /* and on the others */
	const char *own_text; /* what the odd rank's own error says in place of that */
};

enum which {
	HIDDEN,
	LAYOUT,
	TOPK,
	ALIGNMENT,
	DIRECTION,
	TYPE_DISPATCH,
	ORDER,
	UPDATE,
	RECIPE,
	SCALES_TYPE,
	SCALES,
	SCALES_OFFSET,
	ONE_WINDOW,
	OFFSET_DISPATCH,
	OFFSET,
	TYPE,
	HIDDEN_COMBINE,
	DIRECTION_COMBINE,
	RECIPE_COMBINE,
	REROUTED,
	EMPTY,
	UNROUTED,
	STALE,
	SHORT,
	OVERFLOW_EM,
	OVERFLOW_FLAT,
	MISSING,
	OTHERS
};

#define WINDOW_FIELD                                                                               \
	"whether received rows are in a window, as that of an empty tensor has to be, too,"
#define ROUTING_FIELD "the number of the UpdateHandle whose routing is in handle_mem"

static const struct other others[OTHERS] = {
	[HIDDEN] = { "hidden", AT_DISPATCH, false, false, false, "the number of elements per token",
		     "128", "256", NULL },
	[LAYOUT] = { "layout", AT_UPDATE, false, false, false, "the handle's layout",
		     "EXPERT_MAJOR", "FLAT", NULL },
	[TOPK] = { "top-k", AT_UPDATE, false, false, false, "the handle's num_topk", "2", "3",
		   NULL },
	[ALIGNMENT] = { "alignment", AT_UPDATE, true, false, false,
			"the handle's dispatch_output_per_expert_alignment", "2", "1", NULL },
	[DIRECTION] = { "direction", AT_DISPATCH, false, false, false, "config->pass_direction",
			"BWD", "FWD", NULL },
	[TYPE_DISPATCH] = { "type to dispatch", AT_DISPATCH, false, false, false,
			    "the type of tokens", "bf16", "fp32", NULL },
	[ORDER] = { "order", AT_DISPATCH, false, false, false, "the call", "combine", "dispatch",
		    NULL },
	[UPDATE] = { "UpdateHandle for dispatch", AT_DISPATCH, false, false, false, "the call",
		     "UpdateHandle", "dispatch", NULL },
	[RECIPE] = { "recipe", AT_DISPATCH, true, false, false, "config->quant_recipe", "NONE",
		     "FWD", NULL },
	[SCALES_TYPE] = { "type of scales", AT_DISPATCH, false, false, false,
			  "the type of inputs->scales", "uint8", "e4m3", NULL },
	[SCALES] = { "number of scales", AT_DISPATCH, true, false, false,
		     "the number of scales per token", "4", "8", NULL },
	[SCALES_OFFSET] = { "offset of scales", AT_DISPATCH, false, false, true,
			    "win_offset of the received scales", "80", "64", NULL },
	[ONE_WINDOW] = { "window", AT_DISPATCH, false, false, true, WINDOW_FIELD, "no", "yes",
			 NULL },
	[OFFSET_DISPATCH] = { "offset to dispatch", AT_DISPATCH, false, false, true,
			      "win_offset of the received tokens", "80", "64", NULL },
	[OFFSET] = { "offset", AT_COMBINE, false, false, true, "win_offset of the received tokens",
		     "80", "64", NULL },
	[TYPE] = { "type", AT_COMBINE, false, false, false, "the type of tokens", "bf16", "fp32",
		   NULL },
	[HIDDEN_COMBINE] = { "hidden to combine", AT_COMBINE, false, false, false,
			     "the number of elements per token", "128", "256", NULL },
	[DIRECTION_COMBINE] = { "direction of combine", AT_COMBINE, false, false, false,
				"config->pass_direction", "BWD", "FWD", NULL },
	[RECIPE_COMBINE] = { "recipe of combine", AT_COMBINE, true, false, false,
			     "config->quant_recipe", "NONE", "MXFP8", NULL },
	[REROUTED] = { "an earlier routing", AT_DISPATCH, false, true, false, ROUTING_FIELD, "1",
		       "2", NULL },
	[EMPTY] = { "an empty tensor", AT_COMBINE, false, false, true, WINDOW_FIELD, "no", "yes",
		    NULL },
	[UNROUTED] = { "no routing", AT_DISPATCH, false, true, false, ROUTING_FIELD, "none", "1",
		       "has no routing for handles like this one" },
	[STALE] = { "another routing", AT_COMBINE, true, true, false, ROUTING_FIELD, "none", "1",
		    "has the routing of 5 tokens, and the operation has 4" },
	[SHORT] = { "few rows", AT_COMBINE, true, false, false, ROUTING_FIELD,
		    "of no use (see the error of that rank)", "1",
		    ", and a tensor for them has 1;" },
	[OVERFLOW_EM] = { "zones", AT_UPDATE, true, false, false, NULL,
			  "UpdateHandle 1: 256 rows are to come to rank 2, its "
			  "max_recv_tokens_per_rank is 20",
			  NULL, NULL },
	[OVERFLOW_FLAT] = { "rows", AT_UPDATE, false, false, false, NULL,
			    "rows are to come to rank ", NULL, NULL },
	[MISSING] = { "one less", AT_DISPATCH, true, false, false, NULL, " waited for rank ", NULL,
		      NULL },
};

static struct oracle_ht problem_of(enum which i, int nranks, bool odd)
{
	struct oracle_ht h = { .expert_major = others[i].em };

	h.p = (struct oracle_problem){ .seed = 3,
				       .nranks = (uint32_t)nranks,
				       .experts = 12,
				       .topk = odd && i == TOPK ? 2 : 3,
				       .hidden = odd && i == HIDDEN ? 128 : 256,
				       .tokens = 5,
				       .max_tokens = 6,
				       .dtype = ORACLE_FP32 };
	if (i >= RECIPE && i <= SCALES_OFFSET) {
		h.p.quant = ORACLE_QUANT_FORWARD;
		h.p.hidden = 1024;
	}
	if (i == RECIPE_COMBINE) {
		h.p.combine_quant = ORACLE_COMBINE_MXFP8;
		h.p.dtype = ORACLE_BF16;
		h.p.hidden = 512;
	}
	h.limit = 3 * 6 * 4 + 64;
	h.alignment = odd && i == ALIGNMENT ? 2 : 1;
	if (i == OVERFLOW_EM || i == OVERFLOW_FLAT || i == EMPTY) {
		h.p.routing.family = ORACLE_HOT;
		h.p.routing.hot_ppm = 1000000;
		h.p.routing.hot_rank = 2;
	}
	if (i == OVERFLOW_EM || i == OVERFLOW_FLAT) {
		h.limit = i == OVERFLOW_EM ? 20 : 6;
		h.alignment = 64; /* at least one zone of 64 rows */
		h.drop = 1;       /* for the oracle's tables */
	}
	if (odd && i == LAYOUT) {
		h.expert_major = 1;
	}
	return h;
}

/* On all ranks: nothing but the field is different then. */
static void prepare(struct ht_bench *b, enum which i)
{
	if (i == ONE_WINDOW) { /* no offset tells that there is a window */
		b->out_tokens.t.win_offset = 0;
	} else if (i == SCALES_TYPE) { /* as many as the odd rank will have of its type */
		b->in_scales.t.datatype = b->out_scales.t.datatype = ncclFloat8e4m3;
		b->in_scales.sizes[1] *= 4;
		b->out_scales.sizes[1] *= 4;
	}
}

/* What the odd rank has changed before the call that is different. */
static void spoil(struct ht_bench *b, enum which i)
{
	switch (i) {
	case RECIPE: /* the same tokens, without scales */
		b->h.p.quant = ORACLE_QUANT_NONE;
		break;
	case RECIPE_COMBINE:
		b->h.p.combine_quant = ORACLE_COMBINE_NONE;
		break;
	case SCALES_TYPE:
		b->in_scales.t.datatype = b->out_scales.t.datatype = ncclUint8;
		break;
	case SCALES:
		b->in_scales.sizes[1] /= 2;
		b->out_scales.sizes[1] /= 2;
		break;
	case SCALES_OFFSET:
		b->out_scales.t.win_offset += 16;
		break;
	case ONE_WINDOW:
		b->out_tokens.t.data = b->out_tokens.data;
		b->out_tokens.t.win_hdl = NULL;
		break;
	case OFFSET:
		b->combine_in.t.win_offset += 16;
		break;
	case OFFSET_DISPATCH:
		b->out_tokens.t.win_offset += 16;
		break;
	case TYPE_DISPATCH:
		b->in_tokens.t.datatype = b->out_tokens.t.datatype = ncclBfloat16;
		b->in_tokens.sizes[1] *= 2;
		b->out_tokens.sizes[1] *= 2;
		break;
	case HIDDEN_COMBINE:
		b->combine_in.sizes[1] /= 2;
		b->combine_out.sizes[1] /= 2;
		break;
	case TYPE: /* as many bytes of another type */
		b->combine_in.t.datatype = b->combine_out.t.datatype = ncclBfloat16;
		b->combine_in.sizes[1] *= 2;
		b->combine_out.sizes[1] *= 2;
		break;
	case EMPTY: /* no rows come to it */
		b->combine_in.t.win_hdl = NULL;
		b->combine_in.sizes[0] = 0;
		break;
	case STALE:
		b->combine_out.sizes[0]--;
		break;
	case SHORT:
		b->combine_in.sizes[0] = 1;
		break;
	default:
		break;
	}
}

static void operate(struct ht_bench *b, enum which i, bool odd)
{
	cudaStream_t stream = b->w->stream;

	if (i == REROUTED) {
		OK(ht_update(b, stream));
	}
	if ((i != UNROUTED && i != REROUTED) || !odd) {
		OK(ht_update(b, stream));
	} else { /* takes its part, with other memory */
		ncclEpHandle_t handle = b->handle, other;

		NEED_OK(ncclEpInitHandle(&other, b->group, NCCL_EP_LAYOUT_FLAT, NULL, 3, NULL));
		b->handle = other;
		OK(ht_update(b, stream));
		b->handle = handle;
		OK(ncclEpHandleDestroy(other));
	}
	if (odd && i == STALE) {
		ht_reopen(b);
	}
	if (others[i].at == AT_UPDATE || (odd && i == MISSING)) {
		return;
	}
	prepare(b, i);
	if (odd) {
		spoil(b, i);
	}
	OK(odd && i == ORDER    ? ht_combine(b, false, stream)
	   : odd && i == UPDATE ? ht_update(b, stream)
				: ht_dispatch(b, odd && i == DIRECTION, stream));
	if (others[i].at == AT_COMBINE) {
		OK(ht_combine(b, odd && i == DIRECTION_COMBINE, stream));
	}
}

static void check_error(struct world *w, ncclEpGroup_t group, enum which i, int odd)
{
	const struct other *o = &others[i];
	ncclResult_t code = ncclSuccess;
	const char *text = "";
	char want[200];

	OK(ncclEpExtGetLastError(group, &code, &text));
	if (w->rank == odd && i == MISSING) {
		CHECK_INT(code, ncclSuccess);
		return;
	}
	CHECK(strlen(text) > 20 && !strchr(text, '\n'), "%s", text);
	if (!o->field) {
		CHECK_HAS(text, o->odd);
		CHECK(i != MISSING || victim_named(text, odd), "\"%s\" does not name it", text);
	} else if (w->rank == odd && o->own_text) {
		CHECK_HAS(text, o->own_text);
	} else if (w->rank == odd) {
		snprintf(want, sizeof(want), "%s is %s on rank ", o->field, o->its);
		CHECK_HAS(text, want);
		snprintf(want, sizeof(want), ", %s on rank %d;", o->odd, odd);
		CHECK_HAS(text, want);
	} else {
		snprintf(want, sizeof(want), "%s is %s on rank %d, %s on rank %d;", o->field,
			 o->odd, odd, o->its, w->rank);
		CHECK_HAS(text, want);
	}
}

static void differ(struct world *w, enum which i, int odd)
{
	struct oracle_ht h = problem_of(i, w->nranks, w->rank == odd);
	struct oracle_ht alike = problem_of(i, w->nranks, false);
	ncclEpGroupConfig_t config = ht_group_config(&alike, 0);
	ncclEpGroup_t group = NULL;
	struct ht_bench b;
	double start;

	check_context("%s, rank %d of %d", others[i].name, odd, w->rank);
	config.max_num_sms = 2;
	config.timeout_ns = (uint64_t)(TIMEOUT_MS * 1e6);
	config.overflow_policy = NCCL_EP_OVERFLOW_AUTO;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	ht_open(&b, w, group, &h,
		(others[i].own ? HT_OWN_MEM : 0) | (others[i].windows ? HT_WINDOW : 0));
	world_meet(w);
	start = world_now();
	operate(&b, i, w->rank == odd);
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	check_error(w, group, i, odd);
	CHECK(world_now() - start <= (i == MISSING ? TIMEOUT_MS / 1e3 : 0) + 1.8, "%.1f s",
	      world_now() - start);
	world_meet(w);
	ht_close(&b);
	OK(ncclEpGroupDestroy(group));
}

static void run(struct world *w, void *arg)
{
	bool nodes = getenv("NCCL_EP_NODE_SIZE") != NULL;

	for (int k = 0; k < OTHERS; k++) {
		/* rank 2 gets all rows where one is to get none */
		for (int odd = k < OVERFLOW_EM ? 0 : 1; odd < (k < EMPTY ? w->nranks : 2); odd++) {
			if (!nodes || !(others[k].windows || k == RECIPE_COMBINE)) {
				differ(w, (enum which)k, odd);
			}
		}
	}
}

int main(void)
{
	world_run(world_size(RANKS), run, NULL);
	return check_end();
}
