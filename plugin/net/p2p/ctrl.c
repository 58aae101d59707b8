/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include "net/p2p/ctrl.h"
#include "net/p2p/fail.h"

ncclResult_t ep_net_ctrl_send(struct ep_net_comm *c, enum ep_net_ctrl_kind kind, uint32_t path,
			      struct ep_net_ctrl_msg *msg)
{
	struct ep_net_ctrl *t = c->ctrl;

	msg->magic = EP_NET_CTRL_MAGIC;
	msg->kind = kind;
	msg->path = (uint16_t)path;
	msg->generation = c->path[path].generation;

	if (t->nout - t->sent == EP_NET_CTRL_MSGS) {
		return ep_net_comm_fail(c, ncclRemoteError, path,
					"the peer receives none of %u changes of paths: is its "
					"process stuck?",
					EP_NET_CTRL_MSGS);
	}
	t->out[t->nout++ % EP_NET_CTRL_MSGS] = *msg;
	(void)ep_net_ctrl_flush(c); /* what is not sent now, or fails, is looked after later */
	return ncclSuccess;
}

enum ep_net_io_state ep_net_ctrl_flush(struct ep_net_comm *c)
{
	struct ep_net_ctrl *t = c->ctrl;

	while (t->sent < t->nout) {
		enum ep_net_io_state state = ep_net_put(c->fd, &t->out[t->sent % EP_NET_CTRL_MSGS],
							sizeof(t->out[0]), &t->out_at);

		if (state != EP_NET_IO_DONE) {
			return state;
		}
		t->sent++;
		t->out_at = 0;
	}
	return EP_NET_IO_DONE;
}

enum ep_net_io_state ep_net_ctrl_recv(struct ep_net_comm *c, struct ep_net_ctrl_msg *msg)
{
	struct ep_net_ctrl *t = c->ctrl;
	enum ep_net_io_state state = ep_net_take(c->fd, &t->in, sizeof(t->in), &t->in_at);

	if (state == EP_NET_IO_DONE) {
		*msg = t->in;
		t->in_at = 0;
	}
	return state;
}
