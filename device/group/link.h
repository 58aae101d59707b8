/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The queues to remote ranks: where they are. And when waits may post to a control queue, which its
 * owner has for itself else.
 */
#ifndef EP_DEVICE_GROUP_LINK_H
#define EP_DEVICE_GROUP_LINK_H

#include "device/group/group_layout.h"
#include "device/mlx5/qp.h"

EP_DEV struct ep_mlx5_qp *ep_remote_qp(const struct ep_dev_group &g, uint32_t r, uint32_t queue)
{
	return g.remote->qps + (size_t)r * g.remote->queues + queue;
}

EP_DEV struct ep_remote_link *ep_remote_link_at(const struct ep_dev_group &g, uint32_t r,
						uint32_t queue)
{
	return g.remote->links + (size_t)r * g.remote->queues + queue;
}

/*
 * The control queue to rank r is left to waits in this step: to those of the owner's block, until
 * the barrier that is next for both, or, `all` having been posted that the step has for it, to
 * those of all blocks. Its owner, one warp.
 */
EP_DEV void ep_control_leave(const struct ep_dev_group &g, uint32_t r, uint32_t step, bool all)
{
	if (ep_lane() == 0) {
		struct ep_remote_link *link = ep_remote_link_at(g, r, g.remote->channels);

		if (all) {
			ep_st_release_gpu_u32(&link->left, step);
		}
		ep_st_release_gpu_u32(&link->left_here, step);
	}
}

/* May a wait of this block use that queue? One wait at a time. */
EP_DEV bool ep_control_left(const struct ep_remote_link *link, uint32_t step)
{
	return ep_ld_acquire_gpu_u32(ep_block() == 0 ? &link->left_here : &link->left) == step;
}

#endif
