/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch, receiving one part of one row: it is stored to each local expert's row. */
#ifndef EP_DEVICE_LL_DISPATCH_PLACE_H
#define EP_DEVICE_LL_DISPATCH_PLACE_H

#include "device/ll/rows.h"

/* Destination of a received row: lane k holds the output row of its expert, or NO_ROW. */
struct ep_ll_placing {
	uint32_t row;
	uint32_t hits;
};

/* Where scale g of an output row goes, row-major or (API 1) column-major within its plane. */
EP_DEV uint32_t *ep_ll_scale_out(const struct ep_ll_dispatch_args &a, uint32_t row, uint32_t g)
{
	uint32_t groups = a.hidden / 128;
	uint32_t *out = (uint32_t *)a.out_scales;

	if (!a.scale_columns) {
		return out + (size_t)row * groups + g;
	}
	uint32_t plane_rows = a.c.layout == EP_LL_EXPERT_MAJOR ? a.c.g.nranks * a.c.max_tokens
							       : a.c.max_tokens;
	uint32_t plane = row / plane_rows;

	return out + ((size_t)plane * groups + g) * plane_rows + (row - plane * plane_rows);
}

_Static_assert(EP_LL_TILE_QUADS == 2 && EP_LL_TILE_CHANNELS >= 512,
	       "the second vecs have the scales");
_Static_assert(EP_LL_TILE_BYTES <= 2 * 16 * EP_WARP_SIZE, "a tile has two vecs of a lane");

/*
 * Gives lane g < 7 the scale of a tile's g-th group. They lie behind the channels, in two vecs of
 * neighbouring lanes; `o` is where the lane's second vec lies.
 */
EP_DEV uint32_t ep_ll_tile_scale(uint32_t o, struct ep_vec16 vec)
{
	uint32_t from = ep_ctz(ep_ballot(EP_FULL_MASK, o == EP_LL_TILE_CHANNELS));
	uint32_t lane = from + (ep_lane() >> 2 & 1), i = ep_lane() & 3;
	uint32_t x = ep_shfl_u32(EP_FULL_MASK, vec.x, lane),
		 y = ep_shfl_u32(EP_FULL_MASK, vec.y, lane);
	uint32_t z = ep_shfl_u32(EP_FULL_MASK, vec.z, lane),
		 w = ep_shfl_u32(EP_FULL_MASK, vec.w, lane);

	return i < 2 ? (i ? y : x) : (i == 2 ? z : w);
}

/*
 * Stores a tile of a quantised row to every placed row: channels by the lanes that have them, then
 * scales. The lane's two vecs lie at bytes o[] of the tile. One warp.
 */
EP_DEV void ep_ll_place_tile(const struct ep_ll_dispatch_args &a,
			     const struct ep_ll_placing &placing, uint32_t tile, const uint32_t *o,
			     const struct ep_vec16 *vec, bool narrow)
{
	uint32_t scale = ep_ll_tile_scale(o[1], vec[1]);
	uint32_t channel = tile * EP_LL_TILE_CHANNELS, group = tile * EP_LL_TILE_GROUPS + ep_lane();
	bool scales = ep_lane() < EP_LL_TILE_GROUPS && group < a.hidden / 128;

	for (uint32_t m = placing.hits; m; m &= m - 1) {
		uint32_t row = ep_shfl_u32(EP_FULL_MASK, placing.row, ep_ctz(m));
		unsigned char *out =
			(unsigned char *)a.out_tokens + (size_t)row * a.hidden + channel;

		EP_UNROLL()
		for (int j = 0; j < EP_LL_TILE_QUADS; j++) {
			if (o[j] < EP_LL_TILE_CHANNELS && channel + o[j] < a.hidden) {
				ep_ll_tensor_store(out + o[j], vec[j], narrow);
			}
		}
		if (scales) {
			*ep_ll_scale_out(a, row, group) = scale;
		}
	}
}

EP_DEV void ep_ll_place_copy(const struct ep_ll_dispatch_args &a, uint32_t row, uint32_t off,
			     struct ep_vec16 vec, bool narrow)
{
	unsigned char *out;

	if (off < a.out_token_bytes) {
		out = (unsigned char *)a.out_tokens + (size_t)row * a.out_token_bytes + off;
	} else if (off < a.out_token_bytes + a.scale_bytes) {
		out = (unsigned char *)a.out_scales + (size_t)row * a.scale_bytes +
		      (off - a.out_token_bytes);
	} else {
		return;
	}
	ep_ll_tensor_store(out, vec, narrow);
}

/* Stores a batch of vecs of a row that was forwarded to every placed row. One warp. */
EP_DEV void ep_ll_place_batch(const struct ep_ll_dispatch_args &a,
			      const struct ep_ll_placing &placing, const uint32_t *off,
			      const struct ep_vec16 *vec, uint32_t n, bool narrow)
{
	for (uint32_t m = placing.hits; m; m &= m - 1) {
		uint32_t row = ep_shfl_u32(EP_FULL_MASK, placing.row, ep_ctz(m));

		EP_UNROLL()
		for (int j = 0; j < EP_LL_BATCH; j++) {
			if (j < (int)n) {
				ep_ll_place_copy(a, row, off[j], vec[j], narrow);
			}
		}
	}
}

/* Where a part of a received row lies, and what shows that it is there. */
struct ep_ll_arrival {
	const unsigned char *row;
	uint32_t first, end; /* quads; equal: there is nothing */
	bool lines;          /* they carry their own flags */
	bool remote;         /* a signal shows it; else, without lines, a flag does */
};

/*
 * Receives a part sent as lines; `b` holds the first batch. False when the source
 * failed on the way: what had arrived is placed, the rest is not.
 */
template <bool FP8, int N>
EP_DEV bool ep_ll_recv_lines(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			     const struct ep_ll_placing &placing,
			     const struct ep_ll_arrival &arrival, uint32_t src,
			     struct ep_ll_lines<N> *b)
{
	uint32_t off[N];

	for (uint32_t q = arrival.first; q < arrival.end; q += N) {
		if (q != arrival.first) {
			ep_ll_lines_load(arrival.row, q, arrival.end, b);
		}
		if (!ep_ll_lines_wait(a.c, op, arrival.row, q, arrival.end, src, b)) {
			return false;
		}
		EP_UNROLL()
		for (int j = 0; j < N; j++) {
			off[j] = (FP8 ? j : q + j) * EP_LL_QUAD_BYTES + ep_line_offset(ep_lane());
		}
		if (FP8) {
			ep_ll_place_tile(a, placing, q / N, off, b->v, ep_ll_lane_narrow());
		} else {
			ep_ll_place_batch(a, placing, off, b->v, ep_min_u32(arrival.end - q, N),
					  ep_ll_lane_narrow());
		}
	}
	return true;
}

/* Receives a part sent as bytes, whose flag has arrived. */
template <bool FP8>
EP_DEV void ep_ll_recv_bytes(const struct ep_ll_dispatch_args &a,
			     const struct ep_ll_placing &placing,
			     const struct ep_ll_arrival &arrival)
{
	constexpr int N = EP_LL_BATCH_OF(FP8);
	constexpr uint32_t STEP = FP8 ? N * EP_LL_QUAD_VECS : N * EP_WARP_SIZE;
	uint32_t last = arrival.end * EP_LL_QUAD_VECS;

	for (uint32_t v0 = arrival.first * EP_LL_QUAD_VECS; v0 < last; v0 += STEP) {
		struct ep_vec16 v[N] EP_UNSET;
		uint32_t off[N], n = 0;

		EP_UNROLL()
		for (int j = 0; j < N; j++) {
			uint32_t i = j * EP_WARP_SIZE + ep_lane();

			off[j] = 16 * (FP8 ? i : v0 + i);
			if (v0 + i < last && i < STEP) {
				v[j] = ep_ld16_fresh(arrival.row + 16 * (size_t)(v0 + i));
				n++;
			}
		}
		if (FP8) {
			ep_ll_place_tile(a, placing, v0 / STEP, off, v, false);
		} else {
			ep_ll_place_batch(a, placing, off, v, n, false);
		}
	}
}

#endif
