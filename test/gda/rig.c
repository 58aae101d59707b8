/* SPDX-License-Identifier: Apache-2.0 */
#include <unistd.h>
#include "device/mlx5/wqe.h"
#include "rig.h"

#define SLAB_PAGE 4096

static void *rig_pinned(size_t bytes)
{
	void *p = NULL;

	NEED_CUDA(cudaHostAlloc(&p, bytes, cudaHostAllocMapped | cudaHostAllocPortable));
	memset(p, 0, bytes);
	return p;
}

/* ---- what the NIC sees ---- */

static void rig_blame(struct rig *rig, const char *what, uint64_t index)
{
	if (rig->bad++ < 8) {
		fprintf(stderr, "index %llu: %s\n", (unsigned long long)index, what);
	}
}

static void rig_on_wqe(void *arg, uint32_t qpn, uint64_t index, const struct ep_mlx5_wqe *wqe)
{
	struct rig *rig = arg;
	struct rig_nic *nic = rig->nic;
	bool signaled;

	while (nic->client.qpn != qpn) {
		nic++;
	}
	signaled = be32toh(wqe->w[2]) & EP_MLX5_CE_ALWAYS;
	nic->kept[index % RIG_KEEP] = *wqe;
	nic->fetched++;
	nic->signaled += signaled;
	nic->nops += (be32toh(wqe->w[0]) & 0xff) == EP_MLX5_OP_NOP;
	if (((index + 1) & (rig->depth / 4 - 1)) == 0 && !signaled) {
		rig_blame(rig, "ends a quarter, but is not signaled", index);
	}
}

/* Every number goes up by one at a time: no put is lost, repeated or overtaken by a later one. */
static void rig_on_write(void *arg, const void *at, const void *data, uint32_t bytes)
{
	struct rig *rig = arg;
	uint64_t where = (uint64_t)((const char *)at - (const char *)rig->heap), old, value;

	if (bytes != 8 || where >= RIG_WARPS * sizeof(*rig->heap) ||
	    where % sizeof(*rig->heap) >= sizeof(rig->heap->tags)) {
		return;
	}
	memcpy(&old, at, 8);
	memcpy(&value, data, 8);
	if (value != old + 1) {
		rig_blame(rig, "a number that is not the next one", value);
	}
}

/* ---- queues ---- */

static void rig_register(struct rig *rig)
{
	const uint64_t bytes = RIG_WARPS * sizeof(*rig->heap);
	const uint64_t addr[] = { RIG_LOCAL_ADDR, RIG_HEAP_ADDR, RIG_SIGNAL_ADDR };
	struct ep_mlx5_region *local = rig->regions, *remote = local + EP_MLX5_REGIONS;

	for (uint32_t i = 0; i < 3; i++) {
		rig->mr[i] = ibv_reg_mr_iova(rig->dev.pd, rig->heap, bytes, addr[i], CL_FULL);
		NEED(rig->mr[i]);
	}
	for (uint32_t i = 0; i < rig->queues; i++) {
		rig->mr[3 + i] = ibv_reg_mr_iova(rig->dev.pd, &rig->host[i].sink, 8, RIG_SINK_ADDR,
						 IBV_ACCESS_LOCAL_WRITE);
		NEED(rig->mr[3 + i]);
	}
	local[EP_MLX5_REGION_HEAP] = (struct ep_mlx5_region){ addr[0], bytes, rig->mr[0]->lkey, 0 };
	remote[EP_MLX5_REGION_HEAP] =
		(struct ep_mlx5_region){ addr[1], bytes, 0, rig->mr[1]->rkey };
	remote[EP_MLX5_REGION_SIGNAL] =
		(struct ep_mlx5_region){ addr[2], bytes, 0, rig->mr[2]->rkey };
}

/* A queue to itself, in memory that a GPU reaches. */
static void rig_open_queue(struct rig *rig, uint32_t i)
{
	const struct cl_options options = { .tier = -1 };
	struct cl_queue *q = &rig->nic[i].client;
	struct ep_mlx5_qp *qp = &rig->shadow[i];

	cl_create(q, &rig->dev, rig->depth, true);
	cl_pair(q, q, &options);
	NEED_CUDA(cudaHostRegister(q->slab, SLAB_PAGE + q->depth * sizeof(*q->sq),
				   cudaHostRegisterPortable | cudaHostRegisterMapped));
	NEED_CUDA(cudaHostRegister(q->uar->base_addr, SLAB_PAGE,
				   cudaHostRegisterPortable | cudaHostRegisterMapped));
	qp->sq = q->sq;
	qp->cqe = q->cqe;
	qp->dbr = q->dbr;
	qp->db = rig->index_mode ? &rig->host[i].index
				 : (uint64_t *)((char *)q->uar->base_addr + EP_MLX5_UAR_DOORBELL);
	qp->qpn = q->qpn;
}

static void rig_close_queue(struct rig *rig, uint32_t i)
{
	struct cl_queue *q = &rig->nic[i].client;

	NEED_CUDA(cudaHostUnregister(q->slab));
	NEED_CUDA(cudaHostUnregister(q->uar->base_addr));
	cl_destroy(q);
}

static void rig_upload(struct rig *rig)
{
	for (uint32_t i = 0; i < rig->queues; i++) {
		memset(&rig->host[i], 0, sizeof(rig->host[i]));
	}
	NEED_CUDA(cudaMemcpy(rig->qp, rig->shadow, rig->queues * sizeof(*rig->qp),
			     cudaMemcpyHostToDevice));
}

void rig_make(struct rig *rig, uint32_t queues, uint32_t depth, uint32_t handover)
{
	const struct vn_dv_watch watch = { .arg = rig, .wqe = rig_on_wqe, .write = rig_on_write };

	memset(rig, 0, sizeof(*rig));
	rig->queues = queues;
	rig->depth = depth;
	rig->index_mode = handover == EP_MLX5_HANDOVER_INDEX;
	rig->host = rig_pinned(queues * sizeof(*rig->host));
	rig->heap = rig_pinned(RIG_WARPS * sizeof(*rig->heap));
	rig->result = rig_pinned(RIG_WARPS * sizeof(*rig->result));
	rig->regions = rig_pinned(2 * EP_MLX5_REGIONS * sizeof(*rig->regions));
	rig->aborted = rig_pinned(4);
	NEED_CUDA(cudaMalloc((void **)&rig->qp, queues * sizeof(*rig->qp)));
	setenv("VC_NIC_STEP", "1", 1);
	setenv("VC_NIC_TIER", "0", 1);
	cl_open(&rig->dev, 0);
	vn_dv_watch(&watch);
	rig_register(rig);
	for (uint32_t i = 0; i < queues; i++) {
		rig->nic[i].script = (struct vn_dv_script){ UINT64_MAX, UINT64_MAX, 0, 0 };
		rig->shadow[i] =
			(struct ep_mlx5_qp){ .local = rig->regions,
					     .remote = rig->regions + EP_MLX5_REGIONS,
					     .record = &rig->host[i].record,
					     .stop = &rig->host[i].stop,
					     .depth = depth,
					     .handover = (uint8_t)handover,
					     .in_host = 1,
					     .signal = ep_mlx5_signal_policy(EP_MLX5_TIER_IBTA, 0),
					     .peer = RIG_PEER,
					     .nic = RIG_NIC,
					     .sink = RIG_SINK_ADDR,
					     .sink_lkey = rig->mr[3 + i]->lkey };
		rig_open_queue(rig, i);
	}
	rig_upload(rig);
}

void rig_reset(struct rig *rig)
{
	for (uint32_t i = 0; i < rig->queues; i++) {
		rig_close_queue(rig, i);
		rig->nic[i] = (struct rig_nic){ .script = rig->nic[i].script };
		rig_open_queue(rig, i);
	}
	rig_upload(rig);
}

void rig_free(struct rig *rig)
{
	void *pinned[] = { rig->host, rig->heap, rig->result, rig->regions, rig->aborted };

	for (uint32_t i = 0; i < rig->queues; i++) {
		rig_close_queue(rig, i);
	}
	for (uint32_t i = 0; i < rig->queues + 3; i++) {
		NEED(ibv_dereg_mr(rig->mr[i]) == 0);
	}
	cl_close(&rig->dev);
	for (size_t i = 0; i < sizeof(pinned) / sizeof(pinned[0]); i++) {
		NEED_CUDA(cudaFreeHost(pinned[i]));
	}
	NEED_CUDA(cudaFree(rig->qp));
}

/* ---- steps ---- */

uint64_t rig_doorbell(const struct rig *rig)
{
	return __atomic_load_n(rig->shadow[0].db, __ATOMIC_ACQUIRE);
}

/* EP_MLX5_HANDOVER_INDEX: rings as far as the index goes, as plugin/gda's thread does. */
static void rig_pass_on(struct rig *rig, uint32_t i)
{
	uint64_t index = __atomic_load_n(&rig->host[i].index, __ATOMIC_ACQUIRE);
	struct rig_nic *nic = &rig->nic[i];

	if (index < nic->client.pi) {
		rig_blame(rig, "the index goes back", index);
	} else if (index > nic->client.pi) {
		nic->client.pi = index;
		cl_ring(&nic->client);
	}
}

static bool rig_step(struct rig *rig)
{
	bool any;

	for (uint32_t i = 0; i < rig->queues; i++) {
		if (rig->index_mode) {
			rig_pass_on(rig, i);
		}
		vn_dv_script(rig->nic[i].client.qpn, &rig->nic[i].script);
	}
	any = vn_dv_step(rig->most);
	for (uint32_t i = 0; i < rig->queues; i++) {
		vn_dv_seen(rig->nic[i].client.qpn, &rig->nic[i].seen);
	}
	return any;
}

void rig_serve(struct rig *rig)
{
	while (rig_step(rig)) {
	}
}

static void *rig_main(void *arg)
{
	struct rig *rig = arg;

	for (;;) {
		int stop = __atomic_load_n(&rig->stop, __ATOMIC_ACQUIRE);
		bool any = rig_step(rig);

		if (rig->pause_us || !any) {
			usleep(rig->pause_us ? rig->pause_us : 1);
		}
		if (stop && !any) {
			return NULL;
		}
	}
}

void rig_start(struct rig *rig)
{
	rig->stop = 0;
	NEED(pthread_create(&rig->thread, NULL, rig_main, rig) == 0);
}

void rig_finish(struct rig *rig)
{
	__atomic_store_n(&rig->stop, 1, __ATOMIC_RELEASE);
	pthread_join(rig->thread, NULL);
}

/* ---- the device's side ---- */

struct ep_mlx5_qp rig_state(const struct rig *rig, uint32_t queue)
{
	struct ep_mlx5_qp state;

	NEED_CUDA(cudaMemcpy(&state, rig->qp + queue, sizeof(state), cudaMemcpyDeviceToHost));
	return state;
}
