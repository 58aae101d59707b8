/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for the device, not for ever; and threads of the library's own. */
#ifndef EP_CORE_IDLE_H
#define EP_CORE_IDLE_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdint.h>

#define EP_IDLE_LONGEST_NS (7 * 86400 * 1000000000ull)

/*
 * Waits until nothing runs on the device, the program's own work included. cudaErrorNotReady: not
 * within that time, or nobody can tell; else what the device says of its work. A device that has
 * failed runs nothing either.
 */
cudaError_t ep_device_wait(int device, uint64_t timeout_ns);

/* A thread that takes no signals of the program's. Returns an errno value. */
int ep_thread_start(pthread_t *thread, void *(*fn)(void *), void *arg);

#endif
