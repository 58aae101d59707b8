/* SPDX-License-Identifier: Apache-2.0 */
/* Base of all versions of NCCL's tables for GIN (of type PROXY) and RMA. */
#ifndef EP_NET_GIN_H
#define EP_NET_GIN_H

#include "net/abi/abi.h"
#include "net/mesh/rma_structs.h"

#define EP_NET_MR_FORCE_SO 1u /* flag of registrations: strictly ordered */

/* Fails where there is no device for it: NICs that do not reach GPUs, or have no atomics. */
ncclResult_t ep_net_gin_init(ep_net_log_fn *log, void **ctx);
/* As of the network table, whose numbers of devices NCCL uses; of type PROXY. */
ncclResult_t ep_net_gin_properties(int dev, struct ep_net_props_v12 *props);
ncclResult_t ep_net_gin_listen(void *ctx, int dev, void *handle, void **listen_comm);
/*
 * Ranks that reach each other, with as many contexts at once (0: none). NCCL gives what context it has
 * at hand, or none: the listener's counts.
 */
ncclResult_t ep_net_gin_connect(void *const *handles, int nranks, int rank, int contexts,
				void *listen_comm, void **coll);
ncclResult_t ep_net_gin_close(void *coll);

ncclResult_t ep_net_gin_context(void *coll, const struct ep_net_rma_config *config, void **ctx);
ncclResult_t ep_net_gin_context_close(void *ctx);
/* The contexts of a handle, its own or that of ranks which were given some at once. */
ncclResult_t ep_net_gin_contexts(const void *handle, struct ep_net_rma **rma);
ncclResult_t ep_net_gin_error(void *ctx, bool *failed);

ncclResult_t ep_net_gin_reg(void *coll, struct ep_net_memory *memory, uint64_t flags, void **mr);

#endif
