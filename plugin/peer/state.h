/* SPDX-License-Identifier: Apache-2.0 */
/*
 * State behind plugin/peer/peer.h, for the files of this directory: heaps of this process, their
 * messages to peers, and windows of NCCL.
 */
#ifndef EP_PEER_STATE_H
#define EP_PEER_STATE_H

#include <cuda.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "core/bootstrap.h"
#include "core/cuda.h"
#include "core/error.h"
#include "core/ident.h"
#include "peer/peer.h"

#define EP_HEAP_STAMP 0x70616568206d7973ull

struct ep_heap_stamp {
	uint64_t magic;
	uint64_t team;
	uint64_t nonce;
	uint64_t rank;
};

/* A heap begins with it. */
struct ep_heap_head {
	struct ep_heap_stamp stamp;
	uint64_t farewell[]; /* [nranks] */
};

_Static_assert(sizeof(struct ep_heap_stamp) == EP_HEAP_STAMP_BYTES, "heap stamp");

/* The message of a rank to its peers about its heap: what any mapping needs. */
struct ep_heap_export {
	struct ep_verdict verdict;
	struct ep_heap_stamp stamp;
	void *base;
	cudaIpcMemHandle_t ipc;
	int32_t fd;        /* of the process, if the memory is a file */
	uint32_t hopeless; /* the rank has no memory to map, by whatever mapping */
};

_Static_assert(sizeof(struct ep_heap_export) <= EP_BOOT_BYTES, "ep_heap_export");

/* A heap of this process: all that its end needs is here from the beginning. */
struct ep_heap_entry {
	struct ep_heap_entry *next;
	pthread_t maker;
	/* of the device: stream ends with it, and base unless `lasting` */
	struct ep_context context;
	const struct ep_peer_mapping *mapping;
	unsigned char *base;
	uint64_t bytes;
	struct ep_heap_stamp stamp;
	bool lasting; /* as of the mapping, and no multicast address shows it */
	bool kept;    /* NCCL may work on the memory, which is never freed */
	/* While a window of NCCL's shows it: for multicast, or because creation got stuck. */
	ncclComm_t comm;
	ncclWindow_t window; /* NULL: none does */
	void *shown;
	CUmemGenericAllocationHandle shown_handle;

	cudaStream_t stream;       /* to look at it, */
	struct ep_heap_head *head; /* and where to copy it to */

	bool departed;        /* what follows begins then */
	bool active;          /* a thread of the library looks after it, ... */
	bool hurry;           /* ... which shall wait for no peer */
	bool waited;          /* ranks of the node have been waited for, once */
	bool logged;          /* the warning has been given, */
	bool named;           /* and before it a line with the remote rank that is waited for */
	bool quiet;           /* nobody can write to it any more; only its window is left */
	uint64_t left_ns;     /* when it departed */
	uint64_t patience_ns; /* how long to wait for ranks of the node */
	uint64_t deadline_ns; /* when to warn of them */
	uint64_t asked_ns;    /* when processes and connections were last asked whether they live */
	uint64_t ending_ns;   /* since when the thread frees it; 0: it does not */
	struct ep_heap_remote remote;

	bool *let_go; /* [nranks] that rank's process has left otherwise than by a farewell */
	int rank;
	int nranks;
	struct ep_ident idents[]; /* and `let_go` behind them */
};

/* An entry on the list, still without memory. */
ncclResult_t ep_heap_entry_new(struct ep_heap_entry **out, const struct ep_heap *heap,
			       const struct ep_ident *idents,
			       const struct ep_peer_mapping *mapping);

/* Rank r of the heap is another process from now on. */
void ep_heap_entry_admit(struct ep_heap_entry *entry, int r, const struct ep_ident *ident);

/* Gives the memory of a heap back, if there is any, and takes the heap off the list. */
void ep_heap_entry_free(struct ep_heap_entry *entry);

/* Where the peers' heaps are noted: `base` and `mapping`. They are freed when nothing is mapped. */
ncclResult_t ep_heap_tables_new(struct ep_heap *heap);
void ep_heap_tables_free(struct ep_heap *heap);

void ep_heap_unmap(struct ep_heap *heap);

/*
 * The heap departs, without farewells: those that can be written are. The process frees it when
 * nobody can write to it any more. Waits for no peer.
 */
void ep_heap_depart(struct ep_heap *heap);

/* ---- mappings, beside peer.h's ---- */

extern const struct ep_peer_mapping ep_peer_plain; /* ranks of one process */
extern const struct ep_peer_mapping ep_peer_host;  /* processes of one host, in host memory */

/* ---- windows of NCCL ---- */

/* Returns whether the driver has the calls that windows need; if not, *why names one. */
bool ep_vmm_driver(struct ep_reason *why);

/* Notes how to see whether the window is there. The communicator is. */
bool ep_window_watch(struct ep_heap_entry *entry, ncclWindow_t window);

/* Whether the entry's window is still there, as the driver sees it: so the communicator is. */
bool ep_window_lives(const struct ep_heap_entry *entry);

/* Ends the entry's window. Not while anybody may still store by multicast. */
void ep_window_end(struct ep_heap_entry *entry);

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

/* Whether this rank may ask NCCL for a multicast address. nccl_can: NCCL itself can. */
bool ep_multicast_possible(bool wanted, bool window, bool nccl_can, struct ep_reason *why);

/*
 * After each rank has mapped its peers, with its result, collective: asks NCCL for the address, and
 * keeps the window if all ranks have got one. Else the choice has the reason.
 */
ncclResult_t ep_multicast_open(struct ep_heap *heap, struct ep_boot *boot,
			       struct ep_peer_choice *choice, ncclResult_t mine);

#endif
