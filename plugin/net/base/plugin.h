/* SPDX-License-Identifier: Apache-2.0 */
/* Base of all versions of NCCL's tables. */
#ifndef EP_NET_PLUGIN_H
#define EP_NET_PLUGIN_H

#include "net/abi/abi.h"
#include "net/base/mr.h"

#define EP_NET_NAME "EP"

/* Fails if there is no device that NCCL may use. `traffic_class` -1: as the environment sets it. */
ncclResult_t ep_net_init(ep_net_log_fn *log);
/* A line of libnccl_ep to NCCL's logger; see core/nccl_logger.h. */
bool ep_net_log_for_ep(int level, unsigned int subsys, const char *text);
ncclResult_t ep_net_context_new(ep_net_log_fn *log, int traffic_class, void **ctx);
/* A context that is none, or no longer one, is no error: NCCL finalizes what has failed. */
ncclResult_t ep_net_context_free(void *ctx);
ncclResult_t ep_net_context_get(const void *ctx, int *traffic_class);
/* Called at the end of each context, while no other one can be made. `ctx` NULL: it is the last one. */
void ep_net_sweep_with(void (*sweep)(const void *ctx));

/* Of NICs, with those that NCCL has had merged; and of those with one port alone. */
ncclResult_t ep_net_count(int *ndevs);
ncclResult_t ep_net_count_ports(int *ndevs);
/* In the newest form, of which the others are parts. */
ncclResult_t ep_net_properties(int dev, struct ep_net_props_v12 *props);

/* Whether this can be the memory of a program. */
ncclResult_t ep_net_memory_check(const struct ep_net_memory *memory);
/* *mr: a handle. */
ncclResult_t ep_net_memory_reg(const struct ep_net_nic *nic, const struct ep_net_memory *memory,
			       void **mr);
ncclResult_t ep_net_dereg(void *comm, void *mr);

#endif
