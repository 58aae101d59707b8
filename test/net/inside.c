/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin's own part: what it sets up queue pairs with, and what a message costs it.
 *   inside [MOST]        microseconds of CPU time for a message of 8 bytes
 *   inside no_ece        NICs that do not say what they can
 *   inside odd_own_ece   NICs that refuse what others can
 *   inside classes       the environment says the traffic class
 *   inside levels [ib]   a communicator says the service level
 *   inside ib            InfiniBand
 */
#include <time.h>
#include "core/log.h"
#include "net/ends.h"
#include "net/p2p.h"

#define MESSAGES 200000
#define BATCH 16
#define COSTLESS 4096 /* requests and completions that there is room for */

/* ---- what queue pairs are set up with ---- */

static int want_sl = 4;
static int want_pkey = 5;
static char pkey_line[400]; /* what was said of a partition key that RoCE has not */

static bool listen_for_pkey(enum ep_log_level level, unsigned int subsys, const char *text)
{
	if (strstr(text, "partition key")) {
		snprintf(pkey_line, sizeof(pkey_line), "%d %s", level == EP_LOG_INFO, text);
	}
	return true;
}

/* Queue pair i of a pair, the sender's first, and what it was told. */
static struct ibv_qp *qp_attributes(struct ep_net_comm *const pair[2], uint32_t i,
				    struct vn_dv_attributes *told)
{
	struct ibv_qp *qp = pair[i / 3]->qp[i % 3].qp;

	vn_dv_attributes(qp, told);
	return qp;
}

/* `tc`: the communicator's class; the one that data has, and that what the receiver sends has. */
static void test_attributes(int tc, int data_tc, int fifo_tc)
{
	struct ep_net_nic *from = ends_nic(0), *to = ends_nic(1);
	bool ethernet = from->dev[0]->nic.end.link_layer == IBV_LINK_LAYER_ETHERNET;
	struct ep_net_comm *pair[2];

	CHECK_TEXT(pkey_line,
		   ethernet ? "1 mlx5_1:1 is RoCE, whose only partition key is at index 0: "
			      "NCCL_IB_PKEY=5 has no effect there"
			    : "");
	to->dev[0]->nic.end.mtu = IBV_MTU_1024;
	from->dev[0]->nic.tc = to->dev[0]->nic.tc = 8;
	pair_make(from, to, 3, tc, pair);
	for (uint32_t i = 0; i < 6; i++) {
		const struct ep_nic_end *end = i < 3 ? &to->dev[0]->nic.end
						     : &from->dev[0]->nic.end;
		struct vn_dv_attributes qp, peer;

		check_context("%s, class %d, queue pair %u", ethernet ? "RoCE" : "InfiniBand", tc,
			      i);
		qp_attributes(pair, i, &qp);
		CHECK_INT(qp.rtr.dest_qp_num, qp_attributes(pair, (i + 3) % 6, &peer)->qp_num);
		CHECK_INT(qp.init.pkey_index, ethernet ? 0 : want_pkey);
		CHECK_INT(qp.init.port_num, 1);
		CHECK_INT(qp.rtr.path_mtu, IBV_MTU_1024);
		CHECK_INT(qp.rtr.ah_attr.sl, want_sl);
		CHECK_INT(qp.rts.timeout, 17);
		CHECK_INT(qp.rts.retry_cnt, 6);
		CHECK_INT(qp.rts.rnr_retry, 7);
		CHECK_INT(qp.rts.sq_psn, peer.rtr.rq_psn);
		CHECK_INT(qp.rtr.ah_attr.is_global, ethernet);
		CHECK_INT(qp.rtr.ah_attr.dlid, end->lid);
		if (ethernet) {
			CHECK_INT(qp.rtr.ah_attr.grh.sgid_index, 3);
			CHECK(!memcmp(&qp.rtr.ah_attr.grh.dgid, end->gid, 16));
			CHECK(qp.rtr.ah_attr.grh.hop_limit > 1);
			CHECK_INT(qp.rtr.ah_attr.grh.traffic_class, i < 3 ? data_tc : fifo_tc);
		}
		CHECK(i < 3 ? qp.receives == 0 : qp.receives >= 256, "%u receives", qp.receives);
	}
	pair_end(pair, from, to);
}

/* The receiver's NIC is told `receiver`, after `times` tries; the sender's is told `sender`. */
static void test_ece(int times, uint32_t receiver, uint32_t sender)
{
	struct ep_net_nic *from = ends_nic(0), *to = ends_nic(1);
	struct ep_net_comm *pair[2];

	pair_make(from, to, 3, -1, pair);
	for (uint32_t i = 0; i < 6; i++) {
		struct vn_dv_attributes told;

		check_context("ECE, queue pair %u", i);
		qp_attributes(pair, i, &told);
		/* (it is refused when it is too late) */
		CHECK_INT(told.ece_set, i < 3 ? sender != 0 : times);
		CHECK_INT(told.ece.options, i < 3 ? sender : receiver);
		CHECK_INT(told.ece.vendor_id, told.ece_set ? 0x2c9 : 0);
	}
	pair_end(pair, from, to);
}

/* ---- what a message costs ---- */

/* A queue pair whose NIC costs nothing: whoever posts copies. */
struct lane {
	struct ibv_qp *qp;
	uint64_t rq[COSTLESS];
	struct ibv_wc wc[COSTLESS];
	uint32_t posted, used, put, got;
};

static struct lane lane[2]; /* of a connection's two ends */

static struct lane *lane_of(struct ibv_qp *qp)
{
	struct lane *l = lane[0].qp == qp || !lane[0].qp ? &lane[0] : &lane[1];

	NEED(!l->qp || l->qp == qp);
	l->qp = qp;
	return l;
}

static void lane_complete(struct lane *l, struct ibv_wc wc)
{
	NEED(l->put - l->got < COSTLESS);
	l->wc[l->put++ % COSTLESS] = wc;
}

static int costless_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct lane *l = lane_of(ibv), *peer = &lane[l == &lane[0]];

	for (; wr; wr = wr->next) {
		uint32_t bytes = wr->num_sge ? wr->sg_list->length : 0;

		if (bytes) {
			memcpy((void *)(uintptr_t)wr->wr.rdma.remote_addr,
			       (void *)(uintptr_t)wr->sg_list->addr, bytes);
		}
		if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
			NEED(peer->used < peer->posted);
			lane_complete(peer,
				      (struct ibv_wc){ .wr_id = peer->rq[peer->used++ % COSTLESS],
						       .opcode = IBV_WC_RECV_RDMA_WITH_IMM,
						       .imm_data = wr->imm_data,
						       .byte_len = bytes,
						       .qp_num = peer->qp->qp_num });
		}
		if (wr->send_flags & IBV_SEND_SIGNALED) {
			lane_complete(l,
				      (struct ibv_wc){ .wr_id = wr->wr_id, .qp_num = ibv->qp_num });
		}
	}
	return 0;
}

static int costless_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct lane *l = lane_of(ibv);

	for (; wr; wr = wr->next) {
		l->rq[l->posted++ % COSTLESS] = wr->wr_id;
	}
	return 0;
}

static int costless_poll(struct ibv_cq *cq, int n, struct ibv_wc *wc)
{
	int got = 0;

	for (int i = 0; i < 2; i++) {
		struct lane *l = &lane[i];

		while (l->qp && l->qp->send_cq == cq && got < n && l->got != l->put) {
			wc[got++] = l->wc[l->got++ % COSTLESS];
		}
	}
	return got;
}

static struct ep_net_nic *costless_nic(int device)
{
	struct ep_net_nic *nic = ends_nic(device);
	struct ibv_context_ops *ops = &nic->dev[0]->nic.ctx->ops;

	ops->post_send = costless_send;
	ops->post_recv = costless_recv;
	ops->poll_cq = costless_poll;
	return nic;
}

static double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void test_cost(uint32_t size, double most_us)
{
	struct ep_net_nic *from = costless_nic(0), *to = costless_nic(1);
	static uint8_t source[8192], target[8192];
	struct ep_net_mr *mr[2];
	double best = 1;
	struct ep_net_comm *pair[2];
	void *mrs[2];

	memset(lane, 0, sizeof(lane));
	pair_make(from, to, 1, -1, pair);
	for (int i = 0; i < 2; i++) {
		mr[i] = ends_register(i ? to : from, i ? target : source, sizeof(source));
		CHECK(ep_net_handle_new(EP_NET_MR, mr[i], &mrs[i]) == ncclSuccess);
	}
	for (int round = 0; round < 10; round++) {
		double start = cpu_seconds();

		for (int i = 0; i < MESSAGES / 10; i += BATCH) {
			void *send[BATCH], *recv[BATCH], *data = target;
			int done, got[8], tag = 3;
			size_t room = size;

			for (int k = 0; k < BATCH; k++) {
				NEED(ep_net_irecv(pair[1]->handle, 1, &data, &room, &tag, &mrs[1],
						  &recv[k]) == ncclSuccess &&
				     recv[k]);
			}
			for (int k = 0; k < BATCH; k++) {
				source[0] = (uint8_t)(i + k);
				NEED(ep_net_isend(pair[0]->handle, source, size, tag, mrs[0],
						  &send[k]) == ncclSuccess &&
				     send[k]);
			}
			for (int k = 0; k < BATCH; k++) {
				NEED(ep_net_test(send[k], &done, got) == ncclSuccess && done);
				NEED(ep_net_test(recv[k], &done, got) == ncclSuccess && done);
				NEED(got[0] == (int)size);
			}
			NEED(target[0] == (uint8_t)(i + BATCH - 1));
		}
		start = (cpu_seconds() - start) / (MESSAGES / 10);
		best = start < best ? start : best;
	}
	printf("a message of %u bytes: %.3f us of CPU time, both ends together\n", size,
	       best * 1e6);
	CHECK(most_us == 0 || best * 1e6 < most_us, "%.3f us", best * 1e6);
	for (int i = 0; i < 2; i++) {
		ep_net_handle_drop(EP_NET_MR, mrs[i]);
		ep_net_mr_free(mr[i]);
	}
	pair_end(pair, from, to);
}

int main(int argc, char **argv)
{
	const char *what = argc > 1 ? argv[1] : "";
	bool ib = !strcmp(argv[argc - 1], "ib");

	ep_log_to(listen_for_pkey);
	ends_begin(ib ? "ib" : strstr(what, "_ece") ? what : NULL);
	setenv("NCCL_IB_SL", "4", 1);
	setenv("NCCL_IB_TIMEOUT", "17", 1);
	setenv("NCCL_IB_RETRY_CNT", "6", 1);
	setenv("NCCL_IB_PKEY", "5", 1);
	if (!strcmp(what, "classes")) {
		setenv("NCCL_IB_TC", "32", 1);
		setenv("NCCL_IB_FIFO_TC", "48", 1);
		test_attributes(-1, 32, 48);
		test_attributes(100, 32, 48);
	} else if (!strcmp(what, "levels")) {
		/* Nobody has set one: it is the communicator's class, on InfiniBand. */
		unsetenv("NCCL_IB_SL");
		want_sl = ib ? 5 : 0;
		test_attributes(5, 5, 5);
		want_sl = 0;
		if (ib) {
			test_attributes(-1, 0, 0);
			test_attributes(104, 0, 0);
		} else {
		}
	} else if (!strcmp(what, "no_ece")) {
		test_ece(0, 0, 0);
	} else if (!strcmp(what, "odd_own_ece")) {
		test_ece(2, 0, 0);
	} else if (!strcmp(what, "pkey")) {
		/*
		 * The key of this value, whichever of its two kinds it is of, and wherever it is.
		 */
		setenv("NCCL_IB_PKEY_VALUE", "6", 1);
		want_pkey = 6;
		test_attributes(-1, 0, 0);
	} else if (ib) {
		test_attributes(-1, 0, 0);
	} else {
		test_attributes(-1, 8, 8);
		test_attributes(104, 104, 104);
		/* The receiver hears what the sender can, the sender what both can. */
		test_ece(1, 0xf3, 0x33);
		/* Under sanitizers everything takes longer. */
		test_cost(8, argc > 1 ? strtod(argv[1], NULL) : 0);
		test_cost(8192, 0);
	}
	return check_end();
}
