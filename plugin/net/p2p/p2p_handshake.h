/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The handshake of two ends over TCP, as InfiniBand's connection manager has it:
 *
 *     the sender's request (REQ) -> the receiver's reply (REP) -> the sender is ready (RTU)
 */
#ifndef EP_NET_P2P_HANDSHAKE_H
#define EP_NET_P2P_HANDSHAKE_H

#include "net/link/acceptor.h"
#include "net/p2p/p2p.h"

#define EP_NET_READY 0x79646572u
#define EP_NET_TEXT 240

struct ep_net_connect_req {
	struct ep_net_head head;
	uint64_t shared;
	uint32_t nqps, tc, ports, sl, rank, pad;
	struct ep_net_remote port[EP_NET_NIC_PORTS];
	uint32_t qpn[EP_NET_MAX_QPS];
};

struct ep_net_connect_rep {
	struct ep_net_head head;
	int32_t code; /* ncclSuccess, or text has the reason */
	uint32_t ports;
	uint64_t shared;
	struct ep_net_remote port[EP_NET_NIC_PORTS];
	uint32_t qpn[EP_NET_MAX_QPS];
	char text[EP_NET_TEXT];
};

/* In what NCCL brings from listen() to connect(), which begins with all zero behind `parked`. */
struct ep_net_handle {
	struct ep_net_place place; /* its number: ports of the receiver's NIC */
	void *parked;              /* the sender's own: what it has begun */
	uint32_t
		rank; /* the sender's own: which of the listener's senders it is, for collectives */
};

_Static_assert(sizeof(struct ep_net_handle) <= EP_NET_HANDLE_BYTES, "NCCL's handle");
_Static_assert(offsetof(struct ep_net_connect_req, shared) == sizeof(struct ep_net_head), "packed");

/* Fills in this end's message. */
void ep_net_connect_req_fill(const struct ep_net_comm *c, uint64_t nonce,
			     struct ep_net_connect_req *req);
void ep_net_connect_rep_fill(const struct ep_net_comm *c, uint64_t nonce,
			     struct ep_net_connect_rep *rep);
void ep_net_connect_rep_refuse(ncclResult_t code, uint64_t nonce, struct ep_net_connect_rep *rep);

/* Whether the other end's values are possible, of an end with so many paths. */
ncclResult_t ep_net_peer_check(const struct ep_net_peer *peer, uint32_t npaths, const char *who);

#endif
