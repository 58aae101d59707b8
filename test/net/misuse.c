/* SPDX-License-Identifier: Apache-2.0 */
/* Calls that no caller should make: each is an error, and harms nothing that is right. */
#include "net/rig.h"

#define BYTES 8192
#define FLUSHES 256

static struct net net;
static uint8_t from[BYTES], to[BYTES];

/* What is no handle, or not of this kind. */
static void *const wrong[] = {
	NULL, (void *)1, (void *)2, (void *)0x7f1234567890, (void *)-1, (void *)0xfffffffffff8,
};

static void test_handles(struct net_pair *pair, void *mr)
{
	void *data = to, *req, *out;
	size_t size = 8;
	int tag = 0, done, sizes[64];

	for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]) + 3; i++) {
		bool strange = i < sizeof(wrong) / sizeof(wrong[0]);
		void *bad = strange                                 ? wrong[i]
			    : i == sizeof(wrong) / sizeof(wrong[0]) ? mr
			    : i % 2                                 ? pair->recv
								    : pair->send;

		check_context("handle %p", bad);
		if (bad != pair->send) {
			CHECK_INT(net_isend(&net, bad, from, 8, 0, mr, &req), NET_ARGUMENT);
		}
		if (bad != pair->recv) {
			CHECK_INT(net_irecv(&net, bad, 1, &data, &size, &tag, &mr, &req),
				  NET_ARGUMENT);
			CHECK_INT(net_iflush(&net, bad, 1, &data, sizes, &mr, &req), NET_ARGUMENT);
		}
		CHECK_INT(net_test(&net, bad, &done, sizes), NET_ARGUMENT);
		CHECK_INT(net_accept(&net, bad, &out), NET_ARGUMENT);
		CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, bad), NET_ARGUMENT);
		if (bad != mr) {
			CHECK_INT(net_isend(&net, pair->send, from, 8, 0, bad, &req), NET_ARGUMENT);
			CHECK_INT(net_irecv(&net, pair->recv, 1, &data, &size, &tag, &bad, &req),
				  NET_ARGUMENT);
			CHECK_INT(net_dereg(&net, pair->send, bad), bad ? NET_ARGUMENT : NET_OK);
		}
		if (strange) {
			CHECK_INT(net_reg(&net, bad, from, BYTES, NET_HOST, &out), NET_ARGUMENT);
		}
		if (bad != pair->send) {
			CHECK_INT(net_close(&net, NET_CLOSE_SEND, bad),
				  bad ? NET_ARGUMENT : NET_OK);
		}
		if (bad != pair->recv) {
			CHECK_INT(net_close(&net, NET_CLOSE_RECV, bad),
				  bad ? NET_ARGUMENT : NET_OK);
		}
	}
}

static void test_registration(struct net_pair *pair)
{
	void *mr = (void *)1;

	check_context("registration");
	CHECK_INT(net_reg(&net, pair->send, NULL, 100, NET_HOST, &mr), NET_ARGUMENT);
	CHECK(!mr);
	CHECK_INT(net_reg(&net, pair->send, from, 0, NET_HOST, &mr), NET_ARGUMENT);
	CHECK_INT(net_reg(&net, pair->send, from, (size_t)-100, NET_HOST, &mr), NET_ARGUMENT);
	CHECK_INT(net_reg(&net, pair->send, from, 100, 3, &mr), NET_ARGUMENT);
	CHECK_INT(net_reg(&net, pair->send, from, 100, 0, &mr), NET_ARGUMENT);
	CHECK_INT(net_reg_dmabuf(&net, pair->send, from, 100, 0, -1, &mr), NET_ARGUMENT);
	/* What cannot be registered is told without a warning: NCCL does without. */
	net_log_clear();
	CHECK_INT(net_reg_dmabuf(&net, pair->send, (void *)0x700000000000, 4096, 0, 0, &mr),
		  NET_SYSTEM);
	CHECK_INT(net_reg(&net, pair->send, (void *)0x700000000000, 1ull << 40, NET_HOST, &mr),
		  NET_SYSTEM);
	CHECK_INT(net_log_count(2), 0);
	CHECK(net_log_count(3) > 0 && !mr);
}

/* Twice the same end of life. */
static void test_twice(struct net_pair *pair)
{
	struct net_pair other;
	void *mr, *again, *listener, *req, *more;
	uint8_t handle[NET_HANDLE];
	int done, sizes[64];
	void *data = to;
	size_t size = 16;
	int tag = 3;

	check_context("twice");
	CHECK_INT(net_reg(&net, pair->send, from, BYTES, NET_HOST, &mr), NET_OK);
	CHECK_INT(net_dereg(&net, pair->send, mr), NET_OK);
	CHECK_INT(net_dereg(&net, pair->send, mr), NET_ARGUMENT);
	/* A slot that is used again has another handle. */
	CHECK_INT(net_reg(&net, pair->send, from, BYTES, NET_HOST, &again), NET_OK);
	CHECK(again != mr);
	CHECK_INT(net_dereg(&net, pair->send, mr), NET_ARGUMENT);
	CHECK_INT(net_listen(&net, 0, handle, &listener), NET_OK);
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_ARGUMENT);
	CHECK_INT(net_accept(&net, listener, &req), NET_ARGUMENT);
	net_pair_make(&net, 0, 0, &other);
	CHECK_INT(net_reg(&net, other.recv, to, BYTES, NET_HOST, &mr), NET_OK);
	CHECK_INT(net_irecv(&net, other.recv, 1, &data, &size, &tag, &mr, &req), NET_OK);
	/* 32 groups are what there is room for: the next one has to wait. */
	for (int i = 1; i < 34; i++) {
		CHECK_INT(net_irecv(&net, other.recv, 1, &data, &size, &tag, &mr, &more), NET_OK);
		CHECK((more != NULL) == (i < 32), "group %d", i);
	}
	net_pair_close(&net, &other);
	CHECK_INT(net_test(&net, req, &done, sizes), NET_ARGUMENT);
	CHECK_INT(net_close(&net, NET_CLOSE_SEND, other.send), NET_ARGUMENT);
	CHECK_INT(net_close(&net, NET_CLOSE_RECV, other.recv), NET_ARGUMENT);
	/* Memory outlives the connection. */
	CHECK_INT(net_dereg(&net, other.recv, mr), NET_OK);
	CHECK_INT(net_dereg(&net, pair->send, again), NET_OK);
}

static void test_sizes(struct net_pair *pair, void *from_mr, void *to_mr)
{
	void *data[64] = { to, to + 4096 }, *mrs[64] = { to_mr, to_mr }, *req = (void *)1;
	size_t sizes[64] = { 4096, 4096 };
	int tags[64] = { 1, 2 };

	check_context("sizes");
	for (int n = -1; n <= 64; n += n == 0 ? 9 : n < 0 ? 1 : 55) {
		req = (void *)1;
		CHECK_INT(net_irecv(&net, pair->recv, n, data, sizes, tags, mrs, &req),
			  NET_ARGUMENT);
		CHECK(!req);
	}
	sizes[1] = 4097; /* one byte more than is registered */
	CHECK_INT(net_irecv(&net, pair->recv, 2, data, sizes, tags, mrs, &req), NET_ARGUMENT);
	sizes[1] = (size_t)-5;
	CHECK_INT(net_irecv(&net, pair->recv, 2, data, sizes, tags, mrs, &req), NET_ARGUMENT);
	CHECK_INT(net_isend(&net, pair->send, from, BYTES + 1, 1, from_mr, &req), NET_ARGUMENT);
	CHECK_INT(net_isend(&net, pair->send, (void *)((uintptr_t)from - 1), 2, 1, from_mr, &req),
		  NET_ARGUMENT);
	CHECK_INT(net_isend(&net, pair->send, from, (size_t)-5, 1, from_mr, &req), NET_ARGUMENT);
	CHECK_INT(net_isend(&net, pair->send, from, 1ull << 31, 1, from_mr, &req), NET_ARGUMENT);
	CHECK(!req);
}

/* More than the receive has room for, and a tag that nobody waits for; then the right one. */
static void test_mismatch(struct net_pair *pair, void *from_mr, void *to_mr)
{
	void *data = to + 100, *recv, *send, *again;
	size_t size = 100;
	int tag = 5, got[64] = { 0 };
	uint64_t until = net_now_ms() + 5000;
	int rc = NET_OK;

	check_context("mismatch");
	memset(to, 0, BYTES);
	net_fill(from, BYTES, 3);
	CHECK_INT(net_irecv(&net, pair->recv, 1, &data, &size, &tag, &to_mr, &recv), NET_OK);
	/* Version 8 has no more than an int for a size, the others have the same test. */
	while (rc == NET_OK && net_now_ms() < until) {
		rc = net_isend(&net, pair->send, from, 101, 5, from_mr, &send);
		CHECK(!send);
	}
	CHECK_INT(rc, NET_USAGE);
	CHECK_HAS(net_log_last(), "101 bytes with tag 5");
	CHECK_HAS(net_log_last(), "room for 100");
	for (int i = 0; i < 1000; i++) {
		CHECK_INT(net_isend(&net, pair->send, from, 100, 6, from_mr, &send), NET_OK);
		CHECK(!send);
	}
	CHECK_INT(net_isend(&net, pair->send, from, 100, 5, from_mr, &send), NET_OK);
	CHECK(send != NULL);
	CHECK_INT(net_wait(&net, send, got), NET_OK);
	CHECK_INT(net_wait(&net, recv, got), NET_OK);
	CHECK_INT(got[0], 100);
	CHECK_INT(net_wrong(to + 100, 100, 3), 0);
	CHECK(to[99] == 0 && to[200] == 0);
	/* A request ends once. */
	CHECK_INT(net_test(&net, send, got, got), NET_ARGUMENT);
	CHECK_INT(net_test(&net, recv, got, got), NET_ARGUMENT);
	/* Nor does the next one, in the same place, answer for it. */
	CHECK_INT(net_irecv(&net, pair->recv, 1, &data, &size, &tag, &to_mr, &again), NET_OK);
	CHECK(again && again != recv);
	CHECK_INT(net_test(&net, recv, got, got), NET_ARGUMENT);
	CHECK_INT(net_send_wait(&net, pair->send, from, 7, 5, from_mr, &send), NET_OK);
	CHECK_INT(net_wait(&net, send, got), NET_OK);
	CHECK_INT(net_wait(&net, again, got), NET_OK);
	CHECK_INT(got[0], 7);
}

/* A flush, whatever it is that was received: this memory is called a GPU's. */
static void test_flush(struct net_pair *pair)
{
	void *data[2] = { to, to + 64 }, *mrs[2], *req[FLUSHES + 1];
	int sizes[2] = { 64, 0 }, done = 0;

	check_context("flush");
	CHECK_INT(net_reg(&net, pair->recv, to, BYTES, NET_CUDA, &mrs[0]), NET_OK);
	mrs[1] = mrs[0];
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < FLUSHES; i++) {
			CHECK_INT(net_iflush(&net, pair->recv, 2, data, sizes, mrs, &req[i]),
				  NET_OK);
			CHECK(req[i] != NULL);
		}
		CHECK(net_iflush(&net, pair->recv, 2, data, sizes, mrs, &req[FLUSHES]) != NET_OK);
		for (int i = FLUSHES - 1; i >= 0; i--) {
			CHECK_INT(net_wait(&net, req[i], NULL), NET_OK);
		}
		CHECK_INT(net_test(&net, req[0], &done, NULL), NET_ARGUMENT);
	}
	sizes[0] = 0;
	CHECK_INT(net_iflush(&net, pair->recv, 2, data, sizes, mrs, &req[0]), NET_OK);
	CHECK(!req[0]);
	sizes[0] = BYTES + 1;
	CHECK_INT(net_iflush(&net, pair->recv, 2, data, sizes, mrs, &req[0]), NET_ARGUMENT);
	CHECK_INT(net_dereg(&net, pair->recv, mrs[0]), NET_OK);
}

/* Thousands of each come and go. */
static void test_many(struct net_pair *pair)
{
	enum {
		MANY = 3000
	};
	static void *mr[MANY];

	check_context("many");
	for (int i = 0; i < MANY; i++) {
		CHECK_INT(net_reg(&net, pair->send, from + i, 100, NET_HOST, &mr[i]), NET_OK);
	}
	for (int i = 0; i < MANY; i++) {
		CHECK_INT(net_dereg(&net, pair->send, mr[i]), NET_OK);
	}
	for (int i = 0; i < 40; i++) {
		struct net_pair one;

		net_pair_make(&net, i % 2, i % 2, &one);
		net_pair_close(&net, &one);
	}
}

int main(int argc, char **argv)
{
	void *from_mr, *to_mr, *far_mr, *req;
	struct net_pair pair, far;

	NEED(argc > 2);
	net_load(&net, argv[1], atoi(argv[2]));
	NEED(net_init(&net, -1) == NET_OK);
	net_pair_make(&net, 0, 1, &pair);
	net_pair_make(&net, 1, 1, &far);
	NEED(net_reg(&net, pair.send, from, BYTES, NET_HOST, &from_mr) == NET_OK);
	NEED(net_reg(&net, pair.recv, to, BYTES, NET_HOST, &to_mr) == NET_OK);
	NEED(net_reg(&net, far.send, from, BYTES, NET_HOST, &far_mr) == NET_OK);
	/* Memory that is registered with another device. */
	CHECK_INT(net_isend(&net, pair.send, from, 8, 0, far_mr, &req), NET_ARGUMENT);
	CHECK_HAS(net_log_last(), "mlx5_1");
	test_handles(&pair, from_mr);
	test_registration(&pair);
	test_twice(&pair);
	if (net.version > 8) {
		test_sizes(&pair, from_mr, to_mr);
	}
	test_mismatch(&pair, from_mr, to_mr);
	test_flush(&pair);
	test_many(&pair);
	/* In any order. */
	CHECK_INT(net_close(&net, NET_CLOSE_RECV, far.recv), NET_OK);
	CHECK_INT(net_dereg(&net, far.send, far_mr), NET_OK);
	CHECK_INT(net_close(&net, NET_CLOSE_SEND, far.send), NET_OK);
	net_pair_close(&net, &pair);
	CHECK_INT(net_dereg(&net, pair.send, from_mr), NET_OK);
	CHECK_INT(net_dereg(&net, pair.recv, to_mr), NET_OK);
	CHECK_INT(net_finalize(&net), NET_OK);
	return check_end();
}
