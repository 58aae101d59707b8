/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that time posting: arguments, and launch handles for the host. */
#ifndef TEST_GDA_TIMING_H
#define TEST_GDA_TIMING_H

#include "device/mlx5/mlx5_layout.h"

#define GDA_TIME_BYTES 7168 /* of a message: a token of 7168 channels in fp8 */

/* One warp per block: warp i has queue i. */
struct gda_time_args {
	struct ep_mlx5_qp *qp;
	uint32_t *sample; /* [block][reps], clock cycles of each repetition */
	uint64_t *span;   /* [block][4]: cycles and nanoseconds before and after all repetitions */
	uint32_t *status; /* [block], enum ep_mlx5_status */
	uint64_t timeout_ns;
	uint32_t reps;
	uint32_t pad;
};

/* X(name, WQEs of one repetition, messages among them, description) */
#define GDA_TIME_KERNELS(X)                                                                        \
	X(nothing, 0, 0, "two looks at the clock")                                                 \
	X(poll, 0, 0, "look at the completion")                                                    \
	X(store, 1, 0, "build and store a WQE, no doorbell")                                       \
	X(store32, 32, 0, "build and store 32 WQEs, no doorbell")                                  \
	X(put, 1, 1, "put: WQE, doorbell")                                                         \
	X(put32, 32, 32, "put by 32 lanes, one doorbell")                                          \
	X(signal, 2, 1, "put_signal: 2 WQEs, one doorbell")                                        \
	X(signal32, 33, 32, "put_signal by 32 lanes, 33 WQEs")

#ifndef __cplusplus
#define GDA_TIME_DECL(name, wqes, messages, text) extern void gda_time_##name(void);
GDA_TIME_KERNELS(GDA_TIME_DECL)
#undef GDA_TIME_DECL
#endif

#endif
