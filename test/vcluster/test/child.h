/* SPDX-License-Identifier: Apache-2.0 */
/* Runs this program again as a child with another environment, and collects what it says. */
#ifndef VC_TEST_CHILD_H
#define VC_TEST_CHILD_H

#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
#include "test.h"

#define CHILD_TEXT 65536

/* `env` is a list of K=V that ends with NULL. Returns the wait status. */
static inline int child_run(char *const argv[], const char *const *env, char *text)
{
	int out[2], status = -1;
	size_t at = 0;
	ssize_t n;
	pid_t pid;

	NEED(pipe(out));
	fflush(NULL);
	pid = fork();
	if (pid < 0) {
		exit(1);
	}
	if (!pid) {
		dup2(out[1], 1);
		dup2(out[1], 2);
		close(out[0]);
		close(out[1]);
		for (; env && *env; env++) {
			putenv((char *)*env);
		}
		execv(argv[0], argv);
		_exit(127);
	}
	close(out[1]);
	while ((n = read(out[0], text + at, CHILD_TEXT - 1 - at)) > 0) {
		at += (size_t)n;
	}
	text[at] = 0;
	close(out[0]);
	waitpid(pid, &status, 0);
	return status;
}

#define CHECK_TEXT(text, part)                                                                     \
	do {                                                                                       \
		if (!strstr(text, part)) {                                                         \
			fprintf(stderr, "%s:%d: '%s' is not in:\n%s\n", __FILE__, __LINE__, part,  \
				text);                                                             \
			test_failures++;                                                           \
		}                                                                                  \
	} while (0)

#endif
