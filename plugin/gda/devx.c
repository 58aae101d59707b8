/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device reports by DevX commands: capabilities, the ports of a bond; and causes in words.
 * Needs no CUDA.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "core/log.h"
#include "gda/prm.h"
#include "gda/state.h"

const char *ep_gda_mode_name(enum ep_gda_mode mode)
{
	static const char *const names[EP_GDA_MODES] = {
		[EP_GDA_AUTO] = "auto",           [EP_GDA_GPU] = "gpu",
		[EP_GDA_GPU_HOST] = "gpu_host",   [EP_GDA_CPU_DB] = "cpu_db",
		[EP_GDA_CPU_PROXY] = "cpu_proxy",
	};

	return (unsigned int)mode < EP_GDA_MODES ? names[mode] : "unknown";
}

void ep_gda_cause_text(const struct ep_gda_queue *queue, const struct ep_gda_cause *c, char *text,
		       size_t size)
{
	const struct ep_syndrome *m = c->syndrome ? ep_syndrome_find(c->syndrome) : NULL;
	bool gone = c->syndrome == EP_MLX5_SYND_RETRY_EXCEEDED &&
		    __atomic_load_n(&queue->nic->address_gone, __ATOMIC_RELAXED);
	char what[128], at[32] = "";

	if (c->note) {
		snprintf(what, sizeof(what), "%s", c->note);
	} else if (c->syndrome) {
		snprintf(what, sizeof(what), "%s (syndrome 0x%02x, vendor 0x%02x%s)",
			 m ? m->text : "unknown failure", c->syndrome, c->vendor,
			 c->overwritten ? ", the cause was overwritten" : "");
	} else if (c->status == EP_MLX5_ERR_SLOT || c->status == EP_MLX5_ERR_COMPLETION) {
		snprintf(what, sizeof(what), "%s within %llu ms",
			 c->status == EP_MLX5_ERR_SLOT ? "no entry of the send queue became free"
						       : "work did not complete",
			 (unsigned long long)c->waited_ns / 1000000);
	} else {
		snprintf(what, sizeof(what), "its queue pair is in error state");
	}
	if (c->index_known) {
		snprintf(at, sizeof(at), ", WQE %u", c->index);
	}
	snprintf(text, size,
		 "RDMA with rank %d (%s) failed: %s on %s:%d, queue %u (QP 0x%06x)%s%s%s%s",
		 queue->peer, queue->gda->host[queue->peer], what, queue->nic->base.name,
		 queue->nic->base.port, queue->index, queue->qpn, at,
		 gone ? ", whose port has another address now" : "", m && m->next ? ": " : "",
		 m && m->next ? m->next : "");
}

/* ---- answers of firmware ---- */

bool ep_gda_command(const char *what, int error, const void *out, struct ep_reason *why)
{
	uint32_t status = ep_prm_get(out, EP_PRM_STATUS);

	if (!error && !status) {
		return true;
	}
	if (status) {
		return ep_reason_set(why, "%s was refused: status 0x%x, syndrome 0x%x%s%s", what,
				     status, ep_prm_get(out, EP_PRM_SYNDROME), error ? ": " : "",
				     error ? strerror(error) : "");
	}
	return ep_reason_set(why, "%s failed: %s", what, strerror(error));
}

/*
 * ---- ports that are bonds ----
 *
 * A RoCE port may be a bond of several ports (mlx5_bond_0), whose members are selected by queue
 * pair. Firmware selects for a queue pair that names no member, and may put all of them on the same
 * one. Half of the link is then idle. The kernel driver gives members in turn to queue pairs of
 * verbs. DevX queue pairs bypass it, and name their members here.
 */

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
		EP_INFO(EP_LOG_NET, "%s: it does not report whether its port is a bond: %s",
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
 * The queues of a peer use members in turn, and peers begin at different ones: neighbours do, and
 * so do ranks with the same place in other nodes of this size, to which high throughput sends.
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
		n += (size_t)snprintf(text + n, size - n, ", and %u without a port", count[0]);
	}
	if (n < size) {
		snprintf(text + n, size - n, " queue pairs)");
	}
}

/* ---- capabilities of a device for DevX queues ---- */

bool ep_gda_query_caps(const struct ep_gda_nic *nic, uint32_t set, unsigned char *out,
		       struct ep_reason *why)
{
	unsigned char in[EP_PRM_CAP_IN_BYTES] = { 0 };
	int error;

	memset(out, 0, EP_PRM_CAP_OUT_BYTES);
	ep_prm_set(in, EP_PRM_OPCODE, EP_PRM_CMD_QUERY_HCA_CAP);
	ep_prm_set(in, EP_PRM_OP_MOD, set << 1 | 1);
	errno = 0;
	error = nic->base.dv->mlx5dv_devx_general_cmd(nic->base.ctx, in, sizeof(in), out,
						      EP_PRM_CAP_OUT_BYTES);
	return ep_gda_command("QUERY_HCA_CAP", error, out, why);
}

/*
 * Chooses the form of time stamps, as the kernel driver does (mlx5_get_qp_default_ts). A device
 * whose clock is real time refuses the free running form, and older devices know no other. RoCE has
 * the capability in a group of its own.
 */
static void query_clock(struct ep_gda_nic *nic, const unsigned char *general)
{
	uint32_t formats = ep_prm_get(general, EP_PRM_CAP_SQ_TS_FORMAT);
	unsigned char out[EP_PRM_CAP_OUT_BYTES];
	struct ep_reason why;

	if (nic->base.end.link_layer == IBV_LINK_LAYER_ETHERNET) {
		if (ep_gda_query_caps(nic, EP_PRM_CAPS_ROCE, out, &why)) {
			formats = ep_prm_get(out + EP_PRM_CAP_AT, EP_PRM_ROCE_CAP_QP_TS_FORMAT);
		} else {
			EP_INFO(EP_LOG_NET, "%s: capabilities of RoCE: %s", nic->base.name,
				why.text);
		}
	}
	nic->caps.ts_format = formats ? EP_PRM_TS_DEFAULT : EP_PRM_TS_FREE_RUNNING;
}

bool ep_gda_devx_open(struct ep_gda_nic *nic, struct ep_reason *why)
{
	unsigned char out[EP_PRM_CAP_OUT_BYTES];
	const unsigned char *cap = out + EP_PRM_CAP_AT;
	struct mlx5dv_pd pd = { 0 };
	struct mlx5dv_obj obj = { 0 };
	int error;

	if (!ep_gda_query_caps(nic, EP_PRM_CAPS_GENERAL, out, why)) {
		return false;
	}
	if (ep_prm_get(cap, EP_PRM_CAP_CQE_VERSION) != 1) {
		return ep_reason_set(why,
				     "its completions have format %u; this library knows format 1",
				     ep_prm_get(cap, EP_PRM_CAP_CQE_VERSION));
	}
	if (!ep_prm_get(cap, EP_PRM_CAP_RC) || !ep_prm_get(cap, EP_PRM_CAP_CQ_OI)) {
		return ep_reason_set(why, "it has no %s",
				     ep_prm_get(cap, EP_PRM_CAP_RC)
					     ? "completion queues that ignore overruns"
					     : "reliable connections");
	}
	nic->caps.log_max_qp_sz = ep_prm_get(cap, EP_PRM_CAP_LOG_MAX_QP_SZ);
	nic->caps.error_syndrome = ep_prm_get(cap, EP_PRM_CAP_QPC_EXTENSION) &&
				   ep_prm_get(cap, EP_PRM_CAP_QP_ERROR_SYNDROME);
	nic->caps.ece = ep_prm_get(cap, EP_PRM_CAP_ECE_SUPPORT);
	nic->caps.reports_tier = ep_prm_get(cap, EP_PRM_CAP_OOO_RW_RC) ||
				 ep_prm_get(cap, EP_PRM_CAP_OOO_ALL_RC);
	nic->caps.reports_order = ep_prm_get(cap, EP_PRM_CAP_DATA_IN_ORDER);
	ep_gda_lag_query(nic, cap);
	query_clock(nic, cap);
	obj.pd.in = nic->base.pd;
	obj.pd.out = &pd;
	error = nic->base.dv->mlx5dv_init_obj(&obj, MLX5DV_OBJ_PD);
	if (error) {
		return ep_reason_set(why, "its protection domain has no number: %s",
				     strerror(error));
	}
	nic->pdn = pd.pdn;
	error = nic->base.dv->mlx5dv_devx_query_eqn(nic->base.ctx, 0, &nic->eqn);
	if (error) {
		return ep_reason_set(why, "its event queue has no number: %s", strerror(error));
	}
	nic->base.log_ra_req = ep_prm_get(cap, EP_PRM_CAP_LOG_MAX_RA_REQ_QP);
	nic->base.log_ra_res = ep_prm_get(cap, EP_PRM_CAP_LOG_MAX_RA_RES_QP);
	nic->base.log_max_msg = ep_prm_get(cap, EP_PRM_CAP_LOG_MAX_MSG);
	nic->base.end.log_rra = (uint8_t)ep_min_u64(nic->base.log_ra_res, EP_RC_LOG_READS);
	return true;
}
