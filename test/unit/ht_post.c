/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The send warp of high throughput, one flow of it: how many rows a signal and a doorbell serve,
 * which must not hold up few rows, announce rows that are not there, or take room that is not free.
 */
#include <cuda_runtime_api.h>
#include <stddef.h>
#include "device/mlx5/wqe.h"
#include "ht_post.h"
#include "support/check.h"

#define DEPTH 4096 /* rings of itself for each quarter: for none here */
#define CHUNKS 64
#define CHANNELS (EP_HT_ROWS + EP_HT_MOST_QUEUES) /* at most */
#define QUEUES (CHANNELS + 1)
#define STAGE_ADDR 0x100000000ull
#define NET_ADDR 0x200000000ull
#define SIGNAL_ADDR 0x300000000ull

struct heap {
	uint64_t progress[2];
	uint64_t sign[2];
	uint32_t left[2];
	struct ep_signature_slot signatures[EP_SIGNATURE_SLOTS][2];
	uint64_t signal[2 * CHANNELS];
	uint64_t staged[CHUNKS][HT_POST_PARTS];
	uint64_t posted[CHUNKS];
	uint64_t released;
};

struct memory {
	struct heap heap;
	struct ep_dev_remote remote;
	struct ep_mlx5_qp qp[2 * QUEUES];
	struct ep_remote_link links[2 * QUEUES];
	struct {
		struct ep_mlx5_wqe sq[DEPTH];
		struct ep_mlx5_cqe cqe;
		struct ep_mlx5_error error;
		uint64_t index;
	} rows[EP_HT_MOST_QUEUES];
	struct ep_mlx5_region local[EP_MLX5_REGIONS], far[EP_MLX5_REGIONS];
	uint32_t stop, down[2], early;
	struct ep_dev_state state;
	struct ep_record records[EP_RECORDS];
	uint32_t scratch[EP_HT_COUNTERS];
	struct ep_ht_flow flow;
	uint32_t node[2], rank_index[2], near_ranks[1], remote_ranks[1], remote_first[2];
	uint8_t masks[CHUNKS];
};

/* A case, and what the signals say. */
struct play {
	const char *what;
	struct ht_post_args a;
	uint32_t stage, net;
	uint32_t queues; /* for rows */
	uint64_t empty;  /* bit c: nothing of chunk c travels */
	uint32_t says[16];
};

static void place_queues(const struct play *p, struct memory *m)
{
	m->local[EP_MLX5_REGION_HEAP].addr = STAGE_ADDR;
	m->far[EP_MLX5_REGION_HEAP].addr = NET_ADDR;
	m->far[EP_MLX5_REGION_SIGNAL].addr = SIGNAL_ADDR;
	m->remote.channels = EP_HT_ROWS + p->queues;
	m->remote.queues = m->remote.channels + 1;
	m->remote.qps = m->qp;
	m->remote.links = m->links;
	m->remote.down = m->down;
	m->remote.signal_off = offsetof(struct heap, signal);
	for (uint32_t q = 0; q < p->queues; q++) {
		memset(&m->rows[q].cqe, 0xff, sizeof(m->rows[q].cqe));
		m->qp[m->remote.queues + EP_HT_ROWS + q] = (struct ep_mlx5_qp){
			.sq = m->rows[q].sq,
			.cqe = &m->rows[q].cqe,
			.db = &m->rows[q].index,
			.local = m->local,
			.remote = m->far,
			.record = &m->rows[q].error,
			.stop = &m->stop,
			.depth = DEPTH,
			.handover = EP_MLX5_HANDOVER_INDEX,
			.signal = EP_MLX5_SIGNAL_WRITE,
		};
	}
}

static void place_group(struct memory *m, struct ep_ht_common *c)
{
	c->g.nranks = 2;
	c->g.timeout_ns = 1000000000;
	c->g.own = c->g.heap[0] = (unsigned char *)&m->heap;
	c->g.remote = &m->remote;
	c->g.state = &m->state;
	c->g.records = m->records;
	c->g.progress_off = offsetof(struct heap, progress);
	c->g.signature_off = offsetof(struct heap, signatures);
	c->h.scratch = m->scratch;
	c->h.send_nodes = m->masks;
	m->heap.progress[1] = ep_progress_word(HT_POST_EPOCH, 0, 0);
	m->flow = (struct ep_ht_flow){ .peer = 1 };
	m->node[0] = EP_HT_NONE;
	m->remote_ranks[0] = m->remote_first[1] = 1;
	c->remote = (struct ep_ht_remote){
		.near = 1,
		.nodes = 1,
		.most = 1,
		.forwarders = &m->flow,
		.node = m->node,
		.index = m->rank_index,
		.near_ranks = m->near_ranks,
		.remote_ranks = m->remote_ranks,
		.remote_first = m->remote_first,
	};
}

static void place_areas(const struct play *p, struct ep_ht_common *c)
{
	c->areas.sign_off = offsetof(struct heap, sign);
	c->areas.staged_off = offsetof(struct heap, staged);
	c->areas.posted_off = offsetof(struct heap, posted);
	c->areas.released_off = offsetof(struct heap, released);
	c->areas.chunk_shift = EP_HT_CHUNK_SHIFT;
	c->areas.row_stride = HT_POST_ROW;
	c->areas.parts = HT_POST_PARTS;
	c->areas.stage_chunks = p->stage;
	c->areas.net_chunks = p->net;
	c->areas.mask_stride = CHUNKS;
	c->areas.bunch_shift = ep_ht_bunch_shift(p->stage);
	c->areas.queue_mask = p->queues - 1;
}

static uint64_t address(const struct ep_mlx5_wqe *q, uint32_t word)
{
	return (uint64_t)be32toh(q->w[word]) << 32 | be32toh(q->w[word + 1]);
}

/* The WQE writes row i of the chunk. */
static void check_row(const struct play *p, const struct ep_mlx5_wqe *q, uint32_t chunk, uint32_t i)
{
	CHECK_INT(be32toh(q->w[8]), HT_POST_ROW);
	CHECK_INT(address(q, 4) - NET_ADDR, (chunk % p->net * 8 + i) * HT_POST_ROW);
	CHECK_INT(address(q, 10) - STAGE_ADDR, (chunk % p->stage * 8 + i) * HT_POST_ROW);
}

/*
 * Rows of chunks [chunk, end), and the signal behind them, the only one that asks for a completion.
 */
static uint64_t check_load(const struct play *p, const struct memory *m, uint32_t q, uint64_t index,
			   uint32_t chunk, uint32_t end)
{
	const struct ep_mlx5_wqe *sq = m->rows[q].sq;

	for (; chunk < end; chunk++) {
		for (uint32_t i = 0; i < 8 && !(p->empty >> chunk & 1); i++) {
			CHECK(!(be32toh(sq[index].w[2]) & EP_MLX5_CE_ALWAYS));
			check_row(p, &sq[index++], chunk, i);
		}
	}
	CHECK_INT(be32toh(sq[index].w[8]), EP_MLX5_INLINE | 8);
	CHECK_INT(address(&sq[index], 4) - SIGNAL_ADDR,
		  offsetof(struct heap, signal) + 8 * (EP_HT_ROWS + q));
	CHECK(be32toh(sq[index].w[2]) & EP_MLX5_CE_ALWAYS);
	CHECK_INT(sq[index].w[9], end + 1);
	CHECK_INT(sq[index].w[10], HT_POST_EPOCH);
	return index + 1;
}

/* Each bunch is on its queue. */
static void check_queues(const struct play *p, const struct memory *m)
{
	uint64_t index[EP_HT_MOST_QUEUES] = { 0 }, all = 0;
	uint32_t bunch = 1u << ep_ht_bunch_shift(p->stage), chunk = 0, n = 0;

	for (; p->says[n]; n++) {
		uint32_t q = (p->says[n] - 2) / bunch % p->queues;

		index[q] = check_load(p, m, q, index[q], chunk, p->says[n] - 1);
		chunk = p->says[n] - 1;
	}
	for (uint32_t q = 0; q < p->queues; q++) {
		CHECK_INT(m->rows[q].index, index[q]);
		CHECK_INT(m->qp[m->remote.queues + EP_HT_ROWS + q].done, index[q]);
		all += index[q];
	}
	printf("%s: %llu rows, %u doorbells\n", p->what, (unsigned long long)(all - n), n);
}

static void play(const struct play *p)
{
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 }, .blockDim = { 64, 1, 1 } };
	struct ht_post_args a = p->a;
	void *list[] = { &a };
	struct memory *m;

	check_context("%s", p->what);
	NEED_CUDA(cudaMallocHost((void **)&m, sizeof(*m)));
	memset(m, 0, sizeof(*m));
	place_queues(p, m);
	place_group(m, &a.c);
	place_areas(p, &a.c);
	for (uint32_t c = 0; c < CHUNKS; c++) {
		m->masks[c] = p->empty >> c & 1 ? 0 : 0xff;
	}
	a.c.num_tokens = 8 * a.chunks;
	a.early = &m->early;
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ht_post_kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	CHECK_INT(m->records[EP_RECORD_FATAL].valid, 0);
	CHECK_INT(m->early, 0);
	check_queues(p, m);
	NEED_CUDA(cudaFreeHost(m));
}

#define NODES 7 /* beside the own one */
#define MOST 8

struct turns {
	uint32_t node[MOST * (NODES + 1)], index[MOST * (NODES + 1)], ranks[MOST * NODES];
	uint32_t first[NODES + 1];
	int32_t posts[MOST * (NODES + 1)], turns[MOST * (NODES + 1)];
};

/* Node 0 is the own one. The last of the others have `less` ranks less than 8. */
static void turns(uint32_t less)
{
	cudaLaunchConfig_t config = { .gridDim = { HT_TURN_BLOCKS, 1, 1 },
				      .blockDim = { 32, 1, 1 } };
	struct ht_turn_args a = { .c.remote = { .nodes = NODES, .most = MOST } };
	uint32_t nranks = 0, ranks[MOST + 1] = { 0 };
	void *list[] = { &a };
	struct turns *t;

	check_context("turns of nodes of 8, the last with %u", MOST - less);
	NEED_CUDA(cudaMallocHost((void **)&t, sizeof(*t)));
	memset(t, 0xff, sizeof(*t));
	t->first[0] = 0;
	for (uint32_t k = 0; k <= NODES; k++) {
		for (uint32_t i = 0; i < MOST - (k == NODES ? less : 0); i++) {
			t->node[nranks] = k ? k - 1 : EP_HT_NONE;
			t->index[nranks] = i;
			if (k) {
				t->ranks[nranks - MOST] = nranks;
			}
			nranks++;
		}
		t->first[k] = nranks - MOST;
	}
	a.c.g.nranks = nranks;
	a.c.remote.node = t->node;
	a.c.remote.index = t->index;
	a.c.remote.remote_ranks = t->ranks;
	a.c.remote.remote_first = t->first;
	a.posts = t->posts;
	a.turns = t->turns;
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ht_turn_kernel, list));
	NEED_CUDA(cudaDeviceSynchronize());
	for (uint32_t r = MOST; r < nranks; r++) {
		uint32_t block = 1u << t->posts[r], *mine = &ranks[t->index[r]];

		CHECK(t->posts[r] >= 0 && t->posts[r] == t->turns[r]);
		CHECK(!(*mine & block)); /* peers of one index are those of a rank's flows */
		*mine |= block;
	}
	NEED_CUDA(cudaFreeHost(t));
}

static int main_ht_post(int argc, char **argv)
{
	static const struct play plays[] = {
		{ "all is staged", { .chunks = 24, .staged = 24 }, 32, 64, 1, 0, { 9, 17, 25 } },
		{ "all is staged, four queues",
		  { .chunks = 56, .staged = 56 },
		  64,
		  64,
		  4,
		  0,
		  { 17, 33, 49, 57 } },
		{ "one chunk after another",
		  { .chunks = 4, .staged = 1, .again = 1 },
		  32,
		  64,
		  1,
		  0,
		  { 2, 3, 4, 5 } },
		{ "some are staged",
		  { .chunks = 24, .staged = 5, .again = 19 },
		  32,
		  64,
		  4,
		  0,
		  { 6, 9, 17, 25 } },
		{ "the receiver has room for ten",
		  { .chunks = 24, .staged = 24, .credits = 10 },
		  32,
		  10,
		  2,
		  0,
		  { 9, 11, 17, 25 } },
		{ "nothing of some travels",
		  { .chunks = 24, .staged = 24 },
		  32,
		  64,
		  1,
		  0xff12,
		  { 9, 25 } },
		{ "the stage is used again",
		  { .chunks = 48, .staged = 32, .again = 16, .holds = 24 },
		  32,
		  64,
		  4,
		  0,
		  { 9, 17, 25, 33, 41, 49 } },
		{ "the second queue is late",
		  { .chunks = 48, .staged = 32, .again = 16, .holds = 24, .apart = 32 },
		  32,
		  64,
		  2,
		  0,
		  { 9, 17, 25, 33, 41, 49 } },
		{ "stage and ring are as small as can be",
		  { .chunks = 6, .staged = 2, .again = 1, .credits = 2, .holds = 2 },
		  2,
		  2,
		  2,
		  0,
		  { 2, 3, 4, 5, 6, 7 } },
	};

	for (size_t i = 0; i < sizeof(plays) / sizeof(plays[0]); i++) {
		play(&plays[i]);
	}
	turns(0);
	turns(5);
	return check_end();
}

/*
 * A routing is in handle memory if no block has failed, whether the block that leaves it there
 * comes first or the one that fails; and what an earlier routing has left does not matter.
 */

#define STAMP UINT64_C(0x123456789abcdef)

struct stamp_memory {
	struct ep_ht_head head;
	uint32_t rows;
	int32_t total;
};

static void run(struct stamp_memory *m, enum ht_stamp_failure failure, uint64_t before,
		uint64_t after)
{
	struct ht_stamp_args a;
	void *args[] = { &a };
	cudaLaunchConfig_t config = { .gridDim = { 1, 1, 1 }, .blockDim = { 32, 1, 1 } };

	memset(&a, 0, sizeof(a));
	m->head.stamp = before;
	m->rows = 77;
	m->total = -1;
	a.a.c.h.head = &m->head;
	a.a.c.stamp = STAMP;
	a.a.counters.total = &m->total;
	a.a.counters.total_bytes = sizeof(m->total);
	a.rows = &m->rows;
	a.failure = failure;
	NEED_CUDA(cudaLaunchKernelExC(&config, (const void *)ht_stamp_kernel, args));
	NEED_CUDA(cudaDeviceSynchronize());
	CHECK(m->head.stamp == after, "failure %d: %llx", failure,
	      (unsigned long long)m->head.stamp);
	CHECK_INT(m->total, 77);
}

static int main_ht_stamp(int argc, char **argv)
{
	static const uint64_t before[] = { 0, STAMP, STAMP + 2, EP_HT_NO_STAMP };
	struct stamp_memory *m;

	NEED_CUDA(cudaMallocHost((void **)&m, sizeof(*m)));
	for (size_t i = 0; i < sizeof(before) / sizeof(*before); i++) {
		run(m, HT_STAMP_NONE, before[i], STAMP);
		run(m, HT_STAMP_BEFORE, before[i], EP_HT_NO_STAMP);
		run(m, HT_STAMP_AFTER, before[i], EP_HT_NO_STAMP);
	}
	NEED_CUDA(cudaFreeHost(m));
	return check_end();
}

int main(int argc, char **argv)
{
	static const struct check_case cases[] = {
		{ "ht_post", main_ht_post },
		{ "ht_stamp", main_ht_stamp },
	};

	return check_cases(argc, argv, cases, sizeof(cases) / sizeof(*cases));
}
