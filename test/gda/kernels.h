/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that post: arguments, and launch handles for the host. */
#ifndef TEST_GDA_KERNELS_H
#define TEST_GDA_KERNELS_H

#include "device/mlx5/mlx5_layout.h"

#define GDA_THREADS 128 /* per block at most */

/*
 * The heap, local and remote at once, has per warp of all kernels:
 *   tags[32]    u64 per lane: number of the last put of that lane; the NIC sees each exactly once
 *   source[32]  u64 per lane: what is put
 *   signal      u64
 */
struct gda_warp {
	uint64_t tags[32];
	uint64_t source[32];
	uint64_t signal;
};

/* What a warp says at its end. */
struct gda_result {
	uint64_t tags[32]; /* what heap->tags should be */
	uint64_t signal;
	uint64_t posted; /* WQEs */
	uint32_t status; /* enum ep_mlx5_status */
	uint32_t wrong;  /* data that is not what it should be, of gda_pass */
	uint32_t ended;  /* the NIC is done with what was posted */
};

struct gda_post_args {
	struct ep_mlx5_qp *qp;     /* [warp] */
	struct gda_result *result; /* [warp] */
	struct gda_warp *heap;     /* [warp], as kernels see it; offset 0 of both regions */
	const uint32_t *aborted;
	uint64_t timeout_ns;
	uint32_t first_warp; /* number of this kernel's first warp */
	uint32_t rounds;
	uint32_t seed;
	uint32_t weak; /* WRITEs may overtake WRITEs */
};

enum gda_one {
	GDA_ONE_PUT,    /* 8 bytes */
	GDA_ONE_PUT_0,  /* no bytes */
	GDA_ONE_INLINE, /* 28 bytes */
	GDA_ONE_PUT_SIGNAL,
	GDA_ONE_SIGNAL,
	GDA_ONE_UNKNOWN, /* an opcode that no kernel of the library posts */
	GDA_ONE_NOTHING
};

/*
 * One warp does one thing `times` times, and then waits for it if `quiet`; GDA_QUIET_ALL: as one of
 * several queues that have the time together.
 */
#define GDA_QUIET_ALL 2
struct gda_one_args {
	struct ep_mlx5_qp *qp;
	struct gda_result *result;
	const uint32_t *aborted;
	uint64_t timeout_ns;
	uint32_t what;
	uint32_t times;
	uint32_t lanes; /* that want to */
	uint32_t more, quiet;
	uint64_t end_ns; /* not 0: then waits so long for the NIC to be done with it */
};

/*
 * Two ranks pass a message to and fro: data, and behind it a signal that says it is there. A rank
 * waits for the signal and then looks at the data. Each has this at offset `at` of its heap.
 */
#define GDA_BALL_WORDS 128 /* per lane */
struct gda_ball {
	uint32_t in[32][GDA_BALL_WORDS], out[32][GDA_BALL_WORDS];
	uint64_t signal;
	uint64_t pad[15];
};

struct gda_pass_args {
	struct ep_mlx5_qp *qp;
	struct gda_ball *ball;
	struct gda_result *result;
	uint64_t at;
	uint64_t timeout_ns;
	uint32_t rounds;
	uint32_t serves; /* this rank begins */
};

#ifndef __cplusplus
extern void gda_post(void);
extern void gda_pass(void);
extern void gda_one(void);
#endif

#endif
