/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection: one end sends, the other receives.
 *
 * Its queue pairs belong to paths: a path leads from a port of this end's NIC to a port of the
 * other end's, as many as the end with more ports has ports. Where there are several, what is under
 * way on one that fails goes over the others (p2p_paths.c).
 *
 * The receiver writes into the sender's memory where it wants data: a slot for each group of up to
 * EP_NET_MAX_RECVS receives, in turn. The sender writes the data to the address in the slot, each
 * message over one or several queue pairs, and ends its part on each of them with a WRITE with
 * immediate data. That tells the receiver which receive it is of, and in how many parts the message
 * comes. If these writes carry the data, their lengths add up to the message's; if they follow it,
 * they carry a record with the length.
 *
 * One thread at a time uses a connection, except for registration of memory. A thread of the plugin
 * (device.c) uses those with several paths, too, and both take the connection's lock.
 */
#ifndef EP_NET_P2P_H
#define EP_NET_P2P_H

#include "core/error.h"
#include "net/abi.h"
#include "net/net.h"
#include "net/counts_file.h"

#define EP_NET_PEER 88
#define EP_NET_SLOTS 64u
#define EP_NET_GROUPS EP_NET_MAX_REQUESTS /* of receives under way; the most a peer can want */
#define EP_NET_SENDS (EP_NET_GROUPS * EP_NET_MAX_RECVS)
#define EP_NET_FLUSHES 256u    /* under way: as many requests as NCCL's own transport has */
#define EP_NET_FLUSH_DEPTH 32u /* of which a port reads for so many at once */
#define EP_NET_PART                                                                                \
	128u /* a message is divided at multiples of this: GPUs poll whole lines of it */
#define EP_NET_ONE_PATH 4096u        /* bytes; longer messages go over all paths */
#define EP_NET_RECEIVES_TOGETHER 32u /* receives of a queue pair that are posted at once */
#define EP_NET_SIGNAL_EVERY 8u       /* of so many groups the slot of one has a completion */
#define EP_NET_PART_WR 4u /* work requests of a part: 2 GiB in pieces of 1 GiB, and its end */

/* A receive, as its sender sees it. The NIC stores it in ascending order: seq is the last word. */
struct ep_net_slot_entry {
	uint64_t addr;
	uint32_t size;
	int32_t tag;
	uint32_t n, pad;                 /* n: receives of the group */
	uint32_t rkey[EP_NET_NIC_PORTS]; /* by port of the receiver's NIC */
	uint64_t seq;                    /* of the group, from 1 */
};

/* A message, as its receiver sees it. */
struct ep_net_record {
	uint64_t size, seq;
};

/* Memory that the other end writes, or what is written from there; the same on both ends. */
struct ep_net_shared {
	struct ep_net_slot_entry slot[EP_NET_SLOTS][EP_NET_MAX_RECVS];
	struct ep_net_record record[EP_NET_SLOTS][EP_NET_MAX_RECVS];
	uint64_t flushed; /* what a flush reads into */
};

_Static_assert(sizeof(struct ep_net_slot_entry) == 64, "entries do not cross lines");

/*
 * Immediate data: slot, receive of the group, parts of the message - 1, whether a record follows.
 */
#define EP_NET_IMM(slot, entry, parts, record)                                                     \
	((uint32_t)(slot) << 24 | (uint32_t)(entry) << 20 | ((uint32_t)(parts)-1) << 12 |          \
	 (uint32_t)(record))
#define EP_NET_IMM_SLOT(imm) ((imm) >> 24)
#define EP_NET_IMM_ENTRY(imm) ((imm) >> 20 & 0xf)
#define EP_NET_IMM_PARTS(imm) (((imm) >> 12 & 0xff) + 1)
#define EP_NET_IMM_RECORD(imm) ((imm)&1)

/* A part of a message, in the order in which its queue pair was given parts. */
struct ep_net_part {
	uint16_t request;
	uint8_t number;
};

/*
 * A queue pair. p2p_qp.c makes it, and p2p_paths.c replaces it. p2p_data.c counts what it posts,
 * and p2p_completions.c counts what ends.
 */
struct ep_net_qp {
	struct ibv_qp *qp;
	uint32_t remote_qpn;
	uint16_t generation; /* of its path: how often that was opened, or should have been */
	uint32_t room;       /* of its send queue */
	uint32_t owed;       /* receives that were used and not posted again */
	uint8_t path, local_port, remote_port;
	/* of connections with several paths */
	struct ep_net_part *part; /* ring of sq_depth; sender */
	uint32_t first, posted;   /* parts that have ended; that were posted */
	uint32_t received;        /* receiver: parts */
	uint32_t receives;        /* posted and not ended */
};

/* A message that is sent. The slot stays as it is until the receiver has all of the group. */
struct ep_net_message {
	const struct ep_net_slot_entry *to;
	const struct ep_net_mr *mr; /* NULL: it has no bytes */
	uint64_t group;
	uintptr_t data;
	uint32_t size, each; /* bytes; of each part but the last */
	uint32_t entry, parts, request;
};

/* What a flush reads, by which ports it still has to, and by which it does; of p2p_flush.c. */
struct ep_net_flush {
	uint64_t at;
	uint32_t ports, reads, rkey[EP_NET_NIC_PORTS];
};

struct ep_net_request {
	uint32_t use;  /* how often; odd ones are under way */
	uint32_t next; /* free one */
	uint32_t left; /* sends and flushes: completions; receives: messages that are not whole */
	uint32_t n;    /* receives; 0: not of receives */
	uint64_t size[EP_NET_MAX_RECVS];  /* received, or to be sent */
	uint32_t limit[EP_NET_MAX_RECVS]; /* receives: room */
	uint8_t seen[EP_NET_MAX_RECVS], parts[EP_NET_MAX_RECVS];
	bool done[EP_NET_MAX_RECVS];
	struct ep_net_message message; /* sends */
	struct ep_net_flush flush;     /* flushes */
};

/* A port's queue pair for flushes; of p2p_flush.c. */
struct ep_net_flush_qp {
	struct ibv_qp *qp; /* NULL: none was asked for yet */
	uint32_t room, depth;
	/* no path goes by the port any more: what it was to read has come back, or does */
	bool ended;
};

/* A port of this end's NIC, and what the connection has there. */
struct ep_net_local {
	struct ep_net_dev *dev;
	struct ep_nic_end end;
	struct ep_ece ece; /* sender: of its NIC; receiver: what both can */
	uint8_t tc, sl;
	bool down;   /* it was, when the connection was begun */
	bool broken; /* its device had failed then: the connection has nothing there */
	struct ep_net_index index;
	struct ibv_mr *shared_mr;
	struct ibv_cq *cq;
	uint32_t cq_lost; /* atomic: the NIC has lost completions */
	struct ep_net_flush_qp flush;
};

enum ep_net_down {
	EP_NET_DOWN = 1,
	EP_NET_BROKEN /* its device had failed: it has no queue pairs */
};

/* A port of the other end's NIC. Travels between ends. */
struct ep_net_remote {
	struct ep_nic_end end;
	struct ep_ece ece;
	uint32_t rkey; /* of the shared memory */
	uint32_t down; /* it was, when the other end began the connection: enum ep_net_down */
};

/*
 * Both ends go through the generations of a path in step: no end begins the next one before both
 * have closed this.
 */
enum ep_net_path_state {
	EP_NET_PATH_OPEN,
	/* this end has closed it, and the other one has not sent that it has */
	EP_NET_PATH_CLOSING,
	EP_NET_PATH_CLOSED,
	/* on its way back: */
	EP_NET_PATH_OFFERED, /* it has new queue pairs, whose numbers were sent to the other end, */
	EP_NET_PATH_READY,  /* which are connected to those of the other end, which was notified, */
	EP_NET_PATH_PROBING /* and is ready, too: the sender sees whether something comes */
};

/* Why an end has closed a path. */
enum ep_net_path_why {
	EP_NET_WHY_FAILED,
	EP_NET_WHY_LAST /* the connection itself is being closed */
};

/* What p2p_completions.c has noted of a path; p2p_paths.c takes it up. */
struct ep_net_noted {
	bool probed, failed;
	struct ibv_wc failure;
};

/* A path; of p2p_paths.c. */
struct ep_net_path {
	enum ep_net_path_state state;
	uint8_t local_port, remote_port;
	uint16_t generation;
	bool lost;          /* the peer was not found over it when the connection was made */
	bool drained;       /* closed here: nothing comes from it any more */
	bool remote_closed; /* the other end has closed it, */
	uint64_t since;     /* when it was closed here */
	uint32_t received
		[EP_NET_MAX_QPS]; /* and sends how many parts each of its queue pairs has brought */

	uint64_t opened; /* when */
	uint64_t again;  /* when it may be */
	uint64_t rest;   /* how long it had to wait for that */
	bool offered;    /* the other end has new queue pairs: these numbers, */
	bool ready;      /* which are connected */
	uint32_t psn, remote_psn;
	uint32_t probes; /* sender: under way; p2p_completions.c counts them down */
	bool proved;     /* all of them have come */
	uint32_t number[EP_NET_MAX_QPS];

	struct ep_net_noted noted;
};

struct ep_net_ctrl;

/*
 * Which queue pairs messages go over: those of open paths. p2p_qp.c chooses them, and p2p_data.c
 * uses them in turn.
 */
struct ep_net_open {
	uint32_t *qp, n, next; /* next: the place of the one to be used next */
	uint32_t paths;
};

/* How many requests are under way, and which one is free; of p2p_data.c. */
struct ep_net_pool {
	uint32_t free; /* the first one */
	uint32_t pending, flushes;
};

/* Groups of receives. p2p_calls.c begins them; p2p_completions.c ends those of a receiver. */
struct ep_net_groups {
	uint64_t n;       /* receiver: posted; sender: all of whose messages are sent */
	uint32_t matched; /* sender: bit i: receive i of the next group has its message */
	uint32_t open;    /* receiver: under way */
	uint32_t request[EP_NET_SLOTS];
};

/*
 * How the receiver announces groups. p2p_data.c writes slots; p2p_completions.c notes their
 * arrival.
 */
struct ep_net_slots {
	uint32_t qp;                            /* which slots are written over */
	uint64_t posted;                        /* groups whose slot was written; */
	uint64_t acked;                         /* whose slot is known to have arrived */
	uint32_t unsignaled, unsignaled_groups; /* WRITEs since the last with a completion */
};

/* Parts that the sender posts again: a ring with room for all that there can be; of p2p_data.c. */
struct ep_net_again {
	struct ep_net_part *part;
	uint32_t first, last, room;
};

/* Flushes that wait for room, in order: their first and their last request; of p2p_flush.c. */
struct ep_net_flushes {
	uint32_t first, last;
};

/* What all paths share; of p2p_paths.c. */
struct ep_net_paths {
	struct ep_net_ctrl *ctrl; /* with the other end, over TCP */
	bool due;                 /* p2p_completions.c has noted something of a path */
	bool leaving;             /* the other end closes the connection */
	bool async;               /* the plugin's thread looks after them */
};

/*
 * When this end last looked for the other one: p2p_calls.c, and p2p_paths.c where there are
 * several.
 */
struct ep_net_watch {
	uint32_t idle;
	uint64_t checked, gone;
};

struct ep_net_comm {
	/* as its making leaves it; of p2p_setup.c and p2p_qp.c */
	bool sender;
	bool split; /* each message over all queue pairs */
	const struct ep_net_nic *nic;
	void *handle;
	int fd; /* TCP: shows when the other end is gone */
	char peer[EP_NET_PEER];
	uint32_t rank, nranks; /* in collectives: the sender's, and of how many */
	uint32_t nlocals, nremotes, npaths, nqps, nrequests;
	uint32_t sq_depth, rq_depth, inline_bytes;
	uint64_t plain_limit; /* longer messages are followed by a record */
	struct ep_net_shared *shared;
	uint64_t remote_shared;
	pthread_mutex_t lock; /* of connections with several paths */

	/* what it has: each struct says who writes it */
	struct ep_net_local local[EP_NET_NIC_PORTS];
	struct ep_net_remote remote[EP_NET_NIC_PORTS];
	struct ep_net_path *path; /* NULL: it has a single one */
	struct ep_net_qp *qp;     /* number i is of path i modulo npaths */
	struct ep_net_request *request;

	/* how far it is */
	struct ep_net_open open;
	struct ep_net_pool pool;
	struct ep_net_groups groups;
	struct ep_net_slots slots;
	struct ep_net_again again;
	struct ep_net_flushes flushes;
	struct ep_net_paths paths;
	struct ep_net_watch watch;
	struct ep_error failed; /* code: not ncclSuccess once something has failed; of p2p_fail.c */
	struct ep_net_counts *counts;
	struct ep_net_counts own_counts; /* where nobody reads them */
};

/* The other end, as it is known. */
struct ep_net_peer {
	uint32_t nremotes, nqps;
	const struct ep_net_remote *remote;
	uint64_t shared;
	const uint32_t *qpn;
	uint32_t lost; /* bit i: it has not found this end over path i */
};

/* Returns how many paths two ends with these numbers of ports have. */
static inline uint32_t ep_net_paths(uint32_t ports, uint32_t others)
{
	return ports > others ? ports : others;
}

/*
 * Traffic class and service level, -1: none given; the environment may overrule them. A sender's
 * are those of its communicator, which NCCL gives as one number. A receiver's are its sender's.
 */
struct ep_net_class {
	int tc, sl;
};

#define EP_NET_NO_REQUEST UINT32_MAX

/* Kinds of work requests, and what the completion has to know of them. */
enum ep_net_work {
	EP_NET_WORK_SEND = 1,
	EP_NET_WORK_SLOT,
	EP_NET_WORK_RECEIVE,
	EP_NET_WORK_FLUSH,
	EP_NET_WORK_PROBE
};
#define EP_NET_WR_ID(kind, qp, wrs, number)                                                        \
	((uint64_t)(kind) << 60 | (uint64_t)(qp) << 48 | (uint64_t)(wrs) << 32 | (uint16_t)(number))
/* Of the queue pairs that had this number, the one that the request was posted to. */
#define EP_NET_WR_GENERATION_OF(q) ((uint64_t)(q)->generation << 16)
#define EP_NET_WR_KIND(id) ((enum ep_net_work)((id) >> 60))
#define EP_NET_WR_QP(id) ((uint32_t)((id) >> 48) & 0xfff)
#define EP_NET_WR_WRS(id) ((uint32_t)((id) >> 32) & 0xffff)
#define EP_NET_WR_GENERATION(id) ((uint16_t)((id) >> 16))
#define EP_NET_WR_NUMBER(id) ((uint32_t)(uint16_t)(id))

/* In place of a queue pair, for flushes: a port. */
#define EP_NET_WR_FLUSH_QP(local) (EP_NET_MAX_QPS + (local))

/*
 * Takes the connection's lock, if it has one, from the look at its handle to the end of the call.
 */
static inline void ep_net_enter(struct ep_net_comm *c)
{
	if (c->path) {
		pthread_mutex_lock(&c->lock);
	}
}

static inline void ep_net_leave(struct ep_net_comm *c)
{
	if (c->path) {
		pthread_mutex_unlock(&c->lock);
	}
}

/*
 * Returns whether what comes by a path counts: the path is open, or the other end may use it
 * already.
 */
static inline bool ep_net_path_lives(const struct ep_net_comm *c, uint32_t path)
{
	return !c->path || c->path[path].state == EP_NET_PATH_OPEN ||
	       c->path[path].state >= EP_NET_PATH_READY;
}

static inline bool ep_net_path_is_open(const struct ep_net_comm *c, uint32_t path)
{
	return !c->path || c->path[path].state == EP_NET_PATH_OPEN;
}

/* ---- control messages: what connected ends with several paths send each other over TCP ---- */

#define EP_NET_CTRL_MAGIC 0x64726f77u

enum ep_net_ctrl_kind {
	EP_NET_CLOSED = 1, /* nothing comes from the path any more */
	EP_NET_OFFER,      /* it has new queue pairs here, */
	EP_NET_READY_TOO,  /* which are connected to the other end's, */
	EP_NET_PROVED      /* sender: and reach it */
};

/* A message about a path, in one of its generations. */
struct ep_net_ctrl_msg {
	uint32_t magic;
	uint16_t path, generation;
	uint8_t kind;
	uint8_t why;           /* CLOSED: enum ep_net_path_why */
	uint8_t port, pad;     /* OFFER: by which port of this end, */
	struct ep_nic_end end; /* as it is now */
	/*
	 * CLOSED: parts of messages that each queue pair has brought; OFFER: numbers of queue pairs
	 */
	uint32_t number[EP_NET_MAX_QPS];
};

/*
 * An end sends up to four messages in a generation, and is never two generations ahead of the other
 * end.
 */
#define EP_NET_CTRL_MSGS (EP_NET_NIC_PORTS * 8u)

struct ep_net_ctrl {
	struct ep_net_ctrl_msg in, out[EP_NET_CTRL_MSGS]; /* out: ring */
	size_t in_at, out_at;
	uint32_t nout, sent; /* messages to be sent, those that were: ever */
};

/*
 * ---- the handshake of two ends over TCP, as InfiniBand's connection manager has it ----
 *
 *     the sender's request (REQ) -> the receiver's reply (REP) -> the sender is ready (RTU)
 */

#define EP_NET_READY 0x79646572u
#define EP_NET_TEXT 240

struct ep_net_connect_req {
	struct ep_net_head head;
	uint64_t shared;
	uint32_t nqps, tc, ports, sl, rank, nranks;
	struct ep_net_remote port[EP_NET_NIC_PORTS];
	uint32_t qpn[EP_NET_MAX_QPS];
};

struct ep_net_connect_rep {
	struct ep_net_head head;
	int32_t code; /* ncclSuccess, or text has the reason */
	uint32_t ports;
	uint64_t shared;
	uint32_t lost; /* bit i: the sender was not found over path i */
	struct ep_net_remote port[EP_NET_NIC_PORTS];
	uint32_t qpn[EP_NET_MAX_QPS];
	char text[EP_NET_TEXT];
};

/*
 * What NCCL brings from listen() to connect(). It is zero from `parked` on when connect() is first
 * called.
 */
struct ep_net_handle {
	struct ep_net_place place; /* its number: ports of the receiver's NIC */
	void *parked;              /* the sender's own: what it has begun */
	uint32_t rank,
		nranks; /* the sender's own, for collectives: which rank it is, and of how many */
};

_Static_assert(sizeof(struct ep_net_handle) <= EP_NET_HANDLE_BYTES, "NCCL's handle");
_Static_assert(offsetof(struct ep_net_connect_req, shared) == sizeof(struct ep_net_head), "packed");

/* ---- how a connection fails ---- */

/* Returns the error with which the connection failed before. */
ncclResult_t ep_net_comm_failed(struct ep_net_comm *c);
/*
 * Ends the connection for good with an error that names queue pair `qp`, or what ep_net_port_qp()
 * returns.
 */
ncclResult_t ep_net_comm_fail(struct ep_net_comm *c, ncclResult_t code, uint32_t qp,
			      const char *fmt, ...) EP_PRINTF(4, 5);
ncclResult_t ep_net_comm_fail_wc(struct ep_net_comm *c, const struct ibv_wc *wc);

/*
 * Returns a queue pair that goes by this port of the own NIC, else the number of the port's
 * flushes.
 */
uint32_t ep_net_port_qp(const struct ep_net_comm *c, uint32_t local);
/* Writes a queue pair of the connection as ep_net_which_print() does. Returns text. */
const char *ep_net_qp_print(const struct ep_net_comm *c, uint32_t qp, char text[EP_NET_WHICH]);

/* ---- queue pairs of a connection ---- */

#define EP_NET_ACCESS (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

/* Makes the queue pairs of all paths and the completion queues of all ports. */
ncclResult_t ep_net_qps_new(struct ep_net_comm *c);
/*
 * Connects them to those of the other end, by their numbers there. Over one path at least both ends
 * have found each other then.
 */
ncclResult_t ep_net_qps_connect(struct ep_net_comm *c, const struct ep_net_peer *peer);
/* Returns the paths over which the peer was not found, path i as bit i. */
uint32_t ep_net_paths_lost(const struct ep_net_comm *c);
/* Chooses those that messages go over: the queue pairs of open paths. */
void ep_net_qps_choose(struct ep_net_comm *c);
/* Posts n receives of no length, which take the immediate data. */
ncclResult_t ep_net_receives_post(struct ep_net_comm *c, uint32_t qp, uint32_t n);

/* ---- makes connections and ends them ---- */

/* Makes a connection whose queue pairs still have to be connected. It holds the NIC. */
ncclResult_t ep_net_comm_new(const struct ep_net_nic *nic, bool sender, uint32_t npaths,
			     uint32_t nqps, const struct ep_net_class *class,
			     struct ep_net_comm **comm);
ncclResult_t ep_net_comm_connect(struct ep_net_comm *c, const struct ep_net_peer *peer);
/* Ends all work, then frees the memory that it used. NULL does nothing. */
void ep_net_comm_free(struct ep_net_comm *c);

/* NCCL's calls for connections of either kind. */
ncclResult_t ep_net_reg(void *comm, const struct ep_net_memory *memory, void **mr);
ncclResult_t ep_net_close_send(void *send_comm);
ncclResult_t ep_net_close_recv(void *recv_comm);

/* ---- the receiver's end of a connection in the making ---- */

/*
 * NCCL's calls. NCCL repeats ep_net_accept() while *recv_comm is NULL: the connection is still
 * being made.
 */
ncclResult_t ep_net_listen(int dev, int tc, void *handle, void **listen_comm);
/*
 * Finds the NIC that a listener is of, the traffic class that it was given, and the nonce of its
 * handle.
 */
ncclResult_t ep_net_listener(const void *listen_comm, const struct ep_net_nic **nic, int *tc,
			     uint64_t *nonce);
ncclResult_t ep_net_accept(void *listen_comm, void **recv_comm);
ncclResult_t ep_net_close_listen(void *listen_comm);

/* ---- the sender's end of a connection in the making ---- */

/* NCCL repeats the call while *send_comm is NULL: the connection is still being made. */
ncclResult_t ep_net_connect(const void *ctx, int dev, int tc, void *handle, void **send_comm);
/* Gives up the connection that this rank has begun by the handle, if it is still being made. */
void ep_net_connect_end(struct ep_net_handle *handle);

/* ---- requests of a connection ---- */

/*
 * Returns the number of a free request, or EP_NET_NO_REQUEST. `n`: how many receives it is for; 0
 * for a send or a flush.
 */
uint32_t ep_net_request_new(struct ep_net_comm *c, uint32_t n);
void ep_net_request_free(struct ep_net_comm *c, uint32_t i);
void *ep_net_request_handle_of(const struct ep_net_comm *c, uint32_t i);
/* Finds the connection that receives by its handle, and checks the number of receives. */
ncclResult_t ep_net_recv_get(const void *handle, int n, struct ep_net_comm **comm);

/* ---- announces receives to the sender ---- */

/* Announces groups of receives, unless the sender knows of enough for now. */
ncclResult_t ep_net_slots_post(struct ep_net_comm *c);
/*
 * Has slots written over queue pair `qp` from now on: first those again that may not have arrived.
 */
void ep_net_slots_restart(struct ep_net_comm *c, uint32_t qp);

/* ---- messages, which are posted in parts ---- */

/* Divides a message into parts. Returns whether the open queue pairs have room for them. */
bool ep_net_message_divide(const struct ep_net_comm *c, struct ep_net_message *message);
/* Posts all parts of a message. */
ncclResult_t ep_net_message_post(struct ep_net_comm *c, const struct ep_net_message *message);
/*
 * Takes the parts that a closed path has brought for sent, and keeps the others to be posted again.
 */
ncclResult_t ep_net_parts_settle(struct ep_net_comm *c, uint32_t path);
/* Posts again the parts that a closed path has not brought, as far as queues have room. */
ncclResult_t ep_net_parts_resend(struct ep_net_comm *c);

/* ---- sending, and the end of requests of either kind ---- */

/* A receive of the other end: the first one of its group that still lacks its message. */
struct ep_net_asked {
	int tag;
	uint32_t size; /* 0: no receive is known */
};
/* Finds it. */
ncclResult_t ep_net_send_asked(void *send_comm, struct ep_net_asked *asked);

/* For NCCL. */
ncclResult_t ep_net_isend(void *send_comm, void *data, size_t size, int tag, void *mr,
			  void **request);
ncclResult_t ep_net_test(void *request, int *done, int *sizes);

/* ---- receiving ---- */

/* For NCCL. */
ncclResult_t ep_net_irecv(void *recv_comm, int n, void **data, size_t *sizes, int *tags, void **mr,
			  void **request);

/* ---- flushes of GPU memory ---- */

/* Posts waiting flushes, as far as queues have room. */
ncclResult_t ep_net_flushes_push(struct ep_net_comm *c);
/* A flush has read by a port, or never will. */
void ep_net_flush_ended(struct ep_net_comm *c, uint32_t local, uint32_t request);
/* Ends the flushes of a device that has failed: it returns none of them. */
void ep_net_flushes_give_up(struct ep_net_comm *c, uint32_t local);
/* Ends reading by a port that no path goes by any more. What is under way comes back as failed. */
void ep_net_flush_stop(struct ep_net_local *port);
/*
 * Permits reading by the port again. Returns false if what was under way has not come back: it may,
 * later.
 */
bool ep_net_flush_restart(struct ep_net_local *port);
/* Destroys the port's queue pair for flushes, if it has one. */
void ep_net_flush_close(struct ep_net_local *port);

/* For NCCL. */
ncclResult_t ep_net_iflush(void *recv_comm, int n, void **data, int *sizes, void **mr,
			   void **request);

/* ---- completions of a connection ---- */

/* Handles completions of a port. *any: whether there were some. */
ncclResult_t ep_net_poll(struct ep_net_comm *c, struct ep_net_local *port, bool *any);

/* ---- progress of a connection ---- */

/* Handles completions, does what is due, and now and then looks whether the other end is there. */
ncclResult_t ep_net_progress(struct ep_net_comm *c);

/* ---- paths of a connection that has several ---- */

/*
 * Begins with those paths closed whose port is down, here or there: peers are not found over it.
 * Both ends know that of each other. If no other path were left, those alone are whose device has
 * failed.
 */
void ep_net_paths_leave_out(struct ep_net_comm *c);
/*
 * The connection is made: logs which ones were left out, and closes those over which the peer was
 * not found.
 */
ncclResult_t ep_net_paths_begin(struct ep_net_comm *c);

/*
 * Closes a path that is open or on its way back. Both ends first see to it that nothing comes from
 * it any more. Then they send each other, over TCP, which parts of messages it has brought, and the
 * rest goes over the other paths. So each part comes once, and nothing comes late. `what`: why, for
 * the log.
 */
ncclResult_t ep_net_path_close(struct ep_net_comm *c, uint32_t path, const char *what);

/* Does what is due after completions were taken up: c->paths.due. */
ncclResult_t ep_net_paths_act(struct ep_net_comm *c);
/* Receives control messages about paths, and checks ports. */
ncclResult_t ep_net_paths_check(struct ep_net_comm *c);
/* Has the plugin's thread look after the paths while NCCL does not call. */
ncclResult_t ep_net_paths_async_add(struct ep_net_comm *c);
/* This end closes: it sends the other one how much has arrived. */
void ep_net_paths_close(struct ep_net_comm *c);

/* ---- the part of a connection in the file of counts ---- */

/*
 * Gives the connection an entry in the file of counts and describes it there. Without a file it
 * counts for itself.
 */
void ep_net_counts_open(struct ep_net_comm *c);
/* Writes the ports that a path goes by, and that it is open. */
void ep_net_counts_path(struct ep_net_comm *c, uint32_t path);
void ep_net_counts_close(struct ep_net_comm *c);

#endif
