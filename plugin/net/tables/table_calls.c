/* SPDX-License-Identifier: Apache-2.0 */
/* Calls of several of the tables that NCCL looks up. */
#include <string.h>
#include "core/error.h"
#include "net/base/base.h"
#include "net/coll/coll.h"
#include "net/p2p/p2p.h"
#include "net/tables/table_calls.h"

/* All members but force_flush, in the same order. */
ncclResult_t ep_net_props_v8(int dev, struct ep_net_props_v8 *props)
{
	struct ep_net_props_v12 p;

	EP_CHECK(ep_net_properties(dev, &p));
	memcpy(props, &p, offsetof(struct ep_net_props_v8, speed));
	memcpy(&props->speed, &p.speed, sizeof(*props) - offsetof(struct ep_net_props_v8, speed));
	return ncclSuccess;
}

ncclResult_t ep_net_props_v9(int dev, struct ep_net_props_v9 *props)
{
	struct ep_net_props_v12 p;

	EP_CHECK(ep_net_properties(dev, &p));
	memcpy(props, &p, offsetof(struct ep_net_props_v9, vdev));
	props->max_p2p_bytes = p.max_p2p_bytes;
	props->max_coll_bytes = p.max_coll_bytes;
	props->vdev.ndevs = p.vdev.ndevs;
	memcpy(props->vdev.devs, p.vdev.devs, sizeof(props->vdev.devs));
	return ncclSuccess;
}

ncclResult_t ep_net_props_v11(int dev, struct ep_net_props_v11 *props)
{
	EP_CHECK(ep_net_props_v9(dev, &props->v9));
	props->max_multi_request = 1;
	return ncclSuccess;
}

/* ---- memory ---- */

static ncclResult_t ep_net_reg_any(void *comm, const struct ep_net_memory *memory, void **mr)
{
	return ep_net_kind_of(comm) == EP_NET_COLL ? ep_net_coll_reg(comm, memory, mr)
						   : ep_net_reg(comm, memory, mr);
}

ncclResult_t ep_net_reg_mr(void *comm, void *data, size_t size, int type, void **mr)
{
	const struct ep_net_memory memory = { .data = data, .size = size, .type = type, .fd = -1 };

	return ep_net_reg_any(comm, &memory, mr);
}

ncclResult_t ep_net_reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset,
				  int fd, void **mr)
{
	const struct ep_net_memory memory = EP_NET_DMABUF(data, size, type, offset, fd);

	return ep_net_reg_any(comm, &memory, mr);
}
