/* SPDX-License-Identifier: Apache-2.0 */
/* async.c: a thread that receives control messages while NCCL does not call. */
#ifndef EP_NET_ASYNC_H
#define EP_NET_ASYNC_H

#include <nccl.h>
#include <stdint.h>

struct ep_net_async;

/* Reads an object's socket. The object is not freed meanwhile. */
typedef void ep_net_async_fn(const struct ep_net_async *a, void *object);

/* The thread calls `fn` when the socket has something to read, while there is an object of this handle. */
ncclResult_t ep_net_async_add(const void *handle, int fd, ep_net_async_fn *fn);
/* For `fn`: the thread reads this socket no more. */
void ep_net_async_skip(const struct ep_net_async *a, int fd);
void ep_net_async_remove(int fd);

#endif
