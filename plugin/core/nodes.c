/* SPDX-License-Identifier: Apache-2.0 */
/* Which rank is of which node, and how many peers and flows a rank of such nodes has at most. */
#include "core/ident.h"
#include "core/util.h"

ncclResult_t ep_nodes_split(uint32_t node[], const struct ep_param_list *sizes, int nranks)
{
	uint32_t total = 0, n = 0, left = sizes->item[0];

	for (uint32_t i = 0; i < sizes->count; i++) {
		total += sizes->item[i];
	}
	if (sizes->count > 1 && total != (uint32_t)nranks) {
		return ep_fail(ncclInvalidUsage,
			       "environment variable NCCL_EP_NODE_SIZE has %u nodes of %u ranks in "
			       "all, the communicator has %d ranks: change the list, or unset it",
			       sizes->count, total, nranks);
	}
	for (int r = 0; r < nranks; r++) {
		if (!left) {
			n++;
			left = sizes->item[sizes->count > 1 ? n : 0];
		}
		left--;
		node[r] = n;
	}
	return ncclSuccess;
}

ncclResult_t ep_nodes_assign(struct ep_ident *idents, const struct ep_param_list *sizes, int nranks)
{
	uint32_t node[EP_PARAM_NODE_MAX], nodes = 0;

	if (sizes->count) {
		EP_CHECK(ep_nodes_split(node, sizes, nranks));
	}
	for (int r = 0; r < nranks; r++) {
		int first = 0;

		while (first < r && idents[first].domain != idents[r].domain) {
			first++;
		}
		idents[r].node = sizes->count ? node[r] : first < r ? idents[first].node : nodes++;
	}
	return ncclSuccess;
}

static uint32_t nodes_at(const uint32_t *node, size_t stride, int r)
{
	return *(const uint32_t *)((const char *)node + (size_t)r * stride);
}

/* `first` is the first rank of a node of `size` ranks; index[r] is rank r's in its own node. */
static void nodes_most_flows(struct ep_nodes_most *most, const uint32_t *node, size_t stride,
			     int nranks, const struct ep_roles *roles, const uint32_t *index,
			     int first, uint32_t size)
{
	uint32_t nodes = 0, sources = 0, of[EP_PARAM_NODE_MAX] = { 0 };

	for (int r = 0; r < nranks; r++) {
		if (nodes_at(node, stride, r) != nodes_at(node, stride, first)) {
			uint32_t *its = &of[ep_nodes_forwarder(index[r], size)];

			nodes += index[r] == 0;
			*its += ep_roles_sends(roles, (uint32_t)r);
			sources = (uint32_t)ep_max_u64(sources, *its);
		}
	}
	most->flows = (uint32_t)ep_max_u64(most->flows, ep_max_u64(nodes, sources));
	most->return_rings =
		(uint32_t)ep_max_u64(most->return_rings, (uint64_t)size * (1 + sources));
}

/* The same for peers by their roles, of rank r. */
static void nodes_most_roles(struct ep_nodes_most *most, const uint32_t *node, size_t stride,
			     int nranks, const struct ep_roles *roles, int r)
{
	uint32_t senders[2] = { 0, 0 }, holders[2] = { 0, 0 }; /* near, remote */

	for (int i = 0; i < nranks; i++) {
		bool remote = nodes_at(node, stride, i) != nodes_at(node, stride, r);

		senders[remote] += ep_roles_sends(roles, (uint32_t)i);
		holders[remote] += i != r && ep_roles_holds(roles, (uint32_t)i);
	}
	if (ep_roles_holds(roles, (uint32_t)r)) {
		most->near_senders = (uint32_t)ep_max_u64(most->near_senders, senders[0]);
		most->remote_senders = (uint32_t)ep_max_u64(most->remote_senders, senders[1]);
	}
	if (ep_roles_sends(roles, (uint32_t)r)) {
		most->near_holders = (uint32_t)ep_max_u64(most->near_holders, holders[0]);
		most->remote_holders = (uint32_t)ep_max_u64(most->remote_holders, holders[1]);
	}
}

struct ep_nodes_most ep_nodes_most(const uint32_t *node, size_t stride, int nranks,
				   const struct ep_roles *roles)
{
	uint32_t index[EP_PARAM_NODE_MAX], size[EP_PARAM_NODE_MAX];
	struct ep_nodes_most most = { 0 };

	for (int r = 0; r < nranks; r++) {
		index[r] = size[r] = 0;
		for (int i = 0; i < nranks; i++) {
			bool same = nodes_at(node, stride, i) == nodes_at(node, stride, r);

			index[r] += same && i < r;
			size[r] += same;
		}
		most.near = (uint32_t)ep_max_u64(most.near, size[r]);
		most.remote = (uint32_t)ep_max_u64(most.remote, (uint32_t)nranks - size[r]);
	}
	for (int r = 0; r < nranks; r++) {
		if (index[r] == 0) {
			nodes_most_flows(&most, node, stride, nranks, roles, index, r, size[r]);
		}
		nodes_most_roles(&most, node, stride, nranks, roles, r);
	}
	return most;
}

struct ep_nodes_most ep_nodes_alike(uint32_t near, uint32_t remote, int nranks,
				    const struct ep_roles *roles)
{
	uint32_t others = remote ? ep_ceil_div((uint32_t)nranks, near) - 1 : 0;

	return (struct ep_nodes_most){
		.near = near,
		.remote = remote,
		.near_senders = (uint32_t)ep_min_u64(near, roles->senders),
		.remote_senders = (uint32_t)ep_min_u64(remote, roles->senders),
		.near_holders = (uint32_t)ep_min_u64(near - 1, roles->holders),
		.remote_holders = (uint32_t)ep_min_u64(remote, roles->holders),
		.flows = others,
		.return_rings = near * (1 + others),
	};
}
