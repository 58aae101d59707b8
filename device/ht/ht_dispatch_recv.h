/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput, dispatch: rows that other ranks have written into this rank's ring are copied to
 * their final places; and what belongs to rows besides their bytes.
 */
#ifndef EP_DEVICE_HT_DISPATCH_RECV_H
#define EP_DEVICE_HT_DISPATCH_RECV_H

#include "device/ht/ht_dispatch_work.h"

/* The rank that writes the unit, if it has not come. Any lane. */
template <bool NODES>
EP_DEV uint32_t ep_ht_recv_missing(const struct ep_ht_common &c, const struct ep_op &op,
				   const struct ep_ht_unit &unit)
{
	const uint64_t *at = ep_ht_unit_at(c, c.g.own, c.areas.arrived_off, EP_HT_FROM(unit.what),
					   unit.chunk % c.areas.ring_chunks, EP_HT_PART(unit.what));

	return ep_lane() == 0 && !ep_ht_word_reached(op, at, unit.chunk)
		       ? ep_ht_return_ring_of<NODES>(c, EP_HT_FROM(unit.what)).rank
		       : EP_HT_NONE;
}

/* Expert-major: the places of a row that comes; slot EP_HT_NONE: there is none. */
EP_DEV struct ep_ht_list ep_ht_recv_list(const struct ep_ht_common &c, uint32_t slot)
{
	struct ep_ht_list l = { EP_HT_NONE, EP_HT_NONE, EP_HT_NONE, 0 };

	if (c.layout == EP_HT_EXPERT_MAJOR && ep_lane() < c.width && slot != EP_HT_NONE) {
		l.sel = c.h.recv_sel[(size_t)slot * c.width + ep_lane()];
	}
	return l;
}

/* The unit has been read: its place in the ring may be written again. */
template <bool NODES>
EP_DEV void ep_ht_recv_credit(const struct ep_ht_common &c, const struct ep_op &op, uint32_t source,
			      uint32_t chunk, uint32_t part)
{
	if (chunk + c.areas.ring_chunks < c.h.head->chunks && ep_lane() == 0) {
		struct ep_ht_return_ring ring = ep_ht_return_ring_of<NODES>(c, source);
		uint64_t *word = ep_ht_unit_at(c, ep_heap_of(c.g, ring.rank), c.areas.credit_off,
					       ring.number, chunk % c.areas.ring_chunks, part);

		ep_st_release_sys_u64(word, ep_ht_unit_word(op.epoch, chunk));
	}
}

EP_DEV void ep_ht_recv_store(const struct ep_ht_dispatch_args &a, const struct ep_ht_list &list,
			     uint32_t slot, const struct ep_ht_piece &piece,
			     const unsigned char *from)
{
	uint32_t places;

	if (a.c.layout == EP_HT_FLAT) {
		ep_ht_piece_store(a, a.out_tokens, a.out_scales, slot, from, piece);
		return;
	}
	places = ep_ballot(EP_FULL_MASK, list.sel != EP_HT_NONE && list.sel != EP_HT_DROPPED);
	for (; places; places &= places - 1) {
		ep_ht_piece_store(a, a.out_tokens, a.out_scales,
				  ep_shfl_u32(EP_FULL_MASK, list.sel, ep_ctz(places)), from, piece);
	}
}

/*
 * Weights, and in flat layout idx, of `rows` rows from `slot` on, by lane `lane` of `lanes`. They have
 * come to `weights`.
 */
EP_DEV void ep_ht_weights_keep(const struct ep_ht_dispatch_args &a, const float *weights,
			       uint32_t slot, uint32_t rows, uint32_t lane, uint32_t lanes)
{
	const struct ep_ht_common &c = a.c;
	bool flat = c.layout == EP_HT_FLAT;
	uint32_t per = flat ? c.topk : c.width;

	EP_UNROLL(2)
	for (uint32_t i = lane; i < rows * per; i += lanes) {
		uint32_t row = i / per, k = i - row * per, sel = EP_HT_NONE;
		float weight = 0.0f;

		if (k < c.width) {
			sel = c.h.recv_sel[(size_t)(slot + row) * c.width + k];
			weight = weights[row * c.width + k];
		}
		if (flat) {
			ep_ht_entry_out(a, slot + row, k, sel, weight);
		} else if (sel != EP_HT_NONE && sel != EP_HT_DROPPED) {
			a.out_weights[sel] = weight;
		}
	}
}

/* The same of rows that `source` has sent. */
EP_DEV void ep_ht_recv_weights(const struct ep_ht_dispatch_args &a, uint32_t source, uint32_t slot,
			       uint32_t rows, uint32_t lane, uint32_t lanes)
{
	const struct ep_ht_common &c = a.c;

	ep_ht_weights_keep(a, ep_ht_weights_at(c, c.g.own, source, slot - c.h.recv_base[source]),
			   slot, rows, lane, lanes);
}

/* Lane r: slot of rank r's row 0 here, for the first 32; behind the last one, their end. */
EP_DEV uint32_t ep_ht_recv_bases(const struct ep_ht_common &c)
{
	return c.h.recv_base[ep_min_u32(ep_lane(), c.g.nranks)];
}

/*
 * Flat: idx and weights of the rows that came through windows. All peers have published `done`; `bases` was
 * loaded before that.
 */
EP_DEV void ep_ht_entries_copy(const struct ep_ht_dispatch_args &a, uint32_t bases)
{
	const struct ep_ht_common &c = a.c;

	for (uint32_t s = 0; s < c.g.nranks; s++) {
		uint32_t base = ep_shfl_u32(EP_FULL_MASK, bases, s & (EP_WARP_SIZE - 1));
		uint32_t end = ep_shfl_u32(EP_FULL_MASK, bases, (s + 1) & (EP_WARP_SIZE - 1));

		if (s + 1 >= EP_WARP_SIZE) {
			base = c.h.recv_base[s];
			end = c.h.recv_base[s + 1];
		}
		if (s != c.g.rank) { /* its own have been written */
			ep_ht_weights_keep(a, ep_ht_weights_at(c, c.g.own, s, 0), base, end - base,
					   ep_block() * ep_nthreads() + ep_tid(),
					   ep_nblocks() * ep_nthreads());
		}
	}
}

/* Flat: the rows of idx and weights behind those that come. */
EP_DEV void ep_ht_entries_fill(const struct ep_ht_dispatch_args &a)
{
	uint32_t thread = ep_block() * ep_nthreads() + ep_tid(), n = ep_nblocks() * ep_nthreads();
	uint64_t first = ep_ht_entries(a.c.h.head->rows, a.c.topk);

	if (a.fill_rows == EP_HT_NONE) {
		return;
	}
	for (uint64_t i = first + thread; i < ep_ht_entries(a.fill_rows, a.c.topk); i += n) {
		a.out_idx[i] = -1;
		a.out_weights[i] = 0.0f;
	}
}

#endif
