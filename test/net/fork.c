/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A child of fork() that lives while receives are posted, as that of a data loader does: it writes
 * memory that it got, and the parent's messages arrive all the same, those that were under way and
 * new ones. Over NICs whose kernel leaves them with old pages (profile old_fork), and over any
 * device.
 *   fork LIBRARY [DEVICE DEVICE]
 */
#include <sys/wait.h>
#include <unistd.h>
#include "net/rig.h"

#define BYTES 50000u
#define ROUNDS 20

static struct net net;
static struct net_pair pair;
static uint8_t *from, *to;
static void *from_mr, *to_mr;

static void receive(int tag, void **request)
{
	size_t size = BYTES;

	do {
		NET_NEED(net_irecv(&net, pair.recv, 1, (void **)&to, &size, &tag, &to_mr,
				   request) == NET_OK,
			 "%s", net_log_last());
	} while (!*request);
}

/* The other half, and what has come. */
static void send_to(int tag, void *receiving)
{
	void *sending;
	int got = 0;

	net_fill(from, BYTES, (uint64_t)tag);
	NET_NEED(net_send_wait(&net, pair.send, from, BYTES, tag, from_mr, &sending) == NET_OK,
		 "message %d: %s", tag, net_log_last());
	NET_NEED(net_wait(&net, receiving, &got) == NET_OK, "message %d: %s", tag, net_log_last());
	CHECK_INT(got, BYTES);
	CHECK_INT(net_wait(&net, sending, NULL), NET_OK);
	CHECK_INT(net_wrong(to, BYTES, (uint64_t)tag), 0);
}

/* It writes memory that it got, and stays until the parent closes `stay` or is gone. */
static pid_t child(int *stay)
{
	uint8_t *heap = malloc(4096);
	int ends[2];
	pid_t pid;

	NEED(heap && pipe(ends) == 0);
	memset(heap, 1, 4096);
	pid = fork();
	NEED(pid >= 0);
	if (pid == 0) {
		close(ends[1]);
		memset(heap, 2, 4096);
		_exit(read(ends[0], heap, 1) == 0 && heap[4095] == 2 ? 0 : 1);
	}
	free(heap);
	close(ends[0]);
	*stay = ends[1];
	return pid;
}

int main(int argc, char **argv)
{
	int stay, status;
	void *request;
	pid_t pid;

	NEED(argc > 1);
	if (argc > 3) {
		char list[80];

		snprintf(list, sizeof(list), "=%s,%s", argv[2], argv[3]);
		setenv("NCCL_IB_HCA", list, 1);
	}
	net_load(&net, argv[1], 11);
	NET_NEED(net_init(&net, -1) == NET_OK, "%s", net_log_last());
	CHECK_HAS(net_log_find(3, "fork(): "), "a child");
	from = aligned_alloc(4096, 65536);
	to = aligned_alloc(4096, 65536);
	NEED(from && to);
	memset(to, 0, 65536);
	net_pair_make(&net, 0, 1, &pair);
	NEED(net_reg(&net, pair.send, from, 65536, NET_HOST, &from_mr) == NET_OK);
	NEED(net_reg(&net, pair.recv, to, 65536, NET_HOST, &to_mr) == NET_OK);
	receive(1, &request);
	send_to(1, request);
	receive(2, &request);
	pid = child(&stay);
	send_to(2, request);
	for (int tag = 3; tag < ROUNDS; tag++) {
		receive(tag, &request);
		send_to(tag, request);
	}
	close(stay);
	NEED(waitpid(pid, &status, 0) == pid);
	CHECK_INT(status, 0);
	CHECK_INT(net_dereg(&net, pair.send, from_mr), NET_OK);
	CHECK_INT(net_dereg(&net, pair.recv, to_mr), NET_OK);
	net_pair_close(&net, &pair);
	CHECK_INT(net_finalize(&net), NET_OK);
	return check_end();
}
