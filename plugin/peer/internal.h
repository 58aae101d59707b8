/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_PEER_INTERNAL_H
#define EP_PEER_INTERNAL_H

#include <cuda.h>
#include <pthread.h>
#include "core/context.h"
#include "peer/peer_heap.h"

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
	uint32_t hopeless; /* the rank has no memory to map, by whatever mapping */
};

_Static_assert(sizeof(struct ep_heap_export) <= EP_BOOT_BYTES, "ep_heap_export");

/* A mapping: how a peer's heap is mapped. mapping.c chooses. */
struct ep_peer_mapping {
	const char *name;
	/*
	 * A mapping keeps the memory: its owner may free it at any time, and a reset of the device
	 * ends neither.
	 */
	bool lasting;
	/* The heap's memory. */
	bool (*alloc)(void **base, uint64_t bytes, struct ep_reason *why);
	void (*free)(void *base);
	/* Adds to the export what peers need to map our heap at `base`. NULL: nothing. */
	ncclResult_t (*give)(struct ep_heap_export *export, void *base);
	/*
	 * Before the first peer is mapped, collective; and after the last one. NULL: nothing to do. If
	 * boot has failed afterwards, or is stuck, other ranks may still wait for this one.
	 */
	ncclResult_t (*open)(struct ep_heap *heap, struct ep_boot *boot);
	void (*close)(struct ep_heap *heap, struct ep_boot *boot);
	/* *base: where rank `peer`, which gave this export, is mapped. Fails with the names of both GPUs. */
	ncclResult_t (*map)(void **base, const struct ep_heap *heap,
			    const struct ep_heap_export *export, const struct ep_ident *idents,
			    int peer);
	void (*unmap)(void *base, uint64_t bytes);
};

extern const struct ep_peer_mapping ep_peer_plain;  /* ranks of one process */
extern const struct ep_peer_mapping ep_peer_ipc;    /* processes of one host */
extern const struct ep_peer_mapping ep_peer_window; /* processes of one LSA team of NCCL */

/* Memory of cudaMalloc, which more than one mapping takes. */
bool ep_peer_plain_alloc(void **base, uint64_t bytes, struct ep_reason *why);
void ep_peer_plain_free(void *base);

/* A heap of this process: all that its end needs is here from the beginning. */
struct ep_heap_entry {
	struct ep_heap_entry *next;
	pthread_t maker;
	struct ep_context
		context; /* of the device: stream ends with it, and base unless `lasting` */
	const struct ep_peer_mapping *mapping;
	unsigned char *base;
	uint64_t bytes;
	struct ep_heap_stamp stamp;
	bool lasting; /* as of the mapping, and no multicast address shows it */
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
	bool named;           /* and before it a line that says which remote rank is waited for */
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

/* ---- entries ---- */

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

/*
 * The heap departs, without farewells: those that can be written are. The process frees it when
 * nobody can write to it any more. Waits for no peer.
 */
void ep_heap_depart(struct ep_heap *heap);

/* ---- the driver's virtual memory ---- */

/* Whether the driver has what windows need. */
bool ep_vmm_driver(struct ep_reason *why);

/* The driver's handle of the memory that is mapped at p, as a name for it; false: none is. */
bool ep_vmm_handle(void *p, CUmemGenericAllocationHandle *handle);

/* Maps the memory that is at `p` at addresses of its own. *step is what failed. */
CUresult ep_vmm_map_again(void *p, size_t bytes, int device, void **out, const char **step);
void ep_vmm_unmap(void *base, uint64_t bytes);

/* ---- windows ---- */

/* For a thread of the library: waits until NCCL has returned from the call that boot got stuck in. */
void ep_window_settle(struct ep_heap *heap);

/* ---- multicast ---- */

/*
 * After each rank has mapped its peers, with its result, collective: asks NCCL for the address, and
 * keeps the window if all ranks have got one. Else the choice says why not.
 */
ncclResult_t ep_multicast_open(struct ep_heap *heap, struct ep_boot *boot,
			       struct ep_peer_choice *choice, ncclResult_t mine);

/*
 * Whether NVLink joins GPU `self` and each of `count` others of this host that CUDA does not show to
 * this process. False also where nothing shows it.
 */
bool ep_peer_nvlink_hidden(const char *const *bus_ids, int count, const char *self);

#endif
