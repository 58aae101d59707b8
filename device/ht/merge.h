/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput across nodes, combine: which units there are, what they wait for, where what is
 * added to their rows lies, where the sums go, and who is notified. See device/ht/hop.h for the three
 * kinds.
 */
#ifndef EP_DEVICE_HT_MERGE_H
#define EP_DEVICE_HT_MERGE_H

#include "device/ht/hop.h"

enum ep_ht_combine_kind {
	EP_HT_RETURN,
	EP_HT_MERGE,
	EP_HT_SUM
};

/* Rows of this rank's own experts that stay where they are: nobody has to return them. */
EP_DEV bool ep_ht_stays(const struct ep_ht_common &c, uint32_t holder)
{
	return c.layout == EP_HT_FLAT && holder == c.g.rank;
}

/* ---- which units there are ---- */

EP_DEV struct ep_ht_fan ep_ht_hop_fan(const struct ep_ht_combine_args &a, uint32_t kind)
{
	struct ep_ht_fan f = { a.c.h.head->chunks, a.c.g.nranks, a.parts };

	if (kind == EP_HT_SUM) {
		f.chunks = ep_ht_chunks(a.c.num_tokens, EP_HT_CHUNK_SHIFT);
		f.fan = 1;
	} else if (kind == EP_HT_MERGE) {
		f.fan = a.c.remote.sources;
	}
	return f;
}

EP_DEV uint32_t ep_ht_hop_rows(const struct ep_ht_combine_args &a, struct ep_ht_hop *hop)
{
	const struct ep_ht_common &c = a.c;

	if (hop->kind == EP_HT_SUM) {
		return (1u << ep_min_u32(c.num_tokens - hop->chunk * EP_HT_CHUNK, EP_HT_CHUNK)) - 1;
	}
	if (hop->kind == EP_HT_MERGE) {
		return ep_ht_source_mask(c, hop->from, hop->chunk);
	}
	hop->from += c.g.rank + 1; /* ranks begin with different sources */
	hop->from -= hop->from >= c.g.nranks ? c.g.nranks : 0;
	if (ep_ht_stays(c, c.remote.return_rings[hop->from].rank)) {
		return 0;
	}
	return (1u << ep_ht_rows(c, c.h.recv_start, hop->from, hop->chunk)) - 1;
}

/* ---- what they wait for ---- */

/* The rank that has not yet read what the returned rows would overwrite. One lane. */
EP_DEV uint32_t ep_ht_return_missing(const struct ep_ht_combine_args &a, const struct ep_op &op,
				     const struct ep_ht_hop &hop)
{
	const struct ep_ht_common &c = a.c;
	uint32_t ring = c.remote.return_rings[hop.from].rank, before;

	if (hop.chunk < c.areas.ring_chunks) {
		return EP_HT_NONE;
	}
	before = ep_ht_chunk_before(c, c.h.recv_start, hop.from, hop.chunk);
	if (before == hop.chunk ||
	    ep_ht_word_reached(op,
			       ep_ht_unit_at(c, c.g.own, c.areas.credit_off, hop.from,
					     hop.chunk % c.areas.ring_chunks, hop.part),
			       before)) {
		return EP_HT_NONE;
	}
	return ring;
}

/* The rank of this node, by the lane's share, that has not returned its rows to return ring `ring` + index. */
EP_DEV uint32_t ep_ht_near_missing(const struct ep_ht_combine_args &a, const struct ep_op &op,
				   const struct ep_ht_hop &hop, uint32_t ring)
{
	const struct ep_ht_common &c = a.c;
	uint32_t slot = hop.chunk % c.areas.ring_chunks;

	for (uint32_t i = ep_lane(); i < c.remote.near; i += EP_WARP_SIZE) {
		uint32_t d = c.remote.near_ranks[i];
		bool returns = hop.kind == EP_HT_MERGE
				       ? ep_ht_near_mask(c, hop.from, i, hop.chunk) != 0
				       : ep_ht_rows(c, c.h.send_start, d, hop.chunk) != 0;

		if (returns && !ep_ht_stays(c, d) &&
		    !ep_ht_word_reached(op,
					ep_ht_unit_at(c, c.g.own, c.areas.arrived_off, ring + i,
						      slot, hop.part),
					hop.chunk)) {
			return d;
		}
	}
	return EP_HT_NONE;
}

/* The remote rank, by the lane's share, whose sums, or gradients of weights, have not come. */
EP_DEV uint32_t ep_ht_remote_missing(const struct ep_ht_combine_args &a, const struct ep_op &op,
				     const struct ep_ht_hop &hop)
{
	const struct ep_ht_common &c = a.c;

	for (uint32_t k = ep_lane(); k < c.remote.nodes; k += EP_WARP_SIZE) {
		uint32_t forwarder = c.remote.forwarders[k].peer;

		if (ep_ht_node_mask(c, k, hop.chunk) &&
		    !ep_ht_rows_reached(c, op, forwarder, hop.chunk)) {
			return forwarder;
		}
	}
	for (uint32_t d = ep_lane(); a.in_weights && hop.part == 0 && d < c.g.nranks;
	     d += EP_WARP_SIZE) {
		if (!ep_ht_near(c, d) && ep_ht_rows(c, c.h.send_start, d, hop.chunk) &&
		    !ep_ht_signal_reached(c, op, d, EP_HT_ROWS, 1)) {
			return d;
		}
	}
	return EP_HT_NONE;
}

EP_DEV uint32_t ep_ht_hop_missing(const struct ep_ht_combine_args &a, const struct ep_op &op,
				  const struct ep_ht_hop &hop, enum ep_wait_site *site)
{
	const struct ep_ht_common &c = a.c;
	uint32_t missing;

	*site = EP_WAIT_HT_ROWS;
	if (hop.kind == EP_HT_RETURN) {
		*site = EP_WAIT_HT_CREDIT;
		return ep_lane() == 0 ? ep_ht_return_missing(a, op, hop) : EP_HT_NONE;
	}
	if (hop.kind == EP_HT_MERGE) {
		missing = ep_ht_near_missing(a, op, hop, c.remote.near * (1 + hop.from));
		return missing != EP_HT_NONE ? missing
					     : ep_ht_stage_missing(c, op, hop.from, 1, hop.chunk);
	}
	missing = ep_ht_near_missing(a, op, hop, 0);
	return missing != EP_HT_NONE ? missing : ep_ht_remote_missing(a, op, hop);
}

/* ---- what is added, and where the sum goes ---- */

/* Lanes that have something to add to a row, and where it is. */
struct ep_ht_terms {
	uint32_t mask;
	const unsigned char *from;
};

/* Row `row` of what is returned to a source. */
EP_DEV struct ep_ht_terms ep_ht_return_terms(const struct ep_ht_combine_args &a,
					     const struct ep_ht_hop &hop, uint32_t row)
{
	const struct ep_ht_common &c = a.c;
	uint32_t slot =
		c.h.recv_base[hop.from] + ep_ht_first(c, c.h.recv_start, hop.from, hop.chunk) + row;
	uint32_t place = EP_HT_NONE;
	struct ep_ht_terms t;

	if (c.layout == EP_HT_FLAT) {
		place = ep_lane() == 0 ? slot : EP_HT_NONE;
	} else if (ep_lane() < c.width) {
		place = c.h.recv_sel[(size_t)slot * c.width + ep_lane()];
	}
	t.mask = ep_ballot(EP_FULL_MASK, place < EP_HT_DROPPED);
	t.from = a.tokens + (size_t)place * a.token_bytes + hop.part * a.part_bytes;
	return t;
}

/* Token i of a source, by ranks [32 * round, ...) of this node. */
EP_DEV struct ep_ht_terms ep_ht_merge_terms(const struct ep_ht_combine_args &a,
					    const struct ep_ht_hop &hop, uint32_t i, uint32_t round)
{
	const struct ep_ht_common &c = a.c;
	uint32_t n = round * EP_WARP_SIZE + ep_lane(), mask = 0, row;
	uint32_t source = c.remote.feeds[hop.from].peer;
	struct ep_ht_terms t = { 0, NULL };

	if (n < c.remote.near) {
		mask = ep_ht_near_mask(c, hop.from, n, hop.chunk);
	}
	row = ep_ht_mask_before(mask, i);
	t.mask = ep_ballot(EP_FULL_MASK, mask >> i & 1);
	if (n == c.g.index && c.layout == EP_HT_FLAT) {
		row += c.h.recv_base[source] + ep_ht_first(c, c.h.recv_start, source, hop.chunk);
		t.from = a.tokens + (size_t)row * a.token_bytes;
	} else {
		t.from = ep_ht_ring_at(c, c.g.own, c.remote.near * (1 + hop.from) + n,
				       hop.chunk % c.areas.ring_chunks, row);
	}
	t.from += hop.part * a.part_bytes;
	return t;
}

/* Token i of this rank: of its list, the first entry of each rank of this node and of each other node. */
EP_DEV struct ep_ht_terms ep_ht_sum_terms(const struct ep_ht_combine_args &a,
					  const struct ep_ht_hop &hop, uint32_t i)
{
	const struct ep_ht_common &c = a.c;
	size_t at = ((size_t)hop.chunk * EP_HT_CHUNK + i) * c.topk + ep_lane();
	uint32_t row = EP_HT_NONE, d = c.g.rank, node = EP_HT_NONE, who, alike;
	struct ep_ht_terms t = { 0, NULL };
	bool there;

	if (ep_lane() < c.topk && c.h.send_sel[at] != EP_HT_NONE) {
		row = c.h.send_row[at];
		d = ep_div(EP_HT_SEL_EXPERT(c.h.send_sel[at]), c.by_local);
		node = c.remote.node[d];
	}
	there = row != EP_HT_NONE;
	/* ranks, then nodes, then lanes that have nothing */
	who = !there               ? 2 * EP_GROUP_MAX_RANKS + ep_lane()
	      : node == EP_HT_NONE ? d
				   : EP_GROUP_MAX_RANKS + node;
	alike = ep_match_u32(EP_FULL_MASK, who);
	t.mask = ep_ballot(EP_FULL_MASK, there && ep_ctz(alike) == ep_lane());
	if (!there) {
		return t;
	}
	if (node != EP_HT_NONE) {
		t.from = c.g.own + ep_ht_net_off(c, node, hop.chunk, i);
	} else if (ep_ht_stays(c, d)) {
		t.from = a.tokens + (size_t)(c.h.send_base[d] + row) * a.token_bytes;
	} else {
		t.from = ep_ht_ring_at(c, c.g.own, c.remote.index[d],
				       hop.chunk % c.areas.ring_chunks,
				       row - ep_ht_first(c, c.h.send_start, d, hop.chunk));
	}
	t.from += hop.part * a.part_bytes;
	return t;
}

/* Rounds of terms of each row. */
EP_DEV uint32_t ep_ht_hop_rounds(const struct ep_ht_combine_args &a, const struct ep_ht_hop &hop)
{
	return hop.kind == EP_HT_MERGE ? (a.c.remote.near + EP_WARP_SIZE - 1) / EP_WARP_SIZE : 1;
}

EP_DEV struct ep_ht_terms ep_ht_hop_terms(const struct ep_ht_combine_args &a,
					  const struct ep_ht_hop &hop, uint32_t i, uint32_t round)
{
	return hop.kind == EP_HT_RETURN  ? ep_ht_return_terms(a, hop, i)
	       : hop.kind == EP_HT_MERGE ? ep_ht_merge_terms(a, hop, i, round)
					 : ep_ht_sum_terms(a, hop, i);
}

/* Where the sum of row or token i goes. */
EP_DEV unsigned char *ep_ht_hop_to(const struct ep_ht_combine_args &a, const struct ep_ht_hop &hop,
				   uint32_t i)
{
	const struct ep_ht_common &c = a.c;
	unsigned char *to;

	if (hop.kind == EP_HT_RETURN) {
		struct ep_ht_return_ring ring = c.remote.return_rings[hop.from];

		to = ep_ht_ring_at(c, ep_heap_of(c.g, ring.rank), ring.number,
				   hop.chunk % c.areas.ring_chunks, i);
	} else if (hop.kind == EP_HT_MERGE) {
		to = c.g.own + ep_ht_stage_off(c, hop.from, hop.chunk, i);
	} else {
		to = a.out_tokens + ((size_t)hop.chunk * EP_HT_CHUNK + i) * a.token_bytes;
	}
	return to + hop.part * a.part_bytes;
}

/* ---- who is notified ---- */

/* Ranks of this node may write again where a chunk's rows lay, for source r. */
EP_DEV void ep_ht_near_credit(const struct ep_ht_combine_args &a, const struct ep_op &op,
			      const struct ep_ht_hop &hop, uint32_t source)
{
	const struct ep_ht_common &c = a.c;

	for (uint32_t i = ep_lane(); i < c.remote.near; i += EP_WARP_SIZE) {
		uint32_t d = c.remote.near_ranks[i];
		bool returns = hop.kind == EP_HT_MERGE
				       ? ep_ht_near_mask(c, hop.from, i, hop.chunk) != 0
				       : ep_ht_rows(c, c.h.send_start, d, hop.chunk) != 0;

		if (returns && !ep_ht_stays(c, d)) {
			ep_st_release_sys_u64(
				ep_ht_unit_at(c, ep_heap_of(c.g, d), c.areas.credit_off, source,
					      hop.chunk % c.areas.ring_chunks, hop.part),
				ep_ht_unit_word(op.epoch, hop.chunk));
		}
	}
}

/* All sums of the unit are stored, and all that was added has been read. One warp. */
EP_DEV void ep_ht_hop_publish(const struct ep_ht_combine_args &a, const struct ep_op &op,
			      const struct ep_ht_hop &hop)
{
	const struct ep_ht_common &c = a.c;
	uint64_t word = ep_ht_unit_word(op.epoch, hop.chunk);

	ep_warp_sync(EP_FULL_MASK);
	if (hop.kind == EP_HT_RETURN && ep_lane() == 0) {
		struct ep_ht_return_ring ring = c.remote.return_rings[hop.from];

		ep_st_release_sys_u64(ep_ht_unit_at(c, ep_heap_of(c.g, ring.rank),
						    c.areas.arrived_off, ring.number,
						    hop.chunk % c.areas.ring_chunks, hop.part),
				      word);
	}
	if (hop.kind == EP_HT_MERGE) {
		if (ep_lane() == 0) {
			ep_st_release_sys_u64(ep_ht_staged_at(c, hop.from, hop.chunk, hop.part),
					      word);
		}
		ep_ht_near_credit(a, op, hop, c.remote.feeds[hop.from].peer);
	}
	if (hop.kind == EP_HT_SUM) {
		/* one for each flow: two chunks may be summed in any order if no flow brings both */
		for (uint32_t k = ep_lane(); k < c.remote.nodes; k += EP_WARP_SIZE) {
			if (ep_ht_node_mask(c, k, hop.chunk)) {
				ep_st_release_sys_u64(ep_ht_consumed_at(c, k, hop.chunk, hop.part),
						      word);
			}
		}
		ep_ht_near_credit(a, op, hop, c.g.rank);
	}
}

#endif
