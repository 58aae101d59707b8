/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include "core/cuda.h"
#include "core/nodes.h"
#include "ep/group.h"
#include "ep/struct.h"
#include "nccl_ep/ext.h"

_Static_assert(offsetof(ncclEpExtMemory_t, remote_ranks) == NCCL_EP_EXT_MEMORY_V1_SIZE,
	       "ncclEpExtMemory_t");
_Static_assert(sizeof(ncclEpExtMemory_t) == NCCL_EP_EXT_MEMORY_V2_SIZE, "ncclEpExtMemory_t");
_Static_assert(offsetof(ncclEpExtPeerStats_t, node) == NCCL_EP_EXT_PEER_STATS_V1_SIZE,
	       "ncclEpExtPeerStats_t");
_Static_assert(sizeof(ncclEpExtPeerStats_t) == NCCL_EP_EXT_PEER_STATS_V2_SIZE,
	       "ncclEpExtPeerStats_t");

static __thread struct ep_error ep_ext_error;

ncclResult_t ncclEpExtGetLastError(ncclEpGroup_t ep_group, ncclResult_t *code, const char **text)
{
	struct ep_call call;

	if (ep_group) {
		EP_CHECK(ep_group_enter(&call, ep_group, true));
		ep_error_get(&ep_group->errors, &ep_ext_error);
		ep_group_leave(&call);
	} else {
		ep_error_get(NULL, &ep_ext_error);
	}
	if (code) {
		*code = ep_ext_error.code;
	}
	if (text) {
		*text = ep_ext_error.text;
	}
	return ncclSuccess;
}

/* Writes as much of `own` as the caller's struct has room for; its size stays what it was. */
static void ep_ext_export(void *caller, void *own, size_t own_size, unsigned int caller_size)
{
	memcpy(own, &caller_size, sizeof(caller_size));
	memcpy(caller, own, ep_min_u64(own_size, caller_size));
}

/* The largest number of remote peers of any rank: as the caller says, else as the environment. */
static ncclResult_t ep_ext_remote(const struct ep_group_config *config, int nranks, uint32_t said,
				  uint32_t *remote)
{
	uint32_t node[EP_NODES_MAX_RANKS];

	*remote = said;
	if (said >= (uint32_t)nranks) {
		return ep_fail(ncclInvalidArgument,
			       "memory->remote_ranks is %u: with %d ranks, a rank has at most %d "
			       "peers",
			       said, nranks, nranks - 1);
	}
	if (said || !config->node_size.count) {
		return ncclSuccess;
	}
	EP_CHECK(ep_nodes_split(node, &config->node_size, nranks));
	for (int r = 0; r < nranks; r++) {
		*remote = (uint32_t)ep_max_u64(*remote, ep_nodes_remote(node, nranks, r));
	}
	return ncclSuccess;
}

ncclResult_t ncclEpExtDeviceMemory(const ncclEpGroupConfig_t *config, int nranks,
				   ncclEpLayout_t layout, int num_topk, ncclEpExtMemory_t *memory)
{
	struct ep_group_config made;
	struct ep_params params;
	ncclEpGroupConfig_t own;
	ncclEpExtMemory_t m;
	uint32_t remote;

	ep_error_scope(NULL);
	EP_CHECK(EP_IMPORT(&own, config, NCCL_EP_GROUP_CONFIG));
	EP_CHECK(ep_struct_import(&m, sizeof(m), memory, NCCL_EP_EXT_MEMORY_V1_SIZE, "memory"));
	EP_CHECK(ep_params_read(&params));
	EP_CHECK(ep_group_config_make(&made, &own, &params, nranks, 0));
	EP_CHECK(ep_ext_remote(&made, nranks, m.remote_ranks, &remote));
	ep_group_config_size(&made, ep_group_channels(&made, remote));
	m.heap_bytes = made.heap_bytes;
	m.handle_bytes = 0;
	if (layout != NCCL_EP_LAYOUT_UNSET) {
		uint32_t topk = (uint32_t)num_topk;

		EP_CHECK(ep_handle_check(&made, layout, num_topk));
		m.handle_bytes =
			ep_ll_handle_layout_make(&made.shape, (uint32_t)layout, topk).bytes;
		EP_CHECK(ep_group_heap_bytes(&made, topk, &m.heap_bytes));
	}
	m.group_bytes = m.heap_bytes + ep_group_workspace_bytes(nranks, made.shape.channels);
	ep_ext_export(memory, &m, sizeof(m), m.size);
	return ncclSuccess;
}

ncclResult_t ep_stream_check_capture(cudaStream_t stream, const char *name)
{
	enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;

	EP_CUDA(cudaStreamIsCapturing(stream, &status), name);
	if (status != cudaStreamCaptureStatusNone) {
		return ep_fail(ncclInvalidUsage,
			       "%s synchronises the stream, which is being "
			       "captured: call it outside the capture",
			       name);
	}
	return ncclSuccess;
}

/* Copies from the device in the order of the stream, and waits. */
static ncclResult_t ep_ext_read(void *host, const void *dev, size_t bytes, cudaStream_t stream,
				const char *name)
{
	EP_CUDA(cudaMemcpyAsync(host, dev, bytes, cudaMemcpyDeviceToHost, stream), name);
	EP_CUDA(cudaStreamSynchronize(stream), name);
	return ncclSuccess;
}

static ncclResult_t ep_ext_sum(const void *dev, uint32_t n, uint64_t *sum, cudaStream_t stream)
{
	uint32_t *host = malloc(n * sizeof(*host));
	ncclResult_t result;

	if (!host) {
		return ep_fail(ncclSystemError, "ncclEpExtNumRecvTokens: out of host memory");
	}
	*sum = 0;
	EP_CHECK_GOTO(ep_ext_read(host, dev, n * sizeof(*host), stream, "ncclEpExtNumRecvTokens"),
		      out);
	for (uint32_t i = 0; i < n; i++) {
		*sum += host[i];
	}
out:
	free(host);
	return result;
}

static ncclResult_t ep_ext_num_recv(struct ncclEpHandle *h, uint64_t *tokens, uint64_t *rows,
				    cudaStream_t stream)
{
	const struct ep_ll_shape *shape = &h->group->config.shape;
	uint64_t distinct, placed;

	EP_CHECK(ep_stream_check_capture(stream, "ncclEpExtNumRecvTokens"));
	if (!h->dispatched) {
		return ep_fail(ncclInvalidUsage, "ncclEpExtNumRecvTokens: no dispatch with the "
						 "handle's routing has been completed");
	}
	EP_CHECK(ep_ext_sum(h->mem + h->mem_layout.src_rows_off, shape->nranks, &distinct, stream));
	placed = distinct;
	if (h->layout == EP_LL_EXPERT_MAJOR) {
		EP_CHECK(ep_ext_sum(h->mem + h->mem_layout.counts_off, shape->nlocal, &placed,
				    stream));
	}
	if (tokens) {
		*tokens = distinct;
	}
	if (rows) {
		*rows = placed;
	}
	return ncclSuccess;
}

ncclResult_t ncclEpExtNumRecvTokens(ncclEpHandle_t handle, uint64_t *tokens, uint64_t *rows,
				    cudaStream_t stream)
{
	struct ep_call call;
	ncclResult_t result;

	EP_CHECK(ep_handle_enter(&call, handle, false));
	result = ep_ext_num_recv(handle, tokens, rows, stream);
	ep_group_leave(&call);
	return result;
}

static ncclResult_t ep_ext_peer_stats(struct ncclEpGroup *g, ncclEpExtPeerStats_t *stats, int count,
				      cudaStream_t stream)
{
	struct ep_peer_stats dev[EP_GROUP_MAX_RANKS];
	int32_t mask[EP_GROUP_MAX_RANKS];
	ncclEpExtPeerStats_t first;
	unsigned int size;

	EP_CHECK(ep_struct_import(&first, sizeof(first), stats, NCCL_EP_EXT_PEER_STATS_V1_SIZE,
				  "stats"));
	size = first.size;
	if (count < 0 || count > g->nranks) {
		return ep_fail(ncclInvalidArgument,
			       "ncclEpExtPeerStats: count is %d, the group has "
			       "%d ranks",
			       count, g->nranks);
	}
	EP_CHECK(ep_stream_check_capture(stream, "ncclEpExtPeerStats"));
	EP_CHECK(ep_ext_read(mask, g->mask, 4 * (size_t)g->nranks, stream, "ncclEpExtPeerStats"));
	EP_CHECK(ep_ext_read(dev, g->stats, (size_t)g->nranks * sizeof(*dev), stream,
			     "ncclEpExtPeerStats"));
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
			.rdma = ep_net_remote(g, (uint32_t)r),
		};

		ep_ext_export((char *)stats + (size_t)r * size, &s, sizeof(s), size);
	}
	return ncclSuccess;
}

ncclResult_t ncclEpExtPeerStats(ncclEpGroup_t ep_group, ncclEpExtPeerStats_t *stats, int count,
				cudaStream_t stream)
{
	struct ep_call call;
	ncclResult_t result;

	EP_CHECK(ep_group_enter(&call, ep_group, true));
	result = ep_ext_peer_stats(ep_group, stats, count, stream);
	ep_group_leave(&call);
	return result;
}
