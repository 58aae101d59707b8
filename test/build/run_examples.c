/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the examples of the manual, each on two ranks with a group, a handle and a dispatch of its
 * own. manual.sh writes the source that is included below: the functions, with every call of the
 * API through expect(), and a table of them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <nccl_ep.h>
#include <nccl_ep/ext.h>

enum {
	RANKS = 2,
	TOKENS = 64,
	HIDDEN = 256,
	TOPK = 8,
	LOCAL = 8, /* experts of a rank */
	EXPERTS = RANKS * LOCAL
};

static ncclResult_t expect(const char *name, ncclResult_t result)
{
	const char *why = "";

	if (result != ncclSuccess) {
		(ncclEpExtGetLastError)(NULL, NULL, &why);
		printf("FAILED: %s: %d, %s\n", name, (int)result, why);
		exit(1);
	}
	return result;
}

#include "examples.c"

static void must(int ok, const char *name, const char *what)
{
	if (!ok) {
		printf("FAILED: %s: %s\n", name, what);
		exit(1);
	}
}

static void *device(const void *from, size_t bytes)
{
	void *to = NULL;

	must(cudaMalloc(&to, bytes) == cudaSuccess, "device memory", "none");
	must((from ? cudaMemcpy(to, from, bytes, cudaMemcpyDefault) : cudaMemset(to, 0, bytes)) ==
		     cudaSuccess,
	     "device memory", "not written");
	return to;
}

/* The tokens of a rank, and what examples get of it. */
struct scene {
	int32_t ids[TOKENS][TOPK];
	float weights[TOKENS][TOPK], x[TOKENS][HIDDEN], y[TOKENS][HIDDEN];
	int32_t counts[LOCAL];
};

static void paint(struct scene *s, int rank)
{
	for (int t = 0; t < TOKENS; t++) {
		for (int k = 0; k < TOPK; k++) {
			s->ids[t][k] = (rank + t + 2 * k) % EXPERTS;
			s->weights[t][k] =
				1.0f / TOPK; /* so that a combine gives back the tokens */
		}
		for (int h = 0; h < HIDDEN; h++) {
			s->x[t][h] = (float)(rank * 1000 + t * 8 + h % 8);
		}
	}
}

/* What an example must have left. */
static void judge(const struct example *example, struct scene *s, int rank, const ncclEpTensor_t *y,
		  const ncclEpTensor_t *counts)
{
	int sum = 0;

	if (strcmp(example->name, "ncclEpCombine") == 0 ||
	    strcmp(example->name, "ncclEpComplete") == 0) {
		must(cudaMemcpy(s->y, y->data, sizeof(s->y), cudaMemcpyDefault) == cudaSuccess,
		     example->name, "no tokens");
		must(memcmp(s->x, s->y, sizeof(s->x)) == 0, example->name,
		     "the tokens are not back");
	}
	if (strcmp(example->name, "ncclEpDispatch") == 0) {
		must(cudaMemcpy(s->counts, counts->data, sizeof(s->counts), cudaMemcpyDefault) ==
			     cudaSuccess,
		     example->name, "no counts");
		for (int e = 0; e < LOCAL; e++) {
			sum += s->counts[e];
		}
		must(sum == RANKS * TOKENS * TOPK / RANKS, example->name, "the counts are wrong");
	}
	printf("done: %s on rank %d\n", example->name, rank);
}

static void run(const struct example *example, ncclComm_t comm, int rank)
{
	struct scene *s = calloc(1, sizeof(*s));
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	ncclEpHandle_t handle;
	ncclEpGroup_t group;
	cudaStream_t stream;
	ncclResult_t code = ncclSuccess;
	const char *why = "";

	must(s && cudaSetDevice(rank) == cudaSuccess && cudaStreamCreate(&stream) == cudaSuccess,
	     "rank", "no GPU");
	paint(s, rank);
	void *memory = device(NULL, TOKENS * TOPK * sizeof(int64_t));
	ncclEpTensor_t topk_idx = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 2, .datatype = ncclInt32,
				    .data = device(s->ids, sizeof(s->ids)),
				    .sizes = (size_t[]){ TOKENS, TOPK } };
	ncclEpTensor_t weights = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 2, .datatype = ncclFloat32,
				   .data = device(s->weights, sizeof(s->weights)),
				   .sizes = (size_t[]){ TOKENS, TOPK } };
	ncclEpTensor_t x = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 2, .datatype = ncclFloat32,
			     .data = device(s->x, sizeof(s->x)),
			     .sizes = (size_t[]){ TOKENS, HIDDEN } };
	ncclEpTensor_t y = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 2, .datatype = ncclFloat32,
			     .data = device(NULL, sizeof(s->y)),
			     .sizes = (size_t[]){ TOKENS, HIDDEN } };
	ncclEpTensor_t rows = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 3, .datatype = ncclFloat32,
				.data = device(NULL, LOCAL * RANKS * sizeof(s->x)),
				.sizes = (size_t[]){ LOCAL, RANKS * TOKENS, HIDDEN } };
	ncclEpTensor_t counts = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 1, .datatype = ncclInt32,
				  .data = device(NULL, sizeof(s->counts)),
				  .sizes = (size_t[]){ LOCAL } };

	config.num_experts = EXPERTS, config.max_dispatch_tokens_per_rank = TOKENS;
	config.max_token_bytes = HIDDEN * sizeof(float), config.num_topk = TOPK,
	config.enable_mask = 1;
	ncclEpCreateGroup(&group, comm, &config);
	ncclEpCreateHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, &topk_idx, NULL, NULL,
			   stream);
	in.tokens = &x, out.tokens = &rows, info.expert_counters = &counts;
	ncclEpDispatch(handle, &in, &out, &info, NULL, stream);
	example->run(comm, group, handle, stream, rank, RANKS, memory, topk_idx, weights, x, y,
		     rows, counts);
	must(cudaDeviceSynchronize() == cudaSuccess && cudaGetLastError() == cudaSuccess,
	     example->name, "a CUDA error");
	judge(example, s, rank, &y, &counts);
	if (strcmp(example->name, "ncclEpGroupDestroy") != 0) {
		ncclEpExtGetLastError(group, &code, &why);
		must(code == ncclSuccess, example->name, why);
		ncclEpGroupDestroy(group);
	}
	free(s);
}

int main(void)
{
	ncclComm_t comms[RANKS];

	must(ncclCommInitAll(comms, RANKS, NULL) == ncclSuccess, "ncclCommInitAll",
	     "no communicators");
	for (size_t i = 0; i < sizeof(examples) / sizeof(examples[0]); i++) {
#pragma omp parallel for num_threads(RANKS)
		for (int rank = 0; rank < RANKS; rank++) {
			run(&examples[i], comms[rank], rank);
		}
	}
	return 0;
}
