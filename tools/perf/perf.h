/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ep_perf: what nccl-tests are to collectives, for expert-parallel dispatch and combine.
 *
 * One thread per rank; ranks are threads of one process, processes of a launcher, or both. All
 * ranks walk through the same phases and meet in perf_gather, which also carries results.
 */
#ifndef TOOLS_PERF_PERF_H
#define TOOLS_PERF_PERF_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cuda_runtime_api.h>
#include <nccl.h>
#include "nccl_ep.h"
#include "oracle/oracle.h"
#include "tools/options.h"
#include "topo/json.h"

#define PERF_CHECK_BYTES (32u << 20) /* high throughput: of outputs on the host at a time */
#define PERF_MAX_LOCAL 16            /* ranks per process */
#define PERF_SCHEMA_VERSION 2
#define PERF_MOST_TOKENS (1 << 24) /* of a rank; high throughput */
#define PERF_MOST_TOKENS_LL 65535

enum perf_average {
	PERF_RANK0,
	PERF_MEAN,
	PERF_MIN,
	PERF_MAX
};
enum perf_op {
	PERF_UPDATE, /* high throughput; low latency's is of the host alone */
	PERF_DISPATCH,
	PERF_COMBINE,
	PERF_OPS
};

struct perf_options {
	uint32_t min_tokens;
	uint32_t max_tokens;
	uint32_t step_factor;
	uint32_t step_increment; /* non-zero: instead of the factor */
	uint32_t capacity;       /* tokens per rank that the group is made for */
	uint32_t gpus;           /* per thread */
	uint32_t threads;
	uint32_t ranks_per_gpu;
	uint32_t iters;
	uint32_t warmup;
	uint32_t chains;
	uint32_t cycles;
	uint32_t graph;      /* replays, 0: no graphs */
	uint32_t timeout_s;  /* without progress, 0: never */
	uint32_t progress_s; /* between lines about a size that takes long, 0: none */
	uint32_t check;
	uint32_t report_cpu;
	uint32_t average; /* enum perf_average */
	int is_virtual;   /* no GPU: the virtual cluster */
	int ht;
	int ids64;
	int staged;
	int mask;
	int windows; /* received rows are in NCCL windows */
	int flat;
	int backward;
	int eager;         /* max_recv_tokens_per_rank AUTO */
	int overflow_drop; /* rows beyond it are dropped */
	uint32_t recv;     /* max_recv_tokens_per_rank; 0: enough */
	uint32_t zone_alignment;
	int align;
	int kernel_times;
	uint32_t sms;          /* of each rank, 0: the library's choice */
	uint32_t dispatch_sms; /* this and the next: 0: as sms */
	uint32_t combine_sms;
	double floor_gbs;  /* of a GPU's links */
	double memory_gbs; /* of its memory */
	const char *json;
	const char *routing;
	/* whose ids differ, one after the other; never 0 once the ranks are known */
	uint32_t steps;
	uint32_t seed;
	double drop;
	int layout;     /* em, rm, flat */
	char **command; /* the whole command line, NULL at its end */
	const char *rendezvous;
	const char *node_size;
	const char *holders, *senders; /* FIRST:N; NULL: all ranks */
	struct oracle_problem problem; /* of the largest token count */
};

/* The processes and threads of the run. */
struct perf_world {
	const char *launcher;
	uint32_t nprocs, proc, local_proc;
	uint32_t nlocal; /* ranks in this process */
	uint32_t nranks;
	uint32_t timeout_s;
	int *fds; /* process 0: one per process; others: [0] leads to process 0 */
	pthread_barrier_t barrier;
	unsigned char *mine, *all;
	size_t room;
};

struct perf_place { /* where a rank runs */
	char host[64];
	char bus[32];
	char device_name[64];
	int pid;
	int device;
	int sms;
};

struct perf_buffers { /* device memory */
	void *in_tokens, *in_scales, *ids, *weights;
	void *out_tokens, *out_scales, *out_weights, *out_idx, *counts;
	void *combine_in, *combine_scales, *combine_out;
	void *align_counts;
	/* high throughput */
	void *offsets, *total, *in_gradients, *out_gradients;
	ncclWindow_t tokens_window, scales_window, combine_window;
	size_t out_tokens_bytes, out_scales_bytes, routing_elements, combine_in_bytes;
	size_t in_bytes, step_bytes; /* step_bytes: of one step's ids */
	void *host;                  /* staging for uploads, in_bytes */
	uint8_t *chunk;              /* high throughput: pinned, for checks */
	uint64_t rows; /* high throughput: of the tensors with received rows, at most */
};

struct perf_tensor {
	ncclEpTensor_t t;
	size_t sizes[3];
};

/* Arguments of the calls, ready to be passed. */
struct perf_calls {
	struct perf_tensor in_tokens, in_scales, ids, weights;
	struct perf_tensor out_tokens, out_scales, out_weights, out_idx, counts;
	struct perf_tensor combine_in, combine_scales, combine_out;
	struct perf_tensor align_tokens, align_ids, align_weights, align_scales, align_counts;
	struct perf_tensor offsets, total, in_gradients, out_gradients; /* high throughput */
	ncclEpDispatchInputs_t dispatch_in, align_in;
	ncclEpDispatchOutputs_t dispatch_out;
	ncclEpLayoutInfo_t layout, align_layout;
	ncclEpDispatchConfig_t dispatch_config, align_config;
	ncclEpCombineInputs_t combine_inputs;
	ncclEpCombineOutputs_t combine_outputs;
	ncclEpCombineConfig_t combine_config;
	ncclEpCombineInputs_t align_combine_in; /* high throughput */
	ncclEpCombineOutputs_t align_combine_out;
};

struct perf_samples { /* of each iteration, over ranks; NULL: nobody wants them */
	float *most, *least;
};

struct perf_op_row { /* microseconds, GB/s; NAN: not measured */
	double kernel;
	double p50, p90, p99, p999, most; /* p999: NAN if there are not enough iterations */
	struct perf_samples samples, kernel_samples;
	double fastest; /* median of the fastest rank */
	double algbw, busbw;
	double floor; /* microseconds that the bytes take */
	double floor_percent;
};

enum perf_clock {
	PERF_CLOCK_SM,
	PERF_CLOCK_MEMORY,
	PERF_CLOCKS
};

/* For the JSON alone; process 0's first rank has it. */
struct perf_detail {
	double *waits;        /* [R][R] microseconds per dispatch of the chain; NULL: unknown */
	uint64_t *expert_ids; /* [experts] how many ids name each; NULL: no JSON */
	uint64_t digest;      /* of all ranks' expert ids */
	double step_load[ORACLE_MAX_STEPS];
	uint32_t mhz_least[PERF_CLOCKS], mhz_most[PERF_CLOCKS]; /* over ranks; 0: unknown */
};

struct perf_row {
	uint32_t tokens;
	char routing[96];
	char unsupported[200]; /* "": measured */
	bool refused;          /* by the library, and not for want of memory or windows */
	double copies;         /* distinct ranks per token */
	/* rows that the busiest rank receives, over the mean of ranks; mean of steps */
	double load;
	double load_cv; /* of the ranks' received rows */
	double period;
	/* call: how long the host was in each, and nothing else */
	struct perf_op_row op[PERF_OPS], call[PERF_OPS];
	int blocks; /* largest grid seen, 0: unknown */
	int checked;
	uint64_t wrong;
	struct perf_detail detail;
};

struct perf_setup { /* one rank's costs before the first operation */
	double group_ms, handle_ms;
	double group_cpu_ms; /* of the process while its ranks made the group, divided by them */
	double library_mib;
};

enum perf_link {
	PERF_LINK_GPU, /* GPUs write each other's memory */
	PERF_LINK_RDMA,
	PERF_LINKS
};

struct perf_links { /* dispatched rows, all ranks together */
	int known;
	uint64_t bytes[PERF_LINKS];
	uint32_t pairs[PERF_LINKS]; /* of ranks, one way */
};

struct perf;

struct perf_rank {
	struct perf *perf;
	pthread_t thread;
	uint32_t local, rank;
	struct perf_place place;
	cudaStream_t stream;
	ncclComm_t comm;
	ncclEpGroup_t group;
	ncclEpHandle_t handle, align;
	struct perf_buffers buf;
	struct perf_calls calls;
	struct perf_setup setup;
	struct oracle_problem problem;   /* of the current token count */
	struct oracle_ht ht;             /* the same for high throughput */
	struct oracle_ht_table **tables; /* [nranks]; without a check this rank's alone */
	uint32_t tokens;                 /* this rank's */
	uint32_t node[ORACLE_MAX_RANKS]; /* of each rank */
	uint32_t near_ranks;             /* of the largest node */
	uint32_t remote_ranks;           /* the most that a rank has */
	char failure[200];               /* why this configuration cannot run */
	bool refused;                    /* by the library */
	char complaint[1024];            /* what the oracle found */
	/* watched by the watchdog */
	_Atomic(const char *) phase;
	_Atomic(uint64_t) phase_ns;
};

struct perf {
	struct perf_options opt;
	struct perf_world world;
	struct perf_rank ranks[PERF_MAX_LOCAL];
	struct perf_place *places; /* [nranks] */
	int kernel_times;
	const char *no_kernel_times; /* why */
	struct ep_json json;         /* its file is NULL: none is written */
	uint32_t nrows;
	uint32_t nodes; /* 0: the library does not report them */
	uint32_t node_ranks[ORACLE_MAX_RANKS];
	/* the size that process 0's first rank is at, since when, and when a line named it */
	_Atomic(uint32_t) size;
	_Atomic(uint64_t) size_ns; /* 0: at none */
	_Atomic(uint64_t) progress_ns;
	/* process 0's first rank adds up */
	uint64_t wrong;
	uint32_t measured, unsupported, refused;
	double busbw_sum;
	bool unwritten; /* of the table or the JSON */
};

extern const struct ep_options perf_option_table; /* without `complain` */

/* ---- args.c: returns 0, or the exit status + 1 ---- */

int perf_args_parse(int argc, char **argv, struct perf_options *opt);

/* ---- world.c ---- */

int perf_is_first_process(void);
/*
 * "ep_perf: ..." on stderr, of a mistake that all processes of the run make: the others leave the
 * line to the first and print theirs only if they are still there some seconds later.
 */
__attribute__((format(printf, 1, 2))) void perf_complain(const char *format, ...);
int perf_world_detect(struct perf_world *world, const struct perf_options *opt);
int perf_world_connect(struct perf_world *world, const struct perf_options *opt);
void perf_world_close(struct perf_world *world);
/* All ranks: out[r] = in of rank r, `bytes` each. Returns when all have come. */
void perf_gather(struct perf_rank *rank, const void *in, size_t bytes, void *out);
void perf_barrier(struct perf_rank *rank);

/* ---- rendezvous.c ---- */

#define PERF_RENDEZVOUS_FORMS "HOST:PORT, with a port from 1 to 65535, or file:NAME"
bool perf_rendezvous_known(const char *address);
/* Connects the processes of a run. Returns 0, or -1 and has said why. */
int perf_rendezvous_open(struct perf_world *world, const struct perf_options *opt);
/*
 * Gives each process world->mine of all processes, in world->all; of each rank so many bytes.
 * Returns -1 if a process is gone or silent.
 */
int perf_rendezvous_exchange(struct perf_world *world, size_t bytes);

/* ---- rank.c ---- */

/* Exit statuses. */
enum {
	EXIT_WRONG = 1,
	EXIT_USAGE = 2,
	EXIT_BROKEN = 3,
	EXIT_NOTHING = 77
};

uint64_t perf_now_ns(void);
/* The library's text for the last error; NULL: there is none. */
const char *perf_last_error(const struct perf_rank *rank);
/* Ends the program if an operation has failed: what it left behind shows nothing. */
void perf_expect_no_failure(struct perf_rank *rank);
void perf_phase(struct perf_rank *rank, const char *phase);
__attribute__((noreturn, format(printf, 2, 3))) void perf_die(struct perf_rank *rank,
							      const char *format, ...);

void *perf_alloc(struct perf_rank *rank, size_t count, size_t bytes); /* zeroed, never NULL */

#define PERF_CUDA(r, call)                                                                         \
	do {                                                                                       \
		cudaError_t perf_error = (call);                                                   \
		if (perf_error != cudaSuccess) {                                                   \
			perf_die(r, "%s: %s", #call, cudaGetErrorString(perf_error));              \
		}                                                                                  \
	} while (0)

#define PERF_NCCL(r, call)                                                                         \
	do {                                                                                       \
		ncclResult_t perf_result = (call);                                                 \
		if (perf_result != ncclSuccess) {                                                  \
			perf_die(r, "%s: %s", #call, ncclGetErrorString(perf_result));             \
		}                                                                                  \
	} while (0)

/* ---- buffers.c: returns -1 with rank->failure where the configuration cannot be had ---- */

int perf_refuse(struct perf_rank *rank, const char *call, ncclResult_t result);
int perf_group_open(struct perf_rank *rank);
void perf_group_close(struct perf_rank *rank);
int perf_buffers_alloc(struct perf_rank *rank);
void perf_buffers_free(struct perf_rank *rank);
void perf_buffers_poison(struct perf_rank *rank);
void perf_buffers_upload(struct perf_rank *rank);
/* High throughput: makes the expected results, after a change of rank->problem. */
void perf_ht_load(struct perf_rank *rank);
size_t perf_blocks(const struct oracle_problem *p, uint32_t rank);
ncclDataType_t perf_float_type(enum oracle_dtype dtype);
ncclEpTensor_t *perf_tensor(struct perf_tensor *tensor, ncclDataType_t type, void *data,
			    unsigned int ndim, size_t n0, size_t n1, size_t n2);

/* ---- account.c ---- */

/*
 * Learns which ranks reach each other by RDMA, when the group is there. All ranks add up before it
 * goes.
 */
void perf_links_learn(struct perf_rank *rank);
void perf_links_sum(struct perf_rank *rank, struct perf_links *sum);
/* How long ranks wait for each other between the two calls, which all ranks make. */
struct perf_waits {
	int known;
	uint64_t *ns, *operations; /* [R] */
};
void perf_waits_begin(struct perf_rank *rank, struct perf_waits *waits);
/*
 * Per dispatch, [R][R] with a row for each rank that waits; NULL: the library does not report it.
 */
double *perf_waits_end(struct perf_rank *rank, struct perf_waits *waits);

/* Returns the driver's version; "" where there is none. */
const char *perf_driver_version(void);

/* All ranks call these, with -J only. */
void perf_detail_routing(struct perf_rank *rank, struct perf_detail *detail);
void perf_detail_clocks(struct perf_rank *rank, struct perf_detail *detail);
void perf_row_free(struct perf_row *row);
/* Computes rates and floors, once the times are there. */
void perf_account(struct perf_rank *rank, struct perf_row *row);

/* ---- calls.c ---- */

void perf_calls_prepare(struct perf_rank *rank);
/* The problem is that of this seed and step from now on, and calls take the first ids. */
void perf_set_problem(struct perf_rank *rank, uint64_t seed, uint32_t step);
/* The operations that follow take the ids of this iteration's step. */
void perf_step(struct perf_rank *rank, uint32_t iteration);
ncclResult_t perf_update(struct perf_rank *rank);
ncclResult_t perf_dispatch(struct perf_rank *rank);
ncclResult_t perf_combine(struct perf_rank *rank);
ncclResult_t perf_align_update(struct perf_rank *rank); /* once, before the first perf_align */
ncclResult_t perf_align(struct perf_rank *rank);
static inline enum perf_op perf_first_op(const struct perf_options *opt)
{
	return opt->ht ? PERF_UPDATE : PERF_DISPATCH;
}
ncclResult_t perf_operate(struct perf_rank *rank, enum perf_op op);
typedef ncclResult_t (*perf_enqueue_fn)(struct perf_rank *rank, void *context);
cudaGraphExec_t perf_capture(struct perf_rank *rank, perf_enqueue_fn enqueue, void *context);

/* ---- check.c: what was wrong ---- */

/* Graphs of the two halves of a round: the experts' work, on the host, lies between them. */
struct perf_halves {
	cudaGraphExec_t graph[PERF_OPS]; /* NULL: none, the calls are made */
};
void perf_halves_capture(struct perf_rank *rank, struct perf_halves *halves);
void perf_halves_free(struct perf_rank *rank, struct perf_halves *halves);
/* A whole round on fresh data and poisoned outputs. */
uint64_t perf_check_round(struct perf_rank *rank, const struct perf_halves *halves, uint64_t seed,
			  uint32_t step);
/* What the last dispatch of the chain has left. */
uint64_t perf_check_left(struct perf_rank *rank);

/* ---- run.c ---- */

/* The lines that the routing has for each size. */
uint32_t perf_lines(const struct perf_options *opt);
void perf_run(struct perf_rank *rank, uint32_t tokens, uint32_t line, struct perf_row *row);

/* ---- timing.c ---- */

struct perf_times { /* [iters] each, microseconds */
	float *gpu[PERF_OPS];
	float *host[PERF_OPS];
};
void perf_time_drained(struct perf_rank *rank, struct perf_times *times);
double perf_time_chain(struct perf_rank *rank);
double perf_percentile(float *values, uint32_t count, double percent);

/*
 * ---- cupti.c ----
 *
 * All local ranks call. Repeats perf_time_drained and replaces gpu times by kernel times, or
 * by NAN where there are none; *blocks: the largest grid. open: NULL, or why there are none.
 */
const char *perf_cupti_open(const struct perf_options *opt);
void perf_cupti_time(struct perf_rank *rank, struct perf_times *times, int *blocks);

/* ---- cell.c: `width` columns or more, the first of them a space. NAN: "-" ---- */

#define PERF_CELL 32
void perf_cell_time(char out[PERF_CELL], double value, int width);
void perf_cell_rate(char out[PERF_CELL], double value, int width);
void perf_cell_percent(char out[PERF_CELL], double value, int width);

/* ---- report.c: process 0's first rank ---- */

void perf_report_version(void);
void perf_report_head(struct perf *perf);
void perf_report_row(struct perf *perf, const struct perf_row *row);
bool perf_report_end(struct perf *perf, const struct perf_setup *setup,
		     const struct perf_links *links);
int perf_json_reserve(struct perf *perf);
void perf_json_open(struct perf *perf);
void perf_json_row(struct perf *perf, const struct perf_row *row);
/* False if not all results have been written. */
bool perf_json_close(struct perf *perf, const struct perf_setup *setup,
		     const struct perf_links *links);

#endif
