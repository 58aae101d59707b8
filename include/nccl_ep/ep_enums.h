/* SPDX-License-Identifier: Apache-2.0 */
/* Enumerations of the NCCL EP C API. All are four bytes wide and part of the ABI. */
#ifndef NCCL_EP_ENUMS_H_
#define NCCL_EP_ENUMS_H_

/* Lets the library choose, in every field that offers a choice. */
#define NCCL_EP_AUTO 0

/* The mode of a group: how it moves tokens. */
typedef enum {
	/* For small batches (inference): receive buffers of fixed size, no exchange of counts. */
	NCCL_EP_ALGO_LOW_LATENCY = 0,
	/* For large batches (training, prefill): ncclEpUpdateHandle computes each row's place. */
	NCCL_EP_ALGO_HIGH_THROUGHPUT = 1
} ncclEpAlgorithm_t;

/*
 * The order of received rows. R is the number of ranks, L the experts of a rank, B =
 * max_dispatch_tokens_per_rank, H the elements of a token, N the number of received rows.
 */
typedef enum {
	/* Not a layout: calls refuse it. */
	NCCL_EP_LAYOUT_UNSET = NCCL_EP_AUTO,
	/* Low latency: [L][R*B][H], with the rows of local expert e from 0 to its counter. High
	 * throughput: [N][H], with one zone of rows per local expert. */
	NCCL_EP_LAYOUT_EXPERT_MAJOR = 1,
	/* Low latency only: [R][B][H], with one row per token that source rank r sent here. */
	NCCL_EP_LAYOUT_RANK_MAJOR = 2,
	/* High throughput only: [N][H], with one row per (source rank, token). */
	NCCL_EP_LAYOUT_FLAT = 3
} ncclEpLayout_t;

/* The direction of training. Low latency has only the forward pass. */
typedef enum {
	NCCL_EP_FWD_PASS = 0, /* Tokens, weights and ids. */
	NCCL_EP_BWD_PASS = 1  /* Gradients, with the routing of the forward pass. */
} ncclEpPassDir_t;

/* High throughput: what happens to rows beyond max_recv_tokens_per_rank. */
typedef enum {
	NCCL_EP_OVERFLOW_AUTO = NCCL_EP_AUTO, /* As TRAP. */
	NCCL_EP_OVERFLOW_TRAP = 1,            /* The group fails. */
	NCCL_EP_OVERFLOW_DROP = 2             /* They are left out. */
} ncclEpOverflowPolicy_t;

/* Whether rows are read from and written to windows directly: see ncclEpGroupConfig_t. */
typedef enum {
	NCCL_EP_ZERO_COPY_AUTO = NCCL_EP_AUTO, /* Where it is possible and worth it. */
	NCCL_EP_ZERO_COPY_OFF = 1,             /* Low latency: never. */
	NCCL_EP_ZERO_COPY_ON = 2 /* High throughput: an operation that cannot is an error. */
} ncclEpZeroCopyMode_t;

/* The numbering of experts in a received topk_idx. */
typedef enum {
	NCCL_EP_EXPERT_ID_AUTO = NCCL_EP_AUTO, /* As LOCAL. */
	NCCL_EP_EXPERT_ID_LOCAL = 1,           /* 0 to L-1. */
	NCCL_EP_EXPERT_ID_GLOBAL = 2           /* 0 to E-1. */
} ncclEpExpertIdKind_t;

/* What dispatch does to tokens in transit: ncclEpDispatch has the details. */
typedef enum {
	/* Rows of 1, 2 or 4 bytes per element are copied. */
	NCCL_EP_DISP_QUANT_NONE = 0,
	/* Rows that the caller has quantised, and their scales, are copied. */
	NCCL_EP_DISP_QUANT_FWD = 1,
	/* bf16 in; 8-bit floating point e4m3 out, with one fp32 scale per 128 elements. */
	NCCL_EP_DISP_QUANT_DS_FP8E3M4 = 2
} ncclEpDispQuant_t;

/* What combine does to tokens in transit: ncclEpCombine has the details. */
typedef enum {
	/* Rows are copied. */
	NCCL_EP_COMB_QUANT_NONE = 0,
	/* Low latency: bf16 rows travel as 4-bit floating point e2m1, with one e4m3 scale per 16
	 * elements and one fp32 scale per row. */
	NCCL_EP_COMB_QUANT_NVFP4 = 1,
	/* Since API version 3. High throughput, expert-major: bf16 sums travel as e4m3, with one
	 * E8M0 scale per 32 elements. */
	NCCL_EP_COMB_QUANT_MXFP8 = 2
} ncclEpCombQuant_t;

#endif
