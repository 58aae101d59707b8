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
#include "device/ll/dispatch_send.h"
#include "device/ll/dispatch_recv.h"
#include "device/group/step.h"

#include "device/kernels.h"

/* One part of one token to every rank of the node that wants it. One warp. */
template <class F>
EP_DEV void send_item(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
		      const struct ep_ll_send_tables &tables, const struct ep_ll_fanout &fanout,
		      uint32_t token, uint32_t first, uint32_t end)
{
	const struct ep_ll_common &c = a.c;
	struct ep_ll_source s;

	if constexpr (F::quantised) {
		unsigned char *scratch = tables.scratch + ep_warp() * EP_LL_TILE_BYTES;

		s.token = scratch;
		for (uint32_t q = first; q < end; q += F::tile_quads) {
			uint32_t stop = q + F::tile_quads;

			ep_ll_token_quantise<F>(a, token, q / F::tile_quads, scratch);
			if (c.lines) {
				ep_ll_send_lines<F>(c, op, s, fanout, q, q, stop);
			} else {
				ep_ll_send_bytes<F>(c, op, s, fanout, q, q, stop);
			}
			ep_warp_sync(EP_FULL_MASK);
		}
		return;
	}
	s = ep_ll_source_make(a, token);
	if (c.lines) {
		ep_ll_send_lines<F>(c, op, s, fanout, 0, first, end);
	} else {
		ep_ll_send_bytes<F>(c, op, s, fanout, 0, first, end);
	}
}

/* Parts of the span's tokens for warp `worker` of `workers` over the sending blocks. */
template <class F, bool REMOTE>
EP_DEV void send_rows(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
		      const struct ep_ll_send_tables &tables, const struct ep_ll_span &span,
		      uint32_t worker, uint32_t workers)
{
	const struct ep_ll_common &c = a.c;
	uint32_t count = c.to.by_count.d;

	for (uint32_t i = worker; i < span.n * c.parts; i += workers) {
		uint32_t local = ep_div(i, c.by_parts), part = i - local * c.parts, first, end;

		ep_ll_part(c.row_quads, c.part_quads, part, &first, &end);
		for (uint32_t r0 = c.to.first; first < end && r0 < c.to.end; r0 += EP_WARP_SIZE) {
			struct ep_ll_fanout f;
			uint32_t d = r0 + ep_lane(), turn = c.g.rank + i + 1;

			f.first_rank = r0;
			f.lanes = ep_min_u32(c.to.end - r0, EP_WARP_SIZE);
			f.slot = d < c.to.end && !(REMOTE && ep_rank_remote(c.g, d)) &&
						 !(d == c.g.rank && own_direct<F>(a))
					 ? ep_ll_slot(tables, local, d)
					 : EP_LL_NO_ROW;
			turn = count <= EP_WARP_SIZE ? turn - ep_div(turn, c.to.by_count) * count
						     : turn & (EP_WARP_SIZE - 1);
			f.turn = turn < f.lanes ? turn : 0;
			f.hits = ep_ll_turned_hits(ep_ballot(EP_FULL_MASK, f.slot != EP_LL_NO_ROW),
						   f.turn, f.lanes);
			if (!f.hits) {
				continue;
			}
			send_item<F>(a, op, tables, f, span.w0 + local, first, end);
			if (!c.lines) {
				ep_warp_sync(EP_FULL_MASK);
				if (f.slot != EP_LL_NO_ROW) {
					ep_ll_announce(c, op, ep_heap_of(c.g, d),
						       c.near_sender * c.max_tokens + f.slot, part,
						       op.epoch);
				}
			}
		}
	}
}

/* Headers of the span's tokens for ranks of the node, and who will return the tokens. */
template <bool REMOTE>
EP_DEV void send_headers(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			 const struct ep_ll_send_tables &tables, const struct ep_ll_span &span,
			 uint32_t worker, uint32_t workers)
{
	const struct ep_ll_common &c = a.c;
	struct ep_ll_header_share share = ep_ll_header_share_make(a);
	uint32_t repeats = *tables.repeats;

	for (uint32_t local = worker; local < span.n; local += workers) {
		struct ep_ll_selection s =
			ep_ll_selection_make(a, tables, span.w0 + local, local, repeats);
		uint32_t away = 0;

		for (uint32_t d0 = c.to.first; d0 < c.to.end; d0 += share.ranks) {
			uint32_t d = d0 + share.rank, slot = EP_LL_NO_ROW;
			unsigned char *h = NULL;

			if (share.rank < share.ranks && d < c.to.end &&
			    !(REMOTE && ep_rank_remote(c.g, d))) {
				slot = ep_ll_slot(tables, local, d);
			}
			if (slot != EP_LL_NO_ROW) {
				h = ep_ll_packets(c, op, ep_heap_of(c.g, d)) + a.header_off +
				    ((size_t)c.sender * c.max_tokens + slot) * a.header_bytes;
			}
			ep_ll_send_packet(a, op, s, d, share.packet, h);
		}
		if (REMOTE && s.rank != EP_LL_NO_ROW && ep_rank_remote(c.g, s.rank)) {
			away = ep_ll_slot(tables, local, s.rank);
		}
		ep_ll_send_route(c, s, away);
	}
}

/*
 * Blocks that count and send no rows. With few blocks, block 0 counts and then sends with the
 * others.
 */
EP_DEV uint32_t ll_counters(const struct ep_ll_common &c)
{
	return c.launch.send_blocks >= 4 ? 1 : 0;
}

/*
 * The first span is marked, and counted in block 0; the other blocks' bases are clear. Headers go
 * ahead of the rows, which would hold them up.
 */
template <class F, bool REMOTE>
EP_DEV void ll_dispatch_send(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			     const struct ep_ll_send_tables &tables)
{
	const struct ep_ll_common &c = a.c;
	uint32_t counters = ll_counters(c);
	uint32_t blocks = c.launch.send_blocks - counters, workers = blocks * ep_nwarps();
	uint32_t worker = ep_warp() * blocks + ep_block() - counters; /* few use all blocks */
	uint32_t side = 0;

	if (ep_block() == 0) {
		ep_ll_send_counts<REMOTE>(a, op, tables);
		if (REMOTE) {
			ep_block_sync();
			ep_ll_remote_post_counts(a, op);
		}
		if (counters) {
			return;
		}
		ep_block_sync();
		ep_ll_bases_clear(c, tables);
		ep_block_sync();
	}
	for (uint32_t w0 = 0; w0 < c.num_tokens; w0 += c.span) {
		struct ep_ll_span span = ep_ll_span_make(c, w0);

		if (w0 || (ep_block() == 0 && c.span < c.num_tokens)) {
			ep_ll_span_take(c, op.step, tables, span, false);
		}
		if (REMOTE) {
			ep_ll_remote_send_span<F>(a, op, tables, span, ep_block() - counters,
						  blocks, &side);
		}
		/* from the other end, so that with few tokens other warps carry rows */
		send_headers<REMOTE>(a, op, tables, span, workers - 1 - worker, workers);
		send_rows<F, REMOTE>(a, op, tables, span, worker, workers);
		if (w0 + c.span < c.num_tokens) {
			ep_block_sync();
			ep_ll_span_count(c, tables, span.n);
		}
	}
}

/* Each load takes as long as much of what follows: all are on their way before one is needed. */
template <class F, bool REMOTE> EP_DEV void ep_ll_dispatch(const struct ep_ll_dispatch_args &a)
{
	const struct ep_ll_common &c = a.c;
	uint32_t bank_state;
	bool sends = ep_block() < c.launch.send_blocks, counts = ep_block() == 0;
	struct ep_ll_span span = ep_ll_span_make(c, 0);
	struct ep_ll_raw_id id = ep_ll_span_load(c, 0, sends ? span.n : 0);
	struct ep_step_found found = ep_step_load(c.g, c.launch, false);
	EP_SHARED(uint32_t, repeats);
	struct ep_ll_send_tables t = ep_ll_send_tables_make(c, &repeats);
	struct ep_op op;

	if (sends) {
		ep_ll_span_clear(c, t);
		ep_ll_bases_clear(c, t);
		if (ep_tid() == 0) {
			repeats = 0;
		}
		ep_block_sync();
	}
	op = ep_step_make(c.launch, found, false);
	if (ep_block() == 0 && ep_warp() == ep_nwarps() / 2) { /* others have more to do */
		ep_step_publish(c.g, c.launch, op, ep_step_origin(c.launch, found, op));
	}
	if (REMOTE) {
		op.start_ns = ep_time_ns();
	}
	if (REMOTE && ep_block() == 0) {
		/* who sends has counts for the control queues, too */
		ep_remote_begin(c.g, op, ep_step_origin(c.launch, found, op),
				!c.launch.send_blocks);
	}
	if (sends) {
		ep_ll_span_mark(c, op.step, t, span, id, counts);
	}
	uint64_t before = REMOTE ? ep_time_ns() : 0; /* who is waited for here is slow, not lost */
	bank_state = ep_step_begin<REMOTE>(c.g, c.launch, found, op);
	if (REMOTE) {
		op.start_ns += ep_time_ns() - before;
	}
	if (bank_state == EP_BANK_ABORTED) {
		return;
	}
	if (!sends) {
		ep_ll_dispatch_recv<F, REMOTE>(a, op, ep_block() - c.launch.send_blocks,
					       c.launch.recv_blocks);
		if (ep_block() == 0 && ep_warp() == 0) { /* a receive half alone */
			ep_signature_close(c.g, op.step);
		}
		return;
	}
	if (bank_state == EP_BANK_HELD) {
		/* ids were loaded before their ranks were masked, and those still use the bank */
		ep_ll_bases_clear(c, t);
		ep_ll_span_take(c, op.step, t, span, counts);
	}
	ll_dispatch_send<F, REMOTE>(a, op, t);
	if (ep_block() == 0 && ep_warp() == 0) {
		ep_signature_close(c.g, op.step);
	}
	if (REMOTE && !F::quantised && a.source.addr) {
		ep_remote_read(c.g, op, ep_block() - ll_counters(c),
			       c.launch.send_blocks - ll_counters(c));
	}
}

EP_KERNEL_ALONE(ep_ll_dispatch_kernel, ep_ll_dispatch_args, EP_GROUP_MAX_THREADS)
{
	ep_ll_dispatch<ep_ll_copied, false>(a);
}

EP_KERNEL_ALONE(ep_ll_dispatch_remote_kernel, ep_ll_dispatch_args, EP_GROUP_MAX_THREADS)
{
	ep_ll_dispatch<ep_ll_copied, true>(a);
}

EP_KERNEL_ALONE(ep_ll_dispatch_fp8_kernel, ep_ll_dispatch_args, EP_GROUP_MAX_THREADS)
{
	ep_ll_dispatch<ep_ll_fp8, false>(a);
}

EP_KERNEL_ALONE(ep_ll_dispatch_fp8_remote_kernel, ep_ll_dispatch_args, EP_GROUP_MAX_THREADS)
{
	ep_ll_dispatch<ep_ll_fp8, true>(a);
}

EP_KERNEL_ALONE(ep_ll_dispatch_mxfp8_kernel, ep_ll_dispatch_args, EP_GROUP_MAX_THREADS)
{
	ep_ll_dispatch<ep_ll_mxfp8, false>(a);
}

EP_KERNEL_ALONE(ep_ll_dispatch_mxfp8_remote_kernel, ep_ll_dispatch_args, EP_GROUP_MAX_THREADS)
{
	ep_ll_dispatch<ep_ll_mxfp8, true>(a);
}

EP_KERNEL_ALONE(ep_ll_dispatch_nvfp4_kernel, ep_ll_dispatch_args, EP_GROUP_MAX_THREADS)
{
	ep_ll_dispatch<ep_ll_nvfp4, false>(a);
}

EP_KERNEL_ALONE(ep_ll_dispatch_nvfp4_remote_kernel, ep_ll_dispatch_args, EP_GROUP_MAX_THREADS)
{
	ep_ll_dispatch<ep_ll_nvfp4, true>(a);
}
