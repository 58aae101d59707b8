// SPDX-License-Identifier: Apache-2.0
/*
 * Whole machines, made up below a directory that hwloc and the readers take for this one's (with
 * stand-ins for NVML and CUDA through LD_LIBRARY_PATH), and the table that each must give.
 *
 *     machine TABLES     TABLES/NAME.txt for each machine
 */
#include <stdlib.h>
#include <string.h>

#include "check.h"
#include "root.h"
#include "topo/topo.h"

#define GPU "0x030200\n", "0x10de\n"
#define NIC "0x020700\n", "0x15b3\n"

static const char *tables;

/* What ep_topo says of the machine, or of it and a file. */
static void check_table(const char *name, const char *file)
{
	struct ep_topo_opts opts = { .file = file };
	struct ep_topo *topo = NULL;
	struct ep_topo_err err;
	char path[512], command[1400];

	setenv("HWLOC_FSROOT", root_dir, 1);
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
	snprintf(command, sizeof(command), "sed 's|%s||' '%s' | diff -u '%s/%s.txt' -", root_dir,
		 path, tables, name);
	fflush(stdout);
	CHECK(system(command) == 0, "%s: another table", name);
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

/* Nodes without CPUs, such as a GPU's memory, beside those of the sockets. Of the NIC at socket 0 the
 * kernel only knows which CPUs are near, of the GPU at socket 1 only the node; of another NIC nothing. */
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

static void put_virtual(const char *text)
{
	root_put("/var/run/nvidia-topologyd/virtualTopology.xml", text);
}

/* A virtual machine shows all devices side by side; a file that is always in one place knows. It is
 * no error that it is damaged, and without GPUs it does not apply. */
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

int main(int argc, char **argv)
{
	static const char *const ours[] = { "HWLOC_XMLFILE", "HWLOC_COMPONENTS", "HWLOC_SYNTHETIC",
					    "HWLOC_FSROOT",  "NCCL_TOPO_FILE",   "FAKE_CUDA" };

	if (argc != 2) {
		return 2;
	}
	for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
		unsetenv(ours[i]);
	}
	tables = argv[1];
	setenv("FAKE_NVML", "broken", 1);
	test_memory_nodes();
	test_cpuset();
	test_virtual();
	return failures != 0;
}
