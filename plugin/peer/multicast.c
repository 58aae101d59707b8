/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVLink multicast (NVLS): an address where one store reaches the same offset of the heaps of all
 * ranks of a node. NCCL makes the multicast object and owns it. This library asks NCCL for the
 * address.
 *
 * The address lives as long as the heap's window. A rank that ends its window takes its memory out
 * of the object, and NCCL does not define what a peer's store does then. So the window stays until
 * all peers of the node have written their farewells. Only a thread that may use the communicator
 * ends the window: one that leaves a group of it, or makes one. Without such a thread the end of
 * the communicator ends it.
 */
#include <stdio.h>
#include "core/cuda.h"
#include "core/nccl_dyn.h"
#include "core/param.h"
#include "core/timed_call.h"
#include "peer/state.h"

bool ep_multicast_possible(bool wanted, bool window, bool nccl_can, struct ep_reason *why)
{
	if (!wanted) {
		return ep_reason_set(why, "NCCL_EP_NVLS is not 1");
	}
	if (!ep_param_nvls_allowed(why)) {
		return false;
	}
	if (!window) {
		return ep_reason_set(why, "no NCCL window");
	}
	if (!ep_nccl_dyn()->get_lsa_multimem_device_pointer) {
		return ep_reason_set(why, "this NCCL has no multicast addresses");
	}
	return nccl_can || ep_reason_set(why, "NCCL reports no multicast");
}

/* ---- the address ---- */

struct multicast_job {
	struct ep_device_job on;
	ncclWindow_t window;
	void *address;
	ncclResult_t result;
};

/*
 * Asks NCCL for the address. The ranks of the LSA team meet in the call, however long that takes.
 */
static void multicast_ask(void *arg)
{
	struct multicast_job *job = arg;

	job->result = ep_nccl_dyn()->get_lsa_multimem_device_pointer(job->window, 0, &job->address);
}

/* The result of each rank. */
struct multicast_got {
	uint32_t ok;
	char why[60];
};

/* Gets all that this rank needs to ask: its device and a thread. */
static ncclResult_t multicast_prepare(struct ep_timed_call **call, struct multicast_job *job)
{
	char text[EP_THREAD_ERROR_TEXT];
	int error;

	error = ep_device_call_begin(call, multicast_ask, &job->on, sizeof(*job));
	if (job->on.error != cudaSuccess) {
		return ep_fail_cuda(job->on.error, "selecting the device for NCCL's multicast");
	}
	return error ? ep_fail(ncclSystemError,
			       "no thread for NCCL's multicast: %s; "
			       "NCCL_EP_NVLS=0 does without",
			       ep_thread_error_print(error, text))
		     : ncclSuccess;
}

/*
 * Decides whether all ranks have an address. It is the barrier, too, that NCCL requires before the
 * first use of the address.
 */
static ncclResult_t multicast_agree(struct ep_heap *heap, struct ep_boot *boot,
				    const struct multicast_job *job, struct ep_peer_choice *choice)
{
	const struct multicast_got *all = boot->all;
	struct multicast_got mine = { 0 };
	ncclResult_t result;

	mine.ok = job->result == ncclSuccess && job->address &&
		  ep_window_watch(heap->entry, heap->window);
	if (!mine.ok) {
		snprintf(mine.why, sizeof(mine.why), "NCCL's multicast address: %.32s",
			 job->result != ncclSuccess ? ep_nccl_text(job->result) : "none");
	}
	result = ep_boot_allgather(boot, &mine, boot->all, sizeof(mine), "agreeing on multicast");
	if (result != ncclSuccess && job->result != ncclSuccess) {
		/* Other ranks wait for this one in NCCL. */
		return ep_fail(job->result, "rank %d: %s; NCCL_EP_NVLS=0 does without", heap->rank,
			       mine.why);
	}
	EP_CHECK(result);
	for (int r = 0; r < heap->nranks; r++) {
		if (!all[r].ok) {
			choice->multicast = false;
			(void)ep_reason_set(&choice->no_multicast, "rank %d: %.59s", r, all[r].why);
			return ncclSuccess;
		}
	}
	return ncclSuccess;
}

ncclResult_t ep_multicast_open(struct ep_heap *heap, struct ep_boot *boot,
			       struct ep_peer_choice *choice, ncclResult_t mine)
{
	struct multicast_job job = { .window = heap->window };
	struct ep_heap_entry *e = heap->entry;
	struct ep_timed_call *call = NULL;
	char gone[EP_BOOT_GONE_TEXT];

	if (mine == ncclSuccess) {
		mine = multicast_prepare(&call, &job);
	}
	/* The ranks meet in NCCL's call: all of them make it, or none does. */
	mine = ep_boot_agree(boot, mine, "mapping the group's memory");
	if (mine != ncclSuccess) {
		ep_timed_call_end(call);
		return mine;
	}
	if (ep_timed_call_go(call, &job, sizeof(job), boot->timeout_ns)) {
		heap->call = call;
		boot->stuck = true; /* in the communicator, by another thread */
		return ep_fail(ncclRemoteError,
			       "rank %d waited %llu ms for all ranks of its node to get NCCL's "
			       "multicast address%s: " EP_BOOT_IN_CALL
			       ". NCCL_EP_NVLS=0 does without",
			       heap->rank, (unsigned long long)(boot->timeout_ns / 1000000),
			       ep_boot_gone(boot, gone));
	}
	ep_timed_call_end(call);
	EP_CHECK(multicast_agree(heap, boot, &job, choice));
	if (choice->multicast) {
		heap->multicast = job.address;
		e->lasting = false; /* a store by multicast reaches the memory of all */
		e->comm = boot->comm;
		e->window = heap->window;
		heap->window = NULL;
	}
	return ncclSuccess;
}
