/* SPDX-License-Identifier: Apache-2.0 */
/* Plain copies of rows between GPUs, the two ways in which an SM can make them; and a flag. */
#include "device/simt/bulk.h"
#include "fabric.h"

/* By loads and stores of 16 bytes, a warp for each row. */
EP_KERNEL(fabric_lanes_kernel, fabric_copy_args, FABRIC_STORE_THREADS)
{
	uint32_t warps = ep_nblocks() * ep_nwarps();

	for (uint32_t k = ep_block() * ep_nwarps() + ep_warp(); k < a.rows; k += warps) {
		size_t at = (size_t)(k / a.peers) * FABRIC_ROW + ep_lane() * 16;
		const char *from = a.from[k % a.peers] + at;
		char *to = a.to[k % a.peers] + at;

		for (uint32_t done = 0; done < FABRIC_ROW; done += FABRIC_BATCH * 512) {
			struct ep_vec16 v[FABRIC_BATCH];

			EP_UNROLL(7)
			for (uint32_t i = 0; i < FABRIC_BATCH; i++) {
				v[i] = ep_ld16_nc(from + done + i * 512);
			}
			EP_UNROLL(7)
			for (uint32_t i = 0; i < FABRIC_BATCH; i++) {
				ep_st16(to + done + i * 512, v[i]);
			}
		}
	}
}

struct bulk_warp {
	char *stages;
	struct ep_mbar *bars;
	uint32_t first, step;
};

EP_DEV void bulk_load(const struct fabric_copy_args &a, const struct bulk_warp &warp, uint32_t i)
{
	uint32_t k = warp.first + i * warp.step;
	uint32_t stage = i % FABRIC_BULK_STAGES;

	ep_bulk_load(warp.stages + stage * FABRIC_ROW,
		     a.from[k % a.peers] + (size_t)(k / a.peers) * FABRIC_ROW, FABRIC_ROW,
		     warp.bars + stage);
	ep_mbar_arrive_tx(warp.bars + stage, FABRIC_ROW);
}

/* By bulk copies through shared memory: a warp has loads of later rows on their way while it stores. */
EP_KERNEL(fabric_bulk_kernel, fabric_copy_args, FABRIC_BULK_WARPS * 32)
{
	EP_SHARED(struct ep_mbar, bars[FABRIC_BULK_WARPS * FABRIC_BULK_STAGES]);
	struct bulk_warp w;
	uint32_t rows;

	w.stages = (char *)ep_dynamic_shared() + ep_warp() * FABRIC_BULK_STAGES * FABRIC_ROW;
	w.bars = bars + ep_warp() * FABRIC_BULK_STAGES;
	w.first = ep_block() * ep_nwarps() + ep_warp();
	w.step = ep_nblocks() * ep_nwarps();
	rows = w.first < a.rows ? (a.rows - w.first - 1) / w.step + 1 : 0;
	for (uint32_t i = 0; i < FABRIC_BULK_STAGES; i++) {
		ep_mbar_init(w.bars + i, 1);
	}
	ep_mbar_fence_init();
	ep_warp_sync(EP_FULL_MASK);
	for (uint32_t i = 0; i + 1 < FABRIC_BULK_STAGES && i < rows; i++) {
		bulk_load(a, w, i);
	}
	for (uint32_t i = 0; i < rows; i++) {
		uint32_t k = w.first + i * w.step;
		uint32_t stage = i % FABRIC_BULK_STAGES;

		if (i + FABRIC_BULK_STAGES - 1 < rows) {
			ep_bulk_wait_read(0);
			bulk_load(a, w, i + FABRIC_BULK_STAGES - 1);
		}
		if (!ep_mbar_wait(w.bars + stage, i / FABRIC_BULK_STAGES & 1, a.timeout_ns,
				  EP_WAIT_BULK, 0)) {
			*a.late = 1;
			break;
		}
		ep_bulk_store(a.to[k % a.peers] + (size_t)(k / a.peers) * FABRIC_ROW,
			      w.stages + stage * FABRIC_ROW, FABRIC_ROW);
		ep_bulk_commit();
	}
	ep_bulk_wait(0);
}

/* A flag goes to and fro. */
EP_KERNEL(fabric_flag_kernel, fabric_flag_args, 32)
{
	if (ep_tid() != 0) {
		return;
	}
	for (uint32_t round = 1; round <= a.rounds; round++) {
		struct ep_spin s = ep_spin_start();

		if (a.first) {
			ep_st_release_sys_u32(a.theirs, round);
		}
		while (ep_ld_acquire_sys_u32(a.mine) < round) {
			if (ep_spin_expired(&s, a.timeout_ns, EP_WAIT_PROGRESS, 0)) {
				*a.late = 1;
				return;
			}
		}
		if (!a.first) {
			ep_st_release_sys_u32(a.theirs, round);
		}
	}
}

EP_KERNEL(fabric_empty_kernel, fabric_empty_args, 32)
{
}
