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

/* As in abi.h, a version is that which has a form first. */
typedef ncclResult_t ep_coll_init_v11_fn(void **ctx, uint64_t comm_id, ep_net_log_fn *log);
typedef ncclResult_t ep_coll_connect_fn(void *handles[], int nranks, int rank, void *listen_comm,
					void **coll);
typedef ncclResult_t ep_coll_support_fn(ncclDataType_t type, ncclRedOp_t op, int *supported);
typedef ncclResult_t ep_coll_reduce_v8_fn(void *coll, void *from, void *to, int count,
					  ncclDataType_t type, ncclRedOp_t op, void *from_mr,
					  void *to_mr, void **request);
typedef ncclResult_t ep_coll_reduce_v9_fn(void *coll, void *from, void *to, size_t count,
					  ncclDataType_t type, ncclRedOp_t op, void *from_mr,
					  void *to_mr, void **request);
typedef ncclResult_t ep_coll_gather_v8_fn(void *coll, void *from, int nparts,
					  struct ep_coll_part_v8 *parts, size_t each, size_t offset,
					  size_t bytes, void *from_mr, void **request);
typedef ncclResult_t ep_coll_gather_v9_fn(void *coll, void *from, int nparts,
					  struct ep_coll_part_v9 *parts, size_t each, size_t offset,
					  size_t bytes, void *from_mr, void **request);
typedef ncclResult_t ep_coll_scatter_v8_fn(void *coll, int nparts, struct ep_coll_part_v8 *parts,
					   void *to, size_t each, size_t offset, size_t bytes,
					   ncclDataType_t type, ncclRedOp_t op, void *to_mr,
					   void **request);
typedef ncclResult_t ep_coll_scatter_v9_fn(void *coll, int nparts, struct ep_coll_part_v9 *parts,
					   void *to, size_t each, size_t offset, size_t bytes,
					   ncclDataType_t type, ncclRedOp_t op, void *to_mr,
					   void **request);
typedef ncclResult_t ep_coll_flush_fn(void *coll, void *data, int size, void *mr, void **request);
typedef ep_net_init_v8_fn ep_coll_init_v8_fn;

#define EP_COLL_MEMBERS(init_v, props_v, listen_v, data_v)                                         \
	const char *name;                                                                          \
	ep_coll_init_##init_v##_fn *init;                                                          \
	ep_net_devices_fn *devices;                                                                \
	ep_net_props_##props_v##_fn *get_properties;                                               \
	ep_net_listen_##listen_v##_fn *listen;                                                     \
	ep_coll_connect_fn *connect;                                                               \
	ep_coll_support_fn *reduce_support;                                                        \
	ep_net_reg_fn *reg_mr;                                                                     \
	ep_net_reg_dmabuf_fn *reg_mr_dmabuf;                                                       \
	ep_net_dereg_fn *dereg_mr;                                                                 \
	ep_coll_reduce_##data_v##_fn *iallreduce;                                                  \
	ep_coll_gather_##data_v##_fn *iallgather;                                                  \
	ep_coll_scatter_##data_v##_fn *ireducescatter;                                             \
	ep_coll_flush_fn *iflush;                                                                  \
	ep_net_test_fn *test;                                                                      \
	ep_net_close_fn *close_coll, *close_listen

struct ep_coll_v8 {
	EP_COLL_MEMBERS(v8, v8, v8, v8);
};

struct ep_coll_v9 { /* and v10 */
	EP_COLL_MEMBERS(v8, v9, v8, v9);
	ep_net_make_vdev_v9_fn *make_vdev;
};

struct ep_coll_v11 {
	EP_COLL_MEMBERS(v11, v11, v11, v9);
	ep_net_make_vdev_v9_fn *make_vdev;
	ep_net_close_fn *finalize;
};

struct ep_coll_v12 {
	EP_COLL_MEMBERS(v11, v12, v11, v9);
	ep_net_make_vdev_v12_fn *make_vdev;
	ep_net_close_fn *finalize;
};

_Static_assert(sizeof(struct ep_coll_v8) == 136, "ncclCollNet_v8_t");
_Static_assert(sizeof(struct ep_coll_v9) == 144, "ncclCollNet_v9_t, v10");
_Static_assert(sizeof(struct ep_coll_v11) == 152, "ncclCollNet_v11_t");
_Static_assert(sizeof(struct ep_coll_v12) == 152, "ncclCollNet_v12_t");

#endif
