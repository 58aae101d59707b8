/* SPDX-License-Identifier: Apache-2.0 */
/* Requests of a mesh: posted in the order in which they were made, as queue pairs have room. */
#include <endian.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/log.h"
#include "net/rma.h"
#include "net/route.h"
#include "rdma/syndrome.h"

#define EP_NET_POLL 16
#define EP_NET_IDLE 256               /* looks in vain between two looks at the clock */
#define EP_NET_LOOK_NS 20000000ull    /* between two looks for peers */
#define EP_NET_GRACE_NS 1000000000ull /* for what the NIC may still bring of a rank that is gone */
#define EP_NET_IMM_BYTES 8192u        /* of more, a message of its own tells the peer */

#define EP_NET_OP_ID(wrs, number) ((uint64_t)(wrs) << 32 | (number))
#define EP_NET_OP_ID_WRS(id) ((uint32_t)((id) >> 32))
#define EP_NET_OP_ID_RECEIVE (1ull << 63) /* and the number of the link */

/* ---- errors ---- */

ncclResult_t ep_net_rma_failed(const struct ep_net_rma *rma)
{
	return rma->failed.code == ncclSuccess ? ncclSuccess : ep_fail_again(&rma->failed);
}

ncclResult_t ep_net_rma_fail(struct ep_net_rma *rma, const struct ep_net_link *link,
			     ncclResult_t code, const char *fmt, ...)
{
	const struct ep_nic_end *from = &rma->mesh->ends[rma->mesh->rank].port[link->port];
	const struct ep_nic_end *to = &rma->mesh->ends[link->rank].port[link->far];
	struct ep_net_dev *dev = link->rail->dev;
	char mine[EP_GID_TEXT], theirs[EP_GID_TEXT], what[280];
	bool down = __atomic_load_n(&dev->port_down, __ATOMIC_RELAXED);
	bool broken = __atomic_load_n(&dev->broken, __ATOMIC_RELAXED);
	va_list args;

	EP_CHECK(ep_net_rma_failed(rma));
	va_start(args, fmt);
	vsnprintf(what, sizeof(what), fmt, args);
	va_end(args);
	code = ep_fail(code, "%s:%d QP 0x%06x (%s) to %s %s:%u QP 0x%06x (%s): %s%s", from->name,
		       from->port, link->qp->qp_num, ep_gid_print(from->gid, mine),
		       rma->mesh->who[link->rank], to->name, to->port, link->remote,
		       ep_gid_print(to->gid, theirs), what,
		       broken ? "; the device reports a fatal error"
		       : down ? "; the port is down: see the cable and the switch"
			      : "");
	ep_error_get(NULL, &rma->failed);
	__atomic_store_n(&rma->broken, 1, __ATOMIC_RELAXED);
	return code;
}

/* A failure of this rank's NIC or of its way to a peer: ranks that wait for this one learn of it, too. */
static ncclResult_t ep_net_rma_lost(struct ep_net_rma *rma, const struct ep_net_link *link,
				    ncclResult_t code, const char *why)
{
	code = ep_net_rma_fail(rma, link, code, "%s", why);
	if (!rma->talk) {
		ep_net_mesh_lose(rma->mesh, rma->failed.text);
	}
	return code;
}

/* ---- requests ---- */

struct ep_net_op *ep_net_op_at(const struct ep_net_rma *rma, uint32_t number)
{
	return &rma->chunk[number / EP_NET_OPS_CHUNK][number % EP_NET_OPS_CHUNK];
}

static ncclResult_t ep_net_ops_grow(struct ep_net_rma *rma)
{
	uint32_t n = rma->nops / EP_NET_OPS_CHUNK;
	uint32_t use = (uint32_t)ep_now_ns() * 2654435761u;
	struct ep_net_op **chunks, *chunk;

	if (rma->nops == EP_NET_OPS) {
		return ep_fail(ncclInternalError, "more than %u requests are under way",
			       EP_NET_OPS);
	}
	chunks = realloc(rma->chunk, (n + 1) * sizeof(*chunks));
	if (chunks) {
		rma->chunk = chunks;
	}
	chunk = chunks ? calloc(EP_NET_OPS_CHUNK, sizeof(*chunk)) : NULL;
	if (!chunk) {
		return ep_fail(ncclSystemError, "out of host memory for %u requests", rma->nops);
	}
	for (uint32_t i = 0; i < EP_NET_OPS_CHUNK; i++) {
		chunk[i].next = i + 1 < EP_NET_OPS_CHUNK ? rma->nops + i + 1 : EP_NET_NO_OP;
		/* Requests of contexts that were closed are not taken for those of this one. */
		chunk[i].use = use & ((1u << EP_NET_OP_USE_BITS) - 2);
	}
	rma->chunk[n] = chunk;
	rma->free = rma->nops;
	rma->nops += EP_NET_OPS_CHUNK;
	return ncclSuccess;
}

void ep_net_op_free(struct ep_net_rma *rma, uint32_t number)
{
	struct ep_net_op *op = ep_net_op_at(rma, number);

	op->use = (op->use + 1) & ((1u << EP_NET_OP_USE_BITS) - 1);
	op->next = rma->free;
	rma->free = number;
	rma->live--;
}

/* ---- posting ---- */

/* The link that an op's work requests go over: a flush reads this rank's own memory. */
static struct ep_net_link *ep_net_op_via(const struct ep_net_rma *rma, const struct ep_net_op *op)
{
	uint32_t context = (uint32_t)(op->link - rma->link) / rma->mesh->nranks;

	return op->kind == EP_NET_FLUSH ? &rma->link[context * rma->mesh->nranks + rma->mesh->rank]
					: op->link;
}

static void ep_net_data_wr(const struct ep_net_op *op, uint64_t at, uint32_t bytes,
			   struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	*sge = (struct ibv_sge){ op->local + at, bytes, op->lkey };
	wr->sg_list = sge;
	wr->num_sge = 1;
	wr->opcode = op->kind == EP_NET_PUT ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ;
	wr->wr.rdma.remote_addr = op->remote + at;
	wr->wr.rdma.rkey = op->rkey;
}

/* The end of an op that signals or tells its peer. Returns the number of work requests. */
static uint32_t ep_net_end_wr(const struct ep_net_rma *rma, const struct ep_net_op *op, uint32_t n,
			      struct ibv_send_wr *wr, struct ibv_sge *sge)
{
	const struct ep_net_rail *rail = op->link->rail;

	if (op->signal) {
		sge[n] = (struct ibv_sge){ (uintptr_t)rma->scratch, 8, rail->scratch_mr->lkey };
		wr[n].sg_list = &sge[n];
		wr[n].num_sge = 1;
		wr[n].opcode = IBV_WR_ATOMIC_FETCH_AND_ADD;
		/* Firmware may place data out of order by itself, and does not say so here. */
		wr[n].send_flags = rail->dev->nic.fences ? IBV_SEND_FENCE : 0;
		wr[n].wr.atomic.remote_addr = op->signal_at;
		wr[n].wr.atomic.compare_add = op->add;
		wr[n].wr.atomic.rkey = op->signal_rkey;
		return n + 1;
	}
	if (!op->tell) {
		return n;
	}
	/* NICs may route long data adaptively, and these messages not. */
	if (n == 0 || op->size > EP_NET_IMM_BYTES) {
		wr[n].wr.rdma.remote_addr = op->remote;
		wr[n].wr.rdma.rkey = op->rkey;
		n++;
	}
	wr[n - 1].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr[n - 1].imm_data = htobe32(op->imm);
	return n;
}

/* Posts what it can of an op. *waits: it is not all posted. */
static ncclResult_t ep_net_op_push(struct ep_net_rma *rma, struct ep_net_op *op, uint32_t number,
				   bool *waits)
{
	struct ep_net_link *via = ep_net_op_via(rma, op);
	struct ep_net_rail *rail = via->rail;
	uint64_t most = 1ull << rail->dev->nic.log_max_msg, at = op->at;
	struct ibv_send_wr wr[EP_NET_OP_WR], *bad;
	struct ibv_sge sge[EP_NET_OP_WR];
	uint32_t n = 0;
	int error;

	*waits = true;
	if (op->kind == EP_NET_FLUSH && op->link->got < op->gets) {
		return ncclSuccess;
	}
	memset(wr, 0, sizeof(wr));
	for (; at < op->size && n < EP_NET_OP_WR - 1; n++) {
		uint32_t bytes = (uint32_t)ep_min_u64(op->size - at, most);

		ep_net_data_wr(op, at, bytes, &wr[n], &sge[n]);
		at += bytes;
	}
	if (at == op->size) {
		n = ep_net_end_wr(rma, op, n, wr, sge);
	}
	if (n > via->room || (n && rail->cq_room == 0)) {
		/* Completions of its own link alone may not bring it. */
		rma->starved |= via != op->link || rail->cq_room == 0;
		return ncclSuccess;
	}
	for (uint32_t i = 0; i < n; i++) {
		wr[i].wr_id = EP_NET_OP_ID(n, number);
		wr[i].next = i + 1 < n ? &wr[i + 1] : NULL;
		wr[i].send_flags |= i + 1 < n ? 0 : IBV_SEND_SIGNALED;
	}
	error = n ? ibv_post_send(via->qp, wr, &bad) : 0;
	if (error) {
		return ep_net_rma_fail(rma, via, ncclSystemError, "%llu bytes cannot be posted: %s",
				       (unsigned long long)(at - op->at), strerror(error));
	}
	via->room -= n;
	rail->cq_room -= n ? 1 : 0;
	op->left += n ? 1 : 0;
	op->at = at;
	op->posted = at == op->size;
	*waits = !op->posted;
	if (rma->talk && op->posted && op->left) {
		via->flight[via->flight_last++ % via->sq] = number;
	}
	return ncclSuccess;
}

/* Who only counts requests does not test them. */
void ep_net_op_end(struct ep_net_rma *rma, struct ep_net_op *op, uint32_t number)
{
	op->link->live--;
	op->link->got += op->kind == EP_NET_GET;
	if (op->count) {
		--*op->count;
		ep_net_op_free(rma, number);
	}
}

ncclResult_t ep_net_link_push(struct ep_net_rma *rma, struct ep_net_link *link)
{
	while (link->first != EP_NET_NO_OP && link->lane == EP_NET_LANE_OPEN) {
		uint32_t number = link->first, before;
		struct ep_net_op *op = ep_net_op_at(rma, number);
		bool waits;

		before = op->left;
		EP_CHECK(ep_net_op_push(rma, op, number, &waits));
		if (waits && op->left == before) {
			return ncclSuccess; /* for room, or for gets */
		}
		if (!waits) {
			link->first = op->next;
			if (ep_net_op_done(op)) {
				ep_net_op_end(rma, op, number); /* there was nothing to post */
			}
		}
	}
	if (link->first == EP_NET_NO_OP) {
		link->last = EP_NET_NO_OP;
	}
	return ncclSuccess;
}

void ep_net_link_append(struct ep_net_rma *rma, struct ep_net_link *link, uint32_t number)
{
	ep_net_op_at(rma, number)->next = EP_NET_NO_OP;
	if (link->first == EP_NET_NO_OP) {
		link->first = number;
	} else {
		ep_net_op_at(rma, link->last)->next = number;
	}
	link->last = number;
}

ncclResult_t ep_net_op_start(struct ep_net_rma *rma, const struct ep_net_op *want, uint32_t *number)
{
	struct ep_net_link *link = ep_net_lane_open(rma, want->link);
	struct ep_net_op *op;
	uint32_t use;

	EP_CHECK(ep_net_rma_failed(rma));
	if (!link) {
		return ep_net_rma_fail(rma, want->link, ncclRemoteError,
				       "the peer has closed the connection: see its log");
	}
	if (rma->free == EP_NET_NO_OP) {
		EP_CHECK(ep_net_ops_grow(rma));
	}
	*number = rma->free;
	op = ep_net_op_at(rma, *number);
	rma->free = op->next;
	rma->live++;
	use = (op->use + 1) & ((1u << EP_NET_OP_USE_BITS) - 1);
	*op = *want;
	op->use = use;
	op->link = link;
	op->lkey = op->lkeys ? op->lkeys[link->port] : op->lkey;
	op->rkey = op->rkeys ? op->rkeys[link->far] : op->rkey;
	op->left = 0;
	op->at = 0;
	op->others = 0;
	op->posted = false;
	op->gets = link->gets;
	link->gets += op->kind == EP_NET_GET;
	link->live++;
	ep_net_link_append(rma, link, *number);
	return ep_net_link_push(rma, link);
}

void *ep_net_op_request(const struct ep_net_rma *rma, uint32_t number)
{
	return ep_net_op_handle(EP_NET_OP, ep_net_slot_of(rma->handle), number,
				ep_net_op_at(rma, number)->use);
}

ncclResult_t ep_net_flush_start(struct ep_net_rma *rma, struct ep_net_link *const *link,
				const uint32_t *rkey, uint32_t n, uint64_t at, void **request)
{
	struct ep_net_op want = {
		.kind = EP_NET_FLUSH, .local = (uintptr_t)rma->scratch + 8, .remote = at, .size = 1
	};
	uint32_t first = EP_NET_NO_OP, number;

	for (uint32_t i = 0; i < n; i++) {
		want.link = link[i];
		want.lkey = link[i]->rail->scratch_mr->lkey;
		want.rkey = rkey[i];
		if (i > 0) {
			/* (requests stay where they are) */
			want.count = &ep_net_op_at(rma, first)->others;
			++*want.count;
		}
		EP_CHECK(ep_net_op_start(rma, &want, &number));
		first = i ? first : number;
	}
	*request = ep_net_op_request(rma, first);
	return ncclSuccess;
}

/* ---- completions ---- */

static ncclResult_t ep_net_receive_done(struct ep_net_rma *rma, const struct ibv_wc *wc)
{
	struct ep_net_link *link = &rma->link[wc->wr_id & ~EP_NET_OP_ID_RECEIVE];
	uint32_t owed = ++link->owed;

	link->receiving--;
	if (link->drained) {
		return ncclSuccess; /* too late: the peer was told that it has not come */
	}
	link->came++;
	if (owed >= ep_max_u64(link->receives / 2, 1) && link->lane == EP_NET_LANE_OPEN) {
		link->owed = 0;
		EP_CHECK(ep_net_link_receives(rma, link, owed));
	}
	return rma->config.told(rma->config.arg, link, be32toh(wc->imm_data));
}

static ncclResult_t ep_net_send_done(struct ep_net_rma *rma, struct ep_net_rail *rail,
				     const struct ibv_wc *wc)
{
	struct ep_net_op *op = ep_net_op_at(rma, (uint32_t)wc->wr_id);
	struct ep_net_link *via = ep_net_op_via(rma, op), *link = op->link;

	rail->cq_room++;
	if (rma->talk && ep_net_lane_old(via, rail, wc)) {
		return ncclSuccess;
	}
	via->room += EP_NET_OP_ID_WRS(wc->wr_id);
	op->left--;
	if (rma->talk && ep_net_op_done(op)) {
		via->flight_first++; /* (completions are in order) */
		via->told += op->tell;
	}
	if (ep_net_op_done(op)) {
		ep_net_op_end(rma, op, (uint32_t)wc->wr_id);
	}
	EP_CHECK(ep_net_link_push(rma, link));
	return via == link ? ncclSuccess : ep_net_link_push(rma, via);
}

static ncclResult_t ep_net_wc_failed(struct ep_net_rma *rma, const struct ibv_wc *wc)
{
	const struct ep_syndrome *s = ep_syndrome_find(ep_syndrome_of_status(wc->status));
	struct ep_net_link *link =
		wc->wr_id & EP_NET_OP_ID_RECEIVE
			? &rma->link[wc->wr_id & ~EP_NET_OP_ID_RECEIVE]
			: ep_net_op_via(rma, ep_net_op_at(rma, (uint32_t)wc->wr_id));
	char why[280];

	ep_net_dev_events(link->rail->dev);
	snprintf(why, sizeof(why), "%s (status %d, vendor 0x%02x)%s%s",
		 s ? s->text : "unknown failure", (int)wc->status, wc->vendor_err,
		 s && s->next ? ": " : "", s && s->next ? s->next : "");
	return rma->talk && ep_net_route_to_blame(wc->status)
		       ? ep_net_lane_failed(rma, link, why)
		       : ep_net_rma_lost(rma, link, ncclRemoteError, why);
}

/* What a failure leaves: room. Returns whether it is an old one. */
static bool ep_net_wc_left(struct ep_net_rma *rma, struct ep_net_rail *rail,
			   const struct ibv_wc *wc)
{
	struct ep_net_link *via;

	if (wc->wr_id & EP_NET_OP_ID_RECEIVE) {
		via = &rma->link[wc->wr_id & ~EP_NET_OP_ID_RECEIVE];
		via->receiving--;
		return via->lane != EP_NET_LANE_OPEN;
	}
	via = ep_net_op_via(rma, ep_net_op_at(rma, (uint32_t)wc->wr_id));
	rail->cq_room++;
	return ep_net_lane_old(via, rail, wc) || via->lane != EP_NET_LANE_OPEN;
}

/* What waited for room that work of other links has given back. */
static ncclResult_t ep_net_starved_push(struct ep_net_rma *rma)
{
	uint32_t n = (uint32_t)rma->config.contexts * rma->mesh->nranks;

	rma->starved = false;
	for (uint32_t i = 0; i < n; i++) {
		EP_CHECK(ep_net_link_push(rma, &rma->link[i]));
	}
	return ncclSuccess;
}

/* ---- ranks that are gone ---- */

/* A link by a port, for what is wrong with the port: this rank's to itself, which is always there. */
static struct ep_net_link *ep_net_rail_link(const struct ep_net_rma *rma, uint32_t port)
{
	/* (contexts take ports in turn) */
	return &rma->link[port * rma->mesh->nranks + rma->mesh->rank];
}

/* Whether a rank has said that it has failed: what this one waits for may never come. */
static ncclResult_t ep_net_rma_hear(struct ep_net_rma *rma)
{
	char text[EP_NET_LOST_TEXT];

	for (uint32_t r = 0; r < rma->mesh->nranks; r++) {
		if (ep_net_mesh_lost(rma->mesh, r, text)) {
			ncclResult_t code = ep_fail(ncclRemoteError, "%s has failed: %s",
						    rma->mesh->who[r], text);

			ep_error_get(NULL, &rma->failed);
			__atomic_store_n(&rma->broken, 1, __ATOMIC_RELAXED);
			return code;
		}
	}
	return ncclSuccess;
}

/* See ep_net_look() in request.c: the NIC alone tells late, or never. */
static ncclResult_t ep_net_rma_look(struct ep_net_rma *rma)
{
	uint32_t n = (uint32_t)rma->config.contexts * rma->mesh->nranks;
	uint64_t now = ep_now_ns();

	if (now - rma->looked < EP_NET_LOOK_NS) {
		return ncclSuccess;
	}
	rma->looked = now;
	for (uint32_t i = 0; i < rma->mesh->ends[rma->mesh->rank].n; i++) {
		struct ep_net_rail *rail = &rma->rail[i];

		ep_net_dev_events(rail->dev);
		if (__atomic_load_n(&rail->cq_lost, __ATOMIC_RELAXED)) {
			return ep_net_rma_lost(rma, ep_net_rail_link(rma, i), ncclSystemError,
					       "the NIC has lost completions: its queue has "
					       "overrun or failed");
		}
	}
	if (rma->talk) {
		EP_CHECK(ep_net_lanes_look(rma));
	} else {
		EP_CHECK(ep_net_rma_hear(rma));
	}
	for (uint32_t i = 0; i < n; i++) {
		struct ep_net_link *link = &rma->link[i];
		int fd = rma->mesh->fd[link->rank];

		if (!link->live || !link->qp) {
			continue;
		}
		if (!rma->talk && __atomic_load_n(&link->rail->dev->broken, __ATOMIC_RELAXED)) {
			return ep_net_rma_lost(rma, link, ncclSystemError,
					       "the connection is lost");
		}
		if (!link->looked_gone && fd >= 0 && ep_net_gone(fd)) {
			link->looked_gone = now;
		}
		if (link->looked_gone && now - link->looked_gone >= EP_NET_GRACE_NS) {
			return ep_net_rma_fail(rma, link, ncclRemoteError,
					       "the peer has closed the connection or has ended, "
					       "%u requests are under way here: see its log",
					       link->live);
		}
	}
	return ncclSuccess;
}

/* Takes up completions of a port. *n: how many. */
static ncclResult_t ep_net_rail_poll(struct ep_net_rma *rma, uint32_t port, int *n)
{
	const struct ibv_wc *bad = NULL;
	struct ibv_wc wc[EP_NET_POLL];

	*n = ibv_poll_cq(rma->rail[port].cq, EP_NET_POLL, wc);
	if (*n < 0) {
		return ep_net_rma_fail(rma, ep_net_rail_link(rma, port), ncclSystemError,
				       "the completion queue has failed");
	}
	for (int i = 0; i < *n; i++) {
		if (wc[i].status != IBV_WC_SUCCESS) {
			if (rma->talk && ep_net_wc_left(rma, &rma->rail[port], &wc[i])) {
				continue;
			}
			if (!bad || (bad->status == IBV_WC_WR_FLUSH_ERR &&
				     wc[i].status != IBV_WC_WR_FLUSH_ERR)) {
				bad = &wc[i];
			}
		} else if (wc[i].wr_id & EP_NET_OP_ID_RECEIVE) {
			EP_CHECK(ep_net_receive_done(rma, &wc[i]));
		} else {
			EP_CHECK(ep_net_send_done(rma, &rma->rail[port], &wc[i]));
		}
	}
	return bad ? ep_net_wc_failed(rma, bad) : ncclSuccess;
}

ncclResult_t ep_net_rail_drain(struct ep_net_rma *rma, uint32_t port)
{
	int n;

	do {
		EP_CHECK(ep_net_rail_poll(rma, port, &n));
	} while (n);
	return ncclSuccess;
}

static ncclResult_t ep_net_rails_poll(struct ep_net_rma *rma, int *all)
{
	int n;

	*all = 0;
	for (uint32_t i = 0; i < rma->mesh->ends[rma->mesh->rank].n; i++) {
		if (rma->rail[i].cq) {
			EP_CHECK(ep_net_rail_poll(rma, i, &n));
			*all += n;
		}
	}
	return ncclSuccess;
}

ncclResult_t ep_net_rma_poll(struct ep_net_rma *rma)
{
	int all;

	return ep_net_rails_poll(rma, &all);
}

ncclResult_t ep_net_rma_progress(struct ep_net_rma *rma)
{
	int all;

	EP_CHECK(ep_net_rma_failed(rma));
	EP_CHECK(ep_net_rails_poll(rma, &all));
	if (all == 0) {
		return ++rma->idle % EP_NET_IDLE ? ncclSuccess : ep_net_rma_look(rma);
	}
	return rma->starved ? ep_net_starved_push(rma) : ncclSuccess;
}

ncclResult_t ep_net_op_test(void *request, int *done)
{
	uint32_t number = ep_net_op_number(request);
	struct ep_net_rma *rma = NULL;
	ncclResult_t result = ncclSuccess;
	struct ep_net_op *op = NULL;
	void *handle;

	*done = 0;
	if (ep_net_kind_of(request) == EP_NET_OP) {
		rma = ep_net_handle_at(ep_net_request_comm(request), &handle);
	}
	if (rma && ep_net_kind_of(handle) == EP_NET_RMA && number < rma->nops) {
		op = ep_net_op_at(rma, number);
	}
	if (!op || op->use != ep_net_op_use(request) || !(op->use & 1)) {
		return ep_fail(ncclInvalidArgument,
			       "%p is no request, or one that was tested to its end", request);
	}
	ep_net_rma_enter(rma);
	if (!ep_net_op_done(op) || op->others) {
		result = ep_net_rma_progress(rma);
	}
	if (result == ncclSuccess && ep_net_op_done(op) && !op->others) {
		*done = 1;
		ep_net_op_free(rma, number);
	}
	ep_net_rma_leave(rma);
	return result;
}
