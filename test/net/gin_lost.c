/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Three processes with GIN between them. Something happens to the last one, or to its NIC; the
 * others must be told who and what, in one line, within seconds, and go on with each other as long
 * as they ask nothing of it.
 *   gin_lost LIBRARY SCENARIO TEXT
 *     dies_put, dies_register    SIGKILL, while the others put to it, or register memory
 *     closes_put                 it closes in order
 *     fault                      the environment says what happens to rank 0; rank 1 has nothing
 *                                under way to it, and is told all the same
 */
#include <signal.h>
#include <unistd.h>
#include "net/gin_rig.h"

#define RANKS 3
#define LAST (RANKS - 1)

static struct gin gin;
static struct net net;
static int rank;
static const char port[] = ": mlx5_0:1 QP 0x"; /* that fails, of its rank */
static void *coll, *mr;
static uint64_t word[512];

static void open_all(void)
{
	uint8_t handle[RANKS][NET_HANDLE] __attribute__((aligned(8)));
	void *handles[RANKS], *listener;
	char name[16];

	NEED(gin_listen(&gin, net.place[0], handle[rank], &listener) == NET_OK);
	snprintf(name, sizeof(name), "handle%d", rank);
	net_publish(name, handle[rank], NET_HANDLE);
	for (int r = 0; r < RANKS; r++) {
		snprintf(name, sizeof(name), "handle%d", r);
		net_await(name, handle[r], NET_HANDLE);
		handles[r] = handle[r];
	}
	NET_NEED(gin_connect(&gin, handles, RANKS, rank, listener, &coll) == NET_OK, "%s",
		 net_log_last());
	CHECK_INT(gin_close(&gin, GIN_CLOSE_LISTEN, listener), NET_OK);
	NEED(gin_reg(&gin, coll, word, sizeof(word), 0, &mr) == NET_OK);
}

/* To a rank, and done. Returns the code. */
static int put_to(int to)
{
	struct gin_put put = { .from = mr,
			       .to = mr,
			       .to_at = sizeof(word) / 2,
			       .size = 1000,
			       .signal = mr,
			       .signal_at = sizeof(word) - 8 * (size_t)(rank + 1),
			       .rank = (uint32_t)to,
			       .op = GIN_INC };
	void *request;
	int rc = gin_put(&gin, coll, &put, &request);

	return rc == NET_OK ? gin_wait(&gin, coll, request) : rc;
}

/* The two that are left wait for each other. */
static void meet(const char *what)
{
	char name[32];

	snprintf(name, sizeof(name), "%s%d", what, rank);
	net_publish(name, "", 1);
	snprintf(name, sizeof(name), "%s%d", what, 1 - rank);
	net_await(name, name, 1);
}

static void expect_loss(bool registers, const char *text)
{
	uint64_t began = net_now_ms();
	int rc = NET_OK;
	void *other;

	while (rc == NET_OK && net_now_ms() - began < 20000) {
		rc = registers ? gin_reg(&gin, coll, word, 8, 0, &other) : put_to(LAST);
	}
	CHECK(rc == NET_REMOTE || rc == NET_SYSTEM, "%d", rc);
	CHECK(net_now_ms() - began < 10000, "%llu ms", (unsigned long long)(net_now_ms() - began));
	CHECK_INT(net_log_count(2), 1);
	CHECK_HAS(net_log_find(2, ""), text);
	CHECK_HAS(net_log_find(2, ""), "rank 2 (");
	if (registers) {
		/* The data path does not mind. */
		CHECK_INT(put_to(1 - rank), NET_OK);
		return;
	}
	CHECK_HAS(net_log_find(2, ""), port);
	/* Whatever is asked then is the same error, and no further line. */
	for (int i = 0; i < 3; i++) {
		rc = put_to(i);
		CHECK(rc == NET_REMOTE || rc == NET_SYSTEM, "%d", rc);
	}
	CHECK_INT(net_log_count(2), 1);
}

/* Rank 0's NIC has failed: who has nothing to do with it is told within a second, by name, once. */
static void expect_word(const char *text)
{
	uint64_t began = net_now_ms(), at, failed_at;
	int rc = NET_OK;

	while (rc == NET_OK && net_now_ms() - began < 5000) {
		rc = put_to(rank);
	}
	at = net_now_ms();
	CHECK_INT(rc, NET_REMOTE);
	CHECK_INT(net_log_count(2), 1);
	CHECK_HAS(net_log_find(2, ""), "rank 0 (");
	CHECK_HAS(net_log_find(2, ""), text);
	CHECK_HAS(net_log_find(2, ""), port);
	CHECK_INT(put_to(rank), NET_REMOTE);
	CHECK_INT(net_log_count(2), 1);
	net_await("failed", &failed_at, sizeof(failed_at));
	CHECK(at < failed_at + 1000, "%llu ms later", (unsigned long long)(at - failed_at));
}

int main(int argc, char **argv)
{
	uint64_t failed_at;
	const char *scenario;
	void *other;

	NEED(argc > 3);
	scenario = argv[2];
	rank = atoi(getenv("RANK"));
	check_context("rank %d, %s", rank, scenario);
	if (rank == LAST && strncmp(scenario, "dies", 4) == 0) {
		net_live_in_child();
	}
	net_load(&net, argv[1], 12);
	NET_NEED(net_init(&net, -1) == NET_OK, "%s", net_log_last());
	gin_load(&gin, argv[1]);
	NET_NEED(gin_init(&gin) == NET_OK, "%s", net_log_last());
	open_all();
	for (int i = 0; i < 30; i++) {
		CHECK_INT(put_to((rank + i) % RANKS), NET_OK);
	}
	CHECK_INT(gin_reg(&gin, coll, word, 8, 0, &other), NET_OK);
	CHECK_INT(gin_dereg(&gin, coll, other), NET_OK);
	/* (the NIC of a rank ends with it: its last acknowledgements must have arrived) */
	net_publish(rank == 0 ? "well0" : rank == 1 ? "well1" : "well2", "", 1);
	if (rank == LAST && strncmp(scenario, "dies", 4) == 0) {
		net_await("well0", &(char){ 0 }, 1);
		net_await("well1", &(char){ 0 }, 1);
		kill(getpid(), SIGKILL);
	}
	if (rank != LAST) {
		/* (whether it is gone already or not) */
		for (int i = 0; i < 100; i++) {
			CHECK_INT(put_to(1 - rank), NET_OK);
		}
		CHECK_INT(net_log_count(2), 0);
		meet("before");
		if (strcmp(scenario, "fault") != 0 || rank == 0) {
			expect_loss(strstr(scenario, "register") != NULL, argv[3]);
			if (strcmp(scenario, "fault") == 0) {
				failed_at = net_now_ms();
				net_publish("failed", &failed_at, sizeof(failed_at));
			}
		} else {
			expect_word(argv[3]);
		}
		meet("behind");
	}
	CHECK_INT(gin_close(&gin, GIN_CLOSE_COLL, coll), NET_OK);
	CHECK_INT(gin_dereg(&gin, coll, mr), NET_OK);
	CHECK_INT(gin_finalize(&gin), NET_OK);
	CHECK_INT(net_finalize(&net), NET_OK);
	return check_end();
}
