/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Do NICs read an operation's rows from the caller's tensor? Each rank decides for itself: peers see no
 * difference.
 */
#include "core/log.h"
#include "ep/ll/ll.h"
#include "ep/window.h"
#include "gda/state.h"

/* Why it is not worth while, or not wanted; NULL: it is. */
static const char *ep_ll_source_excluded(const struct ncclEpGroup *g, uint32_t row_bytes,
					 bool send_only)
{
	uint64_t bytes = (uint64_t)g->config.shape.max_tokens * row_bytes;

	if (send_only) {
		return "with send_only it may be written before they have read it";
	}
	if (g->config.zero_copy == NCCL_EP_ZERO_COPY_OFF) {
		return "zero_copy is OFF";
	}
	if (g->config.zero_copy != NCCL_EP_ZERO_COPY_ON &&
	    (g->config.direct_bytes < 0 || bytes < (uint64_t)g->config.direct_bytes)) {
		return "zero_copy is AUTO, and max_dispatch_tokens_per_rank rows are less than "
		       "NCCL_EP_LL_DIRECT_BYTES";
	}
	return NULL;
}

void ep_ll_source_choose(struct ncclEpGroup *g, enum ep_ll_source_of of,
			 const ncclEpTensor_t *tensor, const struct ep_view *view,
			 uint32_t row_bytes, bool send_only, struct ep_mlx5_source *out)
{
	static const char *const names[] = { "dispatch", "combine" };
	const char *why;

	if (!g->remote_ranks || !tensor->win_hdl || !view->data) {
		return;
	}
	why = ep_ll_source_excluded(g, row_bytes, send_only);
	if (!why) {
		why = ep_window_holds(g, tensor, view);
	}
	if (!why) {
		why = ep_gda_user_mr_find(g->gda, view->data, ep_view_bytes(view), out);
	}
	if (g->ll->copied_why[of] != why) {
		g->ll->copied_why[of] = why;
		EP_INFO(EP_LOG_NET, "group %p rank %d: NICs read the rows of %s from %s%s",
			(void *)g, g->rank, names[of],
			why ? "copies, not from inputs->tokens: " : "inputs->tokens",
			why ? why : "");
	}
}
