/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds what this machine has of what RDMA needs. Opens the RDMA devices, as the library does, but makes
 * nothing on them, and creates no CUDA context. Where only trying would show it, what it would depend on
 * is looked at.
 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/error.h"
#include "rdma/env.h"
#include "tools/ep_info.h"

static void set(struct ep_info_fact *fact, bool yes, const char *fmt, ...) EP_PRINTF(3, 4);
static void set(struct ep_info_fact *fact, bool yes, const char *fmt, ...)
{
	va_list ap;

	fact->yes = yes;
	va_start(ap, fmt);
	vsnprintf(fact->text, sizeof(fact->text), fmt, ap);
	va_end(ap);
}

/* ---- GPUs ---- */

/* Attributes of the first CUDA device, by the driver's numbers. */
enum {
	ATTR_WRITES_ORDERING = 118,
	ATTR_DMA_BUF_SUPPORTED = 124
};

/* NULL also if CUDA is there and does not start. */
static void *cuda(const char *symbol)
{
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	int (*init)(unsigned);

	if (!lib) {
		return NULL;
	}
	*(void **)&init = dlsym(lib, "cuInit");
	return init && init(0) == 0 ? dlsym(lib, symbol) : NULL;
}

static bool cuda_attribute(int attribute, int *value)
{
	int (*get)(int *, int), (*attr)(int *, int, int), dev;

	*(void **)&get = cuda("cuDeviceGet");
	*(void **)&attr = cuda("cuDeviceGetAttribute");
	return get && attr && get(&dev, 0) == 0 && attr(value, attribute, dev) == 0;
}

static void list_gpus(struct ep_info_facts *facts)
{
	int (*count)(int *), (*get)(int *, int), (*bus_id)(char *, int, int);
	int n = 0, dev;

	*(void **)&count = cuda("cuDeviceGetCount");
	*(void **)&get = cuda("cuDeviceGet");
	*(void **)&bus_id = cuda("cuDeviceGetPCIBusId");
	if (!count || !get || !bus_id || count(&n) != 0) {
		return;
	}
	for (int i = 0; i < n && facts->ngpus < EP_TOPO_MAX_GPUS; i++) {
		struct ep_info_gpu *gpu = &facts->gpu[facts->ngpus];

		facts->ngpus += get(&dev, i) == 0 &&
				bus_id(gpu->bus_id, (int)sizeof(gpu->bus_id), dev) == 0;
	}
}

/* CUDA decides, as it does for the library: a GPU that the topology lacks still gets a NIC. */
static void probe_gpu(struct ep_info_facts *facts, const struct ep_topo *topo)
{
	const char *strange = NULL;
	int order = 0;

	for (int i = 0; i < facts->ngpus && !strange; i++) {
		strange = facts->gpu[i].known ? NULL : facts->gpu[i].bus_id;
	}
	if (!facts->ngpus) {
		set(&facts->fact[EP_INFO_GPU], false, "no GPU");
	} else if (!topo) {
		set(&facts->fact[EP_INFO_GPU], true,
		    "%d; the topology cannot be read: they take NICs in turn", facts->ngpus);
	} else if (strange) {
		set(&facts->fact[EP_INFO_GPU], true,
		    "%d; the topology does not have %s, which takes a NIC by its number",
		    facts->ngpus, strange);
	} else {
		set(&facts->fact[EP_INFO_GPU], true, "%d", facts->ngpus);
	}
	if (!cuda_attribute(ATTR_WRITES_ORDERING, &order)) {
		set(&facts->order, false, "not known: no CUDA device answers");
	} else if (order < 100) {
		set(&facts->order, false,
		    "this GPU may see a NIC's flag before the data: results are not reliable");
	} else {
		set(&facts->order, true, "by %s",
		    order < 200 ? "the GPU that is written" : "all GPUs");
	}
}

/* ---- NICs ---- */

static void probe_ports(struct ep_info_facts *facts, const struct ep_info_nics *nics)
{
	struct ep_info_fact *fact = &facts->fact[EP_INFO_PORT];
	char listed[160] = "";

	for (int i = 0; i < nics->n; i++) {
		size_t at = strlen(listed);

		snprintf(listed + at, sizeof(listed) - at, " %s:%d", nics->port[i].name,
			 nics->port[i].port);
	}
	if (!nics->devices) {
		set(fact, false, "no RDMA device; in a container, pass /dev/infiniband in");
	} else if (!nics->n) {
		set(fact, false, "%d devices, %d ports, %d active, none of these permitted%s%s",
		    nics->devices, nics->ports, nics->active, nics->active ? " by NCCL_IB_HCA" : "",
		    nics->closed);
	} else {
		set(fact, true, "%d of %d, %d devices:%s%s", nics->n, nics->ports, nics->devices,
		    listed, nics->closed);
	}
	for (int i = 0; i < facts->ngpus && fact->yes; i++) {
		if (!facts->gpu[i].port) {
			set(fact, false, "%s", facts->gpu[i].no_port);
		}
	}
}

static void probe_devx(struct ep_info_facts *facts, const struct ep_info_nics *nics)
{
	struct ep_info_fact *fact = &facts->fact[EP_INFO_DEVX];
	char with[96] = "", without[128] = "";
	const char *why;

	for (int i = 0; i < nics->n; i++) {
		const char *name = nics->port[i].name;

		if (i && strcmp(name, nics->port[i - 1].name) == 0) {
			continue;
		}
		if (!nics->no_devx[i][0]) {
			size_t at = strlen(with);

			snprintf(with + at, sizeof(with) - at, "%s%s", at ? " " : "", name);
		} else {
			size_t at = strlen(without);

			snprintf(without + at, sizeof(without) - at, "%s%s %s", at ? "; " : "",
				 name, nics->no_devx[i]);
		}
	}
	if (!ep_mlx5dv(&why)) {
		set(fact, false, "%s", why);
	} else {
		set(fact, with[0], "%s%s%s", with, with[0] && without[0] ? "; but " : "",
		    with[0] || without[0] ? without : "no device to open");
	}
	for (int i = 0; i < facts->ngpus && fact->yes; i++) {
		if (facts->gpu[i].port && !facts->gpu[i].devx) {
			set(fact, false, "%s", facts->gpu[i].no_devx);
		}
	}
}

static void probe_nics(struct ep_info_facts *facts, const struct ep_info_nics *nics)
{
	const char *why;
	bool verbs = ep_verbs(&why) != NULL;

	set(&facts->fact[EP_INFO_VERBS], verbs, "%s", verbs ? "libibverbs.so.1 loads" : why);
	if (!verbs) {
		set(&facts->fact[EP_INFO_PORT], false, "not known without libibverbs");
		set(&facts->fact[EP_INFO_DEVX], false, "not known without libibverbs");
		return;
	}
	probe_ports(facts, nics);
	probe_devx(facts, nics);
}

/* ---- between the two ---- */

static bool peermem_loaded(void)
{
	return access("/sys/module/nvidia_peermem", F_OK) == 0 ||
	       access("/sys/kernel/mm/memory_peers/nv_mem", F_OK) == 0 ||
	       access("/sys/kernel/mm/memory_peers/nv_mem_nc", F_OK) == 0;
}

static void set_memory(struct ep_info_fact *fact, bool gpu, bool dmabuf, bool call,
		       const char *library, bool peermem)
{
	if (!gpu) {
		set(fact, false, "no GPU");
	} else if (dmabuf && call) {
		set(fact, true, "DMA-BUF");
	} else if (peermem) {
		set(fact, true, "nvidia-peermem");
	} else {
		set(fact, false, "no DMA-BUF (%s) and no nvidia-peermem (modprobe nvidia-peermem)",
		    dmabuf ? library
			   : "the GPU's driver does not offer it: open kernel modules do");
	}
}

static void probe_memory(struct ep_info_facts *facts)
{
	const char *why;
	const struct ep_verbs *v = ep_verbs(&why);
	const struct ep_mlx5dv *dv = ep_mlx5dv(&why);
	bool gpu = facts->fact[EP_INFO_GPU].yes, peermem = peermem_loaded();
	int dmabuf = 0;

	if (!cuda_attribute(ATTR_DMA_BUF_SUPPORTED, &dmabuf)) {
		dmabuf = 0;
	}
	set_memory(&facts->fact[EP_INFO_HEAP], gpu, dmabuf, v && v->ibv_reg_dmabuf_mr,
		   "libibverbs is too old", peermem);
	set_memory(&facts->fact[EP_INFO_QUEUES], gpu, dmabuf, dv && dv->mlx5dv_devx_umem_reg_ex,
		   dv ? "libmlx5 is too old" : "no libmlx5", peermem);
}

/* cudaHostRegister(IoMemory) of a doorbell page is for root, or for all if the driver was loaded
 * with PeerMappingOverride. */
static void probe_doorbell(struct ep_info_facts *facts)
{
	struct ep_info_fact *fact = &facts->fact[EP_INFO_DOORBELL];
	char text[8192];
	int fd = open("/proc/driver/nvidia/params", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;

	if (fd >= 0) {
		close(fd);
	}
	text[n > 0 ? n : 0] = '\0';
	if (!facts->fact[EP_INFO_GPU].yes) {
		set(fact, false, "no GPU");
	} else if (strstr(text, "PeerMappingOverride=1")) {
		set(fact, true, "the driver has PeerMappingOverride=1");
	} else if (geteuid() == 0) {
		set(fact, true, "root");
	} else {
		set(fact, false,
		    "not root, and the driver was loaded without "
		    "NVreg_RegistryDwords=\"PeerMappingOverride=1;\"");
	}
}

static void probe_enabled(struct ep_info_facts *facts)
{
	struct ep_info_fact *fact = &facts->fact[EP_INFO_ENABLED];
	const char *level = getenv("NCCL_NET_GDR_LEVEL");
	struct ep_ib_env env;
	struct ep_error error;
	struct ep_topo_hca hca;
	struct ep_topo_err err;
	enum ep_topo_dist dist;

	if (ep_ib_env_read(&env) != ncclSuccess) {
		ep_error_get(NULL, &error);
		set(fact, false, "%.200s", error.text);
	} else if (ep_topo_hca_parse(getenv("NCCL_IB_HCA"), &hca, &err) ||
		   (level && *level && ep_topo_level_parse(level, &dist, &err))) {
		set(fact, false, "environment variable %.200s", err.text);
	} else {
		set(fact, !env.disable, "NCCL_IB_DISABLE is %d", env.disable);
	}
}

void ep_info_probe(struct ep_info_facts *facts, const struct ep_topo *topo,
		   const struct ep_info_nics *nics)
{
	memset(facts, 0, sizeof(*facts));
	list_gpus(facts);
	ep_info_gpus_match(facts, topo, nics);
	probe_gpu(facts, topo);
	probe_enabled(facts);
	probe_nics(facts, nics);
	probe_memory(facts);
	probe_doorbell(facts);
}
