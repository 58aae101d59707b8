/* SPDX-License-Identifier: Apache-2.0 */
/* Posts requests of a mesh in the order in which they were made, as queue pairs have room. */
#include <endian.h>
#include <string.h>
#include "core/log.h"
#include "net/mesh/rma.h"

#define EP_NET_IMM_BYTES 8192u /* of more, a message of its own tells the peer */
#define EP_NET_RECEIVES_AT_ONCE 32u

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

/* The end of an op that signals or tells its peer. Returns the number of work requests. */
static uint32_t ep_net_end_wr(const struct ep_net_rma *rma, const struct ep_net_op *op, uint32_t n,
			      struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	const struct ep_net_port_ctx *port_ctx = op->link->port_ctx;

	if (op->signal) {
		sge[n] = (struct ibv_sge){ (uintptr_t)rma->scratch, 8, port_ctx->scratch_mr->lkey };
		wr[n].sg_list = &sge[n];
		wr[n].num_sge = 1;
		wr[n].opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		/* Firmware may place data out of order by itself, and does not say so here. */
		wr[n].send_flags = port_ctx->dev->nic.fences ? IBV_SEND_FENCE : 0;
		wr[n].wr.atomic.remote_addr = op->signal_at;
		wr[n].wr.atomic.compare_add = op->add;
		wr[n].wr.atomic.rkey = op->signal_rkey;
		return n + 1;
	}
	if (!op->notify) {
		return n;
	}
	/* NICs may route long data adaptively, and these messages not. */
	if (n == 0 || op->size > EP_NET_IMM_BYTES) {
		wr[n].wr.rdma.remote_addr = op->remote;
		wr[n].wr.rdma.rkey = op->rkey;
		n++;
	}
	wr[n - 1].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr[n - 1].imm_data = htobe32(op->imm);
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
	if (rma->ctrl && op->posted && op->left) {
		via->flight[via->flight_last++ % via->sq] = number;
	}
	return ncclSuccess;
}

ncclResult_t ep_net_link_push(struct ep_net_rma *rma, struct ep_net_link *link)
{
	while (link->first != EP_NET_NO_OP && link->lane == EP_NET_LANE_OPEN) {
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
				ep_net_op_end(rma, op, number); /* there was nothing to post */
			}
		}
	}
	if (link->first == EP_NET_NO_OP) {
		link->last = EP_NET_NO_OP;
	}
	return ncclSuccess;
}

void ep_net_link_append(struct ep_net_rma *rma, struct ep_net_link *link, uint32_t number)
{
	ep_net_op_at(rma, number)->next = EP_NET_NO_OP;
	if (link->first == EP_NET_NO_OP) {
		link->first = number;
	} else {
		ep_net_op_at(rma, link->last)->next = number;
	}
	link->last = number;
}

ncclResult_t ep_net_op_start(struct ep_net_rma *rma, const struct ep_net_op *want, uint32_t *number)
{
	struct ep_net_link *link = ep_net_lane_open(rma, want->link);
	struct ep_net_op *op;
	uint32_t use;

	EP_CHECK(ep_net_rma_failed(rma));
	if (!link) {
		return ep_net_rma_fail(rma, want->link, ncclRemoteError,
				       "the peer has closed the connection: see its log");
	}
	if (rma->free == EP_NET_NO_OP) {
		EP_CHECK(ep_net_ops_grow(rma));
	}
	*number = rma->free;
	op = ep_net_op_at(rma, *number);
	rma->free = op->next;
	rma->live++;
	use = (op->use + 1) & ((1u << EP_NET_OP_USE_BITS) - 1);
	*op = *want;
	op->use = use;
	op->link = link;
	op->lkey = op->lkeys ? op->lkeys[link->port] : op->lkey;
	op->rkey = op->rkeys ? op->rkeys[link->remote_port] : op->rkey;
	op->left = 0;
	op->at = 0;
	op->others = 0;
	op->posted = false;
	op->gets = link->gets;
	link->gets += op->kind == EP_NET_GET;
	link->live++;
	ep_net_link_append(rma, link, *number);
	return ep_net_link_push(rma, link);
}

void *ep_net_op_request(const struct ep_net_rma *rma, uint32_t number)
{
	return ep_net_op_handle(EP_NET_OP, ep_net_slot_of(rma->handle), number,
				ep_net_op_at(rma, number)->use);
}

ncclResult_t ep_net_flush_start(struct ep_net_rma *rma, struct ep_net_link *const *link,
				const uint32_t *rkey, uint32_t n, uint64_t at, void **request)
{
	struct ep_net_op want = {
		.kind = EP_NET_FLUSH, .local = (uintptr_t)rma->scratch + 8, .remote = at, .size = 1
	};
	uint32_t first = EP_NET_NO_OP, number;

	for (uint32_t i = 0; i < n; i++) {
		want.link = link[i];
		want.lkey = link[i]->port_ctx->scratch_mr->lkey;
		want.rkey = rkey[i];
		if (i > 0) {
			/* (requests stay where they are) */
			want.count = &ep_net_op_at(rma, first)->others;
			++*want.count;
		}
		EP_CHECK(ep_net_op_start(rma, &want, &number));
		first = i ? first : number;
	}
	*request = ep_net_op_request(rma, first);
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

ncclResult_t ep_net_link_receives(struct ep_net_rma *rma, struct ep_net_link *link, uint32_t n)
{
	struct ibv_recv_wr wr[EP_NET_RECEIVES_AT_ONCE], *bad;
	uint64_t id = 1ull << 63 | (uint64_t)(link - rma->link);
	int error = 0;

	while (n && !error) {
		uint32_t some = (uint32_t)ep_min_u64(n, EP_NET_RECEIVES_AT_ONCE);

		for (uint32_t i = 0; i < some; i++) {
			wr[i] = (struct ibv_recv_wr){ .wr_id = id,
						      .next = i + 1 < some ? &wr[i + 1] : NULL };
		}
		error = ibv_post_recv(link->qp, wr, &bad);
		link->receiving += some;
		n -= some;
	}
	return error ? ep_net_rma_fail(rma, link, ncclSystemError, "receives cannot be posted: %s",
				       strerror(error))
		     : ncclSuccess;
}
