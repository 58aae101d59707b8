/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ThreadSanitizer is told about order: it sees nothing else, the stand-ins are not
 * instrumented.
 */
#ifndef VC_TSAN_H
#define VC_TSAN_H

#ifdef VC_TSAN
#include <sanitizer/tsan_interface.h>
void __tsan_read_range(void *p, unsigned long size);
void __tsan_write_range(void *p, unsigned long size);
/* GCC has no header of these; order 0 is relaxed. */
unsigned long __tsan_atomic64_load(const volatile unsigned long *p, int order);
void __tsan_atomic64_store(volatile unsigned long *p, unsigned long value, int order);
#define VC_ACQUIRE(p) __tsan_acquire((void *)(p))
#define VC_RELEASE(p) __tsan_release((void *)(p))
#define VC_HAS_READ(p, size) __tsan_read_range((void *)(p), size)
#define VC_HAS_WRITTEN(p, size) __tsan_write_range((void *)(p), size)
#else
#define VC_ACQUIRE(p) ((void)(p))
#define VC_RELEASE(p) ((void)(p))
#define VC_HAS_READ(p, size) ((void)(p))
#define VC_HAS_WRITTEN(p, size) ((void)(p))
#endif

#endif
