/* SPDX-License-Identifier: Apache-2.0 */
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
static uint32_t rows_due(const struct block *block, const struct oracle_entry *entry)
{
	const struct oracle_table *t = block->table;

	if (t->p->layout == ORACLE_RANK_MAJOR) {
		return entry->src == block->index;
	}
	return oracle_selections(t, entry->src, entry->token, t->rank * t->local + block->index, 1);
}

static struct oracle_entry *find_entry(struct block *block, const uint8_t *row)
{
	const struct oracle_table *t = block->table;
	uint64_t key = oracle_row_key(row);
	size_t bytes = oracle_output_bytes(t->p);
	uint32_t next;

	for (uint32_t i = t->heads[key & (t->nheads - 1)]; i != ORACLE_NO_ENTRY; i = next) {
		struct oracle_entry *e = t->entries + i;

		next = e->next;
		if (e->key != key) {
			continue;
		}
		if (e->block != block->index) {
			e->block = block->index;
			e->taken = 0;
		}
		if (e->taken == rows_due(block, e)) {
			continue;
		}
		oracle_output_row(t->p, e->src, e->token, block->want, block->want_scales);
		if (memcmp(row, block->want, bytes) == 0) {
			e->taken++;
			return e;
		}
	}
	return NULL;
}

static const char *block_name(const struct oracle_table *table)
{
	return table->p->layout == ORACLE_EXPERT_MAJOR ? "local expert" : "source";
}

static void blame_row(struct block *block, uint32_t row, const char *what)
{
	const struct oracle_table *t = block->table;

	oracle_blame(block->verdict, "dispatch: rank %u, %s %u, row %u of %u: %s", t->rank,
		     block_name(t), block->index, row, block->count, what);
}

/* Rank-major: the ids and weights that came with a row. */
static void check_routing(struct block *block, uint32_t row, const struct oracle_entry *entry,
			  const int32_t *ids, const float *weights)
{
	const struct oracle_table *t = block->table;
	const struct oracle_problem *p = t->p;
	const int32_t *global = t->ids[entry->src] + (size_t)entry->token * p->topk;
	float sent[ORACLE_MAX_TOPK];

	oracle_weights(p, entry->src, entry->token, sent);
	for (uint32_t k = 0; k < p->topk; k++) {
		int32_t want = -1;

		if (global[k] >= 0 && (uint32_t)global[k] / t->local == t->rank) {
			want = global[k] - (p->global_ids ? 0 : (int32_t)(t->rank * t->local));
		}
		if (ids[k] != want) {
			oracle_blame(
				block->verdict,
				"dispatch: rank %u, source %u, row %u: topk_idx[%u] is %d, not %d",
				t->rank, block->index, row, k, ids[k], want);
		}
		if (memcmp(weights + k, sent + k, sizeof(*sent)) != 0) {
			oracle_blame(
				block->verdict,
				"dispatch: rank %u, source %u, row %u: topk_weights[%u] is %a, not %a",
				t->rank, block->index, row, k, (double)weights[k], (double)sent[k]);
		}
	}
}

static float *gather_scales(struct block *block, uint32_t row)
{
	const struct oracle_problem *p = block->table->p;
	uint32_t n = oracle_scale_count(p);

	if (p->quant == ORACLE_QUANT_FP8_COLUMNS) {
		for (uint32_t i = 0; i < n; i++) {
			block->row_scales[i] = block->scales[(size_t)i * block->rows + row];
		}
	} else {
		memcpy(block->row_scales, block->scales + (size_t)row * n,
		       n * sizeof(*block->scales));
	}
	return block->row_scales;
}

/* One row in use, and what the experts make of it: of one that no token is due here, nothing that may be read. */
static void check_row(struct block *block, uint32_t row, const uint8_t *bytes, const int32_t *ids,
		      const float *weights, uint8_t *result)
{
	const struct oracle_problem *p = block->table->p;
	uint32_t nscales = oracle_scale_count(p);
	const float *scales = nscales ? gather_scales(block, row) : NULL;
	const struct oracle_entry *e = find_entry(block, bytes);

	if (!e) {
		blame_row(block, row, "no token that is due here has these bytes");
	} else {
		if (nscales && memcmp(scales, block->want_scales, nscales * sizeof(*scales)) != 0) {
			blame_row(block, row, "wrong scales");
		}
		if (ids) {
			check_routing(block, row, e, ids, weights);
		}
	}
	if (result && e) {
		oracle_answer(p, block->table->rank,
			      p->layout == ORACLE_EXPERT_MAJOR ? (int32_t)block->index : -1, e->src,
			      e->token, result);
	} else if (result) {
		memset(result, ORACLE_UNREAD, oracle_combine_bytes(p));
	}
}

static int check_rows_used(struct block *block, const int32_t *ids, const float *weights)
{
	const struct oracle_problem *p = block->table->p;
	size_t bytes = oracle_output_bytes(p);
	size_t result_bytes = oracle_combine_bytes(p);
	const uint8_t *from =
		(const uint8_t *)block->out->tokens + (size_t)block->index * block->rows * bytes;
	uint8_t *to = block->out->combine_in;
	uint32_t step = (uint32_t)(CHUNK_BYTES / result_bytes);

	step = step ? step : 1;
	to = to ? to + (size_t)block->index * block->rows * result_bytes : NULL;
	for (uint32_t row = 0; row < block->count; row += step) {
		uint32_t n = block->count - row < step ? block->count - row : step;

		if (oracle_fetch(block->mem, block->chunk, from + row * bytes, n * bytes)) {
			return -1;
		}
		for (uint32_t i = 0; i < n; i++) {
			check_row(block, row + i, block->chunk + i * bytes,
				  ids ? ids + (size_t)(row + i) * p->topk : NULL,
				  weights ? weights + (size_t)(row + i) * p->topk : NULL,
				  to ? block->chunk_result + i * result_bytes : NULL);
		}
		if (to && oracle_put(block->mem, to + row * result_bytes, block->chunk_result,
				     n * result_bytes)) {
			return -1;
		}
	}
	return 0;
}

static int check_rows_unused(struct block *block, const int32_t *ids, const float *weights)
{
	const struct oracle_problem *p = block->table->p;
	size_t bytes = oracle_output_bytes(p);
	const uint8_t *from =
		(const uint8_t *)block->out->tokens + (size_t)block->index * block->rows * bytes;
	uint32_t nscales = oracle_scale_count(p);
	uint32_t unused = block->rows - block->count;
	uint32_t samples = block->out->poison_rows < unused ? block->out->poison_rows : unused;

	for (uint32_t i = 0; ids && i < unused * p->topk; i++) {
		if (ids[(size_t)block->count * p->topk + i] != -1) {
			blame_row(block, block->count + i / p->topk,
				  "topk_idx of an unused row is not -1");
			break;
		}
	}
	for (uint32_t i = 0; i < samples; i++) {
		/* the first and the last, and others evenly between them */
		uint32_t row =
			block->count +
			(samples > 1 ? (uint32_t)((uint64_t)i * (unused - 1) / (samples - 1)) : 0);

		if (oracle_fetch(block->mem, block->chunk, from + row * bytes, bytes)) {
			return -1;
		}
		if (!oracle_is_poison(block->chunk, bytes)) {
			blame_row(block, row, "an unused row was written");
		}
		if (nscales && !oracle_is_poison((const uint8_t *)gather_scales(block, row),
						 nscales * sizeof(float))) {
			blame_row(block, row, "scales of an unused row were written");
		}
		if (weights && !oracle_is_poison((const uint8_t *)(weights + (size_t)row * p->topk),
						 p->topk * sizeof(float))) {
			blame_row(block, row, "topk_weights of an unused row were written");
		}
	}
	return 0;
}

static int check_block(struct block *block, int32_t *ids, float *weights)
{
	const struct oracle_problem *p = block->table->p;
	size_t scales = (size_t)oracle_scale_count(p) * block->rows;
	size_t routing = (size_t)block->rows * p->topk;

	if (scales && oracle_fetch(block->mem, block->scales,
				   (const float *)block->out->scales + block->index * scales,
				   scales * sizeof(float))) {
		return -1;
	}
	if (ids && (oracle_fetch(block->mem, ids, block->out->idx + block->index * routing,
				 routing * sizeof(*ids)) ||
		    oracle_fetch(block->mem, weights, block->out->weights + block->index * routing,
				 routing * sizeof(*weights)))) {
		return -1;
	}
	if (check_rows_used(block, ids, weights)) {
		return -1;
	}
	return check_rows_unused(block, ids, weights);
}

static uint32_t block_due(const struct oracle_table *table, uint32_t index)
{
	struct block b = { .table = table, .index = index };
	uint32_t due = 0;

	for (uint32_t i = 0; i < table->nentries; i++) {
		due += rows_due(&b, table->entries + i);
	}
	return due;
}

static int check_blocks(struct block *block, uint32_t nblocks, int32_t *counts, int32_t *ids,
			float *weights)
{
	const struct oracle_table *t = block->table;

	if (counts &&
	    oracle_fetch(block->mem, counts, block->out->counts, nblocks * sizeof(*counts))) {
		return -1;
	}
	for (uint32_t i = 0; i < t->nentries; i++) {
		t->entries[i].block = ORACLE_NO_ENTRY;
	}
	for (block->index = 0; block->index < nblocks; block->index++) {
		uint32_t due = block_due(t, block->index);

		block->count = due;
		if (counts && counts[block->index] != (int32_t)due) {
			oracle_blame(block->verdict,
				     "dispatch: rank %u, %s %u: count is %d, not %u", t->rank,
				     block_name(t), block->index, counts[block->index], due);
		}
		if (check_block(block, ids, weights)) {
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
