/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: what host and kernels share besides the group (device/group/group_layout.h).
 * Plain C, included by both.
 *
 * Routing. ncclEpUpdateHandle makes tables at both ends of every row, and keeps them in handle
 * memory, so that dispatch and combine only move rows. A row of source s goes to rank d if its
 * token has selected an expert of d. The rows from s to d are numbered in the order of tokens: the
 * row's *index*. Their place in the flat order of d is base[s] + index: the row's *slot*. In
 * expert-major layout each of a row's selections has a *place* in d's output. A source learns by
 * the counts of all ranks where its rows belong; it then stores at each destination what each of
 * its rows is.
 *
 * Units. Some consecutive tokens of a source are a *chunk*, EP_HT_CHUNK or, in a group for few
 * tokens on one node, fewer, so that there are units for all SMs; a row is cut into *parts*. A unit
 * of work is one part of the rows of one chunk: one warp moves it.
 *
 * Ring. The heap has, for each rank r, a ring of `ring_chunks` chunks with room for its rows each.
 * In dispatch r is the source, and the receiver copies on what has come; in combine r is the holder
 * that returns the rows of this rank's chunks. Chunk c lies in slot c % ring_chunks. For each slot
 * and part there is a word `arrived`, by which the writer publishes that the unit is there, and at
 * the writer a word `credit`, by which the reader publishes that it has been read: both hold
 * ep_ht_unit_word(). Without a ring, rows go to, or come from, the caller's tensors in windows.
 *
 * One bank. Every kernel is a step and waits at its beginning until all ranks have started it, so
 * that nobody reads any more what the previous step left in the heap. The marks of signatures show
 * that, together with what all ranks must agree in.
 *
 * Across nodes. A row crosses the network once for each node that it goes to. The source writes it
 * to one rank of that node, its *forwarder* there, which writes it to the rings of the node's ranks
 * that it is for. Combine goes the same way back: the forwarder adds what its node's ranks return
 * for a row, and writes the sum to the source. The forwarder, in a node of n ranks, of a source
 * with index i in its own node is the rank with index i % n. A *flow* is what joins a source with
 * its forwarder in one node. Both ends number their flows; the forwarder numbers its sources, the
 * source the nodes.
 *
 * What travels by a flow lies in the sender's *stage*, from which its NIC reads, and arrives in the
 * receiver's *net ring*: chunk c in slot c % stage_chunks, and c % net_chunks, of the flow, and
 * token i of the chunk in row i there. A warp that has stored a unit to the stage publishes it by
 * the word `staged`, and one that has read one from the net ring by the word `consumed`, both as
 * ep_ht_unit_word() in the own heap. A warp for each flow, the *send warp*, hands staged chunks to
 * the NIC, and publishes in `released` up to which chunk the NIC has read the stage. Another one,
 * the *credit warp*, posts to the sender how many chunks have been consumed. Channels of the
 * group's (device/group/group_layout.h) serve all this. On those from EP_HT_ROWS on the entries of
 * an operation are 1 for what is not rows (tables, weights), and c + 2 for chunk c. Each has a
 * signal of its own, which shows nothing of rows that go by others: queue pairs do not wait for
 * each other. On EP_HT_CREDITS entries are chunks that the receiver of rows has consumed.
 *
 * Rings of several flows. A forwarder has rings for its sources' rows, too. In dispatch ring s of a
 * rank holds rows of source s, whoever has written them. In combine ring `i` of a rank with n ranks
 * in its node holds what the rank with index i returns for this rank's tokens, and ring n * (1 + x)
 * + i what it returns for those of source x: a rank's *return ring* number. Words of credit lie
 * with the writer, for dispatch by the reader's return ring number and for combine by the source.
 */
#ifndef EP_DEVICE_HT_LAYOUT_H
#define EP_DEVICE_HT_LAYOUT_H

#include "device/group/group_layout.h"

#define EP_HT_MAX_TOPK 32
#define EP_HT_MAX_EXPERTS 65535 /* 16 bits in ep_ht_sel */
#define EP_HT_CHUNK_SHIFT 3
#define EP_HT_CHUNK                                                                                \
	(1 << EP_HT_CHUNK_SHIFT) /* tokens at most; a row's index is contiguous in a chunk */
#define EP_HT_NONE 0xffffffffu   /* no row, no place: also the end of a list */
#define EP_HT_MAX_THREADS 512
#define EP_HT_COMBINE_THREADS 384 /* at most: they hold sums in registers, */
#define EP_HT_EXPERTS_THREADS 512 /* the same expert-major, on one node, */
#define EP_HT_COMBINE_PART 3584   /* so many bytes of a row at a time */
#define EP_HT_COMBINE_MOST 14336  /* bytes of a part at most */
#define EP_HT_ROUTE_BLOCKS 32     /* at most */
#define EP_HT_COUNTERS 64    /* words at the beginning of scratch, for the blocks of a kernel: */
#define EP_HT_BLOCKS_READY 0 /* how many have come so far; 0 between kernels */
#define EP_HT_EPOCH_READY 1  /* epoch of the last operation to which all have come */
#define EP_HT_SIGN_LOCK 2    /* 1: a thread gives this rank's sign (ht/signs.h) */

enum ep_ht_layout {
	EP_HT_EXPERT_MAJOR = 1, /* values of ncclEpLayout_t */
	EP_HT_FLAT = 3
};

enum ep_ht_dtype {
	EP_HT_BF16,
	EP_HT_FP16,
	EP_HT_FP32,
	EP_HT_MXFP8 /* bf16, whose sums are quantised on their way */
};

/*
 * A selection of one of this rank's tokens: the expert, and which k. A token that names an expert
 * more than once selects it once; the further entries are marked, and only the gradients of weights
 * look at them.
 */
#define EP_HT_SEL(expert, k) ((expert) | (k) << 16)
#define EP_HT_SEL_AGAIN 0x80000000u
#define EP_HT_SEL_EXPERT(s) ((s)&0xffffu)
#define EP_HT_SEL_K(s) ((s) >> 16 & 0x1fu)

_Static_assert(EP_HT_SEL_EXPERT(~0u) == EP_EXPERT_ROWS_MASK &&
		       EP_HT_SEL_AGAIN == EP_EXPERT_ROWS_AGAIN,
	       "ep_expert_rows_form");

/* `arrived` and `credit`: unit of chunk `c`. Two operations never share an epoch. */
EP_HOST_DEV uint64_t ep_ht_unit_word(uint32_t epoch, uint32_t c)
{
	return (uint64_t)epoch << 32 | (c + 1);
}

/*
 * `arrived` of dispatch on one node: so many rows of the unit are there, in their order in the
 * ring.
 */
#define EP_HT_ROWS_SHIFT 4
EP_HOST_DEV uint64_t ep_ht_rows_word(uint32_t epoch, uint32_t c, uint32_t rows)
{
	return (uint64_t)epoch << 32 | c << EP_HT_ROWS_SHIFT | rows;
}

/* Counts of a source: rows for each expert, rows for each rank that holds some, and its tokens. */
EP_HOST_DEV uint32_t ep_ht_counts(uint32_t experts, uint32_t holders)
{
	return experts + holders + 1;
}

/*
 * A row's list of at most `width` entries, as it travels within a node: packets of two entries,
 * each with the epoch. A shorter list ends with EP_HT_NONE, and packets behind that one are not
 * written.
 */
EP_HOST_DEV uint32_t ep_ht_list_bytes(uint32_t width)
{
	return 16 * ((width + 1) / 2);
}

/* Chunks of 1 << shift tokens. */
EP_HOST_DEV uint32_t ep_ht_chunks(uint32_t tokens, uint32_t shift)
{
	return (tokens + (1u << shift) - 1) >> shift;
}

/* Ids, or weights, of so many rows: more than 32 bits count. */
EP_HOST_DEV uint64_t ep_ht_entries(uint32_t rows, uint32_t topk)
{
	return (uint64_t)rows * topk;
}

/*
 * A warp's stage in dynamic shared memory: slots of one part each. All warps of a block have the
 * same number of slots; their barriers lie in front (device/ht/pipe.h).
 */
#define EP_HT_MAX_STAGE_PARTS 32
#define EP_HT_STAGE_ALIGN 128u

EP_HOST_DEV uint32_t ep_ht_stage_align(uint32_t bytes)
{
	return (bytes + EP_HT_STAGE_ALIGN - 1) & ~(EP_HT_STAGE_ALIGN - 1);
}

/* The barriers of a block. */
EP_HOST_DEV uint32_t ep_ht_stage_bars(uint32_t warps, uint32_t slots)
{
	return ep_ht_stage_align(warps * slots * 8);
}

/* Dynamic shared memory of a block of dispatch or combine. */
EP_HOST_DEV uint32_t ep_ht_stage_bytes(uint32_t warps, uint32_t slots, uint32_t part_bytes)
{
	return ep_ht_stage_bars(warps, slots) + warps * slots * ep_ht_stage_align(part_bytes);
}

/*
 * Where few ranks are, each block publishes for itself that it is done; else the last one to end
 * for all of its rank, so that there are not too many words to look at.
 */
#define EP_HT_DONE_RANKS 8u

EP_HOST_DEV uint32_t ep_ht_done_words(uint32_t ranks)
{
	return ranks <= EP_HT_DONE_RANKS ? EP_GROUP_MAX_BLOCKS : 1;
}

/*
 * Where things lie in every rank's heap, as byte offsets. Filled once, with the heap. S senders, H
 * holders (struct ep_ht_roles), P the more of both.
 */
struct ep_ht_areas {
	/*
	 * words {n, epoch} [R][ep_ht_done_words()]: all that one of n blocks of the rank has to
	 * read and write here has been
	 */
	uint64_t done_off;
	/*
	 * words {sign, epoch} [R] of each rank (ht/signs.h); several nodes: then u32 [R], left_at()
	 */
	uint64_t sign_off;
	/*
	 * words {count, epoch} [2][S][E + H + 1]: of each sender: ep_ht_counts(), in turn by steps
	 */
	uint64_t count_off;
	/*
	 * [S][chunks of B + 1] each chunk's first row to this rank: from a rank of this node words
	 * {row, epoch}, else u32 in the first half
	 */
	uint64_t start_off;
	/*
	 * [S][B] what each row is, as recv_sel: from a rank of this node lists of
	 * ep_ht_list_bytes(), else u32 [min(K, L)], side by side
	 */
	uint64_t sel_off;
	uint64_t weight_off;  /* float [P][B][min(K, L)]: of each row's selections */
	uint64_t arrived_off; /* u64 [rings][ring_chunks][parts] */
	uint64_t credit_off;  /* u64 [rings][ring_chunks][parts] */
	uint64_t ended_off;   /* u32: how many of this rank's blocks are done; 0 between kernels */
	uint64_t ring_off;    /* [rings][ring_chunks][1 << chunk_shift] rows of row_stride */
	uint64_t row_stride;  /* bytes of the largest row; a multiple of 128 */
	uint32_t ring_chunks;
	uint32_t parts; /* most parts of a row, for the areas' strides */
	/* a chunk has 1 << chunk_shift tokens; of several nodes EP_HT_CHUNK */
	uint32_t chunk_shift;
	uint32_t list_stride; /* ep_ht_list_bytes() of the widest handle */
	/* Groups of several nodes; F = flows: the most that any rank has, of either kind. */
	uint32_t net_chunks;
	uint32_t stage_chunks;
	uint32_t bunch_shift;
	uint32_t queue_mask;  /* channels for rows, less one */
	uint32_t mask_stride; /* bytes of a list of masks: one for each chunk of B; times 16 */
	uint32_t rings;   /* of a rank: P, or the most return rings, for ring, arrived and credit */
	uint64_t net_off; /* [F][net_chunks][EP_HT_CHUNK] rows */
	uint64_t stage_off;     /* [F][stage_chunks][EP_HT_CHUNK] rows */
	uint64_t staged_off;    /* u64 [F][stage_chunks][parts] */
	uint64_t consumed_off;  /* u64 [F][net_chunks][parts] */
	uint64_t released_off;  /* u64 [F] ep_ht_unit_word() of the last chunk */
	uint64_t posted_off;    /* u64 [F][stage_chunks] end of what was posted of the chunk */
	uint64_t mask_off;      /* u8 [F][ranks of the largest node][mask_stride]: as node_masks */
	uint64_t out_off;       /* words [P][B][min(K, L)]: selections or weights, for the NIC */
	uint64_t out_start_off; /* u32 [H][chunks of B + 1]: as start_off */
	uint64_t out_mask_off;  /* u8 [R][mask_stride]: tokens of a chunk that go to that rank */
	uint64_t out_count_off; /* words {count, epoch} [E + H + 1] of this rank */
	/* Groups for few tokens on one node, else 0 (device/ht/lines.h): */
	uint32_t line_quads; /* of a row as lines, at most */
	uint32_t line_pad;
	uint64_t line_off;        /* [P][B][line_quads] quads as lines */
	uint64_t line_weight_off; /* words {weight, epoch} [P][B][min(K, L)] */
};

/* How an operation cuts rows that travel as lines. */
struct ep_ht_lines {
	uint32_t quads;          /* of a row */
	uint32_t piece_quads;    /* that a warp moves at a time */
	uint32_t send_warps;     /* of a block: the first ones send before they receive */
	struct ep_div by_pieces; /* of a row */
};

/*
 * Of a group with several nodes: channels. Rows have as many as are left, a power of two; what is
 * not rows goes by the first of these.
 */
#define EP_HT_CREDITS 0
#define EP_HT_ROWS 1
#define EP_HT_MOST_QUEUES 8

/* The smallest credit that is worth a message. */
EP_HOST_DEV uint32_t ep_ht_credit_step(uint32_t net_chunks)
{
	return net_chunks < 4 ? 1 : net_chunks / 4;
}

/*
 * A *bunch* is 1 << shift consecutive chunks of a flow: at most 16, and a quarter of the stage if
 * that is a chunk. All rows of a bunch go by one channel, those of the next one by the next; and
 * what one signal announces lies in one bunch.
 */
#define EP_HT_MOST_BUNCH_SHIFT 4

EP_HOST_DEV uint32_t ep_ht_bunch_shift(uint32_t stage_chunks)
{
	uint32_t shift = 0;

	while (shift < EP_HT_MOST_BUNCH_SHIFT && 8u << shift <= stage_chunks) {
		shift++;
	}
	return shift;
}

/*
 * A send warp waits for the NIC to have read what lies so many chunks back: whole bunches, and less
 * than the stage, as what a copy warp waits for lies behind.
 */
EP_HOST_DEV uint32_t ep_ht_window(uint32_t stage_chunks)
{
	uint32_t shift = ep_ht_bunch_shift(stage_chunks);

	return stage_chunks / 2 >> shift << shift;
}

/* One end of a flow. */
struct ep_ht_flow {
	uint32_t peer;  /* rank at the other end */
	uint32_t there; /* the flow's number there */
};

/* The rank that writes rows of source r to this rank, and reads what this rank returns for it. */
struct ep_ht_return_ring {
	uint32_t rank;   /* r itself, or the rank of this node that is its forwarder */
	uint32_t number; /* of the return ring for r and this rank there */
};

/* More for kernels of groups with several nodes. Tables are in device memory. */
struct ep_ht_remote {
	uint32_t near;    /* ranks of this node */
	uint32_t nodes;   /* other nodes */
	uint32_t sources; /* ranks whose forwarder this rank is */
	uint32_t most;    /* ranks of the largest node, for the stride of masks in a heap */
	const struct ep_ht_flow *forwarders;          /* [nodes]; peer: of this rank's tokens */
	const struct ep_ht_flow *feeds;               /* [sources]; peer: the source */
	const struct ep_ht_return_ring *return_rings; /* [R]; of this rank itself: itself */
	const uint32_t *node;         /* [R] which of the other nodes; EP_HT_NONE: this one */
	const uint32_t *index;        /* [R] of each rank in its own node */
	const uint32_t *near_ranks;   /* [near] */
	const uint32_t *remote_ranks; /* [R - near] the others, one node after the other */
	const uint32_t *remote_first; /* [nodes + 1] where each node begins there */
};

#define EP_HT_NO_STAMP UINT64_MAX /* a block has failed: more than any stamp */

/*
 * Head of handle memory, whose stamp the routing kernel writes last of all. Everything that an
 * operation needs is here and behind it, so another handle on the same memory can go on.
 */
struct ep_ht_head {
	uint64_t stamp; /* ep_ht_common.stamp of the routing; 0 or EP_HT_NO_STAMP: none */
	uint32_t num_tokens;
	/* step in which it was made: the same on all ranks, not in another routing */
	uint32_t routing;
	uint32_t rows;   /* that come to this rank: the slots in use, dropped rows left out */
	uint32_t idle;   /* 1: there is a rank to which no rows come; the same on all ranks */
	uint32_t places; /* expert-major: the end of the last zone, at most the limit */
	uint32_t chunks; /* the most that a source has, of all ranks */
	uint32_t total;  /* tokens, or rows of zones with padding: what is dropped included */
	uint32_t pad;
};

/* A zone of an expert-major output. Rows from `kept` on are zeros: padding, and dropped rows. */
struct ep_ht_zone {
	uint32_t first; /* place */
	uint32_t kept;  /* rows that come */
	uint32_t rows;  /* with padding, as far as they are below the limit */
	uint32_t pad;
};

/* Handle memory, as device addresses. Filled once, with the handle. C = chunks of B. */
struct ep_ht_dev_handle {
	struct ep_ht_head *head;
	/*
	 * This rank's tokens. Lists are in ascending order of experts, so of ranks; equal experts
	 * by k.
	 */
	uint32_t *send_sel;   /* [B][K] EP_HT_SEL, EP_HT_NONE ends the list */
	uint32_t *send_row;   /* [B][K] index of the row to the selection's rank; NONE: dropped */
	uint32_t *send_place; /* [B][K] expert-major: place there; NONE: dropped. flat: NULL */
	/*
	 * [R][C + 1] index of the chunk's first row to each rank, dropped ones left out; behind the
	 * last chunk, up to C: the number of rows
	 */
	uint32_t *send_start;
	uint32_t *send_base; /* [R] slot of this rank's row 0 at each rank */
	/* Rows that come to this rank; row i of source s is slot base[s] + i. */
	uint32_t *recv_base;  /* [R + 1] */
	uint32_t *recv_start; /* [R][C + 1] as send_start, by each source */
	/*
	 * [slots][min(K, L)], NONE ends. flat: local expert; expert-major: place, in ascending
	 * order of experts, EP_HT_DROPPED beyond the limit.
	 */
	uint32_t *recv_sel;
	struct ep_ht_zone *zones; /* [L], expert-major; flat: NULL */
	/*
	 * Several nodes, else NULL. Bit i of byte c: token i of chunk c has a row, dropped ones
	 * left out,
	 */
	uint8_t *send_nodes; /* [nodes][mask_stride] own token: to a rank of that node */
	uint8_t *node_masks; /* [sources][near][mask_stride] source's: to that rank of this node */
	/*
	 * Of the group, and zero when that is made (handle memory may hold anything); 16-byte
	 * aligned: u32 [EP_HT_COUNTERS], then what the routing kernel needs.
	 */
	uint32_t *scratch;
};

/* recv_sel: a selection whose place is beyond the limit. It counts as a list entry. */
#define EP_HT_DROPPED 0xfffffffeu

/*
 * Ranks that bring tokens, *senders*, and ranks that hold experts, *holders*: all, unless the group
 * has roles. Tables of handle memory have a row for each rank; in it no rows go to who holds no
 * experts, and none come from who brings no tokens. Areas of a heap have room for those ranks alone
 * whose rows may come there.
 */
struct ep_ht_roles {
	uint32_t first_sender;
	uint32_t senders;
	uint32_t first_holder;
	uint32_t holders;
	uint32_t sender;  /* number of this rank among senders, EP_HT_NONE: it is none; */
	uint32_t holder;  /* and among holders */
	uint32_t readers; /* ranks that learn of this rank's counts: all, or 0: it is no sender */
	uint32_t told;    /* holders that learn of its rows: all, or 0 */
	/* Whose rows come to this rank, and go back from it, in turn: senders, from that one on, */
	uint32_t first_source;
	uint32_t source_end; /* the rank behind the last sender, */
	uint32_t others;     /* without this rank so many; 0: it is no holder */
};

/* Arguments that the three kernels have in common. */
struct ep_ht_common {
	struct ep_dev_group g; /* first */
	/*
	 * Of ring, arrived, credit, weight and out the place of rank 0, by whose rows lie there in
	 * the operation: what is of ranks before the first one that has a place lies before the
	 * area.
	 */
	struct ep_ht_areas areas;
	struct ep_ht_dev_handle h;
	struct ep_ht_remote remote;  /* g.remote NULL: not used */
	struct ep_dev_launch launch; /* all blocks send; both halves */
	/*
	 * Of group and shape: layout, K, alignment, limit; equal for all handles that may share a
	 * routing.
	 */
	uint64_t stamp;
	uint32_t layout;     /* enum ep_ht_layout */
	uint32_t num_tokens; /* T */
	uint32_t max_tokens; /* B */
	uint32_t experts;    /* E */
	uint32_t nlocal;     /* experts of this rank: L, or 0 */
	uint32_t topk;       /* K */
	uint32_t width;      /* min(K, L): selections of a row */
	uint32_t limit;      /* M: slots and places below it; EP_HT_NONE: none */
	/*
	 * Of the tensor with received rows; EP_HT_NONE: as many as may come. An operation whose
	 * head.rows (flat) or head.places is more does nothing but record EP_CAUSE_SHORT.
	 */
	uint32_t given_rows;
	struct ep_div by_local; /* L */
	struct ep_div by_width;
	struct ep_ht_roles roles;
};

/* What the caller wants to know of the rows that come. NULL: not this. */
struct ep_ht_counters {
	void *experts;  /* [L] flat: selections kept; expert-major: zone rows */
	void *offsets;  /* [L] expert-major: first rows of zones */
	void *total;    /* [1] */
	uint32_t bytes; /* of an element of the first two: 4 or 8 */
	uint32_t total_bytes;
};

struct ep_ht_route_args {
	struct ep_ht_common c;
	const void *topk_idx; /* [T][K] */
	uint32_t id_bytes;    /* 4 or 8 */
	uint32_t alignment;   /* of zones: a power of two */
	uint32_t drop;        /* beyond the limit rows are dropped; 0: that is an error */
	struct ep_ht_counters counters;
	struct ep_div by_topk;
};

/*
 * The routing kernel takes so many selections, and so many words of bits, at a time. Its tables of
 * up to EP_HT_ROUTE_TABLE columns, one for each expert and each holder, are in shared memory, else
 * in scratch.
 */
#define EP_HT_ROUTE_IDS 2048u
#define EP_HT_ROUTE_BITS 8192u
#define EP_HT_ROUTE_TABLE 2048u

EP_HOST_DEV uint32_t ep_ht_route_bits(uint32_t columns)
{
	return 8 * columns < EP_HT_ROUTE_BITS ? 8 * columns : EP_HT_ROUTE_BITS;
}

/* Dynamic shared memory of a block of the routing kernel. */
EP_HOST_DEV uint64_t ep_ht_route_shared(uint32_t ranks, uint32_t holders, uint32_t experts)
{
	uint32_t columns = experts + holders;
	uint32_t tables = columns <= EP_HT_ROUTE_TABLE ? 2 * columns : 0;

	return 4 * ((uint64_t)6 * EP_HT_ROUTE_IDS + ep_ht_route_bits(columns) + tables +
		    3 * holders + ranks + 4);
}

/*
 * Bytes of scratch: words {count, epoch} [EP_HT_ROUTE_BLOCKS][ep_ht_counts()], twice: what a block
 * has, and what the blocks before it have together; and large tables.
 */
EP_HOST_DEV uint64_t ep_ht_scratch_bytes(uint32_t holders, uint32_t experts)
{
	uint64_t counts = ep_ht_counts(experts, holders), tables = 2 * (counts - 1);

	return 4 * EP_HT_COUNTERS +
	       EP_HT_ROUTE_BLOCKS *
		       (16 * counts + (experts + holders <= EP_HT_ROUTE_TABLE ? 0 : 4 * tables));
}

/* Where the ranks of the node have a tensor in a window, as mapped here; as EP_LL_DIRECT_RANKS. */
#define EP_HT_DIRECT_RANKS 72

struct ep_ht_dispatch_args {
	struct ep_ht_common c;
	const unsigned char *tokens; /* [T][token_bytes] */
	const unsigned char *scales; /* [T][scale_bytes] */
	const float *topk_weights;   /* [T][K]; NULL: backward */
	unsigned char *out_tokens;
	unsigned char *out_scales;
	float *out_weights; /* flat [rows][K], expert-major [rows]; NULL: backward */
	int64_t *out_idx;   /* flat [rows][K] */
	uint32_t token_bytes;
	uint32_t scale_bytes; /* 0: none. A row in the ring is its token, then its scales */
	uint32_t id_base;     /* added to local experts in out_idx */
	/*
	 * Rows of out_idx and out_weights to be written, from 0, of which those that do not come
	 * are -1 and 0; EP_HT_NONE: as many as come.
	 */
	uint32_t fill_rows;
	uint32_t parts;
	uint32_t part_bytes;  /* of token and scales together; the last part may be shorter */
	uint32_t stage_parts; /* of a warp's stage in shared memory */
	uint32_t is_direct;   /* flat: rows go straight into `direct`; the ring is not used */
	uint32_t zero_to; /* expert-major: rows from the last zone's end to here are zeros, too */
	struct ep_ht_counters counters; /* expert-major, forward */
	uint32_t lag; /* a warp that does both sends c + lag before it receives c; < ring_chunks */
	uint32_t send_blocks; /* the first warps of so many blocks send, and the others receive; */
	uint32_t send_warps;  /* so many of each; 0: all do both */
	struct ep_div by_parts;
	struct ep_ht_lines lines;
	unsigned char *direct[EP_HT_DIRECT_RANKS];        /* out_tokens of each rank */
	unsigned char *direct_scales[EP_HT_DIRECT_RANKS]; /* out_scales */
};

/*
 * Arrivals: a dispatch in the order of experts, which counts for each local expert the rows that
 * have not come. Memory of the caller, as device addresses; the first two are public
 * (nccl_ep/ext.h).
 *
 * What goes from one rank to another, or to itself, is a *list* of rows, in the order of the first
 * expert that each is for at its destination, and of tokens where that is the same. Both ends make
 * it from their own tables. A chunk is 1 << chunk_shift rows of one list, and the ring between the
 * two holds ring_chunks of them, in its slots as of other chunks. A unit is a chunk with all its
 * parts.
 */
struct ep_ht_arrivals {
	uint32_t failed;  /* 1: the dispatch has: what is missing does not come */
	uint32_t experts; /* L */
	uint32_t routing; /* ep_ht_head.routing when the lists were made; 0: there was none */
	uint32_t pad;
};

struct ep_ht_arrival {
	uint32_t missing; /* rows that have not come; the last one's count releases all */
	uint32_t rows;    /* that come */
	uint32_t first;   /* place */
	uint32_t pad;
};

struct ep_ht_dev_arrivals {
	struct ep_ht_arrivals *head;
	struct ep_ht_arrival *experts; /* [L] */
	uint32_t *rows;                /* [2][R] of the lists to each rank, and from it */
	uint32_t *send;                /* [R][B] tokens of the list to each rank */
	uint32_t *recv;                /* [slots] slots of the list from s, from recv_base[s] on */
	uint32_t *send_key;            /* as send and recv, in the order of tokens: first experts */
	uint32_t *recv_key;
	uint16_t *recv_expert; /* as recv_sel: local experts of the places */
	uint32_t *sums;        /* [2][R][L][EP_HT_ORDER_WARPS] */
};

#define EP_HT_ORDER_WARPS 16u
#define EP_HT_ORDER_SHARED 512u /* with more experts of a rank, sums are in the caller's memory */

EP_HOST_DEV uint32_t ep_ht_order_sums(uint32_t nlocal)
{
	return 4 * EP_HT_ORDER_WARPS * nlocal;
}

/* One block for each list, and behind them others for recv_expert. */
struct ep_ht_order_args {
	struct ep_ht_common c;
	struct ep_ht_dev_arrivals arrivals;
};

struct ep_ht_early_args {
	struct ep_ht_dispatch_args d; /* parts of a row are units of their own nowhere here */
	struct ep_ht_dev_arrivals arrivals;
	uint32_t chunk_shift;
	uint32_t ring_chunks;
};

struct ep_ht_combine_args {
	struct ep_ht_common c;
	const unsigned char *tokens; /* received rows [.][token_bytes] */
	unsigned char *out_tokens;   /* [T][token_bytes] */
	const float *in_weights; /* backward: flat [rows][K], expert-major [rows]; NULL: forward */
	float *out_weights;      /* backward: [T][K]; NULL: forward */
	uint32_t token_bytes;
	uint32_t parts;
	uint32_t part_bytes;  /* more than EP_HT_COMBINE_PART: a stage has room for all that is */
	uint32_t stage_parts; /* added to a row */
	uint32_t is_direct;   /* flat: rows are read straight from `direct` */
	uint32_t lag;         /* a warp that does both returns its chunk c + lag before it sums c */
	uint32_t send_blocks; /* the first warps of so many blocks return, and the others sum; */
	uint32_t send_warps;  /* so many of each; 0: all do both */
	uint32_t sum_shift;   /* a chunk's sums are of 1 << sum_shift pieces */
	uint32_t turns;       /* ranks that this rank returns rows to: flat: all others; else all */
	struct ep_div by_parts;
	struct ep_div by_turns; /* or by 1 */
	struct ep_ht_lines lines;
	const unsigned char *direct[EP_HT_DIRECT_RANKS]; /* tokens of each rank */
};

#endif
