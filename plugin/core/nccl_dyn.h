/* SPDX-License-Identifier: Apache-2.0 */
/*
 * NCCL calls that the oldest supported release (2.28) does not have, or that we can do without:
 * looked up in the running process, so that one binary works with all of them. NULL: absent.
 */
#ifndef EP_CORE_NCCL_DYN_H
#define EP_CORE_NCCL_DYN_H

#include <nccl.h>

struct ep_nccl_dyn {
	ncclResult_t (*win_get_user_ptr)(ncclComm_t comm, ncclWindow_t win, void **ptr);
	ncclResult_t (*get_peer_device_pointer)(ncclWindow_t win, size_t offset, int peer,
						void **ptr);
	ncclResult_t (*comm_get_async_error)(ncclComm_t comm, ncclResult_t *error);
};

const struct ep_nccl_dyn *ep_nccl_dyn(void);

#endif
