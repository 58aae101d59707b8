/* SPDX-License-Identifier: Apache-2.0 */
/* Progress of a mesh, at each call of NCCL. */
#include "core/log.h"
#include "net/base/base.h"
#include "net/mesh/op.h"
#include "net/mesh/rma_post.h"
#include "net/mesh/rma_progress.h"

/* ---- completions ---- */

static ncclResult_t ep_net_send_done(struct ep_net_rma *rma, struct ep_net_port_ctx *port_ctx,
				     const struct ibv_wc *wc)
{
	struct ep_net_op *op = ep_net_op_at(rma, (uint32_t)wc->wr_id);
	struct ep_net_link *via = ep_net_op_via(rma, op), *link = op->link;

	port_ctx->cq_room++;
	via->room += EP_NET_OP_ID_WRS(wc->wr_id);
	op->left--;
	if (ep_net_op_done(op)) {
		ep_net_op_end(op);
	}
	EP_CHECK(ep_net_link_push(rma, link));
	return via == link ? ncclSuccess : ep_net_link_push(rma, via);
}

static ncclResult_t ep_net_wc_failed(struct ep_net_rma *rma, const struct ibv_wc *wc)
{
	struct ep_net_link *link = ep_net_op_via(rma, ep_net_op_at(rma, (uint32_t)wc->wr_id));
	char why[EP_NET_WC_TEXT];

	ep_net_dev_events(link->port_ctx->dev);
	ep_net_wc_print(wc, why);
	return ep_net_rma_lost(rma, link, ncclRemoteError, why);
}

/* Takes up completions of a port. *n: how many. */
static ncclResult_t ep_net_port_ctx_poll(struct ep_net_rma *rma, uint32_t port, int *n)
{
	const struct ibv_wc *bad = NULL;
	struct ibv_wc wc[EP_NET_POLL];

	*n = ibv_poll_cq(rma->port_ctx[port].cq, EP_NET_POLL, wc);
	if (*n < 0) {
		return ep_net_rma_fail(rma, ep_net_port_ctx_link(rma, port), ncclSystemError,
				       "the completion queue has failed");
	}
	for (int i = 0; i < *n; i++) {
		if (wc[i].status != IBV_WC_SUCCESS) {
			if (!bad || (bad->status == IBV_WC_WR_FLUSH_ERR &&
				     wc[i].status != IBV_WC_WR_FLUSH_ERR)) {
				bad = &wc[i];
			}
		} else {
			EP_CHECK(ep_net_send_done(rma, &rma->port_ctx[port], &wc[i]));
		}
	}
	return bad ? ep_net_wc_failed(rma, bad) : ncclSuccess;
}

/* Takes up completions of all ports. *all: how many. */
static ncclResult_t ep_net_rma_poll(struct ep_net_rma *rma, int *all)
{
	int n;

	*all = 0;
	for (uint32_t i = 0; i < rma->mesh->ends[rma->mesh->rank].n; i++) {
		if (rma->port_ctx[i].cq) {
			EP_CHECK(ep_net_port_ctx_poll(rma, i, &n));
			*all += n;
		}
	}
	return ncclSuccess;
}

/* ---- peers ---- */

static ncclResult_t ep_net_rma_peers_check(struct ep_net_rma *rma)
{
	ncclResult_t result = ep_net_mesh_check(rma->mesh);

	if (result != ncclSuccess) {
		ep_error_get(NULL, &rma->failed);
		__atomic_store_n(&rma->broken, 1, __ATOMIC_RELAXED);
	}
	return result;
}

/* See ep_net_poll_slow() in p2p_calls.c: the NIC alone reports late, or never. */
static ncclResult_t ep_net_rma_poll_slow(struct ep_net_rma *rma)
{
	uint32_t n = (uint32_t)rma->config.contexts * rma->mesh->nranks;
	uint64_t now = ep_now_ns();

	if (now - rma->checked < EP_NET_CHECK_NS) {
		return ncclSuccess;
	}
	rma->checked = now;
	for (uint32_t i = 0; i < rma->mesh->ends[rma->mesh->rank].n; i++) {
		struct ep_net_port_ctx *port_ctx = &rma->port_ctx[i];

		ep_net_dev_events(port_ctx->dev);
		if (__atomic_load_n(&port_ctx->cq_lost, __ATOMIC_RELAXED)) {
			return ep_net_rma_lost(rma, ep_net_port_ctx_link(rma, i), ncclSystemError,
					       "the NIC has lost completions: its queue has "
					       "overrun or failed");
		}
	}
	EP_CHECK(ep_net_rma_peers_check(rma));
	for (uint32_t i = 0; i < n; i++) {
		struct ep_net_link *link = &rma->link[i];
		int fd = rma->mesh->fd[link->rank];

		if (!link->pending || !link->qp) {
			continue;
		}
		if (__atomic_load_n(&link->port_ctx->dev->broken, __ATOMIC_RELAXED)) {
			return ep_net_rma_lost(rma, link, ncclSystemError,
					       "the connection is lost");
		}
		if (!link->gone_since && fd >= 0 && ep_net_gone(fd)) {
			link->gone_since = now;
		}
		if (link->gone_since && now - link->gone_since >= EP_NET_GRACE_NS) {
			return ep_net_rma_fail(rma, link, ncclRemoteError,
					       "the peer has closed the connection or has ended, "
					       "%u requests are under way here: see its log",
					       link->pending);
		}
	}
	return ncclSuccess;
}

ncclResult_t ep_net_rma_progress(struct ep_net_rma *rma)
{
	int all;

	EP_CHECK(ep_net_rma_failed(rma));
	EP_CHECK(ep_net_rma_poll(rma, &all));
	if (all == 0) {
		return ++rma->idle % EP_NET_IDLE ? ncclSuccess : ep_net_rma_poll_slow(rma);
	}
	return rma->starved ? ep_net_starved_push(rma) : ncclSuccess;
}

ncclResult_t ep_net_op_test(void *request, int *done)
{
	enum ep_net_kind kind;
	struct ep_net_rma *rma = ep_net_request_owner(EP_NET_OP, request, &kind);
	uint32_t number = ep_net_request_number(request);
	struct ep_net_op *op;

	*done = 0;
	if (!rma || kind != EP_NET_RMA || number >= rma->nops) {
		return ep_net_request_fail(request);
	}
	op = ep_net_op_at(rma, number);
	if (!ep_net_request_is(request, op->use)) {
		return ep_net_request_fail(request);
	}
	if (!ep_net_op_done(op)) {
		EP_CHECK(ep_net_rma_progress(rma));
	}
	if (ep_net_op_done(op)) {
		*done = 1;
		ep_net_op_free(rma, number);
	}
	return ncclSuccess;
}
