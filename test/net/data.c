/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Data through a connection, every byte checked, and those around it.
 *   data LIBRARY VERSION sizes [MOST]            one message at a time, up to MOST bytes
 *   data LIBRARY VERSION traffic SEED [SLOW_US]  groups of receives with tags, many under way, a
 *                                                receiver that rests between looks
 *   data LIBRARY VERSION split                   where a message is divided: the second queue pair
 *                                                of the process has to be slow, 0.3 s each time
 *   data LIBRARY VERSION lines                   what a GPU sees that does not wait for the end
 *   data LIBRARY VERSION notice BYTES            longer messages have a notice of their own: writes
 *                                                with immediate data have to be slow, 0.3 s each
 *                                                time
 */
#include <pthread.h>
#include <unistd.h>
#include "net/rig.h"

#define GUARD 64
#define GUARD_BYTE 0xc7

static struct net net;

/* ---- sizes ---- */

static uint8_t *guarded(size_t size)
{
	uint8_t *at = aligned_alloc(64, (size + 2 * GUARD + 63) & ~(size_t)63);

	NEED(at);
	memset(at, GUARD_BYTE, size + 2 * GUARD);
	return at;
}

static void check_guards(const uint8_t *at, size_t size, const char *what)
{
	for (size_t i = 0; i < GUARD; i++) {
		CHECK(at[i] == GUARD_BYTE && at[GUARD + size + i] == GUARD_BYTE, "%s: %zu", what,
		      i);
	}
}

static void send_one(struct net_pair *pair, size_t size, size_t spare)
{
	uint8_t *from = guarded(size), *to = guarded(size + spare);
	void *from_mr, *to_mr, *send, *recv = (void *)1, *data = to + GUARD;
	size_t room = size + spare;
	int tag = 17, got[64] = { 0 };

	check_context("version %d, %zu bytes to %zu", net.version, size, room);
	net_fill(from + GUARD, size, size);
	CHECK_INT(net_reg(&net, pair->send, from, size + 2 * GUARD, NET_HOST, &from_mr), NET_OK);
	CHECK_INT(net_reg(&net, pair->recv, to, room + 2 * GUARD, NET_HOST, &to_mr), NET_OK);
	/* Nobody receives yet. */
	CHECK_INT(net_isend(&net, pair->send, from + GUARD, size, tag, from_mr, &send), NET_OK);
	CHECK(!send);
	CHECK_INT(net_irecv(&net, pair->recv, 1, &data, &room, &tag, &to_mr, &recv), NET_OK);
	CHECK(recv && recv != (void *)1);
	CHECK_INT(net_send_wait(&net, pair->send, from + GUARD, size, tag, from_mr, &send), NET_OK);
	CHECK_INT(net_wait(&net, send, got), NET_OK);
	CHECK_INT(got[0], size);
	got[0] = -1;
	CHECK_INT(net_wait(&net, recv, got), NET_OK);
	CHECK_INT(got[0], size);
	CHECK_INT(got[1], 0);
	CHECK_INT(net_wrong(to + GUARD, size, size), 0);
	CHECK_INT(net_wrong(from + GUARD, size, size), 0);
	check_guards(from, size, "source");
	check_guards(to, size, "destination");
	/* Host memory needs no flush. */
	CHECK_INT(net_iflush(&net, pair->recv, 1, &data, got, &to_mr, &recv), NET_OK);
	CHECK(!recv);
	CHECK_INT(net_dereg(&net, pair->send, from_mr), NET_OK);
	CHECK_INT(net_dereg(&net, pair->recv, to_mr), NET_OK);
	free(from);
	free(to);
}

/*
 * From one part of a DMA-BUF to one of another: files that the software NIC takes for it, and no
 * other one does.
 */
static void send_dmabuf(struct net_pair *pair)
{
	size_t size = 50001;
	struct net_dmabuf from, to;
	void *from_mr, *to_mr, *send, *recv, *data;
	int tag = 3, got[64] = { 0 };

	check_context("version %d, DMA-BUFs", net.version);
	net_dmabuf_make(&from, size);
	net_dmabuf_make(&to, size);
	net_fill(from.data, size, 31);
	data = to.data;
	NEED(net_reg_dmabuf(&net, pair->send, from.data, size, from.offset, from.fd, &from_mr) ==
	     NET_OK);
	NEED(net_reg_dmabuf(&net, pair->recv, to.data, size, to.offset, to.fd, &to_mr) == NET_OK);
	CHECK_INT(net_irecv(&net, pair->recv, 1, &data, &size, &tag, &to_mr, &recv), NET_OK);
	CHECK_INT(net_send_wait(&net, pair->send, from.data, size, tag, from_mr, &send), NET_OK);
	CHECK_INT(net_wait(&net, send, got), NET_OK);
	CHECK_INT(net_wait(&net, recv, got), NET_OK);
	CHECK_INT(got[0], size);
	CHECK_INT(net_iflush(&net, pair->recv, 1, &data, got, &to_mr, &recv), NET_OK);
	CHECK_INT(net_wait(&net, recv, NULL), NET_OK);
	CHECK_INT(net_wrong(to.data, size, 31), 0);
	for (size_t i = 0; i < to.map_size; i++) {
		if (i == to.offset) {
			i += size;
		}
		CHECK(!to.map[i], "byte %zu", i);
	}
	CHECK_INT(net_dereg(&net, pair->send, from_mr), NET_OK);
	CHECK_INT(net_dereg(&net, pair->recv, to_mr), NET_OK);
	net_dmabuf_free(&from);
	net_dmabuf_free(&to);
}

static void test_sizes(size_t most)
{
	static const size_t sizes[] = {
		0,     1,     2,     3,       127,           128,     129,
		255,   4095,  4096,  4097,    8191,          8192,    8193,
		65535, 65537, 99999, 1 << 20, (1 << 20) + 1, 5000003, 64 << 20
	};
	struct net_pair pair;

	net_pair_make(&net, 0, 1, &pair);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && sizes[i] <= most; i++) {
		send_one(&pair, sizes[i], 0);
		if (sizes[i] < 1 << 20) {
			send_one(&pair, sizes[i], 1 + i * 100);
		}
	}
	if (!getenv("NET_NO_DMABUF")) {
		send_dmabuf(&pair);
	}
	net_pair_close(&net, &pair);
}

/* A message of ones that is looked at while it is under way. */
struct watched {
	uint8_t *from, *to, *at; /* at: where its data comes */
	void *from_mr, *to_mr, *send, *recv;
};

static void watched_start(struct watched *m, struct net_pair *pair, size_t size)
{
	void *data;
	int tag = 1;

	m->from = guarded(size);
	m->to = guarded(size);
	data = m->at = m->to + GUARD;
	memset(m->from + GUARD, 1, size);
	memset(m->at, 0, size);
	NEED(net_reg(&net, pair->send, m->from, size + 2 * GUARD, NET_HOST, &m->from_mr) == NET_OK);
	NEED(net_reg(&net, pair->recv, m->to, size + 2 * GUARD, NET_HOST, &m->to_mr) == NET_OK);
	CHECK_INT(net_irecv(&net, pair->recv, 1, &data, &size, &tag, &m->to_mr, &m->recv), NET_OK);
	CHECK_INT(net_send_wait(&net, pair->send, m->from + GUARD, size, tag, m->from_mr, &m->send),
		  NET_OK);
}

static void watched_end(struct watched *m, struct net_pair *pair, size_t size)
{
	int got[64] = { 0 };

	CHECK_INT(net_wait(&net, m->send, got), NET_OK);
	CHECK_INT(net_wait(&net, m->recv, got), NET_OK);
	CHECK_INT(got[0], size);
	CHECK_INT(net_dereg(&net, pair->send, m->from_mr), NET_OK);
	CHECK_INT(net_dereg(&net, pair->recv, m->to_mr), NET_OK);
	free(m->from);
	free(m->to);
}

/* GPUs poll lines of 128 bytes before a receive ends: none of them comes in two pieces. */
static void split_one(struct net_pair *pair, size_t size)
{
	uint64_t until;
	size_t edge = 0;
	struct watched m;
	int got[64];

	check_context("%zu bytes over two queue pairs", size);
	watched_start(&m, pair, size);
	until = net_now_ms() + 700;
	while (net_now_ms() < until) {
		int done = 0;

		CHECK_INT(net_test(&net, m.recv, &done, got), NET_OK);
		CHECK(!done);
		usleep(1000);
	}
	while (edge < size && __atomic_load_n(&m.at[edge], __ATOMIC_RELAXED)) {
		edge++;
	}
	CHECK(edge > 0 && edge < size && edge % 128 == 0, "divided at %zu", edge);
	for (size_t i = edge; i < size; i++) {
		CHECK(!__atomic_load_n(&m.at[i], __ATOMIC_RELAXED), "byte %zu", i);
	}
	watched_end(&m, pair, size);
}

/*
 * A GPU looks at lines of 128 bytes: what stands before a line's last word is there when that is.
 */
static void test_lines(void)
{
	enum {
		LINES = 2000,
		WORDS = 16
	};
	static uint64_t from[LINES][WORDS], to[LINES][WORDS] __attribute__((aligned(128)));
	struct net_pair pair;
	void *from_mr, *to_mr, *send, *recv, *data = to;
	size_t size = sizeof(to);
	int tag = 1, got[64];
	long early = 0, torn = 0;

	net_pair_make(&net, 0, 0, &pair);
	NEED(net_reg(&net, pair.send, from, size, NET_HOST, &from_mr) == NET_OK);
	NEED(net_reg(&net, pair.recv, to, size, NET_HOST, &to_mr) == NET_OK);
	for (uint64_t round = 1; round <= 20; round++) {
		int done = 0, next = 0;

		for (int i = 0; i < LINES * WORDS; i++) {
			from[i / WORDS][i % WORDS] = round;
		}
		CHECK_INT(net_irecv(&net, pair.recv, 1, &data, &size, &tag, &to_mr, &recv), NET_OK);
		CHECK_INT(net_send_wait(&net, pair.send, from, size, tag, from_mr, &send), NET_OK);
		while (!done) {
			for (int k = 0; k < LINES; k++, next = (next + 1) % LINES) {
				uint64_t *line = to[next];

				if (__atomic_load_n(&line[WORDS - 1], __ATOMIC_ACQUIRE) != round) {
					continue;
				}
				early++;
				for (int w = 0; w < WORDS - 1; w++) {
					torn += __atomic_load_n(&line[w], __ATOMIC_RELAXED) !=
						round;
				}
			}
			CHECK_INT(net_test(&net, recv, &done, got), NET_OK);
		}
		CHECK_INT(net_wait(&net, send, got), NET_OK);
	}
	CHECK_INT(torn, 0);
	CHECK(early > 0);
	CHECK_INT(net_dereg(&net, pair.send, from_mr), NET_OK);
	CHECK_INT(net_dereg(&net, pair.recv, to_mr), NET_OK);
	net_pair_close(&net, &pair);
}

/* The notice of a message is slow: its data is there before, if it went ahead. */
static void notice_one(struct net_pair *pair, size_t size, bool ahead)
{
	uint64_t until;
	size_t there = 0;
	struct watched m;

	check_context("notice of %zu bytes", size);
	watched_start(&m, pair, size);
	until = net_now_ms() + 700;
	while (net_now_ms() < until) {
		usleep(1000);
	}
	for (size_t i = 0; i < size; i++) {
		there += __atomic_load_n(&m.at[i], __ATOMIC_RELAXED);
	}
	CHECK_INT(there, ahead ? size : 0);
	watched_end(&m, pair, size);
}

static void test_notice(size_t threshold)
{
	struct net_pair pair;

	net_pair_make(&net, 0, 0, &pair);
	notice_one(&pair, threshold, false);
	notice_one(&pair, threshold + 1, true);
	notice_one(&pair, 3 * threshold, true);
	net_pair_close(&net, &pair);
}

static void test_split(void)
{
	static const size_t sizes[] = { 129, 300, 1000, 12345, 70000 };
	struct net_pair pair;

	net_pair_make(&net, 0, 0, &pair);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		split_one(&pair, sizes[i]);
	}
	net_pair_close(&net, &pair);
}

/* ---- traffic ---- */

#define GROUPS 300
#define WINDOW 32
#define RECEIVES 8
#define MOST 20000
#define STRIDE (MOST + 2 * GUARD)
#define TAGS 8

struct message {
	int tag;
	uint32_t size, room, group, entry;
	void *request;
	bool sent, done;
};

struct plan {
	struct net_pair pair;
	uint64_t seed, slow_us;
	int n[GROUPS];
	struct message message[GROUPS][RECEIVES];
	struct message *queue[TAGS][GROUPS * RECEIVES]; /* of a tag, in order */
	int queued[TAGS];
};

static uint64_t rnd(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state >> 11;
}

static void plan_make(struct plan *p, uint64_t seed)
{
	uint64_t s = seed * 0x9e3779b97f4a7c15ull + 77;

	p->seed = seed;
	for (uint32_t g = 0; g < GROUPS; g++) {
		p->n[g] = 1 + (int)(rnd(&s) % RECEIVES);
		for (uint32_t e = 0; e < (uint32_t)p->n[g]; e++) {
			struct message *m = &p->message[g][e];
			uint64_t kind = rnd(&s) % 8;

			m->group = g;
			m->entry = e;
			/* Mostly of different tags, sometimes of equal ones. */
			m->tag = (int)(rnd(&s) % 4 ? (e + rnd(&s) % 2 * 3 + g) % TAGS
						   : rnd(&s) % TAGS);
			m->size = kind == 0 ? 0 : (uint32_t)(rnd(&s) % (kind < 6 ? 600 : MOST));
			m->room = rnd(&s) % 2 ? m->size : m->size + (MOST - m->size) / 2;
			p->queue[m->tag][p->queued[m->tag]++] = m;
		}
	}
}

static uint64_t message_seed(const struct plan *p, const struct message *m)
{
	return p->seed * 1000003 + m->group * RECEIVES + m->entry;
}

static void *sender_main(void *arg)
{
	static const int base_tag = -5; /* tags are any numbers */
	struct plan *p = arg;
	size_t bytes = (size_t)2 * WINDOW * RECEIVES * MOST;
	uint64_t s = p->seed + 99, until = net_now_ms() + 50000;
	uint8_t *arena = malloc(bytes);
	int head[TAGS] = { 0 }, base = 0;
	void *mr;

	NEED(arena);
	check_context("seed %llu, sender", (unsigned long long)p->seed);
	NEED(net_reg(&net, p->pair.send, arena, bytes, NET_HOST, &mr) == NET_OK);
	while (base < GROUPS) {
		int tag = (int)(rnd(&s) % TAGS), done, size = -1;
		struct message *m = head[tag] < p->queued[tag] ? p->queue[tag][head[tag]] : NULL;

		NET_NEED(net_now_ms() < until, "the sender gets nowhere, at group %d", base);
		if (m && m->group < (uint32_t)base + WINDOW) {
			uint8_t *from =
				arena + (m->group % (2 * WINDOW) * RECEIVES + m->entry) * MOST;

			net_fill(from, m->size, message_seed(p, m));
			NET_NEED(net_isend(&net, p->pair.send, from, m->size, base_tag + tag,
					   m->size ? mr : NULL, &m->request) == NET_OK,
				 "%s", net_log_last());
			m->sent = m->request != NULL;
			head[tag] += m->sent;
		}
		m = &p->message[base + (int)(rnd(&s) % WINDOW) % (GROUPS - base)]
			       [rnd(&s) % RECEIVES];
		if (m->sent && !m->done) {
			NET_NEED(net_test(&net, m->request, &done, &size) == NET_OK, "%s",
				 net_log_last());
			m->done = done;
			CHECK(!done || size == (int)m->size, "%d, not %u", size, m->size);
		}
		for (int e = 0; base < GROUPS && (e == p->n[base] || p->message[base][e].done);) {
			if (e++ == p->n[base]) {
				base++;
				e = 0;
			}
		}
		if (rnd(&s) % 16 == 0) {
			usleep(20);
		}
	}
	CHECK_INT(net_dereg(&net, p->pair.send, mr), NET_OK);
	free(arena);
	return NULL;
}

static void check_group(struct plan *p, uint32_t g, uint8_t *arena, const int *sizes)
{
	for (int e = 0; e < p->n[g]; e++) {
		const struct message *m = &p->message[g][e];
		uint8_t *at = arena + (g % WINDOW * RECEIVES + (uint32_t)e) * STRIDE;

		CHECK(sizes[e] == (int)m->size, "group %u receive %d: %d bytes, not %u", g, e,
		      sizes[e], m->size);
		CHECK_INT(net_wrong(at + GUARD, m->size, message_seed(p, m)), 0);
		check_guards(at, m->size, "receive");
		memset(at, GUARD_BYTE, STRIDE);
	}
	CHECK_INT(sizes[p->n[g]], 0);
}

static void group_post(struct plan *p, uint32_t g, uint8_t *arena, void *mr, void **request)
{
	void *data[RECEIVES], *mrs[RECEIVES];
	size_t sizes[RECEIVES];
	int tags[RECEIVES];

	for (int e = 0; e < p->n[g]; e++) {
		data[e] = arena + (g % WINDOW * RECEIVES + (uint32_t)e) * STRIDE + GUARD;
		sizes[e] = p->message[g][e].room;
		tags[e] = p->message[g][e].tag - 5;
		mrs[e] = mr;
	}
	*request = p->n[g] == 1 ? (void *)1 : NULL;
	NET_NEED(net_irecv(&net, p->pair.recv, p->n[g], data, sizes, tags, mrs, request) == NET_OK,
		 "%s", net_log_last());
}

static void *receiver_main(void *arg)
{
	struct plan *p = arg;
	size_t bytes = (size_t)WINDOW * RECEIVES * STRIDE;
	uint64_t s = p->seed + 1234, until = net_now_ms() + 50000;
	void *request[WINDOW] = { NULL }, *mr;
	uint8_t *arena = malloc(bytes);
	uint32_t posted = 0, done = 0;

	NEED(arena);
	check_context("seed %llu, receiver", (unsigned long long)p->seed);
	memset(arena, GUARD_BYTE, bytes);
	NEED(net_reg(&net, p->pair.recv, arena, bytes, NET_HOST, &mr) == NET_OK);
	while (done < GROUPS) {
		uint32_t g = done + (uint32_t)(rnd(&s) % WINDOW);
		int sizes[64] = { 0 }, ended;

		NET_NEED(net_now_ms() < until, "the receiver gets nowhere, at group %u", done);
		if (posted < GROUPS && posted < done + WINDOW && !request[posted % WINDOW]) {
			group_post(p, posted, arena, mr, &request[posted % WINDOW]);
			posted += request[posted % WINDOW] != NULL;
		}
		if (g < posted && request[g % WINDOW]) {
			NET_NEED(net_test(&net, request[g % WINDOW], &ended, sizes) == NET_OK, "%s",
				 net_log_last());
			if (ended) {
				request[g % WINDOW] = NULL;
				check_group(p, g, arena, sizes);
			}
		}
		while (done < posted && !request[done % WINDOW]) {
			done++;
		}
		if (p->slow_us && rnd(&s) % 16 == 0) {
			usleep((useconds_t)p->slow_us);
		}
	}
	CHECK_INT(net_dereg(&net, p->pair.recv, mr), NET_OK);
	free(arena);
	return NULL;
}

/* Memory is registered while other threads send and receive. */
static void *registrar_main(void *arg)
{
	struct plan *p = arg;
	uint64_t s = p->seed + 5;
	uint8_t *memory = malloc(1 << 20);
	void *mr[32] = { NULL };

	NEED(memory);
	for (int i = 0; i < 2000; i++) {
		void **one = &mr[rnd(&s) % 32], *comm = rnd(&s) % 2 ? p->pair.send : p->pair.recv;

		if (*one) {
			CHECK_INT(net_dereg(&net, comm, *one), NET_OK);
			*one = NULL;
		} else {
			CHECK_INT(net_reg(&net, comm, memory + rnd(&s) % 500000,
					  1 + rnd(&s) % 500000, NET_HOST, one),
				  NET_OK);
		}
	}
	for (int i = 0; i < 32; i++) {
		CHECK(!mr[i] || net_dereg(&net, p->pair.send, mr[i]) == NET_OK);
	}
	free(memory);
	return NULL;
}

static void test_traffic(uint64_t seed, uint64_t slow_us)
{
	void *(*const mains[])(void *) = { sender_main, receiver_main, registrar_main };
	struct plan *plan = calloc(2, sizeof(*plan));
	pthread_t thread[2][3];

	NEED(plan);
	for (int i = 0; i < 2; i++) {
		plan_make(&plan[i], seed + (uint64_t)i);
		plan[i].slow_us = slow_us;
		net_pair_make(&net, i, !i, &plan[i].pair);
	}
	for (int i = 0; i < 6; i++) {
		NEED(pthread_create(&thread[i / 3][i % 3], NULL, mains[i % 3], &plan[i / 3]) == 0);
	}
	for (int i = 0; i < 6; i++) {
		pthread_join(thread[i / 3][i % 3], NULL);
	}
	for (int i = 0; i < 2; i++) {
		net_pair_close(&net, &plan[i].pair);
	}
	free(plan);
}

int main(int argc, char **argv)
{
	NEED(argc > 3);
	net_load(&net, argv[1], atoi(argv[2]));
	NET_NEED(net_init(&net, -1) == NET_OK, "%s", net_log_last());
	if (strcmp(argv[3], "sizes") == 0) {
		test_sizes(argc > 4 ? strtoull(argv[4], NULL, 0) : 64 << 20);
	} else if (strcmp(argv[3], "lines") == 0) {
		test_lines();
	} else if (strcmp(argv[3], "notice") == 0) {
		test_notice(strtoull(argv[4], NULL, 0));
	} else if (strcmp(argv[3], "split") == 0) {
		test_split();
	} else {
		test_traffic(strtoull(argv[4], NULL, 0), argc > 5 ? strtoull(argv[5], NULL, 0) : 0);
	}
	/* TEST_NET_FAILS=1: ports do, and others take over; nothing else may happen. */
	if (getenv("TEST_NET_FAILS")) {
		CHECK(*net_log_find(2, "; the connection goes on over "), "nothing has failed");
	} else {
		CHECK_INT(net_log_count(2), 0);
	}
	CHECK_INT(net_finalize(&net), NET_OK);
	return check_end();
}
