/* SPDX-License-Identifier: Apache-2.0 */
/* Sending, and the end of requests of either kind. */
#include "core/log.h"
#include "net/p2p/fail.h"
#include "net/p2p/part.h"
#include "net/p2p/progress.h"
#include "net/p2p/request.h"
#include "net/p2p/send.h"

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

/* ---- its parts ---- */

/* Over how many queue pairs a message goes, and how much over each but the last. */
static void ep_net_divide(const struct ep_net_comm *c, struct ep_net_message *message)
{
	uint32_t paths = c->split ? c->nopen : message->size > EP_NET_ONE_PATH ? c->nopen_paths : 1;

	message->parts = 1;
	message->each = message->size;
	if (paths > 1 && message->size > EP_NET_PART) {
		message->parts =
			(uint32_t)ep_min_u64(paths, ep_ceil_div(message->size, EP_NET_PART));
		message->each = (uint32_t)ep_round_up(ep_ceil_div(message->size, message->parts),
						      EP_NET_PART);
		message->parts = ep_ceil_div(message->size, message->each);
	}
}

static bool ep_net_has_room(const struct ep_net_comm *c, uint32_t parts)
{
	for (uint32_t i = 0; c->nopen && i < parts; i++) {
		if (c->qp[c->open_qp[(c->next_open + i) % c->nopen]].room < EP_NET_PART_WR) {
			return false;
		}
	}
	return c->nopen && c->free != EP_NET_NO_REQUEST;
}

static ncclResult_t ep_net_message_post(struct ep_net_comm *c, const struct ep_net_message *message)
{
	for (uint32_t i = 0; i < message->parts; i++) {
		uint32_t qp = c->open_qp[c->next_open];

		c->next_open = (c->next_open + 1) % c->nopen;
		EP_CHECK(ep_net_part_post(c, message, qp, i));
	}
	return ncclSuccess;
}

/* ---- for NCCL ---- */

/* A message for a receive of the group at the head. *request NULL: no request is free, or no room. */
static ncclResult_t ep_net_send_to(struct ep_net_comm *c, const struct ep_net_slot_entry *slot,
				   struct ep_net_message *message, void **request)
{
	struct ep_net_request *r;

	message->to = &slot[message->entry];
	message->group = c->groups;
	if (message->size > message->to->size) {
		return ep_fail(ncclInvalidUsage,
			       "%u bytes with tag %d are sent to %s, whose receive has room "
			       "for %u: both ends must mean the same message",
			       message->size, message->to->tag, c->peer, message->to->size);
	}
	ep_net_divide(c, message);
	if (!ep_net_has_room(c, message->parts)) {
		c->counts->full++;
		return ep_net_progress(c);
	}
	message->request = ep_net_request_new(c);
	r = &c->request[message->request];
	r->left = message->parts;
	r->size[0] = message->size;
	r->message = *message;
	EP_CHECK(ep_net_message_post(c, message));
	c->counts->messages++;
	c->counts->bytes += message->size;
	*request = ep_net_request_handle_of(c, message->request);
	c->matched |= 1u << message->entry;
	if (c->matched == (1u << slot[0].n) - 1) {
		c->matched = 0;
		c->groups++;
	}
	return ncclSuccess;
}

static ncclResult_t ep_net_send_post(struct ep_net_comm *c, void *data, size_t size, int tag,
				     void *mr, void **request)
{
	const struct ep_net_slot_entry *slot;
	struct ep_net_message m = { .data = (uintptr_t)data, .size = (uint32_t)size };

	if (size) {
		EP_CHECK(ep_net_mr_find(c->nic, mr, data, size, &m.mr));
	}
	EP_CHECK(ep_net_slot_get(c, &slot));
	m.entry = slot ? ep_net_match(c, slot, tag) : 0;
	if (!slot || m.entry == slot[0].n) {
		c->counts->early++;
		return ep_net_progress(c);
	}
	return ep_net_send_to(c, slot, &m, request);
}

static ncclResult_t ep_net_slot_ask(struct ep_net_comm *c, struct ep_net_asked *asked)
{
	const struct ep_net_slot_entry *slot;

	EP_CHECK(ep_net_slot_get(c, &slot));
	if (!slot) {
		return ep_net_progress(c);
	}
	slot += __builtin_ctz(~c->matched);
	*asked = (struct ep_net_asked){ slot->tag, slot->size };
	return ncclSuccess;
}

ncclResult_t ep_net_send_asked(void *send_comm, struct ep_net_asked *asked)
{
	struct ep_net_comm *c = ep_net_handle_get(EP_NET_SEND, send_comm);
	ncclResult_t result;

	*asked = (struct ep_net_asked){ 0, 0 };
	ep_net_enter(c);
	result = c->failed.code == ncclSuccess ? ep_net_slot_ask(c, asked) : ep_net_comm_failed(c);
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
	result = c->failed.code == ncclSuccess ? ep_net_send_post(c, data, size, tag, mr, request)
					       : ep_net_comm_failed(c);
	ep_net_leave(c);
	return result;
}

static ncclResult_t ep_net_test_one(struct ep_net_comm *c, uint32_t i, int *done, int *sizes)
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
	result = ep_net_request_is(request, c->request[i].use) ? ep_net_test_one(c, i, done, sizes)
							       : ep_net_request_fail(request);
	ep_net_leave(c);
	return result;
}
