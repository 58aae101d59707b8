/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep_fabric: what plain copies between the GPUs of this process reach, all GPUs at once, each to and
 * from all others in turn. It is the ceiling that dispatch and combine are held against. With one
 * GPU the copies stay in its memory. The bytes are compared after the last copy of each method.
 */
#include <getopt.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cuda_runtime_api.h>
#include "fabric.h"

#define RUNS 5 /* timed, the median counts; one before them is not timed */
#define SIZES 6
#define FLAG_ROUNDS 1000u
#define LAUNCHES 1000
#define TIMEOUT_NS 5000000000ull

extern void fabric_lanes_kernel(void);
extern void fabric_bulk_kernel(void);
extern void fabric_flag_kernel(void);
extern void fabric_empty_kernel(void);

static const struct method {
	const char *name;
	int pull, bulk;
} methods[] = {
	{ "push, 16-byte stores", 0, 0 },
	{ "push, bulk copies", 0, 1 },
	{ "pull, 16-byte loads", 1, 0 },
	{ "pull, bulk copies", 1, 1 },
};
#define METHODS ((int)(sizeof(methods) / sizeof(methods[0])))

struct gpu {
	pthread_t thread;
	int number;
	char *from, *to; /* rows for each other GPU, and rows of each other GPU */
	char *host;
	uint32_t *flag, *late;
	cudaStream_t stream;
	cudaEvent_t begin, end;
	float us;
};

static struct gpu gpus[FABRIC_GPUS];
static int ngpus;
static int npeers;             /* of each GPU; it is its own where it is alone */
static uint32_t rows_per_peer; /* all peers of a GPU together get the same bytes, however many */
static int sms[SIZES] = { 4, 8, 16, 32, 64, 0 };
static pthread_barrier_t barrier;
static float gbs[METHODS][SIZES];
static long wrong;
static float flag_us = -1, launch_us;

static void must(cudaError_t err, const char *what)
{
	if (err != cudaSuccess) {
		fprintf(stderr, "ep_fabric: %s: %s\n", what, cudaGetErrorString(err));
		exit(3);
	}
}

static uint32_t word_of(int gpu, size_t i)
{
	return (uint32_t)i * 2654435761u + (uint32_t)gpu * 40503u + 1;
}

static size_t block_bytes(void)
{
	return (size_t)rows_per_peer * FABRIC_ROW;
}

/* The place among the blocks of `gpu` that belongs to `other`; they lie in the order of peers. */
static size_t block_of(int gpu, int other)
{
	int distance = (other - gpu + ngpus) % ngpus;

	return (size_t)(npeers == 1 ? 0 : distance - 1) * block_bytes();
}

static int peer_of(const struct gpu *g, int i)
{
	return ngpus == 1 ? g->number : (g->number + 1 + i) % ngpus;
}

static void prepare(struct gpu *g)
{
	size_t bytes = block_bytes() * (size_t)npeers;

	must(cudaSetDevice(g->number), "cudaSetDevice");
	for (int other = 0; other < ngpus; other++) {
		int can = 0;

		if (other == g->number) {
			continue;
		}
		must(cudaDeviceCanAccessPeer(&can, g->number, other), "cudaDeviceCanAccessPeer");
		if (!can) {
			fprintf(stderr, "ep_fabric: GPU %d cannot access the memory of GPU %d\n",
				g->number, other);
			exit(77);
		}
		must(cudaDeviceEnablePeerAccess(other, 0), "cudaDeviceEnablePeerAccess");
	}
	must(cudaMalloc((void **)&g->from, bytes), "cudaMalloc");
	must(cudaMalloc((void **)&g->to, bytes), "cudaMalloc");
	must(cudaMalloc((void **)&g->flag, 2 * 128), "cudaMalloc");
	g->late = g->flag + 32;
	must(cudaMemset(g->flag, 0, 2 * 128), "cudaMemset");
	must(cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking), "cudaStreamCreate");
	must(cudaEventCreate(&g->begin), "cudaEventCreate");
	must(cudaEventCreate(&g->end), "cudaEventCreate");
	must(cudaFuncSetAttribute((const void *)fabric_bulk_kernel,
				  cudaFuncAttributeMaxDynamicSharedMemorySize,
				  (int)(FABRIC_BULK_WARPS * FABRIC_BULK_STAGES * FABRIC_ROW)),
	     "shared memory");
	g->host = malloc(bytes);
	if (!g->host) {
		fprintf(stderr, "ep_fabric: no memory\n");
		exit(3);
	}
	for (size_t i = 0; i < bytes / 4; i++) {
		((uint32_t *)g->host)[i] = word_of(g->number, i);
	}
	must(cudaMemcpy(g->from, g->host, bytes, cudaMemcpyHostToDevice), "cudaMemcpy");
	must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

static void launch(struct gpu *g, const void *kernel, int blocks, int threads, size_t shared,
		   void *args)
{
	cudaLaunchConfig_t config = { 0 };
	void *params[] = { args };

	config.gridDim.x = (unsigned int)blocks;
	config.blockDim.x = (unsigned int)threads;
	config.gridDim.y = config.gridDim.z = config.blockDim.y = config.blockDim.z = 1;
	config.dynamicSmemBytes = shared;
	config.stream = g->stream;
	must(cudaLaunchKernelExC(&config, kernel, params), "launch");
}

static void copy(struct gpu *g, const struct method *method, int blocks)
{
	struct fabric_copy_args a = { .peers = (uint32_t)npeers,
				      .rows = rows_per_peer * (uint32_t)npeers,
				      .timeout_ns = TIMEOUT_NS,
				      .late = g->late };

	for (int i = 0; i < npeers; i++) {
		struct gpu *peer = gpus + peer_of(g, i);
		size_t here = block_of(g->number, peer->number);
		size_t there = block_of(peer->number, g->number);

		a.from[i] = method->pull ? peer->from + there : g->from + here;
		a.to[i] = method->pull ? g->to + here : peer->to + there;
	}
	pthread_barrier_wait(&barrier);
	must(cudaEventRecord(g->begin, g->stream), "cudaEventRecord");
	if (method->bulk) {
		launch(g, (const void *)fabric_bulk_kernel, blocks, FABRIC_BULK_WARPS * 32,
		       FABRIC_BULK_WARPS * FABRIC_BULK_STAGES * FABRIC_ROW, &a);
	} else {
		launch(g, (const void *)fabric_lanes_kernel, blocks, FABRIC_STORE_THREADS, 0, &a);
	}
	must(cudaEventRecord(g->end, g->stream), "cudaEventRecord");
	must(cudaEventSynchronize(g->end), "copy");
	must(cudaEventElapsedTime(&g->us, g->begin, g->end), "cudaEventElapsedTime");
	g->us *= 1000;
	pthread_barrier_wait(&barrier);
}

static int by_value(const void *a, const void *b)
{
	float x = *(const float *)a;
	float y = *(const float *)b;

	return (x > y) - (x < y);
}

static void measure(struct gpu *g, int m, int size)
{
	double bytes = (double)block_bytes() * npeers;
	float slowest[RUNS];

	copy(g, methods + m, sms[size]);
	for (int run = 0; run < RUNS; run++) {
		copy(g, methods + m, sms[size]);
		slowest[run] = 0;
		for (int i = 0; i < ngpus; i++) {
			slowest[run] = gpus[i].us > slowest[run] ? gpus[i].us : slowest[run];
		}
		pthread_barrier_wait(&barrier);
	}
	qsort(slowest, RUNS, sizeof(slowest[0]), by_value);
	if (g->number == 0) {
		gbs[m][size] = (float)(bytes / slowest[RUNS / 2] / 1e3);
	}
}

/* Checks that each other GPU's data is what that one has for this. */
static void compare(struct gpu *g)
{
	size_t bytes = block_bytes() * (size_t)npeers;
	long bad = 0;

	must(cudaMemcpy(g->host, g->to, bytes, cudaMemcpyDeviceToHost), "cudaMemcpy");
	for (int i = 0; i < npeers; i++) {
		int other = peer_of(g, i);
		size_t here = block_of(g->number, other) / 4;
		size_t there = block_of(other, g->number) / 4;

		for (size_t w = 0; w < block_bytes() / 4; w++) {
			bad += ((uint32_t *)g->host)[here + w] != word_of(other, there + w);
		}
	}
	__atomic_fetch_add(&wrong, bad, __ATOMIC_RELAXED);
	must(cudaMemset(g->to, 0xee, bytes), "cudaMemset");
	must(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
	pthread_barrier_wait(&barrier);
}

static float stream_us(struct gpu *g)
{
	float ms;

	must(cudaEventRecord(g->end, g->stream), "cudaEventRecord");
	must(cudaEventSynchronize(g->end), "kernels");
	must(cudaEventElapsedTime(&ms, g->begin, g->end), "cudaEventElapsedTime");
	return ms * 1000;
}

/* Half a round trip of a flag between the first two GPUs, and what launches cost. */
static void latencies(struct gpu *g, uint32_t rounds)
{
	struct fabric_empty_args nothing = { 0 };

	if (g->number < 2 && ngpus > 1) {
		struct gpu *other = gpus + !g->number;
		struct fabric_flag_args a = { .mine = g->flag,
					      .theirs = other->flag,
					      .first = g->number == 0,
					      .rounds = rounds,
					      .timeout_ns = TIMEOUT_NS,
					      .late = g->late };

		must(cudaEventRecord(g->begin, g->stream), "cudaEventRecord");
		launch(g, (const void *)fabric_flag_kernel, 1, 32, 0, &a);
		g->us = stream_us(g);
	}
	pthread_barrier_wait(&barrier);
	if (g->number == 0) {
		flag_us = ngpus > 1 ? g->us / (float)(2 * rounds) : -1;
		launch(g, (const void *)fabric_empty_kernel, 1, 32, 0, &nothing);
		must(cudaEventRecord(g->begin, g->stream), "cudaEventRecord");
		for (int i = 0; i < LAUNCHES; i++) {
			launch(g, (const void *)fabric_empty_kernel, 1, 32, 0, &nothing);
		}
		launch_us = stream_us(g) / LAUNCHES;
	}
}

static void *run(void *argument)
{
	struct gpu *g = argument;
	uint32_t late;

	must(cudaSetDevice(g->number), "cudaSetDevice");
	for (int m = 0; m < METHODS; m++) {
		for (int size = 0; size < SIZES; size++) {
			measure(g, m, size);
		}
		compare(g);
	}
	latencies(g, FLAG_ROUNDS);
	must(cudaMemcpy(&late, g->late, sizeof(late), cudaMemcpyDeviceToHost), "cudaMemcpy");
	if (late) {
		fprintf(stderr, "ep_fabric: GPU %d gave a copy or a flag up\n", g->number);
		exit(3);
	}
	return NULL;
}

static void print(void)
{
	printf("# GPUs: %d, rows of %u bytes, GB/s %s, all GPUs at once\n%-22s", ngpus, FABRIC_ROW,
	       ngpus > 1 ? "out of each GPU" : "copied inside the GPU", "# SMs");
	for (int size = 0; size < SIZES; size++) {
		printf(" %7d", sms[size]);
	}
	for (int m = 0; m < METHODS; m++) {
		printf("\n%-22s", methods[m].name);
		for (int size = 0; size < SIZES; size++) {
			printf(" %7.1f", (double)gbs[m][size]);
		}
	}
	if (flag_us >= 0) {
		printf("\n# a flag takes %.2f us", (double)flag_us);
	}
	printf("\n# a launch takes %.2f us\n# wrong words: %ld\n", (double)launch_us, wrong);
}

/* Closes `f`, unless it is stdout. Non-zero, with a line, if not all that was written there has arrived. */
static int finish(FILE *f, const char *name)
{
	int lost = ferror(f);

	if ((f == stdout ? fflush(f) : fclose(f)) || lost) {
		fprintf(stderr, "ep_fabric: %s: not all results could be written\n", name);
		return -1;
	}
	return 0;
}

static int write_json(const char *name, const char *gpu)
{
	FILE *f = fopen(name, "w");

	if (!f) {
		perror(name);
		return -1;
	}
	fprintf(f, "{\"schema\": \"ep_fabric\", \"schema_version\": 1, \"gpus\": %d, ", ngpus);
	fprintf(f, "\"name\": \"%s\", \"row_bytes\": %u, \"between\": \"%s\",\n", gpu, FABRIC_ROW,
		ngpus > 1 ? "GPUs" : "memory of one GPU");
	fprintf(f, " \"results\": [");
	for (int i = 0; i < METHODS * SIZES; i++) {
		fprintf(f, "%s\n  {\"method\": \"%s\", \"sms\": %d, \"gbs\": %.4g}", i ? "," : "",
			methods[i / SIZES].name, sms[i % SIZES], (double)gbs[i / SIZES][i % SIZES]);
	}
	fprintf(f, "],\n \"flag_us\": ");
	flag_us < 0 ? fprintf(f, "null") : fprintf(f, "%.4g", (double)flag_us);
	fprintf(f, ", \"launch_us\": %.4g, \"wrong\": %ld}\n", (double)launch_us, wrong);
	return finish(f, name);
}

int main(int argc, char **argv)
{
	struct cudaDeviceProp properties;
	const char *json = NULL;
	unsigned long rows = 16384;
	int c;

	while ((c = getopt(argc, argv, "J:r:")) != -1) {
		if (c == 'J') {
			json = optarg;
		} else if (c != 'r' || (rows = strtoul(optarg, NULL, 0)) < FABRIC_GPUS ||
			   rows > 1 << 20) {
			fprintf(stderr, "usage: ep_fabric [-r ROWS (8 to 1048576)] [-J FILE]\n");
			return 2;
		}
	}
	must(cudaGetDeviceCount(&ngpus), "cudaGetDeviceCount");
	ngpus = ngpus < FABRIC_GPUS ? ngpus : FABRIC_GPUS;
	must(cudaGetDeviceProperties(&properties, 0), "cudaGetDeviceProperties");
	sms[SIZES - 1] = properties.multiProcessorCount;
	npeers = ngpus > 1 ? ngpus - 1 : 1;
	rows_per_peer = (uint32_t)rows / (uint32_t)npeers;
	pthread_barrier_init(&barrier, NULL, (unsigned int)ngpus);
	for (int i = 0; i < ngpus; i++) {
		gpus[i].number = i;
		prepare(gpus + i);
	}
	for (int i = 0; i < ngpus; i++) {
		if (pthread_create(&gpus[i].thread, NULL, run, gpus + i)) {
			fprintf(stderr, "ep_fabric: no thread\n");
			return 3;
		}
	}
	for (int i = 0; i < ngpus; i++) {
		pthread_join(gpus[i].thread, NULL);
	}
	print();
	if (finish(stdout, "standard output") || (json && write_json(json, properties.name))) {
		return 3;
	}
	return wrong != 0;
}
