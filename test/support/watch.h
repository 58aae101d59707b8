/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls of the CUDA runtime and NCCL that the library makes, counted and made to fail: a program
 * that is linked with watch.c defines these functions itself and passes them on.
 */
#ifndef TEST_SUPPORT_WATCH_H
#define TEST_SUPPORT_WATCH_H

#include "support/check_nccl.h"

enum watch_call {
	WATCH_MALLOC,
	WATCH_FREE,
	WATCH_HOST_ALLOC,
	WATCH_HOST_FREE,
	WATCH_HOST_REGISTER,
	WATCH_HOST_UNREGISTER,
	WATCH_HOST_POINTER,
	WATCH_IPC_OPEN,
	WATCH_IPC_CLOSE,
	WATCH_STREAM_CREATE,
	WATCH_STREAM_DESTROY,
	WATCH_DEVICE_SYNC,
	WATCH_STREAM_SYNC,
	WATCH_STREAM_QUERY,
	WATCH_COPY,
	WATCH_MEMSET,
	WATCH_LAUNCH,
	WATCH_GATHER,
	WATCH_RETAIN, /* calls of the driver, of those that the program gets by their names */
	WATCH_RELEASE,
	WATCH_RESERVE,
	WATCH_UNRESERVE,
	WATCH_MAP,
	WATCH_UNMAP,
	WATCH_ACCESS,
	WATCH_CALLS
};

/*
 * Of the calling thread, since watch_start. Where one thread of the process watches, it has the
 * collectives of the library's threads, too: who makes one waits for that thread.
 */
struct watch {
	uint64_t calls[WATCH_CALLS];
	uint64_t fail_at[WATCH_CALLS]; /* that call fails; 0: none */
	uint64_t failed;
	uint32_t most_blocks; /* of a launch */
	uint32_t attributes;  /* of launches: cooperative ones and such, */
	uint32_t early;       /* but that they may start while the kernel before them ends */
	int driver;           /* not 0: the version of CUDA that the driver says it has */
	void (*launched)(const void *args); /* not NULL: is shown each kernel's arguments */
};

extern __thread struct watch watch;

void watch_start(void);
const char *watch_name(enum watch_call call);
/* Allocations, addresses, mappings, handles and streams of the process that exist now. */
long watch_live(void);
/* Bytes from cudaMalloc that exist on the current device. */
uint64_t watch_bytes(void);

#endif
