/* SPDX-License-Identifier: Apache-2.0 */
/* Low latency: what its files share. ll_algo.c has the table of functions. */
#ifndef EP_EP_LL_LL_H
#define EP_EP_LL_LL_H

#include "core/param.h"
#include "ep/combine.h"
#include "ep/dispatch.h"
#include "ep/ll/ll_plan.h"

/* Whose input it is: see ep_ll_source_choose(). */
enum ep_ll_source_of {
	EP_LL_SOURCE_DISPATCH,
	EP_LL_SOURCE_COMBINE,
	EP_LL_SOURCES
};

/* State of a group. */
struct ep_ll {
	struct ep_ll_geometry geometry;
	struct ep_ll_areas areas; /* of the heap */
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

ncclResult_t ep_ll_geometry_make(struct ep_ll_geometry *out, const struct ep_params *params,
				 uint32_t max_sms, uint32_t sm_count);

/* ---- ll_check.c: what the layouts of low latency want, put into the arguments ---- */

ncclResult_t ep_ll_dispatch_check(const struct ep_dispatch *dispatch,
				  struct ep_ll_dispatch_args *args);
ncclResult_t ep_ll_combine_check(const struct ep_combine *combine, struct ep_ll_combine_args *args);

/* ---- ll_source.c ---- */

/*
 * Fills *out, which is zero, if NICs shall read rows of `row_bytes` from the tensor of `view`, the input
 * of a dispatch or combine. The kernel then waits for the NICs; a send half alone shall be short, so its
 * rows are copied.
 */
void ep_ll_source_choose(struct ncclEpGroup *group, enum ep_ll_source_of of,
			 const ncclEpTensor_t *tensor, const struct ep_view *view,
			 uint32_t row_bytes, bool send_only, struct ep_mlx5_source *out);

/* ---- ll_launch.c ---- */

ncclResult_t ep_ll_kernels_open(struct ep_ll *ll, int device);

/* Whether shared memory has room for dispatches of the handle's top-k. */
ncclResult_t ep_ll_shared_check(const struct ncclEpHandle *handle);

ncclResult_t ep_ll_dispatch(const struct ep_dispatch *dispatch, cudaStream_t stream);
ncclResult_t ep_ll_combine(const struct ep_combine *combine, cudaStream_t stream);
ncclResult_t ep_ll_complete(struct ncclEpHandle *handle, cudaStream_t stream);

#endif
