/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A mesh: ranks of which each can reach the memory of each other one, for GIN and RMA. Ranks of collectives meet by it.
 * Every two ranks have a TCP connection, over which they agree on queue pairs and memory, and which
 * shows when one of them is gone. Ranks may have NICs of several ports, which contexts take in turn.
 */
#ifndef EP_NET_MESH_H
#define EP_NET_MESH_H

#include <pthread.h>
#include "net/base/base.h"
#include "net/link/link.h"

#define EP_NET_WHO (EP_NET_ADDR_TEXT + 16)
#define EP_NET_MESH_RANKS 4096u

/* Uses of a mesh; ranks of different uses do not connect. */
enum ep_net_use {
	EP_NET_FOR_RMA = 1,
	EP_NET_FOR_COLL
};

/* An exchange between all ranks. */
enum ep_net_round {
	EP_NET_ROUND_PORTS = 1,
	EP_NET_ROUND_QUEUES,
	EP_NET_ROUND_MEMORY,
	EP_NET_ROUND_READY,
	EP_NET_ROUND_LOST /* no round: a rank has failed, and sends that */
};

#define EP_NET_LOST_TEXT 400

/* A rank's ports, without those that were down when it joined or are not fit for what it is for. */
struct ep_net_ends {
	uint32_t n;
	struct ep_nic_end port[EP_NET_NIC_PORTS];
};

struct ep_net_mesh {
	const struct ep_net_nic *nic;
	/* of this rank's ports: the device, and which one of the NIC it is, by which memory has keys */
	struct ep_net_dev *dev[EP_NET_NIC_PORTS];
	uint8_t of_nic[EP_NET_NIC_PORTS];
	uint32_t nranks, rank;
	int tc;                   /* traffic class; -1: none given */
	int *fd;                  /* of each rank; -1: the own */
	char (*who)[EP_NET_WHO];  /* "rank 3 (10.1.2.3:4567)" */
	struct ep_net_ends *ends; /* of each rank */
	uint32_t refs;            /* atomic: the handle's, of queue pairs and of memory */

	uint32_t lost; /* atomic: this rank has failed, see `lost_text` */
	char lost_text[EP_NET_LOST_TEXT];

	pthread_mutex_t lock; /* for what follows */
	bool lost_sent;
	uint32_t rounds;
	struct ep_error failed; /* code: not ncclSuccess once a round has failed */
};

/* Connections are not made yet. */
ncclResult_t ep_net_mesh_new(const struct ep_net_nic *nic, enum ep_net_use use, uint32_t nranks,
			     uint32_t rank, struct ep_net_mesh **mesh);
void ep_net_mesh_get(struct ep_net_mesh *mesh);
/* The last one closes connections. NULL: nothing. */
void ep_net_mesh_put(struct ep_net_mesh *mesh);

/*
 * All ranks call it: all[r] has what rank r gave, `bytes` each. A rank that could not do its part sends
 * so by its `code`: then the call fails on every rank, on others with that rank's name.
 */
ncclResult_t ep_net_mesh_exchange(struct ep_net_mesh *mesh, enum ep_net_round round,
				  ncclResult_t code, const void *own, size_t bytes, void *all);

/* This rank has failed: sends the reason to all others, once, in between rounds. */
void ep_net_mesh_lose(struct ep_net_mesh *mesh, const char *text);
/* Peeks at rank r's report that it has failed, if there is one. Any thread; takes nothing from the connection. */
bool ep_net_mesh_lost(const struct ep_net_mesh *mesh, uint32_t r, char text[EP_NET_LOST_TEXT]);
/* An error if a rank has: what this one waits for may never come. */
ncclResult_t ep_net_mesh_check(const struct ep_net_mesh *mesh);

/* Keys of memory: of this rank's ports, from those of all ports of its NIC. */
static inline void ep_net_mesh_keys(const struct ep_net_mesh *mesh, const uint32_t *nic_key,
				    uint32_t *key)
{
	for (uint32_t i = 0; i < mesh->ends[mesh->rank].n; i++) {
		key[i] = nic_key[mesh->of_nic[i]];
	}
}

/* The port of a rank that a context goes by; ranks that are connected take theirs by the same number. */
static inline uint32_t ep_net_mesh_port(const struct ep_net_mesh *mesh, uint32_t rank,
					uint32_t context)
{
	return context % mesh->ends[rank].n;
}

#endif
