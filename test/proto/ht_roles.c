/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Experts and tokens on different ranks, in high throughput. The same tokens go to the same experts
 * in a group with roles, and in one without, where ranks that hold no experts have some that get no
 * tokens: rows, what is with them, and sums have the same bits. Test `ht` with kinds `roles` draws
 * shapes; here are the ways to call.
 *
 *     ht_roles RANKS HOLDERS SENDERS WHAT [SEED]      HOLDERS, SENDERS: first:number; WHAT: see
 *                                                     main
 */
#include <inttypes.h>
#include <unistd.h>
#include "support/ht_bench.h"

#define LOCAL 5 /* experts of a holder */
#define TOPK 4
#define TOKENS 37

struct problem {
	uint64_t seed;
	uint32_t ranks, first_holder, holders, first_sender, senders;
};

static bool within(uint32_t r, uint32_t first, uint32_t n)
{
	return r >= first && r < first + n;
}

static bool holds(const struct problem *p, int rank)
{
	return within((uint32_t)rank, p->first_holder, p->holders);
}

static bool sends(const struct problem *p, int rank)
{
	return within((uint32_t)rank, p->first_sender, p->senders);
}

/*
 * Ids of all tokens; without roles experts are counted over all ranks, and others bring tokens that
 * go nowhere.
 */
static int32_t *draw_lines(const struct problem *p, bool roles)
{
	uint64_t s = p->seed * 7919 + 1, n = (uint64_t)p->ranks * TOKENS;
	int32_t *lines = malloc(n * ORACLE_MAX_TOPK * sizeof(*lines));

	NEED(lines);
	memset(lines, 0xff, n * ORACLE_MAX_TOPK * sizeof(*lines));
	for (uint64_t i = 0; i < n * TOPK; i++) {
		int32_t id = (int32_t)world_draw(&s, p->holders * LOCAL + p->holders) - 1;
		bool used = id >= 0 && (uint32_t)id < p->holders * LOCAL;

		if (used && sends(p, (int)(i / TOPK / TOKENS))) {
			lines[i / TOPK * ORACLE_MAX_TOPK + i % TOPK] =
				roles ? id : id + (int32_t)(p->first_holder * LOCAL);
		}
	}
	return lines;
}

static struct oracle_ht problem_of(const struct problem *p, bool roles, bool em)
{
	struct oracle_ht h = { .expert_major = em, .alignment = em ? 8 : 0 };

	h.p = (struct oracle_problem){
		.seed = p->seed,
		.nranks = p->ranks,
		.experts = LOCAL * (roles ? p->holders : p->ranks),
		.topk = TOPK,
		.hidden = 520,
		.tokens = TOKENS,
		.max_tokens = TOKENS,
		.dtype = ORACLE_BF16,
		.routing = { .family = ORACLE_FILE, .nlines = p->ranks * TOKENS },
	};
	if (roles) {
		h.p.first_holder = p->first_holder;
		h.p.holders = p->holders;
		h.p.first_sender = p->first_sender;
		h.p.senders = p->senders;
	}
	h.p.routing.lines = draw_lines(p, roles);
	return h;
}

/* Do two tensors have the same first bytes? */
static void same(const struct bench_tensor *a, const struct bench_tensor *b, size_t bytes,
		 const char *what)
{
	char *left = tensor_fetch(a), *right = tensor_fetch(b);

	NEED(bytes <= a->bytes && bytes <= b->bytes);
	CHECK(memcmp(left, right, bytes) == 0, "%s", what);
	free(right);
	free(left);
}

/*
 * A pair both ways; a[0] has roles. Each is judged, and they are compared. Returns how many rows
 * came.
 */
static uint64_t run_pair(struct ht_bench *a, bool backward)
{
	struct world *w = a->w;
	size_t rows = a->tables[w->rank]->count, wide = a->h.expert_major ? 1 : TOPK, row;

	for (int i = 0; i < 2; i++) {
		ht_poison(&a[i]);
		NEED_OK(ht_update(&a[i], w->stream));
		NEED_SYNC(ht_dispatch(&a[i], backward, w->stream), w->stream);
		if (a[i].tables[w->rank]->nlocal) {
			ht_check_counters(&a[i]);
		}
		ht_check_dispatch(&a[i], backward);
	}
	row = oracle_input_bytes(&a->h.p);
	same(&a[0].out_tokens, &a[1].out_tokens, rows * row, "rows");
	if (!backward) {
		same(&a[0].out_weights, &a[1].out_weights, rows * wide * 4, "weights");
	}
	if (!backward && !a->h.expert_major) {
		same(&a[0].out_idx, &a[1].out_idx, rows * wide * 8, "ids");
	}
	for (int i = 0; i < 2; i++) {
		ht_expert_work(&a[i]);
		NEED_SYNC(ht_combine(&a[i], backward, w->stream), w->stream);
		ht_check_combine(&a[i], backward);
	}
	same(&a[0].combine_out, &a[1].combine_out, a->tokens * row, "sums");
	if (backward) {
		same(&a[0].out_gradients, &a[1].out_gradients, (size_t)a->tokens * TOPK * 4,
		     "gradients of weights");
	}
	return rows;
}

static void check_stats(struct ht_bench *b, const struct problem *p, uint64_t dispatches)
{
	ncclEpExtPeerStats_t stats[WORLD_MAX] = { NCCL_EP_EXT_PEER_STATS_INIT };

	OK(ncclEpExtPeerStats(b->group, stats, (int)p->ranks, b->w->stream));
	for (int r = 0; r < (int)p->ranks; r++) {
		bool from = holds(p, b->w->rank) && sends(p, r);

		CHECK_INT(stats[r].operations, from ? dispatches : 0);
		CHECK(from || !stats[r].rx_rows, "rows from rank %d", r);
		CHECK((sends(p, b->w->rank) && holds(p, r)) || !stats[r].tx_rows, "rows to %d", r);
	}
}

static void check_received(struct ht_bench *b)
{
	uint64_t tokens = 1, rows = 1;

	OK(ncclEpExtNumRecvTokens(b->handle, &tokens, &rows, b->w->stream));
	CHECK_INT(tokens, b->tables[b->w->rank]->slots);
	CHECK(rows >= tokens);
	CHECK(b->tables[b->w->rank]->nlocal || !rows, "rows of a rank that holds no experts");
}

static void test_bits(struct world *w, void *arg)
{
	const struct problem *p = arg;

	for (int em = 0; em < 2; em++) {
		struct ht_bench b[2];
		uint64_t rows = 0;

		for (int i = 0; i < 2; i++) {
			struct oracle_ht h = problem_of(p, i == 0, em);

			ht_open(&b[i], w, ht_group(w, &h, 0, 60000), &h, i ? 0 : HT_OWN_MEM);
		}
		for (uint64_t i = 0; i < 3; i++) { /* with other payloads, forward and backward */
			check_context("seed %" PRIu64 ", %s, pair %" PRIu64 ", rank %d", p->seed,
				      em ? "em" : "flat", i, w->rank);
			rows += run_pair(b, i == 2);
			check_received(b);
			ht_load(&b[0], p->seed + i, TOKENS);
			ht_load(&b[1], p->seed + i, TOKENS);
		}
		CHECK(rows || !holds(p, w->rank), "nothing came: the test compares nothing");
		check_stats(b, p, 3);
		for (int i = 0; i < 2; i++) {
			free(b[i].h.p.routing.lines);
			ht_end(&b[i]);
		}
	}
}

/* Captured once, with a limit; replayed with other ids and rows, of as many tokens. */
static void test_graphs(struct world *w, void *arg)
{
	const struct problem *p = arg;

	for (int em = 0; em < 2; em++) {
		struct oracle_ht h = problem_of(p, true, em);
		cudaGraphExec_t graph;
		struct ht_bench b;
		size_t bytes = 0;

		h.limit = (p->senders * TOKENS * LOCAL + 8 * LOCAL) | 1;
		free(h.p.routing.lines);
		h.p.routing = (struct oracle_routing){ .family = ORACLE_UNIFORM };
		ht_open(&b, w, ht_group(w, &h, 0, 60000), &h, 0);
		world_capture(w->stream);
		NEED_OK(ht_update(&b, w->stream));
		NEED_OK(ht_dispatch(&b, false, w->stream));
		NEED_OK(ht_combine(&b, false, w->stream));
		graph = world_captured(w->stream);
		for (uint64_t i = 0; i < 3; i++) {
			check_context("seed %" PRIu64 ", %s, replay %" PRIu64 ", rank %d", p->seed,
				      em ? "em" : "flat", i, w->rank);
			ht_load(&b, p->seed + 10 + i, TOKENS);
			ht_poison(&b);
			ht_expert_work(&b);
			NEED_CUDA(cudaGraphLaunch(graph, w->stream));
			NEED_CUDA(cudaStreamSynchronize(w->stream));
			ht_check_counters(&b);
			ht_check_dispatch(&b, false);
			ht_check_combine(&b, false);
		}
		NEED_OK(ht_update(&b, w->stream));
		if (em) {
			CHECK_REASON(ncclEpExtStartArrivals(b.handle, NULL, &bytes, w->stream),
				     ncclInvalidUsage,
				     getenv("NCCL_EP_NODE_SIZE")
					     ? "needs all ranks in one NVLink domain"
					     : "needs a group whose ranks all hold experts and "
					       "bring tokens");
		}
		NEED_CUDA(cudaGraphExecDestroy(graph));
		ht_end(&b);
	}
}

/* A rank makes no calls, whatever its role: the others say which. */
static void try_lost(struct world *w, const struct problem *p, uint32_t absent)
{
	struct oracle_ht h = problem_of(p, true, absent & 1);
	struct ht_bench b;
	char name[32];

	check_context("rank %u is absent, rank %d", absent, w->rank);
	snprintf(name, sizeof(name), "rank %u", absent);
	ht_open(&b, w, ht_group(w, &h, 0, 2000), &h, 0);
	if (w->rank != (int)absent) {
		NEED_SYNC(ht_update(&b, w->stream), w->stream);
		CHECK_LAST(b.group, ncclRemoteError, name);
	}
	world_meet(w);
	free(b.h.p.routing.lines);
	ht_end(&b);
}

static void test_lost(struct world *w, void *arg)
{
	const struct problem *p = arg;

	try_lost(w, p, p->first_sender);
	try_lost(w, p, p->first_sender + p->senders - 1);
	try_lost(w, p, p->first_holder);
	try_lost(w, p, p->first_holder + p->holders - 1);
}

static void test_calls_refused(struct world *w, const struct problem *p)
{
	struct oracle_ht h = problem_of(p, true, false);
	struct ht_dispatch_args d;
	struct ht_bench b;

	check_context("rank %d", w->rank);
	h.limit = p->senders * TOKENS;
	ht_open(&b, w, ht_group(w, &h, 0, 60000), &h, 0);
	if (!sends(p, w->rank)) {
		tensor_describe(&b.ids, ncclInt32, 2, 1, TOPK, 0);
		b.ids.t.data = b.ids.data;
		CHECK_REASON(ht_update(&b, w->stream), ncclInvalidArgument,
			     "may bring tokens, and this is rank");
		tensor_describe(&b.ids, ncclInt32, 2, 0, TOPK, 0);
	}
	NEED_OK(ht_update(&b, w->stream));
	if (holds(p, w->rank)) { /* others need no rows below the limit */
		d = ht_dispatch_args(&b, false);
		tensor_describe(&b.out_tokens, ncclBfloat16, 2, h.limit - 1, h.p.hidden, 0);
		CHECK_REASON(ncclEpDispatch(b.handle, &d.in, &d.out, NULL, &d.config, w->stream),
			     ncclInvalidArgument, "max_recv_tokens_per_rank is");
		tensor_describe(&b.out_tokens, ncclBfloat16, 2, h.limit, h.p.hidden, 0);
	}
	ht_poison(&b);
	NEED_SYNC(ht_dispatch(&b, false, w->stream), w->stream); /* no rank has lost its step */
	ht_check_dispatch(&b, false);
	free(b.h.p.routing.lines);
	ht_end(&b);
}

/*
 * Asked before there is a group, memory is what the group has; less than without roles, where that
 * is as large.
 */
static void test_memory(struct world *w, const struct problem *p)
{
	ncclEpGroupConfig_t config = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpExtRoles_t roles = NCCL_EP_EXT_ROLES_INIT;
	ncclEpExtMemory_t with = NCCL_EP_EXT_MEMORY_INIT, without = NCCL_EP_EXT_MEMORY_INIT;
	ncclEpExtShape_t shape = NCCL_EP_EXT_SHAPE_INIT;

	roles.first_holder = p->first_holder;
	roles.num_holders = p->holders;
	roles.first_sender = p->first_sender;
	roles.num_senders = p->senders;
	config.algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT;
	config.num_experts = LOCAL * p->holders;
	config.max_dispatch_tokens_per_rank = 128;
	config.max_token_bytes = 2 * 7168;
	config.num_topk = TOPK;
	with.roles = shape.roles = &roles;
	shape.layout = NCCL_EP_LAYOUT_EXPERT_MAJOR;
	shape.num_topk = (int)config.num_topk;
	shape.hidden = 7168;
	shape.datatype = ncclBfloat16;
	OK(ncclEpExtDeviceMemory(&config, w->nranks, shape.layout, shape.num_topk, &with));
	OK(ncclEpExtFeasible(&config, w->nranks, &shape));
	config.num_experts = LOCAL * p->ranks;
	OK(ncclEpExtDeviceMemory(&config, w->nranks, shape.layout, shape.num_topk, &without));
	CHECK(with.heap_bytes < without.heap_bytes, "heap %" PRIu64 " and %" PRIu64,
	      with.heap_bytes, without.heap_bytes);
	CHECK(with.handle_bytes < without.handle_bytes);
	CHECK_INT(with.heap_bytes, shape.heap_bytes);
	CHECK_INT(shape.rows, (uint64_t)128 * p->senders * TOPK);
}

/* A routing is for groups of the same roles: handle memory has none for those of others. */
static void test_other_roles(struct world *w, const struct problem *p)
{
	ncclEpHandleConfig_t config = NCCL_EP_HANDLE_CONFIG_INIT;
	struct oracle_ht h = problem_of(p, true, true), other = h;
	ncclEpHandle_t own, handle;
	ncclEpGroup_t group;
	struct ht_bench b;

	check_context("other roles, rank %d", w->rank);
	ht_open(&b, w, ht_group(w, &h, 0, 60000), &h, HT_OWN_MEM);
	NEED_SYNC(ht_update(&b, w->stream), w->stream);
	other.p.senders--;
	group = ht_group(w, &other, 0, 2000);
	config.dispatch_output_per_expert_alignment = h.alignment;
	NEED_OK(ncclEpInitHandle(&handle, group, NCCL_EP_LAYOUT_EXPERT_MAJOR, &config, TOPK,
				 &b.mem.t));
	own = b.handle;
	b.handle = handle;
	NEED_SYNC(ht_dispatch(&b, false, w->stream), w->stream);
	CHECK_LAST(group, ncclInvalidUsage, "has no routing for handles like this one");
	b.handle = own;
	OK(ncclEpHandleDestroy(handle));
	OK(ncclEpGroupDestroy(group));
	free(b.h.p.routing.lines);
	ht_end(&b);
}

static void test_refused(struct world *w, void *arg)
{
	test_other_roles(w, arg);
	test_calls_refused(w, arg);
	test_memory(w, arg);
}

static char log_path[] = "/tmp/ht_roles_XXXXXX"; /* NCCL_DEBUG_FILE */

/*
 * Rows of windows go by rings, with zero_copy ON, too, and the log says so. Ranks without rows need
 * no window.
 */
static void test_windows(struct world *w, void *arg)
{
	const struct problem *p = arg;
	struct oracle_ht h = problem_of(p, true, false);
	size_t rows = ht_most_rows(&h);
	struct bench_tensor beside[2] = { 0 };
	ncclEpGroup_t group = ht_group(w, &h, HT_ON, 60000);
	struct ht_bench b;

	check_context("rank %d", w->rank);
	if (!holds(p, w->rank)) { /* to register windows is collective */
		tensor_allocate_window(w, &beside[0], HT_WINDOW_OFFSET,
				       rows * oracle_input_bytes(&h.p), HT_GUARD);
		tensor_allocate_window(w, &beside[1], HT_WINDOW_OFFSET,
				       rows * oracle_combine_bytes(&h.p), HT_GUARD);
	}
	ht_open(&b, w, group, &h, HT_WINDOW);
	ht_step(&b);
	CHECK_LAST(group, ncclSuccess, "");
	free(b.h.p.routing.lines);
	ht_end(&b);
	for (int i = 0; i < 2 && !holds(p, w->rank); i++) {
		tensor_release(w, &beside[i]);
	}
}

static void begin_log(void)
{
	close(mkstemp(log_path));
	setenv("NCCL_DEBUG", "INFO", 1);
	setenv("NCCL_DEBUG_SUBSYS", "COLL", 1);
	setenv("NCCL_DEBUG_FILE", log_path, 1);
}

static void check_log(const struct problem *p)
{
	static const char told[] =
		"rows of windows are not direct: only a group whose ranks all hold "
		"experts and bring tokens can be direct\n";
	FILE *f = fopen(log_path, "r");
	uint32_t lines = 0;
	char line[600];

	NEED(f);
	while (fgets(line, sizeof(line), f)) {
		lines += strstr(line, told) != NULL;
		CHECK(!strstr(line, "are direct"), "%s", line);
	}
	fclose(f);
	unlink(log_path);
	CHECK_INT(lines, p->holders);
}

int main(int argc, char **argv)
{
	struct problem p = { 0 };
	static const struct {
		const char *name;
		world_fn fn;
	} tests[] = {
		{ "bits", test_bits },       { "graphs", test_graphs },   { "lost", test_lost },
		{ "refused", test_refused }, { "windows", test_windows },
	};
	bool windows;

	NEED(argc > 4 && sscanf(argv[1], "%" SCNu32, &p.ranks) == 1);
	NEED(sscanf(argv[2], "%" SCNu32 ":%" SCNu32, &p.first_holder, &p.holders) == 2);
	NEED(sscanf(argv[3], "%" SCNu32 ":%" SCNu32, &p.first_sender, &p.senders) == 2);
	p.seed = world_number(argc > 5 ? argv[5] : NULL, 1);
	windows = strstr(argv[4], "windows") != NULL;
	if (windows) {
		begin_log();
	}
	for (size_t i = 0; i < sizeof(tests) / sizeof(tests[0]); i++) {
		if (strstr(argv[4], tests[i].name)) {
			world_run((int)p.ranks, tests[i].fn, &p);
		}
	}
	if (windows) {
		check_log(&p);
	}
	return check_end();
}
