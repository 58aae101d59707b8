/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include "net/fake.h"

struct fake_qp fake_qps[FAKE_QPS];
uint32_t fake_made;
bool fake_no_ece, fake_no_qp, fake_no_slots, fake_no_reads, fake_no_writes;
int fake_refusals, fake_refusal, fake_modified;
static struct ibv_context fake_context;
static pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibv_pd fake_pd = { .context = &fake_context };

/* ---- verbs ---- */

/* Whether this call is to fail; else there is one thing more. */
static bool fake_fail(void)
{
	bool fails;

	pthread_mutex_lock(&fake_lock);
	fails = fake_fails == 1;
	fake_fails -= fake_fails > 1;
	fake_left += !fails;
	pthread_mutex_unlock(&fake_lock);
	if (fails) {
		errno = ENOMEM;
	}
	return fails;
}

static struct ibv_cq *fake_create_cq(struct ibv_context *ctx, int cqe, void *context,
				     struct ibv_comp_channel *channel, int vector)
{
	struct fake_cq *cq = fake_fail() ? NULL : calloc(1, sizeof(*cq));

	if (!cq) {
		return NULL;
	}
	cq->ibv.context = ctx;
	cq->ibv.cq_context = context;
	return &cq->ibv;
}

static int fake_destroy_cq(struct ibv_cq *cq)
{
	fake_left--;
	free(cq);
	return 0;
}

static struct ibv_qp *fake_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *init)
{
	struct fake_qp *qp;
	uint32_t n;

	if (fake_no_qp || fake_fail()) {
		errno = ENOMEM;
		return NULL;
	}
	n = __atomic_fetch_add(&fake_made, 1, __ATOMIC_RELAXED);
	NEED(n < FAKE_QPS);
	qp = &fake_qps[n];
	memset(qp, 0, sizeof(*qp));
	qp->ibv.context = &fake_context;
	qp->ibv.qp_num = 0x100 + n;
	qp->ibv.send_cq = init->send_cq;
	qp->ibv.recv_cq = init->recv_cq;
	return &qp->ibv;
}

static int fake_destroy_qp(struct ibv_qp *qp)
{
	fake_left--;
	return 0;
}

static int fake_modify_qp(struct ibv_qp *ibv, struct ibv_qp_attr *attr, int mask)
{
	struct fake_qp *qp = (struct fake_qp *)ibv;

	__atomic_fetch_add(&fake_modified, 1, __ATOMIC_RELAXED);
	if (fake_fatal) {
		return EIO;
	}
	if (fake_refusals) {
		fake_refusals--;
		return fake_refusal;
	}
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
	return fake_fail() ? NULL : calloc(1, sizeof(struct ibv_mr));
}

static int fake_dereg_mr(struct ibv_mr *mr)
{
	fake_left--;
	free(mr);
	return 0;
}

void fake_complete(struct ibv_cq *ibv, struct ibv_wc wc)
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
						       .byte_len = bytes,
						       .qp_num = peer->ibv.qp_num });
		}
		if (wr->send_flags & IBV_SEND_SIGNALED &&
		    !(fake_no_slots && EP_NET_WR_KIND(wr->wr_id) == EP_NET_WORK_SLOT) &&
		    !(fake_no_reads && wr->opcode == IBV_WR_RDMA_READ) &&
		    !(fake_no_writes && wr->opcode == IBV_WR_RDMA_WRITE)) {
			fake_complete(qp->ibv.send_cq,
				      (struct ibv_wc){ .wr_id = wr->wr_id, .qp_num = ibv->qp_num });
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

struct ibv_cq *fake_overrun;
int fake_acked;
bool fake_fatal;
int fake_fails, fake_left;
static bool fake_fatal_heard;

static int fake_get_async_event(struct ibv_context *ctx, struct ibv_async_event *event)
{
	if (fake_fatal && !fake_fatal_heard) {
		*event = (struct ibv_async_event){ .event_type = IBV_EVENT_DEVICE_FATAL };
		fake_fatal_heard = true;
		return 0;
	}
	if (!fake_overrun) {
		errno = EAGAIN;
		return -1;
	}
	*event = (struct ibv_async_event){ .element.cq = fake_overrun,
					   .event_type = IBV_EVENT_CQ_ERR };
	fake_overrun = NULL;
	return 0;
}

static void fake_ack_async_event(struct ibv_async_event *event)
{
	fake_acked++;
}

static int fake_query_port(struct ibv_context *ctx, uint8_t port,
			   struct _compat_ibv_port_attr *attr)
{
	struct ibv_port_attr *all = (struct ibv_port_attr *)attr;

	all->state = IBV_PORT_ACTIVE;
	all->active_mtu = IBV_MTU_4096;
	all->gid_tbl_len = 1;
	all->lid = 77;
	all->link_layer = IBV_LINK_LAYER_INFINIBAND;
	return 0;
}

static int fake_query_pkey(struct ibv_context *ctx, uint8_t port, int index, uint16_t *pkey)
{
	*pkey = 0xffff;
	return 0;
}

static int fake_query_gid(struct ibv_context *ctx, uint8_t port, int index, union ibv_gid *gid)
{
	memset(gid, 0, sizeof(*gid));
	gid->raw[15] = 1; /* of the same subnet */
	return 0;
}

static const struct ep_verbs fake_verbs = {
	.ibv_query_port = fake_query_port,
	.ibv_query_pkey = fake_query_pkey,
	.ibv_query_gid = fake_query_gid,
	.ibv_get_async_event = fake_get_async_event,
	.ibv_ack_async_event = fake_ack_async_event,
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

struct ep_net_nic *fake_device(bool ethernet, uint8_t mtu)
{
	struct ep_net_nic *one = calloc(1, sizeof(*one));
	struct ep_net_dev *dev = calloc(1, sizeof(*dev));
	struct ep_nic *nic;

	NEED(one && dev);
	one->nports = 1;
	one->dev[0] = dev;
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
	return one;
}

void fake_device_free(struct ep_net_nic *one)
{
	CHECK_INT(one->dev[0]->users, 1);
	free(one->dev[0]);
	free(one);
}

/* The receiver first, as it answers the sender's hello. */
static void connect_both(struct ep_net_comm *a, struct ep_net_comm *b)
{
	struct ep_net_comm *ends[2] = { b, a };

	for (int i = 0; i < 2; i++) {
		struct ep_net_comm *to = ends[!i];
		uint32_t qpn[EP_NET_MAX_QPS];
		struct ep_net_far far = { .end = to->local[0].end, .ece = to->local[0].ece };
		struct ep_net_peer peer = { .nfars = 1,
					    .far = &far,
					    .shared = (uintptr_t)to->shared,
					    .nqps = to->nqps,
					    .qpn = qpn };

		for (uint32_t k = 0; k < to->nqps; k++) {
			qpn[k] = to->qp[k].qp->qp_num;
		}
		CHECK_INT(ep_net_comm_connect(ends[i], &peer), ncclSuccess);
	}
}

void pair_of_routes(struct ep_net_nic *from, struct ep_net_nic *to, uint32_t routes, uint32_t nqps,
		    int tc, struct ep_net_comm *pair[2])
{
	fake_made = 0;
	struct ep_net_class class = { tc, tc };

	NEED(ep_net_comm_new(from, true, routes, nqps, &class, &pair[0]) == ncclSuccess);
	class = (struct ep_net_class){ pair[0]->local[0].tc, pair[0]->local[0].sl };
	NEED(ep_net_comm_new(to, false, routes, nqps, &class, &pair[1]) == ncclSuccess);
	connect_both(pair[0], pair[1]);
	for (int i = 0; i < 2; i++) {
		pair[i]->handle = ep_net_handle_new(i ? EP_NET_RECV : EP_NET_SEND, pair[i]);
		NEED(pair[i]->handle);
	}
}

void pair_make(struct ep_net_nic *from, struct ep_net_nic *to, uint32_t nqps, int tc,
	       struct ep_net_comm *pair[2])
{
	pair_of_routes(from, to, 1, nqps, tc, pair);
}

void pair_free(struct ep_net_comm *pair[2])
{
	for (int i = 0; i < 2; i++) {
		CHECK(ep_net_handle_drop(i ? EP_NET_RECV : EP_NET_SEND, pair[i]->handle) ==
		      pair[i]);
		ep_net_comm_free(pair[i]);
	}
}

void fake_begin(void)
{
	fake_context.ops.post_send = fake_post_send;
	fake_context.ops.post_recv = fake_post_recv;
	fake_context.ops.poll_cq = fake_poll_cq;
}
