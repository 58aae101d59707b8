/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput, dispatch: parts of rows in tensors, and the outputs beside them. */
#ifndef EP_DEVICE_HT_DISPATCH_ROWS_H
#define EP_DEVICE_HT_DISPATCH_ROWS_H

#include "device/ht/pipe.h"
#include "device/ht/units.h"

/* Which bytes of a token and of its scales a part is. */
struct ep_ht_piece {
	uint32_t first; /* of the token */
	uint32_t token_bytes;
	uint32_t scale_first;
	uint32_t scale_bytes;
};

EP_DEV struct ep_ht_piece ep_ht_piece_make(const struct ep_ht_dispatch_args &a, uint32_t part)
{
	uint32_t first = part * a.part_bytes, row = a.token_bytes + a.scale_bytes;
	uint32_t end = ep_min_u32(first + a.part_bytes, row);
	struct ep_ht_piece p;

	p.first = first;
	p.token_bytes = first < a.token_bytes ? ep_min_u32(end, a.token_bytes) - first : 0;
	p.scale_first = ep_max_u32(first, a.token_bytes) - a.token_bytes;
	p.scale_bytes = end > a.token_bytes ? end - a.token_bytes - p.scale_first : 0;
	return p;
}

/* A part of an own token and of its scales to the slot that is loaded next. */
EP_DEV void ep_ht_piece_load(const struct ep_ht_dispatch_args &a, const struct ep_ht_pipe *pipe,
			     size_t token, const struct ep_ht_piece &piece)
{
	if (piece.token_bytes) {
		ep_ht_pipe_load(pipe, 0, a.tokens + token * a.token_bytes + piece.first,
				piece.token_bytes);
	}
	if (piece.scale_bytes) {
		ep_ht_pipe_load(pipe, piece.token_bytes,
				a.scales + token * a.scale_bytes + piece.scale_first,
				piece.scale_bytes);
	}
}

/* A part in shared memory to row `row` of tensors of tokens and scales. */
EP_DEV void ep_ht_piece_store(const struct ep_ht_dispatch_args &a, unsigned char *tokens,
			      unsigned char *scales, uint32_t row, const unsigned char *from,
			      const struct ep_ht_piece &piece)
{
	if (piece.token_bytes) {
		ep_bulk_store(tokens + (size_t)row * a.token_bytes + piece.first, from,
			      piece.token_bytes);
	}
	if (piece.scale_bytes) {
		ep_bulk_store(scales + (size_t)row * a.scale_bytes + piece.scale_first,
			      from + piece.token_bytes, piece.scale_bytes);
	}
}

/* Flat: entry k of a row of out_idx and out_weights, as far as those are to be written. */
EP_DEV void ep_ht_entry_out(const struct ep_ht_dispatch_args &a, uint32_t slot, uint32_t k,
			    uint32_t local, float weight)
{
	size_t at = (size_t)slot * a.c.topk + k;

	if (slot < a.fill_rows) {
		a.out_idx[at] = local == EP_HT_NONE ? -1 : (int64_t)local + a.id_base;
		a.out_weights[at] = local == EP_HT_NONE ? 0.0f : weight;
	}
}

/*
 * An item's entries of the tables, for its stores: one entry for each lane. It is loaded one item ahead:
 * each of these is a trip to L2 or further.
 */
struct ep_ht_list {
	uint32_t sel; /* own token: k-th of its list; row that has come, expert-major: k-th place */
	uint32_t row;
	uint32_t place;
	float weight; /* own token, in windows: k-th of the caller's */
};

enum ep_ht_dispatch_kind {
	EP_HT_SEND,
	EP_HT_RECEIVE,
	EP_HT_FORWARD, /* several nodes: before EP_HT_RECEIVE */
	EP_HT_KINDS
};

/* A unit but for its chunk, and a row of it, in one word: where it comes from, the row, its kind, its part. */
#define EP_HT_WHAT(from, kind, part) ((from) | (kind) << 14 | (part) << 16)
#define EP_HT_FROM(what) ((what)&0x3ffu) /* received: the source, forwarded: the flow */
#define EP_HT_ROW(what) ((what) >> 10 & 7u)
#define EP_HT_LAST (1u << 13) /* it is the unit's last row */
#define EP_HT_KIND(what) ((what) >> 14 & 3u)
#define EP_HT_PART(what) ((what) >> 16)

_Static_assert(EP_GROUP_MAX_RANKS <= 0x400 && EP_HT_CHUNK <= 8 && EP_HT_KINDS <= 4, "EP_HT_WHAT");

/* The content of a slot of the stage, as it was noted. */
struct ep_ht_item {
	uint32_t what; /* EP_HT_WHAT, with the row */
	uint32_t chunk;
	uint32_t slot;       /* received, forwarded; EP_HT_NONE: no row of this rank's */
	struct ep_ht_list l; /* loads on their way */
};

/* For the statistics: what has travelled. One warp. */
EP_DEV void ep_ht_dispatch_count(const struct ep_ht_dispatch_args &a)
{
	const struct ep_ht_common &c = a.c;
	uint64_t bytes = a.token_bytes + a.scale_bytes;

	for (uint32_t r = ep_lane(); r < c.g.nranks; r += EP_WARP_SIZE) {
		struct ep_peer_stats *s = &c.g.stats[r];
		uint32_t tx = ep_ht_first(c, c.h.send_start, r, ep_ht_table_chunks(c));
		uint32_t rx = c.h.recv_base[r + 1] - c.h.recv_base[r];

		s->tx_rows += tx;
		s->tx_bytes += tx * bytes;
		s->rx_rows += rx;
		s->rx_bytes += rx * bytes;
		s->ops++;
	}
}

#endif
