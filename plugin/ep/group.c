/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group is made: all ranks exchange who they are, each sets up its part, and the log gets what
 * came of it.
 */
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include "core/bootstrap.h"
#include "core/build.h"
#include "core/cuda.h"
#include "core/log.h"
#include "core/nccl_dyn.h"
#include "core/param.h"
#include "core/process.h"
#include "core/registry.h"
#include "device/kernels.h"
#include "ep/ep.h"
#include "nccl_ep.h"
#include "peer/peer.h"

/* ---- where the time goes ---- */

void ep_times_start(struct ep_times *times)
{
	memset(times, 0, sizeof(*times));
	times->start_ns = times->phase_ns = ep_now_ns();
}

void ep_times_phase(struct ep_times *times, const struct ep_boot *boot, enum ep_time kind)
{
	uint64_t now = ep_now_ns();

	times->own_ns[kind] += now - times->phase_ns - (boot->exchanged_ns - times->exchanged_ns);
	times->phase_ns = now;
	times->exchanged_ns = boot->exchanged_ns;
}

static double times_ms(uint64_t ns)
{
	return (double)ns / 1e6;
}

void ep_times_describe(const struct ep_times *times, const struct ep_boot *boot, char *text,
		       size_t size)
{
	snprintf(text, size,
		 "%.1f ms: GPUs %.1f, kernels %.1f, memory %.1f, NICs %.1f, %u exchanges by NCCL "
		 "%.1f (the first, in which NCCL may connect and ranks wait for each other, %.1f)",
		 times_ms(times->phase_ns - times->start_ns), times_ms(times->own_ns[EP_TIME_GPUS]),
		 times_ms(times->own_ns[EP_TIME_KERNELS]), times_ms(times->own_ns[EP_TIME_MEMORY]),
		 times_ms(times->own_ns[EP_TIME_NICS]), boot->exchanges,
		 times_ms(boot->exchanged_ns), times_ms(boot->first_ns));
}

/* ---- the group's own memory, and all that this rank does alone ---- */

/* Offsets in the group's own device memory. */
struct group_workspace {
	uint64_t state_off;
	uint64_t stats_off;
	uint64_t mask_off;
	uint64_t all_heaps_off;
	uint64_t remote_off;
	uint64_t places_off;
	uint64_t links_off;
	uint64_t algo_off;
	uint64_t bytes;
};

static uint64_t group_workspace_take(uint64_t *at, uint64_t bytes)
{
	uint64_t off = *at;

	*at = ep_round_up(off + bytes, 256);
	return off;
}

static struct group_workspace group_workspace_make(const struct ep_group_config *config)
{
	uint64_t r = config->shape.nranks, at = EP_GROUP_MAX_BLOCKS * sizeof(struct ep_dev_seq);
	uint64_t queues = config->shape.channels ? config->shape.channels + 1 : 0;
	const struct ep_algo *algo = config->algo;
	struct group_workspace w;

	w.state_off = group_workspace_take(&at, sizeof(struct ep_dev_state));
	w.stats_off = group_workspace_take(&at, r * sizeof(struct ep_peer_stats));
	w.mask_off = group_workspace_take(&at, EP_MASK_BYTES(r));
	w.all_heaps_off = group_workspace_take(&at, r > EP_GROUP_NEAR_RANKS ? 8 * r : 0);
	w.remote_off = group_workspace_take(&at, queues ? sizeof(struct ep_dev_remote) : 0);
	w.places_off = group_workspace_take(&at, queues ? r * sizeof(struct ep_remote_place) : 0);
	w.links_off = group_workspace_take(&at, r * queues * sizeof(struct ep_remote_link));
	w.algo_off = group_workspace_take(&at, algo->group_bytes ? algo->group_bytes(&config->shape)
								 : 0);
	w.bytes = at;
	return w;
}

uint64_t ep_group_workspace_bytes(const struct ep_group_config *config)
{
	return group_workspace_make(config).bytes;
}

/* All ranks are active, and all banks free that the group has. */
static ncclResult_t group_zero(struct ncclEpGroup *g, uint64_t bytes, cudaStream_t stream)
{
	const size_t size = EP_GROUP_MAX_BLOCKS * sizeof(struct ep_dev_seq);
	struct ep_dev_seq *seq = calloc(1, size);
	ncclResult_t result = ncclSuccess;

	if (!seq) {
		return ep_fail(ncclSystemError, "ncclEpCreateGroup: out of host memory");
	}
	for (int i = 0; i < EP_GROUP_MAX_BLOCKS; i++) {
		seq[i].busy = ep_seq_busy(g->config.shape.banks);
		seq[i].step = g->first_step;
	}
	for (int r = 0; r < g->nranks; r++) {
		g->mask_host[r] = 1;
	}
	EP_CUDA_GOTO(cudaMemsetAsync(g->workspace, 0, bytes, stream), "zeroing the group's state",
		     out);
	EP_CUDA_GOTO(cudaMemcpyAsync(g->seq, seq, size, cudaMemcpyHostToDevice, stream),
		     "setting the group's state", out);
	EP_CUDA_GOTO(cudaMemcpyAsync(g->mask, g->mask_host, 4 * (size_t)g->nranks,
				     cudaMemcpyHostToDevice, stream),
		     "setting the mask", out);
	EP_CUDA_GOTO(cudaStreamSynchronize(stream), "setting the group's state", out);
out:
	free(seq);
	return result;
}

static ncclResult_t group_alloc_device(struct ncclEpGroup *g, cudaStream_t stream)
{
	uint32_t channels = g->config.shape.channels;
	struct group_workspace w = group_workspace_make(&g->config);
	unsigned char *p;

	EP_CHECK(ep_alloc(&g->config.alloc, &g->workspace, w.bytes, "the group's own state"));
	p = g->workspace;
	g->seq = (void *)p;
	g->state = (void *)(p + w.state_off);
	g->stats = (void *)(p + w.stats_off);
	g->mask = (void *)(p + w.mask_off);
	g->all_heaps = g->nranks > EP_GROUP_NEAR_RANKS ? (void *)(p + w.all_heaps_off) : NULL;
	g->algo_memory = p + w.algo_off;
	if (channels) {
		g->remote_dev = (void *)(p + w.remote_off);
		g->places = (void *)(p + w.places_off);
		g->links = (void *)(p + w.links_off);
	}
	return group_zero(g, w.bytes, stream);
}

static ncclResult_t group_alloc_host(struct ncclEpGroup *g)
{
	size_t copied_off = EP_RECORDS * sizeof(struct ep_record) + 64 + sizeof(struct ep_ranks);
	size_t most = ep_max_u64(8 * (size_t)g->nranks, sizeof(struct ep_signature_slot));
	struct ep_reason why;

	if (!ep_pinned_alloc(&g->shared, copied_off + most, &why)) {
		return ep_fail(ncclUnhandledCudaError, "ncclEpCreateGroup: %s", why.text);
	}
	g->records = (void *)g->shared.host;
	g->records_dev = (void *)g->shared.dev;
	g->async_error = (void *)(g->records + EP_RECORDS);
	g->async_error_dev = (void *)(g->records_dev + EP_RECORDS);
	g->kernel_ranks = (void *)(g->async_error + 16);
	g->kernel_ranks_dev = (void *)(g->async_error_dev + 16);
	g->copied = (unsigned char *)g->shared.host + copied_off;
	return ncclSuccess;
}

/* Everything of this rank alone. What it leaves behind on failure ep_group_free frees. */
static ncclResult_t group_set_up(struct ncclEpGroup *g, const struct ep_boot *boot,
				 struct ep_times *times)
{
	static const void *const kernels[] = { (const void *)ep_clean_kernel,
					       (const void *)ep_drain_kernel,
					       (const void *)ep_expert_rows_kernel,
					       (const void *)ep_lost_kernel,
					       (const void *)ep_update_kernel };

	EP_CHECK(ep_peer_check(g->memory.mapping, g->idents, g->nranks, g->rank));
	EP_CHECK(g->config.algo->group_open(g));
	EP_CHECK(ep_kernels_load(kernels, EP_ARRAY_SIZE(kernels)));
	EP_CHECK(ep_kernels_programmatic(&g->params, kernels[0], &g->programmatic));
	ep_times_phase(times, boot, EP_TIME_KERNELS);
	EP_CUDA(cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking), "creating a stream");
	EP_CUDA(cudaEventCreateWithFlags(&g->event, cudaEventDisableTiming), "creating an event");
	EP_CHECK(group_alloc_host(g));
	ep_show_waits(g);
	return group_alloc_device(g, g->stream);
}

static struct ncclEpGroup *group_new(ncclComm_t comm, const struct ep_boot *boot, int device)
{
	struct ncclEpGroup *g = calloc(1, sizeof(*g));
	pthread_mutexattr_t checked;

	if (!g) {
		return NULL;
	}
	g->idents = calloc((size_t)boot->nranks, sizeof(*g->idents));
	g->mask_host = calloc((size_t)boot->nranks, sizeof(*g->mask_host));
	g->stats_host = calloc((size_t)boot->nranks, sizeof(*g->stats_host));
	if (!g->idents || !g->mask_host || !g->stats_host ||
	    !ep_registry_add(g, EP_REGISTRY_MAKING)) {
		free(g->stats_host);
		free(g->mask_host);
		free(g->idents);
		free(g);
		return NULL;
	}
	pthread_mutexattr_init(&checked);
	pthread_mutexattr_settype(&checked, PTHREAD_MUTEX_ERRORCHECK);
	pthread_mutex_init(&g->lock, &checked);
	ep_error_slot_init(&g->errors);
	g->comm = comm;
	g->rank = boot->rank;
	g->nranks = boot->nranks;
	g->device = device;
	g->context = ep_context_now();
	return g;
}

static ncclResult_t group_configure(struct ncclEpGroup *g, const ncclEpGroupConfig_t *config,
				    const ncclEpExtRoles_t *roles)
{
	int sms = 0;

	EP_CHECK(ep_params_read(&g->params));
	EP_CUDA(cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, g->device),
		"counting the device's SMs");
	g->sm_count = (uint32_t)sms;
	return ep_group_config_make(&g->config, config, roles, &g->params, g->nranks, g->sm_count);
}

/* ---- ranks meet in the first exchange ---- */

/*
 * The first message of each rank to the others. In all versions of the library it is as long, and
 * begins with the same: so ranks with different ones tell them apart.
 */
struct group_handshake {
	union {
		struct {
			struct ep_verdict verdict;
			struct ep_ident ident; /* the build first */
			struct ep_group_agreed agreed;
			struct ep_peer_offer offer;
			struct ep_heap_teams heaps; /* of this process */
			struct ep_terms terms;
		};
		unsigned char bytes[EP_BOOT_BYTES];
	};
};

_Static_assert(sizeof(struct group_handshake) == EP_BOOT_BYTES, "group_handshake");
_Static_assert(offsetof(struct ep_ident, build) == 0, "group_handshake");

static const char *const part_calls[] = {
	[EP_PART_CREATE] = "ncclEpCreateGroup",
	[EP_PART_JOIN] = "ncclEpExtJoinGroup",
	[EP_PART_STAY] = "ncclEpExtReplaceRanks",
};

/* Ranks that stay are in one group. `host`: the first of them. */
static ncclResult_t meeting_check_group(const struct group_handshake *all, int nranks, int host)
{
	const struct ep_terms *ours = &all[host].terms;

	for (int r = host + 1; r < nranks; r++) {
		const struct ep_terms *t = &all[r].terms;

		if (t->part == EP_PART_STAY && (t->team != ours->team || t->topk != ours->topk)) {
			return ep_fail(
				ncclInvalidArgument,
				"ncclEpExtReplaceRanks: ranks %d and %d call it on different "
				"groups",
				host, r);
		}
	}
	return ncclSuccess;
}

/*
 * Who joins can be where the lost rank was: in a process of its own, on a GPU that has as many SMs.
 */
static ncclResult_t meeting_check_newcomer(const struct group_handshake *all, int nranks, int host,
					   int newcomer)
{
	const struct ep_terms *ours = &all[host].terms, *t = &all[newcomer].terms;

	for (int r = 0; r < nranks; r++) {
		if (all[r].terms.part == EP_PART_STAY &&
		    ep_ident_same_process(&all[r].ident, &all[newcomer].ident)) {
			return ep_fail(ncclInvalidUsage,
				       "rank %d joins in the process of rank %d, which stays: "
				       "newcomers need processes of their own, or all make a new "
				       "group",
				       newcomer, r);
		}
	}
	for (int i = 0; i < EP_BUDGETS; i++) {
		if (t->sms[i] < ours->least_sms[i]) {
			return ep_fail(ncclInvalidUsage,
				       "rank %d joins with %u SMs for an operation, but the group "
				       "counts on %u: give it as many, or all make a new group",
				       newcomer, t->sms[i], ours->least_sms[i]);
		}
	}
	return ncclSuccess;
}

/* All ranks make a group, or some join those who are in one. *host: whose terms count. */
static ncclResult_t meeting_check_parts(const struct group_handshake *all, int nranks, int *host)
{
	int first[3] = { -1, -1, -1 };

	for (int r = nranks - 1; r >= 0; r--) {
		if (all[r].ident.build != all[0].ident.build || all[r].terms.part > EP_PART_STAY) {
			return ep_fail(ncclInvalidUsage,
				       "ranks %d and 0 have different builds of the library: all "
				       "ranks need the same; this rank has %s",
				       r, ep_build_text);
		}
		first[all[r].terms.part] = r;
	}
	*host = 0;
	for (int part = EP_PART_JOIN; part <= EP_PART_STAY && first[EP_PART_CREATE] >= 0; part++) {
		if (first[part] >= 0) {
			return ep_fail(ncclInvalidUsage, "rank %d calls %s, but rank %d %s",
				       first[EP_PART_CREATE], part_calls[EP_PART_CREATE],
				       first[part], part_calls[part]);
		}
	}
	if (first[EP_PART_CREATE] >= 0) {
		return ncclSuccess;
	}
	if (first[EP_PART_STAY] < 0 || first[EP_PART_JOIN] < 0) {
		bool joins = first[EP_PART_JOIN] >= 0;

		return ep_fail(ncclInvalidUsage, "all ranks call %s: %s",
			       part_calls[joins ? EP_PART_JOIN : EP_PART_STAY],
			       joins ? "none is in a group that they could join" : "none joins");
	}
	*host = first[EP_PART_STAY];
	EP_CHECK(meeting_check_group(all, nranks, *host));
	for (int r = 0; r < nranks; r++) {
		if (all[r].terms.part == EP_PART_JOIN) {
			EP_CHECK(meeting_check_newcomer(all, nranks, *host, r));
		}
	}
	return ncclSuccess;
}

/*
 * Newcomers are mapped at the addresses of those who were there before, which needs windows and one
 * node.
 */
static ncclResult_t meeting_check_memory(const struct ep_meeting *m, int nranks)
{
	for (int r = 1; r < nranks; r++) {
		if (!ep_ident_same_node(&m->idents[0], &m->idents[r])) {
			return ep_fail(ncclInvalidUsage,
				       "ranks cannot join a group of several nodes: rank %d is not "
				       "on the node of rank 0; all make a new group",
				       r);
		}
	}
	if (m->memory->mapping != &ep_peer_window) {
		return ep_fail(ncclInvalidUsage,
			       "ranks cannot join a group whose memory is mapped by %s%s%s%s, only "
			       "by NCCL windows: all make a new group",
			       m->memory->mapping->name,
			       m->memory->no_window.text[0] ? " (no windows: " : "",
			       m->memory->no_window.text, m->memory->no_window.text[0] ? ")" : "");
	}
	m->memory->next = NULL;
	m->memory->multicast = false;
	(void)ep_reason_set(&m->memory->no_multicast, "ranks have joined the group");
	return ncclSuccess;
}

/* What the rank that has fewest SMs for it has, for each budget. */
static void meeting_least_sms(const struct group_handshake *all, int nranks, bool in_host,
			      uint32_t *least)
{
	for (int i = 0; i < EP_BUDGETS; i++) {
		least[i] = UINT32_MAX;
		for (int r = 0; r < nranks; r++) {
			const struct ep_terms *t = &all[r].terms;

			least[i] = (uint32_t)ep_min_u64(least[i],
							in_host ? t->host_sms[i] : t->sms[i]);
		}
	}
}

ncclResult_t ep_group_meet(struct ncclEpGroup *g, struct ep_boot *boot, struct ep_meeting *m,
			   ncclResult_t mine)
{
	const struct group_handshake *all = boot->all;
	struct group_handshake own;
	int host;

	memset(&own, 0, sizeof(own));
	if (mine == ncclSuccess) {
		mine = ep_ident_make(&own.ident, g->device);
	}
	if (mine == ncclSuccess) {
		own.agreed = ep_group_config_agreed(&g->config);
		ep_peer_offer_make(&own.offer, boot->comm, g->config.memory, g->config.nvls);
		for (int i = 0; i < EP_BUDGETS; i++) {
			m->terms.sms[i] = g->config.budget[i].sms;
			m->terms.host_sms[i] = ep_group_config_host_sms(&g->config.budget[i]);
		}
		own.terms = m->terms;
		own.heaps = ep_heap_teams_now();
	}
	own.verdict = ep_verdict_make(mine);
	EP_CHECK(ep_boot_verdicts(boot, &own, boot->all, sizeof(own), part_calls[m->terms.part]));
	EP_CHECK(meeting_check_parts(all, boot->nranks, &host));
	EP_CHECK(ep_group_agreed_check(&all[0].agreed, sizeof(own), boot->nranks));
	for (int r = 0; r < boot->nranks; r++) {
		m->idents[r] = all[r].ident;
		if (m->newcomers) {
			m->newcomers[r] = all[r].terms.part == EP_PART_JOIN;
		}
		ep_heap_let_go(&all[r].ident, &all[r].heaps);
	}
	m->terms = all[host].terms;
	EP_CHECK(ep_peer_choose(m->memory, m->idents, &all[0].offer, sizeof(own),
				&g->config.node_size, boot->nranks));
	if (m->terms.part != EP_PART_CREATE) {
		return meeting_check_memory(m, boot->nranks);
	}
	meeting_least_sms(all, boot->nranks, m->memory->mapping->in_host, m->terms.least_sms);
	return ncclSuccess;
}

/* This rank has met those with whom it makes a group, or whose group it joins. */
static ncclResult_t group_introduce(struct ncclEpGroup *g, struct ep_boot *boot, enum ep_part part,
				    struct ep_terms *terms, ncclResult_t mine)
{
	struct ep_meeting m = { .terms = { .part = part, .team = ep_random_u64() } };

	if (g) {
		m.idents = g->idents;
		m.memory = &g->memory;
	}
	EP_CHECK(ep_group_meet(g, boot, &m, mine));
	*terms = m.terms;
	boot->idents = g->idents;
	memcpy(g->config.least_sms, terms->least_sms, sizeof(g->config.least_sms));
	ep_show_ranks(g, terms->team);
	if (g->memory.mapping->in_host) {
		ep_group_config_spare_bus(&g->config);
	}
	for (int r = 0; r < g->nranks; r++) {
		g->remote_ranks += ep_group_is_remote(g, (uint32_t)r);
	}
	ep_group_config_size(&g->config, ep_nodes_most(&g->idents[0].node, sizeof(g->idents[0]),
						       g->nranks, &g->config.shape.roles));
	if (part == EP_PART_JOIN) {
		g->first_step = terms->step;
		ep_ranks_add(&g->joined, (uint32_t)g->rank);
	}
	return ncclSuccess;
}

/* ---- making, with the other ranks ---- */

/*
 * Rows travel as lines if all ranks see NVLink to all of their node, or by the config; never in
 * host memory.
 */
static ncclResult_t group_choose_lines(struct ncclEpGroup *g, struct ep_boot *boot)
{
	const struct ep_peer_mapping *mapping = g->memory.mapping;
	uint32_t mine = ep_peer_all_nvlink(mapping, g->idents, g->nranks, g->rank);
	const uint32_t *all = boot->all;

	g->lines = g->config.lines_choice == 1 && !mapping->in_host;
	if (g->config.lines_choice >= 0) {
		return ncclSuccess;
	}
	EP_CHECK(ep_boot_allgather(boot, &mine, boot->all, sizeof(mine), "ncclEpCreateGroup"));
	g->lines = true;
	for (int r = 0; r < g->nranks; r++) {
		g->lines &= all[r] != 0;
	}
	return ncclSuccess;
}

/*
 * That this rank can be in a group whose rows travel as lines because all GPUs are joined by
 * NVLink.
 */
static ncclResult_t group_check_lines(const struct ncclEpGroup *g)
{
	if (g->lines && g->config.lines_choice < 0 &&
	    !ep_peer_all_nvlink(g->memory.mapping, g->idents, g->nranks, g->rank)) {
		return ep_fail(
			ncclInvalidUsage,
			"rank %d's GPU %s is not joined to all others by NVLink, as those of "
			"the group are: all make a new group",
			g->rank, g->idents[g->rank].bus_id);
	}
	return ncclSuccess;
}

/* The heap for handles of the top-k that the others have, or of the config's. */
static void group_choose_heap(struct ncclEpGroup *g, uint32_t topk)
{
	g->heap = g->config.heap;
	if (topk > g->heap.topk) {
		g->heap = g->config.algo->heap(&g->config.shape, topk);
	}
}

/* With the other ranks. On failure g is one to give up. NULL: there was no memory for it. */
static ncclResult_t group_make(struct ncclEpGroup *g, struct ep_boot *boot, struct ep_times *times,
			       enum ep_part part, ncclResult_t mine)
{
	struct ep_terms terms;
	ncclResult_t result;

	EP_CHECK(group_introduce(g, boot, part, &terms, mine));
	g->lines = terms.lines;
	if (part == EP_PART_CREATE) {
		EP_CHECK(group_choose_lines(g, boot));
	}
	ep_times_phase(times, boot, EP_TIME_GPUS);
	ep_group_give_up_again();
	ep_heap_reap(g->comm); /* all ranks are here, so whatever they have left before can go */
	mine = group_set_up(g, boot, times);
	if (part == EP_PART_JOIN && mine == ncclSuccess) {
		mine = group_check_lines(g);
	}
	ep_times_phase(times, boot, EP_TIME_MEMORY);
	result = ep_group_remote_open(g, boot, mine);
	ep_times_phase(times, boot, EP_TIME_NICS);
	if (result != ncclSuccess && g->remote_ranks) {
		return result; /* as on all ranks */
	}
	group_choose_heap(g, terms.topk);
	EP_CHECK(ep_heap_open(&g->peer_heap, boot, g->idents, &g->memory, terms.team,
			      ep_group_heap_bytes(&g->config, g->heap.topk), result));
	ep_times_phase(times, boot, EP_TIME_MEMORY);
	EP_CHECK(ep_group_remote_bind(g, boot, &g->peer_heap, &g->heap));
	EP_CHECK(ep_group_heap_bind(g, boot));
	ep_times_phase(times, boot, EP_TIME_NICS);
	return ncclSuccess;
}

static void group_log(const struct ncclEpGroup *g, const struct ep_boot *boot,
		      const struct ep_times *times)
{
	char choices[120], text[320];

	g->config.algo->group_describe(g, choices, sizeof(choices));
	EP_INFO(EP_LOG_INIT,
		"group %p rank %d of %d: %s, %u experts, %u tokens of %u bytes per rank, "
		"heap %llu bytes by %s%s%s%s, %s, timeout %llu ms%s; "
		"%u ranks of other nodes, %u channels",
		(const void *)g, g->rank, g->nranks, g->config.algo->limits.mode,
		g->config.num_experts, g->config.shape.max_tokens, g->config.shape.max_token_bytes,
		(unsigned long long)g->peer_heap.bytes, g->memory.mapping->name,
		g->memory.no_window.text[0] ? " (no windows: " : "", g->memory.no_window.text,
		g->memory.no_window.text[0] ? ")" : "", choices,
		(unsigned long long)(g->config.timeout_ns / 1000000),
		g->config.enable_mask ? ", masks" : "", g->remote_ranks, g->config.shape.channels);
	EP_INFO(EP_LOG_INIT, "group %p rank %d: progress words by %s%s%s", (const void *)g, g->rank,
		g->memory.multicast ? "NVLink multicast" : "a store for each rank (no multicast: ",
		g->memory.no_multicast.text, g->memory.multicast ? "" : ")");
	ep_times_describe(times, boot, text, sizeof(text));
	EP_INFO(EP_LOG_INIT, "group %p rank %d: made in %s", (const void *)g, g->rank, text);
}

/* From here on other groups of the device leave this one its share of the SMs. */
static void group_reside(struct ncclEpGroup *g)
{
	g->resident = (struct ep_resident){
		.device = g->device,
		.sm_count = g->sm_count,
		.all_wait = g->ht != NULL,
	};
	for (int i = g->ht ? EP_BUDGET_SHARED : EP_BUDGET_DISPATCH; i < EP_BUDGETS; i++) {
		const struct ep_budget *b = &g->config.budget[i];
		uint32_t *most = &g->resident.most, *chosen = &g->resident.chosen;

		*most = (uint32_t)ep_max_u64(*most, b->sms);
		*chosen = (uint32_t)ep_max_u64(*chosen, b->automatic ? 0 : b->sms);
	}
	ep_resident_add(&g->resident);
}

/*
 * The communicator's; if it cannot be had the current one, by which the others shall learn of that.
 */
static ncclResult_t group_select_device(ncclComm_t comm, int *device, const char *call,
					ncclResult_t mine)
{
	ncclResult_t result = ep_nccl_dyn()->comm_cu_device(comm, device);
	cudaError_t err;

	if (result != ncclSuccess) {
		if (cudaGetDevice(device) != cudaSuccess) {
			(void)cudaGetLastError();
		}
		return mine != ncclSuccess ? mine
					   : ep_fail(result,
						     "%s: the communicator does not report its "
						     "device: %s",
						     call, ep_nccl_text(result));
	}
	err = cudaSetDevice(*device);
	if (err == cudaSuccess) {
		return mine;
	}
	if (mine != ncclSuccess) {
		(void)cudaGetLastError();
		return mine;
	}
	return ep_fail_cuda(err, "ncclEpCreateGroup: selecting the communicator's device");
}

/* NCCL's way to do without peer access, which is none for this library. Once. */
static void group_p2p_warn(const struct ncclEpGroup *g)
{
	static atomic_flag logged = ATOMIC_FLAG_INIT;
	const char *disable = getenv("NCCL_P2P_DISABLE"), *level = getenv("NCCL_P2P_LEVEL");
	bool off = disable && *disable && strcmp(disable, "0") != 0;

	if (!off && (!level || (strcasecmp(level, "LOC") != 0 && strcmp(level, "0") != 0))) {
		return;
	}
	if (g->config.shape.nodes.near == 1 || g->memory.mapping->in_host ||
	    atomic_flag_test_and_set(&logged)) {
		return;
	}
	EP_WARN("%s=%.16s does not count here: ranks of a node write each other's memory (by %s). "
		"Where that does not work (ACS, IOMMU), NCCL_EP_MEMORY=host makes them use host "
		"memory, and NCCL_EP_NODE_SIZE=1 on all ranks RDMA",
		off ? "NCCL_P2P_DISABLE" : "NCCL_P2P_LEVEL", off ? disable : level,
		g->memory.mapping->name);
}

ncclResult_t ep_group_create(struct ncclEpGroup **ep_group, ncclComm_t comm,
			     const ncclEpGroupConfig_t *config, const ncclEpExtRoles_t *roles,
			     enum ep_part part)
{
	const char *call = part_calls[part];
	struct ncclEpGroup *g = NULL;
	ncclEpGroupConfig_t own;
	ncclEpExtRoles_t own_roles;
	struct ep_times times;
	struct ep_boot boot;
	ncclResult_t result, mine;
	uint64_t timeout_ns;
	int device = 0;

	ep_times_start(&times);
	ep_nccl_logger_use();
	if (!comm) {
		return ep_fail(ncclInvalidArgument, "%s: comm is NULL", call);
	}
	EP_CHECK(ep_nccl_need(call));
	/* The other ranks are coming: they get what is wrong here by the first exchange. */
	mine = ep_group ? EP_IMPORT(&own, config, NCCL_EP_GROUP_CONFIG)
			: ep_fail(ncclInvalidArgument, "%s: ep_group is NULL", call);
	mine = mine == ncclSuccess ? ep_nccl_check_version(call) : mine;
	if (mine == ncclSuccess) {
		mine = EP_IMPORT_OPTIONAL(&own_roles, roles, NCCL_EP_EXT_ROLES);
	}
	mine = group_select_device(comm, &device, call, mine);
	/*
	 * An error of the environment reaches all ranks by the exchange itself, which needs a time
	 * limit.
	 */
	timeout_ns = (uint64_t)ep_param_or_initial(EP_PARAM_BOOTSTRAP_TIMEOUT_MS) * 1000000;
	EP_CHECK(ep_boot_open(&boot, comm, timeout_ns, &mine));
	ep_version_log(boot.rank);
	ep_times_phase(&times, &boot, EP_TIME_MEMORY);
	if (mine == ncclSuccess) {
		g = group_new(comm, &boot, device);
		mine = g ? group_configure(g, &own, &own_roles)
			 : ep_fail(ncclSystemError, "ncclEpCreateGroup: out of host memory");
	}
	if (mine == ncclSuccess) {
		ep_show_open(g);
		boot.board = g->show.board;
	}
	result = group_make(g, &boot, &times, part, mine);
	if (result != ncclSuccess) {
		boot.board = NULL;
		if (g) {
			ep_show_hide(&g->show);
		}
		ep_group_give_up(&boot, device, g, NULL);
		return result;
	}
	ep_boot_close(&boot);
	ep_times_phase(&times, &boot, EP_TIME_MEMORY);
	group_log(g, &boot, &times);
	group_p2p_warn(g);
	ep_group_heap_warn(g, g->heap.topk);
	group_reside(g);
	ep_show_made(g, g->peer_heap.bytes + ep_group_workspace_bytes(&g->config) +
				ep_group_remote_bytes(&g->config));
	ep_watch_begin(g);
	ep_registry_made(g, EP_REGISTRY_GROUP);
	*ep_group = g;
	return ncclSuccess;
}
