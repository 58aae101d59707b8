/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ep_info --live says from outside when a rank has been stopped: all other ranks name it, in
 * each format; the log names it once, at a tenth of the timeout; and nothing is left when it goes
 * on, and when the groups are gone.
 *
 *     seen EP_INFO ll
 *     seen EP_INFO ht
 *     seen EP_INFO ht_combine
 *     seen EP_INFO clean    in ncclEpMaskClean
 *     seen EP_INFO make     before ncclEpCreateGroup, in which all others wait
 *     seen EP_INFO grow     before a handle for which the group's memory grows
 */
#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/ht_bench.h"
#include "support/self.h"
#include "support/victim.h"

#define VICTIM 2
#define TIMEOUT_MS 24000.0
#define SOON (TIMEOUT_MS / 1000 / 2) /* seconds: a machine may be busy */

enum {
	FLAG_PID = 1,
	FLAG_SEEN
};

static const char *ep_info;
static char text[1 << 20];

static const char *ask(const char *options)
{
	char command[700];
	size_t n;
	FILE *f;

	/* what it loads here is none of the virtual cluster's */
	snprintf(command, sizeof(command), "env -u LD_PRELOAD '%s' %s", ep_info, options);
	f = popen(command, "r");
	NEED(f);
	n = fread(text, 1, sizeof(text) - 1, f);
	text[n] = '\0';
	CHECK_INT(pclose(f), 0);
	return text;
}

/* Files of this process; there may be one of another user's, whose process had its number. */
static int files(void)
{
	char mine[64];
	struct dirent *d;
	struct stat st;
	DIR *dir = opendir("/dev/shm");
	int n = 0;

	NEED(dir);
	snprintf(mine, sizeof(mine), "nccl-ep-live.%d.", (int)getpid());
	while ((d = readdir(dir))) {
		n += strncmp(d->d_name, mine, strlen(mine)) == 0 &&
		     fstatat(dirfd(dir), d->d_name, &st, 0) == 0 && st.st_uid == geteuid();
	}
	closedir(dir);
	return n;
}

/*
 * The part of the JSON text that this process has written; other groups of the host are there, too.
 */
static const char *mine(const char *json)
{
	static char part[1 << 16];
	char key[64];
	const char *at, *end;

	snprintf(key, sizeof(key), "\"process\": %d, \"state\"", (int)getpid());
	at = strstr(json, key);
	part[0] = '\0';
	if (at) {
		end = strstr(at + strlen(key), ", \"state\""); /* of the next one */
		snprintf(part, sizeof(part), "%.*s", (int)(end ? end - at : (long)strlen(at)), at);
	}
	return part;
}

/* Lines of this process's log that say so. `line` is the last one. */
static char line[1024];

static void keep_line(const char *said, void *arg)
{
	(void)arg;
	snprintf(line, sizeof(line), "%s", said);
}

static int lines(const char *said)
{
	return self_logged(said, keep_line, NULL);
}

/* Every format names the rank. */
static void see(struct world *w)
{
	double start = world_now();
	long victim = (long)world_look(w, FLAG_PID, VICTIM);
	char want[100];

	snprintf(want, sizeof(want), "\"waits\": [{\"rank\": %d, \"process\": %ld,", VICTIM,
		 victim);
	while (!strstr(mine(ask("--live --json")), want) && world_now() < start + SOON) {
	}
	printf("rank %d saw it after %.2f s\n", w->rank, world_now() - start);
	CHECK_HAS(mine(text), want);
	CHECK_HAS(text, "\"held_up_by\": [2]");
	CHECK_HAS(text, "\"state\": \"stopped\"");
	CHECK(world_now() < start + SOON, "after %.1f s", world_now() - start);
	snprintf(want, sizeof(want), "\n  held up by rank %d: process %ld on ", VICTIM, victim);
	CHECK_HAS(ask("--live"), want);
	snprintf(want, sizeof(want), "  %ld STOPPED ", victim);
	CHECK_HAS(text, want);
	snprintf(want, sizeof(want), "peer=\"%d\",peer_process=\"%ld\",", VICTIM, victim);
	CHECK_HAS(ask("--live --prometheus"), want);
	CHECK_HAS(text, "# TYPE nccl_ep_wait_seconds gauge\nnccl_ep_wait_seconds{group=");
	snprintf(want, sizeof(want), "still waits for rank %d (pid %ld on ", VICTIM, victim);
	while (!lines(want) && world_now() < start + SOON) {
		usleep(10000);
	}
	CHECK_INT(lines(want), 1);
	/* "...; 2.4 s of 24.0 s)" */
	CHECK(strstr(line, "; ") && atof(strstr(line, "; ") + 2) >= TIMEOUT_MS / 10000 - 0.05, "%s",
	      line);
	usleep(1000000);
	CHECK_INT(lines(want), 1);
}

/* Every format names the rank for which others wait in an exchange. */
static void see_exchange(struct world *w, unsigned int number, const char *why)
{
	double start = world_now();
	char want[160];

	snprintf(want, sizeof(want),
		 "\"exchange\": {\"number\": %u, \"for\": \"%s\", \"waits\": true,", number, why);
	while (!(strstr(mine(ask("--live --json")), want) && strstr(text, "\"held_up_by\": [2]")) &&
	       world_now() < start + SOON) {
	}
	printf("rank %d saw it after %.2f s\n", w->rank, world_now() - start);
	CHECK_HAS(mine(text), want);
	CHECK_HAS(text, "\"held_up_by\": [2]");
	CHECK(world_now() < start + SOON, "after %.1f s", world_now() - start);
	CHECK_HAS(ask("--live"), "\n  held up by rank 2");
	snprintf(want, sizeof(want), " s: exchange %u, %s\n", number, why);
	CHECK_HAS(text, want);
	CHECK_HAS(ask("--live --prometheus"), "nccl_ep_exchange_seconds{group=");
}

struct call {
	struct world *w;
	struct oracle_problem p;
	struct bench b; /* its group; NULL: it is made */
	pthread_t thread;
	bool opens;
};

static void *call_main(void *arg)
{
	struct call *c = arg;
	ncclEpGroup_t group = c->b.group;

	NEED_CUDA(cudaSetDevice(c->w->device));
	if (!group) {
		group = bench_group_bounded(c->w->comm, &c->p, 0, TIMEOUT_MS);
	}
	bench_open(&c->b, c->w, group, &c->p, 0);
	return NULL;
}

/*
 * The victim stops before it opens the bench; the others wait for it there, in an exchange of that
 * number.
 */
static void stop_and_open(struct call *c, unsigned int number, const char *why)
{
	struct world *w = c->w;

	world_meet(w);
	if (w->rank == VICTIM) {
		raise(SIGSTOP);
	} else {
		victim_await_stop();
	}
	NEED(pthread_create(&c->thread, NULL, call_main, c) == 0);
	if (w->rank != VICTIM) {
		see_exchange(w, number, why);
		world_raise(w, FLAG_SEEN, 1);
	}
	for (int r = 0; w->rank == 0 && r < w->nranks; r++) {
		NEED(r == VICTIM || world_await(w, FLAG_SEEN, r, 1, 60));
	}
	if (w->rank == 0) {
		victim_continue();
	}
	NEED(pthread_join(c->thread, NULL) == 0);
	world_meet(w);
	CHECK_HAS(mine(ask("--live --json")), "\"made\": true,");
	CHECK_HAS(mine(text), "\"waits\": false,");
	world_meet(w);
	bench_pair(&c->b);
}

static void run_make(struct world *w)
{
	struct call c = {
		.w = w,
		.p = bench_problem(w->nranks, 4 * w->nranks, 2, 64, 8, ORACLE_EXPERT_MAJOR),
	};

	stop_and_open(&c, 1, "ncclEpCreateGroup");
	bench_end(&c.b);
}

/* The exchanges that have made the group are counted, too. */
static uint32_t exchanges(void)
{
	const char *at = strstr(mine(ask("--live --json")), "\"exchange\": {\"number\": ");

	NEED(at);
	return (uint32_t)strtoul(strchr(at, '{') + strlen("{\"number\": "), NULL, 10);
}

static void run_grow(struct world *w)
{
	struct oracle_problem p =
		bench_problem(w->nranks, 4 * w->nranks, 14, 64, 8, ORACLE_EXPERT_MAJOR);
	ncclEpGroupConfig_t config = bench_group_config(&p, 0);
	struct call c = { .w = w, .p = p };

	config.num_topk = 1;
	NEED_OK(ncclEpCreateGroup(&c.b.group, w->comm, &config));
	stop_and_open(&c, exchanges() + 1, "making a handle for which the group's memory gr");
	bench_end(&c.b);
}

/*
 * The victim stops before its second dispatch; others have made theirs. `step` makes an operation,
 * `check` waits; its call shows so many tokens.
 */
static void stop_and_see(struct world *w, void (*step)(void *), void (*check)(void *), void *arg,
			 const char *call, uint32_t tokens)
{
	char want[64], routing[32];

	step(arg);
	check(arg);
	CHECK_INT(files(), 1);
	world_raise(w, FLAG_PID, (uint64_t)getpid());
	world_meet(w);
	if (w->rank == VICTIM) {
		raise(SIGSTOP);
	} else {
		victim_await_stop();
	}
	step(arg);
	if (w->rank != VICTIM) {
		see(w);
		world_raise(w, FLAG_SEEN, 1);
	}
	for (int r = 0; w->rank == 0 && r < w->nranks; r++) {
		NEED(r == VICTIM || world_await(w, FLAG_SEEN, r, 1, 60));
	}
	if (w->rank == 0) {
		victim_continue();
	}
	check(arg);
	world_meet(w);
	CHECK_HAS(mine(ask("--live --json")), "\"waits\": []");
	snprintf(want, sizeof(want), "\"call\": \"%s\"", call);
	CHECK_HAS(mine(text), want);
	snprintf(routing, sizeof(routing), ", \"tokens\": %u}", tokens);
	CHECK_HAS(strstr(mine(text), want), routing);
	world_meet(w);
}

static void ll_step(void *arg)
{
	struct bench *b = arg;

	bench_poison(b);
	OK(bench_dispatch(b, b->w->stream));
}

static void ll_check(void *arg)
{
	struct bench *b = arg;

	NEED_CUDA(cudaStreamSynchronize(b->w->stream));
	bench_check_dispatch(b);
}

static void run_ll(struct world *w)
{
	struct oracle_problem p =
		bench_problem(w->nranks, 4 * w->nranks, 2, 64, 8, ORACLE_EXPERT_MAJOR);
	struct bench b;

	bench_open(&b, w, bench_group_bounded(w->comm, &p, 0, TIMEOUT_MS), &p, 0);
	OK(bench_update(&b, w->stream));
	stop_and_see(w, ll_step, ll_check, &b, "ncclEpDispatch", p.tokens);
	bench_end(&b);
}

static void ht_dispatch_step(void *arg)
{
	struct ht_bench *b = arg;

	ht_poison(b);
	OK(ht_dispatch(b, false, b->w->stream));
}

static void ht_dispatch_check(void *arg)
{
	struct ht_bench *b = arg;

	NEED_CUDA(cudaStreamSynchronize(b->w->stream));
	ht_check_dispatch(b, false);
}

static void ht_combine_step(void *arg)
{
	struct ht_bench *b = arg;

	ht_poison(b);
	ht_expert_work(b);
	OK(ht_combine(b, false, b->w->stream));
}

static void ht_combine_check(void *arg)
{
	struct ht_bench *b = arg;

	NEED_CUDA(cudaStreamSynchronize(b->w->stream));
	ht_check_combine(b, false);
}

static void run_ht(struct world *w, bool combine)
{
	struct ht_bench b;
	struct oracle_ht h = { .limit = (uint32_t)w->nranks * 100 };

	h.p = (struct oracle_problem){ .seed = 11,
				       .nranks = (uint32_t)w->nranks,
				       .experts = 12,
				       .topk = 4,
				       .hidden = 512,
				       .tokens = 96,
				       .max_tokens = 100,
				       .dtype = ORACLE_BF16 };
	ht_open(&b, w, ht_group(w, &h, 0, TIMEOUT_MS), &h, 0);
	OK(ht_update(&b, w->stream));
	if (combine) {
		ht_dispatch_step(&b);
		ht_dispatch_check(&b);
		stop_and_see(w, ht_combine_step, ht_combine_check, &b, "ncclEpCombine", h.p.tokens);
	} else {
		stop_and_see(w, ht_dispatch_step, ht_dispatch_check, &b, "ncclEpDispatch",
			     h.p.tokens);
	}
	ht_end(&b);
}

struct clean {
	struct bench b;
	pthread_t thread;
};

static void *clean_main(void *arg)
{
	struct clean *c = arg;

	NEED_CUDA(cudaSetDevice(c->b.w->device));
	OK(ncclEpMaskClean(c->b.group, c->b.w->stream));
	return NULL;
}

static void clean_step(void *arg)
{
	struct clean *c = arg;

	NEED(pthread_create(&c->thread, NULL, clean_main, c) == 0);
}

static void clean_check(void *arg)
{
	struct clean *c = arg;

	NEED(pthread_join(c->thread, NULL) == 0);
}

/* It waits for the other ranks before it returns. */
static void run_clean(struct world *w)
{
	struct oracle_problem p =
		bench_problem(w->nranks, 4 * w->nranks, 2, 64, 8, ORACLE_EXPERT_MAJOR);
	struct clean c;

	bench_open(&c.b, w, bench_group_bounded(w->comm, &p, BENCH_MASK, TIMEOUT_MS), &p,
		   BENCH_MASK);
	stop_and_see(w, clean_step, clean_check, &c, "ncclEpMaskClean", 0);
	bench_pair(&c.b);
	bench_end(&c.b);
}

/* Without a file, kernels and calls do as well. */
static void run_hidden(struct world *w)
{
	struct oracle_problem p =
		bench_problem(w->nranks, 4 * w->nranks, 2, 64, 8, ORACLE_EXPERT_MAJOR);
	struct bench b;

	world_setenv(w, "NCCL_EP_LIVE", "0");
	bench_open(&b, w, bench_group_bounded(w->comm, &p, 0, TIMEOUT_MS), &p, 0);
	bench_pair(&b);
	CHECK_INT(files(), 0);
	bench_end(&b);
}

static void run(struct world *w, void *arg)
{
	if (strcmp(arg, "ht") == 0) {
		run_ht(w, false);
	} else if (strcmp(arg, "ht_combine") == 0) {
		run_ht(w, true);
	} else if (strcmp(arg, "clean") == 0) {
		run_clean(w);
	} else if (strcmp(arg, "make") == 0) {
		run_make(w);
	} else if (strcmp(arg, "grow") == 0) {
		run_grow(w);
	} else {
		run_ll(w);
	}
	CHECK_INT(files(), 0);
	run_hidden(w);
}

int main(int argc, char **argv)
{
	NEED(argc == 3 && world_launched());
	ep_info = argv[1];
	victim_start(VICTIM, false);
	self_log("WARN");
	world_run(world_size(4), run, argv[2]);
	return check_end();
}
