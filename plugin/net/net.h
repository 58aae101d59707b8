/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What all of the plugin stands on: devices and NICs, the thread that listens while NCCL does not
 * call, handles that NCCL holds, registrations, queue pairs; and TCP between two ends, where no
 * call waits.
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
#define EP_NET_MAX_BYTES 0x7fffffffu /* of a message: NCCL counts them in an int */
#define EP_NET_LABEL (EP_NIC_NAME + 8)
#define EP_NET_NIC_PORTS 8

struct ep_net_region;

/* Where in a port's tables its address and its partition key are. */
struct ep_net_index {
	uint32_t gid, pkey;
};

#define EP_NET_AS_OPENED UINT64_MAX

struct ep_net_dev {
	/* for NCCL; never changed once the device was found */
	int index;
	struct ep_port port;
	char label[EP_NET_LABEL]; /* unique: with ":port" where a device has several */
	char path[PATH_MAX];      /* in sysfs; "": it has no PCI address */
	uint64_t guid;            /* of the adapter */
	/*
	 * Counted through all functions of the adapter: NCCL takes ports of equal GUID and number
	 * for one, whose bandwidth is to be shared.
	 */
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
	/*
	 * atomic: from when on the port is asked for its address, which may have changed since the
	 * device was opened; EP_NET_AS_OPENED: it has not
	 */
	uint64_t ask;
	uint32_t broken; /* atomic: the device failed, for all its users */
	/*
	 * Held while events are read. Not `lock`, which may be held for long: a NIC that is about
	 * to fail takes its time to register memory.
	 */
	pthread_mutex_t events;
};

/* ---- devices: ports of RDMA devices ---- */

/*
 * Returns whether the machine has devices that may be used, and which; the first call looks for
 * them and reads the environment. False: *why says what was found.
 */
bool ep_net_devs(struct ep_net_dev **dev, int *n, struct ep_reason *why);
/* Returns the environment as it was then. */
const struct ep_ib_env *ep_net_env(void);
/* Returns in words what GIN needs and the device lacks, or NULL if it has all. */
const char *ep_net_dev_lacks(const struct ep_net_dev *dev);

/*
 * Adds a user of the device, and opens it for the first one. `even_down`: a port that is down is no
 * error.
 */
ncclResult_t ep_net_dev_hold(struct ep_net_dev *dev, bool even_down);
/*
 * Gives how peers reach the port. Where that may have changed since the device was opened it is
 * asked again. Returns whether they do; if not, both stay as they are. The caller holds the device.
 */
bool ep_net_dev_address(struct ep_net_dev *dev, struct ep_nic_end *end, struct ep_net_index *index);
/* Returns whether the device has failed. It stays so until nobody holds it. */
bool ep_net_dev_broken(const struct ep_net_dev *dev);
/* Returns whether the port has been up for `ns`. */
bool ep_net_dev_up(const struct ep_net_dev *dev, uint64_t ns);
/* Returns whether the port has been down for longer than a moment. */
bool ep_net_dev_down(const struct ep_net_dev *dev);
/* Adds a user where the caller knows of another one and holds the device's lock. */
void ep_net_dev_hold_too(struct ep_net_dev *dev);
/* Removes a user. The last one closes the device. */
void ep_net_dev_drop(struct ep_net_dev *dev);

/*
 * Reads the NIC's asynchronous events: ports that go down or come up, devices and queues that
 * failed. What has been reported before the call is known when it returns. The caller holds the
 * device.
 */
void ep_net_dev_events(struct ep_net_dev *dev);

/*
 * Writes the path in sysfs of an RDMA device's PCI device, or "" if it has none. `root`: the
 * directory of the RDMA device's files (EP_NIC_SYSFS, except in tests).
 */
void ep_net_pci_path(const char *root, const char *name, char path[PATH_MAX]);
/* Compares devices for qsort(): by PCI address, those without one last, then by name and port. */
int ep_net_dev_compare(const void *dev_a, const void *dev_b);
/* Sorts devices, and fills in what depends on the others: index, label, adapter_port. */
void ep_net_devs_arrange(struct ep_net_dev *dev, int n);

/* ---- a thread that reads sockets while NCCL does not call (device.c) ---- */

struct ep_net_async;

/* Reads an object's socket. The object stays until this returns. */
typedef void ep_net_async_fn(const struct ep_net_async *a, void *object);

/*
 * From now on the thread calls `fn` when the socket has something to read, as long as the handle
 * has its object.
 */
ncclResult_t ep_net_async_add(const void *handle, int fd, ep_net_async_fn *fn);
/* For `fn`: the thread leaves this socket alone from now on. */
void ep_net_async_skip(const struct ep_net_async *a, int fd);
/* Ends that; `fn` does not run any more when it returns. */
void ep_net_async_remove(int fd);

/*
 * ---- NICs, which stay for good: first those with one port, numbered as devices, then merged ----
 */

/* What NCCL calls a device: a port, or several that it has had merged. */
struct ep_net_nic {
	int index, nports;
	struct ep_net_dev *dev[EP_NET_NIC_PORTS];
	char label[EP_NET_NIC_PORTS * EP_NET_LABEL]; /* with '+' between ports */
};

/* Finds a NIC by NCCL's number. An error: there is none. */
ncclResult_t ep_net_nic_get(int index, const struct ep_net_nic **nic);
/*
 * The tables by which NCCL merges NICs, each for itself. NCCL 2.27 and before takes what a table
 * counts before anything is merged for the number of ports.
 */
enum ep_net_table {
	EP_NET_TABLE_NET,
	EP_NET_TABLE_COLL,
	EP_NET_TABLES
};
/* Returns how many NICs a table has. */
int ep_net_nic_count(enum ep_net_table table);
/*
 * Merges n NICs of one port each, `most` at most, into NIC *index. Merging the same ones again
 * gives the same NIC.
 */
ncclResult_t ep_net_nic_merge(enum ep_net_table table, const int *indices, int n, int most,
			      int *index);
/* Adds a user of all ports, of which some may be down. */
ncclResult_t ep_net_nic_hold(const struct ep_net_nic *nic);
void ep_net_nic_drop(const struct ep_net_nic *nic);

/*
 * ---- handles ----
 *
 * NCCL holds numbers as `void *` in place of addresses: of a slot in a table, and of how often the
 * slot was used. So a wrong pointer, one of another kind and one to a closed object are found
 * without a look at memory behind it. A look-up takes no lock, because the data path makes one for
 * each message.
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

/*
 * A request: 4 bits of kind, 16 of the slot of what it is of, 20 of its number, and 24 of its use,
 * which is odd.
 */
#define EP_NET_REQUEST_BITS 20
#define EP_NET_USE_BITS 24
#define EP_NET_USE_MASK ((1u << EP_NET_USE_BITS) - 1)

static inline uint32_t ep_net_use_next(uint32_t use)
{
	return (use + 1) & EP_NET_USE_MASK;
}

/*
 * Returns where a slot's uses begin: a request of a closed object is never one of the object that
 * has its slot now.
 */
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

/* Returns whether the handle is of this use, and the use has not ended. */
static inline bool ep_net_request_is(const void *handle, uint32_t use)
{
	return use & 1 && use == (uintptr_t)handle >> (EP_NET_KIND_BITS + EP_NET_COMM_BITS +
						       EP_NET_REQUEST_BITS);
}

/*
 * Returns the object that a request of this kind belongs to, and the object's kind; NULL if it is
 * no request.
 */
void *ep_net_request_owner(enum ep_net_kind kind, const void *request, enum ep_net_kind *owner);
/* Returns ncclInvalidArgument: the handle is no request, or the request has ended. */
ncclResult_t ep_net_request_fail(const void *request);

/* Makes a handle of the object. Fails, with *handle NULL, if memory or slots run out. */
ncclResult_t ep_net_handle_new(enum ep_net_kind kind, void *object, void **handle);
/* Returns the handle's object, or NULL if there is none of that kind. */
void *ep_net_handle_get(enum ep_net_kind kind, const void *handle);
/*
 * Returns the handle's object; where there is none, NULL, and the text of an ncclInvalidArgument is
 * set.
 */
void *ep_net_handle_find(enum ep_net_kind kind, const void *handle);
/* Ends the handle. Returns its object to the first caller, and NULL to all others. */
void *ep_net_handle_drop(enum ep_net_kind kind, const void *handle);
/* Ends the handle and frees its object. A handle without object is an error; NULL does nothing. */
ncclResult_t ep_net_handle_close(enum ep_net_kind kind, const void *handle,
				 void (*object_free)(void *object));
/*
 * Ends the handle of one object of the kind for which `of` is true, and returns the object; NULL if
 * there is none.
 */
void *ep_net_handle_drop_one(enum ep_net_kind kind,
			     bool (*of)(const void *object, const void *what), const void *what);

/* ---- registered memory; those who register the same memory share a device's regions ---- */

struct ep_net_mr {
	const struct ep_net_nic *nic;
	uintptr_t start, end; /* what was asked for; the regions may have more */
	bool gpu;
	/* by port of the NIC */
	uint32_t lkey[EP_NET_NIC_PORTS], rkey[EP_NET_NIC_PORTS];
	struct ep_net_region *region[EP_NET_NIC_PORTS]; /* NULL: the device has failed */
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
 * Registers memory with all ports of a NIC that the caller holds; ep_net_mr_free() ends that, and
 * holds the NIC until then. Of several ports those are left out whose device has failed. A failure
 * is logged at INFO alone, because NCCL can do without registration of its users' memory.
 */
ncclResult_t ep_net_mr_new(const struct ep_net_nic *nic, const struct ep_net_memory *memory,
			   struct ep_net_mr **mr);
void ep_net_mr_free(struct ep_net_mr *mr);

/*
 * Finds the registration that a handle means. An error: it is of another NIC, or lacks some of the
 * bytes.
 */
ncclResult_t ep_net_mr_find(const struct ep_net_nic *nic, const void *handle, const void *data,
			    size_t size, const struct ep_net_mr **out);

/* ---- queue pairs, whoever posts to them ---- */

/* How connections and ranks of GIN look for completions and for peers. */
#define EP_NET_POLL 16                /* completions that are taken up at once */
#define EP_NET_IDLE 256               /* empty looks between two looks at the clock */
#define EP_NET_CHECK_NS 20000000ull   /* between two looks for peers */
#define EP_NET_GRACE_NS 1000000000ull /* for what the NIC may still bring of a peer that is gone */

/* Makes a completion queue. *lost becomes 1 when the NIC reports that it has lost completions. */
ncclResult_t ep_net_cq_new(struct ep_net_dev *dev, uint64_t cqes, uint32_t *lost,
			   struct ibv_cq **cq);
/*
 * Returns a new queue pair in state INIT, with `room` as the NIC has it; NULL and errno on failure.
 */
struct ibv_qp *ep_net_queue_new(struct ep_net_dev *dev, uint32_t pkey_index, struct ibv_cq *cq,
				struct ep_rc_room *room, unsigned int access);
/* Registers memory of the plugin's own. */
ncclResult_t ep_net_pin(struct ep_net_dev *dev, void *memory, size_t bytes, unsigned int access,
			struct ibv_mr **mr);
/* Returns the traffic class for a communicator of class `tc`, or -1 if it has none. */
uint8_t ep_net_traffic_class(const struct ep_net_dev *dev, int tc);
/* Returns the service level for a communicator of class `tc`, or -1 if it has none. */
uint8_t ep_net_service_level(const struct ep_nic_end *end, int tc);
/* Connects as ep_net_queue_connect() does. Returns 0 or errno, and sets no error text. */
int ep_net_queue_try(struct ep_net_dev *dev, struct ibv_qp *qp, const struct ep_rc_path *path,
		     uint32_t remote);
/*
 * Connects to queue pair `remote` of the path's other end. Each one's PSN begins at its port's psn
 * plus its number.
 */
ncclResult_t ep_net_queue_connect(struct ep_net_dev *dev, struct ibv_qp *qp,
				  const struct ep_rc_path *path, uint32_t remote);

/* Returns whether a failure is of the path to the peer. Others are of the request itself. */
bool ep_net_status_blames_path(enum ibv_wc_status status);
/* Writes a queue pair in one line: ports, numbers, GIDs of both ends. Returns text. */
#define EP_NET_WHICH 320
struct ep_net_which {
	const struct ep_nic_end *end, *remote;
	uint32_t qpn, remote_qpn;
	const char *toward, *peer; /* toward: "to" or "from" */
};
const char *ep_net_which_print(const struct ep_net_which *which, char text[EP_NET_WHICH]);
/* Returns what to append to a message about a port that is down or a device that failed, or "". */
const char *ep_net_dev_print(const struct ep_net_dev *dev);
/* Writes why a completion failed, and what to do about it. Returns text. */
#define EP_NET_WC_TEXT 320
const char *ep_net_wc_print(const struct ibv_wc *wc, char text[EP_NET_WC_TEXT]);

/* ---- what all versions of NCCL's tables share ---- */

#define EP_NET_NAME "EP"

/* Takes NCCL's logger and looks for devices. Fails if there is none that NCCL may use. */
ncclResult_t ep_net_init(ep_net_log_fn *log);
/* Gives a line of libnccl_ep to NCCL's logger; see core/log.h. Returns whether there is one. */
bool ep_net_log_for_ep(int level, unsigned int subsys, const char *text);
/* The same for a context. `traffic_class` -1: the environment's. */
ncclResult_t ep_net_context_new(ep_net_log_fn *log, int traffic_class, void **ctx);
/*
 * Ends a context. One that never was, or has ended, is no error: NCCL finalizes what has failed,
 * too.
 */
ncclResult_t ep_net_context_free(void *ctx);
ncclResult_t ep_net_context_get(const void *ctx, int *traffic_class);
/*
 * `sweep` runs at the end of each context, while no other one can be made. `ctx` NULL: it is the
 * last one.
 */
void ep_net_sweep_with(void (*sweep)(const void *ctx));

/* Counts NICs, merged ones included; and those with one port. */
ncclResult_t ep_net_count(int *ndevs);
ncclResult_t ep_net_count_ports(int *ndevs);
/* Fills in a NIC's properties in the newest form, of which the others are parts. */
ncclResult_t ep_net_properties(int dev, struct ep_net_props_v12 *props);
/* The same in the forms of older versions. */
ncclResult_t ep_net_props_v8(int dev, struct ep_net_props_v8 *props);
ncclResult_t ep_net_props_v9(int dev, struct ep_net_props_v9 *props);
ncclResult_t ep_net_props_v11(int dev, struct ep_net_props_v11 *props);

/* Checks that this can be a program's memory: an address, a size, a known type. */
ncclResult_t ep_net_memory_check(const struct ep_net_memory *memory);
/* Registers memory for NCCL. *mr: a handle, which ep_net_dereg() ends. */
ncclResult_t ep_net_memory_reg(const struct ep_net_nic *nic, const struct ep_net_memory *memory,
			       void **mr);
ncclResult_t ep_net_dereg(void *comm, void *mr);

/* ---- TCP between two ends: addresses, dialing, messages, listeners and strangers ---- */

union ep_net_addr {
	struct sockaddr any;
	struct sockaddr_in v4;
	struct sockaddr_in6 v6;
};

/* Writes an address as "10.1.2.3:4567" or "[fe80::1]:4567". Returns text. */
#define EP_NET_ADDR_TEXT 72
#define EP_NET_WHO (EP_NET_ADDR_TEXT + 16) /* a rank with its address */
const char *ep_net_addr_print(const union ep_net_addr *addr, char text[EP_NET_ADDR_TEXT]);

/* Listens on a free port of the address, and fills the port in. */
ncclResult_t ep_net_listen_at(union ep_net_addr *addr, int *fd);

/*
 * Accepts a connection; *fd is -1 while none has come. Fails if this process or its machine lacks a
 * descriptor or memory for it. `where`: the listener, for the error.
 */
ncclResult_t ep_net_accept_one(int listen_fd, const char *where, int *fd);

enum ep_net_io_state {
	EP_NET_IO_AGAIN, /* later */
	EP_NET_IO_DONE,
	EP_NET_IO_CLOSED, /* by the other end */
	EP_NET_IO_FAILED  /* errno */
};

/* Begins to connect. Returns the socket, or -1 and errno. */
int ep_net_dial(const union ep_net_addr *addr);

/*
 * Sends, or receives, the next bytes of a message of `size` bytes. *at: how many are done; it
 * grows.
 */
enum ep_net_io_state ep_net_put(int fd, const void *message, size_t size, size_t *at);
enum ep_net_io_state ep_net_take(int fd, void *message, size_t size, size_t *at);

/* Returns whether the other end has closed the connection or is gone. It reads nothing. */
bool ep_net_gone(int fd);

/* ---- the interface at which peers meet: the one that NCCL's own transport would take ---- */

/*
 * Finds the address to be reached by. NCCL_SOCKET_IFNAME ([^][=]name,...) decides if it is set.
 * Without it the first of these counts that has a running interface: names that begin with "ib";
 * the subnet of NCCL_COMM_ID; all but docker, lo and virbr; these three in turn. NCCL_SOCKET_FAMILY
 * chooses the family.
 */
ncclResult_t ep_net_addr_find(union ep_net_addr *addr);
/*
 * Gives the address that the first call of this process found, as NCCL does: all connections use
 * one interface.
 */
ncclResult_t ep_net_addr_own(union ep_net_addr *addr);
/* Returns whether an interface's name fits the text of NCCL_SOCKET_IFNAME. */
bool ep_net_ifname_match(const char *text, const char *name);

/* ---- dialing a peer, again and again as NCCL does ---- */

struct ep_net_dialing {
	union ep_net_addr addr;
	const char *who; /* for messages */
	int fd;          /* under way; -1: none */
	int error;       /* of the last try; 0: none has ended */
	uint32_t tries;
	uint64_t began, until, next;
};

/* Begins to dial; tries end at `until`. `who`, for messages, must stay until the end. */
void ep_net_dialing_begin(struct ep_net_dialing *dialing, const union ep_net_addr *addr,
			  const char *who, uint64_t until);
/*
 * Goes on dialing. *fd: the connection, which the caller owns, or -1: call again. A try that is
 * refused, finds no route or gets no answer is followed by others, NCCL_SOCKET_RETRY_CNT at most,
 * after 1, 2, 3, ... times NCCL_SOCKET_RETRY_SLEEP_MSEC.
 */
ncclResult_t ep_net_dialing_step(struct ep_net_dialing *dialing, int *fd);
void ep_net_dialing_end(struct ep_net_dialing *dialing);

/* ---- messages: their head is the same in all versions, so that ends of two notice it ---- */

#define EP_NET_MAGIC 0x7465672d6e636c31ull
/* any change of what ends send each other, or of a connection's memory, is a new one */
#define EP_NET_VERSION 11u
#define EP_NET_MAX_QPS 128u

struct ep_net_head {
	uint64_t magic;
	uint32_t version;
	uint32_t bytes; /* with the head */
	uint64_t nonce; /* of the listener: who knows it has its handle */
};

/*
 * Sends, or receives, more of a message. *done: all of it has gone, or come; *at: how many bytes.
 * `who`: the other end, for errors. A received message begins with a head of this version and
 * magic. ep_net_message_end() turns the state of a message without head into the same.
 */
ncclResult_t ep_net_message_end(enum ep_net_io_state state, const char *who, bool *done);
ncclResult_t ep_net_message_send(int fd, const void *msg, size_t bytes, size_t *at, const char *who,
				 bool *done);
ncclResult_t ep_net_message_recv(int fd, struct ep_net_head *msg, size_t bytes, uint64_t magic,
				 size_t *at, const char *who, bool *done);

/* Returns the time that a connection has from its first call on. */
uint64_t ep_net_setup_ns(void);

/*
 * Return whether the other end's values of a port and its queue pairs are possible, as a question
 * and as an error. `qpn` NULL: it has sent no queue pairs.
 */
bool ep_net_end_good(const struct ep_nic_end *end, const uint32_t *qpn, uint32_t nqps);
ncclResult_t ep_net_end_check(const struct ep_nic_end *end, const uint32_t *qpn, uint32_t nqps,
			      const char *who);

/*
 * ---- listeners ----
 *
 * A connection is pending until it has sent a head with the listener's nonce; others are rejected.
 * When all places are taken, the connection that has been silent for longest makes room for a new
 * one.
 */

#define EP_NET_MAX_PENDING 32
/* Peers send at once. A silent connection keeps its place for so long. */
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

/*
 * A connection that has sent this head, with the nonce. The rest of its message is still to be
 * received.
 */
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

/* Begins to listen at the interface of this process, and fills in *place except its number. */
ncclResult_t ep_net_acceptor_open(struct ep_net_acceptor *g, uint64_t magic,
				  struct ep_net_place *place);
/* Checks that a place which NCCL brought is of `whose` listener and of this version. */
ncclResult_t ep_net_place_check(const struct ep_net_place *place, uint64_t magic,
				const char *whose);
/* Closes the listener and its pending connections. */
void ep_net_acceptor_close(struct ep_net_acceptor *g);
/*
 * Accepts a connection; accepted->fd is -1 while none is complete. Fails if this process cannot
 * accept.
 */
ncclResult_t ep_net_acceptor_poll(struct ep_net_acceptor *g, struct ep_net_accepted *accepted);
/*
 * Ends a wait for `whom`: one line names rejected connections, and silent ones if `whom` did not
 * come.
 */
void ep_net_acceptor_report(struct ep_net_acceptor *g, bool connected, const char *whom);

/* ---- for tables ---- */

#define EP_NET_EXPORT __attribute__((visibility("default"))) /* what NCCL looks up */

#endif
