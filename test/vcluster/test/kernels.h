/* SPDX-License-Identifier: Apache-2.0 */
/* Arguments of the test kernels, and their launch handles for the host. */
#ifndef VC_TEST_KERNELS_H
#define VC_TEST_KERNELS_H

#include <stddef.h>
#include <stdint.h>

#define TEST_WORDS 32 /* results of one thread of test_ops */

struct test_ops_args {
	uint32_t *out;      /* TEST_WORDS for each thread of the grid */
	const uint32_t *in; /* in[i] is i, 128 of them */
};

struct test_shared_args {
	uint32_t *out; /* one for each block */
	uint32_t *counter;
	uint32_t words;  /* of dynamic shared memory */
	uint32_t *stale; /* how many threads found shared memory that looked initialised */
};

struct test_packet_args {
	void *to;   /* 512 packets */
	void *from; /* 512 packets */
	uint32_t epoch, rounds;
	uint32_t *sum;
	uint32_t *late; /* waits that gave up */
	uint64_t timeout_ns;
};

struct test_flag_args {
	uint32_t *data, *flag;
	uint32_t *out;
	uint32_t value, n;
	uint32_t role; /* 0 writes, 1 reads */
	uint64_t timeout_ns;
	uint32_t peer;
};

struct test_multicast_args {
	uint64_t *all; /* a multicast address: [nranks], a sum, [nranks] */
	uint64_t value;
	uint32_t rank, nranks;
};

struct test_add_args {
	uint32_t *word;
	uint32_t add;
	uint64_t spin_ns; /* first spend that much time */
};

struct test_votes_args {
	const uint32_t *word; /* host memory; not 0: go */
	uint32_t *seen;       /* threads that went */
	uint64_t timeout_ns;
	uint32_t looks;
};

struct test_order_args {
	uint32_t *started; /* blocks, 0 before */
	uint32_t *first;   /* the block that started first */
};

struct test_meet_args {
	uint32_t *here; /* blocks that have come, 0 before */
	uint32_t *late; /* blocks that have waited in vain */
	uint32_t want;  /* how many blocks each of them waits for */
	uint64_t timeout_ns;
};

struct test_copy_args {
	uint32_t *to;
	const uint32_t *from;
	uint32_t n;
};

enum test_illegal {
	ILLEGAL_NONE,
	ILLEGAL_EXIT_IN_COLLECTIVE,
	ILLEGAL_MASKS,
	ILLEGAL_OPS,
	ILLEGAL_NOT_NAMED,
	ILLEGAL_BARRIER_COUNT,
	ILLEGAL_BARRIER_EXIT,
	ILLEGAL_BARRIER_WARP,
	ILLEGAL_DEADLOCK,
	ILLEGAL_STACK,
	ILLEGAL_ADDRESS,
	ILLEGAL_HANG_SPIN,
	ILLEGAL_HANG_LOOP,
	ILLEGAL_FENCE_NONE,
	ILLEGAL_FENCE_OLD,
	ILLEGAL_FENCE_BARRIER,
	ILLEGAL_FENCE_SCOPE,
	ILLEGAL_FENCE_FLAG,
	ILLEGAL_FENCE_REGISTER,
	ILLEGAL_READ_ONLY,
	ILLEGAL_READ_ONLY_8,
	ILLEGAL_RACE_SHARED,
	ILLEGAL_RACE_GLOBAL,
	ILLEGAL_RACE_VOTE,
	ILLEGAL_RACE_SHUFFLE,
	LEGAL_WARP_SYNC,
};

struct test_illegal_args {
	uint32_t what;
	uint32_t *word;
};

#ifndef __cplusplus
extern void test_ops(void);
extern void test_shared(void);
extern void test_packet(void);
extern void test_flag(void);
extern void test_add(void);
extern void test_multicast(void);
extern void test_copy(void);
extern void test_votes(void);
extern void test_order(void);
extern void test_meet(void);
extern void test_illegal(void);
#endif

#endif
