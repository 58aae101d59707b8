/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where everything lies in a low-latency group's heap and in handle memory. The one place that
 * computes it: for allocation, for the kernels' arguments, and for the memory query.
 */
#ifndef EP_EP_LL_HEAP_H
#define EP_EP_LL_HEAP_H

#include <stdbool.h>
#include "core/error.h"
#include "device/ll/layout.h"

/* What the layout depends on besides the top-k. Equal on all ranks. */
struct ep_ll_shape {
	uint32_t nranks;
	uint32_t nlocal;
	uint32_t max_tokens;
	uint32_t max_quads; /* of a row, whatever travels in it */
	uint32_t channels;  /* 0: no rank has remote peers, and there is nothing for them */
};

struct ep_ll_heap {
	uint32_t topk; /* handles of up to this top-k fit; 0: none */
	uint64_t bytes;
	uint64_t progress_off; /* [R], 8 bytes each */
	uint64_t clean_off;
	uint64_t signal_off;      /* [R][channels] */
	struct ep_ll_areas areas; /* areas of a bank end where the next begins */
	uint64_t bank_bytes;
	uint64_t stage_off; /* [channels][2] sides: rows, then headers [R][EP_LL_STAGE_ROWS] */
	uint64_t stage_side_bytes;
};

/* Parts of the packet area of a dispatch, from its start. */
struct ep_ll_dispatch_packets {
	uint32_t count_off;
	uint32_t header_off;
	uint32_t header_bytes;
	uint64_t bytes;
};

struct ep_ll_handle_layout {
	uint64_t pending_off;
	uint64_t src_rows_off;
	uint64_t src_parts_off;
	uint64_t counts_off;
	uint64_t slot_token_off;
	uint64_t slot_row_off;
	uint64_t route_off;
	uint64_t sent_rows_off;
	uint64_t bytes;
};

struct ep_ll_dispatch_packets ep_ll_dispatch_packets_make(const struct ep_ll_shape *shape,
							  uint32_t layout, uint32_t topk);

/* Both layouts, top-k up to `topk`. */
struct ep_ll_heap ep_ll_heap_make(const struct ep_ll_shape *shape, uint32_t topk);

/* The largest top-k up to EP_LL_MAX_TOPK whose heap takes at most `bytes`, topk 0 if none does. */
struct ep_ll_heap ep_ll_heap_make_within(const struct ep_ll_shape *shape, uint64_t bytes);

struct ep_ll_handle_layout ep_ll_handle_layout_make(const struct ep_ll_shape *shape,
						    uint32_t layout, uint32_t topk);

/* Quads of the largest row of `bytes` bytes, copied or quantised, scales included. */
uint32_t ep_ll_max_quads(uint32_t bytes);

/*
 * Rows as bytes: in how many parts rows of `pieces` indivisible pieces are cut, so that `rows` of
 * them keep `warps` warps busy. A part is one warp's work and has a flag.
 *
 * The parts of a combine are told to the peers in the dispatch before it, so they may depend on
 * nothing that is unknown then.
 */
uint32_t ep_ll_parts_choose(uint64_t rows, uint32_t pieces, uint32_t warps);

/*
 * Rows as lines: how many quads one warp takes at a time of each of `tokens` rows of `quads` quads.
 * About 128 items of work in all are fastest while the latency counts, then `most` quads.
 */
uint32_t ep_ll_warp_quads(uint64_t tokens, uint32_t quads, uint32_t most);

/* Quads of a row of `bytes` copied bytes, and of `hidden` channels quantised to FP8. */
uint32_t ep_ll_copy_quads(uint32_t bytes);
uint32_t ep_ll_fp8_quads(uint32_t hidden);

#endif
