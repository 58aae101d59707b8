/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes a queue pair on each port as the library does, connects it with itself and destroys it:
 * what firmware refuses shows here, without a peer and without a GPU.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gda/state.h"
#include "rdma/env.h"
#include "tools/ep_info.h"

#define DEPTH 64

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

void ep_info_queues(void)
{
	struct ep_port_list list;
	struct ep_ib_env env;
	struct ep_reason why = { "" };
	struct ep_error error;

	puts("Queue pairs, made and destroyed again");
	if (!ep_port_list_open(&list, &why)) {
		printf("  %s\n", why.text);
	}
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
