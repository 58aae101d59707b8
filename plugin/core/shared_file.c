/* SPDX-License-Identifier: Apache-2.0 */
/* Files in /dev/shm that live as long as the process that has locked them. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <unistd.h>
#include "core/process.h"
#include "core/shared_file.h"

#define EP_SHARED_DIGITS 16
#define EP_SHARED_TRIES 16

/* Whether a name is <prefix><digits>.<16 hexadecimal digits>. */
static bool is_named(const char *name, const char *prefix)
{
	size_t n = strlen(prefix);

	if (strncmp(name, prefix, n) != 0) {
		return false;
	}
	name += n;
	n = strspn(name, "0123456789");
	return n && name[n] == '.' && strlen(name + n + 1) == EP_SHARED_DIGITS &&
	       strspn(name + n + 1, "0123456789abcdef") == EP_SHARED_DIGITS;
}

/*
 * The lock is held until the file has gone: a process that has not locked its file yet notices that
 * it has lost it (make_locked()). A shared lock does, and who looks does not take it for that of a
 * process.
 */
static void remove_dead(void *arg, const char *path, int fd, const struct stat *st)
{
	if (fd >= 0 && st->st_uid == geteuid() && flock(fd, LOCK_SH | LOCK_NB) == 0) {
		(void)unlink(path);
	}
}

void ep_shared_file_sweep(const char *prefix)
{
	ep_shared_file_each(prefix, remove_dead, NULL);
}

/*
 * Makes a file without bytes, and locks it. Returns 0, or a code of errno. EAGAIN: before it was
 * locked another process looked at it, or took it for one that was left behind.
 */
static int make_locked(struct ep_shared_file *file, const char *prefix)
{
	struct stat st;
	int error;

	snprintf(file->path, sizeof(file->path), EP_SHARED_DIR "/%s%d.%016llx", prefix,
		 (int)file->pid, (unsigned long long)ep_random_u64());
	file->fd = open(file->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (file->fd < 0) {
		return errno;
	}
	if (flock(file->fd, LOCK_EX | LOCK_NB) != 0 || fstat(file->fd, &st) != 0) {
		error = errno;
	} else {
		error = st.st_nlink ? 0 : EAGAIN;
	}
	if (error) {
		(void)unlink(file->path);
		close(file->fd);
	}
	return error;
}

int ep_shared_file_make(struct ep_shared_file *file, const char *prefix, size_t bytes)
{
	int error = EAGAIN;

	ep_shared_file_sweep(prefix);
	file->pid = getpid();
	for (int i = 0; i < EP_SHARED_TRIES && error == EAGAIN; i++) {
		error = make_locked(file, prefix);
	}
	if (error) {
		goto err_path;
	}
	error = ep_shared_file_grow(file, bytes);
	if (error) {
		goto err_file;
	}
	return 0;

err_file:
	(void)unlink(file->path);
	close(file->fd);
err_path:
	file->path[0] = '\0';
	return error;
}

int ep_file_fill(int fd, uint64_t at, uint64_t bytes)
{
	struct rlimit limit;
	int error;

	if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && at + bytes > limit.rlim_cur) {
		return EFBIG;
	}
	do {
		error = posix_fallocate(fd, (off_t)at, (off_t)bytes);
	} while (error == EINTR);
	return error;
}

int ep_shared_file_grow(const struct ep_shared_file *file, size_t bytes)
{
	return ep_file_fill(file->fd, 0, bytes);
}

void ep_shared_file_remove(struct ep_shared_file *file)
{
	if (!file->path[0]) {
		return;
	}
	if (file->pid == getpid()) {
		(void)unlink(file->path);
	}
	close(file->fd);
	file->path[0] = '\0';
}

bool ep_shared_file_held(int fd)
{
	if (flock(fd, LOCK_SH | LOCK_NB) != 0) {
		return true;
	}
	(void)flock(fd, LOCK_UN);
	return false;
}

void ep_shared_file_each(const char *prefix,
			 void (*visit)(void *arg, const char *path, int fd, const struct stat *st),
			 void *arg)
{
	char path[sizeof(EP_SHARED_DIR) + 256];
	DIR *dir = opendir(EP_SHARED_DIR);
	struct dirent *entry;
	struct stat st;
	bool ours;
	int fd;

	while (dir && (entry = readdir(dir))) {
		if (!is_named(entry->d_name, prefix)) {
			continue;
		}
		snprintf(path, sizeof(path), EP_SHARED_DIR "/%s", entry->d_name);
		fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
		if (fd < 0 && errno == ENOENT) { /* it has just been removed */
			continue;
		}
		ours = fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
		       (st.st_uid == geteuid() || geteuid() == 0);
		visit(arg, path, ours ? fd : -1, &st);
		if (fd >= 0) {
			close(fd);
		}
	}
	if (dir) {
		closedir(dir);
	}
}
