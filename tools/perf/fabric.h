/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that ep_fabric and its kernels share. */
#ifndef TOOLS_PERF_FABRIC_H
#define TOOLS_PERF_FABRIC_H

#include <stdint.h>

#define FABRIC_GPUS 8
#define FABRIC_ROW 14336u /* bytes: 7168 elements of bf16 */
#define FABRIC_BATCH 7u   /* loads of 16 bytes that a lane has on their way */
#define FABRIC_STORE_THREADS 1024
#define FABRIC_BULK_WARPS 4
#define FABRIC_BULK_STAGES 3u

/* Row k goes from row k / peers of from[k % peers] to the same row of to[k % peers]. */
struct fabric_copy_args {
	const char *from[FABRIC_GPUS];
	char *to[FABRIC_GPUS];
	uint32_t peers;
	uint32_t rows; /* of all peers together */
	uint64_t timeout_ns;
	uint32_t *late; /* set to 1: a copy did not end in that time */
};

/* One thread of each of two GPUs: the one that is `first` raises the flag of the other, and so on. */
struct fabric_flag_args {
	uint32_t *mine, *theirs;
	uint32_t first, rounds;
	uint64_t timeout_ns;
	uint32_t *late;
};

struct fabric_empty_args {
	uint32_t unused;
};

#endif
