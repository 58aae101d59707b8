/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: where units of work, their words and the rows of them lie; and across nodes,
 * where the ends of a flow keep what they publish to one another, and which tokens of a chunk
 * travel. device/ht/ht_layout.h explains units, flows, stages, net rings and return rings.
 */
#ifndef EP_DEVICE_HT_UNITS_H
#define EP_DEVICE_HT_UNITS_H

#include "device/group/remote.h"
#include "device/group/wait.h"
#include "device/ht/ht_layout.h"
#include "device/ht/signs.h"
#include "device/simt/bulk.h"

/*
 * The last two warps of each block, in groups of several nodes: device/ht/post.h. The others copy.
 */
#define EP_HT_ROLES 2

template <bool NODES> EP_DEV uint32_t ep_ht_copy_warps(void)
{
	return ep_nwarps() - (NODES ? EP_HT_ROLES : 0);
}

/* Dispatch: do rows go straight into windows? Combine: are they read there? */
template <bool NODES, typename ARGS> EP_DEV bool ep_ht_windows(const ARGS &a)
{
	return !NODES && a.is_direct;
}

/*
 * ---- which units are a warp's ----
 *
 * The units of a kind are dealt to the warps of all blocks in turn, neighbours to different blocks.
 * Where all warps do both, what is sent is dealt from the first warp on and what is received from
 * the last one on. So a warp that sends one unit more receives one less, as far as that goes.
 */
struct ep_ht_deal {
	uint32_t first;  /* unit; EP_HT_NONE: the warp has none */
	uint32_t stride; /* from unit to unit */
};

/* What is sent, or returned. */
template <bool NODES, typename ARGS> EP_DEV struct ep_ht_deal ep_ht_deal_sent(const ARGS &a)
{
	uint32_t blocks = ep_nblocks(), warps = ep_ht_copy_warps<NODES>();
	struct ep_ht_deal d;

	if (!NODES && a.send_warps) {
		blocks = a.send_blocks;
		warps = a.send_warps;
	}
	d.first = ep_block() < blocks && ep_warp() < warps ? ep_block() + blocks * ep_warp()
							   : EP_HT_NONE;
	d.stride = blocks * warps;
	return d;
}

/*
 * What is received, or summed. Of the warps that receive alone, those of blocks that send nothing
 * come first.
 */
template <bool NODES, typename ARGS> EP_DEV struct ep_ht_deal ep_ht_deal_received(const ARGS &a)
{
	uint32_t blocks = ep_nblocks(), warps = ep_ht_copy_warps<NODES>();
	uint32_t turn = ep_block() + blocks * ep_warp(); /* from the end */
	struct ep_ht_deal d;

	d.stride = blocks * warps;
	if (!NODES && a.send_warps) {
		uint32_t idle = blocks - a.send_blocks; /* blocks that send nothing */

		d.stride -= a.send_blocks * a.send_warps;
		turn -= blocks * a.send_warps;
		if (ep_warp() < a.send_warps) {
			turn = blocks * (warps - a.send_warps) + ep_block() - a.send_blocks +
			       idle * ep_warp();
			turn = ep_block() < a.send_blocks ? EP_HT_NONE : turn;
		}
	}
	d.first = turn == EP_HT_NONE ? EP_HT_NONE : d.stride - 1 - turn;
	return d;
}

/* Chunks of a table of starts, without its end. */
EP_DEV uint32_t ep_ht_table_chunks(const struct ep_ht_common &c)
{
	return ep_ht_chunks(c.max_tokens, c.areas.chunk_shift);
}

/* The rank of a selection's expert. */
EP_DEV uint32_t ep_ht_sel_rank(const struct ep_ht_common &c, uint32_t sel)
{
	return c.roles.first_holder + ep_div(EP_HT_SEL_EXPERT(sel), c.by_local);
}

/* Rank r's number among those that bring tokens; `senders` or more: it brings none. */
EP_DEV uint32_t ep_ht_sender(const struct ep_ht_common &c, uint32_t r)
{
	return r - c.roles.first_sender;
}

/* The same among those that hold experts. */
EP_DEV uint32_t ep_ht_holder(const struct ep_ht_common &c, uint32_t r)
{
	return r - c.roles.first_holder;
}

/*
 * Index of chunk `chunk`'s first row, between this rank and rank r; `start`: recv_ or send_start.
 */
EP_DEV uint32_t ep_ht_first(const struct ep_ht_common &c, const uint32_t *start, uint32_t r,
			    uint32_t chunk)
{
	return start[(size_t)r * (ep_ht_table_chunks(c) + 1) + chunk];
}

/* How many rows it has. */
EP_DEV uint32_t ep_ht_rows(const struct ep_ht_common &c, const uint32_t *start, uint32_t r,
			   uint32_t chunk)
{
	const uint32_t *p = start + (size_t)r * (ep_ht_table_chunks(c) + 1) + chunk;

	return p[1] - p[0];
}

/* The word of a unit in a heap; `off`: arrived_off or credit_off, `r` whose ring or whose word. */
EP_DEV uint64_t *ep_ht_unit_at(const struct ep_ht_common &c, unsigned char *heap, uint64_t off,
			       uint32_t r, uint32_t slot, uint32_t part)
{
	return (uint64_t *)(heap + off) + ((size_t)r * c.areas.ring_chunks + slot) * c.areas.parts +
	       part;
}

/* Whether a word is of `chunk` or a later one. Any lane. */
EP_DEV bool ep_ht_word_reached(const struct ep_op &op, const uint64_t *at, uint32_t chunk)
{
	uint64_t word = ep_ld_acquire_sys_u64(at);

	return (uint32_t)(word >> 32) == op.epoch && (uint32_t)word >= chunk + 1;
}

/* How many rows of the unit of `chunk` are there, by ep_ht_rows_word(). Any lane. */
EP_DEV uint32_t ep_ht_rows_arrived(const struct ep_op &op, const uint64_t *at, uint32_t chunk)
{
	uint64_t word = ep_ld_acquire_sys_u64(at);
	bool its = word >> EP_HT_ROWS_SHIFT ==
		   ep_ht_rows_word(op.epoch, chunk, 0) >> EP_HT_ROWS_SHIFT;

	return its ? (uint32_t)word & ((1u << EP_HT_ROWS_SHIFT) - 1) : 0;
}

/* Row `i` of a chunk in a ring. */
EP_DEV unsigned char *ep_ht_ring_at(const struct ep_ht_common &c, unsigned char *heap, uint32_t r,
				    uint32_t slot, uint32_t i)
{
	size_t row = (((size_t)r * c.areas.ring_chunks + slot) << c.areas.chunk_shift) + i;

	return heap + c.areas.ring_off + row * c.areas.row_stride;
}

/* Weights of row `index` from rank r, or for it. */
EP_DEV float *ep_ht_weights_at(const struct ep_ht_common &c, unsigned char *heap, uint32_t r,
			       uint32_t index)
{
	return (float *)(heap + c.areas.weight_off) + ((size_t)r * c.max_tokens + index) * c.width;
}

/*
 * The chunk before `chunk` that lay in the same slot of the ring between the two ranks; `chunk`
 * itself if there is none. Chunks without rows between the two are skipped by both ends.
 */
EP_DEV uint32_t ep_ht_chunk_before(const struct ep_ht_common &c, const uint32_t *start, uint32_t r,
				   uint32_t chunk)
{
	uint32_t before = chunk;

	while (before >= c.areas.ring_chunks) {
		before -= c.areas.ring_chunks;
		if (ep_ht_rows(c, start, r, before)) {
			return before;
		}
	}
	return chunk;
}

/*
 * Whose word a unit has to wait for before it is written to the ring of rank r: that r has read the
 * unit that lay there before, of chunk *before. NULL: there was none. `start` as above.
 */
EP_DEV const uint64_t *ep_ht_credit_at(const struct ep_ht_common &c, const uint32_t *start,
				       uint32_t r, uint32_t chunk, uint32_t part, uint32_t *before)
{
	*before = ep_ht_chunk_before(c, start, r, chunk);
	if (*before == chunk) {
		return NULL;
	}
	return ep_ht_unit_at(c, c.g.own, c.areas.credit_off, r, chunk % c.areas.ring_chunks, part);
}

/* ---- across nodes ---- */

/* Is rank r of this node? */
EP_DEV bool ep_ht_near(const struct ep_ht_common &c, uint32_t r)
{
	return c.remote.node[r] == EP_HT_NONE;
}

/* Ranks with whom this rank shares rings, and the i-th of them: where there is one node, all. */
template <bool NODES> EP_DEV uint32_t ep_ht_sharers(const struct ep_ht_common &c)
{
	return NODES ? c.remote.near : c.g.nranks;
}

template <bool NODES> EP_DEV uint32_t ep_ht_sharer(const struct ep_ht_common &c, uint32_t i)
{
	return NODES ? c.remote.near_ranks[i] : i;
}

/*
 * The rank that writes rows of a source to this rank's ring, and reads what this rank returns for
 * it.
 */
template <bool NODES>
EP_DEV struct ep_ht_return_ring ep_ht_return_ring_of(const struct ep_ht_common &c, uint32_t source)
{
	struct ep_ht_return_ring self = { source, c.g.rank };

	return NODES ? c.remote.return_rings[source] : self;
}

/*
 * Remote ranks have turns: the first rank of each node, then the second ones, and so on. So the
 * peers of a rank's flows, which have one index in their nodes, belong to different blocks.
 */
EP_DEV uint32_t ht_turn(const struct ep_ht_common &c, uint32_t r)
{
	return c.remote.index[r] * c.remote.nodes + c.remote.node[r];
}

/* The rank whose turn it is, or EP_HT_NONE: that node has fewer ranks. */
EP_DEV uint32_t ep_ht_turn_rank(const struct ep_ht_common &c, uint32_t turn)
{
	uint32_t i = turn / c.remote.nodes, k = turn - i * c.remote.nodes;
	uint32_t at = c.remote.remote_first[k] + i;

	return at < c.remote.remote_first[k + 1] ? c.remote.remote_ranks[at] : EP_HT_NONE;
}

EP_DEV uint32_t ep_ht_turns(const struct ep_ht_common &c)
{
	return c.remote.nodes * c.remote.most;
}

/*
 * Does this block post to remote rank r? Its send warp has that queue, and its credit warp the
 * other one.
 */
EP_DEV bool ep_ht_posts_to(const struct ep_ht_common &c, uint32_t r)
{
	return ht_turn(c, r) % ep_nblocks() == ep_block();
}

/* ---- what travels: bit i of a mask is token i of a chunk ---- */

EP_DEV uint32_t ep_ht_node_mask(const struct ep_ht_common &c, uint32_t node, uint32_t chunk)
{
	return c.h.send_nodes[(size_t)node * c.areas.mask_stride + chunk];
}

/* Tokens of source x that go to the rank with index i here. */
EP_DEV uint32_t ep_ht_near_mask(const struct ep_ht_common &c, uint32_t x, uint32_t i,
				uint32_t chunk)
{
	return c.h.node_masks[((size_t)x * c.remote.near + i) * c.areas.mask_stride + chunk];
}

/* Tokens of source x that go to this node. Any lane. */
EP_DEV uint32_t ep_ht_source_mask(const struct ep_ht_common &c, uint32_t x, uint32_t chunk)
{
	uint32_t mask = 0;

	for (uint32_t i = 0; i < c.remote.near; i++) {
		mask |= ep_ht_near_mask(c, x, i, chunk);
	}
	return mask;
}

/* Tokens of this rank's chunk that go to other nodes. One warp. */
EP_DEV uint32_t ep_ht_nodes_mask(const struct ep_ht_common &c, uint32_t chunk)
{
	uint32_t mask = 0;

	for (uint32_t k = ep_lane(); k < c.remote.nodes; k += EP_WARP_SIZE) {
		mask |= ep_ht_node_mask(c, k, chunk);
	}
	for (uint32_t lanes = 1; lanes < EP_WARP_SIZE; lanes *= 2) {
		mask |= ep_shfl_xor_u32(EP_FULL_MASK, mask, lanes);
	}
	return mask;
}

/* How many tokens of the mask are before token i: its row among those of a chunk. */
EP_DEV uint32_t ep_ht_mask_before(uint32_t mask, uint32_t i)
{
	return ep_popc(mask & ((1u << i) - 1));
}

/* ---- where it lies, as offsets in a heap ---- */

EP_DEV uint64_t ep_ht_net_off(const struct ep_ht_common &c, uint32_t flow, uint32_t chunk,
			      uint32_t i)
{
	size_t slot = (size_t)flow * c.areas.net_chunks + chunk % c.areas.net_chunks;

	return c.areas.net_off + (slot * EP_HT_CHUNK + i) * c.areas.row_stride;
}

EP_DEV uint64_t ep_ht_stage_off(const struct ep_ht_common &c, uint32_t flow, uint32_t chunk,
				uint32_t i)
{
	size_t slot = (size_t)flow * c.areas.stage_chunks + chunk % c.areas.stage_chunks;

	return c.areas.stage_off + (slot * EP_HT_CHUNK + i) * c.areas.row_stride;
}

/* Words of this rank alone. */
EP_DEV uint64_t *ep_ht_staged_at(const struct ep_ht_common &c, uint32_t flow, uint32_t chunk,
				 uint32_t part)
{
	size_t slot = (size_t)flow * c.areas.stage_chunks + chunk % c.areas.stage_chunks;

	return (uint64_t *)(c.g.own + c.areas.staged_off) + slot * c.areas.parts + part;
}

EP_DEV uint64_t *ep_ht_consumed_at(const struct ep_ht_common &c, uint32_t flow, uint32_t chunk,
				   uint32_t part)
{
	size_t slot = (size_t)flow * c.areas.net_chunks + chunk % c.areas.net_chunks;

	return (uint64_t *)(c.g.own + c.areas.consumed_off) + slot * c.areas.parts + part;
}

EP_DEV uint64_t *ep_ht_posted_at(const struct ep_ht_common &c, uint32_t flow, uint32_t chunk)
{
	return (uint64_t *)(c.g.own + c.areas.posted_off) + (size_t)flow * c.areas.stage_chunks +
	       chunk % c.areas.stage_chunks;
}

EP_DEV uint64_t *ep_ht_released_at(const struct ep_ht_common &c, uint32_t flow)
{
	return (uint64_t *)(c.g.own + c.areas.released_off) + flow;
}

/* Weights, or their gradients, that go to rank r: row `index`. */
EP_DEV float *ep_ht_out_weights(const struct ep_ht_common &c, uint32_t r, uint32_t index)
{
	return (float *)(c.g.own + c.areas.out_off) + ((size_t)r * c.max_tokens + index) * c.width;
}

/* The channel by which rows of the chunk go, in any flow. */
EP_DEV uint32_t ep_ht_rows_channel(const struct ep_ht_common &c, uint32_t chunk)
{
	return EP_HT_ROWS + (chunk >> c.areas.bunch_shift & c.areas.queue_mask);
}

/* ---- words that have come ---- */

/* Has remote rank r sent `entries` of this operation on the channel? Any lane. */
EP_DEV bool ep_ht_signal_reached(const struct ep_ht_common &c, const struct ep_op &op, uint32_t r,
				 uint32_t channel, uint32_t entries)
{
	const uint64_t *at = (const uint64_t *)(c.g.own + c.g.remote->signal_off) +
			     (size_t)r * c.g.remote->channels + channel;
	uint64_t value = ep_ld_acquire_sys_u64(at);

	/* 0: no signal yet, in a new heap. The peer may be at a later step by now. */
	return value && value - ep_remote_signal_word(op, entries) < (uint64_t)EP_GROUP_MAX_LEAD
									     << 32;
}

/* Have the rows of chunk `chunk` come from remote rank r? Any lane. */
EP_DEV bool ep_ht_rows_reached(const struct ep_ht_common &c, const struct ep_op &op, uint32_t r,
			       uint32_t chunk)
{
	return ep_ht_signal_reached(c, op, r, ep_ht_rows_channel(c, chunk), chunk + 2);
}

/* ep_ht_signal_reached(), but waits. One warp, all of whose lanes may then read what has come. */
EP_DEV_COLD bool ep_ht_signal_wait(const struct ep_ht_common &c, struct ep_op op, uint32_t r,
				   uint32_t channel, uint32_t entries, enum ep_wait_site site)
{
	bool ok = true;

	if (ep_lane() == 0) {
		struct ep_spin s = ep_spin_start();

		while (ok && !ep_ht_signal_reached(c, op, r, channel, entries)) {
			ok = !ep_ht_give_up<true>(c, op, &s, site, r);
		}
	}
	ep_warp_sync(EP_FULL_MASK);
	return ep_shfl_u32(EP_FULL_MASK, ok, 0) != 0;
}

/*
 * This rank, if the stage of a flow still holds an earlier chunk where this one goes; the lane
 * looks at its share of flows [first, first + flows).
 */
EP_DEV uint32_t ep_ht_stage_missing(const struct ep_ht_common &c, const struct ep_op &op,
				    uint32_t first, uint32_t flows, uint32_t chunk)
{
	uint32_t missing = EP_HT_NONE;

	if (chunk < c.areas.stage_chunks) {
		return EP_HT_NONE;
	}
	for (uint32_t x = first + ep_lane(); x < first + flows; x += EP_WARP_SIZE) {
		if (!ep_ht_word_reached(op, ep_ht_released_at(c, x),
					chunk - c.areas.stage_chunks)) {
			missing = c.g.rank;
		}
	}
	return missing;
}

/* Waits for the words of all parts of a chunk: `first` is that of part 0. One warp. */
EP_DEV bool ep_ht_parts_wait(const struct ep_ht_common &c, const struct ep_op &op,
			     const uint64_t *first, uint32_t parts, uint32_t chunk)
{
	bool ok = true;

	for (uint32_t p = ep_lane(); p < parts; p += EP_WARP_SIZE) {
		struct ep_spin s = ep_spin_start();

		while (ok && !ep_ht_word_reached(op, first + p, chunk)) {
			ok = !ep_ht_give_up<true>(c, op, &s, EP_WAIT_BULK, c.g.rank);
		}
	}
	return ep_all(EP_FULL_MASK, ok);
}

/*
 * All warps of the block have done what the NIC is to read of it. The last block publishes that to
 * the send warps of all. All threads.
 */
EP_DEV void ep_ht_ready_publish(const struct ep_ht_common &c, const struct ep_op &op)
{
	ep_block_sync();
	if (ep_tid() == 0) {
		uint32_t *ready = c.h.scratch + EP_HT_BLOCKS_READY;

		if (ep_atomic_add_acq_rel_gpu_u32(ready, 1) + 1 == ep_nblocks()) {
			ep_st_relaxed_gpu_u32(ready, 0);
			ep_st_release_sys_u32(c.h.scratch + EP_HT_EPOCH_READY, op.epoch);
		}
	}
}

/* Waits until all blocks have done that; false if a wait has failed. One warp. */
EP_DEV bool ep_ht_ready_wait(const struct ep_ht_common &c, const struct ep_op &op)
{
	bool ok = true;

	if (ep_lane() == 0) {
		struct ep_spin s = ep_spin_start();

		while (ok && ep_ld_acquire_sys_u32(c.h.scratch + EP_HT_EPOCH_READY) != op.epoch) {
			ok = !ep_ht_give_up<true>(c, op, &s, EP_WAIT_BULK, c.g.rank);
		}
	}
	return ep_shfl_u32(EP_FULL_MASK, ok, 0) != 0;
}

/*
 * ---- waits for a unit's peers ----
 *
 * The lanes of a warp divide the peers of the unit among them, and each finds one whose word is
 * missing. A warp looks whether the unit is ready, or waits for it.
 */

/* May a unit be loaded: have its rows come, and may they be written where they go? */
enum ep_ht_ready {
	EP_HT_READY,
	EP_HT_LATE,
	EP_HT_FAILED
};

/* A wait for a unit's peers, from look to look. */
struct ep_ht_patience {
	struct ep_spin spin;
	uint32_t before; /* the lane's peer that was missing */
};

EP_DEV struct ep_ht_patience ep_ht_patience_make(void)
{
	struct ep_ht_patience p;

	p.spin = ep_spin_start();
	p.before = EP_HT_NONE;
	return p;
}

/*
 * One look at a unit's peers, of whom each lane has found one that is missing of its share;
 * EP_HT_NONE: none is. With `wait`, between two polls. One warp; the lanes agree. This rank itself
 * is a peer where another of its warps has something to do.
 */
template <bool NODES>
EP_DEV enum ep_ht_ready ep_ht_patience_check(const struct ep_ht_common &c, const struct ep_op &op,
					     struct ep_ht_patience *patience, uint32_t missing,
					     enum ep_wait_site site, bool wait)
{
	bool over = false, ready = ep_all(EP_FULL_MASK, missing == EP_HT_NONE);

	if (ready || (wait && missing != patience->before)) { /* the wait before this one is over */
		patience->before = missing;
		patience->spin = ep_spin_start();
	}
	ep_bulk_fence_global(); /* the engines of others have stored, or read what is overwritten */
	if (ready) {
		return EP_HT_READY;
	}
	ep_spin_polled();
	if (wait && missing != EP_HT_NONE) {
		over = ep_ht_give_up<NODES>(c, op, &patience->spin, site, missing);
	}
	return ep_any(EP_FULL_MASK, over) ? EP_HT_FAILED : EP_HT_LATE;
}

/* Element i of a tensor of counters of `bytes` each, which may be NULL. */
EP_DEV void ep_ht_counter_store(void *counters, uint32_t bytes, uint32_t i, uint32_t v)
{
	if (!counters) {
		return;
	}
	if (bytes == 8) {
		((int64_t *)counters)[i] = v;
	} else {
		((int32_t *)counters)[i] = (int32_t)v;
	}
}

#endif
