/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs. */
#ifndef VC_GRAPH_H
#define VC_GRAPH_H

#include "cuda/work.h"

struct vc_node {
	struct vc_work work;
	uint32_t *deps; /* indices of earlier nodes */
	uint32_t ndeps;
};

struct CUgraph_st {
	struct vc_node *node;
	uint32_t n, cap;
	struct CUgraph_st *next;
};

struct CUgraph_st *vc_graph_new(void);
void vc_graph_free(struct CUgraph_st *graph);
/* Lists a graph among those that the user may name; with vc_lock held. */
void vc_graph_publish(struct CUgraph_st *graph);
void vc_exec_graph_run(struct CUgraphExec_st *graph);
void vc_exec_graph_put(struct CUgraphExec_st *graph);
/* Graphs with work of the device, and executable graphs made for it. The device is at rest. */
void vc_graphs_end(int device);

#endif
