/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What is left of a group that could not be made, or of its growth: it is given back at once, or by
 * a thread when the device is at rest.
 */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include "core/cuda.h"
#include "core/log.h"
#include "core/timed_call.h"
#include "ep/ep.h"
#include "gda/gda.h"
#include "peer/peer.h"

struct remains {
	struct ep_boot boot;
	int device;
	struct ncclEpGroup *group; /* NULL: none, and then */
	struct ep_heap heap;
	struct remains *next;
};

/* Work that waits for a thread. */
static struct remains *remains_list;
static pthread_mutex_t remains_lock = PTHREAD_MUTEX_INITIALIZER;

/* Ends early if a collective gets stuck in it. */
static void remains_clear(struct remains *remains)
{
	if (remains->group) {
		ep_gda_close(remains->group->gda); /* first: NICs may still reach the heap */
		remains->group->gda = NULL;
	}
	ep_heap_close(remains->group ? &remains->group->peer_heap : &remains->heap, &remains->boot);
	if (remains->boot.stuck || remains->boot.busy) {
		return;
	}
	if (remains->group) {
		ep_group_free(remains->group);
	}
	ep_boot_close(&remains->boot);
}

static void remains_clear_late(void *arg)
{
	struct remains *r = arg;

	ep_boot_rest(&r->boot, r->device);
	if (r->group) {
		r->group->reset = ep_context_ended(&r->group->context);
	}
	remains_clear(r);
}

/* False: no thread can be started, or there is no memory for it. */
static bool remains_start(struct remains *remains)
{
	int error = ep_timed_call(remains_clear_late, remains, sizeof(*remains), 0);

	return !error || error == ETIMEDOUT;
}

static void remains_enlist(struct remains *remains)
{
	pthread_mutex_lock(&remains_lock);
	remains->next = remains_list;
	remains_list = remains;
	pthread_mutex_unlock(&remains_lock);
}

void ep_group_give_up_again(void)
{
	struct remains *all, *r;

	pthread_mutex_lock(&remains_lock);
	all = remains_list;
	remains_list = NULL;
	pthread_mutex_unlock(&remains_lock);
	while ((r = all)) {
		all = r->next;
		if (remains_start(r)) {
			free(r);
		} else {
			remains_enlist(r);
		}
	}
}

void ep_group_give_up(struct ep_boot *boot, int device, struct ncclEpGroup *group,
		      struct ep_heap *heap)
{
	struct remains r = { .boot = *boot, .device = device, .group = group }, *copy;

	if (heap) {
		r.heap = *heap;
	}
	if (!boot->stuck) {
		remains_clear(&r);
		*boot = r.boot;
	}
	if (!boot->stuck && !boot->busy) {
		return;
	}
	/* The caller's allocator is not called any more once the call has returned. */
	if (group && group->workspace && group->config.alloc.free_fn) {
		EP_WARN("rank %d: memory of alloc_fn for the group's own state is not given back: "
			"free_fn may wait for the device, which a collective holds up",
			boot->rank);
		group->workspace = NULL;
	}
	if (remains_start(&r)) {
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
	remains_enlist(copy);
}
