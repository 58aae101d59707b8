/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving, and flushes of GPU memory. */
#include <string.h>
#include "core/log.h"
#include "net/comm.h"

#define EP_NET_TELL 8 /* of so many slots one has a completion */

static ncclResult_t ep_net_recv_get(const void *handle, int n, struct ep_net_comm **comm)
{
	*comm = ep_net_handle_get(EP_NET_RECV, handle);
	if (!*comm) {
		return ep_fail(ncclInvalidArgument,
			       "%p is no connection that receives, or was closed", handle);
	}
	if (n < 1 || n > EP_NET_MAX_RECVS) {
		return ep_fail(ncclInvalidArgument, "%d receives in a group, possible are 1..%d", n,
			       EP_NET_MAX_RECVS);
	}
	return (*comm)->failed.code == ncclSuccess ? ncclSuccess : ep_net_comm_failed(*comm);
}

/* Tells the sender of the group. */
static ncclResult_t ep_net_slot_send(struct ep_net_comm *c, uint32_t n)
{
	struct ep_net_slot_entry *slot = c->shared->slot[c->groups % EP_NET_SLOTS];
	bool tell = c->groups % EP_NET_TELL == EP_NET_TELL - 1;
	struct ibv_sge sge = { (uintptr_t)slot, (uint32_t)(n * sizeof(*slot)), c->shared_mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = EP_NET_WR_ID(EP_NET_WORK_SLOT, 0, EP_NET_TELL, 0),
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = (tell ? IBV_SEND_SIGNALED : 0) |
			      (sge.length <= c->inline_bytes ? IBV_SEND_INLINE : 0),
		.wr.rdma = { .remote_addr =
				     c->remote_shared + ((uintptr_t)slot - (uintptr_t)c->shared),
			     .rkey = c->remote_rkey },
	};
	struct ibv_send_wr *bad;
	int error = ibv_post_send(c->qp[0].qp, &wr, &bad);

	if (error) {
		return ep_net_comm_fail(c, ncclSystemError, 0,
					"the sender cannot be told of a receive: %s",
					strerror(error));
	}
	c->qp[0].room--;
	return ncclSuccess;
}

ncclResult_t ep_net_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags,
			  void **mr, void **request)
{
	const struct ep_net_mr *region[EP_NET_MAX_RECVS] = { NULL };
	struct ep_net_slot_entry *slot;
	struct ep_net_request *r;
	struct ep_net_comm *c;
	uint32_t i;

	/* What NCCL presets to say that it need not be told of the end is never left there. */
	*request = NULL;
	EP_CHECK(ep_net_recv_get(recv_comm, n, &c));
	for (int k = 0; k < n; k++) {
		if (sizes[k]) {
			EP_CHECK(ep_net_mr_check(c, mr[k], data[k], sizes[k], &region[k]));
		}
	}
	/* The slot's place is free when what was written there before has been taken. */
	if (c->open == EP_NET_GROUPS || c->groups - c->told >= EP_NET_SLOTS - EP_NET_TELL ||
	    c->qp[0].room == 0) {
		return ep_net_progress(c);
	}
	i = ep_net_request_new(c);
	if (i == EP_NET_NO_REQUEST) {
		return ep_net_progress(c);
	}
	r = &c->request[i];
	r->n = r->left = (uint32_t)n;
	memset(r->size, 0, sizeof(r->size));
	memset(r->seen, 0, sizeof(r->seen));
	memset(r->done, 0, sizeof(r->done));
	slot = c->shared->slot[c->groups % EP_NET_SLOTS];
	for (int k = 0; k < n; k++) {
		r->limit[k] = (uint32_t)ep_min_u64(sizes[k], EP_NET_MAX_BYTES);
		slot[k] = (struct ep_net_slot_entry){ .addr = (uintptr_t)data[k],
						      .size = r->limit[k],
						      .rkey = region[k] ? region[k]->rkey : 0,
						      .tag = tags[k],
						      .n = (uint32_t)n,
						      .seq = c->groups + 1 };
	}
	c->slot_request[c->groups % EP_NET_SLOTS] = i;
	EP_CHECK(ep_net_slot_send(c, (uint32_t)n));
	c->groups++;
	c->open++;
	*request = ep_net_request_handle_of(c, i);
	return ncclSuccess;
}

/*
 * What a NIC has written to a GPU is there when a read that the same NIC makes afterwards has come
 * back: PCIe lets no read pass writes.
 */
static ncclResult_t ep_net_flush_post(struct ep_net_comm *c, const struct ep_net_mr *region,
				      const void *at, void **request)
{
	struct ibv_sge sge = { (uintptr_t)&c->shared->flushed, 1, c->shared_mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = (uintptr_t)at, .rkey = region->rkey },
	};
	struct ibv_send_wr *bad;
	uint32_t i;
	int error;

	if (!c->flush_qp) {
		EP_CHECK(ep_net_flush_open(c));
	}
	i = c->flush_room ? ep_net_request_new(c) : EP_NET_NO_REQUEST;
	if (i == EP_NET_NO_REQUEST) {
		return ep_fail(ncclInternalError, "more than %d flushes are under way",
			       EP_NET_FLUSHES);
	}
	c->request[i].left = 1;
	wr.wr_id = EP_NET_WR_ID(EP_NET_WORK_FLUSH, EP_NET_MAX_QPS, 1, i);
	error = ibv_post_send(c->flush_qp, &wr, &bad);
	if (error) {
		return ep_net_comm_fail(c, ncclSystemError, 0, "a flush cannot be posted: %s",
					strerror(error));
	}
	c->flush_room--;
	*request = ep_net_request_handle_of(c, i);
	return ncclSuccess;
}

ncclResult_t ep_net_iflush(void *recv_comm, int n, void **data, const int *sizes, void **mr,
			   void **request)
{
	const struct ep_net_mr *region, *last = NULL;
	const void *at = NULL;
	struct ep_net_comm *c;

	*request = NULL;
	EP_CHECK(ep_net_recv_get(recv_comm, n, &c));
	for (int k = 0; k < n; k++) {
		if (sizes[k] <= 0) {
			continue;
		}
		EP_CHECK(ep_net_mr_check(c, mr[k], data[k], (size_t)sizes[k], &region));
		if (region->gpu) {
			last = region;
			at = data[k];
		}
	}
	return last ? ep_net_flush_post(c, last, at, request) : ncclSuccess;
}
