/* SPDX-License-Identifier: Apache-2.0 */
/* What a protection domain holds: regions, umems, doorbell pages, address handles. */
#ifndef VN_MEMORY_H
#define VN_MEMORY_H

#include <infiniband/mlx5dv.h>
#include "nic/device.h"

struct vn_pd {
	struct ibv_pd ibv;
	struct vn_context *ctx;
	uint32_t number;
	uint32_t users;
};

/* Memory that the NIC may touch: a registered region or a umem. */
struct vn_memory {
	uint8_t *at; /* where this process sees it */
	uint64_t size;
	struct vn_gpu *gpu; /* the device that owns it, if plain access does not reach it */
	void *map;          /* the NIC's own mapping, if it made one */
	size_t map_size;
};

struct vn_mr {
	struct ibv_mr ibv;
	struct vn_memory mem;
	struct vn_pd *pd;
	uint64_t iova;
	uint32_t access;
	uint32_t slot;
	bool fork_safe;
	bool sent; /* work requests were to send from it */
};

struct vn_umem {
	struct mlx5dv_devx_umem pub;
	struct vn_context *ctx;
	struct vn_memory mem;
	uint32_t access, users;
	uint64_t page; /* size of the pages that the device sees */
};

struct vn_uar {
	struct mlx5dv_devx_uar pub;
	struct vn_context *ctx;
	uint8_t *page;
	uint64_t last; /* the doorbell word when the NIC looked last */
	uint32_t users, qps, refs;
	struct vn_qp *first; /* of its `qps` queue pairs */
};

struct vn_ah {
	struct ibv_ah ibv;
	struct mlx5_wqe_av av;
	int gid_index;
};

int vn_memory_attach(struct vn_memory *m, void *addr, uint64_t size, bool queue);
int vn_memory_attach_fd(struct vn_memory *m, int fd, uint64_t offset, uint64_t size, uint64_t iova);
void vn_memory_detach(struct vn_memory *m);
/* For tests: so many of the registrations that hold `p` were sent from. */
uint32_t vn_dv_senders(const void *p);
/* Of a region that is made now, with the lock held: whether the NIC keeps its pages in a fork(). */
bool vn_fork_safe(void);
struct vn_mr *vn_mr_find(uint32_t key, bool remote);
/* NULL if the key gives access to these bytes; else the reason why it does not. */
const char *vn_mr_check(uint32_t key, bool remote, const struct vn_pd *pd, uint64_t addr,
			uint64_t bytes, uint32_t need, struct vn_mr **mr, uint8_t **at);
struct vn_umem *vn_umem_find(uint32_t id, const struct vn_context *ctx);
struct vn_uar *vn_uar_find(uint32_t id, const struct vn_context *ctx);

#endif
