/* SPDX-License-Identifier: Apache-2.0 */
/* The tables that NCCL looks up: thin, over one implementation. */
#include <string.h>
#include "core/error.h"
#include "core/nccl_logger.h"
#include "net/p2p/p2p.h"
#include "net/tables/table_calls.h"

extern const struct ep_net_v8 ncclNetPlugin_v8;
extern const struct ep_net_v9 ncclNetPlugin_v9;
extern const struct ep_net_v10 ncclNetPlugin_v10;
extern const struct ep_net_v11 ncclNetPlugin_v11;
extern const struct ep_net_v12 ncclNetPlugin_v12;

/* ---- alike in all versions ---- */

static ncclResult_t ep_net_accept_any(void *listen_comm, void **recv_comm,
				      ep_net_device_handle **device)
{
	if (device) {
		*device = NULL;
	}
	return ep_net_accept(listen_comm, recv_comm);
}

static ncclResult_t ep_net_connect_plain(const void *ctx, int dev, int tc, void *handle,
					 void **send_comm, ep_net_device_handle **device)
{
	if (device) {
		*device = NULL;
	}
	return ep_net_connect(ctx, dev, tc, handle, send_comm);
}

/* ---- merged NICs ---- */

static ncclResult_t ep_net_make_vdev_v9(int *dev, struct ep_net_vdev_v9 *props)
{
	return ep_net_nic_merge(EP_NET_TABLE_NET, props->devs, props->ndevs,
				(int)EP_ARRAY_SIZE(props->devs), dev);
}

static ncclResult_t ep_net_make_vdev_v12(int *dev, struct ep_net_vdev_v12 *props)
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

static ncclResult_t ep_net_connect_v8(int dev, void *handle, void **send_comm,
				      ep_net_device_handle **device)
{
	return ep_net_connect_plain(NULL, dev, -1, handle, send_comm, device);
}

static ncclResult_t ep_net_isend_v8(void *send_comm, void *data, int size, int tag, void *mr,
				    void **request)
{
	*request = NULL;
	return size < 0 ? ep_fail(ncclInvalidArgument, "a message of %d bytes", size)
			: ep_net_isend(send_comm, data, (size_t)size, tag, mr, request);
}

static ncclResult_t ep_net_irecv_v8(void *recv_comm, int n, void **data, int *sizes, int *tags,
				    void **mr, void **request)
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

static ncclResult_t ep_net_init_v10(ep_net_log_fn *log, ep_net_profile_fn *profile)
{
	return ep_net_init(log);
}

static ncclResult_t ep_net_connect_v10(int dev, struct ep_net_config *config, void *handle,
				       void **send_comm, ep_net_device_handle **device)
{
	return ep_net_connect_plain(NULL, dev, config ? config->traffic_class : -1, handle,
				    send_comm, device);
}

static ncclResult_t ep_net_isend_v10(void *send_comm, void *data, size_t size, int tag, void *mr,
				     void *profile, void **request)
{
	return ep_net_isend(send_comm, data, size, tag, mr, request);
}

static ncclResult_t ep_net_irecv_v10(void *recv_comm, int n, void **data, size_t *sizes, int *tags,
				     void **mr, void **profile, void **request)
{
	return ep_net_irecv(recv_comm, n, data, sizes, tags, mr, request);
}

/* ---- v11: contexts ---- */

static ncclResult_t ep_net_init_v11(void **ctx, uint64_t comm_id, struct ep_net_config *config,
				    ep_net_log_fn *log, ep_net_profile_fn *profile)
{
	*ctx = NULL;
	return ep_net_context_new(log, config ? config->traffic_class : -1, ctx);
}

static ncclResult_t ep_net_listen_v11(void *ctx, int dev, void *handle, void **listen_comm)
{
	int tc;

	*listen_comm = NULL;
	EP_CHECK(ep_net_context_get(ctx, &tc));
	return ep_net_listen(dev, handle, listen_comm);
}

static ncclResult_t ep_net_connect_v11(void *ctx, int dev, void *handle, void **send_comm,
				       ep_net_device_handle **device)
{
	int tc;

	*send_comm = NULL;
	EP_CHECK(ep_net_context_get(ctx, &tc));
	return ep_net_connect_plain(ctx, dev, tc, handle, send_comm, device);
}

/* ---- the tables; what is not named is NULL, which NCCL takes for "not offered" ---- */

#define EP_NET_CALLS(init_call, props_call, listen_call, connect_call, send_call, recv_call)       \
	.name = EP_NET_NAME, .init = init_call, .devices = ep_net_count,                           \
	.get_properties = props_call, .listen = listen_call, .connect = connect_call,              \
	.accept = ep_net_accept_any, .reg_mr = ep_net_reg_mr,                                      \
	.reg_mr_dmabuf = ep_net_reg_mr_dmabuf, .dereg_mr = ep_net_dereg, .isend = send_call,       \
	.irecv = recv_call, .iflush = ep_net_iflush, .test = ep_net_test,                          \
	.close_send = ep_net_close_send, .close_recv = ep_net_close_recv,                          \
	.close_listen = ep_net_close_listen

EP_NET_EXPORT const struct ep_net_v8 ncclNetPlugin_v8 = {
	EP_NET_CALLS(ep_net_init, ep_net_props_v8, ep_net_listen, ep_net_connect_v8,
		     ep_net_isend_v8, ep_net_irecv_v8),
};

EP_NET_EXPORT const struct ep_net_v9 ncclNetPlugin_v9 = {
	EP_NET_CALLS(ep_net_init, ep_net_props_v9, ep_net_listen, ep_net_connect_v8, ep_net_isend,
		     ep_net_irecv),
	.make_vdev = ep_net_make_vdev_v9,
};

EP_NET_EXPORT const struct ep_net_v10 ncclNetPlugin_v10 = {
	EP_NET_CALLS(ep_net_init_v10, ep_net_props_v9, ep_net_listen, ep_net_connect_v10,
		     ep_net_isend_v10, ep_net_irecv_v10),
	.make_vdev = ep_net_make_vdev_v9,
};

EP_NET_EXPORT const struct ep_net_v11 ncclNetPlugin_v11 = {
	EP_NET_CALLS(ep_net_init_v11, ep_net_props_v11, ep_net_listen_v11, ep_net_connect_v11,
		     ep_net_isend_v10, ep_net_irecv_v10),
	.make_vdev = ep_net_make_vdev_v9,
	.finalize = ep_net_context_free,
};

EP_NET_EXPORT const struct ep_net_v12 ncclNetPlugin_v12 = {
	EP_NET_CALLS(ep_net_init_v11, ep_net_properties, ep_net_listen_v11, ep_net_connect_v11,
		     ep_net_isend_v10, ep_net_irecv_v10),
	.make_vdev = ep_net_make_vdev_v12,
	.finalize = ep_net_context_free,
};
