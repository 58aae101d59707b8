/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queue pairs that are none, for the plugin's objects: the wire is a copy within this process, made by
 * whoever posts.
 */
#ifndef TEST_NET_FAKE_H
#define TEST_NET_FAKE_H

#include "net/comm.h"
#include "support/check.h"

#define FAKE_QPS 16
#define FAKE_WCS 4096

struct fake_cq {
	struct ibv_cq ibv;
	struct ibv_wc wc[FAKE_WCS];
	uint32_t put, got;
};

struct fake_qp {
	struct ibv_qp ibv;
	struct fake_qp *peer;
	uint64_t rq[FAKE_WCS];
	uint32_t posted, used;
	struct ibv_qp_attr init, rtr, rts;
	int rtr_mask, rts_mask;
	struct ibv_ece ece; /* what it was told, and how often, and how often too late */
	int ece_set, ece_late;
};

extern struct fake_qp fake_qps[FAKE_QPS];
extern uint32_t fake_made; /* of them */
/* What verbs do: no ECE; no further queue pair; completions of slots, READs or WRITEs are late. */
extern bool fake_no_ece, fake_no_qp, fake_no_slots, fake_no_reads, fake_no_writes;
extern struct ibv_cq *fake_overrun; /* an event of it waits to be heard; NULL: none */
extern int fake_acked;              /* events */
/* From which call on those that make something fail; 0: none does. How much is made and left. */
extern int fake_fails, fake_left;
/* Devices have failed: they refuse commands, and an event tells of it until it is heard. */
extern bool fake_fatal;
/* So many changes of queue pairs' states fail with this error; how often one was tried. */
extern int fake_refusals, fake_refusal, fake_modified;

/* Before anything else. */
void fake_begin(void);
void fake_complete(struct ibv_cq *cq, struct ibv_wc wc);

/* A device that somebody holds already: it is not opened. */
struct ep_net_nic *fake_device(bool ethernet, uint8_t mtu);
void fake_device_free(struct ep_net_nic *one);

/* A sender and a receiver. */
void pair_of_routes(struct ep_net_nic *from, struct ep_net_nic *to, uint32_t routes, uint32_t nqps,
		    int tc, struct ep_net_comm *pair[2]);
void pair_make(struct ep_net_nic *from, struct ep_net_nic *to, uint32_t nqps, int tc,
	       struct ep_net_comm *pair[2]);
void pair_free(struct ep_net_comm *pair[2]);

#endif
