/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading and writing memory of the ranks of a mesh, with signals. A context has a queue pair to every
 * rank, this one included, so that what goes to a rank over one context arrives in order. The contexts
 * that were made together are used by one thread at a time.
 */
#ifndef EP_NET_RMA_H
#define EP_NET_RMA_H

#include "net/base/handles.h"
#include "net/base/mr.h"
#include "net/mesh/mesh.h"

#define EP_NET_OPS_CHUNK 256u
#define EP_NET_OPS (1u << EP_NET_OP_BITS)
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

/* rma_links.c: all ranks call it. */
ncclResult_t ep_net_rma_new(struct ep_net_mesh *mesh, const struct ep_net_rma_config *config,
			    struct ep_net_rma **rma);
void ep_net_rma_free(struct ep_net_rma *rma); /* NULL: nothing */
/* The link of a context to a rank, if there is one. */
ncclResult_t ep_net_link_get(struct ep_net_rma *rma, int context, uint32_t rank,
			     struct ep_net_link **link);

/* op.c: requests, and failures. */
struct ep_net_op *ep_net_op_at(const struct ep_net_rma *rma, uint32_t number);
void *ep_net_op_request(const struct ep_net_rma *rma, uint32_t number);
ncclResult_t ep_net_ops_grow(struct ep_net_rma *rma);
void ep_net_op_free(struct ep_net_rma *rma, uint32_t number);
void ep_net_op_end(struct ep_net_op *op);
static inline bool ep_net_op_done(const struct ep_net_op *op)
{
	return op->posted && op->left == 0;
}
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

#define EP_NET_OP_ID(wrs, number) ((uint64_t)(wrs) << 32 | (number))
#define EP_NET_OP_ID_WRS(id) ((uint32_t)((id) >> 32))

/* post.c: makes a request like `want`, whose use and progress do not count, and posts it. */
ncclResult_t ep_net_op_start(struct ep_net_rma *rma, const struct ep_net_op *want,
			     uint32_t *number);
ncclResult_t ep_net_link_push(struct ep_net_rma *rma, struct ep_net_link *link);
/* Posts what waited for room that work of other links has given back. */
ncclResult_t ep_net_starved_push(struct ep_net_rma *rma);

/* rma_poll.c: takes up completions, of all ports, and no more. *all: how many there were. */
ncclResult_t ep_net_rma_poll(struct ep_net_rma *rma, int *all);

/* rma_progress.c: takes up completions, posts what had to wait, and now and then looks for peers. */
ncclResult_t ep_net_rma_progress(struct ep_net_rma *rma);
/* *done of a request of this or any other context. */
ncclResult_t ep_net_op_test(void *request, int *done);

/* sym.c: all ranks call it. */
ncclResult_t ep_net_sym_new(struct ep_net_mesh *mesh, const struct ep_net_memory *memory,
			    void **handle);
ncclResult_t ep_net_sym_free(void *handle);

/* rma.c: what programs ask for. */
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
