/* SPDX-License-Identifier: Apache-2.0 */
#include <stdio.h>
#include <string.h>
#include "ep/times.h"

void ep_times_start(struct ep_times *times)
{
	memset(times, 0, sizeof(*times));
	times->start_ns = times->phase_ns = ep_now_ns();
}

void ep_times_phase(struct ep_times *times, const struct ep_boot *boot, enum ep_time kind)
{
	uint64_t now = ep_now_ns();

	times->own_ns[kind] += now - times->phase_ns - (boot->exchanged_ns - times->exchanged_ns);
	times->phase_ns = now;
	times->exchanged_ns = boot->exchanged_ns;
}

static double ep_times_ms(uint64_t ns)
{
	return (double)ns / 1e6;
}

void ep_times_describe(const struct ep_times *times, const struct ep_boot *boot, char *text,
		       size_t size)
{
	snprintf(text, size,
		 "%.1f ms: GPUs %.1f, kernels %.1f, memory %.1f, NICs %.1f, %u exchanges by NCCL "
		 "%.1f (the first, in which NCCL may connect and ranks wait for each other, %.1f)",
		 ep_times_ms(times->phase_ns - times->start_ns),
		 ep_times_ms(times->own_ns[EP_TIME_GPUS]),
		 ep_times_ms(times->own_ns[EP_TIME_KERNELS]),
		 ep_times_ms(times->own_ns[EP_TIME_MEMORY]),
		 ep_times_ms(times->own_ns[EP_TIME_NICS]), boot->exchanges,
		 ep_times_ms(boot->exchanged_ns), ep_times_ms(boot->first_ns));
}
