/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which library this is, in one line: for callers, for the log, and with NCCL_EP_DEBUG=1 as soon as
 * it is loaded.
 */
#include <dlfcn.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>
#include "core/build.h"
#include "core/log.h"
#include "core/nccl_dyn.h"
#include "core/param.h"
#include "ep/ep.h"

#define EP_VERSION_LINE 800

#define EP_STRING_(x) #x
#define EP_STRING(x) EP_STRING_(x)
#define EP_VERSION_TEXT                                                                            \
	EP_STRING(NCCL_EP_MAJOR) "." EP_STRING(NCCL_EP_MINOR) "." EP_STRING(NCCL_EP_PATCH)

/*
 * Programs look for this line in the library's file, to compare the CUDA version with NCCL's.
 * CUDA's headers have it as a number only: meson.build makes EP_CUDA_TEXT of that.
 */
static const char banner[] = "NCCL EP version " EP_VERSION_TEXT "+cuda" EP_CUDA_TEXT "\n";

/* The file that this very code was loaded from. */
static void version_path(char path[PATH_MAX])
{
	Dl_info info;

	strcpy(path, "unknown file");
	if (!dladdr(ep_build_text, &info) || !info.dli_fname) {
		return;
	}
	if (!realpath(info.dli_fname, path)) { /* it was removed, or named from another directory */
		snprintf(path, PATH_MAX, "%s", info.dli_fname);
	}
}

/*
 * Which library this is, in one line: its build, what it is for, the API, the process's NCCL, and
 * its file.
 */
static void version_describe(char *line, size_t size)
{
	char nccl[40] = "no NCCL yet", path[PATH_MAX];
	int v = 0;

	if (ep_nccl_version(&v)) {
		snprintf(nccl, sizeof(nccl), "NCCL %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
	}
	version_path(path);
	snprintf(line, size,
		 "%s, for %s, NCCL EP " EP_VERSION_TEXT " (API %d), CUDA " EP_CUDA_TEXT ", %s, ",
		 ep_build_text, EP_FLAVOUR, NCCL_EP_API_VERSION, nccl);
	strncat(line, path, size - strlen(line) - 1);
}

ncclResult_t ep_version_text(const char **text)
{
	static __thread char line[EP_VERSION_LINE];

	if (!text) {
		return ep_fail(ncclInvalidArgument, "ncclEpExtVersion: text is NULL");
	}
	version_describe(line, sizeof(line));
	*text = line;
	return ncclSuccess;
}

void ep_version_log(int rank)
{
	static atomic_flag logged = ATOMIC_FLAG_INIT;
	enum ep_log_level level = ep_log_enabled(EP_LOG_INFO, EP_LOG_INIT) ? EP_LOG_INFO
									   : EP_LOG_VERSION;
	char line[EP_VERSION_LINE];

	if (!ep_log_enabled(level, EP_LOG_INIT) || (level == EP_LOG_VERSION && rank != 0) ||
	    atomic_flag_test_and_set(&logged)) {
		return;
	}
	version_describe(line, sizeof(line));
	ep_log(level, EP_LOG_INIT, "%s", line);
}

__attribute__((constructor)) static void banner_print(void)
{
	const char *text = getenv(ep_param_table[EP_PARAM_DEBUG].name);
	char line[EP_VERSION_LINE + 1];
	struct iovec parts[2];
	int64_t on = 0;

	if (!text || ep_param_parse(EP_PARAM_DEBUG, text, &on) != ncclSuccess || !on) {
		return;
	}
	version_describe(line, EP_VERSION_LINE);
	strcat(line, "\n");
	parts[0] = (struct iovec){ (void *)banner, sizeof(banner) - 1 };
	parts[1] = (struct iovec){ line, strlen(line) };
	if (writev(STDERR_FILENO, parts, 2) < 0) {
		return; /* no standard error, no banner */
	}
}
