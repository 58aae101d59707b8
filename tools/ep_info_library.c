/* SPDX-License-Identifier: Apache-2.0 */
/* Which library programs get here, and the one that was installed with this program. */
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <nccl.h>

#include "tools/ep_info_library.h"

#define EP_LIB "libnccl_ep.so.0"

const char *ep_info_call_version(void *lib, const char *symbol, int *version)
{
	int (*get)(int *);

	if (!lib) {
		return "not found";
	}
	*(void **)&get = dlsym(lib, symbol);
	if (!get || get(version)) {
		return "found, but it gives no version";
	}
	return NULL;
}

/* The library that was installed with this program; false if there is none. */
static bool find_installed(char path[PATH_MAX])
{
	char self[PATH_MAX], text[2 * PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	self[n > 0 ? n : 0] = '\0';
	slash = strrchr(self, '/');
	if (!slash) {
		return false;
	}
	*slash = '\0';
	snprintf(text, sizeof(text), "%s/%s/%s", EP_LIBDIR[0] == '/' ? "" : self, EP_LIBDIR,
		 EP_LIB);
	if (realpath(text, path)) {
		return true;
	}
	snprintf(text, sizeof(text), "%s/../%s", self, EP_LIB); /* the build directory */
	return realpath(text, path) != NULL;
}

/* Whose library it is. Others that have this soname do not have the call. */
static void print_build(void *lib)
{
	ncclResult_t (*ask)(const char **) = NULL;
	const char *text = NULL;

	*(void **)&ask = dlsym(lib, "ncclEpExtVersion");
	if (ask && ask(&text) == ncclSuccess) {
		printf("  %-22s %s\n", "", text);
	} else {
		printf("  %-22s not Switchyard, or older than ep_info\n", "");
	}
}

static void print_library(const char *what, void *lib, const char *path, const char *advice)
{
	int v = 0;
	const char *why = ep_info_call_version(lib, "ncclEpGetVersion", &v);

	if (why) {
		printf("  %-22s %s, %s\n", what, path, why);
	} else {
		printf("  %-22s %d.%d.%d, %s%s\n", what, v / 10000, v / 100 % 100, v % 100, path,
		       advice);
	}
	print_build(lib);
}

void ep_info_libraries(void)
{
	char installed[PATH_MAX], found[PATH_MAX] = "", why[512] = "";
	bool is_installed = find_installed(installed);
	struct link_map *map = NULL;
	void *lib = dlopen(EP_LIB, RTLD_NOW | RTLD_LOCAL);

	if (lib && !dlinfo(lib, RTLD_DI_LINKMAP, &map) && realpath(map->l_name, found)) {
		print_library(EP_LIB, lib, found, "");
	} else {
		snprintf(why, sizeof(why), "%s", dlerror());
	}
	if (!is_installed && !lib) { /* it may be there, and something that it needs not */
		printf("  %-22s %s\n", EP_LIB,
		       strncmp(why, EP_LIB, strlen(EP_LIB)) ? why : "not found");
	}
	if (!is_installed || strcmp(installed, found) == 0) {
		return;
	}
	lib = dlopen(installed, RTLD_NOW | RTLD_LOCAL);
	if (!lib) {
		printf("  %-22s %s does not load: %s\n", EP_LIB, installed, dlerror());
	} else if (found[0]) {
		print_library("installed with ep_info", lib, installed, "");
	} else {
		print_library(
			EP_LIB, lib, installed,
			"; programs do not find it there: set LD_LIBRARY_PATH or run ldconfig");
	}
}

void *ep_info_library(char why[EP_INFO_WHY])
{
	void *lib = dlopen(EP_LIB, RTLD_NOW | RTLD_LOCAL);
	char installed[PATH_MAX];

	why[0] = '\0';
	if (!lib) {
		snprintf(why, EP_INFO_WHY, "%s", dlerror());
		lib = find_installed(installed) ? dlopen(installed, RTLD_NOW | RTLD_LOCAL) : NULL;
	}
	return lib;
}
