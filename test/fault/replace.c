/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The recipe of doc/replace.md: a rank's process is killed, another process takes its place, and
 * all ranks make a communicator and a group beside the old ones, again and again. Every byte is
 * verified before the loss, while the others go on without the rank, and afterwards. What a rank
 * that lives on has of memory, descriptors, threads and mappings stays the same.
 *
 *     replace ll|ht|stay ROUNDS
 *     replace nth ROUNDS TRIES
 *
 * Each round draws who is killed and when, which survivor comes late and where, and how many
 * newcomers die or hang before the group is made. TEST_SEED in the environment: the same draws. In
 * low latency, with masks, the survivors serve all the time: a thread of each makes the new group,
 * its handle and its graph, and they change over between two pairs that all agree on.
 *
 * With `stay` it is low latency, and the newcomer joins the group that is there
 * (ncclEpExtReplaceRanks): a thread makes the communicator alone, and the group, its handle and its
 * graph are those of the beginning to the end. Newcomers also die when they have joined. With `nth`
 * a call that the library makes meanwhile fails on a rank, in TRIES newcomers of a round: the group
 * serves as before, nothing stays behind, and the next newcomer joins.
 *
 * vcrun starts a process for each rank, which keeps it alive: the rank runs in a child, and when
 * that was killed, in another one.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/bench.h"
#include "support/ht_bench.h"
#ifdef REPLACE_INJECT
#include "support/inject.h"
#endif
#include "support/self.h"
#include "support/victim.h"

#define RANKS_MAX 8
#define TIMEOUT_MS 4000.0
#define PATIENCE_S 120.0 /* of the control plane; nothing below takes so long */
#define SILENCE_S 3.0    /* after which a newcomer that says nothing is given up */
#define HELD_US ((useconds_t)(3e3 * TIMEOUT_MS)) /* more than the longest wait for one */
#define IDS 8
#define PAIRS_AROUND_LOSS 6 /* the victim dies in one of them, before the last one */
#define PAIRS_BETWEEN 2
#define TARDY_US 2300000 /* longer than MaskClean waits for a masked rank */
#define CALLS_STAY 90    /* about as many calls has the library in ncclEpExtReplaceRanks, */
#define CALLS_JOIN 150   /* and in ncclEpExtJoinGroup */
#define BETWEEN_PAIRS_US 50000

enum {
	VOTE_MADE,   /* the rank has the group; `stay`: the communicator */
	VOTE_JOINED, /* `stay`: it has the newcomer in the group */
	VOTES
};

struct vote {
	_Atomic uint64_t said[RANKS_MAX]; /* attempt << 1 | yes */
	_Atomic uint64_t pairs[IDS];      /* that any rank has begun since; FIXED: the last ones */
	_Atomic uint64_t decided;         /* attempt << 1 | all say yes */
};

#define FIXED (UINT64_C(1) << 32)

/* What the job's control plane knows: of an engine a server, here a file that all ranks map. */
struct plane {
	_Atomic uint64_t seed;
	_Atomic uint32_t life[RANKS_MAX];  /* processes that this rank has had */
	_Atomic uint32_t ready[RANKS_MAX]; /* the life that waits to be taken in */
	_Atomic uint32_t met[RANKS_MAX];
	_Atomic uint32_t attempt; /* communicators that were asked for; each has a place below, */
	uint32_t round[IDS];      /* the round that it is for, */
	uint32_t newcomer[IDS];   /* which newcomer of that round, from 0, */
	ncclUniqueId id[IDS];     /* and its id */
	struct vote vote[VOTES];
	_Atomic uint64_t settled; /* an attempt about which there is nothing left to decide */
};

/* What happens in a round; all ranks draw the same. */
struct plan {
	int victim;
	uint32_t pair;     /* in which it dies, */
	uint32_t delay_us; /* so long after it began */
	int late;          /* a survivor, or -1 */
	uint32_t late_us;
	bool late_inside;    /* between communicator and group, not before both */
	bool held;           /* the leader, before it decides, so long that it is masked */
	uint32_t dead;       /* newcomers that come to nothing, */
	uint32_t dead_us[2]; /* so long after they were called */
	bool dead_stops[2];  /* they hang, until the job kills them */
	bool dead_inside[2]; /* in the creation of the group, not of the communicator */
	bool dead_after[2];  /* `stay`: when it has joined */
	bool tardy; /* `stay`: the newcomer calls MaskClean when nobody waits there any more */
};

/* What a process has. */
struct belongings {
	uint64_t memory;
	int files, threads, maps;
};

struct rank;

/*
 * A communicator, its group, and a handle with a graph of a pair: made while the lane before
 * serves.
 */
struct lane {
	struct rank *of;
	struct world w;
	ncclEpGroup_t group;
	struct bench low;
	struct ht_bench high;
	cudaGraphExec_t graph; /* low latency */
	uint32_t attempt, pause_us;
	bool made;
	_Atomic bool over; /* the thread that makes it */
	pthread_t thread;
};

struct rank {
	struct plane *plane;
	int rank, nranks, device;
	bool high, stay;
	uint32_t rounds, tries;
	uint32_t meetings;
	bool held;                   /* is to be, once in this round */
	bool apart;                  /* others have masked the leader, or do so in this round */
	struct lane lanes[2], *lane; /* the one in use */
	int looks;
	struct belongings has; /* at its second look */
};

static struct plan plan_of(uint64_t seed, uint32_t round, int nranks)
{
	/* apart, or a round draws what the one before drew */
	uint64_t state = seed ^ (uint64_t)round << 32;
	struct plan p = { .late = -1 };

	/* Rank 0 lives long, so that what leaks adds up. */
	p.victim = world_draw(&state, 12) ? 1 + (int)world_draw(&state, (uint64_t)nranks - 1) : 0;
	p.pair = (uint32_t)world_draw(&state, PAIRS_AROUND_LOSS - 1);
	p.delay_us = (uint32_t)world_draw(&state, 3000);
	if (world_draw(&state, 2)) {
		p.late = (int)world_draw(&state, (uint64_t)nranks);
		p.late = p.late == p.victim ? -1 : p.late;
	}
	p.late_us = (uint32_t)world_draw(&state, 600000);
	p.late_inside = world_draw(&state, 2);
	p.held = round % 3 == 1;
	p.dead = world_draw(&state, 6) < 3 ? 0 : 1 + (uint32_t)world_draw(&state, 2);
	for (int i = 0; i < 2; i++) {
		p.dead_us[i] = (uint32_t)world_draw(&state, 20000);
		p.dead_stops[i] = world_draw(&state, 3) == 0;
		p.dead_inside[i] = world_draw(&state, 3) != 0;
		p.dead_after[i] = world_draw(&state, 3) == 0;
	}
	p.tardy = world_draw(&state, 4) == 0;
	return p;
}

static struct plan plan_now(const struct rank *k, uint32_t round)
{
	struct plan p = plan_of(atomic_load(&k->plane->seed), round, k->nranks);

	p.dead = k->tries ? 0 : p.dead;
	return p;
}

/*
 * `nth`: this is the rank on which a call fails while newcomer i joins. Returns which one; 0: none.
 */
static uint64_t failing_call(const struct rank *k, uint32_t round, uint32_t i, bool joins)
{
	uint64_t state = atomic_load(&k->plane->seed) + round * 1000 + i;
	int rank = (int)world_draw(&state, (uint64_t)k->nranks);

	if (i >= k->tries || rank != k->rank) {
		return 0;
	}
	return 1 + world_draw(&state, joins ? CALLS_JOIN : CALLS_STAY);
}

#ifdef REPLACE_INJECT
static void fail_call(uint64_t n)
{
	inject_arm(n, NULL);
}

static bool has_failed(void)
{
	(void)inject_disarm();
	return *inject_failed();
}
#else
static void fail_call(uint64_t n)
{
	NEED(!n);
}

static bool has_failed(void)
{
	return false;
}
#endif

/* ---- the control plane ---- */

static void nap(double start)
{
	NEED(world_now() - start < PATIENCE_S);
	usleep(2000);
}

/* All ranks but `victim`, if that is not -1. */
static void meet(struct rank *k, int victim)
{
	double start = world_now();

	atomic_store(&k->plane->met[k->rank], ++k->meetings);
	for (int r = 0; r < k->nranks; r++) {
		while (r != victim && (int32_t)(atomic_load(&k->plane->met[r]) - k->meetings) < 0) {
			nap(start);
		}
	}
}

static int leader(int victim)
{
	return victim == 0 ? 1 : 0;
}

/*
 * The leader waits for the newcomer `life` of `victim`, if there is one, and asks all for another
 * communicator.
 */
static void ask(struct rank *k, uint32_t round, uint32_t newcomer, int victim, uint32_t life)
{
	uint32_t attempt = atomic_load(&k->plane->attempt) + 1;
	double start = world_now();

	while (victim >= 0 && atomic_load(&k->plane->ready[victim]) < life) {
		nap(start);
	}
	NEED_OK(ncclGetUniqueId(&k->plane->id[attempt % IDS]));
	k->plane->round[attempt % IDS] = round;
	k->plane->newcomer[attempt % IDS] = newcomer;
	for (int vote = 0; vote < VOTES; vote++) {
		atomic_store(&k->plane->vote[vote].pairs[attempt % IDS], 0);
	}
	atomic_store(&k->plane->attempt, attempt);
}

static uint32_t await_attempt(struct rank *k, uint32_t after)
{
	double start = world_now();
	uint32_t attempt;

	while ((attempt = atomic_load(&k->plane->attempt)) <= after) {
		nap(start);
	}
	return attempt;
}

static void say(struct rank *k, int vote, uint32_t attempt, bool made)
{
	atomic_store(&k->plane->vote[vote].said[k->rank], (uint64_t)attempt << 1 | made);
}

/*
 * A rank is about to begin that pair with the old group, and the control plane knows it from now
 * on. False: it has fixed how many there are, and this is the first one of the new group.
 */
static bool begins(_Atomic uint64_t *pairs, uint32_t pair)
{
	uint64_t known = atomic_load(pairs);

	while (known <= pair && !atomic_compare_exchange_weak(pairs, &known, pair + 1)) {
	}
	return known < FIXED || pair < known - FIXED;
}

/*
 * The leader decides for all, once it can: the survivors have spoken, and the newcomer, too, unless
 * one of them has failed, or the newcomer is dead or silent.
 */
static void decide(struct rank *k, int which, uint32_t attempt, int victim, uint32_t life,
		   double silent_s)
{
	struct vote *vote = &k->plane->vote[which];
	uint64_t yes = (uint64_t)attempt << 1 | 1;
	bool all = true;

	for (int r = 0; r < k->nranks; r++) {
		uint64_t said = atomic_load(&vote->said[r]);

		if (r != victim && said >> 1 != attempt) {
			return;
		}
		all &= r == victim || said == yes;
	}
	if (all && atomic_load(&vote->said[victim]) >> 1 != attempt &&
	    atomic_load(&k->plane->life[victim]) == life && silent_s < SILENCE_S) {
		return;
	}
	all = all && atomic_load(&vote->said[victim]) == yes;
	usleep(k->held ? HELD_US : 0);
	k->held = false;
	atomic_store(&vote->decided, (uint64_t)attempt << 1 | all);
	atomic_fetch_or(&vote->pairs[attempt % IDS], FIXED);
	if (!all || which == VOTE_JOINED || !k->stay) {
		atomic_store(&k->plane->settled, attempt);
	}
}

static bool is_decided(struct rank *k, int vote, uint32_t attempt)
{
	return atomic_load(&k->plane->vote[vote].decided) >> 1 == attempt;
}

/* A newcomer waits until all survivors have spoken. If they do without it, it ends. */
static void await_decision(struct rank *k, int vote, uint32_t attempt)
{
	double start = world_now();

	while (!is_decided(k, vote, attempt)) {
		nap(start);
	}
	if (k->tries && !(atomic_load(&k->plane->vote[vote].decided) & 1)) {
		raise(SIGKILL);
	}
	NEED(atomic_load(&k->plane->vote[vote].decided) & 1);
}

/* ---- lanes ---- */

static struct oracle_problem low_problem(int nranks)
{
	return bench_problem(nranks, 12, 3, 256, 6, ORACLE_EXPERT_MAJOR);
}

static struct oracle_ht high_problem(int nranks)
{
	struct oracle_ht h = { .expert_major = 1, .alignment = 8 };

	h.p = bench_problem(nranks, 12, 3, 256, 60, ORACLE_EXPERT_MAJOR);
	return h;
}

/* Fewer SMs than there are: what makes the next group needs some, too. */
static ncclEpGroupConfig_t config_of(const struct rank *k)
{
	struct oracle_problem p = low_problem(k->nranks);
	struct oracle_ht h = high_problem(k->nranks);
	ncclEpGroupConfig_t config = k->high ? ht_group_config(&h, 0)
					     : bench_group_config(&p, BENCH_MASK);

	config.max_num_sms = k->high ? 2 : 6;
	config.timeout_ns = (uint64_t)(TIMEOUT_MS * 1e6);
	return config;
}

/* A handle and, in low latency, a graph of a pair. Nothing of it runs yet. */
static void open_handle(struct lane *l)
{
	struct oracle_problem p = low_problem(l->of->nranks);
	struct oracle_ht h = high_problem(l->of->nranks);

	if (l->of->high) {
		ht_open(&l->high, &l->w, l->group, &h, 0);
		ht_expert_work(&l->high);
		return;
	}
	bench_open(&l->low, &l->w, l->group, &p, BENCH_MASK);
	bench_expert_work(&l->low);
	OK(bench_update(&l->low, l->w.stream));
	world_capture(l->w.stream);
	OK(bench_dispatch(&l->low, l->w.stream));
	OK(bench_combine(&l->low, l->w.stream));
	l->graph = world_captured(l->w.stream);
}

/*
 * Where NCCL connects in the first collective a newcomer may come to nothing in it. The
 * communicator is aborted then, which NCCL can do only if it does not block its callers:
 * doc/replace.md.
 */
static bool comm_make(struct lane *l)
{
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	ncclResult_t result;

	config.blocking = !getenv("VC_NCCL_CONNECT");
	result = ncclCommInitRankConfig(&l->w.comm, l->of->nranks,
					l->of->plane->id[l->attempt % IDS], l->of->rank, &config);
	while (result == ncclInProgress) {
		usleep(1000);
		NEED_OK(ncclCommGetAsyncError(l->w.comm, &result));
	}
	if (result != ncclSuccess) {
		OK(ncclCommAbort(l->w.comm));
		l->w.comm = NULL;
	}
	return result == ncclSuccess;
}

static bool lane_make(struct lane *l)
{
	ncclEpGroupConfig_t config = config_of(l->of);

	NEED_CUDA(cudaSetDevice(l->of->device)); /* of this thread */
	NEED_CUDA(cudaStreamCreateWithFlags(&l->w.stream, cudaStreamNonBlocking));
	if (!comm_make(l)) {
		return false;
	}
	if (l->of->stay && l->of->lane) {
		return true; /* the group is there, or is joined later */
	}
	usleep(l->pause_us);
	if (ncclEpCreateGroup(&l->group, l->w.comm, &config) != ncclSuccess) {
		l->group = NULL;
		return false;
	}
	open_handle(l);
	return true;
}

static void *lane_main(void *arg)
{
	struct lane *l = arg;

	check_context("attempt %u, rank %d", l->attempt, l->of->rank);
	l->made = lane_make(l);
	atomic_store(&l->over, true);
	return NULL;
}

static struct lane *lane_next(struct rank *k, uint32_t attempt, uint32_t pause_us)
{
	struct lane *l = k->lanes + (k->lane == k->lanes);

	memset(l, 0, sizeof(*l));
	l->of = k;
	l->w.rank = k->rank;
	l->w.nranks = k->nranks;
	l->w.device = k->device;
	l->attempt = attempt;
	l->pause_us = pause_us;
	return l;
}

/* The group first, then its communicator. Of one that came to nothing, what there is. */
static void lane_drop(struct lane *l)
{
	if (l->group && l->of->high) {
		ht_close(&l->high);
	} else if (l->group) {
		NEED_CUDA(cudaGraphExecDestroy(l->graph));
		bench_close(&l->low);
	}
	OK(ncclEpGroupDestroy(l->group));
	OK(ncclCommAbort(l->w.comm));
	NEED_CUDA(cudaStreamDestroy(l->w.stream));
}

/* A pair with new inputs, every byte verified. */
static void pair_checked(struct lane *l, uint64_t seed)
{
	struct ht_bench *b = &l->high;

	if (!l->of->high) {
		bench_pair_of(&l->low, seed);
		return;
	}
	ht_load(b, seed, 40);
	ht_poison(b);
	NEED_OK(ht_update(b, l->w.stream));
	NEED_SYNC(ht_dispatch(b, false, l->w.stream), l->w.stream);
	ht_check_counters(b);
	ht_check_dispatch(b, false);
	ht_expert_work(b);
	NEED_SYNC(ht_combine(b, false, l->w.stream), l->w.stream);
	ht_check_combine(b, false);
}

/*
 * The pair that was captured while the lane before served, or that has been there since the
 * beginning.
 */
static void pair_of_graph(struct lane *l, uint64_t seed)
{
	bench_load(&l->low, seed);
	bench_expert_work(&l->low);
	bench_poison(&l->low);
	NEED_CUDA(cudaGraphLaunch(l->graph, l->w.stream));
	NEED_CUDA(cudaStreamSynchronize(l->w.stream));
	bench_check_dispatch(&l->low);
	bench_check_combine(&l->low);
}

/* A pair whose results nobody looks at; why the group has failed, if it has. */
static ncclResult_t pair_blind(struct lane *l)
{
	ncclResult_t result = ncclSuccess;
	double seconds;

	if (!l->of->high) {
		return victim_pair(&l->low, false, &seconds);
	}
	for (int i = 0; i < 3 && result == ncclSuccess; i++) {
		result = i == 0   ? ht_update(&l->high, l->w.stream)
			 : i == 1 ? ht_dispatch(&l->high, false, l->w.stream)
				  : ht_combine(&l->high, false, l->w.stream);
		NEED_CUDA(cudaStreamSynchronize(l->w.stream));
		if (result == ncclSuccess) {
			OK(ncclEpExtGetLastError(l->group, &result, NULL));
		}
	}
	return result;
}

/* ---- what a process has ---- */

static void add_kept(const char *line, void *kept)
{
	struct belongings *b = kept;
	unsigned long long bytes = 0;
	const char *number = strstr(line, ": ");

	NEED(number && sscanf(number, ": %llu bytes", &bytes) == 1);
	b->memory += bytes;
	b->files++;
	b->maps++;
}

/*
 * Without the heaps that the library keeps for good, and says so: a newcomer hung while NCCL
 * registered them.
 */
static struct belongings look(void)
{
	struct belongings b, kept = { 0 };
	size_t available = 0, total = 0;

	(void)self_logged("stay allocated until the process ends", add_kept, &kept);
	NEED_CUDA(cudaMemGetInfo(&available, &total));
	b.memory = total - available - kept.memory;
	b.files = self_entries("/proc/self/fd") - kept.files;
	b.threads = self_entries("/proc/self/task");
	b.maps = self_maps("memfd") - kept.maps;
	return b;
}

/*
 * With both lanes, when all ranks are there: what was left before has gone by now, or does so soon,
 * by threads of the library. A process's first round may load what later ones find loaded. What a
 * newcomer that hung has held up may end with the creation after the next one.
 */
static void check_belongings(struct rank *k, const struct plan *plan)
{
	double end = world_now() + 20;
	struct belongings b = look();
	int most;

	for (uint32_t i = 0; i < plan->dead; i++) {
		if (plan->dead_stops[i]) {
			return;
		}
	}
	if (++k->looks <= 2) {
		usleep(2000000);
		k->has = look();
		return;
	}
	while ((b.memory > k->has.memory || b.files > k->has.files || b.threads > k->has.threads ||
		b.maps > k->has.maps) &&
	       world_now() < end) {
		usleep(1000);
		b = look();
	}
	CHECK(b.memory <= k->has.memory, "%llu, before %llu", (unsigned long long)b.memory,
	      (unsigned long long)k->has.memory);
	CHECK(b.files <= k->has.files, "%d, before %d", b.files, k->has.files);
	CHECK(b.maps <= k->has.maps, "%d, before %d", b.maps, k->has.maps);
	most = k->has.threads + SELF_SM_THREADS;
	CHECK(self_threads(most) <= most, "%d are allowed", most);
}

/* ---- a round ---- */

static void *kill_main(void *us)
{
	usleep((useconds_t)(uintptr_t)us);
	raise(SIGKILL);
	return NULL;
}

static void *stop_main(void *us)
{
	usleep((useconds_t)(uintptr_t)us);
	raise(SIGSTOP);
	return NULL;
}

static void die_later(uint32_t us, bool stops)
{
	pthread_t thread;

	NEED(!pthread_create(&thread, NULL, stops ? stop_main : kill_main, (void *)(uintptr_t)us));
}

static void die(struct rank *k, const struct plan *plan)
{
	for (uint32_t i = 0; i < PAIRS_AROUND_LOSS - 1; i++) {
		if (i == plan->pair) {
			die_later(plan->delay_us, false);
		}
		(void)pair_blind(k->lane);
	}
	raise(SIGKILL);
}

/*
 * In high throughput the first failure ends the group; with masks the others go on without the
 * victim.
 */
static void lose(struct rank *k, const struct plan *plan)
{
	ncclResult_t result = ncclSuccess;
	const char *text = "";

	for (int i = 0; i < PAIRS_AROUND_LOSS && result == ncclSuccess; i++) {
		result = pair_blind(k->lane);
	}
	if (k->high) {
		CHECK_INT(result, ncclRemoteError);
		OK(ncclEpExtGetLastError(k->lane->group, &result, &text));
		CHECK(victim_culprit(text) >= 0, "%s", text);
	} else {
		CHECK_INT(result, ncclSuccess);
		CHECK_INT(bench_masked(&k->lane->w, k->lane->group), UINT64_C(1) << plan->victim);
		k->lane->low.p.absent = UINT64_C(1) << plan->victim;
	}
	meet(k, plan->victim);
}

/*
 * Serves until it is decided about the next lane, which a thread makes. Results count no more where
 * the leader is to be masked. Returns whether all have made it; all have made as many pairs by
 * then.
 */
static bool serve(struct rank *k, const struct plan *plan, struct lane *next, int vote,
		  uint32_t life, uint64_t seed)
{
	double start = world_now(), spoken = 0;
	uint32_t attempt = next->attempt, pairs = 0;
	_Atomic uint64_t *common = &k->plane->vote[vote].pairs[attempt % IDS];

	for (;;) {
		if (!spoken && atomic_load(&next->over)) {
			say(k, vote, attempt, next->made);
			spoken = world_now();
		}
		if (!is_decided(k, vote, attempt) && k->rank == leader(plan->victim)) {
			decide(k, vote, attempt, plan->victim, life,
			       spoken ? world_now() - spoken : 0);
		}
		if (k->high ? is_decided(k, vote, attempt) : !begins(common, pairs)) {
			break;
		}
		if (!k->high && k->apart) {
			CHECK_INT(pair_blind(k->lane), ncclSuccess);
		} else if (k->stay && pairs % 2) {
			pair_of_graph(k->lane, seed + pairs);
		} else if (!k->high) {
			pair_checked(k->lane, seed + pairs);
		}
		pairs++;
		NEED(world_now() - start < PATIENCE_S);
		usleep(pairs < (uint32_t)atomic_load(common) ? 0 : BETWEEN_PAIRS_US);
	}
	CHECK(k->high || pairs == atomic_load(common) - FIXED, "%u pairs", pairs);
	if (k->apart && k->rank != leader(plan->victim)) {
		CHECK(bench_masked(&k->lane->w, k->lane->group) >> leader(plan->victim) & 1);
	}
	return atomic_load(&k->plane->vote[vote].decided) & 1;
}

static bool serve_meanwhile(struct rank *k, const struct plan *plan, struct lane *next,
			    uint32_t life, uint64_t seed)
{
	bool all;

	NEED(!pthread_create(&next->thread, NULL, lane_main, next));
	all = serve(k, plan, next, VOTE_MADE, life, seed);
	NEED(!pthread_join(next->thread, NULL));
	return all;
}

/* All have the next lane, and what was there before goes. */
static void change_over(struct rank *k, struct lane *next, const struct plan *plan)
{
	struct lane *old = k->lane;

	k->lane = next;
	if (!k->high) {
		pair_of_graph(next, 5);
	}
	pair_checked(next, 7);
	check_belongings(k, plan);
	if (old) {
		lane_drop(old);
	}
	meet(k, -1);
}

/* The lane goes on with the next one's communicator, which the newcomer has, too. */
static void move_on(struct lane *lane, struct lane *next)
{
	OK(ncclCommAbort(lane->w.comm));
	lane->w.comm = next->w.comm;
	next->w.comm = NULL;
	lane_drop(next);
}

/*
 * `stay`: all take the newcomer in. Returns whether it is there: if it has died the others go on
 * without it.
 */
static bool take_in(struct rank *k, const struct plan *plan, bool died)
{
	NEED_OK(ncclEpMaskClean(k->lane->group, k->lane->w.stream));
	k->apart = false;
	if (died) {
		CHECK_INT(bench_masked(&k->lane->w, k->lane->group), UINT64_C(1) << plan->victim);
		pair_of_graph(k->lane, 4);
		return false;
	}
	CHECK_INT(bench_masked(&k->lane->w, k->lane->group), 0);
	k->lane->low.p.absent = 0;
	pair_of_graph(k->lane, 5);
	pair_checked(k->lane, 7);
	check_belongings(k, plan);
	meet(k, -1);
	return true;
}

/* A mask does not take in who has joined. */
static void check_refused(struct rank *k)
{
	int mask[RANKS_MAX];

	for (int r = 0; r < k->nranks; r++) {
		mask[r] = 1;
	}
	CHECK_INT(ncclEpMaskUpdate(k->lane->group, mask, k->lane->w.stream), ncclInvalidUsage);
	CHECK_LAST(k->lane->group, ncclInvalidUsage, "has joined the group");
}

/* `stay`, and all have the communicator: newcomer i joins. Returns whether it is there. */
static bool let_join(struct rank *k, const struct plan *plan, uint32_t i, struct lane *next,
		     uint32_t life, uint64_t seed)
{
	bool died = i < plan->dead && plan->dead_after[i];
	double start = world_now();
	ncclResult_t result;

	usleep(next->pause_us);
	fail_call(failing_call(k, k->plane->round[next->attempt % IDS], i, false));
	result = ncclEpExtReplaceRanks(k->lane->group, next->w.comm);
	next->made = result == ncclSuccess;
	CHECK(next->made || i < plan->dead || i < k->tries);
	CHECK(!has_failed() || k->tries);
	if (next->made) {
		check_refused(k);
	}
	if (!serve(k, plan, next, VOTE_JOINED, life, seed)) {
		NEED((i < plan->dead && !died) || i < k->tries);
		lane_drop(next);
		return false;
	}
	while (died && atomic_load(&k->plane->life[plan->victim]) == life) {
		nap(start);
	}
	move_on(k->lane, next);
	return take_in(k, plan, died);
}

/* Until a newcomer has come through. */
static void survive(struct rank *k, const struct plan *plan, uint32_t round)
{
	uint32_t attempt = atomic_load(&k->plane->attempt);
	uint32_t life = atomic_load(&k->plane->life[plan->victim]) + 1;

	k->held = k->apart = plan->held && !k->high;
	meet(k, -1); /* from here on the victim may be dead */
	if (k->rank == plan->victim) {
		die(k, plan);
	}
	lose(k, plan);
	for (uint32_t i = 0;; i++, life++) {
		bool late = k->rank == plan->late;
		struct lane *next;

		check_context("round %u, rank %d without rank %d, newcomer %u", round, k->rank,
			      plan->victim, i);
		if (k->rank == leader(plan->victim)) {
			ask(k, round, i, plan->victim, life);
		}
		attempt = await_attempt(k, attempt);
		usleep(late && !plan->late_inside ? plan->late_us : 0);
		next = lane_next(k, attempt, late && plan->late_inside ? plan->late_us : 0);
		if (!serve_meanwhile(k, plan, next, life, round * 10000 + i * 1000)) {
			NEED(i < plan->dead);
			lane_drop(next);
			continue;
		}
		if (k->stay) {
			if (let_join(k, plan, i, next, life, round * 10000 + i * 1000 + 500)) {
				CHECK(k->tries || i == plan->dead);
				return;
			}
			continue;
		}
		CHECK_INT(i, plan->dead);
		check_context("round %u, rank %d, all together", round, k->rank);
		change_over(k, next, plan);
		return;
	}
}

/* `stay`: makes what a newcomer has, and waits for the word by which it takes its first step. */
static void join(struct rank *k, struct lane *lane, uint32_t i)
{
	ncclEpGroupConfig_t config = config_of(k);
	ncclResult_t result;

	fail_call(failing_call(k, k->plane->round[lane->attempt % IDS], i, true));
	result = ncclEpExtJoinGroup(&lane->group, lane->w.comm, &config, NULL);
	(void)has_failed();
	if (result != ncclSuccess && i < k->tries) {
		say(k, VOTE_JOINED, lane->attempt, false);
		raise(SIGKILL);
	}
	NEED_OK(result);
	open_handle(lane);
	CHECK_INT(bench_dispatch(&lane->low, lane->w.stream), ncclInvalidUsage);
	CHECK_LAST(lane->group, ncclInvalidUsage, "ncclEpMaskClean comes first");
	say(k, VOTE_JOINED, lane->attempt, true);
}

/* A newcomer that comes to nothing. */
static void fall(struct rank *k, const struct plan *plan, uint32_t i, struct lane *lane)
{
	ncclEpGroupConfig_t config = config_of(k);
	bool after = k->stay && plan->dead_after[i], inside = plan->dead_inside[i] || after;

	if (!inside) {
		die_later(plan->dead_us[i], plan->dead_stops[i]);
	}
	if (comm_make(lane) && inside) {
		if (k->stay) {
			say(k, VOTE_MADE, lane->attempt, true);
			await_decision(k, VOTE_MADE, lane->attempt);
		}
		if (after) {
			NEED_CUDA(
				cudaStreamCreateWithFlags(&lane->w.stream, cudaStreamNonBlocking));
			join(k, lane, IDS);
			raise(SIGKILL);
		}
		die_later(plan->dead_us[i], plan->dead_stops[i]);
		if (k->stay) {
			(void)ncclEpExtJoinGroup(&lane->group, lane->w.comm, &config, NULL);
		} else {
			(void)ncclEpCreateGroup(&lane->group, lane->w.comm, &config);
		}
	}
	for (;;) {
		usleep(1000000); /* it says nothing */
	}
}

/* A newcomer's first round, which the control plane tells. */
static uint32_t come(struct rank *k, uint32_t life)
{
	uint32_t attempt = atomic_load(&k->plane->attempt), round, i;
	struct lane *lane;
	struct plan plan;

	atomic_store(&k->plane->ready[k->rank], life);
	attempt = await_attempt(k, attempt);
	round = k->plane->round[attempt % IDS];
	plan = plan_now(k, round);
	NEED(plan.victim == k->rank);
	i = k->plane->newcomer[attempt % IDS];
	check_context("round %u, rank %d, newcomer %u", round, k->rank, i);
	lane = lane_next(k, attempt, 0);
	if (i < plan.dead) {
		fall(k, &plan, i, lane);
	}
	k->lane = k->stay ? lane : NULL; /* it joins one */
	NEED(lane_make(lane));
	say(k, VOTE_MADE, attempt, true);
	await_decision(k, VOTE_MADE, attempt);
	if (k->stay) {
		join(k, lane, i);
		await_decision(k, VOTE_JOINED, attempt);
	}
	k->meetings = atomic_load(&k->plane->met[leader(k->rank)]);
	if (k->stay) {
		usleep(plan.tardy ? TARDY_US : 0);
		NEED(take_in(k, &plan, false));
	} else {
		change_over(k, lane, &plan);
	}
	return round;
}

static void begin(struct rank *k)
{
	struct plan none = { 0 };
	struct lane *lane;

	if (k->rank == 0) {
		atomic_store(&k->plane->seed,
			     world_number(getenv("TEST_SEED"), (uint64_t)getpid()));
		printf("TEST_SEED=%llu\n", (unsigned long long)atomic_load(&k->plane->seed));
		fflush(stdout); /* before the process is killed */
		ask(k, 0, 0, -1, 0);
	}
	lane = lane_next(k, await_attempt(k, 0), 0);
	NEED(lane_make(lane));
	change_over(k, lane, &none);
}

static int run(struct rank *k)
{
	uint32_t life = atomic_load(&k->plane->life[k->rank]), round = 0;

	NEED_CUDA(cudaSetDevice(k->device));
	if (life == 1) {
		begin(k);
	} else {
		round = come(k, life);
	}
	for (round++; round <= k->rounds; round++) {
		struct plan plan = plan_now(k, round);

		check_context("round %u, rank %d", round, k->rank);
		for (uint64_t i = 0; i < PAIRS_BETWEEN; i++) {
			pair_checked(k->lane, round * 10000 + 9000 + i);
		}
		survive(k, &plan, round);
	}
	lane_drop(k->lane);
	return check_end();
}

/* Runs the rank in a child, and in another one whenever that was killed. Returns in the child. */
static void keep_alive(struct plane *plane, int rank)
{
	pid_t parent = getpid();

	for (;;) {
		int status;
		pid_t child;

		atomic_fetch_add(&plane->life[rank], 1);
		child = fork();
		NEED(child >= 0);
		if (child == 0) {
			prctl(PR_SET_PDEATHSIG, SIGKILL);
			if (getppid() != parent) {
				_exit(1);
			}
			return;
		}
		NEED(waitpid(child, &status, WUNTRACED) == child);
		if (WIFSTOPPED(status)) { /* the job finds out that it hangs, and ends it */
			uint64_t attempt = atomic_load(&plane->attempt);

			while (atomic_load(&plane->settled) < attempt) {
				usleep(1000);
			}
			kill(child, SIGKILL);
			NEED(waitpid(child, &status, 0) == child);
		}
		if (!WIFSIGNALED(status)) {
			_exit(WEXITSTATUS(status));
		}
		if (WTERMSIG(status) != SIGKILL) {
			_exit(128 + WTERMSIG(status));
		}
	}
}

int main(int argc, char **argv)
{
	static struct rank k;

	NEED(argc >= 3 && argc <= 4 && world_launched());
	k.plane = world_shared("plane", sizeof(*k.plane));
	k.high = !strcmp(argv[1], "ht");
	k.stay = !strcmp(argv[1], "stay") || argc == 4;
	k.tries = argc == 4 ? (uint32_t)world_number(argv[3], 0) : 0;
	k.rounds = (uint32_t)world_number(argv[2], 0);
	k.rank = (int)world_number(getenv("RANK"), 0);
	k.nranks = world_size(0);
	k.device = (int)world_number(getenv("LOCAL_RANK"), 0);
	NEED(k.nranks >= 2 && k.nranks <= RANKS_MAX);
	setenv("NCCL_EP_CLOSE_TIMEOUT_MS", "3000", 0);
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "2000", 0);
	setenv("VC_NCCL_TIMEOUT_S", "3", 0);
	self_log("WARN");
	keep_alive(k.plane, k.rank);
	return run(&k);
}
