/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bulk.h on a GPU. sm_90 and later have cp.async.bulk; before that the lanes of the warp copy, and
 * are done when the call returns: a barrier then has no bytes to wait for, and there are no groups.
 */
#ifndef EP_DEVICE_SIMT_BULK_CUDA_H
#define EP_DEVICE_SIMT_BULK_CUDA_H

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define EP_BULK_ENGINE 1
#else
#define EP_BULK_ENGINE 0
#endif

EP_DEV uint32_t bulk_address(const void *shared)
{
	return (uint32_t)__cvta_generic_to_shared(shared);
}

/* 16, 8 bytes and one byte of shared memory. */
EP_DEV struct ep_vec16 ep_shared_ld16(const void *p)
{
	struct ep_vec16 v;

	asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
		     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
		     : "r"(bulk_address(p))
		     : "memory");
	return v;
}

EP_DEV struct ep_vec8 ep_shared_ld8(const void *p)
{
	struct ep_vec8 v;

	asm volatile("ld.shared.v2.u32 {%0,%1}, [%2];"
		     : "=r"(v.x), "=r"(v.y)
		     : "r"(bulk_address(p))
		     : "memory");
	return v;
}

EP_DEV uint32_t ep_shared_ld1(const void *p)
{
	uint32_t v;

	asm volatile("ld.shared.u8 %0, [%1];" : "=r"(v) : "r"(bulk_address(p)) : "memory");
	return v;
}

EP_DEV void ep_shared_st16(void *p, struct ep_vec16 vec)
{
	asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(bulk_address(p)), "r"(vec.x),
		     "r"(vec.y), "r"(vec.z), "r"(vec.w)
		     : "memory");
}

EP_DEV void ep_mbar_init(struct ep_mbar *bar, uint32_t nwarps)
{
	__syncwarp();
	if (ep_lane() == 0) {
		asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(bulk_address(bar)),
			     "r"(nwarps)
			     : "memory");
	}
}

EP_DEV void ep_mbar_inval(struct ep_mbar *bar)
{
	__syncwarp();
	if (ep_lane() == 0) {
		asm volatile("mbarrier.inval.shared.b64 [%0];" ::"r"(bulk_address(bar)) : "memory");
	}
	__syncwarp();
}

/* The first fence is for the barrier's own use by the engine, the second one for its memory. */
EP_DEV void ep_mbar_fence_init(void)
{
#if EP_BULK_ENGINE
	asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
	__syncwarp();
}

EP_DEV void ep_mbar_arrive(struct ep_mbar *bar)
{
	__syncwarp();
	if (ep_lane() == 0) {
		asm volatile("{ .reg .b64 state; mbarrier.arrive.shared.b64 state, [%0]; }" ::"r"(
				     bulk_address(bar))
			     : "memory");
	}
}

EP_DEV void ep_mbar_arrive_tx(struct ep_mbar *bar, uint32_t bytes)
{
#if EP_BULK_ENGINE
	__syncwarp();
	if (ep_lane() == 0) {
		asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(
				     bulk_address(bar)),
			     "r"(bytes)
			     : "memory");
	}
#else
	(void)bytes;
	ep_mbar_arrive(bar);
#endif
}

#if EP_BULK_ENGINE
#define EP_MBAR_WAIT_CUDA                                                                          \
	"mbarrier.try_wait.parity.shared::cta.b64" /* sleeps up to 1.4 us (H200) */
#else
#define EP_MBAR_WAIT_CUDA "mbarrier.test_wait.parity.shared.b64"
#endif

EP_DEV bool ep_mbar_try_wait(struct ep_mbar *bar, uint32_t parity)
{
	uint32_t over;

	asm volatile("{ .reg .pred p; " EP_MBAR_WAIT_CUDA " p, [%1], %2; selp.u32 %0, 1, 0, p; }"
		     : "=r"(over)
		     : "r"(bulk_address(bar)), "r"(parity)
		     : "memory");
	return over != 0;
}

EP_DEV void ep_bulk_fence_shared(const void *p, uint32_t bytes)
{
	(void)p;
	(void)bytes;
#if EP_BULK_ENGINE
	asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
#endif
	__syncwarp();
}

EP_DEV void ep_bulk_fence_global(void)
{
#if EP_BULK_ENGINE
	asm volatile("fence.proxy.async.global;" ::: "memory");
#endif
}

#if EP_BULK_ENGINE

EP_DEV void ep_bulk_load_one(void *to, const void *from, uint32_t bytes, struct ep_mbar *bar)
{
	asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes "
		     "[%0], [%1], %2, [%3];" ::"r"(bulk_address(to)),
		     "l"(from), "r"(bytes), "r"(bulk_address(bar))
		     : "memory");
}

EP_DEV void ep_bulk_load(void *to, const void *from, uint32_t bytes, struct ep_mbar *bar)
{
	__syncwarp();
	if (ep_lane() == 0) {
		ep_bulk_load_one(to, from, bytes, bar);
	}
}

EP_DEV void ep_bulk_store(void *to, const void *from, uint32_t bytes)
{
	__syncwarp();
	if (ep_lane() == 0) {
		asm volatile(
			"cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
			"r"(bulk_address(from)), "r"(bytes)
			: "memory");
	}
}

EP_DEV void ep_bulk_commit(void)
{
	__syncwarp();
	if (ep_lane() == 0) {
		asm volatile("cp.async.bulk.commit_group;" ::: "memory");
	}
}

/* The number is part of the instruction; with a constant n one case is left. */
#define EP_BULK_WAIT_CASE(instr, n)                                                                \
	case n:                                                                                    \
		asm volatile(instr " " #n ";" ::: "memory");                                       \
		break;
#define EP_BULK_WAIT_CUDA(name, instr)                                                             \
	EP_DEV void name(uint32_t n)                                                               \
	{                                                                                          \
		if (ep_lane() == 0) {                                                              \
			switch (n) {                                                               \
				EP_BULK_WAIT_CASE(instr, 0)                                        \
				EP_BULK_WAIT_CASE(instr, 1)                                        \
				EP_BULK_WAIT_CASE(instr, 2)                                        \
				EP_BULK_WAIT_CASE(instr, 3)                                        \
				EP_BULK_WAIT_CASE(instr, 4)                                        \
				EP_BULK_WAIT_CASE(instr, 5)                                        \
				EP_BULK_WAIT_CASE(instr, 6)                                        \
			default:                                                                   \
				asm volatile(instr " 7;" ::: "memory");                            \
			}                                                                          \
		}                                                                                  \
		__syncwarp();                                                                      \
	}
_Static_assert(EP_BULK_PENDING == 7, "the cases of EP_BULK_WAIT_CUDA");

EP_BULK_WAIT_CUDA(ep_bulk_wait, "cp.async.bulk.wait_group")
EP_BULK_WAIT_CUDA(ep_bulk_wait_read, "cp.async.bulk.wait_group.read")

#else

#define EP_BULK_BATCH 4u /* loads that a lane has under way */
#define EP_BULK_STRIDE (EP_WARP_SIZE * 16u)

EP_DEV void ep_bulk_load(void *to, const void *from, uint32_t bytes, struct ep_mbar *bar)
{
	(void)bar;
	__syncwarp();
	for (uint32_t at = ep_lane() * 16; at < bytes; at += EP_BULK_BATCH * EP_BULK_STRIDE) {
		struct ep_vec16 v[EP_BULK_BATCH];

		EP_UNROLL(4)
		for (uint32_t i = 0; i < EP_BULK_BATCH; i++) {
			if (at + i * EP_BULK_STRIDE < bytes) {
				v[i] = ep_ld16_fresh((const char *)from + at + i * EP_BULK_STRIDE);
			}
		}
		EP_UNROLL(4)
		for (uint32_t i = 0; i < EP_BULK_BATCH; i++) {
			if (at + i * EP_BULK_STRIDE < bytes) {
				ep_shared_st16((char *)to + at + i * EP_BULK_STRIDE, v[i]);
			}
		}
	}
}

EP_DEV void ep_bulk_store(void *to, const void *from, uint32_t bytes)
{
	__syncwarp();
	for (uint32_t at = ep_lane() * 16; at < bytes; at += EP_BULK_STRIDE) {
		ep_st16((char *)to + at, ep_shared_ld16((const char *)from + at));
	}
}

EP_DEV void ep_bulk_commit(void)
{
	__syncwarp();
}

EP_DEV void ep_bulk_wait(uint32_t n)
{
	(void)n;
	__syncwarp();
}

EP_DEV void ep_bulk_wait_read(uint32_t n)
{
	(void)n;
	__syncwarp();
}

#endif

#endif
