/* SPDX-License-Identifier: Apache-2.0 */
/* What the ends of a connection with several routes say to each other, over TCP, once it is made. */
#ifndef EP_NET_TALK_H
#define EP_NET_TALK_H

#include "net/comm.h"
#include "net/sock.h"

/* This end has closed a route: nothing comes from it any more. */
struct ep_net_word {
	uint32_t magic;
	uint16_t route;
	uint16_t last; /* the connection itself is being closed */
	uint32_t came
		[EP_NET_MAX_QPS]; /* parts of messages that each queue pair of the route brought */
};

struct ep_net_talk {
	struct ep_net_word in, out[EP_NET_NIC_PORTS]; /* out: one for each route at most */
	size_t in_at, out_at;
	uint32_t nout, said; /* words to be said; those that were */
};

void ep_net_talk_put(struct ep_net_comm *c, const struct ep_net_word *word);
/* Says what is to be said as far as the socket has room. */
enum ep_net_io_state ep_net_talk_say(struct ep_net_comm *c);
/* The next word, when all of it is there. */
enum ep_net_io_state ep_net_talk_hear(struct ep_net_comm *c, struct ep_net_word *word);

#endif
