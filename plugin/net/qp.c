/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs, completion queue and shared memory of a connection. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/log.h"
#include "net/comm.h"

#define EP_NET_SQ_DEPTH 512u
#define EP_NET_RQ_DEPTH (EP_NET_SENDS + EP_NET_RECEIVES_TOGETHER)
#define EP_NET_LEAST_WR 32u
#define EP_NET_INLINE 64u
#define EP_NET_HOPS 255
#define EP_NET_RNR_TIMER 12 /* 0.64 ms */
#define EP_NET_RNR_RETRY 7  /* for ever */

/* ---- making ---- */

static ncclResult_t ep_net_comm_memory(struct ep_net_comm *c)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = ep_round_up(sizeof(*c->shared), page);

	c->shared = aligned_alloc(page, bytes);
	if (!c->shared) {
		return ep_fail(ncclSystemError, "out of host memory for a connection");
	}
	memset(c->shared, 0, bytes);
	/* In order: what is polled must not be there before what it speaks of. */
	c->shared_mr = ep_verbs_reg_mr(c->dev->nic.v, c->dev->nic.pd, c->shared, bytes,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
					       IBV_ACCESS_REMOTE_READ);
	if (!c->shared_mr) {
		return ep_fail(ncclSystemError,
			       "%s: %zu bytes of a connection cannot be registered: %s (see "
			       "ulimit -l)",
			       c->dev->label, bytes, strerror(errno));
	}
	return ncclSuccess;
}

static ncclResult_t ep_net_comm_requests(struct ep_net_comm *c)
{
	uint32_t use = (uint32_t)ep_now_ns() * 2654435761u;

	c->nrequests = c->sender ? EP_NET_SENDS : EP_NET_GROUPS + EP_NET_FLUSHES;
	c->request = calloc(c->nrequests, sizeof(*c->request));
	if (!c->request) {
		return ep_fail(ncclSystemError, "out of host memory for a connection");
	}
	for (uint32_t i = 0; i < c->nrequests; i++) {
		c->request[i].next = i + 1 < c->nrequests ? i + 1 : EP_NET_NO_REQUEST;
		/* Requests of connections that were closed are not taken for those of this one. */
		c->request[i].use = use & ((1u << EP_NET_REQUEST_USE_BITS) - 2);
	}
	return ncclSuccess;
}

/* A device's limits hold for the smallest work requests: less is tried, too. */
static struct ibv_qp *ep_net_qp_new(struct ep_net_comm *c, uint32_t *sq, uint32_t *rq)
{
	struct ibv_qp *qp = NULL;

	while (!qp) {
		struct ibv_qp_init_attr init = {
			.send_cq = c->cq,
			.recv_cq = c->cq,
			.cap = { .max_send_wr = *sq,
				 .max_recv_wr = *rq,
				 .max_send_sge = 1,
				 .max_recv_sge = 1,
				 .max_inline_data = c->inline_bytes },
			.qp_type = IBV_QPT_RC,
		};

		qp = c->dev->nic.v->ibv_create_qp(c->dev->nic.pd, &init);
		if (!qp && c->inline_bytes) {
			c->inline_bytes = 0;
		} else if (!qp && (*sq > EP_NET_LEAST_WR || *rq > EP_NET_LEAST_WR)) {
			*sq = (uint32_t)ep_max_u64(*sq / 2, EP_NET_LEAST_WR);
			*rq = *rq > EP_NET_LEAST_WR ? (uint32_t)ep_max_u64(*rq / 2, EP_NET_LEAST_WR)
						    : *rq;
		} else if (!qp) {
			break;
		}
	}
	return qp;
}

static ncclResult_t ep_net_qp_init(struct ep_net_comm *c, struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.pkey_index = (uint16_t)c->dev->nic.pkey_index,
		.port_num = (uint8_t)c->dev->nic.port,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
	};
	int error = c->dev->nic.v->ibv_modify_qp(
		qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);

	return error ? ep_fail(ncclSystemError, "%s: a queue pair cannot be initialised: %s",
			       c->dev->label, strerror(error))
		     : ncclSuccess;
}

/* What the NIC can with its queue pairs as they are now; nothing where it does not say. */
static void ep_net_ece_query(struct ep_net_comm *c)
{
	const struct ep_verbs *v = c->dev->nic.v;
	struct ibv_ece ece = { 0 };

	memset(&c->ece, 0, sizeof(c->ece));
	if (ep_net_env()->ece && v->ibv_query_ece && v->ibv_set_ece &&
	    v->ibv_query_ece(c->qp[0].qp, &ece) == 0) {
		c->ece = (struct ep_net_ece){ 1, ece.vendor_id, ece.options, ece.comp_mask };
	}
}

/* Before a queue pair learns its peer. A NIC that refuses goes on with the standard. */
static void ep_net_ece_set(struct ep_net_comm *c, struct ibv_qp *qp, const struct ep_net_ece *to)
{
	struct ibv_ece ece = { .vendor_id = to->vendor,
			       .options = to->options,
			       .comp_mask = to->mask };
	int error;

	if (!c->ece.there || !to->there) {
		return;
	}
	error = c->dev->nic.v->ibv_set_ece(qp, &ece);
	if (error) {
		EP_INFO(EP_LOG_NET, "%s: the NIC refuses what both ends can (0x%x): %s",
			c->dev->label, to->options, strerror(error));
	}
}

static ncclResult_t ep_net_comm_queues(struct ep_net_comm *c)
{
	const struct ibv_device_attr *attr = &c->dev->nic.attr;
	uint32_t most = (uint32_t)ep_max_u64((uint64_t)attr->max_qp_wr, EP_NET_LEAST_WR);
	uint64_t cqes;

	c->inline_bytes = EP_NET_INLINE;
	c->sq_depth = (uint32_t)ep_min_u64(EP_NET_SQ_DEPTH, most);
	c->rq_depth = c->sender ? 1 : (uint32_t)ep_min_u64(EP_NET_RQ_DEPTH, most);
	cqes = (uint64_t)c->nqps * (c->sq_depth + c->rq_depth) + EP_NET_FLUSHES;
	c->cq = c->dev->nic.v->ibv_create_cq(
		c->dev->nic.ctx, (int)ep_min_u64(cqes, (uint64_t)attr->max_cqe), NULL, NULL, 0);
	if (!c->cq) {
		return ep_fail(ncclSystemError, "%s: no completion queue: %s", c->dev->label,
			       strerror(errno));
	}
	c->qp = calloc(c->nqps, sizeof(*c->qp));
	if (!c->qp) {
		return ep_fail(ncclSystemError, "out of host memory for a connection");
	}
	for (uint32_t i = 0; i < c->nqps; i++) {
		c->qp[i].qp = ep_net_qp_new(c, &c->sq_depth, &c->rq_depth);
		if (!c->qp[i].qp) {
			return ep_fail(ncclSystemError,
				       "%s: queue pair %u of %u cannot be made: %s "
				       "(NCCL_IB_QPS_PER_CONNECTION is %d)",
				       c->dev->label, i, c->nqps, strerror(errno),
				       ep_net_env()->qps);
		}
		c->qp[i].room = c->sq_depth;
		EP_CHECK(ep_net_qp_init(c, c->qp[i].qp));
	}
	ep_net_ece_query(c);
	return ncclSuccess;
}

ncclResult_t ep_net_comm_new(struct ep_net_dev *dev, bool sender, uint32_t nqps, int tc,
			     struct ep_net_comm **comm)
{
	const struct ep_ib_env *env = ep_net_env();
	struct ep_net_comm *c = calloc(1, sizeof(*c));
	ncclResult_t result;

	if (!c) {
		return ep_fail(ncclSystemError, "out of host memory for a connection");
	}
	c->fd = -1;
	c->sender = sender;
	c->dev = dev;
	c->nqps = nqps;
	c->flush_room = EP_NET_FLUSHES;
	memset(c->slot_request, 0xff, sizeof(c->slot_request)); /* EP_NET_NO_REQUEST */
	result = ep_net_dev_hold(dev);
	if (result != ncclSuccess) {
		free(c);
		return result;
	}
	c->end = dev->nic.end;
	c->end.psn = (uint32_t)ep_now_ns() & 0xffffff;
	c->tc = (uint8_t)(env->tc >= 0 ? env->tc : tc >= 0 ? tc : dev->nic.tc);
	if (!sender && env->fifo_tc >= 0) {
		c->tc = (uint8_t)env->fifo_tc;
	}
	c->split = env->split != 0;
	c->plain_limit = 1ull << dev->nic.log_max_msg;
	if (env->adaptive == 1 ||
	    (env->adaptive < 0 && c->end.link_layer != IBV_LINK_LAYER_ETHERNET)) {
		c->plain_limit = ep_min_u64(c->plain_limit, (uint64_t)env->ar_threshold);
	}
	EP_CHECK_GOTO(ep_net_comm_memory(c), err_free);
	EP_CHECK_GOTO(ep_net_comm_requests(c), err_free);
	EP_CHECK_GOTO(ep_net_comm_queues(c), err_free);
	*comm = c;
	return ncclSuccess;

err_free:
	ep_net_comm_free(c);
	return result;
}

void ep_net_comm_free(struct ep_net_comm *c)
{
	const struct ep_verbs *v;

	if (!c) {
		return;
	}
	v = c->dev->nic.v;
	for (uint32_t i = 0; c->qp && i < c->nqps; i++) {
		if (c->qp[i].qp) {
			v->ibv_destroy_qp(c->qp[i].qp);
		}
	}
	if (c->flush_qp) {
		v->ibv_destroy_qp(c->flush_qp);
	}
	if (c->cq) {
		v->ibv_destroy_cq(c->cq);
	}
	if (c->shared_mr) {
		v->ibv_dereg_mr(c->shared_mr);
	}
	if (c->fd >= 0) {
		close(c->fd);
	}
	ep_net_dev_drop(c->dev);
	free(c->qp);
	free(c->request);
	free(c->shared);
	free(c);
}

/* ---- connecting ---- */

static ncclResult_t ep_net_qp_to_rtr(struct ep_net_comm *c, struct ibv_qp *qp,
				     const struct ep_nic_end *to, uint32_t qpn)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = (enum ibv_mtu)ep_min_u64(c->end.mtu, to->mtu),
		.dest_qp_num = qpn,
		.rq_psn = (to->psn + qpn) & 0xffffff,
		.max_dest_rd_atomic = 1,
		.min_rnr_timer = EP_NET_RNR_TIMER,
		.ah_attr = { .dlid = ep_nic_path_lid(&c->end, to),
			     .sl = (uint8_t)ep_net_env()->sl,
			     .port_num = (uint8_t)c->dev->nic.port },
	};
	char text[EP_GID_TEXT];
	int error;

	if (ep_nic_path_global(&c->end, to)) {
		attr.ah_attr.is_global = 1;
		memcpy(attr.ah_attr.grh.dgid.raw, to->gid, sizeof(to->gid));
		attr.ah_attr.grh.sgid_index = (uint8_t)c->dev->nic.gid_index;
		attr.ah_attr.grh.hop_limit = EP_NET_HOPS;
		attr.ah_attr.grh.traffic_class = c->tc;
	}
	error = c->dev->nic.v->ibv_modify_qp(
		qp, &attr,
		IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
			IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
	return error ? ep_fail(ncclSystemError,
			       "%s does not find the way to %s of %s:%u, LID %u: %s", c->dev->label,
			       ep_gid_print(to->gid, text), to->name, to->port, attr.ah_attr.dlid,
			       strerror(error))
		     : ncclSuccess;
}

static ncclResult_t ep_net_qp_connect(struct ep_net_comm *c, struct ibv_qp *qp,
				      const struct ep_nic_end *to, uint32_t qpn)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.timeout = (uint8_t)ep_net_env()->timeout,
		.retry_cnt = (uint8_t)ep_net_env()->retry_cnt,
		.rnr_retry = EP_NET_RNR_RETRY,
		.sq_psn = (c->end.psn + qp->qp_num) & 0xffffff,
		.max_rd_atomic = 1,
	};
	int error;

	EP_CHECK(ep_net_qp_to_rtr(c, qp, to, qpn));
	error = c->dev->nic.v->ibv_modify_qp(qp, &attr,
					     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
						     IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
						     IBV_QP_MAX_QP_RD_ATOMIC);
	return error ? ep_fail(ncclSystemError, "%s: a queue pair cannot be made ready to send: %s",
			       c->dev->label, strerror(error))
		     : ncclSuccess;
}

ncclResult_t ep_net_receives_post(struct ep_net_comm *c, uint32_t qp, uint32_t n)
{
	struct ibv_recv_wr wr[EP_NET_RECEIVES_TOGETHER], *bad;
	int error = 0;

	while (n && !error) {
		uint32_t some = (uint32_t)ep_min_u64(n, EP_NET_RECEIVES_TOGETHER);

		for (uint32_t i = 0; i < some; i++) {
			wr[i] = (struct ibv_recv_wr){ .wr_id = EP_NET_WR_ID(EP_NET_WORK_RECEIVE, qp,
									    0, 0),
						      .next = i + 1 < some ? &wr[i + 1] : NULL };
		}
		error = ibv_post_recv(c->qp[qp].qp, wr, &bad);
		n -= some;
	}
	return error ? ep_net_comm_fail(c, ncclSystemError, qp, "receives cannot be posted: %s",
					strerror(error))
		     : ncclSuccess;
}

ncclResult_t ep_net_comm_connect(struct ep_net_comm *c, const struct ep_net_peer *peer)
{
	struct ep_reason why = { "" };

	c->remote_end = peer->end;
	c->remote_shared = peer->shared;
	c->remote_rkey = peer->rkey;
	if (!ep_nic_path_check(&c->end, &peer->end, &why)) {
		return ep_fail(ncclInvalidUsage, "%s with %s:%u of %s: %.200s", c->dev->label,
			       peer->end.name, peer->end.port, c->peer, why.text);
	}
	for (uint32_t i = 0; i < c->nqps; i++) {
		c->qp[i].remote = peer->qpn[i];
		ep_net_ece_set(c, c->qp[i].qp, &peer->ece);
		EP_CHECK(ep_net_qp_connect(c, c->qp[i].qp, &peer->end, peer->qpn[i]));
		if (!c->sender) {
			EP_CHECK(ep_net_receives_post(c, i, c->rq_depth));
		}
	}
	/* The receiver's NIC has heard of the sender's now, and says what is left. */
	if (!c->sender && c->ece.there && peer->ece.there) {
		ep_net_ece_query(c);
	} else if (!c->sender) {
		c->ece.there = 0;
	}
	return ncclSuccess;
}

ncclResult_t ep_net_flush_open(struct ep_net_comm *c)
{
	uint32_t sq = EP_NET_FLUSHES, rq = 1;
	struct ibv_qp *qp = ep_net_qp_new(c, &sq, &rq);
	ncclResult_t result;

	if (!qp) {
		return ep_fail(ncclSystemError, "%s: no queue pair for flushes: %s", c->dev->label,
			       strerror(errno));
	}
	EP_CHECK_GOTO(ep_net_qp_init(c, qp), err_destroy);
	EP_CHECK_GOTO(ep_net_qp_connect(c, qp, &c->end, qp->qp_num), err_destroy);
	c->flush_qp = qp;
	return ncclSuccess;

err_destroy:
	c->dev->nic.v->ibv_destroy_qp(qp);
	return result;
}
