/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and errors. */
#ifndef VC_DEVICE_H
#define VC_DEVICE_H

#include <stdbool.h>
#include <cuda_runtime_api.h>
#include "exec/util.h"

/*
 * A device has a number in its node, and an ordinal in each process that sees it, which is another
 * one under CUDA_VISIBLE_DEVICES. Calls take and return ordinals; the rest of the code has numbers.
 */
int vc_device_count(void); /* that this process sees */
int vc_device_current(void);
/* The same for a call that needs a context: the device has one from now on. */
int vc_device_enter(void);
/* The number of its context, a new one after each reset; 0: it has none. */
unsigned long long vc_device_context(int number);
void vc_device_make_context(int number); /* if there is none */
void vc_device_end_context(int number);
/*
 * The lock of a device's context, which launches take for a moment, and which the driver holds while an
 * asynchronous copy to pageable memory waits for its stream (seen on an H200, driver 580): threads that share the
 * device launch nothing meanwhile.
 */
void vc_context_lock(int number);
void vc_context_unlock(int number);
/* Whether any device has a context. */
bool vc_device_any_context(void);
/* This thread has asked whether a context is alive, and it is. */
void vc_context_found(void);
/*
 * What a reset has ended is used: says so, and ends the process if VC_RESET_STRICT is set, unless the reset
 * came after this thread's last look at a context.
 */
void vc_ended_used(const char *what);
bool vc_device_valid(int ordinal);
int vc_device_number(int ordinal);
int vc_device_ordinal(int number); /* -1: not seen */
/* As NCCL says it: the digits of the PCI address. */
unsigned int vc_device_bus_id(int number);
bool vc_peer_possible(int from, int to);
int vc_node(void);
/* The first error is recorded for cudaGetLastError and returned. */
cudaError_t vc_error(cudaError_t error);
void vc_device_set_sticky(int device, cudaError_t error);
cudaError_t vc_device_sticky(int device);
/* VC_FAULT: kill, stop or delay this rank at its n-th launch. */
void vc_fault_at_launch(int device);

/* First in most calls: a device with a sticky error refuses them. */
#define VC_ENTER()                                                                                 \
	do {                                                                                       \
		cudaError_t vc_sticky_ = vc_device_sticky(vc_device_enter());                      \
		if (vc_sticky_) {                                                                  \
			return vc_error(vc_sticky_);                                               \
		}                                                                                  \
	} while (0)

#endif
