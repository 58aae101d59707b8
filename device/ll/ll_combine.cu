/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency combine. Senders push each row of the caller's tensor to the slot (token, k) of its
 * source; receivers reduce a token's rows in ascending k as their parts land, in fp32, and round
 * once. Rows whose source is this rank are read where they lie. If rows are quantised the receiver
 * makes of these what others would get of them: a sum has the same bits wherever experts are.
 *
 * Bytes: expert-major one row per remote (token, expert), rank-major one per remote (token, rank).
 */
#include "device/group/remote.h"
#include "device/group/step.h"
#include "device/ll/formats.h"
#include "device/ll/rows.h"

#include "device/kernels.h"

/* ---- send half: which rows return, and their bytes ---- */

/* Work of a sending warp: one part of one received token, with what dispatch noted of it. */
struct ep_ll_return {
	uint32_t src;
	uint32_t slot;
	uint32_t part;
	uint32_t rows;  /* received from src; 0: nothing to do */
	uint32_t token; /* EP_LL_SLOT */
	uint32_t note;  /* of lane k: return_note() */
};

/* Returns dispatch's note for k of a received slot; rank-major: none. */
EP_DEV uint32_t return_note(const struct ep_ll_common &c, uint32_t received, uint32_t k)
{
	return c.layout == EP_LL_EXPERT_MAJOR ? c.h.slot_row[(size_t)received * c.topk + k]
					      : EP_LL_NO_ROW;
}

/* The row of the caller's tensor that returns for k of a received slot, or NO_ROW. */
EP_DEV uint32_t return_of(const struct ep_ll_common &c, uint32_t received, uint32_t token,
			  uint32_t k, uint32_t note)
{
	uint32_t row = note;

	if (c.layout != EP_LL_EXPERT_MAJOR) {
		row = k == EP_LL_SLOT_K(token) ? received : EP_LL_NO_ROW;
	}
	/* a source that failed during dispatch left its slots unwritten */
	if ((row >= c.nlocal * c.expert_rows && row != EP_LL_ZERO_ROW) ||
	    EP_LL_SLOT_TOKEN(token) >= c.max_tokens) {
		return EP_LL_NO_ROW;
	}
	return row;
}

/* The lane's vec of a row of the caller's tensor at `off`; bytes past the row are zero. */
EP_DEV struct ep_vec16 tensor_vec(const struct ep_ll_combine_args &a, uint32_t row, uint32_t off,
				  bool narrow)
{
	return ep_quad_load((const unsigned char *)a.tokens + (size_t)row * a.token_bytes + off,
			    narrow, off < a.token_bytes && row != EP_LL_ZERO_ROW);
}

/*
 * Quads [first, end) of several rows as lines: of each lane's `row`, or NO_ROW, to the source's
 * slot for the token and k = lane. Vecs of different rows are in flight together. One warp.
 */
EP_DEV void return_lines(const struct ep_ll_combine_args &a, const struct ep_op &op, uint32_t flag,
			 const struct ep_ll_return &ret, uint32_t row, uint32_t first, uint32_t end)
{
	unsigned char *heap = ep_heap_of(a.c.g, ret.src);
	uint32_t at = EP_LL_SLOT_TOKEN(ret.token) * a.c.topk, q = first;
	uint32_t rows = ep_ballot(EP_FULL_MASK, row != EP_LL_NO_ROW);

	while (rows) {
		struct ep_vec16 v[EP_LL_BATCH];
		uint32_t to[EP_LL_BATCH], quad[EP_LL_BATCH];

		EP_UNROLL()
		for (int j = 0; j < EP_LL_BATCH; j++) {
			to[j] = EP_LL_NO_ROW;
			if (rows) {
				uint32_t l = ep_ctz(rows);

				to[j] = at + l;
				quad[j] = q;
				v[j] = tensor_vec(a, ep_shfl_u32(EP_FULL_MASK, row, l),
						  q * EP_QUAD_BYTES + ep_line_offset(ep_lane()),
						  ep_quad_narrow());
				if (++q == end) {
					q = first;
					rows &= rows - 1;
				}
			}
		}
		EP_UNROLL()
		for (int j = 0; j < EP_LL_BATCH; j++) {
			if (to[j] != EP_LL_NO_ROW) {
				ep_st_line(ep_ll_row(a.c, op, heap, to[j]) +
						   (size_t)quad[j] * EP_QUAD_LINE_BYTES,
					   v[j], op.epoch, flag);
			}
		}
	}
}

EP_DEV void return_bytes(const struct ep_ll_combine_args &a, uint32_t row, unsigned char *out,
			 uint32_t first, uint32_t end)
{
	uint32_t last = end * EP_LL_QUAD_VECS;

	for (uint32_t v0 = first * EP_LL_QUAD_VECS; v0 < last; v0 += EP_LL_BATCH * EP_WARP_SIZE) {
		struct ep_vec16 v[EP_LL_BATCH] EP_UNSET;

		EP_UNROLL()
		for (int j = 0; j < EP_LL_BATCH; j++) {
			uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

			if (i < last) {
				v[j] = tensor_vec(a, row, 16 * i, false);
			}
		}
		EP_UNROLL()
		for (int j = 0; j < EP_LL_BATCH; j++) {
			uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

			if (i < last) {
				ep_st16(out + 16 * (size_t)i, v[j]);
			}
		}
	}
}

/* ---- send half: rows that are quantised ---- */

/* A warp's scratch: a tile. */
EP_DEV unsigned char *combine_scratch(uint32_t warp)
{
	return (unsigned char *)ep_dynamic_shared() + warp * EP_LL_TILE_BYTES;
}

/* Tile `tile` of a row of the caller's tensor. Nothing waits for the loads. */
template <class F>
EP_DEV struct ep_ll_raw_tile tensor_tile(const struct ep_ll_combine_args &a, uint32_t row,
					 uint32_t tile)
{
	bool there = row != EP_LL_ZERO_ROW;

	return ep_ll_raw_tile_load<F>((const unsigned char *)a.tokens +
					      (there ? (size_t)row * a.token_bytes : 0),
				      there ? a.token_bytes : 0, tile);
}

/* The global scale of a row of the caller's tensor, if it has one. */
EP_DEV float return_global(const struct ep_ll_combine_args &a, uint32_t row)
{
	return a.scales && row != EP_LL_ZERO_ROW ? ep_nvfp4_global(a.scales[row]) : 1.0f;
}

/* The quantised tile that lies in the warp's scratch, to `out`, where its quads are. One warp. */
template <class F, bool LINES>
EP_DEV void tile_store(const struct ep_op &op, uint32_t flag, unsigned char *out)
{
	const unsigned char *scratch = combine_scratch(ep_warp());
	uint32_t off = LINES ? ep_line_offset(ep_lane()) : 16 * ep_lane();

	EP_UNROLL()
	for (uint32_t q = 0; q < F::tile_quads; q++) {
		const unsigned char *from = scratch + q * EP_QUAD_BYTES + (off & ~15u);

		if (LINES) {
			struct ep_vec16 v = *(const struct ep_vec16 *)from;

			ep_st_line(out + q * EP_QUAD_LINE_BYTES,
				   ep_quad_narrow() ? ep_quad_vec_narrow(v, off) : v, op.epoch,
				   flag);
		} else if (off < EP_QUAD_BYTES) {
			ep_st16(out + q * EP_QUAD_BYTES + off, *(const struct ep_vec16 *)from);
		}
	}
	ep_warp_sync(EP_FULL_MASK); /* the scratch may be written again */
}

/*
 * Quads [first, end), whole tiles, of several rows, to the source's slots; as return_lines(). A
 * tile is loaded while the one before is quantised. Also for rows as bytes, which the caller
 * announces.
 */
template <class F, bool LINES>
EP_DEV void return_tiles(const struct ep_ll_combine_args &a, const struct ep_op &op, uint32_t flag,
			 const struct ep_ll_return &ret, uint32_t row, uint32_t first, uint32_t end)
{
	unsigned char *heap = ep_heap_of(a.c.g, ret.src);
	uint32_t at = EP_LL_SLOT_TOKEN(ret.token) * a.c.topk, quad = first;
	uint32_t rows = ep_ballot(EP_FULL_MASK, row != EP_LL_NO_ROW);
	uint32_t next = rows ? ep_shfl_u32(EP_FULL_MASK, row, ep_ctz(rows)) : 0;
	struct ep_ll_raw_tile raw = {};
	float global = 1.0f;

	if (rows) {
		raw = tensor_tile<F>(a, next, quad / F::tile_quads);
		global = return_global(a, next);
	}
	while (rows) {
		unsigned char *out = ep_ll_row(a.c, op, heap, at + ep_ctz(rows)) +
				     (size_t)quad * (LINES ? EP_QUAD_LINE_BYTES : EP_QUAD_BYTES);
		struct ep_ll_raw_tile now = raw;
		float now_global = global;

		quad += F::tile_quads;
		if (quad >= end) {
			quad = first;
			rows &= rows - 1;
			next = rows ? ep_shfl_u32(EP_FULL_MASK, row, ep_ctz(rows)) : 0;
		}
		if (rows) {
			raw = tensor_tile<F>(a, next, quad / F::tile_quads);
			global = return_global(a, next);
		}
		ep_ll_tile_quantise<F>(ep_ll_quantiser_make(false, now_global), now,
				       combine_scratch(ep_warp()));
		tile_store<F, LINES>(op, flag, out);
	}
}

/* Quads [first, end) of one row, as bytes to `out`, where the row is. One warp. */
template <class F>
EP_DEV void stage_tiles(const struct ep_ll_combine_args &a, const struct ep_op &op, uint32_t row,
			unsigned char *out, uint32_t first, uint32_t end)
{
	struct ep_ll_quantiser z = ep_ll_quantiser_make(false, return_global(a, row));

	for (uint32_t q = first; q < end; q += F::tile_quads) {
		ep_ll_tile_quantise<F>(z, tensor_tile<F>(a, row, q / F::tile_quads),
				       combine_scratch(ep_warp()));
		tile_store<F, false>(op, 0, out + (size_t)q * EP_QUAD_BYTES);
	}
}

/*
 * ---- send half: what returns to remote sources ----
 *
 * A channel returns its share of each source's slots, the sources' slots in turn. Its block lists
 * the rows of as many slots as fill a batch, copies them to the stage, and posts them.
 */

_Static_assert(EP_LL_MAX_TOPK <= EP_LL_STAGE_ROWS, "a slot's rows fit a batch");

/* Block-shared: a batch. */
struct ep_ll_remote_list {
	uint32_t ks[EP_LL_STAGE_ROWS];   /* of the slots considered: bit k: a row returns for k */
	uint32_t row[EP_LL_STAGE_ROWS];  /* of the caller's tensor, or EP_LL_ZERO_ROW */
	uint32_t at[EP_LL_STAGE_ROWS];   /* its place at the source */
	uint32_t rank[EP_LL_STAGE_ROWS]; /* the source */
};

/* Rows of a channel that go together, and the side of its stage where they lie. */
struct ep_ll_return_batch {
	uint32_t channel;
	uint32_t side;
	uint32_t rows;
};

/*
 * The slots of source r that channel `ch` returns: *first and, as the result, how many. 0: r is no
 * source.
 */
EP_DEV uint32_t remote_slots(const struct ep_ll_common &c, uint32_t r, uint32_t ch, uint32_t *first)
{
	uint32_t rows = ep_ll_among(c.from, r) && ep_rank_remote(c.g, r) ? c.h.src_rows[r] : 0;
	uint32_t share = ep_remote_channel_entries(rows, c.g.remote->channels);

	*first = ep_min_u32(ch * share, rows);
	return ep_min_u32(share, rows - *first);
}

/*
 * Finds the rows of up to EP_LL_STAGE_ROWS slots, from the channel's position `base` on: position i
 * is slot i / S of the source i % S of S. *taken: slots that the batch covers. Returns its rows.
 * One block. Two barriers come before it writes over rows of the list before, and one at its end.
 */
EP_DEV uint32_t remote_list_make(const struct ep_ll_common &c, struct ep_ll_remote_list &list,
				 uint32_t ch, uint32_t base, uint32_t positions, uint32_t *taken)
{
	uint32_t n = ep_min_u32(positions - base, EP_LL_STAGE_ROWS), rows = 0, take = 0;

	for (uint32_t i = ep_tid(); i < EP_LL_STAGE_ROWS; i += ep_nthreads()) {
		list.ks[i] = 0;
	}
	ep_block_sync();
	for (uint32_t x = ep_tid(); x < n * c.topk; x += ep_nthreads()) {
		uint32_t i = ep_div(x, c.by_topk), k = x - i * c.topk, first;
		uint32_t slot = ep_div(base + i, c.from.by_count);
		uint32_t source = base + i - slot * c.from.by_count.d, r = c.from.first + source;

		if (slot < remote_slots(c, r, ch, &first) && ep_mask_active(c.g, r)) {
			uint32_t received = source * c.max_tokens + first + slot;

			if (return_of(c, received, c.h.slot_token[received], k,
				      return_note(c, received, k)) != EP_LL_NO_ROW) {
				ep_shared_or_u32(&list.ks[i], 1u << k);
			}
		}
	}
	ep_block_sync();
	while (take < n && rows + ep_popc(list.ks[take]) <= EP_LL_STAGE_ROWS) {
		rows += ep_popc(list.ks[take++]);
	}
	for (uint32_t x = ep_tid(); x < take * c.topk; x += ep_nthreads()) {
		uint32_t i = ep_div(x, c.by_topk), k = x - i * c.topk, first;
		uint32_t slot = ep_div(base + i, c.from.by_count);
		uint32_t source = base + i - slot * c.from.by_count.d, r = c.from.first + source;
		uint32_t place = ep_popc(list.ks[i] & ((1u << k) - 1));

		if (!(list.ks[i] >> k & 1)) {
			continue;
		}
		for (uint32_t j = 0; j < i; j++) {
			place += ep_popc(list.ks[j]);
		}
		(void)remote_slots(c, r, ch, &first);
		uint32_t received = source * c.max_tokens + first + slot;
		uint32_t token = c.h.slot_token[received];

		list.row[place] = return_of(c, received, token, k, return_note(c, received, k));
		list.at[place] = EP_LL_SLOT_TOKEN(token) * c.topk + k;
		list.rank[place] = r;
	}
	ep_block_sync();
	*taken = take;
	return rows;
}

/* Does the NIC read this row from the caller's tensor? */
template <class F> EP_DEV bool remote_in_place(const struct ep_ll_combine_args &a, uint32_t row)
{
	return !F::quantised && a.source.addr && row != EP_LL_ZERO_ROW;
}

/* Copies the listed rows to the stage, but those that are read in their place. One block. */
template <class F>
EP_DEV void remote_stage_rows(const struct ep_ll_combine_args &a, const struct ep_op &op,
			      const struct ep_ll_remote_list &list, uint32_t rows,
			      unsigned char *out)
{
	const struct ep_ll_common &c = a.c;
	uint32_t part_quads;
	uint32_t parts = rows ? ep_ll_stage_parts(c, rows, F::tile_quads, &part_quads) : 0;

	for (uint32_t i = ep_warp(); i < rows * parts; i += ep_nwarps()) {
		uint32_t n = i / parts, first, end;

		unsigned char *row = out + (size_t)n * ep_ll_row_stride(c.row_quads, 0);

		if (remote_in_place<F>(a, list.row[n])) {
			continue;
		}
		ep_ll_part(c.row_quads, part_quads, i - n * parts, &first, &end);
		if constexpr (F::quantised) {
			stage_tiles<F>(a, op, list.row[n], row, first, end);
		} else {
			return_bytes(a, list.row[n], row, first, end);
		}
	}
}

/* Posts what of the batch is for own peer d, whose first `slots` slots it completes. One warp. */
template <class F>
EP_DEV void remote_post_rows(const struct ep_ll_combine_args &a, const struct ep_op &op,
			     const struct ep_ll_remote_list &list,
			     const struct ep_ll_return_batch &batch, uint32_t d, uint32_t slots)
{
	const struct ep_ll_common &c = a.c;
	uint32_t ch = batch.channel;
	bool mine = ep_lane() < batch.rows && list.rank[ep_lane()] == d;
	uint32_t at = mine ? list.at[ep_lane()] : 0;

	if (!ep_any(EP_FULL_MASK, mine)) {
		return;
	}
	struct ep_mlx5_post p = ep_remote_open(c.g, d, ch);

	struct ep_mlx5_mem from =
		ep_mlx5_local(&p, EP_MLX5_REGION_HEAP,
			      ep_stage_off(c.g, ch, batch.side) +
				      (uint64_t)ep_lane() * ep_ll_row_stride(c.row_quads, 0));

	if (mine && remote_in_place<F>(a, list.row[ep_lane()])) {
		from = ep_mlx5_source(&p, a.source, (uint64_t)list.row[ep_lane()] * a.token_bytes);
	}
	p.timeout_ns = ep_remote_left(c.g, op, true);
	if (!ep_mlx5_put_signal(
		    &p, mine, ep_mlx5_remote(&p, EP_MLX5_REGION_HEAP, ep_ll_remote_row(c, op, at)),
		    from, F::quantised ? ep_ll_row_stride(c.row_quads, 0) : a.token_bytes,
		    ep_remote_signal(c.g, p, d, ch, ep_remote_signal_off(c.g, ch),
				     ep_remote_signal_word(op, slots)))) {
		ep_remote_failed(c.g, op, p, d, EP_WAIT_RDMA_SLOT);
	}
	ep_stage_mark(c.g, p, d, ch, batch.side);
}

/* All that channel `ch` returns. One block. *side: where the next batch goes. */
template <class F>
EP_DEV void ep_ll_remote_return(const struct ep_ll_combine_args &a, const struct ep_op &op,
				uint32_t ch, uint32_t *side)
{
	const struct ep_ll_common &c = a.c;
	uint32_t most = 0, base = 0, sources = c.from.by_count.d, taken, first;
	EP_SHARED(struct ep_ll_remote_list, list);

	for (uint32_t r = c.from.first; r < c.from.end; r++) {
		most = ep_max_u32(most, remote_slots(c, r, ch, &first));
	}
	for (; base < most * sources; base += taken) {
		struct ep_ll_return_batch batch = { ch, *side, 0 };

		batch.rows = remote_list_make(c, list, ch, base, most * sources, &taken);
		if (!batch.rows) {
			continue;
		}
		*side ^= 1;
		if (!ep_stage_claim(c.g, op, ch, batch.side)) {
			return;
		}
		remote_stage_rows<F>(a, op, list, batch.rows,
				     c.g.own + ep_stage_off(c.g, ch, batch.side));
		ep_block_sync();
		for (uint32_t d = ep_remote_peer(c.g, ep_warp()); d < c.g.nranks;
		     d = ep_remote_peer(c.g, d + ep_nwarps())) {
			uint32_t end = base + taken; /* positions, of which every S-th is d's */
			uint32_t at = ep_ll_source_of(c, d);
			uint32_t slots = end > at ? (end - at - 1) / sources + 1 : 0;

			remote_post_rows<F>(a, op, list, batch, d,
					    ep_min_u32(slots, remote_slots(c, d, ch, &first)));
		}
	}
}

#define EP_LL_REDUCE_BATCH 8        /* rows that a lane loads before it adds them */
#define EP_LL_MOST_SHARES 3         /* log2: warps that return quantised rows of a token and tile */
#define EP_LL_NO_OFFSET 0xfffffff0u /* a vec past every row */

/*
 * Part j of the parts of source `src`, in the order of its slots. Nothing waits here for what is
 * loaded.
 */
template <bool REMOTE>
EP_DEV struct ep_ll_return return_at(const struct ep_ll_common &c, uint32_t src, uint32_t j,
				     bool counts)
{
	uint32_t parts = c.peer_parts, received;
	struct ep_ll_return r;

	r.src = src;
	if (c.lines) {
		r.slot = ep_div(j, c.by_peer_parts);
	} else {
		parts = c.h.src_parts[r.src];
		r.slot = j / ep_max_u32(parts, 1);
	}
	r.part = j - r.slot * parts;
	r.rows = 0;
	r.token = 0;
	r.note = EP_LL_NO_ROW;
	if (!counts || (REMOTE && ep_rank_remote(c.g, r.src)) || r.slot >= c.max_tokens) {
		return r;
	}
	received = ep_ll_source_of(c, r.src) * c.max_tokens + r.slot;
	r.rows = c.h.src_rows[r.src];
	r.token = c.h.slot_token[received];
	if (ep_lane() < c.topk) {
		r.note = return_note(c, received, ep_lane());
	}
	return r;
}

/*
 * The i-th of all. Tokens return in the order in which their source sent them, one part of each
 * source in turn, so that a source can finish its tokens one by one and no source gets all rows at
 * once. Nothing returns to this rank itself. `shift`: a part is 2^shift pieces of work.
 */
template <bool REMOTE>
EP_DEV struct ep_ll_return return_load(const struct ep_ll_combine_args &a, uint32_t i,
				       uint32_t shift)
{
	uint32_t j = ep_div(i, a.by_others), src = a.first_return + i - j * a.by_others.d;

	src -= src < a.c.from.end ? 0 : a.c.from.by_count.d;
	return return_at<REMOTE>(a.c, src, j >> shift, a.others != 0);
}

/*
 * Returns a row for each local expert, or one in rank-major layout; of these, counted from 0, those
 * whose number is `share` modulo `shares`, a power of two. One warp.
 */
template <class F>
EP_DEV void return_item(const struct ep_ll_combine_args &a, const struct ep_op &op, uint32_t flag,
			const struct ep_ll_return &ret, uint32_t share, uint32_t shares)
{
	const struct ep_ll_common &c = a.c;
	uint32_t k = ep_lane(), row = EP_LL_NO_ROW, first, end;

	if (ret.slot >= ret.rows || !ep_mask_active_warp(c.g, ret.src)) {
		return;
	}
	if (k < c.topk) {
		row = return_of(c, ep_ll_source_of(c, ret.src) * c.max_tokens + ret.slot, ret.token,
				k, ret.note);
	}
	if (F::quantised && shares > 1) {
		uint32_t rows = ep_ballot(EP_FULL_MASK, row != EP_LL_NO_ROW);

		if ((ep_popc(rows & ((1u << k) - 1)) & (shares - 1)) != share) {
			row = EP_LL_NO_ROW;
		}
	}
	ep_ll_part(c.row_quads,
		   c.lines ? c.peer_part_quads
			   : ep_ll_part_quads(c.row_quads, c.h.src_parts[ret.src], F::tile_quads),
		   ret.part, &first, &end);
	if (first == end) {
		return;
	}
	if (c.lines) {
		if constexpr (F::quantised) {
			return_tiles<F, true>(a, op, flag, ret, row, first, end);
		} else {
			return_lines(a, op, flag, ret, row, first, end);
		}
		return;
	}
	unsigned char *heap = ep_heap_of(c.g, ret.src);
	uint32_t at = EP_LL_SLOT_TOKEN(ret.token) * c.topk;

	if constexpr (F::quantised) {
		return_tiles<F, false>(a, op, flag, ret, row, first, end);
	} else {
		for (uint32_t m = ep_ballot(EP_FULL_MASK, row != EP_LL_NO_ROW); m; m &= m - 1) {
			uint32_t l = ep_ctz(m);

			return_bytes(a, ep_shfl_u32(EP_FULL_MASK, row, l),
				     ep_ll_row(c, op, heap, at + l), first, end);
		}
	}
	ep_warp_sync(EP_FULL_MASK);
	if (row != EP_LL_NO_ROW) {
		ep_ll_announce(c, op, heap, at + k, ret.part, flag);
	}
}

/* Parts of the source that has most of them, or its slots. One warp. */
EP_DEV uint32_t return_most(const struct ep_ll_common &c, bool slots)
{
	uint32_t most = 0;

	for (uint32_t r = c.from.first + ep_lane(); r < c.from.end; r += EP_WARP_SIZE) {
		uint32_t parts = slots ? 1 : c.lines ? c.peer_parts : c.h.src_parts[r];

		most = ep_max_u32(most, c.h.src_rows[r] * parts);
	}
	for (uint32_t x = 1; x < EP_WARP_SIZE; x *= 2) {
		most = ep_max_u32(most, ep_shfl_xor_u32(EP_FULL_MASK, most, x));
	}
	return most;
}

/*
 * ---- send half: parts of rows, from a list ----
 *
 * Of many tokens a warp would take parts of two or three, each with the rows of all its experts
 * here. Some have none and some have all, so a few warps would send long after the others.
 * Therefore a block lists the rows of as many slots as it has notes for, and its warps take parts
 * of these rows.
 */
#define EP_LL_NOTES 4 /* of a thread, for one list */

/* A thread's notes of (slot, k): thread t has every T-th from t on. */
struct ep_ll_notes {
	uint32_t slots[EP_LL_NOTES]; /* of the source */
	uint32_t token[EP_LL_NOTES]; /* EP_LL_SLOT */
	uint32_t row[EP_LL_NOTES];   /* return_note(), and then the row */
};

#define EP_LL_LIST_ROWS (EP_LL_NOTES * EP_GROUP_MAX_THREADS)
#define EP_LL_LIST_COUNTS (EP_LL_LIST_ROWS / EP_WARP_SIZE)

/* Block-shared. */
struct ep_ll_list {
	uint32_t count[EP_LL_LIST_COUNTS]; /* rows of a warp's notes */
	uint32_t row[EP_LL_LIST_ROWS];
	uint32_t at[EP_LL_LIST_ROWS]; /* EP_LL_LISTED */
};

/* A row's place at its source, and the source. */
#define EP_LL_LISTED(at, src) ((at) | (src) << 18)
#define EP_LL_LISTED_AT(x) ((x)&0x3ffff)
#define EP_LL_LISTED_SOURCE(x) ((x) >> 18)

_Static_assert(EP_LL_MAX_INDEX <= 1 << 18 && EP_GROUP_MAX_RANKS <= 1 << 14, "EP_LL_LISTED");
_Static_assert(EP_LL_LIST_COUNTS <= 2 * EP_WARP_SIZE, "list_fill");

/* Slots of one list: slot i / S of the source i % S, of the S others. */
EP_DEV uint32_t list_slots(const struct ep_ll_common &c)
{
	return ep_div(EP_LL_NOTES * ep_nthreads(), c.by_topk);
}

/* What the thread's j-th note is of, in the list that begins with slot `base`. */
struct ep_ll_noted {
	uint32_t src;
	uint32_t slot; /* max_tokens: there is none */
	uint32_t k;
};

EP_DEV struct ep_ll_noted noted_make(const struct ep_ll_combine_args &a, uint32_t base, uint32_t j)
{
	uint32_t x = ep_tid() + j * ep_nthreads(), i = ep_div(x, a.c.by_topk);
	struct ep_ll_noted n;

	n.k = x - i * a.c.topk;
	n.slot = ep_div(base + i, a.by_others);
	n.src = a.first_return + base + i - n.slot * a.by_others.d;
	n.src -= n.src < a.c.from.end ? 0 : a.c.from.by_count.d;
	if (i >= list_slots(a.c) || !a.others) {
		n.slot = a.c.max_tokens;
	}
	return n;
}

/* Nothing waits here for what is loaded. */
template <bool REMOTE>
EP_DEV struct ep_ll_notes notes_load(const struct ep_ll_combine_args &a, uint32_t base)
{
	const struct ep_ll_common &c = a.c;
	struct ep_ll_notes notes;

	EP_UNROLL()
	for (uint32_t j = 0; j < EP_LL_NOTES; j++) {
		struct ep_ll_noted n = noted_make(a, base, j);

		notes.slots[j] = 0;
		if (n.slot < c.max_tokens && !(REMOTE && ep_rank_remote(c.g, n.src))) {
			uint32_t received = ep_ll_source_of(c, n.src) * c.max_tokens + n.slot;

			notes.slots[j] = c.h.src_rows[n.src];
			notes.token[j] = c.h.slot_token[received];
			notes.row[j] = return_note(c, received, n.k);
		}
	}
	return notes;
}

/* Makes rows of the notes, and counts them. A barrier and list_fill() follow. One block. */
EP_DEV void list_count(const struct ep_ll_combine_args &a, struct ep_ll_list &list,
		       struct ep_ll_notes &notes, uint32_t base)
{
	const struct ep_ll_common &c = a.c;

	EP_UNROLL()
	for (uint32_t j = 0; j < EP_LL_NOTES; j++) {
		struct ep_ll_noted n = noted_make(a, base, j);
		uint32_t received = ep_ll_source_of(c, n.src) * c.max_tokens + n.slot, rows;

		notes.row[j] = n.slot < notes.slots[j]
				       ? return_of(c, received, notes.token[j], n.k, notes.row[j])
				       : EP_LL_NO_ROW;
		rows = ep_ballot(EP_FULL_MASK, notes.row[j] != EP_LL_NO_ROW);
		if (ep_lane() == 0) {
			list.count[j * ep_nwarps() + ep_warp()] = ep_popc(rows);
		}
	}
}

/* Lists the rows, in the order of their slots; returns how many. A barrier follows. One block. */
EP_DEV uint32_t list_fill(const struct ep_ll_combine_args &a, struct ep_ll_list &list,
			  const struct ep_ll_notes &notes, uint32_t base)
{
	uint32_t lane = ep_lane(), counts = EP_LL_NOTES * ep_nwarps();
	uint32_t even = 2 * lane < counts ? list.count[2 * lane] : 0;
	uint32_t odd = 2 * lane + 1 < counts ? list.count[2 * lane + 1] : 0;
	uint32_t end = even + odd; /* of the lane's two counts */

	for (uint32_t x = 1; x < EP_WARP_SIZE; x *= 2) {
		uint32_t before = ep_shfl_u32(EP_FULL_MASK, end, (lane - x) & (EP_WARP_SIZE - 1));

		end += lane >= x ? before : 0;
	}
	EP_UNROLL()
	for (uint32_t j = 0; j < EP_LL_NOTES; j++) {
		uint32_t i = j * ep_nwarps() + ep_warp();
		uint32_t place = ep_shfl_u32(EP_FULL_MASK, end - even - odd, i / 2);
		uint32_t first = ep_shfl_u32(EP_FULL_MASK, even, i / 2);
		bool there = notes.row[j] != EP_LL_NO_ROW;
		uint32_t rows = ep_ballot(EP_FULL_MASK, there);

		place += (i & 1 ? first : 0) + ep_popc(rows & ((1u << lane) - 1));
		if (there) {
			struct ep_ll_noted n = noted_make(a, base, j);

			list.row[place] = notes.row[j];
			list.at[place] = EP_LL_LISTED(
				EP_LL_SLOT_TOKEN(notes.token[j]) * a.c.topk + n.k, n.src);
		}
	}
	return ep_shfl_u32(EP_FULL_MASK, end, EP_WARP_SIZE - 1);
}

/* Part `part` of a listed row as lines, to its source. One warp. */
EP_DEV void return_part(const struct ep_ll_combine_args &a, const struct ep_op &op, uint32_t flag,
			uint32_t row, uint32_t listed, uint32_t part)
{
	const struct ep_ll_common &c = a.c;
	uint32_t src = EP_LL_LISTED_SOURCE(listed), first, end;
	unsigned char *to;

	if (!ep_mask_active_warp(c.g, src)) {
		return;
	}
	to = ep_ll_row(c, op, ep_heap_of(c.g, src), EP_LL_LISTED_AT(listed));
	ep_ll_part(c.row_quads, c.peer_part_quads, part, &first, &end);
	for (uint32_t q = first; q < end; q += EP_LL_BATCH) {
		struct ep_vec16 v[EP_LL_BATCH];

		EP_UNROLL()
		for (uint32_t j = 0; j < EP_LL_BATCH; j++) {
			if (q + j < end) {
				v[j] = tensor_vec(
					a, row, (q + j) * EP_QUAD_BYTES + ep_line_offset(ep_lane()),
					ep_quad_narrow());
			}
		}
		EP_UNROLL()
		for (uint32_t j = 0; j < EP_LL_BATCH; j++) {
			if (q + j < end) {
				ep_st_line(to + (size_t)(q + j) * EP_QUAD_LINE_BYTES, v[j],
					   op.epoch, flag);
			}
		}
	}
}

/*
 * Returns all rows to ranks of the node; `notes` are those of the first list, counted, and a
 * barrier followed. Work of number `worker` is the warp's first. One block.
 */
template <bool REMOTE>
EP_DEV void return_listed(const struct ep_ll_combine_args &a, const struct ep_op &op, uint32_t flag,
			  uint32_t worker, struct ep_ll_list &list, struct ep_ll_notes &notes)
{
	const struct ep_ll_common &c = a.c;
	uint32_t warps = c.launch.send_blocks * ep_nwarps(), slots = c.max_tokens * a.others;

	if (slots > list_slots(c)) {
		slots = return_most(c, true) * a.others;
	}
	for (uint32_t base = 0, i = worker;;) {
		uint32_t all = list_fill(a, list, notes, base) * c.peer_parts;

		ep_block_sync();
		for (; i < all; i += warps) {
			uint32_t n = ep_div(i, c.by_peer_parts);

			return_part(a, op, flag, list.row[n], list.at[n], i - n * c.peer_parts);
		}
		i -= all;
		base += list_slots(c);
		if (base >= slots) {
			return;
		}
		notes = notes_load<REMOTE>(a, base);
		ep_block_sync();
		list_count(a, list, notes, base);
		ep_block_sync();
	}
}

/* Are rows listed? */
template <class F> EP_DEV bool listed(const struct ep_ll_combine_args &a)
{
	return !F::quantised && a.listed;
}

/* What a sender looks up while the step is on its way. */
struct ep_ll_ahead {
	struct ep_ll_notes notes; /* if rows are listed */
	/* else */
	struct ep_ll_return first; /* the warp's first work, if rows are copied */
	uint32_t all;              /* parts, of all warps */
};

/*
 * `worker`: the warp's number. One block; rows that it lists are counted, and a barrier followed.
 */
template <class F, bool REMOTE>
EP_DEV void combine_send(const struct ep_ll_combine_args &a, const struct ep_op &op, uint32_t flag,
			 uint32_t worker, struct ep_ll_list &list, struct ep_ll_ahead &ahead)
{
	const struct ep_ll_common &c = a.c;
	uint32_t side = 0, warps = c.launch.send_blocks * ep_nwarps(), shift = 0;

	for (uint32_t ch = ep_block(); REMOTE && ch < c.g.remote->channels;
	     ch += c.launch.send_blocks) {
		ep_ll_remote_return<F>(a, op, ch, &side);
	}
	if (listed<F>(a)) {
		return_listed<REMOTE>(a, op, flag, worker, list, ahead.notes);
		return;
	}
	/* a row takes long to quantise: few are shared out among warps */
	while (F::quantised && c.lines && shift < EP_LL_MOST_SHARES &&
	       ahead.all << (shift + 1) <= warps) {
		shift++;
	}
	for (uint32_t i = worker; i < ahead.all << shift; i += warps) {
		struct ep_ll_return r = !F::quantised && i == worker
						? ahead.first
						: return_load<REMOTE>(a, i, shift);

		return_item<F>(a, op, flag, r, ep_div(i, a.by_others) & ((1u << shift) - 1),
			       1u << shift);
	}
}

/* Lane k's state of its row of the token. */
struct ep_ll_term {
	uint32_t route;
	float weight;
	uint32_t valid; /* ballot: lanes whose row counts */
	uint32_t lines; /* ballot: lanes whose row comes as lines, which carry their own flags */
};

/*
 * Where the rows of a token come from: lane k learns who returns (token, k). What comes as bytes is
 * awaited, so that it may be read at once.
 */
template <bool REMOTE>
EP_DEV struct ep_ll_term term_make(const struct ep_ll_combine_args &a, const struct ep_op &op,
				   uint32_t flag, uint32_t token, uint32_t part)
{
	const struct ep_ll_common &c = a.c;
	uint32_t k = ep_lane(), at = token * c.topk + k;
	bool valid, away, remote = false;
	struct ep_ll_term term;

	term.route = k < c.topk ? c.h.route[at] : EP_LL_ROUTE_NONE;
	valid = term.route != EP_LL_ROUTE_NONE;
	away = valid && EP_LL_ROUTE_IS_AWAY(term.route);
	term.weight = 1.0f;
	if (valid && c.layout == EP_LL_EXPERT_MAJOR) {
		term.weight = a.topk_weights[at];
	}
	if (away) {
		uint32_t r = EP_LL_ROUTE_RANK(term.route);

		remote = REMOTE && ep_rank_remote(c.g, r);
		valid = ep_mask_active(c.g, r);

		/* on its way while the row is awaited */
		uint64_t mark = remote ? ep_signature_load(c.g, op.epoch, r) : 0;

		if (valid && remote) {
			uint32_t share =
				ep_remote_channel_entries(c.h.sent_rows[r], c.g.remote->channels);

			valid = ep_remote_wait(c.g, op, r, EP_LL_ROUTE_SLOT(term.route), share,
					       EP_WAIT_COMBINE_ROW);
		} else if (valid && !c.lines) {
			valid = ep_wait_flag<REMOTE>(c.g, op,
						     ep_ll_row_flag(c, op, c.g.own, at, part),
						     ep_ll_flag_value(op, flag),
						     EP_WAIT_COMBINE_ROW, r);
		}
		if (valid && remote && mark != ep_signature_mark(op.epoch, flag ^ op.epoch)) {
			valid = ep_wait_signature(c.g, op, EP_WAIT_COMBINE_ROW, r, flag ^ op.epoch);
		}
	}
	term.valid = ep_ballot(EP_FULL_MASK, valid);
	term.lines = c.lines ? ep_ballot(EP_FULL_MASK, valid && away && !remote) : 0;
	if (REMOTE || !c.lines) {
		ep_warp_sync(EP_FULL_MASK); /* what one lane has acquired, the others may read */
	}
	return term;
}

/*
 * The lane's vec at `off` of a row that has arrived as bytes: where rows travel as lines, from a
 * remote rank.
 */
template <bool LINES, bool REMOTE>
EP_DEV struct ep_vec16 arrived_vec(const struct ep_ll_common &c, const struct ep_op &op,
				   uint32_t at, uint32_t route, uint32_t off, bool narrow)
{
	const unsigned char *row = REMOTE && (LINES || ep_rank_remote(c.g, EP_LL_ROUTE_RANK(route)))
					   ? c.g.own + ep_ll_remote_row(c, op, at)
					   : ep_ll_row(c, op, c.g.own, at);
	struct ep_vec16 v = ep_ld16_fresh(row + (narrow ? off & ~15u : off));

	return narrow ? ep_quad_vec_narrow(v, off) : v;
}

/* The same of a copied row, or one of our own in the caller's tensor. */
template <bool LINES, bool REMOTE>
EP_DEV struct ep_vec16 term_vec(const struct ep_ll_combine_args &a, const struct ep_op &op,
				uint32_t at, uint32_t route, uint32_t off, bool narrow)
{
	struct ep_vec16 v = { 0, 0, 0, 0 };

	if ((LINES && !REMOTE) || !EP_LL_ROUTE_IS_AWAY(route)) {
		return tensor_vec(a, route, off, narrow);
	}
	return off < a.token_bytes ? arrived_vec<LINES, REMOTE>(a.c, op, at, route, off, narrow)
				   : v;
}

/*
 * Where the lines of a quad of a token's rows lie: one base, so that rows need no registers each.
 */
struct ep_ll_sum_lines {
	const unsigned char *row; /* k = 0 */
	uint32_t stride;          /* to the next k */
};

EP_DEV struct ep_ll_sum_lines sum_lines_make(const struct ep_ll_common &c, const struct ep_op &op,
					     uint32_t token, uint32_t quad)
{
	struct ep_ll_sum_lines l;

	l.row = ep_ll_row(c, op, c.g.own, token * c.topk) + (size_t)quad * EP_QUAD_LINE_BYTES;
	l.stride = (uint32_t)ep_ll_row_stride(c.row_quads, 1);
	return l;
}

/*
 * Awaits the lines of a batch of a token's rows: all that are missing are loaded again together.
 * The bits of `batch` are the rows' k, v[j] belongs to the j-th of them. Lane k waits on behalf of
 * row k. Returns the rows whose rank has failed. One warp.
 */
template <bool REMOTE>
EP_DEV uint32_t sum_wait(const struct ep_ll_common &c, const struct ep_op &op, uint32_t flag,
			 const struct ep_ll_term &term, const struct ep_ll_sum_lines &sum_lines,
			 uint32_t batch, struct ep_vec16 *vec)
{
	uint32_t lines = batch & term.lines, waits = lines;

	batch = ep_opaque_u32(batch);
	struct ep_spin s = ep_spin_start();

	for (;;) {
		uint32_t missing = 0;

		EP_UNROLL()
		for (uint32_t j = 0, m = batch; j < EP_LL_REDUCE_BATCH; j++, m &= m - 1) {
			missing |= ep_line_has(vec[j], op.epoch, flag) ? 0 : m & (0 - m) & waits;
		}
		if (ep_all(EP_FULL_MASK, missing == 0)) {
			break;
		}
		missing = ep_or_u32(EP_FULL_MASK, missing);
		batch = ep_opaque_u32(batch);
		waits &=
			~ep_ballot(EP_FULL_MASK,
				   missing >> ep_lane() & 1 &&
					   ep_wait_give_up<REMOTE>(c.g, op, &s, EP_WAIT_COMBINE_ROW,
								   EP_LL_ROUTE_RANK(term.route)));
		EP_UNROLL()
		for (uint32_t j = 0, m = batch; j < EP_LL_REDUCE_BATCH; j++, m &= m - 1) {
			if (m & (0 - m) & waits) {
				ep_ld_line(sum_lines.row + ep_ctz(m) * sum_lines.stride, &vec[j]);
			}
		}
	}
	EP_UNROLL()
	for (uint32_t j = 0, m = batch; j < EP_LL_REDUCE_BATCH; j++, m &= m - 1) {
		if (m & (0 - m) & waits) {
			ep_ld_line_settle(sum_lines.row + ep_ctz(m) * sum_lines.stride, &vec[j]);
		}
	}
	return lines & ~waits;
}

/*
 * Sums the lane's vec of a token's copied rows in ascending k: at `off` of quad `quad` where rows
 * may come as lines (LINES), and anywhere where all are bytes (quad is 0). All lanes call it. A row
 * whose rank fails on the way adds nothing here, and may have added to other vecs of the token:
 * such a sum is not defined, and the caller has the error flag.
 */
template <class F, bool LINES, bool REMOTE>
EP_DEV void reduce_vec(const struct ep_ll_combine_args &a, const struct ep_op &op, uint32_t flag,
		       const struct ep_ll_term &term, uint32_t token, uint32_t quad, uint32_t off)
{
	const struct ep_ll_common &c = a.c;
	bool narrow = LINES && ep_quad_narrow();
	struct ep_ll_sum_lines l = sum_lines_make(c, op, token, quad);
	float sum[F::sums];

	EP_UNROLL()
	for (uint32_t n = 0; n < F::sums; n++) {
		sum[n] = term.valid ? -0.0f : 0.0f; /* -0 + x is x, also where x is -0 */
	}
	for (uint32_t left = term.valid; left;) {
		struct ep_vec16 v[EP_LL_REDUCE_BATCH];
		uint32_t batch = left, failed = 0;

		EP_UNROLL()
		for (int j = 0; j < EP_LL_REDUCE_BATCH; j++) {
			if (!left) {
				break;
			}
			uint32_t k = ep_ctz(left), at = token * c.topk + k;

			if (LINES && term.lines >> k & 1) {
				ep_ld_line(l.row + k * l.stride, &v[j]);
			} else {
				v[j] = term_vec<LINES, REMOTE>(
					a, op, at, ep_shfl_u32(EP_FULL_MASK, term.route, k),
					quad * EP_QUAD_BYTES + off, narrow);
			}
			left &= left - 1;
		}
		batch &= ~left;
		if (LINES && batch & term.lines) {
			failed = sum_wait<REMOTE>(c, op, flag, term, l, batch, v);
		}
		EP_UNROLL()
		for (int j = 0; j < EP_LL_REDUCE_BATCH; j++) {
			if (!batch) {
				break;
			}
			float weight = ep_shfl_f32(EP_FULL_MASK, term.weight, ep_ctz(batch));

			F::template add<LINES>(sum, v[j], quad, off, weight,
					       !(batch & (0 - batch) & failed));
			batch &= batch - 1;
		}
	}
	F::store((unsigned char *)a.out_tokens + (size_t)token * a.token_bytes, a.token_bytes, quad,
		 off, narrow, sum);
}

/*
 * The lane's part of a row that is quantised: what has arrived of it, or of our own what is to be
 * quantised.
 */
template <class F> struct sum_row {
	float global;
	struct ep_vec16 v[F::own_vecs]; /* v[0]: what has arrived */
};

/*
 * That of the first of `rows`. Nothing waits for what is loaded. `made`: the n-th of these lies
 * quantised in the scratch of the n-th warp from this one on.
 */
template <class F, bool LINES, bool REMOTE>
EP_DEV sum_row<F> sum_row_load(const struct ep_ll_combine_args &a, const struct ep_op &op,
			       const struct ep_ll_term &term, const struct ep_ll_sum_lines &lines,
			       uint32_t rows, uint32_t made, uint32_t token, uint32_t quad,
			       uint32_t off)
{
	uint32_t k = ep_ctz(rows), route = ep_shfl_u32(EP_FULL_MASK, term.route, k);
	sum_row<F> r = {};

	if (LINES && term.lines >> k & 1) {
		ep_ld_line(lines.row + k * lines.stride, &r.v[0]);
	} else if (LINES && made >> k & 1) {
		uint32_t warp = ep_warp() + ep_popc(made & ((1u << k) - 1));

		r.v[0] = *(const struct ep_vec16 *)(combine_scratch(warp) +
						    quad % F::tile_quads * EP_QUAD_BYTES +
						    (off & ~15u));
		r.v[0] = ep_quad_narrow() ? ep_quad_vec_narrow(r.v[0], off) : r.v[0];
	} else if ((LINES && !REMOTE) || !EP_LL_ROUTE_IS_AWAY(route)) {
		bool there = route != EP_LL_ZERO_ROW;

		r.global = return_global(a, route);
		F::template own_load<LINES>(r.v,
					    (const unsigned char *)a.tokens +
						    (there ? (size_t)route * a.token_bytes : 0),
					    there ? a.token_bytes : 0, quad, off);
	} else if (off < EP_QUAD_BYTES) {
		r.v[0] = arrived_vec<LINES, REMOTE>(a.c, op, token * a.c.topk + k, route,
						    quad * EP_QUAD_BYTES + off,
						    LINES && ep_quad_narrow());
	}
	return r;
}

/* Awaits a line; false if its rank has failed. One warp; its lanes poll in step. */
template <bool REMOTE>
EP_DEV bool sum_row_wait(const struct ep_ll_common &c, const struct ep_op &op, uint32_t flag,
			 const unsigned char *line, uint32_t rank, struct ep_spin *s,
			 struct ep_vec16 *v)
{
	while (!ep_all(EP_FULL_MASK, ep_line_has(*v, op.epoch, flag))) {
		bool given_up = ep_lane() == 0 &&
				ep_wait_give_up<REMOTE>(c.g, op, s, EP_WAIT_COMBINE_ROW, rank);

		if (ep_any(EP_FULL_MASK, given_up)) {
			return false;
		}
		ep_ld_line(line, v);
	}
	ep_ld_line_settle(line, v);
	return true;
}

/*
 * The same of rows that are quantised, quad `quad`. A row takes many instructions, so they are
 * added one by one, and each is loaded while the one before is added.
 */
template <class F, bool LINES, bool REMOTE>
EP_DEV void reduce_quad(const struct ep_ll_combine_args &a, const struct ep_op &op, uint32_t flag,
			const struct ep_ll_term &term, uint32_t made, uint32_t token, uint32_t quad,
			uint32_t off)
{
	const struct ep_ll_common &c = a.c;
	struct ep_ll_sum_lines lines = sum_lines_make(c, op, token, quad);
	struct ep_spin s = ep_spin_start(); /* all rows are awaited from now on */
	uint32_t left = term.valid;
	sum_row<F> next = {};
	float sum[F::sums];

	EP_UNROLL()
	for (uint32_t n = 0; n < F::sums; n++) {
		sum[n] = left ? -0.0f : 0.0f;
	}
	if (left) {
		next = sum_row_load<F, LINES, REMOTE>(a, op, term, lines, left, made, token, quad,
						      off);
	}
	while (left) {
		uint32_t k = ep_ctz(left), route = ep_shfl_u32(EP_FULL_MASK, term.route, k);
		float weight = ep_shfl_f32(EP_FULL_MASK, term.weight, k);
		bool line = LINES && term.lines >> k & 1;
		sum_row<F> row = next;

		left &= left - 1;
		if (left) {
			next = sum_row_load<F, LINES, REMOTE>(a, op, term, lines, left, made, token,
							      quad, off);
		}
		if (!line && !(LINES && made >> k & 1) &&
		    ((LINES && !REMOTE) || !EP_LL_ROUTE_IS_AWAY(route))) {
			F::template add_own<LINES>(sum, row.v,
						   ep_ll_quantiser_make(false, row.global), quad,
						   off, weight);
		} else {
			bool counts = !line ||
				      sum_row_wait<REMOTE>(c, op, flag,
							   lines.row + k * lines.stride,
							   EP_LL_ROUTE_RANK(route), &s, &row.v[0]);

			F::template add<LINES>(sum, row.v[0], quad, off, weight, counts);
		}
	}
	F::store((unsigned char *)a.out_tokens + (size_t)token * a.token_bytes, a.token_bytes, quad,
		 off, false, sum);
}

/*
 * Warp `member` of 2^shift, a team: quantises one of the token's rows that are this rank's own, if
 * it has as many, into the warp's scratch. Returns the rows that the team has made.
 */
template <class F>
EP_DEV uint32_t team_quantise(const struct ep_ll_combine_args &a, uint32_t token, uint32_t quad,
			      uint32_t member, uint32_t shift)
{
	const struct ep_ll_common &c = a.c;
	uint32_t k = ep_lane();
	uint32_t route = k < c.topk ? c.h.route[token * c.topk + k] : EP_LL_ROUTE_NONE;
	uint32_t own = ep_ballot(EP_FULL_MASK, !EP_LL_ROUTE_IS_AWAY(route)), left = own;

	for (uint32_t n = 0; n < 1u << shift; n++, left &= left - 1) {
		if (n == member && left) {
			uint32_t row = ep_shfl_u32(EP_FULL_MASK, route, ep_ctz(left));

			ep_ll_tile_quantise<F>(ep_ll_quantiser_make(false, return_global(a, row)),
					       tensor_tile<F>(a, row, quad / F::tile_quads),
					       combine_scratch(ep_warp()));
		}
	}
	ep_bar_sync(1 + (ep_warp() >> shift), EP_WARP_SIZE << shift);
	return own & ~left;
}

/* One part of one token; `made` as in sum_row_load(). One warp. */
template <class F, bool REMOTE>
EP_DEV void reduce_item(const struct ep_ll_combine_args &a, const struct ep_op &op, uint32_t flag,
			uint32_t token, uint32_t part, uint32_t made)
{
	const struct ep_ll_common &c = a.c;
	uint32_t first, end;

	ep_ll_part(c.row_quads, c.part_quads, part, &first, &end);
	if (first == end) {
		return;
	}
	struct ep_ll_term term = term_make<REMOTE>(a, op, flag, token, part);

	if constexpr (F::quantised) {
		for (uint32_t q = first; q < end; q++) {
			uint32_t off = 16 * ep_lane();

			if (c.lines) {
				reduce_quad<F, true, REMOTE>(a, op, flag, term, made, token, q,
							     ep_line_offset(ep_lane()));
			} else {
				reduce_quad<F, false, REMOTE>(
					a, op, flag, term, 0, token, q,
					off < EP_QUAD_BYTES ? off : EP_LL_NO_OFFSET);
			}
		}
	} else if (c.lines) {
		for (uint32_t q = first; q < end; q++) {
			reduce_vec<F, true, REMOTE>(a, op, flag, term, token, q,
						    ep_line_offset(ep_lane()));
		}
	} else {
		/* lanes past the part's end work on bytes past the row, which are never stored */
		for (uint32_t at = first * EP_QUAD_BYTES; at < end * EP_QUAD_BYTES;
		     at += 16 * EP_WARP_SIZE) {
			uint32_t off = at + 16 * ep_lane();

			reduce_vec<F, false, REMOTE>(a, op, flag, term, token, 0,
						     off < end * EP_QUAD_BYTES ? off
									       : EP_LL_NO_OFFSET);
		}
	}
}

/*
 * Parts of tokens in turn, each by one warp. Of few tokens whose rows are quantised each part has a
 * team of warps in a block, as a row takes long: these share the rank's own rows, and the first one
 * adds all.
 */
template <class F, bool REMOTE>
EP_DEV void combine_receive(const struct ep_ll_combine_args &a, const struct ep_op &op,
			    uint32_t flag)
{
	const struct ep_ll_common &c = a.c;
	uint32_t all = c.num_tokens * c.parts, block = ep_block() - c.launch.send_blocks;
	uint32_t first = ep_warp() * c.launch.recv_blocks + block, shift = 0;

	/* what a team of two saves is what storing and reading takes */
	if (F::quantised && c.lines && c.part_quads == 1 &&
	    all <= c.launch.recv_blocks * (ep_nwarps() >> 2)) {
		shift = all <= c.launch.recv_blocks * (ep_nwarps() >> 3) ? 3 : 2;
	}
	if (shift) {
		uint32_t team = ep_warp() >> shift;

		first = team < ep_nwarps() >> shift ? team * c.launch.recv_blocks + block : all;
	}
	for (uint32_t i = first; i < all; i += c.launch.recv_blocks * ep_nwarps()) {
		uint32_t token = ep_div(i, c.by_parts), part = i - token * c.parts, made = 0;

		if constexpr (F::quantised) {
			uint32_t member = ep_warp() & ((1u << shift) - 1);

			made = shift ? team_quantise<F>(a, token, part, member, shift) : 0;
			if (member) {
				return;
			}
		}
		reduce_item<F, REMOTE>(a, op, flag, token, part, made);
	}
}

template <class F, bool REMOTE> EP_DEV void ep_ll_combine(const struct ep_ll_combine_args &a)
{
	const struct ep_ll_common &c = a.c;
	/* few rows use all blocks, and many of one token several */
	uint32_t worker = F::quantised ? ep_block() * ep_nwarps() + ep_warp()
				       : ep_warp() * c.launch.send_blocks + ep_block();
	struct ep_ll_ahead ahead = {};
	EP_SHARED(struct ep_ll_list, list);

	if (listed<F>(a) && ep_block() < c.launch.send_blocks) {
		ahead.notes = notes_load<REMOTE>(a, 0);
	}
	struct ep_step_found found = ep_step_load(c.g, c.launch, true);

	if (ep_block() < c.launch.send_blocks) { /* while the step is on its way */
		if (listed<F>(a)) {
			list_count(a, list, ahead.notes, 0);
		} else {
			if (!F::quantised) {
				ahead.first = return_load<REMOTE>(a, worker, 0);
			}
			ahead.all = return_most(c, false) * a.by_others.d;
		}
	}
	struct ep_op op = ep_step_make(c.launch, found, true);
	uint32_t origin = ep_step_origin(c.launch, found, op);
	uint32_t flag = op.epoch ^ ep_step_seal(c.launch, found); /* of lines, beside the epoch */

	if (ep_block() == 0 && ep_warp() == 0) {
		ep_step_publish(c.g, c.launch, op, origin);
	}
	if (REMOTE) {
		op.start_ns = ep_time_ns();
	}
	if (REMOTE && ep_block() == 0) {
		ep_remote_begin(c.g, op, origin, true);
	}
	uint64_t before = REMOTE ? ep_time_ns() : 0; /* who is waited for here is slow, not lost */

	/*
	 * EP_BANK_HELD needs no care: senders look at the mask before each row, so that peers which
	 * were masked during this wait get none
	 */
	if (ep_step_begin<REMOTE>(c.g, c.launch, found, op) == EP_BANK_ABORTED) {
		return;
	}
	if (REMOTE) {
		op.start_ns += ep_time_ns() - before;
	}
	if (ep_block() < c.launch.send_blocks) {
		combine_send<F, REMOTE>(a, op, flag, worker, list, ahead);
		if (ep_block() == 0 && ep_warp() == 0) {
			ep_signature_close(c.g, op.step);
		}
		if (REMOTE && a.source.addr) {
			ep_remote_read(c.g, op, ep_block(), c.launch.send_blocks);
		}
		return;
	}
	combine_receive<F, REMOTE>(a, op, flag);
	if (ep_block() == 0 && ep_warp() == 0) { /* a receive half alone */
		ep_signature_close(c.g, op.step);
	}
}

EP_KERNEL_ALONE(ep_ll_combine_bf16_kernel, ep_ll_combine_args, EP_GROUP_MAX_THREADS)
{
	ep_ll_combine<ep_ll_numbers<EP_BF16>, false>(a);
}

EP_KERNEL_ALONE(ep_ll_combine_bf16_remote_kernel, ep_ll_combine_args, EP_GROUP_MAX_THREADS)
{
	ep_ll_combine<ep_ll_numbers<EP_BF16>, true>(a);
}

EP_KERNEL_ALONE(ep_ll_combine_fp16_kernel, ep_ll_combine_args, EP_GROUP_MAX_THREADS)
{
	ep_ll_combine<ep_ll_numbers<EP_FP16>, false>(a);
}

EP_KERNEL_ALONE(ep_ll_combine_fp16_remote_kernel, ep_ll_combine_args, EP_GROUP_MAX_THREADS)
{
	ep_ll_combine<ep_ll_numbers<EP_FP16>, true>(a);
}

EP_KERNEL_ALONE(ep_ll_combine_fp32_kernel, ep_ll_combine_args, EP_GROUP_MAX_THREADS)
{
	ep_ll_combine<ep_ll_numbers<EP_FP32>, false>(a);
}

EP_KERNEL_ALONE(ep_ll_combine_fp32_remote_kernel, ep_ll_combine_args, EP_GROUP_MAX_THREADS)
{
	ep_ll_combine<ep_ll_numbers<EP_FP32>, true>(a);
}

EP_KERNEL_ALONE(ep_ll_combine_fp8_kernel, ep_ll_combine_args, EP_GROUP_MAX_THREADS)
{
	ep_ll_combine<ep_ll_fp8, false>(a);
}

EP_KERNEL_ALONE(ep_ll_combine_fp8_remote_kernel, ep_ll_combine_args, EP_GROUP_MAX_THREADS)
{
	ep_ll_combine<ep_ll_fp8, true>(a);
}

EP_KERNEL_ALONE(ep_ll_combine_nvfp4_kernel, ep_ll_combine_args, EP_GROUP_MAX_THREADS)
{
	ep_ll_combine<ep_ll_nvfp4, false>(a);
}

EP_KERNEL_ALONE(ep_ll_combine_nvfp4_remote_kernel, ep_ll_combine_args, EP_GROUP_MAX_THREADS)
{
	ep_ll_combine<ep_ll_nvfp4, true>(a);
}
