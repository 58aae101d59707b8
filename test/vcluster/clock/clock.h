/* SPDX-License-Identifier: Apache-2.0 */
/* The threads of this process as the clock of the cluster knows them, and their waits. */
#ifndef VC_CLOCK_H
#define VC_CLOCK_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <time.h>
#include "clock/page.h"

/* What nanosleep() of this library returns for -1 ns, where the C library's fails. */
#define VC_CLOCK_HERE 0x5ca1ab1e

/* NULL: this process keeps real time. */
extern struct vc_clock *vc_clock;

uint64_t vc_now_ns(void);
/* See vc_clock_pace(); real time where there is no clock. */
uint64_t vc_pace_ns(void);

/*
 * Waits for a key, an address that means something to the callers:
 *     vc_key_lock(key); if (it has not happened) vc_key_wait(key, ...) else vc_key_unlock(key)
 * against
 *     vc_key_lock(key); it happens; vc_key_wake(key, n); vc_key_unlock(key)
 * A wait may end although nobody has woken it.
 */
void vc_key_lock(const void *key);
void vc_key_unlock(const void *key);
/*
 * Called with the lock, returns without it. `release`: unlocked once the wake-up cannot be missed
 * any more.
 */
void vc_key_wait(const void *key, enum vc_wait what, uint64_t until_ns, pthread_mutex_t *release);
void vc_key_wake(const void *key, uint32_t most);

/* Waits until then, whoever wakes it meanwhile. */
void vc_sleep_until(uint64_t until_ns);
/* Waits for so long, of real time where there is no clock. */
void vc_nap(enum vc_wait what, uint64_t ns);

/* Around a call that waits in the kernel. Begin: false if a look shows that it would not wait. */
bool vc_kernel_begin(enum vc_wait what, uint64_t until_ns, bool sockets, bool (*ready)(void *),
		     void *arg);
void vc_kernel_end(void);
/* What others look for may have changed: naps are not stretched over it. */
void vc_event(void);
/* Was the call interrupted by the clock? */
bool vc_kernel_kicked(void);

/* Of threads and processes that are started. */
int vc_thread_start(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg);
void vc_thread_await(pthread_t thread);
void vc_thread_forget(pthread_t thread);
/* A thread that keeps real time, and holds up nobody: to be called by it. */
void vc_thread_leave(void);
pid_t vc_process_fork(void);
void vc_process_set(pid_t pid, enum vc_proc_state state);
void vc_process_kill(pid_t pid);
bool vc_process_known(pid_t pid);

/* ---- the C library's own functions, behind those of the same names in libc.c ---- */

/* Returns the next function of this name after the caller's object, looked up once. */
void *vc_real_find(_Atomic(void *) *found, const char *name);

#define VC_REAL(fn)                                                                                \
	({                                                                                         \
		static _Atomic(void *) vc_found_;                                                  \
		(__typeof__(&fn))vc_real_find(&vc_found_, #fn);                                    \
	})

int vc_real_clock(clockid_t id, struct timespec *t);
uint64_t vc_real_now_ns(void);
void vc_real_sleep_ns(uint64_t ns);

/*
 * Reads the beginning of a file as text. Returns its bytes, or -errno. By system calls alone: the
 * clock is moved inside calls of sanitizers and at the end of threads, where ThreadSanitizer's
 * open() has waited for its own lock for ever.
 */
long vc_real_read_file(const char *path, char *text, size_t size);

#endif
