/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Direct low-latency dispatch: rows go straight to the receivers' tensors, which are windows. Between
 * two operations nothing but the word of ep_ll_direct_invite protects such a tensor.
 */
#ifndef EP_DEVICE_LL_DISPATCH_DIRECT_H
#define EP_DEVICE_LL_DISPATCH_DIRECT_H

#include "device/ll/dispatch_rows.h"

/* Where rank `from` invites rank `at`. */
EP_DEV uint64_t *ep_ll_direct_word(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
				   uint32_t at, uint32_t from)
{
	const struct ep_ll_common &c = a.c;

	return (uint64_t *)(ep_ll_packets(c, op, ep_heap_of(c.g, at)) + a.count_off +
			    8 * (size_t)from * c.nlocal);
}

/*
 * Tells every active peer that rows may come: this rank has started the operation, so its kernels
 * before have done with the tensor. The bank is free. One warp of one block.
 */
EP_DEV void ep_ll_direct_invite(const struct ep_ll_dispatch_args &a,
				const struct ep_ll_direct &direct, const struct ep_op &op)
{
	const struct ep_dev_group &g = a.c.g;

	for (uint32_t r = ep_lane(); r < g.nranks; r += EP_WARP_SIZE) {
		if (r != g.rank && ep_mask_active(g, r)) {
			ep_st_retired_sys_u64(ep_ll_direct_word(a, op, r, g.rank),
					      (uint64_t)op.epoch << 32 | direct.form);
		}
	}
}

/* Awaits the invitation of rank r. False: it did not come, or is for other outputs. One thread. */
EP_DEV bool ep_ll_direct_await(const struct ep_ll_dispatch_args &a,
			       const struct ep_ll_direct &direct, const struct ep_op &op,
			       uint32_t r)
{
	const struct ep_dev_group &g = a.c.g;
	const uint64_t *p = ep_ll_direct_word(a, op, g.rank, r);
	struct ep_spin s = ep_spin_start();
	uint64_t word;

	while ((uint32_t)((word = ep_ld_retired_sys_u64(p)) >> 32) != op.epoch) {
		if (ep_wait_give_up(g, op, &s, EP_WAIT_DISPATCH_OUTPUT, r)) {
			return false;
		}
	}
	if ((uint32_t)word != direct.form) {
		ep_mask_peer(g, op, EP_CAUSE_MISMATCH, EP_WAIT_DISPATCH_OUTPUT, r, (uint32_t)word,
			     direct.form);
		return false;
	}
	/* it may have gone on without us since, and its tensor may be used for something else */
	return !ep_mask_parted(g, op, r, ep_progress_load(g, r));
}

/*
 * Awaits all active ranks' invitations. Bit j of a lane's result: rank 32 * j + lane may be sent
 * to. One warp.
 */
EP_DEV uint32_t ep_ll_direct_invited(const struct ep_ll_dispatch_args &a,
				     const struct ep_ll_direct &direct, const struct ep_op &op)
{
	const struct ep_dev_group &g = a.c.g;
	uint32_t invited = 0;

	for (uint32_t r = ep_lane(), bit = 1; r < g.nranks; r += EP_WARP_SIZE, bit <<= 1) {
		if (r == g.rank || (ep_mask_active(g, r) && ep_ll_direct_await(a, direct, op, r))) {
			invited |= bit;
		}
	}
	ep_warp_sync(EP_FULL_MASK);
	return invited;
}

/* Quads [first, end) of a row, as bytes, to the tensors of the fanout's ranks. One warp. */
EP_DEV void ep_ll_direct_send(const struct ep_ll_dispatch_args &a,
			      const struct ep_ll_direct &direct, const struct ep_ll_source &s,
			      const struct ep_ll_fanout &f, uint32_t first, uint32_t end)
{
	const struct ep_ll_common &c = a.c;
	uint32_t last = ep_min_u32(end * EP_LL_QUAD_VECS, s.bytes / 16);

	for (uint32_t v0 = first * EP_LL_QUAD_VECS; v0 < last; v0 += EP_LL_BATCH * EP_WARP_SIZE) {
		struct ep_vec16 v[EP_LL_BATCH];

		EP_UNROLL()
		for (int j = 0; j < EP_LL_BATCH; j++) {
			uint32_t i = v0 + j * EP_WARP_SIZE + ep_lane();

			if (i < last) {
				v[j] = ep_ll_source_vec<false>(s, 16 * i, false);
			}
		}
		for (uint32_t m = f.hits; m; m &= m - 1) {
			uint32_t l = ep_ll_turned_lane(m, f.turn, f.lanes);
			size_t at = c.g.rank * c.max_tokens + ep_shfl_u32(EP_FULL_MASK, f.slot, l);
			unsigned char *token = direct.tokens[f.first_rank + l] + at * s.token_bytes;
			unsigned char *scale = direct.scales[f.first_rank + l] + at * a.scale_bytes;

			EP_UNROLL()
			for (int j = 0; j < EP_LL_BATCH; j++) {
				uint32_t off = 16 * (v0 + j * EP_WARP_SIZE + ep_lane());

				if (off < 16 * last) {
					ep_st16(off < s.token_bytes ? token + off
								    : scale + (off - s.token_bytes),
						v[j]);
				}
			}
		}
	}
}

#endif
