/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exchanges of the bootstrap that fail: on an error of CUDA while NCCL has the memory, and without
 * the others. Which error stands, and what may be freed. And NCCL's call: how long the one may take
 * in which NCCL connects the ranks, what its thread has of its caller, and what becomes of it
 * between ncclGroupStart and ncclGroupEnd.
 */
#include <cuda.h>
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <unistd.h>
#include "core/bootstrap.h"
#include "core/nccl_dyn.h"
#include "support/world.h"

#define RANKS 2
#define SECOND 1000000000ull

static __thread bool query_fails, no_threads;

/* In place of the runtime's. */
cudaError_t cudaStreamQuery(cudaStream_t stream)
{
	cudaError_t (*query)(cudaStream_t) =
		(cudaError_t(*)(cudaStream_t))dlsym(RTLD_NEXT, "cudaStreamQuery");

	return query_fails ? cudaErrorUnknown : query(stream);
}

/* The bootstrap is in this program, and the stand-ins, which make threads, too, are not. */
static bool of_program(const void *code)
{
	Dl_info its, ours;

	return dladdr(code, &its) && dladdr((const void *)of_program, &ours) &&
	       its.dli_fbase == ours.dli_fbase;
}

/* In place of the C library's. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
	int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

	if (no_threads && of_program(__builtin_return_address(0))) {
		return EAGAIN;
	}
	*(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
	return create(thread, attr, fn, arg);
}

/* Where NCCL's collective was called last by a thread of this rank's library. */
static struct {
	pthread_t thread;
	unsigned long long context;
} called[RANKS];

static unsigned long long context_here(void)
{
	CUresult (*get_id)(CUcontext, unsigned long long *) = NULL;
	unsigned long long id = 0;

	NEED_CUDA(cudaGetDriverEntryPointByVersion("cuCtxGetId", (void **)&get_id, 12000,
						   cudaEnableDefault, NULL));
	CHECK(get_id && get_id(NULL, &id) == CUDA_SUCCESS);
	return id;
}

/* In place of NCCL's. */
ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
			   ncclComm_t comm, cudaStream_t stream)
{
	ncclResult_t (*gather)(const void *, void *, size_t, ncclDataType_t, ncclComm_t,
			       cudaStream_t);
	int rank = 0;

	*(void **)&gather = dlsym(RTLD_NEXT, "ncclAllGather");
	OK(ncclCommUserRank(comm, &rank));
	called[rank].thread = pthread_self();
	called[rank].context = context_here();
	return gather(send, recv, count, type, comm, stream);
}

static void open_all(struct ep_boot *boot, ncclComm_t comm, uint64_t timeout_ns)
{
	ncclResult_t mine = ncclSuccess;

	NEED_OK(ep_boot_open(boot, comm, timeout_ns, &mine));
	NEED_OK(mine);
}

/* The other rank does not come: a rank that has an error of its own keeps that. */
static void own_error(struct world *w, ncclComm_t comm)
{
	struct ep_error last;
	struct ep_boot boot;

	check_context("an error of its own");
	open_all(&boot, comm, SECOND);
	if (w->rank == 0) {
		CHECK_INT(ep_boot_agree(&boot, ep_fail(ncclInvalidArgument, "mine is wrong"),
					"a test"),
			  ncclInvalidArgument);
		ep_error_get(NULL, &last);
		CHECK_INT(last.code, ncclInvalidArgument);
		CHECK_HAS(last.text, "mine is wrong");
		CHECK(boot.stuck);
	}
	world_meet(w);
	OK(ncclCommAbort(comm));
	ep_boot_rest(&boot, w->device);
	ep_boot_close(&boot);
}

/*
 * CUDA fails to report whether NCCL is through with the memory: then it is not, for all that is
 * known.
 */
static void unknown(struct world *w)
{
	uint32_t mine = 7;
	struct ep_boot boot;

	check_context("an error of CUDA");
	open_all(&boot, w->comm, 60 * SECOND);
	if (w->rank == 0) {
		query_fails = true;
		CHECK_REASON(ep_boot_allgather(&boot, &mine, boot.all, sizeof(mine), "a test"),
			     ncclUnhandledCudaError, "a test failed");
		query_fails = false;
		CHECK(boot.stuck);
		CHECK_REASON(ep_boot_allgather(&boot, &mine, boot.all, sizeof(mine), "a test"),
			     ncclUnhandledCudaError, "a test failed"); /* it stands */
	}
	world_meet(w);
	if (w->rank) {
		OK(ep_boot_allgather(&boot, &mine, boot.all, sizeof(mine), "a test"));
		CHECK_INT(*(uint32_t *)boot.all, 7); /* of rank 0, whose memory was there */
	}
	ep_boot_rest(&boot, w->device);
	ep_boot_close(&boot);
}

/* Each exchange has a thread, which has its caller's context. */
static void same_context(struct world *w)
{
	ncclComm_t comm = world_comm(w, (1u << RANKS) - 1);
	uint32_t mine = 7;
	struct ep_boot boot;

	check_context("the context");
	open_all(&boot, comm, 60 * SECOND);
	for (int i = 0; i < 2; i++) {
		OK(ep_boot_allgather(&boot, &mine, boot.all, sizeof(mine), "a test"));
		CHECK_INT(!pthread_equal(called[w->rank].thread, pthread_self()), 1);
		CHECK(called[w->rank].context == context_here());
	}
	ep_boot_close(&boot);
	OK(ncclCommDestroy(comm));
}

/* What the other rank makes of an exchange of the library, of this rank's number. */
static ncclResult_t gather_bare(struct world *w, ncclComm_t comm, uint32_t **all)
{
	ncclResult_t result;

	NEED_CUDA(cudaMallocHost((void **)all, RANKS * sizeof(**all)));
	memset(*all, 0, RANKS * sizeof(**all));
	result = ncclAllGather(*all + w->rank, *all, sizeof(**all), ncclUint8, comm, w->stream);
	while (result == ncclInProgress) {
		usleep(1000);
		OK(ncclCommGetAsyncError(comm, &result));
	}
	return result;
}

/* NCCL only remembers what the caller's thread calls; exchanges take place all the same. */
static void in_group(struct world *w)
{
	ncclComm_t comm = world_comm(w, (1u << RANKS) - 1);
	struct ep_boot boot;

	check_context("between ncclGroupStart and ncclGroupEnd");
	OK(ncclGroupStart());
	open_all(&boot, comm, 60 * SECOND);
	for (uint32_t i = 0; i < 2; i++) {
		uint32_t mine = 7 + i + (uint32_t)w->rank;

		OK(ep_boot_allgather(&boot, &mine, boot.all, sizeof(mine), "a test"));
		for (uint32_t r = 0; r < RANKS; r++) {
			CHECK_INT(((uint32_t *)boot.all)[r], 7 + i + r);
		}
	}
	OK(ncclGroupEnd());
	ep_boot_close(&boot);
	OK(ncclCommDestroy(comm));
}

/* NCCL keeps the exchange until ncclGroupEnd, and the library the memory. */
static void kept(struct ep_boot *boot, ncclResult_t code, const char *words)
{
	uint32_t mine = 7;

	CHECK_REASON(ep_boot_allgather(boot, &mine, boot->all, sizeof(mine), "a test"), code,
		     words);
	CHECK(!boot->stuck && !boot->all);
}

/* There is no thread for the exchange: the caller's makes it, but not within a group of NCCL's. */
static void no_thread(struct world *w)
{
	ncclComm_t comm = world_comm(w, (1u << RANKS) - 1);
	uint32_t mine = 7;
	struct ep_boot boot;

	check_context("no thread");
	open_all(&boot, comm, 60 * SECOND);
	no_threads = true;
	OK(ep_boot_allgather(&boot, &mine, boot.all, sizeof(mine), "a test"));
	OK(ncclGroupStart());
	kept(&boot, ncclSystemError,
	     w->rank ? "since rank 1 has no thread to make it: Resource temporarily unavailable"
		     : "since rank 0 has no thread to make it: Resource temporarily unavailable");
	no_threads = false;
	OK(ncclGroupEnd());
	ep_boot_close(&boot);
	OK(ncclCommDestroy(comm));
}

/* Calls on the communicator wait for the group's end, and NCCL puts the exchange behind them. */
static void behind(struct world *w)
{
	ncclComm_t comm = world_comm(w, (1u << RANKS) - 1);
	struct ep_boot boot;
	uint32_t *all;

	check_context("behind calls that wait for ncclGroupEnd");
	OK(ncclGroupStart());
	OK(gather_bare(w, comm, &all));
	open_all(&boot, comm, 60 * SECOND);
	kept(&boot, ncclInvalidUsage, "calls on this communicator wait for ncclGroupEnd");
	ep_boot_close(&boot);
	all[w->rank] = 9 + (uint32_t)w->rank;
	OK(ncclGroupEnd());
	OK(ncclCommDestroy(comm)); /* both exchanges have ended */
	CHECK_INT(all[!w->rank], 9 + !w->rank);
	NEED_CUDA(cudaFreeHost(all));
}

static void CUDART_CB nap(void *us)
{
	usleep(*(useconds_t *)us);
}

/*
 * The other rank connects when most of the time is over, and its GPU is late: that is one limit,
 * not two.
 */
static void one_limit(struct world *w)
{
	ncclComm_t comm = world_comm(w, (1u << RANKS) - 1);
	useconds_t late_us = 3000000;
	uint32_t mine = 7, *all;
	struct ep_boot boot;
	double start;

	check_context("one limit");
	world_meet(w);
	if (w->rank == 0) {
		open_all(&boot, comm, SECOND);
		start = world_now();
		CHECK_REASON(ep_boot_allgather(&boot, &mine, boot.all, sizeof(mine), "a test"),
			     ncclRemoteError, "its collective still waits on the device");
		CHECK(world_now() - start < 1.4, "%.2f s", world_now() - start);
		ep_boot_rest(&boot, w->device);
		ep_boot_close(&boot);
	} else {
		usleep(700000);
		NEED_CUDA(cudaLaunchHostFunc(w->stream, nap, &late_us));
		OK(gather_bare(w, comm, &all));
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		CHECK_INT(all[0], 7);
		NEED_CUDA(cudaFreeHost(all));
	}
	world_meet(w);
	OK(ncclCommDestroy(comm));
}

/* Gives back what the exchange has left, as the library's thread does. */
static void give_back(struct world *w, struct ep_boot *boot)
{
	CHECK(boot->stuck && !boot->unsent);
	ep_boot_rest(boot, w->device);
	ep_boot_close(boot);
}

/*
 * The other rank comes when this one's exchange has failed. If the communicator does not block its
 * callers NCCL's thread still has the stream and the memory, and goes on with them; else a thread
 * of the library is in the call.
 */
static void after_all(struct world *w, bool blocks)
{
	static ncclUniqueId id;
	ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
	uint32_t mine = 7, *all;
	struct ep_boot boot;
	ncclComm_t comm;

	check_context("it comes after all, blocks: %d", blocks);
	if (w->rank == 0) {
		NEED_OK(ncclGetUniqueId(&id));
	}
	world_meet(w);
	config.blocking = blocks;
	NEED_OK(ncclCommInitRankConfig(&comm, RANKS, id, w->rank, &config));
	if (w->rank == 0) {
		open_all(&boot, comm, SECOND);
		CHECK_REASON(ep_boot_allgather(&boot, &mine, boot.all, sizeof(mine), "a test"),
			     ncclRemoteError,
			     blocks ? "NCCL's call still waits in a thread"
				    : "its collective still waits in a thread of NCCL's");
		if (!blocks) {
			give_back(w, &boot);
		}
	}
	world_meet(w);
	if (w->rank) {
		OK(gather_bare(w, comm, &all));
		NEED_CUDA(cudaStreamSynchronize(w->stream));
		CHECK_INT(all[0], 7);
		NEED_CUDA(cudaFreeHost(all));
	} else if (blocks) {
		give_back(w, &boot);
	}
	world_meet(w);
	OK(ncclCommAbort(comm));
}

static void run(struct world *w, void *arg)
{
	ncclComm_t absent = world_comm(w, (1u << RANKS) - 1);

	NEED_OK(ep_nccl_need("a test"));
	own_error(w, absent);
	unknown(w);
	in_group(w);
	behind(w);
	no_thread(w);
	world_setenv(w, "VC_NCCL_CONNECT", "1");
	same_context(w);
	one_limit(w);
	after_all(w, false);
	after_all(w, true);
}

int main(void)
{
	world_run(RANKS, run, NULL);
	return check_end();
}
