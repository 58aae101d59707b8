/* SPDX-License-Identifier: Apache-2.0 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <unistd.h>

#include "support/world.h"

#define MEET_SECONDS 60.0
#define COMMS 32

struct world_board {
	_Atomic uint32_t met[WORLD_MAX];
	_Atomic uint64_t flag[WORLD_FLAGS][WORLD_MAX];
	_Atomic uint32_t made[COMMS]; /* the number of the communicator that has the id, and 1 */
	ncclUniqueId id[COMMS];
};

struct world_thread {
	struct world w;
	world_fn fn;
	void *arg;
	pthread_t thread;
};

double world_now(void)
{
	return check_now();
}

/* splitmix64 */
uint64_t world_draw(uint64_t *state, uint64_t below)
{
	uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);

	x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
	x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
	x ^= x >> 31;
	return below ? x % below : x;
}

void world_draw_nodes(uint64_t *state, uint32_t nranks, char *text, size_t size)
{
	size_t n = 0;

	switch (world_draw(state, 3)) {
	case 0:
		snprintf(text, size, "%u", 1 + (unsigned int)world_draw(state, nranks - 1));
		return;
	case 1:
		snprintf(text, size, "1");
		return;
	default:
		break;
	}
	while (nranks) {
		uint32_t of = 1 + (uint32_t)world_draw(state, n ? nranks : nranks - 1);

		n += (size_t)snprintf(text + n, size - n, "%s%u", n ? "," : "", of);
		nranks -= of;
	}
}

uint64_t world_number(const char *text, uint64_t otherwise)
{
	return text && *text ? strtoull(text, NULL, 0) : otherwise;
}

static int environment(const char *name, int otherwise)
{
	return (int)world_number(getenv(name), (uint64_t)otherwise);
}

bool world_launched(void)
{
	return getenv("RANK") && getenv("WORLD_SIZE");
}

int world_nodes(void)
{
	return world_launched() ? environment("WORLD_SIZE", 1) / environment("LOCAL_WORLD_SIZE", 1)
				: 1;
}

void world_nodes_of(uint32_t *node, uint32_t nranks)
{
	const char *sizes = getenv("NCCL_EP_NODE_SIZE");
	uint32_t nodes = (uint32_t)world_nodes(), at = 0, left = 0, size = 0;

	for (uint32_t r = 0; r < nranks; r++) {
		if (!sizes || !*sizes) {
			node[r] = getenv("WORLD_INTERLEAVED") ? r % nodes : r / (nranks / nodes);
			continue;
		}
		if (!left && r) {
			at++;
			sizes = strchr(sizes, ',') ? strchr(sizes, ',') + 1 : sizes;
		}
		if (!left) {
			left = size = (uint32_t)strtoul(sizes, NULL, 10);
		}
		NEED(size);
		node[r] = at;
		left--;
	}
}

int world_size(int otherwise)
{
	return world_launched() ? environment("WORLD_SIZE", 1) : otherwise;
}

/*
 * Ranks wait for one another for most of some tests: who has waited for long may wake up a
 * sixteenth later.
 */
static void doze(double since)
{
	double nap_us = (world_now() - since) * 1e6 / 16;

	usleep((useconds_t)(nap_us < 200 ? 200 : nap_us > 5000 ? 5000 : nap_us));
}

bool world_await(struct world *w, int flag, int rank, uint64_t value, double seconds)
{
	double start = world_now(), end = start + seconds;

	while (world_look(w, flag, rank) < value) {
		if (world_now() > end) {
			return false;
		}
		doze(start);
	}
	return true;
}

void world_raise(struct world *w, int flag, uint64_t value)
{
	atomic_store(&w->board->flag[flag][w->rank], value);
}

uint64_t world_look(struct world *w, int flag, int rank)
{
	return atomic_load(&w->board->flag[flag][rank]);
}

void world_meet(struct world *w)
{
	world_meet_others(w, -1);
}

void world_meet_others(struct world *w, int absent)
{
	double start = world_now(), end = start + MEET_SECONDS;

	atomic_store(&w->board->met[w->rank], ++w->met);
	for (int r = 0; r < w->nranks; r++) {
		while (r != absent && (int32_t)(atomic_load(&w->board->met[r]) - w->met) < 0) {
			if (world_now() > end) {
				fprintf(stderr, "rank %d: rank %d does not come to the meeting\n",
					w->rank, r);
				exit(1);
			}
			doze(start);
		}
	}
}

/*
 * Ids of communicators are numbered; its rank 0 fetches its id. A place is taken again when all
 * ranks of the communicator before have had their id: it could not have been made else.
 */
static ncclComm_t make_comm(struct world *w, int nranks, int rank, uint32_t number, bool blocks)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclResult_t result;
	ncclComm_t comm = NULL;
	double start = world_now(), end = start + MEET_SECONDS;

	if (rank == 0) {
		NEED_OK(ncclGetUniqueId(&w->board->id[number % COMMS]));
		atomic_store(&w->board->made[number % COMMS], number + 1);
	}
	while (atomic_load(&w->board->made[number % COMMS]) != number + 1) {
		NEED(world_now() < end);
		doze(start);
	}
	config.blocking = blocks;
	result = ncclCommInitRankConfig(&comm, nranks, w->board->id[number % COMMS], rank, &config);
	while (result == ncclInProgress) {
		doze(start);
		NEED_OK(ncclCommGetAsyncError(comm, &result));
	}
	NEED_OK(result);
	return comm;
}

static ncclComm_t comm_of(struct world *w, uint64_t members, bool blocks)
{
	static __thread uint32_t made;
	int rank = __builtin_popcountll(members & ((1ull << w->rank) - 1));

	NEED(w->nranks <= 64);
	made++;
	return members >> w->rank & 1
		       ? make_comm(w, __builtin_popcountll(members), rank, made, blocks)
		       : NULL;
}

ncclComm_t world_comm(struct world *w, uint64_t members)
{
	return comm_of(w, members, true);
}

ncclComm_t world_comm_free(struct world *w, uint64_t members)
{
	return comm_of(w, members, false);
}

void world_setenv(struct world *w, const char *name, const char *value)
{
	world_meet(w);
	if (w->processes || w->rank == 0) {
		NEED(!setenv(name, value, 1));
	}
	world_meet(w);
}

static void run_rank(struct world *w, world_fn fn, void *arg)
{
	NEED_CUDA(cudaSetDevice(w->device));
	w->comm = make_comm(w, w->nranks, w->rank, 0, true);
	NEED_CUDA(cudaStreamCreateWithFlags(&w->stream, cudaStreamNonBlocking));
	fn(w, arg);
	NEED_CUDA(cudaStreamDestroy(w->stream));
	(void)ncclCommDestroy(w->comm);
}

static void *thread_main(void *arg)
{
	struct world_thread *t = arg;

	run_rank(&t->w, t->fn, t->arg);
	return NULL;
}

static void run_threads(int nranks, int devices, world_fn fn, void *arg)
{
	struct world_board *board = calloc(1, sizeof(*board));
	struct world_thread *threads = calloc((size_t)nranks, sizeof(*threads));
	int turn = environment("WORLD_TURN", 0);

	NEED(board && threads);
	for (int r = 0; r < nranks; r++) {
		threads[r].w.rank = r;
		threads[r].w.nranks = nranks;
		threads[r].w.device = (r + turn) % nranks % devices;
		threads[r].w.board = board;
		threads[r].fn = fn;
		threads[r].arg = arg;
		NEED(!pthread_create(&threads[r].thread, NULL, thread_main, threads + r));
	}
	for (int r = 0; r < nranks; r++) {
		NEED(!pthread_join(threads[r].thread, NULL));
	}
	free(threads);
	free(board);
}

void *world_shared(const char *name, size_t bytes)
{
	char path[600];
	void *memory;
	int fd;

	NEED(getenv("VC_DIR"));
	snprintf(path, sizeof(path), "%s/%s", getenv("VC_DIR"), name);
	fd = open(path, O_CREAT | O_RDWR, 0600);
	NEED(fd >= 0);
	NEED(ftruncate(fd, (off_t)bytes) == 0);
	memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	NEED(memory != MAP_FAILED);
	close(fd);
	return memory;
}

/* Each call of world_run has a board of its own. */
static struct world_board *map_board(void)
{
	static int runs;
	char name[32];

	snprintf(name, sizeof(name), "board-%d", runs++);
	return world_shared(name, sizeof(struct world_board));
}

static void interrupt(int number)
{
	(void)number;
}

/*
 * As a profiler does: a signal every so many microseconds, and system calls do not go on by
 * themselves.
 */
static void interrupt_often(long us)
{
	struct itimerval every = { { 0, us }, { 0, us } };
	struct sigaction action = { .sa_handler = interrupt };

	NEED(sigaction(SIGALRM, &action, NULL) == 0);
	NEED(setitimer(ITIMER_REAL, &every, NULL) == 0);
}

void world_run(int nranks, world_fn fn, void *arg)
{
	struct world w = { .nranks = nranks, .processes = true };
	int devices = 0, least = environment("NCCL_MULTI_RANK_GPU_ENABLE", 0) ? 1 : nranks;

	NEED(nranks >= 1 && nranks <= WORLD_MAX);
	if (getenv("WORLD_INTERRUPT_US")) {
		interrupt_often(environment("WORLD_INTERRUPT_US", 1000));
	}
	if (!world_launched()) {
		if (cudaGetDeviceCount(&devices) != cudaSuccess || devices < least) {
			fprintf(stderr, "skipped: %d devices, the test needs %d\n", devices, least);
			exit(TEST_SKIP);
		}
		run_threads(nranks, devices, fn, arg);
		return;
	}
	NEED(nranks == environment("WORLD_SIZE", 1));
	w.rank = environment("RANK", 0);
	if (getenv("WORLD_INTERLEAVED")) {
		int local = environment("LOCAL_WORLD_SIZE", 1);

		w.rank = w.rank / local + w.rank % local * world_nodes();
	}
	NEED_CUDA(cudaGetDeviceCount(&devices));
	w.device = environment("LOCAL_RANK", 0) % devices; /* each process may see its own only */
	w.board = map_board();
	run_rank(&w, fn, arg);
	munmap(w.board, sizeof(*w.board));
}

void world_capture(cudaStream_t stream)
{
	NEED_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal));
}

cudaGraphExec_t world_captured(cudaStream_t stream)
{
	cudaGraphExec_t exec;
	cudaGraph_t graph;

	NEED_CUDA(cudaStreamEndCapture(stream, &graph));
	NEED_CUDA(cudaGraphInstantiate(&exec, graph, 0));
	NEED_CUDA(cudaGraphDestroy(graph));
	return exec;
}

void world_capture_drop(cudaStream_t stream)
{
	cudaGraph_t graph;

	NEED_CUDA(cudaStreamEndCapture(stream, &graph));
	NEED_CUDA(cudaGraphDestroy(graph));
}
