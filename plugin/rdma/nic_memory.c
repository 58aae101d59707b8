/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include "rdma/nic.h"

const char *ep_nic_error_print(int error, char text[EP_NIC_ERROR_TEXT])
{
	struct rlimit limit = { .rlim_cur = 0 };

	if (error != ENOMEM || getrlimit(RLIMIT_MEMLOCK, &limit) != 0) {
		snprintf(text, EP_NIC_ERROR_TEXT, "%s", strerror(error));
	} else if (limit.rlim_cur == RLIM_INFINITY) {
		snprintf(
			text, EP_NIC_ERROR_TEXT,
			"%s (RLIMIT_MEMLOCK is unlimited: it is the NIC or the host that has no more)",
			strerror(error));
	} else {
		snprintf(text, EP_NIC_ERROR_TEXT,
			 "%s (RLIMIT_MEMLOCK is %llu KiB: raise it, ulimit -l unlimited)",
			 strerror(error), (unsigned long long)limit.rlim_cur / 1024);
	}
	return text;
}

static struct ibv_mr *ep_nic_register_dmabuf(const struct ep_nic *nic,
					     const struct ep_nic_memory *memory,
					     unsigned int access, struct ep_reason *why)
{
	struct ibv_mr *mr;

	if (!nic->v->ibv_reg_dmabuf_mr) {
		ep_reason_set(why, "no DMA-BUF: libibverbs is too old");
		return NULL;
	}
	if (memory->fd < 0) {
		*why = memory->no_fd;
		return NULL;
	}
	mr = nic->v->ibv_reg_dmabuf_mr(nic->pd, memory->offset, memory->bytes, (uintptr_t)memory->p,
				       memory->fd, (int)access);
	if (!mr) {
		ep_reason_set(why, "DMA-BUF refused: %s", strerror(errno));
	}
	return mr;
}

struct ibv_mr *ep_nic_register(const struct ep_nic *nic, const struct ep_nic_memory *memory,
			       unsigned int access, struct ep_reason *why)
{
	struct ep_reason first = { "" };
	char text[EP_NIC_ERROR_TEXT];
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
			      memory->gpu ? "GPU" : "host", ep_nic_error_print(errno, text),
			      memory->gpu ? " (is nvidia-peermem loaded?); " : "", first.text);
	}
	return mr;
}
