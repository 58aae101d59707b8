/* SPDX-License-Identifier: Apache-2.0 */
/*
 * GIN for NCCL 2.28, which takes it from the network plugin or has none; later releases have their
 * own. Each rank puts into memory that other ranks have registered, and adds to signals there, for
 * NCCL's proxy.
 */
#ifndef EP_NET_GIN_H
#define EP_NET_GIN_H

#include <pthread.h>
#include "net/net.h"

#define EP_NET_MESH_RANKS 4096u
#define EP_NET_LOST_TEXT 400

/* An exchange between all ranks. */
enum ep_net_round {
	EP_NET_ROUND_PORTS = 1,
	EP_NET_ROUND_QUEUES,
	EP_NET_ROUND_MEMORY,
	EP_NET_ROUND_READY,
	EP_NET_ROUND_LOST /* no round: a rank has failed, and sends that */
};

/* Ranks of which each has a TCP connection to each other one, and one port for GIN. */
struct ep_net_mesh {
	const struct ep_net_nic *nic; /* held */
	struct ep_net_dev *dev;       /* the port that this rank uses */
	int of_nic;                   /* which one of the NIC it is, by which memory has keys */
	struct ep_net_index index;
	uint32_t nranks, rank;
	int tc;                  /* traffic class; -1: none given */
	int *fd;                 /* of each rank; -1: the own */
	char (*who)[EP_NET_WHO]; /* "rank 3 (10.1.2.3:4567)" */
	struct ep_nic_end *end;  /* the port of each rank */
	uint32_t refs;           /* atomic: the handle's, and of memory */

	uint32_t lost; /* atomic: this rank has failed, see `lost_text` */
	char lost_text[EP_NET_LOST_TEXT];

	pthread_mutex_t lock; /* for what follows */
	bool lost_sent;
	uint32_t rounds;
	struct ep_error failed; /* code: not ncclSuccess once a round has failed */
};

/* Begins to listen for ranks. Fills in the handle that NCCL brings to all of them. */
ncclResult_t ep_net_mesh_listen(int dev, int tc, void *handle, void **listen_comm);
ncclResult_t ep_net_mesh_close_listen(void *listen_comm);
/*
 * Connects all ranks, which all call it, and waits for them. The caller has the mesh's one
 * reference.
 */
ncclResult_t ep_net_mesh_connect(void *const *handles, int nranks, int rank,
				 const void *listen_comm, struct ep_net_mesh **mesh);
/* Makes a mesh whose connections are still missing. */
ncclResult_t ep_net_mesh_new(const struct ep_net_nic *nic, uint32_t nranks, uint32_t rank,
			     struct ep_net_mesh **mesh);
void ep_net_mesh_get(struct ep_net_mesh *mesh);
/* The last one closes connections. NULL: nothing. */
void ep_net_mesh_put(struct ep_net_mesh *mesh);

/*
 * All ranks call it: all[r] has what rank r gave, `bytes` each. A rank that could not do its part
 * sends so by its `code`: then the call fails on every rank, on others with that rank's name.
 */
ncclResult_t ep_net_mesh_exchange(struct ep_net_mesh *mesh, enum ep_net_round round,
				  ncclResult_t code, const void *own, size_t bytes, void *all);

/* This rank has failed: sends the reason to all others, once, in between rounds. */
void ep_net_mesh_lose(struct ep_net_mesh *mesh, const char *text);
/* Returns an error that names a rank which has sent that it failed, if there is one. Any thread. */
ncclResult_t ep_net_mesh_check(const struct ep_net_mesh *mesh);

/* The table that NCCL reads; see abi.h. */
extern const struct ep_gin_v11 ncclGinPlugin_v11;

#endif
