/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts that begin while their tokens come: high throughput, expert-major, one thread per GPU.
 *
 *     nvcc -O3 -std=c++17 -arch=sm_90 -c early.cu $(pkg-config --cflags nccl-ep)
 *     c++ early.o -o early $(pkg-config --libs nccl-ep)
 *     NCCL_NVLS_ENABLE=0 ./early [tokens hidden top-k experts columns sms [gpus]]
 *
 * One layer of experts: each expert multiplies its rows by a matrix of `hidden` rows and `columns`
 * columns, in bf16, by tensor cores. The program times it in two ways and compares the results bit
 * by bit:
 *
 *   plain   dispatch on as many SMs as the library takes, then the product on all SMs
 *   early   dispatch with arrivals on `sms` SMs. Beside it the product runs on the other SMs: a
 *           block takes the next tile, in the order of experts, and waits until the tile's expert
 *           has its rows. When the dispatch is over, more blocks take tiles on the SMs that it had.
 */
#include <algorithm>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mma.h>
#include <mutex>
#include <numeric>
#include <thread>
#include <vector>
#include <cuda_bf16.h>
#include <nccl_ep.h>
#include <nccl_ep/arrivals.h>

#define CHECK(call)                                                                                \
	do {                                                                                       \
		if ((call) != 0) {                                                                 \
			fail(#call);                                                               \
		}                                                                                  \
	} while (0)

static void fail(const char *call)
{
	const char *why;

	ncclEpExtGetLastError(NULL, NULL, &why);
	fprintf(stderr, "failed: %s; CUDA: %s; %s\n", call, cudaGetErrorString(cudaGetLastError()),
		why);
	exit(1);
}

/* A dispatch that fails says so within three timeouts and 1 s. */
#define TIMEOUT_NS 5000000000ull
#define LIMIT_NS (4 * TIMEOUT_NS)

/* ---- the product ---- */

/* A tile of the result, a step of its sum, and how many steps lie in shared memory. */
enum {
	M = 128,
	N = 256,
	STEP = 32,
	STAGES = 4,
	THREADS = 512,
	A_ROW = STEP + 8,
	B_ROW = N + 8,
	STAGE = M * A_ROW + STEP * B_ROW,
	SHARED = STAGES * STAGE * 2
};

typedef __nv_bfloat16 bf16;

struct product {
	const ncclEpExtArrivals_t *arrivals;
	const bf16 *rows, *weights; /* [.][hidden], [experts of the rank][hidden][columns] */
	bf16 *out;                  /* [.][columns] */
	unsigned int *next;         /* tile; zero at first */
	unsigned int hidden, columns;
};

static __device__ void copy16(bf16 *to, const bf16 *from)
{
	unsigned int at = (unsigned int)__cvta_generic_to_shared(to);

	asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(at), "l"(from) : "memory");
}

/* Rows from `row` on, of which there are `rows`: the last one stands for those behind. */
static __device__ void load_stage(const struct product &p, bf16 *stage, const bf16 *weights,
				  size_t row, unsigned int rows, unsigned int column,
				  unsigned int k)
{
	for (unsigned int i = threadIdx.x; i < M * STEP / 8; i += THREADS) {
		unsigned int r = i / (STEP / 8), c = i % (STEP / 8) * 8;

		copy16(stage + r * A_ROW + c, p.rows + (row + min(r, rows - 1)) * p.hidden + k + c);
	}
	stage += M * A_ROW;
	for (unsigned int i = threadIdx.x; i < STEP * N / 8; i += THREADS) {
		unsigned int r = i / (N / 8), c = i % (N / 8) * 8;

		copy16(stage + r * B_ROW + c, weights + (size_t)(k + r) * p.columns + column + c);
	}
}

static __device__ void multiply(const struct product &p, bf16 *shared, unsigned int expert,
				size_t row, unsigned int rows, unsigned int column)
{
	namespace wmma = nvcuda::wmma;
	const bf16 *weights = p.weights + (size_t)expert * p.hidden * p.columns;
	unsigned int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
	unsigned int m0 = warp / 4 * 32, n0 = warp % 4 * 64, steps = p.hidden / STEP;
	wmma::fragment<wmma::accumulator, 16, 16, 16, float> sum[2][4];

	for (int i = 0; i < 8; i++) {
		wmma::fill_fragment(sum[i / 4][i % 4], 0.0f);
	}
	for (unsigned int s = 0; s < STAGES - 1; s++) {
		load_stage(p, shared + s * STAGE, weights, row, rows, column, s * STEP);
		asm volatile("cp.async.commit_group;" : : : "memory");
	}
	for (unsigned int s = 0; s < steps; s++) {
		bf16 *a = shared + s % STAGES * STAGE, *b = a + M * A_ROW;

		asm volatile("cp.async.wait_group %0;" : : "n"(STAGES - 2) : "memory");
		__syncthreads();
		if (s + STAGES - 1 < steps) {
			load_stage(p, shared + (s + STAGES - 1) % STAGES * STAGE, weights, row,
				   rows, column, (s + STAGES - 1) * STEP);
		}
		asm volatile("cp.async.commit_group;" : : : "memory");
		for (int k = 0; k < STEP; k += 16) {
			wmma::fragment<wmma::matrix_a, 16, 16, 16, bf16, wmma::row_major> fa[2];
			wmma::fragment<wmma::matrix_b, 16, 16, 16, bf16, wmma::row_major> fb[4];

			for (int i = 0; i < 2; i++) {
				wmma::load_matrix_sync(fa[i], a + (m0 + 16 * i) * A_ROW + k, A_ROW);
			}
			for (int j = 0; j < 4; j++) {
				wmma::load_matrix_sync(fb[j], b + k * B_ROW + n0 + 16 * j, B_ROW);
			}
			for (int i = 0; i < 8; i++) {
				wmma::mma_sync(sum[i / 4][i % 4], fa[i / 4], fb[i % 4],
					       sum[i / 4][i % 4]);
			}
		}
	}
	asm volatile("cp.async.wait_group 0;" : : : "memory");
	__syncthreads();
	for (int i = 0; i < 8; i++) { /* through shared memory, 16 x 16 of each warp at a time */
		float *mine = reinterpret_cast<float *>(shared) + warp * 256;

		wmma::store_matrix_sync(mine, sum[i / 4][i % 4], 16, wmma::mem_row_major);
		__syncwarp();
		for (unsigned int v = lane; v < 128; v += 32) {
			unsigned int r = m0 + 16 * (i / 4) + v / 8, c = v % 8 * 2;

			if (r < rows) {
				*reinterpret_cast<__nv_bfloat162 *>(
					p.out + (row + r) * p.columns + column + n0 + 16 * (i % 4) +
					c) = __floats2bfloat162_rn(mine[v * 2], mine[v * 2 + 1]);
			}
		}
		__syncwarp();
	}
	__syncthreads();
}

/* Blocks take tiles in the order of experts, and wait for a tile's expert when they come to it. */
static __global__ void __launch_bounds__(THREADS, 1) product_kernel(const struct product p)
{
	extern __shared__ bf16 shared[];
	__shared__ unsigned int taken;
	__shared__ ncclEpExtArrivalState state;
	unsigned int expert = 0, before = 0, wide = p.columns / N, waited = ~0u;

	for (;;) {
		if (threadIdx.x == 0) {
			taken = atomicAdd(p.next, 1);
		}
		__syncthreads();
		unsigned int tile = taken, high;

		for (; expert < p.arrivals->experts; expert++) {
			high = (p.arrivals->expert[expert].rows + M - 1) / M;
			if (tile < before + high * wide) {
				break;
			}
			before += high * wide;
		}
		if (expert == p.arrivals->experts) {
			return;
		}
		if (waited != expert) {
			if (threadIdx.x == 0) {
				state = ncclEpExtArrivalWait(p.arrivals, expert, LIMIT_NS);
			}
			__syncthreads();
			waited = expert;
			if (state != NCCL_EP_EXT_ARRIVED) {
				return;
			}
		}
		const ncclEpExtArrival_t *rows = &p.arrivals->expert[expert];
		unsigned int at = (tile - before) / wide * M, column = (tile - before) % wide * N;

		multiply(p, shared, expert, rows->first + at, min(rows->rows - at, (unsigned int)M),
			 column);
	}
}

/* For the curve: when, in nanoseconds since the kernel's start, has each expert all its rows? */
static __global__ void watch_kernel(const ncclEpExtArrivals_t *arrivals, uint64_t *when)
{
	uint64_t start, now;

	asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
	for (unsigned int e = threadIdx.x; e < arrivals->experts; e += blockDim.x) {
		ncclEpExtArrivalWait(arrivals, e, LIMIT_NS);
		asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
		when[e] = now - start;
	}
}

/* ---- a rank ---- */

struct shape {
	unsigned int tokens, hidden, topk, experts, columns, sms;
	int gpus;
};

struct team {
	std::mutex mutex;
	std::condition_variable changed;
	int here = 0, round = 0;
	std::vector<float> times;

	void meet(int n)
	{
		std::unique_lock<std::mutex> lock(mutex);
		int mine = round;

		if (++here == n) {
			here = 0;
			round++;
			changed.notify_all();
		}
		changed.wait(lock, [&] { return round != mine; });
	}
};

static void *gpu(const void *from, size_t bytes)
{
	void *p;

	CHECK(cudaMalloc(&p, bytes));
	CHECK(from && cudaMemcpy(p, from, bytes, cudaMemcpyDefault));
	return p;
}

struct tensor {
	ncclEpTensor_t t = {};
	size_t sizes[2];

	tensor(ncclDataType_t type, void *data, unsigned int ndim, size_t n0, size_t n1 = 0)
	{
		ncclEpTensor_t empty = { NCCL_EP_TENSOR_INIT_INLINE };

		t = empty;
		t.ndim = ndim;
		t.datatype = type;
		t.data = data;
		sizes[0] = n0;
		sizes[1] = n1;
		t.sizes = sizes;
	}
};

/* One group with its handle. */
struct layer {
	ncclEpGroup_t group;
	ncclEpHandle_t handle;

	layer(ncclComm_t comm, const struct shape &s, unsigned int sms)
	{
		ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;

		config.algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT;
		config.num_experts = s.experts;
		config.max_dispatch_tokens_per_rank = s.tokens;
		config.max_token_bytes = s.hidden * 2;
		config.num_topk = s.topk;
		config.dispatch_num_sms = sms;
		config.timeout_ns = TIMEOUT_NS;
		CHECK(ncclEpCreateGroup(&group, comm, &config));
		CHECK(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL,
				       (int)s.topk, NULL));
	}
};

struct rank_state {
	struct shape s;
	struct team *team;
	cudaStream_t stream, beside;
	cudaEvent_t begin, end, fork, join;
	int all_sms;
	ncclEpExtArrivals_t *arrivals;
	size_t bytes;
	ncclEpDispatchInputs_t in;
	ncclEpDispatchOutputs_t out;
	struct product p;
	uint64_t *when;
};

static void product_launch(struct rank_state &r, unsigned int blocks, cudaStream_t stream)
{
	product_kernel<<<blocks, THREADS, SHARED, stream>>>(r.p);
	CHECK(cudaGetLastError());
}

static void start(struct rank_state &r, struct layer &layer)
{
	CHECK(ncclEpExtStartArrivals(layer.handle, r.arrivals, &r.bytes, r.stream));
}

static void dispatch(struct rank_state &r, struct layer &layer)
{
	CHECK(ncclEpDispatch(layer.handle, &r.in, &r.out, NULL, NULL, r.stream));
}

/* What runs beside the dispatch begins behind ncclEpExtStartArrivals. */
static void fork(struct rank_state &r)
{
	CHECK(cudaEventRecord(r.fork, r.stream));
	CHECK(cudaStreamWaitEvent(r.beside, r.fork, 0));
}

static void join(struct rank_state &r)
{
	CHECK(cudaEventRecord(r.join, r.beside));
	CHECK(cudaStreamWaitEvent(r.stream, r.join, 0));
}

enum way {
	PLAIN,
	PLAIN_DISPATCH,
	FEW_DISPATCH,
	PRODUCT,
	START,
	EARLY_DISPATCH,
	EARLY,
	WAYS
};

static const char *const names[] = { "plain: dispatch, then product",
				     "  its dispatch alone",
				     "  a plain dispatch on the SMs of the early one",
				     "  the product alone",
				     "  ncclEpExtStartArrivals alone",
				     "  early dispatch alone",
				     "early: all of it" };

static void run_way(struct rank_state &r, enum way way, struct layer &plain, struct layer &few)
{
	switch (way) {
	case PLAIN:
		dispatch(r, plain);
		product_launch(r, (unsigned int)r.all_sms, r.stream);
		break;
	case PLAIN_DISPATCH:
		dispatch(r, plain);
		break;
	case FEW_DISPATCH:
		dispatch(r, few);
		break;
	case PRODUCT:
		product_launch(r, (unsigned int)r.all_sms, r.stream);
		break;
	case START:
		start(r, few);
		break;
	case EARLY_DISPATCH:
		dispatch(r, few);
		break;
	default:
		start(r, few);
		fork(r);
		dispatch(r, few);
		product_launch(r, (unsigned int)r.all_sms - r.s.sms, r.beside);
		product_launch(r, r.s.sms, r.stream);
		join(r);
	}
}

/* The median over repeats of the slowest rank's time, in microseconds. */
static float time_way(struct rank_state &r, enum way way, struct layer &plain, struct layer &few)
{
	std::vector<float> times;

	for (int i = 0; i < 23; i++) {
		float ms, slowest;

		CHECK(cudaMemsetAsync(r.p.next, 0, sizeof(*r.p.next), r.stream));
		if (way == EARLY_DISPATCH) {
			start(r, few);
		}
		CHECK(cudaStreamSynchronize(r.stream));
		r.team->meet(r.s.gpus);
		CHECK(cudaEventRecord(r.begin, r.stream));
		run_way(r, way, plain, few);
		CHECK(cudaEventRecord(r.end, r.stream));
		CHECK(cudaStreamSynchronize(r.stream));
		CHECK(cudaEventElapsedTime(&ms, r.begin, r.end));
		{
			std::lock_guard<std::mutex> lock(r.team->mutex);

			r.team->times.push_back(ms * 1000);
		}
		r.team->meet(r.s.gpus);
		slowest = *std::max_element(r.team->times.begin(), r.team->times.end());
		r.team->meet(r.s.gpus);
		{
			std::lock_guard<std::mutex> lock(r.team->mutex);

			r.team->times.clear();
		}
		if (i >= 3) {
			times.push_back(slowest);
		}
		r.team->meet(r.s.gpus);
	}
	std::sort(times.begin(), times.end());
	return times[times.size() / 2];
}

/* When experts are complete, with nothing else beside the dispatch. */
static std::vector<uint64_t> curve(struct rank_state &r, struct layer &few)
{
	std::vector<uint64_t> when(r.s.experts / (unsigned int)r.s.gpus);

	start(r, few);
	CHECK(cudaStreamSynchronize(r.stream));
	r.team->meet(r.s.gpus);
	watch_kernel<<<1, 1024, 0, r.beside>>>(r.arrivals, r.when);
	CHECK(cudaGetLastError());
	dispatch(r, few);
	CHECK(cudaStreamSynchronize(r.beside));
	CHECK(cudaStreamSynchronize(r.stream));
	CHECK(cudaMemcpy(when.data(), r.when, when.size() * 8, cudaMemcpyDefault));
	std::sort(when.begin(), when.end());
	return when;
}

static void print_curve(const std::vector<uint64_t> &when)
{
	static const int parts[] = { 1, 5, 10, 25, 50, 75, 100 };

	printf("  experts complete, of an early dispatch alone:");
	for (int part : parts) {
		size_t n = std::max((size_t)1, when.size() * (size_t)part / 100);

		printf(" %d %%: %.0f us%s", part, (double)when[n - 1] / 1000,
		       part == 100 ? "\n" : ",");
	}
}

static uint32_t draw(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return (uint32_t)(*state >> 33);
}

static void run(struct shape s, ncclComm_t comm, int rank, struct team *team)
{
	unsigned int local = s.experts / (unsigned int)s.gpus;
	size_t most = (size_t)s.gpus * s.tokens * std::min(s.topk, local);
	std::vector<bf16> x((size_t)s.tokens * s.hidden), w;
	std::vector<float> weights((size_t)s.tokens * s.topk, 1.0f / (float)s.topk);
	std::vector<int32_t> ids((size_t)s.tokens * s.topk);
	uint64_t state = 88172645463325252ull + (uint64_t)rank;
	struct rank_state r = {};

	CHECK(cudaSetDevice(rank));
	for (auto &v : x) {
		v = __float2bfloat16((float)(int)(draw(&state) % 17 - 8) / 8);
	}
	w.resize((size_t)s.hidden * s.columns);
	for (auto &v : w) {
		v = __float2bfloat16((float)(int)(draw(&state) % 17 - 8) / 64);
	}
	for (unsigned int t = 0; t < s.tokens; t++) {
		for (unsigned int k = 0; k < s.topk;) {
			int32_t *mine = &ids[(size_t)t * s.topk];

			mine[k] = (int32_t)(draw(&state) % s.experts);
			k += std::find(mine, mine + k, mine[k]) == mine + k;
		}
	}
	r.s = s;
	r.team = team;
	int least, greatest;
	CHECK(cudaDeviceGetStreamPriorityRange(&least, &greatest));
	CHECK(cudaStreamCreateWithPriority(&r.stream, cudaStreamNonBlocking, greatest));
	CHECK(cudaStreamCreateWithPriority(&r.beside, cudaStreamNonBlocking, least));
	for (cudaEvent_t *e : { &r.begin, &r.end }) {
		CHECK(cudaEventCreate(e));
	}
	for (cudaEvent_t *e : { &r.fork, &r.join }) {
		CHECK(cudaEventCreateWithFlags(e, cudaEventDisableTiming));
	}
	CHECK(cudaDeviceGetAttribute(&r.all_sms, cudaDevAttrMultiProcessorCount, rank));
	CHECK(cudaFuncSetAttribute(product_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
				   SHARED));
	struct layer plain(comm, s, 0), few(comm, s, s.sms);
	struct tensor topk(ncclInt32, gpu(ids.data(), ids.size() * 4), 2, s.tokens, s.topk);
	struct tensor in(ncclBfloat16, gpu(x.data(), x.size() * 2), 2, s.tokens, s.hidden);
	struct tensor in_w(ncclFloat32, gpu(weights.data(), weights.size() * 4), 2, s.tokens,
			   s.topk);
	struct tensor rows(ncclBfloat16, gpu(NULL, most * s.hidden * 2), 2, most, s.hidden);
	struct tensor row_w(ncclFloat32, gpu(NULL, most * 4), 1, most);
	bf16 *matrices = (bf16 *)gpu(NULL, local * w.size() * 2);

	for (unsigned int e = 0; e < local; e++) { /* of each expert: the same, moved on */
		CHECK(cudaMemcpy(matrices + e * w.size(), w.data() + e, (w.size() - e) * 2,
				 cudaMemcpyDefault));
		CHECK(cudaMemcpy(matrices + (e + 1) * w.size() - e, w.data(), e * 2,
				 cudaMemcpyDefault));
	}
	r.in = NCCL_EP_DISPATCH_INPUTS_INIT;
	r.out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	r.in.tokens = &in.t;
	r.in.topk_weights = &in_w.t;
	r.out.tokens = &rows.t;
	r.out.topk_weights = &row_w.t;
	r.when = (uint64_t *)gpu(NULL, local * 8);
	for (struct layer *l : { &plain, &few }) {
		CHECK(ncclEpUpdateHandle(l->handle, &topk.t, NULL, r.stream));
	}
	CHECK(ncclEpExtStartArrivals(few.handle, NULL, &r.bytes, r.stream));
	r.arrivals = (ncclEpExtArrivals_t *)gpu(NULL, r.bytes);
	r.p = { r.arrivals, (bf16 *)rows.t.data,          matrices,
		NULL,       (unsigned int *)gpu(NULL, 4), s.hidden,
		s.columns };
	std::vector<bf16> results[2];

	for (int way = 0; way < WAYS; way++) {
		/* the plain ways read how many rows experts have, too */
		if (way == PLAIN) {
			start(r, few);
			dispatch(r, few);
			CHECK(cudaStreamSynchronize(r.stream));
		}
		if (way == PLAIN || way == EARLY) {
			r.p.out = (bf16 *)gpu(NULL, most * s.columns * 2);
			CHECK(cudaMemset(r.p.out, 0, most * s.columns * 2));
			CHECK(cudaMemset(rows.t.data, 0, most * s.hidden * 2));
			CHECK(cudaDeviceSynchronize());
			team->meet(s.gpus);
		}
		if (way == EARLY) {
			std::vector<uint64_t> when = curve(r, few);

			if (rank == 0) {
				print_curve(when);
			}
			CHECK(cudaMemset(rows.t.data, 0, most * s.hidden * 2));
			CHECK(cudaDeviceSynchronize());
			team->meet(s.gpus);
		}
		float us = time_way(r, (enum way)way, plain, few);

		if (rank == 0) {
			printf("%8.1f us  %s\n", us, names[way]);
		}
		if (way == PLAIN || way == EARLY) {
			std::vector<bf16> &out = results[way == EARLY];

			out.resize(most * s.columns);
			CHECK(cudaMemcpy(out.data(), r.p.out, out.size() * 2, cudaMemcpyDefault));
		}
	}
	CHECK(memcmp(results[0].data(), results[1].data(), results[0].size() * 2));
	printf("rank %d: the same results, bit by bit\n", rank);
	for (struct layer *l : { &plain, &few }) {
		CHECK(ncclEpHandleDestroy(l->handle));
		CHECK(ncclEpGroupDestroy(l->group));
	}
	CHECK(ncclCommDestroy(comm));
}

int main(int argc, char **argv)
{
	struct shape s = { 4096, 7168, 8, 256, 4096, 32, 2 };
	unsigned int *fields[] = { &s.tokens, &s.hidden, &s.topk, &s.experts, &s.columns, &s.sms };
	ncclComm_t comms[8];
	std::vector<std::thread> threads;
	struct team team;

	for (int i = 1; i < argc && i <= 6; i++) {
		*fields[i - 1] = (unsigned int)atoi(argv[i]);
	}
	s.gpus = argc > 7 ? atoi(argv[7]) : 2;
	if (s.hidden % STEP || s.columns % N || s.gpus < 1 || s.gpus > 8 ||
	    s.experts % (unsigned int)s.gpus) {
		fprintf(stderr, "hidden is a multiple of %d, columns of %d, experts of the GPUs\n",
			STEP, N);
		return 2;
	}
	printf("%d GPUs, %u tokens of %u elements, top-%u of %u experts, %u columns, early on %u SMs\n",
	       s.gpus, s.tokens, s.hidden, s.topk, s.experts, s.columns, s.sms);
	CHECK(ncclCommInitAll(comms, s.gpus, NULL));
	for (int rank = 0; rank < s.gpus; rank++) {
		threads.emplace_back(run, s, comms[rank], rank, &team);
	}
	for (auto &thread : threads) {
		thread.join();
	}
	return 0;
}
