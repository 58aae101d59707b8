/* SPDX-License-Identifier: Apache-2.0 */
/* The end of a heap: farewells, and the registry of ranks that share a process. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "core/log.h"
#include "peer/heap.h"
#include "peer/internal.h"

#define EP_SYMM_STEP_NS 1000000
#define EP_SYMM_ASK_NS 50000000

/* A heap whose owner has left the group. */
struct ep_symm_heap {
	struct ep_symm_heap *next;
	pthread_t thread; /* that will free it */
	bool abandoned;   /* it will not: whoever leaves last does */
	unsigned char *base;
	uint64_t bytes;
	int rank;
	int device;
	bool tied;
	struct ep_symm_tie tie;
};

/* A rank of this process that has not left. */
struct ep_symm_member {
	struct ep_symm_member *next;
	pthread_t thread; /* that made the group */
};

struct ep_symm_team {
	struct ep_symm_team *next;
	uint64_t id;
	struct ep_symm_member *members;
	struct ep_symm_heap *heaps;
	int waiting; /* threads */
};

/*
 * cudaFree waits for the heap's device, which may already run the next collective of its owner, and
 * that one waits for us: so a rank's heap is freed by a thread that still has to come to it. Ranks
 * of several threads wait for each other; ranks of one thread leave one after the other, and the
 * last of them waits and frees. A rank that another thread than its maker destroys waits for nobody.
 */
static pthread_mutex_t ep_symm_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t ep_symm_left = PTHREAD_COND_INITIALIZER;
static struct ep_symm_team *ep_symm_teams;

static struct ep_symm_team *ep_symm_team_find(uint64_t id)
{
	struct ep_symm_team *team;

	for (team = ep_symm_teams; team && team->id != id; team = team->next) {
	}
	return team;
}

static struct ep_symm_team *ep_symm_team_make(uint64_t id)
{
	struct ep_symm_team *team = calloc(1, sizeof(*team));

	if (team) {
		team->id = id;
		team->next = ep_symm_teams;
		ep_symm_teams = team;
	}
	return team;
}

/* Frees the team when nothing refers to it any more. */
static void ep_symm_team_drop(struct ep_symm_team *team)
{
	struct ep_symm_team **link = &ep_symm_teams;

	if (team->members || team->heaps || team->waiting) {
		return;
	}
	while (*link != team) {
		link = &(*link)->next;
	}
	*link = team->next;
	free(team);
}

ncclResult_t ep_symm_join(uint64_t id)
{
	struct ep_symm_member *member = calloc(1, sizeof(*member));
	struct ep_symm_team *team;

	if (!member) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	pthread_mutex_lock(&ep_symm_lock);
	team = ep_symm_team_find(id);
	if (!team) {
		team = ep_symm_team_make(id);
	}
	if (team) {
		member->thread = pthread_self();
		member->next = team->members;
		team->members = member;
	}
	pthread_mutex_unlock(&ep_symm_lock);
	if (!team) {
		free(member);
		return ep_fail(ncclSystemError, "out of host memory");
	}
	return ncclSuccess;
}

static struct ep_symm_member **ep_symm_member_of(struct ep_symm_team *team, pthread_t thread)
{
	struct ep_symm_member **link = &team->members;

	while (*link && !pthread_equal((*link)->thread, thread)) {
		link = &(*link)->next;
	}
	return link;
}

/* Takes a member from the team, one of this thread if there is one; false if there was none. */
static bool ep_symm_part(struct ep_symm_team *team)
{
	struct ep_symm_member **link = ep_symm_member_of(team, pthread_self());
	bool mine = *link != NULL;
	struct ep_symm_member *member;

	link = mine ? link : &team->members;
	member = *link;
	if (member) {
		*link = member->next;
		free(member);
	}
	if (!team->members) {
		pthread_cond_broadcast(&ep_symm_left);
	}
	return mine;
}

void ep_symm_quit(uint64_t id)
{
	struct ep_symm_team *team;

	pthread_mutex_lock(&ep_symm_lock);
	team = ep_symm_team_find(id);
	if (team) {
		/* Members either all have a group or none has: there are no heaps. */
		(void)ep_symm_part(team);
		ep_symm_team_drop(team);
	}
	pthread_mutex_unlock(&ep_symm_lock);
}

/* Waits until all members have left. */
static void ep_symm_await_members(struct ep_symm_team *team, uint64_t deadline_ns)
{
	team->waiting++;
	while (team->members && ep_now_ns() < deadline_ns) {
		struct timespec end;

		clock_gettime(CLOCK_REALTIME, &end);
		end.tv_nsec += EP_SYMM_STEP_NS;
		if (end.tv_nsec >= 1000000000) {
			end.tv_nsec -= 1000000000;
			end.tv_sec++;
		}
		(void)pthread_cond_timedwait(&ep_symm_left, &ep_symm_lock, &end);
	}
	team->waiting--;
}

/* The heaps that this thread has to free now. */
static struct ep_symm_heap *ep_symm_take(struct ep_symm_team *team)
{
	struct ep_symm_heap **link = &team->heaps, *heap, *taken = NULL;

	while ((heap = *link)) {
		bool mine = pthread_equal(heap->thread, pthread_self());

		if (!team->members && (mine || heap->abandoned)) {
			*link = heap->next;
			heap->next = taken;
			taken = heap;
			continue;
		}
		heap->abandoned |= mine;
		link = &heap->next;
	}
	return taken;
}

/* Gives our heap to the team, and returns the heaps to be freed. */
static struct ep_symm_heap *ep_symm_hand_over(struct ep_symm *symm, const struct ep_symm_tie *tie,
					      uint64_t deadline_ns)
{
	struct ep_symm_heap *heap = calloc(1, sizeof(*heap)), *taken = NULL;
	struct ep_symm_team *team;
	bool mine;

	pthread_mutex_lock(&ep_symm_lock);
	team = ep_symm_team_find(symm->team);
	mine = team && ep_symm_part(team);
	if (team && heap) {
		heap->base = symm->base[symm->rank];
		heap->bytes = symm->bytes;
		heap->rank = symm->rank;
		heap->device = symm->device;
		heap->thread = pthread_self();
		heap->abandoned = !mine;
		heap->tied = tie != NULL;
		if (tie) {
			heap->tie = *tie;
		}
		heap->next = team->heaps;
		team->heaps = heap;
	}
	if (team && (!mine || !*ep_symm_member_of(team, pthread_self()))) {
		if (mine) {
			ep_symm_await_members(team, deadline_ns);
		}
		taken = ep_symm_take(team);
	}
	if (tie && (!team || !heap)) {
		tie->cut(tie->arg); /* the heap stays allocated */
	}
	if (team) {
		ep_symm_team_drop(team);
	}
	pthread_mutex_unlock(&ep_symm_lock);
	return taken;
}

static void ep_symm_farewell(struct ep_symm *symm, const struct ep_ident *idents,
			     cudaStream_t stream)
{
	for (int r = 0; r < symm->nranks; r++) {
		unsigned char *word = symm->base[r] + EP_SYMM_FAREWELL(symm->rank);

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

/*
 * First rank of another process that still lives and has not left this heap; -1: none. `ask`: find
 * out whether ranks of other nodes are lost, which takes a while.
 */
static int ep_symm_occupant(const struct ep_symm *symm, const struct ep_symm_heap *heap,
			    const struct ep_ident *idents, cudaStream_t stream, bool ask)
{
	const struct ep_ident *self = &idents[symm->rank];
	uint64_t farewell[EP_SYMM_MAX_RANKS];

	if (cudaMemcpyAsync(farewell, heap->base + EP_SYMM_FAREWELL(0), sizeof(farewell),
			    cudaMemcpyDefault, stream) != cudaSuccess ||
	    cudaStreamSynchronize(stream) != cudaSuccess) {
		(void)cudaGetLastError();
		return -1; /* the device is lost; so is what is on it */
	}
	for (int r = 0; r < symm->nranks; r++) {
		bool remote = !ep_ident_same_node(&idents[heap->rank], &idents[r]);

		if (farewell[r] == symm->team || ep_ident_same_process(self, &idents[r]) ||
		    ep_ident_gone(self, &idents[r])) {
			continue;
		}
		if (!remote || (heap->tied && !(ask && heap->tie.lost(heap->tie.arg, r)))) {
			return r;
		}
	}
	return -1;
}

static void ep_symm_heap_cut(struct ep_symm_heap *heap)
{
	if (cudaSetDevice(heap->device) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	if (heap->tied) {
		heap->tie.cut(heap->tie.arg);
		heap->tied = false; /* no rank of another node is waited for any more */
	}
}

/*
 * Polls in steps of a millisecond; all heaps share the time. Ranks of other nodes that do not
 * come are no reason to keep the memory, only their access is one.
 */
static void ep_symm_heap_end(const struct ep_symm *symm, struct ep_symm_heap *heap,
			     const struct ep_ident *idents, cudaStream_t stream,
			     uint64_t deadline_ns)
{
	struct timespec nap = { 0, EP_SYMM_STEP_NS };
	uint64_t asked = 0;
	int rank;

	for (;;) {
		uint64_t now = ep_now_ns();
		bool ask = now - asked >= EP_SYMM_ASK_NS;

		asked = ask ? now : asked;
		rank = ep_symm_occupant(symm, heap, idents, stream, ask);
		if (rank < 0) {
			break;
		}
		if (now >= deadline_ns && !ep_ident_same_node(&idents[heap->rank], &idents[rank])) {
			EP_WARN("rank %d (pid %d on %s) has not destroyed the group: rank %d ends "
				"its connections, which rank %d may find broken; "
				"NCCL_EP_CLOSE_TIMEOUT_MS sets how long to wait",
				rank, idents[rank].pid, idents[rank].hostname, heap->rank, rank);
			ep_symm_heap_cut(heap);
			continue;
		}
		if (now >= deadline_ns) {
			ep_symm_heap_cut(heap);
			EP_WARN("rank %d (pid %d on %s) has not destroyed the group: %llu bytes of "
				"device memory of rank %d stay allocated, because it may still "
				"write to them; NCCL_EP_CLOSE_TIMEOUT_MS sets how long to wait",
				rank, idents[rank].pid, idents[rank].hostname,
				(unsigned long long)heap->bytes, heap->rank);
			return;
		}
		nanosleep(&nap, NULL);
	}
	ep_symm_heap_cut(heap);
	if (cudaFree(heap->base) != cudaSuccess) {
		(void)cudaGetLastError();
	}
}

void ep_symm_leave(struct ep_symm *symm, const struct ep_ident *idents, uint64_t timeout_ns,
		   const struct ep_symm_tie *tie)
{
	struct ep_symm_heap *heap, *next;
	uint64_t deadline_ns = ep_now_ns() + timeout_ns;
	cudaStream_t stream;

	if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) {
		(void)cudaGetLastError();
		stream = NULL;
	}
	ep_symm_farewell(symm, idents, stream);
	ep_symm_unmap(symm);
	for (heap = ep_symm_hand_over(symm, tie, deadline_ns); heap; heap = next) {
		next = heap->next;
		ep_symm_heap_end(symm, heap, idents, stream, deadline_ns);
		free(heap);
	}
	symm->base[symm->rank] = NULL;
	if (cudaSetDevice(symm->device) != cudaSuccess ||
	    (stream && cudaStreamDestroy(stream) != cudaSuccess)) {
		(void)cudaGetLastError();
	}
}
