/* SPDX-License-Identifier: Apache-2.0 */
/* What all versions of NCCL's tables stand on. */
#ifndef EP_NET_NET_H
#define EP_NET_NET_H

#include "net/abi.h"

#define EP_NET_NAME "EP"

/* Fails if there is no device that NCCL may use. `traffic_class` -1: as the environment says. */
ncclResult_t ep_net_init(ep_net_log_fn *log);
ncclResult_t ep_net_context_new(ep_net_log_fn *log, int traffic_class, void **ctx);
/* A context that is none, or no longer one, is no error: NCCL finalizes what has failed. */
ncclResult_t ep_net_context_free(void *ctx);
ncclResult_t ep_net_context_get(const void *ctx, int *traffic_class);

ncclResult_t ep_net_count(int *ndevs);
/* In the newest form, of which the others are parts. */
ncclResult_t ep_net_properties(int dev, struct ep_net_props_v12 *props);

ncclResult_t ep_net_reg(void *comm, void *data, size_t size, int type, uint64_t offset, int fd,
			void **mr);
ncclResult_t ep_net_dereg(void *comm, void *mr);
ncclResult_t ep_net_close_send(void *send_comm);
ncclResult_t ep_net_close_recv(void *recv_comm);

#endif
