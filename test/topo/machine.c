/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whole machines, made up below a directory that hwloc and the readers take for this one's (with
 * stand-ins for NVML and CUDA through LD_LIBRARY_PATH), and the table that each must give.
 *
 *     machine TABLES     a file with a table for each machine, which begins with "#! NAME"
 */
#include <stdlib.h>
#include <string.h>

#include "support/check.h"
#include "root.h"
#include "topo/topo.h"

#define GPU "0x030200\n", "0x10de\n"
#define NVSWITCH "0x068000\n", "0x10de\n"
#define NIC "0x020700\n", "0x15b3\n"

static const char *tables;
static bool nvls_disable;

/*
 * Compares what ep_topo prints of the machine, or of it and a file with this text, with the table
 * NAME.
 */
static void check_table(const char *name, const char *file)
{
	struct ep_topo_opts opts = { .nvls_disable = nvls_disable };
	struct ep_topo *topo = NULL;
	struct ep_topo_err err;
	char path[512], command[2400], file_path[512];

	setenv("HWLOC_FSROOT", root_dir, 1);
	if (file) {
		root_put("/file.xml", file);
		snprintf(file_path, sizeof(file_path), "%s/file.xml", root_dir);
		opts.file = file_path;
	}
	snprintf(path, sizeof(path), "%s/got", root_dir);
	FILE *out = fopen(path, "we");

	if (!out || ep_topo_load(&opts, &topo, &err)) {
		CHECK(false, "%s: %s", name, out ? err.text : path);
		exit(1);
	}
	ep_topo_print_table(topo, out);
	fclose(out);
	ep_topo_free(topo);
	/* The file's path differs from run to run. */
	snprintf(command, sizeof(command),
		 "sed -n '/^#! %s$/,/^#!/{/^#!/d;p}' '%s' >'%s.want';"
		 "sed 's|%s||' '%s' | diff -u '%s.want' -",
		 name, tables, path, root_dir, path, path);
	fflush(stdout);
	CHECK(system(command) == 0, "%s: something else", name);
}

/* A GPU and a NIC behind host bridges of their own at each of two sockets, by bus. */
static void put_pairs(int gpu_numa, int nic_numa)
{
	root_put_sockets(2);
	root_put_pci("0000:10:00.0", GPU, gpu_numa);
	root_put_pci("0000:20:00.0", NIC, nic_numa);
	root_put_pci("0000:80:00.0", GPU, 1);
	root_put_pci("0000:90:00.0", NIC, 1);
	root_put_nic("mlx5_0", "0000:20:00.0", "4: ACTIVE\n", "400 Gb/sec\n", "InfiniBand\n");
	root_put_nic("mlx5_1", "0000:90:00.0", "4: ACTIVE\n", "400 Gb/sec\n", "InfiniBand\n");
}

/*
 * Nodes without CPUs, such as a GPU's memory, beside those of the sockets. Of the NIC at socket 0
 * the kernel only knows which CPUs are near, of the GPU at socket 1 only the node; of another NIC
 * nothing.
 */
static void test_memory_nodes(void)
{
	root_make();
	put_pairs(0, 0);
	root_put("/sys/bus/pci/devices/0000:20:00.0/numa_node", "-1\n");
	root_put("/sys/bus/pci/devices/0000:80:00.0/local_cpus", "f\n");
	root_put_pci("0000:a0:00.0", NIC, -1);
	root_put_nic("mlx5_2", "0000:a0:00.0", "1: DOWN\n", "10 Gb/sec\n", "InfiniBand\n");
	root_put("/sys/devices/system/node/node2/cpumap", "0\n");
	root_put("/sys/devices/system/node/node2/meminfo", "Node 2 MemTotal: 1048576 kB\n");
	root_put("/sys/devices/system/node/node2/access0/initiators/node0/x", "");
	root_put("/sys/devices/system/node/node3/cpumap", "0\n");
	root_put("/sys/devices/system/node/node3/meminfo", "Node 3 MemTotal: 1048576 kB\n");
	root_put("/sys/devices/system/node/node3/access0/initiators/node1/x", "");
	root_put("/sys/devices/system/node/online", "0-3\n");
	check_table("memory-nodes", NULL);
	root_remove();
}

/* A job that was given the CPUs and the memory of socket 0 only, with all of the devices. */
static void test_cpuset(void)
{
	static const char group[] = "/sys/fs/cgroup/job";
	char path[64];

	root_make();
	put_pairs(0, 0);
	root_put("/sys/bus/pci/devices/0000:90:00.0/numa_node", "-1\n");
	root_put("/proc/mounts", "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
	root_put("/proc/self/cgroup", "0::/job\n");
	root_put("/sys/fs/cgroup/cgroup.controllers", "cpuset memory\n");
	snprintf(path, sizeof(path), "%s/cgroup.controllers", group);
	root_put(path, "cpuset memory\n");
	snprintf(path, sizeof(path), "%s/cpuset.cpus.effective", group);
	root_put(path, "0-1\n");
	snprintf(path, sizeof(path), "%s/cpuset.mems.effective", group);
	root_put(path, "0\n");
	check_table("cpuset", NULL);
	root_remove();
}

/*
 * Sockets of two NUMA nodes each, a GPU at one and a NIC at the other: that NIC is nearer than the
 * one of the other socket, also where NCCL's file shows the nodes.
 */
static void test_divided_sockets(void)
{
	static const char file[] = "<system version=\"1\">"
				   "<cpu numaid=\"0\"><pci busid=\"0000:30:00.0\"/></cpu>"
				   "<cpu numaid=\"1\"><pci busid=\"0000:10:00.0\"/></cpu>"
				   "<cpu numaid=\"2\"><pci busid=\"0000:20:00.0\"/></cpu>"
				   "<cpu numaid=\"3\"><pci busid=\"0000:80:00.0\"/></cpu></system>";
	char path[64], text[64];

	root_make();
	root_put_sockets(2);
	for (int node = 0; node < 4; node++) {
		snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/cpumap", node);
		snprintf(text, sizeof(text), "%x\n", 1u << node);
		root_put(path, text);
		snprintf(path, sizeof(path), "/sys/devices/system/node/node%d/meminfo", node);
		snprintf(text, sizeof(text), "Node %d MemTotal: 1048576 kB\n", node);
		root_put(path, text);
	}
	root_put("/sys/devices/system/node/online", "0-3\n");
	root_put("/sys/devices/system/node/possible", "0-3\n");
	root_put_pci("0000:10:00.0", GPU, 1);
	root_put("/sys/bus/pci/devices/0000:10:00.0/local_cpus", "2\n");
	root_put_pci("0000:20:00.0", NIC, 2);
	root_put("/sys/bus/pci/devices/0000:20:00.0/local_cpus", "4\n");
	root_put_pci("0000:30:00.0", NIC, 0);
	root_put("/sys/bus/pci/devices/0000:30:00.0/local_cpus", "1\n");
	root_put_pci("0000:80:00.0", GPU, 3);
	root_put("/sys/bus/pci/devices/0000:80:00.0/local_cpus", "8\n");
	root_put_nic("mlx5_0", "0000:20:00.0", "4: ACTIVE\n", "400 Gb/sec\n", "InfiniBand\n");
	root_put_nic("mlx5_1", "0000:30:00.0", "4: ACTIVE\n", "400 Gb/sec\n", "InfiniBand\n");
	check_table("divided-sockets", NULL);
	check_table("divided-sockets-file", file);
	root_remove();
}

static void put_virtual(const char *text)
{
	root_put("/var/run/nvidia-topologyd/virtualTopology.xml", text);
}

/*
 * A virtual machine shows all devices side by side; a file that is always in one place knows. It is
 * no error that it is damaged, and without GPUs it does not apply.
 */
static void test_virtual(void)
{
	root_make();
	put_pairs(0, 0);
	root_put("/proc/cpuinfo", "flags\t\t: fpu hypervisor\n");
	put_virtual("<system version=\"1\"><cpu numaid=\"0\"><pci busid=\"ffff:ff:01.0\" "
		    "class=\"0x060400\"><pci busid=\"0000:10:00.0\"/><pci busid=\"0000:90:00.0\"/>"
		    "</pci></cpu></system>");
	check_table("virtual", NULL);
	put_virtual("<system version=\"1\"><cpu numaid=\"0\"/>");
	check_table("virtual-damaged", NULL);
	root_put("/sys/bus/pci/devices/0000:10:00.0/class", "0x020000\n");
	root_put("/sys/bus/pci/devices/0000:80:00.0/class", "0x020000\n");
	check_table("virtual-no-gpu", NULL);
	root_remove();
}

static void put_port(const char *name, const char *pci, const char *rate)
{
	root_put_nic(name, pci, "4: ACTIVE\n", rate, "InfiniBand\n");
}

/*
 *  socket 0  00:01.0 -- switch 10 +- GPU 17
 *                                 +- card 18: mlx5_0, mlx5_1
 *                                 +- 19: mlx5_2, a slow port
 *                                 +- 1a: mlx5_3, a narrow PCIe link
 *                                 +- switch 20 -- GPU 22
 *            30:01.0 -- NVSwitch 31
 *  socket 1  80:01.0 -- GPU 81
 *            80:02.0 -- 82: mlx5_4
 *            a0:01.0 -- GPU a1
 *            a0:02.0 -- GPU b1
 *            mlx5_5, which is on PCI, but not to be seen there
 *  nowhere   rxe0
 */
static void put_two_sockets(void)
{
	root_put_sockets(2);
	root_put("/proc/cpuinfo", "flags\t\t: fpu\n");
	root_put_bridge("0000:00:01.0", 0x10, 0x2f, 0);
	root_put_bridge("0000:10:00.0", 0x11, 0x2f, 0);
	root_put_bridge("0000:11:00.0", 0x17, 0x17, 0);
	root_put_pci("0000:17:00.0", GPU, 0);
	root_put_bridge("0000:11:01.0", 0x18, 0x18, 0);
	root_put_pci("0000:18:00.0", NIC, 0);
	root_put_pci("0000:18:00.1", NIC, 0);
	root_put_bridge("0000:11:02.0", 0x19, 0x19, 0);
	root_put_pci("0000:19:00.0", NIC, 0);
	root_put_bridge("0000:11:03.0", 0x1a, 0x1a, 0);
	root_put_pci("0000:1a:00.0", NIC, 0);
	root_put_pcie("0000:1a:00.0", "8.0 GT/s PCIe\n", 2);
	root_put_bridge("0000:11:04.0", 0x20, 0x2f, 0);
	root_put_bridge("0000:20:00.0", 0x21, 0x2f, 0);
	root_put_bridge("0000:21:00.0", 0x22, 0x22, 0);
	root_put_pci("0000:22:00.0", GPU, 0);
	root_put_bridge("0000:30:01.0", 0x31, 0x31, 0);
	root_put_pci("0000:31:00.0", NVSWITCH, 0);
	root_put_bridge("0000:80:01.0", 0x81, 0x81, 1);
	root_put_pci("0000:81:00.0", GPU, 1);
	root_put_bridge("0000:80:02.0", 0x82, 0x82, 1);
	root_put_pci("0000:82:00.0", NIC, 1);
	root_put_bridge("0000:a0:01.0", 0xa1, 0xa1, 1);
	root_put_pci("0000:a1:00.0", GPU, 1);
	root_put_bridge("0000:a0:02.0", 0xb1, 0xb1, 1);
	root_put_pci("0000:b1:00.0", GPU, 1);
	put_port("mlx5_0", "0000:18:00.0", "400 Gb/sec (4X NDR)\n");
	put_port("mlx5_1", "0000:18:00.1", "400 Gb/sec (4X NDR)\n");
	put_port("mlx5_2", "0000:19:00.0", "100 Gb/sec (4X EDR)\n");
	put_port("mlx5_3", "0000:1a:00.0", "400 Gb/sec (4X NDR)\n");
	put_port("mlx5_4", "0000:82:00.0", "400 Gb/sec (4X NDR)\n");
	put_port("mlx5_5", "0000:05:00.0", "400 Gb/sec (4X NDR)\n");
	root_put("/sys/0000:05:00.0/numa_node", "1\n");
	put_port("rxe0", NULL, "400 Gb/sec (4X NDR)\n");
}

/* As PCI shows it; with NVML, which does not give us the last GPU; with multicast or without it. */
static void test_two_sockets(void)
{
	root_make();
	put_two_sockets();
	check_table("two-sockets", NULL);
	setenv("FAKE_NVML", "switch", 1);
	setenv("FAKE_NVML_GPUS", "0000:17:00.0 0000:22:00.0 0000:81:00.0 0000:a1:00.0", 1);
	setenv("FAKE_CUDA", "1,100", 1);
	setenv("FAKE_CUDA_GPUS", "0000:17:00.0,0000:22:00.0", 1);
	setenv("FAKE_CUDA_MULTICAST", "11", 1);
	check_table("two-sockets-nvml", NULL);
	setenv("FAKE_CUDA_MULTICAST", "10", 1);
	root_put("/proc/cpuinfo", "flags\t\t: fpu hypervisor\n");
	check_table("two-sockets-no-multicast", NULL);
	setenv("FAKE_CUDA_MULTICAST", "11", 1);
	nvls_disable = true;
	check_table("two-sockets-no-nvls", NULL);
	nvls_disable = false;
	root_remove();
}

/*
 * Files over that machine. The first moves the switch to the other node, and the card away from it;
 * mlx5_4 is fused with another beside GPU a1, where mlx5_3 has no more than the end of its
 * data-direct path; mlx5_5 and rxe0, of which this machine shows no place, get one. In the second
 * this machine is the other host.
 */
static void test_files(void)
{
	static const char moved[] =
		"<system version=\"1\"><cpu numaid=\"1\">"
		"<pci busid=\"0000:10:00.0\" class=\"0x060400\"><pci busid=\"0000:19:00.0\"/></pci>"
		"<pci busid=\"ffff:ff:01.0\" class=\"0x060400\"><pci busid=\"0000:22:00.0\"/>"
		"<pci busid=\"0000:18:00.0\"><nic><net name=\"mlx5_0\" dev=\"0\" port=\"1\"/>"
		"<net name=\"mlx5_1\" dev=\"1\" port=\"2\"/></nic></pci></pci>"
		"</cpu><cpu numaid=\"0\"><nic><net name=\"mlx5_5\" port=\"1\"/></nic>"
		"<pci busid=\"0000:92:00.0\"><nic><net name=\"rxe0\" port=\"1\"/></nic></pci>"
		"<pci busid=\"ffff:ff:02.0\" class=\"0x060400\">"
		"<pci busid=\"0000:a1:00.0\"/><pci busid=\"0000:91:00.0\"><nic>"
		"<net name=\"mlx5_4+mlx5_9\" port=\"1\"/>"
		"<net name=\"mlx5_3_dma\" port=\"1\"/></nic></pci></pci></cpu></system>";
	static const char hosts[] =
		"<system version=\"1\"><cpu host_hash=\"0xa\" numaid=\"5\">"
		"<pci busid=\"0000:17:00.0\" class=\"0x030200\"/>"
		"<nic><net name=\"rxe0\" port=\"1\"/></nic></cpu>"
		"<cpu host_hash=\"0xb\" numaid=\"7\"><pci busid=\"0000:17:00.0\"/>"
		"<pci busid=\"0000:22:00.0\"/><nic><net name=\"rxe0\" port=\"1\"/></nic></cpu></system>";

	root_make();
	put_two_sockets();
	check_table("two-sockets-moved", moved);
	check_table("two-sockets-hosts", hosts);
	root_remove();
}

/* A container sees the virtual functions of its host's NICs, few of which are its own. */
static void test_many_nics(void)
{
	struct ep_topo_opts opts = { .hca = "=mlx5_299" };
	struct ep_topo *topo = NULL;
	struct ep_topo_err err;
	char name[16];

	root_make();
	root_put_sockets(1);
	root_put_pci("0000:10:00.0", GPU, 0);
	for (int i = 0; i < 300; i++) {
		snprintf(name, sizeof(name), "mlx5_%d", i);
		put_port(name, NULL, "400 Gb/sec (4X NDR)\n");
	}
	setenv("HWLOC_FSROOT", root_dir, 1);
	CHECK(ep_topo_load(&opts, &topo, &err) == 0, "%s", err.text);
	CHECK(topo && topo->ngpus == 1 && topo->gpu[0].nrails == 1 &&
		      strcmp(topo->nic[topo->gpu[0].rail[0].nic].name, "mlx5_299") == 0,
	      "the GPU does not use mlx5_299");
	ep_topo_free(topo);
	root_remove();
}

int main(int argc, char **argv)
{
	if (argc != 2) {
		return 2;
	}
	root_unset();
	tables = argv[1];
	setenv("FAKE_NVML", "broken", 1);
	test_memory_nodes();
	test_cpuset();
	test_divided_sockets();
	test_virtual();
	test_many_nics();
	test_two_sockets();
	test_files();
	return check_end();
}
