/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many connections, with requests that nobody waits for, whose ends, listeners and memory go in any
 * order; then nothing is left of them.
 *   close LIBRARY VERSION SEED
 */
#include <unistd.h>
#include "net/rig.h"
#include "support/self.h"

#define PAIRS 12
#define ROUNDS 6
#define SIZE 5000
#define REQUESTS 8

static struct net net;

struct one {
	struct net_pair pair;
	void *listener, *from_mr, *to_mr;
	void *send[REQUESTS], *recv[REQUESTS];
	uint8_t from[SIZE], to[REQUESTS][SIZE];
	int left[5], n; /* what is still to be closed */
};

static uint64_t rnd(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state >> 11;
}

/* As net_pair_make(), but the listener stays. */
static void one_make(struct one *o, int dev)
{
	uint64_t until = net_now_ms() + 30000;
	uint8_t handle[NET_HANDLE];

	memset(o, 0, sizeof(*o));
	NET_NEED(net_listen(&net, net.place[!dev], handle, &o->listener) == NET_OK, "%s",
		 net_log_last());
	while (!o->pair.send || !o->pair.recv) {
		NET_NEED(net_now_ms() < until &&
				 (o->pair.send || net_connect(&net, net.place[dev], handle,
							      &o->pair.send) == NET_OK) &&
				 (o->pair.recv ||
				  net_accept(&net, o->listener, &o->pair.recv) == NET_OK),
			 "%s", net_log_last());
		usleep(20);
	}
	NEED(net_reg(&net, o->pair.send, o->from, SIZE, NET_HOST, &o->from_mr) == NET_OK);
	NEED(net_reg(&net, o->pair.recv, o->to, sizeof(o->to), NET_HOST, &o->to_mr) == NET_OK);
	for (int i = 0; i < 5; i++) {
		o->left[i] = i;
	}
	o->n = 5;
}

/* Some requests; some of them are tested, some to their end. */
static void one_use(struct one *o, uint64_t *s)
{
	int receives = (int)(rnd(s) % (REQUESTS + 1)), sends = 0, tag = 1, sizes[64], done;
	size_t size = SIZE;

	for (int i = 0; i < receives; i++) {
		void *data = o->to[i];

		NEED(net_irecv(&net, o->pair.recv, 1, &data, &size, &tag, &o->to_mr, &o->recv[i]) ==
		     NET_OK);
	}
	for (int i = (int)(rnd(s) % 200); i > 0; i--) {
		int k = (int)(rnd(s) % REQUESTS);
		bool sending = rnd(s) % 2;
		void **req = sending ? &o->send[k] : &o->recv[k];

		if (sends < REQUESTS && rnd(s) % 4 == 0) {
			NEED(net_isend(&net, o->pair.send, o->from, rnd(s) % SIZE, 1, o->from_mr,
				       &o->send[sends]) == NET_OK);
			sends += o->send[sends] != NULL;
		} else if (*req) {
			CHECK_INT(net_test(&net, *req, &done, sizes), NET_OK);
			*req = done ? NULL : *req;
		}
	}
}

static void one_close_some(struct one *o, uint64_t *s)
{
	int k = (int)(rnd(s) % (uint64_t)o->n), what = o->left[k];

	o->left[k] = o->left[--o->n];
	switch (what) {
	case 0:
		CHECK_INT(net_close(&net, NET_CLOSE_SEND, o->pair.send), NET_OK);
		break;
	case 1:
		CHECK_INT(net_close(&net, NET_CLOSE_RECV, o->pair.recv), NET_OK);
		break;
	case 2:
		CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, o->listener), NET_OK);
		break;
	case 3:
		CHECK_INT(net_dereg(&net, o->pair.send, o->from_mr), NET_OK);
		break;
	default:
		CHECK_INT(net_dereg(&net, o->pair.recv, o->to_mr), NET_OK);
	}
}

static void round_of_all(uint64_t *s)
{
	struct one *all = calloc(PAIRS, sizeof(*all));
	int open = PAIRS;

	NEED(all);
	for (int i = 0; i < PAIRS; i++) {
		one_make(&all[i], (int)(rnd(s) % 2));
		one_use(&all[i], s);
	}
	while (open) {
		struct one *o = &all[rnd(s) % PAIRS];

		if (o->n) {
			one_close_some(o, s);
			open -= o->n == 0;
		}
	}
	free(all);
}

int main(int argc, char **argv)
{
	int fds, threads;
	uint64_t s;

	NEED(argc > 3);
	s = strtoull(argv[3], NULL, 0) * 0x9e3779b97f4a7c15ull + 1;
	check_context("version %s, seed %s", argv[2], argv[3]);
	net_load(&net, argv[1], atoi(argv[2]));
	NET_NEED(net_init(&net, -1) == NET_OK, "%s", net_log_last());
	threads = self_entries("/proc/self/task");
	round_of_all(&s);
	fds = self_entries("/proc/self/fd");
	for (int i = 1; i < ROUNDS; i++) {
		round_of_all(&s);
	}
	CHECK_INT(self_entries("/proc/self/fd"), fds);
	CHECK_INT(self_entries("/proc/self/task"), threads);
	CHECK_INT(net_finalize(&net), NET_OK);
	return check_end();
}
