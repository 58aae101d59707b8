/* SPDX-License-Identifier: Apache-2.0 */
/* NCCL's device API over a network: an all-to-all that GPU threads put themselves (GIN). */
#ifndef TOOLS_PERF_GIN_H
#define TOOLS_PERF_GIN_H

#include <nccl.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Collective. `bytes` of each buffer become windows of this communicator. The buffers are ncclMemAlloc's. */
ncclResult_t gin_open(ncclComm_t comm, void *from, void *to, size_t bytes);

/* Collective: `bytes` from piece p of `from` to this rank's piece of `to` at every rank p. A multiple of 4. */
cudaError_t gin_all_to_all(size_t bytes, cudaStream_t stream);

/* Collective. */
ncclResult_t gin_close(ncclComm_t comm);

#ifdef __cplusplus
}
#endif

#endif
