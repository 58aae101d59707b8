/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes, rank 0 sends, rank 1 receives; then something happens, and who is left must be
 * told what it was, in one line, within seconds.
 *   lost LIBRARY SCENARIO TEXT
 *     receiver_dies, sender_dies      SIGKILL
 *     receiver_closes, sender_closes  in order, while the other end goes on
 *     fault                           the environment says what the NICs do, to the sender
 *     back                            and nothing comes of it: the link is back in time
 *     over                            and another port takes over
 */
#include <signal.h>
#include <unistd.h>
#include "net/rig.h"

#define BYTES 20000
#define BEFORE 40 /* messages that go well */

static struct net net;
static int rank;

static void *meet(void)
{
	uint64_t until = net_now_ms() + 20000;
	uint8_t handle[NET_HANDLE];
	void *listener = NULL, *comm = NULL;

	if (rank == 1) {
		NEED(net_listen(&net, net.place[0], handle, &listener) == NET_OK);
		net_publish("handle", handle, sizeof(handle));
	} else {
		net_await("handle", handle, sizeof(handle));
	}
	while (!comm) {
		int rc = rank == 1 ? net_accept(&net, listener, &comm)
				   : net_connect(&net, net.place[0], handle, &comm);

		NET_NEED(rc == NET_OK && net_now_ms() < until, "%d: %s", rc, net_log_last());
		usleep(200);
	}
	if (rank == 1) {
		CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
	}
	return comm;
}

/* One message, at either end. Returns the code of the call that failed, if one did. */
static int message(void *comm, uint8_t *buffer, void *mr, int number)
{
	void *data = buffer, *req = NULL;
	size_t size = BYTES;
	int sizes[64] = { 0 }, tag = 1, rc;

	if (rank == 0) {
		net_fill(buffer, BYTES, (uint64_t)number);
		rc = net_send_wait(&net, comm, buffer, BYTES, tag, mr, &req);
	} else {
		do {
			rc = net_irecv(&net, comm, 1, &data, &size, &tag, &mr, &req);
		} while (rc == NET_OK && !req);
	}
	rc = rc == NET_OK ? net_wait(&net, req, sizes) : rc;
	if (rc == NET_OK) {
		CHECK_INT(sizes[0], BYTES);
		CHECK_INT(net_wrong(buffer, BYTES, (uint64_t)number), 0);
	}
	return rc;
}

/* The end of it for the rank that is left. */
static void expect_loss(void *comm, uint8_t *buffer, void *mr, const char *text)
{
	uint64_t began = net_now_ms();
	int rc = NET_OK, sizes[64], tag = 1;
	void *data = buffer, *req;
	size_t size = BYTES;

	for (int i = 0; rc == NET_OK && net_now_ms() - began < 20000; i++) {
		rc = message(comm, buffer, mr, BEFORE + i);
	}
	CHECK(rc == NET_REMOTE || rc == NET_SYSTEM, "%d", rc);
	CHECK(net_now_ms() - began < 10000, "%llu ms", (unsigned long long)(net_now_ms() - began));
	CHECK_INT(net_log_count(2), 1);
	CHECK_HAS(net_log_find(2, ""), text);
	CHECK_HAS(net_log_find(2, ""), "mlx5_0:1 QP 0x");
	CHECK_HAS(net_log_find(2, ""), rank == 0 ? "(127.1.0.1) to " : "(127.1.1.1) from ");
	/* Whatever is asked then is the same error, and no further line. */
	for (int i = 0; i < 3; i++) {
		rc = rank == 0 ? net_isend(&net, comm, buffer, 8, tag, mr, &req)
			       : net_irecv(&net, comm, 1, &data, &size, &tag, &mr, &req);
		CHECK(rc == NET_REMOTE || rc == NET_SYSTEM, "%d", rc);
	}
	if (rank == 1) {
		CHECK(net_iflush(&net, comm, 1, &data, sizes, &mr, &req) != NET_OK);
	}
	CHECK_INT(net_log_count(2), 1);
}

int main(int argc, char **argv)
{
	const char *scenario, *text;
	uint8_t *buffer = malloc(BYTES);
	void *comm, *mr;
	int other;

	NEED(argc > 3 && buffer);
	scenario = argv[2];
	text = argv[3];
	rank = atoi(getenv("RANK"));
	check_context("rank %d, %s", rank, scenario);
	other = strncmp(scenario, "receiver", 8) == 0 ? 1
		: strncmp(scenario, "sender", 6) == 0 ? 0
						      : -1;
	if (other == rank && strstr(scenario, "dies")) {
		net_live_in_child();
	}
	net_load(&net, argv[1], 11);
	NET_NEED(net_init(&net, -1) == NET_OK, "%s", net_log_last());
	comm = meet();
	NEED(net_reg(&net, comm, buffer, BYTES, NET_HOST, &mr) == NET_OK);
	for (int i = 0; i < BEFORE; i++) {
		CHECK_INT(message(comm, buffer, mr, i), NET_OK);
	}
	/*
	 * The NIC of the virtual cluster dies with its process, and with it the last
	 * acknowledgement that it has not sent: a rank dies when the other one has all that it
	 * waits for.
	 */
	if (strstr(scenario, "dies")) {
		if (other == rank) {
			net_await("all well", &(char){ 0 }, 1);
			kill(getpid(), SIGKILL);
		}
		net_publish("all well", "", 1);
	}
	if (other == rank) {
		/*
		 * (the other end has all that was sent: it said so, by its receives or its sends)
		 */
		usleep(100000);
	} else if (strcmp(scenario, "back") == 0) {
		for (int i = 0; i < BEFORE; i++) {
			CHECK_INT(message(comm, buffer, mr, BEFORE + i), NET_OK);
		}
		CHECK_TEXT(net_log_find(2, ""), "");
		CHECK(rank == 1 || *net_log_find(3, "the port is down"));
	} else if (strcmp(scenario, "over") == 0) {
		for (int i = 0; i < BEFORE; i++) {
			CHECK_INT(message(comm, buffer, mr, BEFORE + i), NET_OK);
		}
		CHECK_INT(net_log_count(2), 1);
		CHECK_HAS(net_log_find(2, "; the connection goes on over mlx5_1:1"), text);
	} else if (other >= 0 || rank == 0) {
		expect_loss(comm, buffer, mr, text);
	} else {
		/* the receiver, whose sender's NIC fails: it hears no more than that */
		int rc = NET_OK;

		for (int i = 0; rc == NET_OK; i++) {
			rc = message(comm, buffer, mr, BEFORE + i);
		}
		CHECK_INT(rc, NET_REMOTE);
	}
	/* (the receiver's NIC ends with it: the sender has its last acknowledgement first) */
	if (strcmp(scenario, "back") == 0 || strcmp(scenario, "over") == 0) {
		if (rank == 0) {
			net_publish("all sent", "", 1);
		} else {
			net_await("all sent", &(char){ 0 }, 1);
		}
	}
	CHECK_INT(net_close(&net, rank == 0 ? NET_CLOSE_SEND : NET_CLOSE_RECV, comm), NET_OK);
	CHECK_INT(net_dereg(&net, comm, mr), NET_OK);
	CHECK_INT(net_finalize(&net), NET_OK);
	free(buffer);
	return check_end();
}
