/* SPDX-License-Identifier: Apache-2.0 */
/* Stream capture. */
#ifndef VC_CAPTURE_H
#define VC_CAPTURE_H

#include "cuda/event.h"
#include "cuda/graph.h"
#include "cuda/stream.h"

struct vc_capture {
	int refs;
	bool invalid, ended;
	enum cudaStreamCaptureMode mode;
	pthread_t thread;
	unsigned long long id;
	struct CUstream_st *origin;
	struct CUgraph_st *graph;
	struct vc_capture *next; /* all that have not ended */
};

/* All with vc_lock held. */
cudaError_t vc_capture_append(struct CUstream_st *stream, struct vc_work *work);
cudaError_t vc_capture_event(struct CUstream_st *stream, struct CUevent_st *event);
cudaError_t vc_capture_wait(struct CUstream_st *stream, struct CUevent_st *event);
bool vc_capture_busy(struct CUstream_st *stream);
void vc_capture_invalidate(struct vc_capture *capture);
void vc_capture_put(struct vc_capture *capture);
/* Work on the legacy stream would join every capture of a blocking stream. */
cudaError_t vc_capture_check_legacy(int device);
void vc_capture_event_reset(struct CUevent_st *event);
/* For calls that wait for all streams of a device, which no capture allows; takes the lock. */
cudaError_t vc_capture_check_device(int device);
/* For calls that no global capture allows (allocation and the like); takes the lock. */
cudaError_t vc_capture_check_unsafe(void);

#endif
