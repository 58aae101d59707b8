/* SPDX-License-Identifier: Apache-2.0 */
/* Capture and replay, and what a capture refuses. Runs on a GPU too. */
#include <pthread.h>
#include <stdatomic.h>
#include "test.h"
#include "kernels.h"

static cudaStream_t stream, side, blocking;
static uint32_t *memory;

static void host_count(void *arg)
{
	atomic_fetch_add((_Atomic int *)arg, 1);
}

static uint32_t word(int i)
{
	uint32_t host;

	OK(cudaMemcpyAsync(&host, memory + i, 4, cudaMemcpyDeviceToHost, stream));
	OK(cudaStreamSynchronize(stream));
	return host;
}

/* Fork and join, a copy, a fill, a host function; replayed with what memory holds then. */
static void test_replay(void)
{
	struct test_add_args add = { .word = memory, .add = 2 };
	struct test_copy_args copy = { .to = memory + 1, .from = memory, .n = 1 };
	enum cudaStreamCaptureStatus status;
	_Atomic int calls = 0;
	cudaEvent_t fork, join;
	cudaGraphExec_t exec;
	cudaGraph_t graph;
	size_t nodes;

	NEED(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
	NEED(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
	OK(cudaMemsetAsync(memory, 0, 64, stream));
	OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
	OK(test_launch(test_add, 1, 32, &add, 0, stream));
	add.add = 1000; /* the arguments were taken at the launch */
	OK(cudaEventRecord(fork, stream));
	OK(cudaStreamWaitEvent(side, fork, 0));
	OK(cudaStreamIsCapturing(side, &status));
	CHECK_INT(status, cudaStreamCaptureStatusActive);
	OK(test_launch(test_copy, 1, 32, &copy, 0, side));
	OK(cudaMemcpyAsync(memory + 2, memory, 4, cudaMemcpyDeviceToDevice, stream));
	OK(cudaLaunchHostFunc(stream, host_count, &calls));
	OK(cudaEventRecord(join, side));
	OK(cudaStreamWaitEvent(stream, join, 0));
	OK(cudaMemsetAsync(memory + 3, 0x11, 4, stream));
	OK(cudaStreamEndCapture(stream, &graph));
	OK(cudaStreamIsCapturing(side, &status));
	CHECK_INT(status, cudaStreamCaptureStatusNone);
	OK(cudaGraphGetNodes(graph, NULL, &nodes));
	CHECK_INT(nodes, 5);
	CHECK_INT(word(0), 0); /* nothing ran yet */
	OK(cudaGraphInstantiate(&exec, graph, 0));
	OK(cudaGraphDestroy(graph));
	for (int i = 1; i <= 3; i++) {
		OK(cudaGraphLaunch(exec, stream));
	}
	CHECK_INT(word(0), 6);
	CHECK_INT(word(1), 6);
	CHECK_INT(word(2), 6);
	CHECK_INT(word(3), 0x11111111);
	CHECK_INT(atomic_load(&calls), 3);
	/* One executable graph on two streams: its launches still follow each other. */
	OK(cudaGraphLaunch(exec, side));
	OK(cudaGraphLaunch(exec, stream));
	OK(cudaGraphExecDestroy(exec));
	OK(cudaStreamSynchronize(side));
	CHECK_INT(word(1), 10);
	CHECK_INT(atomic_load(&calls), 5);
	OK(cudaEventDestroy(fork));
	OK(cudaEventDestroy(join));
}

/* Two branches that wait for each other: they must run at the same time. */
static void test_branches(void)
{
	struct test_flag_args args = { .n = 4, .value = 77, .timeout_ns = 20000000000ull };
	cudaEvent_t fork, join;
	cudaGraphExec_t exec;
	cudaGraph_t graph;

	args.data = memory;
	args.flag = memory + 8;
	args.out = memory + 4;
	OK(cudaMemsetAsync(memory, 0, 64, stream));
	OK(cudaStreamSynchronize(stream));
	NEED(cudaEventCreateWithFlags(&fork, cudaEventDisableTiming));
	NEED(cudaEventCreateWithFlags(&join, cudaEventDisableTiming));
	OK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
	OK(cudaEventRecord(fork, stream));
	OK(cudaStreamWaitEvent(side, fork, 0));
	args.role = 1;
	OK(test_launch(test_flag, 1, 32, &args, 0, stream));
	args.role = 0;
	OK(test_launch(test_flag, 1, 32, &args, 0, side));
	OK(cudaEventRecord(join, side));
	OK(cudaStreamWaitEvent(stream, join, 0));
	OK(cudaStreamEndCapture(stream, &graph));
	OK(cudaGraphInstantiate(&exec, graph, 0));
	OK(cudaGraphLaunch(exec, stream));
	CHECK_INT(word(7), 80);
	OK(cudaGraphExecDestroy(exec));
	OK(cudaGraphDestroy(graph));
	OK(cudaEventDestroy(fork));
	OK(cudaEventDestroy(join));
}

static void begin(enum cudaStreamCaptureMode mode)
{
	OK(cudaStreamBeginCapture(stream, mode));
}

/* Ends a capture that must have been spoilt, or not. */
static void end(cudaError_t want)
{
	cudaGraph_t graph = NULL;

	CHECK_CUDA(cudaStreamEndCapture(stream, &graph), want);
	if (graph) {
		OK(cudaGraphDestroy(graph));
	}
	cudaGetLastError();
}

static void test_refused(void)
{
	struct test_add_args add = { .word = memory, .add = 2 };
	cudaError_t bad = cudaErrorStreamCaptureUnsupported;
	enum cudaStreamCaptureMode mode;
	cudaEvent_t event, outside;
	cudaGraph_t graph;
	uint32_t host;
	void *p;

	NEED(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
	NEED(cudaEventCreateWithFlags(&outside, cudaEventDisableTiming));
	CHECK_CUDA(cudaStreamEndCapture(stream, &graph), cudaErrorIllegalState);
	CHECK_CUDA(cudaStreamBeginCapture(NULL, cudaStreamCaptureModeGlobal), bad);

	begin(cudaStreamCaptureModeGlobal);
	CHECK_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal),
		   cudaErrorIllegalState);
	end(cudaSuccess);

	begin(cudaStreamCaptureModeGlobal);
	CHECK_CUDA(cudaMalloc(&p, 16), bad);
	CHECK_CUDA(test_launch(test_add, 1, 32, &add, 0, stream),
		   cudaErrorStreamCaptureInvalidated);
	end(cudaErrorStreamCaptureInvalidated);

	begin(cudaStreamCaptureModeThreadLocal);
	CHECK_CUDA(cudaMalloc(&p, 16), bad);
	end(cudaErrorStreamCaptureInvalidated);

	begin(cudaStreamCaptureModeRelaxed);
	OK(cudaMalloc(&p, 16));
	end(cudaSuccess);
	OK(cudaFree(p));

	begin(cudaStreamCaptureModeGlobal);
	mode = cudaStreamCaptureModeRelaxed;
	OK(cudaThreadExchangeStreamCaptureMode(&mode));
	OK(cudaMalloc(&p, 16));
	OK(cudaThreadExchangeStreamCaptureMode(&mode));
	CHECK_INT(mode, cudaStreamCaptureModeRelaxed);
	end(cudaSuccess);
	OK(cudaFree(p));

	begin(cudaStreamCaptureModeGlobal);
	CHECK_CUDA(cudaStreamSynchronize(stream), bad);
	end(cudaErrorStreamCaptureInvalidated);

	begin(cudaStreamCaptureModeRelaxed);
	CHECK_CUDA(cudaStreamQuery(stream), bad);
	end(cudaErrorStreamCaptureInvalidated);

	begin(cudaStreamCaptureModeGlobal);
	CHECK_CUDA(cudaDeviceSynchronize(), bad);
	end(cudaErrorStreamCaptureInvalidated);

	begin(cudaStreamCaptureModeGlobal);
	OK(cudaMemcpy(&host, memory, 4, cudaMemcpyDefault)); /* not of a blocking stream */
	end(cudaSuccess);

	/* the legacy stream would have to wait for a capture */
	OK(cudaStreamBeginCapture(blocking, cudaStreamCaptureModeRelaxed));
	CHECK_CUDA(test_launch(test_add, 1, 32, &add, 0, NULL), cudaErrorStreamCaptureImplicit);
	CHECK_CUDA(cudaStreamEndCapture(blocking, &graph), cudaErrorStreamCaptureInvalidated);
	cudaGetLastError();

	begin(cudaStreamCaptureModeGlobal);
	OK(cudaEventRecord(event, stream));
	CHECK_CUDA(cudaEventSynchronize(event), cudaErrorCapturedEvent);
	end(cudaErrorStreamCaptureInvalidated);
	CHECK_CUDA(cudaStreamWaitEvent(side, event, 0), cudaErrorInvalidValue);
	cudaGetLastError();

	OK(cudaEventRecord(outside, side));
	begin(cudaStreamCaptureModeGlobal);
	CHECK_CUDA(cudaStreamWaitEvent(stream, outside, 0), cudaErrorStreamCaptureIsolation);
	end(cudaErrorStreamCaptureInvalidated);

	begin(cudaStreamCaptureModeGlobal);
	OK(cudaEventRecord(event, stream));
	OK(cudaStreamWaitEvent(side, event, 0));
	OK(test_launch(test_add, 1, 32, &add, 0, side));
	CHECK_CUDA(cudaStreamEndCapture(side, &graph), cudaErrorStreamCaptureUnmatched);
	end(cudaErrorStreamCaptureInvalidated);

	begin(cudaStreamCaptureModeGlobal);
	OK(cudaEventRecord(event, stream));
	OK(cudaStreamWaitEvent(side, event, 0));
	OK(test_launch(test_add, 1, 32, &add, 0, side));
	end(cudaErrorStreamCaptureUnjoined);
	OK(test_launch(test_add, 1, 32, &add, 0, side)); /* free again */
	OK(cudaStreamSynchronize(side));
	OK(cudaEventDestroy(event));
	OK(cudaEventDestroy(outside));
}

static void *other_malloc(void *arg)
{
	void *p = NULL;

	OK(cudaSetDevice(0));
	*(cudaError_t *)arg = cudaMalloc(&p, 16);
	if (p) {
		OK(cudaFree(p));
	}
	return NULL;
}

static void *other_end(void *arg)
{
	cudaGraph_t graph;

	OK(cudaSetDevice(0));
	*(cudaError_t *)arg = cudaStreamEndCapture(stream, &graph);
	return NULL;
}

static cudaError_t elsewhere(void *(*run)(void *))
{
	cudaError_t error = cudaErrorUnknown;
	pthread_t thread;

	NEED(pthread_create(&thread, NULL, run, &error));
	pthread_join(thread, NULL);
	return error;
}

/* Captures and other threads: only a global one forbids allocation there. */
static void test_threads(void)
{
	begin(cudaStreamCaptureModeThreadLocal);
	OK(elsewhere(other_malloc));
	end(cudaSuccess);
	begin(cudaStreamCaptureModeGlobal);
	CHECK_CUDA(elsewhere(other_malloc), cudaErrorStreamCaptureUnsupported);
	end(cudaErrorStreamCaptureInvalidated);
	begin(cudaStreamCaptureModeGlobal);
	CHECK_CUDA(elsewhere(other_end), cudaErrorStreamCaptureWrongThread);
	end(cudaErrorIllegalState);
}

int main(void)
{
	NEED(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
	NEED(cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking));
	NEED(cudaStreamCreate(&blocking));
	NEED(cudaMalloc((void **)&memory, 4096));
	test_replay();
	test_branches();
	test_refused();
	test_threads();
	OK(cudaFree(memory));
	OK(cudaStreamDestroy(stream));
	OK(cudaStreamDestroy(side));
	OK(cudaStreamDestroy(blocking));
	return test_result();
}
