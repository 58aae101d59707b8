/* SPDX-License-Identifier: Apache-2.0 */
/* What is installed here: the libraries that programs get, NCCL, CUDA, and what was compiled in. */
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <nccl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/build.h"
#include "core/param.h"
#include "nccl_ep.h"
#include "tools/ep_info.h"

#define EP_LIB "libnccl_ep.so.0"
#define WINDOWS_NCCL 22902 /* the first with pointers to peers' windows */

/* Calls int f(int *) of a library; returns NULL, or why not. */
static const char *call_version(void *lib, const char *symbol, int *version)
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
	const char *why = call_version(lib, "ncclEpGetVersion", &v);

	if (why) {
		printf("  %-22s %s, %s\n", what, path, why);
	} else {
		printf("  %-22s %d.%d.%d, %s%s\n", what, v / 10000, v / 100 % 100, v % 100, path,
		       advice);
	}
	print_build(lib);
}

/*
 * The library that programs get from the loader, and the one that was installed here, if they
 * differ.
 */
static void print_libraries(void)
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

void *ep_info_library(struct ep_reason *why)
{
	void *lib = dlopen(EP_LIB, RTLD_NOW | RTLD_LOCAL);
	char installed[PATH_MAX];

	if (!lib) {
		ep_reason_set(why, "%s", dlerror());
		lib = find_installed(installed) ? dlopen(installed, RTLD_NOW | RTLD_LOCAL) : NULL;
	}
	return lib;
}

static void print_nccl(const char *what, int code)
{
	printf("  %-22s %d.%d.%d\n", what, code / 10000, code / 100 % 100, code % 100);
}

/* How processes would map each other's memory from here, as far as one process can find out. */
static void print_memory(int nccl, const struct ep_topo *topo)
{
	const char *text = getenv(ep_param_table[EP_PARAM_MEMORY].name);
	const char *off[] = { "NCCL_CUMEM_ENABLE", "NCCL_WIN_ENABLE" };
	int64_t memory = 0;
	char why[80] = "";
	int a, b;

	if (text && *text && ep_param_parse(EP_PARAM_MEMORY, text, &memory) != ncclSuccess) {
		memory = 0; /* the parameters show it */
	}
	if (nccl < WINDOWS_NCCL) {
		snprintf(why, sizeof(why), "NCCL %d.%d.%d has no pointers to windows", nccl / 10000,
			 nccl / 100 % 100, nccl % 100);
	}
	for (size_t i = 0; i < sizeof(off) / sizeof(*off); i++) {
		const char *value = getenv(off[i]);

		if (value && strcmp(value, "0") == 0) {
			snprintf(why, sizeof(why), "%s=0", off[i]);
		}
	}
	if (memory == EP_MEMORY_IPC) {
		snprintf(why, sizeof(why), "NCCL_EP_MEMORY=ipc");
	}
	printf("  %-22s ", "memory of peers");
	if (memory == EP_MEMORY_HOST) {
		puts("by host memory: NCCL_EP_MEMORY=host");
	} else if (topo && ep_topo_apart(topo, &a, &b)) {
		printf("not possible between all GPUs: %d has no access to %d (ep_info -d)\n", a,
		       b);
	} else if (!*why) {
		printf("by NCCL windows%s\n",
		       memory == EP_MEMORY_WINDOW ? "" : ", by CUDA IPC if a rank cannot");
	} else if (memory == EP_MEMORY_WINDOW) {
		printf("not possible: NCCL_EP_MEMORY=window, but %s\n", why);
	} else {
		printf("by CUDA IPC: %s\n", why);
	}
}

/* Whether groups would use NVLink multicast, as far as the environment shows. */
static void print_multicast(void)
{
	const char *text = getenv(ep_param_table[EP_PARAM_NVLS].name);
	struct ep_reason why;

	printf("  %-22s ", "NVLink multicast");
	if (!text || strcmp(text, "1") != 0) {
		puts("not used: NCCL_EP_NVLS is not 1");
	} else if (!ep_param_nvls_allowed(&why)) {
		printf("not used: %s\n", why.text);
	} else {
		puts("for progress words, if NCCL has it on all ranks");
	}
}

void ep_info_versions(const struct ep_topo *topo)
{
	const char *why;
	int v = 0;

	puts("Versions");
	printf("  %-22s %s, NCCL EP %d.%d.%d, API version %d\n", "ep_info", ep_build_text,
	       NCCL_EP_MAJOR, NCCL_EP_MINOR, NCCL_EP_PATCH, NCCL_EP_API_VERSION);
	print_libraries();
	print_nccl("NCCL headers", NCCL_VERSION_CODE);
	why = call_version(dlopen("libnccl.so.2", RTLD_NOW), "ncclGetVersion", &v);
	if (why) {
		printf("  %-22s %s\n", "libnccl.so.2", why);
	} else {
		print_nccl("libnccl.so.2", v);
		print_memory(v, topo);
	}
	print_multicast();
	why = call_version(dlopen("libcuda.so.1", RTLD_NOW), "cuDriverGetVersion", &v);
	if (why) {
		printf("  %-22s %s\n", "libcuda.so.1", why);
	} else {
		printf("  %-22s CUDA %d.%d\n", "libcuda.so.1", v / 1000, v % 1000 / 10);
	}
	printf("  %-22s %s\n", "GPU driver", topo && *topo->driver ? topo->driver : "not found");
	printf("  %-22s %s\n", "compiled for", EP_GPU_ARCHS);
	printf("  %-22s %s\n", "profiler ranges", EP_RANGES);
	printf("  %-22s %s\n", "kernel times", EP_KERNEL_TIMES);
}
