/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ranges for profilers (NVTX), in the domain "Switchyard": what an operation is, with its tokens
 * and bytes. Without a tool that listens they cost one look at a pointer. The library that NVTX
 * loads is the tool's own; where CUDA's headers have no NVTX there are no ranges.
 */
#ifndef EP_CORE_RANGE_H
#define EP_CORE_RANGE_H

#include <stdint.h>

/* Of this thread, until the end. bytes 0: they are not known. */
void ep_range_begin(const char *name, uint64_t tokens, uint64_t bytes);
void ep_range_end(void);

#endif
