/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A RoCE port may be a bond of several (mlx5_bond_0). Where it selects members by queue pair, one that
 * names none is left to firmware, which may put all of them on the same member: half of the link is idle
 * then. The kernel driver gives members in turn to queue pairs of verbs. DevX queue pairs pass it by, and
 * get theirs here.
 */
#include <stdio.h>
#include <string.h>
#include "core/log.h"
#include "gda/command.h"
#include "gda/lag.h"
#include "gda/prm.h"
#include "gda/state.h"

void ep_gda_lag_query(struct ep_gda_nic *nic, const unsigned char *caps)
{
	unsigned char in[EP_PRM_QUERY_LAG_BYTES] = { 0 }, out[EP_PRM_QUERY_LAG_BYTES] = { 0 };
	uint32_t ports = ep_prm_get(caps, EP_PRM_CAP_NUM_LAG_PORTS);
	struct ep_reason why;
	int error;

	memset(&nic->lag, 0, sizeof(nic->lag));
	if (ports < 2 || nic->base.end.link_layer != IBV_LINK_LAYER_ETHERNET) {
		return;
	}
	ep_prm_set(in, EP_PRM_OPCODE, EP_PRM_CMD_QUERY_LAG);
	error = nic->base.dv->mlx5dv_devx_general_cmd(nic->base.ctx, in, sizeof(in), out,
						      sizeof(out));
	if (!ep_gda_command("QUERY_LAG", error, out, &why)) {
		EP_INFO(EP_LOG_NET, "%s: whether its port is a bond is not known: %s",
			nic->base.name, why.text);
		return;
	}
	if (!ep_prm_get(out, EP_PRM_LAG_STATE)) {
		return;
	}
	nic->lag = (struct ep_gda_lag){
		.ports = ports,
		.by_queue = ep_prm_get(out, EP_PRM_LAG_PORT_SELECT_MODE) == EP_PRM_LAG_BY_QUEUE &&
			    ep_prm_get(caps, EP_PRM_CAP_LAG_TX_PORT_AFFINITY),
		.init2rtr = ep_prm_get(caps, EP_PRM_CAP_INIT2_LAG_TX_PORT_AFFINITY),
		.rts2rts = ep_prm_get(caps, EP_PRM_CAP_RTS2RTS_LAG_TX_PORT_AFFINITY),
	};
}

/*
 * Queues of a peer take members in turn, and peers begin at different ones: neighbours do, and so do ranks
 * that have the same place in nodes of this one's size, to which high throughput sends.
 */
uint32_t ep_gda_lag_port(const struct ep_gda_queue *queue)
{
	uint32_t peer = (uint32_t)queue->peer, node = queue->gda->node;

	if (!queue->nic->lag.by_queue) {
		return 0;
	}
	return 1 + (queue->index / (uint32_t)queue->gda->nnics + peer % node + peer / node) %
			   queue->nic->lag.ports;
}

void ep_gda_lag_describe(const struct ep_gda *g, const struct ep_gda_nic *nic, char *text,
			 size_t size)
{
	const struct ep_gda_queue *q = &g->queue[nic->first];
	uint32_t count[16] = { 0 }; /* lag_tx_port_affinity has 4 bits */
	size_t n;

	text[0] = '\0';
	if (!nic->lag.ports) {
		return;
	}
	n = (size_t)snprintf(text, size, " bond of %u ports (", nic->lag.ports);
	if (!nic->lag.by_queue) {
		snprintf(text + n, size - n, "by a hash of headers)");
		return;
	}
	for (uint32_t i = 0; i < nic->queues; i++) {
		count[q[i].lag & 15]++;
	}
	for (uint32_t p = 1; p <= nic->lag.ports && n < size; p++) {
		n += (size_t)snprintf(text + n, size - n, "%s%u", p > 1 ? ", " : "", count[p]);
	}
	if (count[0] && n < size) {
		n += (size_t)snprintf(text + n, size - n, ", and %u of no port", count[0]);
	}
	if (n < size) {
		snprintf(text + n, size - n, " queue pairs)");
	}
}
