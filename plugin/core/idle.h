/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for the device, not for ever. */
#ifndef EP_CORE_IDLE_H
#define EP_CORE_IDLE_H

#include <cuda_runtime_api.h>
#include <stdint.h>
#include "core/timed_call.h"

#define EP_IDLE_LONGEST_NS EP_TIMED_CALL_LONGEST_NS

/*
 * Waits until nothing runs on the device, the program's own work included. 0: *state is what the
 * device reports of its work, and one that has failed runs nothing either. ETIMEDOUT: not within that
 * time. Another errno value: no thread could be started that waits, and nobody knows.
 */
int ep_device_wait(int device, uint64_t timeout_ns, cudaError_t *state);

/*
 * The same without a limit, for a thread of the library: it has the device from now on, and is in
 * the relaxed mode of captures.
 */
cudaError_t ep_device_rest(int device);

#endif
