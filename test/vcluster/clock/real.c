/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "clock/real.h"

static int (*vc_real_gettime)(clockid_t, struct timespec *);

/*
 * AddressSanitizer looks at the clock in the middle of malloc() and free(), which dlsym() calls: this look-up is over
 * before any other one begins.
 */
__attribute__((constructor(101))) static void vc_real_begin(void)
{
	void *fn = dlsym(RTLD_NEXT, "clock_gettime");

	memcpy(&vc_real_gettime, &fn, sizeof(fn));
}

int vc_real_clock(clockid_t id, struct timespec *t)
{
	return vc_real_gettime ? vc_real_gettime(id, t) : (int)syscall(SYS_clock_gettime, id, t);
}

void *vc_real_find(_Atomic(void *) *found, const char *name)
{
	void *fn = atomic_load_explicit(found, memory_order_relaxed);

	if (!fn) {
		fn = dlsym(RTLD_NEXT, name);
		/* A program's own libraries come before those that a preloaded library needs: before this one. */
		fn = fn ? fn : dlsym(RTLD_DEFAULT, name);
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

	vc_real_clock(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void vc_real_sleep_ns(uint64_t ns)
{
	struct timespec t = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

	VC_REAL(nanosleep)(&t, NULL);
}

long vc_real_read_file(const char *path, char *text, size_t size)
{
	long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	long n;

	text[0] = '\0';
	if (fd < 0) {
		return -errno;
	}
	n = syscall(SYS_read, fd, text, size - 1);
	n = n < 0 ? -errno : n;
	syscall(SYS_close, fd);
	text[n > 0 ? n : 0] = '\0';
	return n;
}
