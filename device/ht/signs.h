/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: signs, by which a rank that waits shows its peers that it lives.
 *
 * Waits are those of device/group/wait.h, and look at signs. Within an operation ranks wait for one
 * another: rank A waits for rows of B, which has stopped because it waits for D, who has died. All
 * these waits begin within microseconds, and no progress word shows that B lives. So each rank has
 * a word {sign, epoch} in every heap. It changes at most twice in an operation:
 *   1. One of the rank's waits has lasted half of the timeout: EP_HT_WAITS. It lives, so others
 *      grant it the time that wait_extended() grants a rank that may be held up.
 *   2. It gives up: whom it names. It ends, so waits for it end, too, and name the same rank.
 *
 * To ranks of other nodes the word goes by the control queue. Its owners, warps of block 0, need it
 * when a kernel starts and then leave it (ep_ht_queue_leave) to the waits of all warps: those
 * change the rank's word, and post it, one thread at a time. None waits for a queue: a full one is
 * left out.
 */
#ifndef EP_DEVICE_HT_SIGNS_H
#define EP_DEVICE_HT_SIGNS_H

#include "device/group/remote.h"
#include "device/group/wait.h"
#include "device/ht/ht_layout.h"

/* A sign that is no rank: the rank lives, and waits. */
#define EP_HT_WAITS 0x7fffffffu

/* How long another thread may take to post to all ranks: it waits for nobody. */
#define EP_HT_SIGN_LOCK_NS 100000000ull

EP_DEV unsigned char *sign_at(const struct ep_ht_common &c, unsigned char *heap, uint32_t r)
{
	return heap + c.areas.sign_off + 8 * (size_t)r;
}

/*
 * Where this rank keeps the epoch of the last operation that is through with the control queue to
 * rank r.
 */
EP_DEV uint32_t *left_at(const struct ep_ht_common &c, uint32_t r)
{
	return (uint32_t *)sign_at(c, c.g.own, c.g.nranks) + r;
}

/*
 * Returns rank r's sign in this operation, or in the one where it stands; EP_HT_NONE: it has given
 * none.
 */
EP_DEV uint32_t ht_sign(const struct ep_ht_common &c, uint32_t epoch, uint32_t r)
{
	uint64_t word = ep_ld_retired_sys_u64((const uint64_t *)sign_at(c, c.g.own, r));
	uint32_t of = (uint32_t)(word >> 32);

	return of && (of == epoch || of == ep_progress_step(c.g, r)) ? (uint32_t)word : EP_HT_NONE;
}

/*
 * Posts this rank's word to remote rank r, if its queue has room. The one thread that may use the
 * queue.
 */
EP_DEV void sign_post(const struct ep_ht_common &c, uint32_t r, uint64_t word)
{
	(void)ep_mlx5_put_word(ep_remote_qp(c.g, r, c.g.remote->channels), EP_MLX5_REGION_SIGNAL,
			       c.areas.sign_off + 8 * (uint64_t)c.g.rank, word);
}

/* Does the sign add to the one that this rank has given? */
EP_DEV bool sign_new(const struct ep_ht_common &c, uint32_t epoch, uint32_t sign)
{
	uint32_t before = ht_sign(c, epoch, c.g.rank);

	return before == EP_HT_NONE || (before == EP_HT_WAITS && sign != EP_HT_WAITS);
}

/*
 * Gives the sign to all ranks if it adds to this rank's last one. Any thread, also while others do.
 */
template <bool NODES>
EP_DEV void sign_give(const struct ep_ht_common &c, uint32_t epoch, uint32_t sign)
{
	uint32_t *lock = c.h.scratch + EP_HT_SIGN_LOCK;
	struct ep_spin s = ep_spin_start();

	if (!sign_new(c, epoch, sign)) {
		return;
	}
	while (ep_atomic_cas_acquire_gpu_u32(lock, 0, 1)) {
		/* (a wait comes again) */
		if (sign == EP_HT_WAITS ||
		    ep_spin_expired(&s, EP_HT_SIGN_LOCK_NS, EP_WAIT_NONE, c.g.rank)) {
			return;
		}
	}
	EP_UNROLL(1)
	for (uint32_t r = sign_new(c, epoch, sign) ? 0 : c.g.nranks; r < c.g.nranks; r++) {
		unsigned char *heap = ep_heap_of(c.g, r);

		if (heap) {
			ep_st_word(sign_at(c, heap, c.g.rank), sign, epoch);
		} else if (NODES && ep_ld_acquire_gpu_u32(left_at(c, r)) == epoch) {
			sign_post(c, r, (uint64_t)epoch << 32 | sign);
		}
	}
	ep_st_release_gpu_u32(lock, 0);
}

/*
 * An operation here has failed: gives the sign whom its error names, if that rank did not come. Any
 * thread.
 */
template <bool NODES> EP_DEV void sign_end(const struct ep_ht_common &c, uint32_t epoch)
{
	const struct ep_record *record = &c.g.records[EP_RECORD_FATAL];

	if (sign_new(c, epoch, 0) && ep_ld_acquire_sys_u32(&record->valid)) {
		uint32_t cause = ep_ld_relaxed_sys_u32(&record->cause);

		if (cause == EP_CAUSE_TIMEOUT || cause == EP_CAUSE_RDMA) {
			sign_give<NODES>(c, epoch, ep_ld_relaxed_sys_u32(&record->peer));
		}
	}
}

/*
 * ep_wait_check() for a wait that others may hold up. Where `peer` is this rank, another of its
 * warps is waited for, which gives this rank's signs.
 */
template <bool NODES>
EP_DEV_COLD struct ep_wait_result ep_ht_wait_check(const struct ep_ht_common &c, struct ep_op op,
						   struct ep_spin spin, bool expired,
						   enum ep_wait_site site, uint32_t peer)
{
	uint32_t sign = peer == c.g.rank ? EP_HT_NONE : ht_sign(c, op.epoch, peer);
	struct ep_wait_result w = { spin, true };

	if (sign < c.g.nranks) { /* (where it is this rank, the peer is named) */
		ep_mask_peer(c.g, op, EP_CAUSE_TIMEOUT, site, sign == c.g.rank ? peer : sign, 0, 0);
	} else {
		spin.polls |= sign == EP_HT_WAITS ? EP_WAIT_HELD : 0;
		if (peer != c.g.rank && spin.start_ns &&
		    ep_time_ns() - spin.start_ns >= c.g.timeout_ns / 2) {
			sign_give<NODES>(c, op.epoch, EP_HT_WAITS);
		}
		w = ep_wait_check<false>(c.g, op, spin, expired, site, peer);
	}
	if (w.over) {
		sign_end<NODES>(c, op.epoch);
	}
	return w;
}

/*
 * If this rank itself is waited for, then by another of its warps. That one waits for peers, each
 * for as long as the timeout is, and ends the operation when one does not come: only if it is lost
 * itself does this wait end by its own time, which is longer than several of those.
 */
#define EP_HT_OWN_WAITS 8u

/* ep_wait_give_up() for such a wait. */
template <bool NODES>
EP_DEV bool ep_ht_give_up(const struct ep_ht_common &c, const struct ep_op &op,
			  struct ep_spin *spin, enum ep_wait_site site, uint32_t peer)
{
	uint64_t waits = peer == c.g.rank ? EP_HT_OWN_WAITS : 1;
	bool expired = ep_spin_expired(spin, waits * c.g.timeout_ns, site, peer);
	struct ep_wait_result w;

	if (!expired && (spin->polls & 63) != 0) {
		return false;
	}
	w = ep_ht_wait_check<NODES>(c, op, *spin, expired, site, peer);
	*spin = w.spin;
	return w.over;
}

/*
 * ep_ht_queue_failed(), one thread. A rank that has given another one up may have left, and is not
 * named.
 */
EP_DEV_COLD void ep_ht_queue_record(const struct ep_ht_common &c, struct ep_op op, uint32_t status,
				    uint32_t qpn, uint32_t r, enum ep_wait_site site)
{
	uint32_t sign = ht_sign(c, op.epoch, r);

	if (sign < c.g.nranks && sign != c.g.rank) {
		ep_mask_peer(c.g, op, EP_CAUSE_TIMEOUT, site, sign, 0, 0);
	} else {
		ep_mask_peer(c.g, op, EP_CAUSE_RDMA, site, r, status, qpn);
	}
	sign_end<true>(c, op.epoch);
}

/* ep_remote_failed(): the queue to rank r is of no use any more. One warp. */
EP_DEV void ep_ht_queue_failed(const struct ep_ht_common &c, const struct ep_op &op,
			       const struct ep_mlx5_post &post, uint32_t r, enum ep_wait_site site)
{
	if (ep_lane() == 0 && post.status != EP_MLX5_ERR_ABORTED) {
		ep_ht_queue_record(c, op, post.status, post.qpn, r, site);
	}
	ep_warp_sync(EP_FULL_MASK);
}

/*
 * The operation's own words have been posted to the control queue of rank r, so waits may use it.
 * Its owner, one warp.
 */
EP_DEV void ep_ht_queue_leave(const struct ep_ht_common &c, const struct ep_op &op, uint32_t r)
{
	if (ep_lane() == 0) {
		uint32_t sign = ht_sign(c, op.epoch, c.g.rank);

		if (sign != EP_HT_NONE) { /* a wait has given it meanwhile */
			sign_post(c, r, (uint64_t)op.epoch << 32 | sign);
		}
		ep_st_release_gpu_u32(left_at(c, r), op.epoch);
	}
}

#endif
