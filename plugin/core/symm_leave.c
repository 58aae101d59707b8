/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a heap: farewells, and the registry of ranks that share a process. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "core/log.h"
#include "core/symm.h"
#include "core/symm_internal.h"

struct ep_symm_heap {
	struct ep_symm_heap *next;
	unsigned char *base;
	uint64_t bytes;
	int rank;
	int device;
};

/* The ranks of one group that live in this process. */
struct ep_symm_team {
	struct ep_symm_team *next;
	uint64_t id;
	int members;
	struct ep_symm_heap *heaps; /* of members that have left */
};

static pthread_mutex_t ep_symm_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ep_symm_team *ep_symm_teams;

ncclResult_t ep_symm_join(uint64_t id)
{
	struct ep_symm_team *team;

	pthread_mutex_lock(&ep_symm_lock);
	for (team = ep_symm_teams; team && team->id != id; team = team->next) {
	}
	if (!team) {
		team = calloc(1, sizeof(*team));
		if (team) {
			team->id = id;
			team->next = ep_symm_teams;
			ep_symm_teams = team;
		}
	}
	if (team) {
		team->members++;
	}
	pthread_mutex_unlock(&ep_symm_lock);
	return team ? ncclSuccess : ep_fail(ncclSystemError, "out of host memory");
}

/* Takes a member, with its heap if it has one, from the team. The last gets all heaps. */
static struct ep_symm_heap *ep_symm_part(uint64_t id, struct ep_symm_heap *heap)
{
	struct ep_symm_team **link, *team;
	struct ep_symm_heap *all = NULL;

	pthread_mutex_lock(&ep_symm_lock);
	for (link = &ep_symm_teams; (team = *link) && team->id != id; link = &team->next) {
	}
	if (team && heap) {
		heap->next = team->heaps;
		team->heaps = heap;
	}
	if (team && --team->members == 0) {
		all = team->heaps;
		*link = team->next;
		free(team);
	}
	pthread_mutex_unlock(&ep_symm_lock);
	return all;
}

void ep_symm_quit(uint64_t id)
{
	/* Members either all have a group or none has: there are no heaps to be handed out. */
	(void)ep_symm_part(id, NULL);
}

static struct ep_symm_heap *ep_symm_hand_over(struct ep_symm *symm)
{
	struct ep_symm_heap *heap = calloc(1, sizeof(*heap));

	if (heap) {
		heap->base = symm->base[symm->rank];
		heap->bytes = symm->bytes;
		heap->rank = symm->rank;
		heap->device = symm->device;
	}
	return ep_symm_part(symm->team, heap);
}

static void ep_symm_farewell(struct ep_symm *symm, const struct ep_ident *idents,
			     cudaStream_t stream)
{
	for (int r = 0; r < symm->nranks; r++) {
		unsigned char *word = symm->base[r] + EP_SYMM_FAREWELL_OFF + 8 * symm->rank;

		if (symm->ipc[r] && !ep_ident_gone(&idents[symm->rank], &idents[r]) &&
		    cudaMemcpyAsync(word, &symm->team, 8, cudaMemcpyDefault, stream) !=
			    cudaSuccess) {
			(void)cudaGetLastError();
		}
	}
	if (cudaStreamSynchronize(stream) != cudaSuccess) {
		(void)cudaGetLastError();
	}
}

/* First rank of another process that still lives and has not left this heap; -1: none. */
static int ep_symm_occupant(const struct ep_symm *symm, const struct ep_symm_heap *heap,
			    const struct ep_ident *idents, cudaStream_t stream)
{
	const struct ep_ident *self = &idents[symm->rank];
	uint64_t farewell[EP_SYMM_MAX_RANKS];

	if (cudaMemcpyAsync(farewell, heap->base + EP_SYMM_FAREWELL_OFF, sizeof(farewell),
			    cudaMemcpyDefault, stream) != cudaSuccess ||
	    cudaStreamSynchronize(stream) != cudaSuccess) {
		(void)cudaGetLastError();
		return -1; /* the device is lost; so is what is on it */
	}
	for (int r = 0; r < symm->nranks; r++) {
		if (farewell[r] != symm->team && !ep_ident_same_process(self, &idents[r]) &&
		    !ep_ident_gone(self, &idents[r])) {
			return r;
		}
	}
	return -1;
}

static void ep_symm_heap_free(struct ep_symm_heap *heap)
{
	if (cudaSetDevice(heap->device) != cudaSuccess || cudaFree(heap->base) != cudaSuccess) {
		(void)cudaGetLastError();
	}
}

/* Polls in steps of a millisecond; all heaps share the budget. */
static void ep_symm_heap_end(const struct ep_symm *symm, struct ep_symm_heap *heap,
			     const struct ep_ident *idents, cudaStream_t stream,
			     uint64_t *budget_ns)
{
	const uint64_t step_ns = 1000000;
	struct timespec nap = { 0, (long)step_ns };
	int rank;

	while ((rank = ep_symm_occupant(symm, heap, idents, stream)) >= 0) {
		if (*budget_ns < step_ns) {
			EP_WARN("rank %d (pid %d on %s) has not destroyed the group: %llu bytes of "
				"device memory of rank %d stay allocated, because it may still "
				"write to them; NCCL_EP_CLOSE_TIMEOUT_MS sets how long to wait",
				rank, idents[rank].pid, idents[rank].hostname,
				(unsigned long long)heap->bytes, heap->rank);
			return;
		}
		nanosleep(&nap, NULL);
		*budget_ns -= step_ns;
	}
	ep_symm_heap_free(heap);
}

void ep_symm_leave(struct ep_symm *symm, const struct ep_ident *idents, uint64_t timeout_ns)
{
	struct ep_symm_heap *heap, *next;
	uint64_t budget_ns = timeout_ns;
	cudaStream_t stream;

	if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) {
		(void)cudaGetLastError();
		stream = NULL;
	}
	ep_symm_farewell(symm, idents, stream);
	ep_symm_unmap(symm);
	for (heap = ep_symm_hand_over(symm); heap; heap = next) {
		next = heap->next;
		ep_symm_heap_end(symm, heap, idents, stream, &budget_ns);
		free(heap);
	}
	symm->base[symm->rank] = NULL;
	if (cudaSetDevice(symm->device) != cudaSuccess ||
	    (stream && cudaStreamDestroy(stream) != cudaSuccess)) {
		(void)cudaGetLastError();
	}
}
