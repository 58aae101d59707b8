/* SPDX-License-Identifier: Apache-2.0 */
/* The beginning and the end of every call on a group. */
#ifndef EP_EP_CALL_H
#define EP_EP_CALL_H

#include "ep/objects.h"

/* Errors of the five calls of masks; the argument is the call's name. */
#define EP_CALL_NO_MASK                                                                            \
	"%s: the group was created without enable_mask, or in high throughput mode, which has no " \
	"masks"
#define EP_CALL_NO_POINTER "%s: %s is NULL"

/*
 * Begins a call: checks the object, takes the group's lock, makes its device current and looks for
 * failures of device operations. On failure nothing needs ending.
 * `even_failed`: the call is possible after the group has failed, but not if its device was reset.
 */
ncclResult_t ep_call_begin_group(struct ep_call *call, struct ncclEpGroup *group, bool even_failed);
ncclResult_t ep_call_begin_handle(struct ep_call *call, struct ncclEpHandle *handle,
				  bool even_failed);

/*
 * For the group's end: the same, and it is possible also after the device was reset. Of several threads
 * one begins it; another may after ep_call_stay(), by which a group is not destroyed after all.
 */
ncclResult_t ep_call_begin_end(struct ep_call *call, struct ncclEpGroup *group);
void ep_call_stay(struct ncclEpGroup *group);

/*
 * The same for calls that need no device: the thread's device stays as it is. To make a device
 * current means to make a context on it, where the thread's own device is concerned as well.
 */
ncclResult_t ep_call_begin_group_host(struct ep_call *call, struct ncclEpGroup *group,
				      bool even_failed);
ncclResult_t ep_call_begin_handle_host(struct ep_call *call, struct ncclEpHandle *handle,
				       bool even_failed);

/*
 * ncclEpGetAsyncError: by any thread while another one is in a call on the group, without waiting
 * for that. The group may be destroyed while this runs.
 */
ncclResult_t ep_call_async_error(struct ncclEpGroup *group, int *error);

/* From now on the group is no group any more. The caller is in a call on it. */
void ep_call_retire(struct ncclEpGroup *group);

/* That it is a handle; its group may have been destroyed. */
ncclResult_t ep_handle_expect(const struct ncclEpHandle *handle);

/* Ends it. Returns `result`. */
ncclResult_t ep_call_end(struct ep_call *call, ncclResult_t result);

/* Refuses a stream that is being captured, for calls that read or write host memory. */
ncclResult_t ep_stream_check_capture(cudaStream_t stream, const char *name);

#endif
