/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: ncclEpCombine in groups of several nodes. Each rank returns a row for each token
 * to the token's source, or, if that is on another node, to the source's forwarder in this node;
 * the forwarder adds what the ranks of its node return, in fp32, rounds, and sends one row. The
 * source adds in fp32 what comes from the ranks of its node and from other nodes, in the order in
 * which the token's experts come, and rounds once more. Roles: copy warps, which do what those of
 * one node do and merge (device/ht/combine_copy.h), and in each block a send warp and a credit warp
 * (device/ht/post.h).
 */
#include "device/ht/combine_copy.h"
#include "device/ht/post.h"
#include "device/ht/step.h"

#include "device/kernels.h"

/*
 * Puts all gradients of weights that go to other nodes together in the out area, a list for each
 * rank, which the send warp sends apart from the rows. All warps.
 */
EP_DEV void gradients_stage(const struct ep_ht_combine_args &a)
{
	const struct ep_ht_common &c = a.c;
	uint32_t turn = ep_block() + ep_nblocks() * ep_warp(), step = ep_nblocks() * ep_nwarps();

	for (uint32_t r = 0; r < c.g.nranks; r++) {
		uint32_t rows = c.h.recv_base[r + 1] - c.h.recv_base[r];

		for (uint32_t row = turn * EP_HT_CHUNK; !ep_ht_near(c, r) && row < rows;
		     row += step * EP_HT_CHUNK) {
			ep_ht_gradients_leave(a, r, row, ep_min_u32(rows - row, EP_HT_CHUNK),
					      ep_ht_out_weights(c, r, row));
		}
	}
}

EP_DEV_COLD void ep_ht_combine_send_warp(const struct ep_ht_combine_args &a, struct ep_op op)
{
	if (a.in_weights && !ep_ht_weights_post_all(a.c, op, a.c.h.recv_start)) {
		return;
	}
	ep_ht_post(a.c, op, ep_ht_flows_make(a.c, false, a.parts, a.token_bytes));
}

EP_DEV_COLD void ep_ht_combine_credit_warp(const struct ep_ht_combine_args &a, struct ep_op op)
{
	ep_ht_credit(a.c, op, ep_ht_flows_make(a.c, true, a.parts, 0));
}

template <class F> EP_DEV void combine_nodes(const struct ep_ht_combine_args &a)
{
	struct ep_ht_entry e = ep_ht_enter<true>(a.c, true);
	struct ep_ht_pipe p = ep_ht_pipe_make(a.stage_parts, a.part_bytes);
	bool ok = ep_ht_begin<true>(a.c, &e);

	if (ok && a.in_weights) {
		gradients_stage(a);
		ep_ht_ready_publish(a.c, e.op);
	}
	if (ok && ep_warp() < ep_ht_copy_warps<true>()) {
		struct ep_ht_due due = {};

		ep_ht_combine_units<F, true>(a, e.op, &p, &due, ep_ht_combine_work_make<true>(a),
					     {}, {});
		ep_ht_due_publish<true>(a, e.op, p, &due);
	} else if (ok && ep_warp() == ep_ht_copy_warps<true>()) {
		ep_ht_combine_send_warp(a, e.op);
	} else if (ok) {
		ep_ht_combine_credit_warp(a, e.op);
	}
	ep_ht_pipe_end(a.c.g, e.op, &p);
}

EP_HT_COMBINE_KERNEL(ep_ht_combine_bf16_nodes_kernel, ep_ht_numbers<EP_BF16>, combine_nodes,
		     EP_HT_COMBINE_THREADS)
EP_HT_COMBINE_KERNEL(ep_ht_combine_fp16_nodes_kernel, ep_ht_numbers<EP_FP16>, combine_nodes,
		     EP_HT_COMBINE_THREADS)
EP_HT_COMBINE_KERNEL(ep_ht_combine_fp32_nodes_kernel, ep_ht_numbers<EP_FP32>, combine_nodes,
		     EP_HT_COMBINE_THREADS)
