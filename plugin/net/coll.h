/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives between hosts, on request (NCCL_EP_COLLNET=1): all-gather, which only moves data.
 * Each rank has a connection to every rank, itself included, and one from each. It receives from
 * each rank what that one has, and sends its own data to each. There is nothing here that reduces.
 */
#ifndef EP_NET_COLL_H
#define EP_NET_COLL_H

#include "net/abi.h"
#include "net/p2p.h"

#define EP_NET_GATHERS 16u /* under way at once */
#define EP_NET_COLL_RANKS 4096u
#define EP_NET_PARTS 4u /* pieces of memory that a rank gathers into */

/* Of the data of all ranks, one behind the other. */
struct ep_net_window {
	size_t each, offset, bytes; /* of each rank's data; of the window in all of it */
};

/* State of a gather between this rank and another one. */
struct ep_net_share {
	uint64_t asked, sent; /* bytes that receives are posted for; that are being sent, or were */
	uint64_t group;       /* bytes of the receives under way */
	void *receive, *send[EP_NET_MAX_RECVS];
};

struct ep_net_gather {
	uint64_t number;
	struct ep_net_window window;
	uint32_t mark; /* tags of its messages but for the lowest bits, the same on all ranks */
	char *from;    /* this rank's data in the window */
	void *from_mr;
	bool in_place;
	uint32_t nparts;
	struct ep_coll_part_v9 part[EP_NET_PARTS];
};

/* Gathers for which all receives from a rank are posted; whose data it was all sent. */
struct ep_net_turn {
	uint64_t receive, send;
};

struct ep_net_coll {
	const struct ep_net_nic *nic; /* held if not NULL: connections may be closed before */
	uint32_t nranks, rank;
	char (*who)[EP_NET_WHO]; /* of each rank: "rank 3 (10.1.2.3:4567)" */
	void *handle;
	void **send, **recv; /* connections, of each rank */
	uint64_t begun;      /* gathers */
	struct ep_net_gather gather[EP_NET_GATHERS];
	struct ep_net_share *share; /* [gather][rank] */
	struct ep_net_turn *turn;   /* of each rank */
	void **flush;               /* [flush][rank]: requests */
	uint32_t next_flush;
	uint32_t use[EP_NET_GATHERS +
		     EP_NET_FLUSHES]; /* of requests: how often; odd ones are under way */
	struct ep_error failed;       /* code: not ncclSuccess once something has failed */
};

/* Fails where collectives are not asked for, or there is no device. */
ncclResult_t ep_net_coll_init(ep_net_log_fn *log, void **ctx); /* `ctx` NULL: none is wanted */
ncclResult_t ep_net_coll_count(int *ndevs);
ncclResult_t ep_net_coll_connect(void *handles[], int nranks, int rank, void *listen_comm,
				 void **coll);
ncclResult_t ep_net_coll_close(void *coll);
ncclResult_t ep_net_coll_reg(void *coll, const struct ep_net_memory *memory, void **mr);
ncclResult_t ep_net_coll_get(const void *handle, struct ep_net_coll **coll);

/* ---- all-gather ---- */

ncclResult_t ep_net_gather_start(struct ep_net_coll *c, void *from, void *from_mr, int nparts,
				 const struct ep_coll_part_v9 *parts,
				 const struct ep_net_window *window, void **request);
ncclResult_t ep_net_coll_flush(struct ep_net_coll *c, void *data, int size, void *mr,
			       void **request);
ncclResult_t ep_net_coll_test(void *request, int *done, int *size);

#endif
