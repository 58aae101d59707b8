/* SPDX-License-Identifier: Apache-2.0 */
/* The binary interface of all API versions, field by field: a compiler that accepts this has it. */
#include <stddef.h>
#include "nccl_ep.h"
#include "nccl_ep/ext.h"

#define AT(type, field, offset) _Static_assert(offsetof(type, field) == (offset), #type "." #field)
#define SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)

AT(ncclEpTensor_t, size, 0);
AT(ncclEpTensor_t, magic, 4);
AT(ncclEpTensor_t, ndim, 8);
AT(ncclEpTensor_t, datatype, 12);
AT(ncclEpTensor_t, data, 16);
AT(ncclEpTensor_t, win_hdl, 24);
AT(ncclEpTensor_t, win_offset, 32);
AT(ncclEpTensor_t, sizes, 40);
SIZE(ncclEpTensor_t, 48);

SIZE(ncclEpTensorAllocConfig_t, 8);
SIZE(ncclEpCompleteConfig_t, 8);

AT(ncclEpAllocConfig_t, alloc_fn, 0);
AT(ncclEpAllocConfig_t, free_fn, 8);
AT(ncclEpAllocConfig_t, context, 16);
SIZE(ncclEpAllocConfig_t, 24);

AT(ncclEpGroupConfig_t, version, 8);
AT(ncclEpGroupConfig_t, algorithm, 12);
AT(ncclEpGroupConfig_t, num_experts, 16);
AT(ncclEpGroupConfig_t, max_dispatch_tokens_per_rank, 20);
AT(ncclEpGroupConfig_t, max_recv_tokens_per_rank, 24);
AT(ncclEpGroupConfig_t, max_token_bytes, 28);
AT(ncclEpGroupConfig_t, rdma_buffer_size, 32);
AT(ncclEpGroupConfig_t, num_qp_per_rank, 40);
AT(ncclEpGroupConfig_t, num_channels, 44);
AT(ncclEpGroupConfig_t, max_num_sms, 48);
AT(ncclEpGroupConfig_t, alloc, 56);
AT(ncclEpGroupConfig_t, enable_mask, 80);
AT(ncclEpGroupConfig_t, timeout_ns, 88);
AT(ncclEpGroupConfig_t, zero_copy, 96);
AT(ncclEpGroupConfig_t, overflow_policy, 100);
AT(ncclEpGroupConfig_t, num_topk, 104);
AT(ncclEpGroupConfig_t, padding_v2, 108);
AT(ncclEpGroupConfig_t, dispatch_num_sms, 112);
AT(ncclEpGroupConfig_t, combine_num_sms, 116);
SIZE(ncclEpGroupConfig_t, 120);
_Static_assert(NCCL_EP_COMB_QUANT_NONE == 0 && NCCL_EP_COMB_QUANT_NVFP4 == 1 &&
		       NCCL_EP_COMB_QUANT_MXFP8 == 2,
	       "recipes of combine");
_Static_assert(NCCL_EP_API_VERSION == 3 && NCCL_EP_GROUP_CONFIG_CURRENT_VERSION == 3,
	       "API version");

AT(ncclEpLayoutInfo_t, expert_counters, 8);
AT(ncclEpLayoutInfo_t, src_rank_counters, 16);
AT(ncclEpLayoutInfo_t, expert_offsets, 24);
AT(ncclEpLayoutInfo_t, recv_total_counter, 32);
AT(ncclEpLayoutInfo_t, recv_topk_idx_kind, 40);
AT(ncclEpLayoutInfo_t, padding_v2, 44);
SIZE(ncclEpLayoutInfo_t, 48);

AT(ncclEpDispatchInputs_t, tokens, 8);
AT(ncclEpDispatchInputs_t, topk_weights, 16);
AT(ncclEpDispatchInputs_t, scales, 24);
SIZE(ncclEpDispatchInputs_t, 32);

AT(ncclEpDispatchOutputs_t, tokens, 8);
AT(ncclEpDispatchOutputs_t, topk_weights, 16);
AT(ncclEpDispatchOutputs_t, scales, 24);
AT(ncclEpDispatchOutputs_t, topk_idx, 32);
SIZE(ncclEpDispatchOutputs_t, 40);

AT(ncclEpCombineInputs_t, tokens, 8);
AT(ncclEpCombineInputs_t, topk_weights, 16);
AT(ncclEpCombineInputs_t, scales, 24);
SIZE(ncclEpCombineInputs_t, 32);

AT(ncclEpCombineOutputs_t, tokens, 8);
AT(ncclEpCombineOutputs_t, topk_weights, 16);
SIZE(ncclEpCombineOutputs_t, 24);

AT(ncclEpHandleConfig_t, dispatch_output_per_expert_alignment, 8);
SIZE(ncclEpHandleConfig_t, 16);

AT(ncclEpDispatchConfig_t, send_only, 8);
AT(ncclEpDispatchConfig_t, round_scales, 12);
AT(ncclEpDispatchConfig_t, pass_direction, 16);
AT(ncclEpDispatchConfig_t, quant_recipe, 20);
SIZE(ncclEpDispatchConfig_t, 24);

AT(ncclEpCombineConfig_t, send_only, 8);
AT(ncclEpCombineConfig_t, pass_direction, 12);
AT(ncclEpCombineConfig_t, quant_recipe, 16);
SIZE(ncclEpCombineConfig_t, 20);

NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpTensor_t, NCCL_EP_TENSOR, 1);
NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpGroupConfig_t, NCCL_EP_GROUP_CONFIG, 1);
NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpGroupConfig_t, NCCL_EP_GROUP_CONFIG, 2);
NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpGroupConfig_t, NCCL_EP_GROUP_CONFIG, 3);
NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpLayoutInfo_t, NCCL_EP_LAYOUT_INFO, 1);
NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpLayoutInfo_t, NCCL_EP_LAYOUT_INFO, 2);
NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpDispatchInputs_t, NCCL_EP_DISPATCH_INPUTS, 1);
NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpDispatchOutputs_t, NCCL_EP_DISPATCH_OUTPUTS, 1);
NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpCombineInputs_t, NCCL_EP_COMBINE_INPUTS, 1);
NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpCombineInputs_t, NCCL_EP_COMBINE_INPUTS, 2);
NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpCombineOutputs_t, NCCL_EP_COMBINE_OUTPUTS, 1);
NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpHandleConfig_t, NCCL_EP_HANDLE_CONFIG, 1);
NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpDispatchConfig_t, NCCL_EP_DISPATCH_CONFIG, 1);
NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpDispatchConfig_t, NCCL_EP_DISPATCH_CONFIG, 2);
NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpCombineConfig_t, NCCL_EP_COMBINE_CONFIG, 1);
NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpCombineConfig_t, NCCL_EP_COMBINE_CONFIG, 2);

_Static_assert(offsetof(ncclEpExtMemory_t, remote_ranks) == NCCL_EP_EXT_MEMORY_V1_SIZE,
	       "ncclEpExtMemory_t");
_Static_assert(offsetof(ncclEpExtMemory_t, roles) == NCCL_EP_EXT_MEMORY_V2_SIZE,
	       "ncclEpExtMemory_t");
_Static_assert(sizeof(ncclEpExtMemory_t) == NCCL_EP_EXT_MEMORY_V3_SIZE, "ncclEpExtMemory_t");
_Static_assert(offsetof(ncclEpExtShape_t, roles) == NCCL_EP_EXT_SHAPE_V1_SIZE, "ncclEpExtShape_t");
_Static_assert(sizeof(ncclEpExtShape_t) == NCCL_EP_EXT_SHAPE_V2_SIZE, "ncclEpExtShape_t");
_Static_assert(sizeof(ncclEpExtRoles_t) == NCCL_EP_EXT_ROLES_V1_SIZE, "ncclEpExtRoles_t");
_Static_assert(sizeof(ncclEpExtArrival_t) == 16 && offsetof(ncclEpExtArrival_t, missing) == 0 &&
		       offsetof(ncclEpExtArrival_t, rows) == 4 &&
		       offsetof(ncclEpExtArrival_t, first) == 8,
	       "ncclEpExtArrival_t");
_Static_assert(offsetof(ncclEpExtArrivals_t, failed) == 0 &&
		       offsetof(ncclEpExtArrivals_t, experts) == 4 &&
		       offsetof(ncclEpExtArrivals_t, expert) == 16,
	       "ncclEpExtArrivals_t");
_Static_assert(offsetof(ncclEpExtPeerStats_t, node) == NCCL_EP_EXT_PEER_STATS_V1_SIZE,
	       "ncclEpExtPeerStats_t");
_Static_assert(sizeof(ncclEpExtPeerStats_t) == NCCL_EP_EXT_PEER_STATS_V2_SIZE,
	       "ncclEpExtPeerStats_t");

int main(void)
{
	return 0;
}
