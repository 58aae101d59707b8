/* SPDX-License-Identifier: Apache-2.0 */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include "clock/page.h"
#include "clock/clock.h"

/* A clock that was moved by so much in a run is moved by naps that wait for what never comes. */
#define VC_MOVED_MOST_NS (48 * 3600 * UINT64_C(1000000000))
#define VC_TICK_NS 2000000
#define VC_RETRY_NS 20000
#define VC_RETRIES 500
#define VC_STRETCH 32
#define VC_STUCK_NS 10000000
#define VC_STUCK_LOOKS 50

/*
 * Finds ksoftirqd of the processors that the run may use: a packet is delivered where it is sent.
 * Kernel threads are among the first processes of a machine.
 */
static void vc_clock_find_softirq(struct vc_clock *clock)
{
	long cpus = sysconf(_SC_NPROCESSORS_CONF);
	uint32_t n = 0;
	cpu_set_t set;

	if (sched_getaffinity(0, sizeof(set), &set)) {
		memset(&set, 0xff, sizeof(set));
	}

	for (int pid = 2; pid < 64 + 16 * cpus && n < VC_CLOCK_CPUS; pid++) {
		char path[32], name[32];
		int cpu;

		snprintf(path, sizeof(path), "/proc/%d/comm", pid);
		if (vc_real_read_file(path, name, sizeof(name)) > 0 &&
		    sscanf(name, "ksoftirqd/%d", &cpu) == 1 && cpu >= 0 &&
		    (cpu >= CPU_SETSIZE || CPU_ISSET(cpu, &set))) {
			clock->softirq[n++] = pid;
		}
	}
}

struct vc_clock *vc_clock_map(const char *path, bool create)
{
	int fd = -1, flags = MAP_SHARED | MAP_ANONYMOUS;
	void *at;

	if (path) {
		fd = open(path, O_RDWR | O_CLOEXEC | (create ? O_CREAT : 0), 0600);
		if (fd < 0 || (create && ftruncate(fd, sizeof(struct vc_clock)))) {
			return NULL;
		}
		flags = MAP_SHARED;
	}
	at = mmap(NULL, sizeof(struct vc_clock), PROT_READ | PROT_WRITE, flags | MAP_NORESERVE, fd,
		  0);
	if (fd >= 0) {
		close(fd);
	}
	if (at == MAP_FAILED) {
		return NULL;
	}
	if (!path || create) {
		vc_clock_find_softirq(at);
	}
	return at;
}

int vc_proc_new(struct vc_clock *clock, pid_t pid)
{
	for (uint32_t i = 0; i < VC_CLOCK_PROCS; i++) {
		struct vc_clock_proc *p = &clock->proc[i];
		uint32_t state = VC_PROC_FREE, n;

		if (atomic_load(&p->state) != VC_PROC_FREE ||
		    !atomic_compare_exchange_strong(&p->state, &state, VC_PROC_STOPPED)) {
			continue;
		}
		atomic_store(&p->running, 1);
		atomic_store(&p->pid, pid);
		atomic_store(&p->state, VC_PROC_LIVE);
		n = atomic_load(&clock->nprocs);
		while (n < i + 1 && !atomic_compare_exchange_weak(&clock->nprocs, &n, i + 1)) {
		}
		return (int)i;
	}
	return -1;
}

int vc_proc_find(struct vc_clock *clock, pid_t pid)
{
	for (uint32_t i = 0; i < atomic_load(&clock->nprocs); i++) {
		uint32_t state = atomic_load(&clock->proc[i].state);

		if ((state == VC_PROC_LIVE || state == VC_PROC_STOPPED) &&
		    atomic_load(&clock->proc[i].pid) == pid) {
			return (int)i;
		}
	}
	return -1;
}

static void vc_proc_free_slots(struct vc_clock *clock, uint32_t proc)
{
	for (uint32_t i = 0; i < atomic_load(&clock->nslots); i++) {
		if (atomic_load(&clock->slot[i].proc) == proc) {
			atomic_store(&clock->slot[i].state, VC_SLOT_FREE);
		}
	}
}

int vc_proc_adopt(struct vc_clock *clock, pid_t pid)
{
	int proc = vc_proc_find(clock, pid);

	if (proc < 0) {
		return vc_proc_new(clock, pid);
	}
	vc_proc_free_slots(clock, (uint32_t)proc);
	atomic_store(&clock->proc[proc].running, 1);
	return proc;
}

void vc_proc_set(struct vc_clock *clock, int proc, enum vc_proc_state state)
{
	if (proc < 0) {
		return;
	}
	if (state == VC_PROC_LIVE) {
		atomic_fetch_add(&clock->sequence, 1);
	}
	atomic_store(&clock->proc[proc].state, state);
	vc_clock_traffic(clock); /* the kernel has closed its connections */
	if (state == VC_PROC_ENDED) {
		vc_proc_free_slots(clock, (uint32_t)proc);
		atomic_store(&clock->proc[proc].state, VC_PROC_FREE);
	}
}

void vc_proc_kill(struct vc_clock *clock, int proc)
{
	if (proc >= 0) {
		atomic_fetch_add(&clock->proc[proc].running, 1);
		vc_proc_set(clock, proc, VC_PROC_LIVE);
	}
}

struct vc_clock_slot *vc_slot_new(struct vc_clock *clock, uint32_t proc)
{
	for (uint32_t i = 0; i < VC_CLOCK_SLOTS; i++) {
		struct vc_clock_slot *slot = &clock->slot[i];
		uint32_t state = VC_SLOT_FREE, n;

		if (atomic_load(&slot->state) != VC_SLOT_FREE ||
		    !atomic_compare_exchange_strong(&slot->state, &state, VC_SLOT_RUNS)) {
			continue;
		}
		atomic_store(&slot->proc, proc);
		atomic_store(&slot->tid, 0);
		atomic_store(&slot->nap_events, VC_NEVER); /* it has not napped yet */
		n = atomic_load(&clock->nslots);
		while (n < i + 1 && !atomic_compare_exchange_weak(&clock->nslots, &n, i + 1)) {
		}
		return slot;
	}
	return NULL;
}

void vc_slot_begin(struct vc_clock *clock, struct vc_clock_slot *slot)
{
	atomic_fetch_add(&clock->proc[atomic_load(&slot->proc)].running, 1);
	atomic_fetch_add(&clock->sequence, 1);
}

void vc_slot_prepare(struct vc_clock *clock, struct vc_clock_slot *slot, enum vc_wait what,
		     uint64_t until_ns)
{
	uint64_t now = vc_clock_time(clock), events = atomic_load(&clock->events);
	uint64_t before = atomic_load(&slot->until_ns) - atomic_load(&slot->since_ns);

	if (atomic_load(&slot->nap_events) != events || atomic_load(&slot->what) != what ||
	    before / 4 > until_ns - now || before < (until_ns - now) / 4) {
		atomic_store(&slot->nap_since_ns, now);
		atomic_store(&slot->nap_events, events);
	}
	atomic_store(&slot->since_ns, now);
	atomic_store(&slot->until_ns, until_ns);
	atomic_store(&slot->what, what);
	atomic_store(&slot->sockets, false);
	atomic_store(&slot->asleep, ((atomic_load(&slot->asleep) >> 48) + 1) << 48 | VC_TRAFFIC);
}

void vc_slot_counts(struct vc_clock_slot *slot, bool sockets)
{
	atomic_store(&slot->sockets, sockets);
}

bool vc_slot_end(struct vc_clock *clock, struct vc_clock_slot *slot, enum vc_slot_state state,
		 const _Atomic bool *woken)
{
	struct vc_clock_proc *proc = &clock->proc[atomic_load(&slot->proc)];
	uint32_t waits = state;

	atomic_store(&slot->state, state);
	if (woken && atomic_load(woken) &&
	    atomic_compare_exchange_strong(&slot->state, &waits, VC_SLOT_RUNS)) {
		return false; /* it has counted all the time */
	}
	return atomic_fetch_sub(&proc->running, 1) == 1;
}

bool vc_slot_wake(struct vc_clock *clock, struct vc_clock_slot *slot)
{
	uint32_t state = atomic_load(&slot->state);

	if (state != VC_SLOT_WAITS) {
		return false;
	}
	/*
	 * It counts before it can run: it may wait again at once, and must not find that nothing
	 * runs.
	 */
	vc_slot_begin(clock, slot);
	if (atomic_compare_exchange_strong(&slot->state, &state, VC_SLOT_RUNS)) {
		return true;
	}
	atomic_fetch_sub(&clock->proc[atomic_load(&slot->proc)].running, 1);
	return false;
}

void vc_slot_rouse(struct vc_clock_slot *slot)
{
	syscall(SYS_futex, &slot->state, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* Where nobody is left, nothing is to be moved. */
static bool vc_clock_running(struct vc_clock *clock)
{
	bool any = false;

	for (uint32_t i = 0; i < atomic_load(&clock->nprocs); i++) {
		if (atomic_load(&clock->proc[i].state) == VC_PROC_LIVE) {
			any = true;
			if (atomic_load(&clock->proc[i].running) > 0) {
				return true;
			}
		}
	}
	return !any;
}

/* The thread's state in /proc: a letter. 'X': it has ended. 0: that cannot be told. */
static char vc_thread_state(pid_t pid, pid_t tid)
{
	char path[64], text[96], *state;
	long n;

	snprintf(path, sizeof(path), "/proc/%d/task/%d/stat", (int)pid, (int)tid);
	n = vc_real_read_file(path, text, sizeof(text));
	if (n < 0 && n != -ENOENT && n != -ESRCH) {
		return 0;
	}
	state = strrchr(text, ')');
	return state && state[1] == ' ' ? state[2] : 'X';
}

/*
 * Is the slot's thread asleep in the kernel? One that has ended is; where that cannot be told it is
 * not.
 */
static bool vc_slot_asleep(struct vc_clock *clock, const struct vc_clock_slot *slot)
{
	char state = vc_thread_state(atomic_load(&clock->proc[atomic_load(&slot->proc)].pid),
				     atomic_load(&slot->tid));

	return state == 'S' || state == 'Z' || state == 'X';
}

/*
 * Has the kernel nothing for the slot's thread? Unless `anew`, it is not asked again before
 * something was sent.
 */
static bool vc_slot_unheard(struct vc_clock *clock, struct vc_clock_slot *slot, uint64_t traffic,
			    bool anew)
{
	uint64_t asleep = atomic_load(&slot->asleep), wait = asleep & ~VC_TRAFFIC;

	traffic &= VC_TRAFFIC;
	if (!anew && (asleep & VC_TRAFFIC) == traffic && atomic_load(&slot->sockets)) {
		return true;
	}
	if (!vc_slot_asleep(clock, slot)) {
		return false;
	}
	atomic_compare_exchange_strong(&slot->asleep, &asleep, wait | traffic);
	return true;
}

void vc_clock_traffic(struct vc_clock *clock)
{
	atomic_fetch_add(&clock->traffic, 1);
}

/*
 * Has the kernel delivered all that was sent? Who sends runs until it has counted that, so what a
 * thread that runs may send meanwhile changes `traffic`. A ksoftirqd that is parked, or idle, has
 * nothing to do.
 */
static bool vc_clock_delivered(struct vc_clock *clock, uint64_t traffic)
{
	if (atomic_load(&clock->quiet) == traffic) {
		return true;
	}
	for (uint32_t i = 0; i < VC_CLOCK_CPUS && clock->softirq[i]; i++) {
		char state = vc_thread_state(clock->softirq[i], clock->softirq[i]);

		if (state == 'R' || !state) {
			return false;
		}
	}
	atomic_store(&clock->quiet, traffic);
	return true;
}

/* Processor time of the run since the last call. */
static uint64_t vc_clock_cpu(struct vc_clock *clock)
{
	uint64_t sum = 0;

	for (uint32_t i = 0; i < atomic_load(&clock->nprocs); i++) {
		struct vc_clock_proc *p = &clock->proc[i];
		struct timespec t;
		clockid_t id;
		uint64_t now, before;

		if (atomic_load(&p->state) != VC_PROC_LIVE ||
		    clock_getcpuclockid(atomic_load(&p->pid), &id) || vc_real_clock(id, &t)) {
			continue;
		}
		now = (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
		before = atomic_exchange(&p->cpu_ns, now);
		sum += now > before ? now - before : 0;
	}
	return sum;
}

/*
 * Could a thread run that has no processor? One that waits in a way that the clock does not know is
 * no such thread.
 */
static bool vc_clock_starves(struct vc_clock *clock)
{
	for (uint32_t i = 0; i < atomic_load(&clock->nslots); i++) {
		const struct vc_clock_slot *slot = &clock->slot[i];

		if (atomic_load(&slot->state) == VC_SLOT_RUNS &&
		    atomic_load(&clock->proc[atomic_load(&slot->proc)].state) == VC_PROC_LIVE &&
		    !vc_slot_asleep(clock, slot)) {
			return true;
		}
	}
	return false;
}

/* Takes back what real time has gone further than the processors have worked for this run. */
static void vc_clock_tick(struct vc_clock *clock, uint64_t real)
{
	uint64_t before = atomic_load(&clock->tick_ns), cpu;

	if ((int64_t)(real - before) < VC_TICK_NS ||
	    !atomic_compare_exchange_strong(&clock->tick_ns, &before, real)) {
		return;
	}
	cpu = vc_clock_cpu(clock);
	if (before && cpu < real - before && vc_clock_starves(clock)) {
		atomic_fetch_sub(&clock->offset_ns, (int64_t)(real - before - cpu));
	}
}

uint64_t vc_clock_time(struct vc_clock *clock)
{
	uint64_t shown = atomic_load(&clock->shown_ns), real = vc_real_now_ns(), now;

	vc_clock_tick(clock, real);
	now = real + (uint64_t)atomic_load(&clock->offset_ns);
	while (now > shown) {
		if (atomic_compare_exchange_weak(&clock->shown_ns, &shown, now)) {
			return now;
		}
	}
	return shown;
}

uint64_t vc_clock_pace(struct vc_clock *clock)
{
	uint64_t real = vc_real_now_ns();

	vc_clock_tick(clock, real);
	return real + (uint64_t)atomic_load(&clock->offset_ns) - atomic_load(&clock->moved_ns);
}

static void vc_clock_reach(struct vc_clock *clock, uint64_t until)
{
	int64_t offset = atomic_load(&clock->offset_ns);

	for (;;) {
		uint64_t now = vc_real_now_ns() + (uint64_t)offset;

		if (now >= until) {
			return;
		}
		if (atomic_compare_exchange_strong(&clock->offset_ns, &offset,
						   offset + (int64_t)(until - now))) {
			atomic_fetch_add(&clock->moved_ns, until - now);
			return;
		}
	}
}

static void vc_slot_kick(struct vc_clock *clock, const struct vc_clock_slot *slot)
{
	pid_t tid = atomic_load(&slot->tid);

	if (tid) {
		syscall(SYS_tgkill, atomic_load(&clock->proc[atomic_load(&slot->proc)].pid), tid,
			VC_KICK_SIGNAL);
	}
}

static void vc_clock_wake_due(struct vc_clock *clock, const struct vc_clock_slot *self)
{
	uint64_t now = vc_clock_time(clock);

	for (uint32_t i = 0; i < atomic_load(&clock->nslots); i++) {
		struct vc_clock_slot *slot = &clock->slot[i];
		uint32_t state = atomic_load(&slot->state);

		if (state < VC_SLOT_WAITS || atomic_load(&slot->until_ns) > now ||
		    atomic_load(&clock->proc[atomic_load(&slot->proc)].state) != VC_PROC_LIVE) {
			continue;
		}
		if (state == VC_SLOT_WAITS) {
			if (vc_slot_wake(clock, slot) && slot != self) {
				vc_slot_rouse(slot);
			}
		} else if (slot != self) {
			vc_slot_kick(clock, slot);
		}
	}
}

/* Until when the thread lets the clock go. */
static uint64_t vc_slot_limit(const struct vc_clock *clock, const struct vc_clock_slot *slot)
{
	uint64_t until = atomic_load(&slot->until_ns), begun = atomic_load(&slot->since_ns), more,
		 most;
	uint32_t what = atomic_load(&slot->what);

	if ((what != VC_WAIT_SLEEP && what != VC_WAIT_POLL) || until == VC_NEVER ||
	    until <= begun || atomic_load(&slot->nap_events) != atomic_load(&clock->events)) {
		return until;
	}
	more = (begun - atomic_load(&slot->nap_since_ns)) / 8;
	most = (until - begun) * VC_STRETCH;
	return until + (more < most ? more : most);
}

/*
 * The earliest limit of all waits. False if a thread is about to wait in the kernel, or to come
 * back.
 */
static bool vc_limit_find(struct vc_clock *clock, const struct vc_clock_slot *self, bool anew,
			  uint64_t *first_ns)
{
	uint64_t traffic = atomic_load(&clock->traffic);

	*first_ns = VC_NEVER;
	for (uint32_t i = 0; i < atomic_load(&clock->nslots); i++) {
		struct vc_clock_slot *slot = &clock->slot[i];
		uint32_t state = atomic_load(&slot->state);
		uint64_t limit;

		if (state < VC_SLOT_WAITS ||
		    atomic_load(&clock->proc[atomic_load(&slot->proc)].state) != VC_PROC_LIVE) {
			continue;
		}
		/* what was delivered before a thread is asked has made it runnable */
		if (state == VC_SLOT_KERNEL &&
		    (!vc_clock_delivered(clock, traffic) ||
		     (slot != self && !vc_slot_unheard(clock, slot, traffic, anew)))) {
			return false;
		}
		limit = vc_slot_limit(clock, slot);
		*first_ns = limit < *first_ns ? limit : *first_ns;
	}
	return true;
}

enum vc_move vc_clock_try(struct vc_clock *clock, const struct vc_clock_slot *self)
{
	uint64_t first_ns, sequence = atomic_load(&clock->sequence);
	bool far;

	if (vc_clock_running(clock)) {
		return VC_MOVE_BUSY;
	}
	if (!vc_limit_find(clock, self, false, &first_ns)) {
		return VC_MOVE_AGAIN;
	}
	/* timers of TCP send, too, and nobody counts that */
	far = first_ns > atomic_load(&clock->asked_ns);
	if (far && !vc_limit_find(clock, self, true, &first_ns)) {
		return VC_MOVE_AGAIN;
	}
	if (atomic_load(&clock->sequence) != sequence) {
		return VC_MOVE_BUSY;
	}
	if (first_ns == VC_NEVER) {
		return VC_MOVE_STUCK;
	}
	if (far) {
		atomic_store(&clock->asked_ns, first_ns + VC_UNASKED_NS);
	}
	vc_clock_reach(clock, first_ns);
	vc_clock_wake_due(clock, self);
	return VC_MOVE_DONE;
}

void vc_clock_report(struct vc_clock *clock, const char *why)
{
	static const char *const name[VC_WAITS] = {
		[VC_WAIT_SLEEP] = "sleeps",
		[VC_WAIT_COND] = "waits for a condition",
		[VC_WAIT_SEM] = "waits for a semaphore",
		[VC_WAIT_BARRIER] = "waits in a barrier",
		[VC_WAIT_JOIN] = "waits for the end of a thread",
		[VC_WAIT_POLL] = "waits for a descriptor",
		[VC_WAIT_CHILD] = "waits for a child",
		[VC_WAIT_WORD] = "polls words of memory",
	};
	uint64_t now = vc_clock_time(clock);

	fprintf(stderr, "vcluster: clock: %s\n", why);
	for (uint32_t i = 0; i < atomic_load(&clock->nslots); i++) {
		const struct vc_clock_slot *slot = &clock->slot[i];
		uint64_t until = atomic_load(&slot->until_ns);

		if (atomic_load(&slot->state) < VC_SLOT_WAITS) {
			continue;
		}
		fprintf(stderr, "vcluster:   process %d thread %d %s",
			(int)atomic_load(&clock->proc[atomic_load(&slot->proc)].pid),
			(int)atomic_load(&slot->tid), name[atomic_load(&slot->what) % VC_WAITS]);
		if (until == VC_NEVER) {
			fprintf(stderr, " without a limit\n");
		} else {
			fprintf(stderr, " for %.6f s more\n", (double)(int64_t)(until - now) / 1e9);
		}
	}
	fflush(stderr);
}

bool vc_clock_again(enum vc_move move, struct vc_patience *p)
{
	if (move == VC_MOVE_AGAIN && ++p->again < VC_RETRIES) {
		vc_real_sleep_ns(VC_RETRY_NS);
		return true;
	}
	if (move == VC_MOVE_STUCK && ++p->stuck <= VC_STUCK_LOOKS) {
		vc_real_sleep_ns(VC_STUCK_NS);
		return true;
	}
	return false;
}

const char *vc_clock_ends(struct vc_clock *clock, enum vc_move move)
{
	return move == VC_MOVE_STUCK ? "no thread runs, and no wait has a limit"
	       : atomic_load(&clock->moved_ns) > VC_MOVED_MOST_NS
		       ? "it was moved by two days: a thread that naps waits in vain"
		       : NULL;
}

const char *vc_clock_move(struct vc_clock *clock, struct vc_clock_slot *self)
{
	uint64_t sequence = atomic_load(&clock->sequence);
	struct vc_patience patience = { 0, 0 };
	enum vc_move move;

	do {
		move = vc_clock_try(clock, self);
		/* a thread that has begun to run looks when it waits */
	} while (atomic_load(&clock->sequence) == sequence && vc_clock_again(move, &patience));
	return vc_clock_ends(clock,
			     atomic_load(&clock->sequence) == sequence ? move : VC_MOVE_BUSY);
}

static int (*vc_real_gettime)(clockid_t, struct timespec *);

/*
 * AddressSanitizer looks at the clock in the middle of malloc() and free(), which dlsym() calls:
 * this look-up is over before any other one begins.
 */
__attribute__((constructor(101))) static void vc_real_begin(void)
{
	void *fn = dlsym(RTLD_NEXT, "clock_gettime");

	memcpy(&vc_real_gettime, &fn, sizeof(fn));
}

int vc_real_clock(clockid_t id, struct timespec *t)
{
	return vc_real_gettime ? vc_real_gettime(id, t) : (int)syscall(SYS_clock_gettime, id, t);
}

void *vc_real_find(_Atomic(void *) *found, const char *name)
{
	void *fn = atomic_load_explicit(found, memory_order_relaxed);

	if (!fn) {
		fn = dlsym(RTLD_NEXT, name);
		/*
		 * A program's own libraries come before those that a preloaded library needs:
		 * before this one.
		 */
		fn = fn ? fn : dlsym(RTLD_DEFAULT, name);
		if (!fn) {
			abort(); /* a C library without it would not have started this program */
		}
		atomic_store_explicit(found, fn, memory_order_relaxed);
	}
	return fn;
}

uint64_t vc_real_now_ns(void)
{
	struct timespec t;

	vc_real_clock(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

void vc_real_sleep_ns(uint64_t ns)
{
	struct timespec t = { (time_t)(ns / 1000000000u), (long)(ns % 1000000000u) };

	VC_REAL(nanosleep)(&t, NULL);
}

long vc_real_read_file(const char *path, char *text, size_t size)
{
	long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
	long n;

	text[0] = '\0';
	if (fd < 0) {
		return -errno;
	}
	n = syscall(SYS_read, fd, text, size - 1);
	n = n < 0 ? -errno : n;
	syscall(SYS_close, fd);
	text[n > 0 ? n : 0] = '\0';
	return n;
}
