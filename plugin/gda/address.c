/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The model is what the kernel driver makes of queue pairs of verbs:
 *
 *  - It keeps the entry of the GID table that they send with, also if the interface loses the address. Of DevX
 *    queue pairs it knows nothing: the entry would be cleared under them. An address handle refers to the entry, too;
 *    one is kept for as long as the queue pairs.
 *  - It finds out the peer's hardware address once, when they are connected, and so does this. Where another machine
 *    or port has the address later (a virtual address that moves, a NIC that was replaced), packets go nowhere until
 *    the retries are over. Queue pairs cannot be given another address; the failure names this.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "core/log.h"
#include "gda/address.h"
#include "gda/state.h"
#include "rdma/rc_qp.h"

/* `env` NULL: what times out is not tried again. */
static struct ibv_ah *ep_gda_address_handle(const struct ep_gda_nic *nic,
					    const struct ep_ib_env *env, const uint8_t gid[16],
					    struct ep_reason *why)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = (uint8_t)nic->base.port };
	char text[EP_GID_TEXT];
	struct ibv_ah *ah;

	memcpy(attr.grh.dgid.raw, gid, sizeof(attr.grh.dgid.raw));
	attr.grh.sgid_index = (uint8_t)nic->base.gid_index;
	attr.grh.hop_limit = EP_RC_HOPS;
	attr.grh.traffic_class = nic->base.tc;
	ah = nic->base.v->ibv_create_ah(nic->base.pd, &attr);
	for (int i = 1; !ah && env && ep_rc_retry(&nic->base, env, errno, i); i++) {
		ah = nic->base.v->ibv_create_ah(nic->base.pd, &attr);
	}
	if (!ah) {
		ep_reason_set(why, "%s:%d does not find the path to %s: %s", nic->base.name,
			      nic->base.port, ep_gid_print(gid, text), strerror(errno));
	}
	return ah;
}

bool ep_gda_address_resolve(const struct ep_gda_nic *nic, const struct ep_ib_env *env,
			    const uint8_t gid[16], uint8_t mac[6], struct ep_reason *why)
{
	struct ibv_ah *ah = ep_gda_address_handle(nic, env, gid, why);
	struct mlx5dv_obj obj = { 0 };
	struct mlx5dv_ah dv = { 0 };
	char text[EP_GID_TEXT];
	int error;

	if (!ah) {
		return false;
	}
	obj.ah.in = ah;
	obj.ah.out = &dv;
	error = nic->base.dv->mlx5dv_init_obj(&obj, MLX5DV_OBJ_AH);
	if (!error) {
		memcpy(mac, dv.av->rmac, 6);
	}
	nic->base.v->ibv_destroy_ah(ah);
	return !error || ep_reason_set(why, "%s:%d does not report the hardware address of %s: %s",
				       nic->base.name, nic->base.port, ep_gid_print(gid, text),
				       strerror(error));
}

bool ep_gda_address_hold(struct ep_gda_nic *nic, struct ep_reason *why)
{
	if (nic->base.end.link_layer == IBV_LINK_LAYER_ETHERNET && !nic->held) {
		nic->held = ep_gda_address_handle(nic, NULL, nic->base.end.gid, why);
		return nic->held != NULL;
	}
	return true;
}

void ep_gda_address_release(struct ep_gda_nic *nic)
{
	if (nic->held) {
		nic->base.v->ibv_destroy_ah(nic->held);
		nic->held = NULL;
	}
}

void ep_gda_address_check(struct ep_gda_nic *nic)
{
	char was[EP_GID_TEXT], is[EP_GID_TEXT];
	union ibv_gid now;

	memset(&now, 0, sizeof(now));
	if (nic->base.v->ibv_query_gid(nic->base.ctx, (uint8_t)nic->base.port,
				       (int)nic->base.gid_index, &now) != 0 ||
	    memcmp(now.raw, nic->base.end.gid, sizeof(now.raw)) == 0) {
		return;
	}
	EP_WARN("%s:%d: GID %u, which queue pairs of a group have, was %s and is %s now; they go on with the "
		"old one, which works as long as packets find back to it: see what changes addresses "
		"(NetworkManager: ignore-carrier)",
		nic->base.name, nic->base.port, nic->base.gid_index,
		ep_gid_print(nic->base.end.gid, was), ep_gid_print(now.raw, is));
	__atomic_store_n(&nic->address_gone, 1, __ATOMIC_RELAXED);
}

bool ep_gda_address_moved(const struct ep_gda_queue *queue, char *text, size_t size)
{
	const uint8_t *was = queue->mac;
	char gid[EP_GID_TEXT];
	struct ep_reason why;
	uint8_t now[6];

	if (queue->verbs || queue->nic->base.end.link_layer != IBV_LINK_LAYER_ETHERNET ||
	    !ep_gda_address_resolve(queue->nic, NULL, queue->peer_gid, now, &why) ||
	    memcmp(was, now, sizeof(now)) == 0) {
		return false;
	}
	snprintf(
		text, size,
		"%s has moved from %02x:%02x:%02x:%02x:%02x:%02x to %02x:%02x:%02x:%02x:%02x:%02x: "
		"make the group anew",
		ep_gid_print(queue->peer_gid, gid), was[0], was[1], was[2], was[3], was[4], was[5],
		now[0], now[1], now[2], now[3], now[4], now[5]);
	return true;
}
