/* SPDX-License-Identifier: Apache-2.0 */
/* Queues with a NIC each, over one heap that is both ends' memory. */
#ifndef TEST_GDA_RIG_H
#define TEST_GDA_RIG_H

#include "kernels.h"
#include "launch.h"
#include "nic.h"

#define RIG_QUEUES 4
#define RIG_WARPS 16
#define RIG_PEER 5
#define RIG_NIC 2
/* What the NIC calls the heap: as local memory, as remote memory, as remote signals; the sink. */
#define RIG_LOCAL_ADDR 0x1000000000ull
#define RIG_LOCAL_KEY 0x11a1
#define RIG_HEAP_ADDR 0x2000000000ull
#define RIG_HEAP_KEY 0x22b2
#define RIG_SIGNAL_ADDR 0x3000000000ull
#define RIG_SIGNAL_KEY 0x33c3
#define RIG_SINK_ADDR 0x4000000000ull
#define RIG_SINK_KEY 0x44d4

struct rig_host { /* of one queue, pinned */
	struct ep_mlx5_cqe cqe;
	struct ep_mlx5_dbr dbr;
	struct ep_mlx5_error record;
	uint64_t db;
	uint64_t sink;
	uint32_t stop;
};

struct rig {
	uint32_t queues, depth;
	struct nic nic[RIG_QUEUES];
	struct ep_mlx5_qp shadow[RIG_QUEUES]; /* what was copied to the device */
	struct ep_mlx5_qp *qp;                /* device memory */
	struct rig_host *host;                /* [queue] */
	struct ep_mlx5_wqe *sq;
	struct gda_warp *heap;          /* [RIG_WARPS] */
	struct gda_result *result;      /* [RIG_WARPS] */
	struct ep_mlx5_region *regions; /* local, then remote */
	uint32_t *aborted;
};

/* `handover`: enum ep_mlx5_handover. No NIC runs yet. */
void rig_make(struct rig *rig, uint32_t queues, uint32_t depth, uint32_t handover);
/* Copies the constants of rig->shadow to the device, and clears the counters there. */
void rig_reset(struct rig *rig);
void rig_free(struct rig *rig);
/* A queue's state on the device, now. */
struct ep_mlx5_qp rig_state(const struct rig *rig, uint32_t queue);
/* Overwrites a queue's state on the device. */
void rig_set_state(struct rig *rig, uint32_t queue, const struct ep_mlx5_qp *state);

#endif
