/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bandwidth of the plugin from one device to another, beside that of bare RDMA WRITEs of the same
 * size on one queue pair, as perftest's ib_write_bw does them: 128 posted, every hundredth tells of
 * its end.
 *   bandwidth LIBRARY FROM TO LEAST SIZE...
 * LEAST: least part of the bare writes' bandwidth, at every size: the median of rounds of both, one
 * after the other. Where the middle half of them differs by more than 3 %, the machine is too busy
 * to tell, and the test is skipped.
 */
#include <infiniband/verbs.h>
#include "net/rig.h"
#include "rdma/rdma.h"

#define BYTES (32u << 20) /* of a round */
#define DEPTH 128u
#define SIGNAL 100u
#define WINDOW 32u
#define ROUNDS 15
#define MOST (4u << 20)

static struct net net;
static uint8_t *from, *to;

/* ---- bare writes ---- */

struct end {
	struct ep_nic nic;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
};

static void end_open(struct end *e, const char *name, uint8_t *memory)
{
	static struct ep_ib_env env;
	struct ibv_qp_init_attr init = { .qp_type = IBV_QPT_RC };
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT,
				    .port_num = 1,
				    .qp_access_flags = IBV_ACCESS_REMOTE_WRITE };
	struct ep_reason why = { "" };
	struct ep_port_list list = { 0 };
	ncclResult_t result = ncclSuccess;
	int found = -1;

	NEED(ep_ib_env_read(&env) == ncclSuccess && ep_port_list_open(&list, &why));
	for (int i = 0; i < list.n; i++) {
		found = strcmp(list.port[i].name, name) == 0 ? i : found;
	}
	NET_NEED(found >= 0, "there is no %s", name);
	NET_NEED(ep_nic_open(&e->nic, &list, &list.port[found], &env, &why, &result), "%s",
		 why.text);
	e->cq = e->nic.v->ibv_create_cq(e->nic.ctx, 2 * DEPTH, NULL, NULL, 0);
	NEED(e->cq);
	init.send_cq = init.recv_cq = e->cq;
	init.cap = (struct ibv_qp_cap){
		.max_send_wr = DEPTH, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1
	};
	e->qp = e->nic.v->ibv_create_qp(e->nic.pd, &init);
	e->mr = (e->nic.v->ibv_reg_mr)(e->nic.pd, memory, MOST,
				       IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
	NEED(e->qp && e->mr);
	NEED(e->nic.v->ibv_modify_qp(e->qp, &attr,
				     IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
					     IBV_QP_ACCESS_FLAGS) == 0);
	ep_port_list_close(&list);
}

static void end_connect(struct end *e, const struct end *peer)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_RTR,
				    .path_mtu = (enum ibv_mtu)e->nic.end.mtu,
				    .dest_qp_num = peer->qp->qp_num,
				    .ah_attr = { .is_global = 1,
						 .port_num = 1,
						 .grh = { .sgid_index = (uint8_t)e->nic.gid_index,
							  .hop_limit = 64 } },
				    .min_rnr_timer = 12 };

	memcpy(&attr.ah_attr.grh.dgid, peer->nic.end.gid, 16);
	NEED(e->nic.v->ibv_modify_qp(e->qp, &attr,
				     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN |
					     IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
					     IBV_QP_MIN_RNR_TIMER) == 0);
	attr = (struct ibv_qp_attr){
		.qp_state = IBV_QPS_RTS, .timeout = 18, .retry_cnt = 7, .rnr_retry = 7
	};
	NEED(e->nic.v->ibv_modify_qp(e->qp, &attr,
				     IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT |
					     IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
					     IBV_QP_MAX_QP_RD_ATOMIC) == 0);
}

static void end_close(struct end *e)
{
	e->nic.v->ibv_destroy_qp(e->qp);
	e->nic.v->ibv_destroy_cq(e->cq);
	e->nic.v->ibv_dereg_mr(e->mr);
	ep_nic_close(&e->nic, false);
}

/* Bytes per second. */
static double bare(struct end *a, struct end *b, uint32_t size)
{
	uint32_t n = BYTES / size, posted = 0, done = 0;
	double start = check_now();

	while (done < n) {
		struct ibv_sge sge = { (uintptr_t)from, size, a->mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge,
					  .num_sge = 1,
					  .opcode = IBV_WR_RDMA_WRITE },
				   *bad;
		struct ibv_wc wc;

		wr.wr.rdma.remote_addr = (uintptr_t)to;
		wr.wr.rdma.rkey = b->mr->rkey;
		while (posted < n && posted - done < DEPTH) {
			posted++;
			wr.send_flags = posted % SIGNAL == 0 || posted == n ? IBV_SEND_SIGNALED : 0;
			wr.wr_id = posted;
			NEED(ibv_post_send(a->qp, &wr, &bad) == 0);
		}
		if (ibv_poll_cq(a->cq, 1, &wc) > 0) {
			NET_NEED(wc.status == IBV_WC_SUCCESS, "status %d", wc.status);
			done = (uint32_t)wc.wr_id;
		}
	}
	return (double)n * size / (check_now() - start);
}

/* ---- the plugin ---- */

struct flow {
	struct net_pair *pair;
	void *mr;
	uint32_t size, n, posted, ended;
	void *request[WINDOW];
};

static void flow_test(struct flow *f)
{
	int sizes[64], done = 0;

	if (f->ended < f->posted) {
		NET_NEED(net_test(&net, f->request[f->ended % WINDOW], &done, sizes) == NET_OK,
			 "%s", net_log_last());
		f->ended += done != 0;
	}
}

/* Receives are there before their messages, as the bare writes have WINDOW and more under way. */
static void flow_receive(struct flow *f)
{
	void *data = to, *r = &f;
	size_t room = f->size;
	int tag = 0;

	while (r && f->posted < f->n && f->posted - f->ended < WINDOW) {
		NEED(net_irecv(&net, f->pair->recv, 1, &data, &room, &tag, &f->mr, &r) == NET_OK);
		f->request[f->posted % WINDOW] = r;
		f->posted += r != NULL;
	}
	flow_test(f);
}

static void flow_send(struct flow *f)
{
	void **r = &f->request[f->posted % WINDOW];

	if (f->posted < f->n && f->posted - f->ended < WINDOW) {
		NEED(net_isend(&net, f->pair->send, from, f->size, 0, f->mr, r) == NET_OK);
		f->posted += *r != NULL;
	}
	flow_test(f);
}

/*
 * Both ends in one thread: a receiver that polls elsewhere takes time from the kernel's packets, if
 * the machine is busy.
 */
static double plugin(struct net_pair *pair, void *from_mr, void *to_mr, uint32_t size)
{
	struct flow out = { .pair = pair, .mr = from_mr, .size = size, .n = BYTES / size };
	struct flow in = { .pair = pair, .mr = to_mr, .size = size, .n = BYTES / size };
	double start = check_now();

	while (out.ended < out.n || in.ended < in.n) {
		flow_receive(&in);
		flow_send(&out);
	}
	return (double)out.n * size / (check_now() - start);
}

static int ascending(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* False: the machine is too busy to tell. */
static bool compare(struct end *a, struct end *b, struct net_pair *pair, void **mr, uint32_t size,
		    double least)
{
	double ratio[ROUNDS], best = 0, bare_best = 0, spread, median = 0;
	int rounds = 0;

	while (rounds < 3 || (rounds < ROUNDS && median < least)) {
		double bare_rate = bare(a, b, size), rate = plugin(pair, mr[0], mr[1], size);

		best = rate > best ? rate : best;
		bare_best = bare_rate > bare_best ? bare_rate : bare_best;
		ratio[rounds++] = rate / bare_rate;
		qsort(ratio, (size_t)rounds, sizeof(ratio[0]), ascending);
		median = ratio[rounds / 2];
	}
	spread = ratio[rounds * 3 / 4] - ratio[rounds / 4];
	printf("%u bytes: %.1f MB/s, bare writes %.1f MB/s at best; %.1f %% in %d rounds, middle half "
	       "within %.1f\n",
	       size, best / 1e6, bare_best / 1e6, 100 * median, rounds, 100 * spread);
	if (median < least && spread > 0.03) {
		printf("skipped: rounds differ too much, the machine is busy\n");
		return false;
	}
	CHECK(median >= least, "%u bytes", size);
	return true;
}

int main(int argc, char **argv)
{
	struct end a = { 0 }, b = { 0 };
	struct net_pair pair;
	bool busy = false;
	void *mr[2];

	NEED(argc > 5);
	from = aligned_alloc(4096, MOST);
	to = aligned_alloc(4096, MOST);
	NEED(from && to);
	memset(from, 1, MOST);
	memset(to, 2, MOST);
	net_load(&net, argv[1], 11);
	NET_NEED(net_init(&net, -1) == NET_OK, "%s", net_log_last());
	net_pair_make(&net, 0, 1, &pair); /* by name, as both have no PCI address */
	NEED(net_reg(&net, pair.send, from, MOST, NET_HOST, &mr[0]) == NET_OK);
	NEED(net_reg(&net, pair.recv, to, MOST, NET_HOST, &mr[1]) == NET_OK);
	end_open(&a, argv[2], from);
	end_open(&b, argv[3], to);
	end_connect(&a, &b);
	end_connect(&b, &a);
	for (int i = 5; i < argc; i++) {
		uint32_t size = (uint32_t)strtoul(argv[i], NULL, 0);

		NEED(size && size <= MOST);
		busy |= !compare(&a, &b, &pair, mr, size, atof(argv[4]));
	}
	CHECK(to[0] == 1);
	CHECK_INT(net_dereg(&net, pair.send, mr[0]), NET_OK);
	CHECK_INT(net_dereg(&net, pair.recv, mr[1]), NET_OK);
	net_pair_close(&net, &pair);
	end_close(&a);
	end_close(&b);
	CHECK_INT(net_finalize(&net), NET_OK);
	return check_end() ? 1 : busy ? TEST_SKIP : 0;
}
