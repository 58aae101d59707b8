/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/log.h"
#include "net/abi/abi.h"
#include "net/base/handles.h"
#include "net/base/mr.h"

/* Regions that are looked at, from the nearest on down, for one that has the memory. */
#define EP_NET_MR_SCAN 16

struct ep_net_region {
	uintptr_t start, end;
	bool gpu, strict, atomics;
	uint32_t refs;
	struct ibv_mr *mr;
};

/* The first region that begins behind `at`. */
static uint32_t ep_net_region_above(const struct ep_net_dev *dev, uintptr_t at)
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

static struct ep_net_region *ep_net_region_find(const struct ep_net_dev *dev,
						const struct ep_net_memory *m)
{
	uintptr_t start = (uintptr_t)m->data, end = start + m->size;
	bool gpu = m->type == EP_NET_PTR_CUDA;
	uint32_t i = ep_net_region_above(dev, start);

	for (uint32_t n = 0; i-- > 0 && n < EP_NET_MR_SCAN; n++) {
		struct ep_net_region *r = dev->region[i];

		if (r->end >= end && r->gpu == gpu && r->strict == m->strict &&
		    (r->atomics || !m->atomics)) {
			return r;
		}
	}
	return NULL;
}

static bool ep_net_region_insert(struct ep_net_dev *dev, struct ep_net_region *r)
{
	uint32_t at;

	if (dev->nregions == dev->room) {
		uint32_t room = dev->room ? 2 * dev->room : 64;
		struct ep_net_region **grown = realloc(dev->region, room * sizeof(r));

		if (!grown) {
			return false;
		}
		dev->region = grown;
		dev->room = room;
	}
	at = ep_net_region_above(dev, r->start);
	memmove(dev->region + at + 1, dev->region + at, (dev->nregions - at) * sizeof(r));
	dev->region[at] = r;
	dev->nregions++;
	return true;
}

static void ep_net_region_remove(struct ep_net_dev *dev, const struct ep_net_region *r)
{
	uint32_t i = ep_net_region_above(dev, r->start);

	while (i-- > 0 && dev->region[i] != r) {
	}
	memmove(dev->region + i, dev->region + i + 1, (dev->nregions - i - 1) * sizeof(r));
	dev->nregions--;
}

/* Whole pages, so that neighbours share them; a DMA-BUF as it was given. */
static bool ep_net_region_make(struct ep_net_dev *dev, const struct ep_net_memory *m,
			       struct ep_net_region *r, struct ep_reason *why)
{
	unsigned int access =
		IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
		(m->atomics && dev->atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0) |
		(ep_net_env()->relaxed && !m->strict ? IBV_ACCESS_RELAXED_ORDERING : 0);
	struct ep_nic_memory memory = { .gpu = r->gpu, .fd = m->fd, .offset = m->offset };

	r->start = (uintptr_t)m->data;
	r->end = r->start + m->size;
	if (m->fd < 0) {
		uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);

		r->start &= ~(page - 1);
		r->end = (r->end + page - 1) & ~(page - 1);
		ep_reason_set(&memory.no_fd, "no DMA-BUF was given");
	}
	memory.p = (void *)r->start;
	memory.bytes = r->end - r->start;
	r->mr = ep_nic_register(&dev->nic, &memory, access, why);
	return r->mr != NULL;
}

/* The device's lock is held. */
static struct ep_net_region *ep_net_region_get(struct ep_net_dev *dev,
					       const struct ep_net_memory *m, struct ep_reason *why)
{
	struct ep_net_region *r = ep_net_region_find(dev, m);

	if (r) {
		r->refs++;
		return r;
	}
	r = calloc(1, sizeof(*r));
	if (!r) {
		ep_reason_set(why, "out of host memory");
		return NULL;
	}
	r->gpu = m->type == EP_NET_PTR_CUDA;
	r->strict = m->strict;
	r->atomics = m->atomics;
	r->refs = 1;
	if (!ep_net_region_make(dev, m, r, why)) {
		goto err_free;
	}
	if (!ep_net_region_insert(dev, r)) {
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

/* The device's lock is held. */
static void ep_net_region_put(struct ep_net_dev *dev, struct ep_net_region *r)
{
	if (--r->refs == 0) {
		ep_net_region_remove(dev, r);
		dev->nic.v->ibv_dereg_mr(r->mr);
		free(r);
	}
}

/* With a port of the NIC. The port is held until ep_net_mr_close(). */
static ncclResult_t ep_net_mr_open(struct ep_net_mr *m, int port,
				   const struct ep_net_memory *memory)
{
	struct ep_net_dev *dev = m->nic->dev[port];
	struct ep_reason why = { "" };
	struct ep_net_region *r;

	pthread_mutex_lock(&dev->lock);
	r = ep_net_region_get(dev, memory, &why);
	if (r) {
		ep_net_dev_hold_too(dev);
	}
	pthread_mutex_unlock(&dev->lock);
	if (!r) {
		EP_INFO(EP_LOG_NET | EP_LOG_REG, "%s", why.text);
		return ncclSystemError;
	}
	m->region[port] = r;
	m->lkey[port] = r->mr->lkey;
	m->rkey[port] = r->mr->rkey;
	return ncclSuccess;
}

static void ep_net_mr_close(struct ep_net_mr *m, int port)
{
	struct ep_net_dev *dev = m->nic->dev[port];

	pthread_mutex_lock(&dev->lock);
	ep_net_region_put(dev, m->region[port]);
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
		EP_CHECK_GOTO(ep_net_mr_open(m, port, memory), err_close);
	}
	*mr = m;
	return ncclSuccess;

err_close:
	while (port-- > 0) {
		ep_net_mr_close(m, port);
	}
	free(m);
	return result;
}

void ep_net_mr_free(struct ep_net_mr *mr)
{
	for (int port = mr->nic->nports; port-- > 0;) {
		ep_net_mr_close(mr, port);
	}
	free(mr);
}

ncclResult_t ep_net_mr_find(const struct ep_net_nic *nic, const void *handle, const void *data,
			    size_t size, const struct ep_net_mr **out)
{
	const struct ep_net_mr *mr = ep_net_handle_get(EP_NET_MR, handle);

	if (!mr) {
		return ep_fail(ncclInvalidArgument,
			       "%p is no registration of memory, or was deregistered", handle);
	}
	if (mr->nic != nic) {
		return ep_fail(ncclInvalidArgument,
			       "memory that is registered with %s is used with %s", mr->nic->label,
			       nic->label);
	}
	if (!ep_net_mr_has(mr, data, size)) {
		return ep_fail(ncclInvalidArgument,
			       "%zu bytes at %p are not all in the registered %zu bytes at %p",
			       size, data, (size_t)(mr->end - mr->start), (void *)mr->start);
	}
	*out = mr;
	return ncclSuccess;
}
