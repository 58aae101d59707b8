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
	uint64_t *before; /* [nranks] the words of waits at the first look */
	uint32_t begun;   /* exchanges, at the first look */
	enum ep_board_life life;
};

struct ep_live_pages {
	struct ep_live_page *page; /* by group, then by rank */
	size_t count;
	size_t others; /* files that cannot be read, or are not what they should be */
	uint64_t now_ns;
};

/* Removes what dead processes have left here, and looks twice at all others. */
void ep_live_read(struct ep_live_pages *pages);
void ep_live_free(struct ep_live_pages *pages);
void ep_live_nap(long ns);

/* The word of a wait for rank r that goes on; 0: there is none. */
uint64_t ep_live_wait(const struct ep_live_page *page, int r);
/* The number of the exchange in which it waits for the other ranks; 0: in none. */
uint32_t ep_live_exchange(const struct ep_live_page *page);
const struct ep_board_rank *ep_live_rank(const struct ep_live_page *page, int r);
/* The call of that number, from 1 on; NULL: it is being written, or gone. */
const struct ep_board_call *ep_live_call(const struct ep_live_page *page, uint64_t number);
/* The pages from `first` on that are of its group. */
size_t ep_live_group(const struct ep_live_pages *pages, size_t first);
/* Whether rank r of the group of these pages is waited for, and does not wait itself as far as its page is here. */
bool ep_live_holds_up(const struct ep_live_page *group, size_t n, int r);

void ep_live_print_json(const struct ep_live_pages *pages);
void ep_live_print_prometheus(const struct ep_live_pages *pages);

/* Prints what groups do; a table on a terminal again and again. Returns the exit status. */
int ep_info_live(enum ep_live_format format);

#endif
