/* SPDX-License-Identifier: Apache-2.0 */
/* The calls on masks: which ranks are active, as the device has it. */
#include <string.h>
#include "core/cuda.h"
#include "core/log.h"
#include "device/kernels.h"
#include "ep/ep.h"

ncclResult_t ep_mask_query(struct ncclEpGroup *g, int *mask, cudaStream_t stream)
{
	EP_CUDA(cudaMemcpyAsync(mask, g->mask, 4 * (size_t)g->nranks, cudaMemcpyDeviceToDevice,
				stream),
		"ncclEpMaskQuery: copying to mask, which must be device memory");
	return ncclSuccess;
}

ncclResult_t ep_mask_update(struct ncclEpGroup *g, const int *mask, cudaStream_t stream)
{
	uint32_t threads = (uint32_t)ep_min_u64(32 * (uint64_t)g->nranks, EP_GROUP_MAX_THREADS);
	struct ep_update_args args = { .g = g->dev };

	for (int r = 0; r < g->nranks; r++) {
		if (mask[r] != 0 && mask[r] != 1) {
			return ep_fail(ncclInvalidArgument,
				       "ncclEpMaskUpdate: mask[%d] is %d: 1 "
				       "means active, 0 masked",
				       r, mask[r]);
		}
		if (mask[r] && ep_ranks_has(&g->joined, (uint32_t)r)) {
			return ep_fail(
				ncclInvalidUsage,
				"ncclEpMaskUpdate: mask[%d] is 1, but rank %d has joined the "
				"group and taken no step yet: ncclEpMaskClean takes it in",
				r, r);
		}
	}
	if (!mask[g->rank]) {
		return ep_fail(
			ncclInvalidArgument,
			"ncclEpMaskUpdate: mask[%d] is 0, which is this rank itself: set it "
			"to 1; a rank leaves by making no more calls, and the others mask it",
			g->rank);
	}
	EP_CHECK(ep_stream_check_capture(stream, "ncclEpMaskUpdate"));
	EP_CHECK(ep_stream_check_device(stream, "ncclEpMaskUpdate"));
	for (int r = 0; r < g->nranks; r++) {
		if (mask[r]) {
			ep_ranks_add(&args.active, (uint32_t)r);
		}
	}
	return ep_kernel_launch(g, (const void *)ep_update_kernel, &args, 1, threads, 0, stream,
				"launching MaskUpdate");
}

/*
 * Logs who did not come, and who does not come back. `gone`: whose process is known to have ended.
 */
static ncclResult_t mask_log_missing(struct ncclEpGroup *g, const struct ep_ranks *gone,
				     cudaStream_t stream)
{
	int32_t *mask = g->mask_host;
	char link[420];

	EP_CUDA(cudaMemcpyAsync(mask, g->mask, 4 * (size_t)g->nranks, cudaMemcpyDeviceToHost,
				stream),
		"ncclEpMaskClean: reading the mask");
	EP_CUDA(cudaStreamSynchronize(stream), "ncclEpMaskClean: reading the mask");
	for (int r = 0; r < g->nranks; r++) {
		if (mask[r] && ep_ranks_has(g->kernel_ranks, (uint32_t)r)) {
			EP_INFO(EP_LOG_ALL,
				"ncclEpMaskClean: rank %d did not come and is active again on rank "
				"%d; if it has missed an operation, too, it has to call "
				"ncclEpMaskClean before its next one",
				r, g->rank);
		}
		if (mask[r]) {
			continue;
		}
		ep_group_remote_explain(g, (uint32_t)r, link, sizeof(link));
		EP_WARN("ncclEpMaskClean: rank %d stays masked, %s%s; only a new group%s brings it "
			"back",
			r,
			ep_ranks_has(gone, (uint32_t)r)
				? "its process has ended"
				: "its connection with this rank is lost on one side",
			link, g->remote_ranks ? "" : " or ncclEpExtReplaceRanks");
	}
	return ncclSuccess;
}

/* Is what comes next a dispatch, on every rank that has run the same operations? */
static bool mask_paired(const struct ncclEpGroup *g)
{
	bool paired = !g->unpaired;

	for (const struct ncclEpHandle *h = g->handles; h; h = h->next) {
		paired &= !h->dispatched || h->combined;
	}
	return paired;
}

ncclResult_t ep_mask_clean(struct ncclEpGroup *g, cudaStream_t stream)
{
	uint64_t ranks = ep_round_up((uint64_t)g->nranks, 32);
	uint32_t threads = (uint32_t)ep_min_u64(ranks, EP_GROUP_MAX_THREADS);
	struct ep_clean_args args = { .g = g->dev,
				      .absent = g->kernel_ranks_dev,
				      .paired = mask_paired(g) };

	if (g->pending) {
		return ep_fail(ncclInvalidUsage,
			       "ncclEpMaskClean: %u send_only operations are "
			       "pending: complete them first",
			       g->pending);
	}
	EP_CHECK(ep_stream_check_capture(stream, "ncclEpMaskClean"));
	for (int r = 0; r < g->nranks; r++) {
		if (ep_ident_gone(&g->idents[g->rank], &g->idents[r])) {
			ep_ranks_add(&args.gone, (uint32_t)r);
		}
	}
	if (g->remote_ranks) {
		threads = (uint32_t)ep_max_u64(threads, 64); /* so that waits for queues overlap */
	}
	EP_CHECK(ep_kernel_launch(g, (const void *)ep_clean_kernel, &args, 1, threads, 0, stream,
				  "launching MaskClean"));
	g->cleans++;
	memset(&g->joined, 0, sizeof(g->joined));
	EP_CUDA(cudaStreamSynchronize(stream), "ncclEpMaskClean: waiting for the stream");
	EP_CHECK(ep_record_poll(g));
	return mask_log_missing(g, &args.gone, stream);
}
