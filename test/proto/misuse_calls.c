/* SPDX-License-Identifier: Apache-2.0 */
/* Mistakes in all calls but dispatch and combine: groups, handles, masks, extensions. */
#include "proto/mistake.h"

struct call {
	struct bench *b;
	ncclEpLayout_t layout;
	int topk;
	ncclEpHandleConfig_t handle;
	ncclEpTensor_t ids;
	size_t sizes[2];
	ncclEpLayoutInfo_t info, *info_arg;
};

static void groups(struct world *w, const struct oracle_problem *p)
{
	const ncclEpGroupConfig_t good = bench_group_config(p, 0);
	ncclEpGroupConfig_t bad = good;
	ncclEpGroup_t group = NULL;

	check_context("groups");
	watch_start();
	CHECK_REASON(ncclEpCreateGroup(NULL, w->comm, &good), IA, "ep_group");
	CHECK_REASON(ncclEpCreateGroup(&group, NULL, &good), IA, "comm");
	CHECK_REASON(ncclEpCreateGroup(&group, w->comm, NULL), IA, "config");
	bad.num_experts++; /* what else may be wrong with it: unit/group_config.c */
	CHECK_REASON(ncclEpCreateGroup(&group, w->comm, &bad), IA, "num_experts");
	CHECK(!group);
	CHECK_INT(watch.calls[WATCH_LAUNCH], 0);
	OK(ncclEpGroupDestroy(NULL));
}

#define HANDLE(M)                                                                                  \
	M(topk_0, c->topk = 0, IA, "num_topk")                                                     \
	M(topk_negative, c->topk = -1, IA, "num_topk")                                             \
	M(topk_experts, c->topk = 9, IA, "num_topk")                                               \
	M(topk_limit, c->topk = 33, IA, "num_topk")                                                \
	M(topk_huge, c->topk = 1 << 30, IA, "num_topk")                                            \
	M(topk_least, c->topk = INT32_MIN, IA, "num_topk")                                         \
	M(layout_negative, c->layout = (ncclEpLayout_t)-1, IA, "layout")                           \
	M(layout_unset, c->layout = NCCL_EP_LAYOUT_UNSET, IA, "layout")                            \
	M(layout_flat, c->layout = NCCL_EP_LAYOUT_FLAT, IA, "layout")                              \
	M(layout_4, c->layout = (ncclEpLayout_t)4, IA, "layout")                                   \
	M(handle_size, c->handle.size = 8, IA, "config")                                           \
	M(handle_magic, c->handle.magic = 0, IA, "config")

MISTAKES(handle_mistakes, HANDLE)

static void handles(struct bench *b)
{
	const struct call good = { .layout = NCCL_EP_LAYOUT_RANK_MAJOR,
				   .topk = 3,
				   .handle = NCCL_EP_HANDLE_CONFIG_INIT };
	struct call c = good;
	ncclEpHandle_t handle;
	size_t bytes = 0;

	for (size_t i = 0; i < MISTAKE_COUNT(handle_mistakes); i++) {
		const struct mistake *m = handle_mistakes + i;

		check_context("handle: %s", m->name);
		c = good;
		m->spoil(&c);
		CHECK_REASON(ncclEpHandleMemSize(b->group, c.layout, &c.handle, &bytes, c.topk),
			     m->want, m->part);
		handle = b->handle;
		CHECK_REASON(ncclEpInitHandle(&handle, b->group, c.layout, &c.handle, c.topk, NULL),
			     m->want, m->part);
		CHECK(handle == b->handle); /* not written */
	}
	check_context("handles");
	c = good;
	CHECK_REASON(ncclEpHandleMemSize(b->group, c.layout, NULL, NULL, 3), IA, "size_out");
	CHECK_REASON(ncclEpHandleMemSize(NULL, c.layout, NULL, &bytes, 3), IA, "ep_group");
	CHECK_INT(bytes, 0);
	CHECK_REASON(ncclEpInitHandle(NULL, b->group, c.layout, NULL, 3, NULL), IA, "handle");
	NEED_OK(ncclEpInitHandle(&handle, b->group, c.layout, NULL, 5,
				 NULL)); /* the group's is 4 */
	OK(ncclEpHandleDestroy(handle));
	OK(ncclEpHandleDestroy(NULL));
	CHECK_REASON(ncclEpHandleDestroy((ncclEpHandle_t)(uintptr_t)b->group), IA, "handle");
	CHECK_REASON(ncclEpGroupDestroy((ncclEpGroup_t)(uintptr_t)b->handle), IA, "group");
}

#define UPDATE(M)                                                                                  \
	M(info_magic, c->info.magic = 3; c->info_arg = &c->info, IA, "layout_info")                \
	M(info_given, c->info_arg = &c->info, IA, "layout_info")                                   \
	M(ids_type, c->ids.datatype = ncclFloat32, IA, "topk_idx: data type fp32, it needs int32") \
	M(ids_ndim, c->ids.ndim = 1, IA, "topk_idx")                                               \
	M(ids_no_data, c->ids.data = NULL, IA, "topk_idx")                                         \
	M(ids_align, c->ids.data = (char *)c->ids.data + 2, IA, "topk_idx")                        \
	M(ids_topk, c->sizes[1]++, IA, "topk_idx")                                                 \
	M(ids_tokens, c->sizes[0] = c->b->p.max_tokens + 1, IA, "topk_idx")

MISTAKES(update_mistakes, UPDATE)

static void updates(struct bench *b)
{
	const struct call good = { .b = b,
				   .ids = b->ids.t,
				   .sizes = { b->ids.sizes[0], b->ids.sizes[1] },
				   .info = NCCL_EP_LAYOUT_INFO_INIT };
	struct call c = good;
	ncclEpHandle_t handle = (ncclEpHandle_t)(uintptr_t)8;

	for (size_t i = 0; i < MISTAKE_COUNT(update_mistakes); i++) {
		const struct mistake *m = update_mistakes + i;

		check_context("update: %s", m->name);
		c = good;
		c.ids.sizes = c.sizes;
		m->spoil(&c);
		CHECK_REASON(ncclEpUpdateHandle(b->handle, &c.ids, c.info_arg, b->w->stream),
			     m->want, m->part);
	}
	check_context("create and update");
	CHECK_REASON(ncclEpUpdateHandle(NULL, &c.ids, NULL, b->w->stream), IA, "handle");
	CHECK_REASON(ncclEpUpdateHandle(b->handle, NULL, NULL, b->w->stream), IA, "topk_idx");
	c.info.magic = 3;
	CHECK_REASON(ncclEpCreateHandle(&handle, b->group, NCCL_EP_LAYOUT_RANK_MAJOR, &c.ids,
					&c.info, NULL, b->w->stream),
		     IA, "layout_info");
	c.info = good.info;
	c.info.size = NCCL_EP_LAYOUT_INFO_V1_SIZE - 1;
	CHECK_REASON(ncclEpCreateHandle(&handle, b->group, NCCL_EP_LAYOUT_RANK_MAJOR, &c.ids,
					&c.info, NULL, b->w->stream),
		     IA, "layout_info->size is 39");
	CHECK(handle == (ncclEpHandle_t)(uintptr_t)8); /* not written */
	CHECK_REASON(ncclEpCreateHandle(&handle, b->group, NCCL_EP_LAYOUT_RANK_MAJOR, &c.ids, NULL,
					NULL, b->w->stream),
		     IA, "topk_idx"); /* too many tokens */
	CHECK(handle == (ncclEpHandle_t)(uintptr_t)8);
	c.sizes[0] = 1;
	c.sizes[1] = (size_t)1 << 40;
	CHECK_REASON(ncclEpCreateHandle(&handle, b->group, NCCL_EP_LAYOUT_RANK_MAJOR, &c.ids, NULL,
					NULL, b->w->stream),
		     IA, "num_topk");
}

static void complete(struct bench *b)
{
	ncclEpCompleteConfig_t config = NCCL_EP_COMPLETE_CONFIG_INIT;

	check_context("complete");
	OK(ncclEpComplete(b->handle, &config, b->w->stream));
	config.size = 7;
	CHECK_REASON(ncclEpComplete(b->handle, &config, b->w->stream), IA, "config");
	config = NCCL_EP_COMPLETE_CONFIG_INIT;
	config.magic++;
	CHECK_REASON(ncclEpComplete(b->handle, &config, b->w->stream), IA, "config");
	CHECK_REASON(ncclEpComplete(NULL, NULL, b->w->stream), IA, "handle");
}

static void masks_off(struct bench *b)
{
	int mask[8] = { 1, 1 }, error = 5;

	check_context("masks without enable_mask");
	CHECK_REASON(ncclEpMaskQuery(b->group, b->counts.t.data, b->w->stream), IU, "enable_mask");
	CHECK_REASON(ncclEpMaskUpdate(b->group, mask, b->w->stream), IU, "enable_mask");
	CHECK_REASON(ncclEpMaskClean(b->group, b->w->stream), IU, "enable_mask");
	CHECK_REASON(ncclEpGetAsyncError(b->group, &error), IU, "enable_mask");
	CHECK_LAST(b->group, IU, "ncclEpGetAsyncError");
	CHECK_REASON(ncclEpErrorClear(b->group), IU, "enable_mask");
	CHECK_INT(error, 5);
	CHECK_REASON(ncclEpMaskQuery(NULL, b->counts.t.data, b->w->stream), IA, "ep_group");
}

static void extensions(struct bench *b)
{
	ncclEpGroupConfig_t config = bench_group_config(&b->p, 0);
	ncclEpExtPeerStats_t stats[3] = { NCCL_EP_EXT_PEER_STATS_INIT };
	ncclEpExtMemory_t memory = NCCL_EP_EXT_MEMORY_INIT;
	ncclEpHandle_t fresh;
	uint64_t n = 9;

	check_context("extensions");
	NEED_OK(ncclEpInitHandle(&fresh, b->group, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 2, NULL));
	CHECK_REASON(ncclEpExtNumRecvTokens(fresh, &n, NULL, b->w->stream), IU, "dispatch");
	CHECK_REASON(ncclEpExtNumRecvTokens(NULL, &n, NULL, b->w->stream), IA, "handle");
	CHECK_INT(n, 9);
	CHECK_REASON(ncclEpExtPeerStats(b->group, stats, 3, b->w->stream), IA, "count");
	CHECK_REASON(ncclEpExtPeerStats(b->group, stats, -1, b->w->stream), IA, "count");
	CHECK_REASON(ncclEpExtPeerStats(b->group, NULL, 2, b->w->stream), IA, "stats");
	CHECK_REASON(ncclEpExtPeerStats(NULL, stats, 2, b->w->stream), IA, "ep_group");
	stats[0].size = 71;
	CHECK_REASON(ncclEpExtPeerStats(b->group, stats, 2, b->w->stream), IA, "stats");
	stats[0] = NCCL_EP_EXT_PEER_STATS_INIT;
	world_capture(b->w->stream);
	CHECK_REASON(ncclEpExtPeerStats(b->group, stats, 2, b->w->stream), IU, "captured");
	CHECK_REASON(ncclEpExtNumRecvTokens(b->handle, &n, NULL, b->w->stream), IU, "captured");
	world_capture_drop(b->w->stream);
	CHECK_REASON(ncclEpExtDeviceMemory(NULL, 2, NCCL_EP_LAYOUT_UNSET, 0, &memory), IA,
		     "config");
	CHECK_REASON(ncclEpExtDeviceMemory(&config, 2, NCCL_EP_LAYOUT_UNSET, 0, NULL), IA,
		     "memory");
	CHECK_REASON(ncclEpExtDeviceMemory(&config, 2, NCCL_EP_LAYOUT_FLAT, 2, &memory), IA,
		     "layout");
	CHECK_REASON(ncclEpExtDeviceMemory(&config, 0, NCCL_EP_LAYOUT_UNSET, 0, &memory), IU,
		     "ranks");
	OK(ncclEpHandleDestroy(fresh));
}

static void masks_on(struct world *w, const struct oracle_problem *p)
{
	ncclEpGroup_t group = bench_group(w, p, BENCH_MASK);
	int mask[2] = { 1, 2 };
	struct bench b;

	check_context("masks");
	bench_open(&b, w, group, p, BENCH_MASK);
	bench_pair(&b);
	CHECK_REASON(ncclEpMaskQuery(group, NULL, w->stream), IA, "NULL");
	CHECK_REASON(ncclEpMaskUpdate(group, NULL, w->stream), IA, "NULL");
	CHECK_REASON(ncclEpGetAsyncError(group, NULL), IA, "NULL");
	CHECK_LAST(group, IA, "ncclEpGetAsyncError");
	CHECK_REASON(ncclEpMaskUpdate(group, mask, w->stream), IA, "mask[1] is 2");
	mask[0] = w->rank != 0;
	mask[1] = w->rank != 1;
	CHECK_REASON(ncclEpMaskUpdate(group, mask, w->stream), IA,
		     w->rank ? "mask[1] is 0, which is this rank itself"
			     : "mask[0] is 0, which is this rank itself");
	mask[0] = 1;
	world_capture(w->stream);
	CHECK_REASON(ncclEpMaskClean(group, w->stream), IU, "captured");
	mask[1] = 1;
	CHECK_REASON(ncclEpMaskUpdate(group, mask, w->stream), IU, "captured");
	world_capture_drop(w->stream);
	NEED_OK(bench_send_combine(&b, w->stream));
	CHECK_REASON(ncclEpMaskClean(group, w->stream), IU, "pending");
	NEED_OK(ncclEpComplete(b.handle, NULL, w->stream));
	bench_pair(&b);
	bench_end(&b);
}

/* Objects that were destroyed: whatever is in their memory by now, nobody looks at it. */
static void destroyed(struct bench *b)
{
	ncclEpHandle_t handle;
	size_t bytes = 7;

	check_context("destroyed");
	NEED_OK(ncclEpInitHandle(&handle, b->group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 3, NULL));
	OK(ncclEpHandleDestroy(handle));
	watch_start();
	CHECK_REASON(ncclEpHandleDestroy(handle), IA, "handle is not a handle (destroyed?)");
	CHECK_REASON(ncclEpComplete(handle, NULL, b->w->stream), IA, "destroyed?");
	CHECK_REASON(ncclEpUpdateHandle(handle, &b->ids.t, NULL, b->w->stream), IA, "destroyed?");
	OK(ncclEpGroupDestroy(b->group));
	CHECK_REASON(ncclEpGroupDestroy(b->group), IA, "ep_group is not a group (destroyed?)");
	CHECK_REASON(ncclEpHandleMemSize(b->group, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, &bytes, 3), IA,
		     "destroyed?");
	CHECK_INT(bytes, 7);
	CHECK_INT(watch.calls[WATCH_LAUNCH], 0);
}

static void run(struct world *w, void *arg)
{
	struct oracle_problem p = bench_problem(w->nranks, 8, 4, 64, 5, ORACLE_EXPERT_MAJOR);
	ncclEpGroup_t group;
	struct bench b;

	groups(w, &p);
	group = bench_group(w, &p, 0);
	bench_open(&b, w, group, &p, 0);
	bench_pair(&b);
	handles(&b);
	updates(&b);
	complete(&b);
	masks_off(&b);
	extensions(&b);
	check_context("after the mistakes");
	bench_pair(&b);
	bench_close(&b);
	destroyed(&b);
	masks_on(w, &p);
}

int main(void)
{
	world_run(2, run, NULL);
	return check_end();
}
