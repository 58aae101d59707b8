/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State behind plugin/gda/gda.h, for the files of this directory.
 *
 * What only this rank is concerned with reports trouble through struct ep_reason: in automatic mode
 * the next mode is tried with it, so that it is not an error yet. gda.c makes it one.
 */
#ifndef EP_GDA_STATE_H
#define EP_GDA_STATE_H

#include <errno.h>
#include <pthread.h>
#include "gda/queue.h"

#define EP_GDA_FAILURES(nranks) ((uint32_t)(nranks) + 4 * EP_GDA_MAX_NICS)

struct ep_gda {
	int rank, nranks, device;
	uint32_t queues, depth;
	uint32_t node; /* ranks of this node */
	uint64_t timeout_ns;
	enum ep_gda_mode mode;
	struct ep_reason instead; /* why no better mode */
	struct ep_reason trial;   /* why a NIC did not connect with itself; "": it did */
	struct ep_ib_env env;
	bool *remote;
	char (*host)[64];

	struct ep_gda_nic nic[EP_GDA_MAX_NICS];
	int nnics;
	struct ep_gda_queue *queue;
	uint32_t nqueues;
	uint32_t psn;

	/* Pinned host memory: down words, sinks, a line to copy to, index words, error records. */
	struct ep_pinned pinned;
	uint32_t *down; /* [nranks] */
	struct ep_mlx5_cqe *scratch;

	/* GPU memory: queues [nranks][queues], then regions, of our NICs and of peers' NICs. */
	struct ep_mlx5_qp *qps;
	struct ep_mlx5_region *regions_dev;
	struct ep_mlx5_qp *shadow;
	struct ep_mlx5_region *regions;
	cudaStream_t stream;
	bool bound;
	struct ep_gda_user_mr *sources; /* user_mr.c; NULL: none so far */
	bool keep_cuda; /* the device is stuck: leave CUDA's objects alone, freeing waits for it */
	struct ep_context context;
	bool ended; /* the device was reset: there are no objects of CUDA's any more */

	pthread_mutex_t lock;           /* of these five; held for no longer than a copy takes */
	struct ep_gda_failure *failure; /* [EP_GDA_FAILURES(nranks)] */
	uint32_t nfailures, ntaken;
	uint32_t *known;     /* [nranks] 1 + which of them concerns that peer; 0: none */
	bool *vague;         /* [nranks] that one does not say why */
	pthread_mutex_t ask; /* of `scratch`, and of questions to NICs */
	uint32_t next_query;

	pthread_t watcher, proxy;
	bool watching, posting;
	int stop_fd; /* wakes the watcher */
	uint32_t stop;
};

/* Do kernels hand WQEs over by storing an index? */
static inline bool ep_gda_handover_index(enum ep_gda_mode mode)
{
	return mode == EP_GDA_CPU_DB || mode == EP_GDA_CPU_PROXY;
}

/* Bytes of a queue in its queue_memory. */
static inline uint64_t ep_gda_stride(const struct ep_gda *g)
{
	return EP_GDA_PAGE + (uint64_t)g->depth * EP_MLX5_WQEBB;
}

/* Of the table of queues. */
static inline size_t ep_gda_table_bytes(const struct ep_gda *g)
{
	return (size_t)g->nranks * g->queues * sizeof(*g->qps);
}

static inline int ep_gda_nic_index(const struct ep_gda *g, const struct ep_gda_nic *nic)
{
	return (int)(nic - g->nic);
}

/* Regions of our NIC `nic`, and of NIC `nic` of `peer`, in g->regions and g->regions_dev. */
static inline size_t ep_gda_local_regions(int nic)
{
	return (size_t)nic * EP_MLX5_REGIONS;
}

static inline size_t ep_gda_remote_regions(int peer, int nic)
{
	return ((size_t)(peer + 1) * EP_GDA_MAX_NICS + (size_t)nic) * EP_MLX5_REGIONS;
}

static inline size_t ep_gda_region_count(const struct ep_gda *g)
{
	return ep_gda_remote_regions(g->nranks, 0);
}

#endif
