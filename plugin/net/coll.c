/* SPDX-License-Identifier: Apache-2.0 */
/* All-gather over connections. */
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/log.h"
#include "core/param.h"
#include "net/net.h"
#include "net/coll.h"
#include "net/p2p.h"

/* ---- the end of a group that has failed ---- */

/* Closes the connections: ranks that wait for this one learn that it has failed or ended. */
static void coll_leave(struct ep_net_coll *c)
{
	for (uint32_t r = 0; r < c->nranks; r++) {
		if (c->send) {
			ep_net_close_send(c->send[r]);
			c->send[r] = NULL;
		}
		if (c->recv) {
			ep_net_close_recv(c->recv[r]);
			c->recv[r] = NULL;
		}
	}
}

/* Where `result` is an error: no call works any more, on any rank. Returns it. */
static ncclResult_t coll_note(struct ep_net_coll *c, ncclResult_t result)
{
	if (result != ncclSuccess) {
		ep_error_get(NULL, &c->failed);
		coll_leave(c);
	}
	return result;
}

/* ---- what ranks have for each other ---- */

static struct ep_net_share *share_of(const struct ep_net_coll *c, uint64_t number, uint32_t r)
{
	return &c->share[number % EP_NET_GATHERS * c->nranks + r];
}

/* Finds rank r's part of the window: from..to, in all ranks' data. */
static void slice(const struct ep_net_window *window, uint32_t r, uint64_t *from, uint64_t *to)
{
	*from = ep_max_u64(window->offset, r * window->each);
	*to = ep_min_u64(window->offset + window->bytes, (r + 1) * window->each);
	*to = ep_max_u64(*from, *to);
}

/* How much of `owner`'s data goes to rank `to`. */
static uint64_t slice_bytes(const struct ep_net_gather *g, uint32_t owner, uint32_t to)
{
	uint64_t first, last;

	slice(&g->window, owner, &first, &last);
	return owner == to && g->in_place ? 0 : last - first;
}

/* ---- receives ---- */

/* The pieces of memory for a rank's data from byte `at` of the window on, at most so many bytes. */
struct pieces {
	int n, tag[EP_NET_MAX_RECVS];
	void *data[EP_NET_MAX_RECVS], *mr[EP_NET_MAX_RECVS];
	size_t size[EP_NET_MAX_RECVS];
	uint64_t bytes; /* of all */
};

static void pieces_find(const struct ep_net_gather *g, uint64_t at, uint64_t bytes,
			struct pieces *pieces)
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
static ncclResult_t share_receive(struct ep_net_coll *c, const struct ep_net_gather *g,
				  struct ep_net_share *share, uint32_t r, bool *whole)
{
	uint64_t bytes = slice_bytes(g, r, c->rank), first, last;
	struct pieces p;

	slice(&g->window, r, &first, &last);
	if (share->asked < bytes && !share->receive) {
		pieces_find(g, first - g->window.offset + share->asked, bytes - share->asked, &p);
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

/* Sends this rank's data, as far as a rank has posted receives for it. *whole: all of it. */
static ncclResult_t share_send(struct ep_net_coll *c, const struct ep_net_gather *g,
			       struct ep_net_share *share, uint32_t r, bool *whole)
{
	uint64_t bytes = slice_bytes(g, c->rank, r);

	while (share->sent < bytes) {
		struct ep_net_asked asked;
		void **request;

		EP_CHECK(ep_net_send_asked(c->send[r], &asked));
		if (!asked.size) {
			break;
		}
		if (((uint32_t)asked.tag ^ g->mark) >= EP_NET_MAX_RECVS ||
		    asked.size > bytes - share->sent) {
			return ep_fail(ncclRemoteError,
				       "%s gathers something else than this rank, which gathers "
				       "%zu bytes at %zu, of %zu of each rank: all ranks must "
				       "gather the same",
				       c->who[r], g->window.bytes, g->window.offset,
				       g->window.each);
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
static ncclResult_t rank_post(struct ep_net_coll *c, uint32_t r)
{
	struct ep_net_turn *t = &c->turn[r];
	bool whole = true;

	while (whole && t->receive < c->begun) {
		EP_CHECK(share_receive(c, &c->gather[t->receive % EP_NET_GATHERS],
				       share_of(c, t->receive, r), r, &whole));
		t->receive += whole;
	}
	whole = true;
	while (whole && t->send < c->begun) {
		EP_CHECK(share_send(c, &c->gather[t->send % EP_NET_GATHERS],
				    share_of(c, t->send, r), r, &whole));
		t->send += whole;
	}
	return ncclSuccess;
}

static ncclResult_t coll_post(struct ep_net_coll *c)
{
	for (uint32_t r = 0; r < c->nranks; r++) {
		EP_CHECK(rank_post(c, r));
	}
	return ncclSuccess;
}

/* Whether a request of a connection has ended; then it is forgotten. NULL: it has. */
static ncclResult_t share_test(void **request, int *sizes, bool *ended)
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
static ncclResult_t share_poll(struct ep_net_coll *c, uint64_t number, uint32_t r, bool *ended)
{
	struct ep_net_share *s = share_of(c, number, r);
	int sizes[EP_NET_MAX_RECVS] = { 0 };
	bool receives = s->receive != NULL;
	uint64_t sum = 0;

	*ended &= c->turn[r].receive > number && c->turn[r].send > number;
	EP_CHECK(share_test(&s->receive, sizes, ended));
	for (int i = 0; i < EP_NET_MAX_RECVS; i++) {
		EP_CHECK(share_test(&s->send[i], NULL, ended));
		sum += (uint64_t)sizes[i];
	}
	return receives && !s->receive && sum != s->group
		       ? ep_fail(ncclRemoteError, "%s has sent %llu bytes of %llu", c->who[r],
				 (unsigned long long)sum, (unsigned long long)s->group)
		       : ncclSuccess;
}

/* ---- for NCCL ---- */

static ncclResult_t window_check(const struct ep_net_coll *c, const struct ep_net_window *window,
				 int nparts, const struct ep_coll_part_v9 *parts)
{
	uint64_t all = (uint64_t)c->nranks * window->each, sum = 0;

	if (nparts < 1 || nparts > (int)EP_NET_PARTS) {
		return ep_fail(ncclInvalidArgument, "%d pieces of memory, possible are 1..%u",
			       nparts, EP_NET_PARTS);
	}
	for (int i = 0; i < nparts; i++) {
		sum = parts[i].size > UINT64_MAX - sum ? UINT64_MAX : sum + parts[i].size;
	}
	if (window->each > UINT64_MAX / c->nranks || window->offset > all ||
	    window->bytes > all - window->offset || sum != window->bytes) {
		return ep_fail(ncclInvalidArgument,
			       "a window of %zu bytes at %zu, of %u times %zu, into memory of %llu "
			       "bytes: it must lie inside, and fill the memory",
			       window->bytes, window->offset, c->nranks, window->each,
			       (unsigned long long)sum);
	}
	return ncclSuccess;
}

/* Fills in this rank's part, and where it wants the window. */
static ncclResult_t gather_fill(const struct ep_net_coll *c, struct ep_net_gather *g)
{
	const struct ep_net_window *w = &g->window;
	uint64_t first, last, at = w->offset;
	const struct ep_net_mr *mr;

	slice(w, c->rank, &first, &last);
	if (first < last) {
		EP_CHECK(ep_net_mr_find(c->nic, g->from_mr, g->from, last - first, &mr));
	}
	for (uint32_t i = 0; i < g->nparts; at += g->part[i++].size) {
		const struct ep_coll_part_v9 *part = &g->part[i];

		if (part->size) {
			EP_CHECK(ep_net_mr_find(c->nic, part->mr, part->address, part->size, &mr));
		}
		g->in_place |= first >= at && last <= at + part->size &&
			       g->from == (char *)part->address + (first - at);
	}
	/* (of the gather, too: a rank that has begun one more is found out) */
	g->mark = (uint32_t)(((g->number * 31 + w->each) * 31 + w->offset) * 31 + w->bytes);
	g->mark = g->mark * 2654435761u / EP_NET_MAX_RECVS * EP_NET_MAX_RECVS;
	return ncclSuccess;
}

static void *coll_request(struct ep_net_coll *c, uint32_t number)
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
	EP_CHECK(window_check(c, window, nparts, parts));
	if (c->use[slot] & 1) {
		return coll_note(c, coll_post(c)); /* it has not been tested to its end */
	}
	g.nparts = (uint32_t)nparts;
	memcpy(g.part, parts, (size_t)nparts * sizeof(*parts));
	EP_CHECK(gather_fill(c, &g));
	c->gather[slot] = g;
	memset(share_of(c, slot, 0), 0, c->nranks * sizeof(*c->share));
	c->begun++;
	EP_CHECK(coll_note(c, coll_post(c)));
	*request = coll_request(c, slot);
	return ncclSuccess;
}

/* By each connection: its data may have come by a port that others have lost. */
ncclResult_t ep_net_coll_flush(struct ep_net_coll *c, void *data, int size, void *mr,
			       void **request)
{
	uint32_t slot = c->next_flush, number = EP_NET_GATHERS + slot;
	void **each = &c->flush[slot * c->nranks];
	bool any = false;

	*request = NULL;
	if (c->failed.code != ncclSuccess) {
		return ep_fail_again(&c->failed);
	}
	if (c->use[number] & 1) {
		return ep_fail(ncclInternalError, "more than %u flushes are under way",
			       EP_NET_FLUSHES);
	}
	for (uint32_t r = 0; r < c->nranks; r++) {
		ncclResult_t result = ep_net_iflush(c->recv[r], 1, &data, &size, &mr, &each[r]);

		if (result != ncclSuccess) {
			return any ? coll_note(c, result) : result;
		}
		any |= each[r] != NULL;
	}
	if (any) {
		c->next_flush = (slot + 1) % EP_NET_FLUSHES;
		*request = coll_request(c, number);
	}
	return ncclSuccess;
}

/* *ended: a request has. */
static ncclResult_t coll_poll(struct ep_net_coll *c, uint32_t number, bool *ended)
{
	EP_CHECK(coll_post(c));
	for (uint32_t r = 0; r < c->nranks; r++) {
		if (number < EP_NET_GATHERS) {
			EP_CHECK(share_poll(c, c->gather[number].number, r, ended));
		} else {
			void **each = &c->flush[(number - EP_NET_GATHERS) * c->nranks];

			EP_CHECK(share_test(&each[r], NULL, ended));
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
	EP_CHECK(coll_note(c, coll_poll(c, number, &ended)));
	if (ended) {
		*done = 1;
		if (size && number < EP_NET_GATHERS) {
			*size = (int)ep_min_u64(c->gather[number].window.bytes, INT_MAX);
		}
		c->use[number] = ep_net_use_next(c->use[number]);
	}
	return ncclSuccess;
}

static bool coll_wanted(void)
{
	return ep_param_or_initial(EP_PARAM_COLLNET) != 0;
}

ncclResult_t ep_net_coll_init(ep_net_log_fn *log, void **ctx)
{
	if (!coll_wanted()) {
		EP_INFO(EP_LOG_INIT | EP_LOG_NET,
			"not used for collectives, there is no hardware in the network for them "
			"(NCCL_EP_COLLNET=1: all-gather by direct writes)");
		return ncclSystemError;
	}
	return ctx ? ep_net_context_new(log, -1, ctx) : ep_net_init(log);
}

ncclResult_t ep_net_coll_count(int *ndevs)
{
	*ndevs = coll_wanted() ? ep_net_nic_count(EP_NET_TABLE_COLL) : 0;
	return ncclSuccess;
}

ncclResult_t ep_net_coll_get(const void *handle, struct ep_net_coll **coll)
{
	*coll = ep_net_handle_find(EP_NET_COLL, handle);
	return *coll ? ncclSuccess : ncclInvalidArgument;
}

/* ---- making ---- */

static ncclResult_t coll_memory(struct ep_net_coll *c)
{
	size_t n = c->nranks;
	uint32_t use = ep_net_use_first();

	c->who = calloc(n, sizeof(*c->who));
	c->send = calloc(n, sizeof(*c->send));
	c->recv = calloc(n, sizeof(*c->recv));
	c->turn = calloc(n, sizeof(*c->turn));
	c->share = calloc(n * EP_NET_GATHERS, sizeof(*c->share));
	c->flush = calloc(n * EP_NET_FLUSHES, sizeof(*c->flush));
	for (uint32_t i = 0; i < EP_ARRAY_SIZE(c->use); i++) {
		c->use[i] = use;
	}
	return c->who && c->send && c->recv && c->turn && c->share && c->flush
		       ? ncclSuccess
		       : ep_fail(ncclSystemError, "out of host memory for collectives of %zu ranks",
				 n);
}

/* Takes a connection that has come, if there is one. */
static ncclResult_t coll_accept(struct ep_net_coll *c, void *listener)
{
	const struct ep_net_comm *comm;
	uint32_t r, nranks;
	void *recv;

	EP_CHECK(ep_net_accept(listener, &recv));
	if (!recv) {
		return ncclSuccess;
	}
	comm = ep_net_handle_get(EP_NET_RECV, recv);
	r = comm->rank;
	nranks = comm->nranks;
	if (nranks != c->nranks || r >= nranks || c->recv[r]) {
		ep_net_close_recv(recv);
		return ep_fail(ncclRemoteError,
			       "a peer claims to be rank %u of %u, which is none that rank %u of "
			       "%u expects: do all ranks give the same?",
			       r, nranks, c->rank, c->nranks);
	}
	c->recv[r] = recv;
	return ncclSuccess;
}

/* Connects to all ranks, and waits for them. handle: of each rank's listener. */
static ncclResult_t coll_join(struct ep_net_coll *c, void *listener, int tc,
			      struct ep_net_handle *handle)
{
	uint64_t until = ep_now_ns() + ep_net_setup_ns();
	uint32_t missing, first = 0;

	for (;;) {
		missing = 0;
		for (uint32_t r = 0; r < c->nranks; r++) {
			if (!c->send[r]) {
				EP_CHECK(ep_net_connect(NULL, c->nic->index, tc, &handle[r],
							&c->send[r]));
			}
			if (!c->send[r] || !c->recv[r]) {
				first = missing++ ? first : r;
			}
		}
		if (!missing) {
			return ncclSuccess;
		}
		EP_CHECK(coll_accept(c, listener));
		if (ep_now_ns() > until) {
			return ep_fail(ncclRemoteError,
				       "waited %llu ms for %u of %u ranks, the first is %s: is its "
				       "process stuck? (NCCL_EP_BOOTSTRAP_TIMEOUT_MS)",
				       (unsigned long long)(ep_net_setup_ns() / 1000000), missing,
				       c->nranks, c->who[first]);
		}
		poll(NULL, 0, 1);
	}
}

/* Names the peer in messages. The plugin's thread may print one now. */
static void comm_name(struct ep_net_comm *comm, const char *who)
{
	ep_net_enter(comm);
	snprintf(comm->peer, sizeof(comm->peer), "%s", who);
	ep_net_leave(comm);
}

static void coll_free(void *object)
{
	struct ep_net_coll *c = object;

	coll_leave(c);
	if (c->nic) {
		ep_net_nic_drop(c->nic);
	}
	free(c->who);
	free(c->send);
	free(c->recv);
	free(c->turn);
	free(c->share);
	free(c->flush);
	free(c);
}

ncclResult_t ep_net_coll_connect(void *handles[], int nranks, int rank, void *listen_comm,
				 void **coll)
{
	struct ep_net_handle *handle = NULL;
	char addr[EP_NET_ADDR_TEXT];
	const struct ep_net_nic *nic;
	struct ep_net_coll *c;
	ncclResult_t result;
	uint64_t nonce;
	int tc;

	*coll = NULL;
	if (nranks < 1 || (uint32_t)nranks > EP_NET_COLL_RANKS || rank < 0 || rank >= nranks) {
		return ep_fail(ncclInvalidArgument, "rank %d of %d: possible are 1 to %u ranks",
			       rank, nranks, EP_NET_COLL_RANKS);
	}
	c = calloc(1, sizeof(*c));
	if (!c) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	EP_CHECK_GOTO(ep_net_listener(listen_comm, &nic, &tc, &nonce), err_free);
	EP_CHECK_GOTO(ep_net_nic_hold(nic), err_free);
	c->nic = nic;
	c->nranks = (uint32_t)nranks;
	c->rank = (uint32_t)rank;
	EP_CHECK_GOTO(coll_memory(c), err_free);
	handle = calloc(c->nranks, sizeof(*handle));
	if (!handle) {
		result = ep_fail(ncclSystemError, "out of host memory for %u ranks", c->nranks);
		goto err_free;
	}
	for (uint32_t r = 0; r < c->nranks; r++) {
		memcpy(&handle[r], handles[r], sizeof(*handle));
		snprintf(c->who[r], sizeof(*c->who), "rank %u", r);
		EP_CHECK_GOTO(ep_net_place_check(&handle[r].place, EP_NET_MAGIC, c->who[r]),
			      err_free);
		snprintf(c->who[r], sizeof(*c->who), "rank %u (%s)", r,
			 ep_net_addr_print(&handle[r].place.addr, addr));
		handle[r].rank = c->rank;
		handle[r].nranks = c->nranks;
	}
	if (handle[c->rank].place.nonce != nonce) {
		result = ep_fail(ncclInvalidArgument, "the handle of rank %u is not its listener's",
				 c->rank);
		goto err_free;
	}
	EP_CHECK_GOTO(coll_join(c, listen_comm, tc, handle), err_leave);
	for (uint32_t r = 0; r < c->nranks; r++) {
		comm_name(ep_net_handle_get(EP_NET_SEND, c->send[r]), c->who[r]);
		comm_name(ep_net_handle_get(EP_NET_RECV, c->recv[r]), c->who[r]);
	}
	EP_CHECK_GOTO(ep_net_handle_new(EP_NET_COLL, c, &c->handle), err_leave);
	*coll = c->handle;
	free(handle);
	EP_INFO(EP_LOG_INIT | EP_LOG_NET, "%s: all-gather between %d ranks, this is rank %d",
		c->nic->label, nranks, rank);
	return ncclSuccess;

err_leave:
	for (uint32_t r = 0; r < c->nranks; r++) {
		ep_net_connect_end(&handle[r]);
	}
err_free:
	free(handle);
	coll_free(c);
	return result;
}

ncclResult_t ep_net_coll_close(void *coll)
{
	return ep_net_handle_close(EP_NET_COLL, coll, coll_free);
}

ncclResult_t ep_net_coll_reg(void *coll, const struct ep_net_memory *memory, void **mr)
{
	struct ep_net_coll *c;

	*mr = NULL;
	EP_CHECK(ep_net_coll_get(coll, &c));
	if (c->failed.code != ncclSuccess) {
		return ep_fail_again(&c->failed);
	}
	return ep_net_memory_reg(c->nic, memory, mr);
}
