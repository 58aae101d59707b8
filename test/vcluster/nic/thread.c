/* SPDX-License-Identifier: Apache-2.0 */
/* The thread that serves everything, and when it sleeps. */
#include <dlfcn.h>
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>
#include "nic/nic.h"

/*
 * After turns without work the thread first looks again at once, then sleeps: soon and long enough
 * that the NICs of a dozen processes leave two cores to those who compute. Nothing here calls
 * sched_yield(): Linux 6.18 takes a whole slice from the caller. Four calls took 28 ms beside
 * twelve threads that wake up every 60 us, and the NICs stood still.
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

/*
 * Serves all that is there now; false: nothing was. *watched: some queue can be rung by its
 * doorbell.
 */
static bool vn_turn(uint32_t turn, bool *watched)
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

static struct {
	struct vn_dv_watch watch;
	struct vn_dv_calls calls;
	uint32_t turn;
	uint32_t left; /* WQEs that may be taken up in this turn */
} vn_step;

VN_EXPORT bool vn_dv_step(uint32_t most)
{
	bool watched, any;

	vn_lock();
	vn_step.left = most ? most : UINT32_MAX;
	any = vn_turn(vn_step.turn++, &watched);
	vn_unlock();
	return any;
}

VN_EXPORT void vn_dv_watch(const struct vn_dv_watch *watch)
{
	vn_lock();
	vn_step.watch = *watch;
	vn_unlock();
}

VN_EXPORT void vn_dv_script(uint32_t qpn, const struct vn_dv_script *script)
{
	struct vn_qp *qp;

	vn_lock();
	qp = vn_qp_find(qpn);
	if (qp) {
		qp->script = *script;
		vn_qp_stir(qp);
	}
	vn_unlock();
}

VN_EXPORT void vn_dv_seen(uint32_t qpn, struct vn_dv_seen *seen)
{
	const struct vn_qp *qp;

	memset(seen, 0, sizeof(*seen));
	vn_lock();
	qp = vn_qp_find(qpn);
	if (qp) {
		*seen = (struct vn_dv_seen){ qp->pi, qp->done, qp->doorbells, qp->peak };
	}
	vn_unlock();
}

VN_EXPORT struct vn_dv_calls *vn_dv_calls(void)
{
	return &vn_step.calls;
}

VN_EXPORT uint32_t vn_dv_live(struct ibv_context *c)
{
	uint32_t live;

	vn_lock();
	live = vn_context_of(c)->live;
	vn_unlock();
	return live;
}

VN_EXPORT void vn_dv_attributes(struct ibv_qp *ibv, struct vn_dv_attributes *told)
{
	vn_lock();
	*told = ((struct vn_qp *)ibv)->told;
	vn_unlock();
}

VN_EXPORT void vn_dv_complete(struct ibv_cq *ibv, const struct ibv_wc *wc)
{
	vn_lock();
	vn_cq_invent((struct vn_cq *)ibv, wc);
	vn_unlock();
}

VN_EXPORT void vn_dv_event(struct ibv_context *c, enum ibv_event_type type, void *element)
{
	vn_lock();
	vn_event(vn_context_of(c), type, element, 1);
	vn_unlock();
}

bool vn_step_stops(const struct vn_qp *qp)
{
	return qp->devx && (!vn_step.left || qp->ci == qp->script.stuck_at);
}

void vn_step_fetched(struct vn_qp *qp, struct vn_op *op)
{
	if (qp->devx) {
		vn_step.left--;
	}
	if (qp->devx && op->idx == qp->script.fail_at && !op->syndrome) {
		op->syndrome = qp->script.syndrome;
		op->vendor = qp->script.vendor;
	}
}

void vn_step_wqe(const struct vn_qp *qp, uint64_t idx, const struct ep_mlx5_wqe *wqe)
{
	if (vn_step.watch.wqe) {
		vn_step.watch.wqe(vn_step.watch.arg, qp->number, idx, wqe);
	}
}

void vn_step_write(const uint8_t *at, const uint8_t *data, uint32_t bytes)
{
	if (vn_step.watch.write) {
		vn_step.watch.write(vn_step.watch.arg, at, data, bytes);
	}
}

void vn_step_placed(void)
{
	if (vn_step.watch.placed) {
		vn_step.watch.placed(vn_step.watch.arg);
	}
}

bool vn_step_reports(const struct ibv_wc *wc)
{
	return !vn_step.watch.tell || vn_step.watch.tell(vn_step.watch.arg, wc);
}

void vn_step_settle(void)
{
	bool watched;

	vn_lock();
	vn_step.left = UINT32_MAX;
	while (vn_turn(vn_step.turn++, &watched)) {
	}
	vn_unlock();
}

bool vn_step_fails(void)
{
	bool fails;

	vn_lock();
	fails = vn_step.calls.fails == 1;
	vn_step.calls.fails -= vn_step.calls.fails > 1;
	vn_unlock();
	if (fails) {
		errno = ENOMEM;
	}
	return fails;
}

int vn_step_refusal(enum ibv_qp_state to)
{
	vn_step.calls.modified++;
	if (!vn_step.calls.refusals ||
	    (vn_step.calls.refused_state && vn_step.calls.refused_state != to)) {
		return 0;
	}
	vn_step.calls.refusals--;
	return vn_step.calls.refusal;
}

void vn_step_acked(void)
{
	__atomic_fetch_add(&vn_step.calls.acked, 1, __ATOMIC_RELAXED);
}

#define VN_DECADES 6 /* below 10 us, 100 us, 1 ms, 10 ms, 100 ms, and more */

static const char *const vn_stat_name[VN_STATS] = {
	[VN_STAT_TURN] = "turns with work",
	[VN_STAT_NAP] = "naps",
	[VN_STAT_MESSAGE] = "messages",
	[VN_STAT_RESEND] = "packets sent again",
	[VN_STAT_COPY_OUT] = "copies from GPUs issued",
	[VN_STAT_COPY_IN] = "copies to GPUs issued",
	[VN_STAT_WORD] = "words to GPUs issued",
	[VN_STAT_WAIT_OUT] = "waits for copies from GPUs",
	[VN_STAT_WAIT_IN] = "waits for copies to GPUs",
	[VN_STAT_FETCH] = "reads of GPUs",
	[VN_STAT_PEEK] = "words of GPUs asked for",
};

static const char *const vn_count_name[VN_COUNTS] = {
	[VN_COUNT_DOORBELL] = "doorbells of GPU threads",
	[VN_COUNT_ROW] = "WQEs: writes of memory",
	[VN_COUNT_WORD] = "WQEs: writes of words",
	[VN_COUNT_ATOMIC] = "WQEs: atomics",
	[VN_COUNT_OTHER] = "WQEs: others",
	[VN_COUNT_HELD] = "WQEs held until others are done",
	[VN_COUNT_REPORTED] = "WQEs with a completion",
	[VN_COUNT_PEAK] = "most WQEs of a queue at once",
};

static atomic_ullong vn_counts[VN_COUNTS];

static struct {
	uint64_t n, ns, most, bytes, decade[VN_DECADES];
} vn_stats[VN_STATS];

void vn_stat(enum vn_stat stat, uint64_t start, uint64_t bytes)
{
	uint64_t ns, limit = 10000;
	int d = 0;

	if (!vn_config.stats || !start) {
		return;
	}
	ns = vn_now() - start;
	vn_stats[stat].n++;
	vn_stats[stat].ns += ns;
	vn_stats[stat].bytes += bytes;
	if (ns > vn_stats[stat].most) {
		vn_stats[stat].most = ns;
	}
	for (; d < VN_DECADES - 1 && ns >= limit; d++) {
		limit *= 10;
	}
	vn_stats[stat].decade[d]++;
}

void vn_count(enum vn_count count)
{
	if (vn_config.stats) {
		atomic_fetch_add_explicit(&vn_counts[count], 1, memory_order_relaxed);
	}
}

void vn_count_peak(uint64_t wqes)
{
	if (wqes > atomic_load_explicit(&vn_counts[VN_COUNT_PEAK], memory_order_relaxed)) {
		atomic_store_explicit(&vn_counts[VN_COUNT_PEAK], wqes, memory_order_relaxed);
	}
}

__attribute__((destructor)) static void vn_stats_print(void)
{
	if (!vn_config.stats) {
		return;
	}
	fprintf(stderr,
		"nic: %-27s %9s %11s %9s %11s   below 10 us, 100 us, 1 ms, 10 ms, 100 ms, more\n",
		"", "times", "ms in all", "mean us", "most us");
	for (int i = 0; i < VN_STATS; i++) {
		const uint64_t *d = vn_stats[i].decade, n = vn_stats[i].n;

		fprintf(stderr,
			"nic: %-27s %9llu %11.1f %9.1f %11.1f   %llu %llu %llu %llu %llu %llu   %.1f MB\n",
			vn_stat_name[i], (unsigned long long)n, (double)vn_stats[i].ns / 1e6,
			n ? (double)vn_stats[i].ns / (double)n / 1e3 : 0,
			(double)vn_stats[i].most / 1e3, (unsigned long long)d[0],
			(unsigned long long)d[1], (unsigned long long)d[2],
			(unsigned long long)d[3], (unsigned long long)d[4],
			(unsigned long long)d[5], (double)vn_stats[i].bytes / 1e6);
	}
	for (int i = 0; i < VN_COUNTS; i++) {
		fprintf(stderr, "nic: %-31s %9llu\n", vn_count_name[i],
			(unsigned long long)atomic_load(&vn_counts[i]));
	}
}
