// SPDX-License-Identifier: Apache-2.0
/* Compares what a dispatch delivered with what it had to deliver, whatever order it chose. */
#include <stdlib.h>
#include <string.h>

#include "table.h"

#define CHUNK_BYTES ((size_t)128 << 10) /* (larger blocks are mapped anew each time) */

/* One block of the output: an expert's rows, or a source's. */
struct block {
	const struct oracle_table *table;
	const struct oracle_mem *mem;
	const struct oracle_dispatch *out;
	struct oracle_verdict *verdict;
	uint32_t index;
	uint32_t rows;         /* extent */
	uint32_t count;        /* rows in use */
	uint8_t *chunk;        /* rows as read */
	uint8_t *chunk_result; /* experts' results */
	float *scales;         /* [rows][S] or, in columns, [S][rows] */
	float *row_scales;     /* one row's, gathered */
	uint8_t *want;
	float *want_scales;
};

/* Rows of (token, block): expert-major one per selection, rank-major one. */
static uint32_t rows_due(const struct block *b, const struct oracle_entry *e)
{
	const struct oracle_table *t = b->table;

	if (t->p->layout == ORACLE_RANK_MAJOR) {
		return e->src == b->index;
	}
	return oracle_selections(t, e->src, e->token, t->rank * t->local + b->index, 1);
}

static struct oracle_entry *find_entry(struct block *b, const uint8_t *row)
{
	const struct oracle_table *t = b->table;
	uint64_t key = oracle_row_key(row);
	size_t bytes = oracle_output_bytes(t->p);
	uint32_t next;

	for (uint32_t i = t->heads[key & (t->nheads - 1)]; i != ORACLE_NO_ENTRY; i = next) {
		struct oracle_entry *e = t->entries + i;

		next = e->next;
		if (e->key != key) {
			continue;
		}
		if (e->block != b->index) {
			e->block = b->index;
			e->taken = 0;
		}
		if (e->taken == rows_due(b, e)) {
			continue;
		}
		oracle_output_row(t->p, e->src, e->token, b->want, b->want_scales);
		if (memcmp(row, b->want, bytes) == 0) {
			e->taken++;
			return e;
		}
	}
	return NULL;
}

static const char *block_name(const struct oracle_table *t)
{
	return t->p->layout == ORACLE_EXPERT_MAJOR ? "local expert" : "source";
}

static void blame_row(struct block *b, uint32_t row, const char *what)
{
	const struct oracle_table *t = b->table;

	oracle_blame(b->verdict, "dispatch: rank %u, %s %u, row %u of %u: %s", t->rank,
		     block_name(t), b->index, row, b->count, what);
}

/* Rank-major: the ids and weights that came with a row. */
static void check_routing(struct block *b, uint32_t row, const struct oracle_entry *e,
			  const int32_t *ids, const float *weights)
{
	const struct oracle_table *t = b->table;
	const struct oracle_problem *p = t->p;
	const int32_t *global = t->ids[e->src] + (size_t)e->token * p->topk;
	float sent[ORACLE_MAX_TOPK];

	oracle_weights(p, e->src, e->token, sent);
	for (uint32_t k = 0; k < p->topk; k++) {
		int32_t want = -1;

		if (global[k] >= 0 && (uint32_t)global[k] / t->local == t->rank) {
			want = global[k] - (p->global_ids ? 0 : (int32_t)(t->rank * t->local));
		}
		if (ids[k] != want) {
			oracle_blame(
				b->verdict,
				"dispatch: rank %u, source %u, row %u: topk_idx[%u] is %d, not %d",
				t->rank, b->index, row, k, ids[k], want);
		}
		if (memcmp(weights + k, sent + k, sizeof(*sent)) != 0) {
			oracle_blame(
				b->verdict,
				"dispatch: rank %u, source %u, row %u: topk_weights[%u] is %a, not %a",
				t->rank, b->index, row, k, (double)weights[k], (double)sent[k]);
		}
	}
}

static float *gather_scales(struct block *b, uint32_t row)
{
	const struct oracle_problem *p = b->table->p;
	uint32_t n = oracle_scale_count(p);

	if (p->quant == ORACLE_QUANT_FP8_COLUMNS) {
		for (uint32_t i = 0; i < n; i++) {
			b->row_scales[i] = b->scales[(size_t)i * b->rows + row];
		}
	} else {
		memcpy(b->row_scales, b->scales + (size_t)row * n, n * sizeof(*b->scales));
	}
	return b->row_scales;
}

static void work_row(struct block *b, const uint8_t *row, const int32_t *ids, const float *weights,
		     const float *scales, uint8_t *result)
{
	const struct oracle_table *t = b->table;
	int32_t local[ORACLE_MAX_TOPK];

	if (t->p->layout == ORACLE_EXPERT_MAJOR) {
		oracle_expert_row(t->p, t->rank * t->local + b->index, row, scales, result);
		return;
	}
	for (uint32_t k = 0; k < t->p->topk; k++) {
		local[k] = ids[k];
		if (ids[k] >= 0 && t->p->global_ids) {
			local[k] -= (int32_t)(t->rank * t->local);
		}
	}
	oracle_rank_row(t->p, t->rank, local, weights, row, scales, result);
}

/* One row in use; what it says is believed for the experts' work, right or wrong. */
static void check_row(struct block *b, uint32_t row, const uint8_t *bytes, const int32_t *ids,
		      const float *weights, uint8_t *result)
{
	uint32_t nscales = oracle_scale_count(b->table->p);
	const float *scales = nscales ? gather_scales(b, row) : NULL;
	const struct oracle_entry *e = find_entry(b, bytes);

	if (!e) {
		blame_row(b, row, "no token that is due here has these bytes");
	} else {
		if (nscales && memcmp(scales, b->want_scales, nscales * sizeof(*scales)) != 0) {
			blame_row(b, row, "wrong scales");
		}
		if (ids) {
			check_routing(b, row, e, ids, weights);
		}
	}
	if (result) {
		work_row(b, bytes, ids, weights, scales, result);
	}
}

static int check_rows_used(struct block *b, const int32_t *ids, const float *weights)
{
	const struct oracle_problem *p = b->table->p;
	size_t bytes = oracle_output_bytes(p);
	size_t result_bytes = oracle_combine_bytes(p);
	const uint8_t *from = (const uint8_t *)b->out->tokens + (size_t)b->index * b->rows * bytes;
	uint8_t *to = b->out->combine_in;
	uint32_t step = (uint32_t)(CHUNK_BYTES / result_bytes);

	step = step ? step : 1;
	to = to ? to + (size_t)b->index * b->rows * result_bytes : NULL;
	for (uint32_t row = 0; row < b->count; row += step) {
		uint32_t n = b->count - row < step ? b->count - row : step;

		if (oracle_fetch(b->mem, b->chunk, from + row * bytes, n * bytes)) {
			return -1;
		}
		for (uint32_t i = 0; i < n; i++) {
			check_row(b, row + i, b->chunk + i * bytes,
				  ids ? ids + (size_t)(row + i) * p->topk : NULL,
				  weights ? weights + (size_t)(row + i) * p->topk : NULL,
				  to ? b->chunk_result + i * result_bytes : NULL);
		}
		if (to && oracle_put(b->mem, to + row * result_bytes, b->chunk_result,
				     n * result_bytes)) {
			return -1;
		}
	}
	return 0;
}

static int check_rows_unused(struct block *b, const int32_t *ids, const float *weights)
{
	const struct oracle_problem *p = b->table->p;
	size_t bytes = oracle_output_bytes(p);
	const uint8_t *from = (const uint8_t *)b->out->tokens + (size_t)b->index * b->rows * bytes;
	uint32_t nscales = oracle_scale_count(p);
	uint32_t unused = b->rows - b->count;
	uint32_t samples = b->out->poison_rows < unused ? b->out->poison_rows : unused;

	for (uint32_t i = 0; ids && i < unused * p->topk; i++) {
		if (ids[(size_t)b->count * p->topk + i] != -1) {
			blame_row(b, b->count + i / p->topk, "topk_idx of an unused row is not -1");
			break;
		}
	}
	for (uint32_t i = 0; i < samples; i++) {
		/* the first and the last, and others evenly between them */
		uint32_t row =
			b->count +
			(samples > 1 ? (uint32_t)((uint64_t)i * (unused - 1) / (samples - 1)) : 0);

		if (oracle_fetch(b->mem, b->chunk, from + row * bytes, bytes)) {
			return -1;
		}
		if (!oracle_is_poison(b->chunk, bytes)) {
			blame_row(b, row, "an unused row was written");
		}
		if (nscales && !oracle_is_poison((const uint8_t *)gather_scales(b, row),
						 nscales * sizeof(float))) {
			blame_row(b, row, "scales of an unused row were written");
		}
		if (weights && !oracle_is_poison((const uint8_t *)(weights + (size_t)row * p->topk),
						 p->topk * sizeof(float))) {
			blame_row(b, row, "topk_weights of an unused row were written");
		}
	}
	return 0;
}

static int check_block(struct block *b, int32_t *ids, float *weights)
{
	const struct oracle_problem *p = b->table->p;
	size_t scales = (size_t)oracle_scale_count(p) * b->rows;
	size_t routing = (size_t)b->rows * p->topk;

	if (scales &&
	    oracle_fetch(b->mem, b->scales, (const float *)b->out->scales + b->index * scales,
			 scales * sizeof(float))) {
		return -1;
	}
	if (ids &&
	    (oracle_fetch(b->mem, ids, b->out->idx + b->index * routing, routing * sizeof(*ids)) ||
	     oracle_fetch(b->mem, weights, b->out->weights + b->index * routing,
			  routing * sizeof(*weights)))) {
		return -1;
	}
	if (check_rows_used(b, ids, weights)) {
		return -1;
	}
	return check_rows_unused(b, ids, weights);
}

static uint32_t block_due(const struct oracle_table *t, uint32_t index)
{
	struct block b = { .table = t, .index = index };
	uint32_t due = 0;

	for (uint32_t i = 0; i < t->nentries; i++) {
		due += rows_due(&b, t->entries + i);
	}
	return due;
}

static int check_blocks(struct block *b, uint32_t nblocks, int32_t *counts, int32_t *ids,
			float *weights)
{
	const struct oracle_table *t = b->table;

	if (counts && oracle_fetch(b->mem, counts, b->out->counts, nblocks * sizeof(*counts))) {
		return -1;
	}
	for (uint32_t i = 0; i < t->nentries; i++) {
		t->entries[i].block = ORACLE_NO_ENTRY;
	}
	for (b->index = 0; b->index < nblocks; b->index++) {
		uint32_t due = block_due(t, b->index);

		b->count = due;
		if (counts && counts[b->index] != (int32_t)due) {
			oracle_blame(b->verdict, "dispatch: rank %u, %s %u: count is %d, not %u",
				     t->rank, block_name(t), b->index, counts[b->index], due);
		}
		if (check_block(b, ids, weights)) {
			return -1;
		}
	}
	return 0;
}

void oracle_check_dispatch(const struct oracle_table *table, const struct oracle_mem *mem,
			   const struct oracle_dispatch *out, struct oracle_verdict *verdict)
{
	const struct oracle_problem *p = table->p;
	int by_rank = p->layout == ORACLE_RANK_MAJOR;
	uint32_t nblocks = by_rank ? p->nranks : table->local;
	struct block b = { .table = table, .mem = mem, .out = out, .verdict = verdict };
	uint32_t nscales = oracle_scale_count(p);
	size_t chunk = CHUNK_BYTES + oracle_combine_bytes(p) + oracle_output_bytes(p);
	int32_t *counts = calloc(nblocks, sizeof(*counts));
	int32_t *ids = NULL;
	float *weights = NULL;

	b.rows = by_rank ? p->max_tokens : p->max_tokens * p->nranks;
	b.chunk = malloc(chunk);
	b.chunk_result = malloc(chunk);
	b.scales = calloc((size_t)b.rows * nscales + 1, sizeof(float));
	b.row_scales = calloc(nscales + 1, sizeof(float));
	b.want_scales = calloc(nscales + 1, sizeof(float));
	b.want = malloc(oracle_output_bytes(p));
	if (by_rank) {
		ids = calloc((size_t)b.rows * p->topk, sizeof(*ids));
		weights = calloc((size_t)b.rows * p->topk, sizeof(*weights));
	}
	if (!counts || !b.chunk || !b.chunk_result || !b.scales || !b.row_scales ||
	    !b.want_scales || !b.want || (by_rank && (!ids || !weights))) {
		oracle_blame(verdict, "dispatch: rank %u: no memory for the check", table->rank);
	} else if (check_blocks(&b, nblocks, out->counts ? counts : NULL, ids, weights)) {
		oracle_blame(verdict, "dispatch: rank %u: the outputs could not be read",
			     table->rank);
	}
	free(weights);
	free(ids);
	free(b.want);
	free(b.want_scales);
	free(b.row_scales);
	free(b.scales);
	free(b.chunk_result);
	free(b.chunk);
	free(counts);
}
