/* SPDX-License-Identifier: Apache-2.0 */
/* What an operation of a stream or a node of a graph does. */
#ifndef VC_WORK_H
#define VC_WORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cuda_runtime_api.h>
#include "exec/grid.h"

enum vc_work_kind {
	VC_WORK_EMPTY = 0,
	VC_WORK_KERNEL,
	VC_WORK_COPY,
	VC_WORK_SET,
	VC_WORK_HOST,  /* cudaLaunchHostFunc */
	VC_WORK_CALL,  /* another stand-in's operation */
	VC_WORK_GRAPH, /* a whole executable graph; never inside a graph */
};

struct vc_work {
	enum vc_work_kind kind;
	int device;
	union {
		struct {
			const struct vc_kernel *kernel;
			uint32_t nblocks, nthreads;
			size_t dynamic_shared;
			void *args; /* owned */
		} launch;
		struct {
			void *dst;
			const void *src;
			size_t size;
			void *staged; /* owned copy of pageable source bytes, or NULL */
			long late_us; /* what the host does meanwhile comes first */
		} copy;
		struct {
			void *dst;
			int value;
			size_t size;
		} set;
		struct {
			cudaHostFn_t fn;
			void *arg;
		} host;
		struct {
			void (*fn)(void *arg);
			void *arg; /* owned, size bytes */
			size_t size;
		} call;
		struct CUgraphExec_st *graph;
	};
};

void vc_work_run(struct vc_work *work);
void vc_work_free(struct vc_work *work);
cudaError_t vc_work_clone(struct vc_work *to, const struct vc_work *from);

#endif
