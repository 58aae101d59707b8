/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that plays the NIC finds what it is there to find. */
#include <endian.h>
#include "device/mlx5/wqe.h"
#include "rig.h"

static struct rig rig;
static struct nic *nic = &rig.nic[0];

static void ring(uint64_t next)
{
	rig.host->dbr.send = ep_mlx5_dbr_value(next);
	rig.host->db = ep_mlx5_doorbell_value(next, NIC_QPN);
}

static void put(uint64_t index, uint64_t number, uint32_t ce)
{
	const uint32_t data[2] = { (uint32_t)number, 0 };

	ep_mlx5_build_inline(&rig.sq[index % rig.depth], index, NIC_QPN, ce, RIG_HEAP_ADDR,
			     RIG_HEAP_KEY, data, 8);
}

/* A queue with two good WQEs. */
static struct ep_mlx5_wqe *begin(void)
{
	memset(rig.heap, 0, sizeof(*rig.heap));
	rig_reset(&rig);
	put(0, 1, 0);
	put(1, 2, EP_MLX5_CE_ALWAYS);
	return &rig.sq[1];
}

static bool caught(void)
{
	nic_turn(nic);
	return nic->bad != 0;
}

int main(void)
{
	struct ep_mlx5_wqe *q;

	rig_make(&rig, 1, 64, EP_MLX5_HANDOVER_MMIO);
	nic->quiet = true;
	begin();
	ring(2);
	CHECK(!caught());
	CHECK_INT(nic->ci, 2);
	CHECK_INT(rig.heap->tags[0], 2);
	CHECK_INT(be16toh(rig.host->cqe.wqe_counter), 1);
	CHECK_INT(rig.host->cqe.op_own, 0);

	begin();
	ring(3); /* one more than written */
	CHECK(caught());
	begin();
	put(1, 3, 0); /* data out of order */
	ring(2);
	CHECK(caught());
	q = begin();
	q->w[0] = ep_be32(2 << 8 | EP_MLX5_OP_WRITE);
	ring(2);
	CHECK(caught());
	q = begin();
	q->w[1] ^= 1;
	ring(2);
	CHECK(caught());
	q = begin();
	q->w[6] = ep_be32(RIG_LOCAL_KEY);
	ring(2);
	CHECK(caught());
	q = begin();
	q->w[4] = ep_be32(1);
	ring(2);
	CHECK(caught());
	q = begin();
	q->w[7] = 1;
	ring(2);
	CHECK(caught());

	begin();
	ring(2);
	rig.host->dbr.send = ep_mlx5_dbr_value(1);
	CHECK(caught());
	begin();
	ring(2);
	CHECK(!caught());
	ring(1);
	CHECK(caught());
	CHECK_INT(nic->ci, 2);
	begin();
	rig.host->dbr.send = ep_mlx5_dbr_value(2);
	rig.host->db = ep_mlx5_doorbell_value(2, NIC_QPN + 1);
	CHECK(caught());

	begin(); /* the last of a quarter without completion */
	for (uint64_t i = 2; i < 16; i++) {
		put(i, i + 1, 0);
	}
	ring(16);
	CHECK(caught());
	begin(); /* more than the queue holds */
	for (uint64_t i = 0; i < 65; i++) {
		put(i, i + 1, i % 16 == 15 ? EP_MLX5_CE_ALWAYS : 0);
	}
	ring(65);
	CHECK(caught());
	rig_free(&rig);
	return check_end();
}
