/* SPDX-License-Identifier: Apache-2.0 */
/* Answers to the calls of nccl_ep/ext.h. */
#ifndef EP_EP_QUERY_H
#define EP_EP_QUERY_H

#include "core/error.h"
#include "nccl_ep/ext.h"

/* The last error of `slot`, or of the thread. *text stays until the thread asks again. */
ncclResult_t ep_query_error(struct ep_error_slot *slot, ncclResult_t *code, const char **text);

ncclResult_t ep_query_memory(const ncclEpGroupConfig_t *config, int nranks, ncclEpLayout_t layout,
			     int num_topk, ncclEpExtMemory_t *memory);

struct ep_group_config;
ncclResult_t ep_query_size(struct ep_group_config *made, const ncclEpGroupConfig_t *config,
			   int nranks, ncclEpLayout_t layout, int num_topk,
			   const ncclEpHandleConfig_t *handle, ncclEpExtMemory_t *memory);

ncclResult_t ep_query_received(struct ncclEpHandle *handle, uint64_t *tokens, uint64_t *rows,
			       cudaStream_t stream);

/* Adds the rows of the handle's routing to rows[]. */
ncclResult_t ep_query_expert_rows(const struct ncclEpHandle *handle, uint64_t *rows,
				  cudaStream_t stream);

ncclResult_t ep_query_stats(struct ncclEpGroup *group, ncclEpExtPeerStats_t *stats, int count,
			    cudaStream_t stream);

#endif
