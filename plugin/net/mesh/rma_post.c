/* SPDX-License-Identifier: Apache-2.0 */
/* Posts requests of a mesh in the order in which they were made, as queue pairs have room. */
#include <string.h>
#include "core/log.h"
#include "net/mesh/op.h"
#include "net/mesh/rma_post.h"

static void ep_net_data_wr(const struct ep_net_op *op, uint64_t at, uint32_t bytes,
			   struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	*sge = (struct ibv_sge){ op->local + at, bytes, op->lkey };
	wr->sg_list = sge;
	wr->num_sge = 1;
	wr->opcode = op->kind == EP_NET_PUT ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
	wr->wr.rdma.remote_addr = op->remote + at;
	wr->wr.rdma.rkey = op->rkey;
}

/* The signal of an op, if it has one. Returns the number of work requests. */
static uint32_t ep_net_end_wr(const struct ep_net_rma *rma, const struct ep_net_op *op, uint32_t n,
			      struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	const struct ep_net_port_ctx *port_ctx = op->link->port_ctx;

	if (op->signal) {
		sge[n] = (struct ibv_sge){ (uintptr_t)rma->scratch, 8, port_ctx->scratch_mr->lkey };
		wr[n].sg_list = &sge[n];
		wr[n].num_sge = 1;
		wr[n].opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		/* Firmware may place data out of order by itself, and does not report that here. */
		wr[n].send_flags = port_ctx->dev->nic.fences ? IBV_SEND_FENCE : 0;
		wr[n].wr.atomic.remote_addr = op->signal_at;
		wr[n].wr.atomic.compare_add = op->add;
		wr[n].wr.atomic.rkey = op->signal_rkey;
		n++;
	}
	return n;
}

/* Posts what it can of an op. *waits: it is not all posted. */
static ncclResult_t ep_net_op_push(struct ep_net_rma *rma, struct ep_net_op *op, uint32_t number,
				   bool *waits)
{
	struct ep_net_link *via = ep_net_op_via(rma, op);
	struct ep_net_port_ctx *port_ctx = via->port_ctx;
	uint64_t most = 1ull << port_ctx->dev->nic.log_max_msg, at = op->at;
	struct ibv_send_wr wr[EP_NET_OP_WR], *bad;
	struct ibv_sge sge[EP_NET_OP_WR];
	uint32_t n = 0;
	int error;

	*waits = true;
	if (op->kind == EP_NET_FLUSH && op->link->got < op->gets) {
		return ncclSuccess;
	}
	memset(wr, 0, sizeof(wr));
	for (; at < op->size && n < EP_NET_OP_WR - 1; n++) {
		uint32_t bytes = (uint32_t)ep_min_u64(op->size - at, most);

		ep_net_data_wr(op, at, bytes, &wr[n], &sge[n]);
		at += bytes;
	}
	if (at == op->size) {
		n = ep_net_end_wr(rma, op, n, wr, sge);
	}
	if (n > via->room || (n && port_ctx->cq_room == 0)) {
		/* Completions of its own link alone may not bring it. */
		rma->starved |= via != op->link || port_ctx->cq_room == 0;
		return ncclSuccess;
	}
	for (uint32_t i = 0; i < n; i++) {
		wr[i].wr_id = EP_NET_OP_ID(n, number);
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		wr[i].send_flags |= i + 1 < n ? 0 : IBV_SEND_SIGNALED;
	}
	error = n ? ibv_post_send(via->qp, wr, &bad) : 0;
	if (error) {
		return ep_net_rma_fail(rma, via, ncclSystemError, "%llu bytes cannot be posted: %s",
				       (unsigned long long)(at - op->at), strerror(error));
	}
	via->room -= n;
	port_ctx->cq_room -= n ? 1 : 0;
	op->left += n ? 1 : 0;
	op->at = at;
	op->posted = at == op->size;
	*waits = !op->posted;
	return ncclSuccess;
}

ncclResult_t ep_net_link_push(struct ep_net_rma *rma, struct ep_net_link *link)
{
	while (link->first != EP_NET_NO_OP) {
		uint32_t number = link->first, before;
		struct ep_net_op *op = ep_net_op_at(rma, number);
		bool waits;

		before = op->left;
		EP_CHECK(ep_net_op_push(rma, op, number, &waits));
		if (waits && op->left == before) {
			return ncclSuccess; /* for room, or for gets */
		}
		if (!waits) {
			link->first = op->next;
			if (ep_net_op_done(op)) {
				ep_net_op_end(op); /* there was nothing to post */
			}
		}
	}
	if (link->first == EP_NET_NO_OP) {
		link->last = EP_NET_NO_OP;
	}
	return ncclSuccess;
}

static void ep_net_link_append(struct ep_net_rma *rma, struct ep_net_link *link, uint32_t number)
{
	ep_net_op_at(rma, number)->next = EP_NET_NO_OP;
	if (link->first == EP_NET_NO_OP) {
		link->first = number;
	} else {
		ep_net_op_at(rma, link->last)->next = number;
	}
	link->last = number;
}

ncclResult_t ep_net_op_start(struct ep_net_rma *rma, const struct ep_net_op *want, void **request)
{
	struct ep_net_link *link = want->link;
	uint32_t use, number;
	struct ep_net_op *op;

	EP_CHECK(ep_net_rma_failed(rma));
	if (rma->free == EP_NET_NO_OP) {
		EP_CHECK(ep_net_ops_grow(rma));
	}
	number = rma->free;
	op = ep_net_op_at(rma, number);
	rma->free = op->next;
	rma->pending++;
	use = ep_net_use_next(op->use);
	*op = *want;
	op->use = use;
	op->left = 0;
	op->at = 0;
	op->posted = false;
	op->gets = link->gets;
	link->gets += op->kind == EP_NET_GET;
	link->pending++;
	ep_net_link_append(rma, link, number);
	EP_CHECK(ep_net_link_push(rma, link));
	*request = ep_net_request_handle(EP_NET_OP, rma->handle, number, use);
	return ncclSuccess;
}

ncclResult_t ep_net_starved_push(struct ep_net_rma *rma)
{
	uint32_t n = (uint32_t)rma->config.contexts * rma->mesh->nranks;

	rma->starved = false;
	for (uint32_t i = 0; i < n; i++) {
		EP_CHECK(ep_net_link_push(rma, &rma->link[i]));
	}
	return ncclSuccess;
}
