/* SPDX-License-Identifier: Apache-2.0 */
/* async.c: a thread that receives control messages while NCCL does not call. */
#ifndef EP_NET_ASYNC_H
#define EP_NET_ASYNC_H

#include <nccl.h>
#include <stdint.h>

struct ep_net_async;

/* Reads an object's sockets. The object is not freed meanwhile. */
typedef void ep_net_async_fn(const struct ep_net_async *a, void *object);

/*
 * The thread calls `fn` when one of these sockets (-1: none) has something to read, while there is an
 * object of this handle. All objects of one kind have the same `fn`.
 */
ncclResult_t ep_net_async_add(const void *handle, const int *fd, uint32_t n, ep_net_async_fn *fn);
/* For `fn`: the thread reads this socket no more. */
void ep_net_async_skip(const struct ep_net_async *a, int fd);
void ep_net_async_remove(const int *fd, uint32_t n);

#endif
