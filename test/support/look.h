/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ep_info prints, in a test that holds its sources. Naps of such a test take no time: a step
 * of it takes the place of the time between two looks.
 */
#ifndef TEST_SUPPORT_LOOK_H
#define TEST_SUPPORT_LOOK_H

/* Runs in place of each nap; NULL: nothing does. */
extern void (*look_between)(void);

/* Returns what `print` writes to standard output; the next call takes the text back. */
char *look_at(void (*print)(void *arg), void *arg);

/* Checks that a text has only lines of printable characters. */
void look_check_plain(const char *text);

/*
 * Checks that no two samples in a text for Prometheus are of one series, which makes it refuse all.
 * Changes the text.
 */
void look_check_series(char *text);

#endif
