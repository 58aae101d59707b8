/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dispatch and combine with one process per GPU, from the public headers alone.
 *
 *     cc processes.c -o processes $(pkg-config --cflags --libs nccl-ep)
 *     torchrun --no-python --nproc-per-node 8 ./processes id-file
 *
 * A launcher sets RANK, WORLD_SIZE and LOCAL_RANK. `id-file` must not exist yet: rank 0 writes
 * NCCL's unique id to it, and the other ranks read it there. A second argument `rm` selects the
 * rank-major layout.
 */
#include "common.h"

enum {
	T = 16,
	H = 256,
	K = 2,
	L = 4
}; /* tokens, elements of a token, experts of a token, experts of a rank */

static float tokens[T][H], weights[T][K], sums[T][H];
static int64_t ids[T][K];

static void make_tokens(void)
{
	for (int t = 0; t < T; t++) {
		for (int k = 0; k < K; k++) { /* on different ranks if there are several */
			ids[t][k] = (rank * T + t * 3 + k * L) % (ranks * L);
			weights[t][k] = 1.0f / K;
		}
		for (int h = 0; h < H; h++) {
			tokens[t][h] = (float)(rank * 1000 + t) + (float)h / H;
		}
	}
}

/* The experts return their rows unchanged, so the weighted sums must be the tokens. */
static void check_sums(int rank_major)
{
	for (int t = 0; t < T; t++) {
		/* rank-major: each rank that got the token returns one unweighted row */
		int answers = rank_major && ids[t][0] / L != ids[t][1] / L ? K : 1;

		for (int h = 0; h < H; h++) {
			CHECK(sums[t][h] != tokens[t][h] * (float)answers);
		}
	}
}

static void run(ncclComm_t comm, int rank_major)
{
	size_t blocks = rank_major ? (size_t)ranks : L, rows = rank_major ? T : (size_t)ranks * T;
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	ncclEpCombineInputs_t results = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t combined = NCCL_EP_COMBINE_OUTPUTS_INIT;
	ncclEpLayout_t layout = rank_major ? NCCL_EP_LAYOUT_RANK_MAJOR
					   : NCCL_EP_LAYOUT_EXPERT_MAJOR;
	ncclEpGroup_t group;
	ncclEpHandle_t handle;
	cudaStream_t stream;

	ncclEpTensor_t topk_idx = TENSOR(ncclInt64, on_device(ids, sizeof(ids)), 2, T, K);
	ncclEpTensor_t topk_weights =
		TENSOR(ncclFloat32, on_device(weights, sizeof(weights)), 2, T, K);
	ncclEpTensor_t x = TENSOR(ncclFloat32, on_device(tokens, sizeof(tokens)), 2, T, H);
	ncclEpTensor_t y = TENSOR(ncclFloat32, on_device(NULL, sizeof(sums)), 2, T, H);
	ncclEpTensor_t received =
		TENSOR(ncclFloat32, on_device(NULL, blocks * rows * H * 4), 3, blocks, rows, H);
	ncclEpTensor_t counts = TENSOR(ncclInt32, on_device(NULL, blocks * 4), 1, blocks);
	ncclEpTensor_t got_weights =
		TENSOR(ncclFloat32, on_device(NULL, blocks * rows * K * 4), 3, blocks, rows, K);
	ncclEpTensor_t got_idx =
		TENSOR(ncclInt32, on_device(NULL, blocks * rows * K * 4), 3, blocks, rows, K);

	config.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	config.num_experts = (unsigned int)(ranks * L);
	config.max_dispatch_tokens_per_rank = T;
	config.max_token_bytes = H * sizeof(float);
	CHECK(ncclEpCreateGroup(&group, comm, &config));
	CHECK(cudaStreamCreate(&stream));
	CHECK(ncclEpCreateHandle(&handle, group, layout, &topk_idx, NULL, NULL, stream));

	in.tokens = &x;
	out.tokens = &received;
	combined.tokens = &y;
	results.tokens = &received;
	if (rank_major) {
		in.topk_weights = &topk_weights;
		out.topk_weights = &got_weights;
		out.topk_idx = &got_idx;
		info.src_rank_counters = &counts;
	} else {
		info.expert_counters = &counts;
		combined.topk_weights = &topk_weights;
	}
	CHECK(ncclEpDispatch(handle, &in, &out, &info, NULL, stream));
	/* here the experts would work on `received` */
	CHECK(ncclEpCombine(handle, &results, &combined, NULL, stream));
	CHECK(cudaMemcpyAsync(sums, y.data, sizeof(sums), cudaMemcpyDeviceToHost, stream));
	CHECK(cudaStreamSynchronize(stream));
	check_sums(rank_major);
	CHECK(ncclEpHandleDestroy(handle));
	CHECK(ncclEpGroupDestroy(group));
}

int main(int argc, char **argv)
{
	ncclComm_t comm;

	if (argc < 2) {
		fprintf(stderr, "usage: %s id-file [rm]\n", argv[0]);
		return 2;
	}
	comm = begin(argv[1]);
	make_tokens();
	run(comm, argc > 2 && !strcmp(argv[2], "rm"));
	return finish(comm);
}
