/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What this machine has of what RDMA needs: NICs, GPUs, the ports that a rank with each GPU would
 * choose, and what is between them. Opens the RDMA devices, as the library does, but makes nothing
 * on them, and creates no CUDA context. Where only trying would show it, it looks at what that
 * would depend on.
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
#include "gda/prm.h"
#include "gda/state.h"
#include "rdma/env.h"
#include "tools/ep_info.h"

static bool permitted(const char *name, int port)
{
	struct ep_topo_hca hca;
	struct ep_topo_err err;

	return !ep_topo_hca_parse(getenv("NCCL_IB_HCA"), &hca, &err) &&
	       ep_topo_hca_match(&hca, name, port);
}

/* Prints firmware's state of the port, whose device is open. */
static void ask_bond(const struct ep_mlx5dv *dv, struct ibv_context *ctx,
		     const struct ep_port *port, char *bond, size_t size)
{
	unsigned char caps[EP_PRM_CAP_OUT_BYTES];
	struct ep_gda_nic *nic = calloc(1, sizeof(*nic));
	struct ep_reason why;

	if (!nic) {
		return;
	}
	nic->base.dv = dv;
	nic->base.ctx = ctx;
	nic->base.end.link_layer = port->ethernet ? IBV_LINK_LAYER_ETHERNET
						  : IBV_LINK_LAYER_INFINIBAND;
	snprintf(nic->base.name, sizeof(nic->base.name), "%s", port->name);
	if (ep_gda_query_caps(nic, EP_PRM_CAPS_GENERAL, caps, &why)) {
		ep_gda_lag_query(nic, caps + EP_PRM_CAP_AT);
	}
	if (nic->lag.ports) {
		snprintf(bond, size, "%u ports, %s", nic->lag.ports,
			 nic->lag.by_queue ? "by queue pair" : "by a hash of headers");
	}
	free(nic);
}

/* "": it opens with DEVX. */
static void try_devx(const struct ep_port_list *list, const struct ep_port *port, char *why,
		     size_t size, char *bond, size_t bond_size)
{
	const char *name = port->name;
	struct mlx5dv_context_attr attr = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	struct ibv_device *dev = ep_port_list_device(list, name);
	struct ibv_context *ctx = NULL;
	const char *no_dv;
	const struct ep_mlx5dv *dv = ep_mlx5dv(&no_dv);

	why[0] = '\0';
	if (!dv) {
		snprintf(why, size, "needs libmlx5 for it");
	} else if (!dv->mlx5dv_is_supported(dev)) {
		snprintf(why, size, "is not an mlx5 device");
	} else if (!(ctx = dv->mlx5dv_open_device(dev, &attr))) {
		snprintf(why, size, "does not open with DEVX (%s)", strerror(errno));
	} else {
		ask_bond(dv, ctx, port, bond, bond_size);
		list->v->ibv_close_device(ctx);
	}
}

void ep_info_nics_list(struct ep_info_nics *nics)
{
	struct ep_port_list list;
	struct ep_reason why;

	memset(nics, 0, sizeof(*nics));
	(void)ep_port_list_open(&list, &why);
	nics->devices = list.ndevs;
	nics->ports = list.nports;
	nics->active = list.n;
	snprintf(nics->closed, sizeof(nics->closed), "%.95s", list.closed.text);
	for (int i = 0; i < list.n; i++) {
		if (permitted(list.port[i].name, list.port[i].port)) {
			try_devx(&list, &list.port[i], nics->no_devx[nics->n],
				 sizeof(nics->no_devx[0]), nics->bond[nics->n],
				 sizeof(nics->bond[0]));
			nics->port[nics->n++] = list.port[i];
		}
	}
	ep_port_list_close(&list);
}

int ep_info_nics_find(const struct ep_info_nics *nics, const char *name, int port)
{
	for (int i = 0; i < nics->n; i++) {
		if (nics->port[i].port == port && strcmp(nics->port[i].name, name) == 0) {
			return i;
		}
	}
	return -1;
}

static void take(struct ep_info_gpu *gpu, const struct ep_info_nics *nics, int port)
{
	gpu->port = true;
	if (gpu->devx && nics->no_devx[port][0]) {
		gpu->devx = false;
		snprintf(gpu->no_devx, sizeof(gpu->no_devx), "GPU %s has %s, which %s", gpu->bus_id,
			 nics->port[port].name, nics->no_devx[port]);
	}
}

/* Those that the topology gives it; false if there are none. */
static bool take_near(struct ep_info_gpu *gpu, const struct ep_topo *topo,
		      const struct ep_info_nics *nics)
{
	int g = topo ? ep_topo_find_gpu(topo, gpu->bus_id, NULL) : -1;

	gpu->known = g >= 0;
	for (int i = 0; g >= 0 && i < topo->gpu[g].nrails; i++) {
		const struct ep_topo_rail *rail = &topo->gpu[g].rail[i];
		const struct ep_topo_nic *nic = &topo->nic[rail->nic];
		int num = nic->port[rail->port].num;
		int at = ep_info_nics_find(nics, nic->name, num);

		if (at >= 0 && nic->no_gdr) {
			snprintf(
				gpu->no_port, sizeof(gpu->no_port),
				"%.100s has gdr=\"0\" for %s:%d, the nearest NIC of GPU %s: correct "
				"the file",
				topo->path, nic->name, num, gpu->bus_id);
			return true;
		}
		if (at >= 0 && !ep_topo_gdr_allowed(topo, g, rail->nic)) {
			const char *level = getenv("NCCL_NET_GDR_LEVEL");

			snprintf(gpu->no_port, sizeof(gpu->no_port),
				 "NCCL_NET_GDR_LEVEL=%.16s forbids GPU %s its nearest NIC %s:%d, "
				 "which is at distance %s: unset it or set it to %s",
				 level ? level : "", gpu->bus_id, nic->name, num,
				 ep_topo_dist_name(rail->dist), ep_topo_level_name(rail->dist));
			return true;
		}
		if (at >= 0) {
			take(gpu, nics, at);
		}
	}
	return gpu->port;
}

void ep_info_gpus_match(struct ep_info_facts *facts, const struct ep_topo *topo,
			const struct ep_info_nics *nics)
{
	for (int i = 0; i < facts->ngpus; i++) {
		struct ep_info_gpu *gpu = &facts->gpu[i];

		gpu->port = gpu->known = false;
		gpu->devx = true;
		if (!take_near(gpu, topo, nics) && nics->n) {
			take(gpu, nics,
			     (int)(ep_port_by_place(nics->port, nics->n, (uint32_t)i) -
				   nics->port));
		}
		gpu->devx &= gpu->port;
	}
}

EP_PRINTF(3, 4)
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
	bool gpu = facts->fact[EP_INFO_GPU].yes, peermem = ep_nic_peermem();
	int dmabuf = 0;

	if (!cuda_attribute(ATTR_DMA_BUF_SUPPORTED, &dmabuf)) {
		dmabuf = 0;
	}
	set_memory(&facts->fact[EP_INFO_HEAP], gpu, dmabuf, v && v->ibv_reg_dmabuf_mr,
		   "libibverbs is too old", peermem);
	set_memory(&facts->fact[EP_INFO_QUEUES], gpu, dmabuf, dv && dv->mlx5dv_devx_umem_reg_ex,
		   dv ? "libmlx5 is too old" : "no libmlx5", peermem);
}

/*
 * cudaHostRegister(IoMemory) of a doorbell page is for root, or for all if the driver was loaded
 * with PeerMappingOverride.
 */
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
