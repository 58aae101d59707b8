/* SPDX-License-Identifier: Apache-2.0 */
/* The tables for GIN and RMA that NCCL looks up: thin, over one implementation. */
#include "core/error.h"
#include "core/log.h"
#include "net/abi/abi_gin.h"
#include "net/mesh/gin.h"
#include "net/mesh/mesh_bootstrap.h"
#include "net/mesh/rma.h"
#include "net/mesh/rma_progress.h"
#include "net/mesh/sym.h"
#include "net/tables/table_calls.h"

extern const struct ep_gin_v11 ncclGinPlugin_v11;
extern const struct ep_gin_v12 ncclGinPlugin_v12;
extern const struct ep_gin_v13 ncclGinPlugin_v13;
extern const struct ep_gin_v14 ncclGinPlugin_v14;
extern const struct ep_rma_v14 ncclRmaPlugin_v14;
extern const struct ep_rma_v15 ncclRmaPlugin_v15;
extern const struct ep_rma_v16 ncclRmaPlugin_v16;

/* ---- alike in all versions ---- */

static ncclResult_t ep_gin_init(void **instance, uint64_t comm_id, ep_net_log_fn *log)
{
	return ep_net_gin_init(log, instance);
}

static ncclResult_t ep_gin_props_v11(int dev, struct ep_net_props_v11 *props)
{
	EP_CHECK(ep_net_props_v11(dev, props));
	props->v9.device_type = EP_NET_DEVICE_GIN_PROXY;
	return ncclSuccess;
}

static ncclResult_t ep_gin_connect(void *instance, void *handles[], int nranks, int rank,
				   void *listen_comm, void **coll)
{
	return ep_net_gin_connect(handles, nranks, rank, 0, listen_comm, coll);
}

static ncclResult_t ep_rma_reg(void *coll, void *data, size_t size, int type, uint64_t flags,
			       void **mr)
{
	struct ep_net_memory memory = { .data = data, .size = size, .type = type, .fd = -1 };

	return ep_net_gin_reg(coll, &memory, flags, mr);
}

static ncclResult_t ep_rma_reg_dmabuf(void *coll, void *data, size_t size, int type,
				      uint64_t offset, int fd, uint64_t flags, void **mr)
{
	struct ep_net_memory memory = EP_NET_DMABUF(data, size, type, offset, fd);

	return ep_net_gin_reg(coll, &memory, flags, mr);
}

/* NCCL's descriptors for GPUs name memory by the second handle: it is the same. */
static ncclResult_t ep_gin_reg(void *coll, void *data, size_t size, int type, uint64_t flags,
			       void **mr, void **gin_mr)
{
	ncclResult_t result = ep_rma_reg(coll, data, size, type, flags, mr);

	*gin_mr = *mr;
	return result;
}

static ncclResult_t ep_gin_reg_dmabuf(void *coll, void *data, size_t size, int type,
				      uint64_t offset, int fd, uint64_t flags, void **mr,
				      void **gin_mr)
{
	ncclResult_t result = ep_rma_reg_dmabuf(coll, data, size, type, offset, fd, flags, mr);

	*gin_mr = *mr;
	return result;
}

/* Memory belongs to its ranks, whose handle may be closed already. */
static ncclResult_t ep_gin_dereg(void *coll, void *mr)
{
	return ep_net_sym_free(mr);
}

static ncclResult_t ep_gin_test(void *coll, void *request, int *done)
{
	return ep_net_op_test(request, done);
}

/* ---- data: all versions take the same in other orders ---- */

#define EP_GIN_PUT_PASS from_at, from, size, to_at, to, rank
#define EP_GIN_SIGNAL_PASS EP_GIN_PUT_PASS, signal_at, signal, value, op

static ncclResult_t ep_gin_put(void *ctx, int context, EP_GIN_PUT_ARGS, void **request)
{
	const struct ep_net_copy copy = { { from_at, from }, { to_at, to }, size };
	struct ep_net_rma *rma;

	*request = NULL;
	EP_CHECK(ep_net_gin_contexts(ctx, &rma));
	return ep_net_rma_put(rma, context, &copy, rank, NULL, request);
}

static ncclResult_t ep_gin_put_signal(void *ctx, int context, EP_GIN_SIGNAL_ARGS, void **request)
{
	const struct ep_net_copy copy = { { from_at, from }, { to_at, to }, size };
	const struct ep_net_signal s = { { signal_at, signal }, value, op };
	struct ep_net_rma *rma;

	*request = NULL;
	EP_CHECK(ep_net_gin_contexts(ctx, &rma));
	return ep_net_rma_put(rma, context, &copy, rank, &s, request);
}

static ncclResult_t ep_gin_get(void *ctx, int context, EP_GIN_PUT_ARGS, void **request)
{
	const struct ep_net_copy copy = { { from_at, from }, { to_at, to }, size };
	struct ep_net_rma *rma;

	*request = NULL;
	EP_CHECK(ep_net_gin_contexts(ctx, &rma));
	return ep_net_rma_get(rma, context, &copy, rank, request);
}

static ncclResult_t ep_gin_flush(void *ctx, int context, void *mr, uint32_t rank, void **request)
{
	struct ep_net_rma *rma;

	*request = NULL;
	EP_CHECK(ep_net_gin_contexts(ctx, &rma));
	return ep_net_rma_flush(rma, context, mr, rank, request);
}

/* ---- v11 and v12: ranks have their contexts at once ---- */

static ncclResult_t ep_gin_connect_v11(void *instance, void *handles[], int nranks, int rank,
				       void *listen_comm, void **coll)
{
	return ep_net_gin_connect(handles, nranks, rank, 1, listen_comm, coll);
}

static ncclResult_t ep_gin_put_v11(void *coll, EP_GIN_PUT_ARGS, void **request)
{
	return ep_gin_put(coll, 0, EP_GIN_PUT_PASS, request);
}

static ncclResult_t ep_gin_signal_v11(void *coll, EP_GIN_SIGNAL_ARGS, void **request)
{
	return ep_gin_put_signal(coll, 0, EP_GIN_SIGNAL_PASS, request);
}

static ncclResult_t ep_gin_connect_v12(void *instance, void *handles[], int nranks, int rank,
				       int connections, int queue_depth, void *listen_comm,
				       void **coll)
{
	/* requests wait where queues have no room */
	*coll = NULL;
	return connections >= 1
		       ? ep_net_gin_connect(handles, nranks, rank, connections, listen_comm, coll)
		       : ep_fail(ncclInvalidArgument, "%d connections", connections);
}

static ncclResult_t ep_gin_put_v12(void *coll, EP_GIN_PUT_ARGS, int connection, void **request)
{
	return ep_gin_put(coll, connection, EP_GIN_PUT_PASS, request);
}

static ncclResult_t ep_gin_signal_v12(void *coll, EP_GIN_SIGNAL_ARGS, int connection,
				      void **request)
{
	return ep_gin_put_signal(coll, connection, EP_GIN_SIGNAL_PASS, request);
}

/* ---- v13 on: contexts are made when a program asks for them ---- */

static ncclResult_t ep_gin_create_v13(void *coll, struct ep_gin_config_v13 *config, void **ctx,
				      ep_net_device_handle **device)
{
	const struct ep_net_rma_config c = { .contexts = config->contexts,
					     .stride = 1,
					     .tc = config->traffic_class };

	if (device) {
		*device = NULL; /* what GPUs see is NCCL's */
	}
	return ep_net_gin_context(coll, &c, ctx);
}

/*
 * Declines. NCCL 2.30.5 and later have a proxy of their own, over the table for RMA, and skip one of others.
 * One that they keep all the same (NCCL_GIN_PLUGIN_REF_COUNT) stands for the proxy from 2.31 on, which then
 * skips its own, too: there would be none. Without this table they would take that of v13.
 */
static ncclResult_t ep_gin_init_v14(void **instance, uint64_t comm_id, ep_net_log_fn *log)
{
	*instance = NULL;
	log(EP_LOG_INFO, EP_LOG_INIT | EP_LOG_NET, __func__, 0,
	    "NET/" EP_NET_NAME " : GIN is left to NCCL's proxy, over ncclRmaPlugin");
	return ncclInvalidUsage;
}

/* ---- RMA ---- */

static ncclResult_t ep_rma_create(void *coll, struct ep_rma_config_v14 *config, void **ctx)
{
	const struct ep_net_rma_config c = { .contexts = config->contexts,
					     .stride = config->rank_stride,
					     .tc = config->traffic_class };

	return ep_net_gin_context(coll, &c, ctx);
}

/* All signals are strong: a queue pair executes what it gets in order. */
static ncclResult_t ep_rma_signal_v14(void *ctx, int context, EP_GIN_SIGNAL_ARGS, bool strong,
				      void **request)
{
	return ep_gin_put_signal(ctx, context, EP_GIN_SIGNAL_PASS, request);
}

/* v15: flags mean that more follows, for those who gather. */
static ncclResult_t ep_rma_put_v15(void *ctx, int context, EP_GIN_PUT_ARGS, uint32_t flags,
				   void **request)
{
	return ep_gin_put(ctx, context, EP_GIN_PUT_PASS, request);
}

static ncclResult_t ep_rma_signal_v15(void *ctx, int context, EP_GIN_SIGNAL_ARGS, bool strong,
				      uint32_t flags, void **request)
{
	return ep_gin_put_signal(ctx, context, EP_GIN_SIGNAL_PASS, request);
}

static ncclResult_t ep_rma_get_v15(void *ctx, int context, EP_GIN_PUT_ARGS, uint32_t flags,
				   void **request)
{
	return ep_gin_get(ctx, context, EP_GIN_PUT_PASS, request);
}

/* A signal is ordered behind what its own rank has put, and not behind what others have. */
static ncclResult_t ep_rma_features_v16(void *coll, struct ep_rma_properties_v16 *props)
{
	*props = (struct ep_rma_properties_v16){ .any_signal_flushes = false };
	return ncclSuccess;
}

/* ---- the tables; what is not named is NULL, which NCCL takes for "not needed" ---- */

#define EP_GIN_CALLS(props_call, connect_call)                                                     \
	.name = EP_NET_NAME, .init = ep_gin_init, .devices = ep_net_count_ports,                   \
	.get_properties = props_call, .listen = ep_net_gin_listen, .connect = connect_call,        \
	.dereg_mr_sym = ep_gin_dereg, .close_coll = ep_net_gin_close,                              \
	.close_listen = ep_net_bootstrap_close, .test = ep_gin_test,                               \
	.finalize = ep_net_context_free
#define EP_GIN_REG .reg_mr_sym = ep_gin_reg, .reg_mr_sym_dmabuf = ep_gin_reg_dmabuf

EP_NET_EXPORT const struct ep_gin_v11 ncclGinPlugin_v11 = {
	EP_GIN_CALLS(ep_gin_props_v11, ep_gin_connect_v11),
	EP_GIN_REG,
	.iput = ep_gin_put_v11,
	.iput_signal = ep_gin_signal_v11,
};

EP_NET_EXPORT const struct ep_gin_v12 ncclGinPlugin_v12 = {
	EP_GIN_CALLS(ep_gin_props_v11, ep_gin_connect_v12),
	EP_GIN_REG,
	.iput = ep_gin_put_v12,
	.iput_signal = ep_gin_signal_v12,
};

/* (2.30.4 asks for the last error of a context that is its own, not of ours: it must not ask) */
EP_NET_EXPORT const struct ep_gin_v13 ncclGinPlugin_v13 = {
	EP_GIN_CALLS(ep_net_gin_properties, ep_gin_connect),
	EP_GIN_REG,
	.create_context = ep_gin_create_v13,
	.destroy_context = ep_net_gin_context_close,
	.iput = ep_gin_put,
	.iput_signal = ep_gin_put_signal,
	.iget = ep_gin_get,
	.iflush = ep_gin_flush,
};

EP_NET_EXPORT const struct ep_gin_v14 ncclGinPlugin_v14 = {
	.name = EP_NET_NAME,
	.init = ep_gin_init_v14,
	.finalize = ep_net_context_free,
};

#define EP_RMA(put_call, signal_call, get_call)                                                    \
	EP_GIN_CALLS(ep_net_gin_properties, ep_gin_connect),                                       \
		.create_context = ep_rma_create, .reg_mr_sym = ep_rma_reg,                         \
		.reg_mr_sym_dmabuf = ep_rma_reg_dmabuf,                                            \
		.destroy_context = ep_net_gin_context_close, .iput = put_call,                     \
		.iput_signal = signal_call, .iget = get_call, .iflush = ep_gin_flush,              \
		.query_last_error = ep_net_gin_error

EP_NET_EXPORT const struct ep_rma_v14 ncclRmaPlugin_v14 = {
	EP_RMA(ep_gin_put, ep_rma_signal_v14, ep_gin_get),
};

EP_NET_EXPORT const struct ep_rma_v15 ncclRmaPlugin_v15 = {
	EP_RMA(ep_rma_put_v15, ep_rma_signal_v15, ep_rma_get_v15),
};

EP_NET_EXPORT const struct ep_rma_v16 ncclRmaPlugin_v16 = {
	.get_rma_properties = ep_rma_features_v16,
	EP_RMA(ep_rma_put_v15, ep_rma_signal_v15, ep_rma_get_v15),
};
