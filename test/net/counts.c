/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What ep_info says of connections, while they work, after a port has failed, and of files that are
 * none.
 *   counts LIBRARY EP_INFO
 *   counts LIBRARY EP_INFO ROOM WARNINGS   /dev/shm is so small; so many ends of 80 are not counted
 * Of four NICs the first two are the sender's; requests to its first port get no answer after some
 * time.
 */
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>
#include "net/counts_file.h"
#include "net/rig.h"

#define MESSAGES 60
#define SIZE 8192 /* over both ports */

static struct net net;
static char text[1 << 20];

/* All that ep_info prints of this process; "" if there is nothing. */
static const char *ask(const char *ep_info)
{
	static char mine[sizeof(text)];
	char command[512], head[64], *at, *end;
	FILE *f;

	snprintf(command, sizeof(command), "'%s' --net", ep_info);
	f = popen(command, "r");
	NEED(f);
	text[fread(text, 1, sizeof(text) - 1, f)] = '\0';
	CHECK_INT(pclose(f), 0);
	CHECK(strncmp(text, "Connections of the network plugin\n", 34) == 0, "%.80s", text);
	snprintf(head, sizeof(head), "\n  process %d, ", (int)getpid());
	mine[0] = '\0';
	at = strstr(text, head);
	if (!at) {
		return mine;
	}
	end = at + 3;
	while ((end = strchr(end, '\n')) && end[1] == ' ' && end[2] == ' ' && end[3] == ' ') {
		end++;
	}
	snprintf(mine, sizeof(mine), "%.*s", (int)((end ? end : at + strlen(at)) - at + 1), at);
	return mine;
}

/* The number before a word, in the first line that has it behind a text. */
static long long number(const char *all, const char *behind, const char *word)
{
	const char *at = strstr(all, behind), *found = at ? strstr(at, word) : NULL;
	long long n = -1;

	while (found && found > all &&
	       (found[-1] == ' ' || (found[-1] >= '0' && found[-1] <= '9'))) {
		found--;
	}
	return found && sscanf(found, "%lld", &n) == 1 ? n : -1;
}

static void message(struct net_pair *pair, uint8_t *from, uint8_t *to, void *from_mr, void *to_mr)
{
	void *req[2] = { NULL, NULL }, *data = to;
	int done[2] = { 0, 0 }, tag = 1, sizes[64];
	uint64_t until = net_now_ms() + 20000;
	size_t size = SIZE;

	NEED(net_irecv(&net, pair->recv, 1, &data, &size, &tag, &to_mr, &req[1]) == NET_OK);
	while (!done[0] || !done[1]) {
		NEED(req[0] ||
		     net_isend(&net, pair->send, from, SIZE, 1, from_mr, &req[0]) == NET_OK);
		for (int i = 0; i < 2; i++) {
			NEED(!req[i] || done[i] ||
			     net_test(&net, req[i], &done[i], sizes) == NET_OK);
		}
		NEED(net_now_ms() < until);
		usleep(20);
	}
}

static void test_counts(const char *ep_info)
{
	static uint8_t from[SIZE], to[SIZE];
	void *from_mr, *to_mr;
	struct net_pair pair;
	const char *say, *first;
	long long again;

	CHECK(!*ask(ep_info), "a process that has no connection: %s", text);
	net_pair_make(&net, 0, 1, &pair);
	say = ask(ep_info);
	NEED(say);
	CHECK_HAS(say, "mlx5_0+mlx5_1 sends to ");
	CHECK_HAS(say, "mlx5_2+mlx5_3 receives from ");
	CHECK_HAS(say, "mlx5_0:1 to mlx5_2:1, 0 parts, 0 bytes\n");
	NEED(net_reg(&net, pair.send, from, SIZE, NET_HOST, &from_mr) == NET_OK);
	NEED(net_reg(&net, pair.recv, to, SIZE, NET_HOST, &to_mr) == NET_OK);
	for (int i = 0; i < MESSAGES; i++) {
		message(&pair, from, to, from_mr, to_mr);
	}
	say = ask(ep_info);
	for (int i = 0; i < 2; i++) {
		const char *behind = i ? " receives from " : " sends to ";

		CHECK_INT(number(say, behind, " messages"), MESSAGES);
		CHECK_INT(number(say, behind, " bytes"), MESSAGES * SIZE);
		CHECK_INT(number(say, behind, " failovers"), 1);
	}
	CHECK(number(say, " sends to ", " polls") > 0);
	CHECK(number(say, " sends to ", " completions") > 0);
	/* The second port has had a part of each message, and what the first one has lost. */
	again = number(say, "mlx5_0+", " parts sent again");
	CHECK(again > 0 && again < 10, "%lld", again);
	CHECK_INT(number(say, "mlx5_1:1 to ", " parts"), MESSAGES + again);
	CHECK(number(say, "mlx5_0:1 to ", " parts") > 20, "%s", say);
	first = strstr(say, "mlx5_0:1 to ");
	NEED(first);
	CHECK_HAS(first, " bytes, failed\n");
	net_pair_close(&net, &pair);
	CHECK_HAS(ask(ep_info), "no connections");
	CHECK_INT(net_dereg(&net, NULL, from_mr), NET_OK);
	CHECK_INT(net_dereg(&net, NULL, to_mr), NET_OK);
}

/* Files of that name which something else has made. */
static void test_files(const char *ep_info)
{
	static const char path[] = "/dev/shm/nccl-ep-net.99999999.0123456789abcdef";
	uint8_t head[200];
	int fd = net_counts_open();
	FILE *f;

	NEED(read(fd, head, sizeof(head)) == (ssize_t)sizeof(head));
	close(fd);
	for (int i = 0; i < 4; i++) {
		/* Nothing, nonsense, another version, and a file that ends too early. */
		size_t size = i == 0 ? 0 : sizeof(head);

		head[0] ^= i == 1 || i == 2 ? 0x55 : 0;
		head[8] ^= i == 2 || i == 3 ? 0x55 : 0;
		f = fopen(path, "w");
		NEED(f && fwrite(head, 1, size, f) == size && fclose(f) == 0);
		ask(ep_info);
		unlink(path);
		CHECK_HAS(text,
			  i < 2    ? "abcdef is not what it should be"
			  : i == 2 ? "abcdef is of another version"
				   : ", which has ended: the user's next one removes the file\n"
				     "    no connections\n");
	}
}

/*
 * Any user can make one that talks to the terminal of whoever asks: in ASCII, in one byte of C1, in
 * UTF-8.
 */
static void test_hostile_file(const char *ep_info)
{
	static const char path[] = "/dev/shm/nccl-ep-net.99999998.0123456789abcdef",
			  say[] = "\x1b[2J\x9b"
				  "31m\xc2\x9b"
				  "2J\x7f\n";
	static struct ep_net_counts_file head = { .magic = EP_NET_COUNTS_MAGIC,
						  .version = EP_NET_COUNTS_VERSION,
						  .entries = EP_NET_COUNTS_ENTRIES,
						  .entry_bytes = sizeof(struct ep_net_counts) };
	static struct ep_net_counts entry = { .state = EP_NET_COUNTS_SENDS };
	char *const texts[] = { head.program, entry.nic, entry.peer, entry.path[0].from,
				entry.path[0].to };
	int shown = 0;
	FILE *f;

	check_context("hostile file");
	for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
		strcpy(texts[i], say);
	}
	f = fopen(path, "w");
	NEED(f && fwrite(&head, sizeof(head), 1, f) == 1 &&
	     fwrite(&entry, sizeof(entry), 1, f) == 1);
	NEED(fclose(f) == 0);
	ask(ep_info);
	unlink(path);
	for (const char *at = text; (at = strstr(at, "?[2J?31m??2J??")); at++) {
		shown++;
	}
	CHECK_INT(shown, 5);
	for (const unsigned char *c = (unsigned char *)text; *c; c++) {
		CHECK(*c == '\n' || (*c >= ' ' && *c < 0x7f), "byte 0x%02x", *c);
	}
}

/*
 * A /dev/shm that no other process has. In the common one any process of the user that begins to
 * count takes away the files here that nobody holds.
 */
static bool own_shm(const char *options)
{
	if (unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0 &&
	    mount("test", "/dev/shm", "tmpfs", 0, options) == 0) {
		return true;
	}
	puts("no mounts here");
	return false;
}

/* Makes connections where the counts of the first ones have room. None is lost for want of it. */
static void test_full(int warnings)
{
	struct net_pair pair[40];

	for (int i = 0; i < 40; i++) {
		net_pair_make(&net, 0, 1, &pair[i]);
	}
	CHECK_INT(net_log_count(2), warnings);
	CHECK_HAS(net_log_find(2, "is not counted"),
		  "has no room: No space left on device (NCCL_EP_NET_COUNTS)");
	for (int i = 0; i < 40; i++) {
		net_pair_close(&net, &pair[i]);
	}
}

int main(int argc, char **argv)
{
	NEED(argc > 2);
	if (!own_shm(argc > 3 ? argv[3] : NULL) && argc > 3) {
		return 77;
	}
	net_load(&net, argv[1], 11);
	NET_NEED(net_init(&net, -1) == NET_OK, "%s", net_log_last());
	if (argc > 3) {
		check_context("/dev/shm of %s bytes", argv[3]);
		test_full(atoi(argv[4]));
		CHECK_INT(net_finalize(&net), NET_OK);
		return check_end();
	}
	test_counts(argv[2]);
	test_files(argv[2]);
	test_hostile_file(argv[2]);
	CHECK_INT(net_finalize(&net), NET_OK);
	return check_end();
}
