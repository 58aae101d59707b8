/* SPDX-License-Identifier: Apache-2.0 */
/* A combine: imported, then checked as far as it is the same for all algorithms. */
#ifndef EP_EP_COMBINE_H
#define EP_EP_COMBINE_H

#include "ep/objects.h"

struct ep_combine {
	struct ncclEpHandle *h;
	ncclEpCombineInputs_t in;
	ncclEpCombineOutputs_t out;
	ncclEpCombineConfig_t config;

	/* Filled by checking. */
	uint32_t num_tokens;
	struct ep_view tokens;
	struct ep_view out_tokens;
	uint32_t token_bytes; /* one row of both */
};

/*
 * Imports the arguments and checks what is the same for all algorithms. The algorithm's own combine checks the
 * rest and launches.
 */
ncclResult_t ep_combine_run(struct ncclEpHandle *handle, const ncclEpCombineInputs_t *inputs,
			    const ncclEpCombineOutputs_t *outputs,
			    const ncclEpCombineConfig_t *config, cudaStream_t stream);

#endif
