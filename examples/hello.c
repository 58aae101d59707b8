/* SPDX-License-Identifier: Apache-2.0 */
/* One thread per GPU: each rank sends every token to two experts and gets the tokens back. */
#include <nccl_ep.h>
#include <nccl_ep/ext.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#define CHECK(call)                                                                                \
	if ((call) != 0)                                                                           \
	fail(#call)
#define TENSOR(type, ptr, n, ...)                                                                  \
	{                                                                                          \
		NCCL_EP_TENSOR_INIT_INLINE, n, type, ptr, NULL, 0, (size_t[])                      \
		{                                                                                  \
			__VA_ARGS__                                                                \
		}                                                                                  \
	}
/* tokens of a rank, elements of a token, experts of a token, experts of a rank */
enum {
	T = 64,
	H = 1024,
	K = 2,
	L = 4
};

/* Prints why a call failed and what to do, in one line. NCCL_DEBUG=WARN logs the same line. */
static void fail(const char *call)
{
	const char *why;

	ncclEpExtGetLastError(NULL, NULL, &why);
	fprintf(stderr, "failed: %s; CUDA: %s; %s\n", call, cudaGetErrorString(cudaGetLastError()),
		why);
	exit(1);
}

/* Returns device memory with a copy of host memory, or as it is if `from` is NULL. */
static void *gpu(const void *from, size_t bytes)
{
	void *p;
	CHECK(cudaMalloc(&p, bytes) || (from && cudaMemcpy(p, from, bytes, cudaMemcpyDefault)));
	return p;
}

static void run(ncclComm_t comm, int rank, int ranks)
{
	static float x[8][T][H], y[8][T][H], w[T][K] = { [0 ... T - 1] = { 0.5f, 0.5f } };
	int32_t ids[T][K];
	for (int t = 0; t < T; t++) {
		ids[t][0] = (rank + t) % (ranks * L), ids[t][1] = (rank + t * 3 + 1) % (ranks * L);
		for (int h = 0; h < H; h++)
			x[rank][t][h] = rank * 1000 + t + h / 1024.0f;
	}
	CHECK(cudaSetDevice(rank));
	ncclEpTensor_t topk = TENSOR(ncclInt32, gpu(ids, sizeof(ids)), 2, T, K);
	ncclEpTensor_t weights = TENSOR(ncclFloat32, gpu(w, sizeof(w)), 2, T, K);
	ncclEpTensor_t tokens = TENSOR(ncclFloat32, gpu(x[rank], sizeof(x[0])), 2, T, H);
	ncclEpTensor_t sums = TENSOR(ncclFloat32, gpu(NULL, sizeof(x[0])), 2, T, H);
	ncclEpTensor_t counts = TENSOR(ncclInt32, gpu(NULL, L * sizeof(int)), 1, L);
	void *space =
		gpu(NULL, L * ranks * sizeof(x[0])); /* room for every token at every expert */
	ncclEpTensor_t rows = TENSOR(ncclFloat32, space, 3, L, ranks * T, H);

	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT; /* algorithm 0 is low latency */
	config.num_experts = ranks * L;
	config.max_dispatch_tokens_per_rank = T;
	config.max_token_bytes = H * sizeof(float);
	ncclEpGroup_t group; /* once */
	CHECK(ncclEpCreateGroup(&group, comm, &config));
	ncclEpHandle_t handle; /* once per routing */
	CHECK(ncclEpCreateHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, &topk, NULL, NULL,
				 0));

	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	in.tokens = &tokens, out.tokens = &rows, info.expert_counters = &counts;
	CHECK(ncclEpDispatch(handle, &in, &out, &info, NULL, 0));
	/* Local expert e has the rows [e][0] to [e][counts[e] - 1]. Here the experts would run. */
	ncclEpCombineInputs_t results = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t combined = NCCL_EP_COMBINE_OUTPUTS_INIT;
	results.tokens = &rows, combined.tokens = &sums, combined.topk_weights = &weights;
	CHECK(ncclEpCombine(handle, &results, &combined, NULL, 0));

	CHECK(cudaMemcpy(y[rank], sums.data, sizeof(y[0]), cudaMemcpyDefault));
	int same = memcmp(x[rank], y[rank], sizeof(x[0])) == 0;
	printf("rank %d: %s\n", rank, same ? "all tokens are back" : "WRONG");
	CHECK(ncclEpHandleDestroy(handle) || ncclEpGroupDestroy(group) || !same);
	CHECK(ncclCommDestroy(comm));
}

int main(void)
{ /* one thread per GPU; examples/processes.c has one process per GPU */
	int n;
	ncclComm_t comms[8];
	CHECK(cudaGetDeviceCount(&n));
	CHECK(ncclCommInitAll(comms, n = n < 8 ? n : 8, NULL));
#pragma omp parallel for num_threads(n)
	for (int rank = 0; rank < n; rank++)
		run(comms[rank], rank, n);
}
