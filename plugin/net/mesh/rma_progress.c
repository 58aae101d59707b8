/* SPDX-License-Identifier: Apache-2.0 */
/* Progress of a mesh, at each call of NCCL. */
#include "core/log.h"
#include "net/base/net_queue.h"
#include "net/mesh/rma.h"

static ncclResult_t ep_net_rma_peers_check(struct ep_net_rma *rma)
{
	ncclResult_t result = ep_net_mesh_check(rma->mesh);

	if (result != ncclSuccess) {
		ep_error_get(NULL, &rma->failed);
		__atomic_store_n(&rma->broken, 1, __ATOMIC_RELAXED);
	}
	return result;
}

/* See ep_net_poll_slow() in progress.c: the NIC alone reports late, or never. */
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
	uint32_t number = ep_net_op_number(request);
	struct ep_net_rma *rma = NULL;
	ncclResult_t result = ncclSuccess;
	struct ep_net_op *op = NULL;
	void *handle;

	*done = 0;
	if (ep_net_kind_of(request) == EP_NET_OP) {
		rma = ep_net_handle_at(ep_net_request_comm(request), &handle);
	}
	if (rma && ep_net_kind_of(handle) == EP_NET_RMA && number < rma->nops) {
		op = ep_net_op_at(rma, number);
	}
	if (!op || op->use != ep_net_op_use(request) || !(op->use & 1)) {
		return ep_fail(ncclInvalidArgument,
			       "%p is no request, or one that was tested to its end", request);
	}
	if (!ep_net_op_done(op)) {
		result = ep_net_rma_progress(rma);
	}
	if (result == ncclSuccess && ep_net_op_done(op)) {
		*done = 1;
		ep_net_op_free(rma, number);
	}
	return result;
}
