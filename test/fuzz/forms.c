/* SPDX-License-Identifier: Apache-2.0 */
/* The structs of operations and handles, as mutate.c wants to know them. */
#include "fuzz/calls.h"

#define AT(type, member) #member, offsetof(type, member)
#define TENSOR(type, member)                                                                       \
	{                                                                                          \
		AT(type, member), FIELD_TENSOR, 0, false                                           \
	}
#define WORD(type, member, most)                                                                   \
	{                                                                                          \
		AT(type, member), FIELD_U32, most, false                                           \
	}
#define ANY UINT64_MAX

const struct form form_in = {
	"inputs",
	NCCL_EP_DISPATCH_INPUTS_SIZE,
	NCCL_EP_DISPATCH_INPUTS_V1_SIZE,
	false,
	{ TENSOR(ncclEpDispatchInputs_t, tokens), TENSOR(ncclEpDispatchInputs_t, topk_weights),
	  TENSOR(ncclEpDispatchInputs_t, scales) },
};
const struct form form_out = {
	"outputs",
	NCCL_EP_DISPATCH_OUTPUTS_SIZE,
	NCCL_EP_DISPATCH_OUTPUTS_V1_SIZE,
	false,
	{ TENSOR(ncclEpDispatchOutputs_t, tokens), TENSOR(ncclEpDispatchOutputs_t, topk_weights),
	  TENSOR(ncclEpDispatchOutputs_t, scales), TENSOR(ncclEpDispatchOutputs_t, topk_idx) },
};
const struct form form_info = {
	"layout_info",
	NCCL_EP_LAYOUT_INFO_SIZE,
	NCCL_EP_LAYOUT_INFO_V1_SIZE,
	true,
	{ TENSOR(ncclEpLayoutInfo_t, expert_counters),
	  TENSOR(ncclEpLayoutInfo_t, src_rank_counters), TENSOR(ncclEpLayoutInfo_t, expert_offsets),
	  TENSOR(ncclEpLayoutInfo_t, recv_total_counter),
	  WORD(ncclEpLayoutInfo_t, recv_topk_idx_kind, NCCL_EP_EXPERT_ID_GLOBAL) },
};
const struct form form_config = {
	"config",
	NCCL_EP_DISPATCH_CONFIG_SIZE,
	NCCL_EP_DISPATCH_CONFIG_V1_SIZE,
	true,
	{ WORD(ncclEpDispatchConfig_t, send_only, ANY),
	  WORD(ncclEpDispatchConfig_t, round_scales, ANY),
	  WORD(ncclEpDispatchConfig_t, pass_direction, NCCL_EP_FWD_PASS),
	  WORD(ncclEpDispatchConfig_t, quant_recipe, NCCL_EP_DISP_QUANT_DS_FP8E3M4) },
};
const struct form form_combine_in = {
	"inputs",
	NCCL_EP_COMBINE_INPUTS_SIZE,
	NCCL_EP_COMBINE_INPUTS_V1_SIZE,
	false,
	{ TENSOR(ncclEpCombineInputs_t, tokens), TENSOR(ncclEpCombineInputs_t, topk_weights),
	  TENSOR(ncclEpCombineInputs_t, scales) },
};
const struct form form_combine_out = {
	"outputs",
	NCCL_EP_COMBINE_OUTPUTS_SIZE,
	NCCL_EP_COMBINE_OUTPUTS_V1_SIZE,
	false,
	{ TENSOR(ncclEpCombineOutputs_t, tokens), TENSOR(ncclEpCombineOutputs_t, topk_weights) },
};
const struct form form_combine_config = {
	"config",
	NCCL_EP_COMBINE_CONFIG_SIZE,
	NCCL_EP_COMBINE_CONFIG_V1_SIZE,
	true,
	{ WORD(ncclEpCombineConfig_t, send_only, ANY),
	  WORD(ncclEpCombineConfig_t, pass_direction, NCCL_EP_FWD_PASS),
	  WORD(ncclEpCombineConfig_t, quant_recipe, NCCL_EP_COMB_QUANT_NONE) },
};
const struct form form_handle_config = {
	"config",
	NCCL_EP_HANDLE_CONFIG_SIZE,
	NCCL_EP_HANDLE_CONFIG_V1_SIZE,
	true,
	{ { AT(ncclEpHandleConfig_t, dispatch_output_per_expert_alignment), FIELD_U64, ANY,
	    false } },
};
const struct form form_complete = {
	"config", NCCL_EP_COMPLETE_CONFIG_SIZE, NCCL_EP_COMPLETE_CONFIG_V1_SIZE, true, { { 0 } },
};
