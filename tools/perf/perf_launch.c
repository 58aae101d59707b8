/* SPDX-License-Identifier: Apache-2.0 */
/* Which process of the run this is, and where its processes meet. */
#include <ctype.h>
#include <errno.h>
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

/* "node[03-05,7],other" to "node03"; a '-' ends a number only inside brackets */
static void first_node(const char *list, char *out, size_t bytes)
{
	size_t n = 0;
	int inside = 0;

	for (; *list && !strchr(inside ? ",-]" : ",", *list) && n + 1 < bytes; list++) {
		if (*list == '[') {
			inside = 1;
		} else {
			out[n++] = *list;
		}
	}
	out[n] = '\0';
}

/*
 * A name that the processes of this run share and no other run on this host: the launcher's name
 * of the job, else the launcher's process number (which a wrapper around each process hides).
 */
static void job_file(char *out, size_t bytes)
{
	static const char *const names[] = { "PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid",
					     "HYDRA_JOBID", "PMI_JOBID" };
	const char *dir = getenv("TMPDIR");
	char job[128];

	snprintf(job, sizeof(job), "%d", (int)getppid());
	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		const char *text = getenv(names[i]);

		if (text && *text) {
			snprintf(job, sizeof(job), "%s", text);
			break;
		}
	}
	for (char *c = job; *c; c++) {
		if (!isalnum((unsigned char)*c) && *c != '.' && *c != '-') {
			*c = '_';
		}
	}
	snprintf(out, bytes, "file:%s/ep_perf.%u.%s", dir && *dir ? dir : "/tmp",
		 (unsigned int)getuid(), job);
}

static void rendezvous_address(const struct perf_options *opt, char *out, size_t bytes)
{
	const char *address = getenv("MASTER_ADDR");
	const char *port = getenv("MASTER_PORT");
	const char *agent = getenv("TORCHELASTIC_USE_AGENT_STORE");
	const char *nodes = getenv("SLURM_STEP_NODELIST");
	const char *job = getenv("SLURM_JOB_ID");
	const char *vc = getenv("VC_DIR");
	char node[256];

	if (opt->rendezvous) {
		snprintf(out, bytes, "%s", opt->rendezvous);
	} else if (vc && *vc) {
		snprintf(out, bytes, "file:%s/ep_perf.meet", vc);
	} else if (address && *address) {
		/* torchrun's own store may sit on the port itself */
		int number = port && *port ? atoi(port) : 29500;

		snprintf(out, bytes, "%s:%d", address,
			 number + (agent && !strcasecmp(agent, "true")));
	} else if (nodes && *nodes && job) {
		first_node(nodes, node, sizeof(node));
		snprintf(out, bytes, "%s:%d", node, 20000 + atoi(job) % 20000);
	} else {
		job_file(out, bytes);
	}
}

int perf_world_connect(struct perf_world *world, const struct perf_options *opt)
{
	char address[512];

	if (pthread_barrier_init(&world->barrier, NULL, world->nlocal)) {
		fprintf(stderr, "ep_perf: no barrier\n");
		return -1;
	}
	if (world->nprocs == 1) {
		return 0;
	}
	rendezvous_address(opt, address, sizeof(address));
	return perf_rendezvous_open(world, address);
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

static int exchange(struct perf_world *world, size_t bytes)
{
	size_t part = bytes * world->nlocal;

	if (world->proc != 0) {
		return perf_send_all(world->fds[0], world->mine, part) ||
		       perf_receive_all(world->fds[0], world->all, part * world->nprocs);
	}
	memcpy(world->all, world->mine, part);
	for (uint32_t i = 1; i < world->nprocs; i++) {
		if (perf_receive_all(world->fds[i], world->all + i * part, part)) {
			return -1;
		}
	}
	for (uint32_t i = 1; i < world->nprocs; i++) {
		if (perf_send_all(world->fds[i], world->all, part * world->nprocs)) {
			return -1;
		}
	}
	return 0;
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
	if (rank->local == 0 && exchange(w, bytes)) {
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
