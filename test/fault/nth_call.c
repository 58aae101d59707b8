/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The n-th call that the library makes on one rank fails, from the making of a group to its end.
 * Every rank has results that are right, or an error that says something, soon; the next group of
 * the same processes works; and nothing stays behind.
 *
 *     nth_call ll|mask|ht COUNT [SEED [NAME]]   COUNT calls, drawn from SEED; 0: each call; those
 *                                               of NAME alone, on rank 0
 *     nth_call beside COUNT [SEED [NAME]]       in low latency, while the processes have another
 *                                               group
 *     nth_call kept 0 1 NAME   rank 0's calls of NAME fail while it leaves a group that the others
 *                              keep: memory that they may write to stays
 */
#include <unistd.h>

#include "support/bench.h"
#include "support/ht_bench.h"
#include "support/inject.h"
#include "support/self.h"

#define TIMEOUT_NS UINT64_C(1500000000)
#define SOON 40.0     /* seconds: several timeouts one after another */
#define PATIENCE 30.0 /* for what threads of the library give back */
#define THREADS_AGAIN_US                                                                           \
	2000000 /* where none could be started: longer than inject.c refuses them */

enum {
	FLAG_STATE,
	FLAG_CALLS,
	FLAG_QUIT
};
enum {
	STATE_FAILED = 1,
	STATE_APART = 2
};

/* Of a rank: what all its groups are used for. */
static __thread struct subject {
	struct world w; /* with the communicator of the group */
	bool ht;
	ncclEpGroupConfig_t config;
	struct bench ll;
	struct ht_bench of_ht;
	ncclEpGroup_t group;
	ncclEpHandle_t handle;
	int victim; /* the rank on which a call is to fail; -1: none */
	bool apart; /* it could not tell */
	bool failed;
	ncclComm_t alone; /* beside: of this rank */
} s;

/* ---- both modes ---- */

static void open_ll(struct world *w, bool mask)
{
	struct oracle_problem p =
		bench_problem(w->nranks, 2 * (uint32_t)w->nranks, 2, 128, 6, ORACLE_EXPERT_MAJOR);
	uint32_t flags = BENCH_NO_HANDLE | (mask ? BENCH_MASK : 0);

	s.config = bench_group_config(&p, flags);
	s.config.max_num_sms = mask ? 8 : 2;
	bench_open(&s.ll, &s.w, NULL, &p, flags);
}

static void open_ht(struct world *w)
{
	struct oracle_ht h = { .p = bench_problem(w->nranks, 2 * (uint32_t)w->nranks, 2, 128, 6,
						  ORACLE_EXPERT_MAJOR) };

	s.config = ht_group_config(&h, HT_NO_HANDLE);
	s.config.max_num_sms = 2;
	ht_open(&s.of_ht, &s.w, NULL, &h, HT_NO_HANDLE);
}

static void open_subject(struct world *w, const char *mode)
{
	memset(&s, 0, sizeof(s));
	s.w = *w;
	s.ht = !strcmp(mode, "ht");
	if (s.ht) {
		open_ht(w);
	} else {
		open_ll(w, !strcmp(mode, "mask"));
	}
	s.config.timeout_ns = TIMEOUT_NS;
	s.config.num_topk = s.ht ? 2 : 1; /* so that the handle makes the heap grow */
}

static void close_subject(void)
{
	s.ll.handle = s.of_ht.handle = NULL;
	if (s.ht) {
		ht_close(&s.of_ht);
	} else {
		bench_close(&s.ll);
	}
}

/* Groups with masks make it with its routing. */
static ncclResult_t init(void)
{
	if (s.config.enable_mask) {
		return ncclEpCreateHandle(&s.handle, s.group, NCCL_EP_LAYOUT_EXPERT_MAJOR,
					  &s.ll.ids.t, NULL, NULL, s.w.stream);
	}
	return ncclEpInitHandle(&s.handle, s.group,
				s.ht ? NCCL_EP_LAYOUT_FLAT : NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 2,
				NULL);
}

static ncclResult_t update(void)
{
	s.ll.handle = s.of_ht.handle = s.handle;
	s.ll.group = s.of_ht.group = s.group;
	return s.ht ? ht_update(&s.of_ht, s.w.stream) : bench_update(&s.ll, s.w.stream);
}

static ncclResult_t dispatch(void)
{
	return s.ht ? ht_dispatch(&s.of_ht, false, s.w.stream) : bench_dispatch(&s.ll, s.w.stream);
}

/* In low latency by halves. */
static ncclResult_t combine(void)
{
	ncclResult_t result;

	if (s.ht) {
		return ht_combine(&s.of_ht, false, s.w.stream);
	}
	s.ll.flags |= BENCH_PENDING;
	result = bench_combine(&s.ll, s.w.stream);
	s.ll.flags &= ~(uint32_t)BENCH_PENDING;
	return result;
}

static void check_dispatch(void)
{
	if (s.ht) {
		ht_check_counters(&s.of_ht);
		ht_check_dispatch(&s.of_ht, false);
		ht_expert_work(&s.of_ht);
	} else {
		bench_check_dispatch(&s.ll);
		bench_expert_work(&s.ll);
	}
}

static void check_combine(void)
{
	if (s.ht) {
		ht_check_combine(&s.of_ht, false);
	} else {
		bench_check_combine(&s.ll);
	}
}

static void poison(void)
{
	if (s.ht) {
		ht_poison(&s.of_ht);
	} else {
		bench_poison(&s.ll);
	}
}

/* ---- the life of a group ---- */

/* An error says something. */
static bool fine(ncclResult_t result)
{
	if (result == ncclSuccess) {
		return true;
	}
	if (s.victim >= 0) {
		const char *text = "";

		CHECK_LAST(NULL, result, "");
		OK(ncclEpExtGetLastError(NULL, NULL, &text));
		CHECK(s.w.rank != s.victim || strcmp(inject_failed(), "pthread_create") ||
			      (!strstr(text, "busy") && strstr(text, "limit of processes?")),
		      "%s", text);
	} else {
		OK(result);
	}
	s.failed = true;
	return false;
}

/* What has become of what is on the stream. */
static bool over(void)
{
	ncclResult_t code = ncclSuccess;
	int lost = 0;

	NEED_CUDA(cudaStreamSynchronize(s.w.stream));
	OK(ncclEpExtGetLastError(s.group, &code, NULL));
	if (code != ncclSuccess) {
		CHECK_LAST(s.group, s.victim >= 0 ? code : ncclSuccess, "");
		s.failed = true;
	}
	if (s.config.enable_mask) {
		OK(ncclEpGetAsyncError(s.group, &lost)); /* and a rank is masked */
		s.failed |= lost != 0;
	}
	return !s.failed;
}

/* Without it a rank cannot tell the others anything. */
static bool tells(const char *call)
{
	static const char *const calls[] = {
		"ncclCommCount",
		"ncclCommUserRank",
		"ncclAllGather",
		"ncclCommGetAsyncError", /* while it waits for the others */
		"cudaStreamQuery",
		"ncclCommWindowRegister",
		"ncclGetLsaMultimemDevicePointer",
	};

	for (size_t i = 0; i < sizeof(calls) / sizeof(*calls); i++) {
		if (!strcmp(call, calls[i])) {
			return true;
		}
	}
	return false;
}

/* Where the victim could tell, all others' error is that one, and names it. */
static void check_named(const struct world *w, bool apart)
{
	const char *text = "";
	ncclResult_t code;
	char part[40];

	snprintf(part, sizeof(part), "failed on rank %d: ", s.victim);
	OK(ncclEpExtGetLastError(NULL, &code, &text));
	CHECK(apart || w->rank == s.victim || strstr(text, part), "%s", text);
}

/*
 * All ranks come, and hear on how many a call has failed, or with `apart` that they could not be
 * told. Where it is one that all make together, it has failed on all or on none.
 */
static int meet(struct world *w, bool failed, bool common)
{
	bool apart = false;
	int count = 0;

	world_raise(w, FLAG_STATE,
		    (failed ? STATE_FAILED : 0) | (tells(inject_failed()) ? STATE_APART : 0));
	world_meet(w);
	for (int r = 0; r < w->nranks; r++) {
		uint64_t state = world_look(w, FLAG_STATE, r);

		count += (state & STATE_FAILED) != 0;
		apart |= (state & STATE_APART) != 0;
	}
	CHECK(!common || apart || count == 0 || count == w->nranks, "%d ranks have failed", count);
	if (common && count == w->nranks) {
		check_named(w, apart);
	}
	s.apart = apart;
	world_meet(w);
	return count;
}

static void masks(void)
{
	int host[WORLD_MAX], *device, error = 0;

	NEED_CUDA(cudaMalloc((void **)&device, sizeof(host)));
	for (int r = 0; r < s.w.nranks; r++) {
		host[r] = 1;
	}
	if (fine(ncclEpMaskQuery(s.group, device, s.w.stream)) &&
	    fine(ncclEpMaskUpdate(s.group, host, s.w.stream))) {
		fine(ncclEpMaskClean(s.group, s.w.stream));
	}
	fine(ncclEpGetAsyncError(s.group, &error));
	NEED_CUDA(cudaStreamSynchronize(s.w.stream));
	NEED_CUDA(cudaFree(device));
}

static void statistics(void)
{
	ncclEpExtPeerStats_t stats[WORLD_MAX];
	uint64_t tokens, rows;

	stats[0] = NCCL_EP_EXT_PEER_STATS_INIT;
	fine(ncclEpExtPeerStats(s.group, stats, s.w.nranks, s.w.stream));
	fine(ncclEpExtNumRecvTokens(s.handle, &tokens, &rows, s.w.stream));
}

static void operate(void)
{
	poison();
	if (!fine(update()) || !fine(dispatch()) || !over()) {
		return;
	}
	check_dispatch();
	statistics();
	if (!fine(combine()) || !over()) {
		return;
	}
	check_combine();
	if (s.config.enable_mask) {
		masks();
	}
}

/*
 * The handle, for which the heap grows: on all or on none. Then what has failed may be done again,
 * also by the one rank whose heap has grown and that had no memory for the handle. (Not where NICs
 * have given up the old heap.)
 */
static bool make_handle(struct world *w)
{
	bool made = fine(init());
	int failed = meet(w, !made, false);

	if (failed == w->nranks) {
		check_named(w, s.apart);
	}
	if (!failed || s.apart || (failed == w->nranks && world_nodes() > 1)) {
		return !failed;
	}
	usleep(THREADS_AGAIN_US);
	if (!made) {
		OK(init());
	}
	return meet(w, !s.handle, false) == 0;
}

/* Of a group: true if no call of any rank has failed. victim: on that rank one may; -1: on none. */
static bool live(struct world *w, int victim)
{
	double start = world_now();
	int failed;

	s.victim = victim;
	s.failed = false;
	s.group = NULL;
	s.handle = NULL;
	s.w.comm = world_comm(w, (UINT64_C(1) << w->nranks) - 1);
	fine(ncclEpCreateGroup(&s.group, s.w.comm, &s.config));
	CHECK(!s.failed == (s.group != NULL));
	if (meet(w, s.failed, true) == 0 && make_handle(w)) {
		operate();
	}
	if (fine(ncclEpHandleDestroy(s.handle))) {
		s.handle = NULL; /* else one half of an operation is lacking */
	}
	failed = meet(w, s.failed, false);
	if (failed) {
		OK(ncclCommAbort(s.w.comm));
	}
	if (!fine(ncclEpGroupDestroy(s.group))) {
		usleep(THREADS_AGAIN_US);
		OK(ncclEpGroupDestroy(s.group));
	}
	OK(ncclEpHandleDestroy(s.handle));
	CHECK(world_now() - start < SOON, "%.1f s", world_now() - start);
	world_meet(w);
	if (!failed) {
		OK(ncclCommDestroy(s.w.comm));
	}
	return meet(w, s.failed, false) == 0;
}

/* ---- what stays behind ---- */

struct traces {
	long bytes; /* of the device */
	long fds, threads, mappings, blocks;
};

/*
 * Where a process has another group, a destroyed one waits for no rank, and a later creation frees
 * what it has left.
 */
static void free_left(void)
{
	ncclEpGroup_t group;

	if (s.alone) {
		OK(ncclEpCreateGroup(&group, s.alone, &s.config));
		OK(ncclEpGroupDestroy(group));
	}
}

/* Of ranks that are threads the first one looks at what they have in common. */
static struct traces look(const struct world *w)
{
	size_t available, total;
	struct traces t = { 0 };

	NEED_CUDA(cudaMemGetInfo(&available, &total));
	t.bytes = (long)(total - available);
	if (w->processes || w->rank == 0) {
		t.fds = self_entries("/proc/self/fd");
		t.threads = inject_threads();
		t.mappings =
			self_maps("/dev/zero") + self_maps("vcluster-gpu"); /* shared with others */
		t.blocks = inject_blocks();
	}
	return t;
}

static bool more(const struct traces *now, const struct traces *before)
{
	return now->bytes > before->bytes || now->fds > before->fds ||
	       now->threads > before->threads || now->mappings > before->mappings ||
	       now->blocks > before->blocks;
}

/* All ranks rest meanwhile. */
static void check_traces(struct world *w, const struct traces *before)
{
	double end = world_now() + PATIENCE;
	struct traces now;

	free_left();
	now = look(w);

	while (more(&now, before) && world_now() < end) {
		usleep(2000);
		now = look(w);
	}
	CHECK(!more(&now, before),
	      "%ld bytes of the device, %ld descriptors, %ld threads, %ld mappings, %ld blocks "
	      "more than before",
	      now.bytes - before->bytes, now.fds - before->fds, now.threads - before->threads,
	      now.mappings - before->mappings, now.blocks - before->blocks);
	world_meet(w);
}

/* ---- the calls ---- */

/* All hear of what one of them has found wrong, and the victim says which call it was. */
static void name_call(struct world *w, int victim, uint64_t n, bool wrong, uint64_t seed)
{
	bool any = false;

	world_raise(w, FLAG_STATE, wrong);
	world_meet(w);
	for (int r = 0; r < w->nranks; r++) {
		any |= world_look(w, FLAG_STATE, r);
	}
	if (any && w->rank == victim) {
		fprintf(stderr, "^ call %llu of rank %d: %s (seed %llu)\n", (unsigned long long)n,
			victim, inject_failed(), (unsigned long long)seed);
	}
	world_meet(w);
}

struct plan {
	const char *mode, *name;
	uint64_t count, seed;
};

/* True if that call was made. */
static bool fail(struct world *w, const struct plan *plan, int victim, uint64_t n)
{
	int failures = check_failures();
	struct traces before;
	bool made;

	world_meet(w);
	free_left();
	before = look(w);
	world_meet(w);
	if (w->rank == victim) {
		inject_arm(n, plan->name);
	}
	(void)live(w, victim);
	if (w->rank == victim) {
		(void)inject_disarm();
	}
	world_raise(w, FLAG_QUIT, w->rank == victim && !*inject_failed());
	world_meet(w);
	made = !world_look(w, FLAG_QUIT, victim);
	CHECK(live(w, -1)); /* the next group */
	if (s.alone) {      /* what a thread has given up meanwhile goes with the one after that */
		usleep(THREADS_AGAIN_US);
		CHECK(live(w, -1));
	}
	check_traces(w, &before);
	name_call(w, victim, n, check_failures() > failures, plan->seed);
	return made;
}

/* How many calls there are on each rank. */
static void count_calls(struct world *w, const struct plan *plan)
{
	uint64_t calls = 0;

	CHECK(live(w, -1)); /* what is made once in a process is there afterwards */
	for (int r = 0; r < w->nranks; r++) {
		world_meet(w);
		if (r == w->rank) {
			inject_arm(0, plan->name);
		}
		CHECK(live(w, -1));
		if (r == w->rank) {
			calls = inject_disarm();
		}
	}
	NEED(calls > (plan->name ? 0 : 50));
	world_raise(w, FLAG_CALLS, calls);
	world_meet(w);
}

/* True if that call was made. */
static bool leave_kept(struct world *w, const struct plan *plan, uint64_t n)
{
	struct traces before;
	bool made;

	world_meet(w);
	before = look(w);
	s.w.comm = world_comm(w, (UINT64_C(1) << w->nranks) - 1);
	NEED_OK(ncclEpCreateGroup(&s.group, s.w.comm, &s.config));
	world_meet(w);
	if (w->rank == 0) {
		inject_arm(n, plan->name);
		OK(ncclEpGroupDestroy(s.group)); /* waits a second for the others */
		usleep(THREADS_AGAIN_US);
		CHECK(look(w).bytes > before.bytes, "others may write to what is gone");
		(void)inject_disarm();
	}
	world_raise(w, FLAG_QUIT, w->rank == 0 && !*inject_failed());
	world_meet(w);
	made = !world_look(w, FLAG_QUIT, 0);
	if (w->rank != 0) {
		OK(ncclEpGroupDestroy(s.group));
	}
	OK(ncclCommDestroy(s.w.comm));
	CHECK(live(w, -1));
	check_traces(w, &before);
	return made;
}

static void run(struct world *w, void *arg)
{
	const struct plan *plan = arg;
	bool made = true, beside = !strcmp(plan->mode, "beside");
	ncclEpGroup_t other = NULL;
	uint64_t seed = plan->seed;

	if (!strcmp(plan->mode, "kept")) {
		open_subject(w, "ll");
		CHECK(live(w, -1)); /* what is made once in a process is there afterwards */
		for (uint64_t n = 1; made; n++) {
			check_context("call %llu of rank 0, seen by rank %d", (unsigned long long)n,
				      w->rank);
			made = leave_kept(w, plan, n);
		}
		close_subject();
		return;
	}
	open_subject(w, beside ? "ll" : plan->mode);
	if (beside) {
		NEED_OK(ncclCommInitAll(&s.alone, 1, &w->device));
		NEED_OK(ncclEpCreateGroup(&other, w->comm, &s.config));
	}
	check_context("rank %d, before any call fails", w->rank);
	count_calls(w, plan);
	for (uint64_t i = 0; plan->count ? i < plan->count : made; i++) {
		int victim = plan->name ? 0 : (int)world_draw(&seed, (uint64_t)w->nranks);
		uint64_t n = i + 1;

		if (plan->count) {
			n = 1 + world_draw(&seed, world_look(w, FLAG_CALLS, victim));
		}
		check_context("call %llu of rank %d, seen by rank %d", (unsigned long long)n,
			      victim, w->rank);
		made = fail(w, plan, victim, n);
	}
	OK(ncclEpGroupDestroy(other));
	OK(ncclCommDestroy(s.alone));
	close_subject();
}

int main(int argc, char **argv)
{
	struct plan plan = { .mode = argv[1] };

	NEED(argc >= 3);
	plan.count = world_number(argv[2], 0);
	plan.seed = world_number(argc > 3 ? argv[3] : NULL, 1);
	plan.name = argc > 4 ? argv[4] : NULL;
	/*
	 * (a rank that a busy machine lets wait is not absent: time goes on while the others run)
	 */
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "4500", 0);
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "1500", 0);
	world_run(world_size(3), run, &plan);
	return check_end();
}
