/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_EP_RELEASE_H
#define EP_EP_RELEASE_H

#include "ep/objects.h"

/* One that is not there for callers: what it has outside of it is gone. */
void ep_group_free(struct ncclEpGroup *group);

/* Takes the handle off its group's list. */
void ep_handle_delist(struct ncclEpHandle *handle);

#endif
