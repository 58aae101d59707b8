/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables for the network and for collectives that NCCL looks up: thin, over one implementation.
 */
#include "core/error.h"
#include "core/log.h"
#include "net/coll.h"
#include "net/p2p.h"

extern const struct ep_net_v8 ncclNetPlugin_v8;
extern const struct ep_net_v9 ncclNetPlugin_v9;
extern const struct ep_net_v10 ncclNetPlugin_v10;
extern const struct ep_net_v11 ncclNetPlugin_v11;
extern const struct ep_net_v12 ncclNetPlugin_v12;
extern const struct ep_coll_v8 ncclCollNetPlugin_v8;
extern const struct ep_coll_v9 ncclCollNetPlugin_v9;
extern const struct ep_coll_v9 ncclCollNetPlugin_v10;
extern const struct ep_coll_v11 ncclCollNetPlugin_v11;
extern const struct ep_coll_v12 ncclCollNetPlugin_v12;

/* ---- memory ---- */

static ncclResult_t reg_any(void *comm, const struct ep_net_memory *memory, void **mr)
{
	return ep_net_kind_of(comm) == EP_NET_COLL ? ep_net_coll_reg(comm, memory, mr)
						   : ep_net_reg(comm, memory, mr);
}

static ncclResult_t reg_mr(void *comm, void *data, size_t size, int type, void **mr)
{
	const struct ep_net_memory memory = { .data = data, .size = size, .type = type, .fd = -1 };

	return reg_any(comm, &memory, mr);
}

static ncclResult_t reg_mr_dmabuf(void *comm, void *data, size_t size, int type, uint64_t offset,
				  int fd, void **mr)
{
	const struct ep_net_memory memory = EP_NET_DMABUF(data, size, type, offset, fd);

	return reg_any(comm, &memory, mr);
}

/* ---- alike in all versions ---- */

static ncclResult_t accept_any(void *listen_comm, void **recv_comm, ep_net_device_handle **device)
{
	if (device) {
		*device = NULL;
	}
	return ep_net_accept(listen_comm, recv_comm);
}

static ncclResult_t connect_plain(const void *ctx, int dev, int tc, void *handle, void **send_comm,
				  ep_net_device_handle **device)
{
	if (device) {
		*device = NULL;
	}
	return ep_net_connect(ctx, dev, tc, handle, send_comm);
}

/* ---- merged NICs ---- */

static ncclResult_t make_vdev_v9(int *dev, struct ep_net_vdev_v9 *props)
{
	return ep_net_nic_merge(EP_NET_TABLE_NET, props->devs, props->ndevs,
				(int)EP_ARRAY_SIZE(props->devs), dev);
}

static ncclResult_t make_vdev_v12(int *dev, struct ep_net_vdev_v12 *props)
{
	return ep_net_nic_merge(EP_NET_TABLE_NET, props->devs, props->ndevs,
				(int)EP_ARRAY_SIZE(props->devs), dev);
}

/* ---- for libnccl_ep.so in the same process ---- */

EP_NET_EXPORT ep_nccl_logger_fn nccl_net_ep_log; /* EP_NCCL_LOGGER_NAME */

bool nccl_net_ep_log(int level, unsigned int subsys, const char *text)
{
	return ep_net_log_for_ep(level, subsys, text);
}

/* ---- v8: sizes are ints ---- */

static ncclResult_t listen_v8(int dev, void *handle, void **listen_comm)
{
	*listen_comm = NULL;
	return ep_net_listen(dev, -1, handle, listen_comm);
}

static ncclResult_t connect_v8(int dev, void *handle, void **send_comm,
			       ep_net_device_handle **device)
{
	return connect_plain(NULL, dev, -1, handle, send_comm, device);
}

static ncclResult_t isend_v8(void *send_comm, void *data, int size, int tag, void *mr,
			     void **request)
{
	*request = NULL;
	return size < 0 ? ep_fail(ncclInvalidArgument, "a message of %d bytes", size)
			: ep_net_isend(send_comm, data, (size_t)size, tag, mr, request);
}

static ncclResult_t irecv_v8(void *recv_comm, int n, void **data, int *sizes, int *tags, void **mr,
			     void **request)
{
	size_t wide[EP_NET_MAX_RECVS];

	*request = NULL;
	for (int i = 0; i < n && i < EP_NET_MAX_RECVS; i++) {
		if (sizes[i] < 0) {
			return ep_fail(ncclInvalidArgument, "a receive of %d bytes", sizes[i]);
		}
		wide[i] = (size_t)sizes[i];
	}
	return ep_net_irecv(recv_comm, n, data, wide, tags, mr, request);
}

/* ---- v10: what is sent may be profiled, which is left to NCCL; connections have a class ---- */

static ncclResult_t init_v10(ep_net_log_fn *log, ep_net_profile_fn *profile)
{
	return ep_net_init(log);
}

static ncclResult_t connect_v10(int dev, struct ep_net_config *config, void *handle,
				void **send_comm, ep_net_device_handle **device)
{
	return connect_plain(NULL, dev, config ? config->traffic_class : -1, handle, send_comm,
			     device);
}

static ncclResult_t isend_v10(void *send_comm, void *data, size_t size, int tag, void *mr,
			      void *profile, void **request)
{
	return ep_net_isend(send_comm, data, size, tag, mr, request);
}

static ncclResult_t irecv_v10(void *recv_comm, int n, void **data, size_t *sizes, int *tags,
			      void **mr, void **profile, void **request)
{
	return ep_net_irecv(recv_comm, n, data, sizes, tags, mr, request);
}

/* ---- v11: contexts ---- */

static ncclResult_t init_v11(void **ctx, uint64_t comm_id, struct ep_net_config *config,
			     ep_net_log_fn *log, ep_net_profile_fn *profile)
{
	*ctx = NULL;
	return ep_net_context_new(log, config ? config->traffic_class : -1, ctx);
}

static ncclResult_t listen_v11(void *ctx, int dev, void *handle, void **listen_comm)
{
	int tc;

	*listen_comm = NULL;
	EP_CHECK(ep_net_context_get(ctx, &tc));
	return ep_net_listen(dev, tc, handle, listen_comm);
}

static ncclResult_t connect_v11(void *ctx, int dev, void *handle, void **send_comm,
				ep_net_device_handle **device)
{
	int tc;

	*send_comm = NULL;
	EP_CHECK(ep_net_context_get(ctx, &tc));
	return connect_plain(ctx, dev, tc, handle, send_comm, device);
}

/* ---- the tables; what is not named is NULL, which NCCL takes for "not offered" ---- */

#define EP_NET_CALLS(init_call, props_call, listen_call, connect_call, send_call, recv_call)       \
	.name = EP_NET_NAME, .init = init_call, .devices = ep_net_count,                           \
	.get_properties = props_call, .listen = listen_call, .connect = connect_call,              \
	.accept = accept_any, .reg_mr = reg_mr, .reg_mr_dmabuf = reg_mr_dmabuf,                    \
	.dereg_mr = ep_net_dereg, .isend = send_call, .irecv = recv_call, .iflush = ep_net_iflush, \
	.test = ep_net_test, .close_send = ep_net_close_send, .close_recv = ep_net_close_recv,     \
	.close_listen = ep_net_close_listen

EP_NET_EXPORT const struct ep_net_v8 ncclNetPlugin_v8 = {
	EP_NET_CALLS(ep_net_init, ep_net_props_v8, listen_v8, connect_v8, isend_v8, irecv_v8),
};

EP_NET_EXPORT const struct ep_net_v9 ncclNetPlugin_v9 = {
	EP_NET_CALLS(ep_net_init, ep_net_props_v9, listen_v8, connect_v8, ep_net_isend,
		     ep_net_irecv),
	.make_vdev = make_vdev_v9,
};

EP_NET_EXPORT const struct ep_net_v10 ncclNetPlugin_v10 = {
	EP_NET_CALLS(init_v10, ep_net_props_v9, listen_v8, connect_v10, isend_v10, irecv_v10),
	.make_vdev = make_vdev_v9,
};

EP_NET_EXPORT const struct ep_net_v11 ncclNetPlugin_v11 = {
	EP_NET_CALLS(init_v11, ep_net_props_v11, listen_v11, connect_v11, isend_v10, irecv_v10),
	.make_vdev = make_vdev_v9,
	.finalize = ep_net_context_free,
};

EP_NET_EXPORT const struct ep_net_v12 ncclNetPlugin_v12 = {
	EP_NET_CALLS(init_v11, ep_net_properties, listen_v11, connect_v11, isend_v10, irecv_v10),
	.make_vdev = make_vdev_v12,
	.finalize = ep_net_context_free,
};

/* ---- collectives: alike in all versions ---- */

static ncclResult_t coll_support(ncclDataType_t type, ncclRedOp_t op, int *supported)
{
	*supported = 0;
	return ncclSuccess;
}

static ncclResult_t coll_none(const char *what, void **request)
{
	*request = NULL;
	return ep_fail(ncclInvalidUsage,
		       "%s is not offered: there is no hardware in the network that reduces, as "
		       "reduceSupport reports",
		       what);
}

static ncclResult_t coll_reduce(void *coll, void *from, void *to, size_t count, ncclDataType_t type,
				ncclRedOp_t op, void *from_mr, void *to_mr, void **request)
{
	return coll_none("all-reduce", request);
}

static ncclResult_t coll_gather(void *coll, void *from, int nparts, struct ep_coll_part_v9 *parts,
				size_t each, size_t offset, size_t bytes, void *from_mr,
				void **request)
{
	const struct ep_net_window window = { each, offset, bytes };
	struct ep_net_coll *c;

	*request = NULL;
	EP_CHECK(ep_net_coll_get(coll, &c));
	return ep_net_gather_start(c, from, from_mr, nparts, parts, &window, request);
}

static ncclResult_t coll_flush(void *coll, void *data, int size, void *mr, void **request)
{
	struct ep_net_coll *c;

	*request = NULL;
	EP_CHECK(ep_net_coll_get(coll, &c));
	return ep_net_coll_flush(c, data, size, mr, request);
}

/* ---- collectives, v8 to v10: no contexts; in v8 sizes have 32 bits ---- */

static ncclResult_t coll_init_v8(ep_net_log_fn *log)
{
	return ep_net_coll_init(log, NULL);
}

static ncclResult_t coll_reduce_v8(void *coll, void *from, void *to, int count, ncclDataType_t type,
				   ncclRedOp_t op, void *from_mr, void *to_mr, void **request)
{
	return coll_none("all-reduce", request);
}

static ncclResult_t coll_gather_v8(void *coll, void *from, int nparts,
				   struct ep_coll_part_v8 *parts, size_t each, size_t offset,
				   size_t bytes, void *from_mr, void **request)
{
	struct ep_coll_part_v9 wide[EP_NET_PARTS];

	for (int i = 0; i < nparts && i < (int)EP_NET_PARTS; i++) {
		wide[i] = (struct ep_coll_part_v9){ parts[i].mr, parts[i].address, parts[i].size };
	}
	return coll_gather(coll, from, nparts, wide, each, offset, bytes, from_mr, request);
}

static ncclResult_t coll_scatter_v8(void *coll, int nparts, struct ep_coll_part_v8 *parts, void *to,
				    size_t each, size_t offset, size_t bytes, ncclDataType_t type,
				    ncclRedOp_t op, void *to_mr, void **request)
{
	return coll_none("reduce-scatter", request);
}

static ncclResult_t coll_scatter(void *coll, int nparts, struct ep_coll_part_v9 *parts, void *to,
				 size_t each, size_t offset, size_t bytes, ncclDataType_t type,
				 ncclRedOp_t op, void *to_mr, void **request)
{
	return coll_none("reduce-scatter", request);
}

/* ---- collectives, v9 on: merged NICs ---- */

static ncclResult_t coll_make_vdev_v9(int *dev, struct ep_net_vdev_v9 *props)
{
	return ep_net_nic_merge(EP_NET_TABLE_COLL, props->devs, props->ndevs,
				(int)EP_ARRAY_SIZE(props->devs), dev);
}

static ncclResult_t coll_make_vdev_v12(int *dev, struct ep_net_vdev_v12 *props)
{
	return ep_net_nic_merge(EP_NET_TABLE_COLL, props->devs, props->ndevs,
				(int)EP_ARRAY_SIZE(props->devs), dev);
}

/* ---- collectives, v11 on: contexts ---- */

static ncclResult_t coll_init_v11(void **ctx, uint64_t comm_id, ep_net_log_fn *log)
{
	*ctx = NULL;
	return ep_net_coll_init(log, ctx);
}

/* ---- tables for collectives; NCCL takes all-gather without asking reduceSupport ---- */

#define EP_COLL_CALLS(init_call, props_call, listen_call, reduce_call, gather_call, scatter_call)  \
	.name = EP_NET_NAME, .init = init_call, .devices = ep_net_coll_count,                      \
	.get_properties = props_call, .listen = listen_call, .connect = ep_net_coll_connect,       \
	.reduce_support = coll_support, .reg_mr = reg_mr, .reg_mr_dmabuf = reg_mr_dmabuf,          \
	.dereg_mr = ep_net_dereg, .iallreduce = reduce_call, .iallgather = gather_call,            \
	.ireducescatter = scatter_call, .iflush = coll_flush, .test = ep_net_coll_test,            \
	.close_coll = ep_net_coll_close, .close_listen = ep_net_close_listen

EP_NET_EXPORT const struct ep_coll_v8 ncclCollNetPlugin_v8 = {
	EP_COLL_CALLS(coll_init_v8, ep_net_props_v8, listen_v8, coll_reduce_v8, coll_gather_v8,
		      coll_scatter_v8),
};

#define EP_COLL_V9                                                                                 \
	{                                                                                          \
		EP_COLL_CALLS(coll_init_v8, ep_net_props_v9, listen_v8, coll_reduce, coll_gather,  \
			      coll_scatter),                                                       \
			.make_vdev = coll_make_vdev_v9,                                            \
	}

EP_NET_EXPORT const struct ep_coll_v9 ncclCollNetPlugin_v9 = EP_COLL_V9;
EP_NET_EXPORT const struct ep_coll_v9 ncclCollNetPlugin_v10 = EP_COLL_V9;

EP_NET_EXPORT const struct ep_coll_v11 ncclCollNetPlugin_v11 = {
	EP_COLL_CALLS(coll_init_v11, ep_net_props_v11, listen_v11, coll_reduce, coll_gather,
		      coll_scatter),
	.make_vdev = coll_make_vdev_v9,
	.finalize = ep_net_context_free,
};

EP_NET_EXPORT const struct ep_coll_v12 ncclCollNetPlugin_v12 = {
	EP_COLL_CALLS(coll_init_v11, ep_net_properties, listen_v11, coll_reduce, coll_gather,
		      coll_scatter),
	.make_vdev = coll_make_vdev_v12,
	.finalize = ep_net_context_free,
};
