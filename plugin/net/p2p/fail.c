/* SPDX-License-Identifier: Apache-2.0 */
/* Describes a connection's failure in one line. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "core/log.h"
#include "net/base/net_queue.h"
#include "net/p2p/comm.h"

ncclResult_t ep_net_comm_failed(struct ep_net_comm *c)
{
	return ep_fail_again(&c->failed);
}

const char *ep_net_qp_print(const struct ep_net_comm *c, uint32_t qp, char text[EP_NET_WHICH])
{
	const struct ep_net_qp *q = &c->qp[qp];
	const struct ep_nic_end *end = &c->local[q->local_port].end,
				*remote = &c->remote[q->remote_port].end;
	char mine[EP_GID_TEXT], theirs[EP_GID_TEXT];

	snprintf(text, EP_NET_WHICH, "%s:%d QP 0x%06x (%s) %s %s %s:%u QP 0x%06x (%s)", end->name,
		 end->port, q->qp->qp_num, ep_gid_print(end->gid, mine), c->sender ? "to" : "from",
		 c->peer, remote->name, remote->port, q->remote_qpn,
		 ep_gid_print(remote->gid, theirs));
	return text;
}

const char *ep_net_port_print(const struct ep_net_local *port)
{
	return __atomic_load_n(&port->dev->broken, __ATOMIC_RELAXED)
		       ? "; the device reports a fatal error"
	       : __atomic_load_n(&port->dev->port_down, __ATOMIC_RELAXED)
		       ? "; the port is down: see the cable and the switch"
		       : "";
}

ncclResult_t ep_net_comm_fail(struct ep_net_comm *c, ncclResult_t code, uint32_t qp,
			      const char *fmt, ...)
{
	char what[280], which[EP_NET_WHICH];
	va_list args;

	if (c->failed.code != ncclSuccess) {
		return ep_net_comm_failed(c);
	}
	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	code = ep_fail(code, "%s: %s%s", ep_net_qp_print(c, qp, which), what,
		       ep_net_port_print(&c->local[c->qp[qp].local_port]));
	ep_error_get(NULL, &c->failed);
	c->counts->failed = (uint32_t)code;
	return code;
}

ncclResult_t ep_net_comm_fail_wc(struct ep_net_comm *c, const struct ibv_wc *wc)
{
	uint32_t qp = EP_NET_WR_QP(wc->wr_id);
	char what[EP_NET_WC_TEXT];

	qp = qp < c->nqps ? qp : qp - EP_NET_WR_FLUSH_QP(0);
	return ep_net_comm_fail(c, ncclRemoteError, qp < c->nqps ? qp : 0, "%s",
				ep_net_wc_print(wc, what));
}
