/* SPDX-License-Identifier: Apache-2.0 */
/* Sending, and the end of requests of either kind. */
#include <endian.h>
#include <string.h>
#include "core/log.h"
#include "net/comm.h"

/* ---- which receive a message is for ---- */

/* The slot of the next group, if all of it is there. */
static ncclResult_t ep_net_slot_get(struct ep_net_comm *c, const struct ep_net_slot_entry **slot)
{
	const struct ep_net_slot_entry *e = c->shared->slot[c->groups % EP_NET_SLOTS];
	uint64_t seq = c->groups + 1;

	*slot = NULL;
	if (__atomic_load_n(&e[0].seq, __ATOMIC_ACQUIRE) != seq) {
		return ncclSuccess;
	}
	if (e[0].n < 1 || e[0].n > EP_NET_MAX_RECVS) {
		return ep_net_comm_fail(
			c, ncclRemoteError, 0,
			"the peer speaks of %u receives in a group, the limit is %d", e[0].n,
			EP_NET_MAX_RECVS);
	}
	for (uint32_t i = 1; i < e[0].n; i++) {
		if (__atomic_load_n(&e[i].seq, __ATOMIC_ACQUIRE) != seq) {
			return ncclSuccess;
		}
	}
	*slot = e;
	return ncclSuccess;
}

/* The first receive of the group with this tag that has no message; the group's number of them: none. */
static uint32_t ep_net_match(const struct ep_net_comm *c, const struct ep_net_slot_entry *slot,
			     int tag)
{
	uint32_t i = 0;

	while (i < slot[0].n && (c->matched >> i & 1 || slot[i].tag != tag)) {
		i++;
	}
	return i;
}

/* ---- work requests ---- */

struct ep_net_message {
	const struct ep_net_slot_entry *to;
	uint64_t group;
	uint32_t entry, parts, request;
	uintptr_t data;
	uint32_t size, lkey;
};

/* The end of a part: the record and the immediate data, or the data itself with it. */
static void ep_net_part_end(struct ep_net_comm *c, const struct ep_net_message *m, bool record,
			    struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	uint32_t slot = m->group % EP_NET_SLOTS;
	struct ep_net_record *r = &c->shared->record[slot][m->entry];

	wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr->send_flags = IBV_SEND_SIGNALED;
	wr->imm_data = htobe32(EP_NET_IMM(slot, m->entry, m->parts, record));
	if (record) {
		r->size = m->size;
		r->seq = m->group + 1;
		*sge = (struct ibv_sge){ (uintptr_t)r, sizeof(*r), c->shared_mr->lkey };
		wr->num_sge = 1;
		wr->wr.rdma.remote_addr = c->remote_shared + ((uintptr_t)r - (uintptr_t)c->shared);
		wr->wr.rdma.rkey = c->remote_rkey;
		if (c->inline_bytes >= sizeof(*r)) {
			wr->send_flags |= IBV_SEND_INLINE;
		}
	}
}

static ncclResult_t ep_net_part_post(struct ep_net_comm *c, const struct ep_net_message *m,
				     uint32_t qp, uint32_t offset, uint32_t size)
{
	uint64_t most = 1ull << c->dev->nic.log_max_msg;
	struct ibv_send_wr wr[EP_NET_PART_WR], *bad;
	bool record = m->size > c->plain_limit || size > most;
	struct ibv_sge sge[EP_NET_PART_WR];
	uint32_t n = 0;
	int error;

	memset(wr, 0, sizeof(wr));
	for (uint32_t at = 0; at < size || n == 0; n++) {
		uint32_t bytes = (uint32_t)ep_min_u64(size - at, most);

		sge[n] = (struct ibv_sge){ m->data + offset + at, bytes, m->lkey };
		wr[n].sg_list = &sge[n];
		wr[n].num_sge = bytes ? 1 : 0;
		wr[n].opcode = IBV_WR_RDMA_WRITE;
		wr[n].wr.rdma.remote_addr = m->to->addr + offset + at;
		wr[n].wr.rdma.rkey = m->to->rkey;
		wr[n].next = &wr[n + 1];
		at += bytes;
	}
	if (record) {
		wr[n].sg_list = &sge[n];
		n++;
	}
	ep_net_part_end(c, m, record, &wr[n - 1], &sge[n - 1]);
	wr[n - 1].next = NULL;
	for (uint32_t i = 0; i < n; i++) {
		wr[i].wr_id = EP_NET_WR_ID(EP_NET_WORK_SEND, qp, n, m->request);
	}
	error = ibv_post_send(c->qp[qp].qp, wr, &bad);
	if (error) {
		return ep_net_comm_fail(c, ncclSystemError, qp, "%u bytes cannot be sent: %s", size,
					strerror(error));
	}
	c->qp[qp].room -= n;
	return ncclSuccess;
}

/* Over how many queue pairs a message goes, and how much over each but the last. */
static uint32_t ep_net_parts(const struct ep_net_comm *c, uint32_t size, uint32_t *each)
{
	uint32_t parts = 1;

	*each = size;
	if (c->split && size > EP_NET_PART) {
		parts = (uint32_t)ep_min_u64(c->nqps, ep_ceil_div(size, EP_NET_PART));
		*each = (uint32_t)ep_round_up(ep_ceil_div(size, parts), EP_NET_PART);
		parts = ep_ceil_div(size, *each);
	}
	return parts;
}

static bool ep_net_has_room(const struct ep_net_comm *c, uint32_t parts)
{
	for (uint32_t i = 0; i < parts; i++) {
		if (c->qp[(c->next_qp + i) % c->nqps].room < EP_NET_PART_WR) {
			return false;
		}
	}
	return true;
}

static ncclResult_t ep_net_message_post(struct ep_net_comm *c, const struct ep_net_message *m,
					uint32_t each)
{
	for (uint32_t i = 0; i < m->parts; i++) {
		uint32_t at = i * each, qp = c->next_qp;

		c->next_qp = (c->next_qp + 1) % c->nqps;
		EP_CHECK(ep_net_part_post(c, m, qp, at, (uint32_t)ep_min_u64(m->size - at, each)));
	}
	return ncclSuccess;
}

/* ---- for NCCL ---- */

ncclResult_t ep_net_mr_check(const struct ep_net_comm *c, const void *handle, const void *data,
			     size_t size, const struct ep_net_mr **out)
{
	const struct ep_net_mr *mr = ep_net_handle_get(EP_NET_MR, handle);

	if (!mr) {
		return ep_fail(ncclInvalidArgument,
			       "%p is no registration of memory, or was deregistered", handle);
	}
	if (mr->dev != c->dev) {
		return ep_fail(ncclInvalidArgument,
			       "memory that is registered with %s is used with %s", mr->dev->label,
			       c->dev->label);
	}
	if (!ep_net_mr_has(mr, data, size)) {
		return ep_fail(ncclInvalidArgument,
			       "%zu bytes at %p are not all in the registered %zu bytes at %p",
			       size, data, (size_t)(mr->end - mr->start), (void *)mr->start);
	}
	*out = mr;
	return ncclSuccess;
}

static ncclResult_t ep_net_comm_get(enum ep_net_kind kind, const void *handle,
				    struct ep_net_comm **comm)
{
	*comm = ep_net_handle_get(kind, handle);
	if (!*comm) {
		return ep_fail(ncclInvalidArgument, "%p is no connection that %s, or was closed",
			       handle, kind == EP_NET_SEND ? "sends" : "receives");
	}
	return (*comm)->failed.code == ncclSuccess ? ncclSuccess : ep_net_comm_failed(*comm);
}

/* A message for a receive of the group at the head. *request NULL: no request is free, or no room. */
static ncclResult_t ep_net_send_to(struct ep_net_comm *c, const struct ep_net_slot_entry *slot,
				   struct ep_net_message *m, void **request)
{
	uint32_t each;

	m->to = &slot[m->entry];
	m->group = c->groups;
	if (m->size > m->to->size) {
		return ep_fail(ncclInvalidUsage,
			       "%u bytes with tag %d are sent to %s, whose receive has room "
			       "for %u: both ends must mean the same message",
			       m->size, m->to->tag, c->peer, m->to->size);
	}
	m->parts = ep_net_parts(c, m->size, &each);
	if (!ep_net_has_room(c, m->parts)) {
		return ep_net_progress(c);
	}
	m->request = ep_net_request_new(c);
	if (m->request == EP_NET_NO_REQUEST) {
		return ep_net_progress(c);
	}
	c->request[m->request].left = m->parts;
	c->request[m->request].size[0] = m->size;
	EP_CHECK(ep_net_message_post(c, m, each));
	*request = ep_net_request_handle_of(c, m->request);
	c->matched |= 1u << m->entry;
	if (c->matched == (1u << slot[0].n) - 1) {
		c->matched = 0;
		c->groups++;
	}
	return ncclSuccess;
}

ncclResult_t ep_net_isend(void *send_comm, void *data, size_t size, int tag, void *mr,
			  void **request)
{
	const struct ep_net_slot_entry *slot;
	const struct ep_net_mr *region = NULL;
	struct ep_net_message m = { .data = (uintptr_t)data };
	struct ep_net_comm *c;

	*request = NULL;
	EP_CHECK(ep_net_comm_get(EP_NET_SEND, send_comm, &c));
	if (size > EP_NET_MAX_BYTES) {
		return ep_fail(ncclInvalidArgument,
			       "a message of %zu bytes cannot be sent, the limit is %u", size,
			       EP_NET_MAX_BYTES);
	}
	if (size) {
		EP_CHECK(ep_net_mr_check(c, mr, data, size, &region));
		m.lkey = region->lkey;
	}
	m.size = (uint32_t)size;
	EP_CHECK(ep_net_slot_get(c, &slot));
	m.entry = slot ? ep_net_match(c, slot, tag) : 0;
	if (!slot || m.entry == slot[0].n) {
		return ep_net_progress(c);
	}
	return ep_net_send_to(c, slot, &m, request);
}

ncclResult_t ep_net_test(void *request, int *done, int *sizes)
{
	uint32_t i = ep_net_request_number(request);
	struct ep_net_request *r = NULL;
	struct ep_net_comm *c = NULL;
	void *handle;

	*done = 0;
	if (ep_net_kind_of(request) == EP_NET_REQUEST) {
		c = ep_net_handle_at(ep_net_request_comm(request), &handle);
	}
	if (c && (ep_net_kind_of(handle) == EP_NET_SEND || ep_net_kind_of(handle) == EP_NET_RECV) &&
	    i < c->nrequests && c->request[i].use == ep_net_request_use(request) &&
	    c->request[i].use & 1) {
		r = &c->request[i];
	}
	if (!r) {
		return ep_fail(ncclInvalidArgument,
			       "%p is no request, or one that was tested to its end", request);
	}
	if (r->left && c->failed.code == ncclSuccess) {
		EP_CHECK(ep_net_progress(c));
	}
	if (r->left) {
		return c->failed.code == ncclSuccess ? ncclSuccess : ep_net_comm_failed(c);
	}
	*done = 1;
	for (uint32_t k = 0; sizes && k < (c->sender ? 1 : r->n); k++) {
		sizes[k] = (int)r->size[k];
	}
	ep_net_request_free(c, i);
	return ncclSuccess;
}
