/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep_info --live on boards that this process makes: groups before their first exchange, waits that
 * stand still, boards that hold anything, and of other users. Boards of other processes may be
 * there too, so each group here has a number of experts of its own.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "core/board.h"
#include "device/group/wait_word.h"
#include "support/check.h"
#include "support/look.h"
#include "tools/ep_info.h"

#define BOARDS 8

static struct board {
	struct ep_board *board;
	struct ep_shared_file file;
} boards[BOARDS];
static int made;
static char *text;         /* of the last look, */
static char seen[1 << 14]; /* and what it has of the groups asked for */

static void print(void *format)
{
	CHECK_INT(ep_info_live(*(enum ep_live_format *)format), 0);
}

static const char *look(enum ep_live_format format)
{
	text = look_at(print, &format);
	return text;
}

/* The part of the JSON about the group of that number. */
static void json(uint64_t team)
{
	const char *at, *end;
	char key[48];

	snprintf(key, sizeof(key), "{\"group\": \"%016llx\"", (unsigned long long)team);
	at = strstr(look(EP_LIVE_JSON), key);
	end = at ? strstr(at + 1, "{\"group\": ") : NULL;
	snprintf(seen, sizeof(seen), "%.*s", at && end ? (int)(end - at) : (int)sizeof(seen),
		 at ? at : "");
}

/* The part of the table about the groups of so many experts. */
static void table(uint32_t experts)
{
	char key[32];
	size_t n = 0;

	snprintf(key, sizeof(key), " %u experts, ", experts);
	look(EP_LIVE_TABLE);
	seen[0] = '\0';
	for (const char *at = text; at && *at;) {
		const char *end = strstr(at, "\nGroup "), *line = strchr(at, '\n');
		const char *found = strstr(at, key);

		if (found && line && found < line) {
			n += (size_t)snprintf(seen + n, sizeof(seen) - n, "%.*s\n",
					      (int)(end ? end - at : (long)strlen(at)), at);
		}
		at = end ? end + 1 : NULL;
	}
}

static int count(const char *in, const char *what)
{
	int n = 0;

	while ((in = strstr(in, what))) {
		in += strlen(what);
		n++;
	}
	return n;
}

/* A board of a group that is made; where `team` is 0, one that waits in its first exchange. */
static struct ep_board *make(uint64_t team, int rank, int nranks, uint32_t experts)
{
	struct board *b = &boards[made++];
	struct ep_board_rank *ranks;

	NEED(made <= BOARDS);
	b->board = ep_board_make(nranks, &b->file);
	NEED(b->board && b->file.path[0]);
	b->board->team = team;
	b->board->rank = rank;
	b->board->experts = experts;
	b->board->timeout_ns = UINT64_C(60000000000);
	b->board->shows_waits = 1;
	b->board->made = team != 0;
	snprintf(b->board->mode, sizeof(b->board->mode), "low latency");
	ranks = (void *)((char *)b->board + b->board->ranks_off);
	for (int r = 0; r < nranks && team; r++) {
		snprintf(ranks[r].host, sizeof(ranks[r].host), "host%d", r);
		ranks[r].pid = 1000 + r;
	}
	ep_board_begin_exchange(b->board, "ncclEpCreateGroup");
	if (team) {
		ep_board_end_exchange(b->board);
	}
	ep_board_show(b->board);
	return b->board;
}

static void drop_all(void)
{
	look_between = NULL;
	while (made > 0) {
		struct board *b = &boards[--made];

		ep_shared_file_remove(&b->file);
		munmap(b->board, b->board->bytes);
	}
}

static uint64_t *wait_of(struct ep_board *b, int r)
{
	return (uint64_t *)((char *)b + b->waits_off) + r;
}

static void call(struct ep_board *b, uint64_t number, uint32_t kind)
{
	struct ep_board_call *c = &b->call[(number - 1) % EP_BOARD_CALLS];

	c->begin_ns = c->end_ns = ep_board_now();
	c->kind = kind;
	c->number = number;
	b->calls = number;
}

/* Groups without a number yet of one launcher: it is not known which page is of which. */
static void test_one_launcher(void)
{
	make(0, 0, 3, 9001);
	make(0, 1, 3, 9001);
	table(9001);
	CHECK_HAS(seen, "(before its first exchange)");
	CHECK_HAS(seen, "\n  held up by rank 2, which has no page here: ");
	CHECK_INT(count(seen, "held up by"), 1);
	make(0, 1, 3, 9001);
	table(9001);
	CHECK_HAS(seen, "(at least 2 groups before their first exchange)");
	CHECK_HAS(seen, "\n  held up by rank 0, which has no page of one of these groups: ");
	CHECK_HAS(seen, "\n  held up by rank 2, which has no page here: ");
	CHECK_INT(count(seen, "held up by"), 2);
	CHECK_HAS(look(EP_LIVE_JSON), "\"groups_at_least\": 2,");
	look(EP_LIVE_PROMETHEUS);
	look_check_series(text);
	drop_all();
	make(0, 0, 2, 9002);
	make(0, 1, 2, 9002);
	table(9002);
	CHECK_HAS(seen, "\n  all ranks are here: they are of different groups");
	CHECK_INT(count(seen, "held up by"), 0);
	boards[0].board->exchange.begun = boards[0].board->exchange.ended = 0;
	table(9002);
	CHECK_HAS(seen, "\n  held up by rank 0: process ");
	CHECK_INT(count(seen, "held up by"), 1);
	drop_all();
}

/* Different launchers start different jobs: each has its own culprit. */
static void test_launchers(void)
{
	make(0, 0, 3, 9003);
	make(0, 1, 3, 9003);
	make(0, 2, 3, 9003)->parent++;
	table(9003);
	CHECK_INT(count(seen, "Group 0000000000000000 (before its first exchange)"), 2);
	CHECK_INT(count(seen, "held up by rank 0"), 1);
	CHECK_INT(count(seen, "held up by rank 1"), 1);
	CHECK_INT(count(seen, "held up by rank 2"), 1);
	boards[2].board->parent--;
	boards[2].board->rank = 0;
	boards[2].board->nranks = 3;
	table(9003);
	CHECK_INT(count(seen, "at least 2 groups"), 1);
	look(EP_LIVE_PROMETHEUS);
	look_check_series(text);
	drop_all();
}

static uint64_t word_of(uint32_t step, uint64_t age_ns)
{
	return ep_wait_word(step, 0, EP_WAIT_DISPATCH_COUNT, age_ns);
}

static void go_on(void)
{
	*wait_of(boards[0].board, 1) = word_of(7, 900000000);
}

static void check_stale(bool shown)
{
	table(9004);

	CHECK_INT(count(seen, " s, over or not seen to run: its token counts, dispatch 7"), shown);
	CHECK_INT(count(seen, "\n  perhaps held up by rank 1: process 1001 on host1"), shown);
	CHECK_INT(count(seen, "held up by"), shown);
	json(0x9004);
	CHECK_INT(count(seen, "\"stale_waits\": [{\"rank\": 1, \"process\": 1001,"), shown);
	CHECK_INT(count(seen, "\"perhaps_held_up_by\": [1]"), shown);
	CHECK_INT(count(seen, "\"held_up_by\": []"), 1);
}

/* A wait that stands still is none, unless nothing shows that it is over. */
static void test_stale(void)
{
	struct ep_board *b = make(0x9004, 0, 3, 9004), *other = make(0x9004, 2, 3, 9004);

	*wait_of(b, 1) = word_of(7, 500000000);
	*wait_of(b, 2) = word_of(5, 500000000); /* of an earlier operation */
	call(b, 9, EP_BOARD_DISPATCH);
	check_stale(false); /* its process has never seen it go on */
	b->seen_ns = ep_board_now();
	b->seen_calls = 9;
	check_stale(true);
	call(b, 10, EP_BOARD_DISPATCH);
	check_stale(false);
	b->seen_calls = 10;
	*wait_of(other, 0) = word_of(8, 500000000); /* the group is further */
	check_stale(false);
	*wait_of(other, 0) = word_of(6, 500000000);
	b->seen_ns -= b->timeout_ns;
	check_stale(false);
	b->seen_ns += b->timeout_ns;
	check_stale(true);
	look_between = go_on;
	table(9004);
	CHECK_INT(count(seen, "\n  held up by rank 1: process 1001"), 1);
	drop_all();
}

/* All numbers and texts of a board are somebody's bytes. */
static void test_bytes(void)
{
	static const char escape[] = "\033[31m\n\x7f\x80 \"b\" \\c";
	struct ep_board *b = make(0x9005, 0, 2, 9005);
	struct ep_board_rank *ranks = (void *)((char *)b + b->ranks_off);

	call(b, 1, EP_BOARD_NONE);
	table(9005);
	CHECK_HAS(seen, "  none ");
	call(b, 2, EP_BOARD_KINDS);
	table(9005);
	CHECK_HAS(seen, "  unknown ");
	call(b, 3, EP_BOARD_COMBINE);
	table(9005);
	CHECK_HAS(seen, "  Combine ");
	call(b, UINT64_MAX, EP_BOARD_COMBINE);
	strcpy(b->mode, escape);
	strcpy(b->library, escape);
	memset(b->failure, '\033', sizeof(b->failure));
	strcpy(b->exchange.what, escape);
	for (int r = 0; r < 2; r++) {
		strcpy(ranks[r].host, escape);
		strcpy(ranks[r].bus_id, escape);
	}
	*wait_of(b, 1) = word_of(7, 500000000);
	b->seen_ns = ep_board_now();
	b->seen_calls = b->calls;
	for (int format = EP_LIVE_TABLE; format <= EP_LIVE_PROMETHEUS; format++) {
		look((enum ep_live_format)format);
		look_check_plain(text);
		if (format != EP_LIVE_TABLE) {
			CHECK_HAS(text, "\"?[31m??? \\\"b\\\" \\\\c\"");
		}
	}
	drop_all();
}

/* Root sees whose a page is, which may forge the number of another's. */
static void test_users(void)
{
	make(0x9006, 0, 2, 9006);
	make(0x9006, 0, 2, 9006);
	if (geteuid() != 0 || chown(boards[1].file.path, 65534, 65534) != 0) {
		puts("not root: pages of other users were not tried");
	} else {
		table(9006);
		CHECK_HAS(seen, "Group 0000000000009006 of user 65534: ");
		CHECK_HAS(text, "Group 0000000000009006: ");
		CHECK_HAS(look(EP_LIVE_JSON), "\"user\": 65534,");
	}
	look(EP_LIVE_PROMETHEUS);
	look_check_series(text);
	drop_all();
}

int main(void)
{
	test_one_launcher();
	test_launchers();
	test_stale();
	test_bytes();
	test_users();
	return check_end();
}
