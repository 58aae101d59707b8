/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ends give their queue pairs to do: the receiver announces receives, the sender posts parts
 * of messages.
 */
#include <endian.h>
#include <string.h>
#include "net/p2p.h"

uint32_t ep_net_request_new(struct ep_net_comm *c, uint32_t n)
{
	uint32_t i = c->pool.free;

	if (i != EP_NET_NO_REQUEST) {
		struct ep_net_request *r = &c->request[i];

		c->pool.free = r->next;
		r->use = ep_net_use_next(r->use);
		r->n = n;
		r->left = 0;
		c->pool.pending++;
		c->pool.flushes += !c->sender && n == 0;
	}
	return i;
}

void ep_net_request_free(struct ep_net_comm *c, uint32_t i)
{
	struct ep_net_request *r = &c->request[i];

	r->use = ep_net_use_next(r->use);
	r->next = c->pool.free;
	c->pool.free = i;
	c->pool.pending--;
	c->pool.flushes -= !c->sender && r->n == 0;
}

void *ep_net_request_handle_of(const struct ep_net_comm *c, uint32_t i)
{
	return ep_net_request_handle(EP_NET_REQUEST, c->handle, i, c->request[i].use);
}

ncclResult_t ep_net_recv_get(const void *handle, int n, struct ep_net_comm **comm)
{
	*comm = ep_net_handle_find(EP_NET_RECV, handle);
	if (!*comm) {
		return ncclInvalidArgument;
	}
	if (n < 1 || n > EP_NET_MAX_RECVS) {
		return ep_fail(ncclInvalidArgument, "%d receives in a group, possible are 1..%d", n,
			       EP_NET_MAX_RECVS);
	}
	return ncclSuccess;
}

/* ---- announces receives to the sender: where they want data ---- */

/*
 * A slot may wait to be written together with the next ones as long as the sender knows of so many
 * receives; NCCL has no more under way, and never waits.
 */
#define EP_NET_AHEAD 8
#define EP_NET_TOGETHER 8 /* slots, of one WRITE */

/*
 * The slots of n groups, which lie one behind the other. What lies between them is old, there and
 * here.
 */
static ncclResult_t slots_write(struct ep_net_comm *c, uint32_t n)
{
	struct ep_net_slot_entry *first = c->shared->slot[c->slots.posted % EP_NET_SLOTS];
	struct ep_net_slot_entry *last = c->shared->slot[(c->slots.posted + n - 1) % EP_NET_SLOTS];
	struct ep_net_qp *q = &c->qp[c->slots.qp];
	bool signaled = c->slots.unsignaled_groups + n >= EP_NET_SIGNAL_EVERY;
	struct ibv_sge sge = { (uintptr_t)first,
			       (uint32_t)((uintptr_t)(last + last->n) - (uintptr_t)first),
			       c->local[q->local_port].shared_mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = EP_NET_WR_ID(EP_NET_WORK_SLOT, c->slots.qp, c->slots.unsignaled + 1,
				      c->slots.unsignaled_groups + n) |
			 EP_NET_WR_GENERATION_OF(q),
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = (signaled ? IBV_SEND_SIGNALED : 0) |
			      (sge.length <= c->inline_bytes ? IBV_SEND_INLINE : 0),
		.wr.rdma = { .remote_addr =
				     c->remote_shared + ((uintptr_t)first - (uintptr_t)c->shared),
			     .rkey = c->remote[q->remote_port].rkey },
	};
	struct ibv_send_wr *bad;
	int error = ibv_post_send(q->qp, &wr, &bad);

	if (error) {
		return ep_net_comm_fail(c, ncclSystemError, c->slots.qp,
					"a receive cannot be announced to the sender: %s",
					strerror(error));
	}
	q->room--;
	c->slots.posted += n;
	c->slots.unsignaled = signaled ? 0 : c->slots.unsignaled + 1;
	c->slots.unsignaled_groups = signaled ? 0 : c->slots.unsignaled_groups + n;
	return ncclSuccess;
}

ncclResult_t ep_net_slots_post(struct ep_net_comm *c)
{
	const struct ep_net_qp *q = &c->qp[c->slots.qp];
	uint64_t unpublished = c->groups.n - c->slots.posted;

	if (unpublished < EP_NET_TOGETHER && c->groups.open >= unpublished + EP_NET_AHEAD) {
		return ncclSuccess;
	}
	while (c->slots.posted < c->groups.n && q->room && ep_net_path_is_open(c, q->path)) {
		uint64_t n = ep_min_u64(c->groups.n - c->slots.posted, EP_NET_TOGETHER);

		n = ep_min_u64(n, EP_NET_SLOTS - c->slots.posted % EP_NET_SLOTS);
		EP_CHECK(slots_write(c, (uint32_t)n));
	}
	return ncclSuccess;
}

void ep_net_slots_restart(struct ep_net_comm *c, uint32_t qp)
{
	c->slots.qp = qp;
	c->slots.posted = c->slots.acked;
	c->slots.unsignaled = c->slots.unsignaled_groups = 0;
}

/* ---- parts of messages ---- */

/* The end of a part: the record and the immediate data, or the data itself with it. */
static void part_end(struct ep_net_comm *c, const struct ep_net_message *message,
		     const struct ep_net_qp *qp, bool record, struct ibv_send_wr *wr,
		     struct ibv_sge *sge)
{
	uint32_t slot = message->group % EP_NET_SLOTS;
	struct ep_net_record *r = &c->shared->record[slot][message->entry];

	wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr->send_flags = IBV_SEND_SIGNALED;
	wr->imm_data = htobe32(EP_NET_IMM(slot, message->entry, message->parts, record));
	if (record) {
		r->size = message->size;
		r->seq = message->group + 1;
		*sge = (struct ibv_sge){ (uintptr_t)r, sizeof(*r),
					 c->local[qp->local_port].shared_mr->lkey };
		wr->num_sge = 1;
		wr->wr.rdma.remote_addr = c->remote_shared + ((uintptr_t)r - (uintptr_t)c->shared);
		wr->wr.rdma.rkey = c->remote[qp->remote_port].rkey;
		if (c->inline_bytes >= sizeof(*r)) {
			wr->send_flags |= IBV_SEND_INLINE;
		}
	}
}

static ncclResult_t part_post(struct ep_net_comm *c, const struct ep_net_message *message,
			      uint32_t qp, uint32_t number)
{
	struct ep_net_qp *q = &c->qp[qp];
	uint64_t most = 1ull << c->local[q->local_port].dev->nic.log_max_msg;
	uint32_t offset = number * message->each, n = 0;
	uint32_t size = (uint32_t)ep_min_u64(message->size - offset, message->each);
	struct ibv_send_wr wr[EP_NET_PART_WR], *bad;
	bool record = message->size > c->plain_limit || size > most;
	struct ibv_sge sge[EP_NET_PART_WR];
	int error;

	memset(wr, 0, sizeof(wr));
	for (uint32_t at = 0; at < size || n == 0; n++) {
		uint32_t bytes = (uint32_t)ep_min_u64(size - at, most);

		sge[n] = (struct ibv_sge){ message->data + offset + at, bytes,
					   message->mr ? message->mr->lkey[q->local_port] : 0 };
		wr[n].sg_list = &sge[n];
		wr[n].num_sge = bytes ? 1 : 0;
		wr[n].opcode = IBV_WR_RDMA_WRITE;
		wr[n].wr.rdma.remote_addr = message->to->addr + offset + at;
		wr[n].wr.rdma.rkey = message->to->rkey[q->remote_port];
		wr[n].next = &wr[n + 1];
		at += bytes;
	}
	if (record) {
		wr[n].sg_list = &sge[n];
		n++;
	}
	part_end(c, message, q, record, &wr[n - 1], &sge[n - 1]);
	wr[n - 1].next = NULL;
	for (uint32_t i = 0; i < n; i++) {
		wr[i].wr_id = EP_NET_WR_ID(EP_NET_WORK_SEND, qp, n, message->request) |
			      EP_NET_WR_GENERATION_OF(q);
	}
	error = ibv_post_send(q->qp, wr, &bad);
	if (error) {
		return ep_net_comm_fail(c, ncclSystemError, qp, "%u bytes cannot be sent: %s", size,
					strerror(error));
	}
	q->room -= n;
	if (q->part) {
		q->part[q->posted % c->sq_depth] =
			(struct ep_net_part){ (uint16_t)message->request, (uint8_t)number };
	}
	q->posted++;
	c->counts->path[q->path].parts++;
	c->counts->path[q->path].bytes += size;
	return ncclSuccess;
}

bool ep_net_message_divide(const struct ep_net_comm *c, struct ep_net_message *message)
{
	uint32_t paths = c->split ? c->open.n : message->size > EP_NET_ONE_PATH ? c->open.paths : 1;

	message->parts = 1;
	message->each = message->size;
	if (paths > 1 && message->size > EP_NET_PART) {
		message->parts =
			(uint32_t)ep_min_u64(paths, ep_ceil_div(message->size, EP_NET_PART));
		message->each = (uint32_t)ep_round_up(ep_ceil_div(message->size, message->parts),
						      EP_NET_PART);
		message->parts = ep_ceil_div(message->size, message->each);
	}
	for (uint32_t i = 0; c->open.n && i < message->parts; i++) {
		if (c->qp[c->open.qp[(c->open.next + i) % c->open.n]].room < EP_NET_PART_WR) {
			return false;
		}
	}
	return c->open.n != 0;
}

/* Returns the next of the open queue pairs in turn. */
static uint32_t qp_next(struct ep_net_comm *c)
{
	uint32_t qp = c->open.qp[c->open.next];

	c->open.next = (c->open.next + 1) % c->open.n;
	return qp;
}

ncclResult_t ep_net_message_post(struct ep_net_comm *c, const struct ep_net_message *message)
{
	for (uint32_t i = 0; i < message->parts; i++) {
		EP_CHECK(part_post(c, message, qp_next(c), i));
	}
	return ncclSuccess;
}

/* ---- parts that a closed path has not brought: they are posted again ---- */

ncclResult_t ep_net_parts_settle(struct ep_net_comm *c, uint32_t path)
{
	uint32_t k = 0;

	for (uint32_t i = path; i < c->nqps; i += c->npaths, k++) {
		struct ep_net_qp *q = &c->qp[i];
		uint32_t received = c->path[path].received[k];

		if (received - q->first > q->posted - q->first) {
			return ep_net_comm_fail(
				c, ncclRemoteError, i,
				"the peer has had %u parts of messages of this queue "
				"pair, %u were sent",
				received, q->posted);
		}
		for (; q->first != received; q->first++) {
			c->request[q->part[q->first % c->sq_depth].request].left--;
		}
		for (; q->first != q->posted; q->first++) {
			c->again.part[c->again.last++ % c->again.room] =
				q->part[q->first % c->sq_depth];
		}
	}
	return ncclSuccess;
}

/* Returns the next open queue pair that has room for a part; nqps: there is none. */
static uint32_t qp_with_room(struct ep_net_comm *c)
{
	for (uint32_t i = 0; i < c->open.n; i++) {
		uint32_t qp = qp_next(c);

		if (c->qp[qp].room >= EP_NET_PART_WR) {
			return qp;
		}
	}
	return c->nqps;
}

ncclResult_t ep_net_parts_resend(struct ep_net_comm *c)
{
	for (; c->again.first != c->again.last; c->again.first++) {
		const struct ep_net_part *part = &c->again.part[c->again.first % c->again.room];
		uint32_t to = qp_with_room(c);

		if (to == c->nqps) {
			return ncclSuccess;
		}
		EP_CHECK(part_post(c, &c->request[part->request].message, to, part->number));
		c->counts->resent++;
	}
	return ncclSuccess;
}
