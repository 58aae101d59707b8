/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where peers meet, and how they are dialed, in a network namespace of the test's own: its
 * interfaces are made one after another, and each time the plugin must take the one that NCCL
 * would. Then a peer's address goes away while it is dialed, and comes back or does not.
 *   namespace LIBRARY
 */
#include <arpa/inet.h>
#include <errno.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include "net/gin_rig.h"

/* In a handle: magic, version, ports and nonce, then the address. */
#define ADDRESS_AT 24

static struct net net;
static const char *plugin;
static bool v6;

/* ---- the namespace ---- */

static void skip(const char *why)
{
	printf("skipped: no network namespace with interfaces of its own: %s\n", why);
	exit(TEST_SKIP);
}

static void write_file(const char *path, const char *text)
{
	FILE *file = fopen(path, "we");

	if (file) {
		fputs(text, file);
		fclose(file);
	}
}

/* Lines for ip(8). */
static bool ip(const char *lines)
{
	FILE *pipe = popen("ip -batch - 2>/dev/null", "we");

	return pipe && fputs(lines, pipe) >= 0 && pclose(pipe) == 0;
}

static void enter(void)
{
	char map[32];
	uid_t uid = geteuid();

	if (unshare(uid ? CLONE_NEWUSER | CLONE_NEWNET : CLONE_NEWNET) != 0) {
		skip(uid ? "not root, and user namespaces are forbidden" : strerror(errno));
	}
	if (uid) {
		snprintf(map, sizeof(map), "0 %u 1", uid);
		write_file("/proc/self/setgroups", "deny");
		write_file("/proc/self/uid_map", map);
	}
	if (system("ip -V >/dev/null 2>&1") != 0) {
		skip("ip is not installed (iproute2)");
	}
	if (!ip("link set lo up\n"
		"link add probe type veth peer name p_probe\n"
		"link del probe\n")) {
		skip("the kernel makes no veth pairs here");
	}
	v6 = access("/proc/sys/net/ipv6/conf/lo", F_OK) == 0;
}

static bool runs(const char *name)
{
	struct ifreq request = { .ifr_flags = 0 };
	int fd = socket(AF_INET, SOCK_DGRAM, 0);
	bool yes;

	strcpy(request.ifr_name, name);
	yes = ioctl(fd, SIOCGIFFLAGS, &request) == 0 && request.ifr_flags & IFF_RUNNING;
	close(fd);
	return yes;
}

/* An interface that is up; `running`: its other end, too. */
static void add(const char *name, const char *address, bool running)
{
	char lines[512];

	snprintf(lines, sizeof(lines),
		 "link add %s type veth peer name p_%s\n"
		 "link set %s addrgenmode none\n"
		 "link set p_%s addrgenmode none\n"
		 "addr add %s dev %s\n"
		 "link set %s up\n"
		 "link set p_%s %s\n",
		 name, name, name, name, address, name, name, name, running ? "up" : "down");
	NEED(ip(lines));
	/* (its carrier comes a moment later) */
	for (int i = 0; i < 1000 && running && !runs(name); i++) {
		usleep(1000);
	}
}

/* ---- where ---- */

static void set_or_not(const char *name, const char *value)
{
	if (value) {
		setenv(name, value, 1);
	} else {
		unsetenv(name);
	}
}

/* Listens, and checks where; `want` NULL: nowhere, for `reason`. */
static void listen_here(const char *want, const char *reason)
{
	uint8_t handle[NET_HANDLE] = { 0 };
	char text[INET6_ADDRSTRLEN] = "";
	struct sockaddr_in6 address;
	void *listener = NULL;
	int rc;

	rc = net_listen(&net, 0, handle, &listener);
	CHECK(rc == (want ? NET_OK : NET_USAGE), "%d: %s", rc, net_log_last());
	if (rc != NET_OK) {
		CHECK_HAS(net_log_last(), reason);
		return;
	}
	memcpy(&address, handle + ADDRESS_AT, sizeof(address));
	inet_ntop(address.sin6_family,
		  address.sin6_family == AF_INET6
			  ? (const void *)&address.sin6_addr
			  : (const void *)&((const struct sockaddr_in *)(void *)&address)->sin_addr,
		  text, sizeof(text));
	CHECK_TEXT(text, want ? want : "");
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
}

/* A process chooses its interface once, so each choice has a process of its own. */
static void meet(const char *names, const char *id, const char *family, const char *want)
{
	char *argv[] = { "namespace", (char *)plugin, (char *)(want ? want : ""), NULL };
	int status;
	pid_t pid;

	set_or_not("NCCL_SOCKET_IFNAME", names);
	set_or_not("NCCL_COMM_ID", id);
	set_or_not("NCCL_SOCKET_FAMILY", family);
	pid = fork();
	if (pid == 0) {
		execv("/proc/self/exe", argv);
		_exit(1);
	}
	NEED(pid > 0 && waitpid(pid, &status, 0) == pid);
	CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0,
	      "NCCL_SOCKET_IFNAME=%s NCCL_COMM_ID=%s NCCL_SOCKET_FAMILY=%s: %s", names ? names : "",
	      id ? id : "", family ? family : "", want ? want : "nowhere");
}

static void test_passes(void)
{
	meet(NULL, NULL, NULL, "127.0.0.1");
	add("virbr0", "192.168.122.1/24", true);
	meet(NULL, NULL, NULL, "127.0.0.1");
	add("docker0", "172.17.0.1/24", true);
	meet(NULL, NULL, NULL, "172.17.0.1");
	/* Its cable is out. */
	add("eno1", "10.1.0.5/24", false);
	meet(NULL, NULL, NULL, "172.17.0.1");
	add("eth0", "10.2.0.5/24", true);
	add("eth1", "10.4.0.5/24", true);
	meet(NULL, NULL, NULL, "10.2.0.5");
	meet(NULL, "10.4.0.77:9999", NULL, "10.4.0.5");
	meet(NULL, "localhost:9999", NULL, "127.0.0.1");
	meet(NULL, "10.9.0.1:1", NULL, "10.2.0.5");
	meet(NULL, "10.1.0.7:1", NULL, "10.2.0.5");
	meet(NULL, "[10.4.0.77:1", NULL, NULL);
	add("ib0", "10.3.0.5/24", true);
	meet(NULL, NULL, NULL, "10.3.0.5");
	meet(NULL, "10.4.0.77:9999", NULL, "10.3.0.5");
}

static void test_names(void)
{
	meet("eth", NULL, NULL, "10.2.0.5");
	meet("eth1", "10.2.0.77:1", NULL, "10.4.0.5");
	meet("=eth1:3", NULL, NULL, "10.4.0.5");
	meet("=eth", NULL, NULL, NULL);
	meet("eno1", NULL, NULL, NULL);
	meet("^ib,lo,docker,virbr", NULL, NULL, "10.2.0.5");
	meet("^=ib0,lo,docker0,virbr0,eth0", NULL, NULL, "10.4.0.5");
	meet("^ib", NULL, NULL, "127.0.0.1");
	/* One character is none for NCCL. */
	meet("e", NULL, NULL, "10.3.0.5");
	meet("", NULL, "AF_INET", "10.3.0.5");
}

static void test_family(void)
{
	if (!v6) {
		puts("no IPv6 here");
		return;
	}
	meet("lo", NULL, "AF_INET6", NULL);
	NEED(ip("addr add fd00::5/64 dev eth1 nodad\n"));
	meet("eth", NULL, "AF_INET6", "fd00::5");
	meet("eth1", NULL, NULL, "10.4.0.5");
	NEED(ip("link del ib0\n"));
	meet(NULL, NULL, "AF_INET6", "fd00::5");
	meet(NULL, "[fd00::77]:5", NULL, "fd00::5");
	meet(NULL, NULL, "any", "10.2.0.5");
}

/* ---- dialing ---- */

/*
 * Asks both ends for so many ms, or until both have what they want, or the sender an error.
 * `listener` NULL: it is not asked.
 */
static int ask(uint8_t *handle, void *listener, struct net_pair *pair, uint64_t ms)
{
	uint64_t until = net_now_ms() + ms;
	int rc = NET_OK;

	while (rc == NET_OK && (!pair->send || !pair->recv) && net_now_ms() < until) {
		rc = pair->send ? NET_OK : net_connect(&net, 0, handle, &pair->send);
		NEED(pair->recv || !listener || net_accept(&net, listener, &pair->recv) == NET_OK);
		usleep(200);
	}
	return rc;
}

/* The peer's address is taken away, and comes back while it is dialed; or it does not. */
static void dial(const char *away, const char *back, const char *text)
{
	uint8_t handle[2][NET_HANDLE];
	struct net_pair pair = { .send = NULL };
	void *listener;

	check_context("%s", text);
	NEED(net_listen(&net, 0, handle[0], &listener) == NET_OK);
	memcpy(handle[1], handle[0], NET_HANDLE);
	NEED(ip(away));
	net_log_clear();
	CHECK_INT(ask(handle[0], listener, &pair, 20000), NET_REMOTE);
	CHECK_HAS(net_log_find(2, "cannot be reached"), text);
	CHECK_HAS(net_log_find(2, "cannot be reached"), ", tried 5 times in ");
	CHECK_HAS(net_log_find(2, "cannot be reached"), "(NCCL_SOCKET_RETRY_CNT)");
	CHECK_INT(net_log_count(2), 1);
	CHECK_INT(ask(handle[1], listener, &pair, 5), NET_OK);
	CHECK(!pair.send);
	NEED(ip(back));
	CHECK_INT(ask(handle[1], listener, &pair, 20000), NET_OK);
	CHECK(pair.send && pair.recv);
	net_pair_close(&net, &pair);
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
	NEED(ip("addr flush dev eth1\naddr add 10.4.0.5/24 dev eth1\n"));
}

/* What ends first is the time of the whole set-up. */
static void test_limit(void)
{
	uint8_t handle[NET_HANDLE];
	struct net_pair pair = { .send = NULL };
	void *listener;

	check_context("limit");
	NEED(net_listen(&net, 0, handle, &listener) == NET_OK);
	NEED(ip("addr del 10.4.0.5/24 dev eth1\n"));
	setenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS", "70", 1);
	CHECK_INT(ask(handle, NULL, &pair, 20000), NET_REMOTE);
	CHECK_HAS(net_log_last(), "Network is unreachable, tried ");
	CHECK_HAS(net_log_last(), "(NCCL_EP_BOOTSTRAP_TIMEOUT_MS)");
	unsetenv("NCCL_EP_BOOTSTRAP_TIMEOUT_MS");
	CHECK_INT(net_close(&net, NET_CLOSE_LISTEN, listener), NET_OK);
	NEED(ip("addr add 10.4.0.5/24 dev eth1\n"));
}

/* Ranks of GIN do the same. */
static void test_mesh(const char *library)
{
	uint8_t handle[2][NET_HANDLE] __attribute__((aligned(8)));
	void *handles[2] = { handle[0], handle[1] }, *listener[2], *coll;
	struct gin gin;

	check_context("mesh");
	gin_load(&gin, library);
	NET_NEED(gin_init(&gin) == NET_OK, "%s", net_log_last());
	for (int r = 0; r < 2; r++) {
		NEED(gin_listen(&gin, 0, handle[r], &listener[r]) == NET_OK);
	}
	NEED(ip("addr del 10.4.0.5/24 dev eth1\n"));
	CHECK_INT(gin_connect(&gin, handles, 2, 1, listener[1], &coll), NET_REMOTE);
	CHECK_HAS(net_log_last(), "rank 0 (10.4.0.5:");
	CHECK_HAS(net_log_last(), "cannot be reached: Network is unreachable, tried 5 times in ");
	for (int r = 0; r < 2; r++) {
		CHECK_INT(gin_close(&gin, GIN_CLOSE_LISTEN, listener[r]), NET_OK);
	}
	CHECK_INT(gin_finalize(&gin), NET_OK);
}

int main(int argc, char **argv)
{
	NEED(argc > 1);
	plugin = argv[1];
	if (argc > 2) {
		net_load(&net, plugin, 11);
		NEED(net_init(&net, -1) == NET_OK);
		listen_here(*argv[2] ? argv[2] : NULL, getenv("NCCL_COMM_ID")
							       ? "NCCL_COMM_ID=[10.4.0.77:1"
							       : "no running interface");
		return check_end();
	}
	enter();
	setenv("NCCL_SOCKET_RETRY_CNT", "4", 1);
	setenv("NCCL_SOCKET_RETRY_SLEEP_MSEC", "30", 1);
	test_passes();
	test_names();
	test_family();
	unsetenv("NCCL_SOCKET_FAMILY");
	unsetenv("NCCL_COMM_ID");
	setenv("NCCL_SOCKET_IFNAME", "eth1", 1);
	net_load(&net, plugin, 11);
	NEED(net_init(&net, -1) == NET_OK);
	listen_here("10.4.0.5", NULL);
	/* What comes, goes or is set later does not change where this process listens. */
	setenv("NCCL_SOCKET_IFNAME", "eth0", 1);
	listen_here("10.4.0.5", NULL);
	dial("addr del 10.4.0.5/24 dev eth1\n", "addr add 10.4.0.5/24 dev eth1\n",
	     "Network is unreachable");
	/* Nobody answers for it on the wire. */
	write_file("/proc/sys/net/ipv4/neigh/eth1/mcast_solicit", "1");
	write_file("/proc/sys/net/ipv4/neigh/eth1/retrans_time_ms", "10");
	dial("addr del 10.4.0.5/24 dev eth1\naddr add 10.4.0.6/24 dev eth1\n",
	     "addr add 10.4.0.5/24 dev eth1\n", "No route to host");
	test_limit();
	test_mesh(plugin);
	CHECK_INT(net_finalize(&net), NET_OK);
	return check_end();
}
