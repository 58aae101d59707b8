// SPDX-License-Identifier: Apache-2.0
/*
 * What operations report after their call has returned: expert ids out of range, ranks that do not
 * come, with masks and without; and calls in the wrong order. Four ranks, four processes.
 */
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>
#include "nccl_ep/ext.h"
#include "support/check.h"

#define RANKS 4
#define EXPERTS 8
#define TOKENS 4
#define TOPK 2
#define HIDDEN 64

static int rank;
static ncclComm_t comm;
static cudaStream_t stream;

struct routed { /* a handle and the tensors of one dispatch and combine, rank-major */
	ncclEpHandle_t handle;
	int64_t ids[TOKENS * TOPK];
	void *data[8];
	size_t sizes[8][3];
	ncclEpTensor_t t[8]; /* ids tokens weights | tokens weights idx counts | result */
	ncclEpDispatchInputs_t in;
	ncclEpDispatchOutputs_t out;
	ncclEpLayoutInfo_t info;
	ncclEpCombineInputs_t back;
	ncclEpCombineOutputs_t result;
};

static void tensor(struct routed *r, int i, ncclDataType_t type, size_t elem, size_t a, size_t b,
		   size_t c)
{
	size_t n = a * (b ? b : 1) * (c ? c : 1);

	r->sizes[i][0] = a;
	r->sizes[i][1] = b;
	r->sizes[i][2] = c;
	r->t[i] = (ncclEpTensor_t)NCCL_EP_TENSOR_INIT;
	r->t[i].ndim = c ? 3 : b ? 2 : 1;
	r->t[i].datatype = type;
	r->t[i].sizes = r->sizes[i];
	CHECK(cudaMalloc(&r->data[i], n * elem) == cudaSuccess);
	CHECK(cudaMemset(r->data[i], 0, n * elem) == cudaSuccess);
	r->t[i].data = r->data[i];
}

static void routed_make(struct routed *r, ncclEpGroup_t group)
{
	memset(r, 0, sizeof(*r));
	tensor(r, 0, ncclInt64, 8, TOKENS, TOPK, 0);
	tensor(r, 1, ncclBfloat16, 2, TOKENS, HIDDEN, 0);
	tensor(r, 2, ncclFloat32, 4, TOKENS, TOPK, 0);
	tensor(r, 3, ncclBfloat16, 2, RANKS, TOKENS, HIDDEN);
	tensor(r, 4, ncclFloat32, 4, RANKS, TOKENS, TOPK);
	tensor(r, 5, ncclInt32, 4, RANKS, TOKENS, TOPK);
	tensor(r, 6, ncclInt32, 4, RANKS, 0, 0);
	tensor(r, 7, ncclBfloat16, 2, TOKENS, HIDDEN, 0);
	for (int t = 0; t < TOKENS; t++) { /* token t to ranks t and t + 1 */
		for (int k = 0; k < TOPK; k++) {
			r->ids[t * TOPK + k] = (t + k) % RANKS * (EXPERTS / RANKS);
		}
	}
	CHECK(cudaMemcpy(r->data[0], r->ids, sizeof(r->ids), cudaMemcpyHostToDevice) ==
	      cudaSuccess);
	r->in = (ncclEpDispatchInputs_t)NCCL_EP_DISPATCH_INPUTS_INIT;
	r->in.tokens = &r->t[1];
	r->in.topk_weights = &r->t[2];
	r->out = (ncclEpDispatchOutputs_t)NCCL_EP_DISPATCH_OUTPUTS_INIT;
	r->out.tokens = &r->t[3];
	r->out.topk_weights = &r->t[4];
	r->out.topk_idx = &r->t[5];
	r->info = (ncclEpLayoutInfo_t)NCCL_EP_LAYOUT_INFO_INIT;
	r->info.src_rank_counters = &r->t[6];
	r->back = (ncclEpCombineInputs_t)NCCL_EP_COMBINE_INPUTS_INIT;
	r->back.tokens = &r->t[3];
	r->result = (ncclEpCombineOutputs_t)NCCL_EP_COMBINE_OUTPUTS_INIT;
	r->result.tokens = &r->t[7];
	CHECK(ncclEpCreateHandle(&r->handle, group, NCCL_EP_LAYOUT_RANK_MAJOR, &r->t[0], NULL, NULL,
				 stream) == ncclSuccess);
}

static void routed_free(struct routed *r)
{
	CHECK(ncclEpHandleDestroy(r->handle) == ncclSuccess);
	for (int i = 0; i < 8; i++) {
		CHECK(cudaFree(r->data[i]) == cudaSuccess);
	}
}

static ncclResult_t dispatch(struct routed *r, bool send_only)
{
	ncclEpDispatchConfig_t c = NCCL_EP_DISPATCH_CONFIG_INIT;

	c.send_only = send_only;
	return ncclEpDispatch(r->handle, &r->in, &r->out, &r->info, &c, stream);
}

static ncclResult_t combine(struct routed *r, bool send_only)
{
	ncclEpCombineConfig_t c = NCCL_EP_COMBINE_CONFIG_INIT;

	c.send_only = send_only;
	return ncclEpCombine(r->handle, &r->back, &r->result, &c, stream);
}

static void wait_stream(void)
{
	CHECK(cudaStreamSynchronize(stream) == cudaSuccess);
}

static const char *last_text(ncclEpGroup_t group, ncclResult_t expected)
{
	ncclResult_t code = ncclSuccess;
	const char *text = "";

	CHECK(ncclEpExtGetLastError(group, &code, &text) == ncclSuccess);
	CHECK(code == expected);
	return text;
}

static void barrier(void)
{
	static float *one;

	if (!one) {
		CHECK(cudaMalloc((void **)&one, RANKS * sizeof(*one)) == cudaSuccess);
	}
	CHECK(ncclAllGather(one + rank, one, 1, ncclFloat32, comm, stream) == ncclSuccess);
	wait_stream();
}

static void connect_ranks(void)
{
	char path[300], tmp[310];
	ncclUniqueId id;
	int fd;

	snprintf(path, sizeof(path), "%s/errors-id", getenv("VC_DIR"));
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
	CHECK(ncclCommInitRank(&comm, RANKS, id, rank) == ncclSuccess);
	CHECK(cudaStreamCreate(&stream) == cudaSuccess);
}

static ncclEpGroup_t group_make(unsigned int enable_mask, uint64_t timeout_ms)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpGroup_t g = NULL;

	c.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	c.num_experts = EXPERTS;
	c.max_dispatch_tokens_per_rank = TOKENS;
	c.max_token_bytes = 2 * HIDDEN;
	c.num_topk = TOPK;
	c.enable_mask = enable_mask;
	c.timeout_ns = timeout_ms * 1000000;
	CHECK(ncclEpCreateGroup(&g, comm, &c) == ncclSuccess);
	if (!g) {
		exit(1);
	}
	return g;
}

/* The report comes with the text, once; no call fails, since the other ranks know nothing of it. */
static void test_bad_id(void)
{
	ncclEpGroup_t g = group_make(0, 20000);
	uint64_t tokens = 0, rows = 0;
	struct routed r;
	int64_t bad = EXPERTS;

	routed_make(&r, g);
	if (rank == 2) {
		CHECK(cudaMemcpy((int64_t *)r.data[0] + 3, &bad, 8, cudaMemcpyHostToDevice) ==
		      cudaSuccess);
	}
	CHECK(dispatch(&r, false) == ncclSuccess);
	wait_stream();
	if (rank == 2) {
		CHECK_HAS(last_text(g, ncclInvalidArgument),
			  "topk_idx[1][1] is 8, experts are 0..7");
	} else {
		CHECK_TEXT(last_text(g, ncclSuccess), "");
	}
	CHECK(ncclEpExtNumRecvTokens(r.handle, &tokens, &rows, stream) == ncclSuccess);
	/* two tokens of each rank; token 1 of rank 2 does not reach rank 2 */
	CHECK(tokens == (rank == 2 ? 2 * RANKS - 1 : 2 * RANKS) && rows == tokens);
	CHECK(combine(&r, false) == ncclSuccess);
	wait_stream();
	routed_free(&r);
	CHECK(ncclEpGroupDestroy(g) == ncclSuccess);
}

/* A tensor that has only a window is written where the window is. */
static void test_window(void)
{
	ncclEpGroup_t g = group_make(0, 20000);
	size_t bytes = 2 * RANKS * TOKENS * HIDDEN;
	uint16_t *host = malloc(bytes);
	ncclWindow_t window = NULL;
	char *memory = NULL;
	struct routed r;

	routed_make(&r, g);
	CHECK(cudaMemset(r.data[1], 0x10 + rank, 2 * TOKENS * HIDDEN) == cudaSuccess);
	CHECK(ncclMemAlloc((void **)&memory, bytes + 4096) == ncclSuccess);
	CHECK(cudaMemset(memory, 0, bytes + 4096) == cudaSuccess);
	CHECK(ncclCommWindowRegister(comm, memory, bytes + 4096, &window, 0) == ncclSuccess);
	r.t[3].data = NULL;
	CHECK(dispatch(&r, false) == ncclInvalidArgument);
	CHECK_HAS(last_text(g, ncclInvalidArgument), "outputs->tokens: neither data nor a window");
	r.t[3].win_hdl = window;
	r.t[3].win_offset = 1024;
	CHECK(dispatch(&r, false) == ncclSuccess);
	wait_stream();
	CHECK(cudaMemcpy(host, memory + 1024, bytes, cudaMemcpyDeviceToHost) == cudaSuccess);
	for (int src = 0; src < RANKS; src++) { /* each rank sends two rows to each */
		for (int i = 0; i < TOKENS * HIDDEN; i++) {
			CHECK(host[src * TOKENS * HIDDEN + i] ==
			      (i < 2 * HIDDEN ? 0x1010 + 0x101 * src : 0));
		}
	}
	r.t[3].data = r.data[3];
	routed_free(&r);
	CHECK(ncclCommWindowDeregister(comm, window) == ncclSuccess);
	CHECK(ncclMemFree(memory) == ncclSuccess);
	free(host);
	CHECK(ncclEpGroupDestroy(g) == ncclSuccess);
}

/* Extents whose product with the element size does not fit 64 bits. */
static void test_huge_extents(void)
{
	ncclEpGroup_t g = group_make(0, 20000);
	size_t huge = ((size_t)1 << 63) + HIDDEN;
	struct routed r;

	routed_make(&r, g);
	r.sizes[1][1] = r.sizes[3][2] = r.sizes[7][1] = huge;
	CHECK(dispatch(&r, false) == ncclInvalidArgument);
	CHECK_HAS(last_text(g, ncclInvalidArgument), "rows of 9223372036854775872 bf16");
	CHECK(combine(&r, false) == ncclInvalidArgument);
	CHECK_HAS(last_text(g, ncclInvalidArgument), "rows of 9223372036854775872 bf16");
	routed_free(&r);
	CHECK(ncclEpGroupDestroy(g) == ncclSuccess);
}

static void test_order(void)
{
	ncclEpGroup_t g = group_make(0, 20000);
	ncclEpExtPeerStats_t stats[RANKS] = { NCCL_EP_EXT_PEER_STATS_INIT };
	ncclEpTensor_t ids = NCCL_EP_TENSOR_INIT;
	struct routed a, b, c;
	uint64_t n;
	int value;

	routed_make(&a, g);
	routed_make(&b, g);
	routed_make(&c, g);
	CHECK(combine(&a, false) == ncclInvalidUsage);
	CHECK_HAS(last_text(g, ncclInvalidUsage), "nothing was dispatched");
	CHECK(ncclEpExtNumRecvTokens(a.handle, &n, &n, stream) == ncclInvalidUsage);
	CHECK(ncclEpComplete(a.handle, NULL, stream) == ncclSuccess); /* nothing pending */
	CHECK(dispatch(&a, true) == ncclSuccess);
	CHECK(dispatch(&a, false) == ncclInvalidUsage);
	CHECK_HAS(last_text(g, ncclInvalidUsage), "a send_only dispatch of this handle is pending");
	CHECK(combine(&a, false) == ncclInvalidUsage);
	CHECK(ncclEpUpdateHandle(a.handle, &a.t[0], NULL, stream) == ncclInvalidUsage);
	CHECK(ncclEpHandleDestroy(a.handle) == ncclInvalidUsage);
	CHECK(dispatch(&b, true) == ncclSuccess);
	CHECK(dispatch(&c, true) == ncclInvalidUsage);
	CHECK_HAS(last_text(g, ncclInvalidUsage), "2 send_only operations of the group");
	CHECK(dispatch(&c, false) == ncclSuccess); /* whole operations go in between */
	CHECK(ncclEpComplete(b.handle, NULL, stream) == ncclSuccess);
	CHECK(ncclEpComplete(a.handle, NULL, stream) == ncclSuccess);
	CHECK(combine(&b, true) == ncclSuccess);
	CHECK(combine(&c, false) == ncclSuccess);
	CHECK(combine(&a, true) == ncclSuccess);
	CHECK(ncclEpComplete(a.handle, NULL, stream) == ncclSuccess);
	CHECK(ncclEpComplete(b.handle, NULL, stream) == ncclSuccess);
	CHECK(ncclEpUpdateHandle(a.handle, &a.t[0], NULL, stream) == ncclSuccess);
	CHECK(combine(&a, false) == ncclInvalidUsage);

	CHECK(ncclEpUpdateHandle(a.handle, NULL, NULL, stream) == ncclInvalidArgument);
	CHECK(ncclEpUpdateHandle(a.handle, &a.t[0], &a.info, stream) == ncclInvalidArgument);
	CHECK(ncclEpUpdateHandle(a.handle, &a.t[2], NULL, stream) == ncclInvalidArgument);
	CHECK_HAS(last_text(g, ncclInvalidArgument), "data type fp32, it needs int32 or int64");
	CHECK(ncclEpUpdateHandle(a.handle, &ids, NULL, stream) == ncclInvalidArgument);

	CHECK(ncclEpGetAsyncError(g, &value) == ncclInvalidUsage);
	CHECK(ncclEpErrorClear(g) == ncclInvalidUsage);
	CHECK(ncclEpMaskClean(g, stream) == ncclInvalidUsage);
	CHECK(ncclEpMaskUpdate(g, &value, stream) == ncclInvalidUsage);
	CHECK(ncclEpMaskQuery(g, a.data[6], stream) == ncclInvalidUsage);
	CHECK_HAS(last_text(g, ncclInvalidUsage), "created without enable_mask");

	CHECK(ncclEpExtPeerStats(g, stats, RANKS, stream) == ncclSuccess);
	for (int r = 0; r < RANKS; r++) {
		CHECK(stats[r].size == sizeof(stats[0]) && stats[r].magic == NCCL_EP_MAGIC);
		CHECK(stats[r].rank == r && stats[r].active == 1);
		CHECK(stats[r].operations >= 3 && stats[r].rx_rows >= 6);
	}
	CHECK(ncclEpExtPeerStats(g, stats, RANKS + 1, stream) == ncclInvalidArgument);
	routed_free(&a);
	routed_free(&b);
	routed_free(&c);
	CHECK(ncclEpGroupDestroy(g) == ncclSuccess);
}

/* Without masks: the operation ends, the group is lost, the process is not. */
static void test_absent_rank(void)
{
	ncclEpGroup_t g = group_make(0, 300);
	struct routed r;

	routed_make(&r, g);
	CHECK(dispatch(&r, false) == ncclSuccess);
	wait_stream();
	barrier();
	if (rank != 3) {
		CHECK(combine(&r, false) == ncclSuccess);
		wait_stream();
		CHECK(dispatch(&r, false) == ncclRemoteError);
		CHECK_HAS(last_text(g, ncclRemoteError), "waited 300 ms for rank 3");
		CHECK_HAS(last_text(g, ncclRemoteError), "not started yet by rank 3;");
		CHECK(combine(&r, false) == ncclRemoteError); /* for ever */
		CHECK(ncclEpUpdateHandle(r.handle, &r.t[0], NULL, stream) == ncclRemoteError);
	}
	barrier();
	routed_free(&r);
	CHECK(ncclEpGroupDestroy(g) == ncclSuccess);
}

static void check_mask(ncclEpGroup_t g, int last)
{
	int *dev, host[RANKS];

	CHECK(cudaMalloc((void **)&dev, sizeof(host)) == cudaSuccess);
	CHECK(ncclEpMaskQuery(g, dev, stream) == ncclSuccess);
	CHECK(cudaMemcpyAsync(host, dev, sizeof(host), cudaMemcpyDeviceToHost, stream) ==
	      cudaSuccess);
	wait_stream();
	for (int r = 0; r < RANKS; r++) {
		CHECK(host[r] == (r == RANKS - 1 ? last : 1));
	}
	CHECK(cudaFree(dev) == cudaSuccess);
}

/* With masks: the others go on without it, and take it back. */
static void test_masked_rank(void)
{
	static const int wrong[RANKS] = { 1, 1, 2, 1 };
	ncclEpGroup_t g = group_make(1, 2000);
	uint64_t tokens = 0;
	int error = -1;
	struct routed r;

	routed_make(&r, g);
	CHECK(ncclEpMaskUpdate(g, wrong, stream) == ncclInvalidArgument);
	CHECK(ncclEpMaskQuery(g, NULL, stream) == ncclInvalidArgument);
	CHECK(ncclEpGetAsyncError(g, NULL) == ncclInvalidArgument);
	CHECK(dispatch(&r, false) == ncclSuccess && combine(&r, false) == ncclSuccess);
	wait_stream();
	CHECK(ncclEpGetAsyncError(g, &error) == ncclSuccess && error == 0);
	check_mask(g, 1);
	barrier();
	if (rank != 3) {
		for (int i = 0; i < 3; i++) {
			CHECK(dispatch(&r, false) == ncclSuccess);
			CHECK(combine(&r, false) == ncclSuccess);
		}
		wait_stream();
		CHECK(ncclEpExtNumRecvTokens(r.handle, &tokens, NULL, stream) == ncclSuccess);
		CHECK(tokens == 2 * (RANKS - 1));
		CHECK(ncclEpGetAsyncError(g, &error) == ncclSuccess && error == 1);
		check_mask(g, 0);
	}
	barrier();
	if (rank == 1) { /* refused, and leaves the capture as it is */
		cudaGraph_t graph = NULL;

		CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal) == cudaSuccess);
		CHECK(ncclEpMaskClean(g, stream) == ncclInvalidUsage);
		CHECK(cudaStreamEndCapture(stream, &graph) == cudaSuccess);
		CHECK(cudaGraphDestroy(graph) == cudaSuccess);
	}
	CHECK(ncclEpMaskClean(g, stream) == ncclSuccess);
	check_mask(g, 1);
	if (rank != 3) { /* stays until it is cleared */
		CHECK(ncclEpGetAsyncError(g, &error) == ncclSuccess && error == 1);
		CHECK(ncclEpErrorClear(g) == ncclSuccess);
	}
	CHECK(dispatch(&r, false) == ncclSuccess && combine(&r, false) == ncclSuccess);
	CHECK(ncclEpExtNumRecvTokens(r.handle, &tokens, NULL, stream) == ncclSuccess);
	CHECK(tokens == 2 * RANKS);
	wait_stream();
	CHECK(ncclEpGetAsyncError(g, &error) == ncclSuccess && error == 0);
	check_mask(g, 1);
	routed_free(&r);
	CHECK(ncclEpGroupDestroy(g) == ncclSuccess);
}

int main(void)
{
	rank = atoi(getenv("RANK"));
	connect_ranks();
	test_bad_id();
	test_window();
	test_huge_extents();
	test_order();
	test_absent_rank();
	test_masked_rank();
	CHECK(ncclCommDestroy(comm) == ncclSuccess);
	return check_end();
}
