/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Puts and gets that are longer than a NIC's messages: as if these had 4 KiB at most, so that a request
 * is posted in several goes, with others before and behind it.
 */
#include <unistd.h>
#include "support/check.h"
#include "net/base/base.h"
#include "net/mesh/gin.h"
#include "net/mesh/mesh_bootstrap.h"
#include "net/mesh/rma.h"
#include "net/mesh/rma_progress.h"
#include "net/mesh/sym.h"

#define BYTES 100003u

static uint8_t from[2 * BYTES], to[2 * BYTES];
static uint64_t signals[8];

static void wait_for(void *request)
{
	uint64_t until = ep_now_ns() + 20000000000ull;
	int done = 0;

	while (!done && ep_now_ns() < until) {
		CHECK_INT(ep_net_op_test(request, &done), ncclSuccess);
		usleep(20);
	}
	NEED(done);
}

static void *register_it(void *coll, void *data, size_t size, uint64_t flags)
{
	struct ep_net_memory memory = {
		.data = data, .size = size, .type = EP_NET_PTR_HOST, .fd = -1
	};
	void *mr;

	NEED(ep_net_gin_reg(coll, &memory, flags, &mr) == ncclSuccess);
	return mr;
}

int main(void)
{
	uint8_t handle[EP_NET_HANDLE_BYTES] __attribute__((aligned(8)));
	void *handles[1] = { handle }, *ctx, *listener, *coll, *request[4], *mr[3];
	struct ep_net_copy copy = { { 1, NULL }, { 3, NULL }, BYTES };
	struct ep_net_signal signal = { { 8, NULL }, 5, EP_NET_SIGNAL_ADD };
	struct ep_net_rma *rma;
	const struct ep_net_nic *nic;

	/* (not by ep_net_gin_init: here no NIC has to reach GPUs) */
	NEED(ep_net_context_new(NULL, -1, &ctx) == ncclSuccess);
	NEED(ep_net_gin_listen(ctx, 0, handle, &listener) == ncclSuccess);
	NEED(ep_net_gin_connect(handles, 1, 0, 1, listener, &coll) == ncclSuccess);
	NEED(ep_net_gin_contexts(coll, &rma) == ncclSuccess);
	NEED(ep_net_nic_get(0, &nic) == ncclSuccess);
	nic->dev[0]->nic.log_max_msg = 12;
	mr[0] = register_it(coll, from, sizeof(from), 0);
	mr[1] = register_it(coll, to, sizeof(to), 0);
	mr[2] = register_it(coll, signals, sizeof(signals), EP_NET_MR_FORCE_SO);
	copy.from.handle = mr[0];
	copy.to.handle = mr[1];
	signal.at.handle = mr[2];
	for (size_t i = 0; i < sizeof(from); i++) {
		from[i] = (uint8_t)(i * 7 + (i >> 8));
	}
	CHECK_INT(ep_net_rma_put(rma, 0, &copy, 0, &signal, &request[0]), ncclSuccess);
	copy.from.offset = copy.to.offset = BYTES + 10;
	copy.size = 4096;
	CHECK_INT(ep_net_rma_put(rma, 0, &copy, 0, NULL, &request[1]), ncclSuccess);
	copy.from.offset = copy.to.offset = BYTES + 5000;
	copy.size = 50000;
	CHECK_INT(ep_net_rma_get(rma, 0, &copy, 0, &request[2]), ncclSuccess);
	CHECK_INT(ep_net_rma_flush(rma, 0, NULL, 0, &request[3]), ncclSuccess);
	for (int i = 3; i >= 0; i--) {
		wait_for(request[i]);
	}
	CHECK(memcmp(to + 3, from + 1, BYTES) == 0 && to[2] == 0 && to[BYTES + 3] == 0);
	CHECK(memcmp(to + BYTES + 10, from + BYTES + 10, 4096) == 0 && to[BYTES + 4106] == 0);
	CHECK(memcmp(to + BYTES + 5000, from + BYTES + 5000, 50000) == 0 && to[BYTES + 55000] == 0);
	CHECK_INT(signals[1], 5);
	CHECK_INT(ep_net_gin_close(coll), ncclSuccess);
	for (int i = 0; i < 3; i++) {
		CHECK_INT(ep_net_sym_free(mr[i]), ncclSuccess);
	}
	CHECK_INT(ep_net_bootstrap_close(listener), ncclSuccess);
	CHECK_INT(ep_net_context_free(ctx), ncclSuccess);
	return check_end();
}
