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
	bool strong_signals; /* a signal announces all that was put before it, */
	bool va_signals;     /* and may be anywhere in registered memory */
};

struct ep_rma_config_v14 { /* and v15, v16 */
	int contexts, traffic_class, rank_stride;
};

struct ep_rma_properties_v16 {
	bool any_signal_flushes; /* a signal announces what other ranks have put, too */
};

_Static_assert(sizeof(struct ep_gin_config_v13) == 20, "ncclGinConfig_v13_t");
_Static_assert(sizeof(struct ep_gin_config_v14) == 28, "ncclGinConfig_v14_t");
_Static_assert(sizeof(struct ep_gin_properties_v14) == 2, "ncclGinProperties_v14_t");
_Static_assert(sizeof(struct ep_rma_config_v14) == 12, "ncclRmaConfig_v14_t");
_Static_assert(sizeof(struct ep_rma_properties_v16) == 1, "ncclRmaProperties_v16_t");

/* ---- calls; `coll`: ranks, `ctx`: contexts of theirs; a version is that which has a form first ---- */

typedef ncclResult_t ep_gin_init_fn(void **instance, uint64_t comm_id, ep_net_log_fn *log);
typedef ncclResult_t ep_gin_connect_fn(void *instance, void *handles[], int nranks, int rank,
				       void *listen_comm, void **coll);
typedef ncclResult_t ep_gin_connect_v12_fn(void *instance, void *handles[], int nranks, int rank,
					   int connections, int queue_depth, void *listen_comm,
					   void **coll);
typedef ncclResult_t ep_gin_reg_fn(void *coll, void *data, size_t size, int type, uint64_t flags,
				   void **mr, void **gin_mr);
typedef ncclResult_t ep_gin_reg_dmabuf_fn(void *coll, void *data, size_t size, int type,
					  uint64_t offset, int fd, uint64_t flags, void **mr,
					  void **gin_mr);
typedef ncclResult_t ep_rma_reg_fn(void *coll, void *data, size_t size, int type, uint64_t flags,
				   void **mr);
typedef ncclResult_t ep_rma_reg_dmabuf_fn(void *coll, void *data, size_t size, int type,
					  uint64_t offset, int fd, uint64_t flags, void **mr);
typedef ncclResult_t ep_gin_create_v11_fn(void *coll, int signals, int counters, void **ctx,
					  ep_net_device_handle **device);
typedef ncclResult_t ep_gin_create_v12_fn(void *coll, int signals, int counters, int contexts,
					  void **ctx, ep_net_device_handle **device);
typedef ncclResult_t ep_gin_create_v13_fn(void *coll, struct ep_gin_config_v13 *config, void **ctx,
					  ep_net_device_handle **device);
typedef ncclResult_t ep_gin_create_v14_fn(void *coll, struct ep_gin_config_v14 *config, void **ctx,
					  ep_net_device_handle **device);
typedef ncclResult_t ep_rma_create_fn(void *coll, struct ep_rma_config_v14 *config, void **ctx);
typedef ncclResult_t ep_gin_test_fn(void *coll, void *request, int *done);
typedef ncclResult_t ep_gin_error_fn(void *ctx, bool *failed);

/* Arguments of a put and of its signal, between those that differ. */
#define EP_GIN_PUT_ARGS                                                                            \
	uint64_t from_at, void *from, size_t size, uint64_t to_at, void *to, uint32_t rank
#define EP_GIN_SIGNAL_ARGS                                                                         \
	EP_GIN_PUT_ARGS, uint64_t signal_at, void *signal, uint64_t value, uint32_t op

typedef ncclResult_t ep_gin_put_v11_fn(void *coll, EP_GIN_PUT_ARGS, void **request);
typedef ncclResult_t ep_gin_put_v12_fn(void *coll, EP_GIN_PUT_ARGS, int connection, void **request);
typedef ncclResult_t ep_gin_put_v13_fn(void *ctx, int context, EP_GIN_PUT_ARGS, void **request);
typedef ncclResult_t ep_rma_put_v15_fn(void *ctx, int context, EP_GIN_PUT_ARGS, uint32_t flags,
				       void **request);
typedef ncclResult_t ep_gin_signal_v11_fn(void *coll, EP_GIN_SIGNAL_ARGS, void **request);
typedef ncclResult_t ep_gin_signal_v12_fn(void *coll, EP_GIN_SIGNAL_ARGS, int connection,
					  void **request);
typedef ncclResult_t ep_gin_signal_v13_fn(void *ctx, int context, EP_GIN_SIGNAL_ARGS,
					  void **request);
typedef ncclResult_t ep_rma_signal_v14_fn(void *ctx, int context, EP_GIN_SIGNAL_ARGS, bool strong,
					  void **request);
typedef ncclResult_t ep_rma_signal_v15_fn(void *ctx, int context, EP_GIN_SIGNAL_ARGS, bool strong,
					  uint32_t flags, void **request);
typedef ncclResult_t ep_gin_flush_fn(void *ctx, int context, void *mr, uint32_t rank,
				     void **request);
typedef ncclResult_t ep_gin_features_fn(struct ep_gin_properties_v14 *props);
typedef ncclResult_t ep_rma_features_fn(void *coll, struct ep_rma_properties_v16 *props);

/* ---- the tables: runs of members that they share ---- */

#define EP_GIN_BEGIN                                                                               \
	const char *name;                                                                          \
	ep_gin_init_fn *init;                                                                      \
	ep_net_devices_fn *devices
#define EP_GIN_MAKE(props_v, connect_fn, create_fn, reg_fn, reg_dmabuf_fn)                         \
	ep_net_props_##props_v##_fn *get_properties;                                               \
	ep_net_listen_v11_fn *listen;                                                              \
	connect_fn *connect;                                                                       \
	create_fn *create_context; /* NULL in v11, v12: PROXY has none */                          \
	reg_fn *reg_mr_sym;                                                                        \
	reg_dmabuf_fn *reg_mr_sym_dmabuf;                                                          \
	ep_net_dereg_fn *dereg_mr_sym;                                                             \
	ep_net_close_fn *destroy_context, *close_coll, *close_listen
#define EP_GIN_DATA(put_fn, signal_fn)                                                             \
	put_fn *iput;                                                                              \
	signal_fn *iput_signal
#define EP_GIN_READ(get_fn)                                                                        \
	get_fn *iget;                                                                              \
	ep_gin_flush_fn *iflush
#define EP_GIN_END                                                                                 \
	ep_net_close_fn *progress; /* NULL */                                                      \
	ep_gin_error_fn *query_last_error;                                                         \
	ep_net_close_fn *finalize

struct ep_gin_v11 {
	EP_GIN_BEGIN;
	EP_GIN_MAKE(v11, ep_gin_connect_fn, ep_gin_create_v11_fn, ep_gin_reg_fn,
		    ep_gin_reg_dmabuf_fn);
	EP_GIN_DATA(ep_gin_put_v11_fn, ep_gin_signal_v11_fn);
	ep_gin_test_fn *test;
	EP_GIN_END;
};

struct ep_gin_v12 {
	EP_GIN_BEGIN;
	EP_GIN_MAKE(v11, ep_gin_connect_v12_fn, ep_gin_create_v12_fn, ep_gin_reg_fn,
		    ep_gin_reg_dmabuf_fn);
	EP_GIN_DATA(ep_gin_put_v12_fn, ep_gin_signal_v12_fn);
	ep_gin_test_fn *test;
	EP_GIN_END;
};

struct ep_gin_v13 {
	EP_GIN_BEGIN;
	EP_GIN_MAKE(v12, ep_gin_connect_fn, ep_gin_create_v13_fn, ep_gin_reg_fn,
		    ep_gin_reg_dmabuf_fn);
	EP_GIN_DATA(ep_gin_put_v13_fn, ep_gin_signal_v13_fn);
	EP_GIN_READ(ep_gin_put_v13_fn);
	ep_gin_test_fn *test;
	EP_GIN_END;
};

struct ep_gin_v14 {
	EP_GIN_BEGIN;
	ep_gin_features_fn *get_gin_properties;
	EP_GIN_MAKE(v12, ep_gin_connect_fn, ep_gin_create_v14_fn, ep_gin_reg_fn,
		    ep_gin_reg_dmabuf_fn);
	EP_GIN_END;
};

struct ep_rma_v14 {
	EP_GIN_BEGIN;
	EP_GIN_MAKE(v12, ep_gin_connect_fn, ep_rma_create_fn, ep_rma_reg_fn, ep_rma_reg_dmabuf_fn);
	EP_GIN_DATA(ep_gin_put_v13_fn, ep_rma_signal_v14_fn);
	EP_GIN_READ(ep_gin_put_v13_fn);
	ep_gin_test_fn *test;
	EP_GIN_END;
};

#define EP_RMA_CALLS                                                                               \
	EP_GIN_MAKE(v12, ep_gin_connect_fn, ep_rma_create_fn, ep_rma_reg_fn,                       \
		    ep_rma_reg_dmabuf_fn);                                                         \
	EP_GIN_DATA(ep_rma_put_v15_fn, ep_rma_signal_v15_fn);                                      \
	EP_GIN_READ(ep_rma_put_v15_fn);                                                            \
	ep_gin_test_fn *test;                                                                      \
	EP_GIN_END

struct ep_rma_v15 {
	EP_GIN_BEGIN;
	EP_RMA_CALLS;
};

struct ep_rma_v16 {
	EP_GIN_BEGIN;
	ep_rma_features_fn *get_rma_properties;
	EP_RMA_CALLS;
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
