/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of a mesh, and how it fails. */
#ifndef EP_NET_OP_H
#define EP_NET_OP_H

#include "net/mesh/rma_structs.h"

struct ep_net_op *ep_net_op_at(const struct ep_net_rma *rma, uint32_t number);
ncclResult_t ep_net_ops_grow(struct ep_net_rma *rma);
void ep_net_op_free(struct ep_net_rma *rma, uint32_t number);
void ep_net_op_end(struct ep_net_op *op);
/* The link that an op's work requests go over: a flush reads this rank's own memory. */
struct ep_net_link *ep_net_op_via(const struct ep_net_rma *rma, const struct ep_net_op *op);
/* A link by a port, for what is wrong with the port: this rank's to itself, which is always there. */
struct ep_net_link *ep_net_port_ctx_link(const struct ep_net_rma *rma, uint32_t port);
ncclResult_t ep_net_rma_fail(struct ep_net_rma *rma, const struct ep_net_link *link,
			     ncclResult_t code, const char *fmt, ...) EP_PRINTF(4, 5);
/* A failure of this rank's NIC or of its path to a peer: ranks that wait for this one learn of it, too. */
ncclResult_t ep_net_rma_lost(struct ep_net_rma *rma, const struct ep_net_link *link,
			     ncclResult_t code, const char *why);
/* A failure of before, once more. */
ncclResult_t ep_net_rma_failed(const struct ep_net_rma *rma);

#endif
