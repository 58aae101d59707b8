/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches the waits of the process's groups while their callers wait: a thread checks them, a few times a second. A wait that
 * lasts for a tenth of the timeout goes to the log once.
 */
#ifndef EP_EP_GROUP_WATCH_H
#define EP_EP_GROUP_WATCH_H

#include "ep/objects.h"

/* Watches a group, if it shows its waits. */
void ep_watch_begin(struct ncclEpGroup *group);
void ep_watch_end(struct ep_watch *watch);

#endif
