/* SPDX-License-Identifier: Apache-2.0 */
/* Windows of NCCL: who is reached, what is refused, how long a mapping lives. */
#include <dlfcn.h>
#include "ranks.h"
#include "kernels.h"

#define BYTES 8192

ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **out);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t win, size_t offset, int peer, void **out);
ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t win, size_t offset, void **out);

static int per_node;

static uint32_t *window(ncclComm_t comm, int flags, ncclWindow_t *win)
{
	uint32_t *memory;
	void *p;

	NEED(ncclMemAlloc((void **)&memory, BYTES));
	CHECK_INT((uintptr_t)memory % NCCL_WIN_REQUIRED_ALIGNMENT, 0);
	NEED(cudaMemset(memory, 0, BYTES));
	NEED(cudaDeviceSynchronize());
	NEED(ncclCommWindowRegister(comm, memory, BYTES, win, flags));
	NEED(ncclWinGetUserPtr(comm, *win, &p));
	CHECK(p == memory);
	return memory;
}

/* Adds to this rank's word in the window of rank `to`. */
static cudaError_t add(ncclWindow_t win, int to, uint32_t value)
{
	struct test_add_args args = { .add = value };
	void *p;

	NEED(ncclGetPeerDevicePointer(win, 4096 + 4 * (size_t)rank, to, &p));
	CHECK_INT(p != NULL, to / per_node == node);
	args.word = p;
	return p ? test_launch(test_add, 1, 32, &args, 0, NULL) : cudaSuccess;
}

static void check_words(const uint32_t *memory, uint32_t base)
{
	uint32_t host[RANKS_MAX];

	NEED(cudaDeviceSynchronize());
	ranks_meet();
	NEED(cudaMemcpy(host, memory + 1024, sizeof(host), cudaMemcpyDefault));
	for (int i = 0; i < nranks; i++) {
		CHECK_INT(host[i], i / per_node == node ? base + (uint32_t)i : 0);
	}
	ranks_meet();
}

/* Everybody writes its rank into everybody's window of its team, and into its own. */
static void test_reach(ncclComm_t comm)
{
	ncclWindow_t win, again;
	uint32_t *memory = window(comm, NCCL_WIN_COLL_SYMMETRIC, &win);
	void *p, *other;

	for (int i = 0; i < nranks; i++) {
		NEED(add(win, i, 100 + (uint32_t)rank));
	}
	check_words(memory, 100);
	/* a second window of the same memory has addresses of its own */
	NEED(ncclCommWindowRegister(comm, memory, BYTES, &again, 0));
	NEED(ncclGetPeerDevicePointer(win, 0, rank, &p));
	NEED(ncclGetPeerDevicePointer(again, 0, rank, &other));
#ifndef __SANITIZE_THREAD__
	CHECK(p != other && p != memory);
#endif
	NEED(ncclCommWindowDeregister(comm, win));
	for (int i = 0; i < nranks; i++) {
		NEED(add(again, i, 100));
	}
	check_words(memory, 200);
	NEED(ncclCommWindowDeregister(comm, again));
	NEED(ncclMemFree(memory));
}

static void test_refused(ncclComm_t comm)
{
	ncclComm_t second = ranks_comm();
	cudaIpcMemHandle_t ipc;
	ncclWindow_t win, bad;
	uint32_t *memory = window(comm, 0, &win), *plain, host[64];
	void *p;

	CHECK_INT(ncclMemAlloc(NULL, 64), ncclInvalidArgument);
	CHECK_INT(ncclCommWindowRegister(comm, memory, BYTES, NULL, 0), ncclInvalidArgument);
	CHECK_INT(ncclCommWindowRegister(comm, NULL, BYTES, &bad, 0), ncclInvalidArgument);
	CHECK_INT(ncclCommWindowRegister(comm, memory, 0, &bad, 0), ncclInvalidArgument);
	CHECK_INT(ncclCommWindowRegister(comm, memory, BYTES, &bad, 0x100), ncclInvalidArgument);
	CHECK_INT(ncclWinGetUserPtr(comm, win, NULL), ncclInvalidArgument);
	CHECK_INT(ncclWinGetUserPtr(comm, NULL, &p), ncclInvalidArgument);
	CHECK_INT(ncclWinGetUserPtr(second, win, &p), ncclInternalError);
	CHECK_INT(ncclCommWindowDeregister(second, win), ncclInternalError);
	NEED(ncclCommWindowDeregister(comm, NULL));
	CHECK_INT(ncclGetPeerDevicePointer(NULL, 0, 0, &p), ncclInvalidArgument);
	CHECK_INT(ncclGetPeerDevicePointer(win, 0, rank, NULL), ncclInvalidArgument);
	CHECK_INT(ncclGetPeerDevicePointer(win, BYTES, rank, &p), ncclInvalidArgument);
	CHECK_INT(ncclGetPeerDevicePointer(win, 0, nranks, &p), ncclInvalidArgument);
	CHECK_INT(ncclGetPeerDevicePointer(win, 0, -1, &p), ncclInvalidArgument);

	/* one rank's bad memory is everybody's error, and nobody hangs */
	CHECK_INT(ncclCommWindowRegister(comm, rank ? memory : host, 256, &bad, 0),
		  rank ? ncclRemoteError : ncclUnhandledCudaError);
	NEED(cudaMalloc((void **)&plain, BYTES));
	CHECK_INT(ncclCommWindowRegister(comm, rank == 1 ? plain : memory, BYTES, &bad, 0),
		  rank == 1 ? ncclUnhandledCudaError : ncclRemoteError);
	CHECK_INT(ncclCommWindowRegister(comm, memory + (rank ? 0 : 64), 4096, &bad, 0),
		  rank ? ncclRemoteError : ncclInvalidArgument);
	CHECK_INT(ncclCommWindowRegister(comm, memory, rank ? 4096 : BYTES, &bad, 0),
		  ncclRemoteError);
	CHECK(!bad);

	/* memory of a handle is not memory of cudaMalloc */
	CHECK_CUDA(cudaIpcGetMemHandle(&ipc, memory), cudaErrorInvalidValue);
	CHECK_CUDA(cudaFree(memory), cudaErrorInvalidValue);
	CHECK_INT(ncclMemFree(plain), ncclUnhandledCudaError);
	(void)cudaGetLastError();
	OK(cudaFree(plain));
	NEED(ncclCommWindowDeregister(comm, win));
	CHECK_INT(ncclGetPeerDevicePointer(win, 0, rank, &p), ncclInvalidArgument);
	NEED(ncclMemFree(memory));
	NEED(ncclCommDestroy(second));
}

/* What one rank stores at the multicast address arrives at every rank of its team, and adds up. */
static void test_all(ncclComm_t comm)
{
	struct test_multicast_args args = { .value = 10 + (uint64_t)rank,
					    .rank = (uint32_t)rank,
					    .nranks = (uint32_t)nranks };
	ncclWindow_t win;
	uint64_t *memory = (uint64_t *)window(comm, 0, &win), host[2 * RANKS_MAX + 1], sum = 0;
	void *p = &win;

	setenv("NCCL_NVLS_ENABLE", "2", 1);
	NEED(ncclGetLsaMultimemDevicePointer(win, 0, &p));
	CHECK(!p); /* no NVLS here */
	setenv("VC_NVLS", "1", 1);
	CHECK_INT(ncclGetLsaMultimemDevicePointer(win, BYTES, &p), ncclInvalidArgument);
	NEED(ncclGetLsaMultimemDevicePointer(win, 4096, (void **)&args.all));
	ranks_meet();
	NEED(test_launch(test_multicast, 1, 32, &args, 0, NULL));
	NEED(cudaDeviceSynchronize());
	ranks_meet();
	NEED(cudaMemcpy(host, memory + 512, sizeof(host), cudaMemcpyDefault));
	for (int i = 0; i < nranks; i++) {
		bool mine = i / per_node == node;

		CHECK_INT(host[i], mine ? 10 + i : 0);
		CHECK_INT(host[nranks + 1 + i], mine ? 11 + i : 0);
		sum += mine ? 10 + (uint64_t)i : 0;
	}
	CHECK_INT(host[nranks], sum);
	ranks_meet();
	NEED(ncclCommWindowDeregister(comm, win));
	NEED(ncclMemFree(memory));
	unsetenv("VC_NVLS");
	setenv("NCCL_NVLS_ENABLE", "0", 1);
}

/* Without cuMem there are no windows; calls succeed all the same. Without GIN: in one team only. */
static void test_unsupported(ncclComm_t comm)
{
	const char *const off[] = { "NCCL_CUMEM_ENABLE=0", "NCCL_WIN_ENABLE=0", "VC_NO_GIN=1" };
	ncclWindow_t win;
	void *memory, *p;

	for (size_t i = 0; i < sizeof(off) / sizeof(*off); i++) {
		char text[64], *value;

		snprintf(text, sizeof(text), "%s", off[i]);
		value = strchr(text, '=');
		*value++ = 0;
		setenv(text, value, 1);
		NEED(ncclMemAlloc(&memory, BYTES));
		win = (ncclWindow_t)text;
		NEED(ncclCommWindowRegister(comm, memory, BYTES, &win, 0));
		CHECK(!win);
		p = text;
		NEED(ncclWinGetUserPtr(comm, win, &p));
		CHECK(!p);
		CHECK_INT(ncclGetPeerDevicePointer(win, 0, rank, &p), ncclInvalidArgument);
		NEED(ncclMemFree(memory));
		unsetenv(text);
	}
}

static void test_versions(void)
{
	setenv("VC_NCCL_VERSION", "22809", 1);
	CHECK(!dlsym(RTLD_DEFAULT, "ncclWinGetUserPtr"));
	CHECK(!dlsym(RTLD_DEFAULT, "ncclGetPeerDevicePointer"));
	setenv("VC_NCCL_VERSION", "22902", 1);
	CHECK(dlsym(RTLD_DEFAULT, "ncclWinGetUserPtr"));
	CHECK(dlsym(RTLD_DEFAULT, "ncclGetPeerDevicePointer"));
	unsetenv("VC_NCCL_VERSION");
}

/*
 * What a peer deregisters, frees and aborts stays mapped here. What this rank's own communicator
 * had is gone with it.
 */
static void test_life(void)
{
	ncclComm_t comm = ranks_comm();
	ncclWindow_t win;
	uint32_t *memory = window(comm, 0, &win);
	struct test_add_args args = { .add = 1 };
	int to = rank ^ 1;

	NEED(ncclGetPeerDevicePointer(win, 0, to, (void **)&args.word));
	if (rank & 1) {
		NEED(ncclCommWindowDeregister(comm, win));
		NEED(ncclMemFree(memory));
		NEED(ncclCommAbort(comm));
	}
	ranks_meet();
	if (!(rank & 1)) {
		NEED(test_launch(test_add, 1, 32, &args, 0, NULL));
		OK(cudaDeviceSynchronize());
		NEED(rank ? ncclCommDestroy(comm) : ncclCommAbort(comm));
	}
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
	NEED(test_launch(test_add, 1, 32, &args, 0, NULL));
	CHECK_CUDA(cudaDeviceSynchronize(), cudaErrorIllegalAddress);
#endif
}

int main(void)
{
	ncclComm_t comm;

	ranks_init();
	per_node = env_int("LOCAL_WORLD_SIZE");
	NEED(cudaSetDevice(local_rank));
	comm = ranks_comm();
	test_reach(comm);
	test_refused(comm);
	test_all(comm);
	test_unsupported(comm);
	test_versions();
	NEED(ncclCommDestroy(comm));
	test_life();
	return test_result();
}
