/* SPDX-License-Identifier: Apache-2.0 */
/* Capabilities of a device for DevX queues. */
#include <errno.h>
#include <string.h>
#include "core/log.h"
#include "gda/command.h"
#include "gda/devx.h"
#include "gda/lag.h"
#include "gda/prm.h"
#include "gda/state.h"
#include "rdma/rc_qp.h"

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
 * A device whose clock is real time refuses queues of the free running form, which is the only one
 * that older devices know. What the kernel driver does (mlx5_get_qp_default_ts): RoCE has the
 * capability in a group of its own.
 */
static void ep_gda_query_clock(struct ep_gda_nic *nic, const unsigned char *general)
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
		return ep_reason_set(why, "its completions have format %u, known is 1",
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
	ep_gda_query_clock(nic, cap);
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
