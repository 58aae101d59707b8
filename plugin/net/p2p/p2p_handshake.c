/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include "net/p2p/p2p_handshake.h"

static void ep_net_head_fill(uint64_t nonce, size_t bytes, struct ep_net_head *head)
{
	*head = (struct ep_net_head){ .magic = EP_NET_MAGIC,
				      .version = EP_NET_VERSION,
				      .bytes = (uint32_t)bytes,
				      .nonce = nonce };
}

static void ep_net_ports_fill(const struct ep_net_comm *c, struct ep_net_remote *port,
			      uint32_t *qpn)
{
	for (uint32_t i = 0; i < c->nlocals; i++) {
		port[i].end = c->local[i].end;
		port[i].ece = c->local[i].ece;
		port[i].rkey = c->local[i].shared_mr->rkey;
	}
	for (uint32_t i = 0; i < c->nqps; i++) {
		qpn[i] = c->qp[i].qp->qp_num;
	}
}

void ep_net_connect_req_fill(const struct ep_net_comm *c, uint64_t nonce,
			     struct ep_net_connect_req *req)
{
	memset(req, 0, sizeof(*req));
	ep_net_head_fill(nonce, sizeof(*req), &req->head);
	req->shared = (uintptr_t)c->shared;
	req->nqps = c->nqps;
	req->tc = c->local[0].tc;
	req->sl = c->local[0].sl;
	req->ports = c->nlocals;
	req->rank = c->rank;
	ep_net_ports_fill(c, req->port, req->qpn);
}

void ep_net_connect_rep_fill(const struct ep_net_comm *c, uint64_t nonce,
			     struct ep_net_connect_rep *rep)
{
	memset(rep, 0, sizeof(*rep));
	ep_net_head_fill(nonce, sizeof(*rep), &rep->head);
	rep->shared = (uintptr_t)c->shared;
	rep->ports = c->nlocals;
	ep_net_ports_fill(c, rep->port, rep->qpn);
}

void ep_net_connect_rep_refuse(ncclResult_t code, uint64_t nonce, struct ep_net_connect_rep *rep)
{
	struct ep_error error;

	ep_error_get(NULL, &error);
	memset(rep, 0, sizeof(*rep));
	ep_net_head_fill(nonce, sizeof(*rep), &rep->head);
	rep->code = code;
	snprintf(rep->text, sizeof(rep->text), "%.*s", EP_NET_TEXT - 1, error.text);
}

ncclResult_t ep_net_peer_check(const struct ep_net_peer *peer, uint32_t npaths, const char *who)
{
	if (peer->nremotes < 1 || peer->nremotes > EP_NET_NIC_PORTS || peer->nqps % npaths != 0) {
		return ep_fail(ncclRemoteError,
			       "%s sends impossible values (%u ports, %u queue pairs on %u "
			       "paths): do all ranks use the same plugin?",
			       who, peer->nremotes, peer->nqps, npaths);
	}
	for (uint32_t i = 0; i < peer->nremotes; i++) {
		EP_CHECK(ep_net_end_check(&peer->remote[i].end, peer->qpn, peer->nqps, who));
	}
	return ncclSuccess;
}
