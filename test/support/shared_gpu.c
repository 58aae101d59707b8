/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests on real GPUs, several ranks of a process on each. The ranks of a GPU share its context,
 * and cudaFree() waits for all kernels of a context: also for those of other ranks, which wait for
 * this one. So memory goes when the process ends.
 *
 * With TEST_STACKS=S each thread prints where it is after S seconds.
 */
#include <dirent.h>
#include <execinfo.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

int cudaFree(void *ptr);

int cudaFree(void *ptr)
{
	(void)ptr;
	return 0;
}

static void print_stack(int number)
{
	static const char title[] = "-- a thread:\n";
	void *frames[48];

	(void)number;
	(void)!write(STDERR_FILENO, title, sizeof(title) - 1);
	backtrace_symbols_fd(frames, backtrace(frames, 48), STDERR_FILENO);
}

static void *print_stacks(void *seconds)
{
	long own = syscall(SYS_gettid);
	struct dirent *entry;
	DIR *dir;

	sleep((unsigned int)(uintptr_t)seconds);
	dir = opendir("/proc/self/task");
	while (dir && (entry = readdir(dir))) {
		long thread = strtol(entry->d_name, NULL, 10);

		if (thread > 0 && thread != own) {
			(void)syscall(SYS_tgkill, getpid(), thread, SIGUSR1);
			usleep(20000); /* one after another */
		}
	}
	return NULL;
}

__attribute__((constructor)) static void start(void)
{
	struct sigaction action = { .sa_handler = print_stack, .sa_flags = SA_RESTART };
	const char *seconds = getenv("TEST_STACKS");
	pthread_t thread;

	if (seconds && !sigaction(SIGUSR1, &action, NULL)) {
		(void)pthread_create(&thread, NULL, print_stacks,
				     (void *)(uintptr_t)strtoul(seconds, NULL, 10));
	}
}
