/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A warp's pipeline of bulk copies through its part of dynamic shared memory. All calls are made by
 * the 32 lanes of the warp together, with the same arguments.
 *
 * The stage of a warp has `slots` slots, which are used in turn, and each has a barrier of its own.
 * A slot is opened, loaded by one copy or more, and closed: then it is held, and its bytes are on
 * their way. The warp waits for the oldest slot that is held, uses it, and gives it back. Loads run
 * ahead as far as there is room, over the limits of units, too.
 *
 *   copying, slot by slot
 *     while (more && ep_ht_pipe_room(&p))
 *       ep_ht_pipe_open(&p)
 *       ep_ht_pipe_load(&p, at, from, bytes) ...
 *       ep_ht_pipe_close(&p, bytes of all)
 *     if (ep_ht_pipe_wait(&p, ...))
 *       ep_bulk_store(to, ep_ht_pipe_oldest(&p), bytes) ...
 *     ep_ht_pipe_release(&p)
 *
 * Combine uses several slots at a time, as batches: see there.
 *
 * Groups. ep_ht_pipe_release() makes the stores since the last one a group, also if there are none.
 * So the item that used the slot which is opened next is known by counting: if `held` slots are
 * held then slots - 1 - held groups came after it, and ep_ht_pipe_open() waits until all but those
 * have been read.
 *
 * What has been stored is visible to peers behind ep_ht_pipe_stored() and a release. `group` there
 * is ep_ht_pipe.groups as it was after the release of the last item that counts: later stores may
 * go on.
 *
 * What a slot, or a batch, holds is noted: ep_ht_note_put() keeps a note with the slot that is
 * loaded next, in registers of the lane of that number, from which shuffles fetch it when the slot
 * is the oldest. So only the loading side goes through units, and the storing side follows.
 *
 * Before a wait for a peer that may be long, everything the peer may be waiting for must have been
 * published: what is held must be used first, and what has been stored must be announced.
 *
 * ep_ht_pipe_end() must be called by a warp that gives up, too: the engine must not write into
 * shared memory that belongs to another block by then.
 */
#ifndef EP_DEVICE_HT_PIPE_H
#define EP_DEVICE_HT_PIPE_H

#include "device/group/wait.h"
#include "device/ht/ht_layout.h"
#include "device/simt/bulk.h"

struct ep_ht_pipe {
	unsigned char *stage; /* slot 0 */
	struct ep_mbar *bars; /* [slots] */
	uint32_t slots;       /* at most EP_HT_MAX_STAGE_PARTS */
	uint32_t stride;      /* from slot to slot */
	uint32_t in;          /* slot that is loaded next */
	uint32_t out;         /* the oldest slot that is held, if one is */
	uint32_t held;
	uint32_t parity; /* bit i: of the phase that slot i is waited for next */
	uint32_t groups; /* of stores, so far */
	uint32_t behind; /* batches, of lane i: groups when slot i was given back */
};

/* Every warp of the block makes its own; ep_ht_stage_bytes() is the dynamic shared memory. */
EP_DEV struct ep_ht_pipe ep_ht_pipe_make(uint32_t slots, uint32_t part_bytes)
{
	unsigned char *shared = (unsigned char *)ep_dynamic_shared();
	struct ep_ht_pipe p;

	p.slots = slots;
	p.stride = ep_ht_stage_align(part_bytes);
	p.bars = (struct ep_mbar *)shared + ep_warp() * slots;
	p.stage = shared + ep_ht_stage_bars(ep_nwarps(), slots) +
		  (size_t)ep_warp() * slots * p.stride;
	p.in = p.out = p.held = 0;
	p.parity = 0;
	p.groups = p.behind = 0;
	EP_UNROLL(1)
	for (uint32_t i = 0; i < slots; i++) {
		ep_mbar_init(&p.bars[i], 1);
	}
	ep_mbar_fence_init();
	ep_warp_sync(EP_FULL_MASK);
	return p;
}

/* May another slot be loaded? */
EP_DEV bool ep_ht_pipe_room(const struct ep_ht_pipe *pipe)
{
	return pipe->held < pipe->slots;
}

/* Copying: waits until the stores out of the slot that is loaded next have read it. */
EP_DEV void ep_ht_pipe_open(const struct ep_ht_pipe *pipe)
{
	ep_bulk_wait_read(pipe->slots - 1 - pipe->held);
}

/* Bytes [at, at + bytes) of the slot that is loaded next. */
EP_DEV void ep_ht_pipe_load(const struct ep_ht_pipe *pipe, uint32_t at, const void *from,
			    uint32_t bytes)
{
	ep_bulk_load(pipe->stage + (size_t)pipe->in * pipe->stride + at, from, bytes,
		     &pipe->bars[pipe->in]);
}

EP_DEV uint32_t ep_ht_pipe_after(const struct ep_ht_pipe *pipe, uint32_t slot)
{
	return slot + 1 < pipe->slots ? slot + 1 : 0;
}

/* Everything for this slot is on its way: `bytes`, which may be 0. */
EP_DEV void ep_ht_pipe_close(struct ep_ht_pipe *pipe, uint32_t bytes)
{
	ep_mbar_arrive_tx(&pipe->bars[pipe->in], bytes);
	pipe->in = ep_ht_pipe_after(pipe, pipe->in);
	pipe->held++;
}

/*
 * Several slots as one, a *batch*: they are loaded together, waited for once, by the barrier of the
 * first, and given back together. Batches that are stored and batches that are summed may follow
 * one another in any order: a slot is loaded again as soon as the groups before its return have
 * been read.
 */

/* Slot `i` of those behind `slot`. */
EP_DEV uint32_t ep_ht_pipe_slot(const struct ep_ht_pipe *pipe, uint32_t slot, uint32_t i)
{
	return slot + i < pipe->slots ? slot + i : slot + i - pipe->slots;
}

/*
 * Loads `n` slots, for which there is room: a part of `bytes` for each lane in `mask`, which has n
 * lanes, in their order, from the place of that lane. n 0: a batch of one slot without bytes.
 * STORES: bulk stores may read what lies in slots.
 */
template <bool STORES>
EP_DEV void ep_ht_pipe_load_batch(struct ep_ht_pipe *pipe, uint32_t mask, uint32_t n,
				  const void *from, uint32_t bytes)
{
	uint32_t i = ep_popc(mask & ((1u << ep_lane()) - 1));
	unsigned char *to = pipe->stage + (size_t)ep_ht_pipe_slot(pipe, pipe->in, i) * pipe->stride;
	uint32_t used = ep_max_u32(n, 1), behind;

	if (STORES) {
		/* slots are used in turn: the last one of them was given back last */
		behind = ep_shfl_u32(EP_FULL_MASK, pipe->behind,
				     ep_ht_pipe_slot(pipe, pipe->in, used - 1));
		if (behind) {
			ep_bulk_wait_read(pipe->groups - behind);
		}
	}
	ep_bulk_load_lanes(mask, to, from, bytes, &pipe->bars[pipe->in]);
	ep_mbar_arrive_tx(&pipe->bars[pipe->in], n * bytes);
	pipe->in = ep_ht_pipe_slot(pipe, pipe->in, used);
	pipe->held += used;
}

/* All lanes have read the oldest n slots, or all stores out of them have been issued. */
template <bool STORES> EP_DEV void ep_ht_pipe_free_batch(struct ep_ht_pipe *pipe, uint32_t n)
{
	uint32_t i = ep_lane() + (ep_lane() < pipe->out ? pipe->slots : 0) - pipe->out;

	ep_warp_sync(EP_FULL_MASK);
	if (STORES && i < n) {
		pipe->behind = pipe->groups;
	}
	pipe->out = ep_ht_pipe_slot(pipe, pipe->out, n);
	pipe->held -= n;
}

/*
 * Notes `value` with the slot that is loaded next: before the slot is closed, or its batch loaded.
 */
template <typename NOTE>
EP_DEV void ep_ht_note_put(const struct ep_ht_pipe *pipe, NOTE *note, NOTE value)
{
	if (ep_lane() == pipe->in) {
		*note = value;
	}
}

/* A copy of `peer`'s memory, or of this rank's own, does not end. */
EP_DEV_COLD void ep_ht_pipe_stuck(const struct ep_dev_group &g, struct ep_op op, uint32_t peer)
{
	if (ep_lane() == 0) {
		ep_mask_peer(g, op, EP_CAUSE_TIMEOUT, EP_WAIT_BULK, peer, 0, 0);
	}
}

/*
 * Waits for the bytes of the oldest slot that is held: they came from `peer`'s memory. False if
 * they do not come, which ends all operations of the group: the other slots that are held have had
 * their time, too, and nobody waits for them any more.
 */
EP_DEV bool ep_ht_pipe_wait(const struct ep_dev_group &g, const struct ep_op &op,
			    struct ep_ht_pipe *pipe, uint32_t peer)
{
	if (!ep_mbar_wait(&pipe->bars[pipe->out], pipe->parity >> pipe->out & 1, g.timeout_ns,
			  EP_WAIT_BULK, peer)) {
		ep_ht_pipe_stuck(g, op, peer);
		pipe->held = 0;
		return false;
	}
	pipe->parity ^= 1u << pipe->out;
	return true;
}

/* The oldest slot that is held. */
EP_DEV unsigned char *ep_ht_pipe_oldest(const struct ep_ht_pipe *pipe)
{
	return pipe->stage + (size_t)pipe->out * pipe->stride;
}

/* Copying: all stores out of the oldest slot have been issued. */
EP_DEV void ep_ht_pipe_release(struct ep_ht_pipe *pipe)
{
	ep_bulk_commit();
	pipe->groups++;
	pipe->out = ep_ht_pipe_after(pipe, pipe->out);
	pipe->held--;
}

/* Waits until the stores up to that group are done: a release that follows covers them. */
EP_DEV void ep_ht_pipe_stored(const struct ep_ht_pipe *pipe, uint32_t group)
{
	ep_bulk_wait(pipe->groups - group);
}

/* Nothing is on its way into the stage any more, nor out of it. */
EP_DEV void ep_ht_pipe_end(const struct ep_dev_group &g, const struct ep_op &op,
			   struct ep_ht_pipe *pipe)
{
	while (pipe->held && ep_ht_pipe_wait(g, op, pipe, g.rank)) {
		ep_warp_sync(EP_FULL_MASK);
		pipe->out = ep_ht_pipe_after(pipe, pipe->out);
		pipe->held--;
	}
	ep_bulk_wait_read(0);
}

#endif
