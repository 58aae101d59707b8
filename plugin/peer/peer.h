/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that ranks of a node map: heaps, ways to map them, and how ranks leave. */
#ifndef EP_PEER_PEER_H
#define EP_PEER_PEER_H

#include <stdbool.h>
#include "core/bootstrap.h"
#include "core/error.h"
#include "core/ident.h"
#include "core/param.h"
#include "core/util.h"

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
 * ---- how ranks of other processes map a heap ----
 *
 * All ranks choose one mapping for the group together. Ranks of one process use each other's
 * pointers in any case.
 *
 * A mapping decides what a node is. NCCL's windows reach the ranks of an LSA team, which may be on
 * several hosts; CUDA IPC reaches those of a host. Host memory has one node alone.
 */

struct ep_heap_export; /* the message of a rank to its peers about its heap */

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

extern const struct ep_peer_mapping ep_peer_window; /* processes of one LSA team of NCCL */

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

/* ---- a heap's life ---- */

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

#endif
