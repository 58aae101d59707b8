/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A group's config: the fields are checked, choices made, the group sized, and what ranks must pass
 * alike compared.
 */
#include <stdio.h>
#include <string.h>
#include "core/log.h"
#include "device/group/group_layout.h"
#include "ep/ep.h"
#include "peer/peer.h"

#define EP_DEFAULT_TIMEOUT_NS 100000000000ull

_Static_assert(EP_PARAM_NODE_MAX == EP_GROUP_MAX_RANKS, "NCCL_EP_NODE_SIZE");

static ncclResult_t config_check_choices(const ncclEpGroupConfig_t *c)
{
	if ((unsigned int)c->algorithm > NCCL_EP_ALGO_HIGH_THROUGHPUT) {
		return ep_fail(ncclInvalidArgument,
			       "config->algorithm is %d: it is "
			       "NCCL_EP_ALGO_LOW_LATENCY or NCCL_EP_ALGO_HIGH_THROUGHPUT",
			       (int)c->algorithm);
	}
	if ((unsigned int)c->zero_copy > NCCL_EP_ZERO_COPY_ON) {
		return ep_fail(ncclInvalidArgument,
			       "config->zero_copy is %d, the largest value is "
			       "%d",
			       (int)c->zero_copy, NCCL_EP_ZERO_COPY_ON);
	}
	if ((unsigned int)c->overflow_policy > NCCL_EP_OVERFLOW_DROP) {
		return ep_fail(ncclInvalidArgument,
			       "config->overflow_policy is %d, the largest "
			       "value is %d",
			       (int)c->overflow_policy, NCCL_EP_OVERFLOW_DROP);
	}
	if (!c->alloc.alloc_fn != !c->alloc.free_fn) {
		return ep_fail(ncclInvalidUsage, "config->alloc has %s but no %s: set both or none",
			       c->alloc.alloc_fn ? "alloc_fn" : "free_fn",
			       c->alloc.alloc_fn ? "free_fn" : "alloc_fn");
	}
	return ncclSuccess;
}

static ncclResult_t config_check_ranks(const struct ep_limits *limits, int nranks)
{
	if (nranks >= 1 && (uint32_t)nranks <= limits->max_ranks) {
		return ncclSuccess;
	}
	return ep_fail(ncclInvalidUsage, "a group of %d ranks: %s mode takes 1 to %u", nranks,
		       limits->mode, limits->max_ranks);
}

/* A range of ranks, of which a count of 0 stands for all. */
static ncclResult_t config_choose_range(uint32_t *first, uint32_t *count, int nranks,
					const char *what)
{
	if (!*count && !*first) {
		*count = (uint32_t)nranks;
	}
	if (*count && *first < (uint32_t)nranks && *count <= (uint32_t)nranks - *first) {
		return ncclSuccess;
	}
	return ep_fail(ncclInvalidArgument,
		       "roles->first_%s is %u and num_%ss is %u: there are %d ranks, and only "
		       "with both 0 they stand for all",
		       what, *first, what, *count, nranks);
}

static ncclResult_t config_choose_roles(struct ep_roles *out, const ncclEpExtRoles_t *roles,
					int nranks)
{
	*out = (struct ep_roles){ 0 };
	if (roles) {
		*out = (struct ep_roles){
			.first_holder = roles->first_holder,
			.holders = roles->num_holders,
			.first_sender = roles->first_sender,
			.senders = roles->num_senders,
		};
	}
	EP_CHECK(config_choose_range(&out->first_holder, &out->holders, nranks, "holder"));
	return config_choose_range(&out->first_sender, &out->senders, nranks, "sender");
}

static ncclResult_t config_check_sizes(const ncclEpGroupConfig_t *c, const struct ep_limits *limits,
				       const struct ep_roles *roles, int nranks)
{
	uint32_t tokens = c->max_dispatch_tokens_per_rank;

	if (c->num_experts == 0 || c->num_experts % roles->holders) {
		return ep_fail(ncclInvalidArgument,
			       "config->num_experts is %u: it must be a "
			       "positive multiple of the %u ranks%s",
			       c->num_experts, roles->holders,
			       roles->holders == (uint32_t)nranks ? "" : " that hold experts");
	}
	if (tokens == 0 || tokens > limits->max_tokens) {
		return ep_fail(ncclInvalidArgument,
			       "config->max_dispatch_tokens_per_rank is %u: it "
			       "is required, from 1 to %u",
			       tokens, limits->max_tokens);
	}
	if (c->max_token_bytes == 0 || c->max_token_bytes > 1u << 24) {
		return ep_fail(ncclInvalidArgument,
			       "config->max_token_bytes is %u: it is required, "
			       "from 1 to %u",
			       c->max_token_bytes, 1u << 24);
	}
	if (c->num_topk > c->num_experts) {
		return ep_fail(ncclInvalidArgument, "config->num_topk is %u, there are %u experts",
			       c->num_topk, c->num_experts);
	}
	return ncclSuccess;
}

/*
 * The number of SMs that a variable asks for; 0: none that this device can give, which is logged.
 */
static uint32_t config_variable_sms(const struct ep_params *params, enum ep_param_id id,
				    uint32_t sm_count)
{
	uint32_t sms = (uint32_t)params->value[id];

	if ((sm_count && sms > sm_count) || (!sms && params->set[id])) {
		EP_WARN("%s=%u has no effect, it can be 1 to the %u SMs of the device",
			ep_param_table[id].name, sms, sm_count);
		return 0;
	}
	return sms;
}

/* Each operation by itself: its variable, that of both, its field, that of both, or AUTO. */
static ncclResult_t config_choose_sms(struct ep_group_config *out, const ncclEpGroupConfig_t *c,
				      const struct ep_params *params, uint32_t sm_count)
{
	static const enum ep_param_id variables[EP_BUDGETS] = { EP_PARAM_COMM_SMS,
								EP_PARAM_DISPATCH_SMS,
								EP_PARAM_COMBINE_SMS };
	static const char *const names[EP_BUDGETS] = { "max_num_sms", "dispatch_num_sms",
						       "combine_num_sms" };
	const uint32_t fields[EP_BUDGETS] = { c->max_num_sms, c->dispatch_num_sms,
					      c->combine_num_sms };
	uint32_t all = 0, automatic = sm_count, spare = out->algo->limits.spare_sms;

	if (spare && sm_count > 1) {
		automatic -= ep_ceil_div(sm_count, spare);
	}
	for (int i = 0; i < EP_BUDGETS; i++) {
		uint32_t sms = config_variable_sms(params, variables[i], sm_count);

		if (sm_count && fields[i] > sm_count) {
			return ep_fail(ncclInvalidUsage, "config->%s is %u, the device has %u SMs",
				       names[i], fields[i], sm_count);
		}
		if (i == EP_BUDGET_SHARED) {
			all = sms;
		}
		sms = sms ? sms : all;
		sms = sms ? sms : fields[i];
		sms = sms ? sms : c->max_num_sms;
		out->budget[i] = (struct ep_budget){ sms ? sms : automatic, !sms };
	}
	return ncclSuccess;
}

/*
 * Of two H200, for one token, for 64 and for 4096: with fewer bytes go slower, with more all else
 * does.
 */
#define EP_HOST_SMS 8

uint32_t ep_group_config_host_sms(const struct ep_budget *budget)
{
	return budget->automatic ? (uint32_t)ep_min_u64(budget->sms, EP_HOST_SMS) : budget->sms;
}

void ep_group_config_spare_bus(struct ep_group_config *config)
{
	for (int i = 0; i < EP_BUDGETS; i++) {
		config->budget[i].sms = ep_group_config_host_sms(&config->budget[i]);
	}
}

/*
 * 146 years, so that kernels may add and subtract times; who never wants to give up asks for more.
 */
#define EP_TIMEOUT_MOST_NS (UINT64_C(1) << 62)

static uint64_t config_timeout(const ncclEpGroupConfig_t *c, const struct ep_params *params)
{
	const uint64_t ms = 1000000;

	if (params->value[EP_PARAM_TIMEOUT_MS] > 0) {
		return (uint64_t)params->value[EP_PARAM_TIMEOUT_MS] * ms;
	}
	if (c->timeout_ns == 0) {
		return EP_DEFAULT_TIMEOUT_NS;
	}
	return (ep_min_u64(c->timeout_ns, EP_TIMEOUT_MOST_NS) + ms - 1) / ms * ms;
}

/* Fields that low latency ignores. */
static void config_choose_ht(struct ep_group_config *out, const ncclEpGroupConfig_t *c,
			     const struct ep_params *params)
{
	if (c->max_recv_tokens_per_rank) {
		out->shape.limit = c->max_recv_tokens_per_rank;
	}
	out->drop = c->overflow_policy == NCCL_EP_OVERFLOW_DROP;
	out->overlap = params->value[EP_PARAM_OVERLAP] != 0;
	out->send_warps = (int)params->value[EP_PARAM_HT_SEND_WARPS];
	out->shape.ring_bytes = (uint32_t)params->value[EP_PARAM_HT_RING_BYTES];
}

ncclResult_t ep_group_config_make(struct ep_group_config *out, const ncclEpGroupConfig_t *c,
				  const ncclEpExtRoles_t *asked, const struct ep_params *params,
				  int nranks, uint32_t sm_count)
{
	struct ep_roles roles;

	memset(out, 0, sizeof(*out));
	EP_CHECK(config_check_choices(c));
	out->algo = c->algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT ? &ep_ht_algo : &ep_ll_algo;
	EP_CHECK(config_check_ranks(&out->algo->limits, nranks));
	EP_CHECK(config_choose_roles(&roles, asked, nranks));
	EP_CHECK(config_check_sizes(c, &out->algo->limits, &roles, nranks));
	EP_CHECK(out->algo->config_check(c, &roles));
	EP_CHECK(config_choose_sms(out, c, params, sm_count));
	out->algorithm = c->algorithm;
	out->num_experts = c->num_experts;
	out->num_topk = c->num_topk;
	out->timeout_ns = config_timeout(c, params);
	out->enable_mask = c->enable_mask && out->algo->limits.masks;
	out->live = params->value[EP_PARAM_LIVE] != 0;
	out->api = c->size < NCCL_EP_GROUP_CONFIG_V2_SIZE   ? 1
		   : c->size < NCCL_EP_GROUP_CONFIG_V3_SIZE ? 2
							    : 3;
	out->zero_copy = c->zero_copy;
	out->alloc = c->alloc;
	out->direct_bytes = params->value[EP_PARAM_LL_DIRECT_BYTES];
	out->lines_choice = (int)params->value[EP_PARAM_LL_LINES];
	out->memory = (enum ep_memory)params->value[EP_PARAM_MEMORY];
	out->nvls = params->value[EP_PARAM_NVLS] != 0;
	out->node_size = params->node_size;
	out->node_code = params->value[EP_PARAM_NODE_SIZE];
	out->rdma_queues = (uint32_t)params->value[EP_PARAM_RDMA_QUEUES];
	out->rdma_depth = (uint32_t)params->value[EP_PARAM_RDMA_DEPTH];
	out->rdma_mode = (uint32_t)params->value[EP_PARAM_RDMA_MODE];
	out->shape = (struct ep_shape){
		.nranks = (uint32_t)nranks,
		.nlocal = c->num_experts / roles.holders,
		.roles = roles,
		.max_tokens = c->max_dispatch_tokens_per_rank,
		.max_token_bytes = c->max_token_bytes,
		.limit = EP_NO_LIMIT,
	};
	if (c->algorithm == NCCL_EP_ALGO_HIGH_THROUGHPUT) {
		config_choose_ht(out, c, params);
	} else {
		out->explicit_bytes = c->rdma_buffer_size;
	}
	ep_group_config_size(out, ep_nodes_alike((uint32_t)nranks, 0, nranks, &roles));
	return ncclSuccess;
}

/* ---- how large the group is: queue pairs, banks, heap; all ranks find the same ---- */

#define EP_GROUP_ROW_QUEUES 256

/*
 * 256 queue pairs for rows per rank, as far as they go: 1 to 8 per peer, unless the algorithm knows
 * better.
 */
static uint32_t config_channels(const struct ep_group_config *config, uint32_t remote)
{
	if (!remote || config->algo->channels) {
		return remote ? config->algo->channels(config) : 0;
	}
	if (config->rdma_queues) {
		return config->rdma_queues;
	}
	return (uint32_t)ep_max_u64(1, ep_min_u64(EP_GROUP_ROW_QUEUES / remote, 8));
}

void ep_group_config_size(struct ep_group_config *config, struct ep_nodes_most nodes)
{
	uint32_t most = config->algo->limits.max_topk;
	uint32_t topk = config->num_topk ? config->num_topk : config->algo->limits.auto_topk;
	uint64_t least = ep_max_u64(1, ep_min_u64(config->num_topk, most));

	config->shape.nodes = nodes;
	config->shape.channels = config_channels(config, nodes.remote);
	config->shape.banks = config->algo->limits.banks;
	if (nodes.remote && config->shape.banks > EP_GROUP_REMOTE_BANKS) {
		config->shape.banks = EP_GROUP_REMOTE_BANKS;
	}
	/* A size that was asked for holds as large a top-k as it can, if that is enough. */
	config->heap_bytes = ep_heap_alloc_bytes(config->explicit_bytes);
	for (uint32_t k = most; config->explicit_bytes && k >= least; k--) {
		config->heap = config->algo->heap(&config->shape, k);
		if (config->heap.bytes <= config->heap_bytes) {
			return;
		}
	}
	topk = (uint32_t)ep_min_u64(topk, ep_min_u64(config->num_experts, most));
	config->heap = config->algo->heap(&config->shape, topk);
	config->heap_bytes = ep_heap_alloc_bytes(config->heap.bytes);
}

/* ---- what all ranks must pass alike ---- */

/*
 * Each row: the value, its name in an error, and words for its values from 0 on; others are printed
 * as numbers.
 */
#define AGREED(FIELD)                                                                              \
	FIELD(c->algorithm, "config->algorithm", "LOW_LATENCY", "HIGH_THROUGHPUT")                 \
	FIELD(c->num_experts, "config->num_experts", NULL)                                         \
	FIELD(c->shape.roles.first_holder, "roles->first_holder", NULL)                            \
	FIELD(c->shape.roles.holders, "roles->num_holders", NULL)                                  \
	FIELD(c->shape.roles.first_sender, "roles->first_sender", NULL)                            \
	FIELD(c->shape.roles.senders, "roles->num_senders", NULL)                                  \
	FIELD(c->shape.max_tokens, "config->max_dispatch_tokens_per_rank", NULL)                   \
	FIELD(c->shape.max_token_bytes, "config->max_token_bytes", NULL)                           \
	FIELD(c->explicit_bytes, "config->rdma_buffer_size", "AUTO")                               \
	FIELD(c->enable_mask, "config->enable_mask", NULL)                                         \
	FIELD(c->num_topk, "config->num_topk", "unset")                                            \
	FIELD(c->zero_copy, "config->zero_copy", "AUTO", "OFF", "ON")                              \
	FIELD(c->shape.limit == EP_NO_LIMIT ? 0 : c->shape.limit,                                  \
	      "config->max_recv_tokens_per_rank", "AUTO")                                          \
	FIELD(c->drop, "config->overflow_policy", "TRAP", "DROP")                                  \
	FIELD(c->shape.ring_bytes, "environment variable NCCL_EP_HT_RING_BYTES", NULL)             \
	FIELD(c->overlap, "environment variable NCCL_EP_OVERLAP", NULL)                            \
	FIELD(c->lines_choice, "environment variable NCCL_EP_LL_LINES", NULL)                      \
	FIELD(c->direct_bytes, "environment variable NCCL_EP_LL_DIRECT_BYTES", NULL)               \
	FIELD(c->node_code,                                                                        \
	      "environment variable NCCL_EP_NODE_SIZE (lists: four digits for each node; of five " \
	      "nodes or more, a number made of all)",                                              \
	      NULL)                                                                                \
	FIELD(c->rdma_queues, "environment variable NCCL_EP_RDMA_QUEUES", NULL)                    \
	FIELD(c->heap.bytes, "the library's heap layout", NULL)

#define AGREED_TEXT(field, name, ...) { name, { __VA_ARGS__ } },
#define AGREED_VALUE(field, ...) (uint64_t)(field),

static const struct {
	const char *what;
	const char *words[3];
} agreed_fields[] = { AGREED(AGREED_TEXT) };
_Static_assert(EP_ARRAY_SIZE(agreed_fields) == EP_GROUP_AGREED, "EP_GROUP_AGREED");

struct ep_group_agreed ep_group_config_agreed(const struct ep_group_config *c)
{
	return (struct ep_group_agreed){ { AGREED(AGREED_VALUE) } };
}

static void agreed_print(int field, uint64_t value, char *text, size_t size)
{
	const char *const *words = agreed_fields[field].words;

	if (value < EP_ARRAY_SIZE(agreed_fields[field].words) && words[value]) {
		snprintf(text, size, "%s", words[value]);
	} else {
		snprintf(text, size, "%lld", (long long)value);
	}
}

ncclResult_t ep_group_agreed_check(const void *all, size_t stride, int nranks)
{
	const unsigned char *p = all;
	struct ep_group_agreed first, other;
	char ours[24], theirs[24];

	memcpy(&first, p, sizeof(first));
	for (int i = 0; i < EP_GROUP_AGREED; i++) {
		for (int r = 1; r < nranks; r++) {
			memcpy(&other, p + (size_t)r * stride, sizeof(other));
			if (other.value[i] == first.value[i]) {
				continue;
			}
			agreed_print(i, first.value[i], ours, sizeof(ours));
			agreed_print(i, other.value[i], theirs, sizeof(theirs));
			return ep_fail(ncclInvalidArgument,
				       "%s is %s on rank 0 but %s on rank %d: all ranks must "
				       "pass the same",
				       agreed_fields[i].what, ours, theirs, r);
		}
	}
	return ncclSuccess;
}
