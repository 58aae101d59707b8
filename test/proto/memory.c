/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where memory comes from: the caller's allocator, sizes announced beforehand, explicit and growing
 * buffers, handle memory of the caller, and allocations that fail.
 *
 *     memory [captures]     captures: only groups and handles that are made while streams are
 *                           captured
 */
#include <unistd.h>

#include "ep/ep.h"
#include "support/bench.h"
#include "support/ht_bench.h"
#include "support/roles.h"
#include "support/self.h"
#include "support/watch.h"

struct purse {
	uint64_t bytes; /* in use */
	uint64_t most;  /* ever in use */
	uint32_t calls;
	uint32_t fail_at; /* that call fails; 0: none */
	bool empty;       /* and says that it did not */
	uint32_t wrong;
	struct {
		void *ptr;
		size_t size;
	} block[64];
};

#define UNTOUCHED ((ncclEpHandle_t)(uintptr_t)1)

static cudaError_t purse_alloc(void **ptr, size_t size, void *context)
{
	struct purse *p = context;
	cudaError_t err;

	if (++p->calls == p->fail_at) {
		*ptr = NULL;
		return p->empty ? cudaSuccess : cudaErrorMemoryAllocation;
	}
	err = cudaMalloc(ptr, size);
	for (size_t i = 0; err == cudaSuccess && i < 64; i++) {
		if (!p->block[i].ptr) {
			p->block[i].ptr = *ptr;
			p->block[i].size = size;
			p->bytes += size;
			p->most = p->bytes > p->most ? p->bytes : p->most;
			return err;
		}
	}
	p->wrong++;
	return err;
}

static cudaError_t purse_free(void *ptr, void *context)
{
	struct purse *p = context;

	for (size_t i = 0; i < 64; i++) {
		if (p->block[i].ptr == ptr) {
			p->block[i].ptr = NULL;
			p->bytes -= p->block[i].size;
			return cudaFree(ptr);
		}
	}
	p->wrong++; /* not ours, or freed twice */
	return cudaErrorInvalidValue;
}

static ncclEpGroupConfig_t config_with(struct purse *p, const struct oracle_problem *problem)
{
	ncclEpGroupConfig_t config = bench_group_config(problem, 0);

	memset(p, 0, sizeof(*p));
	config.alloc.alloc_fn = purse_alloc;
	config.alloc.free_fn = purse_free;
	config.alloc.context = p;
	return config;
}

static ncclEpExtMemory_t announced(const ncclEpGroupConfig_t *config, int nranks,
				   ncclEpLayout_t layout, int topk)
{
	ncclEpExtMemory_t m = NCCL_EP_EXT_MEMORY_INIT;

	m.remote_ranks = (unsigned int)(nranks - nranks / world_nodes());
	OK(ncclEpExtDeviceMemory(config, nranks, layout, topk, &m));
	return m;
}

static bool across_nodes(void)
{
	return getenv("NCCL_EP_NODE_SIZE") || world_nodes() > 1;
}

/* The last rank's node is the smallest; ranks of others have fewer queues. */
static void check_taken(const struct world *w, uint64_t taken, uint64_t expected)
{
	if (!across_nodes() || w->rank == w->nranks - 1) {
		CHECK_INT(taken, expected);
		return;
	}
	CHECK(taken <= expected && taken + (4 << 20) > expected);
}

/* What is announced is what is taken, to the byte. */
static void sizes(struct world *w)
{
	for (int i = 0; i < 8; i++) {
		enum oracle_layout layout = i % 2 ? ORACLE_RANK_MAJOR : ORACLE_EXPERT_MAJOR;
		struct oracle_problem p = bench_problem(w->nranks, 48, i < 4 ? 4 : 20,
							64 + 512 * (i / 2), i < 2 ? 1 : 50, layout);
		struct purse purse;
		ncclEpGroupConfig_t config = config_with(&purse, &p);
		ncclEpExtMemory_t alone, full;
		ncclEpHandle_t handle[3];
		ncclEpGroup_t group;
		uint64_t before, queues;

		check_context("sizes %d", i);
		config.num_topk = i < 6 ? 0 : p.topk;
		alone = announced(&config, w->nranks, NCCL_EP_LAYOUT_UNSET, 0);
		full = announced(&config, w->nranks, (ncclEpLayout_t)layout, (int)p.topk);
		CHECK_INT(alone.handle_bytes, 0);
		before = watch_bytes();
		NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
		CHECK_INT(group->peer_heap.bytes, alone.heap_bytes);
		queues = alone.group_bytes - alone.heap_bytes - purse.bytes;
		CHECK((queues != 0) == across_nodes()); /* from cudaMalloc, as the heap */
		check_taken(w, watch_bytes() - before, alone.group_bytes);
		for (int h = 0; h < 3; h++) {
			NEED_OK(ncclEpInitHandle(handle + h, group, (ncclEpLayout_t)layout, NULL,
						 (int)p.topk, NULL));
			CHECK_INT(group->peer_heap.bytes, full.heap_bytes);
			CHECK_INT(purse.bytes, full.group_bytes - full.heap_bytes - queues +
						       full.handle_bytes * (uint64_t)(h + 1));
		}
		check_taken(w, watch_bytes() - before, full.group_bytes + 3 * full.handle_bytes);
		CHECK(i < 4 || i >= 6 || full.heap_bytes > alone.heap_bytes);
		for (int h = 0; h < 3; h++) {
			OK(ncclEpHandleDestroy(handle[h]));
		}
		OK(ncclEpGroupDestroy(group));
		CHECK_INT(watch_bytes(), before);
		CHECK_INT(purse.bytes, 0);
		CHECK_INT(purse.wrong, 0);
	}
}

/*
 * The same in groups in which not all ranks hold experts or bring tokens, with rows so large that
 * each one's room counts.
 */
static void sizes_with_roles(struct world *w)
{
	for (uint32_t i = 0; i < 8; i++) {
		struct oracle_ht h = { .p = bench_problem(w->nranks, 0, 8, 7168, 64,
							  ORACLE_EXPERT_MAJOR) };
		ncclEpExtMemory_t m = NCCL_EP_EXT_MEMORY_INIT;
		ncclEpGroupConfig_t config;
		ncclEpExtRoles_t roles;
		ncclEpGroup_t group;

		roles_draw(&h.p, i / 2);
		/* A rank alone with all tokens and experts: it returns nothing to anybody. */
		if (i < 2) {
			h.p.first_holder = h.p.first_sender = (uint32_t)w->nranks - 1;
			h.p.holders = h.p.senders = 1;
		}
		h.p.experts = 8 * h.p.holders;
		config = i % 2 ? ht_group_config(&h, 0) : bench_group_config(&h.p, 0);
		check_context("holders %u:%u, senders %u:%u, %s", h.p.first_holder, h.p.holders,
			      h.p.first_sender, h.p.senders, i % 2 ? "ht" : "ll");
		m.roles = roles_of(&h.p, &roles);
		m.remote_ranks = (unsigned int)(w->nranks - w->nranks / world_nodes());
		OK(ncclEpExtDeviceMemory(&config, w->nranks, NCCL_EP_LAYOUT_UNSET, 0, &m));
		group = roles_group(w->comm, &h.p, &config);
		CHECK_INT(group->peer_heap.bytes, m.heap_bytes);
		OK(ncclEpGroupDestroy(group));
	}
}

static ncclResult_t init(ncclEpGroup_t group, const struct oracle_problem *p, int topk,
			 const ncclEpTensor_t *mem, ncclEpHandle_t *handle)
{
	*handle = UNTOUCHED;
	return ncclEpInitHandle(handle, group, (ncclEpLayout_t)p->layout, NULL, topk, mem);
}

/* What the API's own formula gives for rows of `bytes`, in its notation. */
static unsigned long reference_size(const struct oracle_problem *p, uint64_t bytes)
{
	bool em = p->layout == ORACLE_EXPERT_MAJOR;
	uint64_t b = p->max_tokens, r = p->nranks, k = p->topk, s = em ? p->experts : r;
	uint64_t dm = (4 + (em ? 2 : 8) * k + 15) / 16 * 16 + bytes;
	uint64_t cm = bytes + 4 * (bytes / 256);
	uint64_t dispatch = (1 + r) * b * dm, combine = (s + k) * b * cm;

	return 2 * ((4ull * p->experts + 127) / 128 * 128) +
	       2 * (dispatch > combine ? dispatch : combine);
}

static void use_size(struct world *w, const struct oracle_problem *p, unsigned long size)
{
	ncclEpGroupConfig_t config = bench_group_config(p, 0);
	ncclEpExtMemory_t need;
	ncclEpHandle_t handle;
	ncclEpGroup_t group;
	struct bench b;

	check_context("rdma_buffer_size %lu", size);
	config.num_topk = 0;
	config.rdma_buffer_size = size;
	need = announced(&config, w->nranks, NCCL_EP_LAYOUT_EXPERT_MAJOR, (int)p->topk);
	CHECK(need.heap_bytes >= size);
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	bench_open(&b, w, group, p, 0);
	NEED_OK(init(group, p, 32, NULL, &handle)); /* as large a top-k as there is */
	OK(ncclEpHandleDestroy(handle));
	if (size == reference_size(p, config.max_token_bytes)) {
		bench_load_tokens(&b, 5, 10);
		bench_pair(&b);
	}
	bench_end(&b);
}

/* rdma_buffer_size: just right for a handle, half of it, nothing, and as the API's formula says. */
static void explicit_size(struct world *w)
{
	struct oracle_problem p = bench_problem(w->nranks, 48, 4, 512, 400, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclEpExtMemory_t need = announced(&config, w->nranks, NCCL_EP_LAYOUT_EXPERT_MAJOR, 4);

	config.num_topk = 0;
	config.rdma_buffer_size = need.heap_bytes;
	CHECK_INT(announced(&config, w->nranks, NCCL_EP_LAYOUT_EXPERT_MAJOR, 4).heap_bytes,
		  need.heap_bytes);
	use_size(w, &p, need.heap_bytes);
	use_size(w, &p, need.heap_bytes / 2);
	use_size(w, &p, 1);
	use_size(w, &p, reference_size(&p, config.max_token_bytes));
	p.layout = ORACLE_RANK_MAJOR;
	use_size(w, &p, reference_size(&p, config.max_token_bytes));
}

/* AUTO: the second handle needs more than the buffer has; the first goes on working. */
static void growth(struct world *w)
{
	struct oracle_problem p = bench_problem(w->nranks, 48, 4, 256, 200, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	struct oracle_problem wide = p;
	struct bench a, b;
	ncclEpHandle_t handle;
	ncclEpGroup_t group;

	check_context("growth");
	wide.topk = 30;
	config.num_topk = 0;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	bench_open(&a, w, group, &p, 0);
	bench_load_tokens(&a, 5, 20);
	bench_pair(&a);
	NEED_OK(bench_send_combine(&a, w->stream));
	CHECK_REASON(init(group, &wide, 30, NULL, &handle), ncclInvalidUsage, "pending");
	CHECK(handle == UNTOUCHED);
	NEED_OK(ncclEpComplete(a.handle, NULL, w->stream));
	bench_open(&b, w, group, &wide, BENCH_OWN_MEM);
	bench_load_tokens(&b, 6, 10);
	bench_pair(&b);
	bench_pair(&a);
	bench_close(&b);
	bench_end(&a);
}

/* What no memory is large enough for is refused by each rank alone, and the memory still grows. */
static void growth_refused(struct world *w)
{
	struct oracle_problem p = bench_problem(w->nranks, 48, 3, 8, 8193, ORACLE_RANK_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclEpHandle_t handle;
	ncclEpGroup_t group;

	check_context("growth, B times num_topk");
	config.num_topk = 2;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	if (w->rank == 1) {
		CHECK_REASON(init(group, &p, 32, NULL, &handle), ncclInvalidUsage,
			     "exceeds 262144");
		CHECK(handle == UNTOUCHED);
	}
	world_meet(w);
	NEED_OK(init(group, &p, 3, NULL, &handle));
	OK(ncclEpHandleDestroy(handle));
	OK(ncclEpGroupDestroy(group));
}

enum mistake {
	MISTAKE_MEM,
	MISTAKE_CONFIG,
	MISTAKE_LAYOUT,
	MISTAKE_HANDLE, /* nowhere to write it to */
	MISTAKE_PENDING,
	MISTAKE_BUFFER, /* of the exchange, no pinned memory */
	MISTAKE_STREAM, /* likewise */
	MISTAKE_HEAP,
	MISTAKES
};

/* A larger handle, and what rank 1 does wrong then. */
static ncclResult_t init_wrong(struct world *w, struct bench *b, int topk, enum mistake mistake,
			       ncclEpHandle_t *handle)
{
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;
	ncclEpLayout_t layout = (ncclEpLayout_t)b->p.layout;
	ncclEpTensor_t mem = NCCL_EP_TENSOR_INIT;
	bool odd = w->rank == 1;
	ncclResult_t result;

	watch_start();
	if (odd) {
		config.magic += mistake == MISTAKE_CONFIG;
		layout = mistake == MISTAKE_LAYOUT ? NCCL_EP_LAYOUT_UNSET : layout;
		watch.fail_at[WATCH_HOST_REGISTER] = mistake == MISTAKE_BUFFER;
		watch.fail_at[WATCH_MALLOC] = mistake == MISTAKE_HEAP;
		watch.fail_at[WATCH_STREAM_CREATE] = mistake == MISTAKE_STREAM;
	}
	if (odd && mistake == MISTAKE_PENDING) {
		NEED_OK(bench_send_combine(b, w->stream));
	}
	result = ncclEpInitHandle(odd && mistake == MISTAKE_HANDLE ? NULL : handle, b->group,
				  layout, &config, topk,
				  odd && mistake == MISTAKE_MEM ? &mem : NULL);
	watch_start();
	if (mistake == MISTAKE_PENDING) {
		if (!odd) {
			NEED_OK(bench_send_combine(b, w->stream));
		}
		NEED_SYNC(ncclEpComplete(b->handle, NULL, w->stream), w->stream);
	}
	return result;
}

/* The buffer must grow, and one rank fails before it begins: all get to know. */
static void growth_fails(struct world *w)
{
	static const char *const part[MISTAKES] = { "handle_mem", "magic",          "layout",
						    "handle is",  "pending",        "buffer",
						    "stream",     "cannot allocate" };
	struct oracle_problem p = bench_problem(w->nranks, 48, 4, 256, 20, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclEpHandle_t handle = NULL;
	ncclEpGroup_t group;
	struct bench b;

	config.num_topk = 0; /* room for 8 */
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	bench_open(&b, w, group, &p, 0);
	bench_pair(&b);
	for (int i = 0; i < MISTAKES; i++) {
		ncclResult_t result;

		check_context("growth, mistake %d", i);
		result = init_wrong(w, &b, 20 + i, (enum mistake)i, &handle);
		CHECK(result != ncclSuccess && !handle);
		CHECK_LAST(NULL, w->rank == 1 ? result : ncclRemoteError,
			   w->rank == 1 ? part[i] : "rank 1");
		bench_pair(&b);
	}
	bench_end(&b);
}

static void handle_memory(struct world *w)
{
	struct oracle_problem p = bench_problem(w->nranks, 12, 4, 64, 20, ORACLE_RANK_MAJOR);
	ncclEpGroup_t group = bench_group(w, &p, 0);
	ncclEpTensor_t mem = NCCL_EP_TENSOR_INIT;
	ncclEpHandle_t handle;
	size_t need = 0, sizes1[1];
	char *data;

	check_context("handle memory");
	OK(ncclEpHandleMemSize(group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, &need, 4));
	CHECK(need > 0);
	NEED_CUDA(cudaMalloc((void **)&data, need + 16));
	mem.ndim = 1;
	mem.datatype = ncclUint8;
	mem.sizes = sizes1;
	mem.data = data;
	sizes1[0] = need - 1;
	CHECK_REASON(init(group, &p, 4, &mem, &handle), ncclInvalidArgument, "handle_mem");
	CHECK(handle == UNTOUCHED);
	sizes1[0] = need;
	mem.data = data + 8;
	CHECK_REASON(init(group, &p, 4, &mem, &handle), ncclInvalidArgument, "handle_mem");
	mem.data = NULL;
	CHECK_REASON(init(group, &p, 4, &mem, &handle), ncclInvalidArgument, "handle_mem");
	mem.data = data;
	mem.datatype = ncclFloat32;
	CHECK_REASON(init(group, &p, 4, &mem, &handle), ncclInvalidArgument, "handle_mem");
	mem.datatype = ncclUint8;
	mem.ndim = 2;
	CHECK_REASON(init(group, &p, 4, &mem, &handle), ncclInvalidArgument, "handle_mem");
	mem.ndim = 1;
	watch_start();
	OK(init(group, &p, 4, &mem, &handle));
	CHECK_INT(watch.calls[WATCH_MALLOC], 0);
	OK(ncclEpHandleDestroy(handle));
	CHECK_INT(watch.calls[WATCH_FREE], 0);
	NEED_CUDA(cudaFree(data));
	OK(ncclEpGroupDestroy(group));
}

static bool with_nics(void)
{
	return world_nodes() > 1 || getenv("NCCL_EP_NODE_SIZE");
}

/*
 * Group creation with the n-th call of one kind failing on rank 1, until nothing fails any more.
 * The first stream and buffer are those of the exchange by which ranks tell each other.
 */
static void failures(struct world *w, enum watch_call call)
{
	int blocks;
	struct oracle_problem p = bench_problem(w->nranks, 12, 4, 64, 8, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclEpGroup_t group;
	bool failed = true;

	world_meet(w);
	blocks = self_maps("/dev/zero");
	world_meet(w);
	for (uint64_t n = 1; failed; n++) {
		ncclResult_t result;

		NEED(n < 40);
		check_context("%s %llu fails on rank 1", watch_name(call), (unsigned long long)n);
		watch_start();
		watch.fail_at[call] = w->rank == 1 ? n : 0;
		group = (ncclEpGroup_t)(uintptr_t)1;
		result = ncclEpCreateGroup(&group, w->comm, &config);
		world_raise(w, (int)n, 1 + watch.failed);
		world_meet(w);
		failed = world_look(w, (int)n, 1) == 2;
		watch_start();
		if (!failed) {
			OK(result);
			OK(ncclEpGroupDestroy(group));
			break;
		}
		if (result == ncclSuccess) {
			/*
			 * Posting by the GPU was not possible, and rank 1 has taken another way; or
			 * it does not show its waits.
			 */
			CHECK((with_nics() && call != WATCH_MALLOC) ||
			      call == WATCH_HOST_REGISTER || call == WATCH_HOST_POINTER);
			OK(ncclEpGroupDestroy(group));
		} else if (w->rank == 1) {
			CHECK_LAST(NULL, result,
				   call != WATCH_HOST_REGISTER && call != WATCH_HOST_POINTER ? ""
				   : with_nics() ? "out of memory" /* also of a doorbell */
						 : "bytes of host memory: cudaHost");
		} else {
			CHECK_LAST(NULL, ncclRemoteError, "rank 1");
		}
		world_meet(w);
		CHECK_INT(self_maps("/dev/zero"), blocks);
		world_meet(w);
	}
}

/*
 * Creation by a process that may open so many files more. What it takes to say who the rank is
 * there must be; further on it is named.
 */
static void few_files(struct world *w)
{
	struct oracle_problem p = bench_problem(w->nranks, 12, 4, 64, 8, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclResult_t result = ncclSystemError;
	ncclEpGroup_t group;
	int named = 0;

	for (int more = 0; result != ncclSuccess; more++) {
		int fd = dup(STDERR_FILENO), files;

		NEED(fd >= 0 && more < 40);
		close(fd);
		check_context("%d files more on rank 1", more);
		world_meet(w);
		files = w->rank == 1 ? self_files(fd + more) : 0;
		result = ncclEpCreateGroup(&group, w->comm, &config);
		if (w->rank == 1) {
			self_files(files);
		}
		if (result == ncclSuccess) {
			OK(ncclEpGroupDestroy(group));
		} else {
			CHECK_LAST(NULL, w->rank == 1 ? result : ncclRemoteError, "ulimit -n");
			named++;
		}
		world_meet(w);
	}
	CHECK(named > 1, "%d", named);
}

static void failing_allocator(struct world *w)
{
	struct oracle_problem p = bench_problem(w->nranks, 12, 4, 64, 8, ORACLE_EXPERT_MAJOR);
	struct purse purse;
	ncclEpGroupConfig_t config = config_with(&purse, &p);
	ncclEpHandle_t handle[2];
	ncclEpGroup_t group;

	check_context("failing allocator");
	purse.fail_at = w->rank == 0;
	CHECK_RESULT(ncclEpCreateGroup(&group, w->comm, &config),
		     w->rank == 0 ? ncclUnhandledCudaError : ncclRemoteError);
	CHECK_LAST(NULL, w->rank == 0 ? ncclUnhandledCudaError : ncclRemoteError,
		   w->rank == 0 ? "alloc_fn" : "rank 0");
	CHECK_INT(purse.bytes, 0);
	purse.fail_at = 0;
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	NEED_OK(init(group, &p, 4, NULL, handle));
	purse.fail_at = purse.calls + 1;
	CHECK_REASON(init(group, &p, 4, NULL, handle + 1), ncclUnhandledCudaError, "alloc_fn");
	CHECK(handle[1] == UNTOUCHED);
	purse.fail_at = purse.calls + 1;
	purse.empty = true;
	CHECK_REASON(init(group, &p, 4, NULL, handle + 1), ncclUnhandledCudaError, "returned NULL");
	CHECK(handle[1] == UNTOUCHED);
	NEED_OK(init(group, &p, 4, NULL, handle + 1));
	OK(ncclEpHandleDestroy(handle[1]));
	OK(ncclEpGroupDestroy(group));
	CHECK_INT(purse.bytes, 0);
	OK(ncclEpHandleDestroy(handle[0])); /* its memory went with the group */
	CHECK_INT(purse.wrong, 0);
}

/* A new handle, whose memory has to be allocated, while a stream is being captured. */
static void captured(struct world *w)
{
	static const enum cudaStreamCaptureMode modes[] = { cudaStreamCaptureModeGlobal,
							    cudaStreamCaptureModeThreadLocal,
							    cudaStreamCaptureModeRelaxed };
	struct oracle_problem p = bench_problem(w->nranks, 12, 4, 64, 20, ORACLE_RANK_MAJOR);
	ncclEpGroup_t group = bench_group(w, &p, 0);
	ncclEpHandle_t handle[3];
	cudaGraph_t graph;

	for (int i = 0; i < 3; i++) {
		enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;

		check_context("capture of mode %d", (int)modes[i]);
		world_meet(w); /* a capture of mode global concerns all threads */
		NEED_CUDA(cudaStreamBeginCapture(w->stream, modes[i]));
		OK(init(group, &p, 4, NULL, &handle[i]));
		world_meet(w);
		CHECK_CUDA(cudaStreamEndCapture(w->stream, &graph), cudaSuccess);
		NEED_CUDA(cudaGraphDestroy(graph));
		NEED_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
		CHECK_INT(mode, cudaStreamCaptureModeGlobal); /* the thread's is as before */
	}
	world_meet(w);
	for (int i = 0; i < 3; i++) {
		OK(ncclEpHandleDestroy(handle[i]));
	}
	OK(ncclEpGroupDestroy(group));
}

/*
 * A group that is made while a stream is being captured, as by a first layer that comes to it late:
 * by all ranks, or by one, of which the others need not know. Nothing of it becomes part of the
 * graph, and the capture goes on.
 */
static void captured_group(struct world *w, enum cudaStreamCaptureMode captures, bool all,
			   bool high)
{
	struct oracle_problem p = bench_problem(w->nranks, 12, 4, 64, 20, ORACLE_RANK_MAJOR);
	enum cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	bool mine = all || w->rank == 1;
	size_t nodes = 9;
	cudaGraph_t graph;
	struct bench b;
	void *memory;

	check_context("a group of algorithm %d in a capture of mode %d, %s, rank %d", high,
		      (int)captures, all ? "all ranks" : "rank 1", w->rank);
	config.algorithm = high ? NCCL_EP_ALGO_HIGH_THROUGHPUT : NCCL_EP_ALGO_LOW_LATENCY;
	NEED_CUDA(cudaMalloc(&memory, 64));
	world_meet(w); /* a capture of mode global concerns all threads */
	if (mine) {
		NEED_CUDA(cudaStreamBeginCapture(w->stream, captures));
		NEED_CUDA(cudaMemsetAsync(memory, 0, 64, w->stream));
	}
	world_meet(w);
	NEED_OK(ncclEpCreateGroup(&b.group, w->comm, &config));
	NEED_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
	CHECK_INT(mode, cudaStreamCaptureModeGlobal); /* the thread's is as before */
	NEED_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
	world_meet(w);
	if (mine) {
		CHECK_CUDA(cudaStreamEndCapture(w->stream, &graph), cudaSuccess);
		NEED_CUDA(cudaGraphGetNodes(graph, NULL, &nodes));
		CHECK_INT(nodes, 1);
		NEED_CUDA(cudaGraphDestroy(graph));
	}
	world_meet(w);
	if (high) {
		OK(ncclEpGroupDestroy(b.group));
	} else {
		bench_open(&b, w, b.group, &p, 0);
		bench_pair(&b);
		bench_end(&b);
	}
	NEED_CUDA(cudaFree(memory));
}

static void run(struct world *w, void *only_captures)
{
	for (int i = 0; i < 12; i++) {
		captured_group(w, (enum cudaStreamCaptureMode)(i % 3), i / 3 % 2, i < 6);
	}
	if (*(bool *)only_captures) {
		captured(w);
		return;
	}
	sizes(w);
	sizes_with_roles(w);
	explicit_size(w);
	growth(w);
	growth_refused(w);
	growth_fails(w);
	handle_memory(w);
	captured(w);
	failing_allocator(w);
	if (w->processes) {
		few_files(w);
	}
	failures(w, WATCH_MALLOC);
	failures(w, WATCH_HOST_REGISTER);
	failures(w, WATCH_HOST_POINTER);
	failures(w, WATCH_STREAM_CREATE);
	failures(w, WATCH_IPC_OPEN);
	failures(w, WATCH_MEMSET);
}

int main(int argc, char **argv)
{
	bool only_captures = argc > 1 && !strcmp(argv[1], "captures");
	long before = watch_live();

	world_run(world_size(3), run, &only_captures);
	CHECK_INT(watch_live(), before);
	return check_end();
}
