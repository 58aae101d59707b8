/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "ep/struct.h"
#include "nccl_ep/ext.h"

struct ep_struct_prefix {
	unsigned int size;
	unsigned int magic;
};

ncclResult_t ep_struct_import(void *own, size_t own_size, const void *caller, unsigned int v1_size,
			      const char *name)
{
	struct ep_struct_prefix prefix;

	if (!caller) {
		return ep_fail(ncclInvalidArgument,
			       "%s is NULL: pass a struct made with its _INIT "
			       "macro",
			       name);
	}
	memcpy(&prefix, caller, sizeof(prefix));
	if (prefix.magic != NCCL_EP_MAGIC) {
		return ep_fail(ncclInvalidArgument,
			       "%s->magic is 0x%x instead of 0x%x: initialise it with its _INIT "
			       "macro",
			       name, prefix.magic, NCCL_EP_MAGIC);
	}
	if (prefix.size < v1_size) {
		return ep_fail(ncclInvalidArgument,
			       "%s->size is %u, less than the %u of API version 1: initialise it "
			       "with its _INIT macro",
			       name, prefix.size, v1_size);
	}
	memset(own, 0, own_size);
	memcpy(own, caller, ep_min_u64(prefix.size, own_size));
	return ncclSuccess;
}

ncclResult_t ep_struct_import_optional(void *own, size_t own_size, const void *caller,
				       unsigned int v1_size, const char *name)
{
	if (!caller) {
		memset(own, 0, own_size);
		return ncclSuccess;
	}
	return ep_struct_import(own, own_size, caller, v1_size, name);
}

void ep_struct_export(void *caller, void *own, size_t own_size, unsigned int caller_size)
{
	memcpy(own, &caller_size, sizeof(caller_size));
	memcpy(caller, own, ep_min_u64(own_size, caller_size));
}

#define EP_AT(type, field, offset)                                                                 \
	_Static_assert(offsetof(type, field) == (offset), #type "." #field)
#define EP_SIZE(type, bytes) _Static_assert(sizeof(type) == (bytes), #type)

/* The binary interface of both API versions, field by field. */
EP_AT(ncclEpTensor_t, size, 0);
EP_AT(ncclEpTensor_t, magic, 4);
EP_AT(ncclEpTensor_t, ndim, 8);
EP_AT(ncclEpTensor_t, datatype, 12);
EP_AT(ncclEpTensor_t, data, 16);
EP_AT(ncclEpTensor_t, win_hdl, 24);
EP_AT(ncclEpTensor_t, win_offset, 32);
EP_AT(ncclEpTensor_t, sizes, 40);
EP_SIZE(ncclEpTensor_t, 48);

EP_SIZE(ncclEpTensorAllocConfig_t, 8);
EP_SIZE(ncclEpCompleteConfig_t, 8);

EP_AT(ncclEpAllocConfig_t, alloc_fn, 0);
EP_AT(ncclEpAllocConfig_t, free_fn, 8);
EP_AT(ncclEpAllocConfig_t, context, 16);
EP_SIZE(ncclEpAllocConfig_t, 24);

EP_AT(ncclEpGroupConfig_t, version, 8);
EP_AT(ncclEpGroupConfig_t, algorithm, 12);
EP_AT(ncclEpGroupConfig_t, num_experts, 16);
EP_AT(ncclEpGroupConfig_t, max_dispatch_tokens_per_rank, 20);
EP_AT(ncclEpGroupConfig_t, max_recv_tokens_per_rank, 24);
EP_AT(ncclEpGroupConfig_t, max_token_bytes, 28);
EP_AT(ncclEpGroupConfig_t, rdma_buffer_size, 32);
EP_AT(ncclEpGroupConfig_t, num_qp_per_rank, 40);
EP_AT(ncclEpGroupConfig_t, num_channels, 44);
EP_AT(ncclEpGroupConfig_t, max_num_sms, 48);
EP_AT(ncclEpGroupConfig_t, alloc, 56);
EP_AT(ncclEpGroupConfig_t, enable_mask, 80);
EP_AT(ncclEpGroupConfig_t, timeout_ns, 88);
EP_AT(ncclEpGroupConfig_t, zero_copy, 96);
EP_AT(ncclEpGroupConfig_t, overflow_policy, 100);
EP_AT(ncclEpGroupConfig_t, num_topk, 104);
EP_AT(ncclEpGroupConfig_t, padding_v2, 108);
EP_SIZE(ncclEpGroupConfig_t, 112);

EP_AT(ncclEpLayoutInfo_t, expert_counters, 8);
EP_AT(ncclEpLayoutInfo_t, src_rank_counters, 16);
EP_AT(ncclEpLayoutInfo_t, expert_offsets, 24);
EP_AT(ncclEpLayoutInfo_t, recv_total_counter, 32);
EP_AT(ncclEpLayoutInfo_t, recv_topk_idx_kind, 40);
EP_AT(ncclEpLayoutInfo_t, padding_v2, 44);
EP_SIZE(ncclEpLayoutInfo_t, 48);

EP_AT(ncclEpDispatchInputs_t, tokens, 8);
EP_AT(ncclEpDispatchInputs_t, topk_weights, 16);
EP_AT(ncclEpDispatchInputs_t, scales, 24);
EP_SIZE(ncclEpDispatchInputs_t, 32);

EP_AT(ncclEpDispatchOutputs_t, tokens, 8);
EP_AT(ncclEpDispatchOutputs_t, topk_weights, 16);
EP_AT(ncclEpDispatchOutputs_t, scales, 24);
EP_AT(ncclEpDispatchOutputs_t, topk_idx, 32);
EP_SIZE(ncclEpDispatchOutputs_t, 40);

EP_AT(ncclEpCombineInputs_t, tokens, 8);
EP_AT(ncclEpCombineInputs_t, topk_weights, 16);
EP_AT(ncclEpCombineInputs_t, scales, 24);
EP_SIZE(ncclEpCombineInputs_t, 32);

EP_AT(ncclEpCombineOutputs_t, tokens, 8);
EP_AT(ncclEpCombineOutputs_t, topk_weights, 16);
EP_SIZE(ncclEpCombineOutputs_t, 24);

EP_AT(ncclEpHandleConfig_t, dispatch_output_per_expert_alignment, 8);
EP_SIZE(ncclEpHandleConfig_t, 16);

EP_AT(ncclEpDispatchConfig_t, send_only, 8);
EP_AT(ncclEpDispatchConfig_t, round_scales, 12);
EP_AT(ncclEpDispatchConfig_t, pass_direction, 16);
EP_AT(ncclEpDispatchConfig_t, quant_recipe, 20);
EP_SIZE(ncclEpDispatchConfig_t, 24);

EP_AT(ncclEpCombineConfig_t, send_only, 8);
EP_AT(ncclEpCombineConfig_t, pass_direction, 12);
EP_AT(ncclEpCombineConfig_t, quant_recipe, 16);
EP_SIZE(ncclEpCombineConfig_t, 20);

NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpTensor_t, NCCL_EP_TENSOR, 1);
NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpGroupConfig_t, NCCL_EP_GROUP_CONFIG, 1);
NCCL_EP_STATIC_ASSERT_STRUCT_ABI_BOUNDARY(ncclEpGroupConfig_t, NCCL_EP_GROUP_CONFIG, 2);
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
_Static_assert(sizeof(ncclEpExtMemory_t) == NCCL_EP_EXT_MEMORY_V2_SIZE, "ncclEpExtMemory_t");
_Static_assert(offsetof(ncclEpExtPeerStats_t, node) == NCCL_EP_EXT_PEER_STATS_V1_SIZE,
	       "ncclEpExtPeerStats_t");
_Static_assert(sizeof(ncclEpExtPeerStats_t) == NCCL_EP_EXT_PEER_STATS_V2_SIZE,
	       "ncclEpExtPeerStats_t");
