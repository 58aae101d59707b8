/* SPDX-License-Identifier: Apache-2.0 */
/* A message: requests, announced receives, parts that are posted, flushes, and completions of all these. */
#include <endian.h>
#include <string.h>
#include "core/log.h"
#include "net/p2p.h"

uint32_t ep_net_request_new(struct ep_net_comm *c)
{
	uint32_t i = c->free;

	if (i != EP_NET_NO_REQUEST) {
		struct ep_net_request *r = &c->request[i];

		c->free = r->next;
		r->use = ep_net_use_next(r->use);
		r->n = 0;
		r->left = 0;
		c->pending++;
	}
	return i;
}

void ep_net_request_free(struct ep_net_comm *c, uint32_t i)
{
	struct ep_net_request *r = &c->request[i];

	r->use = ep_net_use_next(r->use);
	r->next = c->free;
	c->free = i;
	c->pending--;
	c->nflushes -= !c->sender && r->n == 0;
}

void *ep_net_request_handle_of(const struct ep_net_comm *c, uint32_t i)
{
	return ep_net_request_handle(EP_NET_REQUEST, c->handle, i, c->request[i].use);
}

ncclResult_t ep_net_recv_get(const void *handle, int n, struct ep_net_comm **comm)
{
	*comm = ep_net_handle_find(EP_NET_RECV, handle);
	if (!*comm) {
		return ncclInvalidArgument;
	}
	if (n < 1 || n > EP_NET_MAX_RECVS) {
		return ep_fail(ncclInvalidArgument, "%d receives in a group, possible are 1..%d", n,
			       EP_NET_MAX_RECVS);
	}
	return ncclSuccess;
}

/* ---- announces receives to the sender: where they want data ---- */

/*
 * A slot may wait to be written together with the next ones as long as the sender knows of so many
 * receives; NCCL has no more under way, and never waits.
 */
#define EP_NET_AHEAD 8
#define EP_NET_TOGETHER 8 /* slots, of one WRITE */

/* The slots of n groups, which lie one behind the other. What lies between them is old, there and here. */
static ncclResult_t slots_write(struct ep_net_comm *c, uint32_t n)
{
	struct ep_net_slot_entry *first = c->shared->slot[c->slots_posted % EP_NET_SLOTS];
	struct ep_net_slot_entry *last = c->shared->slot[(c->slots_posted + n - 1) % EP_NET_SLOTS];
	struct ep_net_qp *q = &c->qp[c->slot_qp];
	bool signaled = c->unsignaled_groups + n >= EP_NET_SIGNAL_EVERY;
	struct ibv_sge sge = { (uintptr_t)first,
			       (uint32_t)((uintptr_t)(last + last->n) - (uintptr_t)first),
			       c->local[q->local_port].shared_mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = EP_NET_WR_ID(EP_NET_WORK_SLOT, c->slot_qp, c->unsignaled + 1,
				      c->unsignaled_groups + n) |
			 EP_NET_WR_GENERATION_OF(q),
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_WRITE,
		.send_flags = (signaled ? IBV_SEND_SIGNALED : 0) |
			      (sge.length <= c->inline_bytes ? IBV_SEND_INLINE : 0),
		.wr.rdma = { .remote_addr =
				     c->remote_shared + ((uintptr_t)first - (uintptr_t)c->shared),
			     .rkey = c->remote[q->remote_port].rkey },
	};
	struct ibv_send_wr *bad;
	int error = ibv_post_send(q->qp, &wr, &bad);

	if (error) {
		return ep_net_comm_fail(c, ncclSystemError, c->slot_qp,
					"a receive cannot be announced to the sender: %s",
					strerror(error));
	}
	q->room--;
	c->slots_posted += n;
	c->unsignaled = signaled ? 0 : c->unsignaled + 1;
	c->unsignaled_groups = signaled ? 0 : c->unsignaled_groups + n;
	return ncclSuccess;
}

ncclResult_t ep_net_slots_post(struct ep_net_comm *c)
{
	const struct ep_net_qp *q = &c->qp[c->slot_qp];
	uint64_t unpublished = c->groups - c->slots_posted;

	if (unpublished < EP_NET_TOGETHER && c->open >= unpublished + EP_NET_AHEAD) {
		return ncclSuccess;
	}
	while (c->slots_posted < c->groups && q->room && ep_net_path_is_open(c, q->path)) {
		uint64_t n = ep_min_u64(c->groups - c->slots_posted, EP_NET_TOGETHER);

		n = ep_min_u64(n, EP_NET_SLOTS - c->slots_posted % EP_NET_SLOTS);
		EP_CHECK(slots_write(c, (uint32_t)n));
	}
	return ncclSuccess;
}

/* ---- parts of messages, posted once more if a closed path has not brought them ---- */

/* The end of a part: the record and the immediate data, or the data itself with it. */
static void part_end(struct ep_net_comm *c, const struct ep_net_message *message,
		     const struct ep_net_qp *qp, bool record, struct ibv_send_wr *wr,
		     struct ibv_sge *sge)
{
	uint32_t slot = message->group % EP_NET_SLOTS;
	struct ep_net_record *r = &c->shared->record[slot][message->entry];

	wr->opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
	wr->send_flags = IBV_SEND_SIGNALED;
	wr->imm_data = htobe32(EP_NET_IMM(slot, message->entry, message->parts, record));
	if (record) {
		r->size = message->size;
		r->seq = message->group + 1;
		*sge = (struct ibv_sge){ (uintptr_t)r, sizeof(*r),
					 c->local[qp->local_port].shared_mr->lkey };
		wr->num_sge = 1;
		wr->wr.rdma.remote_addr = c->remote_shared + ((uintptr_t)r - (uintptr_t)c->shared);
		wr->wr.rdma.rkey = c->remote[qp->remote_port].rkey;
		if (c->inline_bytes >= sizeof(*r)) {
			wr->send_flags |= IBV_SEND_INLINE;
		}
	}
}

static void part_posted(struct ep_net_comm *c, struct ep_net_qp *qp, uint32_t request,
			uint32_t number, uint32_t size)
{
	if (qp->part) {
		qp->part[qp->posted % c->sq_depth] =
			(struct ep_net_part){ (uint16_t)request, (uint8_t)number };
	}
	qp->posted++;
	c->counts->path[qp->path].parts++;
	c->counts->path[qp->path].bytes += size;
}

ncclResult_t ep_net_part_post(struct ep_net_comm *c, const struct ep_net_message *message,
			      uint32_t qp, uint32_t number)
{
	struct ep_net_qp *q = &c->qp[qp];
	uint64_t most = 1ull << c->local[q->local_port].dev->nic.log_max_msg;
	uint32_t offset = number * message->each, n = 0;
	uint32_t size = (uint32_t)ep_min_u64(message->size - offset, message->each);
	struct ibv_send_wr wr[EP_NET_PART_WR], *bad;
	bool record = message->size > c->plain_limit || size > most;
	struct ibv_sge sge[EP_NET_PART_WR];
	int error;

	memset(wr, 0, sizeof(wr));
	for (uint32_t at = 0; at < size || n == 0; n++) {
		uint32_t bytes = (uint32_t)ep_min_u64(size - at, most);

		sge[n] = (struct ibv_sge){ message->data + offset + at, bytes,
					   message->mr ? message->mr->lkey[q->local_port] : 0 };
		wr[n].sg_list = &sge[n];
		wr[n].num_sge = bytes ? 1 : 0;
		wr[n].opcode = IBV_WR_RDMA_WRITE;
		wr[n].wr.rdma.remote_addr = message->to->addr + offset + at;
		wr[n].wr.rdma.rkey = message->to->rkey[q->remote_port];
		wr[n].next = &wr[n + 1];
		at += bytes;
	}
	if (record) {
		wr[n].sg_list = &sge[n];
		n++;
	}
	part_end(c, message, q, record, &wr[n - 1], &sge[n - 1]);
	wr[n - 1].next = NULL;
	for (uint32_t i = 0; i < n; i++) {
		wr[i].wr_id = EP_NET_WR_ID(EP_NET_WORK_SEND, qp, n, message->request) |
			      EP_NET_WR_GENERATION_OF(q);
	}
	error = ibv_post_send(q->qp, wr, &bad);
	if (error) {
		return ep_net_comm_fail(c, ncclSystemError, qp, "%u bytes cannot be sent: %s", size,
					strerror(error));
	}
	q->room -= n;
	part_posted(c, q, message->request, number, size);
	return ncclSuccess;
}

/* A queue pair that has room for a part; nqps: none. */
static uint32_t qp_with_room(struct ep_net_comm *c)
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
	for (; c->again_first != c->again_last; c->again_first++) {
		const struct ep_net_part *part =
			&c->again[c->again_first % (c->nrequests * c->nqps)];
		uint32_t to = qp_with_room(c);

		if (to == c->nqps) {
			return ncclSuccess;
		}
		EP_CHECK(ep_net_part_post(c, &c->request[part->request].message, to, part->number));
		c->counts->resent++;
	}
	return ncclSuccess;
}

/* ---- flushes of GPU memory ---- */

/*
 * Flushes: data that a NIC has written to a GPU is there when a read that the same NIC makes afterwards has come
 * back: PCIe lets no read pass writes.
 */
static ncclResult_t flush_port(struct ep_net_comm *c, uint32_t local, uint32_t request)
{
	struct ep_net_local *l = &c->local[local];
	struct ep_net_request *r = &c->request[request];
	struct ibv_sge sge = { (uintptr_t)&c->shared->flushed, 1, l->shared_mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = EP_NET_WR_ID(EP_NET_WORK_FLUSH, EP_NET_WR_FLUSH_QP(local), 1, request),
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = r->at, .rkey = r->rkey[local] },
	};
	struct ibv_send_wr *bad;
	int error = ibv_post_send(l->flush_qp, &wr, &bad);

	if (error) {
		return ep_net_comm_fail(c, ncclSystemError, ep_net_port_qp(c, local),
					"a flush cannot be posted: %s", strerror(error));
	}
	l->flush_room--;
	r->ports &= ~(1u << local);
	r->reads |= 1u << local;
	return ncclSuccess;
}

/* A flush has read by a port, or never will. */
static void flush_ended(struct ep_net_comm *c, uint32_t local, uint32_t request)
{
	struct ep_net_request *r = &c->request[request];

	/* (a device that is broken may still report what was given up) */
	if (r->reads >> local & 1) {
		r->reads &= ~(1u << local);
		r->left--;
		c->local[local].flush_room++;
	}
}

void ep_net_flushes_give_up(struct ep_net_comm *c, uint32_t local)
{
	for (uint32_t i = 0; c->nflushes && i < c->nrequests; i++) {
		flush_ended(c, local, i);
	}
}

/* The ports that data may come from. (The sender uses a path that is back before this end learns that it does.) */
static uint32_t flush_ports(const struct ep_net_comm *c)
{
	uint32_t ports = 0;

	for (uint32_t i = 0; i < c->npaths; i++) {
		if (ep_net_path_lives(c, i)) {
			ports |= 1u << c->qp[i].local_port; /* (the first one of the path) */
		}
	}
	return ports;
}

ncclResult_t ep_net_flushes_push(struct ep_net_comm *c)
{
	uint32_t open = flush_ports(c);

	while (c->flush_first != EP_NET_NO_REQUEST) {
		struct ep_net_request *r = &c->request[c->flush_first];

		for (uint32_t p = 0; p < c->nlocals; p++) {
			if (!(r->ports >> p & 1)) {
				continue;
			}
			if (!(open >> p & 1)) {
				/* (all that was received by a port has been waited for when it failed) */
				r->ports &= ~(1u << p);
				r->left--;
				continue;
			}
			if (!c->local[p].flush_qp) {
				EP_CHECK(ep_net_flush_open(&c->local[p])); /* the port was away */
			}
			if (c->local[p].flush_room) {
				EP_CHECK(flush_port(c, p, c->flush_first));
			}
		}
		if (r->ports) {
			return ncclSuccess;
		}
		c->flush_first = r->next;
	}
	return ncclSuccess;
}

/* By each port that data may come from. */
static ncclResult_t flush_post(struct ep_net_comm *c, const struct ep_net_mr *region,
			       const void *at, void **request)
{
	uint32_t ports = flush_ports(c), i;
	struct ep_net_request *r;

	/* (NULL would mean that there is nothing to wait for) */
	if (c->nflushes == EP_NET_FLUSHES) {
		return ep_fail(ncclInternalError, "more than %u flushes are under way",
			       EP_NET_FLUSHES);
	}
	for (uint32_t p = 0; p < c->nlocals; p++) {
		if (ports >> p & 1 && !c->local[p].flush_qp) {
			EP_CHECK(ep_net_flush_open(&c->local[p]));
		}
	}
	c->counts->flushes++;
	c->nflushes++;
	i = ep_net_request_new(c);
	r = &c->request[i];
	r->at = (uintptr_t)at;
	memcpy(r->rkey, region->rkey, sizeof(r->rkey));
	r->ports = ports;
	r->reads = 0;
	r->left = (uint32_t)__builtin_popcount(ports);
	r->next = EP_NET_NO_REQUEST;
	if (c->flush_first == EP_NET_NO_REQUEST) {
		c->flush_first = i;
	} else {
		c->request[c->flush_last].next = i;
	}
	c->flush_last = i;
	EP_CHECK(ep_net_flushes_push(c));
	*request = ep_net_request_handle_of(c, i);
	return ncclSuccess;
}

/* The last of the receives that has data in GPU memory is what is read. */
static ncclResult_t flush_find(struct ep_net_comm *c, int n, void **data, const int *sizes,
			       void **mr, void **request)
{
	const struct ep_net_mr *region, *last = NULL;
	const void *at = NULL;

	for (int k = 0; k < n; k++) {
		if (sizes[k] <= 0) {
			continue;
		}
		EP_CHECK(ep_net_mr_find(c->nic, mr[k], data[k], (size_t)sizes[k], &region));
		if (region->gpu) {
			last = region;
			at = data[k];
		}
	}
	return last ? flush_post(c, last, at, request) : ncclSuccess;
}

ncclResult_t ep_net_iflush(void *recv_comm, int n, void **data, int *sizes, void **mr,
			   void **request)
{
	struct ep_net_comm *c;
	ncclResult_t result;

	*request = NULL;
	EP_CHECK(ep_net_recv_get(recv_comm, n, &c));
	ep_net_enter(c);
	result = c->failed.code == ncclSuccess ? flush_find(c, n, data, sizes, mr, request)
					       : ep_net_comm_failed(c);
	ep_net_leave(c);
	return result;
}

/*
 * ---- completions ----
 *
 * Completions of requests are handled at once. Failures of paths are noted for ep_net_paths_act(): it closes
 * paths, which handles completions, too.
 */

static void probed_note(struct ep_net_comm *c, uint32_t path)
{
	struct ep_net_path *r = &c->path[path];

	if (r->state == EP_NET_PATH_PROBING && --r->probes == 0) {
		r->probed = c->due = true;
	}
}

/* The first failure that shows more than that something has failed before. */
static void failure_note(struct ep_net_comm *c, uint32_t path, const struct ibv_wc *wc)
{
	struct ep_net_path *r = &c->path[path];

	if (ep_net_path_lives(c, path) &&
	    (!r->failed ||
	     (r->failure.status == IBV_WC_WR_FLUSH_ERR && wc->status != IBV_WC_WR_FLUSH_ERR))) {
		r->failure = *wc;
		r->failed = c->due = true;
	}
}

/* Of a flush: of all paths of the port. What it was to show is there: all that was received has been waited for. */
static void flush_failed(struct ep_net_comm *c, const struct ibv_wc *wc)
{
	uint32_t local = EP_NET_WR_QP(wc->wr_id) - EP_NET_WR_FLUSH_QP(0);

	for (uint32_t i = 0; i < c->npaths; i++) {
		if (c->path[i].local_port == local) {
			failure_note(c, i, wc);
		}
	}
	flush_ended(c, local, EP_NET_WR_NUMBER(wc->wr_id));
}

/* ---- completions ---- */

/* A message's part has come. */
static ncclResult_t arrived(struct ep_net_comm *c, const struct ibv_wc *wc, uint32_t qp)
{
	uint32_t imm = be32toh(wc->imm_data), slot = EP_NET_IMM_SLOT(imm);
	uint32_t entry = EP_NET_IMM_ENTRY(imm), i;
	struct ep_net_request *r;

	i = slot < EP_NET_SLOTS ? c->slot_request[slot] : EP_NET_NO_REQUEST;
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
			c->slot_request[slot] = EP_NET_NO_REQUEST;
			c->open--;
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
			c->slots_acked += number;
		}
		return ncclSuccess;
	case EP_NET_WORK_PROBE:
		c->qp[qp].room += EP_NET_WR_WRS(wc->wr_id);
		probed_note(c, c->qp[qp].path);
		return ncclSuccess;
	case EP_NET_WORK_FLUSH:
		flush_ended(c, qp - EP_NET_WR_FLUSH_QP(0), number);
		return ncclSuccess;
	default:
		return message_received(c, wc);
	}
}

/* ---- failures ---- */

static ncclResult_t failed_one(struct ep_net_comm *c, const struct ibv_wc *wc)
{
	uint32_t qp = EP_NET_WR_QP(wc->wr_id);

	if (EP_NET_WR_KIND(wc->wr_id) == EP_NET_WORK_RECEIVE) {
		c->qp[qp].receives--;
	}
	if (!c->path || !ep_net_status_blames_path(wc->status)) {
		return ep_net_comm_fail_wc(c, wc);
	}
	if (EP_NET_WR_KIND(wc->wr_id) == EP_NET_WORK_FLUSH) {
		flush_failed(c, wc);
	} else {
		failure_note(c, c->qp[qp].path, wc);
	}
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
	int n = ibv_poll_cq(port->cq, EP_NET_POLL, wc);
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
