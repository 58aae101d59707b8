/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput, dispatch in expert-major layout: rows that do not come are zeros. */
#ifndef EP_DEVICE_HT_DISPATCH_ZERO_H
#define EP_DEVICE_HT_DISPATCH_ZERO_H

#include "device/ht/ht_dispatch_rows.h"

/* One row of an output from zeros in shared memory. */
EP_DEV void ep_ht_zero_row(unsigned char *to, const unsigned char *zeros, uint32_t bytes,
			   uint32_t most)
{
	for (uint32_t at = 0; at < bytes; at += most) {
		ep_bulk_store(to + at, zeros, ep_min_u32(bytes - at, most));
	}
}

/*
 * Rows [first, first + n) of the outputs: the warp's are those that are `turn` modulo `workers`,
 * beginning with the first. What the turn is behind them is returned.
 */
EP_DEV uint32_t ep_ht_zero_rows(const struct ep_ht_dispatch_args &a, const unsigned char *zeros,
				uint32_t first, uint32_t n, uint32_t turn, uint32_t workers)
{
	while (turn < n) {
		size_t row = first + turn;

		ep_ht_zero_row(a.out_tokens + row * a.token_bytes, zeros, a.token_bytes,
			       a.part_bytes);
		ep_ht_zero_row(a.out_scales + row * a.scale_bytes, zeros, a.scale_bytes,
			       a.part_bytes);
		if (a.topk_weights && ep_lane() == 0) {
			a.out_weights[row] = 0.0f;
		}
		ep_bulk_commit();
		turn += workers;
	}
	return turn - n;
}

/*
 * Rows of zones that do not come, and those behind the last zone. They are dealt to the warps, whose
 * stages are free by then, in turn.
 */
EP_DEV void ep_ht_zero(const struct ep_ht_dispatch_args &a, const struct ep_ht_pipe *pipe)
{
	const struct ep_ht_common &c = a.c;
	uint32_t workers = ep_nblocks() * ep_nwarps();
	uint32_t turn = ep_block() + ep_nblocks() * ep_warp(), places = c.h.head->places;
	struct ep_vec16 none = { 0, 0, 0, 0 };

	for (uint32_t at = ep_lane() * 16; at < a.part_bytes; at += EP_WARP_SIZE * 16) {
		ep_shared_st16(pipe->stage + at, none);
	}
	ep_bulk_fence_shared(pipe->stage, a.part_bytes);
	for (uint32_t z0 = 0; z0 < c.nlocal; z0 += EP_WARP_SIZE) {
		uint32_t z = z0 + ep_lane(), first = 0, n = 0;

		if (z < c.nlocal) {
			first = c.h.zones[z].first + c.h.zones[z].kept;
			n = c.h.zones[z].rows - c.h.zones[z].kept;
		}
		for (uint32_t with = ep_ballot(EP_FULL_MASK, n != 0); with; with &= with - 1) {
			uint32_t lane = ep_ctz(with);

			turn = ep_ht_zero_rows(a, pipe->stage,
					       ep_shfl_u32(EP_FULL_MASK, first, lane),
					       ep_shfl_u32(EP_FULL_MASK, n, lane), turn, workers);
		}
	}
	if (a.zero_to > places) {
		ep_ht_zero_rows(a, pipe->stage, places, a.zero_to - places, turn, workers);
	}
	ep_bulk_wait_read(0);
}

#endif
