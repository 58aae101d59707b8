/* SPDX-License-Identifier: Apache-2.0 */
/* Takes up completions of a mesh. */
#include "core/log.h"
#include "net/base/net_queue.h"
#include "net/mesh/rma.h"

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

ncclResult_t ep_net_rma_poll(struct ep_net_rma *rma, int *all)
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
