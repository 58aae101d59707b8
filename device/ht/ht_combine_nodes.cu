/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: ncclEpCombine in groups of several nodes. Each rank returns a row for each token to
 * the token's source, or, if that is on another node, to the source's forwarder in this node; the
 * forwarder adds what the ranks of its node return, in fp32, rounds, and sends one row. The source
 * adds in fp32 what comes from the ranks of its node and from other nodes, in the order in which the
 * token's experts come, and rounds once more. Roles: copy warps (device/ht/hop.h), and in each block a
 * send warp and a credit warp (device/ht/post.h).
 */
#include "device/ht/ht_combine_sum.h"
#include "device/ht/merge.h"
#include "device/ht/post.h"
#include "device/ht/ht_step.h"
#include "device/ht/weights.h"

#include "device/kernels.h"

/* The next part of a unit to be loaded. */
struct ep_ht_reader {
	uint32_t rows;            /* rows of the unit that are not begun, as bits */
	uint32_t i;               /* the row that is being loaded, */
	uint32_t round;           /* the round of its terms, */
	struct ep_ht_terms terms; /* and those of the round that are left */
	bool open;                /* there is such a row */
};

/* Terms that were loaded together. */
struct ep_ht_batch {
	bool there;
	uint32_t slots; /* of the stage: 0 terms take one, too */
	uint32_t terms;
	uint32_t i; /* the row */
	bool last;  /* of the row */
};

/* Loads as many terms of one row as there is room for. There is a row, and a slot. */
EP_DEV struct ep_ht_batch ep_ht_batch_load(const struct ep_ht_combine_args &a,
					   const struct ep_ht_hop &hop, struct ep_ht_pipe *pipe,
					   struct ep_ht_reader *reader, uint32_t bytes)
{
	struct ep_ht_batch b = {};
	uint32_t before, now;

	if (!reader->open) {
		reader->i = ep_ctz(reader->rows);
		reader->rows &= reader->rows - 1;
		reader->round = 0;
		reader->terms = ep_ht_hop_terms(a, hop, reader->i, 0);
		reader->open = true;
	}
	b.there = true;
	b.i = reader->i;
	b.terms = ep_min_u32(ep_popc(reader->terms.mask), pipe->slots - pipe->held);
	b.slots = ep_max_u32(b.terms, 1);
	before = ep_popc(reader->terms.mask & ((1u << ep_lane()) - 1));
	now = ep_ballot(EP_FULL_MASK, (reader->terms.mask >> ep_lane() & 1) && before < b.terms);
	ep_ht_pipe_load_batch(pipe, now, b.terms, reader->terms.from, bytes);
	reader->terms.mask &= ~now;
	if (!reader->terms.mask && ++reader->round < ep_ht_hop_rounds(a, hop)) {
		reader->terms = ep_ht_hop_terms(a, hop, reader->i, reader->round);
	} else if (!reader->terms.mask) {
		b.last = true;
		reader->open = false;
	}
	return b;
}

/* Adds the oldest batch. */
template <int DTYPE>
EP_DEV void ep_ht_batch_add(struct ep_ht_sum<DTYPE> *sum, struct ep_ht_pipe *pipe,
			    const struct ep_ht_batch &batch, uint32_t vecs)
{
	EP_UNROLL(1)
	for (uint32_t n = 0; n < batch.terms; n++) {
		ep_ht_sum_add<DTYPE, false>(
			sum,
			pipe->stage + (size_t)ep_ht_pipe_slot(pipe, pipe->out, n) * pipe->stride,
			vecs);
	}
	ep_ht_pipe_free_batch(pipe, batch.slots);
}

/* Sums the rows of a unit that is ready. False: what it loads does not come. */
template <int DTYPE>
EP_DEV bool ep_ht_hop_add(const struct ep_ht_combine_args &a, const struct ep_op &op,
			  struct ep_ht_pipe *pipe, const struct ep_ht_hop &hop)
{
	uint32_t bytes = ep_min_u32(a.part_bytes, a.token_bytes - hop.part * a.part_bytes);
	struct ep_ht_reader r = { hop.rows, 0, 0, { 0, NULL }, false };
	struct ep_ht_batch now = {}, next;
	struct ep_ht_sum<DTYPE> sum EP_UNSET;
	uint32_t terms = 0; /* of the row, so far */

	for (;;) {
		if (!now.there) {
			if (!r.rows && !r.open) {
				return true;
			}
			now = ep_ht_batch_load(a, hop, pipe, &r, bytes);
		}
		next = {};
		if ((r.rows || r.open) && ep_ht_pipe_room(pipe)) {
			next = ep_ht_batch_load(a, hop, pipe, &r, bytes);
		}
		if (!ep_ht_pipe_wait(a.c.g, op, pipe, a.c.g.rank)) {
			return false;
		}
		if (!terms) {
			ep_ht_sum_clear<DTYPE>(&sum, now.last && !now.terms ? 0.0f : -0.0f);
		}
		ep_ht_batch_add<DTYPE>(&sum, pipe, now, bytes / 16);
		terms += now.terms;
		if (now.last) {
			ep_ht_sum_store<DTYPE, false>(sum, ep_ht_hop_to(a, hop, now.i), bytes / 16);
			terms = 0;
		}
		now = next;
	}
}

/* Gradients of weights that go with a unit's rows, or have come for its tokens: with part 0. */
EP_DEV_COLD void ep_ht_hop_gradients(const struct ep_ht_combine_args &a, struct ep_ht_hop hop)
{
	const struct ep_ht_common &c = a.c;

	if (hop.kind == EP_HT_RETURN && ep_ht_near(c, hop.from)) {
		uint32_t first = ep_ht_first(c, c.h.recv_start, hop.from, hop.chunk);

		ep_ht_gradients_leave(a, hop.from, first, ep_popc(hop.rows),
				      ep_ht_weights_at(c, ep_heap_of(c.g, hop.from), c.g.rank,
						       first));
	}
	for (; hop.kind == EP_HT_SUM && hop.rows; hop.rows &= hop.rows - 1) {
		ep_ht_gradients_take(a, hop.chunk * EP_HT_CHUNK + ep_ctz(hop.rows));
	}
}

/* All units of a copy warp. */
template <int DTYPE>
EP_DEV void ep_ht_copy_warp(const struct ep_ht_combine_args &a, const struct ep_op &op,
			    struct ep_ht_pipe *pipe)
{
	struct ep_ht_cursors cursors = ep_ht_cursors_make(a);
	struct ep_ht_hop u = {};

	while (ep_ht_hop_take(a, op, &cursors, &u, true) == EP_HT_TAKEN &&
	       ep_ht_hop_add<DTYPE>(a, op, pipe, u)) {
		if (a.in_weights && u.part == 0) {
			ep_ht_hop_gradients(a, u);
		}
		ep_ht_hop_publish(a, op, u);
	}
}

EP_DEV void ep_ht_combine_send_warp(const struct ep_ht_combine_args &a, const struct ep_op &op)
{
	if (a.in_weights && !ep_ht_weights_post_all(a.c, op, a.c.h.recv_start)) {
		return;
	}
	ep_ht_post(a.c, op, ep_ht_flows_make(a.c, false, a.parts, a.token_bytes));
}

template <int DTYPE> EP_DEV void ep_ht_combine_nodes(const struct ep_ht_combine_args &a)
{
	struct ep_ht_entry e = ep_ht_enter<true>(a.c, true);
	struct ep_ht_pipe p = ep_ht_pipe_make(a.stage_parts, a.part_bytes);
	uint32_t role = ep_warp() < ep_ht_copy_warps<true>() ? EP_HT_ROLES
							     : ep_warp() - ep_ht_copy_warps<true>();
	bool ok = ep_ht_begin<true>(a.c, &e);

	if (ok && a.in_weights) {
		ep_ht_gradients_stage(a);
		ep_ht_ready_publish(a.c, e.op);
	}
	if (ok && role == 0) {
		ep_ht_combine_send_warp(a, e.op);
	} else if (ok && role == 1) {
		ep_ht_credit(a.c, e.op, ep_ht_flows_make(a.c, true, a.parts, 0));
	} else if (ok) {
		ep_ht_copy_warp<DTYPE>(a, e.op, &p);
	}
	ep_ht_pipe_end(a.c.g, e.op, &p);
}

EP_KERNEL_ALONE(ep_ht_combine_bf16_nodes_kernel, ep_ht_combine_args, EP_HT_COMBINE_THREADS)
{
	ep_ht_combine_nodes<EP_BF16>(a);
}

EP_KERNEL_ALONE(ep_ht_combine_fp16_nodes_kernel, ep_ht_combine_args, EP_HT_COMBINE_THREADS)
{
	ep_ht_combine_nodes<EP_FP16>(a);
}

EP_KERNEL_ALONE(ep_ht_combine_fp32_nodes_kernel, ep_ht_combine_args, EP_HT_COMBINE_THREADS)
{
	ep_ht_combine_nodes<EP_FP32>(a);
}
