/* SPDX-License-Identifier: Apache-2.0 */
/* What the test's own process has of the kernel. */
#ifndef TEST_SUPPORT_SELF_H
#define TEST_SUPPORT_SELF_H

/* Mappings whose line in /proc/self/maps has that word. */
int self_maps(const char *word);
/* How many names a directory has; of /proc/self/fd: open files but those of /proc, and a constant. */
int self_entries(const char *path);
/* Allows no file with a number from `most` on to be opened. Returns what was allowed before. */
int self_files(int most);

#endif
