/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts and signals between ranks that are threads of this process, as NCCL's proxy asks for them.
 *   gin LIBRARY SEED [RANKS [SIZE [merged | merged_back [LACKS] | apart]]]
 * apart: the NICs are of different subnets. merged: the network's table has two ports merged, the
 * second one first with merged_back, and NCCL gives the number of that NIC; LACKS: what the second
 * one has not, which it is not used for alone
 */
#include <pthread.h>
#include <unistd.h>
#include "net/gin_rig.h"

#define ROUNDS 6
#define MANY 600
#define BEFORE 0xee /* what nobody has written */

static struct gin gin;
static uint64_t seed;
static size_t most = 3000; /* bytes of a put */

struct rank {
	void *coll, *window_mr, *source_mr, *signal_mr;
	uint8_t *window, *source; /* not at the beginning of a page, of no even size */
	struct net_dmabuf dmabuf; /* odd ranks have their window there */
	size_t bytes;
	uint64_t signal[2 * GIN_RANKS + 2] __attribute__((aligned(64)));
	uint64_t random;
};
static struct rank ranks[GIN_RANKS];

static uint64_t any(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 33;
}

/*
 * What rank `from` puts to `to` in a round: in two pieces side by side, the second with a signal.
 */
static size_t size_of(int from, int to, int round, int piece)
{
	uint64_t state = seed + (uint64_t)(((from * GIN_RANKS + to) * ROUNDS + round) * 2 + piece);

	any(&state);
	return any(&state) % 4 ? any(&state) % (most / 2) : (any(&state) % 3) * (most / 4);
}

static uint64_t pattern(int from, int to, int round, int piece)
{
	return seed + (uint64_t)(((from * GIN_RANKS + to) * ROUNDS + round) * 2 + piece);
}

/* Where in the window it goes. */
static size_t place_of(const struct gin_world *w, int from, int round)
{
	return ((size_t)round * (size_t)w->n + (size_t)from) * most + (size_t)(from + round) % 7;
}

static void rank_open(struct gin_world *w, int rank, struct rank *me)
{
	me->bytes = (size_t)ROUNDS * (size_t)w->n * most + 13;
	if (rank & 1) {
		net_dmabuf_make(&me->dmabuf, me->bytes);
	}
	me->window = rank & 1 ? me->dmabuf.data : (uint8_t *)malloc(me->bytes + 3) + 3;
	me->source = (uint8_t *)malloc(me->bytes + 5) + 5;
	NEED(me->window && me->source);
	memset(me->window, BEFORE, me->bytes);
	net_fill(me->source, me->bytes, (uint64_t)rank + 77);
	memset(me->signal, 0, sizeof(me->signal));
	me->random = seed * 31 + (uint64_t)rank;
	NET_NEED(gin_world_join(w, rank, &me->coll) == NET_OK, "%s", net_log_last());
	CHECK_INT(rank & 1 ? gin_reg_dmabuf(w->g, me->coll, &me->dmabuf, me->bytes, 0,
					    &me->window_mr)
			   : gin_reg(w->g, me->coll, me->window, me->bytes, 0, &me->window_mr),
		  NET_OK);
	CHECK_INT(gin_reg(w->g, me->coll, me->source, me->bytes, 0, &me->source_mr), NET_OK);
	CHECK_INT(gin_reg(w->g, me->coll, me->signal, sizeof(me->signal), GIN_FORCE_SO,
			  &me->signal_mr),
		  NET_OK);
	/* Descriptors of GPUs have 57 bits for it. */
	CHECK(((uintptr_t)me->window_mr >> 57) == 0);
}

static void rank_close(struct gin_world *w, struct rank *me)
{
	CHECK_INT(gin_dereg(w->g, me->coll, me->window_mr), NET_OK);
	CHECK_INT(gin_dereg(w->g, me->coll, me->source_mr), NET_OK);
	CHECK_INT(gin_dereg(w->g, me->coll, me->signal_mr), NET_OK);
	CHECK_INT(gin_close(w->g, GIN_CLOSE_COLL, me->coll), NET_OK);
	if (me->dmabuf.map) {
		net_dmabuf_free(&me->dmabuf);
	} else {
		free(me->window - 3);
	}
	free(me->source - 5);
}

/* All ranks are here: each has registered something, which none does before all have come. */
static void meet(struct gin_world *w, struct rank *me)
{
	uint64_t word;
	void *mr;

	CHECK_INT(gin_reg(w->g, me->coll, &word, sizeof(word), 0, &mr), NET_OK);
	CHECK_INT(gin_dereg(w->g, me->coll, mr), NET_OK);
}

static void wait_signal(const uint64_t *signal, uint64_t value)
{
	uint64_t until = net_now_ms() + 30000;

	while (__atomic_load_n(signal, __ATOMIC_ACQUIRE) < value) {
		NET_NEED(net_now_ms() < until, "signal %llu, less than %llu",
			 (unsigned long long)__atomic_load_n(signal, __ATOMIC_ACQUIRE),
			 (unsigned long long)value);
		usleep(20);
	}
}

/* The first piece plain, the second with a signal: one of each kind for each peer. */
static void put_round(struct gin_world *w, int rank, struct rank *me, int round)
{
	void *request[2 * GIN_RANKS];
	int n = 0;

	for (int to = 0; to < w->n; to++) {
		size_t a = size_of(rank, to, round, 0), b = size_of(rank, to, round, 1);
		struct gin_put put = { .from = me->source_mr,
				       .from_at = (size_t)to * most + 1,
				       .to = me->window_mr,
				       .to_at = place_of(w, rank, round),
				       .size = a,
				       .rank = (uint32_t)to };

		net_fill(me->source + put.from_at, a, pattern(rank, to, round, 0));
		net_fill(me->source + put.from_at + a, b, pattern(rank, to, round, 1));
		CHECK_INT(gin_put(w->g, me->coll, &put, &request[n]), NET_OK);
		NEED(request[n]);
		n++;
		put.size = b;
		put.from_at += a;
		put.to_at += a;
		if (b == 0) {
			put.from = put.to = NULL; /* a signal alone */
		}
		put.signal = me->signal_mr;
		put.signal_at = (size_t)(2 * rank + (to & 1)) * 8;
		put.value = 1ull << 40;
		put.op = to & 1 ? GIN_ADD : GIN_INC;
		CHECK_INT(gin_put(w->g, me->coll, &put, &request[n]), NET_OK);
		NEED(request[n]);
		n++;
	}
	/* In any order; what is done may be written over at once. */
	for (int i = n; i-- > 0;) {
		int k = (int)(any(&me->random) % (uint64_t)(i + 1));

		CHECK_INT(gin_wait(w->g, me->coll, request[k]), NET_OK);
		request[k] = request[i];
	}
	memset(me->source, 0x11, (size_t)w->n * most);
}

static void check_round(struct gin_world *w, int rank, struct rank *me, int round)
{
	uint64_t add = rank & 1 ? 1ull << 40 : 1;

	for (int from = 0; from < w->n; from++) {
		size_t a = size_of(from, rank, round, 0), b = size_of(from, rank, round, 1);
		uint8_t *at = me->window + place_of(w, from, round);

		wait_signal(&me->signal[2 * from + (rank & 1)], add * (uint64_t)(round + 1));
		CHECK_INT(net_wrong(at, a, pattern(from, rank, round, 0)), 0);
		CHECK_INT(net_wrong(at + a, b, pattern(from, rank, round, 1)), 0);
		for (size_t i = a + b; i < most - 7; i++) {
			if (at[i] != BEFORE) {
				CHECK(at[i] == BEFORE, "byte %zu behind what was put", i - a - b);
				break;
			}
		}
	}
}

/* More than a queue has room for, before anything is tested. */
static void put_many(struct gin_world *w, int rank, struct rank *me)
{
	uint32_t to = (uint32_t)((rank + 1) % w->n);
	int from = (rank + w->n - 1) % w->n;
	static void *requests[GIN_RANKS][MANY];
	void **request = requests[rank];

	for (int i = 0; i < MANY; i++) {
		struct gin_put put = { .from = me->source_mr,
				       .from_at = (uint64_t)i,
				       .to = me->window_mr,
				       .to_at = (uint64_t)i,
				       .size = 1,
				       .rank = to,
				       .signal = me->signal_mr,
				       .signal_at = 2 * GIN_RANKS * 8,
				       .value = (uint64_t)i,
				       .op = GIN_ADD };

		me->source[i] = net_byte(5, (uint64_t)(i + rank));
		CHECK_INT(gin_put(w->g, me->coll, &put, &request[i]), NET_OK);
		NEED(request[i]);
	}
	for (int i = 0; i < MANY; i++) {
		CHECK_INT(gin_wait(w->g, me->coll, request[i]), NET_OK);
	}
	wait_signal(&me->signal[2 * GIN_RANKS], (uint64_t)MANY * (MANY - 1) / 2);
	CHECK_INT(me->signal[2 * GIN_RANKS], (uint64_t)MANY * (MANY - 1) / 2);
	for (int i = 0; i < MANY; i++) {
		CHECK_INT(me->window[i], net_byte(5, (uint64_t)(i + from)));
	}
}

/*
 * Memory that is strictly ordered is filled upwards, whatever NICs may do with other memory: when
 * the last byte is there, so are all.
 */
static void put_strict(struct gin_world *w, int rank, struct rank *me)
{
	static uint8_t strict[GIN_RANKS][2048];
	volatile uint8_t *end = &strict[rank][sizeof(strict[0]) - 1];
	uint64_t until = net_now_ms() + 30000;
	void *plain, *mr, *request;

	/* (memory that is registered already in the other way is registered once more) */
	CHECK_INT(gin_reg(w->g, me->coll, strict[rank], sizeof(strict[0]), 0, &plain), NET_OK);
	CHECK_INT(gin_reg(w->g, me->coll, strict[rank], sizeof(strict[0]), GIN_FORCE_SO, &mr),
		  NET_OK);
	for (int i = 1; i <= 50; i++) {
		struct gin_put put = { .from = me->source_mr,
				       .to = mr,
				       .size = sizeof(strict[0]),
				       .rank = (uint32_t)((rank + 1) % w->n) };
		size_t wrong = 0;

		memset(me->source, i, sizeof(strict[0]));
		CHECK_INT(gin_put(w->g, me->coll, &put, &request), NET_OK);
		while (*end != i) {
			NET_NEED(net_now_ms() < until, "nothing comes");
		}
		for (size_t k = 0; k < sizeof(strict[0]); k++) {
			wrong += ((volatile uint8_t *)strict[rank])[k] != i;
		}
		CHECK_INT(wrong, 0);
		CHECK_INT(gin_wait(w->g, me->coll, request), NET_OK);
		meet(w, me);
	}
	CHECK_INT(gin_dereg(w->g, me->coll, mr), NET_OK);
	CHECK_INT(gin_dereg(w->g, me->coll, plain), NET_OK);
}

/* A signal comes behind all that was put before it, in whatever order NICs place data. */
static void put_ordered(struct gin_world *w, int rank, struct rank *me)
{
	uint64_t *signal = &me->signal[2 * GIN_RANKS + 1];
	size_t bytes = most * (size_t)w->n;

	for (int i = 1; i <= 40; i++) {
		struct gin_put put = { .from = me->source_mr,
				       .to = me->window_mr,
				       .size = bytes,
				       .rank = (uint32_t)((rank + 1) % w->n) };
		struct gin_put end = { .signal = me->signal_mr,
				       .signal_at = (2 * GIN_RANKS + 1) * 8,
				       .rank = put.rank,
				       .op = GIN_INC };
		void *request[2];
		size_t wrong = 0;

		memset(me->source, i, bytes);
		CHECK_INT(gin_put(w->g, me->coll, &put, &request[0]), NET_OK);
		CHECK_INT(gin_put(w->g, me->coll, &end, &request[1]), NET_OK);
		wait_signal(signal, (uint64_t)i);
		for (size_t k = 0; k < bytes; k++) {
			wrong += ((volatile uint8_t *)me->window)[k] != i;
		}
		CHECK_INT(wrong, 0);
		CHECK_INT(gin_wait(w->g, me->coll, request[1]), NET_OK);
		CHECK_INT(gin_wait(w->g, me->coll, request[0]), NET_OK);
		meet(w, me);
	}
}

static void *register_meanwhile(void *arg)
{
	struct rank *me = arg;
	static _Thread_local uint8_t bytes[5000];
	void *mr;

	for (int i = 0; i < 5; i++) {
		CHECK_INT(gin_reg(&gin, me->coll, bytes + i, sizeof(bytes) - 5, 0, &mr), NET_OK);
		CHECK_INT(gin_dereg(&gin, me->coll, mr), NET_OK);
	}
	return NULL;
}

static void each_rank(struct gin_world *w, int rank)
{
	struct rank *me = &ranks[rank];
	pthread_t other;

	rank_open(w, rank, me);
	for (int round = 0; round < ROUNDS; round++) {
		put_round(w, rank, me, round);
	}
	for (int round = 0; round < ROUNDS; round++) {
		check_round(w, rank, me, round);
	}
	for (int from = 0; from < w->n; from++) {
		CHECK_INT(me->signal[2 * from + (rank & 1)], ROUNDS * (rank & 1 ? 1ull << 40 : 1));
		CHECK_INT(me->signal[2 * from + !(rank & 1)], 0);
	}
	meet(w, me);
	put_many(w, rank, me);
	meet(w, me);
	put_strict(w, rank, me);
	if (w->n <= 3) {
		put_ordered(w, rank, me);
	}
	/* Other threads register memory meanwhile. */
	meet(w, me);
	NEED(pthread_create(&other, NULL, register_meanwhile, me) == 0);
	put_round(w, rank, me, 0);
	pthread_join(other, NULL);
	meet(w, me);
	rank_close(w, me);
}

/* Ranks whose NICs are of different subnets: an error on each of them. */
static void each_apart(struct gin_world *w, int rank)
{
	void *coll;

	CHECK_INT(gin_world_join(w, rank, &coll), NET_USAGE);
	CHECK(!coll);
}

static int apart(struct gin_world *w, int n)
{
	gin_world_open(w, &gin, n, 2);
	gin_world_run(w, each_apart);
	gin_world_close(w);
	CHECK_INT(net_log_count(2), n);
	CHECK_HAS(net_log_find(2, "mlx5_0 with mlx5_1:1 of rank 1 ("),
		  "of another subnet, which has no FLID");
	CHECK_INT(gin_finalize(&gin), NET_OK);
	return check_end();
}

int main(int argc, char **argv)
{
	struct gin_world world = { .merged = 0 };
	int ports[] = { 0, 1 };
	uint8_t handle[NET_HANDLE];
	void *listener;
	struct net net;
	int n;

	NEED(argc > 2);
	seed = strtoull(argv[2], NULL, 0) << 20;
	n = argc > 3 ? atoi(argv[3]) : 4;
	most = argc > 4 ? (size_t)atoi(argv[4]) : most;
	gin_load(&gin, argv[1]);
	NET_NEED(gin_init(&gin) == NET_OK, "%s", net_log_last());
	if (argc > 5 && strcmp(argv[5], "apart") == 0) {
		return apart(&world, n);
	}
	if (argc > 5) {
		if (strcmp(argv[5], "merged_back") == 0) {
			ports[0] = 1;
			ports[1] = 0;
		}
		net_load(&net, argv[1], 12);
		NEED(net_init(&net, -1) == NET_OK);
		NEED(net_merge(&net, ports, 2, &world.merged) == NET_OK);
		CHECK_INT(world.merged, 2);
	}
	if (argc > 6) {
		CHECK_INT(gin_listen(&gin, 1, handle, &listener), NET_USAGE);
		CHECK_HAS(net_log_find(2, "GIN over mlx5_1: "), argv[6]);
		CHECK_HAS(net_log_find(3, "not used for GIN: mlx5_1 "), argv[6]);
		net_log_clear();
	}
	gin_world_open(&world, &gin, n, 2);
	gin_world_run(&world, each_rank);
	gin_world_close(&world);
	CHECK_INT(net_log_count(2), 0);
	CHECK_INT(gin_finalize(&gin), NET_OK);
	CHECK(argc <= 5 || net_finalize(&net) == NET_OK);
	return check_end();
}
