/* SPDX-License-Identifier: Apache-2.0 */
/* Queue pairs of reliable connections that verbs make, whoever posts to them. */
#ifndef EP_RDMA_RC_QP_H
#define EP_RDMA_RC_QP_H

#include "rdma/env.h"
#include "rdma/nic.h"

#define EP_RC_HOPS 255
#define EP_RC_RNR_TIMER 12 /* 0.64 ms */
#define EP_RC_RNR_RETRY 7  /* for ever */
#define EP_RC_LOG_READS 4  /* most READs and atomics in flight, logarithm */

/* Room of a queue pair. A device's limits hold for the smallest work requests: it may get less. */
struct ep_rc_room {
	uint32_t sq, rq, inline_bytes;
};

/* How packets go from one port to another. Queue pairs begin at their port's psn plus their number. */
struct ep_rc_path {
	const struct ep_nic_end *from, *to;
	uint8_t tc;        /* traffic class, */
	uint8_t sl;        /* service level */
	uint8_t log_reads; /* READs and atomics in flight, logarithm; both ends may have to have fewer */
	bool once;         /* what times out is not tried again */
	uint32_t gid_index; /* of `from` */
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

/* Each changes the state of a queue pair, with ep_rc_retry(), and returns 0 or an errno value. */
int ep_rc_qp_init(const struct ep_nic *nic, const struct ep_ib_env *env, struct ibv_qp *qp,
		  unsigned int access);
int ep_rc_qp_to_rtr(const struct ep_nic *nic, const struct ep_ib_env *env, struct ibv_qp *qp,
		    const struct ep_rc_path *path, uint32_t remote);
int ep_rc_qp_to_rts(const struct ep_nic *nic, const struct ep_ib_env *env, struct ibv_qp *qp,
		    const struct ep_rc_path *path);

/* Returns the logarithm of READs and atomics that a requester at `from` may have in flight to `to`. */
uint32_t ep_rc_log_reads(const struct ep_nic *from, const struct ep_nic_end *to, uint32_t most);

#endif
