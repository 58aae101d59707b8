/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The heaps of this process, and how each ends. A rank writes a farewell to its peers. Its own heap
 * departs, and stays until no peer can write to it any more.
 */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include "core/cuda.h"
#include "core/log.h"
#include "core/process.h"
#include "peer/state.h"

#define EP_HEAP_STEP_NS 500000
#define EP_HEAP_ASK_NS 50000000
#define EP_HEAP_PATIENCE_NS 1000000000ull /* for ranks of the node */
#define EP_HEAP_HELD_NS 100000000u        /* for a device that is not the caller's */

/* All heaps of the process, under the lock. */
static pthread_mutex_t heap_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ep_heap_entry *heap_list;

ncclResult_t ep_heap_entry_new(struct ep_heap_entry **out, const struct ep_heap *heap,
			       const struct ep_ident *idents, const struct ep_peer_mapping *mapping)
{
	size_t n = (size_t)heap->nranks, bytes = n * sizeof(*idents);
	struct ep_heap_entry *e = calloc(1, sizeof(*e) + bytes + n * sizeof(bool));
	cudaError_t err = cudaSuccess;

	if (e) {
		e->head = malloc(EP_HEAP_HEADER_BYTES(heap->nranks));
	}
	if (!e || !e->head) {
		free(e);
		return ep_fail(ncclSystemError, "out of host memory");
	}
	err = cudaStreamCreateWithFlags(&e->stream, cudaStreamNonBlocking);
	if (err != cudaSuccess) {
		free(e->head);
		free(e);
		return ep_fail_cuda(err, "creating a stream");
	}
	e->maker = pthread_self();
	e->context = ep_context_now();
	e->mapping = mapping;
	e->lasting = mapping->lasting;
	e->bytes = heap->bytes;
	e->rank = heap->rank;
	e->nranks = heap->nranks;
	e->stamp = (struct ep_heap_stamp){ EP_HEAP_STAMP, heap->team, ep_random_u64(),
					   (uint64_t)heap->rank };
	e->let_go = (bool *)(e->idents + n);
	memcpy(e->idents, idents, bytes);
	/* In the list before any peer can have the group, and leave it. */
	pthread_mutex_lock(&heap_lock);
	e->next = heap_list;
	heap_list = e;
	pthread_mutex_unlock(&heap_lock);
	*out = e;
	return ncclSuccess;
}

void ep_heap_entry_free(struct ep_heap_entry *entry)
{
	struct ep_heap_entry **link = &heap_list;
	bool ended = ep_context_ended(&entry->context);

	/*
	 * Work that has begun there goes on also where a call has failed; ncclMemFree does not wait
	 * for it.
	 */
	if (!ended && cudaStreamSynchronize(entry->stream) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	if (entry->base && !entry->kept && (!ended || entry->mapping->lasting)) {
		entry->mapping->free(entry->base);
	}
	if (!ended && cudaStreamDestroy(entry->stream) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	pthread_mutex_lock(&heap_lock);
	while (*link != entry) {
		link = &(*link)->next;
	}
	*link = entry->next;
	pthread_mutex_unlock(&heap_lock);
	free(entry->remote.absent);
	free(entry->head);
	free(entry);
}

void ep_heap_entry_admit(struct ep_heap_entry *entry, int r, const struct ep_ident *ident)
{
	pthread_mutex_lock(&heap_lock);
	entry->idents[r] = *ident;
	entry->let_go[r] = false;
	pthread_mutex_unlock(&heap_lock);
}

void ep_heap_unmap(struct ep_heap *heap)
{
	bool ended = heap->entry && ep_context_ended(&heap->entry->context);

	for (int r = 0; r < heap->nranks && heap->mapping; r++) {
		if (heap->mapping[r]) {
			if (!ended || heap->mapping[r]->lasting) {
				heap->mapping[r]->unmap(heap->base[r], heap->bytes);
			}
			heap->mapping[r] = NULL;
			heap->base[r] = NULL;
		}
	}
}

ncclResult_t ep_heap_tables_new(struct ep_heap *heap)
{
	heap->base = calloc((size_t)heap->nranks, sizeof(*heap->base));
	heap->mapping = calloc((size_t)heap->nranks, sizeof(*heap->mapping));
	if (!heap->base || !heap->mapping) {
		return ep_fail(ncclSystemError, "out of host memory");
	}
	return ncclSuccess;
}

void ep_heap_tables_free(struct ep_heap *heap)
{
	free(heap->base);
	free(heap->mapping);
	heap->base = NULL;
	heap->mapping = NULL;
}

/* ---- the list of heaps, while some of them depart ---- */

/*
 * Returns whether this process has a heap that has not departed: of the same group, or of another
 * one.
 */
static bool heap_lives(const struct ep_heap_entry *entry, bool same)
{
	const struct ep_heap_entry *o = heap_list;

	while (o && (o->departed || (o->stamp.team == entry->stamp.team) != same)) {
		o = o->next;
	}
	return o != NULL;
}

/* Lets others have the lock for a while. */
static void heap_nap(void)
{
	struct timespec nap = { 0, EP_HEAP_STEP_NS };

	pthread_mutex_unlock(&heap_lock);
	nanosleep(&nap, NULL);
	pthread_mutex_lock(&heap_lock);
}

/* ---- a departed heap, in a thread of the library ---- */

/* Returns whether rank `r` is on the node of the heap. */
static bool departed_local(const struct ep_heap_entry *entry, int r)
{
	return ep_ident_same_node(&entry->idents[entry->rank], &entry->idents[r]);
}

/*
 * Returns whether a rank without a farewell will write none. `ask`: ask the system, which takes a
 * while.
 */
static bool departed_lost(const struct ep_heap_entry *entry, int r, bool ask)
{
	bool local = departed_local(entry, r);

	if (!local && (!entry->remote.cut || (entry->remote.absent && entry->remote.absent[r]))) {
		return true;
	}
	if (local && entry->lasting) {
		/* It writes none: its own mapping keeps the memory that it stores to. */
		return true;
	}
	return ask && (ep_ident_gone(&entry->idents[entry->rank], &entry->idents[r]) ||
		       (!local && entry->remote.lost(entry->remote.arg, r)));
}

/*
 * Returns a rank of another process that may still write to the heap, a remote one if there is any.
 * -1: there is none, or the heap is lost with its device. The heap's own rank: the question failed.
 */
static int departed_missing(struct ep_heap_entry *entry, uint64_t now)
{
	struct ep_heap_head *head = entry->head;
	bool ask = now - entry->asked_ns >= EP_HEAP_ASK_NS;
	int missing = -1;

	if (ep_context_ended(&entry->context)) {
		return -1;
	}
	if (cudaMemcpyAsync(head, entry->base, EP_HEAP_HEADER_BYTES(entry->nranks),
			    cudaMemcpyDefault, entry->stream) != cudaSuccess ||
	    cudaStreamSynchronize(entry->stream) != cudaSuccess) {
		bool lost = cudaStreamSynchronize(entry->stream) != cudaSuccess;

		(void)cudaGetLastError();
		return lost ? -1 : entry->rank; /* the next look asks again */
	}
	if (memcmp(&head->stamp, &entry->stamp, sizeof(entry->stamp)) != 0) {
		entry->base = NULL; /* the device was reset, and the memory is another one's */
		return -1;
	}
	entry->asked_ns = ask ? now : entry->asked_ns;
	for (int r = 0; r < entry->nranks; r++) {
		if (head->farewell[r] == entry->stamp.team ||
		    ep_ident_same_process(&entry->idents[entry->rank], &entry->idents[r]) ||
		    entry->let_go[r] || (missing >= 0 && departed_local(entry, r)) ||
		    departed_lost(entry, r, ask)) {
			continue;
		}
		missing = r;
		if (!departed_local(entry, r)) {
			break;
		}
	}
	return missing;
}

/* Logs, once, that the heap waits for a remote rank. */
static void departed_name(struct ep_heap_entry *entry, int r, uint64_t deadline_ns)
{
	uint64_t now = ep_now_ns();

	if (!entry->named) {
		EP_INFO(EP_LOG_INIT,
			"rank %d waits for rank %d (pid %d on %s), which has not destroyed the group "
			"yet, for up to %.1f s more (NCCL_EP_CLOSE_TIMEOUT_MS)",
			entry->rank, r, entry->idents[r].pid, entry->idents[r].hostname,
			now < deadline_ns ? (double)(deadline_ns - now) / 1e9 : 0.0);
	}
	entry->named = true;
}

void ep_heap_name_awaited(struct ep_heap *heap, uint64_t deadline_ns)
{
	struct ep_heap_entry *e = heap->entry;
	int r = 0;

	if (cudaMemcpyAsync(e->head, e->base, EP_HEAP_HEADER_BYTES(e->nranks), cudaMemcpyDefault,
			    e->stream) != cudaSuccess ||
	    cudaStreamSynchronize(e->stream) != cudaSuccess) {
		(void)cudaGetLastError();
		return;
	}
	while (r < e->nranks && (departed_local(e, r) || e->head->farewell[r] == e->stamp.team)) {
		r++;
	}
	if (r < e->nranks) {
		departed_name(e, r, deadline_ns);
	}
}

/* Ends the connections with remote ranks. */
static void departed_cut(struct ep_heap_entry *entry)
{
	if (entry->remote.cut) {
		entry->remote.cut(entry->remote.arg);
		entry->remote.cut = NULL; /* the heap waits for no remote rank any more */
	}
}

/* Looks at the heap and does what is due. Returns the missing rank, or -1. */
static int departed_check(struct ep_heap_entry *entry)
{
	uint64_t now = ep_now_ns();
	int r = departed_missing(entry, now);

	if (r >= 0 && !departed_local(entry, r) && now - entry->left_ns >= EP_HEAP_PATIENCE_NS) {
		departed_name(entry, r, entry->remote.deadline_ns);
	}
	if (r >= 0 && !departed_local(entry, r) && now >= entry->remote.deadline_ns) {
		EP_WARN("rank %d (pid %d on %s) has not destroyed the group: rank %d ends its "
			"connections, which rank %d may find broken; NCCL_EP_CLOSE_TIMEOUT_MS "
			"sets how long to wait",
			r, entry->idents[r].pid, entry->idents[r].hostname, entry->rank, r);
		departed_cut(entry);
		r = departed_missing(entry, now);
	}
	if (r < 0 || !departed_local(entry, r)) {
		return r;
	}
	departed_cut(entry); /* all remote ranks have left */
	if (now >= entry->deadline_ns && !entry->logged) {
		EP_WARN("rank %d (pid %d on %s) has not destroyed the group: %llu bytes of device "
			"memory of rank %d stay allocated until it does, because it may still "
			"write to them; NCCL_EP_CLOSE_TIMEOUT_MS sets when to warn",
			r, entry->idents[r].pid, entry->idents[r].hostname,
			(unsigned long long)entry->bytes, entry->rank);
		entry->logged = true;
	}
	return r;
}

/*
 * A thread: looks after a departed heap until it is freed, or until waiting is no longer
 * worthwhile.
 */
static void *departed_main(void *arg)
{
	enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
	struct ep_heap_entry *e = arg;
	bool frees_at_once = e->mapping->lasting && !e->mapping->in_host; /* by ncclMemFree */
	uint64_t start = ep_now_ns();
	bool enough = false;
	int missing;

	cudaThreadExchangeStreamCaptureMode(&mode); /* so that it may free during captures */
	if (!ep_context_ended(&e->context) &&
	    cudaSetDevice(e->idents[e->rank].device) != cudaSuccess) {
		(void)cudaGetLastError();
	}
	pthread_mutex_lock(&heap_lock);
	e->asked_ns = 0; /* the first look asks the system: in a hurry it is the only one */
	for (;;) {
		missing = e->rank;
		if (!heap_lives(e, true)) {
			pthread_mutex_unlock(&heap_lock);
			missing = departed_check(e);
			pthread_mutex_lock(&heap_lock);
		}
		enough = missing >= 0 && departed_local(e, missing) &&
			 (e->waited || ep_now_ns() - start >= e->patience_ns);
		if (missing < 0 || enough || e->hurry) {
			break;
		}
		heap_nap();
	}
	e->quiet = missing < 0 && ep_window_lives(e);
	if (missing < 0 && !e->quiet) {
		e->ending_ns = ep_now_ns();
		pthread_mutex_unlock(&heap_lock);
		/*
		 * Frees the heap once its device is at rest: cudaFree and cudaHostUnregister would
		 * wait for that, and meanwhile no thread could launch a kernel
		 * (doc/design/measurements.md). A wait for the device ends what the program
		 * captures there, so there is none where freeing needs none.
		 */
		if (!frees_at_once && !ep_context_ended(&e->context) &&
		    cudaDeviceSynchronize() != cudaSuccess) {
			(void)cudaGetLastError();
		}
		departed_cut(e);
		ep_heap_entry_free(e);
		return NULL;
	}
	if (missing >= 0 && missing != e->rank) {
		e->waited |= enough;
		EP_INFO(EP_LOG_ALLOC, "rank %d: %llu bytes stay until rank %d has left", e->rank,
			(unsigned long long)e->bytes, missing);
	}
	e->active = false;
	pthread_mutex_unlock(&heap_lock);
	return NULL;
}

/* ---- the calling thread ---- */

/* Gives a departed heap a thread, if it has none. */
static void departed_start(struct ep_heap_entry *entry, bool hurry)
{
	pthread_t thread;

	entry->hurry = hurry && (entry->hurry || !entry->active);
	if (!entry->active && ep_thread_start(&thread, departed_main, entry) == 0) {
		pthread_detach(thread);
		entry->active = true;
	}
}

/* Returns whether the caller should wait for a departed heap. */
static bool departed_busy(bool hurry, int device)
{
	const struct ep_heap_entry *e = heap_list;
	uint64_t now = ep_now_ns();

	while (e && (!e->active || (hurry && !e->hurry) ||
		     (e->ending_ns && e->idents[e->rank].device != device &&
		      now - e->ending_ns > EP_HEAP_HELD_NS))) {
		e = e->next;
	}
	return e != NULL;
}

/*
 * Looks at all departed heaps, and frees those that can be freed. `device`: the caller's, if it is
 * at rest. The lock is held.
 */
static void departed_settle(bool hurry, int device, uint64_t timeout_ns)
{
	uint64_t end = ep_now_ns() + timeout_ns + EP_HEAP_PATIENCE_NS;

	for (struct ep_heap_entry *e = heap_list; e; e = e->next) {
		if (e->departed) {
			departed_start(e, hurry);
		}
	}
	while (departed_busy(hurry, device) && ep_now_ns() < end) {
		heap_nap();
	}
}

/*
 * Ends the window of a departed heap of `comm` that waits only for this. Returns whether there was
 * one. The communicator is there, and the lock is held.
 */
static bool departed_close(ncclComm_t comm)
{
	struct ep_heap_entry *e = heap_list;

	while (e && (!e->departed || e->active || !e->quiet || e->comm != comm)) {
		e = e->next;
	}
	if (!e) {
		return false;
	}
	e->active = true; /* it gets no thread meanwhile */
	pthread_mutex_unlock(&heap_lock);
	ep_window_end(e);
	pthread_mutex_lock(&heap_lock);
	e->quiet = false;
	e->active = false;
	return true;
}

/* Does what departed_settle() does, and ends the windows of `comm`, if that is not NULL. */
static void departed_settle_all(ncclComm_t comm, bool hurry, int device, uint64_t timeout_ns)
{
	bool more = false;

	departed_settle(hurry, device, timeout_ns);
	while (comm && departed_close(comm)) {
		more = true;
	}
	if (more) {
		departed_settle(true, device, timeout_ns);
	}
}

static bool teams_have(const struct ep_heap_teams *teams, uint64_t team)
{
	uint32_t i = 0;

	while (i < teams->count && teams->team[i] != team) {
		i++;
	}
	return i < teams->count;
}

struct ep_heap_teams ep_heap_teams_now(void)
{
	struct ep_heap_teams teams = { 0 };

	pthread_mutex_lock(&heap_lock);
	for (const struct ep_heap_entry *e = heap_list; e; e = e->next) {
		if (e->departed || teams.count > EP_HEAP_TEAMS ||
		    teams_have(&teams, e->stamp.team)) {
			continue;
		}
		if (teams.count < EP_HEAP_TEAMS) {
			teams.team[teams.count] = e->stamp.team;
		}
		teams.count++;
	}
	pthread_mutex_unlock(&heap_lock);
	return teams;
}

void ep_heap_let_go(const struct ep_ident *process, const struct ep_heap_teams *alive)
{
	if (alive->count > EP_HEAP_TEAMS) {
		return; /* a later creation may know more */
	}
	pthread_mutex_lock(&heap_lock);
	for (struct ep_heap_entry *e = heap_list; e; e = e->next) {
		if (!e->departed || teams_have(alive, e->stamp.team)) {
			continue;
		}
		for (int r = 0; r < e->nranks; r++) {
			e->let_go[r] |= ep_ident_same_process(&e->idents[r], process);
		}
	}
	pthread_mutex_unlock(&heap_lock);
}

void ep_heap_reap(ncclComm_t comm)
{
	pthread_mutex_lock(&heap_lock);
	departed_settle_all(comm, true, -1, 0);
	pthread_mutex_unlock(&heap_lock);
}

void ep_heap_notify(const struct ep_heap *heap, uint64_t word)
{
	const struct ep_heap_entry *e = heap->entry;

	for (int r = 0; r < e->nranks; r++) {
		if (heap->mapping[r] && !ep_ident_gone(&e->idents[e->rank], &e->idents[r])) {
			(void)cudaMemcpyAsync(heap->base[r] + EP_HEAP_FAREWELL(e->rank), &word,
					      sizeof(word), cudaMemcpyDefault, e->stream);
		}
	}
	(void)cudaStreamSynchronize(e->stream);
	(void)cudaGetLastError();
}

/* Writes the farewell to all peers. Returns false if a call of CUDA has failed. */
static bool heap_farewell_write(const struct ep_heap *heap)
{
	const struct ep_heap_entry *e = heap->entry;
	bool written = true;

	for (int r = 0; r < e->nranks; r++) {
		unsigned char *word = heap->base[r] + EP_HEAP_FAREWELL(e->rank);

		if (heap->mapping[r] && !e->lasting &&
		    !ep_ident_same_process(&e->idents[e->rank], &e->idents[r]) &&
		    !ep_ident_gone(&e->idents[e->rank], &e->idents[r]) &&
		    cudaMemcpyAsync(word, &heap->team, 8, cudaMemcpyDefault, e->stream) !=
			    cudaSuccess) {
			written = false;
		}
	}
	written &= cudaStreamSynchronize(e->stream) == cudaSuccess;
	if (!written) {
		(void)cudaGetLastError();
	}
	return written;
}

void ep_heap_farewell(struct ep_heap *heap)
{
	/* (twice, as peers keep their heaps for a rank without a farewell) */
	if (!ep_context_ended(&heap->entry->context) && !heap_farewell_write(heap)) {
		(void)heap_farewell_write(heap);
	}
	ep_heap_unmap(heap);
}

void ep_heap_depart(struct ep_heap *heap)
{
	struct ep_heap_entry *e = heap->entry;

	EP_INFO(EP_LOG_ALLOC,
		"rank %d: %llu bytes of device memory stay until no peer has them mapped", e->rank,
		(unsigned long long)e->bytes);
	pthread_mutex_lock(&heap_lock);
	e->logged = true; /* no rank can destroy the group, so a warning would not help */
	e->departed = true;
	departed_settle(true, -1, 0);
	pthread_mutex_unlock(&heap_lock);
	ep_heap_tables_free(heap);
	memset(heap, 0, sizeof(*heap));
}

void ep_heap_leave(struct ep_heap *heap, uint64_t timeout_ns, const struct ep_heap_remote *remote)
{
	struct ep_heap_entry *e = heap->entry;
	bool hurry;

	pthread_mutex_lock(&heap_lock);
	e->left_ns = ep_now_ns();
	e->deadline_ns = e->left_ns + timeout_ns;
	e->patience_ns = ep_min_u64(timeout_ns, EP_HEAP_PATIENCE_NS);
	if (remote) {
		e->remote = *remote;
	}
	e->departed = true;
	hurry = heap_lives(e, false) ||
		(!pthread_equal(e->maker, pthread_self()) && heap_lives(e, true));
	departed_settle_all(e->comm, hurry, e->idents[e->rank].device, timeout_ns);
	pthread_mutex_unlock(&heap_lock);
	ep_heap_tables_free(heap);
	memset(heap, 0, sizeof(*heap));
}
