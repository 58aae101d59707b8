/* SPDX-License-Identifier: Apache-2.0 */
/* What ThreadSanitizer is told about order: it sees nothing else, the stand-ins are not instrumented. */
#ifndef VC_TSAN_H
#define VC_TSAN_H

#ifdef VC_TSAN
#include <sanitizer/tsan_interface.h>
void __tsan_read_range(void *p, unsigned long size);
void __tsan_write_range(void *p, unsigned long size);
#define VC_ACQUIRE(p) __tsan_acquire((void *)(p))
#define VC_RELEASE(p) __tsan_release((void *)(p))
#else
#define VC_ACQUIRE(p) ((void)(p))
#define VC_RELEASE(p) ((void)(p))
#endif

#endif
