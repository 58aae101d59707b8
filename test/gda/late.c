/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Of which queues the watcher asks the NIC, and how often: by numbers of queues that groups have.
 * The NIC is a function that counts the questions.
 */
#include <stdlib.h>
#include <string.h>
#include "gda/state.h"
#include "gda/prm.h"
#include "support/check.h"

#define ROUNDS 60

static uint32_t nic_state, asked;

static int fake_query(struct mlx5dv_devx_obj *obj, const void *in, size_t inlen, void *out,
		      size_t outlen)
{
	memset(out, 0, outlen);
	ep_prm_set((unsigned char *)out + EP_PRM_QPC_AT, EP_PRM_QPC_STATE, nic_state);
	asked++;
	return 0;
}

static struct ep_mlx5dv dv = { .mlx5dv_devx_obj_query = fake_query };
static char hosts[2][64] = { "here", "there" };

struct rig {
	struct ep_gda g;
	struct ep_gda_failure failure[16];
	uint32_t known[2], down[2];
	bool vague[2];
	struct ep_mlx5_cqe *cqe;
	struct ep_mlx5_error *record;
	uint64_t *word;
};

/* `n` queues with rank 1, whose completions and positions the host sees. */
static struct rig *make(uint32_t n)
{
	struct rig *r = calloc(1, sizeof(*r));
	struct ep_gda *g = &r->g;

	CHECK(r);
	r->cqe = aligned_alloc(64, n * sizeof(*r->cqe));
	r->record = calloc(n, sizeof(*r->record));
	r->word = calloc(n, sizeof(*r->word));
	g->queue = calloc(n, sizeof(*g->queue));
	memset(r->cqe, 0xff, n * sizeof(*r->cqe));
	pthread_mutex_init(&g->lock, NULL);
	pthread_mutex_init(&g->ask, NULL);
	g->nic[0].base.dv = &dv;
	g->mode = EP_GDA_CPU_DB;
	g->nranks = 2;
	g->depth = 256;
	g->host = hosts;
	g->failure = r->failure;
	g->known = r->known;
	g->vague = r->vague;
	g->down = r->down;
	g->nqueues = n;
	for (uint32_t i = 0; i < n; i++) {
		struct ep_gda_queue *q = &g->queue[i];

		q->gda = g;
		q->nic = &g->nic[0];
		q->peer = 1;
		q->cqe = &r->cqe[i];
		q->record = &r->record[i];
		q->word = &r->word[i];
		q->qp_obj = (struct mlx5dv_devx_obj *)r;
	}
	asked = 0;
	nic_state = EP_PRM_QP_RTS;
	return r;
}

static void drop(struct rig *r)
{
	free(r->g.queue);
	free(r->word);
	free(r->record);
	free(r->cqe);
	free(r);
}

static void complete(struct ep_mlx5_cqe *cqe, uint64_t next)
{
	uint16_t index = (uint16_t)(next - 1);

	cqe->wqe_counter = (uint16_t)(index >> 8 | index << 8);
	cqe->op_own = EP_MLX5_CQE_REQ << 4;
}

/* A second of the watcher's. Returns the questions. */
static uint32_t second(struct rig *r, uint32_t t)
{
	uint32_t before = asked;

	ep_gda_late_mark(&r->g, t * EP_GDA_ROUND_NS);
	for (uint32_t i = 0; i < 4; i++) {
		ep_gda_late_ask(&r->g);
	}
	return asked - before;
}

/*
 * In the order of what queues do: nothing; work that completes within a second; work that never
 * does.
 */
static void check_counts(uint32_t remote, uint32_t n)
{
	struct rig *r = make(n);
	uint32_t idle = 0, moving = 0, stuck = 0;

	for (uint32_t t = 1; t <= ROUNDS; t++) {
		idle += second(r, t);
	}
	for (uint32_t t = ROUNDS + 1; t <= 2 * ROUNDS; t++) {
		for (uint32_t i = 0; i < n; i++) {
			r->word[i] = r->word[i] ? r->word[i] : 64000 + i % 1000; /* past 2^16 */
			complete(&r->cqe[i], r->word[i]);
			r->word[i] += 1 + (i + t) % r->g.depth;
		}
		moving += second(r, t);
	}
	for (uint32_t t = 2 * ROUNDS + 1; t <= 3 * ROUNDS; t++) {
		stuck += second(r, t);
	}
	printf("%4u remote ranks, %4u queues: questions in a second: %.2f idle, %.2f moving, %.2f stuck\n",
	       remote, n, (double)idle / ROUNDS, (double)moving / ROUNDS, (double)stuck / ROUNDS);
	CHECK_INT(idle, 0);
	CHECK_INT(moving, 0);
	CHECK_INT(stuck, 6 * n); /* after 1, 2, 4, 8, 16, 32 seconds */
	CHECK(!r->down[1]);
	drop(r);
}

/* One queue among many has failed, and nobody else has seen it. */
static void check_found(void)
{
	struct rig *r = make(64);
	struct ep_gda_failure failure;
	uint32_t t = 1;

	r->word[17] = 3;
	nic_state = EP_PRM_QP_ERR;
	for (; t <= 4 && !r->down[1]; t++) {
		second(r, t);
		r->g.queue[17].suspect -= r->g.queue[17].suspect ? 200000000 : 0;
	}
	CHECK_INT(r->down[1], 1);
	CHECK(ep_gda_poll(&r->g, &failure));
	CHECK_HAS(failure.text, "its queue pair is in error state");
	drop(r);
}

/* A completion that comes late ends the questions, and what is handed over next begins anew. */
static void check_late(void)
{
	struct rig *r = make(1);

	r->word[0] = 5;
	CHECK_INT(second(r, 1), 0);
	CHECK_INT(second(r, 2), 1);
	CHECK_INT(second(r, 3), 1);
	CHECK_INT(second(r, 4), 0);
	complete(&r->cqe[0], 5);
	CHECK_INT(second(r, 5), 0);
	r->word[0] = 6;
	CHECK_INT(second(r, 6), 0);
	CHECK_INT(second(r, 7), 1);
	drop(r);
}

int main(void)
{
	check_counts(8, 8 * 9);
	check_counts(64, 64 * 5);
	check_counts(1016, 1016 * 2);
	check_found();
	check_late();
	return check_end();
}
