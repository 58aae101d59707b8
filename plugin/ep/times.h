/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the time goes in which a group is made: this rank's own work by its kind, and the exchanges,
 * in which it waits for NCCL and for the other ranks. For the log.
 */
#ifndef EP_EP_TIMES_H
#define EP_EP_TIMES_H

#include "core/bootstrap.h"

enum ep_time {
	EP_TIME_GPUS,    /* asking CUDA and NVML about the GPUs */
	EP_TIME_KERNELS, /* loading them */
	EP_TIME_MEMORY,  /* allocating, clearing, mapping */
	EP_TIME_NICS,
	EP_TIMES
};

struct ep_times {
	uint64_t start_ns;
	uint64_t phase_ns;     /* when the last phase ended, */
	uint64_t exchanged_ns; /* and how long exchanges had taken by then */
	uint64_t own_ns[EP_TIMES];
};

void ep_times_start(struct ep_times *times);

/* Counts this rank's own time since the last phase for this kind. */
void ep_times_phase(struct ep_times *times, const struct ep_boot *boot, enum ep_time kind);

/* "31.0 ms: ..." */
void ep_times_describe(const struct ep_times *times, const struct ep_boot *boot, char *text,
		       size_t size);

#endif
