/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of programs to a mesh: puts, gets, signals and flushes. */
#ifndef EP_NET_RMA_H
#define EP_NET_RMA_H

#include "net/mesh/rma_structs.h"

struct ep_net_signal {
	struct ep_net_span at;
	uint64_t value;
	uint32_t op;
};
#define EP_NET_SIGNAL_INC 1u
#define EP_NET_SIGNAL_ADD 2u

/* A copy from one place to another. */
struct ep_net_copy {
	struct ep_net_span from, to;
	size_t size;
};

/* `signal` NULL: none. */
ncclResult_t ep_net_rma_put(struct ep_net_rma *rma, int context, const struct ep_net_copy *copy,
			    uint32_t rank, const struct ep_net_signal *signal, void **request);
ncclResult_t ep_net_rma_get(struct ep_net_rma *rma, int context, const struct ep_net_copy *copy,
			    uint32_t rank, void **request);
/* *request NULL: there is nothing to flush. `memory`, of ep_net_sym_new(), may be NULL. */
ncclResult_t ep_net_rma_flush(struct ep_net_rma *rma, int context, void *memory, uint32_t rank,
			      void **request);

#endif
