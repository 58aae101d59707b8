/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The software mlx5 NIC: what stands behind the virtual cluster's libibverbs.so.1 and libmlx5.so.1.
 *
 * One instance per process: all its devices, contexts and queue pairs, served by one thread. One
 * lock protects all of it; only the words that the program shares with a NIC (doorbells, queues,
 * completions, registered memory) are touched by both sides without it.
 */
#ifndef VN_NIC_H
#define VN_NIC_H

#include <infiniband/mlx5dv.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include "nic/step.h"
#include "device/mlx5/mlx5_layout.h"

/* ---- NICs and how they behave; messages; bits of command buffers; numbered objects ---- */

#define VN_EXPORT __attribute__((visibility("default")))
#define VN_EXIT 88 /* exit code: the program broke a rule of the hardware */
#define VN_NICS 16
#define VN_NET 0x7f010000u /* addresses are VN_NET | node << 8 | nic + 1 */
#define VN_SEND_WR 32768   /* work requests that a verbs queue takes at most */

#define VN_FEW_CQES 127
#define VN_FEW_RTR 3
#define VN_LATE_RTR 3
#define VN_MEMBERS 2 /* of a bond */

struct vn_config {
	int nics, node;
	bool mlx5;         /* false: a device that only knows plain verbs */
	bool ib;           /* link layer */
	bool routed;       /* each node is a subnet */
	bool rails;        /* NICs are two subnets, by even and odd numbers */
	bool gpu_umem;     /* device memory can hold queues */
	bool nc_dedicated; /* MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED of newer libraries */
	bool ooo_rw, ooo_all, ooo_force;
	bool no_atomics;
	bool odd_no_atomics; /* of NICs with odd numbers */
	bool odd_closed;     /* these cannot be opened: their files belong to others */
	bool no_dmabuf;      /* DMA-BUFs are not taken */
	bool no_ece;         /* the device says nothing of what else it can */
	int own_ece; /* 1 or 2: NICs with even or odd numbers refuse what others have of that */
	/* VC_NIC_DMABUF: those of real GPUs are, by the address that comes with them */
	bool gpu_dmabuf;
	bool no_rtr;        /* queues made by commands cannot be connected */
	bool quiet;         /* the device does not say in what order it places data */
	bool scattered;     /* numbers of queue pairs follow in no order */
	bool few_rtr;       /* no more than VN_FEW_RTR queues made by commands can be connected */
	bool fatal_rtr;     /* the process is killed when it connects one more */
	bool old_fork;      /* a fork() takes the pages of registered memory away from NICs */
	bool few_cqes;      /* completion queues have room for few */
	bool late_rtr;      /* the first tries to find the path to a peer are in vain */
	bool no_wc;         /* BF pages are refused: no memory is write-combining */
	bool no_read_mr;    /* memory is not registered to be read alone */
	bool one_read_mr;   /* nor by NICs but the first of a pair */
	bool reports_order; /* it says no more than whether it places data in order */
	int tier;           /* order of placement that firmware chooses by itself */
	int init_rd;        /* READs and atomics that a verbs queue has in flight */
	uint32_t send_wr; /* work requests that a verbs queue takes; the device claims VN_SEND_WR */
	uint32_t ts;      /* formats of timestamps: 0 free running, 1 real time, 2 both */
	int mtu;          /* active */
	uint32_t run;     /* differs between runs: packets of another run are refused */
	uint16_t port;    /* of instance 0 */
	uint64_t seed;
	uint32_t piece;    /* least bytes of what relaxed ordering moves by itself */
	uint32_t retry_ms; /* of all retries together; 0: as the queue pair says */
	bool verbose;
	bool stats;
	bool step;     /* no thread: vn_dv_step() */
	int lag;       /* members of the bond that each port is; 0: none */
	bool lag_late; /* what a queue pair is told before it is connected does not last */
	bool lag_hash; /* headers choose the member, not queue pairs */
};
extern struct vn_config vn_config;

void vn_config_load(void);
const char *vn_env(const char *name, const char *fallback);
long vn_env_long(const char *name, long fallback);
uint64_t vn_now(void); /* ns */
uint64_t vn_random(void);

/* A line on stderr. vn_log_once prints only the first line of each format. */
void vn_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void vn_log_once(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* The program broke a rule: says so and ends the process with VN_EXIT. */
void vn_bug(const char *fmt, ...) __attribute__((format(printf, 1, 2), noreturn));

/* PRM bit fields: bit 0 is the most significant of the first big-endian word. */
uint32_t vn_get(const void *p, unsigned int bit, unsigned int width);
void vn_set(void *p, unsigned int bit, unsigned int width, uint32_t value);
uint64_t vn_get64(const void *p, unsigned int bit);

struct vn_list {
	void **item;
	uint32_t n, cap;
};
/*
 * Number of the item's slot, or -1. A slot is never used again: a number that the program still
 * holds after its object is gone must not name a new object.
 */
int vn_list_add(struct vn_list *list, void *item);
void *vn_list_get(const struct vn_list *list, uint32_t slot);
void vn_list_drop(struct vn_list *list, uint32_t slot);

/* ---- what travels between NICs ---- */

enum vn_kind {
	VN_WRITE = 1,
	VN_READ,
	VN_ATOMIC,
	VN_ACK, /* this and all below are answers */
	VN_READ_DATA,
	VN_ATOMIC_OLD,
	VN_NAK,
	/*
	 * The packet was lost, or the other end ignores it. Real wires have no such answer: there
	 * the requester's timer finds out.
	 */
	VN_DROPPED,
	VN_RNR /* immediate data, and no receive is posted */
};

struct vn_packet {
	uint8_t kind, opcode;
	uint8_t tier;     /* answers: the responder's */
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
	uint64_t add;    /* immediate data, too */
	uint64_t idx;    /* of the requester's WQE; answers repeat it */
	uint32_t pkt;    /* number of the packet in that WQE */
	uint32_t dst_ip; /* requests */
	uint32_t ece;    /* requests: what the requester does beyond the standard */
	uint32_t pad2;
};

/* ---- devices and contexts ---- */

#define VN_PKEYS 8
#define VN_OPCODES 0x1000

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
	struct vn_chunk *chunks; /* writes that the bus has not delivered (place.c) */
	uint32_t nchunks;
	uint32_t looks; /* when one of them was held last */
	struct vn_dv_member member[VN_MEMBERS];
	/*
	 * Its IPv4 address has gone. The kernel has taken it off the port's table; the NIC keeps it
	 * as long as an object of verbs refers to it.
	 */
	bool gid_gone;
	uint32_t gid_users;
	uint8_t mac_turn; /* how often its hardware address has changed */
};

struct vn_context {
	struct vn_nic *nic;
	struct vn_context *next;
	bool devx;
	bool failed;                /* its device had a fatal error: calls of verbs get EIO */
	int event_fd;               /* where events are written */
	uint32_t live;              /* objects that exist */
	uint32_t lag_turn;          /* of queue pairs of verbs */
	struct vn_uar *shared_uar;  /* MLX5DV_UAR_ALLOC_TYPE_NC: one per context */
	struct verbs_context verbs; /* last: it ends with the ibv_context */
};

struct vn {
	pthread_mutex_t lock;
	uint32_t waiting; /* callers that want the lock */
	uint32_t looks;   /* for completions, by programs */
	bool loaded;
	struct vn_nic nic[VN_NICS];
	uint32_t instance; /* of this process on its addresses */
	struct vn_list pds, mrs, umems, uars, cqs, qps;
	struct vn_qp *all;     /* queue pairs */
	struct vn_qp **active; /* those that have something to do; room for all of them */
	uint32_t nactive, active_cap;
	uint32_t qps_live, qps_made, rtr, late_rtr;
	uint64_t commands[VN_OPCODES]; /* that firmware was given */
	struct vn_link *links;
	pthread_t thread;
	bool running;
	bool hooked;                /* doorbells of GPU threads call vn_rung() */
	uint32_t by_hand;           /* doorbells that did not */
	_Atomic bool rung, napping; /* since the last turn; the thread sleeps until it is woken */
	int wake_fd, epoll_fd;
};
extern struct vn vn;

void vn_lock(void);
void vn_unlock(void);

static inline struct vn_context *vn_context_of(struct ibv_context *c)
{
	return (struct vn_context *)((char *)c - offsetof(struct vn_context, verbs.context));
}

static inline bool vn_context_failed(const struct vn_context *ctx)
{
	return __atomic_load_n(&ctx->failed, __ATOMIC_RELAXED);
}

/* Whether this is one of the first tries to find a peer, which find none (late_rtr). */
static inline bool vn_late(void)
{
	return vn_config.late_rtr &&
	       __atomic_fetch_add(&vn.late_rtr, 1, __ATOMIC_RELAXED) < VN_LATE_RTR;
}

struct ibv_context *vn_open(struct ibv_device *device, bool devx);
void vn_event(struct vn_context *ctx, enum ibv_event_type type, void *element, int port);
/* The NIC of this process that has this address, or NULL. */
struct vn_nic *vn_nic_of_ip(uint32_t ip);
/* Returns whether ARP over the NIC finds nobody there: a port, its own or that one, is down. */
bool vn_ip_is_silent(const struct vn_nic *nic, uint32_t ip);
void vn_port_set(struct vn_nic *nic, bool down);

/* False if the NIC has no GID of this index. */
bool vn_gid(const struct vn_nic *nic, int index, union ibv_gid *gid, uint32_t *type);
/* Address of the NIC that has this GID or LID; 0 if no NIC can have it. */
uint32_t vn_ip_of_gid(const union ibv_gid *gid, bool *ipv4);
uint32_t vn_ip_of_lid(uint16_t lid);
uint32_t vn_ip_of_path(uint16_t lid, const union ibv_gid *gid);
void vn_mac_of_ip(uint32_t ip, uint8_t mac[6]);
/* Whether the entry of the table that the kernel calls `index` is what the NIC sends with. */
bool vn_gid_works(const struct vn_nic *nic, int index);
/* An object of verbs refers to the entry, or no more. */
void vn_gid_use(struct vn_nic *nic, int index, bool use);
void vn_gid_lose(struct vn_nic *nic);
void vn_mac_move(struct vn_nic *nic);

/* ---- what a protection domain holds: regions, umems, doorbell pages, address handles ---- */

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
	void *map;          /* the NIC's own mapping, if it made one */
	size_t map_size;
};

struct vn_mr {
	struct ibv_mr ibv;
	struct vn_memory mem;
	struct vn_pd *pd;
	uint64_t iova;
	uint32_t access;
	uint32_t slot;
	bool fork_safe;
	bool sent; /* work requests were to send from it */
};

struct vn_umem {
	struct mlx5dv_devx_umem pub;
	struct vn_context *ctx;
	struct vn_memory mem;
	uint32_t access, users;
	uint64_t page; /* size of the pages that the device sees */
};

struct vn_uar {
	struct mlx5dv_devx_uar pub;
	struct vn_context *ctx;
	uint8_t *page;
	uint64_t last; /* the doorbell word when the NIC looked last */
	uint32_t users, qps, refs;
	struct vn_qp *first; /* of its `qps` queue pairs */
};

struct vn_ah {
	struct ibv_ah ibv;
	struct mlx5_wqe_av av;
	int gid_index;
};

/* For tests: so many of the registrations that hold `p` were sent from. */
uint32_t vn_dv_senders(const void *p);
/* Of a region that is made now, with the lock held: whether the NIC keeps its pages in a fork(). */
bool vn_fork_safe(void);
/* NULL if the key gives access to these bytes; else the reason why it does not. */
const char *vn_mr_check(uint32_t key, bool remote, const struct vn_pd *pd, uint64_t addr,
			uint64_t bytes, uint32_t need, struct vn_mr **mr, uint8_t **at);
struct vn_umem *vn_umem_find(uint32_t id, const struct vn_context *ctx);
struct vn_uar *vn_uar_find(uint32_t id, const struct vn_context *ctx);

/* ---- completion queues and queue pairs, made by DevX commands or by verbs ---- */

#define VN_WINDOW 64  /* operations of a queue pair that are under way */
#define VN_PACKETS 32 /* packets of an operation that are under way: bits of a mask */
#define VN_PSN_WINDOW 1024
#define VN_PSN_MASK 0xffffffu
#define VN_INLINE 64
/* beside EP_MLX5_OP_*; queues of verbs only */
#define VN_OP_WRITE_IMM 0x09
#define VN_OP_READ 0x10
#define VN_REPLAY 64 /* results of atomics that a responder remembers */

struct vn_cq {
	struct ibv_cq ibv; /* first; verbs queues only */
	struct vn_context *ctx;
	bool devx;
	bool written; /* a CQE */
	uint32_t number, users;
	struct ep_mlx5_cqe *entry;
	struct vn_memory mem;
	struct vn_umem *umem, *dbr_umem;
	struct vn_uar *uar;
	/* verbs: completions that nobody has polled */
	struct ibv_wc *wc;
	uint32_t size, head, count;
	bool *invented; /* completions that end no request */
	bool overrun;
};

enum vn_qp_state {
	VN_RST = 0,
	VN_INIT = 1,
	VN_RTR = 2,
	VN_RTS = 3,
	VN_ERR = 6
};

/* A work request under way. Indices count WQEs of the queue, from its making. */
struct vn_op {
	uint64_t idx;
	uint64_t wr_id; /* verbs */
	uint64_t raddr, laddr;
	uint64_t add;   /* atomics; immediate data */
	uint64_t since; /* for statistics: when it was fetched */
	uint32_t rkey, lkey, len;
	uint32_t psn; /* of its first packet */
	uint32_t npkts;
	uint32_t base;   /* all packets below this one are acknowledged */
	uint32_t sent;   /* bit i: packet base + i was sent */
	uint32_t acked;  /* bit i: packet base + i was acknowledged */
	uint32_t placed; /* READ: packets whose data has come */
	uint32_t rnr;    /* how often the other end had no receive posted */
	uint8_t opcode, fm, syndrome, vendor;
	bool signaled, is_inline, started;
	bool unsettled;     /* what it fetched may still be on its way to a GPU */
	struct vn_gpu *gpu; /* device that the payload in `staged` was copied from */
	uint8_t *staged;
	uint8_t data[VN_INLINE];
};

/* For tests: so many requests that are not over send bytes of [p, p + size). */
uint32_t vn_dv_reading(const void *p, uint64_t size);

/* A packet that was lost: it is sent again at `due`, and may be lost once more. */
struct vn_lost {
	uint64_t due;
	uint64_t idx;
	uint32_t pkt;
	uint32_t tries; /* how often it was lost */
	bool waiting;   /* not sent again yet */
};

struct vn_qp {
	struct ibv_qp ibv; /* first; verbs queues only */
	struct vn_context *ctx;
	struct vn_nic *nic;
	struct vn_pd *pd;
	struct vn_cq *cq;
	struct vn_cq *rcq;
	bool devx;
	uint32_t number;
	uint32_t made; /* how many queue pairs the process made before this one */
	enum vn_qp_state state;
	uint8_t qpc[232];
	uint8_t tier;  /* of this end: says whether this end holds atomics back */
	uint8_t order; /* the weaker tier of both ends, once the other end has answered */

	/* addresses */
	uint32_t remote_qpn;
	uint32_t remote_ip;
	bool reachable; /* the address is one that the wire knows */
	struct vn_link *link;
	uint8_t remote_mac[6];
	uint16_t sport;
	int gid_index;
	bool gid_used; /* this object of verbs refers to it */
	uint8_t lag;   /* member of the bond that it sends by, from 1; 0: none was named */
	uint32_t ece;  /* what both ends can beyond the standard */
	uint32_t mtu;  /* bytes */
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
	uint64_t last_db; /* index of the last doorbell seen */
	bool rung;
	struct vn_dv_script script;
	struct vn_dv_attributes told;
	uint64_t doorbells, peak; /* as in struct vn_dv_seen */

	/* send queue of verbs queues */
	struct vn_op *wr;
	uint32_t max_wr, max_inline, outstanding;
	uint32_t *wr_ends;               /* [completion] requests that it takes off the queue */
	uint64_t wr_reported, wr_polled; /* completions */
	uint64_t wr_done;                /* requests that the polled completions cover */

	/* receive queue of verbs queues: a ring of what was posted and has not been used */
	uint64_t *rq;
	uint32_t max_rq, rq_first, rq_n;
	uint32_t rq_held; /* posted, and no completion of it was polled */

	/* requester */
	uint64_t pi, ci, done;  /* posted, fetched, retired */
	uint64_t signaled_done; /* completions cover all requests below this one */
	struct vn_op op[VN_WINDOW];
	uint32_t next_psn;
	uint32_t in_flight; /* packets */
	uint32_t rd_used;   /* READs and atomics under way */
	struct vn_lost *lost;
	uint32_t nlost, lost_cap;
	uint32_t nlate;      /* packets that a fault delays */
	uint64_t hold_until; /* a fault holds all requests up until then */
	bool stuck, black_hole;
	bool active;                 /* it may have something to do */
	bool listed;                 /* it is in vn.active, as are all that are active */
	uint8_t cause, cause_vendor; /* syndrome that led to the error state */

	/* responder */
	uint32_t want_psn; /* all packets below this one have come */
	uint64_t seen[VN_PSN_WINDOW / 64];
	struct {
		uint32_t psn;
		bool valid;
		uint64_t old;
	} replay[VN_REPLAY];

	struct vn_qp *next, *prev; /* all */
	struct vn_qp *page_next;   /* of its doorbell page */
};

struct vn_path {
	uint32_t mtu, qpn;
	uint16_t lid;
	bool grh;
	int gid_index;
	uint8_t hop_limit;
	uint16_t sport;
	union ibv_gid gid;
	uint8_t mac[6];
};

struct vn_qp *vn_qp_find(uint32_t number);
struct vn_qp *vn_qp_new(struct vn_context *ctx, struct vn_pd *pd, struct vn_cq *cq);
void vn_qp_free(struct vn_qp *qp);
void vn_qp_to_error(struct vn_qp *qp);
/* The thread looks at the queue pair from its next turn on, at the latest. */
void vn_qp_stir(struct vn_qp *qp);
/* The same for other threads: wakes it. */
void vn_qp_activate(struct vn_qp *qp);
/*
 * Sets the address that the queue pair sends to. NULL if `path` is well formed, also if it leads
 * nowhere; else what is wrong with it.
 */
const char *vn_qp_connect(struct vn_qp *qp, const struct vn_path *path);
/* The same with the path and the rest of INIT2RTR and RTR2RTS, which are in qp->qpc. */
const char *vn_qp_route(struct vn_qp *qp);

struct vn_cq *vn_cq_new(struct vn_context *ctx);
void vn_cq_free(struct vn_cq *cq);
/* A completion of `op`; syndrome 0: success. */
void vn_cq_complete(struct vn_qp *qp, const struct vn_op *op, uint8_t syndrome, uint8_t vendor);

/* A completion that no work has led to; one of a receive uses up the oldest. */
void vn_cq_invent(struct vn_cq *cq, const struct ibv_wc *wc);

/* The oldest receive of the queue pair is used up; its completion has these fields of `what`. */
void vn_cq_receive(struct vn_qp *qp, const struct ibv_wc *what);

/* ---- command buffers: what the decoders share. Offsets are bits, as in the PRM ---- */

enum vn_opcode {
	VN_QUERY_HCA_CAP = 0x100,
	VN_CREATE_CQ = 0x400,
	VN_CREATE_QP = 0x500,
	VN_RST2INIT = 0x502,
	VN_INIT2RTR = 0x503,
	VN_RTR2RTS = 0x504,
	VN_RTS2RTS = 0x505,
	VN_2ERR = 0x507,
	VN_QUERY_QP = 0x50b,
	VN_QUERY_LAG = 0x842
};

/* Status of a command (PRM, "Command return status"). */
enum vn_status {
	VN_ST_OK = 0,
	VN_ST_BAD_OP = 0x2,
	VN_ST_BAD_PARAM = 0x3,
	VN_ST_BAD_RESOURCE = 0x5,
	VN_ST_BAD_INDEX = 0xa,
	VN_ST_NO_RESOURCES = 0xf,
	VN_ST_BAD_QP_STATE = 0x10,
	VN_ST_BAD_INPUT_LEN = 0x50,
	VN_ST_BAD_OUTPUT_LEN = 0x51
};

struct vn_field {
	uint16_t bit, width;
};

struct vn_cmd {
	struct vn_context *ctx;
	const uint8_t *in;
	size_t inlen;
	uint8_t *out;
	size_t outlen;
	const char *name;
	uint8_t status;
	uint32_t syndrome;
};

#define VN_COUNT(a) (sizeof(a) / sizeof(*(a)))

/* Records why the command fails; returns false. The syndrome is the line that decided. */
#define VN_REFUSE(cmd, code, ...) vn_refuse(cmd, code, __LINE__, __VA_ARGS__)
bool vn_refuse(struct vn_cmd *cmd, uint8_t status, int line, const char *fmt, ...)
	__attribute__((format(printf, 4, 5)));

#define VN_ECE_ASK 0x10000000u /* CREATE_QP: what can it do beyond the standard? */
/*
 * What a NIC can beyond the standard (ECE): flags, and in the lowest four bits a level, of which
 * firmware knows 0, 3 and 5. NICs with odd numbers have other firmware than those with even ones.
 */
uint32_t vn_ece_of(const struct vn_nic *nic);
/*
 * Takes the other end's word into *ece and replaces it by what both can: the flags of both and the
 * lower level. False: this firmware refuses it.
 */
bool vn_ece_reduce(const struct vn_nic *nic, uint32_t *ece);
struct vn_qp *vn_cmd_create_qp(struct vn_cmd *cmd);
bool vn_cmd_modify_qp(struct vn_cmd *cmd, struct vn_qp *qp, uint32_t opcode);
bool vn_cmd_query_qp(struct vn_cmd *cmd, struct vn_qp *qp);

/* ---- what libmlx5.so.1 asks of libibverbs.so.1 ---- */

/* MLX5DV_UAR_ALLOC_TYPE_NC_DEDICATED of later releases */
#define VN_UAR_NC_DEDICATED 0x80000000u

int vn_dv_is_supported(struct ibv_device *device);
struct ibv_context *vn_dv_open(struct ibv_device *device, const struct mlx5dv_context_attr *attr);
int vn_dv_init_obj(struct mlx5dv_obj *obj, uint64_t type);
struct mlx5dv_devx_umem *vn_dv_umem_reg(struct ibv_context *c,
					const struct mlx5dv_devx_umem_in *in);
int vn_dv_umem_dereg(struct mlx5dv_devx_umem *umem);
struct mlx5dv_devx_uar *vn_dv_alloc_uar(struct ibv_context *c, uint32_t flags);
void vn_dv_free_uar(struct mlx5dv_devx_uar *uar);
int vn_dv_query_eqn(struct ibv_context *c, uint32_t vector, uint32_t *eqn);
struct mlx5dv_devx_obj *vn_dv_create(struct ibv_context *c, const void *in, size_t inlen, void *out,
				     size_t outlen);
int vn_dv_object_cmd(struct mlx5dv_devx_obj *obj, bool query, const void *in, size_t inlen,
		     void *out, size_t outlen);
int vn_dv_destroy(struct mlx5dv_devx_obj *obj);
int vn_dv_query_lag_port(struct ibv_qp *ibv, uint8_t *port, uint8_t *active);
int vn_dv_modify_lag_port(struct ibv_qp *ibv, uint8_t port);
int vn_dv_general(struct ibv_context *c, const void *in, size_t inlen, void *out, size_t outlen);

/*
 * Memory of real GPUs, reached by copies through the driver. On the virtual cluster all memory is
 * plain, and nothing of this is used.
 *
 * Writes are queued on one stream per GPU, in order; vn_gpu_settle() waits for them. What is read
 * to be sent is copied ahead (vn_gpu_stage), many requests per wait. `region` is any address that
 * all accesses to one registered region have in common: copies do not cross the border between two.
 */

struct vn_memory;
struct vn_gpu;
struct ep_mlx5_cqe;

/*
 * 0: plain memory; 1: device memory, attached; negative: errno. `queue`: a NIC would keep queues.
 */
int vn_gpu_attach(struct vn_memory *m, bool queue);
/* If libvcluster is in this process: does it say that this is the memory of a device? */
bool vn_is_virtual_device(const void *p);
void vn_gpu_detach(struct vn_memory *m);

/* At once, after all that was queued. */
void vn_gpu_read(struct vn_gpu *gpu, uint8_t *to, const uint8_t *from, uint32_t bytes);
uint32_t vn_gpu_read32(struct vn_gpu *gpu, const uint8_t *from);
/* A copy that holds until the next call for this GPU. */
const uint8_t *vn_gpu_fetch(struct vn_gpu *gpu, const uint8_t *from, uint32_t bytes);

/* Is there a driver, and with it real GPUs? */
bool vn_gpu_driver(void);

/* Is anything attached? */
bool vn_gpu_any(void);

/* Queued. */
void vn_gpu_write(struct vn_gpu *gpu, const void *region, uint8_t *to, const uint8_t *from,
		  uint32_t bytes);
void vn_gpu_write_cqe(struct vn_gpu *gpu, uint8_t *to, const struct ep_mlx5_cqe *cqe);
void vn_gpu_settle(void);

/* A copy that can be used after vn_gpu_staged() and until vn_gpu_unstage(); NULL: no room. */
uint8_t *vn_gpu_stage(struct vn_gpu *gpu, const void *region, const uint8_t *from, uint32_t bytes);
void vn_gpu_staged(void);
void vn_gpu_unstage(struct vn_gpu *gpu, uint8_t *staged);

/* ---- memory as the bus sees it: when, in what order and in what pieces data arrives ---- */

void vn_place(struct vn_nic *nic, struct vn_mr *mr, uint8_t *to, const uint8_t *from, uint32_t len,
	      struct vn_link *link, const struct vn_packet *answer);
void vn_place_flush(struct vn_nic *nic);
bool vn_place_some(struct vn_nic *nic);
/*
 * Memory of GPUs: what is written there, and atomics, are done for all packets of a turn together.
 * vn_place_settle() sends the answers when all of it is there.
 */
void vn_place_defer(struct vn_link *link, const struct vn_packet *answer);
void vn_place_atomic(struct vn_link *link, const struct vn_packet *answer,
		     const struct vn_packet *request, struct vn_mr *mr, uint8_t *at);
bool vn_place_settle(void);
/* These bytes are read or written next: atomics on them that came before go first. */
void vn_deferred_before(const uint8_t *at, uint32_t len);
/* What the NIC reads to send it: valid in this turn of the thread only. */
const uint8_t *vn_payload(struct vn_mr *mr, const uint8_t *at, uint32_t len);
void vn_store(struct vn_mr *mr, uint8_t *to, const uint8_t *from, uint32_t len);
/* In plain memory. Returns the old value. */
uint64_t vn_atomic(const struct vn_packet *p, struct vn_mr *mr, uint8_t *at);

/* ---- faults by script ---- */

/* A work request was fetched: may fail or stop it. */
void vn_fault_op(struct vn_qp *qp, struct vn_op *op);
/* A packet is about to be sent: true if it is not to be sent now (lost, or later). */
bool vn_fault_packet(struct vn_qp *qp, struct vn_op *op, uint32_t pkt);
/* A packet goes out: true if the network keeps it for a while, and the NIC hears nothing of it. */
bool vn_fault_stray(struct vn_qp *qp, struct vn_op *op, const struct vn_packet *p,
		    const uint8_t *payload);
/* An answer has come: true if it was lost. */
bool vn_fault_unheard(struct vn_qp *qp, struct vn_op *op);
/* Time passes: ports come back, late packets go out, the script is read again. */
bool vn_fault_run(void);
/* When vn_fault_run has to be called again; UINT64_MAX: no matter. */
uint64_t vn_fault_due(void);

/* ---- bonds: which member of the port a packet leaves by, and how much each one has sent ---- */

/* For a transition that names a member: whether it may, and which one. */
bool vn_lag_check(struct vn_cmd *cmd, const struct vn_qp *qp, uint32_t opcode);
/* The kernel gives queue pairs of verbs to the members in turn. */
void vn_lag_turn(struct vn_qp *qp);
void vn_lag_sent(struct vn_qp *qp, uint32_t bytes);

/* ---- the requester's side of queue pairs ---- */

bool vn_req_run(struct vn_qp *qp);
bool vn_req_fetch(struct vn_qp *qp);
void vn_req_transmit(struct vn_qp *qp, struct vn_op *op, uint32_t pkt);
void vn_req_lost(struct vn_qp *qp, uint64_t idx, uint32_t pkt);
void vn_req_link_lost(struct vn_link *link);
void vn_req_answer(const struct vn_packet *p, const uint8_t *payload);
struct vn_op *vn_op_of(struct vn_qp *qp, uint64_t idx);
void vn_op_drop(struct vn_op *op);

/* ---- the responder's side of queue pairs ---- */

/* A packet that came for a NIC of this process; answers go back through `link`. */
void vn_resp_packet(struct vn_link *link, const struct vn_packet *p, const uint8_t *payload);

/* An atomic in memory of a GPU has found this. */
void vn_resp_atomic_done(const struct vn_packet *answer, uint64_t old);

/* ---- send queues in the program's memory ---- */

/* Looks at all doorbells; true if any has changed. *watched: some queue can be rung by one. */
bool vn_sq_doorbells(bool *watched);
/*
 * Before a DevX queue pair is destroyed: its doorbell record must say what its last doorbell said.
 */
void vn_sq_doorbell_last(struct vn_qp *qp);
/* The next WQE of a DevX queue into *op. */
void vn_sq_fetch(struct vn_qp *qp, struct vn_op *op);
/*
 * The request is over: its slot is filled with a pattern, so that a later use unwritten is noticed.
 */
void vn_sq_retire(struct vn_qp *qp, const struct vn_op *op);

/* ---- what the NIC has done and how long it took: VC_NIC_STATS=1 prints it at the end ---- */

enum vn_stat {
	VN_STAT_TURN,     /* the thread found work */
	VN_STAT_NAP,      /* it slept */
	VN_STAT_MESSAGE,  /* a request, from its fetch to its end */
	VN_STAT_RESEND,   /* a packet was sent again */
	VN_STAT_COPY_OUT, /* a copy from GPU memory was issued */
	VN_STAT_COPY_IN,  /* a copy to GPU memory */
	VN_STAT_WORD,     /* a word stored in GPU memory */
	VN_STAT_WAIT_OUT, /* the thread waited for copies from GPU memory */
	VN_STAT_WAIT_IN,  /* for copies to it */
	VN_STAT_FETCH,    /* it read GPU memory and waited for it */
	VN_STAT_PEEK,     /* it asked for a word of GPU memory */
	VN_STATS
};

/* What is counted alone. */
enum vn_count {
	VN_COUNT_DOORBELL, /* of GPU threads of the virtual cluster */
	VN_COUNT_ROW,      /* a WRITE of bytes in memory */
	VN_COUNT_WORD,     /* a WRITE of bytes in the WQE: signals, and words of protocols */
	VN_COUNT_ATOMIC,
	VN_COUNT_OTHER,    /* a READ, or nothing */
	VN_COUNT_HELD,     /* requests that must wait until others are acknowledged */
	VN_COUNT_REPORTED, /* WQEs that ask for a completion */
	VN_COUNT_PEAK,     /* most WQEs that one queue pair had handed over and not completed */
	VN_COUNTS
};

/* Time at which something begins, for vn_stat(); 0 if nobody wants to know. */
static inline uint64_t vn_stat_start(void)
{
	return vn_config.stats ? vn_now() : 0;
}

/* It has ended. One thread at a time, which holds the lock. */
void vn_stat(enum vn_stat stat, uint64_t start, uint64_t bytes);

/* One more; any thread. */
void vn_count(enum vn_count count);

/* The peak is at least that. One thread at a time. */
void vn_count_peak(uint64_t wqes);

/* ---- what the NIC asks of thread.c, if vn_config.step ---- */

/* Must the queue's next WQE wait? */
bool vn_step_stops(const struct vn_qp *qp);
/* The request was taken up. */
void vn_step_fetched(struct vn_qp *qp, struct vn_op *op);
void vn_step_wqe(const struct vn_qp *qp, uint64_t idx, const struct ep_mlx5_wqe *wqe);
void vn_step_write(const uint8_t *at, const uint8_t *data, uint32_t bytes);
/* A word was stored. */
void vn_step_placed(void);
bool vn_step_reports(const struct ibv_wc *wc);
/* Does all there is to do. */
void vn_step_settle(void);
/* Whether a call that makes something fails; errno is set then. */
bool vn_step_fails(void);
/* 0, or with what a change of a queue pair's state is refused. */
int vn_step_refusal(enum ibv_qp_state to);
void vn_step_acked(void);

/* ---- the thread that serves all NICs of the process ---- */

/* With the first context: starts the wire and the thread. 0 or an errno. */
int vn_thread_start(void);
/* Wakes the thread. */
void vn_thread_wake(void);

/* ---- what ibv_context.ops points to ---- */

int vn_poll_cq(struct ibv_cq *cq, int n, struct ibv_wc *wc);
int vn_post_send(struct ibv_qp *qp, struct ibv_send_wr *wr, struct ibv_send_wr **bad);
int vn_post_recv(struct ibv_qp *qp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad);

/* ---- the wire: TCP between processes, a list within one ---- */

int vn_wire_start(void);
bool vn_wire_run(bool receive);
struct vn_link *vn_link_get(struct vn_nic *nic, uint32_t ip, uint32_t instance);
bool vn_link_full(const struct vn_link *link);
void vn_link_send(struct vn_link *link, const struct vn_packet *p, const uint8_t *payload);

#endif
