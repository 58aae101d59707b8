/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device's context, which the program may end by cudaDeviceReset: memory, streams and events of it
 * are gone then. Streams and events must not be touched any more, and an address may be that of
 * something newer. (Mappings of the driver's memory handles are of no context, and stay.) Host memory
 * that must be readable even so is here, too.
 */
#ifndef EP_CORE_CONTEXT_H
#define EP_CORE_CONTEXT_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include "core/error.h"

/* A device's primary context, by the number that the driver gives each context. */
struct ep_context {
	int device;
	unsigned long long id; /* 0: the driver does not report it */
};

/* The one that the current device has now. Makes it if there is none. */
struct ep_context ep_context_now(void);

/*
 * Whether that context has been ended. Any thread, whatever its device; makes no context and changes
 * none. False if the driver does not report it.
 */
bool ep_context_ended(const struct ep_context *context);

/* Returns the device of the stream; -1: the driver does not report it, or it is no stream. */
int ep_context_stream_device(cudaStream_t stream);

/* Host memory that kernels use as well. A reset of the device takes it from kernels alone. */
struct ep_pinned {
	unsigned char *host, *dev; /* NULL: none */
	size_t bytes;
};

/* Zeroed, and aligned to a page. Leaves nothing behind on failure. */
bool ep_pinned_alloc(struct ep_pinned *pinned, size_t bytes, struct ep_reason *why);

/* The same of a mapping that is there: it is unmapped by ep_pinned_free(), and stays as it is on failure. */
bool ep_pinned_take(struct ep_pinned *pinned, void *host, size_t bytes, struct ep_reason *why);

/* ended: the context is. Otherwise nothing may run on the device that uses the memory. */
void ep_pinned_free(struct ep_pinned *pinned, bool ended);

#endif
