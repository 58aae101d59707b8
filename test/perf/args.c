// SPDX-License-Identifier: Apache-2.0
/* The command line. Letters mean what they mean in nccl-tests; sizes are tokens per rank. */
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"

enum {
	OPT_MODE = 256,
	OPT_LAYOUT,
	OPT_EXPERTS,
	OPT_TOPK,
	OPT_HIDDEN,
	OPT_QUANT,
	OPT_POW2,
	OPT_ROUTING,
	OPT_DROP,
	OPT_SEED,
	OPT_SMS,
	OPT_RANKS_PER_GPU,
	OPT_IDS,
	OPT_STAGED,
	OPT_MASK,
	OPT_UNEVEN,
	OPT_CAPACITY,
	OPT_CHAINS,
	OPT_FLOOR,
	OPT_RENDEZVOUS,
	OPT_NO_ALIGN,
	OPT_NO_KERNEL,
	OPT_NODE_SIZE
};

static const struct option long_options[] = {
	{ "mintokens", required_argument, NULL, 'b' },
	{ "maxtokens", required_argument, NULL, 'e' },
	{ "stepfactor", required_argument, NULL, 'f' },
	{ "stepincrement", required_argument, NULL, 'i' },
	{ "ngpus", required_argument, NULL, 'g' },
	{ "nthreads", required_argument, NULL, 't' },
	{ "iters", required_argument, NULL, 'n' },
	{ "warmup_iters", required_argument, NULL, 'w' },
	{ "run_cycles", required_argument, NULL, 'N' },
	{ "check", required_argument, NULL, 'c' },
	{ "cudagraph", required_argument, NULL, 'G' },
	{ "report_cputime", required_argument, NULL, 'C' },
	{ "average", required_argument, NULL, 'a' },
	{ "timeout", required_argument, NULL, 'T' },
	{ "output_file", required_argument, NULL, 'J' },
	{ "datatype", required_argument, NULL, 'd' },
	{ "dtype", required_argument, NULL, 'd' },
	{ "help", no_argument, NULL, 'h' },
	{ "mode", required_argument, NULL, OPT_MODE },
	{ "layout", required_argument, NULL, OPT_LAYOUT },
	{ "experts", required_argument, NULL, OPT_EXPERTS },
	{ "topk", required_argument, NULL, OPT_TOPK },
	{ "hidden", required_argument, NULL, OPT_HIDDEN },
	{ "quant", required_argument, NULL, OPT_QUANT },
	{ "pow2-scales", no_argument, NULL, OPT_POW2 },
	{ "routing", required_argument, NULL, OPT_ROUTING },
	{ "drop", required_argument, NULL, OPT_DROP },
	{ "seed", required_argument, NULL, OPT_SEED },
	{ "sms", required_argument, NULL, OPT_SMS },
	{ "ranks-per-gpu", required_argument, NULL, OPT_RANKS_PER_GPU },
	{ "ids", required_argument, NULL, OPT_IDS },
	{ "staged", no_argument, NULL, OPT_STAGED },
	{ "mask", no_argument, NULL, OPT_MASK },
	{ "uneven", no_argument, NULL, OPT_UNEVEN },
	{ "capacity", required_argument, NULL, OPT_CAPACITY },
	{ "chains", required_argument, NULL, OPT_CHAINS },
	{ "floor-gbs", required_argument, NULL, OPT_FLOOR },
	{ "rendezvous", required_argument, NULL, OPT_RENDEZVOUS },
	{ "no-align", no_argument, NULL, OPT_NO_ALIGN },
	{ "no-kernel-times", no_argument, NULL, OPT_NO_KERNEL },
	{ "node-size", required_argument, NULL, OPT_NODE_SIZE },
	{ NULL, 0, NULL, 0 },
};

static void usage(FILE *to)
{
	fputs("usage: ep_perf [options]      sizes are tokens per rank\n"
	      "  -b -e -f|-i N  ladder: from, to, factor or increment       128, as -b, 2\n"
	      "  -g N           GPUs (ranks) per thread                     1\n"
	      "  -t N           threads per process; ranks are -t times -g  1\n"
	      "  --ranks-per-gpu N   ranks that share a GPU (NCCL 2.30)     1\n"
	      "  -n N, -w N     timed and warm-up iterations                100, 10\n"
	      "  -N N           run the ladder N times, 0: for ever         1\n"
	      "  -c 0|1         check all results against the oracle        1\n"
	      "  -G N           capture into CUDA graphs, replay N times    0\n"
	      "  -C 0|1         report CPU time of the calls                0\n"
	      "  -a 0..3        over ranks: rank 0, mean, fastest, slowest  3\n"
	      "  -T S           give up after S seconds without progress    300, 0: never\n"
	      "  -J FILE        results as JSON\n"
	      "  -d, --dtype bf16|fp16|fp32                                 bf16\n"
	      "  --mode ll|ht --layout em|rm                                ll em\n"
	      "  --experts N --topk N --hidden N                            256 8 7168\n"
	      "  --quant none|fp8|fp8-v1|fwd                                none\n"
	      "      fp8: dispatch quantises; fp8-v1: the same by the rules of API version 1;\n"
	      "      fwd: e4m3 rows and their scales are forwarded\n"
	      "  --pow2-scales  fp8 scales are powers of two\n"
	      "  --routing uniform|zipf:s|hot:f[,rank]|group:G,g|file:NAME  uniform\n"
	      "  --drop P       probability of an unused top-k entry        0\n"
	      "  --uneven       ranks have 0 to N tokens\n"
	      "  --seed N       of routing and payload                      1\n"
	      "  --ids 32|64    width of expert ids                         64\n"
	      "  --sms N        max_num_sms of the group                    auto\n"
	      "  --staged       send_only and ncclEpComplete\n"
	      "  --mask         enable_mask\n"
	      "  --node-size N|N,N,...   ranks of a node, RDMA between nodes  by host\n"
	      "  --capacity N   max_dispatch_tokens_per_rank                as -e\n"
	      "  --chains N     runs of the chain, the median counts        3\n"
	      "  --floor-gbs X  a GPU's bandwidth, for the byte floor       326\n"
	      "  --no-align     no aligning operation before each timed one\n"
	      "  --no-kernel-times   do not use CUPTI\n"
	      "  --rendezvous HOST:PORT|file:NAME   where processes meet\n"
	      "Processes: started by mpirun, torchrun, srun or vcrun, each is one of the run.\n"
	      "They meet at --rendezvous, else at MASTER_ADDR:MASTER_PORT, else (one host) through\n"
	      "a file in TMPDIR. NCCL_NVLS_ENABLE=0 is set unless the environment has it.\n"
	      "On the virtual cluster -n 5 -w 1 --chains 1 are the defaults, and times mean little.\n"
	      "Exit status: 0 all right, 1 wrong results, 2 usage, 3 failure or timeout,\n"
	      "77 nothing was measured (all of it unsupported).\n",
	      to);
}

static int bad(const char *option, const char *text, const char *want)
{
	fprintf(stderr, "ep_perf: %s '%s': %s\n", option, text, want);
	return -1;
}

static int parse_number(const char *option, const char *text, uint64_t low, uint64_t high,
			uint32_t *value)
{
	char want[96];
	char *end;
	unsigned long long number;

	errno = 0;
	number = strtoull(text, &end, 0);
	if (end != text && (*end == 'K' || *end == 'k')) {
		number *= 1024;
		end++;
	}
	if (errno || end == text || *end || number < low || number > high || text[0] == '-') {
		snprintf(want, sizeof(want), "a number from %llu to %llu is wanted",
			 (unsigned long long)low, (unsigned long long)high);
		return bad(option, text, want);
	}
	*value = (uint32_t)number;
	return 0;
}

static int parse_choice(const char *option, const char *text, const char *const *names, int *value)
{
	char want[96] = "use one of";

	for (int i = 0; names[i]; i++) {
		if (!strcmp(text, names[i])) {
			*value = i;
			return 0;
		}
		strncat(want, " ", sizeof(want) - strlen(want) - 1);
		strncat(want, names[i], sizeof(want) - strlen(want) - 1);
	}
	return bad(option, text, want);
}

static int parse_real(const char *option, const char *text, double low, double high, double *value)
{
	char want[96];
	char *end;

	*value = strtod(text, &end);
	if (end == text || *end || !(*value >= low && *value <= high)) {
		snprintf(want, sizeof(want), "a number from %g to %g is wanted", low, high);
		return bad(option, text, want);
	}
	return 0;
}

static const struct number_option {
	int letter;
	const char *name;
	uint32_t low, high;
	size_t at; /* of the uint32_t in struct perf_options */
} number_options[] = {
	{ 'b', "-b", 0, 65535, offsetof(struct perf_options, min_tokens) },
	{ 'e', "-e", 0, 65535, offsetof(struct perf_options, max_tokens) },
	{ 'f', "-f", 2, 1024, offsetof(struct perf_options, step_factor) },
	{ 'i', "-i", 1, 65535, offsetof(struct perf_options, step_increment) },
	{ 'g', "-g", 1, PERF_MAX_LOCAL, offsetof(struct perf_options, gpus) },
	{ 't', "-t", 1, PERF_MAX_LOCAL, offsetof(struct perf_options, threads) },
	{ 'n', "-n", 1, 1000000, offsetof(struct perf_options, iters) },
	{ 'w', "-w", 0, 1000000, offsetof(struct perf_options, warmup) },
	{ 'N', "-N", 0, UINT32_MAX, offsetof(struct perf_options, cycles) },
	{ 'c', "-c", 0, 1, offsetof(struct perf_options, check) },
	{ 'G', "-G", 0, 1000000, offsetof(struct perf_options, graph) },
	{ 'C', "-C", 0, 1, offsetof(struct perf_options, report_cpu) },
	{ 'a', "-a", 0, 3, offsetof(struct perf_options, average) },
	{ 'T', "-T", 0, 1000000, offsetof(struct perf_options, timeout_s) },
	{ OPT_RANKS_PER_GPU, "--ranks-per-gpu", 1, PERF_MAX_LOCAL,
	  offsetof(struct perf_options, ranks_per_gpu) },
	{ OPT_SMS, "--sms", 1, 100000, offsetof(struct perf_options, sms) },
	{ OPT_CAPACITY, "--capacity", 1, 65535, offsetof(struct perf_options, capacity) },
	{ OPT_CHAINS, "--chains", 1, 1000, offsetof(struct perf_options, chains) },
	{ OPT_EXPERTS, "--experts", 1, 1 << 20, offsetof(struct perf_options, problem.experts) },
	{ OPT_TOPK, "--topk", 1, ORACLE_MAX_TOPK, offsetof(struct perf_options, problem.topk) },
	{ OPT_HIDDEN, "--hidden", 1, 1 << 20, offsetof(struct perf_options, problem.hidden) },
};

static int parse_problem_option(int letter, const char *text, struct perf_options *opt)
{
	static const char *const layouts[] = { "em", "rm", NULL };
	static const char *const dtypes[] = { "bf16", "fp16", "fp32", NULL };
	static const char *const quants[] = { "none", "fp8", "fp8-v1", "fwd", NULL };
	struct oracle_problem *p = &opt->problem;
	double real;
	uint32_t number;
	int choice;
	char why[200];

	switch (letter) {
	case OPT_LAYOUT:
		if (parse_choice("--layout", text, layouts, &choice)) {
			return -1;
		}
		p->layout = choice ? ORACLE_RANK_MAJOR : ORACLE_EXPERT_MAJOR;
		return 0;
	case 'd':
		return parse_choice("--dtype", text, dtypes, (int *)&p->dtype);
	case OPT_QUANT:
		return parse_choice("--quant", text, quants, (int *)&p->quant);
	case OPT_POW2:
		p->pow2_scales = 1;
		return 0;
	case OPT_UNEVEN:
		p->uneven = 1;
		return 0;
	case OPT_SEED:
		if (parse_number("--seed", text, 0, UINT32_MAX, &number)) {
			return -1;
		}
		p->seed = number;
		return 0;
	case OPT_DROP:
		if (parse_real("--drop", text, 0, 1, &real)) {
			return -1;
		}
		p->drop_ppm = (uint32_t)(real * 1e6 + 0.5);
		return 0;
	default: /* OPT_ROUTING */
		oracle_routing_free(&p->routing);
		if (oracle_routing_parse(text, &p->routing, why, sizeof(why))) {
			fprintf(stderr, "ep_perf: %s\n", why);
			return -1;
		}
		return 0;
	}
}

static int parse_option(int letter, const char *text, struct perf_options *opt)
{
	static const char *const modes[] = { "ll", "ht", NULL };
	static const char *const widths[] = { "32", "64", NULL };

	for (size_t i = 0; i < sizeof(number_options) / sizeof(number_options[0]); i++) {
		const struct number_option *o = number_options + i;

		if (o->letter == letter) {
			return parse_number(o->name, text, o->low, o->high,
					    (uint32_t *)((char *)opt + o->at));
		}
	}
	switch (letter) {
	case 'J':
		opt->json = text;
		return 0;
	case OPT_MODE:
		return parse_choice("--mode", text, modes, &opt->ht);
	case OPT_IDS:
		return parse_choice("--ids", text, widths, &opt->ids64);
	case OPT_FLOOR:
		return parse_real("--floor-gbs", text, 0.001, 1e6, &opt->floor_gbs);
	case OPT_RENDEZVOUS:
		opt->rendezvous = text;
		return 0;
	case OPT_NODE_SIZE:
		opt->node_size = text;
		return 0;
	case OPT_STAGED:
		opt->staged = 1;
		return 0;
	case OPT_MASK:
		opt->mask = 1;
		return 0;
	case OPT_NO_ALIGN:
		opt->align = 0;
		return 0;
	case OPT_NO_KERNEL:
		opt->kernel_times = 0;
		return 0;
	default:
		return parse_problem_option(letter, text, opt);
	}
}

static int finish(struct perf_options *opt, int have_max)
{
	char text[32];

	if (!have_max) {
		opt->max_tokens = opt->min_tokens;
	}
	if (opt->max_tokens < opt->min_tokens) {
		snprintf(text, sizeof(text), "%u", opt->max_tokens);
		return bad("-e", text, "it is below -b");
	}
	if (opt->capacity == 0) {
		opt->capacity = opt->max_tokens ? opt->max_tokens : 1;
	}
	if (opt->capacity < opt->max_tokens) {
		snprintf(text, sizeof(text), "%u", opt->capacity);
		return bad("--capacity", text, "it is below -e");
	}
	if (opt->gpus * opt->threads > PERF_MAX_LOCAL) {
		snprintf(text, sizeof(text), "%u", opt->gpus * opt->threads);
		return bad("-t times -g", text, "at most 16 ranks per process");
	}
	if (opt->gpus * opt->threads % opt->ranks_per_gpu) {
		snprintf(text, sizeof(text), "%u", opt->ranks_per_gpu);
		return bad("--ranks-per-gpu", text, "-t times -g is no multiple of it");
	}
	opt->problem.tokens = opt->max_tokens;
	opt->problem.max_tokens = opt->capacity;
	return 0;
}

int perf_args_parse(int argc, char **argv, struct perf_options *opt)
{
	int letter;
	int have_max = 0;
	char why[64];

	memset(opt, 0, sizeof(*opt));
	opt->min_tokens = 128;
	opt->step_factor = 2;
	opt->gpus = opt->threads = opt->ranks_per_gpu = opt->cycles = 1;
	opt->is_virtual = dlsym(RTLD_DEFAULT, "ep_simt_register") != NULL; /* its executor */
	opt->iters = opt->is_virtual ? 5 : 100;
	opt->warmup = opt->is_virtual ? 1 : 10;
	opt->chains = opt->is_virtual ? 1 : 3;
	opt->timeout_s = 300;
	opt->check = opt->ids64 = opt->align = opt->kernel_times = 1;
	opt->average = PERF_MAX;
	opt->floor_gbs = 326;
	opt->problem.seed = 1;
	opt->problem.experts = 256;
	opt->problem.topk = 8;
	opt->problem.hidden = 7168;
	opt->problem.layout = ORACLE_EXPERT_MAJOR;
	oracle_routing_parse("uniform", &opt->problem.routing, why, sizeof(why));
	while ((letter = getopt_long(argc, argv, "b:e:f:i:g:t:n:w:N:c:G:C:a:T:J:d:h", long_options,
				     NULL)) != -1) {
		if (letter == 'h') {
			usage(stdout);
			return 1;
		}
		if (letter == '?' || parse_option(letter, optarg, opt)) {
			fputs("Try 'ep_perf -h'.\n", stderr);
			return 3;
		}
		have_max |= letter == 'e';
	}
	if (optind < argc) {
		fprintf(stderr, "ep_perf: '%s' is not an option. Try 'ep_perf -h'.\n",
			argv[optind]);
		return 3;
	}
	return finish(opt, have_max) ? 3 : 0;
}
