/* SPDX-License-Identifier: Apache-2.0 */
/* The memory of tensors, and their descriptors for the library. */
#include "perf.h"

int perf_device_memory(struct perf_rank *rank, void **at, size_t bytes)
{
	*at = NULL;
	if (bytes == 0) {
		return 0;
	}
	if (cudaMalloc(at, bytes) != cudaSuccess) {
		cudaGetLastError();
		snprintf(rank->failure, sizeof(rank->failure),
			 "no device memory for %zu MiB of tensors", bytes >> 20);
		return -1;
	}
	return 0;
}

/* The same, in a window of all ranks if the run is to use windows. */
int perf_window_memory(struct perf_rank *rank, void **at, ncclWindow_t *window, size_t bytes)
{
	if (!rank->perf->opt.windows || bytes == 0) {
		return perf_device_memory(rank, at, bytes);
	}
	if (ncclMemAlloc(at, bytes) != ncclSuccess) {
		*at = NULL;
		snprintf(rank->failure, sizeof(rank->failure), "ncclMemAlloc of %zu MiB: %.150s",
			 bytes >> 20, ncclGetLastError(NULL));
		return -1;
	}
	if (ncclCommWindowRegister(rank->comm, *at, bytes, window, 0) != ncclSuccess || !*window) {
		*window = NULL;
		PERF_NCCL(rank, ncclMemFree(*at));
		*at = NULL;
		snprintf(rank->failure, sizeof(rank->failure),
			 "ncclCommWindowRegister gives no window");
		return -1;
	}
	return 0;
}

void perf_poison(struct perf_rank *rank, void *at, size_t bytes)
{
	if (bytes) {
		PERF_CUDA(rank, cudaMemsetAsync(at, ORACLE_POISON, bytes, rank->stream));
	}
}

ncclEpTensor_t *perf_tensor(struct perf_tensor *tensor, ncclDataType_t type, void *data,
			    unsigned int ndim, size_t n0, size_t n1, size_t n2)
{
	tensor->t = NCCL_EP_TENSOR_INIT;
	tensor->sizes[0] = n0;
	tensor->sizes[1] = n1;
	tensor->sizes[2] = n2;
	tensor->t.ndim = ndim;
	tensor->t.datatype = type;
	tensor->t.data = data;
	tensor->t.sizes = tensor->sizes;
	return &tensor->t;
}

ncclDataType_t perf_float_type(enum oracle_dtype dtype)
{
	return dtype == ORACLE_BF16 ? ncclBfloat16
				    : (dtype == ORACLE_FP16 ? ncclFloat16 : ncclFloat32);
}
