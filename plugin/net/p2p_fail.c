/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a connection fails: its first error is kept, which names the queue pair, both of its ends and
 * what the device reports. All later calls return it.
 */
#include <stdarg.h>
#include <stdio.h>
#include "net/p2p.h"

ncclResult_t ep_net_comm_failed(struct ep_net_comm *c)
{
	return ep_fail_again(&c->failed);
}

uint32_t ep_net_port_qp(const struct ep_net_comm *c, uint32_t local)
{
	for (uint32_t qp = 0; qp < c->nqps; qp++) {
		if (c->qp[qp].local_port == local) {
			return qp;
		}
	}
	return EP_NET_WR_FLUSH_QP(local);
}

/* Prints a port that no queue pair goes by. */
static const char *idle_print(const struct ep_net_comm *c, uint32_t local, char text[EP_NET_WHICH])
{
	const struct ep_nic_end *end = &c->local[local].end;
	char gid[EP_GID_TEXT];

	snprintf(text, EP_NET_WHICH, "%s:%d (%s) %s %s, by which no path goes", end->name,
		 end->port, ep_gid_print(end->gid, gid), c->sender ? "to" : "from", c->peer);
	return text;
}

const char *ep_net_qp_print(const struct ep_net_comm *c, uint32_t qp, char text[EP_NET_WHICH])
{
	const struct ep_net_qp *q = &c->qp[qp];
	const struct ep_net_which which = { .end = &c->local[q->local_port].end,
					    .remote = &c->remote[q->remote_port].end,
					    .qpn = q->qp ? q->qp->qp_num : 0,
					    .remote_qpn = q->remote_qpn,
					    .toward = c->sender ? "to" : "from",
					    .peer = c->peer };

	return ep_net_which_print(&which, text);
}

ncclResult_t ep_net_comm_fail(struct ep_net_comm *c, ncclResult_t code, uint32_t qp,
			      const char *fmt, ...)
{
	uint32_t local = qp < c->nqps ? c->qp[qp].local_port : qp - EP_NET_WR_FLUSH_QP(0);
	char what[280], which[EP_NET_WHICH];
	va_list args;

	if (c->failed.code != ncclSuccess) {
		return ep_net_comm_failed(c);
	}
	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	code = ep_fail(code, "%s: %s%s",
		       qp < c->nqps ? ep_net_qp_print(c, qp, which) : idle_print(c, local, which),
		       what, ep_net_dev_print(c->local[local].dev));
	ep_error_get(NULL, &c->failed);
	c->counts->failed = (uint32_t)code;
	return code;
}

ncclResult_t ep_net_comm_fail_wc(struct ep_net_comm *c, const struct ibv_wc *wc)
{
	uint32_t qp = EP_NET_WR_QP(wc->wr_id);
	char what[EP_NET_WC_TEXT];

	qp = qp < c->nqps ? qp : ep_net_port_qp(c, qp - EP_NET_WR_FLUSH_QP(0));
	return ep_net_comm_fail(c, ncclRemoteError, qp, "%s", ep_net_wc_print(wc, what));
}
