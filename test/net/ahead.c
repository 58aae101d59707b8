/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A sender that knows of eight receives is told of more by eight at a time: how many messages it
 * may send before the receiver looks, and that it hears of the rest while the receiver does. Rounds
 * with other numbers of receives, each group of one to three, so that slots stand anywhere in their
 * ring.
 *   ahead LIBRARY ROUNDS SEED
 */
#include "net/rig.h"

#define MOST 30
#define BYTES 4096u
#define REFUSED_MS 20

static struct net net;
static struct net_pair pair;
static uint8_t from[MOST * 3][BYTES], to[MOST * 3][BYTES];
static void *from_mr, *to_mr;
static uint64_t state;

static uint32_t draw(uint32_t n)
{
	state = state * 6364136223846793005u + 1442695040888963407u;
	return (uint32_t)((state >> 33) % n);
}

struct round {
	int groups, n[MOST];
	void *recv[MOST], *send[MOST * 3];
	int sent; /* messages */
};

static void post(struct round *r, int group)
{
	void *data[3], *mr[3] = { to_mr, to_mr, to_mr };
	size_t room[3] = { BYTES, BYTES, BYTES };
	int tags[3] = { 5, 6, 7 };

	r->n[group] = 1 + (int)draw(3);
	for (int k = 0; k < r->n[group]; k++) {
		data[k] = to[group * 3 + k];
	}
	NET_NEED(net_irecv(&net, pair.recv, r->n[group], data, room, tags, mr, &r->recv[group]) ==
			 NET_OK,
		 "%s", net_log_last());
	NEED(r->recv[group]);
}

static void *try_send(int group, int k)
{
	void *request = NULL;

	NET_NEED(net_isend(&net, pair.send, from[group * 3 + k], BYTES, 5 + k, from_mr, &request) ==
			 NET_OK,
		 "%s", net_log_last());
	return request;
}

/* The receiver tests what it waits for. */
static void look(struct round *r)
{
	for (int g = 0; g < r->groups; g++) {
		int done = 0;

		NET_NEED(!r->recv[g] || net_test(&net, r->recv[g], &done, NULL) == NET_OK, "%s",
			 net_log_last());
		r->recv[g] = done ? NULL : r->recv[g];
	}
}

/* Sends the messages of a group; the receiver looks meanwhile, or does not. */
static void send_group(struct round *r, int group, bool looks)
{
	uint64_t until = net_now_ms() + 30000;

	for (int k = 0; k < r->n[group]; k++) {
		while (!(r->send[r->sent] = try_send(group, k))) {
			NET_NEED(net_now_ms() < until, "group %d", group);
			if (looks) {
				look(r);
			}
		}
		r->sent++;
	}
}

static void run(uint64_t number)
{
	struct round r = { .groups = 1 + (int)draw(MOST) };
	int told = r.groups < 8 ? r.groups : 8 + (r.groups - 8) / 8 * 8;
	uint64_t until;

	check_context("round %llu: %d groups", (unsigned long long)number, r.groups);
	for (int g = 0; g < r.groups; g++) {
		for (int k = 0; k < 3; k++) {
			net_fill(from[g * 3 + k], BYTES, number * 100 + (uint64_t)(g * 3 + k));
		}
		memset(to[g * 3], 0xee, sizeof(to[0]) * 3);
		post(&r, g);
	}
	for (int g = 0; g < told; g++) {
		send_group(&r, g, false);
	}
	until = net_now_ms() + REFUSED_MS;
	while (told < r.groups && net_now_ms() < until) {
		CHECK(!try_send(told, 0));
	}
	for (int g = told; g < r.groups; g++) {
		send_group(&r, g, true);
	}
	for (int g = 0; g < r.groups; g++) {
		NEED(!r.recv[g] || net_wait(&net, r.recv[g], NULL) == NET_OK);
		for (int k = 0; k < r.n[g]; k++) {
			CHECK_INT(net_wrong(to[g * 3 + k], BYTES,
					    number * 100 + (uint64_t)(g * 3 + k)),
				  0);
		}
	}
	for (int i = 0; i < r.sent; i++) {
		NEED(net_wait(&net, r.send[i], NULL) == NET_OK);
	}
}

int main(int argc, char **argv)
{
	uint64_t rounds;

	NEED(argc > 3);
	rounds = strtoull(argv[2], NULL, 0);
	state = strtoull(argv[3], NULL, 0);
	net_load(&net, argv[1], 12);
	NET_NEED(net_init(&net, -1) == NET_OK, "%s", net_log_last());
	net_pair_make(&net, 0, 1, &pair);
	NEED(net_reg(&net, pair.send, from, sizeof(from), NET_HOST, &from_mr) == NET_OK);
	NEED(net_reg(&net, pair.recv, to, sizeof(to), NET_HOST, &to_mr) == NET_OK);
	for (uint64_t i = 0; i < rounds; i++) {
		run(i);
	}
	CHECK_INT(net_dereg(&net, pair.send, from_mr), NET_OK);
	CHECK_INT(net_dereg(&net, pair.recv, to_mr), NET_OK);
	net_pair_close(&net, &pair);
	CHECK_INT(net_finalize(&net), NET_OK);
	return check_end();
}
