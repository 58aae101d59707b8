// SPDX-License-Identifier: Apache-2.0
/* What is installed here, what the library would make of it, and why. */
#include <dlfcn.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <nccl.h>

#include "nccl_ep.h"
#include "tools/conf.h"
#include "tools/ep_info.h"
#include "topo/topo.h"

enum part {
	PART_VERSIONS = 1,
	PART_DEVICES = 2,
	PART_PARAMS = 4,
	PART_RDMA = 8,
	PART_ALL = 15,
};

static int usage(FILE *out, int status)
{
	fputs("Usage: ep_info [-v] [-d] [-p] [-r]\n"
	      "\n"
	      "  -v, --versions  library, NCCL, CUDA, and the GPU architectures compiled in\n"
	      "  -d, --devices   GPUs and the NICs they use, as ep_topo prints them\n"
	      "  -p, --params    every parameter, its value and where that comes from\n"
	      "  -r, --rdma      how GPUs could reach the network from here, and why not\n"
	      "  -h, --help      this text\n"
	      "\n"
	      "Without options: all of them.\n",
	      out);
	return status;
}

/* Calls int f(int *) from a library, if both are there. */
static const char *call_version(const char *lib_name, const char *symbol, int *version)
{
	void *lib = dlopen(lib_name, RTLD_NOW | RTLD_LOCAL);
	int (*get)(int *);

	if (!lib) {
		return "not found";
	}
	*(void **)&get = dlsym(lib, symbol);
	if (!get || get(version)) {
		return "found, but it gives no version";
	}
	return NULL;
}

static void print_nccl(const char *what, int code)
{
	printf("  %-22s %d.%d.%d\n", what, code / 10000, code / 100 % 100, code % 100);
}

static void print_versions(const struct ep_topo *topo)
{
	const char *why;
	int v = 0;

	puts("Versions");
	printf("  %-22s %d.%d.%d, API version %d\n", "ep_info built with", NCCL_EP_MAJOR,
	       NCCL_EP_MINOR, NCCL_EP_PATCH, NCCL_EP_API_VERSION);
	why = call_version("libnccl_ep.so.0", "ncclEpGetVersion", &v);
	if (why) {
		printf("  %-22s %s\n", "libnccl_ep.so.0", why);
	} else {
		print_nccl("libnccl_ep.so.0", v);
	}
	print_nccl("NCCL headers", NCCL_VERSION_CODE);
	why = call_version("libnccl.so.2", "ncclGetVersion", &v);
	if (why) {
		printf("  %-22s %s\n", "libnccl.so.2", why);
	} else {
		print_nccl("libnccl.so.2", v);
	}
	why = call_version("libcuda.so.1", "cuDriverGetVersion", &v);
	if (why) {
		printf("  %-22s %s\n", "libcuda.so.1", why);
	} else {
		printf("  %-22s CUDA %d.%d\n", "libcuda.so.1", v / 1000, v % 1000 / 10);
	}
	printf("  %-22s %s\n", "GPU driver", topo && *topo->driver ? topo->driver : "not found");
	printf("  %-22s %s\n", "compiled for", EP_GPU_ARCHS);
}

static bool is_open(const void *arg, const char *name, int port)
{
	return ep_info_nics_find(arg, name, port) >= 0;
}

int main(int argc, char **argv)
{
	static const struct option longs[] = {
		{ "versions", no_argument, NULL, 'v' }, { "devices", no_argument, NULL, 'd' },
		{ "params", no_argument, NULL, 'p' },   { "rdma", no_argument, NULL, 'r' },
		{ "help", no_argument, NULL, 'h' },     { NULL, 0, NULL, 0 },
	};
	struct ep_topo_opts opts;
	struct ep_topo_err err;
	struct ep_topo *topo = NULL;
	struct ep_info_nics nics = { .n = 0 };
	int parts = 0, status = 0, c;

	while ((c = getopt_long(argc, argv, "vdprh", longs, NULL)) != -1) {
		switch (c) {
		case 'v':
			parts |= PART_VERSIONS;
			break;
		case 'd':
			parts |= PART_DEVICES;
			break;
		case 'p':
			parts |= PART_PARAMS;
			break;
		case 'r':
			parts |= PART_RDMA;
			break;
		case 'h':
			return usage(stdout, 0);
		default:
			return usage(stderr, 2);
		}
	}
	if (optind < argc) {
		return usage(stderr, 2);
	}
	parts = parts ? parts : PART_ALL;
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
		print_versions(topo);
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
