/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_TOOLS_EP_INFO_H
#define EP_TOOLS_EP_INFO_H

#include <stdbool.h>
#include "gda/gda.h"
#include "topo/topo.h"

/* What RDMA needs. Each mode needs those of the modes below it and something more. */
enum ep_info_fact_id {
	EP_INFO_GPU,
	EP_INFO_ENABLED,  /* NCCL_IB_DISABLE does not forbid it */
	EP_INFO_VERBS,    /* libibverbs loads and is new enough */
	EP_INFO_PORT,     /* a device opens and has an active port that NCCL_IB_HCA permits */
	EP_INFO_HEAP,     /* GPU memory can be registered */
	EP_INFO_DEVX,     /* libmlx5, and a device with such a port opens with DEVX */
	EP_INFO_DOORBELL, /* the GPU may map a page of the NIC */
	EP_INFO_RING,     /* GPU memory can hold queues */
	EP_INFO_FACTS
};

struct ep_info_fact {
	bool yes;
	char text[256]; /* why, or why not */
};

struct ep_info_facts {
	struct ep_info_fact fact[EP_INFO_FACTS];
	struct ep_info_fact order; /* data a NIC writes before a flag is seen before it */
};

void ep_info_params(void);
void ep_info_probe(struct ep_info_facts *facts, const struct ep_topo *topo);
void ep_info_rdma(const struct ep_topo *topo);

/* The first thing that `mode` (not AUTO) needs and that is not there; EP_INFO_FACTS: all is. */
enum ep_info_fact_id ep_info_mode_lacks(const struct ep_info_facts *facts, enum ep_gda_mode mode);
/* What EP_GDA_AUTO comes to; EP_GDA_AUTO: none is possible. */
enum ep_gda_mode ep_info_mode_best(const struct ep_info_facts *facts);

#endif
