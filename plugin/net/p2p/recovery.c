/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a path that was closed comes back. Both ends know what it has brought (net_path.c). Each of them, when
 * its port has been up for a while,
 *
 *   1. makes new queue pairs in place of the old ones, so that packets of those which are still on
 *      their way find nobody, and sends their numbers to the other end;
 *   2. connects them when it has received the other end's numbers, and confirms it;
 *   3. When both have sent that, the sender writes nothing, zero bytes, over each of them. When that has been
 *      acknowledged, which needs the path there and back, it sends that, and both use the path:
 *      until then messages go over the others, and wait for nothing.
 *
 * What fails on the way closes the path again, as if it had been open. Each time it rests for longer.
 *
 * A path goes from its own port to the other end's own. In need, where no path is open, each end takes
 * any port that is up in place of one that is down, and goes back to its own one when that is up again and
 * there is another path. (Not before: across planes of a network ports may not reach each other, and
 * to find that out may hold up NCCL's thread for a second.)
 */
#include <errno.h>
#include <string.h>
#include "core/log.h"
#include "net/p2p/comm_qp.h"
#include "net/p2p/counts.h"
#include "net/p2p/fail.h"
#include "net/p2p/net_path.h"
#include "net/p2p/poll.h"
#include "net/p2p/recovery.h"

#define EP_NET_NEED_NS 50000000ull /* between attempts where no path is open */

/* ---- 1. offers ---- */

/* EP_NET_NIC_PORTS: by none now. */
static uint32_t ep_net_recovery_port(const struct ep_net_comm *c, uint32_t path)
{
	uint64_t rest = (uint64_t)ep_net_env()->recovery_ms * 1000000;
	uint32_t own = path % c->nlocals;

	if (ep_net_dev_up(c->local[own].dev, c->nopen_paths ? rest : 0)) {
		return own;
	}
	for (uint32_t i = 0; i < c->nlocals && !c->nopen_paths; i++) {
		if (ep_net_dev_up(c->local[i].dev, 0)) {
			return i;
		}
	}
	return EP_NET_NIC_PORTS;
}

/* NULL: there is none, or only a smaller one. */
static struct ibv_qp *ep_net_recovery_qp(const struct ep_net_comm *c, struct ep_net_local *port)
{
	struct ep_rc_room want = { .sq = c->sq_depth,
				   .rq = c->sender ? 1 : c->rq_depth,
				   .inline_bytes = c->inline_bytes },
			  room = want;
	struct ibv_qp *qp = ep_net_queue_new(port->dev, port->cq, &room, EP_NET_ACCESS);

	if (qp &&
	    (room.sq < want.sq || room.rq < want.rq || room.inline_bytes < want.inline_bytes)) {
		port->dev->nic.v->ibv_destroy_qp(qp);
		qp = NULL;
	}
	return qp;
}

/* New queue pairs for a path; false: they cannot be made, and nothing has changed. */
static bool ep_net_recovery_make(const struct ep_net_comm *c, struct ep_net_local *port,
				 struct ibv_qp **qp)
{
	uint32_t each = c->nqps / c->npaths, n = 0;

	while (n < each && (qp[n] = ep_net_recovery_qp(c, port))) {
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
static void ep_net_recovery_replace(struct ep_net_comm *c, uint32_t path, uint32_t local,
				    struct ibv_qp *const *qp)
{
	struct ep_net_path *r = &c->path[path];

	r->generation++;
	r->local_port = (uint8_t)local;
	r->drained = r->remote_closed = false;
	r->psn = (uint32_t)(ep_now_ns() * 2654435761u) >> 8;
	for (uint32_t i = path; i < c->nqps; i += c->npaths) {
		struct ep_net_qp *q = &c->qp[i];

		c->local[q->local_port].dev->nic.v->ibv_destroy_qp(q->qp);
		q->qp = *qp++;
		q->generation = r->generation;
		q->local_port = r->local_port;
		q->room = c->sq_depth;
		q->owed = q->first = q->posted = q->received = q->receives = 0;
	}
}

static ncclResult_t ep_net_recovery_offer(struct ep_net_comm *c, uint32_t path)
{
	const struct ep_net_path *r = &c->path[path];
	struct ep_net_ctrl_msg msg = { .port = r->local_port, .end = c->local[r->local_port].end };
	uint32_t n = 0;

	msg.end.psn = r->psn;
	for (uint32_t i = path; i < c->nqps; i += c->npaths) {
		msg.number[n++] = c->qp[i].qp->qp_num;
	}
	return ep_net_ctrl_send(c, EP_NET_OFFER, path, &msg);
}

/* A port that no path went by is used again: so is what flushes there, when all of it has come back. */
static bool ep_net_recovery_flush(struct ep_net_local *port)
{
	if (port->flush_qp && port->flush_ended) {
		if (port->flush_room < port->flush_depth) {
			return false;
		}
		port->dev->nic.v->ibv_destroy_qp(port->flush_qp);
		port->flush_qp = NULL; /* it is made when one is asked for */
	}
	port->flush_ended = false;
	return true;
}

static ncclResult_t ep_net_recovery_begin(struct ep_net_comm *c, uint32_t path, uint64_t now)
{
	struct ep_net_path *r = &c->path[path];
	struct ibv_qp *qp[EP_NET_MAX_QPS];
	struct ep_net_local *l;
	uint32_t port;
	bool any = true;

	/* (in need an offer is answered at once: nobody may call here again for a while) */
	if (now < (c->nopen_paths ? r->again : r->offered ? 0 : r->since + EP_NET_NEED_NS)) {
		return ncclSuccess;
	}
	port = ep_net_recovery_port(c, path);
	if (port == EP_NET_NIC_PORTS) {
		return ncclSuccess;
	}
	for (uint32_t i = 0; i < c->nlocals; i += !any) {
		EP_CHECK(ep_net_poll(c, &c->local[i], &any));
	}
	l = &c->local[port];
	r->since = now;
	r->again = now + r->rest;
	if (!ep_net_dev_end(l->dev, &l->end, &l->gid_index) || !ep_net_recovery_flush(l) ||
	    !ep_net_recovery_make(c, l, qp)) {
		return ncclSuccess; /* (it may be possible later) */
	}
	ep_net_recovery_replace(c, path, port, qp);
	r->state = EP_NET_PATH_OFFERED;
	return ep_net_recovery_offer(c, path);
}

/* ---- 2. connecting ---- */

static ncclResult_t ep_net_offer_take(struct ep_net_comm *c, const struct ep_net_ctrl_msg *msg)
{
	struct ep_net_path *r = &c->path[msg->path];

	if (r->offered || msg->port >= c->nremotes ||
	    !ep_net_end_good(&msg->end, msg->number, c->nqps / c->npaths)) {
		return ep_net_comm_fail(c, ncclRemoteError, msg->path,
					"the peer offers what makes no sense (port %u of %u, MTU "
					"code %u, RoCE version %u)",
					msg->port, c->nremotes, msg->end.mtu, msg->end.roce);
	}
	r->offered = true;
	r->remote_port = msg->port;
	c->remote[r->remote_port].end = msg->end;
	r->remote_psn = msg->end.psn;
	memcpy(r->number, msg->number, sizeof(r->number));
	return ncclSuccess;
}

ncclResult_t ep_net_recovery_receive(struct ep_net_comm *c, const struct ep_net_ctrl_msg *msg)
{
	struct ep_net_path *r = &c->path[msg->path];

	if (r->state == EP_NET_PATH_CLOSING) {
		return ncclSuccess; /* it does not know yet */
	}
	if (msg->kind == EP_NET_OFFER) {
		return ep_net_offer_take(c, msg);
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
static int ep_net_recovery_connect(struct ep_net_comm *c, uint32_t path)
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
				      .gid_index = l->gid_index,
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

static ncclResult_t ep_net_recovery_join(struct ep_net_comm *c, uint32_t path)
{
	struct ep_net_ctrl_msg msg = { 0 };
	int error = ep_net_recovery_connect(c, path);

	if (error) {
		return ep_net_path_close(c, path, EP_NET_WHY_FAILED, strerror(error));
	}
	for (uint32_t i = path; i < c->nqps && !c->sender; i += c->npaths) {
		EP_CHECK(ep_net_receives_post(c, i, c->rq_depth));
	}
	c->path[path].state = EP_NET_PATH_READY;
	return ep_net_ctrl_send(c, EP_NET_READY_TOO, path, &msg);
}

/* ---- 3. is there a path? ---- */

static ncclResult_t ep_net_recovery_probe(struct ep_net_comm *c, uint32_t path)
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
			return ep_net_path_close(c, path, EP_NET_WHY_FAILED, strerror(error));
		}
		q->room--;
		r->probes++;
	}
	return ncclSuccess;
}

/* Each end has been reached from the other one. */
static ncclResult_t ep_net_recovery_open(struct ep_net_comm *c, uint32_t path)
{
	struct ep_net_path *r = &c->path[path];
	enum ep_net_path_state slots = c->path[c->qp[c->slot_qp].path].state;
	char which[EP_NET_WHICH];

	r->state = EP_NET_PATH_OPEN;
	r->opened = ep_now_ns();
	r->remote_down = false;
	c->lost = 0;
	c->counts->failbacks++;
	ep_net_counts_path(c, path);
	ep_net_qps_choose(c);
	/* (where another path was open, it has taken over long ago) */
	if (!c->sender && slots != EP_NET_PATH_OPEN && slots != EP_NET_PATH_CLOSING) {
		c->slot_qp = path;
		c->slots_posted = c->slots_acked;
		c->unsignaled = c->unsignaled_groups = 0;
	}
	EP_INFO(EP_LOG_NET, "%s: the path is used again", ep_net_qp_print(c, path, which));
	return ncclSuccess;
}

/* ---- looking after it ---- */

/* Whether a path that goes by another port than its own may go by its own again. */
static bool ep_net_recovery_moves(const struct ep_net_comm *c, uint32_t path)
{
	uint64_t rest = (uint64_t)ep_net_env()->recovery_ms * 1000000;
	uint32_t own = path % c->nlocals;

	return c->path[path].local_port != own && c->nopen_paths > 1 &&
	       ep_net_dev_up(c->local[own].dev, rest);
}

static ncclResult_t ep_net_recovery_step(struct ep_net_comm *c, uint32_t path, uint64_t now)
{
	struct ep_net_path *r = &c->path[path];

	if (r->state >= EP_NET_PATH_OFFERED && !ep_net_dev_up(c->local[r->local_port].dev, 0)) {
		return ep_net_path_close(c, path, EP_NET_WHY_FAILED, "");
	}
	switch (r->state) {
	case EP_NET_PATH_CLOSED:
		return ep_net_recovery_begin(c, path, now);
	case EP_NET_PATH_OFFERED:
		return r->offered ? ep_net_recovery_join(c, path) : ncclSuccess;
	case EP_NET_PATH_READY:
		return r->ready ? ep_net_recovery_probe(c, path) : ncclSuccess;
	case EP_NET_PATH_PROBING:
		return r->proved ? ep_net_recovery_open(c, path) : ncclSuccess;
	case EP_NET_PATH_OPEN:
		return ep_net_recovery_moves(c, path)
			       ? ep_net_path_close(c, path, EP_NET_WHY_MOVES,
						   "its own port is up again")
			       : ncclSuccess;
	default:
		return ncclSuccess;
	}
}

ncclResult_t ep_net_recovery_check(struct ep_net_comm *c, uint64_t now)
{
	for (uint32_t i = 0; i < c->npaths; i++) {
		const struct ep_net_path *r = &c->path[i];
		enum ep_net_path_state before;

		/* As many steps as can be taken: nobody may call again for a while. */
		do {
			before = r->state;
			EP_CHECK(ep_net_recovery_step(c, i, now));
		} while (r->state > before);
	}
	return ncclSuccess;
}
