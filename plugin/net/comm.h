/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection: one end sends, the other receives.
 *
 * The receiver writes into the sender's memory where it wants data: a slot for each group of up to
 * EP_NET_MAX_RECVS receives, in turn. The sender writes the data to where the slot says, each message
 * over one or several queue pairs, and ends its part on each of them with a WRITE with immediate
 * data, which tells the receiver which receive it was and in how many parts the message comes. How
 * long the message is it learns from the lengths of these writes where they carry the data; where
 * they follow it, they carry a record with the length.
 *
 * One thread at a time uses a connection, except for registration of memory.
 */
#ifndef EP_NET_COMM_H
#define EP_NET_COMM_H

#include "net/abi.h"
#include "net/device.h"
#include "net/handle.h"
#include "net/mr.h"

#define EP_NET_SLOTS 64u
#define EP_NET_GROUPS EP_NET_MAX_REQUESTS /* of receives under way; the most a peer can want */
#define EP_NET_SENDS (EP_NET_GROUPS * EP_NET_MAX_RECVS)
#define EP_NET_FLUSHES 32
#define EP_NET_MAX_QPS 128u
#define EP_NET_PART                                                                                \
	128u /* a message is divided at multiples of this: GPUs poll whole lines of it */
#define EP_NET_RECEIVES_TOGETHER 32u /* receives of a queue pair that are posted at once */
#define EP_NET_PART_WR 4u /* work requests of a part: 2 GiB in pieces of 1 GiB, and its end */

/* A receive, as its sender sees it. The NIC stores it in ascending order: seq is the last word. */
struct ep_net_slot_entry {
	uint64_t addr;
	uint32_t size, rkey;
	int32_t tag;
	uint32_t n;   /* receives of the group */
	uint64_t seq; /* of the group, from 1 */
};

/* What a message was, as its receiver sees it. */
struct ep_net_record {
	uint64_t size, seq;
};

/* Memory that the other end writes, or what is written from there; the same on both ends. */
struct ep_net_shared {
	struct ep_net_slot_entry slot[EP_NET_SLOTS][EP_NET_MAX_RECVS];
	struct ep_net_record record[EP_NET_SLOTS][EP_NET_MAX_RECVS];
	uint64_t flushed; /* what a flush reads into */
};

_Static_assert(sizeof(struct ep_net_slot_entry) == 32, "entries do not cross lines");

/* Immediate data: slot, receive of the group, parts of the message - 1, and whether it has a record. */
#define EP_NET_IMM(slot, entry, parts, record)                                                     \
	((uint32_t)(slot) << 24 | (uint32_t)(entry) << 20 | ((uint32_t)(parts)-1) << 12 |          \
	 (uint32_t)(record))
#define EP_NET_IMM_SLOT(imm) ((imm) >> 24)
#define EP_NET_IMM_ENTRY(imm) ((imm) >> 20 & 0xf)
#define EP_NET_IMM_PARTS(imm) (((imm) >> 12 & 0xff) + 1)
#define EP_NET_IMM_RECORD(imm) ((imm)&1)

/* What a NIC can beyond the standard, in its maker's words; travels between ends. */
struct ep_net_ece {
	uint32_t there; /* 0: it does not say */
	uint32_t vendor, options, mask;
};

struct ep_net_qp {
	struct ibv_qp *qp;
	uint32_t remote;
	uint32_t room; /* of its send queue */
	uint32_t owed; /* receives that were used and not posted again */
};

struct ep_net_request {
	uint32_t use;  /* how often; odd ones are under way */
	uint32_t next; /* free one */
	uint32_t left; /* sends and flushes: completions; receives: messages that are not whole */
	uint32_t n;
	uint64_t group;
	uint64_t size[EP_NET_MAX_RECVS];  /* that came, or that is sent */
	uint32_t limit[EP_NET_MAX_RECVS]; /* receives: room */
	uint8_t seen[EP_NET_MAX_RECVS], parts[EP_NET_MAX_RECVS];
	bool done[EP_NET_MAX_RECVS];
};

struct ep_net_comm {
	bool sender;
	struct ep_net_dev *dev;
	void *handle;
	int fd; /* TCP: tells when the other end is gone */
	char peer[72];
	struct ep_nic_end end, remote_end; /* ports */
	struct ep_net_ece ece;             /* sender: of its NIC; receiver: what both can */
	uint8_t tc;

	struct ep_net_shared *shared;
	struct ibv_mr *shared_mr;
	uint64_t remote_shared;
	uint32_t remote_rkey;

	struct ibv_cq *cq;
	struct ep_net_qp *qp;
	uint32_t nqps, next_qp;
	uint32_t sq_depth, rq_depth, inline_bytes;
	bool split;
	uint64_t plain_limit; /* longer messages are followed by a record */

	struct ep_net_request *request;
	uint32_t nrequests, free, live;

	uint64_t groups;  /* receiver: posted; sender: all of whose messages are sent */
	uint32_t matched; /* sender: bit i: receive i of the next group has its message */
	uint32_t open;    /* receiver: groups under way */
	uint64_t told;    /* receiver: groups whose slot is known to have arrived */
	uint32_t slot_request[EP_NET_SLOTS];
	struct ibv_qp *flush_qp;
	uint32_t flush_room;

	struct ep_error failed; /* code: not ncclSuccess once something has failed */
	uint32_t idle;
	uint64_t looked, gone; /* when: for the other end; when it was found gone */
};

/* What is known of the other end. */
struct ep_net_peer {
	struct ep_nic_end end;
	struct ep_net_ece ece;
	uint64_t shared;
	uint32_t rkey, nqps;
	const uint32_t *qpn;
};

/* qp.c: a connection of `nqps` queue pairs that are not connected yet; holds the device. */
ncclResult_t ep_net_comm_new(struct ep_net_dev *dev, bool sender, uint32_t nqps, int tc,
			     struct ep_net_comm **comm);
ncclResult_t ep_net_comm_connect(struct ep_net_comm *c, const struct ep_net_peer *peer);
/* A queue pair to itself, for iflush. */
ncclResult_t ep_net_flush_open(struct ep_net_comm *c);
/* `c` NULL: nothing. Ends all work, then frees the memory that it used. */
void ep_net_comm_free(struct ep_net_comm *c);
ncclResult_t ep_net_receives_post(struct ep_net_comm *c, uint32_t qp, uint32_t n);

/* request.c */
#define EP_NET_NO_REQUEST UINT32_MAX
uint32_t ep_net_request_new(struct ep_net_comm *c);
void ep_net_request_free(struct ep_net_comm *c, uint32_t i);
void *ep_net_request_handle_of(const struct ep_net_comm *c, uint32_t i);
/* Takes up completions, and now and then looks for the other end. */
ncclResult_t ep_net_progress(struct ep_net_comm *c);
ncclResult_t ep_net_comm_failed(struct ep_net_comm *c); /* as it failed before */

/* Kinds of work, and what its completion has to know. */
enum ep_net_work {
	EP_NET_WORK_SEND = 1,
	EP_NET_WORK_SLOT,
	EP_NET_WORK_RECEIVE,
	EP_NET_WORK_FLUSH
};
#define EP_NET_WR_ID(kind, qp, wrs, number)                                                        \
	((uint64_t)(kind) << 60 | (uint64_t)(qp) << 48 | (uint64_t)(wrs) << 32 | (uint32_t)(number))
#define EP_NET_WR_KIND(id) ((enum ep_net_work)((id) >> 60))
#define EP_NET_WR_QP(id) ((uint32_t)((id) >> 48) & 0xfff)
#define EP_NET_WR_WRS(id) ((uint32_t)((id) >> 32) & 0xffff)
#define EP_NET_WR_NUMBER(id) ((uint32_t)(id))

/* fail.c */
ncclResult_t ep_net_comm_fail(struct ep_net_comm *c, ncclResult_t code, uint32_t qp,
			      const char *fmt, ...) EP_PRINTF(4, 5);
ncclResult_t ep_net_comm_fail_wc(struct ep_net_comm *c, const struct ibv_wc *wc);

/* send.c, recv.c */
ncclResult_t ep_net_isend(void *send_comm, void *data, size_t size, int tag, void *mr,
			  void **request);
ncclResult_t ep_net_irecv(void *recv_comm, int n, void **data, const size_t *sizes, const int *tags,
			  void **mr, void **request);
ncclResult_t ep_net_iflush(void *recv_comm, int n, void **data, const int *sizes, void **mr,
			   void **request);
ncclResult_t ep_net_test(void *request, int *done, int *sizes);

/* The registration that a handle means, if it is one of the connection's device and has the bytes. */
ncclResult_t ep_net_mr_check(const struct ep_net_comm *c, const void *mr, const void *data,
			     size_t size, const struct ep_net_mr **out);

/* connect.c, listen.c */
ncclResult_t ep_net_listen(int dev, void *handle, void **listen_comm);
ncclResult_t ep_net_connect(int dev, int tc, void *handle, void **send_comm);
ncclResult_t ep_net_accept(void *listen_comm, void **recv_comm);
ncclResult_t ep_net_close_listen(void *listen_comm);
/* Frees connections that were never finished. */
void ep_net_setup_sweep(void);

#endif
