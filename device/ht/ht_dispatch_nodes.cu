/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: ncclEpDispatch in groups of several nodes. A row is loaded once where it is, and
 * stored once for each rank of the node and once for the NIC, which writes it to one rank of each
 * other node; that one stores it for the ranks there. Roles: copy warps, which do what those of one
 * node do and forward (device/ht/dispatch_copy.h), and in each block a send warp and a credit warp
 * (device/ht/post.h).
 */
#include "device/ht/dispatch_copy.h"
#include "device/ht/post.h"
#include "device/ht/step.h"

#include "device/kernels.h"

/*
 * The lane's selection of a token: rank and row; and as which one of its rank it comes in the row.
 */
struct ep_ht_choice_of {
	uint32_t sel;
	uint32_t rank; /* EP_HT_NONE: it has no row, or names an expert again */
	uint32_t row;
	uint32_t at;
};

EP_DEV struct ep_ht_choice_of choice_make(const struct ep_ht_common &c, uint32_t token)
{
	struct ep_ht_choice_of s = { EP_HT_NONE, EP_HT_NONE, EP_HT_NONE, 0 };
	size_t i = (size_t)token * c.topk + ep_lane();
	uint32_t alike;

	if (ep_lane() < c.topk) {
		s.sel = c.h.send_sel[i];
		s.row = c.h.send_row[i];
	}
	if (s.sel != EP_HT_NONE && s.row != EP_HT_NONE && !(s.sel & EP_HT_SEL_AGAIN)) {
		s.rank = ep_ht_sel_rank(c, s.sel);
	}
	alike = ep_match_u32(EP_FULL_MASK, s.rank == EP_HT_NONE ? ~ep_lane() : s.rank);
	s.at = ep_popc(alike & ((1u << ep_lane()) - 1));
	return s;
}

/*
 * Puts all weights that go to other nodes together in the out area, a list for each rank, which the
 * send warp sends apart from the rows. All warps.
 */
EP_DEV void weights_stage(const struct ep_ht_dispatch_args &a)
{
	const struct ep_ht_common &c = a.c;

	for (uint32_t token = ep_block() + ep_nblocks() * ep_warp(); token < c.num_tokens;
	     token += ep_nblocks() * ep_nwarps()) {
		struct ep_ht_choice_of s = choice_make(c, token);

		if (s.rank != EP_HT_NONE && !ep_ht_near(c, s.rank)) {
			ep_ht_out_weights(c, s.rank, s.row)[s.at] =
				a.topk_weights[(size_t)token * c.topk + EP_HT_SEL_K(s.sel)];
		}
	}
}

EP_DEV_COLD void ep_ht_dispatch_send_warp(const struct ep_ht_dispatch_args &a, struct ep_op op)
{
	if (a.topk_weights && !ep_ht_weights_post_all(a.c, op, a.c.h.send_start)) {
		return;
	}
	ep_ht_post(a.c, op, ep_ht_flows_make(a.c, true, a.parts, a.token_bytes + a.scale_bytes));
}

EP_DEV_COLD void ep_ht_dispatch_credit_warp(const struct ep_ht_dispatch_args &a, struct ep_op op)
{
	ep_ht_credit(a.c, op, ep_ht_flows_make(a.c, false, a.parts, 0));
}

/*
 * Keeps the weights of rows from other nodes, which come apart from the rows. All copy warps: where
 * there are enough, each waits for one source alone, whose rows it shares with `sharers` - 1
 * others.
 */
EP_DEV bool weights_take(const struct ep_ht_dispatch_args &a, const struct ep_op &op)
{
	const struct ep_ht_common &c = a.c;
	uint32_t workers = ep_nblocks() * ep_ht_copy_warps<true>(), turns = ep_ht_turns(c);
	uint32_t sharers = ep_max_u32(workers / turns, 1);

	for (uint32_t i = ep_block() + ep_nblocks() * ep_warp(); i < turns * sharers;
	     i += workers) {
		uint32_t share = i / turns, s = ep_ht_turn_rank(c, i - share * turns), base, rows;

		if (s == EP_HT_NONE) {
			continue;
		}
		base = c.h.recv_base[s];
		rows = c.h.recv_base[s + 1] - base;
		if (rows && !ep_ht_signal_wait(c, op, s, EP_HT_ROWS, 1, EP_WAIT_HT_ROWS)) {
			return false;
		}
		ep_ht_recv_weights(a, s, base, rows, share * EP_WARP_SIZE + ep_lane(),
				   sharers * EP_WARP_SIZE);
	}
	return true;
}

/* All that a copy warp does. False: a wait has failed. */
EP_DEV bool dispatch_copy_warp(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
			       struct ep_ht_pipe *pipe)
{
	struct ep_ht_dispatch_work work = ep_ht_dispatch_work_make<true>(a);
	struct ep_ht_stored stored = ep_ht_stored_make<true>(a, *pipe, work, false);

	ep_ht_dispatch_work_find<true>(a, &work);
	return ep_ht_dispatch_copy<true>(a, op, pipe, &work, &stored) &&
	       (!a.topk_weights || weights_take(a, op));
}

EP_KERNEL_ALONE(ep_ht_dispatch_nodes_kernel, ep_ht_dispatch_args, EP_HT_MAX_THREADS)
{
	struct ep_ht_entry entry = ep_ht_enter<true>(a.c, false);
	struct ep_ht_pipe pipe = ep_ht_pipe_make(a.stage_parts, a.part_bytes);
	bool ok = ep_ht_begin<true>(a.c, &entry);

	if (ok && a.topk_weights) {
		weights_stage(a);
		ep_ht_ready_publish(a.c, entry.op);
	}
	if (ok && ep_warp() < ep_ht_copy_warps<true>()) {
		ok = dispatch_copy_warp(a, entry.op, &pipe);
	} else if (ok && ep_warp() == ep_ht_copy_warps<true>()) {
		ep_ht_dispatch_send_warp(a, entry.op);
	} else if (ok) {
		ep_ht_dispatch_credit_warp(a, entry.op);
	}
	ep_ht_pipe_end(a.c.g, entry.op, &pipe);
	ep_bulk_fence_global(); /* all that was waited for lies behind */
	if (ok && a.c.layout == EP_HT_EXPERT_MAJOR) {
		ep_ht_zero(a, &pipe);
	}
	if (ok && a.c.layout == EP_HT_FLAT && a.topk_weights) {
		ep_ht_entries_fill(a);
	}
	if (ok && ep_block() == 0 && ep_warp() == 0) {
		ep_ht_dispatch_count(a);
		ep_ht_counters_leave(a);
	}
}
