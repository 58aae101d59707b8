/* SPDX-License-Identifier: Apache-2.0 */
/* Random numbers of the oracle: a stream for each purpose, rank and token. */
#ifndef TOOLS_PERF_ORACLE_DRAW_H
#define TOOLS_PERF_ORACLE_DRAW_H

#include "oracle.h"

/* Uses of a stream of random numbers; part of its key. */
enum {
	KEY_TOKENS = 1,
	KEY_ROUTE,
	KEY_DROP,
	KEY_WEIGHT,
	KEY_PERMUTE
};

struct stream {
	uint64_t key;
	uint64_t counter;
};

static inline struct stream stream_open(const struct oracle_problem *problem, uint32_t purpose,
					uint32_t rank, uint32_t token)
{
	struct stream s = { 0 };

	s.key = oracle_hash(problem->seed, purpose);
	s.key = oracle_hash(s.key, (uint64_t)rank << 32 | token);
	return s;
}

static inline uint32_t draw(struct stream *stream, uint32_t below)
{
	return (uint32_t)(((oracle_hash(stream->key, stream->counter++) >> 32) * below) >> 32);
}

static inline int draw_ppm(struct stream *stream, uint32_t ppm)
{
	return draw(stream, 1000000) < ppm;
}

static inline int contains(const int32_t *ids, uint32_t count, int32_t id)
{
	for (uint32_t i = 0; i < count; i++) {
		if (ids[i] == id) {
			return 1;
		}
	}
	return 0;
}

/* One more id of [first, first + extent) that is not in ids[0..count). */
static inline int32_t draw_new(struct stream *stream, const int32_t *ids, uint32_t count,
			       uint32_t first, uint32_t extent)
{
	int32_t id = (int32_t)(first + draw(stream, extent));

	for (int tries = 0; contains(ids, count, id); tries++) {
		id = tries < 32 ? (int32_t)(first + draw(stream, extent))
				: (int32_t)(first + ((uint32_t)id - first + 1) % extent);
	}
	return id;
}

/* popularity.c: 0, or -1: out of memory */
int oracle_popularity_prepare(struct oracle_problem *problem);
void oracle_draw_popular(const struct oracle_problem *problem, struct stream *stream, int32_t *ids);
void oracle_draw_khot(const struct oracle_problem *problem, struct stream *stream, int32_t *ids);
void oracle_place_power(const struct oracle_problem *problem, uint32_t rank, uint32_t token,
			int32_t *ids);

#endif
