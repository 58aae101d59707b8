/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The thread that posts for kernels, against a provider that completes what it is told to: never
 * more under way than queues have room for, and nothing hides an error that kernels may not have
 * seen yet.
 */
#include <errno.h>
#include <string.h>
#include <unistd.h>
#include "device/mlx5/wqe.h"
#include "gda/state.h"
#include "gda/prm.h"
#include "support/check.h"

#define QUEUES 2
#define DEPTH 64
#define FIRST 65500 /* index: 16 bits do not hold what follows */
#define MANY 60u
#define TURNS 50
#define LIMIT_S 20

static struct {
	uint64_t posted[QUEUES], completed[QUEUES];
	uint64_t may_complete;        /* of each queue; atomic */
	uint32_t room, cq_room, peak; /* requests under way */
	uint32_t refused;
	uint32_t halts; /* atomic */
	uint32_t turns; /* polls that found nothing; atomic */
} nic;

static struct ep_gda g;
static struct ep_gda_queue queue[QUEUES];
static struct ep_mlx5_wqe wqes[QUEUES][DEPTH];
static struct ep_mlx5_cqe cqe[QUEUES];
static uint64_t word[QUEUES];
static struct ep_gda_failure failures[16];
static struct ep_mlx5_error record[QUEUES];
static uint32_t known[2], down[2];
static bool vague[2];
static char hosts[2][64] = { "here", "there" };
static struct ibv_context ctx;
static struct ibv_cq cq = { .context = &ctx };
static struct ibv_qp qps[QUEUES];

static uint32_t under_way(void)
{
	uint64_t n = 0;

	for (int i = 0; i < QUEUES; i++) {
		n += nic.posted[i] - nic.completed[i];
	}
	return (uint32_t)n;
}

static int fake_post(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	ptrdiff_t i = qp - qps;

	for (; wr; wr = wr->next) {
		if (nic.posted[i] - nic.completed[i] == nic.room || under_way() == nic.cq_room) {
			nic.refused++;
			*bad = wr;
			return ENOMEM;
		}
		CHECK_INT(wr->wr_id, (uint64_t)i << 32 | (uint32_t)(FIRST + nic.posted[i]));
		CHECK(wr->send_flags & IBV_SEND_SIGNALED);
		nic.posted[i]++;
		if (under_way() > nic.peak) {
			nic.peak = under_way();
		}
	}
	return 0;
}

static int fake_poll(struct ibv_cq *ibv, int n, struct ibv_wc *wc)
{
	uint64_t may = __atomic_load_n(&nic.may_complete, __ATOMIC_ACQUIRE);
	int got = 0;

	for (int i = 0; i < QUEUES; i++) {
		while (got < n && nic.completed[i] < nic.posted[i] && nic.completed[i] < may) {
			memset(&wc[got], 0, sizeof(wc[got]));
			wc[got].status = IBV_WC_SUCCESS;
			wc[got++].wr_id = (uint64_t)i << 32 |
					  (uint32_t)(FIRST + nic.completed[i]++);
		}
	}
	if (!got) {
		__atomic_add_fetch(&nic.turns, 1, __ATOMIC_RELEASE);
	}
	return got;
}

static int fake_modify(struct ibv_qp *qp, struct ibv_qp_attr *attr, int mask)
{
	CHECK_INT(attr->qp_state, IBV_QPS_ERR);
	__atomic_add_fetch(&nic.halts, 1, __ATOMIC_RELEASE);
	return 0;
}

static struct ep_verbs verbs = { .ibv_modify_qp = fake_modify };

static void begin(uint32_t room, uint32_t cq_room)
{
	struct ep_reason why = { "" };

	memset(&nic, 0, sizeof(nic));
	memset(&g, 0, sizeof(g));
	memset(queue, 0, sizeof(queue));
	memset(cqe, 0xff, sizeof(cqe));
	memset(known, 0, sizeof(known));
	memset(down, 0, sizeof(down));
	memset(vague, 0, sizeof(vague));
	nic.room = room;
	nic.cq_room = cq_room;
	ctx.ops.post_send = fake_post;
	ctx.ops.poll_cq = fake_poll;
	pthread_mutex_init(&g.lock, NULL);
	pthread_mutex_init(&g.ask, NULL);
	g.nic[0].base.v = &verbs;
	g.mode = EP_GDA_CPU_PROXY;
	g.depth = DEPTH;
	g.nranks = 2;
	g.host = hosts;
	g.failure = failures;
	g.known = known;
	g.vague = vague;
	g.down = down;
	g.queue = queue;
	g.nqueues = QUEUES;
	g.nnics = 1;
	g.nic[0].cq = &cq;
	g.nic[0].cq_depth = cq_room;
	for (uint32_t i = 0; i < QUEUES; i++) {
		qps[i].context = &ctx;
		word[i] = FIRST;
		queue[i] = (struct ep_gda_queue){ .gda = &g,
						  .peer = 1,
						  .index = i,
						  .nic = &g.nic[0],
						  .qpn = 0x100 + i,
						  .verbs = &qps[i],
						  .sq = wqes[i],
						  .cqe = &cqe[i],
						  .record = &record[i],
						  .word = &word[i],
						  .posted = FIRST,
						  .completed = FIRST,
						  .max_wr = room };
	}
	NEED(ep_gda_proxy_start(&g, &why));
}

/* Behind the `n` of them a last one whose opcode no kernel posts, if `bad`. */
static void ring_for(uint32_t i, uint32_t n, bool bad)
{
	const struct ep_mlx5_mem remote = { 0x1000, 1 }, local = { 0x2000, 2 };

	for (uint32_t k = 0; k < n + bad; k++) {
		uint64_t at = FIRST + k;
		struct ep_mlx5_wqe *q = &wqes[i][at % DEPTH];

		if (k < n) {
			ep_mlx5_build_write(q, at, queue[i].qpn, EP_MLX5_CE_ALWAYS, remote, local,
					    8);
		} else {
			ep_mlx5_build_ctrl(q, at, 0x15, queue[i].qpn, 1, EP_MLX5_CE_ALWAYS);
		}
	}
	__atomic_store_n(&word[i], FIRST + n + bad, __ATOMIC_RELEASE);
}

/* Until the thread has had nothing to do for a while. */
static void settle(void)
{
	uint32_t from = __atomic_load_n(&nic.turns, __ATOMIC_ACQUIRE);
	double limit = check_now() + LIMIT_S;

	while (__atomic_load_n(&nic.turns, __ATOMIC_ACQUIRE) - from < TURNS &&
	       check_now() < limit) {
		usleep(100);
	}
	CHECK(check_now() < limit);
}

static void let(uint64_t n)
{
	__atomic_store_n(&nic.may_complete, n, __ATOMIC_RELEASE);
	settle();
}

static uint32_t counter(uint32_t i)
{
	return (uint32_t)(cqe[i].wqe_counter >> 8 | (cqe[i].wqe_counter & 0xff) << 8);
}

static void check_room(uint32_t room, uint32_t cq_room)
{
	begin(room, cq_room);
	for (uint32_t i = 0; i < QUEUES; i++) {
		ring_for(i, MANY, false);
	}
	settle();
	CHECK_INT(nic.peak, room * QUEUES < cq_room ? room * QUEUES : cq_room);
	let(MANY);
	ep_gda_proxy_stop(&g);
	for (uint32_t i = 0; i < QUEUES; i++) {
		CHECK_INT(nic.completed[i], MANY);
		CHECK_INT(cqe[i].op_own >> 4, EP_MLX5_CQE_REQ);
		CHECK_INT(counter(i), (FIRST + MANY - 1) & 0xffff);
	}
	CHECK_INT(nic.refused, 0);
	CHECK_INT(g.nic[0].cq_used, 0);
}

/* What was posted before a request that is refused completes after all: kernels see the refusal. */
static void check_hidden(void)
{
	begin(DEPTH, QUEUES * DEPTH);
	ring_for(0, 5, true);
	ring_for(1, 5, false);
	settle();
	CHECK_INT(__atomic_load_n(&nic.halts, __ATOMIC_ACQUIRE), 1);
	CHECK_INT(cqe[0].op_own >> 4, EP_MLX5_CQE_REQ_ERR);
	CHECK_INT(down[1], 1);
	let(5);
	ep_gda_proxy_stop(&g);
	CHECK_INT(nic.completed[0], 5);
	CHECK_INT(cqe[0].op_own >> 4, EP_MLX5_CQE_REQ_ERR);
	CHECK_INT(cqe[0].u.error.syndrome, EP_MLX5_SYND_LOCAL_QP_OP);
	CHECK_INT(counter(0), (FIRST + 5) & 0xffff);
	CHECK_INT(cqe[1].op_own >> 4, EP_MLX5_CQE_REQ);
	CHECK_INT(counter(1), (FIRST + 4) & 0xffff);
}

/*
 * Where somebody else made the failure known, an error ends the queue once the NIC is done with it.
 */
static void check_known(void)
{
	begin(DEPTH, QUEUES * DEPTH);
	ring_for(0, 5, false);
	settle();
	__atomic_store_n(&queue[0].failed, 1, __ATOMIC_RELAXED);
	let(4);
	CHECK_INT(cqe[0].op_own >> 4, EP_MLX5_CQE_INVALID);
	let(5);
	ep_gda_proxy_stop(&g);
	CHECK_INT(nic.completed[0], 5);
	CHECK_INT(cqe[0].op_own >> 4, EP_MLX5_CQE_REQ_ERR);
	CHECK_INT(cqe[0].u.error.syndrome, EP_MLX5_SYND_FLUSHED);
}

int main(void)
{
	check_room(16, 1000);
	check_room(33, 1000);
	check_room(DEPTH, 20);
	check_room(24, 41);
	check_hidden();
	check_known();
	return check_end();
}
