/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Numbers that the library tells about its work: received tokens and rows of a handle, rows and
 * bytes per peer. They must be what the oracle counts.
 */
#include "support/bench.h"

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

int main(void)
{
	for (int lines = 0; lines <= 1; lines++) {
		setenv("NCCL_EP_LL_LINES", lines ? "1" : "0", 1);
		world_run(world_size(3), run, NULL);
	}
	return check_end();
}
