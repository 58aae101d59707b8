/* SPDX-License-Identifier: Apache-2.0 */
/* Order and concurrency of streams, events, host functions. Runs on a GPU too. */
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>
#include "test.h"
#include "kernels.h"

static void host_add(void *arg)
{
	usleep(2000);
	atomic_fetch_add((_Atomic int *)arg, 1);
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* Kernels on different streams overlap, on one stream they do not. */
static void test_overlap(void)
{
	enum {
		n = 4
	};
	struct test_add_args args = { .add = 1, .spin_ns = 100000000 };
	cudaStream_t stream[n];
	double start, apart, same;

	NEED(cudaMalloc((void **)&args.word, 64));
	for (int i = 0; i < n; i++) {
		NEED(cudaStreamCreateWithFlags(&stream[i], cudaStreamNonBlocking));
		OK(test_launch(test_copy, 1, 32, &(struct test_copy_args){ 0 }, 0, stream[i]));
	}
	OK(cudaDeviceSynchronize());
	start = now();
	for (int i = 0; i < n; i++) {
		OK(test_launch(test_add, 1, 32, &args, 0, stream[i]));
	}
	OK(cudaDeviceSynchronize());
	apart = now() - start;
	start = now();
	for (int i = 0; i < n; i++) {
		OK(test_launch(test_add, 1, 32, &args, 0, stream[0]));
	}
	OK(cudaDeviceSynchronize());
	same = now() - start;
	CHECK(same >= 0.4);
	CHECK(apart < same - 0.1);
	for (int i = 0; i < n; i++) {
		OK(cudaStreamDestroy(stream[i]));
	}
	OK(cudaFree(args.word));
}

/* A slow kernel, an event, and a copy on another stream that must see its result. */
static void test_event_order(void)
{
	struct test_add_args args = { .add = 5, .spin_ns = 50000000 };
	uint32_t *out, host = 0;
	struct test_copy_args copy = { .n = 1 };
	cudaStream_t a, b;
	cudaEvent_t event;
	float ms;

	NEED(cudaMalloc((void **)&args.word, 64));
	NEED(cudaMalloc((void **)&out, 64));
	OK(cudaMemset(args.word, 0, 64));
	OK(cudaMemset(out, 0, 64));
	OK(cudaDeviceSynchronize());
	NEED(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking));
	NEED(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking));
	NEED(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
	copy.to = out;
	copy.from = args.word;
	OK(test_launch(test_add, 1, 32, &args, 0, a));
	OK(cudaEventRecord(event, a));
	args.word += 4;
	OK(test_launch(test_add, 1, 32, &args, 0, a)); /* after the event: not waited for */
	OK(cudaStreamWaitEvent(b, event, 0));
	OK(test_launch(test_copy, 1, 32, &copy, 0, b));
	OK(cudaStreamSynchronize(b));
	CHECK_CUDA(cudaStreamQuery(a), cudaErrorNotReady);
	OK(cudaMemcpyAsync(&host, out, 4, cudaMemcpyDefault, b));
	OK(cudaStreamSynchronize(b));
	CHECK_INT(host, 5);
	OK(cudaEventDestroy(event));

	cudaEvent_t from, to;

	NEED(cudaEventCreate(&from));
	NEED(cudaEventCreate(&to));
	OK(cudaEventRecord(from, b));
	OK(test_launch(test_add, 1, 32, &args, 0, b));
	OK(cudaEventRecord(to, b));
	OK(cudaEventSynchronize(to));
	OK(cudaEventElapsedTime(&ms, from, to));
	CHECK(ms >= 49 && ms < 5000);
	OK(cudaEventDestroy(from));
	OK(cudaEventDestroy(to));
	OK(cudaStreamDestroy(a));
	OK(cudaStreamDestroy(b));
	OK(cudaFree(args.word - 4));
	OK(cudaFree(out));
}

/* The legacy stream waits for blocking streams and they for it; non-blocking ones do not care. */
static void test_legacy(void)
{
	struct test_add_args args = { .add = 1, .spin_ns = 50000000 };
	struct test_copy_args copy = { .n = 1 };
	cudaStream_t blocking, other, loose;
	uint32_t *memory, host[4] = { 0, 0, 0, 0 };

	NEED(cudaMalloc((void **)&memory, 64));
	OK(cudaMemset(memory, 0, 64));
	NEED(cudaStreamCreate(&blocking));
	NEED(cudaStreamCreate(&other));
	NEED(cudaStreamCreateWithFlags(&loose, cudaStreamNonBlocking));
	OK(cudaDeviceSynchronize());
	args.word = memory;
	OK(test_launch(test_add, 1, 32, &args, 0, blocking));
	copy.from = memory + 4;
	copy.to = memory + 3;
	OK(test_launch(test_copy, 1, 32, &copy, 0, loose));
	copy.from = memory;
	copy.to = memory + 1;
	OK(test_launch(test_copy, 1, 32, &copy, 0, NULL));
	copy.from = memory + 1;
	copy.to = memory + 2;
	OK(test_launch(test_copy, 1, 32, &copy, 0, other));
	OK(cudaStreamSynchronize(loose));
	CHECK_CUDA(cudaStreamQuery(blocking), cudaErrorNotReady);
	OK(cudaStreamSynchronize(other));
	OK(cudaMemcpy(host, memory, sizeof(host), cudaMemcpyDeviceToHost));
	CHECK_INT(host[0], 1);
	CHECK_INT(host[1], 1);
	CHECK_INT(host[2], 1);
	CHECK_INT(host[3], 0);
	OK(cudaStreamDestroy(blocking));
	OK(cudaStreamDestroy(other));
	OK(cudaStreamDestroy(loose));
	OK(cudaFree(memory));
}

/* Host functions and pinned memory in stream order; work of a destroyed stream still runs. */
static void test_host(void)
{
	struct test_add_args args = { .add = 3, .spin_ns = 20000000 };
	_Atomic int calls = 0;
	cudaStream_t stream;
	uint32_t *pinned, pageable = 9;

	NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	NEED(cudaHostAlloc((void **)&pinned, 4096, cudaHostAllocMapped));
	OK(cudaHostGetDevicePointer((void **)&args.word, pinned, 0));
	*pinned = 4;
	OK(test_launch(test_add, 1, 32, &args, 0, stream));
	OK(cudaLaunchHostFunc(stream, host_add, &calls));
	OK(cudaLaunchHostFunc(stream, host_add, &calls));
	CHECK_INT(atomic_load(&calls), 0);
	OK(cudaStreamSynchronize(stream));
	CHECK_INT(atomic_load(&calls), 2);
	CHECK_INT(*pinned, 7);
	/* pageable memory may change right after the call */
	OK(test_launch(test_add, 1, 32, &args, 0, stream));
	OK(cudaMemcpyAsync(pinned + 1, &pageable, 4, cudaMemcpyDefault, stream));
	pageable = 10;
	OK(cudaLaunchHostFunc(stream, host_add, &calls));
	OK(cudaStreamDestroy(stream));
	for (int i = 0; i < 2000 && atomic_load(&calls) < 3; i++) {
		usleep(1000);
	}
	CHECK_INT(atomic_load(&calls), 3);
	CHECK_INT(pinned[0], 10);
	CHECK_INT(pinned[1], 9);
	OK(cudaFreeHost(pinned));
}

#define FETCHED ((size_t)16 << 20)

struct fetch {
	cudaStream_t stream;
	uint8_t *from, *to;
	atomic_bool starts;
};

static void *fetch_main(void *arg)
{
	struct fetch *fetch = arg;

	atomic_store(&fetch->starts, true);
	OK(cudaMemcpyAsync(fetch->to, fetch->from, FETCHED, cudaMemcpyDeviceToHost, fetch->stream));
	return NULL;
}

/*
 * What another thread submits while a copy to pageable memory is under way runs after it, or all of
 * it before.
 */
static void test_two_threads(void)
{
	struct fetch fetch;
	size_t changed = 0;

	NEED(cudaMalloc((void **)&fetch.from, FETCHED));
	NEED(cudaStreamCreateWithFlags(&fetch.stream, cudaStreamNonBlocking));
	fetch.to = malloc(FETCHED);
	for (int round = 1; round <= 8; round++) {
		pthread_t thread;

		OK(cudaMemset(fetch.from, 0, FETCHED));
		OK(cudaDeviceSynchronize());
		atomic_store(&fetch.starts, false);
		pthread_create(&thread, NULL, fetch_main, &fetch);
		while (!atomic_load(&fetch.starts)) {
		}
		usleep((useconds_t)round * 200);
		OK(cudaMemsetAsync(fetch.from, round, FETCHED, fetch.stream));
		OK(cudaStreamSynchronize(fetch.stream));
		pthread_join(thread, NULL);
		for (size_t i = 1; i < FETCHED; i++) {
			changed += fetch.to[i] != fetch.to[0];
		}
	}
	CHECK(changed == 0);
	free(fetch.to);
	OK(cudaStreamDestroy(fetch.stream));
	OK(cudaFree(fetch.from));
}

int main(void)
{
	test_overlap();
	test_event_order();
	test_legacy();
	test_host();
	test_two_threads();
	return test_result();
}
