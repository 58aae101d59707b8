/* SPDX-License-Identifier: Apache-2.0 */
/* A tensor with its buffer, for benches of either algorithm, and what goes into the inputs. */
#ifndef TEST_SUPPORT_TENSOR_H
#define TEST_SUPPORT_TENSOR_H

#include "tools/perf/oracle/oracle.h"
#include "support/world.h"

#define TENSOR_GUARD 256 /* poisoned bytes behind a buffer that is not in a window */

struct bench_tensor {
	ncclEpTensor_t t;
	size_t sizes[3];
	char *data;   /* the buffer, also where t does not say it */
	size_t bytes; /* of the buffer */
	size_t guard; /* behind it */
	ncclWindow_t window;
	void *memory; /* of the window */
};

ncclDataType_t tensor_float(enum oracle_dtype dtype);
/*
 * Poisoned memory of at least one byte, and a tensor with this address; or that begins so far into
 * a window.
 */
void tensor_allocate(struct bench_tensor *d, size_t bytes);
void tensor_allocate_window(struct world *w, struct bench_tensor *d, size_t before, size_t bytes,
			    size_t guard);
/*
 * Other memory, in another window, which has the old one's handle where NCCL gives that to the
 * next. Collective; nobody uses the old window any more.
 */
void tensor_move_window(struct world *w, struct bench_tensor *d);
void tensor_release(struct world *w, struct bench_tensor *d);
void tensor_describe(struct bench_tensor *d, ncclDataType_t type, unsigned int ndim, size_t n0,
		     size_t n1, size_t n2);
/* The guard, too. Done when it returns, for streams that do not wait for the legacy one. */
void tensor_poison(struct bench_tensor *d);
/* A copy with the guard; the caller frees it. */
void *tensor_fetch(const struct bench_tensor *d);
void tensor_upload(struct bench_tensor *d, const void *host, size_t bytes);

/* Where the inputs of a rank go. */
struct tensor_inputs {
	struct bench_tensor *rows, *scales, *ids, *weights;
	bool ids64;
};
void tensor_load(const struct tensor_inputs *in, const struct oracle_problem *p, uint32_t rank,
		 uint32_t tokens);

#endif
