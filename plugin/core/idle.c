/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether the device has come to rest. CUDA's calls that free memory wait for everything on it, the
 * program's own kernels too, and CUDA can be asked without waiting about single streams only. So a
 * thread waits, and is left to itself where that takes too long.
 */
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#include "core/idle.h"
#include "core/util.h"

struct ep_idler {
	pthread_mutex_t lock;
	pthread_cond_t over;
	int device;
	bool idle;
	bool alone; /* nobody waits for it any more */
	cudaError_t error;
};

int ep_thread_start(pthread_t *thread, void *(*fn)(void *), void *arg)
{
	sigset_t all, before;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(thread, NULL, fn, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

static void ep_idler_free(struct ep_idler *w)
{
	pthread_cond_destroy(&w->over);
	pthread_mutex_destroy(&w->lock);
	free(w);
}

static void *ep_idler_main(void *arg)
{
	/* Captures of other threads take no harm. */
	enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
	struct ep_idler *w = arg;
	cudaError_t error;
	bool alone;

	cudaThreadExchangeStreamCaptureMode(&mode);
	error = cudaSetDevice(w->device);
	if (error == cudaSuccess) {
		error = cudaDeviceSynchronize();
	}
	(void)cudaGetLastError();
	pthread_mutex_lock(&w->lock);
	w->idle = true;
	w->error = error;
	alone = w->alone;
	pthread_cond_signal(&w->over);
	pthread_mutex_unlock(&w->lock);
	if (alone) {
		ep_idler_free(w);
	}
	return NULL;
}

static struct ep_idler *ep_idler_new(int device)
{
	struct ep_idler *w = calloc(1, sizeof(*w));
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

cudaError_t ep_device_wait(int device, uint64_t timeout_ns)
{
	struct ep_idler *w = ep_idler_new(device);
	uint64_t end = ep_now_ns() + ep_min_u64(timeout_ns, EP_IDLE_LONGEST_NS);
	struct timespec limit = { (time_t)(end / 1000000000), (long)(end % 1000000000) };
	cudaError_t error = cudaErrorNotReady;
	pthread_t thread;

	if (!w) {
		return cudaErrorNotReady;
	}
	if (ep_thread_start(&thread, ep_idler_main, w)) {
		ep_idler_free(w);
		return cudaErrorNotReady;
	}
	pthread_mutex_lock(&w->lock);
	while (!w->idle && pthread_cond_timedwait(&w->over, &w->lock, &limit) == 0) {
	}
	if (!w->idle) {
		w->alone = true;
		pthread_mutex_unlock(&w->lock);
		pthread_detach(thread);
		return cudaErrorNotReady;
	}
	error = w->error;
	pthread_mutex_unlock(&w->lock);
	pthread_join(thread, NULL);
	ep_idler_free(w);
	return error;
}
