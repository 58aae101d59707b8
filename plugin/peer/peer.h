/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that ranks of a node map: heaps, windows, ways to map them, and how ranks leave. */
#ifndef EP_PEER_PEER_H
#define EP_PEER_PEER_H

#include <cuda.h>
#include <stdbool.h>
#include "core/error.h"
#include "core/ident.h"
#include "peer/peer_state.h"

/*
 * Collective. Allocates and zeroes `bytes`, exchanges and maps, by the next mapping if the chosen
 * one fails. All ranks succeed or none does. `mine` is this rank's result so far: a failure makes
 * every rank fail. Nothing is left to close then, unless boot is stuck.
 */
ncclResult_t ep_heap_open(struct ep_heap *heap, struct ep_boot *boot, const struct ep_ident *idents,
			  struct ep_peer_choice *choice, uint64_t team, uint64_t bytes,
			  ncclResult_t mine);

/*
 * Collective, together with ranks that call ep_heap_open(), by the same mapping: those of
 * `newcomers`, whose processes are not this one. Maps their heaps at the addresses of the heaps
 * that these ranks had before. This rank's heap stays, and what it has mapped of the others. `mine`
 * as there. All ranks succeed, or the heap is as useful as before: an address of a newcomer shows
 * memory that nobody else uses, until the next time. If even that has failed its base is NULL.
 * *late: what is to be closed where boot is stuck.
 */
ncclResult_t ep_heap_admit(struct ep_heap *heap, struct ep_boot *boot,
			   const struct ep_ident *idents, const bool *newcomers, ncclResult_t mine,
			   struct ep_heap *late);

/*
 * Copies `bytes` of this rank's heap `from`, from byte `from_off` on, to byte `off` of `heap`, and
 * waits for that. A copy that could not be waited for goes on: it is on the stream of `heap`, for
 * which giving that up waits.
 */
ncclResult_t ep_heap_copy(struct ep_heap *heap, uint64_t off, const struct ep_heap *from,
			  uint64_t from_off, uint64_t bytes, const char *what);

/*
 * Collective: nobody frees before all have unmapped. All kernels of the group must be over on this
 * rank. Where boot has failed the heap departs instead. A heap that is not there is nothing.
 */
void ep_heap_close(struct ep_heap *heap, struct ep_boot *boot);

/* ---- how a rank leaves a heap without its peers ---- */

/*
 * The first half of leaving: farewells to the peers of this node, whose heaps are unmapped. All
 * kernels of the group must be over on this rank, and its device current.
 */
void ep_heap_farewell(struct ep_heap *heap);

/*
 * Writes a word where the farewell will be, in the heaps of all peers of this node. A failure is no
 * error.
 */
void ep_heap_notify(const struct ep_heap *heap, uint64_t word);

/*
 * Between the two: an INFO line, once, names a remote rank that has not left and is waited for
 * until then.
 */
void ep_heap_name_awaited(struct ep_heap *heap, uint64_t deadline_ns);

/*
 * The second half: the heap departs. After timeout_ns the log names whoever has not left. remote:
 * NULL if no remote rank can write to the heap.
 */
void ep_heap_leave(struct ep_heap *heap, uint64_t timeout_ns, const struct ep_heap_remote *remote);

#define EP_HEAP_TEAMS 15

/* Groups of which a process has heaps that have not departed. */
struct ep_heap_teams {
	uint32_t count; /* EP_HEAP_TEAMS + 1: more than stand below */
	uint32_t pad;
	uint64_t team[EP_HEAP_TEAMS];
};

/* The groups of this process's heaps. It has none of its peers' mapped but of these. */
struct ep_heap_teams ep_heap_teams_now(void);

/*
 * Called for a process that has such heaps: departed heaps of other groups need not wait for its
 * ranks. They may have written no farewell, where they had not come to map the heap.
 */
void ep_heap_let_go(const struct ep_ident *process, const struct ep_heap_teams *alive);

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

/*
 * ---- how ranks of other processes map a heap ----
 *
 * All ranks choose one mapping for the group together. Ranks of one process use each other's
 * pointers in any case.
 *
 * A mapping decides what a node is. NCCL's windows reach the ranks of an LSA team, which may be on
 * several hosts; CUDA IPC reaches those of a host. Host memory has one node alone.
 */

/* memory and nvls: the values of NCCL_EP_MEMORY and NCCL_EP_NVLS on this rank. Local. */
void ep_peer_offer_make(struct ep_peer_offer *offer, ncclComm_t comm, enum ep_memory memory,
			bool nvls);

/*
 * The mapping for all, from the offers of all ranks (at `stride` bytes), and the nodes that it
 * makes: the same on all ranks. ncclInvalidUsage with the reasons if no mapping fits.
 */
ncclResult_t ep_peer_choose(struct ep_peer_choice *choice, struct ep_ident *idents,
			    const void *offers, size_t stride, const struct ep_param_list *sizes,
			    int nranks);

/* ---- the heaps of this process, and what each must give back in the end ---- */

/* An entry on the list, still without memory. */
ncclResult_t ep_heap_entry_new(struct ep_heap_entry **out, const struct ep_heap *heap,
			       const struct ep_ident *idents,
			       const struct ep_peer_mapping *mapping);

/* Rank r of the heap is another process from now on. */
void ep_heap_entry_admit(struct ep_heap_entry *entry, int r, const struct ep_ident *ident);

/* Gives the memory of a heap back, if there is any, and takes the heap off the list. */
void ep_heap_entry_free(struct ep_heap_entry *entry);

/* Where the peers' heaps are noted: `base` and `way`. They are freed when nothing is mapped. */
ncclResult_t ep_heap_tables_new(struct ep_heap *heap);
void ep_heap_tables_free(struct ep_heap *heap);

void ep_heap_unmap(struct ep_heap *heap);

/* Notes how to see whether the window is there. The communicator is. */
bool ep_window_watch(struct ep_heap_entry *entry, ncclWindow_t window);

/* Whether the entry's window is still there, as the driver sees it: so the communicator is. */
bool ep_window_lives(const struct ep_heap_entry *entry);

/* Ends the entry's window. Not while anybody may still store by multicast. */
void ep_window_end(struct ep_heap_entry *entry);

extern const struct ep_peer_mapping ep_peer_plain; /* ranks of one process */

/* ---- windows of NCCL ---- */

extern const struct ep_peer_mapping ep_peer_window; /* processes of one LSA team of NCCL */
extern const struct ep_peer_mapping ep_peer_host;   /* processes of one host, in host memory */

/*
 * For a thread of the library: waits until NCCL has returned from the call that boot got stuck in.
 */
void ep_window_settle(struct ep_heap *heap);

/*
 * *late gets the call that NCCL has not returned from, if there is one: the heap goes on without
 * it, and its memory is never freed.
 */
void ep_window_hand_over(struct ep_heap *heap, struct ep_heap *late);

/*
 * For a heap that is closed later, because boot is stuck: keeps its window, or its memory where the
 * window cannot be watched. The communicator is still there.
 */
void ep_window_hold(struct ep_heap *heap, const struct ep_boot *boot);

/* Returns whether the driver has the calls that windows need; if not, *why names one. */
bool ep_vmm_driver(struct ep_reason *why);

/*
 * Whether this rank can reach the others of its node by the mapping: no MIG, peer access. Local;
 * the answer need not be the same on all ranks. Names the pair that cannot.
 */
ncclResult_t ep_peer_check(const struct ep_peer_mapping *mapping, const struct ep_ident *idents,
			   int nranks, int rank);

/*
 * Whether what this rank stores to its node arrives in whole lines: by NVLink, as far as CUDA and
 * NVML report it. Local.
 */
bool ep_peer_all_nvlink(const struct ep_peer_mapping *mapping, const struct ep_ident *idents,
			int nranks, int rank);

/* Whether this rank may ask NCCL for a multicast address. nccl_can: NCCL itself can. */
bool ep_multicast_possible(bool wanted, bool window, bool nccl_can, struct ep_reason *why);

/*
 * After each rank has mapped its peers, with its result, collective: asks NCCL for the address, and
 * keeps the window if all ranks have got one. Else the choice has the reason.
 */
ncclResult_t ep_multicast_open(struct ep_heap *heap, struct ep_boot *boot,
			       struct ep_peer_choice *choice, ncclResult_t mine);

#endif
