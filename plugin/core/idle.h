/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for the device, not for ever. */
#ifndef EP_CORE_IDLE_H
#define EP_CORE_IDLE_H

#include <cuda_runtime_api.h>
#include <stdint.h>
#include "core/errand.h"

#define EP_IDLE_LONGEST_NS EP_ERRAND_LONGEST_NS

/*
 * Waits until nothing runs on the device, the program's own work included. cudaErrorNotReady: not
 * within that time, or nobody can tell; else what the device says of its work. A device that has
 * failed runs nothing either.
 */
cudaError_t ep_device_wait(int device, uint64_t timeout_ns);

#endif
