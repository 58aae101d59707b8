/* SPDX-License-Identifier: Apache-2.0 */
/* One connection, this rank's end: a queue pair by DevX (queue.c), or by verbs (verbs_queue.c). */
#ifndef EP_GDA_QUEUE_H
#define EP_GDA_QUEUE_H

#include "gda/gda_nic.h"

/* The cause of a queue's failure, as far as it is known. */
struct ep_gda_cause {
	uint32_t status; /* enum ep_mlx5_status; 0: none known */
	uint8_t syndrome, vendor;
	bool overwritten; /* syndrome is that of a flushed WQE and the NIC does not report more */
	bool index_known;
	uint16_t index;
	uint64_t waited_ns;
	const char *note; /* static text instead of a syndrome; NULL: none */
};

struct ep_gda_queue {
	struct ep_gda *gda;
	int peer;
	uint32_t index; /* among those with this peer */
	struct ep_gda_nic *nic;
	int remote_nic;
	uint32_t qpn, remote_qpn, cqn;
	uint32_t slot; /* in the queue_memory */
	uint32_t mtu;
	uint8_t mac[6]; /* RoCE: hardware address that its packets go to, in DevX queue pairs */
	uint8_t peer_gid[16];
	uint32_t tier; /* enum ep_mlx5_tier: of this end as read back, then of both together */
	bool atomics;  /* the same */
	uint32_t ece;  /* what both ends can beyond the standard; 0: nothing */
	uint32_t lag;  /* member of the bond that it sends by, as read back; 0: not known */
	struct mlx5dv_devx_obj *cq_obj, *qp_obj;
	struct ibv_qp *verbs;
	struct ep_mlx5_qp *shadow; /* what the device has been given */
	struct ep_mlx5_error *record;
	/* Where queues lie in host memory. */
	struct ep_mlx5_wqe *sq;
	struct ep_mlx5_cqe *cqe;
	struct ep_mlx5_dbr *dbr;
	uint64_t *word; /* index behind the last WQE, written by kernels (EP_MLX5_HANDOVER_INDEX) */
	/* The proxy's thread only: WQEs below have been handed over, and have completed. */
	uint64_t posted, completed;
	uint32_t max_wr;  /* of them under way at once, in a verbs queue */
	const char *note; /* what the proxy's thread knows of the failure; atomic, static text */
	uint32_t failed;  /* a failure was made known; atomic */
	uint32_t vague;   /* but not its cause; atomic */
	uint8_t syndrome; /* of the failure; 0: none known; under `lock` */
	bool address_checked; /* whether the peer has another address; the same */
	uint32_t halted;      /* by ep_gda_queue_halt(); atomic */
	bool broken;          /* the proxy's thread: no completion follows any more */
	/* late.c, under `ask`: */
	uint16_t handed;  /* where kernels were in the last round */
	uint8_t patience; /* of the next question, if nothing moves; 0: nothing is late */
	bool due;
	uint64_t ask_at;
	uint64_t
		suspect; /* when the NIC first reported, with no reason, that it failed; under `ask` */
};

bool ep_gda_queue_create(struct ep_gda_queue *queue, struct ep_reason *why);
bool ep_gda_queue_connect(struct ep_gda_queue *queue, const struct ep_nic_end *end,
			  struct ep_reason *why);
/* Nothing of the queue moves afterwards: what was posted is flushed, what arrives is refused. */
void ep_gda_queue_halt(struct ep_gda_queue *queue);
void ep_gda_queue_destroy(struct ep_gda_queue *queue);
/* State of the queue pair; if the NIC says why it failed, that too. False: no answer. */
bool ep_gda_queue_query(struct ep_gda_queue *queue, uint32_t *state, struct ep_gda_cause *cause);

/* The same for plain verbs. */
bool ep_gda_verbs_cq(struct ep_gda *g, struct ep_gda_nic *nic, struct ep_reason *why);
bool ep_gda_verbs_create(struct ep_gda_queue *queue, struct ep_reason *why);
bool ep_gda_verbs_connect(struct ep_gda_queue *queue, const struct ep_nic_end *end,
			  struct ep_reason *why);
void ep_gda_verbs_halt(struct ep_gda_queue *queue);
bool ep_gda_verbs_query(struct ep_gda_queue *queue, uint32_t *state);

#endif
