// SPDX-License-Identifier: Apache-2.0
/*
 * What this machine has of what RDMA needs. Opens the RDMA devices, as the library does, but makes
 * nothing on them, and creates no CUDA context. Where only trying would tell, what it would depend on
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
#include "gda/choose.h"
#include "gda/verbs.h"
#include "tools/ep_info.h"

static void say(struct ep_info_fact *fact, bool yes, const char *fmt, ...) EP_PRINTF(3, 4);
static void say(struct ep_info_fact *fact, bool yes, const char *fmt, ...)
{
	va_list ap;

	fact->yes = yes;
	va_start(ap, fmt);
	vsnprintf(fact->text, sizeof(fact->text), fmt, ap);
	va_end(ap);
}

static void add(char *text, size_t size, const char *fmt, ...) EP_PRINTF(3, 4);
static void add(char *text, size_t size, const char *fmt, ...)
{
	size_t at = strlen(text);
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text + at, size - at, fmt, ap);
	va_end(ap);
}

/* ---- GPUs ---- */

/* Attributes of the first CUDA device, by the driver's numbers. */
enum {
	ATTR_WRITES_ORDERING = 118,
	ATTR_DMA_BUF_SUPPORTED = 124
};

static bool cuda_attribute(int attribute, int *value)
{
	int (*init)(unsigned), (*get)(int *, int), (*attr)(int *, int, int);
	void *lib = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
	int dev;

	if (!lib) {
		return false;
	}
	*(void **)&init = dlsym(lib, "cuInit");
	*(void **)&get = dlsym(lib, "cuDeviceGet");
	*(void **)&attr = dlsym(lib, "cuDeviceGetAttribute");
	return init && get && attr && init(0) == 0 && get(&dev, 0) == 0 &&
	       attr(value, attribute, dev) == 0;
}

static void probe_gpu(struct ep_info_facts *f, const struct ep_topo *topo)
{
	int order = 0;
	bool gpu = topo && topo->ngpus > 0;

	say(&f->fact[EP_INFO_GPU], gpu, gpu ? "%d" : "no GPU", gpu ? topo->ngpus : 0);
	if (!cuda_attribute(ATTR_WRITES_ORDERING, &order)) {
		say(&f->order, false, "not known: no CUDA device answers");
	} else if (order < 100) {
		say(&f->order, false,
		    "this GPU may see a NIC's flag before the data: results are not reliable");
	} else {
		say(&f->order, true, "by %s", order < 200 ? "the GPU that is written" : "all GPUs");
	}
}

/* ---- NICs ---- */

struct nics {
	int devices, opened, ports, active, permitted;
	char listed[160], closed[96], devx[96], no_devx[128];
};

static bool permitted(const char *name, int port)
{
	struct ep_topo_hca hca;
	struct ep_topo_err err;

	return !ep_topo_hca_parse(getenv("NCCL_IB_HCA"), &hca, &err) &&
	       ep_topo_hca_match(&hca, name, port);
}

static int usable_ports(const struct ep_verbs *v, struct ibv_context *ctx, const char *name,
			struct nics *n)
{
	struct ibv_device_attr attr;
	int usable = 0;

	memset(&attr, 0, sizeof(attr));
	if (v->ibv_query_device(ctx, &attr)) {
		return 0;
	}
	for (int p = 1; p <= attr.phys_port_cnt; p++) {
		struct ibv_port_attr port;
		bool active = !ep_verbs_query_port(v, ctx, (uint8_t)p, &port) &&
			      port.state == IBV_PORT_ACTIVE;

		n->ports++;
		n->active += active;
		if (active && permitted(name, p)) {
			add(n->listed, sizeof(n->listed), " %s:%d", name, p);
			usable++;
		}
	}
	n->permitted += usable;
	return usable;
}

static void try_devx(const struct ep_verbs *v, const struct ep_mlx5dv *dv, struct ibv_device *dev,
		     struct nics *n)
{
	struct mlx5dv_context_attr attr = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	const char *name = v->ibv_get_device_name(dev);
	struct ibv_context *ctx;

	if (!dv->mlx5dv_is_supported(dev)) {
		add(n->no_devx, sizeof(n->no_devx), "%s is not an mlx5 device; ", name);
		return;
	}
	ctx = dv->mlx5dv_open_device(dev, &attr);
	if (!ctx) {
		add(n->no_devx, sizeof(n->no_devx), "%s does not open with DEVX (%s); ", name,
		    strerror(errno));
		return;
	}
	add(n->devx, sizeof(n->devx), " %s", name);
	v->ibv_close_device(ctx);
}

static void list_nics(const struct ep_verbs *v, const struct ep_mlx5dv *dv, struct nics *n)
{
	struct ibv_device **devs = (v->ibv_get_device_list)(&n->devices);

	for (int i = 0; devs && i < n->devices; i++) {
		const char *name = v->ibv_get_device_name(devs[i]);
		struct ibv_context *ctx = v->ibv_open_device(devs[i]);
		int usable;

		if (!ctx) {
			add(n->closed, sizeof(n->closed), "; %s does not open: %s", name,
			    strerror(errno));
			continue;
		}
		n->opened++;
		usable = usable_ports(v, ctx, name, n);
		v->ibv_close_device(ctx);
		if (usable && dv) {
			try_devx(v, dv, devs[i], n);
		}
	}
	if (devs) {
		v->ibv_free_device_list(devs);
	}
}

static void probe_nics(struct ep_info_facts *f)
{
	const char *why_verbs, *why_dv;
	const struct ep_verbs *v = ep_verbs(&why_verbs);
	const struct ep_mlx5dv *dv = ep_mlx5dv(&why_dv);
	struct nics n = { .devices = 0 };

	say(&f->fact[EP_INFO_VERBS], v != NULL, "%s", v ? "libibverbs.so.1 loads" : why_verbs);
	if (!v) {
		say(&f->fact[EP_INFO_PORT], false, "not known without libibverbs");
		say(&f->fact[EP_INFO_DEVX], false, "not known without libibverbs");
		return;
	}
	list_nics(v, dv, &n);
	if (!n.devices) {
		say(&f->fact[EP_INFO_PORT], false,
		    "no RDMA device; in a container, pass /dev/infiniband in");
	} else if (!n.permitted) {
		say(&f->fact[EP_INFO_PORT], false,
		    "%d devices, %d ports, %d active, none of these permitted%s%s", n.devices,
		    n.ports, n.active, n.active ? " by NCCL_IB_HCA" : "", n.closed);
	} else {
		say(&f->fact[EP_INFO_PORT], true, "%d of %d, %d devices:%s%s", n.permitted, n.ports,
		    n.devices, n.listed, n.closed);
	}
	n.no_devx[strlen(n.no_devx) ? strlen(n.no_devx) - 2 : 0] = '\0';
	say(&f->fact[EP_INFO_DEVX], n.devx[0], "%s%s%s",
	    !dv            ? why_dv
	    : n.devx[0]    ? n.devx + 1
	    : n.no_devx[0] ? n.no_devx
			   : "no device to open",
	    n.devx[0] && n.no_devx[0] ? "; but " : "", n.devx[0] ? n.no_devx : "");
}

/* ---- between the two ---- */

static bool peermem_loaded(void)
{
	return access("/sys/module/nvidia_peermem", F_OK) == 0 ||
	       access("/sys/kernel/mm/memory_peers/nv_mem", F_OK) == 0 ||
	       access("/sys/kernel/mm/memory_peers/nv_mem_nc", F_OK) == 0;
}

static void say_memory(struct ep_info_fact *fact, bool gpu, bool dmabuf, bool call,
		       const char *library, bool peermem)
{
	if (!gpu) {
		say(fact, false, "no GPU");
	} else if (dmabuf && call) {
		say(fact, true, "DMA-BUF");
	} else if (peermem) {
		say(fact, true, "nvidia-peermem");
	} else {
		say(fact, false, "no DMA-BUF (%s) and no nvidia-peermem (modprobe nvidia-peermem)",
		    dmabuf ? library
			   : "the GPU's driver does not offer it: open kernel modules do");
	}
}

static void probe_memory(struct ep_info_facts *f)
{
	const char *why;
	const struct ep_verbs *v = ep_verbs(&why);
	const struct ep_mlx5dv *dv = ep_mlx5dv(&why);
	bool gpu = f->fact[EP_INFO_GPU].yes, peermem = peermem_loaded();
	int dmabuf = 0;

	if (!cuda_attribute(ATTR_DMA_BUF_SUPPORTED, &dmabuf)) {
		dmabuf = 0;
	}
	say_memory(&f->fact[EP_INFO_HEAP], gpu, dmabuf, v && v->ibv_reg_dmabuf_mr,
		   "libibverbs is too old", peermem);
	say_memory(&f->fact[EP_INFO_RING], gpu, dmabuf, dv && dv->mlx5dv_devx_umem_reg_ex,
		   dv ? "libmlx5 is too old" : "no libmlx5", peermem);
}

/* cudaHostRegister(IoMemory) of a doorbell page is for root, or for all if the driver was loaded
 * with PeerMappingOverride. */
static void probe_doorbell(struct ep_info_facts *f)
{
	struct ep_info_fact *fact = &f->fact[EP_INFO_DOORBELL];
	char text[8192];
	int fd = open("/proc/driver/nvidia/params", O_RDONLY | O_CLOEXEC);
	ssize_t n = fd >= 0 ? read(fd, text, sizeof(text) - 1) : 0;

	if (fd >= 0) {
		close(fd);
	}
	text[n > 0 ? n : 0] = '\0';
	if (!f->fact[EP_INFO_GPU].yes) {
		say(fact, false, "no GPU");
	} else if (strstr(text, "PeerMappingOverride=1")) {
		say(fact, true, "the driver has PeerMappingOverride=1");
	} else if (geteuid() == 0) {
		say(fact, true, "root");
	} else {
		say(fact, false,
		    "not root, and the driver was loaded without "
		    "NVreg_RegistryDwords=\"PeerMappingOverride=1;\"");
	}
}

static void probe_enabled(struct ep_info_facts *f)
{
	struct ep_info_fact *fact = &f->fact[EP_INFO_ENABLED];
	struct ep_gda_env env;
	struct ep_error error;

	if (ep_gda_env_read(&env) != ncclSuccess) {
		ep_error_get(NULL, &error);
		say(fact, false, "%.200s", error.text);
	} else {
		say(fact, !env.disable, "NCCL_IB_DISABLE is %d", env.disable);
	}
}

void ep_info_probe(struct ep_info_facts *facts, const struct ep_topo *topo)
{
	memset(facts, 0, sizeof(*facts));
	probe_gpu(facts, topo);
	probe_enabled(facts);
	probe_nics(facts);
	probe_memory(facts);
	probe_doorbell(facts);
}
