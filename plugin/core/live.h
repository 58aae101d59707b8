/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects that callers have pointers to and have not destroyed: a set of this process. Asking it
 * does not look at the object, so a pointer that is none, or no longer one, is found out. (Memory of
 * a destroyed object may belong to a new one of the same kind; the old pointer then means that.)
 */
#ifndef EP_CORE_LIVE_H
#define EP_CORE_LIVE_H

#include <stdbool.h>

enum ep_live_kind {
	EP_LIVE_NONE,
	EP_LIVE_MAKING, /* its caller has no pointer to it yet */
	EP_LIVE_GROUP,
	EP_LIVE_HANDLE,
	EP_LIVE_TENSOR
};

/* False: out of memory. */
bool ep_live_add(const void *object, enum ep_live_kind kind);

bool ep_live_has(const void *object, enum ep_live_kind kind);

/* The process that has made it: after fork() the child's set has the objects of its parent. 0: it is not there. */
int ep_live_owner(const void *object, enum ep_live_kind kind);

/* An object that was being made is made. */
void ep_live_made(const void *object, enum ep_live_kind kind);

/* False: it was not there. */
bool ep_live_remove(const void *object, enum ep_live_kind kind);

#endif
