/* SPDX-License-Identifier: Apache-2.0 */
/* attend.c: a thread that hears what other ends say while NCCL does not call. */
#ifndef EP_NET_ATTEND_H
#define EP_NET_ATTEND_H

#include <nccl.h>
#include <stdint.h>

struct ep_net_attendant;

/* Reads what was said to an object's sockets. The object is not freed meanwhile. */
typedef void ep_net_attend_fn(const struct ep_net_attendant *a, void *object);

/*
 * The thread calls `fn` when something was said to one of these sockets (-1: none), while there is an
 * object of this handle. All objects of one kind have the same `fn`.
 */
ncclResult_t ep_net_attend(const void *handle, const int *fd, uint32_t n, ep_net_attend_fn *fn);
/* For `fn`: the thread reads this socket no more. */
void ep_net_attend_skip(const struct ep_net_attendant *a, int fd);
void ep_net_attend_end(const int *fd, uint32_t n);

#endif
