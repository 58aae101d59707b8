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

#include "core/bootstrap.h"
#include "core/timed_call.h"
#include "core/ident.h"
#include "peer/mapping.h"

#define EP_HEAP_STAMP_BYTES 32
#define EP_HEAP_ALIGN (2u << 20) /* own allocation for the driver, so that IPC exports only it */

struct ep_heap_entry;

/* A rank's heap, and where it has mapped those of its peers. */
struct ep_heap {
	int rank;
	int nranks;
	uint64_t team; /* same number on all ranks of the group, unique in the process */
	uint64_t bytes;
	unsigned char **base;                   /* [nranks] NULL: a remote rank's */
	const struct ep_peer_mapping **mapping; /* [nranks] NULL: not mapped */
	struct ep_heap_entry *entry;            /* in the list of the process */
	ncclWindow_t window;                    /* while peers are being mapped */
	struct ep_timed_call *call; /* NCCL's, on this heap, in which boot got stuck; NULL: none */
	bool registering;           /* it is that of peer_window.c */
	unsigned char *multicast;   /* the node's heaps at once; NULL: not used */
};

/* Bytes that a heap of `bytes` takes from cudaMalloc or ncclMemAlloc. */
static inline uint64_t ep_heap_alloc_bytes(uint64_t bytes)
{
	return ep_round_up(bytes, EP_HEAP_ALIGN);
}

/*
 * Whether this rank can reach the others of its node: no MIG, peer access. Local; the answer need not
 * be the same on all ranks. Names the pair that cannot.
 */
ncclResult_t ep_peer_check(const struct ep_ident *idents, int nranks, int rank);

/* Whether this rank's GPU is joined to its node's by NVLink, as far as CUDA and NVML report it. Local. */
bool ep_peer_all_nvlink(const struct ep_ident *idents, int nranks, int rank);

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

/*
 * The first half of leaving: farewells to the peers of this node, whose heaps are unmapped. All
 * kernels of the group must be over on this rank, and its device current.
 */
void ep_heap_farewell(struct ep_heap *heap);

/* Between the two: an INFO line, once, says which remote rank has not left, who is waited for until then. */
void ep_heap_name_awaited(struct ep_heap *heap, uint64_t deadline_ns);

/*
 * The connections by which remote ranks write a heap. cut is called once, by any thread, when no
 * remote rank needs them any more or deadline_ns is over, and before the heap is freed: afterwards
 * nothing remote writes it. lost: whether a remote rank can no longer write a farewell; those
 * of `absent` are not expected to.
 */
struct ep_heap_remote {
	void (*cut)(void *arg);
	bool (*lost)(void *arg, int rank);
	void *arg;
	bool *absent; /* [nranks], from malloc, freed with the heap */
	uint64_t deadline_ns;
};

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

/* A rank's farewell in a peer's heap, the end of all of them, and what a farewell is. */
#define EP_HEAP_FAREWELL(rank) (EP_HEAP_STAMP_BYTES + 8 * (uint64_t)(rank))
#define EP_HEAP_HEADER_BYTES(nranks) EP_HEAP_FAREWELL(nranks)
static inline uint64_t ep_heap_farewell_value(const struct ep_heap *heap)
{
	return heap->team;
}

#endif
