/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput on random shapes and routings: update, dispatch and combine, forward and
 * backward, twice with different routings, all bytes compared with the oracle.
 *
 *     ht KIND SEED COUNT [RANKS]      KIND: see support/ht_bench.h
 *
 * long: one rank or two, so that combine has parts larger than its sums.
 */
#include <inttypes.h>
#include <unistd.h>
#include "support/ht_bench.h"

static int main_ht(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "flat";
	uint64_t seed = world_number(argc > 2 ? argv[2] : NULL, 1);
	uint64_t count = world_number(argc > 3 ? argv[3] : NULL, 10);
	int ranks = (int)world_number(argc > 4 ? argv[4] : NULL, 0);

	for (uint64_t i = seed; i < seed + count; i++) {
		uint64_t s = i * 31 + 5;
		int nranks = world_size(1 + (int)world_draw(&s, 5));
		struct ht_case c;

		nranks = strcmp(kind, "lines") ? nranks : world_size(2 + (int)(i % 7));
		nranks = ranks ? ranks : nranks;
		nranks = strcmp(kind, "long") ? nranks : world_size(1 + (int)(i & 1));
		c = ht_case_draw(nranks, kind, i);
		world_run(nranks, ht_case_run, &c);
		oracle_routing_free(&c.h.p.routing);
	}
	return check_end();
}

/*
 * The same as ht.c with ranks of several nodes and RDMA between them, posted in mode MODE or in any
 * (0); rings have RING bytes, or in some cases are as small as can be. NCCL_EP_NODE_SIZE, if it is
 * set, says what the nodes are.
 *
 *     ht_nodes KIND SEED COUNT [MODE [RING]]      KIND: see support/ht_bench.h
 */

static void draw_nodes(struct ht_case *c, const char *mode, const char *bytes, const char *given,
		       uint64_t state)
{
	static const char *const rings[] = { "0", "100000", NULL };
	uint64_t any = 1 + world_draw(&state, 4), posted = world_number(mode, 0);
	uint64_t depth = 64u << world_draw(&state, 4);
	const char *ring = rings[world_draw(&state, 3)];
	char nodes[64] = "", text[32];

	posted = posted ? posted : any;
	ring = bytes ? bytes : ring;
	if (world_nodes() == 1) {
		world_draw_nodes(&state, c->h.p.nranks, nodes, sizeof(nodes));
	}
	if (given) {
		snprintf(nodes, sizeof(nodes), "%s", given);
	}
	setenv("NCCL_EP_NODE_SIZE", nodes, 1);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)posted);
	setenv("NCCL_EP_RDMA_MODE", text, 1);
	snprintf(text, sizeof(text), "%llu", (unsigned long long)depth);
	setenv("NCCL_EP_RDMA_DEPTH", text, 1);
	unsetenv("NCCL_EP_HT_RING_BYTES");
	if (ring) {
		setenv("NCCL_EP_HT_RING_BYTES", ring, 1);
	}
	snprintf(c->note, sizeof(c->note), ", nodes %s, mode %llu, depth %llu, ring %s", nodes,
		 (unsigned long long)posted, (unsigned long long)depth, ring ? ring : "as usual");
}

static int main_ht_nodes(int argc, char **argv)
{
	const char *set = getenv("NCCL_EP_NODE_SIZE");
	char *given = set ? strdup(set) : NULL;
	const char *kind = argc > 1 ? argv[1] : "flat";
	uint64_t seed = world_number(argc > 2 ? argv[2] : NULL, 1);
	uint64_t count = world_number(argc > 3 ? argv[3] : NULL, 10);

	for (uint64_t i = seed; i < seed + count; i++) {
		uint64_t s = i * 31 + 5;
		int nranks = world_size(2 + (int)world_draw(&s, 5));
		struct ht_case c;

		nranks = strcmp(kind, "long") ? nranks : world_size(2 + (int)(i & 1));
		nranks = strcmp(kind, "crowd") ? nranks : world_size(40);
		c = ht_case_draw(nranks, kind, i);
		draw_nodes(&c, argc > 4 ? argv[4] : NULL, argc > 5 ? argv[5] : NULL, given, s);
		world_run(nranks, ht_case_run, &c);
	}
	free(given);
	return check_end();
}

/*
 * High throughput: memory with a routing goes from a group to another one of the same shape. One
 * whose nodes are the same ranks dispatches and combines by it. One with other nodes refuses it,
 * and launches nothing: what says which rows travel between nodes would be read as something else.
 */

#define RANKS 4

/* All ranks, with nodes of so many ranks. */
static ncclEpGroup_t group_of(struct world *w, const struct oracle_ht *h, const char *nodes)
{
	ncclEpGroupConfig_t config = ht_group_config(h, 0);
	ncclEpGroup_t group = NULL;

	world_setenv(w, "NCCL_EP_NODE_SIZE", nodes);
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	world_meet(w);
	return group;
}

static void refused(struct ht_bench *b, ncclEpGroup_t group)
{
	b->group = group;
	ht_reopen(b);
	CHECK_REASON(ht_dispatch(b, false, b->w->stream), ncclInvalidArgument,
		     "no routing for handles like this one");
}

/* Sums that one rank of a node adds again have no quantised form. */
static void refused_recipe(struct world *w, ncclEpGroup_t group)
{
	struct oracle_ht h = { .p = { .seed = 4,
				      .nranks = RANKS,
				      .experts = 3 * RANKS,
				      .topk = 4,
				      .hidden = 512,
				      .tokens = 9,
				      .max_tokens = 60,
				      .dtype = ORACLE_BF16,
				      .combine_quant = ORACLE_COMBINE_MXFP8 },
			       .expert_major = 1 };
	struct ht_bench b;

	ht_open(&b, w, group, &h, 0);
	NEED_SYNC(ht_update(&b, w->stream), w->stream);
	for (int backward = 0; backward < 2; backward++) {
		CHECK_REASON(ht_combine(&b, backward, w->stream), ncclInvalidArgument,
			     "recipe MXFP8 needs all ranks in one NVLink domain");
	}
	b.h.p.combine_quant = ORACLE_COMBINE_NONE;
	ht_step(&b);
	ht_close(&b);
}

static void run(struct world *w, void *arg)
{
	struct oracle_ht h = { .p = { .seed = 3,
				      .nranks = RANKS,
				      .experts = 3 * RANKS,
				      .topk = 4,
				      .hidden = 520,
				      .tokens = 50,
				      .max_tokens = 60,
				      .dtype = ORACLE_BF16 } };
	const char *const nodes[] = { "4", "3,1", "1,3", "2", "2" };
	ncclEpGroup_t groups[5];
	struct ht_bench b;

	(void)arg;
	check_context("rank %d", w->rank);
	for (int i = 0; i < 5; i++) {
		groups[i] = group_of(w, &h, nodes[i]);
	}
	ht_open(&b, w, groups[3], &h, HT_OWN_MEM | HT_MORE_MEM);
	ht_poison(&b);
	NEED_OK(ht_update(&b, w->stream));
	for (int i = 0; i < 3; i++) {
		refused(&b, groups[i]);
	}
	b.group = groups[4];
	ht_reopen(&b);
	NEED_SYNC(ht_dispatch(&b, false, w->stream), w->stream);
	ht_check_dispatch(&b, false);
	ht_expert_work(&b);
	NEED_SYNC(ht_combine(&b, false, w->stream), w->stream);
	ht_check_combine(&b, false);
	ht_close(&b);
	refused_recipe(w, groups[4]);
	for (int i = 0; i < 5; i++) {
		OK(ncclEpGroupDestroy(groups[i]));
	}
}

static int main_ht_regroup(int argc, char **argv)
{
	world_run(RANKS, run, NULL);
	return check_end();
}

/*
 * High throughput for long: many steps on small shapes, forward and backward and by any recipe of
 * combine in any order, with arrivals or without, the routing changed now and then, ranks that come
 * early or late by turns and never meet but in the library. All bytes are compared with the oracle.
 *
 *     ht_soak SEED STEPS
 */

#define STEPS_OF_GROUP 100

struct soak {
	struct ht_case c;
	uint32_t steps;
	double start;
	double most_seconds; /* of a step, rank 0 */
};

/* The next dispatch counts arrivals, in *memory, which comes to be with the first of them. */
static void start_arrivals(struct ht_bench *b, ncclEpExtArrivals_t **memory)
{
	size_t bytes;

	NEED_OK(ncclEpExtStartArrivals(b->handle, NULL, &bytes, b->w->stream));
	if (!*memory) {
		NEED_CUDA(cudaMalloc((void **)memory, bytes));
	}
	NEED_OK(ncclEpExtStartArrivals(b->handle, *memory, &bytes, b->w->stream));
}

/* All rows have come. */
static void check_arrivals(const struct ht_bench *b, const ncclEpExtArrivals_t *arrivals)
{
	size_t local = b->h.p.experts / b->h.p.nranks;
	size_t bytes = offsetof(ncclEpExtArrivals_t, expert) + local * sizeof(ncclEpExtArrival_t);
	ncclEpExtArrivals_t *host = malloc(bytes);

	NEED(host);
	NEED_CUDA(cudaMemcpy(host, arrivals, bytes, cudaMemcpyDeviceToHost));
	CHECK_INT(host->failed, 0);
	CHECK_INT(host->experts, local);
	for (uint32_t e = 0; e < local; e++) {
		CHECK_INT(host->expert[e].missing, 0);
	}
	free(host);
}

/* The same on all ranks: what comes next. `own`: not the same. */
static void one_step(struct ht_bench *b, uint32_t i, uint64_t *s, uint64_t *own,
		     ncclEpExtArrivals_t **arrivals)
{
	cudaStream_t stream = b->w->stream;
	bool backward = world_draw(s, 2), counts;

	if (i == 0 || world_draw(s, 3) == 0) {
		uint64_t seed = world_draw(s, 0);

		ht_load(b, seed, 1 + (uint32_t)world_draw(s, b->h.p.max_tokens));
		ht_poison(b);
		NEED_SYNC(ht_update(b, stream), stream);
		if (ht_late_counts(b)) {
			ht_check_no_counters(b);
		} else {
			ht_check_counters(b);
		}
	} else {
		ht_poison(b);
	}
	if (world_draw(own, 16) == 0) {
		usleep((useconds_t)world_draw(own, 1000));
	}
	if (b->flags & HT_OWN_MEM && world_draw(s, 8) == 0) {
		ht_reopen(b);
	}
	if (b->h.expert_major && b->h.p.dtype == ORACLE_BF16 && b->h.p.hidden % 512 == 0) {
		b->h.p.combine_quant = world_draw(s, 2) ? ORACLE_COMBINE_MXFP8
							: ORACLE_COMBINE_NONE;
	}
	counts = b->h.expert_major && !b->h.drop && world_draw(s, 3) == 0;
	if (counts) {
		start_arrivals(b, arrivals);
	}
	NEED_SYNC(ht_dispatch(b, backward, stream), stream);
	ht_check_dispatch(b, backward);
	if (ht_late_counts(b) && !backward) {
		ht_check_counters(b);
	}
	if (counts) {
		check_arrivals(b, *arrivals);
	}
	ht_expert_work(b);
	NEED_SYNC(ht_combine(b, backward, stream), stream);
	ht_check_combine(b, backward);
}

static void soak_run(struct world *w, void *arg)
{
	struct soak *k = arg;
	uint64_t s = k->c.seed * 8191 + 1, own = s + (uint64_t)w->rank * 7919;
	ncclEpExtArrivals_t *arrivals = NULL;
	ncclEpGroup_t group;
	struct ht_bench b;

	ht_case_context(&k->c, w);
	group = ht_case_group(&k->c, w);
	ht_open(&b, w, group, &k->c.h, k->c.flags);
	for (uint32_t i = 0; i < k->steps; i++) {
		double start = world_now();

		one_step(&b, i, &s, &own, &arrivals);
		if (w->rank == 0 && world_now() - start > k->most_seconds) {
			k->most_seconds = world_now() - start;
		}
	}
	CHECK_LAST(group, ncclSuccess, "");
	NEED_CUDA(cudaFree(arrivals));
	ht_end(&b);
}

static int main_ht_soak(int argc, char **argv)
{
	uint64_t seed = world_number(argc > 1 ? argv[1] : NULL, 1);
	uint64_t steps = world_number(argc > 2 ? argv[2] : NULL, 400), done = 0;
	struct soak k = { .start = world_now() };

	for (uint64_t i = seed; done < steps; i++) {
		uint64_t s = i * 31 + 5;
		int nranks = world_size(1 + (int)world_draw(&s, 4));

		k.c = ht_case_draw(nranks, "soak", i);
		k.steps = (uint32_t)(steps - done < STEPS_OF_GROUP ? steps - done : STEPS_OF_GROUP);
		world_run(nranks, soak_run, &k);
		done += k.steps;
		if (check_failures()) {
			break;
		}
	}
	printf("soak: %" PRIu64 " steps from seed %" PRIu64 ", %.1f s, the longest %.0f ms\n", done,
	       seed, world_now() - k.start, k.most_seconds * 1e3);
	return check_end();
}

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "ht", main_ht },
		{ "ht_nodes", main_ht_nodes },
		{ "ht_regroup", main_ht_regroup },
		{ "ht_soak", main_ht_soak },
	};

	return check_cases(argc, argv, cases, sizeof(cases) / sizeof(*cases));
}
