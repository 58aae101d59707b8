/* SPDX-License-Identifier: Apache-2.0 */
/* What the thread of a rank needs: the time, memory, its phase, and an end when it cannot go on. */
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "perf.h"

typedef ncclResult_t (*last_error_fn)(ncclEpGroup_t group, ncclResult_t *code, const char **text);

const char *perf_last_error(const struct perf_rank *rank)
{
	last_error_fn last_error = (last_error_fn)dlsym(RTLD_DEFAULT, "ncclEpExtGetLastError");
	ncclResult_t code = ncclSuccess;
	const char *text = NULL;

	if (!last_error || last_error(rank->group, &code, &text) != ncclSuccess) {
		return NULL;
	}
	return code != ncclSuccess && text && *text ? text : NULL;
}

uint64_t perf_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

void perf_phase(struct perf_rank *rank, const char *phase)
{
	atomic_store(&rank->phase, phase);
	atomic_store(&rank->phase_ns, perf_now_ns());
}

/* Ends the process: other ranks of the run notice through their connections and timeouts. */
void perf_die(struct perf_rank *rank, const char *format, ...)
{
	const char *phase = atomic_load(&rank->phase);
	const char *text = perf_last_error(rank);
	char message[1024];
	va_list args;

	va_start(args, format);
	vsnprintf(message, sizeof(message), format, args);
	va_end(args);
	fflush(stdout);
	fprintf(stderr, "ep_perf: rank %u, %s: %s%s%s\n", rank->rank, phase ? phase : "start",
		message, text && !strstr(message, text) ? ": " : "",
		text && !strstr(message, text) ? text : "");
	_exit(EXIT_BROKEN);
}

void perf_expect_no_failure(struct perf_rank *rank)
{
	const char *text = perf_last_error(rank);

	if (text) {
		perf_die(rank, "%s", text);
	}
}

void *perf_alloc(struct perf_rank *rank, size_t count, size_t bytes)
{
	void *memory = calloc(count, bytes);

	if (!memory) {
		perf_die(rank, "out of memory");
	}
	return memory;
}
