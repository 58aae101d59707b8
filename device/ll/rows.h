/* SPDX-License-Identifier: Apache-2.0 */
/* Low latency: where rows and what announces them lie in the heaps, and how parts arrive. */
#ifndef EP_DEVICE_LL_ROWS_H
#define EP_DEVICE_LL_ROWS_H

#include "device/group/quads.h"
#include "device/group/wait.h"
#include "device/ll/ll_layout.h"

#define EP_LL_BATCH 4 /* vecs that a lane keeps in flight */
#define EP_LL_QUAD_VECS (EP_QUAD_BYTES / 16)

EP_DEV bool ep_ll_among(const struct ep_ll_peers &peers, uint32_t r)
{
	return r >= peers.first && r < peers.end;
}

/* Rank r's number among the sources of this rank. */
EP_DEV uint32_t ep_ll_source_of(const struct ep_ll_common &c, uint32_t r)
{
	return r - c.from.first;
}

/*
 * The i-th item of work, when the sources take turns and turn j, which begins with another one each
 * time, is the j-th of each: returns its rank. `after`: which source is the first of turn 0.
 */
EP_DEV uint32_t ep_ll_turn(const struct ep_ll_common &c, uint32_t i, uint32_t after, uint32_t *j)
{
	uint32_t count = c.from.by_count.d, turn;

	*j = ep_div(i, c.from.by_count);
	turn = i - *j * count + *j + after;
	return c.from.first + turn - ep_div(turn, c.from.by_count) * count;
}

/* Packet area of this operation's bank in a heap. */
EP_DEV unsigned char *ep_ll_packets(const struct ep_ll_common &c, const struct ep_op &op,
				    unsigned char *heap)
{
	return heap + c.areas.bank_off[op.bank] + c.areas.packet_off;
}

/* Row `at` of the rows area. */
EP_DEV unsigned char *ep_ll_row(const struct ep_ll_common &c, const struct ep_op &op,
				unsigned char *heap, uint32_t at)
{
	return heap + c.areas.bank_off[op.bank] + c.areas.row_off +
	       (size_t)at * ep_ll_row_stride(c.row_quads, c.lines);
}

/* The flag of a part of that row; rows as bytes. */
EP_DEV uint64_t *ep_ll_row_flag(const struct ep_ll_common &c, const struct ep_op &op,
				unsigned char *heap, uint32_t at, uint32_t part)
{
	uint64_t *flags = (uint64_t *)(heap + c.areas.bank_off[op.bank] + c.areas.flag_off);

	return flags + (size_t)at * EP_LL_MAX_PARTS + part;
}

/* Its content, as that of a line: the epoch, and `flag`. */
EP_DEV uint64_t ep_ll_flag_value(const struct ep_op &op, uint32_t flag)
{
	return (uint64_t)flag << 32 | op.epoch;
}

/* Row `at` of the area where remote peers' rows arrive; offset in any heap. */
EP_DEV uint64_t ep_ll_remote_row(const struct ep_ll_common &c, const struct ep_op &op, uint32_t at)
{
	return c.areas.bank_off[op.bank] + c.areas.remote_row_off +
	       (uint64_t)at * ep_ll_row_stride(c.row_quads, 0);
}

/* Quads [first, end) of a row that part `part` covers. Late parts may be empty. */
EP_DEV void ep_ll_part(uint32_t quads, uint32_t part_quads, uint32_t part, uint32_t *first,
		       uint32_t *end)
{
	*first = ep_min_u32(part * part_quads, quads);
	*end = ep_min_u32(*first + part_quads, quads);
}

/* Announces a part of a row of bytes that the warp has stored in a heap. One lane per row. */
EP_DEV void ep_ll_announce(const struct ep_ll_common &c, const struct ep_op &op,
			   unsigned char *heap, uint32_t at, uint32_t part, uint32_t flag)
{
	ep_release_fence_sys();
	ep_st_fenced_sys_u64(ep_ll_row_flag(c, op, heap, at, part), ep_ll_flag_value(op, flag));
}

/*
 * Into how many parts the block's warps cut each of `rows` rows that they stage, and the quads of a
 * part.
 */
EP_DEV uint32_t ep_ll_stage_parts(const struct ep_ll_common &c, uint32_t rows, uint32_t tile,
				  uint32_t *part_quads)
{
	uint32_t parts = ep_min_u32(ep_max_u32(ep_nwarps() / rows, 1), c.row_quads / tile);

	parts = ep_max_u32(parts, 1);
	*part_quads = ep_ll_part_quads(c.row_quads, parts, tile);
	return parts;
}

/* N quads of a row as lines, loaded before it is known where they go. */
template <int N> struct ep_ll_lines {
	struct ep_vec16 v[N];
};

/* Nothing looks at what is loaded, so that all loads are on their way together. */
template <int N>
EP_DEV void ep_ll_lines_load(const unsigned char *row, uint32_t first, uint32_t end,
			     struct ep_ll_lines<N> *b)
{
	EP_UNROLL()
	for (int j = 0; j < N; j++) {
		if (first + j < end) {
			ep_ld_line(row + (size_t)(first + j) * EP_QUAD_LINE_BYTES, &b->v[j]);
		}
	}
}

/*
 * Waits until the batch of a dispatched row has arrived: loads all of it again, together, until it
 * has. False when `peer`, who sends it, has failed. One warp; its lanes poll in step, so what one
 * decides holds for all.
 */
template <bool REMOTE, int N>
EP_DEV bool ep_ll_lines_wait(const struct ep_ll_common &c, const struct ep_op &op,
			     const unsigned char *row, uint32_t first, uint32_t end, uint32_t peer,
			     struct ep_ll_lines<N> *b)
{
	struct ep_spin s = ep_spin_start();

	for (;;) {
		bool have = true;

		EP_UNROLL()
		for (int j = 0; j < N; j++) {
			have &= first + j >= end || ep_line_has(b->v[j], op.epoch, op.epoch);
		}
		if (ep_all(EP_FULL_MASK, have)) {
			break;
		}
		if (ep_any(EP_FULL_MASK,
			   !have && ep_wait_give_up<REMOTE>(c.g, op, &s, EP_WAIT_DISPATCH_ROW,
							    peer))) {
			return false;
		}
		ep_ll_lines_load(row, first, end, b);
	}
	EP_UNROLL()
	for (int j = 0; j < N; j++) {
		if (first + j < end) {
			ep_ld_line_settle(row + (size_t)(first + j) * EP_QUAD_LINE_BYTES, &b->v[j]);
		}
	}
	return true;
}

#endif
