/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's interface to network plugins, versions 8 to 12: what a struct ncclNetPlugin_v<n> holds, as
 * NCCL 2.20 to 2.32 read it, and what the tables for collectives and GIN do. Written down from the
 * order, types and sizes of the members that NCCL's documentation of plugins gives (NCCL's
 * repository, plugins/net); a program reads these tables by position, so that nothing here may
 * move.
 */
#ifndef EP_NET_ABI_H
#define EP_NET_ABI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <nccl.h>

#define EP_NET_HANDLE_BYTES 128 /* of what listen() fills in */
#define EP_NET_MAX_REQUESTS 32  /* groups of receives of a connection that are under way */

enum ep_net_ptr {
	EP_NET_PTR_HOST = 1,
	EP_NET_PTR_CUDA = 2,
	EP_NET_PTR_DMABUF = 4
};

enum {
	EP_NET_DEVICE_HOST = 0,
	EP_NET_DEVICE_GIN_PROXY = 2,
	EP_NET_DEVICE_VERSION = 0
};

typedef void ep_net_log_fn(int level, unsigned long flags, const char *file, int line,
			   const char *fmt, ...);
typedef ncclResult_t ep_net_profile_fn(void **event, int type, void *plugin, int64_t id,
				       void *data);
typedef struct ep_net_device_handle ep_net_device_handle; /* always NULL: no device code */

/* ---- properties of a device ---- */

struct ep_net_props_v8 {
	char *name;
	char *pci_path;
	uint64_t guid;
	int ptr_support;
	int reg_is_global;
	int speed; /* Mbit/s */
	int port;
	float latency;
	int max_comms;
	int max_recvs;
	int device_type;
	int device_version;
};

struct ep_net_vdev_v9 {
	int ndevs;
	int devs[4];
};

struct ep_net_vdev_v12 {
	int ndevs;
	int devs[8];
};

#define EP_NET_PROPS(vdev_v)                                                                       \
	char *name;                                                                                \
	char *pci_path;                                                                            \
	uint64_t guid;                                                                             \
	int ptr_support;                                                                           \
	int reg_is_global;                                                                         \
	int force_flush;                                                                           \
	int speed;                                                                                 \
	int port;                                                                                  \
	float latency;                                                                             \
	int max_comms;                                                                             \
	int max_recvs;                                                                             \
	int device_type;                                                                           \
	int device_version;                                                                        \
	struct ep_net_vdev_##vdev_v vdev;                                                          \
	size_t max_p2p_bytes;                                                                      \
	size_t max_coll_bytes

struct ep_net_props_v9 { /* and v10 */
	EP_NET_PROPS(v9);
};

struct ep_net_props_v11 {
	struct ep_net_props_v9 v9;
	int max_multi_request;
};

/* Planes of a merged NIC are bits beside this one. */
#define EP_NET_PLANES 14
#define EP_NET_PLANES_MERGED (1 << EP_NET_PLANES)

struct ep_net_props_v12 {
	EP_NET_PROPS(v12);
	int max_multi_request;
	int16_t rail;
	int16_t plane;
};

_Static_assert(sizeof(struct ep_net_props_v8) == 64, "ncclNetProperties_v8_t");
_Static_assert(sizeof(struct ep_net_props_v9) == 104, "ncclNetProperties_v9_t, v10");
_Static_assert(sizeof(struct ep_net_props_v11) == 112, "ncclNetProperties_v11_t");
_Static_assert(sizeof(struct ep_net_props_v12) == 128, "ncclNetProperties_v12_t");
_Static_assert(offsetof(struct ep_net_props_v9, vdev) == 64, "ncclNetProperties_v9_t vProps");
_Static_assert(offsetof(struct ep_net_props_v12, rail) == 124, "ncclNetProperties_v12_t railId");

struct ep_net_config {
	int traffic_class; /* -1: none given */
};

struct ep_net_attr; /* a hint that is not used */

/* ---- calls: a version is that which has a form first ---- */

typedef ncclResult_t ep_net_init_v8_fn(ep_net_log_fn *log);
typedef ncclResult_t ep_net_init_v10_fn(ep_net_log_fn *log, ep_net_profile_fn *profile);
typedef ncclResult_t ep_net_init_v11_fn(void **ctx, uint64_t comm_id, struct ep_net_config *config,
					ep_net_log_fn *log, ep_net_profile_fn *profile);
typedef ncclResult_t ep_net_devices_fn(int *ndevs);
typedef ncclResult_t ep_net_props_v8_fn(int dev, struct ep_net_props_v8 *props);
typedef ncclResult_t ep_net_props_v9_fn(int dev, struct ep_net_props_v9 *props);
typedef ncclResult_t ep_net_props_v11_fn(int dev, struct ep_net_props_v11 *props);
typedef ncclResult_t ep_net_props_v12_fn(int dev, struct ep_net_props_v12 *props);
typedef ncclResult_t ep_net_listen_v8_fn(int dev, void *handle, void **listen_comm);
typedef ncclResult_t ep_net_listen_v11_fn(void *ctx, int dev, void *handle, void **listen_comm);
typedef ncclResult_t ep_net_connect_v8_fn(int dev, void *handle, void **send_comm,
					  ep_net_device_handle **device);
typedef ncclResult_t ep_net_connect_v10_fn(int dev, struct ep_net_config *config, void *handle,
					   void **send_comm, ep_net_device_handle **device);
typedef ncclResult_t ep_net_connect_v11_fn(void *ctx, int dev, void *handle, void **send_comm,
					   ep_net_device_handle **device);
typedef ncclResult_t ep_net_accept_fn(void *listen_comm, void **recv_comm,
				      ep_net_device_handle **device);
typedef ncclResult_t ep_net_reg_fn(void *comm, void *data, size_t size, int type, void **mr);
typedef ncclResult_t ep_net_reg_dmabuf_fn(void *comm, void *data, size_t size, int type,
					  uint64_t offset, int fd, void **mr);
typedef ncclResult_t ep_net_dereg_fn(void *comm, void *mr);
typedef ncclResult_t ep_net_isend_v8_fn(void *send_comm, void *data, int size, int tag, void *mr,
					void **request);
typedef ncclResult_t ep_net_isend_v9_fn(void *send_comm, void *data, size_t size, int tag, void *mr,
					void **request);
typedef ncclResult_t ep_net_isend_v10_fn(void *send_comm, void *data, size_t size, int tag,
					 void *mr, void *profile, void **request);
typedef ncclResult_t ep_net_irecv_v8_fn(void *recv_comm, int n, void **data, int *sizes, int *tags,
					void **mr, void **request);
typedef ncclResult_t ep_net_irecv_v9_fn(void *recv_comm, int n, void **data, size_t *sizes,
					int *tags, void **mr, void **request);
typedef ncclResult_t ep_net_irecv_v10_fn(void *recv_comm, int n, void **data, size_t *sizes,
					 int *tags, void **mr, void **profile, void **request);
typedef ncclResult_t ep_net_flush_fn(void *recv_comm, int n, void **data, int *sizes, void **mr,
				     void **request);
typedef ncclResult_t ep_net_test_fn(void *request, int *done, int *sizes);
typedef ncclResult_t ep_net_close_fn(void *comm);
typedef ncclResult_t ep_net_device_mr_fn(void *comm, void *mr, void **device_mr);
typedef ncclResult_t ep_net_consumed_fn(void *recv_comm, int n, void *request);
typedef ncclResult_t ep_net_make_vdev_v9_fn(int *dev, struct ep_net_vdev_v9 *props);
typedef ncclResult_t ep_net_make_vdev_v12_fn(int *dev, struct ep_net_vdev_v12 *props);
typedef ncclResult_t ep_net_set_attr_fn(void *ctx, struct ep_net_attr *attr);

/* ---- the tables ---- */

/* The first members of all tables. The arguments are versions of calls, and of properties. */
#define EP_NET_MEMBERS(init_v, props_v, listen_v, connect_v, data_v)                               \
	const char *name;                                                                          \
	ep_net_init_##init_v##_fn *init;                                                           \
	ep_net_devices_fn *devices;                                                                \
	ep_net_props_##props_v##_fn *get_properties;                                               \
	ep_net_listen_##listen_v##_fn *listen;                                                     \
	ep_net_connect_##connect_v##_fn *connect;                                                  \
	ep_net_accept_fn *accept;                                                                  \
	ep_net_reg_fn *reg_mr;                                                                     \
	ep_net_reg_dmabuf_fn *reg_mr_dmabuf;                                                       \
	ep_net_dereg_fn *dereg_mr;                                                                 \
	ep_net_isend_##data_v##_fn *isend;                                                         \
	ep_net_irecv_##data_v##_fn *irecv;                                                         \
	ep_net_flush_fn *iflush;                                                                   \
	ep_net_test_fn *test;                                                                      \
	ep_net_close_fn *close_send, *close_recv, *close_listen;                                   \
	ep_net_device_mr_fn *get_device_mr; /* NULL */                                             \
	ep_net_consumed_fn *irecv_consumed  /* NULL */

struct ep_net_v8 {
	EP_NET_MEMBERS(v8, v8, v8, v8, v8);
};

struct ep_net_v9 {
	EP_NET_MEMBERS(v8, v9, v8, v8, v9);
	ep_net_make_vdev_v9_fn *make_vdev; /* NULL: NICs are not merged */
};

struct ep_net_v10 {
	EP_NET_MEMBERS(v10, v9, v8, v10, v10);
	ep_net_make_vdev_v9_fn *make_vdev;
};

struct ep_net_v11 {
	EP_NET_MEMBERS(v11, v11, v11, v11, v10);
	ep_net_make_vdev_v9_fn *make_vdev;
	ep_net_close_fn *finalize;
	ep_net_set_attr_fn *set_attr; /* NULL */
};

struct ep_net_v12 {
	EP_NET_MEMBERS(v11, v12, v11, v11, v10);
	ep_net_make_vdev_v12_fn *make_vdev;
	ep_net_close_fn *finalize;
	ep_net_set_attr_fn *set_attr;
};

_Static_assert(sizeof(struct ep_net_v8) == 152, "ncclNet_v8_t");
_Static_assert(sizeof(struct ep_net_v9) == 160, "ncclNet_v9_t");
_Static_assert(sizeof(struct ep_net_v10) == 160, "ncclNet_v10_t");
_Static_assert(sizeof(struct ep_net_v11) == 176, "ncclNet_v11_t");
_Static_assert(sizeof(struct ep_net_v12) == 176, "ncclNet_v12_t");

/* ---- collectives: ncclCollNetPlugin_v8 to v12, as NCCL 2.20 to 2.32 read them ---- */

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

/* ---- GIN: ncclGinPlugin_v11, as NCCL 2.28.7 to 2.28.9 read it; `coll`: connected ranks ---- */

#define EP_NET_SIGNAL_INC 1u
#define EP_NET_SIGNAL_ADD 2u

/* Arguments of a put and of its signal. */
#define EP_GIN_PUT_ARGS                                                                            \
	uint64_t from_at, void *from, size_t size, uint64_t to_at, void *to, uint32_t rank
#define EP_GIN_SIGNAL_ARGS                                                                         \
	EP_GIN_PUT_ARGS, uint64_t signal_at, void *signal, uint64_t value, uint32_t op

struct ep_gin_v11 {
	const char *name;
	ncclResult_t (*init)(void **instance, uint64_t comm_id, ep_net_log_fn *log);
	ep_net_devices_fn *devices;
	ep_net_props_v11_fn *get_properties;
	ep_net_listen_v11_fn *listen;
	ncclResult_t (*connect)(void *instance, void *handles[], int nranks, int rank,
				void *listen_comm, void **coll);
	ncclResult_t (*create_context)(void *coll, int signals, int counters, void **ctx,
				       ep_net_device_handle **device); /* NULL: PROXY has none */
	ncclResult_t (*reg_mr_sym)(void *coll, void *data, size_t size, int type, uint64_t flags,
				   void **mr, void **gin_mr);
	ncclResult_t (*reg_mr_sym_dmabuf)(void *coll, void *data, size_t size, int type,
					  uint64_t offset, int fd, uint64_t flags, void **mr,
					  void **gin_mr);
	ep_net_dereg_fn *dereg_mr_sym;
	ep_net_close_fn *destroy_context, *close_coll, *close_listen;
	ncclResult_t (*iput)(void *coll, EP_GIN_PUT_ARGS, void **request);
	ncclResult_t (*iput_signal)(void *coll, EP_GIN_SIGNAL_ARGS, void **request);
	ncclResult_t (*test)(void *coll, void *request, int *done);
	ep_net_close_fn *progress;                                 /* NULL */
	ncclResult_t (*query_last_error)(void *ctx, bool *failed); /* NULL */
	ep_net_close_fn *finalize;
};

_Static_assert(sizeof(struct ep_gin_v11) == 152, "ncclGin_v11_t");
_Static_assert(offsetof(struct ep_gin_v11, iput) == 104, "ncclGin_v11_t iput");

#endif
