/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that all ranks of a mesh register together. */
#include <stdlib.h>
#include "core/log.h"
#include "net/mesh/sym.h"

static void ep_net_sym_drop(void *object)
{
	struct ep_net_sym *sym = object;

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
	EP_CHECK_GOTO(ep_net_handle_new(EP_NET_SYM, s, handle), err_drop);
	return ncclSuccess;

err_drop:
	ep_net_sym_drop(s);
	return result;
}

ncclResult_t ep_net_sym_free(void *handle)
{
	return ep_net_handle_close(EP_NET_SYM, handle, ep_net_sym_drop);
}
