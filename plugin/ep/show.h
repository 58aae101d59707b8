/* SPDX-License-Identifier: Apache-2.0 */
/* Shows a group's state on its board: core/board.h. Nothing here can fail a call. */
#ifndef EP_EP_SHOW_H
#define EP_EP_SHOW_H

#include "ep/objects.h"

/* Makes the board, if the config wants one, and shows a group that is being made. */
void ep_show_open(struct ncclEpGroup *group);

/* Its ranks are known. */
void ep_show_ranks(struct ncclEpGroup *group, uint64_t team);

/* Kernels will write whom they wait for. */
void ep_show_waits(struct ncclEpGroup *group);

/* The group is made, and takes so much. */
void ep_show_made(struct ncclEpGroup *group, uint64_t device_bytes);

/* It will not be made: nobody sees it any more. */
void ep_show_hide(struct ep_show *show);

/* ended: the device's context is. Otherwise no kernel may run that uses the board. */
void ep_show_close(struct ep_show *show, bool ended);

/* A call has begun, on a handle or NULL, and on a stream or NULL; ep_call_end() ends it. */
void ep_show_begin(struct ep_call *call, enum ep_board_kind kind, const struct ncclEpHandle *handle,
		   const void *stream);
void ep_show_end(struct ep_call *call, ncclResult_t result);

/* The group has failed for good. */
void ep_show_failure(struct ep_show *show, const char *text);

#endif
