/* SPDX-License-Identifier: Apache-2.0 */
/* attend.c: a thread that hears what other ends say while NCCL does not call. */
#ifndef EP_NET_ATTEND_H
#define EP_NET_ATTEND_H

#include <nccl.h>
#include <stdint.h>

/* What is said to these sockets is for an object; -1: none. */
ncclResult_t ep_net_attend_all(const void *handle, const int *fd, uint32_t n);
void ep_net_attend_none(const int *fd, uint32_t n);

#endif
