/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device functions for kernels that run beside a dispatch with arrivals (ncclEpExtStartArrivals).
 * CUDA C++.
 *
 *     if (threadIdx.x == 0)
 *             state = ncclEpExtArrivalWait(arrivals, e, limit_ns);
 *     __syncthreads();
 *     if (state == NCCL_EP_EXT_ARRIVED) ... the rows of arrivals->expert[e] are in outputs->tokens
 *
 * Behind the barrier all threads of the block see the rows. Load them by ordinary loads or
 * cp.async, not by ld.global.nc (__ldg, const __restrict__). Bulk copies and tensor maps (TMA) need
 * fence.proxy.async.global first, by the thread that issues them.
 */
#ifndef NCCL_EP_ARRIVALS_H_
#define NCCL_EP_ARRIVALS_H_

#include "ext.h"

enum ncclEpExtArrivalState {
	NCCL_EP_EXT_ARRIVED,   /* All rows of the expert are there. */
	NCCL_EP_EXT_MISSING,   /* Not yet. */
	NCCL_EP_EXT_NO_ARRIVAL /* The dispatch has failed, and the rows do not come. */
};

static __device__ __forceinline__ uint32_t ncclEpExtAcquire(const uint32_t *word)
{
	uint32_t v;

	asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(word) : "memory");
	return v;
}

/* Looks once. One thread. */
static __device__ __forceinline__ ncclEpExtArrivalState
ncclEpExtArrivalLook(const ncclEpExtArrivals_t *arrivals, unsigned int e)
{
	if (ncclEpExtAcquire(&arrivals->expert[e].missing) == 0) {
		return NCCL_EP_EXT_ARRIVED;
	}
	return ncclEpExtAcquire(&arrivals->failed) ? NCCL_EP_EXT_NO_ARRIVAL : NCCL_EP_EXT_MISSING;
}

/*
 * Waits, for `limit_ns` at most: MISSING then. A dispatch that fails says so within three timeouts
 * of the group and 1 s of its start: a limit that is over later does not end before. One thread.
 */
static __device__ __forceinline__ ncclEpExtArrivalState
ncclEpExtArrivalWait(const ncclEpExtArrivals_t *arrivals, unsigned int e, uint64_t limit_ns)
{
	ncclEpExtArrivalState state = ncclEpExtArrivalLook(arrivals, e);
	uint64_t start, now;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
	for (now = start; state == NCCL_EP_EXT_MISSING && now - start < limit_ns;) {
		__nanosleep(100);
		state = ncclEpExtArrivalLook(arrivals, e);
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
	}
	return state;
}

#endif
