// SPDX-License-Identifier: Apache-2.0
/* The memory of tensors, and what the library is told of them. */
#include "perf.h"

int perf_device_memory(struct perf_rank *r, void **at, size_t bytes)
{
	*at = NULL;
	if (bytes == 0) {
		return 0;
	}
	if (cudaMalloc(at, bytes) != cudaSuccess) {
		cudaGetLastError();
		snprintf(r->failure, sizeof(r->failure), "no device memory for %zu MiB of tensors",
			 bytes >> 20);
		return -1;
	}
	return 0;
}

/* The same, in a window of all ranks if the run is to use windows. */
int perf_window_memory(struct perf_rank *r, void **at, ncclWindow_t *window, size_t bytes)
{
	if (!r->perf->opt.windows || bytes == 0) {
		return perf_device_memory(r, at, bytes);
	}
	if (ncclMemAlloc(at, bytes) != ncclSuccess) {
		*at = NULL;
		snprintf(r->failure, sizeof(r->failure), "ncclMemAlloc of %zu MiB: %.150s",
			 bytes >> 20, ncclGetLastError(NULL));
		return -1;
	}
	if (ncclCommWindowRegister(r->comm, *at, bytes, window, 0) != ncclSuccess || !*window) {
		*window = NULL;
		snprintf(r->failure, sizeof(r->failure), "ncclCommWindowRegister gives no window");
		return -1;
	}
	return 0;
}

void perf_poison(struct perf_rank *r, void *at, size_t bytes)
{
	if (bytes) {
		PERF_CUDA(r, cudaMemsetAsync(at, ORACLE_POISON, bytes, r->stream));
	}
}

ncclEpTensor_t *perf_tensor(struct perf_tensor *d, ncclDataType_t type, void *data,
			    unsigned int ndim, size_t n0, size_t n1, size_t n2)
{
	d->t = NCCL_EP_TENSOR_INIT;
	d->sizes[0] = n0;
	d->sizes[1] = n1;
	d->sizes[2] = n2;
	d->t.ndim = ndim;
	d->t.datatype = type;
	d->t.data = data;
	d->t.sizes = d->sizes;
	return &d->t;
}

ncclDataType_t perf_float_type(enum oracle_dtype dtype)
{
	return dtype == ORACLE_BF16 ? ncclBfloat16
				    : (dtype == ORACLE_FP16 ? ncclFloat16 : ncclFloat32);
}
