/* SPDX-License-Identifier: Apache-2.0 */
/* One queue pair, by DevX or by verbs, and its address. Needs no CUDA. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "core/log.h"
#include "gda/prm.h"
#include "gda/state.h"

/*
 * Makes an address handle, for which the kernel asks the network. Returns NULL, with *why, on
 * failure. With `env` NULL a time-out is not tried again.
 */
static struct ibv_ah *address_handle(const struct ep_gda_nic *nic, const struct ep_ib_env *env,
				     const uint8_t gid[16], struct ep_reason *why)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = (uint8_t)nic->base.port };
	char text[EP_GID_TEXT];
	struct ibv_ah *ah;

	memcpy(attr.grh.dgid.raw, gid, sizeof(attr.grh.dgid.raw));
	attr.grh.sgid_index = (uint8_t)nic->base.gid_index;
	attr.grh.hop_limit = EP_RC_HOPS;
	attr.grh.traffic_class = nic->base.tc;
	ah = nic->base.v->ibv_create_ah(nic->base.pd, &attr);
	for (int i = 1; !ah && env && ep_rc_retry(&nic->base, env, errno, i); i++) {
		ah = nic->base.v->ibv_create_ah(nic->base.pd, &attr);
	}
	if (!ah) {
		ep_reason_set(why, "%s:%d does not find the path to %s: %s", nic->base.name,
			      nic->base.port, ep_gid_print(gid, text), strerror(errno));
	}
	return ah;
}

/*
 * Asks the kernel for the hardware address that a GID has. Returns false, with *why, on failure.
 * With `env` NULL a time-out is not tried again.
 */
static bool address_resolve(const struct ep_gda_nic *nic, const struct ep_ib_env *env,
			    const uint8_t gid[16], uint8_t mac[6], struct ep_reason *why)
{
	struct ibv_ah *ah = address_handle(nic, env, gid, why);
	struct mlx5dv_obj obj = { 0 };
	struct mlx5dv_ah dv = { 0 };
	char text[EP_GID_TEXT];
	int error;

	if (!ah) {
		return false;
	}
	obj.ah.in = ah;
	obj.ah.out = &dv;
	error = nic->base.dv->mlx5dv_init_obj(&obj, MLX5DV_OBJ_AH);
	if (!error) {
		memcpy(mac, dv.av->rmac, 6);
	}
	nic->base.v->ibv_destroy_ah(ah);
	return !error || ep_reason_set(why, "%s:%d does not report the hardware address of %s: %s",
				       nic->base.name, nic->base.port, ep_gid_print(gid, text),
				       strerror(error));
}

bool ep_gda_address_hold(struct ep_gda_nic *nic, struct ep_reason *why)
{
	if (nic->base.end.link_layer == IBV_LINK_LAYER_ETHERNET && !nic->held) {
		nic->held = address_handle(nic, NULL, nic->base.end.gid, why);
		return nic->held != NULL;
	}
	return true;
}

void ep_gda_address_release(struct ep_gda_nic *nic)
{
	if (nic->held) {
		nic->base.v->ibv_destroy_ah(nic->held);
		nic->held = NULL;
	}
}

void ep_gda_address_check(struct ep_gda_nic *nic)
{
	char was[EP_GID_TEXT], is[EP_GID_TEXT];
	union ibv_gid now;

	memset(&now, 0, sizeof(now));
	if (nic->base.v->ibv_query_gid(nic->base.ctx, (uint8_t)nic->base.port,
				       (int)nic->base.gid_index, &now) != 0 ||
	    memcmp(now.raw, nic->base.end.gid, sizeof(now.raw)) == 0) {
		return;
	}
	EP_WARN("%s:%d: GID %u, which a group's queue pairs use, was %s and is %s now; they go on with the "
		"old one, which works as long as packets find it: see what changes addresses "
		"(NetworkManager: ignore-carrier)",
		nic->base.name, nic->base.port, nic->base.gid_index,
		ep_gid_print(nic->base.end.gid, was), ep_gid_print(now.raw, is));
	__atomic_store_n(&nic->address_gone, 1, __ATOMIC_RELAXED);
}

bool ep_gda_address_moved(const struct ep_gda_queue *queue, char *text, size_t size)
{
	const uint8_t *was = queue->mac;
	char gid[EP_GID_TEXT];
	struct ep_reason why;
	uint8_t now[6];

	if (queue->verbs || queue->nic->base.end.link_layer != IBV_LINK_LAYER_ETHERNET ||
	    !address_resolve(queue->nic, NULL, queue->peer_gid, now, &why) ||
	    memcmp(was, now, sizeof(now)) == 0) {
		return false;
	}
	snprintf(
		text, size,
		"%s has moved from %02x:%02x:%02x:%02x:%02x:%02x to %02x:%02x:%02x:%02x:%02x:%02x: "
		"make the group anew",
		ep_gid_print(queue->peer_gid, gid), was[0], was[1], was[2], was[3], was[4], was[5],
		now[0], now[1], now[2], now[3], now[4], now[5]);
	return true;
}

/* ---- queues that the proxy's thread posts to by plain verbs ---- */

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
 * Creates the queue pair of verbs. A device's limit holds for the smallest work requests, so that
 * this queue pair may have less room. The queue that kernels write to has the depth asked for in
 * any case.
 */
static bool verbs_make(struct ep_gda_queue *queue, struct ep_reason *why)
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

	if (!verbs_make(queue, why)) {
		return false;
	}
	error = ep_rc_qp_init(&queue->nic->base, &queue->gda->env, queue->verbs,
			      queue->nic->base.pkey_index, access);
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
 * Gives the queue pair its member of a bond, where libmlx5 can. The kernel gives members in turn to
 * the queue pairs of a context, so that all queues of a peer may get the same one.
 */
static void verbs_lag(struct ep_gda_queue *queue)
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

/* Reads the state of a queue pair of verbs, as EP_PRM_QP_*. Returns false without an answer. */
static bool verbs_query(struct ep_gda_queue *queue, uint32_t *state)
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
	if (!verbs_query(queue, &state) || state != EP_PRM_QP_RTS) {
		return ep_reason_set(why,
				     "%s:%d: a queue pair is in state %u after it was made ready "
				     "to send",
				     queue->nic->base.name, queue->nic->base.port, state);
	}
	verbs_lag(queue);
	/*
	 * Verbs do not report the order in which data is placed: the weakest order is right for
	 * all.
	 */
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

/* ---- mlx5 queues that GPUs post to, made by DevX commands ---- */

#define EP_GDA_LOG_MSG 30

/* Returns where the queue's memory begins in that of its NIC. */
static uint64_t page_at(const struct ep_gda_queue *queue)
{
	return queue->slot * ep_gda_stride(queue->gda);
}

/* Creates the completion queue, of one entry. Returns false, with *why, on failure. */
static bool cq_create(struct ep_gda_queue *queue, struct ep_reason *why)
{
	unsigned char in[EP_PRM_CREATE_CQ_BYTES] = { 0 }, out[EP_PRM_OUT_BYTES] = { 0 };
	unsigned char *cqc = in + EP_PRM_CQC_AT;
	const struct ep_gda_nic *nic = queue->nic;
	uint32_t umem = nic->queue_memory.umem->umem_id;

	ep_prm_set(in, EP_PRM_OPCODE, EP_PRM_CMD_CREATE_CQ);
	ep_prm_set64(in, EP_PRM_CQ_UMEM_OFFSET, page_at(queue) + EP_GDA_AT_CQE);
	ep_prm_set(in, EP_PRM_CQ_UMEM_ID, umem);
	ep_prm_set(in, EP_PRM_CQ_UMEM_VALID, 1);
	ep_prm_set(cqc, EP_PRM_CQC_CC, 1);
	ep_prm_set(cqc, EP_PRM_CQC_OI, 1);
	ep_prm_set(cqc, EP_PRM_CQC_LOG_CQ_SIZE, 0);
	ep_prm_set(cqc, EP_PRM_CQC_UAR_PAGE, nic->uar->page_id);
	ep_prm_set(cqc, EP_PRM_CQC_EQN, nic->eqn);
	ep_prm_set(cqc, EP_PRM_CQC_DBR_UMEM_VALID, 1);
	ep_prm_set(cqc, EP_PRM_CQC_DBR_UMEM_ID, umem);
	ep_prm_set64(cqc, EP_PRM_CQC_DBR_ADDR, page_at(queue) + EP_GDA_AT_CQ_DBR);
	errno = 0;
	queue->cq_obj = queue->nic->base.dv->mlx5dv_devx_obj_create(nic->base.ctx, in, sizeof(in),
								    out, sizeof(out));
	if (!queue->cq_obj) {
		return ep_gda_command("CREATE_CQ", errno ? errno : EIO, out, why);
	}
	queue->cqn = ep_prm_get(out, EP_PRM_OBJECT);
	return true;
}

/* Creates the queue pair, in state RESET. Returns false, with *why, on failure. */
static bool qp_create(struct ep_gda_queue *queue, struct ep_reason *why)
{
	unsigned char in[EP_PRM_QP_BYTES] = { 0 }, out[EP_PRM_OUT_BYTES] = { 0 };
	unsigned char *qpc = in + EP_PRM_QPC_AT;
	struct ep_gda_nic *nic = queue->nic;
	uint32_t umem = nic->queue_memory.umem->umem_id;
	bool ask = nic->caps.ece && queue->gda->env.ece;

	ep_prm_set(in, EP_PRM_OPCODE, EP_PRM_CMD_CREATE_QP);
	ep_prm_set64(in, EP_PRM_QP_UMEM_OFFSET, page_at(queue) + EP_GDA_PAGE);
	ep_prm_set(in, EP_PRM_QP_UMEM_ID, umem);
	ep_prm_set(in, EP_PRM_QP_UMEM_VALID, 1);
	ep_prm_set(in, EP_PRM_ECE_IN, ask ? EP_PRM_ECE_ASK : 0);
	ep_prm_set(qpc, EP_PRM_QPC_PM_STATE, EP_PRM_PM_MIGRATED);
	ep_prm_set(qpc, EP_PRM_QPC_PD, nic->pdn);
	ep_prm_set(qpc, EP_PRM_QPC_TS_FORMAT, nic->caps.ts_format);
	ep_prm_set(qpc, EP_PRM_QPC_UAR_PAGE, nic->uar->page_id);
	ep_prm_set(qpc, EP_PRM_QPC_LOG_SQ_SIZE, (uint32_t)__builtin_ctz(queue->gda->depth));
	ep_prm_set(qpc, EP_PRM_QPC_RQ_TYPE, EP_PRM_RQ_NONE);
	ep_prm_set(qpc, EP_PRM_QPC_CQN_SND, queue->cqn);
	ep_prm_set(qpc, EP_PRM_QPC_CQN_RCV, queue->cqn);
	ep_prm_set(qpc, EP_PRM_QPC_DBR_UMEM_VALID, 1);
	ep_prm_set(qpc, EP_PRM_QPC_DBR_UMEM_ID, umem);
	ep_prm_set64(qpc, EP_PRM_QPC_DBR_ADDR, page_at(queue) + EP_GDA_AT_DBR);
	errno = 0;
	queue->qp_obj = queue->nic->base.dv->mlx5dv_devx_obj_create(nic->base.ctx, in, sizeof(in),
								    out, sizeof(out));
	if (!queue->qp_obj) {
		return ep_gda_command("CREATE_QP", errno ? errno : EIO, out, why);
	}
	queue->qpn = ep_prm_get(out, EP_PRM_OBJECT);
	if (ask && queue->slot == 0) { /* all queues have the same */
		nic->ece = (struct ep_ece){ EP_PRM_ECE_VENDOR, ep_prm_get(out, EP_PRM_ECE_OUT), 0 };
	}
	return true;
}

/*
 * Changes the queue pair by a command, whose answer is in `out`. Returns false, with *why, on
 * failure.
 */
static bool modify_out(struct ep_gda_queue *queue, const char *what, uint32_t opcode,
		       unsigned char *in, size_t bytes, unsigned char *out, struct ep_reason *why)
{
	int error;

	memset(out, 0, EP_PRM_OUT_BYTES);

	ep_prm_set(in, EP_PRM_OPCODE, opcode);
	ep_prm_set(in, EP_PRM_OBJECT, queue->qpn);
	error = queue->nic->base.dv->mlx5dv_devx_obj_modify(queue->qp_obj, in, bytes, out,
							    EP_PRM_OUT_BYTES);
	return ep_gda_command(what, error, out, why);
}

static bool modify(struct ep_gda_queue *queue, const char *what, uint32_t opcode, unsigned char *in,
		   size_t bytes, struct ep_reason *why)
{
	unsigned char out[EP_PRM_OUT_BYTES];

	return modify_out(queue, what, opcode, in, bytes, out, why);
}

/* Sets what the peer may do through the queue pair. */
static void allow(const struct ep_gda_queue *queue, unsigned char *qpc)
{
	ep_prm_set(qpc, EP_PRM_QPC_RRE, 1);
	ep_prm_set(qpc, EP_PRM_QPC_RWE, 1);
	if (queue->nic->base.atomics) {
		ep_prm_set(qpc, EP_PRM_QPC_RAE, 1);
		ep_prm_set(qpc, EP_PRM_QPC_ATOMIC_MODE, EP_PRM_ATOMIC_UP_TO_8);
	}
}

/* Moves the queue pair to state INIT. Returns false, with *why, on failure. */
static bool to_init(struct ep_gda_queue *queue, struct ep_reason *why)
{
	unsigned char in[EP_PRM_QP_BYTES] = { 0 };
	unsigned char *qpc = in + EP_PRM_QPC_AT, *path = qpc + EP_PRM_QPC_PATH_AT;

	ep_prm_set(qpc, EP_PRM_QPC_PM_STATE, EP_PRM_PM_MIGRATED);
	allow(queue, qpc);
	ep_prm_set(path, EP_PRM_ADS_PORT, (uint32_t)queue->nic->base.port);
	ep_prm_set(path, EP_PRM_ADS_PKEY_INDEX, queue->nic->base.pkey_index);
	ep_prm_set(qpc, EP_PRM_QPC_LAG_TX_PORT_AFFINITY, ep_gda_lag_port(queue));
	return modify(queue, "RST2INIT_QP", EP_PRM_CMD_RST2INIT, in, sizeof(in), why);
}

bool ep_gda_queue_create(struct ep_gda_queue *queue, struct ep_reason *why)
{
	unsigned char *host = queue->nic->queue_memory.host;

	if (host) {
		host += page_at(queue);
		queue->cqe = (struct ep_mlx5_cqe *)(host + EP_GDA_AT_CQE);
		queue->dbr = (struct ep_mlx5_dbr *)(host + EP_GDA_AT_DBR);
		queue->sq = (struct ep_mlx5_wqe *)(host + EP_GDA_PAGE);
	}
	if (queue->gda->mode == EP_GDA_CPU_PROXY) {
		return ep_gda_verbs_create(queue, why);
	}
	if ((uint32_t)__builtin_ctz(queue->gda->depth) > queue->nic->caps.log_max_qp_sz) {
		return ep_reason_set(
			why, "%s: NCCL_EP_RDMA_DEPTH is %u entries per queue, its limit is %u",
			queue->nic->base.name, queue->gda->depth,
			1u << queue->nic->caps.log_max_qp_sz);
	}
	return cq_create(queue, why) && qp_create(queue, why) && to_init(queue, why);
}

/* Fills in the path to the other end. Returns false, with *why, if its address is not found. */
static bool gda_path(struct ep_gda_queue *queue, const struct ep_nic_end *end, unsigned char *path,
		     struct ep_reason *why)
{
	const struct ep_ib_env *env = &queue->gda->env;
	bool ethernet = end->link_layer == IBV_LINK_LAYER_ETHERNET;
	const uint8_t *mac = queue->mac;

	ep_prm_set(path, EP_PRM_ADS_PORT, (uint32_t)queue->nic->base.port);
	ep_prm_set(path, EP_PRM_ADS_PKEY_INDEX, queue->nic->base.pkey_index);
	memcpy(queue->peer_gid, end->gid, sizeof(queue->peer_gid));
	if (ethernet) {
		if (!address_resolve(queue->nic, env, end->gid, queue->mac, why)) {
			return false;
		}
		ep_prm_set(path, EP_PRM_ADS_RMAC_HIGH, (uint32_t)mac[0] << 8 | mac[1]);
		ep_prm_set(path, EP_PRM_ADS_RMAC_LOW,
			   (uint32_t)mac[2] << 24 | (uint32_t)mac[3] << 16 | (uint32_t)mac[4] << 8 |
				   mac[5]);
		ep_prm_set(path, EP_PRM_ADS_ETH_PRIO, (uint32_t)env->sl);
		if (end->roce == 2) {
			/* One flow per queue pair, so that switches may spread them. */
			ep_prm_set(path, EP_PRM_ADS_UDP_SPORT,
				   0xc000 | ((queue->qpn * 31 ^ queue->remote_qpn) & 0x3fff));
			ep_prm_set(path, EP_PRM_ADS_DSCP, queue->nic->base.tc >> 2);
		}
	} else {
		ep_prm_set(path, EP_PRM_ADS_RLID, ep_nic_path_lid(&queue->nic->base.end, end));
		ep_prm_set(path, EP_PRM_ADS_SL, (uint32_t)env->sl);
	}
	if (ep_nic_path_global(&queue->nic->base.end, end)) {
		ep_prm_set(path, EP_PRM_ADS_GRH, !ethernet); /* Ethernet always has one */
		ep_prm_set(path, EP_PRM_ADS_SRC_ADDR_INDEX, queue->nic->base.gid_index);
		ep_prm_set(path, EP_PRM_ADS_HOP_LIMIT, EP_RC_HOPS);
		ep_prm_set(path, EP_PRM_ADS_TCLASS, queue->nic->base.tc);
		memcpy(path + EP_PRM_ADS_RGID_AT, end->gid, sizeof(end->gid));
	}
	return true;
}

/*
 * Names the member of a bond that the queue pair sends by, in a command. Returns whether it has
 * one.
 */
static bool lag_name(const struct ep_gda_queue *queue, unsigned char *in)
{
	uint32_t port = ep_gda_lag_port(queue);

	if (port) {
		ep_prm_set(in, EP_PRM_OPT_PARAM_MASK, EP_PRM_OPT_LAG_TX_PORT_AFFINITY);
		ep_prm_set(in + EP_PRM_QPC_AT, EP_PRM_QPC_LAG_TX_PORT_AFFINITY, port);
	}
	return port != 0;
}

/*
 * Names the member once more after the queue pair is connected: some firmware keeps it only then. A
 * refusal is logged.
 */
static void lag_repeat(struct ep_gda_queue *queue)
{
	unsigned char in[EP_PRM_QP_BYTES] = { 0 };
	struct ep_reason why;

	if (queue->nic->lag.rts2rts && lag_name(queue, in) &&
	    !modify(queue, "RTS2RTS_QP", EP_PRM_CMD_RTS2RTS, in, sizeof(in), &why)) {
		EP_INFO(EP_LOG_NET, "%s:%d is a bond: %s", queue->nic->base.name,
			queue->nic->base.port, why.text);
	}
}

/*
 * Moves the queue pair to state RTR with the extensions (ECE) of the peer, or of both ends. Where
 * the NIC refuses the peer's, the queue pair keeps to the standard, and so will the peer's. Returns
 * false, with *why, on failure.
 */
static bool gda_init2rtr(struct ep_gda_queue *queue, unsigned char *in, struct ep_reason *why)
{
	static const char what[] = "INIT2RTR_QP";
	const char *name = queue->nic->base.name;
	unsigned char out[EP_PRM_OUT_BYTES];
	char ece[EP_RC_ECE_TEXT];
	struct ep_reason inner;
	uint32_t does;

	ep_prm_set(in, EP_PRM_ECE_IN, queue->ece);
	if (!modify_out(queue, what, EP_PRM_CMD_INIT2RTR, in, EP_PRM_QP_BYTES, out, &inner)) {
		if (!queue->ece || queue->ece_agreed) {
			return ep_reason_set(why, "%.190s%s", inner.text,
					     ep_rc_ece_print(queue->ece, queue->ece_agreed, ece));
		}
		EP_INFO(EP_LOG_NET,
			"%s refuses what the other end can beyond the standard (ECE 0x%x): %s",
			name, queue->ece, inner.text);
		ep_prm_set(in, EP_PRM_ECE_IN, 0);
		if (!modify_out(queue, what, EP_PRM_CMD_INIT2RTR, in, EP_PRM_QP_BYTES, out, why)) {
			return false;
		}
	}
	does = ep_prm_get(in, EP_PRM_ECE_IN) ? ep_prm_get(out, EP_PRM_ECE_OUT) : 0;
	if (queue->ece_agreed && does != queue->ece) {
		EP_INFO(EP_LOG_NET,
			"%s: QP 0x%06x with rank %d: both ends can 0x%x beyond the standard (ECE), "
			"the NIC uses 0x%x",
			name, queue->qpn, queue->peer, queue->ece, does);
	}
	queue->ece = does;
	return true;
}

/* Moves the queue pair to state RTR: it learns its peer. Returns false, with *why, on failure. */
static bool to_rtr(struct ep_gda_queue *queue, const struct ep_nic_end *end, struct ep_reason *why)
{
	unsigned char in[EP_PRM_QP_BYTES] = { 0 };
	unsigned char *qpc = in + EP_PRM_QPC_AT;

	if (!gda_path(queue, end, qpc + EP_PRM_QPC_PATH_AT, why)) {
		return false;
	}
	ep_prm_set(qpc, EP_PRM_QPC_PM_STATE, EP_PRM_PM_MIGRATED);
	ep_prm_set(qpc, EP_PRM_QPC_MTU, queue->mtu);
	ep_prm_set(qpc, EP_PRM_QPC_LOG_MSG_MAX,
		   (uint32_t)ep_min_u64(queue->nic->base.log_max_msg, EP_GDA_LOG_MSG));
	ep_prm_set(qpc, EP_PRM_QPC_REMOTE_QPN, queue->remote_qpn);
	ep_prm_set(qpc, EP_PRM_QPC_LOG_RRA_MAX, queue->nic->base.end.log_rra);
	allow(queue, qpc);
	ep_prm_set(qpc, EP_PRM_QPC_MIN_RNR_NAK, EP_RC_RNR_TIMER);
	ep_prm_set(qpc, EP_PRM_QPC_NEXT_RCV_PSN, (end->psn + queue->remote_qpn) & 0xffffff);
	if (queue->nic->lag.init2rtr) {
		lag_name(queue, in);
	}
	return gda_init2rtr(queue, in, why);
}

/* Moves the queue pair to state RTS: it may send. Returns false, with *why, on failure. */
static bool to_rts(struct ep_gda_queue *queue, const struct ep_nic_end *end, struct ep_reason *why)
{
	unsigned char in[EP_PRM_QP_BYTES] = { 0 };
	unsigned char *qpc = in + EP_PRM_QPC_AT, *path = qpc + EP_PRM_QPC_PATH_AT;

	ep_prm_set(qpc, EP_PRM_QPC_PM_STATE, EP_PRM_PM_MIGRATED);
	ep_prm_set(qpc, EP_PRM_QPC_LOG_SRA_MAX,
		   ep_rc_log_reads(&queue->nic->base, end, EP_RC_LOG_READS));
	ep_prm_set(qpc, EP_PRM_QPC_RETRY_COUNT, (uint32_t)queue->gda->env.retry_cnt);
	ep_prm_set(qpc, EP_PRM_QPC_RNR_RETRY, EP_RC_RNR_RETRY);
	ep_prm_set(qpc, EP_PRM_QPC_NEXT_SEND_PSN, (queue->gda->psn + queue->qpn) & 0xffffff);
	ep_prm_set(path, EP_PRM_ADS_ACK_TIMEOUT, (uint32_t)queue->gda->env.timeout);
	return modify(queue, "RTR2RTS_QP", EP_PRM_CMD_RTR2RTS, in, sizeof(in), why);
}

/*
 * Sets the queue's order from what firmware reports. 0 means in order, or that the device does not
 * know the field. Packets of an InfiniBand port may then still take several ways, as NCCL assumes,
 * too, and the device may not hold atomics back. In that case all data counts as out of order, and
 * signals use no atomics.
 */
static void tier_set(struct ep_gda_queue *queue, const unsigned char *qpc)
{
	const struct ep_gda_nic *nic = queue->nic;
	uint32_t tier = ep_prm_get(qpc, EP_PRM_QPC_DP_ORDERING_0) |
			ep_prm_get(qpc, EP_PRM_QPC_DP_ORDERING_1) << 1;
	int adaptive = queue->gda->env.adaptive;

	queue->tier = (uint32_t)ep_min_u64(tier, EP_MLX5_TIER_OOO_ALL);
	if (adaptive < 0) {
		adaptive = !nic->caps.reports_tier &&
			   nic->base.end.link_layer != IBV_LINK_LAYER_ETHERNET;
	}
	if (!tier &&
	    (adaptive || (nic->caps.reports_order && !ep_prm_get(qpc, EP_PRM_QPC_DATA_IN_ORDER)))) {
		queue->tier = EP_MLX5_TIER_OOO_ALL;
		queue->atomics = false;
	}
}

/*
 * Reads the queue pair back. Returns false, with *why, if values differ from those that were set.
 */
static bool read_back(struct ep_gda_queue *queue, const struct ep_nic_end *end,
		      struct ep_reason *why)
{
	unsigned char in[EP_PRM_QP_SHORT_BYTES] = { 0 }, out[EP_PRM_QP_BYTES] = { 0 };
	const unsigned char *qpc = out + EP_PRM_QPC_AT;
	uint32_t state, mtu, sra, rra;
	int error;

	ep_prm_set(in, EP_PRM_OPCODE, EP_PRM_CMD_QUERY_QP);
	ep_prm_set(in, EP_PRM_OBJECT, queue->qpn);
	error = queue->nic->base.dv->mlx5dv_devx_obj_query(queue->qp_obj, in, sizeof(in), out,
							   sizeof(out));
	if (!ep_gda_command("QUERY_QP", error, out, why)) {
		return false;
	}
	state = ep_prm_get(qpc, EP_PRM_QPC_STATE);
	mtu = ep_prm_get(qpc, EP_PRM_QPC_MTU);
	sra = ep_prm_get(qpc, EP_PRM_QPC_LOG_SRA_MAX);
	rra = ep_prm_get(qpc, EP_PRM_QPC_LOG_RRA_MAX);
	if (state != EP_PRM_QP_RTS || mtu != queue->mtu ||
	    sra != ep_rc_log_reads(&queue->nic->base, end, EP_RC_LOG_READS) ||
	    rra != queue->nic->base.end.log_rra) {
		return ep_reason_set(
			why,
			"the firmware reports other values than were set: state %u "
			"(should be %u), MTU code %u (%u), READs in flight 2^%u (2^%u), "
			"answered at once 2^%u (2^%u): update the firmware of %s",
			state, EP_PRM_QP_RTS, mtu, queue->mtu, sra,
			ep_rc_log_reads(&queue->nic->base, end, EP_RC_LOG_READS), rra,
			queue->nic->base.end.log_rra, queue->nic->base.name);
	}
	queue->lag = queue->nic->lag.by_queue ? ep_prm_get(qpc, EP_PRM_QPC_LAG_TX_PORT_AFFINITY)
					      : 0;
	tier_set(queue, qpc);
	return true;
}

bool ep_gda_queue_connect(struct ep_gda_queue *queue, const struct ep_nic_end *end,
			  struct ep_reason *why)
{
	if (queue->gda->mode == EP_GDA_CPU_PROXY) {
		return ep_gda_verbs_connect(queue, end, why);
	}
	if (!to_rtr(queue, end, why) || !to_rts(queue, end, why)) {
		return false;
	}
	lag_repeat(queue);
	return read_back(queue, end, why);
}

bool ep_gda_queue_query(struct ep_gda_queue *queue, uint32_t *state, struct ep_gda_cause *cause)
{
	unsigned char in[EP_PRM_QP_SHORT_BYTES] = { 0 }, out[EP_PRM_QUERY_QP_EXT_BYTES] = { 0 };
	bool ext = queue->nic->caps.error_syndrome;
	struct ep_reason why;
	int error;

	if (queue->verbs) {
		return verbs_query(queue, state);
	}
	if (!queue->qp_obj) {
		return false;
	}
	ep_prm_set(in, EP_PRM_OPCODE, EP_PRM_CMD_QUERY_QP);
	ep_prm_set(in, EP_PRM_OBJECT, queue->qpn);
	if (ext) {
		ep_prm_set(in, EP_PRM_QUERY_QP_EXT, 1);
	}
	error = queue->nic->base.dv->mlx5dv_devx_obj_query(queue->qp_obj, in, sizeof(in), out,
							   ext ? sizeof(out) : EP_PRM_QP_BYTES);
	if (!ep_gda_command("QUERY_QP", error, out, &why)) {
		EP_INFO(EP_LOG_NET, "%s: %s", queue->nic->base.name, why.text);
		return false;
	}
	*state = ep_prm_get(out + EP_PRM_QPC_AT, EP_PRM_QPC_STATE);
	if (ext && ep_prm_get(out, EP_PRM_QUERY_QP_SYNDROME)) {
		cause->syndrome = (uint8_t)ep_prm_get(out, EP_PRM_QUERY_QP_SYNDROME);
		cause->vendor = (uint8_t)ep_prm_get(out, EP_PRM_QUERY_QP_VENDOR_SYNDROME);
		cause->overwritten = cause->syndrome == EP_MLX5_SYND_FLUSHED;
	}
	return true;
}

void ep_gda_queue_halt(struct ep_gda_queue *queue)
{
	unsigned char in[EP_PRM_QP_SHORT_BYTES] = { 0 };
	struct ep_reason why;

	if (__atomic_load_n(&queue->halted, __ATOMIC_RELAXED)) {
		return;
	}
	if (queue->verbs) {
		ep_gda_verbs_halt(queue);
	} else if (queue->qp_obj &&
		   !modify(queue, "2ERR_QP", EP_PRM_CMD_2ERR, in, sizeof(in), &why)) {
		EP_INFO(EP_LOG_NET, "%s: %s", queue->nic->base.name, why.text);
	}
	__atomic_store_n(&queue->halted, 1, __ATOMIC_RELEASE);
}

/* Logs an object that could not be destroyed. */
static void destroyed(const struct ep_gda_queue *queue, const char *what, int error)
{
	if (error) {
		EP_INFO(EP_LOG_NET, "%s: %s of queue %u with rank %d is left behind: %s",
			queue->nic->base.name, what, queue->index, queue->peer, strerror(error));
	}
}

void ep_gda_queue_destroy(struct ep_gda_queue *queue)
{
	if (queue->verbs) {
		destroyed(queue, "queue pair", queue->nic->base.v->ibv_destroy_qp(queue->verbs));
	}
	if (queue->qp_obj) {
		destroyed(queue, "queue pair",
			  queue->nic->base.dv->mlx5dv_devx_obj_destroy(queue->qp_obj));
	}
	if (queue->cq_obj) {
		destroyed(queue, "completion queue",
			  queue->nic->base.dv->mlx5dv_devx_obj_destroy(queue->cq_obj));
	}
	queue->verbs = NULL;
	queue->qp_obj = queue->cq_obj = NULL;
	queue->cqe = NULL;
	queue->dbr = NULL;
	queue->sq = NULL;
}
