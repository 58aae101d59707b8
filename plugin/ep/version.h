/* SPDX-License-Identifier: Apache-2.0 */
#ifndef EP_EP_VERSION_H
#define EP_EP_VERSION_H

#include <stddef.h>
#include <nccl.h>

#define EP_VERSION_LINE 800

/* Which library this is, in one line: its build, what it is for, the API, the process's NCCL, and its file. */
void ep_version_describe(char *line, size_t size);

/* The line, for ncclEpExtVersion. It belongs to the thread, until its next call. */
ncclResult_t ep_version_text(const char **text);

/* Logs the line once in a process: with NCCL_DEBUG=INFO on every rank, with less on rank 0, as NCCL's own version. */
void ep_version_log(int rank);

#endif
