/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Life of a group on four ranks in four processes: creation succeeds on all ranks or fails on all
 * with a reason that names the culprit; memory is what was announced; destruction never hangs.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>
#include "support/world.h"

#define RANKS 4
#define EXPERTS 32
#define TOKENS 16
#define HIDDEN 64
#define FLAG_GONE 0

static uint64_t allocated; /* through the allocator of the config */
static bool alloc_fails;
static uint32_t alloc_off; /* what it returns begins so many bytes later */
static ncclEpGroup_t destroyed;

static cudaError_t counting_alloc(void **ptr, size_t size, void *context)
{
	cudaError_t result;

	CHECK(context == &allocated);
	if (alloc_fails) {
		return cudaErrorMemoryAllocation;
	}
	if (destroyed) {
		int error = -1;

		CHECK_REASON(ncclEpGetAsyncError(destroyed, &error), ncclInvalidArgument,
			     "destroyed?");
	}
	allocated += size;
	result = cudaMalloc(ptr, size + alloc_off);
	*ptr = (char *)*ptr + alloc_off;
	return result;
}

static cudaError_t counting_free(void *ptr, void *context)
{
	CHECK(context == &allocated);
	allocated = 0;
	return cudaFree((char *)ptr - alloc_off);
}

/* Leaves another device current. */
static void turn(void)
{
	int device = 0, devices = 1;

	NEED_CUDA(cudaGetDevice(&device));
	NEED_CUDA(cudaGetDeviceCount(&devices));
	NEED_CUDA(cudaSetDevice((device + 1) % devices));
}

static cudaError_t turning_alloc(void **ptr, size_t size, void *context)
{
	cudaError_t result = cudaMalloc(ptr, size);

	turn();
	return result;
}

static cudaError_t turning_free(void *ptr, void *context)
{
	cudaError_t result = cudaFree(ptr);

	turn();
	return result;
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

	NEED_CUDA(cudaMemGetInfo(&available, &total));
	return total - available;
}

/* The library goes on with its own device, whatever alloc_fn and free_fn have selected. */
static void test_turned(struct world *w)
{
	ncclEpGroupConfig_t c = config_make();
	ncclEpHandle_t handle = NULL;
	ncclEpGroup_t g = NULL;
	int device = -1;

	c.alloc.alloc_fn = turning_alloc;
	c.alloc.free_fn = turning_free;
	NEED_OK(ncclEpCreateGroup(&g, w->comm, &c));
	OK(ncclEpInitHandle(&handle, g, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 32, NULL));
	OK(ncclEpHandleDestroy(handle));
	OK(ncclEpGroupDestroy(g));
	NEED_CUDA(cudaGetDevice(&device));
	CHECK_INT(device, w->device);
	world_meet(w); /* other devices have contexts of this process now */
}

/* Group and handle memory to the byte, also after growing; all of it is given back. */
static void test_memory(struct world *w)
{
	ncclEpExtMemory_t small = NCCL_EP_EXT_MEMORY_INIT, big = NCCL_EP_EXT_MEMORY_INIT;
	ncclEpGroupConfig_t c = config_make();
	uint64_t before, after, mine;
	ncclEpHandle_t a = NULL, b = NULL;
	ncclEpGroup_t g = NULL;

	c.alloc.alloc_fn = counting_alloc;
	c.alloc.free_fn = counting_free;
	c.alloc.context = &allocated;
	OK(ncclEpExtDeviceMemory(&c, RANKS, NCCL_EP_LAYOUT_EXPERT_MAJOR, 4, &small));
	OK(ncclEpExtDeviceMemory(&c, RANKS, NCCL_EP_LAYOUT_RANK_MAJOR, 32, &big));
	CHECK(big.heap_bytes > 0 && big.heap_bytes >= small.heap_bytes);
	allocated = 0;
	before = device_used();
	OK(ncclEpCreateGroup(&g, w->comm, &c));
	mine = allocated;
	CHECK(mine == small.group_bytes - small.heap_bytes);
	CHECK(device_used() - before >= small.group_bytes);
	CHECK(device_used() - before < small.group_bytes + 65536); /* pages */

	OK(ncclEpInitHandle(&a, g, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 4, NULL));
	CHECK(allocated == mine + small.handle_bytes);
	after = allocated;
	OK(ncclEpHandleDestroy(a)); /* to the pool, and from there */
	for (int i = 0; i < 100; i++) {
		OK(ncclEpInitHandle(&a, g, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 4, NULL));
		OK(ncclEpHandleDestroy(a));
	}
	CHECK(allocated == after);
	OK(ncclEpInitHandle(&b, g, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 32, NULL));
	CHECK(allocated == after + big.handle_bytes);
	CHECK(device_used() - before >= big.group_bytes + small.handle_bytes + big.handle_bytes);
	CHECK(device_used() - before <
	      big.group_bytes + small.handle_bytes + big.handle_bytes + 65536);
	OK(ncclEpHandleDestroy(b));
	OK(ncclEpGroupDestroy(g));
	CHECK(device_used() == before);
}

static ncclEpGroup_t own_group; /* of the allocator below */
static ncclEpHandle_t own_handle;
static uint32_t entered; /* calls of it that have tried their own group */

static void enter_own(const char *where)
{
	ncclEpHandle_t made = NULL;
	const char *text = "";
	ncclResult_t code;
	size_t bytes = 0;
	int error = -1;

	entered++;
	CHECK_REASON(ncclEpHandleDestroy(own_handle), ncclInvalidUsage, where);
	CHECK_REASON(ncclEpExtGetLastError(own_group, &code, &text), ncclInvalidUsage, where);
	CHECK_REASON(ncclEpHandleMemSize(own_group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, &bytes, 2),
		     ncclInvalidUsage, where);
	CHECK_REASON(ncclEpInitHandle(&made, own_group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 2, NULL),
		     ncclInvalidUsage, where);
	CHECK_REASON(ncclEpGroupDestroy(own_group), ncclInvalidUsage, where);
	OK(ncclEpGetAsyncError(own_group, &error));
	CHECK(error == 0 && !made && !bytes && !*text);
}

static cudaError_t entering_alloc(void **ptr, size_t size, void *context)
{
	const char *where = context;

	if (!own_group) {
		return cudaMalloc(ptr, size);
	}
	enter_own(where);
	return strcmp(where, "ncclEpCreateHandle") ? cudaMalloc(ptr, size)
						   : cudaErrorMemoryAllocation;
}

static cudaError_t entering_free(void *ptr, void *context)
{
	CHECK_REASON(ncclEpExtGetLastError(own_group, NULL, NULL), ncclInvalidArgument,
		     "destroyed?");
	return cudaFree(ptr);
}

/*
 * alloc_fn and free_fn cannot use their own group, and are told so. The call that runs them goes
 * on.
 */
static void test_entered(struct world *w)
{
	ncclEpTensor_t ids = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 2, .datatype = ncclInt32 };
	char where[32] = "ncclEpInitHandle on this thread";
	ncclEpGroupConfig_t c = config_make();
	size_t sizes[2] = { 0, 3 };
	ncclEpHandle_t more = NULL;
	ncclEpGroup_t group = NULL;

	ids.sizes = sizes;
	c.enable_mask = 1;
	c.alloc.alloc_fn = entering_alloc;
	c.alloc.free_fn = entering_free;
	c.alloc.context = where;
	alarm(30); /* for who waits for itself */
	OK(ncclEpCreateGroup(&group, w->comm, &c));
	OK(ncclEpInitHandle(&own_handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 2, NULL));
	CHECK_INT(entered, 0);
	own_group = group;
	OK(ncclEpInitHandle(&more, own_group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 2, NULL));
	CHECK_INT(entered, 1);
	CHECK_LAST(own_group, ncclSuccess, ""); /* these were the thread's */
	strcpy(where, "ncclEpCreateHandle");
	CHECK_REASON(ncclEpCreateHandle(&more, own_group, NCCL_EP_LAYOUT_RANK_MAJOR, &ids, NULL,
					NULL, w->stream),
		     ncclUnhandledCudaError, "alloc_fn of ");
	CHECK_INT(entered, 2);
	CHECK_LAST(own_group, ncclUnhandledCudaError, "alloc_fn of "); /* and this is the group's */
	OK(ncclEpHandleDestroy(own_handle));
	OK(ncclEpGroupDestroy(own_group));
	OK(ncclEpHandleDestroy(more));
	alarm(0);
}

/* Handles that outlive their group: the memory goes with the group, they by ncclEpHandleDestroy. */
static void test_orphans(struct world *w)
{
	ncclEpTensor_t mem = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 1, .datatype = ncclUint8 };
	ncclEpGroupConfig_t c = config_make();
	uint64_t before = device_used();
	ncclEpHandle_t own, given, gone;
	ncclEpGroup_t g = NULL;
	size_t bytes = 0;

	c.alloc.alloc_fn = counting_alloc;
	c.alloc.free_fn = counting_free;
	c.alloc.context = &allocated;
	OK(ncclEpCreateGroup(&g, w->comm, &c));
	OK(ncclEpHandleMemSize(g, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, &bytes, 4));
	NEED_CUDA(cudaMalloc(&mem.data, bytes));
	mem.sizes = &bytes;
	OK(ncclEpInitHandle(&own, g, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 4, NULL));
	OK(ncclEpInitHandle(&gone, g, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 4, NULL));
	OK(ncclEpInitHandle(&given, g, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 4, &mem));
	OK(ncclEpHandleDestroy(gone)); /* from the middle of the group's list */
	OK(ncclEpGroupDestroy(g));
	NEED_CUDA(cudaMemset(mem.data, 0, bytes)); /* the caller's still */
	NEED_CUDA(cudaFree(mem.data));
	CHECK(device_used() == before);
	CHECK_REASON(ncclEpComplete(own, NULL, w->stream), ncclInvalidUsage,
		     "group was destroyed before it");
	CHECK_REASON(ncclEpExtNumRecvTokens(given, &before, NULL, w->stream), ncclInvalidUsage,
		     "group was destroyed before it");
	OK(ncclEpHandleDestroy(own));
	OK(ncclEpHandleDestroy(given));
}

/* A destroyed group's place in memory is that of a group which is being made: it is none yet. */
static void test_made_again(struct world *w)
{
	ncclEpGroupConfig_t c = config_make();
	ncclEpGroup_t group;

	c.enable_mask = 1;
	c.alloc.alloc_fn = counting_alloc;
	c.alloc.free_fn = counting_free;
	c.alloc.context = &allocated;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &c));
	OK(ncclEpGroupDestroy(group));
	destroyed = group;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &c));
	destroyed = NULL;
	OK(ncclEpGroupDestroy(group));
}

/* One rank's mistake is every rank's failure, with its reason; nothing is left behind. */
static void test_failures(struct world *w)
{
	ncclEpGroupConfig_t c = config_make();
	uint64_t before = device_used();
	ncclEpGroup_t g = NULL;

	c.max_token_bytes = w->rank == 2 ? 256 : 128;
	CHECK_REASON(ncclEpCreateGroup(&g, w->comm, &c), ncclInvalidArgument,
		     "config->max_token_bytes is 128 on rank 0 but 256 on rank 2");

	c = config_make();
	c.max_num_sms = w->rank == 1 ? 100000 : 0;
	CHECK_REASON(ncclEpCreateGroup(&g, w->comm, &c),
		     w->rank == 1 ? ncclInvalidUsage : ncclRemoteError, "max_num_sms is 100000");
	if (w->rank != 1) {
		CHECK_LAST(NULL, ncclRemoteError, "failed on rank 1");
	}

	c = config_make();
	c.alloc.alloc_fn = counting_alloc;
	c.alloc.free_fn = counting_free;
	c.alloc.context = &allocated;
	alloc_fails = w->rank == 3;
	CHECK_REASON(ncclEpCreateGroup(&g, w->comm, &c),
		     w->rank == 3 ? ncclUnhandledCudaError : ncclRemoteError, "alloc_fn of ");
	alloc_fails = false;
	alloc_off = w->rank == 3 ? 8 : 0;
	CHECK_REASON(ncclEpCreateGroup(&g, w->comm, &c),
		     w->rank == 3 ? ncclInvalidArgument : ncclRemoteError,
		     "it must be aligned to 16 bytes");
	alloc_off = 0;

	c = config_make();
	c.algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT;
	c.max_token_bytes += 8;
	CHECK_REASON(ncclEpCreateGroup(&g, w->comm, &c), ncclInvalidArgument, "a multiple of 16");

	setenv("NCCL_EP_TIMEOUT_MS", w->rank == 0 ? "x" : "100", 1);
	c = config_make();
	CHECK_RESULT(ncclEpCreateGroup(&g, w->comm, &c),
		     w->rank == 0 ? ncclInvalidUsage : ncclRemoteError);
	unsetenv("NCCL_EP_TIMEOUT_MS");

	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "1e5", 1); /* not one millisecond */
	c = config_make();
	usleep(w->rank == 2 ? 50000 : 0);
	CHECK_REASON(ncclEpCreateGroup(&g, w->comm, &c), ncclInvalidUsage,
		     "NCCL_EP_BOOTSTRAP_TIMEOUT_MS=1e5 is not a number");
	unsetenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS");
	CHECK(g == NULL && device_used() == before);
}

/*
 * NCCL only remembers what a thread calls between ncclGroupStart and ncclGroupEnd: the library
 * works there all the same.
 */
static void test_in_nccl_group(struct world *w)
{
	ncclComm_t comm = world_comm(w, (1 << RANKS) - 1);
	ncclEpGroupConfig_t c = config_make();
	ncclEpHandle_t grown = NULL;
	ncclEpGroup_t g = NULL;
	char *bytes;

	check_context("between ncclGroupStart and ncclGroupEnd");
	NEED_CUDA(cudaMalloc((void **)&bytes, RANKS + 1));
	OK(ncclGroupStart());
	NEED_OK(ncclEpCreateGroup(&g, comm, &c));
	OK(ncclEpInitHandle(&grown, g, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 32, NULL));
	OK(ncclGroupEnd());
	OK(ncclEpGroupDestroy(g));
	OK(ncclEpHandleDestroy(grown));

	check_context("behind a collective that waits for ncclGroupEnd");
	OK(ncclGroupStart());
	OK(ncclAllGather(bytes + RANKS, bytes, 1, ncclUint8, comm, w->stream));
	CHECK_REASON(ncclEpCreateGroup(&g, comm, &c), ncclInvalidUsage,
		     "calls on this communicator wait for ncclGroupEnd");
	OK(ncclGroupEnd());
	NEED_CUDA(cudaDeviceSynchronize()); /* both collectives have ended */
	OK(ncclEpCreateGroup(&g, comm, &c));
	OK(ncclEpGroupDestroy(g));
	OK(ncclCommDestroy(comm));
	NEED_CUDA(cudaFree(bytes));
}

/* A rank that never comes: the others end with an error, not a hang. */
static void test_absent_at_growth(struct world *w)
{
	ncclComm_t own = world_comm(w, (1 << RANKS) - 1);
	ncclEpGroupConfig_t c = config_make();
	ncclEpHandle_t h = NULL;
	ncclEpGroup_t g = NULL;
	double start;

	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "1000", 1);
	OK(ncclEpCreateGroup(&g, own, &c));
	unsetenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS");
	world_meet(w);
	start = world_now();
	if (w->rank != 0) {
		CHECK_RESULT(ncclEpInitHandle(&h, g, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 32, NULL),
			     ncclRemoteError);
		CHECK_LAST(g, ncclRemoteError, "not all 4 ranks arrived within 1000 ms");
		CHECK_RESULT(ncclEpInitHandle(&h, g, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 1, NULL),
			     ncclRemoteError);
		CHECK(world_now() - start < 5);
	}
	world_meet(w);
	OK(ncclCommAbort(own));
	OK(ncclEpGroupDestroy(g));
}

/*
 * The heap has to grow, and rank 1 refuses its call, because it lacks the top-k that would tell it
 * so: the others name it soon. If it makes the right call soon enough, nothing has happened.
 */
static void test_refused_at_growth(struct world *w, int how)
{
	ncclEpTensor_t ids = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 1, .datatype = ncclInt32 };
	ncclComm_t own = world_comm(w, (1 << RANKS) - 1);
	ncclEpGroupConfig_t c = config_make();
	size_t sizes[2] = { 0, 32 };
	ncclEpHandle_t h = NULL;
	ncclEpGroup_t g = NULL;
	double start;

	check_context("refused at growth, %d", how);
	ids.sizes = sizes;
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "60000", 1);
	OK(ncclEpCreateGroup(&g, own, &c));
	unsetenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS");
	world_meet(w);
	start = world_now();
	if (w->rank == 1) {
		if (how == 0) {
			CHECK_RESULT(ncclEpCreateHandle(&h, g, NCCL_EP_LAYOUT_RANK_MAJOR, &ids,
							NULL, NULL, w->stream),
				     ncclInvalidArgument);
		} else {
			CHECK_RESULT(ncclEpInitHandle(&h, g, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 33,
						      NULL),
				     ncclInvalidArgument);
		}
	}
	if (how == 2) {
		usleep(w->rank == 1 ? 700000 : 0);
		OK(ncclEpInitHandle(&h, g, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 32, NULL));
		OK(ncclEpHandleDestroy(h));
	} else if (w->rank != 1) {
		CHECK_REASON(ncclEpInitHandle(&h, g, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 32, NULL),
			     ncclRemoteError, "has refused its call");
		CHECK_LAST(g, ncclRemoteError, "rank 1 (pid ");
		CHECK(world_now() - start < 10);
	}
	world_meet(w);
	OK(ncclCommAbort(own));
	OK(ncclEpGroupDestroy(g));
}

static void test_absent_at_creation(struct world *w, ncclComm_t comm)
{
	ncclEpGroupConfig_t c = config_make();
	ncclEpGroup_t g = NULL;
	double start = world_now();

	if (w->rank != 0) {
		setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "300", 1);
		CHECK_RESULT(ncclEpCreateGroup(&g, comm, &c), ncclRemoteError);
		CHECK_LAST(NULL, ncclRemoteError, "not all 4 ranks arrived within 300 ms");
		CHECK(world_now() - start < 5);
		unsetenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS");
	}
	world_meet(w);
	OK(ncclCommAbort(comm)); /* ends what still waits on the device */
	world_meet(w);
}

static void hold_stream(void *released)
{
	while (!atomic_load((atomic_int *)released)) {
		usleep(1000);
	}
}

/*
 * Something on the device does not end, or is captured, which the wait ends: the heap is not
 * replaced under it, but afterwards.
 */
static void test_busy_at_growth(struct world *w, ncclEpGroup_t group)
{
	atomic_int released = 0;
	ncclEpHandle_t h = NULL;
	cudaGraph_t graph = NULL;

	NEED_CUDA(cudaStreamBeginCapture(w->stream, cudaStreamCaptureModeRelaxed));
	CHECK_REASON(ncclEpInitHandle(&h, group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 32, NULL),
		     ncclInvalidUsage, "is being captured");
	world_meet(w);
	CHECK_CUDA(cudaStreamEndCapture(w->stream, &graph), cudaErrorStreamCaptureInvalidated);
	world_meet(w);
	NEED_CUDA(cudaLaunchHostFunc(w->stream, hold_stream, &released));
	CHECK_RESULT(ncclEpInitHandle(&h, group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 32, NULL),
		     ncclSystemError);
	CHECK_LAST(group, ncclSystemError, "still busy after 3000 ms");
	CHECK(h == NULL);
	atomic_store(&released, 1);
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	world_meet(w);
	OK(ncclEpInitHandle(&h, group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 32, NULL));
	OK(ncclEpHandleDestroy(h));
}

/* Nobody can wait for a device while a stream of it is captured: the group stays as it was. */
static void test_destroy_in_capture(struct world *w, ncclEpGroup_t group)
{
	cudaGraph_t graph = NULL;

	NEED_CUDA(cudaStreamBeginCapture(w->stream, cudaStreamCaptureModeRelaxed));
	CHECK_REASON(ncclEpGroupDestroy(group), ncclInvalidUsage, "is being captured");
	CHECK_CUDA(cudaStreamEndCapture(w->stream, &graph), cudaErrorStreamCaptureInvalidated);
	world_meet(w);
}

/* Something on the device does not end: destruction gives up, with the group as it was. */
static void test_busy_device(struct world *w, ncclEpGroup_t group)
{
	atomic_int released = 0;
	double start;

	NEED_CUDA(cudaLaunchHostFunc(w->stream, hold_stream, &released));
	start = world_now();
	CHECK_RESULT(ncclEpGroupDestroy(group), ncclSystemError);
	/* 3 timeouts and the close timeout */
	CHECK(world_now() - start > 0.2 && world_now() - start < 5);
	CHECK_LAST(group, ncclSystemError, "still busy after 250 ms");
	atomic_store(&released, 1);
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	world_meet(w);
	OK(ncclEpGroupDestroy(group));
}

struct end {
	ncclEpGroup_t group;
	int device;
	ncclResult_t result;
};

static void *end_group(void *arg)
{
	struct end *e = arg;

	NEED_CUDA(cudaSetDevice(e->device));
	e->result = ncclEpGroupDestroy(e->group);
	return NULL;
}

/* Two threads destroy a group at once, a watchdog and whoever made it: one of them does. */
static void test_two_threads(struct world *w)
{
	ncclEpGroupConfig_t c = config_make();
	struct end e = { .device = w->device };
	atomic_int released = 0;
	pthread_t thread;

	NEED_OK(ncclEpCreateGroup(&e.group, w->comm, &c));
	NEED_CUDA(cudaLaunchHostFunc(w->stream, hold_stream, &released));
	NEED(pthread_create(&thread, NULL, end_group, &e) == 0);
	usleep(50000); /* by now it waits for the device */
	CHECK_REASON(ncclEpGroupDestroy(e.group), ncclInvalidUsage, "another thread is destroying");
	atomic_store(&released, 1);
	NEED(pthread_join(thread, NULL) == 0);
	CHECK_INT(e.result, ncclSuccess);
	CHECK_REASON(ncclEpGroupDestroy(e.group), ncclInvalidArgument, "is not a group");
	world_meet(w);
}

/* Ranks that leave late, never, or by dying. The communicator is not needed any more. */
static void test_leaving(struct world *w, ncclEpGroup_t late, ncclEpGroup_t never,
			 ncclEpGroup_t dead)
{
	double start;

	if (w->rank == 1) {
		usleep(300000);
	}
	start = world_now();
	OK(ncclEpGroupDestroy(late));
	CHECK(world_now() - start < 5);
	world_meet(w);

	if (w->rank == 2) {
		for (int r = 0; r < RANKS; r++) {
			NEED(r == 2 || world_await(w, FLAG_GONE, r, 1, 30));
		}
		start = world_now();
		OK(ncclEpGroupDestroy(never)); /* after all */
		CHECK(world_now() - start < 0.3);
	} else {
		start = world_now();
		OK(ncclEpGroupDestroy(never));
		CHECK(world_now() - start < 5); /* it lives: nobody waits, the memory does */
		world_raise(w, FLAG_GONE, 1);
	}
	world_meet(w);

	if (w->rank == 3) {
		_exit(check_end());
	}
	start = world_now();
	OK(ncclEpGroupDestroy(dead));
	CHECK(world_now() - start < 5); /* far below the limit, which is an hour */
}

static void run(struct world *w, void *arg)
{
	ncclComm_t comm = world_comm(w, (1 << RANKS) - 1); /* is aborted */
	ncclEpGroup_t late = NULL, never = NULL, dead = NULL, busy = NULL;
	ncclEpGroupConfig_t c = config_make();

	test_turned(w);
	test_memory(w);
	test_orphans(w);
	test_entered(w);
	test_made_again(w);
	test_failures(w);
	test_in_nccl_group(w);
	test_absent_at_growth(w);
	for (int how = 0; how < 3; how++) {
		test_refused_at_growth(w, how);
	}
	OK(ncclEpCreateGroup(&late, comm, &c));
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "3600000", 1);
	OK(ncclEpCreateGroup(&never, comm, &c));
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "100", 1);
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "3000", 1);
	c.timeout_ns = 50000000;
	OK(ncclEpCreateGroup(&busy, comm, &c));
	unsetenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS");
	test_busy_at_growth(w, busy);
	test_two_threads(w);
	c = config_make();
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "3600000", 1);
	OK(ncclEpCreateGroup(&dead, comm, &c));
	world_meet(w);
	test_absent_at_creation(w, comm);
	if (!check_failures()) {
		test_destroy_in_capture(w, busy);
		test_busy_device(w, busy);
	}
	if (!check_failures()) {
		test_leaving(w, late, never, dead);
	}
}

int main(void)
{
	NEED(world_launched()); /* ranks have an environment each */
	world_run(RANKS, run, NULL);
	return check_end();
}
