/* SPDX-License-Identifier: Apache-2.0 */
/* The table, at most 100 columns wide, in the manner of nccl-tests. */
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "nccl_ep/ext.h"
#include "perf.h"

extern char **environ;

const char *perf_dtype_name(const struct perf_options *opt)
{
	static const char *const names[] = { "bf16", "fp16", "fp32" };

	return names[opt->problem.dtype];
}

const char *perf_layout_name(const struct perf_options *opt)
{
	if (opt->flat) {
		return "flat";
	}
	return opt->problem.layout == ORACLE_EXPERT_MAJOR ? "em" : "rm";
}

const char *perf_quant_name(const struct perf_options *opt)
{
	static const char *const names[] = { "none", "fp8", "fp8-v1", "fwd" };

	return names[opt->problem.quant];
}

const char *perf_environment(uint32_t index)
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
	printf("library   %s\n", perf_library_text());
}

const char *perf_library_text(void)
{
	__typeof__(&ncclEpExtVersion) ask = dlsym(RTLD_DEFAULT, "ncclEpExtVersion");
	const char *text;

	return ask && ask(&text) == ncclSuccess ? text : "not Switchyard";
}

const char *perf_library_path(void)
{
	void *call = dlsym(RTLD_DEFAULT, "ncclEpGetVersion");
	Dl_info info;

	return call && dladdr(call, &info) && info.dli_fname ? info.dli_fname : "";
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
	printf("# library   %s\n", perf_library_text());
}

static void report_settings(const struct perf *perf)
{
	const struct perf_options *opt = &perf->opt;
	const struct oracle_problem *p = &opt->problem;

	printf("# mode %s   layout %s   experts %u   topk %u   hidden %u   dtype %s   quant %s%s   "
	       "ids %d\n",
	       opt->ht ? "ht" : "ll", perf_layout_name(opt), p->experts, p->topk, p->hidden,
	       perf_dtype_name(opt), perf_quant_name(opt), p->pow2_scales ? "+pow2" : "",
	       opt->ids64 ? 64 : 32);
	printf("# routing %s   drop %g   seed %llu   capacity %u%s%s%s%s   sms ", p->routing.text,
	       p->drop_ppm / 1e6, (unsigned long long)p->seed, opt->capacity,
	       p->uneven ? "   uneven" : "", opt->staged ? "   staged" : "",
	       opt->mask ? "   mask" : "", opt->windows ? "   windows" : "");
	if (opt->sms) {
		printf("%u\n", opt->sms);
	} else {
		printf("auto\n");
	}
	if (opt->eager) {
		printf("# eager mode: a dispatch waits until the host knows how many rows come\n");
	} else if (opt->ht) {
		printf("# received rows: at most %u of a rank, more %s\n", perf->ranks[0].ht.limit,
		       opt->overflow_drop ? "are dropped" : "are an error");
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
	for (uint32_t i = 0; (text = perf_environment(i)) != NULL; i++) {
		printf("#  %.95s\n", text);
	}
}

static void legend_ht(const struct perf_options *opt)
{
	printf("#   routing: ncclEpUpdateHandle. pair: dispatch + combine back to back, no host\n"
	       "#   synchronisation%s\n",
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
	printf("# cp/tk: distinct ranks per token.\n#\n");
	printf("#            |-- routing --||-- dispatch -||-- combine --| chain |-dispatch GB/s||-"
	       "combine GB/s|\n");
	printf("#token cp/tk kernel    p50 kernel    p50 kernel    p50   pair  alg  bus fl%%  alg  bus "
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
	printf("# cp/tk: distinct ranks per token.\n#\n");
	printf("#            |---- dispatch -----||----- combine -----| chain |-dispatch GB/s||-combine "
	       "GB/s|\n");
	printf("#token cp/tk kernel    p50    p99 kernel    p50    p99 period  alg  bus fl%%  alg  bus "
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

/* High throughput has one operation more, and no column for p99. */
static void report_op(const struct perf_options *opt, const struct perf_op_row *row, double host_us)
{
	cell(perf_cell_time, row->kernel, 7);
	cell(perf_cell_time, opt->report_cpu ? host_us : row->p50, 7);
	if (!opt->ht) {
		cell(perf_cell_time, opt->report_cpu ? NAN : row->p99, 7);
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
	printf(" %5.2f", row->copies);
	for (int op = perf_first_op(opt); op < PERF_OPS; op++) {
		report_op(opt, &row->op[op], row->host_us[op]);
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
	return perf_finish(stdout, "standard output");
}
