/* SPDX-License-Identifier: Apache-2.0 */
/* The heaps of this process, and what each must give back in the end. */
#ifndef EP_PEER_ENTRY_H
#define EP_PEER_ENTRY_H

#include "peer/peer_state.h"

/* All heaps of the process, under the lock. */
extern pthread_mutex_t ep_heap_lock;
extern struct ep_heap_entry *ep_heap_list;

/* An entry on the list, still without memory. */
ncclResult_t ep_heap_entry_new(struct ep_heap_entry **out, const struct ep_heap *heap,
			       const struct ep_ident *idents,
			       const struct ep_peer_mapping *mapping);

/* Gives the memory of a heap back, if there is any, and takes the heap off the list. */
void ep_heap_entry_free(struct ep_heap_entry *entry);

/* Where the peers' heaps are noted: `base` and `way`. They are freed when nothing is mapped. */
ncclResult_t ep_heap_tables_new(struct ep_heap *heap);
void ep_heap_tables_free(struct ep_heap *heap);

void ep_heap_unmap(struct ep_heap *heap);

/* The memory is never freed: a peer may have it mapped, or NCCL still work on it. */
void ep_heap_keep(struct ep_heap *heap);

/* Notes how to see whether the window is there. The communicator is. */
bool ep_window_watch(struct ep_heap_entry *entry, ncclWindow_t window);

/* Whether the entry's window is still there, as the driver sees it: so the communicator is. */
bool ep_window_lives(const struct ep_heap_entry *entry);

/* Ends the entry's window. Not while anybody may still store by multicast. */
void ep_window_end(struct ep_heap_entry *entry);

#endif
