/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Preloaded into ep_perf: the library as it would be with a mistake, to see it found. CORRUPT is
 * "dispatch" or "combine": after every call of it one byte of its output is overwritten. High
 * throughput has "weights", "gradients" and "routing", too.
 */
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include "nccl_ep.h"

static int wanted(const char *what)
{
	const char *text = getenv("CORRUPT");

	return text && !strcmp(text, what);
}

static void spoil(const ncclEpTensor_t *tensor, cudaStream_t stream)
{
	if (tensor && tensor->data && tensor->sizes[0]) {
		cudaMemsetAsync((char *)tensor->data + 9, 0x5b, 1, stream);
	}
}

ncclResult_t ncclEpUpdateHandle(ncclEpHandle_t handle, const ncclEpTensor_t *topk_idx,
				const ncclEpLayoutInfo_t *layout_info, cudaStream_t stream)
{
	__typeof__(&ncclEpUpdateHandle) real = dlsym(RTLD_NEXT, "ncclEpUpdateHandle");
	ncclResult_t result = real(handle, topk_idx, layout_info, stream);

	if (wanted("routing") && layout_info) {
		spoil(layout_info->expert_counters, stream);
	}
	return result;
}

ncclResult_t ncclEpDispatch(ncclEpHandle_t handle, const ncclEpDispatchInputs_t *inputs,
			    const ncclEpDispatchOutputs_t *outputs,
			    const ncclEpLayoutInfo_t *layout_info,
			    const ncclEpDispatchConfig_t *config, cudaStream_t stream)
{
	__typeof__(&ncclEpDispatch) real = dlsym(RTLD_NEXT, "ncclEpDispatch");
	ncclResult_t result = real(handle, inputs, outputs, layout_info, config, stream);

	if (wanted("dispatch")) {
		spoil(outputs->tokens, stream);
	}
	if (wanted("weights")) {
		spoil(outputs->topk_weights, stream);
	}
	return result;
}

ncclResult_t ncclEpCombine(ncclEpHandle_t handle, const ncclEpCombineInputs_t *inputs,
			   const ncclEpCombineOutputs_t *outputs,
			   const ncclEpCombineConfig_t *config, cudaStream_t stream)
{
	__typeof__(&ncclEpCombine) real = dlsym(RTLD_NEXT, "ncclEpCombine");
	ncclResult_t result = real(handle, inputs, outputs, config, stream);

	if (wanted("combine")) {
		spoil(outputs->tokens, stream);
	}
	if (wanted("gradients")) {
		spoil(outputs->topk_weights, stream);
	}
	return result;
}
