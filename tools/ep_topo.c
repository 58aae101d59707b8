/* SPDX-License-Identifier: Apache-2.0 */
/* Prints which NICs each GPU uses, for this machine or for a recorded one. */
#include <stdio.h>
#include <unistd.h>

#include "tools/nccl_env.h"
#include "tools/option_tables.h"
#include "topo/topo.h"

/* Returns the exit status. */
static int end(void)
{
	return ep_output_end(stdout, "ep_topo", "standard output") ? 0 : 1;
}

static int usage(void)
{
	fputs("Usage: ep_topo [--json] [FILE]\n"
	      "\n"
	      "Prints GPU -> NIC -> port -> NUMA node, one line per GPU.\n"
	      "FILE is NCCL's topology XML (NCCL_TOPO_DUMP_FILE writes one) or hwloc's (lstopo\n"
	      "FILE.xml writes one), taken as it is. Without FILE: this machine, corrected by\n"
	      "NCCL_TOPO_FILE if that is set. NCCL_IB_HCA, NCCL_IB_DISABLE and\n"
	      "NCCL_NET_GDR_LEVEL count in both cases.\n"
	      "\n",
	      stdout);
	ep_options_print(&ep_topo_options, stdout);
	return end();
}

int main(int argc, char **argv)
{
	struct ep_topo_opts opts;
	struct ep_topo_err err;
	struct ep_topo *topo;
	int json = 0;

	switch (ep_options_parse(&ep_topo_options, &json, argc, argv)) {
	case 'h':
		return usage();
	case 'V':
		puts("ep_topo " EP_VERSION);
		return end();
	case -1:
		return 2;
	}
	if (argc - optind > 1) {
		fprintf(stderr, "ep_topo: '%s' is a second file. Try 'ep_topo -h'.\n",
			argv[optind + 1]);
		return 2;
	}
	ep_conf_load();
	ep_topo_opts_env(&opts);
	if (optind < argc) {
		opts.file = argv[optind];
		opts.file_only = true;
	}
	if (ep_topo_load(&opts, &topo, &err)) {
		fprintf(stderr, "ep_topo: %s\n", err.text);
		return 1;
	}
	if (json) {
		ep_topo_print_json(topo, stdout);
	} else {
		ep_topo_print_table(topo, stdout);
	}
	ep_topo_free(topo);
	return end();
}
