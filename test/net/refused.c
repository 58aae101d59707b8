/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that cannot be made: connect() returns the error at once and gives no connection.
 *   refused LIBRARY receiver   the receiver's NIC finds no path, so the receiver refuses
 *   refused LIBRARY sender     two ranks; the sender's NIC finds no path after the receiver agreed
 */
#include <stdlib.h>
#include <string.h>
#include "net/rig.h"

#define GIVE_UP_MS 20000

static struct net net;

/* Calls connect() and accept() in turn until the first of them fails or succeeds. */
static void test_receiver_refuses(void)
{
	void *listener, *send = NULL, *recv = NULL;
	uint64_t until = net_now_ms() + GIVE_UP_MS;
	int connected = NET_OK, accepted = NET_OK;
	uint8_t handle[NET_HANDLE];

	NEED(net_listen(&net, 1, handle, &listener) == NET_OK);
	while (connected == NET_OK && !send) {
		NET_NEED(net_now_ms() < until, "connect() neither fails nor succeeds");
		connected = net_connect(&net, 0, handle, &send);
		if (accepted == NET_OK) {
			accepted = net_accept(&net, listener, &recv);
		}
		usleep(100);
	}
	CHECK_INT(accepted, NET_USAGE);
	CHECK(!recv);
	CHECK_INT(connected, NET_REMOTE);
	CHECK(!send);
	CHECK_HAS(net_log_find(2, "refuses: "), "refuses: ");
	NEED(net_close(&net, NET_CLOSE_LISTEN, listener) == NET_OK);
}

/* Returns the code of connect() or accept(), once it fails or gives a connection. */
static int until_made(int rank, uint8_t *handle, void *listener, void **comm)
{
	uint64_t until = net_now_ms() + GIVE_UP_MS;
	int code = NET_OK;

	while (code == NET_OK && !*comm) {
		NET_NEED(net_now_ms() < until, "a connection does not end in the making");
		code = rank == 0 ? net_connect(&net, 0, handle, comm)
				 : net_accept(&net, listener, comm);
		usleep(100);
	}
	return code;
}

/* The sender's own error names the path. The receiver learns at once that its peer is gone. */
static void test_sender_finds_no_path(int rank)
{
	void *listener = NULL, *comm = NULL;
	uint8_t handle[NET_HANDLE];

	if (rank == 0) {
		net_await("handle", handle, sizeof(handle));
	} else {
		NEED(net_listen(&net, 0, handle, &listener) == NET_OK);
		net_publish("handle", handle, sizeof(handle));
	}
	CHECK_INT(until_made(rank, handle, listener, &comm), rank == 0 ? NET_SYSTEM : NET_REMOTE);
	CHECK(!comm);
	if (rank == 0) {
		CHECK_HAS(net_log_find(2, "does not find the path"), "does not find the path");
	} else {
		CHECK_TEXT(net_log_find(2, "is its process stuck"), "");
	}
}

int main(int argc, char **argv)
{
	const char *number = getenv("RANK");
	int rank = number ? atoi(number) : 0;
	bool sender;

	NEED(argc == 3 && (!strcmp(argv[2], "receiver") || !strcmp(argv[2], "sender")));
	sender = !strcmp(argv[2], "sender");
	if (sender && rank == 0) {
		setenv("VC_NIC_PROFILE", "late_rtr", 1);
	}
	net_load(&net, argv[1], 12);
	NEED(net_init(&net, -1) == NET_OK);
	if (sender) {
		test_sender_finds_no_path(rank);
	} else {
		test_receiver_refuses();
	}
	return check_end();
}
