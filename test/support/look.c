/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "support/check.h"
#include "support/look.h"

/* A text of more bytes, or a test that computes for longer, does not end. */
#define LOOK_BYTES (64 << 20)
#define LOOK_SECONDS 20

void (*look_between)(void);

/* In place of the C library's. */
int nanosleep(const struct timespec *time, struct timespec *left)
{
	(void)time;
	(void)left;
	if (look_between) {
		look_between();
	}
	return 0;
}

char *look_at(void (*print)(void *arg), void *arg)
{
	static const struct rlimit bytes = { LOOK_BYTES, LOOK_BYTES };
	static const struct rlimit seconds = { LOOK_SECONDS, LOOK_SECONDS };
	static char *text;
	int out = memfd_create("out", 0), before = dup(STDOUT_FILENO);
	struct stat st;

	NEED(setrlimit(RLIMIT_FSIZE, &bytes) == 0 && setrlimit(RLIMIT_CPU, &seconds) == 0);
	NEED(out >= 0 && before >= 0 && fflush(stdout) == 0 && dup2(out, STDOUT_FILENO) >= 0);
	print(arg);
	NEED(fflush(stdout) == 0 && dup2(before, STDOUT_FILENO) >= 0);
	NEED(fstat(out, &st) == 0);
	text = realloc(text, (size_t)st.st_size + 1);
	NEED(text && pread(out, text, (size_t)st.st_size, 0) == st.st_size);
	text[st.st_size] = '\0';
	close(out);
	close(before);
	return text;
}

void look_check_plain(const char *text)
{
	for (const char *c = text; *c; c++) {
		NEED(*c == '\n' || (*c >= ' ' && *c <= '~'));
	}
}

static int compare_lines(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

void look_check_series(char *text)
{
	size_t n = 0, room = 0;
	char **lines = NULL, *save = NULL;

	for (char *l = strtok_r(text, "\n", &save); l; l = strtok_r(NULL, "\n", &save)) {
		if (*l == '#') {
			continue;
		}
		if (n == room) {
			room = 2 * room + 64;
			lines = realloc(lines, room * sizeof(*lines));
			NEED(lines);
		}
		NEED(strrchr(l, ' '));
		*strrchr(l, ' ') = '\0';
		lines[n++] = l;
	}
	if (n) {
		qsort(lines, n, sizeof(*lines), compare_lines);
	}
	for (size_t i = 1; i < n; i++) {
		CHECK(strcmp(lines[i - 1], lines[i]) != 0, "twice: %s", lines[i]);
	}
	free(lines);
}
