/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput, and ranks are killed in the middle of their work (VC_FAULT in the environment
 * says when), or a rank's connection with a rank of another node fails (VC_NIC_FAULTS). Within the
 * timeout and a second every rank has an error that names one that was killed, or, at the ends of
 * the broken connection, the other end; the group can be destroyed, and, if all ranks are left, a
 * new one works.
 *
 *     ht_nodes_lost kill VICTIMS [ring [TOKENS [WORDS]]]
 *                                  as a number: bit r is rank r. ring: a rank's tokens go to itself
 *                                  and to
 *                                  the next one, so that few ranks wait for a victim themselves.
 *                                  WORDS: GPU
 *                                  threads of a rank that is left post so many at most
 *                                  (VC_NIC_STATS=1) ht_nodes_lost link TEXT      of rank 1, whose
 *                                  error is about a rank of the other node, and has TEXT in it
 */
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "support/ht_bench.h"
#include "support/victim.h"

#define BROKEN 1 /* the rank whose NIC has the fault */
#define TIMEOUT_MS 16000.0
#define BROKEN_MS 20000.0 /* a connection's failure is told at once */
#define MOST_ROUNDS 60
#define TOKENS 60
#define MOST_TOKENS 600

enum {
	FLAG_FAILED = 1
};

struct scene {
	uint32_t victims; /* 0: none is killed */
	bool ring;
	uint32_t tokens;
	double timeout_ms;
	const char *text; /* of the broken rank's error */
};

/* Experts of this rank and of the next one, two of each. */
static void route_ring(struct oracle_problem *p)
{
	static int32_t lines[WORLD_MAX * MOST_TOKENS][ORACLE_MAX_TOPK];
	uint32_t local = p->experts / p->nranks;

	for (uint32_t i = 0; i < p->nranks * p->max_tokens; i++) {
		uint32_t rank = i / p->max_tokens, next = (rank + 1) % p->nranks;

		lines[i][0] = (int32_t)(rank * local + i % local);
		lines[i][1] = (int32_t)(next * local + i % local);
		lines[i][2] = (int32_t)(next * local + (i + 1) % local);
	}
	p->routing.family = ORACLE_FILE;
	p->routing.lines = lines[0];
	p->routing.nlines = p->nranks * p->max_tokens;
}

static struct oracle_ht problem(const struct scene *scene, int nranks)
{
	struct oracle_ht h = { .expert_major = 1 };

	h.p = (struct oracle_problem){ .seed = 5,
				       .nranks = (uint32_t)nranks,
				       .experts = 12,
				       .topk = 3,
				       .hidden = 256,
				       .tokens = scene->tokens,
				       .max_tokens = scene->tokens };
	if (scene->ring) {
		route_ring(&h.p);
	}
	return h;
}

/* UpdateHandle, dispatch and combine, in turn; why the group has failed, if it has, and when. */
static ncclResult_t operate(struct ht_bench *b, int number, double *seconds)
{
	double start = world_now();
	ncclResult_t result = number % 3 == 0   ? ht_update(b, b->w->stream)
			      : number % 3 == 1 ? ht_dispatch(b, false, b->w->stream)
						: ht_combine(b, false, b->w->stream);

	if (result == ncclSuccess) {
		NEED_CUDA(cudaStreamSynchronize(b->w->stream));
		OK(ncclEpExtGetLastError(b->group, &result, NULL));
	}
	*seconds = world_now() - start;
	return result;
}

static bool is_victim(const struct scene *scene, int rank)
{
	return scene->victims >> rank & 1;
}

static void check_text(struct world *w, const struct scene *scene, const char *text)
{
	int culprit = victim_culprit(text), half = w->nranks / 2;

	CHECK(culprit >= 0, "%s", text);
	if (scene->victims) {
		CHECK(is_victim(scene, culprit), "%s", text);
		return;
	}
	if (w->rank == BROKEN) {
		CHECK(culprit / half != BROKEN / half, "%s", text);
		CHECK_HAS(text, scene->text);
	}
}

/* All of those that are left. */
static void gather(struct world *w, const struct scene *scene)
{
	for (int r = 0; r < w->nranks; r++) {
		NEED(is_victim(scene, r) || world_await(w, FLAG_FAILED, r, 1, 60));
	}
}

static void new_group(struct world *w, const struct scene *scene)
{
	struct oracle_ht h = problem(scene, w->nranks);
	struct ht_bench b;

	check_context("a new group");
	ht_open(&b, w, ht_group(w, &h, 0, 60e3), &h, 0);
	ht_step(&b);
	ht_end(&b);
}

static void run(struct world *w, void *arg)
{
	struct scene scene_here = *(const struct scene *)arg, *scene = &scene_here;
	struct oracle_ht h = problem(scene, w->nranks);
	ncclResult_t result = ncclSuccess;
	const char *text = "";
	double seconds = 0;
	struct ht_bench b;
	int n = 0;

	scene->timeout_ms = scene->victims ? TIMEOUT_MS : BROKEN_MS;
	ht_open(&b, w, ht_group(w, &h, 0, scene->timeout_ms), &h, 0);
	for (; n < 3 * MOST_ROUNDS && result == ncclSuccess; n++) {
		result = operate(&b, n, &seconds);
	}
	check_context("operation %d, rank %d", n, w->rank);
	CHECK_INT(result, ncclRemoteError);
	/* more for what is not waiting */
	CHECK(seconds <= scene->timeout_ms / 1e3 + 8, "%.1f s", seconds);
	OK(ncclEpExtGetLastError(b.group, &result, &text));
	CHECK_INT(result, ncclRemoteError);
	printf("rank %d, %.1f s: %s\n", w->rank, seconds, text);
	check_text(w, scene, text);
	CHECK_RESULT(ht_update(&b, w->stream), ncclRemoteError);
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	world_raise(w, FLAG_FAILED, 1);
	gather(w, scene);
	ht_end(&b);
	if (!scene->victims) {
		world_meet(w);
		new_group(w, scene);
	}
}

/* Runs the rest in a child, and then looks how many words its NIC has sent for GPU threads. */
static void count_words(bool killed, uint64_t most)
{
	static const char name[] = "writes of words";
	int file = memfd_create("stderr", 0), status;
	static char text[1 << 20];
	ssize_t size;
	char *at;
	pid_t child = fork();

	NEED(file >= 0 && child >= 0);
	if (!child) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		NEED(dup2(file, STDERR_FILENO) >= 0);
		return;
	}
	NEED(waitpid(child, &status, 0) == child);
	size = pread(file, text, sizeof(text) - 1, 0);
	NEED(size >= 0 && write(STDERR_FILENO, text, (size_t)size) == size);
	at = strstr(text, name);
	CHECK(at || killed);
	if (at) {
		uint64_t words = strtoull(at + strlen(name), NULL, 10);

		CHECK(words && words <= most, "%llu words", (unsigned long long)words);
	}
	_exit(check_end() || !WIFEXITED(status) ? 1 : WEXITSTATUS(status));
}

int main(int argc, char **argv)
{
	struct scene scene = { .tokens = TOKENS };

	NEED(argc >= 3);
	if (!strcmp(argv[1], "kill")) {
		scene.victims = (uint32_t)world_number(argv[2], 0);
		scene.ring = argc > 3 && !strcmp(argv[3], "ring");
		scene.tokens = argc > 4 ? (uint32_t)world_number(argv[4], 0) : TOKENS;
		NEED(scene.tokens <= MOST_TOKENS);
	}
	scene.text = argv[2];
	if (argc > 5) {
		count_words(is_victim(&scene, (int)world_number(getenv("RANK"), WORLD_MAX)),
			    world_number(argv[5], 0));
	}
	for (int r = 0; r < WORLD_MAX; r++) {
		if (r < 32 && is_victim(&scene, r)) {
			victim_start(r, true);
		}
	}
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "3000", 0);
	setenv("NCCL_EP_HT_RING_BYTES", "0", 0);
	world_run((int)world_number(getenv("WORLD_SIZE"), 4), run, &scene);
	return check_end();
}
