/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What verbs are asked for when a queue pair that the CPU posts to is made and connected. They are
 * functions that keep what they are given.
 */
#include <errno.h>
#include "gda/state.h"
#include "gda/prm.h"
#include "support/check.h"

enum step {
	TO_INIT,
	TO_RTR,
	TO_RTS,
	TO_ERR,
	STEPS
};

static struct ibv_qp_init_attr made;
static struct ibv_qp_attr kept[STEPS];
static int masks[STEPS], nkept;
static int refuse_at;          /* which step is refused */
static uint32_t too_many;      /* work requests of a queue pair */
static enum ibv_qp_state says; /* state that is read back */
static struct ibv_qp qp = { .qp_num = 0x0a0b0c };
static struct ibv_cq cq;
static char hosts[4][64];

static struct ibv_qp *fake_create(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	made = *init;
	errno = ENOMEM;
	return init->cap.max_send_wr < too_many ? &qp : NULL;
}

static int fake_modify(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
	CHECK(ibv == &qp && nkept < STEPS);
	kept[nkept] = *attr;
	masks[nkept] = mask;
	return nkept++ == refuse_at ? EINVAL : 0;
}

static int fake_query(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask,
		      struct ibv_qp_init_attr *init)
{
	CHECK(ibv == &qp && mask & IBV_QP_STATE);
	attr->qp_state = says;
	return 0;
}

static struct ep_verbs verbs = { .ibv_create_qp = fake_create,
				 .ibv_modify_qp = fake_modify,
				 .ibv_query_qp = fake_query };

static struct ep_nic_end far_end(uint8_t link_layer)
{
	struct ep_nic_end end = {
		.lid = 0x144, .log_rra = 4, .psn = 5, .link_layer = link_layer, .mtu = IBV_MTU_2048
	};

	if (link_layer == IBV_LINK_LAYER_ETHERNET) {
		end.lid = 0;
		end.roce = 2;
		for (int i = 0; i < 16; i++) {
			end.gid[i] = (uint8_t)(0x70 + i);
		}
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

static void make(uint8_t link_layer)
{
	struct ep_gda_nic *nic = &g.nic[0];

	memset(&g, 0, sizeof(g));
	memset(&q, 0, sizeof(q));
	g.nic[0].base.v = &verbs;
	g.mode = EP_GDA_CPU_PROXY;
	g.depth = 256;
	g.psn = 0xfffffe; /* the sum goes beyond its 24 bits */
	g.host = hosts;
	g.env = (struct ep_ib_env){ .sl = 5, .timeout = 18, .retry_cnt = 6 };
	nic->base.port = 1;
	nic->base.pkey_index = 2;
	nic->base.gid_index = 3;
	nic->base.tc = 104;
	nic->cq = &cq;
	nic->base.attr.max_qp_wr = 1000;
	nic->base.log_ra_req = 3;
	nic->base.log_ra_res = 4;
	nic->base.atomics = true;
	nic->base.end =
		(struct ep_nic_end){ .log_rra = 4, .link_layer = link_layer, .mtu = IBV_MTU_4096 };
	q.gda = &g;
	q.nic = nic;
	q.mtu = IBV_MTU_2048;
	q.remote_qpn = 0x0d0e0f;
	end = far_end(link_layer);
	nkept = 0;
	why.text[0] = 0;
	refuse_at = -1;
	too_many = ~0u;
	says = IBV_QPS_RTS;
	memset(kept, 0, sizeof(kept));
}

static void check_init(void)
{
	const struct ibv_qp_attr *a = &kept[TO_INIT];

	CHECK_INT(made.qp_type, IBV_QPT_RC);
	CHECK(made.send_cq == &cq && made.recv_cq == &cq && !made.srq);
	CHECK_INT(made.sq_sig_all, 0);
	CHECK_INT(made.cap.max_send_wr, 256);
	CHECK_INT(made.cap.max_send_sge, 1);
	CHECK_INT(masks[TO_INIT],
		  IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
	CHECK_INT(a->qp_state, IBV_QPS_INIT);
	CHECK_INT(a->pkey_index, 2);
	CHECK_INT(a->port_num, 1);
	CHECK_INT(a->qp_access_flags,
		  IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);
}

static void check_rtr(bool ethernet)
{
	const struct ibv_qp_attr *a = &kept[TO_RTR];

	CHECK_INT(masks[TO_RTR], IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					 IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					 IBV_QP_MIN_RNR_TIMER);
	CHECK_INT(a->qp_state, IBV_QPS_RTR);
	CHECK_INT(a->path_mtu, IBV_MTU_2048);
	CHECK_INT(a->dest_qp_num, 0x0d0e0f);
	CHECK_INT(a->rq_psn, 0x0d0e14);
	CHECK_INT(a->max_dest_rd_atomic, 16);
	CHECK_INT(a->min_rnr_timer, 12);
	CHECK_INT(a->ah_attr.sl, 5);
	CHECK_INT(a->ah_attr.port_num, 1);
	CHECK_INT(a->ah_attr.src_path_bits, 0);
	CHECK_INT(a->ah_attr.static_rate, 0);
	CHECK_INT(a->ah_attr.is_global, ethernet);
	CHECK_INT(a->ah_attr.dlid, ethernet ? 0 : 0x144);
	CHECK_INT(a->ah_attr.grh.sgid_index, ethernet ? 3 : 0);
	CHECK_INT(a->ah_attr.grh.hop_limit, ethernet ? 255 : 0);
	CHECK_INT(a->ah_attr.grh.traffic_class, ethernet ? 104 : 0);
	CHECK_INT(a->ah_attr.grh.flow_label, 0);
	CHECK(!memcmp(a->ah_attr.grh.dgid.raw, end.gid, sizeof(end.gid)));
}

static void check_rts(void)
{
	const struct ibv_qp_attr *a = &kept[TO_RTS];

	CHECK_INT(masks[TO_RTS], IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT |
					 IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
					 IBV_QP_MAX_QP_RD_ATOMIC);
	CHECK_INT(a->qp_state, IBV_QPS_RTS);
	CHECK_INT(a->timeout, 18);
	CHECK_INT(a->retry_cnt, 6);
	CHECK_INT(a->rnr_retry, 7);
	CHECK_INT(a->sq_psn, 0x0a0b0a);
	CHECK_INT(a->max_rd_atomic, 8); /* as many as this end can have */
}

static void check_all(bool ethernet)
{
	make(ethernet ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND);
	CHECK(ep_gda_verbs_create(&q, &why) && ep_gda_verbs_connect(&q, &end, &why));
	CHECK_INT(q.qpn, 0x0a0b0c);
	CHECK_INT(q.max_wr, 256);
	CHECK_INT(q.tier, EP_MLX5_TIER_OOO_ALL);
	CHECK_INT(nkept, TO_RTS + 1);
	check_init();
	check_rtr(ethernet);
	check_rts();
	ep_gda_verbs_halt(&q);
	CHECK_INT(masks[TO_ERR], IBV_QP_STATE);
	CHECK_INT(kept[TO_ERR].qp_state, IBV_QPS_ERR);
}

/* Neither end has more under way, or allows more, than it said. */
static void check_less(void)
{
	make(IBV_LINK_LAYER_INFINIBAND);
	q.nic->base.atomics = false;
	q.nic->base.end.log_rra = 1;
	end.log_rra = 2;
	too_many = 100;
	CHECK(ep_gda_verbs_create(&q, &why) && ep_gda_verbs_connect(&q, &end, &why));
	CHECK_INT(q.max_wr, 64);
	CHECK_INT(kept[TO_INIT].qp_access_flags, IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ);
	CHECK_INT(kept[TO_RTR].max_dest_rd_atomic, 2);
	CHECK_INT(kept[TO_RTS].max_rd_atomic, 4);
	/* A device that takes fewer than queues have. */
	make(IBV_LINK_LAYER_INFINIBAND);
	q.nic->base.attr.max_qp_wr = 100;
	CHECK(ep_gda_verbs_create(&q, &why));
	CHECK_INT(made.cap.max_send_wr, 100);
	CHECK_INT(q.max_wr, 100);
}

static void check_refusals(void)
{
	static const char *const says_so[] = { "cannot be initialised", "does not find the path",
					       "cannot be made ready to send", "is in state 2" };

	for (int i = 0; i < 4; i++) {
		make(IBV_LINK_LAYER_INFINIBAND);
		refuse_at = i;
		says = IBV_QPS_RTR;
		CHECK(!(ep_gda_verbs_create(&q, &why) && ep_gda_verbs_connect(&q, &end, &why)));
		CHECK(strstr(why.text, says_so[i]));
		CHECK_INT(nkept, i < 3 ? i + 1 : 3);
	}
}

int main(void)
{
	check_all(false);
	check_all(true);
	check_less();
	check_refusals();
	return check_end();
}
