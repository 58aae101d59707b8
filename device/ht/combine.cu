/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput: ncclEpCombine. */
#include "device/group/step.h"
#include "device/ht/layout.h"

#include "device/kernels.h"

EP_DEV void ep_ht_combine(const struct ep_ht_combine_args &a)
{
	struct ep_step_found found = ep_step_load(a.c.g, a.c.launch, false);
	struct ep_op op = ep_step_make(a.c.launch, found, false);

	op.is_combine = true;
	if (ep_block() == 0 && ep_warp() == 0) {
		ep_step_publish(a.c.g, op);
	}
	if (ep_step_begin(a.c.g, a.c.launch, found, op) == EP_BANK_ABORTED) {
		return;
	}
}

EP_KERNEL(ep_ht_combine_bf16_kernel, ep_ht_combine_args, EP_HT_MAX_THREADS)
{
	ep_ht_combine(a);
}

EP_KERNEL(ep_ht_combine_fp16_kernel, ep_ht_combine_args, EP_HT_MAX_THREADS)
{
	ep_ht_combine(a);
}

EP_KERNEL(ep_ht_combine_fp32_kernel, ep_ht_combine_args, EP_HT_MAX_THREADS)
{
	ep_ht_combine(a);
}
