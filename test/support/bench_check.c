/* SPDX-License-Identifier: Apache-2.0 */
/* Results of a bench against the oracle, and the exact place of every row. */
#include "support/bench.h"

#define GUARD_ROWS 3
#define POISON_ROWS 16

struct placing {
	const uint8_t *tokens; /* as received, or NULL */
	uint8_t *answers;      /* to be written, or NULL */
	uint8_t *row;
	float *scales;
	uint32_t wrong;
};

static bool report(struct bench *b, const struct oracle_verdict *verdict)
{
	ncclResult_t code = ncclSuccess;
	const char *text = "";

	if (!verdict->wrong) {
		return true;
	}
	(void)ncclEpExtGetLastError(b->group, &code, &text);
	check_fail(__FILE__, __LINE__, "%llu wrong, first:\n%s%s%s",
		   (unsigned long long)verdict->wrong, verdict->text,
		   code != ncclSuccess ? "last error: " : "", code != ncclSuccess ? text : "");
	return false;
}

bool bench_check_dispatch(struct bench *b)
{
	struct oracle_verdict verdict = { 0 };
	struct oracle_dispatch out = { .poison_rows = POISON_ROWS };
	bool by_rank = b->p.layout == ORACLE_RANK_MAJOR;
	void *tokens = tensor_fetch(&b->out_tokens);
	void *counts = tensor_fetch(&b->counts);
	void *scales = b->p.quant == ORACLE_QUANT_NONE ? NULL : tensor_fetch(&b->out_scales);
	void *weights = by_rank ? tensor_fetch(&b->out_weights) : NULL;
	void *idx = by_rank ? tensor_fetch(&b->out_idx) : NULL;
	uint8_t *answers = malloc(b->combine_in.bytes);
	bool good;

	NEED(answers);
	memset(answers, ORACLE_UNREAD, b->combine_in.bytes);
	out.tokens = tokens;
	out.counts = by_rank && (b->flags & BENCH_NO_COUNTS) ? NULL : counts;
	out.scales = scales;
	out.weights = weights;
	out.idx = idx;
	out.combine_in = answers;
	oracle_check_dispatch(b->table, NULL, &out, &verdict);
	good = report(b, &verdict);
	NEED_CUDA(cudaMemcpy(b->combine_in.t.data, answers, b->combine_in.bytes,
			     cudaMemcpyHostToDevice));
	free(answers);
	free(idx);
	free(weights);
	free(scales);
	free(counts);
	free(tokens);
	return bench_check_places(b) && good;
}

bool bench_touched(struct bench *b)
{
	unsigned char *rows = malloc(b->out_tokens.bytes);
	bool found = false;

	NEED(rows);
	NEED_CUDA(cudaMemcpyAsync(rows, b->out_tokens.t.data, b->out_tokens.bytes,
				  cudaMemcpyDeviceToHost, b->w->stream));
	NEED_CUDA(cudaStreamSynchronize(b->w->stream));
	for (size_t i = 0; i < b->out_tokens.bytes; i++) {
		found |= rows[i] != ORACLE_POISON;
	}
	free(rows);
	return found;
}

bool bench_check_combine(struct bench *b)
{
	struct oracle_verdict verdict = { 0 };
	void *tokens = tensor_fetch(&b->combine_out);

	oracle_check_combine(b->table, NULL, tokens, GUARD_ROWS, &verdict);
	free(tokens);
	return report(b, &verdict);
}

void bench_places(struct bench *b, bench_visit_fn visit, void *context)
{
	const struct oracle_problem *p = &b->p;
	uint32_t local = p->experts / p->nranks;
	uint32_t *next = calloc(b->blocks, sizeof(*next));
	int32_t ids[ORACLE_MAX_TOPK];

	NEED(next);
	for (uint32_t src = 0; src < p->nranks; src++) {
		for (uint32_t t = 0, n = oracle_tokens(p, src); t < n; t++) {
			bool seen = false;

			oracle_route(p, src, t, ids);
			for (uint32_t k = 0; k < p->topk; k++) {
				uint32_t block = src;

				if (ids[k] < 0 ||
				    (uint32_t)ids[k] / local != (uint32_t)b->w->rank ||
				    oracle_absent(p, (uint32_t)b->w->rank)) {
					continue;
				}
				if (p->layout == ORACLE_EXPERT_MAJOR) {
					block = (uint32_t)ids[k] % local;
				} else if (seen) {
					continue;
				}
				seen = true;
				visit(b, block, next[block]++, src, t, ids, context);
			}
		}
	}
	free(next);
}

/* The row is at its place, and what the experts make of it goes to the same place. */
static void place_row(struct bench *b, uint32_t block, uint32_t row, uint32_t src, uint32_t token,
		      const int32_t *ids, void *context)
{
	const struct oracle_problem *p = &b->p;
	struct placing *c = context;
	size_t at = (size_t)block * b->rows + row;
	uint32_t local = p->experts / p->nranks;
	int32_t local_ids[ORACLE_MAX_TOPK];
	float weights[ORACLE_MAX_TOPK];
	size_t bytes = oracle_output_bytes(p);

	b->due++;
	oracle_output_row(p, src, token, c->row, c->scales);
	if (c->tokens && memcmp(c->tokens + at * bytes, c->row, bytes) != 0 && c->wrong++ == 0) {
		check_fail(__FILE__, __LINE__,
			   "rank %d, block %u, row %u is not token %u of rank %u: the order is not "
			   "(rank, token, k)",
			   b->w->rank, block, row, token, src);
	}
	if (!c->answers) {
		return;
	}
	c->answers += at * oracle_combine_bytes(p);
	if (p->layout == ORACLE_EXPERT_MAJOR) {
		oracle_expert_row(p, (uint32_t)b->w->rank * local + block, c->row, c->scales,
				  c->answers);
	} else {
		oracle_weights(p, src, token, weights);
		for (uint32_t k = 0; k < p->topk; k++) {
			bool here = ids[k] >= 0 && (uint32_t)ids[k] / local == (uint32_t)b->w->rank;

			local_ids[k] = here ? ids[k] % (int32_t)local : -1;
		}
		oracle_rank_row(p, (uint32_t)b->w->rank, local_ids, weights, c->row, c->scales,
				c->answers);
	}
	c->answers -= at * oracle_combine_bytes(p);
}

static bool walk(struct bench *b, const uint8_t *tokens, uint8_t *answers)
{
	struct placing c = { .tokens = tokens, .answers = answers };

	c.row = malloc(oracle_output_bytes(&b->p));
	c.scales = calloc(oracle_scale_count(&b->p) + 1, sizeof(*c.scales));
	NEED(c.row && c.scales);
	b->due = 0;
	bench_places(b, place_row, &c);
	free(c.scales);
	free(c.row);
	return c.wrong == 0;
}

bool bench_check_places(struct bench *b)
{
	uint8_t *tokens = tensor_fetch(&b->out_tokens);
	bool good = walk(b, tokens, NULL);

	free(tokens);
	return good;
}

void bench_expert_work(struct bench *b)
{
	uint8_t *answers = malloc(b->combine_in.bytes);

	NEED(answers);
	memset(answers, ORACLE_UNREAD, b->combine_in.bytes);
	walk(b, NULL, answers);
	NEED_CUDA(cudaMemcpy(b->combine_in.t.data, answers, b->combine_in.bytes,
			     cudaMemcpyHostToDevice));
	free(answers);
}
