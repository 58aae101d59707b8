/* SPDX-License-Identifier: Apache-2.0 */
/* NICs that GPUs post to, with the memory of their queues and their doorbells. */
#ifndef EP_GDA_NIC_H
#define EP_GDA_NIC_H

#include "core/context.h"
#include "device/mlx5/mlx5_layout.h"
#include "gda/gda.h"
#include "rdma/nic.h"

#define EP_GDA_MAX_NICS EP_MLX5_MAX_NICS
#define EP_GDA_PAGE 4096u /* of the NIC; every queue's lines and buffer begin at one */

/* Memory of a NIC's queues: per queue a page with its lines, then its buffer. */
struct ep_gda_queue_memory {
	unsigned char *dev;  /* address for the GPU */
	unsigned char *host; /* NULL: in GPU memory */
	struct ep_pinned pinned;
	uint64_t bytes;
	struct mlx5dv_devx_umem *umem;
	struct ibv_mr *mr; /* CPU_PROXY: inline data is sent from the buffer */
};
#define EP_GDA_AT_CQE 0u /* in a queue's page */
#define EP_GDA_AT_DBR 128u
#define EP_GDA_AT_CQ_DBR 256u

/* Capabilities of firmware for DevX queues. */
struct ep_gda_caps {
	uint32_t log_max_qp_sz;
	bool error_syndrome; /* QUERY_QP reports why a queue pair failed */
	bool ece;            /* queue pairs report what they can beyond the standard */
	bool reports_tier;   /* QUERY_QP reports the order of placement, */
	bool reports_order;  /* or at least whether data is placed in order */
	uint32_t ts_format;  /* of timestamps, which nobody reads: firmware refuses others */
};

/* Extensions of a NIC's queue pairs (ECE); vendor 0: none, or it does not report them. */
struct ep_gda_ece {
	uint32_t vendor, options;
};

/* A port that is a bond of several (RoCE LAG). */
struct ep_gda_lag {
	uint32_t ports; /* members; 0: it is none */
	bool by_queue;  /* each queue pair has its member; else a hash of what it sends chooses */
	bool init2rtr, rts2rts; /* transitions that name the member */
};

struct ep_gda_nic {
	struct ep_nic base;
	struct ep_gda_caps caps;
	struct ep_gda_lag lag;
	struct ep_gda_ece ece;
	uint32_t pdn, eqn;

	struct ep_gda_queue_memory queue_memory;
	/*
	 * Memory of modes that were refused. Freeing it waits for all that runs on the GPU, where a rank that is ahead
	 * may have a kernel of NCCL's that waits for this rank: it is kept until the group ends.
	 */
	struct ep_gda_queue_memory refused[EP_GDA_CPU_PROXY]; /* each mode is tried once at most */
	int nrefused;
	uint32_t first, queues; /* in g->queue, and in the queue_memory */
	struct mlx5dv_devx_uar *uar;
	bool uar_mapped; /* cudaHostRegister()ed */
	bool keep;       /* and not to be unmapped: the context stays open */
	uint64_t *db;    /* address for the GPU */

	struct ibv_cq *cq; /* CPU_PROXY */
	uint32_t cq_depth, cq_used;
	bool cq_lost;       /* the proxy's thread: it cannot be polled any more */
	uint32_t port_down; /* by its last event; atomic */

	struct ibv_ah *held;   /* refers to the port's own GID */
	uint32_t address_gone; /* and the port has another one by now; atomic */
	struct ibv_mr *sink;
	struct ibv_mr *heap[EP_MLX5_REGIONS];
};

/* Opens what DevX queues need of a device that is open; false: plain verbs are left. */
bool ep_gda_devx_open(struct ep_gda_nic *nic, struct ep_reason *why);

/* Capabilities of a set; `out` has EP_PRM_CAP_OUT_BYTES. */
bool ep_gda_query_caps(const struct ep_gda_nic *nic, uint32_t set, unsigned char *out,
		       struct ep_reason *why);

/* Of a DevX command: true if it was carried out. */
bool ep_gda_command(const char *what, int error, const void *out, struct ep_reason *why);

/* Opens what ep_nic_choose() says. False: *result is a failure that was recorded, else see why. */
bool ep_gda_nics_open(struct ep_gda *g, const struct ep_gda_config *c, struct ep_reason *why,
		      ncclResult_t *result);
void ep_gda_nics_close(struct ep_gda *g);

#endif
