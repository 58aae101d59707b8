/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include "clock/real.h"

bool vc_real_ready;

__attribute__((constructor(101))) static void vc_real_begin(void)
{
	vc_real_ready = true;
}

void *vc_real_find(_Atomic(void *) *found, const char *name)
{
	void *fn = atomic_load_explicit(found, memory_order_relaxed);

	if (!fn) {
		fn = dlsym(RTLD_NEXT, name);
		if (!fn) {
			abort(); /* a C library without it would not have started this program */
		}
		atomic_store_explicit(found, fn, memory_order_relaxed);
	}
	return fn;
}

uint64_t vc_real_now_ns(void)
{
	struct timespec t;

	VC_REAL(clock_gettime)(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void vc_real_sleep_ns(uint64_t ns)
{
	struct timespec t = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

	VC_REAL(nanosleep)(&t, NULL);
}
