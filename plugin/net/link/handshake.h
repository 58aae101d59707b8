/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The head of messages over TCP, in all versions alike, so that ends of two versions find that out; and
 * checks of what ends send about their ports.
 */
#ifndef EP_NET_HANDSHAKE_H
#define EP_NET_HANDSHAKE_H

#include "core/error.h"
#include "net/link/sock.h"
#include "rdma/nic.h"

#define EP_NET_MAGIC 0x7465672d6e636c31ull
#define EP_NET_VERSION 7u /* any change of what ends send each other, or of a connection's memory */
#define EP_NET_MAX_QPS 128u

struct ep_net_head {
	uint64_t magic;
	uint32_t version;
	uint32_t bytes; /* with the head */
	uint64_t nonce; /* of the listener: who knows it has its handle */
};

/*
 * Sends, or receives, more of a message. *done: all of it. `at`: how much is. `who` is the other end, in
 * errors. A message that is received begins with a head of this version, with that magic; one without a head
 * goes by ep_net_message_end().
 */
ncclResult_t ep_net_message_end(enum ep_net_io_state state, const char *who, bool *done);
ncclResult_t ep_net_message_send(int fd, const void *msg, size_t bytes, size_t *at, const char *who,
				 bool *done);
ncclResult_t ep_net_message_recv(int fd, struct ep_net_head *msg, size_t bytes, uint64_t magic,
				 size_t *at, const char *who, bool *done);

/* Time that a connection has, from its first call on. */
uint64_t ep_net_setup_ns(void);

/*
 * Whether the other end's values of a port and its queue pairs are possible; `qpn` NULL: it sends none
 * of queue pairs.
 */
bool ep_net_end_good(const struct ep_nic_end *end, const uint32_t *qpn, uint32_t nqps);
ncclResult_t ep_net_end_check(const struct ep_nic_end *end, const uint32_t *qpn, uint32_t nqps,
			      const char *who);

#endif
