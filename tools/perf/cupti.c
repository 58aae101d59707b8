/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Times of kernels, from CUPTI's activity records. The library is loaded at run time and never
 * needed. An operation is one kernel (two when staged) whose name contains "dispatch" or "combine";
 * the order of a rank's kernels shows which belong to the aligning operations.
 */
#include <dlfcn.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "perf.h"

/* The timed operations are collective: all ranks do them or none. */
static int everywhere(struct perf_rank *rank, int mine)
{
	int all[ORACLE_MAX_RANKS];

	perf_gather(rank, &mine, sizeof(mine), all);
	for (uint32_t n = 0; n < rank->perf->world.nranks; n++) {
		mine &= all[n];
	}
	return mine;
}

#if __has_include(<cupti.h>)
#include <cupti.h>

#define BUFFER_BYTES (1u << 20)

struct record {
	uint64_t start, end;
	uint32_t device, stream;
	uint32_t blocks;
	enum perf_op op;
};

static struct {
	CUptiResult (*enable)(CUpti_ActivityKind kind);
	CUptiResult (*disable)(CUpti_ActivityKind kind);
	CUptiResult (*flush)(uint32_t flag);
	CUptiResult (*next)(uint8_t *buffer, size_t bytes, CUpti_Activity **record);
	CUptiResult (*stream_id)(CUcontext context, CUstream stream, uint8_t per_thread,
				 uint32_t *id);
	CUptiResult (*set_callbacks)(CUpti_BuffersCallbackRequestFunc request,
				     CUpti_BuffersCallbackCompleteFunc complete);
	pthread_mutex_t lock;
	struct record *records;
	size_t count, room;
	int ready, lost;
} cupti = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void CUPTIAPI request_buffer(uint8_t **buffer, size_t *bytes, size_t *max_records)
{
	*buffer = aligned_alloc(8, BUFFER_BYTES);
	*bytes = *buffer ? BUFFER_BYTES : 0;
	*max_records = 0;
}

static void keep(const CUpti_ActivityKernel5 *kernel)
{
	enum perf_op op;

	if (kernel->name && strstr(kernel->name, "route")) {
		op = PERF_UPDATE;
	} else if (kernel->name && strstr(kernel->name, "dispatch")) {
		op = PERF_DISPATCH;
	} else if (kernel->name && strstr(kernel->name, "combine")) {
		op = PERF_COMBINE;
	} else {
		return;
	}
	if (cupti.count == cupti.room) {
		size_t room = cupti.room ? 2 * cupti.room : 4096;
		struct record *bigger = realloc(cupti.records, room * sizeof(*bigger));

		if (!bigger) {
			cupti.lost = 1;
			return;
		}
		cupti.records = bigger;
		cupti.room = room;
	}
	cupti.records[cupti.count++] = (struct record){ kernel->start,           kernel->end,
							kernel->deviceId,        kernel->streamId,
							(uint32_t)kernel->gridX, op };
}

static void CUPTIAPI complete_buffer(CUcontext context, uint32_t stream, uint8_t *buffer,
				     size_t bytes, size_t valid)
{
	CUpti_Activity *record = NULL;

	pthread_mutex_lock(&cupti.lock);
	while (valid && cupti.next(buffer, valid, &record) == CUPTI_SUCCESS) {
		if (record->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL ||
		    record->kind == CUPTI_ACTIVITY_KIND_KERNEL) {
			/* later versions of the record only append fields */
			keep((const CUpti_ActivityKernel5 *)(const void *)record);
		}
	}
	pthread_mutex_unlock(&cupti.lock);
	free(buffer);
}

static void *load_cupti(void)
{
	char names[][512] = { "", "", "libcupti.so", "/usr/local/cuda/lib64/libcupti.so",
			      "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so" };
	const char *home = getenv("CUDA_HOME");
	void *library = NULL;
	int version = 0;

	cudaRuntimeGetVersion(&version);
	snprintf(names[0], sizeof(names[0]), "libcupti.so.%d", version / 1000);
	snprintf(names[1], sizeof(names[1]), "%s/lib64/libcupti.so", home ? home : "");
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]) && !library; i++) {
		library = dlopen(names[i], RTLD_NOW | RTLD_LOCAL);
	}
	return library;
}

const char *perf_cupti_open(const struct perf_options *opt)
{
	void *library;

	if (opt->is_virtual) {
		return "virtual cluster";
	}
	library = load_cupti();
	if (!library) {
		return "libcupti.so not found";
	}
	*(void **)&cupti.enable = dlsym(library, "cuptiActivityEnable");
	*(void **)&cupti.disable = dlsym(library, "cuptiActivityDisable");
	*(void **)&cupti.flush = dlsym(library, "cuptiActivityFlushAll");
	*(void **)&cupti.next = dlsym(library, "cuptiActivityGetNextRecord");
	*(void **)&cupti.stream_id = dlsym(library, "cuptiGetStreamIdEx");
	*(void **)&cupti.set_callbacks = dlsym(library, "cuptiActivityRegisterCallbacks");
	if (!cupti.enable || !cupti.disable || !cupti.flush || !cupti.next || !cupti.stream_id ||
	    !cupti.set_callbacks) {
		return "libcupti.so lacks the activity calls";
	}
	if (cupti.set_callbacks(request_buffer, complete_buffer) != CUPTI_SUCCESS ||
	    cupti.enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS ||
	    cupti.disable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) {
		return "CUPTI refuses: no permission, or another profiler";
	}
	cupti.ready = 1;
	return NULL;
}

static void begin(struct perf_rank *rank)
{
	perf_barrier(rank);
	if (rank->local == 0 && cupti.ready) {
		pthread_mutex_lock(&cupti.lock);
		cupti.count = 0;
		cupti.lost = 0;
		pthread_mutex_unlock(&cupti.lock);
		if (cupti.enable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) != CUPTI_SUCCESS) {
			cupti.ready = 0;
		}
	}
	perf_barrier(rank);
}

static void end(struct perf_rank *rank)
{
	PERF_CUDA(rank, cudaDeviceSynchronize());
	perf_barrier(rank);
	if (rank->local == 0 && cupti.ready) {
		cupti.flush(1);
		cupti.disable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL);
	}
	perf_barrier(rank);
}

static int by_start(const void *a, const void *b)
{
	const struct record *x = a;
	const struct record *y = b;

	return (x->start > y->start) - (x->start < y->start);
}

/* This rank's kernels of one operation, oldest first. The caller frees. */
static struct record *select_records(const struct perf_rank *rank, enum perf_op op, size_t *count)
{
	int shared = rank->perf->opt.ranks_per_gpu > 1;
	struct record *mine;
	uint32_t stream = 0;

	*count = 0;
	if (shared && cupti.stream_id(NULL, (CUstream)rank->stream, 0, &stream) != CUPTI_SUCCESS) {
		return NULL;
	}
	pthread_mutex_lock(&cupti.lock);
	mine = calloc(cupti.count + 1, sizeof(*mine));
	for (size_t i = 0; mine && !cupti.lost && i < cupti.count; i++) {
		const struct record *one = cupti.records + i;

		if (one->op == op && one->device == (uint32_t)rank->place.device &&
		    (!shared || one->stream == stream)) {
			mine[(*count)++] = *one;
		}
	}
	pthread_mutex_unlock(&cupti.lock);
	if (mine) {
		qsort(mine, *count, sizeof(*mine), by_start);
	}
	return mine;
}

/*
 * Kernels of an operation's kind in one iteration: how many, and behind how many aligning ones it
 * is.
 */
static size_t kernels_of(const struct perf_options *opt, enum perf_op op, size_t *before)
{
	size_t kernels = opt->staged ? 2 : 1;
	enum perf_op align = opt->ht ? PERF_COMBINE : PERF_DISPATCH;
	size_t aligning = opt->align && op == align ? (size_t)(PERF_OPS - perf_first_op(opt)) : 0;

	/* an aligning one comes before each operation, and dispatch is low latency's first */
	*before = opt->ht ? aligning : aligning / 2;
	return kernels + aligning;
}

/* The first iteration is not counted. Fails when the records are not as many as they must be. */
static int sort_out(const struct perf_rank *rank, enum perf_op op, float *times, int *blocks)
{
	const struct perf_options *opt = &rank->perf->opt;
	size_t before, stride = kernels_of(opt, op, &before);
	size_t kernels = opt->staged ? 2 : 1;
	size_t count;
	struct record *records = select_records(rank, op, &count);
	int rc = -1;

	if (records && count == stride * (opt->iters + 1)) {
		for (size_t i = 1; i <= opt->iters; i++) {
			times[i - 1] = 0;
			for (size_t k = 0; k < kernels; k++) {
				const struct record *one = records + i * stride + before + k;

				times[i - 1] += (float)(one->end - one->start) / 1000;
				*blocks = (int)one->blocks > *blocks ? (int)one->blocks : *blocks;
			}
		}
		rc = 0;
	}
	free(records);
	return rc;
}

static int measure_kernels(struct perf_rank *rank, struct perf_times *times, int *blocks)
{
	int ready;
	int rc = 0;

	begin(rank);
	ready = everywhere(rank, cupti.ready);
	if (ready) {
		perf_time_drained(rank, times);
	}
	end(rank);
	for (int op = perf_first_op(&rank->perf->opt); op < PERF_OPS; op++) {
		rc |= !ready || sort_out(rank, (enum perf_op)op, times->gpu[op], blocks);
	}
	return rc;
}
#else
const char *perf_cupti_open(const struct perf_options *opt)
{
	return "built without cupti.h";
}

static int measure_kernels(struct perf_rank *rank, struct perf_times *times, int *blocks)
{
	return -1;
}
#endif

void perf_cupti_time(struct perf_rank *rank, struct perf_times *times, int *blocks)
{
	const struct perf_options *opt = &rank->perf->opt;
	int measured = 0;

	*blocks = 0;
	if (everywhere(rank, rank->perf->kernel_times)) {
		measured = everywhere(rank, measure_kernels(rank, times, blocks) == 0);
	}
	for (int op = perf_first_op(opt); !measured && op < PERF_OPS; op++) {
		for (uint32_t i = 0; i < opt->iters; i++) {
			times->gpu[op][i] = NAN;
		}
	}
	if (!measured) {
		*blocks = 0;
	}
}
