/* SPDX-License-Identifier: Apache-2.0 */
#include <stdarg.h>
#include <stdatomic.h>
#include <time.h>

#include "support/check.h"

#define MOST_PRINTED 50

static atomic_int failures;
static __thread char context[512];

void check_context(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	vsnprintf(context, sizeof(context), format, args);
	va_end(args);
}

void check_fail(const char *file, int line, const char *format, ...)
{
	char text[1600];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (atomic_fetch_add(&failures, 1) < MOST_PRINTED) {
		fprintf(stderr, "%s:%d: %s%s%s%s\n", file, line, text, context[0] ? " [" : "",
			context, context[0] ? "]" : "");
	}
}

void check_false(const char *file, int line, const char *cond, const char *format, ...)
{
	char text[1024];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	check_fail(file, line, "%s%s", cond, text[1] ? text : "");
}

int check_failures(void)
{
	return atomic_load(&failures);
}

int check_end(void)
{
	int n = atomic_load(&failures);

	if (n) {
		fprintf(stderr, "%d checks failed\n", n);
	}
	return n != 0;
}

int check_cases(int argc, char **argv, const struct check_case *cases, size_t n)
{
	for (size_t i = 0; argc > 1 && i < n; i++) {
		if (!strcmp(argv[1], cases[i].name)) {
			return cases[i].main(argc - 1, argv + 1);
		}
	}
	fprintf(stderr, "%s has no case %s\n", argv[0], argc > 1 ? argv[1] : "without a name");
	return 2;
}

double check_now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}
