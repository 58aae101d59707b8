// SPDX-License-Identifier: Apache-2.0
/*
 * A rank that dies or stops without taking its launcher with it: the rank runs in a child, and the
 * process that was started watches over it.
 */
#ifndef TEST_SUPPORT_VICTIM_H
#define TEST_SUPPORT_VICTIM_H

#include "support/bench.h"

/*
 * Before anything else in main. On rank `rank`: returns in a child; the parent ends with status 0 if
 * the child was killed by SIGKILL and `killed`, else with the child's. A child that stops is
 * continued when victim_continue has been called by any rank.
 */
void victim_start(int rank, bool killed);
void victim_continue(void);
/* Waits until the child has stopped: none of its threads runs. */
void victim_await_stop(void);
/* Time limits stretch under sanitizers, and by VICTIM_SCALE in the environment. */
double victim_scale(void);
/*
 * A timeout for waits that shall expire, `least` to `most` ms, the same on all ranks. On a busy machine a
 * rank that is well may not run for seconds, and nothing tells it from a rank that is lost; so the
 * timeout follows from how long a pair takes here and now. Collective, once in a world.
 */
double victim_timeout_ms(struct world *w, double least, double most);
/* The same, from how many seconds this rank took for what shall take an eighth of a timeout at most. */
double victim_timeout_of(struct world *w, double seconds, double least, double most);
/*
 * A dispatch and a combine, without a look at the results: why the group has failed, if it has. The
 * host looks for that after each of them if they are `apart`, else after both. `seconds`: how long it
 * took until it looked last.
 */
ncclResult_t victim_pair(struct bench *b, bool apart, double *seconds);
/* A new group of the communicator of `w` works. */
void victim_new_group(struct world *w, const struct oracle_problem *p, double timeout_ms);
/* True if an error text says that this rank did not come. */
bool victim_named(const char *text, int rank);
/* The one rank that an error text says was waited for; -1: none. */
int victim_culprit(const char *text);

#endif
