/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VC_WINDOW_H
#define VC_WINDOW_H

#include <stdbool.h>
#include "nccl/comm.h"

struct ncclWindow_vidmem {
	struct ncclWindow_vidmem *next;
	struct ncclComm *comm;
	void *user;
	void *multicast; /* NULL: nobody has asked for it */
	size_t size;
	size_t offset; /* of the window in its memory: NCCL takes it to be the same everywhere */
	struct vc_view {
		void *map;  /* the memory; NULL: not in the LSA team */
		bool owned; /* the mapping is the window's */
	} view[];           /* by rank */
};

/* VC_NVLS, VC_NVLS_CLAIMED and NCCL_NVLS_ENABLE: whether NCCL has multicast, and whether it says so. */
bool vc_nvls(const struct ncclComm *comm);
bool vc_nvls_claimed(const struct ncclComm *comm);
/* The window is in use by the caller, who has found it on the list. */
ncclResult_t vc_window_multicast(struct ncclWindow_vidmem *win, size_t offset, void **out);

#endif
