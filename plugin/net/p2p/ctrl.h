/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Control messages: what the ends of a connection with several paths send each other over TCP, once it
 * is made.
 */
#ifndef EP_NET_CTRL_H
#define EP_NET_CTRL_H

#include "net/link/sock.h"
#include "net/p2p/p2p.h"

#define EP_NET_CTRL_MAGIC 0x64726f77u

enum ep_net_ctrl_kind {
	EP_NET_CLOSED = 1, /* nothing comes from the path any more */
	EP_NET_OFFER,      /* it has new queue pairs here, */
	EP_NET_READY_TOO,  /* which are connected to the other end's, */
	EP_NET_PROVED      /* sender: and reach it */
};

/* Of a path, in one of its generations; see net_path.h. */
struct ep_net_ctrl_msg {
	uint32_t magic;
	uint16_t path, generation;
	uint8_t kind;
	uint8_t why;           /* CLOSED: enum ep_net_path_why */
	uint8_t port, pad;     /* OFFER: by which port of this end, */
	struct ep_nic_end end; /* as it is now */
	/* CLOSED: parts of messages that each queue pair has brought; OFFER: numbers of queue pairs */
	uint32_t number[EP_NET_MAX_QPS];
};

/* An end sends up to four messages in a generation, and reads the other end's before the next but one. */
#define EP_NET_CTRL_MSGS (EP_NET_NIC_PORTS * 8u)

struct ep_net_ctrl {
	struct ep_net_ctrl_msg in, out[EP_NET_CTRL_MSGS]; /* out: ring */
	size_t in_at, out_at;
	uint32_t nout, sent; /* messages to be sent, those that were: ever */
};

/* Sends a message about a path, now or later; fills in what all kinds have. */
ncclResult_t ep_net_ctrl_send(struct ep_net_comm *c, enum ep_net_ctrl_kind kind, uint32_t path,
			      struct ep_net_ctrl_msg *msg);
/* Sends what is to be sent as far as the socket has room. */
enum ep_net_io_state ep_net_ctrl_flush(struct ep_net_comm *c);
/* Takes the next message, when all of it is there. */
enum ep_net_io_state ep_net_ctrl_recv(struct ep_net_comm *c, struct ep_net_ctrl_msg *msg);

#endif
