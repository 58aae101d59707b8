/* SPDX-License-Identifier: Apache-2.0 */
/* Element types and reductions. 16-bit floats are summed in fp32 and rounded once. */
#include <string.h>
#include "nccl/reduce.h"

static float vc_float_of(uint32_t bits)
{
	float v;

	memcpy(&v, &bits, sizeof(v));
	return v;
}

static float vc_from_half(uint16_t h)
{
	uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = h >> 10 & 31, part = h & 0x3ff;

	if (exponent == 31) {
		return vc_float_of(sign | 0x7f800000u | part << 13);
	}
	if (exponent == 0) {
		return (sign ? -0x1p-24f : 0x1p-24f) * (float)part;
	}
	return vc_float_of(sign | (exponent + 112) << 23 | part << 13);
}

/* Rounds to the nearest, ties to even. */
static uint16_t vc_to_half(float v)
{
	uint32_t u, sign, a;

	memcpy(&u, &v, sizeof(u));
	sign = u >> 16 & 0x8000;
	a = u & 0x7fffffffu;
	if (a > 0x7f800000u) {
		return (uint16_t)(sign | 0x7e00 | (a >> 13 & 0x3ff));
	}
	if (a >= 0x477ff000u) { /* nearer to 65536 than to 65504, or a tie of them */
		return (uint16_t)(sign | 0x7c00);
	}
	if (a < 0x38800000u) { /* the sum's last bit is worth 2^-24, as that of the result */
		v = vc_float_of(a) + 0.5f;
		memcpy(&u, &v, sizeof(u));
		return (uint16_t)(sign | (u - 0x3f000000u));
	}
	a += 0xfff + (a >> 13 & 1);
	return (uint16_t)(sign | (a - 0x38000000u) >> 13);
}

static float vc_from_bf16(uint16_t b)
{
	return vc_float_of((uint32_t)b << 16);
}

static uint16_t vc_to_bf16(float v)
{
	uint32_t u;

	memcpy(&u, &v, sizeof(u));
	if ((u & 0x7fffffffu) > 0x7f800000u) {
		return (uint16_t)(u >> 16 | 0x40);
	}
	return (uint16_t)((u + 0x7fffu + (u >> 16 & 1)) >> 16);
}

#define VC_REDUCE(name, type, wide, load, store)                                                   \
	static void name(void *out, const uint8_t *parts, size_t stride, int n, size_t count,      \
			 ncclRedOp_t op)                                                           \
	{                                                                                          \
		for (size_t i = 0; i < count; i++) {                                               \
			wide all = (wide)load(((const type *)(const void *)parts)[i]);             \
			for (int p = 1; p < n; p++) {                                              \
				const void *part = parts + (size_t)p * stride;                     \
				wide v = (wide)load(((const type *)part)[i]);                      \
				switch (op) {                                                      \
				case ncclProd:                                                     \
					all = (wide)(all * v);                                     \
					break;                                                     \
				case ncclMax:                                                      \
					all = v > all ? v : all;                                   \
					break;                                                     \
				case ncclMin:                                                      \
					all = v < all ? v : all;                                   \
					break;                                                     \
				default:                                                           \
					all = (wide)(all + v);                                     \
					break;                                                     \
				}                                                                  \
			}                                                                          \
			if (op == ncclAvg) {                                                       \
				all = (wide)(all / (wide)n);                                       \
			}                                                                          \
			((type *)out)[i] = (type)store(all);                                       \
		}                                                                                  \
	}

VC_REDUCE(vc_reduce_i8, int8_t, int8_t, , )
VC_REDUCE(vc_reduce_u8, uint8_t, uint8_t, , )
VC_REDUCE(vc_reduce_i32, int32_t, int32_t, , )
VC_REDUCE(vc_reduce_u32, uint32_t, uint32_t, , )
VC_REDUCE(vc_reduce_i64, int64_t, int64_t, , )
VC_REDUCE(vc_reduce_u64, uint64_t, uint64_t, , )
VC_REDUCE(vc_reduce_f32, float, float, , )
VC_REDUCE(vc_reduce_f64, double, double, , )
VC_REDUCE(vc_reduce_f16, uint16_t, float, vc_from_half, vc_to_half)
VC_REDUCE(vc_reduce_bf16, uint16_t, float, vc_from_bf16, vc_to_bf16)

static const struct {
	size_t size;
	void (*reduce)(void *out, const uint8_t *parts, size_t stride, int n, size_t count,
		       ncclRedOp_t op); /* NULL: moved, never reduced */
} vc_types[] = {
	[ncclInt8] = { 1, vc_reduce_i8 },     [ncclUint8] = { 1, vc_reduce_u8 },
	[ncclInt32] = { 4, vc_reduce_i32 },   [ncclUint32] = { 4, vc_reduce_u32 },
	[ncclInt64] = { 8, vc_reduce_i64 },   [ncclUint64] = { 8, vc_reduce_u64 },
	[ncclFloat16] = { 2, vc_reduce_f16 }, [ncclFloat32] = { 4, vc_reduce_f32 },
	[ncclFloat64] = { 8, vc_reduce_f64 }, [ncclBfloat16] = { 2, vc_reduce_bf16 },
	[ncclFloat8e4m3] = { 1, NULL },       [ncclFloat8e5m2] = { 1, NULL },
};

size_t vc_type_size(ncclDataType_t type)
{
	return (size_t)type < sizeof(vc_types) / sizeof(*vc_types) ? vc_types[type].size : 0;
}

void vc_reduce(void *out, const uint8_t *parts, size_t stride, int nparts, size_t count,
	       ncclDataType_t type, ncclRedOp_t op)
{
	if (vc_type_size(type) && vc_types[type].reduce) {
		vc_types[type].reduce(out, parts, stride, nparts, count, op);
	}
}
