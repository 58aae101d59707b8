/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks after the paths of a connection: acts on what poll.c has noted, receives control messages, sees
 * how ports are.
 */
#include <string.h>
#include "core/log.h"
#include "net/base/async.h"
#include "net/p2p/comm_qp.h"
#include "net/p2p/fail.h"
#include "net/p2p/flush.h"
#include "net/p2p/net_path.h"
#include "net/p2p/net_paths.h"
#include "net/p2p/recovery.h"

#define EP_NET_LOST_NS 10000000000ull /* for another way, where no path is open */

/* ---- failures ---- */

/*
 * Whether another pair of ports may do where no path does: this end has a port that is up, and paths
 * have failed because a port is down, here or there. Or one is on its way back.
 */
static bool ep_net_other_path(const struct ep_net_comm *c)
{
	bool up = false, down = false;

	for (uint32_t i = 0; i < c->nlocals; i++) {
		bool good = ep_net_dev_up(c->local[i].dev, 0);

		up |= good;
		down |= !good;
	}
	for (uint32_t i = 0; i < c->npaths; i++) {
		down |= c->path[i].remote_down || c->path[i].state >= EP_NET_PATH_READY;
	}
	return up && down;
}

static ncclResult_t ep_net_path_failed(struct ep_net_comm *c, uint32_t path,
				       const struct ibv_wc *wc)
{
	char why[EP_NET_WC_TEXT];

	if (c->failed.code != ncclSuccess) {
		return ep_net_comm_failed(c);
	}
	if (!ep_net_path_lives(c, path)) {
		return ncclSuccess;
	}
	if (c->nopen_paths == 1 && ep_net_path_is_open(c, path) && !ep_net_other_path(c)) {
		return wc ? ep_net_comm_fail_wc(c, wc)
			  : ep_net_comm_fail(c, ncclSystemError, path, "the connection is lost");
	}
	return ep_net_path_close(c, path, EP_NET_WHY_FAILED,
				 wc ? ep_net_wc_print(wc, why) : "it is given up");
}

/* Both ends know now that there is a path there and back. */
static ncclResult_t ep_net_path_prove(struct ep_net_comm *c, uint32_t path)
{
	struct ep_net_path *r = &c->path[path];
	struct ep_net_ctrl_msg msg = { 0 };

	if (r->state != EP_NET_PATH_PROBING) {
		return ncclSuccess;
	}
	r->proved = true;
	return ep_net_ctrl_send(c, EP_NET_PROVED, path, &msg);
}

ncclResult_t ep_net_paths_act(struct ep_net_comm *c)
{
	/* (who closes a path takes up completions of others) */
	while (c->due) {
		c->due = false;
		for (uint32_t i = 0; i < c->npaths; i++) {
			struct ep_net_path *r = &c->path[i];

			if (r->failed) {
				struct ibv_wc wc = r->failure;

				r->failed = false;
				EP_CHECK(ep_net_path_failed(c, i, &wc));
			}
			if (r->probed) {
				r->probed = false;
				EP_CHECK(ep_net_path_prove(c, i));
			}
		}
	}
	return ncclSuccess;
}

/* ---- control messages of the other end ---- */

static ncclResult_t ep_net_nonsense(struct ep_net_comm *c, const struct ep_net_ctrl_msg *msg)
{
	return ep_net_comm_fail(
		c, ncclRemoteError, 0,
		"the peer sends a control message that makes no sense (0x%08x, %u of path %u of %u, "
		"%u)",
		msg->magic, msg->kind, msg->path, c->npaths, msg->generation);
}

/* The other end has taken back an offer: so does this end, which has not made its own yet. */
static ncclResult_t ep_net_offer_ends(struct ep_net_comm *c, const struct ep_net_ctrl_msg *msg)
{
	struct ep_net_path *r = &c->path[msg->path];

	if (!r->offered) {
		return ep_net_nonsense(c, msg);
	}
	r->offered = false;
	r->generation++;
	for (uint32_t i = msg->path; i < c->nqps; i += c->npaths) {
		c->qp[i].received = 0;
	}
	return ep_net_path_send_closed(c, msg->path, EP_NET_WHY_FAILED);
}

static ncclResult_t ep_net_closed_receive(struct ep_net_comm *c, const struct ep_net_ctrl_msg *msg)
{
	struct ep_net_path *r = &c->path[msg->path];

	r->remote_down = msg->why == EP_NET_WHY_DOWN;
	if (r->state == EP_NET_PATH_CLOSED) {
		return ep_net_offer_ends(c, msg);
	}
	if (r->remote_closed) {
		return ep_net_nonsense(c, msg);
	}
	r->remote_closed = true;
	memcpy(r->received, msg->number, sizeof(r->received));
	if (msg->why == EP_NET_WHY_LAST) {
		/* Nothing more goes to it, so that nothing has to be waited for here. */
		c->leaving = true;
		r->state = EP_NET_PATH_CLOSING;
		r->drained = true;
		ep_net_qps_choose(c);
		return ep_net_path_settle(c, msg->path);
	}
	if (r->state != EP_NET_PATH_CLOSING) {
		bool moves = msg->why == EP_NET_WHY_MOVES;

		for (uint32_t i = 0; i < c->nlocals; i++) {
			ep_net_dev_events(c->local[i].dev);
		}
		EP_CHECK(ep_net_path_close(
			c, msg->path, moves ? EP_NET_WHY_MOVES : EP_NET_WHY_FAILED,
			moves ? "by the peer" : "the peer has noticed a failure"));
	}
	EP_CHECK(ep_net_path_settle(c, msg->path));
	return c->nopen_paths || ep_net_other_path(c)
		       ? ncclSuccess
		       : ep_net_comm_fail(c, ncclRemoteError, msg->path,
					  "all ports of the NIC or of the peer's have failed");
}

static ncclResult_t ep_net_ctrl_take(struct ep_net_comm *c, const struct ep_net_ctrl_msg *msg)
{
	const struct ep_net_path *r = &c->path[msg->path % c->npaths];

	/* For a generation that both have closed nothing more is sent. */
	if (msg->magic != EP_NET_CTRL_MAGIC || msg->path >= c->npaths ||
	    msg->kind < EP_NET_CLOSED || msg->kind > EP_NET_PROVED ||
	    msg->generation != (uint16_t)(r->generation + (r->state == EP_NET_PATH_CLOSED))) {
		return ep_net_nonsense(c, msg);
	}
	return msg->kind == EP_NET_CLOSED ? ep_net_closed_receive(c, msg)
					  : ep_net_recovery_receive(c, msg);
}

/* ---- looking after them ---- */

static ncclResult_t ep_net_ports_check(struct ep_net_comm *c, uint64_t now)
{
	for (uint32_t i = 0; i < c->nlocals; i++) {
		if (__atomic_load_n(&c->local[i].dev->broken, __ATOMIC_RELAXED)) {
			ep_net_flushes_give_up(c, i);
		}
	}
	for (uint32_t i = 0; i < c->npaths; i++) {
		const struct ep_net_dev *dev = c->local[c->path[i].local_port].dev;

		if (__atomic_load_n(&dev->broken, __ATOMIC_RELAXED) ||
		    (ep_net_dev_down(dev) && (c->nopen_paths > 1 || ep_net_other_path(c)))) {
			EP_CHECK(ep_net_path_failed(c, i, NULL));
		}
		if (c->path[i].state == EP_NET_PATH_CLOSING && !c->gone &&
		    now > c->path[i].since + ep_net_setup_ns()) {
			return ep_net_comm_fail(c, ncclRemoteError, i,
						"waited %llu ms for the peer to close its end of a "
						"path that has failed: is its process stuck? "
						"(NCCL_EP_BOOTSTRAP_TIMEOUT_MS)",
						(unsigned long long)(ep_net_setup_ns() / 1000000));
		}
	}
	if (c->lost && now > c->lost + EP_NET_LOST_NS && !c->leaving && !c->gone) {
		return ep_net_comm_fail(c, ncclRemoteError, 0,
					"no two ports have found a path to each other for %llu ms",
					EP_NET_LOST_NS / 1000000);
	}
	return ncclSuccess;
}

ncclResult_t ep_net_paths_check(struct ep_net_comm *c)
{
	enum ep_net_io_state state = EP_NET_IO_AGAIN;
	struct ep_net_ctrl_msg msg;

	while (!c->gone && (state = ep_net_ctrl_recv(c, &msg)) == EP_NET_IO_DONE) {
		EP_CHECK(ep_net_ctrl_take(c, &msg));
	}
	if (!c->gone && state != EP_NET_IO_AGAIN) {
		c->gone = ep_now_ns();
	}
	EP_CHECK(ep_net_ports_check(c, ep_now_ns()));
	EP_CHECK(ep_net_paths_act(c));
	if (!c->gone) {
		if (!c->leaving) {
			EP_CHECK(ep_net_recovery_check(c, ep_now_ns()));
			EP_CHECK(ep_net_paths_act(c));
		}
		(void)ep_net_ctrl_flush(c);
	}
	return ncclSuccess;
}

/* ---- while NCCL does not call ---- */

static void ep_net_paths_async(const struct ep_net_async *a, void *object)
{
	struct ep_net_comm *c = object;

	pthread_mutex_lock(&c->lock);
	for (uint32_t i = 0; i < c->nlocals; i++) {
		ep_net_dev_events(c->local[i].dev);
	}
	if (c->failed.code == ncclSuccess) {
		(void)ep_net_paths_check(c); /* the next call returns what fails */
	}
	if (c->failed.code != ncclSuccess || c->gone) {
		ep_net_async_skip(a, c->fd);
	}
	pthread_mutex_unlock(&c->lock);
}

ncclResult_t ep_net_paths_async_add(struct ep_net_comm *c)
{
	if (c->path) {
		EP_CHECK(ep_net_async_add(c->handle, c->fd, ep_net_paths_async));
		c->async = true;
	}
	return ncclSuccess;
}

/* ---- the end ---- */

void ep_net_paths_close(struct ep_net_comm *c)
{
	if (c->async) {
		ep_net_async_remove(c->fd);
		c->async = false;
	}
	if (c->fd < 0 || !c->handle) {
		return; /* it was never made */
	}
	/* (what the peer has sent and nobody has read would make the kernel reset what is sent now) */
	if (c->failed.code == ncclSuccess) {
		(void)ep_net_paths_check(c);
	}
	for (uint32_t i = 0; i < c->npaths && !c->sender && c->failed.code == ncclSuccess; i++) {
		if (ep_net_path_lives(c, i)) {
			c->path[i].state = EP_NET_PATH_CLOSING;
			if (ep_net_path_drain(c, i) == ncclSuccess) {
				(void)ep_net_path_send_closed(c, i, EP_NET_WHY_LAST);
			}
		}
	}
}
