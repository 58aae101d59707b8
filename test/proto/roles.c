/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts and tokens on different ranks. Each problem runs twice on the same ranks: in a group with
 * roles, and in one without, where the ranks that hold no experts have some that get no tokens.
 * Rows and sums must have the same bits. Arguments: ranks, holders and senders as first:number,
 * what (see main), the seed, and how many tokens a rank has at most.
 */
#include <inttypes.h>
#include "support/tensor.h"

#define MOST_TOKENS 72 /* that arguments may ask for */
#define HIDDEN 512
#if defined(__SANITIZE_ADDRESS__)
#define SANITIZED true
#else
#define SANITIZED false
#endif
#define LOCAL 5 /* experts of a holder */
#define TOPK 4
#define TIMEOUT_NS UINT64_C(20000000000)

/* The test's own numbers: of any rank, by any rank. */
struct problem {
	uint64_t seed;
	uint64_t again; /* other tokens of the seed, as many */
	uint32_t ranks, first_holder, holders, first_sender, senders, tokens;
	ncclEpLayout_t layout;
	bool fp8;    /* rows travel quantised, both ways */
	bool wide;   /* ids are int64 */
	bool halves; /* send_only, and Complete */
	bool masks;
	int absent; /* this rank makes no calls; -1: all do */
	bool lost;  /* a combine finds that out: sums of its tokens are not defined */
};

/* One of the two ways of a problem. */
struct way {
	struct world *w;
	const struct problem *p;
	bool roles;
	bool holds;
	uint32_t first_holder, first_sender, senders, tokens;
	uint32_t blocks, rows; /* of received rows */
	ncclEpGroup_t group;
	ncclEpHandle_t handle;
	struct bench_tensor in, ids, weights, out, scales, out_weights, out_idx, counts, results,
		sums;
};

static uint64_t mix(uint64_t x)
{
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

static uint64_t drawn(const struct problem *p, uint32_t rank, uint32_t i, uint32_t what)
{
	return mix(mix(p->seed) + mix((uint64_t)rank << 32 | i) + what);
}

/* A finite bf16, neither large nor small. */
static uint16_t number(uint64_t x)
{
	return (uint16_t)((x & 0x8000) | (120 + (x >> 20) % 12) << 7 | (x & 0x7f));
}

static bool within(uint32_t r, uint32_t first, uint32_t n)
{
	return r >= first && r < first + n;
}

static uint32_t tokens_of(const struct problem *p, uint32_t rank)
{
	if (!within(rank, p->first_sender, p->senders)) {
		return 0;
	}
	return (uint32_t)(drawn(p, rank, 0, 1) % (p->tokens + 1));
}

/*
 * Expert of selection k, a number among those of the holders; -1: none. Some tokens name one twice.
 */
static int64_t expert_of(const struct problem *p, uint32_t rank, uint32_t token, uint32_t k)
{
	uint64_t x = drawn(p, rank, token * TOPK + k, 2 + (uint32_t)p->again * 16);
	uint32_t experts = p->holders * LOCAL;

	return x % 11 == 0 ? -1 : (int64_t)((x >> 32) % experts);
}

/* ---- one way ---- */

static void group_make(struct way *y)
{
	const struct problem *p = y->p;
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpExtRoles_t roles = NCCL_EP_EXT_ROLES_INIT;

	config.num_experts = LOCAL * (y->roles ? p->holders : p->ranks);
	config.max_dispatch_tokens_per_rank = p->tokens;
	config.max_token_bytes = 2 * HIDDEN;
	config.num_topk = TOPK;
	config.timeout_ns = p->absent >= 0 ? TIMEOUT_NS / 10 : TIMEOUT_NS;
	config.enable_mask = p->masks;
	roles.first_holder = p->first_holder;
	roles.num_holders = p->holders;
	roles.first_sender = p->first_sender;
	roles.num_senders = p->senders;
	NEED_OK(y->roles ? ncclEpExtCreateGroup(&y->group, y->w->comm, &config, &roles)
			 : ncclEpCreateGroup(&y->group, y->w->comm, &config));
}

static void describe(struct way *y)
{
	bool fp8 = y->p->fp8;

	tensor_describe(&y->in, ncclBfloat16, 2, y->tokens, HIDDEN, 0);
	tensor_describe(&y->ids, y->p->wide ? ncclInt64 : ncclInt32, 2, y->tokens, TOPK, 0);
	tensor_describe(&y->weights, ncclFloat32, 2, y->tokens, TOPK, 0);
	tensor_describe(&y->sums, ncclBfloat16, 2, y->tokens, HIDDEN, 0);
	tensor_describe(&y->out, fp8 ? ncclFloat8e4m3 : ncclBfloat16, 3, y->blocks, y->rows,
			HIDDEN);
	tensor_describe(&y->scales, ncclFloat32, 3, y->blocks, y->rows, HIDDEN / 128);
	tensor_describe(&y->results, ncclBfloat16, 3, y->blocks, y->rows, HIDDEN);
	tensor_describe(&y->out_weights, ncclFloat32, 3, y->blocks, y->rows, TOPK);
	tensor_describe(&y->out_idx, ncclInt32, 3, y->blocks, y->rows, TOPK);
	tensor_describe(&y->counts, ncclInt32, 1, y->blocks, 0, 0);
}

/* Memory that a rank needs by its role alone: what it does not need has no address. */
static void allocate(struct way *y)
{
	size_t rows = (size_t)y->blocks * y->rows;

	tensor_allocate(&y->in, 2 * HIDDEN * y->p->tokens);
	tensor_allocate(&y->ids, 8 * TOPK * y->p->tokens);
	tensor_allocate(&y->weights, 4 * TOPK * y->p->tokens);
	tensor_allocate(&y->sums, 2 * HIDDEN * y->p->tokens);
	tensor_allocate(&y->out, 2 * HIDDEN * rows);
	tensor_allocate(&y->scales, HIDDEN / 128 * 4 * rows);
	tensor_allocate(&y->results, 2 * HIDDEN * rows);
	tensor_allocate(&y->out_weights, 4 * TOPK * rows);
	tensor_allocate(&y->out_idx, 4 * TOPK * rows);
	tensor_allocate(&y->counts, 4 * (size_t)y->blocks);
	if (!rows) {
		y->out.t.data = y->scales.t.data = y->results.t.data = NULL;
		y->out_weights.t.data = y->out_idx.t.data = NULL;
	}
}

static void way_open(struct way *y, struct world *w, const struct problem *p, bool roles)
{
	uint32_t rank = (uint32_t)w->rank;

	memset(y, 0, sizeof(*y));
	y->w = w;
	y->p = p;
	y->roles = roles;
	y->holds = !roles || within(rank, p->first_holder, p->holders);
	y->first_holder = roles ? p->first_holder : 0;
	y->first_sender = roles ? p->first_sender : 0;
	y->senders = roles ? p->senders : p->ranks;
	y->blocks = p->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR ? LOCAL : y->senders;
	y->rows = p->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR ? y->senders * p->tokens : p->tokens;
	y->blocks = y->holds ? y->blocks : 0;
	group_make(y);
	allocate(y);
	NEED_OK(ncclEpInitHandle(&y->handle, y->group, p->layout, NULL, TOPK, NULL));
}

static void way_close(struct way *y)
{
	struct bench_tensor *all[] = { &y->in,      &y->ids,         &y->weights, &y->out,
				       &y->scales,  &y->out_weights, &y->out_idx, &y->counts,
				       &y->results, &y->sums };

	NEED_CUDA(cudaStreamSynchronize(y->w->stream));
	OK(ncclEpHandleDestroy(y->handle));
	OK(ncclEpGroupDestroy(y->group));
	for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
		tensor_release(y->w, all[i]);
	}
}

/* Tokens, ids and weights of this rank. Without roles experts are counted over all ranks. */
static void load(struct way *y)
{
	static __thread uint16_t rows[MOST_TOKENS * HIDDEN];
	static __thread float weights[MOST_TOKENS * TOPK];
	static __thread int64_t wide[MOST_TOKENS * TOPK];
	static __thread int32_t narrow[MOST_TOKENS * TOPK];
	const struct problem *p = y->p;
	uint32_t rank = (uint32_t)y->w->rank, selections;

	y->tokens = tokens_of(p, rank);
	selections = y->tokens * TOPK;
	for (uint32_t i = 0; i < y->tokens * HIDDEN; i++) {
		rows[i] = number(drawn(p, rank, i, 3 + (uint32_t)p->again * 16));
	}
	for (uint32_t i = 0; i < selections; i++) {
		int64_t id = expert_of(p, rank, i / TOPK, i % TOPK);

		wide[i] = id < 0 || y->roles ? id : id + (int64_t)p->first_holder * LOCAL;
		narrow[i] = (int32_t)wide[i];
		weights[i] = (float)(drawn(p, rank, i, 4) % 1000) / 999;
	}
	tensor_upload(&y->in, rows, sizeof(*rows) * HIDDEN * y->tokens);
	tensor_upload(&y->weights, weights, sizeof(*weights) * selections);
	tensor_upload(&y->ids, p->wide ? (void *)wide : narrow, selections * (p->wide ? 8 : 4));
	tensor_poison(&y->out);
	tensor_poison(&y->sums);
	describe(y);
}

static ncclResult_t complete(struct way *y, ncclResult_t result, cudaStream_t stream)
{
	ncclEpCompleteConfig_t config = NCCL_EP_COMPLETE_CONFIG_INIT;

	return result == ncclSuccess && y->p->halves ? ncclEpComplete(y->handle, &config, stream)
						     : result;
}

static ncclResult_t dispatch(struct way *y, cudaStream_t stream)
{
	ncclEpDispatchInputs_t in = NCCL_EP_DISPATCH_INPUTS_INIT;
	ncclEpDispatchOutputs_t out = NCCL_EP_DISPATCH_OUTPUTS_INIT;
	ncclEpLayoutInfo_t info = NCCL_EP_LAYOUT_INFO_INIT;
	ncclEpDispatchConfig_t config = NCCL_EP_DISPATCH_CONFIG_INIT;
	ncclResult_t result;

	in.tokens = &y->in.t;
	out.tokens = &y->out.t;
	if (y->p->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR) {
		info.expert_counters = y->holds ? &y->counts.t : NULL;
	} else {
		in.topk_weights = &y->weights.t;
		out.topk_weights = &y->out_weights.t;
		out.topk_idx = &y->out_idx.t;
		info.src_rank_counters = y->holds ? &y->counts.t : NULL;
	}
	if (y->p->fp8) {
		config.quant_recipe = NCCL_EP_DISP_QUANT_DS_FP8E3M4;
		out.scales = &y->scales.t;
	}
	config.send_only = y->p->halves;
	result = ncclEpUpdateHandle(y->handle, &y->ids.t, NULL, stream);
	if (result == ncclSuccess) {
		result = ncclEpDispatch(y->handle, &in, &out, &info, &config, stream);
	}
	return complete(y, result, stream);
}

static ncclResult_t combine(struct way *y, cudaStream_t stream)
{
	ncclEpCombineInputs_t in = NCCL_EP_COMBINE_INPUTS_INIT;
	ncclEpCombineOutputs_t out = NCCL_EP_COMBINE_OUTPUTS_INIT;
	ncclEpCombineConfig_t config = NCCL_EP_COMBINE_CONFIG_INIT;

	in.tokens = &y->results.t;
	out.tokens = &y->sums.t;
	if (y->p->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR) {
		out.topk_weights = &y->weights.t;
	}
	config.quant_recipe = y->p->fp8 ? NCCL_EP_EXT_COMB_QUANT_FP8 : NCCL_EP_COMB_QUANT_NONE;
	config.send_only = y->p->halves;
	return complete(y, ncclEpCombine(y->handle, &in, &out, &config, stream), stream);
}

/* ---- what came, and what experts make of it ---- */

/* Rows of block `i`, which the counter says. */
static uint32_t filled(const struct way *y, const int32_t *counts, uint32_t i)
{
	return i < y->blocks && (uint32_t)counts[i] <= y->rows ? (uint32_t)counts[i] : 0;
}

/* Results of experts depend on the row that came and on the block alone. */
static void work(struct way *y)
{
	size_t row = y->p->fp8 ? HIDDEN : 2 * HIDDEN, bytes = y->results.bytes;
	bool em = y->p->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
	unsigned char *rows = tensor_fetch(&y->out);
	int32_t *counts = tensor_fetch(&y->counts);
	uint16_t *results = malloc(bytes + 1);

	NEED(results);
	memset(results, ORACLE_UNREAD, bytes);
	for (uint32_t b = 0; b < y->blocks; b++) {
		for (uint32_t i = 0; i < filled(y, counts, b); i++) {
			size_t at = (size_t)b * y->rows + i;
			uint64_t x = mix(em ? b : y->first_sender + b);

			for (size_t j = 0; j < row; j++) {
				x = mix(x + rows[at * row + j]);
			}
			for (size_t j = 0; j < HIDDEN; j++) {
				results[at * HIDDEN + j] = number(x = mix(x));
			}
		}
	}
	tensor_upload(&y->results, results, bytes);
	free(results);
	free(counts);
	free(rows);
}

/* Do blocks [a, b] of two tensors have the same first bytes? */
static void same(const struct bench_tensor *a, const struct bench_tensor *b, size_t at, size_t bt,
		 size_t bytes, const char *what)
{
	char *left = tensor_fetch(a), *right = tensor_fetch(b);

	NEED(at + bytes <= a->bytes && bt + bytes <= b->bytes);
	CHECK(memcmp(left + at, right + bt, bytes) == 0, "%s", what);
	free(right);
	free(left);
}

/* Rows received with roles are those received without. Returns how many. */
static uint64_t compare_rows(const struct way *y, const struct way *plain)
{
	size_t row = y->p->fp8 ? HIDDEN : 2 * HIDDEN, scale = 4 * HIDDEN / 128, list = 4 * TOPK;
	bool em = y->p->layout == NCCL_EP_LAYOUT_EXPERT_MAJOR;
	int32_t *counts = tensor_fetch(&y->counts), *wanted = tensor_fetch(&plain->counts);
	uint64_t all = 0;

	for (uint32_t b = 0; b < y->blocks; b++) {
		uint32_t other = em ? b : y->first_sender + b;
		size_t at = (size_t)b * y->rows, bt = (size_t)other * plain->rows, n;

		CHECK_INT(counts[b], wanted[other]);
		n = filled(y, counts, b);
		all += n;
		same(&y->out, &plain->out, at * row, bt * row, n * row, "rows");
		if (y->p->fp8) {
			same(&y->scales, &plain->scales, at * scale, bt * scale, n * scale,
			     "scales");
		}
		if (!em) {
			same(&y->out_weights, &plain->out_weights, at * list, bt * list, n * list,
			     "weights");
			same(&y->out_idx, &plain->out_idx, at * list, bt * list, y->rows * list,
			     "ids");
		}
	}
	free(wanted);
	free(counts);
	return all;
}

static uint64_t received(struct way *y)
{
	uint64_t rows = 0;

	OK(ncclEpExtNumRecvTokens(y->handle, NULL, &rows, y->w->stream));
	return rows;
}

/*
 * Who waits for the absent rank in one group comes later to the other, where ranks would take it
 * for lost.
 */
static void together(struct way *y)
{
	int flag = y->p->absent;
	uint64_t step;

	if (flag < 0) {
		return;
	}
	step = world_look(y->w, flag, y->w->rank) + 1;
	world_raise(y->w, flag, step);
	for (int r = 0; r < y->w->nranks; r++) {
		NEED(r == y->p->absent || world_await(y->w, flag, r, step, 60));
	}
}

/* A dispatch and a combine both ways, by which: eager, or a graph each. */
static void run_pair(struct way *y, struct way *plain, cudaGraphExec_t *graphs)
{
	cudaStream_t stream = y->w->stream;
	struct way *ways[] = { y, plain };

	for (int i = 0; i < 2; i++) {
		load(ways[i]);
		if (graphs) {
			NEED_CUDA(cudaGraphLaunch(graphs[2 * i], stream));
			NEED_CUDA(cudaStreamSynchronize(stream));
		} else {
			NEED_SYNC(dispatch(ways[i], stream), stream);
		}
		together(y);
		work(ways[i]);
	}
	CHECK_INT(compare_rows(y, plain), received(y));
	CHECK_INT(received(y), y->holds ? received(plain) : 0);
	for (int i = 0; i < 2; i++) {
		if (graphs) {
			NEED_CUDA(cudaGraphLaunch(graphs[2 * i + 1], stream));
			NEED_CUDA(cudaStreamSynchronize(stream));
		} else {
			NEED_SYNC(combine(ways[i], stream), stream);
		}
		together(y);
	}
	if (!y->p->lost) {
		same(&y->sums, &plain->sums, 0, 0, (size_t)2 * HIDDEN * y->tokens, "sums");
	}
}

/* ---- what is tried ---- */

/* Only senders sent counts, and only to holders. */
static void check_stats(struct way *y, uint64_t dispatches)
{
	ncclEpExtPeerStats_t stats[WORLD_MAX] = { NCCL_EP_EXT_PEER_STATS_INIT };
	const struct problem *p = y->p;

	OK(ncclEpExtPeerStats(y->group, stats, (int)p->ranks, y->w->stream));
	for (uint32_t r = 0; r < p->ranks; r++) {
		bool from = y->holds && within(r, p->first_sender, p->senders);

		check_context("statistics of rank %d about rank %u", y->w->rank, r);
		CHECK_INT(stats[r].operations, from ? dispatches : 0);
		CHECK(from || (!stats[r].rx_rows && !stats[r].wait_ns));
		CHECK(within(r, p->first_holder, p->holders) || !stats[r].tx_rows);
	}
}

static void try_graphs(struct way *y, struct way *plain, struct problem *p)
{
	cudaStream_t stream = y->w->stream;
	struct way *ways[] = { y, plain };
	cudaGraphExec_t graphs[4];

	for (int i = 0; i < 2; i++) {
		world_capture(stream);
		NEED_OK(dispatch(ways[i], stream));
		graphs[2 * i] = world_captured(stream);
		world_capture(stream);
		NEED_OK(combine(ways[i], stream));
		graphs[2 * i + 1] = world_captured(stream);
	}
	for (uint64_t i = 0; i < 3; i++) { /* with other ids and rows of as many tokens */
		p->again = i;
		run_pair(y, plain, graphs);
	}
	p->again = 0;
	for (int i = 0; i < 4; i++) {
		NEED_CUDA(cudaGraphExecDestroy(graphs[i]));
	}
}

static void try_problem(struct world *w, const struct problem *given, bool graphs)
{
	struct problem p = *given;
	struct way y, plain;
	char text[160];
	uint64_t rows = 0;

	snprintf(text, sizeof(text), "seed %" PRIu64 ": %s%s%s%s%s", p.seed,
		 p.layout == NCCL_EP_LAYOUT_EXPERT_MAJOR ? "em" : "rm", p.fp8 ? " fp8" : "",
		 p.wide ? " int64" : "", p.halves ? " halves" : "", graphs ? " graphs" : "");
	if (w->rank == 0) {
		printf("%s\n", text);
	}
	way_open(&y, w, &p, true);
	way_open(&plain, w, &p, false);
	for (uint32_t i = 0; i < 3; i++, p.seed += 1000) {
		check_context("%s, pair %u", text, i);
		run_pair(&y, &plain, NULL);
		rows += received(&y);
	}
	check_stats(&y, 3);
	check_context("%s", text);
	if (graphs) {
		try_graphs(&y, &plain, &p);
	}
	CHECK(!y.holds || rows, "nothing came: the test compares nothing");
	way_close(&plain);
	way_close(&y);
}

static void test_bits(struct world *w, void *arg)
{
	struct problem p = *(const struct problem *)arg;
	/* In halves no more tokens travel at a time, and memory is the same. */
	uint32_t ways = SANITIZED || p.tokens > 24 ? 4 : 8;

	for (uint32_t i = 0; i < ways; i++) {
		p.seed = ((struct problem *)arg)->seed + i;
		p.layout = i & 1 ? NCCL_EP_LAYOUT_RANK_MAJOR : NCCL_EP_LAYOUT_EXPERT_MAJOR;
		p.fp8 = i >> 1 & 1;
		p.halves = i >> 2 & 1;
		p.wide = (i ^ i >> 1) & 1;
		try_problem(w, &p, i == 0 || i == 3);
	}
}

/*
 * All but one do a pair, and are done with it before that one comes: one that brings nothing and
 * holds nothing they need.
 */
static void test_late(struct world *w, void *arg)
{
	const struct problem *p = arg;
	uint32_t late = p->first_holder + p->holders - 1;
	cudaStream_t stream = w->stream;
	struct way y;

	check_context("rank %u is late", late);
	NEED(!within(late, p->first_sender, p->senders));
	way_open(&y, w, p, true);
	load(&y);
	if ((uint32_t)w->rank != late) {
		NEED_SYNC(dispatch(&y, stream), stream);
		CHECK_LAST(y.group, ncclSuccess, "");
	}
	world_meet(w);
	if ((uint32_t)w->rank == late) {
		NEED_SYNC(dispatch(&y, stream), stream);
	}
	work(&y);
	NEED_SYNC(combine(&y, stream), stream);
	CHECK_LAST(y.group, ncclSuccess, "");
	way_close(&y);
}

/* Which of the first 64 ranks this rank has masked, as bits. */
static uint64_t masked(struct way *y)
{
	int mask[WORLD_MAX], *device;
	uint64_t bits = 0;

	NEED_CUDA(cudaMalloc((void **)&device, sizeof(mask)));
	OK(ncclEpMaskQuery(y->group, device, y->w->stream));
	NEED_CUDA(cudaStreamSynchronize(y->w->stream));
	NEED_CUDA(cudaMemcpy(mask, device, sizeof(int) * y->p->ranks, cudaMemcpyDeviceToHost));
	NEED_CUDA(cudaFree(device));
	for (uint32_t r = 0; r < y->p->ranks && r < 64; r++) {
		bits |= (uint64_t)!mask[r] << r;
	}
	return bits;
}

/* A rank is lost: the others get the same with roles and without. */
static void try_lost(struct world *w, const struct problem *given, uint32_t absent)
{
	struct problem p = *given;
	struct way y, plain;
	int error = 0;

	check_context("rank %u is absent", absent);
	p.masks = true;
	p.absent = (int)absent;
	way_open(&y, w, &p, true);
	way_open(&plain, w, &p, false);
	if (w->rank != p.absent) {
		for (uint64_t i = 0; i < 3; i++, p.seed++) {
			p.lost = i == 0 && within(absent, p.first_holder, p.holders);
			run_pair(&y, &plain, NULL);
			check_context("rank %u is absent, after pair %" PRIu64, absent, i);
			CHECK_INT(masked(&y) & ~(UINT64_C(1) << absent), 0);
			CHECK_INT(masked(&plain), UINT64_C(1) << absent);
		}
		OK(ncclEpGetAsyncError(plain.group, &error));
		CHECK(error != 0);
	}
	world_meet(w);
	way_close(&plain);
	way_close(&y);
}

static void test_lost(struct world *w, void *arg)
{
	const struct problem *p = arg;

	try_lost(w, p, p->first_sender);
	try_lost(w, p, p->first_sender + p->senders - 1);
	try_lost(w, p, p->first_holder);
	try_lost(w, p, p->first_holder + p->holders - 1);
}

/* ---- mistakes ---- */

static void refuse_group(struct world *w, ncclEpGroupConfig_t *config, ncclEpExtRoles_t *roles,
			 ncclResult_t want, const char *part)
{
	ncclEpGroup_t group = NULL;

	CHECK_REASON(ncclEpExtCreateGroup(&group, w->comm, config, roles), want, part);
	CHECK(!group);
	world_meet(w);
}

static void test_groups_refused(struct world *w)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpExtRoles_t roles = NCCL_EP_EXT_ROLES_INIT;
	ncclEpGroup_t group;

	config.num_experts = 6;
	config.max_dispatch_tokens_per_rank = 8;
	config.max_token_bytes = 2 * HIDDEN;
	roles.num_holders = 2;
	roles.magic++;
	refuse_group(w, &config, &roles, ncclInvalidArgument, "roles->magic is");
	roles.magic--;
	config.num_experts = 5;
	refuse_group(w, &config, &roles, ncclInvalidArgument,
		     "positive multiple of the 2 ranks that hold experts");
	config.num_experts = 6;
	roles.first_holder = (unsigned int)w->nranks - 1;
	refuse_group(w, &config, &roles, ncclInvalidArgument, "num_holders is 2: there are");
	roles.num_holders = 0;
	refuse_group(w, &config, &roles, ncclInvalidArgument, "num_holders is 0: there are");
	roles.first_holder = 0;
	roles.num_holders = 2;
	roles.num_senders = (unsigned int)w->nranks + 1;
	refuse_group(w, &config, &roles, ncclInvalidArgument, "roles->first_sender is 0");
	roles.num_senders = (unsigned int)w->rank + 1;
	refuse_group(w, &config, &roles, ncclInvalidArgument,
		     "roles->num_senders is 1 on rank 0 but 2 on rank 1");
	roles.num_senders = 1;
	roles.first_sender = w->rank == 1;
	refuse_group(w, &config, &roles, ncclInvalidArgument, "roles->first_sender is 0 on rank 0");
	roles.first_sender = 0;
	roles.first_holder = w->rank == 1;
	refuse_group(w, &config, &roles, ncclInvalidArgument, "roles->first_holder is 0 on rank 0");
	roles.first_holder = 0;
	roles.num_holders = w->rank == 1 ? 3 : 2;
	refuse_group(w, &config, &roles, ncclInvalidArgument, "roles->num_holders is 2 on rank 0");
	roles.num_holders = 2;
	config.algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT;
	config.num_experts = 5;
	refuse_group(w, &config, &roles, ncclInvalidArgument,
		     "positive multiple of the 2 ranks that hold experts");
	config.num_experts = 2 * (unsigned int)w->nranks;
	NEED_OK(ncclEpExtCreateGroup(&group, w->comm, &config, NULL));
	OK(ncclEpGroupDestroy(group));
}

static void test_calls_refused(struct world *w, const struct problem *p)
{
	struct way y;

	way_open(&y, w, p, true);
	load(&y);
	if (!within((uint32_t)w->rank, p->first_sender, p->senders)) {
		tensor_describe(&y.ids, p->wide ? ncclInt64 : ncclInt32, 2, 1, TOPK, 0);
		CHECK_REASON(ncclEpUpdateHandle(y.handle, &y.ids.t, NULL, w->stream),
			     ncclInvalidArgument, "may bring tokens, and this is rank");
		describe(&y);
	}
	if (!y.holds) {
		tensor_describe(&y.out, ncclBfloat16, 3, 1, y.rows, HIDDEN);
		y.out.t.data = y.in.data;
		CHECK_REASON(dispatch(&y, w->stream), ncclInvalidArgument,
			     "this rank holds no experts");
		y.out.t.data = NULL;
		describe(&y);
	}
	if (y.holds) {
		tensor_describe(&y.out, ncclBfloat16, 3, LOCAL, p->ranks * p->tokens, HIDDEN);
		CHECK_REASON(dispatch(&y, w->stream), ncclInvalidArgument,
			     "outputs->tokens: sizes[1]");
		describe(&y);
	}
	NEED_SYNC(dispatch(&y, w->stream), w->stream); /* no rank has lost its step */
	work(&y);
	NEED_SYNC(combine(&y, w->stream), w->stream);
	way_close(&y);
}

/*
 * Asked before there is a group, the memory is what the group has; and it is less than without
 * roles.
 */
static void test_memory(struct world *w, const struct problem *p)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpExtRoles_t roles = NCCL_EP_EXT_ROLES_INIT;
	ncclEpExtMemory_t with = NCCL_EP_EXT_MEMORY_INIT, without = NCCL_EP_EXT_MEMORY_INIT;
	ncclEpExtShape_t shape = NCCL_EP_EXT_SHAPE_INIT, plain = NCCL_EP_EXT_SHAPE_INIT;

	roles.first_holder = p->first_holder;
	roles.num_holders = p->holders;
	roles.first_sender = p->first_sender;
	roles.num_senders = p->senders;
	config.num_experts = LOCAL * p->holders;
	config.max_dispatch_tokens_per_rank = 128;
	config.max_token_bytes = 2 * 7168;
	config.num_topk = 1;
	with.roles = shape.roles = &roles;
	shape.layout = plain.layout = NCCL_EP_LAYOUT_EXPERT_MAJOR;
	shape.num_topk = plain.num_topk = 1;
	shape.hidden = plain.hidden = 7168;
	shape.datatype = plain.datatype = ncclBfloat16;
	OK(ncclEpExtDeviceMemory(&config, w->nranks, shape.layout, 1, &with));
	OK(ncclEpExtFeasible(&config, w->nranks, &shape));
	config.num_experts = LOCAL * p->ranks;
	OK(ncclEpExtDeviceMemory(&config, w->nranks, plain.layout, 1, &without));
	OK(ncclEpExtFeasible(&config, w->nranks, &plain));
	CHECK(with.heap_bytes < without.heap_bytes && with.handle_bytes < without.handle_bytes);
	CHECK_INT(with.heap_bytes, shape.heap_bytes);
	CHECK_INT(shape.rows, (uint64_t)LOCAL * p->senders * 128);
	CHECK(shape.tensor_bytes < plain.tensor_bytes);
	if (p->first_sender + p->senders <=
	    p->first_holder) { /* rows and results: holders bring no tokens */
		CHECK_INT(shape.tensor_bytes, 2 * shape.output_bytes);
	}
	roles.num_senders = p->ranks + 1;
	CHECK_REASON(ncclEpExtFeasible(&config, w->nranks, &shape), ncclInvalidArgument,
		     "roles->first_sender");
}

static void test_refused(struct world *w, void *arg)
{
	test_groups_refused(w);
	test_calls_refused(w, arg);
	test_memory(w, arg);
}

int main(int argc, char **argv)
{
	struct problem p = { .layout = NCCL_EP_LAYOUT_EXPERT_MAJOR, .absent = -1 };
	static const struct {
		const char *name;
		world_fn fn;
	} tests[] = {
		{ "bits", test_bits },
		{ "late", test_late },
		{ "lost", test_lost },
		{ "refused", test_refused },
	};

	NEED(argc > 4 && sscanf(argv[1], "%" SCNu32, &p.ranks) == 1);
	NEED(sscanf(argv[2], "%" SCNu32 ":%" SCNu32, &p.first_holder, &p.holders) == 2);
	NEED(sscanf(argv[3], "%" SCNu32 ":%" SCNu32, &p.first_sender, &p.senders) == 2);
	p.seed = world_number(argc > 5 ? argv[5] : NULL, 1);
	p.tokens = (uint32_t)world_number(argc > 6 ? argv[6] : NULL, 24);
	NEED(p.tokens <= MOST_TOKENS);
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
		if (strstr(argv[4], tests[i].name)) {
			world_run((int)p.ranks, tests[i].fn, &p);
		}
	}
	return check_end();
}
