/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's interface to collective plugins, ncclCollNetPlugin_v8 to v12, as NCCL 2.20 to 2.32 read it. As
 * in abi.h, written down from the order, types and sizes of the members; nothing here may move.
 */
#ifndef EP_NET_ABI_COLL_H
#define EP_NET_ABI_COLL_H

#include "net/abi/abi.h"

struct ep_coll_part_v8 {
	void *mr, *address;
	uint32_t size;
};

struct ep_coll_part_v9 { /* and later */
	void *mr, *address;
	size_t size;
};

_Static_assert(sizeof(struct ep_coll_part_v8) == 24, "ncclNetSGE_v8_t");
_Static_assert(sizeof(struct ep_coll_part_v9) == 24, "ncclNetSGE_v9_t to v12");

typedef ncclResult_t ep_coll_listen_v8_fn(int dev, void *handle, void **listen_comm);
typedef ncclResult_t ep_coll_connect_fn(void *handles[], int nranks, int rank, void *listen_comm,
					void **coll);
typedef ncclResult_t ep_coll_support_fn(ncclDataType_t type, ncclRedOp_t op, int *supported);
typedef ncclResult_t ep_coll_reduce_fn(void *coll, void *from, void *to, size_t count,
				       ncclDataType_t type, ncclRedOp_t op, void *from_mr,
				       void *to_mr, void **request);
typedef ncclResult_t ep_coll_gather_fn(void *coll, void *from, int nparts,
				       struct ep_coll_part_v9 *parts, size_t each, size_t offset,
				       size_t bytes, void *from_mr, void **request);
typedef ncclResult_t ep_coll_scatter_fn(void *coll, int nparts, struct ep_coll_part_v9 *parts,
					void *to, size_t each, size_t offset, size_t bytes,
					ncclDataType_t type, ncclRedOp_t op, void *to_mr,
					void **request);
typedef ncclResult_t ep_coll_flush_fn(void *coll, void *data, int size, void *mr, void **request);

struct ep_coll_v8 {
	const char *name;
	ncclResult_t (*init)(ep_net_log_fn *log);
	ep_net_devices_fn *devices;
	ncclResult_t (*get_properties)(int dev, struct ep_net_props_v8 *props);
	ep_coll_listen_v8_fn *listen;
	ep_coll_connect_fn *connect;
	ep_coll_support_fn *reduce_support;
	ep_net_reg_fn *reg_mr;
	ep_net_reg_dmabuf_fn *reg_mr_dmabuf;
	ep_net_dereg_fn *dereg_mr;
	ncclResult_t (*iallreduce)(void *coll, void *from, void *to, int count, ncclDataType_t type,
				   ncclRedOp_t op, void *from_mr, void *to_mr, void **request);
	ncclResult_t (*iallgather)(void *coll, void *from, int nparts,
				   struct ep_coll_part_v8 *parts, size_t each, size_t offset,
				   size_t bytes, void *from_mr, void **request);
	ncclResult_t (*ireducescatter)(void *coll, int nparts, struct ep_coll_part_v8 *parts,
				       void *to, size_t each, size_t offset, size_t bytes,
				       ncclDataType_t type, ncclRedOp_t op, void *to_mr,
				       void **request);
	ep_coll_flush_fn *iflush;
	ep_net_test_fn *test;
	ep_net_close_fn *close_coll, *close_listen;
};

struct ep_coll_v9 { /* and v10 */
	const char *name;
	ncclResult_t (*init)(ep_net_log_fn *log);
	ep_net_devices_fn *devices;
	ncclResult_t (*get_properties)(int dev, struct ep_net_props_v9 *props);
	ep_coll_listen_v8_fn *listen;
	ep_coll_connect_fn *connect;
	ep_coll_support_fn *reduce_support;
	ep_net_reg_fn *reg_mr;
	ep_net_reg_dmabuf_fn *reg_mr_dmabuf;
	ep_net_dereg_fn *dereg_mr;
	ep_coll_reduce_fn *iallreduce;
	ep_coll_gather_fn *iallgather;
	ep_coll_scatter_fn *ireducescatter;
	ep_coll_flush_fn *iflush;
	ep_net_test_fn *test;
	ep_net_close_fn *close_coll, *close_listen;
	ep_net_make_vdev_v9_fn *make_vdev;
};

typedef ncclResult_t ep_coll_init_v11_fn(void **ctx, uint64_t comm_id, ep_net_log_fn *log);

struct ep_coll_v11 {
	const char *name;
	ep_coll_init_v11_fn *init;
	ep_net_devices_fn *devices;
	ncclResult_t (*get_properties)(int dev, struct ep_net_props_v11 *props);
	ep_net_listen_v11_fn *listen;
	ep_coll_connect_fn *connect;
	ep_coll_support_fn *reduce_support;
	ep_net_reg_fn *reg_mr;
	ep_net_reg_dmabuf_fn *reg_mr_dmabuf;
	ep_net_dereg_fn *dereg_mr;
	ep_coll_reduce_fn *iallreduce;
	ep_coll_gather_fn *iallgather;
	ep_coll_scatter_fn *ireducescatter;
	ep_coll_flush_fn *iflush;
	ep_net_test_fn *test;
	ep_net_close_fn *close_coll, *close_listen;
	ep_net_make_vdev_v9_fn *make_vdev;
	ep_net_close_fn *finalize;
};

struct ep_coll_v12 {
	const char *name;
	ep_coll_init_v11_fn *init;
	ep_net_devices_fn *devices;
	ncclResult_t (*get_properties)(int dev, struct ep_net_props_v12 *props);
	ep_net_listen_v11_fn *listen;
	ep_coll_connect_fn *connect;
	ep_coll_support_fn *reduce_support;
	ep_net_reg_fn *reg_mr;
	ep_net_reg_dmabuf_fn *reg_mr_dmabuf;
	ep_net_dereg_fn *dereg_mr;
	ep_coll_reduce_fn *iallreduce;
	ep_coll_gather_fn *iallgather;
	ep_coll_scatter_fn *ireducescatter;
	ep_coll_flush_fn *iflush;
	ep_net_test_fn *test;
	ep_net_close_fn *close_coll, *close_listen;
	ep_net_make_vdev_v12_fn *make_vdev;
	ep_net_close_fn *finalize;
};

_Static_assert(sizeof(struct ep_coll_v8) == 136, "ncclCollNet_v8_t");
_Static_assert(sizeof(struct ep_coll_v9) == 144, "ncclCollNet_v9_t, v10");
_Static_assert(sizeof(struct ep_coll_v11) == 152, "ncclCollNet_v11_t");
_Static_assert(sizeof(struct ep_coll_v12) == 152, "ncclCollNet_v12_t");

#endif
