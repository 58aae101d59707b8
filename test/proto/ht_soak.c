/* SPDX-License-Identifier: Apache-2.0 */
/*
 * High throughput for long: many steps on small shapes, forward and backward in any order, the routing
 * changed now and then, ranks that come early or late by turns and never meet but in the library. All
 * bytes are compared with the oracle.
 *
 *     ht_soak SEED STEPS
 */
#include <inttypes.h>
#include <unistd.h>

#include "support/ht_bench.h"

#define STEPS_OF_GROUP 100

struct soak {
	struct ht_case c;
	uint32_t steps;
	double start;
	double most_seconds; /* of a step, rank 0 */
};

/* The same on all ranks: what comes next. `own`: not the same. */
static void one_step(struct ht_bench *b, uint32_t i, uint64_t *s, uint64_t *own)
{
	cudaStream_t stream = b->w->stream;
	bool backward = world_draw(s, 2);

	if (i == 0 || world_draw(s, 3) == 0) {
		uint64_t seed = world_draw(s, 0);

		ht_load(b, seed, 1 + (uint32_t)world_draw(s, b->h.p.max_tokens));
		ht_poison(b);
		NEED_SYNC(ht_update(b, stream), stream);
		ht_check_counters(b);
	} else {
		ht_poison(b);
	}
	if (world_draw(own, 16) == 0) {
		usleep((useconds_t)world_draw(own, 1000));
	}
	if (b->flags & HT_OWN_MEM && world_draw(s, 8) == 0) {
		ht_reopen(b);
	}
	NEED_SYNC(ht_dispatch(b, backward, stream), stream);
	ht_check_dispatch(b, backward);
	ht_expert_work(b);
	NEED_SYNC(ht_combine(b, backward, stream), stream);
	ht_check_combine(b, backward);
}

static void run(struct world *w, void *arg)
{
	struct soak *k = arg;
	uint64_t s = k->c.seed * 8191 + 1, own = s + (uint64_t)w->rank * 7919;
	ncclEpGroup_t group;
	struct ht_bench b;

	ht_case_context(&k->c, w);
	group = ht_case_group(&k->c, w);
	ht_open(&b, w, group, &k->c.h, k->c.flags);
	for (uint32_t i = 0; i < k->steps; i++) {
		double start = world_now();

		one_step(&b, i, &s, &own);
		if (w->rank == 0 && world_now() - start > k->most_seconds) {
			k->most_seconds = world_now() - start;
		}
	}
	CHECK_LAST(group, ncclSuccess, "");
	ht_end(&b);
}

int main(int argc, char **argv)
{
	uint64_t seed = world_number(argc > 1 ? argv[1] : NULL, 1);
	uint64_t steps = world_number(argc > 2 ? argv[2] : NULL, 400), done = 0;
	struct soak k = { .start = world_now() };

	for (uint64_t i = seed; done < steps; i++) {
		uint64_t s = i * 31 + 5;
		int nranks = world_size(1 + (int)world_draw(&s, 4));

		k.c = ht_case_draw(nranks, "soak", i);
		k.steps = (uint32_t)(steps - done < STEPS_OF_GROUP ? steps - done : STEPS_OF_GROUP);
		world_run(nranks, run, &k);
		done += k.steps;
		if (check_failures()) {
			break;
		}
	}
	printf("soak: %" PRIu64 " steps from seed %" PRIu64 ", %.1f s, the longest %.0f ms\n", done,
	       seed, world_now() - k.start, k.most_seconds * 1e3);
	return check_end();
}
