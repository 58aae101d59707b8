/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ports that fail and come back, on queue pairs that are none: what the NIC tells late, or never.
 */
#include <sys/socket.h>
#include <unistd.h>
#include "net/coll.h"
#include "net/fake.h"
#include "net/route.h"
#include "net/talk.h"

/* ---- connections ---- */

/* A receiver of two ports and its sender, whose words nobody reads but the test: from `fd`. */
struct two {
	struct ep_net_nic *from, *to, *other;
	struct ep_net_comm *pair[2], *c; /* c: the receiver */
	struct ep_net_mr mr;
	uint8_t target[64];
	void *handle;
	int fd[2];
};

static void two_open(struct two *t)
{
	memset(t, 0, sizeof(*t));
	t->from = fake_device(true, IBV_MTU_4096);
	t->to = fake_device(true, IBV_MTU_4096);
	t->other = fake_device(true, IBV_MTU_4096);
	t->to->nports = 2;
	t->to->dev[1] = t->other->dev[0];
	pair_of_routes(t->from, t->to, 2, 2, -1, t->pair);
	t->c = t->pair[1];
	NEED(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, t->fd) == 0);
	t->c->fd = t->fd[0];
	t->mr = (struct ep_net_mr){ .nic = t->to, .gpu = true };
	t->mr.start = (uintptr_t)t->target;
	t->mr.end = t->mr.start + sizeof(t->target);
	t->handle = ep_net_handle_new(EP_NET_MR, &t->mr);
}

static void two_close(struct two *t)
{
	close(t->fd[1]);
	/* (else what was posted would be waited for) */
	t->to->dev[0]->broken = t->to->dev[1]->broken = true;
	ep_net_handle_drop(EP_NET_MR, t->handle);
	pair_free(t->pair);
	fake_device_free(t->from);
	fake_device_free(t->to);
	fake_device_free(t->other);
}

static void *two_flush(struct two *t)
{
	void *data = t->target, *request = NULL;
	int size = sizeof(t->target);

	CHECK_INT(ep_net_iflush(t->c->handle, 1, &data, &size, &t->handle, &request), ncclSuccess);
	NEED(request);
	return request;
}

/* Whether a request ends within a tenth of a second. */
static bool ends(void *request)
{
	uint64_t until = ep_now_ns() + 100000000;
	int done = 0;

	while (!done && ep_now_ns() < until) {
		CHECK_INT(ep_net_test(request, &done, NULL), ncclSuccess);
	}
	return done != 0;
}

/* The sender uses a route again that this end only knows to be connected: data may come by its port. */
static void test_flush_early(enum ep_net_route_state state, bool reads)
{
	static struct two t;

	check_context("early flush, state %d", (int)state);
	two_open(&t);
	t.c->route[0].state = state;
	ep_net_comm_choose(t.c);
	CHECK(ends(two_flush(&t)), "it does not end");
	CHECK(t.c->local[1].flush_qp, "nothing is read by the port that is open");
	CHECK(!t.c->local[0].flush_qp == !reads, "%p", (void *)t.c->local[0].flush_qp);
	two_close(&t);
}

/*
 * A device breaks, and what flushes read by it never comes back: they end with what the other ports read.
 * What it tells of them later is of no request any more.
 */
static void test_flush_broken(void)
{
	static struct two t;
	void *request[2];

	check_context("flush of a device that breaks");
	two_open(&t);
	fake_no_reads = true;
	request[0] = two_flush(&t);
	fake_no_reads = false;
	request[1] = two_flush(&t);
	CHECK(!ends(request[0]), "it has not been read");
	fake_complete(t.c->local[1].cq,
		      (struct ibv_wc){ .wr_id = EP_NET_WR_ID(EP_NET_WORK_FLUSH,
							     EP_NET_WR_FLUSH_QP(1), 1,
							     ep_net_request_number(request[0])) });
	t.to->dev[0]->broken = true;
	CHECK(ends(request[0]), "a device that is broken is waited for");
	CHECK(ends(request[1]), "it does not end");
	fake_no_reads = true;
	request[0] = two_flush(&t);
	for (int i = 0; i < 2; i++) {
		fake_complete(
			t.c->local[0].cq,
			(struct ibv_wc){ .wr_id = EP_NET_WR_ID(EP_NET_WORK_FLUSH,
							       EP_NET_WR_FLUSH_QP(0), 1,
							       ep_net_request_number(request[0])),
					 .status = i ? IBV_WC_WR_FLUSH_ERR : IBV_WC_SUCCESS });
		CHECK(!ends(request[0]), "it has not been read by the other port");
	}
	fake_no_reads = false;
	two_close(&t);
}

int main(void)
{
	fake_begin();
	test_flush_broken();
	test_flush_early(EP_NET_ROUTE_OFFERED, false);
	test_flush_early(EP_NET_ROUTE_READY, true);
	test_flush_early(EP_NET_ROUTE_PROBING, true);
	return check_end();
}
