/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of device/simt/numeric.h for test/unit/numeric.c. */
#include "device/simt/numeric.h"

extern "C" {
uint32_t numeric_f32x4_e4m3(const float *f)
{
	return ep_f32x4_e4m3(f[0], f[1], f[2], f[3]);
}

void numeric_e4m3x4_f32(uint32_t w, float *f)
{
	ep_e4m3x4_f32(w, f);
}

uint32_t numeric_f32x8_e2m1(const float *f)
{
	return ep_f32x8_e2m1(f);
}

void numeric_e2m1x8_f32(uint32_t w, float *f)
{
	ep_e2m1x8_f32(w, f);
}

float numeric_amax(float amax, float f)
{
	return ep_amax(amax, f);
}

float numeric_e4m3_scale(float amax, bool round_up, float *inverse)
{
	return ep_e4m3_scale(amax, round_up, inverse);
}

uint32_t numeric_e8m0_scale(float amax, float *inverse)
{
	return ep_e8m0_scale(amax, inverse);
}

float numeric_e8m0_f32(uint32_t byte)
{
	return ep_e8m0_f32(byte);
}

float numeric_nvfp4_global(float given)
{
	return ep_nvfp4_global(given);
}

uint32_t numeric_nvfp4_scale(float amax, float global, float *inverse)
{
	return ep_nvfp4_scale(amax, global, inverse);
}

uint32_t numeric_nvfp4_quantise(const uint32_t *pairs, float global, uint32_t *codes)
{
	struct ep_vec16 lo = { pairs[0], pairs[1], pairs[2], pairs[3] };
	struct ep_vec16 hi = { pairs[4], pairs[5], pairs[6], pairs[7] };
	float reciprocal = global != 0.0f ? 1.0f / global : 0.0f;
	uint32_t scale;
	struct ep_vec8 q = ep_nvfp4_quantise(lo, hi, global, ep_nvfp4_least(reciprocal), &scale);

	codes[0] = q.x;
	codes[1] = q.y;
	return scale;
}

float numeric_nvfp4_values(const uint32_t *pairs, float global, float *f)
{
	struct ep_vec16 lo = { pairs[0], pairs[1], pairs[2], pairs[3] };
	struct ep_vec16 hi = { pairs[4], pairs[5], pairs[6], pairs[7] };
	float reciprocal = global != 0.0f ? 1.0f / global : 0.0f;

	return ep_nvfp4_values(lo, hi, global, ep_nvfp4_least(reciprocal), f);
}
}
