/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what is installed here, what the library would make of it, and why. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/nccl_env.h"
#include "tools/ep_info.h"
#include "topo/topo.h"

/* Returns the exit status: `status`, unless output is lost. */
static int end(int status)
{
	return ep_output_end(stdout, "ep_info", "standard output") ? status : 1;
}

static int usage(void)
{
	fputs("Usage: ep_info [-v] [-d] [-p] [-r] [-n] [-q]\n"
	      "       ep_info --live [--json | --prometheus]\n"
	      "       ep_info --memory --experts N --hidden N --tokens N --ranks N [--topk N]\n"
	      "               [--mode ll|ht] [--layout em|rm|flat] [--node-ranks N]\n"
	      "               [--holders FIRST:N] [--senders FIRST:N]\n"
	      "               [--quant none|fp8|mxfp8|nvfp4] [--recv-tokens N] [--gpu-memory GIB] [--json]\n"
	      "       ep_info -h | -V\n\n",
	      stdout);
	ep_options_print(&ep_info_options, stdout);
	puts("\nWithout options: all but --net and --queues.");
	return end(0);
}

static bool is_open(const void *arg, const char *name, int port)
{
	return ep_info_nics_find(arg, name, port) >= 0;
}

/*
 * Checks that options of one kind of question do not stand beside another. Returns what is wrong,
 * or NULL.
 */
static const char *check(const struct ep_info_request *q)
{
	static const struct ep_info_shape unasked = EP_INFO_SHAPE_INIT;
	int others = q->versions | q->devices | q->params | q->rdma | q->net | q->queues;

	if ((q->live || q->memory) && others) {
		return "--live and --memory print nothing else";
	}
	if (q->live && q->memory) {
		return "--live or --memory, not both";
	}
	if (!q->memory && memcmp(&q->shape, &unasked, sizeof(unasked)) != 0) {
		return "sizes of a group need --memory";
	}
	if (q->json && !q->live && !q->memory) {
		return "--json needs --live or --memory";
	}
	return q->prometheus && !q->live ? "--prometheus needs --live" : NULL;
}

/* Parses the command line. Returns -1, or the exit status where there is nothing more to do. */
static int parse(int argc, char **argv, struct ep_info_request *q)
{
	const char *wrong;

	switch (ep_options_parse(&ep_info_options, q, argc, argv)) {
	case 'h':
		return usage();
	case 'V':
		puts("ep_info " EP_VERSION);
		return end(0);
	case -1:
		return 2;
	}
	if (optind < argc) {
		fprintf(stderr, "ep_info: '%s' is not an option. Try 'ep_info -h'.\n",
			argv[optind]);
		return 2;
	}
	wrong = check(q);
	if (wrong) {
		fprintf(stderr, "ep_info: %s\n", wrong);
		return 2;
	}
	if (!(q->versions | q->devices | q->params | q->rdma | q->net | q->queues)) {
		q->versions = q->devices = q->params = q->rdma = 1;
	}
	return -1;
}

int main(int argc, char **argv)
{
	struct ep_topo_opts opts;
	struct ep_topo_err err;
	struct ep_topo *topo = NULL;
	struct ep_info_nics nics = { .n = 0 };
	struct ep_info_request q = { .shape = EP_INFO_SHAPE_INIT };
	int status = parse(argc, argv, &q);

	if (status >= 0) {
		return status;
	}
	if (q.live) {
		return end(ep_info_live(q.prometheus ? EP_LIVE_PROMETHEUS
					: q.json     ? EP_LIVE_JSON
						     : EP_LIVE_TABLE));
	}
	/* From here on what NCCL reads from its files counts, as in a program. */
	ep_conf_load();
	if (q.memory) {
		return end(ep_info_memory(&q.shape, q.json));
	}
	status = 0;
	if (q.net) {
		ep_info_net();
	}
	if (q.queues) {
		ep_info_queues();
	}
	if (!(q.versions | q.devices | q.params | q.rdma)) {
		return end(0);
	}
	ep_topo_opts_env(&opts);
	if (q.devices || q.rdma) {
		ep_info_nics_list(&nics);
	}
	if (nics.n) { /* the library chooses among these */
		opts.is_open = is_open;
		opts.is_open_arg = &nics;
	}
	if (ep_topo_load(&opts, &topo, &err)) {
		fprintf(stderr, "ep_info: %s\n", err.text);
		topo = NULL;
		status = 1;
	}
	if (q.versions) {
		ep_info_versions(topo);
	}
	if (q.devices) {
		puts("Devices");
		if (topo) {
			ep_topo_print_table(topo, stdout);
		}
	}
	if (q.params) {
		ep_info_params();
	}
	if (q.rdma) {
		ep_info_rdma(topo, &nics);
	}
	ep_topo_free(topo);
	return end(status);
}
