/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of real GPUs. */
#include <dlfcn.h>
#include <errno.h>
#include "nic.h"
#include "nic_gpu.h"

/* The virtual cluster's runtime, if this process has it: is this the memory of a device? */
static bool vn_is_virtual_device(const void *p)
{
	int (*attributes)(void *, const void *) =
		(int (*)(void *, const void *))dlsym(RTLD_DEFAULT, "cudaPointerGetAttributes");
	int attr[32] = { 0 }; /* begins with the type: 2 is device memory */

	return attributes && !attributes(attr, p) && attr[0] == 2;
}

int vn_gpu_attach(struct vn_memory *m, bool queue)
{
	if (queue && !vn_config.gpu_umem && vn_is_virtual_device(m->at)) {
		return -EFAULT;
	}
	return 0;
}

void vn_gpu_detach(struct vn_memory *m)
{
	(void)m;
}

void vn_gpu_read(struct vn_gpu *gpu, uint8_t *to, const uint8_t *from, uint32_t bytes)
{
	(void)gpu;
	memcpy(to, from, bytes);
}

uint32_t vn_gpu_read32(struct vn_gpu *gpu, const uint8_t *from)
{
	uint32_t value;

	vn_gpu_read(gpu, (uint8_t *)&value, from, 4);
	return value;
}

void vn_gpu_write(struct vn_gpu *gpu, uint8_t *to, const uint8_t *from, uint32_t bytes)
{
	(void)gpu;
	memcpy(to, from, bytes);
}

void vn_gpu_write_cqe(struct vn_gpu *gpu, uint8_t *to, const struct ep_mlx5_cqe *cqe)
{
	vn_gpu_write(gpu, to, (const uint8_t *)cqe, sizeof(*cqe));
}

const uint8_t *vn_gpu_fetch(struct vn_gpu *gpu, const uint8_t *from, uint32_t bytes)
{
	(void)gpu;
	(void)bytes;
	return from;
}
