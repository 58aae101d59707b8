/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One MoE layer in training: a step forward and back, in high throughput mode, expert-major. One
 * process per GPU, as processes.c:
 *
 *     cc training.c -o training $(pkg-config --cflags --libs nccl-ep)
 *     torchrun --no-python --nproc-per-node 8 ./training id-file
 *
 * With token x[t], its experts ids[t][k] and their weights w[t][k] the layer is
 *
 *     out[t] = sum over k of w[t][k] * expert(ids[t][k], x[t])        expert(e, x) = a[e] * x
 *
 * Real experts are matrices and run on the GPU. These have one parameter each and run on the host,
 * on copies of the received rows. The loss gives g[t], the gradients of out[t]. The step returns
 * the gradients of x, of the weights, and of each expert's parameter:
 *
 *     ncclEpUpdateHandle          the place of each row, and their number: once per step
 *     ncclEpDispatch              x and w -> rows of my experts
 *       forward of the experts    row' = w * a[e] * row
 *     ncclEpCombine               row' -> out
 *     ncclEpDispatch, backward    g -> the same rows
 *       backward of the experts   da[e] = sum of w * (row . g), dw = a[e] * (row . g),
 *                                 dx = w * a[e] * g
 *     ncclEpCombine, backward     dx rows -> dx, dw of the rows -> dw[t][k]
 */
#include "common.h"

enum {
	T = 24,
	H = 256,
	K = 3,
	L = 4,
	ALIGN = 8
}; /* tokens, elements of a token, experts of a token, experts of a rank, padding of a zone */

/* A rank's tokens on the host. Small numbers and quarters: all sums below are exact. */
struct tokens {
	float x[T][H], g[T][H], w[T][K];
	int64_t ids[T][K];
};

/* The rows of this rank's experts on the device: expert e has rows[e] of them, from first[e]. */
static struct {
	int32_t total, rows[L], first[L];
	void *x, *w;   /* forward, in */
	void *y;       /* forward, out */
	void *g;       /* backward, in */
	void *dx, *dw; /* backward, out */
} got;

static struct tokens mine;
static float out[T][H], dx[T][H], dw[T][K], da[L]; /* the results of the step */

static float parameter(int64_t expert)
{
	return (float)(expert % 5 + 1);
}

static void make_tokens(int of, struct tokens *s)
{
	for (int t = 0; t < T; t++) {
		for (int k = 0; k < K; k++) {
			s->ids[t][k] = (of + t * 3 + k * (L + 1)) % (ranks * L);
			s->w[t][k] = (float)(1 + (t + k) % 4) / 4;
		}
		for (int h = 0; h < H; h++) {
			s->x[t][h] = (float)((of * 7 + t * 5 + h) % 9 - 4);
			s->g[t][h] = (float)((of * 3 + t + h * 2) % 7 - 3);
		}
	}
}

static float dot(const float *a, const float *b)
{
	float sum = 0;

	for (int h = 0; h < H; h++) {
		sum += a[h] * b[h];
	}
	return sum;
}

static void *fetch(const void *from, size_t bytes)
{
	void *host = malloc(bytes + 1);

	CHECK(!host || cudaMemcpy(host, from, bytes, cudaMemcpyDeviceToHost));
	return host;
}

static void put(void *to, const void *from, size_t bytes)
{
	CHECK(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
}

/* Rows of padding and their weights are zero, so the experts may treat them like any other. */
static void experts_forward(void)
{
	size_t rows = (size_t)got.total;
	float *x = fetch(got.x, rows * H * 4), *w = fetch(got.w, rows * 4);

	for (int e = 0; e < L; e++) {
		for (int i = got.first[e]; i < got.first[e] + got.rows[e]; i++) {
			for (int h = 0; h < H; h++) { /* in place */
				x[(size_t)i * H + h] *= w[i] * parameter(rank * L + e);
			}
		}
	}
	put(got.y, x, rows * H * 4);
	free(x);
	free(w);
}

static void experts_backward(void)
{
	size_t rows = (size_t)got.total;
	float *x = fetch(got.x, rows * H * 4), *g = fetch(got.g, rows * H * 4);
	float *w = fetch(got.w, rows * 4);

	for (int e = 0; e < L; e++) {
		float a = parameter(rank * L + e);

		da[e] = 0;
		for (int i = got.first[e]; i < got.first[e] + got.rows[e]; i++) {
			float *row = g + (size_t)i * H, slope = dot(x + (size_t)i * H, row);

			for (int h = 0; h < H; h++) {
				row[h] *= w[i] * a;
			}
			da[e] += w[i] * slope;
			w[i] = a * slope;
		}
	}
	put(got.dx, g, rows * H * 4);
	put(got.dw, w, rows * 4);
	free(x);
	free(g);
	free(w);
}

/*
 * Routes the tokens and allocates room for the rows that come. A group without
 * max_recv_tokens_per_rank is in eager mode: the host waits for the number of rows. With a fixed
 * number the host does not wait, and all calls of the step can be captured into a CUDA graph.
 */
static void route(ncclEpHandle_t handle, cudaStream_t stream)
{
	ncclEpTensor_t topk_idx = TENSOR(ncclInt64, on_device(mine.ids, sizeof(mine.ids)), 2, T, K);
	ncclEpTensor_t rows = TENSOR(ncclInt32, on_device(NULL, sizeof(got.rows)), 1, L);
	ncclEpTensor_t first = TENSOR(ncclInt32, on_device(NULL, sizeof(got.first)), 1, L);
	ncclEpTensor_t total = TENSOR(ncclInt32, on_device(NULL, sizeof(got.total)), 1, 1);
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	void **const needed[] = { &got.x, &got.y, &got.g, &got.dx };

	info.expert_counters = &rows;
	info.expert_offsets = &first;
	info.recv_total_counter = &total;
	CHECK(ncclEpUpdateHandle(handle, &topk_idx, &info, stream));
	CHECK(cudaStreamSynchronize(stream));
	CHECK(cudaMemcpy(got.rows, rows.data, sizeof(got.rows), cudaMemcpyDeviceToHost));
	CHECK(cudaMemcpy(got.first, first.data, sizeof(got.first), cudaMemcpyDeviceToHost));
	CHECK(cudaMemcpy(&got.total, total.data, sizeof(got.total), cudaMemcpyDeviceToHost));
	for (int i = 0; i < 4; i++) {
		*needed[i] = on_device(NULL, (size_t)got.total * H * 4 + 16);
	}
	got.w = on_device(NULL, (size_t)got.total * 4 + 16);
	got.dw = on_device(NULL, (size_t)got.total * 4 + 16);
}

static void forward(ncclEpHandle_t handle, cudaStream_t stream)
{
	size_t n = (size_t)got.total;
	ncclEpTensor_t x = TENSOR(ncclFloat32, on_device(mine.x, sizeof(mine.x)), 2, T, H);
	ncclEpTensor_t w = TENSOR(ncclFloat32, on_device(mine.w, sizeof(mine.w)), 2, T, K);
	ncclEpTensor_t rows = TENSOR(ncclFloat32, got.x, 2, n, H);
	ncclEpTensor_t row_weights = TENSOR(ncclFloat32, got.w, 1, n);
	ncclEpTensor_t answers = TENSOR(ncclFloat32, got.y, 2, n, H);
	ncclEpTensor_t sums = TENSOR(ncclFloat32, on_device(NULL, sizeof(out)), 2, T, H);
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t received = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpCombineInputs_t results = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t combined = NCCL_EP_COMBINE_OUTPUTS_INIT;

	in.tokens = &x;
	in.topk_weights = &w;
	received.tokens = &rows;
	received.topk_weights = &row_weights;
	CHECK(ncclEpDispatch(handle, &in, &received, NULL, NULL, stream));
	CHECK(cudaStreamSynchronize(stream));
	experts_forward();
	results.tokens = &answers;
	combined.tokens = &sums;
	CHECK(ncclEpCombine(handle, &results, &combined, NULL, stream));
	CHECK(cudaStreamSynchronize(stream));
	CHECK(cudaMemcpy(out, sums.data, sizeof(out), cudaMemcpyDeviceToHost));
}

/* Uses the routing of the forward pass, which the handle keeps. */
static void backward(ncclEpHandle_t handle, cudaStream_t stream)
{
	size_t n = (size_t)got.total;
	ncclEpTensor_t g = TENSOR(ncclFloat32, on_device(mine.g, sizeof(mine.g)), 2, T, H);
	ncclEpTensor_t rows = TENSOR(ncclFloat32, got.g, 2, n, H);
	ncclEpTensor_t row_dx = TENSOR(ncclFloat32, got.dx, 2, n, H);
	ncclEpTensor_t row_dw = TENSOR(ncclFloat32, got.dw, 1, n);
	ncclEpTensor_t to_dx = TENSOR(ncclFloat32, on_device(NULL, sizeof(dx)), 2, T, H);
	ncclEpTensor_t to_dw = TENSOR(ncclFloat32, on_device(NULL, sizeof(dw)), 2, T, K);
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t received = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpDispatchConfig_t dispatch = NCCL_EP_DISPATCH_CONFIG_INIT;
	ncclEpCombineInputs_t results = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t combined = NCCL_EP_COMBINE_OUTPUTS_INIT;
	ncclEpCombineConfig_t combine = NCCL_EP_COMBINE_CONFIG_INIT;

	dispatch.pass_direction = NCCL_EP_BWD_PASS;
	in.tokens = &g;
	received.tokens = &rows;
	CHECK(ncclEpDispatch(handle, &in, &received, NULL, &dispatch, stream));
	CHECK(cudaStreamSynchronize(stream));
	experts_backward();
	combine.pass_direction = NCCL_EP_BWD_PASS;
	results.tokens = &row_dx;
	results.topk_weights = &row_dw;
	combined.tokens = &to_dx;
	combined.topk_weights = &to_dw;
	CHECK(ncclEpCombine(handle, &results, &combined, &combine, stream));
	CHECK(cudaStreamSynchronize(stream));
	CHECK(cudaMemcpy(dx, to_dx.data, sizeof(dx), cudaMemcpyDeviceToHost));
	CHECK(cudaMemcpy(dw, to_dw.data, sizeof(dw), cudaMemcpyDeviceToHost));
}

/* Computes the layer again, without communication, and compares. */
static void check(void)
{
	struct tokens *theirs = calloc(1, sizeof(*theirs));
	float want[L] = { 0 };

	CHECK(!theirs);
	for (int t = 0; t < T; t++) {
		float factor = 0;

		for (int k = 0; k < K; k++) {
			float a = parameter(mine.ids[t][k]);

			factor += mine.w[t][k] * a;
			CHECK(dw[t][k] != a * dot(mine.x[t], mine.g[t]));
		}
		for (int h = 0; h < H; h++) {
			CHECK(out[t][h] != factor * mine.x[t][h]);
			CHECK(dx[t][h] != factor * mine.g[t][h]);
		}
	}
	for (int of = 0; of < ranks; of++) {
		make_tokens(of, theirs);
		for (int i = 0; i < T * K; i++) {
			int64_t e = theirs->ids[i / K][i % K] - rank * L;

			if (e >= 0 && e < L) {
				want[e] += theirs->w[i / K][i % K] *
					   dot(theirs->x[i / K], theirs->g[i / K]);
			}
		}
	}
	for (int e = 0; e < L; e++) {
		CHECK(da[e] != want[e]);
	}
	free(theirs);
}

int main(int argc, char **argv)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpHandleConfig_t zones = NCCL_EP_HANDLE_CONFIG_INIT;
	ncclEpGroup_t group;
	ncclEpHandle_t handle;
	cudaStream_t stream;
	ncclComm_t comm;

	if (argc < 2) {
		fprintf(stderr, "usage: %s id-file\n", argv[0]);
		return 2;
	}
	comm = begin(argv[1]);
	make_tokens(rank, &mine);
	CHECK(cudaStreamCreate(&stream));
	config.algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT;
	config.num_experts = (unsigned int)(ranks * L);
	config.max_dispatch_tokens_per_rank = T;
	config.max_token_bytes = H * sizeof(float);
	config.num_topk = K;
	CHECK(ncclEpCreateGroup(&group, comm, &config));
	zones.dispatch_output_per_expert_alignment = ALIGN;
	CHECK(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, &zones, K, NULL));
	route(handle, stream);
	forward(handle, stream);
	backward(handle, stream);
	check();
	CHECK(ncclEpHandleDestroy(handle));
	CHECK(ncclEpGroupDestroy(group));
	return finish(comm);
}
