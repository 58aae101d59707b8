/* SPDX-License-Identifier: Apache-2.0 */
/* The responder's side of queue pairs. */
#ifndef VN_RESP_H
#define VN_RESP_H

#include "nic/packet.h"
#include "nic/qp.h"

/* A packet that came for a NIC of this process; answers go back through `link`. */
void vn_resp_packet(struct vn_link *link, const struct vn_packet *p, const uint8_t *payload);

/* An atomic in memory of a GPU has found this. */
void vn_resp_atomic_done(const struct vn_packet *answer, uint64_t old);

#endif
