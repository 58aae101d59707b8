/* SPDX-License-Identifier: Apache-2.0 */
/* Makes, routes and ends handles, and checks their routing for operations. */
#ifndef EP_EP_HANDLE_H
#define EP_EP_HANDLE_H

#include "ep/objects.h"

/* Whether these are possible; handle NULL: all of it AUTO. Shared with the memory query. */
ncclResult_t ep_handle_check(const struct ep_group_config *config, ncclEpLayout_t layout,
			     const ncclEpHandleConfig_t *handle, int num_topk);

/* The calls of these names, inside the group. */
ncclResult_t ep_handle_mem_size(const struct ncclEpGroup *group, ncclEpLayout_t layout,
				const ncclEpHandleConfig_t *config, size_t *size_out, int num_topk);
ncclResult_t ep_handle_init(struct ncclEpHandle **out, struct ncclEpGroup *group,
			    ncclEpLayout_t layout, const ncclEpHandleConfig_t *config, int num_topk,
			    const ncclEpTensor_t *handle_mem);
ncclResult_t ep_handle_update(struct ncclEpHandle *handle, const ncclEpTensor_t *topk_idx,
			      const ncclEpLayoutInfo_t *layout_info, cudaStream_t stream);
ncclResult_t ep_handle_create(struct ncclEpHandle **out, struct ncclEpGroup *group,
			      ncclEpLayout_t layout, const ncclEpTensor_t *topk_idx,
			      const ncclEpLayoutInfo_t *layout_info,
			      const ncclEpHandleConfig_t *config, cudaStream_t stream);
ncclResult_t ep_handle_destroy(struct ncclEpHandle *handle);
/* The same for a handle without a group, outside any group. */
void ep_handle_free_orphan(struct ncclEpHandle *handle);

/* That the handle has a routing, or can have one of the caller's handle_mem. */
ncclResult_t ep_handle_check_routed(const struct ncclEpHandle *handle, const char *name);

/* The tokens of the handle's routing: those of `view` if only the device knows. */
ncclResult_t ep_handle_check_tokens(const struct ncclEpHandle *handle, const struct ep_view *view,
				    uint32_t *num_tokens, const char *name);

/* Returns the receipt of a dispatch of so many tokens, and whether a receipt is of this handle. */
uint64_t ep_handle_receipt_id(const struct ncclEpHandle *handle, uint32_t num_tokens);
bool ep_handle_receipt_mine(const struct ncclEpHandle *handle,
			    const struct ep_dev_receipt *receipt);

/* That the leading extents of a tensor with received rows are those of the layout. */
ncclResult_t ep_received_expect(const struct ep_received *received, const struct ep_view *view,
				const char *name);

#endif
