/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL calls that the oldest supported release (2.28) does not have, or that we can do without:
 * looked up in the running process, so that one binary works with all of them. NULL: absent.
 */
#ifndef EP_CORE_NCCL_DYN_H
#define EP_CORE_NCCL_DYN_H

#include <nccl.h>

/* ncclTeam_t */
struct ep_nccl_team {
	int nranks, rank, stride;
};

struct ep_nccl_dyn {
	ncclResult_t (*win_get_user_ptr)(ncclComm_t comm, ncclWindow_t win, void **ptr);
	/* windows; see peer/window.c */
	ncclResult_t (*mem_alloc)(void **ptr, size_t size);
	ncclResult_t (*mem_free)(void *ptr);
	ncclResult_t (*window_register)(ncclComm_t comm, void *buff, size_t size, ncclWindow_t *win,
					int flags);
	ncclResult_t (*window_deregister)(ncclComm_t comm, ncclWindow_t win);
	ncclResult_t (*get_peer_device_pointer)(ncclWindow_t win, size_t offset, int peer,
						void **ptr);
	ncclResult_t (*get_lsa_multimem_device_pointer)(ncclWindow_t win, size_t offset,
							void **ptr);
	ncclResult_t (*comm_query_properties)(ncclComm_t comm, void *properties);
	struct ep_nccl_team (*team_lsa)(ncclComm_t comm);
	ncclResult_t (*comm_get_async_error)(ncclComm_t comm, ncclResult_t *error);
};

const struct ep_nccl_dyn *ep_nccl_dyn(void);

#endif
