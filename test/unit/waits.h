/* SPDX-License-Identifier: Apache-2.0 */
/* A kernel that waits for a word of a peer: its arguments, and its launch handle for the host. */
#ifndef TEST_UNIT_WAITS_H
#define TEST_UNIT_WAITS_H

#include "device/group/group_layout.h"
#include "device/ht/ht_layout.h"

struct waits_result {
	uint32_t polls;
	uint32_t gave_up;
	uint32_t word;
	uint32_t checks;    /* at host memory */
	uint64_t ns;        /* that it waited, */
	uint64_t signed_ns; /* and had done when it gave a sign */
};

struct waits_args {
	struct ep_dev_group g;
	uint64_t *word;   /* of rank 1, for the operation that began with step 5 */
	uint32_t arrives; /* after so many polls, before the look that follows; 0: never */
	uint32_t polled;  /* polls before */
	uint32_t masks;   /* after so many polls the peer has masked this rank; 0: never */
	/* before it waits, it asks whether the connection is down, until so many checks */
	uint32_t checks;
	uint32_t ahead; /* another wait was in vain, in units of its clock after now; 0: none */
	uint32_t step;  /* of the launch, from the operation's first one, 5, on; 0: that one */
	uint32_t site;  /* 0: rows of a combine */
	uint32_t pad;
	uint64_t beyond_ns; /* the timeout the wait has lasted, */
	uint64_t vain_ns; /* or it begins, so long after another one in vain of the step; 0: none */
	uint64_t moves_ns;  /* the wait has lasted when rank 1 takes the step, */
	uint64_t signs_ns;  /* and when it gives a sign in it */
	uint64_t waited_ns; /* since the step's first wait began, when this block of two looks: */
	uint32_t block;
	uint32_t pad2;
	struct waits_result *out;
};

#ifdef __cplusplus
extern "C"
#endif
	void
	waits_kernel(void);
#ifdef __cplusplus
extern "C"
#endif
	void
	bank_kernel(void);
#ifdef __cplusplus
extern "C"
#endif
	void
	grace_kernel(void);
#ifdef __cplusplus
extern "C"
#endif
	void
	moves_kernel(void);
#ifdef __cplusplus
extern "C"
#endif
	void
	signs_kernel(void);

/* ---- kernels that look at a wait of high throughput, or wait for copies that do not end ---- */

#define HT_STUCK_SLOTS 3

struct ht_wait_args {
	struct ep_ht_common c;
	uint64_t waited_ns;
	uint32_t expired; /* that is longer than the timeout */
	uint32_t peer;
	uint32_t leaves; /* the rank whose control queue is left then; 0: none */
	uint32_t *over;
};

#ifdef __cplusplus
extern "C" {
#endif
void ht_wait_kernel(void);
void ht_own_kernel(void);
void ht_stuck_kernel(void);
#ifdef __cplusplus
}
#endif

#endif
