/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The clock of the cluster: hours pass in no time when all wait, nothing is overtaken that is under
 * way, and what never ends is said. With an argument: a mistake that the clock must find, in a
 * child.
 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include "child.h"
#include "kernels.h"

#define HOUR 3600.0
#define ROUNDS 2000
#define STUCK 85
#define STALLED 86
#define KILLS 20

#define MUST(condition)                                                                            \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: failed: %s\n", __FILE__, __LINE__, #condition);    \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t cond = PTHREAD_COND_INITIALIZER;
static int turn;

static double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static double real(void)
{
	struct timespec t;

	syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* A limit that comes first if time is moved while something is under way. */
static void *doze_main(void *seconds)
{
	sleep((unsigned int)(uintptr_t)seconds);
	return NULL;
}

static pthread_t doze(unsigned int seconds)
{
	pthread_t thread;

	MUST(!pthread_create(&thread, NULL, doze_main, (void *)(uintptr_t)seconds));
	return thread;
}

static void test_passes(void)
{
	double start = now(), began = real();
	pthread_condattr_t attr;
	struct timespec limit;
	pthread_cond_t own;

	usleep(1000000);
	CHECK(now() - start >= 1 && now() - start < 2);
	sleep(3600);
	CHECK(now() - start >= HOUR && now() - start < HOUR + 60);
	start = now();
	CHECK_INT(poll(NULL, 0, 60000), 0);
	CHECK(now() - start >= 60 && now() - start < 61);
	MUST(!pthread_condattr_init(&attr) && !pthread_condattr_setclock(&attr, CLOCK_MONOTONIC));
	MUST(!pthread_cond_init(&own, &attr));
	MUST(!pthread_mutex_lock(&lock));
	clock_gettime(CLOCK_MONOTONIC, &limit);
	limit.tv_sec += 100;
	start = now();
	CHECK_INT(pthread_cond_timedwait(&own, &lock, &limit), ETIMEDOUT);
	CHECK(now() - start >= 99 && now() - start < 101);
	clock_gettime(CLOCK_REALTIME, &limit);
	limit.tv_sec += 100;
	start = now();
	CHECK_INT(pthread_cond_timedwait(&cond, &lock, &limit), ETIMEDOUT);
	CHECK(now() - start >= 99 && now() - start < 101);
	MUST(!pthread_mutex_unlock(&lock));
	start = now();
	MUST(!pthread_join(doze(1000), NULL));
	CHECK(now() - start >= 1000 && now() - start < 1001);
	CHECK(real() - began < 30);
}

/* A thread that runs moves time at its real pace at most, and no limit of others comes early. */
static void test_runs(void)
{
	double began = real(), start = now();
	pthread_t other = doze(3600);

	while (real() - began < 0.1) {
	}
	CHECK(now() - start <= real() - began + 0.01);
	MUST(!pthread_join(other, NULL));
	CHECK(now() - start >= HOUR);
	CHECK(real() - began < 30);
}

static void *turns_main(void *arg)
{
	MUST(!pthread_mutex_lock(&lock));
	while (turn < ROUNDS) {
		while (turn < ROUNDS && turn % 2 != (int)(uintptr_t)arg) {
			pthread_cond_wait(&cond, &lock);
		}
		turn++;
		pthread_cond_signal(&cond);
	}
	MUST(!pthread_mutex_unlock(&lock));
	return NULL;
}

/* Who is woken by another thread runs, though it may not have got a processor yet. */
static void test_woken(void)
{
	double start = now();
	pthread_t other = doze(3600), thread;

	MUST(!pthread_create(&thread, NULL, turns_main, (void *)1));
	turns_main(NULL);
	MUST(!pthread_join(thread, NULL));
	CHECK(now() - start < HOUR / 2);
	MUST(!pthread_join(other, NULL));
}

static sem_t posted[2];

static void *posts_main(void *arg)
{
	int me = (int)(uintptr_t)arg;

	for (int i = 0; i < ROUNDS; i++) {
		MUST(!sem_wait(&posted[me]));
		MUST(!sem_post(&posted[!me]));
	}
	return NULL;
}

static void test_posted(void)
{
	double start = now();
	pthread_t other = doze(3600), thread;

	MUST(!sem_init(&posted[0], 0, 1) && !sem_init(&posted[1], 0, 0));
	MUST(!pthread_create(&thread, NULL, posts_main, (void *)1));
	posts_main(NULL);
	MUST(!pthread_join(thread, NULL));
	CHECK(now() - start < HOUR / 2);
	MUST(!pthread_join(other, NULL));
}

static void tcp_pair(int fd[2])
{
	struct sockaddr_in address = { .sin_family = AF_INET };
	socklen_t size = sizeof(address);
	int at = socket(AF_INET, SOCK_STREAM, 0);

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	fd[0] = socket(AF_INET, SOCK_STREAM, 0);
	MUST(at >= 0 && fd[0] >= 0 && !bind(at, (struct sockaddr *)&address, size) &&
	     !listen(at, 1) && !getsockname(at, (struct sockaddr *)&address, &size) &&
	     !connect(fd[0], (struct sockaddr *)&address, size));
	fd[1] = accept(at, NULL, NULL);
	MUST(fd[1] >= 0);
	close(at);
}

/* Bytes go to and fro: each side waits for a minute at most. */
static int talk(int fd, bool first)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };
	char byte = 0;

	for (int i = 0; i < ROUNDS; i++) {
		if (first || i) {
			if (write(fd, &byte, 1) != 1) {
				return 1;
			}
		}
		if (poll(&p, 1, 60000) != 1 || read(fd, &byte, 1) != 1) {
			return 2;
		}
	}
	return !first && write(fd, &byte, 1) != 1;
}

/* A byte that was sent and not read holds time up, between processes too. */
static void test_sent(bool tcp)
{
	double start = now();
	pthread_t other = doze(3600);
	int fd[2], status;
	pid_t pid;

	if (tcp) {
		tcp_pair(fd);
	} else {
		MUST(!socketpair(AF_UNIX, SOCK_STREAM, 0, fd));
	}
	pid = fork();
	MUST(pid >= 0);
	if (!pid) {
		_exit(talk(fd[1], false));
	}
	CHECK_INT(talk(fd[0], true), 0);
	CHECK(now() - start < 30);
	CHECK(waitpid(pid, &status, 0) == pid && status == 0);
	MUST(!pthread_join(other, NULL));
	CHECK(now() - start >= HOUR);
	close(fd[0]);
	close(fd[1]);
}

/* What a compiler that fortifies calls makes of poll() and ppoll(). */
int __poll_chk(struct pollfd *fds, nfds_t n, int ms, size_t size);
int __ppoll_chk(struct pollfd *fds, nfds_t n, const struct timespec *t, const sigset_t *mask,
		size_t size);

static void test_fortified(void)
{
	double began = real(), start = now();
	const struct timespec hour = { 3600, 0 };
	struct pollfd p = { .events = POLLIN };
	int fd[2];

	MUST(!pipe(fd));
	p.fd = fd[0];
	CHECK_INT(__poll_chk(&p, 1, 3600000, sizeof(p)), 0);
	CHECK_INT(__ppoll_chk(&p, 1, &hour, NULL, sizeof(p)), 0);
	CHECK(now() - start >= 2 * HOUR && real() - began < 30);
	close(fd[0]);
	close(fd[1]);
}

/* A process that is stopped, or was killed, holds up nobody. */
static void test_ended(int number)
{
	double began = real(), start = now();
	int fd[2], status;
	char byte;
	pid_t pid;

	MUST(!pipe(fd));
	pid = fork();
	MUST(pid >= 0);
	if (!pid) {
		if (write(fd[1], &byte, 1) != 1) {
			_exit(1);
		}
		for (;;) {
		}
	}
	MUST(read(fd[0], &byte, 1) == 1);
	CHECK_INT(kill(pid, number), 0);
	if (number == SIGKILL) {
		MUST(waitpid(pid, &status, 0) == pid);
	}
	sleep(3600);
	CHECK(now() - start >= HOUR && real() - began < 30);
	if (number != SIGKILL) {
		CHECK(!kill(pid, SIGCONT) && !kill(pid, SIGKILL));
		CHECK(waitpid(pid, &status, 0) == pid);
	}
	close(fd[0]);
	close(fd[1]);
}

/* Until a process that was killed has been waited for, it may still be about to end. */
static void test_killed(bool stopped)
{
	pthread_t other;
	int fd[2], status;
	double start;
	pid_t pid;
	char byte = 0;

	for (int i = 0; i < KILLS; i++) {
		MUST(!pipe(fd));
		pid = fork();
		MUST(pid >= 0);
		if (!pid) {
			MUST(write(fd[1], &byte, 1) == 1);
			for (;;) {
				sleep(3600);
			}
		}
		MUST(read(fd[0], &byte, 1) == 1);
		CHECK(!stopped || !kill(pid, SIGSTOP));
		other = doze(600);
		start = now();
		CHECK(!kill(pid, SIGKILL) && waitpid(pid, &status, 0) == pid);
		CHECK(now() - start < 300);
		MUST(!pthread_join(other, NULL));
		close(fd[0]);
		close(fd[1]);
	}
}

/*
 * A kernel hangs while the run has no processor: a process that is to run does not, and the clock
 * does not know why. The watchdog waits until the run has one.
 */
static void starve(void)
{
	struct test_illegal_args args = { .what = ILLEGAL_HANG_SPIN };
	int status;
	pid_t pid;

	MUST(!cudaMalloc((void **)&args.word, 4096) && !cudaMemset(args.word, 0, 4096));
	pid = fork();
	MUST(pid >= 0);
	if (!pid) {
		syscall(SYS_kill, getpid(), SIGSTOP);
		_exit(1);
	}
	MUST(waitpid(pid, &status, WUNTRACED) == pid && WIFSTOPPED(status));
	MUST(!test_launch(test_illegal, 2, 128, &args, 0, NULL));
	syscall(SYS_nanosleep, &(struct timespec){ 3, 0 }, NULL);
	printf("it was patient\n");
	fflush(stdout);
	MUST(!kill(pid, SIGKILL) && waitpid(pid, &status, 0) == pid);
	cudaDeviceSynchronize();
}

/* What a child does that the clock must end. */
static int mistake(const char *what)
{
	pthread_t thread;

	if (!strcmp(what, "limitless")) { /* nobody ever signals it */
		MUST(!pthread_mutex_lock(&lock));
		pthread_cond_wait(&cond, &lock);
	} else if (!strcmp(what, "lost")) { /* a signal that comes before its wait is lost */
		MUST(!pthread_create(&thread, NULL, doze_main, (void *)1));
		MUST(!pthread_cond_signal(&cond));
		MUST(!pthread_mutex_lock(&lock));
		pthread_cond_wait(&cond, &lock);
	} else if (!strcmp(what, "naps")) { /* for what never comes */
		for (;;) {
			sleep(60);
		}
	} else if (!strcmp(what, "starves")) {
		starve();
	} else { /* a thread that spins: time does not move faster */
		alarm(1);
		MUST(!pthread_create(&thread, NULL, doze_main, (void *)3600));
		for (;;) {
		}
	}
	return 0;
}

static void test_found(char *self, const char *what, int code, const char *says)
{
	static char text[CHILD_TEXT];
	char *argv[] = { self, (char *)what, NULL };
	int status = child_run(argv, NULL, text);

	if (!WIFEXITED(status) || WEXITSTATUS(status) != code) {
		fprintf(stderr, "%s: wait status %#x, should be exit %d:\n%s\n", what,
			(unsigned int)status, code, text);
		test_failures++;
	}
	CHECK_TEXT(text, says);
}

int main(int argc, char **argv)
{
	char *spins[] = { argv[0], (char *)"spins", NULL };
	static char text[CHILD_TEXT];
	int status;

	if (argc == 2) {
		return mistake(argv[1]);
	}
	test_passes();
	test_runs();
	test_woken();
	test_posted();
	test_sent(false);
	test_sent(true);
	test_fortified();
	test_ended(SIGSTOP);
	test_ended(SIGKILL);
	test_killed(false);
	test_killed(true);
	test_found(argv[0], "limitless", STUCK, "waits for a condition without a limit");
	test_found(argv[0], "lost", STUCK, "no thread runs, and no wait has a limit");
	test_found(argv[0], "naps", STUCK, "a thread that naps waits in vain");
	setenv("VC_WATCHDOG_S", "1", 1);
	test_found(argv[0], "starves", STALLED, "it was patient\n");
	status = child_run(spins, NULL, text);
	CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM);
	return test_result();
}
