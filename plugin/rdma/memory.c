/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <string.h>
#include "rdma/nic.h"

static struct ibv_mr *ep_nic_register_dmabuf(const struct ep_nic *nic,
					     const struct ep_nic_memory *m, unsigned int access,
					     struct ep_reason *why)
{
	struct ibv_mr *mr;

	if (!nic->v->ibv_reg_dmabuf_mr) {
		ep_reason_set(why, "no DMA-BUF: libibverbs is too old");
		return NULL;
	}
	if (m->fd < 0) {
		*why = m->no_fd;
		return NULL;
	}
	mr = nic->v->ibv_reg_dmabuf_mr(nic->pd, m->offset, m->bytes, (uintptr_t)m->p, m->fd,
				       (int)access);
	if (!mr) {
		ep_reason_set(why, "DMA-BUF refused: %s", strerror(errno));
	}
	return mr;
}

struct ibv_mr *ep_nic_register(const struct ep_nic *nic, const struct ep_nic_memory *memory,
			       unsigned int access, struct ep_reason *why)
{
	struct ep_reason first = { "" };
	struct ibv_mr *mr = NULL;

	if (memory->gpu) {
		mr = ep_nic_register_dmabuf(nic, memory, access, &first);
	}
	if (!mr) {
		mr = ep_verbs_reg_mr(nic->v, nic->pd, memory->p, memory->bytes, access);
	}
	if (!mr) {
		ep_reason_set(why, "%s: %llu bytes of %s memory cannot be registered: %s%s%.150s",
			      nic->name, (unsigned long long)memory->bytes,
			      memory->gpu ? "GPU" : "host", strerror(errno),
			      memory->gpu ? " (is nvidia-peermem loaded?); " : "", first.text);
	}
	return mr;
}
