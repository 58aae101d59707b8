/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what is installed here, what the library would make of it, and why. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tools/conf.h"
#include "tools/ep_info.h"
#include "tools/options.h"
#include "topo/topo.h"

enum part {
	PART_VERSIONS = 1,
	PART_DEVICES = 2,
	PART_PARAMS = 4,
	PART_RDMA = 8,
	PART_ALL = 15,
	PART_NET = 16,
	PART_QUEUES = 32,
	PART_LIVE = 64,
	PART_MEMORY = 128,
};

/* Options of the command line. */
struct request {
	int parts; /* of enum part */
	enum ep_live_format format;
	struct ep_info_shape shape;
	bool shaped; /* the shape was asked for */
};

static int usage(void)
{
	fputs("Usage: ep_info [-v] [-d] [-p] [-r] [-n] [-q]\n"
	      "       ep_info --live [--json | --prometheus]\n"
	      "       ep_info --memory --experts N --hidden N --tokens N --ranks N [--topk N]\n"
	      "               [--mode ll|ht] [--layout em|rm|flat] [--node-ranks N] [--fp8]\n"
	      "               [--recv-tokens N] [--gpu-memory GIB] [--json]\n"
	      "       ep_info -h | -V\n\n",
	      stdout);
	ep_options_print(ep_info_options, EP_INFO_OPTIONS, stdout);
	puts("\nWithout options: all but --net and --queues.");
	return fflush(stdout) || ferror(stdout) ? 1 : 0;
}

static bool is_open(const void *arg, const char *name, int port)
{
	return ep_info_nics_find(arg, name, port) >= 0;
}

/* Checks that options of one kind of question do not stand beside another. -1, or the exit status. */
static int check(const struct request *request)
{
	int alone = request->parts & (PART_LIVE | PART_MEMORY);

	if (alone && request->parts != alone) {
		fputs("ep_info: --live and --memory print nothing else\n", stderr);
		return 2;
	}
	if (alone == (PART_LIVE | PART_MEMORY)) {
		fputs("ep_info: --live or --memory, not both\n", stderr);
		return 2;
	}
	if (request->shaped && alone != PART_MEMORY) {
		fputs("ep_info: sizes of a group need --memory\n", stderr);
		return 2;
	}
	if (request->format == EP_LIVE_JSON && !alone) {
		fputs("ep_info: --json needs --live or --memory\n", stderr);
		return 2;
	}
	if (request->format == EP_LIVE_PROMETHEUS && alone != PART_LIVE) {
		fputs("ep_info: --prometheus needs --live\n", stderr);
		return 2;
	}
	return -1;
}

/* One option. -1, or the exit status where there is nothing more to do. */
static int take(struct request *request, int option)
{
	switch (option) {
	case 'v':
		request->parts |= PART_VERSIONS;
		return -1;
	case 'd':
		request->parts |= PART_DEVICES;
		return -1;
	case 'p':
		request->parts |= PART_PARAMS;
		return -1;
	case 'r':
		request->parts |= PART_RDMA;
		return -1;
	case 'n':
		request->parts |= PART_NET;
		return -1;
	case 'q':
		request->parts |= PART_QUEUES;
		return -1;
	case EP_OPTION_LIVE:
		request->parts |= PART_LIVE;
		return -1;
	case EP_OPTION_MEMORY:
		request->parts |= PART_MEMORY;
		return -1;
	case EP_OPTION_JSON:
		request->format = EP_LIVE_JSON;
		return -1;
	case EP_OPTION_PROMETHEUS:
		request->format = EP_LIVE_PROMETHEUS;
		return -1;
	case 'h':
		return usage();
	case 'V':
		puts("ep_info " EP_VERSION);
		return 0;
	case '?': /* getopt_long() has printed why */
		fputs("Try 'ep_info -h'.\n", stderr);
		return 2;
	default:
		request->shaped = true;
		return ep_info_shape_take(&request->shape, option, optarg);
	}
}

static int parse(int argc, char **argv, struct request *request)
{
	int c, status;

	while ((c = ep_options_next(ep_info_options, EP_INFO_OPTIONS, argc, argv)) != -1) {
		status = take(request, c);
		if (status >= 0) {
			return status;
		}
	}
	if (optind < argc) {
		fprintf(stderr, "ep_info: '%s' is not an option. Try 'ep_info -h'.\n",
			argv[optind]);
		return 2;
	}
	status = check(request);
	request->parts = request->parts ? request->parts : PART_ALL;
	return status;
}

int main(int argc, char **argv)
{
	struct ep_topo_opts opts;
	struct ep_topo_err err;
	struct ep_topo *topo = NULL;
	struct ep_info_nics nics = { .n = 0 };
	struct request q = { .format = EP_LIVE_TABLE, .shape = EP_INFO_SHAPE_INIT };
	int status = parse(argc, argv, &q), parts = q.parts;

	if (status >= 0) {
		return status;
	}
	if (parts & PART_LIVE) {
		return ep_info_live(q.format);
	}
	if (parts & PART_MEMORY) {
		return ep_info_memory(&q.shape, q.format == EP_LIVE_JSON);
	}
	status = 0;
	if (parts & PART_NET) {
		ep_info_net();
	}
	if (parts & PART_QUEUES) {
		ep_info_queues();
	}
	if (!(parts & PART_ALL)) {
		return fflush(stdout) || ferror(stdout) ? 1 : 0;
	}
	ep_conf_load();
	ep_topo_opts_env(&opts);
	if (parts & (PART_DEVICES | PART_RDMA)) {
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
	if (parts & PART_VERSIONS) {
		ep_info_versions(topo);
	}
	if (parts & PART_DEVICES) {
		puts("Devices");
		if (topo) {
			ep_topo_print_table(topo, stdout);
		}
	}
	if (parts & PART_PARAMS) {
		ep_info_params();
	}
	if (parts & PART_RDMA) {
		ep_info_rdma(topo, &nics);
	}
	ep_topo_free(topo);
	return fflush(stdout) || ferror(stdout) ? 1 : status;
}
