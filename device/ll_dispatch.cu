/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency dispatch. The first send_blocks blocks send, the others receive; a launch may hold
 * one half only. Senders wait for nothing but a free bank, so receivers of any rank always finish
 * as long as every rank's senders get to run: they have the lower block indices.
 *
 * Bytes: each row crosses the fabric once per destination rank (lines add 8 bytes to 120), with a
 * header of 16 to 512 bytes; 8 bytes per expert and 32 per rank for the counts. The receiver writes
 * a row once per local expert.
 */
#include "ll_common.h"
#include "ll_dispatch_rows.h"
#include "ll_dispatch_send.h"

#include "kernels.h"

/* One part of one token to every rank that wants it. One warp. */
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
	s.token = (const unsigned char *)a.tokens + (size_t)token * a.token_bytes;
	s.scale = (const unsigned char *)a.scales + (size_t)token * a.scale_bytes;
	s.token_bytes = a.token_bytes;
	s.bytes = a.token_bytes + a.scale_bytes;
	if (c.lines) {
		ep_ll_send_lines<false>(c, op, s, f, 0, first, end);
	} else {
		ep_ll_send_bytes<false>(c, op, s, f, 0, first, end);
	}
}

/* Parts of tokens [w0, w0 + n) for warp `worker` of `workers` over the sending blocks. */
template <bool FP8>
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
			f.slot = d < c.nranks ? ep_ll_slot(t, local, d) : EP_LL_NO_ROW;
			f.turn = c.nranks <= EP_WARP_SIZE
					 ? turn - ep_div(turn, c.by_ranks) * c.nranks
					 : turn % f.lanes;
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

/* Headers of tokens [w0, w0 + n), and who will return them. */
EP_DEV void ep_ll_send_headers(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			       const struct ep_ll_send_tables &t, uint32_t w0, uint32_t n,
			       uint32_t worker, uint32_t workers, bool twice)
{
	const struct ep_ll_common &c = a.c;

	for (uint32_t local = worker; local < n; local += workers) {
		struct ep_ll_selection s = ep_ll_selection_make(c, op, t, w0, local, twice);
		float weight = 0.0f;

		if (c.layout == EP_LL_RANK_MAJOR && ep_lane() < c.topk) {
			weight = a.topk_weights[(size_t)(w0 + local) * c.topk + ep_lane()];
		}
		for (uint32_t d = 0; d < c.nranks; d++) {
			uint32_t slot = ep_ll_slot(t, local, d);

			if (slot != EP_LL_NO_ROW) {
				ep_ll_send_header(a, op, s, weight, w0 + local, d, slot);
			}
		}
		ep_ll_send_route(c, s, w0 + local);
	}
}

/*
 * The first window is loaded, the bases are clear, `seen` is the last warp's look at the peers'
 * progress. Headers go ahead of the rows, which would hold them up.
 */
template <bool FP8>
EP_DEV void ep_ll_dispatch_send(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
				const struct ep_ll_send_tables &t, uint32_t seen)
{
	const struct ep_ll_common &c = a.c;
	/* with few blocks, block 0 counts first and then sends with the others */
	uint32_t counters = c.send_blocks >= 4 ? 1 : 0;
	uint32_t worker = (ep_block() - counters) * ep_nwarps() + ep_warp();
	uint32_t workers = (c.send_blocks - counters) * ep_nwarps();
	EP_SHARED(uint32_t, bank_free);
	EP_SHARED(uint32_t, twice);

	if (ep_tid() == 0) {
		twice = 0;
	}
	if (ep_warp() == ep_nwarps() - 1) {
		bool free_now = ep_ll_wait_bank(c, op, seen);

		if (ep_lane() == 0) {
			bank_free = free_now;
		}
	}
	ep_block_sync();
	if (!bank_free) {
		return;
	}
	ep_ll_window_mark(c, t, ep_min_u32(t.window, c.num_tokens), &twice);
	ep_block_sync();
	if (ep_block() == 0) {
		ep_ll_send_counts(a, op, t, &twice);
		if (counters) {
			return;
		}
		ep_block_sync();
		ep_ll_bases_clear(c, t);
	}
	for (uint32_t w0 = 0; w0 < c.num_tokens; w0 += t.window) {
		uint32_t n = ep_min_u32(t.window, c.num_tokens - w0);

		if (w0 || (ep_block() == 0 && t.window < c.num_tokens)) {
			ep_block_sync();
			ep_ll_window_load(c, op.step, t, w0, n);
			ep_block_sync();
			ep_ll_window_mark(c, t, n, &twice);
		}
		if (w0 || ep_block() == 0) {
			ep_block_sync();
		}
		/* from the other end, so that with few tokens other warps carry rows */
		ep_ll_send_headers(a, op, t, w0, n, workers - 1 - worker, workers, twice);
		ep_ll_send_rows<FP8>(a, op, t, w0, n, worker, workers);
		if (w0 + t.window < c.num_tokens) {
			ep_block_sync();
			ep_ll_window_count(c, t, n);
		}
	}
}

/* Block-shared tables of the receiving half. */
struct ep_ll_recv_tables {
	uint32_t *base; /* [R][L] first row of the source among the expert's rows */
	uint32_t *rows; /* [R] rows from the source */
	uint32_t *parts; /* [R] parts of the source's rows */
	uint32_t *return_parts; /* [R] and of those that return to it */
	uint32_t *absent; /* [R] the source is masked or has failed */
};

EP_DEV struct ep_ll_recv_tables ep_ll_recv_tables_make(const struct ep_ll_common &c)
{
	struct ep_ll_recv_tables t;

	t.base = (uint32_t *)ep_dynamic_shared();
	t.rows = t.base + c.nranks * c.nlocal;
	t.parts = t.rows + c.nranks;
	t.return_parts = t.parts + c.nranks;
	t.absent = t.return_parts + c.nranks;
	return t;
}

/* Lines need no agreement on parts, flags do. */
EP_DEV uint32_t ep_ll_recv_parts(const struct ep_ll_common &c, const struct ep_ll_recv_tables &t,
				 uint32_t src)
{
	return c.lines ? c.peer_parts : t.parts[src];
}

/* Awaits the two control packets of source r; checks that it runs the same operation. */
EP_DEV void ep_ll_recv_ctrl(const struct ep_ll_dispatch_args &a, const struct ep_ll_op &op,
			    const struct ep_ll_recv_tables &t, uint32_t r, bool first_block)
{
	const struct ep_ll_common &c = a.c;
	const unsigned char *p = ep_ll_packets(c, op, c.rank) + (size_t)r * EP_LL_CTRL_BYTES;
	uint32_t rows = 0, parts = 0, quads = 0, kind = 0;
	uint64_t start = first_block ? ep_time_ns() : 0;

	if (!ep_ll_wait_packet(c, op, p, &rows, &parts, EP_WAIT_DISPATCH_COUNT, r) ||
	    !ep_ll_wait_packet(c, op, p + 16, &quads, &kind, EP_WAIT_DISPATCH_COUNT, r)) {
		t.absent[r] = 1;
		return;
	}
	if (quads != c.row_quads || kind != (c.topk | c.layout << 8) || rows > c.max_tokens) {
		ep_ll_peer_failed(c, op, EP_LL_CAUSE_MISMATCH, EP_WAIT_DISPATCH_COUNT, r, quads,
				  c.row_quads);
		t.absent[r] = 1;
		return;
	}
	t.rows[r] = rows;
	t.parts[r] = parts & 0xffff;
	t.return_parts[r] = parts >> 16;
	if (first_block) {
		uint64_t waited = ep_time_ns() - start;

		c.stats[r].wait_ns += waited;
		c.stats[r].wait_max_ns =
			waited > c.stats[r].wait_max_ns ? waited : c.stats[r].wait_max_ns;
		c.stats[r].rx_rows += rows;
		c.stats[r].rx_bytes += (uint64_t)rows * ep_ll_row_stride(c.row_quads, c.lines);
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
		t.parts[r] = 0;
		t.return_parts[r] = 0;
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
			c.src_parts[r] = t.return_parts[r];
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
						     uint32_t at, bool remember)
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
		uint32_t pos = e < c.nlocal ? t.base[src * c.nlocal + e] + (word & 0x3ffff) : cap;

		if (pos < cap && token < c.max_tokens) {
			w.row = e * cap + pos;
		}
	}
	if (remember && k < c.topk) {
		c.slot_row[(size_t)at * c.topk + k] = w.row;
		if (src == c.rank && w.row != EP_LL_NO_ROW) {
			c.route[(size_t)token * c.topk + k] = w.row;
		}
	}
	if (remember && k == 0) {
		c.slot_token[at] = EP_LL_SLOT(token, 0);
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

		c.slot_token[row] = EP_LL_SLOT(token, first);
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
	uint32_t d0 = EP_LL_NO_ROW, d1 = EP_LL_NO_ROW, first, end;
	uint32_t at = src * c.max_tokens + slot;
	const unsigned char *h = ep_ll_packets(c, op, c.rank) + a.header_off +
				 (size_t)at * a.header_bytes;
	const unsigned char *in = ep_ll_row(c, op, c.rank, at);
	struct ep_ll_lines b;
	struct ep_ll_placing w;
	bool ok = true;

	ep_ll_part(c.row_quads,
		   c.lines ? c.peer_chunk
			   : ep_ll_chunk(c.row_quads, t.parts[src], FP8 ? EP_LL_FP8_UNIT_QUADS : 1),
		   part, &first, &end);
	if (first == end) {
		return true;
	}
	if (c.lines) {
		ep_ll_lines_load(op, in, first, end, &b);
	}
	if (16 * ep_lane() < a.header_bytes) {
		ok = ep_ll_wait_packet(c, op, h + 16 * ep_lane(), &d0, &d1, EP_WAIT_DISPATCH_ROW,
				       src);
	}
	if (!ep_all(EP_FULL_MASK, ok)) {
		return false;
	}
	w = c.layout == EP_LL_EXPERT_MAJOR
		    ? ep_ll_place_expert_major(c, t, d0, d1, src, at, part == 0)
		    : ep_ll_place_rank_major(a, d0, d1, src, slot, part == 0);
	if (c.lines) {
		return ep_ll_recv_lines<FP8>(a, op, w, in, src, first, end, &b);
	}
	if (ep_lane() == 0) {
		ok = ep_ll_wait_flag(c, op, ep_ll_row_flag(c, op, c.rank, at, part),
				     EP_WAIT_DISPATCH_ROW, src);
	}
	ok = ep_all(EP_FULL_MASK, ok);
	if (ok) {
		ep_ll_recv_bytes<FP8>(a, w, in, first, end);
	}
	return ok;
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
		most = ep_max_u32(most, t.rows[r] * ep_ll_recv_parts(c, t, r));
	}
	/* round j takes the j-th part of every source, so that no source waits for another's rows */
	for (uint32_t i = block * ep_nwarps() + ep_warp(); i < most * c.nranks;
	     i += blocks * ep_nwarps()) {
		uint32_t j = ep_div(i, c.by_ranks), turn = i - j * c.nranks + j + c.rank;
		uint32_t src = turn - ep_div(turn, c.by_ranks) * c.nranks;
		uint32_t parts = ep_ll_recv_parts(c, t, src);
		uint32_t slot = c.lines ? ep_div(j, c.by_peer_parts) : j / parts;

		if (slot < t.rows[src] &&
		    !ep_ll_recv_item<FP8>(a, op, t, src, slot, j - slot * parts) &&
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
	const struct ep_ll_common &c = a.c;
	struct ep_ll_seq seq = c.seq[ep_block()];
	struct ep_ll_send_tables t = ep_ll_send_tables_make(c);
	bool sends = ep_block() < c.send_blocks;
	uint32_t seen = 0;

	if (sends) { /* before the sequence is needed, so that the loads overlap */
		seen = ep_ll_progress_peek(c);
		ep_ll_window_load(c, seq.step + 1, t, 0, ep_min_u32(t.window, c.num_tokens));
		ep_ll_bases_clear(c, t);
	}
	struct ep_ll_op op = ep_ll_begin(c, seq);

	if (ep_block() == 0 && ep_warp() == 0) {
		ep_ll_publish_progress(c, op);
	}
	if (op.aborted) {
		return;
	}
	if (sends) {
		ep_ll_dispatch_send<FP8>(a, op, t, seen);
	} else {
		ep_ll_dispatch_recv<FP8>(a, op, ep_block() - c.send_blocks,
					 ep_nblocks() - c.send_blocks);
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
