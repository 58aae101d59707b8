/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The number formats of kernels, as the CPU's half has them, against definitions in double: a
 * format is a list of values, and a number becomes the nearest one, of two the one with the even
 * code. Every bf16, every code and the neighbourhood of every tie are tried.
 */
#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "support/check.h"

uint32_t numeric_f32x4_e4m3(const float *f);
void numeric_e4m3x4_f32(uint32_t w, float *f);
uint32_t numeric_f32x8_e2m1(const float *f);
void numeric_e2m1x8_f32(uint32_t w, float *f);
float numeric_amax(float amax, float f);
float numeric_e4m3_scale(float amax, bool round_up, float *inverse);
uint32_t numeric_e8m0_scale(float amax, float *inverse);
float numeric_e8m0_f32(uint32_t byte);
float numeric_nvfp4_global(float given);
uint32_t numeric_nvfp4_scale(float amax, float global, float *inverse);
uint32_t numeric_nvfp4_quantise(const uint32_t *pairs, float global, uint32_t *codes);
float numeric_nvfp4_values(const uint32_t *pairs, float global, float *f);

/* The magnitudes of a format, by code. */
struct format {
	double value[128];
	uint32_t codes, sign, nan;
};

static struct format e4m3 = { .codes = 0x7f, .sign = 0x80, .nan = 0x7f };
static struct format e2m1 = {
	.value = { 0, 0.5, 1, 1.5, 2, 3, 4, 6 }, .codes = 8, .sign = 8, .nan = 7
};

static void make_e4m3(void)
{
	for (uint32_t code = 0; code < e4m3.codes; code++) {
		int exp = (int)(code >> 3);

		e4m3.value[code] = exp ? ldexp(8 + (code & 7), exp - 10) : ldexp(code & 7, -9);
	}
	CHECK(e4m3.value[1] == 0x1p-9 && e4m3.value[0x38] == 1 && e4m3.value[0x7e] == 448);
}

static float from_bits(uint32_t bits)
{
	float f;

	memcpy(&f, &bits, sizeof(f));
	return f;
}

static uint32_t to_bits(float f)
{
	uint32_t bits;

	memcpy(&bits, &f, sizeof(bits));
	return bits;
}

/* The code of x: nearest, ties to even, saturating. */
static uint32_t encode(const struct format *format, double x)
{
	double a = fabs(x);
	uint32_t code = 0, last = format->codes - 1;

	if (isnan(x)) {
		return format->nan;
	}
	while (code < last) {
		uint32_t half = (code + last) / 2;
		double middle = (format->value[half] + format->value[half + 1]) / 2;

		if (a < middle || (a == middle && half % 2 == 0)) {
			last = half;
		} else {
			code = half + 1;
		}
	}
	return code | (signbit(x) ? format->sign : 0);
}

static void check_codes(const float *f)
{
	uint32_t four = numeric_f32x4_e4m3(f);
	uint32_t eight = numeric_f32x8_e2m1(f);

	for (int i = 0; i < 8; i++) {
		CHECK(i > 3 || (four >> 8 * i & 0xff) == encode(&e4m3, f[i]), "%a as e4m3 is %x",
		      f[i], four >> 8 * i & 0xff);
		CHECK((eight >> 4 * i & 15) == encode(&e2m1, f[i]), "%a as e2m1 is %x", f[i],
		      eight >> 4 * i & 15);
	}
}

/* Floats go to codes in groups, each place of a group in turn. */
static void check_code(float x)
{
	static float f[8];
	static uint32_t n;

	f[n++ % 8] = x;
	check_codes(f);
}

static void test_encode(void)
{
	for (uint32_t high = 0; high < 0x10000; high++) {
		check_code(from_bits(high << 16));
	}
	for (int sign = -1; sign < 2; sign += 2) {
		const struct format *formats[] = { &e4m3, &e2m1 };

		for (int which = 0; which < 2; which++) {
			const struct format *format = formats[which];

			for (uint32_t code = 0; code + 1 < format->codes; code++) {
				float middle =
					(float)(format->value[code] + format->value[code + 1]) / 2;

				for (int off = -20; off <= 20; off++) {
					check_code((float)sign *
						   from_bits(to_bits(middle) + (uint32_t)off));
				}
			}
		}
	}
	for (uint64_t i = 0, x = 41; i < 300000; i++) {
		x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		check_code(from_bits((uint32_t)(x >> 32)));
		/* and near the values of e2m1, which few floats are */
		check_code(ldexpf((float)(int32_t)(x >> 32), -28));
	}
}

static void test_decode(void)
{
	float f[8];

	for (uint32_t code = 0; code < 0x100; code++) {
		double value = code % 128 == 0x7f ? NAN : e4m3.value[code % 128];

		for (int i = 0; i < 4; i++) {
			numeric_e4m3x4_f32(code << 8 * i | 0x38u << 8 * ((i + 1) % 4), f);
			CHECK(isnan(value) ? isnan(f[i])
					   : f[i] == (code < 128 ? value : -value) &&
						     !signbit(f[i]) == (code < 128),
			      "e4m3 %x is %a", code, f[i]);
			CHECK(f[(i + 1) % 4] == 1 && f[(i + 2) % 4] == 0);
		}
	}
	for (uint32_t pair = 0; pair < 0x10000; pair++) {
		uint32_t w = pair | (pair ^ 0x5a5au) << 16;

		numeric_e2m1x8_f32(w, f);
		for (int i = 0; i < 8; i++) {
			uint32_t code = w >> 4 * i & 15;
			double value = e2m1.value[code % 8];

			CHECK(f[i] == (code < 8 ? value : -value) && !signbit(f[i]) == (code < 8),
			      "e2m1 %x is %a", code, f[i]);
		}
	}
	CHECK(isnan(numeric_e8m0_f32(255)));
	for (uint32_t byte = 0; byte < 255; byte++) {
		CHECK((double)numeric_e8m0_f32(byte) == ldexp(1, (int)byte - 127));
	}
}

static void test_amax(void)
{
	CHECK(numeric_amax(0, -3) == 3 && numeric_amax(3, 2) == 3 &&
	      to_bits(numeric_amax(0, -0.0f)) == 0);
	CHECK(numeric_amax(1, -INFINITY) == INFINITY && numeric_amax(0, -0x1p-149f) == 0x1p-149f);
	CHECK(isnan(numeric_amax(0, NAN)) && isnan(numeric_amax(NAN, 1)));
	CHECK(isnan(numeric_amax(INFINITY, -NAN)) && isnan(numeric_amax(NAN, INFINITY)));
}

/*
 * Both quotients are the nearest floats; rounded up, the scale is a power of two and its inverse
 * exact.
 */
static void check_fp8(float amax)
{
	double a = amax > 1e-4f ? (double)amax : (double)1e-4f;
	float inverse, scale = numeric_e4m3_scale(amax, false, &inverse);
	int n = -149;

	CHECK(scale == (float)(a / 448) && inverse == (float)(448 / a),
	      "amax %a: scale %a, inverse %a", amax, scale, inverse);
	CHECK(encode(&e4m3, amax * inverse) <= 0x7e);
	while (ldexp(1, n) < (double)scale) {
		n++;
	}
	scale = numeric_e4m3_scale(amax, true, &inverse);
	CHECK((double)scale == ldexp(1, n) && (double)inverse == ldexp(1, -n),
	      "amax %a: scale %a, inverse %a, rounded up", amax, scale, inverse);
	CHECK((double)(amax * inverse) <= 448 * (1 + 0x1p-23));
}

static void test_fp8(void)
{
	float inverse;

	for (uint32_t high = 0; high < 0x7f80; high++) {
		check_fp8(from_bits(high << 16));
	}
	for (uint32_t exp = 0; exp < 255; exp++) { /* about powers of two, and 448 times these */
		for (uint32_t off = 0; off < 9; off++) {
			check_fp8(from_bits(exp << 23 | (0x5ffffcu + off)));
			check_fp8(from_bits((exp << 23) + off));
		}
	}
	for (int up = 0; up < 2; up++) { /* infinity times 0 is NaN, as a number times infinity */
		CHECK(isinf(numeric_e4m3_scale(INFINITY, up, &inverse)) && inverse == 0);
	}
}

static void check_e8m0(float amax)
{
	int n = -127;
	float inverse;
	uint32_t byte = numeric_e8m0_scale(amax, &inverse);

	while ((double)amax > ldexp(448, n)) {
		n++;
	}
	CHECK((int)byte == n + 127 && (double)inverse == ldexp(1, -n),
	      "amax %a has byte %u, inverse %a", amax, byte, inverse);
	CHECK((double)(amax * inverse) <= 448 && (n == -127 || (double)(amax * inverse) > 224));
}

static void test_e8m0(void)
{
	float inverse;

	for (uint32_t high = 0; high < 0x7f80; high++) {
		check_e8m0(from_bits(high << 16));
	}
	for (uint32_t exp = 0; exp < 255; exp++) {
		for (uint32_t off = 0; off < 9; off++) {
			check_e8m0(from_bits(exp << 23 | (0x5ffffcu + off)));
			check_e8m0(from_bits((exp << 23) + off));
		}
	}
	CHECK(numeric_e8m0_scale(INFINITY, &inverse) == 254 && inverse == 0x1p-127f);
	CHECK(encode(&e4m3, INFINITY * inverse) == 0x7e && isinf(448 * numeric_e8m0_f32(254)));
	CHECK(numeric_e8m0_scale(NAN, &inverse) == 255 && isnan(inverse));
}

/* Rounding of floats on the way to a scale is allowed for; where none is needed, none happens. */
static void check_nvfp4(float amax, float global)
{
	float inverse;
	uint32_t byte = numeric_nvfp4_scale(amax, global, &inverse);
	double exact = (double)amax * global / 6;
	double scale = e4m3.value[byte % 128];

	CHECK(byte >= encode(&e4m3, exact * (1 - 0x1p-22)) &&
		      byte <= encode(&e4m3, exact * (1 + 0x1p-22)),
	      "amax %a, global %a: scale %x for %a", amax, global, byte, exact);
	if ((float)(amax / 6.0) * 6.0 == amax && (double)(float)exact == exact) {
		CHECK(byte == encode(&e4m3, exact), "amax %a, global %a: scale %x for %a exactly",
		      amax, global, byte, exact);
	}
	CHECK(inverse == (scale == 0 ? 0 : (float)(global / scale)),
	      "amax %a, global %a: inverse %a", amax, global, inverse);
}

static void test_nvfp4(void)
{
	static const float globals[] = { 1,          0x1p-20f, 0x1p20f,         3,
					 448 * 6.0f, 0x1p112f, 448 * 6 / 7.25f, 448 * 6 / 0.013f };
	float inverse;

	for (uint32_t high = 0; high < 0x7f80; high++) {
		for (size_t i = 0; i < sizeof(globals) / sizeof(globals[0]); i++) {
			check_nvfp4(from_bits(high << 16), globals[i]);
		}
	}
	for (uint32_t code = 0; code + 1 < e4m3.codes; code++) { /* ties */
		check_nvfp4((float)(e4m3.value[code] + e4m3.value[code + 1]) * 3, 1);
	}
	CHECK(numeric_nvfp4_scale(INFINITY, 2, &inverse) == 0x7e && inverse == (float)(2.0 / 448));
	CHECK(numeric_nvfp4_scale(NAN, 2, &inverse) == 0x7f && isnan(inverse));
	CHECK(numeric_nvfp4_scale(3, NAN, &inverse) == 0x7f && isnan(inverse));
	CHECK(numeric_nvfp4_scale(3, 0, &inverse) == 0 && inverse == 0);
	CHECK(numeric_nvfp4_global(INFINITY) == 0x1p112f &&
	      numeric_nvfp4_global(0x1p112f) == 0x1p112f);
	CHECK(numeric_nvfp4_global(3) == 3 && isnan(numeric_nvfp4_global(NAN)));
	CHECK(numeric_nvfp4_scale(0, 0x1p112f, &inverse) == 0 && inverse == 0);
}

/*
 * Bits of a group's elements: the magnitude `amax` at place `at`, and at the others what is in x.
 */
static void check_group(const uint16_t *x, uint32_t amax, uint32_t at, float global)
{
	uint32_t pairs[8], codes[2], scale, want;
	uint16_t bits[16];
	float inverse, value, values[16], f[8], four[4];

	memcpy(bits, x, sizeof(bits));
	bits[at] = (uint16_t)(amax | (at % 3 ? 0 : 0x8000));
	memcpy(pairs, bits, sizeof(pairs)); /* of a machine that has the lower half first */
	scale = numeric_nvfp4_quantise(pairs, global, codes);
	want = numeric_nvfp4_scale(from_bits(amax << 16), global, &inverse);
	CHECK(scale == want, "amax %x, global %a: scale %x, not %x", amax, global, scale, want);
	value = numeric_nvfp4_values(pairs, global, values);
	numeric_e4m3x4_f32(scale, four);
	CHECK(to_bits(value) == to_bits(four[0]) || (isnan(value) && isnan(four[0])));
	for (uint32_t i = 0; i < 16; i++) {
		numeric_e2m1x8_f32(codes[i / 8], f);
		CHECK(to_bits(values[i]) == to_bits(f[i % 8]),
		      "%x of amax %x, global %a: %a, not %a", bits[i], amax, global, values[i],
		      f[i % 8]);
	}
	for (uint32_t i = 0; i < 16; i++) {
		float product = from_bits((uint32_t)bits[i] << 16) * inverse;
		uint32_t code = codes[i / 8] >> 4 * (i % 8) & 15;

		CHECK(code == encode(&e2m1, product),
		      "%x of amax %x, global %a, place %u: %a is %x", bits[i], amax, global, i,
		      product, code);
	}
}

/*
 * Groups of that amax: all elements down to an eighth of the smallest that counts, with both signs.
 */
static void check_amax(uint32_t amax, float global, uint32_t step)
{
	static uint32_t at;
	uint16_t x[16] = { 0 };
	uint32_t n = 0;

	for (uint32_t i = 0; i <= amax && i < 9 * 128; i += step) {
		x[n++ % 16] = (uint16_t)((amax - i) | (i / step % 2 ? 0x8000 : 0));
		if (n % 15 == 0) {
			check_group(x, amax, at++ % 16, global);
		}
	}
	check_group(x, amax, at++ % 16, global);
}

/*
 * Every mantissa of the amax, with every scale, against every element; and what is large, small, or
 * no number.
 */
static void test_groups(void)
{
	static const float globals[] = { 1,  448 * 6.0f,     448 * 6 / 7.25f,
					 -3, 0x1.fffffep+7f, 0x1.000002p-9f };
	static const float ends[] = { 0,          -0.0f,    0x1p-149f,  0x1p-140f,  0x1.8p-126f,
				      0x1.7p-80f, 0x1p-61f, 0x1.3p-30f, 0x1.9p30f,  0x1p61f,
				      0x1.1p80f,  0x1p100f, 0x1p126f,   0x1.fp127f, INFINITY,
				      -INFINITY,  NAN };
	const uint16_t infinite[16] = { 0x7f80, 0xff80, 0x3f80, 0xbf80, 0, 0x8000, 0x7f7f };
	const uint16_t nan[16] = { 0x7fc0, 0xff80, 0xff80, 0xffc0, 0, 0x8000, 0x3f80 };

	for (uint32_t i = 0; i < sizeof(globals) / sizeof(globals[0]); i++) {
		/* 6 * 2^-11 to 6 * 512 of scales */
		uint32_t first = to_bits(0x1p-11f / fabsf(globals[i])) >> 16;

		for (uint32_t amax = first; amax < first + 25 * 128; amax++) {
			check_amax(amax, globals[i], 1);
		}
	}
	for (uint32_t i = 0; i < sizeof(ends) / sizeof(ends[0]); i++) {
		for (uint32_t amax = 0; amax < 0x7f80; amax += 29) {
			check_amax(amax, ends[i], 23);
		}
		check_group(infinite, 0x7f80, 3, ends[i]);
		check_group(nan, 0x7fff, 3, ends[i]);
		check_group(nan, 0xffff, 0, ends[i]);
	}
	for (uint64_t i = 0, x = 43; i < 40000; i++) {
		x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
		check_amax(x >> 40 & 0x7fff, from_bits((uint32_t)(x >> 8) & 0x7f7fffffu), 61);
		check_amax(0x3f00 + (x >> 40 & 0x1ff),
			   from_bits(0x43000000u + (x >> 8 & 0x3ffffffu)), 29);
	}
}

int main(void)
{
	make_e4m3();
	test_encode();
	test_decode();
	test_amax();
	test_fp8();
	test_e8m0();
	test_nvfp4();
	test_groups();
	return check_end();
}
