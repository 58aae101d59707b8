/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers that the library tells about its work: received tokens and rows of a handle, rows and
 * bytes per peer. They must be what the oracle counts.
 */
#include <unistd.h>
#include "support/bench.h"
#include "support/ht_bench.h"

struct expected {
	uint64_t tokens[WORLD_MAX]; /* (token, rank) from each source */
	uint64_t rows[WORLD_MAX];   /* expert-major: (token, expert) from each source */
	uint64_t sent[WORLD_MAX];   /* (token, rank) to each rank */
};

static void expect(struct bench *b, struct expected *e)
{
	const struct oracle_problem *p = &b->p;
	uint32_t local = p->experts / p->nranks, me = (uint32_t)b->w->rank;
	int32_t ids[ORACLE_MAX_TOPK];

	memset(e, 0, sizeof(*e));
	for (uint32_t src = 0; src < p->nranks; src++) {
		for (uint32_t t = 0, n = oracle_tokens(p, src); t < n; t++) {
			uint32_t seen = 0;

			oracle_route(p, src, t, ids);
			for (uint32_t k = 0; k < p->topk; k++) {
				uint32_t to = (uint32_t)ids[k] / local;
				bool first;

				if (ids[k] < 0) {
					continue;
				}
				first = !(seen >> to & 1);
				seen |= 1u << to;
				if (to == me) {
					e->tokens[src] += first;
					e->rows[src]++;
				}
				if (src == me) {
					e->sent[to] += first;
				}
			}
		}
	}
}

static void check_handle(struct bench *b, const struct expected *e)
{
	bool by_rank = b->p.layout == ORACLE_RANK_MAJOR;
	uint64_t tokens = 1, rows = 1, want_tokens = 0, want_rows = 0;

	for (uint32_t r = 0; r < b->p.nranks; r++) {
		want_tokens += e->tokens[r];
		want_rows += by_rank ? e->tokens[r] : e->rows[r];
	}
	OK(ncclEpExtNumRecvTokens(b->handle, &tokens, &rows, b->w->stream));
	CHECK_INT(tokens, want_tokens);
	CHECK_INT(rows, want_rows);
	OK(ncclEpExtNumRecvTokens(b->handle, NULL, NULL, b->w->stream));
}

static void read_stats(struct bench *b, ncclEpExtPeerStats_t *stats)
{
	memset(stats, 0, sizeof(*stats) * WORLD_MAX);
	stats[0] = NCCL_EP_EXT_PEER_STATS_INIT;
	OK(ncclEpExtPeerStats(b->group, stats, b->w->nranks, b->w->stream));
}

/* What a dispatch adds to the counters; a combine takes nothing away. */
static void check_peers(struct bench *b, const struct expected *e)
{
	ncclEpExtPeerStats_t before[WORLD_MAX], middle[WORLD_MAX], after[WORLD_MAX];
	uint64_t row = oracle_output_bytes(&b->p);

	world_meet(b->w);
	read_stats(b, before);
	NEED_OK(bench_dispatch(b, b->w->stream));
	read_stats(b, middle);
	NEED_OK(bench_combine(b, b->w->stream));
	read_stats(b, after);
	for (int r = 0; r < b->w->nranks; r++) {
		CHECK(after[r].size == sizeof(after[r]) && after[r].magic == NCCL_EP_MAGIC);
		CHECK_INT(after[r].rank, r);
		CHECK_INT(after[r].active, 1);
		if (r == b->w->rank) {
			continue; /* nothing travels */
		}
		check_context("layout %d, peer %d", (int)b->p.layout, r);
		CHECK_INT(middle[r].tx_rows - before[r].tx_rows, e->sent[r]);
		CHECK_INT(middle[r].rx_rows - before[r].rx_rows, e->tokens[r]);
		CHECK(middle[r].tx_bytes - before[r].tx_bytes >= e->sent[r] * row);
		CHECK(middle[r].rx_bytes - before[r].rx_bytes >= e->tokens[r] * row);
		CHECK(after[r].tx_bytes >= middle[r].tx_bytes);
		CHECK(after[r].rx_bytes >= middle[r].rx_bytes);
		CHECK(after[r].wait_ns >= before[r].wait_ns);
		CHECK(after[r].wait_max_ns <= after[r].wait_ns);
		CHECK(middle[r].operations > before[r].operations);
	}
}

static void run(struct world *w, void *arg)
{
	for (int i = 0; i < 4; i++) {
		struct oracle_problem p = bench_problem(
			w->nranks, 12, 3, 256, 9, i % 2 ? ORACLE_RANK_MAJOR : ORACLE_EXPERT_MAJOR);
		ncclEpGroup_t group = bench_group(w, &p, 0);
		struct expected e;
		struct bench b;

		check_context("counters %d", i);
		p.uneven = i >= 2;
		p.drop_ppm = i >= 2 ? 300000 : 0;
		p.seed = (uint64_t)i + 5;
		bench_open(&b, w, group, &p, 0);
		bench_pair(&b);
		expect(&b, &e);
		check_handle(&b, &e);
		check_peers(&b, &e);
		CHECK_LAST(group, ncclSuccess, "");
		bench_end(&b);
	}
}

static int main_counters(int argc, char **argv)
{
	for (int lines = 0; lines <= 1; lines++) {
		setenv("NCCL_EP_LL_LINES", lines ? "1" : "0", 1);
		world_run(world_size(3), run, NULL);
	}
	return check_end();
}

/*
 * What ncclEpExtPeerStats tells of high throughput: rows and bytes of dispatches as the oracle
 * counts them, and for whom operations have waited.
 */

#define RANKS 3
#define LATE 1
#define LATE_US 40000
#define MOST_ROUNDS 20

enum {
	FLAG_LAUNCHED = 1, /* of which round */
	FLAG_SEEN          /* the last round in which a rank saw what it should */
};

static struct oracle_ht problem_of(int i, int nranks)
{
	struct oracle_ht h = { .expert_major = i & 1, .drop = i == 2 };

	h.p = (struct oracle_problem){ .seed = (uint64_t)i + 3,
				       .nranks = (uint32_t)nranks,
				       .experts = 12,
				       .topk = 3,
				       .hidden = i == 3 ? 512 : 264,
				       .tokens = 21,
				       .max_tokens = 30,
				       .drop_ppm = 200000,
				       .uneven = 1,
				       .dtype = ORACLE_BF16,
				       .quant = i == 3 ? ORACLE_QUANT_FORWARD : ORACLE_QUANT_NONE };
	h.limit = h.drop ? 34 : (uint32_t)nranks * 30 * 3;
	return h;
}

/* Rows from `src` to `d` that are not dropped. */
static uint64_t rows_between(const struct oracle_ht *h, uint32_t src, uint32_t d)
{
	int32_t experts[ORACLE_MAX_TOPK];
	uint64_t slot = 0, rows = 0;

	for (uint32_t s = 0; s <= src; s++) {
		for (uint32_t t = 0; t < oracle_tokens(&h->p, s); t++) {
			if (oracle_ht_local(h, s, t, d, experts, NULL) > 0) {
				rows += s == src && slot < h->limit;
				slot++;
			}
		}
	}
	return rows;
}

/* Ends the group, before another one is made: on a GPU of several ranks that waits for them. */
static void end_together(struct ht_bench *b)
{
	struct world *w = b->w;

	ht_end(b);
	world_meet(w);
}

static void ht_read_stats(struct ht_bench *b, ncclEpExtPeerStats_t *stats)
{
	stats[0] = NCCL_EP_EXT_PEER_STATS_INIT;
	OK(ncclEpExtPeerStats(b->group, stats, b->w->nranks, b->w->stream));
}

static void check_rows(struct ht_bench *b, bool backward)
{
	ncclEpExtPeerStats_t before[RANKS], after[RANKS];
	const struct oracle_problem *p = &b->h.p;
	uint64_t row = oracle_input_bytes(p) +
		       (p->quant == ORACLE_QUANT_NONE ? 0 : 4 * oracle_scale_words(p));

	ht_read_stats(b, before);
	NEED_OK(ht_dispatch(b, backward, b->w->stream));
	if (p->quant == ORACLE_QUANT_NONE) {
		NEED_OK(ht_combine(b, backward, b->w->stream));
	}
	NEED_OK(ht_update(b, b->w->stream));
	ht_read_stats(b, after);
	for (uint32_t r = 0; r < p->nranks; r++) {
		uint64_t sent = rows_between(&b->h, (uint32_t)b->w->rank, r);
		uint64_t come = rows_between(&b->h, r, (uint32_t)b->w->rank);

		CHECK_INT(after[r].rank, r);
		CHECK_INT(after[r].active, 1);
		CHECK_INT(after[r].tx_rows - before[r].tx_rows, sent);
		CHECK_INT(after[r].rx_rows - before[r].rx_rows, come);
		CHECK_INT(after[r].tx_bytes - before[r].tx_bytes, sent * row);
		CHECK_INT(after[r].rx_bytes - before[r].rx_bytes, come * row);
		CHECK_INT(after[r].operations - before[r].operations, 1);
		CHECK(after[r].wait_ns >= before[r].wait_ns);
	}
}

enum call {
	UPDATE,
	DISPATCH,
	COMBINE,
	CALLS
};

/*
 * One rank is late for one of the calls, which the others have launched: have they waited for it,
 * and not as long for each other?
 */
static bool waited_for(struct ht_bench *b, enum call late, uint64_t round)
{
	ncclEpExtPeerStats_t before[RANKS], after[RANKS];
	struct world *w = b->w;
	uint64_t waited, other;

	ht_read_stats(b, before);
	world_meet(w);
	for (int i = 0; i < CALLS; i++) {
		if (w->rank == LATE && i == (int)late) {
			for (int r = 0; r < w->nranks; r++) {
				NEED(r == LATE || world_await(w, FLAG_LAUNCHED, r, round, 60));
			}
			usleep(LATE_US);
		}
		NEED_OK(i == UPDATE     ? ht_update(b, w->stream)
			: i == DISPATCH ? ht_dispatch(b, false, w->stream)
					: ht_combine(b, false, w->stream));
		if (i == (int)late) {
			world_raise(w, FLAG_LAUNCHED, round);
		}
		NEED_CUDA(cudaStreamSynchronize(w->stream));
	}
	ht_read_stats(b, after);
	for (int r = 0; r < w->nranks; r++) {
		CHECK(after[r].wait_max_ns <= after[r].wait_ns);
		CHECK(after[r].wait_max_ns >= before[r].wait_max_ns);
	}
	if (w->rank == LATE) {
		return true;
	}
	waited = after[LATE].wait_ns - before[LATE].wait_ns;
	other = (uint64_t)(RANKS - LATE - w->rank);
	return waited >= LATE_US * 500ull && after[LATE].wait_max_ns >= LATE_US * 500ull &&
	       after[other].wait_ns - before[other].wait_ns < waited;
}

/* A busy machine may hold up any rank, but not always: once all must see it. */
static void check_waits(struct ht_bench *b, uint64_t *round)
{
	struct world *w = b->w;

	for (int late = 0; late < CALLS; late++) {
		uint64_t first = *round + 1, last = *round + MOST_ROUNDS;
		int seen = 0;

		check_context("late for call %d, rank %d", late, w->rank);
		while (seen < w->nranks && *round < last) {
			if (waited_for(b, (enum call)late, ++*round)) {
				world_raise(w, FLAG_SEEN, *round);
			}
			world_meet(w);
			seen = 0;
			for (int r = 0; r < w->nranks; r++) {
				seen += world_look(w, FLAG_SEEN, r) >= first;
			}
		}
		CHECK_INT(seen, w->nranks);
	}
}

static void ht_run(struct world *w, void *arg)
{
	uint64_t round = 0;

	(void)arg;
	for (int i = 0; i < 6; i++) {
		uint32_t flags = i >= 4 ? HT_WINDOW : 0;
		struct oracle_ht h = problem_of(i, w->nranks);
		ncclEpGroup_t group = ht_group(w, &h, flags, 60000);
		struct ht_bench b;

		ht_open(&b, w, group, &h, flags);
		NEED_OK(ht_update(&b, w->stream));
		for (int backward = 0; backward < 2; backward++) {
			check_context("case %d, %s, rank %d", i, backward ? "BWD" : "FWD", w->rank);
			check_rows(&b, backward);
		}
		if (h.p.quant == ORACLE_QUANT_NONE && !h.drop) {
			check_waits(&b, &round);
		}
		CHECK_LAST(group, ncclSuccess, "");
		end_together(&b);
	}
}

static int main_ht_counters(int argc, char **argv)
{
	world_run(RANKS, ht_run, NULL);
	return check_end();
}

/* What ncclEpExtNumRecvTokens counts in high throughput: neither padding nor what is dropped. */
static void check_received(struct ht_bench *b)
{
	const struct oracle_ht_table *table = b->tables[b->w->rank];
	uint64_t tokens = 0, rows = 0, want = 0, no_place = 0;
	const uint32_t *at;

	for (uint64_t i = 0; i < table->count; i++) {
		want += table->rows[i].kind == ORACLE_HT_ROW;
	}
	OK(ncclEpExtNumRecvTokens(b->handle, &tokens, &rows, b->w->stream));
	CHECK_INT(tokens, b->h.drop && table->slots > b->h.limit ? b->h.limit : table->slots);
	CHECK_INT(rows, want);
	if (!b->h.drop) {
		return;
	}
	CHECK(table->slots > b->h.limit, "no row is without a slot");
	for (uint32_t s = 0; s < b->h.p.nranks; s++) {
		for (uint32_t t = 0; t < oracle_tokens(&b->h.p, s); t++) {
			uint32_t n = oracle_ht_rows(table, s, t, &at), kept = 0;

			for (uint32_t i = 0; i < n; i++) {
				kept += at[i] != ORACLE_HT_NOWHERE;
			}
			no_place += n && !kept;
		}
	}
	/* Expert-major: some of the tokens that count have no row. */
	CHECK_INT(no_place > table->slots - b->h.limit, b->h.expert_major);
}

static void received_run(struct world *w, void *arg)
{
	for (int i = 0; i < 4; i++) {
		struct oracle_ht h = problem_of(i & 1, w->nranks);
		ncclEpGroup_t group;
		struct ht_bench b;

		check_context("received, case %d, rank %d", i, w->rank);
		h.drop = i & 2;
		h.limit = h.drop ? h.p.max_tokens : h.limit;
		h.p.tokens = h.p.max_tokens;
		h.p.uneven = 0;
		h.alignment = 8;
		group = ht_group(w, &h, 0, 60000);
		ht_open(&b, w, group, &h, 0);
		NEED_OK(ht_update(&b, w->stream));
		check_received(&b);
		end_together(&b);
	}
}

static int main_ht_received(int argc, char **argv)
{
	world_run(RANKS, received_run, NULL);
	return check_end();
}

/*
 * Counters of expert-major zones that a dispatch writes: those that it is given, of either type, as
 * the update before it would have written them, whether that was given any or not.
 */

#define LATE_COUNTERS 3

static void late_read(struct ht_bench *b, char *host[LATE_COUNTERS])
{
	struct bench_tensor *all[LATE_COUNTERS] = { &b->counters, &b->offsets, &b->total };

	NEED_CUDA(cudaStreamSynchronize(b->w->stream));
	for (int i = 0; i < LATE_COUNTERS; i++) {
		host[i] = tensor_fetch(all[i]);
	}
}

/*
 * A dispatch of the counters in `which`, as bits; with `before` behind an update of other tensors.
 */
static void late_try(struct ht_bench *b, uint32_t which, bool before)
{
	struct bench_tensor *all[LATE_COUNTERS] = { &b->counters, &b->offsets, &b->total };
	char *updated[LATE_COUNTERS], *dispatched[LATE_COUNTERS];
	struct ht_dispatch_args a = ht_dispatch_args(b, false);
	ncclEpLayoutInfo_t info = ht_update_info(b);

	ht_poison(b);
	NEED_OK(ncclEpUpdateHandle(b->handle, &b->ids.t, &info, b->w->stream));
	late_read(b, updated);
	ht_check_counters(b);
	if (!before) {
		NEED_OK(ncclEpUpdateHandle(b->handle, &b->ids.t, NULL, b->w->stream));
	}
	ht_poison(b);
	a.info.expert_counters = which & 1 ? &b->counters.t : NULL;
	a.info.expert_offsets = which & 2 ? &b->offsets.t : NULL;
	a.info.recv_total_counter = which & 4 ? &b->total.t : NULL;
	for (int i = 0; i < LATE_COUNTERS; i++) {
		all[i]->sizes[0] += which == 7; /* one more, which stays as it is */
	}
	for (int time = 0; time < 2; time++) { /* nothing adds up */
		NEED_OK(ncclEpDispatch(b->handle, &a.in, &a.out, &a.info, &a.config, b->w->stream));
	}
	for (int i = 0; i < LATE_COUNTERS; i++) {
		all[i]->sizes[0] -= which == 7;
	}
	late_read(b, dispatched);
	ht_check_dispatch(b, false);
	for (int i = 0; i < LATE_COUNTERS; i++) {
		size_t bytes = all[i]->bytes + HT_GUARD;

		if (which >> i & 1) {
			CHECK(memcmp(updated[i], dispatched[i], bytes) == 0, "counter %d", i);
		} else {
			memset(updated[i], ORACLE_POISON, bytes);
			CHECK(memcmp(updated[i], dispatched[i], bytes) == 0,
			      "counter %d was written", i);
		}
		free(updated[i]);
		free(dispatched[i]);
	}
}

/* The total alone may have another type than the counters of the update. */
static void late_total(struct ht_bench *b)
{
	struct ht_dispatch_args a = ht_dispatch_args(b, false);
	size_t one[1] = { 1 };
	int64_t total = 0;
	ncclEpTensor_t t = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 1, .sizes = one };
	bool wide = b->total.t.datatype == ncclInt64;

	NEED_OK(ht_update(b, b->w->stream));
	t.datatype = wide ? ncclInt32 : ncclInt64;
	NEED_CUDA(cudaMalloc(&t.data, sizeof(total)));
	NEED_CUDA(cudaMemset(t.data, 0, sizeof(total)));
	NEED_CUDA(cudaStreamSynchronize(cudaStreamLegacy));
	a.info.recv_total_counter = &t;
	NEED_SYNC(ncclEpDispatch(b->handle, &a.in, &a.out, &a.info, &a.config, b->w->stream),
		  b->w->stream);
	NEED_CUDA(cudaMemcpy(&total, t.data, sizeof(total), cudaMemcpyDeviceToHost));
	CHECK_INT(total, b->tables[b->w->rank]->total);
	NEED_CUDA(cudaFree(t.data));
}

static void late_run(struct world *w, void *arg)
{
	for (int i = 0; i < 4; i++) {
		struct oracle_ht h = problem_of(1, w->nranks);
		uint32_t flags = i & 1 ? HT_COUNTER64 : 0;
		ncclEpGroup_t group;
		struct ht_bench b;

		h.alignment = i & 1 ? 8 : 0;
		h.drop = i & 2;
		h.limit = h.drop ? 34 : h.limit;
		group = ht_group(w, &h, flags, 60000);
		ht_open(&b, w, group, &h, flags);
		for (uint32_t which = 1; which < 1u << LATE_COUNTERS; which++) {
			check_context("late counters %u, case %d, rank %d", which, i, w->rank);
			late_try(&b, which, which & 1);
			late_try(&b, which, ~which & 1);
		}
		late_total(&b);
		CHECK_LAST(group, ncclSuccess, "");
		end_together(&b);
	}
}

static int main_late_counters(int argc, char **argv)
{
	world_run(RANKS, late_run, NULL);
	return check_end();
}

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "counters", main_counters },
		{ "ht_counters", main_ht_counters },
		{ "ht_received", main_ht_received },
		{ "late_counters", main_late_counters },
	};

	return check_cases(argc, argv, cases, sizeof(cases) / sizeof(*cases));
}
