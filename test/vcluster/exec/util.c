/* SPDX-License-Identifier: Apache-2.0 */
/* Identity, environment, the end of the process. */
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "exec/util.h"

long vc_env_long(const char *name, long fallback)
{
	const char *text = getenv(name);
	char *end;
	long value;

	if (!text || !*text) {
		return fallback;
	}
	errno = 0;
	value = strtol(text, &end, 0);
	if (errno || *end) {
		vc_die(VC_EXIT_ILLEGAL, "%s=%s is not a number", name, text);
	}
	return value;
}

int vc_rank(void)
{
	static _Atomic int rank = -2;
	int known = atomic_load_explicit(&rank, memory_order_relaxed);

	if (known == -2) {
		known = (int)vc_env_long("RANK", -1);
		atomic_store_explicit(&rank, known, memory_order_relaxed);
	}
	return known;
}

void vc_die(int code, const char *fmt, ...)
{
	char text[1024];
	int at = 0;
	va_list list;

	if (getenv("RANK")) {
		at = snprintf(text, sizeof(text), "vcluster: rank %s: ", getenv("RANK"));
	} else {
		at = snprintf(text, sizeof(text), "vcluster: pid %d: ", (int)getpid());
	}
	va_start(list, fmt);
	at += vsnprintf(text + at, sizeof(text) - (size_t)at - 1, fmt, list);
	va_end(list);
	if (at > (int)sizeof(text) - 2) {
		at = (int)sizeof(text) - 2;
	}
	text[at] = '\n';
	text[at + 1] = 0;
	fflush(stdout);
	fputs(text, stderr);
	fflush(stderr);
	_exit(code);
}
