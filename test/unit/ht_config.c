/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput: fields of a group's and of a handle's config. */
#include "ep/ep.h"
#include "ep/ht/ht.h"
#include "nccl_ep/ext.h"
#include "support/check_nccl.h"

#define FLAT NCCL_EP_LAYOUT_FLAT
#define EM NCCL_EP_LAYOUT_EXPERT_MAJOR

static struct ep_params params;
static struct ep_group_config made;

static ncclEpGroupConfig_t good(void)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;

	c.algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT;
	c.num_experts = 256;
	c.max_dispatch_tokens_per_rank = 4096;
	c.max_token_bytes = 14336;
	return c;
}

#define CHECK_REFUSED(field, value, nranks, code, part)                                            \
	do {                                                                                       \
		ncclEpGroupConfig_t c_ = good();                                                   \
		c_.field = value;                                                                  \
		CHECK_REASON(ep_group_config_make(&made, &c_, &params, nranks, 132), code, part);  \
	} while (0)

static void test_limits(void)
{
	CHECK_REFUSED(num_experts, 0, 8, ncclInvalidArgument, "num_experts is 0");
	CHECK_REFUSED(num_experts, 65536, 1, ncclInvalidArgument, "at most 65535");
	CHECK_REFUSED(num_experts, 65536, 8, ncclInvalidArgument, "num_experts is 65536");
	CHECK_REFUSED(max_dispatch_tokens_per_rank, 0, 8, ncclInvalidArgument, "is 0");
	CHECK_REFUSED(max_dispatch_tokens_per_rank, (1 << 24) + 1, 8, ncclInvalidArgument,
		      "from 1 to 16777216");
	CHECK_REFUSED(max_dispatch_tokens_per_rank, 1 << 24, 128, ncclInvalidArgument,
		      "128 ranks times config->max_dispatch_tokens_per_rank 16777216 exceeds");
	CHECK_REFUSED(max_token_bytes, 0, 8, ncclInvalidArgument, "max_token_bytes is 0");
	CHECK_REFUSED(max_token_bytes, 14344, 8, ncclInvalidArgument,
		      "max_token_bytes is 14344: high throughput mode needs a multiple of 16");
	CHECK_REFUSED(max_recv_tokens_per_rank, 4095, 8, ncclInvalidArgument,
		      "max_recv_tokens_per_rank is 4095: it is NCCL_EP_AUTO, or from "
		      "max_dispatch_tokens_per_rank 4096");
	CHECK_REFUSED(max_recv_tokens_per_rank, 0x80000000u, 8, ncclInvalidArgument, "2147483648");
	CHECK_REFUSED(overflow_policy, NCCL_EP_OVERFLOW_DROP, 8, ncclInvalidArgument,
		      "overflow_policy is DROP, but max_recv_tokens_per_rank is AUTO");
	CHECK_REFUSED(overflow_policy, (ncclEpOverflowPolicy_t)3, 8, ncclInvalidArgument,
		      "overflow_policy is 3");
	CHECK_REFUSED(zero_copy, (ncclEpZeroCopyMode_t)3, 8, ncclInvalidArgument, "zero_copy is 3");
	CHECK_REFUSED(num_topk, 257, 8, ncclInvalidArgument, "num_topk is 257, there are 256");
	CHECK_REFUSED(max_num_sms, 133, 8, ncclInvalidUsage, "is 133, the device has 132 SMs");
}

static void test_choices(void)
{
	ncclEpGroupConfig_t c = good();

	c.enable_mask = 1;
	c.rdma_buffer_size = 1 << 20;
	OK(ep_group_config_make(&made, &c, &params, 8, 132));
	CHECK(made.max_sms == 105 && made.auto_sms && made.shape.limit == EP_NO_LIMIT &&
	      !made.drop && !made.v1);
	CHECK(!made.enable_mask && made.explicit_bytes == 0 && made.shape.banks == 1);
	CHECK(made.heap.topk == 32 && made.shape.ring_bytes == 1 << 27);
	OK(ep_group_config_make(&made, &c, &params, 8, 10));
	CHECK(made.max_sms == 8);
	OK(ep_group_config_make(&made, &c, &params, 8, 1));
	CHECK(made.max_sms == 1);
	c.max_num_sms = 64;
	c.max_recv_tokens_per_rank = 4096;
	c.overflow_policy = NCCL_EP_OVERFLOW_DROP;
	c.num_topk = 200;
	OK(ep_group_config_make(&made, &c, &params, 8, 132));
	CHECK(made.max_sms == 64 && !made.auto_sms && made.shape.limit == 4096 && made.drop);
	CHECK(made.heap.topk == 32);
	for (c.version = 0; c.version < 2;
	     c.version++) { /* is not examined: the size says what is there */
		OK(ep_group_config_make(&made, &c, &params, 8, 132));
		CHECK(!made.v1 && made.drop);
	}
	c = good();
	c.size = NCCL_EP_GROUP_CONFIG_V1_SIZE;
	OK(ep_group_config_make(&made, &c, &params, 8, 132));
	CHECK(made.v1);
	c = good();
	c.max_dispatch_tokens_per_rank = 65536; /* no limit of low latency counts */
	c.num_experts = 1024;
	OK(ep_group_config_make(&made, &c, &params, 8, 132));
}

static void test_handles(void)
{
	ncclEpHandleConfig_t h = NCCL_EP_HANDLE_CONFIG_INIT;
	ncclEpGroupConfig_t c = good();

	OK(ep_group_config_make(&made, &c, &params, 8, 132));
	OK(ep_handle_check(&made, FLAT, NULL, 32));
	CHECK_REASON(ep_handle_check(&made, FLAT, NULL, 33), ncclInvalidArgument, "1 to 32");
	CHECK_REASON(
		ep_handle_check(&made, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 8), ncclInvalidArgument,
		"high throughput mode has NCCL_EP_LAYOUT_EXPERT_MAJOR and NCCL_EP_LAYOUT_FLAT");
	CHECK_REASON(ep_handle_check(&made, EM, NULL, 8), ncclInvalidUsage,
		     "eager mode (max_recv_tokens_per_rank AUTO) need a group with num_topk");
	c.num_topk = 8;
	OK(ep_group_config_make(&made, &c, &params, 8, 132));
	OK(ep_handle_check(&made, EM, NULL, 8));
	CHECK_REASON(ep_handle_check(&made, EM, NULL, 9), ncclInvalidUsage,
		     "num_topk is 9, the group's is 8");
	h.dispatch_output_per_expert_alignment = 48;
	CHECK_REASON(ep_handle_check(&made, EM, &h, 8), ncclInvalidArgument,
		     "dispatch_output_per_expert_alignment is 48: it is 0 or a power of two");
	OK(ep_handle_check(&made, FLAT, &h, 8)); /* ignored */
	h.dispatch_output_per_expert_alignment = (size_t)1 << 32;
	CHECK_REASON(ep_handle_check(&made, EM, &h, 8), ncclInvalidArgument, "is 4294967296");
	h.dispatch_output_per_expert_alignment = 1 << 26;
	CHECK_REASON(ep_handle_check(&made, EM, &h, 8), ncclInvalidUsage,
		     "zones aligned to 67108864), which exceeds 2147483647");
	h.dispatch_output_per_expert_alignment = 128;
	OK(ep_handle_check(&made, EM, &h, 8));
	c.num_topk = 32;
	c.max_dispatch_tokens_per_rank = 1 << 24;
	OK(ep_group_config_make(&made, &c, &params, 8, 132));
	CHECK_REASON(ep_handle_check(&made, FLAT, NULL, 32), ncclInvalidUsage, "exceed 2147483647");
	OK(ep_group_config_make(&made, &c, &params, 2, 132));
	OK(ep_handle_check(&made, FLAT, NULL, 32));
	ep_group_config_size(&made, ep_nodes_alike(1, 1, 2));
	OK(ep_handle_check(&made, FLAT, NULL, 16));
	CHECK_REASON(ep_handle_check(&made, FLAT, NULL, 17), ncclInvalidUsage,
		     "take 1140850688 bytes, and a message to another node has at most 1073741824");
}

static void test_query(void)
{
	ncclEpExtMemory_t m = NCCL_EP_EXT_MEMORY_INIT;
	ncclEpGroupConfig_t c = good();

	OK(ncclEpExtDeviceMemory(&c, 8, FLAT, 8, &m));
	OK(ep_group_config_make(&made, &c, &params, 8, 132));
	CHECK(m.heap_bytes == made.heap_bytes && m.heap_bytes < 160000000);
	CHECK(m.group_bytes == m.heap_bytes + ep_group_workspace_bytes(&made));
	CHECK(m.handle_bytes == ep_ht_algo.handle_bytes(&made.shape, FLAT, 8));
	CHECK(m.group_bytes + m.handle_bytes < 300000000);
	m.remote_ranks = 4;
	OK(ncclEpExtDeviceMemory(&c, 8, FLAT, 8, &m));
	ep_group_config_size(&made, ep_nodes_alike(4, 4, 8));
	CHECK(made.shape.flows == 1);
	CHECK(m.heap_bytes == made.heap_bytes);
	CHECK(m.handle_bytes == ep_ht_algo.handle_bytes(&made.shape, FLAT, 8));
}

/* Queues for rows of each flow: with credits' one they are a group's channels. */
static void test_channels(void)
{
	static const struct {
		uint32_t nodes, asked, queues;
	} rows[] = { { 2, 0, 4 }, { 3, 0, 2 }, { 4, 0, 1 }, { 8, 0, 1 },
		     { 2, 1, 1 }, { 2, 3, 2 }, { 8, 8, 8 }, { 2, 15, 8 } };
	ncclEpGroupConfig_t c = good();

	OK(ep_group_config_make(&made, &c, &params, 64, 132));
	CHECK_INT(made.shape.channels, 0);
	for (size_t i = 0; i < EP_ARRAY_SIZE(rows); i++) {
		uint32_t n = rows[i].nodes;

		made.rdma_queues = rows[i].asked;
		ep_group_config_size(&made, ep_nodes_alike(8, 8 * (n - 1), 8 * n));
		CHECK_INT(made.shape.flows, n - 1);
		CHECK_INT(made.shape.channels, EP_HT_ROWS + rows[i].queues);
	}
}

int main(void)
{
	for (int i = 0; i < EP_PARAMS; i++) {
		params.value[i] = ep_param_table[i].initial;
	}
	test_limits();
	test_choices();
	test_handles();
	test_query();
	test_channels();
	return check_end();
}
