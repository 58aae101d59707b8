/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All-gather. Of the data of all ranks, one behind the other, a window is gathered. A rank receives from every rank
 * what that one has of the window, in as many messages as there are pieces of memory. The receives have
 * their lengths, so the sender need not know the pieces. All ranks begin gathers in one order, in which
 * receives are posted and messages sent.
 */
#include <limits.h>
#include <string.h>
#include "core/log.h"
#include "net/coll/gather.h"
#include "net/p2p/p2p.h"

static struct ep_net_share *ep_net_share_of(const struct ep_net_coll *c, uint64_t number,
					    uint32_t r)
{
	return &c->share[number % EP_NET_GATHERS * c->mesh->nranks + r];
}

/* Finds rank r's part of the window: from..to, in all ranks' data. */
static void ep_net_slice(const struct ep_net_window *window, uint32_t r, uint64_t *from,
			 uint64_t *to)
{
	*from = ep_max_u64(window->offset, r * window->each);
	*to = ep_min_u64(window->offset + window->bytes, (r + 1) * window->each);
	*to = ep_max_u64(*from, *to);
}

/* How much of `owner`'s data goes to rank `to`. */
static uint64_t ep_net_slice_bytes(const struct ep_net_gather *g, uint32_t owner, uint32_t to)
{
	uint64_t first, last;

	ep_net_slice(&g->window, owner, &first, &last);
	return owner == to && g->in_place ? 0 : last - first;
}

/* ---- receives ---- */

/* The pieces of memory for a rank's data from byte `at` of the window on, at most so many bytes. */
struct ep_net_pieces {
	int n, tag[EP_NET_MAX_RECVS];
	void *data[EP_NET_MAX_RECVS], *mr[EP_NET_MAX_RECVS];
	size_t size[EP_NET_MAX_RECVS];
	uint64_t bytes; /* of all */
};

static void ep_net_pieces_find(const struct ep_net_gather *g, uint64_t at, uint64_t bytes,
			       struct ep_net_pieces *pieces)
{
	uint64_t begin = 0;

	pieces->n = 0;
	pieces->bytes = 0;
	for (uint32_t i = 0; i < g->nparts; begin += g->part[i++].size) {
		uint64_t end = begin + g->part[i].size;

		while (at >= begin && at < end && bytes && pieces->n < EP_NET_MAX_RECVS) {
			uint64_t some = ep_min_u64(ep_min_u64(end - at, bytes), EP_NET_MAX_BYTES);

			pieces->tag[pieces->n] = (int)(g->mark | (uint32_t)pieces->n);
			pieces->data[pieces->n] = (char *)g->part[i].address + (at - begin);
			pieces->mr[pieces->n] = g->part[i].mr;
			pieces->size[pieces->n++] = some;
			pieces->bytes += some;
			at += some;
			bytes -= some;
		}
	}
}

/* Posts receives for a rank's data. *whole: for all of it. */
static ncclResult_t ep_net_share_receive(struct ep_net_coll *c, const struct ep_net_gather *g,
					 struct ep_net_share *share, uint32_t r, bool *whole)
{
	uint64_t bytes = ep_net_slice_bytes(g, r, c->mesh->rank), first, last;
	struct ep_net_pieces p;

	ep_net_slice(&g->window, r, &first, &last);
	if (share->asked < bytes && !share->receive) {
		ep_net_pieces_find(g, first - g->window.offset + share->asked, bytes - share->asked,
				   &p);
		EP_CHECK(ep_net_irecv(c->recv[r], p.n, p.data, p.size, p.tag, p.mr,
				      &share->receive));
		if (share->receive) {
			share->group = p.bytes;
			share->asked += p.bytes;
		}
	}
	*whole = share->asked == bytes;
	return ncclSuccess;
}

/* ---- sends ---- */

static ncclResult_t ep_net_share_differs(const struct ep_net_coll *c, const struct ep_net_gather *g,
					 uint32_t r)
{
	return ep_fail(ncclRemoteError,
		       "%s gathers something else than this rank, which gathers %zu bytes at %zu, "
		       "of %zu of each rank: all ranks must gather the same",
		       c->mesh->who[r], g->window.bytes, g->window.offset, g->window.each);
}

/* Sends this rank's data, as far as a rank has posted receives for it. *whole: all of it. */
static ncclResult_t ep_net_share_send(struct ep_net_coll *c, const struct ep_net_gather *g,
				      struct ep_net_share *share, uint32_t r, bool *whole)
{
	uint64_t bytes = ep_net_slice_bytes(g, c->mesh->rank, r);

	while (share->sent < bytes) {
		struct ep_net_asked asked;
		void **request;

		EP_CHECK(ep_net_send_asked(c->send[r], &asked));
		if (!asked.size) {
			break;
		}
		if (((uint32_t)asked.tag ^ g->mark) >= EP_NET_MAX_RECVS ||
		    asked.size > bytes - share->sent) {
			return ep_net_share_differs(c, g, r);
		}
		request = &share->send[(uint32_t)asked.tag ^ g->mark];
		if (*request) {
			break; /* of the group of receives before */
		}
		EP_CHECK(ep_net_isend(c->send[r], g->from + share->sent, asked.size, asked.tag,
				      g->from_mr, request));
		if (!*request) {
			break;
		}
		share->sent += asked.size;
	}
	*whole = share->sent == bytes;
	return ncclSuccess;
}

/* ---- progress ---- */

/* Posts what can be posted with a rank, in the order of gathers. */
static ncclResult_t ep_net_rank_post(struct ep_net_coll *c, uint32_t r)
{
	struct ep_net_turn *t = &c->turn[r];
	bool whole = true;

	while (whole && t->receive < c->begun) {
		EP_CHECK(ep_net_share_receive(c, &c->gather[t->receive % EP_NET_GATHERS],
					      ep_net_share_of(c, t->receive, r), r, &whole));
		t->receive += whole;
	}
	whole = true;
	while (whole && t->send < c->begun) {
		EP_CHECK(ep_net_share_send(c, &c->gather[t->send % EP_NET_GATHERS],
					   ep_net_share_of(c, t->send, r), r, &whole));
		t->send += whole;
	}
	return ncclSuccess;
}

static ncclResult_t ep_net_coll_post(struct ep_net_coll *c)
{
	uint64_t now;

	if (++c->idle % EP_NET_IDLE == 0 && (now = ep_now_ns()) - c->checked >= EP_NET_CHECK_NS) {
		c->checked = now;
		EP_CHECK(ep_net_mesh_check(c->mesh));
	}
	for (uint32_t r = 0; r < c->mesh->nranks; r++) {
		EP_CHECK(ep_net_rank_post(c, r));
	}
	return ncclSuccess;
}

/* Whether a request of a connection has ended; then it is forgotten. NULL: it has. */
static ncclResult_t ep_net_share_test(void **request, int *sizes, bool *ended)
{
	int done = 1;

	if (*request) {
		EP_CHECK(ep_net_test(*request, &done, sizes));
	}
	*request = done ? NULL : *request;
	*ended &= done;
	return ncclSuccess;
}

/* *ended: what this rank and another one have for each other in a gather is done. */
static ncclResult_t ep_net_share_poll(struct ep_net_coll *c, uint64_t number, uint32_t r,
				      bool *ended)
{
	struct ep_net_share *s = ep_net_share_of(c, number, r);
	int sizes[EP_NET_MAX_RECVS] = { 0 };
	bool receives = s->receive != NULL;
	uint64_t sum = 0;

	*ended &= c->turn[r].receive > number && c->turn[r].send > number;
	EP_CHECK(ep_net_share_test(&s->receive, sizes, ended));
	for (int i = 0; i < EP_NET_MAX_RECVS; i++) {
		EP_CHECK(ep_net_share_test(&s->send[i], NULL, ended));
		sum += (uint64_t)sizes[i];
	}
	return receives && !s->receive && sum != s->group
		       ? ep_fail(ncclRemoteError, "%s has sent %llu bytes of %llu", c->mesh->who[r],
				 (unsigned long long)sum, (unsigned long long)s->group)
		       : ncclSuccess;
}

/* ---- for NCCL ---- */

static ncclResult_t ep_net_window_check(const struct ep_net_coll *c,
					const struct ep_net_window *window, int nparts,
					const struct ep_coll_part_v9 *parts)
{
	uint64_t all = (uint64_t)c->mesh->nranks * window->each, sum = 0;

	if (nparts < 1 || nparts > (int)EP_NET_PARTS) {
		return ep_fail(ncclInvalidArgument, "%d pieces of memory, possible are 1..%u",
			       nparts, EP_NET_PARTS);
	}
	for (int i = 0; i < nparts; i++) {
		if (parts[i].size > window->bytes) {
			sum = UINT64_MAX;
			break;
		}
		sum += parts[i].size;
	}
	if (window->each > UINT64_MAX / c->mesh->nranks || window->offset > all ||
	    window->bytes > all - window->offset || sum != window->bytes) {
		return ep_fail(ncclInvalidArgument,
			       "a window of %zu bytes at %zu, of %u times %zu, into memory of %lld "
			       "bytes: it must lie inside, and fill the memory",
			       window->bytes, window->offset, c->mesh->nranks, window->each,
			       (long long)sum);
	}
	return ncclSuccess;
}

/* Fills in this rank's part, and where it wants the window. */
static ncclResult_t ep_net_gather_fill(const struct ep_net_coll *c, struct ep_net_gather *g)
{
	const struct ep_net_window *w = &g->window;
	uint64_t first, last, at = w->offset;
	const struct ep_net_mr *mr;

	ep_net_slice(w, c->mesh->rank, &first, &last);
	if (first < last) {
		EP_CHECK(ep_net_mr_find(c->mesh->nic, g->from_mr, g->from, last - first, &mr));
	}
	for (uint32_t i = 0; i < g->nparts; at += g->part[i++].size) {
		const struct ep_coll_part_v9 *part = &g->part[i];

		if (part->size) {
			EP_CHECK(ep_net_mr_find(c->mesh->nic, part->mr, part->address, part->size,
						&mr));
		}
		g->in_place |= first >= at && last <= at + part->size &&
			       g->from == (char *)part->address + (first - at);
	}
	/* (of the gather, too: a rank that has begun one more is found out) */
	g->mark = (uint32_t)(((g->number * 31 + w->each) * 31 + w->offset) * 31 + w->bytes);
	g->mark = g->mark * 2654435761u / EP_NET_MAX_RECVS * EP_NET_MAX_RECVS;
	return ncclSuccess;
}

static void *ep_net_coll_request(struct ep_net_coll *c, uint32_t number)
{
	c->use[number] = ep_net_use_next(c->use[number]);
	return ep_net_request_handle(EP_NET_GATHER, c->handle, number, c->use[number]);
}

ncclResult_t ep_net_gather_start(struct ep_net_coll *c, void *from, void *from_mr, int nparts,
				 const struct ep_coll_part_v9 *parts,
				 const struct ep_net_window *window, void **request)
{
	uint32_t slot = (uint32_t)(c->begun % EP_NET_GATHERS);
	struct ep_net_gather g = {
		.number = c->begun, .window = *window, .from = from, .from_mr = from_mr
	};

	*request = NULL;
	if (c->failed.code != ncclSuccess) {
		return ep_fail_again(&c->failed);
	}
	EP_CHECK(ep_net_window_check(c, window, nparts, parts));
	if (c->use[slot] & 1) {
		return ep_net_coll_note(
			c, ep_net_coll_post(c)); /* it has not been tested to its end */
	}
	g.nparts = (uint32_t)nparts;
	memcpy(g.part, parts, (size_t)nparts * sizeof(*parts));
	EP_CHECK(ep_net_gather_fill(c, &g));
	c->gather[slot] = g;
	memset(ep_net_share_of(c, slot, 0), 0, c->mesh->nranks * sizeof(*c->share));
	c->begun++;
	EP_CHECK(ep_net_coll_note(c, ep_net_coll_post(c)));
	*request = ep_net_coll_request(c, slot);
	return ncclSuccess;
}

/* By each connection: its data may have come by a port that others have lost. */
ncclResult_t ep_net_coll_flush(struct ep_net_coll *c, void *data, int size, void *mr,
			       void **request)
{
	uint32_t slot = c->next_flush, number = EP_NET_GATHERS + slot;
	void **each = &c->flush[slot * c->mesh->nranks];
	bool any = false;

	*request = NULL;
	if (c->failed.code != ncclSuccess) {
		return ep_fail_again(&c->failed);
	}
	if (c->use[number] & 1) {
		return ep_fail(ncclInternalError, "more than %u flushes are under way",
			       EP_NET_FLUSHES);
	}
	for (uint32_t r = 0; r < c->mesh->nranks; r++) {
		EP_CHECK(ep_net_iflush(c->recv[r], 1, &data, &size, &mr, &each[r]));
		any |= each[r] != NULL;
	}
	if (any) {
		c->next_flush = (slot + 1) % EP_NET_FLUSHES;
		*request = ep_net_coll_request(c, number);
	}
	return ncclSuccess;
}

/* *ended: a request has. */
static ncclResult_t ep_net_coll_poll(struct ep_net_coll *c, uint32_t number, bool *ended)
{
	EP_CHECK(ep_net_coll_post(c));
	for (uint32_t r = 0; r < c->mesh->nranks; r++) {
		if (number < EP_NET_GATHERS) {
			EP_CHECK(ep_net_share_poll(c, c->gather[number].number, r, ended));
		} else {
			void **each = &c->flush[(number - EP_NET_GATHERS) * c->mesh->nranks];

			EP_CHECK(ep_net_share_test(&each[r], NULL, ended));
		}
	}
	return ncclSuccess;
}

ncclResult_t ep_net_coll_test(void *request, int *done, int *size)
{
	enum ep_net_kind kind;
	struct ep_net_coll *c = ep_net_request_owner(EP_NET_GATHER, request, &kind);
	uint32_t number = ep_net_request_number(request);
	bool ended = true;

	*done = 0;
	if (!c || kind != EP_NET_COLL || number >= EP_ARRAY_SIZE(c->use) ||
	    !ep_net_request_is(request, c->use[number])) {
		return ep_net_request_fail(request);
	}
	if (c->failed.code != ncclSuccess) {
		return ep_fail_again(&c->failed);
	}
	EP_CHECK(ep_net_coll_note(c, ep_net_coll_poll(c, number, &ended)));
	if (ended) {
		*done = 1;
		if (size && number < EP_NET_GATHERS) {
			*size = (int)ep_min_u64(c->gather[number].window.bytes, INT_MAX);
		}
		c->use[number] = ep_net_use_next(c->use[number]);
	}
	return ncclSuccess;
}
