/* SPDX-License-Identifier: Apache-2.0 */
/* How a rank leaves a heap without its peers; see peer_heap.h. */
#ifndef EP_PEER_LEAVE_H
#define EP_PEER_LEAVE_H

#include "peer/peer_state.h"

/*
 * The first half of leaving: farewells to the peers of this node, whose heaps are unmapped. All
 * kernels of the group must be over on this rank, and its device current.
 */
void ep_heap_farewell(struct ep_heap *heap);

/* Writes a word where the farewell will be, in the heaps of all peers of this node. A failure is no error. */
void ep_heap_notify(const struct ep_heap *heap, uint64_t word);

/* Between the two: an INFO line, once, names a remote rank that has not left and is waited for until then. */
void ep_heap_name_awaited(struct ep_heap *heap, uint64_t deadline_ns);

/*
 * The second half: the heap departs. After timeout_ns the log names whoever has not left. remote:
 * NULL if no remote rank can write to the heap.
 */
void ep_heap_leave(struct ep_heap *heap, uint64_t timeout_ns, const struct ep_heap_remote *remote);

/*
 * Whether this process has no heap that has not departed. Then it has none of its peers' mapped
 * either, also where it could not write a farewell: it had not come to map the heap.
 */
bool ep_heap_none(void);

/* Called for a process that has left: departed heaps need not wait for its ranks. */
void ep_heap_let_go(const struct ep_ident *process);

/*
 * Frees the departed heaps of this process that nobody can write to any more. Waits for no peer.
 * comm: one that is there, whose windows of such heaps are ended.
 */
void ep_heap_reap(ncclComm_t comm);

/*
 * The heap departs, without farewells: those that can be written are. The process frees it when
 * nobody can write to it any more. Waits for no peer.
 */
void ep_heap_depart(struct ep_heap *heap);

#endif
