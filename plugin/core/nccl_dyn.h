/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL's functions, looked up in the running process: one binary works with all releases, the
 * library can be preloaded into processes that have no NCCL, and the NCCL that it calls is the
 * program's own, wherever that lies.
 */
#ifndef EP_CORE_NCCL_DYN_H
#define EP_CORE_NCCL_DYN_H

#include <nccl.h>
#include <stdbool.h>

/* ncclTeam_t */
struct ep_nccl_team {
	int nranks, rank, stride;
};

struct ep_nccl_dyn {
	/* every release has these: never NULL once ep_nccl_need was successful */
	ncclResult_t (*get_version)(int *version);
	const char *(*get_error_string)(ncclResult_t result);
	ncclResult_t (*comm_count)(const ncclComm_t comm, int *count);
	ncclResult_t (*comm_cu_device)(const ncclComm_t comm, int *device);
	ncclResult_t (*comm_user_rank)(const ncclComm_t comm, int *rank);
	ncclResult_t (*all_gather)(const void *in, void *out, size_t count, ncclDataType_t type,
				   ncclComm_t comm, cudaStream_t stream);
	/* NULL: the oldest supported release (2.28) does not have it, or we can do without */
	ncclResult_t (*comm_get_async_error)(ncclComm_t comm, ncclResult_t *error);
	const char *(*get_last_error)(ncclComm_t comm);
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
};

/* All NULL as long as the process has no NCCL. */
const struct ep_nccl_dyn *ep_nccl_dyn(void);

/* An error if the process has no NCCL, or one that lacks what every release has. */
ncclResult_t ep_nccl_need(const char *call);
/* An error if that NCCL is older than the library supports. */
ncclResult_t ep_nccl_check_version(const char *call);

/* ncclGetErrorString, also without NCCL. */
const char *ep_nccl_text(ncclResult_t result);

/* False: the process has no NCCL. */
bool ep_nccl_version(int *version);

#endif
