/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep_collectives: NCCL's collectives between processes of this machine that take each other for
 * different hosts (NCCL_HOSTID), so that all they exchange goes through a network plugin. Every word
 * is compared. Process r uses GPU r, modulo the number of GPUs. With -g an all-to-all that GPU threads
 * send by NCCL's device API comes last.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#ifdef EP_WITH_GIN
#include "perf_gin.h"
#endif

#define MAX_RANKS 16
#define RUNS 3 /* of which the fastest counts */

enum op {
	ALL_REDUCE,
	ALL_GATHER,
	REDUCE_SCATTER,
	ALL_TO_ALL,
	GIN_ALL_TO_ALL,
	OPS
};

static const char *const names[OPS] = { "all-reduce", "all-gather", "reduce-scatter", "all-to-all",
					"gin all-to-all" };

static int rank, nranks = 2;
static uint32_t *host, *from, *to;
static cudaStream_t stream;
static ncclComm_t comm;
static FILE *json;
static int with_gin;

static void cuda(cudaError_t err, const char *what)
{
	if (err != cudaSuccess) {
		fprintf(stderr, "ep_collectives: rank %d: %s: %s\n", rank, what,
			cudaGetErrorString(err));
		exit(3);
	}
}

static void nccl(ncclResult_t err, const char *what)
{
	if (err != ncclSuccess) {
		fprintf(stderr, "ep_collectives: rank %d: %s: %s: %s\n", rank, what,
			ncclGetErrorString(err), ncclGetLastError(NULL));
		exit(3);
	}
}

static uint32_t word_of(int r, int op, size_t i)
{
	return (uint32_t)(r + 1) * 2654435761u + (uint32_t)i * 40503u + (uint32_t)op;
}

static double now_us(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static void call(int op, size_t words)
{
	size_t each = words / (size_t)nranks;

	switch (op) {
	case ALL_REDUCE:
		nccl(ncclAllReduce(from, to, words, ncclUint32, ncclSum, comm, stream), names[op]);
		return;
	case ALL_GATHER:
		nccl(ncclAllGather(from, to, each, ncclUint32, comm, stream), names[op]);
		return;
	case REDUCE_SCATTER:
		nccl(ncclReduceScatter(from, to, each, ncclUint32, ncclSum, comm, stream),
		     names[op]);
		return;
#ifdef EP_WITH_GIN
	case GIN_ALL_TO_ALL:
		cuda(gin_all_to_all(each * 4, stream), names[op]);
		return;
#endif
	default:
		nccl(ncclGroupStart(), "ncclGroupStart");
		for (int r = 0; r < nranks; r++) {
			size_t at = (size_t)r * each;

			nccl(ncclSend(from + at, each, ncclUint32, r, comm, stream), "ncclSend");
			nccl(ncclRecv(to + at, each, ncclUint32, r, comm, stream), "ncclRecv");
		}
		nccl(ncclGroupEnd(), "ncclGroupEnd");
	}
}

static uint32_t wanted(int op, size_t words, size_t i)
{
	size_t each = words / (size_t)nranks;
	uint32_t sum = 0;

	if (op == ALL_GATHER) {
		return word_of((int)(i / each), op, i % each);
	}
	if (op == ALL_TO_ALL || op == GIN_ALL_TO_ALL) {
		return word_of((int)(i / each), op, (size_t)rank * each + i % each);
	}
	for (int r = 0; r < nranks; r++) {
		sum += word_of(r, op, op == REDUCE_SCATTER ? (size_t)rank * each + i : i);
	}
	return sum;
}

/* Times one size of one collective, and returns the number of wrong words. */
static long measure(int op, size_t bytes)
{
	size_t words = bytes / 4;
	size_t each = words / (size_t)nranks;
	size_t in = op == ALL_GATHER ? each : words;
	size_t out = op == REDUCE_SCATTER ? each : words;
	double best = 0;
	long wrong = 0;

	for (size_t i = 0; i < in; i++) {
		host[i] = word_of(rank, op, i);
	}
	cuda(cudaMemcpy(from, host, in * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
	cuda(cudaMemset(to, 0xee, bytes), "cudaMemset");
	cuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
	for (int run = 0; run < RUNS; run++) {
		double start = now_us();
		double us;

		call(op, words);
		cuda(cudaStreamSynchronize(stream), names[op]);
		us = now_us() - start;
		best = run == 0 || us < best ? us : best;
	}
	cuda(cudaMemcpy(host, to, out * 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
	for (size_t i = 0; i < out; i++) {
		wrong += host[i] != wanted(op, words, i);
	}
	if (rank == 0 || wrong) {
		printf("rank %d  %-15s %9zu B %10.1f us %8.3f GB/s  wrong %ld\n", rank, names[op],
		       bytes, best, (double)bytes / best / 1e3, wrong);
		fflush(stdout);
	}
	if (json) {
		fprintf(json,
			"%s\n  {\"collective\": \"%s\", \"bytes\": %zu, \"us\": %.6g, "
			"\"wrong\": %ld}",
			op == 0 && bytes == (size_t)nranks * 4 ? "" : ",", names[op], bytes, best,
			wrong);
	}
	return wrong;
}

static long measure_sizes(int op, size_t most)
{
	long wrong = 0;

	for (size_t bytes = (size_t)nranks * 4; bytes <= most; bytes *= 8) {
		wrong += measure(op, bytes);
	}
	return wrong;
}

/* Rank 0's id goes to the others through their pipes. */
static void connect_ranks(int (*pipes)[2])
{
	ncclUniqueId id;

	if (rank == 0) {
		nccl(ncclGetUniqueId(&id), "ncclGetUniqueId");
		for (int r = 1; r < nranks; r++) {
			if (write(pipes[r][1], &id, sizeof(id)) != sizeof(id)) {
				exit(3);
			}
		}
	} else if (read(pipes[rank][0], &id, sizeof(id)) != sizeof(id)) {
		exit(3);
	}
	nccl(ncclCommInitRank(&comm, nranks, id, rank), "ncclCommInitRank");
}

static void open_json(const char *name)
{
	int version = 0;

	if (!name || rank != 0) {
		return;
	}
	json = fopen(name, "w");
	if (!json) {
		fprintf(stderr, "ep_collectives: %s: %s\n", name, strerror(errno));
		exit(3);
	}
	nccl(ncclGetVersion(&version), "ncclGetVersion");
	fprintf(json,
		"{\"schema\": \"ep_collectives\", \"schema_version\": 1, \"ranks\": %d, "
		"\"nccl\": %d, \"plugin\": \"%s\",\n \"results\": [",
		nranks, version, getenv("NCCL_NET_PLUGIN") ? getenv("NCCL_NET_PLUGIN") : "");
}

static int run_rank(int (*pipes)[2], size_t most, const char *json_name)
{
	char name[64];
	int count = 0, lost;
	long wrong = 0;

	snprintf(name, sizeof(name), "ep_collectives-%d", rank);
	setenv("NCCL_HOSTID", name, 1);
	cuda(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
	cuda(cudaSetDevice(rank % count), "cudaSetDevice");
	connect_ranks(pipes);
	open_json(json_name);
	cuda(cudaStreamCreate(&stream), "cudaStreamCreate");
	nccl(ncclMemAlloc((void **)&from, most), "ncclMemAlloc");
	nccl(ncclMemAlloc((void **)&to, most), "ncclMemAlloc");
	host = malloc(most);
	if (!host) {
		fprintf(stderr, "ep_collectives: no memory\n");
		return 3;
	}
	for (int op = 0; op < GIN_ALL_TO_ALL; op++) {
		wrong += measure_sizes(op, most);
	}
#ifdef EP_WITH_GIN
	if (with_gin) {
		nccl(gin_open(comm, from, to, most), "GIN");
		wrong += measure_sizes(GIN_ALL_TO_ALL, most);
		nccl(gin_close(comm), "GIN's end");
	}
#endif
	nccl(ncclCommDestroy(comm), "ncclCommDestroy");
	/* The last communicator is gone, and with it the plugin was closed: once more. */
	connect_ranks(pipes);
	call(ALL_REDUCE, (size_t)nranks);
	cuda(cudaStreamSynchronize(stream), "second communicator");
	nccl(ncclCommDestroy(comm), "ncclCommDestroy");
	if (json) {
		fprintf(json, "],\n \"wrong\": %ld}\n", wrong);
		lost = ferror(json);
		if (fclose(json) || lost) {
			fprintf(stderr, "ep_collectives: %s: not all results could be written\n",
				json_name);
			return 3;
		}
	}
	return wrong != 0;
}

/* Waits for all ranks; returns the worst of their statuses. Ends the others where one cannot go on. */
static int await_ranks(const pid_t *pids)
{
	int status, worst = 0;

	for (int r = 0; r < nranks; r++) {
		pid_t ended = wait(&status);

		status = WIFEXITED(status) ? WEXITSTATUS(status) : 3;
		if (status > 1 && worst < 2) { /* the others would wait for it */
			for (int i = 0; i < nranks; i++) {
				if (pids[i] != ended) {
					kill(pids[i], SIGTERM);
				}
			}
		}
		worst = status > worst ? status : worst;
	}
	return worst;
}

int main(int argc, char **argv)
{
	size_t most = 16 << 20;
	const char *json_name = NULL;
	int pipes[MAX_RANKS][2];
	pid_t pids[MAX_RANKS];
	int c, worst;

	while ((c = getopt(argc, argv, "gn:e:J:")) != -1) {
		if (c == 'g') {
			with_gin = 1;
		} else if (c == 'J') {
			json_name = optarg;
		} else if (c == 'n') {
			nranks = atoi(optarg);
		} else if (c == 'e') {
			most = strtoull(optarg, NULL, 0);
		} else {
			nranks = 0;
		}
	}
	if (nranks < 2 || nranks > MAX_RANKS || most < (size_t)nranks * 4) {
		fprintf(stderr,
			"usage: ep_collectives [-n RANKS (2 to %d)] [-e BYTES] [-g] [-J FILE]\n",
			MAX_RANKS);
		return 2;
	}
#ifndef EP_WITH_GIN
	if (with_gin) {
		fprintf(stderr, "ep_collectives: -g: built with an NCCL that has no GIN\n");
		return 2;
	}
#endif
	for (int r = 0; r < nranks; r++) {
		if (pipe(pipes[r])) {
			perror("ep_collectives: pipe");
			return 3;
		}
	}
	for (rank = 0; rank < nranks; rank++) {
		pids[rank] = fork();
		if (pids[rank] == 0) {
			return run_rank(pipes, most, json_name);
		}
	}
	worst = await_ranks(pids);
	printf("%s\n", worst ? "FAILED" : "all ranks ended well");
	if (fflush(stdout) || ferror(stdout)) {
		fprintf(stderr,
			"ep_collectives: standard output: not all of it could be written\n");
		return 3;
	}
	return worst;
}
