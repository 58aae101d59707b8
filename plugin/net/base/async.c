/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The asynchronous thread. NCCL does not call for a connection on which it has nothing under way. Its
 * other end may have, if a path has failed: it waits for a control message. So a thread reads the
 * sockets of such connections. It sleeps until there is something to read, and ends with the last one.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>
#include "core/timed_call.h"
#include "core/error.h"
#include "net/base/async.h"
#include "net/base/handles.h"

#define EP_NET_EVENTS 16

struct ep_net_async {
	pthread_t thread;
	int epoll, wake; /* wake: it shall end */
	uint32_t n;      /* sockets */
	ep_net_async_fn *fn;
};

/* Held while the thread uses an object, so that none is freed then. */
static pthread_mutex_t ep_net_async_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ep_net_async *ep_net_async;

/* A handle may be that of no object any more. */
static void ep_net_async_one(const struct ep_net_async *a, const void *handle)
{
	void *object = ep_net_handle_get(ep_net_kind_of(handle), handle);

	if (object) {
		a->fn(a, object);
	}
}

static void *ep_net_async_main(void *arg)
{
	struct ep_net_async *a = arg;
	struct epoll_event event[EP_NET_EVENTS];

	for (;;) {
		int n = epoll_wait(a->epoll, event, EP_NET_EVENTS, -1);

		for (int i = 0; i < n; i++) {
			if (!event[i].data.u64) {
				return NULL;
			}
			pthread_mutex_lock(&ep_net_async_lock);
			ep_net_async_one(a, (void *)(uintptr_t)event[i].data.u64);
			pthread_mutex_unlock(&ep_net_async_lock);
		}
	}
}

static void ep_net_async_free(struct ep_net_async *a)
{
	if (a->wake >= 0) {
		close(a->wake);
	}
	if (a->epoll >= 0) {
		close(a->epoll);
	}
	free(a);
}

static struct ep_net_async *ep_net_async_new(void)
{
	struct ep_net_async *a = calloc(1, sizeof(*a));
	struct epoll_event wake = { .events = EPOLLIN };

	if (!a) {
		return NULL;
	}
	a->epoll = epoll_create1(EPOLL_CLOEXEC);
	a->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (a->epoll < 0 || a->wake < 0 ||
	    epoll_ctl(a->epoll, EPOLL_CTL_ADD, a->wake, &wake) != 0) {
		goto err_free;
	}
	errno = ep_thread_start(&a->thread, ep_net_async_main, a);
	if (errno) {
		goto err_free;
	}
	return a;

err_free:
	ep_net_async_free(a);
	return NULL;
}

void ep_net_async_skip(const struct ep_net_async *a, int fd)
{
	(void)epoll_ctl(a->epoll, EPOLL_CTL_DEL, fd, NULL);
}

ncclResult_t ep_net_async_add(const void *handle, int fd, ep_net_async_fn *fn)
{
	struct epoll_event event = { .events = EPOLLIN | EPOLLRDHUP,
				     .data.u64 = (uintptr_t)handle };
	char text[EP_THREAD_ERROR_TEXT];
	bool good = false;

	pthread_mutex_lock(&ep_net_async_lock);
	if (!ep_net_async) {
		ep_net_async = ep_net_async_new();
	}
	if (ep_net_async) {
		ep_net_async->fn = fn;
		good = epoll_ctl(ep_net_async->epoll, EPOLL_CTL_ADD, fd, &event) == 0;
		ep_net_async->n += good;
	}
	pthread_mutex_unlock(&ep_net_async_lock);
	return good ? ncclSuccess
		    : ep_fail(ncclSystemError, "no thread for control messages of a connection: %s",
			      ep_thread_error_print(errno, text));
}

void ep_net_async_remove(int fd)
{
	struct ep_net_async *last = NULL;
	uint64_t one = 1;

	pthread_mutex_lock(&ep_net_async_lock);
	(void)epoll_ctl(ep_net_async->epoll, EPOLL_CTL_DEL, fd, NULL);
	if (--ep_net_async->n == 0) {
		last = ep_net_async;
		ep_net_async = NULL;
	}
	pthread_mutex_unlock(&ep_net_async_lock);
	if (last) {
		if (write(last->wake, &one, sizeof(one)) == sizeof(one)) {
			pthread_join(last->thread, NULL);
		}
		ep_net_async_free(last);
	}
}
