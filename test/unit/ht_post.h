/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A kernel with a send warp of high throughput, and a warp that is the copy warps, the NIC and the
 * receiver.
 */
#ifndef TEST_UNIT_HT_POST_H
#define TEST_UNIT_HT_POST_H

#include "device/ht/ht_layout.h"

#define HT_POST_EPOCH 5
#define HT_POST_PARTS 2
#define HT_POST_ROW 128 /* bytes */

struct ht_post_args {
	struct ep_ht_common c;
	uint32_t chunks;
	/* chunks that are staged before the send warp begins, and part 0 of the next, */
	uint32_t staged;
	uint32_t again; /* and then so many, when the last of those before has been announced */
	/* when so many chunks are announced, the receiver has consumed all; 0: at once */
	uint32_t credits;
	uint32_t holds;  /* the NIC completes nothing before so many chunks are announced */
	uint32_t apart;  /* until so many are, it completes those of the first queue alone */
	uint32_t *early; /* 1: the stage was released when the NIC might still read it */
};

#define HT_TURN_BLOCKS 16

/* Which block posts to each rank, by both ways to find out; -1: none. A block of one warp. */
struct ht_turn_args {
	struct ep_ht_common c;
	int32_t *posts; /* [R] */
	int32_t *turns; /* [R] */
};

#ifdef __cplusplus
extern "C" {
#endif
void ht_post_kernel(void);
void ht_turn_kernel(void);
#ifdef __cplusplus
}
#endif

/* ---- A kernel that does to the head of handle memory what the blocks of a routing do ---- */

enum ht_stamp_failure {
	HT_STAMP_NONE,
	HT_STAMP_BEFORE,
	HT_STAMP_AFTER
};

struct ht_stamp_args {
	struct ep_ht_route_args a;
	uint32_t *rows;   /* [1] of all ranks, to this one */
	uint32_t failure; /* when another block fails: enum ht_stamp_failure */
};

#ifdef __cplusplus
extern "C" {
#endif
void ht_stamp_kernel(void);
#ifdef __cplusplus
}
#endif

#endif
