/* SPDX-License-Identifier: Apache-2.0 */
/* A dispatch: imported, then checked as far as it is the same for all algorithms. */
#ifndef EP_EP_DISPATCH_H
#define EP_EP_DISPATCH_H

#include "ep/objects.h"

struct ep_dispatch {
	struct ncclEpHandle *h;
	ncclEpDispatchInputs_t in;
	ncclEpDispatchOutputs_t out;
	ncclEpLayoutInfo_t info; /* size 0: none */
	ncclEpDispatchConfig_t config;

	/* Filled by checking. */
	bool v1; /* the caller's config does not know recipes */
	ncclEpDispQuant_t recipe;
	uint32_t num_tokens;
	struct ep_view tokens;
	struct ep_view out_tokens;
	struct ep_view scales; /* recipe FWD */
	struct ep_view out_scales;
	uint32_t token_bytes; /* one row of each of these, 0 for those that there are not */
	uint32_t out_token_bytes;
	uint32_t scale_bytes;
	uint32_t hidden; /* elements of a token that is quantised, or 0 */
};

/*
 * Imports the arguments and checks what is the same for all algorithms. The algorithm's own dispatch checks the
 * rest and launches. Expert ids are checked by the kernel.
 */
ncclResult_t ep_dispatch_run(struct ncclEpHandle *handle, const ncclEpDispatchInputs_t *inputs,
			     const ncclEpDispatchOutputs_t *outputs,
			     const ncclEpLayoutInfo_t *layout_info,
			     const ncclEpDispatchConfig_t *config, cudaStream_t stream);

#endif
