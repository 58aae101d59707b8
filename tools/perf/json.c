/* SPDX-License-Identifier: Apache-2.0 */
/* The same as the table, for programs. Numbers that were not measured are null. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "perf.h"

/* `before` is the text before the value or its key, a separator mostly. */
static void put_quoted(FILE *f, const char *before, const char *text)
{
	fprintf(f, "%s\"", before);
	for (; *text; text++) {
		unsigned char c = (unsigned char)*text;

		if (c == '"' || c == '\\') {
			fprintf(f, "\\%c", c);
		} else if (c < 0x20 || c > 0x7e) {
			fprintf(f, "\\u%04x", c);
		} else {
			fputc(c, f);
		}
	}
	fputc('"', f);
}

static void put_string(FILE *f, const char *before, const char *key, const char *text)
{
	fprintf(f, "%s\"%s\": ", before, key);
	put_quoted(f, "", text);
}

static void put_value(FILE *f, const char *before, double value)
{
	if (isnan(value) || isinf(value)) {
		fprintf(f, "%snull", before);
	} else {
		fprintf(f, "%s%.6g", before, value);
	}
}

static void put_number(FILE *f, const char *before, const char *key, double value)
{
	fprintf(f, "%s\"%s\": ", before, key);
	put_value(f, "", value);
}

static void put_problem(FILE *f, const struct perf *perf)
{
	static const char *const averages[] = { "rank0", "mean", "min", "max" };
	const struct perf_options *opt = &perf->opt;
	const struct oracle_problem *p = &opt->problem;

	fprintf(f,
		"  \"config\": {\"mode\": \"%s\", \"layout\": \"%s\", \"experts\": %u, "
		"\"topk\": %u, \"hidden\": %u, \"dtype\": \"%s\", \"quant\": \"%s\", "
		"\"pow2_scales\": %s, \"id_bits\": %d,\n    ",
		opt->ht ? "ht" : "ll", perf_layout_name(opt), p->experts, p->topk, p->hidden,
		perf_dtype_name(opt), perf_quant_name(opt), p->pow2_scales ? "true" : "false",
		opt->ids64 ? 64 : 32);
	put_string(f, "", "routing", p->routing.text);
	fprintf(f,
		", \"drop\": %g, \"seed\": %llu, \"uneven\": %s, \"capacity\": %u, \"sms\": %u, "
		"\"staged\": %s, \"mask\": %s, \"windows\": %s,\n    \"iterations\": %u, \"warmup\": %u, "
		"\"graph_replays\": %u, \"aligned\": %s, \"average\": \"%s\", "
		"\"floor_gbs\": %g",
		p->drop_ppm / 1e6, (unsigned long long)p->seed, p->uneven ? "true" : "false",
		opt->capacity, opt->sms, opt->staged ? "true" : "false",
		opt->mask ? "true" : "false", opt->windows ? "true" : "false", opt->iters,
		opt->warmup, opt->graph, opt->align ? "true" : "false", averages[opt->average],
		opt->floor_gbs);
	if (opt->ht) {
		fprintf(f,
			",\n    \"memory_gbs\": %g, \"max_recv_tokens\": %u, \"eager\": %s, "
			"\"overflow\": \"%s\", \"zone_alignment\": %u, \"backward\": %s",
			opt->memory_gbs, perf->ranks[0].ht.limit, opt->eager ? "true" : "false",
			opt->overflow_drop ? "drop" : "trap", opt->zone_alignment,
			opt->backward ? "true" : "false");
	}
	fprintf(f, "},\n");
}

static void put_ranks(FILE *f, const struct perf *perf)
{
	const char *text;

	fprintf(f, "  \"ranks\": [");
	for (uint32_t n = 0; n < perf->world.nranks; n++) {
		const struct perf_place *place = perf->places + n;

		fprintf(f, "%s\n    {\"rank\": %u, ", n ? "," : "", n);
		put_string(f, "", "host", place->host);
		fprintf(f, ", \"pid\": %d, \"device\": %d, ", place->pid, place->device);
		put_string(f, "", "pci", place->bus);
		put_string(f, ", ", "name", place->device_name);
		fprintf(f, ", \"sms\": %d}", place->sms);
	}
	fprintf(f, "],\n  \"environment\": {");
	for (uint32_t i = 0; (text = perf_environment(i)) != NULL; i++) {
		char name[128];

		snprintf(name, sizeof(name), "%.*s", (int)strcspn(text, "="), text);
		put_string(f, i ? ", " : "", name, text + strcspn(text, "=") + 1);
	}
	fprintf(f, "},\n");
}

/* "null" where the text is empty. */
static void put_text(FILE *f, const char *before, const char *key, const char *text)
{
	if (text[0]) {
		put_string(f, before, key, text);
	} else {
		fprintf(f, "%s\"%s\": null", before, key);
	}
}

/* Finds the text behind `mark` in the library's line about itself, up to a comma or blank. */
static void put_word(FILE *f, const char *before, const char *key, const char *mark)
{
	const char *at = strstr(perf_library_text(), mark);
	char word[80] = "";

	if (at) {
		at += strlen(mark);
		snprintf(word, sizeof(word), "%.*s", (int)strcspn(at, ", "), at);
	}
	put_text(f, before, key, word);
}

/* Prints what was run, when, and by which library. */
static void put_origin(FILE *f, const struct perf *perf)
{
	char started[40] = "";
	time_t now = time(NULL);
	struct tm utc;

	fprintf(f, "  \"command\": [");
	for (char **word = perf->opt.command; *word; word++) {
		put_quoted(f, word == perf->opt.command ? "" : ", ", *word);
	}
	if (gmtime_r(&now, &utc)) {
		strftime(started, sizeof(started), "%Y-%m-%dT%H:%M:%SZ", &utc);
	}
	put_text(f, "],\n  ", "started", started);
	put_string(f, ",\n  \"library\": {", "text", perf_library_text());
	put_string(f, ", ", "path", perf_library_path());
	put_word(f, ", ", "version", "Switchyard ");
	put_word(f, ", ", "commit", ", commit ");
	put_text(f, "},\n  ", "driver", perf_driver_version());
	fprintf(f, ",\n");
}

/*
 * "-": standard output has the results alone, whatever libraries print there; all else goes to standard error from
 * now on.
 */
int perf_json_reserve(struct perf *perf)
{
	int fd;

	if (!perf->opt.json || strcmp(perf->opt.json, "-") != 0) {
		return 0;
	}
	fd = dup(STDOUT_FILENO);
	perf->json = fd >= 0 ? fdopen(fd, "w") : NULL;
	if (!perf->json || dup2(STDERR_FILENO, STDOUT_FILENO) < 0) {
		fprintf(stderr, "ep_perf: standard output: %s\n", strerror(errno));
		return -1;
	}
	return 0;
}

void perf_json_open(struct perf *perf)
{
	int ep = 0, nccl = 0, runtime = 0, driver = 0;
	FILE *f;

	if (!perf->opt.json) {
		return;
	}
	f = perf->json = perf->json ? perf->json : fopen(perf->opt.json, "w");
	if (!f) {
		perf_die(perf->ranks, "%s: %s", perf->opt.json, strerror(errno));
	}
	ncclEpGetVersion(&ep);
	ncclGetVersion(&nccl);
	cudaRuntimeGetVersion(&runtime);
	cudaDriverGetVersion(&driver);
	fprintf(f,
		"{\n  \"schema\": \"ep_perf\", \"schema_version\": %d,\n  \"versions\": "
		"{\"nccl_ep\": %d, \"api\": %d, \"nccl\": %d, \"cuda_runtime\": %d, "
		"\"cuda_driver\": %d},\n",
		PERF_SCHEMA_VERSION, ep, NCCL_EP_API_VERSION, nccl, runtime, driver);
	put_origin(f, perf);
	fprintf(f, "  \"launcher\": \"%s\", \"processes\": %u,\n  ", perf->world.launcher,
		perf->world.nprocs);
	if (perf->no_kernel_times) {
		put_string(f, "", "no_kernel_times", perf->no_kernel_times);
		fprintf(f, ",\n");
	} else {
		fprintf(f, "\"no_kernel_times\": null,\n");
	}
	put_problem(f, perf);
	put_ranks(f, perf);
	fprintf(f, "  \"bytes\": {\"dispatch\": \"token x rank\", \"combine\": \"token x %s\"},\n",
		perf->opt.problem.layout == ORACLE_EXPERT_MAJOR && !perf->opt.ht ? "expert"
										 : "rank");
	fprintf(f, "  \"results\": [");
}

/* Numbers in brackets, or null. */
static void put_list(FILE *f, const char *before, const char *key, const float *values,
		     uint32_t count)
{
	fprintf(f, "%s\"%s\": [", before, key);
	for (uint32_t i = 0; i < count; i++) {
		put_value(f, i ? ", " : "", (double)values[i]);
	}
	fprintf(f, "]");
}

/* Of each iteration; null where nothing was measured. */
static void put_samples(FILE *f, const char *key, const struct perf_samples *samples,
			uint32_t count)
{
	if (count == 0 || isnan(samples->most[0])) {
		fprintf(f, ",\n      \"%s\": null", key);
		return;
	}
	fprintf(f, ",\n      \"%s\": {", key);
	put_list(f, "", "max", samples->most, count);
	put_list(f, ", ", "min", samples->least, count);
	fprintf(f, "}");
}

static void put_op(FILE *f, const char *name, const struct perf_op_row *row, double host_us,
		   uint32_t iters)
{
	fprintf(f, ", \"%s\": {", name);
	put_number(f, "", "kernel_us", row->kernel);
	put_number(f, ", ", "p50_us", row->p50);
	put_number(f, ", ", "p90_us", row->p90);
	put_number(f, ", ", "p99_us", row->p99);
	put_number(f, ", ", "fastest_rank_us", row->fastest);
	put_number(f, ", ", "call_cpu_us", host_us);
	put_number(f, ", ", "algbw_gbs", row->algbw);
	put_number(f, ", ", "busbw_gbs", row->busbw);
	put_number(f, ", ", "floor_us", row->floor);
	put_number(f, ", ", "floor_percent", row->floor_percent);
	put_samples(f, "samples_us", &row->samples, iters);
	put_samples(f, "kernel_samples_us", &row->kernel_samples, iters);
	fprintf(f, "}");
}

static void put_clock(FILE *f, const char *before, const char *key,
		      const struct perf_detail *detail, enum perf_clock clock)
{
	fprintf(f, "%s\"%s\": {", before, key);
	put_number(f, "", "min", detail->mhz_least[clock] ? detail->mhz_least[clock] : NAN);
	put_number(f, ", ", "max", detail->mhz_most[clock] ? detail->mhz_most[clock] : NAN);
	fprintf(f, "}");
}

static void put_detail(FILE *f, const struct perf_detail *detail, uint32_t nranks, uint32_t experts)
{
	fprintf(f, ",\n      \"clocks_mhz\": {");
	put_clock(f, "", "sm", detail, PERF_CLOCK_SM);
	put_clock(f, ", ", "memory", detail, PERF_CLOCK_MEMORY);
	fprintf(f, "}, \"routing_digest\": \"fnv1a64:%016llx\",\n      \"expert_ids\": [",
		(unsigned long long)detail->digest);
	for (uint32_t e = 0; e < experts; e++) {
		fprintf(f, "%s%llu", e ? ", " : "", (unsigned long long)detail->expert_ids[e]);
	}
	if (!detail->waits) {
		fprintf(f, "],\n      \"waits_us\": null");
		return;
	}
	fprintf(f, "],\n      \"waits_us\": [");
	for (uint32_t r = 0; r < nranks; r++) {
		for (uint32_t n = 0; n < nranks; n++) {
			put_value(f,
				  n   ? ", "
				  : r ? "],\n        ["
				      : "[",
				  detail->waits[(size_t)r * nranks + n]);
		}
	}
	fprintf(f, "]]");
}

void perf_json_row(struct perf *perf, const struct perf_row *row)
{
	uint32_t iters = perf->opt.iters;
	FILE *f = perf->json;

	if (!f) {
		return;
	}
	fprintf(f, "%s\n    {\"tokens\": %u, ", perf->nrows > 1 ? "," : "", row->tokens);
	if (row->unsupported[0]) {
		put_string(f, "", "unsupported", row->unsupported);
		fprintf(f, "}");
		return;
	}
	put_number(f, "", "copies_per_token", row->copies);
	put_number(f, ", ", "load_cv", row->load_cv);
	if (perf->opt.ht) {
		put_op(f, "routing", &row->op[PERF_UPDATE], row->host_us[PERF_UPDATE], iters);
	}
	put_op(f, "dispatch", &row->op[PERF_DISPATCH], row->host_us[PERF_DISPATCH], iters);
	put_op(f, "combine", &row->op[PERF_COMBINE], row->host_us[PERF_COMBINE], iters);
	put_number(f, ", ", "period_us", row->period);
	put_number(f, ", ", "blocks", row->blocks ? row->blocks : NAN);
	put_number(f, ", ", "wrong", row->checked ? (double)row->wrong : NAN);
	put_detail(f, &row->detail, perf->world.nranks, perf->opt.problem.experts);
	fprintf(f, "}");
	fflush(f);
}

bool perf_json_close(struct perf *perf, const struct perf_setup *setup,
		     const struct perf_links *links)
{
	FILE *f = perf->json;

	if (!f) {
		return true;
	}
	put_number(f, "],\n  \"setup\": {", "group_ms", setup->group_ms);
	put_number(f, ", ", "group_cpu_ms", setup->group_cpu_ms);
	put_number(f, ", ", "handle_ms", setup->handle_ms);
	put_number(f, ", ", "library_mib", setup->library_mib);
	put_number(f, "},\n  \"dispatched\": {", "gpu_bytes",
		   links->known ? (double)links->bytes[PERF_LINK_GPU] : NAN);
	put_number(f, ", ", "rdma_bytes",
		   links->known ? (double)links->bytes[PERF_LINK_RDMA] : NAN);
	put_number(f, "},\n  ", "wrong", perf->opt.check ? (double)perf->wrong : NAN);
	fprintf(f, "\n}\n");
	perf->json = NULL;
	return perf_finish(f, perf->opt.json);
}
