/* SPDX-License-Identifier: Apache-2.0 */
/* Element types and reductions. 16-bit floats are summed in fp32 and rounded once. */
#include <string.h>
#include "nccl/reduce.h"

size_t vc_type_size(ncclDataType_t type)
{
	switch (type) {
	case ncclInt8:
	case ncclUint8:
	case ncclFloat8e4m3:
	case ncclFloat8e5m2:
		return 1;
	case ncclFloat16:
	case ncclBfloat16:
		return 2;
	case ncclInt32:
	case ncclUint32:
	case ncclFloat32:
		return 4;
	case ncclInt64:
	case ncclUint64:
	case ncclFloat64:
		return 8;
	default:
		return 0;
	}
}

static float vc_from_half(uint16_t h)
{
	_Float16 f;

	memcpy(&f, &h, sizeof(f));
	return (float)f;
}

static uint16_t vc_to_half(float v)
{
	_Float16 f = (_Float16)v;
	uint16_t h;

	memcpy(&h, &f, sizeof(h));
	return h;
}

static float vc_from_bf16(uint16_t b)
{
	uint32_t u = (uint32_t)b << 16;
	float v;

	memcpy(&v, &u, sizeof(v));
	return v;
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

void vc_reduce(void *out, const uint8_t *parts, size_t stride, int nparts, size_t count,
	       ncclDataType_t type, ncclRedOp_t op)
{
	switch (type) {
	case ncclInt8:
		vc_reduce_i8(out, parts, stride, nparts, count, op);
		break;
	case ncclUint8:
		vc_reduce_u8(out, parts, stride, nparts, count, op);
		break;
	case ncclInt32:
		vc_reduce_i32(out, parts, stride, nparts, count, op);
		break;
	case ncclUint32:
		vc_reduce_u32(out, parts, stride, nparts, count, op);
		break;
	case ncclInt64:
		vc_reduce_i64(out, parts, stride, nparts, count, op);
		break;
	case ncclUint64:
		vc_reduce_u64(out, parts, stride, nparts, count, op);
		break;
	case ncclFloat16:
		vc_reduce_f16(out, parts, stride, nparts, count, op);
		break;
	case ncclBfloat16:
		vc_reduce_bf16(out, parts, stride, nparts, count, op);
		break;
	case ncclFloat32:
		vc_reduce_f32(out, parts, stride, nparts, count, op);
		break;
	case ncclFloat64:
		vc_reduce_f64(out, parts, stride, nparts, count, op);
		break;
	default:
		break;
	}
}
