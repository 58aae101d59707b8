/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput across nodes: weights of rows in dispatch, and their gradients in combine. What stays
 * in the node is stored where it is read; what goes to another node is put together in the out area, a
 * list for each rank, which the send warp sends apart from the rows.
 */
#ifndef EP_DEVICE_HT_WEIGHTS_H
#define EP_DEVICE_HT_WEIGHTS_H

#include "device/ht/ht_dispatch_recv.h"
#include "device/ht/ht_nodes.h"

/* The lane's selection of a token: rank and row; and as which one of its rank it comes in the row. */
struct ep_ht_choice_of {
	uint32_t sel;
	uint32_t rank; /* EP_HT_NONE: it has no row, or names an expert again */
	uint32_t row;
	uint32_t at;
};

EP_DEV struct ep_ht_choice_of ep_ht_choice_make(const struct ep_ht_common &c, uint32_t token)
{
	struct ep_ht_choice_of s = { EP_HT_NONE, EP_HT_NONE, EP_HT_NONE, 0 };
	size_t i = (size_t)token * c.topk + ep_lane();
	uint32_t alike;

	if (ep_lane() < c.topk) {
		s.sel = c.h.send_sel[i];
		s.row = c.h.send_row[i];
	}
	if (s.sel != EP_HT_NONE && s.row != EP_HT_NONE && !(s.sel & EP_HT_SEL_AGAIN)) {
		s.rank = ep_div(EP_HT_SEL_EXPERT(s.sel), c.by_local);
	}
	alike = ep_match_u32(EP_FULL_MASK, s.rank == EP_HT_NONE ? ~ep_lane() : s.rank);
	s.at = ep_popc(alike & ((1u << ep_lane()) - 1));
	return s;
}

/* Dispatch: all weights that go to other nodes. All warps. */
EP_DEV void ep_ht_weights_stage(const struct ep_ht_dispatch_args &a)
{
	const struct ep_ht_common &c = a.c;

	for (uint32_t token = ep_block() + ep_nblocks() * ep_warp(); token < c.num_tokens;
	     token += ep_nblocks() * ep_nwarps()) {
		struct ep_ht_choice_of s = ep_ht_choice_make(c, token);

		if (s.rank != EP_HT_NONE && !ep_ht_near(c, s.rank)) {
			ep_ht_out_weights(c, s.rank, s.row)[s.at] =
				a.topk_weights[(size_t)token * c.topk + EP_HT_SEL_K(s.sel)];
		}
	}
}

/* Combine: gradients of the weights of rows [row, row + n) of source r, to `to`. One warp. */
EP_DEV void ep_ht_gradients_leave(const struct ep_ht_combine_args &a, uint32_t r, uint32_t row,
				  uint32_t n, float *to)
{
	const struct ep_ht_common &c = a.c;
	uint32_t slot = c.h.recv_base[r] + row;

	for (uint32_t i = ep_lane(); i < n * c.width; i += EP_WARP_SIZE) {
		uint32_t at = ep_div(i, c.by_width), j = i - at * c.width;
		uint32_t sel = c.h.recv_sel[(size_t)slot * c.width + i];
		bool there = sel < EP_HT_DROPPED;

		if (c.layout == EP_HT_FLAT) {
			to[i] = there ? a.in_weights[(size_t)(slot + at) * c.topk + j] : 0.0f;
		} else {
			to[i] = there ? a.in_weights[sel] : 0.0f;
		}
	}
}

/* Combine: all that go to other nodes. All warps. */
EP_DEV void ep_ht_gradients_stage(const struct ep_ht_combine_args &a)
{
	const struct ep_ht_common &c = a.c;
	uint32_t turn = ep_block() + ep_nblocks() * ep_warp(), step = ep_nblocks() * ep_nwarps();

	for (uint32_t r = 0; r < c.g.nranks; r++) {
		uint32_t rows = c.h.recv_base[r + 1] - c.h.recv_base[r];

		for (uint32_t row = turn * EP_HT_CHUNK; !ep_ht_near(c, r) && row < rows;
		     row += step * EP_HT_CHUNK) {
			ep_ht_gradients_leave(a, r, row, ep_min_u32(rows - row, EP_HT_CHUNK),
					      ep_ht_out_weights(c, r, row));
		}
	}
}

/*
 * Combine: gradients of all weights of one of this rank's tokens, when all have come. Every k gets one:
 * 0 if it selects nothing; who names an expert again gets that expert's. One warp.
 */
EP_DEV void ep_ht_gradients_take(const struct ep_ht_combine_args &a, uint32_t token)
{
	const struct ep_ht_common &c = a.c;
	struct ep_ht_choice_of s = ep_ht_choice_make(c, token);
	float *out = a.out_weights + (size_t)token * c.topk;
	uint32_t again = ep_ballot(EP_FULL_MASK, s.sel != EP_HT_NONE && s.rank == EP_HT_NONE &&
							 s.row != EP_HT_NONE);
	uint32_t first = ep_lane();

	if (ep_lane() < c.topk) {
		out[ep_lane()] = 0.0f;
	}
	/* equal experts are neighbours, the first of which counts */
	while (again >> first & 1) {
		first--;
	}
	s.rank = ep_shfl_u32(EP_FULL_MASK, s.rank, first);
	s.at = ep_shfl_u32(EP_FULL_MASK, s.at, first);
	ep_warp_sync(EP_FULL_MASK);
	if (s.sel != EP_HT_NONE && s.row != EP_HT_NONE) {
		bool straight = c.layout == EP_HT_FLAT && s.rank == c.g.rank;
		float g = straight ? a.in_weights[(size_t)(c.h.send_base[s.rank] + s.row) * c.topk +
						  s.at]
				   : ep_ht_weights_at(c, c.g.own, s.rank, s.row)[s.at];

		out[EP_HT_SEL_K(s.sel)] = g;
	}
}

#endif
