/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency combine, what returns to remote sources. A channel returns its share of each source's
 * slots, the sources' slots in turn. Its block lists the rows of as many slots as fill a batch,
 * copies them to the stage, and posts them.
 */
#ifndef EP_DEVICE_LL_COMBINE_REMOTE_H
#define EP_DEVICE_LL_COMBINE_REMOTE_H

#include "device/group/group_remote.h"
#include "device/ll/ll_combine_send.h"

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

/* The slots of source r that channel `ch` returns: *first and, as the result, how many. */
EP_DEV uint32_t ep_ll_remote_slots(const struct ep_ll_common &c, uint32_t r, uint32_t ch,
				   uint32_t *first)
{
	uint32_t rows = ep_rank_remote(c.g, r) ? c.h.src_rows[r] : 0;
	uint32_t share = ep_remote_channel_entries(rows, c.g.remote->channels);

	*first = ep_min_u32(ch * share, rows);
	return ep_min_u32(share, rows - *first);
}

/*
 * Finds the rows of up to EP_LL_STAGE_ROWS slots, from the channel's position `base` on: position i
 * is slot i / R of source i % R. *taken: slots that the batch covers. Returns its rows. One block;
 * it has two barriers before it writes what is read of the list before, and one at its end.
 */
EP_DEV uint32_t ep_ll_remote_list_make(const struct ep_ll_common &c, struct ep_ll_remote_list &list,
				       uint32_t ch, uint32_t base, uint32_t positions,
				       uint32_t *taken)
{
	uint32_t n = ep_min_u32(positions - base, EP_LL_STAGE_ROWS), rows = 0, take = 0;

	for (uint32_t i = ep_tid(); i < EP_LL_STAGE_ROWS; i += ep_nthreads()) {
		list.ks[i] = 0;
	}
	ep_block_sync();
	for (uint32_t x = ep_tid(); x < n * c.topk; x += ep_nthreads()) {
		uint32_t i = ep_div(x, c.by_topk), k = x - i * c.topk, first;
		uint32_t slot = ep_div(base + i, c.g.by_ranks), r = base + i - slot * c.g.nranks;

		if (slot < ep_ll_remote_slots(c, r, ch, &first) && ep_mask_active(c.g, r)) {
			uint32_t received = r * c.max_tokens + first + slot;

			if (ep_ll_return_of(c, received, c.h.slot_token[received], k,
					    ep_ll_return_note(c, received, k)) != EP_LL_NO_ROW) {
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
		uint32_t slot = ep_div(base + i, c.g.by_ranks), r = base + i - slot * c.g.nranks;
		uint32_t place = ep_popc(list.ks[i] & ((1u << k) - 1));

		if (!(list.ks[i] >> k & 1)) {
			continue;
		}
		for (uint32_t j = 0; j < i; j++) {
			place += ep_popc(list.ks[j]);
		}
		(void)ep_ll_remote_slots(c, r, ch, &first);
		uint32_t received = r * c.max_tokens + first + slot;
		uint32_t token = c.h.slot_token[received];

		list.row[place] =
			ep_ll_return_of(c, received, token, k, ep_ll_return_note(c, received, k));
		list.at[place] = EP_LL_SLOT_TOKEN(token) * c.topk + k;
		list.rank[place] = r;
	}
	ep_block_sync();
	*taken = take;
	return rows;
}

/* Does the NIC read this row from the caller's tensor? */
EP_DEV bool ep_ll_remote_in_place(const struct ep_ll_combine_args &a, uint32_t row)
{
	return a.source.addr && row != EP_LL_ZERO_ROW;
}

/* Copies the listed rows to the stage, but those that are read in their place. One block. */
EP_DEV void ep_ll_remote_stage_rows(const struct ep_ll_combine_args &a,
				    const struct ep_ll_remote_list &list, uint32_t rows,
				    unsigned char *out)
{
	const struct ep_ll_common &c = a.c;
	uint32_t part_quads, parts = rows ? ep_ll_stage_parts(c, rows, 1, &part_quads) : 0;

	for (uint32_t i = ep_warp(); i < rows * parts; i += ep_nwarps()) {
		uint32_t n = i / parts, first, end;

		if (ep_ll_remote_in_place(a, list.row[n])) {
			continue;
		}
		ep_ll_part(c.row_quads, part_quads, i - n * parts, &first, &end);
		ep_ll_return_bytes(a, list.row[n],
				   out + (size_t)n * ep_ll_row_stride(c.row_quads, 0), first, end);
	}
}

/* Posts what of the batch is for own peer d, whose first `slots` slots it completes. One warp. */
EP_DEV void ep_ll_remote_post_rows(const struct ep_ll_combine_args &a, const struct ep_op &op,
				   const struct ep_ll_remote_list &list,
				   const struct ep_ll_return_batch &batch, uint32_t d,
				   uint32_t slots)
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

	if (mine && ep_ll_remote_in_place(a, list.row[ep_lane()])) {
		from = ep_mlx5_source(&p, a.source, (uint64_t)list.row[ep_lane()] * a.token_bytes);
	}
	p.timeout_ns = ep_remote_left(c.g, op, true);
	if (!ep_mlx5_put_signal(
		    &p, mine, ep_mlx5_remote(&p, EP_MLX5_REGION_HEAP, ep_ll_remote_row(c, op, at)),
		    from, a.token_bytes,
		    ep_remote_signal(c.g, p, d, ch, ep_remote_signal_off(c.g, ch),
				     ep_remote_signal_word(op, slots)))) {
		ep_remote_failed(c.g, op, p, d, EP_WAIT_RDMA_SLOT);
	}
	ep_stage_mark(c.g, p, d, ch, batch.side);
}

/* All that channel `ch` returns. One block. *side: where the next batch goes. */
EP_DEV void ep_ll_remote_return(const struct ep_ll_combine_args &a, const struct ep_op &op,
				uint32_t ch, uint32_t *side)
{
	const struct ep_ll_common &c = a.c;
	uint32_t most = 0, base = 0, taken, first;
	EP_SHARED(struct ep_ll_remote_list, list);

	for (uint32_t r = 0; r < c.g.nranks; r++) {
		most = ep_max_u32(most, ep_ll_remote_slots(c, r, ch, &first));
	}
	for (; base < most * c.g.nranks; base += taken) {
		struct ep_ll_return_batch batch = { ch, *side, 0 };

		batch.rows = ep_ll_remote_list_make(c, list, ch, base, most * c.g.nranks, &taken);
		if (!batch.rows) {
			continue;
		}
		*side ^= 1;
		if (!ep_stage_claim(c.g, op, ch, batch.side)) {
			return;
		}
		ep_ll_remote_stage_rows(a, list, batch.rows,
					c.g.own + ep_stage_off(c.g, ch, batch.side));
		ep_block_sync();
		for (uint32_t d = ep_remote_peer(c.g, ep_warp()); d < c.g.nranks;
		     d = ep_remote_peer(c.g, d + ep_nwarps())) {
			uint32_t end = base + taken; /* positions, of which every R-th is d's */
			uint32_t slots = end > d ? (end - d - 1) / c.g.nranks + 1 : 0;

			ep_ll_remote_post_rows(a, op, list, batch, d,
					       ep_min_u32(slots,
							  ep_ll_remote_slots(c, d, ch, &first)));
		}
	}
}

#endif
