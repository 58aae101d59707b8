/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Launch handles of the kernels, for the host. A kernel `name` takes the one struct named beside
 * it; launch with cudaLaunchKernelExC(&config, (const void *)name, args).
 */
#ifndef EP_DEVICE_KERNELS_H
#define EP_DEVICE_KERNELS_H

#ifdef __cplusplus
extern "C" {
#endif

/* Kernel sources define the symbols themselves. */
#if !defined(__CUDACC__) && !defined(EP_KERNEL)
#define EP_KERNEL_DECL(name) extern void name(void)

/* struct ep_ll_dispatch_args */
EP_KERNEL_DECL(ep_ll_dispatch_kernel);     /* rows forwarded as bytes */
EP_KERNEL_DECL(ep_ll_dispatch_fp8_kernel); /* bf16 quantised: the formats of formats.h */
EP_KERNEL_DECL(ep_ll_dispatch_mxfp8_kernel);
EP_KERNEL_DECL(ep_ll_dispatch_nvfp4_kernel);
EP_KERNEL_DECL(ep_ll_dispatch_remote_kernel); /* the same for groups with remote ranks */
EP_KERNEL_DECL(ep_ll_dispatch_fp8_remote_kernel);
EP_KERNEL_DECL(ep_ll_dispatch_mxfp8_remote_kernel);
EP_KERNEL_DECL(ep_ll_dispatch_nvfp4_remote_kernel);
/* struct ep_ll_combine_args */
EP_KERNEL_DECL(ep_ll_combine_bf16_kernel);
EP_KERNEL_DECL(ep_ll_combine_fp16_kernel);
EP_KERNEL_DECL(ep_ll_combine_fp32_kernel);
EP_KERNEL_DECL(ep_ll_combine_fp8_kernel);
EP_KERNEL_DECL(ep_ll_combine_nvfp4_kernel);
EP_KERNEL_DECL(ep_ll_combine_bf16_remote_kernel); /* the same for groups with remote ranks */
EP_KERNEL_DECL(ep_ll_combine_fp16_remote_kernel);
EP_KERNEL_DECL(ep_ll_combine_fp32_remote_kernel);
EP_KERNEL_DECL(ep_ll_combine_fp8_remote_kernel);
EP_KERNEL_DECL(ep_ll_combine_nvfp4_remote_kernel);
/* struct ep_ht_route_args */
EP_KERNEL_DECL(ep_ht_route_kernel);
EP_KERNEL_DECL(ep_ht_route_nodes_kernel); /* the same for groups of several nodes */
/* struct ep_ht_dispatch_args */
EP_KERNEL_DECL(ep_ht_dispatch_kernel);
EP_KERNEL_DECL(ep_ht_dispatch_nodes_kernel); /* the same for groups of several nodes */
EP_KERNEL_DECL(ep_ht_dispatch_lines_kernel); /* the same of few tokens on one node */
/* struct ep_ht_order_args, 2R blocks of EP_HT_ORDER_WARPS warps */
EP_KERNEL_DECL(ep_ht_order_kernel);
/* struct ep_ht_early_args */
EP_KERNEL_DECL(ep_ht_dispatch_early_kernel); /* in the order of experts, which are counted */
/* struct ep_ht_combine_args */
EP_KERNEL_DECL(ep_ht_combine_bf16_kernel);
EP_KERNEL_DECL(ep_ht_combine_fp16_kernel);
EP_KERNEL_DECL(ep_ht_combine_fp32_kernel);
EP_KERNEL_DECL(ep_ht_combine_bf16_experts_kernel); /* the same expert-major */
EP_KERNEL_DECL(ep_ht_combine_fp16_experts_kernel);
EP_KERNEL_DECL(ep_ht_combine_fp32_experts_kernel);
EP_KERNEL_DECL(ep_ht_combine_bf16_lines_kernel); /* the same of few flat tokens on one node */
EP_KERNEL_DECL(ep_ht_combine_fp16_lines_kernel);
EP_KERNEL_DECL(ep_ht_combine_fp32_lines_kernel);
EP_KERNEL_DECL(ep_ht_combine_mxfp8_kernel);      /* bf16 returned as MXFP8 */
EP_KERNEL_DECL(ep_ht_combine_bf16_nodes_kernel); /* the same for groups of several nodes */
EP_KERNEL_DECL(ep_ht_combine_fp16_nodes_kernel);
EP_KERNEL_DECL(ep_ht_combine_fp32_nodes_kernel);
/* struct ep_clean_args, one block of at least R threads, or of EP_GROUP_MAX_THREADS */
EP_KERNEL_DECL(ep_clean_kernel);
/* struct ep_drain_args, one block, when no other kernel of the group runs */
EP_KERNEL_DECL(ep_drain_kernel);
/* struct ep_lost_args, one block, at any time */
EP_KERNEL_DECL(ep_lost_kernel);
/* struct ep_expert_rows_args */
EP_KERNEL_DECL(ep_expert_rows_kernel);
/* struct ep_update_args, one block, between steps of the group */
EP_KERNEL_DECL(ep_update_kernel);
#endif

#ifdef __cplusplus
}
#endif
#endif
