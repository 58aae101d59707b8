/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's interface to GIN and RMA plugins: what struct ncclGinPlugin_v<n> (11 to 14) and
 * ncclRmaPlugin_v<n> (14 to 16) hold, as NCCL 2.28.7 to 2.32 read them. As in abi.h, written down from
 * the order, types and sizes of the members; nothing here may move.
 */
#ifndef EP_NET_ABI_GIN_H
#define EP_NET_ABI_GIN_H

#include <stdbool.h>
#include "net/abi/abi.h"

struct ep_gin_config_v13 {
	int signals, counters, contexts, queue_depth, traffic_class;
};

struct ep_gin_config_v14 {
	int signals, counters, contexts, queue_depth, traffic_class;
	int backend_version, rank_stride;
};

struct ep_gin_properties_v14 {
	bool strong_signals; /* a signal tells of all that was put before it, */
	bool va_signals;     /* and may be anywhere in registered memory */
};

struct ep_rma_config_v14 { /* and v15, v16 */
	int contexts, traffic_class, rank_stride;
};

struct ep_rma_properties_v16 {
	bool any_signal_flushes; /* a signal tells of what other ranks have put, too */
};

_Static_assert(sizeof(struct ep_gin_config_v13) == 20, "ncclGinConfig_v13_t");
_Static_assert(sizeof(struct ep_gin_config_v14) == 28, "ncclGinConfig_v14_t");
_Static_assert(sizeof(struct ep_gin_properties_v14) == 2, "ncclGinProperties_v14_t");
_Static_assert(sizeof(struct ep_rma_config_v14) == 12, "ncclRmaConfig_v14_t");
_Static_assert(sizeof(struct ep_rma_properties_v16) == 1, "ncclRmaProperties_v16_t");

/* ---- calls that are alike in several versions; `coll`: ranks, `ctx`: contexts of theirs ---- */

typedef ncclResult_t ep_gin_init_fn(void **instance, uint64_t comm_id, ep_net_log_fn *log);
typedef ncclResult_t ep_gin_connect_fn(void *instance, void *handles[], int nranks, int rank,
				       void *listen_comm, void **coll);
typedef ncclResult_t ep_gin_reg_fn(void *coll, void *data, size_t size, int type, uint64_t flags,
				   void **mr, void **gin_mr);
typedef ncclResult_t ep_gin_reg_dmabuf_fn(void *coll, void *data, size_t size, int type,
					  uint64_t offset, int fd, uint64_t flags, void **mr,
					  void **gin_mr);
typedef ncclResult_t ep_rma_reg_fn(void *coll, void *data, size_t size, int type, uint64_t flags,
				   void **mr);
typedef ncclResult_t ep_rma_reg_dmabuf_fn(void *coll, void *data, size_t size, int type,
					  uint64_t offset, int fd, uint64_t flags, void **mr);
typedef ncclResult_t ep_gin_test_fn(void *coll, void *request, int *done);
typedef ncclResult_t ep_gin_error_fn(void *ctx, bool *failed);
typedef ncclResult_t ep_gin_put_fn(void *ctx, int context, uint64_t from_at, void *from,
				   size_t size, uint64_t to_at, void *to, uint32_t rank,
				   void **request);
typedef ncclResult_t ep_gin_flush_fn(void *ctx, int context, void *mr, uint32_t rank,
				     void **request);
typedef ncclResult_t ep_rma_put_v15_fn(void *ctx, int context, uint64_t from_at, void *from,
				       size_t size, uint64_t to_at, void *to, uint32_t rank,
				       uint32_t flags, void **request);
typedef ncclResult_t ep_rma_signal_v15_fn(void *ctx, int context, uint64_t from_at, void *from,
					  size_t size, uint64_t to_at, void *to, uint32_t rank,
					  uint64_t signal_at, void *signal, uint64_t value,
					  uint32_t op, bool strong, uint32_t flags, void **request);
typedef ncclResult_t ep_rma_create_fn(void *coll, struct ep_rma_config_v14 *config, void **ctx);

/* ---- the tables ---- */

struct ep_gin_v11 {
	const char *name;
	ep_gin_init_fn *init;
	ep_net_devices_fn *devices;
	ncclResult_t (*get_properties)(int dev, struct ep_net_props_v11 *props);
	ep_net_listen_v11_fn *listen;
	ep_gin_connect_fn *connect;
	ncclResult_t (*create_context)(void *coll, int signals, int counters, void **ctx,
				       ep_net_device_handle **device); /* NULL: PROXY has none */
	ep_gin_reg_fn *reg_mr_sym;
	ep_gin_reg_dmabuf_fn *reg_mr_sym_dmabuf;
	ep_net_dereg_fn *dereg_mr_sym;
	ep_net_close_fn *destroy_context, *close_coll, *close_listen;
	ncclResult_t (*iput)(void *coll, uint64_t from_at, void *from, size_t size, uint64_t to_at,
			     void *to, uint32_t rank, void **request);
	ncclResult_t (*iput_signal)(void *coll, uint64_t from_at, void *from, size_t size,
				    uint64_t to_at, void *to, uint32_t rank, uint64_t signal_at,
				    void *signal, uint64_t value, uint32_t op, void **request);
	ep_gin_test_fn *test;
	ep_net_close_fn *progress; /* NULL */
	ep_gin_error_fn *query_last_error;
	ep_net_close_fn *finalize;
};

struct ep_gin_v12 {
	const char *name;
	ep_gin_init_fn *init;
	ep_net_devices_fn *devices;
	ncclResult_t (*get_properties)(int dev, struct ep_net_props_v11 *props);
	ep_net_listen_v11_fn *listen;
	ncclResult_t (*connect)(void *instance, void *handles[], int nranks, int rank,
				int connections, int queue_depth, void *listen_comm, void **coll);
	ncclResult_t (*create_context)(void *coll, int signals, int counters, int contexts,
				       void **ctx, ep_net_device_handle **device);
	ep_gin_reg_fn *reg_mr_sym;
	ep_gin_reg_dmabuf_fn *reg_mr_sym_dmabuf;
	ep_net_dereg_fn *dereg_mr_sym;
	ep_net_close_fn *destroy_context, *close_coll, *close_listen;
	ncclResult_t (*iput)(void *coll, uint64_t from_at, void *from, size_t size, uint64_t to_at,
			     void *to, uint32_t rank, int connection, void **request);
	ncclResult_t (*iput_signal)(void *coll, uint64_t from_at, void *from, size_t size,
				    uint64_t to_at, void *to, uint32_t rank, uint64_t signal_at,
				    void *signal, uint64_t value, uint32_t op, int connection,
				    void **request);
	ep_gin_test_fn *test;
	ep_net_close_fn *progress;
	ep_gin_error_fn *query_last_error;
	ep_net_close_fn *finalize;
};

struct ep_gin_v13 {
	const char *name;
	ep_gin_init_fn *init;
	ep_net_devices_fn *devices;
	ncclResult_t (*get_properties)(int dev, struct ep_net_props_v12 *props);
	ep_net_listen_v11_fn *listen;
	ep_gin_connect_fn *connect;
	ncclResult_t (*create_context)(void *coll, struct ep_gin_config_v13 *config, void **ctx,
				       ep_net_device_handle **device);
	ep_gin_reg_fn *reg_mr_sym;
	ep_gin_reg_dmabuf_fn *reg_mr_sym_dmabuf;
	ep_net_dereg_fn *dereg_mr_sym;
	ep_net_close_fn *destroy_context, *close_coll, *close_listen;
	ep_gin_put_fn *iput;
	ncclResult_t (*iput_signal)(void *ctx, int context, uint64_t from_at, void *from,
				    size_t size, uint64_t to_at, void *to, uint32_t rank,
				    uint64_t signal_at, void *signal, uint64_t value, uint32_t op,
				    void **request);
	ep_gin_put_fn *iget;
	ep_gin_flush_fn *iflush;
	ep_gin_test_fn *test;
	ep_net_close_fn *progress;
	ep_gin_error_fn *query_last_error;
	ep_net_close_fn *finalize;
};

struct ep_gin_v14 {
	const char *name;
	ep_gin_init_fn *init;
	ep_net_devices_fn *devices;
	ncclResult_t (*get_gin_properties)(struct ep_gin_properties_v14 *props);
	ncclResult_t (*get_properties)(int dev, struct ep_net_props_v12 *props);
	ep_net_listen_v11_fn *listen;
	ep_gin_connect_fn *connect;
	ncclResult_t (*create_context)(void *coll, struct ep_gin_config_v14 *config, void **ctx,
				       ep_net_device_handle **device);
	ep_gin_reg_fn *reg_mr_sym;
	ep_gin_reg_dmabuf_fn *reg_mr_sym_dmabuf;
	ep_net_dereg_fn *dereg_mr_sym;
	ep_net_close_fn *destroy_context, *close_coll, *close_listen;
	ep_net_close_fn *progress;
	ep_gin_error_fn *query_last_error;
	ep_net_close_fn *finalize;
};

struct ep_rma_v14 {
	const char *name;
	ep_gin_init_fn *init;
	ep_net_devices_fn *devices;
	ncclResult_t (*get_properties)(int dev, struct ep_net_props_v12 *props);
	ep_net_listen_v11_fn *listen;
	ep_gin_connect_fn *connect;
	ep_rma_create_fn *create_context;
	ep_rma_reg_fn *reg_mr_sym;
	ep_rma_reg_dmabuf_fn *reg_mr_sym_dmabuf;
	ep_net_dereg_fn *dereg_mr_sym;
	ep_net_close_fn *destroy_context, *close_coll, *close_listen;
	ep_gin_put_fn *iput;
	ncclResult_t (*iput_signal)(void *ctx, int context, uint64_t from_at, void *from,
				    size_t size, uint64_t to_at, void *to, uint32_t rank,
				    uint64_t signal_at, void *signal, uint64_t value, uint32_t op,
				    bool strong, void **request);
	ep_gin_put_fn *iget;
	ep_gin_flush_fn *iflush;
	ep_gin_test_fn *test;
	ep_net_close_fn *progress;
	ep_gin_error_fn *query_last_error;
	ep_net_close_fn *finalize;
};

/* What follows the description of devices, in v15 and v16. */
struct ep_rma_calls_v15 {
	ncclResult_t (*get_properties)(int dev, struct ep_net_props_v12 *props);
	ep_net_listen_v11_fn *listen;
	ep_gin_connect_fn *connect;
	ep_rma_create_fn *create_context;
	ep_rma_reg_fn *reg_mr_sym;
	ep_rma_reg_dmabuf_fn *reg_mr_sym_dmabuf;
	ep_net_dereg_fn *dereg_mr_sym;
	ep_net_close_fn *destroy_context, *close_coll, *close_listen;
	ep_rma_put_v15_fn *iput;
	ep_rma_signal_v15_fn *iput_signal;
	ep_rma_put_v15_fn *iget;
	ep_gin_flush_fn *iflush;
	ep_gin_test_fn *test;
	ep_net_close_fn *progress;
	ep_gin_error_fn *query_last_error;
	ep_net_close_fn *finalize;
};

struct ep_rma_v15 {
	const char *name;
	ep_gin_init_fn *init;
	ep_net_devices_fn *devices;
	struct ep_rma_calls_v15 calls;
};

struct ep_rma_v16 {
	const char *name;
	ep_gin_init_fn *init;
	ep_net_devices_fn *devices;
	ncclResult_t (*get_rma_properties)(void *coll, struct ep_rma_properties_v16 *props);
	struct ep_rma_calls_v15 calls;
};

_Static_assert(sizeof(struct ep_gin_v11) == 152, "ncclGin_v11_t");
_Static_assert(sizeof(struct ep_gin_v12) == 152, "ncclGin_v12_t");
_Static_assert(sizeof(struct ep_gin_v13) == 168, "ncclGin_v13_t");
_Static_assert(sizeof(struct ep_gin_v14) == 136, "ncclGin_v14_t");
_Static_assert(sizeof(struct ep_rma_v14) == 168, "ncclRma_v14_t");
_Static_assert(sizeof(struct ep_rma_v15) == 168, "ncclRma_v15_t");
_Static_assert(sizeof(struct ep_rma_v16) == 176, "ncclRma_v16_t");
_Static_assert(offsetof(struct ep_gin_v13, iput) == 104, "ncclGin_v13_t iput");
_Static_assert(offsetof(struct ep_rma_v14, test) == 136, "ncclRma_v14_t test");

#endif
