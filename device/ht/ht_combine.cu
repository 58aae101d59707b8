/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput combine: ncclEpCombine in groups of one node, flat layout. */
#include "device/ht/combine_node.h"

#include "device/kernels.h"

EP_HT_COMBINE_KERNEL(ep_ht_combine_bf16_kernel, ep_ht_numbers<EP_BF16>, ep_ht_combine,
		     EP_HT_COMBINE_THREADS)
EP_HT_COMBINE_KERNEL(ep_ht_combine_fp16_kernel, ep_ht_numbers<EP_FP16>, ep_ht_combine,
		     EP_HT_COMBINE_THREADS)
EP_HT_COMBINE_KERNEL(ep_ht_combine_fp32_kernel, ep_ht_numbers<EP_FP32>, ep_ht_combine,
		     EP_HT_COMBINE_THREADS)
