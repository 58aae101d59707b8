/* SPDX-License-Identifier: Apache-2.0 */
/* Bulk copies and the barriers in shared memory of one block. */
#ifndef VC_BULK_H
#define VC_BULK_H

#include "exec/block.h"

#define VC_POISON 0xb5b5b5b5b5b5b5b5ull /* as of fresh shared memory */
#define VC_MBARS 512u
#define VC_COPIES 2048u   /* of a block, that nobody has waited for */
#define VC_HELDS 32u      /* stores of a block that have read, but not written yet */
#define VC_LATE_TURNS 64u /* how long late loads are held back: turns of other blocks and ranks */

typedef uint64_t vc_word __attribute__((may_alias));

struct vc_mbar {
	struct ep_mbar *bar; /* NULL: this entry is free */
	uint32_t nwarps;     /* arrivals of a phase */
	uint32_t pending;    /* arrivals that the running phase lacks */
	uint32_t phase;
	uint32_t issued, announced; /* bytes of the running phase's loads */
	uint32_t loads;             /* of the running phase, that have not landed */
	uint32_t polls;             /* since all its warps have arrived */
	uint32_t late;              /* turns for which its loads are held back yet */
	uint32_t arrived;           /* warps that have arrived */
	uint32_t unfenced;          /* 1 + the warp that has yet to call ep_mbar_fence_init() */
	bool acquired[2];           /* of phases of this parity: as in struct vc_warp */
	char key[2];                /* what the race detector knows them by */
};

enum vc_copy_state {
	VC_COPY_ISSUED,
	VC_COPY_READ,  /* a store whose source may be overwritten; its bytes are held */
	VC_COPY_LANDED /* a store that was done early; its group has not been waited for */
};

struct vc_copy {
	uint8_t *to;
	const uint8_t *from;
	uint32_t bytes;
	uint32_t warp;
	uint32_t group;      /* of a store */
	struct vc_mbar *bar; /* of a load; NULL: a store */
	uint8_t *held;
	enum vc_copy_state state;
};

/* What the engine does for a warp. */
struct vc_engine {
	struct ep_simt_bulk call; /* what the lanes are calling */
	uint32_t callers;         /* lanes that are there */
	uint32_t group;           /* number of the open group */
	char issued, done;        /* keys for the race detector */
	void *tsan;               /* the engine is a thread of its own to it */
};

struct vc_bulk {
	bool used; /* by this block */
	uint32_t nmbars, ncopies;
	uint32_t held; /* buffers that are taken, a bit each */
	struct vc_mbar mbar[VC_MBARS];
	struct vc_copy copy[VC_COPIES]; /* in no order */
	struct vc_engine engine[VC_WARPS_MAX];
	/* Dynamic shared memory as the engine sees it: without stores that lack the proxy fence. */
	uint8_t shadow[VC_BLOCK_SHARED_MAX];
	uint8_t room[VC_HELDS][VC_BLOCK_SHARED_MAX];
};

/* The last lane of the warp has come to the call. */
void vc_bulk_act(struct vc_block *block, struct vc_fiber *self);
/* All lanes of a warp, or all warps, have ended. */
void vc_bulk_end(struct vc_block *block, struct vc_fiber *self);

/* Ends the process unless `bar` is a barrier that may be used. */
struct vc_mbar *vc_mbar_find(struct vc_block *block, struct vc_fiber *self, struct ep_mbar *bar,
			     const char *what);
void vc_mbar_init(struct vc_block *block, struct vc_fiber *self, const struct ep_simt_bulk *call);
void vc_mbar_inval(struct vc_block *block, struct vc_fiber *self, struct vc_mbar *m);
void vc_mbar_fence_init(struct vc_block *block, struct vc_fiber *self);
void vc_mbar_arrive(struct vc_block *block, struct vc_fiber *self, struct vc_mbar *m,
		    uint32_t bytes);
/* A load has landed, or a warp has arrived: the phase may be over. */
void vc_mbar_settle(struct vc_mbar *m);
void vc_load_land(struct vc_block *block, struct vc_copy *copy);
/* All that the block does is to poll: a turn of others, if it polls for loads that are late. */
bool vc_loads_wait(struct vc_block *block);

#endif
