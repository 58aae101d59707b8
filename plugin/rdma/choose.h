/* SPDX-License-Identifier: Apache-2.0 */
/* Which ports of which NICs a GPU uses. */
#ifndef EP_RDMA_CHOOSE_H
#define EP_RDMA_CHOOSE_H

#include "core/error.h"
#include "rdma/port.h"
#include "topo/topo.h"

/*
 * Warns of what in NCCL_IB_HCA matches nothing here: a job that uses fewer ports than it was given is slow
 * without a reason in the log. Once for a value. A device that is to be left out may be down.
 */
void ep_nic_hca_warn(const struct ep_port_list *list, const char *value,
		     const struct ep_topo_hca *hca);

/* The rank that chooses. */
struct ep_nic_user {
	const char *bus_id; /* of its GPU */
	const char *uuid;   /* of its MIG instance as NVML spells it; "": unknown */
	int device;         /* CUDA ordinal */
	uint32_t place;     /* of the rank among those of its host */
};

/*
 * Which of the `present` ports (one at least) this GPU uses: equally near and nearest of all, shared
 * fairly with the machine's other GPUs, several if there are enough, NCCL_IB_HCA and
 * NCCL_NET_GDR_LEVEL obeyed. Needs the topology module; where that is missing, or does not know this
 * GPU or these ports, it is one port, by the rank's place among those of one link layer that
 * NCCL_IB_HCA permits, with an INFO line. `nchosen` is room in `chosen` at first, at least 1;
 * without room for all the first ones count. No permitted port at all is an error.
 */
ncclResult_t ep_nic_choose(const struct ep_nic_user *who, const struct ep_port_list *present,
			   struct ep_port *chosen, int *nchosen);

#endif
