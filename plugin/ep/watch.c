/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Waits that last long are logged while they last: one thread of the process looks at the boards of
 * all groups.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "core/log.h"
#include "core/timed_call.h"
#include "device/group/wait_word.h"
#include "ep/ep.h"

#define EP_WATCH_PART 10              /* a wait of timeout / this is logged */
#define EP_WATCH_MOST_NS 500000000ull /* from look to look, */
#define EP_WATCH_LEAST_NS 50000000ull /* at most and at least */
#define EP_WATCH_NAMES 8              /* ranks in a line */

static struct {
	pthread_mutex_t lock;
	pthread_cond_t changed;
	struct ep_watch *list;
	pthread_t thread;
	bool running;
	uintptr_t turn; /* of the thread that runs: an earlier one ends */
} watched = { .lock = PTHREAD_MUTEX_INITIALIZER };

static pthread_once_t watch_once = PTHREAD_ONCE_INIT;

static void watch_init(void)
{
	pthread_condattr_t attr;

	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&watched.changed, &attr);
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
 * A wait goes on if its word has changed since the last look. The board has when that last was, for
 * readers that find a word unchanged.
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
		if (late.count == 0) {
			late.word = word;
		}
		if (late.count < EP_WATCH_NAMES) {
			late.rank[late.count] = (uint32_t)r;
		}
		late.count++;
	}
	if (late.count) {
		watch_log(g, &late);
	}
}

/* How long until the next look, by the shortest timeout. Under the lock. */
static uint64_t watch_nap(void)
{
	uint64_t nap = EP_WATCH_MOST_NS;

	for (const struct ep_watch *w = watched.list; w; w = w->next) {
		nap = ep_min_u64(nap, w->group->config.timeout_ns / EP_WATCH_PART / 4);
	}
	return ep_max_u64(nap, EP_WATCH_LEAST_NS);
}

static void *watch_main(void *arg)
{
	uintptr_t turn = (uintptr_t)arg;

	pthread_mutex_lock(&watched.lock);
	while (watched.turn == turn) {
		uint64_t end = ep_now_ns() + watch_nap();
		struct timespec limit = { (time_t)(end / 1000000000), (long)(end % 1000000000) };

		(void)pthread_cond_timedwait(&watched.changed, &watched.lock, &limit);
		for (struct ep_watch *w = watched.list; w; w = w->next) {
			watch_check(w);
		}
	}
	pthread_mutex_unlock(&watched.lock);
	return NULL;
}

/* Under the lock. */
static void watch_start(const struct ncclEpGroup *g)
{
	char text[EP_THREAD_ERROR_TEXT];
	int error;

	if (watched.running) {
		return;
	}
	error = ep_thread_start(&watched.thread, watch_main, (void *)watched.turn);
	watched.running = error == 0;
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
	pthread_mutex_lock(&watched.lock);
	w->next = watched.list;
	w->link = &watched.list;
	if (w->next) {
		w->next->link = &w->next;
	}
	watched.list = w;
	watch_start(g);
	pthread_mutex_unlock(&watched.lock);
}

void ep_watch_ranks(struct ncclEpGroup *g, const struct ep_ident *idents)
{
	pthread_mutex_lock(&watched.lock);
	memcpy(g->idents, idents, (size_t)g->nranks * sizeof(*g->idents));
	pthread_mutex_unlock(&watched.lock);
}

void ep_watch_end(struct ep_watch *watch)
{
	pthread_t thread;
	bool last;

	if (!watch->group) {
		return;
	}
	pthread_mutex_lock(&watched.lock);
	*watch->link = watch->next;
	if (watch->next) {
		watch->next->link = watch->link;
	}
	last = !watched.list && watched.running;
	if (last) {
		watched.turn++;
		watched.running = false;
		thread = watched.thread;
		pthread_cond_broadcast(&watched.changed);
	}
	pthread_mutex_unlock(&watched.lock);
	if (last) {
		pthread_join(thread, NULL);
	}
	free(watch->seen);
	free(watch->logged);
	memset(watch, 0, sizeof(*watch));
}
