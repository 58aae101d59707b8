/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The very bytes of the commands that make and connect a queue pair, worked out by hand from the
 * bit offsets of the PRM, and what is made of a device's answers. The device is a table of
 * functions that keep what they are given.
 */
#include <errno.h>
#include <sys/resource.h>
#include "gda/state.h"
#include "gda/prm.h"
#include "support/check.h"

#define KEEP 8

struct kept {
	uint8_t bytes[EP_PRM_QUERY_QP_EXT_BYTES];
	size_t n;
};

static struct kept kept[KEEP];
static int nkept;
static uint8_t answer_qp[EP_PRM_QUERY_QP_EXT_BYTES];
static int refuse_at = -1; /* which command is refused */
static struct mlx5dv_devx_obj *const object = (struct mlx5dv_devx_obj *)&kept;
static struct mlx5_wqe_av av = { .rmac = { 0x02, 0x5a, 0x11, 0x22, 0x33, 0x44 } };

static bool keep(const void *in, size_t n, void *out, size_t outlen)
{
	memset(out, 0, outlen);
	CHECK(nkept < KEEP && n <= sizeof(kept[0].bytes));
	memcpy(kept[nkept].bytes, in, n);
	kept[nkept].n = n;
	if (nkept++ == refuse_at) {
		ep_prm_set(out, EP_PRM_STATUS, 3);
		ep_prm_set(out, EP_PRM_SYNDROME, 0xabcdef);
		errno = EREMOTEIO;
		return false;
	}
	return true;
}

static struct mlx5dv_devx_obj *fake_create(struct ibv_context *ctx, const void *in, size_t inlen,
					   void *out, size_t outlen)
{
	if (!keep(in, inlen, out, outlen)) {
		return NULL;
	}
	ep_prm_set(out, EP_PRM_OBJECT, nkept == 1 ? 0x0c0c0c : 0x0a0b0c);
	ep_prm_set(out, EP_PRM_ECE_OUT, 0xece);
	return object;
}

static int fake_modify(struct mlx5dv_devx_obj *obj, const void *in, size_t inlen, void *out,
		       size_t outlen)
{
	return keep(in, inlen, out, outlen) ? 0 : errno;
}

static int fake_query(struct mlx5dv_devx_obj *obj, const void *in, size_t inlen, void *out,
		      size_t outlen)
{
	if (!keep(in, inlen, out, outlen)) {
		return errno;
	}
	CHECK(outlen <= sizeof(answer_qp));
	memcpy(out, answer_qp, outlen);
	return 0;
}

static struct ibv_ah *fake_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *attr)
{
	CHECK_INT(attr->grh.sgid_index, 3);
	CHECK_INT(attr->is_global, 1);
	CHECK_INT(attr->grh.dgid.raw[15], 0x77);
	return (struct ibv_ah *)&av;
}

static int fake_destroy_ah(struct ibv_ah *ah)
{
	return 0;
}

static int fake_init_obj(struct mlx5dv_obj *obj, uint64_t type)
{
	CHECK_INT(type, MLX5DV_OBJ_AH);
	obj->ah.out->av = &av;
	return 0;
}

/* A command is these bytes and otherwise zero. */
struct golden {
	uint32_t at;
	uint8_t n;
	uint8_t byte[16];
};

static void compare(const char *what, const struct kept *k, size_t size, const struct golden *list,
		    size_t n)
{
	uint8_t want[sizeof(k->bytes)] = { 0 };

	for (size_t i = 0; i < n; i++) {
		memcpy(want + list[i].at, list[i].byte, list[i].n);
	}
	CHECK_INT(k->n, size);
	for (size_t i = 0; i < size; i++) {
		CHECK(k->bytes[i] == want[i], "%s: byte 0x%zx is %02x, not %02x", what, i,
		      k->bytes[i], want[i]);
	}
}
#define COMPARE(what, which, size, list)                                                           \
	compare(what, &kept[which], size, list, EP_ARRAY_SIZE(list))

/* Queue 1 of a queue memory: page at 0x1100..., buffer of 64 entries behind it. */
static const struct golden create_cq[] = {
	{ 0x00, 2, { 0x04, 0x00 } },
	{ 0x10, 4, { 0x02, 0x12, 0x00, 0x00 } }, /* dbr_umem_valid, cc, oi */
	{ 0x14, 4, { 0x00, 0x00, 0x05, 0x55 } }, /* dbr_umem_id */
	{ 0x1d, 3, { 0x00, 0x00, 0x2a } },       /* uar_page */
	{ 0x27, 1, { 0x07 } },                   /* c_eqn */
	{ 0x48, 8, { 0, 0, 0, 0, 0, 0, 0x21, 0x00 } },
	{ 0x50, 8, { 0, 0, 0, 0, 0, 0, 0x20, 0x00 } },
	{ 0x58, 4, { 0x00, 0x00, 0x05, 0x55 } },
	{ 0x5c, 1, { 0x80 } },
};

static const struct golden create_qp[] = {
	{ 0x00, 2, { 0x05, 0x00 } },
	{ 0x18, 4, { 0x00, 0x00, 0x18, 0x00 } }, /* pm_state 3 */
	{ 0x1d, 3, { 0x12, 0x34, 0x56 } },       /* pd */
	{ 0x22, 2, { 0x30, 0x40 } },             /* log_sq_size 6, ts_format 1 */
	{ 0x25, 3, { 0x00, 0x00, 0x2a } },
	{ 0x95, 3, { 0x0c, 0x0c, 0x0c } }, /* cqn_snd */
	{ 0xb5, 3, { 0x0c, 0x0c, 0x0c } }, /* cqn_rcv */
	{ 0xb8, 8, { 0, 0, 0, 0, 0, 0, 0x20, 0x80 } },
	{ 0xc4, 1, { 0x03 } }, /* rq_type: in bits 5 to 7 of its byte */
	{ 0xe8, 1, { 0x10 } }, /* dbr_umem_valid */
	{ 0xfc, 4, { 0x00, 0x00, 0x05, 0x55 } },
	{ 0x100, 8, { 0, 0, 0, 0, 0, 0, 0x30, 0x00 } },
	{ 0x108, 4, { 0x00, 0x00, 0x05, 0x55 } },
	{ 0x10c, 1, { 0x80 } },
};

static const struct golden to_init[] = {
	{ 0x00, 2, { 0x05, 0x02 } },
	{ 0x09, 3, { 0x0a, 0x0b, 0x0c } },
	{ 0x18, 4, { 0x00, 0x00, 0x18, 0x00 } },
	{ 0x32, 2, { 0x00, 0x02 } }, /* pkey_index */
	{ 0x55, 1, { 0x01 } },       /* port */
	{ 0xa9, 2, { 0x03, 0xe0 } }, /* atomic_mode 3; rre, rwe, rae */
};

static const struct golden to_rtr_ib[] = {
	{ 0x00, 2, { 0x05, 0x03 } },
	{ 0x09, 3, { 0x0a, 0x0b, 0x0c } },
	{ 0x18, 4, { 0x00, 0x00, 0x18, 0x00 } },
	{ 0x20, 1, { 4 << 5 | 30 } }, /* mtu 2048, log_msg_max */
	{ 0x2d, 3, { 0x0d, 0x0e, 0x0f } },
	{ 0x32, 2, { 0x00, 0x02 } },
	{ 0x36, 2, { 0x01, 0x44 } },             /* rlid */
	{ 0x54, 2, { 0x05, 0x01 } },             /* sl, port */
	{ 0xa9, 2, { 0x83, 0xe0 } },             /* log_rra_max 4 */
	{ 0xac, 4, { 0x0c, 0x0d, 0x0e, 0x14 } }, /* min_rnr_nak 12, psn 5 + the peer's number */
};

static const struct golden to_rtr_roce[] = {
	{ 0x00, 2, { 0x05, 0x03 } },
	{ 0x09, 3, { 0x0a, 0x0b, 0x0c } },
	{ 0x18, 4, { 0x00, 0x00, 0x18, 0x00 } },
	{ 0x20, 1, { 4 << 5 | 30 } },
	{ 0x2d, 3, { 0x0d, 0x0e, 0x0f } },
	{ 0x32, 2, { 0x00, 0x02 } },
	{ 0x39, 1, { 0x03 } },       /* src_addr_index */
	{ 0x3b, 1, { 0xff } },       /* hop_limit */
	{ 0x3c, 2, { 0x06, 0x80 } }, /* tclass 104 */
	{ 0x40, 16, { [10] = 0xff, [11] = 0xff, [12] = 10, [15] = 0x77 } },
	{ 0x51, 1, { 26 } },                     /* dscp = 104 >> 2 */
	{ 0x54, 4, { 0x50, 0x01, 0x02, 0x5a } }, /* eth_prio, port, rmac */
	{ 0x58, 4, { 0x11, 0x22, 0x33, 0x44 } },
	{ 0xa9, 2, { 0x83, 0xe0 } },
	{ 0xac, 4, { 0x0c, 0x0d, 0x0e, 0x14 } },
};

static const struct golden to_rts[] = {
	{ 0x00, 2, { 0x05, 0x04 } },
	{ 0x09, 3, { 0x0a, 0x0b, 0x0c } },
	{ 0x18, 4, { 0x00, 0x00, 0x18, 0x00 } },
	{ 0x38, 1, { 18 << 3 } },          /* ack_timeout */
	{ 0x89, 2, { 0x87, 0xe0 } },       /* log_sra_max 4, retry_count 7; rnr_retry 7 */
	{ 0x91, 3, { 0x0a, 0x0b, 0x15 } }, /* psn 9 + our number */
};

static const struct golden query[] = {
	{ 0x00, 2, { 0x05, 0x0b } },
	{ 0x09, 3, { 0x0a, 0x0b, 0x0c } },
};

static int fake_general(struct ibv_context *ctx, const void *in, size_t inlen, void *out,
			size_t outlen);

static struct ep_verbs verbs = { .ibv_create_ah = fake_create_ah,
				 .ibv_destroy_ah = fake_destroy_ah };
static struct ep_mlx5dv dv = { .mlx5dv_devx_obj_create = fake_create,
			       .mlx5dv_devx_obj_modify = fake_modify,
			       .mlx5dv_devx_obj_query = fake_query,
			       .mlx5dv_devx_general_cmd = fake_general,
			       .mlx5dv_init_obj = fake_init_obj };
static struct mlx5dv_devx_umem umem = { .umem_id = 0x555 };
static struct mlx5dv_devx_uar uar = { .page_id = 0x2a };
static char hosts[4][64];

static struct ep_nic_end far_end(bool ethernet)
{
	struct ep_nic_end end = { .lid = 0x144, .log_rra = 4, .psn = 5 };

	end.link_layer = ethernet ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND;
	if (ethernet) {
		end.roce = 2;
		memcpy(end.gid, to_rtr_roce[9].byte, 16);
	}
	return end;
}

/*
 * One queue of a context that make() has made, the end that it is connected to, and why a call has
 * failed.
 */
static struct ep_gda g;
static struct ep_gda_queue q;
static struct ep_nic_end end;
static struct ep_reason why;

static void make(bool ethernet)
{
	struct ep_gda_nic *nic = &g.nic[0];

	memset(&g, 0, sizeof(g));
	memset(&q, 0, sizeof(q));
	g.nic[0].base.v = &verbs;
	g.nic[0].base.dv = &dv;
	g.mode = EP_GDA_GPU;
	g.nnics = 1;
	g.node = 1;
	g.depth = 64;
	g.psn = 9;
	g.host = hosts;
	g.env = (struct ep_ib_env){ .sl = 5, .timeout = 18, .retry_cnt = 7 };
	nic->base.port = 1;
	nic->pdn = 0x123456;
	nic->eqn = 7;
	nic->base.pkey_index = 2;
	nic->base.gid_index = 3;
	nic->base.tc = 104;
	nic->base.log_ra_req = nic->base.log_ra_res = 4;
	nic->base.log_max_msg = 30;
	nic->base.atomics = true;
	nic->caps =
		(struct ep_gda_caps){ .log_max_qp_sz = 15, .reports_tier = true, .ts_format = 1 };
	nic->queue_memory.umem = &umem;
	nic->uar = &uar;
	nic->base.end = (struct ep_nic_end){ .log_rra = 4,
					     .link_layer = ethernet ? IBV_LINK_LAYER_ETHERNET
								    : IBV_LINK_LAYER_INFINIBAND };
	q.gda = &g;
	q.nic = nic;
	q.slot = 1;
	q.mtu = IBV_MTU_2048;
	q.remote_qpn = 0x0d0e0f;
	end = far_end(ethernet);
	nkept = 0;
	why.text[0] = 0;
	refuse_at = -1;
	memset(kept, 0, sizeof(kept));
}

/* What QUERY_QP says of a queue pair that took everything. */
static void answer_rra(uint32_t state, uint32_t mtu, uint32_t sra, uint32_t rra, uint32_t tier)
{
	uint8_t *qpc = answer_qp + 24;

	memset(answer_qp, 0, sizeof(answer_qp));
	qpc[0] = (uint8_t)(state << 4);
	qpc[4] = (uint8_t)((tier & 1) << 1);
	qpc[8] = (uint8_t)(mtu << 5);
	qpc[0x71] = (uint8_t)(sra << 5);
	qpc[0x91] = (uint8_t)(rra << 5);
	qpc[0x93] = (uint8_t)((tier >> 1) << 3);
}

static void answer(uint32_t state, uint32_t mtu, uint32_t sra, uint32_t tier)
{
	answer_rra(state, mtu, sra, 4, tier);
}

static void check_bytes(bool ethernet)
{
	uint32_t sport;

	make(ethernet);
	CHECK(ep_gda_queue_create(&q, &why));
	CHECK_INT(q.qpn, 0x0a0b0c);
	answer(3, IBV_MTU_2048, 4, 1);
	CHECK(ep_gda_queue_connect(&q, &end, &why));
	CHECK_INT(q.tier, 1);
	CHECK_INT(nkept, 6);
	COMPARE("CREATE_CQ", 0, 272, create_cq);
	COMPARE("CREATE_QP", 1, 272, create_qp);
	COMPARE("RST2INIT", 2, 272, to_init);
	if (ethernet) {
		/* The source port is free within a range. */
		sport = (uint32_t)kept[3].bytes[0x52] << 8 | kept[3].bytes[0x53];
		CHECK(sport >= 0xc000);
		kept[3].bytes[0x52] = kept[3].bytes[0x53] = 0;
		COMPARE("INIT2RTR, RoCE", 3, 272, to_rtr_roce);
	} else {
		COMPARE("INIT2RTR, InfiniBand", 3, 272, to_rtr_ib);
	}
	COMPARE("RTR2RTS", 4, 272, to_rts);
	COMPARE("QUERY_QP", 5, 16, query);
	ep_gda_queue_halt(&q);
	CHECK_INT(kept[6].n, 16);
	CHECK_INT(kept[6].bytes[1], 0x07);
}

/*
 * InfiniBand beyond the subnet, or where the port says so, has a global route header; beyond it the
 * LID is the one that the peer's subnet is routed by.
 */
static void check_grh(bool flag)
{
	make(false);
	end.gid[4] = 0x41;
	end.gid[5] = 0x07;
	end.gid[7] = flag ? 0 : 9;
	end.gid[15] = 0x99;
	end.grh = flag;
	q.qp_obj = object;
	answer(3, IBV_MTU_2048, 4, 0);
	CHECK(ep_gda_queue_connect(&q, &end, &why));
	CHECK_INT(kept[0].bytes[0x35], 0x80);
	CHECK_INT(kept[0].bytes[0x36], flag ? 0x01 : 0x41);
	CHECK_INT(kept[0].bytes[0x37], flag ? 0x44 : 0x07);
	CHECK_INT(kept[0].bytes[0x39], 3);
	CHECK_INT(kept[0].bytes[0x4f], 0x99);
}

/* Nothing is taken to be in order that may not be. */
static void check_order(void)
{
	static const struct {
		bool ethernet, reports_tier, reports_order, in_order;
		int adaptive;
		uint32_t said, tier;
	} cases[] = {
		/* who tells it is believed */
		{ true, true, false, false, -1, 0, EP_MLX5_TIER_IBTA },
		{ false, true, false, false, -1, 0, EP_MLX5_TIER_IBTA },
		{ false, true, false, false, -1, 1, EP_MLX5_TIER_OOO_RW },
		{ false, true, false, false, 0, 2, EP_MLX5_TIER_OOO_ALL },
		{ true, true, false, false, -1, 3, EP_MLX5_TIER_OOO_ALL },
		/* who does not may reorder on InfiniBand */
		{ true, false, false, false, -1, 0, EP_MLX5_TIER_IBTA },
		{ false, false, false, false, -1, 0, EP_MLX5_TIER_OOO_ALL },
		{ false, false, false, false, 0, 0, EP_MLX5_TIER_IBTA },
		{ true, false, false, false, 1, 0, EP_MLX5_TIER_OOO_ALL },
		{ false, true, false, false, 1, 0, EP_MLX5_TIER_OOO_ALL },
		/* the other field */
		{ true, false, true, false, 0, 0, EP_MLX5_TIER_OOO_ALL },
		{ true, false, true, true, -1, 0, EP_MLX5_TIER_IBTA },
	};

	for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		make(cases[i].ethernet);
		q.nic->caps.reports_tier = cases[i].reports_tier;
		q.nic->caps.reports_order = cases[i].reports_order;
		g.env.adaptive = cases[i].adaptive;
		q.qp_obj = object;
		q.atomics = true;
		answer(3, IBV_MTU_2048, 4, cases[i].said);
		answer_qp[24 + 0x5a / 8] |= (uint8_t)(cases[i].in_order << 5);
		CHECK(ep_gda_queue_connect(&q, &end, &why));
		CHECK_INT(10 * i + q.tier, 10 * i + cases[i].tier);
		CHECK_INT(10 * i + q.atomics, 10 * i + (cases[i].said || !cases[i].tier));
	}
}

/* A device without atomics is not asked to answer any. */
static void check_no_atomics(void)
{
	make(false);
	q.nic->base.atomics = false;
	q.nic->caps.ts_format = 0;
	answer(3, IBV_MTU_2048, 4, 0);
	CHECK(ep_gda_queue_create(&q, &why) && ep_gda_queue_connect(&q, &end, &why));
	CHECK_INT(kept[1].bytes[0x23], 0);
	CHECK_INT(kept[2].bytes[0xa9], 0);
	CHECK_INT(kept[2].bytes[0xaa], 0xc0);
	CHECK_INT(kept[3].bytes[0xa9], 0x80);
	CHECK_INT(kept[3].bytes[0xaa], 0xc0);
}

/* A queue pair is asked what it can beyond the standard, and told what both ends can. */
static void check_ece(bool can, bool may)
{
	make(true);
	g.nic[0].caps.ece = can;
	g.env.ece = may;
	q.slot = 0;
	q.ece = 0x123;
	answer(3, IBV_MTU_2048, 4, 1);
	CHECK(ep_gda_queue_create(&q, &why) && ep_gda_queue_connect(&q, &end, &why));
	CHECK_INT(kept[1].bytes[0x14], can && may ? 0x10 : 0);
	CHECK_INT(g.nic[0].ece.vendor, can && may ? 0x2c9 : 0);
	CHECK_INT(g.nic[0].ece.options, can && may ? 0xece : 0);
	CHECK_INT(kept[3].bytes[0x16], 0x01);
	CHECK_INT(kept[3].bytes[0x17], 0x23);
}

static struct ibv_cq *fake_create_cq(struct ibv_context *ctx, int cqe, void *arg,
				     struct ibv_comp_channel *channel, int vector)
{
	errno = ENOMEM;
	return NULL;
}

/* Where memory lacks, what limits it is named. */
static void check_no_memory(void)
{
	struct ep_verbs v = { .ibv_create_cq = fake_create_cq };
	struct rlimit found, low;

	make(true);
	g.nic[0].base.v = &v;
	g.nic[0].base.attr.max_cqe = 64;
	NEED(!getrlimit(RLIMIT_MEMLOCK, &found));
	low = found;
	low.rlim_cur = 65536 < found.rlim_max ? 65536 : found.rlim_max;
	NEED(!setrlimit(RLIMIT_MEMLOCK, &low));
	CHECK(!ep_gda_verbs_cq(&g, &g.nic[0], &why));
	CHECK_HAS(why.text, "KiB: raise it, ulimit -l unlimited");
	low.rlim_cur = found.rlim_max;
	NEED(!setrlimit(RLIMIT_MEMLOCK, &low));
	CHECK(!ep_gda_verbs_cq(&g, &g.nic[0], &why));
	CHECK_HAS(why.text, low.rlim_cur == RLIM_INFINITY ? "is unlimited" : "ulimit -l unlimited");
	NEED(!setrlimit(RLIMIT_MEMLOCK, &found));
}

/* ---- bonds ---- */

static uint8_t lag_answer[16];
static struct ibv_context context;

static int fake_general(struct ibv_context *ctx, const void *in, size_t inlen, void *out,
			size_t outlen)
{
	const uint8_t *bytes = in;

	CHECK_INT(inlen, 16);
	CHECK_INT(bytes[0] << 8 | bytes[1], 0x842);
	memcpy(out, lag_answer, outlen < sizeof(lag_answer) ? outlen : sizeof(lag_answer));
	return 0;
}

/* What the device says makes a bond, or not; by queue pair, or by a hash. */
static void check_lag_query(void)
{
	static const struct {
		bool ethernet;
		uint8_t ports, affinity, state, select;
		uint32_t want;
		bool by_queue;
	} cases[] = {
		{ true, 2, 1, 1, 0, 2, true },  { true, 4, 1, 1, 0, 4, true },
		{ true, 2, 1, 0, 0, 0, false }, /* two ports, and no bond of them */
		{ true, 1, 1, 1, 0, 0, false }, { false, 2, 1, 1, 0, 0, false },
		{ true, 2, 1, 1, 1, 2, false }, /* a hash chooses */
		{ true, 2, 0, 1, 0, 2, false },
	};

	for (size_t i = 0; i < EP_ARRAY_SIZE(cases); i++) {
		uint8_t caps[4096] = { 0 };

		make(cases[i].ethernet);
		g.nic[0].base.ctx = &context;
		memset(lag_answer, 0, sizeof(lag_answer));
		/*
		 * port_select_mode: bits 0x15..0x17 of the context at 0x40; lag_state: 0x1d..0x1f
		 */
		lag_answer[0x0a] = (uint8_t)(cases[i].select);
		lag_answer[0x0b] = cases[i].state;
		caps[0x4f] = (uint8_t)(cases[i].affinity << 7 | cases[i].ports);
		caps[0x3f] = 0x80; /* init2_lag_tx_port_affinity */
		caps[0x2a] = 0x20; /* rts2rts_lag_tx_port_affinity */
		ep_gda_lag_query(&g.nic[0], caps);
		CHECK_INT(100 * i + g.nic[0].lag.ports, 100 * i + cases[i].want);
		CHECK_INT(100 * i + g.nic[0].lag.by_queue, 100 * i + cases[i].by_queue);
		CHECK_INT(g.nic[0].lag.init2rtr, cases[i].want != 0);
		CHECK_INT(g.nic[0].lag.rts2rts, cases[i].want != 0);
	}
}

/*
 * The member is named where the queue pair is made, where it is connected, and once more after
 * that.
 */
static void check_lag_bytes(void)
{
	static const struct golden again[] = {
		{ 0x00, 2, { 0x05, 0x05 } },
		{ 0x09, 3, { 0x0a, 0x0b, 0x0c } },
		{ 0x10, 4, { 0x00, 0x00, 0x80, 0x00 } }, /* opt_param_mask */
		{ 0x18, 1, { 0x02 } },
	};

	make(true);
	g.nic[0].lag = (struct ep_gda_lag){ 2, true, true, true };
	q.index = 1;
	answer(3, IBV_MTU_2048, 4, 1);
	answer_qp[24] |= 2;
	CHECK(ep_gda_queue_create(&q, &why) && ep_gda_queue_connect(&q, &end, &why));
	CHECK_INT(nkept, 7);
	CHECK_INT(kept[2].bytes[0x18], 2);
	CHECK_INT(kept[2].bytes[0x12], 0);
	CHECK_INT(kept[3].bytes[0x18], 2);
	CHECK_INT(kept[3].bytes[0x12], 0x80);
	CHECK_INT(kept[4].bytes[0x18], 0);
	COMPARE("RTS2RTS", 5, 272, again);
	CHECK_INT(q.lag, 2);
}

/*
 * All queues of 64 peers, those for rows alone, and those of peers a node apart: each port has as
 * many.
 */
static void check_lag_spread(void)
{
	static const struct {
		uint32_t node, stride, queues, ports;
	} cases[] = { { 8, 1, 8, 2 },   { 8, 1, 1, 2 }, { 8, 8, 1, 2 }, { 4, 4, 1, 2 },
		      { 72, 72, 1, 2 }, { 8, 8, 2, 2 }, { 8, 1, 9, 4 }, { 8, 8, 1, 4 },
		      { 1, 1, 1, 2 },   { 1, 1, 2, 2 } };

	for (size_t c = 0; c < EP_ARRAY_SIZE(cases); c++) {
		for (uint32_t first = 0; first < 8; first++) {
			uint32_t count[5] = { 0 }, n = 0;

			make(true);
			g.node = cases[c].node;
			g.nic[0].lag = (struct ep_gda_lag){ cases[c].ports, true, true, true };
			for (uint32_t p = 0; p < 64; p++) {
				for (q.index = 0; q.index < cases[c].queues; q.index++, n++) {
					q.peer = (int)(first + p * cases[c].stride);
					count[ep_gda_lag_port(&q)]++;
				}
			}
			for (uint32_t i = 1; i <= cases[c].ports; i++) {
				CHECK(count[i] * cases[c].ports + cases[c].ports >= n &&
					      count[i] * cases[c].ports <= n + cases[c].ports,
				      "case %zu: %u of %u at port %u", c, count[i], n, i);
			}
		}
	}
}

static void check_refusals(void)
{
	static const char *const command[] = { "CREATE_CQ",   "CREATE_QP",  "RST2INIT_QP",
					       "INIT2RTR_QP", "RTR2RTS_QP", "QUERY_QP" };

	for (int i = 0; i < 6; i++) {
		make(false);
		refuse_at = i;
		answer(3, IBV_MTU_2048, 4, 0);
		CHECK(!(ep_gda_queue_create(&q, &why) && ep_gda_queue_connect(&q, &end, &why)));
		CHECK(strstr(why.text, command[i]) && strstr(why.text, "syndrome 0xabcdef"));
		CHECK_INT(nkept, i + 1);
	}
}

/* Firmware that did something else than it was told is found out. */
static void check_read_back(uint32_t state, uint32_t mtu, uint32_t sra, uint32_t rra)
{
	make(false);
	q.qp_obj = object;
	answer_rra(state, mtu, sra, rra, 0);
	CHECK(!ep_gda_queue_connect(&q, &end, &why));
	CHECK(strstr(why.text, "firmware reports other values"));
}

static void check_query(void)
{
	struct ep_gda_cause cause = { 0 };
	uint32_t state = 0;

	make(false);
	q.qp_obj = object;
	q.nic->caps.error_syndrome = true;
	answer(6, 0, 0, 0);
	answer_qp[0x11e] = 0x81;
	answer_qp[0x11f] = 0x15;
	CHECK(ep_gda_queue_query(&q, &state, &cause));
	CHECK_INT(kept[0].bytes[8], 0x80);
	CHECK_INT(state, EP_PRM_QP_ERR);
	CHECK_INT(cause.syndrome, 0x15);
	CHECK_INT(cause.vendor, 0x81);
}

int main(void)
{
	check_bytes(false);
	check_bytes(true);
	check_grh(false);
	check_grh(true);
	check_no_memory();
	check_ece(true, true);
	check_ece(true, false);
	check_ece(false, true);
	check_lag_query();
	check_lag_bytes();
	check_lag_spread();
	check_refusals();
	check_no_atomics();
	check_order();
	check_read_back(6, IBV_MTU_2048, 4, 4);
	check_read_back(3, IBV_MTU_4096, 4, 4);
	check_read_back(3, IBV_MTU_2048, 0, 4);
	check_read_back(3, IBV_MTU_2048, 4, 0);
	check_query();
	return check_end();
}
