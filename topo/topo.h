/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The machine, as the network sees it: GPUs, RDMA NICs and their ports, the PCIe tree
 * between them, NVLink domains, and which NICs each GPU uses.
 *
 * Functions return 0 or a negative errno and, on failure, fill struct ep_topo_err with one line:
 * what failed, the offending value, what to do. Nothing here logs, so that the library, the tools
 * and the tests can each report in their own way. Outputs are written only on success.
 */
#ifndef EP_TOPO_TOPO_H
#define EP_TOPO_TOPO_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#define EP_TOPO_NAME_LEN 64
#define EP_TOPO_MAX_GPUS 128
#define EP_TOPO_MAX_NICS 1024 /* a host shows a container the virtual functions of all */
#define EP_TOPO_MAX_PORTS 8
#define EP_TOPO_MAX_RAILS 16
#define EP_TOPO_MAX_NUMAS 1024 /* whose sockets are kept */
#define EP_TOPO_MAX_LINKS 32
#define EP_TOPO_MAX_NOTES 64
#define EP_TOPO_NOTE_LEN 240

struct ep_topo_err {
	char text[512];
};

struct ep_topo_pci {
	uint32_t domain;
	uint8_t bus, dev, fn;
	bool known;
};

/* Nearest first. The names are those of nvidia-smi topo. */
enum ep_topo_dist {
	EP_TOPO_LOC,     /* same device */
	EP_TOPO_PIX,     /* at most one PCIe switch */
	EP_TOPO_PXB,     /* several PCIe switches, no host bridge */
	EP_TOPO_PHB,     /* through one PCIe host bridge */
	EP_TOPO_NODE,    /* between host bridges of one NUMA node */
	EP_TOPO_SYS,     /* between NUMA nodes, or place unknown */
	EP_TOPO_DISTANT, /* no path: there is no such NIC, or on another host */
};

/* How a GPU reaches another one's memory. */
enum ep_topo_reach {
	EP_TOPO_REACH_UNKNOWN, /* or not at all, being on another host */
	EP_TOPO_REACH_NONE,
	EP_TOPO_REACH_PCIE, /* peer access, but no NVLink */
	EP_TOPO_REACH_NVLINK,
};

enum ep_topo_source {
	EP_TOPO_SOURCE_LIVE,
	EP_TOPO_SOURCE_HWLOC_XML,
	EP_TOPO_SOURCE_NCCL_XML,
};

enum ep_topo_state {
	EP_TOPO_STATE_UNKNOWN,
	EP_TOPO_STATE_DOWN,
	EP_TOPO_STATE_ACTIVE,
};

enum ep_topo_link_layer {
	EP_TOPO_LINK_UNKNOWN,
	EP_TOPO_LINK_IB,
	EP_TOPO_LINK_ETHERNET,
};

/* Why no GPU uses a port. */
enum ep_topo_why {
	EP_TOPO_WHY_USED,
	EP_TOPO_WHY_NOT_RDMA,
	EP_TOPO_WHY_DISABLED,
	EP_TOPO_WHY_FILTERED,
	EP_TOPO_WHY_DOWN,
	EP_TOPO_WHY_CLOSED,
	EP_TOPO_WHY_LAYER,
	EP_TOPO_WHY_SLOW,
	EP_TOPO_WHY_NO_SPEED,
	EP_TOPO_WHY_FARTHER,
	EP_TOPO_WHY_SPARE,
	EP_TOPO_WHY_NO_GPU,
};

enum ep_topo_tristate {
	EP_TOPO_UNKNOWN,
	EP_TOPO_NO,
	EP_TOPO_YES,
};

/* The other end of a GPU's NVLinks. */
enum ep_topo_nvlink_kind {
	EP_TOPO_NVLINK_GPU,
	EP_TOPO_NVLINK_SWITCH,
	EP_TOPO_NVLINK_CPU,
};

struct ep_topo_nvlink {
	struct ep_topo_pci target;
	uint16_t count;
	uint8_t kind;
};

struct ep_topo_port {
	int num;
	enum ep_topo_state state;
	enum ep_topo_link_layer layer;
	uint32_t mbps; /* 0: unknown */
	enum ep_topo_why why;
	int users; /* GPUs that use it */
};

struct ep_topo_nic {
	char name[EP_TOPO_NAME_LEN];
	int host;   /* as of a GPU */
	bool named; /* false: the source gave no device name, name is the PCI address */
	struct ep_topo_pci pci;
	int node;
	int numa; /* -1: unknown */
	bool rdma;
	bool elsewhere; /* found by name only: pci is not the device's own address */
	bool no_gdr;    /* a file denies it access to GPUs' memory */
	uint64_t guid;
	uint32_t pci_mbps; /* 0: unknown */
	int nports;
	struct ep_topo_port port[EP_TOPO_MAX_PORTS];
};

struct ep_topo_rail {
	int nic;  /* index into nic[] */
	int port; /* index into nic[].port[] */
	enum ep_topo_dist dist;
};

struct ep_topo_gpu {
	struct ep_topo_pci pci;
	int instance; /* MIG instance on this PCI device, -1: the whole GPU */
	int nvml;     /* its place in `reach` of the topology, -1: it has none */
	int node;
	int host; /* which of the hosts of a file, else 0 */
	int numa; /* -1: unknown */
	int sm;   /* 90 for compute capability 9.0; 0: unknown */
	char name[EP_TOPO_NAME_LEN];
	char uuid[EP_TOPO_NAME_LEN];

	int nlinks;
	struct ep_topo_nvlink link[EP_TOPO_MAX_LINKS];
	int nvlinks; /* active links in all; -1: unknown */
	bool nvswitch;
	int domain; /* GPUs of one number reach each other by NVLink; -1: none or unknown */
	/* Domains that span hosts: equal uuid and clique on two hosts mean one domain. */
	bool fabric;
	bool fabric_pending; /* not joined, or failed to: where its links lead is not known */
	uint8_t fabric_uuid[16];
	uint32_t fabric_clique;

	enum ep_topo_dist dist; /* to its rails, which are all equally near */
	int nrails;
	struct ep_topo_rail rail[EP_TOPO_MAX_RAILS];
};

struct ep_topo_node; /* tree.h */

struct ep_topo {
	enum ep_topo_source source;
	bool merged; /* a file, completed and checked with what this machine reports */
	char path[256];
	char driver[EP_TOPO_NAME_LEN]; /* of the GPUs; empty: unknown */

	int nnodes, nodes_room;
	struct ep_topo_node *nodes;
	int ngpus;
	struct ep_topo_gpu *gpu;
	int nnics;
	struct ep_topo_nic *nic;

	int nhosts; /* 1, or as many as a file has */
	int home;   /* node of the host that look-ups and additions are about */
	int nnumas;
	uint16_t socket[EP_TOPO_MAX_NUMAS]; /* by NUMA node, from 1; 0: unknown, or several */
	int unclassified;                   /* PCI devices that the file does not classify */
	enum ep_topo_tristate flat; /* no GPU shares a PCIe bridge with a NIC; no pair: unknown */
	enum ep_topo_tristate virtualised;
	enum ep_topo_tristate nvswitch;
	enum ep_topo_tristate nvls; /* the GPUs and their driver support multicast */
	bool nvls_allowed;          /* NCCL_NVLS_ENABLE is not 0 */
	enum ep_topo_dist gdr_level;

	/* As NVML reports it; enum ep_topo_reach. */
	unsigned char reach[EP_TOPO_MAX_GPUS][EP_TOPO_MAX_GPUS];

	int nnotes, notes_lost;
	char (*note)[EP_TOPO_NOTE_LEN];
};

struct ep_topo_opts {
	const char *file;      /* NCCL or hwloc XML; NULL or "": this machine */
	bool file_only;        /* take the file as it is, do not look at this machine */
	const char *hca;       /* NCCL_IB_HCA's grammar; NULL: all */
	const char *gdr_level; /* NCCL_NET_GDR_LEVEL's values; NULL: SYS */
	bool ib_disable;
	bool nvls_disable;
	/* Whether this process can use a port; NULL: any that the topology shows. */
	bool (*is_open)(const void *arg, const char *name, int port);
	const void *is_open_arg;
	/* In front of /sys and others; NULL: as for hwloc, HWLOC_FSROOT or nothing. */
	const char *sysfs_root;
};

/* Options as the environment gives them: NCCL_TOPO_FILE (else HWLOC_XMLFILE), NCCL_IB_HCA, ... */
void ep_topo_opts_env(struct ep_topo_opts *opts);

/* Reads the topology that the options name. The caller frees it. */
int ep_topo_load(const struct ep_topo_opts *opts, struct ep_topo **topo, struct ep_topo_err *err);
void ep_topo_free(struct ep_topo *topo);

/*
 * Returns the index of the GPU at a PCI address, in any of CUDA's or NVML's spellings, or -1.
 * `uuid` tells the MIG instances of one GPU apart and may be NULL.
 */
int ep_topo_find_gpu(const struct ep_topo *topo, const char *busid, const char *uuid);
/* Returns the distance between a GPU and a NIC. */
enum ep_topo_dist ep_topo_dist_gpu_nic(const struct ep_topo *topo, int gpu, int nic);
/* Returns whether two GPUs reach each other by NVLink, directly or through a switch. */
bool ep_topo_linked(const struct ep_topo *topo, int gpu_a, int gpu_b);
/* Returns how one GPU reaches another one. */
enum ep_topo_reach ep_topo_reach(const struct ep_topo *topo, int gpu_a, int gpu_b);
/* Writes the first pair of which one cannot reach the other. Returns false if there is none. */
bool ep_topo_apart(const struct ep_topo *topo, int *gpu_a, int *gpu_b);
/*
 * Prints how the GPUs reach each other, and what that means, as remarks. Nothing: it is not known.
 */
void ep_topo_print_peers(const struct ep_topo *topo, FILE *out);
/* Returns whether NCCL_NET_GDR_LEVEL and the file let the NIC access the GPU's memory. */
bool ep_topo_gdr_allowed(const struct ep_topo *topo, int gpu, int nic);

/*
 * Reads a number as NCCL reads those of variables: in any base that C knows, with blanks behind it.
 * Returns 0, -EINVAL if the text is no number, or -ERANGE.
 */
int ep_topo_number_parse(const char *text, long long *value);

const char *ep_topo_dist_name(enum ep_topo_dist dist);
const char *ep_topo_source_name(enum ep_topo_source source);
const char *ep_topo_why_text(enum ep_topo_why why);
/* Writes the farthest distance that a value of NCCL_NET_GDR_LEVEL permits. */
int ep_topo_level_parse(const char *text, enum ep_topo_dist *dist, struct ep_topo_err *err);
/* Returns the nearest of that variable's values that permits a distance. */
const char *ep_topo_level_name(enum ep_topo_dist dist);

/*
 * Reads the first line of a small file of the kernel, without its newline. Returns false if there
 * is no such file, or if its first line is empty.
 */
bool ep_topo_read_line(const char *dir, const char *name, char *buf, size_t size);
/*
 * Returns the Mbit/s of a device's port by the kernel's files below /sys/class, or `otherwise` if
 * that is more; for a bond, of its members together. 0: unknown.
 */
uint32_t ep_topo_port_mbps(const char *class_dir, const char *device, int port, bool ethernet,
			   uint32_t otherwise);

/* A port that is a bond of several of its NIC. */
struct ep_topo_bond {
	char name[32];    /* its network interface */
	char mode[32];    /* as the kernel calls it; "": not known */
	uint32_t members; /* ports of the NIC */
	uint32_t mbps;    /* of those that carry something together */
};
/* Reads a bond. Returns false if the port is none. */
bool ep_topo_bond_read(const char *class_dir, const char *device, int port,
		       struct ep_topo_bond *bond);

/* NCCL_IB_HCA: which ports of which devices. Blanks around items do not count. */
#define EP_TOPO_HCA_MAX 64
#define EP_TOPO_HCA_RAIL_MAX 0x3fff /* NCCL marks planes of merged NICs by the bit above */
struct ep_topo_hca {
	bool exclude, exact;
	int n;
	struct {
		char name[EP_TOPO_NAME_LEN];
		int port;        /* -1: any */
		int rail, plane; /* -1: not given */
	} item[EP_TOPO_HCA_MAX];
};
int ep_topo_hca_parse(const char *text, struct ep_topo_hca *hca, struct ep_topo_err *err);
/* Returns whether the list permits a port. An empty list permits all, "^" alone none. */
bool ep_topo_hca_match(const struct ep_topo_hca *hca, const char *name, int port);
/* Returns whether item i names the port, or with `port` -1 any port of the device. */
bool ep_topo_hca_names(const struct ep_topo_hca *hca, int i, const char *name, int port);
/* Writes the rail and plane that the first item for a port gives; -1: no item does. */
void ep_topo_hca_rail(const struct ep_topo_hca *hca, const char *name, int port, int *rail,
		      int *plane);
/* Writes item i ("mlx5_1:2") to text and returns it. */
#define EP_TOPO_HCA_TEXT (EP_TOPO_NAME_LEN + 16)
const char *ep_topo_hca_print(const struct ep_topo_hca *hca, int i, char text[EP_TOPO_HCA_TEXT]);

/* Reads a PCI address. Returns false if the text is none. */
bool ep_topo_pci_parse(const char *text, struct ep_topo_pci *pci);
/* Writes an address to buf and returns it. */
#define EP_TOPO_PCI_LEN 24
const char *ep_topo_pci_print(const struct ep_topo_pci *pci, char buf[EP_TOPO_PCI_LEN]);

/* Print one line per GPU, or one JSON object. */
void ep_topo_print_table(const struct ep_topo *topo, FILE *out);
void ep_topo_print_json(const struct ep_topo *topo, FILE *out);

#endif
