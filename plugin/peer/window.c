/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL windows: NCCL carries the handles of our memory to the peers, the mapping is ours.
 *
 * What NCCL maps for a window ends with the window or with its communicator, which the program may
 * abort while kernels run. So each peer's memory is mapped once more at addresses of our own, and the
 * window is closed before the group exists. A mapping keeps the memory that it shows: its owner may
 * free it, leave or die at any time, and a peer that still stores there does no harm.
 */
#include <cuda.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "core/cuda.h"
#include "core/errand.h"
#include "core/nccl_dyn.h"
#include "peer/internal.h"

static struct ep_vmm {
	CUresult (*retain)(CUmemGenericAllocationHandle *handle, void *p);
	CUresult (*release)(CUmemGenericAllocationHandle handle);
	CUresult (*reserve)(CUdeviceptr *p, size_t size, size_t align, CUdeviceptr at,
			    unsigned long long flags);
	CUresult (*unreserve)(CUdeviceptr p, size_t size);
	CUresult (*map)(CUdeviceptr p, size_t size, size_t offset,
			CUmemGenericAllocationHandle handle, unsigned long long flags);
	CUresult (*unmap)(CUdeviceptr p, size_t size);
	CUresult (*set_access)(CUdeviceptr p, size_t size, const CUmemAccessDesc *desc,
			       size_t count);
} ep_vmm;
static const char *ep_vmm_missing;
static pthread_once_t ep_vmm_once = PTHREAD_ONCE_INIT;

static void ep_vmm_init(void)
{
	const struct {
		const char *name;
		void *slot;
	} table[] = {
		{ "cuMemRetainAllocationHandle", &ep_vmm.retain },
		{ "cuMemRelease", &ep_vmm.release },
		{ "cuMemAddressReserve", &ep_vmm.reserve },
		{ "cuMemAddressFree", &ep_vmm.unreserve },
		{ "cuMemMap", &ep_vmm.map },
		{ "cuMemUnmap", &ep_vmm.unmap },
		{ "cuMemSetAccess", &ep_vmm.set_access },
	};

	for (size_t i = 0; i < EP_ARRAY_SIZE(table); i++) {
		if (!ep_driver_find(table[i].name, table[i].slot)) {
			ep_vmm_missing = table[i].name;
		}
	}
}

bool ep_window_driver(struct ep_reason *why)
{
	pthread_once(&ep_vmm_once, ep_vmm_init);
	return !ep_vmm_missing || ep_reason_set(why, "the CUDA driver has no %s", ep_vmm_missing);
}

bool ep_window_handle(void *p, CUmemGenericAllocationHandle *handle)
{
	if (ep_vmm.retain(handle, p) != CUDA_SUCCESS) {
		return false;
	}
	ep_vmm.release(*handle);
	return true;
}

/* ---- our own memory ---- */

static bool ep_window_alloc(void **base, uint64_t bytes, struct ep_reason *why)
{
	ncclResult_t result = ep_nccl_dyn()->mem_alloc(base, bytes);

	return result == ncclSuccess ||
	       ep_reason_set(why, "ncclMemAlloc says %s", ncclGetErrorString(result));
}

static void ep_window_free(void *base)
{
	(void)ep_nccl_dyn()->mem_free(base);
}

/* ---- the window ---- */

#define EP_WINDOW_GRACE_NS 50000000u /* for a thread that sees itself when its time is over */

struct ep_window_job {
	ncclComm_t comm;
	int device;
	void *base;
	size_t bytes;
	uint64_t end_ns;
	ncclWindow_t window;
	ncclResult_t result;
};

/*
 * NCCL waits for all ranks, however long that takes, or until the communicator is aborted. One that
 * does not block its callers is asked about until end_ns, and not afterwards: the program may end it
 * then.
 */
static void ep_window_register(void *arg)
{
	const struct ep_nccl_dyn *nccl = ep_nccl_dyn();
	struct ep_window_job *job = arg;
	struct timespec nap = { 0, 20000 };
	ncclWindow_t *window = calloc(1, sizeof(*window));

	job->result = ncclSystemError;
	if (!window || cudaSetDevice(job->device) != cudaSuccess) {
		(void)cudaGetLastError();
		free(window);
		return;
	}
	job->result = nccl->window_register(job->comm, job->base, job->bytes, window, 0);
	while (job->result == ncclInProgress && nccl->comm_get_async_error &&
	       ep_now_ns() < job->end_ns) {
		nanosleep(&nap, NULL);
		if (nccl->comm_get_async_error(job->comm, &job->result) != ncclSuccess) {
			job->result = ncclSystemError;
		}
	}
	if (job->result != ncclInProgress) { /* else NCCL may write it still */
		job->window = *window;
		free(window);
	}
}

static ncclResult_t ep_window_open(struct ep_heap *heap, struct ep_boot *boot)
{
	struct ep_window_job job = { .comm = boot->comm,
				     .base = heap->entry->base,
				     .bytes = heap->bytes,
				     .end_ns = ep_now_ns() + boot->timeout_ns };
	char gone[EP_BOOT_GONE_TEXT];
	int error;

	EP_CUDA(cudaGetDevice(&job.device), "asking for the device");
	error = ep_errand_run(ep_window_register, &job, sizeof(job),
			      boot->timeout_ns + EP_WINDOW_GRACE_NS);
	if (error == ETIMEDOUT || (!error && job.result == ncclInProgress)) {
		boot->stuck = true; /* in the communicator, by another thread */
		return ep_fail(ncclRemoteError,
			       "rank %d waited %llu ms for all ranks to register their memory "
			       "with NCCL%s: abort the communicator. "
			       "NCCL_EP_BOOTSTRAP_TIMEOUT_MS sets the limit",
			       heap->rank, (unsigned long long)(boot->timeout_ns / 1000000),
			       ep_boot_gone(boot, gone));
	}
	if (error) {
		return ep_fail(ncclSystemError, "rank %d cannot start a thread: %s", heap->rank,
			       strerror(error));
	}
	if (job.result != ncclSuccess || !job.window) {
		return ep_fail(job.result ? job.result : ncclInvalidUsage,
			       "ncclCommWindowRegister of %llu bytes on rank %d: %s%s; "
			       "NCCL_EP_MEMORY=ipc does without windows",
			       (unsigned long long)heap->bytes, heap->rank,
			       job.result ? ncclGetErrorString(job.result) : "no window",
			       ep_boot_gone(boot, gone));
	}
	heap->window = job.window;
	return ncclSuccess;
}

static void ep_window_close(struct ep_heap *heap, struct ep_boot *boot)
{
	if (heap->window) {
		(void)ep_nccl_dyn()->window_deregister(boot->comm, heap->window);
		heap->window = NULL;
	}
}

/* ---- peers ---- */

/* Maps the memory that is at `p` at addresses of its own. *step is what failed. */
static CUresult ep_vmm_map_again(void *p, size_t bytes, int device, CUdeviceptr *at,
				 const char **step)
{
	CUmemAccessDesc desc = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
				 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUmemGenericAllocationHandle handle;
	CUresult error;

	*step = "cuMemRetainAllocationHandle";
	error = ep_vmm.retain(&handle, p);
	if (error != CUDA_SUCCESS) {
		return error;
	}
	*step = "cuMemAddressReserve";
	error = ep_vmm.reserve(at, bytes, 0, 0, 0);
	if (error != CUDA_SUCCESS) {
		goto out_release;
	}
	*step = "cuMemMap";
	error = ep_vmm.map(*at, bytes, 0, handle, 0);
	if (error != CUDA_SUCCESS) {
		goto err_unreserve;
	}
	*step = "cuMemSetAccess";
	error = ep_vmm.set_access(*at, bytes, &desc, 1);
	if (error == CUDA_SUCCESS) {
		goto out_release;
	}
	ep_vmm.unmap(*at, bytes);
err_unreserve:
	ep_vmm.unreserve(*at, bytes);
out_release:
	ep_vmm.release(handle); /* the mapping keeps the memory */
	return error;
}

static ncclResult_t ep_window_map(void **base, const struct ep_heap *heap,
				  const struct ep_heap_export *e, const struct ep_ident *idents,
				  int peer)
{
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	const char *step = "ncclGetPeerDevicePointer";
	CUdeviceptr at = 0;
	ncclResult_t result;
	void *p = NULL;

	(void)e;
	result = ep_nccl_dyn()->get_peer_device_pointer(heap->window, 0, peer, &p);
	if (result == ncclSuccess && p) {
		error = ep_vmm_map_again(p, heap->bytes, idents[heap->rank].device, &at, &step);
	}
	if (error != CUDA_SUCCESS) {
		return ep_fail(ncclUnhandledCudaError,
			       "GPU %s of rank %d (host %.64s) cannot map memory of GPU %s of rank "
			       "%d (host %.64s) through NCCL: %s says %s%d; NCCL_EP_MEMORY=ipc "
			       "does without windows",
			       idents[heap->rank].bus_id, heap->rank, idents[heap->rank].hostname,
			       idents[peer].bus_id, peer, idents[peer].hostname, step,
			       p ? "CUDA error " : "", p ? (int)error : (int)result);
	}
	*base = (void *)at;
	return ncclSuccess;
}

static void ep_window_unmap(void *base, uint64_t bytes)
{
	(void)ep_vmm.unmap((CUdeviceptr)base, bytes);
	(void)ep_vmm.unreserve((CUdeviceptr)base, bytes);
}

const struct ep_peer_way ep_peer_window = {
	.name = "NCCL windows",
	.lasting = true,
	.alloc = ep_window_alloc,
	.free = ep_window_free,
	.open = ep_window_open,
	.close = ep_window_close,
	.map = ep_window_map,
	.unmap = ep_window_unmap,
};
