/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs of reliable connections by verbs, and why a NIC fails their work. */
#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include "core/log.h"
#include "core/util.h"
#include "rdma/rdma.h"

static const struct ep_syndrome syndromes[] = {
	{ MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR, IBV_WC_LOC_LEN_ERR, "local length error", NULL },
	{ MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR, IBV_WC_LOC_QP_OP_ERR, "work request not understood",
	  NULL },
	{ MLX5_CQE_SYNDROME_LOCAL_PROT_ERR, IBV_WC_LOC_PROT_ERR,
	  "local memory is not registered for this", NULL },
	{ MLX5_CQE_SYNDROME_WR_FLUSH_ERR, IBV_WC_WR_FLUSH_ERR, "flushed after an earlier failure",
	  NULL },
	{ MLX5_CQE_SYNDROME_MW_BIND_ERR, IBV_WC_MW_BIND_ERR, "memory window error", NULL },
	{ MLX5_CQE_SYNDROME_BAD_RESP_ERR, IBV_WC_BAD_RESP_ERR, "the peer's answer makes no sense",
	  NULL },
	{ MLX5_CQE_SYNDROME_LOCAL_ACCESS_ERR, IBV_WC_LOC_ACCESS_ERR, "local access error", NULL },
	{ MLX5_CQE_SYNDROME_REMOTE_INVAL_REQ_ERR, IBV_WC_REM_INV_REQ_ERR,
	  "the peer's NIC calls the request invalid", NULL },
	{ MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR, IBV_WC_REM_ACCESS_ERR,
	  "remote access error, the peer's memory is not registered for this", NULL },
	{ MLX5_CQE_SYNDROME_REMOTE_OP_ERR, IBV_WC_REM_OP_ERR, "the peer's NIC failed", NULL },
	{ MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR, IBV_WC_RETRY_EXC_ERR,
	  "transport retry counter exceeded",
	  "the peer or the path to it is dead, see that rank's log and the ports; "
	  "NCCL_IB_TIMEOUT and NCCL_IB_RETRY_CNT set how long is waited" },
	{ MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR, IBV_WC_RNR_RETRY_EXC_ERR,
	  "receiver-not-ready retries exceeded", NULL },
	{ MLX5_CQE_SYNDROME_REMOTE_ABORTED_ERR, IBV_WC_REM_ABORT_ERR, "aborted by the peer", NULL },
};

const struct ep_syndrome *ep_syndrome_find(uint8_t code)
{
	for (size_t i = 0; i < EP_ARRAY_SIZE(syndromes); i++) {
		if (syndromes[i].code == code) {
			return &syndromes[i];
		}
	}
	return NULL;
}

uint8_t ep_syndrome_of_status(enum ibv_wc_status status)
{
	for (size_t i = 0; i < EP_ARRAY_SIZE(syndromes); i++) {
		if (syndromes[i].status == status) {
			return syndromes[i].code;
		}
	}
	return MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR;
}

/* Returns half the depth, but no less than `least`. */
static uint32_t rc_halve(uint32_t depth, uint32_t least)
{
	return depth > least ? (uint32_t)ep_max_u64(depth / 2, least) : depth;
}

struct ibv_qp *ep_rc_qp_create(const struct ep_nic *nic, struct ibv_cq *cq, uint32_t least,
			       struct ep_rc_room *room)
{
	for (;;) {
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
		struct ibv_qp *qp = nic->v->ibv_create_qp(nic->pd, &init);

		if (qp || (!room->inline_bytes && room->sq <= least && room->rq <= least)) {
			return qp;
		}
		if (room->inline_bytes) {
			room->inline_bytes = 0;
		} else {
			room->sq = rc_halve(room->sq, least);
			room->rq = rc_halve(room->rq, least);
		}
	}
}

bool ep_rc_retry(const struct ep_nic *nic, const struct ep_ib_env *env, int error, int failures)
{
	uint64_t ms = (uint64_t)env->mqp_ms * (uint64_t)failures;
	struct timespec rest = { (time_t)(ms / 1000), (long)(ms % 1000) * 1000000 };

	if (!error || failures > env->mqp_cnt || (error != ETIMEDOUT && !env->mqp_all)) {
		return false;
	}
	if (failures == 1) {
		EP_INFO(EP_LOG_NET,
			"%s:%d: a queue pair cannot be set up: %s; tried again up to %d times, "
			"after %d ms, %d ms and so on (NCCL_IB_MQP_RETRY_CNT, "
			"NCCL_IB_MQP_RETRY_SLEEP_MSEC)",
			nic->name, nic->port, strerror(error), env->mqp_cnt, env->mqp_ms,
			2 * env->mqp_ms);
	}
	while (nanosleep(&rest, &rest) != 0 && errno == EINTR) {
	}
	return true;
}

/*
 * Changes the queue pair's state. `once`: without the tries of ep_rc_retry(). Returns 0 or an errno
 * value.
 */
static int rc_qp_modify(const struct ep_nic *nic, const struct ep_ib_env *env, struct ibv_qp *qp,
			struct ibv_qp_attr *attr, int mask, bool once)
{
	int error = nic->v->ibv_modify_qp(qp, attr, mask);

	for (int failures = 1; !once && ep_rc_retry(nic, env, error, failures); failures++) {
		error = nic->v->ibv_modify_qp(qp, attr, mask);
	}
	return error;
}

int ep_rc_qp_init(const struct ep_nic *nic, const struct ep_ib_env *env, struct ibv_qp *qp,
		  uint32_t pkey_index, unsigned int access)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.pkey_index = (uint16_t)pkey_index,
		.port_num = (uint8_t)nic->port,
		.qp_access_flags = access,
	};

	return rc_qp_modify(nic, env, qp, &attr,
			    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS,
			    false);
}

void ep_rc_ece_query(const struct ep_nic *nic, const struct ep_ib_env *env, struct ibv_qp *qp,
		     struct ep_ece *ece)
{
	const struct ep_verbs *v = nic->v;
	struct ibv_ece found = { 0 };

	*ece = (struct ep_ece){ 0 };
	if (env->ece && v->ibv_query_ece && v->ibv_set_ece && v->ibv_query_ece(qp, &found) == 0) {
		*ece = (struct ep_ece){ found.vendor_id, found.options, found.comp_mask };
	}
}

struct ep_ece ep_rc_ece_received(const struct ep_ece *own, const struct ep_ece *peer)
{
	return own->vendor && own->vendor == peer->vendor ? *peer : (struct ep_ece){ 0 };
}

const char *ep_rc_ece_print(uint32_t options, bool agreed, char text[EP_RC_ECE_TEXT])
{
	text[0] = '\0';
	if (options && agreed) {
		snprintf(text, EP_RC_ECE_TEXT,
			 "; both ends can 0x%x beyond the standard (ECE): does "
			 "NCCL_IB_ECE_ENABLE=0 help?",
			 options);
	}
	return text;
}

static int rc_ece_set(const struct ep_nic *nic, struct ibv_qp *qp, const struct ep_ece *to)
{
	struct ibv_ece ece = { .vendor_id = to->vendor,
			       .options = to->options,
			       .comp_mask = to->mask };

	return nic->v->ibv_set_ece(qp, &ece);
}

/*
 * Gives the queue pair the other end's extensions, and moves it to state RTR. If the NIC refuses
 * these extensions, the queue pair keeps to the standard. Returns 0 or an errno value.
 */
static int rc_qp_init2rtr(const struct ep_nic *nic, const struct ep_ib_env *env, struct ibv_qp *qp,
			  struct ibv_qp_attr *attr, const struct ep_rc_path *path)
{
	int mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
		   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	struct ep_ece standard = { .vendor = path->ece.vendor };
	int error = path->ece.options ? rc_ece_set(nic, qp, &path->ece) : 0;

	if (!error) {
		error = rc_qp_modify(nic, env, qp, attr, mask, path->once);
	}
	if (!error || error == ETIMEDOUT || !path->ece.options || path->ece_agreed ||
	    rc_ece_set(nic, qp, &standard) != 0) {
		return error;
	}
	EP_INFO(EP_LOG_NET,
		"%s:%d refuses what the other end can beyond the standard (ECE 0x%x): %s",
		nic->name, nic->port, path->ece.options, strerror(error));
	return rc_qp_modify(nic, env, qp, attr, mask, path->once);
}

int ep_rc_qp_to_rtr(const struct ep_nic *nic, const struct ep_ib_env *env, struct ibv_qp *qp,
		    const struct ep_rc_path *path, uint32_t remote)
{
	const struct ep_nic_end *to = path->to;
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = (enum ibv_mtu)ep_min_u64(path->from->mtu, to->mtu),
		.dest_qp_num = remote,
		.rq_psn = (to->psn + remote) & 0xffffff,
		.max_dest_rd_atomic =
			(uint8_t)(1u << ep_min_u64(path->log_reads, path->from->log_rra)),
		.min_rnr_timer = EP_RC_RNR_TIMER,
		.ah_attr = { .dlid = ep_nic_path_lid(path->from, to),
			     .sl = path->sl,
			     .port_num = (uint8_t)nic->port },
	};

	if (ep_nic_path_global(path->from, to)) {
		attr.ah_attr.is_global = 1;
		memcpy(attr.ah_attr.grh.dgid.raw, to->gid, sizeof(to->gid));
		attr.ah_attr.grh.sgid_index = (uint8_t)path->gid_index;
		attr.ah_attr.grh.hop_limit = EP_RC_HOPS;
		attr.ah_attr.grh.traffic_class = path->tc;
	}
	return rc_qp_init2rtr(nic, env, qp, &attr, path);
}

int ep_rc_qp_to_rts(const struct ep_nic *nic, const struct ep_ib_env *env, struct ibv_qp *qp,
		    const struct ep_rc_path *path)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = (uint8_t)env->timeout,
		.retry_cnt = (uint8_t)env->retry_cnt,
		.rnr_retry = EP_RC_RNR_RETRY,
		.sq_psn = (path->from->psn + qp->qp_num) & 0xffffff,
		.max_rd_atomic = (uint8_t)(1u << ep_rc_log_reads(nic, path->to, path->log_reads)),
	};

	return rc_qp_modify(nic, env, qp, &attr,
			    IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				    IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC,
			    path->once);
}

uint32_t ep_rc_log_reads(const struct ep_nic *from, const struct ep_nic_end *to, uint32_t most)
{
	return (uint32_t)ep_min_u64(ep_min_u64(from->log_ra_req, most), to->log_rra);
}
