/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Does a dispatch go directly, that is, do its senders store rows into the receivers' outputs? All
 * ranks must come to the same, so only what they have in common decides.
 */
#include "core/log.h"
#include "ep/ll/ll.h"
#include "ep/window.h"

/* The same number on two ranks if both have their outputs at the same offsets. */
static uint32_t ep_ll_direct_form(uint64_t tokens, uint64_t scales)
{
	uint64_t h = tokens * 0x9e3779b97f4a7c15u + scales * 0xc2b2ae3d27d4eb4fu;

	return (uint32_t)(h >> 32 ^ h);
}

/* Why no dispatch of the kind can be direct, or NULL. */
static const char *ep_ll_direct_excluded(const struct ep_dispatch *d)
{
	if (d->h->layout != NCCL_EP_LAYOUT_RANK_MAJOR ||
	    d->recipe == NCCL_EP_DISP_QUANT_DS_FP8E3M4) {
		return "only rank-major dispatch with recipe NONE or FWD can be direct";
	}
	if (d->h->group->remote_ranks) {
		return "only a group whose ranks are all of one node can dispatch directly";
	}
	if (d->h->group->nranks > EP_LL_DIRECT_RANKS) {
		return "only a group of at most 72 ranks can dispatch directly";
	}
	return NULL;
}

/* AUTO: as large as a dispatch of the group can be. */
static bool ep_ll_direct_pays(const struct ep_dispatch *d)
{
	const struct ep_group_config *c = &d->h->group->config;
	uint64_t bytes = (uint64_t)c->shape.max_tokens * (d->token_bytes + d->scale_bytes);

	return c->direct_bytes >= 0 && bytes >= (uint64_t)c->direct_bytes;
}

/* Callers who pass windows want to know what became of them: the log tells each change. */
static void ep_ll_direct_tell(const struct ep_dispatch *d, const char *why)
{
	struct ncclEpGroup *g = d->h->group;

	if (d->out.tokens->win_hdl && g->ll->staged_why != why) {
		g->ll->staged_why = why;
		EP_INFO(EP_LOG_COLL, "group %p rank %d: dispatch is %s%s", (void *)g, g->rank,
			why ? "not direct: " : "direct", why ? why : "");
	}
}

ncclResult_t ep_ll_direct_choose(const struct ep_dispatch *d, struct ep_ll_direct *out,
				 bool *direct)
{
	bool on = d->h->group->config.zero_copy == NCCL_EP_ZERO_COPY_ON;
	const char *why = ep_ll_direct_excluded(d), *scales = NULL;

	*direct = false;
	if (d->h->group->config.zero_copy == NCCL_EP_ZERO_COPY_OFF ||
	    (!on && (why || !ep_ll_direct_pays(d)))) {
		return ncclSuccess;
	}
	if (why) {
		return ep_fail(ncclInvalidArgument, "zero_copy ON: %s: use AUTO", why);
	}
	why = ep_window_places(out->tokens, d->h->group, d->out.tokens, &d->out_tokens);
	if (d->scale_bytes) {
		scales = ep_window_places(out->scales, d->h->group, d->out.scales, &d->out_scales);
	}
	if (on && why && (scales || !d->scale_bytes)) {
		return ep_fail(ncclInvalidArgument,
			       "zero_copy ON: peers cannot store to outputs->tokens, since %s%s%s: "
			       "register a window, or use AUTO",
			       why, scales ? "; nor to outputs->scales, since " : "",
			       scales ? scales : "");
	}
	*direct = !why && !scales;
	ep_ll_direct_tell(d, why ? why : scales);
	out->form = ep_ll_direct_form(d->out.tokens->win_offset,
				      d->scale_bytes ? d->out.scales->win_offset : 0);
	return ncclSuccess;
}
