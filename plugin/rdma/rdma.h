/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA by verbs, for queues that GPUs post to and for the network plugin alike: the machine's
 * ports, which of them a GPU uses, an opened port with its address, memory and events, and queue
 * pairs of reliable connections.
 */
#ifndef EP_RDMA_RDMA_H
#define EP_RDMA_RDMA_H

#include "core/error.h"
#include "rdma/env.h"
#include "rdma/verbs.h"

struct ep_topo_hca;

/* ---- port.c: the machine's active ports ---- */

#define EP_NIC_NAME 64
#define EP_PORT_MAX 256 /* of a machine, virtual functions included */

struct ep_port {
	char name[EP_NIC_NAME]; /* of the RDMA device */
	int port;
	bool ethernet;
	uint32_t mbps; /* 0: unknown */
};

struct ep_port_list {
	const struct ep_verbs *v;
	struct ibv_device **dev;
	int ndevs, nports, n; /* nports: active or not */
	struct ep_port port[EP_PORT_MAX];
	bool full;               /* there are more */
	struct ep_reason closed; /* devices that could not be opened */
};

/*
 * Lists the active ports. Returns false, with *why, if there are none. Close the list in any case.
 */
bool ep_port_list_open(struct ep_port_list *list, struct ep_reason *why);
void ep_port_list_close(struct ep_port_list *list);
/* Returns the device of that name, or NULL. */
struct ibv_device *ep_port_list_device(const struct ep_port_list *list, const char *name);

/* Directories of the kernel; tests pass another `root` to the functions below. */
#define EP_PORT_SYSFS "/sys/class"
#define EP_NIC_SYSFS EP_PORT_SYSFS "/infiniband"

/* Fills *port from what verbs and the kernel's files below `root` (EP_PORT_SYSFS) report. */
void ep_port_set(struct ep_port *port, const char *name, int num, const struct ibv_port_attr *attr,
		 const char *root);

/*
 * Returns the port of the rank at `place` on its host, where distances are unknown: the ports (n >
 * 0) of one link layer take turns. The layer is that of the fastest port; if both have one, the
 * layer with more ports. So all ranks choose the same layer.
 */
const struct ep_port *ep_port_by_place(const struct ep_port *port, int n, uint32_t place);

/* ---- port.c: GIDs, the addresses of ports ---- */

struct ep_gid {
	uint8_t raw[16];
	int index; /* in the port's table */
	int roce;  /* 1 or 2; 0: InfiniBand, or the driver does not report it */
};

/*
 * Chooses the entry of a port's GID table and writes its position in `list` to *chosen. The list is
 * in the table's order and may lack empty entries. InfiniBand: entry env->flid_index if that has a
 * FLID, otherwise entry 0. Ethernet: entry env->gid_index, which must exist. If that is -1, the
 * first entry of env->roce_version that is not link-local, of the preferred family (IPv4 by
 * default) and within the range. Without a range the other family comes next, and link-local
 * entries come last. `port` is for messages.
 */
ncclResult_t ep_gid_pick(const char *port, bool ethernet, const struct ep_gid *list, int n,
			 const struct ep_ib_env *env, int *chosen);

/* InfiniBand: returns whether two GIDs have the same subnet, the last 16 bits of the prefix. */
bool ep_gid_same_subnet(const uint8_t a[16], const uint8_t b[16]);
/*
 * InfiniBand: returns the FLID, the 16 bits before the subnet, or 0 if there is none. It is a LID
 * by which routers know the way from other subnets.
 */
uint16_t ep_gid_flid(const uint8_t raw[16]);

/* Returns whether the GID holds an IPv4 address. */
bool ep_gid_is_ipv4(const uint8_t raw[16]);

/* Writes the address ("10.1.2.3" or "fe80::1") to buf and returns buf. */
#define EP_GID_TEXT 48
const char *ep_gid_print(const uint8_t raw[16], char buf[EP_GID_TEXT]);

/*
 * Returns the RoCE version of an entry by the kernel's files below `root`; 0: they do not have it.
 */
int ep_gid_roce(const char *root, const char *device, int port, int index);

/* ---- nic.c: a port of a NIC, opened ---- */

/* A port, as peers must know it. Travels between ranks of one build. */
struct ep_nic_end {
	char name[32];
	uint8_t gid[16];
	uint8_t port;
	uint8_t link_layer; /* IBV_LINK_LAYER_* */
	uint8_t roce;       /* version; 0: InfiniBand */
	uint8_t mtu;        /* enum ibv_mtu, active */
	uint8_t grh;        /* the port requires a GRH */
	uint8_t log_rra;    /* READs and atomics it answers at once, logarithm */
	uint16_t lid;
	uint16_t pkey;
	uint32_t psn; /* queue pairs begin at this plus their number */
};

struct ep_nic {
	const struct ep_verbs *v;
	const struct ep_mlx5dv *dv; /* NULL: no libmlx5 */
	char name[EP_NIC_NAME];
	int port;
	struct ibv_context *ctx;
	struct ibv_pd *pd;
	bool devx; /* DevX commands may be tried, else `no_devx` has the reason */
	struct ep_reason no_devx;
	struct ibv_device_attr attr;
	bool atomics;
	bool fences; /* IBV_SEND_FENCE may be used; not so with rdma_rxe, see ep_nic_open() */
	uint32_t log_ra_req, log_ra_res; /* READs and atomics in flight: as requester, responder */
	uint32_t log_max_msg;
	/* set before ep_nic_open(): a port that is down, or cannot be reached, is opened, too; */
	bool even_down;
	bool down;     /* it is that */
	bool homeless; /* it is up, and lacks an address or the partition key */
	uint32_t gid_index, pkey_index;
	uint8_t tc; /* traffic class */
	struct ep_nic_end end;
};

/*
 * Opens `port` of one of the devices of `list`. Returns false on failure: either *result has an
 * error that was recorded, or *why has the reason. Close the NIC in any case.
 */
bool ep_nic_open(struct ep_nic *nic, const struct ep_port_list *list, const struct ep_port *port,
		 const struct ep_ib_env *env, struct ep_reason *why, ncclResult_t *result);
/*
 * Opens the part that depends on the port's state, of a NIC whose context is open. Fails as
 * ep_nic_open() does.
 */
bool ep_nic_port_open(struct ep_nic *nic, const struct ep_ib_env *env, struct ep_reason *why,
		      ncclResult_t *result);
/* Closes the NIC. `keep`: the context stays open, because pages of it are still mapped. */
void ep_nic_close(struct ep_nic *nic, bool keep);

/* port.c: chooses the GID that the port is reached by, of the `entries` in its table. */
ncclResult_t ep_nic_address_choose(struct ep_nic *nic, const struct ep_ib_env *env, int entries);
/* port.c: sets nic->tc, the traffic class of packets that the port sends. */
void ep_nic_class_choose(struct ep_nic *nic, const struct ep_ib_env *env, const char *root);

/* Returns whether two ports can reach each other; if not, *why has the reason. */
bool ep_nic_path_check(const struct ep_nic_end *from, const struct ep_nic_end *to,
		       struct ep_reason *why);
/* Returns whether packets to another port have a global route header. */
bool ep_nic_path_global(const struct ep_nic_end *from, const struct ep_nic_end *to);
/* Returns the LID that packets to another port go to. */
uint16_t ep_nic_path_lid(const struct ep_nic_end *from, const struct ep_nic_end *to);

/*
 * Memory to be registered. That of a GPU as a DMA-BUF if there is one and libibverbs takes it;
 * otherwise its address as it is, which works where nvidia-peermem is loaded.
 */
struct ep_nic_memory {
	void *p;
	uint64_t bytes;
	bool gpu;
	int fd;          /* of the DMA-BUF; -1: none, `no_fd` has the reason */
	uint64_t offset; /* of p in it */
	struct ep_reason no_fd;
};

/* Returns whether nvidia-peermem, or its forerunner, is loaded. */
bool ep_nic_peermem(void);

/* Registers memory with the NIC. Returns NULL, with *why, on failure. */
struct ibv_mr *ep_nic_register(const struct ep_nic *nic, const struct ep_nic_memory *memory,
			       unsigned int access, struct ep_reason *why);

/*
 * Writes the text of an error of a call that pins memory (registrations, queues) and returns it.
 * Most often a lack of memory is the limit of the process, which the text names.
 */
#define EP_NIC_ERROR_TEXT 200
const char *ep_nic_error_print(int error, char text[EP_NIC_ERROR_TEXT]);

/* Events: what a device reports without being asked. */
enum ep_nic_event {
	EP_NIC_PORT_DOWN,
	EP_NIC_PORT_UP,
	EP_NIC_ADDRESS, /* the port's LID, or its table of GIDs or of partition keys, has changed */
	EP_NIC_DEVICE_FAILED,
	EP_NIC_CQ_FAILED,
	EP_NIC_QP_FAILED,
};

struct ep_nic_report {
	enum ep_nic_event event;
	const char *text; /* static */
	struct ibv_cq *cq;
	struct ibv_qp *qp;
};

/* Lets ep_nic_events_read() return when no event waits. Returns 0 or an errno value. */
int ep_nic_events_open(const struct ep_nic *nic);

/*
 * Reads all events that wait, writes each into the log, and calls `fn` for those that affect the
 * port or its queues.
 */
void ep_nic_events_read(const struct ep_nic *nic,
			void (*fn)(void *arg, const struct ep_nic_report *report), void *arg);

/* ---- choose.c: which ports a GPU uses ---- */

/* The rank that chooses. */
struct ep_nic_user {
	const char *bus_id; /* of its GPU */
	const char *uuid;   /* of its MIG instance as NVML spells it; "": unknown */
	int device;         /* CUDA ordinal */
	uint32_t place;     /* of the rank among those of its host */
};

/*
 * Chooses among the `present` ports (one at least) those that this GPU uses: the nearest ones,
 * shared fairly with the machine's other GPUs, several if there are enough. NCCL_IB_HCA and
 * NCCL_NET_GDR_LEVEL are obeyed. This needs the topology module. If that is missing, or does not
 * know this GPU or these ports, the result is one port, by the rank's place among those of one link
 * layer that NCCL_IB_HCA permits, with an INFO line. On entry *nchosen is the room in `chosen`, at
 * least 1; without room for all the first ones count. It is an error if no port is permitted.
 */
ncclResult_t ep_nic_choose(const struct ep_nic_user *who, const struct ep_port_list *present,
			   struct ep_port *chosen, int *nchosen);

/*
 * Warns of each item of NCCL_IB_HCA that matches no port here, once for a value: a job that uses
 * fewer ports than it was given is slow without a reason in the log. An item that excludes a device
 * may name one that is down.
 */
void ep_nic_hca_warn(const struct ep_port_list *list, const char *value,
		     const struct ep_topo_hca *hca);

/* ---- rc_qp.c: queue pairs of reliable connections that verbs make ---- */

#define EP_RC_HOPS 255
#define EP_RC_RNR_TIMER 12 /* 0.64 ms */
#define EP_RC_RNR_RETRY 7  /* for ever */
#define EP_RC_LOG_READS 4  /* most READs and atomics in flight, logarithm */

/* Room of a queue pair. A device's limits hold for the smallest work requests: it may get less. */
struct ep_rc_room {
	uint32_t sq, rq, inline_bytes;
};

/* Extensions of a NIC's queue pairs (ECE), in its maker's words; travel between ends. */
struct ep_ece {
	uint32_t vendor; /* 0: none are known */
	uint32_t options, mask;
};

/*
 * How packets go from one port to another. Queue pairs begin at their port's psn plus their number.
 */
struct ep_rc_path {
	const struct ep_nic_end *from, *to;
	uint8_t tc; /* traffic class, */
	uint8_t sl; /* service level */
	/* READs and atomics in flight, logarithm; both ends may have to have fewer */
	uint8_t log_reads;
	bool once;          /* what times out is not tried again */
	bool to_down;       /* for errors: `to` was down, as its end has sent */
	uint32_t gid_index; /* of `from` */
	struct ep_ece ece;  /* of the other end, as it came; */
	bool ece_agreed;    /* of both ends: the other end has it already */
};

/*
 * Creates a queue pair in state RESET and writes the room that it got into *room. If the device
 * refuses, the call first goes without inline data, then halves the depths, down to `least`.
 * Returns NULL with errno on failure; *room is then what was refused last.
 */
struct ibv_qp *ep_rc_qp_create(const struct ep_nic *nic, struct ibv_cq *cq, uint32_t least,
			       struct ep_rc_room *room);

/*
 * Waits and returns true if a call that has failed `failures` times is to be made again. The kernel
 * may have to ask for the peer's hardware address (ARP), and the answer may be lost. Therefore a
 * call that timed out is made again, as NCCL_IB_MQP_RETRY_CNT, NCCL_IB_MQP_RETRY_SLEEP_MSEC and
 * NCCL_IB_MQP_RETRY_ALL allow.
 */
bool ep_rc_retry(const struct ep_nic *nic, const struct ep_ib_env *env, int error, int failures);

/*
 * Reads the extensions of a queue pair: the NIC's, and those of both ends once it knows its peer.
 */
void ep_rc_ece_query(const struct ep_nic *nic, const struct ep_ib_env *env, struct ibv_qp *qp,
		     struct ep_ece *ece);
/* Returns the peer's extensions, or none if the two NICs are not of one maker. */
struct ep_ece ep_rc_ece_received(const struct ep_ece *own, const struct ep_ece *peer);
/* Returns what to append to an error of a NIC that was given extensions of both ends. */
#define EP_RC_ECE_TEXT 128
const char *ep_rc_ece_print(uint32_t options, bool agreed, char text[EP_RC_ECE_TEXT]);

/*
 * Moves a queue pair to state INIT, trying again as ep_rc_retry() allows. Returns 0 or an errno
 * value, as the next two calls do.
 */
int ep_rc_qp_init(const struct ep_nic *nic, const struct ep_ib_env *env, struct ibv_qp *qp,
		  uint32_t pkey_index, unsigned int access);
/*
 * Moves a queue pair to state RTR: it learns its peer's number, `remote`. One end gets the other's
 * extensions as they came. Its firmware reduces them to what both can, and the other end gets that.
 * Where firmware refuses them, this connection keeps to the standard.
 */
int ep_rc_qp_to_rtr(const struct ep_nic *nic, const struct ep_ib_env *env, struct ibv_qp *qp,
		    const struct ep_rc_path *path, uint32_t remote);
/* Moves a queue pair to state RTS: it may send. */
int ep_rc_qp_to_rts(const struct ep_nic *nic, const struct ep_ib_env *env, struct ibv_qp *qp,
		    const struct ep_rc_path *path);

/*
 * Returns the logarithm of READs and atomics that a requester at `from` may have in flight to `to`.
 */
uint32_t ep_rc_log_reads(const struct ep_nic *from, const struct ep_nic_end *to, uint32_t most);

/* Why a NIC failed a work request, in words. */
struct ep_syndrome {
	uint8_t code;   /* MLX5_CQE_SYNDROME_* */
	uint8_t status; /* enum ibv_wc_status */
	const char *text;
	const char *next; /* what to do; NULL: the text has all */
};

/* Returns the words for a code, or NULL if it is unknown. */
const struct ep_syndrome *ep_syndrome_find(uint8_t code);
/* Returns the code that stands for a status of verbs. */
uint8_t ep_syndrome_of_status(enum ibv_wc_status status);

#endif
