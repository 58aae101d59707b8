/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: ncclEpUpdateHandle. What is in device/ht/ht_layout.h's handle memory follows
 * from the ids of all ranks, in four trips:
 *
 *   1. Each block counts its tokens per expert and per rank, and publishes that to the other blocks
 *      of the rank.
 *   2. The blocks share what is to be added up: each publishes to every block what those before
 *      that one have, and every rank the sums, this rank's counts, whether it has started the step
 *      or not.
 *   3. Every block now knows where its rows belong at every rank. It writes this rank's tables, and
 *      to each peer, once all have started the step, what its rows are.
 *   4. Each rank copies what its peers publish to handle memory, as it comes.
 *
 * Few tokens are counted by each block of the rank, which leaves out the first trip. All that
 * travels within a node has its epoch beside it, so nothing waits for a fence. All blocks of the
 * grid wait for one another, so all must be resident: at most EP_HT_ROUTE_BLOCKS.
 */
#include "device/ht/route_place.h"

#include "device/kernels.h"

/* Warps of a block that sort selections while the others add up counts. */
#define EP_HT_ROUTE_SORTERS 6u

/* All tokens of the block are marked at once, and all experts. */
EP_DEV bool route_whole(const struct ep_ht_route &route)
{
	return route.marks_all ||
	       (route.end - route.begin <= route.span && route.experts <= route.window);
}

/* Counts the block's tokens, or all, of which the first span is marked. Barriers are held. */
EP_DEV void ht_route_count(const struct ep_ht_route_args &a, const struct ep_op &op,
			   const struct ep_ht_route &route)
{
	uint64_t *words = ep_ht_block_words(a.c, route, ep_block());

	if (ep_tid() == ep_nthreads() - 1) {
		ep_st_word(words + route.columns, route.end - route.begin, op.epoch);
	}
	if (route.marks_all) {
		ep_ht_columns_add(route, op, 0, true, route.all, NULL);
		ep_block_sync();
		return;
	}
	for (uint32_t w0 = route.begin;; w0 += route.span) {
		bool last = w0 + route.span >= route.end;

		if (w0 != route.begin) {
			ep_ht_span_take(a, op, route, w0);
		}
		for (uint32_t e0 = 0; e0 < route.experts; e0 += route.window) {
			if (e0) {
				ep_ht_window_take(a, route, w0, e0);
			}
			ep_ht_columns_add(route, op, e0, e0 == 0, route.all, last ? words : NULL);
		}
		if (last) {
			return;
		}
	}
}

/* Places the block's tokens. Barriers are held. */
template <bool NODES>
EP_DEV void ht_route_place(const struct ep_ht_route_args &a, const struct ep_op &op,
			   const struct ep_ht_route &route)
{
	uint32_t experts = a.c.layout == EP_HT_EXPERT_MAJOR ? route.experts : 1;
	bool whole = route_whole(route);

	for (uint32_t w0 = route.first_span; w0 < route.end; w0 += route.span) {
		uint32_t ids = ep_ht_span_tokens(route, w0) * a.c.topk;

		if (!whole) {
			ep_ht_span_take(a, op, route, w0);
			ep_ht_span_sort(a, route, w0, ep_tid(), ep_nthreads());
			ep_block_sync();
			ep_ht_span_runs(a, route, w0);
			ep_block_sync();
		}
		ep_ht_span_starts<NODES>(a.c, op, route, w0);
		for (uint32_t e0 = 0; e0 < experts; e0 += route.window) {
			if (e0) {
				ep_ht_window_take(a, route, w0, e0);
			}
			for (uint32_t i = route.skip * a.c.topk + ep_tid(); i < ids;
			     i += ep_nthreads()) {
				ep_ht_sel_place(a, route, w0, i, e0, whole);
			}
			ep_block_sync();
			if (!whole) {
				ep_ht_columns_add(route, op, e0, false, route.first, NULL);
			}
		}
		ep_ht_span_push<NODES>(a, op, route);
		if (NODES) {
			ep_ht_span_nodes(a.c, w0 + route.skip,
					 ep_ht_span_tokens(route, w0) - route.skip);
		}
		if (!whole) {
			ep_block_sync();
			ep_ht_columns_add(route, op, route.experts, true, route.first, NULL);
		}
	}
}

/*
 * Adds up the counts of all blocks, which are published; other warps sort selections meanwhile.
 * False, of the warps that add: a block's do not come.
 */
template <bool NODES>
EP_DEV bool route_sum(const struct ep_ht_route_args &a, const struct ep_op &op,
		      const struct ep_ht_route &route)
{
	uint32_t warps = ep_nwarps() > EP_HT_ROUTE_SORTERS ? ep_nwarps() - EP_HT_ROUTE_SORTERS
							   : (ep_nwarps() + 1) / 2;
	uint32_t adders = ep_nwarps() > 1 ? warps * EP_WARP_SIZE : 0;
	bool ok = true;

	if (route.marks_all) {
		ep_ht_counts_publish<NODES>(a.c, op, route);
		adders = 0;
	} else if (ep_warp() < warps) {
		ok = ep_ht_blocks_sum<NODES>(a.c, op, route, warps);
	}
	if (route_whole(route) && ep_tid() >= adders) {
		ep_ht_span_sort(a, route, route.first_span, ep_tid() - adders,
				ep_nthreads() - adders);
	}
	return ok;
}

/* The block that leaves the results in handle memory: it may have the fewest tokens. */
EP_DEV uint32_t route_keeper(void)
{
	return ep_nblocks() - 1;
}

/*
 * The block gives up: handle memory has no routing, whatever the others do. Waits for the keeper's
 * first word, behind which it does not clear the head any more. Any thread.
 */
EP_DEV_COLD void route_fail(const struct ep_ht_common &c, struct ep_op op,
			    const struct ep_ht_route &route)
{
	const uint64_t *word = ep_ht_block_words(c, route, route_keeper()) + route.columns;
	struct ep_spin s = ep_spin_start();
	uint32_t v;

	while (!ep_ld_word(word, op.epoch, &v) &&
	       !ep_spin_expired(&s, c.g.timeout_ns, EP_WAIT_HT_COUNT, c.g.rank)) {
	}
	ep_ht_head_fail(c);
}

/*
 * Sets *failed if the group was aborted before: a kernel may have ended before all ranks had
 * started its step, and some may still read what this one would publish without waiting for them. A
 * barrier before and after.
 */
EP_DEV void route_hold(const struct ep_step_found &found, uint32_t *failed)
{
	if (ep_warp() == ep_nwarps() - 1 && ep_any(EP_FULL_MASK, found.aborted) && ep_lane() == 0) {
		ep_shared_or_u32(failed, 1);
	}
}

/* The counts of all ranks, once this rank's are published. False: nothing more may be done. */
template <bool NODES>
EP_DEV bool route_exchange(const struct ep_ht_route_args &a, const struct ep_op &op,
			   const struct ep_ht_route &route, bool ok, uint32_t *failed)
{
	const struct ep_ht_common &c = a.c;
	uint32_t over;

	if (NODES && ep_block() == 0 && c.roles.readers) {
		ok = ep_ht_counts_here<NODES>(c, op, route) && ok;
		ep_block_sync();
		ep_ht_counts_post(c, op, route);
	}
	if (route_whole(route)) { /* while the sums are on their way */
		ep_ht_span_runs(a, route, route.first_span);
		ep_ht_span_before(a, route);
	}
	if (!ok || !ep_ht_counts_take<NODES>(c, op, route)) {
		ep_shared_or_u32(failed, 1);
	}
	ep_block_sync();
	if (*failed) {
		if (ep_tid() == 0) {
			route_fail(c, op, route);
		}
		return false;
	}
	ep_ht_bases_make(a, route);
	ep_block_sync();
	over = ep_ht_overflow_find(a, route);
	if (over < c.roles.holders && ep_block() == 0 && ep_tid() == 0) {
		ep_ht_overflow_record(a, op, over, ep_ht_total(c, route, over));
	}
	return over == c.roles.holders;
}

/* Nothing is counted yet. A barrier is held. */
EP_DEV void route_clear(const struct ep_ht_common &c, const struct ep_ht_route &route,
			uint32_t *failed)
{
	ep_ht_bits_clear(route, (route.window + c.roles.holders) * route.words);
	for (uint32_t i = ep_tid(); i < route.columns; i += ep_nthreads()) {
		route.all[i] = 0;
	}
	if (ep_tid() == 0) {
		*failed = 0;
		if (ep_block() == route_keeper()) {
			ep_ht_head_clear(c);
		}
	}
	ep_block_sync();
}

/* The block's tables are written: keeps those of the others. */
template <bool NODES>
EP_DEV void route_end(const struct ep_ht_route_args &a, const struct ep_op &op,
		      const struct ep_ht_route &route, uint32_t *failed)
{
	const struct ep_ht_common &c = a.c;
	bool keeper = ep_block() == route_keeper(), cut, posts = false;

	if (ep_warp() == ep_nwarps() - 1) { /* while tables are on their way */
		ep_ht_sources_make(c, op, route);
	}
	if (NODES) {
		ep_ht_rest_nodes(c);
	}
	ep_block_sync();
	if (NODES) {
		posts = ep_ht_tables_post(c, op, route);
	}
	cut = keeper && c.nlocal && route.all[route.experts + c.roles.holder] > c.limit;
	if (keeper && !cut) {
		ep_ht_results_leave<NODES>(a, op, route, false);
	}
	if (!ep_ht_tables_take<NODES>(c, op, route, cut, failed)) {
		route_fail(c, op, route);
	}
	if (cut && !*failed) {
		ep_ht_results_leave<NODES>(a, op, route, true);
	}
	if (keeper && ep_tid() == 0) {
		ep_ht_head_leave(a, route);
	}
	if (posts) {
		ep_ht_tables_posted(c, op);
		ep_block_sync();
		if (ep_tid() == 0 && ep_aborted(c.g)) {
			route_fail(c, op, route);
		}
	}
}

template <bool NODES> EP_DEV void ep_ht_route_run(const struct ep_ht_route_args &a)
{
	const struct ep_ht_common &c = a.c;
	struct ep_ht_route t = ep_ht_route_make(c);
	struct ep_ht_ahead ahead = ep_ht_span_load(a, t, t.first_span);
	struct ep_step_found found = ep_step_load(c.g, c.launch, false);
	struct ep_op op;
	bool ok;
	EP_SHARED(uint32_t, failed);
	EP_SHARED(uint32_t, agreed);

	route_clear(c, t, &failed);
	op = ep_step_make(c.launch, found, false);
	op.is_combine = EP_RECORD_UPDATE;
	/* who is waited for may be waiting for anybody's start: wait_extended() */
	op.freed = op.epoch - 1;
	t.bank = op.step & 1;
	if (ep_block() == 0 && ep_warp() == 0) {
		ep_step_publish(c.g, c.launch, op, 0);
	}
	if (NODES && ep_block() == 0) {
		op.start_ns = ep_time_ns();
		ep_ht_remote_enter(c, op, 0);
	}
	ep_ht_span_mark(a, op, t, t.first_span, ahead);
	route_hold(found, &failed);
	ep_block_sync();
	ht_route_count(a, op, t);
	ok = !failed && route_sum<NODES>(a, op, t);
	if (ep_warp() == 0) {
		bool alike = NODES ? ep_ht_marks_agree<NODES>(c, op, c.launch.hash)
				   : ep_ht_marks_wait<NODES>(c, op, c.launch.hash);

		if (ep_lane() == 0) {
			agreed = alike;
		}
	}
	/* who has not started the step may still read what this one would overwrite there */
	if (ep_step_begin<false>(c.g, c.launch, found, op) == EP_BANK_ABORTED || !agreed) {
		if (ep_tid() == 0) {
			route_fail(c, op, t);
		}
		return;
	}
	if (!route_exchange<NODES>(a, op, t, ok, &failed)) {
		return;
	}
	ep_ht_rest_starts<NODES>(c, op, t);
	ht_route_place<NODES>(a, op, t);
	route_end<NODES>(a, op, t, &failed);
}

EP_KERNEL_ALONE(ep_ht_route_kernel, ep_ht_route_args, EP_HT_MAX_THREADS)
{
	ep_ht_route_run<false>(a);
}

EP_KERNEL_ALONE(ep_ht_route_nodes_kernel, ep_ht_route_args, EP_HT_MAX_THREADS)
{
	ep_ht_route_run<true>(a);
}
