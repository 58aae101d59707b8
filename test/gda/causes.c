/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who finds a failure first does not always know why: what is told of it becomes better, never
 * worse. The NIC is a function that says what it is told to.
 */
#include <string.h>
#include "gda/state.h"
#include "gda/prm.h"
#include "support/check.h"

static uint32_t nic_state, nic_syndrome, asked;

static int fake_query(struct mlx5dv_devx_obj *obj, const void *in, size_t inlen, void *out,
		      size_t outlen)
{
	memset(out, 0, outlen);
	ep_prm_set((unsigned char *)out + EP_PRM_QPC_AT, EP_PRM_QPC_STATE, nic_state);
	if (ep_prm_get(in, EP_PRM_QUERY_QP_EXT)) {
		ep_prm_set(out, EP_PRM_QUERY_QP_SYNDROME, nic_syndrome);
	}
	asked++;
	return 0;
}

static struct ep_mlx5dv dv = { .mlx5dv_devx_obj_query = fake_query };
static struct ep_gda_failure failures[16];
static uint32_t known[2], down[2];
static bool vague[2];
static char hosts[2][64] = { "here", "there" };
static struct ep_mlx5_cqe cqe[2];
static struct ep_mlx5_error record[2];
static struct ep_gda_queue queue[2];

static struct ep_gda g;
static struct ep_gda_failure f;

/* Two queues with rank 1. */
static void make(void)
{
	memset(&g, 0, sizeof(g));
	memset(failures, 0, sizeof(failures));
	memset(known, 0, sizeof(known));
	memset(down, 0, sizeof(down));
	memset(vague, 0, sizeof(vague));
	memset(cqe, 0xff, sizeof(cqe));
	memset(record, 0, sizeof(record));
	memset(queue, 0, sizeof(queue));
	pthread_mutex_init(&g.lock, NULL);
	pthread_mutex_init(&g.ask, NULL);
	g.nic[0].base.dv = &dv;
	g.nranks = 2;
	g.host = hosts;
	g.failure = failures;
	g.known = known;
	g.vague = vague;
	g.down = down;
	g.queue = queue;
	g.nqueues = 2;
	snprintf(g.nic[0].base.name, sizeof(g.nic[0].base.name), "mlx5_0");
	for (uint32_t i = 0; i < 2; i++) {
		queue[i].gda = &g;
		queue[i].nic = &g.nic[0];
		queue[i].peer = 1;
		queue[i].index = i;
		queue[i].cqe = &cqe[i];
		queue[i].record = &record[i];
		queue[i].qp_obj = (struct mlx5dv_devx_obj *)&dv;
	}
	nic_state = EP_PRM_QP_RTS;
	nic_syndrome = 0;
	asked = 0;
}

static void fail_cqe(uint32_t i, uint8_t syndrome)
{
	cqe[i].u.error.syndrome = syndrome;
	cqe[i].u.error.vendor_syndrome = 0x81;
	cqe[i].wqe_counter = 0;
	cqe[i].op_own = EP_MLX5_CQE_REQ_ERR << 4;
}

static bool told(const char *part)
{
	return ep_gda_explain(&g, 1, &f) && strstr(f.text, part);
}

/* The NIC says that the queue pair failed before the completion says why. */
static void check_early(void)
{
	uint64_t start;
	bool early;

	make();
	CHECK(!ep_gda_inspect(&queue[0], EP_GDA_INSPECT_NIC));
	nic_state = EP_PRM_QP_ERR;
	CHECK(!ep_gda_inspect(&queue[0], EP_GDA_INSPECT_NIC));
	/* This thread may have been away since then, for longer than others are given. */
	do {
		make();
		nic_state = EP_PRM_QP_ERR;
		start = ep_now_ns();
		CHECK(!ep_gda_inspect(&queue[0], EP_GDA_INSPECT_NIC));
		early = ep_gda_inspect(&queue[0], EP_GDA_INSPECT_MEMORY);
	} while (ep_now_ns() - start > 90000000);
	CHECK(!early);
	fail_cqe(0, EP_MLX5_SYND_REMOTE_ACCESS);
	CHECK(ep_gda_inspect(&queue[0], EP_GDA_INSPECT_MEMORY));
	CHECK(ep_gda_poll(&g, &f) && strstr(f.text, "syndrome 0x13"));
	CHECK_INT(down[1], 1);
}

/* It stays the only one that knows for long: that is told, and the cause when it comes. */
static void check_late(void)
{
	make();
	nic_state = EP_PRM_QP_ERR;
	CHECK(!ep_gda_inspect(&queue[0], EP_GDA_INSPECT_NIC));
	queue[0].suspect -= 120000000; /* ns */
	CHECK(ep_gda_inspect(&queue[0], EP_GDA_INSPECT_MEMORY));
	CHECK_INT(down[1], 1);
	CHECK(ep_gda_poll(&g, &f) && strstr(f.text, "its queue pair is in error state"));
	asked = 0;
	CHECK(ep_gda_inspect(&queue[0], EP_GDA_INSPECT_MEMORY));
	CHECK_INT(asked, 0);
	nic_state = EP_PRM_QP_RTS;
	fail_cqe(1, EP_MLX5_SYND_RETRY_EXCEEDED);
	CHECK(told("syndrome 0x15") && told("queue 1"));
	fail_cqe(0, EP_MLX5_SYND_REMOTE_ACCESS);
	CHECK(told("syndrome 0x15"));
	CHECK(!ep_gda_poll(&g, &f));
}

/* A completion that was overwritten, until the NIC remembers. */
static void check_flushed(void)
{
	make();
	nic_state = EP_PRM_QP_ERR;
	fail_cqe(0, EP_MLX5_SYND_FLUSHED);
	CHECK(ep_gda_inspect(&queue[0], EP_GDA_INSPECT_MEMORY));
	CHECK(ep_gda_poll(&g, &f) && strstr(f.text, "the cause was overwritten"));
	g.nic[0].caps.error_syndrome = true;
	nic_syndrome = EP_MLX5_SYND_LOCAL_PROT;
	CHECK(told("syndrome 0x04"));
	nic_syndrome = EP_MLX5_SYND_FLUSHED;
	CHECK(told("syndrome 0x04"));
}

/* What the device says of itself explains what it flushed, and takes no cause's place. */
static void check_device(void)
{
	make();
	nic_state = EP_PRM_QP_ERR;
	fail_cqe(0, EP_MLX5_SYND_FLUSHED);
	CHECK(ep_gda_inspect(&queue[0], EP_GDA_INSPECT_MEMORY));
	CHECK(ep_gda_poll(&g, &f) && strstr(f.text, "the cause was overwritten"));
	ep_gda_fail_port(&g.nic[0], &g, "it broke");
	CHECK(told("RDMA on mlx5_0:0 failed: it broke"));
	CHECK(!ep_gda_poll(&g, &f));
	make();
	fail_cqe(0, EP_MLX5_SYND_REMOTE_ACCESS);
	CHECK(ep_gda_inspect(&queue[0], EP_GDA_INSPECT_MEMORY));
	ep_gda_fail_port(&g.nic[0], &g, "it broke");
	CHECK(told("syndrome 0x13"));
}

/* What a kernel says is a cause, too. */
static void check_record(void)
{
	make();
	record[1].status = EP_MLX5_ERR_COMPLETION;
	record[1].waited_ns = 7000000;
	record[1].valid = 1;
	CHECK(ep_gda_inspect(&queue[1], EP_GDA_INSPECT_MEMORY));
	fail_cqe(0, EP_MLX5_SYND_FLUSHED);
	CHECK(ep_gda_inspect(&queue[0], EP_GDA_INSPECT_MEMORY));
	CHECK(told("did not complete within 7 ms"));
}

int main(void)
{
	check_early();
	check_late();
	check_flushed();
	check_device();
	check_record();
	return check_end();
}
