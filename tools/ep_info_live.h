/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_TOOLS_EP_INFO_LIVE_H
#define EP_TOOLS_EP_INFO_LIVE_H

#include "core/board.h"

enum ep_live_format {
	EP_LIVE_TABLE,
	EP_LIVE_JSON,
	EP_LIVE_PROMETHEUS
};

/* A rank's board, as two looks have found it. */
struct ep_live_page {
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

struct ep_live_pages {
	struct ep_live_page *page; /* by group, then by rank */
	size_t count;
	size_t others; /* files of other users, and files that are not what they should be */
	uint64_t now_ns;
};

/* Removes what dead processes have left here, and looks twice at all others. */
void ep_live_read(struct ep_live_pages *pages);
void ep_live_free(struct ep_live_pages *pages);
void ep_live_nap(long ns);

/* Returns the word of a wait for rank r that goes on; 0: there is none. */
uint64_t ep_live_wait(const struct ep_live_page *page, int r);
/* Returns the word of a wait for rank r that stood still, and that no later call has followed; 0: there is none. */
uint64_t ep_live_stale(const struct ep_live_page *page, int r);
/* The number of the exchange in which it waits for the other ranks; 0: in none. */
uint32_t ep_live_exchange(const struct ep_live_page *page);
const struct ep_board_rank *ep_live_rank(const struct ep_live_page *page, int r);
/* The call of that number, from 1 on; NULL: it is being written, or gone. */
const struct ep_board_call *ep_live_call(const struct ep_live_page *page, uint64_t number);
/* Returns how many pages from `first` on are of its group; before their first exchange: of groups of one parent process. */
size_t ep_live_group(const struct ep_live_pages *pages, size_t first);
/* Returns of how many groups these pages are at least: 1 for a group that has made its first exchange. */
size_t ep_live_least(const struct ep_live_page *group, size_t n);
/* Whether others of these pages wait in an exchange that this one of them has not begun. */
bool ep_live_behind(const struct ep_live_page *group, size_t n, const struct ep_live_page *page);
/*
 * Whether rank r of the group of these pages is waited for, and does not wait itself as far as its page is here. `wait`
 * is ep_live_wait() or ep_live_stale().
 */
bool ep_live_holds_up(const struct ep_live_page *group, size_t n, int r,
		      uint64_t (*wait)(const struct ep_live_page *page, int r));

void ep_live_print_json(const struct ep_live_pages *pages);
void ep_live_print_prometheus(const struct ep_live_pages *pages);

/* Prints what groups do; a table on a terminal again and again. Returns the exit status. */
int ep_info_live(enum ep_live_format format);

#endif
