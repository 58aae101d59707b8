/* SPDX-License-Identifier: Apache-2.0 */
/* How a launch of low latency shares out blocks, warps, shared memory and parts of rows. */
#include "ep/ll/ll.h"

/*
 * How kernels handle rows of a format: quads that are made together; quads of many rows that a warp
 * takes at a time when dispatch sends and receives (a quad of a quantised row takes longer to put
 * in its places); how many eighths of the blocks send then, and in combine; the kernels. Measured,
 * as what follows: doc/design/measurements.md.
 */
static const struct ll_format {
	uint32_t tile;
	uint32_t most_sent;
	uint32_t most_received;
	uint32_t sending;
	uint32_t returning;
	enum ep_ll_kernel dispatch;
	enum ep_ll_kernel combine; /* of copied rows, that of the first data type */
} ll_formats[EP_ROW_FORMATS] = {
	[EP_ROW_COPIED] = { 1, 4, 3, 2, 2, EP_LL_KERNEL_DISPATCH, EP_LL_KERNEL_COMBINE },
	[EP_ROW_FP8] = { EP_LL_TILE_QUADS, 2, 2, 2, 2, EP_LL_KERNEL_DISPATCH_FP8,
			 EP_LL_KERNEL_COMBINE_FP8 },
	[EP_ROW_MXFP8] = { EP_LL_TILE_QUADS, 2, 2, 2, 4, EP_LL_KERNEL_DISPATCH_MXFP8,
			   EP_LL_KERNELS },
	[EP_ROW_NVFP4] = { 1, 2, 2, 4, 3, EP_LL_KERNEL_DISPATCH_NVFP4, EP_LL_KERNEL_COMBINE_NVFP4 },
};

/* Own tokens: with no more of them latency counts, not how the work is shared out. */
#define LL_FEW 16
/* Of a row, as many as combine's senders take at a time, at most. */
#define LL_LISTED_QUADS 4

/* Tokens of one span: a multiple of 32, at least 32. */
static uint32_t ll_span_tokens(uint32_t topk, uint32_t experts)
{
	uint64_t n = ep_min_u64(EP_LL_SPAN_IDS / topk, EP_LL_SPAN);

	n = ep_min_u64(n, EP_LL_SPAN_BITS / experts * 32);
	return n > 32 ? (uint32_t)n & ~31u : 32;
}

/*
 * Dynamic shared memory of a dispatch. Senders: ids of a span, bits per (expert, token) and per
 * (rank, token), counts per expert and rank, repeated selections, a tile for each warp. Receivers:
 * counts per (source, expert), five words per source.
 */
static uint32_t ll_shared_bytes(const struct ep_shape *shape, uint32_t topk, uint32_t span)
{
	uint32_t r = shape->nranks, experts = shape->roles.holders * shape->nlocal;
	uint32_t scratch = EP_GROUP_MAX_THREADS / 32 * EP_LL_TILE_BYTES;
	uint32_t send = 4 * (span * topk + (experts + r) * (span / 32 + 1)) + 2 * span * topk;
	uint32_t recv = 4 * (shape->roles.senders * shape->nlocal + 5 * r);

	return (uint32_t)ep_max_u64(send + scratch, recv) + 64;
}

/*
 * Rows as bytes: each part of a row is one warp's work and has a flag. As many parts as there are
 * warps for, but no part is less than one of the row's `tiles`: a quad, or an FP8 tile.
 */
static uint32_t ll_flag_parts(uint32_t warps, uint64_t rows, uint32_t tiles)
{
	uint64_t parts = ep_min_u64(warps / ep_max_u64(1, rows), EP_LL_MAX_PARTS);

	return (uint32_t)ep_max_u64(1, ep_min_u64(parts, tiles));
}

static uint32_t ll_flag_warps(const struct ep_ll_geometry *geometry)
{
	return geometry->send_blocks * (geometry->threads / 32);
}

/*
 * Without lines, the parts of returning rows carry flags, and the peers learn in the dispatch how
 * many there will be. The type of the combine is not known then, so both operations reckon with the
 * largest row, and with combine's blocks. With lines both sides cut as they like.
 */
static uint32_t ll_return_parts(const struct ep_ll_operation *op)
{
	return ll_flag_parts(ll_flag_warps(&op->returns), (uint64_t)op->num_tokens * op->topk,
			     ep_ll_row_quads(EP_ROW_COPIED, op->shape.max_token_bytes));
}

/* Without tokens of our own, be ready for as many from the peers as can be. */
static uint64_t ll_plan_tokens(const struct ep_ll_operation *op)
{
	return op->num_tokens ? op->num_tokens : op->shape.max_tokens;
}

/*
 * Rows as lines: how many quads of each of `rows` rows one of `warps` takes at a time. While some
 * warps have nothing to do, less is faster.
 */
static uint32_t ll_warp_quads(uint32_t quads, uint64_t rows, uint32_t warps, uint32_t most)
{
	return (uint32_t)ep_max_u64(1, ep_min_u64(ep_ceil_div(quads * rows, warps), most));
}

/*
 * The same for rows that combine returns, of each of which a warp looks up where it goes: one quad
 * while half the warps can have one, then two, and four where a warp has many to return.
 */
static uint32_t ll_return_quads(const struct ep_ll_operation *op, uint32_t quads, uint32_t warps)
{
	uint64_t all = quads * ll_plan_tokens(op) * (op->shape.roles.senders - 1);

	if (2 * all <= warps) {
		return 1;
	}
	return all <= (uint64_t)8 * warps ? 2 : 4;
}

/* Quads of one row on the wire. */
static uint32_t ll_row_quads(const struct ep_ll_operation *op)
{
	return ep_ll_row_quads(op->format, op->row_bytes);
}

static void ll_plan_dispatch(struct ep_ll_plan *plan, const struct ep_ll_operation *op)
{
	const struct ll_format *format = &ll_formats[op->format];
	uint32_t tile = format->tile, quads = ll_row_quads(op);
	uint32_t warps = op->geometry.threads / 32;

	if (plan->lines) {
		uint64_t rows = ll_plan_tokens(op);
		uint32_t sent =
			ll_warp_quads(quads, rows, plan->send_blocks * warps, format->most_sent);
		uint32_t received = ll_warp_quads(quads, rows * op->shape.roles.senders,
						  plan->recv_blocks * warps, format->most_received);

		plan->parts = ep_ceil_div(quads, ep_max_u64(tile, sent));
		plan->peer_parts = ep_ceil_div(quads, received);
	} else {
		plan->parts =
			ll_flag_parts(ll_flag_warps(&op->geometry), op->num_tokens, quads / tile);
		plan->peer_parts = 1;
	}
	plan->own_direct = op->lines && op->format == EP_ROW_COPIED && op->num_tokens > LL_FEW;
	plan->kernel = format->dispatch;
	plan->row_quads = quads;
	plan->part_quads = ep_ll_part_quads(quads, plan->parts, tile);
	plan->combine_parts = ll_return_parts(op);
	plan->packets = ep_ll_dispatch_packets_make(&op->shape, op->layout, op->topk);
	plan->shared_bytes = ll_shared_bytes(&op->shape, op->topk, plan->span);
}

/*
 * And if parts of rows are listed. Of one token as many rows return as there are experts on other
 * ranks.
 */
static uint32_t ll_listed_quads(const struct ep_ll_operation *op, uint32_t quads, uint32_t warps)
{
	uint64_t rows = ll_plan_tokens(op) * (op->shape.roles.senders - 1);

	if (op->layout == EP_LL_EXPERT_MAJOR) {
		rows = ep_ceil_div(rows * op->topk, op->shape.roles.holders);
	}
	return ll_warp_quads(quads, rows, warps, LL_LISTED_QUADS);
}

static void ll_plan_combine(struct ep_ll_plan *plan, const struct ep_ll_operation *op)
{
	const struct ll_format *format = &ll_formats[op->format];
	uint32_t quads = ll_row_quads(op);
	uint32_t warps = plan->send_blocks * (op->geometry.threads / 32);
	uint32_t tile = op->lines ? 1 : format->tile; /* of lines, any quad can be awaited */

	plan->listed = op->lines && op->format == EP_ROW_COPIED && ll_plan_tokens(op) > LL_FEW;
	if (op->lines) {
		uint32_t returned = plan->listed ? ll_listed_quads(op, quads, warps)
						 : ll_return_quads(op, quads, warps);

		plan->parts = ep_ceil_div(quads, ll_plan_tokens(op) <= 256 ? 1 : 2);
		plan->peer_parts = ep_ceil_div(quads, ep_max_u64(format->tile, returned));
	} else {
		plan->parts = ll_return_parts(op);
		plan->peer_parts = 1;
	}
	plan->kernel = format->combine;
	if (op->format == EP_ROW_COPIED) {
		plan->kernel += op->dtype;
	} else {
		plan->shared_bytes = op->geometry.threads / 32 * EP_LL_TILE_BYTES;
	}
	plan->row_quads = quads;
	plan->part_quads = ep_ll_part_quads(quads, plan->parts, tile);
}

/* Can each quad of our rows have a warp of `blocks`, one of which counts? */
static bool ll_quads_fit(const struct ep_ll_operation *op, uint32_t blocks)
{
	uint64_t quads = (uint64_t)op->num_tokens * ll_row_quads(op);

	return blocks > 1 && quads && !op->remote &&
	       quads <= (blocks - (uint64_t)1) * (op->geometry.threads / 32);
}

/*
 * A half that a rank's role leaves without work has one block, which takes the step. The other half
 * has the rest, unless `few` blocks have all of its work.
 */
static void ll_plan_idle(struct ep_ll_plan *plan, const struct ep_ll_operation *op, bool few)
{
	uint32_t most = few ? 0 : plan->send_blocks + plan->recv_blocks - 1;

	if (op->send_idle) {
		plan->send_blocks = 1;
		plan->recv_blocks = (uint32_t)ep_max_u64(plan->recv_blocks, most);
	}
	if (op->recv_idle) {
		plan->recv_blocks = 1;
		plan->send_blocks = op->send_idle ? 1
						  : (uint32_t)ep_max_u64(plan->send_blocks, most);
	}
	plan->recv_blocks = (uint32_t)ep_min_u64(plan->recv_blocks, op->recv_limit);
}

/*
 * Which blocks send and which receive, out of those of both halves. Of many rows, receivers, who
 * wait for lines, need more warps than senders. Of few, the half that handles this rank's own (it
 * sends them in dispatch and receives them in combine) takes a quarter and the other half what it
 * always has, since peers may have more; blocks without work would only take time to start.
 * Measured: doc/design/measurements.md.
 */
static void ll_plan_blocks(struct ep_ll_plan *plan, const struct ep_ll_operation *op)
{
	uint32_t blocks = op->geometry.send_blocks + op->geometry.recv_blocks, half = blocks / 2;
	uint32_t own = half;

	if (op->geometry.fixed) {
		plan->send_blocks = op->geometry.send_blocks;
		plan->recv_blocks = op->geometry.recv_blocks;
		ll_plan_idle(plan, op, true);
		return;
	}
	if (op->num_tokens <= LL_FEW && !(op->combine && op->format != EP_ROW_COPIED) &&
	    ll_quads_fit(op, blocks / 4)) {
		own = blocks / 4;
	}
	if (op->combine) {
		plan->send_blocks = blocks * ll_formats[op->format].returning / 8;
		if (op->num_tokens <= LL_FEW) {
			plan->send_blocks = (uint32_t)ep_max_u64(plan->send_blocks, half);
		}
	} else {
		plan->send_blocks = op->num_tokens <= LL_FEW
					    ? own
					    : blocks * ll_formats[op->format].sending / 8;
	}
	plan->send_blocks = (uint32_t)ep_max_u64(1, plan->send_blocks);
	plan->recv_blocks = blocks - plan->send_blocks;
	if (own < half) {
		plan->recv_blocks = op->combine ? own : half;
	}
	ll_plan_idle(plan, op, own < half);
}

struct ep_ll_plan ep_ll_plan_make(const struct ep_ll_operation *op)
{
	struct ep_ll_plan p = {
		.lines = op->lines,
		.span = ll_span_tokens(op->topk, op->shape.roles.holders * op->shape.nlocal),
		.channel_tokens = ep_remote_channel_entries(op->num_tokens, op->shape.channels),
		.threads = op->geometry.threads,
	};

	ll_plan_blocks(&p, op);
	if (op->combine) {
		ll_plan_combine(&p, op);
	} else {
		ll_plan_dispatch(&p, op);
	}
	p.peer_part_quads = ep_ll_part_quads(p.row_quads, p.peer_parts,
					     op->combine ? ll_formats[op->format].tile : 1);
	p.kernel += op->remote ? EP_LL_KERNEL_REMOTE : 0;
	return p;
}
