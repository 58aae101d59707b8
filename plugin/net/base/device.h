/* SPDX-License-Identifier: Apache-2.0 */
/* The network devices that NCCL sees: ports of RDMA devices, by PCI address. */
#ifndef EP_NET_DEVICE_H
#define EP_NET_DEVICE_H

#include <limits.h>
#include <pthread.h>
#include "rdma/nic.h"

#define EP_NET_MAX_RECVS 8
#define EP_NET_MAX_BYTES 0x7fffffffu     /* of a message: NCCL counts them in an int */
#define EP_NET_LONG_BYTES (1024ul << 20) /* of a message that NCCL is asked to send at most */
#define EP_NET_LABEL (EP_NIC_NAME + 8)
#define EP_NET_NIC_PORTS 8

struct ep_net_region;

struct ep_net_dev {
	/* for NCCL; never changed once the device was found */
	int index;
	struct ep_port port;
	char label[EP_NET_LABEL]; /* unique: with ":port" where a device has several */
	char path[PATH_MAX];      /* in sysfs; "": it has no PCI address */
	uint64_t guid;            /* of the adapter */
	/* Counted through all functions of the adapter: NCCL takes ports of equal GUID and number for
	 * one, whose bandwidth is to be shared. */
	int adapter_port;
	int ptr_support, max_comms;
	int rail, plane; /* of NCCL_IB_HCA; -1: not given */
	bool atomics;

	pthread_mutex_t lock; /* for all that follows, except where atomics are used */
	uint32_t users;
	struct ep_nic nic;             /* open while there are users */
	struct ep_net_region **region; /* by address; mr.c */
	uint32_t nregions, room;
	uint64_t port_down; /* atomic: when the port went down; 0: it is up */
	uint64_t port_up;   /* atomic: when it came up again; 0: never */
	uint32_t broken;    /* atomic: the device failed, for all its users */
};

/*
 * The machine's devices, found when first asked for. False: there is none that may be used, see why.
 * Also the environment of that time.
 */
bool ep_net_devs(struct ep_net_dev **dev, int *n, struct ep_reason *why);
const struct ep_ib_env *ep_net_env(void);
/* Returns in words what GIN and RMA need and the device lacks; NULL: nothing. */
const char *ep_net_dev_lacks(const struct ep_net_dev *dev);

/* Opens the device for its first user; `even_down`: its port may be down, and then is. */
ncclResult_t ep_net_dev_hold(struct ep_net_dev *dev, bool even_down);
/* How peers reach the port now, which may have changed while it was down; false: they do not. */
bool ep_net_dev_end(struct ep_net_dev *dev, struct ep_nic_end *end, uint32_t *gid_index);
/* Whether the port has been up for some time. */
bool ep_net_dev_up(const struct ep_net_dev *dev, uint64_t ns);
/* Whether its port is down, and not only for a moment. */
bool ep_net_dev_down(const struct ep_net_dev *dev);
/* The same for one who knows that there is another user, whose lock is held. */
void ep_net_dev_hold_too(struct ep_net_dev *dev);
/* The last user closes it. */
void ep_net_dev_drop(struct ep_net_dev *dev);

/* Takes up what the NIC reports without being asked. */
void ep_net_dev_events(struct ep_net_dev *dev);

/*
 * The PCI device of an RDMA device as a path in sysfs, whose files are below `root`
 * (EP_NIC_SYSFS, except in tests); "": there is none.
 */
void ep_net_pci_path(const char *root, const char *name, char path[PATH_MAX]);
/* Order of devices: by PCI address, then those that have none; then by name and port. */
int ep_net_dev_compare(const void *dev_a, const void *dev_b);
/* Puts them in that order, and fills in what depends on the others: index, label, adapter_port. */
void ep_net_devs_arrange(struct ep_net_dev *dev, int n);

#endif
