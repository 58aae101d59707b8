/* SPDX-License-Identifier: Apache-2.0 */
/* events.c: what a device reports without being asked. */
#ifndef EP_RDMA_EVENTS_H
#define EP_RDMA_EVENTS_H

#include "rdma/nic.h"

enum ep_nic_event {
	EP_NIC_PORT_DOWN,
	EP_NIC_PORT_UP,
	EP_NIC_ADDRESS, /* the port's table of GIDs has changed */
	EP_NIC_DEVICE_FAILED,
	EP_NIC_CQ_FAILED,
	EP_NIC_QP_FAILED,
};

struct ep_nic_report {
	enum ep_nic_event event;
	const char *text; /* static */
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

/* Lets ep_nic_events_read() return when no event waits. Returns 0 or an errno value. */
int ep_nic_events_open(const struct ep_nic *nic);

/*
 * Takes up all events that wait, writes each into the log, and calls `fn` for those that the port or its
 * queues may suffer from.
 */
void ep_nic_events_read(const struct ep_nic *nic,
			void (*fn)(void *arg, const struct ep_nic_report *report), void *arg);

#endif
