/* SPDX-License-Identifier: Apache-2.0 */
/* Plain verbs: what a proxy that posts from the CPU needs. Any profile. */
#include <endian.h>
#include <errno.h>
#include <poll.h>
#include <unistd.h>
#include "nic_client.h"
#include "test.h"

#define BYTES 65536
#define DEPTH 32
#define RECEIVES 3

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static uint8_t buffer[2 * BYTES] __attribute__((aligned(4096)));
static struct ibv_port_attr port;

static struct ibv_qp *make(void)
{
	struct ibv_qp_init_attr init = { .send_cq = cq,
					 .recv_cq = cq,
					 .cap = { .max_send_wr = DEPTH,
						  .max_send_sge = 1,
						  .max_inline_data = 28,
						  .max_recv_wr = RECEIVES },
					 .qp_type = IBV_QPT_RC };
	struct ibv_qp *qp = ibv_create_qp(pd, &init);

	NEED(!qp);
	CHECK(init.cap.max_send_wr >= DEPTH && init.cap.max_inline_data >= 28);
	return qp;
}

static void connect_to(struct ibv_qp *qp, uint32_t qpn)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT,
				 .port_num = 1,
				 .qp_access_flags = CL_FULL };

	NEED(ibv_modify_qp(qp, &a,
			   IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	memset(&a, 0, sizeof(a));
	a.qp_state = IBV_QPS_RTR;
	a.path_mtu = IBV_MTU_1024;
	a.dest_qp_num = qpn;
	a.rq_psn = 5;
	a.max_dest_rd_atomic = 16;
	a.min_rnr_timer = 12;
	a.ah_attr.port_num = 1;
	a.ah_attr.dlid = port.lid;
	if (port.link_layer == IBV_LINK_LAYER_ETHERNET) {
		a.ah_attr.is_global = 1;
		a.ah_attr.grh.sgid_index = 3;
		a.ah_attr.grh.hop_limit = 64;
		NEED(ibv_query_gid(ctx, 1, 3, &a.ah_attr.grh.dgid));
	}
	/* Everything that the transition needs must be there. */
	CHECK_INT(ibv_modify_qp(qp, &a, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU), EINVAL);
	NEED(ibv_modify_qp(qp, &a,
			   IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
				   IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
				   IBV_QP_MIN_RNR_TIMER));
	memset(&a, 0, sizeof(a));
	a.qp_state = IBV_QPS_RTS;
	a.timeout = 10;
	a.retry_cnt = 2;
	a.rnr_retry = 7;
	a.sq_psn = 5;
	a.max_rd_atomic = 16;
	NEED(ibv_modify_qp(qp, &a,
			   IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
				   IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

static int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint64_t id, uint32_t from,
		uint32_t to, uint32_t bytes, uint32_t rkey, unsigned int flags)
{
	struct ibv_sge sge = { (uintptr_t)buffer + from, bytes, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = id,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = flags,
		.imm_data = htobe32((uint32_t)id),
	};
	struct ibv_send_wr *bad = NULL;
	int rc;

	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = (uintptr_t)buffer + to;
		wr.wr.atomic.rkey = rkey;
		wr.wr.atomic.compare_add = 3;
	} else {
		wr.wr.rdma.remote_addr = (uintptr_t)buffer + to;
		wr.wr.rdma.rkey = rkey;
	}
	rc = ibv_post_send(qp, &wr, &bad);
	CHECK((rc != 0) == (bad == &wr));
	return rc;
}

static struct ibv_wc next(void)
{
	struct ibv_wc wc;
	int n;

	for (long i = 0; i < 200000; i++) {
		n = ibv_poll_cq(cq, 1, &wc);
		if (n) {
			CHECK_INT(n, 1);
			return wc;
		}
		usleep(20);
	}
	fprintf(stderr, "no completion\n");
	exit(1);
}

static void test_data(struct ibv_qp *qp)
{
	uint64_t value = 39, old;
	struct ibv_wc wc;

	for (uint32_t i = 0; i < BYTES; i++) {
		buffer[i] = (uint8_t)(i * 11 + i / 256);
	}
	CHECK_INT(post(qp, IBV_WR_RDMA_WRITE, 7, 0, BYTES, 5000, mr->rkey, IBV_SEND_SIGNALED), 0);
	wc = next();
	CHECK(wc.wr_id == 7 && wc.status == IBV_WC_SUCCESS && wc.opcode == IBV_WC_RDMA_WRITE &&
	      wc.qp_num == qp->qp_num);
	CHECK(!memcmp(buffer, buffer + BYTES, 5000));
	CHECK_INT(post(qp, IBV_WR_RDMA_READ, 8, 20000, BYTES, 5000, mr->rkey, IBV_SEND_SIGNALED),
		  0);
	wc = next();
	CHECK(wc.wr_id == 8 && wc.opcode == IBV_WC_RDMA_READ);
	CHECK(!memcmp(buffer + 20000, buffer + BYTES, 5000));
	memcpy(buffer + BYTES + 8000, &value, 8);
	CHECK_INT(post(qp, IBV_WR_ATOMIC_FETCH_AND_ADD, 9, 16, BYTES + 8000, 8, mr->rkey,
		       IBV_SEND_SIGNALED),
		  0);
	wc = next();
	CHECK(wc.wr_id == 9 && wc.opcode == IBV_WC_FETCH_ADD);
	memcpy(&old, buffer + 16, 8);
	memcpy(&value, buffer + BYTES + 8000, 8);
	CHECK(old == 39 && value == 42);
	/* Inline data may be changed at once. */
	buffer[100] = 1;
	CHECK_INT(post(qp, IBV_WR_RDMA_WRITE, 10, 100, BYTES + 100, 28, mr->rkey,
		       IBV_SEND_SIGNALED | IBV_SEND_INLINE),
		  0);
	buffer[100] = 2;
	CHECK_INT(next().wr_id, 10);
	CHECK_INT(buffer[BYTES + 100], 1);
	CHECK(post(qp, IBV_WR_SEND, 0, 0, 0, 8, 0, 0) != 0);
	CHECK(post(qp, IBV_WR_RDMA_WRITE, 0, 0, BYTES, 4000, mr->rkey, IBV_SEND_INLINE) != 0);
}

/* Unsignaled requests are taken off the queue by the next completion only. */
static void test_room(struct ibv_qp *qp)
{
	for (int round = 0; round < 100; round++) {
		for (uint32_t i = 0; i < DEPTH; i++) {
			CHECK_INT(post(qp, IBV_WR_RDMA_WRITE, i, 0, BYTES, 64, mr->rkey,
				       i == DEPTH - 1 ? IBV_SEND_SIGNALED : 0),
				  0);
		}
		CHECK_INT(post(qp, IBV_WR_RDMA_WRITE, 0, 0, BYTES, 64, mr->rkey, 0), ENOMEM);
		CHECK_INT(next().wr_id, DEPTH - 1);
	}
}

static int receive(struct ibv_qp *qp, uint64_t id)
{
	struct ibv_recv_wr wr = { .wr_id = id }, *bad = NULL;
	int rc = ibv_post_recv(qp, &wr, &bad);

	CHECK((rc != 0) == (bad == &wr));
	return rc;
}

/* Both ends' completions of one message, in any order. */
static void immediate_next(struct ibv_qp *qp, struct ibv_qp *peer, uint32_t id, uint64_t receive_id,
			   uint32_t bytes)
{
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = next();

		CHECK_INT(wc.status, IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_RECV_RDMA_WITH_IMM) {
			CHECK(wc.qp_num == peer->qp_num && wc.wr_id == receive_id);
			CHECK(wc.wc_flags & IBV_WC_WITH_IMM && be32toh(wc.imm_data) == id);
			CHECK_INT(wc.byte_len, bytes);
			CHECK(!memcmp(buffer, buffer + BYTES, BYTES / 2));
		} else {
			CHECK(wc.qp_num == qp->qp_num && wc.wr_id == id);
		}
	}
}

static void test_immediate(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct ibv_wc wc;

	/* Nothing ends before there is a receive, then all that was sent before is there. */
	for (uint32_t round = 0; round < 20; round++) {
		uint32_t bytes = round % 4 ? 4000 * (round % 4) : 0, half = BYTES / 2 - bytes;

		for (uint32_t i = 0; i < BYTES / 2; i++) {
			buffer[i] = (uint8_t)(i * 7 + i / 256 + round);
		}
		CHECK_INT(post(qp, IBV_WR_RDMA_WRITE, 0, bytes, BYTES + bytes, half, mr->rkey, 0),
			  0);
		CHECK_INT(post(qp, IBV_WR_RDMA_WRITE_WITH_IMM, 50 + round, 0, BYTES, bytes,
			       mr->rkey, IBV_SEND_SIGNALED),
			  0);
		for (int i = 0; i < 2000 && round < 2; i++) {
			usleep(20);
			CHECK_INT(ibv_poll_cq(cq, 1, &wc), 0);
		}
		CHECK_INT(receive(peer, 1000 + round), 0);
		immediate_next(qp, peer, 50 + round, 1000 + round, bytes);
	}
	/* They are used in the order in which they were posted. */
	for (uint32_t i = 0; i < RECEIVES; i++) {
		CHECK_INT(receive(peer, i), 0);
	}
	CHECK_INT(receive(peer, RECEIVES), ENOMEM);
	for (uint32_t i = 0; i < RECEIVES; i++) {
		CHECK_INT(post(qp, IBV_WR_RDMA_WRITE_WITH_IMM, i, 0, BYTES, 20, mr->rkey,
			       IBV_SEND_SIGNALED | IBV_SEND_INLINE),
			  0);
		immediate_next(qp, peer, i, i, 20);
	}
}

static void test_error(struct ibv_qp *qp, struct ibv_qp *peer)
{
	struct pollfd fd = { ctx->async_fd, POLLIN, 0 };
	struct ibv_qp_init_attr init;
	struct ibv_async_event e;
	struct ibv_qp_attr a;
	struct ibv_wc wc;

	CHECK_INT(receive(peer, 77), 0);
	CHECK_INT(post(qp, IBV_WR_RDMA_WRITE, 1, 0, BYTES, 8, mr->lkey, 0), 0);
	CHECK_INT(post(qp, IBV_WR_RDMA_WRITE, 2, 0, BYTES, 8, mr->rkey, 0), 0);
	for (int i = 0; i < 3; i++) {
		wc = next();
		CHECK(wc.wr_id == 1 || wc.wr_id == 2 || wc.wr_id == 77);
		CHECK_INT(wc.status, wc.wr_id == 1 ? IBV_WC_REM_ACCESS_ERR : IBV_WC_WR_FLUSH_ERR);
	}
	CHECK_INT(ibv_query_qp(qp, &a, IBV_QP_STATE, &init), 0);
	CHECK_INT(a.qp_state, IBV_QPS_ERR);
	CHECK_INT(poll(&fd, 1, 5000), 1);
	CHECK_INT(ibv_get_async_event(ctx, &e), 0);
	CHECK(e.event_type == IBV_EVENT_QP_ACCESS_ERR && e.element.qp == peer);
	ibv_ack_async_event(&e);
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_qp *qp, *peer;

	ctx = ibv_open_device(list[0]);
	NEED(!ctx);
	ibv_free_device_list(list);
	NEED(ibv_query_port(ctx, 1, &port));
	pd = ibv_alloc_pd(ctx);
	NEED(!pd);
	cq = ibv_create_cq(ctx, 4 * DEPTH, NULL, NULL, 0);
	mr = ibv_reg_mr(pd, buffer, sizeof(buffer), CL_FULL);
	NEED(!cq || !mr);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 0, 0, -1, 0));
	CHECK_INT(errno, EBADF);
	qp = make();
	peer = make();
	connect_to(qp, peer->qp_num);
	connect_to(peer, qp->qp_num);
	test_data(qp);
	test_data(peer);
	test_room(qp);
	test_immediate(qp, peer);
	test_immediate(peer, qp);
	test_error(qp, peer);
	CHECK_INT(ibv_destroy_cq(cq), EBUSY);
	CHECK_INT(ibv_dealloc_pd(pd), EBUSY);
	CHECK_INT(ibv_destroy_qp(qp), 0);
	CHECK_INT(ibv_destroy_qp(peer), 0);
	CHECK_INT(ibv_destroy_cq(cq), 0);
	CHECK_INT(ibv_dereg_mr(mr), 0);
	CHECK_INT(ibv_dealloc_pd(pd), 0);
	CHECK_INT(ibv_close_device(ctx), 0);
	return test_result();
}
