/* SPDX-License-Identifier: Apache-2.0 */
/* The C library's own functions, behind those of the same names in libc.c. */
#ifndef VC_REAL_H
#define VC_REAL_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

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
 * Reads the beginning of a file as text. Returns its bytes, or -errno. By system calls alone: the clock is moved inside
 * calls of sanitizers and at the end of threads, where ThreadSanitizer's open() has waited for its own lock for ever.
 */
long vc_real_read_file(const char *path, char *text, size_t size);

#endif
