/* SPDX-License-Identifier: Apache-2.0 */
/* Everything the executor must find. Not for GPUs. */
#include "device/simt/simt.h"
#include "kernels.h"

EP_DEV __attribute__((noinline)) uint32_t deep(uint32_t n)
{
	volatile uint32_t room[64];

	for (uint32_t i = 0; i < 64; i++) {
		room[i] = n + i;
	}
	return n ? deep(n - 1) + room[n % 64] : room[0];
}

EP_DEV void barriers(const struct test_illegal_args &a)
{
	switch (a.what) {
	case ILLEGAL_BARRIER_COUNT:
		ep_bar_sync(1, ep_warp() ? 64 : 96);
		break;
	case ILLEGAL_BARRIER_EXIT:
		if (ep_warp()) {
			ep_block_sync();
		}
		break;
	case ILLEGAL_BARRIER_WARP:
		/* 64 threads arrive, but not two warps of them */
		if (ep_warp() == 0 || (ep_warp() == 1 && ep_lane() < 16) ||
		    (ep_warp() == 2 && ep_lane() < 16)) {
			ep_bar_sync(3, 64);
		}
		break;
	case ILLEGAL_DEADLOCK:
		ep_bar_sync(1 + ep_warp() % 2, ep_nthreads() - 32);
		break;
	default:
		break;
	}
}

EP_DEV void hangs(const struct test_illegal_args &a)
{
	if (a.what == ILLEGAL_HANG_SPIN && ep_warp() == 2) {
		struct ep_spin s = ep_spin_start();

		while (ep_ld_acquire_sys_u32(a.word) != 0x12345678) {
			ep_spin_expired(&s, ~0ull, EP_WAIT_DISPATCH_COUNT, 5);
		}
	}
	if (a.what == ILLEGAL_HANG_LOOP && ep_tid() == 40) {
		while (ep_ld_acquire_sys_u32(a.word) != 0x12345678) {
		}
	}
	if (a.what == ILLEGAL_HANG_SPIN || a.what == ILLEGAL_HANG_LOOP) {
		ep_block_sync();
	}
}

/* What a doorbell does: data, its record behind a fence, the register behind another. */
EP_DEV void fences(const struct test_illegal_args &a)
{
	uint64_t *reg = (uint64_t *)a.word + 8;
	uint32_t host;

	if (a.what != ILLEGAL_FENCE_NONE) {
		ep_release_fence_gpu();
	}
	if (a.what == ILLEGAL_FENCE_OLD) {
		ep_st_relaxed_gpu_u32(a.word + 1, 1);
	}
	if (a.what == ILLEGAL_FENCE_BARRIER) {
		ep_warp_sync(1u << ep_lane());
	}
	ep_st_fenced_sys_u32(a.what == ILLEGAL_FENCE_SCOPE ? &host : a.word + 2, 1);
	if (a.what == ILLEGAL_FENCE_REGISTER) {
		ep_release_fence_gpu();
	} else if (a.what != ILLEGAL_FENCE_FLAG) {
		ep_release_fence_sys();
	}
	ep_st_mmio_u64(reg, 1);
	/* One fence, many flags; anywhere if it is for all. */
	ep_release_fence_sys();
	ep_st_fenced_sys_u32(a.word + 3, 1);
	ep_st_fenced_sys_u32(&host, 1);
}

/* Block 0 reads, ends, and block 1 writes what it has read; or a thread does both. */
EP_DEV void read_only(const struct test_illegal_args &a)
{
	if (a.what == ILLEGAL_READ_ONLY && ep_tid() == 0) {
		if (ep_block() == 0) {
			a.word[0] = ep_ld16_nc(a.word + 4).x;
			ep_st_release_gpu_u32(a.word + 8, 1);
		} else {
			struct ep_spin s = ep_spin_start();

			while (!ep_ld_acquire_gpu_u32(a.word + 8)) {
				ep_spin_expired(&s, ~0ull, EP_WAIT_NONE, 0);
			}
			a.word[7] = 1;
		}
	}
	if (a.what == ILLEGAL_READ_ONLY_8 && ep_block() == 0 && ep_tid() == 0) {
		a.word[0] = ep_ld8_nc(a.word + 6).x;
		a.word[7] = 1;
	}
}

/* Lane 0 writes, all lanes meet, lane 1 reads: only ep_warp_sync() orders memory. */
EP_DEV void warp_races(const struct test_illegal_args &a)
{
	EP_SHARED(uint32_t, word);

	if (a.what < ILLEGAL_RACE_VOTE || ep_block() || ep_warp()) {
		return;
	}
	if (ep_lane() == 0) {
		word = 7;
	}
	if (a.what == ILLEGAL_RACE_VOTE) {
		ep_all(EP_FULL_MASK, true);
	} else if (a.what == ILLEGAL_RACE_SHUFFLE) {
		ep_shfl_u32(EP_FULL_MASK, 1, 0);
	} else {
		ep_warp_sync(EP_FULL_MASK);
	}
	if (ep_lane() == 1) {
		a.word[1] = word;
	}
}

/*
 * Mostly by loads alone: what a wait does besides orders it behind much that other threads have
 * done, as the race detector sees it.
 */
EP_DEV void wait_word(const uint32_t *word)
{
	struct ep_spin s = ep_spin_start();
	uint32_t polls = 0;

	while (!ep_ld_relaxed_gpu_u32(word)) {
		if (++polls % 20000 == 0) {
			ep_spin_expired(&s, ~0ull, EP_WAIT_NONE, 0);
		}
	}
}

EP_DEV void races(const struct test_illegal_args &a)
{
	EP_SHARED(uint32_t, word);

	if (a.what == ILLEGAL_RACE_SHARED) {
		if (ep_tid() == 0) {
			word = 7;
		}
		/* no barrier */
		if (ep_tid() == 33) {
			a.word[1] = word;
		}
	}
	if (a.what == ILLEGAL_RACE_GLOBAL && ep_tid() == 0) {
		/*
		 * Data and flag without release. Both blocks run: who ends before another begins is
		 * ordered before it. Nothing else lies in the data's eight bytes, whose last four
		 * accesses are all that the race detector knows.
		 */
		ep_st_relaxed_gpu_u32(a.word + 4 + ep_block(), 1);
		wait_word(a.word + 5 - ep_block());
		if (ep_block() == 0) {
			a.word[16] = 5;
			ep_st_relaxed_gpu_u32(a.word + 1, 1);
		} else {
			wait_word(a.word + 1);
			a.word[32] = a.word[16];
		}
	}
}

EP_KERNEL(test_illegal, test_illegal_args, 128)
{
	uint32_t lane = ep_lane();

	switch (a.what) {
	case ILLEGAL_EXIT_IN_COLLECTIVE:
		if (lane != 9) {
			ep_warp_sync(EP_FULL_MASK);
		}
		break;
	case ILLEGAL_MASKS:
		ep_ballot(lane < 16 ? 0x0001ffffu : EP_FULL_MASK, true);
		break;
	case ILLEGAL_OPS:
		if (lane == 3) {
			ep_any(EP_FULL_MASK, true);
		} else {
			ep_all(EP_FULL_MASK, true);
		}
		break;
	case ILLEGAL_NOT_NAMED:
		ep_ballot(0x0000ffffu, true);
		break;
	case ILLEGAL_STACK:
		a.word[0] = deep(100000);
		break;
	case ILLEGAL_ADDRESS:
		if (ep_tid() == 70) {
			a.word[1 << 20] = 1;
		}
		break;
	case ILLEGAL_NONE:
	case ILLEGAL_FENCE_NONE:
	case ILLEGAL_FENCE_OLD:
	case ILLEGAL_FENCE_BARRIER:
	case ILLEGAL_FENCE_SCOPE:
	case ILLEGAL_FENCE_FLAG:
	case ILLEGAL_FENCE_REGISTER:
		if (ep_block() == 0 && ep_tid() == 0) {
			fences(a);
		}
		break;
	default:
		barriers(a);
		hangs(a);
		races(a);
		warp_races(a);
		read_only(a);
		break;
	}
}
