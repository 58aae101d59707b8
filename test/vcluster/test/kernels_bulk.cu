/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bulk copies, and each mistake that can be made with them: what `a.mistake` names is left out, or
 * done wrong. Without a mistake the kernels run on GPUs, too.
 */
#include "device/simt/bulk.h"
#include "kernels_bulk.h"

#define BUFFERS 4
#define WARPS 4

EP_DEV bool wrong(const struct test_bulk_args &a, uint32_t mistake)
{
	return a.mistake == mistake;
}

EP_DEV char *buffer_at(const struct test_bulk_args &a, uint32_t k)
{
	return (char *)ep_dynamic_shared() +
	       (size_t)(ep_warp() * a.nbuffers + k % a.nbuffers) * a.bytes;
}

EP_DEV void add_one(char *row, uint32_t bytes)
{
	for (uint32_t at = ep_lane() * 16; at < bytes; at += EP_WARP_SIZE * 16) {
		struct ep_vec16 v = ep_shared_ld16(row + at);

		v.x++;
		v.y++;
		v.z++;
		v.w++;
		ep_shared_st16(row + at, v);
	}
}

/* The warp's k-th row goes into its buffer k % nbuffers, for phase k / nbuffers of its barrier. */
EP_DEV void rows_load(const struct test_bulk_args &a, struct ep_mbar *bar, uint32_t k)
{
	uint32_t row = k * ep_nblocks() * ep_nwarps() + ep_block() * ep_nwarps() + ep_warp();
	uint32_t bytes = wrong(a, BULK_SIZE) ? a.bytes - 4 : wrong(a, BULK_NOTHING) ? 0 : a.bytes;
	char *to = buffer_at(a, k) + (wrong(a, BULK_ALIGNMENT) ? 8 : 0) -
		   (wrong(a, BULK_OUTSIDE) ? 4096 : 0);

	if (wrong(a, BULK_LATE_LOAD)) {
		ep_mbar_arrive_tx(bar, bytes);
	}
	ep_bulk_load(to, a.from + (size_t)row * a.bytes, bytes, bar);
	if (!wrong(a, BULK_LATE_LOAD) && !wrong(a, BULK_LEAVES_LOAD)) {
		ep_mbar_arrive_tx(bar, wrong(a, BULK_ANNOUNCED) ? bytes + 16 : bytes);
	}
	if (wrong(a, BULK_ARRIVES_MORE)) {
		ep_mbar_arrive(bar);
	}
	if (wrong(a, BULK_INVAL_EARLY)) {
		ep_mbar_inval(bar);
	}
}

EP_DEV void rows_store(const struct test_bulk_args &a, uint32_t k)
{
	uint32_t row = k * ep_nblocks() * ep_nwarps() + ep_block() * ep_nwarps() + ep_warp();
	char *buffer = buffer_at(a, k);
	uint32_t lanes = wrong(a, BULK_LANES) ? ep_lane() & 16 : 0;

	if (a.add) {
		add_one(buffer, a.bytes);
		if (!wrong(a, BULK_FENCE_SHARED)) {
			ep_bulk_fence_shared(buffer, a.bytes);
		}
	}
	ep_bulk_store(a.to + (size_t)row * a.bytes + lanes, buffer, a.bytes);
	if (!wrong(a, BULK_COMMIT)) {
		ep_bulk_commit();
	}
	if (wrong(a, BULK_WRITES_EARLY)) {
		add_one(buffer, a.bytes);
	}
}

EP_DEV void rows_init(const struct test_bulk_args &a, struct ep_mbar *bar)
{
	for (uint32_t i = 0; i < a.nbuffers && !wrong(a, BULK_INIT); i++) {
		ep_mbar_init(bar + i, wrong(a, BULK_ARRIVALS) ? 2 : 1);
	}
	if (wrong(a, BULK_INIT_TWICE)) {
		ep_mbar_init(bar, 1);
	}
	if (!wrong(a, BULK_FENCE_INIT)) {
		ep_mbar_fence_init();
	}
}

/*
 * Each warp moves rows by itself, nbuffers - 1 loads ahead. All its mistakes but the early write
 * leave nothing that another warp would see.
 */
EP_KERNEL(test_bulk_rows, test_bulk_args, 128)
{
	EP_SHARED(struct ep_mbar, bars[WARPS * BUFFERS]);
	struct ep_mbar *bar = bars + ep_warp() * BUFFERS;
	uint32_t ahead = a.nbuffers - 1;

	rows_init(a, bar);
	for (uint32_t k = 0; k < ahead; k++) {
		rows_load(a, bar + k, k);
	}
	for (uint32_t k = 0; k < a.rows; k++) {
		uint32_t next = k + ahead, phase = k / a.nbuffers;
		uint32_t parity = wrong(a, BULK_PARITY_2) ? 2 : (phase ^ wrong(a, BULK_PARITY)) & 1;

		if (next < a.rows) {
			if (!wrong(a, BULK_WAIT_READ)) {
				ep_bulk_wait_read(0);
			}
			rows_load(a, bar + next % a.nbuffers, next);
		}
		if (wrong(a, BULK_LEAVES_LOAD)) {
			return;
		}
		if (!wrong(a, BULK_WAIT_LOAD) &&
		    !ep_mbar_wait(bar + k % a.nbuffers, parity, a.timeout_ns, EP_WAIT_BULK, 5)) {
			ep_atomic_add_gpu_u32(a.late, 1);
			return;
		}
		rows_store(a, k);
	}
	if (!wrong(a, BULK_LEAVES_STORE)) {
		ep_bulk_wait_read(0);
	}
	for (uint32_t i = 0; i < a.nbuffers; i++) {
		ep_mbar_inval(bar + i);
	}
}

/*
 * Warp 0 loads rows, the others add up all words of each: through two barriers per buffer, one that
 * says that it is full, and one that says that all other warps have read it. `to` gets the sums.
 */
EP_KERNEL(test_bulk_pipe, test_bulk_args, 128)
{
	EP_SHARED(struct ep_mbar, full[BUFFERS]);
	EP_SHARED(struct ep_mbar, empty[BUFFERS]);
	char *rows = (char *)ep_dynamic_shared();
	uint32_t *sums = (uint32_t *)a.to, readers = ep_nwarps() - 1;

	if (ep_warp() == 0) {
		for (uint32_t i = 0; i < a.nbuffers; i++) {
			ep_mbar_init(full + i, 1);
			ep_mbar_init(empty + i, readers);
		}
		ep_mbar_fence_init();
	}
	if (!wrong(a, BULK_INIT_RACE)) {
		ep_block_sync();
	}
	for (uint32_t k = 0; k < a.rows; k++) {
		uint32_t i = k % a.nbuffers, parity = k / a.nbuffers & 1;
		char *buffer = rows + (size_t)i * a.bytes;

		if (ep_warp() == 0) {
			/* a new barrier says that the phase before the first one is over */
			if (!wrong(a, BULK_EMPTY) &&
			    !ep_mbar_wait(empty + i, parity ^ 1, a.timeout_ns, EP_WAIT_BULK, 0)) {
				ep_atomic_add_gpu_u32(a.late, 1);
			}
			ep_bulk_load(buffer, a.from + (size_t)k * a.bytes, a.bytes, full + i);
			ep_mbar_arrive_tx(full + i, a.bytes);
			continue;
		}
		uint32_t sum = 0;

		bool last = ep_warp() == readers;
		bool waits = !(last && wrong(a, BULK_PIPE_WAIT));

		parity ^= last && wrong(a, BULK_PIPE_PARITY);
		if (waits && !ep_mbar_wait(full + i, parity, a.timeout_ns, EP_WAIT_BULK, 0)) {
			ep_atomic_add_gpu_u32(a.late, 1);
		}
		for (uint32_t at = ep_lane() * 16; at < a.bytes; at += EP_WARP_SIZE * 16) {
			struct ep_vec16 v = ep_shared_ld16(buffer + at);

			sum += v.x + v.y + v.z + v.w;
		}
		ep_mbar_arrive(empty + i);
		if (a.bytes > 16 * ep_lane()) {
			ep_atomic_add_gpu_u32(sums + k * readers + ep_warp() - 1, sum);
		}
	}
	/* The one that loads does not end before the others have what it has loaded. */
	if (ep_warp() != 0) {
		ep_bar_arrive(2, ep_nthreads());
		if (wrong(a, BULK_ARRIVES_TWICE)) {
			ep_bar_arrive(2, ep_nthreads());
		}
	} else {
		ep_bar_sync(2, ep_nthreads());
	}
}

/* One warp stores its only row to as many places as there are rows, and then waits for all. */
EP_KERNEL(test_bulk_spread, test_bulk_args, 32)
{
	EP_SHARED(struct ep_mbar, bar[1]);
	char *row = (char *)ep_dynamic_shared();

	ep_mbar_init(bar, 1);
	ep_mbar_fence_init();
	ep_bulk_load(row, a.from, a.bytes, bar);
	ep_mbar_arrive_tx(bar, a.bytes);
	if (!ep_mbar_wait(bar, 0, a.timeout_ns, EP_WAIT_BULK, 0)) {
		ep_atomic_add_gpu_u32(a.late, 1);
	}
	for (uint32_t k = 0; k < a.rows; k++) {
		ep_bulk_store(a.to + (size_t)k * a.bytes, row, a.bytes);
		ep_bulk_commit();
	}
	ep_bulk_wait(0);
	ep_mbar_inval(bar);
}

/*
 * Stores rows from shared memory, which it has filled itself, into `mail`, and a flag behind them.
 * Clears `mail` when it has been read.
 */
EP_DEV void flag_send(const struct test_bulk_args &a)
{
	char *row = (char *)ep_dynamic_shared();

	for (uint32_t k = 0; k < a.rows; k++) {
		ep_bulk_wait_read(0);
		for (uint32_t at = ep_lane() * 16; at < a.bytes; at += EP_WARP_SIZE * 16) {
			struct ep_vec16 v = ep_ld16_fresh(a.from + (size_t)k * a.bytes + at);

			ep_shared_st16(row + at, v);
		}
		ep_bulk_fence_shared(row, a.bytes);
		ep_bulk_store(a.mail + (size_t)k * a.bytes, row, a.bytes);
		ep_bulk_commit();
	}
	if (wrong(a, BULK_FLAG_EARLY)) {
		ep_bulk_wait_read(0);
	} else {
		ep_bulk_wait(0);
	}
	if (ep_lane() == 0) {
		ep_release_fence_sys();
		ep_st_fenced_sys_u32(a.flag, 1);
	}
	/* The end of the kernel would do, too, but not before the flag has been seen. */
	for (struct ep_spin s = ep_spin_start(); !ep_ld_acquire_sys_u32(a.flag + 1);) {
		if (ep_spin_expired(&s, a.timeout_ns, EP_WAIT_NONE, 0)) {
			break;
		}
	}
	ep_bulk_wait(0);
	/* It has been read. */
	for (uint32_t at = ep_lane() * 16; at < a.rows * a.bytes; at += EP_WARP_SIZE * 16) {
		ep_st16(a.mail + at, {});
	}
}

/* One warp waits for the flag and tells the one that copies: by a named barrier, or by bar[1]. */
EP_DEV void flag_await(const struct test_bulk_args &a, struct ep_mbar *bar)
{
	if (ep_warp() == 0) {
		ep_mbar_init(bar, 1);
		ep_mbar_init(bar + 1, 1);
		ep_mbar_fence_init();
	}
	ep_block_sync();
	if (ep_warp() == 1) {
		for (struct ep_spin s = ep_spin_start(); !ep_ld_acquire_sys_u32(a.flag);) {
			if (ep_spin_expired(&s, a.timeout_ns, EP_WAIT_NONE, 0)) {
				ep_atomic_add_gpu_u32(a.late, 1);
				break;
			}
		}
		if (a.add) {
			ep_mbar_arrive(bar + 1);
		} else {
			ep_bar_arrive(1, 64);
		}
	} else if (!a.add) {
		ep_bar_sync(1, 64);
	} else if (!ep_mbar_wait(bar + 1, 0, a.timeout_ns, EP_WAIT_BULK, 0)) {
		ep_atomic_add_gpu_u32(a.late, 1);
	}
}

EP_DEV void flag_receive(const struct test_bulk_args &a, struct ep_mbar *bar)
{
	char *row = (char *)ep_dynamic_shared();

	flag_await(a, bar);
	if (ep_warp() == 1) {
		return;
	}
	if (!wrong(a, BULK_FENCE_GLOBAL)) {
		ep_bulk_fence_global();
	}
	for (uint32_t k = 0; k < a.rows; k++) {
		ep_bulk_wait_read(0);
		ep_bulk_load(row, a.mail + (size_t)k * a.bytes, a.bytes, bar);
		ep_mbar_arrive_tx(bar, a.bytes);
		if (wrong(a, BULK_CREDIT_EARLY) && k + 1 == a.rows && ep_lane() == 0) {
			ep_st_release_sys_u32(a.flag + 1, 1);
		}
		if (!ep_mbar_wait(bar, k & 1, a.timeout_ns, EP_WAIT_BULK, 0)) {
			ep_atomic_add_gpu_u32(a.late, 1);
		}
		ep_bulk_store(a.to + (size_t)k * a.bytes, row, a.bytes);
		ep_bulk_commit();
	}
	ep_bulk_wait(0);
	if (ep_lane() == 0) {
		ep_st_release_sys_u32(a.flag + 1, 1);
	}
}

/* Block 0 sends to block 1. */
EP_KERNEL(test_bulk_flag, test_bulk_args, 64)
{
	EP_SHARED(struct ep_mbar, bar[2]);

	if (ep_block() == 1) {
		flag_receive(a, bar);
	} else if (ep_warp() == 0) {
		flag_send(a);
	}
}
