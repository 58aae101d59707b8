/* SPDX-License-Identifier: Apache-2.0 */
/* The driver's virtual memory. */
#ifndef EP_PEER_VMM_H
#define EP_PEER_VMM_H

#include <cuda.h>
#include "core/error.h"

/* Whether the driver has what windows need. */
bool ep_vmm_driver(struct ep_reason *why);

/* The driver's handle of the memory that is mapped at p, as a name for it; false: none is. */
bool ep_vmm_handle(void *p, CUmemGenericAllocationHandle *handle);

/* Maps the memory that is at `p` at addresses of its own. *step is what failed. */
CUresult ep_vmm_map_again(void *p, size_t bytes, int device, void **out, const char **step);
void ep_vmm_unmap(void *base, uint64_t bytes);

#endif
