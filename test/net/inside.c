/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin's own part, on queue pairs that are none: what it sets up queue pairs with, and what a
 * message costs it. The wire is a copy within this process, made by whoever posts.
 */
#include <errno.h>
#include <time.h>
#include "net/comm.h"
#include "support/check.h"

#define FAKE_QPS 16
#define FAKE_WCS 4096
#define MESSAGES 200000
#define BATCH 16

struct fake_cq {
	struct ibv_cq ibv;
	struct ibv_wc wc[FAKE_WCS];
	uint32_t put, got;
};

struct fake_qp {
	struct ibv_qp ibv;
	struct fake_qp *peer;
	uint64_t rq[FAKE_WCS];
	uint32_t posted, used;
	struct ibv_qp_attr init, rtr, rts;
	int rtr_mask, rts_mask;
	struct ibv_ece ece; /* what it was told, and how often, and how often too late */
	int ece_set, ece_late;
};

static struct fake_qp fake_qps[FAKE_QPS];
static uint32_t fake_made;
static bool fake_no_ece;
static struct ibv_context fake_context;
static struct ibv_pd fake_pd = { .context = &fake_context };

/* ---- verbs ---- */

static struct ibv_cq *fake_create_cq(struct ibv_context *ctx, int cqe, void *context,
				     struct ibv_comp_channel *channel, int vector)
{
	struct fake_cq *cq = calloc(1, sizeof(*cq));

	NEED(cq);
	cq->ibv.context = ctx;
	return &cq->ibv;
}

static int fake_destroy_cq(struct ibv_cq *cq)
{
	free(cq);
	return 0;
}

static struct ibv_qp *fake_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	struct fake_qp *qp = &fake_qps[fake_made];

	NEED(fake_made < FAKE_QPS);
	memset(qp, 0, sizeof(*qp));
	qp->ibv.context = &fake_context;
	qp->ibv.qp_num = 0x100 + fake_made++;
	qp->ibv.send_cq = init->send_cq;
	qp->ibv.recv_cq = init->recv_cq;
	return &qp->ibv;
}

static int fake_destroy_qp(struct ibv_qp *qp)
{
	return 0;
}

static int fake_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
	struct fake_qp *qp = (struct fake_qp *)ibv;

	if (attr->qp_state == IBV_QPS_INIT) {
		qp->init = *attr;
	} else if (attr->qp_state == IBV_QPS_RTR) {
		qp->rtr = *attr;
		qp->rtr_mask = mask;
		qp->peer = &fake_qps[attr->dest_qp_num - 0x100];
	} else {
		qp->rts = *attr;
		qp->rts_mask = mask;
	}
	return 0;
}

/* A NIC has options 0xf0 or 0x3c, and once it has heard of another one's those of both. */
static int fake_query_ece(struct ibv_qp *ibv, struct ibv_ece *ece)
{
	struct fake_qp *qp = (struct fake_qp *)ibv;

	*ece = (struct ibv_ece){ .vendor_id = 0x2c9, .options = fake_made <= 3 ? 0xf0 : 0x3c };
	if (qp->ece_set) {
		ece->options &= qp->ece.options;
	}
	return fake_no_ece ? EOPNOTSUPP : 0;
}

static int fake_set_ece(struct ibv_qp *ibv, struct ibv_ece *ece)
{
	struct fake_qp *qp = (struct fake_qp *)ibv;

	qp->ece = *ece;
	qp->ece_set++;
	qp->ece_late += qp->rtr_mask != 0;
	return 0;
}

static struct ibv_mr *fake_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	struct ibv_mr *mr = calloc(1, sizeof(*mr));

	NEED(mr);
	return mr;
}

static int fake_dereg_mr(struct ibv_mr *mr)
{
	free(mr);
	return 0;
}

static void fake_complete(struct ibv_cq *ibv, struct ibv_wc wc)
{
	struct fake_cq *cq = (struct fake_cq *)ibv;

	NEED(cq->put - cq->got < FAKE_WCS);
	cq->wc[cq->put++ % FAKE_WCS] = wc;
}

static int fake_post_send(struct ibv_qp *ibv, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)ibv, *peer = qp->peer;

	for (; wr; wr = wr->next) {
		uint32_t bytes = wr->num_sge ? wr->sg_list->length : 0;

		if (bytes) {
			memcpy((void *)(uintptr_t)wr->wr.rdma.remote_addr,
			       (void *)(uintptr_t)wr->sg_list->addr, bytes);
		}
		if (wr->opcode == IBV_WR_RDMA_WRITE_WITH_IMM) {
			NEED(peer->used < peer->posted);
			fake_complete(peer->ibv.recv_cq,
				      (struct ibv_wc){ .wr_id = peer->rq[peer->used++ % FAKE_WCS],
						       .opcode = IBV_WC_RECV_RDMA_WITH_IMM,
						       .imm_data = wr->imm_data,
						       .byte_len = bytes });
		}
		if (wr->send_flags & IBV_SEND_SIGNALED) {
			fake_complete(qp->ibv.send_cq, (struct ibv_wc){ .wr_id = wr->wr_id });
		}
	}
	return 0;
}

static int fake_post_recv(struct ibv_qp *ibv, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)ibv;

	for (; wr; wr = wr->next) {
		qp->rq[qp->posted++ % FAKE_WCS] = wr->wr_id;
	}
	return 0;
}

static int fake_poll_cq(struct ibv_cq *ibv, int n, struct ibv_wc *wc)
{
	struct fake_cq *cq = (struct fake_cq *)ibv;
	int got = 0;

	while (got < n && cq->got != cq->put) {
		wc[got++] = cq->wc[cq->got++ % FAKE_WCS];
	}
	return got;
}

static const struct ep_verbs fake_verbs = {
	.ibv_create_cq = fake_create_cq,
	.ibv_destroy_cq = fake_destroy_cq,
	.ibv_create_qp = fake_create_qp,
	.ibv_destroy_qp = fake_destroy_qp,
	.ibv_modify_qp = fake_modify_qp,
	.ibv_reg_mr = fake_reg_mr,
	.ibv_dereg_mr = fake_dereg_mr,
	.ibv_query_ece = fake_query_ece,
	.ibv_set_ece = fake_set_ece,
};

/* A device that somebody holds already: it is not opened. */
static struct ep_net_dev *fake_device(bool ethernet, uint8_t mtu)
{
	struct ep_net_dev *dev = calloc(1, sizeof(*dev));
	struct ep_nic *nic;

	NEED(dev);
	pthread_mutex_init(&dev->lock, NULL);
	dev->users = 1;
	snprintf(dev->label, sizeof(dev->label), "fake");
	nic = &dev->nic;
	nic->v = &fake_verbs;
	nic->ctx = &fake_context;
	nic->pd = &fake_pd;
	nic->port = 1;
	nic->gid_index = 3;
	nic->pkey_index = 5;
	nic->tc = 8;
	nic->log_max_msg = 30;
	nic->attr.max_qp_wr = 1024;
	nic->attr.max_cqe = 4096;
	nic->end = (struct ep_nic_end){
		.name = "fake",
		.port = 1,
		.link_layer = ethernet ? IBV_LINK_LAYER_ETHERNET : IBV_LINK_LAYER_INFINIBAND,
		.roce = ethernet ? 2 : 0,
		.mtu = mtu,
		.lid = 77,
		.pkey = 0xffff,
		.gid = { [10] = 0xff, 0xff, 10, 0, 0, mtu },
	};
	return dev;
}

/* The receiver first, as it answers the sender's hello. */
static void connect_both(struct ep_net_comm *a, struct ep_net_comm *b)
{
	struct ep_net_comm *ends[2] = { b, a };

	for (int i = 0; i < 2; i++) {
		struct ep_net_comm *to = ends[!i];
		uint32_t qpn[EP_NET_MAX_QPS];
		struct ep_net_peer peer = { .end = to->end,
					    .ece = to->ece,
					    .shared = (uintptr_t)to->shared,
					    .nqps = to->nqps,
					    .qpn = qpn };

		for (uint32_t k = 0; k < to->nqps; k++) {
			qpn[k] = to->qp[k].qp->qp_num;
		}
		CHECK_INT(ep_net_comm_connect(ends[i], &peer), ncclSuccess);
	}
}

static void pair_make(struct ep_net_dev *from, struct ep_net_dev *to, uint32_t nqps, int tc,
		      struct ep_net_comm *pair[2])
{
	fake_made = 0;
	NEED(ep_net_comm_new(from, true, nqps, tc, &pair[0]) == ncclSuccess);
	NEED(ep_net_comm_new(to, false, nqps, pair[0]->tc, &pair[1]) == ncclSuccess);
	connect_both(pair[0], pair[1]);
	for (int i = 0; i < 2; i++) {
		pair[i]->handle = ep_net_handle_new(i ? EP_NET_RECV : EP_NET_SEND, pair[i]);
		NEED(pair[i]->handle);
	}
}

static void pair_free(struct ep_net_comm *pair[2])
{
	for (int i = 0; i < 2; i++) {
		CHECK(ep_net_handle_drop(i ? EP_NET_RECV : EP_NET_SEND, pair[i]->handle) ==
		      pair[i]);
		ep_net_comm_free(pair[i]);
	}
}

/* ---- what queue pairs are set up with ---- */

/* `tc`: the communicator's class; the one that data has, and that what the receiver sends has. */
static void test_attributes(bool ethernet, int tc, int data_tc, int fifo_tc)
{
	struct ep_net_dev *from = fake_device(ethernet, IBV_MTU_4096);
	struct ep_net_dev *to = fake_device(ethernet, IBV_MTU_1024);
	struct ep_net_comm *pair[2];

	pair_make(from, to, 3, tc, pair);
	CHECK_INT(fake_made, 6);
	for (uint32_t i = 0; i < 6; i++) {
		struct fake_qp *qp = &fake_qps[i], *peer = &fake_qps[(i + 3) % 6];

		check_context("%s, class %d, queue pair %u", ethernet ? "RoCE" : "InfiniBand", tc,
			      i);
		CHECK_INT(qp->init.pkey_index, 5);
		CHECK_INT(qp->init.port_num, 1);
		CHECK(qp->peer == peer && qp->rtr.path_mtu == IBV_MTU_1024);
		CHECK_INT(qp->rtr.ah_attr.sl, 4);
		CHECK_INT(qp->rts.timeout, 17);
		CHECK_INT(qp->rts.retry_cnt, 6);
		CHECK_INT(qp->rts.rnr_retry, 7);
		CHECK_INT(qp->rts.sq_psn, peer->rtr.rq_psn);
		CHECK_INT(qp->rtr.ah_attr.is_global, ethernet);
		CHECK_INT(qp->rtr.ah_attr.dlid, 77);
		if (ethernet) {
			CHECK_INT(qp->rtr.ah_attr.grh.sgid_index, 3);
			CHECK_INT(qp->rtr.ah_attr.grh.dgid.raw[15],
				  i < 3 ? IBV_MTU_1024 : IBV_MTU_4096);
			CHECK(qp->rtr.ah_attr.grh.hop_limit > 1);
			CHECK_INT(qp->rtr.ah_attr.grh.traffic_class, i < 3 ? data_tc : fifo_tc);
		}
		CHECK(i < 3 ? qp->posted == 0 : qp->posted >= 256, "%u receives", qp->posted);
	}
	pair_free(pair);
	CHECK(from->users == 1 && to->users == 1);
	free(from);
	free(to);
}

/* `there`: both NICs speak of what they can. */
static void test_ece(bool there)
{
	struct ep_net_dev *from = fake_device(true, IBV_MTU_4096);
	struct ep_net_dev *to = fake_device(true, IBV_MTU_4096);
	struct ep_net_comm *pair[2];

	fake_no_ece = !there;
	pair_make(from, to, 3, -1, pair);
	for (uint32_t i = 0; i < 6; i++) {
		struct fake_qp *qp = &fake_qps[i];

		check_context("ECE, queue pair %u", i);
		CHECK_INT(qp->ece_set, there);
		CHECK_INT(qp->ece_late, 0);
		if (there) {
			/* The receiver hears what the sender can, the sender what both can. */
			CHECK_INT(qp->ece.options, i < 3 ? 0x30 : 0xf0);
			CHECK_INT(qp->ece.vendor_id, 0x2c9);
		}
	}
	pair_free(pair);
	free(from);
	free(to);
	fake_no_ece = false;
}

/* ---- what a message costs ---- */

static double cpu_seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void test_cost(uint32_t size, double most_us)
{
	struct ep_net_dev *from = fake_device(true, IBV_MTU_4096);
	struct ep_net_dev *to = fake_device(true, IBV_MTU_4096);
	struct ep_net_mr mr[2] = { { .dev = from }, { .dev = to } };
	static uint8_t source[8192], target[8192];
	double best = 1;
	struct ep_net_comm *pair[2];
	void *mrs[2];

	pair_make(from, to, 1, -1, pair);
	for (int i = 0; i < 2; i++) {
		mr[i].start = (uintptr_t)(i ? target : source);
		mr[i].end = mr[i].start + sizeof(source);
		mrs[i] = ep_net_handle_new(EP_NET_MR, &mr[i]);
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
	}
	pair_free(pair);
	free(from);
	free(to);
}

int main(int argc, char **argv)
{
	fake_context.ops.post_send = fake_post_send;
	fake_context.ops.post_recv = fake_post_recv;
	fake_context.ops.poll_cq = fake_poll_cq;
	setenv("NCCL_IB_SL", "4", 1);
	setenv("NCCL_IB_TIMEOUT", "17", 1);
	setenv("NCCL_IB_RETRY_CNT", "6", 1);
	if (argc > 1 && strcmp(argv[1], "classes") == 0) {
		setenv("NCCL_IB_TC", "32", 1);
		setenv("NCCL_IB_FIFO_TC", "48", 1);
		test_attributes(true, -1, 32, 48);
		test_attributes(true, 100, 32, 48);
	} else {
		test_attributes(false, -1, 0, 0);
		test_attributes(true, -1, 8, 8);
		test_attributes(true, 104, 104, 104);
		test_ece(true);
		test_ece(false);
		/* Under sanitizers everything takes longer. */
		test_cost(8, argc > 1 ? strtod(argv[1], NULL) : 0);
		test_cost(8192, 0);
	}
	return check_end();
}
