/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looks after the lanes of a mesh: hears and tells what has come by those that are closed, and sends the rest
 * over others.
 */
#include <time.h>
#include "core/log.h"
#include "net/link/handshake.h"
#include "net/mesh/rma.h"

#define EP_NET_LANE_MAGIC 0x656e616cu
#define EP_NET_DRAIN_NS 500000000ull /* for a NIC to give back what was posted */

/* ---- what both know ---- */

/* An op of a lane that is closed. */
static ncclResult_t ep_net_lane_move(struct ep_net_rma *rma, uint32_t number)
{
	struct ep_net_op *op = ep_net_op_at(rma, number);
	struct ep_net_link *link = op->link, *lane = ep_net_lane_open(rma, link);

	op->left = 0;
	if (op->kind == EP_NET_FLUSH) {
		/* All that was received by the port has been waited for. */
		op->posted = true;
		ep_net_op_end(rma, op, number);
		return ncclSuccess;
	}
	if (!lane) {
		return ep_net_rma_fail(rma, link, ncclRemoteError,
				       "the peer has closed the connection, %u requests are under "
				       "way here: see its log",
				       link->live);
	}
	op->at = 0;
	op->posted = false;
	op->link = lane;
	op->lkey = op->lkeys[lane->port];
	op->rkey = op->rkeys[lane->remote_port];
	link->live--;
	lane->live++;
	ep_net_link_append(rma, lane, number);
	return ep_net_link_push(rma, lane);
}

static ncclResult_t ep_net_lane_settle(struct ep_net_rma *rma, struct ep_net_link *link)
{
	uint32_t received = link->remote_received - link->notified, next;

	link->lane = EP_NET_LANE_CLOSED;
	rma->closing--;
	if (received > link->flight_last - link->flight_first) {
		return ep_net_rma_fail(rma, link, ncclRemoteError,
				       "the peer has had %u messages of this queue pair, %u were "
				       "sent",
				       link->remote_received,
				       link->notified + link->flight_last - link->flight_first);
	}
	for (; link->flight_first != link->flight_last; link->flight_first++) {
		uint32_t number = link->flight[link->flight_first % link->sq];
		struct ep_net_op *op = ep_net_op_at(rma, number);

		if (op->notify && received) {
			received--;
			op->left = 0;
			ep_net_op_end(rma, op, number);
		} else {
			EP_CHECK(ep_net_lane_move(rma, number));
		}
	}
	next = link->first;
	link->first = link->last = EP_NET_NO_OP;
	while (next != EP_NET_NO_OP) {
		uint32_t number = next;

		next = ep_net_op_at(rma, number)->next;
		EP_CHECK(ep_net_lane_move(rma, number));
	}
	return ncclSuccess;
}

/* An open one by a port that is up. */
static bool ep_net_lane_other(const struct ep_net_rma *rma, const struct ep_net_link *link)
{
	uint32_t n = (uint32_t)rma->config.contexts * rma->mesh->nranks;

	for (uint32_t i = link->rank; i < n; i += rma->mesh->nranks) {
		const struct ep_net_link *lane = &rma->link[i];

		if (lane != link && lane->lane == EP_NET_LANE_OPEN &&
		    ep_net_dev_up(lane->port_ctx->dev, 0)) {
			return true;
		}
	}
	return false;
}

/* ---- control messages ---- */

/* Tells ranks of lanes that are closed here. */
static void ep_net_lanes_report(struct ep_net_rma *rma, bool last)
{
	uint32_t n = (uint32_t)rma->config.contexts * rma->mesh->nranks, nranks = rma->mesh->nranks;

	for (uint32_t i = 0; i < n; i++) {
		struct ep_net_link *link = &rma->link[i];
		struct ep_net_lane_ctrl *t = &rma->ctrl[link->rank];

		if (!link->notify && !t->sending) {
			continue;
		}
		if (!t->sending) {
			t->out = (struct ep_net_lane_msg){ .magic = EP_NET_LANE_MAGIC,
							   .lane = (uint16_t)(i / nranks),
							   .last = last,
							   .received = link->received };
			t->out_at = 0;
			t->sending = true;
			link->notify = false;
		}
		if (ep_net_put(rma->mesh->fd[link->rank], &t->out, sizeof(t->out), &t->out_at) !=
		    EP_NET_IO_AGAIN) {
			t->sending = false; /* (who is gone is found out elsewhere) */
		}
	}
}

static ncclResult_t ep_net_lane_receive(struct ep_net_rma *rma, uint32_t r,
					const struct ep_net_lane_msg *msg)
{
	struct ep_net_link *link = &rma->link[r];

	if (msg->magic != EP_NET_LANE_MAGIC || msg->lane >= rma->config.contexts ||
	    rma->link[msg->lane * rma->mesh->nranks + r].reported) {
		return ep_net_rma_fail(rma, link, ncclRemoteError,
				       "the peer says what makes no sense (0x%08x, lane %u of %d)",
				       msg->magic, msg->lane, rma->config.contexts);
	}
	link = &rma->link[msg->lane * rma->mesh->nranks + r];
	link->reported = true;
	link->remote_received = msg->received;
	if (link->lane != EP_NET_LANE_OPEN) {
		return ncclSuccess;
	}
	if (msg->last) {
		ep_net_lane_stop(rma, link); /* nothing is wrong with it */
		return ncclSuccess;
	}
	ep_net_dev_events(link->port_ctx->dev);
	return ep_net_lane_failed(rma, link, "the peer has noticed a failure");
}

/* ---- looking after it ---- */

static ncclResult_t ep_net_lane_step(struct ep_net_rma *rma, struct ep_net_link *link, uint64_t now)
{
	bool late = now > link->since + EP_NET_DRAIN_NS ||
		    __atomic_load_n(&link->port_ctx->dev->broken, __ATOMIC_RELAXED);

	if (link->lane != EP_NET_LANE_CLOSING) {
		return ncclSuccess;
	}
	if (!link->drained && link->receiving && late) {
		/* It gives nothing back any more, but what it has told of has come. */
		EP_CHECK(ep_net_port_ctx_drain(rma, link->port));
	}
	if (!link->drained && (!link->receiving || late)) {
		link->drained = true;
		link->notify = link->rank != rma->mesh->rank;
		link->reported |= !link->notify; /* (this rank tells itself nothing) */
	}
	if (link->drained && link->reported) {
		return ep_net_lane_settle(rma, link);
	}
	return now < link->since + ep_net_setup_ns()
		       ? ncclSuccess
		       : ep_net_rma_fail(rma, link, ncclRemoteError,
					 "waited %llu ms for the peer to close its end of a queue "
					 "pair that has failed: is its process stuck? "
					 "(NCCL_EP_BOOTSTRAP_TIMEOUT_MS)",
					 (unsigned long long)(ep_net_setup_ns() / 1000000));
}

ncclResult_t ep_net_lanes_look(struct ep_net_rma *rma)
{
	uint32_t n = (uint32_t)rma->config.contexts * rma->mesh->nranks;
	uint64_t now = ep_now_ns();

	for (uint32_t r = 0; r < rma->mesh->nranks; r++) {
		struct ep_net_lane_ctrl *t = &rma->ctrl[r];
		int fd = rma->mesh->fd[r];

		while (fd >= 0 &&
		       ep_net_take(fd, &t->in, sizeof(t->in), &t->in_at) == EP_NET_IO_DONE) {
			t->in_at = 0;
			EP_CHECK(ep_net_lane_receive(rma, r, &t->in));
		}
	}
	for (uint32_t i = 0; i < n; i++) {
		struct ep_net_link *link = &rma->link[i];
		const struct ep_net_dev *dev = link->port_ctx->dev;

		if (__atomic_load_n(&dev->broken, __ATOMIC_RELAXED) ||
		    (ep_net_dev_down(dev) && ep_net_lane_other(rma, link))) {
			EP_CHECK(ep_net_lane_failed(rma, link, "it is given up"));
		}
		if (rma->closing) {
			EP_CHECK(ep_net_lane_step(rma, link, now));
		}
	}
	ep_net_lanes_report(rma, false);
	return ncclSuccess;
}

/* Whether some lane is closed, and the NIC has not given back what was posted. */
static bool ep_net_lanes_draining(const struct ep_net_rma *rma)
{
	uint32_t n = (uint32_t)rma->config.contexts * rma->mesh->nranks;
	bool left = false;

	for (uint32_t i = 0; i < n; i++) {
		const struct ep_net_link *link = &rma->link[i];

		left |= link->lane == EP_NET_LANE_CLOSING && !link->drained && link->receiving &&
			!__atomic_load_n(&link->port_ctx->dev->broken, __ATOMIC_RELAXED);
	}
	return left;
}

/* Looks after lanes: the other end waits for what comes of it, and nobody may call again. */
void ep_net_lanes_async(struct ep_net_rma *rma)
{
	uint64_t until = ep_now_ns() + 2 * EP_NET_DRAIN_NS;
	ncclResult_t result = ep_net_rma_failed(rma);
	struct timespec nap = { 0, 20000 };
	int any;

	for (;;) {
		if (result == ncclSuccess) {
			result = ep_net_rma_poll(rma, &any);
		}
		if (result == ncclSuccess) {
			result = ep_net_lanes_look(rma);
		}
		if (result != ncclSuccess || !ep_net_lanes_draining(rma) || ep_now_ns() >= until) {
			return;
		}
		nanosleep(&nap, NULL);
	}
}

void ep_net_lanes_leave(struct ep_net_rma *rma)
{
	uint32_t n = (uint32_t)rma->config.contexts * rma->mesh->nranks;
	uint64_t until = ep_now_ns() + EP_NET_DRAIN_NS;
	int any;

	if (!rma->ctrl || !rma->handle || rma->failed.code != ncclSuccess) {
		return;
	}
	(void)ep_net_lanes_look(rma);
	for (uint32_t i = 0; i < n; i++) {
		if (rma->link[i].lane == EP_NET_LANE_OPEN && rma->link[i].rank != rma->mesh->rank) {
			ep_net_lane_stop(rma, &rma->link[i]);
		}
	}
	while (ep_net_rma_poll(rma, &any) == ncclSuccess && ep_net_lanes_draining(rma) &&
	       ep_now_ns() < until) {
	}
	for (uint32_t i = 0; i < n; i++) {
		struct ep_net_link *link = &rma->link[i];

		link->notify |= link->lane == EP_NET_LANE_CLOSING && !link->drained;
	}
	ep_net_lanes_report(rma, true);
}
