/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of real GPUs. On the virtual cluster all memory is plain. */
#ifndef VC_NIC_GPU_H
#define VC_NIC_GPU_H

#include <stdbool.h>
#include <stdint.h>

struct vn_memory;
struct vn_gpu;
struct ep_mlx5_cqe;

/* 0: plain memory; 1: device memory, attached; negative: errno. `queue`: a NIC would keep queues. */
int vn_gpu_attach(struct vn_memory *m, bool queue);
void vn_gpu_detach(struct vn_memory *m);
void vn_gpu_read(struct vn_gpu *gpu, uint8_t *to, const uint8_t *from, uint32_t bytes);
uint32_t vn_gpu_read32(struct vn_gpu *gpu, const uint8_t *from);
void vn_gpu_write(struct vn_gpu *gpu, uint8_t *to, const uint8_t *from, uint32_t bytes);
/* A copy for this turn. */
const uint8_t *vn_gpu_fetch(struct vn_gpu *gpu, const uint8_t *from, uint32_t bytes);
void vn_gpu_write_cqe(struct vn_gpu *gpu, uint8_t *to, const struct ep_mlx5_cqe *cqe);

#endif
