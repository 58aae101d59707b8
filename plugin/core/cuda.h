/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all calls to CUDA share: errors in words, the device and its context, which the program may
 * end by cudaDeviceReset, and waits for the device that end. Of a context that was ended, memory,
 * streams and events are gone: they must not be touched any more, and an address may be that of
 * something newer. (Mappings of the driver's memory handles are of no context, and stay.) Host
 * memory that must be readable even so is here, too.
 */
#ifndef EP_CORE_CUDA_H
#define EP_CORE_CUDA_H

#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "core/error.h"
#include "core/timed_call.h"

/* ncclUnhandledCudaError with CUDA's name for `err`. `what` is what was attempted. */
ncclResult_t ep_fail_cuda(cudaError_t err, const char *what);

/* A call of the driver, into *call: NULL, and false, if it has none of that name. */
bool ep_driver_find(const char *name, void *call);

#define EP_CUDA(call, what)                                                                        \
	do {                                                                                       \
		cudaError_t ep_cuda_ = (call);                                                     \
		if (ep_cuda_ != cudaSuccess) {                                                     \
			return ep_fail_cuda(ep_cuda_, what);                                       \
		}                                                                                  \
	} while (0)

/* With `result` in scope. */
#define EP_CUDA_GOTO(call, what, label)                                                            \
	do {                                                                                       \
		cudaError_t ep_cuda_ = (call);                                                     \
		if (ep_cuda_ != cudaSuccess) {                                                     \
			result = ep_fail_cuda(ep_cuda_, what);                                     \
			goto label;                                                                \
		}                                                                                  \
	} while (0)

/* ---- contexts ---- */

/* A device's primary context, by the number that the driver gives each context. */
struct ep_context {
	int device;
	unsigned long long id; /* 0: the driver does not report it */
};

/* The one that the current device has now. Makes it if there is none. */
struct ep_context ep_context_now(void);

/*
 * Whether that context has been ended. Any thread, whatever its device; makes no context and
 * changes none. False if the driver does not report it.
 */
bool ep_context_ended(const struct ep_context *context);

/* Returns the device of the stream; -1: the driver does not report it, or it is no stream. */
int ep_context_stream_device(cudaStream_t stream);

/* Returns the capture that the stream is in, or 0: none, or a void one. */
unsigned long long ep_stream_capture(cudaStream_t stream);

/* Host memory that kernels use as well. A reset of the device takes it from kernels alone. */
struct ep_pinned {
	unsigned char *host, *dev; /* NULL: none */
	size_t bytes;
};

/* Zeroed, and aligned to a page. Leaves nothing behind on failure. */
bool ep_pinned_alloc(struct ep_pinned *pinned, size_t bytes, struct ep_reason *why);

/*
 * The same of a mapping that is there: it is unmapped by ep_pinned_free(), and stays as it is on
 * failure.
 */
bool ep_pinned_take(struct ep_pinned *pinned, void *host, size_t bytes, struct ep_reason *why);

/* ended: the context is. Otherwise nothing may run on the device that uses the memory. */
void ep_pinned_free(struct ep_pinned *pinned, bool ended);

/* ---- waits for the device ---- */

#define EP_IDLE_LONGEST_NS EP_TIMED_CALL_LONGEST_NS

/*
 * Waits until nothing runs on the device, the program's own work included. 0: *state is what the
 * device reports of its work, and one that has failed runs nothing either. ETIMEDOUT: not within
 * that time. Another errno value: no thread could be started that waits, and nobody knows.
 */
int ep_device_wait(int device, uint64_t timeout_ns, cudaError_t *state);

/*
 * The same without a limit, for a thread of the library: it has the device from now on, and is in
 * the relaxed mode of captures.
 */
cudaError_t ep_device_rest(int device);

/* ---- calls in threads of their own, on the caller's device ---- */

/* What the argument of such a call begins with. */
struct ep_device_job {
	int device;
	cudaError_t error; /* why the thread could not take the device */
};

/*
 * ep_timed_call_begin() of a thread that has the caller's device; captures of other threads go on.
 * `bytes`: of the whole argument. Returns 0 or an errno value; job->error is not cudaSuccess if
 * that is why.
 */
int ep_device_call_begin(struct ep_timed_call **out, void (*fn)(void *arg),
			 struct ep_device_job *job, size_t bytes);

/* Reads device memory when the stream is over. */
ncclResult_t ep_device_read(void *host, const void *dev, size_t bytes, cudaStream_t stream);

#endif
