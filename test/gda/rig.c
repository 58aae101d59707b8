/* SPDX-License-Identifier: Apache-2.0 */
#include "rig.h"

static void *rig_pinned(size_t bytes)
{
	void *p = NULL;

	NEED_CUDA(cudaHostAlloc(&p, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
	memset(p, 0, bytes);
	return p;
}

/* Every number goes up by one at a time: no put is lost, repeated or overtaken by a later one. */
static bool rig_on_write(void *arg, uint64_t addr, const void *data, uint32_t bytes)
{
	const struct rig *rig = arg;
	uint64_t at = addr - RIG_HEAP_ADDR, field = at % sizeof(struct gda_warp), old, value;

	if (bytes != 8 || at >= RIG_WARPS * sizeof(struct gda_warp) ||
	    field >= sizeof(rig->heap->tags)) {
		return true;
	}
	memcpy(&old, (const char *)rig->heap + at, 8);
	memcpy(&value, data, 8);
	return value == old + 1;
}

static void rig_make_nic(struct rig *rig, uint32_t i, uint32_t handover)
{
	struct nic *nic = &rig->nic[i];
	uint64_t bytes = RIG_WARPS * sizeof(struct gda_warp);
	unsigned char *heap = (unsigned char *)rig->heap;

	nic->sq = rig->sq + (size_t)i * rig->depth;
	nic->cqe = &rig->host[i].cqe;
	nic->dbr = &rig->host[i].dbr;
	nic->db = &rig->host[i].db;
	nic->depth = rig->depth;
	nic->qpn = NIC_QPN + i;
	nic->index_mode = handover == EP_MLX5_HANDOVER_INDEX;
	nic->stuck_at = nic->fail_at = ~0ull;
	nic->region[0] = (struct nic_region){ heap, RIG_LOCAL_ADDR, bytes, RIG_LOCAL_KEY, 0 };
	nic->region[1] = (struct nic_region){ heap, RIG_HEAP_ADDR, bytes, 0, RIG_HEAP_KEY };
	nic->region[2] = (struct nic_region){ heap, RIG_SIGNAL_ADDR, bytes, 0, RIG_SIGNAL_KEY };
	nic->region[3] = (struct nic_region){ (unsigned char *)&rig->host[i].sink, RIG_SINK_ADDR, 8,
					      RIG_SINK_KEY, 0 };
	nic->on_write = rig_on_write;
	nic->arg = rig;
}

void rig_make(struct rig *rig, uint32_t queues, uint32_t depth, uint32_t handover)
{
	uint64_t bytes = RIG_WARPS * sizeof(*rig->heap);

	memset(rig, 0, sizeof(*rig));
	rig->queues = queues;
	rig->depth = depth;
	rig->host = rig_pinned(queues * sizeof(*rig->host));
	rig->sq = rig_pinned((size_t)queues * depth * sizeof(*rig->sq));
	rig->heap = rig_pinned(RIG_WARPS * sizeof(*rig->heap));
	rig->result = rig_pinned(RIG_WARPS * sizeof(*rig->result));
	rig->regions = rig_pinned(2 * EP_MLX5_REGIONS * sizeof(*rig->regions));
	rig->aborted = rig_pinned(4);
	NEED_CUDA(cudaMalloc((void **)&rig->qp, queues * sizeof(*rig->qp)));
	rig->regions[EP_MLX5_REGION_HEAP] =
		(struct ep_mlx5_region){ RIG_LOCAL_ADDR, bytes, RIG_LOCAL_KEY, 0 };
	rig->regions[EP_MLX5_REGIONS + EP_MLX5_REGION_HEAP] =
		(struct ep_mlx5_region){ RIG_HEAP_ADDR, bytes, 0, RIG_HEAP_KEY };
	rig->regions[EP_MLX5_REGIONS + EP_MLX5_REGION_SIGNAL] =
		(struct ep_mlx5_region){ RIG_SIGNAL_ADDR, bytes, 0, RIG_SIGNAL_KEY };
	for (uint32_t i = 0; i < queues; i++) {
		struct ep_mlx5_qp *qp = &rig->shadow[i];

		rig_make_nic(rig, i, handover);
		qp->sq = rig->nic[i].sq;
		qp->cqe = &rig->host[i].cqe;
		qp->dbr = &rig->host[i].dbr;
		qp->db = &rig->host[i].db;
		qp->local = rig->regions;
		qp->remote = rig->regions + EP_MLX5_REGIONS;
		qp->record = &rig->host[i].record;
		qp->stop = &rig->host[i].stop;
		qp->qpn = NIC_QPN + i;
		qp->depth = depth;
		qp->handover = (uint8_t)handover;
		qp->in_host = 1;
		qp->signal = ep_mlx5_signal_policy(EP_MLX5_TIER_IBTA, 0);
		qp->peer = RIG_PEER;
		qp->nic = RIG_NIC;
		qp->sink = RIG_SINK_ADDR;
		qp->sink_lkey = RIG_SINK_KEY;
	}
	rig_reset(rig);
}

void rig_reset(struct rig *rig)
{
	memset(rig->sq, NIC_POISON, (size_t)rig->queues * rig->depth * sizeof(*rig->sq));
	for (uint32_t i = 0; i < rig->queues; i++) {
		struct nic *nic = &rig->nic[i];

		memset(&rig->host[i], 0, sizeof(rig->host[i]));
		memset(&rig->host[i].cqe, 0xff, sizeof(rig->host[i].cqe));
		nic->pi = nic->ci = nic->reported = nic->doorbells = nic->peak = 0;
		nic->signaled = nic->nops = nic->bad = 0;
		nic->failed = false;
	}
	NEED_CUDA(cudaMemcpy(rig->qp, rig->shadow, rig->queues * sizeof(*rig->qp),
			     cudaMemcpyHostToDevice));
}

void rig_free(struct rig *rig)
{
	void *pinned[] = { rig->host, rig->sq, rig->heap, rig->result, rig->regions, rig->aborted };

	for (size_t i = 0; i < sizeof(pinned) / sizeof(pinned[0]); i++) {
		NEED_CUDA(cudaFreeHost(pinned[i]));
	}
	NEED_CUDA(cudaFree(rig->qp));
}

struct ep_mlx5_qp rig_state(const struct rig *rig, uint32_t queue)
{
	struct ep_mlx5_qp state;

	NEED_CUDA(cudaMemcpy(&state, rig->qp + queue, sizeof(state), cudaMemcpyDeviceToHost));
	return state;
}

void rig_set_state(struct rig *rig, uint32_t queue, const struct ep_mlx5_qp *state)
{
	NEED_CUDA(cudaMemcpy(rig->qp + queue, state, sizeof(*state), cudaMemcpyHostToDevice));
}
