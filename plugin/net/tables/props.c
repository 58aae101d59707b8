/* SPDX-License-Identifier: Apache-2.0 */
/* Properties of a device for NCCL, in the forms of older versions. */
#include <string.h>
#include "core/error.h"
#include "net/tables/props.h"

ncclResult_t ep_net_props_v8(int dev, struct ep_net_props_v8 *props)
{
	struct ep_net_props_v12 p;

	EP_CHECK(ep_net_properties(dev, &p));
	*props = (struct ep_net_props_v8){ .name = p.name,
					   .pci_path = p.pci_path,
					   .guid = p.guid,
					   .ptr_support = p.ptr_support,
					   .reg_is_global = p.reg_is_global,
					   .speed = p.speed,
					   .port = p.port,
					   .latency = p.latency,
					   .max_comms = p.max_comms,
					   .max_recvs = p.max_recvs,
					   .device_type = p.device_type,
					   .device_version = p.device_version };
	return ncclSuccess;
}

ncclResult_t ep_net_props_v9(int dev, struct ep_net_props_v9 *props)
{
	struct ep_net_props_v12 p;

	EP_CHECK(ep_net_properties(dev, &p));
	*props = (struct ep_net_props_v9){ .vdev = { .ndevs = p.vdev.ndevs },
					   .max_p2p_bytes = p.max_p2p_bytes,
					   .max_coll_bytes = p.max_coll_bytes };
	memcpy(props, &p, offsetof(struct ep_net_props_v9, vdev));
	memcpy(props->vdev.devs, p.vdev.devs, sizeof(props->vdev.devs));
	return ncclSuccess;
}

ncclResult_t ep_net_props_v11(int dev, struct ep_net_props_v11 *props)
{
	EP_CHECK(ep_net_props_v9(dev, &props->v9));
	props->max_multi_request = 1;
	return ncclSuccess;
}
