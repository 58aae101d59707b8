/* SPDX-License-Identifier: Apache-2.0 */
/* Events. */
#ifndef VC_EVENT_H
#define VC_EVENT_H

#include <stdbool.h>
#include <stdint.h>
#include <cuda_runtime_api.h>

struct vc_marker { /* one recording of an event */
	int refs;
	bool done;
	uint64_t time_ns;
};

struct CUevent_st {
	int device;
	bool ended; /* by a reset; stays on the list, so that no other gets its address */
	unsigned int flags;
	struct vc_marker *marker;   /* NULL: never recorded */
	struct vc_capture *capture; /* last recorded in this capture, or NULL */
	uint32_t *nodes;            /* the capture's nodes that precede it */
	uint32_t nnodes;
	struct CUevent_st *next;
};

void vc_marker_put(struct vc_marker *marker);
struct CUevent_st *vc_event_find(cudaEvent_t event);
void vc_events_end(int device);

#endif
