/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Each way in which NCCL's device API sends over a network, in one all-to-all: signals alone as the
 * barrier in the beginning, puts whose source is known to be free by a counter, and a last word whose
 * signal may be seen only behind the put before it.
 */
#include <nccl.h>
#include <nccl_device.h>
#include "perf_gin.h"

enum signals {
	READY, /* a rank may be written to */
	DONE,  /* a rank has written all */
	SIGNALS
};

static struct {
	ncclDevComm_t comm;
	ncclWindow_t from_window, to_window;
	const uint32_t *from;
	uint64_t rounds, puts; /* since the beginning: NCCL's signals and counters only grow */
} gin;

/* A word of a window, as the kernel reads it, and its place in the peer's. */
struct last_word {
	ncclWindow_t from;
	size_t source;
	const uint32_t *value;
	ncclWindow_t to;
	size_t place;
};

/* NCCL 2.28's proxy cannot putValue. */
__device__ static void put_last(const ncclGin &net, ncclTeam world, int peer,
				const struct last_word &word)
{
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 0)
	net.putValue(world, peer, word.to, word.place, *word.value, ncclGin_SignalInc{ DONE });
#else
	net.put(world, peer, word.to, word.place, word.from, word.source, 4,
		ncclGin_SignalInc{ DONE });
#endif
}

__global__ static void all_to_all(ncclDevComm comm, ncclWindow_t from, ncclWindow_t to,
				  const uint32_t *words, size_t bytes, uint64_t rounds,
				  uint64_t puts)
{
	ncclGin net(comm, 0);
	ncclTeam world = ncclTeamWorld(comm);
	size_t mine = (size_t)world.rank * bytes;

	for (int peer = (int)threadIdx.x; peer < world.nRanks; peer += (int)blockDim.x) {
		net.signal(world, peer, ncclGin_SignalInc{ READY });
	}
	net.waitSignal(ncclCoopCta(), READY, rounds * (uint64_t)world.nRanks);
	for (int peer = (int)threadIdx.x; peer < world.nRanks; peer += (int)blockDim.x) {
		size_t source = (size_t)peer * bytes;

		if (bytes > 4) {
			net.put(world, peer, to, mine, from, source, bytes - 4, ncclGin_None{},
				ncclGin_CounterInc{ 0 });
		}
		put_last(net, world, peer,
			 { from, source + bytes - 4, words + (source + bytes) / 4 - 1, to,
			   mine + bytes - 4 });
	}
	net.waitSignal(ncclCoopCta(), DONE, rounds * (uint64_t)world.nRanks);
	net.waitCounter(ncclCoopCta(), 0, puts * (uint64_t)world.nRanks);
	net.flush(ncclCoopCta());
}

extern "C" ncclResult_t gin_open(ncclComm_t comm, void *from, void *to, size_t bytes)
{
#ifdef NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER
	ncclDevCommRequirements needs = NCCL_DEV_COMM_REQUIREMENTS_INITIALIZER;

	needs.ginConnectionType = NCCL_GIN_CONNECTION_FULL;
#else
	ncclDevCommRequirements needs = {};

	needs.ginForceEnable = true;
#endif
	ncclResult_t err;

	needs.ginContextCount = 1;
	needs.ginSignalCount = SIGNALS;
	needs.ginCounterCount = 1;
	gin.from = (const uint32_t *)from;
	gin.rounds = 0;
	gin.puts = 0;
	err = ncclCommWindowRegister(comm, from, bytes, &gin.from_window, NCCL_WIN_COLL_SYMMETRIC);
	if (err == ncclSuccess) {
		err = ncclCommWindowRegister(comm, to, bytes, &gin.to_window,
					     NCCL_WIN_COLL_SYMMETRIC);
	}
	if (err == ncclSuccess) {
		err = ncclDevCommCreate(comm, &needs, &gin.comm);
	}
	return err;
}

extern "C" cudaError_t gin_all_to_all(size_t bytes, cudaStream_t stream)
{
	gin.rounds++;
	gin.puts += bytes > 4;
	all_to_all<<<1, 64, 0, stream>>>(gin.comm, gin.from_window, gin.to_window, gin.from, bytes,
					 gin.rounds, gin.puts);
	return cudaGetLastError();
}

extern "C" ncclResult_t gin_close(ncclComm_t comm)
{
	ncclResult_t err = ncclDevCommDestroy(comm, &gin.comm);

	if (err == ncclSuccess) {
		err = ncclCommWindowDeregister(comm, gin.from_window);
	}
	if (err == ncclSuccess) {
		err = ncclCommWindowDeregister(comm, gin.to_window);
	}
	return err;
}
