/* SPDX-License-Identifier: Apache-2.0 */
/* Callers' tensors in NCCL windows, as peers of the node see them. */
#ifndef EP_EP_WINDOW_H
#define EP_EP_WINDOW_H

#include "ep/objects.h"

/*
 * Finds where every rank has the tensor of `view`, if all ranks pass the same offset in the same
 * window. Returns NULL, or why peers cannot store to it, and then *out is not written. The result
 * is good until the next call. It waits for nothing and uses no stream.
 */
const char *ep_window_find(const struct ep_window **out, struct ncclEpGroup *g,
			   const ncclEpTensor_t *tensor, const struct ep_view *view);

/* The same as an address on every rank: at[R]. */
const char *ep_window_places(unsigned char **at, struct ncclEpGroup *g,
			     const ncclEpTensor_t *tensor, const struct ep_view *view);

/* NULL, or why the view of the tensor does not lie in its window on this rank. */
const char *ep_window_holds(const struct ncclEpGroup *g, const ncclEpTensor_t *tensor,
			    const struct ep_view *view);

void ep_windows_free(struct ep_windows *windows);

#endif
