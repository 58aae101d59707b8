/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: a rank is killed or stopped before or in the middle of UpdateHandle, a dispatch or a
 * combine (VC_FAULT in the environment says when; three launches make a step). Within the timeout and a
 * second every other rank has an error that names it; the group can be destroyed, and a new one of the
 * survivors works.
 *
 *     ht_lost kill|stop OPERATIONS flat|em [window]
 *     ht_lost late - flat|em [window]    it is stopped for more than half of the timeout: nothing fails
 *
 * OPERATIONS: the error names one of these.
 */
#include <pthread.h>
#include <unistd.h>
#include "support/ht_bench.h"
#include "support/victim.h"

#define VICTIM 2
#define TIMEOUT_MS 24000.0
#define MOST_STEPS 20
#define LATE_STEPS 4

enum {
	FLAG_FAILED = 1
};

struct scene {
	const char *operations;
	bool stops;
	bool late;
	bool em;
	uint32_t flags;
};

static struct oracle_ht problem_of(const struct scene *s, int nranks)
{
	struct oracle_ht h = { .expert_major = s->em, .alignment = s->em ? 8 : 0 };

	h.p = (struct oracle_problem){ .seed = 11,
				       .nranks = (uint32_t)nranks,
				       .experts = 12,
				       .topk = 4,
				       .hidden = 512,
				       .tokens = 96,
				       .max_tokens = 100,
				       .dtype = ORACLE_BF16 };
	h.limit = (uint32_t)nranks * 100 * 4 + 200;
	return h;
}

static ncclResult_t look(struct ht_bench *b)
{
	ncclResult_t result = ncclSuccess;

	NEED_CUDA(cudaStreamSynchronize(b->w->stream));
	OK(ncclEpExtGetLastError(b->group, &result, NULL));
	return result;
}

/*
 * Why the group has failed, if it has, and how long it took to know. The next operation is launched when
 * one is over: else the fault would strike ahead of its operation.
 */
static ncclResult_t step(struct ht_bench *b, double *seconds)
{
	double start = world_now();
	ncclResult_t result = ncclSuccess;

	for (int i = 0; i < 3 && result == ncclSuccess; i++) {
		start = world_now();
		OK(i == 0   ? ht_update(b, b->w->stream)
		   : i == 1 ? ht_dispatch(b, false, b->w->stream)
			    : ht_combine(b, false, b->w->stream));
		result = look(b);
	}
	*seconds = world_now() - start;
	return result;
}

static void survivors_group(struct world *w, const struct scene *scene)
{
	struct world small = *w;
	struct oracle_ht h = problem_of(scene, w->nranks - 1);
	struct ht_bench b;

	check_context("a new group");
	small.comm = world_comm(w, 0xf & ~(1u << VICTIM));
	small.nranks = w->nranks - 1;
	small.rank = w->rank - (w->rank > VICTIM);
	ht_open(&b, &small, ht_group(&small, &h, scene->flags, TIMEOUT_MS), &h, scene->flags);
	NEED_OK(ht_update(&b, w->stream));
	NEED_SYNC(ht_dispatch(&b, false, w->stream), w->stream);
	ht_check_dispatch(&b, false);
	ht_expert_work(&b);
	NEED_SYNC(ht_combine(&b, false, w->stream), w->stream);
	ht_check_combine(&b, false);
	CHECK_LAST(b.group, ncclSuccess, "");
	ht_end(&b);
	OK(ncclCommDestroy(small.comm));
}

/* All the others, and from now on every call, say the same. */
static void check_failed(struct world *w, struct ht_bench *b, const char *operations)
{
	ncclResult_t result = ncclSuccess;
	const char *text = "";
	char kept[1024], name[20] = "";

	OK(ncclEpExtGetLastError(b->group, &result, &text));
	CHECK_INT(result, ncclRemoteError);
	(void)sscanf(text, "%19s", name);
	CHECK(name[0] && strstr(operations, name), "%s", text);
	CHECK(victim_named(text, VICTIM), "\"%s\" does not name rank %d", text, VICTIM);
	snprintf(kept, sizeof(kept), "%s", text);
	CHECK_RESULT(ht_update(b, w->stream), ncclRemoteError);
	CHECK_RESULT(ht_dispatch(b, false, w->stream), ncclRemoteError);
	CHECK_RESULT(ht_combine(b, true, w->stream), ncclRemoteError);
	OK(ncclEpExtGetLastError(b->group, &result, &text));
	CHECK_TEXT(text, kept);
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	world_raise(w, FLAG_FAILED, 1);
	for (int r = 0; r < w->nranks; r++) {
		NEED(r == VICTIM || world_await(w, FLAG_FAILED, r, 1, 60));
	}
}

static void *wake(void *arg)
{
	usleep((useconds_t)(0.6 * TIMEOUT_MS * 1e3));
	victim_continue();
	return NULL;
}

/* All waits have been late, and end well. */
static void run_late(struct world *w, void *arg)
{
	const struct scene *scene = arg;
	struct oracle_ht h = problem_of(scene, w->nranks);
	ncclEpGroup_t group = ht_group(w, &h, scene->flags, TIMEOUT_MS);
	double seconds = 0;
	struct ht_bench b;
	pthread_t thread;

	check_context("rank %d", w->rank);
	ht_open(&b, w, group, &h, scene->flags);
	ht_expert_work(&b);
	for (int i = 0; i < LATE_STEPS; i++) {
		if (i == 2 && w->rank == 0) { /* it is stopped in this step */
			NEED(!pthread_create(&thread, NULL, wake, NULL));
		}
		NEED_OK(step(&b, &seconds));
		ht_check_dispatch(&b, false);
		ht_check_combine(&b, false);
	}
	CHECK_LAST(group, ncclSuccess, "");
	if (w->rank == 0) {
		pthread_join(thread, NULL);
	}
	ht_end(&b);
}

static void run(struct world *w, void *arg)
{
	const struct scene *scene = arg;
	struct oracle_ht h = problem_of(scene, w->nranks);
	ncclEpGroup_t group = ht_group(w, &h, scene->flags, TIMEOUT_MS);
	ncclResult_t result = ncclSuccess;
	double seconds = 0, start;
	struct ht_bench b;

	check_context("rank %d", w->rank);
	ht_open(&b, w, group, &h, scene->flags);
	ht_expert_work(&b);
	for (int i = 0; i < MOST_STEPS && result == ncclSuccess; i++) {
		result = step(&b, &seconds);
	}
	if (w->rank == VICTIM) { /* stopped and continued: it finds itself alone */
		NEED(scene->stops);
		CHECK(result == ncclRemoteError || result == ncclSuccess);
		ht_end(&b);
		return;
	}
	CHECK_INT(result, ncclRemoteError);
	/* (a second more for what is not waiting, which sanitizers make longer, too) */
	CHECK(seconds <= TIMEOUT_MS / 1e3 + 8, "%.1f s", seconds);
	check_failed(w, &b, scene->operations);
	if (scene->stops) {
		victim_continue();
	}
	start = world_now();
	ht_end(&b);
	CHECK(scene->stops || world_now() - start <= 16, "%.1f s", world_now() - start);
	if (!scene->stops || !scene->flags) {
		survivors_group(w, scene);
	}
}

int main(int argc, char **argv)
{
	struct scene scene = { 0 };

	NEED(argc >= 4);
	scene.operations = argv[2];
	scene.stops = !strcmp(argv[1], "stop");
	scene.late = !strcmp(argv[1], "late");
	scene.em = !strcmp(argv[3], "em");
	scene.flags = argc > 4 ? HT_WINDOW : 0;
	victim_start(VICTIM, !scene.stops && !scene.late);
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "3000", 0);
	world_run(4, scene.late ? run_late : run, &scene);
	return check_end();
}
