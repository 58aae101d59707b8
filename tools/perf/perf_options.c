/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which options there are, what they mean, and what nccl-tests have that is called otherwise here.
 */
#include <string.h>

#include "perf.h"

#define AT(member) offsetof(struct perf_options, member)

/* Letter, name, value, default, help; kind, field, limits, key in the JSON. */
static const struct ep_option table[] = {
	{ 'b', "mintokens", "N", "128", "tokens per rank in the first line", EP_OPTION_NUMBER,
	  AT(min_tokens), 0, PERF_MOST_TOKENS, NULL },
	{ 'e', "maxtokens", "N", "as -b", "tokens per rank in the last line", EP_OPTION_NUMBER,
	  AT(max_tokens), 0, PERF_MOST_TOKENS, NULL },
	{ 'f', "stepfactor", "N", "2", "each line has N times the tokens of the line before",
	  EP_OPTION_NUMBER, AT(step_factor), 2, 1024, NULL },
	{ 'i', "stepincrement", "N", NULL, "each line has N tokens more, in place of -f",
	  EP_OPTION_NUMBER, AT(step_increment), 1, PERF_MOST_TOKENS, NULL },
	{ 'g', "ngpus", "N", "1", "GPUs per thread, with a rank on each", EP_OPTION_NUMBER,
	  AT(gpus), 1, PERF_MAX_LOCAL, NULL },
	{ 't', "nthreads", "N", "1", "threads per process, which has -t times -g ranks",
	  EP_OPTION_NUMBER, AT(threads), 1, PERF_MAX_LOCAL, NULL },
	{ 0, "ranks-per-gpu", "N", "1", "ranks that share a GPU (NCCL 2.30)", EP_OPTION_NUMBER,
	  AT(ranks_per_gpu), 1, PERF_MAX_LOCAL, NULL },
	{ 0, "node-size", "N[,N...]", "by host",
	  "ranks of a node, or of each node; RDMA goes between nodes", EP_OPTION_TEXT,
	  AT(node_size), 0, 0, NULL },
	{ 'n', "iters", "N", "100", "timed iterations", EP_OPTION_NUMBER, AT(iters), 1, 1000000,
	  "iterations" },
	{ 'w', "warmup_iters", "N", "10", "warm-up iterations", EP_OPTION_NUMBER, AT(warmup), 0,
	  1000000, "warmup" },
	{ 0, "chains", "N", "3", "runs of the chain; their median counts", EP_OPTION_NUMBER,
	  AT(chains), 1, 1000, NULL },
	{ 'N', "run_cycles", "N", "1", "runs all sizes N times; 0 for ever", EP_OPTION_NUMBER,
	  AT(cycles), 0, UINT32_MAX, NULL },
	{ 'c', "check", "0|1", "1", "1 compares all results with the oracle", EP_OPTION_NUMBER,
	  AT(check), 0, 1, NULL },
	{ 'G', "cudagraph", "N", "0", "captures operations into CUDA graphs, replayed N times",
	  EP_OPTION_NUMBER, AT(graph), 0, 1000000, "graph_replays" },
	{ 'C', "report_cputime", "0|1", "0", "1 prints the CPU time of calls as p50 and p99",
	  EP_OPTION_NUMBER, AT(report_cpu), 0, 1, NULL },
	{ 'a', "average", "0..3", "3",
	  "whose time counts: rank 0's, the mean, the fastest's, the slowest's", EP_OPTION_NUMBER,
	  AT(average), 0, 3, NULL },
	{ 'T', "timeout", "S", "300", "ends the run after S seconds without progress; 0 never",
	  EP_OPTION_NUMBER, AT(timeout_s), 0, 1000000, NULL },
	{ 0, "progress", "S", "10",
	  "prints the phase of a size every S seconds, on stderr; 0 never", EP_OPTION_NUMBER,
	  AT(progress_s), 0, 1000000, NULL },
	{ 'J', "output_file", "FILE", NULL, "writes the results as JSON", EP_OPTION_TEXT, AT(json),
	  0, 0, NULL },
	{ 'd', "datatype", "bf16|fp16|fp32", "bf16", "the type of tokens", EP_OPTION_CHOICE,
	  AT(problem.dtype), 0, 0, "dtype" },
	{ 'd', "dtype", "bf16|fp16|fp32", NULL, "the same", EP_OPTION_CHOICE, AT(problem.dtype), 0,
	  0, NULL },
	{ 0, "mode", "ll|ht", "ll", "low latency, or high throughput", EP_OPTION_CHOICE, AT(ht), 0,
	  0, "mode" },
	{ 0, "layout", "em|rm|flat", "em", "expert-major, rank-major (ll) or flat (ht)",
	  EP_OPTION_CHOICE, AT(layout), 0, 0, "layout" },
	{ 0, "experts", "N", "256", "experts of all ranks together", EP_OPTION_NUMBER,
	  AT(problem.experts), 1, 1 << 20, "experts" },
	{ 0, "holders", "FIRST:N", "all", "ranks that hold experts", EP_OPTION_TEXT, AT(holders), 0,
	  0, "holders" },
	{ 0, "senders", "FIRST:N", "all", "ranks that bring tokens", EP_OPTION_TEXT, AT(senders), 0,
	  0, "senders" },
	{ 0, "topk", "N", "8", "experts per token", EP_OPTION_NUMBER, AT(problem.topk), 1,
	  ORACLE_MAX_TOPK, "topk" },
	{ 0, "hidden", "N", "7168", "elements of a token", EP_OPTION_NUMBER, AT(problem.hidden), 1,
	  1 << 20, "hidden" },
	{ 0, "quant", "none|fp8|fp8-v1|fwd|mxfp8|nvfp4", "none",
	  "fp8, mxfp8, nvfp4: dispatch quantises; fp8-v1: by the rules of API version 1; fwd: it forwards e4m3 rows and scales",
	  EP_OPTION_CHOICE, AT(problem.quant), 0, 0, "quant" },
	{ 0, "combine-quant", "none|nvfp4|fp8|mxfp8", "none",
	  "rows of combine travel quantised: nvfp4 or fp8 (ll), mxfp8 (ht, em)", EP_OPTION_CHOICE,
	  AT(problem.combine_quant), 0, 0, "combine_quant" },
	{ 0, "pow2-scales", NULL, NULL, "makes fp8 scales powers of two", EP_OPTION_FLAG,
	  AT(problem.pow2_scales), 0, 0, "pow2_scales" },
	{ 0, "routing", "HOW", "uniform",
	  "the workload: uniform, zipf:s, power:a, khot:n,f, hot:f[,rank], ragged:f, empty:n, rotate:f, burst:f,n, curve:n, group:G,g or file:NAME",
	  EP_OPTION_TEXT, AT(routing), 0, 0, "routing" },
	{ 0, "steps", "N", "as --routing", "steps with ids of their own, in turns",
	  EP_OPTION_NUMBER, AT(steps), 1, ORACLE_MAX_STEPS, "steps" },
	{ 0, "drop", "P", "0", "the probability that a top-k entry is unused", EP_OPTION_REAL,
	  AT(drop), 0, 1, "drop" },
	{ 0, "uneven", NULL, NULL, "gives each rank 0 to N tokens", EP_OPTION_FLAG,
	  AT(problem.uneven), 0, 0, "uneven" },
	{ 0, "seed", "N", "1", "the seed of routing and payload", EP_OPTION_NUMBER, AT(seed), 0,
	  UINT32_MAX, "seed" },
	{ 0, "ids", "32|64", "64", "the width of expert ids", EP_OPTION_CHOICE, AT(ids64), 0, 0,
	  "id_bits" },
	{ 0, "sms", "N", "auto", "max_num_sms of the group", EP_OPTION_NUMBER, AT(sms), 1, 100000,
	  "sms" },
	{ 0, "dispatch-sms", "N", "as --sms", "dispatch_num_sms of the group", EP_OPTION_NUMBER,
	  AT(dispatch_sms), 1, 100000, "dispatch_sms" },
	{ 0, "combine-sms", "N", "as --sms", "combine_num_sms of the group", EP_OPTION_NUMBER,
	  AT(combine_sms), 1, 100000, "combine_sms" },
	{ 0, "staged", NULL, NULL, "two halves: send_only, then ncclEpComplete", EP_OPTION_FLAG,
	  AT(staged), 0, 0, "staged" },
	{ 0, "mask", NULL, NULL, "sets enable_mask of the group", EP_OPTION_FLAG, AT(mask), 0, 0,
	  "mask" },
	{ 0, "windows", NULL, NULL,
	  "puts received rows and scales into NCCL windows; with flat, peers store straight there",
	  EP_OPTION_FLAG, AT(windows), 0, 0, "windows" },
	{ 0, "capacity", "N", "as -e", "max_dispatch_tokens_per_rank", EP_OPTION_NUMBER,
	  AT(capacity), 1, PERF_MOST_TOKENS, "capacity" },
	{ 0, "recv", "N", "enough", "max_recv_tokens_per_rank (ht)", EP_OPTION_NUMBER, AT(recv), 1,
	  INT32_MAX, NULL },
	{ 0, "align", "N", "1", "aligns each expert's rows (ht, em)", EP_OPTION_NUMBER,
	  AT(zone_alignment), 1, 1 << 20, "zone_alignment" },
	{ 0, "eager", NULL, NULL, "sets max_recv_tokens_per_rank to AUTO (ht)", EP_OPTION_FLAG,
	  AT(eager), 0, 0, "eager" },
	{ 0, "overflow", "trap|drop", "trap", "what happens to rows beyond --recv (ht)",
	  EP_OPTION_CHOICE, AT(overflow_drop), 0, 0, "overflow" },
	{ 0, "backward", NULL, NULL,
	  "the backward pass: dispatch without weights, combine with their gradients (ht)",
	  EP_OPTION_FLAG, AT(backward), 0, 0, "backward" },
	{ 0, "floor-gbs", "X", "326", "the bandwidth of a GPU's links, for fl%", EP_OPTION_REAL,
	  AT(floor_gbs), 0.001, 1e6, "floor_gbs" },
	{ 0, "memory-gbs", "X", "4290", "the bandwidth of a GPU's memory, for fl% (ht)",
	  EP_OPTION_REAL, AT(memory_gbs), 0.001, 1e6, "memory_gbs" },
	{ 0, "no-align", NULL, NULL, "no operation that aligns ranks before each timed one",
	  EP_OPTION_OFF, AT(align), 0, 0, "aligned" },
	{ 0, "no-kernel-times", NULL, NULL, "does without CUPTI and kernel times", EP_OPTION_OFF,
	  AT(kernel_times), 0, 0, NULL },
	{ 0, "rendezvous", "PLACE", NULL, "where processes meet: HOST:PORT or file:NAME",
	  EP_OPTION_TEXT, AT(rendezvous), 0, 0, NULL },
	{ 0, "version", NULL, NULL, "prints its release and which library runs", EP_OPTION_VERSION,
	  0, 0, 0, NULL },
	{ 'h', "help", NULL, NULL, "prints this text", EP_OPTION_HELP, 0, 0, 0, NULL },
};

static const struct {
	char letter; /* 0: it means something here */
	const char *name, *instead;
} nccl_tests[] = {
	{ 0, "minbytes", "sizes are tokens per rank: --mintokens (-b)" },
	{ 0, "maxbytes", "sizes are tokens per rank: --maxtokens (-e)" },
	{ 0, "stepbytes", "sizes are tokens per rank: --stepincrement (-i)" },
	{ 'm', "agg_iters",
	  "operations are not aggregated; -n and --chains set how many there are" },
	{ 'p', "parallel_init", "ranks always start in parallel" },
	{ 'o', "op", "combine adds up, there is no other operation" },
	{ 'r', "root", "no operation has a root" },
	{ 'z', "blocking", "p50 and p99 are of operations one by one, period is of a chain" },
	{ 'y', "stream_null", "streams are always created" },
	{ 'S', "report_timestamps", "lines have no timestamps" },
	{ 'R', "local_register", "the library allocates what peers write to" },
	{ 'x', "cta_policy", "--sms limits the SMs" },
	{ 'D', "device_implementation", "NCCL_EP_RDMA_MODE chooses who posts RDMA" },
	{ 'V', "device_cta_count", "--sms limits the SMs" },
	{ 'M', "memory", "the line 'Set-up' has the memory of the library" },
	{ 0, "memory_report", "the line 'Set-up' has the memory of the library" },
	{ 'I', "init_ids", "ranks always start with one id" },
	{ 'u', "unalign", "storage is 16-byte aligned" },
	{ 'O', "out_of_place", "operations are always out of place" },
};

/*
 * Returns what ep_perf has in place of an option of nccl-tests, given as on the command line; NULL:
 * no such.
 */
static const char *instead(const char *argument)
{
	int is_long = !strncmp(argument, "--", 2);
	size_t bytes = is_long ? strcspn(argument + 2, "=") : 0;

	for (size_t i = 0; i < sizeof(nccl_tests) / sizeof(nccl_tests[0]); i++) {
		const char *name = nccl_tests[i].name;

		if (is_long ? strlen(name) == bytes && !strncmp(argument + 2, name, bytes)
			    : nccl_tests[i].letter && argument[1] == nccl_tests[i].letter) {
			return nccl_tests[i].instead;
		}
	}
	return NULL;
}

const struct ep_options perf_option_table = {
	.tool = "ep_perf",
	.row = table,
	.n = sizeof(table) / sizeof(table[0]),
	.instead = instead,
};
