// SPDX-License-Identifier: Apache-2.0
/*
 * Which ways of posting RDMA this machine permits. Only looks: opens no device, creates no CUDA
 * context, and needs neither libibverbs nor libmlx5 to run.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tools/ep_info.h"

struct probe {
	bool devices; /* the topology has a usable RDMA port */
	bool mlx5;    /* and it is an mlx5 one */
	bool verbs;   /* libibverbs loads */
	bool devx;    /* libmlx5 loads and has the DevX calls */
	bool uverbs;  /* a uverbs device may be opened */
	bool gpu;
	bool dmabuf;   /* the GPUs' memory can be exported as DMA-BUF */
	bool peermem;  /* or be registered by address */
	bool doorbell; /* the GPU may map a NIC's doorbell page */
	char devices_why[160], mlx5_why[160], verbs_why[160], devx_why[160], uverbs_why[160];
	char memory_why[200], doorbell_why[200];
};

static void probe_devices(struct probe *p, const struct ep_topo *topo)
{
	int rdma = 0, usable = 0, mlx5 = 0;

	for (int n = 0; topo && n < topo->nnics; n++) {
		rdma += topo->nic[n].rdma;
		for (int i = 0; i < topo->nic[n].nports; i++) {
			enum ep_topo_why why = topo->nic[n].port[i].why;
			bool ok = why != EP_TOPO_WHY_NOT_RDMA && why != EP_TOPO_WHY_DISABLED &&
				  why != EP_TOPO_WHY_FILTERED && why != EP_TOPO_WHY_DOWN;
			char path[256], target[256];

			usable += ok;
			snprintf(path, sizeof(path), "/sys/class/infiniband/%s/device/driver",
				 topo->nic[n].name);
			ssize_t len = readlink(path, target, sizeof(target) - 1);

			if (ok && len > 0) {
				target[len] = '\0';
				mlx5 += strstr(target, "/mlx5_") != NULL;
			}
		}
	}
	p->gpu = topo && topo->ngpus > 0;
	p->devices = usable > 0;
	p->mlx5 = mlx5 > 0;
	snprintf(p->devices_why, sizeof(p->devices_why),
		 rdma ? "%d RDMA devices, %d usable ports" : "no RDMA device", rdma, usable);
	snprintf(p->mlx5_why, sizeof(p->mlx5_why),
		 mlx5 ? "%d usable ports of mlx5 devices" : "no usable port of an mlx5 device",
		 mlx5);
}

static void probe_libraries(struct probe *p)
{
	static const char *const devx[] = {
		"mlx5dv_open_device",    "mlx5dv_is_supported",   "mlx5dv_devx_obj_create",
		"mlx5dv_devx_umem_reg",  "mlx5dv_devx_alloc_uar", "mlx5dv_devx_general_cmd",
		"mlx5dv_devx_query_eqn",
	};
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);

	p->verbs = lib != NULL;
	snprintf(p->verbs_why, sizeof(p->verbs_why), "%s",
		 lib ? "libibverbs.so.1 loads"
		     : "libibverbs.so.1 does not load, install rdma-core");
	lib = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_LOCAL);
	p->devx = lib != NULL;
	snprintf(p->devx_why, sizeof(p->devx_why), "%s",
		 lib ? "libmlx5.so.1 has the DevX calls"
		     : "libmlx5.so.1 does not load, install ibverbs-providers");
	for (size_t i = 0; lib && i < sizeof(devx) / sizeof(devx[0]); i++) {
		if (!dlsym(lib, devx[i])) {
			p->devx = false;
			snprintf(p->devx_why, sizeof(p->devx_why),
				 "libmlx5.so.1 has no %s, update rdma-core", devx[i]);
			break;
		}
	}
}

static void probe_uverbs(struct probe *p)
{
	DIR *dir = opendir("/dev/infiniband");
	int found = 0;

	for (struct dirent *e = dir ? readdir(dir) : NULL; e; e = readdir(dir)) {
		char path[300];

		if (strncmp(e->d_name, "uverbs", 6) == 0) {
			found++;
			snprintf(path, sizeof(path), "/dev/infiniband/%s", e->d_name);
			p->uverbs |= access(path, R_OK | W_OK) == 0;
		}
	}
	if (dir) {
		closedir(dir);
	}
	snprintf(p->uverbs_why, sizeof(p->uverbs_why), "%s",
		 p->uverbs ? "may be opened"
		 : found   ? "may not be opened, check its permissions"
		 : dir     ? "/dev/infiniband has no uverbs device"
			   : "no /dev/infiniband; in a container, pass it in");
}

/* DMA-BUF export is an attribute of the CUDA device. */
static bool gpus_export_dmabuf(void)
{
	enum {
		ATTR_DMA_BUF_SUPPORTED = 124
	};
	int (*init)(unsigned), (*get)(int *, int), (*attr)(int *, int, int);
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	int dev, yes = 0;

	if (!lib) {
		return false;
	}
	*(void **)&init = dlsym(lib, "cuInit");
	*(void **)&get = dlsym(lib, "cuDeviceGet");
	*(void **)&attr = dlsym(lib, "cuDeviceGetAttribute");
	return init && get && attr && init(0) == 0 && get(&dev, 0) == 0 &&
	       attr(&yes, ATTR_DMA_BUF_SUPPORTED, dev) == 0 && yes;
}

static void probe_memory(struct probe *p)
{
	p->dmabuf = p->gpu && gpus_export_dmabuf();
	p->peermem = access("/sys/module/nvidia_peermem", F_OK) == 0 ||
		     access("/sys/kernel/mm/memory_peers/nv_mem", F_OK) == 0 ||
		     access("/sys/kernel/mm/memory_peers/nv_mem_nc", F_OK) == 0;
	snprintf(p->memory_why, sizeof(p->memory_why), "%s",
		 !p->gpu      ? "no GPU"
		 : p->dmabuf  ? "DMA-BUF"
		 : p->peermem ? "nvidia-peermem"
			      : "neither DMA-BUF (needs the open kernel modules) nor "
				"nvidia-peermem (modprobe nvidia-peermem)");
}

/* cudaHostRegister(IoMemory) of a doorbell page is for root, or for all if the driver was loaded
 * with PeerMappingOverride. */
static void probe_doorbell(struct probe *p)
{
	char text[8192];
	int fd = open("/proc/driver/nvidia/params", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;

	if (fd >= 0) {
		close(fd);
	}
	text[n > 0 ? n : 0] = '\0';
	bool override = strstr(text, "PeerMappingOverride=1") != NULL;

	p->doorbell = p->gpu && (override || geteuid() == 0);
	snprintf(p->doorbell_why, sizeof(p->doorbell_why), "%s",
		 !p->gpu          ? "no GPU"
		 : override       ? "the driver has PeerMappingOverride=1"
		 : geteuid() == 0 ? "root"
				  : "not root, and the driver was loaded without "
				    "NVreg_RegistryDwords=\"PeerMappingOverride=1;\"");
}

static void print_probe(const char *what, bool ok, const char *why)
{
	printf("  %-34s %-4s %s\n", what, ok ? "yes" : "no", why);
}

static void print_mode(const char *what, const bool *ok, const char *const *names, int n)
{
	bool all = true;

	for (int i = 0; i < n; i++) {
		all &= ok[i];
	}
	printf("  %-34s %s", what, all ? "the machine permits it" : "no:");
	for (int i = 0, listed = 0; i < n; i++) {
		if (!ok[i]) {
			printf("%s %s", listed++ ? "," : "", names[i]);
		}
	}
	putchar('\n');
}

void ep_info_rdma(const struct ep_topo *topo)
{
	static const char *const needs[] = { "no GPU",
					     "no usable RDMA port",
					     "no libibverbs",
					     "no uverbs device",
					     "GPU memory cannot be registered",
					     "no mlx5 device",
					     "no DevX",
					     "the GPU may not map doorbells" };
	struct probe p = { .gpu = false };

	probe_devices(&p, topo);
	probe_libraries(&p);
	probe_uverbs(&p);
	probe_memory(&p);
	probe_doorbell(&p);

	const bool ok[] = { p.gpu,  p.devices, p.verbs,   p.uverbs, p.dmabuf || p.peermem,
			    p.mlx5, p.devx,    p.doorbell };
	puts("RDMA");
	puts("  Inter-node communication is not available in this version: groups span one NVLink");
	puts("  domain. What follows is what this machine would permit.");
	print_probe("usable RDMA ports", p.devices, p.devices_why);
	print_probe("mlx5 devices", p.mlx5, p.mlx5_why);
	print_probe("libibverbs", p.verbs, p.verbs_why);
	print_probe("libmlx5 with DevX", p.devx, p.devx_why);
	print_probe("uverbs device", p.uverbs, p.uverbs_why);
	print_probe("GPU memory registration", p.dmabuf || p.peermem, p.memory_why);
	print_probe("doorbell mapped into the GPU", p.doorbell, p.doorbell_why);
	print_mode("GPU rings, queues in GPU memory", ok, needs, 8);
	print_mode("GPU rings, queues in host memory", ok, needs, 8);
	print_mode("CPU rings for GPU-written queues", ok, needs, 7);
	print_mode("CPU proxy posts verbs", ok, needs, 5);
}
