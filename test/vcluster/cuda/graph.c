/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream capture: operations become nodes; what cannot be captured is refused and ends the capture.
 */
#include <semaphore.h>
#include <stdlib.h>
#include <string.h>
#include "cuda/runtime.h"

static struct vc_capture *vc_captures;
static __thread enum cudaStreamCaptureMode vc_thread_mode = cudaStreamCaptureModeGlobal;

void vc_capture_put(struct vc_capture *capture)
{
	if (--capture->refs == 0) {
		vc_graph_free(capture->graph);
		free(capture);
	}
}

void vc_capture_invalidate(struct vc_capture *capture)
{
	capture->invalid = true;
}

static bool vc_tails_set(uint32_t **tails, uint32_t *ntails, const uint32_t *from, uint32_t n)
{
	uint32_t *copy = malloc((n ? n : 1) * sizeof(*copy));

	if (!copy) {
		return false;
	}
	if (n) {
		memcpy(copy, from, n * sizeof(*copy));
	}
	free(*tails);
	*tails = copy;
	*ntails = n;
	return true;
}

static bool vc_tails_add(uint32_t **tails, uint32_t *ntails, const uint32_t *from, uint32_t n)
{
	uint32_t *all = realloc(*tails, (*ntails + n + 1) * sizeof(*all));

	if (!all) {
		return false;
	}
	*tails = all;
	for (uint32_t i = 0; i < n; i++) {
		uint32_t k = 0;

		while (k < *ntails && all[k] != from[i]) {
			k++;
		}
		if (k == *ntails) {
			all[(*ntails)++] = from[i];
		}
	}
	return true;
}

/* Takes the work; it belongs to the graph afterwards. */
cudaError_t vc_capture_append(struct CUstream_st *stream, struct vc_work *work)
{
	struct vc_capture *capture = stream->capture;
	struct CUgraph_st *graph = capture->graph;
	struct vc_node *node;
	uint32_t index = graph->n;

	if (capture->invalid) {
		return cudaErrorStreamCaptureInvalidated;
	}
	if (graph->n == graph->cap) {
		uint32_t cap = graph->cap ? 2 * graph->cap : 16;

		node = realloc(graph->node, cap * sizeof(*node));
		if (!node) {
			return cudaErrorMemoryAllocation;
		}
		graph->node = node;
		graph->cap = cap;
	}
	node = &graph->node[index];
	memset(node, 0, sizeof(*node));
	if (!vc_tails_set(&node->deps, &node->ndeps, stream->tails, stream->ntails) ||
	    !vc_tails_set(&stream->tails, &stream->ntails, &index, 1)) {
		free(node->deps);
		return cudaErrorMemoryAllocation;
	}
	node->work = *work;
	work->kind = VC_WORK_EMPTY;
	graph->n++;
	return cudaSuccess;
}

void vc_capture_event_reset(struct CUevent_st *event)
{
	if (event->capture) {
		vc_capture_put(event->capture);
		event->capture = NULL;
	}
	free(event->nodes);
	event->nodes = NULL;
	event->nnodes = 0;
}

cudaError_t vc_capture_event(struct CUstream_st *stream, struct CUevent_st *event)
{
	struct vc_capture *capture = stream->capture;

	if (capture->invalid) {
		return cudaErrorStreamCaptureInvalidated;
	}
	capture->refs++;
	vc_capture_event_reset(event);
	event->capture = capture;
	return vc_tails_set(&event->nodes, &event->nnodes, stream->tails, stream->ntails)
		       ? cudaSuccess
		       : cudaErrorMemoryAllocation;
}

/* A wait on a captured event brings the stream into that capture. */
cudaError_t vc_capture_wait(struct CUstream_st *stream, struct CUevent_st *event)
{
	struct vc_capture *capture = event->capture;

	if (!capture) {
		vc_capture_invalidate(stream->capture);
		return cudaErrorStreamCaptureIsolation;
	}
	if (capture->ended) {
		return cudaErrorInvalidValue;
	}
	if (capture->invalid) {
		return cudaErrorStreamCaptureInvalidated;
	}
	if (stream->legacy) {
		vc_capture_invalidate(capture);
		return cudaErrorStreamCaptureImplicit;
	}
	if (stream->capture && stream->capture != capture) {
		vc_capture_invalidate(capture);
		vc_capture_invalidate(stream->capture);
		return cudaErrorStreamCaptureMerge;
	}
	if (!stream->capture) {
		stream->capture = capture;
		capture->refs++;
		stream->ntails = 0;
	}
	return vc_tails_add(&stream->tails, &stream->ntails, event->nodes, event->nnodes)
		       ? cudaSuccess
		       : cudaErrorMemoryAllocation;
}

/* A call that asks how far a capturing stream is: it is refused, and the capture is over. */
bool vc_capture_busy(struct CUstream_st *stream)
{
	if (stream->capture) {
		vc_capture_invalidate(stream->capture);
	}
	return stream->capture != NULL;
}

cudaError_t vc_capture_check_legacy(int device)
{
	struct CUstream_st *stream;
	cudaError_t error = cudaSuccess;

	for (stream = vc_streams; stream; stream = stream->next) {
		if (stream->capture && stream->device == device &&
		    !(stream->flags & cudaStreamNonBlocking)) {
			vc_capture_invalidate(stream->capture);
			error = cudaErrorStreamCaptureImplicit;
		}
	}
	return error;
}

cudaError_t vc_capture_check_device(int device)
{
	struct CUstream_st *stream;
	bool captured = false;

	pthread_mutex_lock(&vc_lock);
	for (stream = vc_streams; stream; stream = stream->next) {
		if (stream->device == device) {
			captured |= vc_capture_busy(stream);
		}
	}
	pthread_mutex_unlock(&vc_lock);
	return captured ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t vc_capture_check_unsafe(void)
{
	struct vc_capture *capture;
	cudaError_t error = cudaSuccess;

	if (vc_thread_mode == cudaStreamCaptureModeRelaxed) {
		return cudaSuccess;
	}
	pthread_mutex_lock(&vc_lock);
	for (capture = vc_captures; capture; capture = capture->next) {
		bool mine = pthread_equal(capture->thread, pthread_self());
		bool others = vc_thread_mode == cudaStreamCaptureModeGlobal &&
			      capture->mode == cudaStreamCaptureModeGlobal;

		if ((mine && capture->mode != cudaStreamCaptureModeRelaxed) || (!mine && others)) {
			vc_capture_invalidate(capture);
			error = cudaErrorStreamCaptureUnsupported;
		}
	}
	pthread_mutex_unlock(&vc_lock);
	return error;
}

cudaError_t cudaThreadExchangeStreamCaptureMode(enum cudaStreamCaptureMode *mode)
{
	enum cudaStreamCaptureMode before = vc_thread_mode;

	if (!mode || (unsigned int)*mode > cudaStreamCaptureModeRelaxed) {
		return vc_error(cudaErrorInvalidValue);
	}
	vc_thread_mode = *mode;
	*mode = before;
	return cudaSuccess;
}

static cudaError_t vc_capture_begin(struct CUstream_st *stream, enum cudaStreamCaptureMode mode)
{
	static unsigned long long ids;
	struct vc_capture *capture;

	if (stream->legacy) {
		return cudaErrorStreamCaptureUnsupported;
	}
	if (stream->capture) {
		return cudaErrorIllegalState;
	}
	capture = calloc(1, sizeof(*capture));
	if (!capture) {
		return cudaErrorMemoryAllocation;
	}
	capture->graph = vc_graph_new();
	if (!capture->graph) {
		free(capture);
		return cudaErrorMemoryAllocation;
	}
	capture->refs = 1;
	capture->mode = mode;
	capture->thread = pthread_self();
	capture->id = ++ids;
	capture->origin = stream;
	capture->next = vc_captures;
	vc_captures = capture;
	stream->capture = capture;
	stream->ntails = 0;
	return cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t handle, enum cudaStreamCaptureMode mode)
{
	struct CUstream_st *stream;
	cudaError_t error = cudaErrorInvalidResourceHandle;

	VC_ENTER();
	if ((unsigned int)mode > cudaStreamCaptureModeRelaxed) {
		return vc_error(cudaErrorInvalidValue);
	}
	pthread_mutex_lock(&vc_lock);
	stream = vc_stream_find(handle);
	if (stream) {
		error = vc_capture_begin(stream, mode);
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_error(error);
}

static void vc_reach(const struct CUgraph_st *graph, bool *reached, const uint32_t *from,
		     uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		reached[from[i]] = true;
	}
	/* Dependencies have smaller numbers. */
	for (uint32_t i = graph->n; i-- > 0;) {
		for (uint32_t k = 0; reached[i] && k < graph->node[i].ndeps; k++) {
			reached[graph->node[i].deps[k]] = true;
		}
	}
}

/* Every forked stream must have come back to the origin. */
static bool vc_capture_joined(struct vc_capture *capture)
{
	bool *reached = calloc(capture->graph->n + 1, sizeof(*reached));
	struct CUstream_st *stream;
	bool joined = reached != NULL;

	if (!reached) {
		return false;
	}
	vc_reach(capture->graph, reached, capture->origin->tails, capture->origin->ntails);
	for (stream = vc_streams; stream; stream = stream->next) {
		for (uint32_t i = 0; stream->capture == capture && i < stream->ntails; i++) {
			joined = joined && reached[stream->tails[i]];
		}
	}
	free(reached);
	return joined;
}

static void vc_capture_close(struct vc_capture *capture)
{
	struct CUstream_st *stream;
	struct vc_capture **at;

	for (at = &vc_captures; *at; at = &(*at)->next) {
		if (*at == capture) {
			*at = capture->next;
			break;
		}
	}
	capture->ended = true;
	capture->refs++;
	for (stream = vc_streams; stream; stream = stream->next) {
		if (stream->capture == capture) {
			stream->capture = NULL;
			stream->ntails = 0;
			vc_capture_put(capture);
		}
	}
}

static cudaError_t vc_capture_end(struct CUstream_st *stream, cudaGraph_t *out)
{
	struct vc_capture *capture = stream->capture;
	cudaError_t error = cudaSuccess;

	if (!capture) {
		return cudaErrorIllegalState;
	}
	if (capture->origin != stream) {
		vc_capture_invalidate(capture);
		return cudaErrorStreamCaptureUnmatched;
	}
	if (capture->mode != cudaStreamCaptureModeRelaxed &&
	    !pthread_equal(capture->thread, pthread_self())) {
		error = cudaErrorStreamCaptureWrongThread; /* the capture is over all the same */
	} else if (capture->invalid) {
		error = cudaErrorStreamCaptureInvalidated;
	} else if (!vc_capture_joined(capture)) {
		error = cudaErrorStreamCaptureUnjoined;
	}
	vc_capture_close(capture);
	if (!error) {
		*out = capture->graph;
		vc_graph_publish(capture->graph);
		capture->graph = NULL;
	}
	vc_capture_put(capture);
	return error;
}

cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t *out)
{
	struct CUstream_st *stream;
	cudaError_t error = cudaErrorInvalidResourceHandle;

	VC_ENTER();
	if (!out) {
		return vc_error(cudaErrorInvalidValue);
	}
	*out = NULL;
	pthread_mutex_lock(&vc_lock);
	stream = vc_stream_find(handle);
	if (stream) {
		error = vc_capture_end(stream, out);
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_error(error);
}

static enum cudaStreamCaptureStatus vc_capture_status(const struct CUstream_st *stream)
{
	return !stream->capture           ? cudaStreamCaptureStatusNone
	       : stream->capture->invalid ? cudaStreamCaptureStatusInvalidated
					  : cudaStreamCaptureStatusActive;
}

cudaError_t cudaStreamIsCapturing(cudaStream_t handle, enum cudaStreamCaptureStatus *status)
{
	struct CUstream_st *stream;
	cudaError_t error = cudaErrorInvalidResourceHandle;

	VC_ENTER();
	if (!status) {
		return vc_error(cudaErrorInvalidValue);
	}
	pthread_mutex_lock(&vc_lock);
	stream = vc_stream_find(handle);
	if (stream) {
		error = stream->legacy ? vc_capture_check_legacy(stream->device) : cudaSuccess;
		*status = vc_capture_status(stream);
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_error(error);
}

/* Nodes have no handles of their own here, so dependencies are not given out. */
static cudaError_t vc_capture_info(cudaStream_t handle, enum cudaStreamCaptureStatus *status,
				   unsigned long long *id, cudaGraph_t *graph, size_t *ndeps)
{
	struct CUstream_st *stream;

	VC_ENTER();
	if (!status) {
		return vc_error(cudaErrorInvalidValue);
	}
	pthread_mutex_lock(&vc_lock);
	stream = vc_stream_find(handle);
	if (stream) {
		*status = vc_capture_status(stream);
		if (stream->capture && id) {
			*id = stream->capture->id;
		}
		if (stream->capture && graph) {
			*graph = stream->capture->graph;
		}
		if (stream->capture && ndeps) {
			*ndeps = stream->ntails;
		}
	}
	pthread_mutex_unlock(&vc_lock);
	return vc_error(stream ? cudaSuccess : cudaErrorInvalidResourceHandle);
}

#if CUDART_VERSION >= 13000
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
				     unsigned long long *id, cudaGraph_t *graph,
				     const cudaGraphNode_t **deps, const cudaGraphEdgeData **edges,
				     size_t *ndeps)
{
	if (deps || edges) {
		return vc_error(cudaErrorNotSupported);
	}
	return vc_capture_info(stream, status, id, graph, ndeps);
}
#else
cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, enum cudaStreamCaptureStatus *status,
				     unsigned long long *id, cudaGraph_t *graph,
				     const cudaGraphNode_t **deps, size_t *ndeps)
{
	if (deps) {
		return vc_error(cudaErrorNotSupported);
	}
	return vc_capture_info(stream, status, id, graph, ndeps);
}
#endif

/* ---- graphs: what a capture recorded, made executable, and its replay ---- */

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

static cudaError_t vc_instantiate(cudaGraphExec_t *out, cudaGraph_t graph, unsigned long long flags)
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
	return vc_instantiate(out, graph, flags);
}
#else
cudaError_t cudaGraphInstantiate(cudaGraphExec_t *out, cudaGraph_t graph, cudaGraphNode_t *node,
				 char *log, size_t size)
{
	(void)node;
	if (log && size) {
		*log = 0;
	}
	return vc_instantiate(out, graph, 0);
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
	cudaError_t error;

	if (stream->capture) {
		vc_capture_invalidate(stream->capture);
		return cudaErrorStreamCaptureUnsupported; /* child graphs are not there */
	}
	for (uint32_t i = 0; i < exec->graph->n; i++) {
		if (exec->graph->node[i].work.kind == VC_WORK_KERNEL) {
			vc_fault_at_launch(exec->graph->node[i].work.device);
		}
	}
	marker = vc_marker_new();
	if (!marker) {
		return cudaErrorMemoryAllocation;
	}
	exec->refs++;
	error = vc_stream_push(stream, &work, marker, &op);
	if (!error) {
		op->wait = exec->last;
		exec->last = marker;
	}
	return error;
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
