/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Watches the waits of the process's groups while their callers wait: a thread checks them, a few times a second. A wait that
 * lasts for a tenth of the timeout goes to the log once.
 */
#ifndef EP_EP_GROUP_WATCH_H
#define EP_EP_GROUP_WATCH_H

#include <stdbool.h>
#include <stdint.h>
#include "nccl_ep.h"

/* A group as the thread sees it. */
struct ep_watch {
	struct ep_watch *next, **link;   /* of all that are watched: under the lock */
	const struct ncclEpGroup *group; /* NULL: it is not watched */
	uint64_t *seen;                  /* [nranks] words at the last look */
	uint32_t *logged;                /* [nranks] steps whose wait the log has; 0: none */
};

/* Watches a group, if it shows its waits. */
void ep_watch_begin(struct ncclEpGroup *group);
void ep_watch_end(struct ep_watch *watch);

#endif
