/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A wait for a peer that has masked this rank ends, because the peer sends nothing more; but what it
 * sent before must still be found. A wait for a remote peer ends when the host has given up the
 * connection, and looks seldom whether it has; a row of it that its word has overtaken gets some time.
 * And what a wait learns of another one, on another SM.
 */
#include <cuda_runtime_api.h>
#include "device/simt/wait_site.h"
#include "support/check.h"
#include "waits.h"

#define QUEUES 3

/* All that the kernel reads and writes, and what it left. */
struct memory {
	struct ep_dev_remote remote;
	struct ep_remote_link links[3 * QUEUES];
	uint32_t down[3];
	struct {
		uint64_t progress[4];
		struct ep_signature_slot signatures[EP_SIGNATURE_SLOTS][3];
	} heap;
	uint64_t mask[EP_MASK_BYTES(3) / 8];
	uint64_t word;
	struct ep_dev_state state;
	struct ep_record records[EP_RECORDS];
	uint32_t async_error;
	struct waits_result out;
};

/* No rank is remote. Rank 1 is, and there is a rank 2; the host has given up the connection with one. */
#define NEAR (-1)
#define REMOTE 0

/* where: NEAR, REMOTE, or the rank whose connection is down. */
static struct memory run(void (*kernel)(void), struct waits_args args, uint64_t progress, int where)
{
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 }, .blockDim = { 32, 1, 1 } };
	struct memory *m, left;
	void *list[] = { &args };

	NEED_CUDA(cudaMallocHost((void **)&m, sizeof(*m)));
	memset(m, 0, sizeof(*m));
	args.g.nranks = 2;
	args.g.mask_enabled = 1;
	args.g.timeout_ns = args.g.timeout_ns ? args.g.timeout_ns : UINT64_C(20000000000);
	args.g.mask = (int32_t *)m->mask;
	args.g.mask[0] = args.g.mask[1] = 1;
	args.g.state = &m->state;
	args.g.records = m->records;
	args.g.async_error = &m->async_error;
	args.g.heap[0] = args.g.heap[1] = args.g.own = (unsigned char *)&m->heap;
	args.g.signature_off = sizeof(m->heap.progress);
	m->heap.progress[1] = progress;
	if (where != NEAR) {
		args.g.nranks = 3;
		args.g.mask[2] = 1;
		args.g.heap[1] = NULL; /* remote, as rank 2 */
		args.g.remote = &m->remote;
		m->remote.queues = QUEUES;
		m->remote.links = m->links;
		m->remote.down = m->down;
		m->down[where] = where != REMOTE;
	}
	args.word = &m->word;
	args.out = &m->out;
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	left = *m;
	NEED_CUDA(cudaFreeHost(m));
	return left;
}

static struct memory wait_with(struct waits_args args, uint64_t progress, int where)
{
	return run(waits_kernel, args, progress, where);
}

static struct memory wait_of(uint32_t arrives, uint64_t progress)
{
	return wait_with((struct waits_args){ .arrives = arrives }, progress, NEAR);
}

static bool masked_is(const struct memory *m, int rank)
{
	return !((const int32_t *)m->mask)[rank];
}

/*
 * A bank that step 4 used is free when the peer has started step 5. A peer that has not is waited for, and
 * given up after the timeout.
 */
static void test_bank(void)
{
	struct waits_args args = { .g.timeout_ns = 1000000000 };
	struct memory m;

	for (uint32_t step = 3; step <= 6; step++) {
		check_context("the peer has started step %u", step);
		m = run(bank_kernel, args, ep_progress_word(step, 0, 0), NEAR);
		CHECK_INT(m.out.gave_up, step <= 4);
		CHECK_INT(masked_is(&m, 1), step <= 4);
	}
}

static void test_down(void)
{
	struct waits_args args = { .arrives = 100, .checks = 200 };
	struct memory m;

	check_context("the connection with another rank is down");
	m = wait_with(args, ep_progress_word(5, 0, 0), 2);
	CHECK_INT(m.out.gave_up, 0);
	CHECK_INT(m.out.polls, args.arrives);
	CHECK(m.out.checks >= args.checks && m.out.checks <= m.out.ns / 16384 + 2);
	CHECK(m.links[2].down && !m.links[1].down);
	check_context("the connection with the rank that is waited for is down");
	m = wait_with(args, ep_progress_word(5, 0, 0), 1);
	CHECK_INT(m.out.gave_up, 1);
	CHECK_INT(masked_is(&m, 1), 1);
	CHECK_INT(m.records[EP_RECORD_MASKED].cause, EP_CAUSE_RDMA);
	CHECK(m.links[1].down && !m.links[2].down);
}

/* The wait ended at its second look, because rank 1 has masked this rank, `lead` steps ahead. */
static void expect_excluded_at_once(const struct memory *m, uint32_t lead)
{
	CHECK_INT(m->out.gave_up, 1);
	CHECK_INT(m->out.polls, 128);
	CHECK_INT(m->records[EP_RECORD_MASKED].cause, EP_CAUSE_EXCLUDED);
	CHECK_INT(m->records[EP_RECORD_MASKED].value, lead);
}

/* It ended some time after `least_ns`, and other waits do not take it for one that lasted T. */
static void expect_excluded_after(const struct memory *m, uint64_t least_ns, uint64_t most_ns)
{
	CHECK_INT(m->out.gave_up, 1);
	CHECK(m->out.ns >= least_ns && m->out.ns <= most_ns);
	CHECK_INT(masked_is(m, 1), 1);
	CHECK_INT(m->records[EP_RECORD_MASKED].cause, EP_CAUSE_EXCLUDED);
	CHECK_INT(m->state.in_vain, 0);
}

static void test_overtaken(void)
{
	uint64_t later = ep_progress_word(6, 0, 1), same = ep_progress_word(5, 0, 1);
	uint64_t ms = 1000000;
	struct waits_args args = { .g.timeout_ns = 8000 * ms };
	struct memory m;

	check_context("a remote peer's word has overtaken its row");
	args.arrives = 300; /* behind the second look, and before an eighth of the timeout */
	m = wait_with(args, later, REMOTE);
	CHECK_INT(m.out.gave_up, 0);
	CHECK_INT(m.out.polls, 300);
	CHECK_INT(masked_is(&m, 1), 0);
	check_context("the same in the second half of a split operation");
	args.step = 6;
	m = wait_with(args, later, REMOTE);
	CHECK_INT(m.out.gave_up, 0);
	CHECK_INT(m.out.polls, 300);
	args.arrives = args.step = 0;
	check_context("the row never comes");
	m = wait_with(args, later, REMOTE);
	expect_excluded_after(&m, 1000 * ms, 5000 * ms);
	CHECK_INT(m.records[EP_RECORD_MASKED].value, 1);
	check_context("it never comes, and the group would wait for ever");
	args.g.timeout_ns = UINT64_C(1) << 62;
	m = wait_with(args, later, REMOTE);
	expect_excluded_after(&m, 4000 * ms, 20000 * ms);
	args.g.timeout_ns = 8000 * ms;
	check_context("the peer has not sent: it masked this rank before");
	m = wait_with(args, same, REMOTE);
	expect_excluded_at_once(&m, 0);
	check_context("it goes on meanwhile");
	args.masks = 100;
	m = wait_with(args, same, REMOTE);
	expect_excluded_at_once(&m, 1);
	args.masks = 0;
	check_context("counts are not overtaken");
	args.site = EP_WAIT_DISPATCH_COUNT;
	m = wait_with(args, later, REMOTE);
	expect_excluded_at_once(&m, 1);
	args.site = 0;
	check_context("the connection is given up meanwhile");
	m = wait_with(args, later, 1);
	CHECK_INT(m.out.gave_up, 1);
	CHECK_INT(m.records[EP_RECORD_MASKED].cause, EP_CAUSE_RDMA);
	CHECK_INT(m.records[EP_RECORD_MASKED].value, 0);
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
		ep_progress_word(6, 0, 0), NEAR);
	CHECK_INT(m.out.gave_up, 0);
	CHECK_INT(m.out.polls, 130);
	CHECK_INT(masked_is(&m, 1), 0);
	check_context("another wait was in vain, by a clock that is ahead of this one's");
	m = wait_with((struct waits_args){ .ahead = 2000, .arrives = 600 },
		      ep_progress_word(5, 0, 0), NEAR);
	CHECK_INT(m.out.gave_up, 0);
	CHECK_INT(m.out.polls, 600);
	check_context("it never comes");
	m = wait_of(0, masked);
	CHECK_INT(m.out.gave_up, 1);
	CHECK_INT(m.out.polls, 128); /* the second look */
	CHECK_INT(masked_is(&m, 1), 1);
	CHECK_INT(m.async_error, 1);
	CHECK_INT(m.records[EP_RECORD_MASKED].cause, EP_CAUSE_EXCLUDED);
	CHECK_INT(m.records[EP_RECORD_MASKED].value, 1);
	test_bank();
	test_down();
	test_overtaken();
	return check_end();
}
