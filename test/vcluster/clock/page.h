/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clock of a virtual cluster: one page of memory that all processes of a run share.
 *
 * now = CLOCK_MONOTONIC + offset. Each thread has a slot, which says that it runs or what it waits
 * for. While a thread runs, time moves at its real pace, but no faster than the processes of the
 * run get processor time: on a busy machine it slows down. When none runs, nothing can happen
 * before the earliest limit of all waits: whoever finds that out adds what is missing to the offset
 * and wakes the threads whose limit has come.
 *
 * What is under way counts as running:
 *  - Who wakes a thread marks it as running before it goes on (VC_SLOT_WAITS).
 *  - A thread that waits in the kernel (poll, waitpid: VC_SLOT_KERNEL) is woken by the kernel.
 *    Linux makes it runnable within the call that sends a byte or ends a process, so its state in
 *    /proc is asked before time is moved. That costs some microseconds, so whoever waits for
 *    sockets and eventfds alone is asked only once after anything was sent, and before the clock
 *    goes VC_UNASKED_NS further than when all were asked: each call that may send is counted, what
 *    the kernel sends by itself is not. So is ksoftirqd, which delivers what the loopback interface
 *    has left over, on each processor of the run.
 *  - A thread that waits in any other way runs, as far as the clock knows.
 *  - A process that was started and has no slots yet runs. So does one that another has killed,
 *    until it has been waited for.
 * A process that was stopped, or has ended, holds up nobody.
 *
 * A thread that polls by naps, or by waits for descriptors, would move the clock by a nap each
 * time. As long as no thread wakes another, the next of many naps of about one length lets the
 * clock go an eighth of all before it further, VC_STRETCH times its own at most. Nobody is late for
 * it: the clock stops at the next limit of any other thread, and then wakes who has napped long
 * enough. (Polls may be counted, so there must be some.)
 *
 * There is no lock: a process may be killed or stopped at any instruction. `sequence` changes
 * whenever a thread begins to run. Two threads that move the clock at once move it to the same
 * time.
 */
#ifndef VC_PAGE_H
#define VC_PAGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define VC_CLOCK_PROCS 1024
#define VC_CLOCK_SLOTS 65536
#define VC_CLOCK_CPUS 1024
#define VC_NEVER UINT64_MAX
#define VC_TRAFFIC (UINT64_MAX >> 16)
#define VC_UNASKED_NS 20000000
#define VC_EXIT_STUCK 85
/* Ends a wait in the kernel whose limit has come; blocked except in such waits. */
#define VC_KICK_SIGNAL (SIGRTMAX - 5)

enum vc_slot_state {
	VC_SLOT_FREE,
	VC_SLOT_RUNS,
	VC_SLOT_WAITS, /* until another thread changes `state`, a futex */
	/* until the kernel has something for it: it sleeps in no other call meanwhile */
	VC_SLOT_KERNEL,
};

struct vc_clock_slot {
	_Atomic uint32_t state; /* enum vc_slot_state */
	_Atomic uint32_t proc;
	_Atomic pid_t tid;
	_Atomic uint32_t what; /* enum vc_wait */
	_Atomic uint64_t since_ns, until_ns;
	/* naps in a row began then, and what `events` was */
	_Atomic uint64_t nap_since_ns, nap_events;
	/*
	 * number of the wait, and below it (VC_TRAFFIC) what `traffic` was when the thread was last
	 * found asleep in it
	 */
	_Atomic uint64_t asleep;
	_Atomic bool sockets; /* nothing wakes it but what is counted as traffic, and its limit */
};

/* What a thread waits in, for reports. */
enum vc_wait {
	VC_WAIT_SLEEP,
	VC_WAIT_COND,
	VC_WAIT_SEM,
	VC_WAIT_BARRIER,
	VC_WAIT_JOIN,
	VC_WAIT_POLL,
	VC_WAIT_CHILD,
	VC_WAIT_WORD,
	VC_WAITS,
};

enum vc_proc_state {
	VC_PROC_FREE,
	VC_PROC_LIVE,
	VC_PROC_STOPPED,
	VC_PROC_ENDED
};

struct vc_clock_proc {
	_Atomic uint32_t state; /* enum vc_proc_state */
	_Atomic pid_t pid;
	_Atomic int32_t running; /* slots that run; 1 while there are none yet */
	_Atomic uint64_t cpu_ns; /* processor time at the last tick */
};

struct vc_clock {
	_Atomic int64_t offset_ns;
	_Atomic uint64_t tick_ns;  /* real time at which the pace was looked at last */
	_Atomic uint64_t shown_ns; /* the latest time that anybody has seen */
	_Atomic uint64_t moved_ns; /* how far the clock was moved in all */
	_Atomic uint64_t sequence;
	_Atomic uint64_t events;         /* how often a thread woke another, or the kernel one */
	_Atomic uint32_t nprocs, nslots; /* those above have never been used */
	_Atomic uint64_t traffic;        /* how often a descriptor was used, or a process ended */
	_Atomic uint64_t quiet;          /* what that was when ksoftirqd had delivered everything */
	_Atomic uint64_t
		/* further than this it goes when all that wait in the kernel were asked */
		asked_ns;
	pid_t softirq[VC_CLOCK_CPUS]; /* kernel threads; 0: no more, or hidden from this process */
	struct vc_clock_proc proc[VC_CLOCK_PROCS];
	struct vc_clock_slot slot[VC_CLOCK_SLOTS];
};

/* The calling thread has used a descriptor: bytes may be under way. */
void vc_clock_traffic(struct vc_clock *clock);

/* Maps the clock in this file, or (NULL) a new one that children inherit. NULL: not possible. */
struct vc_clock *vc_clock_map(const char *path, bool create);
uint64_t vc_clock_time(struct vc_clock *clock);
/*
 * How far the clock has come by itself, without being moved: in real time, and on a busy machine in
 * what the processes of the run got of it. Differences count.
 */
uint64_t vc_clock_pace(struct vc_clock *clock);

/* A process that counts as running; -1: the table is full. */
int vc_proc_new(struct vc_clock *clock, pid_t pid);
/*
 * The calling process, whether it was announced, has slots from before an exec, or is new. -1: the
 * table is full.
 */
int vc_proc_adopt(struct vc_clock *clock, pid_t pid);
/* -1: there is none. */
int vc_proc_find(struct vc_clock *clock, pid_t pid);
void vc_proc_set(struct vc_clock *clock, int proc, enum vc_proc_state state);
/* It is about to be killed: it runs until somebody has waited for its end, whatever it did. */
void vc_proc_kill(struct vc_clock *clock, int proc);

/* A slot that runs, without a count in its process. NULL: the table is full. */
struct vc_clock_slot *vc_slot_new(struct vc_clock *clock, uint32_t proc);
/* These two count. */
void vc_slot_begin(struct vc_clock *clock, struct vc_clock_slot *slot);
/* Its thread is about to wait. */
void vc_slot_prepare(struct vc_clock *clock, struct vc_clock_slot *slot, enum vc_wait what,
		     uint64_t until_ns);
/* Whether nothing but traffic wakes the thread in the wait that it is about to begin. */
void vc_slot_counts(struct vc_clock_slot *slot, bool sockets);
/*
 * Returns true if no thread of the process runs any more. Whoever finds the thread in its wait
 * wakes it; who came before has set `woken`, if there is such a word. Then the thread goes on, and
 * must count without a gap: in a gap it may lose its processor, and others move the clock as if it
 * waited.
 */
bool vc_slot_end(struct vc_clock *clock, struct vc_clock_slot *slot, enum vc_slot_state state,
		 const _Atomic bool *woken);
/*
 * A thread that waits runs from now on; true: it did, and if it is another one than the caller it
 * is to be roused.
 */
bool vc_slot_wake(struct vc_clock *clock, struct vc_clock_slot *slot);
void vc_slot_rouse(struct vc_clock_slot *slot);

enum vc_move {
	VC_MOVE_DONE,
	VC_MOVE_BUSY,  /* something runs */
	VC_MOVE_AGAIN, /* a thread is about to wait in the kernel, or to come back */
	VC_MOVE_STUCK, /* no wait has a limit */
};

/* One attempt to do what vc_clock_move() does. */
enum vc_move vc_clock_try(struct vc_clock *clock, const struct vc_clock_slot *self);

struct vc_patience {
	uint32_t again, stuck;
};

/* Sleeps and returns true if another attempt makes sense. */
bool vc_clock_again(enum vc_move move, struct vc_patience *patience);
/* Why time will never come to an end, or NULL. */
const char *vc_clock_ends(struct vc_clock *clock, enum vc_move move);

/*
 * Moves the clock if nothing runs. `self`: the caller's slot, which waits, or NULL. Returns when
 * the clock was moved, something runs, or `self` was woken: NULL, or why time will never come to an
 * end.
 */
const char *vc_clock_move(struct vc_clock *clock, struct vc_clock_slot *self);
/* Prints who waits for what. */
void vc_clock_report(struct vc_clock *clock, const char *why);

#endif
