/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The library's threads: none takes a signal of the program, and a moment in which the system has
 * no room for one passes unnoticed.
 */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include "core/timed_call.h"
#include "support/check.h"

#define MOMENT 5 /* refusals, less than a thread is tried for */

static int refusals;
static int tried;

/* In place of the C library's. */
int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*fn)(void *), void *arg)
{
	int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
		(int (*)(pthread_t *, const pthread_attr_t *, void *(*)(void *),
			 void *))dlsym(RTLD_NEXT, "pthread_create");

	tried++;
	return refusals-- > 0 ? EAGAIN : create(thread, attr, fn, arg);
}

static void *read_mask(void *mask)
{
	CHECK(!pthread_sigmask(SIG_SETMASK, NULL, mask));
	return mask;
}

static void test_signals(void)
{
	const int asked[] = { SIGINT, SIGTERM, SIGALRM, SIGCHLD, SIGUSR1, SIGPROF };
	sigset_t before, mask, after;
	pthread_t thread;

	sigemptyset(&mask);
	NEED(!pthread_sigmask(SIG_SETMASK, NULL, &before));
	NEED(!ep_thread_start(&thread, read_mask, &mask));
	NEED(!pthread_join(thread, NULL));
	NEED(!pthread_sigmask(SIG_SETMASK, NULL, &after));
	for (size_t i = 0; i < sizeof(asked) / sizeof(asked[0]); i++) {
		CHECK(sigismember(&mask, asked[i]) == 1, "signal %d", asked[i]);
		CHECK_INT(sigismember(&after, asked[i]), sigismember(&before, asked[i]));
	}
}

static void test_refused(void)
{
	sigset_t mask;
	pthread_t thread;

	refusals = MOMENT;
	tried = 0;
	NEED(!ep_thread_start(&thread, read_mask, &mask));
	NEED(!pthread_join(thread, NULL));
	CHECK_INT(tried, MOMENT + 1);
	refusals = 1000;
	CHECK_INT(ep_thread_start(&thread, read_mask, &mask), EAGAIN);
	CHECK(tried < 100, "%d", tried);
	refusals = 0;
}

int main(void)
{
	test_signals();
	test_refused();
	return check_end();
}
