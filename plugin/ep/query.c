/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include "core/cuda.h"
#include "core/nodes.h"
#include "device/kernels.h"
#include "ep/call.h"
#include "ep/group.h"
#include "ep/group_heap.h"
#include "ep/group_size.h"
#include "ep/handle.h"
#include "ep/kernel.h"
#include "ep/query.h"
#include "ep/query_read.h"
#include "ep/remote.h"
#include "ep/struct.h"

static __thread struct ep_error ep_query_last;

ncclResult_t ep_query_error(struct ep_error_slot *slot, ncclResult_t *code, const char **text)
{
	ep_error_get(slot, &ep_query_last);
	if (code) {
		*code = ep_query_last.code;
	}
	if (text) {
		*text = ep_query_last.text;
	}
	return ncclSuccess;
}

/* The nodes: those of the caller, else of the environment. */
static ncclResult_t ep_query_nodes(const struct ep_group_config *config, int nranks,
				   const ncclEpExtMemory_t *asked, struct ep_nodes_most *most)
{
	uint32_t n = (uint32_t)nranks, *node;
	ncclResult_t result = ncclSuccess;

	if (asked->remote_ranks >= n) {
		return ep_fail(ncclInvalidArgument,
			       "memory->remote_ranks is %u: with %d ranks, a rank has at most %d "
			       "peers",
			       asked->remote_ranks, nranks, nranks - 1);
	}
	*most = ep_nodes_alike(asked->node_ranks ? asked->node_ranks : n - asked->remote_ranks,
			       asked->remote_ranks, nranks);
	if (most->near > n || most->near < n - most->remote) {
		return ep_fail(ncclInvalidArgument,
			       "memory->node_ranks is %u: with %d ranks and %u remote_ranks, the "
			       "largest node has %u to %d, and 0 stands for %u",
			       asked->node_ranks, nranks, most->remote, n - most->remote, nranks,
			       n - most->remote);
	}
	if (asked->remote_ranks || !config->node_size.count) {
		return ncclSuccess;
	}
	node = malloc(n * sizeof(*node));
	if (!node) {
		return ep_fail(ncclSystemError, "ncclEpExtDeviceMemory: out of host memory");
	}
	EP_CHECK_GOTO(ep_nodes_split(node, &config->node_size, nranks), out);
	*most = ep_nodes_most(node, sizeof(*node), nranks);
out:
	free(node);
	return result;
}

/* Of a group, and of a handle unless layout is UNSET: fills the sizes of *memory, by the nodes that it has. */
ncclResult_t ep_query_size(struct ep_group_config *made, const ncclEpGroupConfig_t *config,
			   int nranks, ncclEpLayout_t layout, int num_topk,
			   const ncclEpHandleConfig_t *handle, ncclEpExtMemory_t *memory)
{
	struct ep_params params;
	ncclEpGroupConfig_t own;
	struct ep_nodes_most most;

	EP_CHECK(EP_IMPORT(&own, config, NCCL_EP_GROUP_CONFIG));
	EP_CHECK(ep_params_read(&params));
	EP_CHECK(ep_group_config_make(made, &own, &params, nranks, 0));
	EP_CHECK(ep_query_nodes(made, nranks, memory, &most));
	ep_group_config_size(made, most);
	memory->heap_bytes = made->heap_bytes;
	memory->handle_bytes = 0;
	if (layout != NCCL_EP_LAYOUT_UNSET) {
		uint32_t topk = (uint32_t)num_topk;

		EP_CHECK(ep_handle_check(made, layout, handle, num_topk));
		memory->handle_bytes = made->algo->handle_bytes(&made->shape, layout, topk);
		memory->heap_bytes = ep_group_heap_bytes(made, topk);
	}
	memory->group_bytes =
		memory->heap_bytes + ep_group_workspace_bytes(made) + ep_group_remote_bytes(made);
	return ncclSuccess;
}

ncclResult_t ep_query_memory(const ncclEpGroupConfig_t *config, int nranks, ncclEpLayout_t layout,
			     int num_topk, ncclEpExtMemory_t *memory)
{
	struct ep_group_config made;
	ncclEpExtMemory_t m;

	EP_CHECK(EP_IMPORT(&m, memory, NCCL_EP_EXT_MEMORY));
	EP_CHECK(ep_query_size(&made, config, nranks, layout, num_topk, NULL, &m));
	ep_struct_export(memory, &m, sizeof(m), m.size);
	return ncclSuccess;
}

ncclResult_t ep_query_received(struct ncclEpHandle *handle, uint64_t *tokens, uint64_t *rows,
			       cudaStream_t stream)
{
	uint64_t distinct, placed;

	EP_CHECK(ep_stream_check_capture(stream, "ncclEpExtNumRecvTokens"));
	EP_CHECK(handle->group->config.algo->received(handle, &distinct, &placed, stream));
	if (tokens) {
		*tokens = distinct;
	}
	if (rows) {
		*rows = placed;
	}
	return ncclSuccess;
}

#define EP_EXPERT_ROWS_THREADS 256u
#define EP_EXPERT_ROWS_BLOCKS 64u

ncclResult_t ep_query_expert_rows(const struct ncclEpHandle *handle, uint64_t *rows,
				  cudaStream_t stream)
{
	static const char name[] = "ncclEpExtAddExpertRows";
	struct ep_expert_rows_args args;
	uint32_t blocks;

	EP_CHECK(ep_handle_check_routed(handle, name));
	if (!rows) {
		return ep_fail(ncclInvalidArgument, "%s: rows is NULL", name);
	}
	if ((uintptr_t)rows % sizeof(*rows)) {
		return ep_fail(ncclInvalidArgument,
			       "%s: rows is %p: it must be aligned to %zu bytes", name,
			       (void *)rows, sizeof(*rows));
	}
	handle->group->config.algo->selections(handle, &args);
	args.rows = rows;
	blocks = ep_ceil_div(args.num_tokens, EP_EXPERT_ROWS_THREADS);
	blocks = (uint32_t)ep_min_u64(blocks, EP_EXPERT_ROWS_BLOCKS);
	return blocks ? ep_kernel_launch((const void *)ep_expert_rows_kernel, &args, blocks,
					 EP_EXPERT_ROWS_THREADS, 0, stream,
					 "counting experts' rows")
		      : ncclSuccess;
}

ncclResult_t ep_query_stats(struct ncclEpGroup *g, ncclEpExtPeerStats_t *stats, int count,
			    cudaStream_t stream)
{
	struct ep_peer_stats *dev = g->stats_host;
	int32_t *mask = g->mask_host;
	ncclEpExtPeerStats_t first;

	EP_CHECK(EP_IMPORT(&first, stats, NCCL_EP_EXT_PEER_STATS));
	if (count < 0 || count > g->nranks) {
		return ep_fail(ncclInvalidArgument,
			       "ncclEpExtPeerStats: count is %d, the group has "
			       "%d ranks",
			       count, g->nranks);
	}
	EP_CHECK(ep_stream_check_capture(stream, "ncclEpExtPeerStats"));
	EP_CHECK(ep_query_read(mask, g->mask, 4 * (size_t)g->nranks, stream));
	EP_CHECK(ep_query_read(dev, g->stats, (size_t)g->nranks * sizeof(*dev), stream));
	for (int r = 0; r < count; r++) {
		ncclEpExtPeerStats_t s = {
			.magic = NCCL_EP_MAGIC,
			.rank = r,
			.active = mask[r] != 0,
			.tx_bytes = dev[r].tx_bytes,
			.rx_bytes = dev[r].rx_bytes,
			.tx_rows = dev[r].tx_rows,
			.rx_rows = dev[r].rx_rows,
			.wait_ns = dev[r].wait_ns,
			.wait_max_ns = dev[r].wait_max_ns,
			.operations = dev[r].ops,
			.node = (int)g->idents[r].node,
			.rdma = ep_group_is_remote(g, (uint32_t)r),
		};

		ep_struct_export((char *)stats + (size_t)r * first.size, &s, sizeof(s), first.size);
	}
	return ncclSuccess;
}
