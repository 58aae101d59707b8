/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels, SMs and the pool of block threads. */
#include <link.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>
#include "exec/exec.h"

#define VC_MAX_SMS 256
#define VC_WAVE_MAX 1024u /* blocks that are placed at once */

void (*vc_describe_address)(uintptr_t address, char *text, size_t size);
bool (*vc_device_address)(uintptr_t address, int device);

/* What blocks have of an SM. */
struct vc_room {
	uint32_t blocks, threads, registers;
	size_t shared;
};

struct vc_sm_set {
	pthread_mutex_t mutex;
	struct vc_room taken[VC_MAX_SMS];
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

/* An SM, but for what the environment withholds. */
static struct vc_room vc_sm_room(void)
{
	long n = vc_env_long("VC_BLOCKS_PER_SM", VC_SM_BLOCKS);

	return (struct vc_room){
		.blocks = n < 1              ? 1
			  : n > VC_SM_BLOCKS ? VC_SM_BLOCKS
					     : (uint32_t)n,
		.threads = VC_SM_THREADS,
		.registers = VC_SM_REGISTERS,
		.shared = VC_SM_SHARED,
	};
}

static struct vc_room vc_block_room(const struct vc_kernel *kernel, uint32_t nthreads,
				    size_t shared)
{
	return (struct vc_room){ .blocks = 1,
				 .threads = nthreads,
				 .registers = kernel->registers * nthreads,
				 .shared = shared + VC_SM_SHARED_RESERVED };
}

static void vc_room_take(struct vc_room *taken, const struct vc_room *block)
{
	taken->blocks += block->blocks;
	taken->threads += block->threads;
	taken->registers += block->registers;
	taken->shared += block->shared;
}

static void vc_room_give(struct vc_room *taken, const struct vc_room *block)
{
	taken->blocks -= block->blocks;
	taken->threads -= block->threads;
	taken->registers -= block->registers;
	taken->shared -= block->shared;
}

static bool vc_room_fits(const struct vc_room *sm, struct vc_room taken,
			 const struct vc_room *block)
{
	vc_room_take(&taken, block);
	return taken.blocks <= sm->blocks && taken.threads <= sm->threads &&
	       taken.registers <= sm->registers && taken.shared <= sm->shared;
}

uint32_t vc_occupancy(const struct vc_kernel *kernel, uint32_t nthreads, size_t shared)
{
	const struct vc_room sm = vc_sm_room(), block = vc_block_room(kernel, nthreads, shared);
	struct vc_room taken = { 0 };

	while (vc_room_fits(&sm, taken, &block)) {
		vc_room_take(&taken, &block);
	}
	return taken.blocks;
}

/*
 * Registers are dealt to a thread in eights. How many a compiler takes of those that it may is not
 * known here: a kernel is reckoned with all of them, as the large ones have them.
 */
static uint32_t vc_registers_bound(uint32_t max_threads)
{
	uint32_t n = VC_SM_REGISTERS / max_threads;

	return (n < VC_THREAD_REGISTERS_MAX ? n : VC_THREAD_REGISTERS_MAX) & ~7u;
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
	kernel->registers = vc_registers_bound(max_threads);
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
	const struct vc_room block =
		vc_block_room(grid->kernel, grid->nthreads, grid->dynamic_shared);
	int device = grid->device;

	pthread_mutex_lock(&set->mutex);
	vc_room_give(&set->taken[worker->block.sm], &block);
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

/* The SM with the fewest blocks of those that have room for this one. */
static int vc_sm_find(const struct vc_sm_set *set, const struct vc_room *sm,
		      const struct vc_room *block, uint32_t nsms)
{
	int best = -1;

	for (uint32_t i = 0; i < nsms; i++) {
		const struct vc_room *taken = &set->taken[i];

		if ((best < 0 || taken->blocks < set->taken[best].blocks) &&
		    vc_room_fits(sm, *taken, block)) {
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
	const struct vc_room all = vc_sm_room();
	const struct vc_room block =
		vc_block_room(grid->kernel, grid->nthreads, grid->dynamic_shared);
	uint32_t nsms = vc_sm_count(), n = 0;

	while (n < VC_WAVE_MAX && grid->placed + n < grid->nblocks) {
		int found = vc_sm_find(set, &all, &block, nsms);

		if (found < 0) {
			break;
		}
		vc_room_take(&set->taken[found], &block);
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

/*
 * Memory faults of kernels. The thread that faults is named, its block is abandoned, the grid is
 * marked, and the CUDA part reports the sticky error that a GPU would report. Faults outside
 * kernels, and all faults under a sanitizer, go the usual way.
 */

#define VC_SIGNAL_STACK (64 * 1024)

#if !defined(VC_ASAN) && !defined(VC_TSAN)

static void vc_fault(int number, siginfo_t *info, void *context)
{
	struct vc_fiber *fiber = (struct vc_fiber *)ep_simt_self;
	char where[160] = "";
	char line[512];
	struct vc_block *block;
	int n;

	(void)context;
	if (!fiber || !vc_self) {
		signal(number, SIG_DFL);
		raise(number);
		return;
	}
	block = &vc_self->block;
	if (vc_fiber_overflowed(fiber, (uintptr_t)info->si_addr)) {
		vc_illegal(block, fiber, "stack overflow beyond %zu KiB (VC_STACK_KB gives more)",
			   fiber->stack_size / 1024);
	}
	if (vc_describe_address) {
		vc_describe_address((uintptr_t)info->si_addr, where, sizeof(where));
	}
	n = snprintf(line, sizeof(line),
		     "vcluster: rank %d device %d: kernel %s, block %u, warp %u, lane %u: %s at "
		     "address %p%s%s\n",
		     vc_rank(), block->grid->device, block->grid->kernel->name, block->index,
		     fiber->pub.warp, fiber->pub.lane,
		     number == SIGBUS ? "bus error" : "illegal access", info->si_addr,
		     *where ? ", " : "", where);
	if (write(STDERR_FILENO, line, (size_t)n) < 0) {
		_exit(VC_EXIT_ILLEGAL);
	}
	siglongjmp(vc_self->fault_exit, 1);
}

void vc_fault_init(void)
{
	struct sigaction action = { .sa_sigaction = vc_fault, .sa_flags = SA_SIGINFO | SA_ONSTACK };

	sigemptyset(&action.sa_mask);
	sigaction(SIGSEGV, &action, NULL);
	sigaction(SIGBUS, &action, NULL);
}

void vc_fault_thread_init(void)
{
	stack_t stack = { .ss_sp = malloc(VC_SIGNAL_STACK), .ss_size = VC_SIGNAL_STACK };

	if (!stack.ss_sp || sigaltstack(&stack, NULL)) {
		vc_die(VC_EXIT_ILLEGAL, "no signal stack for a block thread");
	}
}

#else

void vc_fault_init(void)
{
}

void vc_fault_thread_init(void)
{
}

#endif
