/* SPDX-License-Identifier: Apache-2.0 */
/* Order of devices, where their PCI addresses come from, and which interface peers meet at. */
#include <netinet/tcp.h>
#include <sys/stat.h>
#include <unistd.h>
#include "net/net.h"
#include "support/check.h"

static char root[] = "/tmp/ep_net_order_XXXXXX";

static void make_device(const char *name, const char *pci)
{
	char path[256], link[256];

	snprintf(path, sizeof(path), "%s/devices", root);
	mkdir(path, 0755);
	snprintf(path, sizeof(path), "%s/devices/%s", root, pci);
	mkdir(path, 0755);
	snprintf(path, sizeof(path), "%s/%s", root, name);
	mkdir(path, 0755);
	snprintf(path, sizeof(path), "%s/%s/device", root, name);
	snprintf(link, sizeof(link), "../devices/%s", pci);
	NEED(symlink(link, path) == 0);
}

static struct ep_net_dev *device(const char *name, int port)
{
	struct ep_net_dev *dev = calloc(1, sizeof(*dev));

	NEED(dev);
	snprintf(dev->port.name, sizeof(dev->port.name), "%s", name);
	dev->port.port = port;
	ep_net_pci_path(root, name, dev->path);
	return dev;
}

static void test_devices(void)
{
	struct ep_net_dev *in_order[6];

	NEED(mkdtemp(root));
	make_device("mlx5_9", "0000:18:00.0");
	make_device("mlx5_0", "0000:18:00.1");
	make_device("mlx5_3", "0001:05:00.0");
	make_device("bond_0", "virtual");
	in_order[0] = device("mlx5_9", 1);
	in_order[1] = device("mlx5_0", 1);
	in_order[2] = device("mlx5_0", 2);
	in_order[3] = device("mlx5_3", 1);
	in_order[4] = device("rxe_2", 1);
	in_order[5] = device("rxe_10", 1);
	CHECK_HAS(in_order[1]->path, "/devices/0000:18:00.1");
	CHECK_TEXT(in_order[4]->path, "");
	for (int a = 0; a < 6; a++) {
		for (int b = 0; b < 6; b++) {
			int order = ep_net_dev_compare(in_order[a], in_order[b]);

			CHECK((order > 0) - (order < 0) == (a > b) - (a < b), "%d and %d", a, b);
		}
	}
	for (int i = 0; i < 6; i++) {
		free(in_order[i]);
	}
	in_order[0] = device("bond_0", 1);
	CHECK_TEXT(in_order[0]->path, "");
	free(in_order[0]);
}

/* NCCL takes ports of one GUID and number for one: functions of an adapter go on counting. */
static void test_arrange(void)
{
	static const struct {
		const char *name, *path;
		int port, adapter_port;
		uint64_t guid;
		const char *label;
	} want[] = {
		{ "mlx5_7", "/0000:18:00.0", 1, 1, 8, "mlx5_7" },
		{ "mlx5_2", "/0000:18:00.1", 1, 2, 8, "mlx5_2" },
		{ "mlx5_0", "/0000:19:00.0", 1, 1, 5, "mlx5_0:1" },
		{ "mlx5_0", "/0000:19:00.0", 2, 2, 5, "mlx5_0:2" },
	};
	struct ep_net_dev *dev = calloc(4, sizeof(*dev));

	NEED(dev);
	for (int i = 0; i < 4; i++) { /* the other way round */
		snprintf(dev[3 - i].port.name, sizeof(dev->port.name), "%s", want[i].name);
		snprintf(dev[3 - i].path, sizeof(dev->path), "%s", want[i].path);
		dev[3 - i].port.port = want[i].port;
		dev[3 - i].guid = want[i].guid;
	}
	ep_net_devs_arrange(dev, 4);
	for (int i = 0; i < 4; i++) {
		CHECK_TEXT(dev[i].label, want[i].label);
		CHECK_INT(dev[i].index, i);
		CHECK_INT(dev[i].adapter_port, want[i].adapter_port);
	}
	free(dev);
}

static void test_names(void)
{
	static const struct {
		const char *text, *name;
		bool match;
	} cases[] = {
		{ "eth", "eth0", true },       { "eth", "meth0", false },
		{ "=eth", "eth0", false },     { "=eth0", "eth0", true },
		{ "=eth0", "eth01", false },   { "ib,eth", "eth1", true },
		{ "=ib0,eth1", "eth1", true }, { "^docker,lo", "lo", false },
		{ "^docker,lo", "ib0", true }, { "^=eth0", "eth01", true },
		{ "^=eth0", "eth0", false },   { ",eth0", "ib0", false },
		{ "=eth0:1", "eth0", true },   { "eth0:1,ib", "ib1", true },
		{ "=", "eth0", true },         { "^=", "eth0", false },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		CHECK(ep_net_ifname_match(cases[i].text, cases[i].name) == cases[i].match, "%s %s",
		      cases[i].text, cases[i].name);
	}
}

static void test_address(void)
{
	union ep_net_addr addr;
	char text[EP_NET_ADDR_TEXT];
	int fd;

	setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
	setenv("NCCL_SOCKET_FAMILY", "AF_INET", 1);
	CHECK_INT(ep_net_addr_find(&addr), ncclSuccess);
	CHECK_INT(ep_net_listen_at(&addr, &fd), ncclSuccess);
	CHECK(strncmp(ep_net_addr_print(&addr, text), "127.0.0.1:", 10) == 0, "%s", text);
	CHECK(strcmp(text, "127.0.0.1:0") != 0);
	close(fd);
	setenv("NCCL_SOCKET_IFNAME", "=none_such", 1);
	CHECK_INT(ep_net_addr_find(&addr), ncclInvalidUsage);
	unsetenv("NCCL_SOCKET_IFNAME");
	CHECK_INT(ep_net_addr_find(&addr), ncclSuccess);
}

static int option(int fd, int level, int name)
{
	socklen_t size = sizeof(int);
	int value = -1;

	NEED(getsockopt(fd, level, name, &value, &size) == 0);
	return value;
}

/* A machine that vanishes is found within five minutes, by either end. */
static void test_keepalive(void)
{
	union ep_net_addr addr;
	int listener, ends[2];

	CHECK_INT(ep_net_addr_find(&addr), ncclSuccess);
	CHECK_INT(ep_net_listen_at(&addr, &listener), ncclSuccess);
	ends[0] = ep_net_dial(&addr);
	NEED(ends[0] >= 0);
	do {
		CHECK_INT(ep_net_accept_one(listener, "here", &ends[1]), ncclSuccess);
	} while (ends[1] < 0);
	for (int i = 0; i < 2; i++) {
		CHECK_INT(option(ends[i], SOL_SOCKET, SO_KEEPALIVE), 1);
		CHECK(option(ends[i], IPPROTO_TCP, TCP_KEEPIDLE) +
			      option(ends[i], IPPROTO_TCP, TCP_KEEPINTVL) *
				      option(ends[i], IPPROTO_TCP, TCP_KEEPCNT) <=
		      300);
		close(ends[i]);
	}
	close(listener);
}

int main(void)
{
	char command[64];

	test_devices();
	test_arrange();
	test_names();
	test_address();
	test_keepalive();
	snprintf(command, sizeof(command), "rm -r %s", root);
	CHECK_INT(system(command), 0);
	return check_end();
}
