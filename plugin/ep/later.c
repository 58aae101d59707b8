/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "core/timed_call.h"
#include "core/log.h"
#include "ep/later.h"
#include "gda/gda.h"

struct ep_remains {
	struct ep_boot boot;
	int device;
	struct ncclEpGroup *group; /* NULL: none, and then */
	struct ep_heap heap;
	struct ep_remains *next;
};

/* What waits for a thread. */
static struct ep_remains *ep_remains_list;
static pthread_mutex_t ep_remains_lock = PTHREAD_MUTEX_INITIALIZER;

/* Ends early if a collective gets stuck in it. */
static void ep_remains_clear(struct ep_remains *r)
{
	if (r->group) {
		ep_gda_close(r->group->gda); /* first: NICs may still reach the heap */
		r->group->gda = NULL;
	}
	ep_heap_close(r->group ? &r->group->peer_heap : &r->heap, &r->boot);
	if (r->boot.stuck || r->boot.busy) {
		return;
	}
	if (r->group) {
		ep_group_free(r->group);
	}
	ep_boot_close(&r->boot);
}

static void ep_remains_clear_late(void *arg)
{
	struct ep_remains *r = arg;

	ep_boot_rest(&r->boot, r->device);
	if (r->group) {
		r->group->reset = ep_context_ended(&r->group->context);
	}
	ep_remains_clear(r);
}

/* The caller's allocator is not called any more once the call has returned. */
static void ep_remains_leave(struct ep_remains *r)
{
	if (r->group && r->group->workspace && r->group->config.alloc.free_fn) {
		EP_WARN("rank %d: memory of alloc_fn for the group's own state is not given back: "
			"free_fn may wait for the device, which a collective holds up",
			r->boot.rank);
		r->group->workspace = NULL;
	}
}

/* False: no thread can be started, or there is no memory for it. */
static bool ep_remains_start(struct ep_remains *r)
{
	int error = ep_timed_call(ep_remains_clear_late, r, sizeof(*r), 0);

	return !error || error == ETIMEDOUT;
}

static void ep_remains_enlist(struct ep_remains *r)
{
	pthread_mutex_lock(&ep_remains_lock);
	r->next = ep_remains_list;
	ep_remains_list = r;
	pthread_mutex_unlock(&ep_remains_lock);
}

void ep_group_give_up_again(void)
{
	struct ep_remains *all, *r;

	pthread_mutex_lock(&ep_remains_lock);
	all = ep_remains_list;
	ep_remains_list = NULL;
	pthread_mutex_unlock(&ep_remains_lock);
	while ((r = all)) {
		all = r->next;
		if (ep_remains_start(r)) {
			free(r);
		} else {
			ep_remains_enlist(r);
		}
	}
}

void ep_group_give_up(struct ep_boot *boot, int device, struct ncclEpGroup *group,
		      struct ep_heap *heap)
{
	struct ep_remains r = { .boot = *boot, .device = device, .group = group }, *copy;

	if (heap) {
		r.heap = *heap;
	}
	if (!boot->stuck) {
		ep_remains_clear(&r);
		*boot = r.boot;
	}
	if (!boot->stuck && !boot->busy) {
		return;
	}
	ep_remains_leave(&r);
	if (ep_remains_start(&r)) {
		return;
	}
	copy = malloc(sizeof(*copy));
	if (!copy) {
		EP_WARN("rank %d: memory stays allocated: no thread can wait for the device, nor "
			"is there memory to note that",
			boot->rank);
		return;
	}
	*copy = r;
	ep_remains_enlist(copy);
}
