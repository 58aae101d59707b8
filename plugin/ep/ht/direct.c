/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does an operation go directly: do ranks store rows into the receivers' outputs, and load them from
 * the holders' inputs? All ranks must come to the same, so only what they have in common decides. In
 * expert-major layout rows are copied, or summed, on their way, whatever they lie in. In eager mode the
 * tensor of a rank to which no rows come is empty, and has no window perhaps: then no rank goes directly.
 */
#include "core/log.h"
#include "ep/ht/ht.h"
#include "ep/window.h"

/* Why no operation of the handle can be direct, or NULL. */
static const char *ep_ht_direct_excluded(const struct ncclEpHandle *handle)
{
	if (handle->group->remote_ranks) {
		return "only a group of one node can be direct";
	}
	if (handle->layout != NCCL_EP_LAYOUT_FLAT) {
		return "only flat rows can be direct";
	}
	if (handle->group->nranks > EP_HT_DIRECT_RANKS) {
		return "only a group of at most 72 ranks can be direct";
	}
	if (handle->group->config.shape.limit == EP_NO_LIMIT && !handle->ht->all_receive &&
	    handle->group->config.zero_copy != NCCL_EP_ZERO_COPY_ON) {
		return "to some rank no rows come, by what the handle's last dispatch has reported";
	}
	return NULL;
}

/*
 * zero_copy ON wants a window for all that has storage, even where it is of no use. In the flat layout
 * also for a tensor without rows: the others look for this rank's window, and it would not for theirs.
 */
static ncclResult_t ep_ht_direct_demand(const struct ncclEpHandle *handle,
					const ncclEpTensor_t *tensor, const struct ep_view *view,
					const char *name)
{
	if (handle->group->config.zero_copy == NCCL_EP_ZERO_COPY_ON && !tensor->win_hdl &&
	    (view->sizes[0] || handle->layout == NCCL_EP_LAYOUT_FLAT)) {
		return ep_fail(ncclInvalidArgument,
			       "zero_copy ON: %s has no window: register one, or use AUTO", name);
	}
	return ncclSuccess;
}

/* Callers who pass windows want to know what became of them: the log has each change. */
static ncclResult_t ep_ht_direct_decide(const struct ncclEpHandle *handle,
					const ncclEpTensor_t *tensor, const char *excluded,
					const char *why, const char *name, bool *direct)
{
	struct ncclEpGroup *g = handle->group;
	bool on = g->config.zero_copy == NCCL_EP_ZERO_COPY_ON;

	why = excluded ? excluded : why;
	*direct = !why;
	if (!excluded && why && on && tensor->win_hdl) {
		return ep_fail(
			ncclInvalidArgument,
			"zero_copy ON: peers cannot reach %s, since %s: register a window, or "
			"use AUTO",
			name, why);
	}
	if (tensor->win_hdl && g->ht->ring_why != why) {
		g->ht->ring_why = why;
		EP_INFO(EP_LOG_COLL, "group %p rank %d: rows of windows are %s%s", (void *)g,
			g->rank, why ? "not direct: " : "direct", why ? why : "");
	}
	return ncclSuccess;
}

ncclResult_t ep_ht_dispatch_direct(const struct ep_dispatch *dispatch,
				   struct ep_ht_dispatch_args *a, bool *direct)
{
	static const char name[] = "outputs->tokens";
	const char *excluded = ep_ht_direct_excluded(dispatch->h), *why = NULL;

	EP_CHECK(ep_ht_direct_demand(dispatch->h, dispatch->out.tokens, &dispatch->out_tokens,
				     name));
	if (!excluded) {
		why = ep_window_places(a->direct, dispatch->h->group, dispatch->out.tokens,
				       &dispatch->out_tokens);
	}
	if (!excluded && !why && dispatch->scale_bytes) {
		why = ep_window_places(a->direct_scales, dispatch->h->group, dispatch->out.scales,
				       &dispatch->out_scales);
	}
	return ep_ht_direct_decide(dispatch->h, dispatch->out.tokens, excluded, why, name, direct);
}

ncclResult_t ep_ht_combine_direct(const struct ep_combine *c, struct ep_ht_combine_args *a,
				  bool *direct)
{
	static const char name[] = "inputs->tokens";
	const char *excluded = ep_ht_direct_excluded(c->h), *why = NULL;
	unsigned char *places[EP_HT_DIRECT_RANKS];

	EP_CHECK(ep_ht_direct_demand(c->h, c->in.tokens, &c->tokens, name));
	if (!excluded) {
		why = ep_window_places(places, c->h->group, c->in.tokens, &c->tokens);
	}
	for (int r = 0; !excluded && !why && r < c->h->group->nranks; r++) {
		a->direct[r] = places[r];
	}
	return ep_ht_direct_decide(c->h, c->in.tokens, excluded, why, name, direct);
}
