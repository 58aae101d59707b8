/* SPDX-License-Identifier: Apache-2.0 */
/* The command line. Letters mean what they mean in nccl-tests; sizes are tokens per rank. */
#include <dlfcn.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"

static int bad(const char *option, const char *text, const char *want)
{
	perf_complain("%s: got '%s', allowed is %s", option, text, want);
	return -1;
}

/* Numbers with commas between them, as NCCL_EP_NODE_SIZE has them. */
static int check_sizes(const char *text)
{
	const char *at = text;
	char *end;

	for (;; at = end + 1) {
		long size = strtol(at, &end, 10);

		if (end == at || size < 1 || size > ORACLE_MAX_RANKS || (*end && *end != ',')) {
			return bad("--node-size", text, "a number of ranks, or several: N,N,...");
		}
		if (!*end) {
			return 0;
		}
	}
}

/* Some of the ranks; how many there are is known later. NULL: all. */
static int parse_range(const char *option, const char *text, uint32_t *first, uint32_t *count)
{
	if (text && (!ep_options_range(text, first, count) || *count == 0)) {
		return bad(option, text, "the first rank and how many, FIRST:N");
	}
	return 0;
}

/* Options that one mode has and the other has not. */
static int fits_mode(const struct perf_options *opt)
{
	enum oracle_quant quant = opt->problem.quant;
	enum oracle_combine_quant back = opt->problem.combine_quant;
	static const char *const without_pow2[] = {
		[ORACLE_QUANT_NONE] = "--quant none",
		[ORACLE_QUANT_FORWARD] = "--quant fwd",
		[ORACLE_QUANT_MXFP8] = "--quant mxfp8",
		[ORACLE_QUANT_NVFP4] = "--quant nvfp4",
	};
	const struct {
		int given, ht;
		const char *name;
	} special[] = {
		{ opt->staged, 0, "--staged" },
		{ opt->mask, 0, "--mask" },
		{ opt->problem.pow2_scales, 0, "--pow2-scales" },
		{ quant == ORACLE_QUANT_FP8, 0, "--quant fp8" },
		{ quant == ORACLE_QUANT_FP8_COLUMNS, 0, "--quant fp8-v1" },
		{ quant == ORACLE_QUANT_MXFP8, 0, "--quant mxfp8" },
		{ quant == ORACLE_QUANT_NVFP4, 0, "--quant nvfp4" },
		{ back == ORACLE_COMBINE_NVFP4, 0, "--combine-quant nvfp4" },
		{ back == ORACLE_COMBINE_FP8, 0, "--combine-quant fp8" },
		{ back == ORACLE_COMBINE_MXFP8, 1, "--combine-quant mxfp8" },
		{ opt->recv != 0, 1, "--recv" },
		{ opt->zone_alignment != 0, 1, "--align" },
		{ opt->eager, 1, "--eager" },
		{ opt->overflow_drop, 1, "--overflow drop" },
		{ opt->backward, 1, "--backward" },
	};

	for (size_t i = 0; i < sizeof(special) / sizeof(special[0]); i++) {
		if (special[i].given && special[i].ht != opt->ht) {
			perf_complain("%s: got --mode %s, allowed is %s", special[i].name,
				      opt->ht ? "ht" : "ll", opt->ht ? "ll" : "ht");
			return -1;
		}
	}
	if (opt->ht ? opt->problem.layout == ORACLE_RANK_MAJOR : opt->flat) {
		return bad("--layout", opt->flat ? "flat" : "rm",
			   "em rm in --mode ll, em flat in --mode ht");
	}
	if (opt->eager && (opt->graph || opt->recv)) {
		return bad("--eager", opt->graph ? "-G" : "--recv",
			   "neither a graph nor a limit of received rows");
	}
	if (opt->problem.pow2_scales && quant != ORACLE_QUANT_FP8 &&
	    quant != ORACLE_QUANT_FP8_COLUMNS) {
		return bad("--pow2-scales", without_pow2[quant],
			   "--quant fp8 or fp8-v1, whose scales are fp32");
	}
	if (opt->flat && back == ORACLE_COMBINE_MXFP8) {
		return bad("--combine-quant mxfp8", "--layout flat", "--layout em");
	}
	if (opt->flat && opt->zone_alignment) {
		return bad("--align", "--layout flat", "--layout em, which has zones");
	}
	return 0;
}

/* Texts that have a form of their own. */
static int check_texts(struct perf_options *opt)
{
	char why[400];

	if (opt->rendezvous && !perf_rendezvous_known(opt->rendezvous)) {
		return bad("--rendezvous", opt->rendezvous, PERF_RENDEZVOUS_FORMS);
	}
	if (opt->node_size && check_sizes(opt->node_size)) {
		return -1;
	}
	if (parse_range("--holders", opt->holders, &opt->problem.first_holder,
			&opt->problem.holders) ||
	    parse_range("--senders", opt->senders, &opt->problem.first_sender,
			&opt->problem.senders)) {
		return -1;
	}
	if (opt->windows && (opt->holders || opt->senders)) {
		return bad("--windows", opt->holders ? "--holders" : "--senders",
			   "neither: all ranks register windows for received rows");
	}
	if (oracle_routing_parse(opt->routing, &opt->problem.routing, why, sizeof(why))) {
		perf_complain("%s", why);
		return -1;
	}
	return 0;
}

/* Low latency takes fewer tokens. */
static int fits_tokens(const struct perf_options *opt)
{
	const struct {
		uint32_t value;
		const char *name;
	} tokens[] = {
		{ opt->min_tokens, "-b (--mintokens)" },
		{ opt->max_tokens, "-e (--maxtokens)" },
		{ opt->capacity, "--capacity" },
	};
	char text[32], want[96];

	snprintf(want, sizeof(want), "0 to %d in --mode ll, 0 to %d in --mode ht",
		 PERF_MOST_TOKENS_LL, PERF_MOST_TOKENS);
	for (size_t i = 0; !opt->ht && i < sizeof(tokens) / sizeof(tokens[0]); i++) {
		if (tokens[i].value > PERF_MOST_TOKENS_LL) {
			snprintf(text, sizeof(text), "%u", tokens[i].value);
			return bad(tokens[i].name, text, want);
		}
	}
	return 0;
}

static int finish(struct perf_options *opt)
{
	char text[32], want[96];

	if (opt->max_tokens == UINT32_MAX) {
		opt->max_tokens = opt->min_tokens;
	}
	snprintf(want, sizeof(want), "%u, which -b says, or more", opt->min_tokens);
	if (opt->max_tokens < opt->min_tokens) {
		snprintf(text, sizeof(text), "%u", opt->max_tokens);
		return bad("-e", text, want);
	}
	if (opt->capacity == 0) {
		opt->capacity = opt->max_tokens ? opt->max_tokens : 1;
	}
	if (opt->capacity < opt->max_tokens) {
		snprintf(text, sizeof(text), "%u", opt->capacity);
		snprintf(want, sizeof(want), "%u, the largest size, or more", opt->max_tokens);
		return bad("--capacity", text, want);
	}
	snprintf(text, sizeof(text), "%u", opt->gpus * opt->threads);
	if (opt->gpus * opt->threads > PERF_MAX_LOCAL) {
		snprintf(want, sizeof(want), "%d ranks per process at most", PERF_MAX_LOCAL);
		return bad("-t times -g", text, want);
	}
	if (opt->gpus * opt->threads % opt->ranks_per_gpu) {
		snprintf(want, sizeof(want), "a multiple of --ranks-per-gpu %u",
			 opt->ranks_per_gpu);
		return bad("-t times -g", text, want);
	}
	opt->flat = opt->layout == 2;
	opt->problem.layout = opt->layout == 1 ? ORACLE_RANK_MAJOR : ORACLE_EXPERT_MAJOR;
	opt->problem.seed = opt->seed;
	opt->problem.drop_ppm = (uint32_t)(opt->drop * 1e6 + 0.5);
	opt->problem.tokens = opt->max_tokens;
	opt->problem.max_tokens = opt->capacity;
	return check_texts(opt) || fits_tokens(opt) || fits_mode(opt) ? -1 : 0;
}

static void defaults(struct perf_options *opt)
{
	memset(opt, 0, sizeof(*opt));
	opt->min_tokens = 128;
	opt->max_tokens = UINT32_MAX; /* as min_tokens */
	opt->step_factor = 2;
	opt->gpus = opt->threads = opt->ranks_per_gpu = opt->cycles = 1;
	opt->is_virtual = dlsym(RTLD_DEFAULT, "ep_simt_register") != NULL; /* its executor */
	opt->iters = opt->is_virtual ? 5 : 100;
	opt->warmup = opt->is_virtual ? 1 : 10;
	opt->chains = opt->is_virtual ? 1 : 3;
	opt->timeout_s = 300;
	opt->progress_s = 10;
	opt->check = opt->ids64 = opt->align = opt->kernel_times = 1;
	opt->average = PERF_MAX;
	opt->floor_gbs = 326;
	opt->memory_gbs = 4290;
	opt->seed = 1;
	opt->problem.experts = 256;
	opt->problem.topk = 8;
	opt->problem.hidden = 7168;
	opt->routing = "uniform";
}

static void print_help(void)
{
	puts("usage: ep_perf [options]      sizes are tokens per rank; defaults in brackets");
	ep_options_print(&perf_option_table, stdout);
	puts("Processes that mpirun, torchrun, srun or vcrun starts make one run. They meet at\n"
	     "--rendezvous, else at MASTER_ADDR:MASTER_PORT, else (one host) through a file in TMPDIR.\n"
	     "ep_perf sets NCCL_NVLS_ENABLE=0 unless the environment has it.\n"
	     "The virtual cluster has the defaults -n 5 -w 1 --chains 1, and its times mean little.\n"
	     "Exit status: 0 all right, 1 wrong results, 2 usage, 3 failure or timeout,\n"
	     "77 nothing was measured: windows or memory are missing.");
}

int perf_args_parse(int argc, char **argv, struct perf_options *opt)
{
	struct ep_options options = perf_option_table;
	int asked;

	defaults(opt);
	options.complain = perf_complain;
	asked = ep_options_parse(&options, opt, argc, argv);
	if (asked > 0) {
		if (perf_is_first_process()) {
			asked == 'h' ? print_help() : perf_report_version();
		}
		return ep_output_end(stdout, "ep_perf", "standard output") ? 1 : 1 + EXIT_BROKEN;
	}
	if (asked == 0 && optind < argc) {
		perf_complain("'%s' is not an option. Try 'ep_perf -h'.", argv[optind]);
		return 1 + EXIT_USAGE;
	}
	return asked || finish(opt) ? 1 + EXIT_USAGE : 0;
}
