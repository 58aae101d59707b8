/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks, for every test. A failed CHECK is printed and counted; a failed NEED ends the process,
 * because its rank could not go on without hanging the others. Nothing here needs a library.
 */
#ifndef TEST_SUPPORT_CHECK_H
#define TEST_SUPPORT_CHECK_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TEST_SKIP 77

/* Prints "file:line: text" and counts. */
void check_fail(const char *file, int line, const char *format, ...)
	__attribute__((format(printf, 3, 4)));
/* The same; the text is that of the condition and what follows it in a CHECK. */
void check_false(const char *file, int line, const char *cond, const char *format, ...)
	__attribute__((format(printf, 4, 5)));
int check_failures(void);
/* What the checks that follow are about, printed with each failure; per thread. */
void check_context(const char *format, ...) __attribute__((format(printf, 1, 2)));
/* Exit status: 0, or 1 after failures. */
int check_end(void);
/*
 * A program with several tests: test/meson.build runs it once for each, with the test's name as its
 * first argument.
 */
struct check_case {
	const char *name;
	int (*main)(int argc, char **argv);
};
/* Runs the case that argv[1] names, with the arguments from there on. Returns its exit status. */
int check_cases(int argc, char **argv, const struct check_case *cases, size_t n);
/* Seconds, of a clock that only goes on. */
double check_now(void);

/* CHECK(condition) or CHECK(condition, "format", ...) */
#define CHECK(cond, ...)                                                                           \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			check_false(__FILE__, __LINE__, #cond, " " __VA_ARGS__);                   \
		}                                                                                  \
	} while (0)

#define CHECK_INT(got, want)                                                                       \
	do {                                                                                       \
		long long got_ = (long long)(got), want_ = (long long)(want);                      \
		if (got_ != want_) {                                                               \
			check_fail(__FILE__, __LINE__, "%s is %lld, not %lld", #got, got_, want_); \
		}                                                                                  \
	} while (0)

#define CHECK_HAS(text, part)                                                                      \
	do {                                                                                       \
		const char *text_ = (text), *part_ = (part);                                       \
		if (!strstr(text_, part_)) {                                                       \
			check_fail(__FILE__, __LINE__, "\"%s\" lacks \"%s\"", text_, part_);       \
		}                                                                                  \
	} while (0)

#define CHECK_TEXT(text, want)                                                                     \
	do {                                                                                       \
		const char *text_ = (text), *want_ = (want);                                       \
		if (strcmp(text_, want_) != 0) {                                                   \
			check_fail(__FILE__, __LINE__, "\"%s\", not \"%s\"", text_, want_);        \
		}                                                                                  \
	} while (0)

#define NEED(cond)                                                                                 \
	do {                                                                                       \
		if (!(cond)) {                                                                     \
			check_fail(__FILE__, __LINE__, "%s: giving up", #cond);                    \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

/* For those who include CUDA's header. */
#define CHECK_CUDA(call, want)                                                                     \
	do {                                                                                       \
		cudaError_t got_ = (call), want_ = (want);                                         \
		if (got_ != want_) {                                                               \
			check_fail(__FILE__, __LINE__, "%s: %s, not %s", #call,                    \
				   cudaGetErrorName(got_), cudaGetErrorName(want_));               \
		}                                                                                  \
	} while (0)

#define NEED_CUDA(call)                                                                            \
	do {                                                                                       \
		cudaError_t err_ = (call);                                                         \
		if (err_ != cudaSuccess) {                                                         \
			check_fail(__FILE__, __LINE__, "%s: %s", #call, cudaGetErrorName(err_));   \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

#endif
