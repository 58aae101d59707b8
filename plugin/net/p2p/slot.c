/* SPDX-License-Identifier: Apache-2.0 */
/* Announces receives to the sender: where they want data. */
#include <string.h>
#include "core/log.h"
#include "net/p2p/fail.h"
#include "net/p2p/slot.h"

/*
 * A slot may wait to be written together with the next ones as long as the sender knows of so many
 * receives; NCCL has no more under way, and never waits.
 */
#define EP_NET_AHEAD 8
#define EP_NET_TOGETHER 8 /* slots, of one WRITE */

/* The slots of n groups, which lie one behind the other. What lies between them is old, there and here. */
static ncclResult_t ep_net_slots_write(struct ep_net_comm *c, uint32_t n)
{
	struct ep_net_slot_entry *first = c->shared->slot[c->slots_posted % EP_NET_SLOTS];
	struct ep_net_slot_entry *last = c->shared->slot[(c->slots_posted + n - 1) % EP_NET_SLOTS];
	struct ep_net_qp *q = &c->qp[c->slot_qp];
	bool signaled = c->unsignaled_groups + n >= EP_NET_SIGNAL_EVERY;
	struct ibv_sge sge = { (uintptr_t)first,
			       (uint32_t)((uintptr_t)(last + last->n) - (uintptr_t)first),
			       c->local[q->local_port].shared_mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = EP_NET_WR_ID(EP_NET_WORK_SLOT, c->slot_qp, c->unsignaled + 1,
				      c->unsignaled_groups + n) |
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
		return ep_net_comm_fail(c, ncclSystemError, c->slot_qp,
					"a receive cannot be announced to the sender: %s",
					strerror(error));
	}
	q->room--;
	c->slots_posted += n;
	c->unsignaled = signaled ? 0 : c->unsignaled + 1;
	c->unsignaled_groups = signaled ? 0 : c->unsignaled_groups + n;
	return ncclSuccess;
}

ncclResult_t ep_net_slots_post(struct ep_net_comm *c)
{
	const struct ep_net_qp *q = &c->qp[c->slot_qp];
	uint64_t unpublished = c->groups - c->slots_posted;

	if (unpublished < EP_NET_TOGETHER && c->open >= unpublished + EP_NET_AHEAD) {
		return ncclSuccess;
	}
	while (c->slots_posted < c->groups && q->room && ep_net_path_is_open(c, q->path)) {
		uint64_t n = ep_min_u64(c->groups - c->slots_posted, EP_NET_TOGETHER);

		n = ep_min_u64(n, EP_NET_SLOTS - c->slots_posted % EP_NET_SLOTS);
		EP_CHECK(ep_net_slots_write(c, (uint32_t)n));
	}
	return ncclSuccess;
}
