/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs, whoever posts to them. */
#ifndef EP_NET_QUEUE_H
#define EP_NET_QUEUE_H

#include "net/base/device.h"
#include "rdma/rc_qp.h"

/* NULL: errno. */
struct ibv_qp *ep_net_queue_new(struct ep_net_dev *dev, struct ibv_cq *cq, struct ep_rc_room *room);
ncclResult_t ep_net_queue_init(struct ep_net_dev *dev, struct ibv_qp *qp, unsigned int access);
/* The service level of a communicator whose class is `tc` (-1: it has none). */
uint8_t ep_net_service_level(const struct ep_nic_end *end, int tc);
/* The same as ep_net_queue_connect(), where a failure is no error. 0: it is connected; else errno. */
int ep_net_queue_try(struct ep_net_dev *dev, struct ibv_qp *qp, const struct ep_rc_path *path,
		     uint32_t remote);
/* The peer's queue pair begins at its port's psn plus its number, and expects the same of this one. */
ncclResult_t ep_net_queue_connect(struct ep_net_dev *dev, struct ibv_qp *qp,
				  const struct ep_rc_path *path, uint32_t remote);

/* Whether a failure is one of the way to the peer, and not of what was asked for. */
bool ep_net_status_blames_way(enum ibv_wc_status status);

#endif
