/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include <time.h>
#include "core/log.h"
#include "net/base/queue.h"

#define EP_NET_LEAST_WR 32u
#define EP_NET_HOPS 255
#define EP_NET_MAX_SL 15
#define EP_NET_RNR_TIMER 12 /* 0.64 ms */
#define EP_NET_RNR_RETRY 7  /* for ever */

struct ibv_qp *ep_net_queue_new(struct ep_net_dev *dev, struct ibv_cq *cq, struct ep_net_room *room)
{
	struct ibv_qp *qp = NULL;

	while (!qp) {
		struct ibv_qp_init_attr init = {
			.send_cq = cq,
			.recv_cq = cq,
			.cap = { .max_send_wr = room->sq,
				 .max_recv_wr = room->rq,
				 .max_send_sge = 1,
				 .max_recv_sge = 1,
				 .max_inline_data = room->inline_bytes },
			.qp_type = IBV_QPT_RC,
		};

		qp = dev->nic.v->ibv_create_qp(dev->nic.pd, &init);
		if (!qp && room->inline_bytes) {
			room->inline_bytes = 0;
		} else if (!qp && (room->sq > EP_NET_LEAST_WR || room->rq > EP_NET_LEAST_WR)) {
			room->sq = (uint32_t)ep_max_u64(room->sq / 2, EP_NET_LEAST_WR);
			room->rq = room->rq > EP_NET_LEAST_WR
					   ? (uint32_t)ep_max_u64(room->rq / 2, EP_NET_LEAST_WR)
					   : room->rq;
		} else if (!qp) {
			break;
		}
	}
	return qp;
}

/*
 * Changes the state of a queue pair. The way to the peer may have to be asked for (ARP), and the answer
 * may be lost: as long as that is what fails, it is tried again, as often as NCCL's variables say.
 */
static int ep_net_queue_modify(const struct ep_net_dev *dev, struct ibv_qp *qp,
			       struct ibv_qp_attr *attr, int mask, bool once)
{
	const struct ep_ib_env *env = ep_net_env();
	int error = dev->nic.v->ibv_modify_qp(qp, attr, mask);

	for (int i = 1;
	     i <= env->mqp_cnt && !once && (error == ETIMEDOUT || (error && env->mqp_all)); i++) {
		uint64_t ms = (uint64_t)env->mqp_ms * (uint64_t)i;
		struct timespec rest = { (time_t)(ms / 1000), (long)(ms % 1000) * 1000000 };

		if (i == 1) {
			EP_INFO(EP_LOG_NET,
				"%s: a queue pair cannot be set up: %s; tried again up to %d times, "
				"after %d ms, %d ms and so on (NCCL_IB_MQP_RETRY_CNT, "
				"NCCL_IB_MQP_RETRY_SLEEP_MSEC)",
				dev->label, strerror(error), env->mqp_cnt, env->mqp_ms,
				2 * env->mqp_ms);
		}
		while (nanosleep(&rest, &rest) != 0 && errno == EINTR) {
		}
		error = dev->nic.v->ibv_modify_qp(qp, attr, mask);
	}
	return error;
}

ncclResult_t ep_net_queue_init(struct ep_net_dev *dev, struct ibv_qp *qp, unsigned int access)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.pkey_index = (uint16_t)dev->nic.pkey_index,
		.port_num = (uint8_t)dev->nic.port,
		.qp_access_flags = access,
	};
	int error = ep_net_queue_modify(
		dev, qp, &attr,
		IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS, false);

	return error ? ep_fail(ncclSystemError, "%s: a queue pair cannot be initialised: %s",
			       dev->label, strerror(error))
		     : ncclSuccess;
}

/* On InfiniBand the class of a communicator is what switches choose a lane by, if it can be one. */
uint8_t ep_net_service_level(const struct ep_nic_end *end, int tc)
{
	const struct ep_ib_env *env = ep_net_env();

	return env->sl_given ? (uint8_t)env->sl
	       : end->link_layer != IBV_LINK_LAYER_ETHERNET && tc >= 0 && tc <= EP_NET_MAX_SL
		       ? (uint8_t)tc
		       : 0;
}

static int ep_net_queue_to_rtr(struct ep_net_dev *dev, struct ibv_qp *qp,
			       const struct ep_net_path *path, uint32_t remote)
{
	const struct ep_nic_end *to = path->to;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = (enum ibv_mtu)ep_min_u64(path->from->mtu, to->mtu),
		.dest_qp_num = remote,
		.rq_psn = (to->psn + remote) & 0xffffff,
		.max_dest_rd_atomic =
			(uint8_t)(1u << ep_min_u64(path->log_reads, dev->nic.log_ra_res)),
		.min_rnr_timer = EP_NET_RNR_TIMER,
		.ah_attr = { .dlid = ep_nic_path_lid(path->from, to),
			     .sl = path->sl,
			     .port_num = (uint8_t)dev->nic.port },
	};

	if (ep_nic_path_global(path->from, to)) {
		attr.ah_attr.is_global = 1;
		memcpy(attr.ah_attr.grh.dgid.raw, to->gid, sizeof(to->gid));
		attr.ah_attr.grh.sgid_index = (uint8_t)path->gid_index;
		attr.ah_attr.grh.hop_limit = EP_NET_HOPS;
		attr.ah_attr.grh.traffic_class = path->tc;
	}
	return ep_net_queue_modify(dev, qp, &attr,
				   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					   IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					   IBV_QP_MIN_RNR_TIMER,
				   path->once);
}

static int ep_net_queue_to_rts(struct ep_net_dev *dev, struct ibv_qp *qp,
			       const struct ep_net_path *path)
{
	uint64_t log_reads = ep_min_u64(path->log_reads, dev->nic.log_ra_req);
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = (uint8_t)ep_net_env()->timeout,
		.retry_cnt = (uint8_t)ep_net_env()->retry_cnt,
		.rnr_retry = EP_NET_RNR_RETRY,
		.sq_psn = (path->from->psn + qp->qp_num) & 0xffffff,
		.max_rd_atomic = (uint8_t)(1u << ep_min_u64(log_reads, path->to->log_rra)),
	};

	return ep_net_queue_modify(dev, qp, &attr,
				   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					   IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					   IBV_QP_MAX_QP_RD_ATOMIC,
				   path->once);
}

int ep_net_queue_try(struct ep_net_dev *dev, struct ibv_qp *qp, const struct ep_net_path *path,
		     uint32_t remote)
{
	int error = ep_net_queue_to_rtr(dev, qp, path, remote);

	return error ? error : ep_net_queue_to_rts(dev, qp, path);
}

ncclResult_t ep_net_queue_connect(struct ep_net_dev *dev, struct ibv_qp *qp,
				  const struct ep_net_path *path, uint32_t remote)
{
	const struct ep_nic_end *to = path->to;
	int error = ep_net_queue_to_rtr(dev, qp, path, remote);
	char text[EP_GID_TEXT];

	if (error) {
		return ep_fail(ncclSystemError,
			       "%s does not find the way to %s of %s:%u, LID %u: %s", dev->label,
			       ep_gid_print(to->gid, text), to->name, to->port,
			       ep_nic_path_lid(path->from, to), strerror(error));
	}
	error = ep_net_queue_to_rts(dev, qp, path);
	return error ? ep_fail(ncclSystemError, "%s: a queue pair cannot be made ready to send: %s",
			       dev->label, strerror(error))
		     : ncclSuccess;
}

bool ep_net_status_blames_way(enum ibv_wc_status status)
{
	return status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_WR_FLUSH_ERR ||
	       status == IBV_WC_LOC_QP_OP_ERR || status == IBV_WC_REM_OP_ERR ||
	       status == IBV_WC_REM_ABORT_ERR || status == IBV_WC_RESP_TIMEOUT_ERR ||
	       status == IBV_WC_FATAL_ERR || status == IBV_WC_GENERAL_ERR;
}
