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
#define ORACLE_ALL_ROWS UINT32_MAX

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
	ORACLE_QUANT_FORWARD      /* bytes and their fp32 scales go through unchanged */
};

enum oracle_family {
	ORACLE_UNIFORM,
	ORACLE_ZIPF,  /* popularity of the i-th most popular expert: i to the power of -s */
	ORACLE_HOT,   /* a fraction of the tokens has all its experts on one rank */
	ORACLE_KHOT,  /* a fraction of the ids names one of a few experts */
	ORACLE_POWER, /* loads of experts have a power law */
	ORACLE_GROUP, /* experts in G groups, a token uses g of them */
	ORACLE_FILE   /* one line of expert ids per token */
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
	uint32_t hot_ppm; /* hot, khot */
	uint32_t hot_experts;
	uint32_t hot_rank;
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
	uint32_t experts; /* a multiple of nranks */
	uint32_t topk;
	uint32_t hidden;
	uint32_t max_tokens; /* capacity per rank, extent of the outputs */
	uint32_t tokens;     /* per rank in this call */
	int uneven;          /* ranks have between 0 and `tokens` tokens, one has none, one all */
	enum oracle_layout layout;
	enum oracle_dtype dtype; /* tokens and combine; forwarded tokens are bytes */
	enum oracle_quant quant;
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
	const void *tokens; /* expert-major [L][R*B], rank-major [R][B] rows */
	const void *scales;
	const float *weights;  /* [R][B][K], rank-major */
	const int32_t *idx;    /* [R][B][K], rank-major */
	const int32_t *counts; /* [L] or [R]; rank-major: may be NULL */
	uint32_t poison_rows;  /* rows past the counts examined per block, spread out */
	void *combine_in;      /* where the experts' results go, NULL: nowhere */
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

/* routing.c, routing_text.c */
int oracle_routing_parse(const char *text, struct oracle_routing *routing, char *why,
			 size_t why_bytes);
void oracle_routing_free(struct oracle_routing *routing);
/* 0, or -1 with the reason; call after the fields are set and before anything else. */
int oracle_problem_prepare(struct oracle_problem *problem, char *why, size_t why_bytes);
void oracle_problem_free(struct oracle_problem *problem);
int oracle_absent(const struct oracle_problem *problem, uint32_t rank);
/* Is ids[k] >= 0 the token's first expert on its rank? */
int oracle_first(const int32_t *ids, uint32_t k, uint32_t local);
uint32_t oracle_tokens(const struct oracle_problem *problem, uint32_t rank);
void oracle_route(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
		  int32_t *ids);
void oracle_weights(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
		    float *weights);
void oracle_traffic(const struct oracle_problem *problem, uint32_t rank,
		    struct oracle_traffic *traffic);

/* payload.c: sizes of one row in bytes, and rows */
size_t oracle_input_bytes(const struct oracle_problem *problem);
size_t oracle_output_bytes(const struct oracle_problem *problem);
size_t oracle_combine_bytes(const struct oracle_problem *problem);
uint32_t oracle_scale_count(const struct oracle_problem *problem);
void oracle_input_row(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
		      void *row);
void oracle_input_scales(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
			 float *scales);
/* The row as dispatch delivers it; `scales` may be NULL where the problem has none. */
void oracle_output_row(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
		       void *row, float *scales);
void oracle_quantise(const uint16_t *bf16, uint32_t hidden, int pow2, uint8_t *e4m3, float *scales);
/*
 * The experts' work: what `rank` returns for a token, in the problem's dtype. `expert` is one of its own, from 0 on; -1: all
 * of them together.
 */
void oracle_answer(const struct oracle_problem *problem, uint32_t rank, int32_t expert,
		   uint32_t src, uint32_t token, void *row);

/* numbers.c */
float oracle_from_fp16(uint16_t bits);
uint16_t oracle_to_fp16(float value);
float oracle_from_e4m3(uint8_t bits);
uint8_t oracle_to_e4m3(float value); /* nearest even, saturating at 448 */
float oracle_load(enum oracle_dtype dtype, const void *row, size_t column);
void oracle_store(enum oracle_dtype dtype, void *row, size_t column, float value);
void oracle_load_row(enum oracle_dtype dtype, const void *row, float *x, uint32_t n);
void oracle_store_row(enum oracle_dtype dtype, void *row, const float *x, uint32_t n);

/* table.c, check_dispatch.c, check_combine.c */
struct oracle_table *oracle_table_create(const struct oracle_problem *problem, uint32_t rank);
void oracle_table_free(struct oracle_table *table);
void oracle_check_dispatch(const struct oracle_table *table, const struct oracle_mem *mem,
			   const struct oracle_dispatch *out, struct oracle_verdict *verdict);
/* `tokens`: [T] rows and behind them `guard_rows` poisoned rows that must still be so. */
void oracle_check_combine(const struct oracle_table *table, const struct oracle_mem *mem,
			  const void *tokens, uint32_t guard_rows, struct oracle_verdict *verdict);

#endif
