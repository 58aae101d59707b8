/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading and writing memory of the ranks of a mesh, with signals. A context has a queue pair to every
 * rank, this one included, so that what goes to a rank over one context arrives in order. The contexts
 * that were made together are used by one thread at a time.
 */
#ifndef EP_NET_RMA_STRUCTS_H
#define EP_NET_RMA_STRUCTS_H

#include "net/base/base.h"
#include "net/mesh/mesh.h"

#define EP_NET_OPS_CHUNK 256u
#define EP_NET_OPS (1u << EP_NET_REQUEST_BITS)
#define EP_NET_NO_OP UINT32_MAX
#define EP_NET_CONTEXTS 256u
#define EP_NET_OP_WR 8u /* work requests that are posted together: at most, with the signal */

enum ep_net_op_kind {
	EP_NET_PUT,
	EP_NET_GET,
	EP_NET_FLUSH
};

/* State of a port of this rank for the contexts that use it. */
struct ep_net_port_ctx {
	struct ep_net_dev *dev;
	struct ibv_cq *cq; /* NULL: no context does */
	uint32_t cq_lost;  /* atomic: the NIC has lost completions */
	uint32_t cq_room;
	uint8_t tc; /* traffic class */
	struct ibv_mr *scratch_mr;
};

struct ep_net_link;

/* A request: posted piece by piece, and done when the NIC has reported all of them. */
struct ep_net_op {
	uint32_t use;  /* how often; odd ones are under way */
	uint32_t next; /* of its link, or free one */
	enum ep_net_op_kind kind;
	uint32_t left; /* completions of what is posted */
	bool posted;   /* all of it; */
	bool signal;
	struct ep_net_link *link;
	uint64_t local, remote, size, at; /* at: bytes that are posted */
	uint32_t lkey, rkey;
	uint64_t signal_at, add;
	uint32_t signal_rkey;
	uint64_t gets; /* FLUSH: gets of the link that come before */
};

/* To a rank, of one context. */
struct ep_net_link {
	struct ibv_qp *qp; /* NULL: not connected */
	struct ep_net_port_ctx *port_ctx;
	uint32_t port, remote_port; /* of this rank, which is the context's; of the peer */
	uint32_t rank, remote_qpn, room;
	uint32_t first, last; /* ops that are not all posted */
	uint32_t pending;     /* ops under way */
	uint64_t gets, got;
	uint64_t gone_since; /* when its rank was found gone; 0: not */
};

struct ep_net_span {
	uint64_t offset;
	void *handle; /* of ep_net_sym_new() */
};

struct ep_net_rma_config {
	int contexts, stride, tc;
};

struct ep_net_rma {
	struct ep_net_mesh *mesh;
	void *handle;
	struct ep_net_rma_config config;
	uint8_t sl;
	struct ep_net_port_ctx port_ctx[EP_NET_NIC_PORTS];
	bool starved;             /* links wait for room that is not their own */
	struct ep_net_link *link; /* [contexts][nranks] */
	uint64_t *scratch;        /* what atomics and flushes read */
	struct ep_net_span read;  /* memory that was read into last; handle NULL: none */

	struct ep_net_op **chunk;
	uint32_t nops, free, pending;

	struct ep_error failed; /* code: not ncclSuccess once something has failed */
	uint32_t broken;        /* atomic: that is so, for other threads */
	uint32_t idle;
	uint64_t checked;
};

/* Memory that all ranks of a mesh have registered. */
struct ep_net_sym_end {
	uint64_t base, size;
	uint32_t rkey[EP_NET_NIC_PORTS]; /* of each port of the rank */
};

struct ep_net_sym {
	struct ep_net_mesh *mesh;
	struct ep_net_mr *mr;
	struct ep_net_sym_end *end; /* of each rank */
};

#define EP_NET_OP_ID(wrs, number) ((uint64_t)(wrs) << 32 | (number))
#define EP_NET_OP_ID_WRS(id) ((uint32_t)((id) >> 32))

static inline bool ep_net_op_done(const struct ep_net_op *op)
{
	return op->posted && op->left == 0;
}

#endif
