/* SPDX-License-Identifier: Apache-2.0 */
/* What a group shows of itself, and the thread that watches it. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include "core/build.h"
#include "core/log.h"
#include "core/timed_call.h"
#include "device/group/wait_word.h"
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

void ep_group_fail(struct ncclEpGroup *group)
{
	group->failed = true;
	ep_error_get(NULL, &group->failure);
	ep_show_failure(&group->show, group->failure.text);
	__atomic_store_n(group->async_error, 1, __ATOMIC_RELEASE);
}

#define EP_WATCH_PART 10              /* of the timeout: who waits for longer is in the log */
#define EP_WATCH_MOST_NS 500000000ull /* between two looks, */
#define EP_WATCH_LEAST_NS 50000000ull
#define EP_WATCH_NAMES 8 /* ranks in a line */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct ep_watch *list;
	pthread_t thread;
	bool running;
	uintptr_t turn; /* of the thread that runs: an earlier one ends */
} ep_watched = { .lock = PTHREAD_MUTEX_INITIALIZER };

static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

static void watch_init(void)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&ep_watched.changed, &attr);
	pthread_condattr_destroy(&attr);
}

/* Waits of a group that the log does not have yet, and all of about one length. */
struct watch_late {
	uint32_t count;
	uint32_t rank[EP_WATCH_NAMES];
	uint64_t word; /* of the first */
};

static void watch_log(const struct ncclEpGroup *g, const struct watch_late *late)
{
	const struct ep_ident *peer = &g->idents[late->rank[0]];
	uint32_t site = ep_wait_word_site(late->word), named = late->count;
	char others[160] = "";
	size_t n = 0;

	named = named < EP_WATCH_NAMES ? named : EP_WATCH_NAMES;
	for (uint32_t i = 1; i < named; i++) {
		n += (size_t)snprintf(others + n, sizeof(others) - n, "%s%u",
				      i == 1 ? ", and for ranks " : ", ", late->rank[i]);
	}
	if (late->count > named) {
		snprintf(others + n, sizeof(others) - n, " and %u more", late->count - named);
	}
	ep_log_thread_device = g->device;
	EP_WARN("%s %u: rank %d still waits for rank %u (pid %d on %s, GPU %s; %.1f s of %.1f s)%s: "
		"still missing: %s. ep_info --live shows which rank waits for which",
		ep_wait_operation(ep_wait_word_operation(late->word), site),
		ep_wait_word_step(late->word), g->rank, late->rank[0], peer->pid, peer->hostname,
		peer->bus_id, (double)ep_wait_word_age_ns(late->word) / 1e9,
		(double)g->config.timeout_ns / 1e9, others, ep_wait_name(site));
}

/*
 * A wait goes on if its word has changed since the last look. The board has when that last was, for readers that find a
 * word unchanged.
 */
static void watch_check(struct ep_watch *watch)
{
	const struct ncclEpGroup *g = watch->group;
	struct ep_board *board = g->show.board;
	struct watch_late late = { 0 };

	for (int r = 0; r < g->nranks; r++) {
		uint64_t word = __atomic_load_n(&g->show.waits[r], __ATOMIC_RELAXED);
		uint32_t step = ep_wait_word_step(word);

		if (word == watch->seen[r]) {
			continue;
		}
		watch->seen[r] = word;
		board->seen_calls = __atomic_load_n(&board->calls, __ATOMIC_RELAXED);
		board->seen_ns = ep_board_now();
		if (watch->logged[r] == step ||
		    ep_wait_word_age_ns(word) < g->config.timeout_ns / EP_WATCH_PART) {
			continue;
		}
		watch->logged[r] = step;
		if (late.count < EP_WATCH_NAMES) {
			late.rank[late.count] = (uint32_t)r;
		}
		late.word = late.count++ ? late.word : word;
	}
	if (late.count) {
		watch_log(g, &late);
	}
}

/* How long until the next look, by the shortest timeout. Under the lock. */
static uint64_t watch_nap(void)
{
	uint64_t nap = EP_WATCH_MOST_NS;

	for (const struct ep_watch *w = ep_watched.list; w; w = w->next) {
		nap = ep_min_u64(nap, w->group->config.timeout_ns / EP_WATCH_PART / 4);
	}
	return ep_max_u64(nap, EP_WATCH_LEAST_NS);
}

static void *watch_main(void *arg)
{
	uintptr_t turn = (uintptr_t)arg;

	pthread_mutex_lock(&ep_watched.lock);
	while (ep_watched.turn == turn) {
		uint64_t end = ep_now_ns() + watch_nap();
		struct timespec limit = { (time_t)(end / 1000000000), (long)(end % 1000000000) };

		(void)pthread_cond_timedwait(&ep_watched.changed, &ep_watched.lock, &limit);
		for (struct ep_watch *w = ep_watched.list; w; w = w->next) {
			watch_check(w);
		}
	}
	pthread_mutex_unlock(&ep_watched.lock);
	return NULL;
}

/* Under the lock. */
static void watch_start(const struct ncclEpGroup *g)
{
	char text[EP_THREAD_ERROR_TEXT];
	int error;

	if (ep_watched.running) {
		return;
	}
	error = ep_thread_start(&ep_watched.thread, watch_main, (void *)ep_watched.turn);
	ep_watched.running = error == 0;
	if (error) {
		EP_INFO(EP_LOG_INIT,
			"rank %d: long waits are not logged before their timeout: no "
			"thread: %s",
			g->rank, ep_thread_error_print(error, text));
	}
}

void ep_watch_begin(struct ncclEpGroup *g)
{
	struct ep_watch *w = &g->watch;

	if (!g->show.waits) {
		return;
	}
	pthread_once(&watch_once, watch_init);
	w->seen = calloc((size_t)g->nranks, sizeof(*w->seen));
	w->logged = calloc((size_t)g->nranks, sizeof(*w->logged));
	if (!w->seen || !w->logged) {
		free(w->seen);
		free(w->logged);
		return;
	}
	w->group = g;
	pthread_mutex_lock(&ep_watched.lock);
	w->next = ep_watched.list;
	w->link = &ep_watched.list;
	if (w->next) {
		w->next->link = &w->next;
	}
	ep_watched.list = w;
	watch_start(g);
	pthread_mutex_unlock(&ep_watched.lock);
}

void ep_watch_end(struct ep_watch *watch)
{
	pthread_t thread;
	bool last;

	if (!watch->group) {
		return;
	}
	pthread_mutex_lock(&ep_watched.lock);
	*watch->link = watch->next;
	if (watch->next) {
		watch->next->link = watch->link;
	}
	last = !ep_watched.list && ep_watched.running;
	if (last) {
		ep_watched.turn++;
		ep_watched.running = false;
		thread = ep_watched.thread;
		pthread_cond_broadcast(&ep_watched.changed);
	}
	pthread_mutex_unlock(&ep_watched.lock);
	if (last) {
		pthread_join(thread, NULL);
	}
	free(watch->seen);
	free(watch->logged);
	memset(watch, 0, sizeof(*watch));
}
