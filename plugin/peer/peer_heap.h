/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A heap: memory of a group that peers write, of the same size on every rank, mapped by all ranks of
 * its owner's node (idents' `node`) by the mapping that all chose (mapping.h). Remote ranks write it through
 * NICs, which is not seen here.
 *
 * Ownership. A rank owns its heap from ep_heap_open until ep_heap_close or ep_heap_leave, which give
 * it up. Peers store into a heap until their last kernel is over, so it may be freed only when every
 * peer has let go of it. ep_heap_close is collective and frees after a barrier. A rank that leaves
 * must not need its peers: it writes a farewell, a word in the heap of each peer of another process
 * (remote ranks get theirs by somebody else), unmaps them, and its own heap departs: the process
 * keeps it on a list until all ranks of the group that are in this process have left, and all others
 * have written their farewells or have ended.
 *
 * Where a mapping keeps the memory that it shows (windows), a rank of another process of the node
 * writes no farewell, and nobody waits for it: what it still stores after the owner has freed its
 * heap harms nobody, and the memory is gone when the last mapping is.
 *
 * Where one multicast address shows the heaps of a node (multicast.c), a rank that stores there
 * stores to all of them, and there are farewells again. The window must be ended with its
 * communicator still there: by ep_heap_leave, if all farewells have come by then, or by the next
 * ep_heap_leave or ep_heap_reap of that communicator. Until then the heap stays.
 *
 * Who waits for whom. ep_heap_leave waits where that gives the memory back: a second for ranks of
 * the same node, those of this process included, and until their deadline for remote ranks, so that
 * no connection breaks. It waits for nobody while its process has another group, because a peer may
 * leave the two in the other order and wait for us; nor for ranks of its own process in another
 * thread than made the group, because that thread may have to destroy theirs next. Such heaps are
 * freed by the next ep_heap_leave or ep_heap_reap of the process, whatever its group.
 *
 * Who frees. cudaFree waits for everything on the heap's device, where its owner may run a
 * collective by now that needs the calling thread. So no thread of the program frees a departed
 * heap or its connections: a thread of the library waits until the device is at rest and then does.
 * The caller waits for that thread as long as the device is its own and at rest, else 0.1 s.
 *
 * Errors. Leaving has none: a heap that a living rank could write to stays on the list, with one
 * line in the log, and one warning when the time for it is over.
 */
#ifndef EP_PEER_HEAP_H
#define EP_PEER_HEAP_H

#include "peer/peer_state.h"

/*
 * Collective. Allocates and zeroes `bytes`, exchanges and maps, by the next mapping if the chosen one
 * fails. All ranks succeed or none does. `mine` is this rank's result so far: a failure makes every
 * rank fail. Nothing is left to close then, unless boot is stuck.
 */
ncclResult_t ep_heap_open(struct ep_heap *heap, struct ep_boot *boot, const struct ep_ident *idents,
			  struct ep_peer_choice *choice, uint64_t team, uint64_t bytes,
			  ncclResult_t mine);

/*
 * Copies `bytes` of this rank's heap `from`, from byte `from_off` on, to byte `off` of `heap`, and waits for that.
 * A copy that could not be waited for goes on: it is on the stream of `heap`, for which giving that up waits.
 */
ncclResult_t ep_heap_copy(struct ep_heap *heap, uint64_t off, const struct ep_heap *from,
			  uint64_t from_off, uint64_t bytes, const char *what);

/*
 * Collective: nobody frees before all have unmapped. All kernels of the group must be over on this
 * rank. Where boot has failed the heap departs instead. A heap that is not there is nothing.
 */
void ep_heap_close(struct ep_heap *heap, struct ep_boot *boot);

#endif
