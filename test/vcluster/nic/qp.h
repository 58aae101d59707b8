/* SPDX-License-Identifier: Apache-2.0 */
/* Completion queues and queue pairs, made by DevX commands or by verbs. */
#ifndef VN_QP_H
#define VN_QP_H

#include "device/mlx5/mlx5_layout.h"
#include "nic/memory.h"
#include "nic/step.h"

#define VN_WINDOW 64  /* operations of a queue pair that are under way */
#define VN_PACKETS 32 /* packets of an operation that are under way: bits of a mask */
#define VN_PSN_WINDOW 1024
#define VN_PSN_MASK 0xffffffu
#define VN_INLINE 64
#define VN_OP_WRITE_IMM 0x09 /* beside EP_MLX5_OP_*; queues of verbs only */
#define VN_REPLAY 64         /* results of atomics that a responder remembers */

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
	bool *invented; /* completions that end no request */
	bool overrun, armed;
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
	uint64_t add, boundary; /* atomics; compare and swap: swap, compare; immediate data */
	uint64_t since;         /* for statistics: when it was fetched */
	uint32_t rkey, lkey, len;
	uint32_t psn; /* of its first packet */
	uint32_t npkts;
	uint32_t base;   /* all packets below this one are acknowledged */
	uint32_t sent;   /* bit i: packet base + i was sent */
	uint32_t acked;  /* bit i: packet base + i was acknowledged */
	uint32_t placed; /* READ: packets whose data has come */
	uint32_t rnr;    /* how often the other end had no receive posted */
	uint8_t opcode, opmod, fm, syndrome, vendor;
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
	bool sig_all;

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
void vn_qp_reset(struct vn_qp *qp);
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

#endif
