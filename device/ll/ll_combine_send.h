/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency combine, send half: which rows return, and their bytes. */
#ifndef EP_DEVICE_LL_COMBINE_SEND_H
#define EP_DEVICE_LL_COMBINE_SEND_H

#include "device/ll/rows.h"

/* Work of a sending warp: one part of one received token, with what dispatch noted of it. */
struct ep_ll_return {
	uint32_t src;
	uint32_t slot;
	uint32_t part;
	uint32_t rows;  /* received from src; 0: nothing to do */
	uint32_t token; /* EP_LL_SLOT */
	uint32_t note;  /* of lane k: ep_ll_return_note() */
};

/* Returns dispatch's note for k of a received slot; rank-major: none. */
EP_DEV uint32_t ep_ll_return_note(const struct ep_ll_common &c, uint32_t received, uint32_t k)
{
	return c.layout == EP_LL_EXPERT_MAJOR ? c.h.slot_row[(size_t)received * c.topk + k]
					      : EP_LL_NO_ROW;
}

/* The row of the caller's tensor that returns for k of a received slot, or NO_ROW. */
EP_DEV uint32_t ep_ll_return_of(const struct ep_ll_common &c, uint32_t received, uint32_t token,
				uint32_t k, uint32_t note)
{
	uint32_t row = note;

	if (c.layout != EP_LL_EXPERT_MAJOR) {
		row = k == EP_LL_SLOT_K(token) ? received : EP_LL_NO_ROW;
	}
	/* a source that failed during dispatch left its slots unwritten */
	if ((row >= c.nlocal * c.g.nranks * c.max_tokens && row != EP_LL_ZERO_ROW) ||
	    EP_LL_SLOT_TOKEN(token) >= c.max_tokens) {
		return EP_LL_NO_ROW;
	}
	return row;
}

/* The lane's vec of a row of the caller's tensor at `off`; bytes past the row are zero. */
EP_DEV struct ep_vec16 ep_ll_tensor_vec(const struct ep_ll_combine_args &a, uint32_t row,
					uint32_t off, bool narrow)
{
	return ep_ll_tensor_load((const unsigned char *)a.tokens + (size_t)row * a.token_bytes +
					 off,
				 narrow, off < a.token_bytes && row != EP_LL_ZERO_ROW);
}

/*
 * Quads [first, end) of several rows as lines: of each lane's `row`, or NO_ROW, to the source's slot
 * for the token and k = lane. Vecs of different rows are in flight together. One warp.
 */
EP_DEV void ep_ll_return_lines(const struct ep_ll_combine_args &a, const struct ep_op &op,
			       uint32_t flag, const struct ep_ll_return &ret, uint32_t row,
			       uint32_t first, uint32_t end)
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
				v[j] = ep_ll_tensor_vec(a, ep_shfl_u32(EP_FULL_MASK, row, l),
							q * EP_LL_QUAD_BYTES +
								ep_line_offset(ep_lane()),
							ep_ll_lane_narrow());
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
						   (size_t)quad[j] * EP_LL_QUAD_LINE_BYTES,
					   v[j], op.epoch, flag);
			}
		}
	}
}

EP_DEV void ep_ll_return_bytes(const struct ep_ll_combine_args &a, uint32_t row, unsigned char *out,
			       uint32_t first, uint32_t end)
{
	uint32_t last = end * EP_LL_QUAD_VECS;

	for (uint32_t v0 = first * EP_LL_QUAD_VECS; v0 < last; v0 += EP_LL_BATCH * EP_WARP_SIZE) {
		struct ep_vec16 v[EP_LL_BATCH] EP_UNSET;

		EP_UNROLL()
		for (int j = 0; j < EP_LL_BATCH; j++) {
			uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

			if (i < last) {
				v[j] = ep_ll_tensor_vec(a, row, 16 * i, false);
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

#endif
