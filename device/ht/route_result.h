/* SPDX-License-Identifier: Apache-2.0 */
/* Routing of high throughput: what comes to this rank in all, for the caller and for later kernels. */
#ifndef EP_DEVICE_HT_ROUTE_RESULT_H
#define EP_DEVICE_HT_ROUTE_RESULT_H

#include "device/ht/route_place.h"

/* Element i of a tensor of counters of `bytes` each, which may be NULL. */
EP_DEV void ep_ht_counter_store(void *counters, uint32_t bytes, uint32_t i, uint32_t v)
{
	if (!counters) {
		return;
	}
	if (bytes == 8) {
		((int64_t *)counters)[i] = v;
	} else {
		((int32_t *)counters)[i] = (int32_t)v;
	}
}

/* Expert-major: this rank's zones. Their rows are all kept as far as they have places. One warp. */
EP_DEV void ep_ht_zones_leave(const struct ep_ht_route_args &a, const struct ep_ht_route &route)
{
	uint32_t end = 0, limit = a.c.limit;

	for (uint32_t e0 = 0; e0 < a.c.nlocal; e0 += EP_WARP_SIZE) {
		struct ep_ht_zone_at at = ep_ht_zones_next(a, route, a.c.g.rank, e0, &end);
		struct ep_ht_zone z = {};

		if (at.expert == EP_HT_NONE) {
			continue;
		}
		z.first = ep_min_u32(at.begin, limit);
		z.rows = ep_min_u32(at.rows, limit - z.first);
		z.kept = ep_min_u32(route.all[at.expert], z.rows);
		a.c.h.zones[e0 + ep_lane()] = z;
		ep_ht_counter_store(a.expert_counters, a.counter_bytes, e0 + ep_lane(), z.rows);
		ep_ht_counter_store(a.expert_offsets, a.counter_bytes, e0 + ep_lane(), z.first);
	}
}

/* Expert-major: the zone of a place below the limit: the last one that does not begin behind it. */
EP_DEV uint32_t ep_ht_zone_find(const struct ep_ht_common &c, uint32_t place)
{
	uint32_t low = 0, high = c.nlocal;

	while (high - low > 1) {
		uint32_t middle = (low + high) / 2;

		if (c.h.zones[middle].first <= place) {
			low = middle;
		} else {
			high = middle;
		}
	}
	return low;
}

/*
 * Some rows are dropped because they have no slots, so the counts do not show how many rows come to an
 * expert. The tables that have come do: adds what they list to `kept`, of which each expert's lies `stride`
 * words behind the one before.
 */
EP_DEV void ep_ht_kept_count(const struct ep_ht_common &c, const struct ep_ht_route &route,
			     uint32_t *kept, uint32_t stride)
{
	for (uint32_t s = 0; s < c.g.nranks; s++) {
		const uint32_t *sel = ep_ht_sel_area(c, c.g.own, s);
		uint32_t rows = route.from[s + 1] - route.from[s];

		for (uint32_t row = ep_tid(); row < rows; row += ep_nthreads()) {
			for (uint32_t j = 0; j < c.width; j++) {
				uint32_t v = ep_ld_relaxed_sys_u32(sel + (size_t)row * c.width + j);

				if (v == EP_HT_NONE) {
					break;
				}
				if (v != EP_HT_DROPPED) {
					v = c.layout == EP_HT_FLAT ? v : ep_ht_zone_find(c, v);
					ep_shared_add_u32(kept + (size_t)v * stride, 1);
				}
			}
		}
	}
}

/* Expert-major zones, or flat counters. One block; the tables of all sources have come if `cut`. */
EP_DEV void ep_ht_experts_leave(const struct ep_ht_route_args &a, const struct ep_ht_route &route,
				bool cut)
{
	const struct ep_ht_common &c = a.c;
	bool expert_major = c.layout == EP_HT_EXPERT_MAJOR;
	uint32_t *counts = route.all + c.g.rank * c.nlocal;

	if (expert_major && ep_warp() == 0) {
		ep_ht_zones_leave(a, route);
	}
	if (cut) {
		ep_block_sync();
		for (uint32_t e = ep_tid(); e < c.nlocal; e += ep_nthreads()) {
			if (expert_major) {
				c.h.zones[e].kept = 0;
			} else {
				counts[e] = 0;
			}
		}
		ep_block_sync();
		ep_ht_kept_count(c, route, expert_major ? &c.h.zones[0].kept : counts,
				 expert_major ? sizeof(struct ep_ht_zone) / 4 : 1);
		ep_block_sync();
	}
	for (uint32_t e = ep_tid(); !expert_major && e < c.nlocal; e += ep_nthreads()) {
		ep_ht_counter_store(a.expert_counters, a.counter_bytes, e, counts[e]);
	}
}

/*
 * Handle memory has no routing from now on. One thread, before its block publishes its counts: without these no
 * other block gets to where it can fail and record it here.
 */
EP_DEV void ep_ht_head_clear(const struct ep_ht_common &c)
{
	ep_st_relaxed_gpu_u64(&c.h.head->stamp, 0);
}

/* Nor will it have this one, whatever the other blocks do. Any block that fails, by one thread. */
EP_DEV void ep_ht_head_fail(const struct ep_ht_common &c)
{
	ep_atomic_max_gpu_u64(&c.h.head->stamp, EP_HT_NO_STAMP);
}

/* It has this one, unless a block has failed, or fails later. One thread, whose block has seen all tables come. */
EP_DEV void ep_ht_head_leave(const struct ep_ht_route_args &a, const struct ep_ht_route &route)
{
	const struct ep_ht_common &c = a.c;

	ep_atomic_max_gpu_u64(&c.h.head->stamp, c.stamp);
	ep_ht_counter_store(a.total_counter, a.total_bytes, 0, ep_ht_total(c, route, c.g.rank));
}

/* All but the stamp, without which the head is not valid. One block. */
EP_DEV void ep_ht_results_leave(const struct ep_ht_route_args &a, const struct ep_op &op,
				const struct ep_ht_route &route, bool cut)
{
	const struct ep_ht_common &c = a.c;
	bool expert_major = c.layout == EP_HT_EXPERT_MAJOR;
	struct ep_ht_head *head = c.h.head;

	if (ep_tid() == ep_nthreads() - 1) {
		head->num_tokens = c.num_tokens;
		head->routing = op.epoch;
		head->rows = route.from[c.g.nranks];
		head->idle = route.from[c.g.nranks + 2];
		head->places = expert_major ? ep_min_u32(route.ends[c.g.rank], c.limit) : 0;
		head->chunks = route.from[c.g.nranks + 1];
	}
	ep_ht_experts_leave(a, route, cut);
	for (uint32_t r = ep_tid(); r <= c.g.nranks; r += ep_nthreads()) {
		c.h.recv_base[r] = route.from[r];
		if (r < c.g.nranks) {
			c.h.send_base[r] = route.base[r];
		}
	}
}

#endif
