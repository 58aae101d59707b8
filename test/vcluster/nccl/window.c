/* SPDX-License-Identifier: Apache-2.0 */
/* ncclMemAlloc and windows: memory of all ranks, mapped where the ranks share a node. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "cuda/capture.h"
#include "cuda/device.h"
#include "cuda/memory.h"
#include "nccl/comm.h"
#include "nccl/group.h"

#define VC_WINDOW_CALL 8ull
#define VC_WINDOW_MAGIC 0x766377696e646f77ull

struct ncclWindow_vidmem {
	uint64_t magic;
	struct ncclComm *comm;
	void *user;
	size_t size;
	void *base[VC_NCCL_RANKS_MAX];   /* the peers' memory here; NULL: out of reach */
	void *opened[VC_NCCL_RANKS_MAX]; /* what cudaIpcCloseMemHandle takes */
};

struct vc_offer {
	cudaIpcMemHandle_t ipc;
	int32_t pid, node, device, good;
	uint64_t address, offset, size;
};

struct vc_window_job {
	struct vc_job job;
	struct ncclComm *comm;
	void *buff;
	size_t size;
	ncclWindow_t *out;
};

/* NCCL 2.29 and later; not in older headers. */
ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **out);
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t win, size_t offset, int peer, void **out);

ncclResult_t ncclMemAlloc(void **p, size_t size)
{
	cudaError_t error;

	if (!p || !size) {
		return vc_nccl_error(NULL, ncclInvalidArgument, "ptr %p, size %zu", (void *)p,
				     size);
	}
	error = vc_capture_check_unsafe();
	if (!error) {
		error = vc_device_alloc(vc_device_current(), size, NCCL_WIN_REQUIRED_ALIGNMENT, p);
	}
	return error ? vc_nccl_error(NULL, ncclUnhandledCudaError, "%zu bytes: %s", size,
				     cudaGetErrorString(error))
		     : ncclSuccess;
}

ncclResult_t ncclMemFree(void *p)
{
	cudaError_t error = cudaFree(p);

	return error ? vc_nccl_error(NULL, ncclUnhandledCudaError, "%p: %s", p,
				     cudaGetErrorString(error))
		     : ncclSuccess;
}

static void vc_window_free(struct ncclWindow_vidmem *win)
{
	for (int i = 0; i < win->comm->nranks; i++) {
		if (win->opened[i]) {
			cudaIpcCloseMemHandle(win->opened[i]);
		}
	}
	win->magic = 0;
	free(win);
}

static ncclResult_t vc_window_open(struct ncclWindow_vidmem *win, int peer,
				   const struct vc_offer *offer)
{
	cudaError_t error;
	void *p;

	if (offer->pid == getpid()) {
		win->base[peer] = (void *)(uintptr_t)offer->address;
		return ncclSuccess;
	}
	if (offer->node != vc_node()) {
		return ncclSuccess;
	}
	error = cudaIpcOpenMemHandle(&p, offer->ipc, cudaIpcMemLazyEnablePeerAccess);
	if (error) {
		return vc_nccl_error(win->comm, ncclUnhandledCudaError, "window of rank %d: %s",
				     peer, cudaGetErrorString(error));
	}
	win->opened[peer] = p;
	win->base[peer] = (uint8_t *)p + offer->offset;
	return ncclSuccess;
}

static void vc_window_offer(const struct vc_window_job *job, struct vc_offer *mine)
{
	struct vc_mem mem;

	memset(mine, 0, sizeof(*mine));
	mine->pid = getpid();
	mine->node = vc_node();
	mine->address = (uintptr_t)job->buff;
	mine->size = job->size;
	if (vc_mem_find(job->buff, job->size, &mem) && mem.kind == VC_MEM_DEVICE &&
	    mem.device == job->comm->device &&
	    !((uintptr_t)job->buff % NCCL_WIN_REQUIRED_ALIGNMENT) &&
	    !cudaIpcGetMemHandle(&mine->ipc, job->buff)) {
		mine->good = 1;
		mine->offset = (uintptr_t)job->buff - mem.start;
	}
}

static ncclResult_t vc_window_make(struct vc_job *base)
{
	struct vc_window_job *job = (struct vc_window_job *)base;
	struct ncclComm *comm = job->comm;
	struct ncclWindow_vidmem *win = calloc(1, sizeof(*win));
	struct vc_offer *offer = calloc((size_t)comm->nranks, sizeof(*offer));
	struct vc_offer mine;
	ncclResult_t result;

	vc_window_offer(job, &mine);
	if (!win || !offer) {
		mine.good = 0;
	}
	if (win) {
		win->comm = comm;
		win->magic = VC_WINDOW_MAGIC;
		win->user = job->buff;
		win->size = job->size;
	}
	/* A rank whose memory is refused takes part all the same: the others wait for it. */
	pthread_mutex_lock(&comm->mutex);
	if (offer) {
		result = vc_comm_gather(comm, VC_WINDOW_CALL << 56, &mine, offer, sizeof(mine));
	} else {
		result = ncclSystemError;
	}
	pthread_mutex_unlock(&comm->mutex);
	for (int i = 0; i < comm->nranks && !result; i++) {
		if (!offer[i].good || offer[i].size != job->size) {
			result = vc_nccl_error(
				comm, ncclInvalidArgument,
				"window of rank %d: %zu bytes at %#llx are not device "
				"memory aligned to %d, or sizes differ",
				i, (size_t)offer[i].size, (unsigned long long)offer[i].address,
				NCCL_WIN_REQUIRED_ALIGNMENT);
		} else {
			result = vc_window_open(win, i, &offer[i]);
		}
	}
	free(offer);
	if (result) {
		if (win) {
			vc_window_free(win);
		}
		return result;
	}
	*job->out = win;
	return ncclSuccess;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
				    int flags)
{
	struct vc_window_job *job;
	ncclResult_t result = vc_comm_check(comm);

	if (result) {
		return result;
	}
	if (!win || flags & ~NCCL_WIN_COLL_SYMMETRIC) {
		return vc_nccl_error(comm, ncclInvalidArgument, "win %p, flags %#x", (void *)win,
				     (unsigned int)flags);
	}
	*win = NULL;
	job = calloc(1, sizeof(*job));
	if (!job) {
		return vc_nccl_error(comm, ncclSystemError, "out of memory");
	}
	job->job.run = vc_window_make;
	job->comm = comm;
	job->buff = buff;
	job->size = size;
	job->out = win;
	return vc_job_submit(&job->job);
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t win)
{
	ncclResult_t result = vc_comm_check(comm);

	if (result || !win) {
		return result;
	}
	if (win->magic != VC_WINDOW_MAGIC || win->comm != comm) {
		return vc_nccl_error(comm, ncclInvalidArgument, "win %p is not a window of comm",
				     (void *)win);
	}
	vc_window_free(win);
	return ncclSuccess;
}

ncclResult_t ncclWinGetUserPtr(ncclComm_t comm, ncclWindow_t win, void **out)
{
	ncclResult_t result = vc_comm_check(comm);

	if (result) {
		return result;
	}
	if (!out || !win || win->magic != VC_WINDOW_MAGIC || win->comm != comm) {
		return vc_nccl_error(comm, ncclInvalidArgument, "win %p, outUserPtr %p",
				     (void *)win, (void *)out);
	}
	*out = win->user;
	return ncclSuccess;
}

/* A peer that cannot be reached by loads and stores has no pointer, which is no error. */
ncclResult_t ncclGetPeerDevicePointer(ncclWindow_t win, size_t offset, int peer, void **out)
{
	if (!out || !win || win->magic != VC_WINDOW_MAGIC || peer < 0 ||
	    peer >= win->comm->nranks || offset >= win->size) {
		return vc_nccl_error(NULL, ncclInvalidArgument, "win %p, offset %zu, peer %d",
				     (void *)win, offset, peer);
	}
	*out = win->base[peer] ? (uint8_t *)win->base[peer] + offset : NULL;
	return ncclSuccess;
}
