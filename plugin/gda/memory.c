/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that kernels, NIC and host share, and registrations of callers' memory. */
#include <cuda.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/cuda.h"
#include "core/log.h"
#include "gda/state.h"

#define EP_GDA_GPU_ALIGN (2u << 20) /* own allocation for the driver, so that only it is exported */
#define EP_GDA_UAR_NC 1u            /* mlx5dv.h: MLX5DV_UAR_ALLOC_TYPE_NC */
#define EP_GDA_UAR_BF 0u
#define EP_GDA_LINE 64u

/* ---- calls of the driver; NULL: it lacks that one ---- */

static CUresult (*cu_range)(void *, CUdeviceptr, size_t, CUmemRangeHandleType, unsigned long long);
static CUresult (*cu_extent)(CUdeviceptr *, size_t *, CUdeviceptr);
static CUresult (*cu_get_attribute)(void *, CUpointer_attribute, CUdeviceptr);
static CUresult (*cu_set_attribute)(const void *, CUpointer_attribute, CUdeviceptr);
static pthread_once_t cu_once = PTHREAD_ONCE_INIT;

static void cu_init(void)
{
	(void)ep_driver_find("cuMemGetHandleForAddressRange", &cu_range);
	(void)ep_driver_find("cuMemGetAddressRange", &cu_extent);
	(void)ep_driver_find("cuPointerGetAttribute", &cu_get_attribute);
	(void)ep_driver_find("cuPointerSetAttribute", &cu_set_attribute);
}

/*
 * ---- memory for NICs ----
 *
 * A GPU's memory is exported as a DMA-BUF if the kernel and both drivers can. Otherwise its address
 * is registered as it is, which works where nvidia-peermem is loaded.
 */

/* Makes copies to and from this allocation end before the call that makes them returns. */
static void sync_memops(void *p)
{
	unsigned int on = 1;

	pthread_once(&cu_once, cu_init);
	if (cu_set_attribute) {
		cu_set_attribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (CUdeviceptr)p);
	}
}

/*
 * Kernels read data once they see the signal that was written after it, without a flush in between.
 * So the GPU must show the NIC's writes in the order in which they came.
 */
bool ep_gda_ordering_check(const struct ep_gda *g, struct ep_reason *why)
{
	const int need = cudaGPUDirectRDMAWritesOrderingOwner;
	int have = 0;
	cudaError_t error =
		cudaDeviceGetAttribute(&have, cudaDevAttrGPUDirectRDMAWritesOrdering, g->device);

	if (error != cudaSuccess) {
		(void)cudaGetLastError();
		return ep_reason_set(
			why,
			"GPU %d does not report whether it shows a NIC's writes in order: "
			"%s; a newer driver is needed",
			g->device, cudaGetErrorString(error));
	}
	if (have < need) {
		return ep_reason_set(
			why,
			"GPU %d may show a NIC's writes out of order "
			"(cudaDevAttrGPUDirectRDMAWritesOrdering is %d, at least %d is "
			"needed) and this library does not flush: use a GPU of compute "
			"capability 9.0 or later, or keep the group on one node",
			g->device, have, need);
	}
	return true;
}

/* Exports the pages around memory->p as a DMA-BUF. On failure memory->no_fd has the reason. */
static void dmabuf_open(struct ep_nic_memory *memory)
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	const uintptr_t at = (uintptr_t)memory->p & ~(page - 1);
	const size_t size = (size_t)ep_round_up((uintptr_t)memory->p + memory->bytes - at, page);
	CUresult error;

	memory->fd = -1;
	if (!memory->gpu) {
		return;
	}
	pthread_once(&cu_once, cu_init);
	if (!cu_range) {
		ep_reason_set(&memory->no_fd, "no DMA-BUF: the driver is too old");
		return;
	}
	error = cu_range(&memory->fd, (CUdeviceptr)at, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
			 0);
	if (error != CUDA_SUCCESS || memory->fd < 0) {
		ep_reason_set(&memory->no_fd, "no DMA-BUF: CUDA error %d", (int)error);
		memory->fd = -1;
	}
	memory->offset = (uintptr_t)memory->p - at;
}

static void dmabuf_close(struct ep_nic_memory *memory)
{
	if (memory->fd >= 0) {
		close(memory->fd);
	}
}

/* Registers memory with a NIC. Returns NULL, with *why, on failure. */
static struct ibv_mr *gda_register(const struct ep_gda_nic *nic, void *p, uint64_t bytes,
				   unsigned int access, bool gpu, struct ep_reason *why)
{
	struct ep_nic_memory memory = { .p = p, .bytes = bytes, .gpu = gpu };
	struct ibv_mr *mr;

	dmabuf_open(&memory);
	mr = ep_nic_register(&nic->base, &memory, access, why);
	dmabuf_close(&memory);
	return mr;
}

/*
 * Registers memory of pages no larger than the host's. Returns NULL with errno on failure. Queues
 * begin every 4 KiB of a umem, but the device takes offsets only in units of 1/64 of its page (UCX
 * has the same limit: uct_ib_mlx5_devx_umem). Without a bound the kernel joins adjacent pages to
 * one.
 */
static struct mlx5dv_devx_umem *umem_reg(const struct ep_nic *nic, void *p, uint64_t bytes,
					 int dmabuf_fd)
{
	struct mlx5dv_devx_umem_in in = {
		.addr = p,
		.size = bytes,
		.access = IBV_ACCESS_LOCAL_WRITE,
		.pgsz_bitmap = (uint64_t)sysconf(_SC_PAGESIZE),
	};

	if (dmabuf_fd >= 0) {
		in.comp_mask = MLX5DV_UMEM_MASK_DMABUF;
		in.dmabuf_fd = dmabuf_fd;
	}
	return nic->dv->mlx5dv_devx_umem_reg_ex(nic->ctx, &in);
}

/* Registers GPU memory for queues by its DMA-BUF. Returns NULL, with *why, on failure. */
static struct mlx5dv_devx_umem *umem_dmabuf(const struct ep_nic *nic,
					    const struct ep_nic_memory *memory,
					    struct ep_reason *why)
{
	struct mlx5dv_devx_umem *umem;

	if (!nic->dv->mlx5dv_devx_umem_reg_ex) {
		ep_reason_set(why, "no DMA-BUF: libmlx5 is too old");
		return NULL;
	}
	if (memory->fd < 0) {
		*why = memory->no_fd;
		return NULL;
	}
	umem = umem_reg(nic, (void *)(uintptr_t)memory->offset, memory->bytes, memory->fd);
	if (!umem) {
		ep_reason_set(why, "DMA-BUF refused: %s", strerror(errno));
	}
	return umem;
}

/* Registers memory for queues. Returns NULL, with *why, on failure. */
static struct mlx5dv_devx_umem *gda_umem(const struct ep_gda_nic *nic, void *p, uint64_t bytes,
					 bool gpu, struct ep_reason *why)
{
	struct ep_nic_memory memory = { .p = p, .bytes = bytes, .gpu = gpu };
	const struct ep_nic *base = &nic->base;
	struct mlx5dv_devx_umem *umem = NULL;
	struct ep_reason first = { "" };
	char text[EP_NIC_ERROR_TEXT];

	dmabuf_open(&memory);
	if (gpu) {
		umem = umem_dmabuf(base, &memory, &first);
	}
	if (!umem && base->dv->mlx5dv_devx_umem_reg_ex) {
		umem = umem_reg(base, p, bytes, -1);
	}
	if (!umem) { /* kernels that know no bound: making queues shows whether the offsets fit */
		umem = base->dv->mlx5dv_devx_umem_reg(base->ctx, p, bytes, IBV_ACCESS_LOCAL_WRITE);
	}
	if (!umem) {
		ep_reason_set(why, "%s: it cannot use queues in %s memory: %s%s%.150s", base->name,
			      gpu ? "GPU" : "host", ep_nic_error_print(errno, text),
			      gpu ? " (is nvidia-peermem loaded?); " : "", first.text);
	}
	dmabuf_close(&memory);
	return umem;
}

/* ---- queues ---- */

static bool reason_set_cuda(struct ep_reason *why, cudaError_t error, const char *what)
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

static bool alloc_gpu(struct ep_gda *g, struct ep_gda_queue_memory *memory, struct ep_reason *why)
{
	cudaError_t error;

	memory->bytes = ep_round_up(memory->bytes, EP_GDA_GPU_ALIGN);
	error = cudaMalloc((void **)&memory->dev, memory->bytes);
	if (error != cudaSuccess) {
		memory->dev = NULL;
		return reason_set_cuda(why, error, "no GPU memory for queues");
	}
	sync_memops(memory->dev);
	error = cudaMemsetAsync(memory->dev, 0, memory->bytes, g->stream);
	for (uint64_t at = 0; error == cudaSuccess && at + EP_GDA_PAGE <= memory->bytes;
	     at += ep_gda_stride(g)) {
		error = cudaMemsetAsync(memory->dev + at + EP_GDA_AT_CQE, 0xff,
					sizeof(struct ep_mlx5_cqe), g->stream);
	}
	if (error != cudaSuccess) {
		return reason_set_cuda(why, error, "clearing queues");
	}
	return ep_gda_synchronize(g, g->timeout_ns) ||
	       ep_reason_set(why, "clearing queues takes too long");
}

static bool alloc_host(struct ep_gda *g, struct ep_gda_queue_memory *memory, struct ep_reason *why)
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
 * Lets the GPU write the doorbell register. Returns false, with *why, on failure. A register is I/O
 * memory. The page of a NIC made of software is ordinary memory, which CUDA registers only as such.
 */
static bool uar_map(struct ep_gda_nic *nic, struct ep_reason *why)
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
		return reason_set_cuda(why, error, "the doorbell has no device address");
	}
	nic->db = (uint64_t *)(dev + (reg - (uintptr_t)page));
	return true;
}

/*
 * Gets a doorbell page, and maps it for the GPU if kernels ring. Returns false, with *why, on
 * failure.
 */
static bool uar_open(struct ep_gda *g, struct ep_gda_nic *nic, struct ep_reason *why)
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
	return g->mode == EP_GDA_CPU_DB || nic->db || uar_map(nic, why);
}

bool ep_gda_queue_memory_open(struct ep_gda *g, struct ep_gda_nic *nic, struct ep_reason *why)
{
	struct ep_gda_queue_memory *s = &nic->queue_memory;
	bool gpu = g->mode == EP_GDA_GPU;

	s->bytes = ep_max_u64(nic->queues, 1) * ep_gda_stride(g);
	if (g->mode == EP_GDA_CPU_PROXY) {
		if (!alloc_host(g, s, why)) {
			return false;
		}
		s->mr = gda_register(nic, s->host, s->bytes, IBV_ACCESS_LOCAL_WRITE, false, why);
		return s->mr && ep_gda_verbs_cq(g, nic, why);
	}
	if (!nic->base.devx) {
		return ep_reason_set(why, "%s:%d: %.200s", nic->base.name, nic->base.port,
				     nic->base.no_devx.text);
	}
	/*
	 * The doorbell comes first: it is cheap to try, and most machines that refuse a mode refuse
	 * it.
	 */
	if (!uar_open(g, nic, why)) {
		return false;
	}
	if (gpu ? !alloc_gpu(g, s, why) : !alloc_host(g, s, why)) {
		return false;
	}
	s->umem = gda_umem(nic, gpu ? s->dev : s->host, s->bytes, gpu, why);
	return s->umem != NULL;
}

/* Logs the error of a call that ends something. */
static void cuda_done(cudaError_t error, const char *what)
{
	if (error != cudaSuccess) {
		(void)cudaGetLastError();
		EP_INFO(EP_LOG_NET, "%s: %s", what, cudaGetErrorString(error));
	}
}

/* Destroys the NIC's objects for the memory of its queues. */
static void queue_memory_end(struct ep_gda_nic *nic)
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

static void uar_free(struct ep_gda_nic *nic)
{
	if (nic->uar) {
		nic->base.dv->mlx5dv_devx_free_uar(nic->uar);
		nic->uar = NULL;
	}
}

void ep_gda_queue_memory_refuse(struct ep_gda_nic *nic)
{
	queue_memory_end(nic);
	if (!nic->uar_mapped) {
		uar_free(nic);
	}
	if (nic->queue_memory.dev) {
		nic->refused[nic->nrefused++] = nic->queue_memory;
	}
	memset(&nic->queue_memory, 0, sizeof(nic->queue_memory));
}

static void queue_memory_free(struct ep_gda *g, struct ep_gda_queue_memory *memory)
{
	if (memory->host && (!g->keep_cuda || g->ended)) {
		ep_pinned_free(&memory->pinned, g->ended);
	} else if (memory->dev && !memory->host && !g->keep_cuda) {
		cuda_done(cudaFree(memory->dev), "freeing queues");
	}
	memset(memory, 0, sizeof(*memory));
}

void ep_gda_queue_memory_close(struct ep_gda *g, struct ep_gda_nic *nic)
{
	queue_memory_end(nic);
	if (nic->uar_mapped && !g->keep_cuda) {
		uintptr_t reg = (uintptr_t)nic->uar->reg_addr;

		cuda_done(cudaHostUnregister((void *)(reg & ~(uintptr_t)(EP_MLX5_UAR_BYTES - 1))),
			  "unmapping a doorbell");
	}
	if (nic->uar_mapped && g->keep_cuda && !g->ended) {
		nic->keep = true; /* CUDA still has the page */
	} else {
		uar_free(nic);
	}
	queue_memory_free(g, &nic->queue_memory);
	while (nic->nrefused) {
		queue_memory_free(g, &nic->refused[--nic->nrefused]);
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

/* ---- tables and words, which each mode has ---- */

/* Where the parts of the pinned block begin. */
struct pinned_at {
	uint64_t down, sink, scratch, word, record, shadow, bytes;
};

static struct pinned_at pinned_layout(const struct ep_gda *g)
{
	struct pinned_at at = { 0 };

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
	struct pinned_at at = pinned_layout(g);
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
		return reason_set_cuda(why, error, "no stream");
	}
	if (!ep_pinned_alloc(&g->pinned, at.bytes, why)) {
		return false;
	}
	error = cudaMalloc((void **)&g->qps, queues);
	if (error == cudaSuccess) {
		error = cudaMalloc((void **)&g->regions_dev, regions);
	}
	if (error != cudaSuccess) {
		return reason_set_cuda(why, error, "no memory for the table of queues");
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
		g->nic[n].sink = gda_register(&g->nic[n], g->pinned.host + at.sink, EP_GDA_PAGE,
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
		cuda_done(g->regions_dev ? cudaFree(g->regions_dev) : cudaSuccess,
			  "freeing the table of keys");
		cuda_done(g->qps ? cudaFree(g->qps) : cudaSuccess, "freeing the table of queues");
		cuda_done(g->stream ? cudaStreamDestroy(g->stream) : cudaSuccess,
			  "destroying a stream");
	}
	if (!g->keep_cuda || g->ended) {
		ep_pinned_free(&g->pinned, g->ended);
	}
	free(g->regions);
}

static unsigned char *gda_dev(const struct ep_gda *g, const void *pinned)
{
	return g->pinned.dev + ((const unsigned char *)pinned - g->pinned.host);
}

/* Writes the queue as kernels see it, into the host copy of the table. */
static void shadow_one(struct ep_gda_queue *queue)
{
	struct ep_gda *g = queue->gda;
	struct ep_mlx5_qp *s = &g->shadow[(size_t)queue->peer * g->queues + queue->index];
	unsigned char *page = queue->nic->queue_memory.dev + queue->slot * ep_gda_stride(g);
	struct pinned_at at = pinned_layout(g);

	queue->shadow = s;
	s->sq = (struct ep_mlx5_wqe *)(page + EP_GDA_PAGE);
	s->cqe = (const struct ep_mlx5_cqe *)(page + EP_GDA_AT_CQE);
	s->dbr = (struct ep_mlx5_dbr *)(page + EP_GDA_AT_DBR);
	s->db = ep_gda_handover_index(g->mode) ? (uint64_t *)gda_dev(g, queue->word)
					       : queue->nic->db;
	s->local = g->regions_dev + ep_gda_local_regions(ep_gda_nic_index(g, queue->nic));
	s->remote = g->regions_dev + ep_gda_remote_regions(queue->peer, queue->remote_nic);
	s->record = (struct ep_mlx5_error *)gda_dev(g, queue->record);
	s->stop = (const uint32_t *)gda_dev(g, g->down + queue->peer);
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
		shadow_one(&g->queue[i]);
	}
	error = cudaMemcpyAsync(g->qps, g->shadow, queues, cudaMemcpyHostToDevice, g->stream);
	if (error == cudaSuccess) {
		error = cudaMemsetAsync(g->regions_dev, 0, regions, g->stream);
	}
	if (error != cudaSuccess) {
		return reason_set_cuda(why, error, "writing the table of queues");
	}
	return ep_gda_synchronize(g, g->timeout_ns) ||
	       ep_reason_set(why, "writing the table of queues takes too long");
}

/* ---- the heap ---- */

static void heap_free(struct ep_gda *g)
{
	for (int n = 0; n < g->nnics; n++) {
		for (int i = 0; i < EP_MLX5_REGIONS; i++) {
			struct ibv_mr *mr = g->nic[n].heap[i];

			if (mr && g->nic[n].base.v->ibv_dereg_mr(mr) != 0) {
				EP_INFO(EP_LOG_NET, "%s: memory stays registered: %s",
					g->nic[n].base.name, strerror(errno));
			}
			g->nic[n].heap[i] = NULL;
		}
	}
}

/*
 * Registers the heap twice: as data, which PCIe may reorder where the user allows it, and as
 * signals and packets, which PCIe must keep in order. Returns false, with *why, on failure.
 */
static bool heap_register(struct ep_gda *g, void *heap, uint64_t bytes, struct ep_reason *why)
{
	for (int n = 0; n < g->nnics; n++) {
		struct ep_gda_nic *nic = &g->nic[n];
		unsigned int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				      IBV_ACCESS_REMOTE_READ |
				      (nic->base.atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0);

		for (int i = 0; i < EP_MLX5_REGIONS; i++) {
			bool relaxed = i == EP_MLX5_REGION_HEAP && g->env.relaxed;

			nic->heap[i] = gda_register(
				nic, heap, bytes,
				access | (relaxed ? IBV_ACCESS_RELAXED_ORDERING : 0), true, why);
			if (!nic->heap[i]) {
				return false;
			}
		}
	}
	return true;
}

/* The message of a rank to the others about its heap. */
struct keys {
	struct ep_verdict verdict;
	uint64_t addr, bytes;
	uint32_t rkey[EP_GDA_MAX_NICS][EP_MLX5_REGIONS];
};

_Static_assert(sizeof(struct keys) <= EP_BOOT_BYTES, "keys");

/* Fills the tables of keys: those of this rank's heap, and those that peers have sent. */
static void regions_fill(struct ep_gda *g, const struct keys *mine, const struct keys *all)
{
	for (int n = 0; n < g->nnics; n++) {
		struct ep_mlx5_region *r = g->regions + ep_gda_local_regions(n);

		for (int i = 0; i < EP_MLX5_REGIONS; i++) {
			r[i] = (struct ep_mlx5_region){ mine->addr, mine->bytes,
							g->nic[n].heap[i]->lkey, 0 };
		}
	}
	for (int p = 0; p < g->nranks; p++) {
		for (int n = 0; g->remote[p] && n < EP_GDA_MAX_NICS; n++) {
			struct ep_mlx5_region *r = g->regions + ep_gda_remote_regions(p, n);

			for (int i = 0; i < EP_MLX5_REGIONS; i++) {
				r[i] = (struct ep_mlx5_region){ all[p].addr, all[p].bytes, 0,
								all[p].rkey[n][i] };
			}
		}
	}
}

/* Writes the tables of keys to the GPU. */
static ncclResult_t regions_publish(struct ep_gda *g, struct ep_boot *boot)
{
	size_t bytes = ep_gda_region_count(g) * sizeof(*g->regions);

	EP_CUDA(cudaMemcpyAsync(g->regions_dev, g->regions, bytes, cudaMemcpyHostToDevice,
				boot->stream),
		"writing the keys of remote memory");
	EP_CUDA(cudaStreamSynchronize(boot->stream), "writing the keys of remote memory");
	return ncclSuccess;
}

ncclResult_t ep_gda_bind(struct ep_gda *gda, struct ep_boot *boot, void *heap, uint64_t bytes,
			 ncclResult_t mine)
{
	static const char what[] = "registering the heap with the NICs";
	struct ep_reason why = { "" };
	struct keys keys, *all;
	ncclResult_t result;

	all = calloc((size_t)boot->nranks, sizeof(*all));
	if (mine == ncclSuccess && !all) {
		mine = ep_fail(ncclSystemError, "%s: out of host memory", what);
	}
	memset(&keys, 0, sizeof(keys));
	if (mine == ncclSuccess && gda && gda->bound) {
		mine = ep_fail(ncclInternalError, "%s: a heap is registered already", what);
	}
	if (mine == ncclSuccess && gda && !heap_register(gda, heap, bytes, &why)) {
		mine = ep_fail(ncclSystemError, "%s: %s", what, why.text);
	}
	for (int n = 0; mine == ncclSuccess && gda && n < gda->nnics; n++) {
		for (int i = 0; i < EP_MLX5_REGIONS; i++) {
			keys.rkey[n][i] = gda->nic[n].heap[i]->rkey;
		}
	}
	keys.verdict = ep_verdict_make(mine);
	keys.addr = (uintptr_t)heap;
	keys.bytes = bytes;
	EP_CHECK_GOTO(ep_boot_verdicts(boot, &keys, all, sizeof(keys), what), err_free_heap);
	if (gda) {
		regions_fill(gda, &keys, all);
		mine = regions_publish(gda, boot);
	}
	EP_CHECK_GOTO(ep_boot_agree(boot, mine, what), err_free_heap);
	if (gda) {
		gda->bound = true;
	}
	free(all);
	return ncclSuccess;

err_free_heap:
	if (gda && !gda->bound) {
		heap_free(gda);
	}
	free(all);
	return result;
}

void ep_gda_unbind(struct ep_gda *gda)
{
	if (gda && gda->bound) {
		heap_free(gda);
		gda->bound = false;
	}
}

/*
 * ---- callers' memory that NICs read from ----
 *
 * The first use registers the whole allocation. It stays registered while it lives, for the group's
 * life at most, because queued kernels and graphs may hold the keys. The driver's number of an
 * allocation shows whether another one has its addresses now: no two allocations of a process have
 * the same number.
 */

#define EP_GDA_USER_MRS 16

/*
 * An allocation, with the registration of each NIC; or all of them are NULL, and `why` has the
 * reason.
 */
struct ep_gda_user_mr {
	uintptr_t start;
	uint64_t bytes; /* 0: unused */
	uint64_t id;
	struct ibv_mr *mr[EP_GDA_MAX_NICS];
	struct ep_reason why;
};

/*
 * Writes the bounds of the allocation of [p, p + bytes) to *mr, and its number. Returns NULL, or
 * the reason why it cannot. (CU_POINTER_ATTRIBUTE_RANGE_START_ADDR reports reserved addresses,
 * where several allocations or none may be mapped.)
 */
static const char *user_mr_ask(uintptr_t p, uint64_t bytes, struct ep_gda_user_mr *mr)
{
	unsigned long long id = 0;
	CUdeviceptr start = 0;
	size_t size = 0;

	pthread_once(&cu_once, cu_init);
	if (!cu_get_attribute || !cu_extent ||
	    cu_get_attribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, p) != CUDA_SUCCESS ||
	    cu_extent(&start, &size, p) != CUDA_SUCCESS) {
		return "the driver does not report its allocation";
	}
	if (p < start || bytes > size || p - start > size - bytes) {
		return "it spans several allocations";
	}
	mr->start = (uintptr_t)start;
	mr->bytes = size;
	mr->id = id;
	return NULL;
}

/* Returns whether two entries are of one allocation. */
static bool user_mr_same(const struct ep_gda_user_mr *a, const struct ep_gda_user_mr *b)
{
	return a->id == b->id && a->start == b->start && a->bytes == b->bytes;
}

/* Ends the registrations of an allocation. */
static void user_mr_take_back(struct ep_gda *g, struct ep_gda_user_mr *mr)
{
	for (int n = 0; n < EP_GDA_MAX_NICS; n++) {
		if (mr->mr[n] && g->nic[n].base.v->ibv_dereg_mr(mr->mr[n]) != 0) {
			EP_INFO(EP_LOG_NET, "%s: memory stays registered: %s", g->nic[n].base.name,
				strerror(errno));
		}
		mr->mr[n] = NULL;
	}
}

/* Registers an allocation with all NICs. On failure no NIC has it, and mr->why has the reason. */
static void user_mr_register(struct ep_gda *g, struct ep_gda_user_mr *mr)
{
	for (int n = 0; n < g->nnics; n++) {
		mr->mr[n] = gda_register(&g->nic[n], (void *)mr->start, mr->bytes,
					 g->env.relaxed ? IBV_ACCESS_RELAXED_ORDERING : 0, true,
					 &mr->why);
		if (!mr->mr[n]) {
			user_mr_take_back(g, mr);
			return;
		}
	}
}

/*
 * Returns room for another allocation, or NULL. It ends the registrations of allocations that were
 * freed: their owner has waited for all that used them, and the memory is not free while a NIC has
 * it registered.
 */
static struct ep_gda_user_mr *user_mr_room(struct ep_gda *g)
{
	struct ep_gda_user_mr *room = NULL;

	for (int i = EP_GDA_USER_MRS - 1; i >= 0; i--) {
		struct ep_gda_user_mr *s = &g->sources[i], now = { 0 };

		if (s->bytes && (user_mr_ask(s->start, s->bytes, &now) || !user_mr_same(s, &now))) {
			user_mr_take_back(g, s);
			s->bytes = 0;
		}
		if (!s->bytes) {
			room = s;
		}
	}
	return room;
}

/* Returns the allocation's entry, which it makes if there is none, or NULL without room. */
static struct ep_gda_user_mr *user_mr_entry(struct ep_gda *g, const struct ep_gda_user_mr *want)
{
	struct ep_gda_user_mr *s;

	for (int i = 0; i < EP_GDA_USER_MRS; i++) {
		if (user_mr_same(&g->sources[i], want)) {
			return &g->sources[i];
		}
	}
	s = user_mr_room(g);
	if (s) {
		*s = *want;
		user_mr_register(g, s);
	}
	return s;
}

const char *ep_gda_user_mr_find(struct ep_gda *g, void *p, uint64_t bytes,
				struct ep_mlx5_source *out)
{
	struct ep_gda_user_mr want = { 0 }, *s;
	const char *why = user_mr_ask((uintptr_t)p, bytes, &want);

	if (why) {
		return why;
	}
	if (!g->sources) {
		g->sources = calloc(EP_GDA_USER_MRS, sizeof(*g->sources));
	}
	if (!g->sources) {
		return "out of host memory";
	}
	s = user_mr_entry(g, &want);
	if (!s) {
		return "NICs read from 16 other allocations, the limit of a group";
	}
	if (!s->mr[0]) {
		return s->why.text;
	}
	out->addr = (uintptr_t)p;
	for (int n = 0; n < g->nnics; n++) {
		out->lkey[n] = s->mr[n]->lkey;
	}
	return NULL;
}

void ep_gda_user_mrs_free(struct ep_gda *g)
{
	for (int i = 0; g && g->sources && i < EP_GDA_USER_MRS; i++) {
		user_mr_take_back(g, &g->sources[i]);
	}
	if (g) {
		free(g->sources);
		g->sources = NULL;
	}
}
