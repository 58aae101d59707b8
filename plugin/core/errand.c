/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "core/errand.h"
#include "core/util.h"

struct ep_errand {
	pthread_mutex_t lock;
	pthread_cond_t over;
	void (*fn)(void *arg);
	bool done;
	bool alone; /* nobody waits for it any more */
	_Alignas(16) unsigned char arg[];
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

static void ep_errand_free(struct ep_errand *e)
{
	pthread_cond_destroy(&e->over);
	pthread_mutex_destroy(&e->lock);
	free(e);
}

static void *ep_errand_main(void *arg)
{
	struct ep_errand *e = arg;
	bool alone;

	e->fn(e->arg);
	pthread_mutex_lock(&e->lock);
	e->done = true;
	alone = e->alone;
	pthread_cond_signal(&e->over);
	pthread_mutex_unlock(&e->lock);
	if (alone) {
		ep_errand_free(e);
	}
	return NULL;
}

static struct ep_errand *ep_errand_new(void (*fn)(void *), const void *arg, size_t bytes)
{
	struct ep_errand *e = calloc(1, sizeof(*e) + bytes);
	pthread_condattr_t attr;

	if (!e) {
		return NULL;
	}
	e->fn = fn;
	memcpy(e->arg, arg, bytes);
	pthread_mutex_init(&e->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&e->over, &attr);
	pthread_condattr_destroy(&attr);
	return e;
}

int ep_errand_run(void (*fn)(void *arg), void *arg, size_t bytes, uint64_t timeout_ns)
{
	struct ep_errand *e = ep_errand_new(fn, arg, bytes);
	uint64_t end = ep_now_ns() + ep_min_u64(timeout_ns, EP_ERRAND_LONGEST_NS);
	struct timespec limit = { (time_t)(end / 1000000000), (long)(end % 1000000000) };
	pthread_t thread;
	int error;

	if (!e) {
		return ENOMEM;
	}
	error = ep_thread_start(&thread, ep_errand_main, e);
	if (error) {
		ep_errand_free(e);
		return error;
	}
	pthread_mutex_lock(&e->lock);
	while (!e->done && pthread_cond_timedwait(&e->over, &e->lock, &limit) == 0) {
	}
	if (!e->done) {
		e->alone = true;
		pthread_mutex_unlock(&e->lock);
		pthread_detach(thread);
		return ETIMEDOUT;
	}
	pthread_mutex_unlock(&e->lock);
	pthread_join(thread, NULL);
	memcpy(arg, e->arg, bytes);
	ep_errand_free(e);
	return 0;
}
