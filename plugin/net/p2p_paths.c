/* SPDX-License-Identifier: Apache-2.0 */
/* A path fails, what it brought is settled with the other end, and it comes back. */
#include <errno.h>
#include <string.h>
#include "core/log.h"
#include "net/net.h"
#include "net/p2p.h"

/* Sends what is to be sent as far as the socket has room. */
static enum ep_net_io_state ctrl_flush(struct ep_net_comm *c)
{
	struct ep_net_ctrl *t = c->paths.ctrl;

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

/* Sends a message about a path, now or later; fills in what all kinds have. */
static ncclResult_t ctrl_send(struct ep_net_comm *c, enum ep_net_ctrl_kind kind, uint32_t path,
			      struct ep_net_ctrl_msg *msg)
{
	struct ep_net_ctrl *t = c->paths.ctrl;

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
	(void)ctrl_flush(c); /* what is not sent now, or fails, is looked after later */
	return ncclSuccess;
}

/* Takes the next message, when all of it is there. */
static enum ep_net_io_state ctrl_recv(struct ep_net_comm *c, struct ep_net_ctrl_msg *msg)
{
	struct ep_net_ctrl *t = c->paths.ctrl;
	enum ep_net_io_state state = ep_net_take(c->fd, &t->in, sizeof(t->in), &t->in_at);

	if (state == EP_NET_IO_DONE) {
		*msg = t->in;
		t->in_at = 0;
	}
	return state;
}

/*
 * ---- a path fails ----
 *
 * Closes and repairs a path that fails, while the connection has others.
 *
 * A sender cannot know which of its writes have reached memory: it misses the acknowledgements, not
 * only what they acknowledge. If it wrote again at once, a message could come twice, and a packet
 * that was late could change memory which its receiver had long used for something else. So
 *
 *   1. an end that notices the failure, or is notified of it, moves its queue pairs of the path to
 *      the error state: its NIC drops what comes for them from then on. The receiver takes up the
 *      completions of all its receives, and so knows how many parts each queue pair has brought.
 *   2. It notifies the other end, with these numbers. Parts of a queue pair come in the order in
 *      which they were posted: the first so many have come, the others have not.
 *   3. When both have sent this, the sender takes the parts that were received for sent and posts
 *      the others to queue pairs of open paths. If it was the path by which the receiver announced
 *      its receives, it writes those slots again that may not have arrived.
 *
 * A receiver that closes sends its count in the same way: the sender may miss its acknowledgements.
 */

#define EP_NET_DRAIN_NS 500000000ull     /* for a NIC to give back what was posted */
#define EP_NET_STEADY_NS 10000000000ull  /* a path that was open for so long did not fail soon */
#define EP_NET_LONGEST_NS 30000000000ull /* that a path rests */

/* ---- 1. nothing comes from it any more ---- */

static bool local_in_use(const struct ep_net_comm *c, const struct ep_net_local *port)
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
static ncclResult_t qp_stop(struct ep_net_comm *c, uint32_t i)
{
	const struct ep_net_local *l = &c->local[c->qp[i].local_port];
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	int error = l->dev->nic.v->ibv_modify_qp(c->qp[i].qp, &attr, IBV_QP_STATE);

	if (error) {
		ep_net_dev_events(l->dev); /* it may have sent that, and nobody has received it */
	}
	if (error && !ep_net_dev_broken(l->dev)) {
		return ep_net_comm_fail(
			c, ncclSystemError, i,
			"a queue pair of a path that has failed cannot be stopped: %s",
			strerror(error));
	}
	return ncclSuccess;
}

static uint32_t receives_left(const struct ep_net_comm *c, uint32_t path)
{
	uint32_t left = 0;

	for (uint32_t i = path; i < c->nqps; i += c->npaths) {
		left += c->qp[i].receives;
	}
	return left;
}

/* Stops the path's queue pairs, and takes up all that they have brought. */
static ncclResult_t path_drain(struct ep_net_comm *c, uint32_t path)
{
	struct ep_net_local *l = &c->local[c->path[path].local_port];
	uint64_t until = ep_now_ns() + EP_NET_DRAIN_NS;
	bool any;

	for (uint32_t i = path; i < c->nqps; i += c->npaths) {
		EP_CHECK(qp_stop(c, i));
	}
	/*
	 * A device that is broken gives nothing back any more, but what it has reported has
	 * arrived.
	 */
	do {
		EP_CHECK(ep_net_poll(c, l, &any));
	} while (receives_left(c, path) &&
		 (any || (ep_now_ns() < until && !ep_net_dev_broken(l->dev))));
	c->path[path].drained = true;
	if (!local_in_use(c, l)) {
		ep_net_flush_stop(l);
	}
	return ncclSuccess;
}

/* ---- 2. notifying the other end ---- */

static ncclResult_t path_send_closed(struct ep_net_comm *c, uint32_t path, enum ep_net_path_why why)
{
	struct ep_net_ctrl_msg msg = { .why = why };
	uint32_t n = 0;

	for (uint32_t i = path; i < c->nqps; i += c->npaths) {
		msg.number[n++] = c->qp[i].received;
	}
	return ctrl_send(c, EP_NET_CLOSED, path, &msg);
}

/* ---- 3. what both know now ---- */

static ncclResult_t path_settle(struct ep_net_comm *c, uint32_t path)
{
	struct ep_net_path *r = &c->path[path];

	if (r->state != EP_NET_PATH_CLOSING || !r->drained || !r->remote_closed) {
		return ncclSuccess;
	}
	r->state = EP_NET_PATH_CLOSED;
	if (c->sender) {
		EP_CHECK(ep_net_parts_settle(c, path));
	} else if (c->qp[c->slots.qp].path == path && c->open.n) {
		ep_net_slots_restart(c, c->open.qp[0]);
	}
	return ncclSuccess;
}

/*
 * When it may be tried again: soon after the first failure, later and later after those that follow
 * it soon. So a port that comes and goes does not take up the connection.
 */
static void path_rest(struct ep_net_path *path, bool was_open)
{
	uint64_t least = (uint64_t)ep_net_env()->recovery_ms * 1000000;

	if (path->rest && (!was_open || path->since - path->opened < EP_NET_STEADY_NS)) {
		path->rest = ep_min_u64(2 * path->rest, ep_max_u64(least, EP_NET_LONGEST_NS));
	} else {
		path->rest = least;
	}
	path->again = path->since + path->rest;
}

static void path_close_print(const struct ep_net_comm *c, uint32_t path, const char *what,
			     bool was_open)
{
	const char *state = ep_net_dev_print(c->local[c->path[path].local_port].dev);
	char which[EP_NET_WHICH];

	ep_net_qp_print(c, path, which);
	if (!was_open) {
		EP_INFO(EP_LOG_NET, "%s: the path is not used again yet: %s%s", which, what, state);
	} else if (c->open.n) {
		const struct ep_net_qp *q = &c->qp[c->open.qp[0]];
		const struct ep_nic_end *end = &c->local[q->local_port].end,
					*remote = &c->remote[q->remote_port].end;

		EP_WARN("%s: %s%s; the connection goes on over %s:%d and %s:%u there%s", which,
			what, state, end->name, end->port, remote->name, remote->port,
			c->open.paths > 1 ? ", and others" : "");
	} else {
		EP_WARN("%s: %s%s; no path is left", which, what, state);
	}
}

ncclResult_t ep_net_path_close(struct ep_net_comm *c, uint32_t path, const char *what)
{
	struct ep_net_path *r = &c->path[path];
	bool was_open = r->state == EP_NET_PATH_OPEN;

	r->state = EP_NET_PATH_CLOSING;
	r->since = ep_now_ns();
	r->offered = r->ready = r->proved = r->noted.probed = r->noted.failed = false;
	path_rest(r, was_open);
	c->counts->failovers += was_open;
	c->counts->path[path].open = 0;
	ep_net_qps_choose(c);
	path_close_print(c, path, what, was_open);
	EP_CHECK(path_drain(c, path));
	EP_CHECK(path_send_closed(c, path, EP_NET_WHY_FAILED));
	return path_settle(c, path);
}

/* ---- paths that cannot be used from the beginning ---- */

static bool path_is_down(const struct ep_net_comm *c, uint32_t path)
{
	return c->local[path % c->nlocals].down || c->remote[path % c->nremotes].down;
}

static bool path_is_broken(const struct ep_net_comm *c, uint32_t path)
{
	return c->local[path % c->nlocals].broken ||
	       c->remote[path % c->nremotes].down == EP_NET_BROKEN;
}

void ep_net_paths_leave_out(struct ep_net_comm *c)
{
	uint32_t down = 0;

	for (uint32_t i = 0; i < c->npaths; i++) {
		down += path_is_down(c, i);
	}
	for (uint32_t i = 0; i < c->npaths && c->path; i++) {
		struct ep_net_path *r = &c->path[i];

		if (path_is_broken(c, i) || (path_is_down(c, i) && down < c->npaths)) {
			r->state = EP_NET_PATH_CLOSED;
			r->drained = r->remote_closed = true;
			r->since = ep_now_ns();
			path_rest(r, false);
		}
	}
	ep_net_qps_choose(c);
	c->slots.qp = c->open.qp[0];
}

ncclResult_t ep_net_paths_begin(struct ep_net_comm *c)
{
	for (uint32_t i = 0; i < c->npaths; i++) {
		if (!ep_net_path_is_open(c, i)) {
			path_close_print(c, i,
					 c->local[c->path[i].local_port].down ? "it is given up"
					 : path_is_broken(c, i) ? "the peer's device has failed"
								: "the peer's port is down",
					 true);
		} else if (c->path && c->path[i].lost) {
			EP_CHECK(ep_net_path_close(c, i, "the peer is not found"));
		}
	}
	return ncclSuccess;
}

/*
 * ---- a path that was closed comes back ----
 *
 * Both ends know what it has brought (see above). Each of them, when its port has been up for a
 * while,
 *
 *   1. makes new queue pairs in place of the old ones, so that packets of those which are still on
 *      their way find nobody, and sends their numbers to the other end;
 *   2. connects them when it has received the other end's numbers, and confirms it;
 *   3. When both have sent that, the sender writes nothing, zero bytes, over each of them. When
 *      that has been acknowledged, which needs the path there and back, it sends that, and both use
 *      the path: until then messages go over the others, and wait for nothing.
 *
 * What fails on the way closes the path again, as if it had been open. Each time it rests for
 * longer.
 *
 * A connection whose last path fails has failed: ports that are not opposite to each other are not
 * tried.
 */

/* ---- 1. offers ---- */

/* NULL: there is none, or only a smaller one. */
static struct ibv_qp *recovery_qp(const struct ep_net_comm *c, struct ep_net_local *port)
{
	struct ep_rc_room want = { .sq = c->sq_depth,
				   .rq = c->sender ? 1 : c->rq_depth,
				   .inline_bytes = c->inline_bytes },
			  room = want;
	struct ibv_qp *qp =
		ep_net_queue_new(port->dev, port->index.pkey, port->cq, &room, EP_NET_ACCESS);

	if (qp &&
	    (room.sq < want.sq || room.rq < want.rq || room.inline_bytes < want.inline_bytes)) {
		port->dev->nic.v->ibv_destroy_qp(qp);
		qp = NULL;
	}
	return qp;
}

/* New queue pairs for a path; false: they cannot be made, and nothing has changed. */
static bool recovery_make(const struct ep_net_comm *c, struct ep_net_local *port,
			  struct ibv_qp **qp)
{
	uint32_t each = c->nqps / c->npaths, n = 0;

	while (n < each && (qp[n] = recovery_qp(c, port))) {
		n++;
	}
	if (n == each) {
		return true;
	}
	EP_INFO(EP_LOG_NET, "%s: no queue pair for a path that could come back: %s",
		port->dev->label, strerror(errno));
	while (n-- > 0) {
		port->dev->nic.v->ibv_destroy_qp(qp[n]);
	}
	return false;
}

/*
 * The new queue pairs take the places of the old ones. Flushed sends of the old ones may complete
 * later: polling ignores completions of an earlier generation.
 */
static void recovery_replace(struct ep_net_comm *c, uint32_t path, struct ibv_qp *const *qp)
{
	struct ep_net_path *r = &c->path[path];

	r->generation++;
	r->drained = r->remote_closed = false;
	r->psn = (uint32_t)(ep_now_ns() * 2654435761u) >> 8;
	for (uint32_t i = path; i < c->nqps; i += c->npaths) {
		struct ep_net_qp *q = &c->qp[i];

		c->local[q->local_port].dev->nic.v->ibv_destroy_qp(q->qp);
		q->qp = *qp++;
		q->generation = r->generation;
		q->room = c->sq_depth;
		q->owed = q->first = q->posted = q->received = q->receives = 0;
	}
}

static ncclResult_t recovery_offer(struct ep_net_comm *c, uint32_t path)
{
	const struct ep_net_path *r = &c->path[path];
	struct ep_net_ctrl_msg msg = { .port = r->local_port, .end = c->local[r->local_port].end };
	uint32_t n = 0;

	msg.end.psn = r->psn;
	for (uint32_t i = path; i < c->nqps; i += c->npaths) {
		msg.number[n++] = c->qp[i].qp->qp_num;
	}
	return ctrl_send(c, EP_NET_OFFER, path, &msg);
}

/* Handles completions of a port until there are none left. */
static ncclResult_t port_empty(struct ep_net_comm *c, struct ep_net_local *port)
{
	bool any = true;

	while (any) {
		EP_CHECK(ep_net_poll(c, port, &any));
	}
	return ncclSuccess;
}

static ncclResult_t recovery_begin(struct ep_net_comm *c, uint32_t path, uint64_t now)
{
	struct ep_net_path *r = &c->path[path];
	uint64_t rest = (uint64_t)ep_net_env()->recovery_ms * 1000000;
	struct ep_net_local *l = &c->local[r->local_port];
	struct ibv_qp *qp[EP_NET_MAX_QPS];

	if (now < r->again || !ep_net_dev_up(l->dev, rest)) {
		return ncclSuccess;
	}
	for (uint32_t i = 0; i < c->nlocals; i++) {
		EP_CHECK(port_empty(c, &c->local[i]));
	}
	r->since = now;
	r->again = now + r->rest;
	if (!ep_net_flush_restart(l)) {
		return ncclSuccess; /* (it may be possible soon) */
	}
	if (!ep_net_dev_address(l->dev, &l->end, &l->index) || !recovery_make(c, l, qp)) {
		path_rest(r, false); /* (it may be possible later) */
		return ncclSuccess;
	}
	recovery_replace(c, path, qp);
	/*
	 * What the old queue pairs have completed until they were destroyed may still be there:
	 * mlx5 takes it away, soft-RoCE does not. It must not take up the room of what the new ones
	 * complete.
	 */
	EP_CHECK(port_empty(c, l));
	r->state = EP_NET_PATH_OFFERED;
	return recovery_offer(c, path);
}

/* ---- 2. connecting ---- */

static ncclResult_t offer_take(struct ep_net_comm *c, const struct ep_net_ctrl_msg *msg)
{
	struct ep_net_path *r = &c->path[msg->path];

	if (r->offered || msg->port != r->remote_port ||
	    !ep_net_end_good(&msg->end, msg->number, c->nqps / c->npaths)) {
		return ep_net_comm_fail(c, ncclRemoteError, msg->path,
					"the peer offers what makes no sense (port %u for %u, MTU "
					"code %u, RoCE version %u)",
					msg->port, r->remote_port, msg->end.mtu, msg->end.roce);
	}
	r->offered = true;
	c->remote[r->remote_port].end = msg->end;
	r->remote_psn = msg->end.psn;
	memcpy(r->number, msg->number, sizeof(r->number));
	return ncclSuccess;
}

/* Takes a control message of the other end: it has new queue pairs, or they are connected. */
static ncclResult_t recovery_receive(struct ep_net_comm *c, const struct ep_net_ctrl_msg *msg)
{
	struct ep_net_path *r = &c->path[msg->path];

	if (r->state == EP_NET_PATH_CLOSING) {
		return ncclSuccess; /* it does not know yet */
	}
	if (msg->kind == EP_NET_OFFER) {
		return offer_take(c, msg);
	}
	if (msg->kind == EP_NET_READY_TOO ? !r->offered || r->ready
					  : c->sender || !r->ready || r->proved) {
		return ep_net_comm_fail(c, ncclRemoteError, msg->path,
					"the peer names a path that it has not offered, or "
					"sends twice how far it is");
	}
	*(msg->kind == EP_NET_READY_TOO ? &r->ready : &r->proved) = true;
	return ncclSuccess;
}

/* 0, or errno. */
static int recovery_connect(struct ep_net_comm *c, uint32_t path)
{
	const struct ep_net_path *r = &c->path[path];
	const struct ep_net_local *l = &c->local[r->local_port];
	const struct ep_net_remote *remote = &c->remote[r->remote_port];
	struct ep_nic_end from = l->end, to = remote->end;
	struct ep_rc_path rc_path = { .from = &from,
				      .to = &to,
				      .tc = l->tc,
				      .sl = l->sl,
				      .once = true,
				      .gid_index = l->index.gid,
				      .ece_agreed = c->sender };
	struct ep_reason why = { "" };
	int error = ep_nic_path_check(&from, &to, &why) ? 0 : ENETUNREACH;
	uint32_t n = 0;

	from.psn = r->psn;
	to.psn = r->remote_psn;
	for (uint32_t i = path; i < c->nqps && !error; i += c->npaths) {
		struct ep_net_qp *q = &c->qp[i];

		q->remote_port = r->remote_port;
		q->remote_qpn = r->number[n++];
		if (r->local_port == path % c->nlocals && r->remote_port == path % c->nremotes) {
			/* as it was when the path was first made */
			rc_path.ece = ep_rc_ece_received(&l->ece, &remote->ece);
		}
		error = ep_net_queue_try(l->dev, q->qp, &rc_path, q->remote_qpn);
	}
	return error;
}

static ncclResult_t recovery_join(struct ep_net_comm *c, uint32_t path)
{
	struct ep_net_ctrl_msg msg = { 0 };
	int error = recovery_connect(c, path);

	if (error) {
		return ep_net_path_close(c, path, strerror(error));
	}
	for (uint32_t i = path; i < c->nqps && !c->sender; i += c->npaths) {
		EP_CHECK(ep_net_receives_post(c, i, c->rq_depth));
	}
	c->path[path].state = EP_NET_PATH_READY;
	return ctrl_send(c, EP_NET_READY_TOO, path, &msg);
}

/* ---- 3. is there a path? ---- */

static ncclResult_t recovery_probe(struct ep_net_comm *c, uint32_t path)
{
	struct ep_net_path *r = &c->path[path];

	r->state = EP_NET_PATH_PROBING;
	r->probes = 0;
	for (uint32_t i = path; i < c->nqps && c->sender; i += c->npaths) {
		struct ep_net_qp *q = &c->qp[i];
		struct ibv_send_wr wr = {
			.wr_id = EP_NET_WR_ID(EP_NET_WORK_PROBE, i, 1, 0) |
				 EP_NET_WR_GENERATION_OF(q),
			.opcode = IBV_WR_RDMA_WRITE,
			.send_flags = IBV_SEND_SIGNALED,
			.wr.rdma = { .remote_addr = c->remote_shared,
				     .rkey = c->remote[q->remote_port].rkey },
		};
		struct ibv_send_wr *bad;
		int error = ibv_post_send(q->qp, &wr, &bad);

		if (error) {
			return ep_net_path_close(c, path, strerror(error));
		}
		q->room--;
		r->probes++;
	}
	return ncclSuccess;
}

/* Each end has been reached from the other one. */
static ncclResult_t recovery_open(struct ep_net_comm *c, uint32_t path)
{
	struct ep_net_path *r = &c->path[path];
	enum ep_net_path_state slots = c->path[c->qp[c->slots.qp].path].state;
	char which[EP_NET_WHICH];

	r->state = EP_NET_PATH_OPEN;
	r->opened = ep_now_ns();
	c->counts->failbacks++;
	ep_net_counts_path(c, path);
	ep_net_qps_choose(c);
	/* (where another path was open, it has taken over long ago) */
	if (!c->sender && slots != EP_NET_PATH_OPEN && slots != EP_NET_PATH_CLOSING) {
		ep_net_slots_restart(c, path);
	}
	EP_INFO(EP_LOG_NET, "%s: the path is used again", ep_net_qp_print(c, path, which));
	return ncclSuccess;
}

/* ---- looking after it ---- */

static ncclResult_t recovery_step(struct ep_net_comm *c, uint32_t path, uint64_t now)
{
	struct ep_net_path *r = &c->path[path];

	if (r->state >= EP_NET_PATH_OFFERED && !ep_net_dev_up(c->local[r->local_port].dev, 0)) {
		return ep_net_path_close(c, path, "");
	}
	switch (r->state) {
	case EP_NET_PATH_CLOSED:
		return recovery_begin(c, path, now);
	case EP_NET_PATH_OFFERED:
		return r->offered ? recovery_join(c, path) : ncclSuccess;
	case EP_NET_PATH_READY:
		return r->ready ? recovery_probe(c, path) : ncclSuccess;
	case EP_NET_PATH_PROBING:
		return r->proved ? recovery_open(c, path) : ncclSuccess;
	default:
		return ncclSuccess;
	}
}

/* Takes the steps of paths that are on their way back, or could be. */
static ncclResult_t recovery_check(struct ep_net_comm *c, uint64_t now)
{
	for (uint32_t i = 0; i < c->npaths; i++) {
		const struct ep_net_path *r = &c->path[i];
		enum ep_net_path_state before;

		/* As many steps as can be taken: nobody may call again for a while. */
		do {
			before = r->state;
			EP_CHECK(recovery_step(c, i, now));
		} while (r->state > before);
	}
	return ncclSuccess;
}

/* ---- looking after all paths: failures that were noted ---- */

static ncclResult_t path_failed(struct ep_net_comm *c, uint32_t path, const struct ibv_wc *wc)
{
	char why[EP_NET_WC_TEXT];

	if (c->failed.code != ncclSuccess) {
		return ep_net_comm_failed(c);
	}
	if (!ep_net_path_lives(c, path)) {
		return ncclSuccess;
	}
	if (c->open.paths == 1 && ep_net_path_is_open(c, path)) {
		return wc ? ep_net_comm_fail_wc(c, wc)
			  : ep_net_comm_fail(c, ncclSystemError, path, "the connection is lost");
	}
	return ep_net_path_close(c, path, wc ? ep_net_wc_print(wc, why) : "it is given up");
}

ncclResult_t ep_net_paths_act(struct ep_net_comm *c)
{
	/* (who closes a path takes up completions of others) */
	while (c->paths.due) {
		c->paths.due = false;
		for (uint32_t i = 0; i < c->npaths; i++) {
			struct ep_net_path *r = &c->path[i];

			if (r->noted.failed) {
				struct ibv_wc wc = r->noted.failure;

				r->noted.failed = false;
				EP_CHECK(path_failed(c, i, &wc));
			}
			if (r->noted.probed && r->state == EP_NET_PATH_PROBING) {
				struct ep_net_ctrl_msg msg = { 0 };

				/*
				 * Both ends know from now on that there is a path there and back.
				 */
				r->proved = true;
				EP_CHECK(ctrl_send(c, EP_NET_PROVED, i, &msg));
			}
			r->noted.probed = false;
		}
	}
	return ncclSuccess;
}

/* ---- control messages of the other end ---- */

static ncclResult_t nonsense(struct ep_net_comm *c, const struct ep_net_ctrl_msg *msg)
{
	return ep_net_comm_fail(
		c, ncclRemoteError, 0,
		"the peer sends a control message that makes no sense (0x%08x, %u of path %u of %u, "
		"%u)",
		msg->magic, msg->kind, msg->path, c->npaths, msg->generation);
}

/* The other end has taken back an offer: so does this end, which has not made its own yet. */
static ncclResult_t offer_ends(struct ep_net_comm *c, const struct ep_net_ctrl_msg *msg)
{
	struct ep_net_path *r = &c->path[msg->path];

	if (!r->offered) {
		return nonsense(c, msg);
	}
	r->offered = false;
	r->generation++;
	for (uint32_t i = msg->path; i < c->nqps; i += c->npaths) {
		c->qp[i].received = 0;
	}
	return path_send_closed(c, msg->path, EP_NET_WHY_FAILED);
}

static ncclResult_t closed_receive(struct ep_net_comm *c, const struct ep_net_ctrl_msg *msg)
{
	struct ep_net_path *r = &c->path[msg->path];

	if (r->state == EP_NET_PATH_CLOSED) {
		return offer_ends(c, msg);
	}
	if (r->remote_closed) {
		return nonsense(c, msg);
	}
	r->remote_closed = true;
	memcpy(r->received, msg->number, sizeof(r->received));
	if (msg->why == EP_NET_WHY_LAST) {
		/* Nothing more goes to it, so that nothing has to be waited for here. */
		c->paths.leaving = true;
		r->state = EP_NET_PATH_CLOSING;
		r->drained = true;
		ep_net_qps_choose(c);
		return path_settle(c, msg->path);
	}
	if (r->state != EP_NET_PATH_CLOSING) {
		for (uint32_t i = 0; i < c->nlocals; i++) {
			ep_net_dev_events(c->local[i].dev);
		}
		EP_CHECK(ep_net_path_close(c, msg->path, "the peer has noticed a failure"));
	}
	EP_CHECK(path_settle(c, msg->path));
	return c->open.paths
		       ? ncclSuccess
		       : ep_net_comm_fail(c, ncclRemoteError, msg->path,
					  "all ports of the NIC or of the peer's have failed");
}

static ncclResult_t ctrl_take(struct ep_net_comm *c, const struct ep_net_ctrl_msg *msg)
{
	const struct ep_net_path *r = &c->path[msg->path % c->npaths];

	/* For a generation that both have closed nothing more is sent. */
	if (msg->magic != EP_NET_CTRL_MAGIC || msg->path >= c->npaths ||
	    msg->kind < EP_NET_CLOSED || msg->kind > EP_NET_PROVED ||
	    msg->generation != (uint16_t)(r->generation + (r->state == EP_NET_PATH_CLOSED))) {
		return nonsense(c, msg);
	}
	return msg->kind == EP_NET_CLOSED ? closed_receive(c, msg) : recovery_receive(c, msg);
}

/* ---- looking after them ---- */

static ncclResult_t ports_check(struct ep_net_comm *c, uint64_t now)
{
	for (uint32_t i = 0; i < c->nlocals; i++) {
		if (ep_net_dev_broken(c->local[i].dev)) {
			ep_net_flushes_give_up(c, i);
		}
	}
	for (uint32_t i = 0; i < c->npaths; i++) {
		const struct ep_net_dev *dev = c->local[c->path[i].local_port].dev;

		if (ep_net_dev_broken(dev) || (ep_net_dev_down(dev) && c->open.paths > 1)) {
			EP_CHECK(path_failed(c, i, NULL));
		}
		if (c->path[i].state == EP_NET_PATH_CLOSING && !c->watch.gone &&
		    now > c->path[i].since + ep_net_setup_ns()) {
			return ep_net_comm_fail(c, ncclRemoteError, i,
						"waited %llu ms for the peer to close its end of a "
						"path that has failed: is its process stuck? "
						"(NCCL_EP_BOOTSTRAP_TIMEOUT_MS)",
						(unsigned long long)(ep_net_setup_ns() / 1000000));
		}
	}
	return ncclSuccess;
}

ncclResult_t ep_net_paths_check(struct ep_net_comm *c)
{
	enum ep_net_io_state state = EP_NET_IO_AGAIN;
	struct ep_net_ctrl_msg msg;

	while (!c->watch.gone && (state = ctrl_recv(c, &msg)) == EP_NET_IO_DONE) {
		EP_CHECK(ctrl_take(c, &msg));
	}
	if (!c->watch.gone && state != EP_NET_IO_AGAIN) {
		c->watch.gone = ep_now_ns();
	}
	EP_CHECK(ports_check(c, ep_now_ns()));
	EP_CHECK(ep_net_paths_act(c));
	if (!c->watch.gone) {
		if (!c->paths.leaving) {
			EP_CHECK(recovery_check(c, ep_now_ns()));
			EP_CHECK(ep_net_paths_act(c));
		}
		(void)ctrl_flush(c);
	}
	return ncclSuccess;
}

/* ---- while NCCL does not call ---- */

static void paths_async(const struct ep_net_async *a, void *object)
{
	struct ep_net_comm *c = object;

	pthread_mutex_lock(&c->lock);
	for (uint32_t i = 0; i < c->nlocals; i++) {
		ep_net_dev_events(c->local[i].dev);
	}
	if (c->failed.code == ncclSuccess) {
		(void)ep_net_paths_check(c); /* the next call returns what fails */
	}
	if (c->failed.code != ncclSuccess || c->watch.gone) {
		ep_net_async_skip(a, c->fd);
	}
	pthread_mutex_unlock(&c->lock);
}

ncclResult_t ep_net_paths_async_add(struct ep_net_comm *c)
{
	if (c->path) {
		EP_CHECK(ep_net_async_add(c->handle, c->fd, paths_async));
		c->paths.async = true;
	}
	return ncclSuccess;
}

/* ---- the end ---- */

void ep_net_paths_close(struct ep_net_comm *c)
{
	if (c->paths.async) {
		ep_net_async_remove(c->fd);
		c->paths.async = false;
	}
	if (c->fd < 0 || !c->handle) {
		return; /* it was never made */
	}
	/*
	 * (what the peer has sent and nobody has read would make the kernel reset what is sent now)
	 */
	if (c->failed.code == ncclSuccess) {
		(void)ep_net_paths_check(c);
	}
	for (uint32_t i = 0; i < c->npaths && !c->sender && c->failed.code == ncclSuccess; i++) {
		if (ep_net_path_lives(c, i)) {
			c->path[i].state = EP_NET_PATH_CLOSING;
			if (path_drain(c, i) == ncclSuccess) {
				(void)path_send_closed(c, i, EP_NET_WHY_LAST);
			}
		}
	}
}
