/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NICs of several ports, and what happens when one of them fails. Of four NICs the first two are
 * one end's, the others the other one's (TEST_NET_PORTS=2+2).
 *   merged LIBRARY VERSION props         what NCCL is told of them, and mergers that cannot be
 *   merged LIBRARY VERSION rails         rails and planes of NCCL_IB_HCA
 *   merged LIBRARY VERSION refused       NCCL_IB_MERGE_NICS=0
 *   merged LIBRARY VERSION late          data that comes long after it was sent another way: the
 *                                        first port's packets have to stray for 1500 ms
 *   merged LIBRARY VERSION late_slot     the same for what a receiver says: the third port's
 *                                        packets
 *   merged LIBRARY VERSION idle          a receiver that has all does not call any more, and its
 *                                        acknowledgements to the first port are lost
 *   merged LIBRARY VERSION closes        nor is it there any more
 *   merged LIBRARY VERSION flush         flushes, by ports that fail
 *   merged LIBRARY VERSION all           no port is left
 *   merged LIBRARY VERSION down          ports that are down before there is a connection
 *   merged LIBRARY VERSION homeless      one that has lost its address, too
 *   merged LIBRARY VERSION broken        a device that has failed, and new connections
 *   merged LIBRARY VERSION lost          paths over which the receiver does not find its sender
 */
#include <unistd.h>
#include "net/rig.h"
#include "support/self.h"

#define BYTES 65536
#define PACKETS 8192 /* one over each of two ports, which its end acknowledges at once */
#define SLOTS 64

static struct net net;
static struct net_pair pair;
static uint8_t *from, *to;
static void *from_mr, *to_mr;

/* ---- what NCCL is told ---- */

static void test_props(int version)
{
	static const int twice[] = { 0, 0 }, none[] = { 0, 4711 }, again[] = { 4, 3 };
	static const int two[] = { 0, 1 }, three[] = { 1, 2, 3 };
	int most = version >= 12 ? 8 : 4, many[9] = { 0, 1, 2, 3, 4, 5, 6, 7, 8 };
	struct net_props p, one;
	int count, dev, other;

	CHECK_INT(net_devices(&net, &count), NET_OK);
	CHECK_INT(count, 4);
	CHECK_INT(net_properties(&net, 1, &one), NET_OK);
	CHECK_INT(net_merge(&net, two, 2, &dev), NET_OK);
	CHECK_INT(dev, 4);
	CHECK_INT(net_devices(&net, &count), NET_OK);
	CHECK_INT(count, 5);
	CHECK_INT(net_properties(&net, dev, &p), NET_OK);
	CHECK(!strcmp(p.name, "mlx5_0+mlx5_1"), "%s", p.name);
	CHECK_INT(p.speed, 2 * one.speed);
	CHECK(p.ndevs == 2 && p.devs[0] == 0 && p.devs[1] == 1, "%d", p.ndevs);
	CHECK(p.ptr_support == one.ptr_support && p.max_comms == one.max_comms);
	/* The same again is the same; others are others. */
	CHECK_INT(net_merge(&net, two, 2, &other), NET_OK);
	CHECK_INT(other, dev);
	CHECK_INT(net_merge(&net, three, 3, &other), NET_OK);
	CHECK_INT(other, 5);
	CHECK_INT(net_merge(&net, two, 1, &other), NET_OK);
	CHECK_INT(other, 0);
	CHECK(net_merge(&net, twice, 2, &other) == NET_ARGUMENT);
	CHECK(net_merge(&net, none, 2, &other) == NET_ARGUMENT);
	CHECK(net_merge(&net, again, 2, &other) == NET_ARGUMENT);
	CHECK_HAS(net_log_last(), "merged already");
	CHECK(net_merge(&net, two, 0, &other) == NET_ARGUMENT);
	CHECK(net_merge(&net, two, -1, &other) == NET_ARGUMENT);
	CHECK(net_merge(&net, many, most + 1, &other) == NET_ARGUMENT);
	CHECK_INT(net_devices(&net, &count), NET_OK);
	CHECK_INT(count, 6);
	if (version >= 11) {
		/* NCCL that begins anew merges anew; one that remembers finds what it has made. */
		CHECK_INT(net_finalize(&net), NET_OK);
		CHECK_INT(net_init(&net, -1), NET_OK);
		CHECK_INT(net_devices(&net, &count), NET_OK);
		CHECK_INT(count, 4);
		CHECK_INT(net_properties(&net, dev, &p), NET_OK);
		CHECK_INT(net_merge(&net, two, 2, &dev), NET_OK);
		CHECK_INT(dev, 4);
		CHECK_INT(net_devices(&net, &count), NET_OK);
		CHECK_INT(count, 5);
	}
}

static void test_rails(void)
{
	static const struct {
		int dev[3], n, rail, plane;
	} cases[] = {
		{ { 0 }, 1, 5, 7 },
		{ { 1 }, 1, 5, 9 },
		{ { 2 }, 1, 6, -1 },
		{ { 3 }, 1, -1, -1 },
		{ { 0, 1 }, 2, 5, 0x4000 | 1 << 0 | 1 << 1 },
		{ { 0, 2 }, 2, -1, 0x4000 | 1 << 0 | 1 << 2 },
		{ { 1, 2, 3 }, 3, -1, 0x4000 | 1 << 1 | 1 << 2 },
	};
	struct net_props p;
	int dev;

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		check_context("case %zu", i);
		CHECK_INT(net_merge(&net, cases[i].dev, cases[i].n, &dev), NET_OK);
		CHECK_INT(net_properties(&net, dev, &p), NET_OK);
		CHECK_INT(p.rail, cases[i].rail);
		CHECK_INT(p.plane, cases[i].plane);
	}
}

static void test_refused(void)
{
	static const int two[] = { 0, 1 };
	int count, dev;

	CHECK_INT(net_merge(&net, two, 2, &dev), NET_USAGE);
	CHECK_INT(net_log_count(2), 0); /* NCCL goes on without */
	CHECK_HAS(net_log_last(), "NCCL_IB_MERGE_NICS=0");
	CHECK_INT(net_devices(&net, &count), NET_OK);
	CHECK_INT(count, 4);
}

/* ---- failures ---- */

static void use(const struct net_pair *made)
{
	pair = *made;
	from = malloc(BYTES);
	to = malloc(BYTES);
	NEED(from && to);
	NEED(net_reg(&net, pair.send, from, BYTES, NET_HOST, &from_mr) == NET_OK);
	/* (called a GPU's, so that flushes are made) */
	NEED(net_reg(&net, pair.recv, to, BYTES, NET_CUDA, &to_mr) == NET_OK);
}

static void begin(void)
{
	struct net_pair made;

	net_pair_make(&net, 0, 1, &made);
	use(&made);
}

static void end(void)
{
	CHECK_INT(net_close(&net, NET_CLOSE_SEND, pair.send), NET_OK);
	CHECK_INT(net_close(&net, NET_CLOSE_RECV, pair.recv), NET_OK);
	CHECK_INT(net_dereg(&net, pair.send, from_mr), NET_OK);
	CHECK_INT(net_dereg(&net, pair.recv, to_mr), NET_OK);
	free(from);
	free(to);
}

static void receive(size_t size, void **req)
{
	void *data = to;
	int tag = 1;

	*req = NULL;
	while (!*req) {
		NET_NEED(net_irecv(&net, pair.recv, 1, &data, &size, &tag, &to_mr, req) == NET_OK,
			 "%s", net_log_last());
	}
}

/* Both ends call while there is something to do. */
static void message(size_t size, uint64_t seed)
{
	uint64_t until = net_now_ms() + 30000;
	void *req[2] = { NULL, NULL };
	int done[2] = { 0, 0 }, sizes[64];

	net_fill(from, size, seed);
	receive(size, &req[1]);
	while (!done[0] || !done[1]) {
		NET_NEED(req[0] || net_isend(&net, pair.send, from, size, 1, from_mr, &req[0]) ==
					   NET_OK,
			 "%s", net_log_last());
		for (int i = 0; i < 2; i++) {
			NET_NEED(!req[i] || done[i] ||
					 net_test(&net, req[i], &done[i], sizes) == NET_OK,
				 "%s", net_log_last());
		}
		NET_NEED(net_now_ms() < until, "message %llu does not end",
			 (unsigned long long)seed);
		usleep(20);
	}
	CHECK_INT(net_wrong(to, size, seed), 0);
}

static void check_failover(void)
{
	CHECK_HAS(net_log_find(2, "; the connection goes on over "), ":1 QP 0x");
}

static void test_late(void)
{
	uint64_t began = net_now_ms();

	begin();
	message(BYTES, 1);
	check_failover();
	CHECK(net_now_ms() - began < 1400, "it took %llu ms, and nothing is late any more",
	      (unsigned long long)(net_now_ms() - began));
	memset(to, 0xee, BYTES);
	while (net_now_ms() - began < 1800) {
		usleep(1000);
	}
	for (size_t i = 0; i < BYTES; i++) {
		CHECK(to[i] == 0xee, "byte %zu was written after the message's end", i);
	}
	message(BYTES, 2);
	end();
}

static void test_late_slot(void)
{
	uint64_t began = net_now_ms();
	void *req[2];

	begin();
	for (uint64_t i = 0; i < SLOTS; i++) {
		message(100, i);
	}
	check_failover();
	receive(100, &req[1]);
	CHECK(net_now_ms() - began < 1400, "it took %llu ms, and nothing is late any more",
	      (unsigned long long)(net_now_ms() - began));
	while (net_now_ms() - began < 1800) {
		usleep(1000);
	}
	net_fill(from, 100, 4711);
	CHECK_INT(net_send_wait(&net, pair.send, from, 100, 1, from_mr, &req[0]), NET_OK);
	CHECK_INT(net_wait(&net, req[0], NULL), NET_OK);
	CHECK_INT(net_wait(&net, req[1], (int[64]){ 0 }), NET_OK);
	CHECK_INT(net_wrong(to, 100, 4711), 0);
	end();
}

/*
 * The receiver has the message, the sender does not know: and nobody calls for the receiver any
 * more.
 */
static void test_idle(bool closes)
{
	int sizes[64] = { 0 };
	void *req[2];

	begin();
	net_fill(from, PACKETS, 1);
	receive(PACKETS, &req[1]);
	CHECK_INT(net_send_wait(&net, pair.send, from, PACKETS, 1, from_mr, &req[0]), NET_OK);
	CHECK_INT(net_wait(&net, req[1], sizes), NET_OK);
	CHECK_INT(net_wrong(to, PACKETS, 1), 0);
	if (closes) {
		CHECK_INT(net_close(&net, NET_CLOSE_RECV, pair.recv), NET_OK);
		pair.recv = NULL;
		usleep(100000);
	}
	CHECK_INT(net_wait(&net, req[0], sizes), NET_OK);
	CHECK_INT(sizes[0], PACKETS);
	if (!closes) {
		check_failover();
		message(PACKETS, 2);
	}
	end();
}

static void test_flush(void)
{
	void *data, *req;
	int sizes = BYTES;

	begin();
	data = to;
	for (uint64_t i = 0; i < 300; i++) {
		message(BYTES, i);
		CHECK_INT(net_iflush(&net, pair.recv, 1, &data, &sizes, &to_mr, &req), NET_OK);
		CHECK(req);
		CHECK_INT(net_wait(&net, req, NULL), NET_OK);
	}
	check_failover();
	end();
}

static void test_all(void)
{
	void *req[2];
	int rc;

	begin();
	net_fill(from, BYTES, 1);
	receive(BYTES, &req[1]);
	CHECK_INT(net_send_wait(&net, pair.send, from, BYTES, 1, from_mr, &req[0]), NET_OK);
	rc = net_wait(&net, req[0], (int[64]){ 0 });
	CHECK_INT(rc, NET_REMOTE);
	check_failover();
	CHECK_HAS(net_log_find(2, "transport retry counter exceeded"), "mlx5_1:1 QP 0x");
	CHECK_INT(net_log_count(2), 3); /* (both ends tell of the first one) */
	end();
}

/* Memory of a connection that stays. */
static void forget(void)
{
	CHECK_INT(net_dereg(&net, pair.send, from_mr), NET_OK);
	CHECK_INT(net_dereg(&net, pair.recv, to_mr), NET_OK);
	free(from);
	free(to);
}

/* ---- ports that are down from the beginning ---- */

/* No connection can be made from a NIC, and nothing is left of it. */
static void refused(int dev, const char *text)
{
	uint8_t handle[NET_HANDLE] = { 0 };
	void *listener, *comm = NULL, *other = NULL;
	uint64_t until = net_now_ms() + 10000;
	int rc = NET_OK, files = self_entries("/proc/self/fd");

	NEED(net_listen(&net, net.place[1], handle, &listener) == NET_OK);
	while (rc == NET_OK && net_now_ms() < until && !(comm && other)) {
		rc = comm ? NET_OK : net_connect(&net, dev, handle, &comm);
		if (rc == NET_OK && !other) {
			rc = net_accept(&net, listener, &other);
			/* (the other end learns of it, and ends, too) */
			while (rc != NET_OK && net_connect(&net, dev, handle, &comm) == NET_OK &&
			       !comm) {
			}
		}
	}
	CHECK_INT(rc, NET_SYSTEM);
	CHECK(!comm && !other);
	CHECK_HAS(net_log_find(2, ""), text);
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
	CHECK_INT(self_entries("/proc/self/fd"), files);
	net_log_clear();
}

static void test_down(void)
{
	struct net_pair first;

	/* (all of the devices were up when they were looked for, and none is open) */
	net_faults_set("port_down:nic=0");
	refused(0, "mlx5_0:1 is not active");
	begin();
	for (uint64_t i = 0; i < 40; i++) {
		message(BYTES, i);
	}
	CHECK_HAS(net_log_find(2, "; the connection goes on over mlx5_1:1 and mlx5_3:1"),
		  "the port is down");
	/* The next one, while the devices are open. */
	first = pair;
	net_log_clear();
	forget();
	begin();
	message(BYTES, 41);
	CHECK_HAS(net_log_find(2, "; the connection goes on over mlx5_1:1 and mlx5_3:1"),
		  "the port is down");
	end();
	/* A connection that has no other port fails when nobody is found, and names it. */
	net_log_clear();
	refused(0, "; that port was down");
	/* It comes up: the first connection takes it into use, and those after that have it. */
	net_log_clear();
	net_faults_set("port_up:nic=0");
	use(&first);
	for (uint64_t i = 0; !*net_log_find(3, "the path is used again"); i++) {
		message(BYTES, i);
	}
	end();
	net_log_clear();
	begin();
	for (uint64_t i = 0; i < 40; i++) {
		message(BYTES, i);
	}
	end();
	CHECK_INT(net_log_count(2), 0);
	net_faults_set("port_down:nic=0");
	net_log_clear();
	net_faults_set("port_down:nic=1");
	refused(net.place[0], "mlx5_0+mlx5_1: none of its ports is active");
}

/* A port has lost its address with its carrier, as some software sees to it. */
static void test_homeless(void)
{
	net_faults_set("port_down:nic=0;gid_gone:nic=0");
	begin();
	for (uint64_t i = 0; i < 40; i++) {
		message(BYTES, i);
	}
	CHECK_HAS(net_log_find(2, "; the connection goes on over mlx5_1:1 and mlx5_3:1"),
		  "the port is down");
	/* It comes up, and its address does not: it is asked more and more rarely. */
	net_log_clear();
	net_faults_set("port_up:nic=0");
	for (uint64_t until = net_now_ms() + 6000; net_now_ms() < until;) {
		message(BYTES, 1);
		usleep(5000);
	}
	CHECK_HAS(net_log_find(2, ""), "NCCL_IB_GID_INDEX=3, but that entry");
	CHECK(net_log_count(2) <= 4, "%d lines", net_log_count(2));
	end();
	/* The next one opens the devices anew, while it still has none. */
	net_log_clear();
	begin();
	for (uint64_t i = 0; i < 40; i++) {
		message(BYTES, i);
	}
	CHECK_HAS(net_log_find(2, "; the connection goes on over mlx5_1:1 and mlx5_3:1"),
		  "it is given up");
	end();
}

/* ---- devices that are broken ---- */

/*
 * A device breaks, and older connections hold it still: one that is made then does without it, and
 * so does what is registered. When all are closed the next one opens it anew.
 */
static void test_broken(int dev, const char *fault)
{
	struct net_pair first;
	void *data, *req;
	int sizes = BYTES;

	begin();
	message(BYTES, 1);
	net_faults_set(fault);
	for (uint64_t i = 0; !*net_log_find(2, "; the connection goes on over "); i++) {
		message(BYTES, i);
	}
	first = pair;
	forget();
	for (int more = 0; more < 2; more++) {
		net_log_clear();
		begin();
		CHECK_INT(net_log_count(2), 2);
		CHECK_HAS(net_log_find(2,
				       "the device reports a fatal error; the connection goes on"),
			  "it is given up");
		CHECK_HAS(net_log_find(2, "the peer's device has failed; the connection goes on"),
			  "QP 0x");
		for (uint64_t i = 0; i < 40; i++) {
			message(BYTES, i);
			data = to;
			CHECK_INT(net_iflush(&net, pair.recv, 1, &data, &sizes, &to_mr, &req),
				  NET_OK);
			CHECK_INT(net_wait(&net, req, NULL), NET_OK);
		}
		end();
	}
	refused(dev, "the device reports a fatal error");
	use(&first);
	message(BYTES, 2);
	end();
	net_log_clear();
	begin();
	message(BYTES, 3);
	end();
	CHECK_INT(net_log_count(2), 0);
}

/* A device of each end has failed, and they are of different paths. */
static void test_broken_both(void)
{
	begin();
	message(BYTES, 1);
	net_faults_set("device_fatal:nic=0;device_fatal:nic=3");
	refused(net.place[0], "no path is left");
	end();
}

/*
 * The receiver does not find its sender over three paths of four, and the sender knows that when it
 * looks itself. They come back.
 */
static void test_lost(void)
{
	begin();
	CHECK_INT(net_log_count(2), 6);
	CHECK_HAS(net_log_find(2, "mlx5_2:1 QP"), "the peer is not found");
	CHECK_HAS(net_log_find(2, "mlx5_6:1 QP"), "the peer is not found");
	CHECK(!*net_log_find(2, "has noticed a failure"), "one end alone knows");
	for (uint64_t i = 0; i < 40 || !*net_log_find(3, "the path is used again"); i++) {
		message(BYTES, i);
	}
	end();
}

int main(int argc, char **argv)
{
	const char *what;
	int version;

	NEED(argc > 3);
	version = atoi(argv[2]);
	what = argv[3];
	check_context("version %d, %s", version, what);
	if (!strcmp(what, "down") || !strcmp(what, "homeless") || !strcmp(what, "broken")) {
		net_faults_open();
	}
	net_load(&net, argv[1], version);
	NET_NEED(net_init(&net, -1) == NET_OK, "%s", net_log_last());
	if (!strcmp(what, "props")) {
		test_props(version);
	} else if (!strcmp(what, "rails")) {
		test_rails();
	} else if (!strcmp(what, "refused")) {
		test_refused();
	} else if (!strcmp(what, "late")) {
		test_late();
	} else if (!strcmp(what, "late_slot")) {
		test_late_slot();
	} else if (!strcmp(what, "flush")) {
		test_flush();
	} else if (!strcmp(what, "all")) {
		test_all();
	} else if (!strcmp(what, "lost")) {
		test_lost();
	} else if (!strcmp(what, "down")) {
		test_down();
		net_faults_close();
	} else if (!strcmp(what, "homeless")) {
		test_homeless();
		net_faults_close();
	} else if (!strcmp(what, "broken")) {
		test_broken(0, "device_fatal:nic=0");
		test_broken(3, "device_fatal:nic=3");
		test_broken_both();
		net_faults_close();
	} else {
		test_idle(!strcmp(what, "closes"));
	}
	CHECK_INT(net_finalize(&net), NET_OK);
	return check_end();
}
