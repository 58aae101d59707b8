/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GIN: calls that no caller should make are errors and harm nothing that is right; closing
 * works in any order; one rank's failure is told on all.
 *   gin_misuse LIBRARY
 */
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include "net/gin_rig.h"
#include "support/self.h"

#define BYTES 4096

static struct gin gin;

struct solo {
	void *listener, *coll, *mr;
	uint64_t word[BYTES / 8];
};

/* One rank, which reaches itself. */
static void solo_open(struct solo *s)
{
	uint8_t handle[NET_HANDLE] __attribute__((aligned(8)));
	void *handles[1] = { handle };

	memset(s->word, 0, sizeof(s->word));
	NET_NEED(gin_listen(&gin, 0, handle, &s->listener) == NET_OK, "%s", net_log_last());
	NET_NEED(gin_connect(&gin, handles, 1, 0, s->listener, &s->coll) == NET_OK, "%s",
		 net_log_last());
	CHECK_INT(gin_reg(&gin, s->coll, s->word, BYTES, 0, &s->mr), NET_OK);
}

static struct gin_put good_put(const struct solo *s)
{
	return (struct gin_put){ .from = s->mr,
				 .to = s->mr,
				 .to_at = BYTES / 2,
				 .size = 100,
				 .signal = s->mr,
				 .signal_at = BYTES - 8,
				 .value = 2,
				 .op = GIN_ADD };
}

/* It still works. */
static void solo_use(struct solo *s)
{
	uint64_t before = s->word[BYTES / 8 - 1];
	struct gin_put put = good_put(s);
	void *request = NULL;

	s->word[0]++;
	CHECK_INT(gin_put(&gin, s->coll, &put, &request), NET_OK);
	CHECK_INT(gin_wait(&gin, s->coll, request), NET_OK);
	CHECK(s->word[BYTES / 16] == s->word[0] && s->word[BYTES / 8 - 1] == before + 2);
}

static void test_handles(struct solo *s)
{
	void *const wrong[] = { NULL,    (void *)1,    (void *)0x7f1234567890,
				s->mr,   s->listener,  (void *)-1,
				s->coll, (void *)0x49, (void *)0xfffffffffffb };
	int done;

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
		void *bad = wrong[i], *out = (void *)1, *request = (void *)1;
		struct gin_put put = good_put(s);

		check_context("handle %zu, %p", i, bad);
		if (bad != s->coll) {
			CHECK_INT(gin_put(&gin, bad, &put, &request), NET_ARGUMENT);
			CHECK(!request);
		}
		if (bad != s->mr) {
			put.from = bad;
			CHECK_INT(gin_put(&gin, s->coll, &put, &request), NET_ARGUMENT);
			put = good_put(s);
			put.to = bad;
			CHECK_INT(gin_put(&gin, s->coll, &put, &request), NET_ARGUMENT);
			put = good_put(s);
			put.signal = bad;
			CHECK_INT(gin_put(&gin, s->coll, &put, &request), NET_ARGUMENT);
			CHECK_INT(gin_dereg(&gin, s->coll, bad), bad ? NET_ARGUMENT : NET_OK);
		}
		CHECK_INT(gin_test(&gin, s->coll, bad, &done), NET_ARGUMENT);
		if (bad != s->coll) {
			CHECK_INT(gin_reg(&gin, bad, s->word, 8, 0, &out), NET_ARGUMENT);
			CHECK(!out);
			CHECK_INT(gin_close(&gin, GIN_CLOSE_COLL, bad),
				  bad ? NET_ARGUMENT : NET_OK);
		}
		if (bad != s->listener) {
			CHECK_INT(gin_close(&gin, GIN_CLOSE_LISTEN, bad),
				  bad ? NET_ARGUMENT : NET_OK);
		}
		solo_use(s);
	}
}

static void test_values(struct solo *s)
{
	static const struct {
		size_t from_at, to_at, size, signal_at;
		uint32_t rank, op;
	} bad[] = {
		{ 0, 0, BYTES + 1, 0, 0, 2 },  { 1, 0, BYTES, 0, 0, 2 },
		{ 0, 1, BYTES, 0, 0, 0 },      { 0, (size_t)-4, 8, 0, 0, 0 },
		{ (size_t)-1, 0, 1, 0, 0, 0 }, { 0, 0, (size_t)-1, 0, 0, 0 },
		{ 0, 0, 8, BYTES - 7, 0, 2 },  { 0, 0, 8, 4, 0, 2 }, /* no multiple of 8 */
		{ 0, 0, 8, BYTES, 0, 2 },      { 0, 0, 8, 0, 0, 3 },
		{ 0, 0, 8, 0, 1, 2 },          { 0, 0, 8, 0, 0xffffffff, 2 },
	};
	void *request, *out;
	int code;

	for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
		struct gin_put put = { .from = s->mr,
				       .from_at = bad[i].from_at,
				       .to = s->mr,
				       .to_at = bad[i].to_at,
				       .size = bad[i].size,
				       .signal = s->mr,
				       .signal_at = bad[i].signal_at,
				       .rank = bad[i].rank,
				       .op = bad[i].op };

		check_context("value %zu", i);
		request = (void *)1;
		code = gin_put(&gin, s->coll, &put, &request);
		CHECK(code == NET_ARGUMENT && !request, "%d", code);
		solo_use(s);
	}
	check_context("registration");
	CHECK_INT(gin_reg(&gin, s->coll, NULL, 100, 0, &out), NET_ARGUMENT);
	CHECK_INT(gin_reg(&gin, s->coll, s->word, 0, 0, &out), NET_ARGUMENT);
	CHECK_INT(gin_reg(&gin, s->coll, s->word, (size_t)-8, 0, &out), NET_ARGUMENT);
	CHECK_INT(gin_reg(&gin, s->coll, (void *)0x700000000000, 4096, 0, &out), NET_SYSTEM);
	solo_use(s);
}

static void test_requests(struct solo *s)
{
	struct gin_put put = good_put(s);
	void *first, *second;
	int done;

	check_context("requests");
	put.size = 0;
	put.op = 0;
	put.from = put.to = NULL;
	/* Nothing at all: NCCL wants a request all the same. */
	CHECK_INT(gin_put(&gin, s->coll, &put, &first), NET_OK);
	NEED(first);
	CHECK_INT(gin_wait(&gin, s->coll, first), NET_OK);
	CHECK_INT(gin_test(&gin, s->coll, first, &done), NET_ARGUMENT);
	CHECK_INT(gin_put(&gin, s->coll, &put, &second), NET_OK);
	CHECK(first != second, "a request's handle is not used again");
	CHECK_INT(gin_test(&gin, s->coll, first, &done), NET_ARGUMENT);
	CHECK_INT(gin_wait(&gin, s->coll, second), NET_OK);
}

/* Both orders, with a request under way. */
static void test_orders(void)
{
	static const char *const orders[] = { "cm", "mc" };
	struct solo s;

	for (int i = 0; i < 2; i++) {
		struct gin_put put;
		void *request;

		check_context("order %s", orders[i]);
		solo_open(&s);
		put = good_put(&s);
		CHECK_INT(gin_put(&gin, s.coll, &put, &request), NET_OK);
		CHECK_INT(gin_close(&gin, GIN_CLOSE_LISTEN, s.listener), NET_OK);
		CHECK_INT(gin_close(&gin, GIN_CLOSE_LISTEN, s.listener), NET_ARGUMENT);
		if (orders[i][0] == 'm') {
			/* (memory that is written to is not taken away) */
			CHECK_INT(gin_wait(&gin, s.coll, request), NET_OK);
		}
		for (const char *p = orders[i]; *p; p++) {
			if (*p == 'c') {
				CHECK_INT(gin_close(&gin, GIN_CLOSE_COLL, s.coll), NET_OK);
				CHECK_INT(gin_close(&gin, GIN_CLOSE_COLL, s.coll), NET_ARGUMENT);
			} else {
				CHECK_INT(gin_dereg(&gin, s.coll, s.mr), NET_OK);
				CHECK_INT(gin_dereg(&gin, s.coll, s.mr), NET_ARGUMENT);
			}
		}
		CHECK(gin_put(&gin, s.coll, &put, &request) == NET_ARGUMENT);
	}
}

/* ---- ranks that do not agree ---- */

static void *colls[2];

static void disagree(struct gin_world *w, int rank)
{
	static uint8_t bytes[2][64];
	void *mr = (void *)1;

	NET_NEED(gin_world_join(w, rank, &colls[rank]) == NET_OK, "%s", net_log_last());
	/* What one rank cannot register none has. */
	CHECK_INT(gin_reg(w->g, colls[rank], rank ? (uint8_t *)0x700000000000 : bytes[rank], 64, 0,
			  &mr),
		  rank ? NET_SYSTEM : NET_REMOTE);
	CHECK(!mr);
	if (rank == 0) {
		CHECK_HAS(net_log_find(2, "cannot register memory"), "rank 1 (");
	}
	/* ... and it can be tried again. */
	CHECK_INT(gin_reg(w->g, colls[rank], bytes[rank], 64, 0, &mr), NET_OK);
	CHECK_INT(gin_dereg(w->g, colls[rank], mr), NET_OK);
}

static void *missing(struct gin_world *w)
{
	void *coll = NULL;
	uint64_t began = net_now_ms();

	/* The other one never comes. */
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "300", 1);
	CHECK_INT(gin_world_join(w, 0, &coll), NET_REMOTE);
	CHECK(net_now_ms() - began < 5000);
	CHECK_HAS(net_log_find(2, "waited 300 ms"), "rank 1 (");
	unsetenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS");
	return coll;
}

/*
 * Others dial before the ranks do; more than there are places for say nothing. They are rejected.
 */
static void test_rejected(struct gin_world *w)
{
	enum {
		N = 80
	};
	char text[64] = "GET / HTTP/1.0\r\n\r\nwith enough of it for a head and more";
	uint64_t began = net_now_ms();
	struct sockaddr_in to;
	int fd[N];

	/* magic, version and use, nonce, address */
	memcpy(&to, w->handle[0] + 24, sizeof(to));
	NEED(to.sin_family == AF_INET);
	for (int i = 0; i < N; i++) {
		fd[i] = socket(AF_INET, SOCK_STREAM, 0);
		NEED(fd[i] >= 0 && connect(fd[i], (struct sockaddr *)&to, sizeof(to)) == 0);
	}
	NEED(write(fd[0], text, sizeof(text)) == (ssize_t)sizeof(text));
	gin_world_run(w, disagree);
	CHECK(net_now_ms() - began < 5000, "%llu ms", (unsigned long long)(net_now_ms() - began));
	CHECK(*net_log_find(3, "rejected a connection"), "%s", net_log_last());
	CHECK(*net_log_find(2, "rejected connections"), "%s", net_log_last());
	for (int i = 0; i < N; i++) {
		close(fd[i]);
	}
}

/* No descriptor is left for a connection: that is this rank's own error, at once. */
static void test_no_descriptors(struct gin_world *w)
{
	int fd = socket(AF_INET, SOCK_STREAM, 0), files;
	uint64_t began = net_now_ms();
	static struct solo s; /* keeps the device open */
	struct sockaddr_in to;
	void *coll;

	solo_open(&s);
	memcpy(&to, w->handle[0] + 24, sizeof(to));
	NEED(fd >= 0 && connect(fd, (struct sockaddr *)&to, sizeof(to)) == 0);
	files = self_files(0);
	CHECK_INT(gin_world_join(w, 0, &coll), NET_SYSTEM);
	CHECK_HAS(net_log_last(), "this process cannot take the connection of a peer at");
	CHECK_INT(gin_world_join(w, 1, &coll), NET_SYSTEM);
	CHECK_HAS(net_log_last(), "this process cannot dial rank 0 (");
	CHECK(net_now_ms() - began < 1000, "%llu ms", (unsigned long long)(net_now_ms() - began));
	self_files(files);
	close(fd);
	CHECK_INT(gin_dereg(&gin, s.coll, s.mr), NET_OK);
	CHECK_INT(gin_close(&gin, GIN_CLOSE_COLL, s.coll), NET_OK);
	CHECK_INT(gin_close(&gin, GIN_CLOSE_LISTEN, s.listener), NET_OK);
}

static void test_ranks(void)
{
	uint8_t wrong[NET_HANDLE] __attribute__((aligned(8)));
	void *handles[2] = { wrong, wrong }, *coll = (void *)1;
	struct gin_world w = { .merged = 0 };

	check_context("ranks");
	gin_world_open(&w, &gin, 2, 1);
	memset(wrong, 0x41, sizeof(wrong));
	CHECK_INT(gin_connect(&gin, handles, 2, 0, w.listener[0], &coll), NET_ARGUMENT);
	CHECK(!coll);
	memcpy(wrong, w.handle[0], sizeof(wrong));
	CHECK_INT(gin_connect(&gin, handles, 2, 2, w.listener[0], &coll), NET_ARGUMENT);
	CHECK_INT(gin_connect(&gin, handles, 0, 0, w.listener[0], &coll), NET_ARGUMENT);
	CHECK_INT(gin_connect(&gin, handles, 2, 0, w.listener[1], &coll), NET_ARGUMENT);
	CHECK_INT(gin_connect(&gin, handles, 2, 0, NULL, &coll), NET_ARGUMENT);
	wrong[8] ^= 0x40;
	CHECK_INT(gin_connect(&gin, handles, 2, 0, w.listener[0], &coll), NET_USAGE);
	CHECK_HAS(net_log_last(), "another version of this plugin");
	missing(&w);
	test_no_descriptors(&w);
	gin_world_close(&w);
	gin_world_open(&w, &gin, 2, 1);
	net_log_clear();
	test_rejected(&w);
	gin_world_close(&w);
	for (int r = 0; r < 2; r++) {
		CHECK_INT(gin_close(&gin, GIN_CLOSE_COLL, colls[r]), NET_OK);
	}
}

int main(int argc, char **argv)
{
	static struct solo s;
	struct net_pair pair;
	struct net net;
	void *plain;

	NEED(argc > 1);
	gin_load(&gin, argv[1]);
	NET_NEED(gin_init(&gin) == NET_OK, "%s", net_log_last());
	/* The memory is the network's already, which adds to none: it is registered once more. */
	net_load(&net, argv[1], 12);
	NET_NEED(net_init(&net, -1) == NET_OK, "%s", net_log_last());
	net_pair_make(&net, 0, 0, &pair);
	CHECK_INT(net_reg(&net, pair.send, s.word, BYTES, NET_HOST, &plain), NET_OK);
	solo_open(&s);
	test_requests(&s);
	test_handles(&s);
	test_values(&s);
	CHECK_INT(gin_dereg(&gin, s.coll, s.mr), NET_OK);
	CHECK_INT(gin_close(&gin, GIN_CLOSE_COLL, s.coll), NET_OK);
	CHECK_INT(gin_close(&gin, GIN_CLOSE_LISTEN, s.listener), NET_OK);
	CHECK_INT(net_dereg(&net, pair.send, plain), NET_OK);
	net_pair_close(&net, &pair);
	CHECK_INT(net_finalize(&net), NET_OK);
	test_orders();
	test_ranks();
	CHECK_INT(gin_finalize(&gin), NET_OK);
	return check_end();
}
