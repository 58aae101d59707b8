/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counts what a routing sends to each expert, from this rank, for the caller: not a step, and
 * nothing that steps use is touched. Selections of an id that is no expert are not counted.
 */
#include "device/group/group_layout.h"
#include "device/simt/simt.h"

#include "device/kernels.h"

/* Selection i: an expert, or a number that is none. */
EP_DEV int64_t expert_rows_load(const struct ep_expert_rows_args &a, uint64_t i)
{
	if (a.form == EP_EXPERT_ROWS_IDS64) {
		return ((const int64_t *)a.selections)[i];
	}
	if (a.form == EP_EXPERT_ROWS_IDS32) {
		return ((const int32_t *)a.selections)[i];
	}

	uint32_t s = ((const uint32_t *)a.selections)[i];

	/* the mark of a repetition is the highest bit, and the list's end has it, too */
	return s & EP_EXPERT_ROWS_AGAIN ? -1 : (int64_t)(s & EP_EXPERT_ROWS_MASK);
}

EP_KERNEL(ep_expert_rows_kernel, ep_expert_rows_args, EP_GROUP_MAX_THREADS)
{
	uint64_t tokens = a.num_tokens, stride = (uint64_t)ep_nblocks() * ep_nthreads();

	if (a.stamp) {
		tokens = *a.stamp == a.want && *a.stamped_tokens < tokens ? *a.stamped_tokens
			 : *a.stamp == a.want                             ? tokens
									  : 0;
	}
	for (uint64_t t = (uint64_t)ep_block() * ep_nthreads() + ep_tid(); t < tokens;
	     t += stride) {
		for (uint32_t k = 0; k < a.topk; k++) {
			int64_t expert = expert_rows_load(a, t * a.topk + k);

			if (expert >= 0 && expert < a.experts) {
				(void)ep_atomic_add_gpu_u64(a.rows + expert, 1);
			}
		}
	}
}
