/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput: how a rank publishes whom it takes for lost, by its blame word:
 * {rank, epoch} in every heap. device/ht/blame.h has the rules.
 *
 * To ranks of other nodes the word goes by the control queue. Its owners, warps of block 0, need it when a
 * kernel starts and then leave it (ep_ht_queue_leave) to the waits of all warps: those change the rank's
 * word, and post it, one thread at a time. None of them waits for a queue: a word for which there is no room,
 * or whose queue is still in use, is posted by the next thread that looks.
 */
#ifndef EP_DEVICE_HT_BLAME_WORD_H
#define EP_DEVICE_HT_BLAME_WORD_H

#include "device/group/group_remote.h"
#include "device/group/wait.h"
#include "device/ht/ht_layout.h"

/* In a word: this rank has given up. Nothing else that it finds out changes the word. */
#define EP_HT_GAVE_UP (1u << 31)
/* In place of a rank: the rank is not held up any more. */
#define EP_HT_NOBODY 0x7fffffffu
/* In place of a word: the word remains, but it is posted now to ranks that have not got it. */
#define EP_HT_SAME 0x7ffffffeu

#define EP_HT_BLAME_LOCK_NS                                                                        \
	100000000ull /* for another thread to have posted to all ranks: it waits for nobody */

EP_DEV unsigned char *ep_ht_blame_at(const struct ep_ht_common &c, unsigned char *heap, uint32_t r)
{
	return heap + c.areas.blame_off + 8 * (size_t)r;
}

EP_DEV struct ep_ht_blame_sent *ep_ht_blame_sent_at(const struct ep_ht_common &c, uint32_t r)
{
	return (struct ep_ht_blame_sent *)ep_ht_blame_at(c, c.g.own, c.g.nranks) + r;
}

/* Rank r's word, of whatever operation. */
EP_DEV uint64_t ep_ht_blame_load(const struct ep_ht_common &c, uint32_t r)
{
	return ep_ld_retired_sys_u64((const uint64_t *)ep_ht_blame_at(c, c.g.own, r));
}

/* Stores this rank's word in the heaps of its node. The thread that holds the lock. */
EP_DEV void ep_ht_blame_store(const struct ep_ht_common &c, uint64_t word)
{
	EP_UNROLL(1)
	for (uint32_t r = 0; r < c.g.nranks; r++) {
		unsigned char *heap = ep_heap_of(c.g, r);

		if (heap) {
			ep_st_word(ep_ht_blame_at(c, heap, c.g.rank), (uint32_t)word,
				   (uint32_t)(word >> 32));
		}
	}
}

/* The same in those of other nodes that have not got it. */
EP_DEV void ep_ht_blame_post(const struct ep_ht_common &c, uint32_t epoch, uint64_t word)
{
	uint64_t off = c.areas.blame_off + 8 * (uint64_t)c.g.rank;

	EP_UNROLL(1)
	for (uint32_t r = 0; r < c.g.nranks; r++) {
		struct ep_ht_blame_sent *sent = ep_ht_blame_sent_at(c, r);

		if (ep_rank_remote(c.g, r) && ep_ld_acquire_gpu_u32(&sent->open) == epoch &&
		    sent->word != word &&
		    ep_mlx5_put_word(ep_remote_qp(c.g, r, c.g.remote->channels),
				     EP_MLX5_REGION_SIGNAL, off, word)) {
			sent->word = word;
		}
	}
}

/*
 * Makes this rank's word of the epoch `by` unless the rank has given up, and publishes it. One thread: any,
 * also while others do.
 */
template <bool NODES>
EP_DEV void ep_ht_blame_publish(const struct ep_ht_common &c, uint32_t epoch, uint32_t by)
{
	uint64_t before, word;
	uint32_t *lock = c.h.scratch + EP_HT_BLAME_LOCK;
	bool must = by == EP_HT_NOBODY || by & EP_HT_GAVE_UP; /* the others come again */
	struct ep_spin s = ep_spin_start();

	while (ep_atomic_cas_acquire_gpu_u32(lock, 0, 1)) {
		if (!must || ep_spin_expired(&s, EP_HT_BLAME_LOCK_NS, EP_WAIT_NONE, c.g.rank)) {
			return;
		}
	}
	before = word = ep_ht_blame_load(c, c.g.rank);
	if ((uint32_t)(before >> 32) != epoch) {
		/* nothing was published in this operation */
		word = by < EP_HT_SAME || by & EP_HT_GAVE_UP ? (uint64_t)epoch << 32 | by : 0;
	} else if (by != EP_HT_SAME && !((uint32_t)before & EP_HT_GAVE_UP)) {
		word = (uint64_t)epoch << 32 | by;
	}
	if (word && word != before) {
		ep_ht_blame_store(c, word);
	}
	if (NODES && word) {
		ep_ht_blame_post(c, epoch, word);
	}
	ep_st_release_gpu_u32(lock, 0);
}

/* Whether this rank has published in the operation of that epoch that it is held up. */
EP_DEV bool ep_ht_blame_published(const struct ep_ht_common &c, uint32_t epoch)
{
	uint64_t word = ep_ht_blame_load(c, c.g.rank);

	return (uint32_t)(word >> 32) == epoch && (uint32_t)word != EP_HT_NOBODY;
}

/*
 * The operation's own words have been posted to the control queue of rank r, so waits may use it. Its
 * owner, one warp.
 */
EP_DEV void ep_ht_queue_leave(const struct ep_ht_common &c, const struct ep_op &op, uint32_t r)
{
	if (ep_lane() == 0) {
		ep_st_release_gpu_u32(&ep_ht_blame_sent_at(c, r)->open, op.epoch);
	}
}

#endif
