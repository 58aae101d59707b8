/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many WQEs through small queues, each of one warp, to a NIC that checks each of them. Data,
 * signals and the number of WQEs must come out right.
 */
#include <unistd.h>
#include "device/mlx5/wqe.h"
#include "rig.h"

#define TIMEOUT_NS 40000000000ull

/*
 * What numbers of 16 bits do is the same in every build, and the race detector takes a minute for
 * it.
 */
#if defined(__SANITIZE_THREAD__)
#define LONG 2200
#define LONG_LEAST 20000
#define DEEP false
#else
#define LONG 23000
#define LONG_LEAST 200000
#define DEEP true
#endif

static struct rig rig;

/* A warp for each queue. */
static void post(uint32_t queues, uint32_t rounds, uint32_t seed)
{
	struct gda_post_args args = {
		.qp = rig.qp,
		.result = rig.result,
		.heap = rig.heap,
		.aborted = rig.aborted,
		.timeout_ns = TIMEOUT_NS,
		.rounds = rounds,
		.seed = seed,
	};

	gda_launch(gda_post, 1, 32 * queues, &args, 0, NULL);
	NEED_CUDA(cudaDeviceSynchronize());
}

static uint64_t finish(const char *name, uint32_t warps)
{
	uint64_t posted = 0, served = 0, doorbells = 0, peak = 0;

	rig_finish(&rig);
	CHECK_INT(rig.bad, 0);
	for (uint32_t i = 0; i < rig.queues; i++) {
		const struct vn_dv_seen *seen = &rig.nic[i].seen;
		struct ep_mlx5_qp state = rig_state(&rig, i);

		CHECK_INT(state.error, 0);
		CHECK_INT(rig.host[i].record.valid, 0);
		CHECK_INT(state.reserved, seen->served);
		CHECK_INT(state.rung, seen->served);
		CHECK(state.done <= seen->served);
		served += seen->served - rig.nic[i].nops;
		doorbells += seen->doorbells;
		peak = seen->peak > peak ? seen->peak : peak;
	}
	for (uint32_t w = 0; w < warps; w++) {
		const struct gda_result *r = &rig.result[w];

		CHECK_INT(r->status, 0);
		CHECK(!memcmp(r->tags, rig.heap[w].tags, sizeof(r->tags)));
		CHECK_INT(rig.heap[w].signal, r->signal);
		posted += r->posted;
	}
	CHECK_INT(served, posted);
	printf("%s: %llu WQEs, at most %llu of %u outstanding, %llu doorbells seen\n", name,
	       (unsigned long long)served, (unsigned long long)peak, rig.depth,
	       (unsigned long long)doorbells);
	return served;
}

/* One queue of 64 and LONG rounds: the index of 16 bits wraps three times. */
static void queues_of_warps(uint32_t queues, uint32_t handover, uint32_t rounds, uint64_t least)
{
	rig_make(&rig, queues, 64, handover);
	rig_start(&rig);
	post(queues, rounds, 3 + queues);
	CHECK(finish(handover == EP_MLX5_HANDOVER_MMIO ? "by doorbells" : "by index", queues) >
	      least);
	rig_free(&rig);
}

/* The poster is held back, and uses the room there is. */
static void slow_nic(void)
{
	rig_make(&rig, 1, 64, EP_MLX5_HANDOVER_MMIO);
	rig.pause_us = 100;
	rig.most = 7;
	rig_start(&rig);
	post(1, 90, 78);
	CHECK(finish("slow", 1) > 300);
	CHECK(rig.nic[0].seen.peak > 16);
	rig_free(&rig);
}

/* The largest queue, full before the NIC begins: every distance that 16 bits must tell apart. */
static void deep(void)
{
	struct gda_one_args args = { .times = 6600, .lanes = ~0u, .quiet = 1 };

	rig_make(&rig, 1, EP_MLX5_MAX_DEPTH, EP_MLX5_HANDOVER_MMIO);
	args.qp = rig.qp;
	args.result = rig.result;
	args.aborted = rig.aborted;
	args.timeout_ns = TIMEOUT_NS;
	args.what = GDA_ONE_INLINE;
	gda_launch(gda_one, 1, 32, &args, 0, NULL);
	for (int i = 0;
	     i < 20000 &&
	     rig_doorbell(&rig) != ep_mlx5_doorbell_value(EP_MLX5_MAX_DEPTH, rig.shadow[0].qpn);
	     i++) {
		usleep(1000);
	}
	rig_start(&rig);
	NEED_CUDA(cudaDeviceSynchronize());
	rig_finish(&rig);
	CHECK_INT(rig.result->status, 0);
	CHECK_INT(rig.bad, 0);
	CHECK_INT(rig.nic[0].seen.served, 32 * 6600);
	CHECK_INT(rig.nic[0].seen.peak, EP_MLX5_MAX_DEPTH);
	rig_free(&rig);
}

int main(void)
{
	int devices = 0;

	if (cudaGetDeviceCount(&devices) != cudaSuccess || !devices) {
		printf("skipped: no GPU\n");
		return 77;
	}
	queues_of_warps(1, EP_MLX5_HANDOVER_MMIO, LONG, LONG_LEAST);
	queues_of_warps(RIG_QUEUES, EP_MLX5_HANDOVER_MMIO, 1000, 20000);
	queues_of_warps(1, EP_MLX5_HANDOVER_INDEX, 2200, 20000);
	slow_nic();
	if (DEEP) {
		deep();
	}
	return check_end();
}
