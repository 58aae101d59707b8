/* SPDX-License-Identifier: Apache-2.0 */
/* Small things that all parts of the plugin use. */
#ifndef EP_CORE_UTIL_H
#define EP_CORE_UTIL_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#define EP_PRINTF(fmt_, args_) __attribute__((format(printf, fmt_, args_)))
#define EP_ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))

/* Of a clock that nobody sets. */
static inline uint64_t ep_now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec;
}

static inline uint32_t ep_ceil_div(uint64_t n, uint64_t d)
{
	return (uint32_t)((n + d - 1) / d);
}

/* `align` is a power of two. */
static inline uint64_t ep_round_up(uint64_t v, uint64_t align)
{
	return (v + align - 1) & ~(align - 1);
}

static inline uint64_t ep_min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static inline uint64_t ep_max_u64(uint64_t a, uint64_t b)
{
	return a > b ? a : b;
}

#endif
