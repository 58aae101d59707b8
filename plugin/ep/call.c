/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every call on a group begins and ends here: the lock, the device, failures to look for, and calls
 * that are refused.
 */
#include <errno.h>
#include "core/board.h"
#include "core/cuda.h"
#include "core/process.h"
#include "core/registry.h"
#include "ep/ep.h"

/*
 * Held for moments only: whoever holds it and has found a group alive may use the group until it
 * lets go. Not taken by a thread that holds a group's lock, but to retire the group.
 */
static pthread_mutex_t call_gate = PTHREAD_MUTEX_INITIALIZER;

/*
 * A child of fork() has a copy of the object's memory, and shares descriptors, but has none of the
 * threads: whatever it did with the object would harm its parent's.
 */
static ncclResult_t call_check_process(int owner, const char *name)
{
	int self = ep_process_self();

	if (owner != self) {
		return ep_fail(ncclInvalidUsage,
			       "%s was made by process %d, this is its child %d: after fork() only "
			       "the parent can use it, and destroy it; nothing was done or freed",
			       name, owner, self);
	}
	return ncclSuccess;
}

static ncclResult_t call_check_group(const struct ncclEpGroup *group)
{
	int owner = ep_registry_owner(group, EP_REGISTRY_GROUP);

	if (!owner) {
		return ep_fail(ncclInvalidArgument, "%s",
			       group ? "ep_group is not a group (destroyed?)" : "ep_group is NULL");
	}
	return call_check_process(owner, "ep_group");
}

/*
 * Takes call_gate if it is a group. The first look comes without the gate: in a child of fork()
 * another thread may have had it, whom the child lacks.
 */
static ncclResult_t call_take_gate(const struct ncclEpGroup *group)
{
	ncclResult_t result;

	EP_CHECK(call_check_group(group));
	pthread_mutex_lock(&call_gate);
	result = call_check_group(group);
	if (result != ncclSuccess) {
		pthread_mutex_unlock(&call_gate);
	}
	return result;
}

/* The group's lock is held from now on. */
static void call_enter(struct ep_call *call, struct ncclEpGroup *group)
{
	ep_error_scope(&group->errors);
	call->group = group;
	call->device = -1;
	call->shown = NULL;
	call->counted = NULL;
}

/* Whether the program has reset the group's device, which fails the group. */
static bool call_finds_reset(struct ncclEpGroup *g)
{
	if (!g->reset && ep_context_ended(&g->context)) {
		g->reset = true;
		(void)ep_fail(ncclInvalidUsage,
			      "rank %d's GPU %s was reset (cudaDeviceReset) since the group was "
			      "made, which has ended the group: destroy it, and make another one "
			      "of a new communicator",
			      g->rank, g->idents[g->rank].bus_id);
		ep_group_fail(g);
	}
	return g->reset;
}

/* Looks for what has failed the group, without its device. */
static ncclResult_t call_poll(struct ep_call *call, bool even_failed)
{
	struct ncclEpGroup *group = call->group;
	ncclResult_t result = call_finds_reset(group) ? ep_fail_again(&group->failure)
						      : ep_record_poll(group);

	return result == ncclSuccess || even_failed ? ncclSuccess : ep_call_end(call, result);
}

ncclResult_t ep_call_begin_group_host(struct ep_call *call, struct ncclEpGroup *group,
				      bool even_failed)
{
	ep_error_scope(NULL);
	EP_CHECK(call_check_group(group));
	if (pthread_mutex_lock(&group->lock) == EDEADLK) {
		return ep_fail(ncclInvalidUsage,
			       "ep_group is in %s on this thread, which has called alloc_fn or "
			       "free_fn: those can use neither the group nor its handles",
			       ep_board_call_name(group->calling));
	}
	call_enter(call, group);
	return call_poll(call, even_failed);
}

ncclResult_t ep_call_async_error(struct ncclEpGroup *group, int *error)
{
	static const char name[] = "ncclEpGetAsyncError";
	ncclResult_t result = ncclSuccess;
	struct ep_call call;
	bool entered = false;

	ep_error_scope(NULL);
	EP_CHECK(call_take_gate(group));
	ep_error_scope(&group->errors);
	if (!group->config.enable_mask) {
		result = ep_fail(ncclInvalidUsage, EP_CALL_NO_MASK, name);
	} else if (!error) {
		result = ep_fail(ncclInvalidArgument, EP_CALL_NO_POINTER, name, "error");
	} else {
		entered = pthread_mutex_trylock(&group->lock) == 0;
		*error = __atomic_load_n(group->async_error, __ATOMIC_ACQUIRE) != 0;
	}
	ep_error_scope(NULL);
	pthread_mutex_unlock(&call_gate);
	if (!entered) {
		return result;
	}
	/* Nobody is in a call: there may be a failure that nobody has looked for. */
	call_enter(&call, group);
	(void)call_poll(&call, true);
	*error = __atomic_load_n(group->async_error, __ATOMIC_ACQUIRE) != 0;
	return ep_call_end(&call, ncclSuccess);
}

void ep_call_stay(struct ncclEpGroup *group)
{
	pthread_mutex_lock(&call_gate);
	group->ending = false;
	pthread_mutex_unlock(&call_gate);
}

void ep_call_retire(struct ncclEpGroup *group)
{
	pthread_mutex_lock(&call_gate);
	(void)ep_registry_remove(group, EP_REGISTRY_GROUP);
	pthread_mutex_unlock(&call_gate);
}

/* Makes the group's device current, and does there what is due. */
static ncclResult_t call_take_device(struct ep_call *call)
{
	struct ncclEpGroup *group = call->group;
	ncclResult_t result;
	int current = -1;

	if (cudaGetDevice(&current) != cudaSuccess) {
		(void)cudaGetLastError();
		current = -1; /* whatever it is, the group's is the one that is needed */
	}
	if (current != group->device) {
		EP_CUDA_GOTO(cudaSetDevice(group->device), "selecting the group's device", err_end);
		call->device = current;
	}
	ep_group_settle(group);
	return ncclSuccess;

err_end:
	return ep_call_end(call, result);
}

ncclResult_t ep_call_begin_group(struct ep_call *call, struct ncclEpGroup *group, bool even_failed)
{
	EP_CHECK(ep_call_begin_group_host(call, group, even_failed));
	if (group->reset) {
		return ep_call_end(call, ep_fail_again(&group->failure));
	}
	return call_take_device(call);
}

/* Of threads that destroy a group at once, one does. */
static ncclResult_t call_claim(struct ncclEpGroup *group)
{
	ncclResult_t result = ncclSuccess;

	ep_error_scope(NULL);
	EP_CHECK(call_take_gate(group));
	if (group->ending) {
		result = ep_fail(ncclInvalidUsage,
				 "ncclEpGroupDestroy: another thread is destroying the group: "
				 "destroy it once");
	}
	group->ending = true;
	pthread_mutex_unlock(&call_gate);
	return result;
}

ncclResult_t ep_call_begin_end(struct ep_call *call, struct ncclEpGroup *group)
{
	ncclResult_t result;

	EP_CHECK(call_claim(group));
	result = ep_call_begin_group_host(call, group, true);
	if (result == ncclSuccess && !group->reset) {
		result = call_take_device(call);
	}
	if (result != ncclSuccess) {
		ep_call_stay(group);
	}
	return result;
}

ncclResult_t ep_handle_expect(const struct ncclEpHandle *handle)
{
	int owner = ep_registry_owner(handle, EP_REGISTRY_HANDLE);

	ep_error_scope(NULL);
	if (!owner) {
		return ep_fail(ncclInvalidArgument, "%s",
			       handle ? "handle is not a handle (destroyed?)" : "handle is NULL");
	}
	return call_check_process(owner, "handle");
}

static ncclResult_t handle_expect_group(const struct ncclEpHandle *handle)
{
	EP_CHECK(ep_handle_expect(handle));
	if (!handle->group) {
		return ep_fail(ncclInvalidUsage, "the handle's group was destroyed before it: the "
						 "handle can only be destroyed");
	}
	return ncclSuccess;
}

ncclResult_t ep_call_begin_handle(struct ep_call *call, struct ncclEpHandle *handle,
				  bool even_failed)
{
	EP_CHECK(handle_expect_group(handle));
	return ep_call_begin_group(call, handle->group, even_failed);
}

ncclResult_t ep_call_begin_handle_host(struct ep_call *call, struct ncclEpHandle *handle,
				       bool even_failed)
{
	EP_CHECK(handle_expect_group(handle));
	return ep_call_begin_group_host(call, handle->group, even_failed);
}

ncclResult_t ep_call_end(struct ep_call *call, ncclResult_t result)
{
	if (call->device >= 0 && cudaSetDevice(call->device) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	ep_show_end(call, result);
	ep_error_scope(NULL);
	pthread_mutex_unlock(&call->group->lock);
	return result;
}

ncclResult_t ep_stream_check_capture(cudaStream_t stream, const char *name)
{
	enum cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;

	EP_CUDA(cudaStreamIsCapturing(stream, &status), name);
	if (status != cudaStreamCaptureStatusNone) {
		return ep_fail(ncclInvalidUsage,
			       "%s: the stream is being captured, and a graph cannot hold this "
			       "call: make it outside the capture",
			       name);
	}
	return ncclSuccess;
}
