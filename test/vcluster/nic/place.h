/* SPDX-License-Identifier: Apache-2.0 */
/* Memory as the bus sees it: when, in what order and in what pieces data arrives. */
#ifndef VN_PLACE_H
#define VN_PLACE_H

#include "nic/memory.h"
#include "nic/packet.h"

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
/* The bits of `boundary` are the top bits of fields; nothing is carried from one field to the next. */
uint64_t vn_masked_add(uint64_t a, uint64_t b, uint64_t boundary);
/* In plain memory. Returns the old value. */
uint64_t vn_atomic(const struct vn_packet *p, struct vn_mr *mr, uint8_t *at);

#endif
