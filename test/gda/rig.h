/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues over one heap that is both ends' memory, served by the virtual cluster's software NIC in
 * single steps (nic/step.h). It checks every WQE and doorbell, and ends the test where one breaks a
 * rule.
 */
#ifndef TEST_GDA_RIG_H
#define TEST_GDA_RIG_H

#include <pthread.h>
#include "kernels.h"
#include "launch.h"
#include "nic/step.h"
#include "test/nic_client.h"

#define RIG_QUEUES 4
#define RIG_WARPS RIG_QUEUES
#define RIG_PEER 5
#define RIG_NIC 2
#define RIG_KEEP 64 /* of the WQEs served, the last so many */
/* What the NIC calls the heap: as local memory, as remote memory, as remote signals; the sink. */
#define RIG_LOCAL_ADDR 0x1000000000ull
#define RIG_HEAP_ADDR 0x2000000000ull
#define RIG_SIGNAL_ADDR 0x3000000000ull
#define RIG_SINK_ADDR 0x4000000000ull

struct rig_host { /* of one queue, pinned */
	struct ep_mlx5_error record;
	uint64_t index; /* EP_MLX5_HANDOVER_INDEX */
	uint64_t sink;
	uint32_t stop;
};

struct rig_nic { /* of one queue */
	struct cl_queue client;
	struct vn_dv_script script; /* may be changed while no thread steps */
	struct vn_dv_seen seen;     /* after the last step */
	uint64_t fetched, signaled, nops;
	struct ep_mlx5_wqe kept[RIG_KEEP]; /* [index % RIG_KEEP] */
};

struct rig {
	uint32_t queues, depth;
	bool index_mode; /* a thread of the CPU rings */
	struct rig_nic nic[RIG_QUEUES];
	struct ep_mlx5_qp shadow[RIG_QUEUES]; /* what was copied to the device */
	struct ep_mlx5_qp *qp;                /* device memory */
	struct rig_host *host;                /* [queue] */
	struct gda_warp *heap;                /* [RIG_WARPS] */
	struct gda_result *result;            /* [RIG_WARPS] */
	struct ep_mlx5_region *regions;       /* local, then remote */
	uint32_t *aborted;

	/* how the thread that steps the NIC does it */
	uint32_t pause_us; /* after each step */
	uint32_t most;     /* WQEs of one; 0: any number */
	uint64_t bad;      /* rules of these tests that were broken */

	struct cl_dev dev;
	struct ibv_mr *mr[RIG_QUEUES + 3];
	pthread_t thread;
	int stop;
};

/* `handover`: enum ep_mlx5_handover. No NIC runs yet. */
void rig_make(struct rig *rig, uint32_t queues, uint32_t depth, uint32_t handover);
/* New queues in place of the old, with the constants of rig->shadow. */
void rig_reset(struct rig *rig);
void rig_free(struct rig *rig);

/* Serves what was handed over, as far as the scripts allow. */
void rig_serve(struct rig *rig);
/* A thread does so until rig_finish(), which serves what is left. */
void rig_start(struct rig *rig);
void rig_finish(struct rig *rig);
/* The doorbell of queue 0. */
uint64_t rig_doorbell(const struct rig *rig);

/* A queue's state on the device, now. */
struct ep_mlx5_qp rig_state(const struct rig *rig, uint32_t queue);

#endif
