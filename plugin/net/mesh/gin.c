/* SPDX-License-Identifier: Apache-2.0 */
#include <stdlib.h>
#include "core/log.h"
#include "net/base/base.h"
#include "net/mesh/gin.h"
#include "net/mesh/mesh_bootstrap.h"
#include "net/mesh/rma_links.h"
#include "net/mesh/sym.h"

struct ep_net_gin {
	struct ep_net_mesh *mesh;
	struct ep_net_rma *rma; /* NULL: contexts are made later */
};

ncclResult_t ep_net_gin_init(ep_net_log_fn *log, void **ctx)
{
	struct ep_net_dev *dev;
	struct ep_reason why;
	int n, fit = 0;

	*ctx = NULL;
	EP_CHECK(ep_net_context_new(log, -1, ctx));
	ep_net_devs(&dev, &n, &why);
	for (int i = 0; i < n; i++) {
		const char *lacks = ep_net_dev_lacks(&dev[i]);

		fit += !lacks;
		if (lacks) {
			EP_INFO(EP_LOG_INIT | EP_LOG_NET, "not used for GIN and RMA: %s %s",
				dev[i].label, lacks);
		}
	}
	if (!fit) {
		ep_net_context_free(*ctx);
		*ctx = NULL;
		return ncclSystemError;
	}
	return ncclSuccess;
}

ncclResult_t ep_net_gin_properties(int dev, struct ep_net_props_v12 *props)
{
	EP_CHECK(ep_net_properties(dev, props));
	props->device_type = EP_NET_DEVICE_GIN_PROXY;
	return ncclSuccess;
}

ncclResult_t ep_net_gin_listen(void *ctx, int dev, void *handle, void **listen_comm)
{
	const struct ep_net_nic *nic;
	const char *lacks = NULL;
	int tc;

	*listen_comm = NULL;
	EP_CHECK(ep_net_context_get(ctx, &tc));
	EP_CHECK(ep_net_nic_get(dev, &nic));
	for (int i = 0; i < nic->nports && (i == 0 || lacks); i++) {
		lacks = ep_net_dev_lacks(nic->dev[i]);
	}
	if (lacks) {
		return ep_fail(ncclInvalidUsage,
			       "GIN and RMA over %s: it %s; NCCL_IB_HCA=^%s leaves it out",
			       nic->label, lacks, nic->dev[0]->port.name);
	}
	return ep_net_bootstrap_open(dev, tc, EP_NET_FOR_RMA, handle, listen_comm);
}

/* ---- ranks ---- */

static ncclResult_t ep_net_gin_get(const void *coll, struct ep_net_gin **gin)
{
	*gin = ep_net_handle_find(EP_NET_MESH, coll);
	return *gin ? ncclSuccess : ncclInvalidArgument;
}

static void ep_net_gin_free(void *object)
{
	struct ep_net_gin *gin = object;

	ep_net_rma_free(gin->rma);
	ep_net_mesh_put(gin->mesh);
	free(gin);
}

ncclResult_t ep_net_gin_connect(void *const *handles, int nranks, int rank, int contexts,
				void *listen_comm, void **coll)
{
	struct ep_net_rma_config config = { .contexts = contexts, .stride = 1, .tc = -1 };
	struct ep_net_gin *gin = calloc(1, sizeof(*gin));
	ncclResult_t result;

	*coll = NULL;
	if (!gin) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	EP_CHECK_GOTO(ep_net_bootstrap_run(handles, nranks, rank, EP_NET_FOR_RMA, listen_comm,
					   &gin->mesh),
		      err_free);
	if (contexts) {
		EP_CHECK_GOTO(ep_net_rma_new(gin->mesh, &config, &gin->rma), err_free);
	}
	EP_CHECK_GOTO(ep_net_handle_new(EP_NET_MESH, gin, coll), err_free);
	EP_INFO(EP_LOG_INIT | EP_LOG_NET, "%s: GIN and RMA between %d ranks, this is rank %d",
		gin->mesh->nic->label, nranks, rank);
	return ncclSuccess;

err_free:
	ep_net_gin_free(gin);
	return result;
}

ncclResult_t ep_net_gin_close(void *coll)
{
	return ep_net_handle_close(EP_NET_MESH, coll, ep_net_gin_free);
}

/* ---- contexts ---- */

ncclResult_t ep_net_gin_context(void *coll, const struct ep_net_rma_config *config, void **ctx)
{
	struct ep_net_gin *gin;
	struct ep_net_rma *rma;

	*ctx = NULL;
	EP_CHECK(ep_net_gin_get(coll, &gin));
	EP_CHECK(ep_net_rma_new(gin->mesh, config, &rma));
	*ctx = rma->handle;
	return ncclSuccess;
}

static void ep_net_gin_context_free(void *object)
{
	struct ep_net_rma *rma = object;

	rma->handle = NULL;
	ep_net_rma_free(rma);
}

ncclResult_t ep_net_gin_context_close(void *ctx)
{
	return ep_net_handle_close(EP_NET_RMA, ctx, ep_net_gin_context_free);
}

ncclResult_t ep_net_gin_contexts(const void *handle, struct ep_net_rma **rma)
{
	const struct ep_net_gin *gin = ep_net_handle_get(EP_NET_MESH, handle);

	*rma = gin && gin->rma ? gin->rma : ep_net_handle_find(EP_NET_RMA, handle);
	return *rma ? ncclSuccess : ncclInvalidArgument;
}

ncclResult_t ep_net_gin_error(void *ctx, bool *failed)
{
	char text[EP_NET_LOST_TEXT];
	struct ep_net_rma *rma;

	EP_CHECK(ep_net_gin_contexts(ctx, &rma));
	*failed = __atomic_load_n(&rma->broken, __ATOMIC_RELAXED) != 0;
	for (uint32_t r = 0; r < rma->mesh->nranks && !*failed; r++) {
		*failed = ep_net_mesh_lost(rma->mesh, r, text);
	}
	return ncclSuccess;
}

/* ---- memory ---- */

ncclResult_t ep_net_gin_reg(void *coll, struct ep_net_memory *memory, uint64_t flags, void **mr)
{
	struct ep_net_gin *gin;

	*mr = NULL;
	EP_CHECK(ep_net_gin_get(coll, &gin));
	EP_CHECK(ep_net_memory_check(memory));
	memory->strict = (flags & EP_NET_MR_FORCE_SO) != 0;
	memory->atomics = true;
	return ep_net_sym_new(gin->mesh, memory, mr);
}
