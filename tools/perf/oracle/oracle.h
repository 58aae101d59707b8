/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Results of dispatch and combine, computed a second time without a line of the library.
 *
 * Everything is a pure function of struct oracle_problem: any rank can regenerate the inputs of
 * any other rank, so the expected result of a collective is computed without communication.
 * Inputs come from a counter-based generator in integers only; routing uses no floating point
 * at all, so every machine agrees on it. Payload words depend on (seed, rank, token, column):
 * a byte in the wrong place shows.
 *
 * Checks read the outputs through struct oracle_mem, since they may lie in device memory. They
 * count what is wrong and describe the first mistakes in words.
 */
#ifndef TOOLS_PERF_ORACLE_ORACLE_H
#define TOOLS_PERF_ORACLE_ORACLE_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define ORACLE_MAX_TOPK 32
#define ORACLE_MAX_RANKS 1024
#define ORACLE_BLOCK 128 /* channels that share a scale */
#define ORACLE_MAX_FP8_HIDDEN 65536
#define ORACLE_POISON 0xa5 /* outputs are filled with it before the operation */
#define ORACLE_UNREAD 0xff /* fills inputs that nobody may read: NaN in every format */
#define ORACLE_MAX_STEPS 64

enum oracle_layout {
	ORACLE_EXPERT_MAJOR = 1,
	ORACLE_RANK_MAJOR = 2
};
enum oracle_dtype {
	ORACLE_BF16,
	ORACLE_FP16,
	ORACLE_FP32
};

enum oracle_quant {
	ORACLE_QUANT_NONE,
	ORACLE_QUANT_FP8,         /* e4m3 and one fp32 scale per 128 channels, scales in rows */
	ORACLE_QUANT_FP8_COLUMNS, /* the same, scales in columns: [block][row] */
	ORACLE_QUANT_FORWARD,     /* bytes and their fp32 scales go through unchanged */
	ORACLE_QUANT_MXFP8,       /* e4m3 and one E8M0 scale per 32 channels */
	ORACLE_QUANT_NVFP4        /* e2m1 and one e4m3 scale per 16 channels */
};

/* How rows return. */
enum oracle_combine_quant {
	ORACLE_COMBINE_NONE,
	ORACLE_COMBINE_NVFP4, /* low latency: with a scale for each row */
	ORACLE_COMBINE_FP8,   /* low latency */
	ORACLE_COMBINE_MXFP8  /* high throughput, expert-major: sums of a rank */
};

/* Numbers that share a scale. */
enum oracle_format {
	ORACLE_FP8,      /* 128 e4m3, an fp32 scale */
	ORACLE_FP8_POW2, /* the same, scales are powers of two */
	ORACLE_MXFP8,    /* 32 e4m3, an E8M0 scale */
	ORACLE_NVFP4     /* 16 e2m1, an e4m3 scale, and an fp32 scale for many groups */
};

/* Named workloads; routing.c has the table of them. */
enum oracle_family {
	ORACLE_UNIFORM,
	ORACLE_ZIPF,   /* popularity of the i-th most popular expert: i to the power of -s */
	ORACLE_HOT,    /* a fraction of the tokens has all its experts on one rank */
	ORACLE_KHOT,   /* a fraction of the ids names one of a few experts */
	ORACLE_POWER,  /* loads of experts have a power law */
	ORACLE_GROUP,  /* experts in G groups, a token uses g of them */
	ORACLE_FILE,   /* one line of expert ids per token */
	ORACLE_RAGGED, /* ranks have fewer tokens the higher their number */
	ORACLE_EMPTY,  /* the last ranks have no tokens, and their experts get none */
	ORACLE_ROTATE, /* as hot, on another rank in each step */
	ORACLE_BURST,  /* uniform, but as hot in every n-th step */
	ORACLE_CURVE   /* as hot, with fractions from 0 to 1 */
};

/* Where a line was read, and how many ids it had. */
struct oracle_line {
	uint32_t number;
	uint32_t ids;
};

struct oracle_routing {
	enum oracle_family family;
	uint64_t zipf_exponent; /* in 1/2^32 */
	uint32_t power_ppm;
	uint32_t hot_ppm; /* hot, khot, rotate, burst, curve; ragged: what the last rank has */
	uint32_t hot_experts;
	uint32_t hot_rank;
	/* empty: ranks; burst: steps from one to the next; curve: lines behind the first */
	uint32_t count;
	uint32_t groups;
	uint32_t groups_used;
	int32_t *lines; /* file: [nlines][ORACLE_MAX_TOPK], short lines filled with -1 */
	uint32_t nlines;
	/* of each; NULL: a program has made them up, and knows what it does */
	struct oracle_line *read;
	char *file;
	char text[96];
};

struct oracle_problem {
	uint64_t seed;
	uint32_t nranks;
	/* Ranks that hold experts, and that bring tokens; a number of 0: all ranks. */
	uint32_t first_holder, holders;
	uint32_t first_sender, senders;
	uint32_t experts; /* a multiple of those that hold some */
	uint32_t topk;
	uint32_t hidden;
	uint32_t max_tokens; /* capacity per rank, extent of the outputs */
	uint32_t tokens;     /* per rank in this call */
	uint32_t step;       /* ids may differ from step to step, tokens and weights do not */
	int uneven;          /* ranks have between 0 and `tokens` tokens, one has none, one all */
	enum oracle_layout layout;
	enum oracle_dtype dtype; /* tokens and combine; forwarded tokens are bytes */
	enum oracle_quant quant;
	enum oracle_combine_quant combine_quant;
	int pow2_scales;
	int global_ids;         /* rank-major topk_idx holds global expert ids */
	uint32_t drop_ppm;      /* probability of an unused entry (-1) */
	uint32_t duplicate_ppm; /* probability that an entry repeats the one before */
	uint64_t absent;        /* bit r: rank r is masked, it sends and receives nothing */
	uint32_t absent_rank;   /* another one that is, of any number; 0: none */
	struct oracle_routing routing;
	uint64_t *popular_sum; /* set by oracle_problem_prepare */
	uint32_t *popular_expert;
};

/* NULL functions: plain memory. A non-zero return ends the check with that mistake counted. */
struct oracle_mem {
	int (*read)(void *context, void *to, const void *from, size_t bytes);
	int (*write)(void *context, void *to, const void *from, size_t bytes);
	void *context;
};

/* Mistakes that were found. `text` describes the first ones, one line each. */
struct oracle_verdict {
	uint64_t wrong;
	uint32_t lines;
	char text[1024];
};

/* Outputs of one dispatch on one rank; all as the call received them. */
struct oracle_dispatch {
	/* expert-major [L][S*B], rank-major [S][B] rows, of S that bring some */
	const void *tokens;
	const void *scales;
	const float *weights;  /* [S][B][K], rank-major */
	const int32_t *idx;    /* [S][B][K], rank-major */
	const int32_t *counts; /* [L] or [S]; rank-major: may be NULL */
	uint32_t poison_rows;  /* rows past the counts examined per block, spread out */
	void *combine_in;      /* where the experts' results go, NULL: nowhere */
	float *combine_scales; /* and their scales, one for each row, if they have such */
};

/* Bytes that must move, per rank, by what is counted. */
struct oracle_traffic {
	uint64_t tokens;      /* of this rank */
	uint64_t rank_copies; /* distinct (token, rank) */
	uint64_t rank_copies_remote;
	uint64_t expert_copies; /* (token, k) with an expert */
	uint64_t expert_copies_remote;
	uint64_t rank_copies_in; /* remote ones that arrive here */
	uint64_t expert_copies_in;
};

/* Routing of all ranks, and an index of the rows that this rank must receive. */
struct oracle_table;

/* In the header for speed: a check makes billions of these. */
/* The finaliser of splitmix64 over a Weyl sequence. */
static inline uint64_t oracle_hash(uint64_t key, uint64_t counter)
{
	uint64_t x = key + (counter + 1) * UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	return x ^ (x >> 31);
}

static inline uint32_t oracle_float_bits(float value)
{
	uint32_t bits;

	memcpy(&bits, &value, sizeof(bits));
	return bits;
}

static inline float oracle_bits_float(uint32_t bits)
{
	float value;

	memcpy(&value, &bits, sizeof(value));
	return value;
}

static inline float oracle_from_bf16(uint16_t bits)
{
	return oracle_bits_float((uint32_t)bits << 16);
}

static inline uint16_t oracle_to_bf16(float value)
{
	uint32_t bits = oracle_float_bits(value);

	if ((bits & 0x7fffffffu) > 0x7f800000u) {
		return (uint16_t)(bits >> 16 | 0x40u);
	}
	return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

/* ---- routing.c ---- */

int oracle_routing_parse(const char *text, struct oracle_routing *routing, char *why,
			 size_t why_bytes);
void oracle_routing_free(struct oracle_routing *routing);
/* Steps after which a workload begins again, at most ORACLE_MAX_STEPS; 1: all are alike. */
uint32_t oracle_steps(const struct oracle_problem *problem);
/* 0, or -1 with the reason; call after the fields are set and before anything else. */
int oracle_problem_prepare(struct oracle_problem *problem, char *why, size_t why_bytes);
void oracle_problem_free(struct oracle_problem *problem);
int oracle_absent(const struct oracle_problem *problem, uint32_t rank);
/* How many ranks bring tokens. */
uint32_t oracle_senders(const struct oracle_problem *problem);
/*
 * Experts of a rank that holds some; of that rank; the first of its experts; and the rank of an
 * expert.
 */
uint32_t oracle_local(const struct oracle_problem *problem);
uint32_t oracle_held(const struct oracle_problem *problem, uint32_t rank);
uint32_t oracle_first_expert(const struct oracle_problem *problem, uint32_t rank);
uint32_t oracle_holder(const struct oracle_problem *problem, uint32_t expert);
/* Is ids[k] >= 0 the token's first expert on its rank? */
int oracle_first(const int32_t *ids, uint32_t k, uint32_t local);
uint32_t oracle_tokens(const struct oracle_problem *problem, uint32_t rank);
void oracle_route(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
		  int32_t *ids);
void oracle_weights(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
		    float *weights);
void oracle_traffic(const struct oracle_problem *problem, uint32_t rank,
		    struct oracle_traffic *traffic);

/* ---- payload.c: sizes of one row, and rows ---- */

size_t oracle_input_bytes(const struct oracle_problem *problem);
size_t oracle_output_bytes(const struct oracle_problem *problem);
size_t oracle_combine_bytes(const struct oracle_problem *problem);
/* A row of combine on its way, with its scales. */
size_t oracle_return_bytes(const struct oracle_problem *problem);
uint32_t oracle_scale_words(const struct oracle_problem *problem); /* of 4 bytes */
void oracle_input_row(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
		      void *row);
void oracle_input_scales(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
			 float *scales);
/* NVFP4: the scale that `rank` passes for all its tokens. */
float oracle_global_scale(const struct oracle_problem *problem, uint32_t rank);
/* The row as dispatch delivers it; `scales` may be NULL where the problem has none. */
void oracle_output_row(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
		       void *row, void *scales);
/*
 * The experts' work: what `rank` returns for a token, in the problem's dtype. `expert` is one of
 * its own, from 0 on; -1: all of them together.
 */
void oracle_answer(const struct oracle_problem *problem, uint32_t rank, int32_t expert,
		   uint32_t src, uint32_t token, void *row);
/* The format in which answers return, and NVFP4's scale for one. */
enum oracle_format oracle_combine_format(const struct oracle_problem *problem);
float oracle_answer_scale(const struct oracle_problem *problem, const void *row);

/* ---- numbers.c ---- */

float oracle_from_fp16(uint16_t bits);
uint16_t oracle_to_fp16(float value);
float oracle_from_e4m3(uint8_t bits);
uint8_t oracle_to_e4m3(float value); /* nearest even, saturating at 448 */
float oracle_from_e2m1(uint8_t bits);
uint8_t oracle_to_e2m1(float value); /* nearest even, saturating at 6; NaN is 6 */
uint32_t oracle_group(enum oracle_format format);
/* Bytes of n numbers, and of their scales. */
size_t oracle_format_bytes(enum oracle_format format, uint32_t n);
size_t oracle_format_scale_bytes(enum oracle_format format, uint32_t n);
/* Of n numbers, whole groups; `global` is NVFP4's. */
void oracle_quantise(enum oracle_format format, const float *x, uint32_t n, float global, void *row,
		     void *scales);
void oracle_dequantise(enum oracle_format format, const void *row, const void *scales, uint32_t n,
		       float global, double *x);
float oracle_load(enum oracle_dtype dtype, const void *row, size_t column);
void oracle_store(enum oracle_dtype dtype, void *row, size_t column, float value);
void oracle_load_row(enum oracle_dtype dtype, const void *row, float *x, uint32_t n);
void oracle_store_row(enum oracle_dtype dtype, void *row, const float *x, uint32_t n);

/* ---- judge.c: low latency ---- */

struct oracle_table *oracle_table_create(const struct oracle_problem *problem, uint32_t rank);
void oracle_table_free(struct oracle_table *table);
void oracle_check_dispatch(const struct oracle_table *table, const struct oracle_mem *mem,
			   const struct oracle_dispatch *out, struct oracle_verdict *verdict);
/* `tokens`: [T] rows and behind them `guard_rows` poisoned rows that must still be so. */
void oracle_check_combine(const struct oracle_table *table, const struct oracle_mem *mem,
			  const void *tokens, uint32_t guard_rows, struct oracle_verdict *verdict);

/* ---- high throughput: where rows of a dispatch belong, and what a combine makes of them ---- */

struct oracle_ht {
	struct oracle_problem p; /* prepared; its layout is not looked at */
	int expert_major;        /* else flat */
	uint32_t limit;          /* slots or places; 0: none */
	int drop;                /* what is beyond the limit is dropped */
	/* flat: ids and weights of rows that do not come are -1 and 0 up to the limit */
	int filled;
	uint32_t alignment;   /* of zones; 0: 1 */
	const uint32_t *node; /* [R] which node each rank is of; NULL: all are of one */
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
 * The token's distinct experts on a rank, local and ascending, with their weights (NULL: without);
 * the number.
 */
uint32_t oracle_ht_local(const struct oracle_ht *ht, uint32_t src, uint32_t token, uint32_t rank,
			 int32_t *experts, float *weights);

/* The gradient of the weight of a token's expert, a local one of rank d. */
float oracle_ht_gradient(const struct oracle_ht *ht, uint32_t d, int32_t expert, uint32_t src,
			 uint32_t token);

/* Rows [first, first + n) of a rank's outputs, in host memory from `first` on. */
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
