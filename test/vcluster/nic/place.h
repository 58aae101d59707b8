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
/* Answers to what was written to GPUs: vn_place_settle sends them when the data is there. */
void vn_place_defer(struct vn_link *link, const struct vn_packet *answer, uint64_t payload);
bool vn_place_settle(void);
/* What the NIC reads to send it: valid in this turn of the thread only. */
const uint8_t *vn_payload(struct vn_mr *mr, const uint8_t *at, uint32_t len);
void vn_store(struct vn_mr *mr, uint8_t *to, const uint8_t *from, uint32_t len);
/* Returns the old value. */
uint64_t vn_atomic(const struct vn_packet *p, struct vn_mr *mr, uint8_t *at);

#endif
