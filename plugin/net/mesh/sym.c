/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that all ranks of a mesh register together. */
#include <stdlib.h>
#include "core/log.h"
#include "net/mesh/rma.h"

static void ep_net_sym_drop(struct ep_net_sym *sym)
{
	if (sym->mr) {
		ep_net_mr_free(sym->mr);
	}
	ep_net_mesh_put(sym->mesh);
	free(sym->end);
	free(sym);
}

ncclResult_t ep_net_sym_new(struct ep_net_mesh *mesh, const struct ep_net_memory *memory,
			    void **handle)
{
	struct ep_net_sym_end own = { .base = (uintptr_t)memory->data, .size = memory->size };
	struct ep_net_sym *s = calloc(1, sizeof(*s));
	ncclResult_t result;

	if (!s) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	ep_net_mesh_get(mesh);
	s->mesh = mesh;
	s->end = calloc(mesh->nranks, sizeof(*s->end));
	result = s->end ? ep_net_mr_new(mesh->nic, memory, &s->mr)
			: ep_fail(ncclSystemError, "out of host memory");
	if (result == ncclSuccess) {
		ep_net_mesh_keys(mesh, s->mr->rkey, own.rkey);
	}
	EP_CHECK_GOTO(ep_net_mesh_exchange(mesh, EP_NET_ROUND_MEMORY, result, &own, sizeof(own),
					   s->end),
		      err_drop);
	*handle = ep_net_handle_new(EP_NET_SYM, s);
	if (!*handle) {
		result = ep_fail(ncclSystemError, "no more than %u registrations",
				 1u << EP_NET_SLOT_BITS);
		goto err_drop;
	}
	return ncclSuccess;

err_drop:
	ep_net_sym_drop(s);
	return result;
}

ncclResult_t ep_net_sym_free(void *handle)
{
	struct ep_net_sym *s;

	if (!handle) {
		return ncclSuccess;
	}
	s = ep_net_handle_drop(EP_NET_SYM, handle);
	if (!s) {
		return ep_fail(ncclInvalidArgument,
			       "%p is no registration of memory, or was deregistered before",
			       handle);
	}
	ep_net_sym_drop(s);
	return ncclSuccess;
}
