/* SPDX-License-Identifier: Apache-2.0 */
/* Registered memory. Regions of a device are shared by all who register some of the same memory. */
#ifndef EP_NET_MR_H
#define EP_NET_MR_H

#include "net/base/merged.h"

struct ep_net_mr {
	const struct ep_net_nic *nic;
	uintptr_t start, end; /* what was asked for; the regions may have more */
	bool gpu;
	/* by port of the NIC */
	uint32_t lkey[EP_NET_NIC_PORTS], rkey[EP_NET_NIC_PORTS];
	struct ep_net_region *region[EP_NET_NIC_PORTS];
};

struct ep_net_memory {
	void *data;
	size_t size;
	int type;    /* EP_NET_PTR_HOST or EP_NET_PTR_CUDA */
	bool dmabuf; /* then it has a descriptor; */
	int fd;      /* else -1 */
	uint64_t offset;
	bool strict;  /* what NICs write there is never put into another order */
	bool atomics; /* peers may add to it */
};

#define EP_NET_DMABUF(at, bytes, kind, fd_offset, of)                                              \
	{                                                                                          \
		.data = (at), .size = (bytes), .type = (kind), .dmabuf = true, .fd = (of),         \
		.offset = (fd_offset)                                                              \
	}

/*
 * For a NIC that the caller holds. A failure is logged as information only: NCCL can do without registration of
 * what users give it. The NIC is held until ep_net_mr_free().
 */
ncclResult_t ep_net_mr_new(const struct ep_net_nic *nic, const struct ep_net_memory *memory,
			   struct ep_net_mr **mr);
void ep_net_mr_free(struct ep_net_mr *mr);

/* The registration that a handle means, if it is one of this NIC and has the bytes. */
ncclResult_t ep_net_mr_find(const struct ep_net_nic *nic, const void *handle, const void *data,
			    size_t size, const struct ep_net_mr **out);

/* Whether `size` bytes at data are in it. */
static inline bool ep_net_mr_has(const struct ep_net_mr *mr, const void *data, size_t size)
{
	uintptr_t at = (uintptr_t)data;

	return at >= mr->start && at <= mr->end && size <= mr->end - at;
}

#endif
