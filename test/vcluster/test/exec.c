/* SPDX-License-Identifier: Apache-2.0 */
/* Every primitive of simt.h against values computed here. */
#include <time.h>
#include <unistd.h>
#include "test.h"
#include "kernels.h"

#define BLOCKS 3u
#define THREADS 128u

static void check_thread(const uint32_t *out, uint32_t block, uint32_t tid)
{
	uint32_t lane = tid % 32, warp = tid / 32;
	uint32_t third = 0, fives = 0, eights = 0;

	for (uint32_t i = 0; i < 32; i++) {
		third |= (uint32_t)(i % 3 == 0) << i;
		fives |= (uint32_t)(i % 5 == lane % 5) << i;
		eights |= (uint32_t)(i / 8 == lane / 8) << i;
	}
	CHECK_INT(out[0], tid);
	CHECK_INT(out[1], THREADS << 16 | THREADS / 32);
	CHECK_INT(out[2], warp << 16 | lane);
	CHECK_INT(out[3], block << 16 | BLOCKS);
	CHECK_INT(out[4], third);
	CHECK_INT(out[5], 2);
	CHECK_INT(out[6], 2);
	CHECK_INT(out[7], (31 - lane) * 10);
	CHECK_INT(out[8], 10);
	CHECK_INT(out[9], 3);
	CHECK_INT(out[10], 31);
	CHECK_INT(out[11], lane ^ 21);
	CHECK_INT(out[12], lane ^ 1);
	CHECK_INT(out[13], fives);
	CHECK_INT(out[14], __builtin_popcount(lane) << 8 | __builtin_ctz(lane | 32));
	if (lane & 1) {
		CHECK_INT(out[15], 0xaaaaaa00u);
		CHECK_INT(out[16], (lane + 2) & 31);
	} else {
		uint32_t mine = lane & 2 ? 0x44444444u : 0x11111111u;

		CHECK_INT(out[15], mine & ~0x1ffu);
		CHECK_INT(out[16], mine & eights);
	}
	CHECK_INT(out[17], (lane + 1) * (lane + 2) / 2);
	CHECK_INT(out[18], 31);
	CHECK_INT(out[24], 4 * lane + 6);
	CHECK_INT(out[25], lane + 3);
	CHECK_INT(out[26], 4 * lane + 1 + 4 * lane + 2);
	CHECK_INT(out[27], 1);
}

static void test_primitives(void)
{
	size_t size = BLOCKS * THREADS * TEST_WORDS * sizeof(uint32_t);
	uint32_t *host = malloc(size);
	struct test_ops_args args;
	uint32_t in[128];

	for (uint32_t i = 0; i < 128; i++) {
		in[i] = i;
	}
	NEED(cudaMalloc((void **)&args.in, sizeof(in)));
	OK(cudaMemcpy((void *)args.in, in, sizeof(in), cudaMemcpyHostToDevice));
	NEED(cudaMalloc((void **)&args.out, size));
	OK(test_launch(test_ops, BLOCKS, THREADS, &args, 0, NULL));
	OK(cudaMemcpy(host, args.out, size, cudaMemcpyDeviceToHost));
	for (uint32_t i = 0; i < BLOCKS * THREADS && !test_failures; i++) {
		check_thread(host + (size_t)i * TEST_WORDS, i / THREADS, i % THREADS);
	}
	OK(cudaFree(args.out));
	OK(cudaFree((void *)args.in));
	free(host);
}

/* 40 blocks on 8 SMs: later blocks get the shared memory of earlier ones. */
static void test_shared_memory(void)
{
	enum {
		blocks = 40,
		threads = 128,
		words = 1000
	};
	uint32_t host[blocks], counter[6] = { 0 }, stale;
	struct test_shared_args args = { .words = words };
	uint64_t high;

	NEED(cudaMalloc((void **)&args.out, sizeof(host)));
	NEED(cudaMalloc((void **)&args.counter, sizeof(counter)));
	NEED(cudaMalloc((void **)&args.stale, sizeof(stale)));
	OK(cudaMemcpy(args.counter, counter, sizeof(counter), cudaMemcpyHostToDevice));
	OK(cudaMemset(args.stale, 0, sizeof(stale)));
	OK(test_launch(test_shared, blocks, threads, &args, words * 4, NULL));
	OK(cudaMemcpy(host, args.out, sizeof(host), cudaMemcpyDeviceToHost));
	OK(cudaMemcpy(counter, args.counter, sizeof(counter), cudaMemcpyDeviceToHost));
	OK(cudaMemcpy(&stale, args.stale, sizeof(stale), cudaMemcpyDeviceToHost));
	for (uint32_t i = 0; i < blocks; i++) {
		CHECK_INT(host[i], 10 * threads + 1 + words * (words - 1) / 2);
	}
	memcpy(&high, counter + 4, sizeof(high));
	CHECK_INT(stale, 0);
	CHECK_INT(counter[0], blocks * threads);
	CHECK_INT(counter[3], 2 * blocks * threads);
	CHECK_INT(high >> 32, blocks * threads);
	OK(cudaFree(args.out));
	OK(cudaFree(args.counter));
	OK(cudaFree(args.stale));
}

/* Two grids on two streams that wait for each other's packets and flags. */
static void test_two_grids(void)
{
	enum {
		blocks = 2,
		threads = 64,
		rounds = 20
	};
	cudaStream_t stream[2];
	uint32_t *word, host[2], expect = 0;
	void *mail[2];
	struct test_packet_args args[2];

	NEED(cudaMalloc((void **)&word, 16));
	OK(cudaMemset(word, 0, 16));
	for (int i = 0; i < 2; i++) {
		NEED(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking));
		NEED(cudaMalloc(&mail[i], 8192));
		OK(cudaMemset(mail[i], 0, 8192));
	}
	OK(cudaDeviceSynchronize());
	for (int i = 0; i < 2; i++) {
		args[i] = (struct test_packet_args){ .to = mail[!i],
						     .from = mail[i],
						     .epoch = 1,
						     .rounds = rounds,
						     .sum = word,
						     .late = word + 1,
						     .timeout_ns = 20000000000ull };
		OK(test_launch(test_packet, blocks, threads, &args[i], 0, stream[i]));
	}
	for (int i = 0; i < 2; i++) {
		OK(cudaStreamSynchronize(stream[i]));
	}
	OK(cudaMemcpy(host, word, sizeof(host), cudaMemcpyDeviceToHost));
	for (uint32_t r = 1; r <= rounds; r++) {
		expect += r * 3 * blocks * threads * 2;
	}
	CHECK_INT(host[0], expect);
	CHECK_INT(host[1], 0);
	for (int i = 0; i < 2; i++) {
		OK(cudaStreamDestroy(stream[i]));
		OK(cudaFree(mail[i]));
	}
	OK(cudaFree(word));
}

static void test_flags(void)
{
	enum {
		n = 777
	};
	cudaStream_t stream[2];
	uint32_t *memory, host[n];
	struct test_flag_args args = { .n = n, .value = 4711, .timeout_ns = 20000000000ull };

	NEED(cudaMalloc((void **)&memory, 65536));
	OK(cudaMemset(memory, 0, 65536));
	OK(cudaDeviceSynchronize());
	args.data = memory;
	args.flag = memory + 1024;
	args.out = memory + 2048;
	for (int i = 1; i >= 0; i--) {
		NEED(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking));
		args.role = (uint32_t)i;
		OK(test_launch(test_flag, 1, 96, &args, 0, stream[i]));
	}
	for (int i = 0; i < 2; i++) {
		OK(cudaStreamSynchronize(stream[i]));
		OK(cudaStreamDestroy(stream[i]));
	}
	OK(cudaMemcpy(host, args.out, sizeof(host), cudaMemcpyDeviceToHost));
	for (uint32_t i = 0; i < n; i++) {
		CHECK_INT(host[i], 4711 + i);
	}
	OK(cudaFree(memory));
}

/* A bounded wait ends by itself. */
static void test_timeout(void)
{
	struct test_flag_args args = { .n = 1, .value = 1, .role = 1, .timeout_ns = 30000000 };
	uint32_t *memory, host;

	NEED(cudaMalloc((void **)&memory, 4096));
	OK(cudaMemset(memory, 0, 4096));
	args.data = memory;
	args.flag = memory + 16;
	args.out = memory + 32;
	OK(test_launch(test_flag, 1, 32, &args, 0, NULL));
	OK(cudaDeviceSynchronize());
	OK(cudaMemcpy(&host, args.out, sizeof(host), cudaMemcpyDeviceToHost));
	CHECK_INT(host, 0);
	OK(cudaFree(memory));
}

#ifdef __SANITIZE_THREAD__
#define SLOW_VOTES true
#else
#define SLOW_VOTES false
#endif

static double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/*
 * Warps that wait, one lane of each on behalf of all, leave the CPU to others; also those that look
 * for something else between two polls.
 */
static void test_waiting_warps(uint32_t looks)
{
	enum {
		blocks = 2,
		threads = 64,
		wait_us = 600000
	};
	struct test_votes_args args = { .timeout_ns = 20000000000ull, .looks = looks };
	uint32_t *word, seen = 0;
	double start;

	NEED(cudaMallocHost((void **)&word, sizeof(*word)));
	NEED(cudaMalloc((void **)&args.seen, sizeof(seen)));
	OK(cudaMemcpy(args.seen, &seen, sizeof(seen), cudaMemcpyHostToDevice));
	*word = 0;
	args.word = word;
	OK(test_launch(test_votes, blocks, threads, &args, 0, NULL));
	start = cpu_seconds();
	usleep(wait_us);
	start = cpu_seconds() - start;
	__atomic_store_n(word, 1, __ATOMIC_RELAXED);
	OK(cudaMemcpy(&seen, args.seen, sizeof(seen), cudaMemcpyDeviceToHost));
	CHECK_INT(seen, blocks * threads);
	printf("two blocks that waited for %.1f s took %.2f s of CPU\n", wait_us * 1e-6, start);
	/* twice the time, on cores of their own, if they spun */
	CHECK(start < wait_us * (SLOW_VOTES ? 1.2e-6 : 0.4e-6));
	OK(cudaFree(args.seen));
	OK(cudaFreeHost(word));
}

/* With a seed a kernel cannot rely on block 0 having started before the last one. */
static void test_block_order(void)
{
	enum {
		blocks = 8,
		launches = 100
	};
	const char *seed = getenv("VC_SEED");
	struct test_order_args args;
	uint32_t *memory, host[2], last = 0;

	if (!seed || !strcmp(seed, "0")) {
		return;
	}
	NEED(cudaMalloc((void **)&memory, sizeof(host)));
	args = (struct test_order_args){ .started = memory, .first = memory + 1 };
	for (int i = 0; i < launches; i++) {
		OK(cudaMemset(memory, 0, sizeof(host)));
		OK(test_launch(test_order, blocks, 32, &args, 0, NULL));
		OK(cudaMemcpy(host, memory, sizeof(host), cudaMemcpyDeviceToHost));
		CHECK_INT(host[0], blocks);
		last += host[1] == blocks - 1;
	}
	printf("the last block was the first to start in %u of %d launches\n", last, launches);
	CHECK(last >= launches / blocks / 4);
	OK(cudaFree(memory));
}

int main(void)
{
	test_primitives();
	test_shared_memory();
	test_two_grids();
	test_flags();
	test_timeout();
	test_waiting_warps(0);
	test_waiting_warps(4);
	test_block_order();
	return test_result();
}
