/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ports that fail and come back: what the NIC tells late, or never.
 */
#include <endian.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "core/log.h"
#include "net/ends.h"
#include "net/coll.h"
#include "net/gin.h"
#include "net/p2p.h"

/* ---- connections ---- */

/* A receiver of two ports and its sender, whose messages nobody reads but the test: from `fd`. */
struct two {
	struct ep_net_nic *from, *to;
	struct ep_net_comm *pair[2], *c; /* c: the receiver */
	struct ep_net_mr *mr;
	uint8_t target[64];
	void *handle;
	int fd[2];
};

static void two_open(struct two *t)
{
	memset(t, 0, sizeof(*t));
	t->from = ends_nic(0);
	t->to = ends_nic_two(1, 2);
	pair_of_paths(t->from, t->to, 2, 2, -1, t->pair);
	t->c = t->pair[1];
	NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, t->fd) == 0);
	t->c->fd = t->fd[0];
	t->mr = ends_register(t->to, t->target, sizeof(t->target));
	t->mr->gpu = true;
	CHECK(ep_net_handle_new(EP_NET_MR, t->mr, &t->handle) == ncclSuccess);
}

static void two_close(struct two *t)
{
	close(t->fd[1]);
	/* (else what was posted would be waited for) */
	t->to->dev[0]->broken = t->to->dev[1]->broken = true;
	ep_net_handle_drop(EP_NET_MR, t->handle);
	ep_net_mr_free(t->mr);
	pair_end(t->pair, t->from, t->to);
}

static void *two_flush(struct two *t)
{
	void *data = t->target, *request = NULL;
	int size = sizeof(t->target);

	CHECK_INT(ep_net_iflush(t->c->handle, 1, &data, &size, &t->handle, &request), ncclSuccess);
	NEED(request);
	ends_settle();
	return request;
}

#define KEY 6      /* of that value, at that place */
#define LOOKS 1000 /* at least: a busy machine may take the time away */

/* Whether a request ends within a tenth of a second. */
static bool ends_by(void *request, ncclResult_t (*test)(void *request, int *done))
{
	uint64_t until = ep_now_ns() + 100000000;
	int done = 0;

	for (int n = 0; !done && (n < LOOKS || ep_now_ns() < until); n++) {
		CHECK_INT(test(request, &done), ncclSuccess);
	}
	return done != 0;
}

static ncclResult_t net_test(void *request, int *done)
{
	return ep_net_test(request, done, NULL);
}

static bool ends(void *request)
{
	return ends_by(request, net_test);
}

/*
 * The sender uses a path again that this end only knows to be connected: data may come by its port.
 */
static void test_flush_early(enum ep_net_path_state state, bool reads)
{
	static struct two t;

	check_context("early flush, state %d", (int)state);
	two_open(&t);
	t.c->path[0].state = state;
	ep_net_qps_choose(t.c);
	CHECK(ends(two_flush(&t)), "it does not end");
	CHECK(t.c->local[1].flush.qp, "nothing is read by the port that is open");
	CHECK(!t.c->local[0].flush.qp == !reads, "%p", (void *)t.c->local[0].flush.qp);
	two_close(&t);
}

/*
 * A device breaks, and what flushes read by it never comes back: they end with what the other ports
 * read. What it tells of them later is of no request any more.
 */
static void test_flush_broken(void)
{
	static struct two t;
	void *request[2];

	check_context("flush of a device that breaks");
	two_open(&t);
	ends_no_reads = true;
	request[0] = two_flush(&t);
	ends_no_reads = false;
	request[1] = two_flush(&t);
	CHECK(!ends(request[0]), "it has not been read");
	vn_dv_complete(
		t.c->local[1].cq,
		&(struct ibv_wc){ .wr_id = EP_NET_WR_ID(EP_NET_WORK_FLUSH, EP_NET_WR_FLUSH_QP(1), 1,
							ep_net_request_number(request[0])) });
	t.to->dev[0]->broken = true;
	CHECK(ends(request[0]), "a device that is broken is waited for");
	CHECK(ends(request[1]), "it does not end");
	ends_no_reads = true;
	request[0] = two_flush(&t);
	for (int i = 0; i < 2; i++) {
		vn_dv_complete(
			t.c->local[0].cq,
			&(struct ibv_wc){ .wr_id = EP_NET_WR_ID(EP_NET_WORK_FLUSH,
								EP_NET_WR_FLUSH_QP(0), 1,
								ep_net_request_number(request[0])),
					  .status = i ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS });
		CHECK(!ends(request[0]), "it has not been read by the other port");
	}
	ends_no_reads = false;
	two_close(&t);
}

/* Both paths are closed on both ends, and the sender has these messages to say. */
static ncclResult_t two_receive(struct two *t, const struct ep_net_ctrl_msg *msg, uint32_t n)
{
	for (uint32_t i = 0; i < t->c->npaths; i++) {
		t->c->path[i].state = EP_NET_PATH_CLOSED;
		t->c->path[i].since = ep_now_ns();
	}
	ep_net_qps_choose(t->c);
	NEED(!n || write(t->fd[1], msg, n * sizeof(*msg)) == (ssize_t)(n * sizeof(*msg)));
	return ep_net_paths_check(t->c);
}

/*
 * The last path fails while the port of the other one is down: an error at once, whatever else is
 * up.
 */
static void test_last(void)
{
	static struct two t;
	struct ibv_wc wc = { .wr_id = EP_NET_WR_ID(EP_NET_WORK_RECEIVE, 1, 0, 0),
			     .status = IBV_WC_RETRY_EXC_ERR };
	uint64_t began = ep_now_ns();
	ncclResult_t result = ncclSuccess;

	check_context("the last path");
	two_open(&t);
	t.c->path[0].state = EP_NET_PATH_CLOSED;
	t.c->path[0].again = UINT64_MAX;
	t.to->dev[0]->port_down = 1;
	ep_net_qps_choose(t.c);
	vn_dv_complete(t.c->local[1].cq, &wc);
	while (result == ncclSuccess && ep_now_ns() - began < 2000000000ull) {
		result = ep_net_progress(t.c);
	}
	CHECK_INT(result, ncclRemoteError);
	CHECK_INT(t.c->path[1].state, EP_NET_PATH_OPEN);
	t.to->dev[0]->port_down = 0;
	two_close(&t);
}

/* An offer is answered when its path may come back. Its port's key may have another place then. */
static void test_answered(void)
{
	static struct two t;
	struct vn_dv_attributes told;
	struct ep_net_ctrl_msg msg = { .magic = EP_NET_CTRL_MAGIC,
				       .kind = EP_NET_OFFER,
				       .generation = 1 };

	check_context("an offer");
	two_open(&t);
	msg.end = t.c->remote[0].end;
	msg.number[0] = t.pair[0]->qp[0].qp->qp_num;
	t.c->path[1].again = UINT64_MAX;
	t.to->dev[0]->nic.pkey_index = KEY + 1;
	t.to->dev[0]->ask = 0;
	CHECK_INT(two_receive(&t, &msg, 1), ncclSuccess);
	CHECK_INT(t.c->path[0].state, EP_NET_PATH_READY);
	CHECK_INT(t.c->path[1].state, EP_NET_PATH_CLOSED);
	vn_dv_attributes(t.c->qp[0].qp, &told);
	CHECK_INT(told.init.pkey_index, KEY);
	two_close(&t);
}

static struct ep_net_ctrl_msg msg_of(const struct two *t, uint8_t kind, uint16_t generation)
{
	struct ep_net_ctrl_msg msg = { .magic = EP_NET_CTRL_MAGIC,
				       .kind = kind,
				       .generation = generation };

	if (kind == EP_NET_OFFER) {
		msg.end = t->c->remote[0].end;
		msg.number[0] = t->pair[0]->qp[0].qp->qp_num;
	}
	return msg;
}

static void two_send(struct two *t, uint8_t kind, uint16_t generation)
{
	struct ep_net_ctrl_msg msg = msg_of(t, kind, generation);

	NEED(write(t->fd[1], &msg, sizeof(msg)) == sizeof(msg));
	CHECK_INT(ep_net_paths_check(t->c), ncclSuccess);
}

/*
 * A path comes back where none was open: nothing is lost any more. What its old queue pair has told
 * is of nobody; what the new one tells counts, also before the sender has said that it uses it.
 */
static void test_generations(void)
{
	struct ibv_wc wc = { .wr_id = EP_NET_WR_ID(EP_NET_WORK_RECEIVE, 0, 0, 0),
			     .opcode = IBV_WC_RECV_RDMA_WITH_IMM,
			     .imm_data = htobe32(EP_NET_IMM(0, 0, 1, 0)) };
	static struct two t;
	struct ep_net_ctrl_msg msg;
	void *data = NULL, *mr = NULL, *request;
	size_t size = 0;
	int tag = 0;

	check_context("generations of a path");
	two_open(&t);
	CHECK_INT(ep_net_irecv(t.c->handle, 1, &data, &size, &tag, &mr, &request), ncclSuccess);
	msg = msg_of(&t, EP_NET_OFFER, 1);
	CHECK_INT(two_receive(&t, &msg, 1), ncclSuccess);
	CHECK_INT(t.c->path[0].state, EP_NET_PATH_READY);
	vn_dv_complete(t.c->local[0].cq, &wc);
	CHECK_INT(ep_net_progress(t.c), ncclSuccess);
	CHECK_INT(t.c->qp[0].received, 0);
	wc.wr_id |= 1u << 16;
	vn_dv_complete(t.c->local[0].cq, &wc);
	CHECK_INT(ep_net_progress(t.c), ncclSuccess);
	CHECK_INT(t.c->qp[0].received, 1);
	CHECK(ends(request), "what has come does not count");
	two_send(&t, EP_NET_READY_TOO, 1);
	two_send(&t, EP_NET_PROVED, 1);
	CHECK_INT(t.c->path[0].state, EP_NET_PATH_OPEN);
	CHECK_INT(t.c->open.paths, 1);
	two_close(&t);
}

/*
 * An offer is taken back before this end has answered it: it says so, too, and the next one is of
 * the next generation.
 */
static void test_taken_back(void)
{
	static struct two t;
	struct ep_net_ctrl_msg msg;

	check_context("an offer that is taken back");
	two_open(&t);
	t.c->path[0].state = EP_NET_PATH_CLOSED;
	t.c->path[0].again = UINT64_MAX;
	ep_net_qps_choose(t.c);
	for (uint16_t generation = 1; generation < 4; generation++) {
		two_send(&t, EP_NET_OFFER, generation);
		CHECK(t.c->path[0].offered, "generation %u", generation);
		two_send(&t, EP_NET_CLOSED, generation);
		CHECK(!t.c->path[0].offered, "generation %u", generation);
		CHECK_INT(t.c->path[0].generation, generation);
		CHECK_INT(read(t.fd[1], &msg, sizeof(msg)), sizeof(msg));
		CHECK(msg.kind == EP_NET_CLOSED && msg.generation == generation, "%u, %u", msg.kind,
		      msg.generation);
	}
	two_close(&t);
}

/* A port is not used again before all that flushes read by it has come back. */
static void test_flush_first(void)
{
	static struct two t;
	void *request;

	check_context("a port whose flushes are late");
	two_open(&t);
	ends_no_reads = true;
	request = two_flush(&t);
	ends_no_reads = false;
	t.c->local[0].flush.ended = true;
	t.c->path[0].state = EP_NET_PATH_CLOSED;
	ep_net_qps_choose(t.c);
	two_send(&t, EP_NET_OFFER, 1);
	CHECK_INT(t.c->path[0].state, EP_NET_PATH_CLOSED);
	for (uint32_t i = 0; i < 2; i++) {
		uint64_t id = EP_NET_WR_ID(EP_NET_WORK_FLUSH, EP_NET_WR_FLUSH_QP(i), 1,
					   ep_net_request_number(request));

		vn_dv_complete(t.c->local[i].cq, &(struct ibv_wc){ .wr_id = id });
	}
	CHECK(ends(request), "it does not end");
	t.c->path[0].again = 0;
	CHECK_INT(ep_net_paths_check(t.c), ncclSuccess);
	CHECK_INT(t.c->path[0].state, EP_NET_PATH_READY);
	two_close(&t);
}

/* An offer that cannot be ends the connection, whoever has heard it. */
static void test_offers(void)
{
	static const struct ep_net_ctrl_msg words[] = {
		{ .port = 1, .end = { .mtu = 5 } },
		{ .end = { .mtu = 6 } },
		{ .end = { .mtu = 0 } },
		{ .end = { .mtu = 5, .roce = 3 } },
		{ .end = { .mtu = 5 }, .number = { 1u << 24 } },
	};
	static struct two t;
	struct ep_error error;

	for (size_t i = 0; i < EP_ARRAY_SIZE(words); i++) {
		struct ep_net_ctrl_msg msg = words[i];

		check_context("offer %zu", i);
		two_open(&t);
		msg.magic = EP_NET_CTRL_MAGIC;
		msg.kind = EP_NET_OFFER;
		msg.generation = 1;
		CHECK_INT(two_receive(&t, &msg, 1), ncclRemoteError);
		CHECK_INT(t.c->failed.code, ncclRemoteError);
		ep_error_get(NULL, &error);
		CHECK_HAS(error.text, "offers what makes no sense");
		two_close(&t);
	}
}

static ncclResult_t coll_test(void *request, int *done)
{
	return ep_net_coll_test(request, done, NULL);
}

/*
 * A flush of what was gathered reads by a port that one connection has lost and another one has
 * not.
 */
static void test_flush_gathered(void)
{
	static void *flush[2 * EP_NET_FLUSHES];
	static struct ep_net_coll coll;
	struct ep_net_turn turn[2] = { { 0, 0 } };
	struct ep_net_comm *other[2];
	static struct two t;
	void *recv[2], *request;

	check_context("flush of what was gathered");
	two_open(&t);
	pair_of_paths(t.from, t.to, 2, 2, -1, other);
	t.c->path[0].state = EP_NET_PATH_CLOSED;
	ep_net_qps_choose(t.c);
	recv[0] = t.c->handle;
	recv[1] = other[1]->handle;
	coll.nranks = 2;
	coll.recv = recv;
	coll.turn = turn;
	coll.flush = flush;
	CHECK(ep_net_handle_new(EP_NET_COLL, &coll, &coll.handle) == ncclSuccess);
	CHECK_INT(ep_net_coll_flush(&coll, t.target, sizeof(t.target), t.handle, &request),
		  ncclSuccess);
	NEED(request);
	ends_settle();
	CHECK(!t.c->local[0].flush.qp && t.c->local[1].flush.qp, "the lost port is read by");
	CHECK(other[1]->local[0].flush.qp, "a port that may have brought data is not read by");
	CHECK(ends_by(request, coll_test), "it does not end");
	ep_net_handle_drop(EP_NET_COLL, coll.handle);
	t.to->dev[0]->broken = t.to->dev[1]->broken = true;
	pair_free(other);
	two_close(&t);
}

/* A rank that sends less than this rank awaits from it: the gather fails and names it. */
static void test_gathered_short(void)
{
	static struct ep_net_coll coll;
	struct ep_net_turn turn[2] = { { 1, 1 }, { 1, 1 } };
	struct ep_net_share share[2 * EP_NET_GATHERS] = { { 0 } };
	char who[2][EP_NET_WHO] = { "rank 0", "rank 1" };
	int tag = 0, done = 0;
	struct ibv_wc wc = { .wr_id = EP_NET_WR_ID(EP_NET_WORK_RECEIVE, 0, 0, 0),
			     .opcode = IBV_WC_RECV_RDMA_WITH_IMM,
			     .byte_len = 7,
			     .imm_data = htobe32(EP_NET_IMM(0, 0, 1, 0)) };
	ncclResult_t result = ncclSuccess;
	struct ep_error error;
	static struct two t;
	size_t size = 8;
	void *data, *request;

	check_context("a short gather");
	two_open(&t);
	data = t.target;
	coll.nranks = 2;
	coll.who = who;
	coll.turn = turn;
	coll.share = share;
	coll.begun = 1;
	coll.use[0] = 1;
	share[1].group = size;
	CHECK(ep_net_handle_new(EP_NET_COLL, &coll, &coll.handle) == ncclSuccess);
	CHECK_INT(ep_net_irecv(t.c->handle, 1, &data, &size, &tag, &t.handle, &share[1].receive),
		  ncclSuccess);
	NEED(share[1].receive);
	vn_dv_complete(t.c->local[0].cq, &wc);
	request = ep_net_request_handle(EP_NET_GATHER, coll.handle, 0, coll.use[0]);
	for (int i = 0; i < LOOKS && result == ncclSuccess && !done; i++) {
		result = ep_net_coll_test(request, &done, NULL);
	}
	CHECK_INT(result, ncclRemoteError);
	ep_error_get(NULL, &error);
	CHECK_HAS(error.text, "rank 1 has sent 7 bytes of 8");
	ep_net_handle_drop(EP_NET_COLL, coll.handle);
	two_close(&t);
}

/*
 * What a NIC tells of a path after this end has sent how much has come: it counts as not received.
 */
static void test_too_late(void)
{
	static struct two t;
	struct ibv_wc wc = { .wr_id = EP_NET_WR_ID(EP_NET_WORK_RECEIVE, 0, 0, 0),
			     .opcode = IBV_WC_RECV_RDMA_WITH_IMM,
			     .imm_data = htobe32(EP_NET_IMM(0, 0, 1, 0)) };
	void *data = NULL, *mr = NULL, *request;
	size_t size = 0;
	int tag = 0;

	check_context("too late");
	two_open(&t);
	CHECK_INT(ep_net_irecv(t.c->handle, 1, &data, &size, &tag, &mr, &request), ncclSuccess);
	t.c->path[0].state = EP_NET_PATH_CLOSING;
	t.c->path[0].since = ep_now_ns();
	t.c->path[0].drained = true;
	ep_net_qps_choose(t.c);
	vn_dv_complete(t.c->local[0].cq, &wc);
	CHECK_INT(ep_net_progress(t.c), ncclSuccess);
	CHECK_INT(t.c->qp[0].received, 0);
	CHECK(!ends(request), "it counts");
	two_close(&t);
}

/* A peer's port may have another address when it comes back. */
static void test_new_address(void)
{
	static struct two t;
	struct ep_net_ctrl_msg msg;

	check_context("a port with another address");
	two_open(&t);
	t.c->path[0].again = UINT64_MAX;
	msg = msg_of(&t, EP_NET_OFFER, 1);
	msg.end.gid[15] ^= 0x40;
	CHECK_INT(two_receive(&t, &msg, 1), ncclSuccess);
	CHECK(memcmp(t.c->remote[0].end.gid, msg.end.gid, sizeof(msg.end.gid)) == 0);
	two_close(&t);
}

/*
 * A peer that the NIC does not find is not looked for again and again while NCCL waits for the call
 * to return.
 */
static void test_one_try(void)
{
	static struct two t;
	struct ep_net_ctrl_msg msg;

	check_context("one try");
	two_open(&t);
	msg = msg_of(&t, EP_NET_OFFER, 1);
	vn_dv_calls()->modified = 0;
	vn_dv_calls()->refusals = 1000;
	vn_dv_calls()->refusal = ETIMEDOUT;
	vn_dv_calls()->refused_state = IBV_QPS_RTR;
	CHECK_INT(two_receive(&t, &msg, 1), ncclSuccess);
	CHECK(vn_dv_calls()->modified >= 1 && vn_dv_calls()->modified <= 4, "%d tries",
	      vn_dv_calls()->modified);
	vn_dv_calls()->refusals = 0;
	two_close(&t);
}

/* ---- a port's address ---- */

static int (*asked_port)(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr,
			 size_t bytes);

static int other_lid(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr,
		     size_t bytes)
{
	int error = asked_port(ctx, port, attr, bytes);

	attr->lid = 4711;
	return error;
}

/*
 * A device is open, and its port gets another address, or its first one: what is made from then on
 * has that.
 */
static void test_moved(enum ibv_event_type event)
{
	const struct ep_net_class class = { -1, -1 };
	struct ep_net_nic *nic = ends_nic(0);
	struct ep_net_dev *dev = nic->dev[0];
	struct ep_net_mesh *mesh;
	struct ep_net_comm *c;

	check_context("a port that moves, event %d", (int)event);
	asked_port = verbs_get_ctx(dev->nic.ctx)->query_port;
	verbs_get_ctx(dev->nic.ctx)->query_port = other_lid;
	vn_dv_event(dev->nic.ctx, event, NULL);
	NEED(ep_net_comm_new(nic, true, 1, 1, &class, &c) == ncclSuccess);
	CHECK_INT(c->local[0].end.lid, 4711);
	ep_net_comm_free(c);
	NEED(ep_net_mesh_new(nic, 1, 0, &mesh) == ncclSuccess);
	CHECK_INT(mesh->end[0].lid, 4711);
	ep_net_mesh_put(mesh);
	verbs_get_ctx(dev->nic.ctx)->query_port = asked_port;
	ends_nic_drop(nic);
}

/*
 * The first flush of a connection comes after its port's address has changed: what it reads goes to
 * that, while the connection's own queue pairs stay as they are.
 */
static void test_flush_moved(void)
{
	static struct two t;
	struct vn_dv_attributes told;
	struct ibv_context *ctx;

	check_context("the first flush of a port that has moved");
	two_open(&t);
	ctx = t.to->dev[1]->nic.ctx;
	asked_port = verbs_get_ctx(ctx)->query_port;
	verbs_get_ctx(ctx)->query_port = other_lid;
	vn_dv_event(ctx, IBV_EVENT_LID_CHANGE, NULL);
	two_flush(&t);
	vn_dv_attributes(t.c->local[1].flush.qp, &told);
	CHECK_INT(told.rtr.ah_attr.dlid, 4711);
	vn_dv_attributes(t.c->local[0].flush.qp, &told);
	CHECK_INT(told.rtr.ah_attr.dlid, t.c->local[0].end.lid);
	CHECK(t.c->local[1].end.lid != 4711);
	verbs_get_ctx(ctx)->query_port = asked_port;
	two_close(&t);
}

static int first_key(struct ibv_context *ctx, uint8_t port, int index, __be16 *pkey)
{
	*pkey = index ? 0 : htobe16(0xffff);
	return 0;
}

/*
 * The subnet manager gives a port its partition key after the device was opened: queue pairs that
 * are made from then on have the key's place.
 */
static void test_late_key(void)
{
	const struct ep_net_class class = { -1, -1 };
	struct vn_dv_attributes told;
	struct ep_net_nic *nic;
	const char *why;
	struct ep_verbs *v = (struct ep_verbs *)(uintptr_t)ep_verbs(&why);
	__typeof__(v->ibv_query_pkey) query_pkey = v->ibv_query_pkey;
	const struct ep_net_nic *port;
	struct ep_net_comm *c;

	check_context("a partition key that comes late");
	NEED(ep_net_nic_get(0, &port) == ncclSuccess);
	v->ibv_query_pkey = first_key;
	CHECK_INT(ep_net_dev_hold(port->dev[0], false), ncclSystemError);
	NEED(ep_net_dev_hold(port->dev[0], true) == ncclSuccess);
	nic = ends_nic(0);
	for (int late = 1; late >= 0; late--) {
		NEED(ep_net_comm_new(nic, true, 1, 1, &class, &c) == ncclSuccess);
		CHECK_INT(c->local[0].down, late);
		vn_dv_attributes(c->qp[0].qp, &told);
		CHECK_INT(told.init.pkey_index, late ? 0 : KEY);
		ep_net_comm_free(c);
		v->ibv_query_pkey = query_pkey;
		vn_dv_event(nic->dev[0]->nic.ctx, IBV_EVENT_PKEY_CHANGE, NULL);
	}
	ep_net_dev_drop(port->dev[0]);
	ends_nic_drop(nic);
}

static int port_asked;

static int no_port(struct ibv_context *ctx, uint8_t port, struct ibv_port_attr *attr, size_t bytes)
{
	port_asked++;
	return EIO;
}

/* A port that gives no address is not asked by each connection, but when it may have one. */
static void test_refused_address(void)
{
	const struct ep_net_class class = { -1, -1 };
	struct ep_net_nic *nic = ends_nic(0);
	struct ep_net_dev *dev = nic->dev[0];
	struct ep_net_comm *c;

	check_context("a port without an address, and many connections");
	asked_port = verbs_get_ctx(dev->nic.ctx)->query_port;
	verbs_get_ctx(dev->nic.ctx)->query_port = no_port;
	for (int i = 0; i < 3; i++) {
		uint64_t ask = dev->ask;

		if (i != 1) {
			vn_dv_event(dev->nic.ctx, IBV_EVENT_GID_CHANGE, NULL);
		}
		port_asked = 0;
		NEED(ep_net_comm_new(nic, true, 1, 1, &class, &c) == ncclSuccess);
		CHECK(c->local[0].down);
		/* (a busy machine may take the second away) */
		CHECK(port_asked == (i != 1) || (i == 1 && ep_now_ns() >= ask),
		      "asked %d times for connection %d", port_asked, i);
		ep_net_comm_free(c);
	}
	verbs_get_ctx(dev->nic.ctx)->query_port = asked_port;
	ends_nic_drop(nic);
}

static int unfit; /* lines that say so of a port */

static bool listen_for_unfit(enum ep_log_level level, unsigned int subsys, const char *text)
{
	unfit += strstr(text, "is not used for GIN") != NULL;
	return true;
}

/* Ranks of GIN do not take a port that has gone down since, of which nobody has heard yet. */
static void test_mesh_down(void)
{
	struct ep_net_nic *nic = ends_nic_two(0, 2);
	struct ep_net_mesh *mesh;

	check_context("a mesh, and a port that is down");
	vn_dv_event(nic->dev[0]->nic.ctx, IBV_EVENT_PORT_ERR, NULL);
	NEED(ep_net_mesh_new(nic, 1, 0, &mesh) == ncclSuccess);
	CHECK_INT(mesh->of_nic, 1);
	ep_net_mesh_put(mesh);
	/* (both may be up again in a moment) */
	vn_dv_event(nic->dev[1]->nic.ctx, IBV_EVENT_PORT_ERR, NULL);
	NEED(ep_net_mesh_new(nic, 1, 0, &mesh) == ncclSuccess);
	CHECK_INT(mesh->of_nic, 0);
	ep_net_mesh_put(mesh);
	/* One that has been down for long is refused, with one line. */
	__atomic_store_n(&nic->dev[0]->port_down, 1, __ATOMIC_RELAXED);
	ep_log_to(listen_for_unfit);
	NEED(ep_net_mesh_new(nic, 1, 0, &mesh) == ncclSuccess);
	ep_log_to(NULL);
	CHECK_INT(mesh->of_nic, 1);
	CHECK_INT(unfit, 1);
	ep_net_mesh_put(mesh);
	ends_nic_drop(nic);
}

/* ---- the plugin's thread ---- */

static atomic_int wakeups;

int epoll_wait(int fd, struct epoll_event *events, int room, int ms)
{
	wakeups++;
	return (int)syscall(SYS_epoll_pwait, fd, events, room, ms, NULL, 0);
}

/* The thread leaves a socket alone whose other end is closed: it would be readable for ever. */
static void test_thread_sleeps(void)
{
	static struct two t;
	uint64_t until = ep_now_ns() + 20000000000ull;
	int before;

	check_context("the thread");
	two_open(&t);
	CHECK_INT(ep_net_paths_async_add(t.c), ncclSuccess);
	close(t.fd[1]);
	while (!__atomic_load_n(&t.c->watch.gone, __ATOMIC_RELAXED) && ep_now_ns() < until) {
		usleep(100);
	}
	CHECK(t.c->watch.gone, "the thread has not seen that the other end is gone");
	usleep(1000); /* (it has the lock still) */
	pthread_mutex_lock(&t.c->lock);
	pthread_mutex_unlock(&t.c->lock);
	before = wakeups;
	usleep(20000);
	CHECK(wakeups <= before + 2, "%d wakeups", wakeups - before);
	t.fd[1] = dup(0);
	two_close(&t);
}

/* ---- errors ---- */

/* An error of a port names that port, also after its queue pairs have gone to the other one. */
static void test_port_named(bool flush, bool idle)
{
	struct ibv_wc wc = { .status = IBV_WC_REM_ACCESS_ERR };
	struct ep_error error;
	struct two t;

	check_context("the port of %s, %s", flush ? "a flush" : "a completion queue",
		      idle ? "with no path" : "with the other one's path");
	two_open(&t);
	for (uint32_t i = 0; i < 2; i++) {
		t.c->qp[i].local_port = t.c->path[i].local_port = (uint8_t)(idle ? 0 : 1 - i);
	}
	if (flush) {
		wc.wr_id = EP_NET_WR_ID(EP_NET_WORK_FLUSH, EP_NET_WR_FLUSH_QP(1), 1, 0);
		CHECK_INT(ep_net_comm_fail_wc(t.c, &wc), ncclRemoteError);
	} else {
		__atomic_store_n(&t.c->local[1].cq_lost, 1, __ATOMIC_RELAXED);
		for (int i = 0; i < 1000000 && ep_net_progress(t.c) == ncclSuccess; i++) {
		}
	}
	ep_error_get(NULL, &error);
	CHECK_HAS(error.text, t.c->local[1].end.name);
	CHECK_HAS(error.text, flush ? "remote access error" : "has lost completions");
	CHECK(!strstr(error.text, t.c->local[0].end.name), "%s", error.text);
	two_close(&t);
}

/* ---- completion queues ---- */

static const struct ep_verbs *verbs;
static uint32_t late; /* what an old queue pair still reports while a new one is made */

static struct ibv_qp *create_while_late(struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	const struct ibv_wc wc = { .wr_id = EP_NET_WR_ID(EP_NET_WORK_SLOT, 0, 1, 0),
				   .status = IBV_WC_WR_FLUSH_ERR };

	for (; late; late--) {
		vn_dv_complete(attr->send_cq, &wc);
	}
	return verbs->ibv_create_qp(pd, attr);
}

/*
 * A path comes back, and its old queue pair still reports all its sends as flushed. The queue then
 * has room for all that the new one, its receives and flushes can report.
 */
static void test_late_flushed(void)
{
	static struct ep_verbs mine;
	const struct ibv_wc wc = { .wr_id = EP_NET_WR_ID(EP_NET_WORK_SLOT, 0, 0, 0) | 1u << 16 };
	struct ep_net_ctrl_msg msg;
	static struct two t;
	struct ibv_wc got;
	uint32_t room;

	check_context("sends that are flushed late");
	two_open(&t);
	room = (uint32_t)t.c->local[0].cq->cqe;
	late = t.c->sq_depth;
	CHECK(room < 2 * t.c->sq_depth + t.c->rq_depth + EP_NET_FLUSH_DEPTH, "%u", room);
	verbs = t.to->dev[0]->nic.v;
	mine = *verbs;
	mine.ibv_create_qp = create_while_late;
	t.to->dev[0]->nic.v = &mine;
	t.c->path[1].again = UINT64_MAX;
	msg = msg_of(&t, EP_NET_OFFER, 1);
	CHECK_INT(two_receive(&t, &msg, 1), ncclSuccess);
	t.to->dev[0]->nic.v = verbs;
	CHECK_INT(t.c->path[0].state, EP_NET_PATH_READY);
	CHECK_INT(late, 0);
	for (uint32_t i = 0; i < t.c->sq_depth + t.c->rq_depth + EP_NET_FLUSH_DEPTH; i++) {
		vn_dv_complete(t.c->local[0].cq, &wc);
	}
	ep_net_dev_events(t.to->dev[0]);
	CHECK(!t.c->local[0].cq_lost, "completions are lost");
	while (ibv_poll_cq(t.c->local[0].cq, 1, &got) > 0) {
	}
	two_close(&t);
}

/* A NIC whose completion queues are short: queue pairs are no deeper than these have room for. */
static void test_short_queue(int cqes, uint32_t nqps, bool enough)
{
	struct ep_net_nic *from = ends_nic(0), *to = ends_nic_two(1, 2);
	const struct ep_net_class class = { -1, -1 };
	struct ep_net_comm *pair[2], *c;
	struct ep_error error;

	check_context("%d completions, %u queue pairs", cqes, nqps);
	from->dev[0]->nic.attr.max_cqe = to->dev[1]->nic.attr.max_cqe = cqes;
	if (enough) {
		pair_of_paths(from, to, 2, nqps, -1, pair);
		for (int i = 0; i < 2; i++) {
			c = pair[i];
			CHECK((c->sq_depth + c->rq_depth) * (nqps / c->nlocals) +
					      EP_NET_FLUSH_DEPTH <=
				      (uint32_t)cqes,
			      "end %d: %u and %u", i, c->sq_depth, c->rq_depth);
		}
		pair_end(pair, from, to);
		return;
	}
	CHECK_INT(ep_net_comm_new(to, false, 2, nqps, &class, &c), ncclSystemError);
	ep_error_get(NULL, &error);
	CHECK_HAS(error.text, "completion queues");
	ends_nic_drop(from);
	ends_nic_drop(to);
}

int main(void)
{
	setenv("NCCL_IB_PKEY_VALUE", "6", 1);
	ends_begin("ib");
	test_last();
	test_answered();
	test_generations();
	test_taken_back();
	test_flush_first();
	test_offers();
	test_flush_broken();
	test_flush_gathered();
	test_flush_early(EP_NET_PATH_OFFERED, false);
	test_flush_early(EP_NET_PATH_READY, true);
	test_flush_early(EP_NET_PATH_PROBING, true);
	test_gathered_short();
	test_too_late();
	test_new_address();
	test_moved(IBV_EVENT_PORT_ACTIVE);
	test_moved(IBV_EVENT_LID_CHANGE);
	test_moved(IBV_EVENT_GID_CHANGE);
	test_flush_moved();
	test_late_key();
	test_refused_address();
	test_mesh_down();
	test_one_try();
	test_late_flushed();
	test_short_queue(4000, 4, true);
	test_short_queue(300, 4, true);
	test_short_queue(100, 32, false);
	test_thread_sleeps();
	for (int i = 0; i < 4; i++) {
		test_port_named(i & 1, i & 2);
	}
	return check_end();
}
