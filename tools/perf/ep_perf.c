/* SPDX-License-Identifier: Apache-2.0 */
/* Threads, devices, communicators, the ladder, and the end of it all. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "perf.h"

/* Of process 0: a size whose line is long in coming. */
static void report_progress(struct perf *perf, uint64_t now)
{
	uint64_t begun = atomic_load(&perf->size_ns);
	uint64_t every = perf->opt.progress_s * UINT64_C(1000000000);
	uint64_t last = atomic_load(&perf->progress_ns);

	if (!begun || !every || now < begun + every || now < last + every) {
		return;
	}
	atomic_store(&perf->progress_ns, now);
	fprintf(stderr, "ep_perf: %u tokens per rank: %s, %llu s so far\n",
		atomic_load(&perf->size), atomic_load(&perf->ranks[0].phase),
		(unsigned long long)((now - begun) / 1000000000));
}

/*
 * Looks after the ranks of this process once a second. No progress: prints who waits, then ends it.
 */
static void *watch(void *argument)
{
	struct perf *perf = argument;
	uint64_t limit = perf->opt.timeout_s * UINT64_C(1000000000);
	uint64_t newest = perf_now_ns();

	while (limit == 0 || perf_now_ns() < newest + limit) {
		sleep(1);
		for (uint32_t i = 0; i < perf->world.nlocal; i++) {
			uint64_t begun = atomic_load(&perf->ranks[i].phase_ns);

			newest = begun > newest ? begun : newest;
		}
		report_progress(perf, perf_now_ns());
	}
	fflush(stdout);
	for (uint32_t i = 0; i < perf->world.nlocal; i++) {
		fprintf(stderr, "ep_perf: rank %u: no progress for %u s while %s\n",
			perf->ranks[i].rank, perf->opt.timeout_s,
			atomic_load(&perf->ranks[i].phase));
	}
	_exit(EXIT_BROKEN);
}

static void choose_device(struct perf_rank *rank)
{
	const struct perf_world *w = &rank->perf->world;
	uint32_t shared = rank->perf->opt.ranks_per_gpu;
	int local = (int)(rank->local / shared);
	int count = 0;

	PERF_CUDA(rank, cudaGetDeviceCount(&count));
	rank->place.device = (int)(w->local_proc * (w->nlocal / shared)) + local;
	if (rank->place.device >= count && count >= (int)(w->nlocal / shared)) {
		/* the launcher shows each process its own devices only */
		rank->place.device = local;
	}
	if (rank->place.device >= count) {
		perf_die(rank,
			 "it needs device %d, there are %d; ranks per process are -t times -g",
			 rank->place.device, count);
	}
	PERF_CUDA(rank, cudaSetDevice(rank->place.device));
}

static void describe_place(struct perf_rank *rank)
{
	struct cudaDeviceProp properties;

	gethostname(rank->place.host, sizeof(rank->place.host) - 1);
	rank->place.pid = (int)getpid();
	PERF_CUDA(rank, cudaDeviceGetPCIBusId(rank->place.bus, sizeof(rank->place.bus),
					      rank->place.device));
	PERF_CUDA(rank, cudaGetDeviceProperties(&properties, rank->place.device));
	snprintf(rank->place.device_name, sizeof(rank->place.device_name), "%.63s",
		 properties.name);
	rank->place.sms = properties.multiProcessorCount;
}

/* Kernels of ranks on one GPU wait for each other: the blocks of all must be on it together. */
static void share_sms(struct perf_rank *rank)
{
	struct perf_options *opt = &rank->perf->opt;
	uint32_t most = (uint32_t)rank->place.sms / opt->ranks_per_gpu;

	if (rank->local != 0 || opt->ranks_per_gpu == 1) {
		return;
	}
	if (opt->sms > most || opt->dispatch_sms > most || opt->combine_sms > most) {
		perf_die(rank, "--ranks-per-gpu %u on a GPU of %d SMs: --%ssms is at most %u",
			 opt->ranks_per_gpu, rank->place.sms,
			 opt->sms > most            ? ""
			 : opt->dispatch_sms > most ? "dispatch-"
						    : "combine-",
			 most);
	}
	opt->sms = opt->sms ? opt->sms : most;
}

/*
 * The driver gives a GPU's streams hardware queues, and waits until the GPU is idle when it makes a
 * new one. Of ranks that share a GPU, one that creates a stream late would wait for a kernel of one
 * that came earlier, and that kernel waits for the late rank. So all queues are made before any
 * kernel runs; the driver keeps them for the streams that come later.
 */
static void make_queues(struct perf_rank *rank)
{
	uint32_t shared = rank->perf->opt.ranks_per_gpu;
	cudaStream_t streams[128]; /* more than the driver has queues for */

	if (shared == 1) {
		return;
	}
	for (uint32_t i = 0; rank->local % shared == 0 && i < 128; i++) {
		PERF_CUDA(rank, cudaStreamCreateWithFlags(&streams[i], cudaStreamNonBlocking));
	}
	for (uint32_t i = 0; rank->local % shared == 0 && i < 128; i++) {
		PERF_CUDA(rank, cudaStreamDestroy(streams[i]));
	}
	perf_barrier(rank);
}

static void connect_ranks(struct perf_rank *rank)
{
	struct perf_world *w = &rank->perf->world;
	ncclUniqueId *ids = perf_alloc(rank, w->nranks, sizeof(*ids));
	struct perf_place *places = perf_alloc(rank, w->nranks, sizeof(*places));
	ncclUniqueId id = { { 0 } };

	if (rank->rank == 0) {
		PERF_NCCL(rank, ncclGetUniqueId(&id));
	}
	perf_gather(rank, &id, sizeof(id), ids);
	perf_gather(rank, &rank->place, sizeof(rank->place), places);
	PERF_NCCL(rank, ncclCommInitRank(&rank->comm, (int)w->nranks, ids[0], (int)rank->rank));
	free(ids);
	if (rank->local == 0) {
		rank->perf->places = places;
	} else {
		free(places);
	}
}

/* 64 bits hold the largest size times the largest factor. */
static uint64_t next_size(const struct perf_options *opt, uint64_t tokens)
{
	if (opt->step_increment) {
		return tokens + opt->step_increment;
	}
	return tokens ? tokens * opt->step_factor : 1;
}

static void count_row(struct perf *perf, const struct perf_row *row)
{
	perf->nrows++;
	perf->wrong += row->wrong;
	if (row->unsupported[0]) {
		perf->unsupported++;
		perf->refused += row->refused;
		return;
	}
	perf->measured++;
	perf->busbw_sum += row->op[PERF_DISPATCH].busbw + row->op[PERF_COMBINE].busbw;
}

static void measure_line(struct perf_rank *rank, uint32_t tokens, uint32_t line)
{
	struct perf *perf = rank->perf;
	struct perf_row row;

	if (rank->rank == 0) {
		atomic_store(&perf->size, tokens);
		atomic_store(&perf->size_ns, perf_now_ns());
	}
	perf_run(rank, tokens, line, &row);
	if (rank->local == 0) {
		count_row(perf, &row);
	}
	if (rank->rank == 0) {
		atomic_store(&perf->size_ns, 0);
		perf_report_row(perf, &row);
		perf_json_row(perf, &row);
	}
	perf_row_free(&row);
}

static void climb(struct perf_rank *rank)
{
	const struct perf_options *opt = &rank->perf->opt;

	for (uint32_t cycle = 0; opt->cycles == 0 || cycle < opt->cycles; cycle++) {
		for (uint64_t size = opt->min_tokens; size <= opt->max_tokens;
		     size = next_size(opt, size)) {
			for (uint32_t line = 0; line < perf_lines(opt); line++) {
				measure_line(rank, (uint32_t)size, line);
			}
		}
	}
}

static void slowest_setup(struct perf_rank *rank, struct perf_setup *setup)
{
	struct perf_setup all[ORACLE_MAX_RANKS];

	perf_gather(rank, &rank->setup, sizeof(rank->setup), all);
	memset(setup, 0, sizeof(*setup));
	for (uint32_t n = 0; n < rank->perf->world.nranks; n++) {
		setup->group_ms = fmax(setup->group_ms, all[n].group_ms);
		setup->group_cpu_ms = fmax(setup->group_cpu_ms, all[n].group_cpu_ms);
		setup->handle_ms = fmax(setup->handle_ms, all[n].handle_ms);
		setup->library_mib = fmax(setup->library_mib, all[n].library_mib);
	}
}

static void *rank_main(void *argument)
{
	struct perf_rank *r = argument;
	struct perf_setup setup;
	struct perf_links links;

	perf_phase(r, "setting up");
	choose_device(r);
	describe_place(r);
	share_sms(r);
	PERF_CUDA(r, cudaStreamCreateWithFlags(&r->stream, cudaStreamNonBlocking));
	make_queues(r);
	connect_ranks(r);
	if (perf_group_open(r) == 0) {
		perf_buffers_alloc(r);
	}
	if (r->rank == 0) {
		perf_report_head(r->perf);
		perf_json_open(r->perf);
	}
	climb(r);
	perf_phase(r, "tearing down");
	slowest_setup(r, &setup);
	perf_links_sum(r, &links);
	if (r->rank == 0) {
		r->perf->unwritten = !perf_report_end(r->perf, &setup, &links);
		r->perf->unwritten |= !perf_json_close(r->perf, &setup, &links);
	}
	perf_buffers_free(r);
	perf_group_close(r);
	PERF_NCCL(r, ncclCommDestroy(r->comm));
	PERF_CUDA(r, cudaStreamDestroy(r->stream));
	return NULL;
}

static int start(struct perf *perf)
{
	struct perf_world *w = &perf->world;
	pthread_t watchdog;

	for (uint32_t i = 0; i < w->nlocal; i++) {
		struct perf_rank *r = perf->ranks + i;

		r->perf = perf;
		r->local = i;
		r->rank = w->proc * w->nlocal + i;
		perf_phase(r, "starting");
	}
	if (pthread_create(&watchdog, NULL, watch, perf) == 0) {
		pthread_detach(watchdog);
	}
	for (uint32_t i = 0; i < w->nlocal; i++) {
		if (pthread_create(&perf->ranks[i].thread, NULL, rank_main, perf->ranks + i)) {
			fprintf(stderr, "ep_perf: no thread for rank %u\n", perf->ranks[i].rank);
			_exit(EXIT_BROKEN);
		}
	}
	for (uint32_t i = 0; i < w->nlocal; i++) {
		pthread_join(perf->ranks[i].thread, NULL);
	}
	if (perf->wrong) {
		return EXIT_WRONG;
	}
	if (perf->refused || perf->unwritten) {
		return EXIT_BROKEN;
	}
	return perf->measured ? 0 : EXIT_NOTHING;
}

/* Settings of NCCL and CUDA before they start, and what is too much for an older NCCL. */
static int share_gpus(const struct perf_options *opt)
{
	int version = 0;

	if (opt->ranks_per_gpu == 1) {
		return 0;
	}
	ncclGetVersion(&version);
	if (version < 23000) {
		perf_complain("--ranks-per-gpu %u needs NCCL 2.30 or later, this is %d.%d.%d",
			      opt->ranks_per_gpu, version / 10000, version / 100 % 100,
			      version % 100);
		return -1;
	}
	setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0); /* no rank's stream behind another's */
	setenv("CUDA_MODULE_LOADING", "EAGER", 0);      /* loading waits for running kernels */
	return 0;
}

static int prepare(struct perf *perf)
{
	char why[256];

	setenv("NCCL_NVLS_ENABLE", "0", 0); /* before NCCL looks */
	if (perf->opt.node_size) {
		setenv("NCCL_EP_NODE_SIZE", perf->opt.node_size, 1);
	}
	if (share_gpus(&perf->opt)) {
		return -1;
	}
	if (perf_world_detect(&perf->world, &perf->opt)) {
		return -1;
	}
	perf->opt.problem.nranks = perf->world.nranks;
	if (oracle_problem_prepare(&perf->opt.problem, why, sizeof(why))) {
		perf_complain("%s", why);
		return -1;
	}
	if (!perf->opt.steps) {
		perf->opt.steps = oracle_steps(&perf->opt.problem);
	}
	if (perf->opt.eager && perf->opt.steps > 1) {
		perf_complain("--eager: got %u steps, allowed is 1: tensors have as many rows as "
			      "one step brings",
			      perf->opt.steps);
		return -1;
	}
	perf->no_kernel_times = perf->opt.kernel_times ? perf_cupti_open(&perf->opt)
						       : "switched off";
	perf->kernel_times = perf->no_kernel_times == NULL;
	return 0;
}

int main(int argc, char **argv)
{
	static struct perf perf;
	int rc = perf_args_parse(argc, argv, &perf.opt);

	if (rc) {
		return rc - 1;
	}
	perf.opt.command = argv;
	if (prepare(&perf)) {
		return EXIT_USAGE;
	}
	if (perf_json_reserve(&perf)) {
		return EXIT_BROKEN;
	}
	if (perf_world_connect(&perf.world, &perf.opt)) {
		return EXIT_BROKEN;
	}
	rc = start(&perf);
	perf_world_close(&perf.world);
	oracle_problem_free(&perf.opt.problem);
	oracle_routing_free(&perf.opt.problem.routing);
	free(perf.places);
	return rc;
}
