/* SPDX-License-Identifier: Apache-2.0 */
/* Reads device memory when a stream is over. */
#include <stdlib.h>
#include "core/cuda.h"
#include "core/log.h"
#include "ep/ep.h"

/*
 * The driver holds a lock of the context while a copy to such memory waits for the stream. A rank that shares
 * this GPU and process could not launch what the stream waits for, so nothing is copied before that has come.
 */
ncclResult_t ep_query_read(void *host, const void *dev, size_t bytes, cudaStream_t stream)
{
	EP_CUDA(cudaStreamSynchronize(stream), "waiting for the stream");
	EP_CUDA(cudaMemcpyAsync(host, dev, bytes, cudaMemcpyDeviceToHost, stream),
		"reading device memory");
	EP_CUDA(cudaStreamSynchronize(stream), "reading device memory");
	return ncclSuccess;
}

ncclResult_t ep_query_sum(const uint32_t *dev, uint32_t n, uint64_t *sum, cudaStream_t stream)
{
	uint32_t *host = malloc(n * sizeof(*host));
	ncclResult_t result;

	if (!host) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	*sum = 0;
	EP_CHECK_GOTO(ep_query_read(host, dev, n * sizeof(*host), stream), out);
	for (uint32_t i = 0; i < n; i++) {
		*sum += host[i];
	}
out:
	free(host);
	return result;
}
