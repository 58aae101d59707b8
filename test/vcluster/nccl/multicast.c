/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NVLink multicast as NCCL gives it: one address for a window, where what a kernel stores goes to
 * all ranks of the LSA team. The ranks meet when they first ask for it.
 */
#include <stdlib.h>
#include <string.h>
#include "exec/multicast.h"
#include "exec/util.h"
#include "nccl/window.h"

#define VC_MULTICAST_CALL 9ull

static bool vc_nvls_enabled(void)
{
	return vc_env_long("NCCL_NVLS_ENABLE", 2) != 0;
}

bool vc_nvls(const struct ncclComm *comm)
{
	const struct vc_member *member = comm->shared->member;

	for (int i = 0; i < comm->nranks; i++) {
		for (int j = 0; j < i; j++) {
			if (member[i].node == member[j].node &&
			    member[i].device == member[j].device) {
				return false;
			}
		}
	}
	return vc_env_long("VC_NVLS", 0) && vc_nvls_enabled();
}

bool vc_nvls_claimed(const struct ncclComm *comm)
{
	return vc_nvls(comm) || vc_env_long("VC_NVLS_CLAIMED", 0);
}

ncclResult_t vc_window_multicast(struct ncclWindow_vidmem *win, size_t offset, void **out)
{
	struct ncclComm *comm = win->comm;
	uint8_t *member[VC_NCCL_RANKS_MAX];
	ncclResult_t result;
	uint32_t count = 0;

	if (!vc_nvls_enabled()) {
		vc_die(VC_EXIT_ILLEGAL, "a multicast address is asked for with NCCL_NVLS_ENABLE=0");
	}
	*out = NULL;
	if (!vc_nvls(comm)) {
		return ncclSuccess;
	}
	if (!win->multicast) {
		for (int i = 0; i < comm->nranks; i++) {
			if (win->view[i].map) {
				member[count++] = (uint8_t *)win->view[i].map + win->offset;
			}
		}
		pthread_mutex_lock(&comm->mutex);
		result = vc_comm_barrier(comm, VC_MULTICAST_CALL << 56);
		if (!result) {
			result = vc_comm_barrier(comm, 0); /* all have seen what all call */
		}
		pthread_mutex_unlock(&comm->mutex);
		if (result) {
			return result;
		}
		if (vc_env_long("VC_NVLS_UNBOUND", 0)) {
			return vc_nccl_error(comm, ncclUnhandledCudaError, "cuMulticastBindAddr");
		}
		win->multicast = vc_multicast_make(member, count, win->size);
	}
	if (!win->multicast) {
		return vc_nccl_error(comm, ncclSystemError, "no multicast address");
	}
	*out = (uint8_t *)win->multicast + offset;
	return ncclSuccess;
}
