/* SPDX-License-Identifier: Apache-2.0 */
/* simt_cpu.h, vectors, packets and lines. */
#ifndef EP_DEVICE_SIMT_CPU_VEC_H
#define EP_DEVICE_SIMT_CPU_VEC_H

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
	uint64_t flag = 0;

	ep_simt_point();
	if ((ep_lane() & 7) == 7) {
		flag = __atomic_load_n(p + 1, __ATOMIC_ACQUIRE);
	}
	vec->x = vec->y = 0;
	vec->z = (uint32_t)flag;
	vec->w = (uint32_t)(flag >> 32);
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
