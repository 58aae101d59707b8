/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles of one group interleave freely: whole operations and split ones, in any order that the
 * API allows, on two streams, without a pause of the host. Each handle is of another layout, type
 * and size. Every dispatch and combine must give what the oracle says, that is, what it would give
 * alone in a group.
 *
 *     interleave SEED RUNS
 */
#include <unistd.h>

#include "ep/ep.h"
#include "support/tape.h"

#define HANDLES 3
#define STEPS 6 /* dispatches of a handle in a run */

enum phase {
	IDLE,
	SENT_DISPATCH,
	DISPATCHED,
	SENT_COMBINE
};

struct player {
	struct bench b;
	struct tape tape;
	enum phase phase;
	uint32_t step;
	uint32_t combines; /* of this step */
	bool combined[STEPS];
};

struct game {
	uint64_t seed;
	uint32_t runs;
};

static struct oracle_problem problem(int nranks, int handle)
{
	uint32_t experts = (uint32_t)nranks * 4;
	struct oracle_problem p;

	switch (handle) {
	case 0:
		p = bench_problem(nranks, experts, 3, 248, 10, ORACLE_EXPERT_MAJOR);
		break;
	case 1:
		p = bench_problem(nranks, experts, 4, 24, 10, ORACLE_RANK_MAJOR);
		p.dtype = ORACLE_FP32;
		p.drop_ppm = 200000;
		break;
	default:
		p = bench_problem(nranks, experts, 2, 128, 10, ORACLE_EXPERT_MAJOR);
		p.quant = ORACLE_QUANT_FP8;
		p.uneven = 1;
		break;
	}
	return p;
}

static void pause_now_and_then(struct world *w, uint64_t *state)
{
	if (world_draw(state, 8) == 0) {
		usleep((useconds_t)world_draw(state, 3000));
	}
}

/* The next thing that this handle may do; `split` and `stop` as all ranks have drawn them. */
static void play(struct player *p, struct chain *c, uint64_t *s, uint32_t *pending)
{
	bool split = world_draw(s, 2) && *pending < EP_GROUP_MAX_PENDING;
	bool again = world_draw(s, 3) == 0;
	cudaStream_t stream = chain_on(c, (int)world_draw(s, 2));

	if ((p->phase == IDLE || p->phase == DISPATCHED) &&
	    *pending == p->b.group->config.shape.banks) {
		return; /* no bank is free: another handle completes first */
	}
	switch (p->phase) {
	case IDLE:
		tape_load(&p->tape, p->step, stream);
		NEED_OK(bench_update(&p->b, stream));
		NEED_OK(split ? bench_send_dispatch(&p->b, stream) : bench_dispatch(&p->b, stream));
		p->combines = 0;
		p->phase = split ? SENT_DISPATCH : DISPATCHED;
		*pending += split;
		break;
	case DISPATCHED:
		if (p->combines && !again) { /* has been combined often enough */
			tape_save(&p->tape, p->step, stream);
			p->combined[p->step++] = true;
			p->phase = IDLE;
			break;
		}
		if (again && !p->combines) { /* dispatch again, without a combine between */
			NEED_OK(bench_dispatch(&p->b, stream));
			p->combines = 0;
			break;
		}
		NEED_OK(split ? bench_send_combine(&p->b, stream) : bench_combine(&p->b, stream));
		p->combines++;
		p->phase = split ? SENT_COMBINE : DISPATCHED;
		*pending += split;
		break;
	default:
		NEED_OK(ncclEpComplete(p->b.handle, NULL, stream));
		p->phase = DISPATCHED;
		*pending -= 1;
		break;
	}
}

/*
 * Two are pending: a third may not be, and in groups of several nodes nothing may lie in between.
 */
static void refused(struct player *players, struct chain *c)
{
	cudaStream_t stream = chain_on(c, 0);

	for (int h = 0; h < HANDLES; h++) {
		NEED_OK(bench_update(&players[h].b, stream));
	}
	NEED_OK(bench_send_dispatch(&players[0].b, stream));
	NEED_OK(bench_send_dispatch(&players[1].b, stream));
	CHECK_REASON(bench_send_dispatch(&players[2].b, stream), ncclInvalidUsage, "pending");
	if (players[2].b.group->config.shape.banks == 2) {
		CHECK_REASON(bench_dispatch(&players[2].b, stream), ncclInvalidUsage, "pending");
	} else {
		NEED_OK(bench_dispatch(&players[2].b, stream));
	}
	NEED_OK(ncclEpComplete(players[0].b.handle, NULL, stream));
	NEED_OK(bench_dispatch(&players[2].b, stream));
	NEED_OK(ncclEpComplete(players[1].b.handle, NULL, stream));
	chain_sync(c);
}

/* A combine pends while another handle takes more steps than ranks keep signatures of. */
static void rested(struct player *players, struct chain *c)
{
	struct bench *b = &players[0].b, *other = &players[1].b;

	check_context("a combine that pends for long");
	bench_load(b, 300);
	bench_dispatch_checked(b);
	NEED_OK(bench_update(other, chain_on(c, 0)));
	NEED_OK(bench_send_combine(b, chain_on(c, 0)));
	for (int i = 0; i < EP_SIGNATURE_SLOTS; i++) {
		NEED_OK(bench_dispatch(other, chain_on(c, 0)));
	}
	NEED_OK(ncclEpComplete(b->handle, NULL, chain_on(c, 0)));
	chain_sync(c);
	bench_check_combine(b);
}

static void run_once(struct world *w, struct player *players, struct chain *c, uint64_t seed)
{
	uint64_t s = seed, mine = seed ^ (uint64_t)w->rank << 40;
	uint32_t pending = 0, busy = HANDLES;

	for (int h = 0; h < HANDLES; h++) {
		tape_open(&players[h].tape, &players[h].b, STEPS, seed + (uint64_t)h * 1000);
		players[h].phase = IDLE;
		players[h].step = 0;
	}
	while (busy) {
		struct player *p = players + world_draw(&s, HANDLES);

		if (p->step == STEPS) {
			continue;
		}
		play(p, c, &s, &pending);
		pause_now_and_then(w, &mine);
		busy -= p->step == STEPS;
	}
	chain_sync(c);
	for (int h = 0; h < HANDLES; h++) {
		for (uint32_t i = 0; i < STEPS; i++) {
			check_context("seed %llu, handle %d, step %u", (unsigned long long)seed, h,
				      i);
			tape_check(&players[h].tape, i, true, true);
		}
		tape_close(&players[h].tape);
	}
}

static void run(struct world *w, void *arg)
{
	const struct game *g = arg;
	struct oracle_problem big = problem(w->nranks, 0);
	ncclEpGroupConfig_t config = bench_group_config(&big, 0);
	struct player *players = calloc(HANDLES, sizeof(*players));
	struct chain chain;
	ncclEpGroup_t group;

	config.num_topk = 4;
	config.max_num_sms = (unsigned int)(2 + (w->rank & 1));
	NEED_OK(ncclEpCreateGroup(&group, w->comm, &config));
	for (int h = 0; h < HANDLES; h++) {
		struct oracle_problem p = problem(w->nranks, h);

		bench_open(&players[h].b, w, group, &p, h & 1 ? BENCH_IDS64 : 0);
	}
	chain_open(&chain);
	for (uint32_t i = 0; i < g->runs; i++) {
		run_once(w, players, &chain, g->seed + i * 7);
	}
	rested(players, &chain);
	CHECK_LAST(group, ncclSuccess, "");
	refused(players, &chain);
	chain_close(&chain);
	for (int h = 0; h < HANDLES; h++) {
		bench_close(&players[h].b);
	}
	free(players);
	OK(ncclEpGroupDestroy(group));
}

int main(int argc, char **argv)
{
	struct game g = { world_number(argc > 1 ? argv[1] : NULL, 1),
			  (uint32_t)world_number(argc > 2 ? argv[2] : NULL, 4) };

	printf("interleave, seeds from %llu, %u runs\n", (unsigned long long)g.seed, g.runs);
	for (int lines = 0; lines <= 1; lines++) {
		setenv("NCCL_EP_LL_LINES", lines ? "1" : "0", 1);
		world_run(world_size(4), run, &g);
	}
	return check_end();
}
