/* SPDX-License-Identifier: Apache-2.0 */
/* A report of the machine and of this process, for an operator. */
#include <dirent.h>
#include <dlfcn.h>
#include <limits.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "tools/ep_info.h"

extern char **environ;

/* Lines of a file that begin so. */
static void print_lines(const char *path, const char *begin)
{
	FILE *file = fopen(path, "re");
	char line[512];

	while (file && fgets(line, sizeof(line), file)) {
		if (strncmp(line, begin, strlen(begin)) == 0) {
			printf("  %s", line);
		}
	}
	if (file) {
		fclose(file);
	} else {
		printf("  %s: cannot be read\n", path);
	}
}

/* Of the kernel's command line only what concerns PCIe: the rest is nobody's business. */
static void print_cmdline(void)
{
	static const char *const words[] = { "iommu", "intel_iommu=", "amd_iommu=",
					     "pci=",  "pcie_",        "arm-smmu" };
	char line[4096] = "", *save = NULL;

	(void)ep_topo_read_line("/proc", "cmdline", line, sizeof(line));
	printf("  kernel's command line, of PCIe:");
	for (char *w = strtok_r(line, " ", &save); w; w = strtok_r(NULL, " ", &save)) {
		for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
			if (strncmp(w, words[i], strlen(words[i])) == 0) {
				printf(" %s", w);
				break;
			}
		}
	}
	putchar('\n');
}

static int entries(const char *path)
{
	DIR *dir = opendir(path);
	int n = 0;

	for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
		n += e->d_name[0] != '.';
	}
	if (dir) {
		closedir(dir);
	}
	return n;
}

static void print_machine(void)
{
	struct utsname u;

	puts("Machine");
	if (uname(&u) == 0) {
		printf("  %s %s, %s\n", u.sysname, u.release, u.machine);
	}
	print_lines("/etc/os-release", "PRETTY_NAME=");
	print_cmdline();
	printf("  IOMMU groups: %d\n", entries("/sys/kernel/iommu_groups"));
	printf("  container: %s\n",
	       access("/.dockerenv", F_OK) == 0 || access("/run/.containerenv", F_OK) == 0
		       ? "yes"
		       : "no sign of one");
}

static void print_modules(void)
{
	static const char *const modules[] = {
		"mlx5_core",      "mlx5_ib",     "ib_core", "ib_uverbs",
		"rdma_cm",        "bonding",     "nvidia",  "nvidia_uvm",
		"nvidia_peermem", "nv_peer_mem", "gdrdrv",  "ib_ipoib",
		"bnxt_re",        "irdma",       "efa",     "rdma_rxe",
	};
	char path[128], version[128];

	puts("Kernel modules");
	for (size_t i = 0; i < sizeof(modules) / sizeof(modules[0]); i++) {
		snprintf(path, sizeof(path), "/sys/module/%s", modules[i]);
		if (access(path, F_OK) != 0) {
			printf("  %-16s not loaded\n", modules[i]);
			continue;
		}
		printf("  %-16s %s\n", modules[i],
		       ep_topo_read_line(path, "version", version, sizeof(version)) ? version
										    : "loaded");
	}
	print_lines("/proc/driver/nvidia/version", "NVRM");
	print_lines("/proc/driver/nvidia/params", "RegistryDwords:");
}

static void print_limit(const char *what, int resource)
{
	struct rlimit l;
	char soft[32] = "unlimited", hard[32] = "unlimited";

	if (getrlimit((__rlimit_resource_t)resource, &l) != 0) {
		return;
	}
	if (l.rlim_cur != RLIM_INFINITY) {
		snprintf(soft, sizeof(soft), "%llu", (unsigned long long)l.rlim_cur);
	}
	if (l.rlim_max != RLIM_INFINITY) {
		snprintf(hard, sizeof(hard), "%llu", (unsigned long long)l.rlim_max);
	}
	printf("  %s: %s, at most %s\n", what, soft, hard);
}

static void print_process(void)
{
	puts("Process");
	printf("  user: %s\n", geteuid() == 0 ? "root" : "not root");
	print_lines("/proc/self/status", "CapEff:");
	print_limit("locked memory (ulimit -l), bytes", RLIMIT_MEMLOCK);
	print_limit("open files (ulimit -n)", RLIMIT_NOFILE);
	printf("  /dev/infiniband: %d files, %s\n", entries("/dev/infiniband"),
	       access("/dev/infiniband", R_OK | X_OK) == 0 ? "readable" : "not readable");
}

/* Values of such names may be secrets. */
static bool is_secret(const char *name, size_t n)
{
	static const char *const parts[] = { "TOKEN",  "SECRET",  "PASSW",   "CREDENTIAL",
					     "APIKEY", "API_KEY", "PRIVATE", "AUTH" };

	for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
		const char *at = strstr(name, parts[i]);

		if (at && at < name + n) {
			return true;
		}
	}
	return false;
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Only variables of what this library, NCCL, CUDA and verbs read. */
static void print_environment(void)
{
	static const char *const begins[] = {
		"NCCL_", "CUDA_", "RDMAV_", "IBV_", "MLX5_", "HWLOC_"
	};
	char *list[512];
	size_t n = 0;

	puts("Environment");
	for (char **e = environ; *e && n < sizeof(list) / sizeof(list[0]); e++) {
		for (size_t i = 0; i < sizeof(begins) / sizeof(begins[0]); i++) {
			if (strncmp(*e, begins[i], strlen(begins[i])) == 0) {
				list[n++] = *e;
				break;
			}
		}
	}
	qsort(list, n, sizeof(list[0]), by_name);
	for (size_t i = 0; i < n; i++) {
		size_t name = strcspn(list[i], "=");

		if (is_secret(list[i], name)) {
			printf("  %.*s=(not shown)\n", (int)name, list[i]);
		} else {
			printf("  %s\n", list[i]);
		}
	}
}

/* The files of a library that is loaded: their names have its version. */
static void print_file(const char *name)
{
	struct link_map *map = NULL;
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	char path[PATH_MAX];

	if (!library) {
		printf("  %s: %s\n", name, dlerror());
	} else if (dlinfo(library, RTLD_DI_LINKMAP, &map) || !realpath(map->l_name, path)) {
		printf("  %s: loads\n", name);
	} else {
		printf("  %s is %s\n", name, path);
	}
}

static void print_verbs(void)
{
	puts("Libraries of RDMA");
	print_file("libibverbs.so.1");
	print_file("libmlx5.so.1");
}

void ep_info_report(void)
{
	print_machine();
	print_modules();
	print_process();
	print_environment();
	print_verbs();
	ep_info_trial();
	ep_info_kernel();
}
