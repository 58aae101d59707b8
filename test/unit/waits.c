// SPDX-License-Identifier: Apache-2.0
/*
 * A wait for a peer that has masked this rank ends, because the peer sends nothing more; but what it
 * sent before must still be found. A wait for a remote peer ends when the host has given up the
 * connection, and looks seldom whether it has. And what a wait learns of another one, on another SM.
 */
#include <cuda_runtime_api.h>
#include <time.h>
#include "support/check.h"
#include "waits.h"

#define QUEUES 3

/* All that the kernel reads and writes, and what it left. */
struct memory {
	struct ep_dev_remote remote;
	struct ep_remote_link links[3 * QUEUES];
	uint32_t down[3];
	uint64_t heap[3]; /* progress words */
	uint64_t mask[EP_MASK_BYTES(3) / 8];
	uint64_t word;
	struct ep_dev_state state;
	struct ep_record records[EP_RECORDS];
	uint32_t async_error;
	struct waits_result out;
};

/* down: rank whose connection the host has given up; 0: none, and no rank is remote. */
static struct memory wait_with(struct waits_args args, uint64_t progress, uint32_t down)
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
	if (down) {
		args.g.nranks = 3;
		args.g.mask[2] = 1;
		args.g.heap[1] = NULL; /* remote, as rank 2 */
		args.g.remote = &m->remote;
		m->remote.queues = QUEUES;
		m->remote.links = m->links;
		m->remote.down = m->down;
		m->down[down] = 1;
	}
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
	return wait_with((struct waits_args){ .arrives = arrives }, progress, 0);
}

static bool masked_is(const struct memory *m, int rank)
{
	return !((const int32_t *)m->mask)[rank];
}

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static void test_down(void)
{
	struct waits_args args = { .arrives = 100, .asks = 100000 };
	uint64_t start = now_ns(), gone;
	struct memory m;

	check_context("the connection with another rank is down");
	m = wait_with(args, ep_progress_word(5, 0, 0), 2);
	gone = now_ns() - start;
	CHECK_INT(m.out.gave_up, 0);
	CHECK_INT(m.out.polls, args.arrives);
	CHECK(m.out.looks >= 3 && m.out.looks <= gone / 16384 + 2);
	CHECK(m.links[2].down && !m.links[1].down);
	check_context("the connection with the rank that is waited for is down");
	m = wait_with(args, ep_progress_word(5, 0, 0), 1);
	CHECK_INT(m.out.gave_up, 1);
	CHECK_INT(masked_is(&m, 1), 1);
	CHECK_INT(m.records[EP_RECORD_MASKED].cause, EP_CAUSE_RDMA);
	CHECK(m.links[1].down && !m.links[2].down);
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
		ep_progress_word(6, 0, 0), 0);
	CHECK_INT(m.out.gave_up, 0);
	CHECK_INT(m.out.polls, 130);
	CHECK_INT(masked_is(&m, 1), 0);
	check_context("another wait was in vain, by a clock that is ahead of this one's");
	m = wait_with((struct waits_args){ .ahead = 2000, .arrives = 600 },
		      ep_progress_word(5, 0, 0), 0);
	CHECK_INT(m.out.gave_up, 0);
	CHECK_INT(m.out.polls, 600);
	check_context("it never comes");
	m = wait_of(0, masked);
	CHECK_INT(m.out.gave_up, 1);
	CHECK_INT(m.out.polls, 128); /* the second look */
	CHECK_INT(masked_is(&m, 1), 1);
	CHECK_INT(m.async_error, 1);
	CHECK_INT(m.records[EP_RECORD_MASKED].cause, EP_CAUSE_PARTED);
	CHECK_INT(m.records[EP_RECORD_MASKED].value, 1);
	test_down();
	return check_end();
}
