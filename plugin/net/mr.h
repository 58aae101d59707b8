/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory. Regions of a device are shared by all who register some of the same memory. */
#ifndef EP_NET_MR_H
#define EP_NET_MR_H

#include "net/device.h"

struct ep_net_mr {
	struct ep_net_dev *dev;
	struct ep_net_region *region;
	uintptr_t start, end; /* what was asked for; the region may have more */
	uint32_t lkey, rkey;
	bool gpu;
};

struct ep_net_memory {
	void *data;
	size_t size;
	int type; /* EP_NET_PTR_HOST or EP_NET_PTR_CUDA */
	int fd;   /* of a DMA-BUF; -1: none */
	uint64_t offset;
};

/*
 * For a device that the caller holds. A failure is told quietly: NCCL can do without registration of
 * what users give it. The device is held until ep_net_mr_free().
 */
ncclResult_t ep_net_mr_new(struct ep_net_dev *dev, const struct ep_net_memory *memory,
			   struct ep_net_mr **mr);
void ep_net_mr_free(struct ep_net_mr *mr);

/* Whether `size` bytes at data are in it. */
static inline bool ep_net_mr_has(const struct ep_net_mr *mr, const void *data, size_t size)
{
	uintptr_t at = (uintptr_t)data;

	return at >= mr->start && at <= mr->end && size <= mr->end - at;
}

#endif
