/* SPDX-License-Identifier: Apache-2.0 */
#include <string.h>
#include "nic/qp.h"
#include "nic/stepping.h"
#include "nic/thread.h"

static struct {
	struct vn_dv_watch watch;
	uint32_t turn;
	uint32_t left; /* WQEs that may be taken up in this turn */
} vn_step;

VN_EXPORT bool vn_dv_step(uint32_t most)
{
	bool watched, any;

	vn_lock();
	vn_step.left = most ? most : UINT32_MAX;
	any = vn_turn(vn_step.turn++, &watched);
	vn_unlock();
	return any;
}

VN_EXPORT void vn_dv_watch(const struct vn_dv_watch *watch)
{
	vn_lock();
	vn_step.watch = *watch;
	vn_unlock();
}

VN_EXPORT void vn_dv_script(uint32_t qpn, const struct vn_dv_script *script)
{
	struct vn_qp *qp;

	vn_lock();
	qp = vn_qp_find(qpn);
	if (qp) {
		qp->script = *script;
		vn_qp_stir(qp);
	}
	vn_unlock();
}

VN_EXPORT void vn_dv_seen(uint32_t qpn, struct vn_dv_seen *seen)
{
	const struct vn_qp *qp;

	memset(seen, 0, sizeof(*seen));
	vn_lock();
	qp = vn_qp_find(qpn);
	if (qp) {
		*seen = (struct vn_dv_seen){ qp->pi, qp->done, qp->doorbells, qp->peak };
	}
	vn_unlock();
}

bool vn_step_stops(const struct vn_qp *qp)
{
	return qp->devx && (!vn_step.left || qp->ci == qp->script.stuck_at);
}

void vn_step_fetched(struct vn_qp *qp, struct vn_op *op)
{
	if (qp->devx) {
		vn_step.left--;
	}
	if (qp->devx && op->idx == qp->script.fail_at && !op->syndrome) {
		op->syndrome = qp->script.syndrome;
		op->vendor = qp->script.vendor;
	}
}

void vn_step_wqe(const struct vn_qp *qp, uint64_t idx, const struct ep_mlx5_wqe *wqe)
{
	if (vn_step.watch.wqe) {
		vn_step.watch.wqe(vn_step.watch.arg, qp->number, idx, wqe);
	}
}

void vn_step_write(const uint8_t *at, const uint8_t *data, uint32_t bytes)
{
	if (vn_step.watch.write) {
		vn_step.watch.write(vn_step.watch.arg, at, data, bytes);
	}
}
