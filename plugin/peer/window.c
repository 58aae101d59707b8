/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL windows: NCCL brings handles of memory to the peers, and this library maps the memory.
 *
 * NCCL's own mapping ends with the window or with its communicator, which the program may abort
 * while kernels run. So this library maps each peer's memory once more, at addresses of its own,
 * and closes the window before the group exists. A mapping keeps the memory that it shows. Its
 * owner may free it, leave or die at any time, and a peer that still stores there does no harm.
 */
#include <cuda.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include "core/cuda.h"
#include "core/log.h"
#include "core/nccl_dyn.h"
#include "core/timed_call.h"
#include "peer/state.h"

/* ---- the driver's virtual memory ---- */

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
static const char *vmm_missing;
static pthread_once_t vmm_once = PTHREAD_ONCE_INIT;

static void vmm_init(void)
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
			vmm_missing = table[i].name;
		}
	}
}

bool ep_vmm_driver(struct ep_reason *why)
{
	pthread_once(&vmm_once, vmm_init);
	return !vmm_missing || ep_reason_set(why, "the CUDA driver has no %s", vmm_missing);
}

/*
 * Gets the driver's handle of the memory that is mapped at p, as its name. Returns false if there
 * is none.
 */
static bool vmm_handle(void *p, CUmemGenericAllocationHandle *handle)
{
	if (ep_vmm.retain(handle, p) != CUDA_SUCCESS) {
		return false;
	}
	ep_vmm.release(*handle);
	return true;
}

/* Maps memory at addresses that are reserved. *step: the call that failed. */
static CUresult vmm_map_at(CUdeviceptr at, CUmemGenericAllocationHandle handle, size_t bytes,
			   int device, const char **step)
{
	CUmemAccessDesc desc = { .location = { .type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device },
				 .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE };
	CUresult error;

	*step = "cuMemMap";
	error = ep_vmm.map(at, bytes, 0, handle, 0);
	if (error != CUDA_SUCCESS) {
		return error;
	}
	*step = "cuMemSetAccess";
	error = ep_vmm.set_access(at, bytes, &desc, 1);
	if (error != CUDA_SUCCESS) {
		ep_vmm.unmap(at, bytes);
	}
	return error;
}

/* Maps the memory at `p` once more, at new addresses. */
static CUresult vmm_map_again(void *p, size_t bytes, int device, void **out, const char **step)
{
	CUmemGenericAllocationHandle handle;
	CUdeviceptr at = 0;
	CUresult error;

	*step = "cuMemRetainAllocationHandle";
	error = ep_vmm.retain(&handle, p);
	if (error != CUDA_SUCCESS) {
		return error;
	}
	*step = "cuMemAddressReserve";
	error = ep_vmm.reserve(&at, bytes, 0, 0, 0);
	if (error == CUDA_SUCCESS) {
		error = vmm_map_at(at, handle, bytes, device, step);
		if (error == CUDA_SUCCESS) {
			*out = (void *)at;
		} else {
			ep_vmm.unreserve(at, bytes);
		}
	}
	ep_vmm.release(handle); /* the mapping keeps the memory */
	return error;
}

/* The memory at `p` takes the place of what is mapped at *base, which graphs may have captured. */
static CUresult vmm_map_instead(void *p, size_t bytes, int device, void **base, const char **step)
{
	CUmemGenericAllocationHandle now, before;
	CUdeviceptr at = (CUdeviceptr)*base;
	const char *ignored;
	CUresult error;

	*step = "cuMemRetainAllocationHandle";
	error = ep_vmm.retain(&now, p);
	if (error != CUDA_SUCCESS) {
		return error;
	}
	error = ep_vmm.retain(&before, *base);
	if (error != CUDA_SUCCESS) {
		goto out_release;
	}
	*step = "cuMemUnmap";
	error = ep_vmm.unmap(at, bytes);
	if (error != CUDA_SUCCESS) {
		goto out_release_both;
	}
	error = vmm_map_at(at, now, bytes, device, step);
	if (error != CUDA_SUCCESS &&
	    vmm_map_at(at, before, bytes, device, &ignored) != CUDA_SUCCESS) {
		ep_vmm.unreserve(at, bytes);
		*base = NULL;
	}
out_release_both:
	ep_vmm.release(before);
out_release:
	ep_vmm.release(now);
	return error;
}

static void vmm_unmap(void *base, uint64_t bytes)
{
	(void)ep_vmm.unmap((CUdeviceptr)base, bytes);
	(void)ep_vmm.unreserve((CUdeviceptr)base, bytes);
}

/* ---- this rank's own memory ---- */

static bool window_alloc(void **base, uint64_t bytes, struct ep_reason *why)
{
	ncclResult_t result = ep_nccl_dyn()->mem_alloc(base, bytes);

	return result == ncclSuccess ||
	       ep_reason_set(why, "ncclMemAlloc failed: %s", ep_nccl_text(result));
}

static void window_free(void *base)
{
	(void)ep_nccl_dyn()->mem_free(base);
}

/* ---- the window ---- */

/*
 * Keeps the memory for good, with a warning: a peer may have it mapped, or NCCL may still work on
 * it.
 */
static void window_keep(struct ep_heap *heap)
{
	if (!heap->entry->kept) {
		EP_WARN("rank %d: %llu bytes of device memory stay allocated until the process "
			"ends: NCCL may still work on them",
			heap->rank, (unsigned long long)heap->bytes);
		heap->entry->kept = true;
	}
}

#define EP_WINDOW_GRACE_NS 50000000u /* for a thread that sees itself when its time is over */

struct window_job {
	struct ep_device_job on;
	ncclComm_t comm;
	void *base;
	size_t bytes;
	uint64_t timeout_ns;
	ncclWindow_t *window; /* NCCL writes it, perhaps late */
	ncclResult_t result;
};

/*
 * Makes the window. NCCL waits for all ranks, however long that takes, or until the communicator is
 * aborted. A communicator that does not block its callers is asked until the time is over. The
 * program may end it afterwards.
 */
static void window_make(void *arg)
{
	const struct ep_nccl_dyn *nccl = ep_nccl_dyn();
	struct window_job *job = arg;
	struct timespec nap = { 0, 20000 };
	uint64_t end = ep_now_ns() + job->timeout_ns;

	job->result = nccl->window_register(job->comm, job->base, job->bytes, job->window, 0);
	/* NCCL may go on in a thread of its own all the same */
	if (job->result == ncclSuccess && nccl->comm_get_async_error) {
		job->result = ncclInProgress;
	}
	while (job->result == ncclInProgress && nccl->comm_get_async_error && ep_now_ns() < end) {
		if (nccl->comm_get_async_error(job->comm, &job->result) != ncclSuccess) {
			job->result = ncclSystemError;
		}
		if (job->result == ncclInProgress) {
			nanosleep(&nap, NULL);
		}
	}
}

/* Gets all that this rank needs for NCCL's call: room for the window, its device and a thread. */
static ncclResult_t window_prepare(struct window_job *job, struct ep_timed_call **call, int rank)
{
	char text[EP_THREAD_ERROR_TEXT];
	int error;

	job->window = calloc(1, sizeof(*job->window));
	if (!job->window) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	error = ep_device_call_begin(call, window_make, &job->on, sizeof(*job));
	if (job->on.error != cudaSuccess) {
		return ep_fail_cuda(job->on.error, "selecting the device for NCCL's window");
	}
	return error ? ep_fail(ncclSystemError,
			       "rank %d has no thread to register its memory with NCCL: %s", rank,
			       ep_thread_error_print(error, text))
		     : ncclSuccess;
}

/* Returns the error of a rank that has waited for too long. */
static ncclResult_t window_late(const struct ep_heap *heap, struct ep_boot *boot, const char *then)
{
	char gone[EP_BOOT_GONE_TEXT];

	boot->stuck = true; /* in the communicator, by another thread */
	return ep_fail(ncclRemoteError,
		       "rank %d waited %llu ms for all ranks to register their memory with NCCL%s: "
		       "%s. NCCL_EP_BOOTSTRAP_TIMEOUT_MS sets the limit",
		       heap->rank, (unsigned long long)(boot->timeout_ns / 1000000),
		       ep_boot_gone(boot, gone), then);
}

/* Stores the window of a job that has ended, or returns its error. */
static ncclResult_t window_done(struct ep_heap *heap, struct ep_boot *boot,
				const struct window_job *job)
{
	char gone[EP_BOOT_GONE_TEXT];

	heap->window = *job->window;
	if (job->result == ncclSuccess && heap->window) {
		return ncclSuccess;
	}
	if (job->result != ncclSuccess) {
		boot->failed = job->result; /* others may wait for this rank in it */
	}
	return ep_fail(job->result ? job->result : ncclInvalidUsage,
		       "ncclCommWindowRegister of %llu bytes on rank %d: %s%s; NCCL_EP_MEMORY=ipc "
		       "does without windows",
		       (unsigned long long)heap->bytes, heap->rank,
		       job->result ? ep_nccl_text(job->result) : "no window",
		       ep_boot_gone(boot, gone));
}

/* Opens the window. No rank makes NCCL's call before all have what they need for it. */
static ncclResult_t window_open(struct ep_heap *heap, struct ep_boot *boot)
{
	struct window_job job = { .comm = boot->comm,
				  .base = heap->entry->base,
				  .bytes = heap->bytes,
				  .timeout_ns = boot->timeout_ns };
	struct ep_timed_call *call = NULL;
	ncclResult_t result = window_prepare(&job, &call, heap->rank);

	result = ep_boot_agree(boot, result, "registering the group's memory with NCCL");
	if (result != ncclSuccess) {
		ep_timed_call_end(call);
		free(job.window);
		return result;
	}
	if (ep_timed_call_go(call, &job, sizeof(job), boot->timeout_ns + EP_WINDOW_GRACE_NS)) {
		heap->call = call;
		heap->registering = true;
		return window_late(heap, boot, EP_BOOT_IN_CALL);
	}
	ep_timed_call_end(call);
	if (job.result == ncclInProgress) { /* NCCL may still write to the job and the memory */
		window_keep(heap);
		return window_late(heap, boot, "abort the communicator");
	}
	result = window_done(heap, boot, &job);
	free(job.window);
	return result;
}

void ep_window_settle(struct ep_heap *heap)
{
	struct window_job job;

	if (!heap->call) {
		return;
	}
	while (ep_timed_call_go(heap->call, &job, heap->registering ? sizeof(job) : 0,
				EP_TIMED_CALL_LONGEST_NS)) {
	}
	ep_timed_call_end(heap->call);
	heap->call = NULL;
	if (!heap->registering) {
		return;
	}
	if (job.result == ncclSuccess || job.result == ncclInProgress) {
		if (heap->entry) {
			window_keep(heap); /* the communicator may be gone */
		}
	} else {
		free(job.window);
	}
}

void ep_window_hand_over(struct ep_heap *heap, struct ep_heap *late)
{
	if (heap->call) {
		window_keep(heap);
	}
	*late = (struct ep_heap){ .rank = heap->rank,
				  .nranks = heap->nranks,
				  .bytes = heap->bytes,
				  .call = heap->call,
				  .registering = heap->registering };
}

/* ---- around the mapping of peers ---- */

static void window_close(struct ep_heap *heap, struct ep_boot *boot)
{
	if (heap->window) {
		(void)ep_nccl_dyn()->window_deregister(boot->comm, heap->window);
		heap->window = NULL;
	}
}

/* ---- peers ---- */

static ncclResult_t window_map(void **base, const struct ep_heap *heap,
			       const struct ep_heap_export *export, const struct ep_ident *idents,
			       int peer)
{
	CUresult error = CUDA_ERROR_INVALID_VALUE;
	const char *step = "ncclGetPeerDevicePointer";
	ncclResult_t result;
	void *p = NULL;

	(void)export;
	result = ep_nccl_dyn()->get_peer_device_pointer(heap->window, 0, peer, &p);
	if (result == ncclSuccess && p) {
		int device = idents[heap->rank].device;

		error = *base ? vmm_map_instead(p, heap->bytes, device, base, &step)
			      : vmm_map_again(p, heap->bytes, device, base, &step);
	}
	if (error != CUDA_SUCCESS) {
		return ep_fail(ncclUnhandledCudaError,
			       "GPU %s of rank %d (host %.64s) cannot map memory of GPU %s of rank "
			       "%d (host %.64s) through NCCL: %s returned %s%d; NCCL_EP_MEMORY=ipc "
			       "does without windows",
			       idents[heap->rank].bus_id, heap->rank, idents[heap->rank].hostname,
			       idents[peer].bus_id, peer, idents[peer].hostname, step,
			       p ? "CUDA error " : "", p ? (int)error : (int)result);
	}
	return ncclSuccess;
}

const struct ep_peer_mapping ep_peer_window = {
	.name = "NCCL windows",
	.lasting = true,
	.alloc = window_alloc,
	.free = window_free,
	.open = window_open,
	.close = window_close,
	.map = window_map,
	.unmap = vmm_unmap,
};

/* ---- a window that stays ---- */

bool ep_window_watch(struct ep_heap_entry *entry, ncclWindow_t window)
{
	return ep_nccl_dyn()->get_peer_device_pointer(window, 0, entry->rank, &entry->shown) ==
		       ncclSuccess &&
	       entry->shown && vmm_handle(entry->shown, &entry->shown_handle);
}

bool ep_window_lives(const struct ep_heap_entry *entry)
{
	CUmemGenericAllocationHandle now;

	return entry->window && !ep_context_ended(&entry->context) &&
	       vmm_handle(entry->shown, &now) && now == entry->shown_handle;
}

void ep_window_end(struct ep_heap_entry *entry)
{
	if (ep_window_lives(entry)) {
		(void)ep_nccl_dyn()->window_deregister(entry->comm, entry->window);
	}
	entry->window = NULL;
}

void ep_window_hold(struct ep_heap *heap, const struct ep_boot *boot)
{
	struct ep_heap_entry *e = heap->entry;

	if (heap->window && ep_window_watch(e, heap->window)) {
		e->comm = boot->comm;
		e->window = heap->window;
	} else if (heap->window) {
		window_keep(heap);
	}
	heap->window = NULL;
}
