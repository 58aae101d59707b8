// SPDX-License-Identifier: Apache-2.0
#include <stdarg.h>
#include <stdatomic.h>

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

static const char *last_text(ncclEpGroup_t group, ncclResult_t *code)
{
	const char *text = "";

	*code = ncclSuccess;
	if (ncclEpExtGetLastError(group, code, &text) != ncclSuccess) {
		return "(no last error)";
	}
	return text;
}

bool check_nccl(const char *file, int line, const char *call, ncclResult_t got, ncclResult_t want)
{
	ncclResult_t code;

	if (got == want) {
		return true;
	}
	check_fail(file, line, "%s: %s, not %s; %s", call, ncclGetErrorString(got),
		   ncclGetErrorString(want), got == ncclSuccess ? "" : last_text(NULL, &code));
	return false;
}

/* One line that says something, and contains `part`. */
static bool check_text(const char *file, int line, const char *call, const char *text,
		       const char *part)
{
	if (strlen(text) < 12 || strchr(text, '\n') || !strstr(text, part)) {
		check_fail(file, line, "%s: the reason \"%s\" is not a line with \"%s\"", call,
			   text, part);
		return false;
	}
	return true;
}

bool check_reason(const char *file, int line, const char *call, ncclResult_t got, ncclResult_t want,
		  const char *part)
{
	ncclResult_t code;
	const char *text;

	if (!check_nccl(file, line, call, got, want)) {
		return false;
	}
	text = last_text(NULL, &code);
	if (code != want) {
		check_fail(file, line, "%s: the last error is %s, not %s", call,
			   ncclGetErrorString(code), ncclGetErrorString(want));
		return false;
	}
	return check_text(file, line, call, text, part);
}

bool check_last(const char *file, int line, ncclEpGroup_t group, ncclResult_t want,
		const char *part)
{
	ncclResult_t code;
	const char *text = last_text(group, &code);

	if (code != want) {
		check_fail(file, line, "the last error is %s (\"%s\"), not %s",
			   ncclGetErrorString(code), text, ncclGetErrorString(want));
		return false;
	}
	return want == ncclSuccess || check_text(file, line, "last error", text, part);
}
