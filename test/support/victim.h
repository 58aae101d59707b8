/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank that dies or stops without taking its launcher with it: the rank runs in a child, and the
 * process that was started watches over it.
 */
#ifndef TEST_SUPPORT_VICTIM_H
#define TEST_SUPPORT_VICTIM_H

#include "support/bench.h"

/*
 * Before anything else in main. On rank `rank`: returns in a child; the parent ends with status 0
 * if the child was killed by SIGKILL and `killed`, else with the child's. A child that stops is
 * continued when victim_continue has been called by any rank.
 */
void victim_start(int rank, bool killed);
void victim_continue(void);
/* Waits until the child has stopped: none of its threads runs. */
void victim_await_stop(void);
/*
 * A dispatch and a combine, without a look at the results: why the group has failed, if it has. The
 * host looks for that after each of them if they are `apart`, else after both. `seconds`: how long
 * it took until it looked last.
 */
ncclResult_t victim_pair(struct bench *b, bool apart, double *seconds);
/* A new group of the communicator of `w` works. */
void victim_new_group(struct world *w, const struct oracle_problem *p, double timeout_ms);
/* True if an error text says that this rank did not come. */
bool victim_named(const char *text, int rank);
/* The one rank that an error text says was waited for; -1: none. */
int victim_culprit(const char *text);

#endif
