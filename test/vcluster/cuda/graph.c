/* SPDX-License-Identifier: Apache-2.0 */
/* Graphs: what a capture recorded, made executable, and its replay. */
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include "cuda/capture.h"
#include "cuda/device.h"

struct CUgraphExec_st {
	int refs;
	bool destroyed;
	int device;
	struct CUgraph_st *graph; /* its own copy */
	struct vc_marker *last;   /* launches of one executable graph follow each other */
	struct CUgraphExec_st *next;
};

/* One replay. */
struct vc_replay {
	sem_t ended;
	struct vc_replay_node {
		struct vc_grid grid;
		struct vc_replay *replay;
		bool started;
		_Atomic bool done;
	} * node;
	uint32_t left;
};

static struct CUgraph_st *vc_graphs;
static struct CUgraphExec_st *vc_execs;

struct CUgraph_st *vc_graph_new(void)
{
	return calloc(1, sizeof(struct CUgraph_st));
}

void vc_graph_free(struct CUgraph_st *graph)
{
	if (!graph) {
		return;
	}
	for (uint32_t i = 0; i < graph->n; i++) {
		vc_work_free(&graph->node[i].work);
		free(graph->node[i].deps);
	}
	free(graph->node);
	free(graph);
}

void vc_graph_publish(struct CUgraph_st *graph)
{
	graph->next = vc_graphs;
	vc_graphs = graph;
}

static bool vc_graph_known(cudaGraph_t graph)
{
	struct CUgraph_st *at;

	for (at = vc_graphs; at && at != graph; at = at->next) {
	}
	return at != NULL;
}

static bool vc_exec_known(cudaGraphExec_t exec)
{
	struct CUgraphExec_st *at;

	for (at = vc_execs; at && at != exec; at = at->next) {
	}
	return at != NULL && !at->destroyed;
}

static struct CUgraph_st *vc_graph_copy(const struct CUgraph_st *from)
{
	struct CUgraph_st *to = vc_graph_new();

	if (!to) {
		return NULL;
	}
	to->node = calloc(from->n ? from->n : 1, sizeof(*to->node));
	if (!to->node) {
		free(to);
		return NULL;
	}
	for (; to->n < from->n; to->n++) {
		const struct vc_node *source = &from->node[to->n];
		struct vc_node *node = &to->node[to->n];

		node->ndeps = source->ndeps;
		node->deps = malloc((source->ndeps + 1) * sizeof(*node->deps));
		if (!node->deps || vc_work_clone(&node->work, &source->work)) {
			free(node->deps);
			vc_graph_free(to);
			return NULL;
		}
		memcpy(node->deps, source->deps, source->ndeps * sizeof(*node->deps));
	}
	return to;
}

cudaError_t cudaGraphCreate(cudaGraph_t *out, unsigned int flags)
{
	VC_ENTER();
	if (!out || flags) {
		return vc_error(cudaErrorInvalidValue);
	}
	*out = vc_graph_new();
	if (!*out) {
		return vc_error(cudaErrorMemoryAllocation);
	}
	pthread_mutex_lock(&vc_lock);
	vc_graph_publish(*out);
	pthread_mutex_unlock(&vc_lock);
	return cudaSuccess;
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph)
{
	struct CUgraph_st **at;
	bool found = false;

	VC_ENTER();
	pthread_mutex_lock(&vc_lock);
	for (at = &vc_graphs; *at; at = &(*at)->next) {
		if (*at == graph) {
			*at = graph->next;
			vc_graph_free(graph);
			found = true;
			break;
		}
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_error(found ? cudaSuccess : cudaErrorInvalidValue);
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t *nodes, size_t *n)
{
	cudaError_t error = cudaErrorInvalidValue;

	VC_ENTER();
	pthread_mutex_lock(&vc_lock);
	if (n && vc_graph_known(graph)) {
		error = nodes ? cudaErrorNotSupported : cudaSuccess;
		*n = graph->n;
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_error(error);
}

cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t *out, cudaGraph_t graph,
					  unsigned long long flags)
{
	struct CUgraphExec_st *exec;
	cudaError_t error = cudaErrorMemoryAllocation;

	VC_ENTER();
	if (!out || flags & ~(unsigned long long)(cudaGraphInstantiateFlagAutoFreeOnLaunch |
						  cudaGraphInstantiateFlagUseNodePriority)) {
		return vc_error(cudaErrorInvalidValue);
	}
	exec = calloc(1, sizeof(*exec));
	if (!exec) {
		return vc_error(cudaErrorMemoryAllocation);
	}
	exec->refs = 1;
	exec->device = vc_device_current();
	pthread_mutex_lock(&vc_lock);
	if (!vc_graph_known(graph)) {
		error = cudaErrorInvalidValue;
	} else {
		exec->graph = vc_graph_copy(graph);
	}
	if (exec->graph) {
		exec->next = vc_execs;
		vc_execs = exec;
		error = cudaSuccess;
	}
	pthread_mutex_unlock(&vc_lock);
	if (error) {
		free(exec);
		return vc_error(error);
	}
	*out = exec;
	return cudaSuccess;
}

#if CUDART_VERSION >= 12000
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
{
	return cudaGraphInstantiateWithFlags(out, graph, flags);
}
#else
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, cudaGraphNode_t *node,
				 char *log, size_t size)
{
	(void)node;
	if (log && size) {
		*log = 0;
	}
	return cudaGraphInstantiateWithFlags(out, graph, 0);
}
#endif

/* With the lock held. */
void vc_exec_graph_put(struct CUgraphExec_st *exec)
{
	struct CUgraphExec_st **at;

	if (--exec->refs) {
		return;
	}
	for (at = &vc_execs; *at; at = &(*at)->next) {
		if (*at == exec) {
			*at = exec->next;
			break;
		}
	}
	if (exec->last) {
		vc_marker_put(exec->last);
	}
	vc_graph_free(exec->graph);
	free(exec);
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec)
{
	bool known;

	VC_ENTER();
	pthread_mutex_lock(&vc_lock);
	known = vc_exec_known(exec);
	if (known) {
		exec->destroyed = true;
		vc_exec_graph_put(exec);
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_error(known ? cudaSuccess : cudaErrorInvalidValue);
}

static bool vc_graph_uses(const struct CUgraph_st *graph, int device)
{
	uint32_t i = 0;

	while (i < graph->n && graph->node[i].work.device != device) {
		i++;
	}
	return i < graph->n;
}

void vc_graphs_end(int device)
{
	struct CUgraphExec_st *exec, *next;
	struct CUgraph_st **at, *graph;

	pthread_mutex_lock(&vc_lock);
	for (exec = vc_execs; exec; exec = next) {
		next = exec->next;
		if (!exec->destroyed &&
		    (exec->device == device || vc_graph_uses(exec->graph, device))) {
			exec->destroyed = true;
			vc_exec_graph_put(exec);
		}
	}
	for (at = &vc_graphs; (graph = *at);) {
		if (vc_graph_uses(graph, device)) {
			*at = graph->next;
			vc_graph_free(graph);
		} else {
			at = &graph->next;
		}
	}
	pthread_mutex_unlock(&vc_lock);
}

static cudaError_t vc_graph_launch(struct CUgraphExec_st *exec, struct CUstream_st *stream)
{
	struct vc_work work = { .kind = VC_WORK_GRAPH, .device = stream->device, .graph = exec };
	struct vc_marker *marker;
	struct vc_op *op;

	if (stream->capture) {
		vc_capture_invalidate(stream->capture);
		return cudaErrorStreamCaptureUnsupported; /* child graphs are not there */
	}
	if (stream->legacy) {
		cudaError_t error = vc_capture_check_legacy(stream->device);

		if (error) {
			return error;
		}
	}
	for (uint32_t i = 0; i < exec->graph->n; i++) {
		if (exec->graph->node[i].work.kind == VC_WORK_KERNEL) {
			vc_fault_at_launch(exec->graph->node[i].work.device);
		}
	}
	marker = calloc(1, sizeof(*marker));
	if (!marker) {
		return cudaErrorMemoryAllocation;
	}
	exec->refs++;
	op = vc_stream_push(stream, &work);
	if (!op) {
		free(marker);
		return cudaErrorMemoryAllocation;
	}
	marker->refs = 2;
	op->record = marker;
	op->wait = exec->last;
	exec->last = marker;
	return cudaSuccess;
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t handle)
{
	struct CUstream_st *stream;
	cudaError_t error = cudaErrorInvalidValue;

	VC_ENTER();
	pthread_mutex_lock(&vc_lock);
	stream = vc_stream_find(handle);
	if (!stream) {
		error = cudaErrorInvalidResourceHandle;
	} else if (vc_exec_known(exec)) {
		error = vc_graph_launch(exec, stream);
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_error(error);
}

cudaError_t cudaGraphUpload(cudaGraphExec_t exec, cudaStream_t handle)
{
	bool good;

	VC_ENTER();
	pthread_mutex_lock(&vc_lock);
	good = vc_exec_known(exec) && vc_stream_find(handle);
	pthread_mutex_unlock(&vc_lock);
	return vc_error(good ? cudaSuccess : cudaErrorInvalidValue);
}

static void vc_replay_done(struct vc_grid *grid)
{
	struct vc_replay_node *node = grid->done_arg;
	struct vc_replay *replay = node->replay;

	atomic_store(&node->done, true);
	sem_post(&replay->ended);
}

static bool vc_replay_ready(const struct vc_replay *replay, const struct vc_node *node)
{
	for (uint32_t i = 0; i < node->ndeps; i++) {
		if (!atomic_load(&replay->node[node->deps[i]].done)) {
			return false;
		}
	}
	return true;
}

static void vc_replay_observe(struct vc_replay *replay, const struct vc_node *node)
{
	for (uint32_t i = 0; i < node->ndeps; i++) {
		vc_grid_observe(&replay->node[node->deps[i]].grid);
	}
}

static void vc_replay_start(struct vc_replay *replay, struct vc_replay_node *node,
			    struct vc_work *work)
{
	node->started = true;
	node->replay = replay;
	if (work->kind != VC_WORK_KERNEL || vc_device_sticky(work->device)) {
		vc_work_run(work);
		atomic_store(&node->done, true);
		sem_post(&replay->ended);
		return;
	}
	node->grid = (struct vc_grid){
		.kernel = work->launch.kernel,
		.args = work->launch.args,
		.device = work->device,
		.nblocks = work->launch.nblocks,
		.nthreads = work->launch.nthreads,
		.dynamic_shared = work->launch.dynamic_shared,
		.done = vc_replay_done,
		.done_arg = node,
	};
	vc_grid_publish(&node->grid);
	vc_grid_submit(&node->grid);
}

/* Starts what is ready: kernels first, they run beside the rest. */
static void vc_replay_step(struct vc_replay *replay, struct CUgraph_st *graph)
{
	for (int kernels = 1; kernels >= 0; kernels--) {
		for (uint32_t i = 0; i < graph->n; i++) {
			struct vc_node *node = &graph->node[i];

			if (!replay->node[i].started &&
			    (node->work.kind == VC_WORK_KERNEL) == kernels &&
			    vc_replay_ready(replay, node)) {
				vc_replay_observe(replay, node);
				vc_replay_start(replay, &replay->node[i], &node->work);
			}
		}
	}
}

void vc_exec_graph_run(struct CUgraphExec_st *exec)
{
	struct CUgraph_st *graph = exec->graph;
	struct vc_replay replay = { .left = graph->n };

	if (!graph->n) {
		return;
	}
	replay.node = calloc(graph->n, sizeof(*replay.node));
	if (!replay.node) {
		vc_device_set_sticky(exec->device, cudaErrorLaunchFailure);
		return;
	}
	sem_init(&replay.ended, 0, 0);
	while (replay.left) {
		vc_replay_step(&replay, graph);
		while (sem_wait(&replay.ended)) {
		}
		replay.left--;
	}
	for (uint32_t i = 0; i < graph->n; i++) {
		vc_grid_observe(&replay.node[i].grid);
		if (atomic_load(&replay.node[i].grid.fault)) {
			vc_device_set_sticky(graph->node[i].work.device, cudaErrorIllegalAddress);
		}
	}
	sem_destroy(&replay.ended);
	free(replay.node);
}
