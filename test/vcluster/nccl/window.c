/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ncclMemAlloc and windows. A window maps the memory of all ranks of its LSA team once more, at
 * addresses of its own, which its communicator's end and ncclCommWindowDeregister take away from
 * this rank alone.
 */
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cuda/runtime.h"
#include "exec/exec.h"
#include "nccl/comm.h"

#define VC_WINDOW_CALL 8ull
#define VC_WINDOW_FLAGS 3     /* NCCL_WIN_COLL_SYMMETRIC, NCCL_WIN_STRICT_ORDERING */
#define VC_WINDOW_QUERY 22902 /* the release that brought the calls that ask for pointers */

struct vc_offer {
	struct vc_export memory;
	int32_t mapped, good; /* is memory of a handle; and is aligned */
	uint64_t address, offset, size;
};

struct vc_window_job {
	struct vc_job job;
	struct ncclComm *comm;
	void *buff;
	size_t size;
	ncclWindow_t *out;
};

static struct ncclWindow_vidmem *vc_windows;
static pthread_mutex_t vc_windows_mutex = PTHREAD_MUTEX_INITIALIZER;

static bool vc_cumem(void)
{
	return vc_env_long("NCCL_CUMEM_ENABLE", 1) != 0;
}

ncclResult_t ncclMemAlloc(void **p, size_t size)
{
	cudaError_t error;

	if (!p || !size) {
		return vc_nccl_error(NULL, ncclInvalidArgument, "ptr %p, size %zu", (void *)p,
				     size);
	}
	error = vc_capture_check_unsafe();
	if (!error) {
		error = vc_cumem() ? (cudaError_t)vc_vmm_alloc(vc_device_current(), size, p)
				   : cudaMalloc(p, size);
	}
	return error ? vc_nccl_error(NULL, ncclUnhandledCudaError, "%zu bytes: %s", size,
				     cudaGetErrorString(error))
		     : ncclSuccess;
}

ncclResult_t ncclMemFree(void *p)
{
	cudaError_t error;
	struct vc_mem mem;

	if (vc_mem_find(p, 1, &mem)) {
		vc_device_make_context(mem.device); /* it makes the device current for a while */
	}
	error = vc_cumem() ? (cudaError_t)vc_vmm_free(p) : cudaFree(p);

	return error ? vc_nccl_error(NULL, ncclUnhandledCudaError, "%p: %s", p,
				     cudaGetErrorString(error))
		     : ncclSuccess;
}

/* ---- who reaches whom ---- */

static int vc_gcd(int a, int b)
{
	return b ? vc_gcd(b, a % b) : a;
}

/*
 * All teams are of one size, and each is a run of ranks of one domain. NCCL_LSA_TEAM_SIZE cuts
 * them.
 */
static int vc_lsa_size(const struct ncclComm *comm)
{
	int size = (int)vc_env_long("NCCL_LSA_TEAM_SIZE", 0), run = 1;

	for (int i = 1; i < comm->nranks; i++) {
		if (vc_domain_of(comm->shared->member[i].node) ==
		    vc_domain_of(comm->shared->member[i - 1].node)) {
			run++;
		} else {
			size = vc_gcd(size, run);
			run = 1;
		}
	}
	return vc_gcd(size, run);
}

static bool vc_in_team(const struct ncclComm *comm, int peer)
{
	int size = vc_lsa_size(comm);

	return peer / size == comm->rank / size;
}

static bool vc_all_peers(const struct ncclComm *comm)
{
	const struct vc_member *member = comm->shared->member;

	for (int i = 0; i < comm->nranks; i++) {
		for (int j = 0; j < comm->nranks; j++) {
			if (member[i].node == member[j].node &&
			    member[i].device != member[j].device &&
			    !vc_peer_possible(member[i].device, member[j].device)) {
				return false;
			}
		}
	}
	return true;
}

/* Without it ncclCommWindowRegister succeeds and gives no window. */
static bool vc_symmetric(const struct ncclComm *comm)
{
	bool teams = vc_lsa_size(comm) < comm->nranks;

	return vc_cumem() && vc_env_long("NCCL_WIN_ENABLE", 1) && vc_all_peers(comm) &&
	       (!teams || vc_nccl_version() < VC_WINDOW_QUERY || !vc_env_long("VC_NO_GIN", 0));
}

/* ---- life of a window ---- */

/* The handle that was freed last is the next one: programs must not take it for the old window. */
static struct ncclWindow_vidmem *vc_window_alloc(struct ncclComm *comm)
{
	struct ncclWindow_vidmem *win = atomic_exchange(&comm->spare, NULL);
	size_t bytes = sizeof(*win) + (size_t)comm->nranks * sizeof(*win->view);

	win = win ? win : malloc(bytes);
	if (win) {
		memset(win, 0, bytes);
	}
	return win;
}

/*
 * NCCL has a window at the same offset of each rank's range, so that where a rank has it tells
 * where it has those of the others. Here each is mapped anywhere. So that NCCL's rule holds all the
 * same, no other window comes to the address of this rank's own again.
 */
static void vc_window_free(struct ncclWindow_vidmem *win)
{
	if (win->multicast) {
		vc_multicast_end(win->multicast);
	}
	for (int i = 0; i < win->comm->nranks; i++) {
		if (win->view[i].owned && i == win->comm->rank) {
			vc_vmm_unmap(win->view[i].map);
		} else if (win->view[i].owned) {
			vc_vmm_free(win->view[i].map);
		}
	}
	free(atomic_exchange(&win->comm->spare, win));
}

/* Takes it off the list; false: it is not there, or of another communicator. */
static bool vc_window_remove(const struct ncclComm *comm, const struct ncclWindow_vidmem *win)
{
	struct ncclWindow_vidmem **at;
	bool found;

	pthread_mutex_lock(&vc_windows_mutex);
	for (at = &vc_windows; *at && *at != win; at = &(*at)->next) {
	}
	found = *at && (*at)->comm == comm;
	if (found) {
		*at = win->next;
	}
	pthread_mutex_unlock(&vc_windows_mutex);
	return found;
}

void vc_windows_end(struct ncclComm *comm)
{
	struct ncclWindow_vidmem *win;

	do {
		pthread_mutex_lock(&vc_windows_mutex);
		for (win = vc_windows; win && win->comm != comm; win = win->next) {
		}
		pthread_mutex_unlock(&vc_windows_mutex);
		if (win && vc_window_remove(comm, win)) {
			vc_window_free(win);
		}
	} while (win);
	free(atomic_exchange(&comm->spare, NULL));
}

static ncclResult_t vc_window_open(struct ncclWindow_vidmem *win, int peer,
				   const struct vc_offer *offer)
{
	CUresult error;

#ifdef VC_TSAN
	/* It would not know that two addresses are the same memory. */
	if (offer->memory.pid == getpid()) {
		win->view[peer].map = (void *)(uintptr_t)(offer->address - offer->offset);
		return ncclSuccess;
	}
#endif
	error = vc_vmm_map_again(&offer->memory, &win->view[peer].map);
	win->view[peer].owned = !error;
	return error ? vc_nccl_error(win->comm, ncclUnhandledCudaError, "window of rank %d: %s",
				     peer, cudaGetErrorString((cudaError_t)error))
		     : ncclSuccess;
}

static void vc_window_offer(const struct vc_window_job *job, struct vc_offer *mine)
{
	struct vc_mem mem;

	memset(mine, 0, sizeof(*mine));
	mine->address = (uintptr_t)job->buff;
	mine->size = job->size;
	if (!vc_mem_find(job->buff, job->size, &mem) || mem.kind != VC_MEM_MAPPED || mem.foreign ||
	    mem.device != job->comm->device) {
		return;
	}
	vc_mem_export(&mem, &mine->memory);
	mine->offset = (uintptr_t)job->buff - mem.start;
	mine->mapped = 1;
	mine->good = mine->offset % NCCL_WIN_REQUIRED_ALIGNMENT == 0;
}

/* NCCL leaves peers of a rank whose memory it refuses waiting; here they get an error. */
static ncclResult_t vc_window_check(const struct vc_window_job *job, const struct vc_offer *offer)
{
	const struct vc_offer *mine = &offer[job->comm->rank];

	if (!mine->mapped) {
		return vc_nccl_error(job->comm, ncclUnhandledCudaError,
				     "%zu bytes at %p: no handle: not memory of ncclMemAlloc",
				     job->size, job->buff);
	}
	if (!mine->good) {
		return vc_nccl_error(job->comm, ncclInvalidArgument,
				     "%p: window address is not aligned to %d", job->buff,
				     NCCL_WIN_REQUIRED_ALIGNMENT);
	}
	for (int i = 0; i < job->comm->nranks; i++) {
		if (!offer[i].good || offer[i].size != mine->size ||
		    offer[i].offset != mine->offset) {
			return vc_nccl_error(
				job->comm, ncclRemoteError,
				"window of rank %d: bad memory, or %zu bytes at offset "
				"%zu of its memory, here %zu at %zu",
				i, (size_t)offer[i].size, (size_t)offer[i].offset,
				(size_t)mine->size, (size_t)mine->offset);
		}
	}
	return ncclSuccess;
}

static ncclResult_t vc_window_map(struct vc_window_job *job, struct vc_offer *offer)
{
	struct ncclComm *comm = job->comm;
	struct ncclWindow_vidmem *win;
	ncclResult_t result = vc_window_check(job, offer);

	if (result) {
		return result;
	}
	win = vc_window_alloc(comm);
	if (!win) {
		return vc_nccl_error(comm, ncclSystemError, "out of memory");
	}
	win->comm = comm;
	win->user = job->buff;
	win->size = job->size;
	win->offset = (size_t)offer[comm->rank].offset;
	for (int i = 0; i < comm->nranks && !result; i++) {
		if (vc_in_team(comm, i)) {
			result = vc_window_open(win, i, &offer[i]);
		}
	}
	if (result) {
		vc_window_free(win);
		return result;
	}
	pthread_mutex_lock(&vc_windows_mutex);
	win->next = vc_windows;
	vc_windows = win;
	pthread_mutex_unlock(&vc_windows_mutex);
	*job->out = win;
	return ncclSuccess;
}

static ncclResult_t vc_window_make(struct vc_job *base)
{
	struct vc_window_job *job = (struct vc_window_job *)base;
	struct ncclComm *comm = job->comm;
	struct vc_offer *offer = calloc((size_t)comm->nranks, sizeof(*offer));
	struct vc_offer mine;
	ncclResult_t result;

	if (!offer) {
		return vc_nccl_error(comm, ncclSystemError, "out of memory");
	}
	vc_window_offer(job, &mine);
	pthread_mutex_lock(&comm->mutex);
	result = vc_comm_gather(comm, VC_WINDOW_CALL << 56, &mine, offer, sizeof(mine));
	if (!result) {
		result = vc_window_map(job, offer);
	}
	/* All have mapped what they need before anybody can free its memory. */
	if (vc_comm_barrier(comm, 0) && !result) {
		result = ncclRemoteError;
	}
	pthread_mutex_unlock(&comm->mutex);
	free(offer);
	return result;
}

static void *vc_window_main(void *arg)
{
	struct vc_window_job *job = arg;

	cudaSetDevice(vc_device_ordinal(job->comm->device));
	vc_comm_left(job->comm, vc_window_make(&job->job));
	free(job);
	return NULL;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
				    int flags)
{
	struct vc_window_job *job;
	ncclResult_t result = vc_comm_check(comm);

	if (result) {
		return result;
	}
	if (!win || atomic_load(&comm->in_progress)) {
		return vc_nccl_error(comm, ncclInvalidArgument, "win %p, in progress %d",
				     (void *)win, atomic_load(&comm->in_progress));
	}
	*win = NULL;
	if (vc_env_long("VC_WINDOW_LATE_MS", 0)) {
		usleep((useconds_t)vc_env_long("VC_WINDOW_LATE_MS", 0) * 1000);
		result = vc_comm_check(comm); /* it may have been aborted */
		if (result) {
			return result;
		}
	}
	if (vc_env_long("VC_WINDOW_ENDLESS", 0)) {
		return ncclInProgress; /* as a communicator that does not block */
	}
	if (vc_capture_check_unsafe()) { /* NCCL allocates memory */
		return vc_nccl_error(comm, ncclUnhandledCudaError, "a stream is being captured");
	}
	if (!buff || !size || flags & ~VC_WINDOW_FLAGS) {
		return vc_nccl_error(comm, ncclInvalidArgument, "buff %p, size %zu, flags %#x",
				     buff, size, (unsigned int)flags);
	}
	if (!vc_symmetric(comm)) {
		return ncclSuccess;
	}
	job = calloc(1, sizeof(*job));
	if (!job) {
		return vc_nccl_error(comm, ncclSystemError, "out of memory");
	}
	job->job.run = vc_window_make;
	job->comm = comm;
	job->buff = buff;
	job->size = size;
	job->out = win;
	if (!comm->nonblocking) {
		return vc_job_submit(&job->job);
	}
	/* NCCL returns no ncclInProgress here */
	if (!vc_comm_leave(comm, vc_window_main, job)) {
		free(job);
		return vc_nccl_error(comm, ncclSystemError, "no thread");
	}
	return ncclSuccess;
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
	ncclResult_t result = vc_comm_check(comm);

	if (result || !win) {
		return result;
	}
	if (!vc_window_remove(comm, win)) {
		return vc_nccl_error(comm, ncclInternalError, "win %p is not a window of comm",
				     (void *)win);
	}
	vc_window_free(win);
	return ncclSuccess;
}

/* ---- pointers ---- */

static ncclResult_t vc_win_get_user_ptr(ncclComm_t comm, ncclWindow_t win, void **out)
{
	const struct ncclWindow_vidmem *at;
	ncclResult_t result = vc_comm_check(comm);

	if (result) {
		return result;
	}
	if (!out) {
		return vc_nccl_error(comm, ncclInvalidArgument, "outUserPtr is NULL");
	}
	if (!vc_symmetric(comm)) {
		*out = NULL;
		return ncclSuccess;
	}
	if (!win) {
		return vc_nccl_error(comm, ncclInvalidArgument, "win is NULL");
	}
	pthread_mutex_lock(&vc_windows_mutex);
	for (at = vc_windows; at && at != win; at = at->next) {
	}
	if (at && at->comm == comm) {
		*out = at->user;
	} else {
		result = ncclInternalError;
	}
	pthread_mutex_unlock(&vc_windows_mutex);
	return result ? vc_nccl_error(comm, result, "win %p is not a window of comm", (void *)win)
		      : ncclSuccess;
}

static ncclResult_t vc_get_peer_device_pointer(ncclWindow_t win, size_t offset, int peer,
					       void **out)
{
	const struct ncclWindow_vidmem *at;
	ncclResult_t result = ncclInvalidArgument;

	pthread_mutex_lock(&vc_windows_mutex);
	for (at = vc_windows; at && at != win; at = at->next) {
	}
	if (at && out && peer >= 0 && peer < at->comm->nranks) {
		/* A peer that loads and stores do not reach has no pointer, which is no error. */
		if (!at->view[peer].map) {
			*out = NULL;
			result = ncclSuccess;
		} else if (offset < at->size) {
			*out = (uint8_t *)at->view[peer].map + at->offset + offset;
			result = ncclSuccess;
		}
	}
	pthread_mutex_unlock(&vc_windows_mutex);
	return result ? vc_nccl_error(NULL, result, "win %p, offset %zu, peer %d, outPtr %p",
				      (void *)win, offset, peer, (void *)out)
		      : ncclSuccess;
}

static ncclResult_t vc_get_lsa_multimem_device_pointer(ncclWindow_t win, size_t offset, void **out)
{
	struct ncclWindow_vidmem *at;

	pthread_mutex_lock(&vc_windows_mutex);
	for (at = vc_windows; at && at != win; at = at->next) {
	}
	pthread_mutex_unlock(&vc_windows_mutex);
	if (!at || !out || offset >= at->size) {
		return vc_nccl_error(NULL, ncclInvalidArgument, "win %p, offset %zu, outPtr %p",
				     (void *)win, offset, (void *)out);
	}
	return vc_window_multicast(at, offset, out);
}

/* ---- questions ---- */

struct vc_team {
	int nranks, rank, stride;
};

/* The head of ncclCommProperties_t. */
struct vc_properties {
	size_t size;
	unsigned int magic, version;
	int rank, nranks, device, nvml_device;
	bool windows, multimem;
};

struct vc_team ncclTeamLsa(ncclComm_t comm);
ncclResult_t ncclCommQueryProperties(ncclComm_t comm, struct vc_properties *properties);

struct vc_team ncclTeamLsa(ncclComm_t comm)
{
	int size = vc_comm_check(comm) ? 0 : vc_lsa_size(comm);

	return size ? (struct vc_team){ size, comm->rank % size, 1 } : (struct vc_team){ 0, 0, 0 };
}

ncclResult_t ncclCommQueryProperties(ncclComm_t comm, struct vc_properties *p)
{
	ncclResult_t result = vc_comm_check(comm);

	if (result) {
		return result;
	}
	if (!p || p->magic != 0xcafebeef || p->version > (unsigned int)vc_nccl_version()) {
		return vc_nccl_error(comm, ncclInvalidUsage, "properties of another release");
	}
	p->rank = comm->rank;
	p->nranks = comm->nranks;
	p->device = p->nvml_device = comm->device;
	p->windows = vc_symmetric(comm);
	p->multimem = vc_nvls_claimed(comm);
	return ncclSuccess;
}

/*
 * NCCL before VC_WINDOW_QUERY does not have these names: dlsym finds NULL. No call into the C
 * library here, which may not be ready when a program's own references are resolved.
 */
static bool vc_has_queries(void)
{
	extern char **environ;
	static const char name[] = "VC_NCCL_VERSION=";

	for (char **at = environ; at && *at; at++) {
		const char *text = *at;
		long value = 0;
		size_t i = 0;

		while (i + 1 < sizeof(name) && text[i] == name[i]) {
			i++;
		}
		if (i + 1 < sizeof(name)) {
			continue;
		}
		for (text += i; *text >= '0' && *text <= '9'; text++) {
			value = 10 * value + *text - '0';
		}
		return value >= VC_WINDOW_QUERY;
	}
	return true;
}

typedef ncclResult_t (*vc_get_user_ptr_fn)(ncclComm_t, ncclWindow_t, void **);
typedef ncclResult_t (*vc_get_peer_fn)(ncclWindow_t, size_t, int, void **);

static __attribute__((used)) vc_get_user_ptr_fn vc_resolve_user_ptr(void)
{
	return vc_has_queries() ? vc_win_get_user_ptr : NULL;
}

static __attribute__((used)) vc_get_peer_fn vc_resolve_peer(void)
{
	return vc_has_queries() ? vc_get_peer_device_pointer : NULL;
}

typedef ncclResult_t (*vc_get_multimem_fn)(ncclWindow_t, size_t, void **);

static __attribute__((used)) vc_get_multimem_fn vc_resolve_multimem(void)
{
	return vc_has_queries() ? vc_get_lsa_multimem_device_pointer : NULL;
}

ncclResult_t ncclGetLsaMultimemDevicePointer(ncclWindow_t win, size_t offset, void **out)
	__attribute__((ifunc("vc_resolve_multimem")));
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **out)
	__attribute__((ifunc("vc_resolve_user_ptr")));
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t win, size_t offset, int peer, void **out)
	__attribute__((ifunc("vc_resolve_peer")));

/*
 * NVLink multicast as NCCL gives it: one address for a window, where what a kernel stores goes to
 * all ranks of the LSA team. The ranks meet when they first ask for it.
 */

#define VC_MULTICAST_CALL 9ull

static bool vc_nvls_enabled(void)
{
	return vc_env_long("NCCL_NVLS_ENABLE", 2) != 0;
}

/* VC_NVLS and NCCL_NVLS_ENABLE: whether NCCL has multicast. */
static bool vc_nvls(const struct ncclComm *comm)
{
	const struct vc_member *member = comm->shared->member;

	for (int i = 0; i < comm->nranks; i++) {
		for (int j = 0; j < i; j++) {
			if (member[i].node == member[j].node &&
			    member[i].device == member[j].device) {
				return false;
			}
		}
	}
	return vc_env_long("VC_NVLS", 0) && vc_nvls_enabled();
}

bool vc_nvls_claimed(const struct ncclComm *comm)
{
	return vc_nvls(comm) || vc_env_long("VC_NVLS_CLAIMED", 0);
}

ncclResult_t vc_window_multicast(struct ncclWindow_vidmem *win, size_t offset, void **out)
{
	struct ncclComm *comm = win->comm;
	uint8_t *member[VC_NCCL_RANKS_MAX];
	ncclResult_t result;
	uint32_t count = 0;

	if (!vc_nvls_enabled()) {
		vc_die(VC_EXIT_ILLEGAL, "a multicast address is asked for with NCCL_NVLS_ENABLE=0");
	}
	*out = NULL;
	if (!vc_nvls(comm)) {
		return ncclSuccess;
	}
	if (!win->multicast) {
		for (int i = 0; i < comm->nranks; i++) {
			if (win->view[i].map) {
				member[count++] = (uint8_t *)win->view[i].map + win->offset;
			}
		}
		pthread_mutex_lock(&comm->mutex);
		result = vc_comm_barrier(comm, VC_MULTICAST_CALL << 56);
		if (!result) {
			result = vc_comm_barrier(comm, 0); /* all have seen what all call */
		}
		pthread_mutex_unlock(&comm->mutex);
		if (result) {
			return result;
		}
		if (vc_env_long("VC_NVLS_UNBOUND", 0)) {
			return vc_nccl_error(comm, ncclUnhandledCudaError, "cuMulticastBindAddr");
		}
		win->multicast = vc_multicast_make(member, count, win->size);
	}
	if (!win->multicast) {
		return vc_nccl_error(comm, ncclSystemError, "no multicast address");
	}
	*out = (uint8_t *)win->multicast + offset;
	return ncclSuccess;
}
