/* SPDX-License-Identifier: Apache-2.0 */
/* Callers' structs and descriptors of any API version, through calls that need no device. */
#include <stdlib.h>
#include "support/check_nccl.h"

static ncclEpGroupConfig_t config_make(void)
{
	ncclEpGroupConfig_t c = NCCL_EP_GROUP_CONFIG_INIT;

	c.algorithm = NCCL_EP_ALGO_LOW_LATENCY;
	c.num_experts = 16;
	c.max_dispatch_tokens_per_rank = 64;
	c.max_token_bytes = 1024;
	return c;
}

static void test_initialisers(void)
{
	ncclEpTensor_t t = NCCL_EP_TENSOR_INIT;
	ncclEpTensor_t in_place = { NCCL_EP_TENSOR_INIT_INLINE, .ndim = 2 };
	ncclEpGroupConfig_t g = NCCL_EP_GROUP_CONFIG_INIT;
	ncclEpDispatchConfig_t d = NCCL_EP_DISPATCH_CONFIG_INIT;

	CHECK(t.size == 48 && t.magic == NCCL_EP_TENSOR_MAGIC && t.ndim == 0 && !t.data);
	CHECK(in_place.size == 48 && in_place.magic == NCCL_EP_TENSOR_MAGIC && in_place.ndim == 2);
	CHECK(g.size == 120 && g.magic == NCCL_EP_MAGIC && g.version == 3 && g.num_topk == 0 &&
	      g.dispatch_num_sms == NCCL_EP_AUTO && g.combine_num_sms == NCCL_EP_AUTO);
	CHECK(d.size == NCCL_EP_DISPATCH_CONFIG_SIZE && d.quant_recipe == 0);
	CHECK(NCCL_EP_HAS_FIELD(&d, ncclEpDispatchConfig_t, quant_recipe));
	d.size = NCCL_EP_DISPATCH_CONFIG_V1_SIZE;
	CHECK(!NCCL_EP_HAS_FIELD(&d, ncclEpDispatchConfig_t, quant_recipe));
}

static void test_version(void)
{
	int version = 0;

	CHECK(ncclEpGetVersion(&version) == ncclSuccess && version == 200);
	CHECK_REASON(ncclEpGetVersion(NULL), ncclInvalidArgument, "version is NULL");
}

static void test_tensor_alloc(void)
{
	ncclEpTensorAllocConfig_t config = NCCL_EP_TENSOR_ALLOC_CONFIG_INIT;
	ncclEpTensorAllocConfig_t bad = config;
	size_t sizes[3] = { 2, 3, 4 }, other[3] = { 0 };
	ncclEpTensor_t *t = NULL, copy;
	struct {
		ncclEpTensorAllocConfig_t v1;
		uint64_t tail;
	} future = { NCCL_EP_TENSOR_ALLOC_CONFIG_INIT, 1 };

	future.v1.size = sizeof(future);
	OK(ncclEpTensorAlloc(&t, 3, ncclBfloat16, sizes, &future.v1));
	CHECK(t->ndim == 3 && t->datatype == ncclBfloat16 && !t->data && !t->win_hdl);
	CHECK(t->sizes != sizes && t->sizes[0] == 2 && t->sizes[2] == 4);
	t->sizes[0] = 7; /* extents may change in place */
	copy = *t;
	CHECK_REASON(ncclEpTensorDestroy(&copy), ncclInvalidArgument, "not a descriptor of");
	t->sizes = other;
	CHECK_REASON(ncclEpTensorDestroy(t), ncclInvalidArgument, "sizes pointer was replaced");
	t->sizes = copy.sizes;
	OK(ncclEpTensorDestroy(t));
	CHECK_REASON(ncclEpTensorDestroy(t), ncclInvalidArgument, "destroyed?");
	OK(ncclEpTensorDestroy(NULL));

	t = NULL;
	bad.size = NCCL_EP_TENSOR_ALLOC_CONFIG_V1_SIZE - 1;
	CHECK_REASON(ncclEpTensorAlloc(&t, 3, ncclInt8, sizes, &bad), ncclInvalidArgument,
		     "config->size is 7, less than the 8");
	bad = config;
	bad.magic ^= 1;
	CHECK_REASON(ncclEpTensorAlloc(&t, 3, ncclInt8, sizes, &bad), ncclInvalidArgument,
		     "config->magic is 0xc00fffef");
	CHECK_REASON(ncclEpTensorAlloc(NULL, 3, ncclInt8, sizes, NULL), ncclInvalidArgument,
		     "tensor is NULL");
	CHECK_REASON(ncclEpTensorAlloc(&t, 3, ncclInt8, NULL, NULL), ncclInvalidArgument,
		     "sizes is NULL");
	/* An absurd number is no reason to read behind the extents. */
	CHECK_REASON(ncclEpTensorAlloc(&t, 1u << 30, ncclInt8, sizes, NULL), ncclInvalidArgument,
		     "ndim is 1073741824, the limit is 8");
	CHECK_REASON(ncclEpTensorAlloc(&t, 9, ncclInt8, sizes, NULL), ncclInvalidArgument,
		     "ndim is 9, the limit is 8");
	CHECK_REASON(ncclEpTensorAlloc(&t, 0, ncclInt8, sizes, NULL), ncclInvalidArgument,
		     "ndim is 0");
	CHECK(t == NULL);
	memset(&copy, 0, sizeof(copy));
	copy = (ncclEpTensor_t)NCCL_EP_TENSOR_INIT;
	CHECK_REASON(ncclEpTensorDestroy(&copy), ncclInvalidArgument, "not a descriptor of");
}

/* A struct that ends early reads as zero from there, whatever lies behind it. */
static void test_config_sizes(void)
{
	ncclEpExtMemory_t v1 = NCCL_EP_EXT_MEMORY_INIT, v2 = NCCL_EP_EXT_MEMORY_INIT;
	ncclEpGroupConfig_t c = config_make();
	struct {
		ncclEpGroupConfig_t c;
		uint64_t tail[4];
	} future;

	c.num_topk = 4;
	c.zero_copy = (ncclEpZeroCopyMode_t)99;
	CHECK_REASON(ncclEpExtDeviceMemory(&c, 4, NCCL_EP_LAYOUT_UNSET, 0, &v2),
		     ncclInvalidArgument, "zero_copy is 99");
	c.size = NCCL_EP_GROUP_CONFIG_V1_SIZE;
	c.version = 1;
	OK(ncclEpExtDeviceMemory(&c, 4, NCCL_EP_LAYOUT_UNSET, 0, &v1));
	c = config_make();
	OK(ncclEpExtDeviceMemory(&c, 4, NCCL_EP_LAYOUT_UNSET, 0, &v2));
	CHECK(v1.group_bytes == v2.group_bytes && v1.group_bytes > v1.heap_bytes);
	CHECK(v1.handle_bytes == 0);

	c.zero_copy = (ncclEpZeroCopyMode_t)0x0102; /* its first byte alone is ON */
	c.size = NCCL_EP_GROUP_CONFIG_V1_SIZE + 1;
	OK(ncclEpExtDeviceMemory(&c, 4, NCCL_EP_LAYOUT_UNSET, 0, &v2));

	memset(&future, 0xff, sizeof(future));
	future.c = config_make();
	future.c.size = sizeof(future);
	OK(ncclEpExtDeviceMemory(&future.c, 4, NCCL_EP_LAYOUT_UNSET, 0, &v2));
	CHECK(v1.group_bytes == v2.group_bytes);

	c = config_make();
	c.size = NCCL_EP_GROUP_CONFIG_V1_SIZE - 1;
	CHECK_REASON(ncclEpExtDeviceMemory(&c, 4, NCCL_EP_LAYOUT_UNSET, 0, &v2),
		     ncclInvalidArgument, "config->size is 95");
	CHECK_REASON(ncclEpExtDeviceMemory(NULL, 4, NCCL_EP_LAYOUT_UNSET, 0, &v2),
		     ncclInvalidArgument, "config is NULL");
	c = config_make();
	c.magic = NCCL_EP_TENSOR_MAGIC;
	CHECK_REASON(ncclEpExtDeviceMemory(&c, 4, NCCL_EP_LAYOUT_UNSET, 0, &v2),
		     ncclInvalidArgument, "config->magic is");
	v2.magic = 0;
	c = config_make();
	CHECK_REASON(ncclEpExtDeviceMemory(&c, 4, NCCL_EP_LAYOUT_UNSET, 0, &v2),
		     ncclInvalidArgument, "memory->magic is 0x0");
}

/* An output struct of an older or newer caller: its size stays, nothing beyond it is written. */
static void test_output_sizes(void)
{
	struct {
		ncclEpExtMemory_t m;
		uint64_t guard;
	} newer = { NCCL_EP_EXT_MEMORY_INIT, 0x1122334455667788ull };
	ncclEpGroupConfig_t c = config_make();

	newer.m.size = sizeof(newer);
	OK(ncclEpExtDeviceMemory(&c, 2, NCCL_EP_LAYOUT_RANK_MAJOR, 3, &newer.m));
	CHECK(newer.m.size == sizeof(newer) && newer.m.magic == NCCL_EP_MAGIC);
	CHECK(newer.guard == 0x1122334455667788ull && newer.m.handle_bytes > 0);
}

int main(void)
{
	test_initialisers();
	test_version();
	test_tensor_alloc();
	test_config_sizes();
	test_output_sizes();
	return check_end();
}
