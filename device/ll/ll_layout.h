/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low latency: what host and kernels share besides the group (device/group/group_layout.h). Plain
 * C, included by both.
 *
 * The heap holds, behind what every group has,
 *
 *   bank[0..2]    buffers of operations in flight, each with four areas (with remote ranks: 0..1)
 *       packets     only ever 8-byte {data, epoch} words and pairs of them (16-byte packets)
 *       flags       of rows; only ever flags as those of lines (used when rows travel as bytes)
 *       rows        payload of the node's ranks, either only lines or only bytes, for the life of
 *                   the group
 *       remote rows payload of remote ranks, only ever bytes
 *   stage         rows and headers on their way to remote peers; only the own NIC reads it
 *
 * Areas never change their kind: a stale payload in a place that is polled for an epoch could be
 * mistaken for an arrival, stale epochs cannot, because no two operations share an epoch.
 *
 * Rows. The wire format of a row is a string of bytes cut into quads of EP_QUAD_BYTES, padded to
 * whole quads. Where all peers are joined by NVLink it travels as lines of 128 bytes: 120 bytes of
 * data and an 8-byte flag: the epoch, and that again, or in combine with the seal of the signature
 * in it. A warp stores a quad as four lines with one instruction, a line arrives whole, so a reader
 * that sees the flag has the data: no fence and no separate flag. (NCCL's LL128 protocol relies on
 * the same property of NVLink.) Elsewhere the same bytes travel without flags, and each part of a
 * row is announced by such a flag behind a fence. A part is what one warp takes of a row at a time.
 *
 * Dispatch. The sender gives each token one slot per destination rank (ascending token order) and
 * each (token, k) an index among its own selections of that expert. It announces per destination
 * two control packets and L expert counts. With the counts of all sources the receiver knows every
 * row's final place: experts' rows lie in ascending (source rank, token, k) order. Many rows of its
 * own a rank takes from the caller's tensor; only their headers pass its heap.
 *
 * Combine. Rows return to the slot token * K + k of the source (rank-major: k is the first k that
 * chose the rank). Rows whose source is this rank stay where they are; the reducer reads them
 * there.
 *
 * Roles. Ranks [first, first + H) hold experts, and ranks [first, first + S) may bring tokens; as a
 * rule both are all. Counts, headers, rows, and what a handle notes of a received row have places
 * for the S alone, by a rank's number among them (its source), rows by its number among those of
 * its node.
 *
 * Remote peers. A channel's block stages up to EP_LL_STAGE_ROWS rows, each once, and then its
 * warps post them, each warp to its own peers: the headers, the rows, and a signal. Rows that go as
 * they are, out of a tensor that the NICs can read, are posted from there and not staged; then the
 * operation lasts until the NICs have read them. Words that carry their epoch (counts, headers) may
 * arrive in any order; rows count as arrived when the signal announces it, which the queue lets
 * arrive last. The entry of a channel is a token of the source in dispatch, and a slot of the
 * source at the returning rank in combine. Channel c has the entries [c * n, (c + 1) * n), n =
 * ceil(all / C).
 */
#ifndef EP_DEVICE_LL_LAYOUT_H
#define EP_DEVICE_LL_LAYOUT_H

#include "device/group/group_layout.h"
#include "device/mlx5/mlx5_layout.h"

#define EP_LL_MAX_TOPK 32
#define EP_LL_MAX_TOKENS 65535        /* 16 bits in row origins and headers */
#define EP_LL_MAX_LOCAL_EXPERTS 16383 /* 14 bits in headers */
#define EP_LL_MAX_INDEX (1 << 18)     /* B * K: 18 bits in headers */
#define EP_LL_MAX_PARTS 8             /* rows as bytes: flags per row */
/* Quantised rows, see formats.h: elements of a quad; quads of e4m3 that are quantised together. */
#define EP_LL_E4M3_ELEMENTS 448
#define EP_LL_E2M1_ELEMENTS 832
#define EP_LL_TILE_QUADS 2
#define EP_LL_TILE_BYTES (EP_LL_TILE_QUADS * EP_QUAD_BYTES)
/* A sending block holds the routing of a span of tokens in shared memory; at most ... */
#define EP_LL_SPAN 256       /* tokens, */
#define EP_LL_SPAN_IDS 2048  /* ids, */
#define EP_LL_SPAN_BITS 8192 /* words of (expert, token) bits. */
#define EP_LL_STAGE_ROWS 32  /* rows of one side of a channel's stage: one for each lane */
#define EP_LL_NO_ROW 0xffffffffu
#define EP_LL_ZERO_ROW 0x7fffffffu /* did not fit, returns as zeros; an index is smaller */

/*
 * Entries of `route`: nothing comes back, a row comes from another rank, where the token had that
 * slot, or the index of a local row, or ZERO_ROW.
 */
#define EP_LL_ROUTE_NONE EP_LL_NO_ROW
#define EP_LL_ROUTE_AWAY(rank, slot) (0x80000000u | (slot) << 10 | (rank))
#define EP_LL_ROUTE_IS_AWAY(r) ((r) >> 31)
#define EP_LL_ROUTE_RANK(r) ((r)&0x3ffu)
#define EP_LL_ROUTE_SLOT(r) ((r) >> 10 & 0xffffu)

/* slot_token: the token, and in rank-major layout the first k that chose this rank. */
#define EP_LL_SLOT(token, k) ((token) | (k) << 16)
#define EP_LL_SLOT_TOKEN(s) ((s)&0xffffu)
#define EP_LL_SLOT_K(s) ((s) >> 16)

enum ep_ll_layout {
	EP_LL_EXPERT_MAJOR = 1, /* values of ncclEpLayout_t */
	EP_LL_RANK_MAJOR = 2
};

/*
 * Per source, two packets at the head of the packet area (d0, d1 of each in this order).
 *   packet 0: d0 = rows for this rank, d1 = dispatch parts | combine parts << 16
 *   packet 1: d0 = tokens of a channel, d1 = hash of the signature
 */
#define EP_LL_CTRL_BYTES 32

/* Where things lie in every rank's heap, as byte offsets. Filled once, with the heap. */
struct ep_ll_areas {
	uint64_t bank_off[EP_GROUP_BANKS];
	uint64_t packet_off; /* areas, from the start of a bank */
	uint64_t flag_off;
	uint64_t row_off;
	uint64_t remote_row_off;
	/* from the start of a side: headers of remote ranks [][STAGE_ROWS] */
	uint64_t stage_header_off;
	uint64_t post_off;    /* in a heap: what goes out on the control queue, for each rank */
	uint64_t post_stride; /* EP_LL_CTRL_BYTES, then 8 * L bytes */
};

/* Handle memory, as device addresses. Filled once, with the handle. */
struct ep_ll_dev_handle {
	uint32_t *src_rows;   /* [R] rows received from each source */
	uint32_t *src_parts;  /* [R] parts of the rows that return to each source */
	uint32_t *sent_rows;  /* [R] rows sent to each rank; with remote ranks only */
	uint32_t *counts;     /* [L] rows of each local expert (expert-major) */
	uint32_t *slot_token; /* [S][B] what a received row was: EP_LL_SLOT */
	uint32_t *slot_row; /* expert-major [S][B][K]: output row of (token, k), NO_ROW, ZERO_ROW */
	uint32_t *route;    /* [B][K]: who returns (token, k), EP_LL_ROUTE_* */
};

/* The ranks [first, end). */
struct ep_ll_peers {
	uint32_t first;
	uint32_t end;
	struct ep_div by_count; /* of no ranks: by 1 */
};

/* Arguments that dispatch and combine have in common. */
struct ep_ll_common {
	struct ep_dev_group g; /* first */
	struct ep_ll_areas areas;
	struct ep_ll_dev_handle h;
	struct ep_dev_launch launch;
	const void *topk_idx; /* [T][K], int32 or int64 */
	uint32_t nlocal;      /* L: experts of a rank that holds some */
	uint32_t topk;        /* K */
	uint32_t max_tokens;  /* B */
	uint32_t num_tokens;  /* T */
	uint32_t layout;      /* enum ep_ll_layout */
	uint32_t id_bytes;    /* 4 or 8 */
	uint32_t row_quads;   /* one row on the wire */
	uint32_t lines;       /* rows travel as lines; the same for all operations of the group */
	uint32_t parts; /* of a row, at most EP_LL_MAX_PARTS unless lines; dispatch: of our rows,
			       * combine: of the rows that come back to us */
	uint32_t peer_parts; /* lines: parts of the rows that we receive or return; without lines
			       * the rows' owner decides */
	uint32_t part_quads; /* quads of a part */
	uint32_t peer_part_quads;
	struct ep_div by_local;
	struct ep_div by_topk;
	struct ep_div by_parts;
	struct ep_div by_peer_parts;
	uint32_t span;           /* dispatch: tokens whose routing a block holds at a time */
	uint32_t channel_tokens; /* our tokens of a channel, at least 1 */
	/*
	 * Who holds experts, as far as this rank sends to them: none unless it may bring tokens.
	 * And who may bring tokens, as far as this rank receives them: none unless it holds
	 * experts.
	 */
	struct ep_ll_peers to;
	struct ep_ll_peers from;
	uint32_t experts;     /* of `to` together */
	uint32_t held;        /* of this rank: L or 0 */
	uint32_t sender;      /* number of this rank among those that may bring tokens, */
	uint32_t near_sender; /* and among those of its node */
	uint32_t expert_rows; /* S * B: an expert has no more, from S ranks that may bring tokens */
	uint32_t pad;
};

struct ep_ll_dispatch_args {
	struct ep_ll_common c;
	const void *tokens;        /* [T][token_bytes] */
	const void *scales;        /* [T][scale_bytes] when scales are forwarded; NVFP4: one fp32 */
	const float *topk_weights; /* [T][K], rank-major */
	void *out_tokens;          /* expert-major [L][S*B], rank-major [S][B] rows */
	void *out_scales;
	float *out_weights;       /* [S][B][K] */
	int32_t *out_idx;         /* [S][B][K] */
	int32_t *expert_counts;   /* [L] */
	int32_t *src_counts;      /* [S] or NULL */
	uint32_t token_bytes;     /* one row in `tokens` */
	uint32_t out_token_bytes; /* one row in `out_tokens` */
	uint32_t scale_bytes;     /* one row of scales (wire and output); 0: none */
	uint32_t scale_words;     /* quantised: of a row of `out_scales` */
	uint32_t round_scales;    /* scales rounded up to powers of two */
	uint32_t scale_columns;   /* FP8 scales are stored [H/128][rows], not [rows][H/128] */
	uint32_t expert_id_base;  /* added to local ids in out_idx */
	uint32_t combine_parts;   /* parts of the rows that will come back to us */
	uint32_t count_off;       /* in the packet area: expert counts [S][L] words */
	uint32_t header_off;      /* headers [S][B] */
	uint32_t header_bytes;    /* stride of a header: whole packets */
	struct ep_div by_packets; /* of a header */
	struct ep_div by_others;  /* sources but this rank, at least 1 */
	uint32_t own_direct;      /* this rank places its own rows from `tokens` */
	uint32_t pad;
	struct ep_mlx5_source source; /* `tokens`, where NICs read rows from it */
};

struct ep_ll_combine_args {
	struct ep_ll_common c;
	const void *tokens;        /* expert-major [L][S*B], rank-major [S][B] rows */
	void *out_tokens;          /* [T] rows */
	const float *topk_weights; /* [T][K], expert-major */
	const float *scales;       /* NVFP4: the global scale of each row of `tokens` */
	uint32_t token_bytes;      /* one row of `tokens` and of `out_tokens` */
	uint32_t others;           /* ranks in c.from but this one */
	struct ep_div by_others;   /* by that, or by 1 */
	uint32_t first_return;     /* of those, to begin with; c.from.end stands for c.from.first */
	uint32_t listed;           /* senders take parts of rows from a list */
	uint32_t pad;
	struct ep_mlx5_source source; /* as in dispatch */
};

/* Bytes of a row in the rows area. */
EP_HOST_DEV uint32_t ep_ll_row_stride(uint32_t quads, uint32_t lines)
{
	return quads * (lines ? EP_QUAD_LINE_BYTES : EP_QUAD_BYTES);
}

/* Quads of a part, when a row of `quads` is cut into `parts` of whole `tile`s. */
EP_HOST_DEV uint32_t ep_ll_part_quads(uint32_t quads, uint32_t parts, uint32_t tile)
{
	return ((quads + parts - 1) / parts + tile - 1) / tile * tile;
}

_Static_assert(EP_LL_ROUTE_RANK(EP_GROUP_MAX_RANKS - 1) == EP_GROUP_MAX_RANKS - 1 &&
		       EP_LL_ROUTE_AWAY(EP_GROUP_MAX_RANKS - 1u, EP_LL_MAX_TOKENS) !=
			       EP_LL_ROUTE_NONE,
	       "EP_LL_ROUTE_AWAY");
_Static_assert(sizeof(struct ep_ll_areas) == 80, "ep_ll_areas");
_Static_assert(sizeof(struct ep_ll_dev_handle) == 56, "ep_ll_dev_handle");
_Static_assert(sizeof(struct ep_ll_common) == sizeof(struct ep_dev_group) + 424, "ep_ll_common");
_Static_assert(sizeof(struct ep_ll_dispatch_args) == sizeof(struct ep_ll_common) + 192,
	       "ep_ll_dispatch_args");
_Static_assert(sizeof(struct ep_ll_combine_args) == sizeof(struct ep_ll_common) + 104,
	       "ep_ll_combine_args");

#endif
