/* SPDX-License-Identifier: Apache-2.0 */
/* High throughput: where units and their words lie, and parts of a row in a tensor pair. */
#ifndef EP_DEVICE_HT_UNITS_H
#define EP_DEVICE_HT_UNITS_H

#include "device/group/wait.h"
#include "device/ht/ht_layout.h"

/* The last two warps of each block, in groups of several nodes: device/ht/post.h. The others copy. */
#define EP_HT_ROLES 2

template <bool NODES> EP_DEV uint32_t ep_ht_copy_warps(void)
{
	return ep_nwarps() - (NODES ? EP_HT_ROLES : 0);
}

/* Chunks of a table of starts, without its end. */
EP_DEV uint32_t ep_ht_table_chunks(const struct ep_ht_common &c)
{
	return ep_ht_chunks(c.max_tokens, c.areas.chunk_shift);
}

/* Index of chunk `chunk`'s first row, between this rank and rank r; `start`: recv_ or send_start. */
EP_DEV uint32_t ep_ht_first(const struct ep_ht_common &c, const uint32_t *start, uint32_t r,
			    uint32_t chunk)
{
	return start[(size_t)r * (ep_ht_table_chunks(c) + 1) + chunk];
}

/* How many rows it has. */
EP_DEV uint32_t ep_ht_rows(const struct ep_ht_common &c, const uint32_t *start, uint32_t r,
			   uint32_t chunk)
{
	const uint32_t *p = start + (size_t)r * (ep_ht_table_chunks(c) + 1) + chunk;

	return p[1] - p[0];
}

/* The word of a unit in a heap; `off`: arrived_off or credit_off, `r` whose ring or whose word. */
EP_DEV uint64_t *ep_ht_unit_at(const struct ep_ht_common &c, unsigned char *heap, uint64_t off,
			       uint32_t r, uint32_t slot, uint32_t part)
{
	return (uint64_t *)(heap + off) + ((size_t)r * c.areas.ring_chunks + slot) * c.areas.parts +
	       part;
}

/* Whether a word is of `chunk` or a later one. Any lane. */
EP_DEV bool ep_ht_word_reached(const struct ep_op &op, const uint64_t *at, uint32_t chunk)
{
	uint64_t word = ep_ld_acquire_sys_u64(at);

	return (uint32_t)(word >> 32) == op.epoch && (uint32_t)word >= chunk + 1;
}

/* Row `i` of a chunk in a ring. */
EP_DEV unsigned char *ep_ht_ring_at(const struct ep_ht_common &c, unsigned char *heap, uint32_t r,
				    uint32_t slot, uint32_t i)
{
	size_t row = (((size_t)r * c.areas.ring_chunks + slot) << c.areas.chunk_shift) + i;

	return heap + c.areas.ring_off + row * c.areas.row_stride;
}

/* Weights of row `index` from rank r, or for it. */
EP_DEV float *ep_ht_weights_at(const struct ep_ht_common &c, unsigned char *heap, uint32_t r,
			       uint32_t index)
{
	return (float *)(heap + c.areas.weight_off) + ((size_t)r * c.max_tokens + index) * c.width;
}

/*
 * The chunk before `chunk` that lay in the same slot of the ring between the two ranks; `chunk`
 * itself if there is none. Chunks without rows between the two are skipped by both ends.
 */
EP_DEV uint32_t ep_ht_chunk_before(const struct ep_ht_common &c, const uint32_t *start, uint32_t r,
				   uint32_t chunk)
{
	uint32_t before = chunk;

	while (before >= c.areas.ring_chunks) {
		before -= c.areas.ring_chunks;
		if (ep_ht_rows(c, start, r, before)) {
			return before;
		}
	}
	return chunk;
}

/*
 * Whose word a unit has to wait for before it is written to the ring of rank r: that r has read the
 * unit that lay there before, of chunk *before. NULL: there was none. `start` as above.
 */
EP_DEV const uint64_t *ep_ht_credit_at(const struct ep_ht_common &c, const uint32_t *start,
				       uint32_t r, uint32_t chunk, uint32_t part, uint32_t *before)
{
	*before = ep_ht_chunk_before(c, start, r, chunk);
	if (*before == chunk) {
		return NULL;
	}
	return ep_ht_unit_at(c, c.g.own, c.areas.credit_off, r, chunk % c.areas.ring_chunks, part);
}

#endif
