/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The same expert-major. Every row is added there, so few SMs are faster with more warps, which
 * have fewer registers; flat combine, which copies as much as it adds, is not.
 */
#include "device/ht/combine_node.h"

#include "device/kernels.h"

EP_HT_COMBINE_KERNEL(ep_ht_combine_bf16_experts_kernel, ep_ht_experts<EP_BF16>, ep_ht_combine,
		     EP_HT_EXPERTS_THREADS)
EP_HT_COMBINE_KERNEL(ep_ht_combine_fp16_experts_kernel, ep_ht_experts<EP_FP16>, ep_ht_combine,
		     EP_HT_EXPERTS_THREADS)
EP_HT_COMBINE_KERNEL(ep_ht_combine_fp32_experts_kernel, ep_ht_experts<EP_FP32>, ep_ht_combine,
		     EP_HT_EXPERTS_THREADS)
EP_HT_COMBINE_KERNEL(ep_ht_combine_mxfp8_kernel, ep_ht_mxfp8, ep_ht_combine, EP_HT_EXPERTS_THREADS)
