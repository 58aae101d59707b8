/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput: what its files share. ht.c has the table of functions. */
#ifndef EP_EP_HT_HT_H
#define EP_EP_HT_HT_H

#include "ep/combine.h"
#include "ep/dispatch.h"
#include "ep/ht/ht_heap.h"
#include "ep/ht/ht_plan.h"

/* State of a group. */
struct ep_ht {
	struct ep_ht_device device;
	struct ep_ht_areas areas; /* of the heap */
	struct ep_ht_remote remote;
	const char *ring_why; /* the log has it: why the last dispatch was not direct, or NULL */
};

/* State of a handle. */
struct ep_ht_handle {
	struct ep_ht_dev_handle dev; /* as kernels see its memory */
	uint64_t stamp;              /* of routings that the handle can use */
	bool all_receive; /* eager mode: rows come to every rank, as the last dispatch has read */
};

/* ---- ht_check.c: what high throughput wants besides, put into the arguments ---- */

ncclResult_t ep_ht_config_check(const ncclEpGroupConfig_t *config, uint32_t nranks);
ncclResult_t ep_ht_handle_check(const struct ep_group_config *config, ncclEpLayout_t layout,
				const ncclEpHandleConfig_t *handle, uint32_t topk);
ncclResult_t ep_ht_update_check(const struct ncclEpHandle *handle, const ncclEpLayoutInfo_t *info,
				struct ep_ht_route_args *args);
/* May wait for the stream: see ep_ht_head_read(). */
ncclResult_t ep_ht_dispatch_check(const struct ep_dispatch *dispatch,
				  struct ep_ht_dispatch_args *args, cudaStream_t stream);
ncclResult_t ep_ht_combine_check(const struct ep_combine *combine, struct ep_ht_combine_args *args);

/* ---- ht_nodes.c: who forwards for whom ---- */

uint64_t ep_ht_nodes_bytes(const struct ep_shape *shape);
/* Fills group->ht->remote, and its tables in the group's memory, behind scratch. */
ncclResult_t ep_ht_nodes_bind(struct ncclEpGroup *group);

/* ---- direct.c ---- */

/*
 * Where all ranks have the rows that move, if these are in a window: *direct is whether the
 * operation goes straight there. ncclInvalidArgument: zero_copy is ON and the window is of no use.
 */
ncclResult_t ep_ht_dispatch_direct(const struct ep_dispatch *dispatch,
				   struct ep_ht_dispatch_args *args, bool *direct);
ncclResult_t ep_ht_combine_direct(const struct ep_combine *combine, struct ep_ht_combine_args *args,
				  bool *direct);

/* ---- ht_launch.c ---- */

ncclResult_t ep_ht_kernels_open(struct ncclEpGroup *group);

/*
 * Reads the head of handle memory, when all that was launched before on the stream is over. Fails if
 * there is no routing of the handle's shape.
 */
ncclResult_t ep_ht_head_read(const struct ncclEpHandle *handle, struct ep_ht_head *head,
			     cudaStream_t stream, const char *name);

ncclResult_t ep_ht_update(struct ncclEpHandle *handle, const struct ep_view *ids,
			  const ncclEpLayoutInfo_t *info, cudaStream_t stream);
ncclResult_t ep_ht_dispatch(const struct ep_dispatch *dispatch, cudaStream_t stream);
ncclResult_t ep_ht_combine(const struct ep_combine *combine, cudaStream_t stream);

#endif
