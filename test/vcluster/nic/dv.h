/* SPDX-License-Identifier: Apache-2.0 */
/* What libmlx5.so.1 asks of libibverbs.so.1. */
#ifndef VN_DV_H
#define VN_DV_H

#include <infiniband/mlx5dv.h>

/* MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED of later releases */
#define VN_UAR_NC_DEDICATED 0x80000000u

int vn_dv_is_supported(struct ibv_device *device);
struct ibv_context *vn_dv_open(struct ibv_device *device, const struct mlx5dv_context_attr *attr);
int vn_dv_init_obj(struct mlx5dv_obj *obj, uint64_t type);
int vn_dv_query_device(struct ibv_context *c, struct mlx5dv_context *attr);
struct mlx5dv_devx_umem *vn_dv_umem_reg(struct ibv_context *c,
					const struct mlx5dv_devx_umem_in *in);
int vn_dv_umem_dereg(struct mlx5dv_devx_umem *umem);
struct mlx5dv_devx_uar *vn_dv_alloc_uar(struct ibv_context *c, uint32_t flags);
void vn_dv_free_uar(struct mlx5dv_devx_uar *uar);
int vn_dv_query_eqn(struct ibv_context *c, uint32_t vector, uint32_t *eqn);
struct mlx5dv_devx_obj *vn_dv_create(struct ibv_context *c, const void *in, size_t inlen, void *out,
				     size_t outlen);
int vn_dv_object_cmd(struct mlx5dv_devx_obj *obj, bool query, const void *in, size_t inlen,
		     void *out, size_t outlen);
int vn_dv_destroy(struct mlx5dv_devx_obj *obj);
int vn_dv_query_lag_port(struct ibv_qp *ibv, uint8_t *port, uint8_t *active);
int vn_dv_modify_lag_port(struct ibv_qp *ibv, uint8_t port);
int vn_dv_general(struct ibv_context *c, const void *in, size_t inlen, void *out, size_t outlen);

#endif
