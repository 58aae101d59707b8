/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput: what its files share. ht.c has the table of functions. */
#ifndef EP_EP_HT_HT_H
#define EP_EP_HT_HT_H

#include <stdbool.h>
#include "device/ht/ht_layout.h"
#include "ep/ep.h"

/*
 * ---- where everything lies ----
 *
 * In a high-throughput group's heap, in its own memory and in handle memory. The one place that
 * computes it: for allocation, for the kernels' arguments, and for the memory query.
 */

struct ep_ht_heap {
	struct ep_group_heap g;
	struct ep_ht_areas areas;
};

struct ep_ht_handle_layout {
	uint64_t head_off;
	uint64_t send_sel_off;
	uint64_t send_row_off;
	uint64_t send_place_off;
	uint64_t send_start_off;
	uint64_t send_base_off;
	uint64_t recv_base_off;
	uint64_t recv_start_off;
	uint64_t recv_sel_off;
	uint64_t zones_off;
	uint64_t send_nodes_off; /* this and the next: several nodes */
	uint64_t node_masks_off;
	uint64_t bytes;
};

/* Handles of up to `topk`, both layouts; the areas are cut for the flat one. */
struct ep_ht_heap ep_ht_heap_make(const struct ep_shape *shape, uint32_t topk);

struct ep_ht_handle_layout ep_ht_handle_layout_make(const struct ep_shape *shape, uint32_t layout,
						    uint32_t topk);

/* How operations of that layout cut the rings, and all ranks' tokens. */
void ep_ht_areas_cut(struct ep_ht_areas *areas, const struct ep_shape *shape, uint32_t layout);

/* Selections of a row: experts of one rank. */
uint32_t ep_ht_width(const struct ep_shape *shape, uint32_t topk);

/* Where arrivals of such handles have their parts; `memory` may be NULL. Returns the bytes. */
uint64_t ep_ht_arrivals_layout(const struct ep_shape *shape, uint32_t topk, unsigned char *memory,
			       struct ep_ht_dev_arrivals *arrivals);

/* How arrivals cut the rings between ranks into chunks. */
void ep_ht_arrivals_cut(const struct ep_ht_areas *areas, const struct ep_shape *shape,
			uint32_t *chunk_shift, uint32_t *ring_chunks);

/* Rows of a tensor that holds whatever may come: tokens, or their places in zones. */
uint64_t ep_ht_most_rows(const struct ep_shape *shape, uint32_t layout, uint32_t topk,
			 uint64_t alignment);

/* ---- all that is decided about a launch. Arithmetic alone: no CUDA, no group ---- */

enum ep_ht_kind {
	EP_HT_ROUTE,
	EP_HT_DISPATCH,
	EP_HT_COMBINE
};

/* Limits of the device and of the group's config for one block, and for all of them. */
struct ep_ht_device {
	uint32_t max_blocks;
	bool auto_sms;         /* the caller leaves it to us how many of those an operation has */
	uint32_t shared_bytes; /* dynamic */
};

/* Input of a launch plan. */
struct ep_ht_operation {
	struct ep_shape shape;
	struct ep_ht_device device;
	enum ep_ht_kind kind;
	uint32_t layout; /* enum ep_ht_layout */
	uint32_t topk;
	uint32_t least_sms; /* that an operation of a rank may have; the same on all ranks */
	int send_warps;     /* asked for; -1: chosen, 0: all warps do both */
	bool overlap;       /* an operation has computation beside it: AUTO's SMs, and warps */
	bool direct;        /* rows go through windows, and nothing else goes with them */
	bool arrivals;      /* dispatch: in the order of experts, which are counted */
	bool lines;         /* rows may travel as lines, */
	bool lines_asked;   /* and do with few SMs, too */
	uint32_t row_bytes; /* with scales */
	uint32_t ring_chunks;
	uint32_t net_chunks; /* several nodes */
};

struct ep_ht_plan {
	uint32_t blocks;
	uint32_t threads;
	uint64_t shared_bytes; /* the device may have less: see ep_ht_plan_fits() */
	uint32_t parts;
	uint32_t part_bytes;
	uint32_t stage_parts;
	uint32_t lag;
	uint32_t send_blocks;     /* blocks in which the first warps only send, and */
	uint32_t send_warps;      /* so many of each, and the others only receive; 0: all do both */
	uint32_t sum_shift;       /* combine: a chunk's sums are of 1 << sum_shift pieces */
	struct ep_ht_lines lines; /* of no quads: rows go by rings */
};

struct ep_ht_plan ep_ht_plan_make(const struct ep_ht_operation *operation);

/* Whether any operation of the plan's kind can run on the device. */
bool ep_ht_plan_fits(const struct ep_ht_operation *operation, const struct ep_ht_plan *plan);

/* Chunks of operations of that layout have 1 << this tokens. */
uint32_t ep_ht_chunk_shift(const struct ep_shape *shape, uint32_t layout);

/* Has a heap of this shape room for rows that travel as lines? */
bool ep_ht_lines_fit(const struct ep_shape *shape);

/* And may they, in this group? */
bool ep_ht_lines(const struct ncclEpGroup *group);

/* Into how many parts, at most, rows are cut. */
uint32_t ep_ht_most_parts(const struct ep_shape *shape);

/* State of a group. */
struct ep_ht {
	uint32_t shared_bytes;    /* dynamic, of a block, at most */
	struct ep_ht_areas areas; /* of the heap */
	struct ep_ht_remote remote;
	const char *ring_why; /* the log has it: why the last dispatch was not direct, or NULL */
};

/* State of a handle. */
struct ep_ht_handle {
	struct ep_ht_dev_handle dev; /* as kernels see its memory */
	uint64_t stamp;              /* of routings that the handle can use */
	bool all_receive; /* eager mode: rows come to every rank, as the last dispatch has read */
	struct ep_ht_dev_arrivals arrivals;  /* of the next dispatch; head NULL: none */
	struct ep_ht_dev_arrivals captured;  /* likewise, of the next one in this capture: */
	unsigned long long arrivals_capture; /* others look past these */
};

/* ---- groups of several nodes: who forwards for whom ---- */

uint64_t ep_ht_nodes_bytes(const struct ep_shape *shape);
/* Fills group->ht->remote, and its tables in the group's memory, behind scratch. */
ncclResult_t ep_ht_nodes_bind(struct ncclEpGroup *group);

/* Where its memory begins: behind scratch. */
uint64_t ep_ht_group_scratch(const struct ep_shape *shape);

/* ---- operations ---- */

ncclResult_t ep_ht_kernels_open(struct ncclEpGroup *group);

/*
 * Reads the head of handle memory, when all that was launched before on the stream is over. Fails
 * if there is no routing of the handle's shape.
 */
ncclResult_t ep_ht_head_read(const struct ncclEpHandle *handle, struct ep_ht_head *head,
			     cudaStream_t stream, const char *name);

ncclResult_t ep_ht_update(struct ncclEpHandle *handle, const struct ep_view *ids,
			  const ncclEpLayoutInfo_t *info, cudaStream_t stream);
ncclResult_t ep_ht_dispatch(const struct ep_dispatch *dispatch, cudaStream_t stream);
ncclResult_t ep_ht_combine(const struct ep_combine *combine, cudaStream_t stream);
ncclResult_t ep_ht_arrivals_start(struct ncclEpHandle *handle, void *memory, size_t *bytes,
				  cudaStream_t stream);

#endif
