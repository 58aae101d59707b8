/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of high throughput, computed a second time without a line of the library: where each row of
 * a dispatch belongs, on every rank, and what a combine makes of rows that a function gives.
 */
#ifndef TOOLS_PERF_ORACLE_HT_H
#define TOOLS_PERF_ORACLE_HT_H

#include "oracle.h"

struct oracle_ht {
	struct oracle_problem p; /* prepared; its layout is not looked at */
	int expert_major;        /* else flat */
	uint32_t limit;          /* slots or places; 0: none */
	int drop;                /* what is beyond the limit is dropped */
	uint32_t alignment;      /* of zones; 0: 1 */
	const uint32_t *node;    /* [R] which node each rank is of; NULL: all are of one */
};

enum oracle_ht_kind {
	ORACLE_HT_UNTOUCHED, /* nobody writes the row */
	ORACLE_HT_ZERO,
	ORACLE_HT_ROW
};

/* A row of a rank's output. */
struct oracle_ht_row {
	enum oracle_ht_kind kind;
	uint32_t src, token;
	int32_t expert; /* local; flat: -1 */
};

/* One rank's output. */
struct oracle_ht_table {
	uint32_t rank, nlocal;
	uint64_t total;    /* as in recv_total_counter: also rows that are dropped */
	uint64_t slots;    /* rows of tokens that come here, dropped ones too */
	uint64_t count;    /* entries of rows[] */
	int64_t *counters; /* [L] expert_counters */
	int64_t *offsets;  /* [L] expert_offsets; flat: NULL */
	struct oracle_ht_row *rows;
	/* where a token's rows are: see oracle_ht_rows() */
	uint32_t width;
	uint64_t *first; /* [R] entry of the source's first token in slot[] */
	uint32_t *slot;
	uint32_t *at; /* [slots][width] */
};

#define ORACLE_HT_NOWHERE UINT32_MAX

/* NULL: out of memory. */
struct oracle_ht_table *oracle_ht_table_create(const struct oracle_ht *ht, uint32_t rank);
void oracle_ht_table_free(struct oracle_ht_table *table);

/* The largest total of all ranks: a limit that nothing exceeds. */
uint64_t oracle_ht_most(const struct oracle_ht *ht);

/*
 * A token's rows on the table's rank: one (flat), or one for each of its experts there in ascending
 * order; ORACLE_HT_NOWHERE: dropped, or behind the last. Returns how many there are to look at.
 */
uint32_t oracle_ht_rows(const struct oracle_ht_table *table, uint32_t src, uint32_t token,
			const uint32_t **rows);

/*
 * The token's distinct experts on a rank, local and ascending, with their weights (NULL: without); the
 * number.
 */
uint32_t oracle_ht_local(const struct oracle_ht *ht, uint32_t src, uint32_t token, uint32_t rank,
			 int32_t *experts, float *weights);

/* The gradient of the weight of a token's expert, a local one of rank d. */
float oracle_ht_gradient(const struct oracle_ht *ht, uint32_t d, int32_t expert, uint32_t src,
			 uint32_t token);

/*
 * Computes what combine gives for token `token` of `src`: the row as bytes of the problem's dtype. tables[d] is
 * that of rank d.
 */
void oracle_ht_combined(const struct oracle_ht *ht, struct oracle_ht_table *const *tables,
			uint32_t src, uint32_t token, void *row);
/* And for the gradients of its weights: [K]. */
void oracle_ht_gradients(const struct oracle_ht *ht, struct oracle_ht_table *const *tables,
			 uint32_t src, uint32_t token, float *out);

/* oracle_ht_check.c: rows [first, first + n) of a rank's outputs, in host memory from `first` on. */
struct oracle_ht_output {
	const uint8_t *tokens;
	const uint8_t *scales;
	const float *weights; /* NULL: backward */
	const int64_t *idx;   /* flat */
	int64_t id_base;      /* of the numbers in idx */
};

void oracle_ht_check_rows(const struct oracle_ht *ht, const struct oracle_ht_table *table,
			  uint64_t first, uint64_t n, const struct oracle_ht_output *out,
			  struct oracle_verdict *verdict);
void oracle_ht_check_counters(const struct oracle_ht *ht, const struct oracle_ht_table *table,
			      const int64_t *counters, const int64_t *offsets, int64_t total,
			      struct oracle_verdict *verdict);
/* The experts' results and gradients (NULL: none); poison where no token's row is. */
void oracle_ht_work(const struct oracle_ht *ht, const struct oracle_ht_table *table, uint64_t first,
		    uint64_t n, void *rows, float *gradients);
/* The rows that combine returns, and gradients: NULL in the forward pass. */
struct oracle_ht_sums {
	const void *rows;
	const float *gradients;
};

/* Checks `sums` of tokens [first, first + n) of `rank`. */
void oracle_ht_check_sums(const struct oracle_ht *ht, struct oracle_ht_table *const *tables,
			  uint32_t rank, uint32_t first, uint32_t n,
			  const struct oracle_ht_sums *sums, struct oracle_verdict *verdict);

#endif
