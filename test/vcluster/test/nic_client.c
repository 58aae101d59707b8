/* SPDX-License-Identifier: Apache-2.0 */
#include <time.h>
#include <unistd.h>
#include "nic_client.h"
#include "test.h"

#define SLAB_LINES 4096 /* CQE at 0, doorbell records at 64 and 128; then the queue */

void cl_set(void *p, unsigned int bit, unsigned int width, uint64_t value)
{
	uint8_t *bytes = p;

	for (unsigned int i = 0; i < width; i++) {
		unsigned int at = bit + i;
		uint8_t mask = (uint8_t)(0x80 >> at % 8);

		if (value >> (width - 1 - i) & 1) {
			bytes[at / 8] |= mask;
		} else {
			bytes[at / 8] &= (uint8_t)~mask;
		}
	}
}

uint64_t cl_get(const void *p, unsigned int bit, unsigned int width)
{
	const uint8_t *bytes = p;
	uint64_t value = 0;

	for (unsigned int at = bit; at < bit + width; at++) {
		value = value << 1 | (bytes[at / 8] >> (7 - at % 8) & 1);
	}
	return value;
}

/* ----------------------------------------------------------------------------------- devices */

void cl_open(struct cl_dev *dev, int nic)
{
	struct mlx5dv_context_attr attr = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };
	struct ibv_gid_entry entry;
	struct ibv_port_attr port;
	struct mlx5dv_pd out = { 0 };
	struct mlx5dv_obj obj = { 0 };
	struct ibv_device **list;
	int n;

	memset(dev, 0, sizeof(*dev));
	list = ibv_get_device_list(&n);
	NEED(!list || nic >= n);
	dev->ctx = mlx5dv_open_device(list[nic], &attr);
	NEED(!dev->ctx);
	ibv_free_device_list(list);
	dev->pd = ibv_alloc_pd(dev->ctx);
	NEED(!dev->pd);
	obj.pd.in = dev->pd;
	obj.pd.out = &out;
	NEED(mlx5dv_init_obj(&obj, MLX5DV_OBJ_PD));
	dev->pdn = out.pdn;
	NEED(mlx5dv_devx_query_eqn(dev->ctx, 0, &dev->eqn));
	dev->uar = mlx5dv_devx_alloc_uar(dev->ctx, MLX5DV_UAR_ALLOC_TYPE_NC);
	NEED(!dev->uar);
	NEED(ibv_query_port(dev->ctx, 1, &port));
	dev->ib = port.link_layer == IBV_LINK_LAYER_INFINIBAND;
	dev->lid = port.lid;
	NEED(ibv_query_gid_ex(dev->ctx, 1, dev->ib ? 0 : 3, &entry, 0));
	dev->gid = entry.gid;
	if (!dev->ib) { /* what an address handle resolves */
		struct ibv_ah_attr want = { .is_global = 1, .port_num = 1 };
		struct mlx5dv_ah av = { 0 };
		struct ibv_ah *ah;

		want.grh.dgid = dev->gid;
		want.grh.sgid_index = 3;
		ah = ibv_create_ah(dev->pd, &want);
		NEED(!ah);
		obj.ah.in = ah;
		obj.ah.out = &av;
		NEED(mlx5dv_init_obj(&obj, MLX5DV_OBJ_AH));
		memcpy(dev->mac, av.av->rmac, 6);
		NEED(ibv_destroy_ah(ah));
	}
}

void cl_close(struct cl_dev *dev)
{
	mlx5dv_devx_free_uar(dev->uar);
	CHECK_INT(ibv_dealloc_pd(dev->pd), 0);
	CHECK_INT(ibv_close_device(dev->ctx), 0);
}

struct ibv_mr *cl_reg(struct cl_dev *dev, void *p, size_t size, unsigned int access)
{
	struct ibv_mr *mr = ibv_reg_mr(dev->pd, p, size, access);

	NEED(!mr);
	return mr;
}

/* ---------------------------------------------------------------------------------- commands */

void cl_fill_cq(struct cl_queue *q, uint8_t *in)
{
	memset(in, 0, 272);
	cl_set(in, 0, 16, 0x400);
	cl_set(in, 0x80 + 0x6, 1, 1);
	cl_set(in, 0x80 + 0xb, 1, 1); /* cc */
	cl_set(in, 0x80 + 0xe, 1, 1); /* oi */
	cl_set(in, 0x80 + 0x20, 32, q->umem->umem_id);
	cl_set(in, 0x80 + 0x63, 5, 0);
	cl_set(in, 0x80 + 0x68, 24, q->uar->page_id);
	cl_set(in, 0x80 + 0xb8, 8, q->dev->eqn);
	cl_set(in, 0x80 + 0x1c0, 64, 128);
	cl_set(in, 0x280, 64, 0);
	cl_set(in, 0x2c0, 32, q->umem->umem_id);
	cl_set(in, 0x2e0, 1, 1);
}

void cl_fill_qp(struct cl_queue *q, uint8_t *in)
{
	uint8_t *qpc = in + 24;

	memset(in, 0, 272);
	cl_set(in, 0, 16, 0x500);
	cl_set(qpc, 0x13, 2, 3);
	cl_set(qpc, 0x28, 24, q->dev->pdn);
	cl_set(qpc, 0x51, 4, (uint64_t)__builtin_ctz(q->depth));
	cl_set(qpc, 0x68, 24, q->uar->page_id);
	cl_set(qpc, 0x3e8, 24, q->cqn);
	cl_set(qpc, 0x4e8, 24, q->cqn);
	cl_set(qpc, 0x500, 64, 64);
	cl_set(qpc, 0x565, 3, 3);
	cl_set(qpc, 0x683, 1, 1);
	cl_set(qpc, 0x720, 32, q->umem->umem_id);
	cl_set(in, 0x800, 64, SLAB_LINES);
	cl_set(in, 0x840, 32, q->umem->umem_id);
	cl_set(in, 0x860, 1, 1);
}

static void cl_modify_head(struct cl_queue *q, uint8_t *in, uint32_t opcode)
{
	memset(in, 0, 272);
	cl_set(in, 0, 16, opcode);
	cl_set(in, 0x48, 24, q->qpn);
}

void cl_fill_init(struct cl_queue *q, uint8_t *in)
{
	uint8_t *qpc = in + 24;

	cl_modify_head(q, in, 0x502);
	cl_set(qpc, 0x13, 2, 3);
	cl_set(qpc, 0x48c, 4, 3);
	cl_set(qpc, 0x490, 3, 7);
	cl_set(qpc, 0xc0 + 0x128, 8, 1);
}

void cl_fill_rtr(struct cl_queue *q, const struct cl_end *peer, const struct cl_options *o,
		 uint8_t *in)
{
	uint8_t *qpc = in + 24, *path = qpc + 0xc0 / 8;

	cl_modify_head(q, in, 0x503);
	if (o->tier >= 0) {
		cl_set(qpc, 0x26, 1, o->tier & 1);
		cl_set(qpc, 0x49c, 1, (uint64_t)o->tier >> 1);
		cl_set(qpc, 0x27, 1, o->force);
	}
	cl_set(qpc, 0x40, 3, o->mtu ? o->mtu : 5);
	cl_set(qpc, 0x43, 5, 30);
	cl_set(qpc, 0xa8, 24, peer->qpn);
	cl_set(qpc, 0x488, 3, o->log_rd ? o->log_rd - 1 : 4);
	cl_set(qpc, 0x4a3, 5, 12);
	cl_set(qpc, 0x4a8, 24, peer->psn);
	if (q->dev->ib) {
		cl_set(path, 0x30, 16, peer->lid);
		return;
	}
	cl_set(path, 0x48, 8, 3);
	cl_set(path, 0x58, 8, 64);
	memcpy(path + 0x80 / 8, peer->gid.raw, 16);
	cl_set(path, 0x110, 16, 0xc123);
	memcpy(path + 0x130 / 8, peer->mac, 6);
}

void cl_fill_rts(struct cl_queue *q, const struct cl_options *o, uint8_t *in)
{
	uint8_t *qpc = in + 24;

	cl_modify_head(q, in, 0x504);
	cl_set(qpc, 0x388, 3, o->log_rd ? o->log_rd - 1 : 4);
	cl_set(qpc, 0x38d, 3, o->retry ? o->retry : 7);
	cl_set(qpc, 0x390, 3, 7);
	cl_set(qpc, 0x3c8, 24, q->psn);
	cl_set(qpc, 0xc0 + 0x40, 5, o->timeout ? o->timeout : 14);
}

int cl_modify(struct cl_queue *q, const uint8_t *in, size_t size)
{
	uint8_t out[16];

	return mlx5dv_devx_obj_modify(q->qp_obj, in, size, out, sizeof(out));
}

void cl_allocate(struct cl_queue *q, struct cl_dev *dev, uint32_t depth, bool own_uar)
{
	size_t size = SLAB_LINES + depth * 64;
	struct mlx5dv_devx_umem_in umem = { .size = size,
					    .access = IBV_ACCESS_LOCAL_WRITE,
					    .pgsz_bitmap = 4096 };
	void *slab;

	memset(q, 0, sizeof(*q));
	NEED(posix_memalign(&slab, 4096, size));
	memset(slab, 0, size);
	memset(slab, 0xff, 64);
	q->dev = dev;
	q->slab = slab;
	q->depth = depth;
	q->cqe = slab;
	q->dbr = (void *)(q->slab + 64);
	q->sq = (void *)(q->slab + SLAB_LINES);
	q->psn = (uint32_t)(0xfffff0 + (uintptr_t)slab / 4096) & 0xffffff;
	q->uar = own_uar ? mlx5dv_devx_alloc_uar(dev->ctx, MLX5DV_UAR_ALLOC_TYPE_BF) : dev->uar;
	q->own_uar = own_uar;
	umem.addr = slab;
	q->umem = mlx5dv_devx_umem_reg_ex(dev->ctx, &umem);
	NEED(!q->uar || !q->umem);
}

void cl_create(struct cl_queue *q, struct cl_dev *dev, uint32_t depth, bool own_uar)
{
	uint8_t in[272], out[16];

	cl_allocate(q, dev, depth, own_uar);
	cl_fill_cq(q, in);
	q->cq_obj = mlx5dv_devx_obj_create(dev->ctx, in, sizeof(in), out, sizeof(out));
	NEED(!q->cq_obj);
	q->cqn = (uint32_t)cl_get(out, 0x48, 24);
	cl_fill_qp(q, in);
	q->qp_obj = mlx5dv_devx_obj_create(dev->ctx, in, sizeof(in), out, sizeof(out));
	NEED(!q->qp_obj);
	q->qpn = (uint32_t)cl_get(out, 0x48, 24);
}

struct cl_end cl_end(const struct cl_queue *q)
{
	struct cl_end e = { .qpn = q->qpn, .psn = q->psn, .gid = q->dev->gid, .lid = q->dev->lid };

	memcpy(e.mac, q->dev->mac, 6);
	return e;
}

void cl_connect(struct cl_queue *q, const struct cl_end *peer, const struct cl_options *o)
{
	uint8_t in[272];

	q->peer = *peer;
	cl_fill_init(q, in);
	NEED(cl_modify(q, in, sizeof(in)));
	cl_fill_rtr(q, peer, o, in);
	NEED(cl_modify(q, in, sizeof(in)));
	cl_fill_rts(q, o, in);
	NEED(cl_modify(q, in, sizeof(in)));
}

void cl_pair(struct cl_queue *a, struct cl_queue *b, const struct cl_options *o)
{
	struct cl_end ea = cl_end(a), eb = cl_end(b);

	cl_connect(a, &eb, o);
	if (a != b) {
		cl_connect(b, &ea, o);
	}
}

void cl_destroy(struct cl_queue *q)
{
	if (q->qp_obj) {
		CHECK_INT(mlx5dv_devx_obj_destroy(q->qp_obj), 0);
	}
	if (q->cq_obj) {
		CHECK_INT(mlx5dv_devx_obj_destroy(q->cq_obj), 0);
	}
	CHECK_INT(mlx5dv_devx_umem_dereg(q->umem), 0);
	if (q->own_uar) {
		mlx5dv_devx_free_uar(q->uar);
	}
	free(q->slab);
}

/* -------------------------------------------------------------------------------------- WQEs */

static struct ep_mlx5_wqe *cl_slot(struct cl_queue *q)
{
	/* Waits for room: all but the last quarter of the queue may be under way. */
	if (q->pi - q->done >= q->depth - q->depth / 4) {
		CHECK_INT(cl_wait_ms(q, q->pi - q->depth / 2, 90000), 0);
	}
	return &q->sq[q->pi & (q->depth - 1)];
}

static void cl_ctrl(struct cl_queue *q, struct ep_mlx5_wqe *w, uint32_t opcode, uint32_t ds,
		    uint8_t flags)
{
	struct ep_mlx5_ctrl_seg *c = (struct ep_mlx5_ctrl_seg *)w;

	memset(w, 0, 16);
	c->opmod_idx_opcode = htobe32((uint32_t)(q->pi & 0xffff) << 8 | opcode);
	c->qpn_ds = htobe32(q->qpn << 8 | ds);
	/* One in a quarter of the queue is signaled: somebody must make room. */
	c->fm_ce_se = flags | ((q->pi + 1) % (q->depth / 4) == 0 ? CL_SIGNALED : 0);
	q->pi++;
}

static void cl_raddr(struct ep_mlx5_wqe *w, uint64_t addr, uint32_t rkey)
{
	struct ep_mlx5_raddr_seg *r = (struct ep_mlx5_raddr_seg *)((char *)w + 16);

	r->addr = htobe64(addr);
	r->rkey = htobe32(rkey);
	r->reserved = 0;
}

static void cl_data(struct ep_mlx5_wqe *w, uint32_t at, const void *p, uint32_t lkey,
		    uint32_t bytes)
{
	struct ep_mlx5_data_seg *d = (struct ep_mlx5_data_seg *)((char *)w + at);

	d->byte_count = htobe32(bytes);
	d->lkey = htobe32(lkey);
	d->addr = htobe64((uintptr_t)p);
}

void cl_write(struct cl_queue *q, const void *from, uint32_t lkey, uint64_t to, uint32_t rkey,
	      uint32_t bytes, uint8_t flags)
{
	struct ep_mlx5_wqe *w = cl_slot(q);

	cl_ctrl(q, w, EP_MLX5_OP_WRITE, bytes ? 3 : 2, flags);
	cl_raddr(w, to, rkey);
	if (bytes) {
		cl_data(w, 32, from, lkey, bytes);
	}
}

void cl_inline(struct cl_queue *q, const void *data, uint32_t bytes, uint64_t to, uint32_t rkey,
	       uint8_t flags)
{
	struct ep_mlx5_wqe *w = cl_slot(q);
	struct ep_mlx5_inline_seg *in = (struct ep_mlx5_inline_seg *)((char *)w + 32);
	uint32_t segments = (bytes + 4 + 15) / 16;

	cl_ctrl(q, w, EP_MLX5_OP_WRITE, 2 + segments, flags);
	cl_raddr(w, to, rkey);
	memset(in, 0, segments * (size_t)EP_MLX5_SEGMENT);
	in->byte_count = htobe32(bytes | EP_MLX5_INLINE);
	memcpy(in->data, data, bytes);
}

void cl_add(struct cl_queue *q, void *old, uint32_t lkey, uint64_t at, uint32_t rkey,
	    uint64_t value, uint8_t flags)
{
	struct ep_mlx5_wqe *w = cl_slot(q);
	struct ep_mlx5_atomic_seg *a = (struct ep_mlx5_atomic_seg *)((char *)w + 32);

	cl_ctrl(q, w, EP_MLX5_OP_FETCH_ADD, 4, flags);
	cl_raddr(w, at, rkey);
	a->swap_add = htobe64(value);
	a->compare = 0;
	cl_data(w, 48, old, lkey, 8);
}

void cl_nop(struct cl_queue *q, uint8_t flags)
{
	cl_ctrl(q, cl_slot(q), EP_MLX5_OP_NOP, 1, flags);
}

void cl_ring(struct cl_queue *q)
{
	uint64_t *db = (uint64_t *)((char *)q->uar->base_addr + EP_MLX5_UAR_DOORBELL);
	uint32_t next = (uint32_t)(q->pi & 0xffff);
	uint64_t value = (uint64_t)htobe32(q->qpn << 8) << 32 | htobe32(next << 8);

	__atomic_store_n(&q->dbr->send, htobe32(next), __ATOMIC_RELEASE);
	__atomic_store_n(db, value, __ATOMIC_RELEASE);
}

uint32_t cl_wait_ms(struct cl_queue *q, uint64_t index, uint32_t ms)
{
	struct timespec start, now;

	clock_gettime(CLOCK_MONOTONIC, &start);
	for (uint32_t spins = 0;; spins++) {
		uint32_t word = __atomic_load_n((uint32_t *)((char *)q->cqe + EP_MLX5_CQE_DONE_AT),
						__ATOMIC_ACQUIRE);
		uint32_t opcode = word >> 28;

		if (opcode == EP_MLX5_CQE_REQ_ERR) {
			return q->cqe->u.error.syndrome;
		}
		if (opcode == EP_MLX5_CQE_REQ) {
			uint16_t next = (uint16_t)(be16toh((uint16_t)word) + 1);

			q->done = q->pi - (uint16_t)(q->pi - next);
		}
		if (q->done >= index) {
			return 0;
		}
		clock_gettime(CLOCK_MONOTONIC, &now);
		if ((now.tv_sec - start.tv_sec) * 1000 + (now.tv_nsec - start.tv_nsec) / 1000000 >
		    (long)ms) {
			return CL_BAD_WAIT;
		}
		if (spins > 100) {
			usleep(20);
		}
	}
}

uint32_t cl_wait(struct cl_queue *q)
{
	return cl_wait_ms(q, q->pi, 90000);
}
