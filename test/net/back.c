/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ports that fail and come back. Of four NICs the first two are the sender's, the others the
 * receiver's (TEST_NET_PORTS=2+2); what connections do is read from the file of their counters.
 *   back LIBRARY again LOSS    each port in turn fails and comes back, twice
 *   back LIBRARY flaps LOSS    a port comes and goes
 *   back LIBRARY dead LOSS     a port is up, but nothing arrives for a while
 *   back LIBRARY idle LOSS     a port fails and comes back while nobody calls
 * LOSS: what NICs do besides all the time, as VC_NIC_FAULTS has it; "": nothing.
 */
#include <sys/mman.h>
#include <unistd.h>
#include "net/counts_file.h"
#include "net/rig.h"

#define WINDOW 8
#define MOST 32768
#define SMALL 2000 /* over one path */

static struct net net;
static struct net_pair pair;
static uint8_t from[WINDOW][MOST], to[WINDOW][MOST];
static void *from_mr, *to_mr;
static void *req[2][WINDOW];                        /* sends, receives */
static uint64_t sent, received, posted, done;       /* messages; done: sends that have ended */
static const volatile struct ep_net_counts *end[2]; /* the sender's, the receiver's */
static const char *loss;

/* ---- counters ---- */

static void counters_open(void)
{
	const struct ep_net_counts_file *file;
	int fd = net_counts_open();

	file = mmap(NULL, sizeof(*file) + 16 * sizeof(*end[0]), PROT_READ, MAP_SHARED, fd, 0);
	NEED(file != MAP_FAILED && file->version == EP_NET_COUNTS_VERSION);
	close(fd);
	for (int i = 0; i < 16; i++) {
		if (file->entry[i].state) {
			end[file->entry[i].state - EP_NET_COUNTS_SENDS] = &file->entry[i];
		}
	}
	NEED(end[0] && end[1]);
}

static uint64_t parts(int path)
{
	return end[0]->path[path].parts;
}

/* Whether all paths are open at both ends, each by these ports. */
static bool all_open(void)
{
	bool open = true;

	for (int i = 0; i < 2; i++) {
		for (int r = 0; r < 2; r++) {
			open &= end[i]->path[r].open != 0;
		}
	}
	return open;
}

/* ---- messages ---- */

static uint32_t size_of(uint64_t number)
{
	return number % 3 == 0 ? MOST : number % 3 == 1 ? SMALL : (uint32_t)(number * 7919 % MOST);
}

static void receive_step(void)
{
	int at = (int)(received % WINDOW), over = 0, sizes[64] = { 0 }, tag = 1;
	void *data = to[posted % WINDOW];
	size_t room = MOST;

	if (posted < received + WINDOW) {
		NET_NEED(net_irecv(&net, pair.recv, 1, &data, &room, &tag, &to_mr,
				   &req[1][posted % WINDOW]) == NET_OK,
			 "%s", net_log_last());
		posted += req[1][posted % WINDOW] != NULL;
	}
	if (posted == received) {
		return;
	}
	NET_NEED(net_test(&net, req[1][at], &over, sizes) == NET_OK, "%s", net_log_last());
	if (over) {
		CHECK_INT(sizes[0], size_of(received));
		CHECK_INT(net_wrong(to[at], size_of(received), received), 0);
		memset(to[at], 0xee, MOST);
		received++;
	}
}

static void send_step(void)
{
	int at = (int)(sent % WINDOW), over = 0, size = 0;

	if (sent < done + WINDOW) {
		net_fill(from[at], size_of(sent), sent);
		NET_NEED(net_isend(&net, pair.send, from[at], size_of(sent), 1, from_mr,
				   &req[0][at]) == NET_OK,
			 "%s", net_log_last());
		sent += req[0][at] != NULL;
	}
	if (sent != done) {
		NET_NEED(net_test(&net, req[0][done % WINDOW], &over, &size) == NET_OK, "%s",
			 net_log_last());
		CHECK(!over || size == (int)size_of(done), "%d", size);
		done += (uint64_t)over;
	}
}

/* Messages, for some time, or, with `until`, until it is so. Returns how many. */
static uint64_t messages(uint64_t ms, bool (*until)(void))
{
	uint64_t limit = net_now_ms() + (until ? 20000 : ms), before = received;

	while (until ? !until() : net_now_ms() < limit) {
		NET_NEED(!until || net_now_ms() < limit,
			 "it does not come, after %llu messages: %s",
			 (unsigned long long)(received - before), net_log_last());
		receive_step();
		send_step();
		if (received % 16 == 0) {
			usleep(20);
		}
	}
	return received - before;
}

static uint64_t goal;

static bool enough(void)
{
	return received >= goal;
}

static void some_messages(uint64_t n)
{
	goal = received + n;
	messages(0, enough);
}

static void flush(void)
{
	uint64_t limit = net_now_ms() + 20000;

	while (done != sent || received != sent) {
		NET_NEED(net_now_ms() < limit, "messages do not end");
		receive_step();
		if (done != sent) {
			uint64_t was = sent;
			int over = 0, size;

			NET_NEED(net_test(&net, req[0][done % WINDOW], &over, &size) == NET_OK,
				 "%s", net_log_last());
			done += (uint64_t)over;
			CHECK_INT(sent, was);
		}
	}
}

#define SHARED 40

/* The ports that messages go by share them: the long ones are divided. */
static void check_shared(void)
{
	uint64_t before[2] = { parts(0), parts(1) }, had[2];

	some_messages(SHARED);
	for (int r = 0; r < 2; r++) {
		had[r] = parts(r) - before[r];
		CHECK(had[r] * 10 >= SHARED * 6, "path %d: %llu parts", r,
		      (unsigned long long)had[r]);
	}
}

/* ---- ports ---- */

static void port(const char *what, int nic)
{
	char rules[256];

	snprintf(rules, sizeof(rules), "%s:nic=%d;%s", what, nic, loss);
	net_faults_write(rules);
}

static uint64_t failovers, failbacks;

static bool failed(void)
{
	return end[0]->failovers > failovers && end[1]->failovers > failovers;
}

static bool is_back(void)
{
	return end[0]->failbacks > failbacks && end[1]->failbacks > failbacks && all_open();
}

static void test_again(void)
{
	check_shared();
	for (int i = 0; i < 8; i++) {
		uint64_t before;
		int path = i % 2;

		check_context("port %d, round %d", i % 4, i / 4);
		failovers = end[0]->failovers;
		failbacks = end[0]->failbacks;
		port("port_down", i % 4);
		messages(0, failed);
		CHECK_INT(end[0]->path[path].open, 0);
		before = parts(path);
		some_messages(10);
		CHECK_INT(parts(path), before);
		port("port_up", i % 4);
		messages(0, is_back);
		CHECK_HAS(net_log_find(3, "the path is used again"), "mlx5_");
		check_shared();
	}
	CHECK_INT(end[0]->failbacks, 8);
	CHECK_INT(end[0]->failovers, 8);
}

/* It is tried more and more rarely, and messages go on by the other port. */
static void test_flaps(void)
{
	uint64_t began = net_now_ms(), n = 0;
	int flaps = 0;

	for (; net_now_ms() - began < 2400; flaps++) {
		port("port_down", 0);
		n += messages(130, NULL); /* (of which the NIC takes 100 to notice) */
		port("port_up", 0);
		n += messages(70, NULL);
	}
	CHECK(n > (uint64_t)flaps, "%llu messages in %d flaps", (unsigned long long)n, flaps);
	CHECK(end[0]->failovers >= 1 && end[0]->failovers <= 8, "%llu failovers, %d flaps",
	      (unsigned long long)end[0]->failovers, flaps);
	messages(0, all_open);
	check_shared();
}

/* A port is up, and nothing arrives: nobody believes in it, and messages wait for it only once. */
static void test_dead(void)
{
	char rules[256];

	snprintf(rules, sizeof(rules), "retry_exceeded:nic=0,count=1000000;%s", loss);
	net_faults_write(rules);
	messages(0, failed);
	for (int i = 0; i < 15; i++) {
		messages(100, NULL);
	}
	some_messages(10);
	CHECK_INT(end[0]->failovers, 1);
	CHECK_INT(end[1]->failovers, 1);
	CHECK_INT(net_log_count(2), 2);
	net_faults_write(loss);
	messages(0, is_back);
	check_shared();
}

static bool both_back(void)
{
	return end[0]->failbacks > 0 && end[1]->failbacks > 0;
}

/* Nobody calls for the receiver: it closes its end, and opens it again, all the same. */
static void test_idle(void)
{
	uint64_t limit = net_now_ms() + 20000;

	messages(50, NULL);
	flush();
	while (posted < received + WINDOW) {
		receive_step();
	}
	port("port_down", 0);
	messages(30, NULL);
	while (done != sent || !end[0]->failovers) {
		NET_NEED(net_now_ms() < limit, "nothing fails");
		send_step();
	}
	port("port_up", 0);
	while (!both_back()) {
		NET_NEED(net_now_ms() < limit, "the path does not come back");
		send_step();
	}
	messages(0, all_open);
	check_shared();
}

int main(int argc, char **argv)
{
	char rules[256];

	NEED(argc > 3);
	loss = argv[3];
	net_faults_open();
	snprintf(rules, sizeof(rules), "%s", loss);
	net_faults_write(rules);
	net_load(&net, argv[1], 11);
	NET_NEED(net_init(&net, -1) == NET_OK, "%s", net_log_last());
	net_pair_make(&net, 0, 1, &pair);
	counters_open();
	NEED(net_reg(&net, pair.send, from, sizeof(from), NET_HOST, &from_mr) == NET_OK);
	NEED(net_reg(&net, pair.recv, to, sizeof(to), NET_HOST, &to_mr) == NET_OK);
	memset(to, 0xee, sizeof(to));
	check_context("%s", argv[2]);
	if (!strcmp(argv[2], "again")) {
		test_again();
	} else if (!strcmp(argv[2], "flaps")) {
		test_flaps();
	} else if (!strcmp(argv[2], "dead")) {
		test_dead();
	} else {
		test_idle();
	}
	flush();
	printf("%llu messages, %llu failovers, %llu failbacks, %llu parts sent again\n",
	       (unsigned long long)received, (unsigned long long)end[0]->failovers,
	       (unsigned long long)end[0]->failbacks, (unsigned long long)end[0]->resent);
	net_pair_close(&net, &pair);
	CHECK_INT(net_dereg(&net, NULL, from_mr), NET_OK);
	CHECK_INT(net_dereg(&net, NULL, to_mr), NET_OK);
	CHECK_INT(net_finalize(&net), NET_OK);
	net_faults_close();
	return check_end();
}
