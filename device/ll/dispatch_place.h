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

/* Stores the lane's vec of a quantised row: channels, scales or padding. */
EP_DEV void ep_ll_place_fp8(const struct ep_ll_dispatch_args &a, uint32_t row, uint32_t off,
			    struct ep_vec16 v, bool narrow)
{
	uint32_t tile = off / EP_LL_TILE_BYTES, o = off % EP_LL_TILE_BYTES;
	uint32_t words[4] = { v.x, v.y, v.z, v.w };

	if (o < EP_LL_TILE_CHANNELS) {
		uint32_t channel = tile * EP_LL_TILE_CHANNELS + o;
		unsigned char *out =
			(unsigned char *)a.out_tokens + (size_t)row * a.hidden + channel;

		if (channel >= a.hidden) {
			return;
		}
		ep_ll_tensor_store(out, v, narrow);
		return;
	}
	uint32_t s = (o - EP_LL_TILE_CHANNELS) / 4;

	EP_UNROLL()
	for (int i = 0; i < 4; i++) {
		uint32_t g = tile * EP_LL_TILE_GROUPS + s + i;

		if (i < (narrow ? 2 : 4) && s + i < EP_LL_TILE_GROUPS && g < a.hidden / 128) {
			*ep_ll_scale_out(a, row, g) = words[i];
		}
	}
}

EP_DEV void ep_ll_place_copy(const struct ep_ll_dispatch_args &a, uint32_t row, uint32_t off,
			     struct ep_vec16 v, bool narrow)
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
	ep_ll_tensor_store(out, v, narrow);
}

/* A batch of received vecs to every placed row. One warp. */
template <bool FP8>
EP_DEV void ep_ll_place(const struct ep_ll_dispatch_args &a, const struct ep_ll_placing &w,
			const uint32_t *off, const struct ep_vec16 *v, uint32_t n, bool narrow)
{
	for (uint32_t m = w.hits; m; m &= m - 1) {
		uint32_t row = ep_shfl_u32(EP_FULL_MASK, w.row, ep_ctz(m));

		EP_UNROLL()
		for (int j = 0; j < EP_LL_BATCH; j++) {
			if (j < (int)n && FP8) {
				ep_ll_place_fp8(a, row, off[j], v[j], narrow);
			} else if (j < (int)n) {
				ep_ll_place_copy(a, row, off[j], v[j], narrow);
			}
		}
	}
}

/*
 * Receives quads [first, end) sent as lines; `b` holds the first batch. False when the source
 * failed on the way: what had arrived is placed, the rest is not.
 */
template <bool FP8>
EP_DEV bool ep_ll_recv_lines(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			     const struct ep_ll_placing &w, const unsigned char *in, uint32_t src,
			     uint32_t first, uint32_t end, struct ep_ll_lines *b)
{
	uint32_t off[EP_LL_BATCH];

	for (uint32_t q = first; q < end; q += EP_LL_BATCH) {
		if (q != first) {
			ep_ll_lines_load(in, q, end, b);
		}
		if (!ep_ll_lines_wait(a.c, op, in, q, end, EP_WAIT_DISPATCH_ROW, src, b)) {
			return false;
		}
		EP_UNROLL()
		for (int j = 0; j < EP_LL_BATCH; j++) {
			off[j] = (q + j) * EP_LL_QUAD_BYTES + ep_line_offset(ep_lane());
		}
		ep_ll_place<FP8>(a, w, off, b->v, ep_min_u32(end - q, EP_LL_BATCH),
				 ep_ll_lane_narrow());
	}
	return true;
}

/* Receives quads [first, end) sent as bytes, whose flag has arrived. */
template <bool FP8>
EP_DEV void ep_ll_recv_bytes(const struct ep_ll_dispatch_args &a, const struct ep_ll_placing &w,
			     const unsigned char *in, uint32_t first, uint32_t end)
{
	uint32_t last = end * EP_LL_QUAD_VECS;

	for (uint32_t v0 = first * EP_LL_QUAD_VECS; v0 < last; v0 += EP_LL_BATCH * EP_WARP_SIZE) {
		struct ep_vec16 v[EP_LL_BATCH] EP_UNSET;
		uint32_t off[EP_LL_BATCH], n = 0;

		EP_UNROLL()
		for (int j = 0; j < EP_LL_BATCH; j++) {
			uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

			off[j] = 16 * i;
			if (i < last) {
				v[j] = ep_ld16_fresh(in + 16 * (size_t)i);
				n++;
			}
		}
		ep_ll_place<FP8>(a, w, off, v, n, false);
	}
}

#endif
