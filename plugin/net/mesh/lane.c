/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lanes: links of collectives to one rank, by different ports. What is under way on one that fails goes over
 * the others, in the way of route.c: both ends stop their queue pairs of the lane, tell each other over TCP
 * how many messages have come by it, and the rest is sent again over another lane. So each message comes
 * once, and nothing comes late. A lane that has failed stays closed.
 *
 * That every message tells its receiver is what makes it possible: signals of GIN and RMA are atomics, of
 * which nobody but the NIC knows whether they were executed.
 */
#include <stdlib.h>
#include "core/log.h"
#include "net/link/handshake.h"
#include "net/mesh/rma.h"

ncclResult_t ep_net_lanes_new(struct ep_net_rma *rma)
{
	uint32_t n = (uint32_t)rma->config.contexts * rma->mesh->nranks;

	pthread_mutex_init(&rma->lock, NULL);
	rma->ctrl = calloc(rma->mesh->nranks, sizeof(*rma->ctrl));
	for (uint32_t i = 0; rma->ctrl && i < n; i++) {
		struct ep_net_link *link = &rma->link[i];

		link->sq = link->room;
		link->flight = link->qp ? calloc(link->sq, sizeof(*link->flight)) : NULL;
		if (link->qp && !link->flight) {
			return ep_fail(ncclSystemError, "out of host memory for %u queue pairs", n);
		}
	}
	return rma->ctrl ? ncclSuccess
			 : ep_fail(ncclSystemError, "out of host memory for %u ranks",
				   rma->mesh->nranks);
}

void ep_net_lanes_free(struct ep_net_rma *rma)
{
	uint32_t n = (uint32_t)rma->config.contexts * rma->mesh->nranks;

	for (uint32_t i = 0; rma->link && i < n; i++) {
		free(rma->link[i].flight);
	}
	free(rma->ctrl);
}

struct ep_net_link *ep_net_lane_open(const struct ep_net_rma *rma, struct ep_net_link *link)
{
	uint32_t contexts = (uint32_t)rma->config.contexts, nranks = rma->mesh->nranks;
	uint32_t first = (uint32_t)(link - rma->link) / nranks;

	for (uint32_t i = 0; rma->ctrl && i < contexts; i++) {
		struct ep_net_link *lane = &rma->link[(first + i) % contexts * nranks + link->rank];

		if (lane->lane == EP_NET_LANE_OPEN) {
			return lane;
		}
	}
	return rma->ctrl ? NULL : link;
}

struct ep_net_link *ep_net_lane_own(const struct ep_net_rma *rma, uint32_t port)
{
	for (uint32_t i = port; i < (uint32_t)rma->config.contexts;
	     i += rma->mesh->ends[rma->mesh->rank].n) {
		struct ep_net_link *link = &rma->link[i * rma->mesh->nranks + rma->mesh->rank];

		if (link->lane == EP_NET_LANE_OPEN) {
			return link;
		}
	}
	return NULL;
}

bool ep_net_lane_old(const struct ep_net_link *via, const struct ep_net_port_ctx *port_ctx,
		     const struct ibv_wc *wc)
{
	return via->drained || via->port_ctx != port_ctx || via->qp->qp_num != wc->qp_num;
}

/* ---- closing ---- */

void ep_net_lane_stop(struct ep_net_rma *rma, struct ep_net_link *link)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	/* (a device that is broken says no to everything, and does nothing) */
	(void)link->port_ctx->dev->nic.v->ibv_modify_qp(link->qp, &attr, IBV_QP_STATE);
	link->lane = EP_NET_LANE_CLOSING;
	link->since = ep_now_ns();
	rma->closing++;
}

/* Nobody can flush any more what comes by a port: so nothing comes by it. */
static ncclResult_t ep_net_lanes_follow(struct ep_net_rma *rma, const struct ep_net_link *own)
{
	uint32_t n = (uint32_t)rma->config.contexts * rma->mesh->nranks;

	for (uint32_t i = 0; i < n && !ep_net_lane_own(rma, own->port); i++) {
		if (rma->link[i].port_ctx == own->port_ctx) {
			EP_CHECK(ep_net_lane_failed(rma, &rma->link[i],
						    "this end of the port has failed"));
		}
	}
	return ncclSuccess;
}

ncclResult_t ep_net_lane_failed(struct ep_net_rma *rma, struct ep_net_link *link, const char *why)
{
	const struct ep_nic_end *from, *to = &rma->mesh->ends[link->rank].port[link->remote_port];
	struct ep_net_dev *dev = link->port_ctx->dev;
	const struct ep_net_link *other;

	if (link->lane != EP_NET_LANE_OPEN) {
		return ncclSuccess;
	}
	link->lane = EP_NET_LANE_CLOSED;
	other = ep_net_lane_open(rma, link);
	if (!other) {
		link->lane = EP_NET_LANE_OPEN;
		return ep_net_rma_fail(rma, link, ncclRemoteError, "%s", why);
	}
	ep_net_lane_stop(rma, link);
	from = &rma->mesh->ends[rma->mesh->rank].port[link->port];
	/* (one line for a port is enough) */
	ep_log(link->port_ctx->failed ? EP_LOG_INFO : EP_LOG_WARN, EP_LOG_NET,
	       "%s:%d QP 0x%06x to %s %s:%u: %s%s; gathers go on over %s", from->name, from->port,
	       link->qp->qp_num, rma->mesh->who[link->rank], to->name, to->port, why,
	       ep_net_dev_up(dev, 0) ? "" : "; the port is down, or the device has failed",
	       other->port_ctx->dev->label);
	link->port_ctx->failed = true;
	return link->rank == rma->mesh->rank ? ep_net_lanes_follow(rma, link) : ncclSuccess;
}
