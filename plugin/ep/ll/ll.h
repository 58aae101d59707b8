/* SPDX-License-Identifier: Apache-2.0 */
/* Low latency: what its files share. ll_algo.c has the table of functions. */
#ifndef EP_EP_LL_LL_H
#define EP_EP_LL_LL_H

#include <stdbool.h>
#include "core/param.h"
#include "device/ll/ll_layout.h"
#include "ep/ep.h"

/*
 * ---- where everything lies ----
 *
 * In a low-latency group's heap and in handle memory. The one place that computes it: for
 * allocation, for the kernels' arguments, and for the memory query.
 */

/* A bank's areas end where the next begins. A side of the stage: rows, headers [R][STAGE_ROWS]. */
struct ep_ll_heap {
	struct ep_group_heap g;
	struct ep_ll_areas areas;
	uint64_t bank_bytes;
};

/* Parts of the packet area of a dispatch, from its start. */
struct ep_ll_dispatch_packets {
	uint32_t count_off;
	uint32_t header_off;
	uint32_t header_bytes;
	uint64_t bytes;
};

struct ep_ll_handle_layout {
	uint64_t head_off;
	uint64_t src_rows_off;
	uint64_t src_parts_off;
	uint64_t counts_off;
	uint64_t slot_token_off;
	uint64_t slot_row_off;
	uint64_t route_off;
	uint64_t sent_rows_off;
	uint64_t bytes;
};

struct ep_ll_dispatch_packets ep_ll_dispatch_packets_make(const struct ep_shape *shape,
							  uint32_t layout, uint32_t topk);

/* Both layouts, top-k up to `topk`. */
struct ep_ll_heap ep_ll_heap_make(const struct ep_shape *shape, uint32_t topk);

struct ep_ll_handle_layout ep_ll_handle_layout_make(const struct ep_shape *shape, uint32_t layout,
						    uint32_t topk);

/*
 * Quads of the largest row in a group whose max_token_bytes is `bytes`: so many bytes copied,
 * scales included, and quantised what is bf16 of so many bytes. Where these are just what a
 * quantised row and its scales take, that fits, too.
 */
uint32_t ep_ll_max_quads(uint32_t bytes);

/* Quads of a row of `bytes`: of these if it is copied, else of so many bytes of bf16, quantised. */
uint32_t ep_ll_row_quads(enum ep_row_format format, uint32_t bytes);

/* ---- all that is decided about a launch. Arithmetic alone: no CUDA, no group ---- */

/*
 * Thread blocks of a group's dispatches, or combines. Unless the split is fixed, only the sum of
 * the two counts: ep_ll_plan_make() shares it out again for each operation.
 */
struct ep_ll_geometry {
	uint32_t send_blocks;
	uint32_t recv_blocks;
	uint32_t threads;
	/* parameters set how many blocks send or receive, the same for all operations */
	bool fixed;
};

/* In this order; `+ EP_LL_KERNEL_REMOTE` is the same for groups with remote ranks. */
enum ep_ll_kernel {
	EP_LL_KERNEL_DISPATCH,
	EP_LL_KERNEL_DISPATCH_FP8,
	EP_LL_KERNEL_DISPATCH_MXFP8,
	EP_LL_KERNEL_DISPATCH_NVFP4,
	EP_LL_KERNEL_COMBINE, /* and enum ep_dtype */
	EP_LL_KERNEL_COMBINE_FP8 = EP_LL_KERNEL_COMBINE + EP_FP32 + 1,
	EP_LL_KERNEL_COMBINE_NVFP4,
	EP_LL_KERNEL_REMOTE,
	EP_LL_KERNELS = 2 * EP_LL_KERNEL_REMOTE
};

/* Input of a launch plan. */
struct ep_ll_operation {
	struct ep_shape shape;
	struct ep_ll_geometry geometry;
	struct ep_ll_geometry returns; /* combine's: a dispatch announces in how many parts */
	bool lines;
	bool remote;    /* the group has remote ranks */
	bool send_idle; /* this rank's role leaves it nothing to send, */
	bool recv_idle; /* or to receive */
	bool combine;
	uint32_t layout; /* enum ep_ll_layout */
	uint32_t topk;
	uint32_t num_tokens;
	uint32_t recv_limit; /* blocks that may receive: ep/ep.h */
	enum ep_row_format format;
	uint32_t row_bytes;  /* of the caller's row; if it is copied, with its scales */
	enum ep_dtype dtype; /* combine */
};

/* Arguments of the kernel: see struct ep_ll_common and struct ep_ll_dispatch_args. */
struct ep_ll_plan {
	enum ep_ll_kernel kernel;
	bool lines;
	uint32_t row_quads;
	uint32_t parts;
	uint32_t peer_parts;
	uint32_t part_quads;
	uint32_t peer_part_quads;
	uint32_t combine_parts; /* dispatch */
	bool own_direct;        /* dispatch: own rows may be placed from the caller's tensor */
	bool listed;            /* combine: senders take parts of rows from a list */
	struct ep_ll_dispatch_packets packets;
	uint32_t span;
	uint32_t channel_tokens;
	uint32_t send_blocks; /* of the half, if it is launched */
	uint32_t recv_blocks;
	uint32_t threads;
	uint32_t shared_bytes;
};

struct ep_ll_plan ep_ll_plan_make(const struct ep_ll_operation *operation);

/* Whose input it is: see ep_ll_source_choose(). */
enum ep_ll_source_of {
	EP_LL_SOURCE_DISPATCH,
	EP_LL_SOURCE_COMBINE,
	EP_LL_SOURCES
};

/* State of a group. */
struct ep_ll {
	struct ep_ll_geometry dispatch;
	struct ep_ll_geometry combine;
	struct ep_ll_areas areas; /* of the heap */
	uint32_t near_sender;     /* as in struct ep_ll_common */
	const char *copied_why
		[EP_LL_SOURCES]; /* the log has it: NICs do not read rows in place, or NULL */
	uint32_t shared_bytes;   /* of a block of dispatch, at most */
};

/* Arguments of any kernel. */
union ep_ll_args {
	struct ep_ll_common c;
	struct ep_ll_dispatch_args dispatch;
	struct ep_ll_combine_args combine;
};

/* State of a handle. */
struct ep_ll_handle {
	struct ep_ll_dev_handle dev; /* as kernels see its memory */
	struct ep_dev_handle *head;  /* of its memory */
	struct ep_ll_plan plan;      /* this and the next: of the pending operation */
	union ep_ll_args args;
};

/* Of operations with at most `limit` blocks. */
ncclResult_t ep_ll_geometry_make(struct ep_ll_geometry *out, const struct ep_params *params,
				 uint32_t limit);

/* ---- whether NICs read rows where the caller has them ---- */

/*
 * Fills *out, which is zero, if NICs shall read rows of `row_bytes` from the tensor of `view`, the
 * input of a dispatch or combine. The kernel then waits for the NICs; a send half alone shall be
 * short, so its rows are copied.
 */
void ep_ll_source_choose(struct ncclEpGroup *group, enum ep_ll_source_of of,
			 const ncclEpTensor_t *tensor, const struct ep_view *view,
			 uint32_t row_bytes, bool send_only, struct ep_mlx5_source *out);

/* ---- operations ---- */

ncclResult_t ep_ll_kernels_open(struct ep_ll *ll, int device);

/* Whether shared memory has room for dispatches of the handle's top-k. */
ncclResult_t ep_ll_shared_check(const struct ncclEpHandle *handle);

ncclResult_t ep_ll_dispatch(const struct ep_dispatch *dispatch, cudaStream_t stream);
ncclResult_t ep_ll_combine(const struct ep_combine *combine, cudaStream_t stream);
ncclResult_t ep_ll_complete(struct ncclEpHandle *handle, cudaStream_t stream);

#endif
