/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A routing is in handle memory if no block has failed, whether the block that leaves it there comes first or
 * the one that fails; and what an earlier routing has left does not matter.
 */
#include <cuda_runtime_api.h>
#include "ht_stamp.h"
#include "support/check.h"

#define STAMP UINT64_C(0x123456789abcdef)

struct memory {
	struct ep_ht_head head;
	uint32_t rows;
	int32_t total;
};

static void run(struct memory *m, enum ht_stamp_failure failure, uint64_t before, uint64_t after)
{
	struct ht_stamp_args a;
	void *args[] = { &a };
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 }, .blockDim = { 32, 1, 1 } };

	memset(&a, 0, sizeof(a));
	m->head.stamp = before;
	m->rows = 77;
	m->total = -1;
	a.a.c.h.head = &m->head;
	a.a.c.stamp = STAMP;
	a.a.total_counter = &m->total;
	a.a.total_bytes = sizeof(m->total);
	a.rows = &m->rows;
	a.failure = failure;
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ht_stamp_kernel, args));
	NEED_CUDA(cudaDeviceSynchronize());
	CHECK(m->head.stamp == after, "failure %d: %llx", failure,
	      (unsigned long long)m->head.stamp);
	CHECK_INT(m->total, 77);
}

int main(void)
{
	static const uint64_t before[] = { 0, STAMP, STAMP + 2, EP_HT_NO_STAMP };
	struct memory *m;

	NEED_CUDA(cudaMallocHost((void **)&m, sizeof(*m)));
	for (size_t i = 0; i < sizeof(before) / sizeof(*before); i++) {
		run(m, HT_STAMP_NONE, before[i], STAMP);
		run(m, HT_STAMP_BEFORE, before[i], EP_HT_NO_STAMP);
		run(m, HT_STAMP_AFTER, before[i], EP_HT_NO_STAMP);
	}
	NEED_CUDA(cudaFreeHost(m));
	return check_end();
}
