/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput across nodes: the two warps of a block that post to NICs.
 *
 * The *send warp* sends the flows that leave this rank: in dispatch those of its own tokens, to its
 * forwarders; in combine those of the sources that it forwards for. Chunk by chunk it waits until
 * copy warps have staged all parts, and until the receiver has consumed what lay in the chunk's
 * place of its net ring. What it posts is that chunk with those of its bunch that are ready, too,
 * and one signal that announces them all. It also waits for the NIC's completions, half a stage
 * behind, and publishes to copy warps which chunks' places in the stage are free again. Bunches go
 * by several queues in turn, so that one can be sent while a NIC that places rows in any order
 * holds back the signal of another one.
 *
 * The *credit warp* answers for the flows that come to this rank: it waits until copy warps have
 * consumed all parts of a chunk, and posts to the sender now and then how far that is.
 *
 * Neither holds anything that others wait for while it waits itself, but the order of chunks:
 * whoever waits for chunk c of a flow waits for chunks up to c alone.
 */
#ifndef EP_DEVICE_HT_POST_H
#define EP_DEVICE_HT_POST_H

#include "device/ht/units.h"

/* Flows of one direction. */
struct ep_ht_flows {
	const struct ep_ht_flow *flow;
	uint32_t count;
	uint32_t chunks;    /* of each; behind a source's last chunk nothing travels */
	uint32_t parts;     /* of a row */
	uint32_t row_bytes; /* that travel */
	bool own;           /* of this rank's tokens: all of them share the stage of flow 0 */
};

/* Flows of this rank's own tokens, or of the tokens of those that it forwards for. */
EP_DEV struct ep_ht_flows ep_ht_flows_make(const struct ep_ht_common &c, bool own, uint32_t parts,
					   uint32_t row_bytes)
{
	struct ep_ht_flows f;

	f.own = own;
	f.flow = own ? c.remote.forwarders : c.remote.feeds;
	f.count = own ? c.remote.nodes : c.remote.sources;
	f.chunks = own ? ep_ht_chunks(c.num_tokens, EP_HT_CHUNK_SHIFT) : c.h.head->chunks;
	f.parts = parts;
	f.row_bytes = row_bytes;
	return f;
}

/* Tokens of the chunk that travel by flow x. Any lane. */
EP_DEV uint32_t flow_mask(const struct ep_ht_common &c, const struct ep_ht_flows &flows, uint32_t x,
			  uint32_t chunk)
{
	return flows.own ? ep_ht_node_mask(c, x, chunk) : ep_ht_source_mask(c, x, chunk);
}

/* ---- the send warp ---- */

/*
 * A queue to rank r; each wait for it may take half of the timeout, before others give up this
 * rank.
 */
EP_DEV struct ep_mlx5_post queue_open(const struct ep_ht_common &c, uint32_t r, uint32_t channel)
{
	struct ep_mlx5_post p = ep_remote_open(c.g, r, channel);

	p.timeout_ns = c.g.timeout_ns / 2;
	return p;
}

/* Chunks that go to the NIC together. */
struct ep_ht_load {
	uint32_t x; /* the flow */
	uint32_t first;
	uint32_t count;
	uint32_t mask; /* lane i: which tokens of chunk first + i travel */
};

/* Chunks whose rows one call posts, a lane for each row. */
#define EP_HT_CALL (EP_WARP_SIZE / EP_HT_CHUNK)

/* Posts the rows of a load, and the signal that announces all of it. One warp. */
EP_DEV bool rows_post(const struct ep_ht_common &c, const struct ep_op &op,
		      const struct ep_ht_flows &flows, const struct ep_ht_load &load,
		      struct ep_mlx5_post *post)
{
	struct ep_ht_flow flow = flows.flow[load.x];
	uint32_t i = ep_lane() & (EP_HT_CHUNK - 1), done = 0;
	uint32_t channel = ep_ht_rows_channel(c, load.first);
	struct ep_mlx5_signal signal;
	bool ok = true;

	EP_UNROLL(1)
	for (; ok && done < load.count; done += EP_HT_CALL) {
		uint32_t at = done + ep_lane() / EP_HT_CHUNK, chunk = load.first + at;
		uint32_t mask = ep_shfl_u32(EP_FULL_MASK, load.mask, at);
		uint64_t from = ep_ht_stage_off(c, flows.own ? 0 : load.x, chunk, i);
		uint64_t to = ep_ht_net_off(c, flow.there, chunk, i);

		ok = ep_mlx5_put(post, at < load.count && (mask >> i & 1),
				 ep_mlx5_remote(post, EP_MLX5_REGION_HEAP, to),
				 ep_mlx5_local(post, EP_MLX5_REGION_HEAP, from), flows.row_bytes,
				 true);
	}
	if (!ok) {
		return false;
	}
	signal = ep_remote_signal(c.g, *post, flow.peer, channel,
				  ep_remote_signal_off(c.g, channel),
				  ep_remote_signal_word(op, load.first + load.count + 1));
	return ep_mlx5_signal_add(post, signal, false);
}

/* The same if anything travels, and keeps what shows when the NIC has read it. One warp. */
EP_DEV bool load_post(const struct ep_ht_common &c, const struct ep_op &op,
		      const struct ep_ht_flows &flows, const struct ep_ht_load &load)
{
	uint32_t peer = flows.flow[load.x].peer;
	struct ep_mlx5_post p = queue_open(c, peer, ep_ht_rows_channel(c, load.first));

	if (ep_any(EP_FULL_MASK, ep_lane() < load.count && load.mask) &&
	    !rows_post(c, op, flows, load, &p)) {
		ep_ht_queue_failed(c, op, p, peer, EP_WAIT_RDMA_SLOT);
		return false;
	}
	if (ep_lane() < load.count) {
		*ep_ht_posted_at(c, load.x, load.first + ep_lane()) = p.end;
	}
	ep_warp_sync(EP_FULL_MASK);
	return true;
}

/* Chunks of the bunch, from `chunk` on, that have been posted to flow x. One warp. */
EP_DEV uint32_t ht_posted(const struct ep_ht_common &c, const struct ep_op &op,
			  const struct ep_ht_flows &flows, uint32_t x, uint32_t chunk)
{
	uint32_t published = 0;

	if (ep_lane() == 0) {
		uint32_t channel = ep_ht_rows_channel(c, chunk);
		uint64_t word = ep_remote_link_at(c.g, flows.flow[x].peer, channel)->signal;

		published = (uint32_t)(word >> 32) == op.epoch ? (uint32_t)word : 0;
	}
	published = ep_shfl_u32(EP_FULL_MASK, published, 0);
	return published > chunk + 1 ? published - (chunk + 1) : 0;
}

/* Waits until a chunk of flow x is staged, and there is room for it at the receiver. One warp. */
EP_DEV bool chunk_wait(const struct ep_ht_common &c, const struct ep_op &op,
		       const struct ep_ht_flows &flows, uint32_t x, uint32_t chunk)
{
	const uint64_t *staged = ep_ht_staged_at(c, flows.own ? 0 : x, chunk, 0);

	return ep_ht_parts_wait(c, op, staged, flows.parts, chunk) &&
	       (chunk < c.areas.net_chunks ||
		ep_ht_signal_wait(c, op, flows.flow[x].peer, EP_HT_CREDITS,
				  chunk - c.areas.net_chunks + 1, EP_WAIT_HT_CREDIT));
}

/* Is that so by now? Any lane. */
EP_DEV bool chunk_ready(const struct ep_ht_common &c, const struct ep_op &op,
			const struct ep_ht_flows &flows, uint32_t x, uint32_t chunk)
{
	const uint64_t *staged = ep_ht_staged_at(c, flows.own ? 0 : x, chunk, 0);
	bool ready = true;

	for (uint32_t part = 0; ready && part < flows.parts; part++) {
		ready = ep_ht_word_reached(op, staged + part, chunk);
	}
	return ready && (chunk < c.areas.net_chunks ||
			 ep_ht_signal_reached(c, op, flows.flow[x].peer, EP_HT_CREDITS,
					      chunk - c.areas.net_chunks + 1));
}

/*
 * Waits until a chunk can be posted to flow x, and posts it with those of its bunch behind it that
 * can be posted by then: nobody waits for these. Returns how many chunks from `chunk` on have been
 * posted by now; 0: a wait has failed. One warp.
 */
EP_DEV uint32_t chunks_post(const struct ep_ht_common &c, const struct ep_op &op,
			    const struct ep_ht_flows &flows, uint32_t x, uint32_t chunk)
{
	uint32_t shift = c.areas.bunch_shift, at = chunk + ep_lane();
	uint32_t end = ep_min_u32(flows.chunks, ((chunk >> shift) + 1) << shift);
	uint32_t posted = ht_posted(c, op, flows, x, chunk);
	struct ep_ht_load l = { x, chunk, 0, 0 };

	if (posted) {
		return posted;
	}
	l.mask = at < end ? flow_mask(c, flows, x, at) : 0;
	if (ep_shfl_u32(EP_FULL_MASK, l.mask, 0) && !chunk_wait(c, op, flows, x, chunk)) {
		return 0;
	}
	l.count = ep_ctz(~ep_ballot(EP_FULL_MASK, at < end && (at == chunk || !l.mask ||
							       chunk_ready(c, op, flows, x, at))));
	return load_post(c, op, flows, l) ? l.count : 0;
}

/*
 * Waits until the NIC has read all chunks of flow x below `end`, and publishes it: those of the
 * last one's bunch. The bunches before have been waited for, since posting stops at each bunch's
 * end. One warp.
 */
EP_DEV bool chunks_release(const struct ep_ht_common &c, const struct ep_op &op,
			   const struct ep_ht_flows &flows, uint32_t x, uint32_t end)
{
	uint32_t peer = flows.flow[x].peer;

	struct ep_mlx5_post p = queue_open(c, peer, ep_ht_rows_channel(c, end - 1));
	uint64_t posted = ep_lane() == 0 ? *ep_ht_posted_at(c, x, end - 1) : 0;

	posted = ep_shfl_u64(EP_FULL_MASK, posted, 0);
	if (!ep_mlx5_wait(&p, posted, EP_MLX5_ERR_COMPLETION, EP_WAIT_RDMA_COMPLETION)) {
		ep_ht_queue_failed(c, op, p, peer, EP_WAIT_RDMA_COMPLETION);
		return false;
	}
	if (ep_lane() == 0) {
		ep_st_release_sys_u64(ep_ht_released_at(c, x), ep_ht_unit_word(op.epoch, end - 1));
	}
	return true;
}

/* Waits until the NIC has done all that was posted to rank r on the channel. One warp. */
EP_DEV bool queue_end(const struct ep_ht_common &c, const struct ep_op &op, uint32_t r,
		      uint32_t channel)
{
	struct ep_mlx5_post p = queue_open(c, r, channel);

	if (!ep_mlx5_wait(&p, p.end, EP_MLX5_ERR_COMPLETION, EP_WAIT_RDMA_COMPLETION)) {
		ep_ht_queue_failed(c, op, p, r, EP_WAIT_RDMA_COMPLETION);
		return false;
	}
	return true;
}

/*
 * Waits until the NIC has read all that this block has posted in the operation: to any rank what is
 * not rows, and rows of the flows. One warp.
 */
EP_DEV bool post_end(const struct ep_ht_common &c, const struct ep_op &op,
		     const struct ep_ht_flows &flows)
{
	bool ok = true;

	for (uint32_t t = ep_block(); ok && t < ep_ht_turns(c); t += ep_nblocks()) {
		uint32_t r = ep_ht_turn_rank(c, t);

		ok = r == EP_HT_NONE || queue_end(c, op, r, EP_HT_ROWS);
	}
	for (uint32_t x = 0; ok && x < flows.count; x++) {
		uint32_t r = flows.flow[x].peer;

		for (uint32_t q = 1; ok && q <= c.areas.queue_mask && ep_ht_posts_to(c, r); q++) {
			ok = queue_end(c, op, r, EP_HT_ROWS + q);
		}
	}
	return ok;
}

/*
 * Posts weights, or gradients of weights, of `rows` rows to rank r, and their entry: they
 * lie together in the out area, and go to the weight area there. One warp.
 */
EP_DEV bool weights_post(const struct ep_ht_common &c, const struct ep_op &op, uint32_t r,
			 uint32_t rows)
{
	uint64_t row = 4 * (uint64_t)c.width, list = row * c.max_tokens;
	struct ep_mlx5_post p = queue_open(c, r, EP_HT_ROWS);

	if (!rows) {
		return true;
	}
	if (!ep_mlx5_put_signal(
		    &p, ep_lane() == 0,
		    ep_mlx5_remote(&p, EP_MLX5_REGION_HEAP, c.areas.weight_off + list * c.g.rank),
		    ep_mlx5_local(&p, EP_MLX5_REGION_HEAP, c.areas.out_off + list * r),
		    (uint32_t)(rows * row),
		    ep_remote_signal(c.g, p, r, EP_HT_ROWS, ep_remote_signal_off(c.g, EP_HT_ROWS),
				     ep_remote_signal_word(op, 1)))) {
		ep_ht_queue_failed(c, op, p, r, EP_WAIT_RDMA_SLOT);
		return false;
	}
	return true;
}

/*
 * The same to all ranks that this block posts to, when all blocks are ready; `start`: send_start or
 * recv_start, of the rows. One warp.
 */
EP_DEV bool ep_ht_weights_post_all(const struct ep_ht_common &c, const struct ep_op &op,
				   const uint32_t *start)
{
	if (!ep_ht_ready_wait(c, op)) {
		return false;
	}
	for (uint32_t t = ep_block(); t < ep_ht_turns(c); t += ep_nblocks()) {
		uint32_t r = ep_ht_turn_rank(c, t);

		if (r != EP_HT_NONE &&
		    !weights_post(c, op, r, ep_ht_first(c, start, r, ep_ht_table_chunks(c)))) {
			return false;
		}
	}
	return true;
}

/* Releases chunks below `end` of all flows that this block posts. One warp. */
EP_DEV bool ht_release(const struct ep_ht_common &c, const struct ep_op &op,
		       const struct ep_ht_flows &flows, uint32_t end)
{
	bool ok = true;

	for (uint32_t x = 0; ok && x < flows.count; x++) {
		ok = !ep_ht_posts_to(c, flows.flow[x].peer) || chunks_release(c, op, flows, x, end);
	}
	return ok;
}

/*
 * The send warp's work, but for weights. Flows take turns, chunk by chunk; but what is released is
 * so before any of them waits, since flows may share a stage. One warp.
 */
EP_DEV void ep_ht_post(const struct ep_ht_common &c, const struct ep_op &op,
		       const struct ep_ht_flows &flows)
{
	uint32_t window = ep_ht_window(c.areas.stage_chunks), step;
	bool reused = flows.chunks > c.areas.stage_chunks;

	for (uint32_t chunk = 0; chunk < flows.chunks; chunk += step) {
		if (reused && chunk > window && !ht_release(c, op, flows, chunk - window)) {
			return;
		}
		step = flows.chunks - chunk;
		for (uint32_t x = 0; x < flows.count; x++) {
			if (ep_ht_posts_to(c, flows.flow[x].peer)) {
				uint32_t posted = chunks_post(c, op, flows, x, chunk);

				if (!posted) {
					return;
				}
				step = ep_min_u32(step, posted);
			}
		}
	}
	(void)post_end(c, op, flows);
}

/* ---- the credit warp ---- */

/* Posts to the sender of flow x that all chunks below `chunks` are consumed. One warp. */
EP_DEV bool credit_post(const struct ep_ht_common &c, const struct ep_op &op, uint32_t peer,
			uint32_t chunks)
{
	struct ep_mlx5_post p = queue_open(c, peer, EP_HT_CREDITS);

	if (!ep_mlx5_signal_add(&p,
				ep_remote_signal(c.g, p, peer, EP_HT_CREDITS,
						 ep_remote_signal_off(c.g, EP_HT_CREDITS),
						 ep_remote_signal_word(op, chunks)),
				false)) {
		ep_ht_queue_failed(c, op, p, peer, EP_WAIT_RDMA_SLOT);
		return false;
	}
	return true;
}

/* The credit warp's work. No credit is sent that no chunk waits for. One warp. */
EP_DEV void ep_ht_credit(const struct ep_ht_common &c, const struct ep_op &op,
			 const struct ep_ht_flows &flows)
{
	uint32_t step = ep_ht_credit_step(c.areas.net_chunks);

	for (uint32_t chunk = 0; chunk + 1 + c.areas.net_chunks < flows.chunks + step; chunk++) {
		for (uint32_t x = 0; x < flows.count; x++) {
			if (!ep_ht_posts_to(c, flows.flow[x].peer)) {
				continue;
			}
			if (flow_mask(c, flows, x, chunk) &&
			    !ep_ht_parts_wait(c, op, ep_ht_consumed_at(c, x, chunk, 0), flows.parts,
					      chunk)) {
				return;
			}
			if ((chunk + 1) % step == 0 &&
			    !credit_post(c, op, flows.flow[x].peer, chunk + 1)) {
				return;
			}
		}
	}
}

#endif
