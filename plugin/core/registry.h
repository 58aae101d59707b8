/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The objects that callers have pointers to and have not destroyed: a set of this process. Asking
 * it does not look at the object, so a pointer that is none, or no longer one, is found out.
 * (Memory of a destroyed object may belong to a new one of the same kind; the old pointer then
 * means that.)
 */
#ifndef EP_CORE_REGISTRY_H
#define EP_CORE_REGISTRY_H

#include <stdbool.h>

enum ep_registry_kind {
	EP_REGISTRY_NONE,
	EP_REGISTRY_MAKING, /* its caller has no pointer to it yet */
	EP_REGISTRY_GROUP,
	EP_REGISTRY_HANDLE,
	EP_REGISTRY_TENSOR,
	EP_REGISTRY_KINDS
};

/* False: out of memory. */
bool ep_registry_add(const void *object, enum ep_registry_kind kind);

bool ep_registry_has(const void *object, enum ep_registry_kind kind);

/*
 * The process that has made it: after fork() the child's set has the objects of its parent. 0: it
 * is not there.
 */
int ep_registry_owner(const void *object, enum ep_registry_kind kind);

/* An object that was being made is made. */
void ep_registry_made(const void *object, enum ep_registry_kind kind);

/* False: it was not there. */
bool ep_registry_remove(const void *object, enum ep_registry_kind kind);

#endif
