/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory for NICs. A GPU's is exported as a DMA-BUF if the kernel and both drivers can; else its
 * address is registered as it is, which works where nvidia-peermem is loaded.
 */
#include <cuda.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "core/cuda.h"
#include "core/log.h"
#include "gda/gda_memory.h"

typedef CUresult (*ep_cu_range_fn)(void *, CUdeviceptr, size_t, CUmemRangeHandleType,
				   unsigned long long);
typedef CUresult (*ep_cu_attr_fn)(const void *, CUpointer_attribute, CUdeviceptr);

static ep_cu_range_fn ep_cu_range;
static ep_cu_attr_fn ep_cu_set_attribute;
static pthread_once_t ep_cu_once = PTHREAD_ONCE_INIT;

static void ep_cu_init(void)
{
	(void)ep_driver_find("cuMemGetHandleForAddressRange", &ep_cu_range);
	(void)ep_driver_find("cuPointerSetAttribute", &ep_cu_set_attribute);
}

void ep_gda_sync_memops(void *p)
{
	unsigned int on = 1;

	pthread_once(&ep_cu_once, ep_cu_init);
	if (ep_cu_set_attribute) {
		ep_cu_set_attribute(&on, CU_POINTER_ATTRIBUTE_SYNC_MEMOPS, (CUdeviceptr)p);
	}
}

/*
 * Kernels read data once they see the signal that was written after it, and nothing flushes in
 * between: the GPU must show the NIC's writes in the order in which they came.
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

/* The pages around memory->p as a DMA-BUF, if that is possible. */
static void ep_gda_dmabuf_open(struct ep_nic_memory *memory)
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	const uintptr_t at = (uintptr_t)memory->p & ~(page - 1);
	const size_t size = (size_t)ep_round_up((uintptr_t)memory->p + memory->bytes - at, page);
	CUresult error;

	memory->fd = -1;
	if (!memory->gpu) {
		return;
	}
	pthread_once(&ep_cu_once, ep_cu_init);
	if (!ep_cu_range) {
		ep_reason_set(&memory->no_fd, "no DMA-BUF: the driver is too old");
		return;
	}
	error = ep_cu_range(&memory->fd, (CUdeviceptr)at, size, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD,
			    0);
	if (error != CUDA_SUCCESS || memory->fd < 0) {
		ep_reason_set(&memory->no_fd, "no DMA-BUF: CUDA error %d", (int)error);
		memory->fd = -1;
	}
	memory->offset = (uintptr_t)memory->p - at;
}

static void ep_gda_dmabuf_close(struct ep_nic_memory *memory)
{
	if (memory->fd >= 0) {
		close(memory->fd);
	}
}

struct ibv_mr *ep_gda_register(const struct ep_gda_nic *nic, void *p, uint64_t bytes,
			       unsigned int access, bool gpu, struct ep_reason *why)
{
	struct ep_nic_memory memory = { .p = p, .bytes = bytes, .gpu = gpu };
	struct ibv_mr *mr;

	ep_gda_dmabuf_open(&memory);
	mr = ep_nic_register(&nic->base, &memory, access, why);
	ep_gda_dmabuf_close(&memory);
	return mr;
}

/*
 * Queues lie at offsets of 4 KiB in a umem, and the device has an offset only in units of 1/64 of the
 * page it sees (UCX, uct_ib_mlx5_devx_umem: the same limit). Without a bound the kernel makes one
 * page of whatever lies together.
 */
static struct mlx5dv_devx_umem *ep_gda_umem_reg(const struct ep_nic *nic, void *p, uint64_t bytes,
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

static struct mlx5dv_devx_umem *ep_gda_umem_dmabuf(const struct ep_nic *nic,
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
	umem = ep_gda_umem_reg(nic, (void *)(uintptr_t)memory->offset, memory->bytes, memory->fd);
	if (!umem) {
		ep_reason_set(why, "DMA-BUF refused: %s", strerror(errno));
	}
	return umem;
}

struct mlx5dv_devx_umem *ep_gda_umem(const struct ep_gda_nic *nic, void *p, uint64_t bytes,
				     bool gpu, struct ep_reason *why)
{
	struct ep_nic_memory memory = { .p = p, .bytes = bytes, .gpu = gpu };
	const struct ep_nic *base = &nic->base;
	struct mlx5dv_devx_umem *umem = NULL;
	struct ep_reason first = { "" };
	char text[EP_NIC_ERROR_TEXT];

	ep_gda_dmabuf_open(&memory);
	if (gpu) {
		umem = ep_gda_umem_dmabuf(base, &memory, &first);
	}
	if (!umem && base->dv->mlx5dv_devx_umem_reg_ex) {
		umem = ep_gda_umem_reg(base, p, bytes, -1);
	}
	if (!umem) { /* kernels that know no bound: whether the offsets will do is seen in making queues */
		umem = base->dv->mlx5dv_devx_umem_reg(base->ctx, p, bytes, IBV_ACCESS_LOCAL_WRITE);
	}
	if (!umem) {
		ep_reason_set(why, "%s: queues cannot lie in %s memory: %s%s%.150s", base->name,
			      gpu ? "GPU" : "host", ep_nic_error_print(errno, text),
			      gpu ? " (is nvidia-peermem loaded?); " : "", first.text);
	}
	ep_gda_dmabuf_close(&memory);
	return umem;
}

static void ep_gda_heap_free(struct ep_gda *g)
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
 * The heap twice: once as data, which the fabric of PCIe may reorder if it is allowed to, and once
 * as signals and packets, which it must not.
 */
static bool ep_gda_heap_register(struct ep_gda *g, void *heap, uint64_t bytes,
				 struct ep_reason *why)
{
	for (int n = 0; n < g->nnics; n++) {
		struct ep_gda_nic *nic = &g->nic[n];
		unsigned int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				      IBV_ACCESS_REMOTE_READ |
				      (nic->base.atomics ? IBV_ACCESS_REMOTE_ATOMIC : 0);

		for (int i = 0; i < EP_MLX5_REGIONS; i++) {
			bool relaxed = i == EP_MLX5_REGION_HEAP && g->env.relaxed;

			nic->heap[i] = ep_gda_register(
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
struct ep_gda_keys {
	struct ep_verdict verdict;
	uint64_t addr, bytes;
	uint32_t rkey[EP_GDA_MAX_NICS][EP_MLX5_REGIONS];
};

_Static_assert(sizeof(struct ep_gda_keys) <= EP_BOOT_BYTES, "ep_gda_keys");

static void ep_gda_regions_fill(struct ep_gda *g, const struct ep_gda_keys *mine,
				const struct ep_gda_keys *all)
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

static ncclResult_t ep_gda_regions_publish(struct ep_gda *g, struct ep_boot *boot)
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
	struct ep_gda_keys keys, *all;
	ncclResult_t result;

	all = calloc((size_t)boot->nranks, sizeof(*all));
	if (mine == ncclSuccess && !all) {
		mine = ep_fail(ncclSystemError, "%s: out of host memory", what);
	}
	memset(&keys, 0, sizeof(keys));
	if (mine == ncclSuccess && gda && gda->bound) {
		mine = ep_fail(ncclInternalError, "%s: a heap is registered already", what);
	}
	if (mine == ncclSuccess && gda && !ep_gda_heap_register(gda, heap, bytes, &why)) {
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
		ep_gda_regions_fill(gda, &keys, all);
		mine = ep_gda_regions_publish(gda, boot);
	}
	EP_CHECK_GOTO(ep_boot_agree(boot, mine, what), err_free_heap);
	if (gda) {
		gda->bound = true;
	}
	free(all);
	return ncclSuccess;

err_free_heap:
	if (gda && !gda->bound) {
		ep_gda_heap_free(gda);
	}
	free(all);
	return result;
}

void ep_gda_unbind(struct ep_gda *gda)
{
	if (gda && gda->bound) {
		ep_gda_heap_free(gda);
		gda->bound = false;
	}
}
