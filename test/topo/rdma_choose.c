/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which ports a GPU gets: by topology files, and where the topology is of no help. The library
 * finds the topology's module beside itself, so this program becomes a copy of itself in a
 * directory of its own to see what happens without one, or with one that is not right.
 *
 *     rdma_choose FILES WRONG_MODULE     WRONG_MODULE: one of another version
 */
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "rdma/rdma.h"
#include "support/check.h"
#include "support/reason.h"
#include "topo/module.h"

#define SKIP 77

static char log_path[] = "/tmp/ep_choose_log_XXXXXX";
static const char *files;

/* All that was logged since the last call. */
static const char *logged(void)
{
	static char text[8192];
	FILE *f = fopen(log_path, "r");
	size_t n = f ? fread(text, 1, sizeof(text) - 1, f) : 0;

	text[n] = '\0';
	if (f) {
		fclose(f);
	}
	CHECK(truncate(log_path, 0) == 0, "%s", log_path);
	return text;
}

static void set_file(const char *name)
{
	char path[PATH_MAX];

	unsetenv("NCCL_IB_HCA");
	unsetenv("NCCL_NET_GDR_LEVEL");
	snprintf(path, sizeof(path), "%s/%s", files, name);
	setenv("NCCL_TOPO_FILE", path, 1);
}

/* name:port, and /E or /I and a speed where that counts */
static int list(const char *text, struct ep_port *port)
{
	char name[EP_NIC_NAME];
	int n = 0, num, used;

	while (sscanf(text, " %63[^:]:%d%n", name, &num, &used) == 2) {
		memset(&port[n], 0, sizeof(port[n]));
		snprintf(port[n].name, sizeof(port[n].name), "%s", name);
		port[n].port = num;
		text += used;
		if (*text == '/') {
			port[n].ethernet = text[1] == 'E';
			port[n].mbps = (uint32_t)atoi(text + 2);
			text += strcspn(text, " ");
		}
		n++;
	}
	return n;
}

/* Of the devices one has no active port. */
static const char *name_of(struct ibv_device *device)
{
	return device->name;
}

static struct ibv_device down = { .name = "hfi1_0" }, *devices[] = { &down };
static const struct ep_verbs verbs = { .ibv_get_device_name = name_of };

/*
 * What GPU `bus` gets of `present`, "" after an error, as "mlx5_0:1 mlx5_1:1". Its process sees no
 * other GPU: its number is 0.
 */
static const char *choose(const char *bus, uint32_t place, const char *present, int room)
{
	const struct ep_nic_user who = { bus, "", 0, place };
	static char text[512];
	struct ep_port_list ports = { .v = &verbs, .dev = devices, .ndevs = 1 };
	struct ep_port chosen[32];
	int got = room;
	size_t at = 0;

	ports.n = list(present, ports.port);
	text[0] = '\0';
	memset(chosen, 0xee, sizeof(chosen));
	if (ep_nic_choose(&who, &ports, chosen, &got) == ncclSuccess) {
		CHECK(got >= 1 && got <= room, "%d ports", got);
		for (int i = 0; i < got; i++) {
			at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s:%d",
					       i ? " " : "", chosen[i].name, chosen[i].port);
		}
		CHECK((unsigned char)chosen[got].name[0] == 0xee, "written behind its end");
	}
	return text;
}

#define WANT(got, want)                                                                            \
	do {                                                                                       \
		const char *got_ = (got);                                                          \
		CHECK(!strcmp(got_, want), "\"%s\" instead of \"%s\", %s", got_, want,             \
		      last_text());                                                                \
	} while (0)
#define LOGGED(what, where)                                                                        \
	do {                                                                                       \
		const char *text_ = (where);                                                       \
		CHECK(strstr(text_, what), "not \"%s\" in: %s", what, text_);                      \
	} while (0)

#define EIGHT                                                                                      \
	"mlx5_0:1 mlx5_1:1 mlx5_2:1 mlx5_3:1 mlx5_4:1 mlx5_5:1 mlx5_6:1 mlx5_7:1 mlx5_8:1 "        \
	"mlx5_9:1"

static void test_eight(void)
{
	static const char *const bus[] = { "0000:13:00.0", "0000:23:00.0", "0000:33:00.0",
					   "0000:43:00.0", "0000:93:00.0", "0000:A3:00.0",
					   "0000:b3:00.0", "0000:C3:00.0" };
	char want[32];

	set_file("eight-own-nic.xml");
	for (int i = 0; i < 8; i++) {
		snprintf(want, sizeof(want), "mlx5_%d:1", i);
		/* by place, not by number */
		WANT(choose(bus[i], 7 - (uint32_t)i, EIGHT, 8), want);
	}
	LOGGED("at distance PIX", logged());
	setenv("NCCL_IB_HCA", "^=mlx5_5", 1);
	WANT(choose(bus[5], 5, EIGHT, 8), "mlx5_9:1");
	setenv("NCCL_IB_HCA", "mlx5_2:1", 1);
	WANT(choose(bus[7], 7, EIGHT, 8), "mlx5_2:1");
	setenv("NCCL_IB_HCA", "mlx5_2:2", 1);
	WANT(choose(bus[7], 7, EIGHT, 8), "");
	LOGGED("NCCL_IB_HCA=mlx5_2:2 excludes all of the 10 active RDMA ports", last_text());
	setenv("NCCL_IB_HCA", "mlx5_2::0", 1);
	WANT(choose(bus[7], 7, EIGHT, 8), "mlx5_2:1");
	setenv("NCCL_IB_HCA", "mlx5_2:x", 1);
	WANT(choose(bus[7], 7, EIGHT, 8), "");
	LOGGED("NCCL_IB_HCA: no port number", last_text());
	(void)logged();
}

/* What of NCCL_IB_HCA matches nothing is said, once, item by item. */
static void test_hca_items(void)
{
	static const char *const values[] = { "mlx5_1, mlx5_33, =x\x1b[2J,mlx5_3:2",
					      "^mlx5_1,mlx4,hfi1", "=mlx5_1,mlx5_10,hfi1_0" };
	static const char *const wants[][4] = {
		{ "\"mlx5_33\" is none of the 10 active RDMA ports (the first is mlx5_0:1)",
		  "\"=x?[2J\" is none of the 10", "\"mlx5_3:2\" is none of the 10" },
		{ "\"mlx4\" is none of the 10" },
		{ "\"mlx5_10\" is none of the 10", "\"hfi1_0\" is none of the 10" },
	};

	set_file("eight-own-nic.xml");
	for (int v = 0; v < 3; v++) {
		const char *text, *at;
		int lines = 0, want = 0;

		setenv("NCCL_IB_HCA", values[v], 1);
		WANT(choose("0000:23:00.0", 1, EIGHT, 8), v == 1 ? "mlx5_8:1" : "mlx5_1:1");
		text = logged();
		for (at = text; (at = strstr(at, "WARN EP NCCL_IB_HCA: ")); at++) {
			lines++;
		}
		for (; want < 4 && wants[v][want]; want++) {
			LOGGED(wants[v][want], text);
		}
		CHECK(lines == want, "%d lines for %s: %s", lines, values[v], text);
		WANT(choose("0000:23:00.0", 1, EIGHT, 8), v == 1 ? "mlx5_8:1" : "mlx5_1:1");
		text = logged();
		CHECK(!strstr(text, "WARN"), "said again: %s", text);
	}
}

/* sysfs shows NICs that this container cannot open: GPUs share those that it can, evenly. */
static void test_closed(void)
{
	static const char *const bus[] = { "0000:13:00.0", "0000:23:00.0", "0000:33:00.0",
					   "0000:43:00.0" };
	char want[32];

	set_file("eight-own-nic.xml");
	for (int i = 0; i < 4; i++) {
		snprintf(want, sizeof(want), "mlx5_%d:1", 4 + i);
		WANT(choose(bus[i], 0, "mlx5_4:1 mlx5_5:1 mlx5_6:1 mlx5_7:1", 8), want);
	}
	LOGGED("at distance SYS", logged());
	WANT(choose("0000:93:00.0", 0, "mlx5_4:1 mlx5_5:1 mlx5_6:1 mlx5_7:1", 8), "mlx5_4:1");
	/* Its own port is not there, another one of the device is. */
	WANT(choose(bus[0], 0, "mlx5_0:2 mlx5_1:1", 8), "mlx5_1:1");
	(void)logged();
	WANT(choose(bus[0], 1, "other0:1 other1:1", 8), "other1:1");
	LOGGED("it has no usable NIC for GPU 0000:13:00.0", logged());
}

/* Without distances: InfiniBand and Ethernet are not mixed. */
static void test_layers(void)
{
	static const char *const mixed =
		"eth0:1/E100 ib0:1/I400 eth1:1/E100 ib1:1/I400 eth2:1/E100";

	set_file("x");
	for (uint32_t i = 0; i < 4; i++) {
		WANT(choose("0000:10:00.0", i, mixed, 8), i % 2 ? "ib1:1" : "ib0:1");
		WANT(choose("0000:10:00.0", i, "ib0:1/I100 eth0:1/E100 eth0:2/E100", 8),
		     i % 2 ? "eth0:2" : "eth0:1");
	}
	(void)logged();
}

static void test_others(void)
{
	set_file("several-nics-per-gpu.xml");
	WANT(choose("0000:03:00.0", 0, EIGHT, 8), "mlx5_0:1 mlx5_1:1");
	WANT(choose("0000:04:00.0", 1, EIGHT, 8), "mlx5_2:1 mlx5_3:1");
	WANT(choose("0000:04:00.0", 1, EIGHT, 1), "mlx5_2:1");
	WANT(choose("0000:04:00.0", 1, "mlx5_3:1 mlx5_0:1", 8), "mlx5_3:1");
	set_file("no-gdr.xml");
	WANT(choose("0000:23:00.0", 1, EIGHT, 8), "mlx5_2:1");
	WANT(choose("0000:03:00.0", 0, EIGHT, 8), "");
	LOGGED("no-gdr.xml has gdr=\"0\" for mlx5_0:1, the nearest NIC of GPU 0000:03:00.0",
	       last_text());
	set_file("one-shared-nic.xml");
	WANT(choose("0000:98:00.0", 3, EIGHT, 8), "mlx5_0:1");
	setenv("NCCL_NET_GDR_LEVEL", "PHB", 1);
	WANT(choose("0000:17:00.0", 0, EIGHT, 8), "mlx5_0:1");
	WANT(choose("0000:98:00.0", 3, EIGHT, 8), "");
	LOGGED("NCCL_NET_GDR_LEVEL=PHB forbids GPU 0000:98:00.0", last_text());
	LOGGED("set it to SYS", last_text());
	setenv("NCCL_NET_GDR_LEVEL", "NEAR", 1);
	WANT(choose("0000:17:00.0", 0, EIGHT, 8), "");
	LOGGED("NCCL_NET_GDR_LEVEL=NEAR is not a distance", last_text());
}

/* NCCL's PHB reaches as far as our NODE. */
static void test_level(void)
{
	set_file("nics-on-one-node.xml");
	setenv("NCCL_NET_GDR_LEVEL", "PHB", 1);
	WANT(choose("0000:11:00.0", 0, EIGHT, 8), "mlx5_0:1");
	LOGGED("at distance NODE", logged());
	setenv("NCCL_NET_GDR_LEVEL", "P2C", 1);
	WANT(choose("0000:11:00.0", 0, EIGHT, 8), "");
	LOGGED("at distance NODE", last_text());
	LOGGED("set it to PHB", last_text());
}

/* No topology: by the rank's place, and the log has the reason. */
static void test_by_place(const char *reason)
{
	(void)logged();
	for (uint32_t i = 0; i < 5; i++) {
		WANT(choose("0000:10:00.0", i, "mlx5_0:1 mlx5_1:1 rxe0:1", 8),
		     i % 3 == 0   ? "mlx5_0:1"
		     : i % 3 == 1 ? "mlx5_1:1"
				  : "rxe0:1");
	}
	LOGGED(reason, logged());
	setenv("NCCL_IB_HCA", "^mlx5_1", 1);
	WANT(choose("0000:10:00.0", 1, "mlx5_0:1 mlx5_1:1 rxe0:1", 8), "rxe0:1");
	setenv("NCCL_IB_HCA", "=mlx5", 1);
	WANT(choose("0000:10:00.0", 1, "mlx5_0:1 mlx5_1:1 rxe0:1", 8), "");
	unsetenv("NCCL_IB_HCA");
}

static void test_no_help(void)
{
	set_file("no-nic.xml");
	test_by_place("no help from the topology");
	set_file("eight-own-nic.xml");
	test_by_place("GPU 0000:10:00.0 is not in it (hwloc XML");
	set_file("bad-truncated.xml");
	test_by_place("the machine's topology cannot be read");
	set_file("not-there.xml");
	test_by_place("not-there.xml");
}

/* A copy of this program in `dir`, beside `module` (NULL: nothing). Its exit status. */
static int run_copy(const char *dir, const char *self, const char *module, const char *reason)
{
	char command[3 * PATH_MAX];
	int status;

	if (module) {
		snprintf(command, sizeof(command), "cp '%s' '%s/%s'", module, dir,
			 EP_TOPO_MODULE_FILE);
		CHECK(system(command) == 0, "%s", command);
	}
	snprintf(command, sizeof(command), "cp '%s' '%s/copy' && '%s/copy' child '%s'", self, dir,
		 dir, reason);
	status = system(command);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void test_modules(const char *wrong)
{
	char dir[] = "/tmp/ep_choose_XXXXXX", self[PATH_MAX], path[PATH_MAX];
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);

	self[n > 0 ? n : 0] = '\0';
	CHECK(mkdtemp(dir), "%s", dir);
	setenv("LD_LIBRARY_PATH", dir, 1);
	CHECK(run_copy(dir, self, NULL, EP_TOPO_MODULE_FILE) == 0, "no module");
	CHECK(run_copy(dir, self, self, "") == 0, "a program for a module");
	CHECK(run_copy(dir, self, wrong, "is of another version of this library") == 0, "old");
	snprintf(path, sizeof(path), "rm -r '%s'", dir);
	CHECK(system(path) == 0, "%s", path);
}

static int child(const char *reason)
{
	files = "/nonexistent";
	set_file("x");
	test_by_place(reason);
	return check_end();
}

int main(int argc, char **argv)
{
	NEED(close(mkstemp(log_path)) == 0);
	setenv("NCCL_DEBUG", "INFO", 1);
	setenv("NCCL_DEBUG_SUBSYS", "NET", 1);
	setenv("NCCL_DEBUG_FILE", log_path, 1);
	if (argc == 3 && !strcmp(argv[1], "child")) {
		int status = child(argv[2]);

		unlink(log_path);
		return status;
	}
	if (argc != 3) {
		return 2;
	}
	files = argv[1];
	if (access("/proc/driver/nvidia/version", F_OK) == 0) {
		printf("skipped: files are completed with what this machine has, which has GPUs\n");
		unlink(log_path);
		return SKIP;
	}
	test_eight();
	test_hca_items();
	test_closed();
	test_layers();
	test_others();
	test_level();
	test_no_help();
	test_modules(argv[2]);
	unlink(log_path);
	return check_end();
}
