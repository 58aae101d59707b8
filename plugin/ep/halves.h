/* SPDX-License-Identifier: Apache-2.0 */
/* Operations that two launches send and receive: what is sent and not received yet. */
#ifndef EP_EP_HALVES_H
#define EP_EP_HALVES_H

#include "ep/objects.h"

/* That no operation of the handle has been sent and not received: outside of captures, and in that of `stream`. */
ncclResult_t ep_halves_check_received(const struct ncclEpHandle *handle, const char *name);
ncclResult_t ep_halves_check_idle(const struct ncclEpHandle *handle, const char *name,
				  cudaStream_t stream);
/* The same, and the group has a bank for an operation on `stream`, send_only or whole. */
ncclResult_t ep_halves_check(const struct ncclEpHandle *handle, bool send_only, const char *name,
			     cudaStream_t stream);
/* That no bank of the device holds an operation, before the heap is replaced. The device is at rest. */
ncclResult_t ep_halves_check_device(const struct ncclEpGroup *group, uint32_t topk);

/* The operation is launched on `stream`, or its send half if send_only. */
void ep_halves_launched(struct ncclEpHandle *handle, enum ep_pending_kind kind, bool send_only,
			cudaStream_t stream);
/* No receive half follows what the handle has sent. */
void ep_halves_forget(struct ncclEpHandle *handle);

/* ncclEpComplete, inside the group. */
ncclResult_t ep_halves_complete(struct ncclEpHandle *handle, const ncclEpCompleteConfig_t *config,
				cudaStream_t stream);

#endif
