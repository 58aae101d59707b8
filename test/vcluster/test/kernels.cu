/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels that use every primitive of simt.h. They run on GPUs too, except the illegal ones. */
#include "device/simt/simt.h"
#include "kernels.h"

EP_DEV uint32_t odd_lanes(void)
{
	return 0xaaaaaaaau;
}

EP_KERNEL(test_ops, test_ops_args, 256)
{
	uint32_t id = ep_block() * ep_nthreads() + ep_tid();
	uint32_t *out = a.out + (size_t)id * TEST_WORDS;
	uint32_t lane = ep_lane();
	uint32_t full = EP_FULL_MASK;

	out[0] = ep_tid();
	out[1] = ep_nthreads() << 16 | ep_nwarps();
	out[2] = ep_warp() << 16 | lane;
	out[3] = ep_block() << 16 | ep_nblocks();
	out[4] = ep_ballot(full, lane % 3 == 0);
	out[5] = ep_any(full, lane == 7) << 1 | ep_any(full, false);
	out[6] = ep_all(full, lane < 32) << 1 | ep_all(full, lane < 31);
	out[7] = ep_shfl_u32(full, lane * 10, 31 - lane);
	out[8] = (uint32_t)(ep_shfl_u64(full, (uint64_t)lane << 33, 5) >> 32);
	out[9] = (uint32_t)ep_shfl_f32(full, (float)lane + 0.5f, 3);
	out[10] = ep_or_u32(full, lane & 1 ? lane : 0);
	out[11] = ep_shfl_xor_u32(full, lane, 21);
	out[12] = (uint32_t)ep_shfl_xor_f32(full, (float)lane, 1);
	out[13] = ep_match_u32(full, lane % 5);
	out[14] = ep_popc(lane) << 8 | ep_ctz(lane | 32);
	if (lane & 1) {
		out[15] = ep_ballot(odd_lanes(), lane > 8);
		out[16] = ep_shfl_u32(odd_lanes(), lane, (lane + 2) & 31);
	} else {
		/* The even lanes meet in two groups at the same time as the odd ones in theirs. */
		uint32_t mine = lane & 2 ? 0x44444444u : 0x11111111u;

		out[15] = ep_ballot(mine, lane > 8);
		out[16] = ep_match_u32(mine, lane / 8);
	}
	ep_warp_sync(full);
	/* An inclusive scan, as kernels do it. */
	uint32_t scan = lane + 1;
	for (uint32_t d = 1; d < 32; d *= 2) {
		uint32_t up = ep_shfl_u32(full, scan, lane - d);

		scan += lane >= d ? up : 0;
	}
	out[17] = scan;
	/* Loops of different length, then all together. */
	uint32_t turns = 0;
	for (uint32_t i = 0; i < lane; i++) {
		turns += ep_ballot(ep_match_u32(1u << lane, 1), true) != 0;
	}
	out[18] = ep_shfl_u32(full, turns, 31);
	struct ep_vec16 v = { lane, lane + 1, lane + 2, lane + 3 };
	ep_st16(out + 20, v);
	v = ep_ld16_fresh(out + 20);
	out[24] = v.x + v.y + v.z + v.w;
	out[25] = v.w;
	struct ep_vec8 h = ep_ld8_nc(a.in + 2 * lane);
	v = ep_ld16_nc(a.in + 4 * lane);
	out[26] = h.x + h.y + v.z;
	out[27] = (uint32_t)(ep_time_ns() != 0);
}

/* Shared memory, named barriers, atomics. Two halves of the block meet separately. */
EP_KERNEL(test_shared, test_shared_args, 256)
{
	EP_SHARED(uint32_t, sums[2]);
	EP_SHARED(uint32_t, bits);
	uint32_t *dynamic = (uint32_t *)ep_dynamic_shared();
	uint32_t half = ep_tid() >= ep_nthreads() / 2;

	if (((uintptr_t)dynamic & 127) || sums[0] == 0 ||
	    (a.words && dynamic[ep_tid() % a.words] == 0)) {
		ep_atomic_add_gpu_u32(a.stale, 1);
	}
	ep_block_sync();
	if (ep_tid() == 0) {
		sums[0] = sums[1] = bits = 0;
	}
	ep_block_sync();
	for (uint32_t i = 0; i < 10; i++) {
		ep_shared_add_u32(&sums[half], 1);
		ep_bar_sync(1 + half, ep_nthreads() / 2);
		if (sums[half] != (i + 1) * (ep_nthreads() / 2)) {
			ep_atomic_add_gpu_u32(a.stale, 1000);
		}
		ep_bar_sync(1 + half, ep_nthreads() / 2);
	}
	ep_shared_or_u32(&bits, 1u << ep_lane());
	for (uint32_t i = ep_tid(); i < a.words; i += ep_nthreads()) {
		dynamic[i] = i;
	}
	ep_block_sync();
	if (ep_tid() == 0) {
		uint32_t sum = sums[0] + sums[1] + (bits == EP_FULL_MASK);

		for (uint32_t i = 0; i < a.words; i++) {
			sum += dynamic[i];
		}
		a.out[ep_block()] = sum;
	}
	ep_atomic_add_gpu_u32(a.counter, 1);
	ep_atomic_add_gpu_u64((uint64_t *)(a.counter + 4), 1ull << 32);
	for (uint32_t seen = ep_ld_relaxed_gpu_u32(a.counter + 3);;) {
		uint32_t now = ep_atomic_cas_gpu_u32(a.counter + 3, seen, seen + 2);

		if (now == seen) {
			break;
		}
		seen = now;
	}
}

/* Everybody sends packets to the other side and waits for its own; two banks keep rounds apart. */
EP_KERNEL(test_packet, test_packet_args, 512)
{
	uint32_t sum = 0;

	for (uint32_t r = 0; r < a.rounds; r++) {
		uint32_t epoch = a.epoch + r, d0 = 0, d1 = 0;
		size_t at = (size_t)((epoch & 1) * 256 + ep_block() * 64 + (ep_tid() & 63)) * 16;
		struct ep_spin s = ep_spin_start();
		bool late = false;

		ep_st_packet((char *)a.to + at, epoch * 3 + ep_tid(), ep_tid(), epoch);
		while (!ep_ld_packet((const char *)a.from + at, epoch, &d0, &d1) && !late) {
			late = ep_spin_expired(&s, a.timeout_ns, EP_WAIT_DISPATCH_ROW, 1);
		}
		if (late) {
			ep_atomic_add_gpu_u32(a.late, 1);
			break;
		}
		sum += d0 - d1;
	}
	ep_atomic_add_gpu_u32(a.sum, sum);
}

/* A store to all, an addition at all, and a flag for all behind them. One thread. */
EP_KERNEL(test_multicast, test_multicast_args, 32)
{
	if (ep_tid() == 0) {
		ep_multimem_st_retired_sys_u64(a.all + a.rank, a.value);
		ep_multimem_add_release_sys_u64(a.all + a.nranks, a.value);
		ep_multimem_st_release_sys_u64(a.all + a.nranks + 1 + a.rank, a.value + 1);
	}
}

/* Plain data behind a flag: one fence and many flags, or a release store. */
EP_KERNEL(test_flag, test_flag_args, 256)
{
	EP_SHARED(uint32_t, there);

	if (a.role == 0) {
		for (uint32_t i = ep_tid(); i < a.n; i += ep_nthreads()) {
			a.data[i] = a.value + i;
		}
		ep_block_sync();
		if (ep_tid() == 0) {
			ep_release_fence_sys();
			ep_st_fenced_sys_u32(a.flag, a.value);
			ep_st_release_sys_u64((uint64_t *)(a.flag + 2), a.value);
		}
		return;
	}
	if (ep_tid() == 0) {
		struct ep_spin s = ep_spin_start();

		there = 1;
		while (ep_ld_acquire_sys_u32(a.flag) != a.value) {
			if (ep_spin_expired(&s, a.timeout_ns, EP_WAIT_PROGRESS, a.peer)) {
				there = 0;
				break;
			}
		}
		while (there && ep_ld_acquire_sys_u64((uint64_t *)(a.flag + 2)) != a.value) {
			if (ep_spin_expired(&s, a.timeout_ns, EP_WAIT_PROGRESS, a.peer)) {
				there = 0;
			}
		}
	}
	ep_block_sync();
	if (there) {
		for (uint32_t i = ep_tid(); i < a.n; i += ep_nthreads()) {
			a.out[i] = a.data[i];
		}
	}
}

EP_KERNEL(test_add, test_add_args, 1024)
{
	if (ep_tid() == 0) {
		uint64_t start = ep_time_ns();
		struct ep_spin s = ep_spin_start();

		while (ep_time_ns() - start < a.spin_ns &&
		       !ep_spin_expired(&s, a.spin_ns * 2, EP_WAIT_NONE, 0)) {
		}
		ep_atomic_add_gpu_u32(a.word, a.add);
	}
}

/*
 * One lane of a warp polls, all of them vote on what it saw, and then look for something else so
 * many times.
 */
EP_KERNEL(test_votes, test_votes_args, 64)
{
	struct ep_spin s = ep_spin_start();
	bool over = false;

	while (!ep_any(EP_FULL_MASK, over)) {
		if (ep_lane() == 3) {
			over = ep_ld_relaxed_sys_u32(a.word) != 0 ||
			       ep_spin_expired(&s, a.timeout_ns, EP_WAIT_PROGRESS, 0);
		}
		ep_warp_sync(EP_FULL_MASK);
		for (uint32_t i = 0; i < a.looks; i++) {
			for (uint32_t lane = 0; lane < 6; lane++) {
				(void)ep_shfl_u32(EP_FULL_MASK, over, lane);
			}
			ep_spin_polled();
		}
	}
	ep_atomic_add_gpu_u32(a.seen, ep_ld_relaxed_sys_u32(a.word));
}

EP_KERNEL(test_order, test_order_args, 32)
{
	if (ep_tid() == 0 && ep_atomic_add_gpu_u32(a.started, 1) == 0) {
		*a.first = ep_block();
	}
}

/* Blocks that wait for one another, of whatever grid. */
EP_KERNEL(test_meet, test_meet_args, 512)
{
	struct ep_spin s = ep_spin_start();

	if (ep_tid() != 0) {
		return;
	}
	ep_atomic_add_gpu_u32(a.here, 1);
	while (ep_ld_relaxed_sys_u32(a.here) < a.want) {
		if (ep_spin_expired(&s, a.timeout_ns, EP_WAIT_PROGRESS, 0)) {
			ep_atomic_add_gpu_u32(a.late, 1);
			break;
		}
	}
}

EP_KERNEL(test_copy, test_copy_args, 256)
{
	uint32_t step = ep_nblocks() * ep_nthreads();

	for (uint32_t i = ep_block() * ep_nthreads() + ep_tid(); i < a.n; i += step) {
		a.to[i] = a.from[i];
	}
}
