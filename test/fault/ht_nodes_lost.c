// SPDX-License-Identifier: Apache-2.0
/*
 * High throughput across nodes, and a rank is killed in the middle of its work (VC_FAULT in the
 * environment says when), or its connection with a rank of another node fails (VC_NIC_FAULTS). Every
 * rank has an error in time, in which it names another one; the group can be destroyed, and, if
 * all ranks are left, a new one works.
 *
 *     ht_nodes_lost kill           rank 2; some rank names it
 *     ht_nodes_lost link TEXT      of rank 1, whose error is about a rank of the other node, and has TEXT in it
 */
#include "support/ht_bench.h"
#include "support/victim.h"

#define VICTIM 2 /* is killed */
#define BROKEN 1 /* the rank whose NIC has the fault */
#define LEAST_MS 3000
#define MOST_MS 12000
#define BROKEN_MS 10000 /* a connection's failure is told at once */
#define FIRST_ROUNDS 2  /* of a group that nothing happens to */
#define MOST_ROUNDS 60

enum {
	FLAG_FAILED = 1
};

struct scene {
	bool killed;
	double timeout_ms;
	const char *text; /* of the broken rank's error */
};

static struct oracle_ht problem(int nranks)
{
	struct oracle_ht h = { .expert_major = 1 };

	h.p = (struct oracle_problem){ .seed = 5,
				       .nranks = (uint32_t)nranks,
				       .experts = 12,
				       .topk = 3,
				       .hidden = 256,
				       .tokens = 60,
				       .max_tokens = 64 };
	return h;
}

static ncclEpGroup_t group_of(struct world *w, const struct oracle_ht *h, double timeout_ms)
{
	ncclEpGroupConfig_t config = ht_group_config(h, 0);
	ncclEpGroup_t group = NULL;

	config.max_num_sms = 2;
	config.timeout_ns = (uint64_t)(timeout_ms * 1e6);
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	return group;
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

static void check_text(struct world *w, const struct scene *scene, const char *text)
{
	bool named = false;

	for (int r = 0; r < w->nranks; r++) {
		bool far = r / (w->nranks / 2) != w->rank / (w->nranks / 2);

		named |= r != w->rank && (scene->killed || w->rank != BROKEN || far) &&
			 victim_named(text, r);
	}
	CHECK(named, "%s", text);
	if (!scene->killed && w->rank == BROKEN) {
		CHECK_HAS(text, scene->text);
	}
}

/* All of those that are left. */
static void gather(struct world *w, const struct scene *scene)
{
	if (scene->killed) {
		world_meet_others(w, VICTIM);
	} else {
		world_meet(w);
	}
}

static void new_group(struct world *w, double timeout_ms)
{
	struct oracle_ht h = problem(w->nranks);
	struct ht_bench b;

	check_context("a new group");
	ht_open(&b, w, group_of(w, &h, timeout_ms), &h, 0);
	ht_step(&b);
	ht_close(&b);
	OK(ncclEpGroupDestroy(b.group));
}

/* The timeout of the group that loses a rank: long enough for what a round takes here and now. */
static double timeout_of(struct world *w)
{
	struct oracle_ht h = problem(w->nranks);
	double slowest = 0, seconds;
	struct ht_bench b;

	ht_open(&b, w, group_of(w, &h, 60e3), &h, 0);
	for (int i = 0; i < FIRST_ROUNDS; i++) {
		double start = world_now();

		for (int n = 0; n < 3; n++) {
			NEED_OK(operate(&b, n, &seconds));
		}
		seconds = world_now() - start;
		slowest = seconds > slowest ? seconds : slowest;
	}
	ht_close(&b);
	OK(ncclEpGroupDestroy(b.group));
	return victim_timeout_of(w, slowest, LEAST_MS, MOST_MS);
}

static void run(struct world *w, void *arg)
{
	struct scene scene_here = *(const struct scene *)arg, *scene = &scene_here;
	struct oracle_ht h = problem(w->nranks);
	ncclResult_t result = ncclSuccess;
	const char *text = "";
	bool named = false;
	double seconds = 0;
	struct ht_bench b;
	int n = 0;

	scene->timeout_ms = scene->killed ? timeout_of(w) : BROKEN_MS * victim_scale();
	ht_open(&b, w, group_of(w, &h, scene->timeout_ms), &h, 0);
	for (; n < 3 * MOST_ROUNDS && result == ncclSuccess; n++) {
		result = operate(&b, n, &seconds);
	}
	check_context("operation %d, rank %d", n, w->rank);
	CHECK_INT(result, ncclRemoteError);
	/* who waits for one that waits */
	CHECK(seconds <= 2 * (scene->timeout_ms / 1e3) + 1, "%.1f s", seconds);
	OK(ncclEpExtGetLastError(b.group, &result, &text));
	CHECK_INT(result, ncclRemoteError);
	check_text(w, scene, text);
	world_raise(w, FLAG_FAILED, victim_named(text, VICTIM) ? 2 : 1);
	for (int r = 0; r < w->nranks; r++) {
		bool left = !scene->killed || r != VICTIM;

		NEED(!left || world_await(w, FLAG_FAILED, r, 1, 60));
		named |= left && world_look(w, FLAG_FAILED, r) == 2;
	}
	CHECK(named || !scene->killed, "nobody names rank %d, here it is: %s", VICTIM, text);
	CHECK_RESULT(ht_update(&b, w->stream), ncclRemoteError);
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	gather(w, scene);
	ht_close(&b);
	OK(ncclEpGroupDestroy(b.group));
	if (!scene->killed) {
		world_meet(w);
		new_group(w, scene->timeout_ms);
	}
}

int main(int argc, char **argv)
{
	struct scene scene = { 0 };

	NEED(argc >= 2);
	scene.killed = !strcmp(argv[1], "kill");
	scene.text = argc > 2 ? argv[2] : "";
	if (scene.killed) {
		victim_start(VICTIM, true);
	}
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "3000", 0);
	setenv("NCCL_EP_HT_RING_BYTES", "0", 0);
	world_run(4, run, &scene);
	return check_end();
}
