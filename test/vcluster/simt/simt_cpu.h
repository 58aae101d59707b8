/* SPDX-License-Identifier: Apache-2.0 */
/*
 * device/simt/simt.h on the CPU, which includes this. A block is an OS thread and its threads are
 * fibers of that thread, which never move to another one; so block-shared storage is thread-local
 * storage, and what the threads of a block exchange needs no atomics, only the barriers that the
 * GPU needs too. The executor (exec/) provides the ep_simt_* hooks declared here.
 *
 * Peers, other blocks and the host run concurrently: flags are acquire loads and release stores,
 * packets are 8-byte relaxed atomics, 16-byte copies are plain accesses, so that a race detector
 * checks the protocol. There are no fences (race detectors do not model them): the stores behind
 * ep_release_fence_sys() are release stores themselves, which is what the contract promises. That
 * there is a fence is checked by counting: every other store and every barrier makes a new one
 * necessary.
 */
#ifndef VC_SIMT_CPU_H
#define VC_SIMT_CPU_H

#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The running thread of the kernel, kept by the executor. */
struct ep_simt_lane {
	uint32_t tid, nthreads;
	uint32_t lane, warp, nwarps;
	uint32_t block, nblocks;
	void *dynamic_shared;
	uint32_t fenced; /* enum ep_simt_fenced: what covers all stores of this thread */
	/* Lanes of the warp with an acquire that no ep_bulk_fence_global() has followed. */
	uint32_t *acquired;
};

enum ep_simt_fenced {
	EP_SIMT_FENCED_GPU = 1,
	EP_SIMT_FENCED_SYS = 2,
	EP_SIMT_FENCED_FLAGS = 4 /* also the stores that were behind a fence themselves */
};

enum ep_simt_op {
	EP_SIMT_SYNC = 1,
	EP_SIMT_BALLOT,
	EP_SIMT_ANY,
	EP_SIMT_ALL,
	EP_SIMT_SHFL,
	EP_SIMT_SHFL_XOR,
	EP_SIMT_MATCH,
	EP_SIMT_BULK, /* a call of bulk.h, which is a barrier of the warp, too */
	EP_SIMT_OPS
};

extern __thread struct ep_simt_lane *ep_simt_self __attribute__((tls_model("initial-exec")));
/* A doorbell has been rung. */
void ep_simt_rung(void);
/* Not 0: memory primitives call ep_simt_perturb(), which may let another thread run. */
extern int ep_simt_perturbed;

uint64_t ep_simt_collective(uint32_t op, uint32_t mask, uint64_t value, uint32_t arg);
void ep_simt_barrier(uint32_t id, uint32_t nthreads, bool waits);
bool ep_simt_spin(struct ep_spin *spin, uint64_t timeout_ns, uint32_t site, uint32_t peer);
void ep_simt_polled(void);
void ep_simt_perturb(void);
uint64_t ep_simt_time_ns(void);
void ep_simt_register(void (*handle)(void), const char *name, size_t args_size,
		      uint32_t max_threads, void (*body)(const void *args));
/* The thread has read `value` at p, where nobody may write while the kernel runs. */
void ep_simt_read_only(const void *p, const void *value, size_t size);
/* A store behind a fence lacks it: of `scope`, for a store to p; NULL: to a device's register. */
void ep_simt_unfenced(const void *p, uint32_t scope);
/* Where the i-th of the ranks that share a multicast address has it; NULL: there are no more. */
void *ep_simt_member(const void *p, uint32_t i);
/* A launch handle was called as if it were a function. */
void ep_simt_called(const char *name) __attribute__((noreturn));

#ifdef __cplusplus
}
#endif

#define EP_DEV static inline
#define EP_DEV_COLD static __attribute__((noinline, cold, unused))
#define EP_SHARED(type, name) static __thread type name
#define EP_UNROLL(...)
/* Of what is filled before it is read, which compilers for the CPU do not see. */
#define EP_UNSET = {}

#define EP_KERNEL(name, args_struct, max_threads)                                                  \
	extern "C" void name(void);                                                                \
	static void name##_ep_body(const struct args_struct &a);                                   \
	static void name##_ep_run(const void *args)                                                \
	{                                                                                          \
		name##_ep_body(*(const struct args_struct *)args);                                 \
	}                                                                                          \
	__attribute__((constructor)) static void name##_ep_register(void)                          \
	{                                                                                          \
		ep_simt_register(name, #name, sizeof(struct args_struct), max_threads,             \
				 name##_ep_run);                                                   \
	}                                                                                          \
	extern "C" void name(void)                                                                 \
	{                                                                                          \
		ep_simt_called(#name);                                                             \
	}                                                                                          \
	static void name##_ep_body(const struct args_struct &a)
#define EP_KERNEL_ALONE EP_KERNEL

EP_DEV uint32_t ep_opaque_u32(uint32_t v)
{
	return v;
}

/* Not 0: whoever adds to it gets a wrong sum. */
EP_DEV float ep_any_f32(void)
{
	return 1e30f;
}

EP_DEV uint32_t ep_tid(void)
{
	return ep_simt_self->tid;
}

EP_DEV uint32_t ep_nthreads(void)
{
	return ep_simt_self->nthreads;
}

EP_DEV uint32_t ep_lane(void)
{
	return ep_simt_self->lane;
}

EP_DEV uint32_t ep_warp(void)
{
	return ep_simt_self->warp;
}

EP_DEV uint32_t ep_nwarps(void)
{
	return ep_simt_self->nwarps;
}

EP_DEV uint32_t ep_block(void)
{
	return ep_simt_self->block;
}

EP_DEV uint32_t ep_nblocks(void)
{
	return ep_simt_self->nblocks;
}

EP_DEV void *ep_dynamic_shared(void)
{
	return ep_simt_self->dynamic_shared;
}

/* Nobody else reads it, but a race detector does not know that fibers end before others begin. */
EP_DEV void ep_simt_fence(uint32_t fenced)
{
	__atomic_store_n(&ep_simt_self->fenced, fenced, __ATOMIC_RELAXED);
}

EP_DEV uint32_t ep_simt_fences(void)
{
	return __atomic_load_n(&ep_simt_self->fenced, __ATOMIC_RELAXED);
}

EP_DEV void ep_warp_sync(uint32_t mask)
{
	ep_simt_fence(0);
	ep_simt_collective(EP_SIMT_SYNC, mask, 0, 0);
}

EP_DEV uint32_t ep_ballot(uint32_t mask, bool pred)
{
	return (uint32_t)ep_simt_collective(EP_SIMT_BALLOT, mask, pred, 0);
}

EP_DEV bool ep_any(uint32_t mask, bool pred)
{
	return ep_simt_collective(EP_SIMT_ANY, mask, pred, 0) != 0;
}

EP_DEV bool ep_all(uint32_t mask, bool pred)
{
	return ep_simt_collective(EP_SIMT_ALL, mask, pred, 0) != 0;
}

EP_DEV uint32_t ep_simt_bits(float v)
{
	uint32_t u;

	memcpy(&u, &v, sizeof(u));
	return u;
}

EP_DEV float ep_simt_float(uint32_t u)
{
	float v;

	memcpy(&v, &u, sizeof(v));
	return v;
}

EP_DEV uint32_t ep_shfl_u32(uint32_t mask, uint32_t v, uint32_t lane)
{
	return (uint32_t)ep_simt_collective(EP_SIMT_SHFL, mask, v, lane);
}

EP_DEV uint64_t ep_shfl_u64(uint32_t mask, uint64_t v, uint32_t lane)
{
	return ep_simt_collective(EP_SIMT_SHFL, mask, v, lane);
}

EP_DEV float ep_shfl_f32(uint32_t mask, float v, uint32_t lane)
{
	return ep_simt_float(
		(uint32_t)ep_simt_collective(EP_SIMT_SHFL, mask, ep_simt_bits(v), lane));
}

EP_DEV uint32_t ep_shfl_xor_u32(uint32_t mask, uint32_t v, uint32_t x)
{
	return (uint32_t)ep_simt_collective(EP_SIMT_SHFL_XOR, mask, v, x);
}

EP_DEV float ep_shfl_xor_f32(uint32_t mask, float v, uint32_t x)
{
	return ep_simt_float(
		(uint32_t)ep_simt_collective(EP_SIMT_SHFL_XOR, mask, ep_simt_bits(v), x));
}

EP_DEV uint32_t ep_or_u32(uint32_t mask, uint32_t v)
{
	for (uint32_t x = 1; x < EP_WARP_SIZE; x *= 2) {
		v |= ep_shfl_xor_u32(mask, v, x);
	}
	return v;
}

EP_DEV uint32_t ep_match_u32(uint32_t mask, uint32_t v)
{
	return (uint32_t)ep_simt_collective(EP_SIMT_MATCH, mask, v, 0);
}

EP_DEV uint32_t ep_popc(uint32_t v)
{
	return (uint32_t)__builtin_popcount(v);
}

/* Index of the lowest set bit; v must not be 0. */
EP_DEV uint32_t ep_ctz(uint32_t v)
{
	return (uint32_t)__builtin_ctz(v);
}

/* Zero bits above the highest set bit; v must not be 0. */
EP_DEV uint32_t ep_clz(uint32_t v)
{
	return (uint32_t)__builtin_clz(v);
}

EP_DEV void ep_block_sync(void)
{
	ep_simt_fence(0);
	ep_simt_barrier(0, ep_simt_self->nthreads, true);
}

EP_DEV void ep_bar_sync(uint32_t id, uint32_t nthreads)
{
	ep_simt_fence(0);
	ep_simt_barrier(id, nthreads, true);
}

EP_DEV void ep_bar_arrive(uint32_t id, uint32_t nthreads)
{
	ep_simt_fence(0);
	ep_simt_barrier(id, nthreads, false);
}

EP_DEV void ep_simt_point(void)
{
	if (__builtin_expect(ep_simt_perturbed, 0)) {
		ep_simt_perturb();
	}
}

/* The engine of bulk copies has no part in an acquire of the kernel's threads: bulk.h. */
EP_DEV void ep_simt_acquires(void)
{
	if (ep_simt_self) {
		uint32_t *acquired = ep_simt_self->acquired;
		uint32_t old = __atomic_load_n(acquired, __ATOMIC_RELAXED);

		__atomic_store_n(acquired, old | 1u << ep_simt_self->lane, __ATOMIC_RELAXED);
	}
}

#define EP_LD_CPU(name, type, order)                                                               \
	EP_DEV type name(const type *p)                                                            \
	{                                                                                          \
		ep_simt_point();                                                                   \
		return __atomic_load_n(p, order);                                                  \
	}
#define EP_LD_ACQUIRE_CPU(name, type)                                                              \
	EP_DEV type name(const type *p)                                                            \
	{                                                                                          \
		ep_simt_point();                                                                   \
		ep_simt_acquires();                                                                \
		return __atomic_load_n(p, __ATOMIC_ACQUIRE);                                       \
	}
#define EP_ST_CPU(name, type, order)                                                               \
	EP_DEV void name(type *p, type v)                                                          \
	{                                                                                          \
		ep_simt_point();                                                                   \
		ep_simt_fence(0);                                                                  \
		__atomic_store_n(p, v, order);                                                     \
	}

EP_LD_ACQUIRE_CPU(ep_ld_acquire_sys_u32, uint32_t)
EP_LD_ACQUIRE_CPU(ep_ld_acquire_sys_u64, uint64_t)
EP_LD_ACQUIRE_CPU(ep_ld_acquire_gpu_u32, uint32_t)
EP_LD_ACQUIRE_CPU(ep_ld_acquire_gpu_u64, uint64_t)
EP_LD_CPU(ep_ld_relaxed_sys_u32, uint32_t, __ATOMIC_RELAXED)
EP_LD_CPU(ep_ld_relaxed_gpu_u32, uint32_t, __ATOMIC_RELAXED)
EP_LD_CPU(ep_ld_relaxed_gpu_u64, uint64_t, __ATOMIC_RELAXED)
EP_ST_CPU(ep_st_release_sys_u32, uint32_t, __ATOMIC_RELEASE)
EP_ST_CPU(ep_st_release_sys_u64, uint64_t, __ATOMIC_RELEASE)
EP_ST_CPU(ep_st_release_gpu_u32, uint32_t, __ATOMIC_RELEASE)
EP_ST_CPU(ep_st_release_gpu_u64, uint64_t, __ATOMIC_RELEASE)
EP_ST_CPU(ep_st_relaxed_sys_u32, uint32_t, __ATOMIC_RELAXED)
EP_ST_CPU(ep_st_relaxed_sys_u64, uint64_t, __ATOMIC_RELAXED)
EP_ST_CPU(ep_st_relaxed_gpu_u32, uint32_t, __ATOMIC_RELAXED)
EP_ST_CPU(ep_st_relaxed_gpu_u64, uint64_t, __ATOMIC_RELAXED)
EP_LD_CPU(ep_ld_retired_sys_u32, uint32_t, __ATOMIC_ACQUIRE)
EP_ST_CPU(ep_st_retired_sys_u64, uint64_t, __ATOMIC_RELEASE)
EP_LD_CPU(ep_ld_retired_sys_u64, uint64_t, __ATOMIC_ACQUIRE)

EP_DEV void ep_release_fence_sys(void)
{
	ep_simt_point();
	ep_simt_fence(EP_SIMT_FENCED_GPU | EP_SIMT_FENCED_SYS | EP_SIMT_FENCED_FLAGS);
}

EP_DEV void ep_release_fence_gpu(void)
{
	ep_simt_point();
	ep_simt_fence(ep_simt_fences() | EP_SIMT_FENCED_GPU);
}

#define EP_ST_FENCED_CPU(name, type)                                                               \
	EP_DEV void name(type *p, type v)                                                          \
	{                                                                                          \
		uint32_t fences = ep_simt_fences();                                                \
                                                                                                   \
		ep_simt_point();                                                                   \
		if (!(fences & EP_SIMT_FENCED_SYS)) {                                              \
			ep_simt_unfenced(p, fences);                                               \
		}                                                                                  \
		ep_simt_fence(fences & ~(uint32_t)EP_SIMT_FENCED_FLAGS);                           \
		__atomic_store_n(p, v, __ATOMIC_RELEASE);                                          \
	}

EP_ST_FENCED_CPU(ep_st_fenced_sys_u32, uint32_t)
EP_ST_FENCED_CPU(ep_st_fenced_sys_u64, uint64_t)

EP_DEV void ep_st_mmio_u64(uint64_t *p, uint64_t v)
{
	ep_simt_point();
	if (!(ep_simt_fences() & EP_SIMT_FENCED_FLAGS)) {
		ep_simt_unfenced(NULL, ep_simt_fences());
	}
	ep_simt_fence(0);
	__atomic_store_n(p, v, __ATOMIC_RELEASE);
	ep_simt_rung();
}

#define EP_ATOM_CPU(name, type, builtin, order)                                                    \
	EP_DEV type name(type *p, type v)                                                          \
	{                                                                                          \
		ep_simt_point();                                                                   \
		ep_simt_fence(0);                                                                  \
		return builtin(p, v, order);                                                       \
	}

EP_ATOM_CPU(ep_atomic_add_gpu_u32, uint32_t, __atomic_fetch_add, __ATOMIC_RELAXED)
EP_ATOM_CPU(ep_atomic_add_acq_rel_gpu_u32, uint32_t, __atomic_fetch_add, __ATOMIC_ACQ_REL)
EP_ATOM_CPU(ep_atomic_add_gpu_u64, uint64_t, __atomic_fetch_add, __ATOMIC_RELAXED)

EP_DEV void ep_add_release_gpu_u32(uint32_t *p, uint32_t v)
{
	ep_simt_point();
	ep_simt_fence(0);
	__atomic_fetch_add(p, v, __ATOMIC_RELEASE);
}

EP_ATOM_CPU(ep_shared_add_u32, uint32_t, __atomic_fetch_add, __ATOMIC_RELAXED)
EP_ATOM_CPU(ep_shared_or_u32, uint32_t, __atomic_fetch_or, __ATOMIC_RELAXED)
EP_LD_CPU(ep_shared_ld_u32, uint32_t, __ATOMIC_RELAXED)

/* One rank after the other has it, and others may run in between. */
#define EP_MULTICAST 1
#define EP_MULTIMEM_CPU(name, operation)                                                           \
	EP_DEV void name(uint64_t *p, uint64_t v)                                                  \
	{                                                                                          \
		void *at;                                                                          \
                                                                                                   \
		ep_simt_fence(0);                                                                  \
		for (uint32_t i = 0; (at = ep_simt_member(p, i)) != NULL; i++) {                   \
			ep_simt_point();                                                           \
			operation((uint64_t *)at, v, __ATOMIC_RELEASE);                            \
		}                                                                                  \
	}

EP_MULTIMEM_CPU(ep_multimem_st_retired_sys_u64, __atomic_store_n)
EP_MULTIMEM_CPU(ep_multimem_st_release_sys_u64, __atomic_store_n)
EP_MULTIMEM_CPU(ep_multimem_add_release_sys_u64, __atomic_fetch_add)

#define EP_CAS_CPU(name, type, order, failed)                                                      \
	EP_DEV type name(type *p, type expected, type v)                                           \
	{                                                                                          \
		ep_simt_point();                                                                   \
		ep_simt_fence(0);                                                                  \
		if (order != __ATOMIC_RELAXED) {                                                   \
			ep_simt_acquires();                                                        \
		}                                                                                  \
		__atomic_compare_exchange_n(p, &expected, v, false, order, failed);                \
		return expected;                                                                   \
	}
#define EP_MAX_CPU(name, type, order)                                                              \
	EP_DEV type name(type *p, type v)                                                          \
	{                                                                                          \
		type old;                                                                          \
                                                                                                   \
		ep_simt_point();                                                                   \
		ep_simt_fence(0);                                                                  \
		old = __atomic_load_n(p, __ATOMIC_RELAXED);                                        \
		while (old < v &&                                                                  \
		       !__atomic_compare_exchange_n(p, &old, v, true, order, __ATOMIC_RELAXED)) {  \
		}                                                                                  \
		return old;                                                                        \
	}

EP_CAS_CPU(ep_atomic_cas_gpu_u32, uint32_t, __ATOMIC_RELAXED, __ATOMIC_RELAXED)
EP_CAS_CPU(ep_atomic_cas_acquire_gpu_u32, uint32_t, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED)
EP_CAS_CPU(ep_atomic_cas_sc_gpu_u64, uint64_t, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)
EP_MAX_CPU(ep_atomic_max_gpu_u64, uint64_t, __ATOMIC_RELAXED)

/* Vector types may alias anything and move in one access. */
typedef uint32_t ep_simt_u32x4 __attribute__((vector_size(16), may_alias));
typedef uint32_t ep_simt_u32x2 __attribute__((vector_size(8), may_alias));

EP_DEV uint64_t ep_time_ns(void)
{
	return ep_simt_time_ns();
}

EP_DEV struct ep_spin ep_spin_start(void)
{
	struct ep_spin s = { 0, 0 };

	return s;
}

EP_DEV bool ep_spin_expired(struct ep_spin *spin, uint64_t timeout_ns, enum ep_wait_site site,
			    uint32_t peer)
{
	return ep_simt_spin(spin, timeout_ns, (uint32_t)site, peer);
}

EP_DEV bool ep_spin_shows(const struct ep_spin *spin)
{
	return spin->start_ns != 0; /* polls are slow here */
}

EP_DEV void ep_spin_polled(void)
{
	ep_simt_polled();
}

/* ---- vectors, packets and lines ---- */

EP_DEV struct ep_vec16 ep_simt_ld16(const void *p)
{
	ep_simt_u32x4 x = *(const ep_simt_u32x4 *)p;
	struct ep_vec16 v;

	memcpy(&v, &x, sizeof(v));
	return v;
}

EP_DEV struct ep_vec16 ep_ld16_nc(const void *p)
{
	struct ep_vec16 v = ep_simt_ld16(p);

	ep_simt_read_only(p, &v, sizeof(v));
	return v;
}

EP_DEV struct ep_vec16 ep_ld16_fresh(const void *p)
{
	return ep_simt_ld16(p);
}

EP_DEV struct ep_vec8 ep_ld8_nc(const void *p)
{
	ep_simt_u32x2 x = *(const ep_simt_u32x2 *)p;
	struct ep_vec8 v;

	memcpy(&v, &x, sizeof(v));
	ep_simt_read_only(p, &v, sizeof(v));
	return v;
}

EP_DEV void ep_st16(void *p, struct ep_vec16 vec)
{
	ep_simt_u32x4 x;

	memcpy(&x, &vec, sizeof(x));
	ep_simt_fence(0);
	*(ep_simt_u32x4 *)p = x;
}

/* Little endian, as the GPU: the epoch is the upper half of the 8 bytes. */
EP_DEV void ep_st_word(void *p, uint32_t d, uint32_t epoch)
{
	ep_simt_point();
	ep_simt_fence(0);
	__atomic_store_n((uint64_t *)p, (uint64_t)epoch << 32 | d, __ATOMIC_RELAXED);
}

EP_DEV bool ep_ld_word(const void *p, uint32_t epoch, uint32_t *d)
{
	uint64_t v;

	ep_simt_point();
	v = __atomic_load_n((const uint64_t *)p, __ATOMIC_RELAXED);
	*d = (uint32_t)v;
	return (uint32_t)(v >> 32) == epoch;
}

/* A perturbed run may write the second half first, and lets others run between the halves. */
EP_DEV void ep_st_packet(void *p, uint32_t d0, uint32_t d1, uint32_t epoch)
{
	uint8_t *half = (uint8_t *)p;

	if (__builtin_expect(ep_simt_perturbed, 0) && (epoch ^ d0 ^ d1) & 1) {
		ep_st_word(half + 8, d1, epoch);
		ep_st_word(half, d0, epoch);
		return;
	}
	ep_st_word(half, d0, epoch);
	ep_st_word(half + 8, d1, epoch);
}

EP_DEV bool ep_ld_packet(const void *p, uint32_t epoch, uint32_t *d0, uint32_t *d1)
{
	const uint8_t *half = (const uint8_t *)p;
	bool first = ep_ld_word(half, epoch, d0);
	bool second = ep_ld_word(half + 8, epoch, d1);

	return first && second;
}

EP_DEV uint32_t ep_line_offset(uint32_t lane)
{
	uint32_t line = lane >> 3, i = lane & 7;

	return i < 7 ? line * 112 + i * 16 : 448 + line * 8;
}

/*
 * The data of all lanes goes first, then the flags with release order; the reader takes the flags
 * with acquire order and its data only afterwards (settle). So the CPU keeps the promise that a
 * line arrives whole without 128-byte stores.
 */
EP_DEV void ep_st_line(void *quad, struct ep_vec16 vec, uint32_t epoch, uint32_t flag)
{
	uint64_t *p = (uint64_t *)quad + 2 * ep_lane();

	ep_simt_point();
	__atomic_store_n(p, (uint64_t)vec.y << 32 | vec.x, __ATOMIC_RELAXED);
	if ((ep_lane() & 7) != 7) {
		__atomic_store_n(p + 1, (uint64_t)vec.w << 32 | vec.z, __ATOMIC_RELAXED);
	}
	ep_warp_sync(EP_FULL_MASK);
	if ((ep_lane() & 7) == 7) {
		ep_simt_point();
		__atomic_store_n(p + 1, (uint64_t)flag << 32 | epoch, __ATOMIC_RELEASE);
	}
}

EP_DEV void ep_ld_line(const void *quad, struct ep_vec16 *vec)
{
	const uint64_t *p = (const uint64_t *)quad + 2 * ep_lane();
	uint64_t lo, hi;

	ep_simt_point();
	hi = __atomic_load_n(p + 1, __ATOMIC_ACQUIRE);
	lo = __atomic_load_n(p, __ATOMIC_RELAXED);
	vec->x = (uint32_t)lo; /* perhaps that of an older line: settle takes the line's own */
	vec->y = (uint32_t)(lo >> 32);
	vec->z = (uint32_t)hi;
	vec->w = (uint32_t)(hi >> 32);
}

EP_DEV void ep_ld_line_settle(const void *quad, struct ep_vec16 *vec)
{
	const uint64_t *p = (const uint64_t *)quad + 2 * ep_lane();
	uint64_t lo = __atomic_load_n(p, __ATOMIC_RELAXED);
	uint64_t hi = __atomic_load_n(p + 1, __ATOMIC_RELAXED);

	vec->x = (uint32_t)lo;
	vec->y = (uint32_t)(lo >> 32);
	vec->z = (uint32_t)hi;
	vec->w = (uint32_t)(hi >> 32);
}

#endif
