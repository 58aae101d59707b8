/* SPDX-License-Identifier: Apache-2.0 */
/* Enumerations of the NCCL EP C API. All are four bytes wide and part of the ABI. */
#ifndef NCCL_EP_ENUMS_H_
#define NCCL_EP_ENUMS_H_

/* "Choose for me", in every field that offers a choice. */
#define NCCL_EP_AUTO 0

/* How a group moves tokens. */
typedef enum {
	/* Small batches (inference): fixed-size receive buffers, no exchange of counts beforehand. */
	NCCL_EP_ALGO_LOW_LATENCY = 0,
	/* Large batches (training, prefill): exact receive positions computed by UpdateHandle. */
	NCCL_EP_ALGO_HIGH_THROUGHPUT = 1
} ncclEpAlgorithm_t;

/*
 * Where received rows lie. With R ranks, L experts per rank, B =
 * max_dispatch_tokens_per_rank, H elements per token, N received rows:
 */
typedef enum {
	NCCL_EP_LAYOUT_UNSET = NCCL_EP_AUTO, /* not a layout: calls refuse it */
	/* Low latency: [L][R*B][H], rows of local expert e from 0 to its counter. */
	/* High throughput: [N][H], one zone of rows per local expert. */
	NCCL_EP_LAYOUT_EXPERT_MAJOR = 1,
	/* Low latency only: [R][B][H], one row per token that source rank r sent here. */
	NCCL_EP_LAYOUT_RANK_MAJOR = 2,
	/* High throughput only: [N][H], one row per (source rank, token). */
	NCCL_EP_LAYOUT_FLAT = 3
} ncclEpLayout_t;

/* Direction of training. Low latency knows only the forward pass. */
typedef enum {
	NCCL_EP_FWD_PASS = 0,
	NCCL_EP_BWD_PASS = 1
} ncclEpPassDir_t;

/* High throughput: what happens to rows beyond max_recv_tokens_per_rank. */
typedef enum {
	NCCL_EP_OVERFLOW_AUTO = NCCL_EP_AUTO, /* = TRAP */
	NCCL_EP_OVERFLOW_TRAP = 1,
	NCCL_EP_OVERFLOW_DROP = 2
} ncclEpOverflowPolicy_t;

/* Whether rows are stored or sent from where window-backed tensors have them: ncclEpGroupConfig_t. */
typedef enum {
	NCCL_EP_ZERO_COPY_AUTO = NCCL_EP_AUTO, /* where possible */
	NCCL_EP_ZERO_COPY_OFF = 1,
	NCCL_EP_ZERO_COPY_ON = 2 /* high throughput: an operation that cannot is an error */
} ncclEpZeroCopyMode_t;

/* Numbering of experts in a received topk_idx. */
typedef enum {
	NCCL_EP_EXPERT_ID_AUTO = NCCL_EP_AUTO, /* = LOCAL */
	NCCL_EP_EXPERT_ID_LOCAL = 1,           /* 0 .. L-1 */
	NCCL_EP_EXPERT_ID_GLOBAL = 2           /* 0 .. E-1 */
} ncclEpExpertIdKind_t;

/* Recipes of dispatch for tokens on their way. */
typedef enum {
	NCCL_EP_DISP_QUANT_NONE = 0, /* bf16, fp16 or fp32 rows, copied */
	/* Rows that the caller has quantised, of any supported type, and their scales; copied. */
	NCCL_EP_DISP_QUANT_FWD = 1,
	/* bf16 in, 8-bit floating point e4m3 out, one fp32 scale per 128 elements. */
	NCCL_EP_DISP_QUANT_DS_FP8E3M4 = 2
} ncclEpDispQuant_t;

/* Recipes of combine for tokens on their way. */
typedef enum {
	NCCL_EP_COMB_QUANT_NONE = 0,
	NCCL_EP_COMB_QUANT_NVFP4 = 1 /* experimental; refused on devices without it */
} ncclEpCombQuant_t;

#endif
