/* SPDX-License-Identifier: Apache-2.0 */
/* Kernels of any algorithm. */
#ifndef EP_EP_KERNEL_H
#define EP_EP_KERNEL_H

#include "core/error.h"
#include "nccl_ep.h"

/* Loads kernels, which also shows whether there are any for this GPU. */
ncclResult_t ep_kernels_load(const void *const *kernels, size_t count);

/* Lets blocks of the kernels have all shared memory of the device. *bytes: besides what the compiler gave any. */
ncclResult_t ep_kernels_share(const void *const *kernels, size_t count, int device,
			      uint32_t *bytes);

/* `args` is the kernel's one argument struct; `what` is for errors. */
ncclResult_t ep_kernel_launch(const void *kernel, void *args, uint32_t blocks, uint32_t threads,
			      uint32_t shared_bytes, cudaStream_t stream, const char *what);

#endif
