/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What groups of this host do, and whom they wait for: their boards (core/board.h) are read twice,
 * and printed as a table, as JSON, or as Prometheus reads it.
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/log.h"
#include "core/util.h"
#include "device/group/wait_word.h"
#include "tools/ep_info.h"
#include "topo/json.h"

#define READS_APART_NS 400000000 /* kernels that wait store their words more often */

/* A rank's board, as two looks have found it. */
struct page {
	struct ep_board *board; /* sound, and its texts printable */
	char path[EP_SHARED_PATH];
	ino_t inode;
	uid_t user;
	uint64_t *before; /* [nranks] the words of waits at the first look */
	uint32_t begun;   /* exchanges, at the first look */
	uint32_t step;    /* the latest one of its group that waits show */
	bool stale;       /* no wait was seen to go on, but the last one need not be over */
	enum ep_board_life life;
};

struct pages {
	struct page *page; /* by group, then by rank */
	size_t count;
	size_t others; /* files of other users, and files that are not what they should be */
	uint64_t now_ns;
};

/* ---- asking ---- */

static uint64_t *words_of(const struct ep_board *board)
{
	return (uint64_t *)((char *)board + board->waits_off);
}

static int compare(uint64_t a, uint64_t b)
{
	return (a > b) - (a < b);
}

/*
 * Compares the groups of two pages. Groups that have no number yet are different where different
 * processes started theirs: a job's ranks have one launcher on a host.
 */
static int compare_groups(const struct page *a, const struct page *b)
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

/* Returns the word of a wait for rank r that goes on; 0: there is none. */
static uint64_t wait_of(const struct page *page, int r)
{
	uint64_t word = words_of(page->board)[r];

	return word != page->before[r] ? word : 0;
}

/*
 * Returns the word of a wait for rank r that stood still, and that no later call has followed; 0:
 * there is none.
 */
static uint64_t stale_of(const struct page *page, int r)
{
	uint64_t word = words_of(page->board)[r];

	return page->stale && ep_wait_word_step(word) == page->step ? word : 0;
}

/* The number of the exchange in which it waits for the other ranks; 0: in none. */
static uint32_t exchange_of(const struct page *page)
{
	const struct ep_board_exchange *x = &page->board->exchange;

	return x->begun != x->ended && x->begun == page->begun ? x->begun : 0;
}

static const struct ep_board_rank *rank_of(const struct page *page, int r)
{
	return (const struct ep_board_rank *)((char *)page->board + page->board->ranks_off) + r;
}

/* The call of that number, from 1 on; NULL: it is being written, or gone. */
static const struct ep_board_call *call_of(const struct page *page, uint64_t number)
{
	const struct ep_board_call *c = &page->board->call[(number - 1) % EP_BOARD_CALLS];

	return number && c->number == number ? c : NULL;
}

/*
 * Returns how many pages from `first` on are of its group; before their first exchange: of groups
 * of one parent process.
 */
static size_t count_group(const struct pages *pages, size_t first)
{
	size_t n = 1;

	while (first + n < pages->count &&
	       compare_groups(&pages->page[first], &pages->page[first + n]) == 0) {
		n++;
	}
	return n;
}

/* Pages of that rank. */
static size_t count_rank(const struct page *group, size_t n, int r)
{
	size_t count = 0;

	for (size_t i = 0; i < n; i++) {
		count += group[i].board->rank == r;
	}
	return count;
}

/*
 * Returns of how many groups these pages are at least: 1 for a group that has made its first
 * exchange.
 */
static size_t count_least(const struct page *group, size_t n)
{
	size_t most = 1, same = 1;

	for (size_t i = 1; i < n && !group->board->team; i++) { /* by rank */
		same = group[i].board->rank == group[i - 1].board->rank ? same + 1 : 1;
		most = same > most ? same : most;
	}
	return most;
}

/* The latest exchange in which one of them waits; 0: none does. */
static uint32_t last_exchange(const struct page *group, size_t n)
{
	uint32_t last = 0;

	for (size_t i = 0; i < n; i++) {
		last = (uint32_t)ep_max_u64(last, exchange_of(&group[i]));
	}
	return last;
}

/*
 * Whether others here wait in an exchange that the rank has not begun. Where none here is behind,
 * those are that have no page: they have not come that far, or are on other hosts. Of several
 * groups, a rank with fewer pages than another one lacks in at least one of them.
 */
static bool is_behind(const struct page *group, size_t n, int r)
{
	uint32_t last = last_exchange(group, n);
	size_t least = count_least(group, n);
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

/*
 * Whether rank r of the group of these pages is waited for, and does not wait itself as far as its
 * page is here. `wait` is wait_of() or stale_of().
 */
static bool holds_up(const struct page *group, size_t n, int r,
		     uint64_t (*wait)(const struct page *page, int r))
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

/* ---- reading ---- */

static void nap(long ns)
{
	const struct timespec t = { .tv_nsec = ns };

	nanosleep(&t, NULL);
}

/*
 * Reads a board, which the caller frees. NULL: it is not what it should be. Read, not mapped: the
 * process may end.
 */
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

static void clean_board(struct ep_board *board)
{
	struct ep_board_rank *ranks = (void *)((char *)board + board->ranks_off);

	ep_info_clean(board->mode, sizeof(board->mode));
	ep_info_clean(board->library, sizeof(board->library));
	ep_info_clean(board->failure, sizeof(board->failure));
	ep_info_clean(board->exchange.what, sizeof(board->exchange.what));
	for (int r = 0; r < board->nranks; r++) {
		ep_info_clean(ranks[r].host, sizeof(ranks[r].host));
		ep_info_clean(ranks[r].bus_id, sizeof(ranks[r].bus_id));
	}
}

/* The first look. */
static void add_page(void *arg, const char *path, int fd, const struct stat *st)
{
	struct pages *pages = arg;
	struct ep_board *b = fd >= 0 ? read_board(fd) : NULL;
	struct page *more, page = { .board = b };

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
static void read_again(struct page *page)
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

static int compare_pages(const void *a, const void *b)
{
	const struct page *x = a, *y = b;
	int by = compare_groups(x, y);

	return by ? by : compare((uint32_t)x->board->rank, (uint32_t)y->board->rank);
}

/*
 * A wait may stand still because it is over: nothing is stored then. Or its kernel has not run
 * since the first look. It may go on only if its step is the group's latest, if the program has
 * called nothing since the process itself saw it go on, and for no longer than the timeout.
 */
static void find_stale(const struct pages *pages, struct page *group, size_t n)
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
			goes_on |= wait_of(&group[i], r) != 0;
		}
		group[i].stale = !goes_on && b->seen_ns && b->seen_calls == b->calls &&
				 pages->now_ns - b->seen_ns < b->timeout_ns;
	}
	for (size_t i = 0; i < n; i++) {
		group[i].step = step;
	}
}

/* Removes what dead processes have left here, and looks twice at all others. */
static void read_pages(struct pages *pages)
{
	memset(pages, 0, sizeof(*pages));
	ep_shared_file_sweep(EP_BOARD_NAME);
	ep_shared_file_each(EP_BOARD_NAME, add_page, pages);
	if (pages->count) {
		nap(READS_APART_NS);
	}
	for (size_t i = 0; i < pages->count; i++) {
		read_again(&pages->page[i]);
	}
	if (pages->count) {
		qsort(pages->page, pages->count, sizeof(*pages->page), compare_pages);
	}
	pages->now_ns = ep_board_now();
	for (size_t i = 0; i < pages->count; i += count_group(pages, i)) {
		find_stale(pages, &pages->page[i], count_group(pages, i));
	}
}

static void free_pages(struct pages *pages)
{
	for (size_t i = 0; i < pages->count; i++) {
		free(pages->page[i].before);
		free(pages->page[i].board);
	}
	free(pages->page);
}

/* ---- what all forms print ---- */

static double seconds(uint64_t ns)
{
	return (double)(int64_t)ns / 1e9;
}

static const char *life_name(enum ep_board_life life)
{
	return life == EP_BOARD_LIVES ? "runs" : life == EP_BOARD_STOPPED ? "stopped" : "unknown";
}

static void hostname(char name[64])
{
	name[63] = '\0';
	if (gethostname(name, 63) != 0) {
		strcpy(name, "?");
	}
	ep_log_flatten(name);
}

/* ---- JSON ---- */

#define CALLS 8 /* the last ones of a rank */

static void json_waits(struct ep_json *json, const struct page *page, const char *name,
		       uint64_t (*wait)(const struct page *page, int r))
{
	ep_json_open(json, name, '[');
	for (int r = 0; r < page->board->nranks; r++) {
		const struct ep_board_rank *rank = rank_of(page, r);
		uint64_t word = wait(page, r);
		uint32_t site = ep_wait_word_site(word);

		if (!word) {
			continue;
		}
		ep_json_open(json, NULL, '{');
		ep_json_print(json, "rank", "%d", r);
		ep_json_print(json, "process", "%d", rank->pid);
		ep_json_text(json, "host", rank->host);
		ep_json_text(json, "gpu", rank->bus_id);
		ep_json_text(json, "for", ep_wait_name(site));
		ep_json_text(json, "operation",
			     ep_wait_operation(ep_wait_word_operation(word), site));
		ep_json_print(json, "step", "%u", ep_wait_word_step(word));
		ep_json_print(json, "seconds", "%.3f", seconds(ep_wait_word_age_ns(word)));
		ep_json_close(json, '}');
	}
	ep_json_close(json, ']');
}

static void json_exchange(struct ep_json *json, const struct pages *pages, const struct page *page)
{
	const struct ep_board_exchange *x = &page->board->exchange;

	ep_json_bool(json, "made", page->board->made);
	ep_json_open(json, "exchange", '{');
	ep_json_print(json, "number", "%u", x->begun);
	ep_json_text(json, "for", x->what);
	ep_json_bool(json, "waits", exchange_of(page));
	ep_json_print(json, "seconds", x->since_ns ? "%.3f" : "null",
		      seconds(pages->now_ns - x->since_ns));
	ep_json_close(json, '}');
}

static void json_calls(struct ep_json *json, const struct pages *pages, const struct page *page)
{
	uint64_t last = page->board->calls, from = last > CALLS ? last - CALLS + 1 : 1;

	ep_json_open(json, "last_calls", '[');
	for (uint64_t i = from; i - from < CALLS; i++) {
		const struct ep_board_call *c = call_of(page, i);

		if (!c) {
			continue;
		}
		ep_json_open(json, NULL, '{');
		ep_json_print(json, "number", "%" PRIu64, i);
		ep_json_text(json, "call", ep_board_call_name(c->kind));
		ep_json_print(json, "seconds_ago", "%.6f", seconds(pages->now_ns - c->begin_ns));
		ep_json_print(json, "seconds", c->end_ns ? "%.9f" : "null",
			      seconds(c->end_ns - c->begin_ns));
		ep_json_print(json, "result", "%d", c->result);
		ep_json_print(json, "tokens", "%u", c->tokens);
		ep_json_close(json, '}');
	}
	ep_json_close(json, ']');
}

static void json_page(struct ep_json *json, const struct pages *pages, const struct page *page)
{
	const struct ep_board *b = page->board;

	ep_json_open(json, NULL, '{');
	ep_json_print(json, "rank", "%d", b->rank);
	ep_json_print(json, "process", "%d", b->pid);
	ep_json_text(json, "state", life_name(page->life));
	ep_json_print(json, "device", "%d", b->device);
	ep_json_text(json, "gpu", rank_of(page, b->rank)->bus_id);
	ep_json_text(json, "library", b->library);
	ep_json_text(json, "failure", b->failure);
	ep_json_print(json, "device_bytes", "%" PRIu64, b->device_bytes);
	ep_json_print(json, "age_seconds", "%.3f", seconds(pages->now_ns - b->made_ns));
	ep_json_print(json, "calls", "%" PRIu64, b->calls);
	json_exchange(json, pages, page);
	json_calls(json, pages, page);
	json_waits(json, page, "waits", wait_of);
	json_waits(json, page, "stale_waits", stale_of);
	ep_json_close(json, '}');
}

static void json_cause(struct ep_json *json, const struct page *group, size_t n, const char *name,
		       uint64_t (*wait)(const struct page *page, int r))
{
	ep_json_open(json, name, '[');
	for (int r = 0; r < group->board->nranks; r++) {
		if (holds_up(group, n, r, wait)) {
			ep_json_print(json, NULL, "%d", r);
		}
	}
	ep_json_close(json, ']');
}

static void json_group(struct ep_json *json, const struct pages *pages, size_t first, size_t n)
{
	const struct page *group = &pages->page[first];
	const struct ep_board *b = group->board;

	ep_json_open(json, NULL, '{');
	ep_json_print(json, "group", "\"%016" PRIx64 "\"", b->team);
	ep_json_print(json, "groups_at_least", "%zu", count_least(group, n));
	ep_json_print(json, "user", "%u", (unsigned int)group->user);
	ep_json_text(json, "mode", b->mode);
	ep_json_print(json, "ranks", "%d", b->nranks);
	ep_json_print(json, "experts", "%u", b->experts);
	ep_json_print(json, "tokens", "%u", b->tokens);
	ep_json_print(json, "row_bytes", "%u", b->row_bytes);
	ep_json_bool(json, "masks", b->masks);
	ep_json_print(json, "timeout_seconds", "%.3f", seconds(b->timeout_ns));
	json_cause(json, group, n, "held_up_by", wait_of);
	json_cause(json, group, n, "perhaps_held_up_by", stale_of);
	ep_json_open(json, "here", '[');
	for (size_t i = 0; i < n; i++) {
		json_page(json, pages, &group[i]);
	}
	ep_json_close(json, ']');
	ep_json_close(json, '}');
}

static void print_json(const struct pages *pages)
{
	struct ep_json json = { .out = stdout };
	char host[64];
	size_t n;

	hostname(host);
	ep_json_open(&json, NULL, '{');
	ep_json_print(&json, "schema", "1");
	ep_json_text(&json, "host", host);
	ep_json_print(&json, "time", "%.3f", seconds(pages->now_ns));
	ep_json_print(&json, "unreadable", "%zu", pages->others);
	ep_json_open(&json, "groups", '[');
	for (size_t i = 0; i < pages->count; i += n) {
		n = count_group(pages, i);
		json_group(&json, pages, i, n);
	}
	ep_json_close(&json, ']');
	ep_json_close(&json, '}');
	putchar('\n');
}

/* ---- Prometheus ---- */

/*
 * The page's name is there because groups may have the same number: 0, or what another user has
 * written.
 */
static void metric_labels(const struct page *page)
{
	printf("{group=\"%016" PRIx64 "\",rank=\"%d\",user=\"%u\",page=\"%s\"", page->board->team,
	       page->board->rank, (unsigned int)page->user,
	       page->path + strlen(EP_SHARED_DIR "/" EP_BOARD_NAME));
}

static void metric_info(const struct page *page)
{
	fputs("nccl_ep_rank_info", stdout);
	metric_labels(page);
	printf(",process=\"%d\",device=\"%d\",gpu=", page->board->pid, page->board->device);
	ep_json_quote(stdout, rank_of(page, page->board->rank)->bus_id);
	fputs(",mode=", stdout);
	ep_json_quote(stdout, page->board->mode);
	fputs(",library=", stdout);
	ep_json_quote(stdout, page->board->library);
	fputs("} 1\n", stdout);
}

static void metric_waits(const struct page *page)
{
	for (int r = 0; r < page->board->nranks; r++) {
		uint64_t word = wait_of(page, r);

		if (!word) {
			continue;
		}
		fputs("nccl_ep_wait_seconds", stdout);
		metric_labels(page);
		printf(",peer=\"%d\",peer_process=\"%d\",peer_host=", r, rank_of(page, r)->pid);
		ep_json_quote(stdout, rank_of(page, r)->host);
		printf(",for=\"%s\"} %.3f\n", ep_wait_name(ep_wait_word_site(word)),
		       seconds(ep_wait_word_age_ns(word)));
	}
}

enum metric {
	METRIC_INFO,
	METRIC_CALLS,
	METRIC_AGE,
	METRIC_FAILED,
	METRIC_STOPPED,
	METRIC_EXCHANGE,
	METRIC_WAITS,
	METRICS
};

static void print_metric(const struct pages *pages, const struct page *page, enum metric metric,
			 const char *name)
{
	const struct ep_board *b = page->board;
	const struct ep_board_call *c = call_of(page, b->calls);

	if (metric == METRIC_INFO) {
		metric_info(page);
		return;
	}
	if (metric == METRIC_WAITS) {
		metric_waits(page);
		return;
	}
	if ((metric == METRIC_AGE && !c) || (metric == METRIC_EXCHANGE && !exchange_of(page))) {
		return;
	}
	fputs(name, stdout);
	metric_labels(page);
	if (metric == METRIC_CALLS) {
		printf("} %" PRIu64 "\n", b->calls);
	} else if (metric == METRIC_AGE) {
		printf("} %.3f\n", seconds(pages->now_ns - c->begin_ns));
	} else if (metric == METRIC_EXCHANGE) {
		printf("} %.3f\n", seconds(pages->now_ns - b->exchange.since_ns));
	} else {
		printf("} %d\n", metric == METRIC_FAILED ? b->failure[0] != '\0'
							 : page->life == EP_BOARD_STOPPED);
	}
}

static void print_prometheus(const struct pages *pages)
{
	static const struct {
		const char *name, *type, *help;
	} table[METRICS] = {
		{ "nccl_ep_rank_info", "gauge", "A rank of a group on this host" },
		{ "nccl_ep_calls_total", "counter", "Calls of the rank on the group" },
		{ "nccl_ep_last_call_age_seconds", "gauge", "Since the last of them began" },
		{ "nccl_ep_failed", "gauge", "1: the group has failed for good" },
		{ "nccl_ep_stopped", "gauge", "1: the process is stopped" },
		{ "nccl_ep_exchange_seconds", "gauge",
		  "How long the rank has been waiting for all others, to make a group or make it grow" },
		{ "nccl_ep_wait_seconds", "gauge",
		  "How long the rank has been waiting for a peer" },
	};

	for (int m = 0; m < METRICS; m++) {
		printf("# HELP %s %s\n# TYPE %s %s\n", table[m].name, table[m].help, table[m].name,
		       table[m].type);
		for (size_t i = 0; i < pages->count; i++) {
			print_metric(pages, &pages->page[i], (enum metric)m, table[m].name);
		}
	}
}

/* ---- a table ---- */

#define REFRESH_NS 600000000 /* and the time between two looks */
#define NAMES 8              /* ranks in a line */

/* Of a rank that makes a group, or makes its memory grow. */
static void print_exchange(const struct pages *pages, const struct page *page)
{
	const struct ep_board_exchange *x = &page->board->exchange;
	double s = seconds(pages->now_ns - x->since_ns);

	if (exchange_of(page)) {
		printf("all ranks for %.1f s: exchange %u, %s\n", s, x->begun, x->what);
	} else if (x->begun) {
		printf("itself for %.1f s, after exchange %u, %s\n", s, x->ended, x->what);
	} else {
		puts("itself, before exchange 1");
	}
}

static void print_wait(const struct page *page)
{
	uint64_t (*wait)(const struct page *, int) = page->stale ? stale_of : wait_of;
	int waited = 0, first = -1;
	uint64_t word = 0;

	for (int r = 0; r < page->board->nranks; r++) {
		uint64_t now = wait(page, r);

		if (now && (first < 0 || ep_wait_word_age_ns(now) > ep_wait_word_age_ns(word))) {
			first = r;
			word = now;
		}
		waited += now != 0;
	}
	if (first < 0) {
		fputs(page->board->shows_waits ? "-" : "? (no memory for waits)", stdout);
		return;
	}
	printf("rank %d for %.1f s%s: %s, %s %u", first, seconds(ep_wait_word_age_ns(word)),
	       page->stale ? ", over or not seen to run" : "",
	       ep_wait_name(ep_wait_word_site(word)),
	       ep_wait_operation(ep_wait_word_operation(word), ep_wait_word_site(word)),
	       ep_wait_word_step(word));
	if (waited > 1) {
		printf(", and %d more", waited - 1);
	}
}

/* The call's name without the prefix that all have. */
static const char *call_name(const struct ep_board_call *call)
{
	static const char prefix[] = "ncclEp";
	const char *name = ep_board_call_name(call->kind);
	size_t n = sizeof(prefix) - 1;

	return strncmp(name, prefix, n) == 0 ? name + n : name;
}

static void print_page(const struct pages *pages, const struct page *page)
{
	const struct ep_board *b = page->board;
	const struct ep_board_call *c = call_of(page, b->calls);
	char call[64] = "-", process[32];

	snprintf(process, sizeof(process), "%d%s", b->pid,
		 page->life == EP_BOARD_STOPPED   ? " STOPPED"
		 : page->life == EP_BOARD_FOREIGN ? " elsewhere"
						  : "");
	if (!b->made) {
		snprintf(call, sizeof(call), "CreateGroup %.1f s ago, not over",
			 seconds(pages->now_ns - b->made_ns));
	} else if (c) {
		snprintf(call, sizeof(call), "%s %.1f s ago%s", call_name(c),
			 seconds(pages->now_ns - c->begin_ns),
			 c->end_ns ? c->result ? ", failed" : "" : ", not over");
	}
	printf("  %4d  %-16s %3d  %8" PRIu64 "  %-36s ", b->rank, process, b->device, b->calls,
	       call);
	if (!b->made || exchange_of(page)) {
		print_exchange(pages, page);
	} else {
		print_wait(page);
		putchar('\n');
	}
	if (b->failure[0]) {
		printf("        the group has failed: %s\n", b->failure);
	}
}

/* Before the first exchange, the process of a rank is only in the page that it may have here. */
static void print_unknown(const struct page *group, size_t n, int r)
{
	size_t least = count_least(group, n), here = 0;
	uint32_t last = last_exchange(group, n);

	for (size_t i = 0; i < n; i++) {
		const struct ep_board *b = group[i].board;

		here += b->rank == r;
		if (b->rank == r && b->exchange.begun < last) {
			printf("  held up by rank %d: process %d\n", r, b->pid);
		}
	}
	if (here < least) {
		printf("  held up by rank %d, which has no page %s: it has not called ncclEpCreateGroup, is on "
		       "another host, or was started by another process\n",
		       r, here ? "of one of these groups" : "here");
	}
}

/* Prints the ranks that hold the others up, and returns how many these are. */
static int print_culprits(const struct page *group, size_t n, const char *perhaps,
			  uint64_t (*wait)(const struct page *page, int r))
{
	int found = 0;

	for (int r = 0; r < group->board->nranks; r++) {
		const struct ep_board_rank *rank = rank_of(group, r);

		if (!holds_up(group, n, r, wait)) {
			continue;
		}
		if (found++ >= NAMES) {
			continue;
		}
		if (rank->pid) {
			printf("  %sheld up by rank %d: process %d on %s, GPU %s\n", perhaps, r,
			       rank->pid, rank->host, rank->bus_id);
		} else {
			print_unknown(group, n, r);
		}
	}
	if (found > NAMES) {
		printf("  and by %d more ranks\n", found - NAMES);
	}
	return found;
}

/*
 * Whether all ranks of all groups that these pages may be of have come to an exchange, and wait
 * there.
 */
static bool all_wait(const struct page *group, size_t n)
{
	size_t waiting = 0;

	for (size_t i = 0; i < n; i++) {
		waiting += exchange_of(&group[i]) != 0;
	}
	return waiting == n && n == count_least(group, n) * (size_t)group->board->nranks;
}

static void print_cause(const struct page *group, size_t n)
{
	if (print_culprits(group, n, "", wait_of)) {
		return;
	}
	if (!group->board->team && all_wait(group, n)) {
		puts("  all ranks are here: they are of different groups whose other ranks have not called "
		     "ncclEpCreateGroup, or NCCL's exchange hangs");
		return;
	}
	print_culprits(group, n, "perhaps ", stale_of);
}

static void print_head(const struct page *group, size_t n)
{
	const struct ep_board *b = group->board;
	size_t least = count_least(group, n);

	printf("Group %016" PRIx64, b->team);
	if (group->user != geteuid()) {
		printf(" of user %u", (unsigned int)group->user);
	}
	if (least > 1) {
		printf(" (at least %zu groups before their first exchange)", least);
	} else if (!b->team) {
		fputs(" (before its first exchange)", stdout);
	}
	printf(": %s, %d ranks (%zu here), %u experts, %u tokens of %u bytes, timeout %.1f s\n",
	       b->mode, b->nranks, n, b->experts, b->tokens, b->row_bytes, seconds(b->timeout_ns));
}

static void print_table(const struct pages *pages)
{
	size_t n;

	for (size_t i = 0; i < pages->count; i += n) {
		n = count_group(pages, i);
		print_head(&pages->page[i], n);
		puts("  rank  process          GPU     calls  last call"
		     "                            waits for");
		for (size_t p = i; p < i + n; p++) {
			print_page(pages, &pages->page[p]);
		}
		print_cause(&pages->page[i], n);
	}
	if (!pages->count) {
		printf("No group of %s on this host (NCCL_EP_LIVE=0 hides groups)\n",
		       geteuid() ? "this user" : "any user");
	}
	if (pages->others) {
		printf("%zu files are of other users, or of another version of the library\n",
		       pages->others);
	}
}

int ep_info_live(enum ep_live_format format)
{
	bool again = format == EP_LIVE_TABLE && isatty(STDOUT_FILENO);
	struct pages pages;

	do {
		read_pages(&pages);
		if (again) {
			fputs("\033[H\033[2J", stdout);
		}
		if (format == EP_LIVE_JSON) {
			print_json(&pages);
		} else if (format == EP_LIVE_PROMETHEUS) {
			print_prometheus(&pages);
		} else {
			print_table(&pages);
		}
		free_pages(&pages);
		if (again) {
			if (fflush(stdout) || ferror(stdout)) {
				return 1;
			}
			nap(REFRESH_NS);
		}
	} while (again);
	return 0;
}
