/* SPDX-License-Identifier: Apache-2.0 */
/* Requests, and what calls of NCCL name. */
#include "core/log.h"
#include "net/p2p/request.h"

uint32_t ep_net_request_new(struct ep_net_comm *c)
{
	uint32_t i = c->free;

	if (i != EP_NET_NO_REQUEST) {
		struct ep_net_request *r = &c->request[i];

		c->free = r->next;
		r->use = ep_net_use_next(r->use);
		r->n = 0;
		r->left = 0;
		c->pending++;
	}
	return i;
}

void ep_net_request_free(struct ep_net_comm *c, uint32_t i)
{
	struct ep_net_request *r = &c->request[i];

	r->use = ep_net_use_next(r->use);
	r->next = c->free;
	c->free = i;
	c->pending--;
	c->nflushes -= !c->sender && r->n == 0;
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
