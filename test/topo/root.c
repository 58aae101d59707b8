/* SPDX-License-Identifier: Apache-2.0 */
#include "root.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char root_dir[] = "/tmp/ep_topo_XXXXXX";

static void must(bool done, const char *what)
{
	if (!done) {
		perror(what);
		exit(1);
	}
}

void root_make(void)
{
	strcpy(root_dir, "/tmp/ep_topo_XXXXXX");
	must(mkdtemp(root_dir), root_dir);
}

void root_remove(void)
{
	char command[64];

	snprintf(command, sizeof(command), "rm -r %s", root_dir);
	must(system(command) == 0, command);
}

static void put_bytes(const char *path, const void *data, size_t len)
{
	char full[512];

	snprintf(full, sizeof(full), "%s%s", root_dir, path);
	for (char *s = full + 1; *s; s++) {
		if (*s == '/') {
			*s = '\0';
			mkdir(full, 0755);
			*s = '/';
		}
	}
	FILE *f = fopen(full, "we");

	must(f && fwrite(data, 1, len, f) == len && fclose(f) == 0, full);
}

void root_put(const char *path, const char *text)
{
	put_bytes(path, text, strlen(text));
}

static void put_long(const char *dir, int n, const char *file, const char *fmt, long value)
{
	char path[256], text[64];

	snprintf(path, sizeof(path), "%s%d/%s", dir, n, file);
	snprintf(text, sizeof(text), fmt, value);
	strcat(text, "\n");
	root_put(path, text);
}

void root_put_sockets(int sockets)
{
	static const char cpu_dir[] = "/sys/devices/system/cpu/cpu";
	static const char node_dir[] = "/sys/devices/system/node/node";
	char list[32];

	root_put("/proc/cpuinfo", "processor\t: 0\nflags\t\t: fpu vme\n");
	for (int cpu = 0; cpu < 2 * sockets; cpu++) {
		put_long(cpu_dir, cpu, "topology/physical_package_id", "%ld", cpu / 2);
		put_long(cpu_dir, cpu, "topology/core_id", "%ld", cpu % 2);
		put_long(cpu_dir, cpu, "topology/core_cpus", "%lx", 1l << cpu);
		put_long(cpu_dir, cpu, "topology/package_cpus", "%lx", 3l << (cpu & ~1));
		put_long(cpu_dir, cpu, "online", "%ld", 1);
	}
	for (int node = 0; node < sockets; node++) {
		put_long(node_dir, node, "cpumap", "%lx", 3l << 2 * node);
		put_long(node_dir, node, "meminfo", "Node 0 MemTotal: %ld kB", 1048576);
	}
	snprintf(list, sizeof(list), "0-%d\n", 2 * sockets - 1);
	root_put("/sys/devices/system/cpu/online", list);
	root_put("/sys/devices/system/cpu/possible", list);
	snprintf(list, sizeof(list), "0-%d\n", sockets - 1);
	root_put("/sys/devices/system/node/online", list);
	root_put("/sys/devices/system/node/possible", list);
}

static void put_of_device(const char *pci, const char *file, const char *text)
{
	char path[256];

	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/%s", pci, file);
	root_put(path, text);
}

static void put_config(const char *pci, int first, int last)
{
	unsigned char config[64] = { 0 };
	char path[256];

	config[0x0e] = first > 0; /* header type */
	config[0x19] = (unsigned char)first;
	config[0x1a] = (unsigned char)last;
	snprintf(path, sizeof(path), "/sys/bus/pci/devices/%s/config", pci);
	put_bytes(path, config, sizeof(config));
}

void root_put_pci(const char *pci, const char *class_id, const char *vendor, int numa)
{
	char text[32];

	put_of_device(pci, "class", class_id);
	put_of_device(pci, "vendor", vendor);
	put_of_device(pci, "device", "0x1234\n");
	snprintf(text, sizeof(text), "%d\n", numa);
	put_of_device(pci, "numa_node", text);
	snprintf(text, sizeof(text), "%lx\n", numa < 0 ? 0xffffl : 3l << 2 * numa);
	put_of_device(pci, "local_cpus", text);
	put_config(pci, 0, 0);
}

void root_put_bridge(const char *pci, int first, int last, int numa)
{
	root_put_pci(pci, "0x060400\n", "0x1000\n", numa);
	put_config(pci, first, last);
}

void root_put_pcie(const char *pci, const char *speed, int width)
{
	char text[32];

	put_of_device(pci, "current_link_speed", speed);
	put_of_device(pci, "max_link_speed", speed);
	snprintf(text, sizeof(text), "%d\n", width);
	put_of_device(pci, "current_link_width", text);
	put_of_device(pci, "max_link_width", text);
}

void root_put_nic(const char *name, const char *pci, const char *state, const char *rate,
		  const char *layer)
{
	const struct {
		const char *file, *text;
	} table[] = {
		{ "node_guid", "a088:c203:00aa:0001\n" },
		{ "ports/1/state", state },
		{ "ports/1/rate", rate },
		{ "ports/1/link_layer", layer },
	};
	char path[256], full[512];

	for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
		snprintf(path, sizeof(path), "/sys/class/infiniband/%s/%s", name, table[i].file);
		root_put(path, table[i].text);
	}
	if (pci) {
		snprintf(path, sizeof(path), "../../../%s", pci);
		snprintf(full, sizeof(full), "%s/sys/class/infiniband/%s/device", root_dir, name);
		must(symlink(path, full) == 0, full);
	}
}

void root_unset(void)
{
	static const char *const ours[] = { "HWLOC_XMLFILE", "HWLOC_COMPONENTS", "HWLOC_SYNTHETIC",
					    "HWLOC_FSROOT",  "NCCL_TOPO_FILE",   "FAKE_CUDA" };

	for (size_t i = 0; i < sizeof(ours) / sizeof(ours[0]); i++) {
		unsetenv(ours[i]);
	}
}
