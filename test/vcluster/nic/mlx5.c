/* SPDX-License-Identifier: Apache-2.0 */
/* libmlx5.so.1: the names; libibverbs.so.1 has the NIC. */
#include "nic/nic.h"

VN_EXPORT bool mlx5dv_is_supported(struct ibv_device *device)
{
	return vn_dv_is_supported(device);
}

VN_EXPORT struct ibv_context *mlx5dv_open_device(struct ibv_device *device,
						 struct mlx5dv_context_attr *attr)
{
	return vn_dv_open(device, attr);
}

VN_EXPORT int mlx5dv_init_obj(struct mlx5dv_obj *obj, uint64_t type)
{
	return vn_dv_init_obj(obj, type);
}

VN_EXPORT struct mlx5dv_devx_obj *mlx5dv_devx_obj_create(struct ibv_context *c, const void *in,
							 size_t inlen, void *out, size_t outlen)
{
	return vn_dv_create(c, in, inlen, out, outlen);
}

VN_EXPORT int mlx5dv_devx_obj_query(struct mlx5dv_devx_obj *obj, const void *in, size_t inlen,
				    void *out, size_t outlen)
{
	return vn_dv_object_cmd(obj, true, in, inlen, out, outlen);
}

VN_EXPORT int mlx5dv_devx_obj_modify(struct mlx5dv_devx_obj *obj, const void *in, size_t inlen,
				     void *out, size_t outlen)
{
	return vn_dv_object_cmd(obj, false, in, inlen, out, outlen);
}

VN_EXPORT int mlx5dv_devx_obj_destroy(struct mlx5dv_devx_obj *obj)
{
	return vn_dv_destroy(obj);
}

VN_EXPORT int mlx5dv_devx_general_cmd(struct ibv_context *c, const void *in, size_t inlen,
				      void *out, size_t outlen)
{
	return vn_dv_general(c, in, inlen, out, outlen);
}

VN_EXPORT struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg(struct ibv_context *c, void *addr,
							size_t size, uint32_t access)
{
	struct mlx5dv_devx_umem_in in = { .addr = addr, .size = size, .access = access };

	return vn_dv_umem_reg(c, &in);
}

VN_EXPORT struct mlx5dv_devx_umem *mlx5dv_devx_umem_reg_ex(struct ibv_context *c,
							   struct mlx5dv_devx_umem_in *in)
{
	return vn_dv_umem_reg(c, in);
}

VN_EXPORT int mlx5dv_devx_umem_dereg(struct mlx5dv_devx_umem *umem)
{
	return vn_dv_umem_dereg(umem);
}

VN_EXPORT struct mlx5dv_devx_uar *mlx5dv_devx_alloc_uar(struct ibv_context *c, uint32_t flags)
{
	return vn_dv_alloc_uar(c, flags);
}

VN_EXPORT void mlx5dv_devx_free_uar(struct mlx5dv_devx_uar *uar)
{
	vn_dv_free_uar(uar);
}

VN_EXPORT int mlx5dv_devx_query_eqn(struct ibv_context *c, uint32_t vector, uint32_t *eqn)
{
	return vn_dv_query_eqn(c, vector, eqn);
}

VN_EXPORT int mlx5dv_query_qp_lag_port(struct ibv_qp *qp, uint8_t *port, uint8_t *active)
{
	return vn_dv_query_lag_port(qp, port, active);
}

VN_EXPORT int mlx5dv_modify_qp_lag_port(struct ibv_qp *qp, uint8_t port)
{
	return vn_dv_modify_lag_port(qp, port);
}
