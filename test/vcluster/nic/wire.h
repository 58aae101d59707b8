/* SPDX-License-Identifier: Apache-2.0 */
/* The wire: TCP between processes, a list within one. */
#ifndef VN_WIRE_H
#define VN_WIRE_H

#include "nic/device.h"
#include "nic/packet.h"

int vn_wire_start(void);
bool vn_wire_run(bool receive);
struct vn_link *vn_link_get(struct vn_nic *nic, uint32_t ip, uint32_t instance);
bool vn_link_full(const struct vn_link *link);
void vn_link_send(struct vn_link *link, const struct vn_packet *p, const uint8_t *payload);

#endif
