/* SPDX-License-Identifier: Apache-2.0 */
/* The results: a table, at most 100 columns wide, in the manner of nccl-tests, and JSON. */
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "nccl_ep/ext.h"
#include "perf.h"

/* ---- the table ---- */

/* The library under test: what it reports of itself, and the name of its file. */
static const char *library_text(void)
{
	__typeof__(&ncclEpExtVersion) ask = dlsym(RTLD_DEFAULT, "ncclEpExtVersion");
	const char *text;

	return ask && ask(&text) == ncclSuccess ? text : "not Switchyard";
}

static const char *library_path(void)
{
	void *call = dlsym(RTLD_DEFAULT, "ncclEpGetVersion");
	Dl_info info;

	return call && dladdr(call, &info) && info.dli_fname ? info.dli_fname : "";
}

extern char **environ;

/* Names of the environment variables that matter, one after the other; NULL at the end. */
static const char *environment(uint32_t index)
{
	static const char *const prefixes[] = { "NCCL_", "CUDA_VISIBLE_DEVICES=",
						"CUDA_DEVICE_MAX_CONNECTIONS=",
						"CUDA_MODULE_LOADING=", "VC_" };

	for (char **e = environ; *e; e++) {
		for (size_t i = 0; i < sizeof(prefixes) / sizeof(prefixes[0]); i++) {
			if (!strncmp(*e, prefixes[i], strlen(prefixes[i])) && index-- == 0) {
				return *e;
			}
		}
	}
	return NULL;
}

void perf_report_version(void)
{
	int ep = 0;

	ncclEpGetVersion(&ep);
	printf("ep_perf " EP_VERSION ", NCCL EP %d.%d.%d\n", ep / 10000, ep / 100 % 100, ep % 100);
	printf("library   %s\n", library_text());
}

static void report_versions(const struct perf_options *opt)
{
	int ep = 0, nccl = 0, runtime = 0, driver = 0;
	const char *version = perf_driver_version();

	ncclEpGetVersion(&ep);
	ncclGetVersion(&nccl);
	cudaRuntimeGetVersion(&runtime);
	cudaDriverGetVersion(&driver);
	printf("# ep_perf   nccl-ep %d.%d.%d (API %d)   %sNCCL %d.%d.%d   CUDA runtime %d.%d, driver "
	       "%d.%d%s%s%s\n",
	       ep / 10000, ep / 100 % 100, ep % 100, NCCL_EP_API_VERSION,
	       opt->is_virtual ? "stand-ins: " : "", nccl / 10000, nccl / 100 % 100, nccl % 100,
	       runtime / 1000, runtime / 10 % 100, driver / 1000, driver / 10 % 100,
	       version[0] ? " (" : "", version, version[0] ? ")" : "");
	printf("# library   %s\n", library_text());
}

static void print_sms(const char *what, uint32_t sms)
{
	if (sms) {
		printf("%s%u", what, sms);
	} else {
		printf("%sauto", what);
	}
}

static void report_settings(const struct perf *perf)
{
	const struct perf_options *opt = &perf->opt;
	const struct oracle_problem *p = &opt->problem;
	char layout[32], dtype[32], quant[32], back[32];

	printf("# mode %s   layout %s   experts %u   topk %u   hidden %u   dtype %s   quant %s%s   "
	       "ids %d\n",
	       opt->ht ? "ht" : "ll",
	       ep_options_word(&perf_option_table, "layout", opt->layout, layout), p->experts,
	       p->topk, p->hidden,
	       ep_options_word(&perf_option_table, "dtype", (int)p->dtype, dtype),
	       ep_options_word(&perf_option_table, "quant", (int)p->quant, quant),
	       p->pow2_scales ? "+pow2" : "", opt->ids64 ? 64 : 32);
	if (opt->holders || opt->senders) {
		printf("# experts on ranks %s, tokens on ranks %s (first:number)\n",
		       opt->holders ? opt->holders : "all", opt->senders ? opt->senders : "all");
	}
	printf("# routing %s   steps %u   drop %g   seed %llu   capacity %u%s%s%s%s   sms ",
	       p->routing.text, opt->steps, p->drop_ppm / 1e6, (unsigned long long)p->seed,
	       opt->capacity, p->uneven ? "   uneven" : "", opt->staged ? "   staged" : "",
	       opt->mask ? "   mask" : "", opt->windows ? "   windows" : "");
	print_sms("", opt->sms);
	if (opt->dispatch_sms) {
		print_sms(", dispatch ", opt->dispatch_sms);
	}
	if (opt->combine_sms) {
		print_sms(", combine ", opt->combine_sms);
	}
	printf("\n");
	if (opt->eager) {
		printf("# eager mode: a dispatch waits until the host knows how many rows come\n");
	} else if (opt->ht) {
		printf("# received rows: at most %u of a rank, more %s\n", perf->ranks[0].ht.limit,
		       opt->overflow_drop ? "are dropped" : "are an error");
	}
	if (p->combine_quant) {
		printf("# combine quant %s: sums are those of quantised rows\n",
		       ep_options_word(&perf_option_table, "combine-quant", (int)p->combine_quant,
				       back));
	}
	if (opt->backward) {
		printf("# backward pass: dispatch without weights, combine with their gradients\n");
	}
	printf("# iterations %u   warm-up %u   check %u   ", opt->iters, opt->warmup, opt->check);
	if (opt->graph) {
		printf("graph, %u replays\n", opt->graph);
	} else {
		printf("eager\n");
	}
}

static void report_places(const struct perf *perf)
{
	const struct perf_world *w = &perf->world;
	const char *text;

	printf("# %u ranks: %u process%s of %u, launcher: %s\n", w->nranks, w->nprocs,
	       w->nprocs == 1 ? "" : "es", w->nlocal, w->launcher);
	for (uint32_t n = 0; n < w->nranks; n++) {
		const struct perf_place *place = perf->places + n;

		printf("#  rank %2u  pid %7d  %-20.20s device %2d  %-13s  %.24s, %d SMs\n", n,
		       place->pid, place->host, place->device, place->bus, place->device_name,
		       place->sms);
	}
	for (uint32_t n = 0; perf->nodes > 1 && n < perf->nodes; n++) {
		printf("%s%u%s", n ? " + " : "#  nodes of ", perf->node_ranks[n],
		       n + 1 < perf->nodes ? "" : " ranks, RDMA between them\n");
	}
	for (uint32_t i = 0; (text = environment(i)) != NULL; i++) {
		printf("#  %.95s\n", text);
	}
}

static void print_loads(void)
{
	printf("# mx/mn: rows that the busiest rank receives, divided by the mean of ranks.\n#\n");
}

static void legend_ht(const struct perf_options *opt)
{
	printf("#   routing: ncclEpUpdateHandle. pair: %sdispatch + combine back to back, no host\n"
	       "#   synchronisation%s\n",
	       opt->steps > 1 ? "update + " : "",
	       opt->eager   ? " but dispatch's own"
	       : opt->graph ? ", each pair a graph"
			    : "");
	printf("# GB/s over kernel time (p50 where there is none). Bytes: a row%s once per\n"
	       "#   (token, rank).\n",
	       opt->problem.quant == ORACLE_QUANT_NONE ? "" : " and its scales");
	printf("#   alg: rows of one rank, own ones included, mean. bus: rows leaving or entering the\n"
	       "#   busiest rank over links.\n");
	printf("# fl%%: share of the time that the bytes alone take: each token, row and sum once in\n"
	       "#   memory at %g GB/s",
	       opt->memory_gbs);
	if (opt->ranks_per_gpu > 1) {
		printf(", those of all ranks of the GPU\n");
	} else {
		printf(" or, if that takes longer, bus at %g GB/s\n", opt->floor_gbs);
	}
	print_loads();
	printf("#            |-- routing --||-- dispatch -||-- combine --| chain |-dispatch GB/s||-"
	       "combine GB/s|\n");
	printf("#token mx/mn kernel    p50 kernel    p50 kernel    p50   pair  alg  bus fl%%  alg  bus "
	       "fl%% SMs #wrong\n");
}

static void report_legend(const struct perf *perf)
{
	static const char *const averages[] = { "rank 0", "mean of ranks", "fastest rank",
						"slowest rank" };
	const struct perf_options *opt = &perf->opt;
	int by_expert = opt->problem.layout == ORACLE_EXPERT_MAJOR;

	if (opt->is_virtual) {
		printf("#\n# Virtual cluster: kernels run on the CPU, times say nothing of a GPU.\n");
	}
	printf("#\n# Times in us, %s per iteration.\n", averages[opt->average]);
	printf("#   p50%s: %s, %s\n", opt->ht ? "" : ", p99",
	       opt->report_cpu ? "CPU time of the call" : "between events around one operation",
	       opt->align ? "ranks aligned on the GPU before it" : "ranks not aligned");
	printf("#   kernel: GPU time of the operation's kernel, median\n");
	if (perf->no_kernel_times) {
		printf("#     none: %s\n", perf->no_kernel_times);
	}
	if (opt->ht) {
		legend_ht(opt);
		return;
	}
	printf("#   period: %sdispatch + combine back to back, no host synchronisation\n",
	       opt->graph ? "graph of update + " : "");
	printf("# GB/s over kernel time (p50 where there is none). Bytes: a row%s once per\n",
	       opt->problem.quant == ORACLE_QUANT_NONE ? "" : " and its scales");
	printf("#   (token, rank) in dispatch, once per (token, %s) in combine.\n",
	       by_expert ? "expert" : "rank");
	printf("#   alg: rows of one rank, own ones included, mean. bus: rows leaving or entering the\n"
	       "#   busiest rank over links. fl%%: bus against %g GB/s per GPU.\n",
	       opt->floor_gbs);
	print_loads();
	printf("#            |---- dispatch -----||----- combine -----| chain |-dispatch GB/s||-combine "
	       "GB/s|\n");
	printf("#token mx/mn kernel    p50    p99 kernel    p50    p99 period  alg  bus fl%%  alg  bus "
	       "fl%% SMs #wrong\n");
}

void perf_report_head(struct perf *perf)
{
	report_versions(&perf->opt);
	report_settings(perf);
	report_places(perf);
	report_legend(perf);
	fflush(stdout);
}

static void cell(void (*format)(char out[PERF_CELL], double value, int width), double value,
		 int width)
{
	char text[PERF_CELL];

	format(text, value, width);
	fputs(text, stdout);
}

/* What p50 and the numbers behind it are of. */
static const struct perf_op_row *whose(const struct perf_options *opt, const struct perf_row *row,
				       int op)
{
	return opt->report_cpu ? &row->call[op] : &row->op[op];
}

/* High throughput has one operation more, and no column for p99. */
static void report_op(const struct perf_options *opt, const struct perf_row *row, enum perf_op op)
{
	const struct perf_op_row *o = whose(opt, row, op);

	cell(perf_cell_time, row->op[op].kernel, 7);
	cell(perf_cell_time, o->p50, 7);
	if (!opt->ht) {
		cell(perf_cell_time, o->p99, 7);
	}
}

/* A line for each operation below that of the size, where there are enough iterations for it. */
static void report_tail(const struct perf_options *opt, const struct perf_row *row)
{
	static const char *const names[] = { "routing", "dispatch", "combine" };

	if (isnan(row->op[PERF_DISPATCH].p999)) {
		return;
	}
	for (int op = perf_first_op(opt); op < PERF_OPS; op++) {
		const struct perf_op_row *o = whose(opt, row, op);

		printf("#      p99, p99.9, max of %-9s", names[op]);
		cell(perf_cell_time, o->p99, 7);
		cell(perf_cell_time, o->p999, 7);
		cell(perf_cell_time, o->most, 7);
		putchar('\n');
	}
}

void perf_report_row(struct perf *perf, const struct perf_row *row)
{
	const struct perf_options *opt = &perf->opt;

	printf("%6u", row->tokens);
	if (row->unsupported[0]) {
		printf(" %s: %s\n", row->refused ? "refused" : "unsupported", row->unsupported);
		fflush(stdout);
		return;
	}
	cell(perf_cell_rate, row->load, 6);
	for (int op = perf_first_op(opt); op < PERF_OPS; op++) {
		report_op(opt, row, op);
	}
	cell(perf_cell_time, row->period, 7);
	for (int op = PERF_DISPATCH; op < PERF_OPS; op++) {
		cell(perf_cell_rate, row->op[op].algbw, 5);
		cell(perf_cell_rate, row->op[op].busbw, 5);
		cell(perf_cell_percent, row->op[op].floor_percent, 4);
	}
	if (row->blocks) {
		printf(" %3d", row->blocks);
	} else {
		printf("%4s", "-");
	}
	if (row->checked) {
		printf(" %6llu\n", (unsigned long long)row->wrong);
	} else {
		printf(" %6s\n", "N/A");
	}
	report_tail(opt, row);
	fflush(stdout);
}

/* Of all ranks; what stays on its GPU does not count. No NIC is named that carried nothing. */
static void report_links(const struct perf_links *links)
{
	static const char *const names[] = { "NVLink, PCIe", "RDMA" };

	if (!links->known) {
		return;
	}
	for (int path = 0; path < PERF_LINKS; path++) {
		if (links->bytes[path]) {
			printf("# Dispatched over %-13s: %.1f MB between %u pairs of ranks\n",
			       names[path], (double)links->bytes[path] / 1e6,
			       links->pairs[path] / 2);
		}
	}
}

bool perf_report_end(struct perf *perf, const struct perf_setup *setup,
		     const struct perf_links *links)
{
	printf("# Set-up : group %.1f ms (CPU %.1f ms per rank), handle %.1f ms, library memory %.0f "
	       "MiB per rank\n",
	       setup->group_ms, setup->group_cpu_ms, setup->handle_ms, setup->library_mib);
	report_links(links);
	if (perf->unsupported) {
		printf("# Unsupported : %u of %u, %u refused by the library\n", perf->unsupported,
		       perf->nrows, perf->refused);
	}
	if (perf->opt.check) {
		printf("# Out of bounds values : %llu %s\n", (unsigned long long)perf->wrong,
		       perf->wrong ? "FAILED" : "OK");
	} else {
		printf("# Out of bounds values : not checked\n");
	}
	printf("# Avg bus bandwidth    : %g\n",
	       perf->measured ? perf->busbw_sum / (2.0 * perf->measured) : 0.0);
	return ep_output_end(stdout, "ep_perf", "standard output");
}

/* ---- the same for programs ---- */

static void put_problem(struct ep_json *json, const struct perf *perf)
{
	static const char *const averages[] = { "rank0", "mean", "min", "max" };
	const struct perf_options *opt = &perf->opt;

	json->line = true;
	ep_json_open(json, "config", '{');
	ep_options_report(&perf_option_table, opt, json);
	ep_json_text(json, "average", averages[opt->average]);
	if (opt->ht) {
		ep_json_print(json, "max_recv_tokens", "%u", perf->ranks[0].ht.limit);
	}
	ep_json_close(json, '}');
}

static void put_ranks(struct ep_json *json, const struct perf *perf)
{
	const char *text;

	json->line = true;
	ep_json_open(json, "ranks", '[');
	for (uint32_t n = 0; n < perf->world.nranks; n++) {
		const struct perf_place *place = perf->places + n;

		json->line = true;
		ep_json_open(json, NULL, '{');
		ep_json_print(json, "rank", "%u", n);
		ep_json_text(json, "host", place->host);
		ep_json_print(json, "pid", "%d", place->pid);
		ep_json_print(json, "device", "%d", place->device);
		ep_json_text(json, "pci", place->bus);
		ep_json_text(json, "name", place->device_name);
		ep_json_print(json, "sms", "%d", place->sms);
		ep_json_close(json, '}');
	}
	ep_json_close(json, ']');
	json->line = true;
	ep_json_open(json, "environment", '{');
	for (uint32_t i = 0; (text = environment(i)) != NULL; i++) {
		char name[128];

		snprintf(name, sizeof(name), "%.*s", (int)strcspn(text, "="), text);
		ep_json_text(json, name, text + strcspn(text, "=") + 1);
	}
	ep_json_close(json, '}');
}

static const char *text_or_null(const char *text)
{
	return text && text[0] ? text : NULL;
}

/* Finds the text behind `mark` in the library's line about itself, up to a comma or blank. */
static void put_word(struct ep_json *json, const char *key, const char *mark)
{
	const char *at = strstr(library_text(), mark);
	char word[80] = "";

	if (at) {
		at += strlen(mark);
		snprintf(word, sizeof(word), "%.*s", (int)strcspn(at, ", "), at);
	}
	ep_json_text(json, key, text_or_null(word));
}

/* Prints what was run, when, and by which library. */
static void put_origin(struct ep_json *json, const struct perf *perf)
{
	char started[40] = "";
	time_t now = time(NULL);
	struct tm utc;

	json->line = true;
	ep_json_open(json, "command", '[');
	for (char **word = perf->opt.command; *word; word++) {
		ep_json_text(json, NULL, *word);
	}
	ep_json_close(json, ']');
	if (gmtime_r(&now, &utc)) {
		strftime(started, sizeof(started), "%Y-%m-%dT%H:%M:%SZ", &utc);
	}
	ep_json_text(json, "started", text_or_null(started));
	json->line = true;
	ep_json_open(json, "library", '{');
	ep_json_text(json, "text", library_text());
	ep_json_text(json, "path", library_path());
	put_word(json, "version", "Switchyard ");
	put_word(json, "commit", ", commit ");
	ep_json_close(json, '}');
	ep_json_text(json, "driver", text_or_null(perf_driver_version()));
}

/*
 * "-": standard output has the results alone, whatever libraries print there; all else goes to
 * standard error from now on.
 */
int perf_json_reserve(struct perf *perf)
{
	int fd;

	if (!perf->opt.json || strcmp(perf->opt.json, "-") != 0) {
		return 0;
	}
	fd = dup(STDOUT_FILENO);
	perf->json.out = fd >= 0 ? fdopen(fd, "w") : NULL;
	if (!perf->json.out || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
		fprintf(stderr, "ep_perf: standard output: %s\n", strerror(errno));
		return -1;
	}
	return 0;
}

void perf_json_open(struct perf *perf)
{
	int ep = 0, nccl = 0, runtime = 0, driver = 0;
	struct ep_json *json = &perf->json;
	const struct perf_options *opt = &perf->opt;

	if (!opt->json) {
		return;
	}
	json->out = json->out ? json->out : fopen(opt->json, "w");
	if (!json->out) {
		perf_die(perf->ranks, "%s: %s", opt->json, strerror(errno));
	}
	ncclEpGetVersion(&ep);
	ncclGetVersion(&nccl);
	cudaRuntimeGetVersion(&runtime);
	cudaDriverGetVersion(&driver);
	ep_json_open(json, NULL, '{');
	ep_json_text(json, "schema", "ep_perf");
	ep_json_print(json, "schema_version", "%d", PERF_SCHEMA_VERSION);
	json->line = true;
	ep_json_open(json, "versions", '{');
	ep_json_print(json, "nccl_ep", "%d", ep);
	ep_json_print(json, "api", "%d", NCCL_EP_API_VERSION);
	ep_json_print(json, "nccl", "%d", nccl);
	ep_json_print(json, "cuda_runtime", "%d", runtime);
	ep_json_print(json, "cuda_driver", "%d", driver);
	ep_json_close(json, '}');
	put_origin(json, perf);
	ep_json_text(json, "launcher", perf->world.launcher);
	ep_json_print(json, "processes", "%u", perf->world.nprocs);
	ep_json_text(json, "no_kernel_times", perf->no_kernel_times);
	put_problem(json, perf);
	put_ranks(json, perf);
	json->line = true;
	ep_json_open(json, "bytes", '{');
	ep_json_text(json, "dispatch", "token x rank");
	ep_json_text(json, "combine",
		     opt->problem.layout == ORACLE_EXPERT_MAJOR && !opt->ht ? "token x expert"
									    : "token x rank");
	ep_json_close(json, '}');
	json->line = true;
	ep_json_open(json, "results", '[');
}

static void put_list(struct ep_json *json, const char *key, const float *values, uint32_t count)
{
	ep_json_open(json, key, '[');
	for (uint32_t i = 0; i < count; i++) {
		ep_json_number(json, NULL, (double)values[i]);
	}
	ep_json_close(json, ']');
}

/* Writes those of each iteration; null where nothing was measured. */
static void put_samples(struct ep_json *json, const char *key, const struct perf_samples *samples,
			uint32_t count)
{
	json->line = true;
	if (count == 0 || isnan(samples->most[0])) {
		ep_json_text(json, key, NULL);
		return;
	}
	ep_json_open(json, key, '{');
	put_list(json, "max", samples->most, count);
	put_list(json, "min", samples->least, count);
	ep_json_close(json, '}');
}

static void put_op(struct ep_json *json, const char *name, const struct perf_row *all,
		   enum perf_op op, uint32_t iters)
{
	const struct perf_op_row *row = &all->op[op];

	ep_json_open(json, name, '{');
	ep_json_number(json, "kernel_us", row->kernel);
	ep_json_number(json, "p50_us", row->p50);
	ep_json_number(json, "p90_us", row->p90);
	ep_json_number(json, "p99_us", row->p99);
	ep_json_number(json, "p999_us", row->p999);
	ep_json_number(json, "max_us", row->most);
	ep_json_number(json, "fastest_rank_us", row->fastest);
	ep_json_number(json, "call_cpu_us", all->call[op].p50);
	ep_json_number(json, "call_cpu_p99_us", all->call[op].p99);
	ep_json_number(json, "algbw_gbs", row->algbw);
	ep_json_number(json, "busbw_gbs", row->busbw);
	ep_json_number(json, "floor_us", row->floor);
	ep_json_number(json, "floor_percent", row->floor_percent);
	put_samples(json, "samples_us", &row->samples, iters);
	put_samples(json, "kernel_samples_us", &row->kernel_samples, iters);
	ep_json_close(json, '}');
}

static void put_clock(struct ep_json *json, const char *key, const struct perf_detail *detail,
		      enum perf_clock clock)
{
	ep_json_open(json, key, '{');
	ep_json_number(json, "min", detail->mhz_least[clock] ? detail->mhz_least[clock] : NAN);
	ep_json_number(json, "max", detail->mhz_most[clock] ? detail->mhz_most[clock] : NAN);
	ep_json_close(json, '}');
}

static void put_detail(struct ep_json *json, const struct perf_detail *detail, uint32_t nranks,
		       uint32_t experts)
{
	json->line = true;
	ep_json_open(json, "clocks_mhz", '{');
	put_clock(json, "sm", detail, PERF_CLOCK_SM);
	put_clock(json, "memory", detail, PERF_CLOCK_MEMORY);
	ep_json_close(json, '}');
	ep_json_print(json, "routing_digest", "\"fnv1a64:%016llx\"",
		      (unsigned long long)detail->digest);
	json->line = true;
	ep_json_open(json, "expert_ids", '[');
	for (uint32_t e = 0; e < experts; e++) {
		ep_json_print(json, NULL, "%llu", (unsigned long long)detail->expert_ids[e]);
	}
	ep_json_close(json, ']');
	json->line = true;
	if (!detail->waits) {
		ep_json_text(json, "waits_us", NULL);
		return;
	}
	ep_json_open(json, "waits_us", '[');
	for (uint32_t r = 0; r < nranks; r++) {
		json->line = true;
		ep_json_open(json, NULL, '[');
		for (uint32_t n = 0; n < nranks; n++) {
			ep_json_number(json, NULL, detail->waits[(size_t)r * nranks + n]);
		}
		ep_json_close(json, ']');
	}
	ep_json_close(json, ']');
}

void perf_json_row(struct perf *perf, const struct perf_row *row)
{
	uint32_t iters = perf->opt.iters;
	struct ep_json *json = &perf->json;

	if (!json->out) {
		return;
	}
	json->line = true;
	ep_json_open(json, NULL, '{');
	ep_json_print(json, "tokens", "%u", row->tokens);
	ep_json_text(json, "workload", row->routing);
	if (row->unsupported[0]) {
		ep_json_text(json, "unsupported", row->unsupported);
		ep_json_close(json, '}');
		return;
	}
	ep_json_number(json, "copies_per_token", row->copies);
	ep_json_number(json, "load_cv", row->load_cv);
	ep_json_number(json, "max_over_mean", row->load);
	ep_json_open(json, "step_max_over_mean", '[');
	for (uint32_t i = 0; i < perf->opt.steps; i++) {
		ep_json_number(json, NULL, row->detail.step_load[i]);
	}
	ep_json_close(json, ']');
	if (perf->opt.ht) {
		put_op(json, "routing", row, PERF_UPDATE, iters);
	}
	put_op(json, "dispatch", row, PERF_DISPATCH, iters);
	put_op(json, "combine", row, PERF_COMBINE, iters);
	ep_json_number(json, "period_us", row->period);
	ep_json_number(json, "blocks", row->blocks ? row->blocks : NAN);
	ep_json_number(json, "wrong", row->checked ? (double)row->wrong : NAN);
	put_detail(json, &row->detail, perf->world.nranks, perf->opt.problem.experts);
	ep_json_close(json, '}');
	fflush(json->out);
}

bool perf_json_close(struct perf *perf, const struct perf_setup *setup,
		     const struct perf_links *links)
{
	struct ep_json *json = &perf->json;
	FILE *out = json->out;

	if (!out) {
		return true;
	}
	ep_json_close(json, ']');
	json->line = true;
	ep_json_open(json, "setup", '{');
	ep_json_number(json, "group_ms", setup->group_ms);
	ep_json_number(json, "group_cpu_ms", setup->group_cpu_ms);
	ep_json_number(json, "handle_ms", setup->handle_ms);
	ep_json_number(json, "library_mib", setup->library_mib);
	ep_json_close(json, '}');
	json->line = true;
	ep_json_open(json, "dispatched", '{');
	ep_json_number(json, "gpu_bytes", links->known ? (double)links->bytes[PERF_LINK_GPU] : NAN);
	ep_json_number(json, "rdma_bytes",
		       links->known ? (double)links->bytes[PERF_LINK_RDMA] : NAN);
	ep_json_close(json, '}');
	json->line = true;
	ep_json_number(json, "wrong", perf->opt.check ? (double)perf->wrong : NAN);
	ep_json_close(json, '}');
	fputc('\n', out);
	json->out = NULL;
	return ep_output_end(out, "ep_perf", perf->opt.json);
}
