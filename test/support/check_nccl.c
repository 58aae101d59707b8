/* SPDX-License-Identifier: Apache-2.0 */
#include "support/check_nccl.h"

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
