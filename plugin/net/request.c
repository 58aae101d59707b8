/* SPDX-License-Identifier: Apache-2.0 */
/* Requests, and the completions that end them. */
#include <endian.h>
#include <string.h>
#include "core/log.h"
#include "net/route.h"
#include "net/sock.h"

#define EP_NET_POLL 16
#define EP_NET_IDLE 256               /* looks in vain between two looks at the clock */
#define EP_NET_LOOK_NS 20000000ull    /* between two looks for the other end */
#define EP_NET_GRACE_NS 1000000000ull /* for what the NIC may still bring of an end that is gone */

/* ---- requests ---- */

uint32_t ep_net_request_new(struct ep_net_comm *c)
{
	uint32_t i = c->free;

	if (i != EP_NET_NO_REQUEST) {
		struct ep_net_request *r = &c->request[i];

		c->free = r->next;
		r->use = (r->use + 1) & ((1u << EP_NET_REQUEST_USE_BITS) - 1);
		r->n = 0;
		r->left = 0;
		c->live++;
	}
	return i;
}

void ep_net_request_free(struct ep_net_comm *c, uint32_t i)
{
	struct ep_net_request *r = &c->request[i];

	r->use = (r->use + 1) & ((1u << EP_NET_REQUEST_USE_BITS) - 1);
	r->next = c->free;
	c->free = i;
	c->live--;
	c->nflushes -= !c->sender && r->n == 0;
}

void *ep_net_request_handle_of(const struct ep_net_comm *c, uint32_t i)
{
	return ep_net_request_handle(ep_net_slot_of(c->handle), i, c->request[i].use);
}

/* ---- completions ---- */

/* A message's part has come. */
static ncclResult_t ep_net_arrived(struct ep_net_comm *c, const struct ibv_wc *wc, uint32_t qp)
{
	uint32_t imm = be32toh(wc->imm_data), slot = EP_NET_IMM_SLOT(imm);
	uint32_t entry = EP_NET_IMM_ENTRY(imm), i;
	struct ep_net_request *r;

	i = slot < EP_NET_SLOTS ? c->slot_request[slot] : EP_NET_NO_REQUEST;
	r = i == EP_NET_NO_REQUEST ? NULL : &c->request[i];
	if (!r || entry >= r->n || r->done[entry] || EP_NET_IMM_PARTS(imm) > c->nqps ||
	    (r->seen[entry] && r->parts[entry] != EP_NET_IMM_PARTS(imm))) {
		return ep_net_comm_fail(c, ncclRemoteError, qp,
					"the peer speaks of a receive that is not there (0x%08x)",
					imm);
	}
	r->parts[entry] = (uint8_t)EP_NET_IMM_PARTS(imm);
	r->seen[entry]++;
	if (!EP_NET_IMM_RECORD(imm)) {
		r->size[entry] += wc->byte_len;
	} else {
		r->size[entry] =
			__atomic_load_n(&c->shared->record[slot][entry].size, __ATOMIC_ACQUIRE);
	}
	if (r->size[entry] > r->limit[entry]) {
		return ep_net_comm_fail(c, ncclRemoteError, qp,
					"the peer says that it sent %llu bytes to a receive of %u",
					(unsigned long long)r->size[entry], r->limit[entry]);
	}
	if (r->seen[entry] == r->parts[entry]) {
		r->done[entry] = true;
		c->counts->messages++;
		c->counts->bytes += r->size[entry];
		if (--r->left == 0) {
			c->slot_request[slot] = EP_NET_NO_REQUEST;
			c->open--;
		}
	}
	return ncclSuccess;
}

static ncclResult_t ep_net_received(struct ep_net_comm *c, const struct ibv_wc *wc)
{
	uint32_t qp = EP_NET_WR_QP(wc->wr_id), owed;
	struct ep_net_qp *q = &c->qp[qp];

	q->receives--;
	if (c->route && c->route[q->route].drained) {
		return ncclSuccess; /* too late: the sender was told that it has not come */
	}
	q->came++;
	EP_CHECK(ep_net_arrived(c, wc, qp));
	owed = ++q->owed;
	if (owed >= ep_min_u64(c->rq_depth / 2, EP_NET_RECEIVES_TOGETHER) &&
	    ep_net_route_lives(c, q->route)) {
		q->owed = 0;
		return ep_net_receives_post(c, qp, owed);
	}
	return ncclSuccess;
}

static ncclResult_t ep_net_completed(struct ep_net_comm *c, const struct ibv_wc *wc)
{
	uint32_t qp = EP_NET_WR_QP(wc->wr_id), number = EP_NET_WR_NUMBER(wc->wr_id);

	switch (EP_NET_WR_KIND(wc->wr_id)) {
	case EP_NET_WORK_SEND:
		/* (of a route that was closed the receiver says what has come) */
		if (ep_net_route_is_open(c, c->qp[qp].route)) {
			c->qp[qp].room += EP_NET_WR_WRS(wc->wr_id);
			c->qp[qp].first++;
			c->request[number].left--;
		}
		return ncclSuccess;
	case EP_NET_WORK_SLOT:
		if (ep_net_route_is_open(c, c->qp[qp].route)) {
			c->qp[qp].room += EP_NET_WR_WRS(wc->wr_id);
			c->told += number;
		}
		return ncclSuccess;
	case EP_NET_WORK_PROBE:
		c->qp[qp].room += EP_NET_WR_WRS(wc->wr_id);
		return ep_net_back_probed(c, c->qp[qp].route);
	case EP_NET_WORK_FLUSH:
		ep_net_flush_ended(c, qp - EP_NET_WR_FLUSH_QP(0), number);
		return ncclSuccess;
	default:
		return ep_net_received(c, wc);
	}
}

/* ---- failures ---- */

/* Of a flush: of all routes of the port. What it was to show is there: all that came has been waited for. */
static ncclResult_t ep_net_flush_failed(struct ep_net_comm *c, const struct ibv_wc *wc)
{
	uint32_t local = EP_NET_WR_QP(wc->wr_id) - EP_NET_WR_FLUSH_QP(0);

	for (uint32_t i = 0; i < c->nroutes; i++) {
		if (c->route[i].local == local) {
			EP_CHECK(ep_net_route_failed(c, i, wc));
		}
	}
	ep_net_flush_ended(c, local, EP_NET_WR_NUMBER(wc->wr_id));
	return ncclSuccess;
}

static ncclResult_t ep_net_failed_one(struct ep_net_comm *c, const struct ibv_wc *wc)
{
	if (!c->route || !ep_net_route_to_blame(wc->status)) {
		return ep_net_comm_fail_wc(c, wc);
	}
	return EP_NET_WR_KIND(wc->wr_id) == EP_NET_WORK_FLUSH
		       ? ep_net_flush_failed(c, wc)
		       : ep_net_route_failed(c, c->qp[EP_NET_WR_QP(wc->wr_id)].route, wc);
}

/* Work of a batch that has failed, after what has succeeded was taken up. */
static ncclResult_t ep_net_failed(struct ep_net_comm *c, const struct ibv_wc *wc, int n)
{
	for (uint32_t i = 0; i < c->nlocals; i++) {
		ep_net_dev_events(c->local[i].dev);
	}
	for (int i = 0; i < n; i++) {
		if (wc[i].status != IBV_WC_SUCCESS &&
		    EP_NET_WR_KIND(wc[i].wr_id) == EP_NET_WORK_RECEIVE) {
			c->qp[EP_NET_WR_QP(wc[i].wr_id)].receives--;
		}
	}
	/* First those that tell more than that something has failed before. */
	for (int flushed = 0; flushed < 2; flushed++) {
		for (int i = 0; i < n; i++) {
			if (wc[i].status != IBV_WC_SUCCESS &&
			    (wc[i].status == IBV_WC_WR_FLUSH_ERR) == flushed) {
				EP_CHECK(ep_net_failed_one(c, &wc[i]));
			}
		}
	}
	return ncclSuccess;
}

/* Leaves out what queue pairs have told that are there no more. Returns how much is left. */
static int ep_net_forget_old(const struct ep_net_comm *c, struct ibv_wc *wc, int n)
{
	int kept = 0;

	for (int i = 0; i < n; i++) {
		uint32_t qp = EP_NET_WR_QP(wc[i].wr_id);

		if (qp >= c->nqps || EP_NET_WR_LIFE(wc[i].wr_id) == c->qp[qp].life) {
			wc[kept++] = wc[i];
		}
	}
	return kept;
}

ncclResult_t ep_net_poll(struct ep_net_comm *c, struct ep_net_local *l, bool *any)
{
	struct ibv_wc wc[EP_NET_POLL];
	int n = ibv_poll_cq(l->cq, EP_NET_POLL, wc);
	bool failed = false;

	*any = n != 0;
	if (n < 0) {
		return ep_net_comm_fail(c, ncclSystemError, (uint32_t)(l - c->local),
					"the completion queue has failed");
	}
	c->counts->completions += (uint32_t)n;
	if (c->route) {
		n = ep_net_forget_old(c, wc, n);
	}
	for (int i = 0; i < n; i++) {
		if (wc[i].status == IBV_WC_SUCCESS) {
			EP_CHECK(ep_net_completed(c, &wc[i]));
		} else {
			failed = true;
		}
	}
	return failed ? ep_net_failed(c, wc, n) : ncclSuccess;
}

/* ---- an end that is gone ---- */

/*
 * A NIC tells of a dead peer only who sends to it. Who has closed its end in order has nothing under
 * way, so that what is under way here will never end.
 */
static ncclResult_t ep_net_look(struct ep_net_comm *c)
{
	uint64_t now = ep_now_ns();

	if (now - c->looked < EP_NET_LOOK_NS) {
		return ncclSuccess;
	}
	c->looked = now;
	for (uint32_t i = 0; i < c->nlocals; i++) {
		ep_net_dev_events(c->local[i].dev);
		if (__atomic_load_n(&c->local[i].cq_lost, __ATOMIC_RELAXED)) {
			return ep_net_comm_fail(c, ncclSystemError, i,
						"the NIC has lost completions: its queue has "
						"overrun or failed");
		}
	}
	if (c->route) {
		EP_CHECK(ep_net_routes_look(c));
	} else if (__atomic_load_n(&c->local[0].dev->broken, __ATOMIC_RELAXED)) {
		return ep_net_comm_fail(c, ncclSystemError, 0, "the connection is lost");
	} else if (!c->gone && ep_net_gone(c->fd)) {
		c->gone = now;
	}
	/* (it may have been found gone since `now`) */
	if (c->gone && now >= c->gone + EP_NET_GRACE_NS) {
		return ep_net_comm_fail(c, ncclRemoteError, 0,
					"the peer has closed the connection or has ended, %u "
					"requests are under way here: see its log",
					c->live);
	}
	return ncclSuccess;
}

ncclResult_t ep_net_progress(struct ep_net_comm *c)
{
	bool any = false, some;

	c->counts->polls++;
	for (uint32_t i = 0; i < c->nlocals; i++) {
		EP_CHECK(ep_net_poll(c, &c->local[i], &some));
		any |= some;
	}
	if (c->again_first != c->again_last) {
		EP_CHECK(ep_net_parts_resend(c));
	}
	if (c->flush_first != EP_NET_NO_REQUEST) {
		EP_CHECK(ep_net_flushes_push(c));
	}
	if (c->said != c->groups && !c->sender) {
		EP_CHECK(ep_net_slots_say(c));
	}
	/* (a port that comes back is not waited for until there is nothing to do) */
	return (any && !c->route) || ++c->idle % EP_NET_IDLE ? ncclSuccess : ep_net_look(c);
}
