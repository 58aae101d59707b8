/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs of reliable connections that verbs make, whoever posts to them. */
#ifndef EP_RDMA_RC_QP_H
#define EP_RDMA_RC_QP_H

#include "rdma/env.h"
#include "rdma/nic.h"
#include "rdma/verbs.h"

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

/* How packets go from one port to another. Queue pairs begin at their port's psn plus their number. */
struct ep_rc_path {
	const struct ep_nic_end *from, *to;
	uint8_t tc;        /* traffic class, */
	uint8_t sl;        /* service level */
	uint8_t log_reads; /* READs and atomics in flight, logarithm; both ends may have to have fewer */
	bool once;         /* what times out is not tried again */
	uint32_t gid_index; /* of `from` */
	struct ep_ece ece;  /* of the other end, as it came; */
	bool ece_agreed;    /* of both ends: the other end has it already */
};

/*
 * Creates a queue pair in state RESET. Without room for inline data it does without; then it halves the
 * depths, down to `least`. Writes into *room what it got. NULL: errno, and *room is what failed last.
 */
struct ibv_qp *ep_rc_qp_create(const struct ep_nic *nic, struct ibv_cq *cq, uint32_t least,
			       struct ep_rc_room *room);

/*
 * Waits, and returns true, if a call that has failed so many times is to be made again. The kernel may
 * have to ask for the peer's hardware address (ARP), and the answer may be lost. So what times out is
 * tried again, as NCCL_IB_MQP_RETRY_CNT, NCCL_IB_MQP_RETRY_SLEEP_MSEC and NCCL_IB_MQP_RETRY_ALL allow.
 */
bool ep_rc_retry(const struct ep_nic *nic, const struct ep_ib_env *env, int error, int failures);

/* Reads the extensions of a queue pair: the NIC's, and those of both ends once it knows its peer. */
void ep_rc_ece_query(const struct ep_nic *nic, const struct ep_ib_env *env, struct ibv_qp *qp,
		     struct ep_ece *ece);
/* Returns what the peer has, or nothing where the two NICs are not of one maker. */
struct ep_ece ep_rc_ece_received(const struct ep_ece *own, const struct ep_ece *peer);
/* Returns what to append to an error of a NIC that was given extensions of both ends. */
#define EP_RC_ECE_TEXT 128
const char *ep_rc_ece_print(uint32_t options, bool agreed, char text[EP_RC_ECE_TEXT]);

/* Each changes the state of a queue pair, with ep_rc_retry(), and returns 0 or an errno value. */
int ep_rc_qp_init(const struct ep_nic *nic, const struct ep_ib_env *env, struct ibv_qp *qp,
		  unsigned int access);
/*
 * One end gets the other's extensions as they came. Its firmware reduces them to what both can,
 * and the other end gets that. Where firmware refuses them, this connection keeps to the standard.
 */
int ep_rc_qp_to_rtr(const struct ep_nic *nic, const struct ep_ib_env *env, struct ibv_qp *qp,
		    const struct ep_rc_path *path, uint32_t remote);
int ep_rc_qp_to_rts(const struct ep_nic *nic, const struct ep_ib_env *env, struct ibv_qp *qp,
		    const struct ep_rc_path *path);

/* Returns the logarithm of READs and atomics that a requester at `from` may have in flight to `to`. */
uint32_t ep_rc_log_reads(const struct ep_nic *from, const struct ep_nic_end *to, uint32_t most);

/* ---- why a NIC failed a work request, in words ---- */

struct ep_syndrome {
	uint8_t code;   /* MLX5_CQE_SYNDROME_* */
	uint8_t status; /* enum ibv_wc_status */
	const char *text;
	const char *next; /* what to do; NULL: the text has all */
};

/* NULL: unknown. */
const struct ep_syndrome *ep_syndrome_find(uint8_t code);
uint8_t ep_syndrome_of_status(enum ibv_wc_status status);

#endif
