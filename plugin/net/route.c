/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to a route that fails, while the connection has others.
 *
 * A sender cannot know which of its writes have reached memory: it misses the acknowledgements, not
 * only what they acknowledge. If it wrote again at once, a message could come twice, and a packet
 * that was late could change memory which its receiver had long used for something else. So
 *
 *   1. an end that notices the failure, or hears of it, moves its queue pairs of the route to the error
 *      state: its NIC drops what comes for them from then on. The receiver takes up the completions of
 *      all its receives, and so knows how many parts each queue pair has brought.
 *   2. It tells the other end, with these numbers. Parts of a queue pair come in the order in which they
 *      were posted: the first so many have come, the others have not.
 *   3. When both have told each other, the sender takes the parts that came for sent and posts the others
 *      to queue pairs of open routes. If it was the route by which the receiver spoke of its receives, it
 *      writes those slots again that may not have arrived.
 *
 * A receiver that closes tells what came in the same way: the sender may miss its acknowledgements.
 */
#include <errno.h>
#include <string.h>
#include "core/log.h"
#include "net/hello.h"
#include "net/talk.h"

#define EP_NET_WORD 0x64726f77u
#define EP_NET_DRAIN_NS 500000000ull /* for a NIC to give back what was posted */

bool ep_net_route_to_blame(enum ibv_wc_status status)
{
	return status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_WR_FLUSH_ERR ||
	       status == IBV_WC_LOC_QP_OP_ERR || status == IBV_WC_REM_OP_ERR ||
	       status == IBV_WC_REM_ABORT_ERR || status == IBV_WC_RESP_TIMEOUT_ERR ||
	       status == IBV_WC_FATAL_ERR || status == IBV_WC_GENERAL_ERR;
}

/* ---- 1. nothing comes from it any more ---- */

static bool ep_net_local_in_use(const struct ep_net_comm *c, const struct ep_net_local *l)
{
	for (uint32_t i = 0; i < c->nroutes; i++) {
		if (c->route[i].state == EP_NET_ROUTE_OPEN && &c->local[i % c->nlocals] == l) {
			return true;
		}
	}
	return false;
}

/* A device that is broken says no to everything, and does nothing. */
static ncclResult_t ep_net_qp_stop(struct ep_net_comm *c, uint32_t i)
{
	const struct ep_net_local *l = &c->local[c->qp[i].local];
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	int error = l->dev->nic.v->ibv_modify_qp(c->qp[i].qp, &attr, IBV_QP_STATE);

	if (error) {
		ep_net_dev_events(l->dev); /* it may have said so, and nobody has heard it */
	}
	if (error && !__atomic_load_n(&l->dev->broken, __ATOMIC_RELAXED)) {
		return ep_net_comm_fail(
			c, ncclSystemError, i,
			"a queue pair of a route that has failed cannot be stopped: %s",
			strerror(error));
	}
	return ncclSuccess;
}

static uint32_t ep_net_receives_left(const struct ep_net_comm *c, uint32_t route)
{
	uint32_t left = 0;

	for (uint32_t i = route; i < c->nqps; i += c->nroutes) {
		left += c->qp[i].receives;
	}
	return left;
}

static ncclResult_t ep_net_route_drain(struct ep_net_comm *c, uint32_t route)
{
	struct ep_net_local *l = &c->local[route % c->nlocals];
	uint64_t until = ep_now_ns() + EP_NET_DRAIN_NS;
	bool any;

	for (uint32_t i = route; i < c->nqps; i += c->nroutes) {
		EP_CHECK(ep_net_qp_stop(c, i));
	}
	/* A device that is broken gives nothing back any more, but what it has told of has come. */
	do {
		EP_CHECK(ep_net_poll(c, l, &any));
	} while (ep_net_receives_left(c, route) &&
		 (any ||
		  (ep_now_ns() < until && !__atomic_load_n(&l->dev->broken, __ATOMIC_RELAXED))));
	c->route[route].drained = true;
	if (l->flush_qp && !ep_net_local_in_use(c, l)) {
		struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

		(void)l->dev->nic.v->ibv_modify_qp(l->flush_qp, &attr, IBV_QP_STATE);
	}
	return ncclSuccess;
}

/* ---- 2. telling ---- */

static void ep_net_route_tell(struct ep_net_comm *c, uint32_t route, bool last)
{
	struct ep_net_word word = { .magic = EP_NET_WORD, .route = (uint16_t)route, .last = last };
	uint32_t n = 0;

	for (uint32_t i = route; i < c->nqps; i += c->nroutes) {
		word.came[n++] = c->qp[i].came;
	}
	ep_net_talk_put(c, &word);
	(void)ep_net_talk_say(c); /* what is not said now, or fails, is looked after later */
}

/* ---- 3. what both know now ---- */

static ncclResult_t ep_net_parts_settle(struct ep_net_comm *c, uint32_t route)
{
	uint32_t k = 0;

	for (uint32_t i = route; i < c->nqps; i += c->nroutes, k++) {
		struct ep_net_qp *q = &c->qp[i];
		uint32_t came = c->route[route].came[k];

		if (came - q->first > q->posted - q->first) {
			return ep_net_comm_fail(
				c, ncclRemoteError, i,
				"the peer has had %u parts of messages of this queue "
				"pair, %u were sent",
				came, q->posted);
		}
		for (; q->first != came; q->first++) {
			c->request[q->part[q->first % c->sq_depth].request].left--;
		}
		c->resend += q->posted - q->first;
	}
	return ncclSuccess;
}

static ncclResult_t ep_net_route_settle(struct ep_net_comm *c, uint32_t route)
{
	struct ep_net_route *r = &c->route[route];

	if (r->state != EP_NET_ROUTE_CLOSING || !r->drained || !r->heard) {
		return ncclSuccess;
	}
	r->state = EP_NET_ROUTE_CLOSED;
	if (c->sender) {
		EP_CHECK(ep_net_parts_settle(c, route));
	} else if (c->qp[c->slot_qp].route == route && c->nopen) {
		c->slot_qp = c->open_qp[0];
		c->said = c->told;
		c->unsignaled = c->unsignaled_groups = 0;
	}
	return ncclSuccess;
}

/* `what`: why, for the log. */
static ncclResult_t ep_net_route_close(struct ep_net_comm *c, uint32_t route, const char *what)
{
	struct ep_net_route *r = &c->route[route];
	char which[EP_NET_WHICH];

	r->state = EP_NET_ROUTE_CLOSING;
	r->since = ep_now_ns();
	c->counts->failovers++;
	c->counts->route[route].open = 0;
	ep_net_comm_choose(c);
	ep_net_qp_print(c, route, which);
	if (c->nopen) {
		const struct ep_net_qp *q = &c->qp[c->open_qp[0]];
		const struct ep_nic_end *end = &c->local[q->local].end, *far = &c->far[q->far].end;

		EP_WARN("%s: %s%s; the connection goes on over %s:%d and %s:%u there%s", which,
			what, ep_net_port_print(&c->local[route % c->nlocals]), end->name,
			end->port, far->name, far->port, c->nopen_routes > 1 ? ", and others" : "");
	}
	EP_CHECK(ep_net_route_drain(c, route));
	ep_net_route_tell(c, route, false);
	return ep_net_route_settle(c, route);
}

ncclResult_t ep_net_route_failed(struct ep_net_comm *c, uint32_t route, const struct ibv_wc *wc)
{
	char why[EP_NET_WHICH];

	if (c->failed.code != ncclSuccess) {
		return ep_net_comm_failed(c);
	}
	if (c->route[route].state != EP_NET_ROUTE_OPEN) {
		return ncclSuccess;
	}
	if (c->nopen_routes == 1) {
		return wc ? ep_net_comm_fail_wc(c, wc)
			  : ep_net_comm_fail(c, ncclSystemError, route, "the connection is lost");
	}
	return ep_net_route_close(c, route, wc ? ep_net_wc_print(wc, why) : "it is given up");
}

/* ---- looking after it ---- */

static ncclResult_t ep_net_word_take(struct ep_net_comm *c, const struct ep_net_word *word)
{
	struct ep_net_route *r;

	if (word->magic != EP_NET_WORD || word->route >= c->nroutes ||
	    c->route[word->route].heard) {
		return ep_net_comm_fail(
			c, ncclRemoteError, 0,
			"the peer says what makes no sense (0x%08x, route %u of %u)", word->magic,
			word->route, c->nroutes);
	}
	r = &c->route[word->route];
	r->heard = true;
	memcpy(r->came, word->came, sizeof(r->came));
	if (word->last) {
		/* Nothing more goes to it, so that nothing has to be waited for here. */
		r->state = r->state == EP_NET_ROUTE_OPEN ? EP_NET_ROUTE_CLOSING : r->state;
		r->drained = true;
		ep_net_comm_choose(c);
		return ep_net_route_settle(c, word->route);
	}
	if (r->state == EP_NET_ROUTE_OPEN) {
		EP_CHECK(ep_net_route_close(c, word->route, "the peer has noticed a failure"));
	}
	EP_CHECK(ep_net_route_settle(c, word->route));
	return c->nopen_routes
		       ? ncclSuccess
		       : ep_net_comm_fail(c, ncclRemoteError, word->route,
					  "all ports of the NIC or of the peer's have failed");
}

static ncclResult_t ep_net_ports_look(struct ep_net_comm *c, uint64_t now)
{
	for (uint32_t i = 0; i < c->nroutes; i++) {
		const struct ep_net_dev *dev = c->local[i % c->nlocals].dev;

		if (__atomic_load_n(&dev->broken, __ATOMIC_RELAXED) ||
		    (c->nopen_routes > 1 && ep_net_dev_down(dev))) {
			EP_CHECK(ep_net_route_failed(c, i, NULL));
		}
		if (c->route[i].state == EP_NET_ROUTE_CLOSING && !c->gone &&
		    now > c->route[i].since + ep_net_setup_ns()) {
			return ep_net_comm_fail(c, ncclRemoteError, i,
						"waited %llu ms for the peer to close its end of a "
						"route that has failed: is its process stuck? "
						"(NCCL_EP_BOOTSTRAP_TIMEOUT_MS)",
						(unsigned long long)(ep_net_setup_ns() / 1000000));
		}
	}
	return ncclSuccess;
}

ncclResult_t ep_net_routes_look(struct ep_net_comm *c)
{
	enum ep_net_io_state state = EP_NET_IO_AGAIN;
	struct ep_net_word word;

	while (!c->gone && (state = ep_net_talk_hear(c, &word)) == EP_NET_IO_DONE) {
		EP_CHECK(ep_net_word_take(c, &word));
	}
	if (!c->gone && state != EP_NET_IO_AGAIN) {
		c->gone = ep_now_ns();
	}
	EP_CHECK(ep_net_ports_look(c, ep_now_ns()));
	if (!c->gone) {
		(void)ep_net_talk_say(c);
	}
	return ncclSuccess;
}

/* A queue pair that has room for a part; nqps: none. */
static uint32_t ep_net_qp_with_room(struct ep_net_comm *c)
{
	for (uint32_t i = 0; i < c->nopen; i++) {
		uint32_t qp = c->open_qp[c->next_open];

		c->next_open = (c->next_open + 1) % c->nopen;
		if (c->qp[qp].room >= EP_NET_PART_WR) {
			return qp;
		}
	}
	return c->nqps;
}

ncclResult_t ep_net_parts_resend(struct ep_net_comm *c)
{
	for (uint32_t i = 0; i < c->nqps; i++) {
		struct ep_net_qp *q = &c->qp[i];

		while (c->route[q->route].state == EP_NET_ROUTE_CLOSED && q->first != q->posted) {
			const struct ep_net_part *part = &q->part[q->first % c->sq_depth];
			uint32_t to = ep_net_qp_with_room(c);

			if (to == c->nqps) {
				return ncclSuccess;
			}
			EP_CHECK(ep_net_part_post(c, &c->request[part->request].message, to,
						  part->number));
			q->first++;
			c->resend--;
			c->counts->resent++;
		}
	}
	return ncclSuccess;
}

void ep_net_routes_close(struct ep_net_comm *c)
{
	if (c->fd < 0 || !c->handle) {
		return; /* it was never made */
	}
	/* (what the peer has said and nobody has read would make the kernel reset what is said now) */
	if (c->failed.code == ncclSuccess) {
		(void)ep_net_routes_look(c);
	}
	for (uint32_t i = 0; i < c->nroutes && !c->sender && c->failed.code == ncclSuccess; i++) {
		if (c->route[i].state == EP_NET_ROUTE_OPEN) {
			c->route[i].state = EP_NET_ROUTE_CLOSING;
			if (ep_net_route_drain(c, i) == ncclSuccess) {
				ep_net_route_tell(c, i, true);
			}
		}
	}
}
