/* SPDX-License-Identifier: Apache-2.0 */
/* What DevX and verbs queue pairs have in common when they are connected. */
#ifndef VC_NIC_QP_H
#define VC_NIC_QP_H

#include "nic/nic.h"

struct vn_path {
	uint32_t mtu, qpn;
	uint16_t lid;
	bool grh;
	int gid_index;
	uint8_t hop_limit;
	uint16_t sport;
	union ibv_gid gid;
	uint8_t mac[6];
};

/* Why the path is not one, or NULL. A path that leads nowhere is one. */
const char *vn_qp_connect(struct vn_qp *qp, const struct vn_path *path);
/* A completion was added to a CQ that somebody may be waiting for. */
void vn_cq_notify(struct vn_cq *cq);

#endif
