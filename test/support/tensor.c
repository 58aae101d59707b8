/* SPDX-License-Identifier: Apache-2.0 */
#include "support/tensor.h"

ncclDataType_t tensor_float(enum oracle_dtype dtype)
{
	return dtype == ORACLE_BF16 ? ncclBfloat16
				    : (dtype == ORACLE_FP16 ? ncclFloat16 : ncclFloat32);
}

static void begin(struct bench_tensor *d, size_t bytes, size_t guard)
{
	memset(d, 0, sizeof(*d));
	d->t = NCCL_EP_TENSOR_INIT;
	d->t.sizes = d->sizes;
	d->bytes = bytes;
	d->guard = guard;
}

void tensor_allocate(struct bench_tensor *d, size_t bytes)
{
	begin(d, bytes, TENSOR_GUARD);
	NEED_CUDA(cudaMalloc((void **)&d->data, bytes + d->guard));
	d->t.data = d->data;
	tensor_poison(d);
}

void tensor_allocate_window(struct world *w, struct bench_tensor *d, size_t before, size_t bytes,
			    size_t guard)
{
	size_t size = before + bytes + guard;

	begin(d, bytes, guard);
	NEED_OK(ncclMemAlloc(&d->memory, size));
	NEED_OK(ncclCommWindowRegister(w->comm, d->memory, size, &d->window, 0));
	d->t.win_hdl = d->window;
	d->t.win_offset = before;
	d->t.data = d->data = (char *)d->memory + before;
	tensor_poison(d);
}

void tensor_move_window(struct world *w, struct bench_tensor *d)
{
	size_t before = (size_t)(d->data - (char *)d->memory), size = before + d->bytes + d->guard;
	void *old = d->memory;

	NEED_OK(ncclMemAlloc(&d->memory, size));
	NEED_OK(ncclCommWindowDeregister(w->comm, d->window));
	NEED_OK(ncclCommWindowRegister(w->comm, d->memory, size, &d->window, 0));
	NEED_OK(ncclMemFree(old));
	d->t.win_hdl = d->window;
	d->data = (char *)d->memory + before;
	d->t.data = d->t.data ? d->data : NULL;
	tensor_poison(d);
}

void tensor_release(struct world *w, struct bench_tensor *d)
{
	if (d->window) {
		NEED_OK(ncclCommWindowDeregister(w->comm, d->window));
	}
	if (d->memory) { /* also where NCCL has made no window of it */
		NEED_OK(ncclMemFree(d->memory));
	} else if (d->data) {
		NEED_CUDA(cudaFree(d->data));
	}
	memset(d, 0, sizeof(*d));
}

void tensor_describe(struct bench_tensor *d, ncclDataType_t type, unsigned int ndim, size_t n0,
		     size_t n1, size_t n2)
{
	d->sizes[0] = n0;
	d->sizes[1] = n1;
	d->sizes[2] = n2;
	d->t.ndim = ndim;
	d->t.datatype = type;
}

void tensor_poison(struct bench_tensor *d)
{
	NEED_CUDA(cudaMemset(d->data, ORACLE_POISON, d->bytes + d->guard));
	NEED_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
}

void *tensor_fetch(const struct bench_tensor *d)
{
	void *host = malloc(d->bytes + d->guard + 1);

	NEED(host);
	NEED_CUDA(cudaMemcpy(host, d->data, d->bytes + d->guard, cudaMemcpyDeviceToHost));
	return host;
}

void tensor_upload(struct bench_tensor *d, const void *host, size_t bytes)
{
	if (bytes) {
		NEED_CUDA(cudaMemcpy(d->data, host, bytes, cudaMemcpyHostToDevice));
	}
}

static void load_routing(const struct tensor_inputs *in, const struct oracle_problem *p,
			 uint32_t rank, uint32_t tokens)
{
	size_t n = (size_t)tokens * p->topk;
	int64_t *wide = calloc(n + 1, sizeof(*wide));
	int32_t *ids = calloc(n + ORACLE_MAX_TOPK, sizeof(*ids));
	float *weights = calloc(n + 1, sizeof(*weights));

	NEED(ids && wide && weights);
	for (uint32_t t = 0; t < tokens; t++) {
		oracle_route(p, rank, t, ids + (size_t)t * p->topk);
		oracle_weights(p, rank, t, weights + (size_t)t * p->topk);
	}
	for (size_t i = 0; i < n; i++) {
		wide[i] = ids[i];
		if (ids[i] < 0 && p->layout != ORACLE_RANK_MAJOR) { /* which sends them on */
			memset(weights + i, ORACLE_UNREAD, sizeof(*weights));
		}
	}
	tensor_upload(in->ids, in->ids64 ? (void *)wide : ids, n * (in->ids64 ? 8 : 4));
	tensor_upload(in->weights, weights, n * sizeof(*weights));
	free(weights);
	free(ids);
	free(wide);
}

void tensor_load(const struct tensor_inputs *in, const struct oracle_problem *p, uint32_t rank,
		 uint32_t tokens)
{
	size_t row = oracle_input_bytes(p);
	size_t n = p->quant == ORACLE_QUANT_FORWARD ? oracle_scale_words(p) : 0;
	char *rows = malloc(tokens * row + 1);
	float *scales = calloc(tokens * n + 1, sizeof(*scales));

	NEED(rows && scales);
	for (uint32_t t = 0; t < tokens; t++) {
		oracle_input_row(p, rank, t, rows + t * row);
		if (n) {
			oracle_input_scales(p, rank, t, scales + t * n);
		}
	}
	tensor_upload(in->rows, rows, tokens * row);
	tensor_upload(in->scales, scales, tokens * n * sizeof(*scales));
	if (p->quant == ORACLE_QUANT_NVFP4) {
		*scales = oracle_global_scale(p, rank);
		tensor_upload(in->scales, scales, sizeof(*scales));
	}
	free(scales);
	free(rows);
	load_routing(in, p, rank, tokens);
}
