/* SPDX-License-Identifier: Apache-2.0 */
/* What a group shows to ep_info --live: it writes its board, and no call fails by that. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include "core/build.h"
#include "core/log.h"
#include "ep/ep.h"

_Static_assert(EP_BOARD_RANKS == EP_GROUP_MAX_RANKS, "EP_BOARD_RANKS");

void ep_show_open(struct ncclEpGroup *g)
{
	struct ep_show *s = &g->show;
	struct ep_board *b;

	if (!g->config.live) {
		return;
	}
	b = s->board = ep_board_make(g->nranks, &s->file);
	if (!b) {
		EP_INFO(EP_LOG_INIT, "rank %d shows nothing to ep_info --live: no memory: %s",
			g->rank, strerror(errno));
		return;
	}
	if (!s->file.path[0]) {
		EP_INFO(EP_LOG_INIT,
			"rank %d shows nothing to ep_info --live: no file in " EP_SHARED_DIR ": %s",
			g->rank, strerror(errno));
	}
	b->rank = g->rank;
	b->device = g->device;
	b->masks = g->config.enable_mask;
	b->experts = g->config.num_experts;
	b->tokens = g->config.shape.max_tokens;
	b->row_bytes = g->config.shape.max_token_bytes;
	b->timeout_ns = g->config.timeout_ns;
	snprintf(b->mode, sizeof(b->mode), "%s", g->config.algo->limits.mode);
	snprintf(b->library, sizeof(b->library), "%s", ep_build_text);
	ep_board_show(b);
}

void ep_show_ranks(struct ncclEpGroup *g, uint64_t team)
{
	struct ep_board *b = g->show.board;
	struct ep_board_rank *to;

	if (!b) {
		return;
	}
	to = (void *)((char *)b + b->ranks_off);
	for (int r = 0; r < g->nranks; r++) {
		snprintf(to[r].host, sizeof(to[r].host), "%s", g->idents[r].hostname);
		snprintf(to[r].bus_id, sizeof(to[r].bus_id), "%s", g->idents[r].bus_id);
		to[r].pid = g->idents[r].pid;
		to[r].node = g->idents[r].node;
	}
	__atomic_store_n(&b->team, team, __ATOMIC_RELEASE);
}

void ep_show_waits(struct ncclEpGroup *g)
{
	struct ep_show *s = &g->show;
	struct ep_reason why;

	if (!s->board) {
		return;
	}
	if (!ep_pinned_take(&s->pinned, s->board, s->board->bytes, &why)) {
		EP_INFO(EP_LOG_INIT, "rank %d does not show its waits: %s", g->rank, why.text);
		return;
	}
	s->waits = (void *)(s->pinned.host + s->board->waits_off);
	s->waits_dev = (void *)(s->pinned.dev + s->board->waits_off);
	s->board->shows_waits = 1;
}

void ep_show_made(struct ncclEpGroup *g, uint64_t device_bytes)
{
	struct ep_board *b = g->show.board;

	if (b) {
		b->remote_ranks = g->remote_ranks;
		b->device_bytes = device_bytes;
		__atomic_store_n(&b->made, 1, __ATOMIC_RELEASE);
	}
}

void ep_show_hide(struct ep_show *show)
{
	ep_shared_file_remove(&show->file);
}

void ep_show_close(struct ep_show *show, bool ended)
{
	if (!show->board) {
		return;
	}
	ep_show_hide(show);
	if (show->pinned.host) {
		ep_pinned_free(&show->pinned, ended);
	} else {
		munmap(show->board, show->board->bytes);
	}
	memset(show, 0, sizeof(*show));
}

void ep_show_begin(struct ep_call *call, enum ep_board_kind kind, const struct ncclEpHandle *handle,
		   const void *stream)
{
	struct ep_board *b = call->group->show.board;
	struct ep_board_call *c;
	uint64_t number;

	call->group->calling = kind;
	if (!b) {
		return;
	}
	number = b->calls + 1;
	c = &b->call[(number - 1) % EP_BOARD_CALLS];
	/* an exchange, since nothing that follows may be seen before it */
	(void)__atomic_exchange_n(&c->number, 0, __ATOMIC_ACQUIRE);
	c->begin_ns = ep_board_now();
	c->end_ns = 0;
	c->handle = (uint64_t)(uintptr_t)handle;
	c->stream = (uint64_t)(uintptr_t)stream;
	c->kind = kind;
	c->result = 0;
	c->tokens = 0;
	__atomic_store_n(&c->number, number, __ATOMIC_RELEASE);
	__atomic_store_n(&b->calls, number, __ATOMIC_RELEASE);
	call->shown = c;
	call->counted = kind == EP_BOARD_UPDATE_HANDLE || kind == EP_BOARD_DISPATCH ||
					kind == EP_BOARD_COMBINE
				? handle
				: NULL;
}

void ep_show_end(struct ep_call *call, ncclResult_t result)
{
	struct ep_board_call *c = call->shown;

	if (!c) {
		return;
	}
	c->result = (int32_t)result;
	c->tokens = call->counted ? call->counted->num_tokens : 0;
	__atomic_store_n(&c->end_ns, ep_board_now(), __ATOMIC_RELEASE);
	call->shown = NULL;
}

void ep_show_failure(struct ep_show *show, const char *text)
{
	if (show->board) {
		snprintf(show->board->failure, sizeof(show->board->failure), "%.*s",
			 (int)sizeof(show->board->failure) - 1, text);
	}
}
