/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory of real GPUs, reached by copies through the driver. On the virtual cluster all memory is
 * plain, and nothing of this is used.
 *
 * Writes are queued on one stream per GPU, in order; vn_gpu_settle() waits for them. What is read to
 * be sent is copied ahead (vn_gpu_stage), many requests per wait. `region` is any address that all
 * accesses to one registered region have in common: copies do not cross the border between two.
 */
#ifndef VN_GPU_H
#define VN_GPU_H

#include <stdbool.h>
#include <stdint.h>

struct vn_memory;
struct vn_gpu;
struct ep_mlx5_cqe;

/* 0: plain memory; 1: device memory, attached; negative: errno. `queue`: a NIC would keep queues. */
int vn_gpu_attach(struct vn_memory *m, bool queue);
/* If libvcluster is in this process: does it say that this is the memory of a device? */
bool vn_is_virtual_device(const void *p);
void vn_gpu_detach(struct vn_memory *m);

/* At once, after all that was queued. */
void vn_gpu_read(struct vn_gpu *gpu, uint8_t *to, const uint8_t *from, uint32_t bytes);
uint32_t vn_gpu_read32(struct vn_gpu *gpu, const uint8_t *from);
/* A copy that holds until the next call for this GPU. */
const uint8_t *vn_gpu_fetch(struct vn_gpu *gpu, const uint8_t *from, uint32_t bytes);

/* Is there a driver, and with it real GPUs? */
bool vn_gpu_driver(void);

/* Is anything attached? */
bool vn_gpu_any(void);

/* Queued. */
void vn_gpu_write(struct vn_gpu *gpu, const void *region, uint8_t *to, const uint8_t *from,
		  uint32_t bytes);
/* The copy can be read after vn_gpu_settle() and until the next write; NULL: no room before that. */
const uint8_t *vn_gpu_peek(struct vn_gpu *gpu, const uint8_t *from, uint32_t bytes);
void vn_gpu_write_cqe(struct vn_gpu *gpu, uint8_t *to, const struct ep_mlx5_cqe *cqe);
void vn_gpu_settle(void);

/* A copy that can be used after vn_gpu_staged() and until vn_gpu_unstage(); NULL: no room. */
uint8_t *vn_gpu_stage(struct vn_gpu *gpu, const void *region, const uint8_t *from, uint32_t bytes);
void vn_gpu_staged(void);
void vn_gpu_unstage(struct vn_gpu *gpu, uint8_t *staged);

#endif
