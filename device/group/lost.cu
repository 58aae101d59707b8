/* SPDX-License-Identifier: Apache-2.0 */
/* The host has found connections lost, and masks those ranks while other kernels may be running. */
#include "device/group/group_mask.h"

#include "device/kernels.h"

/*
 * A rank that a kernel has masked before stays as it is. Blocks of the kernel that is running now may
 * have found it masked by an earlier one, and go on without it; the unknown step would mean to the others
 * that they have to agree, and those might agree that it is present.
 */
EP_KERNEL(ep_lost_kernel, ep_lost_args, EP_GROUP_MAX_THREADS)
{
	for (uint32_t r = ep_tid(); r < a.g.nranks; r += ep_nthreads()) {
		if (ep_ranks_has(&a.lost, r) && ep_mask_active(a.g, r)) {
			ep_st_relaxed_gpu_u32(ep_mask_steps(a.g.mask, a.g.nranks) + r,
					      EP_MASK_STEP_UNKNOWN);
			ep_st_release_gpu_u32((uint32_t *)a.g.mask + r, 0);
		}
	}
}
