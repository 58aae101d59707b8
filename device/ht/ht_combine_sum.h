/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput combine: a part of a row as a sum in registers. Each lane has every 32nd vec of 16
 * bytes.
 */
#ifndef EP_DEVICE_HT_COMBINE_SUM_H
#define EP_DEVICE_HT_COMBINE_SUM_H

#include "device/group/numbers.h"
#include "device/group/wait.h"
#include "device/ht/ht_layout.h"
#include "device/simt/bulk.h"

#define EP_HT_SUM_VECS (EP_HT_COMBINE_PART / 16 / EP_WARP_SIZE) /* of a lane */

template <int DTYPE> struct ep_ht_sum {
	float f[EP_HT_SUM_VECS][2 * ep_numbers<DTYPE>::count];
};

template <int DTYPE> EP_DEV void ep_ht_sum_load(struct ep_vec16 vec, float *f)
{
	struct ep_vec8 lo = { vec.x, vec.y }, hi = { vec.z, vec.w };

	ep_numbers<DTYPE>::load(lo, f);
	ep_numbers<DTYPE>::load(hi, f + ep_numbers<DTYPE>::count);
}

/*
 * Sets all numbers to `zero`: -0 before contributions are added, because -0 + x is x, also where x is
 * -0; 0 where nothing contributes.
 */
template <int DTYPE> EP_DEV void ep_ht_sum_clear(struct ep_ht_sum<DTYPE> *sum, float zero)
{
	EP_UNROLL(EP_HT_SUM_VECS)
	for (uint32_t i = 0; i < EP_HT_SUM_VECS; i++) {
		for (uint32_t j = 0; j < 2 * ep_numbers<DTYPE>::count; j++) {
			sum->f[i][j] = zero;
		}
	}
}

/*
 * Adds a contribution, of which each lane has every 32nd vec. Of vecs behind the part's end the last
 * one is taken, and nobody stores what comes of it.
 */
template <int DTYPE, bool WHOLE>
EP_DEV void ep_ht_sum_add(struct ep_ht_sum<DTYPE> *sum, const unsigned char *from, uint32_t vecs)
{
	EP_UNROLL(EP_HT_SUM_VECS)
	for (uint32_t i = 0; i < EP_HT_SUM_VECS; i++) {
		uint32_t at = i * EP_WARP_SIZE + ep_lane();
		float f[2 * ep_numbers<DTYPE>::count];

		ep_ht_sum_load<DTYPE>(
			ep_shared_ld16(from + 16 * (WHOLE ? at : ep_min_u32(at, vecs - 1))), f);
		for (uint32_t j = 0; j < 2 * ep_numbers<DTYPE>::count; j++) {
			sum->f[i][j] += f[j];
		}
	}
}

/* Rounds and stores. */
template <int DTYPE, bool WHOLE>
EP_DEV void ep_ht_sum_store(const struct ep_ht_sum<DTYPE> &sum, unsigned char *to, uint32_t vecs)
{
	typedef struct ep_numbers<DTYPE> numbers;

	EP_UNROLL(EP_HT_SUM_VECS)
	for (uint32_t i = 0; i < EP_HT_SUM_VECS; i++) {
		uint32_t at = i * EP_WARP_SIZE + ep_lane();

		if (WHOLE || at < vecs) {
			struct ep_vec8 lo = numbers::store(sum.f[i]);
			struct ep_vec8 hi = numbers::store(sum.f[i] + numbers::count);
			struct ep_vec16 v = { lo.x, lo.y, hi.x, hi.y };

			ep_st16(to + 16 * at, v);
		}
	}
}

#define EP_HT_PAIR_VECS 4 /* of either contribution, that a lane has in registers */

/* Two contributions, added as they are: the same bits as their sum in fp32 (ep_numbers.add()). */
template <int DTYPE, bool WHOLE>
EP_DEV void ep_ht_pair_store(const unsigned char *a, const unsigned char *b, unsigned char *to,
			     uint32_t vecs)
{
	typedef struct ep_numbers<DTYPE> numbers;

	EP_UNROLL(EP_HT_SUM_VECS)
	for (uint32_t i = 0; i < EP_HT_SUM_VECS; i += EP_HT_PAIR_VECS) {
		struct ep_vec16 v[EP_HT_PAIR_VECS], w[EP_HT_PAIR_VECS];

		EP_UNROLL(EP_HT_PAIR_VECS)
		for (uint32_t j = 0; j < EP_HT_PAIR_VECS && i + j < EP_HT_SUM_VECS; j++) {
			uint32_t at = (i + j) * EP_WARP_SIZE + ep_lane();

			at = 16 * (WHOLE ? at : ep_min_u32(at, vecs - 1));
			v[j] = ep_shared_ld16(a + at);
			w[j] = ep_shared_ld16(b + at);
		}
		EP_UNROLL(EP_HT_PAIR_VECS)
		for (uint32_t j = 0; j < EP_HT_PAIR_VECS && i + j < EP_HT_SUM_VECS; j++) {
			uint32_t at = (i + j) * EP_WARP_SIZE + ep_lane();
			struct ep_vec16 sum = { numbers::add(v[j].x, w[j].x),
						numbers::add(v[j].y, w[j].y),
						numbers::add(v[j].z, w[j].z),
						numbers::add(v[j].w, w[j].w) };

			if (WHOLE || at < vecs) {
				ep_st16(to + 16 * at, sum);
			}
		}
	}
}

#endif
