/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The C library's functions that read time, sleep, wait for other threads, or start them, in place
 * of libc's (clock/page.h says what for). Programs link libvcluster.so before libc, so these are
 * found first, by the libraries of the product and of the NIC as well, and by sanitizers' own
 * versions of them.
 */
#undef _FORTIFY_SOURCE /* these functions stand for each other here */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include "clock/clock.h"

#define VC_EXPORT __attribute__((visibility("default")))
/* A wait in the kernel looks again after so long: see VC_LOOK_NS. */
#define VC_POLL_NS 20000000

static uint64_t vc_ns(const struct timespec *t)
{
	return (uint64_t)t->tv_sec * 1000000000u + (uint64_t)t->tv_nsec;
}

static uint64_t vc_after(uint64_t ns)
{
	return ns == VC_NEVER ? VC_NEVER : vc_clock_time(vc_clock) + ns;
}

VC_EXPORT int clock_gettime(clockid_t id, struct timespec *t)
{
	uint64_t now;

	if (id != CLOCK_MONOTONIC || !vc_clock) {
		return vc_real_clock(id, t);
	}
	now = vc_clock_time(vc_clock);
	*t = (struct timespec){ (time_t)(now / 1000000000u), (long)(now % 1000000000u) };
	return 0;
}

VC_EXPORT int nanosleep(const struct timespec *wanted, struct timespec *left)
{
	if (wanted->tv_nsec == -1) {
		return VC_CLOCK_HERE;
	}
	if (!vc_clock || wanted->tv_nsec < 0 || wanted->tv_nsec > 999999999) {
		return VC_REAL(nanosleep)(wanted, left);
	}
	vc_sleep_until(vc_after(vc_ns(wanted)));
	return 0;
}

VC_EXPORT int usleep(useconds_t us)
{
	if (!vc_clock) {
		struct timespec t = { us / 1000000, (long)(us % 1000000) * 1000 };

		return nanosleep(&t, NULL);
	}
	vc_sleep_until(vc_after((uint64_t)us * 1000));
	return 0;
}

VC_EXPORT unsigned int sleep(unsigned int seconds)
{
	if (!vc_clock) {
		return VC_REAL(sleep)(seconds);
	}
	vc_sleep_until(vc_after((uint64_t)seconds * 1000000000u));
	return 0;
}

/* One of poll() and epoll_wait(). */
struct vc_look {
	int (*look)(struct vc_look *l, uint64_t most_ns, const sigset_t *mask);
	struct pollfd *fds;
	nfds_t nfds;
	int epoll, nevents;
	struct epoll_event *events;
	int result;
};

static int vc_look_poll(struct vc_look *l, uint64_t most_ns, const sigset_t *mask)
{
	struct timespec t = { (time_t)(most_ns / 1000000000u), (long)(most_ns % 1000000000u) };

	return VC_REAL(ppoll)(l->fds, l->nfds, &t, mask);
}

static int vc_look_epoll(struct vc_look *l, uint64_t most_ns, const sigset_t *mask)
{
	return VC_REAL(epoll_pwait)(l->epoll, l->events, l->nevents,
				    (int)((most_ns + 999999) / 1000000), mask);
}

static bool vc_look_ready(void *arg)
{
	struct vc_look *l = arg;

	l->result = l->look(l, 0, NULL);
	return l->result != 0;
}

/*
 * Are all descriptors sockets, eventfds or sets of such? Bytes get into pipes by calls that are not
 * counted, too.
 */
static bool vc_look_sockets(const struct vc_look *l)
{
	struct stat s;

	for (nfds_t i = 0; i < l->nfds; i++) {
		if (l->fds[i].fd >= 0 &&
		    (fstat(l->fds[i].fd, &s) || (s.st_mode & S_IFMT && !S_ISSOCK(s.st_mode)))) {
			return false;
		}
	}
	return true;
}

/* `mask`: which signals are blocked meanwhile, NULL: those that are now. */
static int vc_look_wait(struct vc_look *l, uint64_t ns, const sigset_t *mask)
{
	uint64_t until = vc_after(ns);
	bool sockets;
	sigset_t kicks;

	if (vc_look_ready(l) || !ns) {
		return l->result;
	}
	sockets = vc_look_sockets(l);
	if (mask) {
		kicks = *mask;
	} else {
		VC_REAL(pthread_sigmask)(SIG_BLOCK, NULL, &kicks);
	}
	sigdelset(&kicks, VC_KICK_SIGNAL);
	while (vc_kernel_begin(VC_WAIT_POLL, until, sockets, vc_look_ready, l)) {
		uint64_t left = until - vc_clock_time(vc_clock);
		int error = 0;

		if ((int64_t)left > 0 || until == VC_NEVER) {
			l->result = l->look(l, left < VC_POLL_NS ? left : VC_POLL_NS, &kicks);
			error = errno;
		}
		vc_kernel_end();
		if (l->result > 0) {
			vc_event();
		}
		if (l->result > 0 || (l->result < 0 && (error != EINTR || !vc_kernel_kicked()))) {
			errno = error;
			break;
		}
		l->result = 0;
		if (vc_clock_time(vc_clock) >= until) {
			break;
		}
	}
	return l->result;
}

/*
 * What sends packets, also by what it leaves to the kernel: each call is counted when it is over.
 */
#define VC_FD_CALL(type, name, parameters, arguments)                                              \
	VC_EXPORT type name parameters                                                             \
	{                                                                                          \
		type result = VC_REAL(name) arguments;                                             \
		int error = errno;                                                                 \
                                                                                                   \
		if (vc_clock) {                                                                    \
			vc_clock_traffic(vc_clock);                                                \
		}                                                                                  \
		errno = error;                                                                     \
		return result;                                                                     \
	}

VC_FD_CALL(ssize_t, send, (int fd, const void *from, size_t n, int flags), (fd, from, n, flags))
VC_FD_CALL(ssize_t, sendto,
	   (int fd, const void *from, size_t n, int flags, const struct sockaddr *to,
	    socklen_t size),
	   (fd, from, n, flags, to, size))
VC_FD_CALL(ssize_t, sendmsg, (int fd, const struct msghdr *message, int flags),
	   (fd, message, flags))
VC_FD_CALL(ssize_t, recv, (int fd, void *to, size_t n, int flags), (fd, to, n, flags))
VC_FD_CALL(ssize_t, recvfrom,
	   (int fd, void *to, size_t n, int flags, struct sockaddr *from, socklen_t *size),
	   (fd, to, n, flags, from, size))
VC_FD_CALL(ssize_t, recvmsg, (int fd, struct msghdr *message, int flags), (fd, message, flags))
VC_FD_CALL(int, connect, (int fd, const struct sockaddr *to, socklen_t size), (fd, to, size))
VC_FD_CALL(int, shutdown, (int fd, int how), (fd, how))
VC_FD_CALL(int, close, (int fd), (fd))
VC_FD_CALL(ssize_t, write, (int fd, const void *from, size_t n), (fd, from, n))

VC_EXPORT int poll(struct pollfd *fds, nfds_t n, int ms)
{
	struct vc_look l = { .look = vc_look_poll, .fds = fds, .nfds = n };

	if (!vc_clock) {
		return VC_REAL(poll)(fds, n, ms);
	}
	return vc_look_wait(&l, ms < 0 ? VC_NEVER : (uint64_t)ms * 1000000, NULL);
}

VC_EXPORT int ppoll(struct pollfd *fds, nfds_t n, const struct timespec *t, const sigset_t *mask)
{
	struct vc_look l = { .look = vc_look_poll, .fds = fds, .nfds = n };

	if (!vc_clock) {
		return VC_REAL(ppoll)(fds, n, t, mask);
	}
	return vc_look_wait(&l, t ? vc_ns(t) : VC_NEVER, mask);
}

/* What calls of these become where the compiler fortifies them, as that of Ubuntu does. */
int __poll_chk(struct pollfd *fds, nfds_t n, int ms, size_t size);
int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *t, const sigset_t *mask,
		size_t size);

VC_EXPORT int __poll_chk(struct pollfd *fds, nfds_t n, int ms, size_t size)
{
	(void)size;
	return poll(fds, n, ms);
}

VC_EXPORT int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *t,
			  const sigset_t *mask, size_t size)
{
	(void)size;
	return ppoll(fds, n, t, mask);
}

VC_EXPORT int epoll_wait(int epoll, struct epoll_event *events, int n, int ms)
{
	struct vc_look l = {
		.look = vc_look_epoll, .epoll = epoll, .events = events, .nevents = n
	};

	if (!vc_clock) {
		return VC_REAL(epoll_wait)(epoll, events, n, ms);
	}
	return vc_look_wait(&l, ms < 0 ? VC_NEVER : (uint64_t)ms * 1000000, NULL);
}

/* What a pthread_cond_t holds here: all zero is PTHREAD_COND_INITIALIZER. */
struct vc_cond {
	uint32_t monotonic;
};

VC_EXPORT int pthread_cond_init(pthread_cond_t *cond, const pthread_condattr_t *attr)
{
	clockid_t id = CLOCK_REALTIME;

	if (!vc_clock) {
		return VC_REAL(pthread_cond_init)(cond, attr);
	}
	if (attr) {
		pthread_condattr_getclock(attr, &id);
	}
	*(struct vc_cond *)cond = (struct vc_cond){ id == CLOCK_MONOTONIC };
	return 0;
}

VC_EXPORT int pthread_cond_destroy(pthread_cond_t *cond)
{
	return vc_clock ? 0 : VC_REAL(pthread_cond_destroy)(cond);
}

static int vc_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex, uint64_t until)
{
	vc_key_lock(cond);
	vc_key_wait(cond, VC_WAIT_COND, until, mutex);
	VC_REAL(pthread_mutex_lock)(mutex);
	return until != VC_NEVER && vc_clock_time(vc_clock) >= until ? ETIMEDOUT : 0;
}

VC_EXPORT int pthread_cond_wait(pthread_cond_t *cond, pthread_mutex_t *mutex)
{
	return vc_clock ? vc_cond_wait(cond, mutex, VC_NEVER)
			: VC_REAL(pthread_cond_wait)(cond, mutex);
}

VC_EXPORT int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
				     const struct timespec *t)
{
	struct timespec now;
	int64_t left;

	if (!vc_clock) {
		return VC_REAL(pthread_cond_timedwait)(cond, mutex, t);
	}
	if (((const struct vc_cond *)cond)->monotonic) {
		return vc_cond_wait(cond, mutex, vc_ns(t));
	}
	vc_real_clock(CLOCK_REALTIME, &now);
	left = (int64_t)(vc_ns(t) - vc_ns(&now));
	return vc_cond_wait(cond, mutex, vc_after(left > 0 ? (uint64_t)left : 0));
}

static int vc_cond_wake(pthread_cond_t *cond, uint32_t most)
{
	vc_key_lock(cond);
	vc_key_wake(cond, most);
	vc_key_unlock(cond);
	return 0;
}

VC_EXPORT int pthread_cond_signal(pthread_cond_t *cond)
{
	return vc_clock ? vc_cond_wake(cond, 1) : VC_REAL(pthread_cond_signal)(cond);
}

VC_EXPORT int pthread_cond_broadcast(pthread_cond_t *cond)
{
	return vc_clock ? vc_cond_wake(cond, UINT32_MAX) : VC_REAL(pthread_cond_broadcast)(cond);
}

VC_EXPORT int sem_wait(sem_t *sem)
{
	if (!vc_clock) {
		return VC_REAL(sem_wait)(sem);
	}
	for (;;) {
		vc_key_lock(sem);
		if (!VC_REAL(sem_trywait)(sem)) {
			vc_key_unlock(sem);
			return 0;
		}
		vc_key_wait(sem, VC_WAIT_SEM, VC_NEVER, NULL);
	}
}

VC_EXPORT int sem_post(sem_t *sem)
{
	int result;

	if (!vc_clock) {
		return VC_REAL(sem_post)(sem);
	}
	vc_key_lock(sem);
	result = VC_REAL(sem_post)(sem);
	vc_key_wake(sem, 1);
	vc_key_unlock(sem);
	return result;
}

/* What a pthread_barrier_t holds here. */
struct vc_gate {
	uint32_t count, here, round;
};

VC_EXPORT int pthread_barrier_init(pthread_barrier_t *barrier, const pthread_barrierattr_t *attr,
				   unsigned int count)
{
	if (!vc_clock || !count) {
		return VC_REAL(pthread_barrier_init)(barrier, attr, count);
	}
	*(struct vc_gate *)barrier = (struct vc_gate){ .count = count };
	return 0;
}

VC_EXPORT int pthread_barrier_destroy(pthread_barrier_t *barrier)
{
	return vc_clock ? 0 : VC_REAL(pthread_barrier_destroy)(barrier);
}

VC_EXPORT int pthread_barrier_wait(pthread_barrier_t *barrier)
{
	struct vc_gate *gate = (struct vc_gate *)barrier;
	uint32_t round;

	if (!vc_clock) {
		return VC_REAL(pthread_barrier_wait)(barrier);
	}
	vc_key_lock(barrier);
	round = gate->round;
	if (++gate->here == gate->count) {
		gate->here = 0;
		gate->round++;
		vc_key_wake(barrier, UINT32_MAX);
		vc_key_unlock(barrier);
		return PTHREAD_BARRIER_SERIAL_THREAD;
	}
	while (gate->round == round) {
		vc_key_wait(barrier, VC_WAIT_BARRIER, VC_NEVER, NULL);
		vc_key_lock(barrier);
	}
	vc_key_unlock(barrier);
	return 0;
}

VC_EXPORT int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *),
			     void *arg)
{
	return vc_clock ? vc_thread_start(thread, attr, fn, arg)
			: VC_REAL(pthread_create)(thread, attr, fn, arg);
}

VC_EXPORT int pthread_join(pthread_t thread, void **result)
{
	if (vc_clock) {
		vc_thread_await(thread);
	}
	return VC_REAL(pthread_join)(thread, result);
}

VC_EXPORT int pthread_detach(pthread_t thread)
{
	if (vc_clock) {
		vc_thread_forget(thread);
	}
	return VC_REAL(pthread_detach)(thread);
}

VC_EXPORT pid_t fork(void)
{
	return vc_clock ? vc_process_fork() : VC_REAL(fork)();
}

static bool vc_child_ready(void *arg)
{
	siginfo_t info = { .si_pid = 0 };
	const pid_t *pid = arg;

	/* does not reap; a stop is seen when the kernel wakes the caller */
	return waitid(P_PID, (id_t)*pid, &info, WEXITED | WNOHANG | WNOWAIT) || info.si_pid;
}

/* A child that the clock does not know may do anything: then the caller counts as running. */
VC_EXPORT pid_t waitpid(pid_t pid, int *status, int options)
{
	int ended = 0;
	pid_t got;

	if (vc_clock && pid > 0 && !(options & WNOHANG) && vc_process_known(pid) &&
	    vc_kernel_begin(VC_WAIT_CHILD, VC_NEVER, false, vc_child_ready, &pid)) {
		got = VC_REAL(waitpid)(pid, &ended, options);
		vc_kernel_end();
		vc_event();
	} else {
		got = VC_REAL(waitpid)(pid, &ended, options);
	}
	if (vc_clock && got > 0 && (WIFEXITED(ended) || WIFSIGNALED(ended))) {
		vc_process_set(got, VC_PROC_ENDED);
	}
	if (status) {
		*status = ended;
	}
	return got;
}

VC_EXPORT int kill(pid_t pid, int number)
{
	if (vc_clock && pid > 0 && (number == SIGSTOP || number == SIGCONT)) {
		vc_process_set(pid, number == SIGSTOP ? VC_PROC_STOPPED : VC_PROC_LIVE);
	} else if (vc_clock && pid > 0 && number == SIGKILL) {
		vc_process_kill(pid);
	}
	return (int)syscall(SYS_kill, pid, number);
}

VC_EXPORT int raise(int number)
{
	if (vc_clock && number == SIGSTOP) {
		return kill(getpid(), number);
	}
	return (int)syscall(SYS_tgkill, getpid(), syscall(SYS_gettid), number);
}
