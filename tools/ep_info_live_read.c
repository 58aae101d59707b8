/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the boards of this host's groups (core/board.h), and finds which rank waits for which. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/log.h"
#include "core/util.h"
#include "device/group/wait_word.h"
#include "tools/ep_info_live.h"

#define READS_APART_NS 400000000 /* kernels that wait store their words more often */

/* ---- reading ---- */

void ep_live_nap(long ns)
{
	const struct timespec t = { .tv_nsec = ns };

	nanosleep(&t, NULL);
}

/* Reads a board, which the caller frees. NULL: it is not what it should be. Read, not mapped: the process may end. */
static struct ep_board *read_board(int fd)
{
	struct ep_board *board = NULL;
	struct stat st;
	size_t bytes;

	if (fstat(fd, &st) != 0 || st.st_size > (off_t)ep_board_bytes(EP_BOARD_RANKS)) {
		return NULL;
	}
	bytes = (size_t)st.st_size;
	board = calloc(1, bytes + 1);
	if (board && pread(fd, board, bytes, 0) == (ssize_t)bytes && ep_board_sound(board, bytes)) {
		return board;
	}
	free(board);
	return NULL;
}

static void clean(char *text, size_t size)
{
	text[size - 1] = '\0';
	ep_log_flatten(text);
}

/* Other users' files may hold anything. */
static void clean_board(struct ep_board *board)
{
	struct ep_board_rank *ranks = (void *)((char *)board + board->ranks_off);

	clean(board->mode, sizeof(board->mode));
	clean(board->library, sizeof(board->library));
	clean(board->failure, sizeof(board->failure));
	clean(board->exchange.what, sizeof(board->exchange.what));
	for (int r = 0; r < board->nranks; r++) {
		clean(ranks[r].host, sizeof(ranks[r].host));
		clean(ranks[r].bus_id, sizeof(ranks[r].bus_id));
	}
}

static uint64_t *words_of(const struct ep_board *board)
{
	return (uint64_t *)((char *)board + board->waits_off);
}

/* The first look. */
static void add_page(void *arg, const char *path, int fd, const struct stat *st)
{
	struct ep_live_pages *pages = arg;
	struct ep_board *b = fd >= 0 ? read_board(fd) : NULL;
	struct ep_live_page *more, page = { .board = b };

	if (!b) {
		/* (a board that nobody has shown yet is no error) */
		pages->others += fd < 0 || st->st_size != 0;
		return;
	}
	snprintf(page.path, sizeof(page.path), "%s", path);
	page.inode = st->st_ino;
	page.user = st->st_uid;
	page.begun = b->exchange.begun;
	page.life = ep_board_life(b, ep_shared_file_held(fd));
	page.before = calloc((size_t)b->nranks, sizeof(*page.before));
	more = realloc(pages->page, (pages->count + 1) * sizeof(*more));
	if (more) {
		pages->page = more;
	}
	if (page.life == EP_BOARD_DEAD || !page.before || !more) {
		free(page.before);
		free(b);
		return;
	}
	memcpy(page.before, words_of(b), (size_t)b->nranks * sizeof(*page.before));
	pages->page[pages->count++] = page;
}

/* The second look. A group that has gone meanwhile stays as it was. */
static void read_again(struct ep_live_page *page)
{
	int fd = open(page->path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
	struct ep_board *b = NULL;
	struct stat st;

	if (fd >= 0 && fstat(fd, &st) == 0 && st.st_ino == page->inode && st.st_uid == page->user) {
		b = read_board(fd);
	}
	if (b && b->made_ns == page->board->made_ns && b->nranks == page->board->nranks) {
		free(page->board);
		page->board = b;
	} else {
		free(b);
	}
	if (fd >= 0) {
		close(fd);
	}
	clean_board(page->board);
}

static int compare(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

/*
 * Compares the groups of two pages. Groups that have no number yet are different where different processes started
 * theirs: a job's ranks have one launcher on a host.
 */
static int compare_groups(const struct ep_live_page *a, const struct ep_live_page *b)
{
	const struct ep_board *x = a->board, *y = b->board;
	int by = compare(x->team, y->team);

	by = by ? by : compare(a->user, b->user);
	if (!x->team) {
		by = by ? by : compare(x->pid_space, y->pid_space);
		by = by ? by : compare((uint32_t)x->parent, (uint32_t)y->parent);
	}
	return by ? by : compare((uint32_t)x->nranks, (uint32_t)y->nranks);
}

static int compare_pages(const void *a, const void *b)
{
	const struct ep_live_page *x = a, *y = b;
	int by = compare_groups(x, y);

	return by ? by : compare((uint32_t)x->board->rank, (uint32_t)y->board->rank);
}

/*
 * A wait may stand still because it is over: nothing is stored then. Or its kernel has not run since the first look.
 * It may go on only if its step is the group's latest, if the program has called nothing since the process itself saw
 * it go on, and for no longer than the timeout.
 */
static void find_stale(const struct ep_live_pages *pages, struct ep_live_page *group, size_t n)
{
	uint32_t step = 0;
	bool any = false;

	for (size_t i = 0; i < n; i++) {
		const struct ep_board *b = group[i].board;
		bool goes_on = false;

		for (int r = 0; r < b->nranks; r++) {
			uint32_t at = ep_wait_word_step(words_of(b)[r]);

			if (words_of(b)[r] && (!any || (int32_t)(at - step) > 0)) {
				step = at;
				any = true;
			}
			goes_on |= ep_live_wait(&group[i], r) != 0;
		}
		group[i].stale = !goes_on && b->seen_ns && b->seen_calls == b->calls &&
				 pages->now_ns - b->seen_ns < b->timeout_ns;
	}
	for (size_t i = 0; i < n; i++) {
		group[i].step = step;
	}
}

void ep_live_read(struct ep_live_pages *pages)
{
	memset(pages, 0, sizeof(*pages));
	ep_shared_file_sweep(EP_BOARD_NAME);
	ep_shared_file_each(EP_BOARD_NAME, add_page, pages);
	if (pages->count) {
		ep_live_nap(READS_APART_NS);
	}
	for (size_t i = 0; i < pages->count; i++) {
		read_again(&pages->page[i]);
	}
	if (pages->count) {
		qsort(pages->page, pages->count, sizeof(*pages->page), compare_pages);
	}
	pages->now_ns = ep_board_now();
	for (size_t i = 0; i < pages->count; i += ep_live_group(pages, i)) {
		find_stale(pages, &pages->page[i], ep_live_group(pages, i));
	}
}

void ep_live_free(struct ep_live_pages *pages)
{
	for (size_t i = 0; i < pages->count; i++) {
		free(pages->page[i].before);
		free(pages->page[i].board);
	}
	free(pages->page);
}

/* ---- asking ---- */

uint64_t ep_live_wait(const struct ep_live_page *page, int r)
{
	uint64_t word = words_of(page->board)[r];

	return word != page->before[r] ? word : 0;
}

uint64_t ep_live_stale(const struct ep_live_page *page, int r)
{
	uint64_t word = words_of(page->board)[r];

	return page->stale && ep_wait_word_step(word) == page->step ? word : 0;
}

uint32_t ep_live_exchange(const struct ep_live_page *page)
{
	const struct ep_board_exchange *x = &page->board->exchange;

	return x->begun != x->ended && x->begun == page->begun ? x->begun : 0;
}

const struct ep_board_rank *ep_live_rank(const struct ep_live_page *page, int r)
{
	return (const struct ep_board_rank *)((char *)page->board + page->board->ranks_off) + r;
}

const struct ep_board_call *ep_live_call(const struct ep_live_page *page, uint64_t number)
{
	const struct ep_board_call *c = &page->board->call[(number - 1) % EP_BOARD_CALLS];

	return number && c->number == number ? c : NULL;
}

size_t ep_live_group(const struct ep_live_pages *pages, size_t first)
{
	size_t n = 1;

	while (first + n < pages->count &&
	       compare_groups(&pages->page[first], &pages->page[first + n]) == 0) {
		n++;
	}
	return n;
}

/* Pages of that rank. */
static size_t count_rank(const struct ep_live_page *group, size_t n, int r)
{
	size_t count = 0;

	for (size_t i = 0; i < n; i++) {
		count += group[i].board->rank == r;
	}
	return count;
}

size_t ep_live_least(const struct ep_live_page *group, size_t n)
{
	size_t most = 1, same = 1;

	for (size_t i = 1; i < n && !group->board->team; i++) { /* by rank */
		same = group[i].board->rank == group[i - 1].board->rank ? same + 1 : 1;
		most = same > most ? same : most;
	}
	return most;
}

/* The latest exchange in which one of them waits; 0: none does. */
static uint32_t last_exchange(const struct ep_live_page *group, size_t n)
{
	uint32_t last = 0;

	for (size_t i = 0; i < n; i++) {
		last = (uint32_t)ep_max_u64(last, ep_live_exchange(&group[i]));
	}
	return last;
}

bool ep_live_behind(const struct ep_live_page *group, size_t n, const struct ep_live_page *page)
{
	return page->board->exchange.begun < last_exchange(group, n);
}

/*
 * Whether others here wait in an exchange that the rank has not begun. Where none here is behind, those are that have no
 * page: they have not come that far, or are on other hosts. Of several groups, a rank with fewer pages than another one
 * lacks in at least one of them.
 */
static bool is_behind(const struct ep_live_page *group, size_t n, int r)
{
	uint32_t last = last_exchange(group, n);
	size_t least = ep_live_least(group, n);
	bool any = false;

	for (size_t i = 0; i < n; i++) {
		bool behind = group[i].board->exchange.begun < last;

		any |= behind;
		if (behind && group[i].board->rank == r) {
			return true;
		}
	}
	return last && count_rank(group, n, r) < least && (!any || least > 1);
}

bool ep_live_holds_up(const struct ep_live_page *group, size_t n, int r,
		      uint64_t (*wait)(const struct ep_live_page *page, int r))
{
	bool awaited = is_behind(group, n, r);

	for (size_t i = 0; i < n; i++) {
		awaited |= wait(&group[i], r) != 0;
		if (group[i].board->rank != r) {
			continue;
		}
		for (int to = 0; to < group[i].board->nranks; to++) {
			if (wait(&group[i], to)) {
				return false;
			}
		}
	}
	return awaited;
}
