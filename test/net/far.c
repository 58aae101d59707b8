/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two processes on one host or on two, which meet at a TCP port; messages both ways, every byte
 * checked.
 *   far LIBRARY DEVICE listen|ADDRESS COUNT [down | until FILE]
 * DEVICE: of this process. With `down` the link goes down meanwhile and stays down: the connections
 * fail, in a line that names the device, and once the link is back new ones carry COUNT messages.
 * With `until`: COUNT messages again and again, until one of the processes finds the file.
 */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>
#include "net/rig.h"

#define PORT 7170
#define MOST 300001
#define WAIT_MS 100000u

static struct net net;
static const char *device;
static int other; /* the socket */
static uint8_t *from, *to;
static struct net_pair pair;
static void *from_mr, *to_mr;

static void meet_socket(const char *address)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(PORT) };
	uint64_t until = net_now_ms() + WAIT_MS;
	int one = 1, fd = socket(AF_INET, SOCK_STREAM, 0);

	NEED(fd >= 0);
	if (strcmp(address, "listen") == 0) {
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
		NEED(bind(fd, (struct sockaddr *)&at, sizeof(at)) == 0 && listen(fd, 1) == 0);
		other = accept(fd, NULL, NULL);
		NEED(other >= 0);
		close(fd);
		return;
	}
	NEED(inet_pton(AF_INET, address, &at.sin_addr) == 1);
	while (connect(fd, (struct sockaddr *)&at, sizeof(at)) != 0) {
		NET_NEED(net_now_ms() < until, "nobody at %s", address);
		usleep(100000);
		close(fd);
		fd = socket(AF_INET, SOCK_STREAM, 0);
	}
	other = fd;
}

/* Both say something of one size. */
static void swap(const void *mine, void *theirs, size_t size)
{
	size_t got = 0;

	NEED(write(other, mine, size) == (ssize_t)size);
	while (got < size) {
		ssize_t n = read(other, (char *)theirs + got, size - got);

		NET_NEED(n > 0, "the other process is gone");
		got += (size_t)n;
	}
}

static void connect_pair(void)
{
	uint8_t mine[NET_HANDLE] = { 0 }, theirs[NET_HANDLE] __attribute__((aligned(8)));
	uint64_t until = net_now_ms() + WAIT_MS;
	void *listener;

	NET_NEED(net_listen(&net, 0, mine, &listener) == NET_OK, "%s", net_log_last());
	swap(mine, theirs, sizeof(mine));
	pair = (struct net_pair){ .send = NULL };
	while (!pair.send || !pair.recv) {
		NET_NEED(net_now_ms() < until, "no connection");
		NET_NEED(pair.send || net_connect(&net, 0, theirs, &pair.send) == NET_OK, "%s",
			 net_log_last());
		NET_NEED(pair.recv || net_accept(&net, listener, &pair.recv) == NET_OK, "%s",
			 net_log_last());
		usleep(1000);
	}
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
	NEED(net_reg(&net, pair.send, from, MOST, NET_HOST, &from_mr) == NET_OK);
	NEED(net_reg(&net, pair.recv, to, MOST, NET_HOST, &to_mr) == NET_OK);
}

static void close_pair(void)
{
	CHECK_INT(net_dereg(&net, pair.send, from_mr), NET_OK);
	CHECK_INT(net_dereg(&net, pair.recv, to_mr), NET_OK);
	net_pair_close(&net, &pair);
}

/* A message each way, both looked after in turn. Returns the code of what failed. */
static int exchange(uint64_t number)
{
	static const size_t sizes[] = { 8, 4096, 0, 65537, 1, MOST, 128 };
	size_t size = sizes[number % 7], room = MOST;
	uint64_t until = net_now_ms() + WAIT_MS;
	void *send = NULL, *recv = NULL, *data = to;
	int tag = 3, got[64] = { 0 }, sent = 0, received = 0, rc;

	net_fill(from, size, number);
	memset(to, 0xee, size);
	rc = net_irecv(&net, pair.recv, 1, &data, &room, &tag, &to_mr, &recv);
	NEED(rc != NET_OK || recv);
	while (rc == NET_OK && (!sent || !received)) {
		NET_NEED(net_now_ms() < until, "message %llu", (unsigned long long)number);
		rc = send ? NET_OK : net_isend(&net, pair.send, from, size, tag, from_mr, &send);
		rc = rc == NET_OK && send && !sent ? net_test(&net, send, &sent, NULL) : rc;
		rc = rc == NET_OK && !received ? net_test(&net, recv, &received, got) : rc;
	}
	if (rc == NET_OK) {
		CHECK_INT(got[0], size);
		CHECK_INT(net_wrong(to, size, number), 0);
	}
	return rc;
}

static void wait_for_link(void)
{
	uint64_t until = net_now_ms() + WAIT_MS;
	char path[256], state[32] = "";

	snprintf(path, sizeof(path), "/sys/class/infiniband/%s/ports/1/state", device);
	while (state[0] != '4') {
		FILE *f = fopen(path, "re");

		NET_NEED(f && fgets(state, sizeof(state), f), "%s", path);
		fclose(f);
		NET_NEED(net_now_ms() < until, "%s is %s", path, state);
		usleep(10000);
	}
}

/* Until the link is down, and its connections are. */
static void fail(void)
{
	uint64_t until = net_now_ms() + WAIT_MS;
	char name[32];
	int rc = NET_OK;

	for (uint64_t i = 0; rc == NET_OK; i++) {
		NET_NEED(net_now_ms() < until, "the link is still there");
		rc = exchange(i);
	}
	CHECK_INT(rc, NET_REMOTE);
	printf("%s\n", net_log_find(2, ""));
	fflush(stdout);
	snprintf(name, sizeof(name), "%s:1 QP 0x", device);
	CHECK_HAS(net_log_find(2, ""), name);
	close_pair();
	wait_for_link();
	net_log_clear();
	connect_pair();
}

/* Neither process stops before the other one. */
static bool go_on(const char *file)
{
	uint8_t mine = access(file, F_OK) == 0, theirs;

	swap(&mine, &theirs, 1);
	return !mine && !theirs;
}

int main(int argc, char **argv)
{
	uint64_t count, number = 0, until;

	NEED(argc > 4);
	device = argv[2];
	setenv("NCCL_IB_HCA", device, 1);
	from = aligned_alloc(4096, (MOST + 4095) & ~4095);
	to = aligned_alloc(4096, (MOST + 4095) & ~4095);
	NEED(from && to);
	check_context("%s", device);
	meet_socket(argv[3]);
	count = strtoull(argv[4], NULL, 0);
	wait_for_link();
	net_load(&net, argv[1], 11);
	NET_NEED(net_init(&net, -1) == NET_OK, "%s", net_log_last());
	connect_pair();
	if (argc == 6) {
		fail();
	}
	until = net_now_ms() + WAIT_MS;
	do {
		NET_NEED(net_now_ms() < until, "there is no %s", argv[6]);
		for (uint64_t i = 0; i < count; i++) {
			NET_NEED(exchange(number++) == NET_OK, "%s", net_log_last());
		}
	} while (argc > 6 && go_on(argv[6]));
	CHECK_INT(net_log_count(2), 0);
	swap("", from, 1); /* both have all */
	close_pair();
	CHECK_INT(net_finalize(&net), NET_OK);
	free(from);
	free(to);
	return check_end();
}
