/* SPDX-License-Identifier: Apache-2.0 */
/* What the test's own process has of the kernel. */
#ifndef TEST_SUPPORT_SELF_H
#define TEST_SUPPORT_SELF_H

/* Mappings whose line in /proc/self/maps has that word. */
int self_maps(const char *word);
/*
 * How many names a directory has; of /proc/self/fd: open files but those of /proc, and a constant.
 */
int self_entries(const char *path);
/*
 * Threads of the process, as soon as there are no more than `most`, or after 20 s of real time: one
 * that has ended is counted until the kernel has run it once more, and the cluster's clock does not
 * wait for that.
 */
int self_threads(int most);
#define SELF_SM_THREADS 8 /* of the cluster's SMs, which keep those that they have started once */
/* Allows no file with a number from `most` on to be opened. Returns what was allowed before. */
int self_files(int most);

/* From now on what the library logs goes into a file of its own for each process of the run. */
void self_log(const char *level);
/*
 * Lines of this process's log with that text. `each`, if it is not NULL, gets one after the other.
 */
int self_logged(const char *said, void (*each)(const char *line, void *arg), void *arg);

#endif
