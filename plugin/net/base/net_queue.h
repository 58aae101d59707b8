/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs, whoever posts to them. */
#ifndef EP_NET_QUEUE_H
#define EP_NET_QUEUE_H

#include "net/base/device.h"
#include "rdma/rc_qp.h"

/* How progress of a connection, or of a mesh, looks for completions and for peers. */
#define EP_NET_POLL 16                /* completions that are taken up at once */
#define EP_NET_IDLE 256               /* looks in vain between two looks at the clock */
#define EP_NET_CHECK_NS 20000000ull   /* between two looks for peers */
#define EP_NET_GRACE_NS 1000000000ull /* for what the NIC may still bring of a peer that is gone */

/* *lost is set when the NIC reports that it has lost completions. */
ncclResult_t ep_net_cq_new(struct ep_net_dev *dev, uint64_t cqes, uint32_t *lost,
			   struct ibv_cq **cq);
/* In state INIT. NULL: errno. */
struct ibv_qp *ep_net_queue_new(struct ep_net_dev *dev, struct ibv_cq *cq, struct ep_rc_room *room,
				unsigned int access);
/* Registers memory of the plugin's own. */
ncclResult_t ep_net_pin(struct ep_net_dev *dev, void *memory, size_t bytes, unsigned int access,
			struct ibv_mr **mr);
/* The traffic class of a communicator whose class is `tc` (-1: it has none). */
uint8_t ep_net_traffic_class(const struct ep_net_dev *dev, int tc);
/* The service level of a communicator whose class is `tc` (-1: it has none). */
uint8_t ep_net_service_level(const struct ep_nic_end *end, int tc);
/* The same as ep_net_queue_connect(), where a failure is no error. 0: it is connected; else errno. */
int ep_net_queue_try(struct ep_net_dev *dev, struct ibv_qp *qp, const struct ep_rc_path *path,
		     uint32_t remote);
/* The peer's queue pair begins at its port's psn plus its number, and expects the same of this one. */
ncclResult_t ep_net_queue_connect(struct ep_net_dev *dev, struct ibv_qp *qp,
				  const struct ep_rc_path *path, uint32_t remote);

/* Whether a failure is one of the path to the peer, and not of what was asked for. */
bool ep_net_status_blames_path(enum ibv_wc_status status);
/* Writes a queue pair in one line: ports, numbers, GIDs of both ends. Returns text. */
#define EP_NET_WHICH 320
struct ep_net_which {
	const struct ep_nic_end *end, *remote;
	uint32_t qpn, remote_qpn;
	const char *toward, *peer; /* toward: "to" or "from" */
};
const char *ep_net_which_print(const struct ep_net_which *which, char text[EP_NET_WHICH]);
/* More about a port, to be appended; "": nothing. */
const char *ep_net_dev_print(const struct ep_net_dev *dev);
/* Writes why a completion failed, and what to do about it. Returns text. */
#define EP_NET_WC_TEXT 320
const char *ep_net_wc_print(const struct ibv_wc *wc, char text[EP_NET_WC_TEXT]);

#endif
