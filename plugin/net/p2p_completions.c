/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What completions mean. Those of requests are handled at once. Failures of paths are noted for
 * ep_net_paths_act(): it closes paths, which handles completions, too.
 */
#include <endian.h>
#include "net/p2p.h"

/* ---- work that has succeeded ---- */

/* A message's part has come. */
static ncclResult_t arrived(struct ep_net_comm *c, const struct ibv_wc *wc, uint32_t qp)
{
	uint32_t imm = be32toh(wc->imm_data), slot = EP_NET_IMM_SLOT(imm);
	uint32_t entry = EP_NET_IMM_ENTRY(imm), i;
	struct ep_net_request *r;

	i = slot < EP_NET_SLOTS ? c->groups.request[slot] : EP_NET_NO_REQUEST;
	r = i == EP_NET_NO_REQUEST ? NULL : &c->request[i];
	if (!r || entry >= r->n || r->done[entry] || EP_NET_IMM_PARTS(imm) > c->nqps ||
	    (r->seen[entry] && r->parts[entry] != EP_NET_IMM_PARTS(imm))) {
		return ep_net_comm_fail(c, ncclRemoteError, qp,
					"the peer names a receive that is not there (0x%08x)", imm);
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
		return ep_net_comm_fail(
			c, ncclRemoteError, qp,
			"the peer claims to have sent %llu bytes to a receive of %u",
			(unsigned long long)r->size[entry], r->limit[entry]);
	}
	if (r->seen[entry] == r->parts[entry]) {
		r->done[entry] = true;
		c->counts->messages++;
		c->counts->bytes += r->size[entry];
		if (--r->left == 0) {
			c->groups.request[slot] = EP_NET_NO_REQUEST;
			c->groups.open--;
		}
	}
	return ncclSuccess;
}

static ncclResult_t message_received(struct ep_net_comm *c, const struct ibv_wc *wc)
{
	uint32_t qp = EP_NET_WR_QP(wc->wr_id), owed;
	struct ep_net_qp *q = &c->qp[qp];

	q->receives--;
	if (c->path && c->path[q->path].drained) {
		return ncclSuccess; /* too late: the sender was notified that it has not arrived */
	}
	q->received++;
	EP_CHECK(arrived(c, wc, qp));
	owed = ++q->owed;
	if (owed >= ep_min_u64(c->rq_depth / 2, EP_NET_RECEIVES_TOGETHER) &&
	    ep_net_path_lives(c, q->path)) {
		q->owed = 0;
		return ep_net_receives_post(c, qp, owed);
	}
	return ncclSuccess;
}

static ncclResult_t completed(struct ep_net_comm *c, const struct ibv_wc *wc)
{
	uint32_t qp = EP_NET_WR_QP(wc->wr_id), number = EP_NET_WR_NUMBER(wc->wr_id);
	struct ep_net_path *path;

	switch (EP_NET_WR_KIND(wc->wr_id)) {
	case EP_NET_WORK_SEND:
		/* (of a path that was closed the receiver sends what has come) */
		if (ep_net_path_is_open(c, c->qp[qp].path)) {
			c->qp[qp].room += EP_NET_WR_WRS(wc->wr_id);
			c->qp[qp].first++;
			c->request[number].left--;
		}
		return ncclSuccess;
	case EP_NET_WORK_SLOT:
		if (ep_net_path_is_open(c, c->qp[qp].path)) {
			c->qp[qp].room += EP_NET_WR_WRS(wc->wr_id);
			c->slots.acked += number;
		}
		return ncclSuccess;
	case EP_NET_WORK_PROBE:
		c->qp[qp].room += EP_NET_WR_WRS(wc->wr_id);
		path = &c->path[c->qp[qp].path];
		if (path->state == EP_NET_PATH_PROBING && --path->probes == 0) {
			path->noted.probed = c->paths.due = true;
		}
		return ncclSuccess;
	case EP_NET_WORK_FLUSH:
		ep_net_flush_ended(c, qp - EP_NET_WR_FLUSH_QP(0), number);
		return ncclSuccess;
	default:
		return message_received(c, wc);
	}
}

/* ---- failures ---- */

/* The first failure that shows more than that something has failed before. */
static void failure_note(struct ep_net_comm *c, uint32_t path, const struct ibv_wc *wc)
{
	struct ep_net_path *r = &c->path[path];

	if (ep_net_path_lives(c, path) &&
	    (!r->noted.failed || (r->noted.failure.status == IBV_WC_WR_FLUSH_ERR &&
				  wc->status != IBV_WC_WR_FLUSH_ERR))) {
		r->noted.failure = *wc;
		r->noted.failed = c->paths.due = true;
	}
}

/* Notes a failure of a path, or fails the connection. */
static ncclResult_t failed_one(struct ep_net_comm *c, const struct ibv_wc *wc)
{
	uint32_t qp = EP_NET_WR_QP(wc->wr_id), local;

	if (EP_NET_WR_KIND(wc->wr_id) == EP_NET_WORK_RECEIVE) {
		c->qp[qp].receives--;
	}
	if (!c->path || !ep_net_status_blames_path(wc->status)) {
		return ep_net_comm_fail_wc(c, wc);
	}
	if (EP_NET_WR_KIND(wc->wr_id) != EP_NET_WORK_FLUSH) {
		failure_note(c, c->qp[qp].path, wc);
		return ncclSuccess;
	}
	/*
	 * A flush fails for all paths of its port. It has shown what it was to show: a path that
	 * fails has waited for all that was received.
	 */
	local = qp - EP_NET_WR_FLUSH_QP(0);
	for (uint32_t i = 0; i < c->npaths; i++) {
		if (c->path[i].local_port == local) {
			failure_note(c, i, wc);
		}
	}
	ep_net_flush_ended(c, local, EP_NET_WR_NUMBER(wc->wr_id));
	return ncclSuccess;
}

/* Work of a batch that has failed, after what has succeeded was taken up. */
static ncclResult_t work_failed(struct ep_net_comm *c, const struct ibv_wc *wc, int n)
{
	for (uint32_t i = 0; i < c->nlocals; i++) {
		ep_net_dev_events(c->local[i].dev);
	}
	/* First those that show more than that something has failed before. */
	for (int flushed = 0; flushed < 2; flushed++) {
		for (int i = 0; i < n; i++) {
			if (wc[i].status != IBV_WC_SUCCESS &&
			    (wc[i].status == IBV_WC_WR_FLUSH_ERR) == flushed) {
				EP_CHECK(failed_one(c, &wc[i]));
			}
		}
	}
	return ncclSuccess;
}

/* ---- polling ---- */

/* Leaves out completions of queue pairs that are there no more. Returns how much is left. */
static int forget_old(const struct ep_net_comm *c, struct ibv_wc *wc, int n)
{
	int kept = 0;

	for (int i = 0; i < n; i++) {
		uint32_t qp = EP_NET_WR_QP(wc[i].wr_id);

		if (qp >= c->nqps || EP_NET_WR_GENERATION(wc[i].wr_id) == c->qp[qp].generation) {
			wc[kept++] = wc[i];
		}
	}
	return kept;
}

ncclResult_t ep_net_poll(struct ep_net_comm *c, struct ep_net_local *port, bool *any)
{
	struct ibv_wc wc[EP_NET_POLL];
	int n = port->cq ? ibv_poll_cq(port->cq, EP_NET_POLL, wc) : 0;
	bool failed = false;

	*any = n != 0;
	if (n < 0) {
		return ep_net_comm_fail(c, ncclSystemError,
					ep_net_port_qp(c, (uint32_t)(port - c->local)),
					"the completion queue has failed");
	}
	c->counts->completions += (uint32_t)n;
	if (c->path) {
		n = forget_old(c, wc, n);
	}
	for (int i = 0; i < n; i++) {
		if (wc[i].status == IBV_WC_SUCCESS) {
			EP_CHECK(completed(c, &wc[i]));
		} else {
			failed = true;
		}
	}
	return failed ? work_failed(c, wc, n) : ncclSuccess;
}
