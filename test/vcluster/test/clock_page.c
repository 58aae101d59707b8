/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What was sent and not delivered holds time up: a child that spins stands for ksoftirqd. Where
 * nothing was sent, what that thread does is not looked at, and neither is a parked one. So it is
 * with a thread that waits for sockets.
 */
#include <signal.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include "clock/page.h"
#include "test.h"

#define MINUTE 60000000000u
#define SOON 1000000u

/* The state of a thread that runs, or sleeps, is not there at once. */
static enum vc_move try_until(struct vc_clock *clock, const struct vc_clock_slot *self,
			      enum vc_move wanted)
{
	enum vc_move move = vc_clock_try(clock, self);

	for (int i = 0; i < 5000 && move != wanted; i++) {
		usleep(1000);
		move = vc_clock_try(clock, self);
	}
	return move;
}

static pid_t spin(void)
{
	pid_t pid = fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		for (;;) {
		}
	}
	return pid;
}

/* A thread that waits in the kernel for so long. */
static void wait_begin(struct vc_clock *clock, struct vc_clock_slot *slot, uint64_t ns)
{
	vc_slot_prepare(clock, slot, VC_WAIT_POLL, vc_clock_time(clock) + ns);
	vc_slot_end(clock, slot, VC_SLOT_KERNEL, NULL);
}

static void wait_end(struct vc_clock *clock, struct vc_clock_slot *slot)
{
	vc_slot_begin(clock, slot);
	atomic_store(&slot->state, VC_SLOT_RUNS);
}

/* A child that works, or sleeps all but some microseconds of the time, as *works says. */
static pid_t worker(const _Atomic bool *works)
{
	pid_t pid = fork();

	if (!pid) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		signal(VC_KICK_SIGNAL, SIG_IGN);
		for (;;) {
			while (atomic_load(works)) {
			}
			usleep(1000);
		}
	}
	return pid;
}

static void sockets_begin(struct vc_clock *clock, struct vc_clock_slot *slot, uint64_t ns)
{
	wait_begin(clock, slot, ns);
	vc_slot_counts(slot, true);
}

/*
 * Is the thread found at work in one of the waits that it begins again and again, nothing being
 * sent?
 */
static void asked_in(struct vc_clock *clock, struct vc_clock_slot *slot, uint64_t ns)
{
	enum vc_move move = VC_MOVE_DONE;

	for (int i = 0; i < 5000 && move != VC_MOVE_AGAIN; i++) {
		usleep(1000);
		sockets_begin(clock, slot, ns);
		move = vc_clock_try(clock, NULL);
		if (move != VC_MOVE_AGAIN) {
			wait_end(clock, slot);
		}
	}
	CHECK_INT(move, VC_MOVE_AGAIN);
}

/*
 * A thread that waits for sockets alone is asked once in each wait, and once after anything was
 * sent.
 */
static void asked(struct vc_clock *clock, struct vc_clock_slot *slot, _Atomic bool *works)
{
	sockets_begin(clock, slot, SOON);
	CHECK_INT(try_until(clock, NULL, VC_MOVE_DONE), VC_MOVE_DONE);
	usleep(20000);
	atomic_store(works, true);
	usleep(20000);
	CHECK_INT(vc_clock_try(clock, NULL), VC_MOVE_DONE);
	vc_clock_traffic(clock);
	CHECK_INT(try_until(clock, NULL, VC_MOVE_AGAIN), VC_MOVE_AGAIN);
	atomic_store(works, false);
	CHECK_INT(try_until(clock, NULL, VC_MOVE_DONE), VC_MOVE_DONE);
	wait_end(clock, slot);

	atomic_store(works, true);
	asked_in(clock, slot, SOON);
	atomic_store(works, false);
	CHECK_INT(try_until(clock, NULL, VC_MOVE_DONE), VC_MOVE_DONE);
	wait_end(clock, slot);

	/* not so where something else may wake it */
	wait_begin(clock, slot, SOON);
	CHECK_INT(try_until(clock, NULL, VC_MOVE_DONE), VC_MOVE_DONE);
	atomic_store(works, true);
	CHECK_INT(try_until(clock, NULL, VC_MOVE_AGAIN), VC_MOVE_AGAIN);
	atomic_store(works, false);
	CHECK_INT(try_until(clock, NULL, VC_MOVE_DONE), VC_MOVE_DONE);
	wait_end(clock, slot);
}

/*
 * Before the clock goes far the thread is asked again, although nothing was sent and its wait is
 * the same.
 */
static void asked_far(struct vc_clock *clock, struct vc_clock_slot *slot, _Atomic bool *works)
{
	enum vc_move move = VC_MOVE_DONE;

	sockets_begin(clock, slot, SOON);
	CHECK_INT(try_until(clock, NULL, VC_MOVE_DONE), VC_MOVE_DONE);
	atomic_store(works, true);
	for (int i = 0; i < 5000 && move != VC_MOVE_AGAIN; i++) {
		usleep(1000);
		atomic_store(&slot->until_ns, vc_clock_time(clock) + MINUTE);
		move = vc_clock_try(clock, NULL);
	}
	CHECK_INT(move, VC_MOVE_AGAIN);
	atomic_store(works, false);
	CHECK_INT(try_until(clock, NULL, VC_MOVE_DONE), VC_MOVE_DONE);
	wait_end(clock, slot);
}

static void sockets(struct vc_clock *clock)
{
	_Atomic bool *works = mmap(NULL, sizeof(*works), PROT_READ | PROT_WRITE,
				   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	pid_t pid = worker(works);
	struct vc_clock_slot *slot = vc_slot_new(clock, (uint32_t)vc_proc_new(clock, pid));
	int status;

	atomic_store(&slot->tid, pid);
	asked(clock, slot, works);
	asked_far(clock, slot, works);
	kill(pid, SIGKILL);
	CHECK(waitpid(pid, &status, 0) == pid);
	vc_proc_set(clock, vc_proc_find(clock, pid), VC_PROC_ENDED);
}

/* A thread that was woken before it waits has run all the time; one that was not waits. */
static void woken_before(struct vc_clock *clock)
{
	int proc = vc_proc_new(clock, getpid());
	struct vc_clock_slot *slot = vc_slot_new(clock, (uint32_t)proc);
	_Atomic bool woken = true;

	vc_slot_prepare(clock, slot, VC_WAIT_COND, VC_NEVER);
	CHECK(!vc_slot_end(clock, slot, VC_SLOT_WAITS, &woken));
	CHECK_INT(atomic_load(&slot->state), VC_SLOT_RUNS);
	CHECK_INT(atomic_load(&clock->proc[proc].running), 1);
	atomic_store(&woken, false);
	CHECK(vc_slot_end(clock, slot, VC_SLOT_WAITS, &woken));
	CHECK_INT(atomic_load(&slot->state), VC_SLOT_WAITS);
	CHECK_INT(atomic_load(&clock->proc[proc].running), 0);
	vc_proc_set(clock, proc, VC_PROC_ENDED);
}

int main(void)
{
	struct vc_clock *clock = vc_clock_map(NULL, true);
	struct vc_clock_slot *slot;
	uint64_t start;
	int proc, status;
	pid_t busy;

	if (!clock || clock->softirq[0] == 0) {
		return 77; /* a process that does not see kernel threads cannot ask them */
	}
	busy = spin();
	if (busy < 0) {
		return 1;
	}
	proc = vc_proc_new(clock, getpid());
	slot = vc_slot_new(clock, (uint32_t)proc);
	memset(clock->softirq, 0, sizeof(clock->softirq));
	clock->softirq[0] = busy;
	start = vc_clock_time(clock);

	wait_begin(clock, slot, MINUTE); /* nothing was sent yet */
	CHECK_INT(try_until(clock, slot, VC_MOVE_DONE), VC_MOVE_DONE);
	CHECK(vc_clock_time(clock) - start >= MINUTE);
	wait_end(clock, slot);

	vc_clock_traffic(clock);
	wait_begin(clock, slot, MINUTE);
	CHECK_INT(try_until(clock, slot, VC_MOVE_AGAIN), VC_MOVE_AGAIN);
	CHECK(vc_clock_time(clock) - start < 2 * (uint64_t)MINUTE);
	kill(busy, SIGSTOP); /* as good as parked */
	CHECK_INT(try_until(clock, slot, VC_MOVE_DONE), VC_MOVE_DONE);
	CHECK(vc_clock_time(clock) - start >= 2 * (uint64_t)MINUTE);
	wait_end(clock, slot);

	kill(busy, SIGCONT); /* whatever it does now, it has delivered all that was sent */
	usleep(10000);
	wait_begin(clock, slot, MINUTE);
	CHECK_INT(vc_clock_try(clock, slot), VC_MOVE_DONE);
	wait_end(clock, slot);

	vc_proc_set(clock, vc_proc_new(clock, busy),
		    VC_PROC_ENDED); /* the kernel closes its connections */
	wait_begin(clock, slot, MINUTE);
	CHECK_INT(try_until(clock, slot, VC_MOVE_AGAIN), VC_MOVE_AGAIN);
	kill(busy, SIGKILL);
	CHECK(waitpid(busy, &status, 0) == busy);
	CHECK_INT(try_until(clock, slot, VC_MOVE_DONE), VC_MOVE_DONE);
	wait_end(clock, slot);
	vc_proc_set(clock, proc, VC_PROC_ENDED);
	sockets(clock);
	woken_before(clock);
	return test_result();
}
