/* SPDX-License-Identifier: Apache-2.0 */
/*
 * All that a kernel may ask of the machine.
 *
 * The kernels are written once and run on two machines: a GPU, where each primitive below is a PTX
 * instruction or two (device/simt/simt_cuda.h), and the CPU of the virtual cluster, where a block
 * is an OS thread, its threads are fibers of that thread, and C11 atomics stand for the memory
 * model (test/vcluster/simt/simt_cpu.h). What includes this file without nvcc says by its include
 * path where the CPU's half is.
 *
 * Conventions of a kernel source
 *
 *   EP_KERNEL(name, args_struct, max_threads) { ... uses `a`, a const struct args_struct & ... }
 *       One struct argument, so that a launch is one call on both machines. The host refers to the
 *       kernel by EP_KERNEL_DECL(name) and launches it with cudaLaunchKernelExC(cfg, name, args).
 *       EP_KERNEL_ALONE is the same for a kernel that may have all registers of an SM.
 *   EP_DEV          qualifies every device function, EP_DEV_COLD those that stand out of the way of
 *                   instruction caches because they hardly ever run. Those take structs by value.
 *   EP_SHARED(type, name)   block-shared storage with static size. Uninitialised at block start.
 *   ep_dynamic_shared()     the launch's dynamic shared memory, 128-byte aligned.
 *
 * Indices (one-dimensional grids and blocks; a warp has 32 lanes, blocks are multiples of 32)
 *   ep_tid() ep_nthreads() ep_lane() ep_warp() ep_nwarps() ep_block() ep_nblocks()
 *
 * Registers
 *   ep_opaque_u32(v)    v, of which the compiler knows nothing: it computes anew what follows from
 *                       v rather than keep it in registers, or on the stack
 *   ep_any_f32()        any number: what a variable held before is not kept, and nothing is done
 *
 * Warp collectives: `mask` names the lanes that take part; each of them must call with that mask.
 *   ep_warp_sync(mask)                      orders memory among the lanes
 *   ep_ballot(mask, pred)   ep_any(mask, pred)   ep_all(mask, pred)
 *   ep_shfl_u32/_u64/_f32(mask, v, lane)
 *   ep_shfl_xor_u32/_f32(mask, v, xor)      ep_match_u32(mask, v): lanes that hold the same v
 *   ep_or_u32(mask, v): all lanes' bits; all 32 lanes
 * Block barriers: ep_block_sync(); ep_bar_sync(id 1..15, nthreads) for a named subset of warps.
 * ep_bar_arrive(id, nthreads) counts as one of the nthreads and does not wait: what the thread did
 * before is seen by those that wait. It does not come to that barrier again before they are
 * through.
 *
 * Memory
 *   Plain C accesses follow the usual rules: two threads may share data only across a barrier or a
 *   release/acquire pair. Peers (other GPUs, the host, NICs) need the _sys forms.
 *   ep_ld_acquire_sys_u32/_u64   ep_st_release_sys_u32/_u64   (and _gpu: same device only)
 *   ep_ld_relaxed_sys_u32/_u64   ep_st_relaxed_sys_u32/_u64   (and _gpu)
 *       Single-copy atomic, 4 or 8 bytes, naturally aligned.
 *   ep_release_fence_sys() then ep_st_fenced_sys_u32/_u64(p, v)
 *       One fence, many flags. After a warp (or block) barrier the calling thread fences once; each
 *       flag stored by that thread afterwards is seen by its reader (acquire) after everything that
 *       the threads of that barrier wrote before it. Threads that store flags behind a fence taken
 *       by another thread need a barrier between the two.
 *   ep_st_retired_sys_u64(p, v), ep_ld_retired_sys_u64(p), and ep_ld_retired_sys_u32(p) of its half
 *       For progress words, and for words of a step that has started. Whoever sees the value may
 *       overwrite what earlier kernels of the storing stream read or wrote. The kernel boundary
 *       before the store has ordered those accesses already, so on a GPU these are relaxed
 *       (st.relaxed.sys, ld.relaxed.sys) and there is no fence. On the CPU they are a release and
 *       an acquire.
 *   ep_multimem_st_retired_sys_u64(p, v), ep_multimem_st_release_sys_u64(p, v)
 *   ep_multimem_add_release_sys_u64(p, v)
 *       `p` is a multicast address: one store, or one addition, reaches the 8 bytes of every rank
 *       whose memory is bound there, the caller's own included, at once for none of them. Nothing
 *       else may touch such an address. Whoever reads the memory reads it at its own address.
 *       Only where EP_MULTICAST is not 0 (a GPU of sm_90 or later); elsewhere they are traps.
 *   ep_atomic_add_gpu_u32/_u64, ep_atomic_max_gpu_u64, ep_atomic_cas_gpu_u32
 *                               relaxed; return the old value, and nobody waits for one that is
 *                               not used
 *   ep_atomic_add_acq_rel_gpu_u32, ep_atomic_cas_acquire_gpu_u32
 *                               the same with an order
 *   ep_add_release_gpu_u32      returns nothing
 *   ep_atomic_cas_sc_gpu_u64    and a full fence behind it: what the thread loads next is loaded
 *                               after the exchange was made
 *   ep_release_fence_gpu()      as ep_release_fence_sys(), for readers of the same device and for
 *                               devices that read its memory
 *   ep_st_mmio_u64(p, v)        one store of 8 bytes to a device's register, behind
 *                               ep_release_fence_sys(): the device that sees it sees everything
 *                               that was before the fence
 *   ep_shared_add_u32(p, v), ep_shared_or_u32(p, v)   on block-shared words, relaxed, and
 *   ep_shared_ld_u32(p)                               a load where others do that meanwhile
 *   ep_ld16_nc(p)     16 bytes that nobody writes while the kernel runs
 *   ep_ld16_fresh(p)  16 bytes written by a peer, after their flag was acquired
 *   ep_st16(p, v)     a plain store of 16 bytes that does not pollute L1. Alignment 16, as of all.
 *   ep_ld8_nc(p)      as ep_ld16_nc, 8 bytes
 *
 * Bulk copies between global and shared memory: bulk.h.
 *
 * Packets: data that carries its own arrival flag, so that no fence and no separate flag is needed.
 *   A packet is 16 bytes {d0, epoch, d1, epoch}. Each 8-byte half is written by one single-copy
 *   atomic store, so a reader that finds the epoch in a half has that half's data. The two halves
 *   may become visible in either order; ep_ld_packet reports true only when both carry `epoch`.
 *   ep_st_packet(p, d0, d1, epoch)    ep_ld_packet(p, epoch, &d0, &d1) -> bool
 *   ep_st_word(p, d, epoch)           ep_ld_word(p, epoch, &d) -> bool      (one half, 8 bytes)
 *
 * Lines: 480 bytes as four 128-byte lines, each 120 bytes of data and a flag, moved by a whole
 * warp.
 *   ep_line_offset(lane)  where in the 480 bytes a lane's vec lies: 16 bytes, lanes 7, 15, 23
 *                         and 31 hold 8 (x and y of the vector)
 *   ep_st_line(quad, v, epoch, flag)  all lanes; `quad` is 512-byte aligned; both go into its flag
 *   ep_ld_line(quad, &v)              all lanes; nothing waits for what is loaded
 *   ep_line_has(v, epoch, flag) -> bool   false in lanes that have loaded others
 *   ep_ld_line_settle(quad, &v)       all lanes, after ep_all() of the former: v is the data
 *   A line is written and read as a whole of 128 bytes. Requires NVLink between the two GPUs.
 *
 * Bounded waiting
 *   struct ep_spin s = ep_spin_start();
 *   while (!condition) { if (ep_spin_expired(&s, timeout_ns, site, peer)) { ... give up ... } }
 *   `site` (enum ep_wait_site) and `peer` are what is awaited: unused on the GPU, on the CPU the
 *   watchdog prints them. On the CPU every call lets the other threads of the block run; a loop
 *   that polls without calling it never ends there.
 *   ep_spin_shows(&s): whether this poll is one of the few at which a long wait shows itself.
 *   ep_spin_polled(): the thread has looked between two polls of one wait for something else that
 *   it could do, and found nothing. Nothing on the GPU; on the CPU the collectives of such looks
 *   are no progress, else a warp that waits in this way would never give up its processor.
 *   ep_time_ns(): nanoseconds of a clock common to the blocks of a device.
 */
#ifndef EP_DEVICE_SIMT_H
#define EP_DEVICE_SIMT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "device/simt/wait_site.h"

#define EP_WARP_SIZE 32
#define EP_FULL_MASK 0xffffffffu

struct __attribute__((aligned(16))) ep_vec16 {
	uint32_t x, y, z, w;
};

struct __attribute__((aligned(8))) ep_vec8 {
	uint32_t x, y;
};

struct ep_spin {
	uint64_t start_ns; /* 0 until the first look at the clock */
	uint32_t polls;
};

#ifdef __CUDACC__
#include "device/simt/simt_cuda.h"
#else
#include <simt/simt_cpu.h>
#endif

/* Has the lane's vec arrived? A branch would make each load of a batch wait for the last one. */
EP_DEV bool ep_line_has(struct ep_vec16 vec, uint32_t epoch, uint32_t flag)
{
	return (((vec.z ^ epoch) | (vec.w ^ flag)) & ((ep_lane() & 7) == 7 ? ~0u : 0u)) == 0;
}

#endif
