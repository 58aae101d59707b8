// SPDX-License-Identifier: Apache-2.0
/*
 * Life of a group on four ranks in four processes: creation succeeds on all ranks or fails on all
 * with a reason that names the culprit; memory is what was announced; destruction never hangs.
 */
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "nccl_ep/ext.h"
#include "unit/unit.h"

#define RANKS 4
#define EXPERTS 32
#define TOKENS 16
#define HIDDEN 64

static int rank;
static ncclComm_t comm;
static cudaStream_t stream;
static uint64_t allocated; /* through the allocator of the config */
static bool alloc_fails;

/* A flag that every process sees: a file in the run's directory. */
static void flag_path(char *path, size_t size, const char *name, int r)
{
	snprintf(path, size, "%s/life-%s-%d", getenv("VC_DIR"), name, r);
}

static void flag_raise(const char *name)
{
	char path[300];

	flag_path(path, sizeof(path), name, rank);
	close(open(path, O_CREAT | O_WRONLY, 0600));
}

static void flag_await(const char *name, int r)
{
	char path[300];

	flag_path(path, sizeof(path), name, r);
	for (int i = 0; access(path, F_OK) != 0; i++) {
		usleep(1000);
		if (i > 30000) {
			fprintf(stderr, "rank %d: no flag %s of rank %d\n", rank, name, r);
			exit(1);
		}
	}
}

static void barrier(const char *name)
{
	flag_raise(name);
	for (int r = 0; r < RANKS; r++) {
		flag_await(name, r);
	}
}

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static const char *last_text(ncclEpGroup_t group, ncclResult_t expected)
{
	ncclResult_t code = ncclSuccess;
	const char *text = "";

	CHECK(ncclEpExtGetLastError(group, &code, &text) == ncclSuccess);
	CHECK(code == expected);
	return text;
}

static ncclComm_t connect_ranks(const char *name)
{
	ncclComm_t c = NULL;
	char path[300], tmp[310];
	ncclUniqueId id;
	int fd;

	snprintf(path, sizeof(path), "%s/life-id-%s", getenv("VC_DIR"), name);
	if (rank == 0) {
		CHECK(ncclGetUniqueId(&id) == ncclSuccess);
		snprintf(tmp, sizeof(tmp), "%s.new", path);
		fd = open(tmp, O_CREAT | O_WRONLY, 0600);
		CHECK(write(fd, &id, sizeof(id)) == (ssize_t)sizeof(id));
		close(fd);
		CHECK(rename(tmp, path) == 0);
	}
	while ((fd = open(path, O_RDONLY)) < 0) {
		usleep(1000);
	}
	CHECK(read(fd, &id, sizeof(id)) == (ssize_t)sizeof(id));
	close(fd);
	CHECK(cudaSetDevice(rank) == cudaSuccess);
	CHECK(ncclCommInitRank(&c, RANKS, id, rank) == ncclSuccess);
	return c;
}

static cudaError_t counting_alloc(void **ptr, size_t size, void *context)
{
	CHECK(context == &allocated);
	if (alloc_fails) {
		return cudaErrorMemoryAllocation;
	}
	allocated += size;
	return cudaMalloc(ptr, size);
}

static cudaError_t counting_free(void *ptr, void *context)
{
	CHECK(context == &allocated);
	allocated = 0;
	return cudaFree(ptr);
}

static ncclEpGroupConfig_t config_make(void)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;

	c.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	c.num_experts = EXPERTS;
	c.max_dispatch_tokens_per_rank = TOKENS;
	c.max_token_bytes = 2 * HIDDEN;
	c.timeout_ns = 2000000000;
	return c;
}

static uint64_t device_used(void)
{
	size_t available = 0, total = 0;

	CHECK(cudaMemGetInfo(&available, &total) == cudaSuccess);
	return total - available;
}

/* Group and handle memory to the byte, also after growing; all of it is given back. */
static void test_memory(void)
{
	ncclEpExtMemory_t small = NCCL_EP_EXT_MEMORY_INIT, big = NCCL_EP_EXT_MEMORY_INIT;
	ncclEpGroupConfig_t c = config_make();
	uint64_t before, after, mine;
	ncclEpHandle_t a = NULL, b = NULL;
	ncclEpGroup_t g = NULL;

	c.alloc.alloc_fn = counting_alloc;
	c.alloc.free_fn = counting_free;
	c.alloc.context = &allocated;
	CHECK(ncclEpExtDeviceMemory(&c, RANKS, NCCL_EP_LAYOUT_EXPERT_MAJOR, 4, &small) ==
	      ncclSuccess);
	CHECK(ncclEpExtDeviceMemory(&c, RANKS, NCCL_EP_LAYOUT_RANK_MAJOR, 32, &big) == ncclSuccess);
	CHECK(big.heap_bytes > 0 && big.heap_bytes >= small.heap_bytes);
	allocated = 0;
	before = device_used();
	CHECK(ncclEpCreateGroup(&g, comm, &c) == ncclSuccess);
	mine = allocated;
	CHECK(mine == small.group_bytes - small.heap_bytes);
	CHECK(device_used() - before >= small.group_bytes);
	CHECK(device_used() - before < small.group_bytes + 65536); /* pages */

	CHECK(ncclEpInitHandle(&a, g, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 4, NULL) == ncclSuccess);
	CHECK(allocated == mine + small.handle_bytes);
	after = allocated;
	CHECK(ncclEpHandleDestroy(a) == ncclSuccess); /* to the pool, and from there */
	for (int i = 0; i < 100; i++) {
		CHECK(ncclEpInitHandle(&a, g, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 4, NULL) ==
		      ncclSuccess);
		CHECK(ncclEpHandleDestroy(a) == ncclSuccess);
	}
	CHECK(allocated == after);
	CHECK(ncclEpInitHandle(&b, g, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 32, NULL) == ncclSuccess);
	CHECK(allocated == after + big.handle_bytes);
	CHECK(device_used() - before >= big.group_bytes + small.handle_bytes + big.handle_bytes);
	CHECK(device_used() - before <
	      big.group_bytes + small.handle_bytes + big.handle_bytes + 65536);
	CHECK(ncclEpGroupDestroy(g) == ncclInvalidUsage);
	CHECK_HAS(last_text(g, ncclInvalidUsage), "the group has 1 live handles");
	CHECK(ncclEpHandleDestroy(b) == ncclSuccess);
	CHECK(ncclEpGroupDestroy(g) == ncclSuccess);
	CHECK(device_used() == before);
}

static void test_explicit_buffer(void)
{
	ncclEpGroupConfig_t c = config_make();
	ncclEpHandle_t h = (ncclEpHandle_t)8;
	ncclEpGroup_t g = NULL;

	c.rdma_buffer_size = 1 << 20; /* 2 MiB in fact */
	c.max_dispatch_tokens_per_rank = 512;
	CHECK(ncclEpCreateGroup(&g, comm, &c) == ncclSuccess);
	CHECK(ncclEpInitHandle(&h, g, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 32, NULL) ==
	      ncclInvalidUsage);
	CHECK(h == NULL);
	CHECK_HAS(last_text(g, ncclInvalidUsage), "rdma_buffer_size is 1048576 bytes, a handle of");
	CHECK(ncclEpGroupDestroy(g) == ncclSuccess);
}

/* One rank's mistake is every rank's failure, with its reason; nothing is left behind. */
static void test_failures(void)
{
	ncclEpGroupConfig_t c = config_make();
	uint64_t before = device_used();
	ncclEpGroup_t g = NULL;

	c.max_token_bytes = rank == 2 ? 256 : 128;
	CHECK(ncclEpCreateGroup(&g, comm, &c) == ncclInvalidArgument);
	CHECK_HAS(last_text(NULL, ncclInvalidArgument),
		  "config->max_token_bytes is 128 on rank 0 but 256 on rank 2");

	c = config_make();
	c.max_num_sms = rank == 1 ? 100000 : 0;
	CHECK(ncclEpCreateGroup(&g, comm, &c) == (rank == 1 ? ncclInvalidUsage : ncclRemoteError));
	CHECK_HAS(last_text(NULL, rank == 1 ? ncclInvalidUsage : ncclRemoteError),
		  "max_num_sms is 100000");
	if (rank != 1) {
		CHECK_HAS(last_text(NULL, ncclRemoteError), "failed on rank 1");
	}

	c = config_make();
	c.alloc.alloc_fn = counting_alloc;
	c.alloc.free_fn = counting_free;
	c.alloc.context = &allocated;
	alloc_fails = rank == 3;
	CHECK(ncclEpCreateGroup(&g, comm, &c) ==
	      (rank == 3 ? ncclUnhandledCudaError : ncclRemoteError));
	CHECK_HAS(last_text(NULL, rank == 3 ? ncclUnhandledCudaError : ncclRemoteError),
		  "alloc_fn of ");
	alloc_fails = false;

	c = config_make();
	c.algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT;
	CHECK(ncclEpCreateGroup(&g, comm, &c) == ncclInvalidUsage);
	CHECK_HAS(last_text(NULL, ncclInvalidUsage), "not available yet in this version");

	setenv("NCCL_EP_TIMEOUT_MS", rank == 0 ? "x" : "100", 1);
	c = config_make();
	CHECK(ncclEpCreateGroup(&g, comm, &c) == (rank == 0 ? ncclInvalidUsage : ncclRemoteError));
	unsetenv("NCCL_EP_TIMEOUT_MS");
	CHECK(g == NULL && device_used() == before);
}

/* A rank that never comes: the others end with an error, not a hang. */
static void test_absent_at_growth(void)
{
	ncclComm_t own = connect_ranks("growth");
	ncclEpGroupConfig_t c = config_make();
	ncclEpHandle_t h = NULL;
	ncclEpGroup_t g = NULL;
	double start;

	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "1000", 1);
	CHECK(ncclEpCreateGroup(&g, own, &c) == ncclSuccess);
	unsetenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS");
	barrier("narrow");
	start = now();
	if (rank != 0) {
		CHECK(ncclEpInitHandle(&h, g, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 32, NULL) ==
		      ncclRemoteError);
		CHECK_HAS(last_text(g, ncclRemoteError), "not all 4 ranks arrived within 1000 ms");
		CHECK(ncclEpInitHandle(&h, g, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 1, NULL) ==
		      ncclRemoteError);
		CHECK(now() - start < 5);
	}
	barrier("not grown");
	CHECK(ncclCommAbort(own) == ncclSuccess);
	CHECK(ncclEpGroupDestroy(g) == ncclSuccess);
}

static void test_absent_at_creation(void)
{
	ncclEpGroupConfig_t c = config_make();
	ncclEpGroup_t g = NULL;
	double start = now();

	if (rank != 0) {
		setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "300", 1);
		CHECK(ncclEpCreateGroup(&g, comm, &c) == ncclRemoteError);
		CHECK_HAS(last_text(NULL, ncclRemoteError),
			  "not all 4 ranks arrived within 300 ms");
		CHECK(now() - start < 5);
		unsetenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS");
	}
	barrier("timed out");
	CHECK(ncclCommAbort(comm) == ncclSuccess); /* ends what still waits on the device */
	barrier("absent");
}

static void hold_stream(void *released)
{
	while (!atomic_load((atomic_int *)released)) {
		usleep(1000);
	}
}

/* Something on the device does not end: the heap is not replaced under it, but afterwards. */
static void test_busy_at_growth(ncclEpGroup_t group)
{
	atomic_int released = 0;
	ncclEpHandle_t h = NULL;

	CHECK(cudaLaunchHostFunc(stream, hold_stream, &released) == cudaSuccess);
	CHECK(ncclEpInitHandle(&h, group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 32, NULL) ==
	      ncclSystemError);
	CHECK(strstr(last_text(group, ncclSystemError), "still busy after 3000 ms") != NULL);
	CHECK(h == NULL);
	atomic_store(&released, 1);
	CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
	barrier("idle before growth");
	CHECK(ncclEpInitHandle(&h, group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 32, NULL) ==
	      ncclSuccess);
	CHECK(ncclEpHandleDestroy(h) == ncclSuccess);
}

/* Something on the device does not end: destruction gives up, with the group as it was. */
static void test_busy_device(ncclEpGroup_t group)
{
	atomic_int released = 0;
	double start;

	CHECK(cudaLaunchHostFunc(stream, hold_stream, &released) == cudaSuccess);
	start = now();
	CHECK(ncclEpGroupDestroy(group) == ncclSystemError);
	CHECK(now() - start > 0.2 && now() - start < 5); /* 3 timeouts and the close timeout */
	CHECK(strstr(last_text(group, ncclSystemError), "still busy after 250 ms") != NULL);
	atomic_store(&released, 1);
	CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
	barrier("idle");
	CHECK(ncclEpGroupDestroy(group) == ncclSuccess);
}

/* Ranks that leave late, never, or by dying. The communicator is not needed any more. */
static void test_leaving(ncclEpGroup_t late, ncclEpGroup_t never, ncclEpGroup_t dead)
{
	double start;

	if (rank == 1) {
		usleep(300000);
	}
	start = now();
	CHECK(ncclEpGroupDestroy(late) == ncclSuccess);
	CHECK(now() - start < 5);
	barrier("late");

	if (rank == 2) {
		for (int r = 0; r < RANKS; r++) {
			flag_await("gone", r == 2 ? 0 : r);
		}
		start = now();
		CHECK(ncclEpGroupDestroy(never) == ncclSuccess); /* after all */
		CHECK(now() - start < 0.3);
	} else {
		start = now();
		CHECK(ncclEpGroupDestroy(never) == ncclSuccess);
		CHECK(now() - start < 5); /* it lives: nobody waits, the memory does */
		flag_raise("gone");
	}
	barrier("never");

	if (rank == 3) {
		_exit(unit_end());
	}
	start = now();
	CHECK(ncclEpGroupDestroy(dead) == ncclSuccess);
	CHECK(now() - start < 5); /* far below the limit, which is an hour */
}

int main(void)
{
	ncclEpGroup_t late = NULL, never = NULL, dead = NULL, busy = NULL;
	ncclEpGroupConfig_t c = config_make();

	rank = atoi(getenv("RANK"));
	comm = connect_ranks("life");
	CHECK(cudaStreamCreate(&stream) == cudaSuccess);
	test_memory();
	test_explicit_buffer();
	test_failures();
	test_absent_at_growth();
	CHECK(ncclEpCreateGroup(&late, comm, &c) == ncclSuccess);
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "3600000", 1);
	CHECK(ncclEpCreateGroup(&never, comm, &c) == ncclSuccess);
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "100", 1);
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "3000", 1);
	c.timeout_ns = 50000000;
	CHECK(ncclEpCreateGroup(&busy, comm, &c) == ncclSuccess);
	unsetenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS");
	test_busy_at_growth(busy);
	c = config_make();
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "3600000", 1);
	CHECK(ncclEpCreateGroup(&dead, comm, &c) == ncclSuccess);
	barrier("created");
	test_absent_at_creation();
	if (!unit_failures) {
		test_busy_device(busy);
	}
	if (!unit_failures) {
		test_leaving(late, never, dead);
	}
	return unit_end();
}
