/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include "nic/qp.h"
#include "nic/stepping.h"
#include "nic/thread.h"

static struct {
	struct vn_dv_watch watch;
	struct vn_dv_calls calls;
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

VN_EXPORT struct vn_dv_calls *vn_dv_calls(void)
{
	return &vn_step.calls;
}

VN_EXPORT uint32_t vn_dv_live(struct ibv_context *c)
{
	uint32_t live;

	vn_lock();
	live = vn_context_of(c)->live;
	vn_unlock();
	return live;
}

VN_EXPORT void vn_dv_attributes(struct ibv_qp *ibv, struct vn_dv_attributes *told)
{
	vn_lock();
	*told = ((struct vn_qp *)ibv)->told;
	vn_unlock();
}

VN_EXPORT void vn_dv_complete(struct ibv_cq *ibv, const struct ibv_wc *wc)
{
	vn_lock();
	vn_cq_invent((struct vn_cq *)ibv, wc);
	vn_unlock();
}

VN_EXPORT void vn_dv_event(struct ibv_context *c, enum ibv_event_type type, void *element)
{
	vn_lock();
	vn_event(vn_context_of(c), type, element, 1);
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

void vn_step_placed(void)
{
	if (vn_step.watch.placed) {
		vn_step.watch.placed(vn_step.watch.arg);
	}
}

bool vn_step_reports(const struct ibv_wc *wc)
{
	return !vn_step.watch.tell || vn_step.watch.tell(vn_step.watch.arg, wc);
}

void vn_step_settle(void)
{
	bool watched;

	vn_lock();
	vn_step.left = UINT32_MAX;
	while (vn_turn(vn_step.turn++, &watched)) {
	}
	vn_unlock();
}

bool vn_step_fails(void)
{
	bool fails;

	vn_lock();
	fails = vn_step.calls.fails == 1;
	vn_step.calls.fails -= vn_step.calls.fails > 1;
	vn_unlock();
	if (fails) {
		errno = ENOMEM;
	}
	return fails;
}

int vn_step_refusal(enum ibv_qp_state to)
{
	vn_step.calls.modified++;
	if (!vn_step.calls.refusals ||
	    (vn_step.calls.refused_state && vn_step.calls.refused_state != to)) {
		return 0;
	}
	vn_step.calls.refusals--;
	return vn_step.calls.refusal;
}

void vn_step_acked(void)
{
	__atomic_fetch_add(&vn_step.calls.acked, 1, __ATOMIC_RELAXED);
}
