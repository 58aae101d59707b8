/* SPDX-License-Identifier: Apache-2.0 */
/* Posts parts of messages, those once more that a closed path has not brought. */
#include <endian.h>
#include <string.h>
#include "core/log.h"
#include "net/p2p/fail.h"
#include "net/p2p/part.h"

/* The end of a part: the record and the immediate data, or the data itself with it. */
static void ep_net_part_end(struct ep_net_comm *c, const struct ep_net_message *message,
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

static void ep_net_part_posted(struct ep_net_comm *c, struct ep_net_qp *qp, uint32_t request,
			       uint32_t number, uint32_t size)
{
	if (qp->part) {
		qp->part[qp->posted % c->sq_depth] =
			(struct ep_net_part){ (uint16_t)request, (uint8_t)number };
	}
	qp->posted++;
	c->counts->path[qp->path].parts++;
	c->counts->path[qp->path].bytes += size;
}

ncclResult_t ep_net_part_post(struct ep_net_comm *c, const struct ep_net_message *message,
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
	ep_net_part_end(c, message, q, record, &wr[n - 1], &sge[n - 1]);
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
	ep_net_part_posted(c, q, message->request, number, size);
	return ncclSuccess;
}

/* A queue pair that has room for a part; nqps: none. */
static uint32_t ep_net_qp_with_room(struct ep_net_comm *c)
{
	for (uint32_t i = 0; i < c->nopen; i++) {
		uint32_t qp = c->open_qp[c->next_open];

		c->next_open = (c->next_open + 1) % c->nopen;
		if (c->qp[qp].room >= EP_NET_PART_WR) {
			return qp;
		}
	}
	return c->nqps;
}

ncclResult_t ep_net_parts_resend(struct ep_net_comm *c)
{
	for (; c->again_first != c->again_last; c->again_first++) {
		const struct ep_net_part *part =
			&c->again[c->again_first % (c->nrequests * c->nqps)];
		uint32_t to = ep_net_qp_with_room(c);

		if (to == c->nqps) {
			return ncclSuccess;
		}
		EP_CHECK(ep_net_part_post(c, &c->request[part->request].message, to, part->number));
		c->counts->resent++;
	}
	return ncclSuccess;
}
