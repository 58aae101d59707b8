/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The topology as a module: a shared library beside libnccl_ep, which loads it when it needs to
 * know and does without where it, or the hwloc that it needs, is not installed. One function.
 */
#ifndef EP_TOPO_MODULE_H
#define EP_TOPO_MODULE_H

#include <stdint.h>

/* Of this header: any change to it is a new number. */
#define EP_TOPO_MODULE_ABI 3
#define EP_TOPO_MODULE_FILE "libnccl_ep_topo.so.0"
#define EP_TOPO_MODULE_SYMBOL "ep_topo_module_query"

struct ep_topo_module_port {
	char name[64]; /* of the RDMA device; a PCI address where the source gives no name */
	int32_t port;
	int32_t gdr;  /* 1: yes; 0: too far for NCCL_NET_GDR_LEVEL; -1: a file denies it */
	char dist[8]; /* name of the distance */
};

struct ep_topo_module_open {
	char name[64];
	int32_t port;
};

struct ep_topo_module_query {
	/* in */
	const char *bus_id;
	const char *uuid; /* distinguishes MIG instances of one GPU; may be NULL */
	/*
	 * Active ports that this process can open: sysfs shows a container those of others as well.
	 */
	const struct ep_topo_module_open *open;
	int32_t nopen;
	struct ep_topo_module_port *port;
	int32_t room;
	/* out */
	int32_t n;        /* ports of this GPU, all open and equally near */
	int32_t known;    /* the topology has the GPU */
	char source[320]; /* what the topology was read from */
	char text[512];   /* the error, if there is one */
};

/*
 * Reads the topology as the environment has it (ep_topo_opts_env). 0, or a negative errno and text;
 * -EPROTO, with nothing else touched, if `abi` is not EP_TOPO_MODULE_ABI.
 */
typedef int ep_topo_module_query_fn(int abi, struct ep_topo_module_query *query);
ep_topo_module_query_fn ep_topo_module_query;

#endif
