/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
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
	uint32_t *node = calloc((size_t)nranks, sizeof(*node)), nodes = 0;
	ncclResult_t result = ncclSuccess;

	if (!node) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	if (sizes->count) {
		EP_CHECK_GOTO(ep_nodes_split(node, sizes, nranks), out);
	}
	for (int r = 0; r < nranks; r++) {
		int first = 0;

		while (first < r && !ep_ident_same_host(&idents[first], &idents[r])) {
			first++;
		}
		if (!sizes->count) {
			node[r] = first < r ? node[first] : nodes++;
		}
		idents[r].node = node[r];
	}
out:
	free(node);
	return result;
}

struct ep_nodes_most ep_nodes_most(const uint32_t node[], int nranks)
{
	struct ep_nodes_most most = { 0, 0 };

	for (int r = 0; r < nranks; r++) {
		uint32_t near = 0;

		for (int i = 0; i < nranks; i++) {
			near += node[i] == node[r];
		}
		most.near = (uint32_t)ep_max_u64(most.near, near);
		most.remote = (uint32_t)ep_max_u64(most.remote, (uint32_t)nranks - near);
	}
	return most;
}
