/* SPDX-License-Identifier: Apache-2.0 */
/* The tables for collectives that NCCL looks up: thin, over one implementation. */
#include "core/error.h"
#include "net/coll/coll.h"
#include "net/mesh/mesh_bootstrap.h"
#include "net/tables/table_calls.h"

extern const struct ep_coll_v8 ncclCollNetPlugin_v8;
extern const struct ep_coll_v9 ncclCollNetPlugin_v9;
extern const struct ep_coll_v9 ncclCollNetPlugin_v10;
extern const struct ep_coll_v11 ncclCollNetPlugin_v11;
extern const struct ep_coll_v12 ncclCollNetPlugin_v12;

/* ---- alike in all versions ---- */

static ncclResult_t ep_coll_support(ncclDataType_t type, ncclRedOp_t op, int *supported)
{
	*supported = 0;
	return ncclSuccess;
}

static ncclResult_t ep_coll_none(const char *what, void **request)
{
	*request = NULL;
	return ep_fail(ncclInvalidUsage,
		       "%s is not offered: there is no hardware in the network that reduces, as "
		       "reduceSupport reports",
		       what);
}

static ncclResult_t ep_coll_reduce(void *coll, void *from, void *to, size_t count,
				   ncclDataType_t type, ncclRedOp_t op, void *from_mr, void *to_mr,
				   void **request)
{
	return ep_coll_none("all-reduce", request);
}

static ncclResult_t ep_coll_gather(void *coll, void *from, int nparts,
				   struct ep_coll_part_v9 *parts, size_t each, size_t offset,
				   size_t bytes, void *from_mr, void **request)
{
	const struct ep_net_window window = { each, offset, bytes };
	struct ep_net_coll *c;

	*request = NULL;
	EP_CHECK(ep_net_coll_get(coll, &c));
	return ep_net_gather_start(c, from, from_mr, nparts, parts, &window, request);
}

static ncclResult_t ep_coll_flush(void *coll, void *data, int size, void *mr, void **request)
{
	struct ep_net_coll *c;

	*request = NULL;
	EP_CHECK(ep_net_coll_get(coll, &c));
	return ep_net_coll_flush(c, data, size, mr, request);
}

/* ---- v8 to v10: no contexts; in v8 sizes have 32 bits ---- */

static ncclResult_t ep_coll_init_v8(ep_net_log_fn *log)
{
	return ep_net_coll_init(log, NULL);
}

static ncclResult_t ep_coll_listen_v8(int dev, void *handle, void **listen_comm)
{
	return ep_net_coll_listen(dev, -1, handle, listen_comm);
}

static ncclResult_t ep_coll_reduce_v8(void *coll, void *from, void *to, int count,
				      ncclDataType_t type, ncclRedOp_t op, void *from_mr,
				      void *to_mr, void **request)
{
	return ep_coll_none("all-reduce", request);
}

static ncclResult_t ep_coll_gather_v8(void *coll, void *from, int nparts,
				      struct ep_coll_part_v8 *parts, size_t each, size_t offset,
				      size_t bytes, void *from_mr, void **request)
{
	struct ep_coll_part_v9 wide[EP_NET_PARTS];

	for (int i = 0; i < nparts && i < (int)EP_NET_PARTS; i++) {
		wide[i] = (struct ep_coll_part_v9){ parts[i].mr, parts[i].address, parts[i].size };
	}
	return ep_coll_gather(coll, from, nparts, wide, each, offset, bytes, from_mr, request);
}

static ncclResult_t ep_coll_scatter_v8(void *coll, int nparts, struct ep_coll_part_v8 *parts,
				       void *to, size_t each, size_t offset, size_t bytes,
				       ncclDataType_t type, ncclRedOp_t op, void *to_mr,
				       void **request)
{
	return ep_coll_none("reduce-scatter", request);
}

static ncclResult_t ep_coll_scatter(void *coll, int nparts, struct ep_coll_part_v9 *parts, void *to,
				    size_t each, size_t offset, size_t bytes, ncclDataType_t type,
				    ncclRedOp_t op, void *to_mr, void **request)
{
	return ep_coll_none("reduce-scatter", request);
}

/* ---- v9 on: merged NICs ---- */

static ncclResult_t ep_coll_make_vdev_v9(int *dev, struct ep_net_vdev_v9 *props)
{
	return ep_net_nic_merge(EP_NET_TABLE_COLL, props->devs, props->ndevs,
				(int)EP_ARRAY_SIZE(props->devs), dev);
}

static ncclResult_t ep_coll_make_vdev_v12(int *dev, struct ep_net_vdev_v12 *props)
{
	return ep_net_nic_merge(EP_NET_TABLE_COLL, props->devs, props->ndevs,
				(int)EP_ARRAY_SIZE(props->devs), dev);
}

/* ---- v11 on: contexts ---- */

static ncclResult_t ep_coll_init_v11(void **ctx, uint64_t comm_id, ep_net_log_fn *log)
{
	*ctx = NULL;
	return ep_net_coll_init(log, ctx);
}

static ncclResult_t ep_coll_listen_v11(void *ctx, int dev, void *handle, void **listen_comm)
{
	int tc;

	*listen_comm = NULL;
	EP_CHECK(ep_net_context_get(ctx, &tc));
	return ep_net_coll_listen(dev, tc, handle, listen_comm);
}

/* ---- the tables; NCCL takes all-gather without asking reduceSupport ---- */

#define EP_COLL_CALLS(init_call, props_call, listen_call, reduce_call, gather_call, scatter_call)  \
	.name = EP_NET_NAME, .init = init_call, .devices = ep_net_coll_count,                      \
	.get_properties = props_call, .listen = listen_call, .connect = ep_net_coll_connect,       \
	.reduce_support = ep_coll_support, .reg_mr = ep_net_reg_mr,                                \
	.reg_mr_dmabuf = ep_net_reg_mr_dmabuf, .dereg_mr = ep_net_dereg,                           \
	.iallreduce = reduce_call, .iallgather = gather_call, .ireducescatter = scatter_call,      \
	.iflush = ep_coll_flush, .test = ep_net_coll_test, .close_coll = ep_net_coll_close,        \
	.close_listen = ep_net_bootstrap_close

EP_NET_EXPORT const struct ep_coll_v8 ncclCollNetPlugin_v8 = {
	EP_COLL_CALLS(ep_coll_init_v8, ep_net_props_v8, ep_coll_listen_v8, ep_coll_reduce_v8,
		      ep_coll_gather_v8, ep_coll_scatter_v8),
};

#define EP_COLL_V9                                                                                 \
	{                                                                                          \
		EP_COLL_CALLS(ep_coll_init_v8, ep_net_props_v9, ep_coll_listen_v8, ep_coll_reduce, \
			      ep_coll_gather, ep_coll_scatter),                                    \
			.make_vdev = ep_coll_make_vdev_v9,                                         \
	}

EP_NET_EXPORT const struct ep_coll_v9 ncclCollNetPlugin_v9 = EP_COLL_V9;
EP_NET_EXPORT const struct ep_coll_v9 ncclCollNetPlugin_v10 = EP_COLL_V9;

EP_NET_EXPORT const struct ep_coll_v11 ncclCollNetPlugin_v11 = {
	EP_COLL_CALLS(ep_coll_init_v11, ep_net_props_v11, ep_coll_listen_v11, ep_coll_reduce,
		      ep_coll_gather, ep_coll_scatter),
	.make_vdev = ep_coll_make_vdev_v9,
	.finalize = ep_net_context_free,
};

EP_NET_EXPORT const struct ep_coll_v12 ncclCollNetPlugin_v12 = {
	EP_COLL_CALLS(ep_coll_init_v11, ep_net_properties, ep_coll_listen_v11, ep_coll_reduce,
		      ep_coll_gather, ep_coll_scatter),
	.make_vdev = ep_coll_make_vdev_v12,
	.finalize = ep_net_context_free,
};
