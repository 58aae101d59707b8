/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all of the plugin stands on: devices and NICs, the thread that listens while NCCL does not call, handles
 * that NCCL holds, registrations, queue pairs; and TCP between two ends, where no call waits.
 */
#ifndef EP_NET_NET_H
#define EP_NET_NET_H

#include <limits.h>
#include <nccl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "core/error.h"
#include "net/abi.h"
#include "rdma/rdma.h"

#define EP_NET_MAX_RECVS 8
#define EP_NET_MAX_BYTES 0x7fffffffu     /* of a message: NCCL counts them in an int */
#define EP_NET_LONG_BYTES (1024ul << 20) /* of a message that NCCL is asked to send at most */
#define EP_NET_LABEL (EP_NIC_NAME + 8)
#define EP_NET_NIC_PORTS 8

struct ep_net_region;

struct ep_net_dev {
	/* for NCCL; never changed once the device was found */
	int index;
	struct ep_port port;
	char label[EP_NET_LABEL]; /* unique: with ":port" where a device has several */
	char path[PATH_MAX];      /* in sysfs; "": it has no PCI address */
	uint64_t guid;            /* of the adapter */
	/* Counted through all functions of the adapter: NCCL takes ports of equal GUID and number for
	 * one, whose bandwidth is to be shared. */
	int adapter_port;
	int ptr_support, max_comms;
	int rail, plane; /* of NCCL_IB_HCA; -1: not given */
	bool atomics;

	pthread_mutex_t lock; /* for all that follows, except where atomics are used */
	uint32_t users;
	struct ep_nic nic;             /* open while there are users */
	struct ep_net_region **region; /* by address; memory.c */
	uint32_t nregions, room;
	uint64_t port_down; /* atomic: when the port went down; 0: it is up */
	uint64_t port_up;   /* atomic: when it came up again; 0: never */
	uint32_t broken;    /* atomic: the device failed, for all its users */
};

/*
 * The machine's devices, found when first asked for. False: there is none that may be used, see why.
 * Also the environment of that time.
 */
bool ep_net_devs(struct ep_net_dev **dev, int *n, struct ep_reason *why);
const struct ep_ib_env *ep_net_env(void);
/* Returns in words what GIN needs and the device lacks; NULL: nothing. */
const char *ep_net_dev_lacks(const struct ep_net_dev *dev);

/* Opens the device for its first user; `even_down`: its port may be down, and then is. */
ncclResult_t ep_net_dev_hold(struct ep_net_dev *dev, bool even_down);
/* How peers reach the port now, which may have changed while it was down; false: they do not. */
bool ep_net_dev_end(struct ep_net_dev *dev, struct ep_nic_end *end, uint32_t *gid_index);
/* Whether the port has been up for some time. */
bool ep_net_dev_up(const struct ep_net_dev *dev, uint64_t ns);
/* Whether its port is down, and not only for a moment. */
bool ep_net_dev_down(const struct ep_net_dev *dev);
/* The same for one who knows that there is another user, whose lock is held. */
void ep_net_dev_hold_too(struct ep_net_dev *dev);
/* The last user closes it. */
void ep_net_dev_drop(struct ep_net_dev *dev);

/* Takes up what the NIC reports without being asked. */
void ep_net_dev_events(struct ep_net_dev *dev);

/*
 * The PCI device of an RDMA device as a path in sysfs, whose files are below `root`
 * (EP_NIC_SYSFS, except in tests); "": there is none.
 */
void ep_net_pci_path(const char *root, const char *name, char path[PATH_MAX]);
/* Order of devices: by PCI address, then those that have none; then by name and port. */
int ep_net_dev_compare(const void *dev_a, const void *dev_b);
/* Puts them in that order, and fills in what depends on the others: index, label, adapter_port. */
void ep_net_devs_arrange(struct ep_net_dev *dev, int n);

/* device.c: a thread that receives control messages while NCCL does not call. */

struct ep_net_async;

/* Reads an object's socket. The object is not freed meanwhile. */
typedef void ep_net_async_fn(const struct ep_net_async *a, void *object);

/* The thread calls `fn` when the socket has something to read, while there is an object of this handle. */
ncclResult_t ep_net_async_add(const void *handle, int fd, ep_net_async_fn *fn);
/* For `fn`: the thread reads this socket no more. */
void ep_net_async_skip(const struct ep_net_async *a, int fd);
void ep_net_async_remove(int fd);

/*
 * NICs, which are never freed: those with one port, whose indices are the devices', then the merged ones.
 */

/* A device of NCCL: a port, or several that it has had merged. */
struct ep_net_nic {
	int index, nports;
	struct ep_net_dev *dev[EP_NET_NIC_PORTS];
	char label[EP_NET_NIC_PORTS * EP_NET_LABEL]; /* with '+' between ports */
};

ncclResult_t ep_net_nic_get(int index, const struct ep_net_nic **nic);
/*
 * Tables of NCCL's that merge NICs, each for itself, though the same ones. NCCL (2.27 and before) takes what
 * a table counts before it has merged anything for the ports.
 */
enum ep_net_table {
	EP_NET_TABLE_NET,
	EP_NET_TABLE_COLL,
	EP_NET_TABLES
};
/* How many there are for it. */
int ep_net_nic_count(enum ep_net_table table);
/* Merges at most so many NICs of one port each. The same ones again: the same NIC. */
ncclResult_t ep_net_nic_merge(enum ep_net_table table, const int *indices, int n, int most,
			      int *index);
/* Opens the ports for their first user, of which some may be down; the last one closes them. */
ncclResult_t ep_net_nic_hold(const struct ep_net_nic *nic);
void ep_net_nic_drop(const struct ep_net_nic *nic);

/*
 * Handles that NCCL holds as `void *`: not addresses but numbers, of a slot in a table and of how often the
 * slot was used. So a pointer that is none, one of another kind, and one to what was closed are found
 * out without a look at memory behind it; asking takes no lock, which the data path could not bear.
 * (core/registry.h, which serves calls that are rarer, does take one.)
 */

enum ep_net_kind {
	EP_NET_NONE,
	EP_NET_CONTEXT,
	EP_NET_LISTEN,
	EP_NET_CONNECT, /* a connection that its caller has no handle of yet */
	EP_NET_SEND,
	EP_NET_RECV,
	EP_NET_MR,
	EP_NET_REQUEST,
	EP_NET_MESH_LISTEN, /* a listener of ranks of GIN */
	EP_NET_GIN,         /* ranks of GIN, which reach each other's memory */
	EP_NET_SYM,         /* memory that these have registered together */
	EP_NET_OP,          /* a put of theirs */
	EP_NET_COLL,        /* ranks of collectives */
	EP_NET_GATHER,      /* a request of these */
};

/*
 * Bits of a handle, from the lowest: 4 kind, 20 slot, 33 use. All together 57, what NCCL's
 * descriptors for GPUs have room for. What has requests is in slots of 16 bits.
 */
#define EP_NET_KIND_BITS 4
#define EP_NET_SLOT_BITS 20
#define EP_NET_COMM_BITS 16
#define EP_NET_COMMS (1u << EP_NET_COMM_BITS)
static inline enum ep_net_kind ep_net_kind_of(const void *handle)
{
	return (enum ep_net_kind)((uintptr_t)handle & ((1u << EP_NET_KIND_BITS) - 1));
}

static inline uint32_t ep_net_slot_of(const void *handle)
{
	return (uint32_t)((uintptr_t)handle >> EP_NET_KIND_BITS) & ((1u << EP_NET_SLOT_BITS) - 1);
}

/* A request: 4 bits of kind, 16 of the slot of what it is of, 20 of its number, and 24 of its use, which is odd. */
#define EP_NET_REQUEST_BITS 20
#define EP_NET_USE_BITS 24
#define EP_NET_USE_MASK ((1u << EP_NET_USE_BITS) - 1)

static inline uint32_t ep_net_use_next(uint32_t use)
{
	return (use + 1) & EP_NET_USE_MASK;
}

/* Requests of what was closed are not taken for those of what has its slot now. */
static inline uint32_t ep_net_use_first(void)
{
	return (uint32_t)ep_now_ns() * 2654435761u & EP_NET_USE_MASK & ~1u;
}

static inline void *ep_net_request_handle(enum ep_net_kind kind, const void *owner, uint32_t number,
					  uint32_t use)
{
	uint64_t h = (uint64_t)kind | (uint64_t)ep_net_slot_of(owner) << EP_NET_KIND_BITS;

	h |= (uint64_t)number << (EP_NET_KIND_BITS + EP_NET_COMM_BITS);
	h |= (uint64_t)use << (EP_NET_KIND_BITS + EP_NET_COMM_BITS + EP_NET_REQUEST_BITS);
	return (void *)(uintptr_t)h;
}

static inline uint32_t ep_net_request_number(const void *handle)
{
	return (uint32_t)((uintptr_t)handle >> (EP_NET_KIND_BITS + EP_NET_COMM_BITS)) &
	       ((1u << EP_NET_REQUEST_BITS) - 1);
}

/* Whether the handle is of this use, and that has not ended. */
static inline bool ep_net_request_is(const void *handle, uint32_t use)
{
	return use & 1 && use == (uintptr_t)handle >> (EP_NET_KIND_BITS + EP_NET_COMM_BITS +
						       EP_NET_REQUEST_BITS);
}

/* Returns the object that a request of this kind belongs to, and its kind. NULL: it is no request. */
void *ep_net_request_owner(enum ep_net_kind kind, const void *request, enum ep_net_kind *owner);
/* An error: it is no request, or has ended. */
ncclResult_t ep_net_request_fail(const void *request);

/* Fails, with *handle NULL, where there is no memory, or there are too many of them. */
ncclResult_t ep_net_handle_new(enum ep_net_kind kind, void *object, void **handle);
/* NULL: there is no such object. */
void *ep_net_handle_get(enum ep_net_kind kind, const void *handle);
/* The same; NULL is an error, ncclInvalidArgument, whose text is set. */
void *ep_net_handle_find(enum ep_net_kind kind, const void *handle);
/* The object, for whoever calls first; NULL: there is no such object (any more). */
void *ep_net_handle_drop(enum ep_net_kind kind, const void *handle);
/* Drops and frees it; a handle of no such object (any more) is an error, NULL is nothing. */
ncclResult_t ep_net_handle_close(enum ep_net_kind kind, const void *handle,
				 void (*object_free)(void *object));
/* Drops one object of the kind that `of` is true of. NULL: there is none. */
void *ep_net_handle_drop_one(enum ep_net_kind kind,
			     bool (*of)(const void *object, const void *what), const void *what);

/* Registered memory. Regions of a device are shared by all who register some of the same memory. */

struct ep_net_mr {
	const struct ep_net_nic *nic;
	uintptr_t start, end; /* what was asked for; the regions may have more */
	bool gpu;
	/* by port of the NIC */
	uint32_t lkey[EP_NET_NIC_PORTS], rkey[EP_NET_NIC_PORTS];
	struct ep_net_region *region[EP_NET_NIC_PORTS];
};

struct ep_net_memory {
	void *data;
	size_t size;
	int type;    /* EP_NET_PTR_HOST or EP_NET_PTR_CUDA */
	bool dmabuf; /* then it has a descriptor; */
	int fd;      /* else -1 */
	uint64_t offset;
	bool strict;  /* what NICs write there is never put into another order */
	bool atomics; /* peers may add to it */
};

#define EP_NET_DMABUF(at, bytes, kind, fd_offset, of)                                              \
	{                                                                                          \
		.data = (at), .size = (bytes), .type = (kind), .dmabuf = true, .fd = (of),         \
		.offset = (fd_offset)                                                              \
	}

/*
 * For a NIC that the caller holds. A failure is logged as information only: NCCL can do without registration of
 * what users give it. The NIC is held until ep_net_mr_free().
 */
ncclResult_t ep_net_mr_new(const struct ep_net_nic *nic, const struct ep_net_memory *memory,
			   struct ep_net_mr **mr);
void ep_net_mr_free(struct ep_net_mr *mr);

/* The registration that a handle means, if it is one of this NIC and has the bytes. */
ncclResult_t ep_net_mr_find(const struct ep_net_nic *nic, const void *handle, const void *data,
			    size_t size, const struct ep_net_mr **out);

/* Whether `size` bytes at data are in it. */
static inline bool ep_net_mr_has(const struct ep_net_mr *mr, const void *data, size_t size)
{
	uintptr_t at = (uintptr_t)data;

	return at >= mr->start && at <= mr->end && size <= mr->end - at;
}

/* ---- queue pairs, whoever posts to them ---- */

/* How progress of a connection, or of a mesh, looks for completions and for peers. */
#define EP_NET_POLL 16                /* completions that are taken up at once */
#define EP_NET_IDLE 256               /* looks in vain between two looks at the clock */
#define EP_NET_CHECK_NS 20000000ull   /* between two looks for peers */
#define EP_NET_GRACE_NS 1000000000ull /* for what the NIC may still bring of a peer that is gone */

/* *lost is set when the NIC reports that it has lost completions. */
ncclResult_t ep_net_cq_new(struct ep_net_dev *dev, uint64_t cqes, uint32_t *lost,
			   struct ibv_cq **cq);
/* In state INIT. NULL: errno. */
struct ibv_qp *ep_net_queue_new(struct ep_net_dev *dev, struct ibv_cq *cq, struct ep_rc_room *room,
				unsigned int access);
/* Registers memory of the plugin's own. */
ncclResult_t ep_net_pin(struct ep_net_dev *dev, void *memory, size_t bytes, unsigned int access,
			struct ibv_mr **mr);
/* The traffic class of a communicator whose class is `tc` (-1: it has none). */
uint8_t ep_net_traffic_class(const struct ep_net_dev *dev, int tc);
/* The service level of a communicator whose class is `tc` (-1: it has none). */
uint8_t ep_net_service_level(const struct ep_nic_end *end, int tc);
/* The same as ep_net_queue_connect(), where a failure is no error. 0: it is connected; else errno. */
int ep_net_queue_try(struct ep_net_dev *dev, struct ibv_qp *qp, const struct ep_rc_path *path,
		     uint32_t remote);
/* The peer's queue pair begins at its port's psn plus its number, and expects the same of this one. */
ncclResult_t ep_net_queue_connect(struct ep_net_dev *dev, struct ibv_qp *qp,
				  const struct ep_rc_path *path, uint32_t remote);

/* Whether a failure is one of the path to the peer, and not of what was asked for. */
bool ep_net_status_blames_path(enum ibv_wc_status status);
/* Writes a queue pair in one line: ports, numbers, GIDs of both ends. Returns text. */
#define EP_NET_WHICH 320
struct ep_net_which {
	const struct ep_nic_end *end, *remote;
	uint32_t qpn, remote_qpn;
	const char *toward, *peer; /* toward: "to" or "from" */
};
const char *ep_net_which_print(const struct ep_net_which *which, char text[EP_NET_WHICH]);
/* More about a port, to be appended; "": nothing. */
const char *ep_net_dev_print(const struct ep_net_dev *dev);
/* Writes why a completion failed, and what to do about it. Returns text. */
#define EP_NET_WC_TEXT 320
const char *ep_net_wc_print(const struct ibv_wc *wc, char text[EP_NET_WC_TEXT]);

/* ---- base of all versions of NCCL's tables ---- */

#define EP_NET_NAME "EP"

/* Fails if there is no device that NCCL may use. `traffic_class` -1: as the environment sets it. */
ncclResult_t ep_net_init(ep_net_log_fn *log);
/* A line of libnccl_ep to NCCL's logger; see core/log.h. */
bool ep_net_log_for_ep(int level, unsigned int subsys, const char *text);
ncclResult_t ep_net_context_new(ep_net_log_fn *log, int traffic_class, void **ctx);
/* A context that is none, or no longer one, is no error: NCCL finalizes what has failed. */
ncclResult_t ep_net_context_free(void *ctx);
ncclResult_t ep_net_context_get(const void *ctx, int *traffic_class);
/* Called at the end of each context, while no other one can be made. `ctx` NULL: it is the last one. */
void ep_net_sweep_with(void (*sweep)(const void *ctx));

/* Of NICs, with those that NCCL has had merged; and of those with one port alone. */
ncclResult_t ep_net_count(int *ndevs);
ncclResult_t ep_net_count_ports(int *ndevs);
/* In the newest form, of which the others are parts. */
ncclResult_t ep_net_properties(int dev, struct ep_net_props_v12 *props);
/* The same in the forms of older versions. */
ncclResult_t ep_net_props_v8(int dev, struct ep_net_props_v8 *props);
ncclResult_t ep_net_props_v9(int dev, struct ep_net_props_v9 *props);
ncclResult_t ep_net_props_v11(int dev, struct ep_net_props_v11 *props);

/* Whether this can be the memory of a program. */
ncclResult_t ep_net_memory_check(const struct ep_net_memory *memory);
/* *mr: a handle. */
ncclResult_t ep_net_memory_reg(const struct ep_net_nic *nic, const struct ep_net_memory *memory,
			       void **mr);
ncclResult_t ep_net_dereg(void *comm, void *mr);

/* ---- TCP between two ends: addresses, dialing, messages, listeners and strangers ---- */

union ep_net_addr {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

/* "10.1.2.3:4567" or "[fe80::1]:4567". Returns text. */
#define EP_NET_ADDR_TEXT 72
const char *ep_net_addr_print(const union ep_net_addr *addr, char text[EP_NET_ADDR_TEXT]);

/* Listens on a port of the address that is free, and fills it in. */
ncclResult_t ep_net_listen_at(union ep_net_addr *addr, int *fd);

/*
 * *fd -1: nobody (yet). Fails where this process or its machine has no descriptor or memory for one who
 * dials. `where` is printed.
 */
ncclResult_t ep_net_accept_one(int listen_fd, const char *where, int *fd);

enum ep_net_io_state {
	EP_NET_IO_AGAIN, /* later */
	EP_NET_IO_DONE,
	EP_NET_IO_CLOSED, /* by the other end */
	EP_NET_IO_FAILED  /* errno */
};

/* Begins to connect; -1: errno. */
int ep_net_dial(const union ep_net_addr *addr);

/* The next bytes of a message of `size` bytes, `*at` of which are done. */
enum ep_net_io_state ep_net_put(int fd, const void *message, size_t size, size_t *at);
enum ep_net_io_state ep_net_take(int fd, void *message, size_t size, size_t *at);

/* Whether the other end has closed the connection or is gone; takes nothing. */
bool ep_net_gone(int fd);

/* The interface at which peers meet: that which NCCL's own transport would take. */

/*
 * Finds the address to be reached by. NCCL_SOCKET_IFNAME ([^][=]name,...) decides if it is set. Without it the
 * first of these counts that has a running interface: names that begin with "ib"; the subnet of
 * NCCL_COMM_ID; all but docker, lo and virbr; these three in turn. NCCL_SOCKET_FAMILY chooses the family.
 */
ncclResult_t ep_net_addr_find(union ep_net_addr *addr);
/* Gives the address that the first call of this process found, as NCCL does: all connections use one interface. */
ncclResult_t ep_net_addr_own(union ep_net_addr *addr);
/* Whether a name fits NCCL_SOCKET_IFNAME's text. */
bool ep_net_ifname_match(const char *text, const char *name);

/* Dialing a peer, again and again as NCCL does; nothing here waits. */

struct ep_net_dialing {
	union ep_net_addr addr;
	const char *who; /* for messages */
	int fd;          /* under way; -1: none */
	int error;       /* of the last try; 0: none has ended */
	uint32_t tries;
	uint64_t began, until, next;
};

/* Gives up at `until`. `who` must stay. */
void ep_net_dialing_begin(struct ep_net_dialing *dialing, const union ep_net_addr *addr,
			  const char *who, uint64_t until);
/*
 * *fd -1: call again. Else the connection, which is the caller's. Whoever is refused, not found or not
 * answered is tried again, NCCL_SOCKET_RETRY_CNT times, after 1, 2, 3, ... times
 * NCCL_SOCKET_RETRY_SLEEP_MSEC.
 */
ncclResult_t ep_net_dialing_step(struct ep_net_dialing *dialing, int *fd);
void ep_net_dialing_end(struct ep_net_dialing *dialing);

/*
 * The head of messages over TCP, in all versions alike, so that ends of two versions find that out; and
 * checks of what ends send about their ports.
 */

#define EP_NET_MAGIC 0x7465672d6e636c31ull
#define EP_NET_VERSION 8u /* any change of what ends send each other, or of a connection's memory */
#define EP_NET_MAX_QPS 128u

struct ep_net_head {
	uint64_t magic;
	uint32_t version;
	uint32_t bytes; /* with the head */
	uint64_t nonce; /* of the listener: who knows it has its handle */
};

/*
 * Sends, or receives, more of a message. *done: all of it. `at`: how much is. `who` is the other end, in
 * errors. A message that is received begins with a head of this version, with that magic; one without a head
 * goes by ep_net_message_end().
 */
ncclResult_t ep_net_message_end(enum ep_net_io_state state, const char *who, bool *done);
ncclResult_t ep_net_message_send(int fd, const void *msg, size_t bytes, size_t *at, const char *who,
				 bool *done);
ncclResult_t ep_net_message_recv(int fd, struct ep_net_head *msg, size_t bytes, uint64_t magic,
				 size_t *at, const char *who, bool *done);

/* Time that a connection has, from its first call on. */
uint64_t ep_net_setup_ns(void);

/*
 * Whether the other end's values of a port and its queue pairs are possible; `qpn` NULL: it sends none
 * of queue pairs.
 */
bool ep_net_end_good(const struct ep_nic_end *end, const uint32_t *qpn, uint32_t nqps);
ncclResult_t ep_net_end_check(const struct ep_nic_end *end, const uint32_t *qpn, uint32_t nqps,
			      const char *who);

/*
 * Listens and accepts. A connection is pending until it has sent a head with the listener's nonce; others
 * are rejected. When all places are taken, one that has been silent for long makes room for a new one.
 */

#define EP_NET_MAX_PENDING 32
/* Peers send at once; a silent connection keeps its place for so long. */
#define EP_NET_SILENT_NS 1000000000ull
#define EP_NET_NAMED 3 /* rejected ones whose addresses are logged */

struct ep_net_pending {
	int fd; /* -1: none */
	size_t at;
	uint64_t since;
	struct ep_net_head head;
};

struct ep_net_acceptor {
	int fd; /* listens */
	uint64_t magic, nonce;
	char where[EP_NET_ADDR_TEXT];
	struct ep_net_pending pending[EP_NET_MAX_PENDING];
	uint32_t rejected; /* of this wait */
	char named[EP_NET_NAMED][EP_NET_ADDR_TEXT];
};

/* A connection that has sent this head, with the nonce. The rest of its message is still to be received. */
struct ep_net_accepted {
	int fd; /* -1: none yet */
	struct ep_net_head head;
	char who[EP_NET_ADDR_TEXT];
};

/* How peers find a listener: the beginning of the handle that NCCL brings them. */
struct ep_net_place {
	uint64_t magic;
	uint32_t version, number; /* number: what the listener has to add */
	uint64_t nonce;
	union ep_net_addr addr;
};

/* Begins to listen where peers reach this host. *place: there; its number is the caller's. */
ncclResult_t ep_net_acceptor_open(struct ep_net_acceptor *g, uint64_t magic,
				  struct ep_net_place *place);
/* Whether a place that came from NCCL is that of `whose` listener, of this version. */
ncclResult_t ep_net_place_check(const struct ep_net_place *place, uint64_t magic,
				const char *whose);
/* Closes the listener and what is pending. */
void ep_net_acceptor_close(struct ep_net_acceptor *g);
/* Accepts; accepted->fd is -1 if there is none yet. Fails if this process cannot accept. */
ncclResult_t ep_net_acceptor_poll(struct ep_net_acceptor *g, struct ep_net_accepted *accepted);
/* Ends a wait for `whom`: logs rejected connections in one line, also those still silent if nobody came. */
void ep_net_acceptor_report(struct ep_net_acceptor *g, bool connected, const char *whom);

/* ---- for tables ---- */

#define EP_NET_EXPORT __attribute__((visibility("default"))) /* what NCCL looks up */

#endif
