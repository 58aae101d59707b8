/* SPDX-License-Identifier: Apache-2.0 */
/* simt.h on a GPU: sm_80 and later. Each function states its PTX; the contract is in simt.h. */
#ifndef EP_DEVICE_SIMT_CUDA_H
#define EP_DEVICE_SIMT_CUDA_H

#define EP_DEV static __device__ __forceinline__
#define EP_DEV_COLD static __device__ __noinline__
#define EP_SHARED(type, name) __shared__ type name
/*
 * A kernel of sm_90 and later begins by waiting for the one before it in the stream: the host lets
 * it start while that one ends (ep_kernel_launch()). Without that leave it waits for nothing.
 */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define EP_KERNEL_WAIT() asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define EP_KERNEL_WAIT()
#endif
#define EP_KERNEL_BOUNDED(name, args_struct, ...)                                                  \
	static __device__ __forceinline__ void name##_body(const struct args_struct &a);           \
	extern "C" __global__ void __launch_bounds__(__VA_ARGS__)                                  \
		name(const __grid_constant__ struct args_struct a)                                 \
	{                                                                                          \
		EP_KERNEL_WAIT();                                                                  \
		name##_body(a);                                                                    \
	}                                                                                          \
	static __device__ __forceinline__ void name##_body(const struct args_struct &a)
#define EP_KERNEL(name, args_struct, max_threads) EP_KERNEL_BOUNDED(name, args_struct, max_threads)
/* Else the compiler may rather spill registers than keep a second block from the SM. */
#define EP_KERNEL_ALONE(name, args_struct, max_threads)                                            \
	EP_KERNEL_BOUNDED(name, args_struct, max_threads, 1)
#define EP_PRAGMA(text) _Pragma(#text)
#define EP_UNROLL(...) EP_PRAGMA(unroll __VA_ARGS__) /* no number: all of it */
#define EP_UNSET

EP_DEV uint32_t ep_opaque_u32(uint32_t v)
{
	asm volatile("" : "+r"(v));
	return v;
}

EP_DEV float ep_any_f32(void)
{
	float v;

	asm volatile("" : "=f"(v));
	return v;
}

EP_DEV uint32_t ep_tid(void)
{
	return threadIdx.x;
}

EP_DEV uint32_t ep_nthreads(void)
{
	return blockDim.x;
}

EP_DEV uint32_t ep_lane(void)
{
	return threadIdx.x & 31;
}

EP_DEV uint32_t ep_warp(void)
{
	return threadIdx.x >> 5;
}

EP_DEV uint32_t ep_nwarps(void)
{
	return blockDim.x >> 5;
}

EP_DEV uint32_t ep_block(void)
{
	return blockIdx.x;
}

EP_DEV uint32_t ep_nblocks(void)
{
	return gridDim.x;
}

EP_DEV void *ep_dynamic_shared(void)
{
	extern __shared__ __align__(128) unsigned char ep_dynamic_shared_base[];
	return ep_dynamic_shared_base;
}

EP_DEV void ep_warp_sync(uint32_t mask)
{
	__syncwarp(mask);
}

EP_DEV uint32_t ep_ballot(uint32_t mask, bool pred)
{
	return __ballot_sync(mask, pred);
}

EP_DEV bool ep_any(uint32_t mask, bool pred)
{
	return __any_sync(mask, pred);
}

EP_DEV bool ep_all(uint32_t mask, bool pred)
{
	return __all_sync(mask, pred);
}

EP_DEV uint32_t ep_shfl_u32(uint32_t mask, uint32_t v, uint32_t lane)
{
	return __shfl_sync(mask, v, lane);
}

EP_DEV uint64_t ep_shfl_u64(uint32_t mask, uint64_t v, uint32_t lane)
{
	return __shfl_sync(mask, (unsigned long long)v, lane);
}

EP_DEV float ep_shfl_f32(uint32_t mask, float v, uint32_t lane)
{
	return __shfl_sync(mask, v, lane);
}

EP_DEV uint32_t ep_shfl_xor_u32(uint32_t mask, uint32_t v, uint32_t x)
{
	return __shfl_xor_sync(mask, v, x);
}

EP_DEV float ep_shfl_xor_f32(uint32_t mask, float v, uint32_t x)
{
	return __shfl_xor_sync(mask, v, x);
}

EP_DEV uint32_t ep_or_u32(uint32_t mask, uint32_t v)
{
	return __reduce_or_sync(mask, v);
}

EP_DEV uint32_t ep_match_u32(uint32_t mask, uint32_t v)
{
	return __match_any_sync(mask, v);
}

EP_DEV uint32_t ep_popc(uint32_t v)
{
	return __popc(v);
}

/* Index of the lowest set bit; v must not be 0. */
EP_DEV uint32_t ep_ctz(uint32_t v)
{
	return __ffs(v) - 1;
}

/* Zero bits above the highest set bit; v must not be 0. */
EP_DEV uint32_t ep_clz(uint32_t v)
{
	return (uint32_t)__clz((int)v);
}

EP_DEV void ep_block_sync(void)
{
	__syncthreads();
}

EP_DEV void ep_bar_sync(uint32_t id, uint32_t nthreads)
{
	asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(nthreads) : "memory");
}

EP_DEV void ep_bar_arrive(uint32_t id, uint32_t nthreads)
{
	asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(nthreads) : "memory");
}

#define EP_LD_CUDA(name, instr, type, reg)                                                         \
	EP_DEV type name(const type *p)                                                            \
	{                                                                                          \
		type v;                                                                            \
		asm volatile(instr " %0, [%1];" : "=" reg(v) : "l"(p) : "memory");                 \
		return v;                                                                          \
	}
#define EP_ST_CUDA(name, instr, type, reg)                                                         \
	EP_DEV void name(type *p, type v)                                                          \
	{                                                                                          \
		asm volatile(instr " [%0], %1;" ::"l"(p), reg(v) : "memory");                      \
	}

EP_LD_CUDA(ep_ld_acquire_sys_u32, "ld.acquire.sys.global.u32", uint32_t, "r")
EP_LD_CUDA(ep_ld_acquire_sys_u64, "ld.acquire.sys.global.u64", uint64_t, "l")
EP_LD_CUDA(ep_ld_acquire_gpu_u32, "ld.acquire.gpu.global.u32", uint32_t, "r")
EP_LD_CUDA(ep_ld_acquire_gpu_u64, "ld.acquire.gpu.global.u64", uint64_t, "l")
EP_LD_CUDA(ep_ld_relaxed_sys_u32, "ld.relaxed.sys.global.u32", uint32_t, "r")
EP_LD_CUDA(ep_ld_relaxed_gpu_u32, "ld.relaxed.gpu.global.u32", uint32_t, "r")
EP_LD_CUDA(ep_ld_relaxed_gpu_u64, "ld.relaxed.gpu.global.u64", uint64_t, "l")
EP_ST_CUDA(ep_st_release_sys_u32, "st.release.sys.global.u32", uint32_t, "r")
EP_ST_CUDA(ep_st_release_sys_u64, "st.release.sys.global.u64", uint64_t, "l")
EP_ST_CUDA(ep_st_release_gpu_u32, "st.release.gpu.global.u32", uint32_t, "r")
EP_ST_CUDA(ep_st_release_gpu_u64, "st.release.gpu.global.u64", uint64_t, "l")
EP_ST_CUDA(ep_st_relaxed_sys_u32, "st.relaxed.sys.global.u32", uint32_t, "r")
EP_ST_CUDA(ep_st_relaxed_sys_u64, "st.relaxed.sys.global.u64", uint64_t, "l")
EP_ST_CUDA(ep_st_relaxed_gpu_u32, "st.relaxed.gpu.global.u32", uint32_t, "r")
EP_ST_CUDA(ep_st_relaxed_gpu_u64, "st.relaxed.gpu.global.u64", uint64_t, "l")
EP_LD_CUDA(ep_ld_retired_sys_u32, "ld.relaxed.sys.global.u32", uint32_t, "r")
EP_ST_CUDA(ep_st_retired_sys_u64, "st.relaxed.sys.global.u64", uint64_t, "l")
EP_LD_CUDA(ep_ld_retired_sys_u64, "ld.relaxed.sys.global.u64", uint64_t, "l")
EP_ST_CUDA(ep_st_fenced_sys_u32, "st.relaxed.sys.global.u32", uint32_t, "r")
EP_ST_CUDA(ep_st_fenced_sys_u64, "st.relaxed.sys.global.u64", uint64_t, "l")

/* PTX has them from sm_90 on. Host code sees none of this. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define EP_MULTICAST 1
EP_ST_CUDA(ep_multimem_st_retired_sys_u64, "multimem.st.relaxed.sys.global.u64", uint64_t, "l")
EP_ST_CUDA(ep_multimem_st_release_sys_u64, "multimem.st.release.sys.global.u64", uint64_t, "l")
EP_ST_CUDA(ep_multimem_add_release_sys_u64, "multimem.red.release.sys.global.add.u64", uint64_t,
	   "l")
#else
#define EP_MULTICAST 0
#define EP_TRAP_CUDA(name)                                                                         \
	EP_DEV void name(uint64_t *, uint64_t)                                                     \
	{                                                                                          \
		__trap();                                                                          \
	}
EP_TRAP_CUDA(ep_multimem_st_retired_sys_u64)
EP_TRAP_CUDA(ep_multimem_st_release_sys_u64)
EP_TRAP_CUDA(ep_multimem_add_release_sys_u64)
#endif

/* Not merged with another store to the register, nor cut in two. */
EP_ST_CUDA(ep_st_mmio_u64, "st.mmio.relaxed.sys.global.u64", uint64_t, "l")

EP_DEV void ep_release_fence_sys(void)
{
	asm volatile("fence.acq_rel.sys;" ::: "memory");
}

EP_DEV void ep_release_fence_gpu(void)
{
	asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

#define EP_ATOM_CUDA(name, instr, type, reg)                                                       \
	EP_DEV type name(type *p, type v)                                                          \
	{                                                                                          \
		type old;                                                                          \
		asm volatile(instr " %0, [%1], %2;" : "=" reg(old) : "l"(p), reg(v) : "memory");   \
		return old;                                                                        \
	}

EP_ATOM_CUDA(ep_atomic_add_gpu_u32, "atom.relaxed.gpu.global.add.u32", uint32_t, "r")
EP_ATOM_CUDA(ep_atomic_add_acq_rel_gpu_u32, "atom.acq_rel.gpu.global.add.u32", uint32_t, "r")
EP_ATOM_CUDA(ep_atomic_add_gpu_u64, "atom.relaxed.gpu.global.add.u64", uint64_t, "l")
EP_ATOM_CUDA(ep_atomic_max_gpu_u64, "atom.relaxed.gpu.global.max.u64", uint64_t, "l")

EP_DEV void ep_add_release_gpu_u32(uint32_t *p, uint32_t v)
{
	asm volatile("red.release.gpu.global.add.u32 [%0], %1;" : : "l"(p), "r"(v) : "memory");
}

#define EP_CAS_CUDA(name, instr, type, reg)                                                        \
	EP_DEV type name(type *p, type expected, type v)                                           \
	{                                                                                          \
		type old;                                                                          \
		asm volatile(instr : "=" reg(old) : "l"(p), reg(expected), reg(v) : "memory");     \
		return old;                                                                        \
	}

EP_CAS_CUDA(ep_atomic_cas_gpu_u32, "atom.relaxed.gpu.global.cas.b32 %0, [%1], %2, %3;", uint32_t,
	    "r")
EP_CAS_CUDA(ep_atomic_cas_acquire_gpu_u32, "atom.acquire.gpu.global.cas.b32 %0, [%1], %2, %3;",
	    uint32_t, "r")
EP_CAS_CUDA(ep_atomic_cas_sc_gpu_u64,
	    "atom.relaxed.gpu.global.cas.b64 %0, [%1], %2, %3; fence.sc.gpu;", uint64_t, "l")

EP_DEV uint32_t ep_shared_add_u32(uint32_t *p, uint32_t v)
{
	return atomicAdd(p, v);
}

EP_DEV uint32_t ep_shared_ld_u32(const uint32_t *p)
{
	return *(const volatile uint32_t *)p;
}

EP_DEV uint32_t ep_shared_or_u32(uint32_t *p, uint32_t v)
{
	return atomicOr(p, v);
}

EP_DEV struct ep_vec16 ep_ld16_nc(const void *p)
{
	struct ep_vec16 v;

	asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "l"(p));
	return v;
}

EP_DEV struct ep_vec8 ep_ld8_nc(const void *p)
{
	struct ep_vec8 v;

	asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0,%1}, [%2];"
		     : "=r"(v.x), "=r"(v.y)
		     : "l"(p));
	return v;
}

/* Bypasses L1, which is not coherent with peers' stores. */
EP_DEV struct ep_vec16 ep_ld16_fresh(const void *p)
{
	struct ep_vec16 v;

	asm volatile("ld.relaxed.sys.global.L1::no_allocate.v4.u32 {%0,%1,%2,%3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "l"(p)
		     : "memory");
	return v;
}

EP_DEV void ep_st16(void *p, struct ep_vec16 vec)
{
	asm volatile("st.global.L1::no_allocate.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(vec.x),
		     "r"(vec.y), "r"(vec.z), "r"(vec.w)
		     : "memory");
}

/*
 * The halves of a packet are 8-byte aligned parts of one 16-byte access, which the hardware never
 * tears below 8 bytes (NCCL's LL protocol rests on the same fact).
 */
EP_DEV void ep_st_packet(void *p, uint32_t d0, uint32_t d1, uint32_t epoch)
{
	asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"(p), "r"(d0), "r"(epoch),
		     "r"(d1), "r"(epoch)
		     : "memory");
}

EP_DEV bool ep_ld_packet(const void *p, uint32_t epoch, uint32_t *d0, uint32_t *d1)
{
	uint32_t e0, e1;

	asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
		     : "=r"(*d0), "=r"(e0), "=r"(*d1), "=r"(e1)
		     : "l"(p)
		     : "memory");
	return e0 == epoch && e1 == epoch;
}

EP_DEV void ep_st_word(void *p, uint32_t d, uint32_t epoch)
{
	asm volatile("st.volatile.global.v2.u32 [%0], {%1,%2};" ::"l"(p), "r"(d), "r"(epoch)
		     : "memory");
}

EP_DEV bool ep_ld_word(const void *p, uint32_t epoch, uint32_t *d)
{
	uint32_t e;

	asm volatile("ld.volatile.global.v2.u32 {%0,%1}, [%2];"
		     : "=r"(*d), "=r"(e)
		     : "l"(p)
		     : "memory");
	return e == epoch;
}

EP_DEV uint32_t ep_line_offset(uint32_t lane)
{
	uint32_t line = lane >> 3, i = lane & 7;

	return i < 7 ? line * 112 + i * 16 : 448 + line * 8;
}

/*
 * The eight lanes of a line store 16 bytes each with one instruction; the memory system forwards
 * the full 128-byte line as one write over NVLink, which NCCL's LL128 protocol also relies on. One
 * instruction, that is, if the lanes are converged: without the barrier a warp that has diverged
 * (lanes with 8 bytes load them elsewhere) may store or load the flag apart from the data, and
 * such torn lines have been seen.
 */
EP_DEV void ep_st_line(void *quad, struct ep_vec16 vec, uint32_t epoch, uint32_t flag)
{
	if ((ep_lane() & 7) == 7) {
		vec.z = epoch;
		vec.w = flag;
	}
	__syncwarp();
	asm volatile("st.volatile.global.v4.u32 [%0], {%1,%2,%3,%4};" ::"l"((char *)quad +
									    16 * ep_lane()),
		     "r"(vec.x), "r"(vec.y), "r"(vec.z), "r"(vec.w)
		     : "memory");
}

EP_DEV void ep_ld_line(const void *quad, struct ep_vec16 *vec)
{
	__syncwarp();
	asm volatile("ld.volatile.global.v4.u32 {%0,%1,%2,%3}, [%4];"
		     : "=r"(vec->x), "=r"(vec->y), "=r"(vec->z), "=r"(vec->w)
		     : "l"((const char *)quad + 16 * ep_lane())
		     : "memory");
}

EP_DEV void ep_ld_line_settle(const void *quad, struct ep_vec16 *vec)
{
	(void)quad;
	(void)vec;
}

EP_DEV uint64_t ep_time_ns(void)
{
	uint64_t t;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(t));
	return t;
}

EP_DEV struct ep_spin ep_spin_start(void)
{
	struct ep_spin s = { 0, 0 };

	return s;
}

/* Looks at the clock once in 256 polls: reading it costs more than the poll. */
EP_DEV bool ep_spin_expired(struct ep_spin *spin, uint64_t timeout_ns, enum ep_wait_site site,
			    uint32_t peer)
{
	(void)site;
	(void)peer;
	if (++spin->polls & 255) {
		return false;
	}
	uint64_t now = ep_time_ns();

	if (!spin->start_ns) {
		spin->start_ns = now;
		return false;
	}
	return now - spin->start_ns > timeout_ns;
}

/* One look in 256, each of which is behind 64 polls: every ten milliseconds or so. */
EP_DEV bool ep_spin_shows(const struct ep_spin *spin)
{
	return (spin->polls & 0x3fff) < 64;
}

EP_DEV void ep_spin_polled(void)
{
}

#endif
