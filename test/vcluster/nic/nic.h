/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The software mlx5 NIC: what stands behind the virtual cluster's libibverbs.so.1 and libmlx5.so.1.
 *
 * One instance per process: all its devices, contexts and queue pairs, served by one thread. One
 * lock protects all of it; only the words that the program shares with a NIC (doorbells, rings,
 * completions, registered memory) are touched by both sides without it.
 */
#ifndef VC_NIC_H
#define VC_NIC_H

#include <endian.h>
#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include "device/mlx5/layout.h"

#define VN_EXPORT __attribute__((visibility("default")))
#define VN_EXIT 88 /* a program broke a rule of the hardware */

#define VN_NICS 16
#define VN_WINDOW 64      /* operations of a queue pair that are under way */
#define VN_PACKETS 32     /* packets of an operation that are under way: bits of a mask */
#define VN_QP_PACKETS 128 /* and of a queue pair */
#define VN_PSN_WINDOW 1024
#define VN_PSN_MASK 0xffffffu
#define VN_INLINE 64
#define VN_REPLAY 64 /* results of atomics that a responder remembers */
#define VN_UAR_PAGE 4096
#define VN_PKEYS 1
#define VN_MTU 5 /* IBV_MTU_4096 */
#define VN_SEND_WR 32768
#define VN_POISON 0xee

/* ThreadSanitizer sees only what it is told: nothing here is instrumented. */
#ifdef VC_TSAN
#include <sanitizer/tsan_interface.h>
void __tsan_read_range(void *p, unsigned long size);
void __tsan_write_range(void *p, unsigned long size);
#define VN_ACQUIRE(p) __tsan_acquire((void *)(p))
#define VN_RELEASE(p) __tsan_release((void *)(p))
#else
#define VN_ACQUIRE(p) ((void)(p))
#define VN_RELEASE(p) ((void)(p))
#endif

/* ------------------------------------------------------------------ profile (nic_env.c) */

struct vn_config {
	int nics, node;
	bool mlx5;         /* false: a device that only knows plain verbs */
	bool ib;           /* link layer */
	bool routed;       /* each node is a subnet */
	bool gpu_umem;     /* device memory can hold queues */
	bool nc_dedicated; /* MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED of newer libraries */
	bool ooo_rw, ooo_all, ooo_force;
	bool no_atomics;
	bool no_rtr;      /* queues made by commands cannot be connected */
	bool quiet;       /* the order of placement is not told */
	bool tells_order; /* by the field that says whether data is placed in order */
	int tier;         /* the firmware's own choice */
	int init_rd;      /* READs and atomics that a verbs queue has in flight */
	uint32_t send_wr; /* work requests that a verbs queue takes, fewer than is said */
	uint32_t ts;      /* formats of timestamps: 0 free running, 1 real time, 2 both */
	int mtu;          /* active */
	int strict;
	uint32_t net;  /* addresses are net | node << 8 | nic + 1 */
	uint32_t run;  /* tells runs apart */
	uint16_t port; /* of instance 0 */
	uint64_t seed;
	uint32_t retry_ms; /* all tries together; 0: as the queue pair says */
	uint32_t link_gbps;
	bool verbose;
};
extern struct vn_config vn_config;

void vn_config_load(void);
const char *vn_env(const char *name, const char *fallback);
long vn_env_long(const char *name, long fallback);
uint64_t vn_now(void); /* ns */
uint64_t vn_random(void);
/* A message on stderr. vn_once: the first of each format only. vn_bug: the last one, in strict mode. */
void vn_say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void vn_once(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void vn_bug(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

/* PRM bit fields: bit 0 is the most significant of the first big-endian word. */
uint32_t vn_get(const void *p, unsigned int bit, unsigned int width);
void vn_set(void *p, unsigned int bit, unsigned int width, uint32_t value);
uint64_t vn_get64(const void *p, unsigned int bit);

/* ------------------------------------------------------------------------------ objects */

struct vn_list {
	void **item;
	uint32_t n, cap;
};
/* Slot number, or -1. Slots are used again, but late. */
int vn_list_add(struct vn_list *list, void *item);
void *vn_list_get(const struct vn_list *list, uint32_t slot);
void vn_list_drop(struct vn_list *list, uint32_t slot);

struct vn_context;

struct vn_nic {
	struct ibv_device device;
	int index;
	uint32_t ip; /* host order */
	uint16_t lid;
	uint8_t mac[6];
	uint64_t guid;
	bool down;
	int listen_fd;
	struct vn_context *contexts;
	struct vn_chunk *chunks; /* writes that the bus has not delivered (nic_place.c) */
	uint32_t nchunks;
};

struct vn_context {
	struct vn_nic *nic;
	struct vn_context *next;
	bool devx;
	int event_fd;               /* where events are written */
	uint32_t live;              /* objects that exist */
	struct vn_uar *shared_uar;  /* MLX5DV_UAR_ALLOC_TYPE_NC: one per context */
	struct verbs_context verbs; /* last: it ends with the ibv_context */
};

struct vn_pd {
	struct ibv_pd ibv;
	struct vn_context *ctx;
	uint32_t number;
	uint32_t users;
};

/* Memory that the NIC may touch: a registered region or a umem. */
struct vn_memory {
	uint8_t *at; /* where this process sees it */
	uint64_t size;
	struct vn_gpu *gpu; /* the device that owns it, if plain access does not reach it */
	void *map;          /* our own mapping, if we made one */
	size_t map_size;
};

struct vn_mr {
	struct ibv_mr ibv;
	struct vn_memory mem;
	struct vn_pd *pd;
	uint64_t iova;
	uint32_t access;
	uint32_t slot;
};

struct vn_umem {
	struct mlx5dv_devx_umem pub;
	struct vn_context *ctx;
	struct vn_memory mem;
	uint32_t access, users;
	uint64_t page; /* that the device sees */
};

struct vn_uar {
	struct mlx5dv_devx_uar pub;
	struct vn_context *ctx;
	uint8_t *page;
	uint64_t last; /* of the doorbell word */
	uint32_t users, qps, refs;
};

struct vn_ah {
	struct ibv_ah ibv;
	struct mlx5_wqe_av av;
};

enum vn_obj_kind {
	VN_OBJ_CQ,
	VN_OBJ_QP
};

struct vn_cq {
	struct ibv_cq ibv; /* first; verbs queues only */
	struct vn_context *ctx;
	bool devx, cc, oi;
	uint32_t number, log_size, users;
	uint64_t written; /* CQEs */
	struct ep_mlx5_cqe *entry;
	struct vn_memory mem;
	struct vn_umem *umem, *dbr_umem;
	struct vn_uar *uar;
	/* verbs: completions that nobody has polled */
	struct ibv_wc *wc;
	uint32_t size, head, count;
	bool overrun, armed;
	uint32_t unacked;
};

enum vn_qp_state {
	VN_RST = 0,
	VN_INIT = 1,
	VN_RTR = 2,
	VN_RTS = 3,
	VN_ERR = 6
};

enum vn_op_state {
	VN_OP_QUEUED,
	VN_OP_SENT,
	VN_OP_DONE
};

/* A work request under way. Indices count WQEs of the queue, from its making. */
struct vn_op {
	uint64_t idx;
	uint64_t wr_id; /* verbs */
	uint64_t raddr, laddr;
	uint64_t add, boundary; /* atomics; compare and swap: swap, compare */
	uint32_t rkey, lkey, len;
	uint32_t psn; /* of its first packet */
	uint32_t npkts;
	uint32_t base;   /* packets below are acknowledged */
	uint32_t sent;   /* bits: packets base + i that were sent */
	uint32_t acked;  /* bits */
	uint32_t placed; /* READ: packets whose data has come */
	uint8_t opcode, opmod, fm, syndrome, vendor;
	bool signaled, is_inline, started;
	struct vn_gpu *gpu; /* payload that was copied ahead */
	uint8_t *staged;
	uint8_t data[VN_INLINE];
};

struct vn_lost { /* packet that has to be sent again, or was */
	uint64_t due;
	uint64_t idx;
	uint32_t pkt;
	uint32_t tries; /* that were lost */
	bool waiting;   /* for its time */
};

struct vn_qp {
	struct ibv_qp ibv; /* first; verbs queues only */
	struct vn_context *ctx;
	struct vn_nic *nic;
	struct vn_pd *pd;
	struct vn_cq *cq;
	struct vn_cq *rcq;
	bool devx;
	uint32_t number, made; /* made: the how manyeth of this process */
	enum vn_qp_state state;
	uint8_t qpc[232];
	uint8_t tier;  /* of this end: whether it holds atomics back */
	uint8_t order; /* the weaker one of both ends, once the other has answered */

	/* addresses */
	uint32_t remote_qpn;
	uint32_t remote_ip;
	bool reachable; /* the address is one that the wire knows */
	struct vn_link *link;
	uint32_t mtu; /* bytes */
	uint32_t access;
	uint8_t retry_cnt, rnr_retry, ack_timeout, port;
	uint8_t rd_out, rd_in; /* log2 */

	/* send queue of DevX queues */
	struct ep_mlx5_wqe *sq;
	uint32_t depth;
	struct vn_memory mem;
	struct vn_umem *umem, *dbr_umem;
	struct vn_memory dbr_mem;
	struct ep_mlx5_dbr *dbr;
	struct vn_uar *uar;
	uint32_t last_db; /* index of the last doorbell seen, 16 bits */
	bool rung;

	/* send queue of verbs queues */
	struct vn_op *wr;
	uint32_t max_wr, max_inline, outstanding;
	uint32_t *wr_ends;               /* [completion] requests that it takes off the queue */
	uint64_t wr_reported, wr_polled; /* completions */
	uint64_t wr_done;                /* requests that completions have told of */
	bool sig_all;

	/* requester */
	uint64_t pi, ci, done;  /* posted, fetched, retired */
	uint64_t signaled_done; /* all below was reported */
	struct vn_op op[VN_WINDOW];
	uint32_t next_psn;
	uint32_t in_flight; /* packets */
	uint32_t rd_used;   /* READs and atomics under way */
	struct vn_lost *lost;
	uint32_t nlost, lost_cap;
	uint32_t nlate;      /* packets that a fault delays */
	uint64_t hold_until; /* faults */
	bool stuck, black_hole;
	bool active;
	uint8_t cause, cause_vendor; /* of the error state */

	/* responder */
	uint32_t want_psn; /* packets below have come */
	uint64_t seen[VN_PSN_WINDOW / 64];
	struct {
		uint32_t psn;
		bool valid;
		uint64_t old;
	} replay[VN_REPLAY];

	struct vn_qp *next;
};

struct mlx5dv_devx_obj {
	enum vn_obj_kind kind;
	struct vn_context *ctx;
	struct vn_qp *qp;
	struct vn_cq *cq;
};

struct vn {
	pthread_mutex_t lock;
	uint32_t waiting; /* callers that want the lock */
	bool loaded;
	struct vn_nic nic[VN_NICS];
	uint32_t instance; /* of this process on its addresses */
	struct vn_list pds, mrs, umems, uars, cqs, qps;
	struct vn_qp *all; /* queue pairs */
	uint32_t qps_made;
	struct vn_link *links;
	pthread_t thread;
	bool running;
	int wake_fd, epoll_fd;
};
extern struct vn vn;

void vn_lock(void);
void vn_unlock(void);

static inline struct vn_context *vn_context_of(struct ibv_context *c)
{
	return (struct vn_context *)((char *)c - offsetof(struct vn_context, verbs.context));
}

/* --------------------------------------------------------------------- devices, addresses */

int vn_start(void); /* wire and thread, with the first context; errno */
bool vn_gid(const struct vn_nic *nic, int index, union ibv_gid *gid, uint32_t *type);
/* Address of the NIC that has this GID or LID; 0: none could. */
uint32_t vn_ip_of_gid(const union ibv_gid *gid, bool *ipv4);
uint32_t vn_ip_of_lid(uint16_t lid);
uint32_t vn_ip_of_path(uint16_t lid, const union ibv_gid *gid);
void vn_mac_of_ip(uint32_t ip, uint8_t mac[6]);
void vn_event(struct vn_context *ctx, enum ibv_event_type type, void *element, int port);
void vn_port_set(struct vn_nic *nic, bool down);
struct ibv_context *vn_open(struct ibv_device *device, bool devx);

/* ------------------------------------------------------------------------ memory (nic_mem.c) */

int vn_memory_attach(struct vn_memory *m, void *addr, uint64_t size, bool queue);
int vn_memory_attach_fd(struct vn_memory *m, int fd, uint64_t offset, uint64_t size, uint64_t iova);
void vn_memory_detach(struct vn_memory *m);
struct vn_mr *vn_mr_find(uint32_t key, bool remote);
/* Why the key does not give these bytes, or NULL. */
const char *vn_mr_check(uint32_t key, bool remote, const struct vn_pd *pd, uint64_t addr,
			uint64_t bytes, uint32_t need, struct vn_mr **mr, uint8_t **at);
struct vn_umem *vn_umem_find(uint32_t id, const struct vn_context *ctx);
struct vn_uar *vn_uar_find(uint32_t id, const struct vn_context *ctx);

/* -------------------------------------------------------------- queue pairs (nic_qp.c, ...) */

struct vn_qp *vn_qp_find(uint32_t number);
struct vn_qp *vn_qp_new(struct vn_context *ctx, struct vn_pd *pd, struct vn_cq *cq);
void vn_qp_free(struct vn_qp *qp);
void vn_qp_reset(struct vn_qp *qp);
void vn_qp_to_error(struct vn_qp *qp);
struct vn_cq *vn_cq_new(struct vn_context *ctx);
void vn_cq_free(struct vn_cq *cq);
/* A completion of `op`; syndrome 0: success. */
void vn_cq_complete(struct vn_qp *qp, const struct vn_op *op, uint8_t syndrome, uint8_t vendor);
/* Applies the address path and the rest of INIT2RTR and RTR2RTS from qp->qpc; why not, or NULL. */
const char *vn_qp_route(struct vn_qp *qp);
void vn_qp_activate(struct vn_qp *qp);

/* ----------------------------------------------------------------- serving (nic_sq.c, ...) */

void *vn_main(void *arg);
void vn_kick(void); /* the thread looks again */
/* Takes notice of doorbells; true if there were any. */
bool vn_doorbells(void);
/* Before a DevX queue pair is destroyed: nothing was handed over by its doorbell record alone. */
void vn_doorbell_last(struct vn_qp *qp);
/* Next WQE of a DevX queue into *op; false: the WQE is bad in a way that ends the queue's use. */
bool vn_fetch(struct vn_qp *qp, struct vn_op *op);
void vn_retired(struct vn_qp *qp, const struct vn_op *op);

/* requester: nic_req.c */
bool vn_req_run(struct vn_qp *qp);
bool vn_req_fetch(struct vn_qp *qp);
void vn_op_drop(struct vn_op *op);
void vn_transmit(struct vn_qp *qp, struct vn_op *op, uint32_t pkt);
void vn_req_lost(struct vn_qp *qp, uint64_t idx, uint32_t pkt);
void vn_req_link_lost(struct vn_link *link);
struct vn_op *vn_op_of(struct vn_qp *qp, uint64_t idx);

/* ------------------------------------------------------------------------------ packets */

enum vn_kind {
	VN_WRITE = 1,
	VN_READ,
	VN_ATOMIC,
	VN_ACK, /* answers */
	VN_READ_DATA,
	VN_ATOMIC_OLD,
	VN_NAK,
	VN_DROPPED /* the wire lost it, or the other end ignores it: no such packet on real wires,
		       * where the requester's timer finds out */
};

struct vn_packet {
	uint8_t kind, opcode;
	uint8_t opmod;    /* answers: tier of the responder */
	uint8_t syndrome; /* requests: 1 if packets must come in order */
	uint32_t dst_qpn, src_qpn;
	uint32_t psn;
	uint32_t len;   /* of the payload; READ: asked for */
	uint32_t bytes; /* of the payload that follows */
	uint32_t rkey;
	uint16_t mtu;
	uint16_t pad;
	uint32_t src_ip;
	uint64_t raddr;
	uint64_t add, boundary;
	uint64_t idx; /* of the requester's WQE, sent back */
	uint32_t pkt; /* and which packet of it */
	uint32_t pad2;
};

/* The responder takes a packet that came for `nic`; answers go back through `link`. */
void vn_resp_packet(struct vn_nic *nic, struct vn_link *link, const struct vn_packet *p,
		    const uint8_t *payload);
/* The requester takes an answer. */
void vn_req_answer(const struct vn_packet *p, const uint8_t *payload);

/* placement: nic_place.c */
void vn_place(struct vn_nic *nic, struct vn_mr *mr, uint8_t *to, const uint8_t *from, uint32_t len,
	      struct vn_link *link, const struct vn_packet *answer);
void vn_place_flush(struct vn_nic *nic);
bool vn_place_some(struct vn_nic *nic);
/* Answers to what was written to GPUs: they go out when it is there. */
void vn_place_defer(struct vn_link *link, const struct vn_packet *answer, uint64_t payload);
bool vn_place_settle(void);
/* Memory as the bus sees it. vn_payload: for this turn only. */
const uint8_t *vn_payload(struct vn_mr *mr, const uint8_t *at, uint32_t len);
void vn_store(struct vn_mr *mr, uint8_t *to, const uint8_t *from, uint32_t len);
/* Returns the old value. */
uint64_t vn_atomic(const struct vn_packet *p, struct vn_mr *mr, uint8_t *at);

/* wire: nic_wire.c */
int vn_wire_start(void);
struct vn_link *vn_link_get(struct vn_nic *nic, uint32_t ip, uint32_t instance);
bool vn_link_full(const struct vn_link *link);
void vn_link_send(struct vn_link *link, const struct vn_packet *p, const uint8_t *payload);
bool vn_wire_run(bool receive);

#endif
