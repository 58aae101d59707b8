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

struct ep_topo *ep_topo_new(enum ep_topo_source source);
int ep_topo_add_node(struct ep_topo *topo, int parent, enum ep_topo_kind kind,
		     const struct ep_topo_pci *pci, int numa, struct ep_topo_err *err);
/* Below a host bridge, root port - upstream - downstream - upstream - ... take turns. */
enum ep_topo_kind ep_topo_bridge_kind(const struct ep_topo *topo, int parent);
/* Several hosts are machines below node 0. Which one a node belongs to, counted from 0. */
int ep_topo_host_at(const struct ep_topo *topo, int node);
/* Both look below topo->home only. */
int ep_topo_find_node(const struct ep_topo *topo, const struct ep_topo_pci *pci);
/* Where a device goes of which no more than its NUMA node is known. */
int ep_topo_host_of_numa(struct ep_topo *topo, int numa, struct ep_topo_err *err);
/* The node of a device; one that is not on PCI, or hidden from hwloc, is added at its NUMA node. */
int ep_topo_place(struct ep_topo *topo, const struct ep_topo_pci *pci, int numa,
		  struct ep_topo_err *err);
enum ep_topo_dist ep_topo_dist_nodes(const struct ep_topo *topo, int a, int b);

/* Known addresses first, in their order. */
int ep_topo_pci_compare(const struct ep_topo_pci *a, const struct ep_topo_pci *b);
bool ep_topo_has_gpu(const struct ep_topo *topo, int node);

struct ep_topo_gpu *ep_topo_add_gpu(struct ep_topo *topo, int node, struct ep_topo_err *err);
struct ep_topo_nic *ep_topo_add_nic(struct ep_topo *topo, int node, const char *name,
				    struct ep_topo_err *err);
struct ep_topo_port *ep_topo_add_port(struct ep_topo_nic *nic, int num);
void ep_topo_add_link(struct ep_topo_gpu *gpu, enum ep_topo_nvlink_kind kind,
		      const struct ep_topo_pci *target, int count);

#define EP_TOPO_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))
void ep_topo_note(struct ep_topo *topo, const char *fmt, ...) EP_TOPO_PRINTF(2, 3);
int ep_topo_fail(struct ep_topo_err *err, int code, const char *fmt, ...) EP_TOPO_PRINTF(3, 4);
/* Names come from files anybody may have written and end on terminals: printable ASCII only. */
void ep_topo_copy_name(char dst[EP_TOPO_NAME_LEN], const char *src);
uint32_t ep_topo_link_mbps(double gts, int width);

bool ep_topo_is_gpu(unsigned class_id, unsigned vendor);
#define EP_TOPO_VENDOR_NVIDIA 0x10deu

struct ep_xml;
int ep_topo_read_nccl(struct ep_topo *topo, const struct ep_xml *xml, struct ep_topo_err *err);
int ep_topo_read_hwloc(struct ep_topo *topo, const struct ep_xml *xml, struct ep_topo_err *err);
/* Either format; path is for messages. */
int ep_topo_read_xml(const struct ep_xml *xml, const char *path, struct ep_topo **topo,
		     struct ep_topo_err *err);

/* The path in front of /sys, /proc and /var. */
const char *ep_topo_root(const struct ep_topo_opts *opts);
/* With a file to go by, a PCIe tree that hwloc cannot read is a note. */
int ep_topo_read_live(const struct ep_topo_opts *opts, struct ep_topo **topo,
		      struct ep_topo_err *err);
/* Adds what NVML knows; without NVML it leaves a note. */
int ep_topo_read_nvml(struct ep_topo *topo, const char *root, struct ep_topo_err *err);
/* By sysfs; -1: unknown. root is in front of /sys. */
int ep_topo_numa_of_pci(const char *root, const struct ep_topo_pci *pci);
int ep_topo_read_sysfs_nics(struct ep_topo *topo, const char *root, struct ep_topo_err *err);
int ep_topo_merge(struct ep_topo *file, const struct ep_topo *live, struct ep_topo_err *err);

/* After reading and merging: order, NVLink domains, NIC choice. */
int ep_topo_finish(struct ep_topo *topo, const struct ep_topo_opts *opts, struct ep_topo_err *err);
int ep_topo_choose(struct ep_topo *topo, const struct ep_topo_opts *opts, struct ep_topo_err *err);
void ep_topo_domains(struct ep_topo *topo);

#endif
