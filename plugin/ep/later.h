/* SPDX-License-Identifier: Apache-2.0 */
/* Remains of a group that could not be made, or of its growth. */
#ifndef EP_EP_LATER_H
#define EP_EP_LATER_H

#include "ep/objects.h"

/*
 * Ends the bootstrap, and gives back what was made with it: `group`, one that was being made, or NULL;
 * `heap`, that a group should have grown to, or NULL. Collective as ep_heap_close is, where there is
 * a heap and boot has not failed. If a collective holds the device up, a thread of the library gives
 * all of it back when the device is at rest, which the program sees to by aborting the communicator.
 * Where none can be started ep_group_give_up_again tries again.
 */
void ep_group_give_up(struct ep_boot *boot, int device, struct ncclEpGroup *group,
		      struct ep_heap *heap);
void ep_group_give_up_again(void);

#endif
