/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libibverbs and libmlx5 as tables of entry points, which the first use fills. So the library loads
 * on machines that have neither, and works there inside a node. Their headers are used for types
 * only.
 */
#ifndef EP_RDMA_VERBS_H
#define EP_RDMA_VERBS_H

#include <stdbool.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>

/* Name, and the version node where this form came first. M: needed; O: may be NULL. */
#define EP_VERBS_CALLS(M, O)                                                                       \
	M(ibv_get_device_list, "IBVERBS_1.1")                                                      \
	M(ibv_free_device_list, "IBVERBS_1.1")                                                     \
	M(ibv_get_device_name, "IBVERBS_1.1")                                                      \
	M(ibv_open_device, "IBVERBS_1.1")                                                          \
	M(ibv_close_device, "IBVERBS_1.1")                                                         \
	M(ibv_query_device, "IBVERBS_1.1")                                                         \
	M(ibv_query_port, "IBVERBS_1.1")                                                           \
	M(ibv_query_gid, "IBVERBS_1.1")                                                            \
	M(ibv_query_pkey, "IBVERBS_1.1")                                                           \
	M(ibv_alloc_pd, "IBVERBS_1.1")                                                             \
	M(ibv_dealloc_pd, "IBVERBS_1.1")                                                           \
	M(ibv_reg_mr, "IBVERBS_1.1")                                                               \
	M(ibv_dereg_mr, "IBVERBS_1.1")                                                             \
	M(ibv_create_cq, "IBVERBS_1.1")                                                            \
	M(ibv_destroy_cq, "IBVERBS_1.1")                                                           \
	M(ibv_create_qp, "IBVERBS_1.1")                                                            \
	M(ibv_modify_qp, "IBVERBS_1.1")                                                            \
	M(ibv_query_qp, "IBVERBS_1.1")                                                             \
	M(ibv_destroy_qp, "IBVERBS_1.1")                                                           \
	M(ibv_create_ah, "IBVERBS_1.1")                                                            \
	M(ibv_destroy_ah, "IBVERBS_1.1")                                                           \
	M(ibv_get_async_event, "IBVERBS_1.1")                                                      \
	M(ibv_ack_async_event, "IBVERBS_1.1")                                                      \
	M(ibv_fork_init, "IBVERBS_1.1")                                                            \
	O(ibv_reg_mr_iova2, "IBVERBS_1.8")                                                         \
	O(ibv_query_ece, "IBVERBS_1.10")                                                           \
	O(ibv_set_ece, "IBVERBS_1.10")                                                             \
	O(_ibv_query_gid_ex, "IBVERBS_1.11")                                                       \
	O(ibv_reg_dmabuf_mr, "IBVERBS_1.12")                                                       \
	O(ibv_is_fork_initialized, "IBVERBS_1.13")

#define EP_MLX5DV_CALLS(M, O)                                                                      \
	M(mlx5dv_is_supported, "MLX5_1.8")                                                         \
	M(mlx5dv_open_device, "MLX5_1.7")                                                          \
	M(mlx5dv_init_obj, "MLX5_1.2")                                                             \
	M(mlx5dv_devx_general_cmd, "MLX5_1.7")                                                     \
	M(mlx5dv_devx_obj_create, "MLX5_1.7")                                                      \
	M(mlx5dv_devx_obj_modify, "MLX5_1.7")                                                      \
	M(mlx5dv_devx_obj_query, "MLX5_1.7")                                                       \
	M(mlx5dv_devx_obj_destroy, "MLX5_1.7")                                                     \
	M(mlx5dv_devx_umem_reg, "MLX5_1.7")                                                        \
	M(mlx5dv_devx_umem_dereg, "MLX5_1.7")                                                      \
	M(mlx5dv_devx_alloc_uar, "MLX5_1.7")                                                       \
	M(mlx5dv_devx_free_uar, "MLX5_1.7")                                                        \
	M(mlx5dv_devx_query_eqn, "MLX5_1.7")                                                       \
	O(mlx5dv_query_qp_lag_port, "MLX5_1.14")                                                   \
	O(mlx5dv_modify_qp_lag_port, "MLX5_1.14")                                                  \
	O(mlx5dv_devx_umem_reg_ex, "MLX5_1.19")

#define EP_VERBS_MEMBER(name, version) __typeof__(name) *name;

/*
 * The members are called through (table->name)(...), because some names are macros that take
 * arguments.
 */
struct ep_verbs {
	EP_VERBS_CALLS(EP_VERBS_MEMBER, EP_VERBS_MEMBER)
};

struct ep_mlx5dv {
	EP_MLX5DV_CALLS(EP_VERBS_MEMBER, EP_VERBS_MEMBER)
};

/*
 * Return the table of a library, or NULL with the reason in *why, which is static. The first call
 * of ep_verbs() has libibverbs protect registered memory in a fork(). Kernels from 5.12 on do so
 * themselves.
 */
const struct ep_verbs *ep_verbs(const char **why);
const struct ep_mlx5dv *ep_mlx5dv(const char **why);

/* Does what ibv_query_port() does, without libibverbs at link time. Returns 0 or an errno value. */
int ep_verbs_query_port(const struct ep_verbs *verbs, struct ibv_context *ctx, uint8_t port,
			struct ibv_port_attr *attr);

/*
 * Registers memory as ibv_reg_mr() does, and returns NULL with errno on failure. Optional flags in
 * `access` are dropped where libibverbs cannot pass them.
 */
struct ibv_mr *ep_verbs_reg_mr(const struct ep_verbs *verbs, struct ibv_pd *pd, void *addr,
			       size_t bytes, unsigned int access);

#endif
