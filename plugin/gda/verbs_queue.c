/* SPDX-License-Identifier: Apache-2.0 */
/* Queues that the proxy's thread posts to by plain verbs. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "core/log.h"
#include "gda/lag.h"
#include "gda/prm.h"
#include "gda/state.h"
#include "gda/verbs_queue.h"
#include "rdma/rc_qp.h"

#define EP_GDA_LEAST_WR 16u

bool ep_gda_verbs_cq(struct ep_gda *g, struct ep_gda_nic *nic, struct ep_reason *why)
{
	uint64_t most = (uint64_t)ep_max_u64(nic->queues, 1) * g->depth;
	char text[EP_NIC_ERROR_TEXT];

	nic->cq_depth = (uint32_t)ep_min_u64(most, (uint64_t)nic->base.attr.max_cqe);
	nic->cq_used = 0;
	nic->cq = nic->base.v->ibv_create_cq(nic->base.ctx, (int)nic->cq_depth, NULL, NULL, 0);
	return nic->cq ||
	       ep_reason_set(why, "%s: no completion queue of %u entries: %s", nic->base.name,
			     nic->cq_depth, ep_nic_error_print(errno, text));
}

/*
 * A device's limit holds for the smallest work requests, so that one of ours may be less. The queue
 * that kernels write to has the depth asked for anyway.
 */
static bool ep_gda_verbs_make(struct ep_gda_queue *queue, struct ep_reason *why)
{
	uint32_t depth = queue->gda->depth, limit = (uint32_t)queue->nic->base.attr.max_qp_wr;
	struct ep_rc_room room = { .rq = 1 };
	char text[EP_NIC_ERROR_TEXT];
	int error;

	room.sq = (uint32_t)ep_min_u64(depth, limit);
	queue->verbs = ep_rc_qp_create(&queue->nic->base, queue->nic->cq, EP_GDA_LEAST_WR, &room);
	error = errno;
	queue->max_wr = room.sq;
	if (!queue->verbs) {
		return ep_reason_set(why,
				     "%s: no queue pair even of %u work requests: %s "
				     "(NCCL_EP_RDMA_DEPTH is %u, the device's limit %u)",
				     queue->nic->base.name, queue->max_wr,
				     ep_nic_error_print(error, text), depth, limit);
	}
	queue->qpn = queue->verbs->qp_num;
	return true;
}

bool ep_gda_verbs_create(struct ep_gda_queue *queue, struct ep_reason *why)
{
	unsigned int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			      (queue->nic->base.atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0);
	int error;

	if (!ep_gda_verbs_make(queue, why)) {
		return false;
	}
	error = ep_rc_qp_init(&queue->nic->base, &queue->gda->env, queue->verbs, access);
	if (error) {
		return ep_reason_set(why, "%s:%d: a queue pair cannot be initialised: %s",
				     queue->nic->base.name, queue->nic->base.port, strerror(error));
	}
	if (queue->slot == 0) {
		ep_rc_ece_query(&queue->nic->base, &queue->gda->env, queue->verbs,
				&queue->nic->ece);
	}
	return true;
}

/*
 * The kernel gives a bond's members in turn to the queue pairs of a context. A peer's queues for rows may
 * all come to the same one that way: each is given its own, where libmlx5 can.
 */
static void ep_gda_verbs_lag(struct ep_gda_queue *queue)
{
	const struct ep_mlx5dv *dv = queue->nic->base.dv;
	uint32_t port = ep_gda_lag_port(queue);
	uint8_t now = 0, active;
	int error;

	if (!port || !dv->mlx5dv_modify_qp_lag_port || !dv->mlx5dv_query_qp_lag_port) {
		return;
	}
	error = dv->mlx5dv_modify_qp_lag_port(queue->verbs, (uint8_t)port);
	if (error) {
		EP_INFO(EP_LOG_NET,
			"%s:%d is a bond, and the kernel chooses the port of QP 0x%06x: %s",
			queue->nic->base.name, queue->nic->base.port, queue->qpn, strerror(error));
	}
	queue->lag = dv->mlx5dv_query_qp_lag_port(queue->verbs, &now, &active) == 0 ? now : 0;
}

bool ep_gda_verbs_connect(struct ep_gda_queue *queue, const struct ep_nic_end *end,
			  struct ep_reason *why)
{
	struct ep_nic *nic = &queue->nic->base;
	struct ep_nic_end from = nic->end;
	struct ep_rc_path path = { .from = &from,
				   .to = end,
				   .tc = nic->tc,
				   .sl = (uint8_t)queue->gda->env.sl,
				   .log_reads = EP_RC_LOG_READS,
				   .gid_index = nic->gid_index,
				   .ece = { queue->nic->ece.vendor, queue->ece,
					    queue->nic->ece.mask },
				   .ece_agreed = queue->ece_agreed };
	char text[EP_GID_TEXT], ece[EP_RC_ECE_TEXT];
	struct ep_ece both;
	uint32_t state = 0;
	int error;

	from.psn = queue->gda->psn;
	error = ep_rc_qp_to_rtr(nic, &queue->gda->env, queue->verbs, &path, queue->remote_qpn);
	if (error) {
		return ep_reason_set(why, "%s:%d does not find the path to %s, LID %u: %s%s",
				     nic->name, nic->port, ep_gid_print(end->gid, text),
				     ep_nic_path_lid(&from, end), strerror(error),
				     ep_rc_ece_print(queue->ece, queue->ece_agreed, ece));
	}
	if (queue->ece && !queue->ece_agreed) {
		ep_rc_ece_query(nic, &queue->gda->env, queue->verbs, &both);
		queue->ece = both.options;
	}
	error = ep_rc_qp_to_rts(nic, &queue->gda->env, queue->verbs, &path);
	if (error) {
		return ep_reason_set(why, "%s:%d: a queue pair cannot be made ready to send: %s",
				     nic->name, nic->port, strerror(error));
	}
	if (!ep_gda_verbs_query(queue, &state) || state != EP_PRM_QP_RTS) {
		return ep_reason_set(why,
				     "%s:%d: a queue pair is in state %u after it was made ready "
				     "to send",
				     queue->nic->base.name, queue->nic->base.port, state);
	}
	ep_gda_verbs_lag(queue);
	/* Verbs do not report in which order data is placed: what is right for this is for all. */
	queue->tier = EP_MLX5_TIER_OOO_ALL;
	return true;
}

void ep_gda_verbs_halt(struct ep_gda_queue *queue)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };
	int error = queue->nic->base.v->ibv_modify_qp(queue->verbs, &attr, IBV_QP_STATE);

	if (error) {
		EP_INFO(EP_LOG_NET, "%s: a queue pair cannot be stopped: %s", queue->nic->base.name,
			strerror(error));
	}
}

bool ep_gda_verbs_query(struct ep_gda_queue *queue, uint32_t *state)
{
	static const uint8_t prm[] = {
		[IBV_QPS_RESET] = EP_PRM_QP_RST, [IBV_QPS_INIT] = EP_PRM_QP_INIT,
		[IBV_QPS_RTR] = EP_PRM_QP_RTR,   [IBV_QPS_RTS] = EP_PRM_QP_RTS,
		[IBV_QPS_SQD] = EP_PRM_QP_SQD,   [IBV_QPS_SQE] = EP_PRM_QP_SQER,
		[IBV_QPS_ERR] = EP_PRM_QP_ERR,
	};
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr attr;

	memset(&attr, 0, sizeof(attr));
	if (queue->nic->base.v->ibv_query_qp(queue->verbs, &attr, IBV_QP_STATE, &init) != 0 ||
	    attr.qp_state >= EP_ARRAY_SIZE(prm)) {
		return false;
	}
	*state = prm[attr.qp_state];
	return true;
}
