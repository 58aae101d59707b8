/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ncclEpExtPeerStats tells of high throughput: rows and bytes of dispatches as the oracle counts
 * them, and for whom operations have waited.
 */
#include <unistd.h>

#include "support/ht_bench.h"

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

static void read_stats(struct ht_bench *b, ncclEpExtPeerStats_t *stats)
{
	stats[0] = NCCL_EP_EXT_PEER_STATS_INIT;
	OK(ncclEpExtPeerStats(b->group, stats, b->w->nranks, b->w->stream));
}

static void check_rows(struct ht_bench *b, bool backward)
{
	ncclEpExtPeerStats_t before[RANKS], after[RANKS];
	const struct oracle_problem *p = &b->h.p;
	uint64_t row = oracle_input_bytes(p) +
		       (p->quant == ORACLE_QUANT_NONE ? 0 : 4 * oracle_scale_count(p));

	read_stats(b, before);
	NEED_OK(ht_dispatch(b, backward, b->w->stream));
	if (p->quant == ORACLE_QUANT_NONE) {
		NEED_OK(ht_combine(b, backward, b->w->stream));
	}
	NEED_OK(ht_update(b, b->w->stream));
	read_stats(b, after);
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
 * One rank is late for one of the calls, which the others have launched: have they waited for it, and not
 * as long for each other?
 */
static bool waited_for(struct ht_bench *b, enum call late, uint64_t round)
{
	ncclEpExtPeerStats_t before[RANKS], after[RANKS];
	struct world *w = b->w;
	uint64_t waited, other;

	read_stats(b, before);
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
	read_stats(b, after);
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

static void run(struct world *w, void *arg)
{
	uint64_t round = 0;

	(void)arg;
	for (int i = 0; i < 6; i++) {
		uint32_t flags = i >= 4 ? HT_WINDOW : 0;
		struct oracle_ht h = problem_of(i, w->nranks);
		ncclEpGroupConfig_t config = ht_group_config(&h, flags);
		ncclEpGroup_t group = NULL;
		struct ht_bench b;

		config.max_num_sms = 2;
		NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
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
		ht_end(&b);
	}
}

int main(void)
{
	world_run(RANKS, run, NULL);
	return check_end();
}
