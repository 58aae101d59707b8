/* SPDX-License-Identifier: Apache-2.0 */
/* Groups of this host, and whom they wait for: a table, or as ep_info_live_text.c has it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "device/group/wait_names.h"
#include "tools/ep_info_live.h"

#define REFRESH_NS 600000000 /* and the time between two looks */
#define NAMES 8              /* ranks in a line */

/* Of a rank that makes a group, or makes its memory grow. */
static void print_exchange(const struct ep_live_pages *pages, const struct ep_live_page *page)
{
	const struct ep_board_exchange *x = &page->board->exchange;
	double s = (double)(int64_t)(pages->now_ns - x->since_ns) / 1e9;

	if (ep_live_exchange(page)) {
		printf("all ranks for %.1f s: exchange %u, %s\n", s, x->begun, x->what);
	} else if (x->begun) {
		printf("itself for %.1f s, after exchange %u, %s\n", s, x->ended, x->what);
	} else {
		puts("itself, before exchange 1");
	}
}

static void print_wait(const struct ep_live_page *page)
{
	uint64_t (*wait)(const struct ep_live_page *, int) = page->stale ? ep_live_stale
									 : ep_live_wait;
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
	printf("rank %d for %.1f s%s: %s, %s %u", first, (double)ep_wait_word_age_ns(word) / 1e9,
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

static void print_page(const struct ep_live_pages *pages, const struct ep_live_page *page)
{
	const struct ep_board *b = page->board;
	const struct ep_board_call *c = ep_live_call(page, b->calls);
	char call[64] = "-", process[32];

	snprintf(process, sizeof(process), "%d%s", b->pid,
		 page->life == EP_BOARD_STOPPED   ? " STOPPED"
		 : page->life == EP_BOARD_FOREIGN ? " elsewhere"
						  : "");
	if (!b->made) {
		snprintf(call, sizeof(call), "CreateGroup %.1f s ago, not over",
			 (double)(int64_t)(pages->now_ns - b->made_ns) / 1e9);
	} else if (c) {
		snprintf(call, sizeof(call), "%s %.1f s ago%s", call_name(c),
			 (double)(int64_t)(pages->now_ns - c->begin_ns) / 1e9,
			 c->end_ns ? c->result ? ", failed" : "" : ", not over");
	}
	printf("  %4d  %-16s %3d  %8" PRIu64 "  %-36s ", b->rank, process, b->device, b->calls,
	       call);
	if (!b->made || ep_live_exchange(page)) {
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
static void print_unknown(const struct ep_live_page *group, size_t n, int r)
{
	size_t least = ep_live_least(group, n), here = 0;

	for (size_t i = 0; i < n; i++) {
		here += group[i].board->rank == r;
		if (group[i].board->rank == r && ep_live_behind(group, n, &group[i])) {
			printf("  held up by rank %d: process %d\n", r, group[i].board->pid);
		}
	}
	if (here < least) {
		printf("  held up by rank %d, which has no page %s: it has not called ncclEpCreateGroup, is on "
		       "another host, or was started by another process\n",
		       r, here ? "of one of these groups" : "here");
	}
}

/* Prints the ranks that hold the others up, and returns how many these are. */
static int print_culprits(const struct ep_live_page *group, size_t n, const char *perhaps,
			  uint64_t (*wait)(const struct ep_live_page *page, int r))
{
	int found = 0;

	for (int r = 0; r < group->board->nranks; r++) {
		const struct ep_board_rank *rank = ep_live_rank(group, r);

		if (!ep_live_holds_up(group, n, r, wait)) {
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

/* Whether all ranks of all groups that these pages may be of have come to an exchange, and wait there. */
static bool all_wait(const struct ep_live_page *group, size_t n)
{
	size_t waiting = 0;

	for (size_t i = 0; i < n; i++) {
		waiting += ep_live_exchange(&group[i]) != 0;
	}
	return waiting == n && n == ep_live_least(group, n) * (size_t)group->board->nranks;
}

static void print_cause(const struct ep_live_page *group, size_t n)
{
	if (print_culprits(group, n, "", ep_live_wait)) {
		return;
	}
	if (!group->board->team && all_wait(group, n)) {
		puts("  all ranks are here: they are of different groups whose other ranks have not called "
		     "ncclEpCreateGroup, or NCCL's exchange hangs");
		return;
	}
	print_culprits(group, n, "perhaps ", ep_live_stale);
}

static void print_head(const struct ep_live_page *group, size_t n)
{
	const struct ep_board *b = group->board;
	size_t least = ep_live_least(group, n);

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
	       b->mode, b->nranks, n, b->experts, b->tokens, b->row_bytes,
	       (double)b->timeout_ns / 1e9);
}

static void print_table(const struct ep_live_pages *pages)
{
	size_t n;

	for (size_t i = 0; i < pages->count; i += n) {
		n = ep_live_group(pages, i);
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
	struct ep_live_pages pages;

	do {
		ep_live_read(&pages);
		if (again) {
			fputs("\033[H\033[2J", stdout);
		}
		if (format == EP_LIVE_JSON) {
			ep_live_print_json(&pages);
		} else if (format == EP_LIVE_PROMETHEUS) {
			ep_live_print_prometheus(&pages);
		} else {
			print_table(&pages);
		}
		ep_live_free(&pages);
		if (fflush(stdout) || ferror(stdout)) {
			return 1;
		}
		if (again) {
			ep_live_nap(REFRESH_NS);
		}
	} while (again);
	return 0;
}
