/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Failures that kernels have recorded in mapped host memory. Looking for them costs a few loads of
 * host memory and happens at the start of every call on a group.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "device/group/wait_word.h"
#include "device/kernels.h"
#include "device/mlx5/mlx5_layout.h"
#include "ep/ep.h"
#include "peer/peer.h"

/* A copy from a heap takes microseconds, or the GPU that has it no longer answers. */
#define EP_RECORD_READ_NS 5000000000ull

static const char *record_operation(const struct ep_record *record)
{
	return ep_wait_operation(record->is_combine, record->site);
}

/* Takes a record away from the device, or returns false. */
static bool record_take(struct ncclEpGroup *group, int record_class, struct ep_record *out)
{
	struct ep_record *shared = &group->records[record_class];

	if (!__atomic_load_n(&shared->valid, __ATOMIC_ACQUIRE)) {
		return false;
	}
	*out = *shared;
	if (record_class != EP_RECORD_FATAL) {
		/* Let the next failure of the class have it; the fatal one is the last. */
		__atomic_store_n(&shared->valid, 0, __ATOMIC_RELEASE);
		group->unlock_due |= 1u << record_class;
	}
	return true;
}

void ep_group_settle(struct ncclEpGroup *group)
{
	struct ep_lost_args args = { .g = group->dev, .lost = group->mask_due };

	for (; group->unlock_due; group->unlock_due &= group->unlock_due - 1) {
		uint32_t *lock = &group->state->record_lock[__builtin_ctz(group->unlock_due)];

		if (cudaMemsetAsync(lock, 0, sizeof(*lock), group->stream) != cudaSuccess) {
			(void)cudaGetLastError();
		}
	}
	if (group->masks_due) {
		/* should this fail, kernels that wait for the rank find its connection down */
		(void)ep_kernel_launch(group, (const void *)ep_lost_kernel, &args, 1, 64, 0,
				       group->stream, "masking lost ranks");
		memset(&group->mask_due, 0, sizeof(group->mask_due));
		group->masks_due = false;
	}
}

/* A copy from a heap to the group's pinned memory, by a thread whose device is the group's. */
struct record_read {
	int device;
	cudaStream_t stream;
	void *to;
	const void *from;
	size_t bytes;
	cudaError_t error;
};

static void record_read(void *arg)
{
	enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
	struct record_read *read = arg;

	(void)cudaThreadExchangeStreamCaptureMode(&mode);
	read->error = cudaSetDevice(read->device);
	if (read->error == cudaSuccess) {
		read->error = cudaMemcpyAsync(read->to, read->from, read->bytes, cudaMemcpyDefault,
					      read->stream);
	}
	if (read->error == cudaSuccess) {
		read->error = cudaStreamSynchronize(read->stream);
	}
	(void)cudaGetLastError();
}

/*
 * Copies from the heap of rank r, which is mapped here. False: it failed, or did not end in time.
 * The copy that did not end owns the pinned memory for good, which is freed once the device rests.
 * None follows it: a group explains one failure, and gives up at the first copy that fails.
 */
static bool record_copy(struct ncclEpGroup *group, void *to, uint32_t r, uint64_t off, size_t bytes)
{
	struct record_read read = { .device = group->device,
				    .stream = group->stream,
				    .to = group->copied,
				    .from = group->peer_heap.base[r] + off,
				    .bytes = bytes,
				    .error = cudaErrorUnknown };
	int error;

	error = ep_timed_call(record_read, &read, sizeof(read), EP_RECORD_READ_NS);
	if (error || read.error != cudaSuccess) {
		return false;
	}
	memcpy(to, group->copied, bytes);
	return true;
}

/* Writes the ranks that are behind the step at which this one gave up, as " 3, 5", or "". */
static void record_stragglers(struct ncclEpGroup *group, uint32_t step, char *text, size_t size)
{
	uint64_t *progress = calloc((size_t)group->nranks, sizeof(*progress));
	bool known = progress && record_copy(group, progress, (uint32_t)group->rank,
					     group->heap.progress_off, 8 * (size_t)group->nranks);
	size_t n = 0, count = 0;

	text[0] = '\0';
	for (int r = 0; known && r < group->nranks && n < size; r++) {
		if (r != group->rank && (int32_t)((uint32_t)progress[r] - step) < 0) {
			n += (size_t)snprintf(text + n, size - n, "%s%d", count++ ? ", " : " ", r);
		}
	}
	free(progress);
}

/*
 * Whether the rank has destroyed its group, as far as its farewell in this rank's heap shows: by
 * windows and within a process there is none.
 */
static bool record_left(struct ncclEpGroup *group, uint32_t r)
{
	uint64_t farewell = 0;

	return record_copy(group, &farewell, (uint32_t)group->rank, EP_HEAP_FAREWELL(r),
			   sizeof(farewell)) &&
	       farewell == ep_heap_farewell_value(&group->peer_heap);
}

/* A peer's signature follows its mark within microseconds, or never. */
#define EP_RECORD_SIGNATURE_NS 1000000000ull

/* Reads what ranks `peer` and this one have passed to the step; false: it is not known. */
static bool record_signatures(struct ncclEpGroup *group, uint32_t step, uint32_t peer,
			      struct ep_signature_slot *theirs, struct ep_signature_slot *ours)
{
	uint64_t off = group->heap.signature_off, end = ep_now_ns() + EP_RECORD_SIGNATURE_NS;
	uint32_t nranks = (uint32_t)group->nranks, self = (uint32_t)group->rank;
	/* a remote rank has sent its own here */
	uint32_t from = group->peer_heap.base[peer] ? peer : self;
	const struct timespec nap = { .tv_nsec = 1000000 };

	while (record_copy(group, theirs, from, off + ep_signature_slot_off(nranks, step, peer),
			   sizeof(*theirs)) &&
	       record_copy(group, ours, self, off + ep_signature_slot_off(nranks, step, self),
			   sizeof(*ours))) {
		if (ep_signature_whole(theirs, step) && ep_signature_whole(ours, step)) {
			return true;
		}
		if (ep_now_ns() > end) {
			return false;
		}
		nanosleep(&nap, NULL);
	}
	return false;
}

static ncclResult_t record_mismatch(struct ncclEpGroup *group, const struct ep_record *record)
{
	const struct ep_ident *peer = &group->idents[record->peer];
	uint32_t step = (uint32_t)record->value;
	struct ep_signature_slot theirs, ours;
	char text[300] = "what they pass to it differs";
	const char *name = "operation";

	if (record_signatures(group, step, record->peer, &theirs, &ours)) {
		name = ep_signature_call(&ours.signature);
		ep_signature_explain(&theirs.signature, (int)record->peer, &ours.signature,
				     group->rank, group->config.algo->limits.halves, text,
				     sizeof(text));
	}
	return ep_fail(
		ncclRemoteError,
		"%s %u: rank %u (pid %d on %s) and rank %d disagree: %s; all ranks must make "
		"the same calls with the same arguments; destroy the group",
		name, step, record->peer, peer->pid, peer->hostname, group->rank, text);
}

/* The queue's own account, when the host knows no more. */
static const char *record_status(const struct ep_record *record, char *text, size_t size)
{
	static const char *const names[] = {
		[EP_MLX5_OK] = "the connection had been given up before",
		[EP_MLX5_ERR_CQE] = "the NIC reported an error",
		[EP_MLX5_ERR_SLOT] = "no send queue entry came free",
		[EP_MLX5_ERR_COMPLETION] = "writes did not complete",
		[EP_MLX5_ERR_STOPPED] = "the connection had been given up before",
	};
	bool known = (uint64_t)record->value < EP_ARRAY_SIZE(names) && names[record->value];

	snprintf(text, size, " (queue pair 0x%llx: %s)", (unsigned long long)record->expected,
		 known ? names[record->value] : "something unknown");
	return text;
}

/* Why a half must not run that the host could not keep from running, or NULL. */
static const char *record_misuse(const struct ep_record *record)
{
	switch (record->cause) {
	case EP_CAUSE_UNSENT:
		return "ncclEpComplete ran, but the send_only operation before it did not, or was "
		       "completed before (is one of the two in a graph that was not launched, or "
		       "launched twice?)";
	case EP_CAUSE_UNRECEIVED:
		return "it was to be sent while the send_only operation before it has not been "
		       "completed (is only its send half in a graph that was launched twice?)";
	case EP_CAUSE_UNDISPATCHED:
		return "the handle's last dispatch did not run, or had another number of tokens "
		       "(is it in a graph that was not launched?)";
	case EP_CAUSE_CLEANED:
		return "ncclEpMaskClean ran since the handle's last dispatch, which some ranks may "
		       "have missed (is it in a graph that was not launched again?)";
	default:
		return NULL;
	}
}

/* Returns high throughput's error about a routing; ncclSuccess: the record is of something else. */
static ncclResult_t record_routed(const struct ncclEpGroup *group, const struct ep_record *record)
{
	const char *name = record_operation(record);

	switch (record->cause) {
	case EP_CAUSE_OVERFLOW:
		return ep_fail(ncclInvalidUsage,
			       "%s %u: %lld rows are to come to rank %u, its "
			       "max_recv_tokens_per_rank is %lld: raise it, set overflow_policy to "
			       "DROP, or use eager mode; destroy the group",
			       name, record->step, (long long)record->value, record->peer,
			       (long long)record->expected);
	case EP_CAUSE_UNROUTED:
		if (record->value < 0) {
			return ep_fail(
				ncclInvalidUsage,
				"%s %u: handle_mem of rank %d has no routing for handles like "
				"this one: call ncclEpUpdateHandle (is it in a graph that was "
				"not launched?); destroy the group",
				name, record->step, group->rank);
		}
		return ep_fail(
			ncclInvalidUsage,
			"%s %u: handle_mem of rank %d has the routing of %lld tokens, and the "
			"operation has %lld; destroy the group",
			name, record->step, group->rank, (long long)record->value,
			(long long)record->expected);
	case EP_CAUSE_REROUTED:
		return ep_fail(ncclInvalidUsage,
			       "%s %u: the routing in handle_mem of rank %d is not the one that "
			       "ncclEpExtStartArrivals has found: call it behind "
			       "ncclEpUpdateHandle; destroy the group",
			       name, record->step, group->rank);
	case EP_CAUSE_SHORT:
		return ep_fail(
			ncclInvalidUsage,
			"%s %u: the routing brings %lld rows to rank %d, and a tensor for them "
			"has %lld; destroy the group",
			name, record->step, (long long)record->value, group->rank,
			(long long)record->expected);
	default:
		return ncclSuccess;
	}
}

static ncclResult_t record_fatal(struct ncclEpGroup *group, const struct ep_record *record)
{
	const struct ep_ident *peer =
		&group->idents[record->peer < (uint32_t)group->nranks ? (int)record->peer
								      : group->rank];
	const char *name = record_operation(record);
	char behind[200], shared[80], link[420];
	bool left;

	EP_CHECK(record_routed(group, record));
	if (record_misuse(record)) {
		return ep_fail(ncclInvalidUsage, "%s %u: %s; destroy the group", name, record->step,
			       record_misuse(record));
	}
	if (record->cause == EP_CAUSE_MISMATCH) {
		return record_mismatch(group, record);
	}
	if (record->cause == EP_CAUSE_EXCLUDED) {
		return ep_fail(ncclRemoteError,
			       "%s %u: rank %u (pid %d on %s) goes on without rank %d and is %d "
			       "steps ahead; all ranks must make the same calls; destroy the group",
			       name, record->step, record->peer, peer->pid, peer->hostname,
			       group->rank, (int)record->value);
	}
	ep_group_remote_explain(group, record->peer, link, sizeof(link));
	if (record->cause == EP_CAUSE_UNENDED) {
		return ep_fail(ncclSystemError,
			       "%s %u: the connection of rank %d with rank %u (pid %d on %s) was "
			       "given up, but its queue does not end, and the NIC may still read "
			       "memory that is needed; see the kernel's log, destroy the group%s",
			       name, record->step, group->rank, record->peer, peer->pid,
			       peer->hostname,
			       link[0] ? link : record_status(record, link, sizeof(link)));
	}
	if (record->cause == EP_CAUSE_RDMA) {
		return ep_fail(
			ncclRemoteError,
			"%s %u: rank %d lost its connection with rank %u (pid %d on %s), when "
			"it waited for %s; destroy the group%s",
			name, record->step, group->rank, record->peer, peer->pid, peer->hostname,
			ep_wait_name(record->site),
			link[0] ? link : record_status(record, link, sizeof(link)));
	}
	record_stragglers(group, record->step, behind, sizeof(behind));
	/* (no copy follows one that has failed) */
	left = behind[0] && record_left(group, record->peer);
	ep_resident_describe(&group->resident, shared, sizeof(shared));
	return ep_fail(
		ncclRemoteError,
		"%s %u: rank %d waited for rank %u (pid %d on %s, GPU %s; timeout %llu ms): %s did "
		"not come%s%s; %s, then destroy the group%s%s",
		name, record->step, group->rank, record->peer, peer->pid, peer->hostname,
		peer->bus_id, (unsigned long long)(group->config.timeout_ns / 1000000),
		ep_wait_name(record->site), behind[0] ? "; not started yet by rank" : "", behind,
		left ? "that rank has left: see why it has destroyed its group"
		     : "look for that rank's own error",
		shared, link);
}

/* The operation goes on, and its call has returned: the text is the group's last error. */
static void record_masked(struct ncclEpGroup *group, const struct ep_record *record)
{
	char link[420];

	if (record->cause == EP_CAUSE_EXCLUDED) {
		(void)ep_fail(
			ncclRemoteError,
			"%s %u: rank %u goes on without rank %d (%d steps ahead) and is masked "
			"here from now on; call ncclEpMaskClean on all ranks, rank %d too",
			record_operation(record), record->step, record->peer, group->rank,
			(int)record->value, group->rank);
		return;
	}
	ep_group_remote_explain(group, record->peer, link, sizeof(link));
	if (record->cause == EP_CAUSE_RDMA) {
		if (ep_group_is_remote(group, record->peer)) {
			ep_ranks_add(&group->lost_logged, record->peer);
		}
		(void)ep_fail(
			ncclRemoteError,
			"%s %u: rank %d lost its connection with rank %u: rank %u is masked from "
			"now on (ncclEpMaskQuery returns all that are)%s",
			record_operation(record), record->step, group->rank, record->peer,
			record->peer, link[0] ? link : record_status(record, link, sizeof(link)));
		return;
	}
	if (record->site == EP_WAIT_CLEAN) {
		(void)ep_fail(
			ncclRemoteError,
			"ncclEpMaskClean: rank %d waited for rank %u (timeout %llu ms), which was "
			"active and did not come; the next operation waits for it again",
			group->rank, record->peer,
			(unsigned long long)(group->config.timeout_ns / 1000000));
		return;
	}
	(void)ep_fail(
		ncclRemoteError,
		"%s %u: rank %d waited for rank %u (timeout %llu ms): %s did not come; rank %u is "
		"masked from now on (ncclEpMaskQuery returns all that are)%s",
		record_operation(record), record->step, group->rank, record->peer,
		(unsigned long long)(group->config.timeout_ns / 1000000),
		ep_wait_name(record->site), record->peer, link);
}

static void record_routing(struct ncclEpGroup *group, const struct ep_record *record)
{
	if (record->cause == EP_CAUSE_OVERFLOW) {
		(void)ep_fail(ncclInvalidArgument,
			      "dispatch %u: local expert %lld has no row left of %lld for "
			      "topk_idx[%u][%u] of rank %u: the selection was left out (tokens "
			      "that name an expert twice take two rows)",
			      record->step, (long long)record->value, (long long)record->expected,
			      record->token, record->k, record->peer);
		return;
	}
	(void)ep_fail(ncclInvalidArgument,
		      "%s %u: topk_idx[%u][%u] is %lld, experts are 0..%lld: the selection was "
		      "left out (negative ids mean none)",
		      record_operation(record), record->step, record->token, record->k,
		      (long long)record->value, (long long)record->expected - 1);
}

void ep_group_fail(struct ncclEpGroup *group)
{
	group->failed = true;
	ep_error_get(NULL, &group->failure);
	ep_show_failure(&group->show, group->failure.text);
	__atomic_store_n(group->async_error, 1, __ATOMIC_RELEASE);
}

ncclResult_t ep_record_poll(struct ncclEpGroup *group)
{
	struct ep_record r;

	if (record_take(group, EP_RECORD_ROUTING, &r)) {
		record_routing(group, &r);
	}
	if (record_take(group, EP_RECORD_MASKED, &r)) {
		record_masked(group, &r);
	}
	if (group->failed) {
		return ep_fail_again(&group->failure);
	}
	if (record_take(group, EP_RECORD_FATAL, &r)) {
		(void)record_fatal(group, &r);
	} else if (ep_group_remote_poll(group) == ncclSuccess) {
		return ncclSuccess;
	}
	ep_group_fail(group);
	return group->failure.code;
}
