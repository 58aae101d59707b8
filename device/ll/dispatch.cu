/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency dispatch. The first send_blocks blocks send, the others receive; a launch may hold
 * one half only. Senders wait for nothing but a free bank and, across nodes, their own NIC, so
 * receivers of any rank always finish as long as every rank's senders get to run: they have the
 * lower block indices.
 *
 * Bytes: each row crosses the fabric once per destination rank (lines add 8 bytes to 120), with a
 * header of 16 to 512 bytes; 8 bytes per expert and 32 per rank for the counts. The receiver writes
 * a row once per local expert.
 */
#include "device/group/wait.h"
#include "device/ll/dispatch_remote.h"
#include "device/ll/dispatch_recv.h"
#include "device/ll/dispatch_rows.h"
#include "device/ll/dispatch_send.h"
#include "device/group/step.h"

#include "device/kernels.h"

/* One part of one token to every rank of the node that wants it. One warp. */
template <bool FP8>
EP_DEV void ep_ll_send_item(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			    const struct ep_ll_send_tables &t, const struct ep_ll_fanout &f,
			    uint32_t token, uint32_t first, uint32_t end)
{
	const struct ep_ll_common &c = a.c;
	struct ep_ll_source s;

	if (FP8) {
		unsigned char *staging = t.staging + ep_warp() * EP_LL_UNIT_BYTES;

		s.token = staging;
		for (uint32_t q = first; q < end; q += EP_LL_FP8_UNIT_QUADS) {
			uint32_t stop = q + EP_LL_FP8_UNIT_QUADS;

			ep_ll_stage_unit(a, staging, token, q / EP_LL_FP8_UNIT_QUADS);
			if (c.lines) {
				ep_ll_send_lines<true>(c, op, s, f, q, q, stop);
			} else {
				ep_ll_send_bytes<true>(c, op, s, f, q, q, stop);
			}
			ep_warp_sync(EP_FULL_MASK);
		}
		return;
	}
	s = ep_ll_source_make(a, token);
	if (c.lines) {
		ep_ll_send_lines<false>(c, op, s, f, 0, first, end);
	} else {
		ep_ll_send_bytes<false>(c, op, s, f, 0, first, end);
	}
}

/* Parts of tokens [w0, w0 + n) for warp `worker` of `workers` over the sending blocks. */
template <bool FP8, bool NET>
EP_DEV void ep_ll_send_rows(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			    const struct ep_ll_send_tables &t, uint32_t w0, uint32_t n,
			    uint32_t worker, uint32_t workers)
{
	const struct ep_ll_common &c = a.c;

	for (uint32_t i = worker; i < n * c.parts; i += workers) {
		uint32_t local = ep_div(i, c.by_parts), part = i - local * c.parts, first, end;

		ep_ll_part(c.row_quads, c.chunk, part, &first, &end);
		for (uint32_t r0 = 0; first < end && r0 < c.nranks; r0 += EP_WARP_SIZE) {
			struct ep_ll_fanout f;
			uint32_t d = r0 + ep_lane(), turn = c.rank + i + 1;

			f.first_rank = r0;
			f.lanes = ep_min_u32(c.nranks - r0, EP_WARP_SIZE);
			f.slot = d < c.nranks && !(NET && ep_ll_remote(c, d))
					 ? ep_ll_slot(t, local, d)
					 : EP_LL_NO_ROW;
			turn = c.nranks <= EP_WARP_SIZE
				       ? turn - ep_div(turn, c.by_ranks) * c.nranks
				       : turn & (EP_WARP_SIZE - 1);
			f.turn = turn < f.lanes ? turn : 0;
			f.hits = ep_ll_turned_hits(
				ep_ballot(EP_FULL_MASK, f.slot != EP_LL_NO_ROW), f.turn, f.lanes);
			if (!f.hits) {
				continue;
			}
			ep_ll_send_item<FP8>(a, op, t, f, w0 + local, first, end);
			if (!c.lines) {
				ep_warp_sync(EP_FULL_MASK);
				if (f.slot != EP_LL_NO_ROW) {
					ep_ll_announce(c, op, d, c.rank * c.max_tokens + f.slot,
						       part);
				}
			}
		}
	}
}

/* Headers of tokens [w0, w0 + n) for ranks of the node, and who will return the tokens. */
template <bool NET>
EP_DEV void ep_ll_send_headers(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			       const struct ep_ll_send_tables &t, uint32_t w0, uint32_t n,
			       uint32_t worker, uint32_t workers, bool twice)
{
	const struct ep_ll_common &c = a.c;
	struct ep_ll_header_share share = ep_ll_header_share_make(a);

	for (uint32_t local = worker; local < n; local += workers) {
		struct ep_ll_selection s = ep_ll_selection_make(c, t, local, twice);
		float weight = ep_ll_weight(a, w0 + local);
		uint32_t away = 0;

		for (uint32_t d0 = 0; d0 < c.nranks; d0 += share.ranks) {
			uint32_t d = d0 + share.rank, slot = EP_LL_NO_ROW;
			unsigned char *h = NULL;

			if (share.rank < share.ranks && d < c.nranks &&
			    !(NET && ep_ll_remote(c, d))) {
				slot = ep_ll_slot(t, local, d);
			}
			if (slot != EP_LL_NO_ROW) {
				h = ep_ll_packets(c, op, d) + a.header_off +
				    ((size_t)c.rank * c.max_tokens + slot) * a.header_bytes;
			}
			ep_ll_send_packet(a, op, s, weight, w0 + local, d, share.packet,
					  h);
		}
		if (NET && s.rank != EP_LL_NO_ROW && ep_ll_remote(c, s.rank)) {
			away = ep_ll_slot(t, local, s.rank);
		}
		ep_ll_send_route(c, s, w0 + local, away);
	}
}

/*
 * The first window is marked, and counted in block 0; the other blocks' bases are clear. Headers go
 * ahead of the rows, which would hold them up.
 */
template <bool FP8, bool NET>
EP_DEV void ep_ll_dispatch_send(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
				const struct ep_ll_send_tables &t, uint32_t *twice)
{
	const struct ep_ll_common &c = a.c;
	/* with few blocks, block 0 counts first and then sends with the others */
	uint32_t counters = c.send_blocks >= 4 ? 1 : 0;
	uint32_t worker = (ep_block() - counters) * ep_nwarps() + ep_warp();
	uint32_t workers = (c.send_blocks - counters) * ep_nwarps();
	uint32_t half = 0;

	if (ep_block() == 0) {
		ep_ll_send_counts<NET>(a, op, t, twice);
		if (NET) {
			ep_block_sync();
			ep_ll_net_post_counts(a, op);
		}
		if (counters) {
			return;
		}
		ep_block_sync();
		ep_ll_bases_clear(c, t);
		ep_block_sync();
	}
	for (uint32_t w0 = 0; w0 < c.num_tokens; w0 += t.window) {
		uint32_t n = ep_min_u32(t.window, c.num_tokens - w0);

		if (w0 || (ep_block() == 0 && t.window < c.num_tokens)) {
			ep_ll_window_take(c, op.step, t, w0, n, false, twice);
		}
		if (NET) {
			ep_ll_net_send_window<FP8>(a, op, t, w0, n, ep_block() - counters,
						   c.send_blocks - counters, *twice, &half);
		}
		/* from the other end, so that with few tokens other warps carry rows */
		ep_ll_send_headers<NET>(a, op, t, w0, n, workers - 1 - worker, workers, *twice);
		ep_ll_send_rows<FP8, NET>(a, op, t, w0, n, worker, workers);
		if (w0 + t.window < c.num_tokens) {
			ep_block_sync();
			ep_ll_window_count(c, t, n);
		}
	}
}

/* Each load takes as long as much of what follows: all are on their way before one is needed. */
template <bool FP8, bool NET> EP_DEV void ep_ll_dispatch(const struct ep_ll_dispatch_args &a)
{
	const struct ep_ll_common &c = a.c;
	uint32_t n = ep_min_u32(c.window, c.num_tokens), bank;
	bool sends = ep_block() < c.send_blocks, counts = ep_block() == 0;
	struct ep_ll_raw_id id = ep_ll_window_load(c, 0, sends ? n : 0);
	struct ep_ll_found found = ep_ll_find(c);
	struct ep_ll_send_tables t = ep_ll_send_tables_make(c);
	struct ep_ll_op op;
	EP_SHARED(uint32_t, twice);

	if (sends) {
		ep_ll_window_clear(c, t);
		ep_ll_bases_clear(c, t);
		if (ep_tid() == 0) {
			twice = 0;
		}
		ep_block_sync();
	}
	op = ep_ll_step(c, found.seq, false);
	if (ep_block() == 0 && ep_warp() == ep_nwarps() / 2) { /* others have more to do */
		ep_ll_publish_progress(c, op);
	}
	if (NET) {
		op.start_ns = ep_time_ns();
	}
	if (NET && ep_block() == 0) {
		ep_ll_net_progress(c, op);
	}
	if (sends) {
		ep_ll_window_mark(c, op.step, t, 0, n, id, counts, &twice);
	}
	uint64_t before = NET ? ep_time_ns() : 0; /* who is waited for here is slow, not lost */
	bank = ep_ll_begin(c, found, op);
	if (NET) {
		op.start_ns += ep_time_ns() - before;
	}
	if (bank == EP_LL_BANK_ABORTED) {
		return;
	}
	if (!sends) {
		ep_ll_dispatch_recv<FP8, NET>(a, op, ep_block() - c.send_blocks,
					      ep_nblocks() - c.send_blocks);
		return;
	}
	if (bank == EP_LL_BANK_HELD) {
		/* the ids were loaded before their ranks were masked, and those still use the bank */
		ep_ll_bases_clear(c, t);
		ep_ll_window_take(c, op.step, t, 0, n, counts, &twice);
	}
	ep_ll_dispatch_send<FP8, NET>(a, op, t, &twice);
}

EP_KERNEL(ep_ll_dispatch_kernel, ep_ll_dispatch_args, EP_LL_MAX_THREADS)
{
	ep_ll_dispatch<false, false>(a);
}

EP_KERNEL(ep_ll_dispatch_fp8_kernel, ep_ll_dispatch_args, EP_LL_MAX_THREADS)
{
	ep_ll_dispatch<true, false>(a);
}

EP_KERNEL(ep_ll_dispatch_net_kernel, ep_ll_dispatch_args, EP_LL_MAX_THREADS)
{
	ep_ll_dispatch<false, true>(a);
}

EP_KERNEL(ep_ll_dispatch_fp8_net_kernel, ep_ll_dispatch_args, EP_LL_MAX_THREADS)
{
	ep_ll_dispatch<true, true>(a);
}
