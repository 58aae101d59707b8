/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranks of a group that are lost are replaced by others: what those do who stay. The newcomers make
 * their part as ranks that create a group (group.c), and all meet on another communicator.
 *
 * Who stays keeps its heap, and what it has mapped of the others who stay. A newcomer's heap takes
 * the place of the lost rank's at the same address, which handles and captured graphs go on to use.
 * The newcomer stays masked. Nothing of that is seen by kernels, so that a failure at any point
 * leaves a group that serves as before. MaskClean then finds a step and a round for all, as it does
 * for any rank that was away.
 */
#include <stdlib.h>
#include <string.h>
#include "core/cuda.h"
#include "core/log.h"
#include "core/nccl_dyn.h"
#include "ep/ep.h"
#include "peer/peer.h"

static const char name[] = "ncclEpExtReplaceRanks";

/* That the group can keep its ranks where they are, and that this is its rank on that device. */
static ncclResult_t replace_check(const struct ncclEpGroup *g, const struct ep_boot *boot)
{
	const char *why = NULL;
	int device = -1;

	if (!g->config.enable_mask) {
		return ep_fail(ncclInvalidUsage, EP_CALL_NO_MASK, name);
	}
	if (g->remote_ranks) {
		why = "it has ranks of several nodes";
	} else if (g->peer_heap.multicast) {
		why = "it uses NVLink multicast, which knows its first ranks alone (NCCL_EP_NVLS=0)";
	} else if (g->memory.mapping != &ep_peer_window) {
		why = "its memory is not mapped by NCCL windows";
	}
	if (why) {
		return ep_fail(ncclInvalidUsage,
			       "%s: no rank can join the group: %s; make a new one", name, why);
	}
	if (g->pending) {
		return ep_fail(ncclInvalidUsage,
			       "%s: %u send_only operations are pending: complete them first", name,
			       g->pending);
	}
	if (boot->rank != g->rank || boot->nranks != g->nranks) {
		return ep_fail(ncclInvalidArgument,
			       "%s: this is rank %d of %d in the communicator, but %d of %d in the "
			       "group",
			       name, boot->rank, boot->nranks, g->rank, g->nranks);
	}
	if (ep_nccl_dyn()->comm_cu_device(boot->comm, &device) != ncclSuccess ||
	    device != g->device) {
		return ep_fail(ncclInvalidArgument,
			       "%s: the communicator is on device %d, the group on %d", name,
			       device, g->device);
	}
	return ncclSuccess;
}

/*
 * Waits until nothing runs on the device: kernels store to the addresses that will show other
 * memory.
 */
static ncclResult_t replace_settle(struct ncclEpGroup *g, struct ep_boot *boot,
				   struct ep_terms *terms)
{
	const struct ep_rest how = { .timeout_ns = boot->timeout_ns,
				     .limit = EP_BOOTSTRAP_LIMIT,
				     .what = name,
				     .then = "call it again" };
	struct ep_dev_seq seq;
	ncclResult_t result;
	cudaError_t state;

	result = ep_group_rest(g, &how, &state);
	boot->busy = state == cudaErrorNotReady;
	EP_CHECK(result);
	EP_CUDA(state, "waiting for the group's operations");
	EP_CHECK(ep_device_read(&seq, g->seq, sizeof(seq), g->stream));
	EP_CHECK(ep_device_read(g->mask_host, g->mask, 4 * (size_t)g->nranks, g->stream));
	terms->step = seq.step;
	return ncclSuccess;
}

/* That the rank is out of the group on this one, and can store nothing to its heap any more. */
static ncclResult_t replace_check_lost(const struct ncclEpGroup *g, int r)
{
	const struct ep_ident *lost = &g->idents[r];

	if (g->mask_host[r]) {
		return ep_fail(
			ncclInvalidUsage,
			"%s: rank %d joins, but its place is taken: it is active on rank %d. "
			"ncclEpMaskUpdate masks it",
			name, r, g->rank);
	}
	if (!ep_ident_gone(&g->idents[g->rank], lost)) {
		return ep_fail(
			ncclInvalidUsage,
			"%s: rank %d joins, but for all that rank %d knows the lost rank's "
			"process (pid %d on %s) runs, and may still store to its peers: end it "
			"first. Its state must be seen in /proc",
			name, r, g->rank, lost->pid, lost->hostname);
	}
	return ncclSuccess;
}

/* Zeroes the words of the lost rank in this rank's heap. */
static ncclResult_t replace_forget(struct ncclEpGroup *g, uint32_t r)
{
	unsigned char *heap = g->peer_heap.base[g->rank];
	const uint64_t words[] = { EP_HEAP_FAREWELL(r), g->heap.progress_off + 8 * (uint64_t)r,
				   g->heap.clean_off + 8 * (uint64_t)r,
				   g->heap.clean_off + 8 * ((uint64_t)g->nranks + r) };
	const char *what = "forgetting a lost rank";

	for (size_t i = 0; i < EP_ARRAY_SIZE(words); i++) {
		EP_CUDA(cudaMemsetAsync(heap + words[i], 0, 8, g->stream), what);
	}
	for (uint32_t step = 0; step < EP_SIGNATURE_SLOTS; step++) {
		uint64_t off = ep_signature_slot_off((uint32_t)g->nranks, step, r);

		EP_CUDA(cudaMemsetAsync(heap + g->heap.signature_off + off, 0,
					sizeof(struct ep_signature_slot), g->stream),
			what);
	}
	EP_CUDA(cudaStreamSynchronize(g->stream), what);
	return ncclSuccess;
}

/*
 * Each newcomer can be reached, and has nobody's place; what its place still has of the lost rank
 * goes.
 */
static ncclResult_t replace_prepare(struct ncclEpGroup *g, const struct ep_meeting *m)
{
	EP_CHECK(ep_peer_check(g->memory.mapping, m->idents, g->nranks, g->rank));
	for (int r = 0; r < g->nranks; r++) {
		if (m->newcomers[r]) {
			EP_CHECK(replace_check_lost(g, r));
			EP_CHECK(replace_forget(g, (uint32_t)r));
		}
	}
	return ncclSuccess;
}

/* All have mapped each other. */
static void replace_commit(struct ncclEpGroup *g, const struct ep_meeting *m, ncclComm_t comm)
{
	ep_watch_ranks(g, m->idents);
	g->comm = comm;
	g->memory.next = NULL;        /* newcomers know no other mapping, should memory grow */
	ep_windows_free(&g->windows); /* of the communicator before */
	memset(&g->windows, 0, sizeof(g->windows));
	ep_show_ranks(g, m->terms.team);
	for (int r = 0; r < g->nranks; r++) {
		if (m->newcomers[r]) {
			ep_ranks_add(&g->joined, (uint32_t)r);
			EP_INFO(EP_LOG_INIT,
				"group %p rank %d: rank %d is pid %d on %s now, masked until "
				"ncclEpMaskClean",
				(void *)g, g->rank, r, g->idents[r].pid, g->idents[r].hostname);
		}
	}
}

/* With the other ranks; what is left to be given up is in boot and *late. */
static ncclResult_t replace_run(struct ncclEpGroup *g, struct ep_boot *boot, struct ep_meeting *m,
				struct ep_heap *late, ncclResult_t mine)
{
	ncclResult_t result;

	if (mine == ncclSuccess) {
		mine = replace_check(g, boot);
	}
	if (mine == ncclSuccess) {
		mine = replace_settle(g, boot, &m->terms);
	}
	EP_CHECK(ep_group_meet(g, boot, m, mine));
	boot->idents = m->idents;
	result = ep_heap_admit(&g->peer_heap, boot, m->idents, m->newcomers, replace_prepare(g, m),
			       late);
	if (result == ncclSuccess && g->all_heaps) { /* as newcomers do in ep_group_heap_bind() */
		result = ep_boot_agree(boot, ncclSuccess, "setting up the group");
	}
	if (result == ncclSuccess) {
		replace_commit(g, m, boot->comm);
	}
	boot->idents = g->idents;
	return result;
}

/* That a failure has not cost an address that kernels store to. */
static void replace_check_heaps(struct ncclEpGroup *g, const struct ep_meeting *m)
{
	for (int r = 0; m->newcomers && r < g->nranks; r++) {
		if (m->newcomers[r] && !g->peer_heap.base[r]) {
			(void)ep_fail(
				ncclUnhandledCudaError,
				"%s: rank %d cannot map the memory of rank %d at its address again",
				name, g->rank, r);
			ep_group_fail(g);
		}
	}
}

ncclResult_t ep_group_replace(struct ncclEpGroup *g, ncclComm_t comm)
{
	uint64_t timeout_ns = (uint64_t)g->params.value[EP_PARAM_BOOTSTRAP_TIMEOUT_MS] * 1000000;
	struct ep_peer_choice memory = { 0 };
	struct ep_meeting m = { .terms = { .team = g->peer_heap.team,
					   .part = EP_PART_STAY,
					   .topk = g->heap.topk,
					   .lines = g->lines },
				.idents = calloc((size_t)g->nranks, sizeof(*m.idents)),
				.memory = &memory,
				.newcomers = calloc((size_t)g->nranks, sizeof(*m.newcomers)) };
	struct ep_heap late = { 0 };
	ncclResult_t result, mine = ncclSuccess;
	struct ep_boot boot;

	if (!comm) {
		result = ep_fail(ncclInvalidArgument, "%s: comm is NULL", name);
		goto out;
	}
	if (!m.idents || !m.newcomers) {
		mine = ep_fail(ncclSystemError, "%s: out of host memory", name);
	}
	result = ep_boot_open(&boot, comm, timeout_ns, &mine);
	if (result != ncclSuccess) {
		goto out;
	}
	memcpy(m.terms.least_sms, g->config.least_sms, sizeof(m.terms.least_sms));
	boot.board = g->show.board;
	ep_group_give_up_again();
	result = replace_run(g, &boot, &m, &late, mine);
	boot.board = NULL;
	ep_group_give_up(&boot, g->device, NULL, &late);
	replace_check_heaps(g, &m);
out:
	free(m.newcomers);
	free(m.idents);
	return result;
}
