/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Flushes of GPU memory. Data that a NIC has written to a GPU is there when a read that the same
 * NIC makes afterwards has come back: PCIe lets no read pass writes. So a flush reads by each port
 * that data may have come from, over a queue pair of the port that is connected to itself.
 */
#include <errno.h>
#include <string.h>
#include "net/p2p.h"

/* ---- a port's queue pair for flushes ---- */

/* Makes the queue pair, with the address that the port has now: a connection keeps its first. */
static ncclResult_t flush_open(struct ep_net_local *port)
{
	struct ep_net_index index = port->index;
	struct ep_nic_end end = port->end;
	struct ep_rc_path rc_path = { .from = &end, .to = &end, .tc = port->tc, .sl = port->sl };
	struct ep_rc_room room = { .sq = EP_NET_FLUSH_DEPTH, .rq = 1 };
	char text[EP_NIC_ERROR_TEXT];
	ncclResult_t result;
	struct ibv_qp *qp;

	(void)ep_net_dev_address(port->dev, &end, &index);
	rc_path.gid_index = index.gid;
	qp = ep_net_queue_new(port->dev, index.pkey, port->cq, &room, EP_NET_ACCESS);
	if (!qp) {
		return ep_fail(ncclSystemError, "%s: no queue pair for flushes: %s",
			       port->dev->label, ep_nic_error_print(errno, text));
	}
	result = ep_net_queue_connect(port->dev, qp, &rc_path, qp->qp_num);
	if (result != ncclSuccess) {
		port->dev->nic.v->ibv_destroy_qp(qp);
		return result;
	}
	port->flush.qp = qp;
	port->flush.room = port->flush.depth = room.sq;
	return ncclSuccess;
}

void ep_net_flush_stop(struct ep_net_local *port)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	if (port->flush.qp) {
		(void)port->dev->nic.v->ibv_modify_qp(port->flush.qp, &attr, IBV_QP_STATE);
		port->flush.ended = true;
	}
}

bool ep_net_flush_restart(struct ep_net_local *port)
{
	if (port->flush.qp && port->flush.ended) {
		if (port->flush.room < port->flush.depth) {
			return false;
		}
		ep_net_flush_close(port); /* it is made when one is asked for */
	}
	port->flush.ended = false;
	return true;
}

void ep_net_flush_close(struct ep_net_local *port)
{
	if (port->flush.qp) {
		port->dev->nic.v->ibv_destroy_qp(port->flush.qp);
		port->flush.qp = NULL;
	}
}

/* ---- what it reads ---- */

static ncclResult_t flush_port(struct ep_net_comm *c, uint32_t local, uint32_t request)
{
	struct ep_net_local *l = &c->local[local];
	struct ep_net_request *r = &c->request[request];
	struct ibv_sge sge = { (uintptr_t)&c->shared->flushed, 1, l->shared_mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = EP_NET_WR_ID(EP_NET_WORK_FLUSH, EP_NET_WR_FLUSH_QP(local), 1, request),
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_RDMA_READ,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.rdma = { .remote_addr = r->flush.at, .rkey = r->flush.rkey[local] },
	};
	struct ibv_send_wr *bad;
	int error = ibv_post_send(l->flush.qp, &wr, &bad);

	if (error) {
		return ep_net_comm_fail(c, ncclSystemError, ep_net_port_qp(c, local),
					"a flush cannot be posted: %s", strerror(error));
	}
	l->flush.room--;
	r->flush.ports &= ~(1u << local);
	r->flush.reads |= 1u << local;
	return ncclSuccess;
}

void ep_net_flush_ended(struct ep_net_comm *c, uint32_t local, uint32_t request)
{
	struct ep_net_request *r = &c->request[request];

	/* (a device that is broken may still report what was given up) */
	if (r->flush.reads >> local & 1) {
		r->flush.reads &= ~(1u << local);
		r->left--;
		c->local[local].flush.room++;
	}
}

void ep_net_flushes_give_up(struct ep_net_comm *c, uint32_t local)
{
	for (uint32_t i = 0; c->pool.flushes && i < c->nrequests; i++) {
		ep_net_flush_ended(c, local, i);
	}
}

/*
 * The ports that data may come from. (The sender uses a path that is back before this end learns
 * that it does.)
 */
static uint32_t flush_ports(const struct ep_net_comm *c)
{
	uint32_t ports = 0;

	for (uint32_t i = 0; i < c->npaths; i++) {
		if (ep_net_path_lives(c, i)) {
			ports |= 1u << c->qp[i].local_port; /* (the first one of the path) */
		}
	}
	return ports;
}

ncclResult_t ep_net_flushes_push(struct ep_net_comm *c)
{
	uint32_t open = flush_ports(c);

	while (c->flushes.first != EP_NET_NO_REQUEST) {
		struct ep_net_request *r = &c->request[c->flushes.first];

		for (uint32_t p = 0; p < c->nlocals; p++) {
			if (!(r->flush.ports >> p & 1)) {
				continue;
			}
			if (!(open >> p & 1)) {
				/*
				 * (all that was received by a port has been waited for when it
				 * failed)
				 */
				r->flush.ports &= ~(1u << p);
				r->left--;
				continue;
			}
			if (!c->local[p].flush.qp) {
				EP_CHECK(flush_open(&c->local[p])); /* the port was away */
			}
			if (c->local[p].flush.room) {
				EP_CHECK(flush_port(c, p, c->flushes.first));
			}
		}
		if (r->flush.ports) {
			return ncclSuccess;
		}
		c->flushes.first = r->next;
	}
	return ncclSuccess;
}

/* By each port that data may come from. */
static ncclResult_t flush_post(struct ep_net_comm *c, const struct ep_net_mr *region,
			       const void *at, void **request)
{
	uint32_t ports = flush_ports(c), i;
	struct ep_net_request *r;

	/* (NULL would mean that there is nothing to wait for) */
	if (c->pool.flushes == EP_NET_FLUSHES) {
		return ep_fail(ncclInternalError, "more than %u flushes are under way",
			       EP_NET_FLUSHES);
	}
	for (uint32_t p = 0; p < c->nlocals; p++) {
		if (ports >> p & 1 && !c->local[p].flush.qp) {
			EP_CHECK(flush_open(&c->local[p]));
		}
	}
	c->counts->flushes++;
	i = ep_net_request_new(c, 0);
	r = &c->request[i];
	r->flush.at = (uintptr_t)at;
	memcpy(r->flush.rkey, region->rkey, sizeof(r->flush.rkey));
	r->flush.ports = ports;
	r->flush.reads = 0;
	r->left = (uint32_t)__builtin_popcount(ports);
	r->next = EP_NET_NO_REQUEST;
	if (c->flushes.first == EP_NET_NO_REQUEST) {
		c->flushes.first = i;
	} else {
		c->request[c->flushes.last].next = i;
	}
	c->flushes.last = i;
	EP_CHECK(ep_net_flushes_push(c));
	*request = ep_net_request_handle_of(c, i);
	return ncclSuccess;
}

/* The last of the receives that has data in GPU memory is what is read. */
static ncclResult_t flush_find(struct ep_net_comm *c, int n, void **data, const int *sizes,
			       void **mr, void **request)
{
	const struct ep_net_mr *region, *last = NULL;
	const void *at = NULL;

	for (int k = 0; k < n; k++) {
		if (sizes[k] <= 0) {
			continue;
		}
		EP_CHECK(ep_net_mr_find(c->nic, mr[k], data[k], (size_t)sizes[k], &region));
		if (region->gpu) {
			last = region;
			at = data[k];
		}
	}
	return last ? flush_post(c, last, at, request) : ncclSuccess;
}

ncclResult_t ep_net_iflush(void *recv_comm, int n, void **data, int *sizes, void **mr,
			   void **request)
{
	struct ep_net_comm *c;
	ncclResult_t result;

	*request = NULL;
	EP_CHECK(ep_net_recv_get(recv_comm, n, &c));
	ep_net_enter(c);
	result = c->failed.code == ncclSuccess ? flush_find(c, n, data, sizes, mr, request)
					       : ep_net_comm_failed(c);
	ep_net_leave(c);
	return result;
}
