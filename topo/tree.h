/* SPDX-License-Identifier: Apache-2.0 */
/* Inside topo/ only: the PCIe tree, and how the readers fill a struct ep_topo. */
#ifndef EP_TOPO_TREE_H
#define EP_TOPO_TREE_H

#include "topo/topo.h"

#define EP_TOPO_MAX_NODES 65536
#define EP_TOPO_MAX_DEPTH 64

enum ep_topo_kind {
	EP_TOPO_KIND_MACHINE,
	EP_TOPO_KIND_HOST,   /* a host bridge, or NCCL's <cpu>, which stands for all of a node's */
	EP_TOPO_KIND_SWITCH, /* a switch's upstream port: one per switch */
	EP_TOPO_KIND_PORT,   /* a root port or a switch's downstream port: no hop of its own */
	EP_TOPO_KIND_DEVICE,
};

struct ep_topo_node {
	int parent; /* -1: the machine, which is node 0 */
	int depth;
	enum ep_topo_kind kind;
	int numa;
	uint32_t mbps; /* of its PCIe link; 0: unknown */
	struct ep_topo_pci pci;
};

/* Returns an empty topology, whose node 0 is the machine, or NULL without memory. */
struct ep_topo *ep_topo_new(enum ep_topo_source source);
/* Adds a node below `parent`. Returns its index, or a negative errno. */
int ep_topo_add_node(struct ep_topo *topo, int parent, enum ep_topo_kind kind,
		     const struct ep_topo_pci *pci, int numa, struct ep_topo_err *err);
/*
 * Returns what a bridge is: below a host bridge, root port, upstream, downstream, upstream ... take
 * turns.
 */
enum ep_topo_kind ep_topo_bridge_kind(const struct ep_topo *topo, int parent);
/* Returns the host of a node, from 0. Several hosts are machines below node 0. */
int ep_topo_host_at(const struct ep_topo *topo, int node);
/* Returns the node with a PCI address below topo->home, or -1. */
int ep_topo_find_node(const struct ep_topo *topo, const struct ep_topo_pci *pci);
/*
 * Returns the host bridge below topo->home for a device of which only the NUMA node is known, and
 * adds it if needed; or a negative errno.
 */
int ep_topo_host_of_numa(struct ep_topo *topo, int numa, struct ep_topo_err *err);
/*
 * Returns the node of a device, or a negative errno. A device that is not on PCI, or that hwloc
 * does not show, is added at its NUMA node.
 */
int ep_topo_place(struct ep_topo *topo, const struct ep_topo_pci *pci, int numa,
		  struct ep_topo_err *err);

/* Compares addresses as qsort() wants it: known ones first, in their order. */
int ep_topo_pci_compare(const struct ep_topo_pci *a, const struct ep_topo_pci *b);
/* Returns whether a GPU is at the node. */
bool ep_topo_has_gpu(const struct ep_topo *topo, int node);

/* Add a device at a node. They return NULL, with *err, where the limit is reached. */
struct ep_topo_gpu *ep_topo_add_gpu(struct ep_topo *topo, int node, struct ep_topo_err *err);
struct ep_topo_nic *ep_topo_add_nic(struct ep_topo *topo, int node, const char *name,
				    struct ep_topo_err *err);
/* Returns port `num` of the NIC, added if needed, or NULL where the limit is reached. */
struct ep_topo_port *ep_topo_add_port(struct ep_topo_nic *nic, int num);
/* Notes the socket of a NUMA node's CPUs, by its number from 1 on. */
void ep_topo_set_socket(struct ep_topo *topo, long numa, int socket);
/* Adds `count` NVLinks of the GPU to one target. */
void ep_topo_add_link(struct ep_topo_gpu *gpu, enum ep_topo_nvlink_kind kind,
		      const struct ep_topo_pci *target, int count);

#define EP_TOPO_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
/* Adds a remark for whoever reads the topology; those beyond the limit are counted. */
void ep_topo_note(struct ep_topo *topo, const char *fmt, ...) EP_TOPO_PRINTF(2, 3);
/* Writes the text of an error and returns -code. */
int ep_topo_fail(struct ep_topo_err *err, int code, const char *fmt, ...) EP_TOPO_PRINTF(3, 4);
/*
 * Copies a name, other bytes than printable ASCII as '?': it may come from a file of any author and
 * end on a terminal.
 */
void ep_topo_copy_name(char dst[EP_TOPO_NAME_LEN], const char *src);
/* Returns the Mbit/s of a PCIe link, by GT/s and lanes; 0: they make no sense. */
uint32_t ep_topo_link_mbps(double gts, int width);

/* Returns whether a PCI device is a GPU of NVIDIA's. */
bool ep_topo_is_gpu(unsigned class_id, unsigned vendor);
#define EP_TOPO_VENDOR_NVIDIA 0x10deu

struct ep_xml;
/* Read a format into *topo. They return 0 or a negative errno. */
int ep_topo_read_nccl(struct ep_topo *topo, const struct ep_xml *xml, struct ep_topo_err *err);
int ep_topo_read_hwloc(struct ep_topo *topo, const struct ep_xml *xml, struct ep_topo_err *err);
/* Makes a topology from XML of either format; `path` is for messages. */
int ep_topo_read_xml(const struct ep_xml *xml, const char *path, struct ep_topo **topo,
		     struct ep_topo_err *err);

/* Returns the path in front of /sys, /proc and /var. */
const char *ep_topo_root(const struct ep_topo_opts *opts);
/*
 * Reads this machine. If opts name a file, a PCIe tree that hwloc cannot read is a note, not an
 * error.
 */
int ep_topo_read_live(const struct ep_topo_opts *opts, struct ep_topo **topo,
		      struct ep_topo_err *err);
/* Adds what NVML knows; without NVML it leaves a note. */
int ep_topo_read_nvml(struct ep_topo *topo, const char *root, struct ep_topo_err *err);
/* Returns the NUMA node of a device by the kernel's files, or -1. root is in front of /sys. */
int ep_topo_numa_of_pci(const char *root, const struct ep_topo_pci *pci);

/* merge.c: `file` becomes the topology of this machine, `live`. */
int ep_topo_merge(struct ep_topo *file, const struct ep_topo *live, struct ep_topo_err *err);

/* Completes what was read and merged: puts it in order, finds NVLink domains, chooses NICs. */
int ep_topo_finish(struct ep_topo *topo, const struct ep_topo_opts *opts, struct ep_topo_err *err);
/* choose_nics.c: gives each GPU its NICs. */
int ep_topo_choose(struct ep_topo *topo, const struct ep_topo_opts *opts, struct ep_topo_err *err);

#endif
