/* SPDX-License-Identifier: Apache-2.0 */
/* The calls of a bench, as a caller of API version 1 or 2 makes them. */
#include "support/bench.h"

/* The tail that a caller of version 1 does not have holds whatever comes next in its memory. */
static void shrink(void *config, unsigned int full, unsigned int size, const struct bench *b)
{
	if (b->flags & BENCH_V1) {
		memcpy(config, &size, sizeof(size));
		memset((char *)config + size, 0xee, full - size);
	}
}

static ncclEpTensor_t *given(struct bench *b, struct bench_tensor *d, ncclEpTensor_t *copy)
{
	size_t elements = 1;

	*copy = d->t;
	for (unsigned int i = 0; i < d->t.ndim; i++) {
		elements *= d->sizes[i];
	}
	if ((elements == 0 && (b->flags & BENCH_NULL_EMPTY)) ||
	    (d->window && !(b->flags & BENCH_DATA))) {
		copy->data = NULL;
	}
	return copy;
}

ncclResult_t bench_update(struct bench *b, cudaStream_t stream)
{
	ncclEpTensor_t ids;

	return ncclEpUpdateHandle(b->handle, given(b, &b->ids, &ids), NULL, stream);
}

static ncclResult_t dispatch(struct bench *b, bool send_only, cudaStream_t stream)
{
	const struct oracle_problem *p = &b->p;
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;
	ncclEpTensor_t copy[5];
	bool by_rank = p->layout == ORACLE_RANK_MAJOR;
	bool columns = p->quant == ORACLE_QUANT_FP8_COLUMNS;

	in.tokens = given(b, &b->in_tokens, copy);
	out.tokens = given(b, &b->out_tokens, copy + 1);
	config.send_only = send_only;
	config.round_scales = (unsigned int)p->pow2_scales;
	info.recv_topk_idx_kind = p->global_ids ? NCCL_EP_EXPERT_ID_GLOBAL : NCCL_EP_AUTO;
	if (by_rank) {
		in.topk_weights = given(b, &b->weights, copy + 2);
		out.topk_weights = &b->out_weights.t;
		out.topk_idx = &b->out_idx.t;
		info.src_rank_counters = b->flags & BENCH_NO_COUNTS ? NULL : &b->counts.t;
	} else {
		info.expert_counters = &b->counts.t;
	}
	if (p->quant != ORACLE_QUANT_NONE) {
		out.scales = given(b, &b->out_scales, copy + 3);
	}
	if (p->quant == ORACLE_QUANT_FP8) {
		config.quant_recipe = NCCL_EP_DISP_QUANT_DS_FP8E3M4;
	} else if (p->quant == ORACLE_QUANT_FORWARD) {
		config.quant_recipe = NCCL_EP_DISP_QUANT_FWD;
		in.scales = given(b, &b->in_scales, copy + 4);
	}
	shrink(&info, sizeof(info), NCCL_EP_LAYOUT_INFO_V1_SIZE, b);
	if (columns || (b->flags & BENCH_V1)) {
		config.size = NCCL_EP_DISPATCH_CONFIG_V1_SIZE;
		memset(&config.quant_recipe, 0xee, sizeof(config.quant_recipe));
	}
	return ncclEpDispatch(b->handle, &in, &out,
			      by_rank && (b->flags & BENCH_NO_COUNTS) && !p->global_ids ? NULL
											: &info,
			      columns && !send_only && !p->pow2_scales ? NULL : &config, stream);
}

static ncclResult_t combine(struct bench *b, bool send_only, cudaStream_t stream)
{
	ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;
	ncclEpCombineConfig_t config = NCCL_EP_COMBINE_CONFIG_INIT;
	ncclEpTensor_t copy[2];

	in.tokens = &b->combine_in.t;
	out.tokens = given(b, &b->combine_out, copy);
	if (b->p.layout == ORACLE_EXPERT_MAJOR) {
		out.topk_weights = given(b, &b->weights, copy + 1);
	}
	config.send_only = send_only;
	shrink(&in, sizeof(in), NCCL_EP_COMBINE_INPUTS_V1_SIZE, b);
	shrink(&config, sizeof(config), NCCL_EP_COMBINE_CONFIG_V1_SIZE, b);
	return ncclEpCombine(b->handle, &in, &out, send_only ? &config : NULL, stream);
}

ncclResult_t bench_send_dispatch(struct bench *b, cudaStream_t stream)
{
	return dispatch(b, true, stream);
}

ncclResult_t bench_send_combine(struct bench *b, cudaStream_t stream)
{
	return combine(b, true, stream);
}

static ncclResult_t complete(struct bench *b, ncclResult_t result, cudaStream_t stream)
{
	ncclEpCompleteConfig_t config = NCCL_EP_COMPLETE_CONFIG_INIT;

	return result == ncclSuccess ? ncclEpComplete(b->handle, &config, stream) : result;
}

ncclResult_t bench_dispatch(struct bench *b, cudaStream_t stream)
{
	if (b->flags & BENCH_PENDING) {
		return complete(b, dispatch(b, true, stream), stream);
	}
	return dispatch(b, false, stream);
}

ncclResult_t bench_combine(struct bench *b, cudaStream_t stream)
{
	if (b->flags & BENCH_PENDING) {
		return complete(b, combine(b, true, stream), stream);
	}
	return combine(b, false, stream);
}

void bench_dispatch_checked(struct bench *b)
{
	uint64_t rows = 0;

	bench_poison(b);
	NEED_OK(bench_update(b, b->w->stream));
	NEED_SYNC(bench_dispatch(b, b->w->stream), b->w->stream);
	bench_check_dispatch(b);
	OK(ncclEpExtNumRecvTokens(b->handle, NULL, &rows, b->w->stream));
	CHECK_INT(rows, b->due);
}

void bench_pair(struct bench *b)
{
	bench_dispatch_checked(b);
	NEED_SYNC(bench_combine(b, b->w->stream), b->w->stream);
	bench_check_combine(b);
}

void bench_pair_of(struct bench *b, uint64_t seed)
{
	bench_load(b, seed);
	bench_pair(b);
}
