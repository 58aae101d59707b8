/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables for collectives as NCCL sees them: places, not names.
 *   coll LIBRARY VERSION gather SEED [RANKS]    all-gathers between ranks that are threads
 *   coll LIBRARY VERSION merged SEED [RANKS]    the same with NICs of two ports, three and one
 *   coll LIBRARY VERSION down SEED              a port of them is down
 *   coll LIBRARY VERSION flush                  reads by the second port come late
 *   coll LIBRARY VERSION rail PORT [HOW]        what goes by the fault's port fails; see
 *                                               test_rail()
 *   coll LIBRARY VERSION differ                 two ranks do not gather the same
 *   coll LIBRARY VERSION ahead                  a rank begins all that it may while another one
 *                                               does not call
 *   coll LIBRARY VERSION misuse
 *   coll LIBRARY VERSION off                    NCCL_EP_COLLNET is not set
 *   coll LIBRARY VERSION lost                   3 processes, the last one dies
 *   coll LIBRARY VERSION fault TEXT             3 processes, the last one's NIC fails, of which it
 *                                               says TEXT
 */
#include <pthread.h>
#include <signal.h>
#include <unistd.h>
#include "net/coll_rig.h"

#define RANKS 8
#define GATHERS 40
#define LONGEST 4000 /* bytes of a rank */

static int nranks;
static uint64_t seed;

/* ---- gathers ---- */

static uint64_t any(uint64_t *state)
{
	*state = *state * 6364136223846793005ull + 1442695040888963407ull;
	return *state >> 33;
}

/* The same on all ranks. */
static struct window window_of(int number)
{
	uint64_t state = seed * 1000 + (uint64_t)number, all;
	struct window w;

	any(&state);
	w.each = 1 + any(&state) % LONGEST;
	all = w.each * (uint64_t)nranks;
	switch (any(&state) % 4) {
	case 0: /* all of it, */
		w.offset = 0;
		w.bytes = all;
		break;
	case 1: /* some of one rank, */
		w.offset = any(&state) % all;
		w.bytes = 1 + any(&state) % (all - w.offset < 10 ? all - w.offset : 10);
		break;
	default: /* or any */
		w.offset = any(&state) % all;
		w.bytes = 1 + any(&state) % (all - w.offset);
	}
	return w;
}

struct one {
	uint8_t *to, *from;
	void *to_mr, *from_mr, *request;
	struct window w;
	bool in_place;
};

static uint8_t handle[RANKS][NET_HANDLE] __attribute__((aligned(8)));
static void *listener[RANKS];

static size_t mine_from(const struct window *w, int rank)
{
	size_t from = (size_t)rank * w->each;

	return from > w->offset ? from : w->offset;
}

static size_t mine_bytes(const struct window *w, int rank)
{
	size_t from = mine_from(w, rank), to = (size_t)(rank + 1) * w->each;

	to = to < w->offset + w->bytes ? to : w->offset + w->bytes;
	return to > from ? to - from : 0;
}

static void begin(void *coll, int rank, int number, struct one *o, uint8_t *to, uint8_t *from)
{
	struct part parts[3] = { { 0 } };
	size_t bytes, done = 0;
	uint64_t until = net_now_ms() + 30000;
	int n;

	o->w = window_of(number);
	o->to = to;
	o->from = from;
	memset(to, 0xee, o->w.bytes + 16);
	o->in_place = number % 5 == 0;
	bytes = mine_bytes(&o->w, rank);
	if (o->in_place) {
		o->from = to + (bytes ? mine_from(&o->w, rank) - o->w.offset : 0);
	}
	for (size_t i = 0; i < bytes; i++) {
		o->from[i] = net_byte((uint64_t)(number * RANKS + rank),
				      mine_from(&o->w, rank) + i - (size_t)rank * o->w.each);
	}
	/* Memory in pieces; ranks need not have the same. */
	n = number % 3 == 1 ? 1 + (number + rank) % 3 : 1;
	for (int i = 0; i < n; i++) {
		parts[i].size = i == n - 1 ? o->w.bytes - done : o->w.bytes / (size_t)(n + 1);
		parts[i].at = to + done;
		parts[i].mr = o->to_mr;
		done += parts[i].size;
	}
	o->request = NULL;
	while (!o->request) {
		NET_NEED(net_now_ms() < until, "nothing can be gathered");
		CHECK_INT(all_gather(coll, o->from, o->in_place ? o->to_mr : o->from_mr, n, parts,
				     &o->w, &o->request),
			  NET_OK);
	}
}

static void end(int number, struct one *o)
{
	int size = -1;

	CHECK_INT(wait_request(o->request, &size), NET_OK);
	CHECK_INT(size, o->w.bytes);
	for (size_t i = 0; i < o->w.bytes; i++) {
		size_t at = o->w.offset + i, from = at / o->w.each;
		uint8_t want = net_byte((uint64_t)(number * RANKS) + from, at % o->w.each);

		if (o->to[i] != want) {
			CHECK(o->to[i] == want, "gather %d, byte %zu of %zu, of rank %zu", number,
			      i, o->w.bytes, from);
			break;
		}
	}
	for (int i = 0; i < 16; i++) {
		CHECK(o->to[o->w.bytes + (size_t)i] == 0xee, "behind the window");
	}
}

static void *open_coll(int rank)
{
	void *handles[RANKS], *coll = NULL;

	for (int r = 0; r < nranks; r++) {
		handles[r] = handle[r];
	}
	NET_NEED(join(handles, nranks, rank, listener[rank], &coll) == NET_OK, "%s",
		 net_log_last());
	return coll;
}

#define UNDER_WAY 8 /* as NCCL has them */
#define MOST 16

static void *gather_rank(void *arg)
{
	int rank = (int)(intptr_t)arg, supported = 1;
	size_t room = (size_t)LONGEST * (size_t)nranks + 64;
	uint8_t *to = malloc(UNDER_WAY * room), *from = malloc(UNDER_WAY * room);
	struct one one[UNDER_WAY];
	void *coll, *to_mr, *from_mr, *request;

	check_context("version %d, rank %d", version, rank);
	NEED(to && from);
	coll = open_coll(rank);
	CHECK_INT(reg(coll, to, UNDER_WAY * room, &to_mr), NET_OK);
	CHECK_INT(reg(coll, from, UNDER_WAY * room, &from_mr), NET_OK);
	CHECK_INT(CALL(C_SUPPORT, int, int, int *)(7, 0, &supported), NET_OK);
	CHECK_INT(supported, 0);
	for (int i = 0; i < GATHERS + UNDER_WAY; i++) {
		struct one *o = &one[i % UNDER_WAY];

		if (i >= UNDER_WAY) {
			end(i - UNDER_WAY, o);
		}
		if (i < GATHERS) {
			o->to_mr = to_mr;
			o->from_mr = from_mr;
			begin(coll, rank, i, o, to + (size_t)(i % UNDER_WAY) * room + 3,
			      from + (size_t)(i % UNDER_WAY) * room + 1);
		}
	}
	/* (host memory needs no flush) */
	CHECK_INT(CALL(C_FLUSH, void *, void *, int, void *, void **)(coll, to, 100, to_mr,
								      &request),
		  NET_OK);
	CHECK(!request);
	CHECK_INT(CALL(C_DEREG, void *, void *)(coll, to_mr), NET_OK);
	CHECK_INT(CALL(C_CLOSE, void *)(coll), NET_OK);
	CHECK_INT(CALL(C_DEREG, void *, void *)(coll, from_mr), NET_OK);
	free(to);
	free(from);
	return NULL;
}

/* Each rank in a thread; they take the NICs in turn. */
static void run_ranks(void *(*each)(void *rank), const int *nic, int nnics)
{
	pthread_t thread[RANKS];

	for (int r = 0; r < nranks; r++) {
		CHECK_INT(listen_at(nic[r % nnics], handle[r], &listener[r]), NET_OK);
	}
	for (intptr_t r = 0; r < nranks; r++) {
		NEED(pthread_create(&thread[r], NULL, each, (void *)r) == 0);
	}
	for (int r = 0; r < nranks; r++) {
		pthread_join(thread[r], NULL);
		CHECK_INT(CALL(C_CLOSE_LISTEN, void *)(listener[r]), NET_OK);
	}
}

static void test_gather(void)
{
	static const int nics[] = { 0, 1 };

	run_ranks(gather_rank, nics, 2);
	CHECK_INT(net_log_count(2), 0);
}

/* ---- NICs of several ports ---- */

static const int two[] = { 0, 1 }, three[] = { 2, 3, 1 };

/* NCCL has ports merged by this table, and by the network's one the same. */
static void test_merged(const char *library)
{
	int nics[3] = { 0, 0, 3 }, count, dev;
	struct net net;

	CHECK_INT(devices(), 4);
	nics[0] = merge(two, 2);
	nics[1] = merge(three, 3);
	CHECK(nics[0] == 4 && nics[1] == 5, "%d, %d", nics[0], nics[1]);
	CHECK_INT(devices(), 6);
	net_load(&net, library, version);
	CHECK_INT(net_devices(&net, &count), NET_OK);
	CHECK_INT(count, 4);
	CHECK_INT(net_merge(&net, two, 2, &dev), NET_OK);
	CHECK_INT(dev, 4);
	CHECK_INT(net_devices(&net, &count), NET_OK);
	CHECK_INT(count, 5);
	run_ranks(gather_rank, nics, 3);
	/* TEST_NET_FAILS=1: a port does, and the others take over; nothing else may happen. */
	if (getenv("TEST_NET_FAILS")) {
		CHECK(*net_log_find(2, "; the connection goes on over "), "nothing has failed");
	} else {
		CHECK_INT(net_log_count(2), 0);
	}
}

/* A port that is down is done without, and that is said. */
static void test_down(void)
{
	int nics[2] = { 0, 3 };

	net_faults_set("port_down:nic=0");
	nics[0] = merge(two, 2);
	run_ranks(gather_rank, nics, 2);
	/* the peer may speak first */
	CHECK_HAS(net_log_find(2, "the port is down"), "mlx5_0:1 QP");
	CHECK_HAS(net_log_find(2, "the port is down"), "the connection goes on over mlx5_1:1");
	net_faults_close();
}

#define LATE_MS 60

/* Data may have come by any port: a flush ends when all have brought what they had. */
static void test_flush(void)
{
	static uint8_t to[4096];
	uint64_t began;
	void *coll, *mr, *request = NULL;
	int done;

	CHECK_INT(listen_at(merge(two, 2), handle[0], &listener[0]), NET_OK);
	coll = open_coll(0);
	/* (called a GPU's, so that flushes are made) */
	CHECK_INT(CALL(C_REG, void *, void *, size_t, int, void **)(coll, to, sizeof(to), NET_CUDA,
								    &mr),
		  NET_OK);
	for (int i = 0; i < 3; i++) {
		began = net_now_ms();
		CHECK_INT(CALL(C_FLUSH, void *, void *, int, void *, void **)(coll, to, 100, mr,
									      &request),
			  NET_OK);
		NEED(request);
		CHECK_INT(wait_request(request, NULL), NET_OK);
		CHECK(net_now_ms() - began >= LATE_MS, "%llu ms",
		      (unsigned long long)(net_now_ms() - began));
		CHECK_INT(test_request(request, &done, NULL), NET_ARGUMENT);
		CHECK_INT(net_log_count(2), i + 1);
	}
	CHECK_INT(CALL(C_DEREG, void *, void *)(coll, mr), NET_OK);
	CHECK_INT(CALL(C_CLOSE, void *)(coll), NET_OK);
	CHECK_INT(CALL(C_CLOSE_LISTEN, void *)(listener[0]), NET_OK);
}

#define RAIL_AHEAD 16 /* gathers under way: more messages than a queue pair may have room for */

static int rail_gathers[2]; /* that each rank has ended */

/* Both ranks' data, in four pieces. Returns the code of the call. */
static int rail_begin(void *coll, int rank, int number, uint8_t *to, void *mr, void **request)
{
	const struct window all = { LONGEST, 0, 2 * LONGEST };
	struct part part[4];

	memset(to, 0xee, 2 * LONGEST);
	net_fill(to + rank * LONGEST, LONGEST, (uint64_t)(2 * number + rank));
	for (int i = 0; i < 4; i++) {
		part[i] = (struct part){ mr, to + i * LONGEST / 2, LONGEST / 2 };
	}
	/* (in place: this rank sends nothing to itself) */
	return all_gather(coll, to + rank * LONGEST, mr, version == 12 ? 1 + 3 * (number % 2) : 1,
			  version == 12 && number % 2 ? part
						      : &(struct part){ mr, to, 2 * LONGEST },
			  &all, request);
}

/* Gathers, of which each is divided among the ports, until one fails. */
static void *rail_rank(void *arg)
{
	static uint8_t to[2][RAIL_AHEAD][2 * LONGEST];
	int rank = (int)(intptr_t)arg, rc = NET_OK, begun = 0, *over = &rail_gathers[rank];
	void *coll = open_coll(rank), *request[RAIL_AHEAD], *mr;

	CHECK_INT(reg(coll, to[rank], sizeof(to[rank]), &mr), NET_OK);
	while (rc == NET_OK && *over < GATHERS) {
		uint8_t *at = to[rank][*over % RAIL_AHEAD];

		if (begun < GATHERS && begun < *over + RAIL_AHEAD) {
			rc = rail_begin(coll, rank, begun, to[rank][begun % RAIL_AHEAD], mr,
					&request[begun % RAIL_AHEAD]);
			begun += rc == NET_OK;
			NET_NEED(rc != NET_OK || request[(begun - 1) % RAIL_AHEAD], "no request");
			continue;
		}
		rc = wait_request(request[*over % RAIL_AHEAD], NULL);
		if (rc == NET_OK) {
			CHECK_INT(net_wrong(at + !rank * LONGEST, LONGEST,
					    (uint64_t)(2 * *over + !rank)),
				  0);
			++*over;
		}
	}
	CHECK(rc == NET_OK || rc == NET_REMOTE, "%d", rc);
	CHECK_INT(CALL(C_CLOSE, void *)(coll), NET_OK);
	CHECK_INT(CALL(C_DEREG, void *, void *)(coll, mr), NET_OK);
	return NULL;
}

/*
 * Every port carries something, and when none of its packets comes the other one does. `how`:
 * "all": nor that.
 */
static void test_rail(int port, const char *how)
{
	static const int others[] = { 2, 3 };
	int nics[2];
	char text[32];

	nics[0] = merge(two, 2);
	nics[1] = merge(others, 2);
	run_ranks(rail_rank, nics, 2);
	snprintf(text, sizeof(text), "mlx5_%d:1 QP", port);
	if (!strcmp(how, "all")) {
		CHECK(rail_gathers[0] < GATHERS && rail_gathers[1] < GATHERS, "%d, %d gathers",
		      rail_gathers[0], rail_gathers[1]);
		CHECK_HAS(net_log_find(2, "retry counter"), "mlx5_");
		CHECK_HAS(net_log_find(2, "retry counter"), " to rank ");
		return;
	}
	CHECK(rail_gathers[0] == GATHERS && rail_gathers[1] == GATHERS, "%d, %d gathers",
	      rail_gathers[0], rail_gathers[1]);
	CHECK_HAS(net_log_find(2, "the connection goes on over"), "mlx5_");
	CHECK(*net_log_find(2, text), "%s", net_log_last());
}

/* ---- ranks that do not gather the same ---- */

/* Each of the two has 100 bytes of either window. */
static void *differ_rank(void *arg)
{
	int rank = (int)(intptr_t)arg, rc;
	static const struct window w[] = { { 100, 0, 200 }, { 200, 100, 200 } };
	uint8_t to[200], from[100] = { 0 };
	struct part part = { .at = to, .size = 200 };
	void *coll = open_coll(rank), *from_mr, *request;

	CHECK_INT(reg(coll, to, sizeof(to), &part.mr), NET_OK);
	CHECK_INT(reg(coll, from, sizeof(from), &from_mr), NET_OK);
	rc = all_gather(coll, from, from_mr, 1, &part, &w[rank], &request);
	CHECK_INT(rc == NET_OK ? wait_request(request, NULL) : rc, NET_REMOTE);
	CHECK_INT(CALL(C_CLOSE, void *)(coll), NET_OK);
	return NULL;
}

static void test_differ(void)
{
	static const int nics[] = { 0, 1 };

	run_ranks(differ_rank, nics, 2);
	CHECK_HAS(net_log_find(2, "all ranks must gather the same"), "gathers something else");
}

/* ---- a rank that is ahead ---- */

static void *colls[RANKS];

static void *open_rank(void *arg)
{
	int rank = (int)(intptr_t)arg;

	colls[rank] = open_coll(rank);
	return NULL;
}

#define AHEAD 40
#define SMALL 16

struct rank {
	uint8_t to[AHEAD][SMALL], from[AHEAD][SMALL];
	void *to_mr, *from_mr, *request[AHEAD];
	int begun, ended;
};

/* Begins the next gather if it may, and looks whether the oldest has ended. */
static void step(struct rank *ranks, int r)
{
	static const struct window last = { SMALL, 2 * SMALL, SMALL };
	struct rank *me = &ranks[r];
	int done = 0, size;

	if (me->begun < AHEAD) {
		struct part part = { me->to_mr, me->to[me->begun], SMALL };

		NET_NEED(all_gather(colls[r], me->from[me->begun], me->from_mr, 1, &part, &last,
				    &me->request[me->begun]) == NET_OK,
			 "%s", net_log_last());
		me->begun += me->request[me->begun] != NULL;
	}
	if (me->ended < me->begun) {
		NET_NEED(test_request(me->request[me->ended], &done, &size) == NET_OK, "%s",
			 net_log_last());
		CHECK(!done || memcmp(me->to[me->ended], ranks[2].from[me->ended], SMALL) == 0);
		me->ended += done;
	}
}

/*
 * What is gathered is the last rank's alone, so that the first two owe each other nothing. The
 * second one, which has begun the first gather, does not call. The last one goes on as far as it
 * may, and so does the first one.
 */
static void test_ahead(void)
{
	struct rank *ranks = calloc(3, sizeof(*ranks));
	uint64_t until;
	int more = 0;
	pthread_t thread[3];

	NEED(ranks);
	for (int r = 0; r < 3; r++) {
		CHECK_INT(listen_at(r % 2, handle[r], &listener[r]), NET_OK);
	}
	for (intptr_t r = 0; r < 3; r++) {
		NEED(pthread_create(&thread[r], NULL, open_rank, (void *)r) == 0);
	}
	for (int r = 0; r < 3; r++) {
		pthread_join(thread[r], NULL);
		net_fill(ranks[r].from[0], sizeof(ranks[r].from), (uint64_t)r);
		CHECK_INT(reg(colls[r], ranks[r].to, sizeof(ranks[r].to), &ranks[r].to_mr), NET_OK);
		CHECK_INT(reg(colls[r], ranks[r].from, sizeof(ranks[r].from), &ranks[r].from_mr),
			  NET_OK);
	}
	step(ranks, 1);
	until = net_now_ms() + 20000;
	while (more < 1000) {
		NET_NEED(net_now_ms() < until, "%d gathers ended", ranks[0].ended);
		step(ranks, 0);
		step(ranks, 2);
		more += ranks[0].ended > MOST;
	}
	CHECK(ranks[2].ended == 1 && ranks[2].begun == MOST + 1, "%d, %d", ranks[2].ended,
	      ranks[2].begun);
	CHECK(ranks[0].ended == MOST + 1 && ranks[0].begun > ranks[0].ended, "%d, %d",
	      ranks[0].ended, ranks[0].begun);
	until = net_now_ms() + 30000;
	while (ranks[0].ended < AHEAD || ranks[1].ended < AHEAD || ranks[2].ended < AHEAD) {
		NET_NEED(net_now_ms() < until, "gathers do not end");
		for (int r = 0; r < 3; r++) {
			step(ranks, r);
		}
	}
	for (int r = 0; r < 3; r++) {
		CHECK_INT(CALL(C_CLOSE, void *)(colls[r]), NET_OK);
		CHECK_INT(CALL(C_DEREG, void *, void *)(colls[r], ranks[r].to_mr), NET_OK);
		CHECK_INT(CALL(C_DEREG, void *, void *)(colls[r], ranks[r].from_mr), NET_OK);
		CHECK_INT(CALL(C_CLOSE_LISTEN, void *)(listener[r]), NET_OK);
	}
	CHECK_INT(net_log_count(2), 0);
	free(ranks);
}

/* ---- misuse, by one rank alone ---- */

static void test_misuse(void)
{
	static const struct {
		struct window w;
		int n;
		size_t size;
	} bad[] = {
		{ { 100, 0, 101 }, 1, 101 },          { { 100, 101, 0 }, 1, 0 },
		{ { 100, 50, 51 }, 1, 51 },           { { 100, 0, 100 }, 0, 100 },
		{ { 100, 0, 100 }, 5, 20 },           { { 100, 0, 100 }, 1, 99 },
		{ { 100, 0, 100 }, -1, 100 },         { { 100, (size_t)-1, 2 }, 1, 2 },
		{ { 100000, 0, 100000 }, 1, 100000 }, /* more than is registered */
	};
	static uint8_t to[4096], from[4096];
	struct part parts[5];
	struct window good = { 100, 0, 100 };
	void *coll, *mr, *other, *request, *first, *handles[1] = { handle[1] };
	int done;

	CHECK_INT(listen_at(0, handle[0], &listener[0]), NET_OK);
	CHECK_INT(listen_at(0, handle[1], &listener[1]), NET_OK);
	CHECK_INT(join(handles, 1, 0, listener[0], &other), NET_ARGUMENT);
	CHECK_HAS(net_log_last(), "the handle of rank 0 is not its listener's");
	CHECK_INT(CALL(C_CLOSE_LISTEN, void *)(listener[1]), NET_OK);
	coll = open_coll(0);
	CHECK_INT(reg(coll, to, sizeof(to), &mr), NET_OK);
	CHECK_INT(reg(coll, from, sizeof(from), &other), NET_OK);
	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		check_context("window %zu", i);
		for (int k = 0; k < 5; k++) {
			parts[k] = (struct part){ mr, to, bad[i].size };
		}
		request = (void *)1;
		CHECK_INT(all_gather(coll, from, other, bad[i].n, parts, &bad[i].w, &request),
			  NET_ARGUMENT);
		CHECK(!request);
	}
	parts[0] = (struct part){ mr, to, 100 };
	CHECK_INT(all_gather(mr, from, other, 1, parts, &good, &request), NET_ARGUMENT);
	CHECK_INT(all_gather(coll, from, NULL, 1, parts, &good, &request), NET_ARGUMENT);
	CHECK_INT(all_gather(coll, from + 4000, other, 1, parts, &good, &request), NET_ARGUMENT);
	parts[0].mr = coll;
	CHECK_INT(all_gather(coll, from, other, 1, parts, &good, &request), NET_ARGUMENT);
	parts[0].mr = mr;
	from[99] = 7;
	CHECK_INT(all_gather(coll, from, other, 1, parts, &good, &first), NET_OK);
	CHECK_INT(wait_request(first, NULL), NET_OK);
	CHECK_INT(to[99], 7);
	CHECK_INT(test_request(first, &done, NULL), NET_ARGUMENT);
	CHECK_INT(test_request(coll, &done, NULL), NET_ARGUMENT);
	CHECK_INT(test_request(NULL, &done, NULL), NET_ARGUMENT);
	request = (void *)1;
	CHECK_INT(CALL(C_ALLREDUCE, void *, void *, void *, size_t, int, int, void *, void *,
		       void **)(coll, from, to, 10, 7, 0, other, mr, &request),
		  NET_USAGE);
	CHECK(!request);
	CHECK_INT(CALL(C_REDUCESCATTER, void *, int, void *, void *, size_t, size_t, size_t, int,
		       int, void *, void **)(coll, 1, parts, from, 10, 0, 10, 7, 0, mr, &request),
		  NET_USAGE);
	/* So many are under way at most; then NCCL tries again. */
	for (int i = 0; i < MOST + 1; i++) {
		CHECK_INT(all_gather(coll, from, other, 1, parts, &good, &request), NET_OK);
		CHECK(!request == (i == MOST), "%d", i);
	}
	CHECK_INT(CALL(C_CLOSE_LISTEN, void *)(coll), NET_ARGUMENT);
	CHECK_INT(CALL(C_CLOSE, void *)(listener[0]), NET_ARGUMENT);
	CHECK_INT(CALL(C_CLOSE, void *)(coll), NET_OK);
	CHECK_INT(CALL(C_CLOSE, void *)(coll), NET_ARGUMENT);
	CHECK_INT(all_gather(coll, from, other, 1, parts, &good, &request), NET_ARGUMENT);
	CHECK_INT(test_request(first, &done, NULL), NET_ARGUMENT);
	CHECK_INT(CALL(C_DEREG, void *, void *)(coll, mr), NET_OK);
	CHECK_INT(CALL(C_DEREG, void *, void *)(coll, other), NET_OK);
	CHECK_INT(CALL(C_CLOSE_LISTEN, void *)(listener[0]), NET_OK);
}

static void test_off(const char *library)
{
	struct net net;
	int count = -1;

	/* NCCL makes the network's context first. */
	net_load(&net, library, 12);
	CHECK_INT(net_init(&net, -1), NET_OK);
	CHECK(init() != NET_OK && !instance);
	CHECK(*net_log_find(3, "no hardware in the network"), "%s", net_log_last());
	CHECK_INT(net_log_count(2), 0);
	CHECK_INT(CALL(C_DEVICES, int *)(&count), NET_OK);
	CHECK_INT(count, 0);
	finalize();
	CHECK_INT(net_finalize(&net), NET_OK);
}

/* ---- a rank that dies, or whose NIC fails: all that are left know it, by name ---- */

/*
 * The only line says it: on the NIC's own rank why, on others that this rank is lost, within two
 * seconds.
 */
static void check_loss(int rank, const char *fault)
{
	uint64_t now = net_now_ms(), failed_at;

	CHECK_INT(net_log_count(2), 1);
	CHECK_HAS(net_log_find(2, ""), !fault ? "has ended" : rank == 2 ? fault : "");
	CHECK(rank == 2 || strstr(net_log_find(2, ""), "rank 2 ("));
	if (rank == 2) {
		net_publish("failed", &now, sizeof(now));
	} else if (fault) {
		net_await("failed", &failed_at, sizeof(failed_at));
		CHECK(now < failed_at + 2000, "%llu ms", (unsigned long long)(now - failed_at));
	}
}

/* `fault` NULL: it dies. */
static void test_lost(int rank, const char *fault)
{
	static uint8_t to[3 * 1000], from[1000];
	struct window w = { 1000, 0, 3000 };
	struct part part = { .at = to, .size = 3000 };
	void *handles[3], *coll, *from_mr, *other, *request = NULL;
	uint64_t began;
	char name[16];
	int rc = NET_OK;

	CHECK_INT(listen_at(0, handle[rank], &listener[rank]), NET_OK);
	snprintf(name, sizeof(name), "handle%d", rank);
	net_publish(name, handle[rank], NET_HANDLE);
	for (int r = 0; r < 3; r++) {
		snprintf(name, sizeof(name), "handle%d", r);
		net_await(name, handle[r], NET_HANDLE);
		handles[r] = handle[r];
	}
	NET_NEED(join(handles, 3, rank, listener[rank], &coll) == NET_OK, "%s", net_log_last());
	CHECK_INT(reg(coll, to, sizeof(to), &part.mr), NET_OK);
	CHECK_INT(reg(coll, from, sizeof(from), &from_mr), NET_OK);
	for (int i = 0; i < 20; i++) {
		CHECK_INT(all_gather(coll, from, from_mr, 1, &part, &w, &request), NET_OK);
		CHECK_INT(wait_request(request, NULL), NET_OK);
	}
	/* (the NIC of a rank ends with it: its last acknowledgements must have arrived) */
	snprintf(name, sizeof(name), "well%d", rank);
	net_publish(name, "", 1);
	if (rank == 2 && !fault) {
		net_await("well0", name, 1);
		net_await("well1", name, 1);
		kill(getpid(), SIGKILL);
	}
	began = net_now_ms();
	while (rc == NET_OK && net_now_ms() - began < 10000) {
		rc = all_gather(coll, from, from_mr, 1, &part, &w, &request);
		rc = rc == NET_OK ? wait_request(request, NULL) : rc;
	}
	CHECK_INT(rc, NET_REMOTE);
	CHECK(net_now_ms() - began < 10000, "%llu ms", (unsigned long long)(net_now_ms() - began));
	check_loss(rank, fault);
	CHECK_INT(all_gather(coll, from, from_mr, 1, &part, &w, &request), NET_REMOTE);
	/* (its connections are closed, and may have been all that held the NIC) */
	CHECK_INT(reg(coll, name, sizeof(name), &other), NET_REMOTE);
	CHECK_INT(net_log_count(2), 1);
	/* Whoever is left stays until the others have seen it, too. */
	snprintf(name, sizeof(name), "seen%d", rank);
	net_publish(name, "", 1);
	for (int r = 0; r < (fault ? 3 : 2); r++) {
		snprintf(name, sizeof(name), "seen%d", r);
		net_await(name, name, 1);
	}
	CHECK_INT(CALL(C_CLOSE, void *)(coll), NET_OK);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		int nranks; /* 0: as the command says */
		void (*test)(void);
	} plain[] = { { "gather", 0, test_gather }, { "down", 2, test_down },
		      { "flush", 1, test_flush },   { "ahead", 3, test_ahead },
		      { "differ", 2, test_differ }, { "misuse", 1, test_misuse } };

	NEED(argc > 3);
	version = atoi(argv[2]);
	if (strcmp(argv[3], "lost") == 0 && atoi(getenv("RANK")) == 2) {
		net_live_in_child();
	}
	if (strcmp(argv[3], "down") == 0) {
		net_faults_open();
	}
	load(argv[1]);
	if (strcmp(argv[3], "off") == 0) {
		test_off(argv[1]);
		return check_end();
	}
	NET_NEED(init() == NET_OK, "%s", net_log_last());
	nranks = argc > 5 ? atoi(argv[5]) : 4;
	seed = argc > 4 ? strtoull(argv[4], NULL, 0) : 1;
	for (size_t i = 0; i < sizeof(plain) / sizeof(plain[0]); i++) {
		if (strcmp(argv[3], plain[i].name) == 0) {
			nranks = plain[i].nranks ? plain[i].nranks : nranks;
			plain[i].test();
		}
	}
	if (strcmp(argv[3], "lost") == 0 || strcmp(argv[3], "fault") == 0) {
		test_lost(atoi(getenv("RANK")), argc > 4 ? argv[4] : NULL);
	} else if (strcmp(argv[3], "merged") == 0) {
		test_merged(argv[1]);
	} else if (strcmp(argv[3], "rail") == 0) {
		nranks = 2;
		test_rail(atoi(argv[4]), argc > 5 ? argv[5] : "");
	}
	finalize();
	return check_end();
}
