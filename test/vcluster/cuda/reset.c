/* SPDX-License-Identifier: Apache-2.0 */
/* cudaDeviceReset: the end of a device's context and of all that is in it. */
#include <stdio.h>
#include <stdlib.h>
#include "cuda/device.h"
#include "cuda/event.h"
#include "cuda/graph.h"
#include "cuda/memory.h"
#include "cuda/stream.h"
#include "exec/grid.h"

void vc_ended_used(const char *what)
{
	if (vc_env_long("VC_RESET_STRICT", 0)) {
		fprintf(stderr, "vcluster: %s of before cudaDeviceReset is used after it\n", what);
		abort();
	}
}

/* Kernels cannot be stopped, so it waits for them. All devices share the attributes of kernels. */
cudaError_t cudaDeviceReset(void)
{
	int device = vc_device_current();

	vc_device_wait(device);
	vc_graphs_end(device);
	vc_streams_end(device);
	vc_events_end(device);
	vc_memory_end(device);
	vc_device_end_context(device);
	if (!vc_device_any_context()) {
		vc_kernels_reset();
	}
	return cudaSuccess;
}
