/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs of callers of any API version are copied in, and results out, by the size that the
 * caller's struct has.
 */
#include <string.h>
#include "ep/ep.h"

struct struct_prefix {
	unsigned int size;
	unsigned int magic;
};

ncclResult_t ep_struct_import(void *own, size_t own_size, const void *caller, unsigned int v1_size,
			      const char *name)
{
	struct struct_prefix prefix;

	if (!caller) {
		return ep_fail(ncclInvalidArgument,
			       "%s is NULL: pass a struct made with its _INIT "
			       "macro",
			       name);
	}
	memcpy(&prefix, caller, sizeof(prefix));
	if (prefix.magic != NCCL_EP_MAGIC) {
		return ep_fail(ncclInvalidArgument,
			       "%s->magic is 0x%x instead of 0x%x: initialise it with its _INIT "
			       "macro",
			       name, prefix.magic, NCCL_EP_MAGIC);
	}
	if (prefix.size < v1_size) {
		return ep_fail(ncclInvalidArgument,
			       "%s->size is %u, less than the %u of API version 1: initialise it "
			       "with its _INIT macro",
			       name, prefix.size, v1_size);
	}
	memset(own, 0, own_size);
	memcpy(own, caller, ep_min_u64(prefix.size, own_size));
	return ncclSuccess;
}

ncclResult_t ep_struct_import_optional(void *own, size_t own_size, const void *caller,
				       unsigned int v1_size, const char *name)
{
	if (!caller) {
		memset(own, 0, own_size);
		return ncclSuccess;
	}
	return ep_struct_import(own, own_size, caller, v1_size, name);
}

void ep_struct_export(void *caller, void *own, size_t own_size, unsigned int caller_size)
{
	memcpy(own, &caller_size, sizeof(caller_size));
	memcpy(caller, own, ep_min_u64(own_size, caller_size));
}
