/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where the other ranks have the tensor that this rank has in an NCCL window; the last windows are
 * remembered.
 */
#include <stdlib.h>
#include <string.h>
#include "core/nccl_dyn.h"
#include "ep/ep.h"

static void windows_promote(struct ep_windows *windows, int i)
{
	struct ep_window found = windows->known[i];

	memmove(&windows->known[1], &windows->known[0], (size_t)i * sizeof(found));
	windows->known[0] = found;
}

/*
 * Asks NCCL for the window's start on all ranks: it becomes the latest one that is known. Returns
 * NULL, or why not.
 */
static const char *window_learn(struct ncclEpGroup *g, ncclWindow_t win)
{
	struct ep_window *oldest = &g->windows.known[EP_WINDOWS - 1];
	unsigned char **base = calloc((size_t)g->nranks, sizeof(*base));
	const char *why = NULL;

	if (!base) {
		return "out of host memory";
	}
	for (int r = 0; r < g->nranks && !why; r++) {
		void *p = NULL;

		if (ep_nccl_dyn()->get_peer_device_pointer(win, 0, r, &p) != ncclSuccess) {
			why = "NCCL does not report where the window is on other ranks";
		} else if (!p) {
			why = "the window is out of reach on some ranks (they are not in one LSA "
			      "team)";
		}
		base[r] = p;
	}
	if (why) {
		free(base);
		return why;
	}
	free(oldest->base);
	*oldest = (struct ep_window){ .win = win, .base = base };
	windows_promote(&g->windows, EP_WINDOWS - 1);
	return NULL;
}

/* Offset of the view's last byte in the tensor's window; of its place, if it has none. */
static uint64_t window_last(const ncclEpTensor_t *tensor, const struct ep_view *view)
{
	return tensor->win_offset + ep_max_u64(ep_view_bytes(view), 1) - 1;
}

/*
 * Does the view lie where the tensor's window has it? *end: its last byte, in the window as this
 * rank's peers see it.
 */
static const char *window_check(const struct ncclEpGroup *g, const ncclEpTensor_t *tensor,
				const struct ep_view *view, void **end)
{
	const struct ep_nccl_dyn *nccl = ep_nccl_dyn();
	uint64_t bytes = ep_view_bytes(view), last = window_last(tensor, view);
	void *user = NULL;

	if (!tensor->win_hdl) {
		return "it has no window";
	}
	if (!nccl->win_get_user_ptr || !nccl->get_peer_device_pointer) {
		return "this NCCL does not report where windows are on other ranks: NCCL 2.29.2 and "
		       "later do";
	}
	if (last < tensor->win_offset ||
	    nccl->get_peer_device_pointer(tensor->win_hdl, last, g->rank, end) != ncclSuccess ||
	    !*end) {
		return "the window does not hold all of it";
	}
	if (nccl->win_get_user_ptr(g->comm, tensor->win_hdl, &user) != ncclSuccess ||
	    (bytes && (unsigned char *)user + tensor->win_offset != view->data)) {
		return "its data is not at win_offset of its window";
	}
	return NULL;
}

const char *ep_window_holds(const struct ncclEpGroup *g, const ncclEpTensor_t *tensor,
			    const struct ep_view *view)
{
	void *end = NULL;

	return window_check(g, tensor, view, &end);
}

const char *ep_window_places(unsigned char **at, struct ncclEpGroup *g,
			     const ncclEpTensor_t *tensor, const struct ep_view *view)
{
	const struct ep_window *known = g->windows.known;
	uint64_t last = window_last(tensor, view);
	void *end = NULL;
	const char *why = window_check(g, tensor, view, &end);
	int i = 0;

	if (why) {
		return why;
	}
	/* A handle may come again for another window, which then begins elsewhere here. */
	while (i < EP_WINDOWS && known[i].base &&
	       (known[i].win != tensor->win_hdl || known[i].base[g->rank] + last != end)) {
		i++;
	}
	if (i < EP_WINDOWS && known[i].base) {
		windows_promote(&g->windows, i);
	} else {
		why = window_learn(g, tensor->win_hdl);
	}
	for (int r = 0; !why && r < g->nranks; r++) {
		at[r] = known[0].base[r] + tensor->win_offset;
	}
	return why;
}

void ep_windows_free(struct ep_windows *windows)
{
	for (int i = 0; i < EP_WINDOWS; i++) {
		free(windows->known[i].base);
	}
	memset(windows, 0, sizeof(*windows));
}
