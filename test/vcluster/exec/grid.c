/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels, SMs and the pool of block threads. */
#include <errno.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include "exec/block.h"
#include "exec/fault.h"

#define VC_MAX_SMS 256
#define VC_WAVE_MAX 1024u /* blocks that are placed at once */

void (*vc_describe_address)(uintptr_t address, char *text, size_t size);
bool (*vc_device_address)(uintptr_t address, int device);

struct vc_sm {
	uint32_t blocks, threads;
	size_t shared;
};

struct vc_sm_set {
	pthread_mutex_t mutex;
	struct vc_sm sm[VC_MAX_SMS];
	struct vc_grid *head, *tail; /* grids with blocks that are not placed yet */
};

static struct vc_kernel *vc_kernels;
static pthread_mutex_t vc_kernels_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct vc_sm_set vc_sms[VC_MAX_DEVICES];
static struct vc_worker *vc_idle_workers;
static pthread_mutex_t vc_workers_mutex = PTHREAD_MUTEX_INITIALIZER;

__attribute__((constructor)) static void vc_sms_init(void)
{
	for (int i = 0; i < VC_MAX_DEVICES; i++) {
		pthread_mutex_init(&vc_sms[i].mutex, NULL);
	}
}

uint32_t vc_sm_count(void)
{
	long n = vc_env_long("VC_SMS", 8);

	return n < 1 ? 1 : n > VC_MAX_SMS ? VC_MAX_SMS : (uint32_t)n;
}

static uint32_t vc_blocks_per_sm(void)
{
	long n = vc_env_long("VC_BLOCKS_PER_SM", 2);

	return n < 1 ? 1 : n > 32 ? 32 : (uint32_t)n;
}

uint32_t vc_occupancy(uint32_t nthreads, size_t shared)
{
	uint32_t n = vc_blocks_per_sm();
	uint32_t by_threads = VC_SM_THREADS / nthreads;
	uint32_t by_shared = (uint32_t)(VC_SM_SHARED / (shared + VC_SM_SHARED_RESERVED));

	n = by_threads < n ? by_threads : n;
	return by_shared < n ? by_shared : n;
}

/* Where an address lies: its object's thread-local segment. */
struct vc_tls_query {
	uintptr_t address;
	uintptr_t base;
	size_t module, size;
};

static int vc_tls_visit(struct dl_phdr_info *info, size_t size, void *arg)
{
	struct vc_tls_query *query = arg;
	bool inside = false;
	size_t tls = 0;

	(void)size;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t start = info->dlpi_addr + p->p_vaddr;

		if (p->p_type == PT_LOAD && query->address - start < p->p_memsz) {
			inside = true;
		}
		if (p->p_type == PT_TLS) {
			tls = p->p_memsz;
		}
	}
	if (inside) {
		query->base = (uintptr_t)info->dlpi_phdr;
		query->module = info->dlpi_tls_modid;
		query->size = tls;
	}
	return inside;
}

/* The segment is poisoned before each block, unless the executor's own variables are in it. */
static void vc_kernel_find_tls(struct vc_kernel *kernel)
{
	struct vc_tls_query theirs = { .address = (uintptr_t)kernel->body };
	struct vc_tls_query ours = { .address = (uintptr_t)vc_kernel_find };

	dl_iterate_phdr(vc_tls_visit, &theirs);
	dl_iterate_phdr(vc_tls_visit, &ours);
	if (theirs.base != ours.base) {
		kernel->tls_module = theirs.module;
		kernel->tls_size = theirs.size;
	}
}

void ep_simt_register(void (*handle)(void), const char *name, size_t args_size,
		      uint32_t max_threads, void (*body)(const void *args))
{
	struct vc_kernel *kernel = calloc(1, sizeof(*kernel));

	if (!kernel) {
		vc_die(VC_EXIT_ILLEGAL, "no memory to register kernel %s", name);
	}
	kernel->handle = handle;
	kernel->name = strdup(name);
	kernel->body = body;
	kernel->args_size = args_size;
	kernel->max_threads = max_threads;
	kernel->max_dynamic_shared = VC_STATIC_LIMIT;
	vc_kernel_find_tls(kernel);
	pthread_mutex_lock(&vc_kernels_mutex);
	kernel->next = vc_kernels;
	vc_kernels = kernel;
	pthread_mutex_unlock(&vc_kernels_mutex);
}

void ep_simt_called(const char *name)
{
	vc_die(VC_EXIT_ILLEGAL, "kernel %s was called as a function; it can only be launched",
	       name);
}

struct vc_kernel *vc_kernel_find(const void *handle)
{
	struct vc_kernel *kernel;

	pthread_mutex_lock(&vc_kernels_mutex);
	for (kernel = vc_kernels; kernel; kernel = kernel->next) {
		if ((const void *)kernel->handle == handle) {
			break;
		}
	}
	pthread_mutex_unlock(&vc_kernels_mutex);
	return kernel;
}

void vc_kernels_reset(void)
{
	pthread_mutex_lock(&vc_kernels_mutex);
	for (struct vc_kernel *kernel = vc_kernels; kernel; kernel = kernel->next) {
		kernel->max_dynamic_shared = VC_STATIC_LIMIT;
	}
	pthread_mutex_unlock(&vc_kernels_mutex);
}

void vc_grid_publish(struct vc_grid *grid)
{
	VC_RELEASE(&grid->kernel);
}

void vc_grid_observe(struct vc_grid *grid)
{
	VC_ACQUIRE(&grid->left);
}

static void vc_grid_place(int device);

static void vc_worker_finish(struct vc_worker *worker)
{
	struct vc_grid *grid = worker->block.grid;
	struct vc_sm_set *set = &vc_sms[grid->device];
	struct vc_sm *sm = &set->sm[worker->block.sm];
	int device = grid->device;

	pthread_mutex_lock(&set->mutex);
	sm->blocks--;
	sm->threads -= grid->nthreads;
	sm->shared -= grid->dynamic_shared + VC_SM_SHARED_RESERVED;
	pthread_mutex_unlock(&set->mutex);

	pthread_mutex_lock(&vc_workers_mutex);
	worker->next = vc_idle_workers;
	vc_idle_workers = worker;
	pthread_mutex_unlock(&vc_workers_mutex);

	/* The grid may be gone after its last block reports. */
	if (atomic_fetch_sub(&grid->left, 1) == 1) {
		vc_reads_end(grid);
		grid->done(grid);
	}
	vc_grid_place(device);
}

static void *vc_worker_main(void *arg)
{
	struct vc_worker *worker = arg;

	vc_self = worker;
	prctl(PR_SET_TIMERSLACK, 1000UL, 0, 0, 0);
	vc_main_fiber_init(worker);
	vc_fault_thread_init();
	for (;;) {
		pthread_mutex_lock(&worker->mutex);
		while (!worker->has_job) {
			pthread_cond_wait(&worker->wake, &worker->mutex);
		}
		worker->has_job = false;
		pthread_mutex_unlock(&worker->mutex);
		vc_block_run(worker);
		vc_worker_finish(worker);
	}
	return NULL;
}

static struct vc_worker *vc_worker_new(void)
{
	/* The block is big and aligned, so that its hot parts do not share lines with others. */
	struct vc_worker *worker = aligned_alloc(64, (sizeof(*worker) + 63) & ~(size_t)63);
	int rc;

	if (!worker) {
		vc_die(VC_EXIT_ILLEGAL, "no memory for a block thread");
	}
	memset(worker, 0, sizeof(*worker));
	pthread_mutex_init(&worker->mutex, NULL);
	pthread_cond_init(&worker->wake, NULL);
	rc = pthread_create(&worker->thread, NULL, vc_worker_main, worker);
	if (rc) {
		vc_die(VC_EXIT_ILLEGAL, "no thread for a block: %s", strerror(rc));
	}
	pthread_detach(worker->thread);
	return worker;
}

static struct vc_worker *vc_worker_get(void)
{
	struct vc_worker *worker;

	pthread_mutex_lock(&vc_workers_mutex);
	worker = vc_idle_workers;
	if (worker) {
		vc_idle_workers = worker->next;
	}
	pthread_mutex_unlock(&vc_workers_mutex);
	return worker ? worker : vc_worker_new();
}

static void vc_worker_start(struct vc_worker *worker, struct vc_grid *grid, uint32_t block,
			    uint32_t sm)
{
	pthread_mutex_lock(&worker->mutex);
	worker->block.grid = grid;
	worker->block.index = block;
	worker->block.sm = sm;
	worker->has_job = true;
	pthread_cond_signal(&worker->wake);
	pthread_mutex_unlock(&worker->mutex);
}

static int vc_sm_find(const struct vc_sm_set *set, const struct vc_grid *grid, uint32_t nsms)
{
	size_t shared = grid->dynamic_shared + VC_SM_SHARED_RESERVED;
	uint32_t cap = vc_blocks_per_sm();
	int best = -1;

	for (uint32_t i = 0; i < nsms; i++) {
		const struct vc_sm *sm = &set->sm[i];

		if (sm->blocks < cap && sm->threads + grid->nthreads <= VC_SM_THREADS &&
		    sm->shared + shared <= VC_SM_SHARED &&
		    (best < 0 || sm->blocks < set->sm[best].blocks)) {
			best = (int)i;
		}
	}
	return best;
}

/*
 * Reserves room for as many of the grid's next blocks as there is; sm[i] is the SM of the i-th.
 * Returns how many these are.
 */
static uint32_t vc_grid_reserve(struct vc_sm_set *set, const struct vc_grid *grid, uint16_t *sm)
{
	uint32_t nsms = vc_sm_count(), n = 0;

	while (n < VC_WAVE_MAX && grid->placed + n < grid->nblocks) {
		int found = vc_sm_find(set, grid, nsms);

		if (found < 0) {
			break;
		}
		set->sm[found].blocks++;
		set->sm[found].threads += grid->nthreads;
		set->sm[found].shared += grid->dynamic_shared + VC_SM_SHARED_RESERVED;
		sm[n++] = (uint16_t)found;
	}
	return n;
}

/*
 * Starts blocks in the order of submission, as long as there is room. With a seed, those of a grid
 * that become resident at once start in random order: kernels may wait for blocks of lower index
 * that have no room yet, but not rely on these having started first.
 */
static void vc_grid_place(int device)
{
	struct vc_sm_set *set = &vc_sms[device];
	uint16_t sm[VC_WAVE_MAX];

	pthread_mutex_lock(&set->mutex);
	while (set->head) {
		struct vc_grid *grid = set->head;
		uint32_t first = grid->placed, n = vc_grid_reserve(set, grid, sm);
		uint16_t order[VC_WAVE_MAX];

		if (!n) {
			break;
		}
		grid->placed += n;
		if (grid->placed == grid->nblocks) {
			set->head = grid->next;
			if (!set->head) {
				set->tail = NULL;
			}
		}
		vc_wave_order(grid, order, n);
		/* The grid may be gone when the last of them has started. */
		for (uint32_t i = 0; i < n; i++) {
			vc_worker_start(vc_worker_get(), grid, first + order[i], sm[i]);
		}
	}
	pthread_mutex_unlock(&set->mutex);
}

void vc_grid_submit(struct vc_grid *grid)
{
	static _Atomic uint64_t serial;
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	struct vc_sm_set *set = &vc_sms[grid->device];

	pthread_once(&once, vc_fault_init);
	grid->serial = atomic_fetch_add(&serial, 1);
	grid->placed = 0;
	atomic_store(&grid->left, grid->nblocks);
	vc_reads_start(grid);
	grid->next = NULL;
	pthread_mutex_lock(&set->mutex);
	if (set->tail) {
		set->tail->next = grid;
	} else {
		set->head = grid;
	}
	set->tail = grid;
	pthread_mutex_unlock(&set->mutex);
	vc_grid_place(grid->device);
}
