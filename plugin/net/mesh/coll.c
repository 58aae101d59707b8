/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/log.h"
#include "core/param.h"
#include "net/base/plugin.h"
#include "net/mesh/coll.h"

#define EP_NET_COLL_RECEIVES (EP_NET_GATHERS * (EP_NET_PARTS + 1)) /* of a link */

static bool ep_net_coll_wanted(void)
{
	return ep_param_or_initial(EP_PARAM_COLLNET) != 0;
}

ncclResult_t ep_net_coll_init(ep_net_log_fn *log, void **ctx)
{
	if (!ep_net_coll_wanted()) {
		EP_INFO(EP_LOG_INIT | EP_LOG_NET,
			"not used for collectives, there is no hardware in the network for them "
			"(NCCL_EP_COLLNET=1: all-gather by direct writes)");
		return ncclSystemError;
	}
	return ctx ? ep_net_context_new(log, -1, ctx) : ep_net_init(log);
}

ncclResult_t ep_net_coll_count(int *ndevs)
{
	*ndevs = ep_net_coll_wanted() ? ep_net_nic_count(EP_NET_TABLE_COLL) : 0;
	return ncclSuccess;
}

ncclResult_t ep_net_coll_listen(int dev, int tc, void *handle, void **listen_comm)
{
	*listen_comm = NULL;
	return ep_net_bootstrap_open(dev, tc, EP_NET_FOR_COLL, handle, listen_comm);
}

ncclResult_t ep_net_coll_get(const void *handle, struct ep_net_coll **coll)
{
	*coll = ep_net_handle_get(EP_NET_COLL, handle);
	return *coll ? ncclSuccess
		     : ep_fail(ncclInvalidArgument,
			       "%p are no ranks of collectives, or they were closed", handle);
}

/* ---- making ---- */

/* Memory that peers write, and what is written from there. */
static ncclResult_t ep_net_coll_memory(struct ep_net_coll *c)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), n = c->mesh->nranks;
	size_t bytes = ep_round_up((n + 1) * EP_NET_GATHERS * sizeof(*c->wanted), page);
	char text[EP_NIC_ERROR_TEXT];

	c->wanted = aligned_alloc(page, bytes);
	c->remote = calloc(n, sizeof(*c->remote));
	c->share = calloc(n * EP_NET_GATHERS, sizeof(*c->share));
	if (!c->wanted || !c->remote || !c->share) {
		return ep_fail(ncclSystemError, "out of host memory for collectives of %zu ranks",
			       n);
	}
	memset(c->wanted, 0, bytes);
	for (uint32_t i = 0; i < c->mesh->ends[c->mesh->rank].n; i++) {
		struct ep_net_dev *dev = c->mesh->dev[i];

		c->wanted_mr[i] = ep_verbs_reg_mr(dev->nic.v, dev->nic.pd, c->wanted, bytes,
						  IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
		c->wanted_lkey[i] = c->wanted_mr[i] ? c->wanted_mr[i]->lkey : 0;
		if (!c->wanted_mr[i]) {
			return ep_fail(ncclSystemError, "%s: %zu bytes cannot be registered: %s",
				       dev->label, bytes, ep_nic_error_print(errno, text));
		}
	}
	return ncclSuccess;
}

static ncclResult_t ep_net_coll_agree(struct ep_net_coll *c)
{
	ncclResult_t result = ep_net_coll_memory(c);
	struct ep_net_sym_end own = { 0 };

	if (result == ncclSuccess) {
		own.base = (uintptr_t)c->wanted;
		for (uint32_t i = 0; i < c->mesh->ends[c->mesh->rank].n; i++) {
			own.rkey[i] = c->wanted_mr[i]->rkey;
		}
	} else if (!c->remote) {
		return result; /* (the others wait for a while, and are told who is late) */
	}
	return ep_net_mesh_exchange(c->mesh, EP_NET_ROUND_MEMORY, result, &own, sizeof(own),
				    c->remote);
}

/* Queue pairs to each rank: as many as are asked for over each port of whoever has most ports. */
static int ep_net_coll_lanes(struct ep_net_coll *c)
{
	uint32_t each;

	c->nrails = 1;
	for (uint32_t r = 0; r < c->mesh->nranks; r++) {
		c->nrails = (uint32_t)ep_max_u64(c->nrails, c->mesh->ends[r].n);
	}
	each = (uint32_t)ep_min_u64((uint64_t)ep_net_env()->qps, EP_NET_CONTEXTS / c->nrails);
	return (int)(each * c->nrails);
}

static void ep_net_coll_free(struct ep_net_coll *c)
{
	if (c->async) {
		ep_net_async_remove(c->mesh->fd, c->mesh->nranks);
	}
	ep_net_rma_free(c->rma);
	for (uint32_t i = 0; i < EP_NET_NIC_PORTS; i++) {
		if (c->wanted_mr[i]) {
			c->mesh->dev[i]->nic.v->ibv_dereg_mr(c->wanted_mr[i]);
		}
	}
	ep_net_mesh_put(c->mesh);
	free(c->wanted);
	free(c->remote);
	free(c->share);
	free(c);
}

ncclResult_t ep_net_coll_connect(void *const *handles, int nranks, int rank, void *listen_comm,
				 void **coll)
{
	struct ep_net_coll *c = calloc(1, sizeof(*c));
	struct ep_net_rma_config config = { .stride = 1,
					    .tc = -1,
					    .receives = EP_NET_COLL_RECEIVES,
					    .notified = ep_net_gather_notified,
					    .arg = c };
	uint32_t use = (uint32_t)ep_now_ns() * 2654435761u;
	ncclResult_t result;

	*coll = NULL;
	if (!c) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	for (uint32_t i = 0; i < EP_NET_GATHERS; i++) {
		/* Requests of ranks that were closed are not taken for those of these. */
		c->gather[i].use = use & ((1u << EP_NET_OP_USE_BITS) - 2);
	}
	EP_CHECK_GOTO(ep_net_bootstrap_run(handles, nranks, rank, EP_NET_FOR_COLL, listen_comm,
					   &c->mesh),
		      err_free);
	config.contexts = ep_net_coll_lanes(c);
	config.lanes = c->nrails > 1;
	EP_CHECK_GOTO(ep_net_coll_agree(c), err_free);
	EP_CHECK_GOTO(ep_net_rma_new(c->mesh, &config, &c->rma), err_free);
	c->handle = ep_net_handle_new(EP_NET_COLL, c);
	if (!c->handle) {
		result = ep_fail(ncclSystemError, "no more than %u connections", EP_NET_COMMS);
		goto err_free;
	}
	if (config.lanes) {
		result = ep_net_async_add(c->handle, c->mesh->fd, c->mesh->nranks,
					  ep_net_coll_async);
		if (result != ncclSuccess) {
			ep_net_handle_drop(EP_NET_COLL, c->handle);
			goto err_free;
		}
		c->async = true;
	}
	*coll = c->handle;
	EP_INFO(EP_LOG_INIT | EP_LOG_NET,
		"%s: all-gather between %d ranks over %d queue pairs each, this is rank %d",
		c->mesh->nic->label, nranks, config.contexts, rank);
	return ncclSuccess;

err_free:
	ep_net_coll_free(c);
	return result;
}

ncclResult_t ep_net_coll_close(void *coll)
{
	struct ep_net_coll *c;

	if (!coll) {
		return ncclSuccess;
	}
	c = ep_net_handle_drop(EP_NET_COLL, coll);
	if (!c) {
		return ep_fail(ncclInvalidArgument,
			       "%p are no ranks of collectives, or they were closed before", coll);
	}
	ep_net_coll_free(c);
	return ncclSuccess;
}

ncclResult_t ep_net_coll_reg(void *coll, void *data, size_t size, int type, uint64_t offset, int fd,
			     void **mr)
{
	struct ep_net_memory memory = {
		.data = data, .size = size, .type = type, .fd = fd, .offset = offset
	};
	struct ep_net_coll *c;

	*mr = NULL;
	EP_CHECK(ep_net_coll_get(coll, &c));
	return ep_net_memory_reg(c->mesh->nic, &memory, mr);
}
