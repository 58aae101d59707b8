/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_EP_QUERY_READ_H
#define EP_EP_QUERY_READ_H

#include "core/error.h"
#include "nccl_ep.h"

/* Copies from the device in the order of the stream, and waits. */
ncclResult_t ep_query_read(void *host, const void *dev, size_t bytes, cudaStream_t stream);
/* The sum of n numbers there. */
ncclResult_t ep_query_sum(const uint32_t *dev, uint32_t n, uint64_t *sum, cudaStream_t stream);

#endif
