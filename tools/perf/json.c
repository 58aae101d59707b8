/* SPDX-License-Identifier: Apache-2.0 */
/* The same as the table, for programs. Numbers that were not measured are null. */
#include <errno.h>
#include <math.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "perf.h"

static void put_problem(struct ep_json *json, const struct perf *perf)
{
	static const char *const averages[] = { "rank0", "mean", "min", "max" };
	const struct perf_options *opt = &perf->opt;
	const struct oracle_problem *p = &opt->problem;

	json->line = true;
	ep_json_open(json, "config", '{');
	ep_json_text(json, "mode", opt->ht ? "ht" : "ll");
	ep_json_text(json, "layout", perf_layout_name(opt));
	ep_json_print(json, "experts", "%u", p->experts);
	ep_json_print(json, "topk", "%u", p->topk);
	ep_json_print(json, "hidden", "%u", p->hidden);
	ep_json_text(json, "dtype", perf_dtype_name(opt));
	ep_json_text(json, "quant", perf_quant_name(opt));
	ep_json_bool(json, "pow2_scales", p->pow2_scales);
	ep_json_print(json, "id_bits", "%d", opt->ids64 ? 64 : 32);
	ep_json_text(json, "routing", p->routing.text);
	ep_json_number(json, "drop", p->drop_ppm / 1e6);
	ep_json_print(json, "seed", "%llu", (unsigned long long)p->seed);
	ep_json_bool(json, "uneven", p->uneven);
	ep_json_print(json, "capacity", "%u", opt->capacity);
	ep_json_print(json, "sms", "%u", opt->sms);
	ep_json_bool(json, "staged", opt->staged);
	ep_json_bool(json, "mask", opt->mask);
	ep_json_bool(json, "windows", opt->windows);
	ep_json_print(json, "iterations", "%u", opt->iters);
	ep_json_print(json, "warmup", "%u", opt->warmup);
	ep_json_print(json, "graph_replays", "%u", opt->graph);
	ep_json_bool(json, "aligned", opt->align);
	ep_json_text(json, "average", averages[opt->average]);
	ep_json_number(json, "floor_gbs", opt->floor_gbs);
	if (opt->ht) {
		ep_json_number(json, "memory_gbs", opt->memory_gbs);
		ep_json_print(json, "max_recv_tokens", "%u", perf->ranks[0].ht.limit);
		ep_json_bool(json, "eager", opt->eager);
		ep_json_text(json, "overflow", opt->overflow_drop ? "drop" : "trap");
		ep_json_print(json, "zone_alignment", "%u", opt->zone_alignment);
		ep_json_bool(json, "backward", opt->backward);
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
	for (uint32_t i = 0; (text = perf_environment(i)) != NULL; i++) {
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
	const char *at = strstr(perf_library_text(), mark);
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
	ep_json_text(json, "text", perf_library_text());
	ep_json_text(json, "path", perf_library_path());
	put_word(json, "version", "Switchyard ");
	put_word(json, "commit", ", commit ");
	ep_json_close(json, '}');
	ep_json_text(json, "driver", text_or_null(perf_driver_version()));
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

static void put_op(struct ep_json *json, const char *name, const struct perf_op_row *row,
		   double host_us, uint32_t iters)
{
	ep_json_open(json, name, '{');
	ep_json_number(json, "kernel_us", row->kernel);
	ep_json_number(json, "p50_us", row->p50);
	ep_json_number(json, "p90_us", row->p90);
	ep_json_number(json, "p99_us", row->p99);
	ep_json_number(json, "fastest_rank_us", row->fastest);
	ep_json_number(json, "call_cpu_us", host_us);
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
	if (row->unsupported[0]) {
		ep_json_text(json, "unsupported", row->unsupported);
		ep_json_close(json, '}');
		return;
	}
	ep_json_number(json, "copies_per_token", row->copies);
	ep_json_number(json, "load_cv", row->load_cv);
	if (perf->opt.ht) {
		put_op(json, "routing", &row->op[PERF_UPDATE], row->host_us[PERF_UPDATE], iters);
	}
	put_op(json, "dispatch", &row->op[PERF_DISPATCH], row->host_us[PERF_DISPATCH], iters);
	put_op(json, "combine", &row->op[PERF_COMBINE], row->host_us[PERF_COMBINE], iters);
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
	return perf_finish(out, perf->opt.json);
}
