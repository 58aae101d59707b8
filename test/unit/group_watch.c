/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that watches waits: one line names the ranks that are late, and the board has when a
 * wait was last seen.
 */
#include <pthread.h>
#include <stdlib.h>

#include "core/log.h"
#include "device/group/wait_word.h"
#include "ep/ep.h"
#include "support/check.h"

#define RANKS 24
#define TIMEOUT_NS 20000000000u

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t changed = PTHREAD_COND_INITIALIZER;
static char line[1024];
static int lines;

static bool take_line(enum ep_log_level level, unsigned int subsys, const char *text)
{
	(void)subsys;
	if (level == EP_LOG_WARN) {
		pthread_mutex_lock(&lock);
		snprintf(line, sizeof(line), "%s", text);
		lines++;
		pthread_cond_signal(&changed);
		pthread_mutex_unlock(&lock);
	}
	return true;
}

/* A group waits for so many ranks, from rank 2 on every other one; checks what the log then has. */
static void check_line(int late, const char *want)
{
	struct ncclEpGroup *g = calloc(1, sizeof(*g));
	uint64_t waits[RANKS] = { 0 };
	struct ep_board board = { .calls = 41 };

	NEED(g);
	g->idents = calloc(RANKS, sizeof(*g->idents));
	NEED(g->idents);
	g->nranks = RANKS;
	g->config.timeout_ns = TIMEOUT_NS;
	g->show.board = &board;
	g->show.waits = waits;
	for (int r = 0; r < RANKS; r++) {
		/* one that is not late enough for the log */
		waits[r] = ep_wait_word(9, 1, EP_WAIT_COMBINE_ROW, TIMEOUT_NS / 11);
	}
	for (int i = 0; i < late; i++) {
		waits[2 + 2 * i] = ep_wait_word(9, 1, EP_WAIT_COMBINE_ROW, TIMEOUT_NS / 5);
	}
	snprintf(g->idents[2].hostname, sizeof(g->idents[2].hostname), "host2");
	g->idents[2].pid = 1002;
	lines = 0;
	ep_watch_begin(g);
	pthread_mutex_lock(&lock);
	while (!lines) {
		pthread_cond_wait(&changed, &lock);
	}
	pthread_mutex_unlock(&lock);
	ep_watch_end(&g->watch);
	CHECK_INT(lines, 1);
	CHECK_HAS(line, "rank 0 still waits for rank 2 (pid 1002 on host2, ");
	CHECK_HAS(line, want);
	CHECK(board.seen_ns && board.seen_ns <= ep_board_now());
	CHECK_INT(board.seen_calls, 41);
	free(g->idents);
	free(g);
}

int main(void)
{
	ep_log_to(take_line);
	check_line(1, " of 20.0 s): still missing: a row that it owes.");
	check_line(3, " of 20.0 s), and for ranks 4, 6: still missing: ");
	check_line(8, ", and for ranks 4, 6, 8, 10, 12, 14, 16: ");
	check_line(10, ", and for ranks 4, 6, 8, 10, 12, 14, 16 and 2 more: ");
	return check_end();
}
