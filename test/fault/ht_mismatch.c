// SPDX-License-Identifier: Apache-2.0
/*
 * High throughput: ranks that disagree, handle memory without the routing that an operation is for,
 * tensors with too few rows, rows beyond the limit. An error on every rank, in time, that says so. With
 * ranks of several nodes, too, where it does not matter which tensors lie in windows.
 */
#include "support/ht_bench.h"
#include "support/victim.h"

#define RANKS 3
#define ODD 1 /* the rank that is different */
#define TIMEOUT_MS 12000.0

enum at {
	AT_UPDATE, /* the call that is different */
	AT_DISPATCH,
	AT_COMBINE
};

struct other {
	const char *name;
	enum at at;
	bool em;
	bool own; /* handle_mem of the caller */
	bool windows;
	bool late;          /* the others find out by their timeout */
	const char *theirs; /* what their error says; NULL: `odd` too */
	const char *odd;    /* what the error of the odd rank says */
};

enum which {
	HIDDEN,
	LAYOUT,
	TOPK,
	ALIGNMENT,
	DIRECTION,
	ORDER,
	ONE_WINDOW,
	OFFSET,
	TYPE,
	REROUTED,
	EMPTY,
	OVERFLOW_EM,
	OVERFLOW_FLAT,
	UNROUTED,
	STALE,
	SHORT,
	MISSING,
	OTHERS
};

static const struct other others[OTHERS] = {
	[HIDDEN] = { "hidden", AT_DISPATCH, false, false, false, false, "bytes of a row",
		     "bytes of a row" },
	[LAYOUT] = { "layout", AT_UPDATE, false, false, false, false, "is EXPERT_MAJOR",
		     "its layout is FLAT" },
	[TOPK] = { "top-k", AT_UPDATE, false, false, false, false, "num_topk is 2, and ours 3",
		   "num_topk is 3, and ours 2" },
	[ALIGNMENT] = { "alignment", AT_UPDATE, true, false, false, false, "per_expert_alignment",
			"per_expert_alignment" },
	[DIRECTION] = { "direction", AT_DISPATCH, false, false, false, false, "is BWD", "is FWD" },
	[ORDER] = { "order", AT_DISPATCH, false, false, false, false,
		    "it runs combine, and we run dispatch",
		    "it runs dispatch, and we run combine" },
	[ONE_WINDOW] = { "window", AT_DISPATCH, false, false, true, false, "all but that rank",
			 "only that rank" },
	[OFFSET] = { "offset", AT_COMBINE, false, false, true, false, "another win_offset",
		     "another win_offset" },
	[TYPE] = { "type", AT_COMBINE, false, false, false, false,
		   "its tokens are bf16, and ours fp32", "its tokens are fp32, and ours bf16" },
	[REROUTED] = { "an earlier routing", AT_DISPATCH, false, true, false, false,
		       "has the routing of UpdateHandle 1, and ours that of UpdateHandle 2",
		       "has the routing of UpdateHandle 2, and ours that of UpdateHandle 1" },
	[EMPTY] = { "an empty tensor", AT_COMBINE, false, false, true, false,
		    "all but that rank has its rows in a window (also an empty tensor needs its one)",
		    "only that rank has its rows in a window" },
	[OVERFLOW_EM] = { "zones", AT_UPDATE, true, false, false, false,
			  "UpdateHandle 1: 256 rows are to come to rank 2, its "
			  "max_recv_tokens_per_rank is 20",
			  NULL },
	[OVERFLOW_FLAT] = { "rows", AT_UPDATE, false, false, false, false,
			    "rows are to come to rank ", NULL },
	[UNROUTED] = { "no routing", AT_DISPATCH, false, true, false, true, NULL,
		       "handle_mem of rank 1 has no routing for handles like this one" },
	[STALE] = { "another routing", AT_COMBINE, true, true, false, true, NULL,
		    "has the routing of 5 tokens, and the operation has 4" },
	[SHORT] = { "few rows", AT_COMBINE, true, false, false, true, NULL,
		    "rows to rank 1, and a tensor for them has 1;" },
	[MISSING] = { "one less", AT_DISPATCH, true, false, false, true, NULL, NULL },
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

/* What the odd rank has changed before the call that is different. */
static void spoil(struct ht_bench *b, enum which i)
{
	switch (i) {
	case ONE_WINDOW:
		b->out_tokens.t.data = b->out_tokens.data;
		b->out_tokens.t.win_hdl = NULL;
		break;
	case OFFSET:
		b->combine_in.t.win_offset += 16;
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
	if (odd) {
		spoil(b, i);
	}
	OK(odd && i == ORDER ? ht_combine(b, false, stream)
			     : ht_dispatch(b, odd && i == DIRECTION, stream));
	if (others[i].at == AT_COMBINE) {
		OK(ht_combine(b, false, stream));
	}
}

static void check_error(struct world *w, ncclEpGroup_t group, enum which i)
{
	bool odd = w->rank == ODD;
	const char *theirs = others[i].theirs, *text = "";
	ncclResult_t code = ncclSuccess;

	OK(ncclEpExtGetLastError(group, &code, &text));
	if (odd && i == MISSING) {
		CHECK_INT(code, ncclSuccess);
		return;
	}
	CHECK(strlen(text) > 20 && !strchr(text, '\n'), "%s", text);
	if (odd && others[i].odd) {
		CHECK_HAS(text, others[i].odd);
	} else if (theirs) {
		CHECK_HAS(text, theirs);
		CHECK(i >= OVERFLOW_EM || victim_named(text, ODD), "\"%s\" does not name rank 1",
		      text);
	} else {
		CHECK_INT(code, ncclRemoteError);
		CHECK_HAS(text, " waited for rank 1 (");
	}
}

static void run(struct world *w, void *arg)
{
	bool nodes = getenv("NCCL_EP_NODE_SIZE") != NULL;

	for (int k = 0; k < OTHERS; k++) {
		enum which i = (enum which)k;
		struct oracle_ht h = problem_of(i, w->nranks, w->rank == ODD);
		struct oracle_ht alike = problem_of(i, w->nranks, false);
		ncclEpGroupConfig_t config = ht_group_config(&alike, 0);
		ncclEpGroup_t group = NULL;
		struct ht_bench b;
		double start;

		if (nodes && others[k].windows) {
			continue;
		}
		check_context("%s, rank %d", others[k].name, w->rank);
		config.max_num_sms = 2;
		config.timeout_ns = (uint64_t)(TIMEOUT_MS * 1e6);
		config.overflow_policy = NCCL_EP_OVERFLOW_AUTO;
		NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
		ht_open(&b, w, group, &h,
			(others[k].own ? HT_OWN_MEM : 0) | (others[k].windows ? HT_WINDOW : 0));
		world_meet(w);
		start = world_now();
		operate(&b, i, w->rank == ODD);
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		check_error(w, group, i);
		CHECK(world_now() - start <= (others[k].late ? TIMEOUT_MS / 1e3 : 0) + 1.8,
		      "%.1f s", world_now() - start);
		world_meet(w);
		ht_close(&b);
		OK(ncclEpGroupDestroy(group));
	}
}

int main(void)
{
	world_run(world_size(RANKS), run, NULL);
	return check_end();
}
