// SPDX-License-Identifier: Apache-2.0
/*
 * A wait for a peer that has masked this rank ends, because the peer sends nothing more; but what it
 * sent before must still be found.
 */
#include <cuda_runtime_api.h>
#include "support/check.h"
#include "waits.h"

/* All that the kernel reads and writes, and what it left. */
struct memory {
	uint64_t heap[2]; /* progress words */
	uint64_t mask[EP_MASK_BYTES(2) / 8];
	uint64_t word;
	struct ep_dev_state state;
	struct ep_record records[EP_RECORDS];
	uint32_t async_error;
	struct waits_result out;
};

static struct memory wait_with(struct waits_args args, uint64_t progress)
{
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 }, .blockDim = { 32, 1, 1 } };
	struct memory *m, left;
	void *list[] = { &args };

	NEED_CUDA(cudaMallocHost((void **)&m, sizeof(*m)));
	memset(m, 0, sizeof(*m));
	args.g.nranks = 2;
	args.g.mask_enabled = 1;
	args.g.timeout_ns = UINT64_C(20000000000);
	args.g.mask = (int32_t *)m->mask;
	args.g.mask[0] = args.g.mask[1] = 1;
	args.g.state = &m->state;
	args.g.records = m->records;
	args.g.async_error = &m->async_error;
	args.g.heap[0] = args.g.heap[1] = args.g.own = (unsigned char *)m->heap;
	m->heap[1] = progress;
	args.word = &m->word;
	args.out = &m->out;
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)waits_kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	left = *m;
	NEED_CUDA(cudaFreeHost(m));
	return left;
}

static struct memory wait_of(uint32_t arrives, uint64_t progress)
{
	return wait_with((struct waits_args){ .arrives = arrives }, progress);
}

static bool masked_is(const struct memory *m, int rank)
{
	return !((const int32_t *)m->mask)[rank];
}

int main(void)
{
	uint64_t masked = ep_progress_word(6, 0, 1);
	struct memory m;

	check_context("the word came before the peer masked this rank");
	for (uint32_t polls = 60; polls < 70; polls++) { /* 64: between a poll and the look */
		m = wait_of(polls, masked);
		CHECK_INT(m.out.gave_up, 0);
		CHECK_INT(m.out.polls, polls);
		CHECK_INT(m.out.word, 7);
		CHECK_INT(masked_is(&m, 1), 0);
		CHECK_INT(m.async_error, 0);
	}
	check_context("the peer masks this rank after so many polls that they fill their bits");
	m = wait_with(
		(struct waits_args){ .polled = (1u << 29) - 128, .masks = 100, .arrives = 130 },
		ep_progress_word(6, 0, 0));
	CHECK_INT(m.out.gave_up, 0);
	CHECK_INT(m.out.polls, 130);
	CHECK_INT(masked_is(&m, 1), 0);
	check_context("it never comes");
	m = wait_of(0, masked);
	CHECK_INT(m.out.gave_up, 1);
	CHECK_INT(m.out.polls, 128); /* the second look */
	CHECK_INT(masked_is(&m, 1), 1);
	CHECK_INT(m.async_error, 1);
	CHECK_INT(m.records[EP_RECORD_MASKED].cause, EP_CAUSE_PARTED);
	CHECK_INT(m.records[EP_RECORD_MASKED].value, 1);
	return check_end();
}
