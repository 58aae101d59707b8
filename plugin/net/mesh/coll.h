/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Collectives between hosts, on request (NCCL_EP_COLLNET=1): all-gather, which only moves data. Each rank
 * tells every other one where it wants the gathered data, and each writes its part there directly.
 * There is nothing here that reduces.
 */
#ifndef EP_NET_COLL_H
#define EP_NET_COLL_H

#include "net/abi/abi_coll.h"
#include "net/base/async.h"
#include "net/mesh/rma.h"

/*
 * Slots of gathers, of which half are under way at once: a rank that begins the gather after those has
 * ended one that all others had begun, who then had ended the one whose slot it writes to.
 */
#define EP_NET_GATHERS 32u
#define EP_NET_GATHERS_OPEN (EP_NET_GATHERS / 2)
#define EP_NET_PARTS 4u /* pieces of memory that a rank gathers into */

/* Where a rank wants what; the same window on all ranks. */
struct ep_net_wanted {
	uint64_t each, offset, bytes; /* of each rank's data; of the window in all of it */
	uint64_t number;              /* of the gather */
	uint32_t nparts, pad;
	struct {
		uint64_t at, size;
		uint32_t rkey[EP_NET_NIC_PORTS]; /* of each port of the rank */
	} part[EP_NET_PARTS];
};

/* What a rank knows of another one's part in a gather. */
struct ep_net_share {
	bool notified, sent;  /* it has said where it wants data; it has this rank's */
	uint16_t come, parts; /* messages with its data; parts 0: none yet */
};

struct ep_net_gather {
	uint32_t use;                    /* how often; odd ones are under way */
	uint32_t left;                   /* own requests */
	uint32_t open;                   /* ranks that are not served, or whose data has not come */
	uint64_t from;                   /* this rank's data in the window, */
	uint32_t lkey[EP_NET_NIC_PORTS]; /* of each port */
};

struct ep_net_coll {
	struct ep_net_mesh *mesh;
	struct ep_net_rma *rma; /* a context for each lane of messages */
	uint32_t nrails;        /* lanes that are by different ports, of whoever has most */
	void *handle;
	bool async;
	struct ep_net_wanted *wanted; /* [rank][gather]: each rank writes its own; then own ones */
	struct ibv_mr *wanted_mr[EP_NET_NIC_PORTS]; /* of each port */
	uint32_t wanted_lkey[EP_NET_NIC_PORTS];
	struct ep_net_sym_end *remote; /* of each rank: its `wanted` */
	struct ep_net_share *share;    /* [gather][rank] */
	struct ep_net_gather gather[EP_NET_GATHERS];
	uint64_t begun; /* gathers */
};

/* Fails where collectives are not asked for, or there is no device. */
ncclResult_t ep_net_coll_init(ep_net_log_fn *log, void **ctx); /* `ctx` NULL: none is wanted */
ncclResult_t ep_net_coll_count(int *ndevs);
ncclResult_t ep_net_coll_listen(int dev, int tc, void *handle, void **listen_comm);
ncclResult_t ep_net_coll_connect(void *const *handles, int nranks, int rank, void *listen_comm,
				 void **coll);
ncclResult_t ep_net_coll_close(void *coll);
ncclResult_t ep_net_coll_reg(void *coll, void *data, size_t size, int type, uint64_t offset, int fd,
			     void **mr);
ncclResult_t ep_net_coll_get(const void *handle, struct ep_net_coll **coll);

/* gather.c */
struct ep_net_window {
	size_t each, offset, bytes;
};
ncclResult_t ep_net_gather_start(struct ep_net_coll *c, void *from, void *from_mr, int nparts,
				 const struct ep_coll_part_v9 *parts,
				 const struct ep_net_window *window, void **request);
ncclResult_t ep_net_coll_flush(struct ep_net_coll *c, void *data, int size, void *mr,
			       void **request);
ncclResult_t ep_net_coll_test(void *request, int *done, int *size);
/* For the thread that hears what ranks say of lanes while NCCL does not call. */
void ep_net_coll_async(const struct ep_net_async *a, void *coll);
/* What a peer has told, by `imm`. */
ncclResult_t ep_net_gather_notified(void *arg, const struct ep_net_link *link, uint32_t imm);

static inline struct ep_net_wanted *ep_net_wanted_of(const struct ep_net_coll *c, uint32_t rank,
						     uint32_t slot)
{
	return &c->wanted[rank * EP_NET_GATHERS + slot];
}

static inline struct ep_net_share *ep_net_share_of(const struct ep_net_coll *c, uint32_t slot,
						   uint32_t rank)
{
	return &c->share[slot * c->mesh->nranks + rank];
}

#endif
