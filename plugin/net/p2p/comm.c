/* SPDX-License-Identifier: Apache-2.0 */
/* Makes a connection, with its memory and requests, and ends it. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/log.h"
#include "net/base/plugin.h"
#include "net/p2p/comm.h"
#include "net/p2p/comm_qp.h"
#include "net/p2p/counts.h"
#include "net/p2p/ctrl.h"
#include "net/p2p/net_paths.h"

/* ---- making ---- */

static ncclResult_t ep_net_comm_memory(struct ep_net_comm *c)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), bytes = ep_round_up(sizeof(*c->shared), page);

	c->shared = aligned_alloc(page, bytes);
	if (!c->shared) {
		return ep_fail(ncclSystemError, "out of host memory for a connection");
	}
	memset(c->shared, 0, bytes);
	for (uint32_t i = 0; i < c->nlocals; i++) {
		/* In order: what is polled must not be there before what it announces. */
		EP_CHECK(ep_net_pin(c->local[i].dev, c->shared, bytes,
				    IBV_ACCESS_LOCAL_WRITE | EP_NET_ACCESS,
				    &c->local[i].shared_mr));
	}
	return ncclSuccess;
}

static ncclResult_t ep_net_comm_requests(struct ep_net_comm *c)
{
	uint32_t use = ep_net_use_first();

	c->flush_first = c->flush_last = EP_NET_NO_REQUEST;
	c->nrequests = c->sender ? EP_NET_SENDS : EP_NET_GROUPS + EP_NET_FLUSHES;
	c->request = calloc(c->nrequests, sizeof(*c->request));
	if (c->path && c->sender) {
		c->again = calloc((size_t)c->nrequests * c->nqps, sizeof(*c->again));
	}
	if (!c->request || (c->path && c->sender && !c->again)) {
		return ep_fail(ncclSystemError, "out of host memory for a connection");
	}
	for (uint32_t i = 0; i < c->nrequests; i++) {
		c->request[i].next = i + 1 < c->nrequests ? i + 1 : EP_NET_NO_REQUEST;
		c->request[i].use = use;
	}
	return ncclSuccess;
}

static void ep_net_comm_ports(struct ep_net_comm *c, const struct ep_net_class *class)
{
	const struct ep_ib_env *env = ep_net_env();

	c->nlocals = (uint32_t)c->nic->nports;
	c->plain_limit = UINT64_MAX;
	for (uint32_t i = 0; i < c->nlocals; i++) {
		struct ep_net_local *l = &c->local[i];
		const struct ep_nic *nic;

		l->dev = c->nic->dev[i];
		nic = &l->dev->nic;
		l->end = nic->end;
		l->gid_index = nic->gid_index;
		l->end.psn = (uint32_t)ep_now_ns() & 0xffffff;
		l->tc = ep_net_traffic_class(l->dev, class->tc);
		l->sl = ep_net_service_level(&l->end, class->sl);
		if (!c->sender && env->fifo_tc >= 0) {
			l->tc = (uint8_t)env->fifo_tc;
		}
		c->plain_limit = ep_min_u64(c->plain_limit, 1ull << nic->log_max_msg);
		if (env->adaptive == 1 ||
		    (env->adaptive < 0 && l->end.link_layer != IBV_LINK_LAYER_ETHERNET)) {
			c->plain_limit = ep_min_u64(c->plain_limit, (uint64_t)env->ar_threshold);
		}
	}
	c->split = env->split != 0;
}

/* Makes what several paths need beyond queue pairs. */
static ncclResult_t ep_net_comm_paths(struct ep_net_comm *c)
{
	pthread_mutex_init(&c->lock, NULL);
	c->nopen_paths = c->npaths;
	if (c->npaths > 1) {
		c->path = calloc(c->npaths, sizeof(*c->path));
		c->ctrl = calloc(1, sizeof(*c->ctrl));
		if (!c->path || !c->ctrl) {
			return ep_fail(ncclSystemError, "out of host memory for a connection");
		}
	}
	return ncclSuccess;
}

ncclResult_t ep_net_comm_new(const struct ep_net_nic *nic, bool sender, uint32_t npaths,
			     uint32_t nqps, const struct ep_net_class *class,
			     struct ep_net_comm **comm)
{
	struct ep_net_comm *c = calloc(1, sizeof(*c));
	ncclResult_t result;

	if (!c) {
		return ep_fail(ncclSystemError, "out of host memory for a connection");
	}
	c->fd = -1;
	c->sender = sender;
	c->nic = nic;
	c->npaths = npaths;
	c->nqps = nqps;
	c->counts = &c->own_counts;
	memset(c->slot_request, 0xff, sizeof(c->slot_request)); /* EP_NET_NO_REQUEST */
	result = ep_net_nic_hold(nic);
	if (result != ncclSuccess) {
		free(c);
		return result;
	}
	ep_net_comm_ports(c, class);
	EP_CHECK_GOTO(ep_net_comm_paths(c), err_free);
	EP_CHECK_GOTO(ep_net_comm_memory(c), err_free);
	EP_CHECK_GOTO(ep_net_comm_requests(c), err_free);
	EP_CHECK_GOTO(ep_net_qps_new(c), err_free);
	*comm = c;
	return ncclSuccess;

err_free:
	ep_net_comm_free(c);
	return result;
}

ncclResult_t ep_net_comm_open(struct ep_net_comm *c)
{
	enum ep_net_kind kind = c->sender ? EP_NET_SEND : EP_NET_RECV;
	ncclResult_t result;

	EP_CHECK(ep_net_handle_new(kind, c, &c->handle));
	ep_net_counts_open(c);
	result = ep_net_paths_async_add(c);
	if (result != ncclSuccess) {
		ep_net_handle_drop(kind, c->handle);
	}
	return result;
}

/* ---- ending ---- */

static void ep_net_local_free(struct ep_net_local *port)
{
	const struct ep_verbs *v = port->dev->nic.v;

	if (port->flush_qp) {
		v->ibv_destroy_qp(port->flush_qp);
	}
	if (port->cq) {
		v->ibv_destroy_cq(port->cq);
	}
	if (port->shared_mr) {
		v->ibv_dereg_mr(port->shared_mr);
	}
}

void ep_net_comm_free(struct ep_net_comm *c)
{
	if (!c) {
		return;
	}
	if (c->path) {
		ep_net_paths_close(c);
	}
	for (uint32_t i = 0; c->qp && i < c->nqps; i++) {
		if (c->qp[i].qp) {
			c->local[c->qp[i].local_port].dev->nic.v->ibv_destroy_qp(c->qp[i].qp);
		}
		free(c->qp[i].part);
	}
	for (uint32_t i = 0; i < c->nlocals; i++) {
		ep_net_local_free(&c->local[i]);
	}
	if (c->fd >= 0) {
		close(c->fd);
	}
	ep_net_counts_close(c);
	ep_net_nic_drop(c->nic);
	pthread_mutex_destroy(&c->lock);
	free(c->ctrl);
	free(c->path);
	free(c->again);
	free(c->open_qp);
	free(c->qp);
	free(c->request);
	free(c->shared);
	free(c);
}

/* ---- connecting ---- */

ncclResult_t ep_net_comm_connect(struct ep_net_comm *c, const struct ep_net_peer *peer)
{
	c->remote_shared = peer->shared;
	c->nremotes = peer->nremotes;
	memcpy(c->remote, peer->remote, peer->nremotes * sizeof(c->remote[0]));
	for (uint32_t i = 0; i < c->npaths; i++) {
		const struct ep_net_local *l = &c->local[i % c->nlocals];
		const struct ep_net_remote *f = &c->remote[i % c->nremotes];
		struct ep_reason why = { "" };

		if (!ep_nic_path_check(&l->end, &f->end, &why)) {
			return ep_fail(ncclInvalidUsage, "%s with %s:%u of %s: %.200s",
				       l->dev->label, f->end.name, f->end.port, c->peer, why.text);
		}
	}
	return ep_net_qps_connect(c, peer->qpn);
}

/* ---- for NCCL ---- */

ncclResult_t ep_net_reg(void *comm, const struct ep_net_memory *memory, void **mr)
{
	enum ep_net_kind kind = ep_net_kind_of(comm) == EP_NET_SEND ? EP_NET_SEND : EP_NET_RECV;
	const struct ep_net_comm *c = ep_net_handle_find(kind, comm);

	*mr = NULL;
	return c ? ep_net_memory_reg(c->nic, memory, mr) : ncclInvalidArgument;
}

static void ep_net_comm_close(void *object)
{
	ep_net_comm_free(object);
}

ncclResult_t ep_net_close_send(void *send_comm)
{
	return ep_net_handle_close(EP_NET_SEND, send_comm, ep_net_comm_close);
}

ncclResult_t ep_net_close_recv(void *recv_comm)
{
	return ep_net_handle_close(EP_NET_RECV, recv_comm, ep_net_comm_close);
}
