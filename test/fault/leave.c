/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks leave their groups in any order, by any thread, or not at all: nobody waits for long, no
 * memory is lost. NCCL_EP_CLOSE_TIMEOUT_MS is far above what any call may take.
 *
 *     leave order       opposite orders; then many groups in random orders, some by other threads
 *     leave one_thread  one thread destroys the groups of all ranks, one after the other
 *     leave busy        a device that its rank has left runs what waits for the ranks that leave
 *     leave keeps       a rank keeps its group: the others' memory waits for it, with one warning;
 *                       not where mappings keep memory
 *     leave many        the same where that rank has more groups than it names to the others
 *     leave killed      a rank is killed while memory of others waits for it
 *     leave reaped      a rank is killed right after another one looked: the next creation sees it
 *     leave far kill    a remote rank is killed: the neighbours' memory does not wait for it
 *     leave far stop    the same for a rank that stops, and destroys its group later
 *     leave capture     memory of NCCL's is freed without a wait for the device, which would end
 *                       captures; other memory, and connections, once the device is at rest
 *     leave failed      so is what a creation that fails leaves: with ranks of other nodes when the
 *                       device is at rest
 *     leave early       a rank that has left is named as that
 *     leave forked      children of fork() are refused every call, and their parents take no harm
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/bench.h"
#include "support/next.h"
#include "support/self.h"
#include "support/victim.h"

#define GROUPS 6
#define MANY 15 /* and one more: the others hear of so many groups (EP_HEAP_TEAMS) */
#define ROUNDS 6
#define SOON 32.0 /* seconds */
#define EARLY_MS 4000.0
#define AT_ONCE 0.9 /* without the second that is given to ranks of the node */

enum {
	FLAG_LEFT = 1,
	FLAG_GONE,
	FLAG_SEED,
	FLAG_PID
};

/*
 * Whether a neighbour's mapping keeps the memory that it shows: then nobody waits for neighbours.
 */
static bool lasting(void)
{
	const char *memory = getenv("NCCL_EP_MEMORY");

	return world_launched() && (!memory || strcmp(memory, "ipc") != 0);
}

static uint64_t used(void)
{
	size_t available = 0, total = 0;

	NEED_CUDA(cudaMemGetInfo(&available, &total));
	return total - available;
}

/* What is used once that is `want`, or for good: threads of the library may be freeing some. */
static uint64_t settled(uint64_t want)
{
	double end = world_now() + 2 * SOON;

	while (used() != want && world_now() < end) {
		usleep(1000);
	}
	return used();
}

static ncclEpGroup_t make(struct world *w)
{
	struct oracle_problem p =
		bench_problem(w->nranks, 4 * w->nranks, 2, 64, 8, ORACLE_EXPERT_MAJOR);

	return bench_group_bounded(w->comm, &p, 0, 1000);
}

static void leave(ncclEpGroup_t group, double most)
{
	double start = world_now();

	OK(ncclEpGroupDestroy(group));
	if (world_now() - start > most) {
		check_fail(__FILE__, __LINE__, "destruction took %.1f s", world_now() - start);
	}
}

static void *leave_main(void *group)
{
	leave(group, SOON);
	return NULL;
}

static void leave_elsewhere(ncclEpGroup_t group)
{
	pthread_t thread;

	NEED(!pthread_create(&thread, NULL, leave_main, group));
	NEED(!pthread_join(thread, NULL));
}

static void check_named(const char *line, void *rank)
{
	char name[32];

	snprintf(name, sizeof(name), " rank %d (", *(int *)rank);
	CHECK(strstr(line, name));
}

/* Lines of this process that say a thing about ranks; all must name that rank. */
static int lines(const char *said, int named)
{
	return self_logged(said, check_named, &named);
}

static int warnings(int named)
{
	return lines("has not destroyed the group:", named);
}

static void random_orders(struct world *w, uint64_t before)
{
	uint64_t state = world_number(getenv("VC_SEED"), (uint64_t)getpid()), one = 0;

	world_raise(w, FLAG_SEED, state);
	world_meet(w);
	state = world_look(w, FLAG_SEED, 0) + (uint64_t)w->rank;
	if (w->rank == 0) {
		printf("VC_SEED=%llu\n", (unsigned long long)state);
	}
	for (int round = 0; round < ROUNDS; round++) {
		ncclEpGroup_t group[GROUPS];
		uint64_t want = before;

		check_context("round %d", round);
		for (int i = 0; i < GROUPS; i++) {
			group[i] = make(w);
			one = one ? one : used() - before;
			want += one; /* all that was destroyed before is gone */
			CHECK_INT(settled(want), want);
		}
		for (int left = GROUPS; left; left--) {
			uint64_t i = world_draw(&state, (uint64_t)left);

			if (world_draw(&state, 2)) {
				leave_elsewhere(group[i]);
			} else {
				leave(group[i], SOON);
			}
			group[i] = group[left - 1];
		}
	}
}

static void order(struct world *w)
{
	uint64_t before = used();
	ncclEpGroup_t group[2] = { make(w), make(w) };

	world_meet(w);
	leave(group[w->rank & 1], AT_ONCE);
	world_meet(w);
	leave(group[!(w->rank & 1)], SOON);
	world_meet(w);
	CHECK_INT(settled(before), before);
	random_orders(w, before);
	world_meet(w);
	check_context("at the end");
	CHECK_INT(settled(before), before);
}

static void one_thread(struct world *w)
{
	static ncclEpGroup_t group[WORLD_MAX];
	uint64_t before = used();

	group[w->rank] = make(w);
	world_meet(w);
	for (int r = 0; w->rank == 0 && r < w->nranks; r++) {
		leave(group[r], r == 0 ? SOON : AT_ONCE); /* it knows of its own rank only */
	}
	world_meet(w);
	CHECK_INT(settled(before), before);
}

static void hold(void *released)
{
	while (!atomic_load((atomic_int *)released)) {
		usleep(1000);
	}
}

static void busy(struct world *w)
{
	uint64_t before = used();
	ncclEpGroup_t group = make(w);
	atomic_int released = 0;

	if (w->rank == 0) {
		leave(group, SOON);
		NEED_CUDA(cudaLaunchHostFunc(w->stream, hold, &released));
		world_raise(w, FLAG_LEFT, 1);
		for (int r = 1; r < w->nranks; r++) {
			NEED(world_await(w, FLAG_LEFT, r, 1, 60));
		}
		CHECK(used() > before);
		atomic_store(&released, 1);
	} else {
		NEED(world_await(w, FLAG_LEFT, 0, 1, 60));
		leave(group, SOON);
		world_raise(w, FLAG_LEFT, 1);
	}
	world_meet(w);
	CHECK_INT(settled(before), before);
}

static atomic_int waits;

/* The library's, too: counts its waits for a device. */
cudaError_t cudaDeviceSynchronize(void)
{
	atomic_fetch_add(&waits, 1);
	return NEXT(cudaDeviceSynchronize)();
}

/* Each call waits once. Heaps, and connections to other nodes, end behind the program's back. */
static void capture(struct world *w)
{
	const char *memory = getenv("NCCL_EP_MEMORY");
	bool at_once = lasting() && (!memory || strcmp(memory, "host") != 0);
	uint64_t before = used();
	ncclEpGroup_t group[2] = { make(w), make(w) };

	world_meet(w);
	atomic_store(&waits, 0);
	leave(group[0], SOON);
	world_meet(w);
	leave(group[1], SOON);
	CHECK_INT(settled(before), before);
	CHECK_INT(atomic_load(&waits), 2 + (at_once ? 0 : 2) + (world_nodes() > 1 ? 2 : 0));
}

static size_t most_bytes; /* of an allocation; 0: any */

/* The library's, too: what is larger finds no memory. */
cudaError_t cudaMalloc(void **p, size_t bytes)
{
	return most_bytes && bytes > most_bytes ? cudaErrorMemoryAllocation
						: NEXT(cudaMalloc)(p, bytes);
}

/* Rank 0 has no memory for its heap, which is the last that a creation takes. */
static void failed(struct world *w)
{
	struct oracle_problem p =
		bench_problem(w->nranks, 4 * w->nranks, 2, 64, 8, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	ncclEpGroup_t group;
	cudaGraph_t graph;

	most_bytes = w->rank == 0 ? 1 << 20 : 0;
	atomic_store(&waits, 0);
	world_meet(w);
	world_capture(w->stream);
	CHECK_INT(ncclEpCreateGroup(&group, w->comm, &config),
		  w->rank == 0 ? ncclUnhandledCudaError : ncclRemoteError);
	CHECK_CUDA(cudaStreamEndCapture(w->stream, &graph),
		   world_nodes() > 1 ? cudaErrorStreamCaptureInvalidated : cudaSuccess);
	CHECK_INT(atomic_load(&waits), world_nodes() > 1);
}

static void keeps(struct world *w)
{
	uint64_t before = used(), one;
	ncclEpGroup_t kept = make(w), group[3];
	int expected = w->rank != 1 && !lasting();

	one = used() - before;
	for (int i = 0; i < 3; i++) {
		group[i] = make(w);
	}
	world_meet(w);
	if (w->rank != 1) {
		leave(kept, SOON);
		CHECK_INT(warnings(1), 0);
	}
	usleep(1000 * (useconds_t)world_number(getenv("NCCL_EP_CLOSE_TIMEOUT_MS"), 0));
	for (int i = 0; i < 2; i++) {
		leave(group[i], SOON);
		CHECK_INT(warnings(1), expected);
		world_meet(w);
	}
	CHECK(w->rank == 1 || !lasting() || settled(before + one) == before + one);
	if (w->rank == 1) {
		leave(kept, SOON);
	}
	group[0] = make(w);
	CHECK_INT(settled(before + 2 * one),
		  before + 2 * one); /* the creation has freed the rest */
	leave(group[0], SOON);
	world_meet(w);
	leave(group[2], SOON);
	CHECK_INT(settled(before), before);
	CHECK_INT(warnings(1), expected);
}

/*
 * Rank 1 keeps the oldest of its groups; it names the newest to the others, by which they free
 * memory.
 */
static void many(struct world *w)
{
	ncclEpGroup_t kept, next, group[MANY];
	struct world self = { .nranks = 1 };
	uint64_t before = used(), one, left;

	NEED_OK(ncclCommInitAll(&self.comm, 1, &w->device));
	kept = make(w);
	one = used() - before;
	for (int i = 0; w->rank == 1 && i < MANY; i++) {
		group[i] = make(&self);
	}
	world_meet(w);
	if (w->rank != 1) {
		leave(kept, SOON);
	}
	left = used();
	next = make(w);
	if (w->rank != 1) {
		leave(make(&self), SOON); /* frees what need not wait */
		CHECK(used() >= left + one, "rank 1 may write to what is gone");
	}
	world_meet(w);
	if (w->rank == 1) {
		for (int i = 0; i < MANY; i++) {
			leave(group[i], SOON);
		}
		leave(kept, SOON);
	}
	world_meet(w);
	leave(next, SOON);
	world_meet(w);
	leave(make(&self), SOON);
	CHECK_INT(settled(before), before);
	OK(ncclCommDestroy(self.comm));
}

static void killed(struct world *w)
{
	uint64_t before = used();
	ncclEpGroup_t first = make(w), second = make(w);

	world_meet(w);
	if (w->rank == 2) {
		for (int r = 0; r < w->nranks; r++) {
			NEED(r == 2 || world_await(w, FLAG_LEFT, r, 1, 60));
		}
		raise(SIGKILL);
	}
	leave(first, lasting() ? AT_ONCE : SOON);
	CHECK(used() > before);
	world_raise(w, FLAG_LEFT, 1);
	leave(second, SOON);
	CHECK_INT(settled(before), before);
}

/*
 * A rank with another group waits for nobody when it leaves one: it looks once, and rank 2 lives.
 * The next creation looks once, too, so soon afterwards that it must not rely on the look before.
 */
static void reaped(struct world *w)
{
	struct world self = { .nranks = 1 };
	ncclEpGroup_t other, left;
	uint64_t before;
	double end;

	NEED_OK(ncclCommInitAll(&self.comm, 1, &w->device));
	other = make(&self);
	before = used();
	left = make(w);
	world_raise(w, FLAG_PID, (uint64_t)getpid());
	world_meet(w);
	if (w->rank == 2) {
		for (int r = 0; r < w->nranks; r++) {
			NEED(r == 2 || world_await(w, FLAG_LEFT, r, 1, 60));
		}
		raise(SIGKILL);
	}
	leave(left, AT_ONCE);
	CHECK(used() > before);
	world_raise(w, FLAG_LEFT, 1);
	end = world_now() + SOON;
	while (!kill((pid_t)world_look(w, FLAG_PID, 2), 0)) {
		NEED(world_now() < end);
		usleep(200);
	}
	leave(make(&self), SOON);
	CHECK_INT(settled(before), before);
	leave(other, SOON);
	OK(ncclCommDestroy(self.comm));
}

/* Node 0 has the ranks 0 and 1, rank 3 is lost. */
static void far(struct world *w, bool stops)
{
	double timeout = (double)world_number(getenv("NCCL_EP_CLOSE_TIMEOUT_MS"), 0) / 1000;
	ncclComm_t alone = world_comm(w, UINT64_C(1) << 2);
	struct world self = { .nranks = 1, .comm = alone };
	uint64_t before = used();
	ncclEpGroup_t group = make(w);

	world_meet(w);
	if (w->rank == 3) {
		raise(stops ? SIGSTOP : SIGKILL);
		leave(group, timeout + SOON);
		world_raise(w, FLAG_GONE, 1);
		return;
	}
	usleep(100000);
	leave(group, timeout + SOON);
	/* Those of the other node say for whom they wait. */
	CHECK_INT(lines("has not destroyed the group yet", 3), w->rank != 2);
	if (stops && w->rank == 2 && !lasting()) {
		CHECK(used() > before);
	} else {
		CHECK_INT(settled(before), before);
	}
	(void)warnings(3);
	world_raise(w, FLAG_LEFT, 1);
	if (w->rank != 2) {
		return;
	}
	for (int r = 0; r < 2; r++) {
		NEED(world_await(w, FLAG_LEFT, r, 1, 60));
	}
	if (stops) {
		victim_continue();
		NEED(world_await(w, FLAG_GONE, 3, 1, 60));
	}
	leave(make(&self), SOON);
	CHECK_INT(settled(before), before);
	OK(ncclCommDestroy(alone));
}

/* In a child: each call with what its parent has made. A garbage collector makes the last ones. */
static void refused(struct bench *b, ncclEpHandle_t orphan, int parent)
{
	ncclEpExtPeerStats_t stats[2] = { NCCL_EP_EXT_PEER_STATS_INIT };
	ncclEpHandle_t made = NULL;
	cudaStream_t stream = b->w->stream;
	int mask[WORLD_MAX] = { 0 };
	const char *text = "";
	size_t bytes = 0;
	char group[80], handle[80];

	snprintf(group, sizeof(group),
		 "ep_group was made by process %d, this is its child %d:", parent, (int)getpid());
	snprintf(handle, sizeof(handle),
		 "handle was made by process %d, this is its child %d:", parent, (int)getpid());
#define NO(call, part) CHECK_REASON(call, ncclInvalidUsage, part)
	NO(ncclEpHandleMemSize(b->group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, &bytes, 2), group);
	NO(ncclEpInitHandle(&made, b->group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 2, NULL), group);
	NO(ncclEpCreateHandle(&made, b->group, NCCL_EP_LAYOUT_RANK_MAJOR, &b->ids.t, NULL, NULL,
			      stream),
	   group);
	NO(bench_update(b, stream), handle);
	NO(bench_dispatch(b, stream), handle);
	NO(bench_combine(b, stream), handle);
	NO(ncclEpComplete(b->handle, NULL, stream), handle);
	NO(ncclEpMaskQuery(b->group, mask, stream), group);
	NO(ncclEpMaskUpdate(b->group, mask, stream), group);
	NO(ncclEpMaskClean(b->group, stream), group);
	NO(ncclEpGetAsyncError(b->group, mask), group);
	NO(ncclEpErrorClear(b->group), group);
	NO(ncclEpExtGetLastError(b->group, NULL, &text), group);
	NO(ncclEpExtNumRecvTokens(b->handle, NULL, NULL, stream), handle);
	NO(ncclEpExtPeerStats(b->group, stats, 1, stream), group);
	NO(ncclEpHandleDestroy(b->handle), handle);
	NO(ncclEpHandleDestroy(orphan), handle);
	NO(ncclEpGroupDestroy(b->group), group);
	NO(ncclEpGroupDestroy(b->group), group);
	CHECK(!made && !bytes && !*text);
}

static ncclEpGroup_t watched;
static atomic_bool watched_enough;

static void *watch_errors(void *arg)
{
	int error;

	while (!watched_enough) {
		OK(ncclEpGetAsyncError(watched, &error));
	}
	return arg;
}

#define WATCHED_CHILDREN 60 /* at each of five forks the thread is between the gate's two ends */

/*
 * Children of a process that has a thread which asks for errors all the time, and which they lack.
 */
static void forked_watched(ncclEpGroup_t group)
{
	static const char part[] = "ep_group was made by process";
	int status, error;
	pthread_t thread;

	watched = group;
	watched_enough = false;
	NEED(!pthread_create(&thread, NULL, watch_errors, NULL));
	for (int i = 0; i < WATCHED_CHILDREN; i++) {
		pid_t child = fork();

		NEED(child >= 0);
		if (!child) {
			alarm(30);
			NO(ncclEpGroupDestroy(group), part);
			NO(ncclEpGetAsyncError(group, &error), part);
			_exit(check_failures() != 0);
		}
		NEED(waitpid(child, &status, 0) == child);
		CHECK_INT(status, 0);
	}
	watched_enough = true;
	NEED(!pthread_join(thread, NULL));
}

/* Each rank has a child between a dispatch and its combine, as data loaders are made. */
static void forked(struct world *w)
{
	struct oracle_problem p =
		bench_problem(w->nranks, 4 * w->nranks, 2, 64, 8, ORACLE_EXPERT_MAJOR);
	ncclEpGroup_t gone = bench_group(w, &p, 0);
	int parent = (int)getpid(), status = -1, before;
	ncclEpHandle_t orphan;
	struct bench b;
	pid_t child;

	NEED_OK(ncclEpInitHandle(&orphan, gone, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 2, NULL));
	leave(gone, SOON);
	bench_open(&b, w, bench_group(w, &p, BENCH_MASK), &p, 0);
	bench_dispatch_checked(&b);
	if (w->rank == 0) {
		forked_watched(b.group);
	}
	for (int r = 0; r < w->nranks; r++) {
		world_meet(w);
		if (r != w->rank) {
			continue;
		}
		before = self_entries("/proc/self/task");
		child = fork();
		NEED(child >= 0);
		if (!child) {
			alarm(30);
			refused(&b, orphan, parent);
			_exit(check_failures() != 0);
		}
		NEED(waitpid(child, &status, 0) == child);
		CHECK_INT(status, 0);
		usleep(50000); /* whoever was told to end would have by now */
		CHECK_INT(self_entries("/proc/self/task"), before);
	}
	world_meet(w);
	OK_SYNC(bench_combine(&b, w->stream), w->stream);
	bench_check_combine(&b);
	bench_pair(&b);
	CHECK_LAST(b.group, ncclSuccess, "");
	bench_close(&b);
	leave(b.group, SOON);
	OK(ncclEpHandleDestroy(orphan));
}

/*
 * Rank 1 destroys its group, and rank 0 goes on: what it waits for has left, which its farewell
 * shows.
 */
static void early(struct world *w)
{
	struct oracle_problem p =
		bench_problem(w->nranks, 4 * w->nranks, 2, 64, 8, ORACLE_EXPERT_MAJOR);
	struct bench b;

	bench_open(&b, w, bench_group_bounded(w->comm, &p, 0, EARLY_MS), &p, 0);
	bench_pair(&b);
	world_meet(w);
	if (w->rank == 1) {
		bench_end(&b);
		world_raise(w, FLAG_LEFT, 1);
	}
	NEED(world_await(w, FLAG_LEFT, 1, 1, 60));
	if (w->rank == 0) {
		OK(bench_update(&b, w->stream));
		OK_SYNC(bench_dispatch(&b, w->stream), w->stream);
		CHECK_LAST(b.group, ncclRemoteError, "that rank has left");
		bench_end(&b);
	}
}

static void run(struct world *w, void *arg)
{
	char **argv = arg;

	check_context("rank %d", w->rank);
	if (!strcmp(argv[1], "early")) {
		early(w);
	} else if (!strcmp(argv[1], "order")) {
		order(w);
	} else if (!strcmp(argv[1], "one_thread")) {
		one_thread(w);
	} else if (!strcmp(argv[1], "busy")) {
		busy(w);
	} else if (!strcmp(argv[1], "capture")) {
		capture(w);
	} else if (!strcmp(argv[1], "failed")) {
		failed(w);
	} else if (!strcmp(argv[1], "keeps")) {
		keeps(w);
	} else if (!strcmp(argv[1], "many")) {
		many(w);
	} else if (!strcmp(argv[1], "killed")) {
		killed(w);
	} else if (!strcmp(argv[1], "reaped")) {
		reaped(w);
	} else if (!strcmp(argv[1], "forked")) {
		forked(w);
	} else {
		far(w, !strcmp(argv[2], "stop"));
	}
}

int main(int argc, char **argv)
{
	NEED(argc >= 2);
	if (!strcmp(argv[1], "killed") || !strcmp(argv[1], "reaped")) {
		victim_start(2, true);
	} else if (!strcmp(argv[1], "far")) {
		victim_start(3, argc > 2 && !strcmp(argv[2], "kill"));
	}
	if (world_launched()) {
		self_log("INFO");
	}
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "20000", 0);
	world_run(world_size(3), run, argv);
	return check_end();
}
