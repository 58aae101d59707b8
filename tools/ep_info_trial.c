/* SPDX-License-Identifier: Apache-2.0 */
/*
 * RDMA devices in full, and what comes of making a queue pair on each port as the library does and connecting
 * it with itself: what firmware refuses shows here, without a peer and without a GPU.
 */
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gda/state.h"
#include "rdma/env.h"
#include "tools/ep_info.h"

#define DEPTH 64
#define GIDS 256

/* A line of a file below /sys/class/infiniband; "-": there is none. */
static const char *sys_line(char line[128], const char *fmt, ...) EP_PRINTF(2, 3);
static const char *sys_line(char line[128], const char *fmt, ...)
{
	char path[512] = EP_PORT_SYSFS "/infiniband/";
	size_t at = strlen(path);
	FILE *file;
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(path + at, sizeof(path) - at, fmt, ap);
	va_end(ap);
	file = fopen(path, "re");
	line[0] = '\0';
	if (file) {
		if (fgets(line, 128, file)) {
			line[strcspn(line, "\n")] = '\0';
		}
		fclose(file);
	}
	return line[0] ? line : "-";
}

static void print_gids(const struct ep_verbs *verbs, struct ibv_context *ctx, const char *name,
		       int port, const struct ibv_port_attr *attr)
{
	static const uint8_t none[16];
	char text[EP_GID_TEXT], type[128], ndev[128];
	union ibv_gid gid;

	for (int i = 0; i < attr->gid_tbl_len && i < GIDS; i++) {
		if (verbs->ibv_query_gid(ctx, (uint8_t)port, i, &gid) != 0 ||
		    memcmp(gid.raw, none, sizeof(none)) == 0) {
			continue;
		}
		printf("    GID %d: %s, %s, interface %s\n", i, ep_gid_print(gid.raw, text),
		       sys_line(type, "%s/ports/%d/gid_attrs/types/%d", name, port, i),
		       sys_line(ndev, "%s/ports/%d/gid_attrs/ndevs/%d", name, port, i));
	}
}

static void print_bond(const char *name, int port)
{
	struct ep_topo_bond bond;

	if (ep_topo_bond_read(EP_PORT_SYSFS, name, port, &bond)) {
		printf("    bond %s (%s) of %u ports, %u up, %u Mbit/s together\n", bond.name,
		       bond.mode, bond.members, bond.up, bond.mbps);
	}
}

static void print_port(const struct ep_verbs *verbs, struct ibv_context *ctx, const char *name,
		       int port)
{
	struct ibv_port_attr attr;
	char line[128];

	if (ep_verbs_query_port(verbs, ctx, (uint8_t)port, &attr) != 0) {
		printf("    port %d: %s\n", port, strerror(errno));
		return;
	}
	printf("    port %d: state %d, %s, MTU %u of %u, rate %s, width code %u, speed code %u\n",
	       port, (int)attr.state,
	       attr.link_layer == IBV_LINK_LAYER_ETHERNET ? "Ethernet" : "InfiniBand",
	       128u << attr.active_mtu, 128u << attr.max_mtu,
	       sys_line(line, "%s/ports/%d/rate", name, port), attr.active_width,
	       attr.active_speed);
	printf("    LID %u, subnet manager's %u, flags 0x%x, traffic class file: %s\n", attr.lid,
	       attr.sm_lid, attr.flags, sys_line(line, "%s/tc/%d/traffic_class", name, port));
	print_gids(verbs, ctx, name, port, &attr);
	print_bond(name, port);
}

static void print_device(const struct ep_port_list *list, struct ibv_device *dev)
{
	const struct ep_verbs *v = list->v;
	const char *name = v->ibv_get_device_name(dev);
	struct ibv_context *ctx = v->ibv_open_device(dev);
	char path[PATH_MAX], at[PATH_MAX], board[128], node[128];
	struct ibv_device_attr attr;

	if (!ctx) {
		printf("  %s: cannot be opened: %s\n", name, strerror(errno));
		return;
	}
	memset(&attr, 0, sizeof(attr));
	if (v->ibv_query_device(ctx, &attr) != 0) {
		printf("  %s: does not report its limits: %s\n", name, strerror(errno));
	}
	snprintf(path, sizeof(path), EP_PORT_SYSFS "/infiniband/%s/device", name);
	printf("  %s: firmware %s, vendor 0x%x, part %u, board %s\n", name, attr.fw_ver,
	       attr.vendor_id, attr.vendor_part_id, sys_line(board, "%s/board_id", name));
	printf("    at %s, NUMA node %s\n", realpath(path, at) ? at : "?",
	       sys_line(node, "%s/device/numa_node", name));
	printf("    atomics %d, READs in flight %d and %d, queue pairs %d of up to %d, MRs %d\n",
	       (int)attr.atomic_cap, attr.max_qp_init_rd_atom, attr.max_qp_rd_atom, attr.max_qp,
	       attr.max_qp_wr, attr.max_mr);
	for (int p = 1; p <= attr.phys_port_cnt; p++) {
		print_port(v, ctx, name, p);
	}
	v->ibv_close_device(ctx);
}

/* ---- queue pairs ---- */

struct trial {
	struct ep_gda g;
	struct ep_gda_queue q;
	char host[1][64];
};

/* A queue pair of the mode, in host memory, connected with itself. */
static bool trial_connect(struct trial *trial, struct ep_reason *why)
{
	struct ep_gda_nic *nic = &trial->g.nic[0];
	struct ep_nic_end self;

	if (!ep_gda_queue_create(&trial->q, why)) {
		return false;
	}
	self = nic->base.end;
	trial->q.remote_qpn = trial->q.qpn;
	trial->q.mtu = self.mtu;
	trial->q.atomics = nic->base.atomics;
	trial->q.ece = nic->ece.options;
	return ep_gda_queue_connect(&trial->q, &self, why);
}

static void trial_print(const struct trial *trial, bool ok, const struct ep_reason *why)
{
	const struct ep_gda_nic *nic = &trial->g.nic[0];

	printf("    %s: ", trial->g.mode == EP_GDA_CPU_DB
				   ? "queue pair by commands, as for modes 1 to 3"
				   : "queue pair by verbs, as for mode 4");
	if (!ok) {
		printf("no: %s\n", why->text);
		return;
	}
	printf("connected with itself, MTU %u", 128u << trial->q.mtu);
	if (trial->g.mode == EP_GDA_CPU_DB) {
		printf(", tier %u%s", trial->q.tier, trial->q.atomics ? "" : " without atomics");
	}
	if (nic->lag.ports) {
		printf(", bond of %u ports, %s, sends by port %u", nic->lag.ports,
		       nic->lag.by_queue ? "by queue pair" : "by a hash of headers", trial->q.lag);
	}
	printf(", ECE 0x%x\n", trial->q.ece);
}

static void trial_commands(struct trial *trial)
{
	struct ep_gda_nic *nic = &trial->g.nic[0];
	const struct ep_mlx5dv *dv = nic->base.dv;
	struct ep_reason why = { "" };
	uint64_t bytes = ep_gda_stride(&trial->g);
	bool ok = false;

	trial->g.mode = EP_GDA_CPU_DB;
	nic->queue_memory.host = aligned_alloc(EP_GDA_PAGE, bytes);
	nic->uar = dv->mlx5dv_devx_alloc_uar(nic->base.ctx, 1); /* NC */
	if (!nic->uar) {
		nic->uar = dv->mlx5dv_devx_alloc_uar(nic->base.ctx, 0); /* BF */
	}
	if (!nic->queue_memory.host || !nic->uar) {
		ep_reason_set(&why, "no memory or no doorbell page: %s", strerror(errno));
		goto out;
	}
	memset(nic->queue_memory.host, 0, bytes);
	memset(nic->queue_memory.host, 0xff, sizeof(struct ep_mlx5_cqe));
	nic->queue_memory.umem = dv->mlx5dv_devx_umem_reg(nic->base.ctx, nic->queue_memory.host,
							  bytes, IBV_ACCESS_LOCAL_WRITE);
	if (!nic->queue_memory.umem) {
		ep_reason_set(&why, "its memory is not taken: %s (ulimit -l?)", strerror(errno));
		goto out;
	}
	ok = ep_gda_address_hold(nic, &why) && trial_connect(trial, &why);
out:
	trial_print(trial, ok, &why);
	ep_gda_queue_destroy(&trial->q);
	ep_gda_address_release(nic);
	if (nic->queue_memory.umem) {
		dv->mlx5dv_devx_umem_dereg(nic->queue_memory.umem);
	}
	if (nic->uar) {
		dv->mlx5dv_devx_free_uar(nic->uar);
	}
	free(nic->queue_memory.host);
	memset(&nic->queue_memory, 0, sizeof(nic->queue_memory));
	nic->uar = NULL;
}

static void trial_verbs(struct trial *trial)
{
	struct ep_gda_nic *nic = &trial->g.nic[0];
	struct ep_reason why = { "" };
	bool ok;

	trial->g.mode = EP_GDA_CPU_PROXY;
	memset(&nic->ece, 0, sizeof(nic->ece));
	ok = ep_gda_verbs_cq(&trial->g, nic, &why) && trial_connect(trial, &why);
	trial_print(trial, ok, &why);
	ep_gda_queue_destroy(&trial->q);
	if (nic->cq) {
		nic->base.v->ibv_destroy_cq(nic->cq);
		nic->cq = NULL;
	}
}

static void try_port(const struct ep_port_list *list, const struct ep_port *port,
		     const struct ep_ib_env *env)
{
	struct trial *t = calloc(1, sizeof(*t));
	struct ep_reason why = { "" };
	ncclResult_t result = ncclSuccess;
	struct ep_gda_nic *nic;
	struct ep_error error;

	printf("  %s:%d, %u Mbit/s\n", port->name, port->port, port->mbps);
	if (!t) {
		return;
	}
	nic = &t->g.nic[0];
	t->g.depth = DEPTH;
	t->g.env = *env;
	t->g.host = t->host;
	t->g.nranks = t->g.nnics = 1;
	t->g.queues = t->g.node = t->g.nqueues = nic->queues = 1;
	t->g.queue = &t->q;
	t->q.gda = &t->g;
	t->q.nic = nic;
	if (!ep_nic_open(&nic->base, list, port, env, &why, &result)) {
		if (result != ncclSuccess) {
			ep_error_get(NULL, &error);
			ep_reason_set(&why, "%.200s", error.text);
		}
		printf("    not usable: %s\n", why.text);
	} else {
		if (nic->base.devx && ep_gda_devx_open(nic, &nic->base.no_devx)) {
			trial_commands(t);
		} else {
			printf("    no DevX: %s\n", nic->base.no_devx.text);
		}
		trial_verbs(t);
	}
	ep_nic_close(&nic->base, false);
	free(t);
}

void ep_info_trial(void)
{
	struct ep_port_list list;
	struct ep_ib_env env;
	struct ep_reason why = { "" };
	struct ep_error error;
	bool any = ep_port_list_open(&list, &why);

	puts("RDMA devices");
	if (!any) {
		printf("  %s\n", why.text);
	}
	for (int i = 0; i < list.ndevs; i++) {
		print_device(&list, list.dev[i]);
	}
	puts("Queue pairs, made and destroyed again");
	if (ep_ib_env_read(&env) != ncclSuccess) {
		ep_error_get(NULL, &error);
		printf("  not tried: %s\n", error.text);
	} else {
		for (int i = 0; i < list.n; i++) {
			try_port(&list, &list.port[i], &env);
		}
	}
	ep_port_list_close(&list);
}
