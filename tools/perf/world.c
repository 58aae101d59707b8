/* SPDX-License-Identifier: Apache-2.0 */
/* The processes and threads of a run: which one this is, and what all ranks tell each other. */
#include <ctype.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "perf.h"

struct launcher {
	const char *name;
	const char *rank, *size, *local;
	const char *required; /* another variable that must be there, or NULL */
};

/*
 * A batch script under Slurm has SLURM_PROCID too, only srun's tasks have a step. mpirun and
 * torchrun may themselves run inside a step, so they come first.
 */
static const struct launcher launchers[] = {
	{ "mpirun", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
	  NULL },
	{ "vcrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "VC_DIR" },
	{ "torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", NULL },
	{ "mpiexec", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", NULL },
	{ "srun", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_STEP_ID" },
};

static int number_of(const char *variable, uint32_t *value)
{
	const char *text = getenv(variable);
	char *end;
	unsigned long number;

	if (!text || !isdigit((unsigned char)text[0])) {
		return -1;
	}
	number = strtoul(text, &end, 10);
	if (*end || number > 1u << 20) {
		return -1;
	}
	*value = (uint32_t)number;
	return 0;
}

/* The process, by its launcher. */
static void detect_process(struct perf_world *world)
{
	world->launcher = "none";
	world->nprocs = 1;
	for (size_t i = 0; i < sizeof(launchers) / sizeof(launchers[0]); i++) {
		const struct launcher *l = launchers + i;

		if (number_of(l->rank, &world->proc) || number_of(l->size, &world->nprocs) ||
		    (l->required && !getenv(l->required))) {
			world->proc = 0;
			world->nprocs = 1;
			continue;
		}
		world->launcher = l->name;
		if (number_of(l->local, &world->local_proc)) {
			world->local_proc = world->proc;
		}
		break;
	}
}

int perf_is_first_process(void)
{
	struct perf_world w = { .nprocs = 0 };

	detect_process(&w);
	return w.proc == 0;
}

void perf_complain(const char *format, ...)
{
	char text[1024];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	if (!perf_is_first_process()) {
		sleep(3); /* launchers end the run when its first process ends with an error */
	}
	fprintf(stderr, "ep_perf: %s\n", text);
}

int perf_world_detect(struct perf_world *world, const struct perf_options *opt)
{
	detect_process(world);
	world->nlocal = opt->gpus * opt->threads;
	world->timeout_s = opt->timeout_s;
	world->nranks = world->nprocs * world->nlocal;
	if (world->nprocs == 0 || world->proc >= world->nprocs) {
		perf_complain("got process %u of %u from %s, allowed is 0 to one less than that",
			      world->proc, world->nprocs, world->launcher);
		return -1;
	}
	if (world->nranks > ORACLE_MAX_RANKS) {
		perf_complain("got %u ranks (%u processes with %u each), allowed is %d at most",
			      world->nranks, world->nprocs, world->nlocal, ORACLE_MAX_RANKS);
		return -1;
	}
	return 0;
}

int perf_world_connect(struct perf_world *world, const struct perf_options *opt)
{
	if (pthread_barrier_init(&world->barrier, NULL, world->nlocal)) {
		fprintf(stderr, "ep_perf: no barrier\n");
		return -1;
	}
	return world->nprocs == 1 ? 0 : perf_rendezvous_open(world, opt);
}

void perf_world_close(struct perf_world *world)
{
	uint32_t n = world->nprocs == 1 ? 0 : world->proc == 0 ? world->nprocs : 1;

	for (uint32_t i = 0; world->fds && i < n; i++) {
		if (world->fds[i] >= 0) {
			close(world->fds[i]);
		}
	}
	free(world->fds);
	free(world->mine);
	free(world->all);
	pthread_barrier_destroy(&world->barrier);
}

void perf_gather(struct perf_rank *rank, const void *in, size_t bytes, void *out)
{
	struct perf_world *w = &rank->perf->world;

	pthread_barrier_wait(&w->barrier);
	if (rank->local == 0 && bytes * w->nranks > w->room) {
		w->room = bytes * w->nranks;
		w->mine = realloc(w->mine, w->room);
		w->all = realloc(w->all, w->room);
		if (!w->mine || !w->all) {
			perf_die(rank, "out of memory");
		}
	}
	pthread_barrier_wait(&w->barrier);
	if (bytes) {
		memcpy(w->mine + rank->local * bytes, in, bytes);
	}
	pthread_barrier_wait(&w->barrier);
	if (rank->local == 0 && perf_rendezvous_exchange(w, bytes)) {
		perf_die(rank, "another process of the run is gone or silent");
	}
	pthread_barrier_wait(&w->barrier);
	if (bytes) {
		memcpy(out, w->all, bytes * w->nranks);
	}
}

void perf_barrier(struct perf_rank *rank)
{
	char in = 0;
	char out[ORACLE_MAX_RANKS];

	perf_gather(rank, &in, sizeof(in), out);
}
