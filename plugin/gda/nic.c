/* SPDX-License-Identifier: Apache-2.0 */
/* NICs: which there are, opening those chosen, what they can do. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <endian.h>
#include "core/log.h"
#include "gda/state.h"
#include "gda/prm.h"

#define EP_GDA_MAX_PORTS 64 /* of a machine */

struct ep_gda_ports {
	struct ep_gda_port port[EP_GDA_MAX_PORTS];
	int n;
	struct ep_gda_why closed; /* a device that could not be opened */
};

static void ep_gda_list_device(struct ep_gda *g, struct ibv_device *dev, struct ep_gda_ports *list)
{
	const char *name = g->v->ibv_get_device_name(dev);
	struct ibv_context *ctx = g->v->ibv_open_device(dev);
	struct ibv_device_attr attr;

	if (!ctx) {
		ep_gda_no(&list->closed, "; %s could not be opened: %s", name, strerror(errno));
		return;
	}
	memset(&attr, 0, sizeof(attr));
	if (g->v->ibv_query_device(ctx, &attr) != 0) {
		attr.phys_port_cnt = 0;
	}
	for (int p = 1; p <= attr.phys_port_cnt; p++) {
		struct ibv_port_attr state;

		if (ep_verbs_query_port(g->v, ctx, (uint8_t)p, &state) != 0 ||
		    state.state != IBV_PORT_ACTIVE) {
			continue;
		}
		if (list->n == EP_GDA_MAX_PORTS) {
			EP_INFO(EP_LOG_NET,
				"%s:%d and later ports are not looked at, the limit is %d", name, p,
				EP_GDA_MAX_PORTS);
			break;
		}
		ep_gda_port_set(&list->port[list->n], name, p, &state);
		list->n++;
	}
	g->v->ibv_close_device(ctx);
}

/* A command's answer: true if it was carried out. */
bool ep_gda_command(const struct ep_gda *g, const char *what, int error, const void *out,
		    struct ep_gda_why *why)
{
	uint32_t status = ep_prm_get(out, EP_PRM_STATUS);

	if (!error && !status) {
		return true;
	}
	if (status) {
		return ep_gda_no(why, "%s was refused: status 0x%x, syndrome 0x%x%s%s", what,
				 status, ep_prm_get(out, EP_PRM_SYNDROME), error ? ": " : "",
				 error ? strerror(error) : "");
	}
	return ep_gda_no(why, "%s failed: %s", what, strerror(error));
}

static bool ep_gda_query_caps(struct ep_gda *g, struct ep_gda_nic *nic, uint32_t set,
			      unsigned char *out, struct ep_gda_why *why)
{
	unsigned char in[EP_PRM_CAP_IN_BYTES] = { 0 };
	int error;

	memset(out, 0, EP_PRM_CAP_OUT_BYTES);
	ep_prm_set(in, EP_PRM_OPCODE, EP_PRM_CMD_QUERY_HCA_CAP);
	ep_prm_set(in, EP_PRM_OP_MOD, set << 1 | 1);
	errno = 0;
	error = g->dv->mlx5dv_devx_general_cmd(nic->ctx, in, sizeof(in), out, EP_PRM_CAP_OUT_BYTES);
	return ep_gda_command(g, "QUERY_HCA_CAP", error, out, why);
}

/*
 * A device whose clock is real time refuses queues of the free running form, which is the only one
 * that older devices know. What the kernel driver does (mlx5_get_qp_default_ts): RoCE has the
 * capability in a group of its own.
 */
static void ep_gda_query_clock(struct ep_gda *g, struct ep_gda_nic *nic,
			       const unsigned char *general)
{
	uint32_t formats = ep_prm_get(general, EP_PRM_CAP_SQ_TS_FORMAT);
	unsigned char out[EP_PRM_CAP_OUT_BYTES];
	struct ep_gda_why why;

	if (nic->end.link_layer == IBV_LINK_LAYER_ETHERNET) {
		if (ep_gda_query_caps(g, nic, EP_PRM_CAPS_ROCE, out, &why)) {
			formats = ep_prm_get(out + EP_PRM_CAP_AT, EP_PRM_ROCE_CAP_QP_TS_FORMAT);
		} else {
			EP_INFO(EP_LOG_NET, "%s: capabilities of RoCE: %s", nic->name, why.text);
		}
	}
	nic->caps.ts_format = formats ? EP_PRM_TS_DEFAULT : EP_PRM_TS_FREE_RUNNING;
}

/* What DevX queues need of the device; false: plain verbs are left. */
static bool ep_gda_devx_open(struct ep_gda *g, struct ep_gda_nic *nic, struct ep_gda_why *why)
{
	unsigned char out[EP_PRM_CAP_OUT_BYTES];
	const unsigned char *cap = out + EP_PRM_CAP_AT;
	struct mlx5dv_pd pd = { 0 };
	struct mlx5dv_obj obj = { 0 };
	int error;

	if (!ep_gda_query_caps(g, nic, EP_PRM_CAPS_GENERAL, out, why)) {
		return false;
	}
	if (ep_prm_get(cap, EP_PRM_CAP_CQE_VERSION) != 1) {
		return ep_gda_no(why, "its completions have format %u, known is 1",
				 ep_prm_get(cap, EP_PRM_CAP_CQE_VERSION));
	}
	if (!ep_prm_get(cap, EP_PRM_CAP_RC) || !ep_prm_get(cap, EP_PRM_CAP_CQ_OI)) {
		return ep_gda_no(why, "it has no %s",
				 ep_prm_get(cap, EP_PRM_CAP_RC)
					 ? "completion queues that ignore overruns"
					 : "reliable connections");
	}
	nic->caps.log_max_qp_sz = ep_prm_get(cap, EP_PRM_CAP_LOG_MAX_QP_SZ);
	nic->caps.log_ra_req = ep_prm_get(cap, EP_PRM_CAP_LOG_MAX_RA_REQ_QP);
	nic->caps.log_ra_res = ep_prm_get(cap, EP_PRM_CAP_LOG_MAX_RA_RES_QP);
	nic->caps.log_max_msg = ep_prm_get(cap, EP_PRM_CAP_LOG_MAX_MSG);
	nic->caps.error_syndrome = ep_prm_get(cap, EP_PRM_CAP_QPC_EXTENSION) &&
				   ep_prm_get(cap, EP_PRM_CAP_QP_ERROR_SYNDROME);
	nic->caps.tells_tier = ep_prm_get(cap, EP_PRM_CAP_OOO_RW_RC) ||
			       ep_prm_get(cap, EP_PRM_CAP_OOO_ALL_RC);
	nic->caps.tells_order = ep_prm_get(cap, EP_PRM_CAP_DATA_IN_ORDER);
	ep_gda_query_clock(g, nic, cap);
	obj.pd.in = nic->pd;
	obj.pd.out = &pd;
	error = g->dv->mlx5dv_init_obj(&obj, MLX5DV_OBJ_PD);
	if (error) {
		return ep_gda_no(why, "its protection domain has no number: %s", strerror(error));
	}
	nic->pdn = pd.pdn;
	error = g->dv->mlx5dv_devx_query_eqn(nic->ctx, 0, &nic->eqn);
	if (error) {
		return ep_gda_no(why, "its event queue has no number: %s", strerror(error));
	}
	return true;
}

static bool ep_gda_open_context(struct ep_gda *g, struct ep_gda_nic *nic, struct ibv_device *dev,
				struct ep_gda_why *why)
{
	const char *no_dv = "";

	g->dv = ep_mlx5dv(&no_dv);
	if (!g->dv) {
		ep_gda_no(&nic->no_devx, "%s", no_dv);
	} else if (!g->dv->mlx5dv_is_supported(dev)) {
		ep_gda_no(&nic->no_devx, "it is not an mlx5 device");
	} else {
		struct mlx5dv_context_attr attr = { .flags = MLX5DV_CONTEXT_FLAGS_DEVX };

		nic->ctx = g->dv->mlx5dv_open_device(dev, &attr);
		nic->devx = nic->ctx != NULL;
		if (!nic->ctx) {
			ep_gda_no(&nic->no_devx, "DEVX is not available: %s", strerror(errno));
		}
	}
	if (!nic->ctx) {
		nic->ctx = g->v->ibv_open_device(dev);
	}
	return nic->ctx || ep_gda_no(why, "%s cannot be opened: %s", nic->name, strerror(errno));
}

static bool ep_gda_port_open(struct ep_gda *g, struct ep_gda_nic *nic, struct ep_gda_why *why,
			     ncclResult_t *result)
{
	struct ep_gda_end *end = &nic->end;
	struct ibv_port_attr attr;
	uint16_t pkey = 0;
	int error;

	error = ep_verbs_query_port(g->v, nic->ctx, (uint8_t)nic->port, &attr);
	if (error || attr.state != IBV_PORT_ACTIVE) {
		return ep_gda_no(why, "%s:%d is not active (%s)", nic->name, nic->port,
				 error ? strerror(error) : "its state has changed");
	}
	snprintf(end->name, sizeof(end->name), "%.31s", nic->name);
	end->port = (uint8_t)nic->port;
	end->link_layer = attr.link_layer ? attr.link_layer : IBV_LINK_LAYER_INFINIBAND;
	end->mtu = (uint8_t)attr.active_mtu;
	end->lid = attr.lid;
	end->grh = (attr.flags & IBV_QPF_GRH_REQUIRED) != 0;
	nic->pkey_index = (uint32_t)g->env.pkey;
	if (end->link_layer != IBV_LINK_LAYER_ETHERNET) {
		error = g->v->ibv_query_pkey(nic->ctx, (uint8_t)nic->port, (int)nic->pkey_index,
					     &pkey);
		if (error || !pkey) {
			return ep_gda_no(why,
					 "%s:%d has no partition key at index %u of %u: set "
					 "NCCL_IB_PKEY",
					 nic->name, nic->port, nic->pkey_index, attr.pkey_tbl_len);
		}
		end->pkey = be16toh(pkey);
	}
	ep_gda_port_class(nic, &g->env, EP_GDA_SYSFS);
	*result = ep_gda_port_address(g, nic, attr.gid_tbl_len);
	return *result == ncclSuccess;
}

/* Of READs and atomics in flight; more than 16 are not used. */
static uint32_t ep_gda_log_atomics(int limit)
{
	uint32_t log = 0;

	while (log < 4 && 2 << log <= limit) {
		log++;
	}
	return log;
}

static bool ep_gda_nic_open(struct ep_gda *g, struct ep_gda_nic *nic, struct ibv_device *dev,
			    struct ep_gda_why *why, ncclResult_t *result)
{
	if (!ep_gda_open_context(g, nic, dev, why)) {
		return false;
	}
	if (g->v->ibv_query_device(nic->ctx, &nic->attr) != 0) {
		return ep_gda_no(why, "%s does not tell its limits: %s", nic->name,
				 strerror(errno));
	}
	nic->pd = g->v->ibv_alloc_pd(nic->ctx);
	if (!nic->pd) {
		return ep_gda_no(why, "%s: no protection domain: %s", nic->name, strerror(errno));
	}
	if (!ep_gda_port_open(g, nic, why, result)) {
		return false;
	}
	if (nic->devx) {
		nic->devx = ep_gda_devx_open(g, nic, &nic->no_devx);
	}
	if (!nic->devx) {
		nic->caps.log_ra_req = ep_gda_log_atomics(nic->attr.max_qp_init_rd_atom);
		nic->caps.log_ra_res = ep_gda_log_atomics(nic->attr.max_qp_rd_atom);
		nic->caps.log_max_msg = 30;
	}
	/* The kernel driver says so only if operands are in the host's byte order. */
	nic->caps.atomics = nic->attr.atomic_cap != IBV_ATOMIC_NONE;
	nic->end.log_rra = (uint8_t)ep_min_u64(nic->caps.log_ra_res, 4);
	return true;
}

static bool ep_gda_open_chosen(struct ep_gda *g, struct ibv_device **devs, int ndevs,
			       const struct ep_gda_port *chosen, int n, struct ep_gda_why *why,
			       ncclResult_t *result)
{
	for (int i = 0; i < n; i++) {
		struct ep_gda_nic *nic = &g->nic[i];
		struct ibv_device *dev = NULL;

		for (int d = 0; d < ndevs; d++) {
			if (strcmp(g->v->ibv_get_device_name(devs[d]), chosen[i].name) == 0) {
				dev = devs[d];
			}
		}
		memcpy(nic->name, chosen[i].name, sizeof(nic->name));
		nic->port = chosen[i].port;
		g->nnics = i + 1;
		if (!dev) {
			return ep_gda_no(why, "%s was chosen and is not there", nic->name);
		}
		if (!ep_gda_nic_open(g, nic, dev, why, result)) {
			return false;
		}
	}
	return true;
}

bool ep_gda_nics_open(struct ep_gda *g, const struct ep_gda_config *c, struct ep_gda_why *why,
		      ncclResult_t *result)
{
	struct ep_gda_who who = { c->bus_id, c->device, c->place };
	struct ep_gda_port chosen[EP_GDA_MAX_NICS];
	struct ep_gda_ports list = { .n = 0 };
	int ndevs = 0, n = EP_GDA_MAX_NICS;
	struct ibv_device **devs;
	const char *no_verbs;
	bool ok;

	g->v = ep_verbs(&no_verbs);
	if (!g->v) {
		return ep_gda_no(why, "%s", no_verbs);
	}
	devs = (g->v->ibv_get_device_list)(&ndevs);
	for (int i = 0; devs && i < ndevs; i++) {
		ep_gda_list_device(g, devs[i], &list);
	}
	if (!list.n) {
		ok = ep_gda_no(why, "there is no active RDMA port (%d devices%s): see ibv_devinfo",
			       devs ? ndevs : 0, list.closed.text);
		goto out;
	}
	*result = ep_gda_choose(&who, list.port, list.n, chosen, &n);
	ok = *result == ncclSuccess && ep_gda_open_chosen(g, devs, ndevs, chosen, n, why, result);
out:
	if (devs) {
		g->v->ibv_free_device_list(devs);
	}
	return ok;
}

void ep_gda_nics_close(struct ep_gda *g)
{
	for (int i = g->nnics - 1; i >= 0; i--) {
		struct ep_gda_nic *nic = &g->nic[i];

		if (nic->pd && g->v->ibv_dealloc_pd(nic->pd) != 0) {
			EP_INFO(EP_LOG_NET, "%s: its protection domain is still in use: %s",
				nic->name, strerror(errno));
		}
		if (nic->ctx && !nic->keep) {
			g->v->ibv_close_device(nic->ctx);
		}
	}
	g->nnics = 0;
}
