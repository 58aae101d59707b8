/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs of a connection: they are made, connected and given receives, and those of open paths
 * are chosen.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "net/p2p.h"

#define EP_NET_SQ_DEPTH 512u
#define EP_NET_RQ_DEPTH (EP_NET_SENDS + EP_NET_RECEIVES_TOGETHER)
#define EP_NET_INLINE 64u
#define EP_NET_LEAST_BOTH 16u /* entries of both queues of a queue pair */

/* ---- making ---- */

static ncclResult_t qp_open(struct ep_net_comm *c, struct ep_rc_room *room, uint32_t i)
{
	struct ep_net_qp *q = &c->qp[i];
	char text[EP_NIC_ERROR_TEXT];
	struct ep_net_local *l;

	q->path = (uint8_t)(i % c->npaths);
	q->local_port = (uint8_t)(q->path % c->nlocals);
	if (c->path) {
		c->path[q->path].local_port = q->local_port;
	}
	l = &c->local[q->local_port];
	if (l->broken) {
		return ncclSuccess;
	}
	q->qp = ep_net_queue_new(l->dev, l->index.pkey, l->cq, room, EP_NET_ACCESS);
	return q->qp ? ncclSuccess
		     : ep_fail(ncclSystemError,
			       "%s: queue pair %u of %u cannot be made: %s "
			       "(NCCL_IB_QPS_PER_CONNECTION is %d)",
			       l->dev->label, i, c->nqps, ep_nic_error_print(errno, text),
			       ep_net_env()->qps);
}

ncclResult_t ep_net_qps_new(struct ep_net_comm *c)
{
	uint32_t paths = (c->npaths + c->nlocals - 1) / c->nlocals; /* of a port, at most */
	uint32_t each = c->nqps / c->npaths * paths;
	uint64_t most = UINT32_MAX, both = UINT32_MAX; /* entries of a queue; of both of a pair */
	struct ep_rc_room room = { .rq = 1, .inline_bytes = EP_NET_INLINE };

	for (uint32_t i = 0; i < c->nlocals; i++) {
		const struct ibv_device_attr *attr = &c->local[i].dev->nic.attr;
		uint64_t cqes = (uint64_t)attr->max_cqe;

		if (c->local[i].broken) {
			continue;
		}
		most = ep_min_u64(most, (uint64_t)attr->max_qp_wr);
		both = ep_min_u64(both, (cqes - ep_min_u64(cqes, EP_NET_FLUSH_DEPTH)) / each);
		if (both < EP_NET_LEAST_BOTH) {
			return ep_fail(ncclSystemError,
				       "%s: completion queues with %d entries are too short for %u "
				       "queue pairs (NCCL_IB_QPS_PER_CONNECTION is %d)",
				       c->local[i].dev->label, attr->max_cqe, each,
				       ep_net_env()->qps);
		}
	}
	if (!c->sender) {
		room.rq = (uint32_t)ep_min_u64(ep_min_u64(EP_NET_RQ_DEPTH, most), both / 2);
	}
	room.sq = (uint32_t)ep_min_u64(ep_min_u64(EP_NET_SQ_DEPTH, most), both - room.rq);
	c->qp = calloc(c->nqps, sizeof(*c->qp));
	c->open.qp = calloc(c->nqps, sizeof(*c->open.qp));
	if (!c->qp || !c->open.qp) {
		return ep_fail(ncclSystemError, "out of host memory for a connection");
	}
	/*
	 * Room for all that can complete at once: each entry of each queue, and flushes. Queue
	 * pairs that are replaced leave nothing there: see recovery_begin() in p2p_paths.c.
	 */
	for (uint32_t i = 0; i < c->nlocals; i++) {
		struct ep_net_local *l = &c->local[i];

		if (l->broken) {
			continue;
		}
		EP_CHECK(ep_net_cq_new(l->dev,
				       (uint64_t)each * (room.sq + room.rq) + EP_NET_FLUSH_DEPTH,
				       &l->cq_lost, &l->cq));
	}
	for (uint32_t i = 0; i < c->nqps; i++) {
		EP_CHECK(qp_open(c, &room, i));
	}
	/* (there may be less on the way) */
	c->sq_depth = room.sq;
	c->rq_depth = room.rq;
	c->inline_bytes = room.inline_bytes;
	for (uint32_t i = 0; i < c->nqps; i++) {
		c->qp[i].room = c->sq_depth;
		if (c->path && c->sender) {
			c->qp[i].part = calloc(c->sq_depth, sizeof(*c->qp[i].part));
			if (!c->qp[i].part) {
				return ep_fail(ncclSystemError,
					       "out of host memory for a connection");
			}
		}
	}
	for (uint32_t i = 0; i < c->nlocals; i++) {
		if (!c->local[i].broken) {
			ep_rc_ece_query(&c->local[i].dev->nic, ep_net_env(), c->qp[i].qp,
					&c->local[i].ece);
		}
	}
	ep_net_qps_choose(c);
	return ncclSuccess;
}

/* ---- connecting ---- */

ncclResult_t ep_net_receives_post(struct ep_net_comm *c, uint32_t qp, uint32_t n)
{
	struct ibv_recv_wr wr[EP_NET_RECEIVES_TOGETHER], *bad;
	int error = 0;

	while (n && !error) {
		uint32_t some = (uint32_t)ep_min_u64(n, EP_NET_RECEIVES_TOGETHER);

		for (uint32_t i = 0; i < some; i++) {
			wr[i] = (struct ibv_recv_wr){ .wr_id = EP_NET_WR_ID(EP_NET_WORK_RECEIVE, qp,
									    0, 0) |
							       EP_NET_WR_GENERATION_OF(&c->qp[qp]),
						      .next = i + 1 < some ? &wr[i + 1] : NULL };
		}
		error = ibv_post_recv(c->qp[qp].qp, wr, &bad);
		c->qp[qp].receives += some;
		n -= some;
	}
	return error ? ep_net_comm_fail(c, ncclSystemError, qp, "receives cannot be posted: %s",
					strerror(error))
		     : ncclSuccess;
}

static bool path_is_lost(const struct ep_net_comm *c, uint32_t path)
{
	return !ep_net_path_is_open(c, path) || (c->path && c->path[path].lost);
}

/*
 * Whether an error means that there is no path for now. Where the port has gone down, or the device
 * has failed, it may be any: the port has lost its address, for one.
 */
static bool means_lost(struct ep_net_dev *dev, int error)
{
	if (error) {
		ep_net_dev_events(dev);
	}
	return error == ETIMEDOUT || error == ENETUNREACH || error == EHOSTUNREACH ||
	       (error && !ep_net_dev_up(dev, 0));
}

/* `once`: where the peer is not found, the path is lost; else the NIC tries again for long. */
static ncclResult_t qp_connect(struct ep_net_comm *c, uint32_t i, bool once)
{
	struct ep_net_qp *q = &c->qp[i];
	const struct ep_net_local *l = &c->local[q->local_port];
	const struct ep_net_remote *remote = &c->remote[q->remote_port];
	struct ep_rc_path rc_path = { .from = &l->end,
				      .to = &remote->end,
				      .tc = l->tc,
				      .sl = l->sl,
				      .once = once,
				      .gid_index = l->index.gid,
				      .to_down = remote->down != 0,
				      .ece_agreed = c->sender };
	int error;

	/*
	 * what both ends can is agreed for each pair of ports: a port of several pairs keeps to the
	 * standard
	 */
	if (c->nlocals == c->nremotes) {
		rc_path.ece = ep_rc_ece_received(&l->ece, &remote->ece);
	}
	error = once ? ep_net_queue_try(l->dev, q->qp, &rc_path, q->remote_qpn) : 0;
	if (means_lost(l->dev, error)) {
		c->path[q->path].lost = true;
		return ncclSuccess;
	}
	if (!once || error) { /* (again, for the error's text) */
		EP_CHECK(ep_net_queue_connect(l->dev, q->qp, &rc_path, q->remote_qpn));
	}
	return c->sender ? ncclSuccess : ep_net_receives_post(c, i, c->rq_depth);
}

/* Connects those of paths that are not lost. *found: of how many. */
static ncclResult_t qps_connect(struct ep_net_comm *c, bool once, uint32_t *found)
{
	*found = 0;
	for (uint32_t i = 0; i < c->nqps; i++) {
		if (!path_is_lost(c, c->qp[i].path) && c->qp[i].qp->state != IBV_QPS_RTS) {
			EP_CHECK(qp_connect(c, i, once));
		}
	}
	for (uint32_t i = 0; i < c->npaths; i++) {
		*found += !path_is_lost(c, i);
	}
	return ncclSuccess;
}

uint32_t ep_net_paths_lost(const struct ep_net_comm *c)
{
	uint32_t lost = 0;

	for (uint32_t i = 0; i < c->npaths && c->path; i++) {
		lost |= (uint32_t)c->path[i].lost << i;
	}
	return lost;
}

static void paths_lose(struct ep_net_comm *c, uint32_t lost)
{
	for (uint32_t i = 0; i < c->npaths && c->path; i++) {
		c->path[i].lost = lost >> i & 1;
	}
}

/*
 * The sender, who is the second one, tries those paths alone over which it was found: else each end
 * could have lost what is left to the other one.
 */
ncclResult_t ep_net_qps_connect(struct ep_net_comm *c, const struct ep_net_peer *peer)
{
	bool pairs = c->nlocals == c->nremotes;
	uint32_t found = 0;

	for (uint32_t i = 0; i < c->nqps; i++) {
		struct ep_net_qp *q = &c->qp[i];

		q->remote_port = (uint8_t)(q->path % c->nremotes);
		if (c->path) {
			c->path[q->path].remote_port = q->remote_port;
		}
		q->remote_qpn = peer->qpn[i];
	}
	paths_lose(c, peer->lost);
	if (c->open.paths > 1) {
		EP_CHECK(qps_connect(c, true, &found));
	}
	if (!found) {
		paths_lose(c, peer->lost);
		EP_CHECK(qps_connect(c, false, &found));
	}
	if (!found) {
		return ep_fail(ncclRemoteError,
			       "%s sends impossible values (lost paths 0x%x of %u): do all ranks "
			       "use the same plugin?",
			       c->peer, peer->lost, c->npaths);
	}
	/* The receiver's NIC has the sender's bits now, and returns what is left. */
	for (uint32_t i = 0; i < c->nlocals && !c->sender; i++) {
		struct ep_net_local *l = &c->local[i];

		if (pairs && !path_is_lost(c, c->qp[i].path) &&
		    ep_rc_ece_received(&l->ece, &c->remote[i].ece).options) {
			ep_rc_ece_query(&l->dev->nic, ep_net_env(), c->qp[i].qp, &l->ece);
		} else {
			l->ece = (struct ep_ece){ 0 };
		}
	}
	return ncclSuccess;
}

/* ---- which of them messages go over ---- */

void ep_net_qps_choose(struct ep_net_comm *c)
{
	c->open.n = c->open.paths = 0;
	for (uint32_t i = 0; i < c->npaths; i++) {
		c->open.paths += !c->path || c->path[i].state == EP_NET_PATH_OPEN;
	}
	for (uint32_t i = 0; i < c->nqps; i++) {
		if (!c->path || c->path[c->qp[i].path].state == EP_NET_PATH_OPEN) {
			c->open.qp[c->open.n++] = i;
		}
	}
	c->open.next = 0;
}
