/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the device has come to rest. CUDA's calls that free memory wait for everything on it, the
 * program's own kernels too, and CUDA can be asked without waiting about single streams only. So a
 * thread waits, and is left to itself where that takes too long.
 */
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "core/log.h"
#include "gda/internal.h"

struct ep_gda_idler {
	pthread_mutex_t lock;
	pthread_cond_t over;
	int device;
	bool idle;
	bool alone; /* nobody waits for it any more */
};

static void ep_gda_idler_free(struct ep_gda_idler *w)
{
	pthread_cond_destroy(&w->over);
	pthread_mutex_destroy(&w->lock);
	free(w);
}

static void *ep_gda_idler_main(void *arg)
{
	/* Captures of other threads take no harm. */
	enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
	struct ep_gda_idler *w = arg;
	bool alone;

	cudaThreadExchangeStreamCaptureMode(&mode);
	/* A device that has failed runs nothing either. */
	if (cudaSetDevice(w->device) == cudaSuccess) {
		(void)cudaDeviceSynchronize();
	}
	(void)cudaGetLastError();
	pthread_mutex_lock(&w->lock);
	w->idle = true;
	alone = w->alone;
	pthread_cond_signal(&w->over);
	pthread_mutex_unlock(&w->lock);
	if (alone) {
		ep_gda_idler_free(w);
	}
	return NULL;
}

static struct ep_gda_idler *ep_gda_idler_new(int device)
{
	struct ep_gda_idler *w = calloc(1, sizeof(*w));
	pthread_condattr_t attr;

	if (!w) {
		return NULL;
	}
	w->device = device;
	pthread_mutex_init(&w->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&w->over, &attr);
	pthread_condattr_destroy(&attr);
	return w;
}

/* False: not within that time, or nobody can tell. */
bool ep_gda_idle(int device, uint64_t timeout_ns)
{
	struct ep_gda_idler *w = ep_gda_idler_new(device);
	uint64_t end = ep_now_ns() + timeout_ns;
	struct timespec limit = { (time_t)(end / 1000000000), (long)(end % 1000000000) };
	pthread_t thread;
	bool idle;

	if (!w) {
		return false;
	}
	if (ep_gda_thread(&thread, ep_gda_idler_main, w)) {
		ep_gda_idler_free(w);
		return false;
	}
	pthread_mutex_lock(&w->lock);
	while (!w->idle && pthread_cond_timedwait(&w->over, &w->lock, &limit) == 0) {
	}
	idle = w->idle;
	w->alone = !idle;
	pthread_mutex_unlock(&w->lock);
	if (!idle) {
		pthread_detach(thread);
		return false;
	}
	pthread_join(thread, NULL);
	ep_gda_idler_free(w);
	return true;
}
