/* SPDX-License-Identifier: Apache-2.0 */
/* cudaDeviceReset: the end of a device's context and of all that is in it. */
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include "cuda/device.h"
#include "cuda/event.h"
#include "cuda/graph.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "exec/grid.h"

static atomic_uint vc_resets_begun, vc_resets_over;

/* 1 and how many resets were over when this thread found a context alive; 0: it has not looked since it used one. */
static _Thread_local unsigned int vc_context_seen;

void vc_context_found(void)
{
	vc_context_seen = vc_resets_over + 1;
}

/* No program can look at a context and use it in one step: once after each look that is forgiven. */
static bool vc_reset_came_between(void)
{
	bool between = vc_context_seen && vc_context_seen <= vc_resets_begun;

	vc_context_seen = 0;
	return between;
}

void vc_ended_used(const char *what)
{
	if (vc_env_long("VC_RESET_STRICT", 0) && !vc_reset_came_between()) {
		fprintf(stderr, "vcluster: %s of before cudaDeviceReset is used after it\n", what);
		abort();
	}
}

/* Kernels cannot be stopped, so it waits for them. All devices share the attributes of kernels. */
cudaError_t cudaDeviceReset(void)
{
	int device = vc_device_current();

	vc_device_wait(device);
	vc_resets_begun++;
	vc_graphs_end(device);
	vc_streams_end(device);
	vc_events_end(device);
	vc_memory_end(device);
	vc_device_end_context(device);
	vc_resets_over++;
	if (!vc_device_any_context()) {
		vc_kernels_reset();
	}
	return cudaSuccess;
}
