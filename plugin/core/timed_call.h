/* SPDX-License-Identifier: Apache-2.0 */
/* Threads of the library's own, and calls that may not return for long, or ever. */
#ifndef EP_CORE_TIMED_CALL_H
#define EP_CORE_TIMED_CALL_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#define EP_TIMED_CALL_LONGEST_NS (7 * 86400 * 1000000000ull)

/*
 * A thread that takes no signals of the program's. Returns an errno value. Where the process has as
 * many threads as it may have it tries again for a moment.
 */
int ep_thread_start(pthread_t *thread, void *(*fn)(void *), void *arg);
/* Returns its error in words, which name the limit that it most often is. */
#define EP_THREAD_ERROR_TEXT 160
const char *ep_thread_error_print(int error, char text[EP_THREAD_ERROR_TEXT]);

/*
 * Calls fn in a thread of its own, with a copy of the `bytes` at `arg` that comes back when fn has
 * returned. 0, or an errno value: ETIMEDOUT when fn has not returned in time; it goes on then, and
 * nobody learns what becomes of it.
 */
int ep_timed_call(void (*fn)(void *arg), void *arg, size_t bytes, uint64_t timeout_ns);

/* The same in steps, for a call that must not fail to be made once others count on it. */
struct ep_timed_call;

/*
 * The thread is there, and waits to be let go. `ready`, if it is not NULL, has been called in it
 * with the copy, and returned 0; what it wrote there comes back in any case. Returns 0, or an errno
 * value.
 */
int ep_timed_call_begin(struct ep_timed_call **out, int (*ready)(void *arg), void (*fn)(void *arg),
			void *arg, size_t bytes);

/* Lets it go, and waits. 0: the copy has come back; ETIMEDOUT: it may be waited for again. */
int ep_timed_call_go(struct ep_timed_call *call, void *arg, size_t bytes, uint64_t timeout_ns);

/*
 * One that was not let go never calls fn; one that has not returned is left to itself. NULL:
 * nothing.
 */
void ep_timed_call_end(struct ep_timed_call *call);

#endif
