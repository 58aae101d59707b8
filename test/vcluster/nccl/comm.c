/* SPDX-License-Identifier: Apache-2.0 */
/* Communicators: unique id, rendezvous, the bounded barrier, groups of calls. */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "cuda/runtime.h"
#include "nccl/comm.h"

#define VC_NCCL_TIMEOUT_S 60
#define VC_NCCL_VERSION 22907
#define VC_ID_MAGIC "vcluster:"

static __thread char vc_last_text[512];
static struct ncclComm *vc_comms;
static pthread_mutex_t vc_comms_mutex = PTHREAD_MUTEX_INITIALIZER;

ncclResult_t vc_nccl_error(struct ncclComm *comm, ncclResult_t result, const char *fmt, ...)
{
	va_list list;

	va_start(list, fmt);
	vsnprintf(vc_last_text, sizeof(vc_last_text), fmt, list);
	va_end(list);
	if (getenv("NCCL_DEBUG")) {
		fprintf(stderr, "vcluster: rank %d: NCCL WARN %s\n", comm ? comm->rank : vc_rank(),
			vc_last_text);
	}
	return result;
}

/* A collective has failed: the communicator is of no use any more. Under its mutex. */
static void vc_nccl_broken(struct ncclComm *comm, ncclResult_t result)
{
	if (!atomic_load(&comm->error)) {
		memcpy(comm->cause, vc_last_text, sizeof(comm->cause));
		atomic_store(&comm->error, (int)result);
	}
}

const char *ncclGetLastError(ncclComm_t comm)
{
	return comm && atomic_load(&comm->error) ? comm->cause : vc_last_text;
}

const char *ncclGetErrorString(ncclResult_t result)
{
	static const char *const text[] = {
		[ncclSuccess] = "no error",
		[ncclUnhandledCudaError] = "unhandled cuda error",
		[ncclSystemError] = "unhandled system error",
		[ncclInternalError] = "internal error",
		[ncclInvalidArgument] = "invalid argument",
		[ncclInvalidUsage] = "invalid usage",
		[ncclRemoteError] = "remote process exited or there was a network error",
		[ncclInProgress] = "NCCL operation in progress",
	};

	return (size_t)result < sizeof(text) / sizeof(*text) ? text[result] : "unknown result code";
}

long vc_nccl_version(void)
{
	return vc_env_long("VC_NCCL_VERSION", VC_NCCL_VERSION);
}

ncclResult_t ncclGetVersion(int *version)
{
	if (!version) {
		return vc_nccl_error(NULL, ncclInvalidArgument, "version is NULL");
	}
	*version = (int)vc_nccl_version();
	return ncclSuccess;
}

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
	const char *dir = getenv("VC_DIR");
	uint64_t random;
	int fd;

	if (!id) {
		return vc_nccl_error(NULL, ncclInvalidArgument, "uniqueId is NULL");
	}
	memset(id, 0, sizeof(*id));
	if (getrandom(&random, sizeof(random), 0) != sizeof(random) ||
	    snprintf(id->internal, sizeof(id->internal), VC_ID_MAGIC "%s/nccl-%016llx",
		     dir ? dir : "/dev/shm",
		     (unsigned long long)random) >= (int)sizeof(id->internal)) {
		return vc_nccl_error(NULL, ncclSystemError, "no unique id: VC_DIR too long?");
	}
	fd = open(id->internal + strlen(VC_ID_MAGIC), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600);
	if (fd < 0) {
		return vc_nccl_error(NULL, ncclSystemError, "%s: %s",
				     id->internal + strlen(VC_ID_MAGIC), strerror(errno));
	}
	close(fd);
	return ncclSuccess;
}

ncclResult_t vc_comm_check(const struct ncclComm *comm)
{
	const struct ncclComm *at;

	pthread_mutex_lock(&vc_comms_mutex);
	for (at = vc_comms; at && at != comm; at = at->next) {
	}
	pthread_mutex_unlock(&vc_comms_mutex);
	if (!at || at->magic != VC_COMM_MAGIC) {
		return vc_nccl_error(NULL, ncclInvalidArgument, "comm %p is not a communicator",
				     (const void *)comm);
	}
	return ncclSuccess;
}

#define VC_BELL_NS 50000000 /* a member that has died rings no bell */

static void vc_bell_ring(struct vc_shared *shared)
{
	atomic_fetch_add(&shared->bell, 1);
	syscall(SYS_futex, &shared->bell, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

/*
 * `waited_ns`: how long the caller has waited. With a clock naps take no time where all ranks wait.
 */
static void vc_bell_wait(struct vc_shared *shared, uint32_t seen, uint64_t waited_ns)
{
	struct timespec nap = { .tv_nsec = VC_BELL_NS };
	uint64_t ns = waited_ns / 16 < 50000 ? 50000 : waited_ns / 16;

	if (vc_clock) {
		vc_nap(VC_WAIT_WORD, ns < VC_BELL_NS ? ns : VC_BELL_NS);
		return;
	}
	syscall(SYS_futex, &shared->bell, FUTEX_WAIT, seen, &nap, NULL, 0);
}

/* Has the process of this rank ended? */
static bool vc_member_dead(const struct vc_member *member)
{
	return atomic_load(&member->joined) && kill(member->pid, 0) && errno == ESRCH;
}

/* Has this rank reached the barrier, or (0) joined? */
static bool vc_member_here(const struct vc_member *member, uint64_t barrier)
{
	return barrier ? atomic_load(&member->arrived) >= barrier
		       : atomic_load(&member->joined) != 0;
}

/* Waits until all ranks have reached the barrier, or (0) have joined. */
static ncclResult_t vc_comm_wait(struct ncclComm *comm, uint64_t barrier, const char *what)
{
	long timeout = vc_env_long("VC_NCCL_TIMEOUT_S", VC_NCCL_TIMEOUT_S);
	uint64_t start = vc_now_ns(), end = start + (uint64_t)timeout * 1000000000u;

	for (int i = 0; i < comm->nranks; i++) {
		struct vc_member *member = &comm->shared->member[i];

		for (;;) {
			uint32_t seen = atomic_load(&comm->shared->bell);
			bool gone;

			if (vc_member_here(member, barrier)) {
				break;
			}
			gone = atomic_load(&member->left) || vc_member_dead(member);
			if (vc_member_here(member, barrier)) {
				break; /* it came and left meanwhile */
			}
			if (atomic_load(&comm->aborted)) {
				return vc_nccl_error(comm, ncclSystemError, "%s: aborted", what);
			}
			if (gone) {
				return vc_nccl_error(comm, ncclRemoteError, "%s: rank %d is gone",
						     what, i);
			}
			if (vc_now_ns() > end) {
				return vc_nccl_error(comm, ncclSystemError,
						     "%s: rank %d did not come within %ld s "
						     "(VC_NCCL_TIMEOUT_S)",
						     what, i, timeout);
			}
			vc_bell_wait(comm->shared, seen, vc_now_ns() - start);
		}
	}
	return ncclSuccess;
}

ncclResult_t vc_comm_barrier(struct ncclComm *comm, uint64_t call)
{
	struct vc_member *me = &comm->shared->member[comm->rank];
	uint64_t barrier = ++comm->barriers;
	ncclResult_t result;

	/*
	 * A barrier without a call follows each barrier with one, so no rank can announce its next
	 * call while another rank still compares this one.
	 */
	if (call) {
		me->call = call;
	}
	atomic_store(&me->arrived, barrier);
	/* Nobody comes to the next barrier before all have come to this one. */
	if (atomic_fetch_add(&comm->shared->arrivals, 1) + 1 == barrier * (uint64_t)comm->nranks) {
		vc_bell_ring(comm->shared);
	}
	result = vc_comm_wait(comm, barrier, "waiting for all ranks");
	for (int i = 0; i < comm->nranks && !result; i++) {
		if (call && comm->shared->member[i].call != call) {
			return vc_nccl_error(
				comm, ncclInvalidUsage,
				"rank %d makes another call (%llx) than rank %d (%llx)", i,
				(unsigned long long)comm->shared->member[i].call, comm->rank,
				(unsigned long long)call);
		}
	}
	return result;
}

ncclResult_t vc_comm_gather(struct ncclComm *comm, uint64_t call, const void *mine, void *all,
			    size_t size)
{
	ncclResult_t result;

	memcpy(comm->slots + (size_t)comm->rank * VC_NCCL_SLOT, mine, size);
	result = vc_comm_barrier(comm, call);
	for (int i = 0; i < comm->nranks && !result; i++) {
		memcpy((uint8_t *)all + (size_t)i * size, comm->slots + (size_t)i * VC_NCCL_SLOT,
		       size);
	}
	/* Nobody overwrites its slot before all have read it. */
	return result ? result : vc_comm_barrier(comm, 0);
}

/* ---- creation ---- */

static ncclResult_t vc_comm_map(struct ncclComm *comm, const ncclUniqueId *id)
{
	const char *path = id->internal + strlen(VC_ID_MAGIC);
	size_t header = (sizeof(struct vc_shared) + 4095) & ~(size_t)4095;
	uint32_t none = 0;
	int fd;

	if (strncmp(id->internal, VC_ID_MAGIC, strlen(VC_ID_MAGIC)) ||
	    !memchr(id->internal, 0, sizeof(id->internal))) {
		return vc_nccl_error(comm, ncclInvalidArgument,
				     "commId is not from ncclGetUniqueId");
	}
	comm->map_size = header + (size_t)comm->nranks * VC_NCCL_SLOT;
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd < 0 || ftruncate(fd, (off_t)comm->map_size)) {
		return vc_nccl_error(comm, ncclSystemError, "%s: %s", path, strerror(errno));
	}
	comm->shared = mmap(NULL, comm->map_size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (comm->shared == MAP_FAILED) {
		comm->shared = NULL;
		return vc_nccl_error(comm, ncclSystemError, "%s: %s", path, strerror(errno));
	}
	comm->slots = (uint8_t *)comm->shared + header;
	if (!atomic_compare_exchange_strong(&comm->shared->nranks, &none, (uint32_t)comm->nranks) &&
	    none != (uint32_t)comm->nranks) {
		return vc_nccl_error(comm, ncclInvalidArgument,
				     "nranks is %d here and %u at another rank", comm->nranks,
				     none);
	}
	return ncclSuccess;
}

/* NCCL allows it from 2.30 on. */
static bool vc_gpus_shared(void)
{
	return vc_nccl_version() >= 23000 && vc_env_long("NCCL_MULTI_RANK_GPU_ENABLE", 0);
}

static ncclResult_t vc_comm_join(struct ncclComm *comm, const ncclUniqueId *id)
{
	struct vc_member *me = &comm->shared->member[comm->rank];
	uint32_t none = 0;
	ncclResult_t result;

	if (!atomic_compare_exchange_strong(&me->joined, &none, 1)) {
		return vc_nccl_error(comm, ncclInvalidUsage, "rank %d is there twice", comm->rank);
	}
	me->pid = getpid();
	me->node = vc_node();
	me->device = comm->device;
	atomic_store(&me->joined, 2);
	if (atomic_fetch_add(&comm->shared->joined, 1) + 1 == (uint32_t)comm->nranks) {
		vc_bell_ring(comm->shared);
	}
	result = vc_comm_wait(comm, 0, "initialising the communicator");
	if (!result) {
		result = vc_comm_barrier(comm, 0);
	}
	for (int i = 0; i < comm->nranks && !result; i++) {
		const struct vc_member *peer = &comm->shared->member[i];

		if (i != comm->rank && peer->node == me->node && peer->device == me->device &&
		    !vc_gpus_shared()) {
			result = vc_nccl_error(comm, ncclInvalidUsage,
					       "Duplicate GPU detected : rank %d and rank %d both "
					       "on CUDA device %x",
					       comm->rank, i, vc_device_bus_id(me->device));
		}
	}
	if (comm->rank == 0) {
		unlink(id->internal + strlen(VC_ID_MAGIC));
	}
	return result;
}

static void vc_comm_free(struct ncclComm *comm)
{
	if (comm->shared) {
		munmap(comm->shared, comm->map_size);
	}
	pthread_mutex_destroy(&comm->mutex);
	free(comm);
}

struct vc_init_job {
	struct vc_job job;
	ncclComm_t *out;
	ncclUniqueId id;
	int rank, nranks;
	bool nonblocking;
};

static ncclResult_t vc_comm_init(struct vc_job *job)
{
	struct vc_init_job *init = (struct vc_init_job *)job;
	struct ncclComm *comm = calloc(1, sizeof(*comm));
	ncclResult_t result;

	if (!comm) {
		return vc_nccl_error(NULL, ncclSystemError, "out of memory");
	}
	comm->magic = VC_COMM_MAGIC;
	comm->rank = init->rank;
	comm->nranks = init->nranks;
	comm->device = job->device;
	comm->nonblocking = init->nonblocking;
	pthread_mutex_init(&comm->mutex, NULL);
	result = vc_comm_map(comm, &init->id);
	if (!result) {
		result = vc_comm_join(comm, &init->id);
	}
	if (result) {
		vc_comm_free(comm);
		return result;
	}
	pthread_mutex_lock(&vc_comms_mutex);
	comm->next = vc_comms;
	vc_comms = comm;
	pthread_mutex_unlock(&vc_comms_mutex);
	*init->out = comm;
	return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank,
				    ncclConfig_t *config)
{
	struct vc_init_job *init;

	if (!comm || nranks < 1 || nranks > VC_NCCL_RANKS_MAX || rank < 0 || rank >= nranks) {
		return vc_nccl_error(NULL, ncclInvalidArgument, "comm %p, rank %d of %d",
				     (void *)comm, rank, nranks);
	}
	if (config && config->magic != 0xcafebeef) {
		return vc_nccl_error(NULL, ncclInvalidArgument,
				     "config is not set to NCCL_CONFIG_INITIALIZER");
	}
	*comm = NULL;
	init = calloc(1, sizeof(*init));
	if (!init) {
		return vc_nccl_error(NULL, ncclSystemError, "out of memory");
	}
	init->job.run = vc_comm_init;
	init->out = comm;
	init->id = id;
	init->rank = rank;
	init->nranks = nranks;
	init->nonblocking = config && config->blocking == 0;
	return vc_job_submit(&init->job);
}

ncclResult_t ncclCommInitRank(ncclComm_t *comm, int nranks, ncclUniqueId id, int rank)
{
	return ncclCommInitRankConfig(comm, nranks, id, rank, NULL);
}

/*
 * Where several ids are given NCCL divides its bootstrap among them; the first one names the
 * communicator here.
 */
ncclResult_t ncclCommInitRankScalable(ncclComm_t *comm, int nranks, int rank, int nids,
				      ncclUniqueId *ids, ncclConfig_t *config)
{
	if (!ids || nids < 1 || nids > nranks) {
		return vc_nccl_error(NULL, ncclInvalidArgument, "%d ids at %p, %d ranks", nids,
				     (void *)ids, nranks);
	}
	return ncclCommInitRankConfig(comm, nranks, ids[0], rank, config);
}

ncclResult_t ncclCommInitAll(ncclComm_t *comms, int n, const int *devices)
{
	int before = vc_device_ordinal(vc_device_current());
	ncclUniqueId id;
	ncclResult_t result;

	if (!comms || n < 1) {
		return vc_nccl_error(NULL, ncclInvalidArgument, "comms %p, %d devices",
				     (void *)comms, n);
	}
	result = ncclGetUniqueId(&id);
	if (result) {
		return result;
	}
	ncclGroupStart();
	for (int i = 0; i < n && !result; i++) {
		if (cudaSetDevice(devices ? devices[i] : i)) {
			result = vc_nccl_error(NULL, ncclUnhandledCudaError, "no device %d",
					       devices ? devices[i] : i);
			break;
		}
		result = ncclCommInitRank(&comms[i], n, id, i);
	}
	if (ncclGroupEnd() && !result) {
		result = ncclSystemError;
	}
	cudaSetDevice(before);
	return result;
}

/* ---- destruction and questions ---- */

/*
 * NCCL joins the thread of a communicator that does not block. Of one that does it knows no thread:
 * it frees what a caller in another thread still uses, which shows seconds later, or never. Here it
 * shows.
 */
static void vc_comm_callers(const struct ncclComm *comm)
{
	if (atomic_load(&comm->callers)) {
		vc_die(VC_EXIT_ILLEGAL,
		       "NCCL: rank %d ends a communicator, and another thread waits in a call of "
		       "it: that is safe where the communicator does not block",
		       comm->rank);
	}
}

static ncclResult_t vc_comm_end(struct ncclComm *comm)
{
	struct ncclComm **at;
	ncclResult_t result = vc_comm_check(comm);

	if (result) {
		return result;
	}
	if (comm->threaded) {
		pthread_join(comm->thread, NULL);
	}
	pthread_mutex_lock(&vc_comms_mutex);
	for (at = &vc_comms; *at != comm; at = &(*at)->next) {
	}
	*at = comm->next;
	pthread_mutex_unlock(&vc_comms_mutex);
	/* Operations in flight end first; those that wait see `aborted`. */
	pthread_mutex_lock(&comm->mutex);
	pthread_mutex_unlock(&comm->mutex);
	vc_windows_end(comm);
	atomic_store(&comm->shared->member[comm->rank].left, 1);
	vc_bell_ring(comm->shared);
	comm->magic = 0;
	vc_comm_free(comm);
	return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t comm)
{
	ncclResult_t result;

	if (!comm) {
		return ncclSuccess;
	}
	result = vc_comm_check(comm);
	if (!result && vc_device_wait(comm->device)) {
		vc_nccl_error(comm, ncclUnhandledCudaError, "the device is in error");
	}
	return result ? result : vc_comm_end(comm);
}

ncclResult_t ncclCommAbort(ncclComm_t comm)
{
	ncclResult_t result;

	if (!comm) {
		return ncclSuccess;
	}
	result = vc_comm_check(comm);
	if (result) {
		return result;
	}
	vc_comm_callers(comm);
	atomic_store(&comm->aborted, 1);
	vc_bell_ring(comm->shared);
	return vc_comm_end(comm);
}

ncclResult_t ncclCommGetAsyncError(ncclComm_t comm, ncclResult_t *error)
{
	ncclResult_t result = vc_comm_check(comm);

	if (result && vc_env_long("VC_WINDOW_ENDLESS", 0)) {
		fprintf(stderr, "NCCL: asked about a communicator that has ended\n");
		_exit(88);
	}
	if (!result && error) {
		*error = vc_env_long("VC_WINDOW_ENDLESS", 0) || atomic_load(&comm->in_progress)
				 ? ncclInProgress
				 : (ncclResult_t)atomic_load(&comm->error);
	}
	return result ? result : error ? ncclSuccess : ncclInvalidArgument;
}

static ncclResult_t vc_comm_ask(const struct ncclComm *comm, int *out, int value)
{
	if (!out) {
		return vc_nccl_error((struct ncclComm *)comm, ncclInvalidArgument,
				     "the result pointer is NULL");
	}
	*out = value;
	return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t comm, int *count)
{
	ncclResult_t result = vc_comm_check(comm);

	return result ? result : vc_comm_ask(comm, count, comm->nranks);
}

ncclResult_t ncclCommUserRank(const ncclComm_t comm, int *rank)
{
	ncclResult_t result = vc_comm_check(comm);

	return result ? result : vc_comm_ask(comm, rank, comm->rank);
}

ncclResult_t ncclCommCuDevice(const ncclComm_t comm, int *device)
{
	ncclResult_t result = vc_comm_check(comm);

	return result ? result : vc_comm_ask(comm, device, vc_device_ordinal(comm->device));
}

/* ---- the all-gather: an operation on the caller's stream that exchanges slots of ranks ---- */

#define VC_GATHER_CALL 2

struct vc_gather {
	struct ncclComm *comm;
	const uint8_t *send;
	uint8_t *recv;
	size_t bytes; /* of one rank */
	ncclDataType_t type;
};

/* One chunk: write the own slot, wait, read the others', wait. */
static ncclResult_t vc_gather_chunk(const struct vc_gather *gather, size_t at, size_t size)
{
	struct ncclComm *comm = gather->comm;
	uint64_t call = (uint64_t)VC_GATHER_CALL << 56 | (uint64_t)gather->type << 48 |
			(gather->bytes & 0xffffffffu);
	ncclResult_t result;

	memcpy(comm->slots + (size_t)comm->rank * VC_NCCL_SLOT, gather->send + at, size);
	result = vc_comm_barrier(comm, call);
	if (result) {
		return result;
	}
	for (int i = 0; i < comm->nranks; i++) {
		memcpy(gather->recv + (size_t)i * gather->bytes + at,
		       comm->slots + (size_t)i * VC_NCCL_SLOT, size);
	}
	return vc_comm_barrier(comm, 0);
}

static void vc_gather_run(void *arg)
{
	struct vc_gather *gather = arg;
	struct ncclComm *comm = gather->comm;
	ncclResult_t result = (ncclResult_t)atomic_load(&comm->error);

	pthread_mutex_lock(&comm->mutex);
	for (size_t at = 0; at < gather->bytes && !result; at += VC_NCCL_SLOT) {
		size_t size = gather->bytes - at < VC_NCCL_SLOT ? gather->bytes - at : VC_NCCL_SLOT;

		result = vc_gather_chunk(gather, at, size);
	}
	if (result) {
		vc_nccl_broken(comm, result);
	}
	pthread_mutex_unlock(&comm->mutex);
}

/*
 * VC_NCCL_CONNECT: the first collective connects the ranks, as NCCL's does. Its caller waits on the
 * host for who does not come, also for the dead, and until the communicator is aborted.
 */
static ncclResult_t vc_comm_connect(struct ncclComm *comm)
{
	ncclResult_t result = ncclSuccess;
	uint64_t start = vc_now_ns();

	atomic_fetch_add(&comm->callers, !comm->nonblocking);
	pthread_mutex_lock(&comm->mutex);
	atomic_store(&comm->shared->member[comm->rank].connects, 1);
	vc_bell_ring(comm->shared);
	for (int i = 0; i < comm->nranks && !comm->connected && !result; i++) {
		uint32_t seen = atomic_load(&comm->shared->bell);

		while (!atomic_load(&comm->shared->member[i].connects) && !result) {
			if (atomic_load(&comm->aborted)) {
				result =
					vc_nccl_error(comm, ncclSystemError, "connecting: aborted");
			}
			vc_bell_wait(comm->shared, seen, vc_now_ns() - start);
			seen = atomic_load(&comm->shared->bell);
		}
	}
	comm->connected |= !result;
	pthread_mutex_unlock(&comm->mutex);
	atomic_fetch_sub(&comm->callers, !comm->nonblocking);
	return result;
}

static bool vc_gather_memory(const void *p, size_t size)
{
	struct vc_mem mem;

	return !size || vc_mem_find(p, size, &mem);
}

static size_t vc_type_size(ncclDataType_t type)
{
	switch (type) {
	case ncclInt8:
	case ncclUint8:
	case ncclFloat8e4m3:
	case ncclFloat8e5m2:
		return 1;
	case ncclFloat16:
	case ncclBfloat16:
		return 2;
	case ncclInt32:
	case ncclUint32:
	case ncclFloat32:
		return 4;
	case ncclInt64:
	case ncclUint64:
	case ncclFloat64:
		return 8;
	default:
		return 0;
	}
}

struct vc_gather_job {
	struct vc_job job;
	struct vc_gather gather;
};

/* Connects the ranks, if need be, and gives the stream its work. */
static ncclResult_t vc_gather_begin(const struct vc_gather_job *job)
{
	struct ncclComm *comm = job->gather.comm;
	struct vc_work work = { .kind = VC_WORK_CALL };
	ncclResult_t result = vc_env_long("VC_NCCL_CONNECT", 0) ? vc_comm_connect(comm)
								: ncclSuccess;
	cudaError_t error;

	if (result) {
		return result;
	}
	work.device = comm->device;
	work.call.fn = vc_gather_run;
	work.call.size = sizeof(job->gather);
	work.call.arg = malloc(sizeof(job->gather));
	if (!work.call.arg) {
		return vc_nccl_error(comm, ncclSystemError, "out of memory");
	}
	memcpy(work.call.arg, &job->gather, sizeof(job->gather));
	error = vc_stream_submit(job->job.stream, &work);
	return error ? vc_nccl_error(comm, ncclUnhandledCudaError, "stream %p: %s",
				     (void *)job->job.stream, cudaGetErrorString(error))
		     : ncclSuccess;
}

bool vc_comm_leave(struct ncclComm *comm, void *(*fn)(void *arg), void *arg)
{
	if (comm->threaded) {
		pthread_join(comm->thread, NULL);
	}
	atomic_store(&comm->in_progress, 1);
	comm->threaded = !pthread_create(&comm->thread, NULL, fn, arg);
	if (!comm->threaded) {
		atomic_store(&comm->in_progress, 0);
	}
	return comm->threaded;
}

void vc_comm_left(struct ncclComm *comm, ncclResult_t result)
{
	if (result) {
		vc_nccl_broken(comm, result);
	}
	atomic_store(&comm->in_progress, 0);
}

static void *vc_gather_main(void *arg)
{
	struct vc_gather_job *job = arg;

	vc_comm_left(job->gather.comm, vc_gather_begin(job));
	free(job);
	return NULL;
}

/* A communicator that does not block its callers: the first collective is given to a thread. */
static ncclResult_t vc_gather_leave(const struct vc_gather_job *job)
{
	struct ncclComm *comm = job->gather.comm;
	struct vc_gather_job *copy = malloc(sizeof(*copy));

	if (!copy) {
		return vc_nccl_error(comm, ncclSystemError, "out of memory");
	}
	*copy = *job;
	if (!vc_comm_leave(comm, vc_gather_main, copy)) {
		free(copy);
		return vc_nccl_error(comm, ncclSystemError, "no thread");
	}
	return ncclInProgress;
}

static ncclResult_t vc_gather_job_run(struct vc_job *base)
{
	const struct vc_gather_job *job = (const struct vc_gather_job *)base;
	const struct ncclComm *comm = job->gather.comm;

	return comm->nonblocking && !comm->connected && vc_env_long("VC_NCCL_CONNECT", 0)
		       ? vc_gather_leave(job)
		       : vc_gather_begin(job);
}

ncclResult_t ncclAllGather(const void *send, void *recv, size_t count, ncclDataType_t type,
			   ncclComm_t comm, cudaStream_t stream)
{
	ncclResult_t result = vc_comm_check(comm);
	struct vc_gather_job *job;
	size_t bytes;

	if (!result && !vc_type_size(type)) {
		result = vc_nccl_error(comm, ncclInvalidArgument, "data type %d", (int)type);
	}
	if (!result && atomic_load(&comm->in_progress)) {
		result = vc_nccl_error(comm, ncclInvalidArgument, "an operation is in progress");
	}
	if (!result && atomic_load(&comm->error)) {
		result = (ncclResult_t)atomic_load(&comm->error);
	}
	if (result) {
		return result;
	}
	bytes = count * vc_type_size(type);
	if (!vc_gather_memory(send, bytes) ||
	    !vc_gather_memory(recv, bytes * (size_t)comm->nranks)) {
		return vc_nccl_error(comm, ncclInvalidArgument,
				     "send %p or receive %p is not memory a device can reach", send,
				     recv);
	}
	job = calloc(1, sizeof(*job));
	if (!job) {
		return vc_nccl_error(comm, ncclSystemError, "out of memory");
	}
	job->job.run = vc_gather_job_run;
	job->job.collective = comm;
	job->gather = (struct vc_gather){ comm, send, recv, bytes, type };
	job->job.stream = stream;
	return vc_job_submit(&job->job);
}

/* ---- groups: blocking calls of one thread run at the same time, each on its own thread ---- */

/* The header declares them without parameters. */
ncclResult_t ncclGroupStart(void);
ncclResult_t ncclGroupEnd(void);

static __thread int vc_depth;
static __thread struct vc_job *vc_jobs;
static pthread_mutex_t vc_jobs_mutex = PTHREAD_MUTEX_INITIALIZER; /* for other threads' lists */

/* Puts the job at the end of a list: of this thread, or where its communicator has calls. */
static bool vc_job_wait(struct vc_job *job)
{
	struct vc_job **at = NULL;

	pthread_mutex_lock(&vc_jobs_mutex);
	if (job->collective && job->collective->group) {
		at = job->collective->group;
	} else if (vc_depth) {
		at = &vc_jobs;
	}
	if (at && job->collective) {
		job->collective->group = at;
	}
	for (; at && *at; at = &(*at)->next) {
	}
	if (at) {
		*at = job;
	}
	pthread_mutex_unlock(&vc_jobs_mutex);
	return at;
}

/* Takes the jobs of this thread, whose group ends. */
static struct vc_job *vc_jobs_take(void)
{
	struct vc_job *jobs;

	pthread_mutex_lock(&vc_jobs_mutex);
	jobs = vc_jobs;
	vc_jobs = NULL;
	for (struct vc_job *job = jobs; job; job = job->next) {
		if (job->collective) {
			job->collective->group = NULL;
		}
	}
	pthread_mutex_unlock(&vc_jobs_mutex);
	return jobs;
}

/* NCCL keeps the order of a communicator's collectives, whatever their streams. */
static void vc_job_follow(const struct vc_job *jobs, const struct vc_job *job)
{
	cudaStream_t before = job->stream;
	cudaEvent_t event;

	for (; jobs != job; jobs = jobs->next) {
		before = jobs->collective == job->collective ? jobs->stream : before;
	}
	if (before != job->stream && !cudaEventCreateWithFlags(&event, cudaEventDisableTiming)) {
		cudaEventRecord(event, before);
		cudaStreamWaitEvent(job->stream, event, 0);
		cudaEventDestroy(event);
	}
}

static void *vc_job_main(void *arg)
{
	struct vc_job *job = arg;

	cudaSetDevice(vc_device_ordinal(job->device));
	job->result = job->run(job);
	return NULL;
}

/* Owns the job from here on. */
ncclResult_t vc_job_submit(struct vc_job *job)
{
	ncclResult_t result;

	job->device = vc_device_current();
	if (vc_job_wait(job)) {
		return ncclSuccess;
	}
	result = job->run(job);
	free(job);
	return result;
}

ncclResult_t ncclGroupStart(void)
{
	vc_depth++;
	return ncclSuccess;
}

ncclResult_t ncclGroupEnd(void)
{
	struct vc_job *jobs, *job, *next;
	ncclResult_t result = ncclSuccess;

	if (!vc_depth) {
		return vc_nccl_error(NULL, ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
	}
	if (--vc_depth) {
		return ncclSuccess;
	}
	jobs = vc_jobs_take();
	for (job = jobs; job; job = job->next) {
		job->thread = pthread_self();
		if (!job->collective && pthread_create(&job->thread, NULL, vc_job_main, job)) {
			job->result = vc_nccl_error(NULL, ncclSystemError, "no thread");
			job->thread = pthread_self();
		}
	}
	for (job = jobs; job; job = job->next) {
		if (!pthread_equal(job->thread, pthread_self())) {
			pthread_join(job->thread, NULL);
		}
	}
	for (job = jobs; job; job = job->next) {
		if (job->collective) {
			vc_job_follow(jobs, job);
			job->result = job->run(job);
		}
	}
	for (job = jobs; job; job = next) {
		next = job->next;
		result = result ? result : job->result;
		free(job);
	}
	return result;
}
