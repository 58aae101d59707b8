/* SPDX-License-Identifier: Apache-2.0 */
/* Which options there are, what they mean, and what nccl-tests have that is called otherwise here. */
#include <string.h>

#include "args.h"
#include "perf.h"

#define AT(member) offsetof(struct perf_options, member)

const struct perf_option perf_option_table[PERF_NOPTIONS] = {
	{ 'b', "mintokens", "N", "128", "tokens per rank: from this", 0, PERF_MOST_TOKENS,
	  AT(min_tokens) },
	{ 'e', "maxtokens", "N", "as -b", "to this", 0, PERF_MOST_TOKENS, AT(max_tokens) },
	{ 'f', "stepfactor", "N", "2", "each size is so many times the one before", 2, 1024,
	  AT(step_factor) },
	{ 'i', "stepincrement", "N", "", "or so much more", 1, PERF_MOST_TOKENS,
	  AT(step_increment) },
	{ 'g', "ngpus", "N", "1", "GPUs (ranks) per thread", 1, PERF_MAX_LOCAL, AT(gpus) },
	{ 't', "nthreads", "N", "1", "threads per process; it has -t times -g ranks", 1,
	  PERF_MAX_LOCAL, AT(threads) },
	{ OPT_RANKS_PER_GPU, "ranks-per-gpu", "N", "1", "ranks that share a GPU (NCCL 2.30)", 1,
	  PERF_MAX_LOCAL, AT(ranks_per_gpu) },
	{ OPT_NODE_SIZE, "node-size", "N[,N...]", "by host",
	  "ranks of a node, RDMA between nodes; a list: of each", 0, 0, 0 },
	{ 'n', "iters", "N", "100", "timed iterations", 1, 1000000, AT(iters) },
	{ 'w', "warmup_iters", "N", "10", "warm-up iterations", 0, 1000000, AT(warmup) },
	{ OPT_CHAINS, "chains", "N", "3", "runs of the chain, the median counts", 1, 1000,
	  AT(chains) },
	{ 'N', "run_cycles", "N", "1", "run all sizes N times, 0: for ever", 0, UINT32_MAX,
	  AT(cycles) },
	{ 'c', "check", "0|1", "1", "check all results against the oracle", 0, 1, AT(check) },
	{ 'G', "cudagraph", "N", "0", "capture into CUDA graphs, replay N times", 0, 1000000,
	  AT(graph) },
	{ 'C', "report_cputime", "0|1", "0", "report CPU time of the calls", 0, 1, AT(report_cpu) },
	{ 'a', "average", "0..3", "3", "over ranks: rank 0, mean, fastest, slowest", 0, 3,
	  AT(average) },
	{ 'T', "timeout", "S", "300", "give up after S seconds without progress, 0: never", 0,
	  1000000, AT(timeout_s) },
	{ OPT_PROGRESS, "progress", "S", "10",
	  "every S seconds print on stderr what a size is at, 0: never", 0, 1000000,
	  AT(progress_s) },
	{ 'J', "output_file", "FILE", "", "results as JSON", 0, 0, 0 },
	{ 'd', "datatype", "TYPE", "bf16", "bf16, fp16 or fp32", 0, 0, 0 },
	{ 'd', "dtype", "TYPE", "", "the same", 0, 0, 0 },
	{ OPT_MODE, "mode", "ll|ht", "ll", "low latency, or high throughput", 0, 0, 0 },
	{ OPT_LAYOUT, "layout", "em|rm|flat", "em", "expert-major, rank-major (ll) or flat (ht)", 0,
	  0, 0 },
	{ OPT_EXPERTS, "experts", "N", "256", "of all ranks together", 1, 1 << 20,
	  AT(problem.experts) },
	{ OPT_TOPK, "topk", "N", "8", "experts per token", 1, ORACLE_MAX_TOPK, AT(problem.topk) },
	{ OPT_HIDDEN, "hidden", "N", "7168", "elements of a token", 1, 1 << 20,
	  AT(problem.hidden) },
	{ OPT_QUANT, "quant", "HOW", "none",
	  "fp8: dispatch quantises; fp8-v1: by the rules of API version 1; fwd: e4m3 rows and "
	  "their scales are forwarded; none",
	  0, 0, 0 },
	{ OPT_POW2, "pow2-scales", NULL, "", "fp8 scales are powers of two", 0, 0, 0 },
	{ OPT_ROUTING, "routing", "HOW", "uniform",
	  "uniform, zipf:s, power:a, khot:n,f, hot:f[,rank], group:G,g or file:NAME", 0, 0, 0 },
	{ OPT_DROP, "drop", "P", "0", "probability of an unused top-k entry", 0, 0, 0 },
	{ OPT_UNEVEN, "uneven", NULL, "", "ranks have 0 to N tokens", 0, 0, 0 },
	{ OPT_SEED, "seed", "N", "1", "of routing and payload", 0, 0, 0 },
	{ OPT_IDS, "ids", "32|64", "64", "width of expert ids", 0, 0, 0 },
	{ OPT_SMS, "sms", "N", "auto", "max_num_sms of the group", 1, 100000, AT(sms) },
	{ OPT_STAGED, "staged", NULL, "", "send_only and ncclEpComplete", 0, 0, 0 },
	{ OPT_MASK, "mask", NULL, "", "enable_mask", 0, 0, 0 },
	{ OPT_WINDOWS, "windows", NULL, "",
	  "received rows and scales are in NCCL windows; ht, flat: peers store there", 0, 0, 0 },
	{ OPT_CAPACITY, "capacity", "N", "as -e", "max_dispatch_tokens_per_rank", 1,
	  PERF_MOST_TOKENS, AT(capacity) },
	{ OPT_RECV, "recv", "N", "enough", "max_recv_tokens_per_rank (ht)", 1, INT32_MAX,
	  AT(recv) },
	{ OPT_ZONES, "align", "N", "1", "alignment of an expert's rows (ht, em)", 1, 1 << 20,
	  AT(zone_alignment) },
	{ OPT_EAGER, "eager", NULL, "", "max_recv_tokens_per_rank AUTO (ht)", 0, 0, 0 },
	{ OPT_OVERFLOW, "overflow", "trap|drop", "trap", "of rows beyond --recv (ht)", 0, 0, 0 },
	{ OPT_BACKWARD, "backward", NULL, "",
	  "the backward pass: dispatch without weights, combine "
	  "with their gradients (ht)",
	  0, 0, 0 },
	{ OPT_FLOOR, "floor-gbs", "X", "326", "a GPU's bandwidth over links, for fl%", 0, 0, 0 },
	{ OPT_MEMORY, "memory-gbs", "X", "4290", "and of its memory (ht)", 0, 0, 0 },
	{ OPT_NO_ALIGN, "no-align", NULL, "", "no aligning operation before each timed one", 0, 0,
	  0 },
	{ OPT_NO_KERNEL, "no-kernel-times", NULL, "", "do not use CUPTI", 0, 0, 0 },
	{ OPT_RENDEZVOUS, "rendezvous", "PLACE", "", "HOST:PORT or file:NAME where processes meet",
	  0, 0, 0 },
	{ OPT_VERSION, "version", NULL, "",
	  "the release it is of, and which library runs, then end", 0, 0, 0 },
};

/* "-b, --mintokens N   tokens per rank: from this   [128]"; help that is too long goes on below. */
static void print_option(FILE *to, const struct perf_option *option)
{
	char left[48];
	const char *help = option->help;
	char letter[8] = "    ";
	int width = 58;

	if (option->id < 256) {
		snprintf(letter, sizeof(letter), "-%c, ", option->id);
	}
	snprintf(left, sizeof(left), "%s--%s%s%s", letter, option->name, option->arg ? " " : "",
		 option->arg ? option->arg : "");
	fprintf(to, "  %-26s ", left);
	while ((int)strlen(help) > width) {
		int cut = width;

		while (help[cut] != ' ') {
			cut--;
		}
		fprintf(to, "%.*s\n%29s", cut, help, "");
		help += cut + 1;
	}
	fprintf(to, "%s%s%s%s\n", help, *option->initial ? " [" : "", option->initial,
		*option->initial ? "]" : "");
}

void perf_args_usage(FILE *to)
{
	fputs("usage: ep_perf [options]      sizes are tokens per rank; defaults in brackets\n",
	      to);
	for (int i = 0; i < PERF_NOPTIONS; i++) {
		print_option(to, &perf_option_table[i]);
	}
	fputs("  -h, --help                 this text\n"
	      "Processes: started by mpirun, torchrun, srun or vcrun, each is one of the run.\n"
	      "They meet at --rendezvous, else at MASTER_ADDR:MASTER_PORT, else (one host) through\n"
	      "a file in TMPDIR. NCCL_NVLS_ENABLE=0 is set unless the environment has it.\n"
	      "On the virtual cluster -n 5 -w 1 --chains 1 are the defaults, and times mean little.\n"
	      "Exit status: 0 all right, 1 wrong results, 2 usage, 3 failure or timeout,\n"
	      "77 nothing was measured: there are no windows, or there is not enough memory.\n",
	      to);
}

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

const char *perf_args_instead(const char *argument)
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
