/* SPDX-License-Identifier: Apache-2.0 */
/* Frees what a group holds, with what is left of its handles. */
#include <stdlib.h>
#include "core/cuda.h"
#include "core/registry.h"
#include "core/log.h"
#include "ep/alloc.h"
#include "ep/group_watch.h"
#include "ep/release.h"
#include "ep/resident.h"
#include "ep/show.h"
#include "ep/window.h"

void ep_handle_delist(struct ncclEpHandle *handle)
{
	*handle->link = handle->next;
	if (handle->next) {
		handle->next->link = handle->link;
	}
}

/* The group goes: its handles have none any more, and their memory of the library is freed. */
static void ep_handles_orphan(struct ncclEpGroup *g)
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
	ep_handles_orphan(g);
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
