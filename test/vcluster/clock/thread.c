/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#include "clock/clock.h"

#define VC_KEYS 256
/*
 * Time that moves at its real pace comes to limits sooner than it was reckoned when it was moved in
 * between.
 */
#define VC_LOOK_NS 20000000

struct vc_waiter {
	struct vc_waiter *next;
	const void *key;
	struct vc_clock_slot *slot;
	_Atomic bool woken;
};

struct vc_bucket {
	_Atomic uint32_t lock; /* 0: free, 1: held, 2: held, and somebody waits */
	struct vc_waiter *first;
};

struct vc_thread {
	struct vc_thread *next;
	pthread_t id;
	struct vc_clock_slot *slot;
	void *(*fn)(void *);
	void *arg;
	bool over, forgotten;
};

struct vc_clock *vc_clock;
static int vc_proc;
static struct vc_bucket vc_bucket[VC_KEYS];
static struct vc_thread *vc_threads; /* under the lock of key &vc_threads */
static __thread struct vc_clock_slot *vc_slot;
static __thread volatile bool vc_kicked, vc_left;

static void vc_kick_handler(int number)
{
	(void)number;
	vc_kicked = true;
}

static void vc_stop(const char *why)
{
	vc_clock_report(vc_clock, why);
	_exit(VC_EXIT_STUCK);
}

static void vc_move(struct vc_clock_slot *self)
{
	const char *why = vc_clock_move(vc_clock, self);

	if (why) {
		vc_stop(why);
	}
}

/* Of threads that nobody has announced as well. */
static struct vc_clock_slot *vc_self_slot(void)
{
	if (!vc_slot && !vc_left) {
		vc_slot = vc_slot_new(vc_clock, (uint32_t)vc_proc);
		if (!vc_slot) {
			vc_stop("too many threads");
		}
		atomic_store(&vc_slot->tid, (pid_t)syscall(SYS_gettid));
		vc_slot_begin(vc_clock, vc_slot);
	}
	return vc_slot;
}

uint64_t vc_now_ns(void)
{
	return vc_clock ? vc_clock_time(vc_clock) : vc_real_now_ns();
}

uint64_t vc_pace_ns(void)
{
	return vc_clock ? vc_clock_pace(vc_clock) : vc_real_now_ns();
}

void vc_event(void)
{
	if (vc_clock) {
		atomic_fetch_add(&vc_clock->events, 1);
	}
}

/* Locks of this file are nobody else's business: sanitizers are not told. */
static struct vc_bucket *vc_key_bucket(const void *key)
{
	return &vc_bucket[((uintptr_t)key >> 4 ^ (uintptr_t)key >> 12) % VC_KEYS];
}

void vc_key_lock(const void *key)
{
	_Atomic uint32_t *lock = &vc_key_bucket(key)->lock;
	uint32_t free = 0;

	if (atomic_compare_exchange_strong(lock, &free, 1)) {
		return;
	}
	while (atomic_exchange(lock, 2)) {
		syscall(SYS_futex, lock, FUTEX_WAIT_PRIVATE, 2, NULL, NULL, 0);
	}
}

void vc_key_unlock(const void *key)
{
	_Atomic uint32_t *lock = &vc_key_bucket(key)->lock;

	if (atomic_exchange(lock, 0) == 2) {
		syscall(SYS_futex, lock, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
	}
}

/* Until `state` changes or the time has come. */
static void vc_slot_rest(struct vc_clock_slot *slot, uint64_t until)
{
	while (atomic_load(&slot->state) == VC_SLOT_WAITS) {
		uint64_t now = vc_clock_time(vc_clock), left = VC_LOOK_NS;
		struct timespec t = { 0, 0 };

		if (now >= until) {
			vc_slot_wake(vc_clock, slot);
			return;
		}
		left = until - now < left ? until - now : left;
		t.tv_nsec = (long)left;
		if (syscall(SYS_futex, &slot->state, FUTEX_WAIT, VC_SLOT_WAITS,
			    until == VC_NEVER ? NULL : &t, NULL, 0) &&
		    errno == ETIMEDOUT && left == VC_LOOK_NS) {
			vc_move(slot);
		}
	}
}

static void vc_slot_wait(enum vc_wait what, uint64_t until, const _Atomic bool *woken)
{
	struct vc_clock_slot *slot = vc_slot;
	bool last;

	vc_slot_prepare(vc_clock, slot, what, until);
	last = vc_slot_end(vc_clock, slot, VC_SLOT_WAITS, woken);
	if (last) {
		vc_move(slot);
	}
	vc_slot_rest(slot, until);
}

static void vc_waiter_remove(const struct vc_waiter *w)
{
	struct vc_waiter **at = &vc_key_bucket(w->key)->first;

	while (*at && *at != w) {
		at = &(*at)->next;
	}
	if (*at) {
		*at = w->next;
	}
}

void vc_key_wait(const void *key, enum vc_wait what, uint64_t until_ns, pthread_mutex_t *release)
{
	struct vc_waiter w = { .key = key, .slot = vc_self_slot() };
	struct vc_waiter **at = &vc_key_bucket(key)->first;

	while (*at) {
		at = &(*at)->next;
	}
	*at = &w;
	vc_key_unlock(key);
	if (release) {
		VC_REAL(pthread_mutex_unlock)(release);
	}
	vc_slot_wait(what, until_ns, &w.woken);
	vc_key_lock(key); /* whoever wakes this thread is done with `w` then */
	if (!atomic_load(&w.woken)) {
		vc_waiter_remove(&w);
	}
	vc_key_unlock(key);
}

void vc_key_wake(const void *key, uint32_t most)
{
	struct vc_waiter **at = &vc_key_bucket(key)->first;

	while (*at && most) {
		struct vc_waiter *w = *at;

		if (w->key != key) {
			at = &w->next;
			continue;
		}
		*at = w->next;
		vc_event();
		atomic_store(&w->woken, true);
		if (vc_slot_wake(vc_clock, w->slot)) {
			vc_slot_rouse(w->slot);
		}
		most--;
	}
}

void vc_sleep_until(uint64_t until_ns)
{
	vc_self_slot();
	while (vc_clock_time(vc_clock) < until_ns) {
		vc_slot_wait(VC_WAIT_SLEEP, until_ns, NULL);
	}
}

void vc_nap(enum vc_wait what, uint64_t ns)
{
	if (vc_clock) {
		vc_self_slot();
		vc_slot_wait(what, vc_clock_time(vc_clock) + ns, NULL);
	} else {
		vc_real_sleep_ns(ns);
	}
}

bool vc_kernel_begin(enum vc_wait what, uint64_t until_ns, bool sockets, bool (*ready)(void *),
		     void *arg)
{
	struct vc_clock_slot *slot = vc_self_slot();
	struct vc_patience patience = { 0, 0 };
	enum vc_move move = VC_MOVE_BUSY;
	const char *why;

	vc_kicked = false;
	vc_slot_prepare(vc_clock, slot, what, until_ns);
	vc_slot_counts(slot, sockets);
	while (vc_slot_end(vc_clock, slot, VC_SLOT_KERNEL, NULL)) {
		if (ready(arg)) {
			vc_kernel_end();
			return false;
		}
		move = vc_clock_try(vc_clock, slot);
		if (move == VC_MOVE_DONE || move == VC_MOVE_BUSY) {
			break;
		}
		/* asleep here it would look like a thread for which the kernel has nothing */
		vc_kernel_end();
		if (!vc_clock_again(move, &patience)) {
			vc_slot_end(vc_clock, slot, VC_SLOT_KERNEL, NULL);
			break;
		}
		move = VC_MOVE_BUSY; /* unless the next attempt says otherwise */
	}
	why = vc_clock_ends(vc_clock, move);
	if (why) {
		vc_stop(why);
	}
	return true;
}

void vc_kernel_end(void)
{
	struct vc_clock_slot *slot = vc_slot;

	vc_slot_begin(vc_clock, slot);
	atomic_store(&slot->state, VC_SLOT_RUNS);
}

bool vc_kernel_kicked(void)
{
	return vc_kicked;
}

static void vc_slot_leave(void)
{
	struct vc_clock_slot *slot = vc_slot;

	vc_slot = NULL;
	vc_left = true;
	if (slot && vc_slot_end(vc_clock, slot, VC_SLOT_FREE, NULL)) {
		vc_move(NULL);
	}
}

void vc_thread_leave(void)
{
	if (vc_clock) {
		vc_slot_leave();
	}
}

static void vc_thread_free(struct vc_thread *t)
{
	struct vc_thread **at = &vc_threads;

	while (*at != t) {
		at = &(*at)->next;
	}
	*at = t->next;
	free(t);
}

static void vc_thread_over(void *arg)
{
	struct vc_thread *t = arg;

	vc_key_lock(&vc_threads);
	t->over = true;
	if (t->forgotten) {
		vc_thread_free(t);
	} else {
		vc_key_wake(&vc_threads, UINT32_MAX);
	}
	vc_key_unlock(&vc_threads);
	vc_slot_leave();
}

static void *vc_thread_main(void *arg)
{
	struct vc_thread *t = arg;
	void *result;

	vc_slot = t->slot;
	atomic_store(&vc_slot->tid, (pid_t)syscall(SYS_gettid));
	pthread_cleanup_push(vc_thread_over, t);
	result = t->fn(t->arg);
	pthread_cleanup_pop(1);
	return result;
}

int vc_thread_start(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
	struct vc_thread *t = calloc(1, sizeof(*t));
	int detached = PTHREAD_CREATE_JOINABLE, error;

	if (attr) {
		pthread_attr_getdetachstate(attr, &detached);
	}
	if (!t) {
		return EAGAIN;
	}
	t->fn = fn;
	t->arg = arg;
	t->forgotten = detached == PTHREAD_CREATE_DETACHED;
	t->slot = vc_slot_new(vc_clock, (uint32_t)vc_proc);
	if (!t->slot) {
		free(t);
		return EAGAIN;
	}
	vc_slot_begin(vc_clock, t->slot);
	vc_key_lock(&vc_threads);
	t->next = vc_threads;
	vc_threads = t;
	error = VC_REAL(pthread_create)(&t->id, attr, vc_thread_main, t);
	if (error) {
		vc_slot_end(vc_clock, t->slot, VC_SLOT_FREE, NULL);
		vc_thread_free(t);
	} else {
		*thread = t->id;
	}
	vc_key_unlock(&vc_threads);
	return error;
}

static struct vc_thread *vc_thread_find(pthread_t thread)
{
	struct vc_thread *t = vc_threads;

	while (t && !pthread_equal(t->id, thread)) {
		t = t->next;
	}
	return t;
}

void vc_thread_await(pthread_t thread)
{
	struct vc_thread *t;

	vc_key_lock(&vc_threads);
	for (t = vc_thread_find(thread); t && !t->over; t = vc_thread_find(thread)) {
		vc_key_wait(&vc_threads, VC_WAIT_JOIN, VC_NEVER, NULL);
		vc_key_lock(&vc_threads);
	}
	if (t) {
		vc_thread_free(t);
	}
	vc_key_unlock(&vc_threads);
}

void vc_thread_forget(pthread_t thread)
{
	struct vc_thread *t;

	vc_key_lock(&vc_threads);
	t = vc_thread_find(thread);
	if (t && t->over) {
		vc_thread_free(t);
	} else if (t) {
		t->forgotten = true;
	}
	vc_key_unlock(&vc_threads);
}

/* In a new process there is one thread. */
static void vc_process_begin(int proc)
{
	vc_proc = proc;
	memset(vc_bucket, 0, sizeof(vc_bucket));
	vc_threads = NULL;
	vc_slot = vc_slot_new(vc_clock, (uint32_t)proc);
	if (!vc_slot) {
		vc_stop("too many threads");
	}
	atomic_store(&vc_slot->tid, (pid_t)syscall(SYS_gettid));
}

pid_t vc_process_fork(void)
{
	int proc = vc_proc_new(vc_clock, 0);
	pid_t pid = VC_REAL(fork)();

	if (pid < 0) {
		vc_proc_set(vc_clock, proc, VC_PROC_ENDED);
	} else if (pid) {
		atomic_store(&vc_clock->proc[proc].pid, pid);
	} else {
		atomic_store(&vc_clock->proc[proc].pid, getpid());
		vc_process_begin(proc);
	}
	return pid;
}

void vc_process_set(pid_t pid, enum vc_proc_state state)
{
	vc_proc_set(vc_clock, vc_proc_find(vc_clock, pid), state);
}

void vc_process_kill(pid_t pid)
{
	vc_proc_kill(vc_clock, vc_proc_find(vc_clock, pid));
}

bool vc_process_known(pid_t pid)
{
	return vc_proc_find(vc_clock, pid) >= 0;
}

/* Programs that find the C library's functions before this library's keep real time. */
static bool vc_clock_reaches(void)
{
	struct timespec none = { 0, -1 };
	int (*volatile sleeps)(const struct timespec *, struct timespec *) = nanosleep;

	return sleeps(&none, NULL) == VC_CLOCK_HERE;
}

/* VC_CLOCK: "own", a file of vcrun, or, as without it, "real". */
static struct vc_clock *vc_clock_named(void)
{
	const char *name = getenv("VC_CLOCK");

	if (!name || !*name || !strcmp(name, "real") || !vc_clock_reaches()) {
		return NULL;
	}
	return vc_clock_map(strcmp(name, "own") ? name : NULL, false);
}

__attribute__((constructor)) static void vc_clock_open(void)
{
	struct sigaction kick = { .sa_handler = vc_kick_handler };
	struct vc_clock *clock = vc_clock_named();
	sigset_t set;
	int proc;

	if (!clock) {
		return;
	}
	VC_REAL(sigaction)(VC_KICK_SIGNAL, &kick, NULL);
	sigemptyset(&set);
	sigaddset(&set, VC_KICK_SIGNAL);
	VC_REAL(pthread_sigmask)(SIG_BLOCK, &set, NULL);
	proc = vc_proc_adopt(clock, getpid());
	if (proc >= 0) {
		vc_clock = clock;
		vc_process_begin(proc);
	}
}
