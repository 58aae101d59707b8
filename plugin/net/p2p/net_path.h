/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Paths of a connection that has several: how one is closed that fails (net_path.c), how it comes back
 * (recovery.c), and who looks after them (net_paths.c). Both ends go through the generations of a path in step: no
 * end begins the next one before both have closed the one before, and sent that.
 */
#ifndef EP_NET_PATH_H
#define EP_NET_PATH_H

#include "net/p2p/p2p.h"

enum ep_net_path_state {
	EP_NET_PATH_OPEN,
	EP_NET_PATH_CLOSING, /* this end has closed it, and the other one has not sent that it has */
	EP_NET_PATH_CLOSED,
	/* on its way back: */
	EP_NET_PATH_OFFERED, /* it has new queue pairs, whose numbers were sent to the other end, */
	EP_NET_PATH_READY,  /* which are connected to those of the other end, which was notified, */
	EP_NET_PATH_PROBING /* and is ready, too: the sender sees whether something comes */
};

/* Why an end has closed a path. */
enum ep_net_path_why {
	EP_NET_WHY_FAILED,
	EP_NET_WHY_DOWN,  /* its port is down */
	EP_NET_WHY_MOVES, /* it is to go by another port */
	EP_NET_WHY_LAST   /* the connection itself is being closed */
};

struct ep_net_path {
	enum ep_net_path_state state;
	uint8_t local_port, remote_port;
	uint16_t generation;
	bool drained;       /* closed here: nothing comes from it any more */
	bool remote_closed; /* the other end has closed it, */
	uint64_t since;     /* when it was closed here */
	uint32_t received
		[EP_NET_MAX_QPS]; /* and sends how many parts each of its queue pairs has brought */

	bool remote_down; /* it failed because the other end's port is down */
	uint64_t opened;  /* when */
	uint64_t again;   /* when it may be */
	uint64_t rest;    /* how long it had to wait for that */
	bool offered;     /* the other end has new queue pairs: these numbers, */
	bool ready;       /* which are connected */
	uint32_t psn, remote_psn;
	uint32_t probes; /* sender: under way */
	bool proved;     /* all of them have come */
	uint32_t number[EP_NET_MAX_QPS];

	/* what poll.c has noted */
	bool probed, failed;
	struct ibv_wc failure;
};

struct ep_net_ctrl_msg;

/*
 * net_path.c: what happens to a path that fails. Both ends first see to it that nothing comes from it any
 * more, then send each other, over TCP, which parts of messages it has brought; the rest is sent again
 * over the others. So each part comes once, and nothing comes late.
 */
/* Closes one that is open or on its way back. `what`: why, for the log. */
ncclResult_t ep_net_path_close(struct ep_net_comm *c, uint32_t path, enum ep_net_path_why why,
			       const char *what);
/* Its parts: sees to it that nothing comes from it any more; notifies the other end; both have closed it. */
ncclResult_t ep_net_path_drain(struct ep_net_comm *c, uint32_t path);
ncclResult_t ep_net_path_send_closed(struct ep_net_comm *c, uint32_t path,
				     enum ep_net_path_why why);
ncclResult_t ep_net_path_settle(struct ep_net_comm *c, uint32_t path);

/* net_paths.c */
/* Does what is due after completions were taken up: c->due. */
ncclResult_t ep_net_paths_act(struct ep_net_comm *c);
/* Receives control messages about paths, and checks ports. */
ncclResult_t ep_net_paths_check(struct ep_net_comm *c);
/* The asynchronous thread looks after the paths, too, while NCCL does not call. */
ncclResult_t ep_net_paths_async_add(struct ep_net_comm *c);
/* This end closes: sends what has arrived to the other one. */
void ep_net_paths_close(struct ep_net_comm *c);

/* recovery.c */
/* Takes the steps of paths that are on their way back, or could be. */
ncclResult_t ep_net_recovery_check(struct ep_net_comm *c, uint64_t now);
/* Takes a control message of the other end: it has new queue pairs, or they are connected. */
ncclResult_t ep_net_recovery_receive(struct ep_net_comm *c, const struct ep_net_ctrl_msg *msg);

/* Whether what comes by a path counts: it is open, or the other end may take it for that. */
static inline bool ep_net_path_lives(const struct ep_net_comm *c, uint32_t path)
{
	return !c->path || c->path[path].state == EP_NET_PATH_OPEN ||
	       c->path[path].state >= EP_NET_PATH_READY;
}

static inline bool ep_net_path_is_open(const struct ep_net_comm *c, uint32_t path)
{
	return !c->path || c->path[path].state == EP_NET_PATH_OPEN;
}

#endif
