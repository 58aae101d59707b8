/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Single steps, for tests. With VC_NIC_STEP=1 the NIC has no thread: it works when it is told to,
 * or when ibv_poll_cq is called, which does all there is to do first; and it says what it sees.
 */
#ifndef VN_STEP_H
#define VN_STEP_H

#include <infiniband/verbs.h>
#include <stdbool.h>
#include <stdint.h>
#include "device/mlx5/mlx5_layout.h"

/*
 * What becomes of WQEs of a queue that commands made. Indices count from its making; UINT64_MAX:
 * none.
 */
struct vn_dv_script {
	uint64_t stuck_at;        /* nothing from this one on is looked at */
	uint64_t fail_at;         /* this one fails, */
	uint8_t syndrome, vendor; /* in this way */
};

struct vn_dv_seen {
	uint64_t handed;    /* WQEs that doorbells have handed over */
	uint64_t served;    /* of them, those that are over */
	uint64_t doorbells; /* looks that found a new one */
	/* most that were handed over, and no completion had said that they are over */
	uint64_t peak;
};

/* Called in a step, and must not step itself. */
struct vn_dv_watch {
	void *arg;
	/* a WQE as it is fetched, of a queue that commands made */
	void (*wqe)(void *arg, uint32_t qpn, uint64_t index, const struct ep_mlx5_wqe *wqe);
	/* what a WRITE is about to put at `at` */
	void (*write)(void *arg, const void *at, const void *data, uint32_t bytes);
	/*
	 * Bytes of a WRITE or of an atomic are in memory: each word for itself, as a poller may see
	 * it.
	 */
	void (*placed)(void *arg);
	/* Is this completion of verbs told? Else it never is. */
	bool (*tell)(void *arg, const struct ibv_wc *wc);
};

/* What calls of verbs do, and how often some were made. */
struct vn_dv_calls {
	/* from this one on those that make a queue, a queue pair or a region fail; 0: none does */
	int fails;
	int refusals, refusal; /* so many changes of queue pairs' states fail with this error */
	enum ibv_qp_state refused_state; /* of these only changes to this state; 0: to any */
	int modified;                    /* how often one was tried */
	int acked;                       /* events */
};

/* What a member of a bond has sent. */
struct vn_dv_member {
	uint64_t packets, bytes;
};

/* What a queue pair of verbs was told. */
struct vn_dv_attributes {
	struct ibv_qp_attr init, rtr, rts;
	struct ibv_ece ece;
	int ece_set;       /* how often that was tried */
	uint32_t receives; /* posted, ever */
};

/*
 * One turn, in which `most` WQEs are taken up at most; 0: any number. False: there was nothing to
 * do.
 */
bool vn_dv_step(uint32_t most);
void vn_dv_watch(const struct vn_dv_watch *watch);
void vn_dv_script(uint32_t qpn, const struct vn_dv_script *script);
void vn_dv_seen(uint32_t qpn, struct vn_dv_seen *seen);

struct vn_dv_calls *vn_dv_calls(void);
/*
 * How often firmware of this process was given the command; queries of queue pairs by verbs, too.
 */
uint64_t vn_dv_commands(uint32_t opcode);
/* Of both members of a NIC's bond, whose number is its device's. */
void vn_dv_members(int nic, struct vn_dv_member member[2]);
/* Objects of the device that are there. */
uint32_t vn_dv_live(struct ibv_context *ctx);
void vn_dv_attributes(struct ibv_qp *qp, struct vn_dv_attributes *told);
/*
 * A completion that no work has led to. One of a receive takes a receive of the queue pair that it
 * names.
 */
void vn_dv_complete(struct ibv_cq *cq, const struct ibv_wc *wc);
void vn_dv_event(struct ibv_context *ctx, enum ibv_event_type type, void *element);

#endif
