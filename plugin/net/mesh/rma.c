/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of programs to a mesh: puts, gets, signals and flushes. */
#include "core/log.h"
#include "net/mesh/rma.h"
#include "net/mesh/rma_links.h"
#include "net/mesh/rma_post.h"

/* Memory of a rank: its address there, and the keys. */
static ncclResult_t ep_net_span_find(const struct ep_net_rma *rma, const struct ep_net_span *span,
				     uint32_t rank, uint64_t size, const struct ep_net_sym **out,
				     uint64_t *at)
{
	const struct ep_net_sym *sym = ep_net_handle_find(EP_NET_SYM, span->handle);

	if (!sym) {
		return ncclInvalidArgument;
	}
	if (sym->mesh != rma->mesh) {
		return ep_fail(ncclInvalidArgument,
			       "memory that is registered with other ranks is used with %s",
			       rma->mesh->who[rank]);
	}
	if (span->offset > sym->end[rank].size || size > sym->end[rank].size - span->offset) {
		return ep_fail(
			ncclInvalidArgument,
			"%llu bytes at offset %llu are not all in the %llu bytes that %s has "
			"registered",
			(unsigned long long)size, (unsigned long long)span->offset,
			(unsigned long long)sym->end[rank].size, rma->mesh->who[rank]);
	}
	*out = sym;
	*at = sym->end[rank].base + span->offset;
	return ncclSuccess;
}

/* The part of an op that moves data between this rank and another. */
static ncclResult_t ep_net_op_data(const struct ep_net_rma *rma, const struct ep_net_span *here,
				   const struct ep_net_span *there, uint64_t size, uint32_t rank,
				   struct ep_net_op *op)
{
	const struct ep_net_mesh *mesh = rma->mesh;
	const struct ep_net_sym *sym;

	if (size == 0) {
		return ncclSuccess;
	}
	EP_CHECK(ep_net_span_find(rma, here, mesh->rank, size, &sym, &op->local));
	op->lkey = sym->mr->lkey[mesh->of_nic[op->link->port]];
	EP_CHECK(ep_net_span_find(rma, there, rank, size, &sym, &op->remote));
	op->rkey = sym->end[rank].rkey[op->link->remote_port];
	op->size = size;
	return ncclSuccess;
}

static ncclResult_t ep_net_op_signal(const struct ep_net_rma *rma,
				     const struct ep_net_signal *signal, uint32_t rank,
				     struct ep_net_op *op)
{
	const struct ep_net_sym *sym;

	if (signal->op != EP_NET_SIGNAL_INC && signal->op != EP_NET_SIGNAL_ADD) {
		return ep_fail(ncclInvalidArgument,
			       "a signal of kind %u, possible are %u (add one) and %u (add)",
			       signal->op, EP_NET_SIGNAL_INC, EP_NET_SIGNAL_ADD);
	}
	EP_CHECK(ep_net_span_find(rma, &signal->at, rank, 8, &sym, &op->signal_at));
	if (op->signal_at % 8) {
		return ep_fail(ncclInvalidArgument,
			       "a signal at offset %llu, which is no multiple of 8",
			       (unsigned long long)signal->at.offset);
	}
	op->signal_rkey = sym->end[rank].rkey[op->link->remote_port];
	op->signal = true;
	op->add = signal->op == EP_NET_SIGNAL_INC ? 1 : signal->value;
	return ncclSuccess;
}

ncclResult_t ep_net_rma_put(struct ep_net_rma *rma, int context, const struct ep_net_copy *copy,
			    uint32_t rank, const struct ep_net_signal *signal, void **request)
{
	struct ep_net_op want = { .kind = EP_NET_PUT };

	EP_CHECK(ep_net_link_get(rma, context, rank, &want.link));
	EP_CHECK(ep_net_op_data(rma, &copy->from, &copy->to, copy->size, rank, &want));
	if (signal) {
		EP_CHECK(ep_net_op_signal(rma, signal, rank, &want));
	}
	return ep_net_op_start(rma, &want, request);
}

ncclResult_t ep_net_rma_get(struct ep_net_rma *rma, int context, const struct ep_net_copy *copy,
			    uint32_t rank, void **request)
{
	struct ep_net_op want = { .kind = EP_NET_GET };

	EP_CHECK(ep_net_link_get(rma, context, rank, &want.link));
	EP_CHECK(ep_net_op_data(rma, &copy->to, &copy->from, copy->size, rank, &want));
	if (copy->size) {
		rma->read = copy->to;
	}
	return ep_net_op_start(rma, &want, request);
}

ncclResult_t ep_net_rma_flush(struct ep_net_rma *rma, int context, void *memory, uint32_t rank,
			      void **request)
{
	const struct ep_net_span span = memory ? (struct ep_net_span){ 0, memory } : rma->read;
	const struct ep_net_sym *sym = NULL;
	struct ep_net_op want = { .kind = EP_NET_FLUSH,
				  .local = (uintptr_t)rma->scratch + 8,
				  .size = 1 };

	EP_CHECK(ep_net_link_get(rma, context, rank, &want.link));
	if (!memory && !ep_net_handle_get(EP_NET_SYM, span.handle)) {
		return ncclSuccess; /* nothing was read into memory that is still registered */
	}
	EP_CHECK(ep_net_span_find(rma, &span, rma->mesh->rank, 1, &sym, &want.remote));
	want.lkey = want.link->port_ctx->scratch_mr->lkey;
	want.rkey = sym->mr->rkey[rma->mesh->of_nic[want.link->port]];
	return ep_net_op_start(rma, &want, request);
}
