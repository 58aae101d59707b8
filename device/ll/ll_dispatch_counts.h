/* SPDX-License-Identifier: Apache-2.0 */
/* Low-latency dispatch, receive half: the counts of all sources, and what follows from them. */
#ifndef EP_DEVICE_LL_DISPATCH_COUNTS_H
#define EP_DEVICE_LL_DISPATCH_COUNTS_H

#include "device/group/arrival.h"
#include "device/ll/ll_dispatch_rows.h"

/* A block's state of a source; see arrival.h. */
enum ep_ll_source_state {
	EP_LL_SOURCE_HERE,   /* its counts are awaited, or here */
	EP_LL_SOURCE_ABSENT, /* as all blocks agree */
	EP_LL_SOURCE_DOUBT   /* for this block it has failed; the blocks have to agree. A bit */
};

/* Block-shared tables of the receive half. */
struct ep_ll_recv_tables {
	uint32_t *base;           /* [R][L] first row of the source among the expert's rows */
	uint32_t *rows;           /* [R] rows from the source */
	uint32_t *parts;          /* [R] parts of the source's rows */
	uint32_t *return_parts;   /* [R] and of those that return to it */
	uint32_t *state;          /* [R] enum ep_ll_source_state */
	uint32_t *channel_tokens; /* [R] of the source */
};

/* Control packet `which` of source r, and count i, of R * L, in this rank's heap. */
EP_DEV const unsigned char *ep_ll_ctrl(const struct ep_ll_common &c, const struct ep_op &op,
				       uint32_t r, uint32_t which)
{
	return ep_ll_packets(c, op, c.g.own) + (size_t)r * EP_LL_CTRL_BYTES + 16 * which;
}

EP_DEV const unsigned char *ep_ll_count(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
					uint32_t i)
{
	return ep_ll_packets(a.c, op, a.c.g.own) + a.count_off + 8 * (size_t)i;
}

EP_DEV struct ep_ll_recv_tables ep_ll_recv_tables_make(const struct ep_ll_common &c)
{
	struct ep_ll_recv_tables t;

	t.base = (uint32_t *)ep_dynamic_shared();
	t.rows = t.base + c.g.nranks * c.nlocal;
	t.parts = t.rows + c.g.nranks;
	t.return_parts = t.parts + c.g.nranks;
	t.state = t.return_parts + c.g.nranks;
	t.channel_tokens = t.state + c.g.nranks;
	return t;
}

/*
 * Takes control packet `which` of source r, which has arrived. The second shows whether the source
 * runs the same operation; false: it does not.
 */
EP_DEV bool ep_ll_ctrl_take(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			    const struct ep_ll_recv_tables &tables, uint32_t r, uint32_t which,
			    uint32_t d0, uint32_t d1)
{
	const struct ep_ll_common &c = a.c;

	if (which == 0) {
		tables.rows[r] = ep_min_u32(d0, c.max_tokens);
		tables.parts[r] = d1 & 0xffff;
		tables.return_parts[r] = d1 >> 16;
		return true;
	}
	tables.channel_tokens[r] = ep_max_u32(d0, 1);
	if (d1 != c.launch.sent_hash) {
		ep_mask_peer(c.g, op, EP_CAUSE_MISMATCH, EP_WAIT_DISPATCH_COUNT, r, op.epoch, 0);
		return false;
	}
	return true;
}

/* Awaits control packet `which` of source r, and takes it. False when the source failed. */
EP_DEV bool ep_ll_ctrl_wait(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			    const struct ep_ll_recv_tables &tables, uint32_t r, uint32_t which)
{
	const struct ep_ll_common &c = a.c;
	uint32_t d0 = 0, d1 = 0;

	return ep_wait_packet(c.g, op, ep_ll_ctrl(c, op, r, which), &d0, &d1,
			      EP_WAIT_DISPATCH_COUNT, r) &&
	       ep_ll_ctrl_take(a, op, tables, r, which, d0, d1);
}

/* Have all counts of source r arrived? Takes them as it finds them. One warp. */
EP_DEV bool ep_ll_counts_poll(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			      const struct ep_ll_recv_tables &tables, uint32_t r)
{
	const struct ep_ll_common &c = a.c;
	uint32_t counts = c.layout == EP_LL_EXPERT_MAJOR ? c.nlocal : 0;
	bool have = true;

	for (uint32_t e = ep_lane(); e < counts; e += EP_WARP_SIZE) {
		uint32_t i = r * c.nlocal + e;

		have &= ep_ld_word(ep_ll_count(a, op, i), op.epoch, &tables.base[i]);
	}
	if (ep_lane() < 2) {
		uint32_t d0 = 0, d1 = 0;

		have &= ep_ld_packet(ep_ll_ctrl(c, op, r, ep_lane()), op.epoch, &d0, &d1) &&
			ep_ll_ctrl_take(a, op, tables, r, ep_lane(), d0, d1);
	}
	return ep_all(EP_FULL_MASK, have);
}

/* Keeps source r's counts in the first receiving block: for combine, for the caller, for statistics. */
EP_DEV void ep_ll_recv_remember(const struct ep_ll_dispatch_args &a,
				const struct ep_ll_recv_tables &tables, uint32_t r, uint64_t waited)
{
	const struct ep_ll_common &c = a.c;
	struct ep_peer_stats *s = &c.g.stats[r];

	c.h.src_rows[r] = tables.rows[r];
	c.h.src_parts[r] = tables.return_parts[r];
	if (a.src_counts) {
		a.src_counts[r] = (int32_t)tables.rows[r];
	}
	s->wait_ns += waited;
	s->wait_max_ns = waited > s->wait_max_ns ? waited : s->wait_max_ns;
	s->rx_rows += tables.rows[r];
	s->rx_bytes += (uint64_t)tables.rows[r] *
		       ep_ll_row_stride(c.row_quads, c.lines && !ep_rank_remote(c.g, r));
	s->ops++;
}

#define EP_LL_RECV_BATCH 8 /* sources whose counts are loaded before they are added */

/* First rows of expert e's sources, from their counts. Returns the expert's rows. One thread. */
EP_DEV uint32_t ep_ll_recv_expert(const struct ep_ll_common &c,
				  const struct ep_ll_recv_tables &tables, uint32_t e)
{
	uint32_t sum = 0;

	for (uint32_t r0 = 0; r0 < c.g.nranks; r0 += EP_LL_RECV_BATCH) {
		uint32_t n[EP_LL_RECV_BATCH];

		EP_UNROLL()
		for (int i = 0; i < EP_LL_RECV_BATCH; i++) {
			uint32_t r = r0 + i;

			n[i] = r < c.g.nranks && tables.state[r] == EP_LL_SOURCE_HERE
				       ? ep_min_u32(tables.base[r * c.nlocal + e],
						    c.max_tokens * c.topk)
				       : 0;
		}
		EP_UNROLL()
		for (int i = 0; i < EP_LL_RECV_BATCH; i++) {
			if (r0 + i < c.g.nranks) {
				tables.base[(r0 + i) * c.nlocal + e] = sum;
				sum += n[i];
			}
		}
	}
	return ep_min_u32(sum, c.g.nranks * c.max_tokens);
}

EP_DEV void ep_ll_recv_tables_clear(const struct ep_ll_common &c, const struct ep_op &op,
				    const struct ep_ll_recv_tables &tables, uint32_t *failed)
{
	for (uint32_t r = ep_tid(); r < c.g.nranks; r += ep_nthreads()) {
		tables.state[r] = EP_LL_SOURCE_HERE;
		if (!ep_mask_active(c.g, r)) {
			tables.state[r] = ep_arrival_masked_before(c.g, op, r) ? EP_LL_SOURCE_ABSENT
									       : EP_LL_SOURCE_DOUBT;
		}
		tables.rows[r] = 0;
		tables.parts[r] = 0;
		tables.return_parts[r] = 0;
	}
	if (ep_tid() == 0) {
		*failed = 0;
	}
	ep_block_sync();
}

/* Source r, which was here or in doubt, has failed for this block. Other threads may find the same. */
EP_DEV void ep_ll_source_fail(const struct ep_ll_recv_tables &tables, uint32_t r, uint32_t *failed)
{
	ep_shared_or_u32(&tables.state[r], EP_LL_SOURCE_DOUBT);
	ep_shared_or_u32(failed, 1);
}

/* Awaits every source's counts. *failed is set when a source fails; a barrier must follow. */
EP_DEV void ep_ll_recv_counts(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			      const struct ep_ll_recv_tables &tables, uint32_t *failed)
{
	const struct ep_ll_common &c = a.c;
	uint32_t counts = c.layout == EP_LL_EXPERT_MAJOR ? c.g.nranks * c.nlocal : 0;

	for (uint32_t i = ep_tid(); i < counts; i += ep_nthreads()) {
		uint32_t r = ep_div(i, c.by_local);

		if (ep_shared_ld_u32(&tables.state[r]) == EP_LL_SOURCE_HERE &&
		    !ep_wait_word(c.g, op, ep_ll_count(a, op, i), &tables.base[i],
				  EP_WAIT_DISPATCH_COUNT, r)) {
			ep_ll_source_fail(tables, r, failed);
		}
	}
	/* the last threads, which have fewer counts to await; two for each source */
	for (uint32_t j = ep_nthreads() - 1 - ep_tid(); j < 2 * c.g.nranks; j += ep_nthreads()) {
		uint32_t r = j >> 1, state = ep_shared_ld_u32(&tables.state[r]);

		if (state == EP_LL_SOURCE_DOUBT ||
		    (state == EP_LL_SOURCE_HERE && !ep_ll_ctrl_wait(a, op, tables, r, j & 1))) {
			ep_ll_source_fail(tables, r, failed);
		}
	}
}

/* The blocks agree about source r, which is in doubt here. One warp. */
EP_DEV void ep_ll_recv_agree(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			     const struct ep_ll_recv_tables &tables, uint32_t r)
{
	const struct ep_dev_group &g = a.c.g;
	uint32_t verdict = ep_lane() == 0 ? ep_arrival_claim(g, op, r) : 0;
	bool here;

	verdict = ep_shfl_u32(EP_FULL_MASK, verdict, 0);
	here = verdict != EP_ARRIVAL_ABSENT && ep_ll_counts_poll(a, op, tables, r);
	if (ep_lane() == 0) {
		if (verdict == EP_ARRIVAL_CLAIMED) {
			ep_arrival_decide(g, op, r, here);
		}
		if (!here) {
			ep_arrival_settle(g, op, r);
		}
		tables.state[r] = here ? EP_LL_SOURCE_HERE : EP_LL_SOURCE_ABSENT;
	}
}

/*
 * Adopts the decision about source r. False: it is here for this block, and absent. The tables
 * stay as they are: other warps may not have looked yet.
 */
EP_DEV_COLD bool ep_ll_decision_adopt(const struct ep_ll_dispatch_args &a, struct ep_op op,
				      struct ep_ll_recv_tables tables, uint32_t r)
{
	return tables.state[r] != EP_LL_SOURCE_HERE ||
	       ep_arrival_adopt(a.c.g, op, r) != EP_ARRIVAL_ABSENT;
}

/*
 * Settles what is in doubt, and leaves out sources that are here for this block and absent for
 * others. One block, behind a barrier; false when the group is aborted.
 */
EP_DEV_COLD bool ep_ll_recv_settle(const struct ep_ll_dispatch_args &a, struct ep_op op,
				   struct ep_ll_recv_tables tables)
{
	const struct ep_ll_common &c = a.c;
	EP_SHARED(uint32_t, stop);

	for (uint32_t r = ep_warp(); c.g.mask_enabled && r < c.g.nranks; r += ep_nwarps()) {
		uint32_t state = tables.state[r];

		ep_warp_sync(EP_FULL_MASK); /* one lane changes it now */
		if (state == EP_LL_SOURCE_DOUBT) {
			ep_ll_recv_agree(a, op, tables, r);
		} else if (ep_lane() == 0 && ep_arrival_decided(op, ep_arrival_load(c.g, r)) &&
			   !ep_ll_decision_adopt(a, op, tables, r)) {
			tables.state[r] = EP_LL_SOURCE_ABSENT;
		}
	}
	ep_block_sync();
	if (ep_tid() == 0) {
		stop = ep_aborted(c.g);
	}
	for (uint32_t r = ep_tid(); r < c.g.nranks; r += ep_nthreads()) {
		tables.rows[r] = tables.state[r] == EP_LL_SOURCE_HERE ? tables.rows[r] : 0;
	}
	ep_block_sync();
	return !stop;
}

/* Turns the counts into first rows. Holds barriers; false when the group is aborted. */
EP_DEV bool ep_ll_recv_resolve(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
			       const struct ep_ll_recv_tables &tables, bool remembers,
			       const uint32_t *failed)
{
	const struct ep_ll_common &c = a.c;
	bool expert_major = c.layout == EP_LL_EXPERT_MAJOR;

	ep_block_sync();
	if (*failed && !ep_ll_recv_settle(a, op, tables)) {
		return false;
	}
	for (uint32_t e = ep_tid(); expert_major && e < c.nlocal; e += ep_nthreads()) {
		uint32_t rows = ep_ll_recv_expert(c, tables, e);

		if (remembers) {
			c.h.counts[e] = rows;
			a.expert_counts[e] = (int32_t)rows;
		}
	}
	ep_block_sync();
	return true;
}

/*
 * A first look at what other blocks have decided about the sources, taken behind the counts. Lane l has
 * ranks l, l + 32, ..., the first ones here; nothing waits for the loads.
 */
#define EP_LL_DECISION_WORDS 2
#define EP_LL_DECISION_RANKS (EP_LL_DECISION_WORDS * EP_WARP_SIZE)
struct ep_ll_decisions {
	bool done; /* has been looked at, or needs not be */
	uint64_t word[EP_LL_DECISION_WORDS];
};

EP_DEV void ep_ll_decisions_load(const struct ep_ll_common &c, struct ep_ll_decisions *decisions)
{
	decisions->done = !c.g.mask_enabled;
	EP_UNROLL()
	for (uint32_t i = 0; i < EP_LL_DECISION_WORDS; i++) {
		uint32_t r = i * EP_WARP_SIZE + ep_lane();

		decisions->word[i] = 0;
		if (!decisions->done && r < c.g.nranks) {
			decisions->word[i] = ep_arrival_load(c.g, r);
		}
	}
}

/*
 * Before anything is placed. False: a source that is here for this block is absent for others, as
 * every warp of the block finds then.
 */
EP_DEV bool ep_ll_decisions_agree(const struct ep_ll_dispatch_args &a, const struct ep_op &op,
				  const struct ep_ll_recv_tables &tables,
				  struct ep_ll_decisions *decisions)
{
	bool ok = true;

	if (decisions->done) {
		return true;
	}
	decisions->done = true;
	EP_UNROLL()
	for (uint32_t i = 0; i < EP_LL_DECISION_WORDS; i++) {
		if (ep_arrival_decided(op, decisions->word[i])) {
			ok &= ep_ll_decision_adopt(a, op, tables, i * EP_WARP_SIZE + ep_lane());
		}
	}
	return ep_all(EP_FULL_MASK, ok);
}

/* The same for ranks beyond those, all at once: the loads are waited for. One warp. */
EP_DEV_COLD bool ep_ll_decisions_beyond(const struct ep_ll_dispatch_args &a, struct ep_op op,
					struct ep_ll_recv_tables tables)
{
	bool ok = true;

	for (uint32_t r = EP_LL_DECISION_RANKS + ep_lane(); r < a.c.g.nranks; r += EP_WARP_SIZE) {
		if (ep_arrival_decided(op, ep_arrival_load(a.c.g, r))) {
			ok &= ep_ll_decision_adopt(a, op, tables, r);
		}
	}
	return ep_all(EP_FULL_MASK, ok);
}

#endif
