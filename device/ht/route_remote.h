/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Routing of high throughput, what goes to ranks of other nodes. A NIC sends it, so it is written to this
 * rank's own heap first: counts as words with epochs, tables, and masks: which of a chunk's tokens go to a
 * rank. The masks of all ranks of a node go to this rank's forwarder there.
 */
#ifndef EP_DEVICE_HT_ROUTE_REMOTE_H
#define EP_DEVICE_HT_ROUTE_REMOTE_H

#include "device/ht/ht_nodes.h"
#include "device/ht/route_count.h"

/* This rank's counts, for remote ranks. */
EP_DEV uint64_t *ep_ht_out_count(const struct ep_ht_common &c)
{
	return (uint64_t *)(c.g.own + c.areas.out_count_off);
}

/* Returns the part of the tables for remote rank d. */
EP_DEV uint32_t *ep_ht_out_sel(const struct ep_ht_common &c, uint32_t d)
{
	return (uint32_t *)(c.g.own + c.areas.out_off) + (size_t)d * c.max_tokens * c.width;
}

EP_DEV uint32_t *ep_ht_out_start(const struct ep_ht_common &c, uint32_t d)
{
	return (uint32_t *)(c.g.own + c.areas.out_start_off) +
	       (size_t)d * (ep_ht_table_chunks(c) + 1);
}

EP_DEV uint8_t *ep_ht_out_mask(const struct ep_ht_common &c, uint32_t d)
{
	return c.g.own + c.areas.out_mask_off + (size_t)d * c.areas.mask_stride;
}

/*
 * All blocks have left this rank's counts in its heap, and block 0 has seen them (ep_ht_counts_here), with a
 * barrier behind that. They go by the queue of the tables, which another block posts later: the control
 * queue has been left to waits.
 */
EP_DEV_COLD void ep_ht_counts_post(const struct ep_ht_common &c, struct ep_op op,
				   const struct ep_ht_route &route)
{
	uint64_t to = c.areas.count_off + 8 * (uint64_t)c.g.rank * route.counts;

	op.start_ns = ep_time_ns(); /* a peer may have been late until now */
	for (uint32_t r = ep_remote_peer(c.g, ep_warp()); r < c.g.nranks;
	     r = ep_remote_peer(c.g, r + ep_nwarps())) {
		struct ep_mlx5_post p = ep_remote_open(c.g, r, EP_HT_ROWS);

		p.timeout_ns = ep_remote_left(c.g, op, true);
		if (!ep_mlx5_put(&p, ep_lane() == 0, ep_mlx5_remote(&p, EP_MLX5_REGION_SIGNAL, to),
				 ep_mlx5_local(&p, EP_MLX5_REGION_HEAP, c.areas.out_count_off),
				 8 * route.counts, false)) {
			ep_ht_queue_failed(c, op, p, r, EP_WAIT_RDMA_SLOT);
		}
	}
}

/*
 * The tokens of the span's chunk that begins with token `local` that go to remote rank d. `row`: of the first,
 * if it does; rows from kept[d] on are dropped.
 */
EP_DEV void ep_ht_mask_leave(const struct ep_ht_common &c, const struct ep_ht_route &route,
			     uint32_t d, uint32_t local, uint32_t row, uint32_t chunk)
{
	uint32_t bits = route.rank_bits[d * route.words + local / 32] >> (local & 31) & 0xffu,
		 mask = 0;

	for (; bits && row < route.kept[d]; row++) {
		mask |= bits & (0u - bits);
		bits &= bits - 1;
	}
	ep_ht_out_mask(c, d)[chunk] = (uint8_t)mask;
}

/* The same for each other node, from the masks of its ranks. The block has a barrier behind those. */
EP_DEV void ep_ht_span_nodes(const struct ep_ht_common &c, uint32_t w0, uint32_t tokens)
{
	uint32_t first = w0 / EP_HT_CHUNK, chunks = ep_ht_chunks(tokens, EP_HT_CHUNK_SHIFT);

	for (uint32_t k = ep_warp(); k < c.remote.nodes; k += ep_nwarps()) {
		for (uint32_t chunk = first + ep_lane(); chunk < first + chunks;
		     chunk += EP_WARP_SIZE) {
			uint32_t mask = 0;

			for (uint32_t i = c.remote.remote_first[k];
			     i < c.remote.remote_first[k + 1]; i++) {
				mask |= ep_ht_out_mask(c, c.remote.remote_ranks[i])[chunk];
			}
			c.h.send_nodes[(size_t)k * c.areas.mask_stride + chunk] = (uint8_t)mask;
		}
	}
}

/* No tokens, behind the last one's chunk: masks of rank, or node, `row` of `masks`. */
EP_DEV void ep_ht_rest_masks(const struct ep_ht_common &c, uint8_t *masks, uint32_t row)
{
	for (uint32_t chunk = ep_ht_chunks(c.num_tokens, EP_HT_CHUNK_SHIFT) +
			      ep_block() * EP_WARP_SIZE + ep_lane();
	     chunk < c.areas.mask_stride; chunk += ep_nblocks() * EP_WARP_SIZE) {
		masks[(size_t)row * c.areas.mask_stride + chunk] = 0;
	}
}

/* Of all remote ranks, and of all nodes; the blocks share them. */
EP_DEV void ep_ht_rest_nodes(const struct ep_ht_common &c)
{
	for (uint32_t d = ep_warp(); d < c.g.nranks; d += ep_nwarps()) {
		if (ep_rank_remote(c.g, d)) {
			ep_ht_rest_masks(c, c.g.own + c.areas.out_mask_off, d);
		}
	}
	for (uint32_t k = ep_warp(); k < c.remote.nodes; k += ep_nwarps()) {
		ep_ht_rest_masks(c, c.h.send_nodes, k);
	}
}

/* The masks of all ranks of node k go to rank r, the forwarder there. One warp. */
EP_DEV bool ep_ht_masks_post(const struct ep_ht_common &c, struct ep_mlx5_post *post, uint32_t r,
			     uint32_t k)
{
	uint32_t first = c.remote.remote_first[k], n = c.remote.remote_first[k + 1] - first;
	const struct ep_ht_flow *flow = &c.remote.forwarders[k];
	bool ok = true;

	for (uint32_t i0 = 0; flow->peer == r && i0 < n && ok; i0 += EP_WARP_SIZE) {
		uint32_t i = i0 + ep_lane(), d = i < n ? c.remote.remote_ranks[first + i] : 0;
		uint64_t to = c.areas.mask_off +
			      ((uint64_t)flow->there * c.remote.most + i) * c.areas.mask_stride;
		uint64_t from = c.areas.out_mask_off + (uint64_t)d * c.areas.mask_stride;

		ok = ep_mlx5_put(post, i < n, ep_mlx5_remote(post, EP_MLX5_REGION_HEAP, to),
				 ep_mlx5_local(post, EP_MLX5_REGION_HEAP, from),
				 c.areas.mask_stride, true);
	}
	return ok;
}

/* All tables for remote rank r, and the signal behind them. One warp. */
EP_DEV bool ep_ht_tables_post_to(const struct ep_ht_common &c, struct ep_op op,
				 const struct ep_ht_route &route, struct ep_mlx5_post *post,
				 uint32_t r)
{
	uint64_t lists = 4 * (uint64_t)c.max_tokens * c.width;
	uint64_t starts = 4 * ((uint64_t)ep_ht_table_chunks(c) + 1);
	bool first = ep_lane() == 0;
	uint64_t to = first ? c.areas.sel_off + c.g.rank * lists
			    : c.areas.start_off + c.g.rank * starts;
	uint64_t from = first ? c.areas.out_off + r * lists : c.areas.out_start_off + r * starts;
	uint32_t bytes = first ? 4 * route.kept[r] * c.width : (uint32_t)starts;

	return ep_mlx5_put(post, ep_lane() < 2 && bytes,
			   ep_mlx5_remote(post, EP_MLX5_REGION_HEAP, to),
			   ep_mlx5_local(post, EP_MLX5_REGION_HEAP, from), bytes, true) &&
	       ep_ht_masks_post(c, post, r, c.remote.node[r]) &&
	       ep_mlx5_signal_add(post,
				  ep_remote_signal(c.g, *post, r, EP_HT_ROWS,
						   ep_remote_signal_off(c.g, EP_HT_ROWS),
						   ep_remote_signal_word(op, 1)),
				  false);
}

/*
 * The block's part of the tables is written: the last block posts those of all. True: this one. All threads,
 * behind a barrier.
 */
EP_DEV_COLD bool ep_ht_tables_post(const struct ep_ht_common &c, struct ep_op op,
				   const struct ep_ht_route &route)
{
	uint32_t *ready = c.h.scratch + EP_HT_BLOCKS_READY;
	EP_SHARED(uint32_t, last);

	if (ep_tid() == 0) {
		last = ep_atomic_add_acq_rel_gpu_u32(ready, 1) + 1 == ep_nblocks();
		if (last) {
			ep_st_relaxed_gpu_u32(ready, 0);
		}
	}
	ep_block_sync();
	if (!last) {
		return false;
	}
	op.start_ns = ep_time_ns();
	for (uint32_t r = ep_remote_peer(c.g, ep_warp()); r < c.g.nranks;
	     r = ep_remote_peer(c.g, r + ep_nwarps())) {
		struct ep_mlx5_post p = ep_remote_open(c.g, r, EP_HT_ROWS);

		p.timeout_ns = ep_remote_left(c.g, op, true);
		if (!ep_ht_tables_post_to(c, op, route, &p, r)) {
			ep_ht_queue_failed(c, op, p, r, EP_WAIT_RDMA_SLOT);
		}
	}
	return true;
}

/* The next kernel may write what was posted: waits until the NIC has done with it. The same block. */
EP_DEV_COLD void ep_ht_tables_posted(const struct ep_ht_common &c, struct ep_op op)
{
	op.start_ns = ep_time_ns();
	for (uint32_t r = ep_remote_peer(c.g, ep_warp()); r < c.g.nranks;
	     r = ep_remote_peer(c.g, r + ep_nwarps())) {
		struct ep_mlx5_post p = ep_remote_open(c.g, r, EP_HT_ROWS);

		p.timeout_ns = ep_remote_left(c.g, op, true);
		if (!ep_mlx5_quiet(&p)) {
			ep_ht_queue_failed(c, op, p, r, EP_WAIT_RDMA_COMPLETION);
		}
	}
}

/* Keeps the masks that source s has sent, if this rank forwards for it: worker `w` of `workers`. */
EP_DEV void ep_ht_masks_keep(const struct ep_ht_common &c, uint32_t s, uint32_t w, uint32_t workers)
{
	const struct ep_ht_return_ring *ring = &c.remote.return_rings[s];
	uint32_t stride = c.areas.mask_stride, bytes = c.remote.near * stride;

	if (!ep_rank_remote(c.g, s) || ring->rank != c.g.rank) {
		return;
	}
	size_t x = ring->number / c.remote.near - 1;
	const unsigned char *from = c.g.own + c.areas.mask_off + x * c.remote.most * stride;
	uint8_t *to = c.h.node_masks + x * bytes;

	for (uint32_t i = 16 * w; i < bytes; i += 16 * workers) {
		ep_st16(to + i, ep_ld16_fresh(from + i));
	}
}

#endif
