/* SPDX-License-Identifier: Apache-2.0 */
/* The RDMA devices of a machine and their active ports. */
#ifndef EP_RDMA_PORT_H
#define EP_RDMA_PORT_H

#include "core/error.h"
#include "rdma/verbs.h"

#define EP_NIC_NAME 64
#define EP_PORT_MAX 64 /* of a machine */

struct ep_port {
	char name[EP_NIC_NAME]; /* of the RDMA device */
	int port;
	bool ethernet;
	uint32_t mbps; /* 0: unknown */
};

struct ep_port_list {
	const struct ep_verbs *v;
	struct ibv_device **dev;
	int ndevs, nports, n; /* nports: active or not */
	struct ep_port port[EP_PORT_MAX];
	struct ep_reason closed; /* devices that could not be opened */
};

/* False if there is no active port. To be closed in any case. */
bool ep_port_list_open(struct ep_port_list *list, struct ep_reason *why);
void ep_port_list_close(struct ep_port_list *list);
/* NULL: there is none of that name. */
struct ibv_device *ep_port_list_device(const struct ep_port_list *list, const char *name);

/* `root` below and elsewhere, except in tests */
#define EP_PORT_SYSFS "/sys/class"
#define EP_NIC_SYSFS EP_PORT_SYSFS "/infiniband"

/* A port, by what verbs and the kernel's files below EP_PORT_SYSFS report of it. */
void ep_port_set(struct ep_port *port, const char *name, int num, const struct ibv_port_attr *attr,
		 const char *root);

/*
 * Without distances: the ports (n > 0) of one link layer in turn, one for each rank of a host. The
 * layer is that of the fastest port, of equally fast ones that of more, so that all ranks come to the
 * same.
 */
const struct ep_port *ep_port_by_place(const struct ep_port *port, int n, uint32_t place);

#endif
