/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What NCCL asks of a plugin as a whole: NICs of one port or merged, its logger, contexts, memory.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "core/build.h"
#include "core/log.h"
#include "net/net.h"

#define EP_NET_NICS 256
#define EP_NET_LONG_BYTES (1024ul << 20) /* of a message that NCCL is asked to send at most */

static pthread_mutex_t nics_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ep_net_nic *nics[EP_NET_NICS]; /* entries are atomic, and stay once they are set */
/* By NCCL, for each of its tables. 0: not yet asked for. */
static int nics_counted[EP_NET_TABLES];

/* The first ones, one for each device. The lock is held. */
static int nics_begin(void)
{
	struct ep_net_dev *dev;
	struct ep_reason why;
	int n;

	ep_net_devs(&dev, &n, &why);
	for (int i = 0; i < n && i < EP_NET_NICS && !nics[i]; i++) {
		struct ep_net_nic *nic = calloc(1, sizeof(*nic));

		if (!nic) {
			return i;
		}
		nic->index = i;
		nic->nports = 1;
		nic->dev[0] = &dev[i];
		snprintf(nic->label, sizeof(nic->label), "%s", dev[i].label);
		__atomic_store_n(&nics[i], nic, __ATOMIC_RELEASE);
	}
	return n < EP_NET_NICS ? n : EP_NET_NICS;
}

int ep_net_nic_count(enum ep_net_table table)
{
	int *counted = &nics_counted[table], n;

	pthread_mutex_lock(&nics_lock);
	n = nics_begin();
	if (*counted < n) {
		*counted = n;
	}
	n = *counted;
	pthread_mutex_unlock(&nics_lock);
	return n;
}

ncclResult_t ep_net_nic_get(int index, const struct ep_net_nic **nic)
{
	int n = ep_net_nic_count(EP_NET_TABLE_NET);

	*nic = index >= 0 && index < EP_NET_NICS ? __atomic_load_n(&nics[index], __ATOMIC_ACQUIRE)
						 : NULL;
	return *nic ? ncclSuccess
		    : ep_fail(ncclInvalidArgument, "there is no device %d, devices are 0..%d",
			      index, n - 1);
}

/* ---- merging ---- */

/* A NIC of these ports, for its caller to free or keep. */
static ncclResult_t nic_new(const int *indices, int n, struct ep_net_nic *nic)
{
	size_t at = 0;

	memset(nic, 0, sizeof(*nic));
	for (int i = 0; i < n; i++) {
		const struct ep_net_nic *one;

		EP_CHECK(ep_net_nic_get(indices[i], &one));
		if (one->nports != 1) {
			return ep_fail(ncclInvalidArgument,
				       "%s is merged already, and cannot be merged again",
				       one->label);
		}
		for (int k = 0; k < i; k++) {
			if (nic->dev[k] == one->dev[0]) {
				return ep_fail(ncclInvalidArgument,
					       "%s cannot be merged with itself", one->label);
			}
		}
		nic->dev[i] = one->dev[0];
		if (one->dev[0]->port.ethernet != nic->dev[0]->port.ethernet) {
			return ep_fail(ncclInvalidUsage,
				       "%s and %s cannot be merged: one is Ethernet, the other "
				       "InfiniBand (see NCCL_NET_FORCE_MERGE)",
				       nic->dev[0]->label, one->label);
		}
		at += (size_t)snprintf(nic->label + at, sizeof(nic->label) - at, "%s%s",
				       i ? "+" : "", one->label);
	}
	nic->nports = n;
	return ncclSuccess;
}

/* One of the same ports in the same order, or a free place; EP_NET_NICS: there is none. */
static int nic_place(const struct ep_net_nic *nic)
{
	int i = 0;

	while (i < EP_NET_NICS && nics[i] &&
	       (nics[i]->nports != nic->nports ||
		memcmp(nics[i]->dev, nic->dev, sizeof(nic->dev)) != 0)) {
		i++;
	}
	return i;
}

ncclResult_t ep_net_nic_merge(enum ep_net_table table, const int *indices, int n, int most,
			      int *index)
{
	struct ep_net_nic made, *kept = NULL;
	bool there;
	int i;

	if (n < 1 || n > most) {
		return ep_fail(ncclInvalidArgument,
			       "%d devices cannot be merged, possible are 1..%d", n, most);
	}
	if (n > 1 && !ep_net_env()->merge) {
		EP_INFO(EP_LOG_NET, "devices are not merged: NCCL_IB_MERGE_NICS=0");
		return ncclInvalidUsage;
	}
	EP_CHECK(nic_new(indices, n, &made));
	pthread_mutex_lock(&nics_lock);
	i = nic_place(&made);
	if (i < EP_NET_NICS && !nics[i]) {
		kept = malloc(sizeof(*kept));
		if (kept) {
			made.index = i;
			*kept = made;
			__atomic_store_n(&nics[i], kept, __ATOMIC_RELEASE);
		}
	}
	there = i < EP_NET_NICS && nics[i];
	if (there && nics_counted[table] <= i) {
		nics_counted[table] = i + 1;
	}
	pthread_mutex_unlock(&nics_lock);
	if (!there) {
		return ep_fail(ncclSystemError, "%s cannot be merged: %s", made.label,
			       i == EP_NET_NICS ? "there are too many NICs" : "out of host memory");
	}
	if (kept) {
		EP_INFO(EP_LOG_INIT | EP_LOG_NET, "device %d is %s", i, made.label);
	}
	*index = i;
	return ncclSuccess;
}

/* ---- opening ---- */

ncclResult_t ep_net_nic_hold(const struct ep_net_nic *nic)
{
	ncclResult_t result;
	int i = 0, down = 0;

	/* Where there are several, the others do without one that is down. */
	for (; i < nic->nports; i++) {
		EP_CHECK_GOTO(ep_net_dev_hold(nic->dev[i], nic->nports > 1), err_drop);
		down += ep_net_dev_down(nic->dev[i]);
	}
	if (nic->nports > 1 && down == nic->nports) {
		result = ep_fail(ncclSystemError, "%s: none of its ports is active", nic->label);
		goto err_drop;
	}
	return ncclSuccess;

err_drop:
	while (i-- > 0) {
		ep_net_dev_drop(nic->dev[i]);
	}
	return result;
}

void ep_net_nic_drop(const struct ep_net_nic *nic)
{
	for (int i = nic->nports; i-- > 0;) {
		ep_net_dev_drop(nic->dev[i]);
	}
}

/* ---- NCCL's logger ---- */

static ep_net_log_fn *logger;

static bool log_line(enum ep_log_level level, unsigned int subsys, const char *text)
{
	ep_net_log_fn *log = __atomic_load_n(&logger, __ATOMIC_ACQUIRE);

	if (log) {
		log((int)level, subsys, "NET/" EP_NET_NAME, 0, "NET/" EP_NET_NAME " : %s", text);
	}
	return log != NULL;
}

bool ep_net_log_for_ep(int level, unsigned int subsys, const char *text)
{
	ep_net_log_fn *log = __atomic_load_n(&logger, __ATOMIC_ACQUIRE);

	if (log) {
		log(level, subsys, "EP", 0, "EP %s", text);
	}
	return log != NULL;
}

static void log_to(ep_net_log_fn *log)
{
	__atomic_store_n(&logger, log, __ATOMIC_RELEASE);
	ep_log_to(log ? log_line : NULL);
}

/* ---- contexts ---- */

struct context {
	int traffic_class;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint32_t contexts;
static void (*sweep_all)(const void *ctx);

ncclResult_t ep_net_init(ep_net_log_fn *log)
{
	struct ep_net_dev *dev;
	struct ep_reason why;
	int n;

	if (log) {
		log_to(log);
	}
	if (!ep_net_devs(&dev, &n, &why)) {
		EP_INFO(EP_LOG_INIT | EP_LOG_NET, "not used, there is no device for it: %s",
			why.text);
		return ncclSystemError;
	}
	EP_INFO(EP_LOG_INIT | EP_LOG_NET, "%s", ep_build_text);
	for (int i = 0; i < n; i++) {
		EP_INFO(EP_LOG_INIT | EP_LOG_NET, "device %d is %s, %u Mbit/s, %s, %s%s%s", i,
			dev[i].label, dev[i].port.mbps,
			dev[i].port.ethernet ? "Ethernet" : "InfiniBand",
			dev[i].path[0] ? strrchr(dev[i].path, '/') + 1 : "no PCI address",
			dev[i].ptr_support & EP_NET_PTR_DMABUF ? ", DMA-BUF" : "",
			dev[i].ptr_support & EP_NET_PTR_CUDA ? ", nvidia-peermem" : "");
	}
	return ncclSuccess;
}

ncclResult_t ep_net_context_new(ep_net_log_fn *log, int traffic_class, void **ctx)
{
	struct context *context;
	ncclResult_t result;

	EP_CHECK(ep_net_init(log));
	context = calloc(1, sizeof(*context));
	if (!context) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	context->traffic_class = traffic_class;
	result = ep_net_handle_new(EP_NET_CONTEXT, context, ctx);
	if (result != ncclSuccess) {
		free(context);
		return result;
	}
	pthread_mutex_lock(&lock);
	contexts++;
	pthread_mutex_unlock(&lock);
	return ncclSuccess;
}

ncclResult_t ep_net_context_free(void *ctx)
{
	struct context *context = ep_net_handle_drop(EP_NET_CONTEXT, ctx);
	bool last;

	if (!context) {
		return ncclSuccess;
	}
	free(context);
	pthread_mutex_lock(&lock);
	last = --contexts == 0;
	if (sweep_all) {
		sweep_all(last ? NULL : ctx);
	}
	if (last) {
		/*
		 * NCCL forgets merged NICs: only those of one port count until it merges some
		 * again.
		 */
		pthread_mutex_lock(&nics_lock);
		memset(nics_counted, 0, sizeof(nics_counted));
		pthread_mutex_unlock(&nics_lock);
		log_to(NULL);
	}
	pthread_mutex_unlock(&lock);
	return ncclSuccess;
}

void ep_net_sweep_with(void (*sweep)(const void *ctx))
{
	pthread_mutex_lock(&lock);
	sweep_all = sweep;
	pthread_mutex_unlock(&lock);
}

ncclResult_t ep_net_context_get(const void *ctx, int *traffic_class)
{
	const struct context *context = ep_net_handle_find(EP_NET_CONTEXT, ctx);

	if (!context) {
		return ncclInvalidArgument;
	}
	*traffic_class = context->traffic_class;
	return ncclSuccess;
}

/* ---- devices ---- */

ncclResult_t ep_net_count(int *ndevs)
{
	*ndevs = ep_net_nic_count(EP_NET_TABLE_NET);
	return ncclSuccess;
}

ncclResult_t ep_net_count_ports(int *ndevs)
{
	struct ep_net_dev *dev;
	struct ep_reason why;

	ep_net_devs(&dev, ndevs, &why);
	return ncclSuccess;
}

/* Combines properties of ports that are merged. */
static void properties_sum(const struct ep_net_nic *nic, struct ep_net_props_v12 *props)
{
	props->ptr_support = ~0;
	props->max_comms = INT_MAX;
	for (int i = 0; i < nic->nports; i++) {
		const struct ep_net_dev *d = nic->dev[i];

		props->ptr_support &= d->ptr_support;
		props->max_comms = d->max_comms < props->max_comms ? d->max_comms
								   : props->max_comms;
		props->speed += (int)d->port.mbps;
		props->vdev.devs[i] = d->index;
	}
	props->vdev.ndevs = nic->nports;
}

/* A plane's number among those of all devices, in their order: 0, 1, ... */
static int plane_number(int plane)
{
	struct ep_net_dev *dev;
	struct ep_reason why;
	int n, number = 0;

	ep_net_devs(&dev, &n, &why);
	for (int i = 0; i < n && dev[i].plane != plane; i++) {
		bool first = true;

		for (int k = 0; k < i; k++) {
			first &= dev[k].plane != dev[i].plane;
		}
		number += first;
	}
	return number;
}

/*
 * As NCCL's own transport has them: ports that are merged have the rail that all of them have, and
 * a bit for each of their planes, beside one that marks them as bits.
 */
static void properties_place(const struct ep_net_nic *nic, struct ep_net_props_v12 *props)
{
	int rail = nic->dev[0]->rail, planes = EP_NET_PLANES_MERGED;

	for (int i = 0; i < nic->nports; i++) {
		int number = plane_number(nic->dev[i]->plane);

		rail = nic->dev[i]->rail == rail ? rail : -1;
		planes |= number < EP_NET_PLANES ? 1 << number : 0;
	}
	props->rail = (int16_t)rail;
	props->plane = (int16_t)(nic->nports > 1 ? planes : nic->dev[0]->plane);
}

ncclResult_t ep_net_properties(int dev, struct ep_net_props_v12 *props)
{
	const struct ep_net_nic *nic;
	struct ep_net_dev *d;

	EP_CHECK(ep_net_nic_get(dev, &nic));
	d = nic->dev[0];
	*props = (struct ep_net_props_v12){
		.name = (char *)(uintptr_t)nic->label,
		.pci_path = d->path[0] ? d->path : NULL,
		.guid = d->guid,
		.reg_is_global = 1,
		.port = d->adapter_port,
		.max_recvs = EP_NET_MAX_RECVS,
		.device_type = EP_NET_DEVICE_HOST,
		.device_version = EP_NET_DEVICE_VERSION,
		.max_p2p_bytes = EP_NET_LONG_BYTES,
		.max_coll_bytes = EP_NET_LONG_BYTES,
		.max_multi_request = 1,
	};
	properties_sum(nic, props);
	properties_place(nic, props);
	return ncclSuccess;
}

/* ---- memory ---- */

ncclResult_t ep_net_memory_check(const struct ep_net_memory *memory)
{
	if (memory->dmabuf && memory->fd < 0) {
		return ep_fail(ncclInvalidArgument, "%d is no descriptor of a DMA-BUF", memory->fd);
	}
	if (!memory->data || !memory->size ||
	    (uintptr_t)memory->data + memory->size < memory->size ||
	    (memory->type != EP_NET_PTR_HOST && memory->type != EP_NET_PTR_CUDA)) {
		return ep_fail(ncclInvalidArgument,
			       "%zu bytes at %p, of type %d, cannot be registered (types are %d "
			       "of a host and %d of a GPU)",
			       memory->size, memory->data, memory->type, EP_NET_PTR_HOST,
			       EP_NET_PTR_CUDA);
	}
	return ncclSuccess;
}

ncclResult_t ep_net_memory_reg(const struct ep_net_nic *nic, const struct ep_net_memory *memory,
			       void **mr)
{
	struct ep_net_mr *m;
	ncclResult_t result;

	*mr = NULL;
	EP_CHECK(ep_net_memory_check(memory));
	EP_CHECK(ep_net_mr_new(nic, memory, &m));
	result = ep_net_handle_new(EP_NET_MR, m, mr);
	if (result != ncclSuccess) {
		ep_net_mr_free(m);
	}
	return result;
}

static void memory_dereg(void *object)
{
	ep_net_mr_free(object);
}

/* The connection may be closed already: memory belongs to the device. */
ncclResult_t ep_net_dereg(void *comm, void *mr)
{
	return ep_net_handle_close(EP_NET_MR, mr, memory_dereg);
}

/* ---- properties in the forms of older versions ---- */

/* All members but force_flush, in the same order. */
ncclResult_t ep_net_props_v8(int dev, struct ep_net_props_v8 *props)
{
	struct ep_net_props_v12 p;

	EP_CHECK(ep_net_properties(dev, &p));
	memcpy(props, &p, offsetof(struct ep_net_props_v8, speed));
	memcpy(&props->speed, &p.speed, sizeof(*props) - offsetof(struct ep_net_props_v8, speed));
	return ncclSuccess;
}

ncclResult_t ep_net_props_v9(int dev, struct ep_net_props_v9 *props)
{
	struct ep_net_props_v12 p;

	EP_CHECK(ep_net_properties(dev, &p));
	memcpy(props, &p, offsetof(struct ep_net_props_v9, vdev));
	props->max_p2p_bytes = p.max_p2p_bytes;
	props->max_coll_bytes = p.max_coll_bytes;
	props->vdev.ndevs = p.vdev.ndevs;
	memcpy(props->vdev.devs, p.vdev.devs, sizeof(props->vdev.devs));
	return ncclSuccess;
}

ncclResult_t ep_net_props_v11(int dev, struct ep_net_props_v11 *props)
{
	EP_CHECK(ep_net_props_v9(dev, &props->v9));
	props->max_multi_request = 1;
	return ncclSuccess;
}
