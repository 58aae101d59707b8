/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of the kernels that test bulk copies, and the mistakes that they can make. */
#ifndef VC_TEST_KERNELS_BULK_H
#define VC_TEST_KERNELS_BULK_H

#include <stddef.h>
#include <stdint.h>

enum test_bulk_mistake {
	BULK_RIGHT,
	/* test_bulk_rows */
	BULK_WAIT_LOAD,
	BULK_PARITY,
	BULK_WAIT_READ,
	BULK_WRITES_EARLY,
	BULK_COMMIT,
	BULK_FENCE_SHARED,
	BULK_ANNOUNCED,
	BULK_LATE_LOAD,
	BULK_SIZE,
	BULK_NOTHING,
	BULK_ALIGNMENT,
	BULK_OUTSIDE,
	BULK_INIT,
	BULK_INIT_TWICE,
	BULK_FENCE_INIT,
	BULK_ARRIVALS,
	BULK_LANES,
	BULK_LEAVES_STORE,
	BULK_LEAVES_LOAD,
	BULK_ARRIVES_MORE,
	BULK_INVAL_EARLY,
	BULK_PARITY_2,
	/* test_bulk_pipe */
	BULK_EMPTY,
	BULK_PIPE_WAIT,
	BULK_PIPE_PARITY,
	BULK_INIT_RACE,
	BULK_ARRIVES_TWICE,
	/* test_bulk_flag */
	BULK_FLAG_EARLY,
	BULK_FENCE_GLOBAL,
	BULK_CREDIT_EARLY,
};

struct test_bulk_args {
	const char *from;
	char *to, *mail;
	uint32_t *flag; /* two: the mail is there; it has been read */
	uint32_t *late; /* waits that gave up */
	uint64_t timeout_ns;
	uint32_t bytes;    /* of a row */
	uint32_t rows;     /* of each warp, or all */
	uint32_t nbuffers; /* of each warp, or of the block */
	uint32_t add;      /* 1: threads add 1 to each word; test_bulk_flag: see there */
	uint32_t mistake;
};

#ifndef __cplusplus
extern void test_bulk_rows(void);
extern void test_bulk_pipe(void);
extern void test_bulk_flag(void);
extern void test_bulk_spread(void);
#endif

#endif
