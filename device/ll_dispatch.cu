/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency dispatch. The first send_blocks blocks send, the others receive; a launch may hold
 * one half only. Senders wait for nothing but a free bank, so receivers of any rank always finish
 * as long as every rank's senders get to run: they have the lower block indices.
 *
 * Bytes: each row crosses the fabric once per destination rank (twice its size as packets, which
 * small batches use because they save the fence and the flag), a header of 16 to 512 bytes per row,
 * 8 bytes per expert and 32 per rank for the counts. The receiver writes a row once per local
 * expert.
 */
#include "ll_common.h"
#include "ll_dispatch_rows.h"
#include "ll_dispatch_send.h"

#include "kernels.h"

EP_DEV uint32_t ep_ll_row_vectors(const struct ep_ll_dispatch_args &a, bool fp8)
{
	return fp8 ? a.hidden / 16 : a.c.row_bytes / 16;
}

/* One part of one token to every rank that wants it. One warp. */
template <bool FP8>
EP_DEV void ep_ll_send_item(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			    const struct ep_ll_send_tables &t, uint32_t local, uint32_t token,
			    uint32_t part)
{
	const struct ep_ll_common &c = a.c;
	bool packets = EP_LL_WIRE_PACKETS(a.wire);
	uint32_t first, end;

	ep_ll_part(ep_ll_row_vectors(a, FP8), EP_LL_WIRE_PARTS(a.wire), part, &first, &end);
	if (part == 0) {
		ep_ll_send_route(c, t, local, token);
	}
	for (uint32_t r0 = 0; r0 < c.nranks; r0 += EP_WARP_SIZE) {
		struct ep_ll_fanout f;
		uint32_t d = r0 + ep_lane();

		f.first_rank = r0;
		f.slot = d < c.nranks ? t.slot[local * c.nranks + d] : EP_LL_NO_ROW;
		f.hits = ep_ballot(EP_FULL_MASK, f.slot != EP_LL_NO_ROW);
		for (uint32_t m = part == 0 ? f.hits : 0; m; m &= m - 1) {
			uint32_t l = ep_ctz(m);

			ep_ll_send_header(a, op, t, local, token, r0 + l,
					  ep_shfl_u32(EP_FULL_MASK, f.slot, l));
		}
		if (!f.hits || first == end) {
			continue;
		}
		if (FP8) {
			ep_ll_send_fp8(a, op, f, packets, token, first, end);
		} else if (packets) {
			ep_ll_send_packets(a, op, f, token, first, end);
		} else {
			ep_ll_send_raw(a, op, f, token, first, end);
		}
		if (!packets) {
			ep_warp_sync(EP_FULL_MASK);
			if (f.slot != EP_LL_NO_ROW) {
				ep_release_fence_sys();
				ep_st_fenced_sys_u32(
					ep_ll_row_flag(c, op, d, c.rank, f.slot, part), op.epoch);
			}
		}
	}
}

template <bool FP8>
EP_DEV void ep_ll_dispatch_send(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op)
{
	const struct ep_ll_common &c = a.c;
	struct ep_ll_send_tables t = ep_ll_send_tables_make(c);
	/* with few blocks, block 0 counts first and then sends with the others */
	uint32_t counters = c.send_blocks >= 4 ? 1 : 0;
	uint32_t parts = EP_LL_WIRE_PARTS(a.wire);
	EP_SHARED(uint32_t, bank_free);

	if (ep_warp() == 0) {
		bool free_now = ep_ll_wait_bank(c, op);

		if (ep_lane() == 0) {
			bank_free = free_now;
		}
	}
	ep_block_sync();
	if (!bank_free) {
		return;
	}
	if (ep_block() == 0) {
		ep_ll_send_counts(a, op, t);
		if (counters) {
			return;
		}
		ep_block_sync();
	}
	ep_ll_tables_clear(c, t);
	for (uint32_t w0 = 0; w0 < c.num_tokens; w0 += t.window) {
		uint32_t n = ep_min_u32(t.window, c.num_tokens - w0);

		ep_ll_window_route(a, op, t, w0, n);
		for (uint32_t i = (ep_block() - counters) * ep_nwarps() + ep_warp(); i < n * parts;
		     i += (c.send_blocks - counters) * ep_nwarps()) {
			ep_ll_send_item<FP8>(a, op, t, i / parts, w0 + i / parts, i % parts);
		}
	}
}

/* Block-shared tables of the receiving half. */
struct ep_ll_recv_tables {
	uint32_t *base; /* [R][L] first row of the source among the expert's rows */
	uint32_t *rows; /* [R] rows from the source */
	uint32_t *wire; /* [R] dispatch wire | combine wire << 16 */
	uint32_t *absent; /* [R] the source is masked or has failed */
};

EP_DEV struct ep_ll_recv_tables ep_ll_recv_tables_make(const struct ep_ll_common &c)
{
	struct ep_ll_recv_tables t;

	t.base = (uint32_t *)ep_dynamic_shared();
	t.rows = t.base + c.nranks * c.nlocal;
	t.wire = t.rows + c.nranks;
	t.absent = t.wire + c.nranks;
	return t;
}

/* Awaits the two control packets of source r; checks that it runs the same operation. */
EP_DEV void ep_ll_recv_ctrl(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			    const struct ep_ll_recv_tables &t, uint32_t r, bool first_block)
{
	const struct ep_ll_common &c = a.c;
	const unsigned char *p = ep_ll_packets(c, op, c.rank) + (size_t)r * EP_LL_CTRL_BYTES;
	uint32_t rows = 0, wire = 0, bytes = 0, kind = 0;
	uint64_t start = first_block ? ep_time_ns() : 0;

	if (!ep_ll_wait_packet(c, op, p, &rows, &wire, EP_WAIT_DISPATCH_COUNT, r) ||
	    !ep_ll_wait_packet(c, op, p + 16, &bytes, &kind, EP_WAIT_DISPATCH_COUNT, r)) {
		t.absent[r] = 1;
		return;
	}
	if (bytes != c.row_bytes || kind != (c.topk | c.layout << 8) || rows > c.max_tokens) {
		ep_ll_peer_failed(c, op, EP_LL_CAUSE_MISMATCH, EP_WAIT_DISPATCH_COUNT, r, bytes,
				  c.row_bytes);
		t.absent[r] = 1;
		return;
	}
	t.rows[r] = rows;
	t.wire[r] = wire;
	if (first_block) {
		uint64_t waited = ep_time_ns() - start;

		c.stats[r].wait_ns += waited;
		c.stats[r].wait_max_ns =
			waited > c.stats[r].wait_max_ns ? waited : c.stats[r].wait_max_ns;
		c.stats[r].rx_rows += rows;
		c.stats[r].rx_bytes += (uint64_t)rows * c.row_bytes;
		c.stats[r].ops++;
	}
}

/* Awaits every source's counts and turns them into first rows. False when the group is aborted. */
EP_DEV bool ep_ll_recv_counts(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			      const struct ep_ll_recv_tables &t, bool first_block)
{
	const struct ep_ll_common &c = a.c;
	bool expert_major = c.layout == EP_LL_EXPERT_MAJOR;
	EP_SHARED(uint32_t, stop);

	for (uint32_t r = ep_tid(); r < c.nranks; r += ep_nthreads()) {
		t.absent[r] = !ep_ll_active(c, r);
		t.rows[r] = 0;
		t.wire[r] = 0;
	}
	ep_block_sync();
	for (uint32_t i = ep_tid(); expert_major && i < c.nranks * c.nlocal; i += ep_nthreads()) {
		uint32_t r = i / c.nlocal;

		if (!t.absent[r] &&
		    !ep_ll_wait_word(c, op,
				     ep_ll_packets(c, op, c.rank) + a.count_off + 8 * (size_t)i,
				     &t.base[i], EP_WAIT_DISPATCH_COUNT, r)) {
			t.absent[r] = 1;
		}
	}
	/* the last threads, which have fewer counts to await */
	for (uint32_t j = ep_nthreads() - 1 - ep_tid(); j < c.nranks; j += ep_nthreads()) {
		if (!t.absent[j]) {
			ep_ll_recv_ctrl(a, op, t, j, first_block);
		}
	}
	ep_block_sync();
	if (ep_tid() == 0) {
		stop = ep_ll_aborted(c.state);
	}
	for (uint32_t e = ep_tid(); expert_major && e < c.nlocal; e += ep_nthreads()) {
		uint32_t sum = 0;

		for (uint32_t r = 0; r < c.nranks; r++) {
			uint32_t n = t.absent[r] ? 0 : ep_min_u32(t.base[r * c.nlocal + e],
								  c.max_tokens);

			t.base[r * c.nlocal + e] = sum;
			sum += n;
		}
		if (first_block) {
			c.counts[e] = sum;
			a.expert_counts[e] = (int32_t)sum;
		}
	}
	for (uint32_t r = ep_tid(); r < c.nranks; r += ep_nthreads()) {
		if (t.absent[r]) {
			t.rows[r] = 0;
		}
		if (first_block) {
			c.src_rows[r] = t.rows[r];
			c.src_wire[r] = t.wire[r] >> 16;
			if (a.src_counts) {
				a.src_counts[r] = (int32_t)t.rows[r];
			}
		}
	}
	ep_block_sync();
	return !stop;
}

/* Expert-major: lane k learns the output row of (token, k), if its expert is here. One warp. */
EP_DEV struct ep_ll_placing ep_ll_place_expert_major(const struct ep_ll_common &c,
						     const struct ep_ll_recv_tables &t,
						     uint32_t d0, uint32_t d1, uint32_t src,
						     bool remember)
{
	uint32_t k = ep_lane(), cap = c.nranks * c.max_tokens;
	uint32_t token = ep_shfl_u32(EP_FULL_MASK, d0, 0);
	uint32_t odd = ep_shfl_u32(EP_FULL_MASK, d1, k / 2);
	uint32_t even = ep_shfl_u32(EP_FULL_MASK, d0, (k + 1) / 2);
	uint32_t word = k >= c.topk ? EP_LL_NO_ROW : k & 1 ? even : odd;
	struct ep_ll_placing w;

	w.row = EP_LL_NO_ROW;
	if (word != EP_LL_NO_ROW) {
		uint32_t e = word >> 18;
		uint32_t at = e < c.nlocal ? t.base[src * c.nlocal + e] + (word & 0x3ffff) : cap;

		if (at < cap && token < c.max_tokens) {
			w.row = e * cap + at;
		}
	}
	if (remember && w.row != EP_LL_NO_ROW) {
		c.origin[w.row] = EP_LL_ORIGIN(src, token, k);
		if (src == c.rank) {
			c.route[(size_t)token * c.topk + k] = w.row;
		}
	}
	w.hits = ep_ballot(EP_FULL_MASK, w.row != EP_LL_NO_ROW);
	return w;
}

/* Rank-major: one output row; lane k writes the token's k-th id and weight. One warp. */
EP_DEV struct ep_ll_placing ep_ll_place_rank_major(const struct ep_ll_dispatch_args &a, uint32_t d0,
						   uint32_t d1, uint32_t src, uint32_t slot,
						   bool remember)
{
	const struct ep_ll_common &c = a.c;
	uint32_t k = ep_lane(), row = src * c.max_tokens + slot;
	uint32_t token = ep_shfl_u32(EP_FULL_MASK, d0, 0) >> 16;
	uint32_t local_id = k < c.topk ? d0 & 0xffffu : 0xffffu;
	uint32_t local = ep_ballot(EP_FULL_MASK, local_id != 0xffffu);
	struct ep_ll_placing w;

	if (remember && k < c.topk) {
		size_t at = (size_t)row * c.topk + k;

		a.out_idx[at] = local_id == 0xffffu ? -1 : (int32_t)(local_id + a.expert_id_base);
		a.out_weights[at] = ep_bits_f32(d1);
	}
	if (remember && k == 0 && token < c.max_tokens && local) {
		uint32_t first = ep_ctz(local);

		c.origin[row] = EP_LL_ORIGIN(src, token, first);
		if (src == c.rank) {
			c.route[(size_t)token * c.topk + first] = row;
		}
	}
	w.row = k == 0 ? row : EP_LL_NO_ROW;
	w.hits = 1;
	return w;
}

/* One part of one row. One warp. False when the source failed on the way. */
template <bool FP8>
EP_DEV bool ep_ll_recv_item(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			    const struct ep_ll_recv_tables &t, uint32_t src, uint32_t slot,
			    uint32_t part)
{
	const struct ep_ll_common &c = a.c;
	bool packets = EP_LL_WIRE_PACKETS(t.wire[src]), ok = true;
	uint32_t d0 = EP_LL_NO_ROW, d1 = EP_LL_NO_ROW, first, end;
	const unsigned char *h = ep_ll_packets(c, op, c.rank) + a.header_off +
				 ((size_t)src * c.max_tokens + slot) * a.header_bytes;
	struct ep_ll_placing w;

	ep_ll_part(ep_ll_row_vectors(a, FP8), EP_LL_WIRE_PARTS(t.wire[src] & 0xffffu), part, &first,
		   &end);
	if (first == end && part > 0) {
		return true;
	}
	if (16 * ep_lane() < a.header_bytes) {
		ok = ep_ll_wait_packet(c, op, h + 16 * ep_lane(), &d0, &d1, EP_WAIT_DISPATCH_ROW,
				       src);
	}
	if (!ep_all(EP_FULL_MASK, ok)) {
		return false;
	}
	w = c.layout == EP_LL_EXPERT_MAJOR
		    ? ep_ll_place_expert_major(c, t, d0, d1, src, part == 0)
		    : ep_ll_place_rank_major(a, d0, d1, src, slot, part == 0);
	if (!packets && !ep_ll_wait_part(c, op, src, slot, part)) {
		return false;
	}
	if (FP8) {
		ok = ep_ll_recv_fp8(a, op, w, packets, src, slot, first, end);
	} else if (packets) {
		ok = ep_ll_recv_packets(a, op, w, src, slot, first, end);
	} else {
		ep_ll_recv_raw(a, op, w, src, slot, first, end);
	}
	return ep_all(EP_FULL_MASK, ok);
}

template <bool FP8>
EP_DEV void ep_ll_dispatch_recv(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
				uint32_t block, uint32_t blocks)
{
	const struct ep_ll_common &c = a.c;
	struct ep_ll_recv_tables t = ep_ll_recv_tables_make(c);
	uint32_t most = 0;

	if (!ep_ll_recv_counts(a, op, t, block == 0)) {
		return;
	}
	for (uint32_t r = 0; r < c.nranks; r++) {
		most = ep_max_u32(most, t.rows[r] * EP_LL_WIRE_PARTS(t.wire[r] & 0xffffu));
	}
	/* round j takes the j-th part of every source, so that no source waits for another's rows */
	for (uint32_t i = block * ep_nwarps() + ep_warp(); i < most * c.nranks;
	     i += blocks * ep_nwarps()) {
		uint32_t j = i / c.nranks, src = (i + j + c.rank) % c.nranks;
		uint32_t parts = EP_LL_WIRE_PARTS(t.wire[src] & 0xffffu);

		if (j < t.rows[src] * parts &&
		    !ep_ll_recv_item<FP8>(a, op, t, src, j / parts, j % parts) &&
		    ep_ll_aborted(c.state)) {
			return;
		}
	}
	if (c.layout == EP_LL_RANK_MAJOR) {
		uint32_t per_rank = c.max_tokens * c.topk;

		for (uint32_t i = block * ep_nthreads() + ep_tid(); i < c.nranks * per_rank;
		     i += blocks * ep_nthreads()) {
			if (i % per_rank >= t.rows[i / per_rank] * c.topk) {
				a.out_idx[i] = -1;
			}
		}
	}
}

template <bool FP8> EP_DEV void ep_ll_dispatch(const struct ep_ll_dispatch_args &a)
{
	struct ep_ll_op op = ep_ll_begin(a.c);

	if (ep_block() == 0 && ep_warp() == ep_nwarps() - 1) {
		ep_ll_publish_progress(a.c, op);
	}
	if (op.aborted) {
		return;
	}
	if (ep_block() < a.c.send_blocks) {
		ep_ll_dispatch_send<FP8>(a, op);
	} else {
		ep_ll_dispatch_recv<FP8>(a, op, ep_block() - a.c.send_blocks,
					 ep_nblocks() - a.c.send_blocks);
	}
}

EP_KERNEL(ep_ll_dispatch_kernel, ep_ll_dispatch_args, EP_LL_MAX_THREADS)
{
	ep_ll_dispatch<false>(a);
}

EP_KERNEL(ep_ll_dispatch_fp8_kernel, ep_ll_dispatch_args, EP_LL_MAX_THREADS)
{
	ep_ll_dispatch<true>(a);
}
