/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A symmetric heap: memory of the same size on every rank, which all ranks of its node map (idents'
 * `node`). Ranks of one process use the plain pointer, others CUDA IPC. Ranks of other nodes write
 * it through NICs, which is not seen here.
 *
 * Lifetime. Peers store into a heap until their last kernel is over, so a heap may be freed only
 * when every peer has let go of it. Replacing a heap (ep_symm_close) is collective and uses
 * barriers. Leaving (ep_symm_leave) must work without peers: a rank writes a farewell word into
 * the heap of each peer in another process and unmaps it; when all ranks of the process have left
 * it waits, for a bounded time, for the farewells to its own heap and frees it. (Ranks of one
 * thread leave one after the other; the last frees their heaps.) What peers that live but do not
 * leave might still write to is not freed. For ranks of other nodes somebody else writes the
 * farewell words; they too are waited for, but then their access is cut (ep_symm_tie).
 */
#ifndef EP_PEER_HEAP_H
#define EP_PEER_HEAP_H

#include "core/bootstrap.h"
#include "core/ident.h"

#define EP_SYMM_MAX_RANKS 64
#define EP_SYMM_HEADER_BYTES 1024 /* of a heap: taken by its stamp and the farewells */
#define EP_SYMM_STAMP_BYTES 32
#define EP_SYMM_ALIGN (2u << 20) /* own allocation for the driver, so that IPC exports only it */

struct ep_symm {
	int rank;
	int nranks;
	int device;
	uint64_t team; /* same number on all ranks of the group, unique in the process */
	uint64_t bytes;
	unsigned char *base[EP_SYMM_MAX_RANKS]; /* NULL: another node's */
	bool ipc[EP_SYMM_MAX_RANKS];            /* mapped by us, to be closed */
};

/* Bytes that a heap of `bytes` takes from cudaMalloc. */
static inline uint64_t ep_symm_bytes(uint64_t bytes)
{
	return ep_round_up(bytes, EP_SYMM_ALIGN);
}

/*
 * Whether this rank can reach the others of its node: same host, no MIG, peer access. Local; the
 * answer need not be the same on all ranks. Names the pair that cannot.
 */
ncclResult_t ep_symm_check_peers(const struct ep_ident *idents, int nranks, int rank);

/* Whether this rank's GPU is joined to its node's by NVLink, as far as CUDA tells. Local. */
bool ep_symm_all_nvlink(const struct ep_ident *idents, int nranks, int rank);

/*
 * Collective. Allocates and zeroes `bytes`, exchanges and maps. All ranks succeed or none does.
 * `mine` is this rank's result so far: a failure makes every rank fail.
 */
ncclResult_t ep_symm_open(struct ep_symm *symm, struct ep_boot *boot, const struct ep_ident *idents,
			  uint64_t team, uint64_t bytes, ncclResult_t mine);

/* Collective. All kernels of the group must be over on this rank. */
void ep_symm_close(struct ep_symm *symm, struct ep_boot *boot);

/* Ranks of one process share the duty to free their heaps; every rank joins once. */
ncclResult_t ep_symm_join(uint64_t team);

/* Takes a join back, when the group was not made. */
void ep_symm_quit(uint64_t team);

/*
 * What ties a heap to other nodes. cut is called once, by this thread or another, before the heap is
 * freed: afterwards nothing from other nodes writes it. lost tells whether a rank of another node
 * can no longer write a farewell.
 */
struct ep_symm_tie {
	void (*cut)(void *arg);
	bool (*lost)(void *arg, int rank);
	void *arg;
};

/* All kernels of the group must be over on this rank, which gives up `symm`. tie may be NULL. */
void ep_symm_leave(struct ep_symm *symm, const struct ep_ident *idents, uint64_t timeout_ns,
		   const struct ep_symm_tie *tie);

/* A rank's farewell word in a peer's heap, and what it holds then. */
#define EP_SYMM_FAREWELL(rank) (EP_SYMM_STAMP_BYTES + 8 * (uint64_t)(rank))
static inline uint64_t ep_symm_farewell_value(const struct ep_symm *symm)
{
	return symm->team;
}

#endif
