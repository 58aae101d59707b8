/* SPDX-License-Identifier: Apache-2.0 */
/* What a dispatch must deliver and a combine must return, and what they did instead. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "oracle.h"

#define KEY_BYTES 16 /* of a delivered row, to find its token */
#define NO_ENTRY UINT32_MAX

struct entry { /* a token that has an expert on this rank */
	uint64_t key;
	uint32_t src;
	uint32_t token;
	uint32_t next;  /* in its hash chain */
	uint32_t block; /* `taken` counts rows of this block */
	uint32_t taken;
};

struct oracle_table {
	const struct oracle_problem *p;
	uint32_t rank;
	uint32_t local; /* experts of a rank that holds some; */
	uint32_t held;  /* of this one */
	uint32_t ntokens[ORACLE_MAX_RANKS];
	int32_t *ids[ORACLE_MAX_RANKS]; /* [tokens][topk] */
	int32_t *all_ids;
	struct entry *entries;
	uint32_t nentries;
	uint32_t *heads;
	uint32_t nheads; /* a power of two */
};

/* ---- mistakes, memory, and the tokens that a rank receives ---- */

#define MAX_LINES 8

__attribute__((format(printf, 2, 3))) static void blame(struct oracle_verdict *verdict,
							const char *format, ...)
{
	size_t used = strlen(verdict->text);
	va_list args;

	verdict->wrong++;
	if (verdict->lines >= MAX_LINES || used + 2 >= sizeof(verdict->text)) {
		return;
	}
	verdict->lines++;
	va_start(args, format);
	vsnprintf(verdict->text + used, sizeof(verdict->text) - used - 1, format, args);
	va_end(args);
	strcat(verdict->text, "\n");
}

static int fetch(const struct oracle_mem *mem, void *to, const void *from, size_t bytes)
{
	if (mem && mem->read) {
		return bytes ? mem->read(mem->context, to, from, bytes) : 0;
	}
	memcpy(to, from, bytes);
	return 0;
}

static int put(const struct oracle_mem *mem, void *to, const void *from, size_t bytes)
{
	if (mem && mem->write) {
		return bytes ? mem->write(mem->context, to, from, bytes) : 0;
	}
	memcpy(to, from, bytes);
	return 0;
}

static int all_bytes(const uint8_t *bytes, uint8_t value, size_t n)
{
	return n == 0 || (bytes[0] == value && !memcmp(bytes, bytes + 1, n - 1));
}

static int is_poison(const void *bytes, size_t n)
{
	return all_bytes(bytes, ORACLE_POISON, n);
}

static uint64_t find_key(const uint8_t *row)
{
	uint64_t words[2];

	memcpy(words, row, KEY_BYTES);
	return oracle_hash(words[0], words[1]);
}

static uint32_t count_selections(const struct oracle_table *table, uint32_t src, uint32_t token,
				 uint32_t first, uint32_t extent)
{
	const int32_t *ids = table->ids[src] + (size_t)token * table->p->topk;
	uint32_t n = 0;

	for (uint32_t k = 0; k < table->p->topk; k++) {
		n += ids[k] >= (int32_t)first && ids[k] < (int32_t)(first + extent);
	}
	return n;
}

/* Rows are stable under truncation: the first block of a shorter row is that of the whole. */
static void index_entries(struct oracle_table *table)
{
	struct oracle_problem head = *table->p;
	uint8_t row[ORACLE_BLOCK * 4];
	float scales[4];

	head.hidden = head.hidden < ORACLE_BLOCK ? head.hidden : ORACLE_BLOCK;
	for (uint32_t i = 0; i < table->nheads; i++) {
		table->heads[i] = NO_ENTRY;
	}
	for (uint32_t i = 0; i < table->nentries; i++) {
		struct entry *e = table->entries + i;
		uint32_t *slot;

		oracle_output_row(&head, e->src, e->token, row, scales);
		e->key = find_key(row);
		slot = table->heads + (e->key & (table->nheads - 1));
		e->next = *slot;
		e->block = NO_ENTRY;
		*slot = i;
	}
}

struct oracle_table *oracle_table_create(const struct oracle_problem *problem, uint32_t rank)
{
	struct oracle_table *t = calloc(1, sizeof(*t));
	size_t total = 0;
	int32_t *ids;

	if (!t) {
		return NULL;
	}
	t->p = problem;
	t->rank = rank;
	t->local = oracle_local(problem);
	t->held = oracle_held(problem, rank);
	for (uint32_t src = 0; src < problem->nranks; src++) {
		t->ntokens[src] = oracle_tokens(problem, src);
		total += t->ntokens[src];
	}
	for (t->nheads = 64; t->nheads < 2 * total;) {
		t->nheads *= 2;
	}
	t->all_ids = calloc(total * problem->topk + 1, sizeof(*t->all_ids));
	t->entries = calloc(total + 1, sizeof(*t->entries));
	t->heads = calloc(t->nheads, sizeof(*t->heads));
	if (!t->all_ids || !t->entries || !t->heads) {
		oracle_table_free(t);
		return NULL;
	}
	ids = t->all_ids;
	for (uint32_t src = 0; src < problem->nranks; src++) {
		t->ids[src] = ids;
		for (uint32_t token = 0; token < t->ntokens[src]; token++, ids += problem->topk) {
			oracle_route(problem, src, token, ids);
			if (count_selections(t, src, token, oracle_first_expert(problem, rank),
					     t->held) &&
			    !oracle_absent(problem, rank)) {
				t->entries[t->nentries].src = src;
				t->entries[t->nentries++].token = token;
			}
		}
	}
	index_entries(t);
	return t;
}

void oracle_table_free(struct oracle_table *table)
{
	if (table) {
		free(table->all_ids);
		free(table->entries);
		free(table->heads);
		free(table);
	}
}

/* ---- low latency: dispatch, whatever order it chose ---- */

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
	float *chunk_scales;   /* and theirs */
	float *scales;         /* [rows][S] or, in columns, [S][rows] */
	float *row_scales;     /* one row's, gathered */
	uint8_t *want;
	float *want_scales;
};

/* Rows of (token, block): expert-major one per selection, rank-major one. */
static uint32_t rows_due(const struct block *block, const struct entry *entry)
{
	const struct oracle_table *t = block->table;

	if (t->p->layout == ORACLE_RANK_MAJOR) {
		return entry->src == t->p->first_sender + block->index;
	}
	return count_selections(t, entry->src, entry->token,
				oracle_first_expert(t->p, t->rank) + block->index, 1);
}

static struct entry *find_entry(struct block *block, const uint8_t *row)
{
	const struct oracle_table *t = block->table;
	uint64_t key = find_key(row);
	size_t bytes = oracle_output_bytes(t->p);
	uint32_t next;

	for (uint32_t i = t->heads[key & (t->nheads - 1)]; i != NO_ENTRY; i = next) {
		struct entry *e = t->entries + i;

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

	blame(block->verdict, "dispatch: rank %u, %s %u, row %u of %u: %s", t->rank, block_name(t),
	      block->index, row, block->count, what);
}

/* Rank-major: the ids and weights that came with a row. */
static void check_routing(struct block *block, uint32_t row, const struct entry *entry,
			  const int32_t *ids, const float *weights)
{
	const struct oracle_table *t = block->table;
	const struct oracle_problem *p = t->p;
	const int32_t *global = t->ids[entry->src] + (size_t)entry->token * p->topk;
	float sent[ORACLE_MAX_TOPK];

	oracle_weights(p, entry->src, entry->token, sent);
	for (uint32_t k = 0; k < p->topk; k++) {
		int32_t want = -1;

		if (global[k] >= 0 && oracle_holder(p, (uint32_t)global[k]) == t->rank) {
			want = global[k] -
			       (p->global_ids ? 0 : (int32_t)oracle_first_expert(p, t->rank));
		}
		if (ids[k] != want) {
			blame(block->verdict,
			      "dispatch: rank %u, source %u, row %u: topk_idx[%u] is %d, not %d",
			      t->rank, block->index, row, k, ids[k], want);
		}
		if (memcmp(weights + k, sent + k, sizeof(*sent)) != 0) {
			blame(block->verdict,
			      "dispatch: rank %u, source %u, row %u: topk_weights[%u] is %a, not %a",
			      t->rank, block->index, row, k, (double)weights[k], (double)sent[k]);
		}
	}
}

static float *gather_scales(struct block *block, uint32_t row)
{
	const struct oracle_problem *p = block->table->p;
	uint32_t n = oracle_scale_words(p);

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

/*
 * One row in use, and what the experts make of it: of one that no token is due here, nothing that
 * may be read.
 */
static void check_row(struct block *block, uint32_t row, const uint8_t *bytes, const int32_t *ids,
		      const float *weights, uint8_t *result, float *scale)
{
	const struct oracle_problem *p = block->table->p;
	uint32_t nscales = oracle_scale_words(p);
	const float *scales = nscales ? gather_scales(block, row) : NULL;
	const struct entry *e = find_entry(block, bytes);

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
	if (scale) {
		*scale = e ? oracle_answer_scale(p, result) : NAN;
	}
}

static uint32_t chunk_rows(const struct oracle_problem *p)
{
	uint32_t rows = (uint32_t)(CHUNK_BYTES / oracle_combine_bytes(p));

	return rows ? rows : 1;
}

static int check_rows_used(struct block *block, const int32_t *ids, const float *weights)
{
	const struct oracle_problem *p = block->table->p;
	size_t bytes = oracle_output_bytes(p);
	size_t result_bytes = oracle_combine_bytes(p);
	const uint8_t *from =
		(const uint8_t *)block->out->tokens + (size_t)block->index * block->rows * bytes;
	uint8_t *to = block->out->combine_in;
	float *scales = p->combine_quant == ORACLE_COMBINE_NVFP4 ? block->out->combine_scales
								 : NULL;
	uint32_t step = chunk_rows(p);

	to = to ? to + (size_t)block->index * block->rows * result_bytes : NULL;
	scales = to && scales ? scales + (size_t)block->index * block->rows : NULL;
	for (uint32_t row = 0; row < block->count; row += step) {
		uint32_t n = block->count - row < step ? block->count - row : step;

		if (fetch(block->mem, block->chunk, from + row * bytes, n * bytes)) {
			return -1;
		}
		for (uint32_t i = 0; i < n; i++) {
			check_row(block, row + i, block->chunk + i * bytes,
				  ids ? ids + (size_t)(row + i) * p->topk : NULL,
				  weights ? weights + (size_t)(row + i) * p->topk : NULL,
				  to ? block->chunk_result + i * result_bytes : NULL,
				  scales ? block->chunk_scales + i : NULL);
		}
		if (to && put(block->mem, to + row * result_bytes, block->chunk_result,
			      n * result_bytes)) {
			return -1;
		}
		if (scales &&
		    put(block->mem, scales + row, block->chunk_scales, n * sizeof(*scales))) {
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
	uint32_t nscales = oracle_scale_words(p);
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

		if (fetch(block->mem, block->chunk, from + row * bytes, bytes)) {
			return -1;
		}
		if (!is_poison(block->chunk, bytes)) {
			blame_row(block, row, "an unused row was written");
		}
		if (nscales && !is_poison(gather_scales(block, row), nscales * sizeof(float))) {
			blame_row(block, row, "scales of an unused row were written");
		}
		if (weights &&
		    !is_poison(weights + (size_t)row * p->topk, p->topk * sizeof(float))) {
			blame_row(block, row, "topk_weights of an unused row were written");
		}
	}
	return 0;
}

static int check_block(struct block *block, int32_t *ids, float *weights)
{
	const struct oracle_problem *p = block->table->p;
	size_t scales = (size_t)oracle_scale_words(p) * block->rows;
	size_t routing = (size_t)block->rows * p->topk;

	if (scales && fetch(block->mem, block->scales,
			    (const float *)block->out->scales + block->index * scales,
			    scales * sizeof(float))) {
		return -1;
	}
	if (ids && (fetch(block->mem, ids, block->out->idx + block->index * routing,
			  routing * sizeof(*ids)) ||
		    fetch(block->mem, weights, block->out->weights + block->index * routing,
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

	if (counts && fetch(block->mem, counts, block->out->counts, nblocks * sizeof(*counts))) {
		return -1;
	}
	for (uint32_t i = 0; i < t->nentries; i++) {
		t->entries[i].block = NO_ENTRY;
	}
	for (block->index = 0; block->index < nblocks; block->index++) {
		uint32_t due = block_due(t, block->index);

		block->count = due;
		if (counts && counts[block->index] != (int32_t)due) {
			blame(block->verdict, "dispatch: rank %u, %s %u: count is %d, not %u",
			      t->rank, block_name(t), block->index, counts[block->index], due);
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
	uint32_t nblocks = !table->held ? 0 : by_rank ? oracle_senders(p) : table->local;
	struct block b = { .table = table, .mem = mem, .out = out, .verdict = verdict };
	uint32_t nscales = oracle_scale_words(p);
	size_t chunk = CHUNK_BYTES + oracle_combine_bytes(p) + oracle_output_bytes(p);
	int32_t *counts = calloc(nblocks + 1, sizeof(*counts));
	int32_t *ids = NULL;
	float *weights = NULL;

	b.rows = by_rank ? p->max_tokens : p->max_tokens * oracle_senders(p);
	b.chunk = malloc(chunk);
	b.chunk_result = malloc(chunk);
	b.chunk_scales = calloc(chunk_rows(p), sizeof(float));
	b.scales = calloc((size_t)b.rows * nscales + 1, sizeof(float));
	b.row_scales = calloc(nscales + 1, sizeof(float));
	b.want_scales = calloc(nscales + 1, sizeof(float));
	b.want = malloc(oracle_output_bytes(p));
	if (by_rank) {
		ids = calloc((size_t)b.rows * p->topk, sizeof(*ids));
		weights = calloc((size_t)b.rows * p->topk, sizeof(*weights));
	}
	if (!counts || !b.chunk || !b.chunk_result || !b.chunk_scales || !b.scales ||
	    !b.row_scales || !b.want_scales || !b.want || (by_rank && (!ids || !weights))) {
		blame(verdict, "dispatch: rank %u: no memory for the check", table->rank);
	} else if (check_blocks(&b, nblocks, out->counts ? counts : NULL, ids, weights)) {
		blame(verdict, "dispatch: rank %u: the outputs could not be read", table->rank);
	}
	free(weights);
	free(ids);
	free(b.want);
	free(b.want_scales);
	free(b.row_scales);
	free(b.scales);
	free(b.chunk_scales);
	free(b.chunk_result);
	free(b.chunk);
	free(counts);
}

/* ---- low latency: combine, the same sum in the order that is promised ---- */

struct sum {           /* buffers of one token's work */
	uint8_t *part; /* one expert's or one rank's answer */
	float *acc;
	uint8_t *want;
	/* a quantised answer; the sum of answers, and of their magnitudes */
	uint8_t *codes, *scales;
	double *values, *total, *size;
	uint32_t parts;
};

/* What a reader gets of an answer on the wire. */
static void pass_quantised(const struct oracle_problem *problem, struct sum *sum)
{
	enum oracle_format format = oracle_combine_format(problem);
	float global = problem->combine_quant == ORACLE_COMBINE_NVFP4
			       ? oracle_answer_scale(problem, sum->part)
			       : 1;

	oracle_load_row(problem->dtype, sum->part, sum->acc, problem->hidden);
	oracle_quantise(format, sum->acc, problem->hidden, global, sum->codes, sum->scales);
	oracle_dequantise(format, sum->codes, sum->scales, problem->hidden, global, sum->values);
}

static void add_part(const struct oracle_problem *problem, struct sum *sum, float weight)
{
	if (problem->combine_quant) {
		pass_quantised(problem, sum);
	}
	for (uint32_t column = 0; problem->combine_quant && column < problem->hidden; column++) {
		double x = (double)weight * sum->values[column];

		sum->total[column] += x;
		sum->size[column] += fabs(x);
	}
	for (uint32_t column = 0; !problem->combine_quant && column < problem->hidden; column++) {
		float x = oracle_load(problem->dtype, sum->part, column);

		sum->acc[column] = fmaf(weight, x, sum->acc[column]);
	}
	sum->parts++;
}

/* Ascending k; rank-major: a rank's answer where its first expert stands. */
static void sum_token(const struct oracle_table *table, uint32_t token, struct sum *sum)
{
	const struct oracle_problem *p = table->p;
	const int32_t *ids = table->ids[table->rank] + (size_t)token * p->topk;
	float weights[ORACLE_MAX_TOPK];

	oracle_weights(p, table->rank, token, weights);
	sum->parts = 0;
	for (uint32_t column = 0; column < p->hidden; column++) {
		sum->acc[column] = -0.0f; /* which changes no number that is added */
		sum->total[column] = sum->size[column] = 0;
	}
	for (uint32_t k = 0; k < p->topk; k++) {
		uint32_t to = oracle_holder(p, (uint32_t)ids[k]);
		int by_expert = p->layout == ORACLE_EXPERT_MAJOR;

		if (ids[k] < 0 || oracle_absent(p, to)) {
			continue;
		}
		if (by_expert || oracle_first(ids, k, table->local)) {
			oracle_answer(p, to, by_expert ? ids[k] % (int32_t)table->local : -1,
				      table->rank, token, sum->part);
			add_part(p, sum, by_expert ? weights[k] : 1.0f);
		}
	}
	for (uint32_t column = 0; column < p->hidden; column++) {
		oracle_store(p->dtype, sum->want, column, sum->parts ? sum->acc[column] : 0.0f);
	}
}

/*
 * Compares a token's sum. `any_zero`: the sign of a zero does not count. Of a token all of whose
 * rows a rank has dropped, that rank adds 0 or nothing: the sign of a sum of zeros is not defined
 * then.
 */
static void check_sum(const struct oracle_problem *p, uint32_t rank, uint32_t token,
		      const uint8_t *got, const uint8_t *want, int any_zero,
		      struct oracle_verdict *verdict)
{
	size_t bytes = oracle_combine_bytes(p), size = bytes / p->hidden;
	uint32_t first = UINT32_MAX, differ = 0;

	if (memcmp(got, want, bytes) == 0) {
		return;
	}
	for (uint32_t c = 0; c < p->hidden; c++) {
		if (memcmp(got + c * size, want + c * size, size) != 0 &&
		    !(isnan(oracle_load(p->dtype, got, c)) &&
		      isnan(oracle_load(p->dtype, want, c))) &&
		    !(any_zero && oracle_load(p->dtype, got, c) == 0 &&
		      oracle_load(p->dtype, want, c) == 0)) {
			first = first < c ? first : c;
			differ++;
		}
	}
	if (differ) {
		blame(verdict,
		      "combine: rank %u, token %u: %u of %u columns differ, first column %u: %a, "
		      "not %a",
		      rank, token, differ, p->hidden, first,
		      (double)oracle_load(p->dtype, got, first),
		      (double)oracle_load(p->dtype, want, first));
	}
}

/* x, or with a little more than fp32 holds of it the next one down or up, as bf16. */
static float bf16_bound(double x, int up)
{
	float f = (float)x;

	if (up ? (double)f < x : (double)f > x) {
		f = nextafterf(f, up ? INFINITY : -INFINITY);
	}
	return oracle_from_bf16(oracle_to_bf16(f));
}

/*
 * Compares a sum of quantised rows, which are known exactly. A term takes up to four roundings in
 * fp32, and each addition one, of at most the sum of all magnitudes.
 */
static void check_bounds(const struct oracle_problem *p, uint32_t rank, uint32_t token,
			 const uint8_t *got, const struct sum *sum, struct oracle_verdict *verdict)
{
	uint32_t first = UINT32_MAX, differ = 0;

	for (uint32_t c = 0; c < p->hidden; c++) {
		double off = (sum->parts + 5) * 0x1p-24 * sum->size[c] + 0x1p-140;
		float x = oracle_load(p->dtype, got, c);
		int right = isfinite(sum->size[c]) ? x >= bf16_bound(sum->total[c] - off, 0) &&
							     x <= bf16_bound(sum->total[c] + off, 1)
			    : isnan(sum->total[c]) ? isnan(x)
						   : (double)x == sum->total[c];

		first = !right && first > c ? c : first;
		differ += !right;
	}
	if (differ) {
		blame(verdict,
		      "combine: rank %u, token %u: %u of %u columns differ, first column %u: %a, "
		      "not %a or near it",
		      rank, token, differ, p->hidden, first,
		      (double)oracle_load(p->dtype, got, first), sum->total[first]);
	}
}

static int compare_all(const struct oracle_table *table, const struct oracle_mem *mem,
		       const uint8_t *tokens, uint32_t guard_rows, struct sum *sum, uint8_t *got,
		       struct oracle_verdict *verdict)
{
	size_t bytes = oracle_combine_bytes(table->p);
	uint32_t n = table->ntokens[table->rank];

	for (uint32_t token = 0; token < n + guard_rows; token++) {
		if (fetch(mem, got, tokens + token * bytes, bytes)) {
			return -1;
		}
		if (token < n) {
			sum_token(table, token, sum);
			if (table->p->combine_quant) {
				check_bounds(table->p, table->rank, token, got, sum, verdict);
			} else {
				check_sum(table->p, table->rank, token, got, sum->want, 0, verdict);
			}
		} else if (!is_poison(got, bytes)) {
			blame(verdict, "combine: rank %u: row %u, past the end, was written",
			      table->rank, token);
		}
	}
	return 0;
}

void oracle_check_combine(const struct oracle_table *table, const struct oracle_mem *mem,
			  const void *tokens, uint32_t guard_rows, struct oracle_verdict *verdict)
{
	const struct oracle_problem *p = table->p;
	uint8_t *got = malloc(oracle_combine_bytes(p));
	struct sum s = {
		.part = malloc(oracle_combine_bytes(p)),
		.acc = calloc(p->hidden, sizeof(float)),
		.want = malloc(oracle_combine_bytes(p)),
		.codes = malloc(p->hidden),
		.scales = malloc(p->hidden),
		.values = calloc(p->hidden, sizeof(double)),
		.total = calloc(p->hidden, sizeof(double)),
		.size = calloc(p->hidden, sizeof(double)),
	};

	if (!got || !s.part || !s.acc || !s.want || !s.codes || !s.scales || !s.values ||
	    !s.total || !s.size) {
		blame(verdict, "combine: rank %u: no memory for the check", table->rank);
	} else if (compare_all(table, mem, tokens, guard_rows, &s, got, verdict)) {
		blame(verdict, "combine: rank %u: the output could not be read", table->rank);
	}
	free(s.size);
	free(s.total);
	free(s.values);
	free(s.scales);
	free(s.codes);
	free(s.want);
	free(s.acc);
	free(s.part);
	free(got);
}

/* ---- high throughput: where each row belongs ---- */

uint32_t oracle_ht_local(const struct oracle_ht *ht, uint32_t src, uint32_t token, uint32_t rank,
			 int32_t *experts, float *weights)
{
	int32_t ids[ORACLE_MAX_TOPK];
	float all[ORACLE_MAX_TOPK];
	uint32_t n = 0, first = oracle_first_expert(&ht->p, rank), i;
	uint32_t held = oracle_held(&ht->p, rank);

	oracle_route(&ht->p, src, token, ids);
	if (weights) {
		oracle_weights(&ht->p, src, token, all);
	}
	for (uint32_t k = 0; k < ht->p.topk; k++) {
		int32_t e = ids[k] - (int32_t)first;

		if (ids[k] < 0 || (uint32_t)ids[k] - first >= held) {
			continue;
		}
		for (i = n; i > 0 && experts[i - 1] > e; i--) {
		}
		if (i > 0 && experts[i - 1] == e) {
			continue; /* of duplicates, the first */
		}
		memmove(experts + i + 1, experts + i, (n - i) * sizeof(*experts));
		experts[i] = e;
		if (weights) {
			memmove(weights + i + 1, weights + i, (n - i) * sizeof(*weights));
			weights[i] = all[k];
		}
		n++;
	}
	return n;
}

static uint64_t padded(const struct oracle_ht *ht, uint64_t count)
{
	uint64_t a = ht->alignment > 1 ? ht->alignment : 1;

	return (count + a - 1) / a * a;
}

/* A token that comes to the rank: its slot there, and its local experts. */
struct received {
	uint64_t slot;
	uint32_t src;
	uint32_t index; /* among the source's tokens */
	uint32_t n;
	int32_t experts[ORACLE_MAX_TOPK];
};

typedef void (*visit_fn)(const struct oracle_ht *ht, struct oracle_ht_table *table,
			 const struct received *token, uint64_t *state);

/* All tokens that come to the rank, in the order of slots. */
static void visit_all(const struct oracle_ht *ht, struct oracle_ht_table *table, visit_fn visit,
		      uint64_t *state)
{
	struct received token;

	table->slots = 0;
	for (token.src = 0; token.src < ht->p.nranks; token.src++) {
		for (token.index = 0; token.index < oracle_tokens(&ht->p, token.src);
		     token.index++) {
			token.n = oracle_ht_local(ht, token.src, token.index, table->rank,
						  token.experts, NULL);
			if (token.n) {
				token.slot = table->slots++;
				visit(ht, table, &token, state);
			}
		}
	}
}

/* state[e]: selections of expert e */
static void count(const struct oracle_ht *ht, struct oracle_ht_table *table,
		  const struct received *token, uint64_t *state)
{
	(void)table;
	/* the counters of the flat layout leave dropped rows out */
	if (!ht->expert_major && ht->drop && token->slot >= ht->limit) {
		return;
	}
	for (uint32_t i = 0; i < token->n; i++) {
		state[token->experts[i]]++;
	}
}

static int beyond(const struct oracle_ht *ht, uint64_t place)
{
	return ht->limit && place >= ht->limit;
}

/* state[e]: the next place of expert e */
static void place(const struct oracle_ht *ht, struct oracle_ht_table *table,
		  const struct received *token, uint64_t *state)
{
	struct oracle_ht_row row = { ORACLE_HT_ROW, token->src, token->index, -1 };
	uint64_t slot = token->slot;

	table->slot[table->first[token->src] + token->index] = (uint32_t)slot;
	if (!ht->expert_major) {
		if (!beyond(ht, slot)) {
			table->rows[slot] = row;
			table->at[slot] = (uint32_t)slot;
		}
		return;
	}
	for (uint32_t i = 0; i < token->n; i++) {
		uint64_t at = state[token->experts[i]]++;

		row.expert = token->experts[i];
		if (!beyond(ht, slot) && !beyond(ht, at)) {
			table->rows[at] = row;
			table->at[slot * table->width + i] = (uint32_t)at;
		}
	}
}

/* Rows of zones that no token has are zeros; with dropping, all rows below the limit. */
static void clear(const struct oracle_ht *ht, struct oracle_ht_table *table)
{
	if (!ht->expert_major) {
		return;
	}
	for (uint64_t i = 0; i < table->count; i++) {
		table->rows[i].kind = ht->drop || i < table->total ? ORACLE_HT_ZERO
								   : ORACLE_HT_UNTOUCHED;
	}
}

static void publish(const struct oracle_ht *ht, struct oracle_ht_table *table,
		    const uint64_t *selections, uint64_t *first)
{
	uint64_t at = 0, m = ht->limit;

	for (uint32_t e = 0; e < table->nlocal; e++) {
		uint64_t rows = padded(ht, selections[e]);

		first[e] = at;
		at += rows;
		if (!ht->expert_major) {
			table->counters[e] = (int64_t)selections[e];
		} else if (ht->drop) {
			table->offsets[e] = (int64_t)(first[e] < m ? first[e] : m);
			table->counters[e] = (int64_t)(first[e] >= m         ? 0
						       : rows < m - first[e] ? rows
									     : m - first[e]);
		} else {
			table->offsets[e] = (int64_t)first[e];
			table->counters[e] = (int64_t)rows;
		}
	}
	table->total = ht->expert_major ? at : table->slots;
	table->count = !table->nlocal ? 0 : ht->limit ? ht->limit : table->total;
}

/* By source and token: the slot, and the rows that the token has here. */
static int index_open(const struct oracle_ht *ht, struct oracle_ht_table *table)
{
	uint64_t tokens = 0, entries;

	table->width = ht->expert_major ? (ht->p.topk < table->nlocal ? ht->p.topk : table->nlocal)
					: 1;
	entries = table->slots * table->width;
	table->first = calloc(ht->p.nranks, sizeof(*table->first));
	for (uint32_t s = 0; table->first && s < ht->p.nranks; s++) {
		table->first[s] = tokens;
		tokens += oracle_tokens(&ht->p, s);
	}
	table->slot = malloc((tokens + 1) * sizeof(*table->slot));
	table->at = malloc((entries + 1) * sizeof(*table->at));
	if (!table->first || !table->slot || !table->at) {
		return -1;
	}
	memset(table->slot, 0xff, tokens * sizeof(*table->slot));
	memset(table->at, 0xff, entries * sizeof(*table->at));
	return 0;
}

struct oracle_ht_table *oracle_ht_table_create(const struct oracle_ht *ht, uint32_t rank)
{
	struct oracle_ht_table *t = calloc(1, sizeof(*t));
	uint32_t l = oracle_held(&ht->p, rank);
	uint64_t *state = calloc(2 * (size_t)l + 1, sizeof(*state));

	if (t) {
		t->rank = rank;
		t->nlocal = l;
		t->counters = calloc(l + 1, sizeof(*t->counters));
		t->offsets = calloc(l + 1, sizeof(*t->offsets));
	}
	if (!t || !state || !t->counters || !t->offsets) {
		goto err;
	}
	visit_all(ht, t, count, state);
	publish(ht, t, state, state + l);
	t->rows = calloc(t->count + 1, sizeof(*t->rows));
	if (!t->rows || index_open(ht, t)) {
		goto err;
	}
	clear(ht, t);
	visit_all(ht, t, place, state + l);
	free(state);
	return t;

err:
	free(state);
	oracle_ht_table_free(t);
	return NULL;
}

void oracle_ht_table_free(struct oracle_ht_table *table)
{
	if (table) {
		free(table->counters);
		free(table->offsets);
		free(table->rows);
		free(table->first);
		free(table->slot);
		free(table->at);
		free(table);
	}
}

uint32_t oracle_ht_rows(const struct oracle_ht_table *table, uint32_t src, uint32_t token,
			const uint32_t **rows)
{
	uint32_t slot = table->slot[table->first[src] + token];

	*rows = table->at + (size_t)slot * table->width;
	return slot == ORACLE_HT_NOWHERE ? 0 : table->width;
}

/* Returns recv_total_counter of the rank that has most. */
uint64_t oracle_ht_most(const struct oracle_ht *ht)
{
	uint64_t *rows = calloc(ht->p.experts + (size_t)ht->p.nranks, sizeof(*rows));
	uint64_t most = 0;
	int32_t experts[ORACLE_MAX_TOPK];

	for (uint32_t s = 0; rows && s < ht->p.nranks; s++) {
		for (uint32_t i = 0; i < oracle_tokens(&ht->p, s); i++) {
			for (uint32_t d = 0; d < ht->p.nranks; d++) {
				uint32_t n = oracle_ht_local(ht, s, i, d, experts, NULL);

				rows[ht->p.experts + d] += n > 0;
				for (uint32_t j = 0; j < n; j++) {
					rows[oracle_first_expert(&ht->p, d) +
					     (uint32_t)experts[j]]++;
				}
			}
		}
	}
	for (uint32_t d = 0; rows && d < ht->p.nranks; d++) {
		uint64_t total = 0;
		uint32_t first = oracle_first_expert(&ht->p, d);

		for (uint32_t e = 0; e < oracle_held(&ht->p, d); e++) {
			total += padded(ht, rows[first + e]);
		}
		total = ht->expert_major ? total : rows[ht->p.experts + d];
		most = total > most ? total : most;
	}
	free(rows);
	return most;
}

/* ---- high throughput: what a combine gives ---- */

/*
 * The gradient of the weight of a token's expert, a local one of rank d: a number with all its
 * bits, never zero.
 */
float oracle_ht_gradient(const struct oracle_ht *ht, uint32_t d, int32_t expert, uint32_t src,
			 uint32_t token)
{
	uint64_t hash = oracle_hash(ht->p.seed * 31 + 8, (uint64_t)src << 32 | token);

	hash = oracle_hash(hash, (uint64_t)d << 32 | (uint32_t)expert);
	return (float)((int32_t)(hash & 0xffffff) - 0x800000) * 0x1p-18f + 0.001f;
}

/* What the source gets of a rank's sum that travels as MXFP8. */
static void pass_mxfp8(float *x, uint32_t n)
{
	uint8_t codes[ORACLE_BLOCK], scales[ORACLE_BLOCK];
	double values[ORACLE_BLOCK];

	for (uint32_t c = 0; c < n; c += ORACLE_BLOCK) {
		oracle_quantise(ORACLE_MXFP8, x + c, ORACLE_BLOCK, 1, codes, scales);
		oracle_dequantise(ORACLE_MXFP8, codes, scales, ORACLE_BLOCK, 1, values);
		for (uint32_t i = 0; i < ORACLE_BLOCK; i++) {
			x[c + i] = (float)values[i];
		}
	}
}

static void round_all(enum oracle_dtype dtype, float *x, uint32_t n)
{
	for (uint32_t c = 0; dtype == ORACLE_BF16 && c < n; c++) {
		x[c] = oracle_from_bf16(oracle_to_bf16(x[c]));
	}
	for (uint32_t c = 0; dtype == ORACLE_FP16 && c < n; c++) {
		x[c] = oracle_from_fp16(oracle_to_fp16(x[c]));
	}
}

/* to[] becomes from[], or, when it holds something, the sum. */
static void add_all(float *to, const float *from, uint32_t n, int *any)
{
	for (uint32_t c = 0; c < n; c++) {
		to[c] = *any ? to[c] + from[c] : from[c];
	}
	*any = 1;
}

/* here[]: what rank d returns. Zero: nothing. */
static int answer_of(const struct oracle_ht *ht, const struct oracle_ht_table *table, uint32_t src,
		     uint32_t token, float *here, float *one)
{
	const uint32_t *rows;
	uint32_t n = oracle_ht_rows(table, src, token, &rows);
	int some = 0;

	for (uint32_t i = 0; i < n; i++) {
		if (rows[i] != ORACLE_HT_NOWHERE) {
			oracle_answer(&ht->p, table->rank, table->rows[rows[i]].expert, src, token,
				      one);
			oracle_load_row(ht->p.dtype, one, one + ht->p.hidden, ht->p.hidden);
			add_all(here, one + ht->p.hidden, ht->p.hidden, &some);
		}
	}
	if (some && ht->p.combine_quant) {
		pass_mxfp8(here, ht->p.hidden);
	} else if (some) {
		round_all(ht->p.dtype, here, ht->p.hidden);
	}
	return some;
}

static int same_node(const struct oracle_ht *ht, uint32_t a, uint32_t b)
{
	return !ht->node || ht->node[a] == ht->node[b];
}

/* Ranks of another node return their sum, rounded; the source's own add theirs. */
static void ht_combined(const struct oracle_ht *ht, struct oracle_ht_table *const *tables,
			uint32_t src, uint32_t token, void *row)
{
	uint32_t hidden = ht->p.hidden;
	float *sum = calloc(5 * (size_t)hidden, sizeof(*sum)), *there = sum + hidden;
	float *here = there + hidden, *one = here + hidden;
	int any = 0;

	for (uint32_t first = 0; sum && first < ht->p.nranks; first++) {
		int remote = !same_node(ht, first, src), some = 0;
		uint32_t end = remote ? ht->p.nranks : first + 1, before = 0;

		while (before < first && !(remote && same_node(ht, before, first))) {
			before++;
		}
		for (uint32_t d = first; before == first && d < end; d++) {
			if (same_node(ht, d, first) &&
			    answer_of(ht, tables[d], src, token, here, one)) {
				add_all(there, here, hidden, &some);
			}
		}
		if (some) {
			if (!ht->p.combine_quant) {
				round_all(ht->p.dtype, there, hidden);
			}
			add_all(sum, there, hidden, &any);
		}
	}
	if (sum) {
		oracle_store_row(ht->p.dtype, row, sum, hidden);
	}
	free(sum);
}

static void ht_gradients(const struct oracle_ht *ht, struct oracle_ht_table *const *tables,
			 uint32_t src, uint32_t token, float *out)
{
	int32_t ids[ORACLE_MAX_TOPK], experts[ORACLE_MAX_TOPK];
	const uint32_t *rows;

	oracle_route(&ht->p, src, token, ids);
	memset(out, 0, ht->p.topk * sizeof(*out));
	for (uint32_t d = 0; d < ht->p.nranks; d++) {
		uint32_t n = oracle_ht_local(ht, src, token, d, experts, NULL);

		if (!oracle_ht_rows(tables[d], src, token, &rows)) {
			continue;
		}
		for (uint32_t k = 0; k < ht->p.topk; k++) {
			for (uint32_t j = 0; j < n; j++) {
				if (ids[k] ==
					    (int32_t)oracle_first_expert(&ht->p, d) + experts[j] &&
				    rows[ht->expert_major ? j : 0] != ORACLE_HT_NOWHERE) {
					out[k] = oracle_ht_gradient(ht, d, experts[j], src, token);
				}
			}
		}
	}
}

/* ---- high throughput: outputs of a rank in host memory, some rows at a time ---- */

static const char *kind_of(const struct oracle_ht_row *row)
{
	return row->kind == ORACLE_HT_ROW    ? "a token's"
	       : row->kind == ORACLE_HT_ZERO ? "zeros"
					     : "nobody's";
}

static int right(const struct oracle_ht_row *row, const uint8_t *got, const void *want,
		 size_t bytes)
{
	switch (row->kind) {
	case ORACLE_HT_ROW:
		return !memcmp(got, want, bytes);
	case ORACLE_HT_ZERO:
		return all_bytes(got, 0, bytes);
	default:
		return all_bytes(got, ORACLE_POISON, bytes);
	}
}

static void check_bytes(const struct oracle_ht_table *table, uint64_t i, const char *what,
			const uint8_t *got, const uint8_t *want, size_t bytes,
			struct oracle_verdict *verdict)
{
	const struct oracle_ht_row *row = table->rows + i;
	uint64_t at = 0;

	if (right(row, got, want, bytes)) {
		return;
	}
	while (row->kind == ORACLE_HT_ROW && at < bytes && got[at] == want[at]) {
		at++;
	}
	blame(verdict,
	      "dispatch: rank %u, %s: row %llu, which is %s (token %u of rank %u), is wrong "
	      "from byte %llu on",
	      table->rank, what, (unsigned long long)i, kind_of(row), row->token, row->src,
	      (unsigned long long)at);
}

static void check_weight(const struct oracle_ht *ht, const struct oracle_ht_table *table,
			 uint64_t i, float got, struct oracle_verdict *verdict)
{
	const struct oracle_ht_row *row = table->rows + i;
	int32_t experts[ORACLE_MAX_TOPK];
	float weights[ORACLE_MAX_TOPK], want = 0;
	uint32_t n = 0;

	if (row->kind == ORACLE_HT_UNTOUCHED) {
		memset(&want, ORACLE_POISON, sizeof(want));
	} else if (row->kind == ORACLE_HT_ROW) {
		n = oracle_ht_local(ht, row->src, row->token, table->rank, experts, weights);
	}
	for (uint32_t j = 0; j < n; j++) {
		want = experts[j] == row->expert ? weights[j] : want;
	}
	if (memcmp(&got, &want, sizeof(got))) {
		blame(verdict, "dispatch: rank %u, weight of row %llu, which is %s: %a, not %a",
		      table->rank, (unsigned long long)i, kind_of(row), (double)got, (double)want);
	}
}

/* Flat: rows that do not come are untouched, or -1 and 0 where the call fills them. */
static void check_lists(const struct oracle_ht *ht, const struct oracle_ht_table *table, uint64_t i,
			const float *weights, const int64_t *idx, int64_t base,
			struct oracle_verdict *verdict)
{
	const struct oracle_ht_row *row = table->rows + i;
	int32_t experts[ORACLE_MAX_TOPK];
	float all[ORACLE_MAX_TOPK];
	uint32_t n = 0;

	if (row->kind == ORACLE_HT_ROW) {
		n = oracle_ht_local(ht, row->src, row->token, table->rank, experts, all);
	}
	for (uint32_t k = 0; k < ht->p.topk; k++) {
		int64_t want = k < n ? experts[k] + base : -1;
		float weight = k < n ? all[k] : 0;

		if (row->kind != ORACLE_HT_ROW && !ht->filled) {
			memset(&want, ORACLE_POISON, sizeof(want));
			memset(&weight, ORACLE_POISON, sizeof(weight));
		}
		if (idx[k] != want || memcmp(&weights[k], &weight, sizeof(weight))) {
			blame(verdict,
			      "dispatch: rank %u, row %llu, entry %u: expert %lld with weight "
			      "%a, not %lld with %a",
			      table->rank, (unsigned long long)i, k, (long long)idx[k],
			      (double)weights[k], (long long)want, (double)weight);
			return;
		}
	}
}

void oracle_ht_check_rows(const struct oracle_ht *ht, const struct oracle_ht_table *table,
			  uint64_t first, uint64_t n, const struct oracle_ht_output *out,
			  struct oracle_verdict *verdict)
{
	size_t row = oracle_input_bytes(&ht->p), scales = 4 * oracle_scale_words(&ht->p);
	uint8_t *want = malloc(row + scales);

	if (!want) {
		blame(verdict, "dispatch: rank %u: no memory for the check", table->rank);
		return;
	}
	for (uint64_t j = 0; j < n; j++) {
		const struct oracle_ht_row *r = table->rows + first + j;

		if (r->kind == ORACLE_HT_ROW) {
			oracle_input_row(&ht->p, r->src, r->token, want);
		}
		check_bytes(table, first + j, "tokens", out->tokens + j * row, want, row, verdict);
		if (scales) {
			if (r->kind == ORACLE_HT_ROW) {
				oracle_input_scales(&ht->p, r->src, r->token, (float *)want);
			}
			check_bytes(table, first + j, "scales", out->scales + j * scales, want,
				    scales, verdict);
		}
		if (out->weights && ht->expert_major) {
			check_weight(ht, table, first + j, out->weights[j], verdict);
		} else if (out->weights) {
			check_lists(ht, table, first + j, out->weights + j * ht->p.topk,
				    out->idx + j * ht->p.topk, out->id_base, verdict);
		}
	}
	free(want);
}

void oracle_ht_check_counters(const struct oracle_ht *ht, const struct oracle_ht_table *table,
			      const int64_t *counters, const int64_t *offsets, int64_t total,
			      struct oracle_verdict *verdict)
{
	if (total != (int64_t)table->total) {
		blame(verdict, "routing: rank %u: total %lld, not %llu", table->rank,
		      (long long)total, (unsigned long long)table->total);
	}
	for (uint32_t e = 0; e < table->nlocal; e++) {
		if (counters[e] != table->counters[e]) {
			blame(verdict, "routing: rank %u, expert %u: counter %lld, not %lld",
			      table->rank, e, (long long)counters[e],
			      (long long)table->counters[e]);
		}
		if (ht->expert_major && offsets[e] != table->offsets[e]) {
			blame(verdict, "routing: rank %u, expert %u: offset %lld, not %lld",
			      table->rank, e, (long long)offsets[e], (long long)table->offsets[e]);
		}
	}
}

void oracle_ht_work(const struct oracle_ht *ht, const struct oracle_ht_table *table, uint64_t first,
		    uint64_t n, void *rows, float *gradients)
{
	size_t bytes = oracle_combine_bytes(&ht->p);
	uint32_t wide = ht->expert_major ? 1 : ht->p.topk;

	for (uint64_t j = 0; j < n; j++) {
		const struct oracle_ht_row *row = table->rows + first + j;
		int32_t experts[ORACLE_MAX_TOPK] = { row->expert };
		uint32_t known = 1;

		memset((uint8_t *)rows + j * bytes, ORACLE_UNREAD,
		       bytes); /* which nobody may read */
		if (gradients) {
			memset(gradients + j * wide, ORACLE_UNREAD, wide * 4);
		}
		if (row->kind != ORACLE_HT_ROW) {
			continue;
		}
		oracle_answer(&ht->p, table->rank, row->expert, row->src, row->token,
			      (uint8_t *)rows + j * bytes);
		if (gradients && !ht->expert_major) {
			known = oracle_ht_local(ht, row->src, row->token, table->rank, experts,
						NULL);
		}
		for (uint32_t k = 0; gradients && k < known; k++) {
			gradients[j * wide + k] = oracle_ht_gradient(ht, table->rank, experts[k],
								     row->src, row->token);
		}
	}
}

void oracle_ht_check_sums(const struct oracle_ht *ht, struct oracle_ht_table *const *tables,
			  uint32_t rank, uint32_t first, uint32_t n,
			  const struct oracle_ht_sums *sums, struct oracle_verdict *verdict)
{
	size_t bytes = oracle_combine_bytes(&ht->p);
	uint8_t *want = malloc(bytes);
	float expected[ORACLE_MAX_TOPK];

	for (uint32_t j = 0; want && j < n; j++) {
		const uint8_t *row = (const uint8_t *)sums->rows + j * bytes;
		const float *given = sums->gradients ? sums->gradients + (size_t)j * ht->p.topk
						     : NULL;

		ht_combined(ht, tables, rank, first + j, want);
		check_sum(&ht->p, rank, first + j, row, want, ht->expert_major && ht->drop,
			  verdict);
		if (given) {
			ht_gradients(ht, tables, rank, first + j, expected);
		}
		for (uint32_t k = 0; given && k < ht->p.topk; k++) {
			if (given[k] != expected[k]) {
				blame(verdict,
				      "combine: rank %u, token %u, k %u: gradient %a, not %a", rank,
				      first + j, k, (double)given[k], (double)expected[k]);
			}
		}
	}
	if (!want) {
		blame(verdict, "combine: rank %u: no memory for the check", rank);
	}
	free(want);
}
