/* SPDX-License-Identifier: Apache-2.0 */
/* The command line. Letters mean what they mean in nccl-tests; sizes are tokens per rank. */
#include <dlfcn.h>
#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "perf.h"

static int bad(const char *option, const char *text, const char *want)
{
	perf_complain("%s: got '%s', allowed is %s", option, text, want);
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
		snprintf(want, sizeof(want), "a number from %llu to %llu", (unsigned long long)low,
			 (unsigned long long)high);
		return bad(option, text, want);
	}
	*value = (uint32_t)number;
	return 0;
}

/* Numbers with commas between them, as NCCL_EP_NODE_SIZE has them. */
static int parse_sizes(const char *option, const char *text)
{
	const char *at = text;
	char *end;

	for (;; at = end + 1) {
		long size = strtol(at, &end, 10);

		if (end == at || size < 1 || size > ORACLE_MAX_RANKS || (*end && *end != ',')) {
			return bad(option, text, "a number of ranks, or several: N,N,...");
		}
		if (!*end) {
			return 0;
		}
	}
}

static int parse_choice(const char *option, const char *text, const char *const *names, int *value)
{
	char want[96] = "one of";

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
		snprintf(want, sizeof(want), "a number from %g to %g", low, high);
		return bad(option, text, want);
	}
	return 0;
}

static int parse_problem_option(int letter, const char *text, struct perf_options *opt)
{
	static const char *const layouts[] = { "em", "rm", "flat", NULL };
	static const char *const dtypes[] = { "bf16", "fp16", "fp32", NULL };
	static const char *const quants[] = { "none", "fp8", "fp8-v1", "fwd", NULL };
	struct oracle_problem *p = &opt->problem;
	double real;
	uint32_t number;
	int choice;
	char why[400];

	switch (letter) {
	case OPT_LAYOUT:
		if (parse_choice("--layout", text, layouts, &choice)) {
			return -1;
		}
		p->layout = choice == 1 ? ORACLE_RANK_MAJOR : ORACLE_EXPERT_MAJOR;
		opt->flat = choice == 2;
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
			perf_complain("%s", why);
			return -1;
		}
		return 0;
	}
}

static int parse_option(int letter, const char *text, struct perf_options *opt)
{
	static const char *const modes[] = { "ll", "ht", NULL };
	static const char *const widths[] = { "32", "64", NULL };
	static const char *const policies[] = { "trap", "drop", NULL };

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
	case OPT_MEMORY:
		return parse_real("--memory-gbs", text, 0.001, 1e6, &opt->memory_gbs);
	case OPT_RENDEZVOUS:
		if (!strncmp(text, "file:", 5) ? !text[5] : !strchr(text, ':')) {
			perf_complain("--rendezvous: got '%s', allowed is HOST:PORT or file:NAME",
				      text);
			return -1;
		}
		opt->rendezvous = text;
		return 0;
	case OPT_NODE_SIZE:
		opt->node_size = text;
		return parse_sizes("--node-size", text);
	case OPT_STAGED:
		opt->staged = 1;
		return 0;
	case OPT_MASK:
		opt->mask = 1;
		return 0;
	case OPT_WINDOWS:
		opt->windows = 1;
		return 0;
	case OPT_EAGER:
		opt->eager = 1;
		return 0;
	case OPT_BACKWARD:
		opt->backward = 1;
		return 0;
	case OPT_OVERFLOW:
		return parse_choice("--overflow", text, policies, &opt->overflow_drop);
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

/* The option as a user would write it. */
static void option_name(const struct perf_option *option, char *out, size_t bytes)
{
	if (option->id < 256) {
		snprintf(out, bytes, "-%c (--%s)", option->id, option->name);
	} else {
		snprintf(out, bytes, "--%s", option->name);
	}
}

static int parse(int id, const char *text, struct perf_options *opt)
{
	for (int i = 0; i < PERF_NOPTIONS; i++) {
		const struct perf_option *o = perf_option_table + i;
		char name[48];

		if (o->id == id && o->high) {
			option_name(o, name, sizeof(name));
			return parse_number(name, text, o->low, o->high,
					    (uint32_t *)((char *)opt + o->at));
		}
	}
	return parse_option(id, text, opt);
}

/* Prints what getopt_long() would not take: `id` is '?' or ':', as it returns. */
static int refuse(int id, char **argv)
{
	const char *argument = argv[optind - 1];
	const char letter[] = { '-', (char)optopt, '\0' };
	const char *instead;

	if (strncmp(argument, "--", 2) && optopt) { /* the letter may be one of several */
		argument = letter;
	}
	instead = perf_args_instead(argument);
	if (id == ':') {
		perf_complain("%s needs a value. Try 'ep_perf -h'.", argument);
	} else if (optopt && argument != letter) {
		perf_complain("%s takes no value. Try 'ep_perf -h'.", argument);
	} else if (instead) {
		perf_complain("'%s' is of nccl-tests; %s. Try 'ep_perf -h'.", argument, instead);
	} else {
		perf_complain("'%s' is not an option. Try 'ep_perf -h'.", argument);
	}
	return -1;
}

/* Options that one mode has and the other has not. */
static int fits_mode(const struct perf_options *opt)
{
	enum oracle_quant quant = opt->problem.quant;
	const struct {
		int given, ht;
		const char *name;
	} special[] = {
		{ opt->staged, 0, "--staged" },
		{ opt->mask, 0, "--mask" },
		{ opt->problem.pow2_scales, 0, "--pow2-scales" },
		{ quant == ORACLE_QUANT_FP8, 0, "--quant fp8" },
		{ quant == ORACLE_QUANT_FP8_COLUMNS, 0, "--quant fp8-v1" },
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
	if (opt->problem.pow2_scales &&
	    (quant == ORACLE_QUANT_NONE || quant == ORACLE_QUANT_FORWARD)) {
		return bad("--pow2-scales", quant ? "--quant fwd" : "--quant none",
			   "--quant fp8 or fp8-v1, which make scales");
	}
	if (opt->flat && opt->zone_alignment) {
		return bad("--align", "--layout flat", "--layout em, which has zones");
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

static int finish(struct perf_options *opt, int have_max)
{
	char text[32], want[96];

	if (!have_max) {
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
	opt->problem.tokens = opt->max_tokens;
	opt->problem.max_tokens = opt->capacity;
	return fits_tokens(opt) || fits_mode(opt) ? -1 : 0;
}

static void defaults(struct perf_options *opt)
{
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
	opt->progress_s = 10;
	opt->check = opt->ids64 = opt->align = opt->kernel_times = 1;
	opt->average = PERF_MAX;
	opt->floor_gbs = 326;
	opt->memory_gbs = 4290;
	opt->problem.seed = 1;
	opt->problem.experts = 256;
	opt->problem.topk = 8;
	opt->problem.hidden = 7168;
	opt->problem.layout = ORACLE_EXPERT_MAJOR;
	oracle_routing_parse("uniform", &opt->problem.routing, why, sizeof(why));
}

/* For getopt_long(); `letters` begins with ':', so that it returns what is missing and prints nothing. */
static void table_for_getopt(struct option *list, char *letters)
{
	*letters++ = ':';
	for (int i = 0; i < PERF_NOPTIONS; i++) {
		const struct perf_option *o = perf_option_table + i;

		list[i] = (struct option){ o->name, o->arg ? required_argument : no_argument, NULL,
					   o->id };
		if (o->id < 256) {
			*letters++ = (char)o->id;
			*letters++ = ':'; /* all of them take something */
		}
	}
	*letters++ = 'h';
	*letters = '\0';
	list[PERF_NOPTIONS] = (struct option){ "help", no_argument, NULL, 'h' };
	list[PERF_NOPTIONS + 1] = (struct option){ NULL, 0, NULL, 0 };
}

int perf_args_parse(int argc, char **argv, struct perf_options *opt)
{
	struct option list[PERF_NOPTIONS + 2];
	char letters[2 * PERF_NOPTIONS + 3];
	int id;
	int have_max = 0;

	defaults(opt);
	table_for_getopt(list, letters);
	while ((id = getopt_long(argc, argv, letters, list, NULL)) != -1) {
		if (id == 'h' || id == OPT_VERSION) {
			if (perf_is_first_process()) {
				id == 'h' ? perf_args_usage(stdout) : perf_report_version();
			}
			return perf_finish(stdout, "standard output") ? 1 : 1 + EXIT_BROKEN;
		}
		if (id == '?' || id == ':' ? refuse(id, argv) : parse(id, optarg, opt)) {
			return 3;
		}
		have_max |= id == 'e';
	}
	if (optind < argc) {
		perf_complain("'%s' is not an option. Try 'ep_perf -h'.", argv[optind]);
		return 3;
	}
	return finish(opt, have_max) ? 3 : 0;
}
