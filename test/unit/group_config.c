/* SPDX-License-Identifier: Apache-2.0 */
/* Fields of a group's config: their limits, and what AUTO means. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "device/mlx5/mlx5_layout.h"
#include "peer/state.h"
#include "ep/ep.h"
#include "ep/ll/ll.h"
#include "nccl_ep/ext.h"
#include "support/check_nccl.h"
#include "ep/ht/ht.h"

static struct ep_params params;
static struct ep_group_config made;

static ncclEpGroupConfig_t good(void)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;

	c.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	c.num_experts = 256;
	c.max_dispatch_tokens_per_rank = 128;
	c.max_token_bytes = 14336;
	return c;
}

/* NCCL_NVLS_ENABLE=0 wins over NCCL_EP_NVLS=1 and over what NCCL says. */
static void test_nvls(void)
{
	static const char *const no[] = { "0", "0x0", "00", "", "off", "1x" };
	struct ep_reason why = { "" };

	setenv("NCCL_EP_NVLS", "1", 1);
	CHECK(ep_params_read(&params) == ncclSuccess && params.value[EP_PARAM_NVLS] == 1);
	unsetenv("NCCL_EP_NVLS");
	for (size_t i = 0; i < EP_ARRAY_SIZE(no); i++) {
		setenv("NCCL_NVLS_ENABLE", no[i], 1);
		CHECK(!ep_multicast_possible(true, true, true, &why));
		CHECK(strstr(why.text, "NCCL_NVLS_ENABLE=") == why.text);
	}
	setenv("NCCL_NVLS_ENABLE", "1", 1);
	CHECK(ep_multicast_possible(true, true, true, &why));
	CHECK(!ep_multicast_possible(false, true, true, &why));
	CHECK(!ep_multicast_possible(true, false, true, &why));
	CHECK(!ep_multicast_possible(true, true, false, &why));
	setenv("NCCL_NVLS_ENABLE", "0", 1);
	CHECK(ep_params_read(&params) == ncclSuccess && params.value[EP_PARAM_NVLS] == 0);
}

static cudaError_t some_alloc(void **ptr, size_t size, void *context)
{
	return cudaErrorMemoryAllocation;
}

#define CHECK_REFUSED(field, value, nranks, code, part)                                            \
	do {                                                                                       \
		ncclEpGroupConfig_t c_ = good();                                                   \
		c_.field = value;                                                                  \
		CHECK_REASON(ep_group_config_make(&made, &c_, NULL, &params, nranks, 132), code,   \
			     part);                                                                \
	} while (0)

static void test_limits(void)
{
	ncclEpGroupConfig_t c = good();

	CHECK_REFUSED(num_experts, 0, 8, ncclInvalidArgument, "num_experts is 0");
	CHECK_REFUSED(num_experts, 255, 8, ncclInvalidArgument, "num_experts is 255: it must be");
	CHECK_REFUSED(num_experts, 1u << 20, 8, ncclInvalidArgument,
		      "at most 16383 for each of the 8 ranks");
	CHECK_REFUSED(max_dispatch_tokens_per_rank, 0, 8, ncclInvalidArgument, "from 1 to 65535");
	CHECK_REFUSED(max_dispatch_tokens_per_rank, 65536, 8, ncclInvalidArgument, "is 65536");
	CHECK_REFUSED(max_token_bytes, 0, 8, ncclInvalidArgument, "max_token_bytes is 0");
	CHECK_REFUSED(max_token_bytes, (1u << 24) + 1, 8, ncclInvalidArgument, "max_token_bytes");
	CHECK_REFUSED(rdma_buffer_size, (1ul << 62) + 1, 8, ncclInvalidArgument,
		      "rdma_buffer_size is");
	CHECK_REFUSED(num_topk, 257, 8, ncclInvalidArgument, "num_topk is 257, there are 256");
	CHECK_REFUSED(max_num_sms, 133, 8, ncclInvalidUsage, "is 133, the device has 132 SMs");
	CHECK_REFUSED(dispatch_num_sms, 133, 8, ncclInvalidUsage,
		      "dispatch_num_sms is 133, the device has 132 SMs");
	CHECK_REFUSED(combine_num_sms, 133, 8, ncclInvalidUsage,
		      "combine_num_sms is 133, the device has 132 SMs");
	CHECK_REFUSED(alloc.alloc_fn, some_alloc, 8, ncclInvalidUsage, "alloc_fn but no free_fn");
	CHECK_REFUSED(alloc.free_fn, (ncclEpFreeFn_t)(uintptr_t)some_alloc, 8, ncclInvalidUsage,
		      "free_fn but no alloc_fn");
	CHECK_REFUSED(num_experts, 0xfffffff8, 8, ncclInvalidArgument, "num_experts");
	CHECK_REFUSED(algorithm, (ncclEpAlgorithm_t)2, 8, ncclInvalidArgument, "algorithm is 2");
	CHECK_REFUSED(overflow_policy, (ncclEpOverflowPolicy_t)3, 8, ncclInvalidArgument,
		      "overflow_policy is 3");
	CHECK_REFUSED(num_qp_per_rank, 0, 1025, ncclInvalidUsage,
		      "1025 ranks: low latency mode takes 1 to 1024");
	CHECK_REFUSED(num_qp_per_rank, 0, 0, ncclInvalidUsage,
		      "0 ranks: low latency mode takes 1 to");
	CHECK_REFUSED(num_qp_per_rank, 0, 7, ncclInvalidArgument, "multiple of the 7 ranks");
	c.algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT;
	c.num_experts = 1u << 20;
	CHECK_REASON(ep_group_config_make(&made, &c, NULL, &params, 8, 132), ncclInvalidArgument,
		     "num_experts is 1048576: high throughput mode takes at most 65535");
	c.num_experts = 256;
	c.rdma_buffer_size = ULONG_MAX; /* which this mode ignores */
	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
}

/* The budgets of UpdateHandle, dispatch and combine, and which of them are AUTO, as bits. */
static void check_sms(const ncclEpGroupConfig_t *c, uint32_t shared, uint32_t dispatch,
		      uint32_t combine, uint32_t automatic)
{
	const uint32_t want[EP_BUDGETS] = { shared, dispatch, combine };

	OK(ep_group_config_make(&made, c, NULL, &params, 8, 132));
	for (int i = 0; i < EP_BUDGETS; i++) {
		CHECK_INT(made.budget[i].sms, want[i]);
		CHECK_INT(made.budget[i].automatic, automatic >> i & 1);
	}
}

/* A variable that the device cannot give is passed over with a warning, once for each group. */
static void test_sms_warning(void)
{
	static const char want[] =
		"NCCL_EP_COMBINE_SMS=133 has no effect, it can be 1 to the 132 SMs";
	char path[] = "/tmp/group_config_XXXXXX", line[400];
	ncclEpGroupConfig_t c = good();
	int lines = 0, fd = mkstemp(path);
	FILE *f;

	NEED(fd >= 0);
	close(fd);
	setenv("NCCL_DEBUG", "WARN", 1);
	setenv("NCCL_DEBUG_FILE", path, 1);
	params.value[EP_PARAM_COMBINE_SMS] = 133;
	check_sms(&c, 132, 132, 132, 7);
	params.value[EP_PARAM_COMBINE_SMS] = 132;
	check_sms(&c, 132, 132, 132, 3);
	params.value[EP_PARAM_COMBINE_SMS] = 0;
	f = fopen(path, "r");
	NEED(f);
	while (fgets(line, sizeof(line), f)) {
		lines += strstr(line, want) != NULL;
	}
	fclose(f);
	unlink(path);
	CHECK_INT(lines, 1);
}

/*
 * An operation's variable, that of both, its field, that of both, AUTO; what is impossible is
 * passed over.
 */
static void test_sms(void)
{
	ncclEpGroupConfig_t c = good();

	check_sms(&c, 132, 132, 132, 7);
	c.combine_num_sms = 12;
	check_sms(&c, 132, 132, 12, 3);
	c.max_num_sms = 20;
	check_sms(&c, 20, 20, 12, 0);
	c.dispatch_num_sms = 132;
	check_sms(&c, 20, 132, 12, 0);
	params.value[EP_PARAM_COMM_SMS] = 132;
	check_sms(&c, 132, 132, 132, 0);
	params.value[EP_PARAM_DISPATCH_SMS] = 1;
	params.value[EP_PARAM_COMBINE_SMS] = 133;
	check_sms(&c, 132, 1, 132, 0);
	params.value[EP_PARAM_COMM_SMS] = 133;
	check_sms(&c, 20, 1, 12, 0);
	params.value[EP_PARAM_DISPATCH_SMS] = INT32_MAX;
	params.value[EP_PARAM_COMBINE_SMS] = 7;
	check_sms(&c, 20, 132, 7, 0);
	params.value[EP_PARAM_DISPATCH_SMS] = 0;
	c.max_num_sms = c.dispatch_num_sms = 0;
	check_sms(&c, 132, 132, 7, 3);
	c.size = NCCL_EP_GROUP_CONFIG_V2_SIZE; /* the caller knows no more */
	params.value[EP_PARAM_COMM_SMS] = params.value[EP_PARAM_COMBINE_SMS] = 0;
	c.max_num_sms = 9;
	c.combine_num_sms = 0;
	check_sms(&c, 9, 9, 9, 0);
}

/* Rows of all local experts are numbered with 31 bits. */
static void test_product(void)
{
	ncclEpGroupConfig_t c = good();

	c.num_experts = 32768;
	c.max_dispatch_tokens_per_rank = 65535;
	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
	c.num_experts += 8;
	CHECK_REASON(ep_group_config_make(&made, &c, NULL, &params, 8, 132), ncclInvalidArgument,
		     "num_experts 32776 times max_dispatch_tokens_per_rank 65535");
	c.num_experts = 1024;
	OK(ep_group_config_make(&made, &c, NULL, &params, 1024, 132));
	c.max_token_bytes = 33 * 480;
	CHECK_REASON(ep_group_config_make(&made, &c, NULL, &params, 1024, 132), ncclInvalidArgument,
		     "1024 ranks times config->max_dispatch_tokens_per_rank 65535 times 33 (quads");
	/* products that are 0 in 32 bits */
	c.max_dispatch_tokens_per_rank = 32768;
	c.max_token_bytes = 128 * 480;
	CHECK_REASON(
		ep_group_config_make(&made, &c, NULL, &params, 1024, 132), ncclInvalidArgument,
		"1024 ranks times config->max_dispatch_tokens_per_rank 32768 times 128 (quads");
	c.num_experts = 131072;
	CHECK_REASON(ep_group_config_make(&made, &c, NULL, &params, 16, 132), ncclInvalidArgument,
		     "num_experts 131072 times max_dispatch_tokens_per_rank 32768");
}

static void test_automatic(void)
{
	ncclEpGroupConfig_t c = good();

	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
	CHECK(made.heap.topk == 8 && made.heap_bytes >= made.heap.bytes);
	CHECK(made.heap_bytes % EP_HEAP_ALIGN == 0 && made.timeout_ns == 100000000000ull);
	CHECK(made.shape.nlocal == 32 && made.shape.max_token_bytes == 14336);
	c.num_topk = 20;
	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
	CHECK(made.heap.topk == 20);
	c = good();
	c.num_experts = 3;
	OK(ep_group_config_make(&made, &c, NULL, &params, 3, 132));
	CHECK(made.heap.topk == 3);
}

static void test_timeouts(void)
{
	ncclEpGroupConfig_t c = good();
	static const struct {
		uint64_t field, result;
	} cases[] = {
		{ 1, 1000000 },
		{ 1000000, 1000000 },
		{ 1000001, 2000000 },
		{ 5000000000ull, 5000000000ull },
		{ UINT64_MAX, 4611686018428000000ull }, /* 2^62, in whole milliseconds */
	};

	for (size_t i = 0; i < EP_ARRAY_SIZE(cases); i++) {
		c.timeout_ns = cases[i].field;
		OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
		CHECK(made.timeout_ns == cases[i].result);
	}
	params.value[EP_PARAM_TIMEOUT_MS] = 7; /* the environment wins */
	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
	CHECK(made.timeout_ns == 7000000);
	params.value[EP_PARAM_TIMEOUT_MS] = 0;
}

static void test_explicit_heap(void)
{
	ncclEpGroupConfig_t c = good();
	uint64_t automatic, small;

	OK(ep_group_config_make(&made, &c, NULL, &params, 2, 132));
	automatic = made.heap_bytes;
	c.rdma_buffer_size = 1; /* enough for nothing: as without it */
	OK(ep_group_config_make(&made, &c, NULL, &params, 2, 132));
	CHECK(made.heap.topk == 8 && made.heap_bytes == automatic);
	c.rdma_buffer_size = 0;
	c.num_topk = 1;
	OK(ep_group_config_make(&made, &c, NULL, &params, 2, 132));
	small = made.heap_bytes;
	CHECK(small < automatic);
	c.rdma_buffer_size = small; /* enough for some handles */
	c.num_topk = 0;
	OK(ep_group_config_make(&made, &c, NULL, &params, 2, 132));
	CHECK(made.heap.topk >= 1 && made.heap.topk < 9 && made.heap_bytes == small);
	CHECK(ep_group_heap_bytes(&made, made.heap.topk) == small);
	CHECK(ep_group_heap_bytes(&made, 32) > automatic);
	c.num_topk = 12; /* but not for those that there will be */
	OK(ep_group_config_make(&made, &c, NULL, &params, 2, 132));
	CHECK(made.heap.topk == 12 && made.heap_bytes > automatic);
	c.num_topk = 200; /* more than a handle can have */
	c.rdma_buffer_size = 1ul << 30;
	OK(ep_group_config_make(&made, &c, NULL, &params, 2, 132));
	CHECK(made.heap.topk == 32 && made.heap_bytes == 1ul << 30);
	CHECK(ep_group_heap_bytes(&made, 32) == 1ul << 30);
}

static void test_handles(void)
{
	ncclEpGroupConfig_t c = good();

	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
	OK(ep_handle_check(&made, NCCL_EP_LAYOUT_EXPERT_MAJOR, NULL, 32));
	CHECK_REASON(ep_handle_check(&made, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 33),
		     ncclInvalidArgument, "num_topk is 33: it is 1 to 32");
	c.num_topk = 4;
	c.max_dispatch_tokens_per_rank = 65535;
	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
	OK(ep_handle_check(&made, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 4));
	c.num_topk = 2; /* no limit */
	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
	OK(ep_handle_check(&made, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 4));
	CHECK_REASON(ep_handle_check(&made, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 5), ncclInvalidUsage,
		     "exceeds 262144");
}

static void test_geometry(void)
{
	struct ep_ll_geometry g;

	for (uint32_t sms = 2; sms < 300; sms++) {
		OK(ep_ll_geometry_make(&g, &params, sms));
		CHECK(g.send_blocks >= 1 && g.recv_blocks >= 1);
		CHECK(g.send_blocks + g.recv_blocks <= sms && g.threads == 512);
		OK(ep_ll_geometry_make(&g, &params, 2));
		CHECK(g.send_blocks == 1 && g.recv_blocks == 1);
	}
	OK(ep_ll_geometry_make(&g, &params, 1));
	CHECK(g.send_blocks == 1 && g.recv_blocks == 1 && g.threads == 256);
	params.value[EP_PARAM_LL_SEND_SMS] = 100;
	OK(ep_ll_geometry_make(&g, &params, 132));
	CHECK(g.send_blocks == 100 && g.recv_blocks == 32);
	params.value[EP_PARAM_LL_RECV_SMS] = 33;
	CHECK_REASON(ep_ll_geometry_make(&g, &params, 132), ncclInvalidUsage,
		     "give 100 and 33 blocks: together at most 132");
	params.value[EP_PARAM_LL_SEND_SMS] = params.value[EP_PARAM_LL_RECV_SMS] = 0;
}

/* Of a group whose ranks have so many remote peers. */
static uint32_t channels_for(uint32_t remote)
{
	ep_group_config_size(&made, ep_nodes_alike(1, remote, (int)remote + 1, &made.shape.roles));
	return made.shape.channels;
}

static void test_channels(void)
{
	ncclEpGroupConfig_t c = good();
	uint64_t alone;

	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
	alone = made.heap_bytes;
	CHECK(made.shape.channels == 0 && made.rdma_depth == 256 && made.rdma_mode == 0);
	CHECK(channels_for(0) == 0 && channels_for(1) == 8);
	for (uint32_t ranks = 2, before = 8; ranks <= 1024; ranks++) {
		uint32_t remote = ranks - 1, channels = channels_for(remote);

		CHECK(channels >= 1 && channels <= before);
		CHECK(remote > 32 || channels == 8);
		CHECK(remote * (channels + 1) <= (remote > 256 ? 2 * remote : 256 + remote));
		before = channels;
	}
	CHECK(channels_for(56) == 4 && channels_for(120) == 2);
	CHECK(channels_for(248) == 1 && channels_for(1016) == 1);
	made.rdma_queues = 15;
	CHECK(channels_for(0) == 0 && channels_for(63) == 15);
	made.rdma_queues = 3;
	ep_group_config_size(&made, ep_nodes_alike(4, 4, 8, &made.shape.roles));
	CHECK(made.shape.channels == 3 && made.heap_bytes > alone && made.heap.topk == 8);
	CHECK(made.heap_bytes >= made.heap.bytes && made.heap.signal_off);
	made.rdma_queues = 0;
	ep_group_config_size(&made, ep_nodes_alike(8, 0, 8, &made.shape.roles));
	CHECK(made.heap_bytes == alone);
	c.rdma_buffer_size = alone; /* with RDMA, the same memory is not enough */
	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
	CHECK(made.heap.topk >= 8);
	ep_group_config_size(&made, ep_nodes_alike(7, 7, 8, &made.shape.roles));
	CHECK(made.heap.topk == 8 && made.heap_bytes > alone);
}

/* The query reckons as the group does; the struct of version 1 has one node. */
static void test_query(void)
{
	ncclEpGroupConfig_t c = good();
	ncclEpExtMemory_t one = NCCL_EP_EXT_MEMORY_INIT, m = NCCL_EP_EXT_MEMORY_INIT;
	ncclEpExtMemory_t said = NCCL_EP_EXT_MEMORY_INIT;
	uint64_t all;

	OK(ncclEpExtDeviceMemory(&c, 8, NCCL_EP_LAYOUT_UNSET, 0, &one));
	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
	CHECK(one.heap_bytes == made.heap_bytes);
	CHECK(one.group_bytes == one.heap_bytes + ep_group_workspace_bytes(&made));
	m.remote_ranks = 4;
	OK(ncclEpExtDeviceMemory(&c, 8, NCCL_EP_LAYOUT_UNSET, 0, &m));
	ep_group_config_size(&made, ep_nodes_alike(4, 4, 8, &made.shape.roles));
	CHECK(m.heap_bytes == made.heap_bytes);
	/* 36 queues, a table of 8 x 9, keys of 8 NICs of each peer and this rank */
	CHECK(m.group_bytes == m.heap_bytes + ep_group_workspace_bytes(&made) + (2 << 20) +
				       72 * sizeof(struct ep_mlx5_qp) +
				       9 * 8 * EP_MLX5_REGIONS * sizeof(struct ep_mlx5_region));
	all = m.group_bytes;
	setenv("NCCL_EP_RDMA_MODE", "3", 1);
	OK(ncclEpExtDeviceMemory(&c, 8, NCCL_EP_LAYOUT_UNSET, 0, &m));
	CHECK(m.group_bytes == all - (2 << 20)); /* queues in host memory */
	unsetenv("NCCL_EP_RDMA_MODE");
	m.size = NCCL_EP_EXT_MEMORY_V1_SIZE;
	OK(ncclEpExtDeviceMemory(&c, 8, NCCL_EP_LAYOUT_UNSET, 0, &m));
	CHECK(m.group_bytes == one.group_bytes);
	m.size = sizeof(m);
	m.remote_ranks = 8;
	CHECK_REASON(ncclEpExtDeviceMemory(&c, 8, NCCL_EP_LAYOUT_UNSET, 0, &m), ncclInvalidArgument,
		     "remote_ranks is 8: with 8 ranks, a rank has at most 7 peers");
	m.remote_ranks = 0;
	setenv("NCCL_EP_NODE_SIZE", "7,1", 1);
	OK(ncclEpExtDeviceMemory(&c, 8, NCCL_EP_LAYOUT_UNSET, 0, &m));
	ep_group_config_size(&made, ep_nodes_alike(7, 7, 8, &made.shape.roles));
	CHECK(m.heap_bytes == made.heap_bytes);
	unsetenv("NCCL_EP_NODE_SIZE");
	said.remote_ranks = said.node_ranks = 7;
	OK(ncclEpExtDeviceMemory(&c, 8, NCCL_EP_LAYOUT_UNSET, 0, &said));
	CHECK(said.group_bytes == m.group_bytes);
	said.remote_ranks = 3;
	said.node_ranks = 4;
	CHECK_REASON(ncclEpExtDeviceMemory(&c, 8, NCCL_EP_LAYOUT_UNSET, 0, &said),
		     ncclInvalidArgument,
		     "node_ranks is 4: with 8 ranks and 3 remote_ranks, the "
		     "largest node has 5 to 7");
	said.node_ranks = 9;
	CHECK(ncclEpExtDeviceMemory(&c, 8, NCCL_EP_LAYOUT_UNSET, 0, &said) == ncclInvalidArgument);
	/* all ranks are on one node, and some of them on another */
	said.node_ranks = 8;
	for (int algo = NCCL_EP_ALGO_LOW_LATENCY; algo <= NCCL_EP_ALGO_HIGH_THROUGHPUT; algo++) {
		c.algorithm = (ncclEpAlgorithm_t)algo;
		CHECK_REASON(ncclEpExtDeviceMemory(&c, 8, NCCL_EP_LAYOUT_UNSET, 0, &said),
			     ncclInvalidArgument, "largest node has 5 to 7");
	}
	c.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	setenv("NCCL_EP_NODE_SIZE", "8", 1);
	OK(ncclEpExtDeviceMemory(&c, 8, NCCL_EP_LAYOUT_UNSET, 0, &m));
	CHECK(m.group_bytes == one.group_bytes);
	setenv("NCCL_EP_NODE_SIZE", "7,2", 1);
	CHECK(ncclEpExtDeviceMemory(&c, 8, NCCL_EP_LAYOUT_UNSET, 0, &m) == ncclInvalidUsage);
	unsetenv("NCCL_EP_NODE_SIZE");
}

static int main_group_config(int argc, char **argv)
{
	for (int i = 0; i < EP_PARAMS; i++) {
		params.value[i] = ep_param_table[i].initial;
	}
	test_sms_warning(); /* first: the log's file is chosen once */
	test_nvls();
	test_limits();
	test_sms();
	test_product();
	test_automatic();
	test_timeouts();
	test_explicit_heap();
	test_handles();
	test_geometry();
	test_channels();
	test_query();
	return check_end();
}

/* ---- high throughput: fields of a group's and of a handle's config ---- */

#define FLAT NCCL_EP_LAYOUT_FLAT
#define EM NCCL_EP_LAYOUT_EXPERT_MAJOR

static ncclEpGroupConfig_t ht_good(void)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;

	c.algorithm = NCCL_EP_ALGO_HIGH_THROUGHPUT;
	c.num_experts = 256;
	c.max_dispatch_tokens_per_rank = 4096;
	c.max_token_bytes = 14336;
	return c;
}

#define HT_CHECK_REFUSED(field, value, nranks, code, part)                                         \
	do {                                                                                       \
		ncclEpGroupConfig_t c_ = ht_good();                                                \
		c_.field = value;                                                                  \
		CHECK_REASON(ep_group_config_make(&made, &c_, NULL, &params, nranks, 132), code,   \
			     part);                                                                \
	} while (0)

static void ht_test_limits(void)
{
	HT_CHECK_REFUSED(num_experts, 0, 8, ncclInvalidArgument, "num_experts is 0");
	HT_CHECK_REFUSED(num_experts, 65536, 1, ncclInvalidArgument, "at most 65535");
	HT_CHECK_REFUSED(num_experts, 65536, 8, ncclInvalidArgument, "num_experts is 65536");
	HT_CHECK_REFUSED(max_dispatch_tokens_per_rank, 0, 8, ncclInvalidArgument, "is 0");
	HT_CHECK_REFUSED(max_dispatch_tokens_per_rank, (1 << 24) + 1, 8, ncclInvalidArgument,
			 "from 1 to 16777216");
	HT_CHECK_REFUSED(max_dispatch_tokens_per_rank, 1 << 24, 128, ncclInvalidArgument,
			 "128 ranks times config->max_dispatch_tokens_per_rank 16777216 exceeds");
	HT_CHECK_REFUSED(max_token_bytes, 0, 8, ncclInvalidArgument, "max_token_bytes is 0");
	HT_CHECK_REFUSED(max_token_bytes, 14344, 8, ncclInvalidArgument,
			 "max_token_bytes is 14344: high throughput mode needs a multiple of 16");
	HT_CHECK_REFUSED(max_recv_tokens_per_rank, 4095, 8, ncclInvalidArgument,
			 "max_recv_tokens_per_rank is 4095: it is NCCL_EP_AUTO, or from "
			 "max_dispatch_tokens_per_rank 4096");
	HT_CHECK_REFUSED(max_recv_tokens_per_rank, 0x80000000u, 8, ncclInvalidArgument,
			 "2147483648");
	HT_CHECK_REFUSED(overflow_policy, NCCL_EP_OVERFLOW_DROP, 8, ncclInvalidArgument,
			 "overflow_policy is DROP, but max_recv_tokens_per_rank is AUTO");
	HT_CHECK_REFUSED(overflow_policy, (ncclEpOverflowPolicy_t)3, 8, ncclInvalidArgument,
			 "overflow_policy is 3");
	HT_CHECK_REFUSED(zero_copy, (ncclEpZeroCopyMode_t)3, 8, ncclInvalidArgument,
			 "zero_copy is 3");
	HT_CHECK_REFUSED(num_topk, 257, 8, ncclInvalidArgument, "num_topk is 257, there are 256");
	HT_CHECK_REFUSED(max_num_sms, 133, 8, ncclInvalidUsage, "is 133, the device has 132 SMs");
}

static void test_choices(void)
{
	ncclEpGroupConfig_t c = ht_good();

	c.enable_mask = 1;
	c.rdma_buffer_size = 1 << 20;
	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
	CHECK(made.shape.limit == EP_NO_LIMIT && !made.drop && made.api == 3);
	check_sms(&c, 105, 105, 105, 7);
	CHECK(!made.enable_mask && made.explicit_bytes == 0 && made.shape.banks == 1);
	CHECK(made.heap.topk == 32 && made.shape.ring_bytes == 1 << 27);
	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 10));
	CHECK(made.budget[EP_BUDGET_DISPATCH].sms == 8);
	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 1));
	CHECK(made.budget[EP_BUDGET_COMBINE].sms == 1);
	c.max_num_sms = 64;
	c.max_recv_tokens_per_rank = 4096;
	c.overflow_policy = NCCL_EP_OVERFLOW_DROP;
	c.num_topk = 200;
	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
	CHECK(made.shape.limit == 4096 && made.drop);
	CHECK(made.heap.topk == 32);
	for (c.version = 0; c.version < 2;
	     c.version++) { /* is not examined: the size says what is there */
		OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
		CHECK(made.api == 3 && made.drop);
	}
	c = ht_good();
	c.size = NCCL_EP_GROUP_CONFIG_V1_SIZE;
	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
	CHECK(made.api == 1);
	c.size = NCCL_EP_GROUP_CONFIG_V2_SIZE;
	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
	CHECK(made.api == 2);
	c = ht_good();
	c.max_dispatch_tokens_per_rank = 65536; /* no limit of low latency counts */
	c.num_experts = 1024;
	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
}

static void ht_test_handles(void)
{
	ncclEpHandleConfig_t h = NCCL_EP_HANDLE_CONFIG_INIT;
	ncclEpGroupConfig_t c = ht_good();

	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
	OK(ep_handle_check(&made, FLAT, NULL, 32));
	CHECK_REASON(ep_handle_check(&made, FLAT, NULL, 33), ncclInvalidArgument, "1 to 32");
	CHECK_REASON(
		ep_handle_check(&made, NCCL_EP_LAYOUT_RANK_MAJOR, NULL, 8), ncclInvalidArgument,
		"high throughput mode has NCCL_EP_LAYOUT_EXPERT_MAJOR and NCCL_EP_LAYOUT_FLAT");
	CHECK_REASON(ep_handle_check(&made, EM, NULL, 8), ncclInvalidUsage,
		     "eager mode (max_recv_tokens_per_rank AUTO) need a group with num_topk");
	c.num_topk = 8;
	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
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
	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
	CHECK_REASON(ep_handle_check(&made, FLAT, NULL, 32), ncclInvalidUsage, "exceed 2147483647");
	OK(ep_group_config_make(&made, &c, NULL, &params, 2, 132));
	OK(ep_handle_check(&made, FLAT, NULL, 32));
	ep_group_config_size(&made, ep_nodes_alike(1, 1, 2, &made.shape.roles));
	OK(ep_handle_check(&made, FLAT, NULL, 16));
	CHECK_REASON(ep_handle_check(&made, FLAT, NULL, 17), ncclInvalidUsage,
		     "take 1140850688 bytes, and a message to another node has at most 1073741824");
}

static void ht_test_query(void)
{
	ncclEpExtMemory_t m = NCCL_EP_EXT_MEMORY_INIT;
	ncclEpGroupConfig_t c = ht_good();

	OK(ncclEpExtDeviceMemory(&c, 8, FLAT, 8, &m));
	OK(ep_group_config_make(&made, &c, NULL, &params, 8, 132));
	CHECK(m.heap_bytes == made.heap_bytes && m.heap_bytes < 160000000);
	CHECK(m.group_bytes == m.heap_bytes + ep_group_workspace_bytes(&made));
	CHECK(m.handle_bytes == ep_ht_algo.handle_bytes(&made.shape, FLAT, 8));
	CHECK(m.group_bytes + m.handle_bytes < 300000000);
	m.remote_ranks = 4;
	OK(ncclEpExtDeviceMemory(&c, 8, FLAT, 8, &m));
	ep_group_config_size(&made, ep_nodes_alike(4, 4, 8, &made.shape.roles));
	CHECK(made.shape.nodes.flows == 1);
	CHECK(m.heap_bytes == made.heap_bytes);
	CHECK(m.handle_bytes == ep_ht_algo.handle_bytes(&made.shape, FLAT, 8));
}

/* Queues for rows of each flow: with credits' one they are a group's channels. */
static void ht_test_channels(void)
{
	static const struct {
		uint32_t nodes, asked, queues;
	} rows[] = { { 2, 0, 4 }, { 3, 0, 2 }, { 4, 0, 1 }, { 8, 0, 1 },
		     { 2, 1, 1 }, { 2, 3, 2 }, { 8, 8, 8 }, { 2, 15, 8 } };
	ncclEpGroupConfig_t c = ht_good();

	OK(ep_group_config_make(&made, &c, NULL, &params, 64, 132));
	CHECK_INT(made.shape.channels, 0);
	for (size_t i = 0; i < EP_ARRAY_SIZE(rows); i++) {
		uint32_t n = rows[i].nodes;

		made.rdma_queues = rows[i].asked;
		ep_group_config_size(&made,
				     ep_nodes_alike(8, 8 * (n - 1), 8 * n, &made.shape.roles));
		CHECK_INT(made.shape.nodes.flows, n - 1);
		CHECK_INT(made.shape.channels, EP_HT_ROWS + rows[i].queues);
	}
}

static int main_ht_config(int argc, char **argv)
{
	for (int i = 0; i < EP_PARAMS; i++) {
		params.value[i] = ep_param_table[i].initial;
	}
	ht_test_limits();
	test_choices();
	ht_test_handles();
	ht_test_query();
	ht_test_channels();
	return check_end();
}

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "group_config", main_group_config },
		{ "ht_config", main_ht_config },
	};

	return check_cases(argc, argv, cases, sizeof(cases) / sizeof(*cases));
}
