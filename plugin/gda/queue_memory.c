/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that kernels, NIC and host share: the queues of a NIC, its doorbell register, the table of
 * queues, and pinned words. All of it is there before the first queue is made, so that a kernel
 * that runs never meets an allocation.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include "core/log.h"
#include "gda/gda_memory.h"
#include "gda/queue_memory.h"
#include "gda/verbs_queue.h"

#define EP_GDA_GPU_ALIGN (2u << 20) /* own allocation for the driver, so that only it is exported */
#define EP_GDA_UAR_NC 1u            /* mlx5dv.h: MLX5DV_UAR_ALLOC_TYPE_NC */
#define EP_GDA_UAR_BF 0u
#define EP_GDA_LINE 64u

static bool ep_reason_set_cuda(struct ep_reason *why, cudaError_t error, const char *what)
{
	(void)cudaGetLastError();
	return ep_reason_set(why, "%s: %s", what, cudaGetErrorString(error));
}

bool ep_gda_synchronize(struct ep_gda *g, uint64_t timeout_ns)
{
	uint64_t start = ep_now_ns();

	for (;;) {
		cudaError_t state = cudaStreamQuery(g->stream);
		struct timespec nap = { 0, 20000 };

		if (state == cudaSuccess) {
			return true;
		}
		if (state != cudaErrorNotReady || ep_now_ns() - start > timeout_ns) {
			(void)cudaGetLastError();
			return false;
		}
		nanosleep(&nap, NULL);
	}
}

static bool ep_gda_alloc_gpu(struct ep_gda *g, struct ep_gda_queue_memory *memory,
			     struct ep_reason *why)
{
	cudaError_t error;

	memory->bytes = ep_round_up(memory->bytes, EP_GDA_GPU_ALIGN);
	error = cudaMalloc((void **)&memory->dev, memory->bytes);
	if (error != cudaSuccess) {
		memory->dev = NULL;
		return ep_reason_set_cuda(why, error, "no GPU memory for queues");
	}
	ep_gda_sync_memops(memory->dev);
	error = cudaMemsetAsync(memory->dev, 0, memory->bytes, g->stream);
	for (uint64_t at = 0; error == cudaSuccess && at + EP_GDA_PAGE <= memory->bytes;
	     at += ep_gda_stride(g)) {
		error = cudaMemsetAsync(memory->dev + at + EP_GDA_AT_CQE, 0xff,
					sizeof(struct ep_mlx5_cqe), g->stream);
	}
	if (error != cudaSuccess) {
		return ep_reason_set_cuda(why, error, "clearing queues");
	}
	return ep_gda_synchronize(g, g->timeout_ns) ||
	       ep_reason_set(why, "clearing queues takes too "
				  "long");
}

static bool ep_gda_alloc_host(struct ep_gda *g, struct ep_gda_queue_memory *memory,
			      struct ep_reason *why)
{
	if (!ep_pinned_alloc(&memory->pinned, memory->bytes, why)) {
		return false;
	}
	memory->host = memory->pinned.host;
	memory->dev = memory->pinned.dev;
	for (uint64_t at = 0; at + EP_GDA_PAGE <= memory->bytes; at += ep_gda_stride(g)) {
		memset(memory->host + at + EP_GDA_AT_CQE, 0xff, sizeof(struct ep_mlx5_cqe));
	}
	return true;
}

/*
 * Lets the GPU write the doorbell register. A register is I/O memory; a NIC made of software has
 * its page in ordinary memory, which the driver takes only under its own name.
 */
static bool ep_gda_uar_map(struct ep_gda_nic *nic, struct ep_reason *why)
{
	const unsigned int flags = cudaHostRegisterPortable | cudaHostRegisterMapped;
	uintptr_t reg = (uintptr_t)nic->uar->reg_addr;
	unsigned char *page = (unsigned char *)(reg & ~(uintptr_t)(EP_MLX5_UAR_BYTES - 1));
	unsigned char *dev = NULL;
	cudaError_t error = cudaSuccess;

	if (!nic->uar_mapped) {
		error = cudaHostRegister(page, EP_MLX5_UAR_BYTES, flags | cudaHostRegisterIoMemory);
	}
	if (error != cudaSuccess && error != cudaErrorNotPermitted) {
		(void)cudaGetLastError();
		if (cudaHostRegister(page, EP_MLX5_UAR_BYTES, flags) == cudaSuccess) {
			error = cudaSuccess;
		}
	}
	if (error != cudaSuccess) {
		(void)cudaGetLastError();
		return ep_reason_set(
			why,
			"the GPU cannot ring %s: %s (%s); needs root or NVIDIA's driver "
			"with NVreg_RegistryDwords=\"PeerMappingOverride=1;\"",
			nic->base.name, cudaGetErrorString(error), cudaGetErrorName(error));
	}
	nic->uar_mapped = true;
	error = cudaHostGetDevicePointer((void **)&dev, page, 0);
	if (error != cudaSuccess) {
		return ep_reason_set_cuda(why, error, "the doorbell has no device address");
	}
	nic->db = (uint64_t *)(dev + (reg - (uintptr_t)page));
	return true;
}

static bool ep_gda_uar_open(struct ep_gda *g, struct ep_gda_nic *nic, struct ep_reason *why)
{
	if (!nic->uar) {
		nic->uar = nic->base.dv->mlx5dv_devx_alloc_uar(nic->base.ctx, EP_GDA_UAR_NC);
	}
	if (!nic->uar) {
		nic->uar = nic->base.dv->mlx5dv_devx_alloc_uar(nic->base.ctx, EP_GDA_UAR_BF);
	}
	if (!nic->uar) {
		return ep_reason_set(why, "%s has no doorbell page left: %s", nic->base.name,
				     strerror(errno));
	}
	return g->mode == EP_GDA_CPU_DB || nic->db || ep_gda_uar_map(nic, why);
}

bool ep_gda_queue_memory_open(struct ep_gda *g, struct ep_gda_nic *nic, struct ep_reason *why)
{
	struct ep_gda_queue_memory *s = &nic->queue_memory;
	bool gpu = g->mode == EP_GDA_GPU;

	s->bytes = ep_max_u64(nic->queues, 1) * ep_gda_stride(g);
	if (g->mode == EP_GDA_CPU_PROXY) {
		if (!ep_gda_alloc_host(g, s, why)) {
			return false;
		}
		s->mr = ep_gda_register(nic, s->host, s->bytes, IBV_ACCESS_LOCAL_WRITE, false, why);
		return s->mr && ep_gda_verbs_cq(g, nic, why);
	}
	if (!nic->base.devx) {
		return ep_reason_set(why, "%s:%d: %.200s", nic->base.name, nic->base.port,
				     nic->base.no_devx.text);
	}
	/* The doorbell first: it is what most machines refuse, and costs nothing to try. */
	if (!ep_gda_uar_open(g, nic, why)) {
		return false;
	}
	if (gpu ? !ep_gda_alloc_gpu(g, s, why) : !ep_gda_alloc_host(g, s, why)) {
		return false;
	}
	s->umem = ep_gda_umem(nic, gpu ? s->dev : s->host, s->bytes, gpu, why);
	return s->umem != NULL;
}

static void ep_gda_cuda_done(cudaError_t error, const char *what)
{
	if (error != cudaSuccess) {
		(void)cudaGetLastError();
		EP_INFO(EP_LOG_NET, "%s: %s", what, cudaGetErrorString(error));
	}
}

/* Ends what the NIC has of its queue_memory. */
static void ep_gda_queue_memory_end(struct ep_gda_nic *nic)
{
	struct ep_gda_queue_memory *s = &nic->queue_memory;

	if (nic->cq) {
		nic->base.v->ibv_destroy_cq(nic->cq);
		nic->cq = NULL;
	}
	if (s->mr) {
		nic->base.v->ibv_dereg_mr(s->mr);
		s->mr = NULL;
	}
	if (s->umem) {
		nic->base.dv->mlx5dv_devx_umem_dereg(s->umem);
		s->umem = NULL;
	}
}

static void ep_gda_uar_free(struct ep_gda_nic *nic)
{
	if (nic->uar) {
		nic->base.dv->mlx5dv_devx_free_uar(nic->uar);
		nic->uar = NULL;
	}
}

void ep_gda_queue_memory_refuse(struct ep_gda_nic *nic)
{
	ep_gda_queue_memory_end(nic);
	if (!nic->uar_mapped) {
		ep_gda_uar_free(nic);
	}
	if (nic->queue_memory.dev) {
		nic->refused[nic->nrefused++] = nic->queue_memory;
	}
	memset(&nic->queue_memory, 0, sizeof(nic->queue_memory));
}

static void ep_gda_queue_memory_free(struct ep_gda *g, struct ep_gda_queue_memory *memory)
{
	if (memory->host && (!g->keep_cuda || g->ended)) {
		ep_pinned_free(&memory->pinned, g->ended);
	} else if (memory->dev && !memory->host && !g->keep_cuda) {
		ep_gda_cuda_done(cudaFree(memory->dev), "freeing queues");
	}
	memset(memory, 0, sizeof(*memory));
}

void ep_gda_queue_memory_close(struct ep_gda *g, struct ep_gda_nic *nic)
{
	ep_gda_queue_memory_end(nic);
	if (nic->uar_mapped && !g->keep_cuda) {
		uintptr_t reg = (uintptr_t)nic->uar->reg_addr;

		ep_gda_cuda_done(
			cudaHostUnregister((void *)(reg & ~(uintptr_t)(EP_MLX5_UAR_BYTES - 1))),
			"unmapping a doorbell");
	}
	if (nic->uar_mapped && g->keep_cuda && !g->ended) {
		nic->keep = true; /* CUDA has the page still */
	} else {
		ep_gda_uar_free(nic);
	}
	ep_gda_queue_memory_free(g, &nic->queue_memory);
	while (nic->nrefused) {
		ep_gda_queue_memory_free(g, &nic->refused[--nic->nrefused]);
	}
	nic->uar = NULL;
	nic->uar_mapped = false;
	nic->db = NULL;
}

uint64_t ep_gda_device_bytes(int nranks, uint32_t remote, uint32_t queues, uint32_t depth,
			     bool queues_in_gpu)
{
	const struct ep_gda g = { .nranks = nranks, .queues = queues, .depth = depth };
	uint64_t queue_memory = (uint64_t)remote * queues * ep_gda_stride(&g);

	return ep_gda_table_bytes(&g) + ep_gda_region_count(&g) * sizeof(*g.regions) +
	       (queues_in_gpu ? ep_round_up(queue_memory, EP_GDA_GPU_ALIGN) : 0);
}

/* Where the parts of the pinned block lie. */
struct ep_gda_pinned_at {
	uint64_t down, sink, scratch, word, record, shadow, bytes;
};

static struct ep_gda_pinned_at ep_gda_pinned_layout(const struct ep_gda *g)
{
	struct ep_gda_pinned_at at = { 0 };

	at.sink = ep_round_up((uint64_t)g->nranks * 4, EP_GDA_PAGE);
	at.scratch = at.sink + EP_GDA_PAGE;
	at.word = at.scratch + EP_GDA_LINE;
	at.record = at.word + (uint64_t)g->nqueues * EP_GDA_LINE;
	at.shadow = ep_round_up(at.record + (uint64_t)g->nqueues * sizeof(struct ep_mlx5_error),
				_Alignof(struct ep_mlx5_qp));
	at.bytes = at.shadow + ep_gda_table_bytes(g);
	return at;
}

bool ep_gda_pinned_open(struct ep_gda *g, struct ep_reason *why)
{
	struct ep_gda_pinned_at at = ep_gda_pinned_layout(g);
	size_t queues = ep_gda_table_bytes(g);
	size_t regions = ep_gda_region_count(g) * sizeof(*g->regions);
	cudaError_t error;

	g->regions = calloc(1, regions);
	if (!g->regions) {
		return ep_reason_set(why, "out of host memory");
	}
	error = cudaStreamCreateWithFlags(&g->stream, cudaStreamNonBlocking);
	if (error != cudaSuccess) {
		g->stream = NULL;
		return ep_reason_set_cuda(why, error, "no stream");
	}
	if (!ep_pinned_alloc(&g->pinned, at.bytes, why)) {
		return false;
	}
	error = cudaMalloc((void **)&g->qps, queues);
	if (error == cudaSuccess) {
		error = cudaMalloc((void **)&g->regions_dev, regions);
	}
	if (error != cudaSuccess) {
		return ep_reason_set_cuda(why, error, "no memory for the table of queues");
	}
	g->down = (uint32_t *)(g->pinned.host + at.down);
	g->scratch = (struct ep_mlx5_cqe *)(g->pinned.host + at.scratch);
	g->shadow = (struct ep_mlx5_qp *)(g->pinned.host + at.shadow);
	for (uint32_t i = 0; i < g->nqueues; i++) {
		g->queue[i].word =
			(uint64_t *)(g->pinned.host + at.word + (uint64_t)i * EP_GDA_LINE);
		g->queue[i].record = (struct ep_mlx5_error *)(g->pinned.host + at.record) + i;
	}
	for (int n = 0; n < g->nnics; n++) {
		g->nic[n].sink = ep_gda_register(&g->nic[n], g->pinned.host + at.sink, EP_GDA_PAGE,
						 IBV_ACCESS_LOCAL_WRITE, false, why);
		if (!g->nic[n].sink) {
			return false;
		}
	}
	return true;
}

void ep_gda_pinned_close(struct ep_gda *g)
{
	for (int n = 0; n < g->nnics; n++) {
		if (g->nic[n].sink) {
			g->nic[n].base.v->ibv_dereg_mr(g->nic[n].sink);
			g->nic[n].sink = NULL;
		}
	}
	if (!g->keep_cuda) {
		ep_gda_cuda_done(g->regions_dev ? cudaFree(g->regions_dev) : cudaSuccess,
				 "freeing the table of keys");
		ep_gda_cuda_done(g->qps ? cudaFree(g->qps) : cudaSuccess,
				 "freeing the table of queues");
		ep_gda_cuda_done(g->stream ? cudaStreamDestroy(g->stream) : cudaSuccess,
				 "destroying a stream");
	}
	if (!g->keep_cuda || g->ended) {
		ep_pinned_free(&g->pinned, g->ended);
	}
	free(g->regions);
}

static unsigned char *ep_gda_dev(const struct ep_gda *g, const void *pinned)
{
	return g->pinned.dev + ((const unsigned char *)pinned - g->pinned.host);
}

/* The queue as kernels shall see it. */
static void ep_gda_shadow_one(struct ep_gda_queue *queue)
{
	struct ep_gda *g = queue->gda;
	struct ep_mlx5_qp *s = &g->shadow[(size_t)queue->peer * g->queues + queue->index];
	unsigned char *page = queue->nic->queue_memory.dev + queue->slot * ep_gda_stride(g);
	struct ep_gda_pinned_at at = ep_gda_pinned_layout(g);

	queue->shadow = s;
	s->sq = (struct ep_mlx5_wqe *)(page + EP_GDA_PAGE);
	s->cqe = (const struct ep_mlx5_cqe *)(page + EP_GDA_AT_CQE);
	s->dbr = (struct ep_mlx5_dbr *)(page + EP_GDA_AT_DBR);
	s->db = ep_gda_handover_index(g->mode) ? (uint64_t *)ep_gda_dev(g, queue->word)
					       : queue->nic->db;
	s->local = g->regions_dev + ep_gda_local_regions(ep_gda_nic_index(g, queue->nic));
	s->remote = g->regions_dev + ep_gda_remote_regions(queue->peer, queue->remote_nic);
	s->record = (struct ep_mlx5_error *)ep_gda_dev(g, queue->record);
	s->stop = (const uint32_t *)ep_gda_dev(g, g->down + queue->peer);
	s->qpn = queue->qpn;
	s->depth = g->depth;
	s->handover = ep_gda_handover_index(g->mode) ? EP_MLX5_HANDOVER_INDEX
						     : EP_MLX5_HANDOVER_MMIO;
	s->in_host = queue->nic->queue_memory.host != NULL;
	s->tier = (uint8_t)queue->tier;
	s->signal = ep_mlx5_signal_policy(queue->tier, !queue->atomics);
	s->peer = (uint32_t)queue->peer;
	s->nic = (uint32_t)ep_gda_nic_index(g, queue->nic);
	s->sink_lkey = queue->nic->sink->lkey;
	s->sink = (uintptr_t)(g->pinned.host + at.sink);
}

bool ep_gda_publish(struct ep_gda *g, struct ep_reason *why)
{
	size_t queues = ep_gda_table_bytes(g);
	size_t regions = ep_gda_region_count(g) * sizeof(*g->regions);
	cudaError_t error;

	for (uint32_t i = 0; i < g->nqueues; i++) {
		ep_gda_shadow_one(&g->queue[i]);
	}
	error = cudaMemcpyAsync(g->qps, g->shadow, queues, cudaMemcpyHostToDevice, g->stream);
	if (error == cudaSuccess) {
		error = cudaMemsetAsync(g->regions_dev, 0, regions, g->stream);
	}
	if (error != cudaSuccess) {
		return ep_reason_set_cuda(why, error, "writing the table of queues");
	}
	return ep_gda_synchronize(g, g->timeout_ns) ||
	       ep_reason_set(why, "writing the table of queues takes too long");
}
