/* SPDX-License-Identifier: Apache-2.0 */
/* Callers' structs of any API version. */
#ifndef EP_EP_STRUCT_H
#define EP_EP_STRUCT_H

#include "core/error.h"
#include "nccl_ep.h"

/*
 * Copies a caller's struct into `own`, which is zeroed first. The caller's may end earlier (its
 * fields beyond count as zero) or later (its tail is ignored), but not before `v1_size`.
 * own->size afterwards is the caller's size. NULL is ncclInvalidArgument.
 */
ncclResult_t ep_struct_import(void *own, size_t own_size, const void *caller, unsigned int v1_size,
			      const char *name);

/* The same, but NULL gives all zero, with size 0. */
ncclResult_t ep_struct_import_optional(void *own, size_t own_size, const void *caller,
				       unsigned int v1_size, const char *name);

/* Writes as much of `own` as the caller's struct has room for; its size stays what it was. */
void ep_struct_export(void *caller, void *own, size_t own_size, unsigned int caller_size);

#define EP_IMPORT(own, caller, prefix)                                                             \
	ep_struct_import(own, sizeof(*(own)), caller, prefix##_V1_SIZE, #caller)
#define EP_IMPORT_OPTIONAL(own, caller, prefix)                                                    \
	ep_struct_import_optional(own, sizeof(*(own)), caller, prefix##_V1_SIZE, #caller)

#endif
