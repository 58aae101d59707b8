/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: ncclEpDispatch in groups of several nodes. A row is loaded once where it is, and
 * stored once for each rank of the node and once for the NIC, which writes it to one rank of each other
 * node; that one stores it for the ranks there. Roles: copy warps (device/ht/hop.h), and in each block a
 * send warp and a credit warp (device/ht/post.h).
 */
#include "device/ht/ht_dispatch_zero.h"
#include "device/ht/forward.h"
#include "device/ht/post.h"
#include "device/ht/ht_step.h"
#include "device/ht/weights.h"

#include "device/kernels.h"

/* The unit whose rows have been stored last, and that is not published yet. */
struct ep_ht_hop_due {
	bool there;
	struct ep_ht_hop unit;
	uint32_t group; /* of stores, its last one */
};

/* Publishes the unit to those who get rows of it. */
EP_DEV void ep_ht_hop_publish(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
			      const struct ep_ht_pipe *pipe, struct ep_ht_hop_due *due)
{
	const struct ep_ht_common &c = a.c;
	const struct ep_ht_hop &u = due->unit;
	uint64_t word = ep_ht_unit_word(op.epoch, u.chunk);
	uint32_t slot = u.chunk % c.areas.ring_chunks, source;

	if (!due->there) {
		return;
	}
	due->there = false;
	ep_ht_pipe_stored(pipe, due->group);
	source = u.kind == EP_HT_SEND ? c.g.rank : c.remote.feeds[u.from].peer;
	for (uint32_t i = ep_lane(); i < c.remote.near; i += EP_WARP_SIZE) {
		uint32_t d = c.remote.near_ranks[i];
		bool gets = u.kind == EP_HT_SEND ? ep_ht_rows(c, c.h.send_start, d, u.chunk) != 0
						 : ep_ht_near_mask(c, u.from, i, u.chunk) != 0;

		if (gets && d != c.g.rank) {
			ep_st_release_sys_u64(ep_ht_unit_at(c, ep_heap_of(c.g, d),
							    c.areas.arrived_off, source, slot,
							    u.part),
					      word);
		}
	}
	if (u.kind == EP_HT_SEND && ep_ht_nodes_mask(c, u.chunk) && ep_lane() == 0) {
		ep_st_release_sys_u64(ep_ht_staged_at(c, 0, u.chunk, u.part), word);
	}
}

/* All bytes of the unit have been loaded: what they came from may be written again. */
EP_DEV void ep_ht_hop_consumed(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
			       const struct ep_ht_hop &hop)
{
	const struct ep_ht_common &c = a.c;
	uint64_t word = ep_ht_unit_word(op.epoch, hop.chunk);

	ep_warp_sync(EP_FULL_MASK);
	if (ep_lane() != 0) {
		return;
	}
	if (hop.kind == EP_HT_FORWARD) {
		ep_st_release_sys_u64(ep_ht_consumed_at(c, hop.from, hop.chunk, hop.part), word);
	}
	if (hop.kind == EP_HT_RECEIVE && hop.chunk + c.areas.ring_chunks < c.h.head->chunks) {
		struct ep_ht_return_ring ring = c.remote.return_rings[hop.from];

		ep_st_release_sys_u64(ep_ht_unit_at(c, ep_heap_of(c.g, ring.rank),
						    c.areas.credit_off, ring.number,
						    hop.chunk % c.areas.ring_chunks, hop.part),
				      word);
	}
}

/* Moves the rows of a unit that is ready. False: its bytes do not come. */
EP_DEV bool ep_ht_hop_move(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
			   struct ep_ht_pipe *pipe, const struct ep_ht_hop &hop)
{
	struct ep_ht_piece piece = ep_ht_piece_make(a, hop.part);
	uint32_t ahead = hop.rows;

	for (uint32_t left = hop.rows; left; left &= left - 1) {
		uint32_t i = ep_ctz(left);
		struct ep_ht_list l = { EP_HT_NONE, EP_HT_NONE, EP_HT_NONE, 0 };
		const unsigned char *from;

		for (; ahead && ep_ht_pipe_room(pipe); ahead &= ahead - 1) {
			ep_ht_hop_load(a, pipe, hop, piece, ep_ctz(ahead));
		}
		if (hop.kind == EP_HT_SEND) {
			l = ep_ht_send_list(a.c, hop.chunk * EP_HT_CHUNK + i);
		}
		from = ep_ht_pipe_wait(a.c.g, op, pipe, a.c.g.rank);
		if (!from) {
			return false;
		}
		if (hop.kind == EP_HT_SEND) {
			ep_ht_hop_send(a, hop, piece, i, l, from);
		} else if (hop.kind == EP_HT_FORWARD) {
			ep_ht_hop_forward(a, hop, piece, i, from);
		} else {
			ep_ht_hop_receive(a, hop, piece, i, from);
		}
		ep_ht_pipe_release(pipe);
	}
	ep_ht_hop_consumed(a, op, hop);
	return true;
}

/* Weights of a unit's rows that do not come by NICs, with part 0. */
EP_DEV void ep_ht_hop_weights(const struct ep_ht_dispatch_args &a, const struct ep_ht_hop &hop)
{
	const struct ep_ht_common &c = a.c;
	uint32_t token = hop.chunk * EP_HT_CHUNK;

	if (!a.topk_weights || hop.part) {
		return;
	}
	if (hop.kind == EP_HT_SEND) {
		ep_ht_weights_send(a, token, ep_min_u32(token + EP_HT_CHUNK, c.num_tokens), true);
	} else if (hop.kind == EP_HT_RECEIVE && ep_ht_near(c, hop.from)) {
		ep_ht_recv_weights(a, hop.from,
				   c.h.recv_base[hop.from] +
					   ep_ht_first(c, c.h.recv_start, hop.from, hop.chunk),
				   ep_popc(hop.rows), ep_lane(), EP_WARP_SIZE);
	}
}

/* All units of a copy warp. False: a wait has failed. */
EP_DEV bool ep_ht_copy_warp(const struct ep_ht_dispatch_args &a, const struct ep_op &op,
			    struct ep_ht_pipe *pipe)
{
	struct ep_ht_cursors cursors = ep_ht_cursors_make(a);
	struct ep_ht_hop_due due = {};
	struct ep_ht_hop u = {};

	for (;;) {
		enum ep_ht_taken taken = ep_ht_hop_take(a, op, &cursors, &u, false);

		if (taken == EP_HT_NOT_READY) {
			ep_ht_hop_publish(a, op, pipe, &due); /* who is waited for may need it */
			taken = ep_ht_hop_take(a, op, &cursors, &u, true);
		}
		if (taken != EP_HT_TAKEN) {
			ep_ht_hop_publish(a, op, pipe, &due);
			ep_ht_pipe_stored(pipe, pipe->groups);
			return taken == EP_HT_NO_MORE;
		}
		if (!ep_ht_hop_move(a, op, pipe, u)) {
			return false;
		}
		ep_ht_hop_weights(a, u);
		ep_ht_hop_publish(a, op, pipe, &due);
		due = { u.kind != EP_HT_RECEIVE, u, pipe->groups };
	}
}

EP_DEV void ep_ht_dispatch_send_warp(const struct ep_ht_dispatch_args &a, const struct ep_op &op)
{
	if (a.topk_weights && !ep_ht_weights_post_all(a.c, op, a.c.h.send_start)) {
		return;
	}
	ep_ht_post(a.c, op, ep_ht_flows_make(a.c, true, a.parts, a.token_bytes + a.scale_bytes));
}

/* Weights of rows from other nodes, which come apart from the rows. All copy warps. */
EP_DEV bool ep_ht_weights_take(const struct ep_ht_dispatch_args &a, const struct ep_op &op)
{
	const struct ep_ht_common &c = a.c;
	uint32_t worker = ep_block() + ep_nblocks() * ep_warp();

	for (uint32_t s = 0; s < c.g.nranks; s++) {
		uint32_t base = c.h.recv_base[s], rows = c.h.recv_base[s + 1] - base;

		if (ep_ht_near(c, s) || !rows) {
			continue;
		}
		if (!ep_ht_signal_wait(c, op, s, EP_HT_ROWS, 1, EP_WAIT_HT_ROWS)) {
			return false;
		}
		ep_ht_recv_weights(a, s, base, rows, worker * EP_WARP_SIZE + ep_lane(),
				   ep_nblocks() * ep_ht_copy_warps() * EP_WARP_SIZE);
	}
	return true;
}

EP_KERNEL_ALONE(ep_ht_dispatch_nodes_kernel, ep_ht_dispatch_args, EP_HT_MAX_THREADS)
{
	struct ep_ht_entry entry = ep_ht_enter<true>(a.c, false);
	struct ep_ht_pipe pipe = ep_ht_pipe_make(a.stage_parts, a.part_bytes);
	uint32_t role = ep_warp() < ep_ht_copy_warps() ? EP_HT_ROLES
						       : ep_warp() - ep_ht_copy_warps();
	bool ok = ep_ht_begin<true>(a.c, &entry);

	if (ok && a.topk_weights) {
		ep_ht_weights_stage(a);
		ep_ht_ready_publish(a.c, entry.op);
	}
	if (ok && role == 0) {
		ep_ht_dispatch_send_warp(a, entry.op);
	} else if (ok && role == 1) {
		ep_ht_credit(a.c, entry.op, ep_ht_flows_make(a.c, false, a.parts, 0));
	} else if (ok) {
		ok = ep_ht_copy_warp(a, entry.op, &pipe) &&
		     (!a.topk_weights || ep_ht_weights_take(a, entry.op));
	}
	ep_ht_pipe_end(a.c.g, entry.op, &pipe);
	ep_bulk_fence_global(); /* all that was waited for lies behind */
	if (ok && a.c.layout == EP_HT_EXPERT_MAJOR) {
		ep_bulk_fence_global(); /* it has waited for others since it began */
		ep_ht_zero(a, &pipe);
	}
	if (ok && a.c.layout == EP_HT_FLAT && a.topk_weights) {
		ep_ht_entries_fill(a);
	}
	if (ok && ep_block() == 0 && ep_warp() == 0) {
		ep_ht_dispatch_count(a);
	}
}
