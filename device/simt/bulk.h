/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bulk copies between global and shared memory, and the barriers in shared memory that show when
 * they are done: simt.h for kernels that move rows. An engine beside the SM's threads copies (from
 * sm_90 on; older GPUs: the calling warp does), and it sees memory by a path of its own, the async
 * proxy. What orders the accesses of threads does not order the engine's; the fences below do.
 *
 * Who calls: all 32 lanes of a warp together, with the same arguments, except where a line below
 * has "any thread". Each such call is a barrier of the warp, as ep_warp_sync() is: what the lanes
 * read or wrote before it is before the copy, and lanes may use what a wait has waited for. Lane 0
 * issues; groups of stores are the warp's.
 *
 * Barriers: struct ep_mbar, in shared memory. It counts phases 0, 1, 2, ...; a phase ends when as
 * many warps have arrived as ep_mbar_init() was given and all bytes that they announced have come.
 *   ep_mbar_init(bar, nwarps)     phase 0 begins; each phase takes `nwarps` arrivals
 *   ep_mbar_fence_init()          after the last ep_mbar_init(), by the same warp; then a barrier
 *                                 of the block (or of the warp that uses it alone)
 *   ep_mbar_arrive(bar)           the warp arrives
 *   ep_mbar_arrive_tx(bar, bytes) the warp arrives, and its loads of this phase bring `bytes`.
 *                                 First the loads, then this call. All loads of a phase: below 1
 *                                 MiB
 *   ep_mbar_try_wait(bar, parity) -> bool, any thread: is the phase of that parity (phase & 1)
 *                                 over? It is false for the running phase, and for the one before
 *                                 it true, so a new barrier is true for parity 1. A thread that was
 *                                 given true sees what the warps had done before they arrived, and
 *                                 the bytes of the loads. Must be asked again, in a bounded loop
 *   ep_mbar_wait(bar, parity, timeout_ns, site, peer) -> bool: such a loop, of a warp, which ends
 *                                 alike for all lanes; false: the time is over
 *   ep_mbar_inval(bar)            ends its life: the memory may be used for other things
 *
 * Copies. Addresses and sizes are multiples of 16, sizes not 0. The shared side lies in
 * ep_dynamic_shared(). The global side is memory of this GPU, or of a peer that it can map.
 *   ep_bulk_load(to, from, bytes, bar)    global to shared, for the running phase of `bar`. Until
 *                                         that has ended, `to` holds anything at all
 *   ep_bulk_load_lanes(mask, to, from, bytes, bar)   the same, a copy for each lane in `mask`, with
 *                                         its own `to` and `from`; the others are as above
 *   ep_bulk_store(to, from, bytes)        shared to global. Until its group is waited for, `to`
 *                                         holds anything at all
 *   ep_bulk_commit()                      the stores since the last one are a group (it may be
 *                                         empty)
 *   ep_bulk_wait_read(n)                  all but the last n groups have read their shared memory:
 *                                         it may be overwritten. n: 0 to EP_BULK_PENDING
 *   ep_bulk_wait(n)                       and their stores are done: a release that follows (a
 *                                         fence and a flag, a release store) covers them
 *   Before it ends, a warp waits until all its stores have read, and somebody waits for each load:
 *   also a kernel that gives up has to. A kernel's end covers its stores.
 *
 * Fences between what threads do and what the engine does
 *   ep_bulk_fence_shared(p, bytes)  the warp has written [p, p + bytes) of shared memory by
 *                                   ordinary stores, and bulk stores may read it from now on. Where
 *                                   several warps wrote it, each calls this for its part; then a
 *                                   barrier (of the block, or an ep_mbar_arrive) before the warp
 *                                   that stores
 *   ep_bulk_fence_global()          any thread: between an acquire (ep_ld_acquire_*, also one that
 *                                   finds nothing, also in a wait's look for failures) and the next
 *                                   bulk copies of the warps that learn of it, be it that they load
 *                                   what the flag announced or overwrite what it gave free. By the
 *                                   thread that acquired, or by lane 0 of the warp that copies
 *   Not needed: between a wait (ep_mbar_*, ep_bulk_wait) and what threads do then; before loads
 *   into shared memory that threads have read, as a load has returned its value before its lane
 *   comes to the warp barrier of the call; for what earlier kernels did, this GPU's or those that a
 *   progress word (ep_ld_retired_*) announces.
 *
 * Example: two buffers, one warp, row after row
 *   load(k): ep_bulk_load(buf[k & 1], row(k), n, &bar[k & 1]); ep_mbar_arrive_tx(&bar[k & 1], n);
 *   load(0);
 *   for k: if k + 1 < rows { ep_bulk_wait_read(0); load(k + 1); }
 *          ep_mbar_wait(&bar[k & 1], k >> 1 & 1, ...); ep_bulk_store(out(k), buf[k & 1], n);
 *          ep_bulk_commit();
 *   ep_bulk_wait(0); ep_release_fence_sys(); lane 0: ep_st_fenced_sys_u32(flag, ...)
 *
 * Why so (PTX ISA 9.0)
 *   9.7.9.25.2, Async Proxy: memory that both proxies access needs fence.proxy.async in between;
 *     the completion of a cp.async.bulk has such a fence, as soon as somebody observes it. So a
 *     wait is enough for threads, and, as release is cumulative (8.9.5), for those who acquire the
 *     flag of one that has waited, of this GPU or another one.
 *   9.7.9.25.6.2, cp.async.bulk.wait_group: without .read it waits until the writes are visible to
 *     the executing thread, with .read only until the source is read. A flag behind .read may
 *     overtake its data.
 *   8.9.5, Causality Order: two accesses are ordered without a fence only if both are generic or
 *     both of one other proxy in one block. So a row that a peer's engine has stored needs the
 *     fence before this engine loads it, too.
 *   9.7.13.15, mbarrier: a phase ends when no arrivals and no bytes are outstanding. The count of
 *     bytes may be below zero meanwhile, so loads may land before arrive.expect_tx.
 */
#ifndef EP_DEVICE_SIMT_BULK_H
#define EP_DEVICE_SIMT_BULK_H

#include "device/simt/language.h"
#include "device/simt/simt.h"

/* Addresses and sizes of bulk copies are multiples of it. */
#define EP_BULK_ALIGN 16u
/* ep_bulk_wait(n) of more waits for this many. */
#define EP_BULK_PENDING 7u
/* Less than this may be loaded in a phase of a barrier. */
#define EP_MBAR_BYTES (1u << 20)

struct __attribute__((aligned(8))) ep_mbar {
	uint64_t state;
};

#ifdef __CUDACC__
#include "device/simt/bulk_cuda.h"
#else
#include <simt/bulk_cpu.h>
#endif

EP_DEV void ep_bulk_load_lanes(uint32_t mask, void *to, const void *from, uint32_t bytes,
			       struct ep_mbar *bar)
{
#if EP_BULK_ENGINE
	ep_warp_sync(EP_FULL_MASK);
	if (mask >> ep_lane() & 1) {
		ep_bulk_load_one(to, from, bytes, bar);
	}
#else
	for (uint32_t left = mask; left; left &= left - 1) {
		uint32_t lane = ep_ctz(left);
		uint64_t t = ep_shfl_u64(EP_FULL_MASK, (uint64_t)(uintptr_t)to, lane);
		uint64_t f = ep_shfl_u64(EP_FULL_MASK, (uint64_t)(uintptr_t)from, lane);

		ep_bulk_load((void *)(uintptr_t)t, (const void *)(uintptr_t)f, bytes, bar);
	}
#endif
}

EP_DEV bool ep_mbar_wait(struct ep_mbar *bar, uint32_t parity, uint64_t timeout_ns,
			 enum ep_wait_site site, uint32_t peer)
{
	struct ep_spin s = ep_spin_start();

	/* Lanes may find it at different polls, and may see different times. */
	while (!ep_all(EP_FULL_MASK, ep_mbar_try_wait(bar, parity))) {
		if (ep_any(EP_FULL_MASK, ep_spin_expired(&s, timeout_ns, site, peer))) {
			return false;
		}
	}
	return true;
}

#endif
