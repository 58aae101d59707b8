/* SPDX-License-Identifier: Apache-2.0 */
/* What NCCL calls while a connection works: progress, sends, receives, tests. */
#include <string.h>
#include "net/p2p.h"

/*
 * A NIC reports a dead peer only to a sender. An end that has closed its end in order has nothing
 * under way, so that what is under way here will never end.
 */
static ncclResult_t poll_slow(struct ep_net_comm *c)
{
	uint64_t now = ep_now_ns();

	if (now - c->watch.checked < EP_NET_CHECK_NS) {
		return ncclSuccess;
	}
	c->watch.checked = now;
	for (uint32_t i = 0; i < c->nlocals; i++) {
		ep_net_dev_events(c->local[i].dev);
		/*
		 * (a device that has failed is what its paths fail with: no overrun is the cause)
		 */
		if (__atomic_load_n(&c->local[i].cq_lost, __ATOMIC_RELAXED) &&
		    !ep_net_dev_broken(c->local[i].dev)) {
			return ep_net_comm_fail(c, ncclSystemError, ep_net_port_qp(c, i),
						"the NIC has lost completions: its queue has "
						"overrun or failed");
		}
	}
	if (c->path) {
		EP_CHECK(ep_net_paths_check(c));
	} else if (ep_net_dev_broken(c->local[0].dev)) {
		return ep_net_comm_fail(c, ncclSystemError, 0, "the connection is lost");
	} else if (!c->watch.gone && ep_net_gone(c->fd)) {
		c->watch.gone = now;
	}
	/* (it may have been found gone since `now`) */
	if (c->watch.gone && now >= c->watch.gone + EP_NET_GRACE_NS) {
		return ep_net_comm_fail(c, ncclRemoteError, 0,
					"the peer has closed the connection or has ended, %u "
					"requests are under way here: see its log",
					c->pool.pending);
	}
	return ncclSuccess;
}

ncclResult_t ep_net_progress(struct ep_net_comm *c)
{
	bool any = false, some;

	c->counts->polls++;
	for (uint32_t i = 0; i < c->nlocals; i++) {
		EP_CHECK(ep_net_poll(c, &c->local[i], &some));
		any |= some;
	}
	if (c->paths.due) {
		EP_CHECK(ep_net_paths_act(c));
	}
	if (c->again.first != c->again.last) {
		EP_CHECK(ep_net_parts_resend(c));
	}
	if (c->flushes.first != EP_NET_NO_REQUEST) {
		EP_CHECK(ep_net_flushes_push(c));
	}
	if (c->slots.posted != c->groups.n && !c->sender) {
		EP_CHECK(ep_net_slots_post(c));
	}
	/* (a port that comes back is not waited for until there is nothing to do) */
	return (any && !c->path) || ++c->watch.idle % EP_NET_IDLE ? ncclSuccess : poll_slow(c);
}

/* ---- which receive a message is for ---- */

/* The slot of the next group, if all of it is there. */
static ncclResult_t slot_get(struct ep_net_comm *c, const struct ep_net_slot_entry **slot)
{
	const struct ep_net_slot_entry *e = c->shared->slot[c->groups.n % EP_NET_SLOTS];
	uint64_t seq = c->groups.n + 1;

	*slot = NULL;
	if (__atomic_load_n(&e[0].seq, __ATOMIC_ACQUIRE) != seq) {
		return ncclSuccess;
	}
	if (e[0].n < 1 || e[0].n > EP_NET_MAX_RECVS) {
		return ep_net_comm_fail(c, ncclRemoteError, 0,
					"the peer claims %u receives in a group, the limit is %d",
					e[0].n, EP_NET_MAX_RECVS);
	}
	for (uint32_t i = 1; i < e[0].n; i++) {
		if (__atomic_load_n(&e[i].seq, __ATOMIC_ACQUIRE) != seq) {
			return ncclSuccess;
		}
	}
	*slot = e;
	return ncclSuccess;
}

/*
 * The first receive of the group with this tag that has no message; the group's number of them:
 * none.
 */
static uint32_t match(const struct ep_net_comm *c, const struct ep_net_slot_entry *slot, int tag)
{
	uint32_t i = 0;

	while (i < slot[0].n && (c->groups.matched >> i & 1 || slot[i].tag != tag)) {
		i++;
	}
	return i;
}

/* ---- for NCCL ---- */

/*
 * A message for a receive of the group at the head. *request NULL: no request is free, or no room.
 */
static ncclResult_t send_to(struct ep_net_comm *c, const struct ep_net_slot_entry *slot,
			    struct ep_net_message *message, void **request)
{
	struct ep_net_request *r;

	message->to = &slot[message->entry];
	message->group = c->groups.n;
	if (message->size > message->to->size) {
		return ep_fail(ncclInvalidUsage,
			       "%u bytes with tag %d are sent to %s, whose receive has room "
			       "for %u: both ends must mean the same message",
			       message->size, message->to->tag, c->peer, message->to->size);
	}
	if (!ep_net_message_divide(c, message) || c->pool.free == EP_NET_NO_REQUEST) {
		c->counts->full++;
		return ep_net_progress(c);
	}
	message->request = ep_net_request_new(c, 0);
	r = &c->request[message->request];
	r->left = message->parts;
	r->size[0] = message->size;
	r->message = *message;
	EP_CHECK(ep_net_message_post(c, message));
	c->counts->messages++;
	c->counts->bytes += message->size;
	*request = ep_net_request_handle_of(c, message->request);
	c->groups.matched |= 1u << message->entry;
	if (c->groups.matched == (1u << slot[0].n) - 1) {
		c->groups.matched = 0;
		c->groups.n++;
	}
	return ncclSuccess;
}

static ncclResult_t send_post(struct ep_net_comm *c, void *data, size_t size, int tag, void *mr,
			      void **request)
{
	const struct ep_net_slot_entry *slot;
	struct ep_net_message m = { .data = (uintptr_t)data, .size = (uint32_t)size };

	if (size) {
		EP_CHECK(ep_net_mr_find(c->nic, mr, data, size, &m.mr));
	}
	EP_CHECK(slot_get(c, &slot));
	m.entry = slot ? match(c, slot, tag) : 0;
	if (!slot || m.entry == slot[0].n) {
		c->counts->early++;
		return ep_net_progress(c);
	}
	return send_to(c, slot, &m, request);
}

static ncclResult_t slot_ask(struct ep_net_comm *c, struct ep_net_asked *asked)
{
	const struct ep_net_slot_entry *slot;

	EP_CHECK(slot_get(c, &slot));
	if (!slot) {
		return ep_net_progress(c);
	}
	slot += __builtin_ctz(~c->groups.matched);
	*asked = (struct ep_net_asked){ slot->tag, slot->size };
	return ncclSuccess;
}

ncclResult_t ep_net_send_asked(void *send_comm, struct ep_net_asked *asked)
{
	struct ep_net_comm *c = ep_net_handle_get(EP_NET_SEND, send_comm);
	ncclResult_t result;

	*asked = (struct ep_net_asked){ 0, 0 };
	ep_net_enter(c);
	result = c->failed.code == ncclSuccess ? slot_ask(c, asked) : ep_net_comm_failed(c);
	ep_net_leave(c);
	return result;
}

ncclResult_t ep_net_isend(void *send_comm, void *data, size_t size, int tag, void *mr,
			  void **request)
{
	struct ep_net_comm *c = ep_net_handle_find(EP_NET_SEND, send_comm);
	ncclResult_t result;

	*request = NULL;
	if (!c) {
		return ncclInvalidArgument;
	}
	if (size > EP_NET_MAX_BYTES) {
		return ep_fail(ncclInvalidArgument,
			       "a message of %zu bytes cannot be sent, the limit is %u", size,
			       EP_NET_MAX_BYTES);
	}
	ep_net_enter(c);
	result = c->failed.code == ncclSuccess ? send_post(c, data, size, tag, mr, request)
					       : ep_net_comm_failed(c);
	ep_net_leave(c);
	return result;
}

static ncclResult_t test_one(struct ep_net_comm *c, uint32_t i, int *done, int *sizes)
{
	struct ep_net_request *r = &c->request[i];

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

ncclResult_t ep_net_test(void *request, int *done, int *sizes)
{
	enum ep_net_kind kind;
	struct ep_net_comm *c = ep_net_request_owner(EP_NET_REQUEST, request, &kind);
	uint32_t i = ep_net_request_number(request);
	ncclResult_t result;

	*done = 0;
	if (!c || (kind != EP_NET_SEND && kind != EP_NET_RECV) || i >= c->nrequests) {
		return ep_net_request_fail(request);
	}
	ep_net_enter(c);
	result = ep_net_request_is(request, c->request[i].use) ? test_one(c, i, done, sizes)
							       : ep_net_request_fail(request);
	ep_net_leave(c);
	return result;
}

/* ---- receiving ---- */

/* Whether one more group may be under way. */
static bool recv_room(const struct ep_net_comm *c)
{
	/* The slot's place is free when what was written there before has been taken. */
	return c->groups.open < EP_NET_GROUPS &&
	       c->groups.n - c->slots.acked < EP_NET_SLOTS - EP_NET_SIGNAL_EVERY &&
	       c->groups.request[c->groups.n % EP_NET_SLOTS] == EP_NET_NO_REQUEST &&
	       c->pool.free != EP_NET_NO_REQUEST;
}

static ncclResult_t recv_post(struct ep_net_comm *c, int n, void **data, const size_t *sizes,
			      const int *tags, void **mr, void **request)
{
	const struct ep_net_mr *region[EP_NET_MAX_RECVS] = { NULL };
	struct ep_net_slot_entry *slot;
	struct ep_net_request *r;
	uint32_t i;

	for (int k = 0; k < n; k++) {
		if (sizes[k]) {
			EP_CHECK(ep_net_mr_find(c->nic, mr[k], data[k], sizes[k], &region[k]));
		}
	}
	if (!recv_room(c)) {
		c->counts->full++;
		return ep_net_progress(c);
	}
	i = ep_net_request_new(c, (uint32_t)n);
	r = &c->request[i];
	r->left = (uint32_t)n;
	memset(r->size, 0, sizeof(r->size));
	memset(r->seen, 0, sizeof(r->seen));
	memset(r->done, 0, sizeof(r->done));
	slot = c->shared->slot[c->groups.n % EP_NET_SLOTS];
	for (int k = 0; k < n; k++) {
		r->limit[k] = (uint32_t)ep_min_u64(sizes[k], EP_NET_MAX_BYTES);
		slot[k] = (struct ep_net_slot_entry){ .addr = (uintptr_t)data[k],
						      .size = r->limit[k],
						      .tag = tags[k],
						      .n = (uint32_t)n,
						      .seq = c->groups.n + 1 };
		for (uint32_t p = 0; region[k] && p < c->nlocals; p++) {
			slot[k].rkey[p] = region[k]->rkey[p];
		}
	}
	c->groups.request[c->groups.n % EP_NET_SLOTS] = i;
	c->groups.n++;
	c->groups.open++;
	EP_CHECK(ep_net_slots_post(c));
	*request = ep_net_request_handle_of(c, i);
	return ncclSuccess;
}

ncclResult_t ep_net_irecv(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mr,
			  void **request)
{
	struct ep_net_comm *c;
	ncclResult_t result;

	/* A value that NCCL presets where it needs no report of the end is never left there. */
	*request = NULL;
	EP_CHECK(ep_net_recv_get(recv_comm, n, &c));
	ep_net_enter(c);
	result = c->failed.code == ncclSuccess ? recv_post(c, n, data, sizes, tags, mr, request)
					       : ep_net_comm_failed(c);
	ep_net_leave(c);
	return result;
}
