/* SPDX-License-Identifier: Apache-2.0 */
/* What is wrong with a connection, in one line. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include "core/log.h"
#include "net/comm.h"
#include "rdma/syndrome.h"

ncclResult_t ep_net_comm_failed(struct ep_net_comm *c)
{
	return ep_fail_again(&c->failed);
}

ncclResult_t ep_net_comm_fail(struct ep_net_comm *c, ncclResult_t code, uint32_t qp,
			      const char *fmt, ...)
{
	char mine[EP_GID_TEXT], theirs[EP_GID_TEXT], what[280];
	bool down = __atomic_load_n(&c->dev->port_down, __ATOMIC_RELAXED);
	bool broken = __atomic_load_n(&c->dev->broken, __ATOMIC_RELAXED);
	va_list args;

	if (c->failed.code != ncclSuccess) {
		return ep_net_comm_failed(c);
	}
	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	code = ep_fail(code, "%s:%d QP 0x%06x (%s) %s %s %s:%u QP 0x%06x (%s): %s%s", c->end.name,
		       c->end.port, c->qp[qp].qp->qp_num, ep_gid_print(c->end.gid, mine),
		       c->sender ? "to" : "from", c->peer, c->remote_end.name, c->remote_end.port,
		       c->qp[qp].remote, ep_gid_print(c->remote_end.gid, theirs), what,
		       broken ? "; the device reports a fatal error"
		       : down ? "; the port is down: see the cable and the switch"
			      : "");
	ep_error_get(NULL, &c->failed);
	return code;
}

ncclResult_t ep_net_comm_fail_wc(struct ep_net_comm *c, const struct ibv_wc *wc)
{
	const struct ep_syndrome *s = ep_syndrome_find(ep_syndrome_of_status(wc->status));
	uint32_t qp = EP_NET_WR_QP(wc->wr_id);

	return ep_net_comm_fail(c, ncclRemoteError, qp < c->nqps ? qp : 0,
				"%s (status %d, vendor 0x%02x)%s%s",
				s ? s->text : "unknown failure", (int)wc->status, wc->vendor_err,
				s && s->next ? ": " : "", s && s->next ? s->next : "");
}
