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

#include "core/log.h"
#include "core/param.h"
#include "rdma/env.h"
#include "tools/ep_info.h"
#include "tools/nccl_vars.h"

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

/* Variables that NCCL, CUDA, verbs and hwloc read, and whose values are no secrets. Those of our tables come on top. */
static const char *const known[] = {
	"CUDA_CACHE_DISABLE",
	"CUDA_CACHE_MAXSIZE",
	"CUDA_DEVICE_MAX_CONNECTIONS",
	"CUDA_DEVICE_ORDER",
	"CUDA_DISABLE_PTX_JIT",
	"CUDA_ENABLE_COREDUMP_ON_EXCEPTION",
	"CUDA_FORCE_PTX_JIT",
	"CUDA_LAUNCH_BLOCKING",
	"CUDA_MODULE_LOADING",
	"CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
	"CUDA_VISIBLE_DEVICES",
	"HWLOC_COMPONENTS",
	"HWLOC_FSROOT",
	"HWLOC_THISSYSTEM",
	"HWLOC_XMLFILE",
	"IBV_FORK_SAFE",
	"MLX5_POST_SEND_PREFER_BF",
	"MLX5_SCATTER_TO_CQE",
	"MLX5_SHUT_UP_BF",
	"MLX5_SINGLE_THREADED",
	"NCCL_ALGO",
	"NCCL_ALLOC_P2P_NET_LL_BUFFERS",
	"NCCL_BUFFSIZE",
	"NCCL_CGA_CLUSTER_SIZE",
	"NCCL_CHECKS_DISABLE",
	"NCCL_CHECK_POINTERS",
	"NCCL_COLLNET_ENABLE",
	"NCCL_COMM_BLOCKING",
	"NCCL_COMM_ID",
	"NCCL_CROSS_NIC",
	"NCCL_CTA_POLICY",
	"NCCL_CUMEM_ENABLE",
	"NCCL_CUMEM_HOST_ENABLE",
	"NCCL_DMABUF_ENABLE",
	"NCCL_GDRCOPY_ENABLE",
	"NCCL_GIN_ENABLE",
	"NCCL_GIN_PLUGIN",
	"NCCL_GIN_TYPE",
	"NCCL_GRAPH_FILE",
	"NCCL_GRAPH_MIXING_SUPPORT",
	"NCCL_GRAPH_REGISTER",
	"NCCL_HOSTID",
	"NCCL_IGNORE_CPU_AFFINITY",
	"NCCL_LAUNCH_MODE",
	"NCCL_LAUNCH_ORDER_IMPLICIT",
	"NCCL_LL128_BUFFSIZE",
	"NCCL_LL_BUFFSIZE",
	"NCCL_LOCAL_REGISTER",
	"NCCL_MAX_CTAS",
	"NCCL_MAX_NCHANNELS",
	"NCCL_MAX_P2P_NCHANNELS",
	"NCCL_MIN_CTAS",
	"NCCL_MIN_NCHANNELS",
	"NCCL_MIN_P2P_NCHANNELS",
	"NCCL_MNNVL_CLIQUE_ID",
	"NCCL_MNNVL_ENABLE",
	"NCCL_MNNVL_UUID",
	"NCCL_NCHANNELS_PER_NET_PEER",
	"NCCL_NET",
	"NCCL_NET_DISABLE_INTRA",
	"NCCL_NET_FORCE_MERGE",
	"NCCL_NET_GDR_C2C",
	"NCCL_NET_GDR_READ",
	"NCCL_NET_MERGE_LEVEL",
	"NCCL_NET_OPTIONAL_RECV_COMPLETION",
	"NCCL_NET_OVERHEAD",
	"NCCL_NET_PLUGIN",
	"NCCL_NET_SHARED_BUFFERS",
	"NCCL_NET_SHARED_COMMS",
	"NCCL_NSOCKS_PERTHREAD",
	"NCCL_NTHREADS",
	"NCCL_NVB_DISABLE",
	"NCCL_NVLSTREE_MAX_CHUNKSIZE",
	"NCCL_NVLS_CHUNKSIZE",
	"NCCL_NVLS_NCHANNELS",
	"NCCL_OOB_NET_ENABLE",
	"NCCL_OOB_NET_IFNAME",
	"NCCL_P2P_DIRECT_DISABLE",
	"NCCL_P2P_LL_THRESHOLD",
	"NCCL_P2P_NET_CHUNKSIZE",
	"NCCL_P2P_NVL_CHUNKSIZE",
	"NCCL_P2P_PCI_CHUNKSIZE",
	"NCCL_P2P_PXN_LEVEL",
	"NCCL_P2P_READ_ENABLE",
	"NCCL_P2P_USE_CUDA_MEMCPY",
	"NCCL_PROFILER_PLUGIN",
	"NCCL_PROGRESS_APPEND_OP_FREQ",
	"NCCL_PROTO",
	"NCCL_PXN_C2C",
	"NCCL_PXN_DISABLE",
	"NCCL_RAS_ADDR",
	"NCCL_RAS_ENABLE",
	"NCCL_RAS_TIMEOUT_FACTOR",
	"NCCL_RUNTIME_CONNECT",
	"NCCL_SET_CPU_STACK_SIZE",
	"NCCL_SET_STACK_SIZE",
	"NCCL_SET_THREAD_NAME",
	"NCCL_SHM_DISABLE",
	"NCCL_SHM_LOCALITY",
	"NCCL_SHM_USE_CUDA_MEMCPY",
	"NCCL_SINGLE_PROC_MEM_REG_ENABLE",
	"NCCL_SINGLE_RING_THRESHOLD",
	"NCCL_SOCKET_FAMILY",
	"NCCL_SOCKET_NTHREADS",
	"NCCL_SOCKET_RETRY_CNT",
	"NCCL_SOCKET_RETRY_SLEEP_MSEC",
	"NCCL_SYM_CTAS",
	"NCCL_THREAD_THRESHOLDS",
	"NCCL_TOPO_DUMP_FILE",
	"NCCL_TUNER_CONFIG_FILE",
	"NCCL_TUNER_PLUGIN",
	"NCCL_WIN_ENABLE",
	"NCCL_WIN_STRIDE",
	"NCCL_WORK_ARGS_BYTES",
	"NCCL_WORK_FIFO_BYTES",
	"RDMAV_ALLOW_DISASSOC_DESTROY",
	"RDMAV_FORK_SAFE",
	"RDMAV_HUGEPAGES_SAFE",
};

/* Whether somebody is known to read the variable of an entry "NAME=value". */
static bool is_known(const char *entry)
{
	const char *name = NULL;
	size_t n = strcspn(entry, "="), all = sizeof(known) / sizeof(known[0]);

	for (size_t i = 0; i < EP_PARAMS + EP_IB_VARS + EP_NCCL_VARS + all; i++) {
		size_t at = i;

		if (at < EP_PARAMS) {
			name = ep_param_table[at].name;
		} else if ((at -= EP_PARAMS) < EP_IB_VARS) {
			name = ep_ib_var_table[at].name;
		} else if ((at -= EP_IB_VARS) < EP_NCCL_VARS) {
			name = ep_nccl_var_table[at].name;
		} else {
			name = known[at - EP_NCCL_VARS];
		}
		if (strncmp(entry, name, n) == 0 && !name[n]) {
			return true;
		}
	}
	return false;
}

/* Prints an entry in one line; of a variable that nobody is known to read, its name alone. */
static void print_variable(const char *entry)
{
	char *text = strdup(entry);

	if (text) {
		bool shown = is_known(entry);

		ep_log_flatten(text);
		printf("  %.*s%s\n", (int)(shown ? strlen(text) : strcspn(text, "=")), text,
		       shown ? "" : "=(not shown)");
	}
	free(text);
}

static int by_name(const void *a, const void *b)
{
	return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Variables whose names begin as those that the library, NCCL, CUDA, verbs and hwloc read. */
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
		print_variable(list[i]);
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
