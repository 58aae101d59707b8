/* SPDX-License-Identifier: Apache-2.0 */
/* A group ends, or what is left of one that could not be made. */
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "core/cuda.h"
#include "core/log.h"
#include "core/registry.h"
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

/* The caller's allocator is not called any more once the call has returned. */
static void remains_leave(struct remains *remains)
{
	if (remains->group && remains->group->workspace && remains->group->config.alloc.free_fn) {
		EP_WARN("rank %d: memory of alloc_fn for the group's own state is not given back: "
			"free_fn may wait for the device, which a collective holds up",
			remains->boot.rank);
		remains->group->workspace = NULL;
	}
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
	remains_leave(&r);
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

/* ---- frees what a group holds, with what is left of its handles ---- */

void ep_handle_delist(struct ncclEpHandle *handle)
{
	*handle->link = handle->next;
	if (handle->next) {
		handle->next->link = handle->link;
	}
}

/* The group goes: its handles have none any more, and their memory of the library is freed. */
static void handles_orphan(struct ncclEpGroup *g)
{
	struct ncclEpHandle *h;
	uint32_t count = 0;

	while ((h = g->handles)) {
		ep_handle_delist(h);
		if (h->mem_owned) {
			ep_free(g, h->mem);
		}
		h->group = NULL;
		count++;
	}
	if (count) {
		EP_WARN("ncclEpGroupDestroy: rank %d's group goes before %u of its handles, which "
			"can only be destroyed from now on",
			g->rank, count);
	}
}

void ep_group_free(struct ncclEpGroup *g)
{
	ep_resident_remove(&g->resident);
	ep_watch_end(&g->watch);
	/* (a group that was made is retired by now) */
	(void)ep_registry_remove(g, EP_REGISTRY_MAKING);
	handles_orphan(g);
	ep_pool_drain(g);
	ep_free(g, g->workspace);
	ep_pinned_free(&g->shared, g->reset);
	ep_show_close(&g->show, g->reset);
	if (g->event && !g->reset && cudaEventDestroy(g->event) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	if (g->stream && !g->reset && cudaStreamDestroy(g->stream) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	free(g->ll);
	free(g->ht);
	ep_windows_free(&g->windows);
	free(g->stats_host);
	free(g->mask_host);
	free(g->idents);
	ep_error_slot_destroy(&g->errors);
	pthread_mutex_destroy(&g->lock);
	free(g);
}
