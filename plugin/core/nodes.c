/* SPDX-License-Identifier: Apache-2.0 */
#include "core/nodes.h"

ncclResult_t ep_nodes_split(uint32_t node[], const struct ep_param_list *sizes, int nranks)
{
	uint32_t total = 0, n = 0, left;

	for (uint32_t i = 0; i < sizes->count; i++) {
		total += sizes->item[i];
	}
	if (sizes->count > 1 && total != (uint32_t)nranks) {
		return ep_fail(ncclInvalidUsage,
			       "environment variable NCCL_EP_NODE_SIZE has %u nodes of %u ranks in "
			       "all, the communicator has %d ranks: change the list, or unset it",
			       sizes->count, total, nranks);
	}
	left = sizes->item[0];
	for (int r = 0; r < nranks; r++) {
		if (!left) {
			n++;
			left = sizes->item[sizes->count > 1 ? n : 0];
		}
		node[r] = n;
		left--;
	}
	return ncclSuccess;
}

ncclResult_t ep_nodes_assign(struct ep_ident *idents, const struct ep_param_list *sizes, int nranks)
{
	uint32_t node[EP_NODES_MAX_RANKS], nodes = 0;

	if (sizes->count) {
		EP_CHECK(ep_nodes_split(node, sizes, nranks));
	}
	for (int r = 0; r < nranks; r++) {
		int first = 0;

		while (first < r && idents[first].domain != idents[r].domain) {
			first++;
		}
		if (!sizes->count) {
			node[r] = first < r ? node[first] : nodes++;
		}
		idents[r].node = node[r];
	}
	return ncclSuccess;
}

uint32_t ep_nodes_remote(const uint32_t node[], int nranks, int rank)
{
	uint32_t n = 0;

	for (int r = 0; r < nranks; r++) {
		n += node[r] != node[rank];
	}
	return n;
}
