/* SPDX-License-Identifier: Apache-2.0 */
#include "nic_fault.h"

void vn_fault_op(struct vn_qp *qp, struct vn_op *op)
{
	(void)qp;
	(void)op;
}

bool vn_fault_packet(struct vn_qp *qp, struct vn_op *op, uint32_t pkt)
{
	(void)qp;
	(void)op;
	(void)pkt;
	return false;
}

bool vn_fault_run(void)
{
	return false;
}

uint64_t vn_fault_due(void)
{
	return UINT64_MAX;
}
