/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Errors that hardware reports: completions with their syndrome, the rest flushed, states of both
 * ends; commands that firmware refuses.
 */
#include <time.h>
#include "nic_client.h"
#include "test.h"

#define NO_KEY 0x77777700u

static struct cl_dev dev, dev2;
static uint8_t buffer[8192] __attribute__((aligned(4096)));
static struct ibv_mr *mr, *mr_read, *mr_other;

static uint32_t state_of(struct cl_queue *q)
{
	uint8_t in[16] = { 0 }, out[272 + 192];

	cl_set(in, 0, 16, 0x50b);
	cl_set(in, 0x40, 1, 1);
	cl_set(in, 0x48, 24, q->qpn);
	CHECK_INT(mlx5dv_devx_obj_query(q->qp_obj, in, 16, out, sizeof(out)), 0);
	return (uint32_t)(cl_get(out, 0xc0, 4) | cl_get(out, 0x8f8, 8) << 8);
}

static uint64_t far(uint32_t at)
{
	return (uintptr_t)buffer + at;
}

struct access {
	const char *what;
	uint8_t opcode;
	uint32_t from, lkey, to, rkey;
	uint32_t syndrome;
};

static void post(struct cl_queue *q, const struct access *c)
{
	uint8_t *at = buffer + c->from;

	if (c->opcode == EP_MLX5_OP_WRITE) {
		cl_write(q, at, c->lkey, far(c->to), c->rkey, 8, 0);
	} else {
		cl_add(q, at, c->lkey, far(c->to), c->rkey, 8, 0);
	}
}

/* The access fails with its syndrome; what follows is flushed. */
static void fails(const struct access *c)
{
	uint32_t syndrome = c->syndrome;
	bool peer_too = syndrome == EP_MLX5_SYND_REMOTE_ACCESS;
	struct cl_options o = { .tier = 0, .force = true };
	struct cl_queue q, peer;
	int before = test_failures;

	cl_create(&q, &dev, CL_DEPTH, false);
	cl_create(&peer, &dev, CL_DEPTH, false);
	cl_pair(&q, &peer, &o);
	post(&q, c);
	cl_ring(&q);
	CHECK_INT(cl_wait(&q), syndrome);
	CHECK_INT(state_of(&q), 6 | syndrome << 8);
	CHECK_INT(state_of(&peer) & 0xff, peer_too ? 6 : 3);
	CHECK_INT(be16toh(q.cqe->wqe_counter), 0);
	CHECK_INT(be32toh(q.cqe->opcode_qpn) & 0xffffff, q.qpn);
	/* Later requests are flushed, signaled or not. */
	cl_write(&q, buffer, mr->lkey, far(4096), mr->rkey, 8, 0);
	cl_write(&q, buffer, mr->lkey, far(4096), mr->rkey, 8, 0);
	cl_ring(&q);
	for (int i = 0; i < 2000 && be16toh(q.cqe->wqe_counter) != 2; i++) {
		struct timespec t = { 0, 1000000 };

		nanosleep(&t, NULL);
	}
	CHECK_INT(be16toh(q.cqe->wqe_counter), 2);
	CHECK_INT(q.cqe->u.error.syndrome, EP_MLX5_SYND_FLUSHED);
	CHECK_INT(state_of(&q), 6 | syndrome << 8); /* the cause is still known */
	cl_destroy(&q);
	cl_destroy(&peer);
	if (before != test_failures) {
		fprintf(stderr, "in: %s\n", c->what);
	}
}

static void test_access(void)
{
	const uint8_t write = EP_MLX5_OP_WRITE, add = EP_MLX5_OP_FETCH_ADD;
	const uint32_t l = mr->lkey, r = mr->rkey, to = 4096;
	const uint32_t local = EP_MLX5_SYND_LOCAL_PROT, remote = EP_MLX5_SYND_REMOTE_ACCESS;
	const struct access cases[] = {
		{ "bad lkey", write, 0, NO_KEY, to, r, local },
		{ "rkey as lkey", write, 0, r, to, r, local },
		{ "local bounds", write, 8190, l, to, r, local },
		{ "local read-only", add, 0, mr_read->lkey, to, r, local },
		{ "local domain", write, 0, mr_other->lkey, to, r, local },
		{ "bad rkey", write, 0, l, to, NO_KEY, remote },
		{ "lkey as rkey", write, 0, l, to, l, remote },
		{ "remote bounds", write, 0, l, 8185, r, remote },
		{ "remote read-only", write, 0, l, to, mr_read->rkey, remote },
		{ "remote atomic", add, 0, l, to, mr_read->rkey, remote },
		{ "remote domain", write, 0, l, to, mr_other->rkey, remote },
	};

	for (uint32_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
		fails(&cases[i]);
	}
}

/* An rd_atomic that the other end did not agree to. */
static void test_rd_atomic(void)
{
	struct cl_options few = { .tier = 0, .force = true, .log_rd = 1 }, many = few;
	struct cl_queue q, peer;
	struct cl_end a, b;

	many.log_rd = 5;
	cl_create(&q, &dev, CL_DEPTH, false);
	cl_create(&peer, &dev, CL_DEPTH, false);
	a = cl_end(&q);
	b = cl_end(&peer);
	cl_connect(&q, &b, &many);
	cl_connect(&peer, &a, &few);
	cl_add(&q, buffer, mr->lkey, far(4096), mr->rkey, 8, 0);
	cl_ring(&q);
	CHECK_INT(cl_wait(&q), EP_MLX5_SYND_REMOTE_INVAL_REQ);
	cl_destroy(&q);
	cl_destroy(&peer);
}

/* Nobody answers: the other end has another MTU, PSN or partner, or is not there. */
static void test_silence(int kind)
{
	struct cl_options o = { .tier = 0, .force = true, .retry = 3, .timeout = 11 }, other = o;
	struct cl_queue q, peer;
	struct cl_end a, b;
	struct timespec t0, t1;
	double ms;

	cl_create(&q, &dev, CL_DEPTH, false);
	cl_create(&peer, &dev, CL_DEPTH, false);
	a = cl_end(&q);
	b = cl_end(&peer);
	other.mtu = kind == 0 ? 3 : 0;
	a.psn += kind == 1 ? 5000 : 0;
	a.qpn += kind == 2 ? 1 : 0;
	b.mac[5] ^= kind == 3;
	cl_connect(&q, &b, &o);
	cl_connect(&peer, &a, &other);
	cl_write(&q, buffer, mr->lkey, far(4096), mr->rkey, 8, 0);
	clock_gettime(CLOCK_MONOTONIC, &t0);
	cl_ring(&q);
	CHECK_INT(cl_wait(&q), EP_MLX5_SYND_RETRY_EXCEEDED);
	clock_gettime(CLOCK_MONOTONIC, &t1);
	CHECK_INT(q.cqe->u.error.vendor_syndrome, 0x81);
	ms = (double)(t1.tv_sec - t0.tv_sec) * 1e3 + (double)(t1.tv_nsec - t0.tv_nsec) / 1e6;
	CHECK(ms > 3 * 8.3 && ms < 1000);     /* 4.096 us << 11, three times */
	CHECK_INT(state_of(&peer) & 0xff, 3); /* knows nothing of it */
	cl_destroy(&q);
	cl_destroy(&peer);
}

/* ---------------------------------------------------------------------------------- commands */

struct spoil {
	unsigned int bit, width;
	uint64_t value;
	uint32_t status;
};

static const struct spoil spoil_cq[] = {
	{ 0, 16, 0x7ff, 0x2 },               /* opcode */
	{ 0x10, 16, 1, 0x3 },                /* uid */
	{ 0x40, 1, 1, 0x3 },                 /* reserved */
	{ 0x80 + 0x6, 1, 0, 0x3 },           /* dbr_umem_valid */
	{ 0x80 + 0x20, 32, 999, 0x5 },       /* dbr_umem_id */
	{ 0x80 + 0x68, 24, 999, 0x5 },       /* uar_page */
	{ 0x80 + 0xb8, 8, 99, 0x5 },         /* c_eqn */
	{ 0x80 + 0x1c0, 64, 1u << 20, 0x3 }, /* dbr_addr */
	{ 0x80 + 0x1c0, 64, 4, 0x3 },        /* its alignment */
	{ 0x280, 64, 1u << 20, 0x3 },        /* umem offset */
	{ 0x2c0, 32, 999, 0x5 },             /* umem id */
};
static const struct spoil spoil_qp[] = {
	{ 0xc0 + 0x8, 8, 3, 0x3 },      /* st */
	{ 0xc0 + 0x0, 4, 1, 0x3 },      /* state is not to be set */
	{ 0xc0 + 0x28, 24, 999, 0x5 },  /* pd */
	{ 0xc0 + 0x51, 4, 15, 0x3 },    /* more entries than the umem has */
	{ 0xc0 + 0x68, 24, 999, 0x5 },  /* uar_page */
	{ 0xc0 + 0x3e8, 24, 999, 0x5 }, /* cqn_snd */
	{ 0xc0 + 0x565, 3, 0, 0x3 },    /* rq_type */
	{ 0xc0 + 0x683, 1, 0, 0x3 },    /* dbr_umem_valid */
	{ 0xc0 + 0x600, 1, 1, 0x3 },    /* reserved */
	{ 0x840, 32, 999, 0x5 },        /* umem id */
};
static const struct spoil spoil_init[] = {
	{ 0, 16, 0x503, 0x10 },             /* INIT2RTR from RESET */
	{ 0xc0 + 0x13, 2, 0, 0x3 },         /* pm_state */
	{ 0xc0 + 0xc0 + 0x128, 8, 2, 0x3 }, /* port */
	{ 0xc0 + 0xc0 + 0x10, 16, 9, 0x3 }, /* pkey_index */
	{ 0xc0 + 0x48c, 4, 5, 0x3 },        /* atomic_mode */
	{ 0x48, 24, 1, 0xa },               /* qpn */
};
static const struct spoil spoil_rtr[] = {
	{ 0xc0 + 0x40, 3, 0, 0x3 },                                       /* mtu */
	{ 0xc0 + 0x40, 3, 6, 0x3 },          { 0xc0 + 0x43, 5, 31, 0x3 }, /* log_msg_max */
	{ 0xc0 + 0x488, 3, 5, 0x3 },                                      /* log_rra_max */
	{ 0xc0 + 0xc0 + 0x48, 8, 9, 0x3 },                                /* src_addr_index */
	{ 0xc0 + 0xc0 + 0x110, 16, 7, 0x3 },                              /* udp_sport */
	{ 0xc0 + 0xc0 + 0x58, 8, 0, 0x3 },                                /* hop_limit */
};

static int spoiled(const uint8_t *good, const struct spoil *s, struct cl_queue *q, int what,
		   uint8_t *out)
{
	uint8_t in[272];

	memcpy(in, good, sizeof(in));
	cl_set(in, s->bit, s->width, s->value);
	memset(out, 0, 16);
	if (what < 2) {
		struct mlx5dv_devx_obj *obj =
			mlx5dv_devx_obj_create(dev.ctx, in, sizeof(in), out, 16);

		CHECK(!obj);
		return obj ? 0 : (int)out[0];
	}
	CHECK(mlx5dv_devx_obj_modify(q->qp_obj, in, sizeof(in), out, 16) != 0);
	return out[0];
}

#define SPOIL(list, what)                                                                          \
	for (uint32_t i = 0; i < sizeof(list) / sizeof(*(list)); i++) {                            \
		if (spoiled(in, &(list)[i], &q, what, out) != (int)(list)[i].status ||             \
		    !cl_get(out, 0x20, 32)) {                                                      \
			fprintf(stderr, #list "[%u]: status 0x%x, syndrome 0x%x\n", i, out[0],     \
				(uint32_t)cl_get(out, 0x20, 32));                                  \
			test_failures++;                                                           \
		}                                                                                  \
	}

static void test_commands(void)
{
	struct cl_options o = { .tier = -1 };
	uint8_t in[272], out[16];
	struct cl_queue q;
	struct cl_end e;

	cl_allocate(&q, &dev, CL_DEPTH, false);
	cl_fill_cq(&q, in);
	SPOIL(spoil_cq, 0);
	CHECK(!mlx5dv_devx_obj_create(dev.ctx, in, 271, out, sizeof(out)));
	CHECK_INT(out[0], 0x50);
	q.cq_obj = mlx5dv_devx_obj_create(dev.ctx, in, sizeof(in), out, sizeof(out));
	NEED(!q.cq_obj);
	q.cqn = (uint32_t)cl_get(out, 0x48, 24);
	cl_fill_qp(&q, in);
	SPOIL(spoil_qp, 1);
	q.qp_obj = mlx5dv_devx_obj_create(dev.ctx, in, sizeof(in), out, sizeof(out));
	NEED(!q.qp_obj);
	q.qpn = (uint32_t)cl_get(out, 0x48, 24);
	CHECK(mlx5dv_devx_umem_dereg(q.umem) != 0); /* in use */
	CHECK(mlx5dv_devx_obj_destroy(q.cq_obj) != 0);
	cl_fill_init(&q, in);
	SPOIL(spoil_init, 2);
	NEED(cl_modify(&q, in, sizeof(in)));
	e = cl_end(&q);
	cl_fill_rtr(&q, &e, &o, in);
	SPOIL(spoil_rtr, 2);
	NEED(cl_modify(&q, in, sizeof(in)));
	CHECK(cl_modify(&q, in, sizeof(in)) != 0); /* twice */
	cl_destroy(&q);
}

int main(void)
{
	struct ibv_context *plain;
	struct ibv_device **list;
	struct ibv_pd *pd;
	uint8_t in[16] = { 0 }, out[4112];

	cl_open(&dev, 0);
	cl_open(&dev2, 0);
	mr = cl_reg(&dev, buffer, sizeof(buffer), CL_FULL);
	mr_read = cl_reg(&dev, buffer, sizeof(buffer), IBV_ACCESS_REMOTE_READ);
	mr_other = cl_reg(&dev2, buffer, sizeof(buffer), CL_FULL);
	test_access();
	test_rd_atomic();
	for (int kind = 0; kind < 4; kind++) {
		test_silence(kind);
	}
	test_commands();

	/* What does not exist, or not without DevX. */
	list = ibv_get_device_list(NULL);
	CHECK(mlx5dv_is_supported(list[0]));
	plain = ibv_open_device(list[0]);
	NEED(!plain);
	CHECK(!mlx5dv_devx_alloc_uar(plain, 1));
	pd = ibv_alloc_pd(plain);
	NEED(!pd);
	CHECK(!ibv_reg_mr(pd, (void *)0x1000, 4096, IBV_ACCESS_LOCAL_WRITE));
	CHECK(!ibv_reg_mr(pd, buffer, 8, IBV_ACCESS_REMOTE_WRITE));
	CHECK_INT(ibv_dealloc_pd(pd), 0);
	CHECK_INT(ibv_close_device(plain), 0);
	ibv_free_device_list(list);
	cl_set(in, 0, 16, 0x100);
	cl_set(in, 0x30, 16, 1);
	CHECK_INT(mlx5dv_devx_general_cmd(dev.ctx, in, 16, out, sizeof(out)), 0);
	CHECK_INT(cl_get(out, 0x80 + 0x1fc, 4), 1);
	CHECK_INT(cl_get(out, 0x80 + 0x23f, 1), 1);
	cl_set(in, 0x30, 16, 0x55 << 1);
	CHECK(mlx5dv_devx_general_cmd(dev.ctx, in, 16, out, sizeof(out)) != 0);
	NEED(ibv_dereg_mr(mr));
	NEED(ibv_dereg_mr(mr_read));
	NEED(ibv_dereg_mr(mr_other));
	cl_close(&dev);
	cl_close(&dev2);
	return test_result();
}
