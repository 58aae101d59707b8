/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts that are longer than a NIC's messages: as if these had 4 KiB at most, so that a request is
 * posted in several goes, with others before and behind it.
 */
#include <unistd.h>
#include "support/check.h"
#include "net/gin.c"

#define BYTES 100003u

static uint8_t from[2 * BYTES], to[2 * BYTES];
static uint64_t signals[8];

static void wait_for(void *coll, void *request)
{
	uint64_t until = ep_now_ns() + 20000000000ull;
	int done = 0;

	while (!done && ep_now_ns() < until) {
		CHECK_INT(gin_test(coll, request, &done), ncclSuccess);
		usleep(20);
	}
	NEED(done);
}

static void *register_it(void *coll, void *data, size_t size, uint64_t flags)
{
	void *mr, *second;

	NEED(gin_reg(coll, data, size, EP_NET_PTR_HOST, flags, &mr, &second) == ncclSuccess);
	return mr;
}

int main(void)
{
	uint8_t handle[EP_NET_HANDLE_BYTES] __attribute__((aligned(8)));
	void *handles[1] = { handle }, *ctx, *listener, *coll, *request[3], *mr[3];
	const struct ep_net_nic *nic;

	/* (not by gin_init(): here no NIC has to reach GPUs) */
	NEED(ep_net_context_new(NULL, -1, &ctx) == ncclSuccess);
	NEED(gin_listen(ctx, 0, handle, &listener) == ncclSuccess);
	NEED(gin_connect(ctx, handles, 1, 0, listener, &coll) == ncclSuccess);
	NEED(ep_net_nic_get(0, &nic) == ncclSuccess);
	nic->dev[0]->nic.log_max_msg = 12;
	mr[0] = register_it(coll, from, sizeof(from), 0);
	mr[1] = register_it(coll, to, sizeof(to), 0);
	mr[2] = register_it(coll, signals, sizeof(signals), MR_FORCE_SO);
	for (size_t i = 0; i < sizeof(from); i++) {
		from[i] = (uint8_t)(i * 7 + (i >> 8));
	}
	CHECK_INT(gin_put_signal(coll, 1, mr[0], BYTES, 3, mr[1], 0, 8, mr[2], 5, EP_NET_SIGNAL_ADD,
				 &request[0]),
		  ncclSuccess);
	CHECK_INT(gin_put(coll, BYTES + 10, mr[0], 4096, BYTES + 10, mr[1], 0, &request[1]),
		  ncclSuccess);
	CHECK_INT(gin_put(coll, BYTES + 5000, mr[0], 50000, BYTES + 5000, mr[1], 0, &request[2]),
		  ncclSuccess);
	for (int i = 2; i >= 0; i--) {
		wait_for(coll, request[i]);
	}
	CHECK(memcmp(to + 3, from + 1, BYTES) == 0 && to[2] == 0 && to[BYTES + 3] == 0);
	CHECK(memcmp(to + BYTES + 10, from + BYTES + 10, 4096) == 0 && to[BYTES + 4106] == 0);
	CHECK(memcmp(to + BYTES + 5000, from + BYTES + 5000, 50000) == 0 && to[BYTES + 55000] == 0);
	CHECK_INT(signals[1], 5);
	CHECK_INT(gin_close(coll), ncclSuccess);
	for (int i = 0; i < 3; i++) {
		CHECK_INT(gin_dereg(NULL, mr[i]), ncclSuccess);
	}
	CHECK_INT(ep_net_mesh_close_listen(listener), ncclSuccess);
	CHECK_INT(ep_net_context_free(ctx), ncclSuccess);
	return check_end();
}
