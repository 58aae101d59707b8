/* SPDX-License-Identifier: Apache-2.0 */
/* Between two ports. */
#include "rdma/nic.h"

bool ep_nic_path_check(const struct ep_nic_end *from, const struct ep_nic_end *to,
		       struct ep_reason *why)
{
	bool ethernet = from->link_layer == IBV_LINK_LAYER_ETHERNET;
	char mine[EP_GID_TEXT], theirs[EP_GID_TEXT];

	if (from->link_layer != to->link_layer) {
		return ep_reason_set(why,
				     "one port is Ethernet, the other InfiniBand: choose alike "
				     "ports with NCCL_IB_HCA");
	}
	if (ethernet && from->roce != to->roce) {
		return ep_reason_set(why,
				     "one port uses RoCE v%u, the other v%u: set "
				     "NCCL_IB_GID_INDEX or NCCL_IB_ROCE_VERSION_NUM alike",
				     from->roce, to->roce);
	}
	if (ethernet) {
		if (ep_gid_is_ipv4(from->gid) != ep_gid_is_ipv4(to->gid)) {
			return ep_reason_set(why,
					     "addresses of different families, %s and %s: set "
					     "NCCL_IB_ADDR_FAMILY or NCCL_IB_GID_INDEX",
					     ep_gid_print(from->gid, mine),
					     ep_gid_print(to->gid, theirs));
		}
	} else if (!ep_gid_same_subnet(from->gid, to->gid) && !ep_gid_flid(to->gid)) {
		return ep_reason_set(
			why,
			"from %s to %s of another subnet, which has no FLID for routers: see "
			"NCCL_IB_ROUTABLE_FLID_GID_INDEX, or NCCL_IB_HCA for ports of one subnet",
			ep_gid_print(from->gid, mine), ep_gid_print(to->gid, theirs));
	} else if ((from->pkey & 0x7fff) != (to->pkey & 0x7fff)) {
		return ep_reason_set(why,
				     "partition keys 0x%04x and 0x%04x: set NCCL_IB_PKEY so that "
				     "both ports are in one partition",
				     from->pkey, to->pkey);
	} else if (!(from->pkey & 0x8000) && !(to->pkey & 0x8000)) {
		return ep_reason_set(why, "both ports are limited members of partition 0x%04x",
				     from->pkey);
	}
	return true;
}

bool ep_nic_path_global(const struct ep_nic_end *from, const struct ep_nic_end *to)
{
	return to->link_layer == IBV_LINK_LAYER_ETHERNET || from->grh || to->grh ||
	       !ep_gid_same_subnet(from->gid, to->gid);
}

uint16_t ep_nic_path_lid(const struct ep_nic_end *from, const struct ep_nic_end *to)
{
	bool near = to->link_layer == IBV_LINK_LAYER_ETHERNET ||
		    ep_gid_same_subnet(from->gid, to->gid);

	return near ? to->lid : ep_gid_flid(to->gid);
}
