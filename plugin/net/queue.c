/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs of the plugin, whoever posts to them: made, connected, and described when they fail.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "net/net.h"
#include "rdma/rdma.h"

#define EP_NET_LEAST_WR 32u
#define EP_NET_MAX_SL 15

ncclResult_t ep_net_cq_new(struct ep_net_dev *dev, uint64_t cqes, uint32_t *lost,
			   struct ibv_cq **cq)
{
	const struct ep_nic *nic = &dev->nic;
	char text[EP_NIC_ERROR_TEXT];

	cqes = ep_min_u64(cqes, (uint64_t)nic->attr.max_cqe);
	/* (its context is what an event of it sets) */
	*cq = nic->v->ibv_create_cq(nic->ctx, (int)cqes, lost, NULL, 0);
	return *cq ? ncclSuccess
		   : ep_fail(ncclSystemError, "%s: no completion queue: %s", dev->label,
			     ep_nic_error_print(errno, text));
}

struct ibv_qp *ep_net_queue_new(struct ep_net_dev *dev, uint32_t pkey_index, struct ibv_cq *cq,
				struct ep_rc_room *room, unsigned int access)
{
	struct ibv_qp *qp = ep_rc_qp_create(&dev->nic, cq, EP_NET_LEAST_WR, room);
	int error = qp ? ep_rc_qp_init(&dev->nic, ep_net_env(), qp, pkey_index, access) : 0;

	if (error) {
		dev->nic.v->ibv_destroy_qp(qp);
		errno = error;
		qp = NULL;
	}
	return qp;
}

ncclResult_t ep_net_pin(struct ep_net_dev *dev, void *memory, size_t bytes, unsigned int access,
			struct ibv_mr **mr)
{
	char text[EP_NIC_ERROR_TEXT];

	*mr = ep_verbs_reg_mr(dev->nic.v, dev->nic.pd, memory, bytes, access);
	return *mr ? ncclSuccess
		   : ep_fail(ncclSystemError, "%s: %zu bytes cannot be registered: %s", dev->label,
			     bytes, ep_nic_error_print(errno, text));
}

uint8_t ep_net_traffic_class(const struct ep_net_dev *dev, int tc)
{
	const struct ep_ib_env *env = ep_net_env();

	return (uint8_t)(env->tc >= 0 ? env->tc : tc >= 0 ? tc : dev->nic.tc);
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

int ep_net_queue_try(struct ep_net_dev *dev, struct ibv_qp *qp, const struct ep_rc_path *path,
		     uint32_t remote)
{
	int error = ep_rc_qp_to_rtr(&dev->nic, ep_net_env(), qp, path, remote);

	return error ? error : ep_rc_qp_to_rts(&dev->nic, ep_net_env(), qp, path);
}

ncclResult_t ep_net_queue_connect(struct ep_net_dev *dev, struct ibv_qp *qp,
				  const struct ep_rc_path *path, uint32_t remote)
{
	const struct ep_nic_end *to = path->to;
	int error = ep_rc_qp_to_rtr(&dev->nic, ep_net_env(), qp, path, remote);
	char text[EP_GID_TEXT], ece[EP_RC_ECE_TEXT];

	if (error) {
		ep_net_dev_events(dev); /* the port may be down since */
		return ep_fail(ncclSystemError,
			       "%s does not find the path to %s of %s:%u, LID %u: %s%s%s%s",
			       dev->label, ep_gid_print(to->gid, text), to->name, to->port,
			       ep_nic_path_lid(path->from, to), strerror(error),
			       ep_rc_ece_print(path->ece.options, path->ece_agreed, ece),
			       path->to_down ? "; that port was down" : "", ep_net_dev_print(dev));
	}
	error = ep_rc_qp_to_rts(&dev->nic, ep_net_env(), qp, path);
	return error ? ep_fail(ncclSystemError, "%s: a queue pair cannot be made ready to send: %s",
			       dev->label, strerror(error))
		     : ncclSuccess;
}

bool ep_net_status_blames_path(enum ibv_wc_status status)
{
	return status == IBV_WC_RETRY_EXC_ERR || status == IBV_WC_WR_FLUSH_ERR ||
	       status == IBV_WC_LOC_QP_OP_ERR || status == IBV_WC_REM_OP_ERR ||
	       status == IBV_WC_REM_ABORT_ERR || status == IBV_WC_RESP_TIMEOUT_ERR ||
	       status == IBV_WC_FATAL_ERR || status == IBV_WC_GENERAL_ERR;
}

const char *ep_net_which_print(const struct ep_net_which *which, char text[EP_NET_WHICH])
{
	const struct ep_nic_end *end = which->end, *remote = which->remote;
	char mine[EP_GID_TEXT], theirs[EP_GID_TEXT];

	snprintf(text, EP_NET_WHICH, "%s:%d QP 0x%06x (%s) %s %s %s:%u QP 0x%06x (%s)", end->name,
		 end->port, which->qpn, ep_gid_print(end->gid, mine), which->toward, which->peer,
		 remote->name, remote->port, which->remote_qpn, ep_gid_print(remote->gid, theirs));
	return text;
}

const char *ep_net_dev_print(const struct ep_net_dev *dev)
{
	return ep_net_dev_broken(dev) ? "; the device reports a fatal error"
	       : __atomic_load_n(&dev->port_down, __ATOMIC_RELAXED)
		       ? "; the port is down: see the cable and the switch"
		       : "";
}

const char *ep_net_wc_print(const struct ibv_wc *wc, char text[EP_NET_WC_TEXT])
{
	const struct ep_syndrome *s = ep_syndrome_find(ep_syndrome_of_status(wc->status));

	snprintf(text, EP_NET_WC_TEXT, "%s (status %d, vendor 0x%02x)%s%s",
		 s ? s->text : "unknown failure", (int)wc->status, wc->vendor_err,
		 s && s->next ? ": " : "", s && s->next ? s->next : "");
	return text;
}
