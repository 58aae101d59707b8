/* SPDX-License-Identifier: Apache-2.0 */
/* The parts of ep_info: what each prints, and what they find out for one another. */
#ifndef EP_TOOLS_EP_INFO_H
#define EP_TOOLS_EP_INFO_H

#include <stdbool.h>
#include "core/error.h"
#include "core/log.h"
#include "gda/gda.h"
#include "tools/option_tables.h"
#include "rdma/rdma.h"
#include "topo/topo.h"

/* Requirements of RDMA. Each mode has those of the modes below it and more. */
enum ep_info_fact_id {
	EP_INFO_GPU,
	EP_INFO_ENABLED,  /* no variable forbids it, or is not understood */
	EP_INFO_VERBS,    /* libibverbs loads and is new enough */
	EP_INFO_PORT,     /* every GPU has a port that opens, is active and is permitted to it */
	EP_INFO_HEAP,     /* GPU memory can be registered */
	EP_INFO_DEVX,     /* libmlx5, and all devices that GPUs use open with DEVX */
	EP_INFO_DOORBELL, /* the GPU may map a page of the NIC */
	EP_INFO_QUEUES,   /* GPU memory can hold queues */
	EP_INFO_FACTS
};

struct ep_info_fact {
	bool yes;
	char text[256]; /* why, or why not */
};

/* A CUDA device. */
struct ep_info_gpu {
	char bus_id[24];
	bool known; /* to the topology */
	bool port;  /* it has its own of EP_INFO_PORT, else no_port, "": there is none at all */
	bool devx;  /* and of EP_INFO_DEVX */
	char no_port[320], no_devx[320];
};

struct ep_info_facts {
	struct ep_info_fact fact[EP_INFO_FACTS];
	struct ep_info_fact order; /* data a NIC writes before a flag is seen before it */
	int ngpus;
	struct ep_info_gpu gpu[EP_TOPO_MAX_GPUS];
};

struct ep_info_nics {
	int devices, ports, active; /* as many as there are */
	int n;                      /* active and permitted ones */
	struct ep_port port[EP_PORT_MAX];
	char bond[EP_PORT_MAX][48];    /* what the port is a bond of; "": it is none */
	char no_devx[EP_PORT_MAX][96]; /* why its device has no DevX; "": it has */
	char closed[96];               /* devices that do not open */
};

/*
 * Makes a queue pair on each port, connects it with itself and destroys it; prints what came of it.
 */
void ep_info_queues(void);
void ep_info_params(void);
void ep_info_net(void);
void ep_info_probe(struct ep_info_facts *facts, const struct ep_topo *topo,
		   const struct ep_info_nics *nics);
void ep_info_rdma(const struct ep_topo *topo, const struct ep_info_nics *nics);

void ep_info_nics_list(struct ep_info_nics *nics);
/* Its place in port[], or -1. */
int ep_info_nics_find(const struct ep_info_nics *nics, const char *name, int port);

/* Fills all but bus_id of facts->gpu. topo may be NULL. */
void ep_info_gpus_match(struct ep_info_facts *facts, const struct ep_topo *topo,
			const struct ep_info_nics *nics);

/*
 * The first thing that `mode` (not AUTO) needs and that is not there, for one GPU, NULL: for any;
 * EP_INFO_FACTS: all is.
 */
enum ep_info_fact_id ep_info_mode_lacks(const struct ep_info_facts *facts,
					const struct ep_info_gpu *gpu, enum ep_gda_mode mode);
/* The mode that EP_GDA_AUTO chooses; EP_GDA_AUTO: none is possible. */
enum ep_gda_mode ep_info_mode_best(const struct ep_info_facts *facts,
				   const struct ep_info_gpu *gpu);

enum ep_live_format {
	EP_LIVE_TABLE,
	EP_LIVE_JSON,
	EP_LIVE_PROMETHEUS
};
/* Prints what groups do; a table on a terminal again and again. Returns the exit status. */
int ep_info_live(enum ep_live_format format);

/* Makes a text of a file that other users may have written one that ends and is printable. */
static inline void ep_info_clean(char *text, size_t size)
{
	text[size - 1] = '\0';
	ep_log_flatten(text);
}

/* Prints what it takes, and whether it is possible: 0; 1 if not; 2 for wrong usage. */
int ep_info_memory(const struct ep_info_shape *shape, bool json);

void ep_info_versions(const struct ep_topo *topo);
/*
 * Returns the library that the loader finds, or else the one that was installed with this program;
 * NULL, and why.
 */
void *ep_info_library(struct ep_reason *why);

#endif
