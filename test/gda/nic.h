/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What plays the NIC in these tests: a thread that serves one send queue, checks all that the
 * posting side promises, and executes the WQEs by plain copies. Local and remote memory are pieces
 * of this process, each with its keys.
 */
#ifndef TEST_GDA_NIC_H
#define TEST_GDA_NIC_H

#include <pthread.h>
#include <stdbool.h>
#include "device/mlx5/layout.h"

#define NIC_QPN 0x123456
#define NIC_POISON 0xee
#define NIC_REGIONS 4
#define NIC_KEEP 64 /* of the WQEs served, the last so many */

struct nic_region {
	unsigned char *memory; /* that the addresses below stand for */
	uint64_t addr, bytes;
	uint32_t lkey, rkey; /* 0: none */
};

struct nic {
	/* as made by the host */
	struct ep_mlx5_wqe *sq;
	struct ep_mlx5_cqe *cqe;
	struct ep_mlx5_dbr *dbr;
	uint64_t *db;
	uint32_t depth, qpn;
	bool index_mode; /* EP_MLX5_HANDOVER_INDEX */
	struct nic_region region[NIC_REGIONS];

	/* behaviour */
	uint32_t pause_us;        /* after each turn */
	uint32_t most;            /* WQEs of one turn; 0: any number */
	uint64_t stuck_at;        /* index that never completes; ~0: none */
	uint64_t fail_at;         /* index that fails; ~0: none */
	uint8_t syndrome, vendor; /* how */
	/* called for each WRITE that is served; says whether the data is right */
	bool (*on_write)(void *arg, uint64_t addr, const void *data, uint32_t bytes);
	void *arg;

	/* what was seen */
	uint64_t pi;       /* handed over */
	uint64_t ci;       /* served */
	uint64_t reported; /* served, and the posting side could know */
	uint64_t doorbells;
	uint64_t peak; /* handed over, but not reported */
	uint64_t signaled, nops;
	uint64_t bad;                      /* violations; the first few are printed */
	bool quiet;                        /* unless they are provoked */
	bool failed;                       /* in error state: what follows is flushed */
	struct ep_mlx5_wqe kept[NIC_KEEP]; /* [index % NIC_KEEP] */

	pthread_t thread;
	int stop;
};

/* One turn: looks at the doorbell and serves what is there. Returns how many WQEs. */
uint64_t nic_turn(struct nic *nic);
void nic_start(struct nic *nic);
/* Serves what was handed over, ends the thread; *nic may be read afterwards. */
void nic_finish(struct nic *nic);

#endif
