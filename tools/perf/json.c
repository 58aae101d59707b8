// SPDX-License-Identifier: Apache-2.0
/* The same as the table, for programs. Numbers that were not measured are null. */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "perf.h"

/* `before` is the text before the key, a separator mostly. */
static void put_string(FILE *f, const char *before, const char *key, const char *text)
{
	fprintf(f, "%s\"%s\": \"", before, key);
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

static void put_number(FILE *f, const char *before, const char *key, double value)
{
	if (isnan(value) || isinf(value)) {
		fprintf(f, "%s\"%s\": null", before, key);
	} else {
		fprintf(f, "%s\"%s\": %.6g", before, key, value);
	}
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

void perf_json_open(struct perf *perf)
{
	int ep = 0, nccl = 0, runtime = 0, driver = 0;
	FILE *f;

	if (!perf->opt.json) {
		return;
	}
	f = perf->json = fopen(perf->opt.json, "w");
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
	put_string(f, "  \"library\": {", "text", perf_library_text());
	put_string(f, ", ", "path", perf_library_path());
	fprintf(f, "},\n");
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

static void put_op(FILE *f, const char *name, const struct perf_op_row *o, double host_us)
{
	fprintf(f, ", \"%s\": {", name);
	put_number(f, "", "kernel_us", o->kernel);
	put_number(f, ", ", "p50_us", o->p50);
	put_number(f, ", ", "p99_us", o->p99);
	put_number(f, ", ", "fastest_rank_us", o->fastest);
	put_number(f, ", ", "call_cpu_us", host_us);
	put_number(f, ", ", "algbw_gbs", o->algbw);
	put_number(f, ", ", "busbw_gbs", o->busbw);
	put_number(f, ", ", "floor_us", o->floor);
	put_number(f, ", ", "floor_percent", o->floor_percent);
	fprintf(f, "}");
}

void perf_json_row(struct perf *perf, const struct perf_row *row)
{
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
		put_op(f, "routing", &row->op[PERF_UPDATE], row->host_us[PERF_UPDATE]);
	}
	put_op(f, "dispatch", &row->op[PERF_DISPATCH], row->host_us[PERF_DISPATCH]);
	put_op(f, "combine", &row->op[PERF_COMBINE], row->host_us[PERF_COMBINE]);
	put_number(f, ", ", "period_us", row->period);
	put_number(f, ", ", "blocks", row->blocks ? row->blocks : NAN);
	put_number(f, ", ", "wrong", row->checked ? (double)row->wrong : NAN);
	fprintf(f, "}");
	fflush(f);
}

void perf_json_close(struct perf *perf, const struct perf_setup *setup,
		     const struct perf_links *links)
{
	FILE *f = perf->json;

	if (!f) {
		return;
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
	if (fclose(f)) {
		fprintf(stderr, "ep_perf: %s: %s\n", perf->opt.json, strerror(errno));
	}
	perf->json = NULL;
}
