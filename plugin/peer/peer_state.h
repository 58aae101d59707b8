/* SPDX-License-Identifier: Apache-2.0 */
/* The structs of heaps, mappings and what ranks offer each other. */
#ifndef EP_PEER_PEER_STATE_H
#define EP_PEER_PEER_STATE_H

#include <cuda.h>
#include <pthread.h>
#include "core/bootstrap.h"
#include "core/cuda.h"
#include "core/ident.h"
#include "core/param.h"
#include "core/timed_call.h"

/* Mappings that a rank can use, for the others. */
struct ep_peer_offer {
	uint32_t mappings;  /* bits; mapping.c */
	uint32_t first;     /* of the ranks of its LSA team, if it can use windows */
	uint32_t multicast; /* it wants NVLink multicast, and can */
	uint32_t memory;    /* enum ep_memory, as its user asks for */
	char no_window[152];
	char no_multicast[60];
};

struct ep_peer_choice {
	const struct ep_peer_mapping *mapping;
	const struct ep_peer_mapping *next; /* for the same nodes, if that one fails; NULL: none */
	/* why windows are not the mapping; "": they are, or need not be */
	struct ep_reason no_window;
	bool multicast;                /* all want it and can, so far */
	struct ep_reason no_multicast; /* why not */
};

#define EP_HEAP_STAMP_BYTES 32
#define EP_HEAP_ALIGN (2u << 20) /* own allocation for the driver, so that IPC exports only it */

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
	bool registering;           /* it is that of window.c */
	unsigned char *multicast;   /* the node's heaps at once; NULL: not used */
};

/* Bytes that a heap of `bytes` takes from cudaMalloc or ncclMemAlloc. */
static inline uint64_t ep_heap_alloc_bytes(uint64_t bytes)
{
	return ep_round_up(bytes, EP_HEAP_ALIGN);
}

/* A rank's farewell in a peer's heap, the end of all of them, and what a farewell is. */
#define EP_HEAP_FAREWELL(rank) (EP_HEAP_STAMP_BYTES + 8 * (uint64_t)(rank))
#define EP_HEAP_HEADER_BYTES(nranks) EP_HEAP_FAREWELL(nranks)
static inline uint64_t ep_heap_farewell_value(const struct ep_heap *heap)
{
	return heap->team;
}

/* In its place: the rank has refused a call, in which the others may wait for it. */
static inline uint64_t ep_heap_refusal_value(const struct ep_heap *heap)
{
	return ~heap->team;
}

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

/* A mapping: how a peer's heap is mapped. mapping.c chooses. */
struct ep_peer_mapping {
	const char *name;
	/*
	 * A mapping keeps the memory: its owner may free it at any time, and a reset of the device
	 * ends neither.
	 */
	bool lasting;
	/* It is host memory: GPUs need not reach each other, and rows do not travel as lines. */
	bool in_host;
	/* How ranks of one process are mapped. NULL: by plain pointers. */
	const struct ep_peer_mapping *within;
	/* The heap's memory. */
	bool (*alloc)(void **base, uint64_t bytes, struct ep_reason *why);
	void (*free)(void *base);
	/* Adds to the export what peers need to map our heap at `base`. NULL: nothing. */
	ncclResult_t (*give)(struct ep_heap_export *export, void *base);
	/*
	 * Before the first peer is mapped, collective; and after the last one. NULL: nothing to do.
	 * If boot has failed afterwards, or is stuck, other ranks may still wait for this one.
	 */
	ncclResult_t (*open)(struct ep_heap *heap, struct ep_boot *boot);
	void (*close)(struct ep_heap *heap, struct ep_boot *boot);
	/*
	 * *base: where rank `peer`, which gave this export, is mapped. Fails with the names of both
	 * GPUs. If *base is not NULL the peer takes the place of what is mapped there, which stays
	 * if that fails. If even that is lost *base becomes NULL. No kernel uses it. Only a mapping
	 * that is `lasting` can do so.
	 */
	ncclResult_t (*map)(void **base, const struct ep_heap *heap,
			    const struct ep_heap_export *export, const struct ep_ident *idents,
			    int peer);
	void (*unmap)(void *base, uint64_t bytes);
};

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

#endif
