/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Low-latency mode: what host and kernels share. Plain C, included by both.
 *
 * Every rank owns one heap that its peers can write. It holds
 *
 *   progress[R]   8 bytes each, written by peer r: the last step that it has started, and above that
 *                 1 if it has masked us by then, and the number of its MaskCleans
 *   signals[R][C] u64 (remote peers): how far peer r's rows have arrived on its channel c
 *   clean[2][R]   words, 8 bytes {step, round}: arrival at mask clean-ups, even and odd rounds
 *   bank[0..2]    buffers of operations in flight, each with three areas:
 *       packets   only ever 8-byte {data, epoch} words and pairs of them (16-byte packets)
 *       flags     only ever u32 epochs (used when rows travel as bytes)
 *       rows      payload, either only lines or only bytes, for the life of the group
 *       net rows  payload of remote peers, only ever bytes
 *   stage         rows and headers on their way to remote peers; only the own NIC reads it
 *
 * Areas never change their kind: a stale payload in a place that is polled for an epoch could be
 * mistaken for an arrival, stale epochs cannot, because no two operations share an epoch.
 *
 * Steps. Every kernel of the group is one step; all ranks issue the same sequence, so step numbers
 * agree without exchange. The step of an operation's send half is its epoch. A bank may be written
 * for a new operation when every peer has left its previous one, that is, has started a step later
 * than the one that released the bank: progress[peer] > release[bank]. Counters live on the device
 * (struct ep_ll_seq), so captured graphs may be replayed in any mixture.
 *
 * Rows. The wire format of a row is a string of bytes cut into quads of EP_LL_QUAD_BYTES, padded to
 * whole quads. Where all peers are joined by NVLink it travels as lines of 128 bytes: 120 bytes of
 * data and an 8-byte flag that holds the epoch twice. A warp stores a quad as four lines with one
 * instruction, a line arrives whole, so a reader that sees the flag has the data: no fence and no
 * separate flag. (NCCL's LL128 protocol relies on the same property of NVLink.) Elsewhere the same
 * bytes travel without flags, and each part of a row is announced by a u32 flag behind a fence.
 *
 * Dispatch. The sender gives each token one slot per destination rank (ascending token order) and
 * each (token, k) an index among its own selections of that expert. It announces per destination
 * two control packets and L expert counts. With the counts of all sources the receiver knows every
 * row's final place: experts' rows lie in ascending (source rank, token, k) order.
 *
 * Combine. Rows return to the slot token * K + k of the source (rank-major: k is the first k that
 * chose the rank). Rows whose source is this rank stay where they are; the reducer reads them there.
 *
 * Remote peers are those that RDMA reaches. A rank has C channels; channel c has one queue to each
 * remote peer and a piece of the stage, and belongs to one block of a kernel. Its block stages up to
 * EP_LL_NET_BATCH rows, each once, and then its warps post them, each warp to its own peers: the
 * headers, the rows, and a signal. Words that carry their epoch (counts, headers) may arrive in any
 * order; rows count as arrived when the signal says so, which the queue lets arrive last.
 *
 *   signal   epoch << 32 | units of the channel that have arrived, where the unit is a token of the
 *            source (dispatch) or a slot of the source at the returning rank (combine). Channel c
 *            has the units [c * n, (c + 1) * n), n = ceil(all / C). It only grows, also from one
 *            operation to the next, and is compared with >=, within what a rank can be ahead; 0 says
 *            nothing.
 *
 * A further queue per peer, the control queue, carries progress and counts; it belongs to block 0.
 */
#ifndef EP_DEVICE_LL_LAYOUT_H
#define EP_DEVICE_LL_LAYOUT_H

#include <stdint.h>

#if defined(__cplusplus) && !defined(_Static_assert)
#define _Static_assert static_assert
#endif
#ifdef __CUDACC__
#define EP_HOST_DEV static inline __host__ __device__
#else
#define EP_HOST_DEV static inline
#endif

#define EP_LL_MAX_THREADS 512 /* per block; any multiple of 32 up to this */
#define EP_LL_BANKS 3
#define EP_LL_MAX_STAGED (EP_LL_BANKS - 1) /* operations sent but not completed, per group */
#define EP_LL_MAX_RANKS 64
#define EP_LL_MAX_TOPK 32
#define EP_LL_MAX_TOKENS 65535       /* 16 bits in row origins and headers */
#define EP_LL_MAX_LOCAL_EXPERTS 16383 /* 14 bits in headers */
#define EP_LL_MAX_INDEX (1 << 18)    /* B * K: 18 bits in headers */
#define EP_LL_MAX_BLOCKS 512         /* copies of the sequence state */
#define EP_LL_MAX_PARTS 8            /* rows as bytes: flags per row */
#define EP_LL_QUAD_BYTES 480         /* data of four lines */
#define EP_LL_QUAD_LINE_BYTES 512    /* and their size as lines */
/* FP8 rows: a unit is two quads: 7 groups of 128 channels, their 7 fp32 scales, padding. */
#define EP_LL_FP8_UNIT_QUADS 2
#define EP_LL_FP8_UNIT_GROUPS 7
#define EP_LL_FP8_UNIT_CHANNELS (128 * EP_LL_FP8_UNIT_GROUPS)
/* A sending block holds the routing of a window of tokens in shared memory; at most ... */
#define EP_LL_WINDOW 256        /* tokens, */
#define EP_LL_WINDOW_IDS 2048   /* ids, */
#define EP_LL_WINDOW_BITS 8192  /* words of (expert, token) bits. */
#define EP_LL_NET_BATCH 32      /* rows of one half of a channel's stage: one for each lane */
#define EP_LL_MAX_CHANNELS 15
/*
 * Steps that a rank can be ahead of another that has started one. A bank is used again after at
 * most two operations of two steps each, and two more may complete that need nothing of the other:
 * that makes six.
 */
#define EP_LL_MAX_LEAD 8
#define EP_LL_NO_ROW 0xffffffffu
#define EP_LL_ZERO_ROW 0xfffffffeu /* slot_row: did not fit, returns as zeros */

/*
 * Entries of `route`: nothing comes back, a row comes from another rank, where the token had that
 * slot, or the index of a local row.
 */
#define EP_LL_ROUTE_NONE EP_LL_NO_ROW
#define EP_LL_ROUTE_AWAY(rank, slot) (0x80000000u | (slot) << 8 | (rank))
#define EP_LL_ROUTE_IS_AWAY(r) ((r) >> 31)
#define EP_LL_ROUTE_RANK(r) ((r)&0xffu)
#define EP_LL_ROUTE_SLOT(r) ((r) >> 8 & 0xffffu)

enum ep_ll_layout {
	EP_LL_EXPERT_MAJOR = 1, /* values of ncclEpLayout_t */
	EP_LL_RANK_MAJOR = 2
};

enum ep_ll_phase { EP_LL_SEND = 1, EP_LL_RECV = 2 };

enum ep_ll_dtype { EP_LL_BF16, EP_LL_FP16, EP_LL_FP32 };

/* One per block of the largest grid; all copies are equal between kernels. */
struct __attribute__((aligned(16))) ep_ll_seq {
	uint32_t step;                 /* last step taken */
	uint32_t busy;                 /* bit b: bank b holds a staged operation */
	uint32_t release[EP_LL_BANKS]; /* step that released the bank; 0: never used */
	uint32_t next;                 /* bank of the next operation, */
	uint32_t next_release;         /* and its release */
	uint32_t round;                /* number of MaskCleans */
};

/* The word `progress`; `masked`: its reader is not waited for any more. */
EP_HOST_DEV uint64_t ep_ll_telling(uint32_t step, uint32_t round, int masked)
{
	return step | (uint64_t)(masked != 0) << 32 | (uint64_t)round << 33;
}

/* The mask [R] with what is behind it. */
#define EP_LL_MASK_BYTES(nranks) (16 * (uint64_t)(nranks) + 8)

/* Behind the mask: for each rank what it had told when MaskUpdate took it in. */
EP_HOST_DEV uint64_t *ep_ll_forgiven(int32_t *mask, uint32_t nranks)
{
	return (uint64_t *)(mask + (nranks + 1) / 2 * 2);
}

/* Written by the kernels at the head of handle memory. */
struct ep_ll_staged {
	uint32_t bank;
	uint32_t epoch;
	uint32_t pad[2];
};

/* Per source, two packets at the head of the packet area (d0, d1 of each in this order). */
#define EP_LL_CTRL_BYTES 32
/*
 *   packet 0: d0 = rows for this rank, d1 = dispatch parts | combine parts << 16
 *   packet 1: d0 = quads of a row | tokens of a channel << 16, d1 = kind of operation (ep_ll_kind)
 */

/* device -> host, pinned: first failure of each class wins. */
enum ep_ll_record_class {
	EP_LL_RECORD_FATAL, /* a wait expired and masks are off, or peers disagree */
	EP_LL_RECORD_MASKED, /* a wait expired and the peer was masked */
	EP_LL_RECORD_ROUTING, /* an expert id out of range */
	EP_LL_RECORDS
};

enum ep_ll_record_cause {
	EP_LL_CAUSE_TIMEOUT = 1,
	EP_LL_CAUSE_MISMATCH, /* value = peer's word, expected = ours */
	EP_LL_CAUSE_EXPERT_ID, /* value = the id, token and k say where */
	EP_LL_CAUSE_UNSENT, /* the receiving half of an operation whose sending half never ran */
	EP_LL_CAUSE_OVERFLOW, /* value = a local expert with more than expected = R * B rows */
	EP_LL_CAUSE_LEFT, /* the peer has masked us, or goes on without us, value steps ahead */
	EP_LL_CAUSE_UNENDED, /* a queue that was given up does not end; value, expected as below */
	EP_LL_CAUSE_RDMA /* the connection; value = enum ep_mlx5_status, expected = queue pair, or
			  * both 0: the host has given it up */
};

struct ep_ll_record {
	uint32_t valid; /* written last, release, system scope; the host clears it */
	uint32_t cause;
	uint32_t site; /* enum ep_wait_site */
	uint32_t peer;
	uint32_t step;
	uint32_t is_combine;
	uint32_t token;
	uint32_t k;
	int64_t value;
	int64_t expected;
	uint64_t waited_ns;
	uint64_t pad;
};

/* Device memory, one per peer; monotonic. Copied out by the statistics call. */
struct ep_ll_peer_stats {
	uint64_t tx_bytes;
	uint64_t rx_bytes;
	uint64_t tx_rows;
	uint64_t rx_rows;
	uint64_t wait_ns;  /* from kernel start to the arrival of the peer's first word */
	uint64_t wait_max_ns;
	uint64_t ops;
	uint64_t pad;
};

/*
 * Device memory, one per remote peer and queue. Only the warp that owns the queue touches it. (The
 * queue's indices only grow, and so does all here.)
 */
struct ep_ll_link {
	uint64_t told;    /* value of our signal there: of the channel, or our progress */
	uint64_t mark[2]; /* the half of the stage is in use until this index has completed */
	uint64_t pad;
};

/* Group state in device memory that kernels write. */
struct ep_ll_state {
	uint32_t aborted;                    /* a fatal record was written: every wait ends */
	uint32_t record_lock[EP_LL_RECORDS]; /* 0 free; the host frees it after reading */
	uint32_t pad[4];
};

/* n / d by multiplication, for n < 2^31. */
struct ep_div {
	uint32_t d;
	uint32_t mul;
	uint32_t shift;
};

EP_HOST_DEV struct ep_div ep_div_make(uint32_t d)
{
	struct ep_div v = { d, 0, 31 };

	while ((uint64_t)1 << (v.shift - 31) < d) {
		v.shift++;
	}
	v.mul = (uint32_t)((((uint64_t)1 << v.shift) + d - 1) / d);
	return v;
}

EP_HOST_DEV uint32_t ep_div(uint32_t n, struct ep_div v)
{
	return (uint32_t)((uint64_t)n * v.mul >> v.shift);
}

/* What dispatch and combine have in common. Pointers are device addresses. */
struct ep_ll_common {
	uint32_t rank;
	uint32_t nranks;     /* R */
	uint32_t nlocal;     /* L: experts per rank */
	uint32_t topk;       /* K */
	uint32_t max_tokens; /* B */
	uint32_t num_tokens; /* T */
	uint32_t layout;     /* enum ep_ll_layout */
	uint32_t id_bytes;   /* 4 or 8 */
	uint32_t phase;      /* EP_LL_SEND | EP_LL_RECV */
	uint32_t send_blocks; /* blocks 0..send_blocks-1 send, the others receive */
	uint32_t mask_enabled;
	uint32_t row_quads;  /* one row on the wire */
	uint32_t lines;      /* rows travel as lines; the same for all operations of the group */
	uint32_t parts;      /* pieces a row is cut into, at most EP_LL_MAX_PARTS unless lines;
			      * dispatch: of our rows, combine: of the rows that come back to us */
	uint32_t peer_parts; /* lines: pieces of the rows that we receive or return; without lines
			      * the rows' owner decides */
	/* filled in by ep_ll_prepare */
	uint32_t chunk;      /* quads of a part */
	uint32_t peer_chunk;
	struct ep_div by_ranks;
	struct ep_div by_local;
	struct ep_div by_topk;
	struct ep_div by_parts;
	struct ep_div by_peer_parts;
	uint32_t window;     /* dispatch: tokens whose routing a block holds at a time */
	uint64_t timeout_ns;
	int32_t *mask; /* [R], 1 active */
	struct ep_ll_seq *seq;
	struct ep_ll_state *state;
	struct ep_ll_record *records; /* mapped host, [EP_LL_RECORDS] */
	uint32_t *async_error;        /* mapped host word */
	struct ep_ll_peer_stats *stats; /* [R] */
	/* handle memory */
	struct ep_ll_staged *staged;
	uint32_t *src_rows; /* [R] rows received from each source */
	uint32_t *src_parts; /* [R] parts of the rows that return to each source */
	uint32_t *counts;   /* [L] rows of each local expert (expert-major) */
	uint32_t *slot_token; /* [R][B] what a received row was: EP_LL_SLOT */
	uint32_t *slot_row; /* expert-major [R][B][K]: output row of (token, k), NO_ROW, ZERO_ROW */
	uint32_t *route;    /* [B][K]: who returns (token, k), EP_LL_ROUTE_* */
	const void *topk_idx; /* [T][K], int32 or int64 */
	/* byte offsets in a heap */
	uint64_t progress_off;
	uint64_t bank_off[EP_LL_BANKS];
	uint64_t packet_off; /* areas, from the start of a bank */
	uint64_t flag_off;
	uint64_t row_off;
	unsigned char *heap[EP_LL_MAX_RANKS]; /* each rank's heap as mapped here; NULL: remote */
	/* RDMA; all 0 without remote peers */
	uint64_t remote;     /* bit r: rank r is remote */
	uint32_t channels;   /* C: the same on all ranks */
	uint32_t queues;     /* C + 1: per peer, the last is the control queue */
	struct ep_mlx5_qp *qps;   /* [R][queues] */
	struct ep_ll_link *links; /* [R][queues] */
	const uint32_t *down; /* mapped host, [R]: not 0: the connection is of no use any more */
	uint32_t *sent_rows; /* handle memory, [R]: rows sent to each rank */
	uint64_t signal_off; /* in a heap: [R][C] */
	uint64_t net_row_off; /* from the start of a bank */
	uint64_t stage_off;  /* in a heap: per channel two halves, */
	uint64_t stage_half_bytes; /* each with EP_LL_NET_BATCH rows */
	uint64_t stage_header_off; /* and, from the start of the half, headers [R][BATCH] */
	uint64_t post_off;   /* in a heap: what goes out on the control queue, for each rank */
	uint64_t post_stride; /* EP_LL_CTRL_BYTES, then 8 * L bytes */
	uint32_t channel_tokens; /* our tokens of a channel, at least 1; by ep_ll_prepare */
	uint32_t pad1;
};

/* Token, and in rank-major layout the first k that chose this rank. */
#define EP_LL_SLOT(token, k) ((token) | (k) << 16)
#define EP_LL_SLOT_TOKEN(s) ((s)&0xffffu)
#define EP_LL_SLOT_K(s) ((s) >> 16)

struct ep_ll_dispatch_args {
	struct ep_ll_common c;
	const void *tokens;        /* [T][token_bytes] */
	const void *scales;        /* [T][scale_bytes] when scales are forwarded */
	const float *topk_weights; /* [T][K], rank-major */
	void *out_tokens;          /* expert-major [L][R*B], rank-major [R][B] rows */
	void *out_scales;
	float *out_weights; /* [R][B][K] */
	int32_t *out_idx;   /* [R][B][K] */
	int32_t *expert_counts; /* [L] */
	int32_t *src_counts;    /* [R] or NULL */
	uint32_t token_bytes;   /* one row in `tokens` */
	uint32_t out_token_bytes; /* one row in `out_tokens` */
	uint32_t scale_bytes;   /* one row of scales (wire and output); 0: none */
	uint32_t hidden;        /* elements, when quantising */
	uint32_t round_scales;  /* scales rounded up to powers of two */
	uint32_t scale_columns; /* quantised scales are stored [H/128][rows] instead of [rows][H/128] */
	uint32_t expert_id_base; /* added to local ids in out_idx */
	uint32_t combine_parts; /* parts of the rows that will come back to us */
	uint32_t count_off;    /* in the packet area: expert counts [R][L] words */
	uint32_t header_off;   /* headers [R][B] */
	uint32_t header_bytes; /* stride of a header: whole packets */
	struct ep_div by_packets; /* of a header; by ep_ll_dispatch_prepare */
	uint32_t pad;
};

struct ep_ll_combine_args {
	struct ep_ll_common c;
	const void *tokens; /* expert-major [L][R*B], rank-major [R][B] rows */
	void *out_tokens;   /* [T] rows */
	const float *topk_weights; /* [T][K], expert-major */
	uint32_t token_bytes; /* one row of `tokens` and of `out_tokens` */
	uint32_t pad;
};

struct ep_ll_clean_args {
	uint32_t rank;
	uint32_t nranks;
	uint32_t round; /* number of this clean-up, from 1 */
	uint32_t mask_enabled;
	uint64_t timeout_ns;
	int32_t *mask;
	struct ep_ll_seq *seq;
	struct ep_ll_state *state;
	struct ep_ll_record *records;
	uint32_t *async_error;
	uint64_t clean_off; /* in each heap: words of even rounds [R], of odd rounds [R] */
	uint64_t progress_off;
	unsigned char *heap[EP_LL_MAX_RANKS];
	uint64_t remote; /* as in ep_ll_common */
	uint32_t queues;
	uint32_t pad;
	struct ep_mlx5_qp *qps;
	const uint32_t *down;
};

/* What this rank has posted is brought to an end, before its heap is replaced or freed. */
struct ep_ll_drain_args {
	uint32_t rank;
	uint32_t nranks;
	uint32_t queues;
	uint32_t farewell; /* then tell remote peers that this rank leaves */
	uint64_t remote;   /* as in ep_ll_common */
	uint64_t timeout_ns; /* of all waits together */
	uint64_t suspects;   /* ranks that may be dead, ... */
	uint64_t suspect_ns; /* of waits for all of them */
	uint64_t farewell_off; /* a word of 8 bytes in each peer's heap, ... */
	uint64_t farewell_value; /* and what it becomes */
	struct ep_mlx5_qp *qps;
	uint32_t *lost; /* mapped host: a bit for each rank where that failed, [2] */
};

/* Quads of a row of `bytes` copied bytes, and of `hidden` channels quantised to FP8. */
EP_HOST_DEV uint32_t ep_ll_copy_quads(uint32_t bytes)
{
	return (bytes + EP_LL_QUAD_BYTES - 1) / EP_LL_QUAD_BYTES;
}

EP_HOST_DEV uint32_t ep_ll_fp8_quads(uint32_t hidden)
{
	return (hidden + EP_LL_FP8_UNIT_CHANNELS - 1) / EP_LL_FP8_UNIT_CHANNELS *
	       EP_LL_FP8_UNIT_QUADS;
}

/* Bytes of a row in the rows area. */
EP_HOST_DEV uint32_t ep_ll_row_stride(uint32_t quads, uint32_t lines)
{
	return quads * (lines ? EP_LL_QUAD_LINE_BYTES : EP_LL_QUAD_BYTES);
}

/* Tokens of one window: a multiple of 32, at least 32. */
EP_HOST_DEV uint32_t ep_ll_window_tokens(uint32_t topk, uint32_t experts)
{
	uint32_t n = EP_LL_WINDOW_IDS / topk;
	uint32_t bits = EP_LL_WINDOW_BITS / experts * 32;

	n = n < EP_LL_WINDOW ? n : EP_LL_WINDOW;
	n = n < bits ? n : bits;
	return n > 32 ? n & ~31u : 32;
}

/* Units of one channel, of `all`. At least 1, so that one may divide by it. */
EP_HOST_DEV uint32_t ep_ll_channel_units(uint32_t all, uint32_t channels)
{
	return channels && all ? (all + channels - 1) / channels : 1;
}

/*
 * Dynamic shared memory of a dispatch. Senders: ids of a window, bits per (expert, token) and per
 * (rank, token), counts per expert and rank, FP8 staging. Receivers: counts per (source, expert),
 * five words per source.
 */
EP_HOST_DEV uint32_t ep_ll_dispatch_shared_bytes(const struct ep_ll_dispatch_args *a)
{
	uint32_t r = a->c.nranks, experts = r * a->c.nlocal;
	uint32_t w = ep_ll_window_tokens(a->c.topk, experts);
	uint32_t staging = EP_LL_MAX_THREADS / 32 * EP_LL_FP8_UNIT_QUADS * EP_LL_QUAD_BYTES;
	uint32_t send = 4 * (w * a->c.topk + (experts + r) * (w / 32 + 1)) + staging;
	uint32_t recv = 4 * (experts + 5 * r);

	return (send > recv ? send : recv) + 64;
}

/*
 * Fills in what follows from the other fields. `unit`: quads that a part of our rows must hold
 * whole; who receives lines may cut them anywhere.
 */
EP_HOST_DEV void ep_ll_prepare(struct ep_ll_common *c, uint32_t unit)
{
	c->chunk = ((c->row_quads + c->parts - 1) / c->parts + unit - 1) / unit * unit;
	c->peer_chunk = (c->row_quads + c->peer_parts - 1) / c->peer_parts;
	c->by_ranks = ep_div_make(c->nranks);
	c->by_local = ep_div_make(c->nlocal);
	c->by_topk = ep_div_make(c->topk);
	c->by_parts = ep_div_make(c->parts);
	c->by_peer_parts = ep_div_make(c->peer_parts);
	c->window = ep_ll_window_tokens(c->topk, c->nranks * c->nlocal);
	c->channel_tokens = ep_ll_channel_units(c->num_tokens, c->channels);
}

EP_HOST_DEV void ep_ll_dispatch_prepare(struct ep_ll_dispatch_args *a, uint32_t unit)
{
	ep_ll_prepare(&a->c, unit);
	a->by_packets = ep_div_make(a->header_bytes / 16);
}

_Static_assert(sizeof(struct ep_ll_seq) == 32, "ep_ll_seq");
_Static_assert(sizeof(struct ep_ll_staged) == 16, "ep_ll_staged");
_Static_assert(sizeof(struct ep_ll_record) == 64, "ep_ll_record");
_Static_assert(sizeof(struct ep_ll_peer_stats) == 64, "ep_ll_peer_stats");
_Static_assert(sizeof(struct ep_ll_link) == 32, "ep_ll_link");
_Static_assert(sizeof(struct ep_ll_state) == 32, "ep_ll_state");
_Static_assert(sizeof(struct ep_ll_common) == 424 + 8 * EP_LL_MAX_RANKS, "ep_ll_common");
_Static_assert(sizeof(struct ep_ll_dispatch_args) == sizeof(struct ep_ll_common) + 136,
	       "ep_ll_dispatch_args");
_Static_assert(sizeof(struct ep_ll_combine_args) == sizeof(struct ep_ll_common) + 32,
	       "ep_ll_combine_args");

#endif
