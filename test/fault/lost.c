/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A rank is killed or stopped in the middle of its work (VC_FAULT in the environment says when).
 *
 *     lost kill|stop               without masks: within the timeout every other rank has an error
 *                                  that names the lost one; the group can be destroyed, and a new
 *                                  one of the survivors works
 *     lost kill|stop mask          with masks: it is masked, the others go on with right results;
 *                                  a stopped one comes back and MaskClean takes it in again
 *     lost kill mask PAIRS         for so many pairs, which is more than fit a queue to it
 *     lost told mask               it is killed when its word of the operation has come to its
 *                                  neighbour, and not to the other node: the neighbour masks it,
 *                                  and not those who wait for it
 */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "support/bench.h"
#include "support/victim.h"
#include "support/ht_bench.h"

#define VICTIM 2
#define TIMEOUT_MS 24000.0
#define MOST_PAIRS 200
#define PAIRS_AROUND_LOSS 8 /* VC_FAULT strikes in the fourth or the fifth */

enum {
	FLAG_FAILED = 1,
	FLAG_MASKED,
	FLAG_BACK
};

struct scene {
	bool stops;
	bool told;
	uint64_t pairs; /* without the lost rank */
};

static struct oracle_problem problem(int nranks, enum oracle_layout layout)
{
	return bench_problem(nranks, 12, 3, 256, 6, layout);
}

static void survivors_group(struct world *w)
{
	struct world small = *w;
	struct oracle_problem p = problem(3, ORACLE_EXPERT_MAJOR);
	ncclComm_t comm = world_comm(w, 0xf & ~(1u << VICTIM));

	small.comm = comm;
	small.nranks = 3;
	small.rank = w->rank - (w->rank > VICTIM);
	victim_new_group(&small, &p, TIMEOUT_MS);
	OK(ncclCommDestroy(comm));
}

/*
 * Within a node a dead rank's stores have landed all or none. What its NIC still had to send may
 * have reached one rank and not another, so that one waits for the dead rank and another for that
 * one.
 */
static void check_named(struct world *w, const char *text)
{
	for (int r = 0; r < w->nranks; r++) {
		if (r != w->rank && (r == VICTIM || world_nodes() > 1) && victim_named(text, r)) {
			return;
		}
	}
	check_fail(__FILE__, __LINE__, "\"%s\" does not name rank %d", text, VICTIM);
}

static void without_masks(struct world *w, void *arg)
{
	const struct scene *scene = arg;
	struct oracle_problem p = problem(w->nranks, ORACLE_EXPERT_MAJOR);
	ncclEpGroup_t group = bench_group_bounded(w->comm, &p, 0, TIMEOUT_MS);
	ncclResult_t result = ncclSuccess;
	const char *text = "";
	double seconds = 0, start;
	bool named = false;
	struct bench b;
	char kept[1024];

	bench_open(&b, w, group, &p, 0);
	bench_expert_work(&b);
	for (int i = 0; i < MOST_PAIRS && result == ncclSuccess; i++) {
		result = victim_pair(&b, false, &seconds);
	}
	if (w->rank == VICTIM) { /* stopped and continued: it finds itself alone */
		NEED(scene->stops);
		CHECK(result == ncclRemoteError || result == ncclSuccess);
		bench_end(&b);
		return;
	}
	CHECK_INT(result, ncclRemoteError);
	/* dispatch and combine wait at most once each */
	CHECK(seconds <= TIMEOUT_MS / 1e3 + 8, "%.1f s", seconds);
	OK(ncclEpExtGetLastError(group, &result, &text));
	CHECK_INT(result, ncclRemoteError);
	check_named(w, text);
	snprintf(kept, sizeof(kept), "%s", text);
	CHECK_RESULT(bench_dispatch(&b, w->stream), ncclRemoteError);
	CHECK_RESULT(bench_update(&b, w->stream), ncclRemoteError);
	OK(ncclEpExtGetLastError(group, &result, &text));
	CHECK_TEXT(text, kept);
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	world_raise(w, FLAG_FAILED, victim_named(text, VICTIM) ? 2 : 1);
	for (int r = 0; r < w->nranks; r++) {
		NEED(r == VICTIM || world_await(w, FLAG_FAILED, r, 1, 60));
		named |= r != VICTIM && world_look(w, FLAG_FAILED, r) == 2;
	}
	CHECK(named);
	if (scene->stops) {
		victim_continue();
	}
	start = world_now();
	bench_end(&b);
	CHECK(scene->stops || world_now() - start <= 16, "%.1f s", world_now() - start);
	survivors_group(w);
}

static void go_on_without(struct bench *b, uint64_t pairs)
{
	double start = world_now(), most = TIMEOUT_MS / 1e3 + 16;

	b->p.absent = UINT64_C(1) << VICTIM;
	for (uint64_t i = 0; i < pairs; i++) {
		double before = world_now();

		check_context("without the lost rank, pair %d", (int)i);
		bench_pair_of(b, 50 + i);
		/* nobody waits for it any more */
		CHECK(i == 0 || world_now() - before < TIMEOUT_MS / 1e3);
		most += i >= 4 ? 0.8 : 0;
	}
	CHECK(world_now() - start < most);
}

static void take_in_again(struct world *w, struct bench *b)
{
	int error = 1;

	NEED_CUDA(cudaStreamSynchronize(w->stream));
	world_raise(w, FLAG_BACK, 1);
	for (int r = 0; r < w->nranks; r++) {
		NEED(world_await(w, FLAG_BACK, r, 1, 60));
	}
	check_context("back again");
	NEED_OK(ncclEpMaskClean(b->group, w->stream));
	OK(ncclEpErrorClear(b->group));
	OK(ncclEpGetAsyncError(b->group, &error));
	CHECK_INT(error, 0);
	CHECK_INT(bench_masked(w, b->group), 0);
	world_meet(w);
	b->p.absent = 0;
	for (uint64_t i = 0; i < 4; i++) {
		bench_pair_of(b, 70 + i);
	}
	OK(ncclEpGetAsyncError(b->group, &error));
	CHECK_INT(error, 0);
}

#define TOLD_PAIRS 3 /* VC_FAULT strikes in the next one */
/*
 * Kernels of the virtual cluster look the more seldom the longer they wait: here, much more often
 * than each 1/8 s.
 */
#define TOLD_TIMEOUT_MS 1000.0

static char faults[600]; /* "@" and a path */

static void faults_begin(void)
{
	snprintf(faults, sizeof(faults), "@%s/faults", getenv("VC_DIR"));
	close(open(faults + 1, O_CREAT | O_WRONLY, 0600));
	setenv("VC_NIC_FAULTS", faults, 1);
}

/* Nothing that the victim posts goes to the other node any more. */
static void fall_silent(void)
{
	FILE *file = fopen(faults + 1, "w");

	NEED(file && fprintf(file, "retry_exceeded:rank=%d,count=1000000\n", VICTIM) >= 0 &&
	     !fclose(file));
	sleep(1); /* until the NIC has read it */
}

static void with_masks(struct world *w, void *arg)
{
	const struct scene *scene = arg;
	struct oracle_problem p = problem(w->nranks, ORACLE_RANK_MAJOR);
	ncclEpGroup_t group = bench_group_bounded(w->comm, &p, BENCH_MASK,
						  scene->told ? TOLD_TIMEOUT_MS : TIMEOUT_MS);
	int error = 0;
	double seconds, start = world_now();
	struct bench b;

	bench_open(&b, w, group, &p, BENCH_MASK);
	bench_expert_work(&b);
	/*
	 * The ranks may miss the lost one in different pairs, and their results are not defined
	 * until all have. But all must do as many pairs: who stops is missed too.
	 */
	for (int i = 0; i < (w->rank == VICTIM ? MOST_PAIRS : PAIRS_AROUND_LOSS); i++) {
		if (scene->told && i == TOLD_PAIRS) {
			if (w->rank == VICTIM) {
				fall_silent();
			}
			world_meet(w);
		}
		NEED_OK(victim_pair(&b, scene->told, &seconds));
		/*
		 * Once for the lost one, across nodes once more for who waits for it. (Time that
		 * passes while something runs comes on top; one wait more would be twice as long.)
		 */
		CHECK(w->rank == VICTIM ||
			      seconds < (world_nodes() > 1 ? 2 : 1) * 1.4 * TIMEOUT_MS / 1e3,
		      "%.1f s", seconds);
		OK(ncclEpGetAsyncError(group, &error));
		if (w->rank == VICTIM && error) {
			break;
		}
	}
	CHECK_INT(error, 1);
	CHECK_LAST(group, ncclRemoteError, "rank ");
	if (w->rank == VICTIM) {
		NEED(scene->stops);
		take_in_again(w, &b);
		bench_end(&b);
		return;
	}
	check_context("after %.1f s", world_now() - start);
	CHECK_INT(bench_masked(w, group), 1 << VICTIM);
	world_raise(w, FLAG_MASKED, 1);
	for (int r = 0; r < w->nranks; r++) {
		NEED(r == VICTIM || world_await(w, FLAG_MASKED, r, 1, 60));
	}
	OK(ncclEpErrorClear(group));
	go_on_without(&b, scene->pairs);
	OK(ncclEpGetAsyncError(group, &error));
	CHECK(!error || world_nodes() > 1); /* the connection may be found lost only now */
	CHECK_INT(bench_masked(w, group), 1 << VICTIM);
	if (scene->stops) {
		victim_continue();
		take_in_again(w, &b);
	}
	bench_end(&b);
}

static int main_lost(int argc, char **argv)
{
	struct scene scene = { 0 };

	NEED(argc >= 2);
	scene.stops = !strcmp(argv[1], "stop");
	scene.told = !strcmp(argv[1], "told");
	scene.pairs = world_number(argc > 3 ? argv[3] : NULL, 4);
	if (scene.told) {
		faults_begin();
	}
	victim_start(VICTIM, !scene.stops);
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "3000", 0);
	world_run(4, argc > 2 ? with_masks : without_masks, &scene);
	return check_end();
}

/*
 * High throughput: a rank is killed or stopped before or in the middle of UpdateHandle, a dispatch
 * or a combine (VC_FAULT in the environment says when; three launches make a step). Within the
 * timeout and a second every other rank has an error that names it; the group can be destroyed, and
 * a new one of the survivors works.
 *
 *     ht_lost kill|stop OPERATIONS flat|em [window]
 *     ht_lost late - flat|em [window]    it is stopped for more than half of the timeout: nothing
 *                                        fails
 *
 * OPERATIONS: the error names one of these.
 */

#define HT_VICTIM 2
#define HT_TIMEOUT_MS 24000.0
#define MOST_STEPS 20
#define LATE_STEPS 4

enum {
	HT_FLAG_FAILED = 1
};

struct ht_scene {
	const char *operations;
	bool stops;
	bool late;
	bool em;
	uint32_t flags;
};

static struct oracle_ht problem_of(const struct ht_scene *s, int nranks)
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
	if (ht_by_lines()) { /* with few SMs, whose warps all poll */
		h.p.tokens = 4;
		h.p.max_tokens = 5;
	}
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
 * Why the group has failed, if it has, and how long it took to know. The next operation is launched
 * when one is over: else the fault would strike ahead of its operation.
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

static void ht_survivors_group(struct world *w, const struct ht_scene *ht_scene)
{
	struct world small = *w;
	struct oracle_ht h = problem_of(ht_scene, w->nranks - 1);
	struct ht_bench b;

	check_context("a new group");
	small.comm = world_comm(w, 0xf & ~(1u << HT_VICTIM));
	small.nranks = w->nranks - 1;
	small.rank = w->rank - (w->rank > HT_VICTIM);
	ht_open(&b, &small, ht_group(&small, &h, ht_scene->flags, HT_TIMEOUT_MS), &h,
		ht_scene->flags);
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
	CHECK(victim_named(text, HT_VICTIM), "\"%s\" does not name rank %d", text, HT_VICTIM);
	snprintf(kept, sizeof(kept), "%s", text);
	CHECK_RESULT(ht_update(b, w->stream), ncclRemoteError);
	CHECK_RESULT(ht_dispatch(b, false, w->stream), ncclRemoteError);
	CHECK_RESULT(ht_combine(b, true, w->stream), ncclRemoteError);
	OK(ncclEpExtGetLastError(b->group, &result, &text));
	CHECK_TEXT(text, kept);
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	world_raise(w, HT_FLAG_FAILED, 1);
	for (int r = 0; r < w->nranks; r++) {
		NEED(r == HT_VICTIM || world_await(w, HT_FLAG_FAILED, r, 1, 60));
	}
}

static void *wake(void *arg)
{
	usleep((useconds_t)(0.6 * HT_TIMEOUT_MS * 1e3));
	victim_continue();
	return NULL;
}

/* All waits have been late, and end well. */
static void run_late(struct world *w, void *arg)
{
	const struct ht_scene *ht_scene = arg;
	struct oracle_ht h = problem_of(ht_scene, w->nranks);
	ncclEpGroup_t group = ht_group(w, &h, ht_scene->flags, HT_TIMEOUT_MS);
	double seconds = 0;
	struct ht_bench b;
	pthread_t thread;

	check_context("rank %d", w->rank);
	ht_open(&b, w, group, &h, ht_scene->flags);
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
	const struct ht_scene *ht_scene = arg;
	struct oracle_ht h = problem_of(ht_scene, w->nranks);
	ncclEpGroup_t group = ht_group(w, &h, ht_scene->flags, HT_TIMEOUT_MS);
	ncclResult_t result = ncclSuccess;
	double seconds = 0, start;
	struct ht_bench b;

	check_context("rank %d", w->rank);
	ht_open(&b, w, group, &h, ht_scene->flags);
	ht_expert_work(&b);
	for (int i = 0; i < MOST_STEPS && result == ncclSuccess; i++) {
		result = step(&b, &seconds);
	}
	if (w->rank == HT_VICTIM) { /* stopped and continued: it finds itself alone */
		NEED(ht_scene->stops);
		CHECK(result == ncclRemoteError || result == ncclSuccess);
		ht_end(&b);
		return;
	}
	CHECK_INT(result, ncclRemoteError);
	/* (a second more for what is not waiting, which sanitizers make longer, too) */
	CHECK(seconds <= HT_TIMEOUT_MS / 1e3 + 8, "%.1f s", seconds);
	check_failed(w, &b, ht_scene->operations);
	if (ht_scene->stops) {
		victim_continue();
	}
	start = world_now();
	ht_end(&b);
	CHECK(ht_scene->stops || world_now() - start <= 16, "%.1f s", world_now() - start);
	if (!ht_scene->stops || !ht_scene->flags) {
		ht_survivors_group(w, ht_scene);
	}
}

static int main_ht_lost(int argc, char **argv)
{
	struct ht_scene ht_scene = { 0 };

	NEED(argc >= 4);
	ht_scene.operations = argv[2];
	ht_scene.stops = !strcmp(argv[1], "stop");
	ht_scene.late = !strcmp(argv[1], "late");
	ht_scene.em = !strcmp(argv[3], "em");
	ht_scene.flags = argc > 4 ? HT_WINDOW : 0;
	victim_start(HT_VICTIM, !ht_scene.stops && !ht_scene.late);
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "3000", 0);
	world_run(4, ht_scene.late ? run_late : run, &ht_scene);
	return check_end();
}

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

#define BROKEN 1 /* the rank whose NIC has the fault */
#define NODES_TIMEOUT_MS 16000.0
#define BROKEN_MS 20000.0 /* a connection's failure is told at once */
#define MOST_ROUNDS 60
#define TOKENS 60
#define MOST_TOKENS 600

enum {
	NODES_FLAG_FAILED = 1
};

struct nodes_scene {
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

static struct oracle_ht nodes_problem(const struct nodes_scene *nodes_scene, int nranks)
{
	struct oracle_ht h = { .expert_major = 1 };

	h.p = (struct oracle_problem){ .seed = 5,
				       .nranks = (uint32_t)nranks,
				       .experts = 12,
				       .topk = 3,
				       .hidden = 256,
				       .tokens = nodes_scene->tokens,
				       .max_tokens = nodes_scene->tokens };
	if (nodes_scene->ring) {
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

static bool is_victim(const struct nodes_scene *nodes_scene, int rank)
{
	return nodes_scene->victims >> rank & 1;
}

static void check_text(struct world *w, const struct nodes_scene *nodes_scene, const char *text)
{
	int culprit = victim_culprit(text), half = w->nranks / 2;

	CHECK(culprit >= 0, "%s", text);
	if (nodes_scene->victims) {
		CHECK(is_victim(nodes_scene, culprit), "%s", text);
		return;
	}
	if (w->rank == BROKEN) {
		CHECK(culprit / half != BROKEN / half, "%s", text);
		CHECK_HAS(text, nodes_scene->text);
	}
}

/* All of those that are left. */
static void gather(struct world *w, const struct nodes_scene *nodes_scene)
{
	for (int r = 0; r < w->nranks; r++) {
		NEED(is_victim(nodes_scene, r) || world_await(w, NODES_FLAG_FAILED, r, 1, 60));
	}
}

static void new_group(struct world *w, const struct nodes_scene *nodes_scene)
{
	struct oracle_ht h = nodes_problem(nodes_scene, w->nranks);
	struct ht_bench b;

	check_context("a new group");
	ht_open(&b, w, ht_group(w, &h, 0, 60e3), &h, 0);
	ht_step(&b);
	ht_end(&b);
}

static void nodes_run(struct world *w, void *arg)
{
	struct nodes_scene scene_here = *(const struct nodes_scene *)arg,
			   *nodes_scene = &scene_here;
	struct oracle_ht h = nodes_problem(nodes_scene, w->nranks);
	ncclResult_t result = ncclSuccess;
	const char *text = "";
	double seconds = 0;
	struct ht_bench b;
	int n = 0;

	nodes_scene->timeout_ms = nodes_scene->victims ? NODES_TIMEOUT_MS : BROKEN_MS;
	ht_open(&b, w, ht_group(w, &h, 0, nodes_scene->timeout_ms), &h, 0);
	for (; n < 3 * MOST_ROUNDS && result == ncclSuccess; n++) {
		result = operate(&b, n, &seconds);
	}
	check_context("operation %d, rank %d", n, w->rank);
	CHECK_INT(result, ncclRemoteError);
	/* more for what is not waiting */
	CHECK(seconds <= nodes_scene->timeout_ms / 1e3 + 8, "%.1f s", seconds);
	OK(ncclEpExtGetLastError(b.group, &result, &text));
	CHECK_INT(result, ncclRemoteError);
	printf("rank %d, %.1f s: %s\n", w->rank, seconds, text);
	check_text(w, nodes_scene, text);
	CHECK_RESULT(ht_update(&b, w->stream), ncclRemoteError);
	NEED_CUDA(cudaStreamSynchronize(w->stream));
	world_raise(w, NODES_FLAG_FAILED, 1);
	gather(w, nodes_scene);
	ht_end(&b);
	if (!nodes_scene->victims) {
		world_meet(w);
		new_group(w, nodes_scene);
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

static int main_ht_nodes_lost(int argc, char **argv)
{
	struct nodes_scene nodes_scene = { .tokens = TOKENS };

	NEED(argc >= 3);
	if (!strcmp(argv[1], "kill")) {
		nodes_scene.victims = (uint32_t)world_number(argv[2], 0);
		nodes_scene.ring = argc > 3 && !strcmp(argv[3], "ring");
		nodes_scene.tokens = argc > 4 ? (uint32_t)world_number(argv[4], 0) : TOKENS;
		NEED(nodes_scene.tokens <= MOST_TOKENS);
	}
	nodes_scene.text = argv[2];
	if (argc > 5) {
		count_words(is_victim(&nodes_scene, (int)world_number(getenv("RANK"), WORLD_MAX)),
			    world_number(argv[5], 0));
	}
	for (int r = 0; r < WORLD_MAX; r++) {
		if (r < 32 && is_victim(&nodes_scene, r)) {
			victim_start(r, true);
		}
	}
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "3000", 0);
	setenv("NCCL_EP_HT_RING_BYTES", "0", 0);
	world_run((int)world_number(getenv("WORLD_SIZE"), 4), nodes_run, &nodes_scene);
	return check_end();
}

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "lost", main_lost },
		{ "ht_lost", main_ht_lost },
		{ "ht_nodes_lost", main_ht_nodes_lost },
	};

	return check_cases(argc, argv, cases, sizeof(cases) / sizeof(*cases));
}
