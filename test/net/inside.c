/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The plugin's own part, on queue pairs that are none: what it sets up queue pairs with, and what a
 * message costs it.
 *   inside [MOST]      microseconds of CPU time for a message of 8 bytes
 *   inside classes     the environment says the traffic class
 *   inside levels      a communicator says the service level
 */
#include <time.h>
#include "net/fake.h"
#include "net/rma.h"

#define MESSAGES 200000
#define BATCH 16

/* ---- what queue pairs are set up with ---- */

static int want_sl = 4;

/* `tc`: the communicator's class; the one that data has, and that what the receiver sends has. */
static void test_attributes(bool ethernet, int tc, int data_tc, int fifo_tc)
{
	struct ep_net_nic *from = fake_device(ethernet, IBV_MTU_4096);
	struct ep_net_nic *to = fake_device(ethernet, IBV_MTU_1024);
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
		CHECK_INT(qp->rtr.ah_attr.sl, want_sl);
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
	fake_device_free(from);
	fake_device_free(to);
}

/* Contexts take ports in turn, whose classes may differ. */
static void test_mesh_class(void)
{
	struct ep_net_rma_config config = { .contexts = 3, .stride = 1, .tc = -1 };
	struct ep_net_nic *nic = fake_device(true, IBV_MTU_4096);
	struct ep_net_nic *other = fake_device(true, IBV_MTU_4096);
	struct ep_net_mesh *mesh;
	struct ep_net_rma *rma;

	check_context("classes of ports");
	nic->nports = 2;
	nic->dev[1] = other->dev[0];
	NEED(ep_net_mesh_new(nic, 1, 0, &mesh) == ncclSuccess);
	mesh->tc = -1;
	nic->dev[0]->nic.tc = 8;
	nic->dev[1]->nic.tc = 16;
	fake_made = 0;
	NEED(ep_net_rma_new(mesh, &config, &rma) == ncclSuccess);
	for (int i = 0; i < 3; i++) {
		CHECK_INT(fake_qps[i].rtr.ah_attr.grh.traffic_class, i % 2 ? 16 : 8);
	}
	ep_net_rma_free(rma);
	ep_net_mesh_put(mesh);
	fake_device_free(nic);
	fake_device_free(other);
}

/* The same of a mesh, whose contexts may have a class of their own. */
static void test_mesh_level(bool ethernet, int tc)
{
	struct ep_net_nic *nic = fake_device(ethernet, IBV_MTU_4096);
	struct ep_net_mesh *mesh;

	NEED(ep_net_mesh_new(nic, 1, 0, &mesh) == ncclSuccess);
	for (int own = 0; own < 2; own++) {
		struct ep_net_rma_config config = { .contexts = 1,
						    .stride = 1,
						    .tc = own ? tc : -1 };
		struct ep_net_rma *rma;

		check_context("mesh, %s, %d", ethernet ? "RoCE" : "InfiniBand", own);
		fake_made = 0;
		mesh->tc = own ? 3 : tc;
		NEED(ep_net_rma_new(mesh, &config, &rma) == ncclSuccess);
		CHECK_INT(fake_qps[0].rtr.ah_attr.sl, want_sl);
		ep_net_rma_free(rma);
	}
	ep_net_mesh_put(mesh);
	fake_device_free(nic);
}

/* `there`: both NICs speak of what they can. */
static void test_ece(bool there)
{
	struct ep_net_nic *from = fake_device(true, IBV_MTU_4096);
	struct ep_net_nic *to = fake_device(true, IBV_MTU_4096);
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
	fake_device_free(from);
	fake_device_free(to);
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
	struct ep_net_nic *from = fake_device(true, IBV_MTU_4096);
	struct ep_net_nic *to = fake_device(true, IBV_MTU_4096);
	struct ep_net_mr mr[2] = { { .nic = from }, { .nic = to } };
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
	fake_device_free(from);
	fake_device_free(to);
}

int main(int argc, char **argv)
{
	fake_begin();
	setenv("NCCL_IB_SL", "4", 1);
	setenv("NCCL_IB_TIMEOUT", "17", 1);
	setenv("NCCL_IB_RETRY_CNT", "6", 1);
	if (argc > 1 && strcmp(argv[1], "classes") == 0) {
		setenv("NCCL_IB_TC", "32", 1);
		setenv("NCCL_IB_FIFO_TC", "48", 1);
		test_attributes(true, -1, 32, 48);
		test_attributes(true, 100, 32, 48);
	} else if (argc > 1 && strcmp(argv[1], "levels") == 0) {
		/* Nobody has set one: it is the communicator's class, on InfiniBand. */
		unsetenv("NCCL_IB_SL");
		want_sl = 5;
		test_attributes(false, 5, 0, 0);
		test_mesh_class();
		test_mesh_level(false, 5);
		want_sl = 0;
		test_attributes(false, -1, 0, 0);
		test_attributes(false, 104, 0, 0);
		test_attributes(true, 5, 5, 5);
		test_mesh_level(true, 5);
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
