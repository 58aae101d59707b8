/* SPDX-License-Identifier: Apache-2.0 */
/* Receiving. */
#include <string.h>
#include "core/log.h"
#include "net/p2p/fail.h"
#include "net/p2p/progress.h"
#include "net/p2p/recv.h"
#include "net/p2p/request.h"
#include "net/p2p/slot.h"

/* Whether one more group may be under way. */
static bool ep_net_recv_room(const struct ep_net_comm *c)
{
	/* The slot's place is free when what was written there before has been taken. */
	return c->open < EP_NET_GROUPS &&
	       c->groups - c->slots_acked < EP_NET_SLOTS - EP_NET_SIGNAL_EVERY &&
	       c->slot_request[c->groups % EP_NET_SLOTS] == EP_NET_NO_REQUEST &&
	       c->free != EP_NET_NO_REQUEST;
}

static ncclResult_t ep_net_recv_post(struct ep_net_comm *c, int n, void **data, const size_t *sizes,
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
	if (!ep_net_recv_room(c)) {
		c->counts->full++;
		return ep_net_progress(c);
	}
	i = ep_net_request_new(c);
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
						      .tag = tags[k],
						      .n = (uint32_t)n,
						      .seq = c->groups + 1 };
		for (uint32_t p = 0; region[k] && p < c->nlocals; p++) {
			slot[k].rkey[p] = region[k]->rkey[p];
		}
	}
	c->slot_request[c->groups % EP_NET_SLOTS] = i;
	c->groups++;
	c->open++;
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
	result = c->failed.code == ncclSuccess
			 ? ep_net_recv_post(c, n, data, sizes, tags, mr, request)
			 : ep_net_comm_failed(c);
	ep_net_leave(c);
	return result;
}
