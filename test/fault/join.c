/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ncclEpExtReplaceRanks and ncclEpExtJoinGroup: two ranks are killed and replaced together, in a
 * group whose memory has grown before and grows afterwards; and what cannot be is refused by name,
 * after which the group serves as before.
 *
 *     join
 *     join roles                     the same where not all ranks hold experts, nor all bring
 *                                    tokens
 *     join at_once                   one rank, masked by hand: nothing runs without it, and it
 *                                    comes late to MaskClean
 *     join at_once_two               the same with two ranks, which come late together
 *     join apart                     the one that comes has no NVLink, and is refused
 *     join refused TEXT [ht|plain]   all ranks but the last one are refused with these words, in
 *                                    this kind of group
 *
 * Each process stands for two lives of its rank: the first one is a child, which is killed on the
 * last ranks.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "support/bench.h"
#include "support/ht_bench.h"
#include "support/roles.h"
#include "support/victim.h"
#include "support/watch.h"

#define RANKS_MAX 8
#define COMMS 16
#define TIMEOUT_MS 3000.0
#define PATIENCE_S 60.0
#define TARDY_US 2300000 /* longer than MaskClean waits for a masked rank */

struct plane {
	ncclUniqueId id[COMMS];
	_Atomic uint32_t made; /* ids so far */
	_Atomic uint32_t met[RANKS_MAX];
	uint32_t comms;         /* in the first life of all */
	_Atomic uint32_t again; /* ranks in their second life */
};

static struct plane *plane;
static struct world w;
static struct bench b;
static uint32_t comms, meetings;
static const char no_nvlink[] = "is not joined to all others by NVLink";
static bool at_once, apart, id_given; /* the next communicator has its id */
static bool roles; /* rank 0 holds no experts, and the last one brings no tokens */
static int lost;   /* the last ranks */

static void nap(double start)
{
	NEED(world_now() - start < PATIENCE_S);
	usleep(1000);
}

/* The ranks below `ranks`. */
static void meet(int ranks)
{
	double start = world_now();

	atomic_store(&plane->met[w.rank], ++meetings);
	for (int r = 0; r < ranks; r++) {
		while ((int32_t)(atomic_load(&plane->met[r]) - meetings) < 0) {
			nap(start);
		}
	}
}

static ncclComm_t comm_make(void)
{
	uint32_t number = comms++;
	double start = world_now();
	ncclComm_t comm;

	NEED(number < COMMS);
	if (w.rank == 0) {
		if (!id_given) {
			NEED_OK(ncclGetUniqueId(&plane->id[number]));
		}
		id_given = false;
		atomic_store(&plane->made, number + 1);
	}
	while (atomic_load(&plane->made) <= number) {
		nap(start);
	}
	NEED_OK(ncclCommInitRank(&comm, w.nranks, plane->id[number], w.rank));
	return comm;
}

static struct oracle_problem problem(uint32_t topk)
{
	uint32_t n = (uint32_t)w.nranks, experts = n * (n - 1);
	struct oracle_problem p =
		bench_problem(w.nranks, experts, topk, 256, 6, ORACLE_EXPERT_MAJOR);

	p.first_holder = roles;
	p.holders = p.senders = roles ? n - 1 : 0;
	return p;
}

/* Handles of top-2 make its memory grow, and those of top-3 again. */
static ncclEpGroupConfig_t config_of(bool mask)
{
	struct oracle_problem p = problem(1);
	ncclEpGroupConfig_t config = bench_group_config(&p, mask ? BENCH_MASK : 0);

	config.max_num_sms = mask ? 8 : 2;
	config.timeout_ns = (uint64_t)(TIMEOUT_MS * 1e6);
	return config;
}

static void open_bench(uint32_t topk)
{
	struct oracle_problem p = problem(topk);
	ncclEpGroup_t group = b.group;

	bench_open(&b, &w, group, &p, BENCH_MASK);
}

static void begin(void)
{
	NEED(w.nranks >= 4 && w.nranks <= RANKS_MAX);
	w.device = (int)world_number(getenv("LOCAL_RANK"), 0);
	NEED_CUDA(cudaSetDevice(w.device));
	NEED_CUDA(cudaStreamCreateWithFlags(&w.stream, cudaStreamNonBlocking));
}

/* ---- what is refused while nobody is lost ---- */

enum part {
	STAY,
	JOIN,
	CREATE
};

static ncclResult_t join_group(ncclEpGroup_t *group, ncclComm_t comm,
			       const ncclEpGroupConfig_t *config)
{
	struct oracle_problem p = problem(1);
	ncclEpExtRoles_t own;

	return ncclEpExtJoinGroup(group, comm, config, roles_of(&p, &own));
}

static ncclResult_t create_group(ncclEpGroup_t *group, ncclComm_t comm,
				 const ncclEpGroupConfig_t *config)
{
	struct oracle_problem p = problem(1);
	ncclEpExtRoles_t own;

	return ncclEpExtCreateGroup(group, comm, config, roles_of(&p, &own));
}

/*
 * The last rank makes `last`'s call, the others ncclEpExtReplaceRanks. The words of this rank's
 * error must have `part`.
 */
static void refuse(enum part last, const ncclEpGroupConfig_t *config, ncclResult_t want,
		   const char *part)
{
	enum part mine = w.rank == w.nranks - 1 ? last : STAY;
	ncclComm_t comm = comm_make();
	ncclEpGroup_t group = NULL;
	ncclResult_t result;

	check_context("rank %d: %s", w.rank, part);
	result = mine == STAY   ? ncclEpExtReplaceRanks(b.group, comm)
		 : mine == JOIN ? join_group(&group, comm, config)
				: create_group(&group, comm, config);
	CHECK_INT(result, want);
	CHECK_LAST(mine == STAY ? b.group : NULL, want, part);
	OK(ncclCommAbort(comm));
}

static ncclUniqueId beside_id;

/* The last rank joins in a thread of rank 0's process. */
static void *beside_main(void *arg)
{
	ncclEpGroupConfig_t config = config_of(true);
	ncclEpGroup_t group = NULL;
	ncclComm_t comm;

	(void)arg;
	check_context("the last rank in the process of rank 0");
	NEED_CUDA(cudaSetDevice(w.nranks - 1));
	NEED_OK(ncclCommInitRank(&comm, w.nranks, beside_id, w.nranks - 1));
	CHECK_REASON(join_group(&group, comm, &config), ncclInvalidUsage,
		     "joins in the process of rank 0");
	OK(ncclCommAbort(comm));
	return NULL;
}

static void refuse_beside(void)
{
	pthread_t thread;

	if (w.rank == w.nranks - 1) {
		comms++;
		return;
	}
	if (w.rank == 0) {
		NEED_OK(ncclGetUniqueId(&plane->id[comms]));
		beside_id = plane->id[comms];
		NEED(!pthread_create(&thread, NULL, beside_main, NULL));
		id_given = true;
	}
	refuse(STAY, NULL, ncclInvalidUsage, "joins in the process of rank 0");
	if (w.rank == 0) {
		NEED(!pthread_join(thread, NULL));
	}
}

static void mask_last(int ranks, int active)
{
	int mask[RANKS_MAX];

	for (int r = 0; r < w.nranks; r++) {
		mask[r] = r < w.nranks - ranks || r == w.rank || active;
	}
	OK(ncclEpMaskUpdate(b.group, mask, w.stream));
	NEED_CUDA(cudaStreamSynchronize(w.stream));
}

static void refuse_all(void)
{
	bool given = roles;
	ncclEpGroupConfig_t config = config_of(true), other = config, few = config;
	ncclResult_t last = w.rank == w.nranks - 1 ? ncclRemoteError : ncclInvalidUsage;

	other.num_experts *= 2;
	refuse(STAY, NULL, ncclInvalidUsage, "none joins");
	refuse(CREATE, &config, ncclInvalidUsage, "calls ncclEpCreateGroup, but rank 0 ");
	refuse(JOIN, &other, ncclInvalidArgument, "config->num_experts");
	roles = !roles && w.rank == w.nranks - 1; /* of a newcomer alone */
	refuse(JOIN, &config, ncclInvalidArgument, "roles->first_holder is ");
	roles = given;
	few.max_num_sms /= 2;
	refuse(JOIN, &few, ncclInvalidUsage, "SMs for an operation");
	refuse_beside();
	refuse(JOIN, &config, last, "its place is taken");
	meet(w.nranks);
	mask_last(1, 0);
	refuse(JOIN, &config, last, "process (pid");
	meet(w.nranks);
	mask_last(1, 1);
	meet(w.nranks);
	bench_pair_of(&b, 3);
}

static int refused(const char *part, const char *kind)
{
	struct oracle_ht h = { .p = problem(2) };
	ncclEpGroupConfig_t config = !strcmp(kind, "ht") ? ht_group_config(&h, 0)
							 : config_of(strcmp(kind, "plain") != 0);
	ncclResult_t result;
	ncclComm_t comm;

	begin();
	w.comm = comm_make();
	NEED_OK(ncclEpCreateGroup(&b.group, w.comm, &config));
	comm = comm_make();
	if (w.rank == w.nranks - 1) {
		ncclEpGroup_t group = NULL;

		result = ncclEpExtJoinGroup(&group, comm, &config, NULL);
	} else {
		result = ncclEpExtReplaceRanks(b.group, comm);
	}
	CHECK_INT(result, w.rank == w.nranks - 1 ? ncclRemoteError : ncclInvalidUsage);
	CHECK_LAST(NULL, result, part);
	OK(ncclEpGroupDestroy(b.group));
	OK(ncclCommAbort(comm));
	OK(ncclCommDestroy(w.comm));
	return check_end();
}

/* ---- ranks are lost ---- */

/* Until the survivors have masked all of them. */
static void lose(void)
{
	uint64_t all = ((UINT64_C(1) << lost) - 1) << (w.nranks - lost);
	double start = world_now(), seconds;

	while (atomic_load(&plane->again) < (uint32_t)lost) {
		nap(start);
	}
	if (at_once) {
		mask_last(lost, 0);
		return;
	}
	while (bench_masked(&w, b.group) != all) {
		CHECK_INT(victim_pair(&b, false, &seconds), ncclSuccess);
		nap(start);
	}
	b.p.absent = all;
	bench_pair_of(&b, 4);
}

/* The memory cannot grow where a driver refuses to map: all ranks know so, and go on without. */
static void refuse_growth(void)
{
	ncclEpHandle_t handle = NULL;

	check_context("rank %d, growth", w.rank);
	if (w.rank == 1) {
		setenv("VC_NO_RETAIN", "1", 1);
		watch_start();
		watch.fail_at[WATCH_IPC_OPEN] = 1;
	}
	CHECK_REASON(ncclEpInitHandle(&handle, b.group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 3, NULL),
		     w.rank == 1 ? ncclUnhandledCudaError : ncclRemoteError,
		     "cannot map memory of");
	unsetenv("VC_NO_RETAIN");
	watch_start();
	bench_pair_of(&b, 9);
}

static void together(void)
{
	NEED_OK(ncclEpMaskClean(b.group, w.stream));
	CHECK_INT(bench_masked(&w, b.group), 0);
	b.p.absent = 0;
	bench_pair_of(&b, 5);
	refuse_growth();
	bench_close(&b);
	open_bench(3); /* the memory grows, by the communicator that all have now */
	bench_pair_of(&b, 6);
	bench_end(&b);
	OK(ncclCommDestroy(w.comm));
}

static int first_life(void)
{
	ncclEpGroupConfig_t config = config_of(true);
	ncclComm_t comm;

	begin();
	w.comm = comm_make();
	NEED_OK(create_group(&b.group, w.comm, &config));
	open_bench(2);
	bench_pair_of(&b, 2);
	refuse_all();
	refuse_growth(); /* nor by CUDA IPC, and ranks can join all the same */
	check_context("rank %d", w.rank);
	plane->comms = comms;
	meet(w.nranks);
	if (w.rank >= w.nranks - lost) {
		raise(SIGKILL);
	}
	lose();
	comm = comm_make();
	if (apart) {
		CHECK_REASON(ncclEpExtReplaceRanks(b.group, comm), ncclRemoteError, no_nvlink);
		bench_pair_of(&b, 8);
		bench_end(&b);
		OK(ncclCommAbort(comm));
		OK(ncclCommAbort(w.comm));
		return check_end();
	}
	NEED_OK(ncclEpExtReplaceRanks(b.group, comm));
	OK(ncclCommAbort(w.comm));
	w.comm = comm;
	if (!at_once) {
		bench_pair_of(&b, 7); /* still without them */
	}
	meet(w.nranks - lost);
	together();
	return check_end();
}

static int second_life(void)
{
	ncclEpGroupConfig_t config = config_of(true);
	double start = world_now();

	begin();
	atomic_fetch_add(&plane->again, 1);
	comms = plane->comms;
	w.comm = comm_make();
	if (apart) {
		CHECK_REASON(join_group(&b.group, w.comm, &config), ncclInvalidUsage, no_nvlink);
		OK(ncclCommAbort(w.comm));
		return check_end();
	}
	NEED_OK(join_group(&b.group, w.comm, &config));
	open_bench(2);
	while (atomic_load(&plane->met[0]) <= atomic_load(&plane->met[w.rank])) {
		nap(start);
	}
	usleep(at_once ? TARDY_US : 0);
	together();
	return check_end();
}

int main(int argc, char **argv)
{
	pid_t parent = getpid(), child;
	int status;
	bool two;

	NEED(world_launched());
	plane = world_shared("plane", sizeof(*plane));
	w.nranks = world_size(0);
	w.rank = (int)world_number(getenv("RANK"), 0);
	two = argc == 2 && !strcmp(argv[1], "at_once_two");
	at_once = two || (argc == 2 && !strcmp(argv[1], "at_once"));
	roles = argc == 2 && !strcmp(argv[1], "roles");
	apart = argc == 2 && !at_once && !roles;
	lost = argc == 2 && !two && !roles ? 1 : 2;
	if (argc >= 3) {
		return refused(argv[2], argc > 3 ? argv[3] : "");
	}
	child = fork();
	NEED(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		return getppid() == parent ? first_life() : 1;
	}
	NEED(waitpid(child, &status, 0) == child);
	if (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) {
		setenv("VC_NO_NVLINK", apart ? "0-3" : "", 1);
		return second_life();
	}
	return WIFEXITED(status) ? WEXITSTATUS(status) : 1;
}
