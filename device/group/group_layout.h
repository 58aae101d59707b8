/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations of a group that the host and the kernels of every algorithm share. Plain C, included
 * by both. doc/design/protocol.md has the protocol, with pictures; this is its short form.
 *
 * Every rank owns one heap that its peers write. It begins with
 *
 *   progress[R]   8 bytes each, written by peer r: the last step that r has started, and above that
 *                 1 if r has masked this rank by then, and the round of r's last MaskClean
 *   signatures[EP_SIGNATURE_SLOTS][R]  written by peer r: what it passes to its last steps, each in
 *                 the slot step % EP_SIGNATURE_SLOTS (device/group/signature.h)
 *   clean[2][R]   words of the same form: each rank's call of MaskClean, and each rank's result
 *   signals[R][C] u64 (remote peers): how much of what peer r sends on its channel c has arrived
 *
 * and goes on with what the algorithm keeps there, in banks.
 *
 * Steps. Every kernel of the group is one step. All ranks issue the same sequence of kernels, so
 * step numbers agree without an exchange. The step of an operation's send half is the operation's
 * epoch. A bank may be written for a new operation when every peer has left the bank's previous
 * operation, that is, has started a later step than the one that freed the bank: progress[peer] >
 * freed[bank]. The counters live on the device (struct ep_dev_seq), so captured graphs may be
 * replayed in any mixture.
 *
 * Remote ranks are those that RDMA reaches. A rank has C channels; channel c has one queue to each
 * remote peer and its part of the stage, from which the NIC reads what it sends, and belongs to one
 * block of a kernel. A further queue per peer, the control queue, carries progress, counts and
 * signs and belongs to block 0. What a channel has sent is counted in entries, and announced by
 *
 *   signal   epoch << 32 | entries of the channel that have arrived. It only grows, also from one
 *            operation to the next, and is compared with >=, within what a rank can be ahead; 0
 *            means that nothing was sent yet.
 */
#ifndef EP_DEVICE_GROUP_LAYOUT_H
#define EP_DEVICE_GROUP_LAYOUT_H

#include <stdint.h>
#include "device/group/wait_word.h"
#include "device/simt/language.h"

/* Rows that travel as lines: data of four lines, and their size. */
#define EP_QUAD_BYTES 480
#define EP_QUAD_LINE_BYTES 512

#define EP_GROUP_MAX_RANKS 1024
#define EP_RANKS_WORDS (EP_GROUP_MAX_RANKS / 32)

/* A set of ranks. */
struct ep_ranks {
	uint32_t words[EP_RANKS_WORDS]; /* bit r % 32 of word r / 32: rank r */
};

EP_HOST_DEV uint32_t ep_ranks_has(const struct ep_ranks *ranks, uint32_t r)
{
	return ranks->words[r / 32] >> (r & 31) & 1;
}

EP_HOST_DEV void ep_ranks_add(struct ep_ranks *ranks, uint32_t r)
{
	ranks->words[r / 32] |= 1u << (r & 31);
}

/*
 * Division by a number that a launch fixes, by multiplication: n / d for n < 2^31. A GPU takes some
 * 20 instructions for `/`, this way 3.
 */
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

EP_HOST_DEV uint32_t ep_div(uint32_t n, struct ep_div div)
{
	return (uint32_t)((uint64_t)n * div.mul >> div.shift);
}

#define EP_GROUP_NEAR_RANKS 64   /* whose heaps stand in the kernels' arguments */
#define EP_GROUP_MAX_THREADS 512 /* per block; any multiple of 32 up to this */
#define EP_GROUP_MAX_BLOCKS 512  /* copies of the sequence state */
#define EP_GROUP_MAX_CHANNELS 15
#define EP_GROUP_BANKS 3        /* at most */
#define EP_GROUP_REMOTE_BANKS 2 /* of a group with remote ranks, whose banks are large */
#define EP_GROUP_MAX_PENDING 2  /* operations sent but not completed */
/*
 * How many steps a rank can be ahead of another that has started one: at most six. Rank B that is
 * ahead of rank A needs A before it may use a bank again that A has not left; until then it can
 * complete one operation, of two steps, in each of the three banks (with two banks: at most four).
 * A larger lead proves that one rank is excluded by the other. Two more are margin.
 */
#define EP_GROUP_MAX_LEAD 8

/* Types whose rows are summed. */
enum ep_dtype {
	EP_BF16,
	EP_FP16,
	EP_FP32
};

/* How a row travels: the bytes of its tensor, or made of bf16 elements by the kernels. */
enum ep_row_format {
	EP_ROW_COPIED,
	EP_ROW_FP8,   /* e4m3, an fp32 scale for 128 of them */
	EP_ROW_MXFP8, /* e4m3, an e8m0 scale for 32 */
	EP_ROW_NVFP4, /* e2m1, an e4m3 scale for 16, and a global one */
	EP_ROW_FORMATS
};

/*
 * The step after that one. 0 means never. The largest number is left out, too: it stands for none
 * in words (EP_SIGNATURE_REFUSED, EP_MASK_STEP_UNKNOWN).
 */
#define EP_STEP_LAST 0xfffffffeu

EP_HOST_DEV uint32_t ep_step_after(uint32_t step)
{
	return step < EP_STEP_LAST ? step + 1 : 1;
}

/*
 * The *signature* of a step's operation: all that ranks must pass to it alike. The host makes all
 * words but the last (plugin/ep/signature.c, which names them, too), and a hash of those.
 */
enum ep_signature_field {
	EP_SIGNATURE_CALL, /* enum ep_signature_call */
	EP_SIGNATURE_DIRECTION,
	EP_SIGNATURE_LAYOUT,
	EP_SIGNATURE_TOPK,
	EP_SIGNATURE_RECIPE,
	EP_SIGNATURE_TOKENS_TYPE,
	EP_SIGNATURE_TOKENS_EXTENT,
	EP_SIGNATURE_SCALES_TYPE,
	EP_SIGNATURE_SCALES_EXTENT,
	EP_SIGNATURE_ALIGNMENT,
	EP_SIGNATURE_WINDOW,        /* rows go straight to, or come from, windows */
	EP_SIGNATURE_TOKENS_OFFSET, /* in those; two words, low and high */
	EP_SIGNATURE_SCALES_OFFSET = EP_SIGNATURE_TOKENS_OFFSET + 2,
	/* The step whose work this one goes on with, which only the device knows; 0: none. */
	EP_SIGNATURE_ORIGIN = EP_SIGNATURE_SCALES_OFFSET + 2,
	EP_SIGNATURE_WORDS
};

/* In place of an origin: the operation cannot run here. No step has this number. */
#define EP_SIGNATURE_REFUSED 0xffffffffu

enum ep_signature_call {
	EP_SIGNATURE_UPDATE = 1,
	EP_SIGNATURE_DISPATCH,
	EP_SIGNATURE_DISPATCH_SEND, /* send_only, */
	EP_SIGNATURE_DISPATCH_RECV, /* and its ncclEpComplete */
	EP_SIGNATURE_COMBINE,
	EP_SIGNATURE_COMBINE_SEND,
	EP_SIGNATURE_COMBINE_RECV
};

struct ep_signature {
	uint32_t word[EP_SIGNATURE_WORDS];
};

/* The signature of one step of one rank; in a heap. */
struct __attribute__((aligned(16))) ep_signature_slot {
	uint64_t mark; /* step << 32 | ep_signature_seal() */
	uint64_t sign; /* signs that the rank has given in it << 32 | step (signs.h) */
	struct ep_signature signature;
};

/* More than a rank can be ahead, and behind that as many steps that a wait looks back at. */
#define EP_SIGNATURE_SLOTS 16
#define EP_SIGNATURE_BYTES(nranks)                                                                 \
	(sizeof(struct ep_signature_slot) * EP_SIGNATURE_SLOTS * (uint64_t)(nranks))
_Static_assert(EP_SIGNATURE_SLOTS >= 2 * EP_GROUP_MAX_LEAD, "EP_SIGNATURE_SLOTS");

/* Offset of rank r's slot for the step, behind ep_dev_group.signature_off. */
EP_HOST_DEV uint64_t ep_signature_slot_off(uint32_t nranks, uint32_t step, uint32_t r)
{
	return ((uint64_t)(step % EP_SIGNATURE_SLOTS) * nranks + r) *
	       sizeof(struct ep_signature_slot);
}

/* The whole signature as one number, of the hash of its other words. */
EP_HOST_DEV uint32_t ep_signature_seal(uint32_t hash, uint32_t origin)
{
	return hash ^ origin * 0x9e3779b1u;
}

/* Which halves of an operation a launch runs. */
enum ep_half {
	EP_HALF_SEND = 1,
	EP_HALF_RECV = 2
};

/* One per block of the largest grid; all copies are equal between kernels. */
struct __attribute__((aligned(16))) ep_dev_seq {
	uint32_t step; /* last step taken */
	uint32_t busy; /* bit b: bank b holds a pending operation, or the group has no bank b */
	uint32_t freed
		[EP_GROUP_BANKS]; /* step that freed the bank; 0: never used; busy: its epoch */
	uint32_t next;            /* bank of the next operation, */
	uint32_t next_freed;      /* and the step that freed it */
	uint32_t clean_round;     /* of the last MaskClean that freed all banks; 0: none */
};

/* The value of `busy` in a group of that many banks when nothing is pending. */
EP_HOST_DEV uint32_t ep_seq_busy(uint32_t banks)
{
	return ((1u << EP_GROUP_BANKS) - 1) & ~((1u << banks) - 1);
}

/* The progress word. `masked`: its reader is not waited for any more. */
EP_HOST_DEV uint64_t ep_progress_word(uint32_t step, uint32_t clean_round, int masked)
{
	return step | (uint64_t)(masked != 0) << 32 | (uint64_t)clean_round << 33;
}

/* The words of MaskClean in a heap. */
#define EP_CLEAN_BYTES(nranks) (16 * (uint64_t)(nranks))

/* The mask [R], 1 active, with what is behind it: four arrays [R], found by the functions below. */
#define EP_MASK_BYTES(nranks) (32 * (uint64_t)(nranks) + 8)

/*
 * Behind the mask: the progress word that each rank had written when MaskUpdate took the rank in.
 * If that word is "masked", the rank published it before, and it does not count any more.
 */
EP_HOST_DEV uint64_t *ep_mask_ignored(int32_t *mask, uint32_t nranks)
{
	return (uint64_t *)(mask + (nranks + 1) / 2 * 2);
}

/*
 * Behind that: what the blocks of a kernel have agreed about each rank (wait.h), below its epoch.
 */
enum ep_arrival {
	EP_ARRIVAL_CLAIMED = 1,
	EP_ARRIVAL_PRESENT,
	EP_ARRIVAL_ABSENT
};

EP_HOST_DEV uint64_t *ep_mask_arrival(int32_t *mask, uint32_t nranks)
{
	return ep_mask_ignored(mask, nranks) + nranks;
}

/*
 * Behind that: the step in which the rank stood when this rank last gave a step's first sign
 * (signs.h).
 */
EP_HOST_DEV uint64_t *ep_mask_stood(int32_t *mask, uint32_t nranks)
{
	return ep_mask_arrival(mask, nranks) + nranks;
}

/*
 * And behind that: the step in which a kernel masked the rank last, or EP_MASK_STEP_UNKNOWN if the
 * host did so while kernels may have been running.
 */
#define EP_MASK_STEP_UNKNOWN 0xffffffffu
EP_HOST_DEV uint32_t *ep_mask_steps(int32_t *mask, uint32_t nranks)
{
	return (uint32_t *)(ep_mask_stood(mask, nranks) + nranks);
}

/* A pending operation; written by the send half. */
struct ep_dev_pending {
	uint32_t bank;
	uint32_t epoch;
	uint32_t freed; /* step that had freed the bank */
	uint32_t seal;  /* combine: of the send half's signature */
};

/*
 * The receipt of a dispatch, which it leaves last of all when it has been received. A combine that
 * finds another one here is refused: handle memory does not show what it has to send and to expect.
 */
struct ep_dev_receipt {
	uint64_t id; /* ep_dev_launch.receipt_id of the dispatch */
	uint32_t clean_round;
	uint32_t epoch; /* the same on all ranks */
};

/* Head of handle memory. */
struct ep_dev_handle {
	struct ep_dev_pending pending;
	struct ep_dev_receipt receipt;
};

/* device -> host, pinned: the first failure of each class wins. */
enum ep_record_class {
	EP_RECORD_FATAL,   /* a wait expired and masks are off, or peers disagree */
	EP_RECORD_MASKED,  /* a wait expired and the peer was masked */
	EP_RECORD_ROUTING, /* an expert id out of range */
	EP_RECORDS
};

enum ep_record_cause {
	EP_CAUSE_TIMEOUT = 1,
	EP_CAUSE_MISMATCH,     /* value = the step whose signatures differ */
	EP_CAUSE_EXPERT_ID,    /* value = the id, token and k are the place */
	EP_CAUSE_UNSENT,       /* the receive half of an operation whose send half has not run */
	EP_CAUSE_UNRECEIVED,   /* a send half, when all banks wait for receive halves */
	EP_CAUSE_UNDISPATCHED, /* a combine whose dispatch has not run */
	EP_CAUSE_CLEANED,      /* a combine whose dispatch has run before a MaskClean */
	EP_CAUSE_OVERFLOW,     /* value = a local expert with more than expected = R * B rows; HT:
				* value = rows that are to come to `peer`, expected = its limit */
	EP_CAUSE_EXCLUDED, /* the peer has masked us, or goes on without us, value steps ahead */
	EP_CAUSE_UNENDED,  /* a queue that was given up does not end; value, expected as below */
	/*
	 * The connection; value = enum ep_mlx5_status, expected = queue pair, or both 0: the host
	 * has given the connection up.
	 */
	EP_CAUSE_RDMA,
	/*
	 * Handle memory has no routing, or not the one that the operation is for: value = the
	 * tokens of that routing, or -1; expected = ours.
	 */
	EP_CAUSE_UNROUTED,
	/*
	 * A tensor with received rows: value = rows that the routing brings, expected = rows that
	 * it has.
	 */
	EP_CAUSE_SHORT,
	EP_CAUSE_REROUTED /* the routing in handle memory is not that which arrivals are for */
};

struct ep_record {
	uint32_t valid; /* written last, release, system scope; the host clears it */
	uint32_t cause;
	uint32_t site; /* enum ep_wait_site */
	uint32_t peer;
	uint32_t step;
	uint32_t is_combine; /* 0: a dispatch; or EP_RECORD_UPDATE, of wait_word.h */
	uint32_t token;
	uint32_t k;
	int64_t value;
	int64_t expected;
	uint64_t pad[2];
};

/* Device memory, one per peer; monotonic. Copied out by the statistics call. */
struct ep_peer_stats {
	uint64_t tx_bytes;
	uint64_t rx_bytes;
	uint64_t tx_rows;
	uint64_t rx_rows;
	uint64_t wait_ns; /* from kernel start to the arrival of the peer's first word */
	uint64_t wait_max_ns;
	uint64_t ops;
	uint64_t pad;
};

/* Group state in device memory that kernels write. */
struct ep_dev_state {
	uint32_t aborted;                 /* a fatal record was written: every wait ends */
	uint32_t record_lock[EP_RECORDS]; /* 0 free; the host frees it after reading */
	/* step << 32 | EP_WAIT_CLOCK of when a wait of it began that was in vain */
	uint64_t in_vain;
	uint32_t checked; /* when a wait looked at `down`, and whose word is next: ep_wait_down() */
	uint32_t posting; /* a wait posts a sign: others leave that to it */
	uint64_t waits;   /* step << 32 | EP_WAIT_CLOCK of when a wait of it looked first */
	uint64_t posted;  /* how far the last sign has come (signs.h) */
};

/*
 * Device memory, one per remote peer and queue. Only the warp that owns the queue touches the first
 * two. (The queue's indices only grow, and so does all here.)
 */
struct ep_remote_link {
	uint64_t signal; /* value of our signal at the peer: of the channel, or our progress */
	uint64_t side_busy[2]; /* the stage's side is in use until this index has completed */
	uint64_t down; /* of link i: ep_dev_remote.down[i], as a wait of any warp saw it; i < R */
	/* control queue: the last step in which it was left to waits of all blocks (link.h), */
	uint32_t left;
	uint32_t left_here; /* and to those of its owner's block */
};

/*
 * Rows have places only where they can come: in one area those of the node's ranks, in another
 * those of remote ranks, each in the order of the ranks. A rank's index there depends on whose heap
 * it is. Only ranks that may bring tokens count there, and in the stage only remote ones that hold
 * experts.
 */
struct ep_remote_place {
	uint32_t here; /* index of rank r in this rank's heap: in its node, or among remote ranks */
	uint32_t there;  /* index of this rank in rank r's heap */
	uint32_t staged; /* index of rank r in this rank's stage */
};

/* More for kernels of groups with remote ranks: in device memory. */
struct ep_dev_remote {
	uint32_t channels;            /* C: the same on all ranks */
	uint32_t queues;              /* C + 1: per peer, the last is the control queue */
	struct ep_mlx5_qp *qps;       /* [R][queues] */
	struct ep_remote_link *links; /* [R][queues] */
	const uint32_t *down; /* mapped host, [R]: not 0: the connection is of no use any more */
	uint64_t signal_off;  /* in a heap: [R][C] */
	uint64_t stage_off;   /* in a heap: [C][2] sides */
	uint64_t stage_side_bytes;
	const struct ep_remote_place *places; /* [R] */
};

/* Entries of one channel, of `all`. At least 1, so that one may divide by it. */
EP_HOST_DEV uint32_t ep_remote_channel_entries(uint32_t all, uint32_t channels)
{
	return channels && all ? (all + channels - 1) / channels : 1;
}

/*
 * A group as its kernels see it: the first member of every kernel's arguments. The host fills it
 * once, when the heap is bound. Pointers are device addresses.
 */
struct ep_dev_group {
	uint32_t rank;
	uint32_t nranks; /* R */
	uint32_t index;  /* of this rank in its node */
	uint32_t banks;
	uint32_t mask_enabled;
	struct ep_div by_ranks;
	uint64_t timeout_ns;
	int32_t *mask; /* [R], 1 active, and what is behind it */
	struct ep_dev_seq *seq;
	struct ep_dev_state *state;
	struct ep_record *records; /* mapped host, [EP_RECORDS] */
	uint32_t *async_error;     /* mapped host word */
	uint64_t *waits; /* mapped host, [R]: long waits show here (wait_word.h); NULL: nowhere */
	struct ep_peer_stats *stats; /* [R] */
	uint64_t progress_off;       /* in a heap; and so the next two */
	uint64_t signature_off;
	uint64_t clean_off;
	const struct ep_dev_remote *remote; /* NULL without remote ranks */
	unsigned char *own;                 /* this rank's heap */
	/* Each rank's heap as mapped here, NULL: remote. By ep_heap_of() of mask.h: */
	unsigned char *const *all_heaps; /* [R] in device memory; NULL: there are no ranks beyond */
	unsigned char *heap[EP_GROUP_NEAR_RANKS];
	/* All heaps of the node at once, for ep_multimem_*() alone; NULL, as a rule: not used. */
	unsigned char *multicast;
};

/* How an operation is launched: which halves, by which blocks. */
struct ep_dev_launch {
	uint32_t halves;      /* EP_HALF_SEND | EP_HALF_RECV */
	uint32_t send_blocks; /* blocks 0..send_blocks-1 send, */
	uint32_t recv_blocks; /* and so many others receive */
	uint32_t pad;
	struct ep_dev_handle *handle; /* handle memory */
	uint64_t receipt_id;          /* which handle, and how many tokens */
	uint32_t hash;                /* of the signature, */
	uint32_t sent_hash;           /* and of that of the launch that has the send half */
	uint64_t pad2;
	struct ep_signature signature;
};

/* One block of a multiple of 32 threads: at least R, or EP_GROUP_MAX_THREADS. */
struct ep_clean_args {
	struct ep_dev_group g;
	struct ep_ranks gone;    /* whose processes have ended */
	struct ep_ranks *absent; /* mapped host: who did not come */
	uint32_t paired;         /* every dispatch had its combine, as far as the host knows */
	uint32_t pad;
};

/* Ends all that this rank has posted, before its heap is replaced or freed. */
struct ep_drain_args {
	struct ep_dev_group g;
	struct ep_ranks alive;    /* remote ranks that are drained */
	struct ep_ranks suspects; /* ranks that may be dead, */
	uint64_t suspect_ns;      /* and the limit of the waits for all of those */
	uint64_t timeout_ns;      /* of all waits together */
	uint32_t farewell;        /* then post to remote peers that this rank leaves, */
	uint32_t pad;
	uint64_t farewell_off;   /* by this word of 8 bytes in each peer's heap, */
	uint64_t farewell_value; /* which becomes this */
	struct ep_ranks *lost;   /* mapped host: where that failed */
};

/* Ranks are masked whose connection the host has found lost. */
struct ep_lost_args {
	struct ep_dev_group g;
	struct ep_ranks lost;
};

/* The selections of a routing: expert ids [T][K], or lists of high throughput, EP_HT_SEL. */
enum ep_expert_rows_form {
	EP_EXPERT_ROWS_IDS32,
	EP_EXPERT_ROWS_IDS64,
	EP_EXPERT_ROWS_LISTS
};
#define EP_EXPERT_ROWS_AGAIN 0x80000000u /* EP_HT_SEL_AGAIN, also in EP_HT_NONE */
#define EP_EXPERT_ROWS_MASK 0xffffu      /* EP_HT_SEL_EXPERT */

/* Any grid, behind the routing. */
struct ep_expert_rows_args {
	const void *selections;
	uint64_t *rows; /* [experts] of the caller: is added to */
	uint32_t form;  /* enum ep_expert_rows_form */
	uint32_t topk;
	uint32_t experts;
	uint32_t num_tokens;            /* at most; of a routing that only handle memory knows, */
	const uint64_t *stamp;          /* its kind, */
	uint64_t want;                  /* it must be this, else there is none, */
	const uint32_t *stamped_tokens; /* and has so many; stamp NULL: num_tokens it is */
};

/* MaskUpdate: `active` becomes the mask. */
struct ep_update_args {
	struct ep_dev_group g;
	struct ep_ranks active;
};

_Static_assert(sizeof(struct ep_dev_seq) == 32, "ep_dev_seq");
_Static_assert(sizeof(struct ep_dev_handle) == 32, "ep_dev_handle");
_Static_assert(sizeof(struct ep_record) == 64, "ep_record");
_Static_assert(sizeof(struct ep_peer_stats) == 64, "ep_peer_stats");
_Static_assert(sizeof(struct ep_remote_link) == 40, "ep_remote_link");
_Static_assert(sizeof(struct ep_dev_state) == 48, "ep_dev_state");
_Static_assert(sizeof(struct ep_dev_remote) == 64, "ep_dev_remote");
_Static_assert(sizeof(struct ep_signature) == 64, "ep_signature");
_Static_assert(sizeof(struct ep_signature_slot) == 80, "ep_signature_slot");
_Static_assert(sizeof(struct ep_dev_group) == 152 + 8 * EP_GROUP_NEAR_RANKS, "ep_dev_group");
_Static_assert(sizeof(struct ep_dev_launch) == 112, "ep_dev_launch");
_Static_assert(sizeof(struct ep_clean_args) == sizeof(struct ep_dev_group) + 144, "ep_clean_args");
_Static_assert(sizeof(struct ep_lost_args) == sizeof(struct ep_dev_group) + 128, "ep_lost_args");
_Static_assert(sizeof(struct ep_update_args) == sizeof(struct ep_dev_group) + 128,
	       "ep_update_args");
_Static_assert(sizeof(struct ep_expert_rows_args) == 56, "ep_expert_rows_args");
_Static_assert(sizeof(struct ep_drain_args) == sizeof(struct ep_dev_group) + 304, "ep_drain_args");

#endif
