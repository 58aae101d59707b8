/* SPDX-License-Identifier: Apache-2.0 */
/* Faults by script. */
#ifndef VN_FAULT_H
#define VN_FAULT_H

#include "nic/packet.h"
#include "nic/qp.h"

/* A work request was fetched: may fail or stop it. */
void vn_fault_op(struct vn_qp *qp, struct vn_op *op);
/* A packet is about to be sent: true if it is not to be sent now (lost, or later). */
bool vn_fault_packet(struct vn_qp *qp, struct vn_op *op, uint32_t pkt);
/* A packet goes out: true if the network keeps it for a while, and the NIC hears nothing of it. */
bool vn_fault_stray(struct vn_qp *qp, struct vn_op *op, const struct vn_packet *p,
		    const uint8_t *payload);
/* An answer has come: true if it was lost. */
bool vn_fault_unheard(struct vn_qp *qp, struct vn_op *op);
/* Time passes: ports come back, late packets go out, the script is read again. */
bool vn_fault_run(void);
/* When vn_fault_run has to be called again; UINT64_MAX: no matter. */
uint64_t vn_fault_due(void);

#endif
