/* SPDX-License-Identifier: Apache-2.0 */
/* Calls in threads of their own, which are left to themselves when they take too long. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "core/timed_call.h"
#include "core/util.h"

#define EP_THREAD_TRIES 10
#define EP_THREAD_NAP_NS 5000000

enum timed_call_state {
	EP_TIMED_CALL_NEW,
	EP_TIMED_CALL_READY, /* the thread waits for `go` or `alone` */
	EP_TIMED_CALL_DONE
};

struct ep_timed_call {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* one of the next three */
	enum timed_call_state state;
	bool go;
	bool alone; /* nobody waits for it any more */
	pthread_t thread;
	int (*ready)(void *arg);
	void (*fn)(void *arg);
	int error; /* of `ready` */
	_Alignas(16) unsigned char arg[];
};

int ep_thread_start(pthread_t *thread, void *(*fn)(void *), void *arg)
{
	struct timespec nap = { 0, EP_THREAD_NAP_NS };
	sigset_t all, before;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	error = pthread_create(thread, NULL, fn, arg);
	for (int i = 1; error == EAGAIN && i < EP_THREAD_TRIES; i++) {
		nanosleep(&nap, NULL);
		error = pthread_create(thread, NULL, fn, arg);
	}
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return error;
}

const char *ep_thread_error_print(int error, char text[EP_THREAD_ERROR_TEXT])
{
	snprintf(text, EP_THREAD_ERROR_TEXT, "%s%s", strerror(error),
		 error == EAGAIN ? " (ulimit -u, or the container's limit of processes?)" : "");
	return text;
}

static void timed_call_free(struct ep_timed_call *call)
{
	pthread_cond_destroy(&call->changed);
	pthread_mutex_destroy(&call->lock);
	free(call);
}

/* Under the lock. */
static void timed_call_become(struct ep_timed_call *call, enum timed_call_state state)
{
	call->state = state;
	pthread_cond_signal(&call->changed);
}

static void *timed_call_main(void *arg)
{
	struct ep_timed_call *call = arg;
	int error = call->ready ? call->ready(call->arg) : 0;
	bool alone, go;

	pthread_mutex_lock(&call->lock);
	call->error = error;
	timed_call_become(call, EP_TIMED_CALL_READY);
	while (!call->go && !call->alone) {
		pthread_cond_wait(&call->changed, &call->lock);
	}
	go = call->go;
	pthread_mutex_unlock(&call->lock);
	if (go) {
		call->fn(call->arg);
	}
	pthread_mutex_lock(&call->lock);
	timed_call_become(call, EP_TIMED_CALL_DONE);
	alone = call->alone;
	pthread_mutex_unlock(&call->lock);
	if (alone) {
		timed_call_free(call);
	}
	return NULL;
}

static struct ep_timed_call *timed_call_new(const void *arg, size_t bytes)
{
	struct ep_timed_call *call = calloc(1, sizeof(*call) + bytes);
	pthread_condattr_t attr;

	if (!call) {
		return NULL;
	}
	memcpy(call->arg, arg, bytes);
	pthread_mutex_init(&call->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&call->changed, &attr);
	pthread_condattr_destroy(&attr);
	return call;
}

int ep_timed_call_begin(struct ep_timed_call **out, int (*ready)(void *arg), void (*fn)(void *arg),
			void *arg, size_t bytes)
{
	struct ep_timed_call *call = timed_call_new(arg, bytes);
	int error;

	*out = NULL;
	if (!call) {
		return ENOMEM;
	}
	call->ready = ready;
	call->fn = fn;
	error = ep_thread_start(&call->thread, timed_call_main, call);
	if (error) {
		timed_call_free(call);
		return error;
	}
	pthread_mutex_lock(&call->lock);
	while (ready && call->state == EP_TIMED_CALL_NEW) {
		pthread_cond_wait(&call->changed, &call->lock);
	}
	error = call->error;
	memcpy(arg, call->arg, bytes);
	pthread_mutex_unlock(&call->lock);
	if (error) {
		ep_timed_call_end(call);
		return error;
	}
	*out = call;
	return 0;
}

int ep_timed_call_go(struct ep_timed_call *call, void *arg, size_t bytes, uint64_t timeout_ns)
{
	uint64_t end = ep_now_ns() + ep_min_u64(timeout_ns, EP_TIMED_CALL_LONGEST_NS);
	struct timespec limit = { (time_t)(end / 1000000000), (long)(end % 1000000000) };
	bool done;

	pthread_mutex_lock(&call->lock);
	call->go = true;
	pthread_cond_signal(&call->changed);
	while (call->state != EP_TIMED_CALL_DONE &&
	       pthread_cond_timedwait(&call->changed, &call->lock, &limit) == 0) {
	}
	done = call->state == EP_TIMED_CALL_DONE;
	if (done) {
		memcpy(arg, call->arg, bytes);
	}
	pthread_mutex_unlock(&call->lock);
	return done ? 0 : ETIMEDOUT;
}

void ep_timed_call_end(struct ep_timed_call *call)
{
	bool done, running;
	pthread_t thread;

	if (!call) {
		return;
	}
	pthread_mutex_lock(&call->lock);
	thread = call->thread;
	done = call->state == EP_TIMED_CALL_DONE;
	running = call->go && !done;
	call->alone = !done; /* the thread frees it then */
	pthread_cond_signal(&call->changed);
	pthread_mutex_unlock(&call->lock);
	if (running) {
		pthread_detach(thread);
		return;
	}
	pthread_join(thread, NULL);
	if (done) {
		timed_call_free(call);
	}
}

int ep_timed_call(void (*fn)(void *arg), void *arg, size_t bytes, uint64_t timeout_ns)
{
	struct ep_timed_call *call;
	int error = ep_timed_call_begin(&call, NULL, fn, arg, bytes);

	if (error) {
		return error;
	}
	error = ep_timed_call_go(call, arg, bytes, timeout_ns);
	ep_timed_call_end(call);
	return error;
}
