/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that serves everything, and when it sleeps. */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include "nic/fault.h"
#include "nic/gpu.h"
#include "nic/place.h"
#include "nic/req.h"
#include "nic/sq.h"
#include "nic/stats.h"
#include "nic/thread.h"
#include "nic/wire.h"

/*
 * After turns without work the thread first looks again at once, then sleeps: soon and long enough that the NICs of
 * a dozen processes leave two cores to those who compute. Nothing here calls sched_yield(): Linux 6.18 takes a whole
 * slice from the caller. Four calls took 28 ms beside twelve threads that wake up every 60 us, and the NICs stood still.
 */
#define VN_SPIN 20
#define VN_SPIN_GPU                                                                                \
	8192 /* some milliseconds: beside GPUs there are cores, and microseconds count */
#define VN_NAP_US 200
#define VN_NAPS 50 /* about 10 ms */
#define VN_LONG_NAP_US 600
#define VN_LONG_NAPS 10000
#define VN_SLEEP_US 1000
#define VN_BY_HAND 3             /* doorbells */
#define VN_HOOKED_SLEEP_US 20000 /* until somebody rings by hand, whom the hook does not see, */
#define VN_HOOKED_DOUBLED                                                                          \
	5 /* and twice as long each time that nobody did: each sleep moves the clock */

void vn_thread_wake(void)
{
	uint64_t one = 1;

	if (vn.running && write(vn.wake_fd, &one, sizeof(one)) < 0) {
		return; /* the counter is full: the thread is awake */
	}
}

/* GPU threads of the virtual cluster call this behind each doorbell. */
static void vn_rung(void)
{
	vn_count(VN_COUNT_DOORBELL);
	atomic_store(&vn.rung, true);
	if (atomic_load(&vn.napping)) {
		vn_thread_wake();
	}
}

/* Libraries of their own know the cluster's by name only. */
static bool vn_hook(void)
{
	void (*_Atomic *hook)(void) = dlsym(RTLD_DEFAULT, "ep_simt_doorbell_hook");

	if (hook) {
		atomic_store(hook, vn_rung);
	}
	return hook;
}

/* Forgets the queue pairs that have nothing to do any more. */
static void vn_rest(void)
{
	uint32_t n = 0;

	for (uint32_t i = 0; i < vn.nactive; i++) {
		struct vn_qp *qp = vn.active[i];

		qp->listed = qp->active;
		if (qp->listed) {
			vn.active[n++] = qp;
		}
	}
	vn.nactive = n;
}

bool vn_turn(uint32_t turn, bool *watched)
{
	bool any = vn_sq_doorbells(watched), rung = atomic_exchange(&vn.rung, false);
	uint32_t first;

	/* a GPU thread may be between its doorbell and the hook */
	vn.by_hand += any && !rung && vn.by_hand < VN_BY_HAND;

	vn_rest();
	first = vn.nactive ? (uint32_t)(vn_random() % vn.nactive) : 0;
	for (uint32_t i = 0; i < vn.nactive; i++) {
		any |= vn_req_fetch(vn.active[i]);
	}
	vn_gpu_staged();
	/* Any queue pair may be the first. Others may join meanwhile. */
	for (uint32_t i = 0, n = vn.nactive; i < n; i++) {
		struct vn_qp *qp = vn.active[(first + i) % n];

		any |= qp->active && vn_req_run(qp);
	}
	any |= vn_wire_run(any || turn % 4 == 0);
	for (int i = 0; i < vn_config.nics; i++) {
		any |= vn_place_some(&vn.nic[i]);
	}
	any |= vn_fault_run();
	any |= vn_place_settle();
	return any;
}

static void vn_nap(uint32_t idle, bool watched, uint64_t due)
{
	struct pollfd fds[1] = { { .fd = vn.epoll_fd, .events = POLLIN } };
	uint64_t ns = idle < VN_NAPS        ? VN_NAP_US
		      : idle < VN_LONG_NAPS ? VN_LONG_NAP_US
					    : VN_SLEEP_US;
	uint64_t now = vn_now();
	struct timespec t;

	ns *= 1000;
	if (vn.hooked && vn.by_hand < VN_BY_HAND) {
		uint32_t sleeps = idle - VN_SPIN < VN_HOOKED_DOUBLED ? idle - VN_SPIN
								     : VN_HOOKED_DOUBLED;

		ns = (uint64_t)VN_HOOKED_SLEEP_US * 1000 << sleeps;
	}
	if (!watched) {
		ns = 1000000000u;
	}
	if (due != UINT64_MAX && due < now + ns) {
		ns = due > now ? due - now : 0;
	}
	t.tv_sec = (time_t)(ns / 1000000000u);
	t.tv_nsec = (long)(ns % 1000000000u);
	atomic_store(&vn.napping, true);
	if (!atomic_load(&vn.rung)) {
		ppoll(fds, 1, &t, NULL);
	}
	atomic_store(&vn.napping, false);
}

/* When a lost packet or a held queue has to be looked at again. */
static uint64_t vn_due(void)
{
	uint64_t due = vn_fault_due();

	for (uint32_t n = 0; n < vn.nactive; n++) {
		const struct vn_qp *qp = vn.active[n];

		if (qp->hold_until && qp->hold_until < due) {
			due = qp->hold_until;
		}
		for (uint32_t i = 0; i < qp->nlost; i++) {
			if (qp->lost[i].waiting && qp->lost[i].due < due) {
				due = qp->lost[i].due;
			}
		}
	}
	return due;
}

static void *vn_thread_main(void *arg)
{
	uint32_t idle = 0, turn = 0, spin;

	(void)arg;
	prctl(PR_SET_TIMERSLACK, 1000);
	prctl(PR_SET_NAME, "nic");
	for (;;) {
		bool any, watched;
		uint64_t due, start;

		pthread_mutex_lock(&vn.lock);
		start = vn_stat_start();
		any = vn_turn(turn++, &watched);
		if (any) {
			vn_stat(VN_STAT_TURN, start, 0);
		}
		due = any ? 0 : vn_due();
		spin = vn_gpu_any() ? VN_SPIN_GPU : VN_SPIN;
		pthread_mutex_unlock(&vn.lock);
		while (__atomic_load_n(&vn.waiting, __ATOMIC_RELAXED)) {
			nanosleep(&(struct timespec){ 0, 1000 }, NULL);
		}
		idle = any ? 0 : idle + 1;
		if (idle > spin || !watched) {
			start = vn_stat_start();
			vn_nap(idle, watched, due);
			vn_stat(VN_STAT_NAP, start, 0);
		}
	}
	return NULL;
}

int vn_thread_start(void)
{
	static bool wired;
	sigset_t all, old;
	int rc;

	if (vn.running || (wired && vn_config.step)) {
		return 0;
	}
	rc = vn_wire_start();
	wired = !rc;
	if (rc || vn_config.step) {
		return rc;
	}
	vn.hooked = vn_hook();
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	rc = pthread_create(&vn.thread, NULL, vn_thread_main, NULL);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	vn.running = !rc;
	return rc;
}
