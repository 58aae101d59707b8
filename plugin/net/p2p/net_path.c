/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Closes and repairs a path that fails, while the connection has others.
 *
 * A sender cannot know which of its writes have reached memory: it misses the acknowledgements, not
 * only what they acknowledge. If it wrote again at once, a message could come twice, and a packet
 * that was late could change memory which its receiver had long used for something else. So
 *
 *   1. an end that notices the failure, or is notified of it, moves its queue pairs of the path to the error
 *      state: its NIC drops what comes for them from then on. The receiver takes up the completions of
 *      all its receives, and so knows how many parts each queue pair has brought.
 *   2. It notifies the other end, with these numbers. Parts of a queue pair come in the order in which they
 *      were posted: the first so many have come, the others have not.
 *   3. When both have sent this, the sender takes the parts that were received for sent and posts the others
 *      to queue pairs of open paths. If it was the path by which the receiver announced its receives, it
 *      writes those slots again that may not have arrived.
 *
 * A receiver that closes sends its count in the same way: the sender may miss its acknowledgements.
 *
 * How a path that was closed comes back is in recovery.c.
 */
#include <errno.h>
#include <string.h>
#include "core/log.h"
#include "net/p2p/comm_qp.h"
#include "net/p2p/ctrl.h"
#include "net/p2p/fail.h"
#include "net/p2p/net_path.h"
#include "net/p2p/poll.h"

#define EP_NET_DRAIN_NS 500000000ull     /* for a NIC to give back what was posted */
#define EP_NET_STEADY_NS 10000000000ull  /* a path that was open for so long did not fail soon */
#define EP_NET_LONGEST_NS 30000000000ull /* that a path rests */

/* ---- 1. nothing comes from it any more ---- */

static bool ep_net_local_in_use(const struct ep_net_comm *c, const struct ep_net_local *port)
{
	for (uint32_t i = 0; i < c->npaths; i++) {
		if (c->path[i].state != EP_NET_PATH_CLOSING &&
		    c->path[i].state != EP_NET_PATH_CLOSED &&
		    &c->local[c->path[i].local_port] == port) {
			return true;
		}
	}
	return false;
}

/* A device that is broken refuses everything, and does nothing. */
static ncclResult_t ep_net_qp_stop(struct ep_net_comm *c, uint32_t i)
{
	const struct ep_net_local *l = &c->local[c->qp[i].local_port];
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	int error = l->dev->nic.v->ibv_modify_qp(c->qp[i].qp, &attr, IBV_QP_STATE);

	if (error) {
		ep_net_dev_events(l->dev); /* it may have sent that, and nobody has received it */
	}
	if (error && !__atomic_load_n(&l->dev->broken, __ATOMIC_RELAXED)) {
		return ep_net_comm_fail(
			c, ncclSystemError, i,
			"a queue pair of a path that has failed cannot be stopped: %s",
			strerror(error));
	}
	return ncclSuccess;
}

static uint32_t ep_net_receives_left(const struct ep_net_comm *c, uint32_t path)
{
	uint32_t left = 0;

	for (uint32_t i = path; i < c->nqps; i += c->npaths) {
		left += c->qp[i].receives;
	}
	return left;
}

ncclResult_t ep_net_path_drain(struct ep_net_comm *c, uint32_t path)
{
	struct ep_net_local *l = &c->local[c->path[path].local_port];
	uint64_t until = ep_now_ns() + EP_NET_DRAIN_NS;
	bool any;

	for (uint32_t i = path; i < c->nqps; i += c->npaths) {
		EP_CHECK(ep_net_qp_stop(c, i));
	}
	/* A device that is broken gives nothing back any more, but what it has reported has arrived. */
	do {
		EP_CHECK(ep_net_poll(c, l, &any));
	} while (ep_net_receives_left(c, path) &&
		 (any ||
		  (ep_now_ns() < until && !__atomic_load_n(&l->dev->broken, __ATOMIC_RELAXED))));
	c->path[path].drained = true;
	if (l->flush_qp && !ep_net_local_in_use(c, l)) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

		(void)l->dev->nic.v->ibv_modify_qp(l->flush_qp, &attr, IBV_QP_STATE);
		l->flush_ended = true;
	}
	return ncclSuccess;
}

/* ---- 2. notifying the other end ---- */

ncclResult_t ep_net_path_send_closed(struct ep_net_comm *c, uint32_t path, enum ep_net_path_why why)
{
	const struct ep_net_path *r = &c->path[path];
	struct ep_net_ctrl_msg msg = { .why = why };
	uint32_t n = 0;

	if (why == EP_NET_WHY_FAILED && !ep_net_dev_up(c->local[r->local_port].dev, 0)) {
		msg.why = EP_NET_WHY_DOWN;
	}
	for (uint32_t i = path; i < c->nqps; i += c->npaths) {
		msg.number[n++] = c->qp[i].received;
	}
	return ep_net_ctrl_send(c, EP_NET_CLOSED, path, &msg);
}

/* ---- 3. what both know now ---- */

static ncclResult_t ep_net_parts_settle(struct ep_net_comm *c, uint32_t path)
{
	uint32_t k = 0;

	for (uint32_t i = path; i < c->nqps; i += c->npaths, k++) {
		struct ep_net_qp *q = &c->qp[i];
		uint32_t received = c->path[path].received[k];

		if (received - q->first > q->posted - q->first) {
			return ep_net_comm_fail(
				c, ncclRemoteError, i,
				"the peer has had %u parts of messages of this queue "
				"pair, %u were sent",
				received, q->posted);
		}
		for (; q->first != received; q->first++) {
			c->request[q->part[q->first % c->sq_depth].request].left--;
		}
		for (; q->first != q->posted; q->first++) {
			c->again[c->again_last++ % (c->nrequests * c->nqps)] =
				q->part[q->first % c->sq_depth];
		}
	}
	return ncclSuccess;
}

ncclResult_t ep_net_path_settle(struct ep_net_comm *c, uint32_t path)
{
	struct ep_net_path *r = &c->path[path];

	if (r->state != EP_NET_PATH_CLOSING || !r->drained || !r->remote_closed) {
		return ncclSuccess;
	}
	r->state = EP_NET_PATH_CLOSED;
	if (c->sender) {
		EP_CHECK(ep_net_parts_settle(c, path));
	} else if (c->qp[c->slot_qp].path == path && c->nopen) {
		c->slot_qp = c->open_qp[0];
		c->slots_posted = c->slots_acked;
		c->unsignaled = c->unsignaled_groups = 0;
	}
	return ncclSuccess;
}

/*
 * When it may be tried again: soon after the first failure, later and later after those that follow it
 * soon. So a port that comes and goes does not take up the connection.
 */
static void ep_net_path_rest(struct ep_net_path *path, enum ep_net_path_why why, bool was_open)
{
	uint64_t least = (uint64_t)ep_net_env()->recovery_ms * 1000000;

	path->again = path->since;
	if (why == EP_NET_WHY_MOVES) {
		return;
	}
	if (path->rest && (!was_open || path->since - path->opened < EP_NET_STEADY_NS)) {
		path->rest = ep_min_u64(2 * path->rest, ep_max_u64(least, EP_NET_LONGEST_NS));
	} else {
		path->rest = least;
	}
	path->again += path->rest;
}

static void ep_net_path_close_print(const struct ep_net_comm *c, uint32_t path,
				    enum ep_net_path_why why, const char *what, bool was_open)
{
	const char *state = ep_net_dev_print(c->local[c->path[path].local_port].dev);
	char which[EP_NET_WHICH];

	ep_net_qp_print(c, path, which);
	if (!was_open || why == EP_NET_WHY_MOVES) {
		EP_INFO(EP_LOG_NET, "%s: the path is %s: %s%s", which,
			was_open ? "moved" : "not used again yet", what, state);
	} else if (c->nopen) {
		const struct ep_net_qp *q = &c->qp[c->open_qp[0]];
		const struct ep_nic_end *end = &c->local[q->local_port].end,
					*remote = &c->remote[q->remote_port].end;

		EP_WARN("%s: %s%s; the connection goes on over %s:%d and %s:%u there%s", which,
			what, state, end->name, end->port, remote->name, remote->port,
			c->nopen_paths > 1 ? ", and others" : "");
	} else {
		EP_WARN("%s: %s%s; no path is left, another one is looked for", which, what, state);
	}
}

ncclResult_t ep_net_path_close(struct ep_net_comm *c, uint32_t path, enum ep_net_path_why why,
			       const char *what)
{
	struct ep_net_path *r = &c->path[path];
	bool was_open = r->state == EP_NET_PATH_OPEN;

	r->state = EP_NET_PATH_CLOSING;
	r->since = ep_now_ns();
	r->offered = r->ready = r->proved = r->probed = r->failed = false;
	ep_net_path_rest(r, why, was_open);
	c->counts->failovers += was_open && why != EP_NET_WHY_MOVES;
	c->counts->path[path].open = 0;
	ep_net_qps_choose(c);
	c->lost = c->nopen ? 0 : c->lost ? c->lost : r->since;
	ep_net_path_close_print(c, path, why, what, was_open);
	EP_CHECK(ep_net_path_drain(c, path));
	EP_CHECK(ep_net_path_send_closed(c, path, why));
	return ep_net_path_settle(c, path);
}
