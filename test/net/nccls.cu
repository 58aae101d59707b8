/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's collectives between processes of this machine that take each other for different hosts
 * (NCCL_HOSTID), so that all they exchange goes through a network plugin. Every word is compared.
 * Process r uses GPU r, modulo the number of GPUs. With -g an all-to-all that GPU threads send by
 * NCCL's device API comes last.
 *   nccls [-n RANKS] [-e BYTES] [-g]
 */
#include <getopt.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <nccl_device.h>

#define MAX_RANKS 16

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

static void cuda_ok(cudaError_t err, const char *what)
{
	if (err != cudaSuccess) {
		fprintf(stderr, "nccls: rank %d: %s: %s\n", rank, what, cudaGetErrorString(err));
		exit(3);
	}
}

static void nccl_ok(ncclResult_t err, const char *what)
{
	if (err != ncclSuccess) {
		fprintf(stderr, "nccls: rank %d: %s: %s: %s\n", rank, what, ncclGetErrorString(err),
			ncclGetLastError(NULL));
		exit(3);
	}
}

/*
 * Each way in which NCCL's device API sends over a network, in one all-to-all: signals alone as the
 * barrier in the beginning, puts whose source is known to be free by a counter, and a last word
 * whose signal may be seen only behind the put before it.
 */
enum signals {
	READY, /* a rank may be written to */
	DONE,  /* a rank has written all */
	SIGNALS
};

static ncclDevComm_t gin;
static ncclWindow_t from_window, to_window;
static uint64_t gin_rounds, gin_puts; /* since gin_open: NCCL's signals and counters only grow */

__global__ static void gin_kernel(ncclDevComm c, ncclWindow_t source, ncclWindow_t target,
				  const uint32_t *words, size_t bytes, uint64_t round, uint64_t put)
{
	ncclGin net(c, 0);
	ncclTeam world = ncclTeamWorld(c);
	size_t mine = (size_t)world.rank * bytes;

	for (int peer = (int)threadIdx.x; peer < world.nRanks; peer += (int)blockDim.x) {
		net.signal(world, peer, ncclGin_SignalInc{ READY });
	}
	net.waitSignal(ncclCoopCta(), READY, round * (uint64_t)world.nRanks);
	for (int peer = (int)threadIdx.x; peer < world.nRanks; peer += (int)blockDim.x) {
		size_t last = ((size_t)peer + 1) * bytes - 4;

		if (bytes > 4) {
			net.put(world, peer, target, mine, source, (size_t)peer * bytes, bytes - 4,
				ncclGin_None{}, ncclGin_CounterInc{ 0 });
		}
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0)
		net.putValue(world, peer, target, mine + bytes - 4, words[last / 4],
			     ncclGin_SignalInc{ DONE });
#else /* its proxy cannot putValue */
		net.put(world, peer, target, mine + bytes - 4, source, last, 4,
			ncclGin_SignalInc{ DONE });
#endif
	}
	net.waitSignal(ncclCoopCta(), DONE, round * (uint64_t)world.nRanks);
	net.waitCounter(ncclCoopCta(), 0, put * (uint64_t)world.nRanks);
	net.flush(ncclCoopCta());
}

static void gin_open(size_t bytes)
{
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
	ncclDevCommRequirements needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;

	needs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
#else
	ncclDevCommRequirements needs = {};

	needs.ginForceEnable = true;
#endif
	needs.ginContextCount = 1;
	needs.ginSignalCount = SIGNALS;
	needs.ginCounterCount = 1;
	nccl_ok(ncclCommWindowRegister(comm, from, bytes, &from_window, NCCL_WIN_COLL_SYMMETRIC),
		"window");
	nccl_ok(ncclCommWindowRegister(comm, to, bytes, &to_window, NCCL_WIN_COLL_SYMMETRIC),
		"window");
	nccl_ok(ncclDevCommCreate(comm, &needs, &gin), "ncclDevCommCreate");
}

static void gin_all_to_all(size_t bytes)
{
	gin_rounds++;
	gin_puts += bytes > 4;
	gin_kernel<<<1, 64, 0, stream>>>(gin, from_window, to_window, from, bytes, gin_rounds,
					 gin_puts);
	cuda_ok(cudaGetLastError(), names[GIN_ALL_TO_ALL]);
}

static void gin_close(void)
{
	nccl_ok(ncclDevCommDestroy(comm, &gin), "ncclDevCommDestroy");
	nccl_ok(ncclCommWindowDeregister(comm, from_window), "ncclCommWindowDeregister");
	nccl_ok(ncclCommWindowDeregister(comm, to_window), "ncclCommWindowDeregister");
}
static uint32_t word_of(int r, int op, size_t i)
{
	return (uint32_t)(r + 1) * 2654435761u + (uint32_t)i * 40503u + (uint32_t)op;
}

static void call(int op, size_t words)
{
	size_t each = words / (size_t)nranks;

	switch (op) {
	case ALL_REDUCE:
		nccl_ok(ncclAllReduce(from, to, words, ncclUint32, ncclSum, comm, stream),
			names[op]);
		break;
	case ALL_GATHER:
		nccl_ok(ncclAllGather(from, to, each, ncclUint32, comm, stream), names[op]);
		break;
	case REDUCE_SCATTER:
		nccl_ok(ncclReduceScatter(from, to, each, ncclUint32, ncclSum, comm, stream),
			names[op]);
		break;
	case GIN_ALL_TO_ALL:
		gin_all_to_all(each * 4);
		break;
	default:
		nccl_ok(ncclGroupStart(), "ncclGroupStart");
		for (int r = 0; r < nranks; r++) {
			size_t at = (size_t)r * each;

			nccl_ok(ncclSend(from + at, each, ncclUint32, r, comm, stream), "ncclSend");
			nccl_ok(ncclRecv(to + at, each, ncclUint32, r, comm, stream), "ncclRecv");
		}
		nccl_ok(ncclGroupEnd(), "ncclGroupEnd");
	}
	cuda_ok(cudaStreamSynchronize(stream), names[op]);
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

/* Runs all sizes of one collective, each thrice, and returns the number of wrong words. */
static long run_sizes(int op, size_t most)
{
	long all_wrong = 0;

	for (size_t bytes = (size_t)nranks * 4; bytes <= most; bytes *= 8) {
		size_t words = bytes / 4, each = words / (size_t)nranks;
		size_t in = op == ALL_GATHER ? each : words;
		size_t out = op == REDUCE_SCATTER ? each : words;
		long wrong = 0;

		for (size_t i = 0; i < in; i++) {
			host[i] = word_of(rank, op, i);
		}
		cuda_ok(cudaMemcpy(from, host, in * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
		cuda_ok(cudaMemset(to, 0xee, bytes), "cudaMemset");
		cuda_ok(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
		for (int run = 0; run < 3; run++) {
			call(op, words);
		}
		cuda_ok(cudaMemcpy(host, to, out * 4, cudaMemcpyDeviceToHost), "cudaMemcpy");
		for (size_t i = 0; i < out; i++) {
			wrong += host[i] != wanted(op, words, i);
		}
		if (rank == 0 || wrong) {
			printf("rank %d  %-15s %9zu B  wrong %ld\n", rank, names[op], bytes, wrong);
			fflush(stdout);
		}
		all_wrong += wrong;
	}
	return all_wrong;
}

/* Makes a communicator. Rank 0's id goes to the others through their pipes. */
static void connect_ranks(int (*pipes)[2])
{
	ncclUniqueId id;

	if (rank == 0) {
		nccl_ok(ncclGetUniqueId(&id), "ncclGetUniqueId");
		for (int r = 1; r < nranks; r++) {
			if (write(pipes[r][1], &id, sizeof(id)) != sizeof(id)) {
				exit(3);
			}
		}
	} else if (read(pipes[rank][0], &id, sizeof(id)) != sizeof(id)) {
		exit(3);
	}
	nccl_ok(ncclCommInitRank(&comm, nranks, id, rank), "ncclCommInitRank");
}

/* One rank's whole life; returns its exit status. */
static int run_rank(int (*pipes)[2], size_t most, bool with_gin)
{
	char name[64];
	int count = 0;
	long wrong = 0;

	snprintf(name, sizeof(name), "nccls-%d", rank);
	setenv("NCCL_HOSTID", name, 1);
	cuda_ok(cudaGetDeviceCount(&count), "cudaGetDeviceCount");
	cuda_ok(cudaSetDevice(rank % count), "cudaSetDevice");
	connect_ranks(pipes);
	cuda_ok(cudaStreamCreate(&stream), "cudaStreamCreate");
	nccl_ok(ncclMemAlloc((void **)&from, most), "ncclMemAlloc");
	nccl_ok(ncclMemAlloc((void **)&to, most), "ncclMemAlloc");
	host = (uint32_t *)malloc(most);
	if (!host) {
		fprintf(stderr, "nccls: no memory\n");
		return 3;
	}
	for (int op = 0; op < GIN_ALL_TO_ALL; op++) {
		wrong += run_sizes(op, most);
	}
	if (with_gin) {
		gin_open(most);
		wrong += run_sizes(GIN_ALL_TO_ALL, most);
		gin_close();
	}
	nccl_ok(ncclCommDestroy(comm), "ncclCommDestroy");
	/* The last communicator is gone, and with it the plugin was closed: once more. */
	connect_ranks(pipes);
	call(ALL_REDUCE, (size_t)nranks);
	nccl_ok(ncclCommDestroy(comm), "ncclCommDestroy");
	return wrong != 0;
}

/*
 * Waits for all ranks; returns the worst of their statuses. Ends the others where one cannot go on.
 */
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
	size_t most = 65536;
	bool with_gin = false;
	int pipes[MAX_RANKS][2];
	pid_t pids[MAX_RANKS];
	int c, worst;

	while ((c = getopt(argc, argv, "gn:e:")) != -1) {
		if (c == 'g') {
			with_gin = true;
		} else if (c == 'n') {
			nranks = atoi(optarg);
		} else if (c == 'e') {
			most = strtoull(optarg, NULL, 0);
		} else {
			nranks = 0;
		}
	}
	if (nranks < 2 || nranks > MAX_RANKS || most < (size_t)nranks * 4) {
		fprintf(stderr, "usage: nccls [-n RANKS (2 to %d)] [-e BYTES] [-g]\n", MAX_RANKS);
		return 2;
	}
	for (int r = 0; r < nranks; r++) {
		if (pipe(pipes[r])) {
			perror("nccls: pipe");
			return 3;
		}
	}
	for (rank = 0; rank < nranks; rank++) {
		pids[rank] = fork();
		if (pids[rank] == 0) {
			return run_rank(pipes, most, with_gin);
		}
	}
	worst = await_ranks(pids);
	printf("%s\n", worst ? "FAILED" : "all ranks ended well");
	return worst;
}
