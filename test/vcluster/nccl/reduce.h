/* SPDX-License-Identifier: Apache-2.0 */
/* Element types and reductions. */
#ifndef VC_REDUCE_H
#define VC_REDUCE_H

#include <stddef.h>
#include <stdint.h>
#include <nccl.h>

size_t vc_type_size(ncclDataType_t type);
/* The element-wise reduction of n parts that lie `stride` bytes apart. */
void vc_reduce(void *out, const uint8_t *parts, size_t stride, int nparts, size_t count,
	       ncclDataType_t type, ncclRedOp_t op);

#endif
