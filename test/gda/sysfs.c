/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the host side reads of the kernel's files: versions of addresses, traffic classes, speeds.
 */
#include <errno.h>
#include <stdlib.h>
#include <sys/resource.h>
#include "rdma/rdma.h"
#include "support/check.h"
#include "topo/topo.h"

static void write_file(const char *root, const char *name, const char *text)
{
	char path[256];
	FILE *file;

	snprintf(path, sizeof(path), "%s/mlx5_9/%s", root, name);
	file = fopen(path, "w");
	CHECK(file && fputs(text, file) >= 0);
	if (file) {
		fclose(file);
	}
}

static void write_type(const char *root, int index, const char *text)
{
	char name[64];

	snprintf(name, sizeof(name), "ports/2/gid_attrs/types/%d", index);
	write_file(root, name, text);
}

/* What the kernel says of addresses, for libraries that do not. */
static void check_roce_version(void)
{
	char root[] = "/tmp/gda_sysfs_XXXXXX", command[512];

	if (!mkdtemp(root)) {
		CHECK(!"mkdtemp");
		return;
	}
	snprintf(command, sizeof(command), "mkdir -p %s/mlx5_9/ports/2/gid_attrs/types", root);
	CHECK_INT(system(command), 0);
	write_type(root, 0, "IB/RoCE v1\n");
	write_type(root, 1, "RoCE v2\n");
	write_type(root, 2, "\n");
	write_type(root, 3, "RoCE v22\n");
	CHECK_INT(ep_gid_roce(root, "mlx5_9", 2, 0), 1);
	CHECK_INT(ep_gid_roce(root, "mlx5_9", 2, 1), 2);
	CHECK_INT(ep_gid_roce(root, "mlx5_9", 2, 2), 0);
	CHECK_INT(ep_gid_roce(root, "mlx5_9", 2, 3), 0);
	CHECK_INT(ep_gid_roce(root, "mlx5_9", 2, 4), 0);
	CHECK_INT(ep_gid_roce(root, "mlx5_9", 1, 1), 0);
	snprintf(command, sizeof(command), "rm -r %s", root);
	CHECK_INT(system(command), 0);
}

static void try_class(const char *root, const char *text, int env_tc, bool ethernet, uint8_t tc)
{
	struct ep_ib_env env = { .tc = env_tc };
	struct ep_nic nic = { .name = "mlx5_9", .port = 2 };

	nic.end.link_layer = ethernet ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
	if (text) {
		write_file(root, "tc/2/traffic_class", text);
	}
	ep_nic_class_choose(&nic, &env, root);
	CHECK_INT(nic.tc, tc);
}

/* An administrator's traffic class counts where the job has none. */
static void check_class(void)
{
	char root[] = "/tmp/gda_sysfs_XXXXXX", command[512];

	if (!mkdtemp(root)) {
		CHECK(!"mkdtemp");
		return;
	}
	try_class(root, NULL, -1, true, 0);
	try_class(root, NULL, 96, true, 96);
	snprintf(command, sizeof(command), "mkdir -p %s/mlx5_9/tc/2", root);
	CHECK_INT(system(command), 0);
	try_class(root, "Global tclass=106\n", -1, true, 106);
	try_class(root, "Global tclass=106\ntclass=32,dst_ip=10.0.0.0/8\n", -1, true, 106);
	try_class(root, "Global tclass=106\n", 0, true, 0);
	try_class(root, "Global tclass=106\n", -1, false, 0);
	try_class(root, "Global tclass=0\n", -1, true, 0);
	try_class(root, "Global tclass=256\n", -1, true, 0);
	try_class(root, "tclass=32,dst_ip=10.0.0.0/8\n", -1, true, 0);
	try_class(root, "", -1, true, 0);
	snprintf(command, sizeof(command), "rm -r %s", root);
	CHECK_INT(system(command), 0);
}

/* A port's speed: the kernel's, or that of verbs, whose codes end at NDR. */
static void check_speed(void)
{
	static const struct {
		int width, speed;
		const char *rate; /* NULL: no file */
		uint32_t mbps;
	} cases[] = {
		{ 2, 64, "200 Gb/sec (4X HDR)\n", 200000 },
		{ 2, 128, "400 Gb/sec (4X NDR)\n", 400000 },
		{ 2, 128, "800 Gb/sec (4X XDR)\n", 800000 }, /* verbs say NDR */
		{ 2, 0, "800 Gb/sec (4X XDR)\n", 800000 },   /* or nothing */
		{ 4, 0, "1600 Gb/sec (8X XDR)\n", 1600000 },
		{ 4, 128, "800 Gb/sec (8X NDR)\n", 800000 },
		{ 1, 1, "2.5 Gb/sec (1X SDR)\n", 2500 },
		{ 2, 128, NULL, 400000 },
		{ 16, 128, NULL, 200000 },
		{ 2, 128, "nonsense\n", 400000 },
		{ 2, 0, "1e30\n", 0 },
		{ 2, 0, NULL, 0 },
	};
	char root[] = "/tmp/gda_sysfs_XXXXXX", device[64], command[512];
	struct ep_port port;

	NEED(mkdtemp(root));
	snprintf(device, sizeof(device), "%s/infiniband", root);
	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct ibv_port_attr attr = { .active_width = (uint8_t)cases[i].width,
					      .active_speed = (uint8_t)cases[i].speed };

		snprintf(command, sizeof(command), "rm -rf %s/mlx5_9; mkdir -p %s/mlx5_9/ports/2",
			 device, device);
		CHECK_INT(system(command), 0);
		if (cases[i].rate) {
			write_file(device, "ports/2/rate", cases[i].rate);
		}
		ep_port_set(&port, "mlx5_9", 2, &attr, root);
		CHECK_INT(port.mbps, cases[i].mbps);
	}
	snprintf(command, sizeof(command), "rm -r %s", root);
	CHECK_INT(system(command), 0);
}

/*
 * A port that is a bond of two ports of its NIC has the rate of both; interfaces of other NICs are
 * no part of it.
 */
static void check_bond(void)
{
	static const char tree[] =
		"set -e; mkdir -p $R/class/infiniband/mlx5_bond_0/ports/1/gid_attrs/ndevs $R/class/net/bond0/bonding\n"
		"mkdir -p $R/pci/17:00.0 $R/pci/17:00.1 $R/pci/18:00.0\n"
		"for s in a:17:00.0 b:17:00.1 c:18:00.0; do\n"
		"  n=$R/class/net/eth${s%%:*}; mkdir -p $n; ln -s ../../../pci/${s#*:} $n/device\n"
		"  echo up >$n/operstate; echo 200000 >$n/speed; done\n"
		"d=$R/class/infiniband/mlx5_bond_0; ln -s ../../../pci/17:00.0 $d/device\n"
		"echo bond0 >$d/ports/1/gid_attrs/ndevs/1\n";
	static const struct {
		const char *change;
		bool bond;
		uint32_t members, mbps;
	} cases[] = {
		{ "echo etha ethb >$R/class/net/bond0/bonding/slaves", true, 2, 400000 },
		/* One carries everything, and the others wait. */
		{ "echo active-backup 1 >$R/class/net/bond0/bonding/mode; "
		  "echo etha >$R/class/net/bond0/bonding/active_slave",
		  true, 2, 200000 },
		{ "echo 802.3ad 4 >$R/class/net/bond0/bonding/mode", true, 2, 400000 },
		{ "echo down >$R/class/net/ethb/operstate; echo -1 >$R/class/net/ethb/speed", true,
		  2, 200000 },
		{ "echo etha ethc >$R/class/net/bond0/bonding/slaves", false, 1, 200000 },
		{ "rm $R/class/net/bond0/bonding/slaves", false, 0, 200000 },
	};
	char root[] = "/tmp/gda_sysfs_XXXXXX", class[64], command[2048];

	CHECK(mkdtemp(root));
	setenv("R", root, 1);
	snprintf(class, sizeof(class), "%s/class", root);
	CHECK_INT(system(tree), 0);
	for (size_t i = 0; i < EP_ARRAY_SIZE(cases); i++) {
		const char *name = "mlx5_bond_0";
		struct ep_topo_bond bond;

		check_context("case %zu", i);
		CHECK_INT(system(cases[i].change), 0);
		CHECK_INT(ep_topo_bond_read(class, name, 1, &bond), cases[i].bond);
		CHECK_INT(bond.members, cases[i].members);
		CHECK_INT(ep_topo_port_mbps(class, name, 1, true, 200000), cases[i].mbps);
		CHECK_INT(ep_topo_port_mbps(class, name, 1, false, 200000), 200000);
		CHECK(!ep_topo_bond_read(class, "mlx5_bond_1", 1, &bond));
	}
	snprintf(command, sizeof(command), "rm -r %s", root);
	CHECK_INT(system(command), 0);
}

/* Where memory cannot be pinned, the limit of the process is told. */
static void check_limit(void)
{
	struct rlimit old, less;
	char text[EP_NIC_ERROR_TEXT];

	NEED(getrlimit(RLIMIT_MEMLOCK, &old) == 0);
	less = old;
	less.rlim_cur = 64 << 10;
	NEED(setrlimit(RLIMIT_MEMLOCK, &less) == 0);
	CHECK_TEXT(
		ep_nic_error_print(ENOMEM, text),
		"Cannot allocate memory (RLIMIT_MEMLOCK is 64 KiB: raise it, ulimit -l unlimited)");
	CHECK_TEXT(ep_nic_error_print(EINVAL, text), "Invalid argument");
	NEED(setrlimit(RLIMIT_MEMLOCK, &old) == 0);
	CHECK_HAS(ep_nic_error_print(ENOMEM, text), "RLIMIT_MEMLOCK is ");
}

int main(void)
{
	check_limit();
	check_bond();
	check_roce_version();
	check_speed();
	check_class();
	return check_end();
}
