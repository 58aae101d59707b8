/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small DevX client for tests of the software NIC: it encodes commands by itself, posts from the
 * CPU, and polls a collapsed CQ.
 */
#ifndef VC_NIC_CLIENT_H
#define VC_NIC_CLIENT_H

#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include "device/mlx5/mlx5_layout.h"

#define CL_BAD_WAIT 0xffffffffu
#define CL_DEPTH 64
#define CL_FULL                                                                                    \
	(IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |               \
	 IBV_ACCESS_REMOTE_ATOMIC)

/* A device with what queues need. */
struct cl_dev {
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	struct mlx5dv_devx_uar *uar; /* shared by all queues, unless `own` */
	uint32_t pdn, eqn;
	union ibv_gid gid;
	uint16_t lid;
	uint8_t mac[6];
	bool ib;
	uint8_t tier; /* of queues that ask for nothing else */
};

/* What one end tells the other. */
struct cl_end {
	uint32_t qpn, psn;
	union ibv_gid gid;
	uint16_t lid;
	uint8_t mac[6];
};

struct cl_queue {
	struct cl_dev *dev;
	uint8_t *slab;
	struct mlx5dv_devx_umem *umem;
	struct mlx5dv_devx_uar *uar;
	bool own_uar;
	struct mlx5dv_devx_obj *cq_obj, *qp_obj;
	struct ep_mlx5_wqe *sq;
	struct ep_mlx5_cqe *cqe;
	struct ep_mlx5_dbr *dbr;
	uint32_t cqn, qpn, depth, psn;
	uint64_t pi, done;
	struct cl_end peer;
};

struct cl_options {
	int tier; /* -1: leave it to the firmware */
	bool force;
	uint32_t mtu; /* 0: 4096 */
	uint32_t timeout, retry;
	uint32_t log_rd; /* 0: 4; 1 + log otherwise */
};

void cl_set(void *p, unsigned int bit, unsigned int width, uint64_t value);
uint64_t cl_get(const void *p, unsigned int bit, unsigned int width);

void cl_open(struct cl_dev *dev, int nic);
void cl_close(struct cl_dev *dev);
struct ibv_mr *cl_reg(struct cl_dev *dev, void *p, size_t size, unsigned int access);

void cl_create(struct cl_queue *q, struct cl_dev *dev, uint32_t depth, bool own_uar);
struct cl_end cl_end(const struct cl_queue *q);
/* RST to RTS. The commands' return codes are checked. */
void cl_connect(struct cl_queue *q, const struct cl_end *peer, const struct cl_options *o);
void cl_pair(struct cl_queue *a, struct cl_queue *b, const struct cl_options *o);
void cl_destroy(struct cl_queue *q);

/* The three command buffers, for tests that spoil them. `in` has 272 bytes. */
void cl_fill_cq(struct cl_queue *q, uint8_t *in);
void cl_fill_qp(struct cl_queue *q, uint8_t *in);
void cl_fill_init(struct cl_queue *q, uint8_t *in);
void cl_fill_rtr(struct cl_queue *q, const struct cl_end *peer, const struct cl_options *o,
		 uint8_t *in);
void cl_fill_rts(struct cl_queue *q, const struct cl_options *o, uint8_t *in);
int cl_modify(struct cl_queue *q, const uint8_t *in, size_t size);
void cl_allocate(struct cl_queue *q, struct cl_dev *dev, uint32_t depth, bool own_uar);

/* WQEs. flags: fm_ce_se. They are written, not handed over. */
void cl_write(struct cl_queue *q, const void *from, uint32_t lkey, uint64_t to, uint32_t rkey,
	      uint32_t bytes, uint8_t flags);
void cl_inline(struct cl_queue *q, const void *data, uint32_t bytes, uint64_t to, uint32_t rkey,
	       uint8_t flags);
void cl_add(struct cl_queue *q, void *old, uint32_t lkey, uint64_t at, uint32_t rkey,
	    uint64_t value, uint8_t flags);
void cl_nop(struct cl_queue *q, uint8_t flags);
void cl_ring(struct cl_queue *q);

/* Waits until everything below `index` is done. 0, the syndrome of an error, or CL_BAD_WAIT. */
uint32_t cl_wait_ms(struct cl_queue *q, uint64_t index, uint32_t ms);
uint32_t cl_wait(struct cl_queue *q);

#define CL_SIGNALED EP_MLX5_CE_ALWAYS

#endif
