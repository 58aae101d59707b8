/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls that fail: of those by which the library asks for host memory, threads and descriptors, and
 * of those of CUDA, the driver and NCCL, the n-th one. A program that is linked with inject.c
 * defines these functions itself and passes them on. Which calls are the library's the address
 * tells to which each returns, so that the stand-ins' own ones never fail. Giving something back
 * never fails either.
 */
#ifndef TEST_SUPPORT_INJECT_H
#define TEST_SUPPORT_INJECT_H

#include <stdint.h>

/*
 * From now on the calling thread's calls into the library count, and those of threads that the
 * library starts meanwhile; with `name` only calls of that one. n = 0: none fails. One thread of a
 * process at a time.
 */
void inject_arm(uint64_t n, const char *name);
/* How many there were. */
uint64_t inject_disarm(void);
/* What has failed since inject_arm(): "cudaMalloc"; "" if there were less than n. */
const char *inject_failed(void);

/* Blocks of host memory that the library has, and threads. */
long inject_blocks(void);
long inject_threads(void);

#endif
