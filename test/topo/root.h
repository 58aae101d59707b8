/* SPDX-License-Identifier: Apache-2.0 */
/* A made-up machine in a directory of its own, as far as hwloc and topo/machine.c read one. */
#ifndef EP_TOPO_TEST_ROOT_H
#define EP_TOPO_TEST_ROOT_H

extern char root_dir[];

/* Nothing that a user has set says another machine. */
void root_unset(void);

/* An empty root; root_remove takes away what is in it. */
void root_make(void);
void root_remove(void);

/* A file below it, with its directories; path begins with a slash. */
void root_put(const char *path, const char *text);

/* Sockets of two CPUs each, a NUMA node per socket. */
void root_put_sockets(int sockets);
/*
 * A device at a PCI address, or a bridge to buses first..last. numa -1: the kernel does not know.
 */
void root_put_pci(const char *pci, const char *class_id, const char *vendor, int numa);
void root_put_bridge(const char *pci, int first, int last, int numa);
/* Its PCIe link, such as "32.0 GT/s PCIe" and 16 lanes. */
void root_put_pcie(const char *pci, const char *speed, int width);

/*
 * An RDMA device with one port. "device/numa_node" of one that is not among the PCI devices is
 * /sys/PCI/numa_node. pci may go on after the address; NULL: it is not on PCI.
 */
void root_put_nic(const char *name, const char *pci, const char *state, const char *rate,
		  const char *layer);

#endif
