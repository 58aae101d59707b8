/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput across nodes, dispatch: what a unit waits for, where its rows come from and go to,
 * and who is notified. See device/ht/hop.h for the three kinds.
 */
#ifndef EP_DEVICE_HT_FORWARD_H
#define EP_DEVICE_HT_FORWARD_H

#include "device/ht/ht_dispatch_recv.h"
#include "device/ht/ht_dispatch_send.h"
#include "device/ht/hop.h"

enum ep_ht_dispatch_kind {
	EP_HT_SEND,
	EP_HT_FORWARD,
	EP_HT_RECEIVE
};

/* ---- which units there are ---- */

EP_DEV struct ep_ht_fan ep_ht_hop_fan(const struct ep_ht_dispatch_args &a, uint32_t kind)
{
	struct ep_ht_fan f = { a.c.h.head->chunks, a.c.g.nranks, a.parts };

	if (kind == EP_HT_SEND) {
		f.chunks = ep_ht_chunks(a.c.num_tokens, EP_HT_CHUNK_SHIFT);
		f.fan = 1;
	} else if (kind == EP_HT_FORWARD) {
		f.fan = a.c.remote.sources;
	}
	return f;
}

/* Finds what the lane's unit has to move, from the chunk's number of tokens, masks, or rows. */
EP_DEV uint32_t ep_ht_hop_rows(const struct ep_ht_dispatch_args &a, struct ep_ht_hop *hop)
{
	const struct ep_ht_common &c = a.c;

	if (hop->kind == EP_HT_SEND) {
		return (1u << ep_min_u32(c.num_tokens - hop->chunk * EP_HT_CHUNK, EP_HT_CHUNK)) - 1;
	}
	if (hop->kind == EP_HT_FORWARD) {
		return ep_ht_source_mask(c, hop->from, hop->chunk);
	}
	hop->from += c.g.rank; /* ranks begin with different sources */
	hop->from -= hop->from >= c.g.nranks ? c.g.nranks : 0;
	if (c.remote.return_rings[hop->from].rank == c.g.rank) {
		return 0; /* own tokens, and those that this rank forwards */
	}
	return (1u << ep_ht_rows(c, c.h.recv_start, hop->from, hop->chunk)) - 1;
}

/* ---- what they wait for ---- */

/* The rank of this node that has not yet read what a chunk's rows would overwrite in its ring. */
EP_DEV uint32_t ep_ht_send_missing(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
				   const struct ep_ht_hop &hop)
{
	const struct ep_ht_common &c = a.c;
	uint32_t slot = hop.chunk % c.areas.ring_chunks;

	for (uint32_t i = ep_lane(); hop.chunk >= c.areas.ring_chunks && i < c.remote.near;
	     i += EP_WARP_SIZE) {
		uint32_t d = c.remote.near_ranks[i], before;

		if (d == c.g.rank || !ep_ht_rows(c, c.h.send_start, d, hop.chunk)) {
			continue;
		}
		before = ep_ht_chunk_before(c, c.h.send_start, d, hop.chunk);
		if (before != hop.chunk &&
		    !ep_ht_word_reached(
			    op, ep_ht_unit_at(c, c.g.own, c.areas.credit_off, i, slot, hop.part),
			    before)) {
			return d;
		}
	}
	return EP_HT_NONE;
}

/* The same for a source's chunk. */
EP_DEV uint32_t ep_ht_forward_missing(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
				      const struct ep_ht_hop &hop)
{
	const struct ep_ht_common &c = a.c;
	uint32_t slot = hop.chunk % c.areas.ring_chunks;

	for (uint32_t i = ep_lane(); i < c.remote.near; i += EP_WARP_SIZE) {
		uint32_t d = c.remote.near_ranks[i], before = hop.chunk;
		uint32_t ring = c.remote.near * (1 + hop.from) + i;

		if (d == c.g.rank || !ep_ht_near_mask(c, hop.from, i, hop.chunk)) {
			continue;
		}
		while (before >= c.areas.ring_chunks) {
			before -= c.areas.ring_chunks;
			if (ep_ht_near_mask(c, hop.from, i, before)) {
				break;
			}
		}
		if (before != hop.chunk && ep_ht_near_mask(c, hop.from, i, before) &&
		    !ep_ht_word_reached(
			    op, ep_ht_unit_at(c, c.g.own, c.areas.credit_off, ring, slot, hop.part),
			    before)) {
			return d;
		}
	}
	return EP_HT_NONE;
}

/* Finds whom a unit waits for, of the lane's share; *site: for what. */
EP_DEV uint32_t ep_ht_hop_missing(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
				  const struct ep_ht_hop &hop, enum ep_wait_site *site)
{
	const struct ep_ht_common &c = a.c;
	uint32_t slot = hop.chunk % c.areas.ring_chunks, missing;

	*site = EP_WAIT_HT_CREDIT;
	if (hop.kind == EP_HT_SEND) {
		missing = ep_ht_send_missing(a, op, hop);
		if (missing == EP_HT_NONE) {
			missing = ep_ht_stage_missing(c, op, 0, c.remote.nodes, hop.chunk);
		}
		return missing;
	}
	if (hop.kind == EP_HT_FORWARD) {
		uint32_t source = c.remote.feeds[hop.from].peer;

		if (ep_lane() == 0 && !ep_ht_rows_reached(c, op, source, hop.chunk)) {
			*site = EP_WAIT_HT_ROWS;
			return source;
		}
		return ep_ht_forward_missing(a, op, hop);
	}
	*site = EP_WAIT_HT_ROWS;
	if (ep_lane() == 0 && !ep_ht_word_reached(op,
						  ep_ht_unit_at(c, c.g.own, c.areas.arrived_off,
								hop.from, slot, hop.part),
						  hop.chunk)) {
		return c.remote.return_rings[hop.from].rank;
	}
	return EP_HT_NONE;
}

/* ---- where rows come from ---- */

/* Loads row `i` of the unit into the next slot of the stage. */
EP_DEV void ep_ht_hop_load(const struct ep_ht_dispatch_args &a, struct ep_ht_pipe *pipe,
			   const struct ep_ht_hop &hop, const struct ep_ht_piece &piece, uint32_t i)
{
	const struct ep_ht_common &c = a.c;
	size_t token = (size_t)hop.chunk * EP_HT_CHUNK + i, part = (size_t)hop.part * a.part_bytes;

	ep_ht_pipe_open(pipe);
	if (hop.kind == EP_HT_FORWARD) {
		ep_ht_pipe_load(pipe, 0, c.g.own + ep_ht_net_off(c, hop.from, hop.chunk, i) + part,
				piece.token_bytes + piece.scale_bytes);
	} else if (hop.kind == EP_HT_RECEIVE) {
		ep_ht_pipe_load(pipe, 0,
				ep_ht_ring_at(c, c.g.own, hop.from, hop.chunk % c.areas.ring_chunks,
					      i) +
					part,
				piece.token_bytes + piece.scale_bytes);
	} else {
		ep_ht_piece_load(a, pipe, token, piece);
	}
	ep_ht_pipe_close(pipe, piece.token_bytes + piece.scale_bytes);
}

/* ---- where they go ---- */

/* For each lane that `stores`: the part, as it lies in a ring or a stage, to its `to`. */
EP_DEV void ep_ht_hop_spread(bool stores, const unsigned char *to, const unsigned char *from,
			     uint32_t bytes)
{
	for (uint32_t left = ep_ballot(EP_FULL_MASK, stores); left; left &= left - 1) {
		uint64_t at = ep_shfl_u64(EP_FULL_MASK, (uintptr_t)to, ep_ctz(left));

		ep_bulk_store((unsigned char *)(uintptr_t)at, from, bytes);
	}
}

/* A part of an own token: to rings of this node, to this rank's own places, and to the stage. */
EP_DEV void ep_ht_hop_send(const struct ep_ht_dispatch_args &a, const struct ep_ht_hop &hop,
			   const struct ep_ht_piece &piece, uint32_t i,
			   const struct ep_ht_list &list, const unsigned char *from)
{
	const struct ep_ht_common &c = a.c;
	bool there = list.sel != EP_HT_NONE && list.row != EP_HT_NONE;
	uint32_t rank = there ? ep_div(EP_HT_SEL_EXPERT(list.sel), c.by_local) : EP_HT_NONE;
	uint32_t before = ep_shfl_u32(EP_FULL_MASK, rank, (ep_lane() + 31) & 31), own;
	size_t part = (size_t)hop.part * a.part_bytes;
	bool opens = there && (ep_lane() == 0 || before != rank);
	bool near = opens && rank != c.g.rank && ep_ht_near(c, rank);
	bool places = c.layout == EP_HT_FLAT
			      ? opens
			      : list.place != EP_HT_NONE && !(list.sel & EP_HT_SEL_AGAIN);
	unsigned char *to = NULL;

	if (near) {
		uint32_t row = list.row - ep_ht_first(c, c.h.send_start, rank, hop.chunk);

		to = ep_ht_ring_at(c, ep_heap_of(c.g, rank), c.g.rank,
				   hop.chunk % c.areas.ring_chunks, row) +
		     part;
	}
	ep_ht_hop_spread(near, to, from, piece.token_bytes + piece.scale_bytes);
	if (ep_any(EP_FULL_MASK, there && !ep_ht_near(c, rank))) {
		ep_bulk_store(c.g.own + ep_ht_stage_off(c, 0, hop.chunk, i) + part, from,
			      piece.token_bytes + piece.scale_bytes);
	}
	own = ep_ballot(EP_FULL_MASK, there && rank == c.g.rank && places);
	for (; own; own &= own - 1) {
		uint32_t lane = ep_ctz(own);
		uint32_t row = c.layout == EP_HT_FLAT ? list.row + c.h.send_base[c.g.rank]
						      : list.place;

		ep_ht_piece_store(a, a.out_tokens, a.out_scales,
				  ep_shfl_u32(EP_FULL_MASK, row, lane), from, piece);
	}
}

/* A part of a source's token: to rings of this node, and to this rank's own places. */
EP_DEV void ep_ht_hop_forward(const struct ep_ht_dispatch_args &a, const struct ep_ht_hop &hop,
			      const struct ep_ht_piece &piece, uint32_t i,
			      const unsigned char *from)
{
	const struct ep_ht_common &c = a.c;
	uint32_t source = c.remote.feeds[hop.from].peer;

	for (uint32_t i0 = 0; i0 < c.remote.near; i0 += EP_WARP_SIZE) {
		uint32_t n = i0 + ep_lane(), mask = 0, d = c.g.rank;
		unsigned char *to = NULL;

		if (n < c.remote.near && n != c.g.index) {
			mask = ep_ht_near_mask(c, hop.from, n, hop.chunk);
			d = c.remote.near_ranks[n];
			to = ep_ht_ring_at(c, ep_heap_of(c.g, d), source,
					   hop.chunk % c.areas.ring_chunks,
					   ep_ht_mask_before(mask, i)) +
			     (size_t)hop.part * a.part_bytes;
		}
		ep_ht_hop_spread(mask >> i & 1, to, from, piece.token_bytes + piece.scale_bytes);
	}
	uint32_t own = ep_ht_near_mask(c, hop.from, c.g.index, hop.chunk);

	if (own >> i & 1) {
		uint32_t slot = c.h.recv_base[source] +
				ep_ht_first(c, c.h.recv_start, source, hop.chunk) +
				ep_ht_mask_before(own, i);

		ep_ht_recv_store(a, ep_ht_recv_list(c, slot), slot, piece, from);
	}
}

EP_DEV void ep_ht_hop_receive(const struct ep_ht_dispatch_args &a, const struct ep_ht_hop &hop,
			      const struct ep_ht_piece &piece, uint32_t i,
			      const unsigned char *from)
{
	const struct ep_ht_common &c = a.c;
	uint32_t slot =
		c.h.recv_base[hop.from] + ep_ht_first(c, c.h.recv_start, hop.from, hop.chunk) + i;

	ep_ht_recv_store(a, ep_ht_recv_list(c, slot), slot, piece, from);
}

#endif
