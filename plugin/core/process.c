/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel knows about processes, from /proc. */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "core/process.h"

static pthread_once_t self_once = PTHREAD_ONCE_INIT;
static int *self_pid; /* in a page of its own, which is zero in a new child; NULL: there is none */

static void self_init(void)
{
	size_t bytes = (size_t)sysconf(_SC_PAGESIZE);
	void *page = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (page != MAP_FAILED && madvise(page, bytes, MADV_WIPEONFORK)) {
		munmap(page, bytes);
		page = MAP_FAILED;
	}
	self_pid = page == MAP_FAILED ? NULL : page;
}

int ep_process_self(void)
{
	int pid;

	pthread_once(&self_once, self_init);
	if (!self_pid) {
		return (int)getpid();
	}
	pid = __atomic_load_n(self_pid, __ATOMIC_RELAXED);
	if (!pid) {
		pid = (int)getpid();
		__atomic_store_n(self_pid, pid, __ATOMIC_RELAXED);
	}
	return pid;
}

ssize_t ep_file_read(const char *path, char *text, size_t size)
{
	int fd, error;
	ssize_t n;

	errno = 0;
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0) {
		return -1;
	}
	n = read(fd, text, size - 1);
	error = n < 0 ? errno : 0;
	close(fd);
	text[n > 0 ? n : 0] = '\0';
	errno = error;
	return n;
}

bool ep_process_read(int pid, char *state, uint64_t *start_time)
{
	char path[64], text[1024];
	const char *p;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	if (ep_file_read(path, text, sizeof(text)) <= 0) {
		return false;
	}
	p = strrchr(text, ')'); /* the command name may hold anything */
	if (!p || p[1] != ' ') {
		return false;
	}
	p += 2;
	*state = *p;
	for (int field = 3; field < 22 && p; field++) {
		if (field == 20 && *state == 'Z' && strtoull(p, NULL, 10) > 1) { /* threads */
			*state = 'R';
		}
		p = strchr(p, ' ');
		p = p ? p + 1 : NULL;
	}
	*start_time = p ? strtoull(p, NULL, 10) : 0;
	return true;
}

uint64_t ep_process_namespace(void)
{
	struct stat st;

	return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

uint64_t ep_random_u64(void)
{
	uint64_t v;

	if (getrandom(&v, sizeof(v), GRND_NONBLOCK) != (ssize_t)sizeof(v)) {
		struct timespec now;

		clock_gettime(CLOCK_MONOTONIC, &now);
		v = (uint64_t)now.tv_nsec * 0x9e3779b97f4a7c15ull ^ (uint64_t)now.tv_sec << 32 ^
		    (uint64_t)getpid();
	}
	return v;
}
