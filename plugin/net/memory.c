/* SPDX-License-Identifier: Apache-2.0 */
/* Registrations of memory: those who register the same memory share the regions of a device. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/log.h"
#include "net/abi.h"
#include "net/net.h"

struct ep_net_region {
	uintptr_t start, end;
	bool gpu, strict, atomics;
	uint32_t refs;
	struct ibv_mr *mr;
};

/* The first region that begins behind `at`. */
static uint32_t region_above(const struct ep_net_dev *dev, uintptr_t at)
{
	uint32_t low = 0, high = dev->nregions;

	while (low < high) {
		uint32_t middle = low + (high - low) / 2;

		if (dev->region[middle]->start <= at) {
			low = middle + 1;
		} else {
			high = middle;
		}
	}
	return low;
}

/* Finds what is registered: whole pages, so that neighbours share them; a DMA-BUF as it is. */
static void region_bounds(const struct ep_net_memory *memory, struct ep_net_region *region)
{
	region->start = (uintptr_t)memory->data;
	region->end = region->start + memory->size;
	if (memory->fd < 0) {
		uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

		region->start &= ~(page - 1);
		region->end = (region->end + page - 1) & ~(page - 1);
	}
}

/*
 * Finds one of the same pages. One that has more of them may be of memory that has gone since, and
 * of which a part alone is registered still: the NIC does not know what is mapped there now.
 */
static struct ep_net_region *region_find(const struct ep_net_dev *dev,
					 const struct ep_net_memory *memory)
{
	bool gpu = memory->type == EP_NET_PTR_CUDA;
	struct ep_net_region same;
	uint32_t i;

	region_bounds(memory, &same);
	i = region_above(dev, same.start);
	while (i-- > 0 && dev->region[i]->start == same.start) {
		struct ep_net_region *r = dev->region[i];

		if (r->end == same.end && r->gpu == gpu && r->strict == memory->strict &&
		    (r->atomics || !memory->atomics)) {
			return r;
		}
	}
	return NULL;
}

static bool region_insert(struct ep_net_dev *dev, struct ep_net_region *region)
{
	uint32_t at;

	if (dev->nregions == dev->room) {
		uint32_t room = dev->room ? 2 * dev->room : 64;
		struct ep_net_region **grown = realloc(dev->region, room * sizeof(region));

		if (!grown) {
			return false;
		}
		dev->region = grown;
		dev->room = room;
	}
	at = region_above(dev, region->start);
	memmove(dev->region + at + 1, dev->region + at, (dev->nregions - at) * sizeof(region));
	dev->region[at] = region;
	dev->nregions++;
	return true;
}

static bool region_make(struct ep_net_dev *dev, const struct ep_net_memory *mem,
			struct ep_net_region *region, struct ep_reason *why)
{
	unsigned int access =
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		(mem->atomics && dev->atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0) |
		(ep_net_env()->relaxed && !mem->strict ? IBV_ACCESS_RELAXED_ORDERING : 0);
	struct ep_nic_memory memory = { .gpu = region->gpu, .fd = mem->fd, .offset = mem->offset };

	region_bounds(mem, region);
	if (mem->fd < 0) {
		ep_reason_set(&memory.no_fd, "no DMA-BUF was given");
	}
	memory.p = (void *)region->start;
	memory.bytes = region->end - region->start;
	region->mr = ep_nic_register(&dev->nic, &memory, access, why);
	return region->mr != NULL;
}

/* The device's lock is held. */
static struct ep_net_region *region_get(struct ep_net_dev *dev, const struct ep_net_memory *memory,
					struct ep_reason *why)
{
	struct ep_net_region *r = region_find(dev, memory);

	if (r) {
		r->refs++;
		return r;
	}
	r = calloc(1, sizeof(*r));
	if (!r) {
		ep_reason_set(why, "out of host memory");
		return NULL;
	}
	r->gpu = memory->type == EP_NET_PTR_CUDA;
	r->strict = memory->strict;
	r->atomics = memory->atomics;
	r->refs = 1;
	if (!region_make(dev, memory, r, why)) {
		goto err_free;
	}
	if (!region_insert(dev, r)) {
		ep_reason_set(why, "out of host memory");
		goto err_dereg;
	}
	return r;

err_dereg:
	dev->nic.v->ibv_dereg_mr(r->mr);
err_free:
	free(r);
	return NULL;
}

/* Ends a use of a region, and the region with its last one. The device's lock is held. */
static void region_put(struct ep_net_dev *dev, struct ep_net_region *region)
{
	uint32_t i = region_above(dev, region->start);

	if (--region->refs) {
		return;
	}
	while (i-- > 0 && dev->region[i] != region) {
	}
	memmove(dev->region + i, dev->region + i + 1, (dev->nregions - i - 1) * sizeof(region));
	dev->nregions--;
	dev->nic.v->ibv_dereg_mr(region->mr);
	free(region);
}

/* With a port of the NIC. The port is held until mr_close(). */
static ncclResult_t mr_open(struct ep_net_mr *mr, int port, const struct ep_net_memory *memory)
{
	struct ep_net_dev *dev = mr->nic->dev[port];
	struct ep_reason why = { "" };
	struct ep_net_region *r = NULL;
	bool several = mr->nic->nports > 1, good;

	pthread_mutex_lock(&dev->lock);
	if (!several || !ep_net_dev_broken(dev)) {
		r = region_get(dev, memory, &why);
	}
	if (!r) {
		ep_net_dev_events(dev);
	}
	good = r || (several && ep_net_dev_broken(dev)); /* (the others serve) */
	if (good) {
		ep_net_dev_hold_too(dev);
	}
	pthread_mutex_unlock(&dev->lock);
	if (!good) {
		EP_INFO(EP_LOG_NET | EP_LOG_REG, "%s", why.text);
		return ncclSystemError;
	}
	if (!r) {
		return ncclSuccess;
	}
	mr->region[port] = r;
	mr->lkey[port] = r->mr->lkey;
	mr->rkey[port] = r->mr->rkey;
	return ncclSuccess;
}

static void mr_close(struct ep_net_mr *mr, int port)
{
	struct ep_net_dev *dev = mr->nic->dev[port];

	pthread_mutex_lock(&dev->lock);
	if (mr->region[port]) {
		region_put(dev, mr->region[port]);
	}
	pthread_mutex_unlock(&dev->lock);
	ep_net_dev_drop(dev);
}

ncclResult_t ep_net_mr_new(const struct ep_net_nic *nic, const struct ep_net_memory *memory,
			   struct ep_net_mr **mr)
{
	struct ep_net_mr *m = calloc(1, sizeof(*m));
	ncclResult_t result;
	int port = 0;

	if (!m) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	m->nic = nic;
	m->start = (uintptr_t)memory->data;
	m->end = m->start + memory->size;
	m->gpu = memory->type == EP_NET_PTR_CUDA;
	for (; port < nic->nports; port++) {
		EP_CHECK_GOTO(mr_open(m, port, memory), err_close);
	}
	*mr = m;
	return ncclSuccess;

err_close:
	while (port-- > 0) {
		mr_close(m, port);
	}
	free(m);
	return result;
}

void ep_net_mr_free(struct ep_net_mr *mr)
{
	for (int port = mr->nic->nports; port-- > 0;) {
		mr_close(mr, port);
	}
	free(mr);
}

/* Returns whether the registration has `size` bytes at data. */
static bool mr_has(const struct ep_net_mr *mr, const void *data, size_t size)
{
	uintptr_t at = (uintptr_t)data;

	return at >= mr->start && at <= mr->end && size <= mr->end - at;
}

ncclResult_t ep_net_mr_find(const struct ep_net_nic *nic, const void *handle, const void *data,
			    size_t size, const struct ep_net_mr **out)
{
	const struct ep_net_mr *mr = ep_net_handle_find(EP_NET_MR, handle);

	if (!mr) {
		return ncclInvalidArgument;
	}
	if (mr->nic != nic) {
		return ep_fail(ncclInvalidArgument,
			       "memory that is registered with %s is used with %s", mr->nic->label,
			       nic->label);
	}
	if (!mr_has(mr, data, size)) {
		return ep_fail(ncclInvalidArgument,
			       "%zu bytes at %p are not all in the registered %zu bytes at %p",
			       size, data, (size_t)(mr->end - mr->start), (void *)mr->start);
	}
	*out = mr;
	return ncclSuccess;
}
