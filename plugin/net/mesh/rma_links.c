/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs of a mesh. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/log.h"
#include "net/base/base.h"
#include "net/mesh/rma_links.h"

#define EP_NET_LINK_SQ 256u
#define EP_NET_LINK_CQ 65536u

static bool ep_net_link_wanted(const struct ep_net_rma *rma, uint32_t rank)
{
	uint32_t stride = (uint32_t)rma->config.stride;

	return rank % stride == rma->mesh->rank % stride;
}

/* How many links go by a port, with all contexts that do. */
static uint32_t ep_net_port_ctx_links(const struct ep_net_rma *rma, uint32_t port)
{
	uint32_t contexts = (uint32_t)rma->config.contexts;
	uint32_t ports = rma->mesh->ends[rma->mesh->rank].n;

	return rma->mesh->nranks * ((contexts + ports - 1 - port) / ports);
}

static ncclResult_t ep_net_rma_memory(struct ep_net_rma *rma)
{
	int tc = rma->config.tc >= 0 ? rma->config.tc : rma->mesh->tc;
	size_t bytes = (size_t)sysconf(_SC_PAGESIZE);

	rma->scratch = aligned_alloc(bytes, bytes);
	rma->link = calloc((size_t)rma->config.contexts * rma->mesh->nranks, sizeof(*rma->link));
	if (!rma->scratch || !rma->link) {
		return ep_fail(ncclSystemError, "out of host memory for %d contexts with %u ranks",
			       rma->config.contexts, rma->mesh->nranks);
	}
	memset(rma->scratch, 0, bytes);
	for (uint32_t i = 0; i < rma->mesh->ends[rma->mesh->rank].n; i++) {
		struct ep_net_port_ctx *port_ctx = &rma->port_ctx[i];

		port_ctx->dev = rma->mesh->dev[i];
		port_ctx->tc = ep_net_traffic_class(port_ctx->dev, tc);
		EP_CHECK(ep_net_pin(port_ctx->dev, rma->scratch, bytes, IBV_ACCESS_LOCAL_WRITE,
				    &port_ctx->scratch_mr));
	}
	return ncclSuccess;
}

static ncclResult_t ep_net_link_make(struct ep_net_rma *rma, struct ep_net_link *link,
				     struct ep_rc_room *room)
{
	struct ep_net_dev *dev = link->port_ctx->dev;
	unsigned int access = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
			      (dev->nic.atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0);
	char text[EP_NIC_ERROR_TEXT];

	link->qp = ep_net_queue_new(dev, link->port_ctx->cq, room, access);
	return link->qp ? ncclSuccess
			: ep_fail(ncclSystemError,
				  "%s: no queue pair for %s, one of %u ranks and %d contexts: %s",
				  dev->label, rma->mesh->who[link->rank], rma->mesh->nranks,
				  rma->config.contexts, ep_nic_error_print(errno, text));
}

/* The completion queue of a port for `n` links, which begin with this room. */
static ncclResult_t ep_net_port_ctx_make(struct ep_net_port_ctx *port_ctx, uint32_t n,
					 struct ep_rc_room *room)
{
	const struct ibv_device_attr *attr = &port_ctx->dev->nic.attr;
	uint64_t cqes;

	room->sq = (uint32_t)ep_min_u64(EP_NET_LINK_SQ, (uint64_t)attr->max_qp_wr);
	room->rq = 1;
	cqes = ep_min_u64((uint64_t)n * (room->sq + room->rq), EP_NET_LINK_CQ);
	port_ctx->cq_room = (uint32_t)ep_min_u64(cqes, (uint64_t)attr->max_cqe);
	return ep_net_cq_new(port_ctx->dev, cqes, &port_ctx->cq_lost, &port_ctx->cq);
}

/* Ports that a link joins can reach each other. Rails may be subnets of their own: others need not. */
static ncclResult_t ep_net_link_check(const struct ep_net_rma *rma, const struct ep_net_link *link)
{
	const struct ep_nic_end *own = &rma->mesh->ends[rma->mesh->rank].port[link->port];
	const struct ep_nic_end *remote = &rma->mesh->ends[link->rank].port[link->remote_port];
	struct ep_reason why = { "" };

	return link->rank == rma->mesh->rank || ep_nic_path_check(own, remote, &why)
		       ? ncclSuccess
		       : ep_fail(ncclInvalidUsage, "%s with %s:%u of %s: %.200s",
				 link->port_ctx->dev->label, remote->name, remote->port,
				 rma->mesh->who[link->rank], why.text);
}

static ncclResult_t ep_net_links_make(struct ep_net_rma *rma)
{
	uint32_t n = (uint32_t)rma->config.contexts * rma->mesh->nranks, links;
	struct ep_rc_room room[EP_NET_NIC_PORTS] = { { 0 } };

	for (uint32_t i = 0; i < rma->mesh->ends[rma->mesh->rank].n; i++) {
		links = ep_net_port_ctx_links(rma, i);
		if (links) {
			EP_CHECK(ep_net_port_ctx_make(&rma->port_ctx[i], links, &room[i]));
		}
	}
	for (uint32_t i = 0; i < n; i++) {
		struct ep_net_link *link = &rma->link[i];
		uint32_t context = i / rma->mesh->nranks;

		link->rank = i % rma->mesh->nranks;
		link->port = ep_net_mesh_port(rma->mesh, rma->mesh->rank, context);
		link->remote_port = ep_net_mesh_port(rma->mesh, link->rank, context);
		link->port_ctx = &rma->port_ctx[link->port];
		link->first = link->last = EP_NET_NO_OP;
		if (!ep_net_link_wanted(rma, link->rank)) {
			continue;
		}
		EP_CHECK(ep_net_link_check(rma, link));
		EP_CHECK(ep_net_link_make(rma, link, &room[link->port]));
		link->room = room[link->port].sq;
	}
	return ncclSuccess;
}

/* Every rank sends every other one the numbers of its queue pairs: [rank][context]. */
static ncclResult_t ep_net_links_agree(struct ep_net_rma *rma, ncclResult_t code)
{
	uint32_t n = rma->mesh->nranks, contexts = (uint32_t)rma->config.contexts;
	size_t bytes = (size_t)n * contexts * sizeof(uint32_t);
	uint32_t *own = calloc(1, bytes), *all = calloc(n, bytes);

	if (!own || !all) {
		code = ep_fail(ncclSystemError, "out of host memory for %u ranks", n);
		free(own);
		free(all);
		return code; /* (the others wait for a while, and then name who is late) */
	}
	for (uint32_t i = 0; code == ncclSuccess && i < n * contexts; i++) {
		const struct ep_net_link *link = &rma->link[i];

		own[link->rank * contexts + i / n] = link->qp ? link->qp->qp_num : UINT32_MAX;
	}
	code = ep_net_mesh_exchange(rma->mesh, EP_NET_ROUND_QUEUES, code, own, bytes, all);
	for (uint32_t i = 0; code == ncclSuccess && i < n * contexts; i++) {
		struct ep_net_link *link = &rma->link[i];

		link->remote_qpn =
			all[((size_t)link->rank * n + rma->mesh->rank) * contexts + i / n];
		if (!link->qp != (link->remote_qpn > 0xffffff)) {
			code = ep_fail(ncclRemoteError,
				       "%s has another distance of ranks that are connected (this "
				       "one's is %d): all ranks must give the same",
				       rma->mesh->who[link->rank], rma->config.stride);
		}
	}
	free(own);
	free(all);
	return code;
}

static ncclResult_t ep_net_links_connect(struct ep_net_rma *rma)
{
	uint32_t n = rma->mesh->nranks * (uint32_t)rma->config.contexts;
	const struct ep_net_ends *ends = rma->mesh->ends;

	for (uint32_t i = 0; i < n; i++) {
		struct ep_net_link *link = &rma->link[i];
		struct ep_rc_path path = { .from = &ends[rma->mesh->rank].port[link->port],
					   .to = &ends[link->rank].port[link->remote_port],
					   .tc = link->port_ctx->tc,
					   .sl = rma->sl,
					   .log_reads = EP_RC_LOG_READS,
					   .gid_index = link->port_ctx->dev->nic.gid_index };

		if (!link->qp) {
			continue;
		}
		EP_CHECK(ep_net_queue_connect(link->port_ctx->dev, link->qp, &path,
					      link->remote_qpn));
	}
	return ncclSuccess;
}

static ncclResult_t ep_net_rma_check(const struct ep_net_mesh *mesh,
				     const struct ep_net_rma_config *config)
{
	if (config->contexts < 1 || config->contexts > (int)EP_NET_CONTEXTS) {
		return ep_fail(ncclInvalidArgument, "%d contexts, possible are 1..%u",
			       config->contexts, EP_NET_CONTEXTS);
	}
	if (config->stride < 1 || mesh->nranks % (uint32_t)config->stride) {
		return ep_fail(ncclInvalidArgument,
			       "every %d. rank of %u cannot be connected: the number must divide "
			       "that of ranks",
			       config->stride, mesh->nranks);
	}
	return ncclSuccess;
}

ncclResult_t ep_net_rma_new(struct ep_net_mesh *mesh, const struct ep_net_rma_config *config,
			    struct ep_net_rma **out)
{
	struct ep_net_rma *rma;
	ncclResult_t result;

	EP_CHECK(ep_net_rma_check(mesh, config));
	rma = calloc(1, sizeof(*rma));
	if (!rma) {
		return ep_fail(ncclSystemError, "out of host memory for contexts");
	}
	ep_net_mesh_get(mesh);
	rma->mesh = mesh;
	rma->config = *config;
	rma->free = EP_NET_NO_OP;
	/* (ports of one NIC are of one kind) */
	rma->sl = ep_net_service_level(&mesh->ends[mesh->rank].port[0],
				       config->tc >= 0 ? config->tc : mesh->tc);
	result = ep_net_rma_memory(rma);
	if (result == ncclSuccess) {
		result = ep_net_links_make(rma);
	}
	EP_CHECK_GOTO(ep_net_links_agree(rma, result), err_free);
	result = ep_net_links_connect(rma);
	/* Nobody writes to a rank that is not ready to answer. */
	EP_CHECK_GOTO(ep_net_mesh_exchange(mesh, EP_NET_ROUND_READY, result, NULL, 0, NULL),
		      err_free);
	EP_CHECK_GOTO(ep_net_handle_new(EP_NET_RMA, rma, &rma->handle), err_free);
	*out = rma;
	return ncclSuccess;

err_free:
	ep_net_rma_free(rma);
	return result;
}

void ep_net_rma_free(struct ep_net_rma *rma)
{
	if (!rma) {
		return;
	}
	if (rma->handle) {
		ep_net_handle_drop(EP_NET_RMA, rma->handle);
	}
	for (uint32_t i = 0; rma->link && i < (uint32_t)rma->config.contexts * rma->mesh->nranks;
	     i++) {
		if (rma->link[i].qp) {
			rma->link[i].port_ctx->dev->nic.v->ibv_destroy_qp(rma->link[i].qp);
		}
	}
	for (uint32_t i = 0; i < EP_NET_NIC_PORTS; i++) {
		struct ep_net_port_ctx *port_ctx = &rma->port_ctx[i];

		if (port_ctx->cq) {
			port_ctx->dev->nic.v->ibv_destroy_cq(port_ctx->cq);
		}
		if (port_ctx->scratch_mr) {
			port_ctx->dev->nic.v->ibv_dereg_mr(port_ctx->scratch_mr);
		}
	}
	ep_net_mesh_put(rma->mesh);
	for (uint32_t i = 0; i < rma->nops / EP_NET_OPS_CHUNK; i++) {
		free(rma->chunk[i]);
	}
	free(rma->chunk);
	free(rma->link);
	free(rma->scratch);
	free(rma);
}

ncclResult_t ep_net_link_get(struct ep_net_rma *rma, int context, uint32_t rank,
			     struct ep_net_link **link)
{
	if (context < 0 || context >= rma->config.contexts || rank >= rma->mesh->nranks) {
		return ep_fail(ncclInvalidArgument,
			       "there is no rank %u or no context %d, there are %u ranks and %d "
			       "contexts",
			       rank, context, rma->mesh->nranks, rma->config.contexts);
	}
	*link = &rma->link[(uint32_t)context * rma->mesh->nranks + rank];
	return (*link)->qp
		       ? ncclSuccess
		       : ep_fail(ncclInvalidUsage, "%s is not connected, only every %d. rank is",
				 rma->mesh->who[rank], rma->config.stride);
}
