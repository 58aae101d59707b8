/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-gather. Of the data of all ranks, one behind the other, a window is gathered: each rank says
 * where it wants the window, and gets from every rank what that one has of it. Ranks begin gathers in
 * one order; of those that are under way each has a slot.
 */
#include <limits.h>
#include <string.h>
#include "core/log.h"
#include "net/mesh/coll.h"

/* What tells a peer: a slot, and either that something is wanted, or in how many messages data comes. */
#define EP_NET_IMM_WANTED (1u << 31)
#define EP_NET_IMM_OF(slot, messages) ((uint32_t)(slot) | ((uint32_t)(messages)-1) << 8)
#define EP_NET_IMM_SLOT_OF(imm) ((imm)&0xff)
#define EP_NET_IMM_MESSAGES(imm) (((imm) >> 8 & 0xffff) + 1)
#define EP_NET_LEAST 128u /* GPUs like whole lines of it: messages are divided at multiples */

/* What rank r has of the window: from..to, in all ranks' data. */
static void ep_net_slice(const struct ep_net_wanted *w, uint32_t r, uint64_t *from, uint64_t *to)
{
	*from = ep_max_u64(w->offset, r * w->each);
	*to = ep_min_u64(w->offset + w->bytes, (r + 1) * w->each);
	*to = ep_max_u64(*from, *to);
}

static bool ep_net_slice_empty(const struct ep_net_wanted *w, uint32_t r)
{
	uint64_t from, to;

	ep_net_slice(w, r, &from, &to);
	return from == to;
}

/* ---- the end of a share ---- */

static void ep_net_share_look(struct ep_net_coll *c, uint32_t slot, uint32_t r)
{
	const struct ep_net_wanted *own = ep_net_wanted_of(c, c->mesh->nranks, slot);
	struct ep_net_share *s = ep_net_share_of(c, slot, r);
	bool come = ep_net_slice_empty(own, r) || (s->parts && s->come == s->parts);

	if (s->sent && come) {
		*s = (struct ep_net_share){ 0 };
		c->gather[slot].open--;
		c->rma->link[r].live--; /* of the first lane: what it is looked for */
	}
}

ncclResult_t ep_net_gather_notified(void *arg, const struct ep_net_link *link, uint32_t imm)
{
	struct ep_net_coll *c = arg;
	uint32_t slot = EP_NET_IMM_SLOT_OF(imm), r = link->rank;
	struct ep_net_share *s;

	if (slot >= EP_NET_GATHERS) {
		return ep_net_rma_fail(c->rma, link, ncclRemoteError,
				       "the peer speaks of gather %u, of %u", slot, EP_NET_GATHERS);
	}
	s = ep_net_share_of(c, slot, r);
	if (imm & EP_NET_IMM_WANTED) {
		if (s->notified) {
			return ep_net_rma_fail(c->rma, link, ncclRemoteError,
					       "the peer begins a gather that it has not ended");
		}
		s->notified = true;
		return ncclSuccess;
	}
	if (!(c->gather[slot].use & 1) || c->gather[slot].open == 0 ||
	    (s->parts && (s->parts != EP_NET_IMM_MESSAGES(imm) || s->come == s->parts))) {
		return ep_net_rma_fail(c->rma, link, ncclRemoteError,
				       "the peer sends data that nobody wants (0x%08x)", imm);
	}
	s->parts = (uint16_t)EP_NET_IMM_MESSAGES(imm);
	s->come++;
	ep_net_share_look(c, slot, r);
	return ncclSuccess;
}

/* ---- sending ---- */

/* A run of bytes that lie side by side at both ends. */
struct ep_net_run {
	uint64_t from, to, size;
	const uint32_t *rkey; /* of each port of the rank */
};

/* The runs of this rank's data in what a rank wants. Returns how many. */
static uint32_t ep_net_runs(const struct ep_net_coll *c, const struct ep_net_wanted *w,
			    const struct ep_net_gather *g, struct ep_net_run *run)
{
	uint64_t from, to, at = w->offset;
	uint32_t n = 0;

	ep_net_slice(w, c->mesh->rank, &from, &to);
	for (uint32_t i = 0; i < w->nparts; i++) {
		uint64_t end = at + w->part[i].size, first = ep_max_u64(at, from);
		uint64_t last = ep_min_u64(end, to);

		if (first < last) {
			run[n++] = (struct ep_net_run){ .from = g->from + (first - from),
							.to = w->part[i].at + (first - at),
							.size = last - first,
							.rkey = w->part[i].rkey };
		}
		at = end;
	}
	return n;
}

/* Over how many lanes a run goes, and how much over each but the last. */
static uint32_t ep_net_lanes(const struct ep_net_coll *c, uint64_t size, uint64_t *each)
{
	/* Ports share what is long even where the queue pairs of a port do not. */
	uint32_t most = ep_net_env()->split ? (uint32_t)c->rma->config.contexts : c->nrails;
	uint32_t lanes = 1;

	*each = size;
	if (most > 1 && size > EP_NET_LEAST) {
		lanes = (uint32_t)ep_min_u64(most, (size + EP_NET_LEAST - 1) / EP_NET_LEAST);
		*each = ep_round_up((size + lanes - 1) / lanes, EP_NET_LEAST);
		lanes = (uint32_t)((size + *each - 1) / *each);
	}
	return lanes;
}

/* This rank's data to another one, or to where it wants it itself. */
static ncclResult_t ep_net_share_send(struct ep_net_coll *c, uint32_t slot, uint32_t r,
				      const struct ep_net_wanted *w)
{
	struct ep_net_gather *g = &c->gather[slot];
	uint32_t contexts = (uint32_t)c->rma->config.contexts, n = c->mesh->nranks;
	struct ep_net_run run[EP_NET_PARTS];
	uint32_t nruns = ep_net_runs(c, w, g, run), messages = 0, number, lane;
	uint64_t each;

	for (uint32_t i = 0; i < nruns; i++) {
		messages += ep_net_lanes(c, run[i].size, &each);
	}
	lane = (uint32_t)(w->number % contexts);
	for (uint32_t i = 0; i < nruns; i++) {
		ep_net_lanes(c, run[i].size, &each);
		for (uint64_t at = 0; at < run[i].size; at += each) {
			struct ep_net_link *link = &c->rma->link[lane * n + r];
			struct ep_net_op want = { .kind = EP_NET_PUT,
						  .link = link,
						  .local = run[i].from + at,
						  .lkeys = g->lkey,
						  .remote = run[i].to + at,
						  .rkeys = run[i].rkey,
						  .size = ep_min_u64(run[i].size - at, each),
						  .notify = r != c->mesh->rank,
						  .imm = EP_NET_IMM_OF(slot, messages),
						  .count = &g->left };

			g->left++;
			EP_CHECK(ep_net_op_start(c->rma, &want, &number));
			lane = (lane + 1) % contexts;
		}
	}
	return ncclSuccess;
}

/* A rank has said where it wants data: the same gather? */
static ncclResult_t ep_net_share_serve(struct ep_net_coll *c, uint32_t slot, uint32_t r)
{
	const struct ep_net_wanted *own = ep_net_wanted_of(c, c->mesh->nranks, slot);
	const struct ep_net_wanted *w = ep_net_wanted_of(c, r, slot);
	uint64_t sum = 0;

	for (uint32_t i = 0; w->nparts <= EP_NET_PARTS && i < w->nparts; i++) {
		sum += w->part[i].size;
	}
	if (w->number != own->number || w->each != own->each || w->offset != own->offset ||
	    w->bytes != own->bytes || w->nparts > EP_NET_PARTS || sum != w->bytes) {
		return ep_net_rma_fail(c->rma, &c->rma->link[r], ncclRemoteError,
				       "it gathers %llu bytes at %llu, of %llu of each rank, where "
				       "this one gathers %llu at %llu, of %llu: all ranks must "
				       "gather the same",
				       (unsigned long long)w->bytes, (unsigned long long)w->offset,
				       (unsigned long long)w->each, (unsigned long long)own->bytes,
				       (unsigned long long)own->offset,
				       (unsigned long long)own->each);
	}
	ep_net_share_of(c, slot, r)->sent = true;
	EP_CHECK(ep_net_share_send(c, slot, r, w));
	ep_net_share_look(c, slot, r);
	return ncclSuccess;
}

static ncclResult_t ep_net_coll_progress(struct ep_net_coll *c)
{
	EP_CHECK(ep_net_rma_progress(c->rma));
	for (uint32_t slot = 0; slot < EP_NET_GATHERS; slot++) {
		for (uint32_t r = 0; c->gather[slot].open && r < c->mesh->nranks; r++) {
			const struct ep_net_share *s = ep_net_share_of(c, slot, r);

			if (s->notified && !s->sent) {
				EP_CHECK(ep_net_share_serve(c, slot, r));
			}
		}
	}
	return ncclSuccess;
}

/* ---- for NCCL ---- */

/* Tells every rank what this one wants. */
static ncclResult_t ep_net_gather_notify(struct ep_net_coll *c, uint32_t slot)
{
	const struct ep_net_wanted *own = ep_net_wanted_of(c, c->mesh->nranks, slot);
	struct ep_net_gather *g = &c->gather[slot];
	uint64_t place = (uint64_t)(uintptr_t)ep_net_wanted_of(c, c->mesh->rank, slot) -
			 (uintptr_t)c->wanted;
	uint32_t number;

	for (uint32_t r = 0; r < c->mesh->nranks; r++) {
		struct ep_net_link *link = &c->rma->link[r];
		struct ep_net_op want = { .kind = EP_NET_PUT,
					  .link = link,
					  .local = (uintptr_t)own,
					  .lkeys = c->wanted_lkey,
					  .remote = c->remote[r].base + place,
					  .rkeys = c->remote[r].rkey,
					  .size = sizeof(*own),
					  .notify = true,
					  .imm = EP_NET_IMM_WANTED | slot,
					  .count = &g->left };

		if (r == c->mesh->rank) {
			continue;
		}
		g->open++;
		link->live++; /* of the first lane */
		g->left++;
		EP_CHECK(ep_net_op_start(c->rma, &want, &number));
	}
	return ncclSuccess;
}

static ncclResult_t ep_net_window_check(const struct ep_net_coll *c, const struct ep_net_window *w,
					int nparts, const struct ep_coll_part_v9 *parts)
{
	uint64_t all = (uint64_t)c->mesh->nranks * w->each, sum = 0;

	if (nparts < 1 || nparts > (int)EP_NET_PARTS) {
		return ep_fail(ncclInvalidArgument, "%d pieces of memory, possible are 1..%u",
			       nparts, EP_NET_PARTS);
	}
	for (int i = 0; i < nparts; i++) {
		if (parts[i].size > w->bytes) {
			sum = UINT64_MAX;
			break;
		}
		sum += parts[i].size;
	}
	if (w->each > UINT64_MAX / c->mesh->nranks || w->offset > all ||
	    w->bytes > all - w->offset || sum != w->bytes) {
		return ep_fail(ncclInvalidArgument,
			       "a window of %zu bytes at %zu, of %u times %zu, into memory of %lld "
			       "bytes: it must lie inside, and fill the memory",
			       w->bytes, w->offset, c->mesh->nranks, w->each, (long long)sum);
	}
	return ncclSuccess;
}

/* What this rank wants, and what it has. */
static ncclResult_t ep_net_gather_fill(struct ep_net_coll *c, struct ep_net_wanted *w,
				       struct ep_net_gather *g, void *from, void *from_mr,
				       int nparts, const struct ep_coll_part_v9 *parts)
{
	const struct ep_net_mr *mr;
	uint64_t first, last;

	for (int i = 0; i < nparts; i++) {
		w->part[i].at = (uintptr_t)parts[i].address;
		w->part[i].size = parts[i].size;
		if (parts[i].size) {
			EP_CHECK(ep_net_mr_find(c->mesh->nic, parts[i].mr, parts[i].address,
						parts[i].size, &mr));
			ep_net_mesh_keys(c->mesh, mr->rkey, w->part[i].rkey);
		}
	}
	w->nparts = (uint32_t)nparts;
	ep_net_slice(w, c->mesh->rank, &first, &last);
	g->from = (uintptr_t)from;
	if (first < last) {
		EP_CHECK(ep_net_mr_find(c->mesh->nic, from_mr, from, last - first, &mr));
		ep_net_mesh_keys(c->mesh, mr->lkey, g->lkey);
	}
	return ncclSuccess;
}

/* This rank's own data, unless it is in its place. */
static ncclResult_t ep_net_gather_keep(struct ep_net_coll *c, uint32_t slot)
{
	const struct ep_net_wanted *own = ep_net_wanted_of(c, c->mesh->nranks, slot);
	struct ep_net_run run[EP_NET_PARTS];
	uint32_t n = ep_net_runs(c, own, &c->gather[slot], run);

	return n == 0 || (n == 1 && run[0].from == run[0].to)
		       ? ncclSuccess
		       : ep_net_share_send(c, slot, c->mesh->rank, own);
}

static ncclResult_t ep_net_gather_begin(struct ep_net_coll *c, void *from, void *from_mr,
					int nparts, const struct ep_coll_part_v9 *parts,
					const struct ep_net_window *window, void **request)
{
	uint32_t slot = (uint32_t)(c->begun % EP_NET_GATHERS);
	struct ep_net_gather *g = &c->gather[slot], fresh = { 0 };
	struct ep_net_wanted w = { .each = window->each,
				   .offset = window->offset,
				   .bytes = window->bytes,
				   .number = c->begun };

	*request = NULL;
	EP_CHECK(ep_net_rma_failed(c->rma));
	EP_CHECK(ep_net_window_check(c, window, nparts, parts));
	if (c->gather[(c->begun + EP_NET_GATHERS_OPEN) % EP_NET_GATHERS].use & 1) {
		return ep_net_coll_progress(c); /* the oldest has not been tested to its end */
	}
	EP_CHECK(ep_net_gather_fill(c, &w, &fresh, from, from_mr, nparts, parts));
	fresh.use = (g->use + 1) & ((1u << EP_NET_OP_USE_BITS) - 1);
	*g = fresh;
	*ep_net_wanted_of(c, c->mesh->nranks, slot) = w;
	c->begun++;
	EP_CHECK(ep_net_gather_notify(c, slot));
	EP_CHECK(ep_net_gather_keep(c, slot));
	EP_CHECK(ep_net_coll_progress(c));
	*request = ep_net_op_handle(EP_NET_GATHER, ep_net_slot_of(c->handle), slot, g->use);
	return ncclSuccess;
}

static ncclResult_t ep_net_flush_begin(struct ep_net_coll *c, void *data, int size, void *handle,
				       void **request)
{
	uint32_t ports = c->mesh->ends[c->mesh->rank].n, n = 0;
	uint32_t key[EP_NET_NIC_PORTS], open[EP_NET_NIC_PORTS];
	struct ep_net_link *link[EP_NET_NIC_PORTS], *own;
	const struct ep_net_mr *mr;

	*request = NULL;
	EP_CHECK(ep_net_rma_failed(c->rma));
	if (size <= 0) {
		return ncclSuccess;
	}
	EP_CHECK(ep_net_mr_find(c->mesh->nic, handle, data, (size_t)size, &mr));
	if (!mr->gpu) {
		return ncclSuccess;
	}
	/* Data may have come by each of the ports. */
	ep_net_mesh_keys(c->mesh, mr->rkey, key);
	for (uint32_t i = 0; i < ports; i++) {
		own = ep_net_lane_own(c->rma, i);
		if (own) {
			link[n] = own;
			open[n++] = key[i];
		} /* (else all that was received by the port was waited for) */
	}
	return ep_net_flush_start(c->rma, link, open, n, (uintptr_t)data, request);
}

ncclResult_t ep_net_gather_start(struct ep_net_coll *c, void *from, void *from_mr, int nparts,
				 const struct ep_coll_part_v9 *parts,
				 const struct ep_net_window *window, void **request)
{
	ncclResult_t result;

	ep_net_rma_enter(c->rma);
	result = ep_net_gather_begin(c, from, from_mr, nparts, parts, window, request);
	ep_net_rma_leave(c->rma);
	return result;
}

ncclResult_t ep_net_coll_flush(struct ep_net_coll *c, void *data, int size, void *handle,
			       void **request)
{
	ncclResult_t result;

	ep_net_rma_enter(c->rma);
	result = ep_net_flush_begin(c, data, size, handle, request);
	ep_net_rma_leave(c->rma);
	return result;
}

void ep_net_coll_async(const struct ep_net_async *a, void *coll)
{
	struct ep_net_coll *c = coll;

	ep_net_rma_enter(c->rma);
	ep_net_lanes_async(c->rma); /* the next call returns what fails */
	ep_net_rma_leave(c->rma);
	for (uint32_t r = 0; r < c->mesh->nranks; r++) {
		/* (where something has failed nobody reads any more) */
		if (c->mesh->fd[r] >= 0 && (__atomic_load_n(&c->rma->broken, __ATOMIC_RELAXED) ||
					    ep_net_gone(c->mesh->fd[r]))) {
			ep_net_async_skip(a, c->mesh->fd[r]);
		}
	}
}

static ncclResult_t ep_net_gather_test(struct ep_net_coll *c, uint32_t slot, int *done, int *size)
{
	struct ep_net_gather *g = &c->gather[slot];
	const struct ep_net_wanted *own = ep_net_wanted_of(c, c->mesh->nranks, slot);

	if (g->open || g->left) {
		EP_CHECK(ep_net_coll_progress(c));
	}
	if (g->open || g->left) {
		return ncclSuccess;
	}
	*done = 1;
	if (size) {
		*size = (int)ep_min_u64(own->bytes, INT_MAX);
	}
	g->use = (g->use + 1) & ((1u << EP_NET_OP_USE_BITS) - 1);
	return ncclSuccess;
}

ncclResult_t ep_net_coll_test(void *request, int *done, int *size)
{
	uint32_t slot = ep_net_op_number(request);
	struct ep_net_coll *c;
	ncclResult_t result;
	void *handle;

	*done = 0;
	if (ep_net_kind_of(request) != EP_NET_GATHER) {
		return ep_net_op_test(request, done);
	}
	c = ep_net_handle_at(ep_net_request_comm(request), &handle);
	if (!c || ep_net_kind_of(handle) != EP_NET_COLL || slot >= EP_NET_GATHERS ||
	    c->gather[slot].use != ep_net_op_use(request) || !(c->gather[slot].use & 1)) {
		return ep_fail(ncclInvalidArgument,
			       "%p is no request, or one that was tested to its end", request);
	}
	ep_net_rma_enter(c->rma);
	result = ep_net_gather_test(c, slot, done, size);
	ep_net_rma_leave(c->rma);
	return result;
}
