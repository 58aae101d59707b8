/* SPDX-License-Identifier: Apache-2.0 */
/* States of processes of this host, from the kernel. Needs neither CUDA nor NCCL. */
#ifndef EP_CORE_PROCESS_H
#define EP_CORE_PROCESS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* A small file as text. -1, and errno, where it fails; errno is 0 if there is no error. */
ssize_t ep_file_read(const char *path, char *text, size_t size);

/*
 * State letter and start time of a process, in clock ticks since the host's start; false, and
 * errno, if they cannot be read. The letter is Z or X only when the last thread has ended: after
 * pthread_exit() in main() the others run on, and after SIGKILL the driver may still be at work for
 * one of them. Until then it is R.
 */
bool ep_process_read(int pid, char *state, uint64_t *start_time);

/*
 * Returns getpid(). Where the kernel can empty a page in children of fork(), it asks once: a system
 * call takes up to a quarter of a microsecond, and every call on a group wants to know.
 */
int ep_process_self(void);

/* Process ids compare only within one namespace. 0: it is not known. */
uint64_t ep_process_namespace(void);

/* Returns 64 random bits. Without entropy they depend on the time and the process. */
uint64_t ep_random_u64(void);

#endif
