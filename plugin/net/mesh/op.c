/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of a mesh, and how it fails. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include "core/log.h"
#include "net/base/base.h"
#include "net/mesh/op.h"

/* ---- errors ---- */

ncclResult_t ep_net_rma_failed(const struct ep_net_rma *rma)
{
	return rma->failed.code == ncclSuccess ? ncclSuccess : ep_fail_again(&rma->failed);
}

ncclResult_t ep_net_rma_fail(struct ep_net_rma *rma, const struct ep_net_link *link,
			     ncclResult_t code, const char *fmt, ...)
{
	const struct ep_net_which to = {
		.end = &rma->mesh->ends[rma->mesh->rank].port[link->port],
		.remote = &rma->mesh->ends[link->rank].port[link->remote_port],
		.qpn = link->qp->qp_num,
		.remote_qpn = link->remote_qpn,
		.toward = "to",
		.peer = rma->mesh->who[link->rank],
	};
	char what[280], which[EP_NET_WHICH];
	va_list args;

	EP_CHECK(ep_net_rma_failed(rma));
	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	code = ep_fail(code, "%s: %s%s", ep_net_which_print(&to, which), what,
		       ep_net_dev_print(link->port_ctx->dev));
	ep_error_get(NULL, &rma->failed);
	__atomic_store_n(&rma->broken, 1, __ATOMIC_RELAXED);
	return code;
}

ncclResult_t ep_net_rma_lost(struct ep_net_rma *rma, const struct ep_net_link *link,
			     ncclResult_t code, const char *why)
{
	code = ep_net_rma_fail(rma, link, code, "%s", why);
	ep_net_mesh_lose(rma->mesh, rma->failed.text);
	return code;
}

struct ep_net_link *ep_net_port_ctx_link(const struct ep_net_rma *rma, uint32_t port)
{
	/* (contexts take ports in turn) */
	return &rma->link[port * rma->mesh->nranks + rma->mesh->rank];
}

/* ---- requests ---- */

struct ep_net_op *ep_net_op_at(const struct ep_net_rma *rma, uint32_t number)
{
	return &rma->chunk[number / EP_NET_OPS_CHUNK][number % EP_NET_OPS_CHUNK];
}

void ep_net_op_free(struct ep_net_rma *rma, uint32_t number)
{
	struct ep_net_op *op = ep_net_op_at(rma, number);

	op->use = ep_net_use_next(op->use);
	op->next = rma->free;
	rma->free = number;
	rma->pending--;
}

ncclResult_t ep_net_ops_grow(struct ep_net_rma *rma)
{
	uint32_t n = rma->nops / EP_NET_OPS_CHUNK;
	uint32_t use = ep_net_use_first();
	struct ep_net_op **chunks, *chunk;

	if (rma->nops == EP_NET_OPS) {
		return ep_fail(ncclInternalError, "more than %u requests are under way",
			       EP_NET_OPS);
	}
	chunks = realloc(rma->chunk, (n + 1) * sizeof(*chunks));
	if (chunks) {
		rma->chunk = chunks;
	}
	chunk = chunks ? calloc(EP_NET_OPS_CHUNK, sizeof(*chunk)) : NULL;
	if (!chunk) {
		return ep_fail(ncclSystemError, "out of host memory for %u requests", rma->nops);
	}
	for (uint32_t i = 0; i < EP_NET_OPS_CHUNK; i++) {
		chunk[i].next = i + 1 < EP_NET_OPS_CHUNK ? rma->nops + i + 1 : EP_NET_NO_OP;
		chunk[i].use = use;
	}
	rma->chunk[n] = chunk;
	rma->free = rma->nops;
	rma->nops += EP_NET_OPS_CHUNK;
	return ncclSuccess;
}

void ep_net_op_end(struct ep_net_op *op)
{
	op->link->pending--;
	op->link->got += op->kind == EP_NET_GET;
}

struct ep_net_link *ep_net_op_via(const struct ep_net_rma *rma, const struct ep_net_op *op)
{
	uint32_t context = (uint32_t)(op->link - rma->link) / rma->mesh->nranks;

	return op->kind == EP_NET_FLUSH ? &rma->link[context * rma->mesh->nranks + rma->mesh->rank]
					: op->link;
}
