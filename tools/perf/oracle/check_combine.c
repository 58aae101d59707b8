/* SPDX-License-Identifier: Apache-2.0 */
/* Compares what a combine returned with the same sum, done here in the order that is promised. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "table.h"

struct sum {           /* buffers of one token's work */
	uint8_t *part; /* one expert's or one rank's answer */
	float *acc;
	uint8_t *want;
};

static void add_part(const struct oracle_problem *problem, struct sum *sum, float weight)
{
	for (uint32_t column = 0; column < problem->hidden; column++) {
		float x = oracle_load(problem->dtype, sum->part, column);

		sum->acc[column] = fmaf(weight, x, sum->acc[column]);
	}
}

/* Ascending k; rank-major: a rank's answer where its first expert stands. */
static void sum_token(const struct oracle_table *table, uint32_t token, struct sum *sum)
{
	const struct oracle_problem *p = table->p;
	const int32_t *ids = table->ids[table->rank] + (size_t)token * p->topk;
	float weights[ORACLE_MAX_TOPK];
	uint32_t parts = 0;

	oracle_weights(p, table->rank, token, weights);
	for (uint32_t column = 0; column < p->hidden; column++) {
		sum->acc[column] = -0.0f; /* which changes no number that is added */
	}
	for (uint32_t k = 0; k < p->topk; k++) {
		uint32_t to = (uint32_t)ids[k] / table->local;
		int by_expert = p->layout == ORACLE_EXPERT_MAJOR;

		if (ids[k] < 0 || oracle_absent(p, to)) {
			continue;
		}
		if (by_expert || oracle_first(ids, k, table->local)) {
			oracle_answer(p, to, by_expert ? ids[k] % (int32_t)table->local : -1,
				      table->rank, token, sum->part);
			add_part(p, sum, by_expert ? weights[k] : 1.0f);
			parts++;
		}
	}
	for (uint32_t column = 0; column < p->hidden; column++) {
		oracle_store(p->dtype, sum->want, column, parts ? sum->acc[column] : 0.0f);
	}
}

static void compare_token(const struct oracle_table *table, uint32_t token, const struct sum *sum,
			  const uint8_t *got, struct oracle_verdict *verdict)
{
	const struct oracle_problem *p = table->p;
	uint32_t first = UINT32_MAX;
	uint32_t differ = 0;

	if (memcmp(got, sum->want, oracle_combine_bytes(p)) == 0) {
		return;
	}
	for (uint32_t column = 0; column < p->hidden; column++) {
		size_t size = oracle_combine_bytes(p) / p->hidden;

		if (memcmp(got + column * size, sum->want + column * size, size) != 0) {
			first = first < column ? first : column;
			differ++;
		}
	}
	oracle_blame(verdict,
		     "combine: rank %u, token %u: %u of %u columns differ, first column %u: %a, "
		     "not %a",
		     table->rank, token, differ, p->hidden, first,
		     (double)oracle_load(p->dtype, got, first),
		     (double)oracle_load(p->dtype, sum->want, first));
}

static int compare_all(const struct oracle_table *table, const struct oracle_mem *mem,
		       const uint8_t *tokens, uint32_t guard_rows, struct sum *sum, uint8_t *got,
		       struct oracle_verdict *verdict)
{
	size_t bytes = oracle_combine_bytes(table->p);
	uint32_t n = table->ntokens[table->rank];

	for (uint32_t token = 0; token < n + guard_rows; token++) {
		if (oracle_fetch(mem, got, tokens + token * bytes, bytes)) {
			return -1;
		}
		if (token < n) {
			sum_token(table, token, sum);
			compare_token(table, token, sum, got, verdict);
		} else if (!oracle_is_poison(got, bytes)) {
			oracle_blame(verdict, "combine: rank %u: row %u, past the end, was written",
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
	};

	if (!got || !s.part || !s.acc || !s.want) {
		oracle_blame(verdict, "combine: rank %u: no memory for the check", table->rank);
	} else if (compare_all(table, mem, tokens, guard_rows, &s, got, verdict)) {
		oracle_blame(verdict, "combine: rank %u: the output could not be read",
			     table->rank);
	}
	free(s.want);
	free(s.acc);
	free(s.part);
	free(got);
}
