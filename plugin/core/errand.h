/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the library's own, and calls that may not return for long, or ever. */
#ifndef EP_CORE_ERRAND_H
#define EP_CORE_ERRAND_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define EP_ERRAND_LONGEST_NS (7 * 86400 * 1000000000ull)

/* A thread that takes no signals of the program's. Returns an errno value. */
int ep_thread_start(pthread_t *thread, void *(*fn)(void *), void *arg);

/*
 * Calls fn in a thread of its own, with a copy of the `bytes` at `arg` that comes back when fn has
 * returned. 0, or an errno value: ETIMEDOUT when fn has not returned in time; it goes on then, and
 * nobody is told what becomes of it.
 */
int ep_errand_run(void (*fn)(void *arg), void *arg, size_t bytes, uint64_t timeout_ns);

#endif
