/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files by which a process shows itself to programs like ep_info while it lives:
 *
 *     /dev/shm/<prefix><process id>.<random number, 16 hexadecimal digits>
 *
 * The process holds a lock on its file (flock(2)). The kernel drops the lock when the process ends,
 * however it ends and whatever its PID namespace is. So the lock, not the process id, decides
 * whether a file is alive. Only the user of the process may read the file. A child of fork() shares
 * the lock until it ends or calls exec(). Plain C, without CUDA and NCCL.
 */
#ifndef EP_CORE_SHARED_FILE_H
#define EP_CORE_SHARED_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <sys/types.h>

#define EP_SHARED_DIR "/dev/shm"
#define EP_SHARED_PATH 64

struct ep_shared_file {
	int fd;
	pid_t pid;                 /* that made it */
	char path[EP_SHARED_PATH]; /* "": there is none */
};

/*
 * Makes a file of so many bytes, all zero, and locks it. There is memory behind each byte: to write
 * where /dev/shm is full would be a bus error. Removes the files of this prefix that processes of
 * this user have left behind, whatever state they were in when they were killed. Returns 0;
 * otherwise a code of errno, and file->path is "".
 */
int ep_shared_file_make(struct ep_shared_file *file, const char *prefix, size_t bytes);

/* Removes the files of the prefix that processes of this user have left behind. */
void ep_shared_file_sweep(const char *prefix);

/*
 * Makes a file at least at + bytes long, with memory behind each of those bytes. Returns 0, or a
 * code of errno. EFBIG, too, if the process may not have so long a file (ulimit -f): the kernel
 * would end it by a signal.
 */
int ep_file_fill(int fd, uint64_t at, uint64_t bytes);

/* Makes the file at least so long, with memory behind each byte. Returns 0, or a code of errno. */
int ep_shared_file_grow(const struct ep_shared_file *file, size_t bytes);

/* Removes the file. In a child of fork() the parent's file stays. Mappings stay in any case. */
void ep_shared_file_remove(struct ep_shared_file *file);

/* Whether a process holds the lock of an open file. */
bool ep_shared_file_held(int fd);

/*
 * Calls visit() for each file of the prefix. `fd` is open for reading; -1: the file is of another
 * user, and this one is not root, or it is no regular file. visit() reads what it needs; the
 * process may end at any time.
 */
void ep_shared_file_each(const char *prefix,
			 void (*visit)(void *arg, const char *path, int fd, const struct stat *st),
			 void *arg);

#endif
