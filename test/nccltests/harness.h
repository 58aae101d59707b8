/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a test of nccl-tests-patch/ on the virtual cluster as nccl-tests runs it: a thread per rank,
 * all sizes once, then for each size data, a run, a timed run, data, a run, and the comparison, out
 * of place and in place.
 *
 *   RANKS TYPE TOKENS HIDDEN right|wrong|refused [ROWS BUSY]
 *
 * Sizes go from 1 to TOKENS tokens by doubling. `wrong`: something is preloaded that spoils
 * results, and must be found at each size. ROWS and BUSY: what algbw and busbw count for each
 * token, in rows.
 */
#ifndef TEST_NCCLTESTS_HARNESS_H
#define TEST_NCCLTESTS_HARNESS_H

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <thread>
#include <vector>

static int nranks, failures;
static ncclDataType_t the_type;
static size_t most_tokens, hidden;
static const char *verdict;
static double want_rows, want_busy;
static ncclUniqueId unique_id;

static void expect(bool right, const char *what, double got)
{
	if (!right) {
		printf("FAILED: %s: %g\n", what, got);
		__atomic_fetch_add(&failures, 1, __ATOMIC_RELAXED);
	}
}

static testResult_t run(threadArgs *args, ncclDataType_t type, size_t bytes, bool in_place)
{
	CUDACHECK(cudaStreamSynchronize(args->streams[0]));
	TESTCHECK(args->collTest->runColl(in_place ? args->recvbuffs[0] : args->sendbuffs[0], 0,
					  args->recvbuffs[0], 0, bytes / wordSize(type), type,
					  ncclSum, -1, args->comms[0], args->streams[0], 0));
	CUDACHECK(cudaStreamSynchronize(args->streams[0]));
	return testSuccess;
}

static testResult_t bench(threadArgs *args, ncclDataType_t type, size_t bytes, bool in_place)
{
	size_t count = bytes / wordSize(type), wrong = 0;
	double tokens = (double)(count / hidden), row = (double)hidden * (double)wordSize(type);
	double algbw, busbw;

	for (int rep = 0; rep < 2; rep++) {
		TESTCHECK(
			args->collTest->initData(args, type, ncclSum, -1, rep ? 1 : 99, in_place));
		TESTCHECK(run(args, type, bytes, in_place));
		wrong = 0;
		for (size_t i = 0; i < bytes; i++) {
			wrong += ((char *)args->recvbuffs[0])[i] != ((char *)args->expected[0])[i];
		}
		TESTCHECK(rep ? testSuccess : run(args, type, bytes, in_place));
	}
	expect(args->reportErrors == !in_place, "reportErrors", args->reportErrors);
	if (!in_place) {
		expect((wrong > 0) == !strcmp(verdict, "wrong"), "wrong bytes", (double)wrong);
	}
	args->collTest->getBw(count, wordSize(type), 1e-9, &algbw, &busbw, nranks);
	if (want_rows > 0) {
		expect(fabs(algbw - want_rows * tokens * row) < 1e-3, "bytes of algbw", algbw);
		expect(fabs(busbw - want_busy * tokens * row) < 1e-3, "bytes of busbw", busbw);
	}
	return testSuccess;
}

testResult_t TimeTest(threadArgs *args, ncclDataType_t type, const char *type_name, ncclRedOp_t op,
		      const char *op_name, int root)
{
	size_t send, recv, count, offsets[2];

	for (int warm = 1; warm >= 0; warm--) {
		for (size_t size = args->minbytes; size <= args->maxbytes; size *= 2) {
			args->collTest->getCollByteCount(&send, &recv, &count, offsets, offsets + 1,
							 size / wordSize(type), wordSize(type),
							 nranks);
			args->sendBytes = send * wordSize(type);
			args->expectedBytes = recv * wordSize(type);
			if (warm) {
				TESTCHECK(run(args, type, count * wordSize(type), false));
				continue;
			}
			TESTCHECK(bench(args, type, count * wordSize(type), false));
			TESTCHECK(bench(args, type, count * wordSize(type), true));
		}
	}
	return testSuccess;
}

extern struct testEngine ncclTestEngine;

static testResult_t rank_run(int rank)
{
	threadArgs args = {};
	size_t send, recv;
	testResult_t result;

	is_main_thread = rank == 0;
	CUDACHECK(cudaSetDevice(rank));
	NCCLCHECK(ncclCommInitRank(args.comms, nranks, unique_id, rank));
	CUDACHECK(cudaStreamCreate(args.streams));
	args.nProcs = args.nGpus = 1;
	args.nThreads = nranks;
	args.minbytes = hidden * wordSize(the_type) + 2; /* not a whole number of tokens */
	args.maxbytes = args.minbytes * most_tokens;
	ncclTestEngine.getBuffSize(&send, &recv, args.maxbytes, nranks);
	CUDACHECK(cudaMalloc(args.sendbuffs, send));
	CUDACHECK(cudaMalloc(args.recvbuffs, recv));
	CUDACHECK(cudaMalloc(args.expected, recv));
	result = ncclTestEngine.runTest(&args, 0, the_type, "", ncclSum, "none");
	NCCLCHECK(ncclCommDestroy(args.comms[0]));
	return result;
}

int main(int argc, char **argv)
{
	std::vector<std::thread> threads;

	if (argc < 6) {
		return 2;
	}
	nranks = atoi(argv[1]);
	for (int i = 0; i < test_typenum; i++) {
		the_type = !strcmp(argv[2], test_typenames[i]) ? test_types[i] : the_type;
	}
	most_tokens = (size_t)atoi(argv[3]);
	hidden = (size_t)atoi(argv[4]);
	verdict = argv[5];
	want_rows = argc > 7 ? atof(argv[6]) : 0;
	want_busy = argc > 7 ? atof(argv[7]) : 0;
	setenv("NCCL_TESTS_EP_HIDDEN", argv[4], 1);
	expect(ncclGetUniqueId(&unique_id) == ncclSuccess, "ncclGetUniqueId", 0);
	for (int r = 0; r < nranks; r++) {
		threads.emplace_back([r] {
			testResult_t result = rank_run(r), want = !strcmp(verdict, "refused")
									  ? testInvalidUsage
									  : testSuccess;

			expect(result == want, "result", result);
		});
	}
	for (std::thread &thread : threads) {
		thread.join();
	}
	return failures != 0;
}

#endif
